/* What the strategies of pooling windows share. */
#ifndef GRADC_CODEGEN_KERNELS_POOL_H
#define GRADC_CODEGEN_KERNELS_POOL_H

#include "codegen/strategy/strategy.h"

typedef struct {
	Lower *lw;
	const PoolAttr *a;
	Type x, y, window;
	Index at; /* of the window's element of y */
} PoolLoop;
PoolLoop pool_loop(Lower *lw, const Node *n, Type x, Type y);
/* Windows of few places are written out, so that elements of y go in vectors. */
bool pool_is_unrolled(const PoolLoop *p);
Index pool_constant_index(Type t, int64_t flat);
/* The sum or maximum of x over the window. */
LoopValue pool_window_value(const PoolLoop *p, const Value *x);
/* The flat place in x of the window's first maximum. */
LoopValue pool_window_winner(const PoolLoop *p, const Value *x);

/* What pool and pool_gather give for the element at hand. */
typedef LoopValue PoolElement(const PoolLoop *p, const Node *n);
PoolElement pool_value, pool_gathered;

#endif

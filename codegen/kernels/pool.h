/* Private to kernels: shared by the strategies of pooling. */
#ifndef GRADC_CODEGEN_KERNELS_POOL_H
#define GRADC_CODEGEN_KERNELS_POOL_H

#include "codegen/strategy/strategy.h"

typedef struct {
	Lower *lw;
	const PoolAttr *a;
	Type x, y, window;
	Index at; /* of the current element of y */
} PoolLoop;
PoolLoop pool_loop(Lower *lw, const Node *n, Type x, Type y);
/* Is the window small enough to be unrolled? Then elements of y are computed in vectors. */
bool pool_is_unrolled(const PoolLoop *p);
Index pool_constant_index(Type t, int64_t flat);
/* The sum or maximum of x over the window. */
LoopValue pool_window_value(const PoolLoop *p, const Value *x);
/* The flat place in x of the window's first maximum. */
LoopValue pool_window_winner(const PoolLoop *p, const Value *x);

/* The result of pool and of pool_gather for the current element. */
typedef LoopValue PoolElement(const PoolLoop *p, const Node *n);
PoolElement pool_value, pool_gathered;

#endif

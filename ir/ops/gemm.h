/* The one blocked matrix product that dot and the convolutions are lowered to. */
#ifndef GRADC_IR_OPS_GEMM_H
#define GRADC_IR_OPS_GEMM_H

#include "ir/ops/family.h"

/* c[b,m,n] = sum_k a(b,m,k) * b(b,k,n), for every batch b. The element functions may compute
 * whatever they like; b is packed once per block of columns, so it may be expensive, a is read
 * M*N*K/32 times. */
typedef struct {
	const Node *node;
	DType type; /* f32, f64, or an integer compute type */
	int64_t batch, m, n, k;
	LoopValue (*a)(Lower *lw, const Node *n, Affine batch, Affine m, Affine k);
	LoopValue (*b)(Lower *lw, const Node *n, Affine batch, Affine k, Affine col);
	/* Flat place of c in the result. */
	Affine (*c)(const Node *n, Affine batch, Affine m, Affine col);
} Gemm;
void gemm_kernel(Lower *lw, const Gemm *g);

#endif

/* The one blocked matrix product that dot and the convolutions are lowered to. */
#ifndef GRADC_CODEGEN_KERNELS_PRODUCT_H
#define GRADC_CODEGEN_KERNELS_PRODUCT_H

#include "codegen/kernels/kernels.h"

/* c[b,m,n] = sum_k a(b,m,k) * b(b,k,n), for every batch b. n and k are flat numbers in shapes: blocks end where
 * their rows end, and each axis has a loop of its own, so that an element function that splits them along
 * these axes needs no division. The functions may compute whatever they like; b is packed once per block of
 * columns, so it may be expensive, a is read M*N*K/32 or /16 times. */
typedef struct Gemm Gemm;
struct Gemm {
	const Node *node;
	const void *part; /* for the functions: which product of several it is */
	DType type;       /* in which products are added: accumulation_type */
	int64_t batch, m;
	Ints n, k;      /* their shapes; of no axes: one number */
	bool a_along_k; /* memory has a's numbers along k side by side */
	bool b_along_k; /* memory has b's numbers along k side by side, not those of a row */
	LoopValue (*a)(Lower *lw, const Gemm *g, Affine batch, Affine m, Affine k);
	LoopValue (*b)(Lower *lw, const Gemm *g, Affine batch, Affine k, Affine col);
	/* Flat place of c in the result. */
	Affine (*c)(Lower *lw, const Gemm *g, Affine batch, Affine m, Affine col);
};
enum { MAX_GEMMS = 16 };
/* f32, or f64 where an operand or the result is; integers wrap, so that it is the result's compute type. */
DType accumulation_type(const Node *n);
/* A sum as scalar of the type that the node's result is stored from, rounded once. */
LoopValue result_of_sum(LoopBuilder *lb, const Node *n, LoopValue sum);
/* Up to MAX_GEMMS products of one node and type, whose places in the result differ: parts of all go in parallel. */
void gemm_kernel(Lower *lw, const Gemm *list, int n);

#endif

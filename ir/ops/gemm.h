/* The one blocked matrix product that dot and the convolutions are lowered to. */
#ifndef GRADC_IR_OPS_GEMM_H
#define GRADC_IR_OPS_GEMM_H

#include "ir/ops/family.h"

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

/* The vector along that axis of n's result that reader adds to it, and nobody else reads the result; else NULL. */
Value *added_vector(const Node *n, const Node *reader, int axis);

/* ---- dtypes of a product: operands of one class; the result's is `dtype`, or theirs where they agree */

/* Result dtype of a node with these attributes; false after reporting. */
bool infer_product(Infer *in, int dtype, bool allow_tf32, DType *out);
/* The attribute that makes a product of x and y one of type z: nothing is said that goes without saying. */
int product_dtype(DType x, DType y, DType z);

/* ---- the same work as a library's */
enum { LEAST_LIBRARY_FLOPS = 1 << 20 }; /* calling it takes some microseconds */
/* Appends n numbers. */
void library_put(LibraryCall *c, int n, const int64_t *x);
/* Appends which vector the node's kernel adds, or that it adds none; false: the library cannot read it. */
bool library_put_bias(Lower *lw, const Node *n, LibraryCall *c);
/* Are both operands and the result f32, or all bf16? Libraries get no other work. */
bool library_takes_dtypes(const Node *n);

#endif

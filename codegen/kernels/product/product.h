/* The blocked matrix product that dot and the convolutions use. cut.c decides how it is cut; product.c has
 * its loops. */
#ifndef GRADC_CODEGEN_KERNELS_PRODUCT_PRODUCT_H
#define GRADC_CODEGEN_KERNELS_PRODUCT_PRODUCT_H

#include "codegen/kernels/tiles.h"
#include "codegen/strategy/strategy.h"

/* c[b,m,n] = sum_k a(b,m,k) * b(b,k,n), for every batch b. n and k may stand for several axes
 * each; then they are flat numbers in the shapes Product.n and Product.k. Blocks end where rows
 * of these shapes end, and each axis has a loop of its own, so the functions below can split n or
 * k into indices without a division. The functions a and b may load or compute their elements.
 * Elements of b may be expensive to compute, because b is packed once for many rows. Elements of
 * a are computed once for every panel of columns. */
struct Product {
	const Node *node;
	const void *part; /* tells the functions below which of several products this is */
	DType type;       /* type in which products are added: accumulation_type */
	int64_t batch, m;
	Ints n, k;      /* shapes of n and k; a shape without axes has one element */
	bool a_along_k; /* are a's numbers along k contiguous in memory? */
	/* are b's numbers along k contiguous in memory? If not, those along n are */
	bool b_along_k;
	LoopValue (*a)(Lower *lw, const Product *p, Affine batch, Affine m, Affine k);
	LoopValue (*b)(Lower *lw, const Product *p, Affine batch, Affine k, Affine col);
	/* Flat place of c in the result. */
	Affine (*c)(Lower *lw, const Product *p, Affine batch, Affine m, Affine col);
};
/* The type in which products are added. Floats: f32, or f64 if an operand or the result is f64.
 * Integers: the result's compute type, because sums wrap around in any type. */
DType accumulation_type(const Node *n);
/* The sum as a scalar for the node's result, rounded once. */
LoopValue result_of_sum(LoopBuilder *lb, const Node *n, LoopValue sum);

/* ---- cut.c */
/* How a product is cut into parts: batch x splits of k x chunks of rows x repeats x panels of columns. */
typedef struct {
	Tiling columns, depth; /* panels; blocks of k, within a split */
	/* sums in registers: rows x strip; a strip is two vectors of lanes */
	int rows, strip, lanes;
	int64_t chunk, chunks; /* chunk: blocks of rows in a part; chunks: number of chunks */
	/* splits of k: of its first axis, or of its first axis times the next one */
	int64_t splits;
	int64_t next_splits; /* splits of the next axis; 1: this axis is not split */
	bool panels_outer;   /* parts are ordered by panels, then by chunks */
	bool shared;         /* a serving kernel packs b once; also a, if pack_rows */
	bool pack_rows;      /* is a packed, in blocks of rows? */
	bool by_lines;       /* b is packed along k, by cache lines */
} ProductCut;
/* The cut of product i, of n products that one kernel computes. */
ProductCut product_cut(const Lower *lw, const Product *list, int n, int i);
/* Between blocks of k, do sums wait in an array? They do if the result's type has fewer bits than
 * the sums, and if the result holds a sum to which the kernel adds; otherwise they wait in the result. */
bool product_waits(const Lower *lw, const Product *p, const ProductCut *c);
/* Elements of the array of waiting sums. The last chunk also has the rows that do not fill a
 * block. */
int64_t waiting_elements(const Product *p, const ProductCut *c);
/* Elements of a packed panel, within one split of k: its strips follow each other, each in whole
 * vectors. */
int64_t panel_elements(const ProductCut *c);
/* how many numbers with the same k are contiguous in a panel */
int64_t packed_columns(const ProductCut *c);
int64_t row_blocks(const Product *p, const ProductCut *c);
/* Elements that the serving kernel packs, of b and of a. */
int64_t shared_columns(const Product *p, const ProductCut *c);
int64_t shared_rows(const Product *p, const ProductCut *c);

/* ---- product.c: up to MAX_PRODUCTS products of one node and one type, with different places in the result.
 * Their parts run in parallel. */
#define BY_PRODUCTS .scratch = products_scratch, .prepare = products_prepare, .emit = products_emit
/* The type of the data that a serving kernel leaves for the main kernel: packed operands, or the
 * sums of splits of k. NULL: no serving kernel. */
Type products_scratch(Lower *lw, const Node *n);
void products_prepare(Lower *lw, const Node *n);
void products_emit(Lower *lw, const Node *n);

/* ---- team.c: products for a team of GPU threads. A single product is computed in blocks if
 * that is faster; otherwise each member (thread) computes one column of some rows. */
#define BY_TEAM_PRODUCTS \
	.scratch = team_products_scratch, .prepare = team_products_prepare, .emit = products_by_team
/* The type of the sums of splits of k; NULL: k is not split. */
Type team_products_scratch(Lower *lw, const Node *n);
void team_products_prepare(Lower *lw, const Node *n);
void products_by_team(Lower *lw, const Node *n);

/* ---- block_plan.c: number of splits of k. 1: the product's loops store the result. More: the
 * loops store the sums of each split in the scratch, [split, result]. 0: the product is not
 * computed in blocks. */
int64_t product_block_splits(Lower *lw, const Product *p);

/* ---- blocks.c */
void product_by_blocks(Lower *lw, const Product *p);

#endif

/* The one blocked matrix product that dot and the convolutions are lowered to. kernels/product/cut.c decides how it is cut,
 * product.c has its loops. */
#ifndef GRADC_CODEGEN_KERNELS_PRODUCT_H
#define GRADC_CODEGEN_KERNELS_PRODUCT_H

#include "codegen/kernels/tiles.h"
#include "codegen/strategy/strategy.h"

/* c[b,m,n] = sum_k a(b,m,k) * b(b,k,n), for every batch b. n and k are flat numbers in shapes: blocks end where
 * their rows end, and each axis has a loop of its own, so that an element function that splits them along
 * these axes needs no division. The functions may compute whatever they like; b is packed for many rows, so it may be
 * expensive, a is read once for every panel of columns. */
struct Product {
	const Node *node;
	const void *part; /* for the functions: which product of several it is */
	DType type;       /* in which products are added: accumulation_type */
	int64_t batch, m;
	Ints n, k;      /* their shapes; of no axes: one number */
	bool a_along_k; /* memory has a's numbers along k side by side */
	bool b_along_k; /* memory has b's numbers along k side by side, not those of a row */
	LoopValue (*a)(Lower *lw, const Product *p, Affine batch, Affine m, Affine k);
	LoopValue (*b)(Lower *lw, const Product *p, Affine batch, Affine k, Affine col);
	/* Flat place of c in the result. */
	Affine (*c)(Lower *lw, const Product *p, Affine batch, Affine m, Affine col);
};
/* f32, or f64 where an operand or the result is; integers wrap, so that it is the result's compute type. */
DType accumulation_type(const Node *n);
/* A sum as scalar of the type that the node's result is stored from, rounded once. */
LoopValue result_of_sum(LoopBuilder *lb, const Node *n, LoopValue sum);

/* ---- kernels/product/cut.c */
/* Parts are batch x splits x chunks of rows x repeats x panels of columns. */
typedef struct {
	Tiling columns, depth;  /* panels; blocks of k. Of a part, where k is split */
	int rows, strip, lanes; /* sums in registers: rows x strip, which is two vectors of lanes */
	int64_t chunk, chunks;  /* row blocks of a part, and how many parts these give */
	int64_t splits;         /* of k: of its first axis, or of all of that and the next one */
	int64_t next_splits;    /* of the next one; 1: it is whole */
	bool panels_outer;      /* parts are ordered by panels, then by chunks */
	bool shared; /* b is packed once, by a kernel that runs before; and a, where its rows are */
	bool pack_rows; /* of a, in blocks */
	bool by_lines;  /* b is packed along k, by lines of the cache */
} ProductCut;
/* Product number i of the n that a kernel makes. */
ProductCut product_cut(const Lower *lw, const Product *list, int n, int i);
/* Do sums wait in an array of their own for the next block of k, since they would lose bits in c? */
bool product_waits(const Lower *lw, const Product *p, const ProductCut *c);
/* Sums of a part that wait so: the last chunk has the rows that fill no block, too. */
int64_t waiting_elements(const Product *p, const ProductCut *c);
/* Elements from one panel, and one split's part of it, to the next: strips side by side, whole vectors. */
int64_t panel_elements(const ProductCut *c);
int64_t packed_columns(const ProductCut *c); /* numbers of one k that are side by side */
int64_t row_blocks(const Product *p, const ProductCut *c);
/* Elements that the kernel before packs, of b and of a. */
int64_t shared_columns(const Product *p, const ProductCut *c);
int64_t shared_rows(const Product *p, const ProductCut *c);

/* ---- product.c: up to MAX_PRODUCTS of one node and type, whose places in the result differ: parts of all go in
 * parallel. */
#define BY_PRODUCTS .scratch = products_scratch, .prepare = products_prepare, .emit = products_emit
/* What a kernel before makes: packed b, or sums of parts of k. NULL: nothing. */
Type products_scratch(Lower *lw, const Node *n);
void products_prepare(Lower *lw, const Node *n);
void products_emit(Lower *lw, const Node *n);

/* ---- kernels/product/team.c: the same for a team: one product in blocks, where that pays, else a column of some rows for each
 * member. */
#define BY_TEAM_PRODUCTS \
	.scratch = team_products_scratch, .prepare = team_products_prepare, .emit = products_by_team
/* Sums of parts of k; NULL: k is whole. */
Type team_products_scratch(Lower *lw, const Node *n);
void team_products_prepare(Lower *lw, const Node *n);
void products_by_team(Lower *lw, const Node *n);

/* ---- kernels/product/block_plan.c: into how many parts k is split, whose sums the loops leave in the scratch, [split, result]; 1: they
 * store the result; 0: the product has no blocks. */
int64_t product_block_splits(Lower *lw, const Product *p);

/* ---- kernels/product/blocks.c */
void product_by_blocks(Lower *lw, const Product *p);

#endif

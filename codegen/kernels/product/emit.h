/* Private to product: shared by the files that emit matrix products c = a b. For CPUs, cut.c
 * decides how a product is cut, pack.c copies operands in the order in which they are read
 * (packs them), sums.c multiplies, and product.c has the parts and the kernels. */
#ifndef GRADC_CODEGEN_KERNELS_PRODUCT_EMIT_H
#define GRADC_CODEGEN_KERNELS_PRODUCT_EMIT_H

#include "codegen/kernels/product/product.h"

/* A product while its kernel is emitted: how it is cut, and the arrays of the kernel. */
typedef struct {
	Lower *lw;
	const Product *p;
	const ProductCut *cut;
	int panel;                   /* array of packed b: the part's panel, or all panels */
	int rows;                    /* array of packed rows of a; -1: a is read in place */
	int sums[MOST_PRODUCT_ROWS]; /* arrays that the kernel's compiler keeps in registers */
	/* array of sums that wait between blocks of k, more precise than the result; -1: they wait in c */
	int waiting;
	int out; /* buffer of c, or of the sums of splits */
} ProductEmit;

/* A panel (a range of columns that a part computes): its position among the parts, then its
 * columns. */
typedef struct {
	Affine batch, split, repeat, number; /* position of the part */
	Affine column;                       /* its first column */
	int64_t columns;
	Affine packed; /* where the panel begins in the array */
} Panel;

/* A block of sums that are computed together in registers. */
typedef struct {
	Affine batch, split;
	Affine row, column; /* its first row and column in the product */
	Affine row_block;   /* number of the block of rows */
	int n_rows;
	int64_t n_columns;
	Affine in_waiting;  /* place of its first sum in `waiting` */
	Affine packed;      /* place of its first k in the panel */
	Affine packed_rows; /* place of its first k in the packed rows */
	Affine first_k;     /* first k of the block of k */
	int64_t depth;      /* steps of the block of k */
	bool whole;         /* does the block contain all of k? */
} Block;

/* ---- pack.c */
/* The number of columns that are computed for n columns: whole vectors. The sums of the extra
 * columns are never stored. Packed b is set to 0 there: unwritten memory may hold subnormal
 * numbers, which slow CPUs down. */
int64_t computed_columns(const ProductCut *c, int64_t n);
/* Converts number `k` within split `split` to the number along k in the whole product. */
Affine k_of(const ProductEmit *e, Affine split, Affine k);
/* The place, within the packed rows, of the block's first row at this k. */
Affine rows_place(const ProductEmit *e, const Block *b, Affine k);
/* Where the block's packed rows lie in the shared scratch, after all of b: [batch, row block, k,
 * row]. */
Affine shared_rows_place(const ProductEmit *e, const Block *b);
/* Returns p with column, columns and packed filled in for panel p.number. along: the piece that
 * is being emitted, the code for whole panels or for the shorter last panel. */
Panel panel_of(const ProductEmit *e, Panel p, const Pieces *along);
/* Packs `depth` numbers along k of the panel, from first_k on. deep: how many numbers along k the
 * array has room for in each strip. */
void pack_panel(const ProductEmit *e, const Panel *panel, Affine first_k, int64_t depth,
                int64_t deep);
/* rows[k, r] = a(row + r, k) */
void pack_rows(const ProductEmit *e, const Block *b);
/* Emits the whole serving kernel that packs b, and a if the cut says so. */
void pack_all(const ProductEmit *product);

/* ---- sums.c: one part of the product: a chunk of rows and a panel. */
void product_part(const ProductEmit *e, Panel at, Affine chunk);

/* ---- block_plan.c: a product for a team, in blocks */
enum {
	LEFT,
	RIGHT,
	N_SIDES,
	STAGES = 2 /* blocks of k for which the arrays have room */
};
/* One operand of the product. */
typedef struct {
	int64_t extent; /* rows or columns of the product */
	int64_t across; /* rows or columns of a block */
	DType type;     /* type of the array */
	bool along_k;   /* layout of the array: [stage, across, k], or else [stage, k, across] */
	/* elements are copied from memory; otherwise they are computed and go through private
	 * arrays */
	bool copied;
	int unit;        /* elements of one copy */
	int array, held; /* the team's array; a member's private array, or -1 */
} ProductSide;

typedef struct {
	Lower *lw;
	const Product *p;
	TeamBlock block;
	int64_t k, depth; /* numbers along k in the product; in a block */
	int64_t splits;   /* splits of k, all of the same size */
	ProductSide sides[N_SIDES];
	int sums;
	Affine batch, split;
	Affine first[N_SIDES]; /* the part's first row and first column */
} BlockedProduct;

/* How many blocks of `size` cover n rows, columns or numbers along k. */
static inline int64_t
team_blocks(int64_t n, int64_t size)
{
	return (n + size - 1) / size;
}

/* Plans the product before its loops are emitted; false: the product is not computed in blocks. */
bool block_plan(BlockedProduct *e, Lower *lw, const Product *p);
int64_t block_results(const BlockedProduct *e); /* elements of the result */
/* The target's matrix unit for the type of both arrays; NULL: the target has no matrix unit for
 * this type. */
const MatrixShape *block_unit(const BlockedProduct *e);
/* Padding elements after each row of an operand's array. */
int64_t block_pad(const ProductSide *s);
LoopValue side_element(const BlockedProduct *e, int side, Affine batch, Affine across, Affine k);

#endif

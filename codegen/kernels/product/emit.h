/* What the files of the blocked product share. kernels/product/cut.c decides, kernels/product/pack.c packs, kernels/product/sums.c multiplies,
 * product.c has the parts and the kernels. */
#ifndef GRADC_CODEGEN_KERNELS_PRODUCT_IMPL_H
#define GRADC_CODEGEN_KERNELS_PRODUCT_IMPL_H

#include "codegen/kernels/product/product.h"

/* A product while it is emitted: what it is, how it is cut, and its arrays. */
typedef struct {
	Lower *lw;
	const Product *p;
	const ProductCut *cut;
	int panel;                   /* packed b: of the part, or of all */
	int rows;                    /* packed rows of a; -1: a is read where it lies */
	int sums[MOST_PRODUCT_ROWS]; /* in registers */
	int waiting; /* sums between blocks of k that are more precise than the result; -1: they lie in c */
	int out; /* c, or the sums of parts of k */
} ProductEmit;

/* A panel of the product's columns: one that is there, or that the part has. */
typedef struct {
	Affine batch, split, repeat, number; /* of the part */
	Affine column;                       /* its first */
	int64_t columns;
	Affine packed; /* where it begins in the array */
} Panel;

/* A block of sums. */
typedef struct {
	Affine batch, split;
	Affine row, column; /* of the product: its first */
	Affine row_block;   /* number */
	int n_rows;
	int64_t n_columns;
	Affine in_waiting;  /* its first element there */
	Affine packed;      /* in the panel, of its first k */
	Affine packed_rows; /* in the array of rows, likewise */
	Affine first_k;     /* of the block of k */
	int64_t depth;      /* steps of the block of k */
	bool whole;         /* is all of k */
} Block;

/* ---- kernels/product/pack.c */
/* Of n columns those that are computed: whole vectors. Beyond its own b is 0, and the sums are never stored: what nobody
 * wrote may be subnormal numbers, with which CPUs compute many times as slowly. */
int64_t computed_columns(const ProductCut *c, int64_t n);
/* k of the product, from one of the split. */
Affine k_of(const ProductEmit *e, Affine split, Affine k);
/* Where k of the block's packed rows begins. */
Affine rows_place(const ProductEmit *e, const Block *b, Affine k);
/* Where they lie behind all of b, where both are shared: [batch, row block, k, row]. */
Affine shared_rows_place(const ProductEmit *e, const Block *b);
/* A part's panel, whose number is p.number: its columns, for the code of whole panels and of the last. */
Panel panel_of(const ProductEmit *e, Panel p, const Pieces *along);
/* The block of k that begins at first_k; a strip has `deep` numbers of k in the array. */
void pack_panel(const ProductEmit *e, const Panel *panel, Affine first_k, int64_t depth,
                int64_t deep);
/* rows[k, r] = a(row + r, k) */
void pack_rows(const ProductEmit *e, const Block *b);
/* The whole kernel that packs b, and a where the cut says so. */
void pack_all(const ProductEmit *product);

/* ---- kernels/product/sums.c: one part of the product: the chunk of that number, and a panel. */
void product_part(const ProductEmit *e, Panel at, Affine chunk);

/* ---- kernels/product/block_plan.c: a product for a team, in blocks */
enum {
	LEFT,
	RIGHT,
	N_SIDES,
	STAGES = 2 /* of the arrays */,
	COPY_BYTES = 16 /* at most, at once */
};
/* One operand. */
typedef struct {
	int64_t extent;  /* rows or columns of the product */
	int64_t across;  /* of them in a block */
	DType type;      /* of the array */
	bool along_k;    /* [stage, across, k], else [stage, k, across] */
	bool copied;     /* else through private arrays */
	int unit;        /* elements that a copy brings */
	int array, held; /* the team's; a member's elements on their way, -1 */
} ProductSide;

typedef struct {
	Lower *lw;
	const Product *p;
	TeamBlock block;
	int64_t k, depth; /* of the product; of a block */
	int64_t splits;   /* of k, all alike */
	ProductSide sides[N_SIDES];
	int sums;
	Affine batch, split;
	Affine first[N_SIDES]; /* row and column of the part */
} BlockedProduct;

/* Blocks that n rows, columns or numbers along k make. */
static inline int64_t
team_blocks(int64_t n, int64_t size)
{
	return (n + size - 1) / size;
}

/* All that is known of the product before its loops; false: it has no blocks. */
bool block_plan(BlockedProduct *e, Lower *lw, const Product *p);
int64_t block_results(const BlockedProduct *e); /* numbers of the result */
/* The target's matrix unit for the type of both arrays; NULL: none. */
const MatrixShape *block_unit(const BlockedProduct *e);
/* Elements behind each row of an operand's array. */
int64_t block_pad(const ProductSide *s);
LoopValue side_element(const BlockedProduct *e, int side, Affine batch, Affine across, Affine k);
/* The load from an input that gives x; NULL: it is computed. */
const LoopStatement *side_load(const LoopBuilder *lb, LoopValue x);

#endif

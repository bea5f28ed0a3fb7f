/* What the two files of the blocked matrix product share: product_plan.c cuts it, product.c has its loops. */
#ifndef GRADC_CODEGEN_KERNELS_PRODUCT_IMPL_H
#define GRADC_CODEGEN_KERNELS_PRODUCT_IMPL_H

#include "codegen/kernels/product.h"
#include "codegen/kernels/tiles.h"

enum { MAX_ROWS = 8 };

typedef struct {
	Lower *lw;
	const Gemm *g;
	const ProductTiles *tiles;
	Tiling columns, depth;
	bool bias;     /* is stored with the sums */
	bool by_lines; /* b is packed by lines of the cache */
	int64_t block_rows, block_columns, panel_columns;
	int64_t lanes;         /* of a vector */
	int64_t strip_columns; /* the panel is packed in strips: their numbers of one k are side by side */
	int panel, sums[MAX_ROWS], out;
	int packed_rows; /* of a block, if a does not lie along k and many columns need it; else -1 */
	int64_t near_bytes; /* of a: they are to stay near from one panel to the next; 0: any number */
	int64_t group;      /* panels that are multiplied with one block of k before the next */
	/* Sums between blocks of k where the result has fewer bits than they, for some rows and a panel; -1, 0: in c. */
	int partial;
	int64_t partial_rows;
	/* of the part; `repeat`: where the columns' axis begins anew */
	int64_t rows;
	Affine batch, first_row, repeat, first_panel;
	/* of the panel at hand */
	Affine first_column, first_k;
	int64_t column_count, depth_count;
	/* of the strip, or a block's columns: the first within the panel, and where it is packed */
	Affine column, packed;
	int64_t n_columns;
	/* of the block's rows; within those of `partial` */
	Affine row, partial_row;
	int n_rows;
} Product;

static inline int64_t
most_depth(const Product *p)
{
	return p->depth.count * p->depth.inside;
}

/* ---- product_plan.c */
/* How g is cut; its locals are still to be declared. */
Product product_of(Lower *lw, const Gemm *g);
/* Parts: batch, row chunk, repeat of the columns' axis, group of panels. */
Type part_shape(const Product *p);

#endif

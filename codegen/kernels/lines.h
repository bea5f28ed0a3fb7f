/* Lines along an axis: blocks of them, and as teams share them, where a line has all members, a few of them, or one. */
#ifndef GRADC_CODEGEN_KERNELS_LINES_H
#define GRADC_CODEGEN_KERNELS_LINES_H

#include "codegen/kernels/tiles.h"
#include "codegen/lower/lower.h"

/* Blocks that a line is cut into, where there are fewer parts than are wanted, of `least` elements or more; and the indices that
 * those of so many lines leave, NULL where a line is one block. */
typedef struct {
	int64_t block, blocks; /* elements of one, and how many */
} LineBlocks;
LineBlocks line_blocks(const Lower *lw, int64_t size, int64_t parts, int64_t least);
Type line_indices(Lower *lw, int64_t lines, int64_t blocks);

/* Do so many lines lie side by side in memory that neighbours of the team have one each? */
bool lines_are_columns(const Lower *lw, Type t, int64_t axis);
/* Before the loops, where a line keeps `inner` members busy: gives each outer member such a team. False: they are as many as
 * share a row, or there is no team. */
bool lines_divide(Lower *lw, int64_t inner);
/* Opens the loops over lines that outer members have; the line at hand. lines_close closes them. */
Affine lines_open(Lower *lw, int64_t lines);
void lines_close(Lower *lw);

/* Before the loops, where each member has a line: a team of as many as have one. It is the number of lines of a part. */
int64_t columns_begin(Lower *lw, int64_t lines);
/* Within the parallel loops: opens the one over the lines of part number `group`; the member's own. spread_close closes it. */
Affine columns_open(Lower *lw, int64_t lines, Affine group, Spread *lane);

/* Opens n iterations, or those of them below a bound, which may hold loops: a team shares them, or one member does them in
 * order. spread_close closes it. */
Affine lines_share(Lower *lw, int64_t n, const Affine *below, Spread *lane);
/* A number of the part's, or of the member's. */
int lines_number(Lower *lw);

#endif

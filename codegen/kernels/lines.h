/* Loops over lines, for argmax, sort and scatter. A line is all elements along one axis; it may
 * be cut into blocks. In a team of GPU threads (members), a line is shared by all members or by
 * a few members, or each member has a line of its own. */
#ifndef GRADC_CODEGEN_KERNELS_LINES_H
#define GRADC_CODEGEN_KERNELS_LINES_H

#include "codegen/kernels/tiles.h"
#include "codegen/lower/lower.h"

/* How a line of `size` elements is cut into blocks. parts: number of parts without a cut. If
 * there are fewer parts than the target wants, the line is cut into blocks of at least `least`
 * elements. Otherwise it is one block. */
typedef struct {
	int64_t block, blocks; /* elements of a block; number of blocks */
} LineBlocks;
LineBlocks line_blocks(const Lower *lw, int64_t size, int64_t parts, int64_t least);
Type line_indices(Lower *lw, int64_t lines, int64_t blocks);

/* Do neighbouring elements of `t` belong to different lines, and are there enough of them that
 * neighbouring members can each take one line? */
bool lines_are_columns(const Lower *lw, Type t, int64_t axis);
/* Called before the loops: divides the team into groups (outer members), each of which shares a
 * line. A group has at least `inner` members. False: there is no team, or a group would be too
 * large. */
bool lines_divide(Lower *lw, int64_t inner);
/* Opens the loops over the lines of outer members; returns the current line. lines_close closes them. */
Affine lines_open(Lower *lw, int64_t lines);
void lines_close(Lower *lw);

/* Called before the loops if each member is to have a line of its own: makes a team that is no
 * larger than the number of lines needs. Returns how many lines a part has. */
int64_t columns_begin(Lower *lw, int64_t lines);
/* Opens, within the parallel loops, the loop over the lines of part `group`; returns the member's line.
 * spread_close closes it. */
Affine columns_open(Lower *lw, int64_t lines, Affine group, Spread *lane);

/* Opens a loop of n iterations, or of the iterations below a bound; its body may contain loops.
 * A team shares the iterations, or one thread runs them in order. spread_close closes the loop. */
Affine lines_share(Lower *lw, int64_t n, const Affine *below, Spread *lane);
/* Declares an array with one number for each member; without a team, one number for the part.
 * Returns the array. */
int lines_number(Lower *lw);

#endif

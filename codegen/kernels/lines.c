/* A line is all elements along one axis, as in argmax or sort. Cuts lines into blocks, and emits
 * loops in which teams of GPU threads share lines. */
#include "codegen/kernels/lines.h"

enum { LEAST_SHARING = 4 }; /* a line is shared by at least this many members */

LineBlocks
line_blocks(const Lower *lw, int64_t size, int64_t parts, int64_t least)
{
	LineBlocks b = {size, 1};

	if (parts == 0 || parts >= lw->parts)
		return b;
	b.block = size / ceil_div(lw->parts, parts);
	b.block = b.block < least ? least : b.block;
	b.blocks = ceil_div(size, b.block);
	return b;
}

Type
line_indices(Lower *lw, int64_t lines, int64_t blocks)
{
	int64_t n = lines * blocks;

	return blocks > 1 ? type_new(lw->m, S64, 1, &n) : NULL;
}

bool
lines_are_columns(const Lower *lw, Type t, int64_t axis)
{
	int64_t behind = 1;

	for (int64_t i = axis + 1; i < t->rank; i++)
		behind *= t->dims[i];
	return behind >= lw->target->tuning->reduce.row_members;
}

bool
lines_divide(Lower *lw, int64_t inner)
{
	int64_t members = LEAST_SHARING;

	while (members < inner)
		members *= 2;
	if (members > lw->target->tuning->reduce.row_members || members > lw->target->team / 2 ||
	    !team_begin(lw))
		return false;
	team_divide(lw, (int)members);
	return true;
}

Affine
lines_open(Lower *lw, int64_t lines)
{
	LoopBuilder *lb = lw->lb;
	int64_t rows = lb->k->team[0];

	LoopValue part = lb_for(lb, LOOP_PARALLEL, ceil_div(lines, rows));
	Affine at = affine_add(lb, affine_scale(lb, affine_scalar(lb, part), rows),
	                       affine_scalar(lb, lb_for(lb, LOOP_TEAM, rows)));
	Affine left = affine_plus(affine_scale(lb, at, -1), lines);
	LoopValue once = lb_for_below(lb, LOOP_PLAIN, 1, left);
	return affine_add(lb, at, affine_scalar(lb, once));
}

void
lines_close(Lower *lw)
{
	for (int i = 0; i < 3; i++)
		lb_end(lw->lb);
}

int64_t
columns_begin(Lower *lw, int64_t lines)
{
	team_begin_for(lw, lines * lw->target->lanes);
	return lw->lb->k->n_team ? lw->lb->k->team[0] : 1;
}

Affine
columns_open(Lower *lw, int64_t lines, Affine group, Spread *lane)
{
	LoopBuilder *lb = lw->lb;
	int64_t members = lb->k->team[0];
	Affine first = affine_scale(lb, group, members);
	Affine left = affine_plus(affine_scale(lb, first, -1), lines);

	*lane = spread_open(lw, members, lines % members ? &left : NULL);
	lane->vector = 1;
	return affine_add(lb, first, spread_enter(lane));
}

Affine
lines_share(Lower *lw, int64_t n, const Affine *below, Spread *lane)
{
	LoopBuilder *lb = lw->lb;

	if (lb->k->n_team == 0) {
		*lane = (Spread){.lb = lb};
		return affine_scalar(lb, below ? lb_for_below(lb, LOOP_PLAIN, n, *below)
		                               : lb_for(lb, LOOP_PLAIN, n));
	}
	*lane = spread_open(lw, n, below);
	lane->vector = 1;
	return spread_enter(lane);
}

int
lines_number(Lower *lw)
{
	return lw->lb->k->n_team ? lb_private(lw->lb, S64, 1) : lb_local(lw->lb, S64, 1);
}

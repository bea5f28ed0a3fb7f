/* Cuts shapes into blocks of neighbouring elements (tilings), and emits loops over the blocks. */
#include "codegen/kernels/tiles.h"

int64_t
tiling_size(const Tiling *t)
{
	int64_t n = 1;

	for (int i = 0; i < t->shape.n; i++)
		n *= t->shape.at[i];
	return n;
}

Tiling
tile(const Ints *shape, int64_t most)
{
	Tiling t = {.shape = *shape, .inside = 1};

	if (t.shape.n == 0)
		t.shape = (Ints){.n = 1, .at = {1}};
	if (tiling_size(&t) == 0)
		return t;
	t.axis = t.shape.n - 1;
	while (t.axis > 0 && t.inside * t.shape.at[t.axis] <= most)
		t.inside *= t.shape.at[t.axis--];
	t.count = most / t.inside < t.shape.at[t.axis] ? most / t.inside : t.shape.at[t.axis];
	return t;
}

Tiling
tile_evenly(const Ints *shape, int64_t most, int64_t multiple)
{
	Tiling t = tile(shape, most);
	int64_t extent = t.shape.at[t.axis];

	for (int64_t n = t.count; n > 0 && 2 * n >= t.count; n--)
		if (extent % n == 0 && n * t.inside % multiple == 0) {
			t.count = n;
			break;
		}
	return t;
}

int64_t
blocks_along(const Tiling *t)
{
	return t->count ? (t->shape.at[t->axis] + t->count - 1) / t->count : 0;
}

int64_t
repeats(const Tiling *t)
{
	int64_t n = tiling_size(t);

	return n ? n / (t->shape.at[t->axis] * t->inside) : 0;
}

int64_t
last_block(const Tiling *t)
{
	int64_t n = tiling_size(t), axis = t->shape.at[t->axis];

	return n ? n - t->inside * (axis - (blocks_along(t) - 1) * t->count) : 0;
}

Affine
open_block(LoopBuilder *lb, const Tiling *t, int64_t count, LoopMode innermost)
{
	int64_t stride = t->inside;
	Affine at = affine_constant(0);

	for (int i = t->axis; i < t->shape.n; i++) {
		LoopMode mode = i == t->shape.n - 1 ? innermost : LOOP_PLAIN;
		LoopValue v = lb_for(lb, mode, i == t->axis ? count : t->shape.at[i]);
		at = affine_add_scaled(lb, at, affine_scalar(lb, v), stride);
		if (i + 1 < t->shape.n)
			stride /= t->shape.at[i + 1];
	}
	return at;
}

void
close_block(LoopBuilder *lb, const Tiling *t)
{
	for (int i = t->axis; i < t->shape.n; i++)
		lb_end(lb);
}

/* ---- pieces */
static bool
is_rest(const Pieces *p)
{
	return p->size < p->width;
}

/* Opens the loop or condition around pieces of `size` elements. */
static void
open_piece(Pieces *p, int64_t size)
{
	LoopBuilder *lb = p->lb;
	int64_t full = p->n / p->width, rest = p->n % p->width;
	bool both = full > 0 && rest > 0;

	p->size = size;
	p->block_open = p->picks ? both : !is_rest(p) && full > 1;
	if (is_rest(p)) {
		p->number = affine_constant(full);
		if (p->block_open)
			lb_if(lb, lb_compare(lb, LOOP_eq, p->picked, lb_int(lb, S64, full)));
	} else if (!p->picks) {
		p->number = full > 1 ? affine_scalar(lb, lb_for(lb, LOOP_PLAIN, full))
		                     : affine_constant(0);
	} else if (p->block_open) {
		lb_if(lb, lb_compare(lb, LOOP_lt, p->picked, lb_int(lb, S64, full)));
		LoopValue inner = lb_binary(lb, LOOP_min, p->picked, lb_int(lb, S64, full - 1));
		lb_within(lb, inner, full);
		p->number = affine_scalar(lb, inner);
	}
}

static Pieces
first_piece(Pieces p)
{
	int64_t rest = p.width ? p.n % p.width : 0;

	if (p.n > 0)
		open_piece(&p, p.n >= p.width ? p.width : rest);
	return p;
}

Pieces
pieces(LoopBuilder *lb, int64_t n, int64_t width)
{
	return first_piece((Pieces){.lb = lb, .n = n, .width = width});
}

Pieces
piece_of(LoopBuilder *lb, int64_t n, int64_t width, Affine number)
{
	Pieces p = {.lb = lb, .n = n, .width = width, .picks = true, .number = number};

	p.picked = n > width && n % width ? lb_affine(lb, number) : -1;
	return first_piece(p);
}

void
pieces_next(Pieces *p)
{
	bool done = is_rest(p) || p->n % p->width == 0;

	if (p->block_open)
		lb_end(p->lb);
	p->size = 0;
	if (!done)
		open_piece(p, p->n % p->width);
}

/* ---- blocks */
static void
set_block(Blocks *b)
{
	const Tiling *t = b->tiling;

	b->count = b->along.size;
	b->first = affine_add_scaled(b->along.lb, b->outer, b->along.number, t->count * t->inside);
}

Blocks
blocks(LoopBuilder *lb, const Tiling *t)
{
	int64_t stride = tiling_size(t);
	Blocks b = {.tiling = t};

	if (stride == 0)
		return b;
	for (int i = 0; i < t->axis; i++) {
		stride /= t->shape.at[i];
		LoopValue v = lb_for(lb, LOOP_PLAIN, t->shape.at[i]);
		b.outer = affine_add_scaled(lb, b.outer, affine_scalar(lb, v), stride);
	}
	b.along = pieces(lb, t->shape.at[t->axis], t->count);
	set_block(&b);
	return b;
}

void
blocks_next(Blocks *b)
{
	pieces_next(&b->along);
	if (b->along.size) {
		set_block(b);
		return;
	}
	b->count = 0;
	for (int i = 0; i < b->tiling->axis; i++)
		lb_end(b->along.lb);
}

/* ---- parts of several spaces */
PartSpaces
part_spaces(LoopBuilder *lb, int64_t all)
{
	return (PartSpaces){.lb = lb, .all = all, .number = lb_for(lb, LOOP_PARALLEL, all)};
}

Index
part_space(PartSpaces *p, Type space)
{
	LoopBuilder *lb = p->lb;
	LoopValue at = p->number;
	Index index;

	p->condition = space->n < p->all;
	if (p->condition) {
		LoopValue own = lb_binary(lb, LOOP_sub, p->number, lb_int(lb, S64, p->taken));
		at = lb_binary(lb, LOOP_max, own, lb_int(lb, S64, 0));
		at = lb_binary(lb, LOOP_min, at, lb_int(lb, S64, space->n - 1));
		lb_within(lb, at, space->n);
		lb_if(lb, lb_compare(lb, LOOP_eq, own, at));
	}
	p->taken += space->n;
	index_split(lb, space, affine_scalar(lb, at), &index);
	for (int i = 0; i < index.rank; i++)
		if (index.at[i].n == 1 && index.at[i].terms[0].coefficient == 1)
			lb_within(lb, index.at[i].terms[0].scalar, space->dims[i]);
	return index;
}

void
part_space_end(PartSpaces *p)
{
	if (p->condition)
		lb_end(p->lb);
}

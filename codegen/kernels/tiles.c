/* Loops over shapes in blocks. */
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
	return (t->shape.at[t->axis] + t->count - 1) / t->count;
}

int64_t
repeats(const Tiling *t)
{
	return tiling_size(t) / (t->shape.at[t->axis] * t->inside);
}

int64_t
last_block(const Tiling *t)
{
	int64_t n = tiling_size(t), axis = t->shape.at[t->axis];

	return n ? n - t->inside * (axis - (blocks_along(t) - 1) * t->count) : 0;
}

void
for_blocks(LoopBuilder *lb, const Tiling *t, void (*body)(void *ctx, Affine first, int64_t count),
           void *ctx)
{
	int64_t stride = tiling_size(t), full = t->shape.at[t->axis] / t->count;
	int64_t rest = t->shape.at[t->axis] % t->count;
	Affine first = affine_constant(0);

	for (int i = 0; i < t->axis; i++) {
		stride /= t->shape.at[i];
		LoopValue v = lb_for(lb, LOOP_PLAIN, t->shape.at[i]);
		first = affine_add(first, affine_scale(affine_scalar(v), stride));
	}
	if (full > 1) {
		LoopValue v = lb_for(lb, LOOP_PLAIN, full);
		body(ctx, affine_add(first, affine_scale(affine_scalar(v), t->count * t->inside)),
		     t->count);
		lb_end(lb);
	} else if (full) {
		body(ctx, first, t->count);
	}
	if (rest)
		body(ctx, affine_add(first, affine_constant(full * t->count * t->inside)), rest);
	for (int i = 0; i < t->axis; i++)
		lb_end(lb);
}

Affine
open_block(LoopBuilder *lb, const Tiling *t, int64_t count, LoopMode innermost)
{
	int64_t stride = t->inside;
	Affine at = affine_constant(0);

	for (int i = t->axis; i < t->shape.n; i++) {
		LoopMode mode = i == t->shape.n - 1 ? innermost : LOOP_PLAIN;
		LoopValue v = lb_for(lb, mode, i == t->axis ? count : t->shape.at[i]);
		at = affine_add(at, affine_scale(affine_scalar(v), stride));
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

void
for_pieces(LoopBuilder *lb, int64_t n, int64_t width,
           void (*body)(void *ctx, Affine number, int64_t size), void *ctx)
{
	int64_t full = n / width, rest = n % width;

	if (full > 1) {
		LoopValue i = lb_for(lb, LOOP_PLAIN, full);
		body(ctx, affine_scalar(i), width);
		lb_end(lb);
	} else if (full) {
		body(ctx, affine_constant(0), width);
	}
	if (rest)
		body(ctx, affine_constant(full), rest);
}

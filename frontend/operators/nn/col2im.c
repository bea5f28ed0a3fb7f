/* Col2Im: https://onnx.ai/onnx/operators/onnx__Col2Im.html. Adds each column, a block, to the image
 * at the block's position. */
#include "frontend/operators/nn/window.h"

typedef struct {
	Window window;
	/* the image's spatial sizes, and numbers of blocks along them */
	Ints image, count;
	/* elements of a block, number of blocks, elements of an image */
	int64_t taps, blocks, pixels;
} Blocks;

static bool
multiplied(Ints list, int64_t *out)
{
	*out = 1;
	for (int i = 0; i < list.n; i++)
		if (!size_mul(*out, list.at[i], out) || *out > MAX_ELEMENTS)
			return false;
	return true;
}

/* Computes the number of blocks along each axis. */
static bool
count_blocks(OnnxNode *n, Blocks *b)
{
	enum { LARGEST = 1 << 30 };

	b->count.n = b->image.n;
	for (int i = 0; i < b->image.n; i++) {
		int64_t block = b->window.kernel.at[i], image = b->image.at[i];
		bool sized = block >= 1 && block <= LARGEST && image >= 1 && image <= LARGEST;
		b->count.at[i] = sized ? window_count(&b->window, i, image) : -1;
		if (b->count.at[i] < 1) {
			report_invalid(n,
			               "no block of %lld fits into an image of %lld along "
			               "spatial axis %d",
			               (long long)block, (long long)image, i);
			return false;
		}
	}
	return true;
}

static bool
want_blocks(OnnxNode *n, const Value *x, Blocks *b)
{
	Ints block;

	*b = (Blocks){0};
	if (!want_constant_ints(n, 1, &b->image) || !want_constant_ints(n, 2, &block))
		return false;
	if (x->type->rank != 3 || b->image.n < 1 || block.n != b->image.n ||
	    2 * block.n > MAX_RANK) {
		report_invalid(n,
		               "an input of rank %d, image_shape has %d numbers and block_shape "
		               "%d: need rank 3, and equal lengths",
		               x->type->rank, b->image.n, block.n);
		return false;
	}
	if (!want_steps(n, block.n, &b->window))
		return false;
	b->window.kernel = block;
	if (!count_blocks(n, b))
		return false;
	bool fits = multiplied(block, &b->taps) && multiplied(b->count, &b->blocks) &&
	            multiplied(b->image, &b->pixels);
	if (fits && x->type->dims[1] % b->taps == 0 && x->type->dims[2] == b->blocks)
		return true;
	report_invalid(
		n, "columns of [%lld, %lld], needs channels times %lld elements and %lld blocks",
		(long long)x->type->dims[1], (long long)x->type->dims[2], (long long)b->taps,
		(long long)b->blocks);
	return false;
}

/* [taps, blocks]: the pixel of each element of a block; -1 for an element in the padding, which is
 * not added */
static Value *
pixels_of(OnnxNode *n, const Blocks *b)
{
	const Window *w = &b->window;
	Ints shape = {.n = 2 * w->spatial};
	Value *pixel = NULL, *outside = NULL;

	for (int i = 0; i < w->spatial; i++) {
		shape.at[i] = w->kernel.at[i];
		shape.at[w->spatial + i] = b->count.at[i];
	}
	for (int i = 0; i < w->spatial; i++) {
		Value *tap = e_with(n, OP_mul, e_iota(n, S64, shape, i), (double)w->dilation.at[i]);
		Value *block = e_with(n, OP_mul, e_iota(n, S64, shape, w->spatial + i),
		                      (double)w->stride.at[i]);
		Value *at = e_with(n, OP_sub, e_binary(n, OP_add, tap, block),
		                   (double)w->low.at[i]);
		Value *out = e_binary(n, OP_or, e_with(n, OP_lt, at, 0),
		                      e_with(n, OP_ge, at, (double)b->image.at[i]));
		pixel = pixel ? e_binary(n, OP_add,
		                         e_with(n, OP_mul, pixel, (double)b->image.at[i]), at)
		              : at;
		outside = outside ? e_binary(n, OP_or, outside, out) : out;
	}
	pixel = pixel ? e_select(n, outside, e_number(n, pixel, -1), pixel) : NULL;
	return e_reshape(n, pixel, (Ints){.n = 2, .at = {b->taps, b->blocks}});
}

static void
import_col2im(OnnxNode *n)
{
	Value *x = want_input(n, 0);
	Blocks b;

	if (!x || !want_blocks(n, x, &b))
		return;
	int64_t rows = x->type->dims[0], channels = x->type->dims[1] / b.taps;
	Ints columns = {.n = 3, .at = {rows * channels, b.taps, b.blocks}},
	     image = {.n = 2, .at = {rows, channels}};
	DType t = x->type->dtype;
	Value *updates = e_reshape(n, t == BOOL ? e_cast(n, x, U8) : x, columns);
	Value *zeros = e_splat(n, t == BOOL ? U8 : t,
	                       (Ints){.n = 2, .at = {rows * channels, b.pixels}}, 0);
	Value *y = e_op(n, OP_scatter, 3, (Value *[]){zeros, pixels_of(n, &b), updates},
	                &(ScatterAttr){SCATTER_ADD, 1});
	for (int i = 0; i < b.image.n; i++)
		image.at[image.n++] = b.image.at[i];
	set_output(n, 0, e_cast(n, e_reshape(n, y, image), t));
}

const ImportRow import_col2im_rows[] = {
	{"Col2Im", 18, 0, import_col2im, {0}, NULL},
	{0},
};

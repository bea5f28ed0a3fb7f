/* A convolution with windows of one element, and the product that library_conv_as_dot makes of it: both by their definitions. */
#include "base/calls/library_call.h"
#include "base/numbers/numbers.h"
#include "tests/unit/runtime/expect_status.h"

#include <stdlib.h>

enum { BATCH = 3, IN = 5, OUT = 7, HIGH = 4, WIDE = 2, MOST = 1024 };

/* A tensor [batch, channels, HIGH, WIDE] with channels outermost or innermost of a batch's element. */
static LibraryOperand
image(int buffer, int64_t batch, int64_t channels, bool innermost)
{
	LibraryOperand o = {.dtype = F32,
	                    .rank = 4,
	                    .buffer = buffer,
	                    .offset = 3,
	                    .dims = {batch, channels, HIGH, WIDE}};
	library_dense(&o);
	if (innermost) {
		o.strides[1] = 1;
		o.strides[3] = channels;
		o.strides[2] = channels * WIDE;
	}
	return o;
}

static LibraryCall
conv_of(LibraryKind kind, int64_t batch, bool innermost)
{
	LibraryCall c = {0};
	LibraryOperand w = {.dtype = F32, .rank = 4, .dims = {OUT, IN, 1, 1}};
	LibraryOperand tensors[] = {[CONV_X] = image(0, batch, IN, innermost),
	                            [CONV_W] = w,
	                            [CONV_Y] = image(0, batch, OUT, innermost)};

	library_dense(&tensors[CONV_W]);
	library_call_begin(&c, kind);
	c.groups = 1;
	for (int i = 0; i < MAX_LIBRARY_SPATIAL; i++)
		c.stride[i] = c.dilation[i] = 1;
	for (int i = 0; i <= LIBRARY_RESULT; i++) {
		c.operands[i] = tensors[library_conv_operands[kind][i]];
		c.operands[i].buffer = i;
	}
	return c;
}

static float *
at(float *data, const LibraryOperand *o, const int64_t *index)
{
	int64_t place = o->offset;

	for (uint32_t d = 0; d < o->rank; d++)
		place += index[d] * o->strides[d];
	assert_in_range(place, 0, MOST - 1);
	return &data[place];
}

static void
convolve(const LibraryCall *c, float data[3][MOST])
{
	int64_t batch = c->operands[c->kind == LIBRARY_CONV_GRAD_WEIGHT ? 0 : 2].dims[0];
	int t[3];

	for (int i = 0; i < 3; i++)
		t[library_conv_operands[c->kind][i]] = i;
	for (int64_t n = 0; n < batch * HIGH * WIDE * IN * OUT; n++) {
		int64_t b = n % batch, y = n / batch % HIGH, x = n / batch / HIGH % WIDE,
			i = n / batch / HIGH / WIDE % IN, o = n / batch / HIGH / WIDE / IN;
		float *p[3] = {
			at(data[t[CONV_X]], &c->operands[t[CONV_X]], (int64_t[]){b, i, y, x}),
			at(data[t[CONV_W]], &c->operands[t[CONV_W]], (int64_t[]){o, i, 0, 0}),
			at(data[t[CONV_Y]], &c->operands[t[CONV_Y]], (int64_t[]){b, o, y, x})};
		const ConvTensor *is = library_conv_operands[c->kind];
		*p[is[2]] += *p[is[0]] * *p[is[1]];
	}
}

static void
multiply(const LibraryCall *c, float *const data[3])
{
	const LibraryOperand *x = &c->operands[0], *y = &c->operands[1], *z = &c->operands[2];
	int64_t batch = z->rank == 3 ? z->dims[0] : 1;

	for (int64_t b = 0; b < batch; b++)
		for (int64_t m = 0; m < z->dims[z->rank - 2]; m++)
			for (int64_t n = 0; n < z->dims[z->rank - 1]; n++)
				for (int64_t k = 0; k < x->dims[x->rank - 1]; k++) {
					int64_t first = 3 - z->rank;
					*at(data[2], z, &(int64_t[]){b, m, n}[first]) +=
						*at(data[0], x, &(int64_t[]){b, m, k}[first]) *
						*at(data[1], y, &(int64_t[]){b, k, n}[first]);
				}
}

static void
check(LibraryKind kind, int64_t batch, bool innermost, bool is_dot)
{
	LibraryCall c = conv_of(kind, batch, innermost), dot;
	static float want[3][MOST], got[3][MOST];
	float *own[3];
	int order[3];

	assert_int_equal(library_conv_as_dot(&c, &dot, order), is_dot);
	if (!is_dot)
		return;
	for (int i = 0; i < 3; i++)
		for (int k = 0; k < MOST; k++) /* small whole numbers: sums are exact */
			want[i][k] = got[i][k] = i < 2 ? (float)((7 * k + 3 * i) % 11 - 5) : 0;
	convolve(&c, want);
	for (int i = 0; i < 3; i++) {
		own[i] = got[order[i]];
		assert_int_equal(dot.operands[i].buffer, order[i]);
	}
	multiply(&dot, own);
	assert_memory_equal(want[2], got[2], sizeof(want[2]));
	if (innermost || batch == 1) /* one product */
		assert_int_equal(dot.operands[LIBRARY_RESULT].rank, 2);
}

static void
test_products(void **state)
{
	(void)state;
	for (int kind = LIBRARY_CONV; kind < N_LIBRARY_KINDS; kind++)
		for (int innermost = 0; innermost < 2; innermost++)
			for (int64_t batch = 1; batch <= BATCH; batch += BATCH - 1)
				check((LibraryKind)kind, batch, innermost,
				      kind != LIBRARY_CONV_GRAD_WEIGHT || innermost || batch == 1);
}

static void
test_other_convolutions(void **state)
{
	LibraryCall dot, c = conv_of(LIBRARY_CONV, 2, false);
	int order[3];

	(void)state;
	c.low[0] = 1;
	assert_false(library_conv_as_dot(&c, &dot, order));
	c.low[0] = 0;
	c.stride[1] = 2;
	assert_false(library_conv_as_dot(&c, &dot, order));
	c.stride[1] = 1;
	c.operands[LIBRARY_SECOND].dims[2] = 3;
	assert_false(library_conv_as_dot(&c, &dot, order));
	c.operands[LIBRARY_SECOND].dims[2] = 1;
	c.operands[LIBRARY_FIRST].strides[2]++; /* rows with gaps */
	assert_false(library_conv_as_dot(&c, &dot, order));
	c.operands[LIBRARY_FIRST].strides[2]--;
	assert_true(library_conv_as_dot(&c, &dot, order));
	c.groups = 5;
	c.operands[LIBRARY_SECOND].dims[1] = 1;
	assert_false(library_conv_as_dot(&c, &dot, order));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_products),
		cmocka_unit_test(test_other_convolutions),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

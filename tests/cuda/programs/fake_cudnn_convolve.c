/* Convolutions and their adjoints by plain loops in f64, rounded once to the result's type. In an engine with matrix units,
 * f32 operands lose 13 bits. */
#include "base/numbers/numbers.h"
#include "tests/cuda/programs/fake_cudnn.h"
#include "tests/cuda/programs/fake_library.h"

#include <stdlib.h>
#include <string.h>

enum { LEAST_SPATIAL = 2, PATTERN = 0xA5, MOST_SIZE_BITS = 40 };

/* ---- checks that tensors and windows fit together */
static bool
is_size(int64_t x, int64_t least)
{
	return x >= least && x <= INT64_C(1) << MOST_SIZE_BITS;
}

static bool
is_tensor(const FakeTensor *t, int64_t rank)
{
	if (t->rank != rank || t->alignment < 1 || t->alignment & (t->alignment - 1) ||
	    !is_size(t->alignment, 1) ||
	    (t->type != CUDNN_F32 && t->type != CUDNN_F16 && t->type != CUDNN_BF16))
		return false;
	for (int64_t i = 0; i < rank; i++)
		if (!is_size(t->dims[i], 1) || !is_size(t->strides[i], 1))
			return false;
	return true;
}

/* Do the windows fit along spatial axis i? */
static bool
windows_fit(const FakeOperation *o, int64_t i)
{
	const FakeWindows *w = &o->windows;
	int64_t x = o->tensors[FAKE_X].dims[i + 2], window = o->tensors[FAKE_W].dims[i + 2];

	if (!is_size(w->strides[i], 1) || !is_size(w->dilations[i], 1) || !is_size(w->low[i], 0) ||
	    !is_size(w->high[i], 0) || window > INT32_MAX || w->dilations[i] > INT32_MAX)
		return false;
	int64_t places = x + w->low[i] + w->high[i] - (window - 1) * w->dilations[i] - 1;
	return places >= 0 && places / w->strides[i] + 1 == o->tensors[FAKE_Y].dims[i + 2];
}

int
fake_check_operation(const FakeOperation *o)
{
	const int64_t *x = o->tensors[FAKE_X].dims, *w = o->tensors[FAKE_W].dims;
	const int64_t *y = o->tensors[FAKE_Y].dims, n = o->windows.n;

	if (n < LEAST_SPATIAL || n > MOST_SPATIAL)
		return NOT_SUPPORTED;
	for (int i = 0; i < N_FAKE_TENSORS; i++) {
		if (!is_tensor(&o->tensors[i], n + 2))
			return BAD_VALUE;
		for (int k = 0; k < i; k++)
			if (o->tensors[k].number == o->tensors[i].number)
				return BAD_VALUE;
	}
	if (x[0] != y[0] || w[0] != y[1] || x[1] % w[1] || w[0] % (x[1] / w[1]))
		return BAD_SHAPE;
	for (int64_t i = 0; i < n; i++)
		if (!windows_fit(o, i))
			return BAD_SHAPE;
	return CUDNN_OK;
}

/* ---- the loops */
typedef struct {
	FakeOperation operation;
	FakeBehaviour behaviour;
	bool rounds; /* true: rounds operands to tf32 */
	int64_t bytes;
	void *workspace, *at[N_FAKE_TENSORS];
} Work;
typedef struct {
	int64_t at[MOST_AXES];
} Place;

static int
result_of(const FakeOperation *o)
{
	return o->type == CUDNN_FORWARD_DESCRIPTOR      ? FAKE_Y
	       : o->type == CUDNN_GRAD_INPUT_DESCRIPTOR ? FAKE_X
	                                                : FAKE_W;
}

static DType
dtype_of(int64_t type)
{
	return type == CUDNN_F32 ? F32 : type == CUDNN_F16 ? F16 : BF16;
}

/* false: the place was the last. */
static bool
next_place(const FakeTensor *t, Place *p)
{
	for (int64_t i = t->rank - 1; i >= 0; i--) {
		if (++p->at[i] < t->dims[i])
			return true;
		p->at[i] = 0;
	}
	return false;
}

static int64_t
flat(const FakeTensor *t, const Place *p)
{
	int64_t at = 0;

	for (int64_t i = 0; i < t->rank; i++)
		at += p->at[i] * t->strides[i];
	return at;
}

static double
load(const Work *w, int i, const Place *p)
{
	const FakeTensor *t = &w->operation.tensors[i];
	double x = dtype_load_float(dtype_of(t->type), fake_readable(w->at[i]), flat(t, p));

	return w->rounds ? fake_round_to_tf32(x) : x;
}

/* The place in x that element v of the window reads for y's place; false: padding. */
static bool
find_x(const FakeOperation *o, const Place *y, const Place *v, Place *x)
{
	const FakeWindows *w = &o->windows;
	const FakeTensor *t = o->tensors;
	int64_t groups = t[FAKE_X].dims[1] / t[FAKE_W].dims[1];
	int64_t group = y->at[1] / (t[FAKE_W].dims[0] / groups);

	x->at[0] = y->at[0];
	x->at[1] = group * t[FAKE_W].dims[1] + v->at[1];
	for (int64_t i = 0; i < w->n; i++) {
		int64_t at = y->at[i + 2] * w->strides[i] + v->at[i + 2] * w->dilations[i] -
		             w->low[i];
		if (at < 0 || at >= t[FAKE_X].dims[i + 2])
			return false;
		x->at[i + 2] = at;
	}
	return true;
}

/* Adds each product of the convolution to the sum of its result. */
static void
add_up(const Work *w, double *sums)
{
	const FakeOperation *o = &w->operation;
	const FakeTensor *t = o->tensors;
	Place places[N_FAKE_TENSORS] = {0}, *x = &places[FAKE_X], *v = &places[FAKE_W],
	      *y = &places[FAKE_Y];
	int result = result_of(o);
	int first = result == FAKE_X ? FAKE_Y : FAKE_X, second = result == FAKE_W ? FAKE_Y : FAKE_W;

	do {
		*v = (Place){0};
		v->at[0] = y->at[1];
		do {
			if (find_x(o, y, v, x))
				sums[flat(&t[result], &places[result])] +=
					load(w, first, &places[first]) *
					load(w, second, &places[second]);
		} while (next_place(&t[FAKE_W], v) && v->at[0] == y->at[1]);
	} while (next_place(&t[FAKE_Y], y));
}

static void
convolve(void *work)
{
	const Work *w = work;
	int result = result_of(&w->operation);
	const FakeTensor *t = &w->operation.tensors[result];
	int64_t n = 1;
	Place p = {0};

	for (int64_t i = 0; i < t->rank; i++)
		n += (t->dims[i] - 1) * t->strides[i];
	double *sums = calloc((size_t)n, sizeof(*sums));
	if (!sums)
		abort();
	fake_begin(w->behaviour, w->workspace, w->bytes);
	if (w->bytes)
		memset(fake_readable(w->workspace), PATTERN, (size_t)w->bytes);
	add_up(w, sums);
	do
		dtype_store_float(dtype_of(t->type), fake_readable(w->at[result]), flat(t, &p),
		                  sums[flat(t, &p)]);
	while (next_place(t, &p));
	DType type = dtype_of(t->type);
	fake_end(w->behaviour, (char *)fake_readable(w->at[result]) + dtype_bytes(type, n - 1),
	         dtype_bytes(type, 1));
	free(sums);
}

/* ---- the operation's buffers */
static void *
find_buffer(const FakeBuffers *b, int64_t number)
{
	for (int64_t i = 0; i < b->n; i++)
		if (b->numbers[i] == number)
			return b->at[i];
	return NULL;
}

int
fake_convolve(const FakePlan *plan, const FakeBuffers *buffers, void *stream)
{
	const FakeEngine *e = &plan->engine;
	const FakeTensor *t = e->operation.tensors;
	Work w = {.operation = e->operation,
	          .behaviour = fake_behaviour(e->number),
	          .rounds = e->notes >> CUDNN_NOTE_TENSOR_CORE & 1 && t[FAKE_X].type == CUDNN_F32,
	          .bytes = e->workspace,
	          .workspace = buffers->workspace};

	for (int i = 0; i < N_FAKE_TENSORS; i++) {
		w.at[i] = find_buffer(buffers, t[i].number);
		if (!w.at[i])
			return BAD_POINTER;
		if (!fake_is_aligned(w.at[i], t[i].alignment))
			return MISALIGNED;
	}
	if (w.bytes && !w.workspace)
		return BAD_POINTER;
	if (w.bytes && !fake_is_aligned(w.workspace, WORKSPACE_ALIGNMENT))
		return MISALIGNED;
	if (w.behaviour == FAKE_FAILS)
		return FAILED;
	return fake_enqueue(stream, convolve, &w, sizeof(w)) ? CUDNN_OK : FAILED;
}

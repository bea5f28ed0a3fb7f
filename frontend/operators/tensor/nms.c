/* NonMaxSuppression: https://onnx.ai/onnx/operators/onnx__NonMaxSuppression.html. For each class of
 * each image, takes boxes by falling score, but no box that overlaps one taken before. If boxes and
 * scores are known (constants, or given by `gradc run --input`), this is done at import. Otherwise a
 * loop takes one box per class and iteration, and the result is padded. */
#include "frontend/import/import.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

typedef struct {
	Value *box, *score;           /* [images, n, 4], [images, classes, n] */
	const Tensor *boxes, *scores; /* numbers of box and score; NULL: unknown */
	int64_t images, classes, n;
	int64_t most;          /* most boxes per class */
	double overlap, least; /* thresholds: intersection over union, score */
	/* boxes are [center x, center y, width, height], else two corners [y, x, y, x] */
	bool has_least, centers;
} Suppression;
typedef struct {
	double low[2], high[2];
} Box;
typedef struct {
	double score;
	int64_t at;
} Candidate;

static Box
box_at(const Suppression *s, int64_t image, int64_t at)
{
	double v[4];
	Box b;

	for (int i = 0; i < 4; i++)
		v[i] = tensor_float(s->boxes, (image * s->n + at) * 4 + i);
	for (int i = 0; i < 2; i++) {
		double from = s->centers ? v[i] - v[i + 2] / 2 : v[i];
		double to = s->centers ? v[i] + v[i + 2] / 2 : v[i + 2];
		bool ordered = s->centers || from <= to;
		b.low[i] = ordered ? from : to;
		b.high[i] = ordered ? to : from;
	}
	return b;
}

static double
area(const Box *b)
{
	return (b->high[0] - b->low[0]) * (b->high[1] - b->low[1]);
}

/* As ONNX's reference, in f32: boxes without area overlap nothing. */
static bool
overlap(const Suppression *s, const Box *a, const Box *b)
{
	Box both;

	for (int i = 0; i < 2; i++) {
		both.low[i] = a->low[i] > b->low[i] ? a->low[i] : b->low[i];
		both.high[i] = a->high[i] < b->high[i] ? a->high[i] : b->high[i];
		if (both.high[i] <= both.low[i])
			return false;
	}
	double common = area(&both), one = area(a), other = area(b), all = one + other - common;
	if (common <= 0 || one <= 0 || other <= 0 || all <= 0)
		return false;
	return (float)(common / all) > (float)s->overlap;
}

/* By falling score; the first of equal ones first. NaN is last. */
static int
by_score(const void *x, const void *y)
{
	const Candidate *a = x, *b = y;
	bool less = a->score < b->score || (a->score != a->score && b->score == b->score);
	bool more = a->score > b->score || (a->score == a->score && b->score != b->score);

	return less != more ? less - more : (a->at > b->at) - (a->at < b->at);
}

static int64_t
candidates(const Suppression *s, int64_t image, int64_t class, Candidate *out)
{
	int64_t count = 0;

	for (int64_t i = 0; i < s->n; i++) {
		double score = tensor_float(s->scores, (image * s->classes + class) * s->n + i);
		if (!s->has_least || score > s->least)
			out[count++] = (Candidate){score, i};
	}
	qsort(out, (size_t)count, sizeof(*out), by_score);
	return count;
}

/* Appends [image, class, box] of each box taken to `out`; returns the new number of rows. */
static int64_t
suppress(const Suppression *s, int64_t image, int64_t class, Arena *arena, int64_t *out,
         int64_t rows)
{
	Candidate *list = NEW_ARRAY(arena, Candidate, s->n + 1);
	Box *taken = NEW_ARRAY(arena, Box, s->n + 1);
	int64_t count = candidates(s, image, class, list), n_taken = 0;

	for (int64_t i = 0; i < count && n_taken < s->most; i++) {
		Box b = box_at(s, image, list[i].at);
		bool hidden = false;
		for (int64_t k = 0; k < n_taken && !hidden; k++)
			hidden = overlap(s, &b, &taken[k]);
		if (hidden)
			continue;
		taken[n_taken++] = b;
		int64_t *row = out + 3 * rows++;
		row[0] = image;
		row[1] = class;
		row[2] = list[i].at;
	}
	return rows;
}

static bool
read_shapes(OnnxNode *n, Suppression *s)
{
	Value *boxes = want_float_input(n, 0), *scores = want_float_input(n, 1);

	if (!boxes || !scores)
		return false;
	Type b = boxes->type, c = scores->type;
	if (b->rank != 3 || c->rank != 3 || b->dims[2] != 4 || b->dims[0] != c->dims[0] ||
	    b->dims[1] != c->dims[2]) {
		report_invalid(n,
		               "boxes of rank %d and scores of rank %d, need [images, n, 4] and "
		               "[images, classes, n]",
		               b->rank, c->rank);
		return false;
	}
	s->images = b->dims[0];
	s->classes = c->dims[1];
	s->n = b->dims[1];
	s->box = boxes;
	s->score = scores;
	s->boxes = known_value(n->im, boxes);
	s->scores = known_value(n->im, scores);
	return !n->failed;
}

static bool
read_limits(OnnxNode *n, Suppression *s)
{
	s->centers = want_int(n, "center_point_box", 0);
	if (has_input(n, 2) && !want_constant_int(n, 2, &s->most))
		return false;
	s->has_least = has_input(n, 4);
	return (!has_input(n, 3) || want_constant_float(n, 3, &s->overlap)) &&
	       (!s->has_least || want_constant_float(n, 4, &s->least));
}

static void
suppress_known(OnnxNode *n, const Suppression *s)
{
	Arena *arena = n->im->arena;
	int64_t rows = 0,
		*out = NEW_ARRAY(arena, int64_t, s->images * s->classes * s->most * 3 + 1);

	for (int64_t i = 0; i < s->images && s->most; i++)
		for (int64_t c = 0; c < s->classes; c++)
			rows = suppress(s, i, c, arena, out, rows);
	Type type = type_new(n->b->m, S64, 2, (int64_t[]){rows, 3});
	set_output(n, 0, b_constant(n->b, tensor_new(n->b->m, type, out)));
}

/* ---- the same as a loop: values that its body reads */
enum { LOW, HIGH = 2, SCORE = 4, N_INVARIANTS };

/* Corners of all boxes, [images, 1, n] each, and finite scores: NaN becomes the smallest number. */
static void
invariants(OnnxNode *n, const Suppression *s, Value **out)
{
	Ints shape = {.n = 3, .at = {s->images, 1, s->n}};
	Value *v[4];

	for (int i = 0; i < 4; i++)
		v[i] = e_reshape(n, e_slice_axis(n, s->box, 2, i, i + 1), shape);
	for (int i = 0; i < 2; i++) {
		Value *half = e_with(n, OP_div, v[i + 2], 2);
		out[LOW + i] = s->centers ? e_binary(n, OP_sub, v[i], half)
		                          : e_binary(n, OP_min, v[i], v[i + 2]);
		out[HIGH + i] = s->centers ? e_binary(n, OP_add, v[i], half)
		                           : e_binary(n, OP_max, v[i], v[i + 2]);
	}
	Value *none = e_unary(n, OP_is_nan, s->score), *least = e_number(n, s->score, -FLT_MAX);
	out[SCORE] = e_binary(n, OP_max, e_select(n, none, least, s->score), least);
}

/* [images, classes, n] -> [images, classes, 1]: the element where `hot` is true. */
static Value *
of_hot(OnnxNode *n, Value *hot, Value *x)
{
	Value *own = hot && x ? e_select(n, hot, x, e_number(n, x, 0)) : NULL;

	return e_reduce(n, REDUCE_SUM, own, (Ints){.n = 1, .at = {2}}, true);
}

static Value *
area_of(OnnxNode *n, Value *const *low, Value *const *high)
{
	return e_binary(n, OP_mul, e_binary(n, OP_sub, high[0], low[0]),
	                e_binary(n, OP_sub, high[1], low[1]));
}

/* Does each box overlap the hot box by more than the threshold? As in `overlap`. */
static Value *
overlapping(OnnxNode *n, const Suppression *s, Value *hot, Value *const *in)
{
	Value *low[2], *high[2], *inner_low[2], *inner_high[2], *meets = NULL;

	for (int i = 0; i < 2; i++) {
		low[i] = of_hot(n, hot, in[LOW + i]);
		high[i] = of_hot(n, hot, in[HIGH + i]);
		inner_low[i] = e_binary(n, OP_max, low[i], in[LOW + i]);
		inner_high[i] = e_binary(n, OP_min, high[i], in[HIGH + i]);
		Value *along = e_binary(n, OP_gt, inner_high[i], inner_low[i]);
		meets = meets ? e_binary(n, OP_and, meets, along) : along;
	}
	Value *common = area_of(n, inner_low, inner_high);
	Value *one = area_of(n, low, high), *other = area_of(n, in + LOW, in + HIGH);
	Value *all = e_binary(n, OP_sub, e_binary(n, OP_add, one, other), common);
	Value *solid = e_binary(n, OP_and, e_with(n, OP_gt, one, 0), e_with(n, OP_gt, other, 0));
	solid = e_binary(
		n, OP_and, solid,
		e_binary(n, OP_and, e_with(n, OP_gt, common, 0), e_with(n, OP_gt, all, 0)));
	Value *much = e_with(n, OP_gt, e_binary(n, OP_div, common, all), s->overlap);
	return e_binary(n, OP_and, e_binary(n, OP_and, meets, solid), much);
}

/* body(i, alive, invariants) -> (true, alive, box, taken): takes per class the alive box with the
 * highest score, if any. */
static Function *
taking(OnnxNode *n, const Suppression *s, Value *alive, Value *const *outer)
{
	Scope scope;
	Value *in[N_INVARIANTS], *results[4];

	scope_open(n, &scope, "suppress");
	function_param(scope.f, type_scalar(n->im->m, S64), "i");
	alive = function_param(scope.f, alive->type, "alive");
	for (int i = 0; i < N_INVARIANTS; i++)
		in[i] = function_param(scope.f, outer[i]->type, "box");
	Value *left = e_select(n, alive, in[SCORE], e_number(n, in[SCORE], -HUGE_VAL));
	Value *best = e_op(n, OP_argmax, 1, &left, &(AxisAttr){2});
	Ints one = {.n = 3, .at = {s->images, s->classes, 1}};
	Value *hot = e_binary(n, OP_eq, e_iota(n, S64, shape_of(alive), 2),
	                      e_cast(n, e_reshape(n, best, one), S64));
	Value *own = e_cast(n, e_binary(n, OP_and, alive, hot), U8);
	Value *gone = e_binary(n, OP_or, hot, overlapping(n, s, hot, in));
	results[0] = e_scalar(n, BOOL, 1);
	results[1] = e_binary(n, OP_and, alive, e_unary(n, OP_not, gone));
	results[2] = e_cast(n, best, S64);
	results[3] = e_cast(n, e_reduce(n, REDUCE_MAX, own, (Ints){.n = 1, .at = {2}}, false),
	                    BOOL);
	if (n->failed || !results[1] || !results[2] || !results[3]) {
		scope_leave(n, &scope);
		n->failed = true;
		return NULL;
	}
	scope_close(n, &scope, 4, results);
	return scope.f;
}

/* stacked: [most, images, classes] -> flat, ordered by image, class, iteration */
static Value *
by_class(OnnxNode *n, Value *stacked)
{
	return e_flat(n, e_transpose(n, stacked, (Ints){.n = 3, .at = {1, 2, 0}}));
}

static Value *
column(OnnxNode *n, Value *x)
{
	return x ? e_reshape(n, x, (Ints){.n = 2, .at = {x->type->n, 1}}) : NULL;
}

static void
suppress_by_loop(OnnxNode *n, const Suppression *s)
{
	Value *operands[1 + N_INVARIANTS];

	invariants(n, s, operands + 1);
	operands[0] = s->has_least ? e_with(n, OP_gt, s->score, s->least)
	                           : e_splat(n, BOOL, shape_of(s->score), 1);
	Function *body = n->failed ? NULL : taking(n, s, operands[0], operands + 1);
	if (!body)
		return;
	LoopAttr a = {.body = body, .bound = s->most, .carried = 1, .always = true};
	Node *loop = build_node(n->b, OP_loop, 1 + N_INVARIANTS, operands, &a);
	Value *box = by_class(n, node_result(loop, 1)), *taken = by_class(n, node_result(loop, 2));
	Places p = places_of(n, taken);
	if (!p.at)
		return;
	Value *class = e_with(n, OP_div, p.at, (double)s->most);
	Value *columns[] = {column(n, e_with(n, OP_div, class, (double)s->classes)),
	                    column(n, e_with(n, OP_rem, class, (double)s->classes)),
	                    column(n, e_gather(n, box, p.at, 0))};
	set_output_padded(n, 0, e_concat(n, 3, columns, 1), 0, p.count);
}

static void
import_nms(OnnxNode *n)
{
	Suppression s = {0};
	int64_t cells;

	if (!read_shapes(n, &s) || !read_limits(n, &s))
		return;
	s.most = s.most < 0 ? 0 : s.most < s.n ? s.most : s.n;
	if (!size_mul(s.images * s.classes, s.most * 3, &cells) || cells > INT32_MAX / 8) {
		report_unsupported(n, "up to %lld boxes for each of %lld classes",
		                   (long long)s.most, (long long)(s.images * s.classes));
		return;
	}
	if ((s.boxes && s.scores) || cells == 0)
		suppress_known(n, &s);
	else
		suppress_by_loop(n, &s);
}

const ImportRow import_nms_rows[] = {
	/* name              from  to  importer  extra */
	{"NonMaxSuppression", 10, 0, import_nms, .facts = {.no_gradient = true}},
	{0},
};

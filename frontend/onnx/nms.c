/* https://onnx.ai/onnx/operators/onnx__NonMaxSuppression.html: of each class of each image, boxes by falling score, without those that
 * overlap one that is taken already. Boxes and scores must be known: constants, or what `gradc run --input` gives. */
#include "frontend/onnx/importer.h"

#include <stdlib.h>

typedef struct {
	const Tensor *boxes, *scores; /* [images, n, 4], [images, classes, n] */
	int64_t images, classes, n;
	int64_t most;          /* boxes of one class */
	double overlap, least; /* thresholds: of intersection over union, of scores */
	bool has_least,
		centers; /* boxes are [x, y, width, height] of centers, else two corners [y, x, y, x] */
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

/* As ONNX's reference in f32: boxes without an area overlap nothing. */
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

/* Falling scores; of equal ones the first. NaN comes last. */
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

/* Appends [image, class, box] of those that stay to `out`; returns how many rows it has then. */
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
	s->boxes = known_value(n->im, boxes);
	s->scores = known_value(n->im, scores);
	if (!s->boxes || !s->scores)
		report_unsupported(n, "boxes or scores that depend on data: which of them stay is "
		                      "decided at import; end the model before this operator");
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
import_nms(OnnxNode *n)
{
	Suppression s = {0};
	Arena *arena = n->im->arena;
	int64_t rows = 0, cells;

	if (!read_shapes(n, &s) || !read_limits(n, &s))
		return;
	int64_t each = s.most < 0 ? 0 : s.most < s.n ? s.most : s.n;
	if (!size_mul(s.images * s.classes, each * 3, &cells) || cells > INT32_MAX / 8) {
		report_unsupported(n, "up to %lld boxes for each of %lld classes", (long long)each,
		                   (long long)(s.images * s.classes));
		return;
	}
	int64_t *out = NEW_ARRAY(arena, int64_t, cells + 1);
	for (int64_t i = 0; i < s.images && each; i++)
		for (int64_t c = 0; c < s.classes; c++)
			rows = suppress(&s, i, c, arena, out, rows);
	Type type = type_new(n->b->m, S64, 2, (int64_t[]){rows, 3});
	set_output(n, 0, b_constant(n->b, tensor_new(n->b->m, type, out)));
}

const ImportRow import_nms_rows[] = {
	/* name              from  to  importer  extra */
	{"NonMaxSuppression", 10, 0, import_nms, {0}, NULL},
	{0},
};

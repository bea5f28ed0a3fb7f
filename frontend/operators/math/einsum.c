/* Einsum: https://onnx.ai/onnx/operators/onnx__Einsum.html. Operands are multiplied from left to
 * right. Each product is one dot that sums over the labels that no later operand has. Axes under an
 * ellipsis have labels of their own, numbered from the right. */
#include "frontend/import/import.h"

#include <string.h>

enum { ELLIPSIS = 128 }; /* label ELLIPSIS + i: the i-th axis from the right under `...` */

typedef struct {
	int n;
	uint8_t at[MAX_RANK];
} Labels;
typedef struct {
	Value *value;
	Labels labels;
} Term;

static int
label_place(const Labels *l, int label)
{
	for (int i = 0; i < l->n; i++)
		if (l->at[i] == label)
			return i;
	return -1;
}

static void
label_drop(Labels *l, int at)
{
	for (int i = at; i + 1 < l->n; i++)
		l->at[i] = l->at[i + 1];
	l->n--;
}

/* Reads the labels of one operand, up to `,` or the end. rank < 0: the output, whose ellipsis has
 * `dots` axes. Returns NULL or the fault. */
static const char *
parse_labels(const char **text, int rank, int dots, Labels *out)
{
	int letters = 0;
	const char *p = *text;
	bool ellipsis = false;

	for (const char *q = p; *q && *q != ','; q++)
		letters += (*q >= 'a' && *q <= 'z') || (*q >= 'A' && *q <= 'Z');
	if (rank >= 0)
		dots = rank - letters;
	*out = (Labels){0};
	for (; *p && *p != ','; p++) {
		bool letter = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z');
		bool dotted = !strncmp(p, "...", 3) && !ellipsis;
		if (!letter && !dotted)
			return "the equation has a character out of place";
		if (dots < 0 || out->n + (letter ? 1 : dots) > MAX_RANK)
			return "the equation does not fit the ranks of the operands";
		if (letter) {
			out->at[out->n++] = (uint8_t)*p;
			continue;
		}
		for (int i = 0; i < dots; i++)
			out->at[out->n++] = (uint8_t)(ELLIPSIS + dots - 1 - i);
		ellipsis = true;
		p += 2;
	}
	*text = p;
	return rank >= 0 && out->n != rank ? "the equation does not fit the ranks of the operands"
	                                   : NULL;
}

/* The labels of an output that the equation does not give: those that appear once, the ellipsis
 * first, then letters in order. */
static void
implicit_output(const Term *terms, int n, Labels *out)
{
	int count[256] = {0};

	for (int i = 0; i < n; i++)
		for (int k = 0; k < terms[i].labels.n; k++)
			count[terms[i].labels.at[k]]++;
	*out = (Labels){0};
	for (int label = 255; label >= ELLIPSIS; label--)
		if (count[label] && out->n < MAX_RANK)
			out->at[out->n++] = (uint8_t)label;
	for (int label = 0; label < ELLIPSIS; label++)
		if (count[label] == 1 && out->n < MAX_RANK)
			out->at[out->n++] = (uint8_t)label;
}

/* Takes the diagonal of two axes with the same label: [.., a, .., a, ..] -> transposed, joined,
 * every (a+1)-th element. */
static bool
take_diagonal(OnnxNode *n, Term *t, int i, int k)
{
	Ints order = {0}, shape = {0}, start = {0}, step = {0};
	int64_t size = t->value->type->dims[i];

	if (size != t->value->type->dims[k]) {
		report_invalid(n, "label %c names axes of %lld and %lld elements, need one size",
		               t->labels.at[i], (long long)size,
		               (long long)t->value->type->dims[k]);
		return false;
	}
	for (int a = 0; a < t->labels.n; a++)
		if (a != i && a != k) {
			order.at[order.n++] = a;
			shape.at[shape.n++] = t->value->type->dims[a];
		}
	order.at[order.n++] = i;
	order.at[order.n++] = k;
	uint8_t label = t->labels.at[i];
	label_drop(&t->labels, k);
	label_drop(&t->labels, i);
	t->labels.at[t->labels.n++] = label;
	shape.at[shape.n++] = size * size;
	Value *flat = e_reshape(n, e_transpose(n, t->value, order), shape);
	start.n = step.n = shape.n;
	for (int a = 0; a < shape.n; a++)
		step.at[a] = a == shape.n - 1 ? size + 1 : 1;
	t->value = e_slice(n, flat, start, shape, step);
	return t->value != NULL;
}

static bool
simplify_term(OnnxNode *n, Term *t)
{
	for (int i = 0; i < t->labels.n; i++)
		for (int k = i + 1; k < t->labels.n; k++)
			if (t->labels.at[i] == t->labels.at[k]) {
				if (!take_diagonal(n, t, i, k))
					return false;
				i = -1;
				break;
			}
	return true;
}

/* Sums over the labels that `needed` lacks. */
static bool
sum_unneeded(OnnxNode *n, Term *t, const bool *needed)
{
	Ints axes = {0};

	for (int i = 0; i < t->labels.n; i++)
		if (!needed[t->labels.at[i]])
			axes.at[axes.n++] = i;
	t->value = e_reduce(n, REDUCE_SUM, t->value, axes, false);
	for (int i = axes.n - 1; i >= 0; i--)
		label_drop(&t->labels, (int)axes.at[i]);
	return t->value != NULL;
}

/* Drops an axis of one element that would broadcast to the other term's longer axis. */
static void
drop_single(OnnxNode *n, Term *t, const Term *other)
{
	for (int i = t->labels.n - 1; t->value && i >= 0; i--) {
		int k = label_place(&other->labels, t->labels.at[i]);
		if (k < 0 || t->value->type->dims[i] != 1 || other->value->type->dims[k] == 1)
			continue;
		t->value = e_reshape(n, t->value, ints_without(shape_of(t->value), i));
		label_drop(&t->labels, i);
	}
}

/* x y, summed over the labels that both have and `later` lacks. */
static Term
multiply(OnnxNode *n, Term x, Term y, const bool *later)
{
	bool in_x[256], in_y[256];
	DotAttr a = {0};
	Term z = {0};

	drop_single(n, &x, &y);
	drop_single(n, &y, &x);
	memcpy(in_x, later, sizeof(in_x));
	memcpy(in_y, later, sizeof(in_y));
	for (int i = 0; i < y.labels.n; i++)
		in_x[y.labels.at[i]] = true;
	for (int i = 0; i < x.labels.n; i++)
		in_y[x.labels.at[i]] = true;
	if (!sum_unneeded(n, &x, in_x) || !sum_unneeded(n, &y, in_y))
		return z;
	for (int i = 0; i < x.labels.n; i++) {
		int k = label_place(&y.labels, x.labels.at[i]);
		if (k < 0)
			continue;
		bool kept = later[x.labels.at[i]];
		Ints *xs = kept ? &a.x_batch : &a.x_contract,
		     *ys = kept ? &a.y_batch : &a.y_contract;
		xs->at[xs->n++] = i;
		ys->at[ys->n++] = k;
		if (kept)
			z.labels.at[z.labels.n++] = x.labels.at[i];
	}
	for (int i = 0; i < x.labels.n; i++)
		if (!ints_has(&a.x_batch, i) && !ints_has(&a.x_contract, i))
			z.labels.at[z.labels.n++] = x.labels.at[i];
	for (int i = 0; i < y.labels.n && z.labels.n < MAX_RANK; i++)
		if (!ints_has(&a.y_batch, i) && !ints_has(&a.y_contract, i))
			z.labels.at[z.labels.n++] = y.labels.at[i];
	z.value = e_dot(n, x.value, y.value, &a);
	return z;
}

static void
contract(OnnxNode *n, Term *terms, int count, const Labels *out)
{
	bool needed[256];
	Term z = terms[0];

	for (int i = 0; i < count; i++)
		if (!simplify_term(n, &terms[i]))
			return;
	z = terms[0];
	for (int i = 1; i <= count && z.value; i++) {
		memset(needed, 0, sizeof(needed));
		for (int k = 0; k < out->n; k++)
			needed[out->at[k]] = true;
		for (int j = i + 1; j < count; j++)
			for (int k = 0; k < terms[j].labels.n; k++)
				needed[terms[j].labels.at[k]] = true;
		if (i < count)
			z = multiply(n, z, terms[i], needed);
		else
			sum_unneeded(n, &z, needed);
	}
	Ints order = {.n = out->n};
	for (int i = 0; z.value && i < out->n; i++) {
		order.at[i] = label_place(&z.labels, out->at[i]);
		if (order.at[i] < 0 || z.labels.n != out->n) {
			report_invalid(
				n, "the output names a label twice, or one that no operand has");
			return;
		}
	}
	set_output(n, 0, e_transpose(n, z.value, order));
}

static void
import_einsum(OnnxNode *n)
{
	const char *equation = want_string(n, "equation", "");
	char *text = arena_strdup(n->im->arena, equation), *to = text;
	int count = n_inputs(n), dots = 0;
	Term *terms = NEW_ARRAY(n->im->arena, Term, count);
	const char *why = NULL;
	Labels out;

	for (const char *p = equation; *p; p++)
		if (*p != ' ')
			*to++ = *p;
	*to = 0;
	char *arrow = strstr(text, "->");
	if (arrow)
		*arrow = 0;
	const char *at = text;
	for (int i = 0; i < count && !why; i++) {
		if (!(terms[i].value = want_input(n, i)))
			return;
		int rank = terms[i].value->type->rank;
		why = parse_labels(&at, rank, 0, &terms[i].labels);
		for (int k = 0; !why && k < terms[i].labels.n; k++)
			if (terms[i].labels.at[k] - ELLIPSIS + 1 > dots)
				dots = terms[i].labels.at[k] - ELLIPSIS + 1;
		if (!why && *at != (i + 1 < count ? ',' : 0))
			why = "the equation has another number of operands";
		at += *at == ',';
	}
	at = arrow ? arrow + 2 : "";
	if (!why && arrow)
		why = parse_labels(&at, -1, dots, &out);
	if (!why && *at)
		why = "the equation has a character out of place";
	if (why) {
		report_invalid(n, "%s", why);
		return;
	}
	if (!arrow)
		implicit_output(terms, count, &out);
	contract(n, terms, count, &out);
}

const ImportRow import_einsum_rows[] = {
	{"Einsum", 12, 0, import_einsum,
         .facts = {.weights = INPUTS(0, 2), .joining = INPUTS(0, 2)}},
	{0},
};

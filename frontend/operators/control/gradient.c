/* Gradient: https://onnx.ai/onnx/operators/onnx_aionnxpreviewtraining_Gradient.html. Computes the
 * gradient of the sum of `y` by each of `xs`. `xs` and `zs` name all values that y depends on. The
 * node's inputs take the place of these values: the nodes between these values and y are copied,
 * and the copies read the inputs. If the inputs are the graph's own values, simplification merges
 * copies and originals. The result is made of ordinary nodes: it may be differentiated again, and
 * trained. */
#include "frontend/import/import.h"

#include <string.h>

typedef struct {
	int n_xs, n_zs;
	Value **own;   /* values of the graph with the names in xs, then zs */
	Value **given; /* the node's inputs, in the same order */
	Value *y;
} Differentiated;

static const char *
text_of(OnnxNode *n, ProtobufCBinaryData s)
{
	return arena_strndup(n->im->arena, s.data ? (char *)s.data : "", s.len);
}

/* The graph's value with that name; NULL after reporting. */
static Value *
want_named(OnnxNode *n, const char *name)
{
	Bound *b = importer_lookup(n->im, name);

	if (!b)
		report_invalid(n, "%s is not a value before this node", quoted(n->im->model, name));
	else if (!b->value || b->sequence || b->optional || b->count)
		report_unsupported(n, "%s is not a tensor of a fixed size",
		                   quoted(n->im->model, name));
	return b ? b->value : NULL;
}

static bool
want_names(OnnxNode *n, const char *attribute, Value **out)
{
	const AttributeProto *a = node_attribute(n->proto, attribute);

	for (size_t i = 0; a && i < a->n_strings; i++)
		out[i] = want_named(n, text_of(n, a->strings[i]));
	return !n->failed;
}

static int
count_names(OnnxNode *n, const char *attribute)
{
	const AttributeProto *a = node_attribute(n->proto, attribute);

	return a ? (int)a->n_strings : 0;
}

static bool
read_names(OnnxNode *n, Differentiated *d)
{
	d->n_xs = count_names(n, "xs");
	d->n_zs = count_names(n, "zs");
	int count = d->n_xs + d->n_zs;
	const char *y = want_string(n, "y", "");

	if (d->n_xs == 0 || count != n_inputs(n) || n_outputs(n) > d->n_xs) {
		report_invalid(n,
		               "%d inputs and %d outputs do not fit xs with %d names and zs "
		               "with %d: needs an input for each name, and at most an output "
		               "for each of xs",
		               n_inputs(n), n_outputs(n), d->n_xs, d->n_zs);
		return false;
	}
	d->own = NEW_ARRAY(n->im->arena, Value *, count);
	d->given = NEW_ARRAY(n->im->arena, Value *, count);
	for (int i = 0; i < count; i++)
		d->given[i] = want_input(n, i);
	d->y = want_named(n, y);
	return want_names(n, "xs", d->own) && want_names(n, "zs", d->own + d->n_xs) && d->y;
}

static bool
types_fit(OnnxNode *n, const Differentiated *d)
{
	for (int i = 0; i < d->n_xs + d->n_zs; i++) {
		if (d->own[i]->type != d->given[i]->type)
			report_invalid(
				n,
				"input %d has another type or shape than the value that it replaces",
				i);
		if (i < d->n_xs && !is_float(d->own[i]))
			report_invalid(n, "input %d is %s: it has no gradient", i,
			               dtype_info[d->own[i]->type->dtype].name);
	}
	if (!is_float(d->y))
		report_invalid(n, "y is %s: it has no gradient",
		               dtype_info[d->y->type->dtype].name);
	return !n->failed;
}

/* ---- copies of the nodes in between */
/* By value id: does y depend on the value? */
static bool *
mark_needed(Arena *scratch, Function *f, const Value *y)
{
	bool *needed = NEW_ARRAY(scratch, bool, f->next_value_id);

	needed[y->id] = true;
	for_each_node_reverse(f, at) {
		bool any = false;
		for (int i = 0; i < at->n_results; i++)
			any |= needed[node_result(at, i)->id];
		for (int i = 0; any && i < at->n_operands; i++)
			if (node_operand(at, i))
				needed[node_operand(at, i)->id] = true;
	}
	return needed;
}

/* The copy of a value; the value itself if it has no copy. */
static Value *
standing_for(Value **copies, Value *v)
{
	return v && copies[v->id] ? copies[v->id] : v;
}

static void
copy_node(OnnxNode *n, Node *at, Value **copies)
{
	Value **operands = NEW_ARRAY(n->im->arena, Value *, at->n_operands);
	bool differs = false;

	for (int i = 0; i < at->n_operands; i++) {
		operands[i] = standing_for(copies, node_operand(at, i));
		differs |= operands[i] != node_operand(at, i);
	}
	if (!differs)
		return;
	Node *copy = build_node(n->b, at->op, at->n_operands, operands, at->attr);
	for (int i = 0; i < at->n_results; i++)
		if (!copies[node_result(at, i)->id])
			copies[node_result(at, i)->id] = node_result(copy, i);
}

/* A reshape of x to its own shape. The gradient is taken by this new value, which stops the
 * gradient's walk, so that only nodes after it contribute. */
static Value *
leaf(OnnxNode *n, Value *x)
{
	return build(n->b, OP_reshape, 1, &x, &(ReshapeAttr){shape_of(x)});
}

/* Copies the nodes between the given values and y. Each x becomes a leaf, by which y is
 * differentiated. */
static void
copy_between(OnnxNode *n, Differentiated *d)
{
	Function *f = n->b->f;
	Arena *scratch = arena_new();
	bool *needed = mark_needed(scratch, f, d->y);
	Value **copies = NEW_ARRAY(scratch, Value *, f->next_value_id);
	Node *last = f->last;

	for (int i = 0; i < d->n_xs + d->n_zs; i++) {
		int same = 0; /* equal names are one value */
		while (d->own[same] != d->own[i])
			same++;
		if (same < i) {
			d->given[i] = d->given[same];
			continue;
		}
		if (i < d->n_xs)
			d->given[i] = leaf(n, d->given[i]);
		copies[d->own[i]->id] = d->given[i];
	}
	for (Node *at = f->first; last && at; at = at == last ? NULL : at->next) {
		bool any = false;
		for (int i = 0; i < at->n_results; i++)
			any |= needed[node_result(at, i)->id];
		if (any)
			copy_node(n, at, copies);
	}
	d->y = standing_for(copies, d->y);
	arena_free(scratch);
}

static void
import_gradient(OnnxNode *n)
{
	Differentiated d = {0};
	Value *seed, **out;

	if (!outside_of_bodies(n, "a gradient") || !read_names(n, &d) || !types_fit(n, &d))
		return;
	copy_between(n, &d);
	seed = b_splat(n->b, d.y->type, 1);
	out = NEW_ARRAY(n->im->arena, Value *, d.n_xs);
	if (!gradient_build(n->b, 1, &(GradSeed){d.y, seed}, d.n_xs, d.given, out, n->im->diag)) {
		n->failed = true;
		return;
	}
	for (int i = 0; i < d.n_xs; i++)
		set_output(n, i, out[i] ? out[i] : b_splat(n->b, d.given[i]->type, 0));
}

const ImportRow import_gradient_rows[] = {
	/* name      from  to  importer  extra  domain */
	{"Gradient", 1, 0, import_gradient, {0}, "ai.onnx.preview.training"},
	{0},
};

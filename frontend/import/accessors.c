/* Gives importers a node's inputs and attributes, checked: a wrong type or a missing input is
 * reported with the node's name. */
#include "frontend/import/walk.h"

#include <string.h>

void
report_invalid(OnnxNode *n, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	node_verror(n->im->model, n->im->diag, n->flat, EXIT_INVALID, fmt, args);
	va_end(args);
	n->failed = true;
}

void
report_unsupported(OnnxNode *n, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	node_verror(n->im->model, n->im->diag, n->flat, EXIT_UNSUPPORTED, fmt, args);
	va_end(args);
	n->failed = true;
}

int
n_inputs(const OnnxNode *n)
{
	return (int)n->proto->n_input;
}

int
n_outputs(const OnnxNode *n)
{
	return (int)n->proto->n_output;
}

bool
has_input(const OnnxNode *n, int i)
{
	return i < n_inputs(n) && *n->proto->input[i];
}

bool
has_output(const OnnxNode *n, int i)
{
	return i < n_outputs(n) && *n->proto->output[i];
}

bool
has_attribute(const OnnxNode *n, const char *name)
{
	return node_attribute(n->proto, name) != NULL;
}

Bound *
want_bound(OnnxNode *n, int i)
{
	if (!has_input(n, i)) {
		report_invalid(n, "input %d is missing", i);
		return NULL;
	}
	Bound *b = importer_lookup(n->im, n->proto->input[i]);
	if (!b)
		report_invalid(n, "input %d, %s, has no value", i,
		               quoted(n->im->model, n->proto->input[i]));
	else if (is_poisoned(b))
		n->failed = true; /* the fault was reported at the value's maker */
	return b;
}

bool
is_poisoned(const Bound *b)
{
	return !b->value && !b->sequence && !b->absent;
}

Value *
want_input(OnnxNode *n, int i)
{
	Bound *b = want_bound(n, i);

	if (b && (b->sequence || b->optional))
		report_invalid(n, "input %d is %s, need a tensor", i,
		               b->optional ? "an optional" : "a sequence");
	if (b && b->count)
		return padded_input(n, i, b);
	return b && !b->sequence && !b->optional ? b->value : NULL;
}

const char *
type_text(OnnxNode *n, Type t)
{
	Text text = {0};

	text_printf(&text, "%s[", dtype_info[t->dtype].name);
	for (int i = 0; i < t->rank; i++)
		text_printf(&text, "%s%lld", i ? "," : "", (long long)t->dims[i]);
	text_add(&text, "]");
	const char *copy = arena_strdup(n->im->arena, text.at);
	text_free(&text);
	return copy;
}

/* Appends axes of size 1 to y's, so that y's axes begin at the given axis of x. */
static Value *
at_axis(OnnxNode *n, const Value *x, Value *y)
{
	int64_t axis = want_int(n, "axis", 0), last = x->type->rank - y->type->rank;
	Ints shape = shape_of(y);

	if (axis < 0 || axis > last) {
		report_invalid(n,
		               "axis %lld does not place input 1 inside input 0: input 0 has "
		               "rank %d and input 1 has rank %d",
		               (long long)axis, x->type->rank, y->type->rank);
		return NULL;
	}
	for (int64_t i = axis; i < last; i++)
		shape.at[shape.n++] = 1;
	return e_reshape(n, y, shape);
}

Value *
want_second_input(OnnxNode *n, const Value *x)
{
	enum { NUMPYS = 7 };
	Value *y = want_input(n, 1);

	if (!x || !y || n->opset >= NUMPYS)
		return y;
	if (want_int(n, "broadcast", 0))
		return has_attribute(n, "axis") ? at_axis(n, x, y) : y;
	Ints a = shape_of(x), b = shape_of(y);
	if (a.n != b.n || memcmp(a.at, b.at, sizeof(*a.at) * (size_t)a.n) != 0) {
		report_invalid(n, "the inputs have different shapes, which needs broadcast = 1");
		return NULL;
	}
	return y;
}

Value *
want_float_input(OnnxNode *n, int i)
{
	Value *x = want_input(n, i);

	if (x && !is_float(x)) {
		report_unsupported(n, "input %d is %s, only floats are supported", i,
		                   dtype_info[x->type->dtype].name);
		return NULL;
	}
	return x;
}

/* The only input on which the value depends, if this input has one element; else NULL. */
static const Value *
deciding_input(const Value *v, int depth)
{
	const Value *found = NULL;

	if (v->kind == VALUE_PARAM)
		return v->param == PARAM_INPUT && v->type->n == 1 ? v : NULL;
	for (int i = 0; depth && v->kind == VALUE_RESULT && i < v->node->n_operands; i++) {
		const Value *x = node_operand(v->node, i);
		if (value_constant(x))
			continue;
		const Value *of = deciding_input(x, depth - 1);
		if (!of || (found && found != of))
			return NULL;
		found = of;
	}
	return found;
}

const Tensor *
want_constant(OnnxNode *n, int i)
{
	enum { DEPTH = 16 };
	Value *v = want_input(n, i);

	if (!v)
		return NULL;
	const Tensor *t = known_value(n->im, v);
	if (!t)
		report_unsupported(
			n,
			"input %d, %s, depends on data; only values that follow from shapes and "
			"constants are supported",
			i, quoted(n->im->model, n->proto->input[i]));
	const Value *input = t ? NULL : deciding_input(v, DEPTH);
	if (input)
		diag_hint(n->im->diag,
		          "--fill %s=N gives a number to the input that decides the value",
		          input->name);
	return t;
}

bool
want_constant_ints(OnnxNode *n, int i, Ints *out)
{
	const Tensor *t = want_constant(n, i);

	*out = (Ints){0};
	if (!t)
		return false;
	if (t->type->rank > 1 || dtype_is_float(t->type->dtype) || t->type->dtype == BOOL) {
		report_invalid(n, "input %d must be a list of integers, it is %s of rank %d", i,
		               dtype_info[t->type->dtype].name, t->type->rank);
		return false;
	}
	if (t->type->n > MAX_RANK) {
		report_invalid(n, "input %d has %lld numbers, at most %d axes are supported", i,
		               (long long)t->type->n, MAX_RANK);
		return false;
	}
	out->n = (int)t->type->n;
	for (int k = 0; k < out->n; k++)
		out->at[k] = tensor_int(t, k);
	return true;
}

bool
want_constant_int(OnnxNode *n, int i, int64_t *out)
{
	Ints list;

	*out = 0;
	if (!want_constant_ints(n, i, &list))
		return false;
	if (list.n != 1) {
		report_invalid(n, "input %d has %d numbers, needs one", i, list.n);
		return false;
	}
	*out = list.at[0];
	return true;
}

bool
want_constant_float(OnnxNode *n, int i, double *out)
{
	const Tensor *t = want_constant(n, i);

	*out = 0;
	if (!t)
		return false;
	if (t->type->n != 1) {
		report_invalid(n, "input %d has %lld elements, needs one", i,
		               (long long)t->type->n);
		return false;
	}
	*out = dtype_is_float(t->type->dtype) ? tensor_float(t, 0) : (double)tensor_int(t, 0);
	return true;
}

int64_t
want_int(OnnxNode *n, const char *name, int64_t otherwise)
{
	const AttributeProto *a = node_attribute(n->proto, name);

	return a ? a->i : otherwise;
}

double
want_float(OnnxNode *n, const char *name, double otherwise)
{
	const AttributeProto *a = node_attribute(n->proto, name);

	return a ? (double)a->f : otherwise;
}

const char *
want_string(OnnxNode *n, const char *name, const char *otherwise)
{
	const AttributeProto *a = node_attribute(n->proto, name);

	if (!a)
		return otherwise;
	if (a->s.len > 4096 || memchr(a->s.data ? a->s.data : (uint8_t *)"", 0, a->s.len)) {
		report_invalid(n, "attribute \"%s\" is not a plain string", name);
		return otherwise;
	}
	return arena_strndup(n->im->arena, a->s.data ? (char *)a->s.data : "", a->s.len);
}

const char *
want_word(OnnxNode *n, const char *name, const char *words)
{
	size_t first = strcspn(words, " ");
	const char *otherwise = arena_strndup(n->im->arena, words, first);
	const char *word = want_string(n, name, otherwise);

	for (const char *p = words; *p; p += strspn(p, " ")) {
		size_t length = strcspn(p, " ");
		if (strlen(word) == length && !strncmp(word, p, length))
			return word;
		p += length;
	}
	report_invalid(n, "%s %s is not one of: %s", name, quoted(n->im->model, word), words);
	return otherwise;
}

bool
want_ints(OnnxNode *n, const char *name, Ints *out)
{
	const AttributeProto *a = node_attribute(n->proto, name);

	*out = (Ints){0};
	if (!a)
		return false;
	if (a->n_ints > MAX_RANK) {
		report_invalid(n, "attribute \"%s\" has %zu numbers, at most %d axes are supported",
		               name, a->n_ints, MAX_RANK);
		return false;
	}
	out->n = (int)a->n_ints;
	for (int i = 0; i < out->n; i++)
		out->at[i] = a->ints[i];
	return true;
}

int
want_floats(OnnxNode *n, const char *name, int most, double *out)
{
	const AttributeProto *a = node_attribute(n->proto, name);

	if (!a)
		return 0;
	if (a->n_floats > (size_t)most) {
		report_invalid(n, "attribute \"%s\" has %zu numbers, at most %d are known", name,
		               a->n_floats, most);
		return 0;
	}
	for (size_t i = 0; i < a->n_floats; i++)
		out[i] = (double)a->floats[i];
	return (int)a->n_floats;
}

int
want_axis(OnnxNode *n, int64_t axis, int rank)
{
	if (axis < -rank || axis >= rank) {
		report_invalid(n, "axis %lld is not an axis of a rank-%d tensor", (long long)axis,
		               rank);
		return -1;
	}
	return (int)(axis < 0 ? axis + rank : axis);
}

bool
want_axes(OnnxNode *n, Ints list, int rank, Ints *out)
{
	bool named[MAX_RANK] = {false};

	*out = (Ints){0};
	for (int i = 0; i < list.n; i++) {
		int axis = want_axis(n, list.at[i], rank);
		if (axis < 0)
			return false;
		if (named[axis]) {
			report_invalid(n, "axis %d is named twice", axis);
			return false;
		}
		named[axis] = true;
	}
	for (int i = 0; i < rank; i++)
		if (named[i])
			out->at[out->n++] = i;
	return true;
}

bool
want_axes_list(OnnxNode *n, const char *name, int i, Ints *out)
{
	*out = (Ints){0};
	if (!n->extra->input)
		return want_ints(n, name, out);
	return has_input(n, i) && want_constant_ints(n, i, out);
}

bool
want_dtype(OnnxNode *n, int64_t onnx_type, DType *out)
{
	if (onnx_type <= 0 || onnx_type > 1000) {
		report_invalid(n, "%lld is not a data type", (long long)onnx_type);
		return false;
	}
	if (!tensor_dtype((int)onnx_type, out)) {
		report_unsupported(
			n, "data type %lld (strings, complex numbers or newer) is not supported",
			(long long)onnx_type);
		return false;
	}
	return true;
}

void
set_output(OnnxNode *n, int i, Value *v)
{
	if (i < n_outputs(n))
		n->out[i].value = v;
}

void
set_output_list(OnnxNode *n, int i, int n_list, Value **list)
{
	if (i >= n_outputs(n))
		return;
	if ((n->im->listed += n_list) > MAX_LISTED) {
		n->im->full = true;
		report_unsupported(n, "sequences have more than %d elements together", MAX_LISTED);
		return;
	}
	n->out[i] = (Bound){.list = arena_copy(n->im->arena, list, sizeof(*list) * (size_t)n_list),
	                    .n_list = n_list,
	                    .sequence = true};
}

void
set_output_bound(OnnxNode *n, int i, const Bound *b)
{
	if (i < n_outputs(n))
		n->out[i] = *b;
}

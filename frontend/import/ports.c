/* Inputs and outputs of a graph: binds the dimensions of inputs to numbers, and compares outputs
 * with the file's declarations. */
#include "frontend/import/walk.h"

#include <math.h>
#include <string.h>

/* ---- inputs */

/* The name by which --dim binds a dimension: its symbol, or INPUT[AXIS] if it has no symbol. */
static const char *
dim_name(Text *scratch, const char *input, int axis, const char *symbol)
{
	if (*symbol)
		return symbol;
	scratch->n = 0;
	text_printf(scratch, "%s[%d]", input, axis);
	return scratch->at;
}

/* The binding from --dim; NULL: --dim does not name it. */
const DimBinding *
find_dim(const Importer *im, const char *name)
{
	const Binding *b = &im->options->bindings[im->binding];

	for (int i = 0; i < b->n_dims; i++)
		if (!strcmp(b->dims[i].name, name))
			return &b->dims[i];
	return NULL;
}

static bool
bound_dim(const Importer *im, const char *name, bool counts_rows, int64_t *out)
{
	const ImportOptions *o = im->options;
	const DimBinding *dim = find_dim(im, name);

	if (dim) {
		*out = dim->value;
		return true;
	}
	*out = counts_rows && o->batch ? o->batch : 1;
	return (counts_rows && o->batch) || o->open_dims == OPEN_ONE;
}

static void
bind_dim(Inputs *in, ImportPort *port, int axis, const Onnx__TensorShapeProto__Dimension *d)
{
	Importer *im = in->im;
	const char *symbol = dim_symbol(d);

	port->symbols[axis] = symbol ? arena_strdup(im->m->arena, symbol) : NULL;
	if (!symbol) {
		port->dims[axis] = d->dim_value;
		if (axis == 0 && im->baked_batch && d->dim_value == im->baked_batch)
			port->dims[axis] = im->options->batch;
		return;
	}
	if (axis == port->batch_axis)
		port->open_batch = true;
	Text scratch = {0};
	const char *name = dim_name(&scratch, port->name, axis, symbol);
	if (!bound_dim(im, name, axis == port->batch_axis, &port->dims[axis]))
		text_printf(&in->open, "%s%s of input %s (axis %d)", in->open.n ? ", " : "", name,
		            quoted(im->model, port->name), axis);
	text_free(&scratch);
}

bool
bind_port(Inputs *in, const ValueInfoProto *v, ImportPort *port)
{
	Importer *im = in->im;
	const Onnx__TypeProto__Tensor *t = tensor_type(v);
	const char *name = quoted(im->model, v->name);
	int64_t n = 1;

	*port = (ImportPort){.name = arena_strdup(im->m->arena, v->name)};
	if (!t || !t->shape) {
		model_error(im->model, im->diag, EXIT_UNSUPPORTED,
		            "input %s is no tensor with a shape", name);
		return false;
	}
	if (!tensor_dtype(t->elem_type, &port->dtype)) {
		model_error(
			im->model, im->diag,
			t->elem_type <= 0 || t->elem_type > 64 ? EXIT_INVALID : EXIT_UNSUPPORTED,
			"input %s has element type %d, which is not supported", name, t->elem_type);
		return false;
	}
	if (t->shape->n_dim > MAX_RANK) {
		model_error(im->model, im->diag, EXIT_INVALID, "input %s has rank %zu, at most %d",
		            name, t->shape->n_dim, MAX_RANK);
		return false;
	}
	port->rank = (int)t->shape->n_dim;
	port->batch_axis = rows_axis_of(v, im->options->batch_axes, im->options->n_batch_axes);
	port->known_batch = rows_axis_is_known(v, im->options->batch_axes,
	                                       im->options->n_batch_axes);
	for (int i = 0; i < port->rank; i++) {
		bind_dim(in, port, i, t->shape->dim[i]);
		if (!size_mul(n, port->dims[i] ? port->dims[i] : 1, &n) || n > MAX_ELEMENTS) {
			model_error(im->model, im->diag, EXIT_INVALID,
			            "input %s has more elements than can be addressed", name);
			return false;
		}
	}
	return true;
}

static Value *
fill_value(Importer *im, Type type, const Fill *fill)
{
	static const double values[] = {[FILL_ONES] = 1, [FILL_ZEROS] = 0};

	if (fill->kind == FILL_IOTA)
		return b_iota(&im->b, type->dtype, ints_of_type(type), type->rank - 1);
	return b_splat(&im->b, type, fill->kind == FILL_VALUE ? fill->value : values[fill->kind]);
}

static const Fill *
find_fill(const ImportOptions *o, const char *name)
{
	for (int i = 0; i < o->n_fills; i++)
		if (!strcmp(o->fills[i].name, name))
			return &o->fills[i];
	return NULL;
}

int
count_inputs(const Function *f)
{
	int n = 0;

	for (int i = 0; i < f->params.n; i++)
		n += f->params.at[i]->param == PARAM_INPUT;
	return n;
}

Value *
bind_tensor_port(Importer *im, ImportInfo *info, const ImportPort *port)
{
	Function *f = im->b.f;
	Type type = type_new(im->m, port->dtype, port->rank, port->dims);

	if (!im->inference)
		vec_push(im->m->arena, &info->base.bindings.at[im->binding].inputs, *port);
	return function_param_as(f, type, port->name, PARAM_INPUT, count_inputs(f));
}

/* Input i of the graph; the inputs of a loss that the file carries follow. NULL: there are no more. */
static const ValueInfoProto *
nth_input(const Model *model, size_t i)
{
	const GraphProto *g = model->proto->graph;

	if (i < g->n_input)
		return g->input[i];
	i -= g->n_input;
	return i < (size_t)model->training_inputs.n ? model->training_inputs.at[i] : NULL;
}

void
import_inputs(Importer *im, ImportInfo *info)
{
	Inputs inputs = {.im = im, .info = info}, *in = &inputs;
	ImportBinding *binding = &info->base.bindings.at[im->binding];
	const ValueInfoProto *v;
	ImportPort port;

	for (size_t i = 0; (v = nth_input(im->model, i)); i++) {
		if (strmap_get(im->model->initializers, v->name))
			continue;
		if (import_list_input(im, info, v))
			continue;
		if (!bind_port(in, v, &port)) {
			importer_bind(im, v->name, NULL);
			continue;
		}
		Type type = type_new(im->m, port.dtype, port.rank, port.dims);
		const Fill *fill = find_fill(im->options, v->name);
		im->b.loc = loc_name(im->m, v->name);
		if (fill && fill->kind == FILL_IOTA && type->rank == 0) {
			model_error(im->model, im->diag, EXIT_USAGE,
			            "--fill %s=iota: the input is a "
			            "scalar, iota needs an axis",
			            v->name);
		} else if (fill) {
			importer_bind(im, v->name, fill_value(im, type, fill));
		} else {
			importer_bind(im, v->name, bind_tensor_port(im, info, &port));
		}
	}
	for (int i = 0; i < im->options->n_fills && !im->inference; i++)
		if (!strmap_get(im->values, im->options->fills[i].name))
			model_error(im->model, im->diag, EXIT_USAGE, "--fill %s: no such input",
			            im->options->fills[i].name);
	if (in->open.n && !im->inference)
		model_error(im->model, im->diag, EXIT_USAGE,
		            "open dimensions, bind them with --dim NAME=N or --batch N: %s",
		            in->open.at);
	rows_find_inputs(im, binding);
	text_free(&in->open);
}

/* ---- outputs */
/* A wrong rank of a tensor is only a warning, because onnxruntime runs such models. A wrong rank of
 * a list's element is an error. */
static void
report_rank(Importer *im, const ValueInfoProto *v, bool is_element, size_t declared, int rank)
{
	const char *name = quoted(im->model, v->name);

	if (is_element)
		model_error(im->model, im->diag, EXIT_INVALID,
		            "output %s is declared with rank %zu, it has rank %d", name, declared,
		            rank);
	else if (im->binding == 0)
		diag_warning(im->diag, "%s: output %s is declared with rank %zu, it has rank %d",
		             im->model->path, name, declared, rank);
}

/* padded: the axis whose size is a bound (`--bound`) rather than the actual size; -1: no
 * padding. */
static void
check_output(Importer *im, const ValueInfoProto *v, Type type, int padded, bool is_element)
{
	const Onnx__TypeProto__Tensor *t = tensor_type(v);
	const char *name = quoted(im->model, v->name);
	DType dtype;

	if (!t)
		return;
	if (t->elem_type && (!tensor_dtype(t->elem_type, &dtype) || dtype != type->dtype))
		model_error(im->model, im->diag, EXIT_INVALID,
		            "output %s is declared with element type %d, it is %s", name,
		            t->elem_type, dtype_info[type->dtype].name);
	if (!t->shape)
		return;
	if (t->shape->n_dim != (size_t)type->rank) {
		report_rank(im, v, is_element, t->shape->n_dim, type->rank);
		return;
	}
	for (int i = 0; i < type->rank; i++) {
		const Onnx__TensorShapeProto__Dimension *d = t->shape->dim[i];
		bool rebound = i == 0 && im->baked_batch && d->dim_value == im->baked_batch;
		if (!dim_symbol(d) && d->dim_value != type->dims[i] && !rebound && i != padded)
			model_error(
				im->model, im->diag, EXIT_INVALID,
				"output %s is declared with %lld elements along axis %d, it has "
				"%lld",
				name, (long long)d->dim_value, i, (long long)type->dims[i]);
	}
}

static void
add_output_port(Importer *im, ImportInfo *info, const ValueInfoProto *v, Type type)
{
	ImportPort port = {.name = arena_strdup(im->m->arena, v->name),
	                   .dtype = type->dtype,
	                   .rank = type->rank};
	const Onnx__TypeProto__Tensor *t = tensor_type(v);

	for (int i = 0; i < type->rank; i++) {
		bool declared = t && t->shape && (int)t->shape->n_dim == type->rank;
		const char *symbol = declared ? dim_symbol(t->shape->dim[i]) : "";
		port.dims[i] = type->dims[i];
		port.symbols[i] = symbol ? arena_strdup(im->m->arena, symbol) : NULL;
	}
	vec_push(im->m->arena, &info->base.bindings.at[im->binding].outputs, port);
}

/* Adds the store at the end of the function, with the location of the node that computed the value. */
static void
store_at_end(Importer *im, State *state, Value *value)
{
	Builder b = im->b;

	if (value->kind == VALUE_RESULT)
		b.loc = value->node->loc;
	b_store(&b, state, value);
}

static bool
is_graph_output(const GraphProto *g, const char *name)
{
	for (size_t i = 0; i < g->n_output; i++)
		if (strcmp(g->output[i]->name, name) == 0)
			return true;
	return false;
}

/* The graph's outputs, and the further values that options->outputs asks for. */
static const ValueInfoProto **
all_outputs(const Importer *im, int *n)
{
	const GraphProto *g = im->model->proto->graph;
	const char *const *asked = im->options->outputs;
	int most = (int)g->n_output;

	for (int i = 0; asked && asked[i]; i++)
		most++;
	const ValueInfoProto **all = NEW_ARRAY(im->arena, const ValueInfoProto *, most);
	for (*n = 0; *n < (int)g->n_output; ++*n)
		all[*n] = g->output[*n];
	for (int i = 0; asked && asked[i]; i++) {
		if (is_graph_output(g, asked[i]))
			continue;
		ValueInfoProto *made = NEW(im->arena, ValueInfoProto);
		onnx__value_info_proto__init(made);
		made->name = (char *)(uintptr_t)asked[i];
		all[(*n)++] = made;
	}
	return all;
}

typedef VEC(Value *) Results;

static void
add_result(Importer *im, Results *results, const char *name, Value *v)
{
	vec_push(im->arena, results, v);
	function_name_result(im->b.f, name);
}

/* Adds the count of a padded output as the next result. */
static void
import_output_count(Importer *im, ImportInfo *info, const char *name, const Bound *b,
                    Results *results)
{
	PaddedOutput padded = {arena_strdup(im->m->arena, name), b->axis, results->n - 1};
	ValueInfoProto count = ONNX__VALUE_INFO_PROTO__INIT;

	count.name = arena_printf(im->m->arena, "%s.count", name);
	add_result(im, results, count.name, b->count);
	if (im->inference)
		return;
	add_output_port(im, info, &count, b->count->type);
	vec_push(im->m->arena, &info->base.bindings.at[im->binding].padded, padded);
}

/* Checks that a list is declared as the same kind of list, and sets *out to the type of its
 * elements. */
static bool
check_output_list(Importer *im, const ValueInfoProto *v, const Bound *b, Onnx__TypeProto *out)
{
	GivenList declared = {0};
	const Onnx__TypeProto__Tensor *t = list_type(v->type, &declared);

	if (t && (b->absent ? !declared.optional : declared.sequence != b->sequence)) {
		model_error(im->model, im->diag, EXIT_INVALID,
		            "output %s is declared as %s, it is %s", quoted(im->model, v->name),
		            declared.sequence ? "a sequence" : "a tensor",
		            b->absent     ? "an optional that has nothing"
		            : b->sequence ? "a sequence"
		                          : "a tensor");
		return false;
	}
	if (t) {
		out->value_case = ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE;
		out->tensor_type = (Onnx__TypeProto__Tensor *)(uintptr_t)t;
	}
	return true;
}

/* An output not declared optional is not optional, even if its value is: a loop of no iterations
 * returns the optional that it was given. */
static const Bound *
bound_as_declared(Importer *im, const ValueInfoProto *v, const Bound *b)
{
	GivenList declared = {0};

	if (!b || !b->optional || b->absent || !list_type(v->type, &declared) ||
	    declared.optional || declared.sequence != b->sequence)
		return b;
	Bound *element = arena_copy(im->arena, b, sizeof(*b));
	element->optional = false;
	return element;
}

/* A tensor becomes one result, a list one result per element. */
static void
import_output(Importer *im, ImportInfo *info, const ValueInfoProto *output, Results *results)
{
	const Bound *b = bound_as_declared(im, output, importer_lookup(im, output->name));
	bool is_list = b && (b->sequence || b->optional);
	int n = !b || b->absent ? 0 : b->sequence ? b->n_list : 1;

	if (!b || is_poisoned(b)) {
		vec_push(im->arena, results, NULL);
		return;
	}
	if (is_list && !im->inference)
		add_output_list(im, info, output->name, b, results->n);
	Onnx__TypeProto of_elements = ONNX__TYPE_PROTO__INIT;
	if (output->type && !check_output_list(im, output, b, &of_elements))
		return;
	for (int i = 0; i < n; i++) {
		Value *v = b->sequence ? b->list[i] : b->value;
		ValueInfoProto element = ONNX__VALUE_INFO_PROTO__INIT;
		element.name = is_list ? (char *)(uintptr_t)list_element_name(im->m->arena,
		                                                              output->name, i)
		                       : output->name;
		element.type = is_list ? &of_elements : output->type;
		add_result(im, results, element.name, v);
		if (!v || im->inference)
			continue;
		check_output(im, &element, v->type, b->count ? b->axis : -1, is_list);
		add_output_port(im, info, &element, v->type);
	}
	if (b->count)
		import_output_count(im, info, output->name, b, results);
}

/* A float result is NaN if data exceed a bound. */
static Value *
within_bounds(Importer *im, Value *v)
{
	if (!dtype_is_float(v->type->dtype))
		return v;
	for (int i = 0; i < im->overflows.n; i++) {
		Value *over = b_broadcast(&im->b, im->overflows.at[i], ints_of_type(v->type),
		                          (Ints){0});
		v = b_select(&im->b, over, b_splat(&im->b, v->type, NAN), v);
	}
	return v;
}

void
import_outputs(Importer *im, ImportInfo *info)
{
	int n;
	const ValueInfoProto **outputs = all_outputs(im, &n);
	Results results = {0};

	for (int i = 0; i < n; i++)
		import_output(im, info, outputs[i], &results);
	for (int i = 0; i < results.n; i++)
		if (!results.at[i])
			return;
	for (int i = 0; i < im->stores_at_end.n; i++)
		store_at_end(im, im->stores_at_end.at[i].state, im->stores_at_end.at[i].value);
	for (int i = 0; i < results.n; i++)
		results.at[i] = within_bounds(im, results.at[i]);
	b_return(&im->b, results.n, results.at);
}

void
model_open_dims(const Model *model, const ImportOptions *o,
                void (*visit)(void *ctx, const char *input, int axis, const char *name, bool rows),
                void *ctx)
{
	const ValueInfoProto *v;
	Text scratch = {0};

	for (size_t i = 0; (v = nth_input(model, i)); i++) {
		const Onnx__TypeProto__Tensor *t = tensor_type(v);
		if (strmap_get(model->initializers, v->name) || !t || !t->shape)
			continue;
		for (size_t k = 0; k < t->shape->n_dim; k++) {
			const char *symbol = dim_symbol(t->shape->dim[k]);
			const char *input = v->name;
			if (symbol)
				visit(ctx, input, (int)k, dim_name(&scratch, input, (int)k, symbol),
				      (int)k == rows_axis_of(v, o->batch_axes, o->n_batch_axes));
		}
	}
	text_free(&scratch);
}

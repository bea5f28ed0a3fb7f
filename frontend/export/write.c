/* Writes a program as plain ONNX. Inputs, labels and row weights are inputs of the graph, states are
 * initializers, and each node becomes operators of the standard. @accumulate adds up over
 * micro-batches; only one micro-batch is written: the mean loss and its gradients. */
#include "frontend/export/writer.h"

#include <string.h>

/* ---- names */
const char *
writer_name(GraphWriter *w, const char *wanted)
{
	const char *name = wanted;

	for (int i = 2; strmap_get(w->taken, name); i++)
		name = arena_printf(w->arena, "%s.%d", wanted, i);
	strmap_put(w->taken, name, w);
	return name;
}

static const char *
fresh(GraphWriter *w)
{
	return writer_name(w, arena_printf(w->arena, "t%d", w->count++));
}

const char *
writer_operand(const GraphWriter *w, const Node *n, int i)
{
	return w->name[node_operand(n, i)->id];
}

void
writer_set(GraphWriter *w, const Node *n, int i, const char *name)
{
	w->name[node_result(n, i)->id] = name;
}

/* ---- messages; protobuf-c requires non-const strings */
static char *
text_of(const GraphWriter *w, const char *s)
{
	return arena_strdup(w->arena, s);
}

static AttributeProto *
attribute(const GraphWriter *w, const WrittenAttribute *from)
{
	AttributeProto *a = NEW(w->arena, AttributeProto);

	onnx__attribute_proto__init(a);
	a->name = text_of(w, from->name);
	a->has_type = 1;
	switch (from->kind) {
	case WRITE_INT:
		a->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT;
		a->has_i = 1;
		a->i = from->i;
		break;
	case WRITE_INTS:
		a->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INTS;
		a->n_ints = (size_t)from->ints.n;
		a->ints = arena_copy(w->arena, from->ints.at, sizeof(int64_t) * MAX_RANK);
		break;
	default:
		a->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRING;
		a->has_s = 1;
		a->s.data = (uint8_t *)text_of(w, from->text);
		a->s.len = strlen(from->text);
	}
	return a;
}

static char **
texts_of(const GraphWriter *w, int n, const char *const *list)
{
	char **copy = NEW_ARRAY(w->arena, char *, n + 1);

	for (int i = 0; i < n; i++)
		copy[i] = text_of(w, list[i]);
	return copy;
}

void
writer_node_of(GraphWriter *w, const char *op, const WrittenAttribute *attributes, int n,
               const char *const *inputs, int n_results, const char **results)
{
	NodeProto *p = NEW(w->arena, NodeProto);
	size_t count = 0;

	for (int i = 0; i < n_results; i++)
		results[i] = fresh(w);
	onnx__node_proto__init(p);
	p->op_type = text_of(w, op);
	p->name = text_of(w, arena_printf(w->arena, "%s/%s", w->origin, results[0]));
	p->input = texts_of(w, n, inputs);
	p->n_input = (size_t)n;
	p->output = texts_of(w, n_results, results);
	p->n_output = (size_t)n_results;
	while (attributes && attributes[count].name)
		count++;
	p->attribute = NEW_ARRAY(w->arena, AttributeProto *, count + 1);
	p->n_attribute = count;
	for (size_t i = 0; i < count; i++)
		p->attribute[i] = attribute(w, &attributes[i]);
	vec_push(w->arena, &w->nodes, p);
}

const char *
writer_node(GraphWriter *w, const char *op, const WrittenAttribute *attributes, int n,
            const char *const *inputs)
{
	const char *result;

	writer_node_of(w, op, attributes, n, inputs, 1, &result);
	return result;
}

const char *
writer_unary(GraphWriter *w, const char *op, const char *x)
{
	return writer_node(w, op, NULL, 1, &x);
}

const char *
writer_binary(GraphWriter *w, const char *op, const char *x, const char *y)
{
	return writer_node(w, op, NULL, 2, (const char *[]){x, y});
}

const char *
writer_where(GraphWriter *w, const char *c, const char *x, const char *y)
{
	return writer_node(w, "Where", NULL, 3, (const char *[]){c, x, y});
}

/* ---- initializers */
const char *
writer_tensor(GraphWriter *w, const char *wanted, DType dtype, Ints shape, const void *data)
{
	TensorProto *t = NEW(w->arena, TensorProto);
	const char *name = writer_name(w, wanted);
	int64_t n = 1;

	for (int i = 0; i < shape.n; i++)
		n *= shape.at[i];
	onnx__tensor_proto__init(t);
	t->name = text_of(w, name);
	t->has_data_type = 1;
	t->data_type = tensor_onnx_type(dtype);
	t->n_dims = (size_t)shape.n;
	t->dims = arena_copy(w->arena, shape.at, sizeof(int64_t) * MAX_RANK);
	t->has_raw_data = 1;
	t->raw_data.len = (size_t)dtype_bytes(dtype, n);
	t->raw_data.data = (uint8_t *)(uintptr_t)data;
	vec_push(w->arena, &w->initializers, t);
	return name;
}

const char *
writer_ints(GraphWriter *w, Ints list)
{
	return writer_tensor(w, arena_printf(w->arena, "ints%d", w->count++), S64,
	                     (Ints){.n = 1, .at = {list.n}},
	                     arena_copy(w->arena, list.at, sizeof(int64_t) * MAX_RANK));
}

const char *
writer_number(GraphWriter *w, DType dtype, double x)
{
	void *data = arena_alloc(w->arena, 8);

	if (dtype_is_float(dtype))
		dtype_store_float(dtype, data, 0, x);
	else
		dtype_store_int(dtype, data, 0, (int64_t)x);
	return writer_tensor(w, arena_printf(w->arena, "number%d", w->count++), dtype, (Ints){0},
	                     data);
}

const char *
writer_integer(GraphWriter *w, int64_t x)
{
	return writer_tensor(w, arena_printf(w->arena, "integer%d", w->count++), S64, (Ints){0},
	                     arena_copy(w->arena, &x, sizeof(x)));
}

/* ---- common operators */
const char *
writer_reshape(GraphWriter *w, const char *x, Ints shape)
{
	/* Without allowzero, 0 means the operand's own size. */
	const WrittenAttribute zeros[] = {{.name = "allowzero", .kind = WRITE_INT, .i = 1}, {0}};

	return writer_node(w, "Reshape", zeros, 2, (const char *[]){x, writer_ints(w, shape)});
}

const char *
writer_transpose(GraphWriter *w, const char *x, Ints order)
{
	const WrittenAttribute perm[] = {{.name = "perm", .kind = WRITE_INTS, .ints = order}, {0}};

	return writer_node(w, "Transpose", perm, 1, &x);
}

const char *
writer_cast(GraphWriter *w, const char *x, DType to)
{
	const WrittenAttribute a[] = {{.name = "to", .kind = WRITE_INT, .i = tensor_onnx_type(to)},
	                              {0}};

	return writer_node(w, "Cast", a, 1, &x);
}

static Ints
all_axes(int n)
{
	Ints axes = {.n = n};

	for (int i = 0; i < n; i++)
		axes.at[i] = i;
	return axes;
}

const char *
writer_slice(GraphWriter *w, const char *x, Ints start, Ints stop, Ints step)
{
	if (start.n == 0)
		return x;
	const char *inputs[] = {x, writer_ints(w, start), writer_ints(w, stop),
	                        writer_ints(w, all_axes(start.n)), writer_ints(w, step)};
	return writer_node(w, "Slice", NULL, 5, inputs);
}

const char *
writer_pad(GraphWriter *w, const char *x, DType dtype, Ints low, Ints high, double value)
{
	int64_t *pads = NEW_ARRAY(w->arena, int64_t, 2 * MAX_RANK);
	bool any = false;

	for (int i = 0; i < low.n; i++) {
		pads[i] = low.at[i];
		pads[low.n + i] = high.at[i];
		any |= low.at[i] || high.at[i];
	}
	if (!any)
		return x;
	const char *list = writer_tensor(w, arena_printf(w->arena, "pads%d", w->count++), S64,
	                                 (Ints){.n = 1, .at = {2 * low.n}}, pads);
	return writer_node(w, "Pad", NULL, 3,
	                   (const char *[]){x, list, writer_number(w, dtype, value)});
}

/* ---- live values: values on which the results depend in the first micro-batch */
/* The value stored to a state in the first micro-batch. */
static const Value *
stored_value(const Function *f, const State *s)
{
	for_each_node(f, n)
		if (stored_state(n) == s && (when_runs(n->when) & when_runs(WHEN_FIRST)))
			return node_operand(n, 0);
	return NULL;
}

static bool
is_result(const State *s)
{
	return s->kind == STATE_GRADIENT || s->kind == STATE_LOSS_SUM ||
	       s->kind == STATE_LOSS_COUNT;
}

static int
n_returned(const Function *f)
{
	return function_return(f) ? function_return(f)->n_operands : 0;
}

static void
mark_live(GraphWriter *w)
{
	for (int i = 0; i < w->m->states.n; i++) {
		const State *s = w->m->states.at[i];
		const Value *v = is_result(s) ? stored_value(w->f, s) : NULL;
		if (v)
			w->live[v->id] = true;
	}
	for (int i = 0; i < n_returned(w->f); i++)
		w->live[function_result(w->f, i)->id] = true;
	for_each_node_reverse(w->f, n) {
		bool live = false;
		for (int i = 0; i < n->n_results; i++)
			live |= w->live[node_result(n, i)->id];
		for (int i = 0; live && i < n->n_operands; i++)
			if (node_operand(n, i))
				w->live[node_operand(n, i)->id] = true;
	}
}

static bool
is_live(const GraphWriter *w, const Node *n)
{
	for (int i = 0; i < n->n_results; i++)
		if (w->live[node_result(n, i)->id])
			return true;
	return false;
}

static const char *
stored_sum(const GraphWriter *w, StateKind kind)
{
	return w->name[stored_value(w->f, module_state_of_kind(w->m, kind))->id];
}

/* ---- inputs and outputs */
static ValueInfoProto *
port(const GraphWriter *w, const char *name, Type type)
{
	ValueInfoProto *v = NEW(w->arena, ValueInfoProto);
	Onnx__TypeProto *t = NEW(w->arena, Onnx__TypeProto);
	Onnx__TypeProto__Tensor *tensor = NEW(w->arena, Onnx__TypeProto__Tensor);
	Onnx__TensorShapeProto *shape = NEW(w->arena, Onnx__TensorShapeProto);

	onnx__value_info_proto__init(v);
	onnx__type_proto__init(t);
	onnx__type_proto__tensor__init(tensor);
	onnx__tensor_shape_proto__init(shape);
	shape->dim = NEW_ARRAY(w->arena, Onnx__TensorShapeProto__Dimension *, type->rank + 1);
	shape->n_dim = (size_t)type->rank;
	for (int i = 0; i < type->rank; i++) {
		shape->dim[i] = NEW(w->arena, Onnx__TensorShapeProto__Dimension);
		onnx__tensor_shape_proto__dimension__init(shape->dim[i]);
		shape->dim[i]->value_case = ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE;
		shape->dim[i]->dim_value = type->dims[i];
	}
	tensor->has_elem_type = 1;
	tensor->elem_type = tensor_onnx_type(type->dtype);
	tensor->shape = shape;
	t->value_case = ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE;
	t->tensor_type = tensor;
	v->name = text_of(w, name);
	v->type = t;
	return v;
}

static void
write_inputs(GraphWriter *w)
{
	for (int i = 0; i < w->f->params.n; i++) {
		const Value *p = w->f->params.at[i];
		if (p->param == PARAM_HYPERPARAMETER)
			continue; /* a node that reads it will be refused */
		w->name[p->id] = writer_name(w, p->name);
		vec_push(w->arena, &w->inputs, port(w, w->name[p->id], p->type));
	}
}

static const void *
first_content(const GraphWriter *w, const State *s)
{
	if (s->data)
		return s->data->data;
	char *data = arena_alloc(w->arena, (size_t)type_bytes(s->type));
	for (int64_t i = 0; s->init == INIT_ONES && i < s->type->n; i++) {
		if (dtype_is_float(s->type->dtype))
			dtype_store_float(s->type->dtype, data, i, 1);
		else
			dtype_store_int(s->type->dtype, data, i, 1);
	}
	return data;
}

static bool
write_states(GraphWriter *w)
{
	bool ok = true;

	for (int i = 0; i < w->f->states.n; i++) {
		const Value *v = w->f->states.at[i];
		const State *s = v->state;
		if (!w->live[v->id])
			continue;
		if (s->init != INIT_DATA && s->init != INIT_ZEROS && s->init != INIT_ONES) {
			diag_error(
				w->diag, EXIT_UNSUPPORTED,
				"%s: \"%s\" begins with random numbers, which are not in the file",
				w->m->name, s->name);
			ok = false;
		}
		w->name[v->id] = writer_tensor(w, s->name, s->type->dtype, ints_of_type(s->type),
		                               first_content(w, s));
	}
	return ok;
}

static void
write_output(GraphWriter *w, const char *wanted, const char *from, Type type)
{
	const char *name = writer_name(w, wanted);
	NodeProto *p;

	writer_unary(w, "Identity", from);
	p = w->nodes.at[w->nodes.n - 1];
	p->output[0] = text_of(w, name);
	vec_push(w->arena, &w->outputs, port(w, name, type));
}

/* ---- nodes */
static const WriteRow *
find_row(const Node *n)
{
	const WriteRow *const tables[] = {write_op_rows, write_index_rows, write_product_rows,
	                                  write_window_rows};

	for (int k = 0; k < COUNT(tables); k++)
		for (const WriteRow *r = tables[k]; r->op; r++)
			if (strcmp(r->op, op_row(n)->name) == 0)
				return r;
	return NULL;
}

/* Can the value's type be written? Floats of 8 bits and types of fewer bits came with later opsets. */
static bool
has_written_type(const Value *v)
{
	DType d = v->type->dtype;

	return d == BOOL || dtype_info[d].bits >= (dtype_is_float(d) ? 16 : 8);
}

static bool
has_written_types(const Node *n)
{
	bool all = true;

	for (int i = 0; i < n->n_results; i++)
		all &= has_written_type(node_result(n, i));
	for (int i = 0; i < n->n_operands; i++)
		all &= !node_operand(n, i) || has_written_type(node_operand(n, i));
	return all;
}

/* A result without elements becomes an initializer, because onnxruntime's operators divide by a
 * size of 0, or replace the size by 1. */
static bool
write_empty(GraphWriter *w, const Node *n)
{
	for (int i = 0; i < n->n_results; i++)
		if (node_result(n, i)->type->n)
			return false;
	for (int i = 0; i < n->n_results; i++) {
		Type t = node_result(n, i)->type;
		const char *name = arena_printf(w->arena, "empty%d", w->count++);
		writer_set(w, n, i, writer_tensor(w, name, t->dtype, ints_of_type(t), ""));
	}
	return true;
}

/* false: the node has no form in ONNX (reported), or reads a value without a form. */
static bool
write_node(GraphWriter *w, const Node *n)
{
	const WriteRow *row = find_row(n);
	const char **inputs = NEW_ARRAY(w->arena, const char *, n->n_operands);
	bool hyper = false;

	w->origin = loc_origin(n->loc);
	for (int i = 0; i < n->n_operands; i++) {
		const Value *v = node_operand(n, i);
		inputs[i] = v ? w->name[v->id] : NULL;
		hyper |= v && v->kind == VALUE_PARAM && v->param == PARAM_HYPERPARAMETER;
		if (v && !inputs[i] && !hyper)
			return false;
	}
	if (!has_written_types(n))
		row = NULL;
	else if (row && n->n_results && write_empty(w, n))
		return true;
	if (row && !row->write && !hyper) {
		writer_set(w, n, 0, writer_node(w, row->onnx, NULL, n->n_operands, inputs));
		return true;
	}
	if (row && !hyper && row->write(w, n))
		return true;
	diag_error(w->diag, EXIT_UNSUPPORTED, "%s: node \"%s\" (%s) has no form in plain ONNX",
	           w->m->name, w->origin, op_row(n)->name);
	return false;
}

static void
write_returned(GraphWriter *w)
{
	w->origin = "result";
	for (int i = 0; i < n_returned(w->f); i++) {
		const Value *v = function_result(w->f, i);
		const char *name = i < w->f->result_names.n ? w->f->result_names.at[i] : "";

		write_output(w, *name ? name : arena_printf(w->arena, "result.%d", i),
		             w->name[v->id], v->type);
	}
}

/* Writes the loss, and gradients divided by the actual number of targets rather than the possible
 * number. */
static void
write_loss_and_gradients(GraphWriter *w)
{
	const State *sum = module_state_of_kind(w->m, STATE_LOSS_SUM);
	const char *total = stored_sum(w, STATE_LOSS_SUM), *count = stored_sum(w, STATE_LOSS_COUNT);
	DType d = sum->type->dtype;

	w->origin = "result";
	write_output(w, "loss", writer_binary(w, "Div", total, count), sum->type);
	const char *scale = writer_binary(w, "Div", writer_number(w, d, (double)w->m->targets),
	                                  count);
	for (int i = 0; i < w->m->states.n; i++) {
		const State *s = w->m->states.at[i];
		const Value *v = s->kind == STATE_GRADIENT ? stored_value(w->f, s) : NULL;
		if (!v)
			continue;
		const char *factor = s->type->dtype == d ? scale
		                                         : writer_cast(w, scale, s->type->dtype);
		write_output(w, arena_printf(w->arena, "grad.%s", s->of->name),
		             writer_binary(w, "Mul", w->name[v->id], factor), v->type);
	}
}

/* ---- the file */
static uint8_t *
pack(const GraphWriter *w, size_t *size)
{
	ModelProto model = ONNX__MODEL_PROTO__INIT;
	GraphProto graph = ONNX__GRAPH_PROTO__INIT;
	Onnx__OperatorSetIdProto opset = ONNX__OPERATOR_SET_ID_PROTO__INIT, *opsets[] = {&opset};

	graph.name = text_of(w, w->m->name);
	graph.node = w->nodes.at;
	graph.n_node = (size_t)w->nodes.n;
	graph.initializer = w->initializers.at;
	graph.n_initializer = (size_t)w->initializers.n;
	graph.input = w->inputs.at;
	graph.n_input = (size_t)w->inputs.n;
	graph.output = w->outputs.at;
	graph.n_output = (size_t)w->outputs.n;
	opset.domain = text_of(w, "");
	opset.has_version = 1;
	opset.version = WRITTEN_OPSET;
	model.has_ir_version = 1;
	model.ir_version = WRITTEN_IR;
	model.producer_name = text_of(w, "gradc");
	model.graph = &graph;
	model.opset_import = opsets;
	model.n_opset_import = 1;
	*size = onnx__model_proto__get_packed_size(&model);
	if (*size > INT32_MAX) {
		diag_error(
			w->diag, EXIT_UNSUPPORTED,
			"%s: the graph with its weights is %zu bytes, an ONNX file has at most %d",
			w->m->name, *size, INT32_MAX);
		return NULL;
	}
	uint8_t *bytes = arena_alloc(w->arena, *size + 1);
	onnx__model_proto__pack(&model, bytes);
	return bytes;
}

uint8_t *
module_encode_onnx(const Module *m, const Function *f, Arena *arena, Diag *diag, size_t *size)
{
	GraphWriter w = {.arena = arena,
	                 .m = m,
	                 .f = f,
	                 .diag = diag,
	                 .taken = strmap_new(arena),
	                 .name = NEW_ARRAY(arena, const char *, f->next_value_id),
	                 .live = NEW_ARRAY(arena, bool, f->next_value_id)};

	mark_live(&w);
	write_inputs(&w);
	bool ok = write_states(&w);
	for_each_node(f, n)
		if (is_live(&w, n))
			ok &= write_node(&w, n);
	if (!ok)
		return NULL;
	write_returned(&w);
	if (module_state_of_kind(m, STATE_LOSS_SUM))
		write_loss_and_gradients(&w);
	return pack(&w, size);
}

/* Quantizes a file's graph: puts QuantizeLinear and DequantizeLinear before the inputs of products.
 * The result is plain ONNX: gradc runs and trains such a file like any model that holds codes
 * (quantized integers). For example, a Gemm with static activations:
 *   x --------------------------- Gemm        x -- QuantizeLinear -- DequantizeLinear -- Gemm
 *   fc.weight ------------------- Gemm   ->   fc.weight_quantized -- DequantizeLinear -- Gemm
 *   fc.bias --------------------- Gemm        fc.bias_quantized ---- DequantizeLinear -- Gemm
 * Names are the same as onnxruntime's quantizer gives. */
#include "frontend/edit/edit.h"

#include <string.h>

/* ---- the opset that the codes need */
static const struct {
	int opset;
	const char *what;
} forms[] = {{10, "codes of 8 bits"},
             {11, "scales computed from values"},
             {13, "a scale for each channel"},
             {19, "codes of 8-bit floats"},
             {21, "blocks, a scale for each row, or codes of 4 or 16 bits"},
             {23, "codes of 4-bit floats"},
             {25, "codes of 2 bits"}};

static int
form_of(const QuantizedTensor *t)
{
	int bits = dtype_info[t->type].bits;

	bool is_dynamic = t->kind == QUANTIZED_ACTIVATION && !t->scale;
	bool by_row = is_dynamic && t->activations == ACTIVATIONS_TOKEN;

	return bits == 2                                       ? 6
	       : bits == 4 && dtype_is_float(t->type)          ? 5
	       : bits == 4 || bits == 16 || t->block || by_row ? 4
	       : dtype_is_float(t->type)                       ? 3
	       : t->axis >= 0                                  ? 2
	                                                       : is_dynamic;
}

bool
model_quantize_opset(Model *model, const QuantizedTensors *list, int asked, Diag *diag)
{
	int form = 0;

	for (int i = 0; i < list->n; i++)
		form = form_of(list->at[i]) > form ? form_of(list->at[i]) : form;
	if (asked && !model_raise_opset(model, asked, diag))
		return false;
	int opset = asked ? asked : model->opset;
	if (opset >= forms[form].opset)
		return true;
	model_error(model, diag, EXIT_UNSUPPORTED,
	            "opset %d has no DequantizeLinear with %s: it needs opset %d or later", opset,
	            forms[form].what, forms[form].opset);
	diag_hint(diag, "--opset=%d raises the model's opset, if its operators mean the same there",
	          forms[form].opset);
	return false;
}

/* ---- the edited graph */
typedef struct {
	Model *model;
	Arena *arena;
	StrMap *names;   /* all names in the graph */
	IntMap *changed; /* address of a node -> its Changes */
	IntMap *parts;   /* address of an initializer -> QuantizedPart */
	VEC(NodeProto *) nodes;
	VEC(TensorProto *) initializers;
} Edit;

static const char *
fresh_name(Edit *e, const char *name, const char *ending)
{
	const char *made = arena_printf(e->arena, "%s%s", name, ending);

	for (int i = 1; strmap_get(e->names, made); i++)
		made = arena_printf(e->arena, "%s%s_%d", name, ending, i);
	strmap_put(e->names, made, e);
	return made;
}

static TensorProto *
add_initializer(Edit *e, const char *name, DType type, const Ints *shape, const void *data)
{
	TensorProto *t = edit_tensor(e->model, name, type, shape, data);

	vec_push(e->arena, &e->initializers, t);
	return t;
}

static void
add_part(Edit *e, const QuantizedTensor *of, int part, const char *name, DType type,
         const Ints *shape, const void *data)
{
	TensorProto *t = add_initializer(e, name, type, shape, data);
	QuantizedPart *p = NEW(e->arena, QuantizedPart);

	p->part = part;
	p->tensor = of;
	intmap_put(e->parts, (uint64_t)(uintptr_t)t, (uint64_t)(uintptr_t)p);
}

static void
add_attribute(Edit *e, NodeProto *p, const char *name, int64_t value)
{
	enum { MOST = 4 };

	if (!p->attribute)
		p->attribute = arena_alloc(e->arena, MOST * sizeof(AttributeProto *));
	p->attribute[p->n_attribute++] = edit_int(e->model, name, value);
}

/* Adds a node with up to three inputs and outputs. t: the tensor with the axis and block for its
 * attributes; may be NULL. */
static NodeProto *
add_node(Edit *e, const char *op, const char *name, const char *const inputs[3],
         const char *const outputs[3], const QuantizedTensor *t)
{
	NodeProto *p = NEW(e->arena, NodeProto);

	onnx__node_proto__init(p);
	p->op_type = (char *)(uintptr_t)op;
	p->name = (char *)(uintptr_t)name;
	p->input = arena_alloc(e->arena, 3 * sizeof(char *));
	p->output = arena_alloc(e->arena, 3 * sizeof(char *));
	for (int i = 0; i < 3 && inputs[i]; i++)
		p->input[p->n_input++] = (char *)(uintptr_t)inputs[i];
	for (int i = 0; i < 3 && outputs[i]; i++)
		p->output[p->n_output++] = (char *)(uintptr_t)outputs[i];
	if (t && t->axis >= 0)
		add_attribute(e, p, "axis", t->axis);
	if (t && t->axis >= 0 && t->block)
		add_attribute(e, p, "block_size", t->block);
	vec_push(e->arena, &e->nodes, p);
	return p;
}

Groups
quantized_groups(const QuantizedTensor *t)
{
	return (Groups){t->shape.n, t->shape.at, t->group.at};
}

static Ints
scale_shape(const QuantizedTensor *t)
{
	Groups groups = quantized_groups(t);
	Ints shape = {.n = t->shape.n};

	if (t->axis < 0)
		return (Ints){0};
	if (!t->block)
		return (Ints){.n = 1, .at = {t->n_scales}};
	for (int i = 0; i < shape.n; i++)
		shape.at[i] = groups_along(&groups, i);
	return shape;
}

static const void *
packed_ints(Edit *e, DType type, int64_t n, const int32_t *at)
{
	void *out = arena_alloc(e->arena, (size_t)dtype_bytes(type, n) + 1);

	for (int64_t i = 0; i < n; i++)
		dtype_store_int(type, out, i, at[i]);
	return out;
}

/* Writes the codes of a weight to `out`; zeros if the model holds no numbers. */
static void
weight_codes(const QuantizedTensor *t, void *out)
{
	Groups groups = quantized_groups(t);

	for (GroupWalk w = group_walk(&groups); t->numbers && w.i < t->n; group_next(&w))
		code_store(t->type, out, w.i, t->numbers[w.i], t->scale[w.group], t->zero[w.group]);
}

/* The codes of a bias have 32 bits, so they are rounded in double, as onnxruntime does it. */
static void
bias_codes(const QuantizedTensor *t, int32_t *out)
{
	for (int64_t k = 0; k < t->n; k++)
		out[k] = (int32_t)dtype_quantize(S32, F64, false, t->numbers[k],
		                                 t->scale[t->n_scales > 1 ? k : 0], 0);
}

/* ---- a scale per row: DynamicQuantizeLinear's formulas, with each row as one block */
static const char *
add_step(Edit *e, const QuantizedTensor *t, const char *op, const char *x, const char *y)
{
	const char *made = fresh_name(e, t->name, "_row");

	add_node(e, op, fresh_name(e, t->name, "_row_node"), (const char *[]){x, y, NULL},
	         (const char *[]){made, NULL, NULL}, NULL);
	return made;
}

static const char *
add_number(Edit *e, const QuantizedTensor *t, float x)
{
	const char *name = fresh_name(e, t->name, "_number");

	add_initializer(e, name, F32, &(Ints){0}, arena_copy(e->arena, &x, sizeof(x)));
	return name;
}

/* The minimum or maximum of 0 and the elements of each row. Reductions take axes as an input from
 * opset 18 on. */
static const char *
add_extreme(Edit *e, const QuantizedTensor *t, const char *op, const char *axes, const char *at_0,
            const char *zero)
{
	const char *x = add_step(e, t, op, t->name, axes);

	add_attribute(e, e->nodes.at[e->nodes.n - 1], "keepdims", 1);
	return add_step(e, t, at_0, x, zero);
}

static void
add_rows(Edit *e, const QuantizedTensor *t, const char *codes, const char *scale, const char *zero,
         const char *numbers)
{
	static const int64_t last = -1;
	const char *axes = fresh_name(e, t->name, "_axes"), *none = add_number(e, t, 0),
		   *most = add_number(e, t, 255);

	add_initializer(e, axes, S64, &(Ints){.n = 1, .at = {1}},
	                arena_copy(e->arena, &last, sizeof(last)));
	const char *low = add_extreme(e, t, "ReduceMin", axes, "Min", none);
	const char *high = add_extreme(e, t, "ReduceMax", axes, "Max", none);
	const char *range = add_step(e, t, "Sub", high, low);
	const char *is_empty = add_step(e, t, "Equal", range, none);
	const char *one = add_number(e, t, 1);
	const char *step = add_step(e, t, "Div", range, most);
	add_node(e, "Where", fresh_name(e, t->name, "_row_node"),
	         (const char *[]){is_empty, one, step}, (const char *[]){scale, NULL, NULL}, NULL);
	const char *at = add_step(e, t, "Neg", add_step(e, t, "Div", low, scale), NULL);
	at = add_step(e, t, "Round", add_step(e, t, "Min", add_step(e, t, "Max", at, none), most),
	              NULL);
	NodeProto *cast = add_node(e, "Cast", fresh_name(e, t->name, "_row_node"),
	                           (const char *[]){at, NULL, NULL},
	                           (const char *[]){zero, NULL, NULL}, NULL);
	add_attribute(e, cast, "to", tensor_onnx_type(U8));
	const char *const inputs[][3] = {{t->name, scale, zero}, {codes, scale, zero}};
	const char *const outputs[][3] = {{codes}, {numbers}};
	for (int i = 0; i < 2; i++) {
		const char *op = i ? "DequantizeLinear" : "QuantizeLinear";
		NodeProto *p = add_node(
			e, op, fresh_name(e, t->name, i ? "_DequantizeLinear" : "_QuantizeLinear"),
			inputs[i], outputs[i], NULL);
		add_attribute(e, p, "axis", -1);
		add_attribute(e, p, "block_size", t->block);
	}
}

/* Adds the codes of numbers that the file holds. */
static void
add_held_codes(Edit *e, QuantizedTensor *t)
{
	int64_t bytes = t->kind == QUANTIZED_BIAS ? 4 * t->n : dtype_bytes(t->type, t->n);
	int32_t *wide = NEW_ARRAY(e->arena, int32_t, bytes / 4 + 1);

	if (t->kind == QUANTIZED_BIAS)
		bias_codes(t, wide);
	else
		weight_codes(t, wide);
	add_part(e, t, QUANTIZED_CODES, t->codes, t->type, &t->shape, wide);
}

/* Adds the nodes that make codes of the value `floats`. numbers: the name for the dequantized rows,
 * if each row has a scale. */
static void
add_made_codes(Edit *e, QuantizedTensor *t, const char *floats, const char *numbers)
{
	if (t->scale)
		add_node(e, "QuantizeLinear", fresh_name(e, t->name, "_QuantizeLinear"),
		         (const char *[]){floats, t->scales, t->zeros},
		         (const char *[]){t->codes, NULL, NULL}, t);
	else if (t->activations == ACTIVATIONS_TOKEN)
		add_rows(e, t, t->codes, t->scales, t->zeros, numbers);
	else
		add_node(e, "DynamicQuantizeLinear", fresh_name(e, t->name, "_QuantizeLinear"),
		         (const char *[]){floats, NULL, NULL},
		         (const char *[]){t->codes, t->scales, t->zeros}, NULL);
}

/* Names and adds the codes of t, their scales and zero points. floats, numbers: as in
 * add_made_codes. */
static void
add_codes(Edit *e, QuantizedTensor *t, const char *floats, const char *numbers)
{
	Ints shape = scale_shape(t);
	bool is_value = t->kind == QUANTIZED_ACTIVATION;

	t->codes = fresh_name(e, t->name, is_value ? "_QuantizeLinear_Output" : "_quantized");
	const char *base = t->kind == QUANTIZED_BIAS ? t->codes : t->name;
	t->scales = fresh_name(e, base, "_scale");
	t->zeros = fresh_name(e, base, "_zero_point");
	if (t->scale) {
		add_part(e, t, QUANTIZED_SCALE, t->scales, F32, &shape, t->scale);
		add_part(e, t, QUANTIZED_ZERO, t->zeros, t->type, &shape,
		         packed_ints(e, t->type, t->n_scales, t->zero));
	}
	if (is_value)
		add_made_codes(e, t, floats, numbers);
	else
		add_held_codes(e, t);
}

/* The graph's output `name` becomes the dequantized value. So the last node, which makes this value
 * in floats, gets another name for its result. */
static const char *
rename_made(Edit *e, const char *name, const char *ending)
{
	NodeProto *maker = e->nodes.at[e->nodes.n - 1];
	const char *made = fresh_name(e, name, ending);

	for (size_t i = 0; i < maker->n_output; i++)
		if (!strcmp(maker->output[i], name))
			maker->output[i] = (char *)(uintptr_t)made;
	return made;
}

/* Adds the nodes that quantize and dequantize t; sets t->output, which its readers read. */
static void
add_quantized(Edit *e, QuantizedTensor *t)
{
	const char *linear = fresh_name(e, t->name, "_DequantizeLinear");
	const char *floats = t->name, *numbers;

	if (t->maker) {
		floats = rename_made(e, t->name, "_QuantizeLinear_Input");
		numbers = t->name;
	} else {
		numbers = fresh_name(e, t->name, "_DequantizeLinear_Output");
	}
	t->output = numbers;
	if (!t->codes)
		add_codes(e, t, floats, numbers);
	bool by_row = t->kind == QUANTIZED_ACTIVATION && !t->scale &&
	              t->activations == ACTIVATIONS_TOKEN;
	if (!by_row)
		add_node(e, "DequantizeLinear", linear,
		         (const char *[]){t->codes, t->scales, t->zeros},
		         (const char *[]){numbers, NULL, NULL}, t);
}

static void
collect_names(Edit *e, const GraphProto *g)
{
	for (size_t i = 0; i < g->n_initializer; i++)
		strmap_put(e->names, g->initializer[i]->name, e);
	for (size_t i = 0; i < g->n_input; i++)
		strmap_put(e->names, g->input[i]->name, e);
	for (size_t i = 0; i < g->n_node; i++) {
		const NodeProto *p = g->node[i];
		if (p->name)
			strmap_put(e->names, p->name, e);
		for (size_t k = 0; k < p->n_output; k++)
			strmap_put(e->names, p->output[k], e);
		for (size_t k = 0; k < p->n_attribute; k++)
			if (p->attribute[k]->g)
				collect_names(e, p->attribute[k]->g);
	}
}

/* An input of a node that becomes quantized. */
typedef struct {
	QuantizedTensor *tensor;
	int input;
} Change;
typedef VEC(Change) Changes;

static void
collect_changes(Edit *e, const QuantizedTensors *list)
{
	for (int i = 0; i < list->n; i++) {
		QuantizedTensor *t = list->at[i];
		for (int k = 0; k < t->readers.n; k++) {
			uint64_t key = (uint64_t)(uintptr_t)t->readers.at[k].node, found;
			Changes *changes = NULL;
			if (!key) /* the reader is an output of the graph */
				continue;
			if (intmap_get(e->changed, key, &found))
				changes = (Changes *)(uintptr_t)found;
			else
				intmap_put(e->changed, key,
				           (uint64_t)(uintptr_t)(changes = NEW(e->arena, Changes)));
			vec_push(e->arena, changes, ((Change){t, t->readers.at[k].input}));
		}
	}
}

/* A copy of node p that reads the dequantized values; p itself if no input of p is quantized. */
static NodeProto *
with_inputs(Edit *e, NodeProto *p)
{
	uint64_t found;

	if (!intmap_get(e->changed, (uint64_t)(uintptr_t)p, &found))
		return p;
	const Changes *changes = (const Changes *)(uintptr_t)found;
	NodeProto *copy = arena_copy(e->arena, p, sizeof(*p));
	copy->input = arena_copy(e->arena, p->input, sizeof(char *) * p->n_input);
	for (int i = 0; i < changes->n; i++) {
		QuantizedTensor *t = changes->at[i].tensor;
		bool is_table = t->kind == QUANTIZED_WEIGHT && is_op(p, "Gather");
		if (is_table && !t->codes)
			add_codes(e, t, NULL, NULL);
		if (!is_table && !t->output)
			add_quantized(e, t);
		copy->input[changes->at[i].input] = (char *)(uintptr_t)(is_table ? t->codes
		                                                                 : t->output);
	}
	return copy;
}

/* The quantized table that p, a Gather, picks rows from; NULL: p reads no such table. */
static const QuantizedTensor *
table_of(const Edit *e, const NodeProto *p)
{
	uint64_t found;

	if (!is_op(p, "Gather") || !intmap_get(e->changed, (uint64_t)(uintptr_t)p, &found))
		return NULL;
	const Changes *changes = (const Changes *)(uintptr_t)found;
	for (int i = 0; i < changes->n; i++)
		if (changes->at[i].tensor->kind == QUANTIZED_WEIGHT)
			return changes->at[i].tensor;
	return NULL;
}

/* Replaces the last node by a copy whose outputs may be changed. */
static void
copy_last(Edit *e)
{
	NodeProto **last = &e->nodes.at[e->nodes.n - 1];
	NodeProto *copy = arena_copy(e->arena, *last, sizeof(**last));

	copy->output = arena_copy(e->arena, copy->output, sizeof(char *) * copy->n_output);
	*last = copy;
}

/* Dequantizes only the rows that Gather picked, never the whole table. */
static void
add_rows_of_table(Edit *e, const QuantizedTensor *t, const char *name)
{
	copy_last(e);
	const char *codes = rename_made(e, name, "_codes");
	add_node(e, "DequantizeLinear", fresh_name(e, name, "_DequantizeLinear"),
	         (const char *[]){codes, t->scales, t->zeros}, (const char *[]){name, NULL, NULL},
	         NULL);
}

static void
keep_initializers(Edit *e, const GraphProto *g)
{
	StrMap *read = strmap_new(e->arena);
	GraphProto edited = *g;

	edited.node = e->nodes.at;
	edited.n_node = (size_t)e->nodes.n;
	graph_count_readers(&edited, read);
	for (size_t i = 0; i < g->n_initializer; i++)
		if (strmap_get(read, g->initializer[i]->name))
			vec_push(e->arena, &e->initializers, g->initializer[i]);
}

/* Drops the graph's inputs whose default value was an initializer that is removed. Until IR version
 * 3 every initializer had an input of the same name. */
static void
drop_inputs(Edit *e, GraphProto *g)
{
	StrMap *kept = strmap_new(e->arena), *was = strmap_new(e->arena);
	ValueInfoProto **inputs = NEW_ARRAY(e->arena, ValueInfoProto *, (int64_t)g->n_input);
	size_t n = 0;

	for (int i = 0; i < e->initializers.n; i++)
		strmap_put(kept, e->initializers.at[i]->name, e);
	for (size_t i = 0; i < g->n_initializer; i++)
		strmap_put(was, g->initializer[i]->name, e);
	for (size_t i = 0; i < g->n_input; i++)
		if (!strmap_get(was, g->input[i]->name) || strmap_get(kept, g->input[i]->name))
			inputs[n++] = g->input[i];
	g->input = inputs;
	g->n_input = n;
}

/* Reports models that onnxruntime 1.27 cannot run on a CPU: onnxruntime fuses products and their
 * codes into operators that refuse these cases. */
static const struct {
	const char *lack, *runs, *hint;
} refused[] = {
	{"DequantizeLinear of 4-bit floats", "gradc and onnx's ReferenceEvaluator run the model",
         "--weight-type=s4 or f8e4m3fn runs there"},
	{"product of codes of 8-bit floats",
         "gradc runs the model, and so does onnxruntime with ORT_DISABLE_ALL",
         "--activation-type=none runs with its optimizations"},
	{"product of 8-bit codes with weights in blocks",
         "gradc runs the model, and so does onnxruntime with ORT_DISABLE_ALL",
         "--per-channel, or blocks of --weight-type=s4 with --activation-type=none, run with its optimizations"},
	{"product of 8-bit codes with a scale for each row",
         "gradc runs the model, and so does onnxruntime with ORT_DISABLE_ALL",
         "weights of 4 bits, or one scale for the tensor, run with its optimizations"},
};

void
model_quantize_warn(const QuantizedTensors *list, Diag *diag)
{
	enum { SMALL_FLOATS, FLOATS, BLOCKS, ROWS };
	bool has[COUNT(refused)] = {false}, codes = false, bytes = false;

	for (int i = 0; i < list->n; i++) {
		const QuantizedTensor *t = list->at[i];
		bool is_weight = t->kind == QUANTIZED_WEIGHT;
		bool is_byte = dtype_info[t->type].bits == 8;
		has[SMALL_FLOATS] |= dtype_is_float(t->type) && !is_byte;
		has[FLOATS] |= dtype_is_float(t->type);
		has[BLOCKS] |= is_weight && t->block && is_byte;
		has[ROWS] |= !is_weight && t->block;
		bytes |= is_weight && is_byte;
		codes |= t->kind == QUANTIZED_ACTIVATION && is_byte;
	}
	has[FLOATS] &= codes;
	has[BLOCKS] &= codes;
	has[ROWS] &= bytes;
	for (int i = 0; i < COUNT(refused); i++) {
		if (!has[i])
			continue;
		diag_warning(diag, "onnxruntime's CPU has no %s: %s", refused[i].lack,
		             refused[i].runs);
		diag_hint(diag, "%s", refused[i].hint);
		return;
	}
}

void
model_quantize_edit(Model *model, QuantizedTensors *list, int opset, QuantizedModel *out)
{
	enum { FREE_INITIALIZERS = 4, NEEDS_IR_9 = 19, NEEDS_IR_10 = 21, NEEDS_IR_11 = 23 };
	Edit e = {.model = model,
	          .arena = model->arena,
	          .names = strmap_new(model->arena),
	          .changed = intmap_new(model->arena),
	          .parts = intmap_new(model->arena)};
	ModelProto *m = &out->proto;
	GraphProto *g = &out->graph;

	*out = (QuantizedModel){
		.proto = *model->proto, .graph = *model->proto->graph, .parts = e.parts};
	m->graph = g;
	collect_names(&e, g);
	for (int i = 0; i < list->n; i++)
		list->at[i]->output = list->at[i]->codes = NULL;
	collect_changes(&e, list);
	IntMap *makers = intmap_new(e.arena);
	for (int i = 0; i < list->n; i++)
		if (list->at[i]->maker && list->at[i]->readers.n)
			intmap_put(makers, (uint64_t)(uintptr_t)list->at[i]->maker,
			           (uint64_t)(uintptr_t)list->at[i]);
	for (size_t i = 0; i < g->n_node; i++) {
		NodeProto *p = with_inputs(&e, g->node[i]);
		vec_push(e.arena, &e.nodes, p);
		uint64_t made;
		const QuantizedTensor *table = table_of(&e, g->node[i]);
		if (table)
			add_rows_of_table(&e, table, g->node[i]->output[0]);
		if (intmap_get(makers, (uint64_t)(uintptr_t)g->node[i], &made)) {
			copy_last(&e);
			add_quantized(&e, (QuantizedTensor *)(uintptr_t)made);
		}
	}
	keep_initializers(&e, g);
	drop_inputs(&e, g);
	opset = opset ? opset : model->opset;
	int64_t ir = opset >= NEEDS_IR_11   ? 11
	             : opset >= NEEDS_IR_10 ? 10
	             : opset >= NEEDS_IR_9  ? 9
	                                    : FREE_INITIALIZERS;
	m->ir_version = m->ir_version > ir ? m->ir_version : ir;
	g->node = e.nodes.at;
	g->n_node = (size_t)e.nodes.n;
	g->initializer = e.initializers.at;
	g->n_initializer = (size_t)e.initializers.n;
}

bool
model_quantize_write(Model *model, QuantizedTensors *list, int opset, const char *path, Diag *diag)
{
	QuantizedModel q;

	if (!model_quantize_opset(model, list, opset, diag))
		return false;
	model_quantize_edit(model, list, opset, &q);
	if (!model_take_data_in(model, &q.proto, diag))
		return false;
	size_t size = onnx__model_proto__get_packed_size(&q.proto);
	if (size > INT32_MAX) {
		model_error(model, diag, EXIT_UNSUPPORTED,
		            "the quantized model has %zu bytes: more than 2 GiB in one file", size);
		return false;
	}
	uint8_t *bytes = memory_get(size + 1);
	onnx__model_proto__pack(&q.proto, bytes);
	Status status = file_write(path, bytes, (int64_t)size);
	memory_free(bytes);
	return !diag_status(diag, status);
}

/* Quantization as an edit of the file's graph: QuantizeLinear and DequantizeLinear before what a product reads. What comes out is plain
 * ONNX, which is run, and trained, as any model that holds codes. For example, a Gemm with static activations:
 *
 *	x --------------------------- Gemm        x -- QuantizeLinear -- DequantizeLinear -- Gemm
 *	fc.weight ------------------- Gemm   ->   fc.weight_quantized -- DequantizeLinear -- Gemm
 *	fc.bias --------------------- Gemm        fc.bias_quantized ---- DequantizeLinear -- Gemm
 *
 * Names are those that onnxruntime's quantizer gives. */
#include "frontend/frontend_impl.h"

#include <string.h>

/* Products with a weight: inputs, and the axis of the weight whose places may each have a scale. */
typedef struct {
	const char *op;
	int x, weight, bias; /* bias -1: none */
	int (*channel)(const NodeProto *p, int rank);
	int (*inputs)(const NodeProto *p, int rank); /* the axis of the weight that is added up */
} ProductRow;

static int
channel_first(const NodeProto *p, int rank)
{
	(void)p, (void)rank;
	return 0;
}

static int
channel_second(const NodeProto *p, int rank)
{
	(void)p, (void)rank;
	return 1;
}

static int
channel_last(const NodeProto *p, int rank)
{
	(void)p;
	return rank - 1;
}

static int64_t
int_attribute(const NodeProto *p, const char *name, int64_t otherwise)
{
	const AttributeProto *a = node_attribute(p, name);

	return a && a->type == ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT ? a->i : otherwise;
}

static int
channel_gemm(const NodeProto *p, int rank)
{
	(void)rank;
	return int_attribute(p, "transB", 0) ? 0 : 1;
}

static int
inputs_gemm(const NodeProto *p, int rank)
{
	return !channel_gemm(p, rank);
}

static int
inputs_matmul(const NodeProto *p, int rank)
{
	(void)p;
	return rank - 2;
}

static const ProductRow products[] = {
	{"Conv", 0, 1, 2, channel_first, channel_second},
	{"ConvTranspose", 0, 1, 2, channel_second, channel_first},
	{"Gemm", 0, 1, 2, channel_gemm, inputs_gemm},
	{"MatMul", 0, 1, -1, channel_last, inputs_matmul},
};

typedef struct {
	Model *model;
	const QuantizeOptions *options;
	QuantizedTensors *out;
	Arena *arena;
	Diag *diag;
	StrMap *readers;  /* name -> how many inputs and outputs of the graph read it */
	StrMap *found[3]; /* by kind: name -> QuantizedTensor */
	StrMap *other; /* names of values of other types than f32, and of those that Constant nodes hold */
	int n_products, n_chosen, n_left;
} Find;

/* ---- what is quantized */
static void
count_readers(Find *f, const GraphProto *g)
{
	for (size_t i = 0; i < g->n_node; i++) {
		const NodeProto *p = g->node[i];
		for (size_t k = 0; k < p->n_input; k++) {
			uintptr_t n = (uintptr_t)strmap_get(f->readers, p->input[k]);
			strmap_put(f->readers, p->input[k], (void *)(n + 1));
		}
		for (size_t k = 0; k < p->n_attribute; k++)
			if (p->attribute[k]->g)
				count_readers(f, p->attribute[k]->g);
	}
	for (size_t i = 0; i < g->n_output; i++) {
		uintptr_t n = (uintptr_t)strmap_get(f->readers, g->output[i]->name);
		strmap_put(f->readers, g->output[i]->name, (void *)(n + 1));
	}
}

static QuantizedTensor *
add_tensor(Find *f, QuantizedKind kind, const char *name, NodeProto *reader, int input)
{
	QuantizedTensor *t = strmap_get(f->found[kind], name);

	if (!t) {
		t = NEW(f->arena, QuantizedTensor);
		*t = (QuantizedTensor){.kind = kind,
		                       .name = name,
		                       .node = node_location(reader),
		                       .axis = -1,
		                       .n_scales = 1};
		vec_push(f->arena, f->out, t);
		strmap_put(f->found[kind], name, t);
	}
	vec_push(f->arena, &t->readers, ((QuantizedReader){reader, input}));
	return t;
}

/* A float initializer; NULL: something else, or not f32 (reported). */
static const TensorProto *
float_initializer(Find *f, const NodeProto *p, const char *name)
{
	const TensorProto *t = strmap_get(f->model->initializers, name);

	if (!t || !is_float_type(t->data_type))
		return NULL;
	if (t->data_type == ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT)
		return t;
	model_error(f->model, f->diag, EXIT_UNSUPPORTED, "node %s: weight %s is not f32",
	            quoted(f->model, node_location(p)), quoted(f->model, name));
	diag_hint(f->diag, "convert the model to f32 first");
	return NULL;
}

static bool
load_numbers(Find *f, const TensorProto *t, QuantizedTensor *out)
{
	TensorData data;

	if (!tensor_load(f->model, t, false, &data, f->diag))
		return false;
	out->shape = out->group = (Ints){.n = data.rank};
	for (int i = 0; i < data.rank; i++)
		out->shape.at[i] = out->group.at[i] = data.dims[i];
	out->numbers = data.data;
	out->n = data.n;
	return true;
}

/* The groups of a weight: all, each place along `axis`, or blocks along the axis that a product adds up. */
static void
set_groups(QuantizedTensor *t, const QuantizeOptions *o, int channel, int inputs)
{
	int along = o->block ? inputs : channel;

	if ((!o->per_channel && !o->block) || t->shape.n < 2)
		return;
	t->axis = along;
	t->block = o->block;
	t->n_scales = 1;
	for (int i = 0; i < t->shape.n; i++) {
		bool is_axis = i == along;
		t->group.at[i] = o->block ? is_axis ? o->block : 1 : is_axis ? 1 : t->shape.at[i];
		t->n_scales *= t->group.at[i] ? (t->shape.at[i] - 1) / t->group.at[i] + 1 : 1;
	}
}

static QuantizedTensor *
add_weight(Find *f, NodeProto *p, const ProductRow *row)
{
	const TensorProto *proto = float_initializer(f, p, p->input[row->weight]);
	bool known = proto && strmap_get(f->found[QUANTIZED_WEIGHT], proto->name);

	if (!proto || proto->n_dims < 2)
		return NULL;
	QuantizedTensor *t = add_tensor(f, QUANTIZED_WEIGHT, proto->name, p, row->weight);
	if (known)
		return t;
	t->type = f->options->weight_type;
	if (!load_numbers(f, proto, t))
		return NULL;
	int inputs = row->inputs(p, t->shape.n);
	set_groups(t, f->options, row->channel(p, t->shape.n), inputs);
	if (t->shape.n == 2 && !int_attribute(p, "transA", 0)) {
		t->product_input = p->input[row->x];
		t->input_axis = inputs;
	}
	return t;
}

static void
add_bias(Find *f, NodeProto *p, const ProductRow *row, const QuantizedTensor *x,
         const QuantizedTensor *w)
{
	bool has = row->bias >= 0 && row->bias < (int)p->n_input && *p->input[row->bias];
	const TensorProto *proto = has ? float_initializer(f, p, p->input[row->bias]) : NULL;
	bool eight = dtype_info[f->options->weight_type].bits == 8 && !f->options->dynamic &&
	             !f->options->block;

	if (!proto || !x || !w || !eight || proto->n_dims != 1 ||
	    (uintptr_t)strmap_get(f->readers, proto->name) != 1 ||
	    (node_attribute(p, "beta") && node_attribute(p, "beta")->f != 1) ||
	    (node_attribute(p, "alpha") && node_attribute(p, "alpha")->f != 1) ||
	    (w->n_scales != 1 && w->n_scales != proto->dims[0]))
		return;
	QuantizedTensor *t = add_tensor(f, QUANTIZED_BIAS, proto->name, p, row->bias);
	t->type = S32;
	t->input = x;
	t->weight = w;
	if (!load_numbers(f, proto, t))
		return;
	if (w->n_scales > 1) {
		t->axis = 0;
		t->group.at[0] = 1;
		t->n_scales = w->n_scales;
	}
}

static void
note_type(Find *f, const ValueInfoProto *v)
{
	const Onnx__TypeProto__Tensor *t =
		v->type && v->type->value_case == ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE
			? v->type->tensor_type
			: NULL;

	if (t && t->elem_type && t->elem_type != ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT)
		strmap_put(f->other, v->name, f);
}

static void
note_types(Find *f, const GraphProto *g)
{
	for (size_t i = 0; i < g->n_input; i++)
		note_type(f, g->input[i]);
	for (size_t i = 0; i < g->n_value_info; i++)
		note_type(f, g->value_info[i]);
	for (size_t i = 0; i < g->n_node; i++)
		if (!strcmp(g->node[i]->op_type, "Constant") && g->node[i]->n_output)
			strmap_put(f->other, g->node[i]->output[0], f);
}

/* An activation: anything but a number that the file holds. */
static QuantizedTensor *
add_activation(Find *f, NodeProto *p, int input)
{
	const char *name = p->input[input];

	if (f->options->weights_only || strmap_get(f->model->initializers, name))
		return NULL;
	QuantizedTensor *t = add_tensor(f, QUANTIZED_ACTIVATION, name, p, input);
	t->type = f->options->activation_type;
	return t;
}

static bool
is_chosen(const QuantizeOptions *o, const char *name)
{
	bool chosen = !o->only || !*o->only;

	for (int i = 0; o->only && o->only[i]; i++)
		chosen |= glob_match(o->only[i], name);
	for (int i = 0; o->skip && o->skip[i]; i++)
		chosen &= !glob_match(o->skip[i], name);
	return chosen;
}

static const ProductRow *
product_row(const NodeProto *p)
{
	for (int i = 0; i < COUNT(products) && !*domain_of(p->domain); i++)
		if (!strcmp(products[i].op, p->op_type) && p->n_input > 1)
			return &products[i];
	return NULL;
}

static void
visit(Find *f, NodeProto *p)
{
	const ProductRow *row = product_row(p);

	if (!row)
		return;
	f->n_products++;
	if (!is_chosen(f->options, node_location(p)))
		return;
	f->n_chosen++;
	if (strmap_get(f->other, p->input[row->x]) || strmap_get(f->other, p->input[row->weight])) {
		f->n_left++;
		return;
	}
	QuantizedTensor *w = add_weight(f, p, row);
	if (f->options->weights_only && !w) {
		f->n_left++;
		return;
	}
	QuantizedTensor *x = add_activation(f, p, row->x);
	if (!w)
		add_activation(f, p, row->weight);
	add_bias(f, p, row, x, w);
}

/* A glob that no product fits is a misspelt name. */
static void
check_glob(const Find *f, const char *option, const char *glob)
{
	const GraphProto *g = f->model->proto->graph;
	Nearest nearest = nearest_open(glob);
	Text names = {0};
	bool found = false;

	for (size_t i = 0; i < g->n_node; i++) {
		const char *name = node_location(g->node[i]);
		if (!product_row(g->node[i]))
			continue;
		found |= glob_match(glob, name);
		nearest_offer(&nearest, name, nearest_distance(&nearest, name));
	}
	for (int k = 0; k < N_NEAREST && nearest.item[k]; k++)
		text_printf(&names, "%s%s", k ? ", " : "", quoted(f->model, nearest.item[k]));
	if (!found)
		diag_error(f->diag, EXIT_USAGE, "--%s=%s fits none of the %d products", option,
		           glob, f->n_products);
	if (!found && names.n)
		diag_hint(f->diag, "the nearest names are %s", names.at);
	nearest_close(&nearest);
	text_free(&names);
}

static void
check_globs(const Find *f, const char *option, const char *const *globs)
{
	for (; globs && *globs; globs++)
		check_glob(f, option, *globs);
}

/* Products that stay as they are. */
static void
warn_of_left(const Find *f)
{
	int inside = -f->n_products;

	for (int i = 0; i < f->model->nodes.n; i++)
		inside += product_row(f->model->nodes.at[i].proto) != NULL;
	if (f->n_left)
		diag_warning(f->diag, "%d of %d products stay as they are: %s", f->n_left,
		             f->n_chosen,
		             f->options->weights_only
		                     ? "they have no weight of f32 in an initializer on their right"
		                     : "their operands are not f32, or stand in Constant nodes");
	if (inside > 0)
		diag_warning(f->diag, "%d products in functions of the model stay as they are",
		             inside);
}

bool
model_quantize_find(Model *model, const QuantizeOptions *options, Arena *arena,
                    QuantizedTensors *out, Diag *diag)
{
	GraphProto *g = model->proto->graph;
	int before = diag_errors(diag);
	Find f = {.model = model,
	          .options = options,
	          .out = out,
	          .arena = arena,
	          .diag = diag,
	          .readers = strmap_new(arena),
	          .other = strmap_new(arena)};

	note_types(&f, g);
	for (int i = 0; i < COUNT(f.found); i++)
		f.found[i] = strmap_new(arena);
	count_readers(&f, g);
	for (size_t i = 0; i < g->n_node; i++)
		visit(&f, g->node[i]);
	warn_of_left(&f);
	check_globs(&f, "only", options->only);
	check_globs(&f, "skip", options->skip);
	if (diag_errors(diag) == before && out->n == 0)
		model_error(model, diag, EXIT_UNSUPPORTED,
		            "nothing to quantize: no Conv, ConvTranspose, Gemm or MatMul%s",
		            options->weights_only ? " with a weight" : "");
	return diag_errors(diag) == before;
}

/* ---- opsets */
static const struct {
	int opset;
	const char *what;
} forms[] = {{10, "codes of 8 bits"},
             {11, "scales computed from values"},
             {13, "a scale for each channel"},
             {21, "blocks, or codes of 4 or 16 bits"},
             {25, "codes of 2 bits"}};

static int
form_of(const QuantizedTensor *t)
{
	int bits = dtype_info[t->type].bits;

	bool is_dynamic = t->kind == QUANTIZED_ACTIVATION && !t->scale;

	return bits == 2                             ? 4
	       : bits == 4 || bits == 16 || t->block ? 3
	       : t->axis >= 0                        ? 2
	                                             : is_dynamic;
}

/* Operators that changed their meaning, not their inputs or attributes: until opset 12 they flatten, and take axis 1. */
static bool
changed_silently(const char *op, int from, int to)
{
	static const char *const ops[] = {"Softmax", "LogSoftmax", "Hardmax"};

	for (int i = 0; i < COUNT(ops); i++)
		if (!strcmp(ops[i], op))
			return from < 13 && to >= 13;
	return false;
}

/* Does the operator mean the same in both opsets? Of others with the same inputs, outputs and attributes newer versions add types. */
static bool
means_the_same(const NodeProto *p, int from, int to)
{
	const SchemaRow *a = schema_find(p->op_type, from), *b = schema_find(p->op_type, to);

	if (*domain_of(p->domain) || a == b)
		return true;
	return !changed_silently(p->op_type, from, to) &&
	       (a && b && a->min_in == b->min_in && a->max_in == b->max_in &&
	        a->max_out == b->max_out && a->required == b->required &&
	        !strcmp(a->attributes, b->attributes));
}

static bool
raise_opset(Model *model, int to, Diag *diag)
{
	ModelProto *m = model->proto;
	int before = diag_errors(diag);

	if (to < model->opset || to > NEWEST_OPSET) {
		diag_error(diag, EXIT_USAGE, "--opset=%d: need %d, the model's, to %d", to,
		           model->opset, NEWEST_OPSET);
		return false;
	}
	for (int i = 0; i < model->nodes.n && to != model->opset; i++) {
		const FlatNode *n = &model->nodes.at[i];
		if (!means_the_same(n->proto, model->opset, to))
			node_error(model, diag, n, EXIT_UNSUPPORTED,
			           "opset %d has another %s: convert the model first", to,
			           n->proto->op_type);
	}
	if (m->n_functions && to != model->opset)
		model_error(model, diag, EXIT_UNSUPPORTED,
		            "--opset: the model has functions of its own");
	for (size_t i = 0; i < m->n_opset_import; i++)
		if (!*domain_of(m->opset_import[i]->domain))
			m->opset_import[i]->version = to;
	return diag_errors(diag) == before;
}

static bool
check_opset(Model *model, const QuantizedTensors *list, int asked, Diag *diag)
{
	int form = 0;

	for (int i = 0; i < list->n; i++)
		form = form_of(list->at[i]) > form ? form_of(list->at[i]) : form;
	if (asked && !raise_opset(model, asked, diag))
		return false;
	int opset = asked ? asked : model->opset;
	if (opset >= forms[form].opset)
		return true;
	model_error(model, diag, EXIT_UNSUPPORTED,
	            "opset %d has no DequantizeLinear with %s: that is opset %d on", opset,
	            forms[form].what, forms[form].opset);
	diag_hint(diag,
	          "--opset=%d raises the model's opset, where its operators mean the same there",
	          forms[form].opset);
	return false;
}

/* ---- the edited graph */
typedef struct {
	Model *model;
	Arena *arena;
	StrMap *names;   /* every name of the graph */
	IntMap *changed; /* address of a node -> its Changes */
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

static void
add_initializer(Edit *e, const char *name, DType type, const Ints *shape, const void *data)
{
	TensorProto *t = NEW(e->arena, TensorProto);
	int64_t n = 1;

	onnx__tensor_proto__init(t);
	t->name = (char *)(uintptr_t)name;
	t->has_data_type = 1;
	t->data_type = tensor_onnx_type(type);
	t->n_dims = (size_t)shape->n;
	t->dims = arena_copy(e->arena, shape->at, sizeof(*t->dims) * (size_t)shape->n + 1);
	for (int i = 0; i < shape->n; i++)
		n *= shape->at[i];
	t->has_raw_data = 1;
	t->raw_data.len = (size_t)dtype_bytes(type, n);
	t->raw_data.data = (uint8_t *)(uintptr_t)data;
	vec_push(e->arena, &e->initializers, t);
}

static AttributeProto *
int_attribute_proto(Edit *e, const char *name, int64_t value)
{
	AttributeProto *a = NEW(e->arena, AttributeProto);

	onnx__attribute_proto__init(a);
	a->name = (char *)(uintptr_t)name;
	a->has_type = 1;
	a->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT;
	a->has_i = 1;
	a->i = value;
	return a;
}

/* A node of up to three inputs and outputs. Axis and block are those of t where it has them. */
static void
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
	if (t && t->axis >= 0) {
		p->attribute = arena_alloc(e->arena, 2 * sizeof(AttributeProto *));
		p->attribute[p->n_attribute++] = int_attribute_proto(e, "axis", t->axis);
		if (t->block)
			p->attribute[p->n_attribute++] = int_attribute_proto(e, "block_size",
			                                                     t->block);
	}
	vec_push(e->arena, &e->nodes, p);
}

static Ints
scale_shape(const QuantizedTensor *t)
{
	Ints shape = {0};

	if (t->axis < 0)
		return shape;
	if (!t->block)
		return (Ints){.n = 1, .at = {t->n_scales}};
	shape.n = t->shape.n;
	for (int i = 0; i < shape.n; i++)
		shape.at[i] = (t->shape.at[i] - 1) / t->group.at[i] + 1;
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

void
quantized_codes(const QuantizedTensor *t, void *out)
{
	int64_t at[MAX_RANK] = {0};

	for (int64_t k = 0; k < t->n; k++) {
		int64_t g = 0;
		for (int i = 0; i < t->shape.n; i++)
			g = g * ((t->shape.at[i] - 1) / t->group.at[i] + 1) +
			    at[i] / t->group.at[i];
		dtype_store_int(t->type, out, k,
		                dtype_quantize(t->type, F32, false, t->numbers[k], t->scale[g],
		                               t->zero[g]));
		for (int i = t->shape.n - 1; i >= 0 && ++at[i] == t->shape.at[i]; i--)
			at[i] = 0;
	}
}

/* A bias is rounded in double, as onnxruntime does it: its codes have 32 bits. */
static void
bias_codes(const QuantizedTensor *t, int32_t *out)
{
	for (int64_t k = 0; k < t->n; k++)
		out[k] = (int32_t)dtype_quantize(S32, F64, false, t->numbers[k],
		                                 t->scale[t->n_scales > 1 ? k : 0], 0);
}

/* The nodes that make the codes and numbers of t again; sets what its readers read. */
static void
add_quantized(Edit *e, QuantizedTensor *t)
{
	Ints shape = scale_shape(t);
	const char *linear = fresh_name(e, t->name, "_DequantizeLinear");
	const char *numbers = fresh_name(e, t->name, "_DequantizeLinear_Output");
	const char *codes = fresh_name(e, t->name,
	                               t->kind == QUANTIZED_ACTIVATION ? "_QuantizeLinear_Output"
	                                                               : "_quantized");
	const char *base = t->kind == QUANTIZED_BIAS ? codes : t->name;
	const char *scale = fresh_name(e, base, "_scale"),
		   *zero = fresh_name(e, base, "_zero_point");

	t->output = numbers;
	if (t->scale) {
		add_initializer(e, scale, F32, &shape, t->scale);
		add_initializer(e, zero, t->type, &shape,
		                packed_ints(e, t->type, t->n_scales, t->zero));
	}
	if (t->kind == QUANTIZED_ACTIVATION && t->scale) {
		add_node(e, "QuantizeLinear", fresh_name(e, t->name, "_QuantizeLinear"),
		         (const char *[]){t->name, scale, zero},
		         (const char *[]){codes, NULL, NULL}, t);
	} else if (t->kind == QUANTIZED_ACTIVATION) {
		add_node(e, "DynamicQuantizeLinear", fresh_name(e, t->name, "_QuantizeLinear"),
		         (const char *[]){t->name, NULL, NULL},
		         (const char *[]){codes, scale, zero}, NULL);
	} else {
		int32_t *wide = arena_alloc(
			e->arena, (size_t)(t->kind == QUANTIZED_BIAS ? 4 * t->n
		                                                     : dtype_bytes(t->type, t->n)) +
					  4);
		if (t->kind == QUANTIZED_BIAS)
			bias_codes(t, wide);
		else
			quantized_codes(t, wide);
		add_initializer(e, codes, t->type, &t->shape, wide);
	}
	add_node(e, "DequantizeLinear", linear, (const char *[]){codes, scale, zero},
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

/* What a node reads quantized. */
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
			if (intmap_get(e->changed, key, &found))
				changes = (Changes *)(uintptr_t)found;
			else
				intmap_put(e->changed, key,
				           (uint64_t)(uintptr_t)(changes = NEW(e->arena, Changes)));
			vec_push(e->arena, changes, ((Change){t, t->readers.at[k].input}));
		}
	}
}

/* A copy of a node that reads numbers made of codes. */
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
		if (!t->output)
			add_quantized(e, t);
		copy->input[changes->at[i].input] = (char *)(uintptr_t)t->output;
	}
	return copy;
}

/* Tensors in files beside the model come into the new one. */
static TensorProto *
with_data(Edit *e, TensorProto *t, Diag *diag)
{
	TensorData data;

	if (!tensor_is_external(t))
		return t;
	if (!tensor_load(e->model, t, false, &data, diag))
		return NULL;
	t = arena_copy(e->arena, t, sizeof(*t));
	t->has_data_location = 0;
	t->n_external_data = 0;
	t->has_raw_data = 1;
	t->raw_data.len = (size_t)dtype_bytes(data.dtype, data.n);
	t->raw_data.data = (uint8_t *)(uintptr_t)data.data;
	return t;
}

static bool
keep_initializers(Edit *e, const GraphProto *g, Diag *diag)
{
	StrMap *read = strmap_new(e->arena);
	GraphProto edited = *g;
	Find f = {.readers = read};

	edited.node = e->nodes.at;
	edited.n_node = (size_t)e->nodes.n;
	count_readers(&f, &edited);
	for (size_t i = 0; i < g->n_initializer; i++) {
		const char *name = g->initializer[i]->name;
		TensorProto *t = strmap_get(read, name) ? with_data(e, g->initializer[i], diag)
		                                        : NULL;
		if (!t && strmap_get(read, name))
			return false;
		if (t)
			vec_push(e->arena, &e->initializers, t);
	}
	return true;
}

/* Inputs with values of their own, until IR 3 all initializers: those of initializers that are gone go. */
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

bool
model_quantize_write(Model *model, QuantizedTensors *list, int opset, const char *path, Diag *diag)
{
	enum { FREE_INITIALIZERS = 4, NEEDS_IR_10 = 21, NEEDS_IR_11 = 23 };
	ModelProto m = *model->proto;
	GraphProto g = *m.graph;
	Edit e = {.model = model,
	          .arena = model->arena,
	          .names = strmap_new(model->arena),
	          .changed = intmap_new(model->arena)};

	if (!check_opset(model, list, opset, diag))
		return false;
	collect_names(&e, m.graph);
	collect_changes(&e, list);
	for (size_t i = 0; i < g.n_node; i++) {
		NodeProto *p = with_inputs(&e, g.node[i]);
		vec_push(e.arena, &e.nodes, p);
	}
	if (!keep_initializers(&e, &g, diag))
		return false;
	drop_inputs(&e, &g);
	opset = opset ? opset : model->opset;
	int64_t ir = opset >= NEEDS_IR_11 ? 11 : opset >= NEEDS_IR_10 ? 10 : FREE_INITIALIZERS;
	m.ir_version = m.ir_version > ir ? m.ir_version : ir;
	g.node = e.nodes.at;
	g.n_node = (size_t)e.nodes.n;
	g.initializer = e.initializers.at;
	g.n_initializer = (size_t)e.initializers.n;
	m.graph = &g;
	size_t size = onnx__model_proto__get_packed_size(&m);
	if (size > INT32_MAX) {
		model_error(model, diag, EXIT_UNSUPPORTED,
		            "the quantized model has %zu bytes: more than 2 GiB in one file", size);
		return false;
	}
	uint8_t *bytes = memory_get(size + 1);
	onnx__model_proto__pack(&m, bytes);
	Status status = file_write(path, bytes, (int64_t)size);
	memory_free(bytes);
	return !diag_status(diag, status);
}

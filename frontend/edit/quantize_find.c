/* Finds the tensors that `gradc quantize` would store as codes (small integers with a scale):
 * weights of products (matrix products and convolutions), the products' other operands, and their
 * biases. */
#include "frontend/edit/edit.h"

#include <string.h>

typedef VEC(QuantizedReader) CodeReaders;
/* May the table that a Gather picks rows from become codes? */
typedef enum { TABLE_NOT_JUDGED, TABLE_TAKES_CODES, TABLE_STAYS } TableUse;
typedef struct {
	Model *model;
	const QuantizeOptions *options;
	QuantizedTensors *out;
	Arena *arena;
	Diag *diag;
	Neighbours all;
	ValueTypes types;
	StrMap *found[3]; /* per kind: name -> QuantizedTensor */
	StrMap *made;     /* names of results of Constant and DequantizeLinear nodes */
	StrMap *readers;  /* name -> CodeReaders in the main graph */
	StrMap *results;  /* names of the graph's outputs */
	StrMap *tables;   /* name of a table whose readers were judged -> its TableUse */
	int n_products, n_chosen, n_left;
} Find;

/* ---- tensors to quantize */
static QuantizedTensor *
add_tensor(Find *f, QuantizedKind kind, const char *name, NodeProto *reader, int input)
{
	QuantizedTensor *t = strmap_get(f->found[kind], name);

	if (!t) {
		t = NEW(f->arena, QuantizedTensor);
		*t = (QuantizedTensor){.kind = kind,
		                       .number = f->out->n,
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

/* ---- weights */
/* The initializer that an operand is made from, directly or by Identity and Transpose nodes. These
 * nodes must have no other readers. */
typedef struct {
	const TensorProto *proto; /* NULL: the operand is not an initializer */
	bool is_shared;           /* a node in between has other readers */
	NodeProto *reader;        /* node that reads the initializer as its input `input` */
	int input;
	Ints order; /* order[i]: the initializer's axis for the operand's axis i */
} Source;

/* order[i] = perm[order[i]]; false: perm is not a permutation of these axes. */
static bool
permute(Ints *order, const NodeProto *transpose)
{
	const AttributeProto *perm = node_attribute(transpose, "perm");

	for (int i = 0; i < order->n; i++) {
		int64_t axis = order->at[i];
		if (perm && (perm->n_ints != (size_t)order->n || axis >= order->n))
			return false;
		order->at[i] = perm ? perm->ints[axis] : order->n - 1 - axis;
		if (order->at[i] < 0 || order->at[i] >= order->n)
			return false;
	}
	return true;
}

/* Walks from the operand to the initializer twice: the first walk finds the initializer's rank, the
 * second applies the Transpose nodes, which need this rank. */
static Source
find_source(const Find *f, NodeProto *p, int input)
{
	enum { MOST_STEPS = 8 };
	NodeProto *way[MOST_STEPS];
	Source s = {.reader = p, .input = input};
	int n = 0;

	for (;; n++) {
		const char *name = s.reader->input[s.input];
		const TensorProto *t = strmap_get(f->model->initializers, name);
		if (t) {
			s.proto = is_float_type(t->data_type) ? t : NULL;
			break;
		}
		NodeProto *maker = maker_of(&f->all, name);
		bool moves = maker && maker->n_input == 1 &&
		             (is_op(maker, "Identity") || is_op(maker, "Transpose"));
		s.is_shared = moves && count_readers(&f->all, name) != 1;
		if (!moves || n == MOST_STEPS || s.is_shared)
			return s;
		way[n] = s.reader = maker;
		s.input = 0;
	}
	s.order.n = s.proto && s.proto->n_dims <= MAX_RANK ? (int)s.proto->n_dims : 0;
	for (int i = 0; i < s.order.n; i++)
		s.order.at[i] = i;
	for (int i = 0; i < n && s.proto; i++)
		if (is_op(way[i], "Transpose") && !permute(&s.order, way[i]))
			s.proto = NULL;
	return s;
}

/* The initializer's axes: *channel is the axis of outputs, *inputs the axis that the product sums
 * over. */
static void
source_axes(const Source *from, const NodeProto *p, const Product *product, int *channel,
            int *inputs)
{
	product_axes(product, p, from->order.n, channel, inputs);
	*channel = (int)from->order.at[*channel];
	*inputs = (int)from->order.at[*inputs];
}

/* Weights must be f32, for their scales are f32. */
static bool
is_f32(Find *f, const NodeProto *p, const TensorProto *t)
{
	if (t->data_type == ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT)
		return true;
	model_error(f->model, f->diag, EXIT_UNSUPPORTED, "node %s: weight %s is not f32",
	            quoted(f->model, node_location(p)), quoted(f->model, t->name));
	diag_hint(f->diag, "convert the model to f32 first");
	return false;
}

static bool
load_numbers(Find *f, const TensorProto *t, QuantizedTensor *out)
{
	TensorData data;

	if (!tensor_load(f->model, t, f->options->shapes_only, &data, f->diag))
		return false;
	out->shape = out->group = (Ints){.n = data.rank};
	for (int i = 0; i < data.rank; i++) {
		out->shape.at[i] = data.dims[i];
		out->group.at[i] = data.dims[i] ? data.dims[i] : 1;
	}
	out->numbers = data.data;
	out->n = data.n;
	return true;
}

/* Sets the groups that share a scale: the whole weight, each index of the channel axis, or blocks
 * along the axis that the product sums over. */
static void
set_groups(QuantizedTensor *t, const QuantizeOptions *o, int channel, int inputs)
{
	if ((!o->per_channel && !o->block) || t->shape.n < 2)
		return;
	int64_t whole = t->shape.at[inputs] ? t->shape.at[inputs] : 1;
	t->axis = o->block ? inputs : channel;
	t->block = o->block < whole ? o->block : whole;
	t->block = o->block ? t->block : 0;
	for (int i = 0; i < t->shape.n && o->block; i++)
		t->group.at[i] = 1;
	t->group.at[t->axis] = o->block ? t->block : 1;
	Groups groups = quantized_groups(t);
	t->n_scales = groups_count(&groups);
}

/* Handles a second product that sums over another axis (`inputs`) of the weight than the first. A
 * scale per output channel of one product would be a scale per input of the other product. But
 * onnxruntime's integer products accept only scales per output channel. So the weight gets one
 * scale. If the weight has blocks, it keeps the blocks of the first product, because no integer
 * product takes blocks anyway. */
static void
settle_axes(Find *f, const NodeProto *p, QuantizedTensor *t, int inputs)
{
	if (t->axis < 0 || t->input_axis == inputs)
		return;
	if (!t->block) {
		t->axis = -1;
		t->group = t->shape;
		for (int i = 0; i < t->shape.n; i++)
			t->group.at[i] = t->shape.at[i] ? t->shape.at[i] : 1;
		t->n_scales = 1;
	}
	if (f->options->quiet)
		return;
	diag_warning(
		f->diag, "weight %s: node %s sums over its axis %d, node %s over its axis %d: %s",
		quoted(f->model, t->name), quoted(f->model, t->node), t->input_axis,
		quoted(f->model, node_location(p)), inputs,
		t->block ? "its blocks lie along the first axis" : "the weight gets one scale");
	diag_hint(
		f->diag, "%s",
		!t->block ? "--skip leaves one of the nodes out; the other gets a scale per channel"
		: f->options->divides
			? "one scale for the tensor suits both: -tensor"
			: "one scale for the tensor suits both; --skip leaves one of the nodes out");
}

static QuantizedTensor *
add_weight(Find *f, NodeProto *p, const Product *product, const Source *from)
{
	const TensorProto *proto = from->proto;
	bool is_right = product->weight == 1;
	int channel, inputs;

	if (!proto || proto->n_dims < 2 || !is_f32(f, p, proto))
		return NULL;
	bool known = strmap_get(f->found[QUANTIZED_WEIGHT], proto->name);
	QuantizedTensor *t = add_tensor(f, QUANTIZED_WEIGHT, proto->name, from->reader,
	                                from->input);
	vec_push(f->arena, &t->products, ((QuantizedReader){p, product->weight}));
	t->product = known || !is_right ? NULL : p;
	if (known && t->shape.n == 0) /* its numbers are missing, which was reported */
		return NULL;
	t->type = f->options->weight_type;
	if (!known && !load_numbers(f, proto, t))
		return NULL;
	source_axes(from, p, product, &channel, &inputs);
	if (known) {
		settle_axes(f, p, t, inputs);
		return t;
	}
	int64_t n_inputs = t->shape.at[inputs];
	if (f->options->divides && f->options->block && n_inputs % f->options->block != 0) {
		model_error(
			f->model, f->diag, EXIT_USAGE,
			"node %s: blocks of %lld do not divide axis %d of weight %s, of %lld elements",
			quoted(f->model, node_location(p)), (long long)f->options->block, inputs,
			quoted(f->model, proto->name), (long long)n_inputs);
		diag_hint(f->diag, "`skip = NODE` in a file of settings leaves it out");
		return NULL;
	}
	t->input_axis = inputs;
	t->channel_axis = channel;
	set_groups(t, f->options, t->channel_axis, inputs);
	if (t->shape.n == 2 && !node_int(p, "transA", 0) && is_right)
		t->product_input = p->input[0];
	return t;
}

/* Adds a bias of zeros to a product that may have a bias, as input `bias`, and lacks it. */
static void
add_zeros(Find *f, NodeProto *p, int bias, const QuantizedTensor *w)
{
	bool has = bias < (int)p->n_input && *p->input[bias];
	int64_t group = node_int(p, "group", 1), inputs = w->shape.at[w->input_axis];
	int64_t n = w->shape.at[w->channel_axis];

	if (has || group < 1)
		return;
	if (is_op(p, "ConvTranspose")) {
		if (inputs % group != 0)
			return;
		n *= group;
	}
	const char *name = edit_add_initializer(f->model, w->name, "_bias", F32,
	                                        &(Ints){.n = 1, .at = {n}},
	                                        NEW_ARRAY(f->arena, float, n));
	strmap_put(f->all.counts, name, (void *)1);
	edit_node(f->model, p);
	if (bias < (int)p->n_input)
		p->input[bias] = (char *)(uintptr_t)name;
	else
		p->input = edit_grown(f->model, p->input, p->n_input++, name);
}

static void
add_bias(Find *f, NodeProto *p, int bias, const QuantizedTensor *x, const QuantizedTensor *w)
{
	bool has = bias < (int)p->n_input && *p->input[bias];
	const TensorProto *proto = has ? strmap_get(f->model->initializers, p->input[bias]) : NULL;
	bool eight = dtype_info[f->options->weight_type].bits == 8 &&
	             !dtype_is_float(f->options->weight_type) &&
	             !dtype_is_float(f->options->activation_type) &&
	             f->options->activations == ACTIVATIONS_STATIC && !f->options->block &&
	             !f->options->keep_bias;

	if (!proto || !x || !w || !eight || proto->n_dims != 1 || !is_f32(f, p, proto) ||
	    count_readers(&f->all, proto->name) != 1 ||
	    (node_attribute(p, "beta") && node_attribute(p, "beta")->f != 1) ||
	    (node_attribute(p, "alpha") && node_attribute(p, "alpha")->f != 1) ||
	    (w->n_scales != 1 && w->n_scales != proto->dims[0]))
		return;
	QuantizedTensor *t = add_tensor(f, QUANTIZED_BIAS, proto->name, p, bias);
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
note_made(Find *f, const GraphProto *g)
{
	for (size_t i = 0; i < g->n_node; i++)
		if (g->node[i]->n_output &&
		    (is_op(g->node[i], "Constant") || is_op(g->node[i], "DequantizeLinear") ||
		     is_op(g->node[i], "com.microsoft.DequantizeLinear")))
			strmap_put(f->made, g->node[i]->output[0], f);
}

/* Adds an activation: any operand that is not a constant of the file. row: its row_length, for
 * --activation-type=token. */
static QuantizedTensor *
add_activation(Find *f, NodeProto *p, int input, int64_t row)
{
	const char *name = p->input[input];

	if (f->options->activations == ACTIVATIONS_FLOAT ||
	    strmap_get(f->model->initializers, name))
		return NULL;
	QuantizedTensor *t = add_tensor(f, QUANTIZED_ACTIVATION, name, p, input);
	vec_push(f->arena, &t->products, ((QuantizedReader){p, input}));
	t->type = f->options->activation_type;
	bool known = t->readers.n > 1 && t->activations == ACTIVATIONS_DYNAMIC;
	t->activations = f->options->activations;
	/* if one reader needs a single scale for the tensor, all readers use this scale */
	if (t->activations == ACTIVATIONS_TOKEN && (known || !row))
		t->activations = ACTIVATIONS_DYNAMIC;
	t->block = t->activations == ACTIVATIONS_TOKEN ? row : 0;
	t->may_be_vector = t->block && !is_op(p, "Gemm") && !strmap_get(f->types.shaped, name);
	return t;
}

void
quantized_is_vector(QuantizedTensor *t)
{
	t->activations = ACTIVATIONS_DYNAMIC;
	t->block = 0;
}

/* Quantizes the result of a convolution, too, so that onnxruntime computes the convolution in
 * integers. If a Relu or Clip follows, which integer kernels include, its result is quantized
 * instead. All readers of the result read its codes; if the result is an output of the graph, the
 * output is the dequantized codes. */
static void
add_result(Find *f, NodeProto *conv)
{
	const char *name = conv->output[0];
	NodeProto *maker = conv, *next = only_reader_of(&f->all, name);

	if ((is_op(next, "Relu") || is_op(next, "Clip")) && next->input[0] &&
	    !strmap_get(f->results, name) && !strcmp(next->input[0], name)) {
		maker = next;
		name = next->output[0];
	}
	const CodeReaders *readers = strmap_get(f->readers, name);
	bool given = strmap_get(f->results, name);
	if (!given && !readers)
		return;
	QuantizedTensor *t = strmap_get(f->found[QUANTIZED_ACTIVATION], name);
	if (t)
		t->readers.n = 0; /* all readers are added below */
	for (int i = 0; readers && i < readers->n; i++)
		t = add_tensor(f, QUANTIZED_ACTIVATION, name, readers->at[i].node,
		               readers->at[i].input);
	if (!t) {
		t = add_tensor(f, QUANTIZED_ACTIVATION, name, conv, 0);
		t->readers.n = 0;
	}
	if (given)
		vec_push(f->arena, &t->readers, ((QuantizedReader){NULL, 0}));
	t->type = f->options->activation_type;
	t->activations = f->options->activations;
	t->maker = given ? maker : NULL;
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

/* How many operands of the operator may be its weight. If it has a bias, only the right operand may:
 * the bias has a number for each output of that operand. */
static int
count_products(const OperatorFacts *facts)
{
	int n = 0;

	while (n < MAX_PRODUCTS && facts->products[n].result)
		n++;
	return facts->bias && n > 1 ? 1 : n;
}

static bool
is_product(const Find *f, const NodeProto *p)
{
	return p->n_input > 1 && count_products(operator_facts(f->model, p)) > 0;
}

/* The operator's first product whose weight is an initializer, with the weight's source; else its
 * first product. */
static const Product *
find_product(const Find *f, NodeProto *p, const OperatorFacts *facts, Source *from)
{
	for (int i = 0; i < count_products(facts); i++) {
		*from = find_source(f, p, facts->products[i].weight);
		if (from->proto || from->is_shared)
			return &facts->products[i];
	}
	return &facts->products[0];
}

/* The length of a row of the operand that the weight multiplies, if each row may get a scale of its
 * own; else 0. A product of two activations has no tokens: its right operand's rows may run along
 * the sequence. A vector is one row. */
static int64_t
row_length(const Find *f, const NodeProto *p, const Product *product, const Source *from,
           const QuantizedTensor *w)
{
	int channel, inputs;

	if (product->x_inputs != -1 || !w || node_int(p, "transA", 0) ||
	    strmap_get(f->types.vectors, p->input[!product->weight]))
		return 0;
	source_axes(from, p, product, &channel, &inputs);
	return from->proto->dims[inputs];
}

static void
visit(Find *f, NodeProto *p)
{
	Source from = {0};

	if (!is_product(f, p))
		return;
	f->n_products++;
	if (!is_chosen(f->options, node_location(p)))
		return;
	f->n_chosen++;
	const OperatorFacts *facts = operator_facts(f->model, p);
	const Product *product = find_product(f, p, facts, &from);
	bool is_other = false;
	for (int i = 0; i < 2; i++)
		is_other |= strmap_get(f->made, p->input[i]) ||
		            strmap_get(f->types.other, p->input[i]);
	bool is_vector = from.proto && from.proto->n_dims < 2;
	bool is_empty = false;
	for (size_t i = 0; from.proto && i < from.proto->n_dims; i++)
		is_empty |= from.proto->dims[i] == 0;
	if (is_other || is_vector || is_empty || from.is_shared ||
	    (f->options->activations == ACTIVATIONS_FLOAT && !from.proto)) {
		f->n_left++;
		return;
	}
	QuantizedTensor *w = add_weight(f, p, product, &from);
	QuantizedTensor *x = add_activation(f, p, !product->weight,
	                                    row_length(f, p, product, &from, w));
	if (!w)
		add_activation(f, p, product->weight, 0);
	if (w && facts->bias && f->options->add_bias)
		add_zeros(f, p, facts->bias, w);
	if (facts->bias)
		add_bias(f, p, facts->bias, x, w);
	if (f->options->results && x && w && is_op(p, "Conv"))
		add_result(f, p);
}

static bool
picks_rows(const QuantizedReader *reader)
{
	return reader->input == 0 && is_op(reader->node, "Gather") &&
	       node_int(reader->node, "axis", 0) == 0;
}

/* Can all readers of the table read codes? Gather nodes that pick rows can. Products can if the
 * table is quantized for them already. */
static bool
readers_take_codes(const Find *f, const TensorProto *table)
{
	const CodeReaders *readers = strmap_get(f->readers, table->name);
	const QuantizedTensor *t = strmap_get(f->found[QUANTIZED_WEIGHT], table->name);
	int n = t ? t->readers.n : 0;

	for (int i = 0; readers && i < readers->n; i++)
		n += picks_rows(&readers->at[i]);
	return n == count_readers(&f->all, table->name);
}

/* Judges a table once, before its first Gather node is added as a reader: after that,
 * readers_take_codes would count the node twice. */
static bool
table_takes_codes(Find *f, const TensorProto *table)
{
	TableUse use = (TableUse)(uintptr_t)strmap_get(f->tables, table->name);

	if (use == TABLE_NOT_JUDGED) {
		use = readers_take_codes(f, table) ? TABLE_TAKES_CODES : TABLE_STAYS;
		strmap_put(f->tables, table->name, (void *)(uintptr_t)use);
	}
	return use == TABLE_TAKES_CODES;
}

/* Quantizes a table that Gather picks rows from, with one scale for the whole table. If products
 * also read the table with a scale per channel, the products keep these scales, and Gather reads
 * floats. */
static void
add_table(Find *f, NodeProto *p)
{
	const TensorProto *proto = strmap_get(f->model->initializers, p->input[0]);
	QuantizedTensor *t = proto ? strmap_get(f->found[QUANTIZED_WEIGHT], proto->name) : NULL;

	if (!proto || proto->data_type != ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT ||
	    proto->n_dims < 2 || node_int(p, "axis", 0) != 0 || (t && t->axis >= 0) ||
	    !is_chosen(f->options, node_location(p)) || !table_takes_codes(f, proto))
		return;
	bool is_new = !t;
	t = add_tensor(f, QUANTIZED_WEIGHT, proto->name, p, 0);
	t->product = NULL;
	t->product_input = NULL;
	if (!is_new)
		return;
	t->type = f->options->weight_type;
	t->channel_axis = 1;
	if (!load_numbers(f, proto, t))
		t->readers.n = 0;
}

static void
note_readers(Find *f, const GraphProto *g)
{
	for (size_t i = 0; i < g->n_node; i++)
		for (size_t k = 0; k < g->node[i]->n_input; k++) {
			const char *name = g->node[i]->input[k];
			CodeReaders *readers = strmap_get(f->readers, name);
			if (!readers && *name)
				strmap_put(f->readers, name, readers = NEW(f->arena, CodeReaders));
			if (readers)
				vec_push(f->arena, readers,
				         ((QuantizedReader){g->node[i], (int)k}));
		}
	for (size_t i = 0; i < g->n_output; i++)
		strmap_put(f->results, g->output[i]->name, f);
}

/* Reports a glob that matches no product: it must be a misspelt name. */
static void
check_glob(const Find *f, const char *option, const char *glob)
{
	const GraphProto *g = f->model->proto->graph;
	Nearest nearest = nearest_open(glob);
	Text names = {0};
	bool found = false;

	for (size_t i = 0; i < g->n_node; i++) {
		const char *name = node_location(g->node[i]);
		if (!is_product(f, g->node[i]) &&
		    !(f->options->tables && is_op(g->node[i], "Gather")))
			continue;
		found |= glob_match(glob, name);
		nearest_offer(&nearest, name, nearest_distance(&nearest, name));
	}
	for (int k = 0; k < N_NEAREST && nearest.item[k]; k++)
		text_printf(&names, "%s%s", k ? ", " : "", quoted(f->model, nearest.item[k]));
	if (!found)
		diag_error(f->diag, EXIT_USAGE, "--%s=%s matches none of the %d products", option,
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

static int
products_inside(const Find *f, const GraphProto *g)
{
	int n = 0;

	for (size_t i = 0; i < g->n_node; i++)
		for (size_t k = 0; k < g->node[i]->n_attribute; k++) {
			const GraphProto *inner = g->node[i]->attribute[k]->g;
			for (size_t j = 0; inner && j < inner->n_node; j++)
				n += is_product(f, inner->node[j]);
			n += inner ? products_inside(f, inner) : 0;
		}
	return n;
}

/* Warns of products that stay in floats. */
static void
warn_of_left(const Find *f)
{
	int inside = products_inside(f, f->model->proto->graph) - f->n_products;

	for (int i = 0; i < f->model->nodes.n; i++)
		inside += is_product(f, f->model->nodes.at[i].proto);
	if (f->n_left)
		diag_warning(
			f->diag, "%d of %d products are not quantized: %s", f->n_left, f->n_chosen,
			f->options->activations == ACTIVATIONS_FLOAT
				? "their weight is not an f32 matrix in an initializer"
				: "an operand is not f32, is a vector, comes from a Constant node, is "
				  "transposed for several readers, or is made of codes already");
	if (inside > 0)
		diag_warning(
			f->diag,
			"%d products in functions and subgraphs of the model are not quantized",
			inside);
}

static void
report_nothing(Find *f)
{
	if (f->n_products == 0 || f->n_chosen > f->n_left)
		model_error(f->model, f->diag, EXIT_UNSUPPORTED,
		            "nothing to quantize: no Conv, ConvTranspose, Gemm or MatMul%s",
		            f->options->activations == ACTIVATIONS_FLOAT ? " with a weight" : "");
	else if (f->n_chosen == 0)
		model_error(f->model, f->diag, EXIT_UNSUPPORTED,
		            "nothing to quantize: none of the %d products is chosen",
		            f->n_products);
	else
		model_error(f->model, f->diag, EXIT_UNSUPPORTED,
		            "nothing to quantize: %d of %d products cannot be quantized, see above",
		            f->n_left, f->n_chosen);
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
	          .all = neighbours_of(g, arena),
	          .types = value_types_of(model, g, arena),
	          .made = strmap_new(arena),
	          .readers = strmap_new(arena),
	          .results = strmap_new(arena),
	          .tables = strmap_new(arena)};

	note_made(&f, g);
	note_readers(&f, g);
	for (int i = 0; i < COUNT(f.found); i++)
		f.found[i] = strmap_new(arena);
	for (size_t i = 0; i < g->n_node; i++)
		visit(&f, g->node[i]);
	for (size_t i = 0; options->tables && i < g->n_node; i++)
		if (is_op(g->node[i], "Gather") && g->node[i]->n_input == 2)
			add_table(&f, g->node[i]);
	if (!options->quiet)
		warn_of_left(&f);
	check_globs(&f, "only", options->only);
	check_globs(&f, "skip", options->skip);
	if (diag_errors(diag) == before && out->n == 0)
		report_nothing(&f);
	return diag_errors(diag) == before;
}

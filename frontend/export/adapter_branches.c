/* Writes low-rank adapters (LoRA) into the exported model. A node that reads an adapted weight gets
 * a branch: the same node with the adapter's first matrix in the weight's place, then a product
 * with the second matrix. For example, a Gemm y = x w' with scale 2:
 *
 *   x -- Gemm(w) -- y        x -- Gemm(w) ------------------------------------- Add -- y
 *                       ->      -- Gemm(lora_A) -- MatMul(lora_B') -- Mul(2) ---/
 *
 * With learned magnitudes (DoRA) the sum is multiplied by magnitude / norm per output, which is
 * computed at export; the bias is added afterwards. The weight keeps its name and numbers. Nodes
 * that read the weight through Identity, Cast or Transpose, or that read it quantized (through
 * DequantizeLinear), get branches, too. Operators that are neither products nor Gather cannot have
 * a branch. */
#include "frontend/export/branches.h"
#include "frontend/import/import.h"

#include <string.h>

/* A value that holds an adapted weight: its axis i is the weight's axis order.at[i]. */
typedef struct {
	const Adapter *adapter;
	DType dtype; /* type of the adapter in the file */
	Ints order;
} Alias;

typedef struct {
	const Module *m;
	Model *model;
	const Repairs *repairs;
	Arena *arena;
	StrMap *aliases; /* name of a value -> Alias */
	StrMap *names;   /* all names in the graph */
	StrMap *tensors; /* "NAME axes" -> name of an added initializer */
	IntMap *holes;   /* address of an added initializer -> ExportRecord */
	VEC(NodeProto *) nodes;
	VEC(TensorProto *) initializers;
	const NodeProto *fault; /* first node that cannot have a branch; NULL: no such node */
} Branches;

/* The axis of a product's result with the outputs, which tells the form of the branch: the second
 * matrix is multiplied on the right, on the left, or it is a convolution with a kernel of size 1. */
enum { RIGHT = -1, LEFT = -2, CONVOLUTION = 1 };

/* How the node reads the weight, its input `input`; NULL: the node cannot have a branch. Gather has
 * a branch only for rows of a matrix: it multiplies the matrix by rows with a single 1. */
static const Product *
product_of(const Branches *b, const NodeProto *p, int input, int rank)
{
	static const Product rows = {
		.weight = 0, .outputs = 1, .inputs = 0, .x_inputs = -1, .result = RIGHT};

	if (!is_op(p, "Gather"))
		return node_product(b->model, p, input);
	return input == rows.weight && rank == 2 && node_int(p, "axis", 0) == 0 ? &rows : NULL;
}

/* ---- names */
static void
add_names(Branches *b, const GraphProto *g)
{
	for (size_t i = 0; i < g->n_input; i++)
		strmap_put(b->names, g->input[i]->name, b);
	for (size_t i = 0; i < g->n_initializer; i++)
		strmap_put(b->names, g->initializer[i]->name, b);
	for (size_t i = 0; i < g->n_node; i++) {
		const NodeProto *p = g->node[i];
		strmap_put(b->names, p->name ? p->name : "", b);
		for (size_t k = 0; k < p->n_output; k++)
			strmap_put(b->names, p->output[k], b);
		for (size_t k = 0; k < p->n_attribute; k++)
			if (p->attribute[k]->g)
				add_names(b, p->attribute[k]->g);
	}
}

static char *
fresh(Branches *b, const char *base, const char *ending)
{
	char *name = arena_printf(b->arena, "%s%s", base, ending);

	for (int i = 2; strmap_get(b->names, name); i++)
		name = arena_printf(b->arena, "%s%s_%d", base, ending, i);
	strmap_put(b->names, name, b);
	return name;
}

/* ---- initializers */
static TensorProto *
add_tensor(Branches *b, const char *name, DType dtype, const Ints *shape, const void *data)
{
	TensorProto *t = edit_tensor(b->model, name, dtype, shape, data);

	vec_push(b->arena, &b->initializers, t);
	return t;
}

/* An initializer for a part of an adapter: its axis i is the state's axis perm.at[i], followed by
 * `ones` axes of size 1. Equal requests share one initializer. */
static const char *
add_part(Branches *b, const Alias *at, const State *s, Ints perm, int ones)
{
	const char *key = arena_printf(b->arena, "%s %d", s->name, ones);
	Ints shape = {.n = perm.n + ones};

	for (int i = 0; i < perm.n; i++)
		key = arena_printf(b->arena, "%s %d", key, (int)perm.at[i]);
	const char *name = strmap_get(b->tensors, key);
	if (name)
		return name;
	ExportRecord *r = NEW(b->arena, ExportRecord);
	*r = (ExportRecord){.kind = EXPORT_TENSOR,
	                    .state = (uint32_t)s->id,
	                    .dtype = at->dtype,
	                    .rank = (uint32_t)perm.n,
	                    .block = s->type->n};
	for (int i = 0; i < shape.n; i++)
		shape.at[i] = i < perm.n ? s->type->dims[perm.at[i]] : 1;
	for (int i = 0; i < perm.n; i++)
		r->perm[i] = (uint8_t)perm.at[i];
	name = fresh(b, s->name, "");
	strmap_put(b->tensors, key, (void *)(uintptr_t)name);
	TensorProto *t = add_tensor(b, name, at->dtype, &shape, NULL);
	intmap_put(b->holes, (uint64_t)(uintptr_t)t, (uint64_t)(uintptr_t)r);
	return name;
}

/* The adapter's first matrix, which the copied node reads as its weight. Its shape is the weight's,
 * with the adapter's rank in place of the number of outputs. */
static const char *
add_first(Branches *b, const Alias *at, int outputs)
{
	const Adapter *a = at->adapter;
	Ints perm = at->order;

	if (at->order.at[outputs] == a->axis)
		return add_part(b, at, a->a, perm, 0);
	for (int i = 0; i < perm.n; i++) /* b is [size of the adapter's axis, rank] */
		perm.at[i] = i == outputs;
	return add_part(b, at, a->b, perm, 0);
}

/* The second matrix: [rank, outputs], or its transpose, or a kernel of size 1. */
static const char *
add_second(Branches *b, const Alias *at, const Product *product, int outputs)
{
	const Adapter *a = at->adapter;
	bool by_b = at->order.at[outputs] == a->axis;
	int64_t rank_axis = by_b ? 1 : a->axis, outputs_axis = by_b ? 0 : 1 - a->axis;
	Ints perm = {.n = 2, .at = {outputs_axis, rank_axis}};

	if (product->result == RIGHT)
		perm = (Ints){.n = 2, .at = {rank_axis, outputs_axis}};
	int ones = product->result == CONVOLUTION ? at->order.n - 2 : 0;
	return add_part(b, at, by_b ? a->b : a->a, perm, ones);
}

/* A vector with one factor per output, followed by `behind` axes of size 1. */
static const char *
add_factors(Branches *b, const Alias *at, const char *base, int behind)
{
	const Adapter *a = at->adapter;
	ExportRecord *r = NEW(b->arena, ExportRecord);
	Ints shape = {.n = 1 + behind, .at = {state_weight_type(b->m, a->weight)->dims[a->axis]}};
	const char *name = fresh(b, base, "_lora_factors");

	for (int i = 0; i < behind; i++)
		shape.at[1 + i] = 1;
	*r = (ExportRecord){
		.kind = EXPORT_FACTORS, .state = (uint32_t)a->weight->id, .dtype = at->dtype};
	TensorProto *t = add_tensor(b, name, at->dtype, &shape, NULL);
	intmap_put(b->holes, (uint64_t)(uintptr_t)t, (uint64_t)(uintptr_t)r);
	return name;
}

static const char *
add_number(Branches *b, const char *base, DType dtype, double value)
{
	void *data = arena_alloc(b->arena, 8);
	const char *name = fresh(b, base, "_lora_scale");

	dtype_store_float(dtype, data, 0, value);
	add_tensor(b, name, dtype, &(Ints){0}, data);
	return name;
}

/* ---- nodes */
static const char *
add_node(Branches *b, const char *base, const char *op, const char *x, const char *y,
         const char *output)
{
	NodeProto *p = NEW(b->arena, NodeProto);
	const char *z = output ? output : fresh(b, base, arena_printf(b->arena, "_lora_%s", op));

	onnx__node_proto__init(p);
	p->op_type = (char *)(uintptr_t)op;
	p->name = fresh(b, base, arena_printf(b->arena, "_lora_%s_node", op));
	p->input = NEW_ARRAY(b->arena, char *, 2);
	p->output = NEW_ARRAY(b->arena, char *, 1);
	p->input[0] = (char *)(uintptr_t)x;
	p->input[1] = (char *)(uintptr_t)y;
	p->output[0] = (char *)(uintptr_t)z;
	p->n_input = 2;
	p->n_output = 1;
	vec_push(b->arena, &b->nodes, p);
	return z;
}

/* A copy of the node without a bias, with another tensor in the weight's place. Before opset 11 Gemm
 * requires a third input: 0. */
static const char *
add_same(Branches *b, const NodeProto *from, const Product *product, const char *weight,
         DType dtype)
{
	NodeProto *p = arena_copy(b->arena, from, sizeof(*from));
	const char *base = from->output[0], *y = fresh(b, base, "_lora");
	bool adds = is_op(from, "Gemm") && b->model->opset < 11;

	p->name = fresh(b, base, "_lora_node");
	p->n_input = adds ? 3 : 2;
	p->input = NEW_ARRAY(b->arena, char *, 3);
	memcpy(p->input, from->input, 2 * sizeof(*p->input));
	p->input[product->weight] = (char *)(uintptr_t)weight;
	if (adds)
		p->input[2] = (char *)(uintptr_t)add_number(b, base, dtype, 0);
	p->output = NEW_ARRAY(b->arena, char *, 1);
	p->output[0] = (char *)(uintptr_t)y;
	vec_push(b->arena, &b->nodes, p);
	return y;
}

/* A copy of the node with another name for its result. */
static const char *
add_renamed(Branches *b, const NodeProto *from)
{
	NodeProto *p = arena_copy(b->arena, from, sizeof(*from));
	char *base = fresh(b, from->output[0], "_base");

	p->output = NEW_ARRAY(b->arena, char *, 1);
	p->output[0] = base;
	vec_push(b->arena, &b->nodes, p);
	return base;
}

/* The bias in the result's shape; NULL: no bias. */
static const char *
bias_of(Branches *b, const NodeProto *from, const Product *product, const Alias *at, int behind)
{
	const AttributeProto *beta = node_attribute(from, "beta");
	const char *y = from->output[0],
		   *bias = from->n_input > 2 && *from->input[2] ? from->input[2] : NULL;

	if (bias && beta && beta->f != 1)
		bias = add_node(b, y, "Mul", bias, add_number(b, y, at->dtype, beta->f), NULL);
	if (!bias || product->result != CONVOLUTION)
		return bias;
	int64_t *shape = NEW_ARRAY(b->arena, int64_t, 1 + behind);
	const char *name = fresh(b, y, "_lora_shape");
	for (int i = 0; i < 1 + behind; i++)
		shape[i] = i ? 1 : -1;
	add_tensor(b, name, S64, &(Ints){.n = 1, .at = {1 + behind}}, shape);
	return add_node(b, y, "Reshape", bias, name, NULL);
}

/* Multiplies the sum of product and branch by the factor of each output, then adds the bias. */
static void
add_scaled(Branches *b, const NodeProto *from, const Product *product, const Alias *at,
           const char *base, const char *x)
{
	int behind = product->result == RIGHT ? 0 : product->result == LEFT ? 1 : at->order.n - 2;
	const char *y = from->output[0], *bias = bias_of(b, from, product, at, behind);
	const char *sum = add_node(b, y, "Add", base, x, NULL);
	const char *factors = add_factors(b, at, y, behind);

	sum = add_node(b, y, "Mul", sum, factors, bias ? NULL : y);
	if (bias)
		add_node(b, y, "Add", sum, bias, y);
}

/* Adds the branch. The sum gets the name of the node's result, and the node's result another
 * name. */
static void
add_branch(Branches *b, const NodeProto *from, const Product *product, const Alias *at)
{
	int outputs, inputs;
	const char *y = from->output[0];
	double scale = adapter_scale(at->adapter);

	product_axes(product, from, at->order.n, &outputs, &inputs);
	const char *base = at->adapter->magnitude
	                           ? add_same(b, from, product, from->input[product->weight],
	                                      at->dtype)
	                           : add_renamed(b, from);
	const char *first = add_first(b, at, outputs),
		   *second = add_second(b, at, product, outputs);
	const char *x = add_same(b, from, product, first, at->dtype);
	if (product->result == CONVOLUTION)
		x = add_node(b, y, "Conv", x, second, NULL);
	else if (product->result == RIGHT)
		x = add_node(b, y, "MatMul", x, second, NULL);
	else
		x = add_node(b, y, "MatMul", second, x, NULL);
	if (scale != 1)
		x = add_node(b, y, "Mul", x, add_number(b, y, at->dtype, scale), NULL);
	if (at->adapter->magnitude)
		add_scaled(b, from, product, at, base, x);
	else
		add_node(b, y, "Add", base, x, y);
}

/* ---- the walk */
static void
put_alias(Branches *b, const char *name, const Adapter *a, DType dtype, Ints order)
{
	Alias *alias = NEW(b->arena, Alias);

	*alias = (Alias){a, dtype, order};
	strmap_put(b->aliases, name, alias);
}

/* Finds the values that hold an adapted weight, in floats or, if the model is quantized, as
 * codes. */
static void
find_weights(Branches *b, const QuantizedTensors *quantized)
{
	for (int i = 0; i < b->repairs->list.n; i++) {
		const Weight *w = b->repairs->list.at[i];
		const State *s = (w->tied ? w->tied : w)->state;
		const Adapter *a = s ? module_adapter(b->m, s) : NULL;
		DType dtype = w->codes ? F32 : w->data.dtype;
		if (!a || a->weight != s || w->as_constant)
			continue;
		Ints order = {.n = state_weight_type(b->m, s)->rank};
		for (int k = 0; k < order.n; k++)
			order.at[k] = w->transposed ? order.n - 1 - k : k;
		put_alias(b, w->name, a, dtype, order);
		for (int k = 0; quantized && k < quantized->n; k++) {
			const QuantizedTensor *t = quantized->at[k];
			if (t->output && !strcmp(t->name, w->name))
				put_alias(b, t->output, a, dtype, order);
		}
	}
}

/* Node p's result holds the weight, too: the float type that the adapter's initializers must have
 * for the nodes that read this result. */
static DType
passed_dtype(const Branches *b, const NodeProto *p, const Alias *at)
{
	const TensorProto *scale = is_op(p, "DequantizeLinear") && p->n_input > 1
	                                   ? strmap_get(b->model->initializers, p->input[1])
	                                   : NULL;
	int type = is_op(p, "Cast") ? (int)node_int(p, "to", 0) : scale ? scale->data_type : 0;
	DType dtype;

	return tensor_dtype(type, &dtype) && dtype_is_float(dtype) ? dtype : at->dtype;
}

/* Is the node an Identity that stands for a separate weight, which the exporter merged with an
 * equal weight? Then the adapter of the Identity's input does not apply to its result. */
static bool
is_own_weight(const Branches *b, const NodeProto *p)
{
	const Weight *w = p->n_output == 1 ? repairs_weight(b->repairs, p->output[0]) : NULL;

	return w && w->identity == p && !(w->tied && !strcmp(w->tied->name, p->input[0]));
}

/* Does the node read only the weight's shape? */
static bool
reads_shape(const NodeProto *p)
{
	return is_op(p, "Shape") || is_op(p, "Size");
}

/* Records that the node's result holds the weight, too; false: the node computes something else. */
static bool
pass_on(Branches *b, const NodeProto *p, const Alias *at)
{
	static const char *const same[] = {"Identity", "Cast", "QuantizeLinear",
	                                   "DequantizeLinear"};
	const AttributeProto *perm = node_attribute(p, "perm");
	Ints order = at->order;
	bool passes = is_op(p, "Transpose");

	for (int i = 0; i < COUNT(same); i++)
		passes |= is_op(p, same[i]);
	if (!passes)
		return false;
	for (int i = 0; is_op(p, "Transpose") && i < order.n; i++) {
		int64_t from = perm && (size_t)i < perm->n_ints ? perm->ints[i] : order.n - 1 - i;
		order.at[i] = at->order.at[from];
	}
	put_alias(b, p->output[0], at->adapter, passed_dtype(b, p, at), order);
	return true;
}

static bool
reads_inside(const Branches *b, const GraphProto *g)
{
	for (size_t i = 0; i < g->n_node; i++) {
		for (size_t k = 0; k < g->node[i]->n_input; k++)
			if (strmap_get(b->aliases, g->node[i]->input[k]))
				return true;
		for (size_t k = 0; k < g->node[i]->n_attribute; k++)
			if (g->node[i]->attribute[k]->g &&
			    reads_inside(b, g->node[i]->attribute[k]->g))
				return true;
	}
	return false;
}

static void
walk_node(Branches *b, NodeProto *p)
{
	for (size_t k = 0; k < p->n_attribute; k++)
		if (p->attribute[k]->g && reads_inside(b, p->attribute[k]->g))
			b->fault = p;
	const Alias *adapted = NULL;
	const Product *product = NULL;
	bool passes = is_own_weight(b, p) || reads_shape(p);
	for (size_t k = 0; k < p->n_input && !passes; k++) {
		const Alias *at = strmap_get(b->aliases, p->input[k]);
		if (!at || (k == 0 && p->n_output && pass_on(b, p, at)))
			continue;
		product = product_of(b, p, (int)k, at->order.n);
		if (!product || adapted)
			b->fault = p;
		adapted = at;
	}
	if (adapted && product)
		add_branch(b, p, product, adapted);
	else
		vec_push(b->arena, &b->nodes, p);
}

const char *
model_branch_edit(const Module *m, const QuantizedTensors *quantized, GraphProto *g, IntMap *holes,
                  Arena *arena)
{
	const ImportInfo *info = m->import;
	Branches b = {.m = m,
	              .model = info->base.model,
	              .repairs = info->repairs,
	              .arena = arena,
	              .aliases = strmap_new(arena),
	              .names = strmap_new(arena),
	              .tensors = strmap_new(arena),
	              .holes = holes};

	add_names(&b, g);
	find_weights(&b, quantized);
	for (size_t i = 0; i < g->n_initializer; i++)
		vec_push(arena, &b.initializers, g->initializer[i]);
	for (size_t i = 0; i < g->n_node; i++)
		walk_node(&b, g->node[i]);
	g->node = b.nodes.at;
	g->n_node = (size_t)b.nodes.n;
	g->initializer = b.initializers.at;
	g->n_initializer = (size_t)b.initializers.n;
	return b.fault ? arena_printf(m->arena, "node %s (%s)",
	                              quoted(b.model, node_location(b.fault)), b.fault->op_type)
	               : NULL;
}

/* Restores biases of zeros that the exporter merged or dropped. The exporter may store the traced
 * Python call of each node as text, which names the layer's bias (metadata pkg.torch.onnx.fx_node,
 * unmerge_calls.c). Without this text, the layer is found by its weight: the operator that reads
 * conv1.weight adds the bias of module conv1.
 *
 *   merged   the layer reads another layer's bias: it gets a copy of its own.
 *   dropped  onnxscript's optimizer removed a bias of zeros from Conv, ConvTranspose or Gemm: the
 *            layer reads zeros again.
 *
 * If any such operator in the file still has a bias of zeros, the optimizer did not run; then a
 * layer without a bias never had one. */
#include "frontend/weights/judge.h"
#include "frontend/weights/unmerge.h"

#include <string.h>

enum { MAX_CHANNELS = 1 << 24 };

typedef VEC(NodeProto *) Layers;

typedef struct {
	Unmerge *u;
	StrMap *layers;   /* name of a module's weight -> Layers that read it */
	StrMap *added_to; /* value -> Read of the initializer that an Add adds to it */
} Biases;

static const TensorProto *
initializer_at(const Repairs *r, const NodeProto *p, size_t input)
{
	return p->n_input > input ? strmap_get(r->model->initializers, p->input[input]) : NULL;
}

static void
index_layer(Biases *b, NodeProto *p)
{
	Arena *arena = b->u->r->arena;
	const Origin *o = strmap_get(b->u->r->origins, p->input[1]);
	const char *weight = o && o->from.n == 1 ? o->from.at[0] : p->input[1];
	Layers *layers = strmap_get(b->layers, weight);

	if (!layers) {
		layers = NEW(arena, Layers);
		strmap_put(b->layers, weight, layers);
	}
	vec_push(arena, layers, p);
}

static void
index_add(Biases *b, NodeProto *p)
{
	for (size_t k = 0; is_op(p, "Add") && p->n_input == 2 && k < 2; k++) {
		const Read read = {p, k, "bias", false};
		if (initializer_at(b->u->r, p, k))
			strmap_put(b->added_to, p->input[1 - k],
			           arena_copy(b->u->r->arena, &read, sizeof(read)));
	}
}

static Biases
index_biases(Unmerge *u)
{
	const GraphProto *g = u->r->model->proto->graph;
	Biases b = {u, strmap_new(u->r->arena), strmap_new(u->r->arena)};

	for (size_t i = 0; i < g->n_node; i++) {
		NodeProto *p = g->node[i];
		Call call;
		if (unmerge_call(u, p, &call))
			continue;
		index_add(&b, p);
		if (node_product(u->r->model, p, 1) && p->n_output > 0 &&
		    initializer_at(u->r, p, 1))
			index_layer(&b, p);
	}
	return b;
}

static bool
is_lost_bias(const Unmerge *u, const char *name)
{
	return !strcmp(name_last_part(name), "bias") && unmerge_is_lost(u, name);
}

static const char *
weight_beside(const Biases *b, const char *bias)
{
	size_t n = name_module_length(bias);

	return arena_printf(b->u->r->arena, "%.*s%sweight", (int)n, bias, n ? "." : "");
}

/* The layers of the bias's module. Empty if other modules read the weight, too: the module may be
 * called under two names. */
static Layers
own_layers(const Biases *b, const char *bias)
{
	const Layers *all = strmap_get(b->layers, weight_beside(b, bias));

	for (int i = 0; all && i < all->n; i++)
		if (!unmerge_is_in_module(all->at[i], bias))
			return (Layers){0};
	return all ? *all : (Layers){0};
}

/* ---- merged biases */
/* As own_layers. The parent module may read the weight itself, as in F.linear(x, self.fc.weight,
 * self.fc.bias). Then the parent's layer counts, if no other layer reads the weight. */
static Layers
reading_layers(const Biases *b, const char *bias)
{
	const Layers *all = strmap_get(b->layers, weight_beside(b, bias));
	Layers own = own_layers(b, bias);

	if (own.n == 0 && all && all->n == 1 && unmerge_is_in_parent(all->at[0], bias))
		return *all;
	return own;
}

/* The initializer that a layer adds as its bias; node NULL: the layer has no bias. */
static Read
bias_of(const Biases *b, NodeProto *layer)
{
	const Read *added = is_op(layer, "MatMul") ? strmap_get(b->added_to, layer->output[0])
	                                           : NULL;
	int bias = node_bias(b->u->r->model, layer);

	if (bias && initializer_at(b->u->r, layer, (size_t)bias))
		return (Read){layer, (size_t)bias, "bias", true};
	return added ? *added : (Read){0};
}

void
unmerge_claim_biases(Unmerge *u)
{
	const StringList *names = &u->r->signed_parameters;
	const Biases b = index_biases(u);

	for (int i = 0; i < names->n; i++) {
		if (!is_lost_bias(u, names->at[i]))
			continue;
		const Layers layers = reading_layers(&b, names->at[i]);
		Reads reads = {0};
		for (int k = 0; k < layers.n; k++) {
			const Read read = bias_of(&b, layers.at[k]);
			if (read.node && unmerge_is_foreign(u, &read))
				vec_push(u->r->arena, &reads, read);
		}
		if (reads.n == layers.n)
			unmerge_claim_repeated(u, &reads, names->at[i]);
	}
}

/* ---- dropped biases */
/* Did onnxscript's optimizer run? The optimizer would have removed a bias of zeros. Only biases in
 * the signature are checked: a bias computed by the exporter, such as a folded batch norm's, may be
 * zero even after the optimizer. */
static bool
was_optimized(const Unmerge *u)
{
	const GraphProto *g = u->r->model->proto->graph;
	double value;

	for (size_t i = 0; i < g->n_node; i++) {
		int bias = node_bias(u->r->model, g->node[i]);
		const TensorProto *t = bias ? initializer_at(u->r, g->node[i], (size_t)bias) : NULL;
		if (t && strmap_get(u->r->signature, t->name) &&
		    unmerge_one_value(u->r, t, &value) && value == 0)
			return false;
	}
	return true;
}

/* Number of channels of the layer's result; 0: its weight does not tell. */
static int64_t
channels_of(const Biases *b, const NodeProto *p)
{
	const TensorProto *t = initializer_at(b->u->r, p, 1);
	int outputs, inputs;

	if (t->n_dims < 2)
		return 0;
	product_axes(node_product(b->u->r->model, p, 1), p, (int)t->n_dims, &outputs, &inputs);
	int64_t n = t->dims[outputs];
	if (is_op(p, "ConvTranspose") && !size_mul(n, node_int(p, "group", 1), &n))
		return 0;
	return n > 0 && n <= MAX_CHANNELS ? n : 0;
}

static bool
has_no_bias(const Model *model, const NodeProto *p)
{
	size_t bias = (size_t)node_bias(model, p);

	return p->n_input == bias || (p->n_input == bias + 1 && !*p->input[bias]);
}

/* Is it the bias of a MultiheadAttention's out_proj? torch.nn.MultiheadAttention reads that weight
 * and bias itself. */
static bool
is_attentions_output(const Biases *b, const char *bias)
{
	static const char name[] = "out_proj.bias";
	size_t n = strlen(bias), length = sizeof(name) - 1;

	if (n <= length || strcmp(bias + n - length, name))
		return false;
	return strmap_get(b->u->r->signature, arena_printf(b->u->r->arena, "%.*sin_proj_bias",
	                                                   (int)(n - length), bias));
}

static const char *
restore_zeros(Unmerge *u, const char *name, const TensorProto *weight, int64_t channels)
{
	const Ints shape = {.n = 1, .at = {channels}};
	DType dtype;

	if (!tensor_dtype(weight->data_type, &dtype))
		return NULL;
	void *zeros = arena_alloc(u->r->model->arena, (size_t)dtype_bytes(dtype, channels));
	return edit_restore(u->r->model, RESTORED_DROPPED, name, NULL,
	                    edit_tensor(u->r->model, name, dtype, &shape, zeros));
}

static void
add_bias(Model *model, NodeProto *p, const char *name)
{
	size_t bias = (size_t)node_bias(model, p);

	edit_node(model, p);
	if (p->n_input == bias)
		p->input = edit_grown(model, p->input, p->n_input++, name);
	else
		p->input[bias] = (char *)(uintptr_t)name;
}

/* Restores a bias if no layer has one and all layers have the same number of channels. */
static void
restore_dropped(Biases *b, const Layers *layers, const char *name)
{
	int64_t channels = layers->n ? channels_of(b, layers->at[0]) : 0;
	bool all = channels > 0;

	for (int i = 0; i < layers->n; i++)
		all &= has_no_bias(b->u->r->model, layers->at[i]) &&
		       channels_of(b, layers->at[i]) == channels;
	const char *zeros = all ? restore_zeros(b->u, name,
	                                        initializer_at(b->u->r, layers->at[0], 1), channels)
	                        : NULL;
	for (int i = 0; zeros && i < layers->n; i++)
		add_bias(b->u->r->model, layers->at[i], zeros);
}

/* Restores biases that the texts of calls name. */
static void
restore_by_calls(Biases *b)
{
	const GraphProto *g = b->u->r->model->proto->graph;
	StrMap *layers = strmap_new(b->u->r->arena); /* name -> Layers */
	StringList names = {0};

	for (size_t i = 0; i < g->n_node; i++) {
		Call call;
		const char *name = unmerge_call(b->u, g->node[i], &call)
		                           ? unmerge_lost_of_layer(b->u, g->node[i], &call)
		                           : NULL;
		Layers *list = name ? strmap_get(layers, name) : NULL;
		if (!name || !initializer_at(b->u->r, g->node[i], 1))
			continue;
		if (!list) {
			list = NEW(b->u->r->arena, Layers);
			strmap_put(layers, name, list);
			vec_push(b->u->r->arena, &names, name);
		}
		vec_push(b->u->r->arena, list, g->node[i]);
	}
	for (int i = 0; i < names.n; i++)
		restore_dropped(b, strmap_get(layers, names.at[i]), names.at[i]);
}

/* The layers whose bias may be restored: those that read the module's weight unchanged. If the
 * exporter computed a new weight, it may have computed a new bias, too. */
static Layers
bare_layers(const Biases *b, const char *name)
{
	Layers layers = is_attentions_output(b, name) ? reading_layers(b, name)
	                                              : own_layers(b, name);

	for (int i = 0; i < layers.n; i++)
		if (!node_bias(b->u->r->model, layers.at[i]) ||
		    strcmp(layers.at[i]->input[1], weight_beside(b, name)))
			return (Layers){0};
	return layers;
}

void
unmerge_dropped_biases(Unmerge *u)
{
	const StringList *names = &u->r->signed_parameters;
	Biases b = index_biases(u);
	bool optimized = was_optimized(u);

	restore_by_calls(&b);
	if (!optimized)
		return;
	for (int i = 0; i < names->n; i++) {
		const Layers layers = is_lost_bias(u, names->at[i]) ? bare_layers(&b, names->at[i])
		                                                    : (Layers){0};
		restore_dropped(&b, &layers, names->at[i]);
	}
}

/* Parameters that dynamo's exporter takes out of a file and whose names it leaves there: the signature lists what the module
 * had, the nodes' scopes say whose call they belong to.
 *
 *   unmerge  equal fresh parameters became one initializer, as the weights of two norms, both ones. The call of layers.1.norm
 *            that reads layers.0.norm.weight reads a layers.1.norm.weight of its own again.
 *   biases   an addition of zeros was dropped. The layer that had it adds zeros again, which train.
 *
 * Equal tensors that are not of one value are one parameter that the module has twice (ties.c). */
#include "frontend/frontend_impl.h"

#include <string.h>

/* A call's input that is an initializer of another module. */
typedef struct {
	NodeProto *node;
	size_t input;
	bool taken;
} ForeignRead;

enum { MAX_CHANNELS = 1 << 24 };
typedef VEC(NodeProto *) Calls; /* the nodes of one module in the main graph */
typedef struct {
	Repairs *r;
	StrMap *modules; /* path -> Calls */
	const StrMap *
		there; /* what the file has of the module's tensors, as they were or computed from */
} Unmerge;

static size_t
parent_length(const char *name)
{
	const char *dot = strrchr(name, '.');

	return dot ? (size_t)(dot - name) : 0;
}

static const char *
parent_of(const Repairs *r, const char *name)
{
	return arena_strndup(r->arena, name, parent_length(name));
}

static const char *
last_of(const char *name)
{
	size_t n = parent_length(name);

	return name + n + (name[n] == '.');
}

/* ---- what the file has, and what it lacks */
static void
index_modules(Unmerge *u)
{
	const GraphProto *g = u->r->model->proto->graph;

	for (size_t i = 0; i < g->n_node; i++) {
		const char *path;
		size_t n = node_module(g->node[i], &path);
		const char *key = arena_strndup(u->r->arena, path, n);
		Calls *calls = strmap_get(u->modules, key);
		if (!calls) {
			calls = NEW(u->r->arena, Calls);
			strmap_put(u->modules, key, calls);
		}
		vec_push(u->r->arena, calls, g->node[i]);
	}
}

static StrMap *
names_there(const Repairs *r)
{
	const GraphProto *g = r->model->proto->graph;
	StrMap *names = strmap_new(r->arena);

	for (size_t i = 0; i < g->n_initializer; i++) {
		const Origin *o = strmap_get(r->origins, g->initializer[i]->name);
		strmap_put(names, g->initializer[i]->name, g->initializer[i]);
		for (int k = 0; o && k < o->from.n; k++)
			strmap_put(names, o->from.at[k], g->initializer[i]);
	}
	return names;
}

/* An initializer of one value. */
static const TensorProto *
fresh_tensor(const Repairs *r, const char *name, TensorData *data)
{
	const TensorProto *t = *name ? strmap_get(r->model->initializers, name) : NULL;
	double value;

	if (!t || !is_float_type(t->data_type) ||
	    !tensor_load(r->model, t, r->options->shapes_only, data, r->diag) || data->n < 1 ||
	    !data->data || !tensor_constant_valued(data, &value))
		return NULL;
	return t;
}

/* ---- unmerge */
/* What a module calls the input of its operator; NULL: it may be anything. */
static const char *
name_of_input(const NodeProto *p, size_t input)
{
	static const struct {
		const char *op;
		const char *inputs[5];
	} rows[] = {
		{"BatchNormalization", {NULL, "weight", "bias", "running_mean", "running_var"}},
		{"InstanceNormalization", {NULL, "weight", "bias"}},
		{"GroupNormalization", {NULL, "weight", "bias"}},
		{"LayerNormalization", {NULL, "weight", "bias"}},
		{"RMSNormalization", {NULL, "weight"}},
		{"Conv", {NULL, "weight", "bias"}},
		{"ConvTranspose", {NULL, "weight", "bias"}},
		{"Gemm", {NULL, "weight", "bias"}},
	};

	for (int i = 0; i < COUNT(rows); i++)
		if (!strcmp(p->op_type, rows[i].op))
			return input < COUNT(rows[i].inputs) ? rows[i].inputs[input] : NULL;
	return NULL;
}

typedef VEC(ForeignRead) ForeignReads;

/* The module's tensor that an initializer is, or was computed from; NULL: a number of the module's code, which may be merged
 * with a parameter, too, and stays. */
static const char *
source_of(const Repairs *r, const char *name)
{
	const Origin *o = strmap_get(r->origins, name);

	if (strmap_get(r->signature, name))
		return name;
	return o && o->from.n == 1 ? o->from.at[0] : NULL;
}

/* The read is of what the exporter put in the place of another tensor: of another module's, or of one of another kind. */
static bool
is_foreign(const Repairs *r, const NodeProto *p, size_t input)
{
	const char *source = source_of(r, p->input[input]), *kind = name_of_input(p, input), *path;
	size_t n = source ? parent_length(source) : 0, in_path = node_module(p, &path);
	TensorData data;

	if (!source || (n == in_path && !strncmp(source, path, n) &&
	                (!kind || !strcmp(kind, last_of(source)))))
		return false;
	return fresh_tensor(r, p->input[input], &data);
}

static void
find_foreign(const Unmerge *u, const Calls *calls, ForeignReads *reads)
{
	for (int i = 0; i < calls->n; i++)
		for (size_t k = 0; k < calls->at[i]->n_input; k++)
			if (is_foreign(u->r, calls->at[i], k))
				vec_push(u->r->arena, reads,
				         ((ForeignRead){calls->at[i], k, false}));
}

/* From now on the read is of the parameter `name`, which is made where it is not there yet. */
static void
give_back(Unmerge *u, ForeignRead *read, const char *name)
{
	Model *model = u->r->model;
	const char *from = read->node->input[read->input], *own;
	const TensorProto *made = strmap_get(model->initializers, name);
	TensorData data;

	if (made) {
		own = made->name;
	} else {
		if (!fresh_tensor(u->r, from, &data))
			return;
		Ints shape = {.n = data.rank};
		memcpy(shape.at, data.dims, sizeof(*data.dims) * (size_t)data.rank);
		own = edit_add_initializer(model, name, "", data.dtype, &shape, data.data);
		vec_push(model->arena, &model->lost_found, ((LostFound){"unmerge", own, from}));
	}
	edit_node(model, read->node);
	read->node->input[read->input] = (char *)(uintptr_t)own;
	read->taken = true;
}

/* By the operator's input, else, in a second turn, by the parameter that stands there now. */
static bool
is_called_so(const Repairs *r, const ForeignRead *read, const char *last, bool by_operator)
{
	const char *said = name_of_input(read->node, read->input);

	if (!by_operator && !said)
		said = last_of(source_of(r, read->node->input[read->input]));
	return said && !strcmp(said, last);
}

typedef VEC(const char *) Names;

/* Names that say which read is theirs. */
static void
match_by_name(Unmerge *u, Names *lost, ForeignReads *reads, bool by_operator)
{
	int n = 0;

	for (int i = 0; i < lost->n; i++) {
		bool found = false;
		for (int k = 0; k < reads->n; k++) {
			ForeignRead *read = &reads->at[k];
			if (read->taken ||
			    !is_called_so(u->r, read, last_of(lost->at[i]), by_operator))
				continue;
			give_back(u, read, lost->at[i]);
			found |= read->taken;
		}
		if (!found)
			lost->at[n++] = lost->at[i];
	}
	lost->n = n;
}

/* As many reads as names, in the order of both: modules make their parameters in the order in which they use them. */
static void
match_the_rest(Unmerge *u, const Names *lost, ForeignReads *reads)
{
	int open = 0, next = 0;
	bool one = true;
	const char *first = NULL;

	for (int k = 0; k < reads->n; k++) {
		const ForeignRead *read = &reads->at[k];
		const char *from = read->node->input[read->input];
		if (read->taken)
			continue;
		one &= !first || !strcmp(first, from);
		first = first ? first : from;
		open++;
	}
	if (lost->n == 0 || (open != lost->n && !(lost->n == 1 && one)))
		return;
	for (int k = 0; k < reads->n; k++)
		if (!reads->at[k].taken)
			give_back(u, &reads->at[k], lost->at[lost->n == 1 ? 0 : next++]);
}

static bool
is_lost(const Unmerge *u, const char *name)
{
	return !strmap_get(u->there, name) && !strmap_get(u->r->model->initializers, name);
}

static void
unmerge_module(Unmerge *u, const char *module, Names *lost, bool by_operator)
{
	const Calls *calls = strmap_get(u->modules, module);
	ForeignReads reads = {0};

	if (!calls)
		return;
	find_foreign(u, calls, &reads);
	match_by_name(u, lost, &reads, by_operator);
	if (!by_operator)
		match_the_rest(u, lost, &reads);
}

/* Nothing but its operator tells a buffer from numbers of the code. */
static void
unmerge_modules(Unmerge *u, bool by_operator)
{
	Arena *arena = u->r->arena;
	const StringList *names = by_operator ? &u->r->signed_tensors : &u->r->signed_parameters;
	StrMap *lost = strmap_new(arena); /* path -> Names */
	Names modules = {0};

	for (int i = 0; i < names->n; i++) {
		const char *module = parent_of(u->r, names->at[i]);
		Names *of = strmap_get(lost, module);
		if (!is_lost(u, names->at[i]))
			continue;
		if (!of) {
			of = NEW(arena, Names);
			strmap_put(lost, module, of);
			vec_push(arena, &modules, module);
		}
		vec_push(arena, of, names->at[i]);
	}
	for (int i = 0; i < modules.n; i++)
		unmerge_module(u, modules.at[i], strmap_get(lost, modules.at[i]), by_operator);
}

/* ---- biases */
typedef struct {
	NodeProto *node;
	DType dtype;
	int64_t n; /* of channels */
} Layer;

/* An operator with a weight that takes a bias. */
static bool
is_layer(const Repairs *r, NodeProto *p, Layer *out)
{
	const TensorProto *t = p->n_input > 1 ? strmap_get(r->model->initializers, p->input[1])
	                                      : NULL;
	DType dtype;

	if (!t || p->n_output < 1 || *domain_of(p->domain) || !tensor_dtype(t->data_type, &dtype) ||
	    t->n_dims == 0)
		return false;
	bool turned = !strcmp(p->op_type, "Gemm") && node_int(p, "transB", 0);
	*out = (Layer){p, dtype, t->dims[t->n_dims - 1]};
	if (!strcmp(p->op_type, "Conv") || turned)
		out->n = t->dims[0];
	else if (!strcmp(p->op_type, "ConvTranspose"))
		out->n = t->n_dims > 1 && size_mul(t->dims[1], node_int(p, "group", 1), &out->n)
		                 ? out->n
		                 : 0;
	else if (strcmp(p->op_type, "Gemm") && strcmp(p->op_type, "LayerNormalization") &&
	         !(!strcmp(p->op_type, "MatMul") && t->n_dims == 2))
		return false;
	return out->n > 0 && out->n <= MAX_CHANNELS;
}

typedef VEC(Layer) Layers;
typedef struct {
	StrMap *layers; /* name of the module's weight -> Layers */
	StrMap *adds;   /* value -> ForeignRead: what an Add adds to it */
} LayerIndex;

static void
index_layer(Arena *arena, LayerIndex *x, const char *weight, const Layer *layer)
{
	Layers *of = strmap_get(x->layers, weight);

	if (!of) {
		of = NEW(arena, Layers);
		strmap_put(x->layers, weight, of);
	}
	vec_push(arena, of, *layer);
}

/* An initializer may be the module's weight, or computed from it. */
static LayerIndex
index_layers(const Repairs *r)
{
	const GraphProto *g = r->model->proto->graph;
	LayerIndex x = {strmap_new(r->arena), strmap_new(r->arena)};
	Layer layer;

	for (size_t i = 0; i < g->n_node; i++) {
		NodeProto *p = g->node[i];
		for (size_t k = 0; !strcmp(p->op_type, "Add") && p->n_input == 2 && k < 2; k++) {
			if (!strmap_get(r->model->initializers, p->input[k]))
				continue;
			ForeignRead *read = NEW(r->arena, ForeignRead);
			*read = (ForeignRead){p, k, false};
			strmap_put(x.adds, p->input[1 - k], read);
		}
		if (!is_layer(r, p, &layer))
			continue;
		const Origin *o = strmap_get(r->origins, p->input[1]);
		index_layer(r->arena, &x, p->input[1], &layer);
		for (int k = 0; o && k < o->from.n; k++)
			index_layer(r->arena, &x, o->from.at[k], &layer);
	}
	return x;
}

/* Where the layer reads a bias: its own third input, or the addition behind a product; node NULL: nowhere. */
static ForeignRead
bias_read(const Repairs *r, const LayerIndex *x, const Layer *layer)
{
	NodeProto *p = layer->node;
	bool product = !strcmp(p->op_type, "MatMul");
	const ForeignRead *add = product ? strmap_get(x->adds, p->output[0]) : NULL;
	const TensorProto *t = add ? strmap_get(r->model->initializers,
	                                        add->node->input[add->input])
	                           : NULL;

	if (!product && p->n_input > 2 && *p->input[2])
		return (ForeignRead){p, 2, false};
	return t && t->n_dims == 1 && t->dims[0] == layer->n ? *add : (ForeignRead){0};
}

/* As onnxscript's rules found it before they dropped it. */
static void
add_bias(Unmerge *u, const Layer *layer, const char *name)
{
	Model *model = u->r->model;
	NodeProto *p = layer->node;

	const TensorProto *made = strmap_get(model->initializers, name);
	if (made) {
		name = made->name;
	} else {
		Ints shape = {.n = 1, .at = {layer->n}};
		size_t bytes = (size_t)dtype_bytes(layer->dtype, layer->n);
		void *zeros = memset(arena_alloc(u->r->arena, bytes), 0, bytes);
		name = edit_add_initializer(model, name, "", layer->dtype, &shape, zeros);
		vec_push(model->arena, &model->lost_found, ((LostFound){"biases", name, NULL}));
	}
	if (!strcmp(p->op_type, "MatMul")) {
		edit_insert_behind(model, p, "Add", name);
		return;
	}
	edit_node(model, p);
	if (p->n_input == 2)
		p->input = edit_grown(model, p->input, p->n_input++, name);
	else
		p->input[2] = (char *)(uintptr_t)name;
}

/* Nothing is added behind the layer but what its module, or the one around it, adds under a name of its own. */
static bool
has_no_bias(const Repairs *r, const ForeignRead *read)
{
	return !read->node ||
	       (!strcmp(read->node->op_type, "Add") && !is_foreign(r, read->node, read->input) &&
	        source_of(r, read->node->input[read->input]));
}

/* Merged: the layer reads another's bias, whatever module calls it. Dropped: it reads none. */
static void
return_bias(Unmerge *u, const LayerIndex *x, const char *name, bool dropped)
{
	const char *weight = arena_printf(u->r->arena, "%s.weight", parent_of(u->r, name));
	const Layers *layers = strmap_get(x->layers, weight);

	for (int i = 0; layers && i < layers->n; i++) {
		const Layer *layer = &layers->at[i];
		ForeignRead read = bias_read(u->r, x, layer);
		if (layer->n != layers->at[0].n)
			continue;
		if (dropped && has_no_bias(u->r, &read))
			add_bias(u, layer, name);
		else if (!dropped && read.node && is_foreign(u->r, read.node, read.input))
			give_back(u, &read, name);
	}
}

static void
return_biases(Unmerge *u, bool dropped)
{
	const StringList *names = &u->r->signed_parameters;
	const LayerIndex x = index_layers(u->r);

	for (int i = 0; i < names->n; i++)
		if (!strcmp(last_of(names->at[i]), "bias") && is_lost(u, names->at[i]))
			return_bias(u, &x, names->at[i], dropped);
}

/* ---- all of it */
void
unmerge(Repairs *r)
{
	Unmerge u = {r, strmap_new(r->arena), names_there(r)};

	if (r->signed_tensors.n == 0)
		return;
	index_modules(&u);
	if (repair_enabled(r->options, "unmerge")) {
		unmerge_modules(&u, true);
		return_biases(&u, false);
		unmerge_modules(&u, false);
	}
	if (repair_enabled(r->options, "biases"))
		return_biases(&u, true);
	origins_read_signed(r);
}

/* Parameters that dynamo's exporter takes out of a file and whose names it leaves there: the signature lists what the module
 * had, the nodes' scopes say whose call they belong to.
 *
 *   unmerge  equal fresh parameters became one initializer, as the weights of two norms, both ones. The node of layers.1.norm
 *            that reads layers.0.norm.weight reads a layers.1.norm.weight of its own again.
 *   biases   a convolution's bias, or Gemm's, was zeros and was dropped. The layer that had it reads zeros again, which train
 *            (lost_biases.c).
 *
 * Equal tensors that are not of one value are one parameter that the module has twice (ties.c). So are those that the module
 * ties: of these the exporter keeps the last name of the signature, of merged ones the first. Where a module's names do
 * not say which read is whose, the reads stay as they are. Calls of model-local functions stay, too: their bodies are inlined
 * before. */
#include "frontend/unmerge_impl.h"

#include <string.h>

typedef VEC(NodeProto *) ModuleNodes;
typedef VEC(Read) Reads;
typedef VEC(const char *) Names;
typedef struct {
	int reads;
	bool in_module,
		in_parent; /* by nodes of its module; of the module around, as where F.linear reads it */
} Home;
typedef struct {
	bool is_fresh;
} Fresh;

/* ---- names and modules */
bool
unmerge_is_lost(const Unmerge *u, const char *name)
{
	return !strmap_get(u->in_file, name) && !edit_restored(u->r->model, name);
}

static void
index_names(Unmerge *u)
{
	const GraphProto *g = u->r->model->proto->graph;
	const StringList *names = &u->r->signed_tensors;

	for (size_t i = 0; i < g->n_initializer; i++)
		origins_add_names(u->in_file, g->initializer[i]->name,
		                  strmap_get(u->r->origins, g->initializer[i]->name));
	for (int i = 0; i < names->n; i++)
		strmap_put(u->order, names->at[i], (void *)(intptr_t)(i + 1));
}

/* The module's tensor that an initializer is, or was computed from; NULL: a number of the module's code, which may be merged
 * with a parameter, too. */
static const char *
source_of(const Repairs *r, const char *name)
{
	const Origin *o = strmap_get(r->origins, name);

	if (strmap_get(r->signature, name))
		return name;
	return o && o->from.n == 1 ? o->from.at[0] : NULL;
}

bool
unmerge_is_in_module(const NodeProto *p, const char *tensor)
{
	const char *path;
	size_t n = node_module(p, &path);

	return n == name_module_length(tensor) && !strncmp(path, tensor, n);
}

/* Of the path of the module around the tensor's own. */
static size_t
parent_length(const char *tensor)
{
	size_t n = name_module_length(tensor);

	while (n > 0 && tensor[n - 1] != '.')
		n--;
	return n > 0 ? n - 1 : 0;
}

bool
unmerge_is_in_parent(const NodeProto *p, const char *tensor)
{
	const char *path;
	size_t n = node_module(p, &path);

	return name_module_length(tensor) > 0 && n == parent_length(tensor) &&
	       !strncmp(path, tensor, n);
}

static void
add_home(Unmerge *u, const NodeProto *p, const char *initializer)
{
	const char *source = source_of(u->r, initializer);
	Home *home = strmap_get(u->homes, initializer);

	if (!source || !strmap_get(u->r->model->initializers, initializer))
		return;
	if (!home) {
		home = NEW(u->r->arena, Home);
		strmap_put(u->homes, initializer, home);
	}
	home->reads++;
	home->in_module |= unmerge_is_in_module(p, source);
	home->in_parent |= unmerge_is_in_parent(p, source);
}

static void
index_nodes(Unmerge *u)
{
	const GraphProto *g = u->r->model->proto->graph;

	for (size_t i = 0; i < g->n_node; i++) {
		const char *path;
		size_t n = node_module(g->node[i], &path);
		const char *key = arena_strndup(u->r->arena, path, n);
		ModuleNodes *nodes = strmap_get(u->modules, key);
		for (size_t k = 0; k < g->node[i]->n_input; k++)
			add_home(u, g->node[i], g->node[i]->input[k]);
		if (node_callee(u->r->model, g->node[i]))
			continue;
		if (!nodes) {
			nodes = NEW(u->r->arena, ModuleNodes);
			strmap_put(u->modules, key, nodes);
		}
		vec_push(u->r->arena, nodes, g->node[i]);
	}
}

/* With --init=random the numbers may be missing. */
bool
unmerge_one_value(const Repairs *r, const TensorProto *t, double *value)
{
	bool missing = r->options->shapes_only && !tensor_is_there(r->model, t);
	TensorData data;

	return is_float_type(t->data_type) && !missing &&
	       tensor_load(r->model, t, false, &data, r->diag) &&
	       tensor_constant_valued(&data, value);
}

static bool
is_fresh(Unmerge *u, const char *name)
{
	const TensorProto *t = strmap_get(u->r->model->initializers, name);
	Fresh *known = strmap_get(u->fresh, name);
	double value;

	if (!known) {
		known = NEW(u->r->arena, Fresh);
		known->is_fresh = t && unmerge_one_value(u->r, t, &value);
		strmap_put(u->fresh, name, known);
	}
	return known->is_fresh;
}

/* ---- which reads are of another's tensor */
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

static const char *
now_read(const Read *read)
{
	return read->node->input[read->input];
}

bool
unmerge_is_foreign(Unmerge *u, const Read *read)
{
	const char *source = source_of(u->r, now_read(read));
	const Home *home = strmap_get(u->homes, now_read(read));

	if (!source || !home || home->reads < 2)
		return false;
	bool elsewhere = home->in_module
	                         ? !unmerge_is_in_module(read->node, source)
	                         : home->in_parent && !unmerge_is_in_parent(read->node, source);
	return elsewhere && is_fresh(u, now_read(read));
}

/* As the running variance of a batch norm that is its own weight. */
static bool
is_of_another_kind(Unmerge *u, const Read *read)
{
	const char *source = source_of(u->r, now_read(read));
	const Home *home = strmap_get(u->homes, now_read(read));

	return read->by_operator && source && home && home->reads > 1 &&
	       strcmp(read->called, name_last_part(source)) && is_fresh(u, now_read(read));
}

static Reads
foreign_reads(Unmerge *u, const ModuleNodes *nodes)
{
	Reads reads = {0};

	for (int i = 0; i < nodes->n; i++)
		for (size_t k = 0; k < nodes->at[i]->n_input; k++) {
			NodeProto *p = nodes->at[i];
			const char *kind = name_of_input(p, k),
				   *source = source_of(u->r, p->input[k]);
			if (!source)
				continue;
			Read read = {p, k, kind ? kind : name_last_part(source), kind};
			if (unmerge_is_foreign(u, &read) || is_of_another_kind(u, &read))
				vec_push(u->r->arena, &reads, read);
		}
	return reads;
}

/* ---- which name is whose */
/* Of two names of one parameter that the module has twice the exporter keeps the last; of merged ones the first. */
static bool
is_tied(const Unmerge *u, const char *name, const char *source)
{
	const char *kind = strmap_get(u->r->signature, name);
	const char *other = strmap_get(u->r->signature, source);

	return kind && kind == other &&
	       (intptr_t)strmap_get(u->order, name) < (intptr_t)strmap_get(u->order, source);
}

static bool
is_like(const Repairs *r, const char *made, const char *from)
{
	const TensorProto *a = strmap_get(r->model->initializers, made);
	const TensorProto *b = strmap_get(r->model->initializers, from);

	return a->data_type == b->data_type && a->n_dims == b->n_dims &&
	       (!a->n_dims || !memcmp(a->dims, b->dims, sizeof(*a->dims) * a->n_dims));
}

bool
unmerge_restore(Unmerge *u, const Read *read, const char *name)
{
	Model *model = u->r->model;
	const char *from = now_read(read), *own = edit_restored(model, name);

	if ((own && !is_like(u->r, own, from)) || is_tied(u, name, source_of(u->r, from)))
		return false;
	if (!own) {
		/* What was computed from a parameter has not the parameter's name. */
		const char *base = strmap_get(u->r->signature, from) ? name : from;
		own = edit_restore(model, RESTORED_MERGED, name, from,
		                   edit_copy(model, base, strmap_get(model->initializers, from)));
	}
	edit_node(model, read->node);
	read->node->input[read->input] = (char *)(uintptr_t)own;
	return true;
}

/* Reads of one tensor by like nodes: calls of one module, one after the other. */
static bool
are_repeated(const Reads *reads)
{
	for (int i = 1; i < reads->n; i++)
		if (reads->at[i].input != reads->at[0].input ||
		    strcmp(reads->at[i].node->op_type, reads->at[0].node->op_type) ||
		    strcmp(now_read(&reads->at[i]), now_read(&reads->at[0])))
			return false;
	return reads->n > 0;
}

static bool
restore_all(Unmerge *u, const Reads *reads, const char *name)
{
	bool done = are_repeated(reads);

	for (int i = 0; i < reads->n && done; i++)
		done = unmerge_restore(u, &reads->at[i], name);
	return done;
}

static bool
is_parameter(const Repairs *r, const char *name)
{
	const char *kind = strmap_get(r->signature, name);

	return kind && !strcmp(kind, ORIGIN_PARAMETER);
}

/* The only name of that last part that the read can be of. Nothing but its operator tells a buffer from numbers of the code; a
 * tensor that an operator reads nobody else does. */
static const char *
name_called(const Unmerge *u, const Names *lost, const Read *read)
{
	const char *found = NULL;

	for (int i = 0; i < lost->n; i++) {
		const char *name = lost->at[i];
		if (strcmp(name_last_part(name), read->called) ||
		    (!read->by_operator && !(is_parameter(u->r, name) && unmerge_is_lost(u, name))))
			continue;
		if (found)
			return NULL;
		found = name;
	}
	return found;
}

/* The reads that are called as reads[i] is; none where an earlier read was. */
static Reads
called_alike(Arena *arena, const Reads *reads, int i)
{
	Reads alike = {0};

	for (int k = 0; k < reads->n; k++) {
		if (strcmp(reads->at[k].called, reads->at[i].called) ||
		    reads->at[k].by_operator != reads->at[i].by_operator)
			continue;
		if (k < i)
			return (Reads){0};
		vec_push(arena, &alike, reads->at[k]);
	}
	return alike;
}

/* One parameter and the reads of one tensor are left. */
static void
match_the_last(Unmerge *u, const Names *lost, const Reads *all)
{
	const char *last = NULL;
	Reads reads = {0};
	int n = 0;

	for (int i = 0; i < lost->n; i++)
		if (is_parameter(u->r, lost->at[i]) && unmerge_is_lost(u, lost->at[i])) {
			last = lost->at[i];
			n++;
		}
	for (int i = 0; i < all->n; i++)
		if (!all->at[i].by_operator && unmerge_is_foreign(u, &all->at[i]))
			vec_push(u->r->arena, &reads, all->at[i]);
	if (n == 1)
		restore_all(u, &reads, last);
}

static void
match_names(Unmerge *u, const Names *lost, const Reads *reads, bool by_operator)
{
	for (int i = 0; i < reads->n; i++) {
		const char *name = reads->at[i].by_operator == by_operator
		                           ? name_called(u, lost, &reads->at[i])
		                           : NULL;
		const Reads alike = name ? called_alike(u->r->arena, reads, i) : (Reads){0};
		restore_all(u, &alike, name);
	}
}

static void
unmerge_module(Unmerge *u, const ModuleNodes *nodes, const Names *lost)
{
	const Reads reads = foreign_reads(u, nodes);

	match_names(u, lost, &reads, true);
	match_names(u, lost, &reads, false);
	match_the_last(u, lost, &reads);
}

/* The module whose nodes read the tensor: its own, or the module around where its own has no nodes. */
static const char *
reading_module(const Unmerge *u, const char *name)
{
	const char *own = arena_strndup(u->r->arena, name, name_module_length(name));

	return strmap_get(u->modules, own) ? own
	                                   : arena_strndup(u->r->arena, name, parent_length(name));
}

static void
unmerge_modules(Unmerge *u)
{
	Arena *arena = u->r->arena;
	const StringList *names = &u->r->signed_tensors;
	StrMap *lost = strmap_new(arena); /* path -> Names */
	Names modules = {0};

	for (int i = 0; i < names->n; i++) {
		if (!unmerge_is_lost(u, names->at[i]))
			continue;
		const char *module = reading_module(u, names->at[i]);
		Names *of = strmap_get(lost, module);
		if (!of) {
			of = NEW(arena, Names);
			strmap_put(lost, module, of);
			vec_push(arena, &modules, module);
		}
		vec_push(arena, of, names->at[i]);
	}
	for (int i = 0; i < modules.n; i++) {
		const ModuleNodes *nodes = strmap_get(u->modules, modules.at[i]);
		if (nodes)
			unmerge_module(u, nodes, strmap_get(lost, modules.at[i]));
	}
}

void
unmerge(Repairs *r)
{
	Arena *a = r->arena;
	Unmerge u = {r, strmap_new(a), strmap_new(a), strmap_new(a), strmap_new(a), strmap_new(a)};

	if (r->signed_tensors.n == 0)
		return;
	index_names(&u);
	index_nodes(&u);
	if (repair_enabled(r->options, "unmerge")) {
		unmerge_merged_biases(&u);
		unmerge_modules(&u);
	}
	if (repair_enabled(r->options, "biases"))
		unmerge_dropped_biases(&u);
}

/* Restores parameters that dynamo's exporter removed from the file. The signature still lists their
 * names.
 *
 *   unmerge  Equal fresh parameters became one initializer, for example the ones of two norms.
 *            The node of layers.1.norm that reads layers.0.norm.weight gets a
 *            layers.1.norm.weight of its own again.
 *   biases   A bias of zeros of a convolution or Gemm was dropped. The layer that had it reads
 *            zeros again, which train (lost_biases.c).
 *
 * Lost names claim reads: by the exporter's text of each call (unmerge_calls.c), else by the names
 * of modules (unmerge_modules.c). Then all claims are carried out. If the file does not tell to
 * which name a read belongs, the read stays unchanged. Calls of model-local functions also stay
 * unchanged, because their bodies are inlined. */
#include "frontend/weights/unmerge.h"
#include "frontend/weights/judge.h"
#include "frontend/weights/origins.h"

#include <string.h>

bool
unmerge_is_lost(const Unmerge *u, const char *name)
{
	return !strmap_get(u->in_file, name) && !strmap_get(u->claimed, name) &&
	       !edit_restored(u->r->model, name);
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

const char *
unmerge_source(const Repairs *r, const char *name)
{
	const Origin *o = strmap_get(r->origins, name);

	if (strmap_get(r->signature, name))
		return name;
	return o && o->from.n == 1 ? o->from.at[0] : NULL;
}

bool
unmerge_is_before(const Unmerge *u, const char *name, const char *other)
{
	return strmap_get(u->r->signature, name) == strmap_get(u->r->signature, other) &&
	       (intptr_t)strmap_get(u->order, name) < (intptr_t)strmap_get(u->order, other);
}

static void
index_values(Unmerge *u)
{
	const GraphProto *g = u->r->model->proto->graph;

	for (size_t i = 0; i < g->n_input; i++)
		strmap_put(u->values, g->input[i]->name, u);
	for (size_t i = 0; i < g->n_node; i++)
		for (size_t k = 0; k < g->node[i]->n_output; k++)
			strmap_put(u->values, g->node[i]->output[k], u);
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

const char *
unmerge_name_of_input(const NodeProto *p, size_t input)
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
		if (is_op(p, rows[i].op))
			return input < COUNT(rows[i].inputs) ? rows[i].inputs[input] : NULL;
	return NULL;
}

Read
unmerge_read(const Unmerge *u, NodeProto *p, size_t input)
{
	const char *kind = unmerge_name_of_input(p, input),
		   *source = unmerge_source(u->r, p->input[input]);

	return (Read){p, input, kind ? kind : name_last_part(source ? source : ""), kind};
}

static void
add_claim(Unmerge *u, RestoredKind kind, const Reads *reads, const char *name)
{
	const char *from = reads->at[0].node->input[reads->at[0].input];

	vec_push(u->r->arena, &u->claims, ((Claim){kind, name, from, *reads}));
}

void
unmerge_claim_number(Unmerge *u, const Reads *reads, const char *from)
{
	add_claim(u, RESTORED_NUMBER, reads, from);
}

void
unmerge_claim(Unmerge *u, const Reads *reads, const char *name)
{
	const char *from = reads->at[0].node->input[reads->at[0].input];
	bool raw = strmap_get(u->r->signature, from);

	add_claim(u, raw ? RESTORED_MERGED : RESTORED_COMPUTED, reads, name);
	strmap_put(u->claimed, name, u);
}

/* A tensor computed from a parameter keeps its own name rather than the parameter's; a number of the
 * code has no name in the module. */
static const char *
name_of_restored(const Unmerge *u, const Claim *claim)
{
	switch (claim->kind) {
	case RESTORED_COMPUTED: return claim->from;
	case RESTORED_NUMBER: return arena_printf(u->r->arena, "%s_in_code", claim->from);
	default: return claim->name;
	}
}

static void
restore(Unmerge *u, const Claim *claim)
{
	Model *model = u->r->model;
	const TensorProto *from = strmap_get(model->initializers, claim->from);
	const char *own = edit_restore(model, claim->kind, claim->name, claim->from,
	                               edit_copy(model, name_of_restored(u, claim), from));

	for (int i = 0; i < claim->reads.n; i++) {
		const Read *read = &claim->reads.at[i];
		edit_node(model, read->node);
		read->node->input[read->input] = (char *)(uintptr_t)own;
	}
}

void
unmerge(Repairs *r)
{
	Arena *a = r->arena;
	Unmerge u = {.r = r,
	             .in_file = strmap_new(a),
	             .order = strmap_new(a),
	             .modules = nodes_by_module(r->model->proto->graph, a),
	             .homes = strmap_new(a),
	             .values = strmap_new(a),
	             .claimed = strmap_new(a),
	             .claimed_reads = intmap_new(a),
	             .one_valued = intmap_new(a)};

	if (r->signed_tensors.n == 0)
		return;
	index_names(&u);
	index_values(&u);
	if (repair_enabled(r->options, "unmerge")) {
		unmerge_claim_by_calls(&u);
		unmerge_claim_by_modules(&u);
		for (int i = 0; i < u.claims.n; i++)
			restore(&u, &u.claims.at[i]);
	}
	if (repair_enabled(r->options, "biases"))
		unmerge_dropped_biases(&u);
}

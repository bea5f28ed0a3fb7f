/* Raises a model's opset, if its operators mean the same in the new opset. */
#include "frontend/edit/edit.h"

#include <string.h>

/* Does the node's form get another meaning, although the new schema accepts it? */
static bool
changes_silently(const Model *model, const NodeProto *p, int to)
{
	int changed = operator_facts(model, p)->changed;

	return model->opset < changed && to >= changed;
}

static bool
has_required(const NodeProto *p, const SchemaRow *b)
{
	char name[64];

	for (const char *at = b->attributes; *at; at += strspn(at, " ")) {
		size_t n = strcspn(at, ":"), all = strcspn(at, " ");
		snprintf(name, sizeof(name), "%.*s", (int)n, at);
		if (at[all - 1] == '!' && !node_attribute(p, name))
			return false;
		at += all;
	}
	return true;
}

/* Does the node mean the same in the model's opset and in `to`? The new schema must accept its
 * inputs, outputs and attributes. An absent attribute has the old behaviour as its default, by ONNX's rules
 * (docs/Versioning.md). */
static bool
means_the_same(const Model *model, const NodeProto *p, int to)
{
	const SchemaRow *a = schema_find(p->op_type, model->opset),
			*b = schema_find(p->op_type, to);

	if (*domain_of(p->domain) || a == b)
		return true;
	if (!a || !b || changes_silently(model, p, to) || *b->attributes == '-' ||
	    (int)p->n_input > b->max_in || (int)p->n_input < b->min_in ||
	    (int)p->n_output > b->max_out)
		return false;
	for (size_t i = 0; i < p->n_attribute; i++) {
		char was = schema_attribute(a, p->attribute[i]->name),
		     is = schema_attribute(b, p->attribute[i]->name);
		if (!is || (was && was != is))
			return false;
	}
	for (int i = 0; i < 32 && i < b->max_in; i++)
		if (b->required >> i & 1 && (i >= (int)p->n_input || !*p->input[i]))
			return false;
	return has_required(p, b);
}

/* ---- attributes that became inputs */
static bool
had_attribute(const SchemaRow *a, const SchemaRow *b, const char *name)
{
	return a && b && schema_attribute(a, name) && !schema_attribute(b, name);
}

static void
drop_attribute(NodeProto *p, const AttributeProto *a)
{
	size_t n = 0;

	for (size_t i = 0; i < p->n_attribute; i++)
		if (p->attribute[i] != a)
			p->attribute[n++] = p->attribute[i];
	p->n_attribute = n;
}

/* Turns an attribute of integers into the node's last input: an initializer of the main graph, which
 * subgraphs may read. */
static void
attribute_to_input(Model *model, NodeProto *p, const AttributeProto *a)
{
	const char *ending = arena_printf(model->arena, "_%s", a->name);
	Ints shape = {.n = 1, .at = {(int64_t)a->n_ints}};
	const char *name = edit_add_initializer(model, p->output[0], ending, S64, &shape, a->ints);

	p->input = edit_grown(model, p->input, p->n_input++, name);
	drop_attribute(p, a);
}

static void
number_outputs(Model *model, NodeProto *p)
{
	const AttributeProto *a = edit_int(model, "num_outputs", (int64_t)p->n_output);

	p->attribute = edit_grown(model, p->attribute, p->n_attribute++, a);
}

/* The axes of reductions, Squeeze and Unsqueeze became an input. Split needs its number of outputs
 * as an attribute. */
static void
convert(Model *model, NodeProto *p, int to)
{
	const SchemaRow *a = schema_find(p->op_type, model->opset),
			*b = schema_find(p->op_type, to);
	const AttributeProto *axes = node_attribute(p, "axes");

	if (*domain_of(p->domain) || a == b)
		return;
	if (axes && p->n_input == 1 && had_attribute(a, b, "axes") && b->max_in == 2) {
		edit_node(model, p);
		attribute_to_input(model, p, axes);
	}
	if (is_op(p, "Split") && b && schema_attribute(b, "num_outputs") && p->n_input == 1 &&
	    !node_attribute(p, "split") && !node_attribute(p, "num_outputs")) {
		edit_node(model, p);
		number_outputs(model, p);
	}
}

static void
raise_graph(Model *model, GraphProto *g, int to, Diag *diag)
{
	for (size_t i = 0; i < g->n_node; i++) {
		NodeProto *p = g->node[i];
		FlatNode n = {.proto = p, .opset = model->opset};
		convert(model, p, to);
		if (!means_the_same(model, p, to))
			node_error(model, diag, &n, EXIT_UNSUPPORTED,
			           "opset %d has another meaning of %s: convert the model first",
			           to, p->op_type);
		for (size_t k = 0; k < p->n_attribute; k++)
			if (p->attribute[k]->g)
				raise_graph(model, p->attribute[k]->g, to, diag);
	}
}

static void
raise_nodes(FlatNodes *nodes, int to)
{
	for (int i = 0; i < nodes->n; i++)
		if (!*domain_of(nodes->at[i].proto->domain))
			nodes->at[i].opset = to;
}

static void
raise_subgraphs(const Model *model, const GraphProto *g, int to)
{
	for (size_t i = 0; i < g->n_node; i++)
		for (size_t k = 0; k < g->node[i]->n_attribute; k++) {
			const GraphProto *inner = g->node[i]->attribute[k]->g;
			uint64_t found;
			if (inner &&
			    intmap_get(model->subgraphs, (uint64_t)(uintptr_t)inner, &found))
				raise_nodes((FlatNodes *)(uintptr_t)found, to);
			if (inner)
				raise_subgraphs(model, inner, to);
		}
}

bool
model_raise_opset(Model *model, int to, Diag *diag)
{
	ModelProto *m = model->proto;
	int before = diag_errors(diag);

	if (to < model->opset || to > NEWEST_OPSET) {
		diag_error(diag, EXIT_USAGE,
		           "--opset=%d: must be between the model's opset %d and %d", to,
		           model->opset, NEWEST_OPSET);
		return false;
	}
	if (to != model->opset)
		raise_graph(model, m->graph, to, diag);
	if (m->n_functions && to != model->opset)
		model_error(model, diag, EXIT_UNSUPPORTED,
		            "--opset: the model has functions of its own");
	for (size_t i = 0; i < m->n_opset_import; i++)
		if (!*domain_of(m->opset_import[i]->domain))
			m->opset_import[i]->version = to;
	raise_nodes(&model->nodes, to);
	raise_subgraphs(model, m->graph, to);
	model->opset = to;
	return diag_errors(diag) == before;
}

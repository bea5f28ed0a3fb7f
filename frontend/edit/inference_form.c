/* Brings nodes in training form to inference form. A batch norm then normalizes by its running
 * statistics, and Dropout passes its input on. The further outputs of a batch norm in inference form
 * are the running statistics themselves, so nodes that read such an output read the statistic. An
 * exported model keeps its Dropout nodes, so that --train-mode=restore brings back the training
 * form. */
#include "frontend/edit/edit.h"

#include <string.h>

enum { TRAINING_MODE_INPUT = 2, OPSET_OF_TRAINING_MODE = 14 };

/* A graph with its subgraphs, or a function: names mean the same in all of it. */
typedef struct {
	Model *model;
	Diag *diag;
	Arena *arena;
	int opset;         /* opset of ai.onnx */
	StrMap *constants; /* name of an initializer or Constant -> its TensorProto */
	StrMap *outputs;   /* names of the outputs of the graph and its subgraphs */
	StrMap *instead;   /* further output of a batch norm -> the statistic to read instead */
	StrMap *gone;      /* names of values that no node makes any more */
	InferenceForm found;
} Scope;

/* ---- facts of a scope */
/* Two subgraphs, such as the branches of an If, may use a name for different values. So constants
 * are noted in the order of the nodes. */
static void
note_constant(Scope *s, const NodeProto *p)
{
	const AttributeProto *value = is_op(p, "Constant") ? node_attribute(p, "value") : NULL;

	if (value && value->t && p->n_output)
		strmap_put(s->constants, p->output[0], value->t);
}

static void
note_initializers(Scope *s, const GraphProto *g)
{
	for (size_t i = 0; i < g->n_initializer; i++)
		strmap_put(s->constants, g->initializer[i]->name, g->initializer[i]);
}

static void note_outputs(Scope *s, const GraphProto *g);

static void
note_inner_outputs(Scope *s, size_t n, NodeProto *const *nodes)
{
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < nodes[i]->n_attribute; k++)
			if (nodes[i]->attribute[k]->g)
				note_outputs(s, nodes[i]->attribute[k]->g);
}

static void
note_outputs(Scope *s, const GraphProto *g)
{
	for (size_t i = 0; i < g->n_output; i++)
		strmap_put(s->outputs, g->output[i]->name, (void *)1);
	note_inner_outputs(s, g->n_node, g->node);
}

static Scope
scope_new(Model *model, int opset, Arena *arena, Diag *diag)
{
	return (Scope){.model = model,
	               .diag = diag,
	               .arena = arena,
	               .opset = opset,
	               .constants = strmap_new(arena),
	               .outputs = strmap_new(arena),
	               .instead = strmap_new(arena),
	               .gone = strmap_new(arena)};
}

/* The value of a constant with one element; false: it is not known. */
static bool
constant_number(const Scope *s, const char *name, double *out)
{
	const TensorProto *t = strmap_get(s->constants, name);
	TensorData data;

	if (!t || t->n_dims > 1 || (t->n_dims == 1 && t->dims[0] != 1) ||
	    !tensor_load(s->model, t, false, &data, s->diag) || data.n != 1)
		return false;
	*out = dtype_is_float(data.dtype) ? dtype_load_float(data.dtype, data.data, 0)
	                                  : (double)dtype_load_int(data.dtype, data.data, 0);
	return true;
}

/* May the Dropout node be active? It may if its third input, training_mode, is not known to be
 * false, and its ratio is not known to be 0. */
static bool
drops(const Scope *s, const NodeProto *p)
{
	double number;

	if (p->n_input <= TRAINING_MODE_INPUT || !*p->input[TRAINING_MODE_INPUT])
		return false;
	if (constant_number(s, p->input[TRAINING_MODE_INPUT], &number) && number == 0)
		return false;
	return !*p->input[1] || !constant_number(s, p->input[1], &number) || number != 0;
}

static bool
is_training_norm(const Scope *s, const NodeProto *p)
{
	const AttributeProto *mode = node_attribute(p, "training_mode");

	if (s->opset < OPSET_OF_TRAINING_MODE)
		return p->n_output > 1;
	/* a function's attribute may refer to an attribute of the call */
	return mode && (mode->i || (mode->ref_attr_name && *mode->ref_attr_name));
}

static bool
is_norm(const NodeProto *p)
{
	return is_op(p, "BatchNormalization");
}

static bool
is_training(const Scope *s, const NodeProto *p)
{
	return is_norm(p) ? is_training_norm(s, p) : is_op(p, "Dropout") && drops(s, p);
}

/* Makes a batch norm use its running statistics. The node's lists are the caller's. */
static void
freeze(NodeProto *norm)
{
	size_t n = 0;

	norm->n_output = 1;
	for (size_t i = 0; i < norm->n_attribute; i++)
		if (strcmp(norm->attribute[i]->name, "training_mode") != 0)
			norm->attribute[n++] = norm->attribute[i];
	norm->n_attribute = n;
}

/* ---- for `gradc quantize`: the model itself is changed */
static bool
others_are_read(const Neighbours *all, const NodeProto *p)
{
	bool any = false;

	for (size_t i = 1; i < p->n_output; i++)
		any |= *p->output[i] && count_readers(all, p->output[i]) > 0;
	return any;
}

/* Turns Dropout into Identity, so its readers need no change. */
static void
drop(NodeProto *dropout)
{
	dropout->op_type = (char *)(uintptr_t) "Identity";
	dropout->n_input = dropout->n_output = 1;
	dropout->n_attribute = 0;
}

bool
model_use_inference_form(Model *model, Diag *diag)
{
	Arena *scratch = arena_new();
	GraphProto *g = edit_graph(model);
	Neighbours all = neighbours_of(g, scratch);
	Scope s = scope_new(model, model->opset, scratch, diag);
	int n_training = 0, before = diag_errors(diag);

	note_initializers(&s, g);
	for (size_t i = 0; i < g->n_node; i++) {
		NodeProto *p = g->node[i];
		bool training = is_training(&s, p);
		note_constant(&s, p);
		if (!is_norm(p) && !is_op(p, "Dropout"))
			continue;
		n_training += training;
		if (!others_are_read(&all, p)) {
			edit_node(model, p);
			is_norm(p) ? freeze(p) : drop(p);
		} else if (training)
			model_error(
				model, diag, EXIT_UNSUPPORTED,
				"node %s is in training form, and its other outputs are read: export the "
				"model for inference",
				quoted(model, node_location(p)));
	}
	if (n_training && diag_errors(diag) == before)
		diag_warning(diag,
		             "the model is in training form: it is quantized in inference form, "
		             "without dropout and with running statistics (%d nodes)",
		             n_training);
	arena_free(scratch);
	return diag_errors(diag) == before;
}

/* ---- for exports: what changes is copied */
typedef VEC(NodeProto *) Nodes;

/* A copy of the node with lists of its own. */
static NodeProto *
node_copy(const Scope *s, const NodeProto *from)
{
	NodeProto *p = arena_copy(s->arena, from, sizeof(*p));

	p->input = arena_copy(s->arena, p->input, sizeof(*p->input) * p->n_input);
	p->output = arena_copy(s->arena, p->output, sizeof(*p->output) * p->n_output);
	p->attribute = arena_copy(s->arena, p->attribute, sizeof(*p->attribute) * p->n_attribute);
	return p;
}

/* Names from outside the scope's nodes, and "", stay. */
static const char *
renamed(const Scope *s, const char *name)
{
	const char *other = *name ? strmap_get(s->instead, name) : NULL;

	return other ? other : name;
}

static bool edit_nodes(Scope *s, size_t *n, NodeProto ***nodes);

static GraphProto *
inner_graph(Scope *s, const GraphProto *from)
{
	GraphProto *g = arena_copy(s->arena, from, sizeof(*g));

	note_initializers(s, from);
	return edit_nodes(s, &g->n_node, &g->node) ? g : NULL;
}

/* The node with the inputs and subgraphs of inference form: a copy, or `from` if nothing changes. */
static NodeProto *
edit_inputs(Scope *s, NodeProto *from)
{
	NodeProto *p = from;

	for (size_t i = 0; i < from->n_input; i++) {
		const char *name = renamed(s, from->input[i]);
		if (name == from->input[i])
			continue;
		p = p == from ? node_copy(s, from) : p;
		p->input[i] = (char *)(uintptr_t)name;
	}
	for (size_t i = 0; i < from->n_attribute; i++) {
		GraphProto *g = from->attribute[i]->g ? inner_graph(s, from->attribute[i]->g)
		                                      : NULL;
		if (!g)
			continue;
		p = p == from ? node_copy(s, from) : p;
		p->attribute[i] = arena_copy(s->arena, p->attribute[i], sizeof(AttributeProto));
		p->attribute[i]->g = g;
	}
	return p;
}

/* An Identity from a statistic to an output of the graph, which must stay. */
static NodeProto *
output_node(const Scope *s, const char *from, const char *to)
{
	NodeProto *p = NEW(s->arena, NodeProto);
	char **names = NEW_ARRAY(s->arena, char *, 2);

	onnx__node_proto__init(p);
	names[0] = (char *)(uintptr_t)from;
	names[1] = (char *)(uintptr_t)to;
	p->op_type = (char *)(uintptr_t) "Identity";
	p->n_input = p->n_output = 1;
	p->input = names;
	p->output = names + 1;
	return p;
}

/* The outputs after the first one are mean, variance, and before opset 14 again both of them. */
static void
replace_outputs(Scope *s, const NodeProto *norm, Nodes *out)
{
	enum { MEAN = 3, VARIANCE };

	for (size_t i = 1; i < norm->n_output; i++) {
		const char *name = norm->output[i];
		const char *statistic = norm->input[i % 2 ? MEAN : VARIANCE];
		if (!*name)
			continue;
		strmap_put(s->gone, name, (void *)1);
		if (strmap_get(s->outputs, name))
			vec_push(s->arena, out, output_node(s, statistic, name));
		else
			strmap_put(s->instead, name, (void *)(uintptr_t)statistic);
	}
}

static void
edit_node_form(Scope *s, NodeProto *from, Nodes *out)
{
	NodeProto *p = edit_inputs(s, from);

	note_constant(s, from);
	for (size_t i = 0; i < from->n_output; i++)
		if (strmap_get(s->instead, from->output[i])) /* a value of another subgraph */
			strmap_put(s->instead, from->output[i], NULL);
	if (!is_training(s, from)) {
		vec_push(s->arena, out, p);
		return;
	}
	p = p == from ? node_copy(s, from) : p;
	vec_push(s->arena, out, p);
	if (is_norm(p)) {
		replace_outputs(s, p, out);
		freeze(p);
		s->found.norms++;
		return;
	}
	p->n_input = *p->input[1] ? TRAINING_MODE_INPUT : 1;
	s->found.dropouts++;
}

/* Replaces a list of nodes; false: nothing changes. */
static bool
edit_nodes(Scope *s, size_t *n, NodeProto ***nodes)
{
	Nodes out = {0};
	bool changed = false;

	for (size_t i = 0; i < *n; i++) {
		int at = out.n;
		edit_node_form(s, (*nodes)[i], &out);
		changed |= out.at[at] != (*nodes)[i];
	}
	if (!changed)
		return false;
	*n = (size_t)out.n;
	*nodes = out.at;
	return true;
}

/* Drops the types of values that no node makes any more. */
static void
drop_types(const Scope *s, GraphProto *g)
{
	ValueInfoProto **kept = NEW_ARRAY(s->arena, ValueInfoProto *, g->n_value_info);
	size_t n = 0;

	for (size_t i = 0; i < g->n_value_info; i++) {
		const char *name = g->value_info[i]->name;
		if (!name || !strmap_get(s->gone, name))
			kept[n++] = g->value_info[i];
	}
	g->value_info = kept;
	g->n_value_info = n;
}

/* Has the graph lost all readers of a value that `before` counts readers of? */
static bool
lost_readers(const StrMap *before, const StrMap *after, const char *name)
{
	return strmap_get(before, name) && !strmap_get(after, name);
}

/* Drops initializers and Constant nodes that only Dropout read, as training_mode. An initializer
 * that is also an input of the graph stays. */
static void
drop_modes(Scope *s, GraphProto *g, const StrMap *before)
{
	StrMap *after = strmap_new(s->arena), *inputs = strmap_new(s->arena);
	TensorProto **tensors = NEW_ARRAY(s->arena, TensorProto *, g->n_initializer);
	NodeProto **nodes = NEW_ARRAY(s->arena, NodeProto *, g->n_node);
	size_t n_tensors = 0, n_nodes = 0;

	graph_count_readers(g, after);
	for (size_t i = 0; i < g->n_input; i++)
		strmap_put(inputs, g->input[i]->name, (void *)1);
	for (size_t i = 0; i < g->n_initializer; i++) {
		const char *name = g->initializer[i]->name;
		if (!lost_readers(before, after, name) || strmap_get(inputs, name))
			tensors[n_tensors++] = g->initializer[i];
		else
			strmap_put(s->gone, name, (void *)1);
	}
	for (size_t i = 0; i < g->n_node; i++) {
		NodeProto *p = g->node[i];
		if (!is_op(p, "Constant") || !lost_readers(before, after, p->output[0]))
			nodes[n_nodes++] = p;
		else
			strmap_put(s->gone, p->output[0], (void *)1);
	}
	g->initializer = tensors;
	g->n_initializer = n_tensors;
	g->node = nodes;
	g->n_node = n_nodes;
}

static void
edit_function(Model *model, ModelProto *m, size_t i, InferenceForm *found, Arena *arena, Diag *diag)
{
	FunctionProto *f = arena_copy(arena, m->functions[i], sizeof(*f));
	int opset = opset_version(f->n_opset_import, f->opset_import, "");
	Scope s = scope_new(model, opset ? opset : model->opset, arena, diag);

	for (size_t k = 0; k < f->n_output; k++)
		strmap_put(s.outputs, f->output[k], (void *)1);
	note_inner_outputs(&s, f->n_node, f->node);
	if (edit_nodes(&s, &f->n_node, &f->node))
		m->functions[i] = f;
	found->norms += s.found.norms;
	found->dropouts += s.found.dropouts;
}

InferenceForm
model_inference_edit(Model *model, ModelProto *m, GraphProto *g, Arena *arena, Diag *diag)
{
	Scope s = scope_new(model, model->opset, arena, diag);
	StrMap *before = strmap_new(arena);

	note_initializers(&s, g);
	note_outputs(&s, g);
	graph_count_readers(g, before);
	if (edit_nodes(&s, &g->n_node, &g->node)) {
		drop_modes(&s, g, before);
		drop_types(&s, g);
	}
	m->functions = arena_copy(arena, m->functions, sizeof(*m->functions) * m->n_functions);
	for (size_t i = 0; i < m->n_functions; i++)
		edit_function(model, m, i, &s.found, arena, diag);
	return s.found;
}

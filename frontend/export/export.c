/* Writes the templates from which a training executable exports its model: the input file's bytes,
 * with holes for the tensors that training changes. There is a template for each form of the model:
 * inference form, and as imported if that differs. */
#include "frontend/export/template.h"

#include <string.h>

enum { MODEL_GRAPH = 7 };

/* ---- nodes: the tensor of a Constant node becomes a hole; stack traces are dropped, and so are
 * Identity nodes that became parameters */
static bool
is_stack_trace(const Onnx__StringStringEntryProto *p)
{
	size_t n = p->key ? strlen(p->key) : 0;

	return n >= 11 && !strcmp(p->key + n - 11, "stack_trace");
}

static void
drop_traces(Export *e, NodeProto *n)
{
	Onnx__StringStringEntryProto **kept = NEW_ARRAY(e->arena, Onnx__StringStringEntryProto *,
	                                                n->n_metadata_props);
	size_t count = 0;

	for (size_t i = 0; i < n->n_metadata_props; i++)
		if (!is_stack_trace(n->metadata_props[i]))
			kept[count++] = n->metadata_props[i];
	n->metadata_props = kept;
	n->n_metadata_props = count;
}

/* A copy of the tensor with a hole for its bytes. */
static TensorProto *
tensor_with_hole(Export *e, const Weight *w)
{
	TensorProto *t = arena_copy(e->arena, w->tensor, sizeof(*t));

	tensor_clear_data(t);
	t->has_data_location = 0;
	t->has_raw_data = 1;
	/* A unique address stands for the bytes; nothing reads memory at this address. */
	t->raw_data.data = arena_alloc(e->arena, 16);
	t->raw_data.len = (size_t)dtype_bytes(w->data.dtype, w->data.n);
	intmap_put(e->holes, (uint64_t)(uintptr_t)t->raw_data.data, (uint64_t)(uintptr_t)w);
	return t;
}

static GraphProto *inner_graph(Export *e, const GraphProto *from);

/* Copies the attributes of n, a copy of a node, and puts holes in place of a Constant's tensor and
 * of tensors in subgraphs. */
static void
open_holes(Export *e, NodeProto *n, const Weight *constant)
{
	n->attribute = arena_copy(e->arena, n->attribute, sizeof(*n->attribute) * n->n_attribute);
	for (size_t i = 0; i < n->n_attribute; i++) {
		AttributeProto *a = n->attribute[i];
		bool here = constant && a->t == constant->tensor;
		if (!here && !a->g)
			continue;
		a = n->attribute[i] = arena_copy(e->arena, a, sizeof(*a));
		a->t = here ? tensor_with_hole(e, constant) : a->t;
		a->g = a->g ? inner_graph(e, a->g) : NULL;
	}
}

static const Weight *
trained_inside(const Export *e, const TensorProto *t)
{
	return weight_trained(inner_weight(e->info->repairs, t));
}

static GraphProto *
inner_graph(Export *e, const GraphProto *from)
{
	GraphProto *g = arena_copy(e->arena, from, sizeof(*g));

	g->initializer = NEW_ARRAY(e->arena, TensorProto *, (int64_t)from->n_initializer);
	g->node = NEW_ARRAY(e->arena, NodeProto *, (int64_t)from->n_node);
	for (size_t i = 0; i < from->n_initializer; i++) {
		const Weight *w = trained_inside(e, from->initializer[i]);
		g->initializer[i] = w ? tensor_with_hole(e, w) : from->initializer[i];
	}
	for (size_t i = 0; i < from->n_node; i++) {
		NodeProto *n = arena_copy(e->arena, from->node[i], sizeof(*n));
		const AttributeProto *a = is_op(n, "Constant") ? node_attribute(n, "value") : NULL;
		open_holes(e, n, a ? trained_inside(e, a->t) : NULL);
		g->node[i] = n;
	}
	return g;
}

/* A copy of the node; NULL: the node is dropped. */
static NodeProto *
export_node(Export *e, const NodeProto *from, bool main_graph)
{
	NodeProto *n = arena_copy(e->arena, from, sizeof(*from));
	const Weight *w = main_graph && from->n_output == 1
	                          ? repairs_weight(e->info->repairs, from->output[0])
	                          : NULL;

	if (!e->info->keep_metadata)
		drop_traces(e, n);
	if (w && w->identity == from && weight_stands_alone(w))
		return NULL;
	if (main_graph)
		open_holes(e, n, w && w->constant == from ? weight_trained(w) : NULL);
	e->failed |= !node_take_data_in(e->model, n, e->diag);
	return n;
}

static void
export_nodes(Export *e, size_t *n, NodeProto ***nodes, bool main_graph)
{
	NodeProto **kept = NEW_ARRAY(e->arena, NodeProto *, *n);
	size_t count = 0;

	for (size_t i = 0; i < *n; i++)
		if ((kept[count] = export_node(e, (*nodes)[i], main_graph)))
			count++;
	*nodes = kept;
	*n = count;
}

/* ---- the model */
/* The messages of a template: the model without its graph, and the graph. */
typedef struct {
	ModelProto model;
	GraphProto graph;
} Messages;

static void
put_graph(Export *e, const GraphProto *g, const TensorPlan *plans, int n)
{
	Length total = initializers_length(plans, n);
	GraphProto rest = *g;

	rest.n_initializer = rest.n_input = 0;
	total.base += (int64_t)protobuf_c_message_get_packed_size(&rest.base) +
	              preprocess_inputs_length(g).base;
	put_graph_header(e, MODEL_GRAPH, total);
	preprocess_put_nodes(e);
	pack_message(e, &rest);
	preprocess_put_inputs(e, g);
	put_initializers(e, plans, n);
	preprocess_put_operands(e);
}

static bool
put_model(Export *e, Messages m)
{
	int n;

	preprocess_find(e, &m.graph);
	preprocess_readers(e, &m.graph);
	TensorPlan *plans = plan_initializers(e, &m.graph, &n);

	if (!plans)
		return false;
	export_nodes(e, &m.graph.n_node, &m.graph.node, true);
	m.model.functions = arena_copy(e->arena, m.model.functions,
	                               sizeof(*m.model.functions) * m.model.n_functions);
	for (size_t i = 0; i < m.model.n_functions; i++) {
		FunctionProto *f = arena_copy(e->arena, m.model.functions[i], sizeof(*f));
		export_nodes(e, &f->n_node, &f->node, false);
		m.model.functions[i] = f;
	}
	m.model.graph = NULL;
	pack_message(e, &m.model);
	put_graph(e, &m.graph, plans, n);
	put_data(e, plans, n);
	return !e->failed;
}

/* Writes a template in inference form, and another as imported if the forms differ. */
static bool
put_forms(Export *e, Messages as_imported, InferenceForm *changed)
{
	Messages m = as_imported;
	int64_t data_bytes = e->data_bytes;
	bool ok;

	*changed = model_inference_edit(e->model, &m.model, &m.graph, e->arena, e->diag);
	e->form = FORM_INFERENCE;
	ok = put_model(e, m);
	if (!ok || changed->norms + changed->dropouts == 0)
		return ok;
	e->form = FORM_AS_IMPORTED;
	e->file = 0;
	e->data_bytes = data_bytes;
	return put_model(e, as_imported);
}

/* "4 batch norms by running statistics, 2 dropouts off" */
static void
write_changes(FormatWriter *w, const InferenceForm *changed)
{
	Text t = {0};

	if (changed->norms)
		text_printf(&t, "%d batch norm%s by running statistics", changed->norms,
		            changed->norms > 1 ? "s" : "");
	if (changed->dropouts)
		text_printf(&t, "%s%d dropout%s off", t.n ? ", " : "", changed->dropouts,
		            changed->dropouts > 1 ? "s" : "");
	format_info(w, "inference_form", "%s", t.n ? t.at : "");
	text_free(&t);
}

static bool
write_templates(Export *e, bool merged)
{
	FakeQuantization *quantize = e->info->quantize;
	Messages m = {*e->model->proto, *e->model->proto->graph};
	const char *without = NULL;
	InferenceForm changed;
	QuantizedModel edited;

	if (quantize) {
		model_quantize_edit(e->model, &quantize->tensors, quantize->opset, &edited);
		m = (Messages){edited.proto, edited.graph};
		e->parts = edited.parts;
	}
	e->which = merged ? EXPORTED_MERGED : EXPORTED_TRAINED;
	if (e->m->adapters.n && !merged)
		without = model_branch_edit(e->m, quantize ? &quantize->tensors : NULL, &m.graph,
		                            e->branches, e->arena);
	if (without) {
		format_info(e->w, "no_branch", "%s", without);
		return true;
	}
	e->file = 0;
	e->data_bytes = 0;
	if (!put_forms(e, m, &changed))
		return false;
	if (merged ==
	    (e->m->adapters.n > 0)) /* once; with adapters, the merged model is always written */
		write_changes(e->w, &changed);
	return true;
}

bool
model_export_template(const Module *m, FormatWriter *w, Diag *diag)
{
	const ImportInfo *info = m->import;
	Arena *arena = arena_new();
	Export e = {.m = m,
	            .w = w,
	            .model = info->base.model,
	            .info = info,
	            .diag = diag,
	            .arena = arena,
	            .holes = intmap_new(arena),
	            .branches = intmap_new(arena),
	            .known = intmap_new(arena)};

	template_open(&e);
	bool ok = write_templates(&e, false) && (m->adapters.n == 0 || write_templates(&e, true));
	if (e.not_preprocessed)
		format_info(w, "no_preprocessing", "%s", e.not_preprocessed);
	arena_free(arena);
	return ok;
}

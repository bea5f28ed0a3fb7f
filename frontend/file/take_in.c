/* Copies tensor data from external files into the model, because a model written to another folder
 * would not find these files. The data go into copies of the messages; the original messages stay
 * unchanged, because protobuf-c frees them. */
#include "frontend/file/file.h"

typedef struct {
	Model *model;
	Diag *diag;
	bool ok;
} TakeIn;

static void take_graph(TakeIn *k, GraphProto *g);

/* A copy of the message with the data inside; the message itself if its data is inside already, or
 * if only shapes were read. */
static TensorProto *
taken_tensor(TakeIn *k, TensorProto *from)
{
	TensorData data;

	if (!tensor_is_external(from))
		return from;
	if (!tensor_load(k->model, from, false, &data, k->diag)) {
		k->ok = false;
		return from;
	}
	if (!data.data)
		return from;
	TensorProto *t = arena_copy(k->model->arena, from, sizeof(*t));
	t->has_data_location = 0;
	t->n_external_data = 0;
	t->has_raw_data = 1;
	t->raw_data.len = (size_t)dtype_bytes(data.dtype, data.n);
	t->raw_data.data = (uint8_t *)(uintptr_t)data.data;
	return t;
}

static TensorProto **
taken_tensors(TakeIn *k, TensorProto **from, size_t n)
{
	TensorProto **list = NEW_ARRAY(k->model->arena, TensorProto *, (int64_t)n);

	for (size_t i = 0; i < n; i++)
		list[i] = taken_tensor(k, from[i]);
	return list;
}

static GraphProto *
taken_graph(TakeIn *k, const GraphProto *from)
{
	GraphProto *g = arena_copy(k->model->arena, from, sizeof(*g));

	take_graph(k, g);
	return g;
}

static AttributeProto *
taken_attribute(TakeIn *k, AttributeProto *from)
{
	if (!from->t && !from->g && !from->n_tensors && !from->n_graphs)
		return from;
	AttributeProto *a = arena_copy(k->model->arena, from, sizeof(*a));
	a->t = a->t ? taken_tensor(k, a->t) : NULL;
	a->g = a->g ? taken_graph(k, a->g) : NULL;
	a->tensors = taken_tensors(k, a->tensors, a->n_tensors);
	a->graphs = NEW_ARRAY(k->model->arena, GraphProto *, (int64_t)a->n_graphs);
	for (size_t i = 0; i < a->n_graphs; i++)
		a->graphs[i] = taken_graph(k, from->graphs[i]);
	return a;
}

static void
take_node(TakeIn *k, NodeProto *p)
{
	AttributeProto **list = NEW_ARRAY(k->model->arena, AttributeProto *,
	                                  (int64_t)p->n_attribute);

	for (size_t i = 0; i < p->n_attribute; i++)
		list[i] = taken_attribute(k, p->attribute[i]);
	p->attribute = list;
}

static NodeProto **
taken_nodes(TakeIn *k, NodeProto **from, size_t n)
{
	NodeProto **list = NEW_ARRAY(k->model->arena, NodeProto *, (int64_t)n);

	for (size_t i = 0; i < n; i++) {
		list[i] = arena_copy(k->model->arena, from[i], sizeof(NodeProto));
		take_node(k, list[i]);
	}
	return list;
}

static void
take_graph(TakeIn *k, GraphProto *g)
{
	g->initializer = taken_tensors(k, g->initializer, g->n_initializer);
	g->node = taken_nodes(k, g->node, g->n_node);
}

bool
node_take_data_in(Model *model, NodeProto *p, Diag *diag)
{
	TakeIn k = {model, diag, true};

	take_node(&k, p);
	return k.ok;
}

bool
model_take_data_in(Model *model, ModelProto *m, Diag *diag)
{
	TakeIn k = {model, diag, true};
	FunctionProto **functions = NEW_ARRAY(model->arena, FunctionProto *,
	                                      (int64_t)m->n_functions);

	take_graph(&k, m->graph);
	for (size_t i = 0; i < m->n_functions; i++) {
		functions[i] = arena_copy(model->arena, m->functions[i], sizeof(FunctionProto));
		functions[i]->node = taken_nodes(&k, functions[i]->node, functions[i]->n_node);
	}
	m->functions = functions;
	return k.ok;
}

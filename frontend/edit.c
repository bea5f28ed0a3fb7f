/* Edits of the messages of a file before it is imported. Nodes keep their addresses, by which they are known; what protobuf-c is to free is
 * put back in the end. */
#include "frontend/frontend_impl.h"

#include <string.h>

/* Of nothing, too. */
static void *
copied(const Model *model, const void *bytes, size_t n)
{
	void *copy = arena_alloc(model->arena, n + 1);

	if (n)
		memcpy(copy, bytes, n);
	return copy;
}

void *
edit_grown(Model *model, void *list, size_t n, const void *item)
{
	const void **copy = arena_alloc(model->arena, (n + 1) * sizeof(void *));

	if (n)
		memcpy(copy, list, n * sizeof(void *));
	copy[n] = item;
	return copy;
}

void
edit_node(Model *model, NodeProto *p)
{
	vec_push(model->arena, &model->edited_nodes, ((EditedNode){p, *p}));
	p->attribute = copied(model, p->attribute, sizeof(*p->attribute) * p->n_attribute);
	p->input = copied(model, p->input, sizeof(*p->input) * p->n_input);
	p->output = copied(model, p->output, sizeof(*p->output) * p->n_output);
}

GraphProto *
edit_graph(Model *model)
{
	GraphProto *g = model->proto->graph;

	if (model->edited_graph)
		return g;
	model->edited_graph = g;
	model->own_graph = *g;
	g->node = copied(model, g->node, sizeof(*g->node) * g->n_node);
	g->initializer = copied(model, g->initializer, sizeof(*g->initializer) * g->n_initializer);
	return g;
}

TensorProto *
edit_tensor(const Model *model, const char *name, DType type, const Ints *shape, const void *data)
{
	TensorProto *t = NEW(model->arena, TensorProto);
	int64_t n = 1;

	onnx__tensor_proto__init(t);
	t->name = (char *)(uintptr_t)name;
	t->has_data_type = 1;
	t->data_type = tensor_onnx_type(type);
	t->n_dims = (size_t)shape->n;
	t->dims = copied(model, shape->at, sizeof(*t->dims) * (size_t)shape->n);
	for (int i = 0; i < shape->n; i++)
		n *= shape->at[i];
	t->has_raw_data = 1;
	t->raw_data.len = (size_t)dtype_bytes(type, n);
	t->raw_data.data = (uint8_t *)(uintptr_t)data;
	return t;
}

AttributeProto *
edit_int(const Model *model, const char *name, int64_t value)
{
	AttributeProto *a = NEW(model->arena, AttributeProto);

	onnx__attribute_proto__init(a);
	a->name = (char *)(uintptr_t)name;
	a->has_type = a->has_i = 1;
	a->type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT;
	a->i = value;
	return a;
}

static TensorProto *
tensor_of_copy(const Model *model, const char *name, DType type, const Ints *shape,
               const void *data)
{
	TensorProto *t = edit_tensor(model, name, type, shape, data);

	t->raw_data.data = copied(model, data, t->raw_data.len);
	return t;
}

/* By anything in the graph or in those inside it. */
static bool
is_taken(const GraphProto *g, const char *name)
{
	for (size_t i = 0; i < g->n_input; i++)
		if (!strcmp(g->input[i]->name, name))
			return true;
	for (size_t i = 0; i < g->n_initializer; i++)
		if (!strcmp(g->initializer[i]->name, name))
			return true;
	for (size_t i = 0; i < g->n_node; i++) {
		const NodeProto *p = g->node[i];
		for (size_t k = 0; k < p->n_output; k++)
			if (!strcmp(p->output[k], name))
				return true;
		for (size_t k = 0; k < p->n_attribute; k++)
			if (p->attribute[k]->g && is_taken(p->attribute[k]->g, name))
				return true;
	}
	return false;
}

static const char *
fresh_name(Model *model, const char *base, const char *ending)
{
	const char *name = arena_printf(model->arena, "%s%s", base, ending);

	for (int i = 1; is_taken(model->proto->graph, name); i++)
		name = arena_printf(model->arena, "%s%s_%d", base, ending, i);
	return name;
}

const char *
edit_add_initializer(Model *model, const char *base, const char *ending, DType type,
                     const Ints *shape, const void *data)
{
	GraphProto *g = edit_graph(model);
	const char *name = fresh_name(model, base, ending);
	TensorProto *t = tensor_of_copy(model, name, type, shape, data);
	g->initializer = edit_grown(model, g->initializer, g->n_initializer++, t);
	strmap_put(model->initializers, t->name, t);
	return name;
}

void
edit_set_initializer(Model *model, const char *name, DType type, const Ints *shape,
                     const void *data)
{
	GraphProto *g = edit_graph(model);
	TensorProto *t = tensor_of_copy(model, name, type, shape, data);

	for (size_t i = 0; i < g->n_initializer; i++)
		if (!strcmp(g->initializer[i]->name, name))
			g->initializer[i] = t;
	strmap_put(model->initializers, t->name, t);
}

void
edit_remove_node(Model *model, const NodeProto *p)
{
	GraphProto *g = edit_graph(model);
	size_t n = 0;
	int flat = 0;

	for (size_t i = 0; i < g->n_node; i++)
		if (g->node[i] != p)
			g->node[n++] = g->node[i];
	g->n_node = n;
	for (int i = 0; i < model->nodes.n; i++)
		if (model->nodes.at[i].proto != p)
			model->nodes.at[flat++] = model->nodes.at[i];
	model->nodes.n = flat;
}

static NodeProto *
new_node(Model *model, const char *op, const char *a, const char *b, const char *y)
{
	NodeProto *p = NEW(model->arena, NodeProto);

	onnx__node_proto__init(p);
	p->op_type = (char *)(uintptr_t)op;
	p->name = (char *)(uintptr_t)arena_printf(model->arena, "%s_%s", y, op);
	p->input = edit_grown(model, edit_grown(model, NULL, 0, a), 1, b);
	p->n_input = 2;
	p->output = edit_grown(model, NULL, 0, y);
	p->n_output = 1;
	return p;
}

/* So many places behind `at`. */
static void
insert_node(Model *model, const NodeProto *at, int behind, NodeProto *p)
{
	GraphProto *g = edit_graph(model);
	size_t i = 0;
	int flat = 0;

	while (i < g->n_node && g->node[i] != at)
		i++;
	i += (size_t)behind;
	g->node = edit_grown(model, g->node, g->n_node, p);
	memmove(g->node + i + 1, g->node + i, sizeof(*g->node) * (g->n_node++ - i));
	g->node[i] = p;
	while (flat < model->nodes.n && model->nodes.at[flat].proto != at)
		flat++;
	flat += behind;
	vec_push(model->arena, &model->nodes, ((FlatNode){p, model->opset}));
	memmove(model->nodes.at + flat + 1, model->nodes.at + flat,
	        sizeof(FlatNode) * (size_t)(model->nodes.n - 1 - flat));
	model->nodes.at[flat] = (FlatNode){p, model->opset};
}

const char *
edit_insert_node(Model *model, const NodeProto *before, const char *op, const char *a,
                 const char *b)
{
	const char *y = fresh_name(model, a, "_scaled");

	insert_node(model, before, 0, new_node(model, op, a, b, y));
	return y;
}

void
edit_insert_behind(Model *model, NodeProto *p, const char *op, const char *b)
{
	const char *y = p->output[0];
	NodeProto *behind = new_node(model, op, fresh_name(model, y, "_before"), b, y);

	behind->metadata_props = p->metadata_props;
	behind->n_metadata_props = p->n_metadata_props;
	edit_node(model, p);
	p->output[0] = behind->input[0];
	insert_node(model, p, 1, behind);
}

void
edit_close(Model *model)
{
	for (int i = model->edited_nodes.n - 1; i >= 0; i--)
		*model->edited_nodes.at[i].node = model->edited_nodes.at[i].was;
	if (model->edited_graph)
		*model->edited_graph = model->own_graph;
}

/* Edits of a file's protobuf messages before import: adds nodes and initializers, changes inputs of
 * nodes. Nodes keep their addresses, by which the importer knows them. edit_close restores the
 * original pointers, which protobuf-c frees. */
#include "frontend/file/file.h"

#include <string.h>

/* A copy of n bytes; n may be 0. */
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

/* Returns a list of the main graph with space after its n items. *room: the list's capacity; 0: the
 * list is still the file's own. */
static void *
with_room(const Model *model, void *list, size_t n, size_t *room)
{
	if (n < *room)
		return list;
	*room = 2 * n + 16;
	void **longer = arena_alloc(model->arena, *room * sizeof(void *));
	if (n)
		memcpy(longer, list, n * sizeof(void *));
	return longer;
}

static void
add_initializer(Model *model, TensorProto *t)
{
	GraphProto *g = edit_graph(model);

	g->initializer = with_room(model, g->initializer, g->n_initializer,
	                           &model->room_for_initializers);
	g->initializer[g->n_initializer++] = t;
	strmap_put(model->initializers, t->name, t);
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

static void take_names(StrMap *taken, const GraphProto *g);

static void
take_outputs(StrMap *taken, const NodeProto *p)
{
	for (size_t k = 0; k < p->n_output; k++)
		strmap_put(taken, p->output[k], (void *)1);
	for (size_t k = 0; k < p->n_attribute; k++)
		if (p->attribute[k]->g)
			take_names(taken, p->attribute[k]->g);
}

/* Adds the names of all values of a graph and of its subgraphs. */
static void
take_names(StrMap *taken, const GraphProto *g)
{
	for (size_t i = 0; i < g->n_input; i++)
		strmap_put(taken, g->input[i]->name, (void *)1);
	for (size_t i = 0; i < g->n_initializer; i++)
		strmap_put(taken, g->initializer[i]->name, (void *)1);
	for (size_t i = 0; i < g->n_node; i++)
		take_outputs(taken, g->node[i]);
}

/* A name that no value has: `base` and `ending`, followed by a number if this name is taken.
 * `taken` maps a taken name to the next number to try. */
static const char *
fresh_name(Model *model, const char *base, const char *ending)
{
	const char *first = arena_printf(model->arena, "%s%s", base, ending), *name = first;

	if (!model->taken) {
		model->taken = strmap_new(model->arena);
		take_names(model->taken, model->proto->graph);
		for (int i = 0; i < model->nodes.n; i++) /* with the bodies of inlined functions */
			take_outputs(model->taken, model->nodes.at[i].proto);
	}
	uintptr_t next = (uintptr_t)strmap_get(model->taken, first);
	while (strmap_get(model->taken, name))
		name = arena_printf(model->arena, "%s_%llu", first, (unsigned long long)next++);
	if (next)
		strmap_put(model->taken, first, (void *)next);
	strmap_put(model->taken, name, (void *)1);
	return name;
}

const char *
edit_add_initializer(Model *model, const char *base, const char *ending, DType type,
                     const Ints *shape, const void *data)
{
	const char *name = fresh_name(model, base, ending);

	add_initializer(model, tensor_of_copy(model, name, type, shape, data));
	return name;
}

TensorProto *
edit_copy(const Model *model, const char *name, const TensorProto *of)
{
	TensorProto *t = arena_copy(model->arena, of, sizeof(*of));

	t->name = (char *)(uintptr_t)name;
	return t;
}

const char *
edit_restore(Model *model, RestoredKind kind, const char *wanted, const char *from, TensorProto *t)
{
	Restored *restored = NEW(model->arena, Restored);

	t->name = (char *)(uintptr_t)fresh_name(model, t->name, "");
	*restored = (Restored){kind, wanted, t->name, from};
	add_initializer(model, t);
	vec_push(model->arena, &model->restored, restored);
	if (!model->restored_names)
		model->restored_names = strmap_new(model->arena);
	strmap_put(model->restored_names, wanted, restored);
	return t->name;
}

const char *
edit_restored(const Model *model, const char *wanted)
{
	const Restored *found = model->restored_names ? strmap_get(model->restored_names, wanted)
	                                              : NULL;

	return found ? found->name : NULL;
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

const char *
edit_insert_node(Model *model, const NodeProto *before, const char *op, const char *a,
                 const char *b)
{
	const char *y = fresh_name(model, a, "_scaled");
	NodeProto *p = new_node(model, op, a, b, y);
	GraphProto *g = edit_graph(model);
	size_t at = 0;
	int flat = 0;

	while (at < g->n_node && g->node[at] != before)
		at++;
	g->node = with_room(model, g->node, g->n_node, &model->room_for_nodes);
	memmove(g->node + at + 1, g->node + at, sizeof(*g->node) * (g->n_node++ - at));
	g->node[at] = p;
	while (flat < model->nodes.n && model->nodes.at[flat].proto != before)
		flat++;
	vec_push(model->arena, &model->nodes, ((FlatNode){p, model->opset}));
	memmove(model->nodes.at + flat + 1, model->nodes.at + flat,
	        sizeof(FlatNode) * (size_t)(model->nodes.n - 1 - flat));
	model->nodes.at[flat] = (FlatNode){p, model->opset};
	return y;
}

void
edit_close(Model *model)
{
	for (int i = model->edited_nodes.n - 1; i >= 0; i--)
		*model->edited_nodes.at[i].node = model->edited_nodes.at[i].was;
	if (model->edited_graph)
		*model->edited_graph = model->own_graph;
}

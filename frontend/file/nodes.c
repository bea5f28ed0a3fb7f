/* Names of nodes, and of the PyTorch modules whose calls the exporter turned into these nodes.
 * Messages name a node's location this way, and weights are assigned to modules. */
#include "frontend/file/file.h"

#include <string.h>

const char *
node_location(const NodeProto *p)
{
	if (p->name && *p->name)
		return p->name;
	for (size_t i = 0; i < p->n_output; i++)
		if (*p->output[i])
			return p->output[i];
	return p->op_type;
}

const char *
node_metadata(const NodeProto *p, const char *key)
{
	for (size_t i = 0; i < p->n_metadata_props; i++) {
		const Onnx__StringStringEntryProto *m = p->metadata_props[i];
		if (m->key && m->value && strcmp(m->key, key) == 0)
			return m->value;
	}
	return "";
}

/* PyTorch's dynamo exporter writes the path as metadata: "['', 'mlp', 'mlp.fc', 'linear_1']". Its
 * TorchScript exporter puts the path before the operator's name, with the number of the module's
 * call: "/mlp/fc_1/MatMul". */
size_t
node_module(const NodeProto *p, const char **path)
{
	const char *scopes = node_metadata(p, "pkg.torch.onnx.name_scopes"),
		   *end = strrchr(scopes, ',');
	size_t digits = 0, n;

	if (end && end > scopes && end[-1] == '\'') {
		for (*path = --end; *path > scopes && (*path)[-1] != '\'';)
			--*path;
		return *path > scopes ? (size_t)(end - *path) : 0;
	}
	*path = p->name ? p->name : "";
	end = strrchr(*path, '/');
	n = end ? (size_t)(end - *path) : 0;
	while (digits < n && strchr("0123456789", (*path)[n - 1 - digits]))
		digits++;
	return digits && digits < n && (*path)[n - 1 - digits] == '_' ? n - 1 - digits : n;
}

bool
node_same_module(const NodeProto *a, const NodeProto *b)
{
	const char *x, *y;
	size_t n = node_module(a, &x);

	return n > 0 && n == node_module(b, &y) && !memcmp(x, y, n);
}

StrMap *
nodes_by_module(const GraphProto *g, Arena *arena)
{
	StrMap *modules = strmap_new(arena);

	for (size_t i = 0; i < g->n_node; i++) {
		const char *path;
		size_t n = node_module(g->node[i], &path);
		const char *key = arena_strndup(arena, path, n);
		ModuleNodes *nodes = strmap_get(modules, key);
		if (!nodes) {
			nodes = NEW(arena, ModuleNodes);
			strmap_put(modules, key, nodes);
		}
		vec_push(arena, nodes, g->node[i]);
	}
	return modules;
}

void
model_nodes(const Model *model, void (*visit)(void *ctx, const GraphNode *node), void *ctx)
{
	for (int i = 0; i < model->nodes.n; i++) {
		const NodeProto *p = model->nodes.at[i].proto;
		GraphNode node = {.name = node_location(p),
		                  .op = p->op_type,
		                  .domain = p->domain ? p->domain : "",
		                  .scopes = node_metadata(p, "pkg.torch.onnx.name_scopes"),
		                  .inputs = (const char *const *)p->input,
		                  .outputs = (const char *const *)p->output,
		                  .n_inputs = (int)p->n_input,
		                  .n_outputs = (int)p->n_output};

		visit(ctx, &node);
	}
}

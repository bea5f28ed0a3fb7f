/* The nodes of the file for people: what a location's name stands for. */
#include "frontend/frontend_impl.h"

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

static const char *
metadata(const NodeProto *p, const char *key)
{
	for (size_t i = 0; i < p->n_metadata_props; i++) {
		const Onnx__StringStringEntryProto *m = p->metadata_props[i];
		if (m->key && m->value && strcmp(m->key, key) == 0)
			return m->value;
	}
	return "";
}

void
model_nodes(const Model *model, void (*visit)(void *ctx, const GraphNode *node), void *ctx)
{
	for (int i = 0; i < model->nodes.n; i++) {
		const NodeProto *p = model->nodes.at[i].proto;
		GraphNode node = {.name = node_location(p),
		                  .op = p->op_type,
		                  .domain = p->domain ? p->domain : "",
		                  .scopes = metadata(p, "pkg.torch.onnx.name_scopes"),
		                  .inputs = (const char *const *)p->input,
		                  .outputs = (const char *const *)p->output,
		                  .n_inputs = (int)p->n_input,
		                  .n_outputs = (int)p->n_output};

		visit(ctx, &node);
	}
}

/* --no-tie A where A is one initializer with several readers, as a table that Gather and the head read: each module but one reads
 * a copy of its own, under its path. */
#include "frontend/frontend_impl.h"

#include <string.h>

/* The reader that keeps the tensor: Gather, else the first. */
static const NodeProto *
home_of(const GraphProto *g, const char *name)
{
	const NodeProto *first = NULL;

	for (size_t i = 0; i < g->n_node; i++)
		for (size_t k = 0; k < g->node[i]->n_input; k++) {
			if (strcmp(g->node[i]->input[k], name))
				continue;
			if (!strcmp(g->node[i]->op_type, "Gather"))
				return g->node[i];
			first = first ? first : g->node[i];
		}
	return first;
}

/* lm_head.weight for the reader /lm_head/Transpose of model.embed_tokens.weight. */
static const char *
own_name(const Repairs *r, const NodeProto *p, const char *name)
{
	const char *path, *dot = strrchr(name, '.');
	size_t n = node_module(p, &path), skip = n && *path == '/';

	if (n <= skip)
		return arena_printf(r->arena, "%s_untied", name);
	char *own = arena_printf(r->arena, "%.*s%s", (int)(n - skip), path + skip,
	                         dot ? dot : ".weight");
	for (char *at = own; *at; at++)
		*at = *at == '/' ? '.' : *at;
	return own;
}

static void
untie(Repairs *r, const char *name)
{
	Model *model = r->model;
	GraphProto *g = model->proto->graph;
	const TensorProto *t = strmap_get(model->initializers, name);
	const NodeProto *home = t && is_float_type(t->data_type) ? home_of(g, name) : NULL;
	StrMap *copies = strmap_new(r->arena);
	TensorData data;

	if (!home || !tensor_load(model, t, r->options->shapes_only, &data, r->diag) || !data.data)
		return;
	Ints shape = {.n = data.rank};
	memcpy(shape.at, data.dims, sizeof(*data.dims) * (size_t)data.rank);
	for (size_t i = 0; i < g->n_node; i++)
		for (size_t k = 0; k < g->node[i]->n_input; k++) {
			NodeProto *p = g->node[i];
			if (strcmp(p->input[k], name) || p == home || node_same_module(p, home))
				continue;
			const char *own = own_name(r, p, name), *copy = strmap_get(copies, own);
			if (!copy) {
				copy = edit_add_initializer(model, own, "", data.dtype, &shape,
				                            data.data);
				strmap_put(copies, own, (void *)(uintptr_t)copy);
				vec_push(model->arena, &model->lost_found,
				         ((LostFound){"ties", copy, t->name}));
			}
			edit_node(model, p);
			p->input[k] = (char *)(uintptr_t)copy;
			g = model->proto->graph;
		}
}

void
untie_readers(Repairs *r)
{
	for (int i = 0; i < r->options->n_ties; i++)
		if (r->options->ties[i].untie)
			untie(r, r->options->ties[i].a);
}

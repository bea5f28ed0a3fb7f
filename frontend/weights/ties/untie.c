/* --no-tie A for one initializer with several readers, such as a table that Gather and the head
 * read. Each module that reads A, but one, gets a copy of A, named by the module's path. */
#include "frontend/weights/origins.h"

#include <string.h>

static bool
reads_numbers(const NodeProto *p)
{
	return !is_op(p, "Shape") && !is_op(p, "Size");
}

/* The reader that keeps the tensor: Gather, else the first. */
static const NodeProto *
home_of(const GraphProto *g, const char *name)
{
	const NodeProto *first = NULL;

	for (size_t i = 0; i < g->n_node; i++)
		for (size_t k = 0; k < g->node[i]->n_input; k++) {
			if (strcmp(g->node[i]->input[k], name) || !reads_numbers(g->node[i]))
				continue;
			if (is_op(g->node[i], "Gather"))
				return g->node[i];
			first = first ? first : g->node[i];
		}
	return first;
}

/* A name for the copy: lm_head.weight for the reader /lm_head/Transpose of
 * model.embed_tokens.weight. */
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
	const GraphProto *g = model->proto->graph;
	const TensorProto *t = strmap_get(model->initializers, name);
	const NodeProto *home = t && is_float_type(t->data_type) ? home_of(g, name) : NULL;
	StrMap *copies = strmap_new(r->arena);

	for (size_t i = 0; home && i < g->n_node; i++)
		for (size_t k = 0; k < g->node[i]->n_input; k++) {
			NodeProto *p = g->node[i];
			if (strcmp(p->input[k], name) || p == home || node_same_module(p, home) ||
			    !reads_numbers(p))
				continue;
			const char *own = own_name(r, p, name), *copy = strmap_get(copies, own);
			if (!copy) {
				copy = edit_restore(model, RESTORED_UNTIED, own, name,
				                    edit_copy(model, own, t));
				strmap_put(copies, own, (void *)(uintptr_t)copy);
			}
			edit_node(model, p);
			p->input[k] = (char *)(uintptr_t)copy;
		}
}

void
untie_readers(Repairs *r)
{
	for (int i = 0; i < r->options->n_ties; i++)
		if (r->options->ties[i].untie)
			untie(r, r->options->ties[i].a);
}

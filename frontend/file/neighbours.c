/* Finds the makers and readers of values of the main graph, for edits before import. */
#include "frontend/file/file.h"

#include <string.h>

void
graph_count_readers(const GraphProto *g, StrMap *readers)
{
	for (size_t i = 0; i < g->n_node; i++) {
		const NodeProto *p = g->node[i];
		for (size_t k = 0; k < p->n_input; k++) {
			uintptr_t n = (uintptr_t)strmap_get(readers, p->input[k]);
			strmap_put(readers, p->input[k], (void *)(n + 1));
		}
		for (size_t k = 0; k < p->n_attribute; k++)
			if (p->attribute[k]->g)
				graph_count_readers(p->attribute[k]->g, readers);
	}
	for (size_t i = 0; i < g->n_output; i++) {
		uintptr_t n = (uintptr_t)strmap_get(readers, g->output[i]->name);
		strmap_put(readers, g->output[i]->name, (void *)(n + 1));
	}
}

Neighbours
neighbours_of(const GraphProto *g, Arena *arena)
{
	Neighbours all = {strmap_new(arena), strmap_new(arena), strmap_new(arena)};

	graph_count_readers(g, all.counts);
	for (size_t i = 0; i < g->n_node; i++) {
		NodeProto *p = g->node[i];
		for (size_t k = 0; k < p->n_output; k++)
			strmap_put(all.makers, p->output[k], p);
		for (size_t k = 0; k < p->n_input; k++)
			strmap_put(all.readers, p->input[k], p);
	}
	return all;
}

NodeProto *
maker_of(const Neighbours *all, const char *name)
{
	return strmap_get(all->makers, name);
}

int
count_readers(const Neighbours *all, const char *name)
{
	return (int)(uintptr_t)strmap_get(all->counts, name);
}

NodeProto *
only_reader_of(const Neighbours *all, const char *name)
{
	return count_readers(all, name) == 1 ? strmap_get(all->readers, name) : NULL;
}

/* Lists all files that the model's tensors may name, whether read or not and whether they exist or
 * not. No output may get such a path. If the model is a link, a file that does not exist now could
 * later be read as the model's data. */
#include "frontend/file/external.h"

#include <string.h>

typedef struct {
	const Model *model;
	StrMap *seen; /* locations visited */
	void (*visit)(void *ctx, const char *path);
	void *ctx;
} Files;

static void visit_graph(Files *f, const GraphProto *g);

static void
visit_location(Files *f, const char *location)
{
	Arena *arena = f->model->arena;
	const char *plain;

	if (strmap_get(f->seen, location) || external_location(arena, location, &plain))
		return;
	strmap_put(f->seen, location, f);
	for (int i = 0; i < f->model->folders.n; i++) {
		const char *path = path_join(arena, f->model->folders.at[i], plain);
		const char *real = path_real(arena, path);
		f->visit(f->ctx, real ? real : path);
	}
}

static void
visit_tensors(Files *f, TensorProto *const *tensors, size_t n)
{
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < tensors[i]->n_external_data; k++) {
			const Onnx__StringStringEntryProto *p = tensors[i]->external_data[k];
			if (p->key && p->value && strcmp(p->key, "location") == 0)
				visit_location(f, p->value);
		}
}

static void
visit_sparse(Files *f, Onnx__SparseTensorProto *const *tensors, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		visit_tensors(f, &tensors[i]->values, tensors[i]->values != NULL);
		visit_tensors(f, &tensors[i]->indices, tensors[i]->indices != NULL);
	}
}

static void
visit_attribute(Files *f, const AttributeProto *a)
{
	visit_tensors(f, &a->t, a->t != NULL);
	visit_tensors(f, a->tensors, a->n_tensors);
	visit_sparse(f, &a->sparse_tensor, a->sparse_tensor != NULL);
	visit_sparse(f, a->sparse_tensors, a->n_sparse_tensors);
	if (a->g)
		visit_graph(f, a->g);
	for (size_t i = 0; i < a->n_graphs; i++)
		visit_graph(f, a->graphs[i]);
}

static void
visit_nodes(Files *f, NodeProto *const *nodes, size_t n)
{
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < nodes[i]->n_attribute; k++)
			visit_attribute(f, nodes[i]->attribute[k]);
}

static void
visit_graph(Files *f, const GraphProto *g)
{
	visit_tensors(f, g->initializer, g->n_initializer);
	visit_sparse(f, g->sparse_initializer, g->n_sparse_initializer);
	visit_nodes(f, g->node, g->n_node);
}

void
model_external_files(const Model *model, void (*visit)(void *ctx, const char *path), void *ctx)
{
	const ModelProto *m = model->proto;
	Files f = {model, strmap_new(model->arena), visit, ctx};

	if (m->graph)
		visit_graph(&f, m->graph);
	for (size_t i = 0; i < m->n_functions; i++)
		visit_nodes(&f, m->functions[i]->node, m->functions[i]->n_node);
	for (size_t i = 0; i < m->n_training_info; i++) {
		if (m->training_info[i]->initialization)
			visit_graph(&f, m->training_info[i]->initialization);
		if (m->training_info[i]->algorithm)
			visit_graph(&f, m->training_info[i]->algorithm);
	}
}

/* Float tensors in branches and loop bodies: initializers and Constant nodes of subgraphs. Such
 * tensors are judged like weights of the main graph. A map finds them by the address of their
 * protobuf message, because two branches may use the same name. */
#include "frontend/weights/judge.h"

#include <string.h>

typedef struct {
	Repairs *r;
	const char *place; /* "/m/If/then_branch" */
} Inside;

static void
add_inner(const Inside *in, const char *value, const TensorProto *t, const NodeProto *constant)
{
	Repairs *r = in->r;
	const char *name = value;

	for (int i = 0; repairs_weight(r, name); i++)
		name = i ? arena_printf(r->arena, "%s/%s_%d", in->place, value, i)
		         : arena_printf(r->arena, "%s/%s", in->place, value);
	Weight *w = is_float_type(t->data_type) ? repairs_add_weight(r, name, value, t) : NULL;
	if (!w)
		return;
	w->is_inner = true;
	w->constant = constant;
	intmap_put(r->inner, (uint64_t)(uintptr_t)t, (uint64_t)(uintptr_t)w);
}

static void
add_graph(const Inside *in, const GraphProto *g)
{
	bool constants = repair_enabled(in->r->options, "constants");

	for (size_t i = 0; i < g->n_initializer; i++)
		add_inner(in, g->initializer[i]->name, g->initializer[i], NULL);
	for (size_t i = 0; i < g->n_node; i++) {
		const NodeProto *p = g->node[i];
		bool constant = is_op(p, "Constant");
		const AttributeProto *a = constant ? node_attribute(p, "value") : NULL;
		if (constants && a && a->t)
			add_inner(in, p->output[0], a->t, p);
		for (size_t k = 0; k < p->n_attribute; k++) {
			if (!p->attribute[k]->g)
				continue;
			Inside deeper = {in->r,
			                 arena_printf(in->r->arena, "%s/%s/%s", in->place,
			                              node_location(p), p->attribute[k]->name)};
			add_graph(&deeper, p->attribute[k]->g);
		}
	}
}

/* Nodes of inlined functions are left out: one node of a function may stand for several. */
void
repairs_add_inner(Repairs *r)
{
	const GraphProto *g = r->model->proto->graph;

	for (size_t i = 0; i < g->n_node; i++) {
		const NodeProto *p = g->node[i];
		for (size_t k = 0; k < p->n_attribute; k++) {
			if (!p->attribute[k]->g)
				continue;
			Inside in = {r, arena_printf(r->arena, "%s/%s", node_location(p),
			                             p->attribute[k]->name)};
			add_graph(&in, p->attribute[k]->g);
		}
	}
}

Weight *
inner_weight(const Repairs *r, const TensorProto *t)
{
	uint64_t found;

	return r && t && intmap_get(r->inner, (uint64_t)(uintptr_t)t, &found)
	               ? (Weight *)(uintptr_t)found
	               : NULL;
}

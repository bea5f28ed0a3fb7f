/* If, where the condition follows from shapes and constants. */
#include "frontend/onnx/importer.h"

static void
import_branch(OnnxNode *n, const GraphProto *g)
{
	Importer *im = n->im;

	for (size_t i = 0; i < g->n_initializer; i++) {
		TensorData d;
		if (!tensor_load(im->model, g->initializer[i], false, &d, im->diag))
			return;
		Type type = type_new(im->m, d.dtype, d.rank, d.dims);
		importer_bind(im, g->initializer[i]->name,
		              b_constant(&im->b, tensor_borrow(im->m, type, d.data)));
	}
	const FlatNodes *nodes = subgraph_nodes(im->model, g);
	import_nodes(im, nodes->n, nodes->at);
	for (size_t i = 0; i < g->n_output && (int)i < n_outputs(n); i++) {
		Bound *b = importer_lookup(im, g->output[i]->name);
		if (b)
			n->out[i] = *b;
		n->failed |= !b || (!b->value && !b->sequence);
	}
}

static void
import_if(OnnxNode *n)
{
	double cond;

	if (!want_constant_float(n, 0, &cond))
		return;
	const AttributeProto *a = node_attribute(n->proto, cond ? "then_branch" : "else_branch");
	if (a && a->g)
		import_branch(n, a->g);
}

const ImportRow import_control_rows[] = {
	/* name     from  to  importer  extra */
	{"If", 1, 0, import_if, {0}, NULL},
	{0},
};

/* Dropout, and If where the condition follows from shapes and constants. */
#include "frontend/onnx/importer.h"

/* Inference form is the identity. Training form with a ratio needs random numbers. */
static void
import_dropout(OnnxNode *n)
{
	Value *x = want_input(n, 0);
	double ratio = n->extra->input ? 0.5 : want_float(n, "ratio", 0.5);
	double training = 0;

	if (!x)
		return;
	if (n->extra->input && has_input(n, 1) && !want_constant_float(n, 1, &ratio))
		return;
	if (n->extra->input && has_input(n, 2) && !want_constant_float(n, 2, &training))
		return;
	if (n->im->options->restore_train_mode && repair_enabled(n->im->options, "dropout"))
		training = 1;
	if (!(ratio >= 0) || ratio >= 1) {
		fault(n, "a ratio of %g", ratio);
		return;
	}
	if (training && ratio > 0 && !n->im->inference) {
		unsupported(n,
		            "dropout in training mode with ratio %g needs random numbers, which "
		            "this build lacks",
		            ratio);
		return;
	}
	give(n, 0, x);
	give(n, 1, e_splat(n, n->opset < 10 ? x->type->dtype : BOOL, shape_of(x), 1));
}

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
	{"Dropout", 7, 11, import_dropout, {0}, NULL},
	{"Dropout", 12, 0, import_dropout, {.input = true}, NULL},
	{"If", 1, 0, import_if, {0}, NULL},
	{0},
};

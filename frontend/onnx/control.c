/* If, where the condition follows from shapes and constants. */
#include "frontend/onnx/importer.h"

/* A branch's result has the element type that the branch declares, as the model's outputs have. */
static bool
is_as_declared(OnnxNode *n, const ValueInfoProto *v, const Value *x)
{
	const Onnx__TypeProto__Tensor *t = tensor_type(v);
	DType declared;

	if (!x || !t || !t->elem_type ||
	    (tensor_dtype(t->elem_type, &declared) && declared == x->type->dtype))
		return true;
	report_invalid(n, "output %s of the branch is declared with element type %d, it is %s",
	               quoted(n->im->model, v->name), t->elem_type,
	               dtype_info[x->type->dtype].name);
	return false;
}

void
import_subgraph(OnnxNode *n, const GraphProto *g)
{
	Importer *im = n->im;

	for (size_t i = 0; i < g->n_initializer; i++) {
		TensorData d;
		if (!tensor_load(im->model, g->initializer[i], false, &d, im->diag)) {
			n->failed = true;
			return;
		}
		Type type = type_new(im->m, d.dtype, d.rank, d.dims);
		importer_bind(im, g->initializer[i]->name,
		              b_constant(&im->b, tensor_borrow(im->m, type, d.data)));
	}
	const FlatNodes *nodes = subgraph_nodes(im->model, g);
	import_nodes(im, nodes->n, nodes->at);
}

static void
import_branch(OnnxNode *n, const GraphProto *g)
{
	import_subgraph(n, g);
	for (size_t i = 0; !n->failed && i < g->n_output && (int)i < n_outputs(n); i++) {
		Bound *b = importer_lookup(n->im, g->output[i]->name);
		if (b && is_as_declared(n, g->output[i], b->value))
			n->out[i] = *b;
		n->failed |= !b || is_poisoned(b);
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

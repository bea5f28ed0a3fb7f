/* Imports If: https://onnx.ai/onnx/operators/onnx__If.html. Also has the functions that If shares
 * with Loop and Scan. If the condition is known at import, the branch is imported in place of the
 * node. Otherwise both branches become functions of the module, and `cond` runs one of them. */
#include "frontend/operators/control/control.h"

const GraphProto *
want_graph(OnnxNode *n, const char *name)
{
	const AttributeProto *a = node_attribute(n->proto, name);

	if (a && a->g)
		return a->g;
	report_invalid(n, "attribute \"%s\" is not a graph", name);
	return NULL;
}

/* v declares an input or output of a subgraph (the graph of an attribute such as then_branch). Does
 * the value b match this declaration? Both must be a tensor or a sequence, with the declared
 * element type. An optional that holds a value may be declared as a plain tensor or sequence.
 * Loops need this: an output of the body becomes an input of the next iteration, and perhaps only one
 * of the two is declared optional. */
static bool
is_as_declared(OnnxNode *n, const char *port, const ValueInfoProto *v, const Bound *b)
{
	const char *name = quoted(n->im->model, v->name);
	GivenList list = {0};
	const Onnx__TypeProto__Tensor *t = list_type(v->type, &list);
	Value *const *elements = b->sequence ? b->list : &b->value;
	int count = b->sequence ? b->n_list : b->value != NULL;
	DType declared;

	if (is_poisoned(b) || !v->type || v->type->value_case == ONNX__TYPE_PROTO__VALUE__NOT_SET)
		return true;
	if (!t || (b->absent ? !list.optional : list.sequence != b->sequence)) {
		report_invalid(n, "%s %s of its graph is declared as %s, it is %s", port, name,
		               !t              ? "neither a tensor nor a list of tensors"
		               : list.sequence ? "a sequence"
		               : list.optional ? "an optional tensor"
		                               : "a tensor",
		               b->absent     ? "an optional that has nothing"
		               : b->sequence ? "a sequence"
		                             : "a tensor");
		return false;
	}
	for (int i = 0; t->elem_type && i < count; i++) {
		if (!elements[i] ||
		    (tensor_dtype(t->elem_type, &declared) && declared == elements[i]->type->dtype))
			continue;
		report_invalid(n, "%s %s of its graph is declared with element type %d, it is %s",
		               port, name, t->elem_type, dtype_info[elements[i]->type->dtype].name);
		return false;
	}
	return true;
}

void
import_subgraph(OnnxNode *n, const GraphProto *g)
{
	Importer *im = n->im;

	for (size_t i = 0; i < g->n_initializer; i++) {
		const Weight *w = inner_weight(im->repairs, g->initializer[i]);
		TensorData d;
		if (weight_has_state(w)) {
			importer_bind_weight(im, g->initializer[i]->name, w);
			continue;
		}
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

void
import_subgraph_again(OnnxNode *n, const GraphProto *g, int64_t at)
{
	uint64_t around = n->im->repetition;

	n->im->repetition = hash_bytes(&at, sizeof(at), around + 1);
	import_subgraph(n, g);
	n->im->repetition = around;
}

void
set_graph_input(OnnxNode *n, const GraphProto *g, size_t i, const Bound *b)
{
	n->failed |= !is_as_declared(n, "input", g->input[i], b);
	strmap_put(n->im->values, g->input[i]->name, arena_copy(n->im->arena, b, sizeof(*b)));
}

void
set_graph_value(OnnxNode *n, const GraphProto *g, size_t i, Value *v)
{
	set_graph_input(n, g, i, &(Bound){.value = v});
}

void
report_counted_output(OnnxNode *n, const GraphProto *g, size_t i)
{
	report_unsupported(n, "output %s of its graph has a size that depends on data",
	                   quoted(n->im->model, g->output[i]->name));
}

Bound *
graph_output(OnnxNode *n, const GraphProto *g, size_t i)
{
	Bound *b = importer_lookup(n->im, g->output[i]->name);

	if (!b || is_poisoned(b) || !is_as_declared(n, "output", g->output[i], b)) {
		n->failed = true;
		return NULL;
	}
	if (b->count && n->im->scope) {
		report_counted_output(n, g, i);
		return NULL;
	}
	return b;
}

/* ---- If */
static void
import_branch(OnnxNode *n, const GraphProto *g)
{
	import_subgraph(n, g);
	for (size_t i = 0; !n->failed && i < g->n_output && (int)i < n_outputs(n); i++) {
		Bound *b = graph_output(n, g, i);
		if (b)
			n->out[i] = *b;
	}
}

/* A branch as a function whose parameters are the captured values. */
static Function *
branch_function(OnnxNode *n, const GraphProto *g, Scope *s)
{
	Value **results = NEW_ARRAY(n->im->arena, Value *, g->n_output);

	scope_open(n, s, "branch");
	import_subgraph(n, g);
	for (size_t i = 0; !n->failed && i < g->n_output; i++) {
		Bound *b = graph_output(n, g, i);
		if (b && !b->value)
			report_unsupported(
				n,
				"output %s is a sequence or an optional, and its branch is chosen at run time",
				quoted(n->im->model, g->output[i]->name));
		results[i] = b ? b->value : NULL;
	}
	if (n->failed) {
		scope_leave(n, s);
		return NULL;
	}
	scope_close(n, s, (int)g->n_output, results);
	return s->f;
}

/* A copy of one branch's function with the parameters of both branches. before: the branch's own
 * parameters come first. */
static Function *
with_params(OnnxNode *n, const Scope *s, const Scope *other, bool before)
{
	Function *f = function_new(n->im->m, module_fresh_name(n->im->m, s->f->name));
	Value **map = NEW_ARRAY(n->im->arena, Value *, s->f->next_value_id);
	const Scope *order[] = {before ? s : other, before ? other : s};
	Node *ret = function_return(s->f);
	Value **results = NEW_ARRAY(n->im->arena, Value *, ret->n_operands);

	for (int k = 0; k < 2; k++)
		for (int i = 0; i < order[k]->captured.n; i++) {
			Value *p = function_param(f, order[k]->captured.at[i]->type, "captured");
			if (order[k] == s)
				map[s->f->params.at[i]->id] = p;
		}
	function_clone_body(s->f, f, NULL, map);
	for (int i = 0; i < ret->n_operands; i++)
		results[i] = map[node_operand(ret, i)->id];
	b_return(&(Builder){.m = n->im->m, .f = f}, ret->n_operands, results);
	function_remove(s->f);
	return f;
}

static bool
branches_agree(OnnxNode *n, const GraphProto *g, const Function *a, const Function *b)
{
	if (function_return(a)->n_operands != function_return(b)->n_operands) {
		report_invalid(n, "its branches have %d and %d outputs, need equal numbers",
		               function_return(a)->n_operands, function_return(b)->n_operands);
		return false;
	}
	for (int i = 0; i < function_return(a)->n_operands; i++) {
		Type x = function_result(a, i)->type, y = function_result(b, i)->type;
		if (x == y)
			continue;
		report_unsupported(
			n, "output %s is %s in one branch and %s in the other, chosen at run time",
			quoted(n->im->model, g->output[i]->name), type_text(n, x), type_text(n, y));
		return false;
	}
	return true;
}

static void
import_choice(OnnxNode *n, Value *cond, const GraphProto *then_graph, const GraphProto *else_graph)
{
	Scope yes, no;

	if (!branch_function(n, then_graph, &yes) || !branch_function(n, else_graph, &no) ||
	    !branches_agree(n, then_graph, yes.f, no.f))
		return;
	int count = 1 + yes.captured.n + no.captured.n, k = 0;
	Value **operands = NEW_ARRAY(n->im->arena, Value *, count);
	operands[k++] = cond;
	for (int i = 0; i < yes.captured.n; i++)
		operands[k++] = yes.captured.at[i];
	for (int i = 0; i < no.captured.n; i++)
		operands[k++] = no.captured.at[i];
	CondAttr a = {with_params(n, &yes, &no, true), with_params(n, &no, &yes, false)};
	Node *node = build_node(n->b, OP_cond, count, operands, &a);
	for (int i = 0; i < node->n_results; i++)
		set_output(n, i, node_result(node, i));
}

static void
import_if(OnnxNode *n)
{
	Value *cond = want_input(n, 0);
	const GraphProto *yes = want_graph(n, "then_branch"), *no = want_graph(n, "else_branch");

	if (!cond || !yes || !no)
		return;
	if (cond->type->dtype != BOOL || cond->type->n != 1) {
		report_invalid(n, "its condition is %s, need one bool", type_text(n, cond->type));
		return;
	}
	const Tensor *known = known_value(n->im, cond);
	if (known)
		import_branch(n, tensor_int(known, 0) ? yes : no);
	else
		import_choice(n, e_reshape(n, cond, (Ints){0}), yes, no);
}

const ImportRow import_control_rows[] = {
	/* name     from  to  importer  extra */
	{"If", 1, 0, import_if, .facts = {.typed_by = NO_INPUT}},
	{0},
};

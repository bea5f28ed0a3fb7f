/* The ops call, cond, store, return and launch: calls, branches, ends of functions, and launches
 * of kernels (loops: loop.c). Bodies are functions of the module. A body gets every value from
 * outside as an operand, and never reads or writes states. */
#include "ir/ops/control/control.h"
#include "ir/ops/batch/batch_axis.h"

#include <string.h>

int
control_results(const Function *f)
{
	return function_return(f) ? function_return(f)->n_operands : 0;
}

void
control_check_params(Infer *in, const Function *f, int from, int at, int n)
{
	for (int i = 0; i < n; i++)
		if (in->operand[from + i] != f->params.at[at + i]->type)
			infer_error(in, "operand %d does not have the type of @%s's %%%s", from + i,
			            f->name, f->params.at[at + i]->name);
}

static void
eval_call(Eval *ev, const Function *f, const EvalTensor *args, EvalTensor *results)
{
	interp_run(ev->interp, f, args, results);
}

/* ---- call {callee, gradient} */
static const Field call_fields[] = {
	{"callee", FIELD_FUNC, offsetof(CallAttr, callee), NULL, false},
	{"gradient", FIELD_FUNC, offsetof(CallAttr, gradient), NULL, true},
	{0}};

/* The type of the value that parameter p of a gradient of f stands for; NULL: there is no such value. */
static Type
gradient_source(const Function *f, const Value *p)
{
	bool of_result = p->param == PARAM_RESULT || p->param == PARAM_COTANGENT;
	int n = of_result ? control_results(f) : f->params.n;

	if ((p->param != PARAM_OPERAND && !of_result) || p->number < 0 || p->number >= n)
		return NULL;
	return of_result ? function_result(f, p->number)->type : f->params.at[p->number]->type;
}

/* Checks that g is a gradient of f: it takes operands, results and gradients of results of a call of f, and returns
 * the gradients of the float operands. */
static void
check_gradient(Infer *in, const Function *f, const Function *g)
{
	int n = 0;

	if (!function_return(g)) {
		infer_error(in, "the gradient @%s has no return", g->name);
		return;
	}
	for (int i = 0; i < g->params.n; i++) {
		const Value *p = g->params.at[i];
		Type source = gradient_source(f, p);
		if (!source)
			infer_error(in,
			            "the gradient @%s takes %%%s, which is no operand, result or "
			            "cotangent of @%s",
			            g->name, p->name, f->name);
		else if (p->param == PARAM_COTANGENT && !dtype_is_float(source->dtype))
			infer_error(
				in,
				"the gradient @%s takes the cotangent %%%s, but this result of @%s is %s: only floats have cotangents",
				g->name, p->name, f->name, dtype_info[source->dtype].name);
		else if (source != p->type)
			infer_error(in, "the gradient @%s takes %%%s with another type than in @%s",
			            g->name, p->name, f->name);
	}
	for (int i = 0; i < f->params.n; i++) {
		Type t = f->params.at[i]->type;
		if (!dtype_is_float(t->dtype))
			continue;
		if (n < control_results(g) && function_result(g, n)->type != t)
			infer_error(
				in,
				"result %d of the gradient @%s does not have the type of %%%s of @%s",
				n, g->name, f->params.at[i]->name, f->name);
		n++;
	}
	if (control_results(g) != n)
		infer_error(in, "the gradient @%s returns %d cotangents, @%s has %d float operands",
		            g->name, control_results(g), f->name, n);
}

static void
call_infer(Infer *in)
{
	const Function *f = ((const CallAttr *)in->attr)->callee;

	if (!f || !function_return(f) || in->n_operands != f->params.n) {
		infer_error(in, "callee takes %d operands, not %d", f ? f->params.n : 0,
		            in->n_operands);
		return;
	}
	if (control_results(f) > in->n_results) {
		infer_error(in, "too many results");
		return;
	}
	control_check_params(in, f, 0, 0, in->n_operands);
	in->n_results = control_results(f);
	for (int i = 0; i < in->n_results; i++)
		in->result[i] = function_result(f, i)->type;
	if (((const CallAttr *)in->attr)->gradient)
		check_gradient(in, f, ((const CallAttr *)in->attr)->gradient);
}

static void
call_eval(Eval *ev)
{
	eval_call(ev, ((const CallAttr *)ev->attr)->callee, ev->operand, ev->result);
}

/* The value that a parameter of a gradient stands for. */
static Value *
gradient_operand(Grad *g, const Value *p)
{
	if (p->param == PARAM_OPERAND)
		return node_operand(g->node, p->number);
	if (p->param == PARAM_RESULT)
		return node_result(g->node, p->number);
	Value *d = g->dresult[p->number];
	return d ? d : zeros_like(g->b, node_result(g->node, p->number));
}

static void
add_float_results(Grad *g, Node *call)
{
	int k = 0;

	for (int i = 0; i < g->node->n_operands; i++)
		if (dtype_is_float(node_operand(g->node, i)->type->dtype) && k < call->n_results)
			grad_add(g, i, node_result(call, k++));
}

/* Collects operands and the gradients of float results, in the order of function_gradient's parameters. */
static int
gradient_arguments(Grad *g, Value **args, int from)
{
	int n = 0;

	for (int i = from; i < g->node->n_operands; i++)
		args[n++] = node_operand(g->node, i);
	for (int i = 0; i < g->node->n_results; i++)
		if (dtype_is_float(node_result(g->node, i)->type->dtype))
			args[n++] = g->dresult[i] ? g->dresult[i]
			                          : zeros_like(g->b, node_result(g->node, i));
	return n;
}

Value **
control_values(Grad *g, int n)
{
	return NEW_ARRAY(g->b->m->arena, Value *, n);
}

static void
call_grad(Grad *g)
{
	CallAttr *a = g->node->attr;
	Function *f = a->gradient ? a->gradient : function_gradient(a->callee, &g->fault);

	if (!f)
		return;
	Value **args = control_values(g, f->params.n);
	for (int i = 0; i < f->params.n; i++)
		args[i] = gradient_operand(g, f->params.at[i]);
	add_float_results(g,
	                  build_node(g->b, OP_call, f->params.n, args, &(CallAttr){.callee = f}));
}

const Sample control_samples[] = {{"text", ""}, {0}};
static int64_t
call_flops(const Node *n)
{
	return function_flops(((const CallAttr *)n->attr)->callee);
}

const OpRow op_call = {
	.name = "call",
	.doc = "runs a function of the module",
	.operands = {{"arguments", OPERAND_VARIADIC}},
	.results = {"..."},
	.fields = call_fields,
	.attr_size = sizeof(CallAttr),
	.infer = call_infer,
	.eval = call_eval,
	.grad = call_grad,
	.fuse = FUSE_NONE,
	.flops = call_flops,
	.precision = PRECISION_FIXED,
	.partition = {.factors = partition_none,
                      .doc = "no axis: the nodes of its function have their own factors"},
	.batch = batch_call,
	.samples = control_samples};

/* ---- cond {then, else}: operands are a bool and the arguments of both branches */
static const Field cond_fields[] = {
	{"then", FIELD_FUNC, offsetof(CondAttr, then_branch), NULL, false},
	{"else", FIELD_FUNC, offsetof(CondAttr, else_branch), NULL, false},
	{0}};

static void
cond_infer(Infer *in)
{
	const CondAttr *a = in->attr;
	const Function *branches[] = {a->then_branch, a->else_branch};

	if (!in->n_operands || in->operand[0] != type_scalar(in->m, BOOL)) {
		infer_error(in, "the condition must be bool[]");
		return;
	}
	for (int k = 0; k < 2; k++) {
		if (!branches[k] || branches[k]->params.n != in->n_operands - 1 ||
		    !function_return(branches[k])) {
			infer_error(in, "a branch takes another number of operands");
			return;
		}
		control_check_params(in, branches[k], 1, 0, in->n_operands - 1);
	}
	if (control_results(a->then_branch) > in->n_results) {
		infer_error(in, "too many results");
		return;
	}
	in->n_results = control_results(a->then_branch);
	if (control_results(a->else_branch) != in->n_results) {
		infer_error(in, "the branches have different results");
		return;
	}
	for (int i = 0; i < in->n_results; i++) {
		in->result[i] = function_result(a->then_branch, i)->type;
		if (function_result(a->else_branch, i)->type != in->result[i])
			infer_error(in, "result %d has different types in the branches", i);
	}
}

static void
cond_eval(Eval *ev)
{
	const CondAttr *a = ev->attr;

	eval_call(ev, ev->operand[0].i[0] ? a->then_branch : a->else_branch, ev->operand + 1,
	          ev->result);
}

static void
cond_grad(Grad *g)
{
	CondAttr *a = g->node->attr;
	CondAttr d = {.then_branch = function_gradient(a->then_branch, &g->fault),
	              .else_branch = function_gradient(a->else_branch, &g->fault)};
	Value **args = control_values(g, g->node->n_operands + g->node->n_results);

	if (!d.then_branch || !d.else_branch)
		return;
	args[0] = node_operand(g->node, 0);
	int n = 1 + gradient_arguments(g, args + 1, 1);
	add_float_results(g, build_node(g->b, OP_cond, n, args, &d));
}

/* FLOPs of the longer branch */
static int64_t
cond_flops(const Node *n)
{
	const CondAttr *a = n->attr;
	int64_t x = function_flops(a->then_branch), y = function_flops(a->else_branch);

	return x > y ? x : y;
}

const OpRow op_cond = {
	.name = "cond",
	.doc = "runs one of two functions",
	.operands = {{"condition", OPERAND_REQUIRED}, {"arguments", OPERAND_VARIADIC}},
	.results = {"..."},
	.fields = cond_fields,
	.attr_size = sizeof(CondAttr),
	.infer = cond_infer,
	.eval = cond_eval,
	.grad = cond_grad,
	.fuse = FUSE_CONTROL,
	.flops = cond_flops,
	.precision = PRECISION_FIXED,
	.partition = {.factors = partition_none,
                      .doc = "no axis: the nodes of its functions have their own factors"},
	.batch = batch_cond,
	.samples = control_samples};

/* ---- store {state}: the state has this value from the end of the function on */
static const Field store_fields[] = {
	{"state", FIELD_STATE, offsetof(StoreAttr, state), NULL, false}, {0}};

static void
store_infer(Infer *in)
{
	const StoreAttr *a = in->attr;

	if (!a->state || a->state->type != in->operand[0])
		infer_error(in, "the value does not have the state's type");
}

static void
no_eval(Eval *ev)
{
	(void)ev; /* nothing to do: the interpreter itself runs stores and returns */
}

const OpRow op_store = {
	.name = "store",
	.doc = "gives a state its new value",
	.operands = {{"x", OPERAND_REQUIRED}},
	.fields = store_fields,
	.attr_size = sizeof(StoreAttr),
	.infer = store_infer,
	.eval = no_eval,
	.grad = grad_zero,
	.fuse = FUSE_NONE,
	.effect = true,
	.flops = flops_none,
	.precision = PRECISION_FIXED,
	.partition = {.factors = partition_none,
                      .doc = "no axis: the state is divided in the same way as the stored value"},
	.samples = control_samples};

static void
return_infer(Infer *in)
{
	(void)in;
}
const OpRow op_return = {
	.name = "return",
	.doc = "ends a function",
	.operands = {{"values", OPERAND_VARIADIC}},
	.infer = return_infer,
	.eval = no_eval,
	.grad = grad_zero,
	.fuse = FUSE_NONE,
	.effect = true,
	.flops = flops_none,
	.precision = PRECISION_FIXED,
	.partition = {.factors = partition_none, .doc = "no axis: it computes nothing"},
	.samples = control_samples};

/* ---- launch {kernel}: runs loop IR */
static const Field launch_fields[] = {
	{"kernel", FIELD_KERNEL, offsetof(LaunchAttr, kernel), NULL, false}, {0}};

static void
launch_infer(Infer *in)
{
	const Kernel *k = ((const LaunchAttr *)in->attr)->kernel;

	if (!k || in->n_operands != k->n_inputs) {
		infer_error(in, "the kernel takes %d inputs, not %d", k ? k->n_inputs : 0,
		            in->n_operands);
		return;
	}
	for (int i = 0; i < k->n_inputs; i++)
		if (in->operand[i]->dtype != k->buffers.at[i].type->dtype ||
		    in->operand[i]->n != k->buffers.at[i].type->n)
			infer_error(in, "operand %d does not fit kernel input %s", i,
			            k->buffers.at[i].name);
	in->n_results = k->n_outputs;
	for (int i = 0; i < k->n_outputs; i++)
		in->result[i] = k->buffers.at[k->n_inputs + i].type;
}

static void
launch_eval(Eval *ev)
{
	const Kernel *k = ((const LaunchAttr *)ev->attr)->kernel;
	void **buffers = NEW_ARRAY(ev->arena, void *, k->n_inputs + k->n_outputs);

	for (int i = 0; i < k->n_inputs + k->n_outputs; i++) {
		buffers[i] = arena_alloc(ev->arena, (size_t)type_bytes(k->buffers.at[i].type));
		if (i < k->n_inputs)
			eval_tensor_to(&ev->operand[i], buffers[i]);
	}
	for (int i = k->n_inputs; i < k->n_inputs + k->n_outputs; i++)
		if (k->buffers.at[i].from)
			eval_tensor_to(&ev->operand[k->buffers.at[i].from - 1], buffers[i]);
	kernel_interpret(k, buffers, ev->interp->scalars, 0, k->iterations);
	for (int i = 0; i < k->n_outputs; i++)
		ev->result[i] = eval_tensor_from(ev->arena, k->buffers.at[k->n_inputs + i].type,
		                                 buffers[k->n_inputs + i]);
}

static int64_t
launch_flops(const Node *n)
{
	return ((const LaunchAttr *)n->attr)->kernel->flops;
}

const OpRow op_launch = {.name = "launch",
                         .doc = "runs a kernel of loop IR",
                         .operands = {{"inputs", OPERAND_VARIADIC}},
                         .results = {"..."},
                         .fields = launch_fields,
                         .attr_size = sizeof(LaunchAttr),
                         .infer = launch_infer,
                         .eval = launch_eval,
                         .grad = grad_none,
                         .fuse = FUSE_NONE,
                         .flops = launch_flops,
                         .precision = PRECISION_FIXED,
                         .partition = {.factors = partition_none,
                                       .doc = "no axis: nodes are cut before kernels are made"},
                         .samples = control_samples};

/* ---- what nodes of these ops refer to */
State *
stored_state(const Node *n)
{
	return n->op == OP_store ? ((const StoreAttr *)n->attr)->state : NULL;
}

Function *
called_function(const Node *n)
{
	return n->op == OP_call ? ((const CallAttr *)n->attr)->callee : NULL;
}

Kernel *
launched_kernel(const Node *n)
{
	return n->op == OP_launch ? ((const LaunchAttr *)n->attr)->kernel : NULL;
}

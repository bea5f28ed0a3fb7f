/* Calls, loops, branches, and the ends of functions. Bodies are functions of the module that get
 * every captured value as operand; they never touch state. */
#include "ir/ops/family.h"

#include <string.h>

static int
function_results(const Function *f)
{
	return function_return(f) ? function_return(f)->n_operands : 0;
}

/* Do operands from..from+n of the node fit params at..at+n of the function? */
static void
check_params(Infer *in, const Function *f, int from, int at, int n)
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

static void
call_infer(Infer *in)
{
	const Function *f = ((const CallAttr *)in->attr)->callee;

	if (!f || !function_return(f) || in->n_operands != f->params.n) {
		infer_error(in, "callee takes %d operands, not %d", f ? f->params.n : 0,
		            in->n_operands);
		return;
	}
	if (function_results(f) > in->n_results) {
		infer_error(in, "too many results");
		return;
	}
	check_params(in, f, 0, 0, in->n_operands);
	in->n_results = function_results(f);
	for (int i = 0; i < in->n_results; i++)
		in->result[i] = function_result(f, i)->type;
}

static void
call_eval(Eval *ev)
{
	eval_call(ev, ((const CallAttr *)ev->attr)->callee, ev->operand, ev->result);
}

/* The value that a parameter of a custom gradient names: an operand's name, `result.I`, or `d.I`
 * for the cotangent of result I. */
static Value *
gradient_operand(Grad *g, const Function *callee, const char *name)
{
	int i;

	for (i = 0; i < callee->params.n; i++)
		if (strcmp(callee->params.at[i]->name, name) == 0)
			return node_operand(g->node, i);
	if (sscanf(name, "result.%d", &i) == 1 && i >= 0 && i < g->node->n_results)
		return node_result(g->node, i);
	if (sscanf(name, "d.%d", &i) == 1 && i >= 0 && i < g->node->n_results)
		return g->dresult[i] ? g->dresult[i] : zeros_like(g->b, node_result(g->node, i));
	return NULL;
}

static void
add_float_results(Grad *g, Node *call)
{
	int k = 0;

	for (int i = 0; i < g->node->n_operands; i++)
		if (dtype_is_float(node_operand(g->node, i)->type->dtype) && k < call->n_results)
			grad_add(g, i, node_result(call, k++));
}

/* Operands and the cotangents of float results, as function_gradient's function takes them. */
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

static Value **
value_array(Grad *g, int n)
{
	return NEW_ARRAY(g->b->m->arena, Value *, n);
}

static void
call_grad(Grad *g)
{
	CallAttr *a = g->node->attr;
	Function *f = a->gradient;
	int n = g->node->n_operands + g->node->n_results;
	Value **args = value_array(g, n + (f ? f->params.n : 0));

	if (!f) {
		f = function_gradient(a->callee, &g->fault);
		if (f)
			add_float_results(g,
			                  build_node(g->b, OP_call, gradient_arguments(g, args, 0),
			                             args, &(CallAttr){.callee = f}));
		return;
	}
	for (int i = 0; i < f->params.n; i++) {
		args[i] = gradient_operand(g, a->callee, f->params.at[i]->name);
		if (!args[i]) {
			g->fault = "has a custom gradient that names an unknown value";
			return;
		}
	}
	add_float_results(g,
	                  build_node(g->b, OP_call, f->params.n, args, &(CallAttr){.callee = f}));
}

static const Sample text_only[] = {{"text", ""}, {0}}; /* covered by tests/ir/control.gir */
const OpRow op_call = {.name = "call",
                       .doc = "runs a function of the module",
                       .operands = {{"arguments", OPERAND_VARIADIC}},
                       .results = {"..."},
                       .fields = call_fields,
                       .attr_size = sizeof(CallAttr),
                       .infer = call_infer,
                       .eval = call_eval,
                       .grad = call_grad,
                       .fuse = FUSE_NONE,
                       .samples = text_only};

/* ---- cond {then, else}: operands are a bool and the arguments of both */
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
		check_params(in, branches[k], 1, 0, in->n_operands - 1);
	}
	in->n_results = function_results(a->then_branch);
	if (function_results(a->else_branch) != in->n_results) {
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
	Value **args = value_array(g, g->node->n_operands + g->node->n_results);

	if (!d.then_branch || !d.else_branch)
		return;
	args[0] = node_operand(g->node, 0);
	int n = 1 + gradient_arguments(g, args + 1, 1);
	add_float_results(g, build_node(g->b, OP_cond, n, args, &d));
}

const OpRow op_cond = {
	.name = "cond",
	.doc = "one of two functions",
	.operands = {{"condition", OPERAND_REQUIRED}, {"arguments", OPERAND_VARIADIC}},
	.results = {"..."},
	.fields = cond_fields,
	.attr_size = sizeof(CondAttr),
	.infer = cond_infer,
	.eval = cond_eval,
	.grad = cond_grad,
	.fuse = FUSE_NONE,
	.samples = text_only};

/* ---- loop {body, bound, carried, sliced}: operands are carried values, sliced ones (leading
 * dimension `bound`) and invariants. body(i: s64[], carried, slices, invariants) -> (continue:
 * bool[], carried, rows) runs while continue holds, at most bound times. Results: carried, stacked
 * rows (zero behind the last), the trip count. */
static const Field loop_fields[] = {{"body", FIELD_FUNC, offsetof(LoopAttr, body), NULL, false},
                                    {"bound", FIELD_INT, offsetof(LoopAttr, bound), NULL, false},
                                    {"carried", FIELD_INT, offsetof(LoopAttr, carried), NULL, true},
                                    {"sliced", FIELD_INT, offsetof(LoopAttr, sliced), NULL, true},
                                    {0}};

static Type
stacked_type(Module *m, Type row, int64_t n)
{
	int64_t dims[MAX_RANK + 1] = {n};

	memcpy(dims + 1, row->dims, sizeof(int64_t) * (size_t)row->rank);
	return type_new(m, row->dtype, row->rank + 1, dims);
}

static bool
loop_counts_fit(const Infer *in, const LoopAttr *a)
{
	return a->body && function_return(a->body) && a->carried >= 0 && a->sliced >= 0 &&
	       a->bound >= 0 && a->carried + a->sliced <= in->n_operands &&
	       a->body->params.n == in->n_operands + 1 &&
	       function_results(a->body) >= 1 + a->carried;
}

static void
loop_infer(Infer *in)
{
	const LoopAttr *a = in->attr;

	if (!loop_counts_fit(in, a)) {
		infer_error(in, "the body does not fit the operands");
		return;
	}
	const Function *f = a->body;
	int carried = (int)a->carried, sliced = (int)a->sliced;
	if (f->params.at[0]->type != type_scalar(in->m, S64) ||
	    function_result(f, 0)->type != type_scalar(in->m, BOOL))
		infer_error(in, "the body takes s64[] first and returns bool[] first");
	check_params(in, f, 0, 1, carried);
	check_params(in, f, carried + sliced, 1 + carried + sliced,
	             in->n_operands - carried - sliced);
	for (int i = carried; i < carried + sliced; i++)
		if (f->params.at[1 + i]->type->rank >= MAX_RANK ||
		    in->operand[i] != stacked_type(in->m, f->params.at[1 + i]->type, a->bound))
			infer_error(in, "operand %d is not a stack of @%s's %%%s", i, f->name,
			            f->params.at[1 + i]->name);
	in->n_results = function_results(f); /* continue's place is taken by the trip count, last */
	for (int i = 0; i < carried; i++) {
		in->result[i] = function_result(f, 1 + i)->type;
		if (in->result[i] != in->operand[i])
			infer_error(in, "carried value %d changes its type", i);
	}
	for (int i = carried; i + 1 < in->n_results; i++)
		in->result[i] = stacked_type(in->m, function_result(f, 1 + i)->type, a->bound);
	in->result[in->n_results - 1] = type_scalar(in->m, S64);
}

static void
loop_eval(Eval *ev)
{
	const LoopAttr *a = ev->attr;
	const Function *f = a->body;
	int n = ev->node->n_operands, carried = (int)a->carried, outs = function_results(f);
	EvalTensor *args = NEW_ARRAY(ev->arena, EvalTensor, n + 1);
	EvalTensor *rows = NEW_ARRAY(ev->arena, EvalTensor, outs);
	int64_t trip = 0;
	bool go = true;

	memcpy(args + 1, ev->operand, sizeof(EvalTensor) * (size_t)n);
	for (; trip < a->bound && go; trip++) {
		args[0] = eval_tensor_new(ev->arena, f->params.at[0]->type);
		args[0].i[0] = trip;
		for (int i = carried; i < carried + a->sliced; i++) {
			args[1 + i].type = f->params.at[1 + i]->type;
			args[1 + i].i = ev->operand[i].i + trip * args[1 + i].type->n;
		}
		interp_run(ev->interp, f, args, rows);
		go = rows[0].i[0];
		memcpy(args + 1, rows + 1, sizeof(EvalTensor) * (size_t)carried);
		for (int i = carried; i + 1 < outs; i++)
			memcpy(ev->result[i].i + trip * rows[1 + i].type->n, rows[1 + i].i,
			       8 * (size_t)rows[1 + i].type->n);
	}
	for (int i = 0; i < carried; i++)
		memcpy(ev->result[i].i, args[1 + i].i, 8 * (size_t)args[1 + i].type->n);
	ev->result[outs - 1].i[0] = trip;
}

/* Reverse mode, in two loops: the first runs forward again and stacks the carried values that each
 * iteration saw; the second runs the body's gradient from the last iteration to the first. Rows
 * behind the trip count are passed over by a mask. */
typedef struct {
	Grad *g;
	const LoopAttr *a;
	Function *body, *body_grad;
	int carried, sliced, invariant, rows;
	Node *stacks; /* the first loop's node */
} LoopGrad;

/* body, returning the carried values it got as further rows */
static Function *
stacking_body(LoopGrad *lg)
{
	Module *m = lg->g->b->m;
	const char *name = module_fresh_name(m,
	                                     arena_printf(m->arena, "%s.stacking", lg->body->name));
	Function *f = function_clone(lg->body, name);
	Node *ret = function_return(f);
	int n = ret->n_operands;
	Value **out = value_array(lg->g, n + lg->carried);

	for (int i = 0; i < n; i++)
		out[i] = node_operand(ret, i);
	for (int i = 0; i < lg->carried; i++)
		out[n + i] = f->params.at[1 + i];
	node_erase(ret);
	b_return(&(Builder){.m = m, .f = f}, n + lg->carried, out);
	return f;
}

static bool
is_float(const Value *v)
{
	return dtype_is_float(v->type->dtype);
}

/* step(j, dcarried, dinvariants, slices: t, carried seen, sliced, drows; invariants: trip, invariants)
 *   -> (true, dcarried, dinvariants, dsliced) */
static Function *
backward_step(LoopGrad *lg, Value *const *args, int n_carried_d, int n_args)
{
	Module *m = lg->g->b->m;
	Function *step = function_new(
		m, module_fresh_name(m, arena_printf(m->arena, "%s.backward", lg->body->name)));
	Builder b = {.m = m, .f = step};
	int n_sliced = 1 + lg->carried + lg->sliced;
	Value **call = value_array(lg->g, lg->body->params.n + function_results(lg->body));
	Value **out = value_array(lg->g, 1 + n_args);
	Value *t = NULL, *trip = NULL;
	VEC(Value *) p = {0};

	function_param(step, type_scalar(m, S64), "j");
	for (int i = 0; i < lg->rows; i++)
		n_sliced += is_float(node_result(lg->g->node, lg->carried + i));
	for (int i = 0; i < n_args; i++) {
		Type type = args[i]->type;
		bool slice = i >= n_carried_d && i < n_carried_d + n_sliced;
		Type row = slice ? type_drop_axis(m, type, 0) : type;
		vec_push(m->arena, &p, function_param(step, row, arena_printf(m->arena, "p%d", i)));
	}
	int at = n_carried_d, n_call = 0;
	t = p.at[at++];
	trip = p.at[n_carried_d + n_sliced];
	call[n_call++] = t;
	for (int i = 0; i < lg->carried + lg->sliced; i++)
		call[n_call++] = p.at[at++];
	for (int i = 0; i < lg->invariant; i++)
		call[n_call++] = p.at[n_carried_d + n_sliced + 1 + i];
	int d = 0;
	for (int i = 0; i < lg->carried; i++)
		if (is_float(node_result(lg->g->node, i)))
			call[n_call++] = p.at[d++];
	for (int i = 0; i < lg->rows; i++)
		if (is_float(node_result(lg->g->node, lg->carried + i)))
			call[n_call++] = p.at[at++];
	Node *grads = build_node(&b, OP_call, n_call, call, &(CallAttr){.callee = lg->body_grad});

	Value *live = b_binary(&b, OP_lt, t, trip);
	Value *one = b_constant(&b, tensor_splat(m, type_scalar(m, BOOL), 1));
	int n_out = 0, k = 0;
	out[n_out++] = one;
	Value **dsliced = value_array(lg->g, lg->sliced + 1);
	int n_dsliced = 0, inv = d;
	for (int i = 1; i < lg->body->params.n; i++) {
		if (!is_float(lg->body->params.at[i]))
			continue;
		Value *dx = node_result(grads, k++);
		Value *mask = b_broadcast(&b, live, ints_of_type(dx->type), (Ints){0});
		if (i - 1 < lg->carried)
			out[n_out] = b_select(&b, mask, dx, p.at[n_out - 1]), n_out++;
		else if (i - 1 < lg->carried + lg->sliced)
			dsliced[n_dsliced++] = b_select(&b, mask, dx, zeros_like(&b, dx));
		else {
			Value *sum = b_binary(&b, OP_add, p.at[inv], dx);
			out[n_out++] = b_select(&b, mask, sum, p.at[inv++]);
		}
	}
	for (int i = 0; i < n_dsliced; i++)
		out[n_out++] = dsliced[i];
	b_return(&b, n_out, out);
	return step;
}

static Value *
reversed(Builder *b, Value *x)
{
	return b_reverse(b, x, (Ints){.n = 1, .at = {0}});
}

static void
loop_grad(Grad *g)
{
	const LoopAttr *a = g->node->attr;
	Node *n = g->node;
	Builder *b = g->b;
	LoopGrad lg = {.g = g,
	               .a = a,
	               .body = a->body,
	               .carried = (int)a->carried,
	               .sliced = (int)a->sliced};
	Value **args = value_array(g, 4 * (n->n_operands + n->n_results) + 4);
	int n_args = 0, n_d = 0;

	lg.invariant = n->n_operands - lg.carried - lg.sliced;
	lg.rows = n->n_results - 1 - lg.carried;
	lg.body_grad = function_gradient(a->body, &g->fault);
	if (!lg.body_grad)
		return;
	for (int i = 0; i < n->n_operands; i++)
		args[i] = node_operand(n, i);
	LoopAttr stacking = *a;
	stacking.body = stacking_body(&lg);
	lg.stacks = build_node(b, OP_loop, n->n_operands, args, &stacking);

	for (int i = 0; i < lg.carried; i++)
		if (is_float(node_result(n, i)))
			args[n_args++] = g->dresult[i] ? g->dresult[i]
			                               : zeros_like(b, node_result(n, i));
	for (int i = lg.carried + lg.sliced; i < n->n_operands; i++)
		if (is_float(node_operand(n, i)))
			args[n_args++] = zeros_like(b, node_operand(n, i));
	n_d = n_args;
	args[n_args++] = reversed(b, b_iota(b, S64, (Ints){.n = 1, .at = {a->bound}}, 0));
	for (int i = 0; i < lg.carried; i++)
		args[n_args++] = reversed(b, node_result(lg.stacks, n->n_results - 1 + i));
	for (int i = 0; i < lg.sliced; i++)
		args[n_args++] = reversed(b, node_operand(n, lg.carried + i));
	for (int i = lg.carried; i + 1 < n->n_results; i++)
		if (is_float(node_result(n, i)))
			args[n_args++] = reversed(b, g->dresult[i]
			                                     ? g->dresult[i]
			                                     : zeros_like(b, node_result(n, i)));
	int n_sliced = n_args - n_d;
	args[n_args++] = node_result(n, n->n_results - 1);
	for (int i = lg.carried + lg.sliced; i < n->n_operands; i++)
		args[n_args++] = node_operand(n, i);
	LoopAttr backward = {.body = backward_step(&lg, args, n_d, n_args),
	                     .bound = a->bound,
	                     .carried = n_d,
	                     .sliced = n_sliced};
	Node *back = build_node(b, OP_loop, n_args, args, &backward);
	int d = 0, row = n_d;
	for (int i = 0; i < lg.carried; i++)
		if (is_float(node_operand(n, i)))
			grad_add(g, i, node_result(back, d++));
	for (int i = lg.carried; i < lg.carried + lg.sliced; i++)
		if (is_float(node_operand(n, i)))
			grad_add(g, i, reversed(b, node_result(back, row++)));
	for (int i = lg.carried + lg.sliced; i < n->n_operands; i++)
		if (is_float(node_operand(n, i)))
			grad_add(g, i, node_result(back, d++));
}

const OpRow op_loop = {.name = "loop",
                       .doc = "runs a function up to a bound",
                       .operands = {{"values", OPERAND_VARIADIC}},
                       .results = {"..."},
                       .fields = loop_fields,
                       .attr_size = sizeof(LoopAttr),
                       .infer = loop_infer,
                       .eval = loop_eval,
                       .grad = loop_grad,
                       .fuse = FUSE_NONE,
                       .samples = text_only};

/* ---- store {state}: the state's new value, from the end of the function on */
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
	(void)ev; /* the interpreter itself ends functions and stores */
}

const OpRow op_store = {.name = "store",
                        .doc = "gives a state its new value",
                        .operands = {{"x", OPERAND_REQUIRED}},
                        .fields = store_fields,
                        .attr_size = sizeof(StoreAttr),
                        .infer = store_infer,
                        .eval = no_eval,
                        .grad = grad_zero,
                        .fuse = FUSE_NONE,
                        .effect = true,
                        .samples = text_only};

static void
return_infer(Infer *in)
{
	(void)in;
}
const OpRow op_return = {.name = "return",
                         .doc = "ends a function",
                         .operands = {{"values", OPERAND_VARIADIC}},
                         .infer = return_infer,
                         .eval = no_eval,
                         .grad = grad_zero,
                         .fuse = FUSE_NONE,
                         .effect = true,
                         .samples = text_only};

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
	kernel_interpret(k, buffers, ev->interp->scalars, 0, k->iterations);
	for (int i = 0; i < k->n_outputs; i++)
		ev->result[i] = eval_tensor_from(ev->arena, k->buffers.at[k->n_inputs + i].type,
		                                 buffers[k->n_inputs + i]);
}

static int64_t
launch_cost(const Node *n)
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
                         .cost = launch_cost,
                         .samples = text_only};

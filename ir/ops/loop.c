/* The loop op: a function of the module, run up to a bound. */
#include "ir/loop.h"
#include "ir/ops/control.h"

#include <string.h>

/* ---- loop {body, bound, carried, sliced, always}: operands are carried values, sliced ones (leading
 * dimension `bound`) and invariants. body(i: s64[], carried, slices, invariants) -> (continue:
 * bool[], carried, rows) runs while continue holds, or always, at most bound times. Results: carried, stacked
 * rows (zero behind the last), the trip count. */
static const Field loop_fields[] = {{"body", FIELD_FUNC, offsetof(LoopAttr, body), NULL, false},
                                    {"bound", FIELD_INT, offsetof(LoopAttr, bound), NULL, false},
                                    {"carried", FIELD_INT, offsetof(LoopAttr, carried), NULL, true},
                                    {"sliced", FIELD_INT, offsetof(LoopAttr, sliced), NULL, true},
                                    {"always", FIELD_BOOL, offsetof(LoopAttr, always), NULL, true},
                                    {0}};

LoopPart
loop_part(const Node *n, int i)
{
	const LoopAttr *a = n->attr;

	return i < a->carried               ? LOOP_CARRIED
	       : i < a->carried + a->sliced ? LOOP_SLICED
	                                    : LOOP_INVARIANT;
}

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
	       control_results(a->body) >= 1 + a->carried;
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
	control_check_params(in, f, 0, 1, carried);
	control_check_params(in, f, carried + sliced, 1 + carried + sliced,
	                     in->n_operands - carried - sliced);
	for (int i = carried; i < carried + sliced; i++)
		if (f->params.at[1 + i]->type->rank >= MAX_RANK ||
		    in->operand[i] != stacked_type(in->m, f->params.at[1 + i]->type, a->bound))
			infer_error(in, "operand %d is not a stack of @%s's %%%s", i, f->name,
			            f->params.at[1 + i]->name);
	in->n_results = control_results(f); /* continue's place is taken by the trip count, last */
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
	int n = ev->node->n_operands, carried = (int)a->carried, outs = control_results(f);
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
		go = a->always || rows[0].i[0];
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
	Value **out = control_values(lg->g, n + lg->carried);

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
	Value **call = control_values(lg->g, lg->body->params.n + control_results(lg->body));
	Value **out = control_values(lg->g, 1 + n_args);
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
	Value **dsliced = control_values(lg->g, lg->sliced + 1);
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
	Value **args = control_values(g, 4 * (n->n_operands + n->n_results) + 4);
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

/* as if it ran up to its bound */
static int64_t
loop_flops(const Node *n)
{
	const LoopAttr *a = n->attr;

	return a->bound * function_flops(a->body);
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
                       .fuse = FUSE_CONTROL,
                       .flops = loop_flops,
                       .precision = PRECISION_FIXED,
                       .partition = {.factors = partition_none,
                                     .doc = "none: the nodes of its function have their own"},
                       .samples = control_samples};

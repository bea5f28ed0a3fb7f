/* The op loop: runs a function of the module (the body) again and again, at most `bound` times. */
#include "ir/loop/loop.h"
#include "ir/ops/batch/batch_axis.h"
#include "ir/ops/control/control.h"

#include <string.h>

/* ---- loop {body, bound, carried, sliced, always, reverse}. Operands: carried values, sliced
 * values (leading dimension `bound`), invariants. The body is
 *
 *	body(i: s64[], carried, slices, invariants) -> (continue: bool[], carried, rows)
 *
 * It runs for i = 0, 1, ... bound - 1, or with `reverse` from bound - 1 down to 0, and ends early
 * when it returns continue = false, unless `always` is set. Results: the last carried values, the
 * rows of all iterations stacked (zero for iterations that did not run), the number of iterations
 * that ran. */
static const Field loop_fields[] = {
	{"body", FIELD_FUNC, offsetof(LoopAttr, body), NULL, false},
	{"bound", FIELD_INT, offsetof(LoopAttr, bound), NULL, false},
	{"carried", FIELD_INT, offsetof(LoopAttr, carried), NULL, true},
	{"sliced", FIELD_INT, offsetof(LoopAttr, sliced), NULL, true},
	{"always", FIELD_BOOL, offsetof(LoopAttr, always), NULL, true},
	{"reverse", FIELD_BOOL, offsetof(LoopAttr, reverse), NULL, true},
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
	if (control_results(f) > in->n_results) {
		infer_error(in, "too many results");
		return;
	}
	/* the body's results, but the loop has no `continue`; in its place comes the trip count,
	 * as the last result */
	in->n_results = control_results(f);
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
		int64_t at = a->reverse ? a->bound - 1 - trip : trip;
		args[0].i[0] = at;
		for (int i = carried; i < carried + a->sliced; i++) {
			args[1 + i].type = f->params.at[1 + i]->type;
			args[1 + i].i = ev->operand[i].i + at * args[1 + i].type->n;
		}
		interp_run(ev->interp, f, args, rows);
		go = a->always || rows[0].i[0];
		memcpy(args + 1, rows + 1, sizeof(EvalTensor) * (size_t)carried);
		for (int i = carried; i + 1 < outs; i++)
			memcpy(ev->result[i].i + at * rows[1 + i].type->n, rows[1 + i].i,
			       8 * (size_t)rows[1 + i].type->n);
	}
	for (int i = 0; i < carried; i++)
		memcpy(ev->result[i].i, args[1 + i].i, 8 * (size_t)args[1 + i].type->n);
	ev->result[outs - 1].i[0] = trip;
}

/* counts the FLOPs as if the loop always ran `bound` times */
static int64_t
loop_flops(const Node *n)
{
	const LoopAttr *a = n->attr;

	return a->bound * function_flops(a->body);
}

const OpRow op_loop = {
	.name = "loop",
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
                      .doc = "no axis: the nodes of its function have their own factors"},
	.batch = batch_loop,
	.samples = control_samples};

/* Warns if the output does not have the form that the loss takes. Example: cross entropy contains
 * a softmax. If the model itself ends in a softmax, a second one is applied; training is then
 * slow and ends in another minimum. Likewise if bce_with_logits gets the result of a sigmoid, or
 * nll an output that is not log-probabilities. */
#include "passes/losses/loss_pass.h"

/* v without views and casts. */
static Value *
bare(Value *v)
{
	v = behind_views(v);
	while (v->node && v->node->op == OP_cast)
		v = behind_views(node_operand(v->node, 0));
	return v;
}

static bool
is_number(const Value *v, double x)
{
	double value;

	return value_splat(v, &value) && value == x;
}

/* sum(x) */
static bool
is_sum_of(Value *v, Value *x)
{
	const Node *n = bare(v)->node;

	return n && n->op == OP_reduce && ((const ReduceAttr *)n->attr)->kind == REDUCE_SUM &&
	       bare(node_operand(n, 0)) == bare(x);
}

/* 1 / sum(x) */
static bool
is_inverse_sum_of(Value *v, Value *x)
{
	const Node *n = bare(v)->node;

	return n && n->op == OP_div && is_number(node_operand(n, 0), 1) &&
	       is_sum_of(node_operand(n, 1), x);
}

/* x / sum(x): numbers whose sum is 1 */
static bool
is_softmax(const Node *n)
{
	Value *x = node_operand(n, 0), *y = n->n_operands > 1 ? node_operand(n, 1) : NULL;

	if (n->op == OP_div)
		return is_sum_of(y, x);
	return n->op == OP_mul && (is_inverse_sum_of(y, x) || is_inverse_sum_of(x, y));
}

/* 1 / (1 + exp(-x)) */
static bool
is_sigmoid(const Node *n)
{
	if (n->op == OP_sigmoid)
		return true;
	if (n->op != OP_div || !is_number(node_operand(n, 0), 1))
		return false;
	const Node *sum = bare(node_operand(n, 1))->node;
	for (int i = 0; sum && sum->op == OP_add && i < 2; i++) {
		const Node *e = bare(node_operand(sum, 1 - i))->node;
		if (is_number(node_operand(sum, i), 1) && e && e->op == OP_exp)
			return true;
	}
	return false;
}

bool
loss_output_is_sigmoid(const Function *f, int64_t output)
{
	const Node *n = bare(function_result(f, (int)output))->node;

	return n && is_sigmoid(n);
}

/* Returns the name of the function that made the probabilities v from logits, "softmax" or
 * "sigmoid", also if bounds, concat, select or 1 - x lie between. NULL: v has another form. */
static const char *
probabilities(bool *seen, Value *v)
{
	const Node *n = bare(v)->node;
	const char *found = NULL;

	if (!n || seen[n->id])
		return NULL;
	seen[n->id] = true;
	if (is_softmax(n))
		return "softmax";
	if (is_sigmoid(n))
		return "sigmoid";
	bool follows = n->op == OP_concat || n->op == OP_max || n->op == OP_min ||
	               n->op == OP_select || (n->op == OP_sub && is_number(node_operand(n, 0), 1));
	for (int i = 0; follows && !found && i < n->n_operands; i++)
		found = probabilities(seen, node_operand(n, i));
	return found;
}

/* Does the elementwise end of the graph contain a logarithm, or an op that gradc cannot look through? */
static bool
may_be_logarithm(bool *seen, Value *v)
{
	const Node *n = bare(v)->node;
	FuseClass class = n ? op_row(n)->fuse : FUSE_NONE;
	bool found = false;

	if (!n || seen[n->id])
		return false;
	seen[n->id] = true;
	if (n->op == OP_log || n->op == OP_log1p || class == FUSE_CONTROL || class == FUSE_INDEX ||
	    n->op == OP_call)
		return true;
	bool follows = class == FUSE_ELEMENTWISE || class == FUSE_ROOT;
	for (int i = 0; follows && !found && i < n->n_operands; i++)
		found = may_be_logarithm(seen, node_operand(n, i));
	return found;
}

static void
warn(LossPass *lp, const Function *f, const char *is, const char *hint)
{
	diag_warning(lp->p->diag, "%s: --loss=%s takes %s, and %s %s", lp->m->name, lp->row->name,
	             lp->row->takes == LOSS_TAKES_LOGITS ? "logits" : "log-probabilities",
	             loss_output_name(lp, f, lp->options->output), is);
	diag_hint(lp->p->diag, "%s", hint);
}

void
loss_check_form(LossPass *lp, const Function *f)
{
	Value *output = function_result(f, (int)lp->options->output);
	bool *seen = NEW_ARRAY(lp->p->scratch, bool, f->next_node_id + 1);
	bool *searched = NEW_ARRAY(lp->p->scratch, bool, f->next_node_id + 1);
	const char *made = lp->row->takes ? probabilities(seen, output) : NULL;
	const char *is = arena_printf(lp->p->scratch, "is a %s: probabilities", made ? made : "");

	if (made && lp->row->takes == LOSS_TAKES_LOGITS)
		warn(lp, f, is, "export the model without it: the loss has its own");
	else if (made)
		warn(lp, f, is,
		     "export the model with a LogSoftmax; or export its logits, and compile with "
		     "--loss=cross_entropy");
	else if (lp->row->takes == LOSS_TAKES_LOG_PROBABILITIES &&
	         !may_be_logarithm(searched, output))
		warn(lp, f, "is no logarithm", "--loss=cross_entropy takes logits");
}

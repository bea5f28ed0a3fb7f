/* --init random: gives parameters random first values instead of the file's numbers. Which
 * distribution a parameter gets depends on the nodes that read it in @forward, and is what
 * PyTorch's layers use. Weights of dot and conv, and biases added to their results:
 * U(-1/sqrt(fan_in), 1/sqrt(fan_in)). Tables that gather reads: N(0, 0.02). Scales of
 * normalizations (factors of a value that is not a product): 1. All other parameters: 0. A frozen
 * parameter keeps its data, and a rule (--init GLOB=...) has precedence. The numbers are drawn at
 * run time from the seed. Time: linear in nodes. */
#include "passes/pass.h"

#include <math.h>

static int64_t
window_inputs(Type w)
{
	return w->dims[0] ? w->n / w->dims[0] : 0;
}

/* Number of inputs that each output of a product sums over; 0: n is not a product. */
static int64_t
fan_in(const Node *n)
{
	int64_t k = 1;

	if (n->op == OP_conv || n->op == OP_conv_grad_input)
		return window_inputs(node_operand(n, 1)->type);
	if (n->op != OP_dot)
		return 0;
	const DotAttr *a = n->attr;
	for (int i = 0; i < a->x_contract.n; i++)
		k *= node_operand(n, 0)->type->dims[a->x_contract.at[i]];
	return k;
}

static void
set_uniform(State *s, int64_t inputs)
{
	double bound = inputs > 0 ? 1 / sqrt((double)inputs) : 0;

	state_begin_as(s, INIT_UNIFORM, -bound, bound);
}

/* Finds the initial distribution of v by the first reader of v that determines it. Returns false if no reader does. */
static bool
init_by_readers(State *s, const Value *v)
{
	for_each_use(v, u) {
		const Node *n = u->user;
		if (fan_in(n)) {
			set_uniform(s, fan_in(n));
		} else if (n->op == OP_gather && use_index(u) == 0) {
			state_begin_as(s, INIT_NORMAL, 0, 0.02);
		} else if (op_row(n)->fuse == FUSE_VIEW) {
			if (!init_by_readers(s, node_result(n, 0)))
				continue;
		} else if (n->op == OP_add) {
			const Node *other = behind_views(node_operand(n, !use_index(u)))->node;
			if (other && fan_in(other))
				set_uniform(s, fan_in(other));
			else
				state_begin_as(s, INIT_ZEROS, 0, 0);
		} else if (n->op == OP_mul) {
			state_begin_as(s, INIT_ONES, 0, 0);
		} else {
			continue;
		}
		return true;
	}
	return false;
}

static bool
run_initialize(Pass *p, Module *m)
{
	Function *f = module_first(m, ROLE_FORWARD);

	if (!f) {
		diag_error(p->diag, EXIT_USAGE, "%s: initialize needs a function of role forward",
		           m->name);
		return false;
	}
	for (int i = 0; i < m->states.n; i++) {
		State *s = m->states.at[i];
		if (s->kind != STATE_PARAMETER || !s->trainable || s->init_given)
			continue;
		if (!init_by_readers(s, function_state(f, s)))
			state_begin_as(s, INIT_ZEROS, 0, 0);
	}
	p->changed = true;
	return true;
}

const PassRow pass_initialize = {.name = "initialize",
                                 .help = "random first values by use",
                                 .takes = STAGE_ANY,
                                 .leaves = STAGE_ANY,
                                 .when = PASS_WHEN_ASKED,
                                 .run = run_initialize};

/* Finds functions that exporters write as several nodes: relative shifts (relative_shift.c) and GELU. GELU with tanh
 * becomes op `gelu`, whose derivative is one node, too.
 *
 * A chain of nodes is recognized by its values, not by its form, because exporters write the same
 * function in many ways. It must agree with GELU at 26 points, with an error of at most 1e-5 of
 * each value. This is no proof, but chains are short and smooth. The chain's own error in f32 is at
 * least as large: where 1 + tanh is small, f32 rounds the sum by more.
 *
 * Results change by no more than this error. f64 nodes stay, because there the file's constants
 * matter. Time: linear in nodes, because chains are bounded. */
#include "passes/idioms.h"
#include "passes/pass.h"

#include <math.h>
#include <string.h>

enum {
	MOST_CHAIN = 16,
	N_POINTS = 26,
	MOST_DEPTH = 12,
	MOST_INNER = 5,   /* nodes from the tanh to the leaf */
	MOST_TRIES = 256, /* per tanh */
};

/* The values of a chain's nodes at all points of its only leaf. */
typedef struct {
	const Value *leaf;
	int n; /* number of nodes so far */
	const Value *of[MOST_CHAIN];
	double at[MOST_CHAIN][N_POINTS];
} Chain;

/* Irregular points, most of them where a GELU bends. */
static double
point(int i)
{
	static const double far[] = {-8, 8, -40, 40, -1e3, 1e3};

	return i < COUNT(far) ? far[i] : 3.1 * sin(0.7 + 2.3 * i);
}

/* Can n be part of a chain? Chains consist of smooth functions. */
static bool
is_link(const Node *n)
{
	return n && (op_row(n)->smooth);
}

/* Evaluates v at all points. Returns false if v depends on more than the leaf, or on too many nodes. */
static bool
evaluate(Chain *c, const Value *v, int depth, double *out)
{
	double number, operands[2][N_POINTS];
	const Node *n = v->node;
	bool link = is_link(n);

	if (value_splat(v, &number)) {
		for (int i = 0; i < N_POINTS; i++)
			out[i] = number;
		return true;
	}
	for (int i = 0; i < c->n; i++)
		if (c->of[i] == v) {
			memcpy(out, c->at[i], sizeof(c->at[i]));
			return true;
		}
	if (v == c->leaf) {
		for (int i = 0; i < N_POINTS; i++)
			out[i] = point(i);
		return true;
	}
	for (int i = 0; link && i < n->n_operands; i++)
		if (depth == MOST_DEPTH || !evaluate(c, node_operand(n, i), depth + 1, operands[i]))
			return false;
	if (!link || c->n == MOST_CHAIN)
		return false;
	const OpRow *row = op_row(n);
	for (int i = 0; i < N_POINTS; i++)
		out[i] = row->of_two ? row->of_two(operands[0][i], operands[1][i])
		                     : row->of_one(operands[0][i]);
	c->of[c->n] = v;
	memcpy(c->at[c->n++], out, sizeof(c->at[0]));
	return true;
}

/* Hendrycks and Gimpel 2016, arXiv:1606.08415, section 2 */
static bool
is_gelu(const double *values)
{
	for (int i = 0; i < N_POINTS; i++) {
		double x = point(i);
		double want = x / 2 * (1 + tanh(sqrt(M_2_PI) * (x + 0.044715 * x * x * x)));
		if (!(fabs(values[i] - want) <= 1e-5 * fabs(want) + 1e-12 * fabs(x)))
			return false;
	}
	return true;
}

/* A value computed from v that is a GELU of the chain's leaf; NULL: there is no such value. */
static Value *
find_gelu(const Chain *c, Value *v, int depth, int *tries)
{
	double values[N_POINTS];

	for_each_use(v, u) {
		if ((*tries)-- <= 0)
			return NULL;
		Chain longer = *c;
		Value *y = is_link(u->user) ? node_result(u->user, 0) : NULL;
		if (!y || depth == MOST_DEPTH || !evaluate(&longer, y, 0, values))
			continue;
		Value *found = is_gelu(values) ? y : find_gelu(&longer, y, depth + 1, tries);
		if (found)
			return found;
	}
	return NULL;
}

/* The GELU of `leaf` of which t is a part; NULL if t is part of no GELU. */
static Value *
gelu_of(Value *leaf, Value *t, int *tries)
{
	Chain c = {.leaf = leaf};
	double values[N_POINTS];

	return leaf->type == t->type && evaluate(&c, t, 0, values) ? find_gelu(&c, t, 0, tries)
	                                                           : NULL;
}

/* Tries v as the leaf, then the values from which v is computed. */
static bool
name_gelu_of(Value *v, Value *t, int depth, int *tries)
{
	Value *y = gelu_of(v, t, tries);

	if (y) {
		Builder b = {.m = y->function->module,
		             .f = y->function,
		             .before = y->node,
		             .loc = y->node->loc,
		             .phase = y->node->phase};
		value_replace_uses(y, b_unary(&b, OP_gelu, v));
		return true;
	}
	for (int i = 0; is_link(v->node) && i < v->node->n_operands; i++)
		if (depth < MOST_INNER &&
		    name_gelu_of(node_operand(v->node, i), t, depth + 1, tries))
			return true;
	return false;
}

/* t: the result of a tanh */
static bool
name_gelu(Value *t)
{
	int tries = MOST_TRIES;

	return t->type->dtype != F64 && name_gelu_of(node_operand(t->node, 0), t, 0, &tries);
}

static bool
name_idiom(const Node *n)
{
	return n->op == OP_tanh                           ? name_gelu(node_result(n, 0))
	       : n->op == OP_slice || n->op == OP_reshape ? name_relative_shift(node_result(n, 0))
	                                                  : false;
}

static bool
run_idioms(Pass *p, Module *m)
{
	for_each_function(m, f) {
		bool changed = false;
		for_each_node(f, n)
			if (f->kind != FUNCTION_FUSED)
				changed |= name_idiom(n);
		if (changed)
			function_drop_unread(f);
		p->changed |= changed;
	}
	return true;
}

const PassRow pass_idioms = {
	.name = "idioms",
	.help = "recognize functions that exporters spell out: GELU, relative shifts",
	.takes = STAGE_ANY,
	.until = STAGE_TRAIN,
	.leaves = STAGE_ANY,
	.run = run_idioms};

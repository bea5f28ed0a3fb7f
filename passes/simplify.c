/* Simplifies functions: computes constants, applies identities of ops (x + 0 = x), merges equal nodes (cse) and drops
 * unread nodes (dce). Values stay the same bit for bit, apart from what the `simplify` of an op's row allows. Time:
 * linear in nodes, because each function is walked forward once with a table of seen nodes, and backward once. */
#include "passes/pass.h"

#include <string.h>

enum { FOLD_BYTES = 65536, MOST_ROUNDS = 9 };

/* Folding must not enlarge data, nor make more than FOLD_BYTES. */
static bool
worth_folding(const Node *n)
{
	int64_t in = 0, out = 0;

	if (n->n_results == 0 || value_constant(node_result(n, 0)))
		return false;
	for (int i = 0; i < n->n_operands; i++)
		in += type_bytes(node_operand(n, i)->type);
	for (int i = 0; i < n->n_results; i++)
		out += type_bytes(node_result(n, i)->type);
	return out <= FOLD_BYTES && (out <= in || out <= 16);
}

static bool
fold(Pass *p, Module *m, Node *n)
{
	Tensor **results = NEW_ARRAY(p->scratch, Tensor *, n->n_results + 1);
	Builder b = {.m = m, .f = n->function, .before = n, .loc = n->loc, .phase = n->phase};

	for (int i = 0; i < n->n_operands; i++)
		if (!node_operand(n, i) || !value_constant(node_operand(n, i)))
			return false;
	if (!worth_folding(n) || !node_fold(m, n, results))
		return false;
	for (int i = 0; i < n->n_results; i++)
		value_replace_uses(node_result(n, i), b_constant(&b, results[i]));
	node_erase(n);
	return true;
}

/* If all operands of an elementwise op are splats (one number repeated), so is the result: only one element is
 * computed. */
static bool
fold_splats(Pass *p, Module *m, Node *n)
{
	Arena *scratch = p->scratch;
	double v;

	if (op_row(n)->fuse != FUSE_ELEMENTWISE || node_result(n, 0)->type->rank == 0)
		return false;
	for (int i = 0; i < n->n_operands; i++)
		if (!value_splat(node_operand(n, i), &v))
			return false;
	Builder b = {.m = m, .f = n->function, .before = n, .loc = n->loc, .phase = n->phase};
	Value **scalars = NEW_ARRAY(scratch, Value *, n->n_operands);
	for (int i = 0; i < n->n_operands; i++) {
		DType d = node_operand(n, i)->type->dtype;
		value_splat(node_operand(n, i), &v);
		scalars[i] = b_constant(&b, tensor_splat(m, type_scalar(m, d), v));
	}
	Value *y = build(&b, n->op, n->n_operands, scalars, n->attr);
	Value *wide = b_broadcast(&b, y, ints_of_type(node_result(n, 0)->type), (Ints){0});
	Node *one = y->node;
	value_replace_uses(node_result(n, 0), wide);
	node_erase(n);
	fold(p, m, one);
	return true;
}

static bool
rewrite(Pass *p, Module *m, Node *n)
{
	Builder b = {.m = m, .f = n->function, .before = n, .loc = n->loc, .phase = n->phase};

	(void)p;
	if (!op_row(n)->simplify)
		return false;
	Value *y = op_row(n)->simplify(&b, n);
	if (!y || y == node_result(n, 0))
		return false;
	value_replace_uses(node_result(n, 0), y);
	node_erase(n);
	return true;
}

/* ---- cse */
/* Operand i. Operands of a commutative op come in the order of their ids, so that x + y equals y + x. */
static Value *
ordered_operand(const Node *n, int i)
{
	bool swap = op_row(n)->commutative && node_operand(n, 0)->id > node_operand(n, 1)->id;

	return node_operand(n, swap ? 1 - i : i);
}

static uint64_t
node_hash(const Node *n)
{
	uint64_t h = hash_mix(n->op, attr_hash(op_row(n), n->attr));

	for (int i = 0; i < n->n_operands; i++)
		h = hash_mix(h, ordered_operand(n, i) ? ordered_operand(n, i)->id + 1 : 0);
	return h;
}

static bool
node_equal(const Node *a, const Node *b)
{
	if (a->op != b->op || a->n_operands != b->n_operands)
		return false;
	for (int i = 0; i < a->n_operands; i++)
		if (ordered_operand(a, i) != ordered_operand(b, i))
			return false;
	return attr_equal(op_row(a), a->attr, b->attr);
}

static bool
merge_twin(IntMap *seen, Node *n)
{
	uint64_t h = node_hash(n), found;

	if (op_row(n)->effect)
		return false;
	for (; intmap_get(seen, h, &found); h++) {
		Node *twin = (Node *)(uintptr_t)found;
		if (!node_equal(twin, n))
			continue;
		for (int i = 0; i < n->n_results; i++)
			value_replace_uses(node_result(n, i), node_result(twin, i));
		node_erase(n);
		return true;
	}
	intmap_put(seen, h, (uint64_t)(uintptr_t)n);
	return false;
}

static bool
simplify_function(Pass *p, Module *m, Function *f)
{
	IntMap *seen = intmap_new(p->scratch);
	bool changed = false, rewritten = false;

	for_each_node(f, n) {
		if (rewrite(p, m, n)) {
			rewritten = true;
			continue;
		}
		if (fold(p, m, n) || fold_splats(p, m, n) || merge_twin(seen, n))
			changed = true;
	}
	changed |= function_drop_unread(f);
	p->changed |= changed || rewritten;
	return rewritten;
}

/* Warns of all functions that may have further rewrites. first: one of them; n: their number. */
static void
report_rounds(const Pass *p, const Function *first, int n)
{
	const char *others = n > 1 ? arena_printf(p->scratch, " and %d more", n - 1) : "";

	diag_warning(p->diag,
	             "%s: simplify stopped in @%s%s after %d rounds of rewrites, the last of which "
	             "still rewrote nodes",
	             first->module->name, first->name, others, MOST_ROUNDS);
	diag_hint(p->diag, "results are right; some nodes could be computed with less work");
}

static bool
run_simplify(Pass *p, Module *m)
{
	const Function *first = NULL;
	int n_stopped = 0;

	for_each_function(m, f) {
		if (f->kind == FUNCTION_FUSED)
			continue;
		int round = 0;
		while (simplify_function(p, m, f) && ++round < MOST_ROUNDS)
			;
		if (round < MOST_ROUNDS)
			continue;
		first = first ? first : f;
		n_stopped++;
	}
	if (first)
		report_rounds(p, first, n_stopped);
	return true;
}

const PassRow pass_simplify = {
	.name = "simplify",
	.help = "fold constants, apply identities, merge equal nodes, drop unread ones",
	.takes = STAGE_ANY,
	.until = STAGE_TRAIN, /* later it would merge rematerialize's copies with their originals */
	.leaves = STAGE_ANY,
	.run = run_simplify};

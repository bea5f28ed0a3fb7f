/* Groups nodes into kernels. Every group becomes a `fused` function and one call of it; the call's
 * results are what other groups read.
 *
 *   1. Each node joins the latest group among its operands' groups when their iteration spaces fit,
 *      else opens a new one. Groups are numbered in that order, and a node's operands never come
 *      from a later group than its own, so the order of groups is an order of execution.
 *   2. A cheap elementwise value that would be stored only for other groups is computed again there
 *      instead (sink).
 *   3. Reductions of equal form over a shared operand are put into one group (siblings).
 *   4. Views and indices are copied into every group that reads through them.
 *
 * Near linear: every step looks at a node's operands and uses only. */
#include "codegen/fuse_impl.h"

/* ---- 0. what must change before grouping */

/* Numbers that kernels load: constants that are no splats become data of the state region. */
static void
store_constant(Fuse *fu, Node *n)
{
	Value *v = node_result(n, 0);
	double splat;

	if (!value_used(v) || tensor_is_splat(value_constant(v), &splat))
		return;
	const Tensor *t = value_constant(v);
	char name[40];
	snprintf(name, sizeof(name), "constant.%016llx", (unsigned long long)t->hash);
	State *s = module_state(fu->m, name);
	if (!s) {
		s = state_new(fu->m, name, t->type, STATE_CONSTANT, LIFE_CONSTANT);
		s->init = INIT_DATA;
		s->data = t;
		s->loc = n->loc;
	}
	value_replace_uses(v, function_state(fu->f, s));
	node_erase(n);
}

/* The block length for a reduction to a scalar: 4096 where that divides, else what gives the most
 * blocks up to 64; 0: not worth it. */
static int64_t
block_length(int64_t n)
{
	if (n < 256)
		return 0;
	if (n % 4096 == 0 && n > 4096)
		return 4096;
	for (int64_t blocks = 64; blocks > 1; blocks--)
		if (n % blocks == 0 && n / blocks > 1)
			return n / blocks;
	return 0;
}

/* reduce to a scalar = partials per block, then their sum: the order of addition is fixed. */
static void
split_full_reduce(Fuse *fu, Node *n)
{
	Value *x = node_operand(n, 0);
	const ReduceAttr *a = n->attr;
	int64_t block = block_length(x->type->n);

	if (node_result(n, 0)->type->n != 1 || block == 0)
		return;
	Builder b = {.m = fu->m, .f = fu->f, .before = n, .loc = n->loc, .phase = n->phase};
	Ints two = {.n = 2, .at = {x->type->n / block, block}};
	Value *partial = b_reduce(&b, a->kind, b_reshape(&b, x, two), (Ints){.n = 1, .at = {1}});
	Value *sum = b_reduce(&b, a->kind, partial, (Ints){.n = 1, .at = {0}});
	value_replace_uses(node_result(n, 0),
	                   b_reshape(&b, sum, ints_of_type(node_result(n, 0)->type)));
	node_erase(n);
}

static Node *
first_store(const Function *f)
{
	Node *n = f->last;

	while (n->prev && n->prev->op == OP_store)
		n = n->prev;
	return n;
}

/* Stores and the return read the calls' results; the old nodes go. */
static void
remove_old_nodes(Fuse *fu, uint32_t n_old)
{
	for (Node *n = first_store(fu->f); n; n = n->next)
		for (int i = 0; i < n->n_operands; i++)
			if (fu->stored[node_operand(n, i)->id])
				node_set_operand(n, i, fu->stored[node_operand(n, i)->id]);
	for_each_node_reverse(fu->f, n)
		if (n->id < n_old && n->op != OP_store && n->op != OP_return)
			node_erase(n);
}

static bool
refuse_control(Pass *p, const Function *f)
{
	bool ok = true;

	for_each_node(f, n) {
		if (fuse_class_of(n) != FUSE_NONE || n->op == OP_store || n->op == OP_return)
			continue;
		diag_error(p->diag, EXIT_UNSUPPORTED,
		           "%s: node \"%s\" (%s): no compiled form in this "
		           "build; the interpreter runs it",
		           f->module->name, loc_origin(n->loc), op_row(n)->name);
		ok = false;
	}
	return ok;
}

static bool
fuse_function(Pass *p, Module *m, Function *f)
{
	Fuse fu = {.p = p, .m = m, .f = f, .arena = p->scratch};

	if (!refuse_control(p, f))
		return false;
	for_each_node(f, n) {
		if (n->op == OP_constant)
			store_constant(&fu, n);
		else if (fuse_class_of(n) == FUSE_REDUCE)
			split_full_reduce(&fu, n);
	}
	uint32_t n_old = f->next_node_id;
	fu.n_nodes = n_old;
	fu.copied = NEW_ARRAY(fu.arena, uint8_t, n_old);
	fu.group = NEW_ARRAY(fu.arena, int, n_old);
	fu.pulled = NEW_ARRAY(fu.arena, bool, f->next_value_id);
	fu.kept = NEW_ARRAY(fu.arena, bool, f->next_value_id);
	for (uint32_t i = 0; i < n_old; i++)
		fu.group[i] = -1;
	for_each_node(f, n) {
		if (fuse_class_of(n) == FUSE_NONE)
			continue;
		fuse_mark_copied(&fu, n);
		if (!fuse_is_copied(&fu, n) || fuse_must_be_stored(n))
			fuse_place_node(&fu, n);
	}
	for (int i = 0; i < fu.nodes.n; i++)
		fuse_sink_node(&fu, fu.nodes.at[i]);
	for (int i = 0; i < fu.nodes.n; i++)
		fuse_merge_siblings(&fu, fu.nodes.at[i]);
	fu.stored = NEW_ARRAY(fu.arena, Value *, f->next_value_id);
	Value **map = NEW_ARRAY(fu.arena, Value *, f->next_value_id);
	Node *before = first_store(f);
	for (int gi = 0; gi < fu.groups.n; gi++)
		if (fu.groups.at[gi].merged_into < 0)
			fuse_outline_group(&fu, gi, map, before);
	remove_old_nodes(&fu, n_old);
	return true;
}

static bool
run_fuse(Pass *p, Module *m)
{
	int n = m->functions.n;
	bool ok = true;

	for (int i = 0; i < n; i++)
		if (m->functions.at[i]->kind == FUNCTION_PLAIN)
			ok &= fuse_function(p, m, m->functions.at[i]);
	p->changed = true;
	return ok;
}

const PassRow pass_fuse = {.name = "fuse",
                           .help = "group nodes into kernels",
                           .takes = STAGE_TRAIN,
                           .leaves = STAGE_FUSED,
                           .run = run_fuse};

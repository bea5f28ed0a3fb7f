/* Running statistics change when a step is applied, as parameters do. @forward stores them in every micro-batch; in
 * @accumulate a step makes them in a pending state instead:
 *
 *	store next(@mean, x) {state = @mean}   =   store next(@mean, x) {state = @pending.mean} when first
 *	                                           store next(@pending.mean, x) {state = @pending.mean} when later
 *
 * @update commits what is pending. Keeps: the micro-batches' results. Linear in nodes. */
#include "passes/pass.h"

/* The values of later micro-batches, by value id; NULL where they are those of the first. */
typedef struct {
	Function *f;
	Arena *arena;
	Value **later;
	bool *needed; /* by node id: a statistic's new content depends on it */
} Pending;

static State *
stored_statistic(const Node *n)
{
	State *s = n->op == OP_store ? ((StoreAttr *)n->attr)->state : NULL;

	return s && s->kind == STATE_STATISTIC ? s : NULL;
}

static State *
pending_state(Module *m, State *statistic)
{
	for (int i = 0; i < m->states.n; i++)
		if (m->states.at[i]->kind == STATE_PENDING && m->states.at[i]->of == statistic)
			return m->states.at[i];
	const char *name = arena_printf(m->arena, "pending.%s", statistic->name);
	State *s = state_new(m, module_fresh_name(m, name), statistic->type, STATE_PENDING,
	                     LIFE_STEP);
	s->of = statistic;
	s->loc = statistic->loc;
	return s;
}

static void
mark_needed(Pending *p)
{
	for_each_node_reverse(p->f, n) {
		if (!stored_statistic(n) && !p->needed[n->id])
			continue;
		for (int i = 0; i < n->n_operands; i++)
			if (node_operand(n, i) && node_operand(n, i)->node)
				p->needed[node_operand(n, i)->node->id] = true;
	}
}

/* n over what later micro-batches read, where that differs. */
static void
clone_for_later(Pending *p, Node *n)
{
	Value **operands = NEW_ARRAY(p->arena, Value *, n->n_operands);
	Type *types = NEW_ARRAY(p->arena, Type, n->n_results);
	bool differs = false;

	for (int i = 0; i < n->n_operands; i++) {
		Value *v = node_operand(n, i);
		Value *later = v ? p->later[v->id] : NULL;
		operands[i] = later ? later : v;
		differs |= later != NULL;
	}
	if (!differs)
		return;
	for (int i = 0; i < n->n_results; i++)
		types[i] = node_result(n, i)->type;
	Node *copy = node_insert(p->f, n->next, n->op, n->n_operands, operands, n->attr,
	                         n->n_results, types, n->loc);
	copy->phase = n->phase;
	for (int i = 0; i < n->n_results; i++)
		p->later[node_result(n, i)->id] = node_result(copy, i);
}

static void
store_pending(Pending *p, Node *store, State *statistic)
{
	Value *first = node_operand(store, 0), *later = p->later[first->id];
	Builder b = {.m = p->f->module,
	             .f = p->f,
	             .before = store,
	             .loc = store->loc,
	             .phase = store->phase};

	b_store_step(&b, pending_state(b.m, statistic), first, later ? later : first);
	node_erase(store);
}

void
statistics_make_pending(Function *f, Arena *scratch)
{
	Module *m = f->module;
	Pending p = {f, scratch, NULL, NEW_ARRAY(scratch, bool, f->next_node_id)};
	uint32_t n_old = f->next_node_id, n_values = f->next_value_id;

	mark_needed(&p);
	/* Further values: of pending states. Copies are never asked for theirs. */
	p.later = NEW_ARRAY(scratch, Value *, n_values);
	for_each_node(f, n) {
		State *s = stored_statistic(n);
		Value *old = s && s->id < f->by_state.n ? f->by_state.at[s->id] : NULL;
		if (old && old->id < n_values)
			p.later[old->id] = function_state(f, pending_state(m, s));
	}
	for_each_node(f, n)
		if (n->id < n_old && p.needed[n->id])
			clone_for_later(&p, n);
	for_each_node(f, n)
		if (n->id < n_old && stored_statistic(n))
			store_pending(&p, n, stored_statistic(n));
}

/* Running statistics (of batch norms) must change only when a step's update is made, as
 * parameters do. The imported @forward stores new values in every micro-batch. This pass makes
 * @accumulate store them to pending states instead:
 *
 *	store next(@mean, x) {state = @mean}   =   store next(@mean, x) {state = @pending.mean} when first
 *	                                           store next(@pending.mean, x) {state = @pending.mean} when later
 *
 * @update commits the pending values. In later micro-batches, next() reads the pending value in
 * place of the statistic's own old value. But x is still computed from the statistics with which
 * the step began, even if it depends on other statistics. Statistics that are computed from each
 * other, such as the two ends of a range, form a group; the whole group is replaced together.
 *
 * The results of the micro-batches stay the same. Time: nodes times statistics / 64, plus
 * statistics squared. */
#include "passes/pass.h"

#include <stdlib.h>

typedef struct {
	Node *store;
	State *statistic;
	Value *old; /* its old content; NULL: nobody reads it */
	bool done;
} Statistic;

typedef struct {
	Function *f;
	Arena *arena;
	VEC(Statistic) list;
	IntMap *pending; /* by id of a statistic: id of its pending state */
	/* by value id, `words` each: the statistics on whose old content the value depends */
	uint64_t *bits;
	size_t words;
	uint32_t n_values;
	int *place; /* by node id: its place in the function */
	/* For the current group: */
	bool *seen;    /* by node id */
	Value **later; /* by value id: the value in later micro-batches; NULL: the same */
} Pending;

static State *
stored_statistic(const Node *n)
{
	State *s = stored_state(n);

	return s && s->kind == STATE_STATISTIC ? s : NULL;
}

/* Bindings of a program share the pending states. */
static void
find_pending_states(Pending *p)
{
	const Module *m = p->f->module;

	p->pending = intmap_new(p->arena);
	for (int i = 0; i < m->states.n; i++)
		if (m->states.at[i]->kind == STATE_PENDING)
			intmap_put(p->pending, (uint64_t)m->states.at[i]->of->id, (uint64_t)i);
}

static State *
pending_state(Pending *p, State *statistic)
{
	Module *m = p->f->module;
	uint64_t found;

	if (intmap_get(p->pending, (uint64_t)statistic->id, &found))
		return m->states.at[found];
	const char *name = arena_printf(m->arena, "pending.%s", statistic->name);
	State *s = state_new(m, module_fresh_name(m, name), statistic->type, STATE_PENDING,
	                     LIFE_STEP);
	s->of = statistic;
	s->loc = statistic->loc;
	intmap_put(p->pending, (uint64_t)statistic->id, (uint64_t)s->id);
	return s;
}

/* ---- dependences */
static uint64_t *
bits_of(const Pending *p, const Value *v)
{
	return p->bits + p->words * v->id;
}

static bool
depends(const Pending *p, const Value *v, int statistic)
{
	return bits_of(p, v)[statistic / 64] >> statistic % 64 & 1;
}

static void
find_statistics(Pending *p)
{
	for_each_node(p->f, n) {
		State *s = stored_statistic(n);
		if (s)
			vec_push(p->arena, &p->list,
			         ((Statistic){n, s,
			                      s->id < p->f->by_state.n ? p->f->by_state.at[s->id]
			                                               : NULL,
			                      false}));
	}
}

static void
find_dependences(Pending *p)
{
	int place = 0;

	p->words = (size_t)p->list.n / 64 + 1;
	p->n_values = p->f->next_value_id;
	p->bits = NEW_ARRAY(p->arena, uint64_t, p->words * p->n_values);
	p->place = NEW_ARRAY(p->arena, int, p->f->next_node_id);
	for (int i = 0; i < p->list.n; i++)
		if (p->list.at[i].old)
			bits_of(p, p->list.at[i].old)[i / 64] |= UINT64_C(1) << i % 64;
	for_each_node(p->f, n) {
		p->place[n->id] = place++;
		for (int i = 0; i < n->n_operands; i++)
			for (int r = 0; node_operand(n, i) && r < n->n_results; r++)
				for (size_t w = 0; w < p->words; w++)
					bits_of(p, node_result(n, r))[w] |= bits_of(
						p, node_operand(n, i))[w];
	}
}

static Value *
next_content(const Pending *p, int statistic)
{
	return node_operand(p->list.at[statistic].store, 0);
}

/* Is each of the two statistics computed from the other, or are the two the same statistic? */
static bool
is_made_together(const Pending *p, int a, int b)
{
	return a == b || (depends(p, next_content(p, a), b) && depends(p, next_content(p, b), a));
}

/* ---- later micro-batches */
typedef struct {
	int place;
	Node *node;
} Placed;
typedef VEC(Placed) Nodes;

static bool
meets(const Pending *p, const Value *v, const uint64_t *group)
{
	for (size_t w = 0; w < p->words; w++)
		if (bits_of(p, v)[w] & group[w])
			return true;
	return false;
}

static void
visit(Pending *p, const uint64_t *group, const Value *v, Nodes *found)
{
	Node *n = v ? v->node : NULL;

	if (!n || p->seen[n->id] || !meets(p, v, group))
		return;
	p->seen[n->id] = true;
	vec_push(p->arena, found, ((Placed){p->place[n->id], n}));
}

static int
compare_places(const void *a, const void *b)
{
	return ((const Placed *)a)->place - ((const Placed *)b)->place;
}

/* The nodes that depend on old contents of the group's statistics and on which their new contents
 * depend, in the function's order. */
static Nodes
nodes_between(Pending *p, const uint64_t *group)
{
	Nodes found = {0};

	for (int i = 0; i < p->list.n; i++)
		if (group[i / 64] >> i % 64 & 1)
			visit(p, group, next_content(p, i), &found);
	for (int i = 0; i < found.n; i++)
		for (int k = 0; k < found.at[i].node->n_operands; k++)
			visit(p, group, node_operand(found.at[i].node, k), &found);
	if (found.n)
		qsort(found.at, (size_t)found.n, sizeof(*found.at), compare_places);
	return found;
}

/* Copies n, for later micro-batches. */
static void
clone_for_later(Pending *p, Node *n)
{
	Value **operands = NEW_ARRAY(p->arena, Value *, n->n_operands);
	Type *types = NEW_ARRAY(p->arena, Type, n->n_results);

	for (int i = 0; i < n->n_operands; i++) {
		Value *v = node_operand(n, i);
		operands[i] = v && p->later[v->id] ? p->later[v->id] : v;
	}
	for (int i = 0; i < n->n_results; i++)
		types[i] = node_result(n, i)->type;
	Node *copy = node_insert(p->f, n->next, n->op, n->n_operands, operands, n->attr,
	                         n->n_results, types, n->loc);
	copy->phase = n->phase;
	for (int i = 0; i < n->n_results; i++)
		p->later[node_result(n, i)->id] = node_result(copy, i);
}

static void
store_pending(Pending *p, const Statistic *s)
{
	Value *first = node_operand(s->store, 0), *later = p->later[first->id];
	Builder b = {.m = p->f->module,
	             .f = p->f,
	             .before = s->store,
	             .loc = s->store->loc,
	             .phase = s->store->phase};

	b_store_step(&b, pending_state(p, s->statistic), first, later ? later : first);
}

/* Makes a group pending: `first` and the statistics that are computed from each other with it. */
static void
make_group_pending(Pending *p, int first)
{
	uint64_t *group = NEW_ARRAY(p->arena, uint64_t, p->words);

	for (int i = first; i < p->list.n; i++)
		if (!p->list.at[i].done && is_made_together(p, first, i))
			group[i / 64] |= UINT64_C(1) << i % 64;
	Nodes nodes = nodes_between(p, group);
	for (int i = first; i < p->list.n; i++) {
		Statistic *s = &p->list.at[i];
		if (group[i / 64] >> i % 64 & 1 && s->old)
			p->later[s->old->id] = function_state(p->f, pending_state(p, s->statistic));
	}
	for (int i = 0; i < nodes.n; i++)
		clone_for_later(p, nodes.at[i].node);
	for (int i = first; i < p->list.n; i++) {
		Statistic *s = &p->list.at[i];
		if (!(group[i / 64] >> i % 64 & 1))
			continue;
		store_pending(p, s);
		s->done = true;
	}
	for (int i = first; i < p->list.n; i++)
		if (p->list.at[i].old)
			p->later[p->list.at[i].old->id] = NULL;
	for (int i = 0; i < nodes.n; i++) {
		p->seen[nodes.at[i].node->id] = false;
		for (int r = 0; r < nodes.at[i].node->n_results; r++)
			p->later[node_result(nodes.at[i].node, r)->id] = NULL;
	}
}

void
statistics_make_pending(Function *f, Arena *scratch)
{
	Pending p = {.f = f, .arena = scratch};

	find_statistics(&p);
	find_pending_states(&p);
	find_dependences(&p);
	p.seen = NEW_ARRAY(scratch, bool, f->next_node_id);
	p.later = NEW_ARRAY(scratch, Value *, p.n_values);
	for (int i = 0; i < p.list.n; i++)
		if (!p.list.at[i].done)
			make_group_pending(&p, i);
	for (int i = 0; i < p.list.n; i++)
		node_erase(p.list.at[i].store);
}

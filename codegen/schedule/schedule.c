/* The pass `schedule`: fixes the order of instructions. There is one stream, and the order of the
 * nodes is the schedule.
 *
 * A node without readers is dropped. If a node's result is read only in the first micro-batch,
 * the node runs only there; likewise if it is read only in later micro-batches. If the first
 * micro-batch stores a result and later micro-batches add to it, the node becomes two nodes, each
 * with its result in its own place. Stores, and nodes that only stores read, move up to stand
 * directly after the nodes that compute their operands. So the memory of the operands is free
 * early.
 *
 * Changes no number. Takes linear time in the number of nodes. */
#include "codegen/codegen.h"
#include "codegen/schedule/order.h"

typedef struct {
	Function *f;
	int *position; /* by node id: the order before `hoist` */
} Schedule;

static bool
is_read(const Node *n)
{
	if (op_row(n)->effect)
		return true;
	for (int i = 0; i < n->n_results; i++)
		if (value_used(node_result(n, i)))
			return true;
	return false;
}

/* In which micro-batches the readers of n run, if all readers run in the same micro-batches;
 * otherwise WHEN_ALWAYS. */
static When
when_read(const Node *n)
{
	const Use *first = NULL;

	for (int i = 0; i < n->n_results; i++)
		for_each_use(node_result(n, i), u) {
			first = first ? first : u;
			if (u->user->when != first->user->when)
				return WHEN_ALWAYS;
		}
	return first ? first->user->when : WHEN_ALWAYS;
}

static bool
drop_unread(Function *f)
{
	bool changed = false;

	for_each_node_reverse(f, n) {
		if (!is_read(n)) {
			node_erase(n);
			changed = true;
		} else if (n->op == OP_launch) {
			n->when = when_read(n);
		}
	}
	return changed;
}

/* The store of v in the first micro-batch, if nothing else in that micro-batch reads v. */
static const Use *
first_store(const Value *v)
{
	const Use *found = NULL;

	for_each_use(v, u) {
		if (u->user->op == OP_store && u->user->when == WHEN_FIRST && !found)
			found = u;
		else if (when_runs(u->user->when) & when_runs(WHEN_FIRST))
			return NULL;
	}
	return found;
}

/* Splits a product that the first micro-batch stores and later micro-batches add to into two
 * launches, so the launch of the first micro-batch may write to the state directly. kept: nodes that write there in
 * every micro-batch. */
static bool
split_first(Node *n, const IntMap *kept)
{
	bool splits = n->op == OP_launch && n->when == WHEN_ALWAYS && n->n_results == 1 &&
	              !intmap_get(kept, n->id, NULL);
	const Use *store = splits ? first_store(node_result(n, 0)) : NULL;

	if (!store)
		return false;
	Value **operands = NEW_ARRAY(n->function->module->arena, Value *, n->n_operands);
	for (int i = 0; i < n->n_operands; i++)
		operands[i] = node_operand(n, i);
	Node *first = node_insert(n->function, n, n->op, n->n_operands, operands, n->attr, 1,
	                          &node_result(n, 0)->type, n->loc);
	first->phase = n->phase;
	first->when = WHEN_FIRST;
	n->when = WHEN_LATER;
	node_set_operand(store->user, use_index(store), node_result(first, 0));
	return true;
}

static bool
only_stored(const Node *n)
{
	if (n->op != OP_launch)
		return false;
	for (int i = 0; i < n->n_results; i++)
		for_each_use(node_result(n, i), u)
			if (u->user->op != OP_store)
				return false;
	return true;
}

/* The later one of two nodes; NULL stands for the start of the function. */
static Node *
later_of(const Schedule *s, Node *a, Node *b)
{
	return !a || (b && s->position[b->id] > s->position[a->id]) ? b : a;
}

static Node *
latest_definition(const Schedule *s, const Node *n)
{
	Node *latest = NULL;

	for (int i = 0; i < n->n_operands; i++)
		latest = later_of(s, latest, node_operand(n, i)->node);
	return latest;
}

static void
number_nodes(Schedule *s)
{
	int at = 0;

	for_each_node(s->f, n)
		s->position[n->id] = at++;
}

/* Moves each node that only stores read to an earlier position: directly after the nodes that
 * compute its operands. */
static void
hoist(Schedule *s)
{
	for_each_node(s->f, n) {
		Node *latest = only_stored(n) ? latest_definition(s, n) : NULL;
		if (latest && latest->next != n)
			node_move(n, latest->next);
	}
}

typedef struct {
	const Schedule *schedule;
	When when;
	Node *latest;
} Settle;

static bool
add_readers(void *ctx, const Value *old)
{
	Settle *s = ctx;

	for_each_use(old, u)
		if (when_runs(u->user->when) & when_runs(s->when))
			s->latest = later_of(s->schedule, s->latest, u->user);
	return false;
}

/* Moves a store up, but not before a reader of the old content that runs in the same micro-batch. */
static void
settle_store(const Schedule *s, const Storage *storage, Node *n)
{
	Settle settle = {s, n->when, latest_definition(s, n)};

	storage_any_value(storage, ((StoreAttr *)n->attr)->state, add_readers, &settle);
	if (settle.latest && settle.latest->next != n)
		node_move(n, settle.latest->next);
}

static bool
run_schedule(Pass *p, Module *m)
{
	for_each_function(m, f) {
		p->changed |= drop_unread(f);
		const IntMap *kept = sums_keep_place(p, f);
		for_each_node(f, n)
			p->changed |= split_first(n, kept);
		Schedule s = {f, NEW_ARRAY(p->scratch, int, f->next_node_id)};
		number_nodes(&s);
		hoist(&s);
		number_nodes(&s);
		Storage storage = storage_of(p->scratch, f);
		for_each_node(f, n)
			if (n->op == OP_store)
				settle_store(&s, &storage, n);
	}
	return true;
}

const PassRow pass_schedule = {.name = "schedule",
                               .help = "decide which instructions run, when and in which order",
                               .needed = true,
                               .takes = STAGE_LOWERED,
                               .leaves = STAGE_SCHEDULE,
                               .run = run_schedule};

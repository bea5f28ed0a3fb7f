/* The pass `schedule`: fixes the order of instructions. There is one stream, and the order of the
 * nodes is the schedule.
 *
 * A node without readers is dropped. If a node's result is read only in the first micro-batch,
 * the node runs only there; likewise if it is read only in later micro-batches. If the first
 * micro-batch stores a result and later micro-batches add to it, the node becomes two nodes, each
 * with its result in its own place; if the node's kernel computes both, each node gets a kernel for its result. Stores, and nodes that only stores read, move up to stand
 * directly after the nodes that compute their operands. So the memory of the operands is free
 * early.
 *
 * Changes no number. Takes linear time in the number of nodes. */
#include "codegen/codegen.h"
#include "codegen/schedule/order.h"
#include "codegen/target/target.h"

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

/* Kernels that compute some results of another kernel. */
typedef struct {
	Kernel *kernel; /* NULL: the results cannot be computed apart */
	int *inputs;    /* the number that each input has in the other kernel */
} SomeResults;
typedef struct {
	Arena *arena;
	IntMap *known; /* by kernel and results: numbers in `list` */
	VEC(SomeResults) list;
} SplitKernels;

static SomeResults
some_results(SplitKernels *r, Module *m, const Kernel *k, const bool *keep)
{
	uint64_t at, key = hash_bytes(keep, sizeof(*keep) * (size_t)k->n_outputs,
	                              (uint64_t)(uintptr_t)k);

	if (!intmap_get(r->known, key, &at)) {
		SomeResults some = {.inputs = NEW_ARRAY(r->arena, int, k->n_inputs + 1)};
		some.kernel = kernel_some_results(m, r->arena, k, keep, some.inputs);
		at = (uint64_t)r->list.n;
		vec_push(r->arena, &r->list, some);
		intmap_put(r->known, key, at);
	}
	return r->list.at[at];
}

/* The store that alone reads v, if it runs in the first or in later micro-batches only; NULL: v has other readers. */
static Node *
only_store(Value *v)
{
	Node *store = value_used_once(v) ? v->uses->user : NULL;
	bool sometimes = store && (store->when == WHEN_FIRST || store->when == WHEN_LATER);

	return sometimes && store->op == OP_store ? store : NULL;
}

static void
launch_some(Node *n, const SomeResults *some, Node *const *stores, When when)
{
	Function *f = n->function;
	const Kernel *k = some->kernel;
	Value **operands = NEW_ARRAY(f->module->arena, Value *, k->n_inputs);
	Type *types = NEW_ARRAY(f->module->arena, Type, k->n_outputs);
	int done = 0;

	for (int i = 0; i < k->n_inputs; i++)
		operands[i] = node_operand(n, some->inputs[i]);
	for (int i = 0; i < k->n_outputs; i++)
		types[i] = k->buffers.at[k->n_inputs + i].type;
	LaunchAttr attr = {.kernel = some->kernel};
	Node *launch = node_insert(f, n, OP_launch, k->n_inputs, operands, &attr, k->n_outputs,
	                           types, n->loc);
	launch->phase = n->phase;
	launch->when = when;
	for (int i = 0; i < n->n_results; i++)
		if (stores[i]->when == when)
			node_set_operand(stores[i], 0, node_result(launch, done++));
}

/* Is there, for each store of a gradient in the first micro-batch, a store of its sum in later ones, and the other way? */
static bool
stores_pair(Node *const *stores, int n)
{
	for (int i = 0; i < n; i++) {
		int found = 0;
		for (int k = 0; k < n; k++)
			found += stored_state(stores[k]) == stored_state(stores[i]) &&
			         stores[k]->when != stores[i]->when;
		if (found != 1)
			return false;
	}
	return n > 0;
}

/* Splits a launch whose results are gradients that the first micro-batch stores, and the sums that later micro-batches store, into
 * a launch for each kind of micro-batch. Each may write to the states directly. With both results in one launch, one of them is a copy,
 * which on a GPU costs as much as a launch. */
static bool
split_results(SplitKernels *r, Node *n)
{
	const Kernel *k = launched_kernel(n);
	const When whens[] = {WHEN_FIRST, WHEN_LATER};
	SomeResults some[2];

	if (!k || n->when != WHEN_ALWAYS)
		return false;
	Node **stores = NEW_ARRAY(r->arena, Node *, n->n_results);
	for (int i = 0; i < n->n_results; i++) {
		stores[i] = only_store(node_result(n, i));
		if (!stores[i])
			return false;
	}
	if (!stores_pair(stores, n->n_results))
		return false;
	for (int w = 0; w < 2; w++) {
		bool *keep = NEW_ARRAY(r->arena, bool, n->n_results);
		for (int i = 0; i < n->n_results; i++)
			keep[i] = stores[i]->when == whens[w];
		some[w] = some_results(r, n->function->module, k, keep);
		if (!some[w].kernel)
			return false;
	}
	for (int w = 0; w < 2; w++)
		launch_some(n, &some[w], stores, whens[w]);
	node_erase(n);
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
	SplitKernels ones = {.arena = p->scratch, .known = intmap_new(p->scratch)};

	for_each_function(m, f) {
		p->changed |= drop_unread(f);
		const IntMap *kept = sums_keep_place(p, f);
		const Target *t = f->target ? target_find(f->target) : NULL;
		bool teams = t && t->kind == TARGET_TEAMS;
		for_each_node(f, n)
			p->changed |= split_first(n, kept) || (teams && split_results(&ones, n));
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

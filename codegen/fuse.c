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
#include "codegen/codegen.h"
#include "codegen/domain.h"

#include <string.h>

typedef struct {
	bool opaque;      /* a kernel of its own: nothing joins */
	bool root;        /* concat, pad: nothing joins */
	int64_t n;        /* elements of the full iteration space */
	ReduceForm form;  /* of its reductions; n = 0 while there are none */
	int64_t rows;     /* elements of the first reduction's result */
	ReduceForm outer; /* of a reduction of row values */
	int64_t chunks;
	VEC(Node *) members;
	int merged_into; /* -1, or a later group */
} Group;

typedef struct {
	Pass *p;
	Module *m;
	Function *f;
	Arena *arena;
	VEC(Group) groups;
	int *group;        /* by node id; -1: none (views, stores) */
	VEC(Node *) nodes; /* members in order */
	bool *pulled;      /* by value id: readers in other groups compute it again */
	bool *kept;        /* by value id: stored because a pulled value needs it */
	Value **stored;    /* by value id: the call result that holds it */
	int merge_from, merge_to;
} Fuse;

enum { MAX_SINK_COST = 12, MAX_GROUP_NODES = 400 };

static FuseClass
class_of(const Node *n)
{
	return op_row(n)->fuse;
}

/* Nodes that every reader copies: views, iota, splats. gather is none: it has a group. */
static bool
is_copied(const Node *n)
{
	return class_of(n) == FUSE_VIEW || (class_of(n) == FUSE_INDEX && n->n_operands == 0);
}

static bool
must_be_stored(const Node *n)
{
	for (int i = 0; i < n->n_results; i++)
		for_each_use(node_result(n, i), u)
			if (class_of(u->user) == FUSE_NONE)
				return true;
	return false;
}

/* The group that computes v, -1 when v is there from the start or copied. */
static int
group_of(const Fuse *fu, Value *v)
{
	Value *base = behind_views(v);
	int g = base->node ? fu->group[base->node->id] : -1;

	while (g >= 0 && fu->groups.at[g].merged_into >= 0)
		g = fu->groups.at[g].merged_into;
	return g;
}

/* Calls visit for every node that reads v's elements, directly or through copied nodes; stops and
 * returns true when visit does. */
static bool
any_reader(const Fuse *fu, const Value *v,
           bool (*visit)(const Fuse *fu, const Node *reader, int ctx), int ctx)
{
	for_each_use(v, u) {
		Node *n = u->user;
		if (is_copied(n) && any_reader(fu, node_result(n, 0), visit, ctx))
			return true;
		if ((!is_copied(n) || fu->group[n->id] >= 0) && visit(fu, n, ctx))
			return true;
	}
	return false;
}

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

/* ---- 1. grouping */
static int
group_new(Fuse *fu, const Node *n)
{
	Group g = {.opaque = class_of(n) == FUSE_OPAQUE,
	           .root = class_of(n) == FUSE_ROOT,
	           .n = node_result(n, 0)->type->n,
	           .merged_into = -1};

	if (class_of(n) == FUSE_REDUCE) {
		Ints shape = ints_of_type(node_operand(n, 0)->type);
		g.n = node_operand(n, 0)->type->n;
		g.form = reduce_form(&shape, &((ReduceAttr *)n->attr)->axes);
		g.rows = reduce_form_kept(&g.form);
	}
	vec_push(fu->arena, &fu->groups, g);
	return fu->groups.n - 1;
}

/* How an operand that group g computes is reached: by the same element, by repeating row values along
 * what the group's reductions sum over, or in some other way. */
typedef enum { REACH_SAME, REACH_REPEAT, REACH_OTHER } Reach;

static Reach
reach_of(const Group *g, Value *v)
{
	Value *x = behind_reshapes(v);

	if (!x->node || x->node->op != OP_broadcast)
		return x->node && class_of(x->node) == FUSE_VIEW ? REACH_OTHER : REACH_SAME;
	const BroadcastAttr *a = x->node->attr;
	Ints fresh = {0};
	for (int i = 0; i < a->shape.n; i++)
		if (!ints_has(&a->axes, i))
			fresh.at[fresh.n++] = i;
	ReduceForm form = reduce_form(&a->shape, &fresh);
	Value *base = behind_reshapes(node_operand(x->node, 0));
	if (base->node && class_of(base->node) == FUSE_VIEW)
		return REACH_OTHER;
	return g->form.n && reduce_form_equal(&form, &g->form) && base->type->n == g->rows
	               ? REACH_REPEAT
	               : REACH_OTHER;
}

static bool
elementwise_fits(const Fuse *fu, int gi, const Node *n)
{
	const Group *g = &fu->groups.at[gi];
	int64_t size = node_result(n, 0)->type->n;
	bool at_rows = g->form.n && size == g->rows, at_chunks = g->outer.n && size == g->chunks;

	if (size != g->n && !at_rows && !at_chunks)
		return false;
	for (int i = 0; i < n->n_operands; i++) {
		Value *v = node_operand(n, i);
		if (group_of(fu, v) != gi)
			continue;
		Reach reach = reach_of(g, v);
		if (reach == REACH_OTHER || (reach == REACH_REPEAT && size != g->n))
			return false;
		if (reach == REACH_SAME && behind_reshapes(v)->type->n != size)
			return false;
	}
	return true;
}

static bool
reduce_fits(Fuse *fu, int gi, const Node *n)
{
	Group *g = &fu->groups.at[gi];
	Value *x = node_operand(n, 0);
	Ints shape = ints_of_type(x->type);
	ReduceForm form = reduce_form(&shape, &((ReduceAttr *)n->attr)->axes);

	if (group_of(fu, x) == gi && reach_of(g, x) != REACH_SAME)
		return false;
	if (x->type->n == g->n) {
		if (g->form.n)
			return reduce_form_equal(&form, &g->form);
		g->form = form;
		g->rows = reduce_form_kept(&form);
		return true;
	}
	/* Row values once more: blocks of rows, the rows of a block next to each other. */
	if (!g->form.n || x->type->n != g->rows || reduce_form_by_column(&g->form))
		return false;
	if (g->outer.n)
		return reduce_form_equal(&form, &g->outer);
	int kept_runs = 0;
	for (int i = 0; i < g->form.n; i++)
		kept_runs += !g->form.reduced[i];
	if (kept_runs != 1 || form.n > 2 || (form.n == 2 && form.reduced[0]) ||
	    (form.n == 1 && !form.reduced[0]))
		return false;
	g->outer = form;
	g->chunks = reduce_form_kept(&form);
	return true;
}

static bool
node_fits(Fuse *fu, int gi, const Node *n)
{
	const Group *g = &fu->groups.at[gi];

	if (g->opaque || g->root || g->members.n >= MAX_GROUP_NODES || g->n == 0)
		return false;
	switch (class_of(n)) {
	case FUSE_ELEMENTWISE: return elementwise_fits(fu, gi, n);
	case FUSE_REDUCE: return reduce_fits(fu, gi, n);
	default: return false;
	}
}

/* A reduction that opens a group may instead join one that reads the same operand. */
static int
sibling_of(Fuse *fu, const Node *n, int latest)
{
	if (class_of(n) != FUSE_REDUCE)
		return -1;
	for_each_use(node_operand(n, 0), u) {
		int gi = class_of(u->user) == FUSE_REDUCE ? group_of(fu, node_result(u->user, 0))
		                                          : -1;
		if (u->user != n && gi > latest && node_fits(fu, gi, n))
			return gi;
	}
	return -1;
}

static void
place_node(Fuse *fu, Node *n)
{
	int latest = -1, gi = -1;

	for (int i = 0; i < n->n_operands; i++) {
		int g = node_operand(n, i) ? group_of(fu, node_operand(n, i)) : -1;
		latest = g > latest ? g : latest;
	}
	if (latest >= 0 && node_fits(fu, latest, n))
		gi = latest;
	if (gi < 0)
		gi = sibling_of(fu, n, latest);
	if (gi < 0)
		gi = group_new(fu, n);
	fu->group[n->id] = gi;
	vec_push(fu->arena, &fu->groups.at[gi].members, n);
	vec_push(fu->arena, &fu->nodes, n);
}

/* ---- 2. sinking */
static bool
reads_from_outside(const Fuse *fu, const Node *reader, int gi)
{
	return class_of(reader) == FUSE_NONE || group_of(fu, node_result(reader, 0)) != gi;
}

static bool
needs_memory(const Fuse *fu, const Node *reader, int gi)
{
	if (class_of(reader) == FUSE_NONE)
		return true;
	int g = group_of(fu, node_result(reader, 0));
	return g != gi && (fu->groups.at[g].opaque || class_of(reader) == FUSE_INDEX);
}

static bool
is_stored(const Fuse *fu, Value *v)
{
	int gi = group_of(fu, v);

	return fu->kept[v->id] || (!fu->pulled[v->id] && any_reader(fu, v, reads_from_outside, gi));
}

/* What computing a value again takes: arithmetic, in additions, and stored values of full size to load. */
typedef struct {
	int arithmetic, loads;
} PullCost;

/* Adds the cost of v from stored values. Row values that it needs are cheap to store. */
static void
add_pull_cost(const Fuse *fu, Value *v, int gi, int depth, int64_t full, PullCost *c)
{
	Value *x = behind_views(v);
	Node *n = x->node;

	if (n && is_copied(n))
		return;
	bool pulled = n && fu->pulled[x->id] && group_of(fu, x) != gi;
	if (!pulled && (!n || group_of(fu, x) != gi || (depth && is_stored(fu, x)) ||
	                class_of(n) == FUSE_REDUCE)) {
		c->loads += x->type->n >= full;
		return;
	}
	if (class_of(n) != FUSE_ELEMENTWISE || depth > MAX_SINK_COST) {
		c->arithmetic = MAX_SINK_COST + 1;
		return;
	}
	c->arithmetic += op_row(n)->weight ? op_row(n)->weight : 1;
	for (int i = 0; i < n->n_operands && c->arithmetic <= MAX_SINK_COST; i++)
		add_pull_cost(fu, node_operand(n, i), gi, depth + 1, full, c);
}

/* Groups other than gi that read v, counted up to 4. */
static int
outside_readers(const Fuse *fu, const Value *v, int gi, int *seen, int n)
{
	for_each_use(v, u) {
		Node *reader = u->user;
		if (is_copied(reader)) {
			n = outside_readers(fu, node_result(reader, 0), gi, seen, n);
			continue;
		}
		int g = class_of(reader) == FUSE_NONE ? -1 : group_of(fu, node_result(reader, 0));
		bool known = g == gi;
		for (int i = 0; i < n; i++)
			known |= seen[i] == g;
		if (!known && n < 4)
			seen[n++] = g;
	}
	return n;
}

static void
pull(Fuse *fu, Value *v, int gi, int depth)
{
	Value *x = behind_views(v);
	Node *n = x->node;

	if (!n || is_copied(n) || group_of(fu, x) != gi || (depth && is_stored(fu, x)))
		return;
	if (class_of(n) == FUSE_REDUCE) {
		fu->kept[x->id] = true;
		return;
	}
	fu->pulled[x->id] = true;
	for (int i = 0; i < n->n_operands; i++)
		pull(fu, node_operand(n, i), gi, depth + 1);
}

static void
sink_node(Fuse *fu, Node *n)
{
	Value *v = node_result(n, 0);
	int gi = group_of(fu, v);

	if (class_of(n) != FUSE_ELEMENTWISE || v->type->n < 256 || fu->kept[v->id] ||
	    !any_reader(fu, v, reads_from_outside, gi) || any_reader(fu, v, needs_memory, gi))
		return;
	/* Stored, it is written once and read by R groups; pulled, they read what it is made of. */
	PullCost c = {0};
	int seen[4], readers = outside_readers(fu, v, gi, seen, 0);
	add_pull_cost(fu, v, gi, 0, v->type->n, &c);
	if (c.arithmetic <= MAX_SINK_COST && c.loads * readers <= 1 + readers)
		pull(fu, v, gi, 0);
}

/* ---- 3. siblings */
static bool
blocks_merge(const Fuse *fu, const Node *reader, int ctx)
{
	(void)ctx;
	if (class_of(reader) == FUSE_NONE)
		return false;
	int g = group_of(fu, node_result(reader, 0));
	return g != fu->merge_from && g <= fu->merge_to;
}

static bool
may_merge(Fuse *fu, int from, int to)
{
	const Group *a = &fu->groups.at[from], *b = &fu->groups.at[to];

	if (from >= to || a->opaque || a->root || a->n != b->n || !a->form.n || a->outer.n ||
	    b->outer.n || !reduce_form_equal(&a->form, &b->form))
		return false;
	fu->merge_from = from;
	fu->merge_to = to;
	for (int i = 0; i < a->members.n; i++)
		if (any_reader(fu, node_result(a->members.at[i], 0), blocks_merge, 0))
			return false;
	return true;
}

static void
merge(Fuse *fu, int from, int to)
{
	Group *a = &fu->groups.at[from], *b = &fu->groups.at[to];

	a->merged_into = to;
	for (int i = 0; i < b->members.n; i++)
		vec_push(fu->arena, &a->members, b->members.at[i]);
	b->members.at = a->members.at;
	b->members.n = a->members.n;
	b->members.cap = a->members.cap;
}

/* Merges earlier column reductions that read the same stored value into n's group. */
static void
merge_siblings(Fuse *fu, Node *n)
{
	int to = class_of(n) == FUSE_VIEW ? -1 : group_of(fu, node_result(n, 0));
	const Group *g = &fu->groups.at[to < 0 ? 0 : to];

	if (to < 0 || !g->form.n || !reduce_form_by_column(&g->form))
		return;
	for (int i = 0; i < n->n_operands; i++) {
		Value *x = behind_views(node_operand(n, i));
		int seen = 0;
		for_each_use(x, u) {
			if (++seen > 16 || class_of(u->user) == FUSE_NONE || is_copied(u->user))
				continue;
			int from = group_of(fu, node_result(u->user, 0));
			if (from >= 0 && from != to && may_merge(fu, from, to))
				merge(fu, from, to);
		}
	}
}

/* ---- 4. the fused functions */
typedef struct {
	Fuse *fu;
	int gi;
	Function *body;
	Builder b;
	Value **map;          /* by value id of the original function */
	VEC(Value *) map_set; /* what to clear again */
	VEC(Value *) arguments;
} Outline;

static void
map_put(Outline *o, Value *from, Value *to)
{
	o->map[from->id] = to;
	vec_push(o->fu->arena, &o->map_set, from);
}

static void outline_node(Outline *o, Node *n);

/* v inside the body: a member's clone, a copy of what readers copy, or a new parameter. */
static Value *
outline_value(Outline *o, Value *v)
{
	Fuse *fu = o->fu;
	Node *n = v->node;

	if (!v)
		return NULL;
	if (o->map[v->id])
		return o->map[v->id];
	if (n && (is_copied(n) || (fu->pulled[v->id] && group_of(fu, v) != o->gi))) {
		outline_node(o, n);
		return o->map[v->id];
	}
	char name[16];
	snprintf(name, sizeof(name), "x%d", o->arguments.n);
	Value *p = function_param(o->body, v->type, name);
	vec_push(fu->arena, &o->arguments, v);
	map_put(o, v, p);
	return p;
}

static void
outline_node(Outline *o, Node *n)
{
	Value **operands = NEW_ARRAY(o->fu->arena, Value *, n->n_operands);
	Type *types = NEW_ARRAY(o->fu->arena, Type, n->n_results);

	for (int i = 0; i < n->n_operands; i++)
		operands[i] = outline_value(o, node_operand(n, i));
	for (int i = 0; i < n->n_results; i++)
		types[i] = node_result(n, i)->type;
	Node *copy = node_insert(o->body, NULL, n->op, n->n_operands, operands, n->attr,
	                         n->n_results, types, n->loc);
	for (int i = 0; i < n->n_results; i++)
		map_put(o, node_result(n, i), node_result(copy, i));
}

/* Is a member needed here: stored for others, or read by another member? A pulled value that only
 * other groups read is not. */
static bool
read_inside(const Fuse *fu, const Node *reader, int gi)
{
	return class_of(reader) != FUSE_NONE && group_of(fu, node_result(reader, 0)) == gi;
}

static bool
is_live(const Fuse *fu, const Node *n, int gi)
{
	for (int i = 0; i < n->n_results; i++)
		if (is_stored(fu, node_result(n, i)) ||
		    any_reader(fu, node_result(n, i), read_inside, gi))
			return true;
	return false;
}

static Loc
group_loc(Fuse *fu, const Group *g)
{
	Loc locs[64];
	int n = 0;

	for (int i = 0; i < g->members.n && n < COUNT(locs); i++)
		locs[n++] = g->members.at[i]->loc;
	return loc_fuse(fu->m, locs, n);
}

/* Makes the group's function and its call, before the stores. */
static void
outline_group(Fuse *fu, int gi, Value **map, Node *before)
{
	const Group *g = &fu->groups.at[gi];
	Outline o = {.fu = fu, .gi = gi, .map = map};
	VEC(Value *) results = {0};
	VEC(Value *) originals = {0};

	o.body = function_new(fu->m, module_fresh_name(fu->m, arena_printf(fu->m->arena, "%s.k%d",
	                                                                   fu->f->name, gi)));
	o.body->kind = FUNCTION_FUSED;
	o.body->loc = group_loc(fu, g);
	for (int i = 0; i < g->members.n; i++) {
		Node *n = g->members.at[i];
		if (!is_live(fu, n, gi))
			continue;
		outline_node(&o, n);
		for (int k = 0; k < n->n_results; k++) {
			Value *v = node_result(n, k);
			/* an opaque kernel writes all its results */
			if (!is_stored(fu, v) && !g->opaque)
				continue;
			vec_push(fu->arena, &results, o.map[v->id]);
			vec_push(fu->arena, &originals, v);
		}
	}
	b_return(&(Builder){.m = fu->m, .f = o.body}, results.n, results.at);
	Value **arguments = NEW_ARRAY(fu->arena, Value *, o.arguments.n);
	for (int i = 0; i < o.arguments.n; i++) {
		Value *v = o.arguments.at[i];
		arguments[i] = fu->stored[v->id] ? fu->stored[v->id] : v;
	}
	Builder b = {.m = fu->m,
	             .f = fu->f,
	             .before = before,
	             .loc = o.body->loc,
	             .phase = g->members.at[0]->phase};
	if (results.n == 0) {
		function_remove(o.body);
	} else {
		Node *call = build_node(&b, OP_call, o.arguments.n, arguments,
		                        &(CallAttr){.callee = o.body});
		for (int i = 0; i < results.n; i++)
			fu->stored[originals.at[i]->id] = node_result(call, i);
	}
	for (int i = 0; i < o.map_set.n; i++)
		map[o.map_set.at[i]->id] = NULL;
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
		if (class_of(n) != FUSE_NONE || n->op == OP_store || n->op == OP_return)
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
		else if (class_of(n) == FUSE_REDUCE)
			split_full_reduce(&fu, n);
	}
	uint32_t n_old = f->next_node_id;
	fu.group = NEW_ARRAY(fu.arena, int, n_old);
	fu.pulled = NEW_ARRAY(fu.arena, bool, f->next_value_id);
	fu.kept = NEW_ARRAY(fu.arena, bool, f->next_value_id);
	for (uint32_t i = 0; i < n_old; i++)
		fu.group[i] = -1;
	for_each_node(f, n)
		if (class_of(n) != FUSE_NONE && (!is_copied(n) || must_be_stored(n)))
			place_node(&fu, n);
	for (int i = 0; i < fu.nodes.n; i++)
		sink_node(&fu, fu.nodes.at[i]);
	for (int i = 0; i < fu.nodes.n; i++)
		merge_siblings(&fu, fu.nodes.at[i]);
	fu.stored = NEW_ARRAY(fu.arena, Value *, f->next_value_id);
	Value **map = NEW_ARRAY(fu.arena, Value *, f->next_value_id);
	Node *before = first_store(f);
	for (int gi = 0; gi < fu.groups.n; gi++)
		if (fu.groups.at[gi].merged_into < 0)
			outline_group(&fu, gi, map, before);
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

/* Finds updates that are equal apart from their states. For example, @w and @v are both updated
 * by AdamW with weight decay. Every value of @update gets a number, and values that are computed
 * in the same way get the same number. States count as the same if they have the same role in the
 * update: @grad.w and @grad.v are both "gradient in f32". Lengths are not compared. So the new
 * contents of two parameters get the same number if decay, learning-rate scale, optimizer and
 * type agree.
 *
 *	%1 = reshape @grad.w : f32[12]        number of "gradient"
 *	%2 = broadcast %scale : f32[12]       number of "%scale, repeated"
 *	%3 = mul %1, %2                       number of mul(these two numbers)
 *
 * Time: linear in nodes. */
#include "passes/units/layout.h"

#include <limits.h>

typedef struct {
	UnitMatch *out;
	Module *m;
	/* by state id: another state of the same member (union-find); a state that is its own parent stands for the
	 * member */
	int *parent;
	bool *refused; /* by id of a state that stands for a member */
	Node **store;  /* by state id: its store in @update; NULL: not stored */
	int *number;   /* by value id */
	int *member; /* by id of a state that stands for a member: 1 + place in the list; 0: not in the list yet */
	int n_numbers;
	IntMap *seen; /* hash -> a numbered value; a node with this hash may compute alike */
	VEC(Value *) by_number; /* by number: the first value that had it */
	VEC(UnitSum) sums;
} Match;

/* ---- which states belong to one member (a parameter with its gradient and moments) */
static bool
may_be_member(const State *s)
{
	return state_kinds[s->kind].in_unit && !s->unit;
}

static int
root_of(Match *k, int state)
{
	while (k->parent[state] != state)
		state = k->parent[state] = k->parent[k->parent[state]];
	return state;
}

static void
join(Match *k, int a, int b)
{
	int x = root_of(k, a), y = root_of(k, b);

	k->parent[x > y ? x : y] = x > y ? y : x;
	k->refused[x > y ? y : x] |= k->refused[x > y ? x : y];
}

static void
refuse(Match *k, const Value *v)
{
	int state = v->kind == VALUE_STATE ? v->state->id : k->out->leaf[v->id];

	if (state >= 0)
		k->refused[root_of(k, state)] = true;
}

static void
refuse_operands(Match *k, const Node *n)
{
	for (int i = 0; i < n->n_operands; i++)
		if (node_operand(n, i))
			refuse(k, node_operand(n, i));
}

/* ---- numbers */
static int
role_of(UnitMatch *out, const State *s)
{
	UnitRole role = {s->kind, s->number, s->type->dtype, out->is_read[s->id]};
	int i = 0;

	while (i < out->roles.n &&
	       (out->roles.at[i].kind != role.kind || out->roles.at[i].number != role.number ||
	        out->roles.at[i].dtype != role.dtype || out->roles.at[i].is_read != role.is_read))
		i++;
	if (i == out->roles.n)
		vec_push(out->arena, &out->roles, role);
	return i;
}

static void
number_alone(Match *k, const Value *v)
{
	k->number[v->id] = k->n_numbers++;
}

/* v is state s as a vector of its elements. Gives v the number of the state's role. Roles have
 * numbers below 0. */
static void
number_leaf(Match *k, const Value *v, State *s)
{
	k->number[v->id] = -1 - role_of(k->out, s);
	k->out->leaf[v->id] = s->id;
	k->out->flat[v->id] = true;
	k->out->is_state[v->id] = true;
}

static bool
is_spread(const Node *n)
{
	return op_row(n)->fuse == FUSE_VIEW && node_operand(n, 0)->type->rank == 0;
}

RandomCounter *
unit_counter(const Node *n)
{
	RandomCounter *c = n->op == OP_random ? &((RandomAttr *)n->attr)->counter
	                   : n->op == OP_cast && n->n_operands > 1 ? &((CastAttr *)n->attr)->counter
	                                                           : NULL;
	Type y = node_result(n, 0)->type;

	return c && y->rank == 1 && c->axis == 0 && c->rows == y->n ? c : NULL;
}

static bool
draws_alike(const Node *a, const Node *b)
{
	const RandomCounter *s = unit_counter(a), *t = unit_counter(b);

	if (!s || !t || a->op != b->op || s->stream != t->stream)
		return false;
	if (a->op == OP_random)
		return ((const RandomAttr *)a->attr)->dtype == ((const RandomAttr *)b->attr)->dtype;
	const CastAttr *x = a->attr, *y = b->attr;
	return x->to == y->to && x->overflow == y->overflow;
}

static bool
computes_alike(const Match *k, const Node *a, const Node *b)
{
	if (a->n_operands != b->n_operands)
		return false;
	for (int i = 0; i < a->n_operands; i++)
		if (k->number[node_operand(a, i)->id] != k->number[node_operand(b, i)->id])
			return false;
	bool flat = k->out->flat[node_result(a, 0)->id];
	if (flat != k->out->flat[node_result(b, 0)->id])
		return false;
	if (is_spread(a) || is_spread(b)) /* a repeated number may have any shape */
		return flat && is_spread(a) && is_spread(b);
	return a->op == b->op && (attr_equal(op_row(a), a->attr, b->attr) || draws_alike(a, b));
}

static uint64_t
hash_of(const Match *k, const Node *n)
{
	uint64_t h = is_spread(n) || unit_counter(n)
	                     ? (uint64_t)is_spread(n)
	                     : hash_mix(n->op, attr_hash(op_row(n), n->attr));

	for (int i = 0; i < n->n_operands; i++)
		h = hash_mix(h, (uint64_t)(int64_t)k->number[node_operand(n, i)->id]);
	return h;
}

/* Gives n's result the number of an earlier value that is computed in the same way, or a new
 * number if there is none. */
static void
number_node(Match *k, Node *n)
{
	uint64_t h = hash_of(k, n), found;
	Value *v = node_result(n, 0);

	for (; intmap_get(k->seen, h, &found); h++) {
		const Value *twin = (const Value *)(uintptr_t)found;
		if (!computes_alike(k, twin->node, n))
			continue;
		k->number[v->id] = k->number[twin->id];
		return;
	}
	number_alone(k, v);
	intmap_put(k->seen, h, (uint64_t)(uintptr_t)v);
}

/* ---- nodes */
/* Handles a node on vectors of elements: element i of the result comes from elements i of the operands. */
static bool
visit_elementwise(Match *k, Node *n)
{
	UnitMatch *out = k->out;
	Value *v = node_result(n, 0);
	int leaf = -1;

	if (op_row(n)->fuse != FUSE_ELEMENTWISE || n->n_results != 1 || v->type->rank != 1)
		return false;
	for (int i = 0; i < (unit_counter(n) ? 1 : n->n_operands);
	     i++) { /* the other operands are seed, step and offset */
		const Value *x = node_operand(n, i);
		if (!x || !out->flat[x->id])
			return false;
		if (leaf >= 0 && out->leaf[x->id] >= 0)
			join(k, leaf, out->leaf[x->id]);
		leaf = out->leaf[x->id] >= 0 ? out->leaf[x->id] : leaf;
	}
	out->leaf[v->id] = leaf;
	out->flat[v->id] = true;
	number_node(k, n);
	return true;
}

static bool
visit_draw(Match *k, Node *n)
{
	if (n->op != OP_random || !unit_counter(n))
		return false;
	k->out->flat[node_result(n, 0)->id] = true;
	number_node(k, n);
	return true;
}

/* Handles three kinds of views: a state reshaped to a vector, a number broadcast to each element,
 * and new elements reshaped to their state's shape. */
static bool
visit_view(Match *k, Node *n)
{
	UnitMatch *out = k->out;
	Value *x = op_row(n)->fuse == FUSE_VIEW ? node_operand(n, 0) : NULL;
	Value *v = x ? node_result(n, 0) : NULL;

	if (!x)
		return false;
	if (n->op == OP_reshape && x->kind == VALUE_STATE && may_be_member(x->state) &&
	    v->type->rank == 1) {
		number_leaf(k, v, x->state);
		return true;
	}
	if (is_spread(n) && v->type->rank == 1) {
		out->flat[v->id] = true;
		number_node(k, n);
		return true;
	}
	if (n->op != OP_reshape || out->leaf[x->id] < 0)
		return false;
	number_alone(k, v);
	for_each_use(v, u)
		if (!stored_state(u->user))
			refuse(k, x);
	return true;
}

static bool
visit_sum(Match *k, Node *n)
{
	const ReduceAttr *a = n->op == OP_reduce ? n->attr : NULL;
	Value *x = a ? node_operand(n, 0) : NULL;

	if (!a || a->kind != REDUCE_SUM || k->out->leaf[x->id] < 0)
		return false;
	number_alone(k, node_result(n, 0));
	vec_push(k->out->arena, &k->sums, ((UnitSum){n, x}));
	return true;
}

static bool
visit_store(Match *k, Node *n)
{
	State *s = stored_state(n);
	Value *v = s ? node_operand(n, 0) : NULL;

	if (!s || !may_be_member(s))
		return false;
	if (v->node && v->node->op == OP_reshape && k->out->leaf[v->id] < 0)
		v = node_operand(v->node, 0);
	if (k->out->leaf[v->id] < 0 || n->when != WHEN_ALWAYS) {
		k->refused[root_of(k, s->id)] = true;
		return false;
	}
	join(k, s->id, k->out->leaf[v->id]);
	k->store[s->id] = n;
	return true;
}

static bool
is_number(const Node *n)
{
	FuseClass c = op_row(n)->fuse;
	bool known = n->n_results == 1 && node_result(n, 0)->type->rank == 0 &&
	             (c == FUSE_ELEMENTWISE || n->op == OP_constant);

	for (int i = 0; i < n->n_operands; i++)
		known &= node_operand(n, i) && node_operand(n, i)->type->rank == 0;
	return known;
}

static void
visit(Match *k, Node *n)
{
	if (visit_elementwise(k, n) || visit_draw(k, n) || visit_view(k, n) || visit_sum(k, n) ||
	    visit_store(k, n))
		return;
	refuse_operands(k, n);
	for (int i = 0; i < n->n_results; i++)
		if (i > 0 || !is_number(n))
			number_alone(k, node_result(n, i));
		else
			number_node(k, n);
}

/* ---- members */
Node *
unit_sum_addition(const UnitSum *s, Value **term)
{
	Value *v = node_result(s->reduce, 0);

	while (value_used_once(v) && v->uses->user->op == OP_cast)
		v = node_result(v->uses->user, 0);
	*term = v;
	return value_used_once(v) && v->uses->user->op == OP_add ? v->uses->user : NULL;
}

/* Does role a come before role b in a member? The parameter's role comes first. */
static bool
is_before(const UnitMatch *out, int a, int b)
{
	const UnitRole *x = &out->roles.at[a], *y = &out->roles.at[b];

	return x->kind != y->kind       ? x->kind < y->kind
	       : x->number != y->number ? x->number < y->number
	                                : x->dtype < y->dtype;
}

static void
add_state(Match *k, State *s)
{
	UnitMatch *out = k->out;
	int root = root_of(k, s->id), at;

	if (k->member[root] == 0) {
		vec_push(out->arena, &out->members, (UnitMember){0});
		k->member[root] = out->members.n;
	}
	UnitMember *u = &out->members.at[k->member[root] - 1];
	int role = role_of(out, s);
	vec_push(out->arena, &u->states, s);
	vec_push(out->arena, &u->roles, role);
	vec_push(out->arena, &u->stores, k->store[s->id]);
	for (at = u->states.n - 1; at > 0 && is_before(out, role, u->roles.at[at - 1]); at--) {
		u->states.at[at] = u->states.at[at - 1];
		u->roles.at[at] = u->roles.at[at - 1];
		u->stores.at[at] = u->stores.at[at - 1];
	}
	u->states.at[at] = s;
	u->roles.at[at] = role;
	u->stores.at[at] = k->store[s->id];
	/* Two states of one role cannot lie in one unit of that role. */
	if ((at > 0 && u->roles.at[at - 1] == role) || s->type->n != u->states.at[0]->type->n)
		k->refused[root] = true;
}

/* The number of a store's value. */
static int
stored_number(const Match *k, const Node *store)
{
	const Value *v = store ? node_operand(store, 0) : NULL;

	if (!v)
		return INT_MIN;
	return k->out->leaf[v->id] < 0 ? k->number[node_operand(v->node, 0)->id] : k->number[v->id];
}

static void
sign(Match *k, UnitMember *u)
{
	Arena *arena = k->out->arena;

	for (int i = 0; i < u->states.n; i++) {
		vec_push(arena, &u->signature, u->roles.at[i]);
		vec_push(arena, &u->signature, stored_number(k, u->stores.at[i]));
	}
	for (int i = 0; i < u->sums.n; i++)
		vec_push(arena, &u->signature, k->number[u->sums.at[i].operand->id]);
}

static void
collect_members(Match *k)
{
	UnitMatch *out = k->out;
	int kept = 0;

	for (int i = 0; i < k->m->states.n; i++) {
		State *s = k->m->states.at[i];
		bool read = i < out->f->by_state.n && out->f->by_state.at[i];
		if (may_be_member(s) && (read || k->store[i]))
			add_state(k, s);
	}
	for (int i = 0; i < k->sums.n; i++) {
		int root = root_of(k, out->leaf[k->sums.at[i].operand->id]);
		vec_push(out->arena, &out->members.at[k->member[root] - 1].sums, k->sums.at[i]);
	}
	for (int i = 0; i < out->members.n; i++) {
		UnitMember *u = &out->members.at[i];
		bool stored = false;
		for (int s = 0; s < u->states.n; s++)
			stored |= u->stores.at[s] != NULL;
		if (!stored || k->refused[root_of(k, u->states.at[0]->id)])
			continue;
		sign(k, u);
		out->members.at[kept++] = *u;
	}
	out->members.n = kept;
}

static void
visit_states(Match *k)
{
	for (int i = 0; i < k->out->f->states.n; i++) {
		Value *v = k->out->f->states.at[i];
		if (may_be_member(v->state) && v->type->rank == 1)
			number_leaf(k, v, v->state);
		else
			number_alone(k, v);
	}
}

static void
find_readers(const Function *update, bool *is_read)
{
	for_each_function(update->module, f)
		for (int i = 0; f != update && i < f->states.n; i++)
			is_read[f->states.at[i]->state->id] |= value_used(f->states.at[i]);
}

void
unit_match(Function *f, Arena *arena, UnitMatch *out)
{
	Module *m = f->module;
	int n_states = m->states.n + 1;
	uint32_t n_values = f->next_value_id;
	Match k = {.out = out,
	           .m = m,
	           .parent = NEW_ARRAY(arena, int, n_states),
	           .refused = NEW_ARRAY(arena, bool, n_states),
	           .store = NEW_ARRAY(arena, Node *, n_states),
	           .number = NEW_ARRAY(arena, int, n_values),
	           .member = NEW_ARRAY(arena, int, n_states),
	           .seen = intmap_new(arena)};

	*out = (UnitMatch){.f = f,
	                   .arena = arena,
	                   .n_values = n_values,
	                   .leaf = NEW_ARRAY(arena, int, n_values),
	                   .is_read = NEW_ARRAY(arena, bool, n_states),
	                   .flat = NEW_ARRAY(arena, bool, n_values),
	                   .is_state = NEW_ARRAY(arena, bool, n_values)};
	for (int i = 0; i < n_states; i++)
		k.parent[i] = i;
	for (uint32_t i = 0; i < n_values; i++)
		out->leaf[i] = -1;
	find_readers(f, out->is_read);
	visit_states(&k);
	for (int i = 0; i < f->params.n; i++)
		number_alone(&k, f->params.at[i]);
	for_each_node(f, n)
		visit(&k, n);
	collect_members(&k);
}

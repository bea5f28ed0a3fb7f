/* Makes units: a unit is one flat state that holds several parameters with equal updates one
 * after the other; further units hold their gradients and moments. Then one elementwise kernel
 * updates all these parameters, and a rank can hold a part of a unit (ZeRO). Statistics and their
 * pending states are laid out likewise.
 *
 *	@fc1.weight, @fc2.weight, ...       in @unit.0.parameter+0, +8192, ...
 *	@grad.fc1.weight, ...               in @unit.0.gradient+0, +8192, ...
 *	the update of @fc1.weight           becomes the update of @unit.0.parameter; the other updates are erased
 *
 * A parameter with its gradient and moments is a member; it starts at the same multiple of
 * MEMBER_ALIGN elements in each of these units. The end of a layer block is padded to a multiple
 * of UNIT_BLOCK elements with zeros, which stay zeros. A unit holds one or several neighbouring
 * blocks, up to `unit_bytes` in total, and up to a part of the model; ZeRO-3 gathers a whole unit in one message. Units with
 * equal updates follow each other in memory; together they are a run, and one kernel updates the
 * run. So neither offsets in a run nor the order in which norms are summed depend on
 * `unit_bytes`.
 *
 * Every element gets the same update as before, apart from the order of addition in norms. An
 * element's place in the run selects its random numbers. Time: linear in nodes. */
#include "passes/units/layout.h"

#include <stdlib.h>
#include <string.h>

enum {
	MEMBER_ALIGN = 16,
	STREAMS = 16, /* most streams of random numbers in one update */
};

/* A range of a run, in elements. */
typedef struct {
	int64_t first, n; /* elements */
} Range;
/* Members with equal updates. */
typedef struct {
	VEC(UnitMember *) members; /* sorted by layer block */
	VEC(int64_t) offsets;      /* of each member in the run */
	VEC(Range) units;
	int64_t n;    /* elements of the run */
	int number;   /* number of the run */
	State **runs; /* the run's states, in the order of a member's states */
} Group;
typedef struct {
	Pass *p;
	Module *m;
	Function *f;
	UnitMatch match;
	const int *block; /* by state id: layer block */
	int64_t unit_bytes;
	VEC(Group) groups;
	int n_units;
	/* by value id: the first member's value, widened to the whole run; NULL: not built yet */
	IntMap *wide;
} Units;

static int64_t
round_up(int64_t n, int64_t to)
{
	return (n + to - 1) / to * to;
}

/* ---- members and their order */
static bool
signature_equal(const UnitMember *a, const UnitMember *b)
{
	return a->signature.n == b->signature.n &&
	       memcmp(a->signature.at, b->signature.at,
	              sizeof(*a->signature.at) * (size_t)a->signature.n) == 0;
}

static void
make_groups(Units *u)
{
	IntMap *seen = intmap_new(u->p->scratch);

	for (int i = 0; i < u->match.members.n; i++) {
		UnitMember *member = &u->match.members.at[i];
		uint64_t g, h = hash_bytes(member->signature.at,
		                           sizeof(int) * (size_t)member->signature.n, 0);
		while (intmap_get(seen, h, &g) &&
		       !signature_equal(u->groups.at[g].members.at[0], member))
			h++;
		if (!intmap_get(seen, h, &g)) {
			g = (uint64_t)u->groups.n;
			intmap_put(seen, h, g);
			vec_push(u->p->scratch, &u->groups, (Group){0});
		}
		vec_push(u->p->scratch, &u->groups.at[g].members, member);
	}
}

/* Statistics are small: all of them are one block. */
static int
block_of(const Units *u, const UnitMember *member)
{
	for (int i = 0; i < member->states.n; i++)
		if (member->states.at[i]->kind == STATE_PARAMETER)
			return u->block[member->states.at[i]->id];
	return 0;
}

/* Can the members' sums (such as the squares for the norm of gradients) become one sum? The sums are terms of a larger
 * sum, such as the norm of all gradients. All terms but the first are removed, and the first becomes the sum over the
 * run. */
static bool
can_merge_sums(const Group *g)
{
	Value *term;

	for (int i = 0; g->members.n > 1 && i < g->members.n; i++)
		for (int s = 0; s < g->members.at[i]->sums.n; s++)
			if (!unit_sum_addition(&g->members.at[i]->sums.at[s], &term))
				return false;
	return true;
}

typedef struct {
	UnitMember *member;
	int block, order;
} Placed;

static int
by_block(const void *a, const void *b)
{
	const Placed *x = a, *y = b;

	return x->block != y->block ? (x->block > y->block) - (x->block < y->block)
	                            : (x->order > y->order) - (x->order < y->order);
}

/* Ends a block: pads it to a size at which the next block's unit may begin. */
static void
end_block(Units *u, Group *g, int64_t *first)
{
	int64_t bytes = dtype_bytes(g->members.at[0]->states.at[0]->type->dtype, 1);
	Range *last = g->units.n ? &g->units.at[g->units.n - 1] : NULL;

	g->n = round_up(g->n, UNIT_BLOCK);
	if (last && (g->n - last->first) * bytes <= u->unit_bytes)
		last->n = g->n - last->first;
	else
		vec_push(u->p->scratch, &g->units, ((Range){*first, g->n - *first}));
	*first = g->n;
}

static void
place_members(Units *u, Group *g)
{
	Placed *order = NEW_ARRAY(u->p->scratch, Placed, g->members.n);
	int64_t first = 0;

	for (int i = 0; i < g->members.n; i++)
		order[i] = (Placed){g->members.at[i], block_of(u, g->members.at[i]), i};
	qsort(order, (size_t)g->members.n, sizeof(*order), by_block);
	for (int i = 0; i < g->members.n; i++) {
		if (i && order[i].block != order[i - 1].block)
			end_block(u, g, &first);
		g->members.at[i] = order[i].member;
		g->n = round_up(g->n, MEMBER_ALIGN);
		vec_push(u->p->scratch, &g->offsets, g->n);
		g->n += order[i].member->states.at[0]->type->n;
	}
	end_block(u, g, &first);
}

/* ---- states */
static StateKind
unit_kind(const State *s)
{
	return s->kind == STATE_PARAMETER || s->kind == STATE_STATISTIC ? STATE_UNIT : s->kind;
}

/* One flat state for all states with the role of `like`. */
static State *
flat_state(Units *u, const char *what, int number, const State *like, int64_t n)
{
	Module *m = u->m;
	const char *name = arena_printf(m->arena, "%s.%d.%s", what, number,
	                                state_kind_names[like->kind]);

	if (like->number)
		name = arena_printf(m->arena, "%s.%d", name, like->number);
	State *s = state_new(m, module_fresh_name(m, name), type_new(m, like->type->dtype, 1, &n),
	                     unit_kind(like), like->lifetime);
	s->decay = like->decay;
	s->lr_scale = like->lr_scale;
	s->number = like->number;
	s->loc = loc_name(m, "units");
	return s;
}

/* s belongs to a state, s->of. Returns the index of s->of in member->states; -1: it is not in this
 * list. */
static int
place_of_owner(const UnitMember *member, const State *s)
{
	for (int i = 0; i < member->states.n; i++)
		if (s->of == member->states.at[i])
			return i;
	return -1;
}

/* One flat state for each of a member's states. These flat states belong to each other (`of`) as the member's states
 * do. */
static State **
flat_states(Units *u, const Group *g, const char *what, int number, int64_t n)
{
	const UnitMember *member = g->members.at[0];
	State **list = NEW_ARRAY(u->p->scratch, State *, member->states.n);

	for (int i = 0; i < member->states.n; i++)
		list[i] = flat_state(u, what, number, member->states.at[i], n);
	for (int i = 0; i < member->states.n; i++) {
		int owner = place_of_owner(member, member->states.at[i]);
		list[i]->of = owner >= 0 ? list[owner] : NULL;
	}
	return list;
}

static void
put_members(const Group *g, const Range *unit, State *const *states)
{
	for (int i = 0; i < g->members.n; i++) {
		const UnitMember *member = g->members.at[i];
		if (g->offsets.at[i] < unit->first || g->offsets.at[i] >= unit->first + unit->n)
			continue;
		for (int s = 0; s < member->states.n; s++) {
			member->states.at[s]->unit = states[s];
			member->states.at[s]->unit_offset = g->offsets.at[i] - unit->first;
		}
	}
}

/* If a run has only one unit, the unit's state is the run's state. */
static void
make_states(Units *u, Group *g, int number)
{
	bool several = g->units.n > 1;

	if (several)
		g->runs = flat_states(u, g, "run", number, g->n);
	for (int k = 0; k < g->units.n; k++) {
		const Range *unit = &g->units.at[k];
		State **states = flat_states(u, g, "unit", u->n_units++, unit->n);
		for (int s = 0; several && s < g->members.at[0]->states.n; s++) {
			states[s]->unit = g->runs[s];
			states[s]->unit_offset = unit->first;
		}
		put_members(g, unit, states);
		if (!several)
			g->runs = states;
	}
}

/* ---- the first member's update becomes the update of the run */
static Value *
run_value(Units *u, const Group *g, const State *s)
{
	const UnitMember *member = g->members.at[0];
	int i = 0;

	while (member->states.at[i] != s)
		i++;
	return function_state(u->f, g->runs[i]);
}

static bool
is_flat(const Units *u, const Value *v)
{
	return v->id < u->match.n_values && u->match.flat[v->id];
}

/* The value v of the first member, for the whole run. The recursion is at most some dozens of nodes deep, as deep as
 * the updates that optimizers build. */
static Value *
widen(Units *u, const Group *g, Builder *b, Value *v)
{
	const Node *n = v->node;

	uint64_t known;
	if (intmap_get(u->wide, v->id, &known))
		return (Value *)(uintptr_t)known;
	if (u->match.is_state[v->id])
		return run_value(u, g, u->m->states.at[u->match.leaf[v->id]]);
	Value **operands = NEW_ARRAY(u->p->scratch, Value *, n->n_operands);
	for (int i = 0; i < n->n_operands; i++) {
		Value *x = node_operand(n, i);
		operands[i] = is_flat(u, x) ? widen(u, g, b, x) : x;
	}
	b->loc = n->loc;
	b->phase = n->phase;
	const Ints shape = {.n = 1, .at = {g->n}};
	Value *wide;
	if (n->op == OP_random) { /* selected by the element's place in the run */
		RandomAttr draw = *(const RandomAttr *)n->attr;
		draw.shape = shape;
		draw.counter.rows = g->n;
		wide = build(b, n->op, n->n_operands, operands, &draw);
	} else if (unit_counter(n)) {
		CastAttr cast = *(const CastAttr *)n->attr;
		cast.counter.rows = g->n;
		/* each run draws other numbers */
		cast.counter.stream += (int64_t)g->number * STREAMS;
		wide = build(b, n->op, n->n_operands, operands, &cast);
	} else if (op_row(n)->fuse == FUSE_ELEMENTWISE) {
		wide = build(b, n->op, n->n_operands, operands, n->attr);
	} else {
		wide = b_broadcast(b, operands[0], shape, (Ints){0});
	}
	/* a broadcast number is not kept: another run may need it with another size */
	if (u->match.leaf[v->id] >= 0)
		intmap_put(u->wide, v->id, (uint64_t)(uintptr_t)wide);
	return wide;
}

/* Replaces the first member's sum by the sum over the run, and removes the other members' terms. */
static void
merge_sums(Units *u, const Group *g)
{
	const UnitMember *first = g->members.at[0];

	for (int s = 0; s < first->sums.n; s++) {
		Node *reduce = first->sums.at[s].reduce;
		Builder b = {.m = u->m, .f = u->f, .before = reduce};
		Value *x = widen(u, g, &b, first->sums.at[s].operand);
		b.loc = reduce->loc;
		b.phase = reduce->phase;
		Value *sum = build(&b, reduce->op, 1, &x, reduce->attr);
		value_replace_uses(node_result(reduce, 0), sum);
		for (int i = 1; i < g->members.n; i++) {
			Value *term;
			Node *add = unit_sum_addition(&g->members.at[i]->sums.at[s], &term);
			Value *other = node_operand(add, node_operand(add, 0) == term);
			value_replace_uses(node_result(add, 0), other);
			node_erase(add);
		}
	}
}

static Value *
stored_elements(const Units *u, const Node *store)
{
	Value *v = node_operand(store, 0);

	return is_flat(u, v) ? v : node_operand(v->node, 0);
}

static void
merge_stores(Units *u, const Group *g)
{
	const UnitMember *first = g->members.at[0];
	Builder b = {.m = u->m, .f = u->f, .before = function_stores(u->f)};

	for (int s = 0; s < first->states.n; s++) {
		const Node *store = first->stores.at[s];
		if (!store)
			continue;
		Value *v = widen(u, g, &b, stored_elements(u, store));
		Builder at = {.m = u->m,
		              .f = u->f,
		              .before = first->stores.at[s],
		              .loc = store->loc,
		              .phase = store->phase};
		b_store(&at, g->runs[s], v);
		for (int i = 0; i < g->members.n; i++)
			node_erase(g->members.at[i]->stores.at[s]);
		b.before = function_stores(u->f);
	}
}

static void
pack(Units *u, Group *g, int number)
{
	g->number = number;
	place_members(u, g);
	make_states(u, g, number);
	merge_sums(u, g);
	merge_stores(u, g);
}

/* A unit is one state of the module, and merges the stores of one function: a second function of role update would still store
 * the members apart. */
static bool
check_one_update(const Units *u)
{
	for_each_of_role(u->m, ROLE_UPDATE, f) {
		if (f == u->f)
			continue;
		diag_error(u->p->diag, EXIT_UNSUPPORTED,
		           "%s: pass units: @%s is a second function of role update beside @%s",
		           u->m->name, f->name, u->f->name);
		return false;
	}
	return true;
}

/* A rank holds whole units while they are gathered, so a unit is a small part of the model. */
static int64_t
most_unit_bytes(const Units *u, const UnitsOptions *o)
{
	int64_t bytes = 0;

	for (int i = 0; i < u->match.members.n; i++)
		bytes += type_bytes(u->match.members.at[i].states.at[0]->type);
	bool any = o->parts == 1 || bytes / o->parts >= o->unit_bytes;

	return any ? o->unit_bytes : bytes / o->parts;
}

static bool
run_units(Pass *p, Module *m)
{
	const UnitsOptions *o = p->options;
	Units u = {.p = p, .m = m, .f = module_first(m, ROLE_UPDATE)};

	if (!u.f)
		return true;
	if (!check_one_update(&u))
		return false;
	unit_match(u.f, p->scratch, &u.match);
	u.unit_bytes = most_unit_bytes(&u, o);
	u.block = layer_blocks(m, p->scratch);
	u.wide = intmap_new(p->scratch);
	make_groups(&u);
	for (int i = 0; i < u.groups.n; i++) {
		if (!can_merge_sums(&u.groups.at[i]))
			continue;
		pack(&u, &u.groups.at[i], i);
		p->changed = true;
	}
	function_drop_unread(u.f);
	function_compact(u.f); /* most of its nodes are gone */
	return true;
}

static const PassOption units_options[] = {
	{"unit_bytes", "most bytes of parameters in a unit of several layer blocks", OPTION_BYTES,
         offsetof(UnitsOptions, unit_bytes),
         .flag = {"unit-bytes", "N",
                  "ranks gather parameters in units of layer blocks with up to N bytes, or of one "
                  "larger block (an 8th of the parameters, at most 32M)",
                  "Kernels and ranks", .keeps_results = true}},
	{"parts",
         "a unit of several layer blocks has at most the model's bytes divided by this; 1: any number of bytes",
         OPTION_INT, offsetof(UnitsOptions, parts), 1, 1ll << 31},
	{0}};
/* Beyond some MB the time of a message grows with its bytes; DDP's buckets have 25 MB. With an eighth of the model, ZeRO-3 takes less than
 * ZeRO-1 for models of some MB, too; gpt2_124m keeps units of 32 MB. */
static const UnitsOptions units_defaults = {.unit_bytes = 32 << 20, .parts = 8};
const PassRow pass_units = {.name = "units",
                            .help = "lay parameters, gradients and moments side by side",
                            .takes = STAGE_ANY,
                            .until = STAGE_TRAIN,
                            .leaves = STAGE_ANY,
                            .when = PASS_WITH_OPTIMIZER,
                            .options = units_options,
                            .options_size = sizeof(UnitsOptions),
                            .defaults = &units_defaults,
                            .run = run_units};

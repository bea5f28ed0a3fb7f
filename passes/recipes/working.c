/* Makes working weights. In mixed precision, every micro-batch casts a weight to 16 bits again. This pass keeps the
 * cast weight from step to step, as a state that @update stores together with the weight. For example, if products take
 * bf16 and @w is trained:
 *
 *	state @w : f32[8,8]                      state @w : f32[8,8]
 *	                                         state @working.w : bf16[8,8] working derived init copy of @w
 *	@accumulate, @eval, @forward:
 *	  %1 = cast @w {to = bf16}          ->     @working.w
 *	@update:
 *	  store %2 {state = @w}                    store %2 {state = @w}
 *	                                           store cast(%2) {state = @working.w}
 *
 * With the option `all`, nodes that read @w without a cast get a copy, too. Then only @update reads @w itself, so @w
 * may lie out of reach of the other programs. A checkpoint does not contain the copies: they are made anew from the
 * weights. Time: nodes times casts of weights. */
#include "passes/pass.h"

typedef struct {
	Pass *p;
	Module *m;
	IntMap *states; /* by id of a weight and number of a type: its working copy */
} Working;

/* The trained weight that n rounds to fewer bits; NULL: n does something else. */
static State *
weight_of(const Node *n)
{
	const Value *x = n->n_results ? value_cast_of(node_result(n, 0)) : NULL;
	State *s = x && x->kind == VALUE_STATE ? x->state : NULL;
	const CastAttr *how = x ? n->attr : NULL;
	bool is_weight = s && s->kind == STATE_PARAMETER && s->trainable;
	bool rounds = how && dtype_is_float(how->to) && how->round == ROUND_NEAREST &&
	              dtype_info[how->to].bits < dtype_info[x->type->dtype].bits;

	return is_weight && rounds ? s : NULL;
}

static uint64_t
working_key(const State *of, DType d)
{
	return (uint64_t)of->id * N_DTYPES + d;
}

static State *
working_state(Working *w, State *of, DType d)
{
	uint64_t key = working_key(of, d), found;

	if (intmap_get(w->states, key, &found))
		return w->m->states.at[found];
	State *s = state_copy(w->m, "working", of, d, STATE_WORKING, LIFE_DERIVED);
	intmap_put(w->states, key, (uint64_t)s->id);
	return s;
}

/* Does a function of role update store the state? */
static bool
is_updated(const Working *w, const State *s)
{
	for_each_of_role(w->m, ROLE_UPDATE, update)
		if (function_store_of(update, s))
			return true;
	return false;
}

/* Gives readers without a cast a copy of the weight in its own type. */
static void
use_copies(Working *w, Function *f)
{
	for (int i = 0, n = f->states.n; i < n; i++) {
		Value *v = f->states.at[i];
		State *s = v->state;
		bool is_weight = s->kind == STATE_PARAMETER && s->trainable;
		if (!value_used(v) || !is_weight || !is_updated(w, s))
			continue;
		value_replace_uses(v, function_state(f, working_state(w, s, s->type->dtype)));
		w->p->changed = true;
	}
}

static void
use_working(Working *w, Function *f)
{
	for_each_node(f, n) {
		State *s = weight_of(n);
		if (!s || !is_updated(w, s))
			continue;
		DType d = ((const CastAttr *)n->attr)->to;
		value_replace_uses(node_result(n, 0), function_state(f, working_state(w, s, d)));
		node_erase(n);
		w->p->changed = true;
	}
}

/* Stores the copy s together with the weight's new content, a vector of its elements, if `update` stores the weight. Does
 * nothing if `update` already stores the copy, or the unit (flat state) that holds it. */
static void
store_working(Working *w, Function *update, State *s)
{
	Node *store = function_store_of(update, s->of);

	if (!store || function_store_of(update, s))
		return;
	Builder b = {.m = w->m,
	             .f = update,
	             .before = function_stores(update),
	             .loc = store->loc,
	             .phase = store->phase};
	Value *v = b_cast(&b, store_elements(store), s->type->dtype);

	v = b_reshape(&b, v, ints_of_type(s->type));
	b.before = store;
	b_store(&b, s, v);
}

static bool
run_working(Pass *p, Module *m)
{
	Working w = {p, m, intmap_new(p->scratch)};

	for (int i = 0; i < m->states.n; i++) {
		const State *s = m->states.at[i];
		if (s->kind == STATE_WORKING)
			intmap_put(w.states, working_key(s->of, s->type->dtype), (uint64_t)i);
	}
	for_each_function(m, f)
		if (f->role != ROLE_UPDATE) {
			use_working(&w, f);
			if (((const WorkingOptions *)p->options)->all)
				use_copies(&w, f);
		}
	for_each_of_role(m, ROLE_UPDATE, update)
		for (int i = 0; i < m->states.n; i++)
			if (m->states.at[i]->kind == STATE_WORKING)
				store_working(&w, update, m->states.at[i]);
	return true;
}

static const PassOption working_options[] = {
	{"all", "copies of weights that are read without a cast, too", OPTION_BOOL,
         offsetof(WorkingOptions, all)},
	{0},
};
static const WorkingOptions working_defaults = {0};
const PassRow pass_working = {.name = "working",
                              .help = "keep weights' casts from step to step",
                              .takes = STAGE_ANY,
                              .until = STAGE_TRAIN,
                              .leaves = STAGE_ANY,
                              .when = PASS_WITH_OPTIMIZER,
                              .options = working_options,
                              .options_size = sizeof(WorkingOptions),
                              .defaults = &working_defaults,
                              .run = run_working};

/* --ema: each trained weight gets a second state with its exponential moving average, for the export.
 *
 *	state @w : f32[8]                        state @w : f32[8]
 *	                                         state @ema.w : f32[8] average saved init copy of @w
 *	@update:
 *	  store select(made, new, @w)              store select(made, new, @w)
 *	  {state = @w}                             {state = @w}
 *	                                           store select(made, lerp, @ema.w) {state = @ema.w}
 *
 * lerp = @ema.w + (1 - X)(w - @ema.w), where w is the new content of @w: torch.optim.swa_utils.get_ema_multi_avg_fn.
 * The average begins as the initial weight. torch's AveragedModel copies the weight at its first update_parameters, so
 * it begins alike if that is called before training. The average is f32, or f64 for an f64 weight: in 16 bits its small
 * changes would be rounded away. Time: nodes times parameters. */
#include "passes/pass.h"

typedef struct {
	Pass *p;
	Module *m;
	double decay;
	IntMap *averages; /* by id of a weight: id of its average */
} Ema;

/* The average of the weight `of`, made at first use. Several functions of role update share it. */
static State *
average_state(Ema *e, State *of)
{
	uint64_t found;

	if (intmap_get(e->averages, (uint64_t)of->id, &found))
		return e->m->states.at[found];
	State *s = state_copy(e->m, "ema", of, of->type->dtype == F64 ? F64 : F32, STATE_AVERAGE,
	                      LIFE_SAVED);
	intmap_put(e->averages, (uint64_t)of->id, (uint64_t)s->id);
	return s;
}

/* The new average @ema.w + (1 - X)(w - @ema.w), or the old average if the update is not made. */
static Value *
average(Ema *e, Builder *b, Value *weight, Value *before)
{
	Value *w = b_cast(b, weight, before->type->dtype);
	Value *way = b_binary(b, OP_mul, b_splat(b, w->type, 1 - e->decay),
	                      b_binary(b, OP_sub, w, before));
	Value *after = b_binary(b, OP_add, before, way);
	const Node *select = weight->node && weight->node->op == OP_select ? weight->node : NULL;

	return select ? b_select(b, node_operand(select, 0), after, before) : after;
}

static void
store_average(Ema *e, Function *update, Node *store)
{
	State *of = ((const StoreAttr *)store->attr)->state, *s = average_state(e, of);
	Value *weight = store_elements(store);
	Builder b = {.m = e->m,
	             .f = update,
	             .before = function_stores(update),
	             .loc = store->loc,
	             .phase = store->phase};
	Value *before = b_reshape(&b, function_state(update, s), ints_of_type(weight->type));
	Value *v = b_reshape(&b, average(e, &b, weight, before), ints_of_type(s->type));

	b.before = store;
	b_store(&b, s, v);
	e->p->changed = true;
}

/* Averages each of the first n states that is a weight which `update` stores. */
static void
average_weights(Ema *e, Function *update, int n)
{
	for (int i = 0; i < n; i++) {
		State *s = e->m->states.at[i];
		Node *store = s->kind == STATE_PARAMETER ? function_store_of(update, s) : NULL;
		if (store)
			store_average(e, update, store);
	}
}

static bool
run_ema(Pass *p, Module *m)
{
	Ema e = {p, m, ((const EmaOptions *)p->options)->decay, intmap_new(p->scratch)};
	int n = m->states.n;

	if (e.decay == 0)
		return true;
	for_each_of_role(m, ROLE_UPDATE, update)
		average_weights(&e, update, n);
	return true;
}

static const PassOption ema_options[] = {
	{"decay", "decay of the average at each update", OPTION_DOUBLE, offsetof(EmaOptions, decay),
         0, 1, .above = true, .below = true,
         .flag = {"ema", "X",
                  "keeps a moving average of trained weights with decay X, as 0.999, for "
                  "--export-weights=ema",
                  "Training", "0.99 averages about 100 updates, 0.9999 about 10000"}},
	{0}};
const PassRow pass_ema = {.name = "ema",
                          .help = "keep a moving average of trained weights",
                          .takes = STAGE_ANY,
                          .until = STAGE_TRAIN,
                          .leaves = STAGE_ANY,
                          .when = PASS_WITH_OPTIMIZER,
                          .options = ema_options,
                          .options_size = sizeof(EmaOptions),
                          .run = run_ema};

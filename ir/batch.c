/* Finds which axis of each value counts the rows of a micro-batch, and whether an element depends
 * on several rows. Example: in the product of x[rows,k] and y[k,j], axis 0 of the result counts
 * rows, and each row of the result depends on one row of x. If the mean over axis 0 is subtracted
 * from x, axis 0 of the result still counts rows, but each element depends on all rows.
 *
 * The walk goes forward along the nodes. A factor of a node (op.h) is a loop along which the node
 * can be computed in parts. If a factor can give each part one row of the micro-batch, it also
 * tells which axis of the results counts rows. Ops whose factors do not tell the axis have a
 * function in the column `batch` of the op table. A function is walked once for each set of axes
 * of its parameters, however often it is called. If loops in loops have too many such sets, the
 * row axes of their results count as unknown. */
#include "ir/ir.h"

static bool
depends(const BatchAxis *a)
{
	return a->axis >= 0 || a->mixed;
}

const BatchAxis batch_none = {.axis = -1};
const BatchAxis batch_lost = {.axis = -1, .mixed = true};

bool
batch_same(const BatchAxis *a, const BatchAxis *b)
{
	return a->axis == b->axis && a->repeats == b->repeats && a->mixed == b->mixed;
}

BatchAxis
batch_join(BatchAxis a, BatchAxis b)
{
	if (!depends(&a))
		return b;
	if (!depends(&b))
		return a;
	if (a.axis < 0)
		return (BatchAxis){b.axis, b.repeats, true};
	if (b.axis >= 0 && (a.axis != b.axis || a.repeats != b.repeats))
		a.mixed = true;
	a.mixed |= b.mixed || b.axis < 0;
	return a;
}

int64_t
batch_parts(const BatchFlow *fl, const BatchAxis *a)
{
	return a->repeats * fl->rows;
}

/* The factor that cuts this operand's rows, if the results of the parts are joined. NULL: there
 * is no such factor, or the results are not joined (but added, for example). */
static const Factor *
joining_factor(const BatchFlow *fl, const Partition *p, int operand)
{
	const BatchAxis *a = &fl->operand[operand];
	const Factor *f = a->axis < 0 ? NULL : partition_of_operand(p, operand, a->axis);
	bool cut = false;

	if (!f || f->combine != COMBINE_JOIN || !factor_divides(f, batch_parts(fl, a)))
		return NULL;
	for (int i = 0; i < fl->node->n_results; i++)
		cut |= f->result[i].kind == SHARE_CUT;
	return cut ? f : NULL;
}

/* A node is cut along the factor f. Does each part get the same rows of operand i as of the operand
 * whose row axis is `lead`? Also true if operand i depends on no row, or if its row axis is not
 * known and its rows are mixed anyway. */
static bool
cut_alike(const BatchFlow *fl, const Factor *f, int i, const BatchAxis *lead)
{
	const BatchAxis *a = &fl->operand[i];

	return !depends(a) || (a->axis < 0 && a->mixed) ||
	       (f->operand[i].kind == SHARE_CUT && f->operand[i].axis == a->axis &&
	        a->repeats == lead->repeats);
}

void
batch_by_factors(BatchFlow *fl)
{
	Partition p = node_partition(fl->arena, fl->node);
	const Factor *f = NULL;
	int lead = -1;
	bool mixed = false;

	while (!f && ++lead < fl->node->n_operands)
		f = joining_factor(fl, &p, lead);
	for (int i = 0; i < fl->node->n_results; i++)
		fl->result[i] = batch_lost;
	if (!f)
		return;
	for (int i = 0; i < fl->node->n_operands; i++)
		mixed |= fl->operand[i].mixed || !cut_alike(fl, f, i, &fl->operand[lead]);
	for (int i = 0; i < fl->node->n_results; i++)
		if (f->result[i].kind == SHARE_CUT)
			fl->result[i] = (BatchAxis){f->result[i].axis, fl->operand[lead].repeats,
			                            mixed};
}

static void
flow_through(BatchFlow *fl)
{
	const OpRow *row = op_row(fl->node);

	if (row->batch)
		row->batch(fl);
	else
		batch_by_factors(fl);
}

/* Does the pass `quantize` give the operand, which depends on rows, a scale that is found from several rows? */
static bool
scale_mixes(const Node *n, int i, const BatchAxis *a)
{
	const Module *m = n->function->module;
	int number = node_mark(n, i).of - 1;

	if (number < 0 || quantized_is_weight(&m->quantized.at[number]))
		return false;
	return m->quantized.at[number].scales != SCALES_TOKEN ||
	       a->axis == node_operand(n, i)->type->rank - 1;
}

/* Computes the row axes of all values of f into `of`, by value id. On entry, `of` has the axes of
 * f's parameters, and batch_none for all other values. */
static void
flow_along(Arena *arena, const Function *f, int64_t rows, BatchWalks *walks, BatchAxis *of)
{
	for_each_node(f, n) {
		BatchFlow fl = {.arena = arena, .node = n, .rows = rows, .walks = walks};
		BatchAxis *operand = NEW_ARRAY(arena, BatchAxis, n->n_operands + 1);
		bool any = false;
		for (int i = 0; i < n->n_operands; i++) {
			const Value *v = node_operand(n, i);
			operand[i] = v ? of[v->id] : batch_none;
			any |= depends(&operand[i]);
			operand[i].mixed |= depends(&operand[i]) && scale_mixes(n, i, &operand[i]);
		}
		if (!any)
			continue;
		fl.operand = operand;
		fl.result = NEW_ARRAY(arena, BatchAxis, n->n_results + 1);
		flow_through(&fl);
		for (int i = 0; i < n->n_results; i++)
			of[node_result(n, i)->id] = fl.result[i];
	}
}

static BatchAxis *
all_none(Arena *arena, const Function *f)
{
	BatchAxis *of = NEW_ARRAY(arena, BatchAxis, f->next_value_id + 1);

	for (uint32_t i = 0; i < f->next_value_id; i++)
		of[i] = batch_none;
	return of;
}

/* ---- functions: the axes of a function's results for each set of axes of its parameters */
enum { MOST_VISITS = 1 << 22 }; /* most visits of nodes, in all walks together */
typedef struct Walk Walk;
struct Walk {
	const Function *function;
	const BatchAxis *params;
	BatchAxis *results;
	Walk *next; /* next walk with the same hash */
};
struct BatchWalks {
	IntMap *found; /* hash of a function and the axes of its parameters -> list of Walk */
	int64_t left;  /* visits of nodes that are still allowed */
};

static uint64_t
walk_hash(const Function *f, const BatchAxis *params)
{
	uint64_t hash = (uint64_t)(uintptr_t)f;

	for (int i = 0; i < f->params.n; i++) {
		hash = hash_mix(hash, (uint64_t)params[i].axis);
		hash = hash_mix(hash, (uint64_t)params[i].repeats);
		hash = hash_mix(hash, params[i].mixed);
	}
	return hash;
}

static bool
walk_is_of(const Walk *w, const Function *f, const BatchAxis *params)
{
	for (int i = 0; i < f->params.n; i++)
		if (w->function != f || !batch_same(&w->params[i], &params[i]))
			return false;
	return w->function == f;
}

static Walk *
walk_new(const BatchFlow *fl, const Function *f, const BatchAxis *params)
{
	Arena *arena = fl->arena;
	BatchAxis *of = all_none(arena, f);
	const Node *ret = function_return(f);
	Walk *w = NEW(arena, Walk);

	*w = (Walk){.function = f,
	            .params = arena_copy(arena, params, sizeof(*params) * (size_t)f->params.n),
	            .results = NEW_ARRAY(arena, BatchAxis, ret->n_operands + 1)};
	for (int i = 0; i < f->params.n; i++)
		of[f->params.at[i]->id] = params[i];
	flow_along(arena, f, fl->rows, fl->walks, of);
	for (int i = 0; i < ret->n_operands; i++)
		w->results[i] = of[node_operand(ret, i)->id];
	return w;
}

void
batch_of_callee(const BatchFlow *fl, const Function *f, const BatchAxis *params, BatchAxis *results)
{
	uint64_t hash = walk_hash(f, params), found = 0;
	int n = function_return(f)->n_operands;

	intmap_get(fl->walks->found, hash, &found);
	Walk *w = (Walk *)(uintptr_t)found;
	while (w && !walk_is_of(w, f, params))
		w = w->next;
	if (!w && fl->walks->left > 0) {
		fl->walks->left -= f->next_value_id;
		w = walk_new(fl, f, params);
		w->next = (Walk *)(uintptr_t)
			found; /* `found` is still the head of the list: a function does not call itself */
		intmap_put(fl->walks->found, hash, (uint64_t)(uintptr_t)w);
	}
	for (int i = 0; i < n; i++)
		results[i] = w ? w->results[i] : batch_lost;
}

BatchAxes
batch_of(Arena *arena, const Function *f)
{
	BatchAxes b = {.of = all_none(arena, f), .n = f->next_value_id};
	Arena *scratch = arena_new();
	BatchWalks walks = {intmap_new(scratch), MOST_VISITS};

	for (int i = 0; i < f->params.n; i++) {
		const Value *v = f->params.at[i];
		int64_t rows = v->has_rows ? v->type->dims[v->rows_axis] : 0;
		if (rows == 0 || (b.rows && rows != b.rows))
			continue;
		b.rows = rows;
		b.of[v->id] = (BatchAxis){v->rows_axis, 1, false};
	}
	flow_along(scratch, f, b.rows, &walks, b.of);
	arena_free(scratch);
	return b;
}

int
batch_blocks(const BatchAxes *b, const Value *v)
{
	const BatchAxis *a = v->id < b->n ? &b->of[v->id] : &batch_none;

	return a->axis >= 0 && a->repeats == 1 ? a->axis : -1;
}

bool
batch_stores_mix(const BatchAxes *b, const Function *f)
{
	const Module *m = f->module;

	for_each_node(f, n)
		for (int i = 0; i < n->n_operands; i++) {
			int number = node_mark(n, i).of - 1;
			bool is_stored = stored_state(n) ||
			                 (number >= 0 &&
			                  m->quantized.at[number].scales == SCALES_RUNNING);
			if (is_stored && node_operand(n, i) &&
			    depends(&b->of[node_operand(n, i)->id]))
				return true;
		}
	return false;
}

/* Kernels with reductions along rows: keeps, for the current row, values that several passes
 * over the row need. CPUs keep expensive values in a local array. Members of a team also keep
 * loaded values, so that a row is read from memory once; if each member has few elements of the
 * row, it keeps them in registers. */
#include "codegen/lower/reduce.h"

enum { BESIDE_ROWS = 1024 }; /* bytes of team memory left for sums */

/* Facts about values, by value id. */
typedef struct {
	uint32_t *needed; /* passes that need the value, as bits */
	bool *outlasts;   /* is it reduced or stored, or read by a value that fewer passes need? */
	/* to compute an element, must a pass load elements of full values from memory? Values
	 * in an array do not count. */
	bool *loads;
} Uses;

/* Sets bit k of needed[id] for v and all full values (one element per iteration) from which v is
 * computed: pass k needs them. */
static void
mark_needed(const Value *v, int k, uint32_t *needed)
{
	const Node *n = v->node;

	if ((n && op_row(n)->fuse == FUSE_REDUCE) || (needed[v->id] >> k & 1))
		return;
	needed[v->id] |= 1u << k;
	for (int i = 0; n && i < n->n_operands; i++)
		mark_needed(node_operand(n, i), k, needed);
}

static void
find_uses(const Rows *r, Uses *u)
{
	const Function *f = r->lw->f;
	const Node *ret = function_return(f);

	for (int i = 0; i < r->row_reduces.n; i++) {
		const Node *n = r->row_reduces.at[i];
		mark_needed(node_operand(n, 0), r->depth[n->id], u->needed);
		u->outlasts[node_operand(n, 0)->id] = true;
	}
	for (int i = 0; i < r->column_reduces.n; i++) {
		const Value *v = node_operand(r->column_reduces.at[i], 0);
		mark_needed(v, value_depth(r, v) + 1, u->needed);
		u->outlasts[v->id] = true;
	}
	for (int i = 0; i < ret->n_operands; i++) {
		const Value *v = node_operand(ret, i);
		if (rows_space(r, v) == ITER_FULL) {
			mark_needed(v, value_depth(r, v) + 1, u->needed);
			u->outlasts[v->id] = true;
		}
	}
	for_each_node(f, n)
		for (int i = 0; n->n_results && i < n->n_operands; i++) {
			const Value *x = node_operand(n, i);
			u->outlasts[x->id] |= u->needed[node_result(n, 0)->id] != u->needed[x->id];
		}
}

static bool
is_often(uint32_t passes)
{
	return (passes & (passes - 1)) != 0;
}

/* ---- members of a team */
int64_t
own_numbers(const Rows *r)
{
	const LoopDim *d = &r->nest.at[r->nest.n - 1];

	if (r->nest.n - r->n_kept != 1 || d->whole || r->is_long)
		return 0;
	int64_t n = spread_own(r->lw, d->extent);
	return n <= r->tiles->own_numbers ? n : 0;
}

/* The type of v's array. In team memory, numbers of 16 bits stay as they are: with half the memory, two teams
 * that have 1024 members and rows of 50257 logits fit on a processor. */
static DType
array_type(const Value *v, int64_t own)
{
	const Value *narrow = value_cast_of(v), *x = v;
	if (narrow && v->type->dtype == F32)
		x = narrow; /* the cast has changed no number of 16 bits */
	DType type = x->type->dtype;
	bool as_it_is = own == 0 && dtype_is_float(type) && dtype_info[type].bits == 16 &&
	                compute_type(type) == compute_type(v->type->dtype);

	return as_it_is ? type : compute_type(v->type->dtype);
}

/* Gives v an array for the current row and adds its size to *bytes. own: elements that each
 * member keeps in registers; 0: the array lies in team memory. False: there is no room. */
static bool
keep(Rows *r, const Value *v, int64_t own, int64_t *bytes)
{
	struct LowerState *st = r->lw->state;
	DType type = array_type(v, own);
	int64_t width = r->full / r->rows;
	int64_t rows = r->team_rows && !r->shares_rows ? r->team_rows : 1;
	int64_t more = own ? dtype_bytes(type, own) : dtype_bytes(type, width) * rows;
	int64_t most = own          ? dtype_bytes(F32, r->tiles->all_own_numbers)
	               : r->is_long ? r->lw->target->shared_bytes - BESIDE_ROWS
	                            : dtype_bytes(F32, r->tiles->near_row);

	if (*bytes + more > most)
		return false;
	*bytes += more;
	st->cache[v->id] = own ? lb_private(r->lw->lb, type, own)
	                       : lb_local(r->lw->lb, type, width);
	return true;
}

/* ---- arrays that are taken over: rows that fill a processor's memory have only one array */
/* Like mark_needed, if the value `kept` lies in an array after pass `first`: later passes read
 * the array and do not need the values from which `kept` is computed. */
static void
mark_needed_beside(const Value *v, int k, const Value *kept, int first, uint32_t *needed)
{
	const Node *n = v->node;

	if ((n && op_row(n)->fuse == FUSE_REDUCE) || (v == kept && k > first) ||
	    (needed[v->id] >> k & 1))
		return;
	needed[v->id] |= 1u << k;
	for (int i = 0; n && i < n->n_operands; i++)
		mark_needed_beside(node_operand(n, i), k, kept, first, needed);
}

static uint32_t *
needed_beside(const Rows *r, const Value *kept, int first)
{
	const Function *f = r->lw->f;
	const Node *ret = function_return(f);
	uint32_t *needed = NEW_ARRAY(r->lw->state->scratch, uint32_t, f->next_value_id);

	for (int i = 0; i < r->row_reduces.n; i++) {
		const Node *n = r->row_reduces.at[i];
		mark_needed_beside(node_operand(n, 0), r->depth[n->id], kept, first, needed);
	}
	for (int i = 0; i < ret->n_operands; i++)
		if (rows_space(r, node_operand(ret, i)) == ITER_FULL)
			mark_needed_beside(node_operand(ret, i),
			                   value_depth(r, node_operand(ret, i)) + 1, kept, first,
			                   needed);
	return needed;
}

/* Lets v take over the array of an input that no pass reads after the pass that computes v.
 * Example: exp(x - m) takes the place of x. The pass that computes v must have a single nest of
 * loops. */
static bool
take_over(Rows *r, const Value *v, uint32_t passes)
{
	struct LowerState *st = r->lw->state;
	const Node **reduces = NEW_ARRAY(st->scratch, const Node *, r->row_reduces.n + 1);
	int first = __builtin_ctz(passes);

	if (!r->is_long || pass_reduces(r, first, reduces) > r->tiles->sums)
		return false;
	uint32_t *needed = needed_beside(r, v, first);
	for (int i = 0; i < r->lw->f->params.n; i++) {
		const Value *x = r->lw->f->params.at[i];
		int array = st->cache[x->id];
		if (array < 0 || needed[x->id] >> (first + 1) ||
		    r->lw->lb->k->buffers.at[array].type->dtype != array_type(v, 0))
			continue;
		st->cache[v->id] = st->cache[x->id];
		st->taken_from[v->id] = (int)x->id;
		return true;
	}
	return false;
}

static void
keep_loaded(Rows *r, Uses *u)
{
	int64_t own = own_numbers(r), bytes = 0;
	const Function *f = r->lw->f;

	for (int i = 0; i < f->params.n; i++) {
		const Value *v = f->params.at[i];
		u->loads[v->id] = v->type->n >= r->full;
		if (v->type->n == r->full && u->outlasts[v->id] && is_often(u->needed[v->id]) &&
		    keep(r, v, own, &bytes))
			u->loads[v->id] = false;
	}
	for_each_node(f, n) {
		if (n->n_results == 0 || op_row(n)->fuse == FUSE_REDUCE)
			continue;
		const Value *v = node_result(n, 0);
		bool *loads = &u->loads[v->id];
		for (int i = 0; i < n->n_operands; i++)
			*loads |= u->loads[node_operand(n, i)->id];
		bool wanted = (*loads && u->outlasts[v->id]) ||
		              op_row(n)->weight >= r->tiles->expensive;
		if (wanted && rows_space(r, v) == ITER_FULL && is_often(u->needed[v->id]) &&
		    (keep(r, v, own, &bytes) || take_over(r, v, u->needed[v->id])))
			*loads = false;
	}
	r->lw->state->own_rows = own > 0 && (bytes > 0 || r->block_rows);
}

/* ---- one member */
static void
keep_expensive(Rows *r, const Uses *u)
{
	struct LowerState *st = r->lw->state;

	for_each_node(r->lw->f, n) {
		const Value *v = n->n_results ? node_result(n, 0) : NULL;
		if (v && is_often(u->needed[v->id]) && op_row(n)->weight >= r->tiles->expensive &&
		    rows_space(r, v) == ITER_FULL)
			st->cache[v->id] = lb_local(r->lw->lb, compute_type(v->type->dtype),
			                            r->full / r->rows);
	}
}

void
plan_cache(Rows *r)
{
	struct LowerState *st = r->lw->state;
	uint32_t values = r->lw->f->next_value_id;
	Uses u = {.needed = NEW_ARRAY(st->scratch, uint32_t, values),
	          .outlasts = NEW_ARRAY(st->scratch, bool, values),
	          .loads = NEW_ARRAY(st->scratch, bool, values)};
	int64_t width = r->rows ? r->full / r->rows : 0;

	st->cache = NEW_ARRAY(st->scratch, int, values);
	st->cached = NEW_ARRAY(st->scratch, uint8_t, values);
	st->taken_from = NEW_ARRAY(st->scratch, int, values);
	for (uint32_t i = 0; i < values; i++)
		st->cache[i] = st->taken_from[i] = -1;
	if (r->by_column || (width > r->tiles->near_row && !r->is_long) || r->depths > 30)
		return;
	find_uses(r, &u);
	if (r->lw->lb->k->n_team)
		keep_loaded(r, &u);
	else
		keep_expensive(r, &u);
}

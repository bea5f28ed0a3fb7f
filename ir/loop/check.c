/* Checks a kernel of loop IR and reports faults: a scalar used outside of its block, a wrong
 * type, a place (element number) that could lie outside of its buffer. */
#include "ir/text.h"

#include <ctype.h>

enum { MAX_COPY = 16 }; /* bytes */
typedef struct {
	const Module *m;
	const Kernel *k;
	Diag *diag;
	Arena *arena;
	DType *types;     /* by scalar */
	bool *defined;    /* by scalar: is it visible? */
	bool *open;       /* by scalar: is it an accumulator of an open loop? */
	int64_t *extents; /* by scalar: extent of a loop variable */
	/* by scalar: the place that a loop variable stays below; NULL: no such place */
	const Affine **bounds;
	ScalarFunctions *functions;
	int statement;
	bool vector; /* inside a vector loop */
	int depth;   /* number of open loops and conditions */
	int nests;   /* number of nests of parallel loops so far */
	int dead;    /* number of open loops of extent 0: their bodies never run */
	bool ok;
} Check;

static void PRINTF(2, 3) report(Check *c, const char *fmt, ...)
{
	const LoopStatement *s = &c->k->body.at[c->statement];
	Text line = {0};
	va_list args;

	module_place(&line, c->m, s->line);
	va_start(args, fmt);
	text_printf(&line, ": kernel @%s: %s: ", c->k->name, arena_vprintf(c->arena, fmt, args));
	va_end(args);
	loop_print_statement(&line, c->k, s);
	loc_print(&line, c->k->loc, NULL);
	diag_error(c->diag, EXIT_INVALID, "%s", line.at);
	text_free(&line);
	c->ok = false;
}

static bool
visible(Check *c, LoopValue v)
{
	if (v >= 0 && v < c->k->n_scalars && c->defined[v])
		return true;
	report(c, "v%d is not visible here", v);
	return false;
}

static void
define(Check *c, LoopValue v, DType type, int64_t extent)
{
	if (v < 0 || v >= c->k->n_scalars || c->defined[v]) {
		report(c, "v%d is defined twice", v);
		return;
	}
	c->defined[v] = true;
	c->types[v] = type;
	c->extents[v] = extent;
}

/* The terms of a place must be visible s64 scalars. Returns false after reporting. */
static bool
check_terms(Check *c, const Affine *place)
{
	for (int i = 0; i < place->n; i++) {
		if (!visible(c, place->terms[i].scalar))
			return false;
		if (c->types[place->terms[i].scalar] != S64) {
			report(c, "v%d in a place is not s64", place->terms[i].scalar);
			return false;
		}
	}
	return true;
}

/* Checks that a place and the `more` elements after it lie inside the buffer. If the place consists
 * of loop variables alone, this must be proven here. Two kinds of places cannot be proven here:
 * those with computed scalars, which the emitter has clamped, and those of an access with a mask,
 * which touches memory only if the place is inside. The interpreter checks both when it runs the
 * kernel. */
static void
check_range(Check *c, int buffer, const Affine *place, int64_t more, bool masked)
{
	const LoopBuffer *b = &c->k->buffers.at[buffer];
	int64_t low, high;

	if (!check_terms(c, place) || masked ||
	    !affine_range(c->arena, place, c->extents, c->bounds, &low, &high))
		return;
	high += more;
	if (!c->dead && (low < 0 || high >= b->type->n))
		report(c, "places %lld to %lld of %s, which has %lld elements", (long long)low,
		       (long long)high, b->name, (long long)b->type->n);
}

static void
check_place(Check *c, const LoopStatement *s)
{
	bool masked = s->kind == LOOP_STATEMENT_LOAD && s->n_operands;

	/* kernel_team_faults checks which element of a tile a statement may touch. */
	check_range(c, s->buffer, s->place, 0,
	            masked || c->k->buffers.at[s->buffer].kind == BUFFER_TILE);
	if (s->kind == LOOP_STATEMENT_STORE && c->k->buffers.at[s->buffer].kind == BUFFER_IN)
		report(c, "a store into an input");
}

/* Are the types right for an op that has a result type of its own? `bits` keeps the width and
 * changes between float and integer; `truncate` turns a float into an integer. */
static bool
own_result_fits(LoopOp op, DType from, DType to)
{
	bool cut = dtype_is_float(from) && !dtype_is_float(to) && to != BOOL;

	if (op == LOOP_truncate)
		return cut;
	return from != BOOL && to != BOOL && dtype_info[from].bits == dtype_info[to].bits;
}

/* Does the op exist for this type, as an instruction or as a scalar function? */
static bool
op_exists(Check *c, const LoopStatement *s, DType t)
{
	const char *how = loop_ops[s->op].c;

	if (scalar_function_of(c->functions, s, t))
		return true;
	if (*how == '\0')
		return s->op == LOOP_truncate;
	if (isalpha((unsigned char)*how))
		return dtype_is_float(t) || s->op == LOOP_bits;
	if (s->op == LOOP_not)
		return t == BOOL;
	if (s->op >= LOOP_and && s->op <= LOOP_xor)
		return !dtype_is_float(t);
	if (s->op >= LOOP_quotient && s->op <= LOOP_shr)
		return !dtype_is_float(t) && t != BOOL;
	return t != BOOL || s->op == LOOP_select || loop_ops[s->op].result == RESULT_TRUTH;
}

static DType
operand_type(const Check *c, const LoopStatement *s, int i)
{
	DType first = c->types[s->operands[0]];

	if (loop_ops[s->op].result != RESULT_SAME)
		return first;
	return s->op == LOOP_select && i == 0 ? BOOL : s->type;
}

static void
check_op(Check *c, const LoopStatement *s)
{
	const LoopOpInfo *op = &loop_ops[s->op];

	if (s->n_operands != op->arity) {
		report(c, "%s takes %d operands", op->name, op->arity);
		return;
	}
	for (int i = 0; i < s->n_operands; i++) {
		if (!visible(c, s->operands[i]))
			return;
		DType t = c->types[s->operands[i]], want = operand_type(c, s, i);
		if (t != want)
			report(c, "operand v%d of %s is %s, not %s", s->operands[i], op->name,
			       dtype_info[t].name, dtype_info[want].name);
	}
	if (!op_exists(c, s, c->types[s->operands[op->arity - 1]]))
		report(c, "there is no %s of %s", op->name,
		       dtype_info[c->types[s->operands[op->arity - 1]]].name);
	if (op->result == RESULT_TRUTH && s->type != BOOL)
		report(c, "%s gives bool", op->name);
	if (op->result == RESULT_OWN && !own_result_fits(s->op, c->types[s->operands[0]], s->type))
		report(c, "%s of %s cannot give %s", op->name,
		       dtype_info[c->types[s->operands[0]]].name, dtype_info[s->type].name);
}

/* The scalars of a block end with the block; the accumulators of a loop become visible there. */
static void
close_block(Check *c, int from, int to)
{
	for (int i = from; i < to; i++)
		if (c->k->body.at[i].result >= 0)
			c->defined[c->k->body.at[i].result] = false;
	const LoopStatement *s = &c->k->body.at[from];
	if (s->kind == LOOP_STATEMENT_EACH && s->column >= 0)
		c->defined[s->column] = false;
	for (int i = 0; i < s->n_accumulators; i++) {
		c->open[s->accumulators[i].scalar] = false;
		define(c, s->accumulators[i].scalar, s->accumulators[i].type, 0);
		/* the accumulator's values lie in a tile, so its scalar stays invisible */
		if (s->accumulators[i].level == ACC_ROW)
			c->defined[s->accumulators[i].scalar] = false;
	}
	for (int i = from + 1; i < to; i++) /* accumulators of inner loops end here, too */
		for (int a = 0; a < c->k->body.at[i].n_accumulators; a++)
			c->defined[c->k->body.at[i].accumulators[a].scalar] = false;
}

static void
check_accumulate(Check *c, const LoopStatement *s)
{
	LoopValue x = s->operands[0], into = s->operands[1];

	if (!c->open[into])
		report(c, "v%d is no accumulator of a loop around", into);
	else if (visible(c, x) && c->types[x] != c->types[into])
		report(c, "v%d is %s, the accumulator %s", x, dtype_info[c->types[x]].name,
		       dtype_info[c->types[into]].name);
}

/* Checks the type of a statement's single operand. */
static void
check_operand(Check *c, const LoopStatement *s)
{
	LoopValue x = s->operands[0];

	if (!visible(c, x))
		return;
	DType t = c->types[x], want = t;
	if (s->kind == LOOP_STATEMENT_IF || s->kind == LOOP_STATEMENT_LOAD ||
	    s->kind == LOOP_STATEMENT_COPY)
		want = BOOL;
	if (s->kind == LOOP_STATEMENT_STORE)
		want = compute_type(c->k->buffers.at[s->buffer].type->dtype);
	if (t != want)
		report(c, "v%d is %s, not %s", x, dtype_info[t].name, dtype_info[want].name);
}

/* Only floats below f32 have their own way of rounding. Stochastic rounding needs random bits. */
static void
check_conversion(Check *c, const LoopStatement *s)
{
	bool stochastic = s->how.round == ROUND_STOCHASTIC;

	if ((s->how.round || s->how.overflow) && !float_format((DType)s->i))
		report(c, "%s has no rounding of its own", dtype_info[s->i].name);
	if (s->n_operands != 1 + stochastic)
		report(c, "a cast takes %d operands", 1 + stochastic);
	else if (stochastic && visible(c, s->operands[1]) && c->types[s->operands[1]] != U32)
		report(c, "random bits are %s, not u32", dtype_info[c->types[s->operands[1]]].name);
}

/* The type of a result: casts and loads give the compute type of a storage type; a place as a
 * number is s64; a scalar argument has its own type. */
static void
check_result(Check *c, const LoopStatement *s)
{
	DType want = s->type;

	if (s->kind == LOOP_STATEMENT_CAST)
		want = compute_type((DType)s->i);
	if (s->kind == LOOP_STATEMENT_LOAD)
		want = compute_type(c->k->buffers.at[s->buffer].type->dtype);
	if (s->kind == LOOP_STATEMENT_AFFINE)
		want = S64;
	if (s->kind == LOOP_STATEMENT_SCALAR)
		want = scalar_dtypes[s->buffer];
	if (s->type != want || want != compute_type(want))
		report(c, "the result is %s, not %s", dtype_info[s->type].name,
		       dtype_info[compute_type(want)].name);
}

/* The body of a vector loop is straight-line code: a vector loop contains no loop, branch,
 * barrier or array. */
static void
check_straight(Check *c, const LoopStatement *s)
{
	if (c->vector && (statement_opens(s) || s->kind == LOOP_STATEMENT_LOCAL ||
	                  s->kind == LOOP_STATEMENT_BARRIER || s->windows))
		report(c, "inside a vector loop");
	if (s->kind == LOOP_STATEMENT_FOR && s->mode == LOOP_VECTOR)
		c->vector = true;
	if (s->kind == LOOP_STATEMENT_END && c->k->body.at[s->match].mode == LOOP_VECTOR)
		c->vector = false;
}

/* Checks that the parallel loops are one nest around all stores: each parallel loop contains
 * only the next parallel loop. */
static void
check_parallel(Check *c, const LoopStatement *s, int at)
{
	const LoopStatement *around = c->depth ? &c->k->body.at[at - 1] : NULL;
	int64_t all = 1;

	if (around && (around->kind != LOOP_STATEMENT_FOR || around->mode != LOOP_PARALLEL ||
	               around->match != s->match + 1))
		report(c, "a parallel loop inside of others stands directly inside of a parallel "
		          "one, alone");
	if (!around && c->nests++)
		report(c, "a second nest of parallel loops");
	if (s->n_accumulators)
		report(c, "a parallel loop has no accumulators");
	for (int i = 0; !around && i < parallel_depth(c->k, at); i++)
		if (!size_mul(all, c->k->body.at[at + i].extent, &all))
			report(c, "more than 2^63 parts");
}

/* Printers copy the body of an unrolled loop. So the number of copies is limited, also for nested
 * unrolled loops. */
static void
check_unroll(Check *c, const LoopStatement *s, int at)
{
	int64_t copies = 1;

	if (s->place)
		report(c, "an unrolled loop runs all of its iterations");
	if (s->extent > MAX_UNROLL)
		report(c, "an unrolled loop has at most %d iterations", MAX_UNROLL);
	for (int i = 0; i <= at && copies <= MAX_UNROLL_NEST; i++) {
		const LoopStatement *loop = &c->k->body.at[i];
		if (loop->kind == LOOP_STATEMENT_FOR && loop->match >= at &&
		    loop->mode == LOOP_UNROLL)
			copies *= loop->extent < MAX_UNROLL ? loop->extent : MAX_UNROLL;
	}
	if (copies > MAX_UNROLL_NEST)
		report(c, "unrolled loops within each other have at most %d iterations",
		       MAX_UNROLL_NEST);
}

/* The accumulator of a loop over a tile with two axes puts its row values into a tile with one axis. */
static void
check_row(Check *c, const LoopStatement *s, const Accumulator *a)
{
	const LoopBuffer *from = &c->k->buffers.at[s->buffer], *to = &c->k->buffers.at[a->tile];

	if (a->level != ACC_ROW || s->column < 0)
		report(c, "v%d is not of the rows of a tile with two axes", a->scalar);
	else if (LOOP_LANES % a->number != 0)
		report(c, "the partials of v%d are not a divisor of %d", a->scalar, LOOP_LANES);
	else if (to->kind != BUFFER_TILE || to->type->rank != 1 ||
	         to->type->dims[0] != from->type->dims[0] ||
	         compute_type(to->type->dtype) != a->type)
		report(c, "%s is no tile of %s for the rows of %s", to->name,
		       dtype_info[a->type].name, from->name);
}

/* How many partials an accumulator must have. In a vector loop: one number of lanes for all
 * accumulators of the loop. In a team loop: the number of members. In other loops: none, because
 * values are added in order. */
static void
check_partials(Check *c, const LoopStatement *s, const Accumulator *a)
{
	AccumulateLevel level = s->mode == LOOP_VECTOR ? ACC_LANES
	                        : s->mode == LOOP_TEAM ? ACC_TEAM
	                                               : ACC_IN_ORDER;

	if (a->level != level && level == ACC_IN_ORDER)
		report(c, "v%d cannot have partials here: this loop combines values in order",
		       a->scalar);
	else if (a->level != level)
		report(c, "v%d does not say how many %s it has", a->scalar,
		       level == ACC_LANES ? "lanes" : "members");
	else if (level == ACC_TEAM && a->number != s->extent)
		report(c, "v%d has %d partials, the loop %lld members", a->scalar, a->number,
		       (long long)s->extent);
	else if (level == ACC_LANES &&
	         (LOOP_LANES % a->number != 0 || a->number != s->accumulators->number))
		report(c, "the lanes of v%d are not a divisor of %d, the same in the whole loop",
		       a->scalar, LOOP_LANES);
}

static void
open_accumulators(Check *c, const LoopStatement *s)
{
	for (int i = 0; i < s->n_accumulators; i++) {
		const Accumulator *a = &s->accumulators[i];
		if (s->kind == LOOP_STATEMENT_FOR)
			check_partials(c, s, a);
		else
			check_row(c, s, a);
		c->open[a->scalar] = true;
		c->types[a->scalar] = a->type;
	}
}

/* A loop over the elements of a tile has as many variables as the tile has axes. */
static void
open_each(Check *c, const LoopStatement *s)
{
	Type t = c->k->buffers.at[s->buffer].type;

	if (c->k->buffers.at[s->buffer].kind != BUFFER_TILE || t->rank != 1 + (s->column >= 0))
		report(c, "%s is no tile with so many axes", c->k->buffers.at[s->buffer].name);
	define(c, s->result, S64, t->rank ? t->dims[0] : 1);
	if (s->column >= 0)
		define(c, s->column, S64, t->rank > 1 ? t->dims[1] : 1);
	open_accumulators(c, s);
}

static void
open_loop(Check *c, const LoopStatement *s, int at)
{
	if (s->mode == LOOP_PARALLEL)
		check_parallel(c, s, at);
	if (s->place && s->mode == LOOP_PARALLEL)
		report(c, "a parallel loop runs all of its iterations");
	if (s->mode == LOOP_UNROLL)
		check_unroll(c, s, at);
	if (s->place && check_terms(c, s->place))
		c->bounds[s->result] = s->place;
	c->dead += s->extent == 0;
	if (s->extent < 0)
		report(c, "a negative extent");
	open_accumulators(c, s);
}

/* A copy moves a few elements of one type, in whole bytes. */
static void
check_copy(Check *c, const LoopStatement *s)
{
	const LoopBuffer *to = &c->k->buffers.at[s->buffer];
	const LoopBuffer *from = &c->k->buffers.at[s->windows->buffer];
	int bits = dtype_info[to->type->dtype].bits;

	if (to->kind != BUFFER_LOCAL || from->kind > BUFFER_LOCAL ||
	    to->type->dtype != from->type->dtype)
		report(c, "a copy goes to a local array of the same type");
	if (s->extent < 1 || s->extent > MAX_COPY || bits < 8 || s->extent * bits > 8 * MAX_COPY) {
		report(c, "a copy has 1 to %d bytes", MAX_COPY);
		return;
	}
	check_range(c, s->buffer, s->place, s->extent - 1, false);
	check_range(c, s->windows->buffer, s->windows->place, s->extent - 1, s->n_operands > 0);
}

/* A window is a matrix of rows x columns: a tile, or a part of a local array. */
static void
check_window(Check *c, const LoopWindow *w, int64_t rows, int64_t columns, DType type)
{
	const LoopBuffer *b = &c->k->buffers.at[w->buffer];
	int64_t down, across;

	if (compute_type(b->type->dtype) != type)
		report(c, "%s is %s, not %s", b->name, dtype_info[b->type->dtype].name,
		       dtype_info[type].name);
	if (b->kind == BUFFER_TILE && (w->place || b->type->rank != 2 || b->type->dims[0] != rows ||
	                               b->type->dims[1] != columns))
		report(c, "%s is not a tile of %lldx%lld", b->name, (long long)rows,
		       (long long)columns);
	if (b->kind != BUFFER_TILE && (b->kind != BUFFER_LOCAL || !w->place))
		report(c, "%s is neither a tile nor a window of a local array", b->name);
	else if (b->kind == BUFFER_LOCAL &&
	         (w->row < 0 || w->column < 0 || !size_mul(w->row, rows - 1, &down) ||
	          !size_mul(w->column, columns - 1, &across) || down >= b->type->n ||
	          across >= b->type->n))
		report(c, "a window beyond %s", b->name);
	else if (w->place)
		check_range(c, w->buffer, w->place, down + across, false);
}

static void
check_mma(Check *c, const LoopStatement *s)
{
	const LoopBuffer *b = &c->k->buffers.at[s->buffer];
	Type t = b->type;

	if (b->kind != BUFFER_TILE || t->rank != 2 || (t->dtype != F32 && t->dtype != F64))
		report(c, "%s is no tile of f32 or f64 with two axes", b->name);
	else if (s->extent < 1)
		report(c, "no products to add");
	else if (s->windows[0].buffer == s->buffer || s->windows[1].buffer == s->buffer)
		report(c, "%s is added to itself", b->name);
	else {
		check_window(c, &s->windows[0], t->dims[0], s->extent, t->dtype);
		check_window(c, &s->windows[1], s->extent, t->dims[1], t->dtype);
	}
}

static void
check_statement(Check *c, const LoopStatement *s, int at)
{
	check_straight(c, s);
	if (s->kind == LOOP_STATEMENT_OP)
		check_op(c, s);
	if (s->kind == LOOP_STATEMENT_LOAD || s->kind == LOOP_STATEMENT_STORE)
		check_place(c, s);
	if (s->kind == LOOP_STATEMENT_AFFINE)
		check_terms(c, s->place);
	if (s->kind == LOOP_STATEMENT_CAST || s->kind == LOOP_STATEMENT_IF ||
	    s->kind == LOOP_STATEMENT_STORE ||
	    ((s->kind == LOOP_STATEMENT_LOAD || s->kind == LOOP_STATEMENT_COPY) && s->n_operands))
		check_operand(c, s);
	if (s->kind == LOOP_STATEMENT_COPY)
		check_copy(c, s);
	if (s->kind == LOOP_STATEMENT_MMA)
		check_mma(c, s);
	if (s->kind == LOOP_STATEMENT_WAIT && s->i < 0)
		report(c, "a negative number of groups");
	if (s->kind == LOOP_STATEMENT_CAST)
		check_conversion(c, s);
	if (s->kind == LOOP_STATEMENT_ACCUMULATE)
		check_accumulate(c, s);
	if (s->result >= 0)
		check_result(c, s);
	if (s->kind == LOOP_STATEMENT_END) {
		c->dead -= c->k->body.at[s->match].kind == LOOP_STATEMENT_FOR &&
		           c->k->body.at[s->match].extent == 0;
		close_block(c, s->match, at);
		c->depth--;
		return;
	}
	if (s->kind == LOOP_STATEMENT_FOR)
		open_loop(c, s, at);
	c->depth += statement_opens(s);
	if (s->kind == LOOP_STATEMENT_EACH)
		open_each(c, s);
	else if (s->result >= 0)
		define(c, s->result, s->type, s->kind == LOOP_STATEMENT_FOR ? s->extent : 0);
}

static void
check_library(Check *c)
{
	const LibraryCall *call = c->k->library;
	Text why = {0};

	if (!call || (library_call_check(call, &why) && library_stays_inside(c->k, call, &why)))
		return;
	diag_error(c->diag, EXIT_INVALID, "%s: kernel @%s: library call: %s", c->m->name,
	           c->k->name, why.at);
	text_free(&why);
	c->ok = false;
}

/* Does an output begin as this input? */
static bool
begins_as(const Kernel *k, int buffer)
{
	for (int i = k->n_inputs; i < k->n_inputs + k->n_outputs; i++)
		if (k->buffers.at[i].from == 1 + buffer)
			return true;
	return false;
}

/* The kernel itself does not access an input as which an output begins. */
static void
check_beginnings(Check *c, const LoopStatement *s)
{
	bool accesses = s->kind == LOOP_STATEMENT_LOAD || s->kind == LOOP_STATEMENT_STORE;

	for (int w = 0; w < statement_windows(s); w++)
		if (begins_as(c->k, s->windows[w].buffer))
			report(c, "an output begins as %s",
			       c->k->buffers.at[s->windows[w].buffer].name);
	if (accesses && begins_as(c->k, s->buffer))
		report(c, "an output begins as %s", c->k->buffers.at[s->buffer].name);
}

bool
kernel_verify(const Module *m, const Kernel *k, Diag *diag)
{
	Arena *arena = arena_new();
	Check c = {.m = m, .k = k, .diag = diag, .arena = arena, .ok = true};

	check_library(&c);
	c.functions = scalar_functions_new(arena);
	c.types = NEW_ARRAY(arena, DType, k->n_scalars);
	c.defined = NEW_ARRAY(arena, bool, k->n_scalars);
	c.open = NEW_ARRAY(arena, bool, k->n_scalars);
	c.extents = NEW_ARRAY(arena, int64_t, k->n_scalars);
	c.bounds = NEW_ARRAY(arena, const Affine *, k->n_scalars);
	for (c.statement = 0; c.statement < k->body.n; c.statement++) {
		check_statement(&c, &k->body.at[c.statement], c.statement);
		check_beginnings(&c, &k->body.at[c.statement]);
	}
	KernelFaults faults = {0};
	if (c.ok)
		kernel_team_faults(k, arena, &faults);
	for (int i = 0; i < faults.n; i++) {
		c.statement = faults.at[i].statement;
		report(&c, "%s", faults.at[i].text);
	}
	if (c.ok && (c.statement = kernel_shared_byte(k)) >= 0)
		report(&c, "two parts may store into one byte of %s",
		       k->buffers.at[k->body.at[c.statement].buffer].name);
	arena_free(arena);
	return c.ok;
}

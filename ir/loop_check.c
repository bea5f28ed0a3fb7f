/* Faults in a kernel: scopes, types, places that could lie outside their buffers. */
#include "ir/loop.h"

typedef struct {
	const Kernel *k;
	Diag *diag;
	DType *types;     /* by scalar */
	int *defined;     /* by scalar: 0 not, 1 visible */
	int64_t *extents; /* by scalar: loop variables */
	int statement;
	int dead; /* open loops of extent 0: what is inside never runs */
	bool ok;
} Check;

static void PRINTF(2, 3) fault(Check *c, const char *fmt, ...)
{
	va_list args;
	char what[256];

	va_start(args, fmt);
	vsnprintf(what, sizeof(what), fmt, args);
	va_end(args);
	diag_error(c->diag, EXIT_INVALID, "kernel @%s: statement %d: %s", c->k->name, c->statement,
	           what);
	c->ok = false;
}

static bool
visible(Check *c, LoopValue v)
{
	if (v >= 0 && v < c->k->n_scalars && c->defined[v])
		return true;
	fault(c, "v%d is not visible here", v);
	return false;
}

static void
define(Check *c, LoopValue v, DType type, int64_t extent)
{
	if (v < 0 || v >= c->k->n_scalars || c->defined[v]) {
		fault(c, "v%d is defined twice", v);
		return;
	}
	c->defined[v] = 1;
	c->types[v] = type;
	c->extents[v] = extent;
}

/* A place made of loop variables alone is proven to lie inside; one with computed scalars was clamped
 * by its emitter and is checked where the interpreter runs it. */
static void
check_place(Check *c, const LoopStatement *s)
{
	int64_t low = s->place->constant, high = low;
	bool known = true;

	if (s->buffer < 0 || s->buffer >= c->k->buffers.n) {
		fault(c, "no buffer");
		return;
	}
	for (int i = 0; i < s->place->n; i++) {
		AffineTerm t = s->place->terms[i];
		if (!visible(c, t.scalar))
			return;
		if (c->types[t.scalar] != S64)
			fault(c, "v%d in a place is not s64", t.scalar);
		int64_t n = c->extents[t.scalar];
		known &= n > 0;
		*(t.coefficient < 0 ? &low : &high) += t.coefficient * (n - 1);
	}
	if (known && !c->dead && (low < 0 || high >= c->k->buffers.at[s->buffer].type->n))
		fault(c, "places %lld to %lld of %s, which has %lld elements", (long long)low,
		      (long long)high, c->k->buffers.at[s->buffer].name,
		      (long long)c->k->buffers.at[s->buffer].type->n);
	if (s->kind == LOOP_STATEMENT_STORE && c->k->buffers.at[s->buffer].kind == BUFFER_IN)
		fault(c, "a store into an input");
}

static bool
is_comparison(LoopOp op)
{
	return (op >= LOOP_eq && op <= LOOP_ge) || op == LOOP_is_nan || op == LOOP_is_finite;
}

static void
check_op(Check *c, const LoopStatement *s)
{
	if (s->n_operands != loop_ops[s->op].arity) {
		fault(c, "%s takes %d operands", loop_ops[s->op].name, loop_ops[s->op].arity);
		return;
	}
	for (int i = 0; i < s->n_operands; i++) {
		if (!visible(c, s->operands[i]))
			return;
		DType t = c->types[s->operands[i]];
		DType want = is_comparison(s->op)             ? c->types[s->operands[0]]
		             : s->op == LOOP_select && i == 0 ? BOOL
		                                              : s->type;
		if (t != want)
			fault(c, "operand v%d of %s is %s, not %s", s->operands[i],
			      loop_ops[s->op].name, dtype_info[t].name, dtype_info[want].name);
	}
	if (is_comparison(s->op) && s->type != BOOL)
		fault(c, "%s gives bool", loop_ops[s->op].name);
}

/* Scalars of a block end with it; accumulators of a loop begin there. */
static void
close_block(Check *c, int from, int to)
{
	for (int i = from; i < to; i++)
		if (c->k->body.at[i].result >= 0)
			c->defined[c->k->body.at[i].result] = 0;
	const LoopStatement *s = &c->k->body.at[from];
	for (int i = 0; i < s->n_accumulators; i++)
		define(c, s->accumulators[i].scalar, s->accumulators[i].type, 0);
	for (int i = from + 1; i < to; i++) /* those of inner loops end too */
		for (int a = 0; a < c->k->body.at[i].n_accumulators; a++)
			c->defined[c->k->body.at[i].accumulators[a].scalar] = 0;
}

static void
check_statement(Check *c, const LoopStatement *s, int at)
{
	if (s->kind == LOOP_STATEMENT_OP)
		check_op(c, s);
	if (s->kind == LOOP_STATEMENT_LOAD || s->kind == LOOP_STATEMENT_STORE)
		check_place(c, s);
	if (s->kind == LOOP_STATEMENT_STORE && visible(c, s->operands[0]) && s->buffer >= 0 &&
	    c->types[s->operands[0]] != compute_type(c->k->buffers.at[s->buffer].type->dtype))
		fault(c, "a store of %s into %s", dtype_info[c->types[s->operands[0]]].name,
		      c->k->buffers.at[s->buffer].name);
	if (s->kind == LOOP_STATEMENT_CAST || s->kind == LOOP_STATEMENT_IF)
		visible(c, s->operands[0]);
	if (s->kind == LOOP_STATEMENT_END) {
		c->dead -= c->k->body.at[s->match].kind == LOOP_STATEMENT_FOR &&
		           c->k->body.at[s->match].extent == 0;
		close_block(c, s->match, at);
		return;
	}
	c->dead += s->kind == LOOP_STATEMENT_FOR && s->extent == 0;
	if ((s->kind == LOOP_STATEMENT_FOR || s->kind == LOOP_STATEMENT_IF) && s->match <= at)
		fault(c, "a block without end");
	if (s->kind == LOOP_STATEMENT_FOR && s->extent < 0)
		fault(c, "a negative extent");
	if (s->result >= 0)
		define(c, s->result, s->type, s->kind == LOOP_STATEMENT_FOR ? s->extent : 0);
}

bool
kernel_verify(const Kernel *k, Diag *diag)
{
	Arena *arena = arena_new();
	Check c = {.k = k, .diag = diag, .ok = true};

	c.types = NEW_ARRAY(arena, DType, k->n_scalars);
	c.defined = NEW_ARRAY(arena, int, k->n_scalars);
	c.extents = NEW_ARRAY(arena, int64_t, k->n_scalars);
	for (c.statement = 0; c.statement < k->body.n; c.statement++)
		check_statement(&c, &k->body.at[c.statement], c.statement);
	arena_free(arena);
	return c.ok;
}

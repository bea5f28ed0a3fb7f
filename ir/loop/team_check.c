/* Checks the use of teams (threads that run a part together, the members) in a kernel: where
 * team loops stand, and which member may use an array. An accumulator, a private array or a
 * barrier may only be used where all members of its team do the same.
 *
 * Control around a team loop is the same for all members by construction: a statement outside of
 * a team loop runs once for the team of that level, so its scalars have one value. */
#include "ir/loop/loop.h"

typedef struct {
	const Kernel *k;
	Arena *arena;
	KernelFaults *faults;
	int statement;
	VEC(int) open; /* the FOR, IF and EACH statements around the current one, outermost first */
	int depth;     /* number of team loops around the current statement */
	int *owners;   /* by accumulator scalar: the statement of the loop to which it belongs */
	bool *unrolled; /* by scalar: is it the variable of an unrolled loop, or of a short vector loop? */
	int *declared; /* by tile: number of team loops around its declaration */
	/* the EACH statement around the current one; NULL: no EACH is open */
	const LoopStatement *each;
} Team;

static void PRINTF(2, 3) report(Team *t, const char *fmt, ...)
{
	KernelFault fault = {.statement = t->statement};
	va_list args;

	va_start(args, fmt);
	fault.text = arena_vprintf(t->arena, fmt, args);
	va_end(args);
	vec_push(t->arena, t->faults, fault);
}

/* Is the statement inside the loops of all levels, so that one member runs it? */
static bool
is_member(const Team *t)
{
	return t->depth == t->k->n_team;
}

static bool
is_team_loop(const LoopStatement *s)
{
	return s->kind == LOOP_STATEMENT_FOR && s->mode == LOOP_TEAM;
}

static void
check_team_loop(Team *t, const LoopStatement *s)
{
	if (is_member(t))
		report(t, t->depth ? "inside the team's last loop" : "the kernel has no team");
	else if (s->extent != t->k->team[t->depth])
		report(t, "%lld iterations of a team of %d", (long long)s->extent,
		       t->k->team[t->depth]);
	if (s->place)
		report(t, "a team loop runs all of its iterations");
}

/* An accumulator takes values only of the member that owns it. */
static void
check_accumulate(Team *t, const LoopStatement *s)
{
	int owner = t->owners[s->operands[1]];

	for (int i = t->open.n - 1; i >= 0 && t->open.at[i] != owner; i--)
		if (is_team_loop(&t->k->body.at[t->open.at[i]]) ||
		    &t->k->body.at[t->open.at[i]] == t->each)
			report(t, "v%d belongs to a loop around the team's", s->operands[1]);
}

static void
check_array(Team *t, const LoopStatement *s)
{
	BufferKind kind = t->k->buffers.at[s->buffer].kind;

	t->declared[s->buffer] = t->depth;
	if (t->k->n_team && is_member(t) && kind == BUFFER_LOCAL)
		report(t, "a member's own array is private");
	if (t->k->n_team && is_member(t) && kind == BUFFER_TILE)
		report(t, "there is no team to spread the tile over");
	if (kind == BUFFER_TILE && t->k->buffers.at[s->buffer].type->rank != 1 &&
	    t->k->buffers.at[s->buffer].type->rank != 2)
		report(t, "a tile has one axis or two");
}

/* Places of a private array must be constants after unrolling, because private arrays have no addresses on some
 * machines. */
static void
check_private(Team *t, const LoopStatement *s)
{
	if (t->k->n_team == 0)
		return;
	if (!is_member(t))
		report(t, "a private array outside of the team's loops");
	for (int i = 0; i < s->place->n; i++)
		if (!t->unrolled[s->place->terms[i].scalar])
			report(t,
			       "v%d in a place of a private array is not of an unrolled loop, or of a short vector's",
			       s->place->terms[i].scalar);
}

/* A tile is used only on the level of the team over which it is spread. */
static void
check_level(Team *t, int tile)
{
	if (t->k->buffers.at[tile].kind == BUFFER_TILE && t->depth != t->declared[tile])
		report(t, "%s belongs to the team around", t->k->buffers.at[tile].name);
}

static void
open_each(Team *t, const LoopStatement *s)
{
	check_level(t, s->buffer);
	for (int i = 0; i < s->n_accumulators; i++)
		check_level(t, s->accumulators[i].tile);
	t->each = s;
}

/* Is the element of a tile the current element of the EACH loop, or the value of the current
 * element's row? */
static bool
is_own_element(const LoopStatement *each, Type tile, const LoopStatement *s)
{
	const Affine *a = s->place;
	bool row = a->n > 0 && a->constant == 0 && a->terms[0].scalar == each->result;

	if (tile->rank == 1)
		return row && a->n == 1 && (each->column < 0 || s->kind == LOOP_STATEMENT_LOAD);
	return row && a->n == 2 && a->terms[1].scalar == each->column;
}

static void
check_element(Team *t, const LoopStatement *s)
{
	const LoopBuffer *b = &t->k->buffers.at[s->buffer];

	if (b->kind != BUFFER_TILE)
		return;
	if (!t->each) {
		report(t, "an element of tile %s outside of an each", b->name);
		return;
	}
	Type own = t->k->buffers.at[t->each->buffer].type;
	if (!is_own_element(t->each, b->type, s) || b->type->dims[0] != own->dims[0] ||
	    (b->type->rank == 2 && b->type->dims[1] != own->dims[1]))
		report(t, "not the element of the each around");
	check_level(t, s->buffer);
}

static void
check_mma(Team *t, const LoopStatement *s)
{
	check_level(t, s->buffer);
	check_level(t, s->windows[0].buffer);
	check_level(t, s->windows[1].buffer);
}

/* One member makes a copy; the whole team commits and waits for groups of copies. */
static void
check_copies(Team *t, const LoopStatement *s)
{
	if (t->k->n_team == 0)
		return;
	if (s->kind == LOOP_STATEMENT_COPY && !is_member(t))
		report(t, "a copy outside of the team's loops");
	if (s->kind != LOOP_STATEMENT_COPY && is_member(t))
		report(t, "inside the team's last loop");
}

/* The body of an EACH loop is run by one member per element, so it may not contain a statement
 * that the whole team runs together. */
static void
check_within_each(Team *t, const LoopStatement *s)
{
	if (t->each && (is_team_loop(s) || s->kind == LOOP_STATEMENT_LOCAL ||
	                (s->kind >= LOOP_STATEMENT_BARRIER && s->kind <= LOOP_STATEMENT_WAIT)))
		report(t, "inside an each");
}

static void
check_barrier(Team *t)
{
	if (is_member(t))
		report(t, t->k->n_team ? "a barrier inside the team's last loop"
		                       : "the kernel has no team");
}

static void
open_block(Team *t, const LoopStatement *s)
{
	if (is_team_loop(s))
		check_team_loop(t, s);
	t->depth += is_team_loop(s);
	if (s->kind == LOOP_STATEMENT_FOR)
		t->unrolled[s->result] = s->mode == LOOP_UNROLL ||
		                         (s->mode == LOOP_VECTOR && !s->place &&
		                          s->extent <= MAX_UNROLL);
	if (s->kind == LOOP_STATEMENT_EACH)
		open_each(t, s);
	for (int i = 0; i < s->n_accumulators; i++)
		t->owners[s->accumulators[i].scalar] = t->statement;
	vec_push(t->arena, &t->open, t->statement);
}

static void
check_statement(Team *t, const LoopStatement *s)
{
	check_within_each(t, s);
	switch (s->kind) {
	case LOOP_STATEMENT_FOR:
	case LOOP_STATEMENT_IF:
	case LOOP_STATEMENT_EACH: open_block(t, s); break;
	case LOOP_STATEMENT_MMA: check_mma(t, s); break;
	case LOOP_STATEMENT_COPY:
	case LOOP_STATEMENT_COMMIT:
	case LOOP_STATEMENT_WAIT: check_copies(t, s); break;
	case LOOP_STATEMENT_END:
		t->depth -= is_team_loop(&t->k->body.at[s->match]);
		if (t->each == &t->k->body.at[s->match])
			t->each = NULL;
		t->open.n--;
		break;
	case LOOP_STATEMENT_ACCUMULATE: check_accumulate(t, s); break;
	case LOOP_STATEMENT_LOCAL: check_array(t, s); break;
	case LOOP_STATEMENT_BARRIER: check_barrier(t); break;
	case LOOP_STATEMENT_LOAD:
	case LOOP_STATEMENT_STORE:
		if (t->k->buffers.at[s->buffer].kind == BUFFER_PRIVATE)
			check_private(t, s);
		check_element(t, s);
		break;
	default: break;
	}
}

void
kernel_team_faults(const Kernel *k, Arena *arena, KernelFaults *out)
{
	Team t = {.k = k,
	          .arena = arena,
	          .faults = out,
	          .owners = NEW_ARRAY(arena, int, k->n_scalars),
	          .unrolled = NEW_ARRAY(arena, bool, k->n_scalars),
	          .declared = NEW_ARRAY(arena, int, k->buffers.n)};

	for (t.statement = 0; t.statement < k->body.n; t.statement++)
		check_statement(&t, &k->body.at[t.statement]);
}

/* Prints the loops of a team as CUDA C. A team is a block of threads (members), which run the
 * iterations of these loops at the same time. Outside of these loops, every thread computes, but
 * only one thread stores.
 *
 * In a sum, each member adds up a partial sum of its own. The n partials are then combined as
 * loop IR says: partial l with partial l + n/2, then the n/2 results in the same way, and so on.
 * While there are more partials than a warp has threads, the first warp combines them in shared
 * memory. It combines the last 32 partials by shuffles. */
#include "codegen/cuda/cuda.h"
#include "codegen/cuda/print.h"

/* How many members the team loop at this level has (level 0 is the outer one). */
static int
members(const CPrinter *p, int level)
{
	return p->k->team[level];
}

static int
threads_of_member(const CPrinter *p, int level)
{
	return level + 1 < p->k->n_team ? p->k->team[level + 1] : 1;
}

/* An expression for the index of the member that the thread is part of. At the inner level a
 * member is one thread; at the outer level it is a group of threads. */
static const char *
member(CPrinter *p, int level)
{
	int below = threads_of_member(p, level);

	if (p->k->n_team == 1)
		return "(int)threadIdx.x";
	return level == 0 ? arena_printf(p->arena, "(int)threadIdx.x / %d", below)
	                  : arena_printf(p->arena, "(int)threadIdx.x %% %d", members(p, level));
}

/* If several threads have the value to be stored: an expression that is 0 for the one thread that
 * stores. Otherwise NULL: only one thread has the value, or each thread stores to its register. */
static const char *
who_stores(CPrinter *p, const LoopStatement *s)
{
	bool registers = p->k->buffers.at[s->buffer].kind == BUFFER_TILE;

	if (registers || p->n_open == p->k->n_team || (p->each && p->each->column >= 0))
		return NULL;
	if (p->each) /* all lanes of a row have the row's value */
		return "threadIdx.x % 4";
	return p->n_open ? member(p, p->n_open) : "threadIdx.x";
}

void
cuda_print_store(CPrinter *p, const LoopStatement *s, int at)
{
	const char *first = who_stores(p, s);
	bool alone = !first;

	c_indent(p);
	if (!alone)
		text_printf(p->out, "if (%s == 0)\n", first);
	p->depth += !alone;
	if (!alone)
		c_indent(p);
	p->pack = p->packs[at];
	c_print_assignment(p, s);
	p->pack = NULL;
	p->depth -= !alone;
}

/* ---- partials */
/* Do partials need shared memory? A single warp exchanges them in registers. */
static bool
is_shared(const CPrinter *p, int level)
{
	return level == 0 && (cuda_threads(p->k) > WARP || p->k->n_team > 1);
}

static void
line(CPrinter *p, const char *text)
{
	c_indent(p);
	text_printf(p->out, "%s\n", text);
}

/* The mask of the lanes that take part in a warp operation of the inner team: only the thread's
 * own group. Another group (outer member) in the same warp may have nothing to do and not reach
 * the operation. */
static const char *
lanes_of_team(CPrinter *p, int level)
{
	int threads = cuda_threads(p->k);

	if (level == 1 && p->k->team[1] < WARP)
		return arena_printf(p->arena, "gradc_lanes(%d)", p->k->team[1]);
	return arena_printf(p->arena, "0x%xu", threads < WARP ? (1u << threads) - 1 : 0xffffffffu);
}

void
cuda_print_barrier(CPrinter *p, const LoopStatement *s, int at)
{
	(void)s, (void)at;
	c_indent(p);
	if (p->n_open)
		text_printf(p->out, "__syncwarp(%s);\n", lanes_of_team(p, 1));
	else
		text_add(p->out, "__syncthreads();\n");
}

/* Combines partials within groups of `width` lanes; lane 0 of each group gets the result. */
static void
shuffle_down(CPrinter *p, const Accumulator *a, int width, const char *lanes)
{
	const char *v = arena_printf(p->arena, "v%d", a->scalar);

	c_indent(p);
	text_printf(p->out, "for (int n = %d; n > 0; n /= 2)\n", width / 2);
	p->depth++;
	c_print_combine(p, a->kind, a->type, v,
	                arena_printf(p->arena, "__shfl_down_sync(%s, %s, n, %d)", lanes, v, width));
	p->depth--;
}

static void
combine_in_registers(CPrinter *p, const Accumulator *a, int level)
{
	const char *lanes = lanes_of_team(p, level);

	shuffle_down(p, a, a->number, lanes);
	c_indent(p);
	text_printf(p->out, "v%d = __shfl_sync(%s, v%d, 0, %d);\n", a->scalar, lanes, a->scalar,
	            a->number);
}

static void
combine_in_memory(CPrinter *p, const Accumulator *a)
{
	const char *at = arena_printf(p->arena, "partials_%s", dtype_info[a->type].name);
	int width = a->number < WARP ? a->number : WARP, below = threads_of_member(p, 0);

	line(p, "__syncthreads();");
	if (below > 1)
		line(p, arena_printf(p->arena, "if (threadIdx.x %% %d == 0)", below));
	p->depth += below > 1;
	line(p, arena_printf(p->arena, "%s[%s] = v%d;", at, member(p, 0), a->scalar));
	p->depth -= below > 1;
	line(p, "__syncthreads();");
	line(p, "if (threadIdx.x < 32) {");
	p->depth++;
	if (a->number > WARP) {
		line(p, arena_printf(p->arena, "for (int n = %d; n >= 32; n /= 2)", a->number / 2));
		line(p, "\tfor (int l = threadIdx.x; l < n; l += 32)");
		p->depth += 2;
		c_print_combine(p, a->kind, a->type, arena_printf(p->arena, "%s[l]", at),
		                arena_printf(p->arena, "%s[l + n]", at));
		p->depth -= 2;
	}
	line(p, arena_printf(p->arena, "v%d = %s[threadIdx.x %% %d];", a->scalar, at, width));
	shuffle_down(p, a, width, lanes_of_team(p, 0));
	/* All lanes have read before the first one writes. */
	line(p, arena_printf(p->arena, "__syncwarp(%s);", lanes_of_team(p, 0)));
	line(p, "if (threadIdx.x == 0)");
	line(p, arena_printf(p->arena, "\t%s[0] = v%d;", at, a->scalar));
	p->depth--;
	line(p, "}");
	line(p, "__syncthreads();");
	line(p, arena_printf(p->arena, "v%d = %s[0];", a->scalar, at));
}

void
cuda_print_team_loop(CPrinter *p, const LoopStatement *s, int at)
{
	int level = p->n_open;

	for (int i = 0; i < s->n_accumulators; i++)
		c_declare_accumulator(p, &s->accumulators[i]);
	line(p, "{");
	p->depth++;
	c_indent(p);
	text_printf(p->out, "const %s v%d = %s;\n", c_type_name(p, s->result), s->result,
	            member(p, level));
	p->open[p->n_open++] = s;
	c_print_block(p, at + 1, s->match);
	p->n_open--;
	p->depth--;
	line(p, "}");
	for (int i = 0; i < s->n_accumulators; i++) {
		if (s->accumulators[i].number == 1)
			continue;
		if (is_shared(p, level))
			combine_in_memory(p, &s->accumulators[i]);
		else
			combine_in_registers(p, &s->accumulators[i], level);
	}
}

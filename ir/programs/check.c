/* The verifier of programs: every index lies inside its list, launches have the arguments of their kernels, loops and
 * branches close, events exist. Takes linear time. Passes over programs rely on it. */
#include "ir/loop/loop.h"
#include "ir/programs/programs.h"

#include <string.h>

typedef struct {
	const Module *m;
	const Program *p;
	Arena *scratch;
	Diag *diag;
	bool ok;
	StrMap *keys;   /* what identifies the programs before this one */
	VEC(bool) loop; /* of the open blocks, outermost first: is the block a loop? */
} Check;

static void PRINTF(2, 3) report(Check *c, const char *fmt, ...)
{
	va_list args;
	Text line = {0};

	module_place(&line, c->m, c->p->line);
	va_start(args, fmt);
	text_printf(&line, ": program %s: %s", role_names[c->p->role],
	            arena_vprintf(c->scratch, fmt, args));
	va_end(args);
	diag_error(c->diag, EXIT_INVALID, "%s", line.at);
	text_free(&line);
	c->ok = false;
}

/* The number of arguments that the instruction must have; -1: 2 or 4 */
static int
arguments_needed(const Check *c, const Instruction *n)
{
	const Kernel *k = n->kind == RUN_KERNEL ? c->m->kernels.at[n->what] : NULL;

	switch (n->kind) {
	case RUN_KERNEL: return k->n_inputs + k->n_outputs;
	case COPY: return 2;
	case COLLECTIVE: return -1;
	case FILL_ZERO:
	case BRANCH:
	case LEAVE: return 1;
	default: return 0;
	}
}

static bool
has_what(const Check *c, const Instruction *n)
{
	switch (n->kind) {
	case RUN_KERNEL: return n->what < (uint32_t)c->m->kernels.n;
	case COLLECTIVE: return n->what < (uint32_t)c->p->collectives.n;
	case RECORD:
	case WAIT: return n->what < N_SHARED_EVENTS + c->p->n_events;
	default: return true;
	}
}

static void
check_arguments(Check *c, int at, uint32_t depth)
{
	const Instruction *n = &c->p->instructions.at[at];
	const Program *p = c->p;
	int needed = arguments_needed(c, n);

	if (needed < 0 ? n->n_args != 2 && n->n_args != 4 : n->n_args != needed)
		report(c, "instruction %d (%s) has %d arguments", at, instruction_names[n->kind],
		       n->n_args);
	if (n->args > (uint32_t)p->arguments.n || n->n_args > (uint32_t)p->arguments.n - n->args) {
		report(c, "instruction %d (%s) has arguments outside of the list", at,
		       instruction_names[n->kind]);
		return;
	}
	for (uint32_t i = 0; i < n->n_args; i++) {
		const Argument *a = &p->arguments.at[n->args + i];
		if (a->slot >= (uint32_t)p->slots.n)
			report(c, "argument %u of instruction %d has no slot", i, at);
		if (a->loop > depth || (a->stride && !a->loop))
			report(c, "argument %u of instruction %d advances with no loop", i, at);
	}
}

/* Keeps account of the open loops and branches. */
static void
check_blocks(Check *c, int at)
{
	InstructionKind kind = (InstructionKind)c->p->instructions.at[at].kind;

	if (kind == END && c->loop.n == 0)
		report(c, "instruction %d ends no loop or branch", at);
	else
		c->loop.n -= kind == END;
	if (kind == LEAVE && (c->loop.n == 0 || !c->loop.at[c->loop.n - 1]))
		report(c, "instruction %d leaves no loop", at);
}

static void
check_instructions(Check *c)
{
	const Program *p = c->p;

	c->loop.n = 0;
	for (int i = 0; i < p->instructions.n; i++) {
		const Instruction *n = &p->instructions.at[i];
		if (n->kind >= N_INSTRUCTIONS || !has_what(c, n)) {
			report(c,
			       "instruction %d names a kernel, collective or event that does not exist",
			       i);
			return;
		}
		check_blocks(c, i);
		check_arguments(c, i, (uint32_t)c->loop.n);
		if (instruction_opens((InstructionKind)n->kind))
			vec_push(c->scratch, &c->loop, n->kind == LOOP);
	}
	if (c->loop.n)
		report(c, "a loop or branch has no end");
}

static void
check_ports(Check *c)
{
	const Program *p = c->p;

	for (int i = 0; i < p->inputs.n; i++)
		if (p->inputs.at[i].slot >= (uint32_t)p->slots.n)
			report(c, "input %d has no slot", i);
	for (int i = 0; i < p->outputs.n; i++)
		if (p->outputs.at[i].slot >= (uint32_t)p->slots.n)
			report(c, "output %d has no slot", i);
	if (p->scalars > (uint32_t)p->slots.n)
		report(c, "its scalars have no slot");
}

/* Does the slot lie inside its state, which has lifetime constant? */
static bool
lies_in_constant(const Module *m, const Slot *s)
{
	const State *state = m->states.at[s->state - 1];

	return state->lifetime == LIFE_CONSTANT && s->offset >= state->offset &&
	       s->offset + s->bytes <= state->offset + type_bytes(state->type);
}

/* A slot names a state if it lies in a region for parts. A slot in the region of states names the constant
 * state that holds it, if there is one. Other slots name no state; the tables of executables have the same rule. */
static void
check_slot(Check *c, const char *what, int number, const Slot *s)
{
	bool has_words = s->space < N_SPACES && s->share < N_SLOT_SHARES && s->group < N_GROUPS &&
	                 s->dtype < N_DTYPES && s->name < (uint32_t)c->p->names.n &&
	                 s->state <= (uint32_t)c->m->states.n;

	if (!has_words || s->offset < 0 || s->bytes < 0 || s->before < 0 ||
	    s->offset > INT64_MAX - s->bytes)
		report(c, "%s %d is no place in memory", what, number);
	else if (space_has_parts(s->space) && !s->state)
		report(c, "%s %d lies in %s and names no state", what, number,
		       space_table[s->space].name);
	else if (s->state && s->space == SPACE_STATE && !lies_in_constant(c->m, s))
		report(c, "%s %d does not lie in a constant state @%s", what, number,
		       c->m->states.at[s->state - 1]->name);
	else if (s->state && s->space != SPACE_STATE && !space_has_parts(s->space))
		report(c, "%s %d lies in %s and names a state", what, number,
		       space_table[s->space].name);
}

static void
check_slots(Check *c)
{
	const Program *p = c->p;

	for (int i = 0; i < p->slots.n; i++)
		check_slot(c, "slot", i, &p->slots.at[i]);
	for (int i = 0; i < p->travels.n; i++) {
		const Travel *t = &p->travels.at[i];
		check_slot(c, "the whole of travel", i, &t->whole);
		check_slot(c, "the part of travel", i, &t->part);
		if (t->behind < -1 || t->behind >= p->instructions.n)
			report(c, "travel %d starts behind no instruction", i);
		if (i > 0 && t->behind < p->travels.at[i - 1].behind)
			report(c, "travel %d starts before the travel that is listed before it", i);
	}
}

static void
check_key(Check *c)
{
	const Program *p = c->p;

	if (!role_is_program(p->role))
		report(c, "an executable has no program of this role");
	if (!c->m->stage)
		report(c, "the module's header has no `programs`");
	if (p->n_events > (uint32_t)p->instructions.n)
		report(c, "has %u events and %d instructions", p->n_events, p->instructions.n);
	const char *key = arena_printf(c->scratch, "%d %d %d %d %s", (int)p->role, p->binding,
	                               p->stage, (int)p->mode, p->target ? p->target : "");
	if (strmap_get(c->keys, key))
		report(c, "two programs have the same role, binding, stage, mode and target");
	strmap_put(c->keys, key, (void *)p);
}

bool
programs_verify(const Module *m, Arena *scratch, Diag *diag)
{
	Check c = {.m = m, .scratch = scratch, .diag = diag, .ok = true};

	c.keys = strmap_new(scratch);
	for_each_program(m, p) {
		c.p = p;
		check_key(&c);
		check_slots(&c);
		check_ports(&c);
		check_instructions(&c);
	}
	return c.ok;
}

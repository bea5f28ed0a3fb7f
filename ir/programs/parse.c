/* Reads a program from text, line by line: slots, inputs and results, instructions, travels. Names of slots are resolved at
 * once: a slot must stand above the lines that name it, and states and kernels above the program. */
#include "ir/loop/loop.h"
#include "ir/programs/programs.h"
#include "ir/programs/words.h"
#include "ir/text.h"

#include <stdlib.h>
#include <string.h>

/* Bounds on numbers in the text. MOST_BYTES: sums of a few offsets and sizes never overflow. */
enum { MOST_NUMBER = 1 << 20, MOST_EVENTS = 1 << 24 };
static const int64_t MOST_BYTES = (int64_t)1 << 56;

typedef struct {
	Reader *r;
	Program *p;
	StrMap *slots; /* by name in the text: 1 + the slot's number */
} ProgramReader;

/* An enum's word, if the word before it is next. Returns 0 if it is not, or after reporting. */
static int
read_word_of(Reader *r, const char *word, const char *const *names)
{
	int k = read_word(r, word) ? read_enum(r, names) : 0;

	return k < 0 ? 0 : k;
}

/* A number from 0 to `most`, if the word before it is next. Returns 0 if it is not, or after reporting. */
static int64_t
read_number_of(Reader *r, const char *word, int64_t most)
{
	int64_t n = 0;

	return read_word(r, word) && read_small(r, most, &n) ? n : 0;
}

static uint32_t
read_only(Reader *r)
{
	uint32_t only = 0;
	int bit = 0;

	if (!read_word(r, "only"))
		return 0;
	for (; only_names[bit]; bit++)
		only |= read_word(r, only_names[bit]) ? 1u << bit : 0;
	if (!only)
		read_fault(r, "expected conditions after `only`, in their order");
	return only;
}

static StrRef
read_text(ProgramReader *pr)
{
	read_space(pr->r);
	const char *text = *pr->r->at == '"' ? text_unquote(pr->r->m->arena, &pr->r->at) : "";

	if (!text)
		read_fault(pr->r, "malformed string");
	return program_name(pr->p, text);
}

/* ---- slots */
static bool
read_space_word(Reader *r, uint32_t *space)
{
	for (*space = 0; *space < N_SPACES; ++*space)
		if (read_word(r, space_table[*space].name))
			return true;
	read_fault(r, "expected a region of memory");
	return false;
}

static void
read_share(Reader *r, Slot *s)
{
	const char *word = read_name(r);
	char *text = arena_strdup(r->m->arena, word ? word : "");

	for (char *c = text; *c; c++)
		*c = *c == '_' ? ' ' : *c;
	while (s->share < N_SLOT_SHARES && strcmp(share_names[s->share], text) != 0)
		s->share++;
	if (s->share == N_SLOT_SHARES) {
		s->share = SLOT_WHOLE;
		read_fault(r, "unknown word `%s`", word ? word : "");
	}
}

static bool
read_slot_dtype(Reader *r, uint32_t *out)
{
	DType d;

	if (!read_dtype_word(r, &d))
		return false;
	*out = d;
	return true;
}

static void
read_state_of(Reader *r, Slot *s)
{
	const char *name = read_symbol(r, '@');
	const State *state = name ? module_state(r->m, name) : NULL;

	if (state)
		s->state = (uint32_t)state->id + 1;
	else
		read_fault(r, "unknown state @%s", name ? name : "");
}

/* workspace+64 f32 bytes 1024 "fc" ...; false after reporting */
static bool
read_slot(ProgramReader *pr, Slot *s)
{
	Reader *r = pr->r;

	*s = (Slot){0};
	if (!read_space_word(r, &s->space) || !read_expect(r, '+') ||
	    !read_small(r, MOST_BYTES, &s->offset) || !read_slot_dtype(r, &s->dtype))
		return false;
	s->bytes = read_number_of(r, "bytes", MOST_BYTES);
	s->name = read_text(pr);
	s->before = read_number_of(r, "before", MOST_BYTES);
	if (read_word(r, "share"))
		read_share(r, s);
	s->group = (uint32_t)read_word_of(r, "group", comm_group_names);
	s->block = (uint32_t)read_number_of(r, "block", INT32_MAX);
	if (read_word(r, "state"))
		read_state_of(r, s);
	s->only = read_only(r);
	return true;
}

/* %3 = slot ... */
static void
read_slot_line(ProgramReader *pr)
{
	const char *name = read_symbol(pr->r, '%');
	Slot s;

	if (!name || !read_expect(pr->r, '='))
		return;
	if (!read_word(pr->r, "slot"))
		read_fault(pr->r, "expected `slot`");
	else if (strmap_get(pr->slots, name))
		read_fault(pr->r, "%%%s is defined twice", name);
	else if (read_slot(pr, &s))
		strmap_put(pr->slots, name, (void *)(uintptr_t)(1 + program_slot(pr->p, s)));
}

/* The number of the slot that is named next; false after reporting. */
static bool
read_slot_number(ProgramReader *pr, uint32_t *out)
{
	const char *name = read_symbol(pr->r, '%');
	uintptr_t number = name ? (uintptr_t)strmap_get(pr->slots, name) : 0;

	*out = number ? (uint32_t)number - 1 : 0;
	if (!number)
		read_fault(pr->r, "unknown slot %%%s", name ? name : "");
	return number != 0;
}

/* input %3 "x" input number 1 rows 0 : f32[8,4] */
static void
read_port(ProgramReader *pr, bool is_input)
{
	ProgramPort port = {0};
	int kind;

	if (!read_slot_number(pr, &port.slot))
		return;
	port.name = read_text(pr);
	kind = read_enum(pr->r, port_kind_names);
	if (kind < 0)
		return;
	port.kind = (PortKind)kind;
	port.number = (int)read_number_of(pr->r, "number", MOST_NUMBER);
	port.rows_axis = (int)read_number_of(pr->r, "rows", MAX_RANK - 1);
	if (!read_expect(pr->r, ':') || !(port.type = read_type(pr->r)))
		return;
	if (is_input)
		vec_push(pr->p->arena, &pr->p->inputs, port);
	else
		vec_push(pr->p->arena, &pr->p->outputs, port);
}

/* ---- instructions */
static bool
read_kernel_number(ProgramReader *pr, uint32_t *out)
{
	const char *name = read_symbol(pr->r, '@');
	const Kernel *k = name ? strmap_get(pr->r->m->kernel_names, name) : NULL;

	*out = k ? (uint32_t)k->id : 0;
	if (!k)
		read_fault(pr->r, "unknown kernel @%s", name ? name : "");
	return k != NULL;
}

/* all_reduce sum f32 n 1024 group data block 256 */
static bool
read_collective(ProgramReader *pr, uint32_t *out)
{
	CollectiveRecord c = {0};
	Reader *r = pr->r;
	int kind = read_enum(r, collective_names);
	int reduction = kind < 0 ? -1 : read_enum(r, comm_reduction_names);

	if (reduction < 0 || !read_slot_dtype(r, &c.dtype))
		return false;
	c.kind = (uint32_t)kind;
	c.reduction = (uint32_t)reduction;
	c.n = read_number_of(r, "n", MOST_BYTES);
	c.group = (uint32_t)read_word_of(r, "group", comm_group_names);
	c.block = (uint32_t)read_number_of(r, "block", INT32_MAX);
	c.peer = (uint32_t)read_number_of(r, "peer", INT32_MAX);
	c.of_part = read_word(r, "of_part");
	*out = (uint32_t)pr->p->collectives.n;
	vec_push(pr->p->arena, &pr->p->collectives, c);
	return true;
}

static bool
read_count(Reader *r, uint32_t *out)
{
	int64_t n;
	bool ok = read_small(r, INT32_MAX, &n);

	*out = ok ? (uint32_t)n : 0;
	return ok;
}

/* io_filled, or the number of an event of the program's own */
static bool
read_event(Reader *r, uint32_t *out)
{
	int64_t n = 0;

	for (*out = 0; *out < N_SHARED_EVENTS; ++*out)
		if (read_word(r, event_table[*out].name))
			return true;
	bool ok = read_small(r, MOST_EVENTS, &n);
	*out = N_SHARED_EVENTS + (uint32_t)n;
	return ok;
}

static bool
read_loop(Reader *r, uint32_t *out)
{
	for (int i = 0; loop_words[i]; i++)
		if (read_word(r, loop_words[i])) {
			*out = (uint32_t)(-1 - i);
			return true;
		}
	return read_count(r, out);
}

static bool
read_what(ProgramReader *pr, InstructionKind kind, uint32_t *out)
{
	switch (kind) {
	case RUN_KERNEL: return read_kernel_number(pr, out);
	case COLLECTIVE: return read_collective(pr, out);
	case RECORD:
	case WAIT: return read_event(pr->r, out);
	case LOOP: return read_loop(pr->r, out);
	case BRANCH: return read_count(pr->r, out);
	default: *out = 0; return true;
	}
}

/* (%3, %4 by 800 loop 1) */
static bool
read_arguments(ProgramReader *pr, Instruction *n)
{
	Program *p = pr->p;

	n->args = (uint32_t)p->arguments.n;
	if (!read_char(pr->r, '('))
		return true;
	do {
		Argument a = {0};
		if (!read_slot_number(pr, &a.slot))
			return false;
		if (read_word(pr->r, "by") && !read_int(pr->r, &a.stride))
			return false;
		a.loop = (uint32_t)read_number_of(pr->r, "loop", MOST_NUMBER);
		if (a.stride < -MOST_BYTES || a.stride > MOST_BYTES) {
			read_fault(pr->r, "a stride out of range");
			return false;
		}
		vec_push(p->arena, &p->arguments, a);
	} while (read_char(pr->r, ','));
	uint32_t count = (uint32_t)p->arguments.n - n->args;
	n->n_args = (uint16_t)count;
	if (count > UINT16_MAX)
		read_fault(pr->r, "more than %d arguments", UINT16_MAX);
	return count <= UINT16_MAX && read_expect(pr->r, ')');
}

static void
read_origin(ProgramReader *pr, Instruction *n)
{
	Text text = {0};
	Loc loc = read_loc(pr->r);

	loc_text(&text, loc);
	n->origin = program_name(pr->p, text.at);
	text_free(&text);
}

static void
read_instruction(ProgramReader *pr, InstructionKind kind)
{
	Instruction n = {.kind = kind};

	if (!read_what(pr, kind, &n.what) || !read_arguments(pr, &n))
		return;
	n.stream = (uint8_t)read_word_of(pr->r, "on", stream_names);
	n.when = (uint8_t)read_word_of(pr->r, "when", when_names);
	n.phase = (uint16_t)read_word_of(pr->r, "phase", phase_names);
	n.only = read_only(pr->r);
	if (read_word(pr->r, "loc"))
		read_origin(pr, &n);
	vec_push(pr->p->arena, &pr->p->instructions, n);
}

/* travel sum when last adds SLOT, SLOT */
static void
read_travel(ProgramReader *pr)
{
	Travel t = {.behind = pr->p->instructions.n - 1};
	int kind = read_enum(pr->r, travel_words);

	if (kind < 0)
		return;
	t.kind = (TravelKind)kind;
	t.when = (When)read_word_of(pr->r, "when", when_names);
	t.adds = read_word(pr->r, "adds");
	if (read_slot(pr, &t.whole) && read_expect(pr->r, ',') && read_slot(pr, &t.part))
		vec_push(pr->p->arena, &pr->p->travels, t);
}

/* ---- the program */
static void
read_line(ProgramReader *pr)
{
	Reader *r = pr->r;

	read_space(r);
	if (*r->at == '%') {
		read_slot_line(pr);
	} else if (read_word(r, "input")) {
		read_port(pr, true);
	} else if (read_word(r, "output")) {
		read_port(pr, false);
	} else if (read_word(r, "scalars")) {
		uint32_t slot;
		pr->p->scalars = read_slot_number(pr, &slot) ? slot + 1 : 0;
	} else if (read_word(r, "travel")) {
		read_travel(pr);
	} else {
		int kind = read_enum(r, instruction_names);
		if (kind >= 0)
			read_instruction(pr, (InstructionKind)kind);
	}
	if (!read_at_line_end(r))
		read_fault(r, "unexpected text after the line of a program");
}

static void
read_bytes(Reader *r, Program *p)
{
	if (!read_word(r, "bytes"))
		return;
	for (int s = 0; s < N_SPACES; s++)
		if (read_word(r, space_table[s].name))
			read_small(r, MOST_BYTES, &p->bytes[s]);
}

/* accumulate binding 1 mode zero2 ... { */
static void
read_header(Reader *r, Program *p)
{
	p->binding = (int)read_number_of(r, "binding", MOST_NUMBER);
	p->stage = (int)read_number_of(r, "stage", MOST_NUMBER);
	p->mode = (DataParallelMode)read_word_of(r, "mode", mode_names);
	if (read_word(r, "target")) {
		read_space(r);
		p->target = *r->at == '"' ? text_unquote(r->m->arena, &r->at) : NULL;
		if (!p->target)
			read_fault(r, "expected a target's name in quotes");
	}
	p->on_host = read_word(r, "on_host");
	p->offloads = read_word(r, "offloads");
	p->n_events = (uint32_t)read_number_of(r, "events", MOST_EVENTS);
	p->gathered = read_number_of(r, "gathered", MOST_BYTES);
	p->flops = read_number_of(r, "flops", INT64_MAX);
	read_bytes(r, p);
}

void
read_program(Reader *r)
{
	int role = read_enum(r, role_names);
	Program *p = program_append(r->m, role < 0 ? ROLE_HELPER : (Role)role, 0);
	ProgramReader pr = {.r = r, .p = p, .slots = strmap_new(r->m->arena)};

	p->line = r->line;
	read_header(r, p);
	if (!read_expect(r, '{'))
		read_skip_line(r);
	for (read_lines(r); *r->at && *r->at != '}'; read_lines(r)) {
		read_line(&pr);
		read_skip_line(r);
	}
	read_expect(r, '}');
}

/* Prints a program as text: its slots, its inputs and results, then its instructions in order. A travel stands behind the
 * instruction after which it starts:
 *
 *	run @k2 (%3, %4) phase backward loc grad("fc")
 *	travel sum when last state+64 f32 bytes 1024 "sums", state+64 f32 bytes 1024 "sums" share part group data block 256 */
#include "ir/loop/loop.h"
#include "ir/programs/programs.h"
#include "ir/programs/words.h"
#include "ir/text.h"

static void
print_number(Text *out, const char *word, int64_t n)
{
	if (n)
		text_printf(out, " %s %lld", word, (long long)n);
}

static void
print_only(Text *out, uint32_t only)
{
	text_add(out, only ? " only" : "");
	for (int bit = 0; only_names[bit]; bit++)
		if (only >> bit & 1)
			text_printf(out, " %s", only_names[bit]);
}

/* " first_room": the words of the text form have no blanks */
static void
print_share(Text *out, uint32_t share)
{
	text_add(out, " share ");
	for (const char *c = share_names[share]; *c; c++)
		text_printf(out, "%c", *c == ' ' ? '_' : *c);
}

/* workspace+64 f32 bytes 1024 "fc" share part group shard block 64 state @w only ranks staged */
static void
print_slot(Text *out, const Module *m, const Program *p, const Slot *s)
{
	text_printf(out, "%s+%lld %s bytes %lld", space_table[s->space].name, (long long)s->offset,
	            dtype_info[s->dtype].name, (long long)s->bytes);
	if (s->name) {
		text_add(out, " ");
		text_add_quoted(out, p->names.at[s->name]);
	}
	print_number(out, "before", s->before);
	if (s->share)
		print_share(out, s->share);
	if (s->group)
		text_printf(out, " group %s", comm_group_names[s->group]);
	print_number(out, "block", s->block);
	if (s->state) {
		text_add(out, " state ");
		symbol_print(out, '@', m->states.at[s->state - 1]->name);
	}
	print_only(out, s->only);
}

/* input %3 "x" input 0 : f32[8,4] */
static void
print_port(Text *out, const Program *p, const char *word, const ProgramPort *port)
{
	text_printf(out, "    %s %%%u", word, port->slot);
	if (port->name) {
		text_add(out, " ");
		text_add_quoted(out, p->names.at[port->name]);
	}
	text_printf(out, " %s", port_kind_names[port->kind]);
	print_number(out, "number", port->number);
	print_number(out, "rows", port->rows_axis);
	text_add(out, " : ");
	type_print(out, port->type);
	text_add(out, "\n");
}

static void
print_collective(Text *out, const CollectiveRecord *c)
{
	text_printf(out, " %s %s %s n %lld", collective_names[c->kind],
	            comm_reduction_names[c->reduction], dtype_info[c->dtype].name, (long long)c->n);
	text_printf(out, " group %s", comm_group_names[c->group]);
	print_number(out, "block", c->block);
	print_number(out, "peer", c->peer);
	text_add(out, c->of_part ? " of_part" : "");
}

static void
print_event(Text *out, uint32_t event)
{
	if (event < N_SHARED_EVENTS)
		text_printf(out, " %s", event_table[event].name);
	else
		text_printf(out, " %u", event - N_SHARED_EVENTS);
}

static void
print_loop(Text *out, uint32_t count)
{
	if (count == (uint32_t)LOOP_LATER_RANKS || count == (uint32_t)LOOP_LATER_SHARDS)
		text_printf(out, " %s", loop_words[-(int32_t)count - 1]);
	else
		text_printf(out, " %u", count);
}

/* What the instruction works on, besides its arguments: " @kernel", " 35". */
static void
print_what(Text *out, const Module *m, const Program *p, const Instruction *n)
{
	switch (n->kind) {
	case RUN_KERNEL: text_printf(out, " @%s", m->kernels.at[n->what]->name); break;
	case COLLECTIVE: print_collective(out, &p->collectives.at[n->what]); break;
	case RECORD:
	case WAIT: print_event(out, n->what); break;
	case LOOP: print_loop(out, n->what); break;
	case BRANCH: text_printf(out, " %u", n->what); break;
	default: break;
	}
}

/* (%3, %4 by 800 loop 1) */
static void
print_arguments(Text *out, const Program *p, const Instruction *n)
{
	for (uint32_t i = 0; i < n->n_args; i++) {
		const Argument *a = &p->arguments.at[n->args + i];
		text_printf(out, "%s%%%u", i ? ", " : " (", a->slot);
		if (a->loop || a->stride)
			text_printf(out, " by %lld loop %u", (long long)a->stride, a->loop);
	}
	text_add(out, n->n_args ? ")" : "");
}

static void
print_instruction(Text *out, const Module *m, const Program *p, const Instruction *n,
                  const PrintOptions *options)
{
	text_printf(out, "    %s", instruction_names[n->kind]);
	print_what(out, m, p, n);
	print_arguments(out, p, n);
	if (n->stream)
		text_printf(out, " on %s", stream_names[n->stream]);
	if (n->when)
		text_printf(out, " when %s", when_names[n->when]);
	if (n->phase)
		text_printf(out, " phase %s", phase_names[n->phase]);
	print_only(out, n->only);
	if (n->origin && !(options && options->no_locations))
		text_printf(out, " loc %s", p->names.at[n->origin]);
	text_add(out, "\n");
}

/* Prints the travels from number *next on that start after instruction `behind`. */
static void
print_travels(Text *out, const Module *m, const Program *p, int behind, int *next)
{
	for (; *next < p->travels.n && p->travels.at[*next].behind <= behind; ++*next) {
		const Travel *t = &p->travels.at[*next];
		text_printf(out, "    travel %s when %s%s ", travel_words[t->kind],
		            when_names[t->when], t->adds ? " adds" : "");
		print_slot(out, m, p, &t->whole);
		text_add(out, ", ");
		print_slot(out, m, p, &t->part);
		text_add(out, "\n");
	}
}

/* program accumulate binding 1 mode zero2 events 3 gathered 64 flops 900 bytes workspace 64 io 128 */
static void
print_header(Text *out, const Program *p)
{
	bool any = false;

	text_printf(out, "  program %s", role_names[p->role]);
	print_number(out, "binding", p->binding);
	print_number(out, "stage", p->stage);
	if (p->mode)
		text_printf(out, " mode %s", mode_names[p->mode]);
	if (p->target) {
		text_add(out, " target ");
		text_add_quoted(out, p->target);
	}
	text_add(out, p->on_host ? " on_host" : "");
	text_add(out, p->offloads ? " offloads" : "");
	print_number(out, "events", p->n_events);
	print_number(out, "gathered", p->gathered);
	print_number(out, "flops", p->flops);
	for (int s = 0; s < N_SPACES; s++) {
		if (!p->bytes[s])
			continue;
		text_add(out, any ? "" : " bytes");
		print_number(out, space_table[s].name, p->bytes[s]);
		any = true;
	}
	text_add(out, " {\n");
}

void
program_print(Text *out, const Module *m, const Program *p, const PrintOptions *options)
{
	int next = 0; /* number of the next travel */

	print_header(out, p);
	for (int i = 0; i < p->slots.n; i++) {
		text_printf(out, "    %%%d = slot ", i);
		print_slot(out, m, p, &p->slots.at[i]);
		text_add(out, "\n");
	}
	for (int i = 0; i < p->inputs.n; i++)
		print_port(out, p, "input", &p->inputs.at[i]);
	for (int i = 0; i < p->outputs.n; i++)
		print_port(out, p, "output", &p->outputs.at[i]);
	if (p->scalars)
		text_printf(out, "    scalars %%%u\n", p->scalars - 1);
	print_travels(out, m, p, -1, &next);
	for (int i = 0; i < p->instructions.n; i++) {
		print_instruction(out, m, p, &p->instructions.at[i], options);
		print_travels(out, m, p, i, &next);
	}
	text_add(out, "  }\n");
}

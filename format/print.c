/* Prints an executable's tables as text for people: the schedule and the memory plan. The text is deterministic. Names
 * from the model are quoted, so that their bytes do not reach a terminal raw. */
#include "format/checks.h"

#include <stdlib.h>
#include <string.h>

static void
print_shape(Text *out, const Format *f, uint32_t dtype, uint32_t rank, uint32_t first)
{
	text_printf(out, "%s[", dtype_info[dtype].name);
	for (uint32_t i = 0; i < rank; i++)
		text_printf(out, "%s%lld", i ? "," : "", (long long)f->dims[first + i]);
	text_add(out, "]");
}

static void
print_argument(Text *out, const Format *f, const Argument *a)
{
	const Slot *s = &f->slots[a->slot];

	text_printf(out, "%s+%lld", space_table[s->space].name, (long long)s->offset);
	if (s->share != SLOT_WHOLE)
		text_printf(out, " %s", share_names[s->share]);
	else if (a->loop)
		text_printf(out, "+%lld*i%u", (long long)a->stride, a->loop);
	text_printf(out, ":%s", dtype_info[s->dtype].name);
	if (s->name) {
		text_add(out, " ");
		text_add_quoted(out, format_text(f, s->name));
	}
}

void
format_print_library(Text *out, const Format *f, uint32_t record)
{
	library_call_print(out, &f->library[record].call, NULL, NULL);
}

static void
print_run(Text *out, const Format *f, const Instruction *n)
{
	const KernelRecord *k = &f->kernels[n->what];

	text_printf(out, " %s", format_text(f, k->name));
	if (k->serves)
		text_printf(out, " for %s", format_text(f, f->kernels[k->serves - 1].name));
	if (k->library) {
		text_add(out, " or ");
		format_print_library(out, f, k->library - 1);
	}
}

static void
print_event(Text *out, const Format *f, const Instruction *n)
{
	(void)f;
	if (n->what < N_SHARED_EVENTS)
		text_printf(out, " %s", event_table[n->what].name);
	else
		text_printf(out, " event %u", n->what - N_SHARED_EVENTS);
}

static void
print_collective(Text *out, const Format *f, const Instruction *n)
{
	const CollectiveRecord *c = &f->collectives[n->what];

	bool reduces = c->kind == COMM_ALL_REDUCE || c->kind == COMM_REDUCE_SCATTER;

	text_printf(out, " %s%s%s of group %s, %lld %s", collective_names[c->kind],
	            reduces ? " " : "", reduces ? comm_reduction_names[c->reduction] : "",
	            comm_group_names[c->group], (long long)c->n, dtype_info[c->dtype].name);
}

static void
print_loop(Text *out, const Format *f, const Instruction *n)
{
	(void)f;
	if (n->what == (uint32_t)LOOP_LATER_RANKS)
		text_add(out, " (ranks - 2) times");
	else
		text_printf(out, " %u times", n->what);
}

static void
print_branch(Text *out, const Format *f, const Instruction *n)
{
	(void)f;
	text_add(out, n->what ? " if true" : " if false");
}

static void (*const print_what[N_INSTRUCTIONS])(Text *, const Format *, const Instruction *) = {
	[RUN_KERNEL] = print_run, [COLLECTIVE] = print_collective,
	[RECORD] = print_event,   [WAIT] = print_event,
	[LOOP] = print_loop,      [BRANCH] = print_branch,
};

/* Prints the head of the columns: the streams. */
static void
print_streams(Text *out)
{
	text_add(out, "         ");
	for (int s = 0; s < N_STREAMS; s++)
		text_printf(out, "%s%s", s ? ", " : "columns: ", stream_names[s]);
	text_add(out, "\n");
}

/* Prints one column per stream, with a mark in the instruction's column. Time runs downwards. */
static void
print_lanes(Text *out, int stream)
{
	for (int s = 0; s < N_STREAMS; s++)
		text_add(out, s == stream ? "*" : "|");
}

static void
print_instruction(Text *out, const Format *f, const Instruction *n, int index, int depth)
{
	text_printf(out, "  %5d  ", index);
	print_lanes(out, n->stream);
	text_printf(out, "  %*s%s", 2 * depth, "", instruction_names[n->kind]);
	if (print_what[n->kind])
		print_what[n->kind](out, f, n);
	if (n->n_args > 0)
		text_add(out, " (");
	for (uint32_t i = 0; i < n->n_args; i++) {
		if (i > 0)
			text_add(out, ", ");
		print_argument(out, f, &f->arguments[n->args + i]);
	}
	if (n->n_args > 0)
		text_add(out, ")");
	if (n->when != WHEN_ALWAYS)
		text_printf(out, " when %s", when_names[n->when]);
	if (n->phase)
		text_printf(out, " phase %s", phase_names[n->phase]);
	for (int bit = 0; only_names[bit]; bit++)
		if (n->only >> bit & 1)
			text_printf(out, " %s %s", n->only & ((1u << bit) - 1) ? "and" : "only",
			            only_names[bit]);
	if (n->origin) {
		text_add(out, "  loc ");
		text_add_plain(out, format_text(f, n->origin));
	}
	text_add(out, "\n");
}

static void
print_ports(Text *out, const Format *f, uint32_t first, uint32_t n)
{
	for (uint32_t i = first; i < first + n; i++) {
		const PortRecord *p = &f->ports[i];

		text_printf(out, "  %s ", port_kind_names[p->kind]);
		text_add_quoted(out, format_text(f, p->name));
		text_add(out, " : ");
		print_shape(out, f, p->dtype, p->rank, p->first_dim);
		text_printf(out, " at %s+%lld", space_table[f->slots[p->slot].space].name,
		            (long long)f->slots[p->slot].offset);
		if (p->sample_axis >= 0)
			text_printf(out, " sample axis %d", p->sample_axis);
		if (p->repeats)
			text_printf(out, " rows along axis %u%s", p->row_axis,
			            p->mixes_rows ? ", mixed" : "");
		if (p->compared == COMPARED_LOGITS || p->compared == COMPARED_LOG_PROBABILITIES)
			text_printf(out, " classes along axis %u", p->class_axis);
		if (p->bounded)
			text_printf(out, " in %lld..%lld", (long long)p->min, (long long)p->max);
		if (p->bounded == 2)
			text_printf(out, " or %lld", (long long)p->ignore);
		text_add(out, "\n");
	}
}

void
format_print_target(Text *out, const Format *f, const ProgramRecord *p)
{
	if (f->n[SECTION_TARGETS] < 2)
		return;
	text_add(out, " for ");
	text_add_plain(out, format_text(f, f->targets[p->target].name));
}

static void
print_program_head(Text *out, const Format *f, const ProgramRecord *p)
{
	text_printf(out, "program %s", role_names[p->role]);
	if (f->bindings[p->binding].text) {
		text_add(out, " ");
		text_add_quoted(out, format_text(f, f->bindings[p->binding].text));
	}
	format_print_target(out, f, p);
}

/* Prints the regions of a program, without the host's copies of device regions. */
static void
print_regions(Text *out, const ProgramRecord *p)
{
	text_printf(out, "workspace %lld bytes", (long long)p->bytes[SPACE_WORKSPACE]);
	for (int s = SPACE_WORKSPACE + 1; s < N_SPACES; s++)
		if (p->bytes[s] > 0 && space_table[s].only != ONLY_APART)
			text_printf(out, ", %s %lld bytes", space_table[s].name,
			            (long long)p->bytes[s]);
}

static void
print_program(Text *out, const Format *f, const ProgramRecord *p)
{
	int depth = 0;

	print_program_head(out, f, p);
	text_printf(out, ": %u instructions, ", p->n_instructions);
	print_regions(out, p);
	text_printf(out, ", %lld flops\n", (long long)p->flops);
	print_ports(out, f, p->first_input, p->n_inputs);
	print_streams(out);
	for (uint32_t i = 0; i < p->n_instructions; i++) {
		const Instruction *n = &f->instructions[p->first_instruction + i];

		depth -= n->kind == END;
		print_instruction(out, f, n, (int)i, depth);
		depth += instruction_opens(n->kind);
	}
	print_ports(out, f, p->first_output, p->n_outputs);
	text_add(out, "\n");
}

/* Prints "k1 (f32 8192 read, f32 512 read, f32 16384 write)". */
static void
print_kernel_head(Text *out, const Format *f, const KernelRecord *k)
{
	static const char *const accesses[] = {" unused", " read", " write", " read write"};
	const uint32_t both = ACCESS_READ | ACCESS_WRITE;

	text_printf(out, "kernel %s (", format_text(f, k->name));
	for (uint32_t i = 0; i < k->n_arguments; i++) {
		const KernelArgument *a = &f->kernel_arguments[k->first_argument + i];
		text_printf(out, "%s%s %lld%s%s", i ? ", " : "", dtype_info[a->dtype].name,
		            (long long)a->bytes, accesses[a->access & both],
		            a->access & ACCESS_PART ? " part" : "");
	}
	text_add(out, ")");
	if (k->team > 1)
		text_printf(out, " team %u with %lld bytes", k->team, (long long)k->shared_bytes);
}

static void
print_plan(Text *out, const Format *f, const PlanRecord *p)
{
	text_add(out, "plan of ");
	format_print_library(out, f, p->library);
	text_add(out, " for ");
	text_add_plain(out, format_text(f, p->gpu));
	text_add(out, ": ");
	text_add_plain(out, format_text(f, p->version));
	text_printf(out, ", %lld bytes of scratch\n", (long long)p->scratch);
}

static void
print_schedule(Text *out, const Format *f)
{
	for (int i = 0; i < f->n[SECTION_PROGRAMS]; i++)
		print_program(out, f, &f->programs[i]);
	for (int i = 0; i < f->n[SECTION_KERNELS]; i++) {
		const KernelRecord *k = &f->kernels[i];

		print_kernel_head(out, f, k);
		text_printf(out, ": %lld iterations, grain %lld, %lld flops, %lld bytes\n",
		            (long long)k->iterations, (long long)k->grain, (long long)k->flops,
		            (long long)k->bytes);
	}
	for (int i = 0; i < f->n[SECTION_PLANS]; i++)
		print_plan(out, f, &f->plans[i]);
}

static void
print_state(Text *out, const FormatIndex *x, const StateRecord *s)
{
	const Format *f = x->f;

	text_printf(out, "  %10lld  %10lld  ", (long long)s->offset, (long long)s->bytes);
	text_add_quoted(out, format_text(f, s->name));
	text_add(out, " : ");
	print_shape(out, f, s->dtype, s->rank, s->first_dim);
	text_printf(out, " %s %s init %s%s", state_kind_names[s->kind], lifetime_names[s->lifetime],
	            init_names[s->init], s->trainable ? " trainable" : "");
	const FourBitRecord *r = x->four_bit[s - f->states];
	if (r) {
		text_printf(out, " %s of ", four_bit_names[r->kind]);
		print_shape(out, f, r->dtype, r->rank, r->first_dim);
	}
	if (s->of) {
		text_add(out, " of ");
		text_add_quoted(out, format_text(f, f->states[s->of - 1].name));
	}
	if (s->unit) {
		text_add(out, " in ");
		text_add_quoted(out, format_text(f, f->states[s->unit - 1].name));
	}
	text_add(out, "\n");
}

/* The first and the last instruction of a program that touch a slot; -1: no instruction does. */
typedef struct {
	int first, last;
} Live;

/* The slots that one program touches. */
typedef struct {
	Live *live;   /* lifetimes, by number of the slot */
	int *touched; /* numbers of the touched slots, ascending */
	int n;
} LiveSlots;

static int
compare_ints(const void *a, const void *b)
{
	int x = *(const int *)a, y = *(const int *)b;

	return (x > y) - (x < y);
}

static void
find_live(const Format *f, const ProgramRecord *p, LiveSlots *s)
{
	s->n = 0;
	for (uint32_t i = 0; i < p->n_instructions; i++) {
		const Instruction *n = &f->instructions[p->first_instruction + i];

		for (uint32_t a = 0; a < n->n_args; a++) {
			uint32_t slot = f->arguments[n->args + a].slot;
			if (s->live[slot].first < 0) {
				s->live[slot].first = (int)i;
				s->touched[s->n++] = (int)slot;
			}
			s->live[slot].last = (int)i;
		}
	}
	qsort(s->touched, (size_t)s->n, sizeof(*s->touched), compare_ints);
}

static void
print_program_slots(Text *out, const Format *f, const ProgramRecord *p, LiveSlots *slots)
{
	find_live(f, p, slots);
	print_program_head(out, f, p);
	text_add(out, ": ");
	print_regions(out, p);
	text_add(out, "\n");
	for (int i = 0; i < slots->n; i++) {
		const Slot *s = &f->slots[slots->touched[i]];
		Live live = slots->live[slots->touched[i]];

		slots->live[slots->touched[i]] = (Live){-1, -1};
		if (s->space == SPACE_STATE)
			continue;
		text_printf(out, "  %10lld  %10lld  %-9s  live %d..%d  %s ", (long long)s->offset,
		            (long long)s->bytes, space_table[s->space].name, live.first, live.last,
		            dtype_info[s->dtype].name);
		text_add_quoted(out, format_text(f, s->name));
		text_add(out, "\n");
	}
}

static void
print_slots(Text *out, const Format *f)
{
	size_t n = (size_t)f->n[SECTION_SLOTS] + 1;
	LiveSlots slots = {.live = memory_get(n * sizeof(Live)),
	                   .touched = memory_get(n * sizeof(int))};

	memset(slots.live, 0xff, n * sizeof(Live)); /* sets first and last to -1 */
	for (int i = 0; i < f->n[SECTION_PROGRAMS]; i++)
		print_program_slots(out, f, &f->programs[i], &slots);
	memory_free(slots.live);
	memory_free(slots.touched);
}

/* Prints the scratch of the plans. For a GPU without plans the scratch is only known when training starts. */
static int64_t
print_planned(Text *out, const Format *f)
{
	int64_t most = format_plan_bytes(f, NULL);

	for (int i = 0; i < f->n[SECTION_PLANS]; i++) {
		const char *gpu = format_text(f, f->plans[i].gpu);
		if (i > 0 && f->plans[i].gpu == f->plans[i - 1].gpu)
			continue;
		text_printf(out, "  %-10s %lld on ", "library",
		            (long long)format_plan_bytes(f, gpu));
		text_add_plain(out, gpu);
		text_add(out, "\n");
	}
	return most;
}

static void
print_memory(Text *out, const Format *f)
{
	int64_t total = 0;
	FormatIndex x = format_index_open(f);

	text_add(out, "regions (bytes)\n");
	for (int s = 0; s < N_SPACES; s++) {
		int64_t bytes = format_region_bytes(f, (Space)s, EVERY_TARGET, &run_alone);

		if (bytes == 0)
			continue;
		text_printf(out, "  %-10s %lld\n", space_table[s].name, (long long)bytes);
		total += bytes;
	}
	total += print_planned(out, f);
	text_printf(out, "  %-10s %lld\n\nstate: offset, bytes\n", "total", (long long)total);
	for (int i = 0; i < f->n[SECTION_STATES]; i++)
		print_state(out, &x, &f->states[i]);
	text_add(out, "\n");
	print_slots(out, f);
	format_index_close(&x);
}

void
format_print(Text *out, const Format *f, const char *stage)
{
	if (strcmp(stage, "memory") == 0)
		print_memory(out, f);
	else
		print_schedule(out, f);
}

/* One program: its instructions with their arguments inside the regions, loops that close,
 * events and streams that exist, ports. */
#include "format/format_impl.h"

typedef struct {
	const Format *f;
	const ProgramRecord *program;
	int index;
	int depth;
	int64_t counts[MAX_LOOPS];
} Walk;

static int64_t
space_limit(const Walk *w, uint32_t space)
{
	const int64_t limits[N_SPACES] = {
		[SPACE_STATE] = w->f->header->state_bytes,
		[SPACE_WORKSPACE] = w->program->workspace_bytes,
		[SPACE_IO] = w->program->io_bytes,
	};

	return limits[space];
}

/* A slot, moved `stride` bytes an iteration, stays inside its region. */
static Status
check_reach(const Walk *w, const Argument *a, int at)
{
	const Slot *s = &w->f->slots[a->slot];
	int64_t limit = space_limit(w, s->space), count = a->loop ? w->counts[a->loop - 1] : 1;
	int64_t last = 0;

	if (count > 1 && (a->stride < 0 || !size_mul(a->stride, count - 1, &last)))
		return FAULT("program %d, instruction %d: stride %lld over %lld iterations",
		             w->index, at, (long long)a->stride, (long long)count);
	if (!size_add(last, s->offset, &last) || !size_add(last, s->bytes, &last) || last > limit)
		return FAULT(
			"program %d, instruction %d: slot %u ends at %lld, its %s region at %lld",
			w->index, at, a->slot, (long long)last, space_names[s->space],
			(long long)limit);
	return NULL;
}

static Status
check_arguments(const Walk *w, const Instruction *n, int at)
{
	const Format *f = w->f;

	if (!in_range(n->args, n->n_args, f->n[SECTION_ARGUMENTS]))
		return FAULT("program %d, instruction %d: arguments %u + %u of %d", w->index, at,
		             n->args, n->n_args, f->n[SECTION_ARGUMENTS]);
	for (uint32_t i = 0; i < n->n_args; i++) {
		const Argument *a = &f->arguments[n->args + i];

		if (a->slot >= (uint32_t)f->n[SECTION_SLOTS] || a->loop > (uint32_t)w->depth)
			return FAULT(
				"program %d, instruction %d: argument %u: slot %u of %d, loop %u of %d",
				w->index, at, i, a->slot, f->n[SECTION_SLOTS], a->loop, w->depth);
		RETURN_IF_ERROR(check_reach(w, a, at));
	}
	return NULL;
}

static Status
check_loop(Walk *w, const Instruction *n, int at)
{
	if (w->depth == MAX_LOOPS)
		return FAULT("program %d, instruction %d: loops nest deeper than %d", w->index, at,
		             MAX_LOOPS);
	w->counts[w->depth++] = n->what;
	return NULL;
}

static Status
check_end(Walk *w, const Instruction *n, int at)
{
	(void)n;
	if (w->depth == 0)
		return FAULT("program %d, instruction %d: END without LOOP", w->index, at);
	w->depth--;
	return NULL;
}

static Status
check_run(Walk *w, const Instruction *n, int at)
{
	if (n->what >= (uint32_t)w->f->n[SECTION_KERNELS])
		return FAULT("program %d, instruction %d: kernel %u of %d", w->index, at, n->what,
		             w->f->n[SECTION_KERNELS]);
	const KernelRecord *k = &w->f->kernels[n->what];
	if (!(k->targets >> w->program->target & 1))
		return FAULT("program %d, instruction %d: kernel %u has no code for target %u",
		             w->index, at, n->what, w->program->target);
	if (k->library)
		return status_annotate(format_check_library(w->f, k, n),
		                       "program %d, instruction %d", w->index, at);
	return NULL;
}

static Status
check_event(Walk *w, const Instruction *n, int at)
{
	if (n->what >= MAX_EVENTS)
		return FAULT("program %d, instruction %d: event %u of %d", w->index, at, n->what,
		             MAX_EVENTS);
	return NULL;
}

static Status
check_copy(Walk *w, const Instruction *n, int at)
{
	const Format *f = w->f;
	const Argument *a = &f->arguments[n->args];

	if (f->slots[a[0].slot].bytes > f->slots[a[1].slot].bytes)
		return FAULT("program %d, instruction %d: copies %lld bytes from a slot of %lld",
		             w->index, at, (long long)f->slots[a[0].slot].bytes,
		             (long long)f->slots[a[1].slot].bytes);
	return NULL;
}

static const struct {
	int n_args; /* -1: any */
	Status (*check)(Walk *w, const Instruction *n, int at);
} kinds[N_INSTRUCTIONS] = {
	[RUN_KERNEL] = {-1, check_run}, [COPY] = {2, check_copy},  [FILL_ZERO] = {1, NULL},
	[RECORD] = {0, check_event},    [WAIT] = {0, check_event}, [LOOP] = {0, check_loop},
	[END] = {0, check_end},
};

static Status
check_instruction(Walk *w, int at)
{
	const Instruction *n = &w->f->instructions[at];

	if (n->kind >= N_INSTRUCTIONS || n->when >= N_WHEN || n->phase >= N_PHASES ||
	    n->stream >= MAX_STREAMS)
		return FAULT("program %d, instruction %d: kind %u, when %u, phase %u, stream %u",
		             w->index, at, n->kind, n->when, n->phase, n->stream);
	if (kinds[n->kind].n_args >= 0 && n->n_args != kinds[n->kind].n_args)
		return FAULT("program %d, instruction %d: %s with %u arguments", w->index, at,
		             instruction_names[n->kind], n->n_args);
	if (n->origin >= (uint32_t)w->f->n[SECTION_STRINGS])
		return FAULT("program %d, instruction %d: string %u of %d", w->index, at, n->origin,
		             w->f->n[SECTION_STRINGS]);
	RETURN_IF_ERROR(check_arguments(w, n, at));
	return kinds[n->kind].check ? kinds[n->kind].check(w, n, at) : NULL;
}

/* A port's slot lies inside the region; whatever is fed lies in io; rows are the binding's. */
static Status
check_program_port(const Walk *w, uint32_t index, bool input)
{
	const Format *f = w->f;
	const PortRecord *p = &f->ports[index];
	const Argument whole = {.slot = p->slot};

	if (input != port_is_input(p->kind))
		return FAULT("program %d: port %u is %s among the %s", w->index, index,
		             port_kind_names[p->kind], input ? "inputs" : "outputs");
	if (input && f->slots[p->slot].space != SPACE_IO)
		return FAULT("program %d: input port %u lies in %s", w->index, index,
		             space_names[f->slots[p->slot].space]);
	if (input && p->sample_axis >= 0 &&
	    f->dims[p->first_dim + (uint32_t)p->sample_axis] !=
	            f->bindings[w->program->binding].rows)
		return FAULT("program %d: port %u has %lld rows, the binding %lld", w->index, index,
		             (long long)f->dims[p->first_dim + (uint32_t)p->sample_axis],
		             (long long)f->bindings[w->program->binding].rows);
	return check_reach(w, &whole, (int)w->program->first_instruction);
}

static Status
check_ports(const Walk *w)
{
	const ProgramRecord *p = w->program;
	int n = w->f->n[SECTION_PORTS];

	if (!in_range(p->first_input, p->n_inputs, n) ||
	    !in_range(p->first_output, p->n_outputs, n))
		return FAULT("program %d: ports %u + %u and %u + %u of %d", w->index,
		             p->first_input, p->n_inputs, p->first_output, p->n_outputs, n);
	for (uint32_t i = 0; i < p->n_inputs; i++)
		RETURN_IF_ERROR(check_program_port(w, p->first_input + i, true));
	for (uint32_t i = 0; i < p->n_outputs; i++)
		RETURN_IF_ERROR(check_program_port(w, p->first_output + i, false));
	return NULL;
}

Status
format_check_program(const Format *f, int index)
{
	const ProgramRecord *p = &f->programs[index];
	Walk w = {.f = f, .program = p, .index = index};

	if (p->role >= N_ROLES || p->binding >= (uint32_t)f->n[SECTION_BINDINGS])
		return FAULT("program %d: role %u, binding %u of %d", index, p->role, p->binding,
		             f->n[SECTION_BINDINGS]);
	if (p->target >= (uint32_t)f->n[SECTION_TARGETS])
		return FAULT("program %d: target %u of %d", index, p->target,
		             f->n[SECTION_TARGETS]);
	if (p->stage > MAX_STAGES || p->mode >= N_MODES)
		return FAULT("program %d: stage %u, mode %u", index, p->stage, p->mode);
	if (p->workspace_bytes < 0 || p->io_bytes < 0)
		return FAULT("program %d: regions of %lld and %lld bytes", index,
		             (long long)p->workspace_bytes, (long long)p->io_bytes);
	if (!in_range(p->first_instruction, p->n_instructions, f->n[SECTION_INSTRUCTIONS]))
		return FAULT("program %d: instructions %u + %u of %d", index, p->first_instruction,
		             p->n_instructions, f->n[SECTION_INSTRUCTIONS]);
	for (uint32_t i = 0; i < p->n_instructions; i++)
		RETURN_IF_ERROR(check_instruction(&w, (int)(p->first_instruction + i)));
	if (w.depth != 0)
		return FAULT("program %d: %d loops do not end", index, w.depth);
	return check_ports(&w);
}

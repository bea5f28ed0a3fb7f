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
	return space == SPACE_STATE ? w->f->header->state_bytes : w->program->bytes[space];
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
			w->index, at, a->slot, (long long)last, space_table[s->space].name,
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

/* The kernel's own arguments, each of its type in a slot that has all the bytes that it may touch. */
static Status
check_launch(const Walk *w, const KernelRecord *k, const Instruction *n, int at)
{
	const Format *f = w->f;

	if (n->n_args != k->n_arguments)
		return FAULT("program %d, instruction %d: %u arguments, kernel %u has %u", w->index,
		             at, n->n_args, n->what, k->n_arguments);
	for (uint32_t i = 0; i < k->n_arguments; i++) {
		const KernelArgument *a = &f->kernel_arguments[k->first_argument + i];
		const Slot *s = &f->slots[f->arguments[n->args + i].slot];
		if (s->dtype != a->dtype || s->bytes < a->bytes)
			return FAULT("program %d, instruction %d: argument %u is %lld bytes of "
			             "%s, kernel %u has %lld of %s",
			             w->index, at, i, (long long)s->bytes,
			             dtype_info[s->dtype].name, n->what, (long long)a->bytes,
			             dtype_info[a->dtype].name);
	}
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
	return check_launch(w, k, n, at);
}

static Status
check_event(Walk *w, const Instruction *n, int at)
{
	uint32_t limit = N_SHARED_EVENTS + w->program->n_events;

	if (n->what >= limit)
		return FAULT("program %d, instruction %d: event %u of %u", w->index, at, n->what,
		             limit);
	return NULL;
}

static Status
check_collective(Walk *w, const Instruction *n, int at)
{
	const Format *f = w->f;
	const Argument *a = &f->arguments[n->args];

	if (n->what >= (uint32_t)f->n[SECTION_COLLECTIVES])
		return FAULT("program %d, instruction %d: collective %u of %d", w->index, at,
		             n->what, f->n[SECTION_COLLECTIVES]);
	if (n->n_args != 2 && n->n_args != 4)
		return FAULT("program %d, instruction %d: a collective with %u arguments", w->index,
		             at, n->n_args);
	const CollectiveRecord *c = &f->collectives[n->what];
	int64_t bytes = dtype_bytes((DType)c->dtype, c->n);
	for (uint32_t i = 0; i < n->n_args; i++)
		if (f->slots[a[i].slot].bytes < bytes)
			return FAULT("program %d, instruction %d: %lld bytes in slot %u of %lld",
			             w->index, at, (long long)bytes, a[i].slot,
			             (long long)f->slots[a[i].slot].bytes);
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
	[RUN_KERNEL] = {-1, check_run},
	[COPY] = {2, check_copy},
	[FILL_ZERO] = {1, NULL},
	[RECORD] = {0, check_event},
	[COLLECTIVE] = {-1, check_collective},
	[WAIT] = {0, check_event},
	[LOOP] = {0, check_loop},
	[END] = {0, check_end},
};

static Status
check_instruction(Walk *w, int at)
{
	const Instruction *n = &w->f->instructions[at];

	if (n->kind >= N_INSTRUCTIONS || n->when >= N_WHEN || n->phase >= N_PHASES ||
	    n->stream >= N_STREAMS || n->only >= N_ONLY)
		return FAULT("program %d, instruction %d: kind %u, when %u, phase %u, stream %u, "
		             "only %u",
		             w->index, at, n->kind, n->when, n->phase, n->stream, n->only);
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
		             space_table[f->slots[p->slot].space].name);
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

/* The block of scalars lies where the host can fill it, or its twin is copied from. */
static Status
check_scalars(const Walk *w)
{
	const Format *f = w->f;
	uint32_t slot = w->program->scalars;

	if (slot == 0)
		return NULL;
	if (slot > (uint32_t)f->n[SECTION_SLOTS])
		return FAULT("program %d: scalars in slot %u of %d", w->index, slot - 1,
		             f->n[SECTION_SLOTS]);
	const Slot *s = &f->slots[slot - 1];
	if ((s->space != SPACE_IO && s->space != SPACE_STEP) || s->bytes < SCALARS_BYTES)
		return FAULT("program %d: scalars in %lld bytes of %s", w->index,
		             (long long)s->bytes, space_table[s->space].name);
	return check_reach(w, &(Argument){.slot = slot - 1}, (int)w->program->first_instruction);
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
	for (int s = 0; s < N_SPACES; s++)
		if (p->bytes[s] < 0 || p->bytes[s] > INT64_MAX / 16)
			return FAULT("program %d: a %s region of %lld bytes", index,
			             space_table[s].name, (long long)p->bytes[s]);
	if (p->n_events > MAX_EVENTS)
		return FAULT("program %d: %u events", index, p->n_events);
	RETURN_IF_ERROR(check_scalars(&w));
	if (!in_range(p->first_instruction, p->n_instructions, f->n[SECTION_INSTRUCTIONS]))
		return FAULT("program %d: instructions %u + %u of %d", index, p->first_instruction,
		             p->n_instructions, f->n[SECTION_INSTRUCTIONS]);
	for (uint32_t i = 0; i < p->n_instructions; i++)
		RETURN_IF_ERROR(check_instruction(&w, (int)(p->first_instruction + i)));
	if (w.depth != 0)
		return FAULT("program %d: %d loops do not end", index, w.depth);
	return check_ports(&w);
}

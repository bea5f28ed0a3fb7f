/* Checks one program of an executable's tables (a list of instructions): arguments lie inside their regions of memory,
 * loops close, events and streams exist, ports (inputs and outputs) are valid. */
#include "format/checks.h"

typedef struct {
	const Format *f;
	const ProgramRecord *program;
	const RunFacts *facts;
	int index;
	int depth;
	int64_t counts[MAX_LOOPS];
	bool is_branch[MAX_LOOPS];
	int64_t limits[N_SPACES]; /* size of each region */
} Walk;
/* The iterations of a launch. */
typedef struct {
	int64_t begin, end;
} LaunchRange;

static void
set_limits(Walk *w, const int64_t limits[N_SPACES])
{
	for (int s = 0; s < N_SPACES; s++)
		w->limits[s] = s == SPACE_STATE || space_table[s].by_slots ? limits[s]
		                                                           : w->program->bytes[s];
}

/* Are we inside a loop without iterations? */
static bool
never_runs(const Walk *w)
{
	for (int i = 0; i < w->depth; i++)
		if (w->counts[i] == 0)
			return true;
	return false;
}

/* A slot that moves by `stride` bytes per iteration, in either direction, must stay inside its region. Shared slots need no
 * stride: format_place moves them. */
static Status
check_reach(const Walk *w, const Argument *a, int at)
{
	if (never_runs(w))
		return NULL;
	const Slot *s = &w->f->slots[a->slot];
	int64_t limit = w->limits[s->space], count = a->loop ? w->counts[a->loop - 1] : 1;
	int64_t last = 0;
	SlotPlace place;

	bool back = a->stride < 0;
	if (count > 1 &&
	    (a->stride == INT64_MIN || !size_mul(back ? -a->stride : a->stride, count - 1, &last) ||
	     (a->stride != 0 && s->share != SLOT_WHOLE) || (back && last > s->offset)))
		return FAULT("program %d, instruction %d: stride %lld over %lld iterations",
		             w->index, at, (long long)a->stride, (long long)count);
	last = back ? 0 : last;
	if (!format_place(s, w->facts, count > 1 ? count - 1 : 0, &place) ||
	    !size_add(last, place.offset, &last) || !size_add(last, place.bytes, &last) ||
	    last > limit)
		return FAULT(
			"program %d, instruction %d: slot %u ends at %lld, its %s region at %lld",
			w->index, at, a->slot, (long long)last, space_table[s->space].name,
			(long long)limit);
	return NULL;
}

/* The bytes of an argument whose place check_reach has checked. */
static int64_t
bytes_of(const Walk *w, const Argument *a)
{
	SlotPlace place;

	return format_place(&w->f->slots[a->slot], w->facts, 0, &place) ? place.bytes : 0;
}

/* Does every run that executes the instruction have the region of argument i? A collective touches its last two arguments, the
 * copies, only if the communicator cannot read the device's memory. */
static bool
has_region(const Walk *w, const Instruction *n, uint32_t i)
{
	const Slot *s = &w->f->slots[w->f->arguments[n->args + i].slot];
	uint32_t holds = n->only | (n->kind == COLLECTIVE && i >= 2 ? ONLY_STAGED : 0u) |
	                 (w->program->mode != MODE_DDP ? ONLY_RANKS : 0u);

	return ((space_table[s->space].only | s->only) & ~holds) == 0;
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
		if (!has_region(w, n, i))
			return FAULT("program %d, instruction %d: slot %u lies in %s, which not "
			             "every run of it has",
			             w->index, at, a->slot,
			             space_table[f->slots[a->slot].space].name);
		if (only_applies(f->slots[a->slot].only,
		                 w->facts)) /* else no instruction touches the slot */
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
	int64_t count = format_loop_count(n->what, w->facts);
	int64_t all = count;
	for (int i = 0; i < w->depth; i++)
		if (!size_mul(all, w->counts[i], &all))
			all = INT64_MAX;
	if (all > MAX_ITERATIONS)
		return FAULT("program %d, instruction %d: %lld iterations, at most %d", w->index,
		             at, (long long)all, MAX_ITERATIONS);
	w->is_branch[w->depth] = false;
	w->counts[w->depth++] = count;
	return NULL;
}

/* The argument of a BRANCH or LEAVE must be a bool that the host can read. */
static Status
check_flag(const Walk *w, const Instruction *n, int at)
{
	const Slot *s = &w->f->slots[w->f->arguments[n->args].slot];

	if (s->dtype != BOOL || s->bytes < 1 || s->share != SLOT_WHOLE)
		return FAULT("program %d, instruction %d: %s asks %lld bytes of %s", w->index, at,
		             instruction_names[n->kind], (long long)s->bytes,
		             dtype_info[s->dtype].name);
	if (n->when != WHEN_ALWAYS || n->only != ONLY_ALWAYS || n->stream != STREAM_COMPUTE)
		return FAULT("program %d, instruction %d: %s not in every run", w->index, at,
		             instruction_names[n->kind]);
	return NULL;
}

static Status
check_branch(Walk *w, const Instruction *n, int at)
{
	if (w->depth == MAX_LOOPS)
		return FAULT("program %d, instruction %d: loops nest deeper than %d", w->index, at,
		             MAX_LOOPS);
	if (n->what > 1)
		return FAULT("program %d, instruction %d: a branch where a bool is %u", w->index,
		             at, n->what);
	RETURN_IF_ERROR(check_flag(w, n, at));
	w->is_branch[w->depth] = true;
	w->counts[w->depth++] = 1;
	return NULL;
}

static Status
check_leave(Walk *w, const Instruction *n, int at)
{
	if (w->depth == 0 || w->is_branch[w->depth - 1])
		return FAULT("program %d, instruction %d: LEAVE outside of a LOOP", w->index, at);
	return check_flag(w, n, at);
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

/* For an argument that is a part: finds the iterations of the part. All such arguments of a launch must give the same
 * iterations. */
static Status
check_part(const Walk *w, const KernelArgument *a, const SlotPlace *place, LaunchRange *range)
{
	bool first = range->begin < 0;
	int64_t begin = a->each ? place->first / a->each : -1;
	int64_t end = a->each ? begin + place->bytes / a->each : -1;

	if (a->each == 0 || place->first % a->each || place->bytes % a->each ||
	    place->bytes > a->bytes || place->first > a->bytes - place->bytes ||
	    (!first && (begin != range->begin || end != range->end)))
		return FAULT(
			"program %d: a part of %lld bytes at %lld of an argument of %lld, whose "
			"iterations touch %lld each",
			w->index, (long long)place->bytes, (long long)place->first,
			(long long)a->bytes, (long long)a->each);
	*range = (LaunchRange){begin, end};
	return NULL;
}

/* Checks a launch of some of the iterations. Such a launch must not write whole arguments, because that would need all
 * iterations. */
static Status
check_parts(const Walk *w, const KernelRecord *k, const Instruction *n, int at)
{
	const Format *f = w->f;
	LaunchRange range = {-1, -1};

	for (uint32_t i = 0; i < n->n_args; i++) {
		const Slot *s = &f->slots[f->arguments[n->args + i].slot];
		const KernelArgument *a = &f->kernel_arguments[k->first_argument + i];
		SlotPlace place;
		if (s->share == SLOT_WHOLE && (a->access & ACCESS_WRITE))
			return FAULT(
				"program %d, instruction %d: some iterations of kernel %u write "
				"argument %u, which is whole",
				w->index, at, n->what, i);
		if (s->share == SLOT_WHOLE)
			continue;
		if (s->share != SLOT_PART || !format_place(s, w->facts, 0, &place))
			return FAULT("program %d, instruction %d: argument %u is no part", w->index,
			             at, i);
		RETURN_IF_ERROR(check_part(w, a, &place, &range));
	}
	return NULL;
}

static bool
has_parts(const Walk *w, const Instruction *n)
{
	for (uint32_t i = 0; i < n->n_args; i++)
		if (w->f->slots[w->f->arguments[n->args + i].slot].share != SLOT_WHOLE)
			return true;
	return false;
}

/* Checks that the launch's arguments have the kernel's types and all bytes that the kernel may touch. */
static Status
check_launch(const Walk *w, const KernelRecord *k, const Instruction *n, int at)
{
	const Format *f = w->f;

	if (n->n_args != k->n_arguments)
		return FAULT("program %d, instruction %d: %u arguments, kernel %u has %u", w->index,
		             at, n->n_args, n->what, k->n_arguments);
	int64_t last = k->n_arguments ? bytes_of(w, &f->arguments[n->args + n->n_args - 1]) : 0;
	int64_t end;
	bool parts = k->elements == 0 && has_parts(w, n);
	if (parts)
		RETURN_IF_ERROR(check_parts(w, k, n, at));
	if (!format_launch_end(f, k, last, &end))
		return FAULT("program %d, instruction %d: kernel %u cannot be cut for %lld bytes",
		             w->index, at, n->what, (long long)last);
	for (uint32_t i = 0; i < k->n_arguments; i++) {
		const KernelArgument *a = &f->kernel_arguments[k->first_argument + i];
		const Slot *s = &f->slots[f->arguments[n->args + i].slot];
		int64_t need = k->elements ? a->bytes / k->iterations * end : a->bytes;
		int64_t bytes = bytes_of(w, &f->arguments[n->args + i]);
		need = parts && s->share != SLOT_WHOLE
		               ? 0
		               : need; /* check_parts has checked its bytes */
		if (s->dtype != a->dtype || bytes < need)
			return FAULT("program %d, instruction %d: argument %u is %lld bytes of "
			             "%s, kernel %u has %lld of %s",
			             w->index, at, i, (long long)bytes, dtype_info[s->dtype].name,
			             n->what, (long long)need, dtype_info[a->dtype].name);
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
	if (k->reads_scalars && !w->program->scalars)
		return FAULT("program %d, instruction %d: kernel %u reads scalars, the program "
		             "has none",
		             w->index, at, n->what);
	return check_launch(w, k, n, at);
}

static Status
check_event(Walk *w, const Instruction *n, int at)
{
	uint32_t limit = N_SHARED_EVENTS + w->program->n_events;

	if (n->what >= limit)
		return FAULT("program %d, instruction %d: event %u of %u", w->index, at, n->what,
		             limit);
	if (n->kind == RECORD && n->what < N_SHARED_EVENTS &&
	    n->stream != event_table[n->what].stream)
		return FAULT("program %d, instruction %d: %s recorded on %s", w->index, at,
		             event_table[n->what].name, stream_names[n->stream]);
	return NULL;
}

/* The bytes that a collective writes to its argument `to`, or reads from its argument `from`. */
static int64_t
collective_bytes(const Walk *w, const CollectiveRecord *c, bool to)
{
	RunGroup g = run_group(w->facts, c->group);
	int64_t n = format_collective_elements(c, w->facts);
	CommPart part = comm_part(n, g.n, g.own, c->block);
	int64_t room = comm_part_room(n, g.n, c->block), rooms;
	bool own = to ? c->kind == COMM_REDUCE_SCATTER : c->kind == COMM_ALL_GATHER;

	if (to && c->kind == COMM_ALL_TO_ALL)
		return size_mul(room, g.n, &rooms) && rooms <= INT64_MAX / 64
		               ? dtype_bytes((DType)c->dtype, rooms)
		               : INT64_MAX;
	return dtype_bytes((DType)c->dtype, own ? part.n : n);
}

static Status
check_collective(Walk *w, const Instruction *n, int at)
{
	const Format *f = w->f;
	const Argument *a = &f->arguments[n->args];

	if (n->what >= (uint32_t)f->n[SECTION_COLLECTIVES])
		return FAULT("program %d, instruction %d: collective %u of %d", w->index, at,
		             n->what, f->n[SECTION_COLLECTIVES]);
	if (n->n_args != 4 || n->stream != STREAM_COMMUNICATION)
		return FAULT("program %d, instruction %d: a collective with %u arguments on %s",
		             w->index, at, n->n_args, stream_names[n->stream]);
	for (uint32_t i = 0; i < n->n_args; i++) {
		Space space = (Space)f->slots[a[i].slot].space;
		if (i >= 2 && !space_table[space].on_host)
			return FAULT("program %d, instruction %d: argument %u of a collective lies "
			             "in %s, which the host does not read",
			             w->index, at, i, space_table[space].name);
		int64_t need = collective_bytes(w, &f->collectives[n->what], i % 2 == 0);
		if (bytes_of(w, &a[i]) < need)
			return FAULT("program %d, instruction %d: %lld bytes in slot %u of %lld",
			             w->index, at, (long long)need, a[i].slot,
			             (long long)bytes_of(w, &a[i]));
	}
	return NULL;
}

static Status
check_copy(Walk *w, const Instruction *n, int at)
{
	const Format *f = w->f;
	const Argument *a = &f->arguments[n->args];

	if (bytes_of(w, &a[0]) > bytes_of(w, &a[1]))
		return FAULT("program %d, instruction %d: copies %lld bytes from a slot of %lld",
		             w->index, at, (long long)bytes_of(w, &a[0]),
		             (long long)bytes_of(w, &a[1]));
	return NULL;
}

static const struct {
	int n_args; /* number of arguments; -1: any */
	Status (*check)(Walk *w, const Instruction *n, int at);
} kinds[N_INSTRUCTIONS] = {
	[RUN_KERNEL] = {-1, check_run},
	[COPY] = {2, check_copy},
	[FILL_ZERO] = {1, NULL},
	[RECORD] = {0, check_event},
	[COLLECTIVE] = {-1, check_collective},
	[WAIT] = {0, check_event},
	[LOOP] = {0, check_loop},
	[BRANCH] = {1, check_branch},
	[LEAVE] = {1, check_leave},
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
	if (!only_applies(n->only, w->facts) && !instruction_opens(n->kind) && n->kind != END)
		return NULL;
	RETURN_IF_ERROR(check_arguments(w, n, at));
	return kinds[n->kind].check ? kinds[n->kind].check(w, n, at) : NULL;
}

/* A port's slot must lie inside its region, inputs in io. The port's number of samples must be the binding's. */
static Status
check_program_port(const Walk *w, uint32_t index, bool input)
{
	const Format *f = w->f;
	const PortRecord *p = &f->ports[index];
	const Argument whole = {.slot = p->slot};

	if (input != port_is_input(p->kind))
		return FAULT("program %d: port %u is %s among the %s", w->index, index,
		             port_kind_names[p->kind], input ? "inputs" : "outputs");
	if (p->kind >= PORT_LOSS_SUM &&
	    (f->slots[p->slot].space != SPACE_STEP || p->rank || !dtype_is_float((DType)p->dtype)))
		return FAULT("program %d: %s port %u is %s of rank %u in %s", w->index,
		             port_kind_names[p->kind], index, dtype_info[p->dtype].name, p->rank,
		             space_table[f->slots[p->slot].space].name);
	if (input && f->slots[p->slot].space != SPACE_IO)
		return FAULT("program %d: input port %u lies in %s", w->index, index,
		             space_table[f->slots[p->slot].space].name);
	if (space_table[f->slots[p->slot].space].only != ONLY_ALWAYS)
		return FAULT("program %d: port %u lies in %s, which not every run has", w->index,
		             index, space_table[f->slots[p->slot].space].name);
	if (input && p->sample_axis >= 0 &&
	    f->dims[p->first_dim + (uint32_t)p->sample_axis] !=
	            f->bindings[w->program->binding].rows)
		return FAULT("program %d: port %u has %lld rows, the binding %lld", w->index, index,
		             (long long)f->dims[p->first_dim + (uint32_t)p->sample_axis],
		             (long long)f->bindings[w->program->binding].rows);
	PortRows rows;
	if (p->repeats && !format_port_rows(f, p, f->bindings[w->program->binding].rows, &rows))
		return FAULT("program %d: port %u: axis %u does not hold the binding's %lld rows",
		             w->index, index, p->row_axis,
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

/* The scalar block must lie in the region io or step. The host fills these regions directly, or through their twins in
 * its own memory. */
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
	if ((s->space != SPACE_IO && s->space != SPACE_STEP) || s->bytes < SCALARS_BYTES ||
	    s->share != SLOT_WHOLE || s->offset % (int64_t)sizeof(Scalar) != 0)
		return FAULT("program %d: scalars in %lld bytes at %lld of %s", w->index,
		             (long long)s->bytes, (long long)s->offset, space_table[s->space].name);
	return check_reach(w, &(Argument){.slot = slot - 1}, (int)w->program->first_instruction);
}

Status
format_check_program(const Format *f, int index, const RunFacts *facts,
                     const int64_t limits[N_SPACES])
{
	const ProgramRecord *p = &f->programs[index];
	Walk w = {.f = f, .program = p, .facts = facts, .index = index};

	if (p->role >= N_ROLES || !role_is_program(p->role) ||
	    p->binding >= (uint32_t)f->n[SECTION_BINDINGS])
		return FAULT("program %d: role %u, binding %u of %d", index, p->role, p->binding,
		             f->n[SECTION_BINDINGS]);
	if (p->target >= (uint32_t)f->n[SECTION_TARGETS] || p->on_host > 1)
		return FAULT("program %d: target %u of %d", index, p->target,
		             f->n[SECTION_TARGETS]);
	if (p->stage > MAX_STAGES || p->mode >= N_MODES)
		return FAULT("program %d: stage %u, mode %u", index, p->stage, p->mode);
	for (int s = 0; s < N_SPACES; s++)
		if (p->bytes[s] < 0 || p->bytes[s] > INT64_MAX / 16)
			return FAULT("program %d: a %s region of %lld bytes", index,
			             space_table[s].name, (long long)p->bytes[s]);
	set_limits(&w, limits);
	for (int s = 0; s < N_SPACES; s++)
		if (p->bytes[space_table[s].twin] < p->bytes[s])
			return FAULT("program %d: the host's side of %s has %lld bytes of %lld",
			             index, space_table[s].name,
			             (long long)p->bytes[space_table[s].twin],
			             (long long)p->bytes[s]);
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

/* Writes a compiled module (after the pass `memory`) as the tables of the executable: ports,
 * programs, states, kernels. */
#include "codegen/emit/tables.h"
#include "codegen/schedule/schedule.h"

#include <string.h>

enum { SCALARS_ALIGNMENT = 64 };

/* ---- ports */
static void
write_port(TableWriter *tw, const Value *v, const char *name, PortKind kind, const PortInfo *info)
{
	PortRecord p = {.name = format_string(tw->w, name),
	                .kind = kind,
	                .dtype = v->type->dtype,
	                .rank = (uint32_t)v->type->rank,
	                .first_dim = format_dims(tw->w, v->type->rank, v->type->dims),
	                .slot = table_slot(tw, v),
	                .file_dtype = info ? info->file_dtype : v->type->dtype,
	                .sample_axis = info ? info->sample_axis : -1};

	if (info && info->bounded) {
		p.bounded = info->has_ignore ? 2 : 1;
		p.min = info->min;
		p.max = info->max;
		p.ignore = info->ignore;
	}
	vec_push(tw->w->arena, &tw->w->ports, p);
}

static void
write_input(TableWriter *tw, const Value *v)
{
	static const PortInfo weight = {.file_dtype = F64};
	const Tables *t = tw->t;
	PortInfo labels = t->labels;

	labels.sample_axis = v->rows_axis; /* the axis of samples in this version of the program */
	switch (v->param) {
	case PARAM_LABELS: write_port(tw, v, v->name, PORT_LABELS, &labels); break;
	case PARAM_SAMPLE_WEIGHT: write_port(tw, v, v->name, PORT_WEIGHT, &weight); break;
	default:
		write_port(tw, v, v->name, PORT_INPUT,
		           v->number < t->n_inputs ? &t->inputs[v->number] : NULL);
	}
}

/* For each role of a program: the kinds of the program's results. */
typedef struct {
	PortKind result; /* kind of the results after the listed results */
	int n_listed;
	PortKind listed[6]; /* kinds of the first results */
} RoleResults;
static const RoleResults role_results[N_ROLES] = {
	[ROLE_FORWARD] = {PORT_OUTPUT},
	[ROLE_EVAL] = {PORT_OUTPUT},
	[ROLE_ACCUMULATE] = {PORT_GRADIENT},
	[ROLE_ESTIMATE] = {PORT_GRADIENT},
	[ROLE_REFRESH] = {PORT_GRADIENT},
	[ROLE_UPDATE] = {PORT_NORM,
                         6,
                         {PORT_LOSS_SUM, PORT_LOSS_COUNT, PORT_NORM, PORT_LOSS_SCALE, PORT_MADE,
                          PORT_FAILED}},
};

static void
write_results(TableWriter *tw, const Function *f)
{
	const RoleResults *row = &role_results[f->role];
	const Node *ret = function_return(f);
	const Tables *t = tw->t;

	for (int i = 0; i < ret->n_operands; i++) {
		const char *name = i < f->result_names.n ? f->result_names.at[i] : "";
		PortKind kind = i < row->n_listed ? row->listed[i] : row->result;
		bool known = kind == PORT_OUTPUT && i < t->n_outputs;
		write_port(tw, node_operand(ret, i), name, kind, known ? &t->outputs[i] : NULL);
	}
}

/* 1 + the slot of the scalars that kernels read, which lies after all other data; 0: no kernel
 * reads a scalar. */
static uint32_t
write_scalars(TableWriter *tw, const Function *f)
{
	Slot s = {.space = tw->io_space,
	          .dtype = F64,
	          .offset = (tw->io + SCALARS_ALIGNMENT - 1) / SCALARS_ALIGNMENT *
	                    SCALARS_ALIGNMENT,
	          .bytes = SCALARS_BYTES,
	          .name = format_string(tw->w, "scalars")};

	if (!function_find_param(f, PARAM_HYPERPARAMETER, -1))
		return 0;
	vec_push(tw->w->arena, &tw->w->slots, s);
	table_grow(&tw->io, s.offset + s.bytes);
	return (uint32_t)tw->w->slots.n;
}

/* If a result is an unchanged state, adds an instruction that copies the state to the program's region of
 * results: a rank may hold only a part of the state itself. */
static void
report_state(TableWriter *tw, PortRecord *port, uint16_t phase)
{
	FormatWriter *w = tw->w;
	Slot s = w->slots.at[port->slot];
	Instruction in = {
		.kind = COPY, .phase = phase, .args = (uint32_t)w->arguments.n, .n_args = 2};

	if (s.space != SPACE_STATE)
		return;
	s.space = tw->io_space;
	s.offset = (tw->io + SCALARS_ALIGNMENT - 1) / SCALARS_ALIGNMENT * SCALARS_ALIGNMENT;
	table_grow(&tw->io, s.offset + s.bytes);
	vec_push(w->arena, &w->arguments, (Argument){.slot = (uint32_t)w->slots.n});
	vec_push(w->arena, &w->arguments, (Argument){.slot = port->slot});
	vec_push(w->arena, &w->instructions, in);
	port->slot = (uint32_t)w->slots.n;
	vec_push(w->arena, &w->slots, s);
}

static void
add_port_slots(TableWriter *tw, uint32_t first, uint32_t n, SlotList *out)
{
	for (uint32_t i = first; i < first + n; i++)
		vec_push(tw->arena, out, tw->w->ports.at[i].slot);
}

static void
check_events(TableWriter *tw, const ProgramRecord *p)
{
	if (p->n_events <= MAX_EVENTS)
		return;
	diag_error(tw->diag, EXIT_UNSUPPORTED,
	           "%s: its streams wait for each other %u times, at most %d have room in the "
	           "executable's tables",
	           role_names[p->role], p->n_events, MAX_EVENTS);
	tw->ok = false;
}

static void
write_program(TableWriter *tw, const Function *f, int target, DataParallelMode mode)
{
	FormatWriter *w = tw->w;
	int first_slot = w->slots.n;
	ProgramRecord p = {.role = f->role,
	                   .binding = (uint32_t)f->binding,
	                   .stage = (uint32_t)f->stage,
	                   .mode = (uint32_t)mode,
	                   .target = (uint32_t)target,
	                   .first_instruction = (uint32_t)w->instructions.n,
	                   .first_input = (uint32_t)w->ports.n};

	StreamPlan plan = {.m = tw->t->m,
	                   .role = f->role,
	                   .buckets = f->role == ROLE_ACCUMULATE || f->role == ROLE_ESTIMATE
	                                      ? &tw->buckets[mode]
	                                      : NULL};

	tw->slots = NEW_ARRAY(tw->arena, uint32_t, f->next_value_id + tw->t->m->states.n);
	tw->io_space = f->role == ROLE_UPDATE ? SPACE_STEP : SPACE_IO;
	tw->workspace = tw->io = tw->flops = 0;
	for (int i = 0; i < f->params.n; i++)
		if (f->params.at[i]->region == REGION_IO)
			write_input(tw, f->params.at[i]);
	p.n_inputs = (uint32_t)w->ports.n - p.first_input;
	p.first_output = (uint32_t)w->ports.n;
	write_results(tw, f);
	p.n_outputs = (uint32_t)w->ports.n - p.first_output;
	instructions_write(tw, f);
	for (uint32_t i = 0; i < p.n_outputs; i++)
		report_state(tw, &w->ports.at[p.first_output + i],
		             f->role == ROLE_UPDATE ? PHASE_UPDATE : PHASE_FORWARD);
	p.scalars = write_scalars(tw, f);
	if (p.scalars)
		vec_push(tw->arena, &plan.inputs, p.scalars - 1);
	add_port_slots(tw, p.first_input, p.n_inputs, &plan.inputs);
	add_port_slots(tw, p.first_output, p.n_outputs, &plan.results);
	p.bytes[SPACE_WORKSPACE] = tw->workspace;
	p.bytes[tw->io_space] = tw->io;
	p.flops = tw->flops;
	p.on_host = offload_on_host(f, mode);
	ShardPlan shard = {.arena = tw->arena,
	                   .w = w,
	                   .m = tw->t->m,
	                   .program = &p,
	                   .mode = mode,
	                   .first_slot = first_slot,
	                   .offloads = offload_changes(f, mode)};
	if (mode != MODE_DDP)
		shard_program(&shard);
	plan.travels = &shard.travels;
	plan.rooms_at = shard.gathered;
	streams_write(w, &plan, &p);
	for (int i = first_slot; i < w->slots.n; i++)
		w->slots.at[i].mode = p.mode;
	check_events(tw, &p);
	vec_push(w->arena, &w->programs, p);
}

static bool
is_for(const Versions *v, const Function *f, int target)
{
	return strcmp(f->target ? f->target : "", v->names.at[target]) == 0;
}

/* Is f a GPU program of the update that the host's CPU program of the update replaces? */
static bool
is_the_hosts(const Function *f, DataParallelMode mode)
{
	const Target *t = f->target ? target_find(f->target) : NULL;

	return t && t->kind != TARGET_CPU && offload_on_host(f, mode);
}

/* Writes the program for ranks that hold whole states, and a program for each mode that changes it. */
static void
write_modes(TableWriter *tw, const Function *f, int target)
{
	write_program(tw, f, target, MODE_DDP);
	for (DataParallelMode mode = MODE_ZERO1; mode < N_MODES; mode++)
		if (tw->t->m->modes >> mode & 1 && shard_changes(f, mode) && !is_the_hosts(f, mode))
			write_program(tw, f, target, mode);
}

static void
write_programs(TableWriter *tw, int target)
{
	for (int b = 0; b < tw->t->n_bindings; b++)
		for (Role role = 0; role < N_ROLES; role++)
			for_each_function(tw->t->m, f)
				if (role_is_program(role) && f->role == role && f->binding == b &&
				    is_for(&tw->versions, f, target))
					write_modes(tw, f, target);
}

static void
write_target(FormatWriter *w, const char *name)
{
	TargetRecord r = {.name = format_string(w, name)};

	vec_push(w->arena, &w->targets, r);
}

/* ---- states and kernels */
enum { PAGE = 4096 };

/* Returns the weight's place in the file. Loading maps pages of the file to memory, so a weight
 * must have the same offset within a page as its state. Weights whose states follow each other in
 * memory also follow each other in the file. */
static int64_t
place_weights(TableWriter *tw, const State *s)
{
	int64_t end = tw->w->weights_bytes, gap = s->offset - tw->state_end;

	if (end == 0 || gap < 0 || gap > PAGE)
		tw->shift = (end + PAGE - 1) / PAGE * PAGE + s->offset % PAGE - s->offset;
	tw->state_end = s->offset + type_bytes(s->type);
	tw->w->weights_bytes = tw->state_end + tw->shift;
	return s->offset + tw->shift;
}

static void
write_state(TableWriter *tw, const State *s)
{
	FormatWriter *w = tw->w;
	const StateSource *source = tw->t->sources && s->id < tw->t->n_sources
	                                    ? &tw->t->sources[s->id]
	                                    : NULL;
	StateRecord r = {
		.name = format_string(w, s->name),
		.why = format_string(w, s->why ? s->why : ""),
		.path = format_string(w, s->path ? s->path : ""),
		.dtype = s->type->dtype,
		.rank = (uint32_t)s->type->rank,
		.first_dim = format_dims(w, s->type->rank, s->type->dims),
		.kind = s->kind,
		.lifetime = s->lifetime,
		.trainable = s->trainable,
		.decay = s->decay,
		.init = s->init,
		.of = s->of ? (uint32_t)s->of->id + 1 : 0,
		.unit = s->unit ? (uint32_t)s->unit->id + 1 : 0,
		.lr_scale = s->lr_scale,
		.init_a = s->init_a,
		.init_b = s->init_b,
		.offset = s->offset,
		.bytes = type_bytes(s->type),
		.data_offset = -1,
		.file_dtype = source ? source->dtype : s->type->dtype,
		.parameter = format_string(w, source && source->parameter ? source->parameter : ""),
		.transposed = source && source->transposed,
		.number = (uint32_t)s->number,
		.sharded = s->sharded,
		.block = (uint32_t)s->block,
		.offloaded = s->offloaded};

	if (s->init == INIT_DATA && s->data)
		r.data_offset = place_weights(tw, s);
	vec_push(w->arena, &w->states, r);
}

static void
write_adapters(TableWriter *tw)
{
	const Module *m = tw->t->m;

	for (int i = 0; i < m->adapters.n; i++) {
		const Adapter *a = &m->adapters.at[i];
		AdapterModules named = tw->t->adapters ? tw->t->adapters[i] : (AdapterModules){0};
		AdapterRecord r = {
			.weight = (uint32_t)a->weight->id,
			.a = (uint32_t)a->a->id,
			.b = (uint32_t)a->b->id,
			.axis = (uint32_t)a->axis,
			.readers = a->readers,
			.rslora = a->rslora,
			.pissa = a->pissa,
			.base = a->base,
			.magnitude = a->magnitude ? (uint32_t)a->magnitude->id + 1 : 0,
			.alpha = a->alpha,
			.product = format_string(tw->w, named.product ? named.product : ""),
			.table = format_string(tw->w, named.table ? named.table : "")};
		vec_push(tw->w->arena, &tw->w->adapters, r);
	}
}

static void
write_four_bit(TableWriter *tw)
{
	const Module *m = tw->t->m;

	for (int i = 0; i < m->four_bit.n; i++) {
		const FourBitWeight *w = &m->four_bit.at[i];
		FourBitRecord r = {.codes = (uint32_t)w->codes->id,
		                   .absmax = (uint32_t)w->absmax->id,
		                   .nested = w->nested ? (uint32_t)w->nested->id + 1 : 0,
		                   .offset = w->offset ? (uint32_t)w->offset->id + 1 : 0,
		                   .kind = w->kind,
		                   .dtype = w->type->dtype,
		                   .rank = (uint32_t)w->type->rank,
		                   .first_dim = format_dims(tw->w, w->type->rank, w->type->dims),
		                   .axis = (uint32_t)w->axis};
		vec_push(tw->w->arena, &tw->w->four_bit, r);
	}
}

/* An estimate of how many iterations of the kernel take ten microseconds. Waking a thread takes
 * about as long, so a thread should run at least this many iterations. */
static int64_t
kernel_grain(const KernelRecord *r)
{
	double iteration = kernel_estimate(r) / (double)(r->iterations ? r->iterations : 1);

	return iteration < 10000 ? (int64_t)(10000 / (iteration + 1)) + 1 : 1;
}

/* 1 + the number of the library call's record; 0: the kernel has no library call. */
static uint32_t
write_library(FormatWriter *w, const Kernel *k)
{
	const LibraryLimits *l = k->n_team ? &team_tuning.library : &cpu_tuning.library;

	if (!k->library)
		return 0;
	LibraryRecord r = {.call = *k->library,
	                   .scratch_limit = k->library->kind == LIBRARY_DOT ? l->most_scratch
	                                                                    : l->most_conv_scratch};
	vec_push(w->arena, &w->library, r);
	return (uint32_t)w->library.n;
}

static void
write_kernel(TableWriter *tw, int index)
{
	FormatWriter *w = tw->w;
	const Module *m = tw->t->m;
	const Kernel *k = m->kernels.at[index];
	KernelArgument *arguments = NEW_ARRAY(tw->arena, KernelArgument,
	                                      k->n_inputs + k->n_outputs);
	KernelRecord r;

	kernel_record(k, &r, arguments);
	r.name = format_string(w, k->name);
	r.first_argument = (uint32_t)w->kernel_arguments.n;
	for (uint32_t i = 0; i < r.n_arguments; i++)
		vec_push(w->arena, &w->kernel_arguments, arguments[i]);
	for (int t = 0; t < tw->versions.names.n; t++)
		r.targets |= (uint32_t)tw->versions.needs[t][index] << t;
	r.grain = kernel_grain(&r);
	r.library = write_library(w, k);
	r.serves = k->serves ? table_kernel(tw, k->serves) + 1 : 0;
	vec_push(w->arena, &w->kernels, r);
}

/* Are there few enough targets? A kernel's record has one bit for each target. */
static bool
check_targets(const TableWriter *tw)
{
	int n = tw->versions.names.n;

	if (n > MAX_TARGETS)
		diag_error(tw->diag, EXIT_UNSUPPORTED,
		           "%s: programs for %d targets, an executable has at most %d",
		           tw->t->m->name, n, MAX_TARGETS);
	return n <= MAX_TARGETS;
}

static void
write_module(TableWriter *tw)
{
	FormatWriter *w = tw->w;
	const Tables *t = tw->t;

	for (int i = 0; i < tw->versions.names.n; i++)
		write_target(w, tw->versions.names.at[i]);
	for (int i = 0; i < t->n_bindings; i++) {
		BindingRecord binding = {.text = format_string(w, t->bindings[i].text),
		                         .rows = t->bindings[i].rows};
		vec_push(w->arena, &w->bindings, binding);
	}
	if (module_program(t->m, ROLE_UPDATE, 0))
		/* otherwise the module cannot be trained */
		for (int mode = 0; mode < N_MODES; mode++)
			tw->buckets[mode] = buckets_of(tw->arena, t->m, (DataParallelMode)mode);
	for (int i = 0; i < t->m->states.n; i++)
		write_state(tw, t->m->states.at[i]);
	write_adapters(tw);
	write_four_bit(tw);
	for (int i = 0; i < t->m->kernels.n; i++)
		write_kernel(tw, i);
	for (int i = 0; i < tw->versions.names.n; i++)
		write_programs(tw, i);
	w->state_bytes = t->m->state_bytes;
}

bool
tables_write(FormatWriter *w, const Tables *t, Diag *diag)
{
	TableWriter tw = {.w = w, .t = t, .diag = diag, .ok = true, .arena = arena_new()};

	tw.kernels = intmap_new(tw.arena);
	for (int i = 0; i < t->m->kernels.n; i++)
		intmap_put(tw.kernels, (uint64_t)(uintptr_t)t->m->kernels.at[i], (uint64_t)i);

	tw.versions = module_versions(tw.arena, t->m);
	if (check_targets(&tw))
		write_module(&tw);
	else
		tw.ok = false;
	arena_free(tw.arena);
	return tw.ok;
}

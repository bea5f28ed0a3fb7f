/* Writes a compiled module (after the pass `events`) as the tables of the executable: programs with
 * their inputs and results, states, kernels. Everything is decided: this file only writes records.
 * The numbers in a program count from the program's own lists; in the tables they count from the
 * lists of all programs: slot 0 of the second program follows the last slot of the first. */
#include "codegen/build/build.h"
#include "codegen/emit/emit.h"
#include "codegen/legalize/legalize.h"
#include "ir/programs/programs.h"

#include <string.h>

typedef struct {
	FormatWriter *w;
	const Tables *t;
	Arena *arena;
	Versions versions;
	/* of the weight written last. shift: its place in the file minus its state's offset;
	 * state_end: where its state ends */
	int64_t shift, state_end;
} TableWriter;

/* ---- programs */
/* The numbers of the program's first slot, argument and so on in the tables. */
typedef struct {
	uint32_t slot, argument, collective;
	const StrRef *names;
} First;

/* What the caller knows about an input or a result, besides the program; NULL: nothing. */
static const PortInfo *
port_info(const Tables *t, const ProgramPort *port)
{
	static const PortInfo weight = {.file_dtype = F64};

	switch (port->kind) {
	case PORT_LABELS: return &t->labels;
	case PORT_WEIGHT: return &weight;
	case PORT_INPUT: return port->number < t->n_inputs ? &t->inputs[port->number] : NULL;
	case PORT_OUTPUT: return port->number < t->n_outputs ? &t->outputs[port->number] : NULL;
	default: return NULL;
	}
}

static void
write_rows(PortRecord *r, const OutputRows *rows)
{
	r->row_axis = (uint32_t)rows->row_axis;
	r->repeats = (uint32_t)rows->repeats;
	r->mixes_rows = rows->mixes_rows;
	r->compared = rows->compared;
	r->class_axis = (uint32_t)rows->class_axis;
}

static void
write_port(TableWriter *tw, const Program *p, const ProgramPort *port, const First *first)
{
	const PortInfo *info = port_info(tw->t, port);
	Type type = port->type;
	PortRecord r = {.name = first->names[port->name],
	                .kind = port->kind,
	                .dtype = type->dtype,
	                .rank = (uint32_t)type->rank,
	                .first_dim = format_dims(tw->w, type->rank, type->dims),
	                .slot = first->slot + port->slot,
	                .file_dtype = info ? info->file_dtype : type->dtype,
	                .sample_axis = port->kind == PORT_LABELS ? port->rows_axis
	                               : info                    ? info->sample_axis
	                                                         : -1};

	if (info && port->kind == PORT_OUTPUT)
		write_rows(&r, &tw->t->rows[p->binding * tw->t->n_outputs + port->number]);
	if (info && info->bounded) {
		r.bounded = info->has_ignore ? 2 : 1;
		r.min = info->min;
		r.max = info->max;
		r.ignore = info->ignore;
	}
	vec_push(tw->w->arena, &tw->w->ports, r);
}

/* References to the program's names in the string pool. */
static StrRef *
write_names(TableWriter *tw, const Program *p)
{
	StrRef *names = NEW_ARRAY(tw->arena, StrRef, p->names.n);

	for (int i = 0; i < p->names.n; i++)
		names[i] = format_string(tw->w, p->names.at[i]);
	return names;
}

static void
write_slots(FormatWriter *w, const Program *p, const StrRef *names)
{
	for (int i = 0; i < p->slots.n; i++) {
		Slot s = p->slots.at[i];
		s.name = names[s.name];
		s.mode = p->mode;
		format_slot(w, s);
	}
}

static void
write_instructions(FormatWriter *w, const Program *p, const First *first)
{
	for (int i = 0; i < p->arguments.n; i++) {
		Argument a = p->arguments.at[i];
		a.slot += first->slot;
		vec_push(w->arena, &w->arguments, a);
	}
	for (int i = 0; i < p->collectives.n; i++)
		vec_push(w->arena, &w->collectives, p->collectives.at[i]);
	for (int i = 0; i < p->instructions.n; i++) {
		Instruction n = p->instructions.at[i];
		/* RECORD and WAIT hold 0. Every other kind holds the number of an argument: LOOP
		 * and END have none, and hold the number that the next argument has */
		bool has_arguments = n.kind != RECORD && n.kind != WAIT;
		n.args += has_arguments ? first->argument : 0;
		n.what += n.kind == COLLECTIVE ? first->collective : 0;
		n.origin = first->names[n.origin];
		vec_push(w->arena, &w->instructions, n);
	}
}

static void
write_program(TableWriter *tw, const Program *p)
{
	FormatWriter *w = tw->w;
	First first = {(uint32_t)w->slots.n, (uint32_t)w->arguments.n, (uint32_t)w->collectives.n,
	               write_names(tw, p)};
	ProgramRecord r = {
		.role = p->role,
		.binding = (uint32_t)p->binding,
		.stage = (uint32_t)p->stage,
		.mode = (uint32_t)p->mode,
		.target = (uint32_t)version_index(&tw->versions, p->target ? p->target : ""),
		.on_host = p->on_host,
		.first_instruction = (uint32_t)w->instructions.n,
		.n_instructions = (uint32_t)p->instructions.n,
		.first_input = (uint32_t)w->ports.n,
		.n_inputs = (uint32_t)p->inputs.n,
		.first_output = (uint32_t)(w->ports.n + p->inputs.n),
		.n_outputs = (uint32_t)p->outputs.n,
		.scalars = p->scalars ? first.slot + p->scalars : 0,
		.n_events = p->n_events,
		.flops = p->flops};

	memcpy(r.bytes, p->bytes, sizeof(r.bytes));
	for (int i = 0; i < p->inputs.n; i++)
		write_port(tw, p, &p->inputs.at[i], &first);
	for (int i = 0; i < p->outputs.n; i++)
		write_port(tw, p, &p->outputs.at[i], &first);
	write_slots(w, p, first.names);
	write_instructions(w, p, &first);
	vec_push(w->arena, &w->programs, r);
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

static int64_t
whole(double x)
{
	return x < 0x1p63 ? (int64_t)x : INT64_MAX;
}

/* What a run of the kernel asks of a machine, in whole numbers. */
static void
set_work(KernelRecord *r, const Kernel *k)
{
	KernelWork work = kernel_work(k);

	r->bytes = whole(work.bytes);
	r->instructions = whole(work.instructions);
	r->matrix_flops = whole(work.matrix_flops);
	r->chained = work.chained;
	r->steps = whole(work.steps);
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
	set_work(&r, k);
	r.name = format_string(w, k->name);
	r.first_argument = (uint32_t)w->kernel_arguments.n;
	for (uint32_t i = 0; i < r.n_arguments; i++)
		vec_push(w->arena, &w->kernel_arguments, arguments[i]);
	for (int t = 0; t < tw->versions.names.n; t++)
		r.targets |= (uint32_t)tw->versions.needs[t][index] << t;
	r.grain = kernel_grain(&r);
	r.library = write_library(w, k);
	r.serves = k->serves ? (uint32_t)k->serves->id + 1 : 0;
	vec_push(w->arena, &w->kernels, r);
}

/* Are there few enough targets? A kernel's record has one bit for each target. */
static bool
check_targets(const TableWriter *tw, Diag *diag)
{
	int n = tw->versions.names.n;

	if (n > MAX_TARGETS)
		diag_error(diag, EXIT_UNSUPPORTED,
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
	for (int i = 0; i < t->m->states.n; i++)
		write_state(tw, t->m->states.at[i]);
	write_adapters(tw);
	write_four_bit(tw);
	for (int i = 0; i < t->m->kernels.n; i++)
		write_kernel(tw, i);
	for_each_program(t->m, p)
		write_program(tw, p);
	w->state_bytes = t->m->state_bytes;
}

bool
tables_write(FormatWriter *w, const Tables *t, Diag *diag)
{
	TableWriter tw = {.w = w, .t = t, .arena = arena_new()};

	tw.versions = module_versions(tw.arena, t->m);
	bool ok = check_targets(&tw, diag);
	if (ok)
		write_module(&tw);
	arena_free(tw.arena);
	return ok;
}

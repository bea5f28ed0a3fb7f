/* The pass `instructions`: makes programs of functions. Each function whose role is one of an
 * executable's programs becomes a program for every data-parallel mode that changes it. Nodes
 * become instructions (nodes.c), values become slots, parameters and results become inputs and
 * outputs:
 *
 *	func @forward(%x: f32[8,4] is input 0 at io+0) role forward {
 *	  %0 = launch %x, @w {kernel = @dot} : f32[8,2] at io+128
 *	  return %0
 *	}
 *
 *	program forward bytes io 192 {
 *	  %0 = slot io+0 f32 bytes 128 "x"
 *	  %1 = slot io+128 f32 bytes 64
 *	  %2 = slot state+0 f32 bytes 32 "w"
 *	  input %0 "x" input : f32[8,4]
 *	  output %1 output : f32[8,2]
 *	  run @dot (%0, %2, %1)
 *	}
 *
 * All instructions are on the compute stream, except copies of activations to and from the host's
 * memory. Programs for other modes than MODE_DDP are still equal to those for MODE_DDP; the pass
 * `shard` changes them. Functions stay in the module. */
#include "codegen/programs/instructions.h"
#include "codegen/codegen.h"
#include "codegen/legalize/legalize.h"
#include "codegen/target/target.h"
#include "format/format.h"

#include <string.h>

enum { SCALARS_ALIGNMENT = 64 };

/* ---- inputs and outputs */
static void
add_input(ProgramMaker *pm, const Value *v)
{
	PortKind kind = v->param == PARAM_LABELS          ? PORT_LABELS
	                : v->param == PARAM_SAMPLE_WEIGHT ? PORT_WEIGHT
	                                                  : PORT_INPUT;
	/* labels: the axis of samples in this version of the program */
	ProgramPort port = {.name = program_name(pm->p, v->name),
	                    .kind = kind,
	                    .type = v->type,
	                    .number = kind == PORT_INPUT ? v->number : 0,
	                    .rows_axis = kind == PORT_LABELS ? v->rows_axis : 0};

	port.slot = value_slot(pm, v);
	vec_push(pm->p->arena, &pm->p->inputs, port);
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
add_outputs(ProgramMaker *pm, const Function *f)
{
	const RoleResults *row = &role_results[f->role];
	const Node *ret = function_return(f);

	for (int i = 0; i < ret->n_operands; i++) {
		const char *name = i < f->result_names.n ? f->result_names.at[i] : "";
		const Value *v = node_operand(ret, i);
		ProgramPort port = {.name = program_name(pm->p, name),
		                    .kind = i < row->n_listed ? row->listed[i] : row->result,
		                    .type = v->type,
		                    .number = i};
		port.slot = value_slot(pm, v);
		vec_push(pm->p->arena, &pm->p->outputs, port);
	}
}

/* Gives the slot a place behind everything that the region of inputs and results holds. The place is part
 * of no state. */
static uint32_t
add_behind(ProgramMaker *pm, Slot s)
{
	int64_t *end = &pm->p->bytes[pm->io_space];

	s.space = pm->io_space;
	s.state = 0;
	s.offset = (*end + SCALARS_ALIGNMENT - 1) / SCALARS_ALIGNMENT * SCALARS_ALIGNMENT;
	*end = s.offset + s.bytes;
	return program_slot(pm->p, s);
}

/* Adds the slot of the scalars, if kernels read scalars. */
static void
add_scalars(ProgramMaker *pm, const Function *f)
{
	Slot s = {.dtype = F64, .bytes = SCALARS_BYTES, .name = program_name(pm->p, "scalars")};

	if (function_find_param(f, PARAM_HYPERPARAMETER, -1))
		pm->p->scalars = add_behind(pm, s) + 1;
}

/* If a result is an unchanged state, adds an instruction that copies the state to the program's region of
 * results: a rank may hold only a part of the state itself. */
static void
report_state(ProgramMaker *pm, ProgramPort *port)
{
	Program *p = pm->p;
	Instruction in = {.kind = COPY,
	                  .phase = p->role == ROLE_UPDATE ? PHASE_UPDATE : PHASE_FORWARD,
	                  .n_args = 2};

	if (p->slots.at[port->slot].space != SPACE_STATE)
		return;
	uint32_t slot = add_behind(pm, p->slots.at[port->slot]);
	in.args = program_arguments(p, 2, (const uint32_t[]){slot, port->slot});
	vec_push(p->arena, &p->instructions, in);
	port->slot = slot;
}

/* ---- programs */
static void
make_program(ProgramMaker *pm, const Function *f, DataParallelMode mode)
{
	Program *p = program_append(pm->m, f->role, f->binding);

	p->stage = f->stage;
	p->mode = mode;
	p->target = f->target;
	p->on_host = offload_on_host(f, mode);
	p->offloads = offload_changes(f, mode);
	pm->p = p;
	pm->slots = NEW_ARRAY(pm->pass->scratch, uint32_t, f->next_value_id + pm->m->states.n);
	pm->io_space = f->role == ROLE_UPDATE ? SPACE_STEP : SPACE_IO;
	for (int i = 0; i < f->params.n; i++)
		if (f->params.at[i]->region == REGION_IO)
			add_input(pm, f->params.at[i]);
	add_outputs(pm, f);
	nodes_add(pm, f);
	for (int i = 0; i < p->outputs.n; i++)
		report_state(pm, &p->outputs.at[i]);
	add_scalars(pm, f);
}

/* Is f a GPU program of the update that the host's CPU program of the update replaces? */
static bool
is_the_hosts(const Function *f, DataParallelMode mode)
{
	const Target *t = f->target ? target_find(f->target) : NULL;

	return t && t->kind != TARGET_CPU && offload_on_host(f, mode);
}

/* Makes the program for ranks that hold whole states, and a program for each mode that changes it. */
static void
make_modes(ProgramMaker *pm, const Function *f)
{
	make_program(pm, f, MODE_DDP);
	for (DataParallelMode mode = MODE_ZERO1; mode < N_MODES; mode++)
		if (pm->m->modes >> mode & 1 && shard_changes(f, mode) && !is_the_hosts(f, mode))
			make_program(pm, f, mode);
}

static int
count_bindings(const Module *m)
{
	int n = 0;

	for_each_function(m, f)
		n = f->role != ROLE_HELPER && f->binding >= n ? f->binding + 1 : n;
	return n;
}

static bool
is_for(const Function *f, const char *target)
{
	return strcmp(f->target ? f->target : "", target) == 0;
}

/* Programs stand in the order of their targets, bindings and roles. */
static void
make_for_target(ProgramMaker *pm, const char *target)
{
	int n_bindings = count_bindings(pm->m);

	for (int b = 0; b < n_bindings; b++)
		for (Role role = 0; role < N_ROLES; role++)
			for_each_function(pm->m, f)
				if (role_is_program(role) && f->role == role && f->binding == b &&
				    is_for(f, target))
					make_modes(pm, f);
}

static bool
run_instructions(Pass *pass, Module *m)
{
	ProgramMaker pm = {.pass = pass, .m = m, .ok = true};
	Versions versions = module_versions(pass->scratch, m);

	for (int i = 0; i < versions.names.n; i++)
		make_for_target(&pm, versions.names.at[i]);
	pass->changed = true;
	return pm.ok;
}

const PassRow pass_instructions = {.name = "instructions",
                                   .help = "make programs of functions: lists of instructions",
                                   .needed = true,
                                   .takes = STAGE_MEMORY,
                                   .leaves = STAGE_INSTRUCTIONS,
                                   .run = run_instructions};

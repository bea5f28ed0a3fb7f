/* Makes instructions of the nodes of a function, with the place in memory of each argument. The
 * body of a loop or branch stands between LOOP or BRANCH and END. Values of the body lie in the
 * caller's workspace. But the body's parameters and results lie where the operands and
 * results of the loop or branch lie. In the example, h is a carried value, and x and y are stacks
 * with a row for each iteration:
 *
 *	COPY   h <- initial            the loop's result h holds the carried value
 *	LOOP   35 times
 *	run    dot (h, R, workspace)
 *	run    tanh (workspace, x + 800 * iteration, h, y + 800 * iteration)
 *	END */
#include "codegen/programs/instructions.h"
#include "codegen/legalize/legalize.h"
#include "codegen/schedule/schedule.h"

/* A function that runs: a program, or the body of a node in another function. */
typedef struct Frame {
	const struct Frame *up; /* the function that contains node `by`; NULL: f is a program */
	const Node *by;
	const Function *f;
	uint32_t level; /* loops and branches around this function, as counted by Argument.loop */
	int64_t times;  /* how often the function runs at most */
} Frame;

static Space
space_of(const ProgramMaker *pm, Region r)
{
	const Space spaces[] = {[REGION_NONE] = SPACE_WORKSPACE,
	                        [REGION_WORKSPACE] = SPACE_WORKSPACE,
	                        [REGION_STATE] = SPACE_STATE,
	                        [REGION_IO] = pm->io_space,
	                        [REGION_HOST] = SPACE_HOST};

	return spaces[r];
}

static const char *
value_origin(const Value *v)
{
	return v->kind == VALUE_STATE   ? v->state->name
	       : v->kind == VALUE_PARAM ? v->name
	                                : loc_origin(v->node->loc);
}

/* Makes the region of the program large enough for bytes up to `end`. */
static void
grow(ProgramMaker *pm, Space space, int64_t end)
{
	if (end > pm->p->bytes[space])
		pm->p->bytes[space] = end;
}

static uint32_t
new_slot(ProgramMaker *pm, const Value *v)
{
	Slot s = {.space = space_of(pm, v->region),
	          .dtype = v->type->dtype,
	          .offset = v->offset,
	          .bytes = type_bytes(v->type),
	          .name = program_name(pm->p, value_origin(v))};

	if (v->kind == VALUE_STATE && v->state->lifetime == LIFE_CONSTANT &&
	    v->region == REGION_STATE)
		s.state = (uint32_t)v->state->id + 1;
	if (s.space == SPACE_WORKSPACE)
		grow(pm, SPACE_WORKSPACE, s.offset + (s.bytes ? s.bytes : 1));
	if (v->region == REGION_IO)
		grow(pm, pm->io_space, s.offset + s.bytes);
	return program_slot(pm->p, s);
}

uint32_t
value_slot(ProgramMaker *pm, const Value *v)
{
	if (!pm->slots[v->id])
		pm->slots[v->id] = 1 + new_slot(pm, v);
	return pm->slots[v->id] - 1;
}

/* ---- places */
static Argument place_of(ProgramMaker *pm, const Frame *frame, const Value *v);

/* The argument for one row of a stack. It advances by a row in each iteration of the loop. whole:
 * the argument for the whole stack. */
static Argument
row_of(ProgramMaker *pm, const Frame *frame, Argument whole, Type row)
{
	const LoopAttr *a = loop_of(frame->by);
	Slot s = pm->p->slots.at[whole.slot];
	int64_t bytes = type_bytes(row);

	s.bytes = bytes;
	s.offset += a->reverse && a->bound ? (a->bound - 1) * bytes : 0;
	return (Argument){.slot = program_slot(pm->p, s),
	                  .loop = frame->level,
	                  .stride = a->reverse ? -bytes : bytes};
}

static Argument
place_of_param(ProgramMaker *pm, const Frame *frame, const Value *v)
{
	const Node *n = frame->by;
	int i = (int)v->offset;

	if (!loop_of(n))
		return place_of(pm, frame->up, node_operand(n, 1 + i));
	switch (loop_part(n, i - 1)) {
	case LOOP_CARRIED: return place_of(pm, frame->up, node_result(n, i - 1));
	case LOOP_SLICED:
		return row_of(pm, frame, place_of(pm, frame->up, node_operand(n, i - 1)), v->type);
	default: return place_of(pm, frame->up, node_operand(n, i - 1));
	}
}

static Argument
place_of_result(ProgramMaker *pm, const Frame *frame, int i, Type type)
{
	const Node *n = frame->by;
	Argument whole = place_of(pm, frame->up, node_result(n, i));
	bool row = loop_of(n) && loop_part(n, i) != LOOP_CARRIED;

	return row ? row_of(pm, frame, whole, type) : whole;
}

static Argument
place_of(ProgramMaker *pm, const Frame *frame, const Value *v)
{
	if (!frame->up)
		return (Argument){.slot = value_slot(pm, v)};
	if (v->region == REGION_PARAM)
		return place_of_param(pm, frame, v);
	if (v->region == REGION_RESULT)
		return place_of_result(pm, frame, (int)v->offset, v->type);
	return (Argument){.slot = new_slot(pm, v)};
}

static bool
is_same_place(const ProgramMaker *pm, Argument a, Argument b)
{
	const Slot *x = &pm->p->slots.at[a.slot], *y = &pm->p->slots.at[b.slot];

	return x->space == y->space && x->offset == y->offset && a.loop == b.loop &&
	       a.stride == b.stride;
}

/* ---- instructions */
static StrRef
add_origin(Program *p, const Node *n)
{
	Text loc = {0};

	loc_text(&loc, n->loc);
	StrRef origin = program_name(p, loc.at);
	text_free(&loc);
	return origin;
}

/* The number of a launch's arguments. Reports an error if the number does not fit into the
 * record's 16 bits. */
static uint16_t
count_arguments(ProgramMaker *pm, const Node *n, const Kernel *k)
{
	int count = n->n_operands + n->n_results;

	if (count <= UINT16_MAX)
		return (uint16_t)count;
	diag_error(pm->pass->diag, EXIT_UNSUPPORTED,
	           "node \"%s\": its kernel @%s has %d arguments, at most %d have room in the "
	           "executable's tables",
	           loc_origin(n->loc), k->name, count, UINT16_MAX);
	pm->ok = false;
	return 0;
}

static void
add_argument(ProgramMaker *pm, Argument a)
{
	vec_push(pm->p->arena, &pm->p->arguments, a);
}

/* The instruction for n; its arguments are added after this call. */
static Instruction
begin(ProgramMaker *pm, const Node *n, InstructionKind kind, uint32_t what)
{
	return (Instruction){.kind = kind,
	                     .stream = STREAM_COMPUTE,
	                     .when = n->when,
	                     .phase = n->phase,
	                     .what = what,
	                     .args = (uint32_t)pm->p->arguments.n,
	                     .origin = add_origin(pm->p, n)};
}

static void
end(ProgramMaker *pm, Instruction *in)
{
	in->n_args = (uint16_t)((uint32_t)pm->p->arguments.n - in->args);
	vec_push(pm->p->arena, &pm->p->instructions, *in);
}

static void
add_copy(ProgramMaker *pm, const Node *n, Argument to, Argument from)
{
	Instruction in = begin(pm, n, COPY, 0);

	if (is_same_place(pm, to, from))
		return;
	add_argument(pm, to);
	add_argument(pm, from);
	end(pm, &in);
}

static void
add_launch(ProgramMaker *pm, const Frame *frame, const Node *n)
{
	const Kernel *k = ((LaunchAttr *)n->attr)->kernel;
	bool zeros = kernel_fills_zero(k);

	for (int i = 0; i < n->n_results; i++) {
		int from = k->buffers.at[k->n_inputs + i].from;
		if (from)
			add_copy(pm, n, place_of(pm, frame, node_result(n, i)),
			         place_of(pm, frame, node_operand(n, from - 1)));
	}
	Instruction in = begin(pm, n,
	                       zeros      ? FILL_ZERO
	                       : k->moves ? COPY
	                                  : RUN_KERNEL,
	                       zeros || k->moves ? 0 : (uint32_t)k->id);

	in.stream = k->moves == MOVES_TO_HOST     ? STREAM_COPY_OUT
	            : k->moves == MOVES_TO_DEVICE ? STREAM_COPY_IN
	                                          : STREAM_COMPUTE;
	for (int i = 0; i < n->n_results && k->moves; i++) /* to, from */
		add_argument(pm, place_of(pm, frame, node_result(n, i)));
	for (int i = 0; i < n->n_operands; i++)
		add_argument(pm, place_of(pm, frame, node_operand(n, i)));
	for (int i = 0; i < n->n_results && !k->moves; i++)
		add_argument(pm, place_of(pm, frame, node_result(n, i)));
	count_arguments(pm, n, k);
	/* count only launches of the first micro-batch: later ones may have another launch for
	 * the same work */
	if (when_runs(n->when) & when_runs(WHEN_FIRST))
		pm->p->flops += k->flops * frame->times;
	end(pm, &in);
}

static void
add_store(ProgramMaker *pm, const Frame *frame, const Node *n)
{
	const Value *v = node_operand(n, 0);
	State *s = ((StoreAttr *)n->attr)->state;
	Slot slot = {.space = SPACE_STATE,
	             .dtype = s->type->dtype,
	             .offset = s->offset,
	             .bytes = type_bytes(s->type),
	             .name = program_name(pm->p, s->name)};

	if (v->region == REGION_STATE && v->offset == s->offset)
		return; /* computed in place */
	add_copy(pm, n, (Argument){.slot = program_slot(pm->p, slot)}, place_of(pm, frame, v));
}

/* ---- loops and branches */
static void add_function(ProgramMaker *pm, const Frame *frame);

static Frame
inner_frame(const Frame *up, const Node *by, const Function *f, int64_t times)
{
	return (Frame){
		.up = up, .by = by, .f = f, .level = up->level + 1, .times = up->times * times};
}

static void
add_fill(ProgramMaker *pm, const Node *n, Argument place)
{
	Instruction in = begin(pm, n, FILL_ZERO, 0);

	add_argument(pm, place);
	end(pm, &in);
}

/* Before a loop: copies the initial content of carried values to their places, and sets stacks to
 * zero if the loop may end before it has written all their rows. */
static void
add_beginning(ProgramMaker *pm, const Frame *frame, const Node *n)
{
	const LoopAttr *a = n->attr;

	for (int i = 0; i < a->carried; i++)
		add_copy(pm, n, place_of(pm, frame, node_result(n, i)),
		         place_of(pm, frame, node_operand(n, i)));
	for (int i = (int)a->carried; i < n->n_results - 1 && !a->always; i++)
		add_fill(pm, n, place_of(pm, frame, node_result(n, i)));
}

/* Copies rows of stacks that kernels cannot read in place. */
static void
copy_slices(ProgramMaker *pm, const Frame *in)
{
	for (int i = 1; i < in->f->params.n; i++) {
		const Value *v = in->f->params.at[i];
		if (v->region != REGION_WORKSPACE)
			continue;
		Value row = *v;
		row.region = REGION_PARAM;
		row.offset = i;
		add_copy(pm, in->by, place_of(pm, in, v), place_of(pm, in, &row));
	}
}

/* At the end of a body: copies results that were not computed in their final place. No result is
 * a parameter that another copy overwrites (bodies.c), so the copies may run in any order. */
static void
copy_results(ProgramMaker *pm, const Frame *in)
{
	const Node *ret = function_return(in->f);
	int first = loop_of(in->by) != NULL;

	for (int i = first; i < ret->n_operands; i++) {
		const Value *v = node_operand(ret, i);
		add_copy(pm, in->by, place_of_result(pm, in, i - first, v->type),
		         place_of(pm, in, v));
	}
}

static void
add_block_end(ProgramMaker *pm, const Node *n)
{
	Instruction in = begin(pm, n, END, 0);

	end(pm, &in);
}

static void
add_loop(ProgramMaker *pm, const Frame *frame, const Node *n)
{
	const LoopAttr *a = n->attr;
	Frame in = inner_frame(frame, n, a->body, a->bound);

	add_beginning(pm, frame, n);
	Instruction loop = begin(pm, n, LOOP, (uint32_t)a->bound);
	end(pm, &loop);
	copy_slices(pm, &in);
	add_function(pm, &in);
	copy_results(pm, &in);
	if (!a->always) {
		Instruction leave = begin(pm, n, LEAVE, 0);
		add_argument(pm, place_of(pm, &in, function_result(a->body, 0)));
		end(pm, &leave);
	}
	add_block_end(pm, n);
}

static void
add_branches(ProgramMaker *pm, const Frame *frame, const Node *n)
{
	Function *bodies[2];

	node_bodies(n, bodies);
	for (int i = 0; i < 2; i++) {
		Frame in = inner_frame(frame, n, bodies[i], 1);
		Instruction branch = begin(pm, n, BRANCH, i == 0);
		add_argument(pm, place_of(pm, frame, node_operand(n, 0)));
		end(pm, &branch);
		add_function(pm, &in);
		copy_results(pm, &in);
		add_block_end(pm, n);
	}
}

static void
add_function(ProgramMaker *pm, const Frame *frame)
{
	for_each_node(frame->f, n) {
		if (n->op == OP_launch)
			add_launch(pm, frame, n);
		else if (n->op == OP_store)
			add_store(pm, frame, n);
		else if (loop_of(n))
			add_loop(pm, frame, n);
		else if (op_row(n)->fuse == FUSE_CONTROL)
			add_branches(pm, frame, n);
	}
}

void
nodes_add(ProgramMaker *pm, const Function *f)
{
	add_function(pm, &(Frame){.f = f, .times = 1});
}

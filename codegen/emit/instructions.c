/* Writes the nodes of a program as instructions, with the place in memory of each argument. The
 * body of a loop or branch stands between LOOP or BRANCH and END. Values of the body lie behind
 * the caller's workspace. But the body's parameters and results lie where the operands and
 * results of the loop or branch lie. In the example, h is a carried value, and x and y are stacks
 * with a row for each iteration:
 *
 *	COPY   h <- initial            the loop's result h holds the carried value
 *	LOOP   35 times
 *	run    dot (h, R, workspace)
 *	run    tanh (workspace, x + 800 * iteration, h, y + 800 * iteration)
 *	END */
#include "codegen/emit/tables.h"

#include <assert.h>

/* A function that runs: a program, or the body of a node in another function. */
typedef struct Frame {
	const struct Frame *up; /* the function that contains node `by`; NULL: f is a program */
	const Node *by;
	const Function *f;
	int64_t base;   /* byte at which the function's workspace begins */
	uint32_t level; /* loops and branches around this function, as counted by Argument.loop */
	int64_t times;  /* how often the function runs at most */
} Frame;

static Space
space_of(const TableWriter *tw, Region r)
{
	const Space spaces[] = {[REGION_NONE] = SPACE_WORKSPACE,
	                        [REGION_WORKSPACE] = SPACE_WORKSPACE,
	                        [REGION_STATE] = SPACE_STATE,
	                        [REGION_IO] = tw->io_space,
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

void
table_grow(int64_t *most, int64_t end)
{
	if (end > *most)
		*most = end;
}

static uint32_t
new_slot(TableWriter *tw, const Value *v, int64_t base)
{
	Slot s = {.space = space_of(tw, v->region),
	          .dtype = v->type->dtype,
	          .offset = base + v->offset,
	          .bytes = type_bytes(v->type),
	          .name = format_string(tw->w, value_origin(v))};

	if (s.space == SPACE_WORKSPACE)
		table_grow(&tw->workspace, s.offset + (s.bytes ? s.bytes : 1));
	if (v->region == REGION_IO)
		table_grow(&tw->io, s.offset + s.bytes);
	return format_slot(tw->w, s);
}

uint32_t
table_slot(TableWriter *tw, const Value *v)
{
	if (!tw->slots[v->id])
		tw->slots[v->id] = 1 + new_slot(tw, v, 0);
	return tw->slots[v->id] - 1;
}

/* ---- places */
static Argument place_of(TableWriter *tw, const Frame *frame, const Value *v);

/* The argument for one row of a stack. It advances by a row in each iteration of the loop. whole:
 * the argument for the whole stack. */
static Argument
row_of(TableWriter *tw, const Frame *frame, Argument whole, Type row)
{
	const LoopAttr *a = loop_of(frame->by);
	Slot s = tw->w->slots.at[whole.slot];
	int64_t bytes = type_bytes(row);

	s.bytes = bytes;
	s.offset += a->reverse && a->bound ? (a->bound - 1) * bytes : 0;
	return (Argument){.slot = format_slot(tw->w, s),
	                  .loop = frame->level,
	                  .stride = a->reverse ? -bytes : bytes};
}

static Argument
place_of_param(TableWriter *tw, const Frame *frame, const Value *v)
{
	const Node *n = frame->by;
	int i = (int)v->offset;

	if (!loop_of(n))
		return place_of(tw, frame->up, node_operand(n, 1 + i));
	switch (loop_part(n, i - 1)) {
	case LOOP_CARRIED: return place_of(tw, frame->up, node_result(n, i - 1));
	case LOOP_SLICED:
		return row_of(tw, frame, place_of(tw, frame->up, node_operand(n, i - 1)), v->type);
	default: return place_of(tw, frame->up, node_operand(n, i - 1));
	}
}

static Argument
place_of_result(TableWriter *tw, const Frame *frame, int i, Type type)
{
	const Node *n = frame->by;
	Argument whole = place_of(tw, frame->up, node_result(n, i));
	bool row = loop_of(n) && loop_part(n, i) != LOOP_CARRIED;

	return row ? row_of(tw, frame, whole, type) : whole;
}

static Argument
place_of(TableWriter *tw, const Frame *frame, const Value *v)
{
	if (!frame->up)
		return (Argument){.slot = table_slot(tw, v)};
	if (v->region == REGION_PARAM)
		return place_of_param(tw, frame, v);
	if (v->region == REGION_RESULT)
		return place_of_result(tw, frame, (int)v->offset, v->type);
	return (Argument){.slot = new_slot(tw, v, v->region == REGION_WORKSPACE ? frame->base : 0)};
}

static bool
is_same_place(const TableWriter *tw, Argument a, Argument b)
{
	const Slot *x = &tw->w->slots.at[a.slot], *y = &tw->w->slots.at[b.slot];

	return x->space == y->space && x->offset == y->offset && a.loop == b.loop &&
	       a.stride == b.stride;
}

/* ---- instructions */
static StrRef
write_origin(FormatWriter *w, const Node *n)
{
	Text loc = {0};

	loc_text(&loc, n->loc);
	StrRef origin = format_string(w, loc.at ? loc.at : "");
	text_free(&loc);
	return origin;
}

uint32_t
table_kernel(const TableWriter *tw, const Kernel *k)
{
	uint64_t number = 0;
	bool found = intmap_get(tw->kernels, (uint64_t)(uintptr_t)k, &number);

	assert(found);
	(void)found;
	return (uint32_t)number;
}

/* The number of a launch's arguments. Reports an error if the number does not fit into the
 * record's 16 bits. */
static uint16_t
count_arguments(TableWriter *tw, const Node *n, const Kernel *k)
{
	int count = n->n_operands + n->n_results;

	if (count <= UINT16_MAX)
		return (uint16_t)count;
	diag_error(tw->diag, EXIT_UNSUPPORTED,
	           "node \"%s\": its kernel @%s has %d arguments, at most %d have room in the "
	           "executable's tables",
	           loc_origin(n->loc), k->name, count, UINT16_MAX);
	tw->ok = false;
	return 0;
}

static void
add_argument(TableWriter *tw, Argument a)
{
	vec_push(tw->w->arena, &tw->w->arguments, a);
}

/* The instruction for n; its arguments are added after this call. */
static Instruction
begin(const TableWriter *tw, const Node *n, InstructionKind kind, uint32_t what)
{
	return (Instruction){.kind = kind,
	                     .stream = STREAM_COMPUTE,
	                     .when = n->when,
	                     .phase = n->phase,
	                     .what = what,
	                     .args = (uint32_t)tw->w->arguments.n,
	                     .origin = write_origin(tw->w, n)};
}

static void
end(TableWriter *tw, Instruction *in)
{
	in->n_args = (uint16_t)((uint32_t)tw->w->arguments.n - in->args);
	vec_push(tw->w->arena, &tw->w->instructions, *in);
}

static void
write_launch(TableWriter *tw, const Frame *frame, const Node *n)
{
	const Kernel *k = ((LaunchAttr *)n->attr)->kernel;
	bool zeros = kernel_fills_zero(k);
	Instruction in = begin(tw, n,
	                       zeros      ? FILL_ZERO
	                       : k->moves ? COPY
	                                  : RUN_KERNEL,
	                       zeros || k->moves ? 0 : table_kernel(tw, k));

	in.stream = k->moves == MOVES_TO_HOST     ? STREAM_COPY_OUT
	            : k->moves == MOVES_TO_DEVICE ? STREAM_COPY_IN
	                                          : STREAM_COMPUTE;
	for (int i = 0; i < n->n_results && k->moves; i++) /* to, from */
		add_argument(tw, place_of(tw, frame, node_result(n, i)));
	for (int i = 0; i < n->n_operands; i++)
		add_argument(tw, place_of(tw, frame, node_operand(n, i)));
	for (int i = 0; i < n->n_results && !k->moves; i++)
		add_argument(tw, place_of(tw, frame, node_result(n, i)));
	count_arguments(tw, n, k);
	/* count only launches of the first micro-batch: later ones may have another launch for
	 * the same work */
	if (when_runs(n->when) & when_runs(WHEN_FIRST))
		tw->flops += k->flops * frame->times;
	end(tw, &in);
}

static void
write_copy(TableWriter *tw, const Node *n, Argument to, Argument from)
{
	Instruction in = begin(tw, n, COPY, 0);

	if (is_same_place(tw, to, from))
		return;
	add_argument(tw, to);
	add_argument(tw, from);
	end(tw, &in);
}

static void
write_store(TableWriter *tw, const Frame *frame, const Node *n)
{
	const Value *v = node_operand(n, 0);
	State *s = ((StoreAttr *)n->attr)->state;
	Slot slot = {.space = SPACE_STATE,
	             .dtype = s->type->dtype,
	             .offset = s->offset,
	             .bytes = type_bytes(s->type),
	             .name = format_string(tw->w, s->name)};

	if (v->region == REGION_STATE && v->offset == s->offset)
		return; /* computed in place */
	write_copy(tw, n, (Argument){.slot = format_slot(tw->w, slot)}, place_of(tw, frame, v));
}

/* ---- loops and branches */
static void write_function(TableWriter *tw, const Frame *frame);

static Frame
inner_frame(const Frame *up, const Node *by, const Function *f, int64_t times)
{
	return (Frame){.up = up,
	               .by = by,
	               .f = f,
	               .base = up->base + function_workspace(up->f),
	               .level = up->level + 1,
	               .times = up->times * times};
}

static void
write_fill(TableWriter *tw, const Node *n, Argument place)
{
	Instruction in = begin(tw, n, FILL_ZERO, 0);

	add_argument(tw, place);
	end(tw, &in);
}

/* Before a loop: copies the initial content of carried values to their places, and sets stacks to
 * zero if the loop may end before it has written all their rows. */
static void
write_beginning(TableWriter *tw, const Frame *frame, const Node *n)
{
	const LoopAttr *a = n->attr;

	for (int i = 0; i < a->carried; i++)
		write_copy(tw, n, place_of(tw, frame, node_result(n, i)),
		           place_of(tw, frame, node_operand(n, i)));
	for (int i = (int)a->carried; i < n->n_results - 1 && !a->always; i++)
		write_fill(tw, n, place_of(tw, frame, node_result(n, i)));
}

/* Copies rows of stacks that kernels cannot read in place. */
static void
copy_slices(TableWriter *tw, const Frame *in)
{
	for (int i = 1; i < in->f->params.n; i++) {
		const Value *v = in->f->params.at[i];
		if (v->region != REGION_WORKSPACE)
			continue;
		Value row = *v;
		row.region = REGION_PARAM;
		row.offset = i;
		write_copy(tw, in->by, place_of(tw, in, v), place_of(tw, in, &row));
	}
}

/* At the end of a body: copies results that were not computed in their final place. No result is
 * a parameter that another copy overwrites (bodies.c), so the copies may run in any order. */
static void
copy_results(TableWriter *tw, const Frame *in)
{
	const Node *ret = function_return(in->f);
	int first = loop_of(in->by) != NULL;

	for (int i = first; i < ret->n_operands; i++) {
		const Value *v = node_operand(ret, i);
		write_copy(tw, in->by, place_of_result(tw, in, i - first, v->type),
		           place_of(tw, in, v));
	}
}

static void
write_block_end(TableWriter *tw, const Node *n)
{
	Instruction in = begin(tw, n, END, 0);

	end(tw, &in);
}

static void
write_loop(TableWriter *tw, const Frame *frame, const Node *n)
{
	const LoopAttr *a = n->attr;
	Frame in = inner_frame(frame, n, a->body, a->bound);

	write_beginning(tw, frame, n);
	Instruction loop = begin(tw, n, LOOP, (uint32_t)a->bound);
	end(tw, &loop);
	copy_slices(tw, &in);
	write_function(tw, &in);
	copy_results(tw, &in);
	if (!a->always) {
		Instruction leave = begin(tw, n, LEAVE, 0);
		add_argument(tw, place_of(tw, &in, function_result(a->body, 0)));
		end(tw, &leave);
	}
	write_block_end(tw, n);
}

static void
write_branches(TableWriter *tw, const Frame *frame, const Node *n)
{
	Function *bodies[2];

	node_bodies(n, bodies);
	for (int i = 0; i < 2; i++) {
		Frame in = inner_frame(frame, n, bodies[i], 1);
		Instruction branch = begin(tw, n, BRANCH, i == 0);
		add_argument(tw, place_of(tw, frame, node_operand(n, 0)));
		end(tw, &branch);
		write_function(tw, &in);
		copy_results(tw, &in);
		write_block_end(tw, n);
	}
}

static void
write_function(TableWriter *tw, const Frame *frame)
{
	for_each_node(frame->f, n) {
		if (n->op == OP_launch)
			write_launch(tw, frame, n);
		else if (n->op == OP_store)
			write_store(tw, frame, n);
		else if (loop_of(n))
			write_loop(tw, frame, n);
		else if (op_row(n)->fuse == FUSE_CONTROL)
			write_branches(tw, frame, n);
	}
}

void
instructions_write(TableWriter *tw, const Function *f)
{
	write_function(tw, &(Frame){.f = f, .times = 1});
}

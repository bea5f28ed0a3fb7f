/* Prepares the program @update (the optimizer's step) for states that lie partly in the host's
 * memory. If the optimizer's states lie there, the update's kernels run on the host, and their
 * intermediate results lie there as well. A state in the other memory is copied before the kernel
 * that uses it, and copied back after the kernel. While the results of one kernel are copied, the
 * next kernel computes:
 *
 *	copy_out   COPY norm
 *	compute    run adamw (unit 0)   run adamw (unit 1)         run adamw (unit 2)
 *	copy_in                         COPY weights of unit 0     COPY weights of unit 1
 *
 * If only weights lie in the host's memory, kernels run on the device, and weights are copied to
 * the device in the same way. There are COPIES places for copies; successive kernels use them in
 * turn, so copies for the next kernel do not overwrite those of the current one. Takes linear time
 * in instructions. */
#include "codegen/programs/instructions.h"
#include "codegen/programs/shard.h"

#include <assert.h>

/* COPIES: places for the copies of successive kernels, which take turns */
enum { ALIGNMENT = 64, COPIES = 2 };

typedef struct {
	ShardPlan *plan;
	Instructions old, out;
	Space space;   /* space of the copies */
	int64_t begin; /* where the places for copies begin */
	int64_t place; /* bytes of each place */
	int turn;
} FarCopies;

/* An argument, and its copy on the side that computes. */
typedef struct {
	Slot slot;
	uint32_t copy;
	bool read, written;
} FarState;
typedef VEC(FarState) FarStates;

static Slot
slot_of(const FarCopies *o, const Instruction *n, uint32_t i)
{
	return o->plan->p->slots.at[o->plan->p->arguments.at[n->args + i].slot];
}

static uint32_t
access_of(const FarCopies *o, const Instruction *n, uint32_t i)
{
	return instruction_access(&o->plan->accesses, n, i);
}

static int64_t
aligned(int64_t bytes)
{
	return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Does the slot lie in a state that the computing side cannot use, because the state is in the
 * other memory (host or device)? */
static bool
is_far(const FarCopies *o, const Slot *s)
{
	if (!o->plan->p->on_host)
		return space_is_offload(s->space);
	return s->space == SPACE_STATE || s->space == SPACE_SHARD;
}

static bool
is_same(const Slot *a, const Slot *b)
{
	return a->space == b->space && a->state == b->state && a->offset == b->offset &&
	       a->bytes == b->bytes && a->before == b->before && a->share == b->share;
}

/* The list's entry of a slot. A kernel that computes in place has one entry for both arguments. */
static FarState *
find(const FarStates *list, const Slot *slot)
{
	for (int i = 0; i < list->n; i++)
		if (is_same(&list->at[i].slot, slot))
			return &list->at[i];
	return NULL;
}

/* Lists the arguments that need copies; returns their bytes. */
static int64_t
far_states_of(const FarCopies *o, const Instruction *n, FarStates *out)
{
	int64_t bytes = 0;

	out->n = 0;
	for (uint32_t i = 0; n->kind == RUN_KERNEL && i < n->n_args; i++) {
		Slot s = slot_of(o, n, i);
		if (!is_far(o, &s))
			continue;
		FarState *known = find(out, &s);
		if (!known) {
			vec_push(o->plan->arena, out, ((FarState){.slot = s}));
			known = &out->at[out->n - 1];
			bytes += aligned(s.bytes);
		}
		known->read |= (access_of(o, n, i) & ACCESS_READ) != 0;
		known->written |= (access_of(o, n, i) & ACCESS_WRITE) != 0;
	}
	return bytes;
}

static void
place_copies(FarCopies *o, FarStates *list)
{
	int64_t at = o->begin + o->turn * o->place;

	for (int i = 0; i < list->n; i++) {
		Slot copy = list->at[i].slot;
		copy.space = o->space;
		copy.offset = at;
		copy.state = 0;
		at += aligned(copy.bytes);
		list->at[i].copy = program_slot(o->plan->p, copy);
	}
}

static void
add_copy(FarCopies *o, const Instruction *of, Stream stream, uint32_t to, uint32_t from)
{
	Program *p = o->plan->p;
	Instruction n = {.kind = COPY,
	                 .stream = stream,
	                 .when = of->when,
	                 .phase = of->phase,
	                 .args = program_arguments(p, 2, (const uint32_t[]){to, from}),
	                 .n_args = 2,
	                 .origin = of->origin};

	vec_push(p->arena, &o->out, n);
}

static void
run_on_copies(FarCopies *o, Instruction n, FarStates *list)
{
	Program *p = o->plan->p;
	Stream there = p->on_host ? STREAM_COPY_OUT : STREAM_COPY_IN;
	Stream back = p->on_host ? STREAM_COPY_IN : STREAM_COPY_OUT;
	uint32_t args = (uint32_t)p->arguments.n;

	place_copies(o, list);
	for (uint32_t i = 0; i < n.n_args; i++) {
		Slot s = slot_of(o, &n, i);
		const FarState *copied = is_far(o, &s) ? find(list, &s) : NULL;
		Argument a = p->arguments.at[n.args + i];
		/* @update has no loops: an argument is in the same place whenever the kernel
		 * runs, so one copy is enough */
		assert(!a.loop && !n.only);
		a.slot = copied ? copied->copy : a.slot;
		vec_push(p->arena, &p->arguments, a);
	}
	for (int i = 0; i < list->n; i++)
		if (list->at[i].read)
			add_copy(o, &n, there, list->at[i].copy, program_slot(p, list->at[i].slot));
	n.args = args;
	vec_push(p->arena, &o->out, n);
	for (int i = 0; i < list->n; i++)
		if (list->at[i].written)
			add_copy(o, &n, back, program_slot(p, list->at[i].slot), list->at[i].copy);
	o->turn = (o->turn + 1) % COPIES;
}

static void
to_host(Slot *s)
{
	s->space = s->space == SPACE_WORKSPACE ? SPACE_HOST : s->space;
}

/* Moves the program's intermediate values from the device's workspace to the same offsets in the
 * host's memory (SPACE_HOST). */
static void
move_workspace(Program *p)
{
	for (int i = 0; i < p->slots.n; i++)
		to_host(&p->slots.at[i]);
	for (int i = 0; i < p->travels.n; i++) {
		to_host(&p->travels.at[i].whole);
		to_host(&p->travels.at[i].part);
	}
	p->bytes[SPACE_WORKSPACE] = 0;
}

/* Places the copies after the bytes that the program itself uses. */
static void
place_all(FarCopies *o)
{
	Program *p = o->plan->p;

	o->space = p->on_host ? SPACE_HOST : SPACE_GATHERED;
	o->begin = aligned(p->on_host ? p->bytes[SPACE_WORKSPACE] : p->gathered);
	if (p->on_host)
		move_workspace(p);
	else
		p->gathered = o->begin + COPIES * o->place;
}

static void
measure(FarCopies *o)
{
	FarStates list = {0};

	for (int i = 0; i < o->old.n; i++) {
		int64_t bytes = far_states_of(o, &o->old.at[i], &list);
		o->place = bytes > o->place ? bytes : o->place;
	}
}

static bool
has_offloaded(const Function *f, DataParallelMode mode, DataParallelMode up_to)
{
	for (int i = 0; i < f->states.n; i++) {
		const State *s = f->states.at[i]->state;
		bool reads = value_used(f->states.at[i]);
		if (reads && mode && s->offloaded && s->sharded <= mode && s->sharded <= up_to)
			return true;
	}
	return false;
}

bool
offload_changes(const Function *f, DataParallelMode mode)
{
	bool updates = f->role == ROLE_UPDATE || f->role == ROLE_REFRESH;

	return updates && has_offloaded(f, mode, MODE_ZERO3);
}

bool
offload_on_host(const Function *f, DataParallelMode mode)
{
	return offload_changes(f, mode) && has_offloaded(f, mode, MODE_ZERO2);
}

void
offload_update(ShardPlan *plan)
{
	Program *p = plan->p;
	FarCopies o = {.plan = plan, .old = p->instructions};
	int *behind = NEW_ARRAY(plan->arena, int, p->instructions.n + 1);
	FarStates list = {0};

	measure(&o);
	place_all(&o);
	for (int i = 0; i < o.old.n; i++) {
		if (far_states_of(&o, &o.old.at[i], &list) > 0)
			run_on_copies(&o, o.old.at[i], &list);
		else
			vec_push(p->arena, &o.out, o.old.at[i]);
		behind[i] = o.out.n - 1;
	}
	for (int i = 0; i < p->travels.n; i++)
		if (p->travels.at[i].behind >= 0)
			p->travels.at[i].behind = behind[p->travels.at[i].behind];
	p->instructions = o.out;
}

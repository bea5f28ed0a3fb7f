/* Decides which states may be divided among ranks, and from which data-parallel mode on. States
 * that only the optimizer reads are divided from ZeRO-1 on, gradients from ZeRO-2 on, and states
 * that the model reads from ZeRO-3 on.
 *
 * A rank's part of a state is a range of blocks. A rank updates its part by running only the
 * iterations of each kernel that belong to these blocks. So a state is divided only if every
 * kernel of @update that touches it works block by block (by_iteration.c); for an optimizer that
 * needs whole matrices, every rank holds the whole matrices. No kernel of @update touches frozen
 * states, so they are divided into fine blocks.
 *
 * A piece is what is divided at once: a unit, or a state that lies in no unit. If one state must
 * stay whole, states that share kernels with it may have to stay whole, too. So the check is
 * repeated until nothing changes; each round takes linear time in nodes. */
#include "codegen/schedule/order.h"

typedef struct {
	Module *m;
	Arena *arena;
	/* by state id, for states that lie in no other state: number of blocks; 0: the state
	 * stays whole */
	int64_t *blocks;
	/* by state id: has it members? are its members units themselves? */
	bool *has_members, *is_run;
	/* by state id, for states that lie in no other state: do programs other than @update
	 * read the state? */
	bool *is_read;
} Sharding;

static bool
is_update(const Function *f)
{
	return f->role == ROLE_UPDATE || f->role == ROLE_REFRESH;
}

static bool
is_program(const Function *f)
{
	return f->role != ROLE_HELPER && f->kind == FUNCTION_PLAIN;
}

/* ---- kinds of states */
static DataParallelMode
mode_of(const Sharding *sh, const State *s)
{
	DataParallelMode divided = state_kinds[s->kind].divided;

	return divided == MODE_ZERO3 && !sh->is_read[s->id] ? MODE_ZERO1 : divided;
}

static bool
is_updated(const State *s)
{
	return s->lifetime != LIFE_CONSTANT && (s->kind != STATE_PARAMETER || s->trainable);
}

/* The block of a frozen state, in elements: the largest power of two up to 64 that divides the
 * state's size. */
static int64_t
frozen_block(const State *s)
{
	enum { MOST = 64 };
	int64_t block = 1;

	while (block < MOST && s->type->n % (2 * block) == 0)
		block *= 2;
	return block;
}

/* Is s a frozen matrix, or 4-bit codes? Each such state is divided separately. Small states and
 * vectors stay whole. */
static bool
is_frozen(const Sharding *sh, const State *s)
{
	return s->kind == STATE_PARAMETER && s->lifetime == LIFE_CONSTANT && s->init == INIT_DATA &&
	       !s->unit && s->type->n >= UNIT_BLOCK && sh->is_read[s->id] &&
	       (s->type->rank > 1 || !dtype_is_float(s->type->dtype)) &&
	       dtype_info[s->type->dtype].bits * frozen_block(s) % 8 == 0;
}

/* May a state of this kind be divided? Among units, only units of parameters may. Units of
 * running statistics also hold statistics of the current step, which ranks sum, so every rank
 * needs the whole unit. */
static bool
has_kind(const Sharding *sh, const State *s)
{
	if (s->kind != STATE_UNIT)
		return mode_of(sh, s) != MODE_DDP && is_updated(s);
	for (int i = 0; i < sh->m->states.n; i++)
		if (sh->m->states.at[i]->kind == STATE_PARAMETER &&
		    state_outermost(sh->m->states.at[i]) == s)
			return true;
	return false;
}

/* ---- kernels */
typedef struct {
	const State *state; /* outermost state */
	int buffer;
	bool written;
} Touch;
typedef struct {
	const Kernel *kernel; /* NULL: a copy */
	VEC(Touch) touches;
	/* does the kernel write a result that is not divided among its iterations (kernel_each
	 * is 0)? */
	bool writes_whole;
} Touches;

static const State *
state_of(const Value *v)
{
	return v->kind == VALUE_STATE ? state_outermost(v->state) : NULL;
}

/* The state that a result is stored to; NULL: no state, or several. */
static const State *
stored_to(const Value *v)
{
	const State *found = NULL;

	for_each_use(v, u) {
		if (u->user->op != OP_store)
			continue;
		const State *s = state_outermost(((StoreAttr *)u->user->attr)->state);
		found = found && found != s ? NULL : s;
	}
	return found;
}

static void
touches_of(Sharding *sh, const Node *n, Touches *out)
{
	const Kernel *k = ((LaunchAttr *)n->attr)->kernel;

	out->kernel = k;
	out->touches.n = 0;
	out->writes_whole = false;
	for (int i = 0; i < n->n_operands; i++)
		if (state_of(node_operand(n, i)))
			vec_push(sh->arena, &out->touches,
			         ((Touch){state_of(node_operand(n, i)), i, false}));
	for (int i = 0; i < n->n_results; i++) {
		const State *s = stored_to(node_result(n, i));
		out->writes_whole |= kernel_each(k, k->n_inputs + i) == 0;
		if (s)
			vec_push(sh->arena, &out->touches, ((Touch){s, k->n_inputs + i, true}));
	}
}

/* Does each iteration of the kernel stay within one block of the state? */
static bool
works_by_block(const Sharding *sh, const Kernel *k, const Touch *t)
{
	int64_t each = kernel_each(k, t->buffer), blocks = sh->blocks[t->state->id];

	return each > 0 && k->buffers.at[t->buffer].type->n == t->state->type->n &&
	       k->iterations % blocks == 0;
}

/* If a launch does not work block by block, marks every state that the launch touches as whole
 * (not divided). True: a mark is new. */
static bool
leave_whole(Sharding *sh, const Touches *list)
{
	int64_t blocks = 0;
	bool fits = !list->writes_whole, left = false;

	for (int i = 0; i < list->touches.n; i++) {
		const Touch *t = &list->touches.at[i];
		if (!sh->blocks[t->state->id])
			continue;
		fits = fits && works_by_block(sh, list->kernel, t) &&
		       (!blocks || blocks == sh->blocks[t->state->id]);
		blocks = sh->blocks[t->state->id];
	}
	for (int i = 0; i < list->touches.n && !fits; i++) {
		int64_t *of = &sh->blocks[list->touches.at[i].state->id];
		left |= *of != 0;
		*of = 0;
	}
	return left;
}

/* Calls visit for all launches of updates. True: at least one call of visit returned true. */
static bool
for_each_update(Sharding *sh, bool (*visit)(Sharding *, const Touches *))
{
	Touches touches = {0};
	bool changed = false;

	for_each_function(sh->m, f) {
		if (!is_update(f))
			continue;
		for_each_node(f, n) {
			if (n->op != OP_launch)
				continue;
			touches_of(sh, n, &touches);
			changed |= visit(sh, &touches);
		}
	}
	return changed;
}

/* ---- blocks */
static int64_t
gcd(int64_t a, int64_t b)
{
	while (b) {
		int64_t rest = a % b;
		a = b;
		b = rest;
	}
	return a;
}

/* For each state that the launch touches and that has no members: lowers the state's number of
 * blocks to a divisor of the kernel's number of iterations. Then each block takes a whole number of
 * iterations. Always returns false, because no second round is needed. */
static bool
agree(Sharding *sh, const Touches *t)
{
	for (int i = 0; i < t->touches.n; i++) {
		const State *s = t->touches.at[i].state;

		if (sh->blocks[s->id] && !sh->has_members[s->id])
			sh->blocks[s->id] = gcd(sh->blocks[s->id], t->kernel->iterations);
	}
	return false;
}

/* A parameter's gradient and moments are divided in the same way as the parameter. */
static void
agree_with_owners(Sharding *sh)
{
	for (int pass = 0; pass < 2; pass++)
		for (int i = 0; i < sh->m->states.n; i++) {
			const State *s = sh->m->states.at[i], *of = s->of;
			if (!of || s->unit || of->unit || !sh->blocks[i] || !sh->blocks[of->id] ||
			    sh->has_members[i])
				continue;
			sh->blocks[i] = sh->blocks[of->id] = gcd(sh->blocks[i], sh->blocks[of->id]);
		}
}

/* Leaves a state whole if it has only one block (a single rank would hold all of it), or if its
 * blocks do not fit the blocks of sums over ranks. */
static void
drop_few(Sharding *sh)
{
	for (int i = 0; i < sh->m->states.n; i++) {
		const State *s = sh->m->states.at[i];
		int64_t n = sh->blocks[i];
		bool sums = s->kind == STATE_GRADIENT;
		if (n && !sh->has_members[i] &&
		    (n < 2 || s->type->n % n != 0 || (sums && s->type->n / n % SUM_BLOCK != 0)))
			sh->blocks[i] = 0;
	}
}

static void
find_readers(Sharding *sh)
{
	for_each_function(sh->m, f)
		for (int i = 0; is_program(f) && !is_update(f) && i < f->states.n; i++)
			sh->is_read[state_outermost(f->states.at[i]->state)->id] |= value_used(
				f->states.at[i]);
}

static void
find_candidates(Sharding *sh)
{
	for (int i = 0; i < sh->m->states.n; i++) {
		const State *s = sh->m->states.at[i];
		if (s->unit)
			sh->has_members[s->unit->id] = true;
		if (s->unit && s->unit->unit)
			sh->is_run[s->unit->unit->id] = true;
	}
	for (int i = 0; i < sh->m->states.n; i++) {
		const State *s = sh->m->states.at[i];
		if (!s->unit && has_kind(sh, s))
			sh->blocks[i] = sh->has_members[i] ? s->type->n / UNIT_BLOCK : s->type->n;
		else if (is_frozen(sh, s))
			sh->blocks[i] = s->type->n / frozen_block(s);
	}
}

/* ---- the states */
/* Is s a piece, which is divided? A piece is a unit, or a state that lies in no unit. A run of
 * units is not a piece, nor is a member of a unit. */
static bool
is_piece(const Sharding *sh, const State *s)
{
	bool is_unit = sh->has_members[s->id] && !sh->is_run[s->id];

	return is_unit || (!s->unit && !sh->has_members[s->id]);
}

/* Do ranks' parts lie in the host's memory? `optimizer` moves states that only the optimizer touches, and
 * gradients; `params` moves states that programs compute with. */
static bool
is_offloaded(DataParallelMode mode, uint32_t offload)
{
	return (offload >> (mode == MODE_ZERO3 ? OFFLOAD_PARAMS : OFFLOAD_OPTIMIZER) & 1) != 0;
}

void
shard_states(Module *m, uint32_t offload, Arena *arena)
{
	Sharding sh = {.m = m,
	               .arena = arena,
	               .blocks = NEW_ARRAY(arena, int64_t, m->states.n + 1),
	               .has_members = NEW_ARRAY(arena, bool, m->states.n + 1),
	               .is_run = NEW_ARRAY(arena, bool, m->states.n + 1),
	               .is_read = NEW_ARRAY(arena, bool, m->states.n + 1)};

	find_readers(&sh);
	find_candidates(&sh);
	for_each_update(&sh, agree);
	agree_with_owners(&sh);
	drop_few(&sh);
	while (for_each_update(&sh, leave_whole))
		;
	for (int i = 0; i < m->states.n; i++) {
		State *s = m->states.at[i];
		const State *all = state_outermost(s);
		if (!sh.blocks[all->id])
			continue;
		s->sharded = mode_of(&sh, all);
		s->offloaded = is_offloaded(s->sharded, offload);
		s->block = is_piece(&sh, s) ? all->type->n / sh.blocks[all->id] : 0;
	}
}

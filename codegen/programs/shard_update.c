/* Rewrites the program @update (the optimizer's step) for states that are divided among ranks. A
 * kernel over a run of units becomes one launch for each unit, with the iterations for this
 * rank's part of the unit:
 *
 *	run adamw (gradient, norm, moment, parameter)          of 4 units of 8 blocks, on rank 1 of 2:
 *	run adamw [4, 8)  (shard of unit 0 ...)
 *	run adamw [12, 16) (shard of unit 1 ...)
 *
 * The kernel counts elements as if the rank had the whole argument: element i of a run has number
 * i on every rank. So random numbers, which depend on that number, are the same as with a single
 * rank. Launches may also write values that are not divided (parameters up to ZeRO-2, partial
 * sums of a norm). These values are gathered after the launch, unless every reader is a launch
 * that needs only this rank's part. Small values are gathered once for all units. */
#include "codegen/programs/shard.h"

typedef struct {
	ShardPlan *plan;
	Instructions old, out;
} Cutting;

static Slot
slot_of(const Cutting *c, const Instruction *n, uint32_t i)
{
	return c->plan->p->slots.at[shard_slot_number(c->plan, n, i)];
}

/* ---- pieces */
/* All pieces (states that are divided separately) of the outermost state that contains the
 * instruction's first divided argument. If there are no pieces, the instruction stays unchanged. */
typedef VEC(const State *) Pieces;
static Pieces
pieces_of(const Cutting *c, const Instruction *n)
{
	const Module *m = c->plan->m;
	Pieces list = {0};
	const State *all = NULL;

	for (uint32_t i = 0; i < n->n_args && !all; i++) {
		Slot s = slot_of(c, n, i);
		const State *piece = shard_piece(c->plan, &s);
		all = piece ? state_outermost(piece) : NULL;
	}
	for (int i = 0; i < m->states.n && all; i++)
		if (m->states.at[i]->block && state_outermost(m->states.at[i]) == all)
			vec_push(c->plan->arena, &list, m->states.at[i]);
	return list;
}

/* ---- arguments */
/* The blocks of a piece: numbers first to first + n - 1, counted in its outermost state, which
 * has `all` blocks. */
typedef struct {
	const State *piece;
	int64_t first, n, all;
} Blocks;

static Blocks
blocks_of(const State *piece)
{
	int64_t before = piece->unit ? piece->unit_offset : 0;

	return (Blocks){piece, before / piece->block, piece->type->n / piece->block,
	                state_outermost(piece)->type->n / piece->block};
}

/* The slot for this rank's part of the blocks b. whole: the slot of the complete argument. */
static Slot
part_of(const Cutting *c, Slot whole, const Blocks *b)
{
	int64_t each = whole.bytes / b->all, before = b->first * each;
	Slot part = whole;
	const State *state = whole.space == SPACE_STATE
	                             ? shard_piece_at(c->plan, whole.offset + before)
	                             : NULL;

	part.offset += before;
	part.bytes = b->n * each;
	part.before = before;
	part.share = SLOT_PART;
	part.group = GROUP_SHARD;
	part.block = (uint32_t)(each * 8 / dtype_info[whole.dtype].bits);
	if (state && state->sharded <= c->plan->p->mode) {
		part.space = shard_space(state);
		part.offset = 0;
		part.state = (uint32_t)state->id + 1;
		part.name = program_name(c->plan->p, state->name);
	}
	return part;
}

static bool
is_shard(const Cutting *c, const Slot *slot)
{
	const State *s = shard_piece(c->plan, slot);

	return s && s->sharded <= c->plan->p->mode;
}

/* Does each rank work on the same blocks in both instructions? */
static bool
is_cut_alike(const Cutting *c, const Instruction *a, const Instruction *b)
{
	Pieces x = pieces_of(c, a), y = pieces_of(c, b);
	bool alike = x.n == y.n;

	for (int i = 0; alike && i < x.n; i++) {
		Blocks p = blocks_of(x.at[i]), q = blocks_of(y.at[i]);
		alike = p.first == q.first && p.n == q.n && p.all == q.all;
	}
	return alike;
}

/* Is argument i touched block by block? True for copies: byte k goes to byte k. */
static bool
is_by_block(const Cutting *c, const Instruction *n, uint32_t i)
{
	return n->kind != RUN_KERNEL || shard_each(c->plan, n, i) > 0;
}

/* Does a later instruction, or an output of the program, read more of the slot than this rank's
 * part? */
static bool
is_read_whole(const Cutting *c, int at, uint32_t slot)
{
	const Program *p = c->plan->p;

	for (int k = at + 1; k < c->old.n; k++) {
		const Instruction *n = &c->old.at[k];
		for (uint32_t i = 0; i < n->n_args; i++)
			if (shard_slot_number(c->plan, n, i) == slot &&
			    (!is_by_block(c, n, i) || !is_cut_alike(c, n, &c->old.at[at])))
				return true;
	}
	for (int i = 0; i < p->outputs.n; i++)
		if (p->outputs.at[i].slot == slot)
			return true;
	return false;
}

static void
gather_behind(Cutting *c, Slot part)
{
	Slot whole = part;

	whole.share = SLOT_WHOLE;
	whole.block = 0;
	whole.before = part.before = 0;
	vec_push(c->plan->p->arena, &c->plan->p->travels,
	         ((Travel){.kind = TRAVEL_GATHER,
	                   .behind = c->out.n - 1,
	                   .when = WHEN_ALWAYS,
	                   .whole = whole,
	                   .part = part}));
}

/* Does another argument overlap argument i? */
static bool
is_in_place(const Cutting *c, const Instruction *n, uint32_t i)
{
	Slot own = slot_of(c, n, i);

	for (uint32_t k = 0; k < n->n_args; k++) {
		Slot s = slot_of(c, n, k);
		if (k != i && s.space == own.space && s.offset < own.offset + own.bytes &&
		    own.offset < s.offset + s.bytes)
			return true;
	}
	return false;
}

/* Does argument i have only a few bytes for each block, like the partial sums of a norm? Then one
 * message for all units is faster than one for each unit. */
static bool
is_small(const Cutting *c, int at, uint32_t i, const Slot *part)
{
	enum { SMALL = 64 };

	return dtype_is_float((DType)part->dtype) && part->space != SPACE_STATE &&
	       dtype_bytes((DType)part->dtype, part->block) <= SMALL &&
	       !is_in_place(c, &c->old.at[at], i);
}

static bool
is_gathered(const Cutting *c, int at, uint32_t i)
{
	const Instruction *n = &c->old.at[at];
	Slot s = slot_of(c, n, i);

	return shard_is_written(c->plan, n, i) && !is_shard(c, &s) &&
	       (s.space == SPACE_STATE || is_read_whole(c, at, shard_slot_number(c->plan, n, i)));
}

static void
clear_small(Cutting *c, int at, uint32_t i)
{
	const Instruction *n = &c->old.at[at];
	uint32_t slot = shard_slot_number(c->plan, n, i);
	Instruction zeros = {.kind = FILL_ZERO,
	                     .phase = n->phase,
	                     .args = program_arguments(c->plan->p, 1, &slot),
	                     .n_args = 1};

	vec_push(c->plan->p->arena, &c->out, zeros);
}

/* Gathers the small values that all pieces' launches write. Before the first launch (behind
 * false), adds instructions that store zeros; after the last launch (behind true), adds a travel
 * that sums the numbers of all ranks. Each rank's own numbers thus reach all ranks. */
static void
fill_small(Cutting *c, int at, const State *piece, bool behind)
{
	const Instruction *n = &c->old.at[at];
	Blocks b = blocks_of(piece);

	for (uint32_t i = 0; i < n->n_args; i++) {
		Slot whole = slot_of(c, n, i), part;
		if (!is_gathered(c, at, i))
			continue;
		part = part_of(c, whole, &b);
		part.before = 0;
		if (!is_small(c, at, i, &part))
			continue;
		if (!behind) {
			clear_small(c, at, i);
			continue;
		}
		Travel t = {.kind = TRAVEL_FILL,
		            .behind = c->out.n - 1,
		            .when = WHEN_ALWAYS,
		            .whole = whole,
		            .part = part};
		vec_push(c->plan->p->arena, &c->plan->p->travels, t);
	}
}

/* Is argument i a state of which the launch reads only this piece's part? Then the launch need
 * not wait until other units are gathered. */
static bool
is_of_blocks(const Cutting *c, const Instruction *n, uint32_t i, const Blocks *b)
{
	Slot s = slot_of(c, n, i);

	return s.space == SPACE_STATE && is_by_block(c, n, i) && s.bytes % b->all == 0 &&
	       shard_piece_at(c->plan, s.offset + b->first * (s.bytes / b->all)) != NULL;
}

/* ---- one instruction */
static void
cut_piece(Cutting *c, int at, const State *piece)
{
	Instruction n = c->old.at[at], cut = n;
	Blocks b = blocks_of(piece);
	VEC(Slot) apart = {0};

	cut.args = (uint32_t)c->plan->p->arguments.n;
	for (uint32_t i = 0; i < n.n_args; i++) {
		Slot s = slot_of(c, &n, i);
		bool part = n.kind != RUN_KERNEL || shard_is_written(c->plan, &n, i) ||
		            is_shard(c, &s) || is_of_blocks(c, &n, i, &b);
		uint32_t number = shard_slot_number(c->plan, &n, i);
		Slot of = part ? part_of(c, s, &b) : s;
		Argument a = {.slot = part ? program_slot(c->plan->p, of) : number};
		vec_push(c->plan->p->arena, &c->plan->p->arguments, a);
		if (is_gathered(c, at, i) && !is_small(c, at, i, &of))
			vec_push(c->plan->arena, &apart, of);
	}
	vec_push(c->plan->p->arena, &c->out, cut);
	for (int i = 0; i < apart.n; i++)
		gather_behind(c, apart.at[i]);
}

void
shard_update(ShardPlan *plan)
{
	Cutting c = {.plan = plan, .old = plan->p->instructions};

	for (int i = 0; i < c.old.n; i++) {
		Pieces pieces = pieces_of(&c, &c.old.at[i]);
		if (pieces.n == 0)
			vec_push(plan->p->arena, &c.out, c.old.at[i]);
		if (pieces.n > 0)
			fill_small(&c, i, pieces.at[0], false);
		for (int k = 0; k < pieces.n; k++)
			cut_piece(&c, i, pieces.at[k]);
		if (pieces.n > 0)
			fill_small(&c, i, pieces.at[0], true);
	}
	plan->p->instructions = c.out;
}

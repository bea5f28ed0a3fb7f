/* Adds communication to programs whose weights or gradients are divided among ranks: gathers of
 * weights, reductions of gradients.
 *
 * ZeRO-3: the weights of a layer block (a unit) are gathered before the block is computed. The
 * unit's memory is free after the block. A unit is gathered once for the forward pass and once
 * for the backward pass; the unit that the backward pass reads first is kept from the forward
 * pass instead. The gather of a unit starts when the program begins to read the previous unit, so
 * the gather runs while the previous unit is used:
 *
 *	compute        block 0 ........  block 1 ........  block 2 ..
 *	communication  gather 1          gather 2          gather 3
 *	memory         unit 0, unit 1    unit 1, unit 2    unit 2, unit 3
 *
 * ZeRO-2 and ZeRO-3: each micro-batch computes the gradients of a unit in a buffer. When all
 * gradients of the unit are complete, the buffer is summed over ranks, and each rank adds its own
 * part of the sum to its gradients. Meanwhile the gradients of the next unit go to another
 * buffer. ZeRO-1: every rank adds up all gradients over micro-batches; ranks sum them in the last
 * micro-batch. */
#include "codegen/programs/blocks.h"
#include "codegen/programs/shard.h"
#include "codegen/programs/stays.h"

typedef struct {
	ShardPlan *plan;
	Instructions old;
	bool *dropped; /* by instruction */
	bool adds;     /* do later micro-batches add to gradients? */
	Stays stays;
	/* behind[k]: number in `out` of the last instruction kept from old[0..k]; -1: none is
	 * kept */
	int *behind;
	/* loops and branches: a piece read or written inside one stays for the whole loop or
	 * branch */
	OuterBlocks blocks;
	Instructions out;
} Gathering;

static const State *
piece_of(const Gathering *g, const Instruction *n, uint32_t i)
{
	return shard_piece(g->plan, &g->plan->p->slots.at[shard_slot_number(g->plan, n, i)]);
}

static bool
is_divided(const Gathering *g, const State *s)
{
	return s && s->sharded <= g->plan->p->mode;
}

/* ---- gradients of each micro-batch: drop the additions to gradients of earlier micro-batches,
 * and the instructions whose results only these additions read */
static bool
writes_gradient(const Gathering *g, const Instruction *n, uint32_t i)
{
	const State *s = piece_of(g, n, i);

	return is_divided(g, s) && s->kind == STATE_GRADIENT;
}

/* Does the instruction write nothing but divided gradients and values that nobody reads? */
static bool
is_useless(const Gathering *g, const Instruction *n, const bool *is_read)
{
	bool useful = false, gradient = false;

	for (uint32_t i = 0; i < n->n_args; i++) {
		if (!shard_is_written(g->plan, n, i))
			continue;
		const Slot *s = &g->plan->p->slots.at[shard_slot_number(g->plan, n, i)];
		bool to_gradient = writes_gradient(g, n, i);
		gradient |= to_gradient;
		useful |= !to_gradient && (s->space != SPACE_WORKSPACE ||
		                           is_read[shard_slot_number(g->plan, n, i)]);
	}
	return !useful && (gradient || n->kind == RUN_KERNEL);
}

static void
drop_additions(Gathering *g)
{
	bool *is_read = NEW_ARRAY(g->plan->arena, bool, g->plan->p->slots.n);

	for (int k = g->old.n - 1; k >= 0; k--) {
		Instruction *n = &g->old.at[k];
		bool makes = false;
		g->dropped[k] = n->when == WHEN_LATER && is_useless(g, n, is_read);
		for (uint32_t i = 0; i < n->n_args; i++) {
			bool written = shard_is_written(g->plan, n, i);
			makes |= written && writes_gradient(g, n, i);
			is_read[shard_slot_number(g->plan, n, i)] |= !g->dropped[k] && !written;
		}
		g->adds |= makes && n->when == WHEN_LATER;
		if (makes && n->when == WHEN_FIRST)
			n->when = WHEN_ALWAYS;
	}
}

/* Additions to earlier gradients were dropped, so later micro-batches now read the same values as
 * the first one. Instructions that computed these values only in the first micro-batch now run in
 * all. */
static void
widen_producers(Gathering *g)
{
	bool *always = NEW_ARRAY(g->plan->arena, bool, g->plan->p->slots.n);

	for (int k = g->old.n - 1; k >= 0; k--) {
		Instruction *n = &g->old.at[k];
		for (uint32_t i = 0; i < n->n_args && n->when == WHEN_FIRST; i++)
			if (shard_is_written(g->plan, n, i) &&
			    always[shard_slot_number(g->plan, n, i)])
				n->when = WHEN_ALWAYS;
		for (uint32_t i = 0; i < n->n_args && n->when == WHEN_ALWAYS; i++)
			if (!shard_is_written(g->plan, n, i))
				always[shard_slot_number(g->plan, n, i)] = true;
	}
}

/* ---- stays */
static Stay *
stay_of(Gathering *g, const State *piece, bool backward)
{
	for (int i = g->stays.n - 1; i >= 0; i--)
		if (g->stays.at[i].piece == piece &&
		    (g->stays.at[i].gradient || g->stays.at[i].backward == backward))
			return &g->stays.at[i];
	return NULL;
}

static void
note_touch(Gathering *g, const State *piece, bool backward, int at)
{
	int first = g->blocks.first[at], last = g->blocks.last[at];
	bool gradient = piece->kind == STATE_GRADIENT;
	Stay *s = stay_of(g, piece, backward);

	if (!s) {
		vec_push(g->plan->arena, &g->stays,
		         ((Stay){.piece = piece,
		                 .bytes = type_bytes(piece->type),
		                 .first = first,
		                 .backward = backward,
		                 .gradient = gradient}));
		s = &g->stays.at[g->stays.n - 1];
	}
	s->last = last;
}

static void
find_stays(Gathering *g)
{
	for (int k = 0; k < g->old.n; k++)
		for (uint32_t i = 0; !g->dropped[k] && i < g->old.at[k].n_args; i++) {
			const State *piece = piece_of(g, &g->old.at[k], i);
			if (is_divided(g, piece))
				note_touch(g, piece, g->old.at[k].phase == PHASE_BACKWARD, k);
		}
}

/* Does another unit's stay (the time for which a unit lies in memory) begin between a and b? */
static bool
is_apart(const Gathering *g, const Stay *a, const Stay *b)
{
	for (int i = 0; i < g->stays.n; i++)
		if (!g->stays.at[i].gradient && g->stays.at[i].first > a->last &&
		    g->stays.at[i].first < b->first)
			return true;
	return false;
}

/* Joins stays of the same piece that overlap or follow directly: a unit that the backward pass begins with
 * is kept. The stays are in the order of their first instructions. */
static void
join_stays(Gathering *g)
{
	int n = 0;

	for (int i = 0; i < g->stays.n; i++) {
		Stay *s = &g->stays.at[i];
		int k = n - 1;
		while (k >= 0 && g->stays.at[k].piece != s->piece)
			k--;
		if (k >= 0 && (g->stays.at[k].last >= s->first || !is_apart(g, &g->stays.at[k], s)))
			g->stays.at[k].last = s->last > g->stays.at[k].last ? s->last
			                                                    : g->stays.at[k].last;
		else
			g->stays.at[n++] = *s;
	}
	g->stays.n = n;
}

/* ---- the program */
static Slot
gathered_slot(const Gathering *g, const Stay *s)
{
	return (Slot){.space = SPACE_GATHERED,
	              .dtype = s->piece->type->dtype,
	              .offset = s->offset,
	              .bytes = type_bytes(s->piece->type),
	              .name = program_name(g->plan->p, s->piece->name)};
}

static Slot
shard_slot(const Gathering *g, const State *s)
{
	return (Slot){.space = shard_space(s),
	              .dtype = s->type->dtype,
	              .bytes = type_bytes(s->type),
	              .name = program_name(g->plan->p, s->name),
	              .share = SLOT_PART,
	              .group = GROUP_SHARD,
	              .block = (uint32_t)s->block,
	              .state = (uint32_t)s->id + 1};
}

static const Stay *
stay_at(const Gathering *g, const State *piece, int at)
{
	for (int i = 0; i < g->stays.n; i++)
		if (g->stays.at[i].piece == piece && at >= g->stays.at[i].first &&
		    at <= g->stays.at[i].last)
			return &g->stays.at[i];
	return NULL;
}

/* Does the unit have elements between its members, or after its last member? Such gaps hold
 * zeros. */
static bool
has_gaps(const Gathering *g, const State *unit)
{
	int64_t n = 0;
	bool has_members = false;

	for (int i = 0; i < g->plan->m->states.n; i++) {
		const State *s = g->plan->m->states.at[i];
		n += s->unit == unit ? s->type->n : 0;
		has_members |= s->unit == unit;
	}
	return has_members && n != unit->type->n;
}

static void
clear_gradients(Gathering *g, int at)
{
	for (int i = 0; i < g->stays.n; i++) {
		const Stay *s = &g->stays.at[i];
		if (!s->gradient || s->first != at || !has_gaps(g, s->piece))
			continue;
		uint32_t slot = program_slot(g->plan->p, gathered_slot(g, s));
		Instruction n = {.kind = FILL_ZERO,
		                 .phase = PHASE_BACKWARD,
		                 .args = program_arguments(g->plan->p, 1, &slot),
		                 .n_args = 1};
		vec_push(g->plan->p->arena, &g->out, n);
	}
}

/* Gives each argument in a unit a slot of its own, because the unit's place changes from stay to stay. */
static void
move_arguments(Gathering *g, int at)
{
	const Instruction *n = &g->old.at[at];
	Program *p = g->plan->p;

	for (uint32_t i = 0; i < n->n_args; i++) {
		const State *piece = piece_of(g, n, i);
		if (!is_divided(g, piece))
			continue;
		Slot slot = p->slots.at[shard_slot_number(g->plan, n, i)];
		slot.space = SPACE_GATHERED;
		slot.state = 0;
		slot.offset += stay_at(g, piece, at)->offset - piece->offset;
		p->arguments.at[n->args + i].slot = program_slot(p, slot);
	}
}

static void
write_instructions(Gathering *g)
{
	Program *p = g->plan->p;

	for (int k = 0; k < g->old.n; k++) {
		if (!g->dropped[k]) {
			clear_gradients(g, k);
			move_arguments(g, k);
			vec_push(p->arena, &g->out, g->old.at[k]);
		}
		g->behind[k] = g->out.n - 1;
	}
	p->instructions = g->out;
}

/* ---- travels */
static void
add_stays(Gathering *g)
{
	for (int i = 0; i < g->stays.n; i++) {
		const Stay *s = &g->stays.at[i];
		Travel t = {.kind = s->gradient ? TRAVEL_REDUCE : TRAVEL_GATHER,
		            .behind = s->gradient    ? g->behind[s->last]
		                      : s->begin > 0 ? g->behind[s->begin - 1]
		                                     : -1,
		            .when = WHEN_ALWAYS,
		            .adds = s->gradient && g->adds,
		            .whole = gathered_slot(g, s),
		            .part = shard_slot(g, s->piece)};
		vec_push(g->plan->p->arena, &g->plan->p->travels, t);
	}
}

/* ZeRO-1: reduces gradients that every rank holds whole, in the last micro-batch. */
static void
add_reductions(Gathering *g)
{
	const Module *m = g->plan->m;
	int *last = NEW_ARRAY(g->plan->arena, int, m->states.n);

	for (int k = 0; k < g->old.n; k++)
		for (uint32_t i = 0; i < g->old.at[k].n_args; i++) {
			const State *piece = piece_of(g, &g->old.at[k], i);
			if (piece)
				last[piece->id] = g->blocks.last[k] + 1;
		}
	for (int i = 0; i < m->states.n; i++) {
		const State *s = m->states.at[i];
		if (s->kind != STATE_GRADIENT || !s->block || s->sharded <= g->plan->p->mode)
			continue;
		Slot whole = {.space = SPACE_STATE,
		              .dtype = s->type->dtype,
		              .offset = s->offset,
		              .bytes = type_bytes(s->type),
		              .name = program_name(g->plan->p, s->name)};
		Slot part = whole;
		part.share = SLOT_PART;
		part.group = GROUP_SHARD;
		part.block = (uint32_t)s->block;
		Travel t = {.kind = TRAVEL_REDUCE,
		            .behind = last[i] ? g->behind[last[i] - 1] : g->out.n - 1,
		            .when = WHEN_LAST,
		            .whole = whole,
		            .part = part};
		vec_push(g->plan->p->arena, &g->plan->p->travels, t);
	}
}

void
shard_gather(ShardPlan *plan)
{
	Gathering g = {.plan = plan};
	bool makes_gradients = plan->p->role == ROLE_ACCUMULATE || plan->p->role == ROLE_ESTIMATE;

	g.old = plan->p->instructions;
	g.blocks = outermost_blocks(plan->arena, g.old.n, g.old.at);
	g.dropped = NEW_ARRAY(plan->arena, bool, g.old.n + 1);
	g.behind = NEW_ARRAY(plan->arena, int, g.old.n + 1);
	if (makes_gradients && plan->p->mode >= MODE_ZERO2) {
		drop_additions(&g);
		widen_producers(&g);
	}
	find_stays(&g);
	join_stays(&g);
	stays_time(&g.stays, g.old.n);
	plan->p->gathered = stays_place(&g.stays, plan->arena);
	write_instructions(&g);
	add_stays(&g);
	if (makes_gradients)
		add_reductions(&g);
}

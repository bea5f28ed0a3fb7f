/* The pass `shard`: rewrites programs for modes in which ranks hold parts of states. Kernels are not
 * changed. Only the places of their arguments change, and travels are added: exchanges of data
 * between ranks, which a later pass writes as instructions. So all modes share kernels and the
 * passes before this one, and the number of ranks never appears in a program. With zero3, a weight
 * is gathered before it is read:
 *
 *	                           travel gather when always gathered+0 ... "w", shard+0 ... "w" share part
 *	run @dot (%x, %w, %y)      run @dot (%x, %3, %y)          %3 = slot gathered+0 ... "w"
 *
 * Programs for MODE_DDP stay as they are. Changes no number. */
#include "codegen/codegen.h"
#include "codegen/programs/instructions.h"
#include "codegen/programs/shard.h"

#include <stdlib.h>

int64_t
shard_each(const ShardPlan *plan, const Instruction *n, uint32_t i)
{
	const Kernel *k = plan->m->kernels.at[n->what];
	int64_t **each = &plan->each[n->what];

	if (!*each) {
		*each = NEW_ARRAY(plan->arena, int64_t, k->n_inputs + k->n_outputs);
		for (int b = 0; b < k->n_inputs + k->n_outputs; b++)
			(*each)[b] = kernel_each(k, b);
	}
	return (*each)[i];
}

/* The last piece that begins at or before the offset, by binary search; NULL: no piece begins there. */
static const State *
piece_before(const ShardPlan *plan, int64_t offset)
{
	int low = 0, high = plan->n_pieces;

	while (low < high) {
		int middle = low + (high - low) / 2;
		if (plan->pieces[middle]->offset <= offset)
			low = middle + 1;
		else
			high = middle;
	}
	return low ? plan->pieces[low - 1] : NULL;
}

const State *
shard_piece_at(const ShardPlan *plan, int64_t offset)
{
	const State *s = piece_before(plan, offset);

	return s && s->offset == offset ? s : NULL;
}

const State *
shard_piece(const ShardPlan *plan, const Slot *slot)
{
	const State *s = slot->space == SPACE_STATE ? piece_before(plan, slot->offset) : NULL;

	return s && slot->offset < s->offset + type_bytes(s->type) &&
	                       shard_is_partial(s, plan->p->mode)
	               ? s
	               : NULL;
}

static int
by_offset(const void *a, const void *b)
{
	const State *const *x = a, *const *y = b;

	return ((*x)->offset > (*y)->offset) - ((*x)->offset < (*y)->offset);
}

static void
sort_pieces(ShardPlan *plan)
{
	const Module *m = plan->m;

	plan->pieces = NEW_ARRAY(plan->arena, const State *, m->states.n + 1);
	for (int i = 0; i < m->states.n; i++)
		if (m->states.at[i]->block)
			plan->pieces[plan->n_pieces++] = m->states.at[i];
	qsort(plan->pieces, (size_t)plan->n_pieces, sizeof(State *), by_offset);
}

bool
shard_changes(const Function *f, DataParallelMode mode)
{
	if (f->role == ROLE_ACCUMULATE || f->role == ROLE_ESTIMATE)
		return true;
	for (int i = 0; i < f->states.n; i++)
		if (value_used(f->states.at[i]) && shard_is_partial(f->states.at[i]->state, mode))
			return true;
	return false;
}

/* Copies to and from the host's memory need an update whose arguments are in one place, whenever it
 * runs. Programs of functions are like that; text may say something else. */
static bool
check_offload(Pass *pass, const Program *p)
{
	bool fits = p->role == ROLE_UPDATE || p->role == ROLE_REFRESH;

	for (int i = 0; i < p->arguments.n; i++)
		fits &= !p->arguments.at[i].loop;
	for (int i = 0; i < p->instructions.n; i++)
		fits &= !p->instructions.at[i].only;
	if (!fits)
		diag_error(pass->diag, EXIT_INVALID,
		           "pass shard: program %s cannot work on states in the host's memory",
		           role_names[p->role]);
	return fits;
}

static bool
shard_program(ShardPlan *plan, Pass *pass, Program *p)
{
	plan->p = p;
	if (p->offloads && !check_offload(pass, p))
		return false;
	if (p->mode == MODE_DDP)
		return true;
	if (p->role != ROLE_UPDATE && p->role != ROLE_REFRESH) {
		shard_gather(plan);
	} else {
		shard_update(plan);
		if (p->offloads)
			offload_update(plan);
	}
	program_sort_travels(p);
	return true;
}

static bool
run_shard(Pass *pass, Module *m)
{
	ShardPlan plan = {.arena = pass->scratch,
	                  .m = m,
	                  .accesses = access_table_new(pass->scratch, m),
	                  .each = NEW_ARRAY(pass->scratch, int64_t *, m->kernels.n + 1)};

	sort_pieces(&plan);
	for_each_program(m, p)
		if (!shard_program(&plan, pass, p))
			return false;
	pass->changed = true;
	return true;
}

const PassRow pass_shard = {.name = "shard",
                            .help = "rewrite programs for ranks that hold parts of states",
                            .needed = true,
                            .takes = STAGE_INSTRUCTIONS,
                            .leaves = STAGE_SHARD,
                            .run = run_shard};

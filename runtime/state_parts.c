/* States that ranks hold parts of. A unit is divided in whole blocks, so of a parameter inside of it a rank has a range of
 * elements, perhaps none:
 *
 *	unit         | a a a a b b | b b b c c c |      2 ranks, blocks of 3
 *	rank 0 has     all of a, the first two of b
 *
 * What is not divided every rank has whole. */
#include "runtime/runtime_impl.h"

#include <string.h>

bool
state_has_parts(const Executor *x, int state)
{
	return state_is_sharded(&x->format->states[state], x->facts.mode);
}

/* What it is divided with; -1: with no single one, as a run of units. */
static int
piece_of(const Format *f, int state)
{
	const StateRecord *s = &f->states[state];

	if (s->block)
		return state;
	return s->unit && f->states[s->unit - 1].block ? (int)s->unit - 1 : -1;
}

/* Bytes of the state that a rank has. They lie `inside` bytes behind the beginning of what the rank has of state `of`. */
typedef struct {
	StateRange range;
	int of;
	int64_t inside;
} RankPart;

/* rank: of the group that has all parts together. */
static RankPart
part_of_rank(const Format *f, const RunFacts *facts, int state, int rank)
{
	const StateRecord *s = &f->states[state];
	int of = piece_of(f, state);
	const StateRecord *piece = &f->states[of < 0 ? state : of];
	int64_t n = format_elements(f, piece->first_dim, piece->rank);
	CommPart part = comm_part(n, run_group(facts, GROUP_SHARD).n, rank,
	                          piece->block ? piece->block : 1);
	int64_t begin = dtype_bytes((DType)piece->dtype, part.first);
	int64_t end = begin + dtype_bytes((DType)piece->dtype, part.n);
	int64_t before = s->offset - piece->offset; /* of the state in the unit */
	int64_t first = begin > before ? begin : before;
	int64_t last = end < before + s->bytes ? end : before + s->bytes;

	if (of < 0 || first >= last)
		return (RankPart){0};
	return (RankPart){{first - before, last - first}, of, first - begin};
}

StateRange
state_range(const Format *f, const RunFacts *facts, int state, int rank)
{
	if (rank >= run_group(facts, GROUP_SHARD).n) /* a copy of another's */
		return (StateRange){0};
	return part_of_rank(f, facts, state, rank).range;
}

StatePart
state_part(const Executor *x, int state)
{
	if (!state_has_parts(x, state))
		return (StatePart){.at = executor_state(x, state)};
	RankPart p = part_of_rank(x->format, &x->facts, state,
	                          run_group(&x->facts, GROUP_SHARD).own);
	if (p.range.bytes == 0)
		return (StatePart){0};
	Space space = state_space(&x->format->states[state]);
	char *piece = x->regions[space][0].at + x->shard_at[p.of];
	return (StatePart){{piece + p.inside, p.range.bytes}, p.range.first};
}

Status
state_write(Executor *x, int state, int64_t offset, const void *from, int64_t bytes)
{
	StatePart p = state_part(x, state);
	int64_t first = p.first > offset ? p.first : offset;
	int64_t last = p.first + p.at.bytes < offset + bytes ? p.first + p.at.bytes
	                                                     : offset + bytes;

	return first >= last ? NULL
	                     : executor_write(x, (Span){p.at.at + first - p.first, last - first},
	                                      (const char *)from + first - offset);
}

static int64_t
least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* A window of each rank's part, `from` bytes behind its beginning. */
static Status
gather_window(const Gradc *run, int state, char *to, int64_t from, int64_t room, char *own,
              char *all)
{
	const Executor *x = &run->executor;
	int ranks = run_group(&x->facts, GROUP_SHARD).n; /* the first ones have all parts */
	StatePart p = state_part(x, state);
	int64_t n = least(room, p.at.bytes - from);
	Status fault = n > 0 ? executor_read((Executor *)x, own, (Span){p.at.at + from, n}) : NULL;

	/* The others wait for this rank also where it has nothing to give. */
	fault = status_first(fault,
	                     run->comm.control_ops->all_gather(run->comm.control, own, all, room));
	for (int r = 0; r < ranks && to && !fault; r++) {
		StateRange part = state_range(x->format, &x->facts, state, r);
		n = least(room, part.bytes - from);
		if (n > 0)
			memcpy(to + part.first + from, all + r * room, (size_t)n);
	}
	return fault;
}

static Status
gather_parts(const Gradc *run, int state, char *to, Arena *arena)
{
	enum { WINDOW = 16 << 20 }; /* of each rank: a tensor may be larger than a message */
	const Executor *x = &run->executor;
	int ranks = run_group(&x->facts, GROUP_SHARD).n;
	int64_t room = 0;
	Status fault = NULL;

	for (int r = 0; r < ranks; r++) {
		StateRange part = state_range(x->format, &x->facts, state, r);
		room = part.bytes > room ? part.bytes : room;
	}
	int64_t window = least(room, WINDOW);
	char *own = arena_alloc(arena, (size_t)window + 1);
	char *all = arena_alloc(arena, (size_t)(window * x->facts.ranks) + 1);
	for (int64_t from = 0; from < room; from += window)
		fault = status_first(fault, gather_window(run, state, to, from, window, own, all));
	return fault;
}

static Status
gather(const Gradc *run, int state, char *to)
{
	Arena *arena = arena_new();
	Status status = gather_parts(run, state, to, arena);

	arena_free(arena);
	return status;
}

Status
state_read(Gradc *run, int state, void *to)
{
	Executor *x = &run->executor;
	int64_t which = state;

	if (!state_has_parts(x, state))
		return executor_read(x, to, executor_state(x, state));
	if (run->is_served)
		RETURN_IF_ERROR(run->comm.control_ops->broadcast(run->comm.control, &which,
		                                                 sizeof(which), 0));
	return gather(run, state, to);
}

/* Until rank 0 has read all that it wants. */
static Status
serve(const Gradc *run)
{
	for (int64_t which;;) {
		RETURN_IF_ERROR(run->comm.control_ops->broadcast(run->comm.control, &which,
		                                                 sizeof(which), 0));
		if (which < 0)
			return NULL;
		RETURN_IF_ERROR(gather(run, (int)which, NULL));
	}
}

Status
states_begin(Gradc *run)
{
	if (gradc_ranks(run) == 1 || run->mode == MODE_REPLICATED)
		return NULL;
	if (gradc_rank(run) > 0)
		return serve(run);
	run->is_served = true;
	return NULL;
}

Status
states_end(Gradc *run)
{
	int64_t over = -1;

	if (!run->is_served)
		return NULL;
	run->is_served = false;
	return run->comm.control_ops->broadcast(run->comm.control, &over, sizeof(over), 0);
}

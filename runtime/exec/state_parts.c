/* States that are divided among ranks, so that each rank holds a part. A unit is several parameters that are laid out one after
 * another and divided together. A unit is divided in whole blocks, so a rank holds a range of elements, perhaps an empty one,
 * of each parameter in the unit:
 *
 * unit         | a a a a b b | b b b c c c |      2 ranks, blocks of 3
 * rank 0 has     all of a, the first two of b
 *
 * Every rank holds the whole of a state that is not divided. */
#include "runtime/exec/exec.h"

#include <string.h>

bool
state_has_parts(const Executor *x, int state)
{
	return state_is_sharded(&x->format->states[state], x->facts.mode);
}

/* The divided state that contains this state: itself or its unit; -1 if the state spans several units. */
static int
piece_of(const Format *f, int state)
{
	const StateRecord *s = &f->states[state];

	if (s->block)
		return state;
	return s->unit && f->states[s->unit - 1].block ? (int)s->unit - 1 : -1;
}

/* The range of a state that a rank holds. Field `of`: number of the divided state that contains the state. Field `inside`:
 * the range begins so many bytes after the beginning of the rank's part of that divided state. */
typedef struct {
	StateRange range;
	int of;
	int64_t inside;
} RankPart;

/* The range of a state that a rank holds. rank: number within the group that holds all parts. */
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
	int64_t before = s->offset - piece->offset; /* offset of the state in the unit */
	int64_t first = begin > before ? begin : before;
	int64_t last = end < before + s->bytes ? end : before + s->bytes;

	if (of < 0 || first >= last)
		return (RankPart){0};
	return (RankPart){{first - before, last - first}, of, first - begin};
}

StateRange
state_range(const Format *f, const RunFacts *facts, int state, int rank)
{
	if (rank >= run_group(facts, GROUP_SHARD).n) /* only a copy of another rank's part */
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

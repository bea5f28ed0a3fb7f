/* Computes where a rank's share of a slot lies. A slot is a place in memory that ranks may divide; the shares depend on
 * the number of ranks of a run. Example: 10,000 elements in blocks of 4096 among 3 ranks give parts of 4096, 4096 and
 * 1808 elements, in rooms of 4096. */
#include "format/checks.h"

static int64_t
elements_of(const Slot *s)
{
	return s->bytes * 8 / dtype_info[s->dtype].bits;
}

RunGroup
run_group(const RunFacts *facts, uint32_t group)
{
	int shards = facts->shard_ranks ? facts->shard_ranks : facts->ranks;

	if (group == GROUP_SHARD)
		return (RunGroup){shards, facts->shard_ranks ? facts->shard_rank : facts->rank};
	if (group == GROUP_REPLICATE)
		return (RunGroup){facts->ranks / shards, facts->rank / shards};
	return (RunGroup){facts->ranks, facts->rank};
}

uint32_t
run_holds(const RunFacts *facts, bool ordered, bool staged)
{
	bool replicas = facts->mode && run_group(facts, GROUP_REPLICATE).n > 1;
	bool peers = run_group(facts, GROUP_SHARD).n > 1;

	return ONLY_RANKS | (ordered && facts->ranks > 1 ? ONLY_ORDERED : ONLY_FAST) |
	       (replicas ? ONLY_REPLICAS : 0u) | (uint32_t)(staged ? ONLY_STAGED : ONLY_DIRECT) |
	       (uint32_t)(peers ? ONLY_PEERS : ONLY_ALONE);
}

int64_t
format_collective_elements(const CollectiveRecord *c, const RunFacts *facts)
{
	RunGroup shards = run_group(facts, GROUP_SHARD);

	return c->of_part ? comm_part(c->n, shards.n, shards.own, c->block).n : c->n;
}

bool
format_place(const Slot *s, const RunFacts *facts, int64_t iteration, SlotPlace *out)
{
	int64_t n = elements_of(s), before = 0;

	*out = (SlotPlace){s->offset, s->bytes, 0};
	if (s->share == SLOT_WHOLE)
		return true;
	RunGroup g = run_group(facts, s->group);
	int64_t room = dtype_bytes((DType)s->dtype, comm_part_room(n, g.n, s->block));
	CommPart part = comm_part(n, g.n, g.own, s->block);
	switch ((SlotShare)s->share) {
	case SLOT_PART:
		before = dtype_bytes((DType)s->dtype, part.first);
		out->bytes = dtype_bytes((DType)s->dtype, part.n);
		if (!size_add(s->before, before, &out->first))
			return false;
		if (s->state) { /* a state's part has a room of its own, not a place in the whole */
			out->offset = facts->shard_at ? facts->shard_at[s->state - 1] : -1;
			return out->offset >= 0;
		}
		break;
	case SLOT_ROOMS:
		if (!size_mul(room, g.n, &out->bytes))
			return false;
		break;
	case SLOT_SECOND_ROOM:
		before = room;
		out->bytes = room;
		break;
	case SLOT_LATER_ROOM:
		if (!size_mul(room, iteration + 2, &before))
			return false;
		out->bytes = room;
		break;
	case SLOT_BEHIND_ROOMS:
		if (!size_mul(room, g.n, &before))
			return false;
		out->bytes = dtype_bytes((DType)s->dtype, part.n);
		break;
	default: out->bytes = room; break; /* SLOT_FIRST_ROOM */
	}
	return size_add(out->offset, before, &out->offset);
}

int64_t
format_slots_bytes(const Format *f, Space space, const RunFacts *facts)
{
	int64_t most = 0, end;

	if (space_has_parts(space))
		return format_shard_places(f, facts, space, NULL);
	for (int i = 0; i < f->n[SECTION_SLOTS]; i++) {
		const Slot *s = &f->slots[i];
		SlotPlace at;

		if (s->space != (uint32_t)space || s->mode != (uint32_t)facts->mode ||
		    !only_applies(s->only, facts))
			continue;
		int ranks = run_group(facts, s->group).n;
		int64_t last = ranks > 2 ? ranks - 3
		                         : 0; /* last iteration of a loop over the later ranks */
		bool exists = s->share != SLOT_LATER_ROOM || ranks > 2;
		exists &= s->share != SLOT_SECOND_ROOM || ranks > 1;
		if (!exists)
			continue;
		if (!format_place(s, facts, last, &at) || !size_add(at.offset, at.bytes, &end) ||
		    end > INT64_MAX / 16)
			return INT64_MAX;
		most = end > most ? end : most;
	}
	return most;
}

enum { SHARD_ALIGNMENT = 64 };

int64_t
format_shard_places(const Format *f, const RunFacts *facts, Space space, int64_t *at)
{
	int64_t ends[N_SPACES] = {0};

	for (int i = 0; i < f->n[SECTION_STATES]; i++) {
		const StateRecord *s = &f->states[i];
		bool divided = state_is_sharded(s, facts->mode) && s->block;
		int64_t *end = &ends[state_space(s)];
		if (at)
			at[i] = divided ? *end : -1;
		if (!divided)
			continue;
		int64_t n = format_elements(f, s->first_dim, s->rank);
		int64_t room = dtype_bytes(
			(DType)s->dtype,
			comm_part_room(n, run_group(facts, GROUP_SHARD).n, s->block));
		if (!size_add(*end, room + SHARD_ALIGNMENT - 1, end) || *end > INT64_MAX / 16)
			return INT64_MAX;
		*end = *end / SHARD_ALIGNMENT * SHARD_ALIGNMENT;
	}
	return ends[space];
}

int64_t
format_state_bytes(const Format *f, int mode)
{
	int64_t end = f->header->state_bytes;

	for (int i = 0; i < f->n[SECTION_STATES]; i++) {
		const StateRecord *s = &f->states[i];
		if (state_is_sharded(s, mode) && s->offset < end)
			end = s->offset;
	}
	return end;
}

int64_t
format_loop_count(uint32_t what, const RunFacts *facts)
{
	int ranks = what == (uint32_t)LOOP_LATER_RANKS    ? facts->ranks
	            : what == (uint32_t)LOOP_LATER_SHARDS ? run_group(facts, GROUP_SHARD).n
	                                                  : 0;

	if (what < (uint32_t)LOOP_LATER_SHARDS)
		return what;
	return ranks > 2 ? ranks - 2 : 0;
}

bool
format_launch_end(const Format *f, const KernelRecord *k, int64_t bytes, int64_t *end)
{
	*end = k->iterations;
	if (k->elements == 0)
		return true;
	const KernelArgument *last = &f->kernel_arguments[k->first_argument + k->n_arguments - 1];
	int64_t each = k->elements / k->iterations;
	int64_t n = bytes * 8 / dtype_info[last->dtype].bits;
	*end = n / each;
	return n % each == 0 && *end <= k->iterations;
}

bool
format_has_mode(const Format *f, int mode)
{
	for (int i = 0; i < f->n[SECTION_PROGRAMS]; i++)
		if (f->programs[i].mode == (uint32_t)mode)
			return true;
	return false;
}

static const ProgramRecord *
find(const Format *f, const FormatIndex *x, const ProgramKey *key)
{
	return x ? format_index_program(x, key) : format_program(f, key);
}

/* The program that the host runs while devices run programs of other targets; NULL: there is no such program. */
static const ProgramRecord *
program_of_host(const Format *f, const FormatIndex *x, const ProgramKey *key)
{
	ProgramKey other = *key;

	for (other.target = 0; other.target < f->n[SECTION_TARGETS]; other.target++) {
		const ProgramRecord *p = find(f, x, &other);
		if (p && p->on_host)
			return p;
	}
	return NULL;
}

/* format_program_in, by the index x unless x is NULL. */
static const ProgramRecord *
program_in(const Format *f, const FormatIndex *x, const ProgramKey *key)
{
	ProgramKey whole = *key;
	const ProgramRecord *p = find(f, x, key);

	whole.mode = MODE_DDP;
	return p || program_of_host(f, x, key) ? p : find(f, x, &whole);
}

const ProgramRecord *
format_program_in(const Format *f, const ProgramKey *key)
{
	return program_in(f, NULL, key);
}

static bool
is_run(const FormatIndex *x, const ProgramRecord *p, int mode)
{
	const ProgramKey key = {(Role)p->role, (int)p->binding, (int)p->stage, mode,
	                        (int)p->target};

	return program_in(x->f, x, &key) == p;
}

Status
format_check_world_by(const FormatIndex *x, const RunFacts *facts)
{
	const Format *f = x->f;
	int64_t limits[N_SPACES] = {0};

	for (int s = 0; s < N_SPACES; s++)
		if (s == SPACE_STATE || space_table[s].by_slots)
			limits[s] = s == SPACE_STATE ? format_state_bytes(f, facts->mode)
			                             : format_slots_bytes(f, (Space)s, facts);
	for (int i = 0; i < f->n[SECTION_PROGRAMS]; i++)
		if (is_run(x, &f->programs[i], facts->mode))
			RETURN_IF_ERROR(format_check_program(f, i, facts, limits));
	return NULL;
}

Status
format_check_world(const Format *f, const RunFacts *facts)
{
	FormatIndex x = format_index_open(f);
	Status status = format_check_world_by(&x, facts);

	format_index_close(&x);
	return status;
}

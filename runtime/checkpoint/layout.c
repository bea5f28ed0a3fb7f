/* Decides which parts of a checkpoint each rank writes, and into which files (shards). A rank writes its parts of the states
 * that are divided among ranks; rank 0 also writes the states that every rank holds whole.
 *
 * state w      | w w w w | w w w w |       divided among 2 ranks
 * state loss   | l |                       whole
 * rank 0       w[0, 4) loss                shard-00000-00000.safetensors
 * rank 1       w[4, 8)                     shard-00001-00000.safetensors
 *
 * Each rank knows the layouts of all ranks, so ranks send each other only checksums. */
#include "runtime/checkpoint/parts.h"

#include <string.h>

/* A unit is several states that lie one after another in memory and are divided together. The states in a unit are saved one by
 * one, and the unit itself is not saved. */
int *
saved_states(Arena *arena, const Format *f, int *n)
{
	bool *covered = NEW_ARRAY(arena, bool, f->n[SECTION_STATES] + 1);
	int *list = NEW_ARRAY(arena, int, f->n[SECTION_STATES]);

	*n = 0;
	/* indexed by state: index + 1 of the unit that contains the state; 0 if there is none */
	for (int i = 0; i < f->n[SECTION_STATES]; i++)
		if (f->states[i].lifetime == LIFE_SAVED)
			covered[f->states[i].unit] = true;
	for (int i = 0; i < f->n[SECTION_STATES]; i++)
		if (f->states[i].lifetime == LIFE_SAVED && !covered[i + 1])
			list[(*n)++] = i;
	return list;
}

int64_t
saved_bytes(const Format *f, const StateRecord *s)
{
	return dtype_bytes((DType)s->dtype, format_elements(f, s->first_dim, s->rank));
}

SavedTensor
saved_tensor(const Format *f, const StateRecord *s)
{
	SavedTensor t = {
		.name = format_text(f, s->name), .dtype = (DType)s->dtype, .rank = (int)s->rank};

	memcpy(t.dims, f->dims + s->first_dim, s->rank * sizeof(*t.dims));
	return t;
}

SavedPiece *
saved_whole(Arena *arena, const SavedTensor *t, int shard, uint64_t checksum)
{
	SavedPiece *piece = NEW(arena, SavedPiece);

	*piece = (SavedPiece){shard, 0, 1, checksum};
	for (int d = 0; d < t->rank; d++)
		piece->count *= t->dims[d];
	return piece;
}

char *
shard_name(Arena *arena, int rank, int number)
{
	return arena_printf(arena, "shard-%05d-%05d.safetensors", rank, number);
}

/* ---- the parts that a rank writes */
/* Which elements of a saved state the rank writes; false if it writes none. */
static bool
find_place(const Format *f, const RunFacts *facts, int state, int rank, SavedPlace *out)
{
	const StateRecord *s = &f->states[state];
	int64_t all = saved_bytes(f, s), bits = dtype_info[s->dtype].bits;
	StateRange part = {0, all};
	bool divided = state_is_sharded(s, facts->mode) && all > 0;

	if (divided)
		part = state_range(f, facts, state, rank);
	if (part.bytes > all - part.first)
		part.bytes = all - part.first; /* without padding */
	*out = (SavedPlace){.state = state,
	                    .first = part.first * 8 / bits,
	                    .count = part.bytes * 8 / bits,
	                    .bytes = part.bytes};
	if (part.bytes == all)
		out->count = format_elements(f, s->first_dim, s->rank);
	return divided ? part.bytes > 0 : rank == 0;
}

/* Lays out a rank's snapshot in the same way as the shard files. Each shard begins at a block boundary, so that it is written
 * directly from the snapshot. */
SavedLayout
saved_layout(Arena *arena, const Format *f, const RunFacts *facts, int rank, int64_t shard_bytes)
{
	int n, *saved = saved_states(arena, f, &n);
	SavedLayout out = {.places = NEW_ARRAY(arena, SavedPlace, n)};
	int64_t first = 0;
	SavedPlace place;

	for (int i = 0; i < n; i++) {
		if (!find_place(f, facts, saved[i], rank, &place))
			continue;
		if (out.n_shards == 0 || out.bytes - first >= shard_bytes) {
			out.n_shards++;
			first = out.bytes = (out.bytes + FILE_BLOCK - 1) / FILE_BLOCK * FILE_BLOCK;
		}
		place.shard = out.n_shards - 1;
		place.at = out.bytes;
		out.bytes += place.bytes;
		out.places[out.n++] = place;
	}
	return out;
}

int64_t
saved_alone_bytes(const Format *f, int64_t shard_bytes)
{
	RunFacts alone = {.ranks = 1, .mode = MODE_DDP};
	Arena *arena = arena_new();
	int64_t bytes = saved_layout(arena, f, &alone, 0, shard_bytes).bytes;

	arena_free(arena);
	return bytes;
}

/* ---- the parts that all ranks wrote */
static void
describe_tensors(Arena *arena, const Format *f, const SavedLayout *layouts, int n_ranks,
                 SavedTensor **of_state, Manifest *out)
{
	int n, *saved = saved_states(arena, f, &n);

	out->tensors = NEW_ARRAY(arena, SavedTensor, n);
	out->n_tensors = n;
	for (int i = 0; i < n; i++) {
		out->tensors[i] = saved_tensor(f, &f->states[saved[i]]);
		of_state[saved[i]] = &out->tensors[i];
	}
	for (int r = 0; r < n_ranks; r++)
		for (int i = 0; i < layouts[r].n; i++)
			of_state[layouts[r].places[i].state]->n_pieces++;
	for (int i = 0; i < n; i++) {
		out->tensors[i].pieces = NEW_ARRAY(arena, SavedPiece, out->tensors[i].n_pieces);
		out->tensors[i].n_pieces = 0; /* set to 0 here, counted up again below */
	}
}

void
shards_collect(Arena *arena, const Format *f, const SavedLayout *layouts, const RankShards *ranks,
               int n_ranks, Manifest *out)
{
	SavedTensor **of_state = NEW_ARRAY(arena, SavedTensor *, f->n[SECTION_STATES]);
	int n_shards = 0;

	describe_tensors(arena, f, layouts, n_ranks, of_state, out);
	for (int r = 0; r < n_ranks; r++)
		n_shards += layouts[r].n_shards;
	out->shards = NEW_ARRAY(arena, Shard, n_shards);
	out->n_shards = 0;
	for (int r = 0; r < n_ranks; r++) {
		for (int i = 0; i < layouts[r].n; i++) {
			const SavedPlace *p = &layouts[r].places[i];
			SavedTensor *t = of_state[p->state];

			t->pieces[t->n_pieces++] = (SavedPiece){out->n_shards + p->shard, p->first,
			                                        p->count, ranks[r].checksums[i]};
		}
		for (int i = 0; i < layouts[r].n_shards; i++)
			out->shards[out->n_shards++] = ranks[r].shards[i];
	}
}

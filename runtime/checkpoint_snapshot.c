/* The states of a moment, copied to the host's memory for a checkpoint. What is copied lies there as in the
 * checkpoint's files. */
#include "runtime/runtime_impl.h"

#include <string.h>

/* A unit whose bytes are those of states that lie in it is saved as these. */
int *
saved_states(Arena *arena, const Format *f, int *n)
{
	bool *covered = NEW_ARRAY(arena, bool, f->n[SECTION_STATES] + 1);
	int *list = NEW_ARRAY(arena, int, f->n[SECTION_STATES]);

	*n = 0;
	for (int i = 0; i < f->n[SECTION_STATES]; i++)
		if (f->states[i].lifetime == LASTS_SAVED)
			covered[f->states[i].unit] = true; /* index + 1; 0: none */
	for (int i = 0; i < f->n[SECTION_STATES]; i++)
		if (f->states[i].lifetime == LASTS_SAVED && !covered[i + 1])
			list[(*n)++] = i;
	return list;
}

int64_t
saved_bytes(const Format *f, const StateRecord *s)
{
	return dtype_bytes((DType)s->dtype, format_elements(f, s->first_dim, s->rank));
}

SavedTensor
saved_tensor(const Format *f, const StateRecord *s, int shard)
{
	SavedTensor t = {.name = format_text(f, s->name),
	                 .dtype = (DType)s->dtype,
	                 .rank = (int)s->rank,
	                 .shard = shard};

	memcpy(t.dims, f->dims + s->first_dim, s->rank * sizeof(*t.dims));
	return t;
}

/* A saved state's place: its shard, and where it lies in the snapshot. */
typedef struct {
	int state, shard;
	int64_t at;
} SavedPlace;

/* Shards lie in the snapshot as in their files, and begin at blocks: they are written from there. */
static SavedPlace *
saved_places(Arena *arena, const Format *f, int64_t shard_bytes, int *n, int64_t *bytes)
{
	int *saved = saved_states(arena, f, n);
	SavedPlace *places = NEW_ARRAY(arena, SavedPlace, *n);
	int64_t at = 0, first = 0;
	int shard = 0;

	for (int i = 0; i < *n; i++) {
		if (i && at - first >= shard_bytes) {
			shard++;
			first = at = (at + FILE_BLOCK - 1) / FILE_BLOCK * FILE_BLOCK;
		}
		places[i] = (SavedPlace){saved[i], shard, at};
		at += saved_bytes(f, &f->states[saved[i]]);
	}
	*bytes = at;
	return places;
}

int64_t
snapshot_bytes(const Format *f, int64_t shard_bytes)
{
	Arena *arena = arena_new();
	int64_t bytes;
	int n;

	saved_places(arena, f, shard_bytes, &n, &bytes);
	arena_free(arena);
	return bytes;
}

static Status
copy_all(const Executor *x, Snapshot *s)
{
	const DeviceOps *ops = x->ops;

	if (ops->copy_hashed && x->facts.mode == MODE_REPLICATED) {
		s->hashed = true;
		return ops->copy_hashed(x->device, s->copies, s->n);
	}
	for (int i = 0; i < s->n; i++)
		if (s->copies[i].from)
			RETURN_IF_ERROR(
				ops->copy(x->device, 0, s->copies[i].to, s->copies[i].from));
	return ops->sync(x->device);
}

/* What ranks hold parts of. */
static Status
gather_all(Gradc *run, const SavedPlace *places, const Snapshot *s)
{
	for (int i = 0; i < s->n; i++)
		if (!s->copies[i].from)
			RETURN_IF_ERROR(state_read(run, places[i].state, s->copies[i].to.at));
	return NULL;
}

Status
snapshot_take(Arena *arena, Gradc *run, Snapshot *out)
{
	const Format *f = &run->format;
	Snapshot *s = out;
	int64_t bytes;

	*s = (Snapshot){0};
	SavedPlace *places = saved_places(arena, f, run->options.shard_bytes, &s->n, &bytes);
	s->tensors = NEW_ARRAY(arena, SavedTensor, s->n);
	s->copies = NEW_ARRAY(arena, HashedCopy, s->n);
	for (int i = 0; i < s->n; i++) {
		const SavedPlace *p = &places[i];
		const StateRecord *state = &f->states[p->state];

		s->tensors[i] = saved_tensor(f, state, p->shard);
		s->copies[i].to = (Span){run->saver.snapshot.at + p->at, saved_bytes(f, state)};
		s->copies[i].from = executor_state(&run->executor, p->state).at;
	}
	RETURN_IF_ERROR(copy_all(&run->executor, s));
	return gather_all(run, places, s);
}

void
snapshot_hash(Snapshot *s)
{
	for (int i = 0; i < s->n; i++) {
		HashedCopy *c = &s->copies[i];

		if (!s->hashed)
			c->checksum = checksum_bytes(c->to.at, c->to.bytes);
		s->tensors[i].checksum = c->checksum;
	}
	s->hashed = true;
}

SafeTensor *
snapshot_files(Arena *arena, const Snapshot *s, int first, int n)
{
	SafeTensor *list = NEW_ARRAY(arena, SafeTensor, n);

	for (int i = 0; i < n; i++) {
		const SavedTensor *t = &s->tensors[first + i];
		const Span *bytes = &s->copies[first + i].to;

		list[i] = (SafeTensor){.name = t->name,
		                       .dtype = t->dtype,
		                       .rank = t->rank,
		                       .n_bytes = bytes->bytes,
		                       .data = bytes->at};
		memcpy(list[i].dims, t->dims, sizeof(t->dims));
	}
	return list;
}

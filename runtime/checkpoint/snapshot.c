/* Takes the snapshot for a checkpoint: copies the states that this rank saves to the host's memory, in the same layout as in
 * the checkpoint's files. */
#include "runtime/checkpoint/write.h"
#include "runtime/host/host.h"

static Status
copy_all(const Executor *x, Snapshot *s)
{
	const DeviceOps *ops = x->ops;

	if (ops->copy_hashed) {
		s->hashed = true;
		return ops->copy_hashed(x->device, s->copies, s->n);
	}
	/* wait first: a driver copies from memory of a mapped file at the time of the call, not in stream order */
	RETURN_IF_ERROR(ops->sync(x->device));
	for (int i = 0; i < s->n; i++)
		RETURN_IF_ERROR(ops->copy(x->device, 0, s->copies[i].to, s->copies[i].from));
	return ops->sync(x->device);
}

Status
snapshot_take(Arena *arena, Gradc *run, Snapshot *out)
{
	const SavedLayout *layout = &run->saver->layouts[gradc_rank(run)];

	*out = (Snapshot){.copies = NEW_ARRAY(arena, HashedCopy, layout->n), .n = layout->n};
	for (int i = 0; i < layout->n; i++) {
		const SavedPlace *p = &layout->places[i];

		out->copies[i].to = (Span){run->saver->snapshot.at + p->at, p->bytes};
		out->copies[i].from = state_part(&run->executor, p->state).at.at;
	}
	return copy_all(&run->executor, out);
}

void
snapshot_hash(Snapshot *s)
{
	for (int i = 0; i < s->n && !s->hashed; i++)
		s->copies[i].checksum = checksum_bytes(s->copies[i].to.at, s->copies[i].to.bytes);
	s->hashed = true;
}

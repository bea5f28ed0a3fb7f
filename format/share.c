/* What ranks share of a slot: formulas over the world. 10,000 elements among 3 ranks are parts of 4096, 4096 and 1808, in
 * rooms of 4096. */
#include "format/format_impl.h"

static int64_t
elements_of(const Slot *s)
{
	return s->bytes * 8 / dtype_info[s->dtype].bits;
}

bool
format_place(const Slot *s, const RunFacts *facts, int64_t iteration, SlotPlace *out)
{
	int64_t n = elements_of(s);
	int64_t room = dtype_bytes((DType)s->dtype, comm_part_room(n, facts->ranks, SHARE_BLOCK));
	CommPart part = comm_part(n, facts->ranks, facts->rank, SHARE_BLOCK);
	int64_t before = 0;

	*out = (SlotPlace){s->offset, s->bytes};
	switch ((SlotShare)s->share) {
	case SLOT_PART:
		before = dtype_bytes((DType)s->dtype, part.first);
		out->bytes = dtype_bytes((DType)s->dtype, part.n);
		break;
	case SLOT_ROOMS:
		if (!size_mul(room, facts->ranks, &out->bytes))
			return false;
		break;
	case SLOT_NEXT_ROOM:
		if (!size_mul(room, iteration + 1, &before))
			return false;
		out->bytes = room;
		break;
	case SLOT_FIRST_ROOM: out->bytes = room; break;
	default: break;
	}
	return size_add(out->offset, before, &out->offset);
}

int64_t
format_slots_bytes(const Format *f, Space space, const RunFacts *facts)
{
	int64_t most = 0, end;

	for (int i = 0; i < f->n[SECTION_SLOTS]; i++) {
		const Slot *s = &f->slots[i];
		SlotPlace at;

		if (s->space != (uint32_t)space)
			continue;
		if (!format_place(s, facts, facts->ranks - 2, &at) ||
		    !size_add(at.offset, at.bytes, &end) || end > INT64_MAX / 16)
			return INT64_MAX;
		most = end > most ? end : most;
	}
	return most;
}

bool
format_launch_end(const Format *f, const KernelRecord *k, int64_t bytes, int64_t *end)
{
	*end = k->iterations;
	if (k->elements == 0)
		return true;
	const KernelArgument *first = &f->kernel_arguments[k->first_argument];
	int64_t each = k->elements / k->iterations;
	int64_t n = bytes * 8 / dtype_info[first->dtype].bits;
	*end = n / each;
	return n % each == 0 && *end <= k->iterations;
}

Status
format_check_world(const Format *f, const RunFacts *facts)
{
	for (int i = 0; i < f->n[SECTION_PROGRAMS]; i++)
		RETURN_IF_ERROR(format_check_program(f, i, facts));
	return NULL;
}

/* The regions of memory of a run: how large they are, getting them, and what to say where there is not enough. */
#include "runtime/cli.h"
#include "runtime/runtime_impl.h"

static int64_t
region_bytes(const Executor *x, Space space)
{
	int64_t bytes = format_space_bytes(x->format, space, x->target);
	int64_t host = format_space_bytes(x->format, space, x->host_target);

	if (space_table[space].by_slots)
		return format_slots_bytes(x->format, space, &x->facts);
	return bytes > host ? bytes : host;
}

static int
turns_of(const SpaceRow *row)
{
	return row->turn == TURN_NONE ? 1 : 2;
}

/* "state 1.4 GiB, workspace 70.1 GiB", those of the device's memory or of the host's; their sum. */
static int64_t
add_plan(Text *out, const Executor *x, bool on_host)
{
	char number[32];
	int64_t sum = 0;

	for (int s = 0; s < N_SPACES; s++) {
		const SpaceRow *row = &space_table[s];
		int64_t bytes = turns_of(row) * region_bytes(x, (Space)s);

		if (!only_applies(row->only, &x->facts) || row->on_host != on_host || bytes == 0)
			continue;
		text_printf(out, "%s%s %s", sum ? ", " : "", row->name,
		            bytes_text(number, (double)bytes));
		sum += bytes;
	}
	return sum;
}

/* What was planned by region, what there is, and what helps. */
static Status
not_enough(const Executor *x, bool on_host, Status why)
{
	DeviceMemory memory;
	Text plan = {0}, have = {0};
	char number[32], total[32];
	int64_t sum = add_plan(&plan, x, on_host);

	if (!on_host && x->ops->memory && x->ops->memory(x->device, &memory))
		text_printf(&have, "; %s of %s are free",
		            bytes_text(number, (double)(memory.free + memory.own)),
		            bytes_text(total, (double)memory.total));
	Status status = status_error(
		why->exit_code,
		"%s: planned are %s (%s)%s: compile with fewer rows (--batch) and train with "
		"--accumulate, which keeps a step's rows, or give it a %s that has more",
		why->message, bytes_text(number, (double)sum), plan.at ? plan.at : "none",
		have.at ? have.at : "", on_host ? "machine" : "device");
	text_free(&plan);
	text_free(&have);
	status_free(why);
	return status;
}

Status
regions_alloc(Executor *x)
{
	for (int s = 0; s < N_SPACES; s++) {
		const SpaceRow *row = &space_table[s];
		MemoryKind kind = row->on_host ? MEMORY_PINNED : MEMORY_DEVICE;

		for (int turn = 0; turn < turns_of(row) && only_applies(row->only, &x->facts);
		     turn++) {
			Status status = x->ops->alloc(x->device, kind, region_bytes(x, (Space)s),
			                              &x->regions[s][turn]);
			if (status)
				return not_enough(x, row->on_host, status);
		}
	}
	return NULL;
}

void
regions_free(Executor *x)
{
	for (int s = 0; s < N_SPACES; s++)
		for (int turn = 0; turn < 2; turn++)
			if (x->regions[s][turn].at)
				x->ops->free(x->device,
				             space_table[s].on_host ? MEMORY_PINNED : MEMORY_DEVICE,
				             x->regions[s][turn]);
}

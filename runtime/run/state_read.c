/* Reads whole states to the host. If ranks hold parts of a state, each rank sends its part to all ranks or to rank 0. */
#include "runtime/run/run.h"

#include <string.h>

static int64_t
least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* Gathers a window (a limited number of bytes) of each rank's part; the window begins `from` bytes into the part. */
static Status
gather_window(const Gradc *run, int state, char *to, int64_t from, int64_t room, char *own,
              char *all)
{
	const Executor *x = &run->executor;
	/* the first `ranks` ranks hold all parts */
	int ranks = run_group(&x->facts, GROUP_SHARD).n;
	StatePart p = state_part(x, state);
	int64_t n = least(room, p.at.bytes - from);
	Status fault = n > 0 ? executor_read((Executor *)x, own, (Span){p.at.at + from, n}) : NULL;

	/* All ranks must call this: the other ranks wait even for a rank that has no bytes to send. */
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
	enum { WINDOW = 16 << 20 }; /* per rank: a tensor may be larger than a message */
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

/* Sends this rank's parts until rank 0 has read all states that it wants. */
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
	if (gradc_ranks(run) == 1 || run->mode == MODE_DDP)
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

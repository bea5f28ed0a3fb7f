/* Allocates a run's memory: a region for each space, such as the states or the workspace. The regions have room for what training runs; for
 * a forward program they grow. Writes the message if there is not enough memory. */
#include "runtime/exec/walk.h"

#include <string.h>

static int64_t
region_bytes(const Executor *x, Space space)
{
	int64_t bytes = format_space_bytes(x->format, space, x->target);
	int64_t host = format_space_bytes(x->format, space, x->host_target);

	if (space_table[space].by_slots)
		return format_slots_bytes(x->format, space, &x->facts);
	if (space == SPACE_STATE)
		return format_state_bytes(x->format, x->facts.mode);
	return bytes > host ? bytes : host;
}

/* Is the region planned for each program, and does this run have it? */
static bool
is_by_program(const Executor *x, Space space)
{
	return !space_table[space].by_slots && space != SPACE_STATE &&
	       only_applies(space_table[space].only, &x->facts);
}

/* The bytes of a region that has room for the programs of training, and for program p, too; p NULL: for those alone. A communicator that
 * works in the device's memory is lent the regions, so they must not grow later: they have room for every program. */
static int64_t
room_bytes(const Executor *x, const ProgramRecord *p, Space space)
{
	int64_t bytes = region_bytes(x, space);

	if (!is_by_program(x, space))
		return bytes;
	if (p && p->bytes[space] > bytes)
		bytes = p->bytes[space];
	for (int i = 0; comm_enqueues(x->comm) && i < x->format->n[SECTION_PROGRAMS]; i++) {
		const ProgramRecord *other = &x->format->programs[i];
		if (other->target == (uint32_t)x->target && other->bytes[space] > bytes)
			bytes = other->bytes[space];
	}
	return bytes;
}

static int64_t
bytes_of_library(const DeviceOps *ops, const Code *code)
{
	return ops->library_bytes ? ops->library_bytes(code) : 0;
}

/* "state 1.4 GiB, workspace 70.1 GiB": the regions on the device or on the host. Returns their sum. */
static int64_t
add_plan(Text *out, const Executor *x, const ProgramRecord *p, bool on_host)
{
	char number[32];
	int64_t sum = 0;

	for (int s = 0; s < N_SPACES; s++) {
		const SpaceRow *row = &space_table[s];
		int64_t bytes = turn_copies(row->turn) * room_bytes(x, p, (Space)s);

		if (!only_applies(row->only, &x->facts) || row->on_host != on_host || bytes == 0)
			continue;
		text_printf(out, "%s%s %s", sum ? ", " : "", row->name,
		            bytes_text(number, (double)bytes));
		sum += bytes;
	}
	int64_t library = on_host ? 0 : bytes_of_library(x->ops, x->code);
	if (library)
		text_printf(out, ", library %s", bytes_text(number, (double)library));
	return sum + library;
}

/* An error with the plan by region, the free memory, and what helps. A fault of the device is returned instead. */
static Status
not_enough(const Executor *x, const ProgramRecord *p, bool on_host, Status why)
{
	DeviceMemory memory;
	Text plan = {0}, have = {0};
	char number[32], total[32], own[32];
	Status fault = x->ops->fault(x->device);

	if (fault) {
		status_free(why);
		return fault;
	}
	int64_t sum = add_plan(&plan, x, p, on_host);
	if (!on_host && x->ops->memory && x->ops->memory(x->device, &memory))
		text_printf(&have, "; %s of %s are free, beside %s of the plan",
		            bytes_text(number, (double)memory.free),
		            bytes_text(total, (double)memory.total),
		            bytes_text(own, (double)memory.own));
	Status status = status_error(
		why->exit_code,
		"%s: the plan needs %s (%s)%s: compile with fewer rows (--batch) and train with "
		"--accumulate, which keeps a step's rows, or use a %s with more memory",
		why->message, bytes_text(number, (double)sum), plan.at ? plan.at : "none",
		have.at ? have.at : "", on_host ? "machine" : "device");
	text_free(&plan);
	text_free(&have);
	status_free(why);
	return status;
}

static MemoryKind
memory_kind(Space space)
{
	return space_table[space].on_host ? MEMORY_PINNED : MEMORY_DEVICE;
}

static Status
alloc_space(Executor *x, const ProgramRecord *p, Space space, Span regions[IN_FLIGHT])
{
	const SpaceRow *row = &space_table[space];
	int64_t bytes = room_bytes(x, p, space);

	for (int turn = 0; turn < turn_copies(row->turn) && only_applies(row->only, &x->facts);
	     turn++) {
		Span *out = &regions[turn];
		Status status = offload_in_file(x, space)
		                        ? offload_alloc(x, bytes, out)
		                        : x->ops->alloc(x->device, memory_kind(space), bytes, out);
		if (status)
			return offload_in_file(x, space) ? status
			                                 : not_enough(x, p, row->on_host, status);
	}
	return NULL;
}

static void
free_space(Executor *x, Space space, const Span regions[IN_FLIGHT])
{
	for (int turn = 0; turn < IN_FLIGHT; turn++)
		if (offload_in_file(x, space))
			offload_free(x, regions[turn]);
		else if (regions[turn].at)
			x->ops->free(x->device, memory_kind(space), regions[turn]);
}

Status
regions_alloc(Executor *x)
{
	for (int s = 0; s < N_SPACES; s++)
		RETURN_IF_ERROR(alloc_space(x, NULL, (Space)s, x->regions[s]));
	Status status = library_alloc(x->ops, x->device, x->code, &x->library);
	return status ? not_enough(x, NULL, false, status) : NULL;
}

/* ---- regions of programs that training does not run */
static bool
must_grow(const Executor *x, const ProgramRecord *p, Space space)
{
	return is_by_program(x, space) && p->bytes[space] > x->regions[space][0].bytes;
}

bool
executor_has_room(const Executor *x, const ProgramRecord *p)
{
	for (int s = 0; s < N_SPACES; s++)
		if (must_grow(x, p, (Space)s))
			return false;
	return true;
}

Status
executor_make_room(Executor *x, const ProgramRecord *p)
{
	if (executor_has_room(x, p))
		return NULL;
	RETURN_IF_ERROR(x->ops->sync(x->device));
	recorded_free(x);
	for (int s = 0; s < N_SPACES; s++) {
		if (!must_grow(x, p, (Space)s))
			continue;
		Span larger[IN_FLIGHT] = {{0}};
		Status status = alloc_space(x, p, (Space)s, larger);
		free_space(x, (Space)s, status ? larger : x->regions[s]);
		RETURN_IF_ERROR(status);
		memcpy(x->regions[s], larger, sizeof(larger));
	}
	return NULL;
}

int64_t
executor_region_total(const Executor *x, Space space)
{
	int64_t bytes = 0;

	for (int turn = 0; turn < IN_FLIGHT; turn++)
		bytes += x->regions[space][turn].bytes;
	return bytes;
}

Status
library_alloc(const DeviceOps *ops, Device *device, Code *code, Span *out)
{
	int64_t bytes = bytes_of_library(ops, code);

	if (bytes == 0)
		return NULL;
	Status status = ops->alloc(device, MEMORY_DEVICE, bytes, out);
	if (status)
		return status_annotate(status,
		                       "memory for libraries, which --libraries=off does without");
	ops->place_library(code, out->at);
	return NULL;
}

void
library_free(const DeviceOps *ops, Device *device, Span *library)
{
	if (library->at)
		ops->free(device, MEMORY_DEVICE, *library);
	*library = (Span){0};
}

void
regions_free(Executor *x)
{
	for (int s = 0; s < N_SPACES; s++)
		free_space(x, (Space)s, x->regions[s]);
}

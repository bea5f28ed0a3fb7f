/* CommControl over MPI, for ranks that an MPI launcher such as mpirun started: opening, ending, and calls between steps. It
 * uses the library's non-blocking collectives, so that a late rank can be named. */
#include "runtime/comm/mpi/mpi.h"

#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SPINS = 2000 };
static const char *const thread_levels[] = {"MPI_THREAD_SINGLE", "MPI_THREAD_FUNNELED",
                                            "MPI_THREAD_SERIALIZED", "MPI_THREAD_MULTIPLE"};
enum { SERIALIZED = 2 };

/* ---- helpers for the other files */
static void
unlock(void *lock)
{
	pthread_mutex_unlock(lock);
}

void
mpi_lock(CommControl *c)
{
	pthread_mutex_lock(&c->lock);
	memory_hold(unlock, &c->lock);
}

void
mpi_unlock(CommControl *c)
{
	memory_let_go();
	pthread_mutex_unlock(&c->lock);
}

Status
mpi_fault(const CommControl *c, int code, const char *what, int peer)
{
	char text[1024] = "";
	int n = 0;

	c->mpi.Error_string(code, text, &n);
	return peer < 0 ? status_error(EXIT_COMM, "rank %d: %s: %s", c->rank, what, text)
	                : status_error(EXIT_COMM, "rank %d: %s rank %d: %s", c->rank, what, peer,
	                               text);
}

void
mpi_pause(int64_t i)
{
	if (i < SPINS)
		sched_yield();
	else
		nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

void
mpi_report(const CommControl *c, Text *line)
{
	if (line->n && c->options.report)
		c->options.report(c->options.context, line->at);
	text_free(line);
}

Status
mpi_keep(CommControl *c, Status status)
{
	if (status && !c->fault)
		c->fault = status_copy(status);
	return status;
}

Status
mpi_kept(const CommControl *c)
{
	return status_copy(c->fault);
}

/* ---- opening */
/* hosted: the program that uses this library had already started MPI. */
static Status
start_library(CommControl *c, bool *hosted)
{
	int provided = 0, started = 0, code = 0;

	c->mpi.Initialized(&started);
	*hosted = started != 0;
	if (started)
		code = c->mpi.Query_thread(&provided);
	else
		RETURN_IF_ERROR(mpi_start(c, SERIALIZED, &provided, &code));
	if (code)
		return mpi_fault(c, code, "MPI_Init_thread", -1);
	if (provided < SERIALIZED)
		return status_error(
			EXIT_COMM, "MPI: asked for %s, which is one thread at a time, got %s",
			thread_levels[SERIALIZED], provided < 0 ? "less" : thread_levels[provided]);
	c->mpi.Comm_rank(c->mpi.world, &c->rank);
	c->mpi.Comm_size(c->mpi.world, &c->size);
	return NULL;
}

static Status
read_patience(CommControl *c)
{
	const char *text = getenv("GRADC_COMM_TIMEOUT");

	c->patience = 20;
	if (text && (!parse_double(text, &c->patience) || !(c->patience > 0) || c->patience > 1e6))
		return status_error(EXIT_USAGE,
		                    "GRADC_COMM_TIMEOUT=%s: need seconds above 0, at most 1e6",
		                    text);
	return NULL;
}

static void
free_all(CommControl *c)
{
	for (int i = 0; i < N_CHANNELS; i++)
		memory_free(c->channels[i].members);
	status_free(c->fault);
	pthread_mutex_destroy(&c->lock);
	memory_free(c);
}

/* Duplicates MPI_COMM_WORLD, but only if the program that uses this library sends messages over MPI as well. */
static Status
open_channel(CommControl *c, bool hosted)
{
	Channel *all = &c->channels[CHANNEL_CONTROL];
	int code = 0;

	all->comm = c->mpi.world;
	if (hosted)
		code = c->mpi.Comm_dup(c->mpi.world, &all->comm);
	if (code)
		return mpi_fault(c, code, "MPI_Comm_dup", -1);
	c->mpi.Comm_set_errhandler(all->comm, c->mpi.errors_return);
	all->name = "control";
	all->rank = c->rank;
	all->size = c->size;
	all->members = memory_get(sizeof(int) * (size_t)c->size);
	for (int r = 0; r < c->size; r++)
		all->members[r] = r;
	return NULL;
}

static Status
control_open(const CommOptions *options, CommControl **out)
{
	CommControl *c = memory_zeroed(1, sizeof(*c));
	bool hosted = false;

	*out = NULL;
	c->options = *options;
	pthread_mutex_init(&c->lock, NULL);
	Status status = mpi_library_open(&c->mpi);
	if (!status)
		status = read_patience(c);
	if (!status)
		status = start_library(c, &hosted);
	if (!status)
		status = open_channel(c, hosted);
	if (!status)
		status = beat_open(c);
	if (status)
		free_all(c);
	else
		*out = c;
	return status;
}

static void
control_close(CommControl *c)
{
	if (!c)
		return;
	beat_close(c);
	if (c->broken || c->lost || c->beat)
		return; /* when this process ends, the launcher ends the other ranks */
	mpi_lock(c);
	c->mpi.Finalize();
	mpi_unlock(c);
	free_all(c);
}

/* Ends all ranks. Waits a moment first, because launchers drop recent output when a rank aborts. If the lock is not free within
 * a second, aborts without the lock: a thread that hangs in the library must not keep the other ranks alive. */
static void
control_abort(CommControl *c, int exit_code)
{
	struct timespec until;

	nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec++;
	bool locked = pthread_mutex_timedlock(&c->lock, &until) == 0;
	c->mpi.Abort(c->mpi.world, exit_code);
	if (locked)
		pthread_mutex_unlock(&c->lock);
}

static int
control_rank(const CommControl *c)
{
	return c->rank;
}

static int
control_size(const CommControl *c)
{
	return c->size;
}

/* ---- calls; each call has its own memory, which is never freed if the library may still use it after a fault */
struct ControlCall {
	ControlCall *next;
	MpiHandle request;
	char at[];
};

static ControlCall *
new_call(int64_t bytes)
{
	ControlCall *call = memory_get(sizeof(*call) + (size_t)bytes);

	*call = (ControlCall){0};
	return call;
}

/* number: the call's number among control's collectives. */
static Status
await_call(CommControl *c, ControlCall *call, const char *what, int64_t number)
{
	const Channel *all = &c->channels[CHANNEL_CONTROL];
	Wait wait = {all, what, number, .since = seconds_now()};
	Status status = NULL;
	int done = 0;

	for (int64_t i = 0; !done && !status; i++) {
		Text line = {0};

		mpi_lock(c);
		int code = c->mpi.Test(&call->request, &done, c->mpi.status_ignore);
		if (code)
			status = mpi_fault(c, code, what, -1);
		else if (!done)
			status = c->fault ? mpi_kept(c)
			                  : beat_wait(c, &wait, all->members, all->size, &line);
		mpi_keep(c, status);
		mpi_unlock(c);
		mpi_report(c, &line);
		if (!done && !status)
			mpi_pause(i);
	}
	return status;
}

/* Waits for a call. A failed call is kept in c->lost. status: the result of starting the call. */
static Status
finish_call(CommControl *c, ControlCall *call, Status status, const char *what, int64_t number)
{
	if (!status)
		status = await_call(c, call, what, number);
	if (status) {
		call->next = c->lost;
		c->lost = call;
	}
	return status;
}

static Status
control_all_gather(CommControl *c, const void *from, void *to, int64_t bytes)
{
	Channel *all = &c->channels[CHANNEL_CONTROL];

	if (bytes > INT32_MAX)
		return status_error(EXIT_COMM, "a control message of %lld bytes is too large",
		                    (long long)bytes);
	ControlCall *call = new_call(bytes * (c->size + 1));
	memcpy(call->at, from, (size_t)bytes);
	mpi_lock(c);
	Status status = mpi_kept(c);
	int code = status ? 0
	                  : c->mpi.Iallgather(call->at, (int)bytes, c->mpi.byte, call->at + bytes,
	                                      (int)bytes, c->mpi.byte, all->comm, &call->request);
	int64_t number = all->started++;
	all->traffic += bytes;
	if (code)
		status = mpi_keep(c, mpi_fault(c, code, "all_gather", -1));
	mpi_unlock(c);
	RETURN_IF_ERROR(finish_call(c, call, status, "all_gather", number));
	memcpy(to, call->at + bytes, (size_t)(bytes * c->size));
	memory_free(call);
	return NULL;
}

static Status
broadcast(CommControl *c, char *at, int bytes, int root)
{
	Channel *all = &c->channels[CHANNEL_CONTROL];
	ControlCall *call = new_call(bytes);

	if (c->rank == root)
		memcpy(call->at, at, (size_t)bytes);
	mpi_lock(c);
	Status status = mpi_kept(c);
	int code = status ? 0
	                  : c->mpi.Ibcast(call->at, bytes, c->mpi.byte, root, all->comm,
	                                  &call->request);
	int64_t number = all->started++;
	all->traffic += c->rank == root ? bytes : 0;
	if (code)
		status = mpi_keep(c, mpi_fault(c, code, "broadcast from", root));
	mpi_unlock(c);
	RETURN_IF_ERROR(finish_call(c, call, status, "broadcast", number));
	memcpy(at, call->at, (size_t)bytes);
	memory_free(call);
	return NULL;
}

static Status
control_broadcast(CommControl *c, void *at, int64_t bytes, int root)
{
	enum { MOST_BYTES = 1 << 26 };

	if (root < 0 || root >= c->size)
		return status_error(EXIT_COMM,
		                    "broadcast from rank %d, which is not one of the "
		                    "%d ranks",
		                    root, c->size);
	for (int64_t done = 0; done < bytes; done += MOST_BYTES) {
		int64_t left = bytes - done;
		int n = left < MOST_BYTES ? (int)left : MOST_BYTES;

		RETURN_IF_ERROR(broadcast(c, (char *)at + done, n, root));
	}
	return NULL;
}

/* ---- collectives of devices */
static void
control_started(CommControl *c, CommGroup group, int64_t n)
{
	mpi_lock(c);
	c->channels[CHANNEL_GROUP + group].started = n;
	mpi_unlock(c);
}

/* The channel for a group's members. Called with the lock held. If collectives do not use MPI, the group's channel has no
 * members yet, and is filled here. */
static const Channel *
channel_of(CommControl *c, const CommWatch *watch)
{
	Channel *ch = &c->channels[CHANNEL_GROUP + watch->group];
	size_t bytes = sizeof(int) * (size_t)watch->size;

	if (ch->members)
		return ch;
	ch->name = comm_group_names[watch->group];
	ch->size = watch->size;
	ch->members = memcpy(memory_get(bytes), watch->members, bytes);
	return ch;
}

static Status
control_watch(CommControl *c, CommWatch *watch)
{
	Wait w = {.what = watch->what,
	          .number = watch->number,
	          .queued = watch->number >= 0,
	          .since = watch->since,
	          .told = watch->told};
	Text line = {0};

	mpi_lock(c);
	w.channel = channel_of(c, watch);
	Status status = mpi_kept(c);
	if (!status)
		status = mpi_keep(c, beat_wait(c, &w, watch->members, watch->size, &line));
	watch->told = w.told;
	watch->late = beat_has_late(c, &w, watch->members, watch->size);
	mpi_unlock(c);
	mpi_report(c, &line);
	return status;
}

const CommControlOps comm_control_mpi = {
	.name = "mpi",
	.open = control_open,
	.close = control_close,
	.abort = control_abort,
	.rank = control_rank,
	.size = control_size,
	.all_gather = control_all_gather,
	.broadcast = control_broadcast,
	.doing = beat_doing,
	.started = control_started,
	.watch = control_watch,
};

/* Collectives in the GPU's memory over NCCL, queued on the GPU's streams; the host does not wait for them. The ranks find each
 * other over control (CommControl), which also knows whether a rank is alive.
 *
 * Calls do not block (NcclConfig.blocking). While NCCL waits for other ranks, or a thread waits for the device, control is
 * asked about the other ranks; NCCL itself would wait for a lost rank without end. After a fault every call returns the fault
 * and starts nothing. Collectives under way stay unfinished until abort: otherwise a stream would go on with sums that were
 * never computed. */
#include "runtime/comm/nccl/nccl.h"

#include <string.h>
#include <time.h>

static bool
is_first(const CommData *d, int group)
{
	return d->groups[group].same == group && d->groups[group].is_shared;
}

/* ---- faults; called with the lock held */
static void
abort_all(CommData *d)
{
	for (int g = 0; g < N_GROUPS; g++) {
		if (d->comms[g])
			d->nccl.CommAbort(d->comms[g]);
		d->comms[g] = NULL;
	}
	d->n_lent = 0; /* registrations end with their communicators */
}

/* Stores the first fault for later calls, and returns `status`. */
static Status
keep(CommData *d, Status status)
{
	if (status && !d->fault)
		d->fault = status_copy(status);
	return status;
}

/* "all_reduce 12 of group data" */
static void
add_place(Text *to, CommGroup group, const char *what, int64_t number)
{
	text_add(to, what);
	if (number >= 0)
		text_printf(to, " %lld", (long long)number);
	text_printf(to, " of group %s", comm_group_names[group]);
}

static Status
nccl_fault(const CommData *d, int code, const char *place)
{
	const char *last = d->nccl.GetLastError(NULL);

	return status_error(EXIT_COMM, "rank %d: NCCL, %s: %s%s%s", d->rank, place,
	                    d->nccl.GetErrorString(code), last && *last ? ": " : "",
	                    last && *last ? last : "");
}

/* ---- waiting for NCCL; called with the lock held */
/* Waits until a call has finished or failed, and watches the other ranks meanwhile. code: the call's result. */
static Status
settle(CommData *d, CommGroup group, int code, const char *what, int64_t number)
{
	CommWatch w = {.group = group,
	               .members = d->groups[group].members,
	               .size = d->groups[group].size,
	               .what = what,
	               .number = number,
	               .since = seconds_now()};
	Text place = {0};
	Status status = NULL;

	while (code == NCCL_IN_PROGRESS && !status) {
		int asked = d->nccl.CommGetAsyncError(nccl_comm(d, group), &code);
		code = asked == NCCL_OK ? code : asked;
		if (code != NCCL_IN_PROGRESS)
			break;
		status = d->control_ops->watch(d->control, &w);
		nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
	}
	if (!status && code != NCCL_OK) {
		add_place(&place, group, what, number);
		status = nccl_fault(d, code, place.at);
		text_free(&place);
	}
	return status;
}

/* ---- opening */
static Status
data_open(const CommControlOps *ops, CommControl *control, const CommOptions *options,
          CommData **out)
{
	CommData *d = memory_zeroed(1, sizeof(*d));

	*out = NULL;
	d->control_ops = ops;
	d->control = control;
	d->rank = ops->rank(control);
	pthread_mutex_init(&d->lock, NULL);
	Status status = ops->watch ? nccl_library_open(&d->nccl)
	                           : status_error(EXIT_COMM,
	                                          "NCCL with control over %s, which "
	                                          "does not watch over ranks",
	                                          ops->name);
	if (!status)
		status = comm_members(ops, control, options, d->groups);
	if (status) {
		comm_members_free(d->groups);
		pthread_mutex_destroy(&d->lock);
		memory_free(d);
	} else
		*out = d;
	return status;
}

/* Gives all members the id that the group's first member makes. */
static Status
share_id(CommData *d, int group, NcclId *out)
{
	int size = d->control_ops->size(d->control), code = NCCL_OK;
	NcclId own = {{0}}, *all = memory_get(sizeof(own) * (size_t)size);
	static const NcclId none;
	const CommMembers *m = &d->groups[group];

	if (m->rank == 0)
		code = d->nccl.GetUniqueId(&own);
	Status status = d->control_ops->all_gather(d->control, &own, all, sizeof(own));
	*out = all[m->members[0]];
	memory_free(all);
	if (!status && code != NCCL_OK)
		status = nccl_fault(d, code, "ncclGetUniqueId");
	if (!status && memcmp(out, &none, sizeof(none)) == 0)
		status = status_error(EXIT_COMM, "rank %d: rank %d has no id of NCCL for group %s",
		                      d->rank, m->members[0], comm_group_names[group]);
	return status;
}

/* Makes a group's communicator. Ranks that are alone in their group take part too, because the id is shared over control by all
 * ranks. */
static Status
attach_group(CommData *d, int group)
{
	const CommMembers *m = &d->groups[group];
	NcclConfig config = {.size = sizeof(config),
	                     .magic = NCCL_CONFIG_MAGIC,
	                     .version = NCCL_CONFIG_VERSION,
	                     .blocking = 0};
	NcclId id;

	RETURN_IF_ERROR(share_id(d, group, &id));
	if (m->size == 1)
		return NULL;
	int code = d->nccl.CommInitRankConfig(&d->comms[group], m->size, id, m->rank, &config);
	return settle(d, (CommGroup)group, code, "start", -1);
}

static Status
data_attach(CommData *d)
{
	Status status = NULL;

	pthread_mutex_lock(&d->lock);
	for (int g = 0; g < N_GROUPS && !status; g++)
		if (is_first(d, g))
			status = keep(d, attach_group(d, g));
	pthread_mutex_unlock(&d->lock);
	return status;
}

/* Registers memory with NCCL, so that NCCL need not copy it. If NCCL refuses, it copies the memory; that is not a fault. */
static void
data_lend(CommData *d, void *at, int64_t bytes)
{
	if (!d->nccl.CommRegister || !d->nccl.CommDeregister || bytes == 0)
		return;
	pthread_mutex_lock(&d->lock);
	d->lent = memory_resize(d->lent, sizeof(*d->lent) * (size_t)(d->n_lent + N_GROUPS));
	for (int g = 0; g < N_GROUPS; g++) {
		Lent *next = &d->lent[d->n_lent];

		*next = (Lent){.comm = d->comms[g]};
		if (next->comm &&
		    d->nccl.CommRegister(next->comm, at, (size_t)bytes, &next->handle) == NCCL_OK)
			d->n_lent++;
	}
	pthread_mutex_unlock(&d->lock);
}

static int
data_group_rank(const CommData *d, CommGroup group)
{
	return d->groups[group].rank;
}

static int
data_group_size(const CommData *d, CommGroup group)
{
	return d->groups[group].size;
}

/* ---- collectives */
static Status
enqueue(CommData *d, const Collective *c, void *stream)
{
	CommCount *count = &d->counts[c->group];
	int64_t bytes, number = count->started;

	if (!nccl_comm(d, c->group))
		return status_error(EXIT_COMM, "%s: group %s is not made",
		                    collective_names[c->kind], comm_group_names[c->group]);
	int code = nccl_call(d, c, stream, &bytes);
	count->started++;
	count->bytes += bytes;
	count->last = c->kind;
	d->control_ops->started(d->control, c->group, count->started);
	return keep(d, settle(d, c->group, code, collective_names[c->kind], number));
}

static Status
data_enqueue(CommData *d, const Collective *c, void *stream)
{
	RETURN_IF_ERROR(nccl_check(d, c));
	pthread_mutex_lock(&d->lock);
	Status status = status_copy(d->fault);
	if (!status)
		status = enqueue(d, c, stream);
	pthread_mutex_unlock(&d->lock);
	return status;
}

static int64_t
data_traffic(const CommData *d, CommGroup group)
{
	return d->counts[group].bytes;
}

static void
data_counts(const CommData *d, CommCount out[N_GROUPS])
{
	memcpy(out, d->counts, sizeof(d->counts));
}

static void
data_repeat(CommData *d, const CommCount more[N_GROUPS])
{
	pthread_mutex_lock(&d->lock);
	for (int g = 0; g < N_GROUPS; g++) {
		CommCount *count = &d->counts[g];

		if (more[g].started == 0)
			continue;
		count->started += more[g].started;
		count->bytes += more[g].bytes;
		count->last = more[g].last;
		d->control_ops->started(d->control, (CommGroup)g, count->started);
	}
	pthread_mutex_unlock(&d->lock);
}

/* ---- watching, while the host waits for the device */
/* A fault that NCCL's own threads have found. */
static Status
find_fault(const CommData *d, CommGroup group, const CommWatch *w)
{
	int code = NCCL_OK, asked = d->nccl.CommGetAsyncError(nccl_comm(d, group), &code);
	Text place = {0};

	code = asked == NCCL_OK ? code : asked;
	if (code == NCCL_OK || code == NCCL_IN_PROGRESS)
		return NULL;
	text_add(&place, "up to ");
	add_place(&place, group, w->what, w->number);
	Status status = nccl_fault(d, code, place.at);
	text_free(&place);
	return status;
}

static Status
watch_group(CommData *d, CommGroup group, double moved, bool *late)
{
	CommWatch *w = &d->watches[group];

	if (d->counts[group].started == 0)
		return NULL;
	w->group = group;
	w->members = d->groups[group].members;
	w->size = d->groups[group].size;
	w->what = collective_names[d->counts[group].last];
	w->number = d->counts[group].started - 1;
	w->since = moved;
	RETURN_IF_ERROR(find_fault(d, group, w));
	RETURN_IF_ERROR(d->control_ops->watch(d->control, w));
	*late |= w->late;
	return NULL;
}

static Status
data_watch(CommData *d, double moved, bool *late)
{
	*late = false;
	pthread_mutex_lock(&d->lock);
	Status status = status_copy(d->fault);
	for (int g = 0; g < N_GROUPS && !status; g++)
		status = keep(d, watch_group(d, (CommGroup)g, moved, late));
	pthread_mutex_unlock(&d->lock);
	return status;
}

static void
data_abort(CommData *d)
{
	pthread_mutex_lock(&d->lock);
	status_free(keep(d, status_error(EXIT_COMM, "rank %d: NCCL has been aborted", d->rank)));
	abort_all(d);
	pthread_mutex_unlock(&d->lock);
}

/* ---- closing */
/* Ends a communicator. Other ranks may still be receiving from this rank, so this rank waits for the others, but not for lost
 * ranks. */
static void
end_comm(CommData *d, NcclComm comm)
{
	enum { PATIENCE = 10 /* in seconds */ };
	double end = seconds_now() + PATIENCE;
	int code = d->nccl.CommFinalize(comm), asked = NCCL_OK;

	while (code == NCCL_IN_PROGRESS && asked == NCCL_OK && seconds_now() < end) {
		nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
		asked = d->nccl.CommGetAsyncError(comm, &code);
	}
	if (code == NCCL_OK && asked == NCCL_OK)
		d->nccl.CommDestroy(comm);
	else
		d->nccl.CommAbort(comm);
}

static bool
data_close(CommData *d)
{
	if (!d)
		return true;
	if (d->fault)
		abort_all(d);
	for (int i = 0; i < d->n_lent; i++)
		d->nccl.CommDeregister(d->lent[i].comm, d->lent[i].handle);
	for (int g = 0; g < N_GROUPS; g++)
		if (d->comms[g])
			end_comm(d, d->comms[g]);
	memory_free(d->lent);
	comm_members_free(d->groups);
	status_free(d->fault);
	pthread_mutex_destroy(&d->lock);
	memory_free(d);
	return true;
}

const CommDataOps comm_data_nccl = {
	.name = "nccl",
	.reads_device_memory = true,
	.open = data_open,
	.close = data_close,
	.group_rank = data_group_rank,
	.group_size = data_group_size,
	.traffic = data_traffic,
	.attach = data_attach,
	.lend = data_lend,
	.enqueue = data_enqueue,
	.watch = data_watch,
	.abort = data_abort,
	.counts = data_counts,
	.repeat = data_repeat,
};

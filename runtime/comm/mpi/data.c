/* Collectives in the host's memory over MPI: start, test, finish. A collective advances each time it is tested, so transfers go
 * on between kernels without a thread.
 *
 * After a fault the library may continue to read and write. So a failed request and its memory stay until its transfers are
 * over, cancelled or not. If they are not over at close, they stay until the process ends. */
#include "runtime/comm/mpi/mpi.h"

#include <string.h>

/* Transfers of a collective have the collective's number, modulo TAGS, as tag. All messages of send and recv have the tag
 * TAG_MESSAGE: between two ranks, the k-th message sent is the k-th received. */
enum { TAGS = 32767, TAG_MESSAGE = 32767 };
#define MOST_BYTES (1ll << 30) /* of a message, because its count is an int */
enum { LEAST_MOST_BYTES = 8 };

/* ---- opening */
/* Makes the library's communicator for a kind of group; if every group of this kind has one member, makes none. */
static Status
open_group(CommControl *c, CommGroup group, CommMembers *m)
{
	Channel *ch = &c->channels[CHANNEL_GROUP + group];
	int code;

	memory_free(ch->members);
	*ch = (Channel){.name = comm_group_names[group],
	                .rank = m->rank,
	                .size = m->size,
	                .members = m->members};
	m->members = NULL;
	if (!m->is_shared)
		return NULL;
	mpi_lock(c);
	code = c->mpi.Comm_split(c->mpi.world, ch->members[0], c->rank, &ch->comm);
	if (!code)
		c->mpi.Comm_set_errhandler(ch->comm, c->mpi.errors_return);
	Status status = code ? mpi_fault(c, code, "MPI_Comm_split", -1) : NULL;
	mpi_unlock(c);
	return status;
}

static Status
open_groups(CommControl *c, const CommOptions *options)
{
	CommMembers groups[N_GROUPS];
	Status status = comm_members(&comm_control_mpi, c, options, groups);

	for (int g = 0; g < N_GROUPS && !status; g++)
		status = open_group(c, (CommGroup)g, &groups[g]);
	comm_members_free(groups);
	return status;
}

static Status
data_open(const CommControlOps *ops, CommControl *control, const CommOptions *options,
          CommData **out)
{
	*out = NULL;
	if (ops != &comm_control_mpi)
		return status_error(EXIT_COMM, "messages over MPI need control over MPI");
	RETURN_IF_ERROR(open_groups(control, options));
	CommData *d = memory_zeroed(1, sizeof(*d));
	d->control = control;
	d->most_bytes = options->most_bytes > 0 && options->most_bytes < MOST_BYTES
	                        ? options->most_bytes
	                        : MOST_BYTES;
	if (d->most_bytes < LEAST_MOST_BYTES)
		d->most_bytes = LEAST_MOST_BYTES;
	*out = d;
	return NULL;
}

static int
data_group_rank(const CommData *d, CommGroup group)
{
	return d->control->channels[CHANNEL_GROUP + group].rank;
}

static int
data_group_size(const CommData *d, CommGroup group)
{
	return d->control->channels[CHANNEL_GROUP + group].size;
}

static int64_t
data_traffic(const CommData *d, CommGroup group)
{
	CommControl *c = d->control;

	mpi_lock(c);
	int64_t bytes = c->channels[CHANNEL_GROUP + group].traffic;
	mpi_unlock(c);
	return bytes;
}

/* ---- requests */
static void
free_request(CommRequest *r)
{
	memory_free(r->transfers);
	memory_free(r->scratch);
	memory_free(r->counts);
	memory_free(r->awaited);
	status_free(r->fault);
	memory_free(r);
}

static void
take_out(CommRequest **list, const CommRequest *r)
{
	while (*list != r)
		list = &(*list)->next;
	*list = r->next;
}

static void
put_in(CommRequest **list, CommRequest *r)
{
	r->next = *list;
	*list = r;
}

static bool
is_message(const Collective *c)
{
	return c->kind == COMM_SEND || c->kind == COMM_RECV;
}

/* Copies the part of the result that this rank already has. */
static void
copy_own(const CommRequest *r)
{
	const Collective *c = &r->c;
	CommPart own = {0, 0};

	if (c->kind == COMM_ALL_GATHER)
		own = request_part(r, r->channel->rank);
	else if (c->kind == COMM_BROADCAST && c->peer == r->channel->rank)
		own.n = c->n;
	char *to = (char *)c->to + request_bytes(r, own.first);
	if (own.n > 0 && to != c->from)
		memmove(to, c->from, (size_t)request_bytes(r, own.n));
}

static CommRequest *
new_request(const CommData *d, const Collective *c, Channel *ch)
{
	CommRequest *r = memory_zeroed(1, sizeof(*r));

	r->c = *c;
	r->c.block = c->block ? c->block : 1;
	r->channel = ch;
	r->round = ROUND_OVER;
	if (ch->size == 1)
		return r;
	r->awaited = memory_get(sizeof(int) * (size_t)ch->size);
	round_prepare(d, r);
	copy_own(r);
	return r;
}

/* Called with the lock held: requests are numbered in the order in which they start. */
static Status
start_request(CommData *d, CommRequest *r)
{
	Channel *ch = r->channel;

	r->wait = (Wait){ch, collective_names[r->c.kind], -1, r->c.kind == COMM_SEND,
	                 .since = seconds_now()};
	r->tag = TAG_MESSAGE;
	if (!is_message(&r->c)) {
		r->wait.number = ch->started++;
		r->tag = (int)(r->wait.number % TAGS);
	}
	return r->round == ROUND_OVER ? NULL : round_start(d, r);
}

/* Drops a failed request. Cancels its receives if possible; close frees the rest. */
static void
lose(CommData *d, CommRequest *r)
{
	take_out(&d->running, r);
	for (int i = 0; i < r->n_transfers; i++)
		if (!r->transfers[i].done && r->transfers[i].receives && r->transfers[i].peer >= 0)
			d->control->mpi.Cancel(&r->transfers[i].handle);
	put_in(&d->lost, r);
}

static Status
data_start(CommData *d, const Collective *c, CommRequest **out)
{
	Channel *ch = &d->control->channels[CHANNEL_GROUP + c->group];

	*out = NULL;
	RETURN_IF_ERROR(ch->size == 1 ? comm_alone(c)
	                              : comm_check_collective(c, ch->rank, ch->size));
	CommRequest *r = new_request(d, c, ch);
	mpi_lock(d->control);
	put_in(&d->running, r);
	Status status = mpi_kept(d->control);
	if (!status)
		status = mpi_keep(d->control, start_request(d, r));
	if (status)
		lose(d, r);
	mpi_unlock(d->control);
	*out = status ? NULL : r;
	return status;
}

/* ---- progress; called with the lock held */
static Status
test_transfers(CommData *d, CommRequest *r, bool *over)
{
	CommControl *c = d->control;

	*over = true;
	for (int i = 0; i < r->n_transfers; i++) {
		Transfer *t = &r->transfers[i];
		int done = 0;

		if (t->done)
			continue;
		int code = c->mpi.Test(&t->handle, &done, c->mpi.status_ignore);
		t->done = code != 0; /* a failed transfer is over */
		if (code)
			return t->peer < 0
			               ? mpi_fault(c, code, r->wait.what, -1)
			               : mpi_fault(c, code,
			                           t->receives ? "receiving from" : "sending to",
			                           r->channel->members[t->peer]);
		*over &= done != 0;
		if (done) {
			t->done = true;
			r->wait.since = seconds_now();
		}
	}
	return NULL;
}

/* Lists in r->awaited the ranks (of the world) for which the request waits: the ranks that have not sent yet; if all have sent,
 * the ranks that have not received yet. For a collective of the library: all members. */
static int
find_awaited(CommRequest *r)
{
	const Channel *ch = r->channel;
	int n = 0;

	for (int receives = 1; receives >= 0 && n == 0; receives--) {
		r->wait.sends = !receives;
		for (int i = 0; i < r->n_transfers; i++) {
			const Transfer *t = &r->transfers[i];

			if (t->done || t->receives != (bool)receives)
				continue;
			if (t->peer < 0) {
				memcpy(r->awaited, ch->members, sizeof(int) * (size_t)ch->size);
				return ch->size;
			}
			int rank = ch->members[t->peer];
			/* transfers with one rank are neighbours in the list */
			if (n == 0 || r->awaited[n - 1] != rank)
				r->awaited[n++] = rank;
		}
	}
	return n;
}

static Status
advance(CommData *d, CommRequest *r, Text *line)
{
	while (r->round != ROUND_OVER) {
		bool over;

		RETURN_IF_ERROR(test_transfers(d, r, &over));
		if (!over && seconds_now() - r->wait.since < d->control->patience / 4)
			return NULL;
		if (!over)
			return beat_wait(d->control, &r->wait, r->awaited, find_awaited(r), line);
		RETURN_IF_ERROR(round_end(d, r));
	}
	return NULL;
}

/* Advances a request. After a fault the request is freed. */
static Status
move(CommData *d, CommRequest *r, bool *done)
{
	Text line = {0};

	mpi_lock(d->control);
	Status status = r->fault ? r->fault : mpi_kept(d->control);
	if (!status)
		status = mpi_keep(d->control, advance(d, r, &line));
	r->fault = NULL;
	*done = !status && r->round == ROUND_OVER;
	if (status)
		lose(d, r);
	mpi_unlock(d->control);
	mpi_report(d->control, &line);
	return status;
}

static Status
data_test(CommData *d, CommRequest *r, bool *done)
{
	return move(d, r, done);
}

static Status
data_finish(CommData *d, CommRequest *r)
{
	bool done = false;

	for (int64_t i = 0;; i++) {
		RETURN_IF_ERROR(move(d, r, &done));
		if (done)
			break;
		mpi_pause(i);
	}
	mpi_lock(d->control);
	take_out(&d->running, r);
	mpi_unlock(d->control);
	free_request(r);
	return NULL;
}

static void
data_progress(CommData *d)
{
	Text line = {0};

	mpi_lock(d->control);
	for (CommRequest *r = d->running; r; r = r->next)
		if (!r->fault)
			r->fault = mpi_keep(d->control, advance(d, r, &line));
	mpi_unlock(d->control);
	mpi_report(d->control, &line);
}

/* ---- closing */
static bool
is_over(CommData *d, CommRequest *r)
{
	bool over = true;

	for (int i = 0; i < r->n_transfers; i++) {
		Transfer *t = &r->transfers[i];
		int done = 0;

		if (!t->done &&
		    (d->control->mpi.Test(&t->handle, &done, d->control->mpi.status_ignore) ||
		     done))
			t->done = true;
		over &= t->done;
	}
	return over;
}

static void
free_lost(CommData *d)
{
	for (CommRequest *r = d->lost, *next; r; r = next) {
		next = r->next;
		if (!is_over(d, r))
			continue;
		take_out(&d->lost, r);
		free_request(r);
	}
}

/* Waits up to a second for transfers under way. */
static bool
data_close(CommData *d)
{
	double end = seconds_now() + 1;

	if (!d)
		return true;
	mpi_lock(d->control);
	while (d->running)
		lose(d, d->running);
	for (free_lost(d); d->lost && seconds_now() < end; free_lost(d)) {
	}
	bool all = !d->lost;
	d->control->broken |= !all;
	mpi_unlock(d->control);
	if (all)
		memory_free(d);
	return all;
}

const CommDataOps comm_data_mpi = {
	.name = "mpi",
	.open = data_open,
	.close = data_close,
	.group_rank = data_group_rank,
	.group_size = data_group_size,
	.start = data_start,
	.test = data_test,
	.finish = data_finish,
	.progress = data_progress,
	.traffic = data_traffic,
};

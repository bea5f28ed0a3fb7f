/* Ranks that make control calls over TCP, and actions of a rank between the calls.
 *
 *	control_calls ROUNDS [RANK:ROUND:ACTION[:NUMBER]]...
 *
 * A round is an all_gather and a broadcast, whose results are checked. An action happens before the rank's round. Each rank ends
 * like a training run: it reports its fault and ends the others. */
#include "runtime/comm/comm.h"
#include "runtime/comm/tcp/tcp.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const CommControlOps *const ops = &comm_control_tcp;

static void
print(void *context, const char *line)
{
	(void)context;
	fprintf(stderr, "warning: %s\n", line);
}

/* ---- actions */
static Status
do_sleep(CommControl *c, double seconds)
{
	ops->doing(c, "saving a checkpoint");
	for (double end = seconds_now() + seconds; seconds_now() < end;)
		nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
	ops->doing(c, NULL);
	return NULL;
}

static Status
do_fail(CommControl *c, double code)
{
	return status_error((int)code, "rank %d fails", ops->rank(c));
}

static Status
do_leave(CommControl *c, double code)
{
	ops->close(c);
	exit((int)code);
}

static Status
do_crash(CommControl *c, double code)
{
	(void)c;
	_exit((int)code);
}

static Status
do_differ(CommControl *c, double bytes)
{
	char all[4096] = "";

	return ops->all_gather(c, all, all, (int64_t)bytes);
}

/* Waits as a rank does during a collective of another library. */
static Status
do_watch(CommControl *c, double seconds)
{
	double since = seconds_now(), told = 0;

	while (seconds_now() < since + seconds) {
		RETURN_IF_ERROR(tcp_watch(c, "all_reduce 3 of group data", since, &told));
		nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
	}
	return NULL;
}

static const struct {
	const char *name;
	Status (*run)(CommControl *c, double number);
} actions[] = {
	{"sleep", do_sleep}, {"fail", do_fail},     {"leave", do_leave},
	{"crash", do_crash}, {"differ", do_differ}, {"watch", do_watch},
};

static Status
act(CommControl *c, int round, int argc, char **argv)
{
	for (int i = 2; i < argc; i++) {
		char name[16] = "";
		double number = 0;
		int rank = 0, at = 0;

		if (sscanf(argv[i], "%d:%d:%15[a-z]:%lf", &rank, &at, name, &number) < 3)
			return status_error(EXIT_USAGE, "%s: no action", argv[i]);
		for (int k = 0; k < COUNT(actions); k++)
			if (at == round && rank == ops->rank(c) &&
			    strcmp(name, actions[k].name) == 0)
				RETURN_IF_ERROR(actions[k].run(c, number));
	}
	return NULL;
}

/* ---- rounds */
static Status
make_round(CommControl *c, int round)
{
	int64_t own[2] = {ops->rank(c), round}, *all;
	int size = ops->size(c), root = round % size;
	int64_t sent = ops->rank(c) == root ? 7 * round + 1 : -1;

	all = memory_zeroed((size_t)size, sizeof(own));
	Status status = ops->all_gather(c, own, all, sizeof(own));
	for (int r = 0; r < size && !status; r++)
		if (all[2 * r] != r || all[2 * r + 1] != round)
			status = status_error(EXIT_DATA, "round %d: wrong sums", round);
	memory_free(all);
	if (!status)
		status = ops->broadcast(c, &sent, sizeof(sent), root);
	if (!status && sent != 7 * round + 1)
		status = status_error(EXIT_DATA, "round %d: wrong broadcast", round);
	return status;
}

int
main(int argc, char **argv)
{
	CommOptions options = {.report = print};
	CommControl *c = NULL;
	int rounds = argc > 1 ? atoi(argv[1]) : 0;
	Status status = ops->open(&options, &c);

	if (!status)
		fprintf(stderr, "rank %d of %d\n", ops->rank(c), ops->size(c));
	for (int i = 0; i < rounds && !status; i++) {
		status = act(c, i, argc, argv);
		if (!status)
			status = make_round(c, i);
	}
	int code = status ? status->exit_code : EXIT_OK;
	if (status && *status->message)
		fprintf(stderr, "error: %s\n", status->message);
	if (status && c)
		ops->abort(c, code);
	ops->close(c);
	status_free(status);
	return code;
}

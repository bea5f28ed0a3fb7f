/* nccl_probe NAME: calls the pretended NCCL (fake_nccl.c) in right and wrong ways, as two ranks that are threads. There is
 * no driver, so the work is done at once on the host's memory. Prints what is wrong and fails. */
#include "base/base.h"
#include "runtime/comm/nccl/nccl_library.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { INVALID_ARGUMENT = 4, INVALID_USAGE = 5, N = 100000 };
static NcclLibrary nccl;

typedef struct {
	NcclId id;
	int rank;
	NcclComm comm;
	float *from, *to;
	int code; /* final error code */
} Rank;
typedef void (*Case)(Rank *r);

static int
settled(const Rank *r, int code)
{
	while (code == NCCL_IN_PROGRESS) {
		if (nccl.CommGetAsyncError(r->comm, &code) != NCCL_OK)
			return INVALID_ARGUMENT;
		nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
	}
	return code;
}

static void
end(Rank *r)
{
	r->code = settled(r, nccl.CommFinalize(r->comm));
	if (r->code == NCCL_OK)
		r->code = nccl.CommDestroy(r->comm);
}

/* ---- cases */
static void
right(Rank *r)
{
	r->code = settled(r, nccl.AllReduce(r->from, r->to, N, NCCL_F32, NCCL_SUM, r->comm, NULL));
	for (int i = 0; i < N; i++)
		if (r->to[i] != r->from[i] * 3 / (float)(r->rank + 1))
			r->code = INVALID_ARGUMENT;
	if (r->code == NCCL_OK)
		end(r);
}

static void
counts(Rank *r)
{
	r->code = settled(r, nccl.AllReduce(r->from, r->to, r->rank ? N : N - 1, NCCL_F32, NCCL_SUM,
	                                    r->comm, NULL));
}

static void
types(Rank *r)
{
	r->code = settled(r, nccl.AllReduce(r->from, r->to, 100, r->rank ? NCCL_F32 : NCCL_S32,
	                                    NCCL_SUM, r->comm, NULL));
}

static void
kinds(Rank *r)
{
	int code = r->rank ? nccl.AllReduce(r->from, r->to, 100, NCCL_F32, NCCL_SUM, r->comm, NULL)
	                   : nccl.AllGather(r->from, r->to, 100, NCCL_F32, r->comm, NULL);

	r->code = settled(r, code);
}

static void
roots(Rank *r)
{
	r->code = settled(r, nccl.Broadcast(r->from, r->to, 100, NCCL_U8, r->rank, r->comm, NULL));
	if (r->code == NCCL_OK) /* both ranks have sent; the next call finds the messages */
		r->code = settled(
			r, nccl.AllReduce(r->from, r->to, 100, NCCL_F32, NCCL_SUM, r->comm, NULL));
}

static void
too_soon(Rank *r)
{
	int code = nccl.AllReduce(r->from, r->to, 100, NCCL_F32, NCCL_SUM, r->comm, NULL);

	if (code == NCCL_IN_PROGRESS)
		r->code = nccl.AllReduce(r->from, r->to, 100, NCCL_F32, NCCL_SUM, r->comm, NULL);
}

static void
not_finalized(Rank *r)
{
	r->code = nccl.CommDestroy(r->comm);
}

static void
no_sums(Rank *r)
{
	r->code = nccl.AllReduce(r->from, r->to, 100, NCCL_U8, NCCL_SUM, r->comm, NULL);
}

static const struct {
	const char *name;
	Case run;
	int code;
} cases[] = {
	{"right", right, NCCL_OK},
	{"counts", counts, INVALID_USAGE},
	{"types", types, INVALID_USAGE},
	{"kinds", kinds, INVALID_USAGE},
	{"roots", roots, INVALID_USAGE},
	{"too_soon", too_soon, INVALID_USAGE},
	{"not_finalized", not_finalized, INVALID_USAGE},
	{"no_sums", no_sums, INVALID_ARGUMENT},
};

/* ---- ranks */
static Case now;

static void *
run_rank(void *argument)
{
	Rank *r = argument;
	NcclConfig config = {
		.size = sizeof(config), .magic = NCCL_CONFIG_MAGIC, .version = NCCL_CONFIG_VERSION};

	r->from = calloc(N, sizeof(float));
	r->to = calloc(2 * N, sizeof(float));
	for (int i = 0; r->from && i < N; i++)
		r->from[i] = (float)((i % 100 + 1) * (r->rank + 1));
	r->code = settled(r, nccl.CommInitRankConfig(&r->comm, 2, r->id, r->rank, &config));
	if (r->from && r->to && r->code == NCCL_OK)
		now(r);
	return NULL;
}

int
main(int argc, char **argv)
{
	int which = 0, code = NCCL_OK;
	pthread_t threads[2];
	Rank ranks[2] = {{.rank = 0}, {.rank = 1}};
	Status status = nccl_library_open(&nccl);

	while (argc == 2 && which < COUNT(cases) && strcmp(argv[1], cases[which].name) != 0)
		which++;
	if (status || argc != 2 || which == COUNT(cases)) {
		fprintf(stderr, "%s\n", status ? status->message : "no such case");
		return 1;
	}
	now = cases[which].run;
	nccl.GetUniqueId(&ranks[0].id);
	ranks[1].id = ranks[0].id;
	for (int r = 0; r < 2; r++)
		if (pthread_create(&threads[r], NULL, run_rank, &ranks[r]) != 0)
			return 1;
	for (int r = 0; r < 2; r++) {
		pthread_join(threads[r], NULL);
		code = ranks[r].code == NCCL_OK ? code : ranks[r].code;
		free(ranks[r].from);
		free(ranks[r].to);
	}
	if (code != cases[which].code)
		fprintf(stderr, "%s: code %d, not %d\n", argv[1], code, cases[which].code);
	return code != cases[which].code;
}

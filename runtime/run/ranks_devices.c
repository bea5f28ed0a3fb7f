/* Checks that no two ranks use the same GPU. Two ranks on one GPU would each have half of its memory and half of its speed,
 * and NCCL refuses them. Only the driver can tell GPUs apart: a launcher may show each rank a different GPU under the same
 * number. */
#include "runtime/run/run.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A rank's device, as numbers for ranks_gather. */
typedef struct {
	int64_t identity[2];
	int64_t host; /* hash of the host's name */
	int64_t has;  /* 1 if the rank has a device with an identity */
} RankDevice;
enum { N_NUMBERS = sizeof(RankDevice) / sizeof(int64_t) };

static Status
describe(const Gradc *run, RankDevice *out)
{
	const DeviceOps *ops = run->device.ops;
	char host[256] = "";
	uint64_t identity[2];

	*out = (RankDevice){0};
	if (!ops->identity)
		return NULL;
	RETURN_IF_ERROR(ops->identity(run->device.ordinal, identity));
	memcpy(out->identity, identity, sizeof(identity));
	gethostname(host, sizeof(host) - 1);
	out->host = (int64_t)hash_bytes(host, strlen(host), 0);
	out->has = 1;
	return NULL;
}

static bool
is_same(const RankDevice *a, const RankDevice *b)
{
	return a->has && b->has && memcmp(a->identity, b->identity, sizeof(a->identity)) == 0;
}

/* The error message, with the numbers of ranks and GPUs: "... 4 ranks on this machine, 2 GPUs". */
static Status
shared(const Gradc *run, const RankDevice *all, int first, int second)
{
	const DeviceOps *ops = run->device.ops;
	const char *visible = getenv("CUDA_VISIBLE_DEVICES"), *asked = run->options.device;
	int n = ops->count ? ops->count() : 1, here = 0;
	bool numbered = asked && strchr(asked, ':');

	for (int r = 0; r < run->comm.size; r++)
		here += all[r].has && all[r].host == all[first].host;
	return status_error(
		EXIT_USAGE,
		"ranks %d and %d have the same GPU, %s:%d: %d ranks on this machine, %d GPU%s%s%s: %s",
		first, second, ops->name, run->device.ordinal, here, n, n == 1 ? "" : "s",
		visible ? " with CUDA_VISIBLE_DEVICES=" : "", visible ? visible : "",
		numbered && here <= n ? "without the number in --device each takes another one"
				      : "start as many ranks as there are GPUs");
}

Status
ranks_check_devices(Gradc *run)
{
	RankDevice own, *all;
	int64_t *numbers;

	if (run->comm.size == 1)
		return NULL;
	RETURN_IF_ERROR(ranks_share(run, describe(run, &own)));
	RETURN_IF_ERROR(ranks_gather(run, (const int64_t *)&own, N_NUMBERS, &numbers));
	all = (RankDevice *)numbers;
	for (int r = 1; r < run->comm.size; r++)
		for (int first = 0; first < r; first++)
			if (is_same(&all[first], &all[r])) {
				run->fault_is_shared = true;
				return first == run->comm.rank ? shared(run, all, first, r)
				                               : status_error(EXIT_USAGE, "%s", "");
			}
	return NULL;
}

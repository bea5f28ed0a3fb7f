/* Picks the library that carries a run's collectives: NCCL, on the GPUs' streams, or else the launcher's communicator, which
 * goes through the host's memory. All ranks pick the same library, and rank 0 can say why it is not NCCL. */
#include "runtime/comm/nccl/nccl_library.h"
#include "runtime/run/run.h"

#include <string.h>

/* A rank's answer to the question whether it can use NCCL. */
typedef struct {
	int64_t why_not; /* a WhyNot */
	int64_t asked;   /* CARRY_...: the rank's --collectives */
	int64_t version; /* NCCL's version; 0 if the rank has not tried to open NCCL */
} Answer;
enum { CARRY_AUTO, CARRY_NCCL, CARRY_HOST };
static const char *const carrier_names[] = {"auto", "nccl", "host"};

/* Why NCCL does not carry the collectives. A rank reports the first reason that holds for it. */
typedef enum {
	NCCL_CARRIES,
	WHY_ASKED,
	WHY_DEVICE,
	WHY_CONTROL,
	WHY_LIBRARY,
	WHY_VERSION,
	WHY_ORDER,
	N_WHY
} WhyNot;
static const char *const why_texts[N_WHY] = {
	[WHY_ASKED] = "it has --collectives=host",
	[WHY_DEVICE] = "it uses no NVIDIA GPU",
	[WHY_CONTROL] = "its launcher's library does not watch over ranks",
	[WHY_LIBRARY] = "it has no NCCL that is new enough",
	[WHY_VERSION] = "it has another version of NCCL than rank 0",
	[WHY_ORDER] =
		"it adds f16 or bf16 in the order of more than two ranks, which NCCL cannot do; use --reduce=fast",
};

static Status
read_asked(const char *asked, int64_t *out)
{
	*out = CARRY_AUTO;
	for (int i = 0; asked && i < COUNT(carrier_names); i++)
		if (strcmp(asked, carrier_names[i]) == 0) {
			*out = i;
			return NULL;
		}
	return asked ? status_error(EXIT_USAGE, "--collectives: %s: need auto, nccl or host", asked)
	             : NULL;
}

/* Does the run have a sum over ranks that NCCL cannot compute in the required order? NCCL adds in its own order and rounds f16
 * and bf16 after each addition. */
static bool
needs_order(const Gradc *run)
{
	const Format *f = &run->format;

	if (!run->reduce_ordered || gradc_ranks(run) <= 2)
		return false;
	for (int i = 0; i < f->n[SECTION_COLLECTIVES]; i++) {
		const CollectiveRecord *r = &f->collectives[i];
		bool reduces = r->kind == COMM_ALL_REDUCE || r->kind == COMM_REDUCE_SCATTER;

		if (reduces && r->reduction == COMM_SUM && (r->dtype == F16 || r->dtype == BF16))
			return true;
	}
	return false;
}

/* Why this rank cannot use NCCL. Sets *library to the loader's error if NCCL cannot be opened; leaves *library unchanged if
 * opening was not tried. */
static WhyNot
find_obstacle(const Gradc *run, Answer *own, Status *library)
{
	const DeviceOps *ops = run->device.ops;
	NcclLibrary nccl;

	if (own->asked == CARRY_HOST)
		return WHY_ASKED;
	if (!ops->native_stream)
		return WHY_DEVICE;
	if (!run->comm.control_ops->watch)
		return WHY_CONTROL;
	*library = nccl_library_open(&nccl);
	if (*library)
		return WHY_LIBRARY;
	own->version = nccl.version;
	return needs_order(run) ? WHY_ORDER : NCCL_CARRIES;
}

/* The first rank that cannot use NCCL, or whose version of NCCL differs from rank 0's; -1 if there is no such rank. */
static int
first_without(Answer *all, int size)
{
	for (int r = 0; r < size; r++) {
		if (all[r].why_not == NCCL_CARRIES && all[r].version != all[0].version)
			all[r].why_not = WHY_VERSION;
		if (all[r].why_not != NCCL_CARRIES)
			return r;
	}
	return -1;
}

static bool
is_nccl_asked(const Answer *all, int size)
{
	for (int r = 0; r < size; r++)
		if (all[r].asked == CARRY_NCCL)
			return true;
	return false;
}

/* "rank 1: it has no NCCL ...". If the named rank is this rank, the loader's message is added. */
static const char *
reason(const Gradc *run, const Answer *all, int rank, const StatusInfo *library)
{
	bool own = library && rank == run->comm.rank;

	return arena_printf(run->arena, "rank %d: %s%s%s", rank, why_texts[all[rank].why_not],
	                    own ? ": " : "", own ? library->message : "");
}

static Status
take_nccl(Gradc *run, const CommOptions *options, int64_t version)
{
	char text[NCCL_VERSION_TEXT];

	run->carrier = arena_printf(run->arena, "NCCL %s", nccl_version_text((int)version, text));
	return comm_carry(&run->comm, &comm_data_nccl, options);
}

static Status
decide(Gradc *run, const CommOptions *options, Answer *all, const StatusInfo *library)
{
	int size = run->comm.size, without = first_without(all, size);
	const char *host = run->comm.data_ops->name;

	if (without < 0)
		return take_nccl(run, options, all[0].version);
	const char *why = reason(run, all, without, library);
	bool asked = is_nccl_asked(all, size);
	if (asked || !run->comm.data_ops->start) { /* there is no other library to fall back to */
		run->fault_is_shared = true;
		if (without != run->comm.rank)
			return status_error(EXIT_COMM, "%s", "");
		return asked ? status_error(EXIT_COMM, "--collectives=nccl: %s", why)
		             : status_error(EXIT_COMM,
		                            "%d ranks without MPI need --device=cuda and NCCL: %s; "
		                            "without GPUs start them with mpirun, or with `srun "
		                            "--mpi=pmix`",
		                            size, why);
	}
	run->carrier = all[without].why_not == WHY_DEVICE
	                       ? host
	                       : arena_printf(run->arena,
	                                      "%s, through the host's memory, without NCCL (%s)",
	                                      host, why);
	return NULL;
}

Status
carrier_pick(Gradc *run, const CommOptions *options)
{
	Status library = NULL;
	Answer own = {0}, *all;

	run->carrier = run->comm.data_ops->name;
	Status status = read_asked(run->options.collectives, &own.asked);
	if (run->comm.size == 1 || run->options.alone)
		return status;
	if (!status)
		own.why_not = find_obstacle(run, &own, &library);
	status = ranks_share(run, status);
	if (!status)
		status = ranks_gather(run, (const int64_t *)&own, sizeof(own) / sizeof(int64_t),
		                      (int64_t **)&all);
	if (!status)
		status = decide(run, options, all, library);
	status_free(library);
	return status;
}

/* Connects the ranks' devices. Runs with collectives on GPUs are recorded by all ranks or by none: if one rank's instructions
 * are timed, which excludes recording, no rank records. A rank that cannot join must report its error and end the other ranks,
 * because they already wait inside NCCL, where no message reaches them. */
Status
carrier_attach(Gradc *run)
{
	bool observed = run->options.trace || run->options.profile;
	int anywhere;

	if (!comm_enqueues(&run->comm))
		return NULL;
	RETURN_IF_ERROR(ranks_agree(run, observed, &anywhere));
	Status status = executor_attach(&run->executor, !anywhere);
	if (status && run->diag)
		diag_status(run->diag, status_copy(status));
	if (status)
		gradc_abort(run, status->exit_code);
	return status;
}

void
carrier_describe(Text *out)
{
	char text[NCCL_VERSION_TEXT];
	NcclLibrary nccl;
	Status status = nccl_library_open(&nccl);

	if (status)
		text_printf(out, "through the host's memory: %s", status->message);
	else
		text_printf(out, "NCCL %s", nccl_version_text(nccl.version, text));
	status_free(status);
}

const char *
gradc_collectives(const Gradc *run)
{
	return run->carrier;
}

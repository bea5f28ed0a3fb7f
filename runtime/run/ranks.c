/* Ranks that train one model together must do the same things: here they agree on faults, on the variant of the kernels and on
 * numbers. */
#include "runtime/run/run.h"

#include <stdlib.h>
#include <string.h>

/* ---- agreement */
Status
ranks_gather(Gradc *run, const int64_t *own, int n, int64_t **all)
{
	int64_t bytes = n * (int64_t)sizeof(*own);

	*all = NEW_ARRAY(run->arena, int64_t, (int64_t)n * run->comm.size);
	return run->comm.control_ops->all_gather(run->comm.control, own, *all, bytes);
}

/* The first rank with a fault keeps the fault and sends its text; the other ranks store the text for their report. */
static Status
share_fault(Gradc *run, Status own, int first, int code)
{
	const Comm *comm = &run->comm;
	char text[512] = "";

	run->fault_is_shared = true;
	if (first == comm->rank)
		snprintf(text, sizeof(text), "rank %d: %s", first, own->message);
	Status status = comm->control_ops->broadcast(comm->control, text, sizeof(text), first);
	if (status) {
		status_free(own);
		return status;
	}
	text[sizeof(text) - 1] = '\0';
	run->shared_fault = arena_strdup(run->arena, text);
	if (first == comm->rank)
		return own;
	status_free(own);
	return status_error(code, "%s", "");
}

Status
ranks_share(Gradc *run, Status own)
{
	int size = run->comm.size;
	int64_t code = own ? own->exit_code : EXIT_OK, *codes;

	if (size == 1)
		return own;
	Status status = ranks_gather(run, &code, 1, &codes);
	if (status) {
		status_free(own);
		return status;
	}
	for (int r = 0; r < size; r++) {
		if (codes[r] == EXIT_OK)
			continue;
		return share_fault(run, own, r, (int)codes[r]);
	}
	return own;
}

static bool
has_gpu(const Gradc *run, uint64_t variants)
{
	const CodeImage *all = run->model.images;

	for (int i = 0; all[i].name; i++)
		if (variants >> i & 1 && all[i].kind == IMAGE_BYTES)
			return true;
	return false;
}

/* If some ranks have a GPU and others do not: the first rank without a GPU; otherwise -1. */
static int
rank_without_gpu(const Gradc *run, const int64_t *variants)
{
	int first = -1, n = 0;

	for (int r = run->comm.size - 1; r >= 0; r--)
		if (has_gpu(run, (uint64_t)variants[r]))
			n++;
		else
			first = r;
	return n > 0 ? first : -1;
}

static Status
no_gpu_here(const Gradc *run)
{
	const Status why = run->device.why_not_gpu;

	return status_error(EXIT_SYSTEM, "rank %d uses no GPU, and others do: %s", run->comm.rank,
	                    why ? why->message : "it has --device=cpu or --target=cpu");
}

Status
ranks_pick_variant(Gradc *run, uint64_t own)
{
	int64_t mine = (int64_t)own, *all;

	RETURN_IF_ERROR(ranks_gather(run, &mine, 1, &all));
	for (int r = 0; r < run->comm.size; r++)
		own &= (uint64_t)all[r];
	run->variant = variant_best(run->model.images, own);
	if (run->variant && run->variant->target < run->format.n[SECTION_TARGETS])
		return NULL;
	int without = rank_without_gpu(run, all);
	run->fault_is_shared = true;
	if (without == run->comm.rank)
		return no_gpu_here(run);
	if (without >= 0)
		return status_error(EXIT_SYSTEM, "%s", "");
	if (gradc_rank(run) > 0)
		return status_error(EXIT_SYSTEM, "%s", "");
	return run->variant
	               ? status_error(EXIT_SYSTEM, "the kernels for %s are for target %lld of %d",
	                              run->variant->name, (long long)run->variant->target,
	                              run->format.n[SECTION_TARGETS])
	               : status_error(
				 EXIT_SYSTEM,
				 "no kernels are left that the devices and the --target of all "
				 "ranks allow: give all ranks one --target, or compile with "
				 "--target=cpu:x86-64-v2 besides");
}

Status
ranks_broadcast_text(Gradc *run, const char **text)
{
	const Comm *comm = &run->comm;
	int64_t n = *text ? (int64_t)strlen(*text) + 1 : 0;

	if (comm->size == 1)
		return NULL;
	RETURN_IF_ERROR(comm->control_ops->broadcast(comm->control, &n, sizeof(n), 0));
	char *copy = n ? arena_alloc(run->arena, (size_t)n) : NULL;
	if (n && comm->rank == 0)
		memcpy(copy, *text, (size_t)n);
	*text = copy;
	return n ? comm->control_ops->broadcast(comm->control, copy, n, 0) : NULL;
}

/* ---- for users */
int
gradc_rank(const Gradc *run)
{
	return run->comm.rank;
}

int
gradc_ranks(const Gradc *run)
{
	return run->comm.size;
}

const char *
gradc_reduce(const Gradc *run)
{
	return run->reduce_ordered ? "ordered" : "fast";
}

Status
ranks_agree(Gradc *run, int own, int *most)
{
	int64_t value = own;

	*most = own;
	RETURN_IF_ERROR(comm_reduce(&run->comm, &value, 1, S64, COMM_MAX));
	*most = (int)value;
	return NULL;
}

bool
gradc_is_shared(const Gradc *run)
{
	return run->fault_is_shared;
}

const char *
gradc_shared_fault(const Gradc *run)
{
	return run->fault_is_shared && run->shared_fault ? run->shared_fault : "";
}

void
gradc_abort(Gradc *run, int exit_code)
{
	if (!run->fault_is_shared)
		run->comm.control_ops->abort(run->comm.control, exit_code);
}

/* Several ranks train one model: what they must agree on. */
#include "runtime/runtime_impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- agreement */
Status
ranks_share(Gradc *run, Status own)
{
	int size = run->comm_ops->size(run->comm), rank = run->comm_ops->rank(run->comm);
	int64_t code = own ? own->exit_code : EXIT_OK, *codes;
	CommRequest *request;

	if (size == 1)
		return own;
	codes = NEW_ARRAY(run->arena, int64_t, size);
	CommBuffers b = {.to = codes, .from = &code, .n = 1, .dtype = S64};
	Status status = run->comm_ops->all_gather(run->comm, &b, &request);
	if (!status)
		status = run->comm_ops->finish(run->comm, request);
	if (status) {
		status_free(own);
		return status;
	}
	for (int r = 0; r < size; r++) {
		if (codes[r] == EXIT_OK)
			continue;
		run->fault_is_shared = true;
		if (r == rank)
			return own; /* the first that failed says why */
		status_free(own);
		return status_error((int)codes[r], "%s", "");
	}
	return own;
}

Status
ranks_pick_variant(Gradc *run, uint64_t own)
{
	int size = run->comm_ops->size(run->comm);
	int64_t mine = (int64_t)own, *all = NEW_ARRAY(run->arena, int64_t, size);
	CommBuffers b = {.to = all, .from = &mine, .n = 1, .dtype = S64};
	CommRequest *request;

	if (size > 1) {
		RETURN_IF_ERROR(run->comm_ops->all_gather(run->comm, &b, &request));
		RETURN_IF_ERROR(run->comm_ops->finish(run->comm, request));
	}
	for (int r = 0; r < size && size > 1; r++)
		own &= (uint64_t)all[r];
	run->variant = variant_best(run->model.variants, own);
	if (run->variant && run->variant->target < run->format.n[SECTION_TARGETS])
		return NULL;
	run->fault_is_shared = true;
	if (gradc_rank(run) > 0)
		return status_error(EXIT_SYSTEM, "%s", "");
	return run->variant
	               ? status_error(EXIT_SYSTEM,
	                              "the kernels for cpu:%s are for target %lld of %d",
	                              run->variant->cpu, (long long)run->variant->target,
	                              run->format.n[SECTION_TARGETS])
	               : status_error(EXIT_SYSTEM,
	                              "no kernels are left that the CPUs and the --target of all "
	                              "ranks allow: give all ranks one --target, or compile with "
	                              "--target=cpu:x86-64-v2 besides");
}

/* What all ranks must have in common, a hash of each. */
typedef enum { SAME_EXECUTABLE, SAME_OPTIONS, SAME_DATA, N_SAME } Same;
static const char *const same_names[] = {"another executable", "other options", "other data"};

static void
hash_all(const Gradc *run, int64_t out[N_SAME])
{
	const GradcOptions *o = &run->options;
	const int64_t options[] = {o->accumulate, (int64_t)o->seed, o->warmup,
	                           o->shuffle,    o->keep_last,     run->total_steps};
	uint64_t h = hash_bytes(options, sizeof(options), 0);
	const int64_t data[] = {run->train->rows, run->train->micro_rows, run->train->binding,
	                        run->eval ? run->eval->rows : 0};

	h = hash_bytes(run->hyper.values, sizeof(run->hyper.values), h);
	h = hash_bytes(run->hyper.lr_schedule, strlen(run->hyper.lr_schedule), h);
	out[SAME_EXECUTABLE] = (int64_t)hash_bytes(run->model.blob, (size_t)run->model.bytes, 0);
	out[SAME_OPTIONS] = (int64_t)h;
	out[SAME_DATA] = (int64_t)hash_bytes(data, sizeof(data), 0);
}

Status
ranks_compare(Gradc *run)
{
	int size = run->comm_ops->size(run->comm);
	int64_t own[N_SAME], *all = NEW_ARRAY(run->arena, int64_t, size * N_SAME);
	CommBuffers b = {.to = all, .from = own, .n = N_SAME, .dtype = S64};
	CommRequest *request;

	if (size == 1)
		return NULL;
	hash_all(run, own);
	RETURN_IF_ERROR(run->comm_ops->all_gather(run->comm, &b, &request));
	RETURN_IF_ERROR(run->comm_ops->finish(run->comm, request));
	for (int r = 1; r < size; r++)
		for (int k = 0; k < N_SAME; k++)
			if (all[r * N_SAME + k] != all[k]) {
				run->fault_is_shared = true;
				if (gradc_rank(run) > 0)
					return status_error(EXIT_COMM, "%s", "");
				return status_error(EXIT_COMM, "rank %d has %s than rank 0", r,
				                    same_names[k]);
			}
	return NULL;
}

Status
ranks_sum_state(Gradc *run, int state)
{
	const StateRecord *s = &run->format.states[state];
	Span at = executor_state(&run->executor, state);
	char value[16];

	at.bytes = dtype_bytes((DType)s->dtype, 1);
	RETURN_IF_ERROR(executor_read(&run->executor, value, at));
	RETURN_IF_ERROR(comm_sum(run->comm_ops, run->comm, (DType)s->dtype, value, 1));
	return executor_write(&run->executor, at, value);
}

static Status
broadcast(Gradc *run, DType dtype, void *at, int64_t n)
{
	CommBuffers b = {.to = at, .from = at, .n = n, .dtype = dtype};
	CommRequest *request;

	RETURN_IF_ERROR(run->comm_ops->broadcast(run->comm, &b, 0, &request));
	return run->comm_ops->finish(run->comm, request);
}

Status
ranks_broadcast_text(Gradc *run, const char **text)
{
	int64_t n = *text ? (int64_t)strlen(*text) + 1 : 0;

	if (gradc_ranks(run) == 1)
		return NULL;
	RETURN_IF_ERROR(broadcast(run, S64, &n, 1));
	char *copy = n ? arena_alloc(run->arena, (size_t)n) : NULL;
	if (n && gradc_rank(run) == 0)
		memcpy(copy, *text, (size_t)n);
	*text = copy;
	return n ? broadcast(run, U8, copy, n) : NULL;
}

/* ---- for users */
int
gradc_rank(const Gradc *run)
{
	return run->comm_ops->rank(run->comm);
}

int
gradc_ranks(const Gradc *run)
{
	return run->comm_ops->size(run->comm);
}

Status
ranks_agree(Gradc *run, int own, int *most)
{
	int64_t value = own;
	CommBuffers b = {.to = &value, .from = &value, .n = 1, .dtype = S64, .reduction = COMM_MAX};
	CommRequest *request;

	*most = own;
	if (gradc_ranks(run) == 1)
		return NULL;
	RETURN_IF_ERROR(run->comm_ops->all_reduce(run->comm, &b, &request));
	RETURN_IF_ERROR(run->comm_ops->finish(run->comm, request));
	*most = (int)value;
	return NULL;
}

void
gradc_abort(Gradc *run, int exit_code)
{
	if (run->fault_is_shared)
		return;
	run->comm_ops->abort(run->comm, exit_code);
}

/* Several ranks train one model: what they must agree on, and the sums of a step over all of them.
 *
 * Gradients are summed in buckets. A bucket starts when the last instruction of the last micro-batch that
 * touches it has run, so most of the transfers go on while earlier layers are still computed. Every
 * rank walks the same instructions, so all start the same buckets in the same order. */
#include "runtime/runtime_impl.h"

#include <stdlib.h>
#include <string.h>

enum { LEAST_BUCKET = 1 << 18, MOST_BUCKET = 1 << 25, PARTS_OF_UNIT = 16 };

typedef struct {
	uint32_t ready; /* the instruction after which nothing touches it */
	uint32_t dtype;
	int64_t offset, n; /* bytes in the state region; elements */
	CommRequest *request;
	double begin;
} Bucket;
struct Reduction {
	Gradc *run;
	Bucket *buckets; /* in the order in which they become ready */
	int n, started, finished;
};

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

/* ---- buckets */
static bool
touches(const Gradc *run, const Instruction *n, const Bucket *b)
{
	const Format *f = &run->format;
	int64_t end = b->offset + dtype_bytes((DType)b->dtype, b->n);

	for (uint32_t i = 0; i < n->n_args; i++) {
		const Slot *s = &f->slots[f->arguments[n->args + i].slot];
		if (s->space == SPACE_STATE && s->offset < end && s->offset + s->bytes > b->offset)
			return true;
	}
	return false;
}

/* A loop is over at the END of the outermost LOOP around. */
static uint32_t
last_touch(const Gradc *run, const ProgramRecord *p, const Bucket *b)
{
	uint32_t last = 0;
	int depth = 0;
	bool inside = false;

	for (uint32_t i = 0; i < p->n_instructions; i++) {
		const Instruction *n = &run->format.instructions[p->first_instruction + i];

		depth += (n->kind == LOOP) - (n->kind == END);
		inside = touches(run, n, b) || (inside && (depth > 0 || n->kind == END));
		if (inside)
			last = i;
	}
	return last;
}

static void
add_bucket(Reduction *r, const ProgramRecord *p, const StateRecord *s, int64_t first, int64_t n)
{
	Bucket b = {.dtype = s->dtype,
	            .offset = s->offset + dtype_bytes((DType)s->dtype, first),
	            .n = n};
	int at = r->n++;

	b.ready = last_touch(r->run, p, &b);
	for (; at > 0 && r->buckets[at - 1].ready > b.ready; at--)
		r->buckets[at] = r->buckets[at - 1];
	r->buckets[at] = b;
}

/* A unit in at most PARTS_OF_UNIT buckets, where they are not too small or too large for that. */
static int64_t
bucket_elements(const StateRecord *s)
{
	int64_t bytes = s->bytes / PARTS_OF_UNIT;

	if (bytes > MOST_BUCKET)
		bytes = MOST_BUCKET;
	if (bytes < LEAST_BUCKET)
		bytes = LEAST_BUCKET;
	return bytes / dtype_bytes((DType)s->dtype, 1);
}

static int64_t
state_elements(const StateRecord *s)
{
	return s->bytes / dtype_bytes((DType)s->dtype, 1);
}

/* What a step adds up: its own states, but those that lie in a unit. */
static bool
is_summed(const StateRecord *s)
{
	return s->lifetime == LASTS_STEP && s->unit == 0;
}

Status
reduction_new(Gradc *run, Reduction **out)
{
	const Format *f = &run->format;
	Reduction *r = NEW(run->arena, Reduction);
	int64_t most = 0;

	*out = NULL;
	if (run->comm_ops->size(run->comm) == 1)
		return NULL;
	r->run = run;
	for (int i = 0; i < f->n[SECTION_STATES]; i++)
		if (is_summed(&f->states[i]))
			most += state_elements(&f->states[i]) / bucket_elements(&f->states[i]) + 1;
	r->buckets = NEW_ARRAY(run->arena, Bucket, most);
	for (int i = 0; i < f->n[SECTION_STATES]; i++) {
		const StateRecord *s = &f->states[i];
		int64_t n = state_elements(s), each = bucket_elements(s);

		for (int64_t first = 0; is_summed(s) && first < n; first += each)
			add_bucket(r, run->train->program, s, first,
			           n - first < each ? n - first : each);
	}
	*out = r;
	return NULL;
}

static Status
start_bucket(Reduction *r, Bucket *b)
{
	Executor *x = &r->run->executor;
	char *at = x->regions[SPACE_STATE].at + b->offset;
	CommBuffers buffers = {.to = at, .from = at, .n = b->n, .dtype = (DType)b->dtype};

	RETURN_IF_ERROR(x->ops->sync(x->device));
	b->begin = seconds_now();
	r->started++;
	return r->run->comm_ops->all_reduce(r->run->comm, &buffers, &b->request);
}

static Status
finish_bucket(Reduction *r, Bucket *b)
{
	Status status = r->run->comm_ops->finish(r->run->comm, b->request);

	b->request = NULL;
	r->finished++;
	trace_span(r->run->observer.trace,
	           &(TraceSpan){.track = TRACK_COMMUNICATION,
	                        .category = "communication",
	                        .name = "all_reduce",
	                        .begin = b->begin,
	                        .end = seconds_now(),
	                        .count_of = "bytes",
	                        .count = dtype_bytes((DType)b->dtype, b->n)});
	return status;
}

Status
reduction_after(Reduction *r, uint32_t instruction)
{
	while (r->started < r->n && r->buckets[r->started].ready <= instruction)
		RETURN_IF_ERROR(start_bucket(r, &r->buckets[r->started]));
	while (r->finished < r->started) {
		bool done;

		RETURN_IF_ERROR(r->run->comm_ops->test(r->run->comm,
		                                       r->buckets[r->finished].request, &done));
		if (!done)
			break;
		RETURN_IF_ERROR(finish_bucket(r, &r->buckets[r->finished]));
	}
	return NULL;
}

/* Running statistics become the mean over the ranks. */
static Status
average_statistics(Gradc *run)
{
	double ranks = run->comm_ops->size(run->comm);

	for (int i = 0; i < run->format.n[SECTION_STATES]; i++) {
		const StateRecord *s = &run->format.states[i];
		char *at = executor_state(&run->executor, i).at;

		if (s->kind != SAVE_STATISTIC || !dtype_is_float((DType)s->dtype))
			continue;
		RETURN_IF_ERROR(
			comm_sum(run->comm_ops, run->comm, (DType)s->dtype, at, state_elements(s)));
		for (int64_t k = 0; k < state_elements(s); k++)
			dtype_store_float((DType)s->dtype, at, k,
			                  dtype_load_float((DType)s->dtype, at, k) / ranks);
	}
	return NULL;
}

Status
reduction_finish(Reduction *r)
{
	RETURN_IF_ERROR(reduction_after(r, UINT32_MAX));
	while (r->finished < r->n)
		RETURN_IF_ERROR(finish_bucket(r, &r->buckets[r->finished]));
	r->started = r->finished = 0;
	return average_statistics(r->run);
}

Status
ranks_sum_state(Gradc *run, int state)
{
	const StateRecord *s = &run->format.states[state];

	return comm_sum(run->comm_ops, run->comm, (DType)s->dtype,
	                executor_state(&run->executor, state).at, 1);
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

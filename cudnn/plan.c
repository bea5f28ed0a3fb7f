/* Finds ways to compute a graph (plans). cuDNN's heuristic suggests configurations, the one that it expects to be the fastest
 * first. A plan uses a configuration that gives the same bits in each run, rounds nothing but the stored results, and needs no
 * more than the allowed scratch. */
#include "base/numbers/numbers.h"
#include "cudnn/cudnn.h"

#include <string.h>

/* ---- engines */
/* cuDNN describes each engine by notes. Returns, as bits, the notes that an engine must not have. Sums must be computed in f32.
 * Winograd algorithms with large tiles lose bits of sums; with 16-bit operands, Winograd loses bits with tiles of any size. */
static unsigned
refused_notes(const LibraryCall *call, bool tf32)
{
	bool wide = call->operands[LIBRARY_FIRST].dtype == F32;
	unsigned notes = 1u << CUDNN_NOTE_ANY_ORDER | 1u << CUDNN_NOTE_ROUNDS_OPERANDS |
	                 1u << CUDNN_NOTE_ROUNDS_SUMS | 1u << CUDNN_NOTE_WINOGRAD_6 |
	                 1u << CUDNN_NOTE_WINOGRAD_13;

	if (wide && !tf32)
		notes |= 1u << CUDNN_NOTE_TENSOR_CORE;
	if (!wide)
		notes |= 1u << CUDNN_NOTE_WINOGRAD | 1u << CUDNN_NOTE_FFT;
	return notes;
}

/* Reads the number and the notes (as bits) of a configuration's engine. */
static bool
look_at_engine(const Cudnn *dnn, void *config, int64_t *number, unsigned *notes)
{
	CudnnDescriptors own = {.dnn = dnn};
	void *engine = cudnn_new(&own, CUDNN_ENGINE_DESCRIPTOR);
	int list[MOST_CUDNN_NOTES];
	int64_t n = 0, one = 1;

	*notes = 0;
	if (!own.code)
		own.code = dnn->BackendGetAttribute(config, CUDNN_CONFIG_ENGINE, CUDNN_DESCRIPTORS,
		                                    1, &one, &engine);
	if (!own.code)
		own.code = dnn->BackendGetAttribute(engine, CUDNN_ENGINE_NUMBER, CUDNN_INT64S, 1,
		                                    &one, number);
	if (!own.code)
		own.code = dnn->BackendGetAttribute(engine, CUDNN_ENGINE_NOTES, CUDNN_NOTES,
		                                    MOST_CUDNN_NOTES, &n, list);
	for (int64_t i = 0; !own.code && i < n && i < MOST_CUDNN_NOTES; i++)
		if (list[i] >= 0 && list[i] < 32)
			*notes |= 1u << list[i];
	cudnn_destroy(&own);
	return !own.code;
}

/* ---- plans */
/* Makes the plan's descriptor; its configuration or text is set later. */
static void *
begin_plan(CudnnDescriptors *d, const CudnnTarget *target)
{
	void *plan = cudnn_new(d, CUDNN_PLAN_DESCRIPTOR);

	if (target->handle)
		cudnn_set(d, plan, CUDNN_PLAN_HANDLE, CUDNN_HANDLES, 1, &target->handle);
	if (target->gpu)
		cudnn_set(d, plan, CUDNN_PLAN_GPU, CUDNN_DESCRIPTORS, 1, &target->gpu);
	return plan;
}

/* Finishes the plan and moves the descriptors to *out. False if the library cannot make the plan, or if the plan needs more
 * scratch than scratch_limit. */
static bool
finish_plan(CudnnDescriptors *d, void *plan, int64_t scratch_limit, CudnnPlan *out)
{
	int64_t n = 0, bytes = 0;

	cudnn_finish(d, plan);
	if (!d->code)
		d->code = d->dnn->BackendGetAttribute(plan, CUDNN_PLAN_WORKSPACE, CUDNN_INT64S, 1,
		                                      &n, &bytes);
	if (d->code || bytes < 0 || bytes > scratch_limit) {
		cudnn_destroy(d);
		return false;
	}
	out->plan = *d;
	out->plan_at = plan;
	out->workspace = bytes;
	return true;
}

static bool
make_plan(const Cudnn *dnn, const CudnnTarget *target, void *config, int64_t scratch_limit,
          CudnnPlan *out)
{
	CudnnDescriptors d = {.dnn = dnn};
	void *plan = begin_plan(&d, target);

	cudnn_set(&d, plan, CUDNN_PLAN_CONFIG, CUDNN_DESCRIPTORS, 1, &config);
	return finish_plan(&d, plan, scratch_limit, out);
}

/* Can the configuration's engine be used? Stores the engine in *out. */
static bool
take_engine(const Cudnn *dnn, const CudnnTarget *target, const LibraryCall *call, void *config,
            CudnnPlan *out)
{
	unsigned notes;

	return look_at_engine(dnn, config, &out->engine, &notes) &&
	       !(notes & refused_notes(call, target->tf32));
}

/* ---- the heuristic */
/* The configurations that the heuristic suggests, fastest first. */
typedef struct {
	int64_t n;
	void **at;
} Configs;

/* Makes a heuristic for the graph. */
static void *
make_heuristic(CudnnDescriptors *d, const CudnnTarget *target, void *graph, int mode)
{
	void *heuristic = cudnn_new(d, CUDNN_HEURISTIC_DESCRIPTOR);

	cudnn_set(d, heuristic, CUDNN_HEURISTIC_GRAPH, CUDNN_DESCRIPTORS, 1, &graph);
	cudnn_set(d, heuristic, CUDNN_HEURISTIC_MODE, CUDNN_HEURISTICS, 1, &mode);
	if (target->gpu)
		cudnn_set(d, heuristic, CUDNN_HEURISTIC_GPU, CUDNN_DESCRIPTORS, 1, &target->gpu);
	cudnn_finish(d, heuristic);
	return heuristic;
}

/* Reads up to `most` configurations into `out`. Returns how many the heuristic has; 0 after a failure. */
static int64_t
read_configs(CudnnDescriptors *d, void *heuristic, int64_t most, void **out)
{
	int64_t n = 0;

	if (!d->code)
		d->code = d->dnn->BackendGetAttribute(heuristic, CUDNN_HEURISTIC_CONFIGS,
		                                      CUDNN_DESCRIPTORS, most, &n, out);
	return d->code || n < 0 ? 0 : n;
}

/* Reads all configurations. The library fills descriptors that the caller makes, so it is first asked how many there are. Free
 * with free_configs, even after a failure. */
static Configs
all_configs(CudnnDescriptors *d, void *heuristic)
{
	int64_t room = read_configs(d, heuristic, 0, NULL);
	Configs c = {0, memory_zeroed((size_t)room + 1, sizeof(*c.at))};

	for (; c.n < room && !d->code; c.n++)
		d->code = d->dnn->BackendCreateDescriptor(CUDNN_CONFIG_DESCRIPTOR, &c.at[c.n]);
	int64_t n = c.n > 0 ? read_configs(d, heuristic, c.n, c.at) : 0;
	while (c.n > n)
		if (c.at[--c.n])
			d->dnn->BackendDestroyDescriptor(c.at[c.n]);
	return c;
}

static void
free_configs(const Cudnn *dnn, Configs *c)
{
	for (int64_t i = 0; i < c->n; i++)
		dnn->BackendDestroyDescriptor(c->at[i]);
	memory_free(c->at);
}

/* Makes the plans of the suggested configurations that may be used, from out[*n] on. They share the graph. */
static void
try_heuristic(const CudnnTarget *target, const LibraryCall *call, CudnnGraph *graph, int mode,
              int64_t scratch_limit, int most, CudnnPlan *out, int *n)
{
	const Cudnn *dnn = graph->descriptors.dnn;
	CudnnDescriptors d = {.dnn = dnn};
	Configs configs = all_configs(&d, make_heuristic(&d, target, graph->at, mode));

	for (int64_t i = 0; i < configs.n && *n < most; i++) {
		CudnnPlan *plan = &out[*n];
		*plan = (CudnnPlan){.plan = {.dnn = dnn}};
		if (!take_engine(dnn, target, call, configs.at[i], plan) ||
		    !make_plan(dnn, target, configs.at[i], scratch_limit, plan))
			continue;
		plan->graph = graph;
		graph->users++;
		(*n)++;
	}
	free_configs(dnn, &configs);
	cudnn_destroy(&d);
}

static void
leave_graph(CudnnGraph *graph)
{
	if (!graph || --graph->users > 0)
		return;
	cudnn_destroy(&graph->descriptors);
	memory_free(graph);
}

Status
cudnn_plans_open(const Cudnn *dnn, const CudnnTarget *target, const LibraryCall *call,
                 int64_t scratch_limit, int most, CudnnPlan *out, int *n)
{
	static const int modes[] = {CUDNN_HEURISTIC_A, CUDNN_HEURISTIC_FALLBACK};
	CudnnGraph *graph = memory_zeroed(1, sizeof(*graph));

	*n = 0;
	graph->descriptors.dnn = dnn;
	graph->users = 1;
	Status status = cudnn_graph(&graph->descriptors, call, target->handle, &graph->at);
	for (int i = 0; i < COUNT(modes) && !status; i++)
		try_heuristic(target, call, graph, modes[i], scratch_limit, most, out, n);
	leave_graph(graph);
	if (status || *n > 0)
		return status;
	return status_error(EXIT_UNSUPPORTED, "cuDNN has no engine for this convolution");
}

/* ---- plans as text */
Status
cudnn_plan_print(Text *out, const CudnnPlan *p)
{
	const Cudnn *dnn = p->plan.dnn;
	int64_t n = 0;
	int code = dnn->BackendGetAttribute(p->plan_at, CUDNN_PLAN_JSON, CUDNN_CHARACTERS, 0, &n,
	                                    NULL);

	RETURN_IF_ERROR(cudnn_status(dnn, code, "a plan has no text"));
	char *text = memory_zeroed(n > 0 ? (size_t)n + 1 : 1, 1);
	code = dnn->BackendGetAttribute(p->plan_at, CUDNN_PLAN_JSON, CUDNN_CHARACTERS, n, &n, text);
	text_add(out, text);
	memory_free(text);
	return cudnn_status(dnn, code, "a plan has no text");
}

/* Does the target allow the engine of a plan that was read from text? */
static bool
check_engine(const CudnnTarget *target, const LibraryCall *call, CudnnPlan *p)
{
	const Cudnn *dnn = p->plan.dnn;
	CudnnDescriptors own = {.dnn = dnn};
	void *config = cudnn_new(&own, CUDNN_CONFIG_DESCRIPTOR);
	int64_t one = 0;

	if (!own.code)
		own.code = dnn->BackendGetAttribute(p->plan_at, CUDNN_PLAN_CONFIG,
		                                    CUDNN_DESCRIPTORS, 1, &one, &config);
	bool taken = !own.code && take_engine(dnn, target, call, config, p);
	cudnn_destroy(&own);
	return taken;
}

Status
cudnn_plan_read(const Cudnn *dnn, const CudnnTarget *target, const LibraryCall *call,
                const char *text, int64_t scratch_limit, CudnnPlan *out)
{
	CudnnDescriptors d = {.dnn = dnn};
	void *plan = begin_plan(&d, target);

	*out = (CudnnPlan){.plan = {.dnn = dnn}};
	cudnn_set(&d, plan, CUDNN_PLAN_JSON, CUDNN_CHARACTERS, (int64_t)strlen(text), text);
	if (!finish_plan(&d, plan, scratch_limit, out))
		return d.code ? cudnn_status(dnn, d.code, "a plan is not for this GPU")
		              : status_error(EXIT_UNSUPPORTED,
		                             "cuDNN: a plan has more than %lld bytes of scratch",
		                             (long long)scratch_limit);
	return check_engine(target, call, out)
	               ? NULL
	               : status_error(EXIT_UNSUPPORTED, "cuDNN: a plan uses an engine that gradc "
	                                                "refuses");
}

void
cudnn_plan_close(CudnnPlan *p)
{
	cudnn_destroy(&p->plan);
	leave_graph(p->graph);
}

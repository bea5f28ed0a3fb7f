/* cuDNN behind the interface of library.h: convolutions and their gradients on NVIDIA's GPUs. Runs are queued in the device's
 * stream and may be captured into a graph. The same plan gives the same bits in each run. */
#include "base/numbers/numbers.h"
#include "cudnn/cudnn.h"
#include "runtime/library/library.h"

#include <string.h>

enum { MOST_NAME = 64 };

struct Library {
	Cudnn dnn;
	/* The target's handle is made for the first convolution, because a handle needs memory and time. */
	CudnnTarget target;
	Status fault; /* why no handle could be made */
	int capability, processors;
	char version[MOST_CUDNN_VERSION];
};
struct PreparedCall {
	Library *library;
	LibraryCall call;
	CudnnPlan plan;
	char name[MOST_NAME];
};

/* ---- the library */
static void
dnn_close(Library *l)
{
	if (!l)
		return;
	if (l->target.handle)
		l->dnn.Destroy(l->target.handle);
	status_free(l->fault);
	memory_free(l);
}

static void
close_library(void *library)
{
	dnn_close(library);
}

static Status
start(Library *l)
{
	RETURN_IF_ERROR(cudnn_load(&l->dnn));
	cudnn_version(&l->dnn, l->version);
	return NULL;
}

static Status
dnn_open(const LibraryHome *home, Library **out)
{
	Library *l = memory_zeroed(1, sizeof(*l));

	*out = NULL;
	l->target.tf32 = home->tf32;
	l->capability = home->capability;
	l->processors = home->processors;
	memory_hold(close_library, l);
	Status status = start(l);
	memory_let_go();
	if (status)
		dnn_close(l);
	else
		*out = l;
	return status;
}

static const char *
dnn_version(const Library *l)
{
	return l->version;
}

static const char *
dnn_fault(const Library *l)
{
	return l->fault ? l->fault->message : NULL;
}

static Status
make_handle(Library *l)
{
	if (!l->target.handle && !l->fault)
		l->fault = cudnn_status(&l->dnn, l->dnn.Create(&l->target.handle),
		                        "it does not start");
	return status_copy(l->fault);
}

/* ---- calls */
static void
dnn_release(PreparedCall *c)
{
	if (!c)
		return;
	cudnn_plan_close(&c->plan);
	memory_free(c);
}

/* A call with this plan, which the call owns from now on. */
static PreparedCall *
new_call(Library *l, const LibraryCall *call, const CudnnPlan *plan, const char *how)
{
	PreparedCall *c = memory_zeroed(1, sizeof(*c));

	c->library = l;
	c->call = *call;
	c->plan = *plan;
	snprintf(c->name, sizeof(c->name), "%s engine %lld%s", l->version,
	         (long long)c->plan.engine, how);
	return c;
}

static Status
prepare(Library *l, const LibraryCall *call, int64_t scratch_limit, int most, PreparedCall **out,
        int *n)
{
	CudnnPlan plans[MOST_ENGINES];

	*n = 0;
	if (call->kind == LIBRARY_DOT)
		return status_error(EXIT_UNSUPPORTED, "cuDNN runs convolutions, not products");
	RETURN_IF_ERROR(make_handle(l));
	RETURN_IF_ERROR(cudnn_plans_open(&l->dnn, &l->target, call, scratch_limit, most, plans, n));
	for (int i = 0; i < *n; i++)
		out[i] = new_call(l, call, &plans[i], "");
	return NULL;
}

static Status
dnn_prepare(Library *l, const LibraryCall *call, unsigned fixed, int64_t scratch_limit,
            PreparedCall **out)
{
	int n;

	(void)fixed;
	*out = NULL;
	return prepare(l, call, scratch_limit, 1, out, &n);
}

static Status
dnn_engines(Library *l, const LibraryCall *call, int64_t scratch_limit,
            PreparedCall *out[MOST_ENGINES], int *n)
{
	return prepare(l, call, scratch_limit, MOST_ENGINES, out, n);
}

/* The engine's number, and a hash of the plan as text: plans of an engine differ in its settings. */
static void
dnn_print_engine(const PreparedCall *c, Text *out)
{
	Text plan = {0};

	status_free(cudnn_plan_print(&plan, &c->plan));
	text_printf(out, "engine %lld %016llx", (long long)c->plan.engine,
	            (unsigned long long)hash_bytes(plan.n ? plan.at : "", (size_t)plan.n, 0));
	text_free(&plan);
}

static Status
dnn_rebuild(Library *l, const LibraryCall *call, const LibraryPlan *plan, int64_t scratch_limit,
            PreparedCall **out)
{
	CudnnPlan read;

	*out = NULL;
	if (strcmp(plan->version, l->version) != 0 || plan->capability != l->capability ||
	    plan->processors != l->processors)
		return status_error(EXIT_UNSUPPORTED,
		                    "cuDNN: the plan was made with %s for compute capability %d.%d "
		                    "with %d multiprocessors, not for this machine",
		                    plan->version, plan->capability / 10, plan->capability % 10,
		                    plan->processors);
	RETURN_IF_ERROR(make_handle(l));
	Status status = cudnn_plan_read(&l->dnn, &l->target, call, plan->text, scratch_limit,
	                                &read);
	if (status)
		cudnn_plan_close(&read);
	else
		*out = new_call(l, call, &read, " as planned");
	return status;
}

static bool
dnn_pays(const PreparedCall *c)
{
	(void)c;
	return true;
}

static const char *
dnn_implementation(const PreparedCall *c)
{
	return c->name;
}

static int64_t
dnn_scratch(const PreparedCall *c)
{
	return (c->plan.workspace + 63) / 64 * 64;
}

static int64_t
dnn_packed_bytes(const PreparedCall *c, int i)
{
	(void)c;
	(void)i;
	return 0;
}

/* ---- runs */
static void
set_buffers(const PreparedCall *c, CudnnDescriptors *d, void *pack, void *const *buffers,
            void *scratch)
{
	int64_t numbers[LIBRARY_BIAS];
	void *at[LIBRARY_BIAS];

	for (int i = 0; i < LIBRARY_BIAS; i++) {
		const LibraryOperand *o = &c->call.operands[i];
		numbers[i] = cudnn_number(i);
		at[i] = (char *)buffers[i] + dtype_bytes((DType)o->dtype, o->offset);
	}
	cudnn_set(d, pack, CUDNN_BUFFERS_NUMBERS, CUDNN_INT64S, LIBRARY_BIAS, numbers);
	cudnn_set(d, pack, CUDNN_BUFFERS_AT, CUDNN_POINTERS, LIBRARY_BIAS, at);
	cudnn_set(d, pack, CUDNN_BUFFERS_WORKSPACE, CUDNN_POINTERS, 1, &scratch);
	cudnn_finish(d, pack);
}

static Status
dnn_run(PreparedCall *c, void *const buffers[N_LIBRARY_OPERANDS], char *const packed[2],
        char *scratch, void *stream)
{
	const Library *l = c->library;
	CudnnDescriptors d = {.dnn = &l->dnn};
	void *pack = cudnn_new(&d, CUDNN_BUFFERS_DESCRIPTOR);

	(void)packed;
	set_buffers(c, &d, pack, buffers, scratch);
	if (!d.code)
		d.code = l->dnn.SetStream(l->target.handle, stream);
	if (!d.code)
		d.code = l->dnn.BackendExecute(l->target.handle, c->plan.plan_at, pack);
	cudnn_destroy(&d);
	return cudnn_status(&l->dnn, d.code, "a convolution failed");
}

const LibraryOps library_cudnn = {
	.name = "cuDNN",
	.open = dnn_open,
	.close = dnn_close,
	.version = dnn_version,
	.prepare = dnn_prepare,
	.engines = dnn_engines,
	.print_engine = dnn_print_engine,
	.rebuild = dnn_rebuild,
	.fault = dnn_fault,
	.release = dnn_release,
	.pays = dnn_pays,
	.implementation = dnn_implementation,
	.scratch = dnn_scratch,
	.packed_bytes = dnn_packed_bytes,
	.run = dnn_run,
};

/* Asks cuDNN how to run each convolution (a plan) and stores the answers in the executable. cuDNN
 * gets a description of the GPU instead of a real GPU (cudnn/gpus.c). cuDNN runs in a process of
 * its own, because it may crash, and writes its results to a file. A failure here is not an
 * error: a convolution without a plan is planned when training starts.
 *
 * Parts of cuDNN are linked with the GPU driver, although planning for a described GPU calls no
 * driver. So an empty library with the driver's name is loaded first, also on a machine that has
 * a driver. Plans therefore do not depend on the machine that compiles. */
#include "codegen/cuda/nvrtc.h"
#include "cudnn/cudnn.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* seconds after which cuDNN counts as hanging; some hundred calls take a few seconds */
enum { PATIENCE = 300 };

typedef struct {
	uint32_t library; /* index into the tables' library records */
	const DescribedGpu *gpu;
} Wanted;
typedef struct {
	Build *b;
	FormatWriter *w;
	bool tf32;
	VEC(Wanted) wanted;
	const char *driver, *results, *log; /* paths of files */
} Planning;

/* ---- the file of results: a header, then for each plan found a PlanResult and the text of the
 * plan */
typedef struct {
	char version[MOST_CUDNN_VERSION]; /* "": no cuDNN */
} ResultsHeader;
typedef struct {
	int64_t wanted, scratch, text_bytes;
} PlanResult;

/* ---- which convolutions are planned */
static bool
is_planned(const FormatWriter *w, const KernelRecord *k, int target)
{
	return k->library && k->targets >> target & 1 &&
	       w->library.at[k->library - 1].call.kind != LIBRARY_DOT;
}

/* Has the GPU been listed already? Two architectures, such as sm_90 and sm_90a, may stand for the
 * same GPU. */
static bool
is_known(const Planning *p, const DescribedGpu *gpu)
{
	for (int i = 0; i < p->wanted.n; i++)
		if (p->wanted.at[i].gpu == gpu)
			return true;
	return false;
}

static void
collect(Planning *p, const Module *m)
{
	const LinkOptions *o = p->b->options;

	for (int i = 0; i < o->n_gpus; i++) {
		const DescribedGpu *gpu = described_gpu_find(o->gpus[i]->name);
		int target = build_target(p->b->arena, m, o->gpus[i]->target);
		if (!gpu || is_known(p, gpu))
			continue;
		for (int k = 0; k < p->w->kernels.n; k++) {
			const KernelRecord *r = &p->w->kernels.at[k];
			Wanted wanted = {r->library - 1, gpu};
			if (is_planned(p->w, r, target))
				vec_push(p->b->arena, &p->wanted, wanted);
		}
	}
}

/* ---- the empty driver */
static const char driver_source[] =
#define NOTHING(name) "int " name "(void);\nint " name "(void) { return 999; }\n"
	NOTHING("cuGetErrorString") NOTHING("cuModuleGetFunction") NOTHING("cuModuleLoadData")
		NOTHING("cuModuleUnload") NOTHING("cuTensorMapEncodeIm2col")
			NOTHING("cuTensorMapEncodeTiled");

static Status
build_driver(Planning *p)
{
	const char *source = build_file(p->b, "driver.c");
	char *argv[] = {(char *)build_compiler(p->b),
	                "-w",
	                "-shared",
	                "-fPIC",
	                "-nostdlib",
	                "-Wl,-soname,libcuda.so.1",
	                (char *)source,
	                "-o",
	                (char *)p->driver,
	                NULL};
	Process compiler;

	RETURN_IF_ERROR(file_write(source, driver_source, (int64_t)strlen(driver_source)));
	RETURN_IF_ERROR(build_start(p->b, argv, build_file(p->b, "driver.log"), &compiler));
	return build_finish(p->b, &compiler);
}

/* ---- in the other process */
static void
write_all(int fd, const void *bytes, size_t n)
{
	for (const char *at = bytes; n > 0;) {
		ssize_t written = write(fd, at, n);
		if (written < 0 && errno != EINTR)
			_exit(EXIT_SYSTEM);
		at += written > 0 ? written : 0;
		n -= written > 0 ? (size_t)written : 0;
	}
}

static Status
plan_call(const Planning *p, const Cudnn *dnn, void *gpu, int64_t i, int fd)
{
	const LibraryRecord *r = &p->w->library.at[p->wanted.at[i].library];
	const CudnnTarget target = {.gpu = gpu, .tf32 = p->tf32};
	CudnnPlan plan;
	Text text = {0};
	int n;

	RETURN_IF_ERROR(cudnn_plans_open(dnn, &target, &r->call, r->scratch_limit, 1, &plan, &n));
	Status status = cudnn_plan_print(&text, &plan);
	if (!status && text.n) {
		PlanResult result = {i, plan.workspace, (int64_t)text.n};
		write_all(fd, &result, sizeof(result));
		write_all(fd, text.at, text.n);
	}
	cudnn_plan_close(&plan);
	text_free(&text);
	return status;
}

/* Plans all calls; goes on after a call for which there is no plan. */
static void
plan_all(const Planning *p, const Cudnn *dnn, int fd)
{
	CudnnDescriptors own = {.dnn = dnn};
	const DescribedGpu *of = NULL;
	void *gpu = NULL;

	for (int i = 0; i < p->wanted.n; i++) {
		Status status = NULL;
		if (p->wanted.at[i].gpu != of) {
			cudnn_destroy(&own);
			own = (CudnnDescriptors){.dnn = dnn};
			of = p->wanted.at[i].gpu;
			status = described_gpu_open(&own, of, &gpu);
		}
		if (!status && !own.code)
			status = plan_call(p, dnn, gpu, i, fd);
		if (status)
			printf("%s\n", status->message);
		status_free(status);
	}
	cudnn_destroy(&own);
}

static _Noreturn void
work(const Planning *p)
{
	int log = open(p->log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	int fd = open(p->results, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	ResultsHeader header = {0};
	Cudnn dnn;

	if (log < 0 || fd < 0)
		_exit(EXIT_SYSTEM);
	alarm(PATIENCE); /* ends the process: a library that hangs counts as crashed */
	dup2(log, STDOUT_FILENO);
	dup2(log, STDERR_FILENO);
	if (!dlopen(p->driver, RTLD_NOW | RTLD_GLOBAL) || cudnn_load(&dnn))
		_exit(EXIT_SYSTEM);
	cudnn_version(&dnn, header.version);
	write_all(fd, &header, sizeof(header));
	plan_all(p, &dnn, fd);
	fflush(stdout);
	_exit(EXIT_OK);
}

/* ---- in this process */
/* Runs the other process and waits for it, however it ends. */
static void
run_worker(const Planning *p)
{
	CleanupSlot slot;
	int code;

	fflush(NULL);
	pid_t pid = cleanup_fork(&slot);
	if (pid == 0)
		work(p);
	if (pid < 0)
		return;
	while (waitpid(pid, &code, 0) < 0 && errno == EINTR)
		;
	cleanup_forget(slot);
}

static void
add_plan(Planning *p, const char *version, const PlanResult *result, const char *text)
{
	const Wanted *wanted = &p->wanted.at[result->wanted];
	const LibraryRecord *r = &p->w->library.at[wanted->library];
	const char *copy = arena_strndup(p->b->arena, text, (size_t)result->text_bytes);
	PlanRecord plan = {.library = wanted->library,
	                   .gpu = format_string(p->w, wanted->gpu->name),
	                   .capability = (uint32_t)wanted->gpu->capability,
	                   .processors = (uint32_t)wanted->gpu->processors,
	                   .version = format_string(p->w, version),
	                   .text = format_string(p->w, copy),
	                   .scratch = result->scratch};

	plan.facts = plan_facts(r, &plan, p->w->strings.at);
	vec_push(p->w->arena, &p->w->plans, plan);
}

static bool
is_sound(const Planning *p, const PlanResult *r, int64_t bytes_left)
{
	return r->wanted >= 0 && r->wanted < p->wanted.n && r->text_bytes > 0 &&
	       r->text_bytes <= bytes_left && r->scratch >= 0 &&
	       r->scratch <= p->w->library.at[p->wanted.at[r->wanted].library].scratch_limit;
}

/* Adds the plans that are complete, even if the process failed later. Returns the library's version; "": no
 * library. */
static const char *
read_results(Planning *p)
{
	void *bytes;
	int64_t n;
	Status status = file_read(p->b->arena, p->results, INT32_MAX, &bytes, &n);
	PlanResult r;

	if (status || n < (int64_t)sizeof(ResultsHeader)) {
		status_free(status);
		return "";
	}
	const char *version = arena_strndup(p->b->arena, bytes, MOST_CUDNN_VERSION - 1);
	const char *at = (char *)bytes + sizeof(ResultsHeader), *end = (char *)bytes + n;
	while (end - at >= (int64_t)sizeof(r)) {
		memcpy(&r, at, sizeof(r));
		at += sizeof(r);
		if (!is_sound(p, &r, end - at))
			break;
		add_plan(p, version, &r, at);
		at += r.text_bytes;
	}
	return version;
}

void
cuda_plan_convolutions(Build *b, const Module *m, FormatWriter *w)
{
	GpuReport *report = b->options->gpu_report;
	Planning p = {.b = b,
	              .w = w,
	              .tf32 = b->options->tf32,
	              .driver = build_file(b, "libcuda.so.1"),
	              .results = build_file(b, "plans"),
	              .log = build_file(b, "plans.log")};

	collect(&p, m);
	if (p.wanted.n == 0)
		return;
	Status status = build_driver(&p);
	if (!status)
		run_worker(&p);
	status_free(status);
	const char *version = read_results(&p);
	if (report) {
		report->n_convolutions = p.wanted.n;
		report->n_plans = w->plans.n;
		snprintf(report->planner, sizeof(report->planner), "%s", version);
	}
}

/* cuDNN's plans: made for GPUs given by a description, written as text, and prepared from text; and faults that keep a plan
 * from being used. The library is a pretended one (tests/cuda/programs/fake_cudnn.h). */
#include "cudnn/cudnn.h"
#include "tests/unit/runtime/found_library.h"
#include "tests/unit/runtime/naive_library.h"

#include <jansson.h>

static const LibraryOps *const ops = &library_cudnn;
enum { LIMIT = 1 << 20, SCRATCH = 4096, SCRATCH_ALIGNMENT = 256 };
static const LibraryHome h100 = {.machine = "pretended", .capability = 90, .processors = 132};
static const ConvSizes sizes = {2, 2, 1, 3, 4, {{6, 3, 6, 1, 1, 1}, {7, 3, 4, 2, 1, 1}}};

static LibraryCall
call_of(LibraryKind kind, DType dtype)
{
	LibraryCall w = conv_of(&sizes, kind);

	set_types(&w, (Types){dtype, dtype});
	return w;
}

/* Makes a plan as the compiler does for a GPU, from the pretended heuristic. */
static void
make_plan(const char *architecture, const LibraryCall *w, bool tf32, Text *out)
{
	Cudnn dnn;
	CudnnPlan plan;
	int n;

	must(cudnn_load(&dnn));
	CudnnDescriptors own = {.dnn = &dnn};
	CudnnTarget target = {.tf32 = tf32};
	must(described_gpu_open(&own, described_gpu_find(architecture), &target.gpu));
	must(cudnn_plans_open(&dnn, &target, w, LIMIT, 1, &plan, &n));
	must(cudnn_plan_print(out, &plan));
	cudnn_plan_close(&plan);
	cudnn_destroy(&own);
}

static Library *
open_library(const LibraryHome *home)
{
	Library *library;

	must(ops->open(home, &library));
	return library;
}

static void
close_library(Library *library)
{
	ops->close(library);
	assert_int_equal(count_alive("libcudnn.so.9", "fake_cudnn_alive"), 0);
}

/* ---- GPUs */
static void
test_gpus_are_described(void **state)
{
	static const struct {
		const char *architecture, *name;
	} rows[] = {{"sm_80", "NVIDIA A100-SXM4-80GB"},  {"sm_90", "NVIDIA H100 80GB HBM3"},
	            {"sm_90a", "NVIDIA H100 80GB HBM3"}, {"sm_100", "NVIDIA B200"},
	            {"sm_100a", "NVIDIA B200"},          {"compute_100", "NVIDIA B200"}};

	(void)state;
	for (int i = 0; i < COUNT(rows); i++) {
		const DescribedGpu *g = described_gpu_find(rows[i].architecture);
		Text text = {0};
		assert_non_null(g);
		assert_string_equal(g->name, rows[i].name);
		described_gpu_print(&text, g);
		json_t *root = json_loads(text.at, JSON_REJECT_DUPLICATES, NULL);
		assert_non_null(root);
		assert_string_equal(json_string_value(json_object_get(root, "deviceName")),
		                    g->name);
		assert_int_equal(json_integer_value(json_object_get(root, "deviceVer")),
		                 10 * g->capability);
		assert_int_equal(json_integer_value(json_object_get(root, "multiProcessorCount")),
		                 g->processors);
		json_decref(root);
		text_free(&text);
	}
	assert_null(described_gpu_find("sm_75"));
	assert_null(described_gpu_find("native"));
}

/* ---- plans */
static void
check_plan(LibraryKind kind, DType dtype, bool tf32, const char *name)
{
	LibraryHome home = h100;
	LibraryCall w = call_of(kind, dtype);
	char *buffers[N_LIBRARY_OPERANDS] = {buffer_new(&w, X), buffer_new(&w, Y),
	                                     buffer_new(&w, Z), NULL};
	char *scratch = aligned_alloc(SCRATCH_ALIGNMENT, SCRATCH);
	PreparedCall *call;
	Text text = {0};

	home.tf32 = tf32;
	make_plan("sm_90a", &w, tf32, &text);
	Library *library = open_library(&home);
	const LibraryPlan plan = {"cuDNN 9.28.1", text.at, 90, 132};
	must(ops->rebuild(library, &w, &plan, LIMIT, &call));
	assert_string_equal(ops->implementation(call), name);
	assert_int_equal(ops->scratch(call), SCRATCH);
	must(ops->run(call, (void *const *)buffers, (char *const[]){NULL, NULL}, scratch, NULL));
	if (!tf32)
		compare_result(&w, buffers, NULL);
	ops->release(call);
	close_library(library);
	text_free(&text);
	free(scratch);
	for (int i = X; i <= Z; i++)
		free(buffers[i]);
}

static void
test_plans_run(void **state)
{
	(void)state;
	for (int kind = LIBRARY_CONV; kind < N_LIBRARY_KINDS; kind++) {
		check_plan((LibraryKind)kind, F32, false, "cuDNN 9.28.1 engine 1 as planned");
		check_plan((LibraryKind)kind, F32, true, "cuDNN 9.28.1 engine 67 as planned");
		check_plan((LibraryKind)kind, BF16, false, "cuDNN 9.28.1 engine 67 as planned");
	}
}

/* ---- refused plans */
static void
expect_refusal(const LibraryHome *home, const LibraryPlan *plan, int64_t limit, int exit_code,
               const char *words)
{
	LibraryCall w = call_of(LIBRARY_CONV, F32);
	Library *library = open_library(home);
	PreparedCall *call;

	Status status = ops->rebuild(library, &w, plan, limit, &call);
	assert_null(call);
	expect_status(status, exit_code, words);
	must(ops->prepare(library, &w, 0, LIMIT, &call)); /* the runtime goes on without the plan */
	ops->release(call);
	close_library(library);
}

static void
test_other_versions_and_gpus(void **state)
{
	LibraryCall w = call_of(LIBRARY_CONV, F32);
	LibraryHome home = h100;
	Text text = {0};

	(void)state;
	make_plan("sm_90", &w, false, &text);
	const LibraryPlan good = {"cuDNN 9.28.1", text.at, 90, 132};
	LibraryPlan plan = good;
	plan.version = "cuDNN 9.28.0";
	expect_refusal(&h100, &plan, LIMIT, EXIT_UNSUPPORTED, "made with cuDNN 9.28.0 for");
	home.capability = 100;
	expect_refusal(&home, &good, LIMIT, EXIT_UNSUPPORTED, "compute capability 9.0 with 132");
	home = h100;
	home.processors = 114;
	expect_refusal(&home, &good, LIMIT, EXIT_UNSUPPORTED, "with 132 multiprocessors");
	expect_refusal(&h100, &good, SCRATCH - 1, EXIT_UNSUPPORTED, "more than 4095 bytes");
	setenv("FAKE_CUDNN_DEVICE", "1000", 1);
	expect_refusal(&h100, &good, LIMIT, EXIT_SYSTEM,
	               "a plan is not for this GPU: CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH");
	unsetenv("FAKE_CUDNN_DEVICE");
	text.at[text.n / 2] = '"';
	expect_refusal(&h100, &good, LIMIT, EXIT_SYSTEM, "CUDNN_STATUS_BAD_PARAM");
	text_free(&text);
}

/* A plan whose engine would not have been chosen from the heuristic's list. */
static void
test_engines_are_looked_at_again(void **state)
{
	LibraryCall w = call_of(LIBRARY_CONV, F32);
	Text text = {0};

	(void)state;
	make_plan("sm_90", &w, true, &text);
	const LibraryPlan plan = {"cuDNN 9.28.1", text.at, 90, 132};
	expect_refusal(&h100, &plan, LIMIT, EXIT_UNSUPPORTED, "an engine that gradc refuses");
	text_free(&text);
}

/* A library without a GPU reports it, and is asked only once. */
static void
test_no_handle(void **state)
{
	LibraryCall w = call_of(LIBRARY_CONV, F32);
	Library *library = open_library(&h100);
	PreparedCall *call;

	(void)state;
	assert_null(ops->fault(library));
	setenv("FAKE_CUDNN_NO_GPU", "1", 1);
	for (int i = 0; i < 2; i++) {
		expect_status(ops->prepare(library, &w, 0, LIMIT, &call), EXIT_SYSTEM,
		              "cuDNN: it does not start: CUDNN_STATUS_NOT_INITIALIZED");
		assert_null(call);
		unsetenv("FAKE_CUDNN_NO_GPU");
	}
	assert_string_equal(ops->fault(library),
	                    "cuDNN: it does not start: CUDNN_STATUS_NOT_INITIALIZED");
	close_library(library);
}

int
main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_gpus_are_described),
		cmocka_unit_test(test_plans_run),
		cmocka_unit_test(test_other_versions_and_gpus),
		cmocka_unit_test(test_engines_are_looked_at_again),
		cmocka_unit_test(test_no_handle),
	};

	if (find_library(argc, argv, ops))
		return 0;
	return cmocka_run_group_tests(tests, NULL, NULL);
}

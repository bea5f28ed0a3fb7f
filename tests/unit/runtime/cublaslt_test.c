/* cuBLASLt's products against naive sums: layouts, batches, types, epilogues; refused calls; finding the library. The
 * library is a pretended one (tests/cuda/programs/fake_cublaslt.c), which checks its arguments and computes on the host at
 * once. */
#include "runtime/library/cublaslt.h"
#include "tests/unit/runtime/found_library.h"
#include "tests/unit/runtime/naive_library.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const LibraryOps *const ops = &library_cublaslt;
enum { LIMIT = 32 << 20, SCRATCH = 4096, SCRATCH_ALIGNMENT = 256 };

static Library *
open_library(bool tf32)
{
	Library *library;

	must(ops->open(&(LibraryHome){.machine = "pretended", .tf32 = tf32}, &library));
	return library;
}

static void
close_library(Library *library)
{
	assert_int_equal(count_alive("libcublasLt.so.13", "fake_cublaslt_alive"),
	                 1); /* the library's own handle */
	ops->close(library);
	assert_int_equal(count_alive("libcublasLt.so.13", "fake_cublaslt_alive"), 0);
}

/* ---- products */
static char *
run_product(Library *library, const LibraryCall *w, char *const *buffers)
{
	PreparedCall *call;

	must(ops->prepare(library, w, 3, LIMIT, &call));
	assert_int_equal(ops->scratch(call), SCRATCH);
	assert_int_equal(ops->packed_bytes(call, X) + ops->packed_bytes(call, Y), 0);
	char *scratch = aligned_alloc(SCRATCH_ALIGNMENT, SCRATCH);
	must(ops->run(call, (void *const *)buffers, (char *const[]){NULL, NULL}, scratch, NULL));
	ops->release(call);
	free(scratch);
	return buffers[Z];
}

static void
fill(const LibraryCall *w, char *at)
{
	for (int64_t e = 0; e < elements(w, Z); e++)
		dtype_store_float((DType)w->operands[Z].dtype, at, e, 0.25 * (double)(e % 7));
}

static void
check_product(Library *library, const LibraryCall *w)
{
	bool apart = w->beta && !library_adds_in_place(w);
	char *buffers[N_LIBRARY_OPERANDS] = {buffer_new(w, X), buffer_new(w, Y), buffer_new(w, Z),
	                                     w->epilogue ? buffer_new(w, LIBRARY_BIAS) : NULL,
	                                     apart ? buffer_new(w, LIBRARY_ADDED) : NULL};
	char *before = buffer_new(w, Z);

	if (w->beta && !apart)
		buffers[LIBRARY_ADDED] = buffers[Z];
	if (w->beta) {
		fill(w, buffers[Z]);
		fill(w, before);
	}
	run_product(library, w, buffers);
	compare_result(w, buffers, before);
	free(before);
	for (int i = 0; i < N_LIBRARY_OPERANDS; i++)
		if (i != LIBRARY_ADDED || apart)
			free(buffers[i]);
}

typedef struct {
	int64_t m, n, k;
} Sizes;
static const Sizes sizes[] = {{7, 5, 3}, {4, 16, 8}, {1, 6, 5}, {6, 1, 5}, {5, 6, 1}, {1, 1, 9}};
typedef struct {
	int n;
	int64_t dims[3];
} Batch;
static const Batch batches[] = {{0, {0}}, {1, {3}}, {2, {2, 3}}, {2, {3, 2}}, {3, {2, 4, 2}}};
static const Types types[] = {{F32, F32}, {BF16, F32}, {BF16, BF16}, {F16, F16}, {F16, F32}};
enum { N_STORED = 8 }; /* bits: x, y, z is stored transposed */

static LibraryCall
product_of(const Sizes *s, const Batch *b, unsigned stored, int64_t gap, int64_t offset)
{
	Case c = {.rank = b->n + 2,
	          .m = s->m,
	          .n = s->n,
	          .k = s->k,
	          .x_transposed = stored & 1,
	          .y_transposed = stored >> 1 & 1,
	          .z_transposed = stored >> 2 & 1,
	          .gap = gap,
	          .offset = offset};

	memcpy(c.batch, b->dims, sizeof(c.batch));
	return dot_of(&c, F32);
}

/* Is the result stored by columns? Then it cannot have a bias. */
static bool
is_by_columns(const LibraryCall *w)
{
	const LibraryOperand *z = &w->operands[Z];

	return z->dims[z->rank - 1] > 1 && z->strides[z->rank - 1] > 1;
}

static void
check_epilogues(Library *library, LibraryCall w, Types t)
{
	Text why = {0};

	enum { PLAIN, IN_PLACE, APART, N_BETAS };
	for (int i = 0; i < 2 * N_BETAS; i++) {
		w.beta = 0;
		if (i % N_BETAS != PLAIN)
			add_beta(&w, i % N_BETAS == IN_PLACE);
		if (i == N_BETAS)
			add_bias(&w);
		if (w.epilogue && is_by_columns(&w))
			return;
		set_types(&w, t);
		if (!library_call_check(&w, &why))
			fail_msg("%s", why.at);
		check_product(library, &w);
	}
}

static void
test_products(void **state)
{
	(void)state;
	for (int s = 0; s < COUNT(sizes); s++)
		for (int b = 0; b < COUNT(batches); b++) {
			Library *library = open_library(
				false); /* a new library, because a library keeps a list of all shapes */
			for (unsigned stored = 0; stored < N_STORED; stored++)
				for (int64_t gap = 0; gap < 3; gap++) {
					LibraryCall w = product_of(&sizes[s], &batches[b], stored,
					                           gap, 3 * gap);
					for (int t = 0; t < COUNT(types); t++)
						check_epilogues(library, w, types[t]);
				}
			close_library(library);
		}
}

/* ---- epilogues. GELU: Hendrycks and Gimpel 2016, arXiv:1606.08415, section 2 */
static double
gelu(double x)
{
	return x / 2 * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}

static double
gelu_slope(double x)
{
	const double h = 1e-5;

	return (gelu(x + h) - gelu(x - h)) / (2 * h);
}

static void
expect_near(const LibraryCall *w, const char *what, double got, double want, double size)
{
	double operands = w->operands[X].dtype == F32 ? 1e-3 : 4e-6; /* tf32 */
	double off = rounding_of(w->operands[Z].dtype) * fabs(want) + operands * (size + 0.01);

	if (!(fabs(got - want) <= off))
		fail_msg("%s %s: %.9g instead of %.9g", epilogue_names[w->epilogue], what, got,
		         want);
}

/* The expected result, saved values and bias gradient, by naive sums. */
static void
check_values(const LibraryCall *w, char *const *buffers, const char *saved)
{
	const LibraryOperand *b = &w->operands[LIBRARY_BIAS], *y = &w->operands[Y];
	int64_t n = elements(w, Z);
	Wanted *r = malloc(sizeof(*r) * (size_t)n);

	for (int64_t e = 0; e < n; e++)
		r[e] = (Wanted){NAN, 0};
	want_dot(w, buffers, r);
	for (int64_t e = 0; e < n; e++) {
		if (isnan(r[e].value))
			continue;
		double x = r[e].value;
		double z = w->epilogue == EPILOGUE_DGELU
		                   ? x * gelu_slope(dtype_load_float(
						 (DType)w->operands[LIBRARY_AUX].dtype, saved, e))
		           : w->epilogue == EPILOGUE_BGRAD ? x
		                                           : gelu(x);
		expect_near(w, "result", element_of(w, buffers, Z, e), z, r[e].size);
		if (library_has_operand(w, LIBRARY_AUX) && library_writes(w, LIBRARY_AUX))
			expect_near(w, "aux", element_of(w, buffers, LIBRARY_AUX, e), x, r[e].size);
	}
	for (int64_t c = 0; w->epilogue == EPILOGUE_BGRAD && c < b->dims[0]; c++) {
		Wanted sum = {0};
		for (int64_t k = 0; k < y->dims[0]; k++)
			add_term(&sum, element_of(w, buffers, Y, place(w, Y, 0, k, c)));
		expect_near(w, "bias", element_of(w, buffers, LIBRARY_BIAS, b->offset + c),
		            sum.value, sum.size);
	}
	free(r);
}

static void
check_epilogue(Library *library, const LibraryCall *w)
{
	Text why = {0};
	char *buffers[N_LIBRARY_OPERANDS] = {0};

	if (!library_call_check(w, &why))
		fail_msg("%s", why.at);
	for (int i = 0; i < N_LIBRARY_OPERANDS; i++)
		buffers[i] = library_has_operand(w, i) ? buffer_new(w, i) : NULL;
	char *saved = buffer_new(w, LIBRARY_AUX);
	run_product(library, w, buffers);
	check_values(w, buffers, saved);
	free(saved);
	for (int i = 0; i < N_LIBRARY_OPERANDS; i++)
		free(buffers[i]);
}

static void
test_epilogues(void **state)
{
	static const Sizes even[] = {{16, 24, 5}, {8, 8, 1}, {24, 16, 9}};
	Library *library = open_library(true);

	(void)state;
	for (int s = 0; s < COUNT(even); s++)
		for (int b = 0; b < COUNT(batches); b++)
			for (int i = 0; i < N_STORED * COUNT(types) * N_EPILOGUES; i++) {
				LibraryCall w = product_of(&even[s], &batches[b], i % N_STORED,
				                           8 * (i & 1), 0);
				add_epilogue(&w, (LibraryEpilogue)(i / N_STORED / COUNT(types)));
				set_types(&w, types[i / N_STORED % COUNT(types)]);
				if (w.epilogue <= EPILOGUE_BIAS ||
				    (w.epilogue == EPILOGUE_BGRAD && batches[b].n) ||
				    (library_has_operand(&w, LIBRARY_BIAS) && is_by_columns(&w)))
					continue;
				check_epilogue(library, &w);
			}
	close_library(library);
}

/* In f32 the loops' tanh is better than the library's. The library refuses a GELU whose saved rows are not aligned. */
static void
test_where_epilogues_pay(void **state)
{
	Library *exact = open_library(false);
	LibraryCall w = product_of(&(Sizes){16, 24, 5}, &batches[0], 0, 0, 0);
	PreparedCall *call;

	(void)state;
	for (int e = 0; e < N_EPILOGUES; e++) {
		add_epilogue(&w, (LibraryEpilogue)e);
		set_types(&w, types[0]);
		Status status = ops->prepare(exact, &w, 0, LIMIT, &call);
		if (e > EPILOGUE_BIAS && e != EPILOGUE_BGRAD)
			expect_status(status, EXIT_UNSUPPORTED, "a GELU in f32 is loops");
		else
			must(status);
		ops->release(call);
	}
	set_types(&w, types[2]);
	add_epilogue(&w, EPILOGUE_DGELU);
	w.operands[LIBRARY_AUX].strides[0] = w.operands[Z].strides[0] = 28;
	set_types(&w, types[2]);
	expect_status(ops->prepare(exact, &w, 0, LIMIT, &call), EXIT_UNSUPPORTED, "multiples of 8");
	close_library(exact);
}

/* Operands with gaps behind their rows, each beginning at another element. */
static void
test_parts_of_tensors(void **state)
{
	static const int64_t columns[] = {20, 24, 28};
	Library *library = open_library(false);

	(void)state;
	for (int b = 0; b < COUNT(batches); b++) {
		LibraryCall w = product_of(&sizes[0], &batches[b], 0, 0, 0);
		for (int i = X; i <= Z; i++) {
			LibraryOperand *o = &w.operands[i];
			int64_t stride = o->strides[o->rank - 2] = columns[i];
			o->offset = 5 + i;
			for (int a = (int)o->rank - 3; a >= 0; a--) {
				o->strides[a] = stride = stride * 8 + 2;
			}
		}
		check_epilogues(library, w, types[0]);
		check_epilogues(library, w, types[2]);
	}
	close_library(library);
}

/* One matrix for a whole batch. Records do not have such strides yet. */
static void
test_broadcast_batches(void **state)
{
	Library *library = open_library(false);

	(void)state;
	for (int b = 1; b < COUNT(batches); b++)
		for (int i = X; i <= Y; i++)
			for (int axis = 0; axis < batches[b].n; axis++) {
				LibraryCall w = product_of(&sizes[0], &batches[b], 0, 0, 0);
				w.operands[i].strides[axis] = 0;
				check_product(library, &w);
			}
	close_library(library);
}

/* f32 operands lose exactly 13 bits; 16-bit operands lose no bits. */
static void
test_tf32(void **state)
{
	Library *rough = open_library(true), *exact;
	LibraryCall w = product_of(&(Sizes){1, 1, 1}, &batches[0], 0, 0, 0);
	_Alignas(64) float x = 1 + 0x1p-10f + 0x1p-12f, y = 3, z = 0;
	char *buffers[N_LIBRARY_OPERANDS] = {(char *)&x, (char *)&y, (char *)&z, NULL};

	(void)state;
	run_product(rough, &w, buffers);
	assert_true(z == 3 * (1 + 0x1p-10f));
	ops->close(rough);
	exact = open_library(false);
	run_product(exact, &w, buffers);
	assert_true(z == 3 * x);
	close_library(exact);
	rough = open_library(true);
	w = product_of(&sizes[0], &batches[1], 0, 0, 0);
	set_types(&w, types[2]);
	check_product(rough, &w);
	close_library(rough);
}

/* ---- plans */
static LtPlan
plan_of(const LibraryCall *w)
{
	LtPlan p;

	must(cublaslt_plan(w, &p));
	return p;
}

/* The library takes the longest batch axis, so that there are few runs. */
static void
test_few_runs(void **state)
{
	static const int64_t runs[] = {1, 1, 2, 2, 4};

	(void)state;
	for (int b = 0; b < COUNT(batches); b++) {
		LibraryCall w = product_of(&sizes[0], &batches[b], 0, 0, 0);
		assert_int_equal(plan_of(&w).runs, runs[b]);
	}
}

/* x is the library's b. The offsets and steps of outer axes count for the alignment; the library itself checks batch steps. */
static void
test_alignment(void **state)
{
	LibraryCall w = product_of(&(Sizes){4, 4, 4}, &batches[2], 0, 0, 0);
	static const struct {
		int64_t offset, outer;
		DType dtype;
		uint32_t alignment;
	} wanted[] = {{0, 64, F32, 32},  {4, 64, F32, 16},  {3, 64, F32, 4},  {0, 50, F32, 8},
	              {16, 64, F32, 32}, {0, 64, BF16, 32}, {1, 64, BF16, 2}, {4, 62, F16, 4}};

	(void)state;
	for (int i = 0; i < COUNT(wanted); i++) {
		w.operands[X].dtype = wanted[i].dtype;
		w.operands[X].offset = wanted[i].offset;
		w.operands[X].strides[0] = wanted[i].outer;
		assert_int_equal(plan_of(&w).matrices[LT_B].alignment, wanted[i].alignment);
	}
}

/* ---- names and messages, and refused calls */
static void
test_names(void **state)
{
	Library *library = open_library(false);
	LibraryCall w = product_of(&sizes[0], &batches[0], 0, 0, 0);
	PreparedCall *call;

	(void)state;
	assert_string_equal(ops->version(library), "cuBLASLt 13.1.0");
	must(ops->prepare(library, &w, 0, LIMIT, &call));
	assert_string_equal(ops->implementation(call), "cuBLASLt algo 7 tile 20 stages 4");
	ops->release(call);
	close_library(library);
}

static void
expect_refusal(LibraryCall w, int64_t limit, const char *words)
{
	Library *library = open_library(false);
	PreparedCall *call;

	Status status = ops->prepare(library, &w, 0, limit, &call);
	assert_null(call);
	expect_status(status, status ? status->exit_code : 0, words);
	ops->release(NULL);
	close_library(library);
}

static void
test_refusals(void **state)
{
	const LibraryCall good = product_of(&sizes[0], &batches[0], 0, 0, 0);
	LibraryCall w = good;

	(void)state;
	set_types(&w, (Types){F64, F64});
	expect_refusal(w, LIMIT, "cuBLASLt: products of f64 are loops");
	set_types(&w, (Types){F32, BF16});
	expect_refusal(w, LIMIT, "CUBLAS_STATUS_NOT_SUPPORTED");
	w = good;
	w.operands[Y].dtype = BF16;
	expect_refusal(w, LIMIT, "CUBLAS_STATUS_NOT_SUPPORTED");
	library_call_begin(&w, LIBRARY_CONV);
	expect_refusal(w, LIMIT, "cuBLASLt has no conv");
	for (int i = X; i <= Z; i++) {
		w = good;
		w.operands[i].strides[0] *= 100;
		w.operands[i].strides[1] *= 50;
		expect_refusal(w, LIMIT, "no axis of stride 1");
	}
	w = product_of(&sizes[0], &batches[0], 4, 0, 0);
	add_bias(&w);
	set_types(&w, types[0]);
	expect_refusal(w, LIMIT, "a bias is for rows");
	expect_refusal(good, SCRATCH - 1, "no algorithm");
}

/* Rows that overlap are not a matrix for the library. */
static void
test_overlapping_rows(void **state)
{
	LibraryCall w = product_of(&sizes[0], &batches[0], 0, 0, 0);

	(void)state;
	w.operands[X].strides[0] = 1;
	expect_refusal(w, LIMIT, "no axis of stride 1");
}

/* A run that the library refuses reports the refusal. */
static void
test_faults_of_runs(void **state)
{
	Library *library = open_library(false);
	LibraryCall w = product_of(&sizes[0], &batches[0], 0, 0, 0);
	char *buffers[N_LIBRARY_OPERANDS] = {buffer_new(&w, X), buffer_new(&w, Y),
	                                     buffer_new(&w, Z), NULL};
	PreparedCall *call;

	(void)state;
	must(ops->prepare(library, &w, 0, LIMIT, &call));
	expect_status(
		ops->run(call, (void *const *)buffers, (char *const[]){NULL, NULL}, NULL, NULL),
		EXIT_SYSTEM, "cuBLASLt: a product failed: CUBLAS_STATUS_INVALID_VALUE");
	ops->release(call);
	for (int i = X; i <= Z; i++)
		free(buffers[i]);
	close_library(library);
}

/* ---- finding the library */
static void
test_how_it_is_found(void **state)
{
	static const char *const sonames[] = {"libcublasLt.so.13", "libcublasLt.so.12"};

	(void)state;
	check_how_it_is_found(&(FoundLibrary){
		.sonames = sonames,
		.n = COUNT(sonames),
		.symbol = "cublasLtCreate",
		.not_found = "cuBLASLt is not found (libcublasLt.so.13, libcublasLt.so.12)",
		.lacks = "cuBLASLt lacks cublasLtGetVersion: a newer one is needed",
		.version = "cuBLASLt 13.1.0",
	});
}

int
main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_products),
		cmocka_unit_test(test_epilogues),
		cmocka_unit_test(test_where_epilogues_pay),
		cmocka_unit_test(test_parts_of_tensors),
		cmocka_unit_test(test_broadcast_batches),
		cmocka_unit_test(test_tf32),
		cmocka_unit_test(test_few_runs),
		cmocka_unit_test(test_alignment),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_overlapping_rows),
		cmocka_unit_test(test_faults_of_runs),
		cmocka_unit_test(test_how_it_is_found),
	};

	if (find_library(argc, argv, ops))
		return 0;
	return cmocka_run_group_tests(tests, NULL, NULL);
}

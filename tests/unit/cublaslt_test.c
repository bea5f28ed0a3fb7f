/* cuBLASLt's products against naive sums: layouts, batches, types, epilogues; what it must refuse; how it is found. The library is a
 * pretended one (tests/cuda/fake_cublaslt.c), which checks what it is told, and computes on the host at once. */
#include "runtime/cuda/cublaslt.h"
#include "tests/unit/found_library.h"
#include "tests/unit/naive_library.h"

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
	                 1); /* its own handle */
	ops->close(library);
	assert_int_equal(count_alive("libcublasLt.so.13", "fake_cublaslt_alive"), 0);
}

/* ---- products */
static char *
run_product(Library *library, const LibraryCall *w, char *const *buffers)
{
	PreparedCall *call;

	must(ops->prepare(library, w, 3, LIMIT, &call));
	assert_true(ops->pays(call));
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
	char *buffers[] = {buffer_new(w, X), buffer_new(w, Y), buffer_new(w, Z),
	                   w->epilogue ? buffer_new(w, LIBRARY_BIAS) : NULL};
	char *before = buffer_new(w, Z);

	if (w->beta) {
		fill(w, buffers[Z]);
		fill(w, before);
	}
	run_product(library, w, buffers);
	compare_result(w, buffers, before);
	free(before);
	for (int i = 0; i < N_LIBRARY_OPERANDS; i++)
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

/* Is the result stored by columns, so that it can have no bias? */
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

	for (int i = 0; i < 4; i++) {
		w.beta = i & 1;
		if (i == 2)
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
	Library *library = open_library(false);

	(void)state;
	for (int s = 0; s < COUNT(sizes); s++)
		for (int b = 0; b < COUNT(batches); b++)
			for (unsigned stored = 0; stored < N_STORED; stored++)
				for (int64_t gap = 0; gap < 3; gap++) {
					LibraryCall w = product_of(&sizes[s], &batches[b], stored,
					                           gap, 3 * gap);
					for (int t = 0; t < COUNT(types); t++)
						check_epilogues(library, w, types[t]);
				}
	close_library(library);
}

/* An axis that is no multiple of 16 bytes, in rows that begin at such multiples, is cut, and so are two and three. */
static void
test_odd_axes_are_cut(void **state)
{
	static const Sizes odd[] = {
		{3, 259, 5}, {259, 3, 5}, {3, 5, 259}, {3, 259, 259}, {259, 259, 259}};
	Library *library = open_library(false);
	LibraryCall first, rest;

	(void)state;
	for (int s = 0; s < COUNT(odd); s++)
		for (unsigned stored = 0; stored < N_STORED; stored++) {
			LibraryCall w = product_of(&odd[s], &batches[1], stored, 1, 4);
			LibraryCall dense = product_of(&odd[s], &batches[1], stored, 0, 0);
			assert_false(cublaslt_split(&dense, &first, &rest));
			if (cublaslt_split(&w, &first, &rest))
				check_epilogues(library, w, types[0]);
		}
	LibraryCall w = product_of(&odd[4], &batches[0], 0, 1, 0);
	assert_true(cublaslt_split(&w, &first, &rest));
	assert_int_equal(first.operands[Z].dims[1], 256);
	assert_int_equal(rest.operands[Z].dims[1], 3);
	assert_int_equal(rest.operands[Z].offset, 256);
	close_library(library);
}

/* Gaps behind the rows of all operands, which begin at other elements each. */
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

/* One matrix for all of a batch. Records have no such strides yet. */
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

/* Operands of f32 lose 13 bits, and nothing else is lost. Those of 16 bits lose nothing. */
static void
test_tf32(void **state)
{
	Library *rough = open_library(true), *exact;
	LibraryCall w = product_of(&(Sizes){1, 1, 1}, &batches[0], 0, 0, 0);
	_Alignas(64) float x = 1 + 0x1p-10f + 0x1p-12f, y = 3, z = 0;
	char *buffers[] = {(char *)&x, (char *)&y, (char *)&z, NULL};

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

/* The library takes the longest axis, so that there are few runs. */
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

/* x is the library's b. Offsets and steps of outer axes count, those of the batch are the library's to see. */
static void
test_alignment(void **state)
{
	LibraryCall w = product_of(&(Sizes){4, 4, 4}, &batches[2], 0, 0, 0);
	static const struct {
		int64_t offset, outer;
		DType dtype;
		uint32_t alignment;
	} wanted[] = {{0, 64, F32, 64},  {4, 64, F32, 16},  {3, 64, F32, 4},  {0, 50, F32, 8},
	              {16, 64, F32, 64}, {0, 64, BF16, 64}, {1, 64, BF16, 2}, {4, 62, F16, 4}};

	(void)state;
	for (int i = 0; i < COUNT(wanted); i++) {
		w.operands[X].dtype = wanted[i].dtype;
		w.operands[X].offset = wanted[i].offset;
		w.operands[X].strides[0] = wanted[i].outer;
		assert_int_equal(plan_of(&w).matrices[LT_B].alignment, wanted[i].alignment);
	}
}

/* ---- what people see, and what is refused */
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
		expect_refusal(w, LIMIT, "no neighbours side by side");
	}
	w = product_of(&sizes[0], &batches[0], 4, 0, 0);
	add_bias(&w);
	set_types(&w, types[0]);
	expect_refusal(w, LIMIT, "a bias is for rows");
	expect_refusal(good, SCRATCH - 1, "no algorithm");
}

/* Rows that lie upon each other are no matrix of the library. */
static void
test_overlapping_rows(void **state)
{
	LibraryCall w = product_of(&sizes[0], &batches[0], 0, 0, 0);

	(void)state;
	w.operands[X].strides[0] = 1;
	expect_refusal(w, LIMIT, "no neighbours side by side");
}

/* A run that the library refuses says so. */
static void
test_faults_of_runs(void **state)
{
	Library *library = open_library(false);
	LibraryCall w = product_of(&sizes[0], &batches[0], 0, 0, 0);
	char *buffers[] = {buffer_new(&w, X), buffer_new(&w, Y), buffer_new(&w, Z), NULL};
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

/* ---- how it is found */
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
		cmocka_unit_test(test_odd_axes_are_cut),
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

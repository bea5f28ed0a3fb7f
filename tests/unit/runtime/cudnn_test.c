/* cuDNN's convolutions against naive sums: groups, strides, dilations, padding, one to three axes, types; forbidden engines;
 * refused calls; finding the library. The library is a pretended one (tests/cuda/programs/fake_cudnn.h), which checks its
 * arguments and computes on the host at once. */
#include "cudnn/cudnn.h"
#include "tests/unit/runtime/found_library.h"
#include "tests/unit/runtime/naive_library.h"

static const LibraryOps *const ops = &library_cudnn;
enum { LIMIT = 1 << 30, SCRATCH = 4096, SCRATCH_ALIGNMENT = 256 };

/* ---- the library */
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
	int alive = count_alive("libcudnn.so.9", "fake_cudnn_alive");

	if (alive > 1) /* the library's own handle */
		fail_msg("%d objects are alive", alive);
	ops->close(library);
	assert_int_equal(count_alive("libcudnn.so.9", "fake_cudnn_alive"), 0);
}

/* Sets the engines of the pretended heuristic, in the form that fake_cudnn_engines.c reads. */
static void
give_engines(const char *list)
{
	if (list)
		setenv("FAKE_CUDNN_ENGINES", list, 1);
	else
		unsetenv("FAKE_CUDNN_ENGINES");
}

/* ---- convolutions */
static PreparedCall *
prepare(Library *library, const LibraryCall *w)
{
	PreparedCall *call;

	must(ops->prepare(library, w, 3, LIMIT, &call));
	assert_true(ops->pays(call));
	assert_int_equal(ops->packed_bytes(call, X) + ops->packed_bytes(call, Y), 0);
	return call;
}

static void
run_call(Library *library, const LibraryCall *w, char *const *buffers)
{
	PreparedCall *call = prepare(library, w);
	char *scratch = aligned_alloc(SCRATCH_ALIGNMENT, SCRATCH);

	assert_int_equal(ops->scratch(call), SCRATCH);
	must(ops->run(call, (void *const *)buffers, (char *const[]){NULL, NULL}, scratch, NULL));
	ops->release(call);
	free(scratch);
}

static void
check_call(Library *library, const LibraryCall *w)
{
	char *buffers[N_LIBRARY_OPERANDS] = {buffer_new(w, X), buffer_new(w, Y), buffer_new(w, Z),
	                                     NULL};

	run_call(library, w, buffers);
	compare_result(w, buffers, NULL);
	for (int i = X; i <= Z; i++)
		free(buffers[i]);
}

/* The axes are x, window, y, stride, dilation, low. */
static const ConvSizes convs[] = {
	{2, 2, 1, 5, 7, {{8, 3, 8, 1, 1, 1}, {6, 3, 6, 1, 1, 1}}},
	{2, 2, 1, 3, 4, {{9, 1, 9, 1, 1, 0}, {5, 1, 5, 1, 1, 0}}},   /* 1 x 1 */
	{2, 2, 1, 3, 4, {{12, 7, 6, 2, 1, 3}, {11, 5, 4, 3, 1, 2}}}, /* strides */
	{2, 2, 3, 2, 4, {{7, 3, 7, 1, 1, 1}, {7, 3, 4, 2, 1, 1}}},   /* groups */
	{2, 2, 6, 1, 1, {{7, 3, 7, 1, 1, 1}, {7, 3, 7, 1, 1, 1}}},   /* depthwise */
	{2,
         2,
         4,
         1,
         2,
         {{7, 3, 4, 2, 1, 1}, {7, 3, 4, 2, 1, 1}}}, /* depthwise with two outputs per group */
	{2, 1, 2, 2, 3, {{13, 3, 9, 1, 2, 0}, {9, 2, 4, 2, 3, 1}}}, /* dilations */
	{2,
         1,
         1,
         2,
         3,
         {{8, 3, 4, 2, 1, 0}, {9, 4, 9, 1, 1, 1}}}, /* more padding at the end than at the begin */
	{2, 1, 1, 2, 3, {{8, 3, 7, 1, 1, 1}, {8, 2, 4, 2, 1, 0}}}, /* less padding at the end */
	{2, 1, 1, 2, 3, {{2, 5, 1, 2, 1, 1}, {3, 5, 1, 3, 1, 0}}}, /* a single window */
	{1, 3, 1, 5, 6, {{20, 9, 20, 1, 1, 4}}},
	{1, 3, 1, 5, 6, {{20, 4, 20, 1, 1, 3}}}, /* causal: no later times */
	{1, 2, 5, 1, 1, {{20, 3, 10, 2, 1, 1}}},
	{3, 1, 1, 3, 4, {{4, 3, 4, 1, 1, 1}, {7, 3, 3, 2, 1, 0}, {5, 1, 5, 1, 1, 0}}},
	{3, 1, 2, 2, 1, {{5, 2, 3, 1, 2, 0}, {3, 3, 3, 1, 1, 1}, {6, 2, 5, 1, 1, 0}}},
};
static const Types types[] = {{F32, F32}, {BF16, BF16}, {F16, F16}};

static LibraryCall
call_of(const ConvSizes *c, LibraryKind kind, Types t)
{
	LibraryCall w = conv_of(c, kind);
	Text why = {0};

	set_types(&w, t);
	if (!library_call_check(&w, &why))
		fail_msg("%s", why.at);
	return w;
}

static void
test_convolutions(void **state)
{
	Library *library = open_library(false);

	(void)state;
	for (int c = 0; c < COUNT(convs); c++)
		for (int kind = LIBRARY_CONV; kind < N_LIBRARY_KINDS; kind++)
			for (int t = 0; t < COUNT(types); t++) {
				LibraryCall w = call_of(&convs[c], (LibraryKind)kind, types[t]);
				check_call(library, &w);
			}
	close_library(library);
}

/* Each operand in turn begins inside its buffer, where the alignment is smaller. */
static void
test_parts_of_tensors(void **state)
{
	static const int64_t offsets[] = {1, 2, 3, 4, 8};
	Library *library = open_library(false);

	(void)state;
	for (int kind = LIBRARY_CONV; kind < N_LIBRARY_KINDS; kind++)
		for (int t = 0; t < COUNT(types); t++)
			for (int o = 0; o < COUNT(offsets); o++) {
				LibraryCall w = call_of(&convs[0], (LibraryKind)kind, types[t]);
				for (int i = X; i <= Z; i++)
					w.operands[i].offset = offsets[(o + i) % COUNT(offsets)];
				check_call(library, &w);
			}
	close_library(library);
}

/* Windows may end before x does, without padding behind x that would show it. */
static void
test_places_that_are_left_out(void **state)
{
	static const ConvSizes few = {2, 1, 1, 2, 3, {{8, 3, 5, 1, 1, 0}, {8, 3, 6, 1, 1, 0}}};
	Library *library = open_library(false);

	(void)state;
	for (int kind = LIBRARY_CONV; kind < N_LIBRARY_KINDS; kind++) {
		LibraryCall w = call_of(&few, (LibraryKind)kind, types[0]);
		PreparedCall *call;
		expect_status(ops->prepare(library, &w, 0, LIMIT, &call), EXIT_SYSTEM,
		              "cuDNN: no such convolution: CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH");
		assert_null(call);
	}
	close_library(library);
}

/* ---- engines */
/* f32 operands lose exactly 13 bits; 16-bit operands lose no bits. */
static void
test_tf32(void **state)
{
	static const ConvSizes one = {2, 1, 1, 1, 1, {{1, 1, 1, 1, 1, 0}, {1, 1, 1, 1, 1, 0}}};
	LibraryCall w = call_of(&one, LIBRARY_CONV, types[0]);
	_Alignas(64) float x = 1 + 0x1p-10f + 0x1p-12f, y = 3, z = 0;
	char *buffers[N_LIBRARY_OPERANDS] = {(char *)&x, (char *)&y, (char *)&z, NULL};
	Library *library = open_library(true);

	(void)state;
	run_call(library, &w, buffers);
	assert_true(z == 3 * (1 + 0x1p-10f));
	w = call_of(&convs[0], LIBRARY_CONV, types[1]);
	check_call(library, &w);
	close_library(library);
	library = open_library(false);
	w = call_of(&one, LIBRARY_CONV, types[0]);
	run_call(library, &w, buffers);
	assert_true(z == 3 * x);
	close_library(library);
}

/* The first of 8 engines has this note; the second engine has no notes. */
typedef struct {
	int note;
	bool wide, tf32,
		narrow; /* whether f32, f32 with tf32, and 16-bit types may use the engine */
} NoteRow;

static void
expect_engine(bool tf32, Types t, const char *name)
{
	Library *library = open_library(tf32);
	LibraryCall w = call_of(&convs[0], LIBRARY_CONV_GRAD_WEIGHT, t);
	PreparedCall *call = prepare(library, &w);

	assert_string_equal(ops->implementation(call), name);
	ops->release(call);
	close_library(library);
}

static void
test_notes(void **state)
{
	static const NoteRow rows[] = {
		{CUDNN_NOTE_TENSOR_CORE, false, true, true},
		{CUDNN_NOTE_ROUNDS_OPERANDS, false, false, false},
		{CUDNN_NOTE_ROUNDS_SUMS, false, false, false},
		{CUDNN_NOTE_FFT, true, true, false},
		{CUDNN_NOTE_ANY_ORDER, false, false, false},
		{CUDNN_NOTE_WINOGRAD, true, true, false},
		{CUDNN_NOTE_WINOGRAD_6, false, false, false},
		{CUDNN_NOTE_WINOGRAD_13, false, false, false},
	};
	static const char *const names[] = {"cuDNN 9.28.1 engine 6", "cuDNN 9.28.1 engine 5"};

	(void)state;
	for (int i = 0; i < COUNT(rows); i++) {
		Text list = {0};
		text_printf(&list, "5:4096:%d 6:4096:0|", 1 << rows[i].note);
		give_engines(list.at);
		expect_engine(false, types[0], names[rows[i].wide]);
		expect_engine(true, types[0], names[rows[i].tf32]);
		expect_engine(false, types[1], names[rows[i].narrow]);
		expect_engine(true, types[2], names[rows[i].narrow]);
		text_free(&list);
	}
	give_engines(NULL);
}

/* Engines are tried in the heuristic's order, then those of the fallback. */
static void
test_order(void **state)
{
	(void)state;
	give_engines("5:0:0 6:0:0|7:0:0");
	expect_engine(false, types[0], "cuDNN 9.28.1 engine 5");
	give_engines("5:0:16 6:0:16|7:0:0");
	expect_engine(false, types[0], "cuDNN 9.28.1 engine 7");
	give_engines("|7:0:0");
	expect_engine(false, types[0], "cuDNN 9.28.1 engine 7");
	give_engines("5:1073741825:0 6:1073741824:0|7:0:0");
	expect_engine(false, types[0], "cuDNN 9.28.1 engine 6");
	give_engines(NULL);
}

/* The only engine that the type allows is the last of many. */
static void
test_many_engines(void **state)
{
	Text list = {0};

	(void)state;
	for (int i = 0; i < 50; i++)
		text_printf(&list, "%d:0:16 ", i);
	text_add(&list, "50:0:0|");
	give_engines(list.at);
	expect_engine(false, types[0], "cuDNN 9.28.1 engine 50");
	text_free(&list);
	give_engines(NULL);
}

/* Padding behind x that no window reads may be set equal to the padding before x, for which there are fast engines. */
static void
test_even_padding(void **state)
{
	static const ConvSizes even = {2, 1, 1, 2, 3, {{8, 3, 4, 2, 1, 1}, {9, 3, 5, 2, 1, 1}}},
			       uneven = {2, 1, 1, 2, 3, {{8, 3, 4, 2, 1, 0}, {9, 3, 5, 2, 1, 1}}};
	static const ConvSizes *const sizes[] = {&even, &uneven};
	static const char *const names[] = {"cuDNN 9.28.1 engine 1", "cuDNN 9.28.1 engine 0"};
	Library *library = open_library(false);

	(void)state;
	for (int i = 0; i < COUNT(sizes); i++) {
		LibraryCall w = call_of(sizes[i], LIBRARY_CONV, types[0]);
		PreparedCall *call = prepare(library, &w);
		assert_string_equal(ops->implementation(call), names[i]);
		ops->release(call);
	}
	close_library(library);
}

/* Scratch comes in whole lines; an engine that needs no scratch gets no scratch. */
static void
test_scratch(void **state)
{
	LibraryCall w = call_of(&convs[0], LIBRARY_CONV, types[0]);
	char *buffers[N_LIBRARY_OPERANDS] = {buffer_new(&w, X), buffer_new(&w, Y),
	                                     buffer_new(&w, Z), NULL};
	Library *library = open_library(false);

	(void)state;
	give_engines("5:4001:0");
	PreparedCall *call = prepare(library, &w);
	assert_int_equal(ops->scratch(call), 4032);
	ops->release(call);
	give_engines("5:0:0");
	call = prepare(library, &w);
	assert_int_equal(ops->scratch(call), 0);
	must(ops->run(call, (void *const *)buffers, (char *const[]){NULL, NULL}, NULL, NULL));
	compare_result(&w, buffers, NULL);
	ops->release(call);
	give_engines(NULL);
	for (int i = X; i <= Z; i++)
		free(buffers[i]);
	close_library(library);
}

/* ---- names and messages, and refused calls */
static void
test_names(void **state)
{
	Library *library = open_library(false);

	(void)state;
	assert_string_equal(ops->version(library), "cuDNN 9.28.1");
	close_library(library);
	expect_engine(true, types[0], "cuDNN 9.28.1 engine 67");
}

static void
expect_refusal(LibraryCall w, int exit_code, const char *words)
{
	Library *library = open_library(false);
	PreparedCall *call;

	Status status = ops->prepare(library, &w, 0, LIMIT, &call);
	assert_null(call);
	expect_status(status, exit_code, words);
	ops->release(NULL);
	close_library(library);
}

static void
test_refusals(void **state)
{
	const LibraryCall good = call_of(&convs[0], LIBRARY_CONV, types[0]);
	LibraryCall w = good;

	(void)state;
	set_types(&w, (Types){F64, F64});
	expect_refusal(w, EXIT_UNSUPPORTED, "cuDNN: convolutions of f64 are loops");
	set_types(&w, (Types){BF16, F32});
	expect_refusal(w, EXIT_UNSUPPORTED, "cuDNN has no engine");
	w = good;
	add_bias(&w);
	set_types(&w, types[0]);
	expect_refusal(w, EXIT_UNSUPPORTED, "cuDNN: no conv with a bias");
	library_call_begin(&w, LIBRARY_DOT);
	expect_refusal(w, EXIT_UNSUPPORTED, "runs convolutions, not products");
	give_engines("5:1073741825:0|6:0:16");
	expect_refusal(good, EXIT_UNSUPPORTED, "cuDNN has no engine");
	give_engines("|");
	expect_refusal(good, EXIT_UNSUPPORTED, "cuDNN has no engine");
	give_engines(NULL);
}

static void
expect_fault(PreparedCall *call, char *const *buffers, char *scratch, const char *words)
{
	expect_status(
		ops->run(call, (void *const *)buffers, (char *const[]){NULL, NULL}, scratch, NULL),
		EXIT_SYSTEM, words);
}

/* A run that the library refuses reports the refusal. */
static void
test_faults_of_runs(void **state)
{
	Library *library = open_library(false);
	LibraryCall w = call_of(&convs[0], LIBRARY_CONV, types[0]);
	char *buffers[N_LIBRARY_OPERANDS] = {buffer_new(&w, X), buffer_new(&w, Y),
	                                     buffer_new(&w, Z), NULL};
	char *shifted[] = {buffers[X] + 4, buffers[Y], buffers[Z], NULL};
	char *scratch = aligned_alloc(SCRATCH_ALIGNMENT, SCRATCH);
	PreparedCall *call = prepare(library, &w);

	(void)state;
	expect_fault(call, buffers, NULL,
	             "cuDNN: a convolution failed: CUDNN_STATUS_BAD_PARAM_NULL_POINTER");
	expect_fault(call, shifted, scratch, "CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER");
	ops->release(call);
	free(scratch);
	for (int i = X; i <= Z; i++)
		free(buffers[i]);
	close_library(library);
}

/* ---- finding the library */
static void
test_how_it_is_found(void **state)
{
	static const char *const sonames[] = {"libcudnn.so.9"};

	(void)state;
	check_how_it_is_found(&(FoundLibrary){
		.sonames = sonames,
		.n = COUNT(sonames),
		.symbol = "cudnnCreate",
		.not_found = "cuDNN is not found (libcudnn.so.9)",
		.lacks = "cuDNN lacks cudnnGetVersion: a newer one is needed",
		.version = "cuDNN 9.28.1",
	});
}

int
main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_convolutions),
		cmocka_unit_test(test_parts_of_tensors),
		cmocka_unit_test(test_places_that_are_left_out),
		cmocka_unit_test(test_tf32),
		cmocka_unit_test(test_notes),
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_many_engines),
		cmocka_unit_test(test_even_padding),
		cmocka_unit_test(test_scratch),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_faults_of_runs),
		cmocka_unit_test(test_how_it_is_found),
	};

	if (find_library(argc, argv, ops))
		return 0;
	return cmocka_run_group_tests(tests, NULL, NULL);
}

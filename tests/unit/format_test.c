/* The tables: what is written is read back, and whatever else the bytes say is refused or at
 * least harmless. */
#include "tests/unit/runtime_tiny.h"

static void
test_round_trip(void **state)
{
	Arena *arena = arena_new();
	int64_t bytes;
	void *blob = tiny_blob(arena, true, &bytes);
	Format f;

	must(format_read(blob, bytes, &f));
	assert_int_equal(f.n[SECTION_PROGRAMS], 4);
	assert_string_equal(format_text(&f, f.states[1].name), "w");
	assert_string_equal(format_info_get(&f, "optimizer"), "sgd");
	assert_null(format_info_get(&f, "no such key"));
	assert_int_equal(format_state(&f, "loss.count"), 4);
	assert_int_equal(format_state(&f, "nothing"), -1);
	ProgramKey key = {.role = ROLE_UPDATE};
	assert_non_null(format_program(&f, &key));
	key.binding = 1;
	assert_null(format_program(&f, &key));
	key = (ProgramKey){.role = ROLE_UPDATE, .target = 1};
	assert_null(format_program(&f, &key));
	assert_int_equal(format_space_bytes(&f, SPACE_IO, EVERY_TARGET), 256);
	assert_int_equal(format_space_bytes(&f, SPACE_IO, 0), 256);
	assert_int_equal(format_space_bytes(&f, SPACE_IO, 1), 0);
	arena_free(arena);
}

static void
test_print_names_everything(void **state)
{
	Arena *arena = arena_new();
	int64_t bytes;
	void *blob = tiny_blob(arena, true, &bytes);
	Text text = {0};
	Format f;

	must(format_read(blob, bytes, &f));
	format_print(&text, &f, "schedule");
	assert_non_null(strstr(text.at, "program accumulate \"batch=4\":"));
	assert_non_null(strstr(text.at, "run k_diff ("));
	assert_non_null(strstr(text.at, "wait event 0"));
	assert_non_null(strstr(text.at, "loc \"/Mul\""));
	format_print(&text, &f, "memory");
	assert_non_null(strstr(text.at, "workspace  128"));
	assert_non_null(strstr(text.at, "live 11..14"));
	text_free(&text);
	arena_free(arena);
}

/* Where there is one target, text does not name it; JSON does. */
static void
test_print_names_targets(void **state)
{
	Arena *arena = arena_new();
	FormatWriter *w = format_writer_new(arena);
	Text text = {0};
	int64_t bytes;
	Format f;

	tiny_memory(w);
	tiny_programs(w, true);
	tiny_facts(w);
	w->state_bytes = TINY_STATE_BYTES;
	w->weights_bytes = 8;
	TargetRecord second = {.name = format_string(w, "wide")};
	vec_push(arena, &w->targets, second);
	for (int i = 0; i < w->kernels.n; i++)
		w->kernels.at[i].targets = 3;
	w->programs.at[w->programs.n - 1].target = 1;
	void *blob = format_finish(w, &bytes);
	must(format_read(blob, bytes, &f));
	format_print(&text, &f, "schedule");
	assert_non_null(strstr(text.at, "program accumulate \"batch=4\" for cpu-512:"));
	assert_non_null(strstr(text.at, "\"batch=4\" for wide:"));
	text.n = 0;
	format_print_json(&text, &f);
	assert_non_null(strstr(text.at, "\"target\": \"wide\""));
	text_free(&text);
	arena_free(arena);
}

/* Reads a changed copy; prints it when it is accepted. The sanitizers watch. */
static void
read_changed(const char *blob, int64_t bytes, int64_t at, char flip)
{
	char *copy = aligned_alloc(16, (size_t)(bytes + 15) / 16 * 16);
	Format f;

	memcpy(copy, blob, (size_t)bytes);
	copy[at] ^= flip;
	Status status = format_read(copy, bytes, &f);
	if (!status) {
		Text text = {0};
		format_print(&text, &f, "schedule");
		format_print(&text, &f, "memory");
		text_free(&text);
	} else {
		assert_int_equal(status->exit_code, EXIT_SYSTEM);
		assert_non_null(strstr(status->message, "executable tables: "));
	}
	status_free(status);
	free(copy);
}

static void
test_every_byte_flipped(void **state)
{
	static const char flips[] = {1, 0x10, (char)0x80, (char)0xff};
	Arena *arena = arena_new();
	int64_t bytes;
	char *blob = tiny_blob(arena, true, &bytes);

	for (int64_t i = 0; i < bytes; i++)
		for (int k = 0; k < COUNT(flips); k++)
			read_changed(blob, bytes, i, flips[k]);
	arena_free(arena);
}

static void
test_truncated(void **state)
{
	Arena *arena = arena_new();
	int64_t bytes;
	char *blob = tiny_blob(arena, true, &bytes);

	for (int64_t n = 0; n < bytes; n += 7) {
		char *copy = aligned_alloc(16, (size_t)(n + 16) / 16 * 16);
		Format f;

		memcpy(copy, blob, (size_t)n);
		Status status = format_read(copy, n, &f);
		assert_non_null(status);
		status_free(status);
		free(copy);
	}
	arena_free(arena);
}

/* All tables of the tiny executable. */
static FormatWriter *
tiny_writer(Arena *arena)
{
	FormatWriter *w = format_writer_new(arena);

	tiny_memory(w);
	tiny_programs(w, true);
	tiny_facts(w);
	w->state_bytes = TINY_STATE_BYTES;
	w->weights_bytes = 8;
	return w;
}

/* Faults that a flip would hardly find, each refused with its own words. */
static void
expect_fault(void (*spoil)(FormatWriter *w), const char *words)
{
	Arena *arena = arena_new();
	FormatWriter *w = tiny_writer(arena);
	int64_t bytes;
	Format f;

	spoil(w);
	void *blob = format_finish(w, &bytes);
	Status status = format_read(blob, bytes, &f);
	assert_non_null(status);
	if (!strstr(status->message, words))
		fail_msg("\"%s\" does not say \"%s\"", status->message, words);
	status_free(status);
	arena_free(arena);
}

static void
spoil_slot(FormatWriter *w)
{
	w->slots.at[SLOT_DIFF].offset = 120;
}
static void
spoil_kernel(FormatWriter *w)
{
	w->instructions.at[TINY_RUN].what = 99;
}
static void
spoil_loop(FormatWriter *w)
{
	w->instructions.at[TINY_RUN + 1].kind = LOOP;
}
static void
spoil_end(FormatWriter *w)
{
	w->instructions.at[TINY_RUN + 1].kind = END;
}
static void
spoil_overlap(FormatWriter *w)
{
	w->states.at[2].offset = 0;
}
static void
spoil_rows(FormatWriter *w)
{
	w->bindings.at[0].rows = 5;
}
static void
spoil_string(FormatWriter *w)
{
	w->ports.at[0].name = 1 << 20;
}
static void
spoil_dims(FormatWriter *w)
{
	w->dims.at[0] = INT64_MAX;
}
static void
spoil_data(FormatWriter *w)
{
	w->states.at[1].data_offset = 8;
}
static void
spoil_perm(FormatWriter *w)
{
	w->exports.at[1].rank = 2;
}
static void
spoil_times(FormatWriter *w)
{
	w->exports.at[1].times = (1 << 20) + 1;
}
static void
spoil_stride(FormatWriter *w)
{
	w->arguments.at[0].loop = 1;
}

static void
spoil_target(FormatWriter *w)
{
	w->programs.at[2].target = 1;
}
static void
spoil_code(FormatWriter *w)
{
	w->kernels.at[K_UPDATE].targets = 0;
}
static void
spoil_targets_of_kernel(FormatWriter *w)
{
	w->kernels.at[K_UPDATE].targets = 3;
}
static void
spoil_target_name(FormatWriter *w)
{
	w->targets.at[0].name = 1 << 20;
}
static void
spoil_count_of_targets(FormatWriter *w)
{
	TargetRecord none = {0};

	for (int i = 0; i < MAX_TARGETS; i++)
		vec_push(w->arena, &w->targets, none);
}

/* Library work in place of the first kernel. */
typedef struct {
	LibraryKind kind;
	DType dtype;
	int n;
	int64_t numbers[16];
	const char *fault; /* NULL: as it should be */
} LibraryCase;
/* The numbers of a kind in f32, and what is wrong with them. */
#define F32_CASE(kind, fault, ...)                            \
	{                                                     \
		LIBRARY_##kind, F32, 16, {__VA_ARGS__}, fault \
	}
static const LibraryCase library_cases[] = {
	/* a product of 1 x 2 and 2 x 1 */
	F32_CASE(DOT, NULL, 0, 0, 1, 0, 0, 0, 0, 1, 1, 2, 2, 1, 1, 1, 1, 1),
	F32_CASE(DOT, "no work of kind 0 in 16", 0, 0, 1, 0, 0, 0, 1, 1, 1, 2, 2, 1, 1, 1, 1, 1),
	{LIBRARY_DOT,
         F64,
         16,
         {0, 0, 1, 0, 0, 0, 0, 1, 1, 2, 2, 1, 1, 1, 1, 1},
         "no work of kind 0"},
	F32_CASE(DOT, "no work of kind 0", 0, 0, 1, 0, 0, 0, 0, 0, 1, 2, 2, 1, 1, 1, 1, 1),
	F32_CASE(DOT, "buffer 4 of 4", 0, 0, 4, 0, 0, 0, 0, 1, 1, 2, 2, 1, 1, 1, 1, 1),
	F32_CASE(DOT, "36 bytes of a slot of 32", 0, 7, 1, 0, 0, 0, 0, 1, 1, 2, 2, 1, 1, 1, 1, 1),
	F32_CASE(DOT, "of a slot of 32", 0, 0, 1, 0, 0, 0, 0, 1ll << 40, 1, 2, 1ll << 40, 1, 1, 1,
                 1, 1),
	/* with a bias of one number, and with one that is not there */
	F32_CASE(DOT, NULL, 0, 0, 1, 0, 3, 1, 0, 1, 1, 2, 2, 1, 1, 1, 1, 1),
	F32_CASE(DOT, "buffer 4 of 4", 0, 0, 1, 0, 5, 0, 0, 1, 1, 2, 2, 1, 1, 1, 1, 1),
	F32_CASE(DOT, "12 bytes of a slot of 8", 0, 0, 1, 0, 3, 2, 0, 1, 1, 2, 2, 1, 1, 1, 1, 1),
	/* one image of one channel, two places, a window of two */
	F32_CASE(CONV, NULL, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1, 2, 2, 1, 1, 1, 0),
	{LIBRARY_CONV,
         F32,
         15,
         {0, 0, 1, 0, 0, 0, 1, 1, 1, 1, 2, 2, 1, 1, 1},
         "no work of kind 1 in 15"},
	F32_CASE(CONV, "no work of kind 1", 0, 0, 1, 0, 0, 0, 1, 1, 1, 1, 2, 2, 1, 0, 1, 0),
	F32_CASE(CONV, "no work of kind 1", 0, 0, 1, 0, 0, 0, 1, 1, 1, 1, 2, 2, 1, 1, 1, -1),
	F32_CASE(CONV_GRAD_INPUT, "36 bytes of a slot of 32", 0, 0, 1, 0, 0, 0, 1, 1, 1, 1, 9, 2, 8,
                 1, 1, 0),
	F32_CASE(CONV, "no work of kind 1", 0, 0, 1, 0, 0, 0, 1, 1ll << 40, 1ll << 40, 1, 2, 2, 1,
                 1, 1, 0),
	F32_CASE(CONV_GRAD_WEIGHT, "of a slot of 32", 0, 0, 1, 0, 0, 0, 1ll << 40, 1, 1ll << 40, 1,
                 2, 2, 1, 1, 1, 0),
	/* with a bias for two channels; adjoints have none */
	F32_CASE(CONV, NULL, 0, 0, 1, 0, 3, 0, 1, 1, 1, 2, 2, 2, 1, 1, 1, 0),
	F32_CASE(CONV_GRAD_WEIGHT, "no work of kind 3", 0, 0, 1, 0, 3, 0, 1, 1, 1, 1, 2, 2, 1, 1, 1,
                 0),
	{N_LIBRARY_KINDS, F32, 16, {0}, "library call 0: kind 4"},
};
static const LibraryCase *library_case; /* that add_library adds */

static void
add_library(FormatWriter *w)
{
	const LibraryCase *c = library_case;
	LibraryRecord r = {.kind = c->kind,
	                   .dtype = c->dtype,
	                   .first = format_dims(w, c->n, c->numbers),
	                   .n = (uint32_t)c->n};

	vec_push(w->arena, &w->library, r);
	w->kernels.at[K_DIFF].library = (uint32_t)w->library.n;
}
static void
spoil_library_index(FormatWriter *w)
{
	w->kernels.at[K_DIFF].library = 1;
}
/* Work that fits is read, printed, and survives whatever else its numbers say. */
static void
check_library(const LibraryCase *c, const char *printed)
{
	Arena *arena = arena_new();
	FormatWriter *w = tiny_writer(arena);
	int64_t bytes;
	Text text = {0};
	Format f;

	library_case = c;
	add_library(w);
	char *blob = format_finish(w, &bytes);
	must(format_read(blob, bytes, &f));
	format_print(&text, &f, "schedule");
	assert_non_null(strstr(text.at, printed));
	text_free(&text);
	for (int64_t i = 0; i < bytes; i++)
		read_changed(blob, bytes, i, (char)0xff);
	arena_free(arena);
}

static void
test_library_work(void **state)
{
	static const char *const printed[] = {
		"dot f32 x[1,2] by [2,1] y[2,1] by [1,1] z[1,1] by [1,1]",
		"dot f32 x[1,2] by [2,1] y[2,1] by [1,1] z[1,1] by [1,1] bias [1]",
		"conv f32 x[1,1,2] w[1,1,2] y[1,1,1] stride [1] dilation [1] low [0] groups 1",
		"conv f32 x[1,1,2] w[2,1,2] y[1,2,1] stride [1] dilation [1] low [0] groups 1 bias [2]",
	};
	int n = 0;

	for (int i = 0; i < COUNT(library_cases); i++)
		if (!library_cases[i].fault)
			check_library(&library_cases[i], printed[n++]);
	assert_int_equal(n, COUNT(printed));
}

static void
test_faults_are_named(void **state)
{
	expect_fault(spoil_slot, "slot 8 ends at 152, its workspace region at 128");
	expect_fault(spoil_kernel, "kernel 99 of 5");
	expect_fault(spoil_loop, "loops do not end");
	expect_fault(spoil_end, "END without LOOP");
	expect_fault(spoil_overlap, "\"w\" and \"grad.w\" overlap");
	expect_fault(spoil_rows, "has 4 rows, the binding 5");
	expect_fault(spoil_string, "string reference 1048576");
	expect_fault(spoil_dims, "dimension 0");
	expect_fault(spoil_data, "data at 8 of 8 bytes");
	expect_fault(spoil_perm, "rank 2, its state has 0");
	expect_fault(spoil_times, "1048577 times");
	expect_fault(spoil_library_index, "kernel 0: library call 1 of 0");
	for (int i = 0; i < COUNT(library_cases); i++) {
		library_case = &library_cases[i];
		if (library_case->fault)
			expect_fault(add_library, library_case->fault);
	}
	expect_fault(spoil_stride, "loop 1 of 0");
	expect_fault(spoil_target, "program 2: target 1 of 1");
	expect_fault(spoil_code, "kernel 2 has no code for target 0");
	expect_fault(spoil_targets_of_kernel, "kernel 2: targets 3 of 1");
	expect_fault(spoil_target_name, "string reference 1048576");
	expect_fault(spoil_count_of_targets, "33 targets, at most 32");
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_print_names_everything),
		cmocka_unit_test(test_print_names_targets),
		cmocka_unit_test(test_every_byte_flipped),
		cmocka_unit_test(test_truncated),
		cmocka_unit_test(test_library_work),
		cmocka_unit_test(test_faults_are_named),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

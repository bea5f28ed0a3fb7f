/* The tables: what is written is read back; any other bytes are refused or at least harmless. */
#include "tests/unit/format/changed_tables.h"

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
	assert_non_null(strstr(text.at, "kernel k_diff (f64 32 read, f64 32 read, f64 8 read, "
	                                "f64 32 write): 4 iterations"));
	assert_non_null(strstr(text.at, "wait event 0"));
	assert_non_null(strstr(text.at, "loc \"/Mul\""));
	format_print(&text, &f, "memory");
	assert_non_null(strstr(text.at, "workspace  128"));
	assert_non_null(strstr(text.at, "live 11..14"));
	text_free(&text);
	arena_free(arena);
}

/* If there is only one target, the text does not name it; JSON does. */
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
	void *blob;
	must(format_finish(w, &blob, &bytes));
	must(format_read(blob, bytes, &f));
	format_print(&text, &f, "schedule");
	assert_non_null(strstr(text.at, "program accumulate \"batch=4\" for cpu-512:"));
	assert_non_null(strstr(text.at, "\"batch=4\" for wide:"));
	text.n = 0;
	format_print_json(&text, &f, NULL);
	assert_non_null(strstr(text.at, "\"target\": \"wide\""));
	text_free(&text);
	arena_free(arena);
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
spoil_state_bytes(FormatWriter *w)
{
	w->states.at[1].bytes = 16;
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

/* Changes to kernels and their launches. The first arguments are those of K_DIFF: {row, row, number, row}. */
static void
spoil_count(FormatWriter *w)
{
	w->instructions.at[TINY_RUN].n_args = 3;
}
static void
spoil_bytes(FormatWriter *w)
{
	w->slots.at[SLOT_DIFF].bytes -= 8;
}
static void
spoil_region(FormatWriter *w)
{
	w->slots.at[SLOT_DIFF].space = SPACE_PINNED;
}
static void
spoil_port_region(FormatWriter *w)
{
	w->slots.at[SLOT_Y].space = SPACE_STEP_HOST;
}
static void
spoil_type(FormatWriter *w)
{
	w->slots.at[SLOT_DIFF].dtype = U64;
}
static void
spoil_swap(FormatWriter *w)
{
	w->arguments.at[w->instructions.at[TINY_RUN].args].slot = SLOT_SUM;
}
static void
spoil_argument_bytes(FormatWriter *w)
{
	w->kernel_arguments.at[2].bytes = INT64_MAX;
}
static void
spoil_argument_sign(FormatWriter *w)
{
	w->kernel_arguments.at[2].bytes = -8;
}
static void
spoil_argument_access(FormatWriter *w)
{
	w->kernel_arguments.at[2].access = 8;
}
static void
spoil_arguments(FormatWriter *w)
{
	w->kernels.at[K_ADD_ONE].first_argument++;
}
static void
spoil_team(FormatWriter *w)
{
	w->kernels.at[K_EVAL].team = 3;
}
static void
spoil_no_team(FormatWriter *w)
{
	w->kernels.at[K_EVAL].team = 0;
}
static void
spoil_shared_bytes(FormatWriter *w)
{
	w->kernels.at[K_EVAL].shared_bytes = -1;
}

/* Many kernels that all have the same long list of arguments. */
static void
spoil_shared_arguments(FormatWriter *w)
{
	const KernelRecord k = w->kernels.at[K_EVAL];

	for (int i = 0; i < 10000; i++)
		vec_push(w->arena, &w->kernel_arguments, w->kernel_arguments.at[0]);
	for (int i = 0; i < 500; i++) {
		vec_push(w->arena, &w->kernels, k);
		w->kernels.at[w->kernels.n - 1].first_argument = 0;
		w->kernels.at[w->kernels.n - 1].n_arguments = (uint32_t)w->kernel_arguments.n;
	}
}
static void
spoil_shared_text(FormatWriter *w)
{
	enum { LONG = 100000 };
	char *text = arena_alloc(w->arena, LONG + 1);

	memset(text, 'x', LONG);
	for (int i = 0; i < 2000; i++)
		vec_push(w->arena, &w->info,
		         ((InfoRecord){format_string(w, "key"), format_string(w, text)}));
}
static void
spoil_shared_ports(FormatWriter *w)
{
	ProgramRecord *last = &w->programs.at[w->programs.n - 1];

	last->first_input = 0;
	last->n_inputs = 100000;
}
static void
spoil_plans(FormatWriter *w)
{
	const StrRef gpus[] = {format_string(w, "one"), format_string(w, "other")};

	for (int i = 0; i < 300; i++)
		vec_push(w->arena, &w->plans, ((PlanRecord){.gpu = gpus[i % 2]}));
}
static void
spoil_key(FormatWriter *w)
{
	w->programs.at[2].role = w->programs.at[1].role;
}

/* Each shared event has a number of its own in each of its turns, and each event of a program has another. */
static void
test_events_have_numbers_of_their_own(void **state)
{
	bool seen[N_DEVICE_EVENTS] = {false};

	(void)state;
	for (uint32_t event = 0; event < N_SHARED_EVENTS + MAX_EVENTS; event++) {
		Turn turn = event < N_SHARED_EVENTS ? event_table[event].turn : TURN_NONE;
		for (int t = 0; t < turn_copies(turn); t++) {
			const uint8_t turns[N_TURNS] = {0, (uint8_t)t, (uint8_t)t};
			uint32_t number = format_event(event, turns);
			assert_true(number < N_DEVICE_EVENTS && !seen[number]);
			seen[number] = true;
		}
	}
}

/* If each record were searched among all others, this would take a minute. */
static void
test_many_programs(void **state)
{
	enum { MANY = 50000 };
	Arena *arena = arena_new();
	FormatWriter *w = tiny_writer(arena);
	ProgramRecord empty = w->programs.at[w->programs.n - 1];
	Text text = {0};
	Format f;

	empty.first_instruction = (uint32_t)w->instructions.n;
	empty.n_instructions = 0;
	for (int i = 0; i < MANY; i++) {
		vec_push(arena, &w->bindings, w->bindings.at[0]);
		empty.binding = (uint32_t)w->bindings.n - 1;
		vec_push(arena, &w->programs, empty);
	}
	must(tiny_read(w, &f));
	assert_int_equal(f.n[SECTION_PROGRAMS], MANY + 4);
	format_print(&text, &f, "schedule");
	format_print(&text, &f, "memory");
	format_print_json(&text, &f, NULL);
	text_free(&text);
	arena_free(arena);
}

/* More records than a reference can number are refused, not truncated. */
static void
test_large_sections(void **state)
{
	Arena *arena = arena_new();
	FormatWriter *w = tiny_writer(arena);
	int64_t bytes;
	void *blob;

	w->literal.n = INT64_C(3) << 30; /* nothing reads the bytes */
	Status status = format_finish(w, &blob, &bytes);
	assert_non_null(status);
	assert_null(blob);
	assert_int_equal(status->exit_code, EXIT_UNSUPPORTED);
	assert_string_equal(status->message,
	                    "the model has 3221225472 bytes of the exported model, "
	                    "an executable's tables at most 2147483647");
	status_free(status);
	arena_free(arena);
}

static void
test_faults_are_named(void **state)
{
	expect_fault(spoil_slot, "slot 8 ends at 152, its workspace region at 128");
	expect_fault(spoil_kernel, "kernel 99 of 6");
	expect_fault(spoil_loop, "loops do not end");
	expect_fault(spoil_end, "END without LOOP");
	expect_fault(spoil_overlap, "\"w\" and \"grad.w\" overlap");
	expect_fault(spoil_rows, "has 4 rows, the binding 5");
	expect_fault(spoil_string, "string reference 1048576");
	expect_fault(spoil_dims, "dimension 0");
	expect_fault(spoil_state_bytes, "state 1: 16 bytes at 0 need 8");
	expect_fault(spoil_data, "data at 8 of 8 bytes");
	expect_fault(spoil_perm, "rank 2, its state has 0");
	expect_fault(spoil_times, "1048577 times");
	expect_fault(spoil_count, "instruction 11: 3 arguments, kernel 0 has 4");
	expect_fault(spoil_bytes, "argument 3 is 24 bytes of f64, kernel 0 has 32 of f64");
	expect_fault(spoil_region, "lies in pinned, which not every run of it has");
	expect_fault(spoil_port_region, "lies in step.host, which not every run of it has");
	expect_fault(spoil_type, "argument 3 is 32 bytes of u64, kernel 0 has 32 of f64");
	expect_fault(spoil_swap, "argument 0 is 8 bytes of f64, kernel 0 has 32 of f64");
	expect_fault(spoil_argument_bytes, "kernel 0 has 9223372036854775807 of f64");
	expect_fault(spoil_argument_sign, "argument 2 of kernels: -8 bytes");
	expect_fault(spoil_argument_access, "argument 2 of kernels: 8 bytes, dtype 0, access 8");
	expect_fault(spoil_arguments, "kernel 5: arguments 26 + 2 of 27");
	expect_fault(spoil_team, "kernel 4: team of 3");
	expect_fault(spoil_no_team, "kernel 4: team of 0");
	expect_fault(spoil_shared_bytes, "team of 1 with -1 bytes");
	expect_fault(spoil_stride, "loop 1 of 0");
	expect_fault(spoil_target, "program 2: target 1 of 1");
	expect_fault(spoil_code, "kernel 2 has no code for target 0");
	expect_fault(spoil_targets_of_kernel, "kernel 2: targets 3 of 1");
	expect_fault(spoil_target_name, "string reference 1048576");
	expect_fault(spoil_shared_arguments, "arguments of kernels are named ");
	expect_fault(spoil_shared_text, "the names of all records have more than ");
	expect_fault(spoil_shared_ports, "ports are named 100");
	expect_fault(spoil_plans, "plans are for another GPU than the one before 299 times");
	expect_fault(spoil_key, "program 2: an earlier program has the same role");
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
		cmocka_unit_test(test_large_sections),
		cmocka_unit_test(test_events_have_numbers_of_their_own),
		cmocka_unit_test(test_many_programs),
		cmocka_unit_test(test_faults_are_named),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The shares of ranks: parts and rooms for any number of ranks, and the check of tables for the run at hand. */
#include "runtime/comm/comm.h"
#include "runtime/exec/exec.h"
#include "tests/unit/runtime/runtime_tiny.h"

enum { BLOCK = 4096 };

static SlotPlace
place_of(int64_t n, SlotShare share, int ranks, int rank, int64_t iteration)
{
	const Slot s = {.dtype = F32,
	                .offset = 128,
	                .bytes = 4 * n,
	                .share = share,
	                .block = share == SLOT_WHOLE ? 0 : BLOCK};
	const RunFacts facts = {.ranks = ranks, .rank = rank};
	SlotPlace place;

	assert_true(format_place(&s, &facts, iteration, &place));
	return place;
}

/* Parts follow each other and make up the whole, in whole blocks; a room holds the largest part. */
static void
test_parts_and_rooms(void **state)
{
	const int64_t sizes[] = {1, 4096, 10000, 81920, 1 << 22};

	for (int i = 0; i < COUNT(sizes); i++)
		for (int ranks = 1; ranks <= 9; ranks++) {
			int64_t at = 128, largest = 0;
			for (int r = 0; r < ranks; r++) {
				SlotPlace part = place_of(sizes[i], SLOT_PART, ranks, r, 0);
				assert_true(part.offset == at);
				assert_true(r + 1 == ranks || part.bytes % (4 * BLOCK) == 0 ||
				            part.offset + part.bytes == 128 + 4 * sizes[i]);
				at += part.bytes;
				largest = part.bytes > largest ? part.bytes : largest;
			}
			assert_true(at == 128 + 4 * sizes[i]);
			SlotPlace rooms = place_of(sizes[i], SLOT_ROOMS, ranks, 0, 0);
			SlotPlace first = place_of(sizes[i], SLOT_FIRST_ROOM, ranks, 0, 0);
			assert_true(rooms.offset == 128 && rooms.bytes == ranks * first.bytes);
			assert_true(first.bytes >= largest && first.bytes % (4 * BLOCK) == 0);
			for (int r = 1; r < ranks; r++) {
				SlotShare share = r > 1 ? SLOT_LATER_ROOM : SLOT_SECOND_ROOM;
				SlotPlace next = place_of(sizes[i], share, ranks, 0, r - 2);
				assert_true(next.offset == 128 + r * first.bytes);
				assert_true(next.bytes == first.bytes);
			}
		}
}

/* A program that adds the third rank's room to this rank's part of a bucket of n elements. */
static Format
sum_tables(Arena *arena, int64_t n, int64_t region)
{
	FormatWriter *w = format_writer_new(arena);
	const KernelArgument argument = {.bytes = 4 * 16384, .dtype = F32, .access = ACCESS_READ};
	KernelRecord k = {.name = format_string(w, "k"),
	                  .targets = 1,
	                  .n_arguments = 2,
	                  .iterations = 2,
	                  .elements = 16384,
	                  .grain = 1,
	                  .team = 1};
	ProgramRecord p = {.role = ROLE_FORWARD, .bytes[SPACE_WORKSPACE] = region};
	Instruction code[] = {
		{.kind = LOOP, .what = (uint32_t)LOOP_LATER_RANKS, .only = ONLY_RANKS},
		{.kind = RUN_KERNEL, .n_args = 2, .only = ONLY_RANKS | ONLY_ORDERED},
		{.kind = END}};
	Format f;

	for (int i = 0; i < 2; i++) {
		vec_push(arena, &w->kernel_arguments, argument);
		vec_push(arena, &w->arguments,
		         ((Argument){.slot = (uint32_t)i, .loop = (uint32_t)!i}));
		vec_push(arena, &w->slots,
		         ((Slot){.space = i ? SPACE_WORKSPACE : SPACE_GATHERED,
		                 .dtype = F32,
		                 .bytes = 4 * n,
		                 .share = i ? SLOT_PART : SLOT_LATER_ROOM,
		                 .block = BLOCK}));
	}
	vec_push(arena, &w->kernels, k);
	vec_push(arena, &w->targets, ((TargetRecord){0}));
	vec_push(arena, &w->bindings, ((BindingRecord){.rows = 1}));
	for (int i = 0; i < COUNT(code); i++)
		vec_push(arena, &w->instructions, code[i]);
	p.n_instructions = COUNT(code);
	vec_push(arena, &w->programs, p);
	must(tiny_read(w, &f));
	return f;
}

/* An iteration of the kernel is 8192 elements, which suits the parts of two ranks but not those of four. */
static void
test_tables_are_proven_for_a_world(void **state)
{
	Arena *arena = arena_new();
	Format f = sum_tables(arena, 16384, 65536);
	RunFacts facts = {.holds = ONLY_RANKS | ONLY_ORDERED, .ranks = 2, .rank = 1};

	must(format_check_world(&f, &facts));
	must(format_check_world(&f, &run_alone)); /* a run of one rank does not run it */
	facts.ranks = 4;
	expect_status(format_check_world(&f, &facts), EXIT_SYSTEM,
	              "kernel 0 cannot be cut for 16384 bytes");
	arena_free(arena);
}

static void
k_nothing(void *const *b, const Scalar *scalars, int64_t begin, int64_t end)
{
}

/* The executor checks its own run's facts before it runs anything. */
static void
test_an_executor_opens_in_its_world_only(void **state)
{
	Arena *arena = arena_new();
	Format f = sum_tables(arena, 16384, 65536);
	static const CommDataOps data = {.name = "none"};
	KernelCode code = {k_nothing, kernel_facts(&f.kernels[0], f.kernel_arguments)};
	const CodeImage image = {"native", "", IMAGE_FUNCTIONS, &code, 1, 0};

	for (int ranks = 2; ranks <= 4; ranks += 2) {
		const Comm comm = {.data_ops = &data, .size = ranks, .rank = 1};
		Executor x;
		Status status = executor_open(arena, &f,
		                              &(ExecutorOptions){.ops = &device_cpu,
		                                                 .variant = &image,
		                                                 .comm = &comm,
		                                                 .ordered = true},
		                              &x);
		if (ranks == 2)
			must(status);
		else
			expect_status(status, EXIT_SYSTEM, "kernel 0 cannot be cut");
		executor_close(&x);
	}
	arena_free(arena);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parts_and_rooms),
		cmocka_unit_test(test_tables_are_proven_for_a_world),
		cmocka_unit_test(test_an_executor_opens_in_its_world_only),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Instructions that the tiny model does not need: loops with strides, `when`, copies, zeros. */
#include "runtime/exec/exec.h"
#include "tests/unit/runtime/runtime_tiny.h"

/* Counts the runs of each instruction, for the test to read. */
static void
k_count(void *const *b, const Scalar *scalars, int64_t begin, int64_t end)
{
	*(double *)b[0] += 1;
}

static const TinyKernel kernel = {"k_count", k_count, 1, 1, {ONE(BOTH)}};

typedef struct {
	Arena *arena;
	FormatWriter *w;
	Format f;
	Executor x;
} Bench;

static Bench
bench(void)
{
	Bench b = {.arena = arena_new()};
	TargetRecord target = {0};
	BindingRecord binding = {.rows = 1};

	b.w = format_writer_new(b.arena);
	tiny_add_kernel(b.w, &kernel);
	vec_push(b.arena, &b.w->bindings, binding);
	vec_push(b.arena, &b.w->targets, target);
	for (int i = 0; i < 8; i++)
		tiny_slot(b.w, SPACE_WORKSPACE, 8 * i, 8, "cell");
	tiny_slot(b.w, SPACE_WORKSPACE, 0, 64, "all");
	return b;
}

static void
add(Bench *b, InstructionKind kind, When when, uint32_t what, int n, const Argument *args)
{
	Instruction in = {.kind = kind,
	                  .when = (uint8_t)when,
	                  .what = what,
	                  .args = (uint32_t)b->w->arguments.n,
	                  .n_args = (uint16_t)n};

	for (int i = 0; i < n; i++)
		vec_push(b->arena, &b->w->arguments, args[i]);
	vec_push(b->arena, &b->w->instructions, in);
}

static void
start(Bench *b)
{
	ProgramRecord p = {.role = ROLE_FORWARD,
	                   .n_instructions = (uint32_t)b->w->instructions.n,
	                   .bytes[SPACE_WORKSPACE] = 64};
	int64_t bytes;

	vec_push(b->arena, &b->w->programs, p);
	void *blob;
	must(format_finish(b->w, &blob, &bytes));
	must(format_read(blob, bytes, &b->f));
	must(executor_open(
		b->arena, &b->f,
		&(ExecutorOptions){.ops = &device_cpu, .variant = tiny_image(b->arena, &kernel, 1)},
		&b->x));
}

static double
cell(const Bench *b, int i)
{
	return ((const double *)b->x.regions[SPACE_WORKSPACE][0].at)[i];
}

static void
finish(Bench *b)
{
	executor_close(&b->x);
	arena_free(b->arena);
}

static void
test_when(void **state)
{
	Bench b = bench();

	for (uint32_t i = 0; i < N_WHEN; i++)
		add(&b, RUN_KERNEL, (When)i, 0, 1, &(Argument){.slot = i});
	start(&b);
	for (int64_t j = 0; j < 5; j++) {
		MicroBatch micro = {j, 5};
		must(executor_run(&b.x, b.f.programs, &micro));
	}
	assert_true(cell(&b, WHEN_ALWAYS) == 5 && cell(&b, WHEN_FIRST) == 1);
	assert_true(cell(&b, WHEN_LATER) == 4 && cell(&b, WHEN_LAST) == 1);
	finish(&b);
}

/* for i < 3 { for j < 2 { cell[2i+j]++ } }; a loop without iterations; a loop that is not due. */
static void
test_loops(void **state)
{
	Bench b = bench();
	MicroBatch micro = {0, 1};
	const Argument by_outer = {.slot = 0, .loop = 1, .stride = 16};
	const Argument by_inner = {.slot = 6, .loop = 2, .stride = 8};

	add(&b, LOOP, WHEN_ALWAYS, 3, 0, NULL);
	add(&b, RUN_KERNEL, WHEN_ALWAYS, 0, 1, &by_outer);
	add(&b, LOOP, WHEN_ALWAYS, 2, 0, NULL);
	add(&b, RUN_KERNEL, WHEN_ALWAYS, 0, 1, &by_inner);
	add(&b, END, WHEN_ALWAYS, 0, 0, NULL);
	add(&b, END, WHEN_ALWAYS, 0, 0, NULL);
	for (int i = 0; i < 2; i++) {
		add(&b, LOOP, i ? WHEN_LATER : WHEN_ALWAYS, i ? 5 : 0, 0, NULL);
		add(&b, RUN_KERNEL, WHEN_ALWAYS, 0, 1, &(Argument){.slot = 5});
		add(&b, END, WHEN_ALWAYS, 0, 0, NULL);
	}
	start(&b);
	must(executor_run(&b.x, b.f.programs, &micro));
	const double want[8] = {1, 0, 1, 0, 1, 0, 3, 3};
	for (int i = 0; i < 8; i++)
		assert_true(cell(&b, i) == want[i]);
	finish(&b);
}

static void
test_copy_and_zero(void **state)
{
	Bench b = bench();
	MicroBatch micro = {0, 1};

	add(&b, RUN_KERNEL, WHEN_ALWAYS, 0, 1, &(Argument){.slot = 0});
	add(&b, COPY, WHEN_ALWAYS, 0, 2, (const Argument[]){{.slot = 3}, {.slot = 0}});
	add(&b, FILL_ZERO, WHEN_ALWAYS, 0, 1, &(Argument){.slot = 0});
	start(&b);
	must(executor_run(&b.x, b.f.programs, &micro));
	assert_true(cell(&b, 0) == 0 && cell(&b, 3) == 1);
	finish(&b);
}

/* A value that the plan frees too early is NaN when it is read. */
static void
test_poison_finds_early_reuse(void **state)
{
	Bench b = bench();
	MicroBatch micro = {0, 1};

	add(&b, FILL_ZERO, WHEN_ALWAYS, 0, 1, &(Argument){.slot = 0});
	add(&b, FILL_ZERO, WHEN_ALWAYS, 0, 1, &(Argument){.slot = 1});
	add(&b, RUN_KERNEL, WHEN_ALWAYS, 0, 1, &(Argument){.slot = 1});
	start(&b);
	b.x.poison = true;
	must(executor_run(&b.x, b.f.programs, &micro));
	assert_true(isnan(cell(&b, 0)) && isnan(cell(&b, 1)) && isnan(cell(&b, 7)));
	finish(&b);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_when),
		cmocka_unit_test(test_loops),
		cmocka_unit_test(test_copy_and_zero),
		cmocka_unit_test(test_poison_finds_early_reuse),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Collectives in the tables: faults that the reader refuses, and the memory that the communicator gets. */
#include "runtime/comm/comm.h"
#include "runtime/device/device.h"
#include "runtime/exec/exec.h"
#include "tests/unit/runtime/runtime_tiny.h"

enum { N = 1024, BYTES = 4 * N, BLOCK = 256 };
enum { OWN, OWN_PART, COPY_OF, COPY_PART, SCALARS };
enum { AT_COPY, AT_GATHER, AT_RUN };

static void
add_slot(FormatWriter *w, Space space, int64_t offset, int64_t bytes, SlotShare share)
{
	Slot s = {.space = space,
	          .dtype = F32,
	          .offset = offset,
	          .bytes = bytes,
	          .share = (uint16_t)share,
	          .block = share == SLOT_WHOLE ? 0 : BLOCK};

	vec_push(w->arena, &w->slots, s);
}

static void
k_nothing(void *const *b, const Scalar *scalars, int64_t begin, int64_t end)
{
}

/* Ranks gather their parts of a bucket; a kernel reads a scalar. */
static FormatWriter *
tables(Arena *arena)
{
	FormatWriter *w = format_writer_new(arena);
	const CollectiveRecord gather = {
		.kind = COMM_ALL_GATHER, .group = GROUP_DATA, .dtype = F32, .n = N, .block = BLOCK};
	const KernelRecord k = {.name = format_string(w, "k"),
	                        .targets = 1,
	                        .iterations = 1,
	                        .grain = 1,
	                        .team = 1,
	                        .reads_scalars = 1};

	add_slot(w, SPACE_WORKSPACE, 0, BYTES, SLOT_WHOLE);
	add_slot(w, SPACE_WORKSPACE, 0, BYTES, SLOT_PART);
	add_slot(w, SPACE_PINNED, 0, BYTES, SLOT_WHOLE);
	add_slot(w, SPACE_PINNED, 0, BYTES, SLOT_PART);
	add_slot(w, SPACE_IO, 64, SCALARS_BYTES, SLOT_WHOLE);
	tiny_add(w,
	         (Instruction){.kind = COPY,
	                       .stream = STREAM_COMMUNICATION,
	                       .only = ONLY_RANKS | ONLY_STAGED},
	         2, (const uint32_t[]){COPY_PART, OWN_PART});
	tiny_add(w,
	         (Instruction){
			 .kind = COLLECTIVE, .stream = STREAM_COMMUNICATION, .only = ONLY_RANKS},
	         4, (const uint32_t[]){OWN, OWN_PART, COPY_OF, COPY_PART});
	tiny_add(w, (Instruction){.kind = RUN_KERNEL}, 0, NULL);
	vec_push(arena, &w->kernels, k);
	vec_push(arena, &w->collectives, gather);
	vec_push(arena, &w->targets, ((TargetRecord){0}));
	vec_push(arena, &w->bindings, ((BindingRecord){.rows = 1}));
	vec_push(arena, &w->programs,
	         ((ProgramRecord){.role = ROLE_FORWARD,
	                          .n_instructions = (uint32_t)w->instructions.n,
	                          .scalars = SCALARS + 1,
	                          .bytes = {[SPACE_WORKSPACE] = BYTES,
	                                    [SPACE_IO] = 64 + SCALARS_BYTES,
	                                    [SPACE_IO_HOST] = 64 + SCALARS_BYTES}}));
	return w;
}

/* ---- refused tables */
static void
no_copies(FormatWriter *w)
{
	w->instructions.at[AT_GATHER].n_args = 2;
}
static void
copies_on_the_device(FormatWriter *w)
{
	w->arguments.at[w->instructions.at[AT_GATHER].args + 2].slot = OWN;
}
static void
another_stream(FormatWriter *w)
{
	w->instructions.at[AT_GATHER].stream = STREAM_COMPUTE;
}
static void
another_group(FormatWriter *w)
{
	w->collectives.at[0].group = GROUP_TENSOR;
}
static void
no_block(FormatWriter *w)
{
	w->collectives.at[0].block = 0;
}
static void
slot_without_block(FormatWriter *w)
{
	w->slots.at[OWN_PART].block = 0;
}
static void
too_many_elements(FormatWriter *w)
{
	w->collectives.at[0].n = 4 * N;
}
static void
unknown_collective(FormatWriter *w)
{
	w->instructions.at[AT_GATHER].what = 1;
}
static void
no_scalars(FormatWriter *w)
{
	w->programs.at[0].scalars = 0;
}
static void
unaligned_scalars(FormatWriter *w)
{
	w->slots.at[SCALARS].offset = 68;
}
static void
few_scalars(FormatWriter *w)
{
	w->slots.at[SCALARS].bytes = SCALARS_BYTES - 8;
}
static void
event_elsewhere(FormatWriter *w)
{
	w->instructions.at[AT_COPY] = (Instruction){
		.kind = RECORD, .stream = STREAM_COMMUNICATION, .what = EVENT_IO_FREE};
}

static void
unknown_mode(FormatWriter *w)
{
	w->programs.at[0].mode = 9;
}
static void
twice(FormatWriter *w)
{
	ProgramRecord again = w->programs.at[0];

	again.first_instruction = again.n_instructions;
	again.n_instructions = 0;
	vec_push(w->arena, &w->programs, again);
}
static void
parts_of_a_sum(FormatWriter *w)
{
	const StateRecord sum = {.name = format_string(w, "loss.sum"),
	                         .dtype = F32,
	                         .kind = STATE_LOSS_SUM,
	                         .bytes = 4,
	                         .sharded = 1};

	vec_push(w->arena, &w->states, sum);
	w->state_bytes = 64;
}

static const struct {
	void (*spoil)(FormatWriter *w);
	const char *words;
} faults[] = {
	{no_copies, "instruction 1: a collective with 2 arguments on communication"},
	{copies_on_the_device,
         "argument 2 of a collective lies in workspace, which the host does not read"},
	{another_stream, "a collective with 4 arguments on compute"},
	{another_group, "collective 0: group tensor: no run divides its ranks by it yet"},
	{no_block, "collective 0: blocks of 0 elements"},
	{slot_without_block, "slot 1: part in blocks of 0"},
	{too_many_elements, "instruction 1: 16384 bytes in slot 0 of 4096"},
	{unknown_collective, "instruction 1: collective 1 of 1"},
	{no_scalars, "instruction 2: kernel 0 reads scalars, the program has none"},
	{unaligned_scalars, "bytes at 68 of io"},
	{few_scalars, "program 0: scalars in"},
	{event_elsewhere, "instruction 0: io_free recorded on communication"},
	{unknown_mode, "program 0: mode 9"},
	{twice, "program 1: an earlier program has the same role"},
	{parts_of_a_sum, "state 0: ranks have parts of a loss"},
};

static void
test_faults_are_named(void **state)
{
	for (int i = 0; i < COUNT(faults); i++) {
		Arena *arena = arena_new();
		FormatWriter *w = tables(arena);
		Format f;

		faults[i].spoil(w);
		expect_status(tiny_read(w, &f), EXIT_SYSTEM, faults[i].words);
		arena_free(arena);
	}
}

/* ---- memory: a communicator of two ranks that only remembers its arguments */
static const void *given_from;
static void *given_to;

static Status
remember(CommData *data, const Collective *c, CommRequest **out)
{
	given_from = c->from;
	given_to = c->to;
	*out = (CommRequest *)(void *)&given_from;
	return NULL;
}

static Status
is_over(CommData *data, CommRequest *request, bool *done)
{
	*done = true;
	return NULL;
}

static Status
forget(CommData *data, CommRequest *request)
{
	return NULL;
}

/* Opens the tables with their code, in a group of two ranks. */
static Executor
open_rank(Arena *arena, const Comm *comm, const char *device, Format *f)
{
	Executor x;

	must(tiny_read(tables(arena), f));
	KernelCode *code = NEW(arena, KernelCode);
	CodeImage *image = NEW(arena, CodeImage);
	*code = (KernelCode){k_nothing, kernel_facts(&f->kernels[0], f->kernel_arguments)};
	*image = (CodeImage){"native", "", IMAGE_FUNCTIONS, code, 1, 0};
	must(executor_open(arena, f,
	                   &(ExecutorOptions){.ops = device_find(device),
	                                      .variant = image,
	                                      .comm = comm,
	                                      .ordered = true},
	                   &x));
	return x;
}

/* The schedule has copies to pinned memory. They are skipped if the communicator reads the device's memory. */
static void
test_copies_are_made_where_they_are_needed(void **state)
{
	const MicroBatch micro = {0, 1};
	float ones[N];
	Format f;

	for (int i = 0; i < N; i++)
		ones[i] = 1;
	for (int direct = 0; direct < 2; direct++) {
		const CommDataOps data = {.name = "fake",
		                          .reads_device_memory = direct,
		                          .start = remember,
		                          .test = is_over,
		                          .finish = forget};
		const Comm comm = {.data_ops = &data, .size = 2, .rank = 1};
		Arena *arena = arena_new();
		Executor x = open_rank(arena, &comm, "async", &f);

		must(executor_write(&x, executor_slot(&x, OWN), ones));
		must(executor_run(&x, &f.programs[0], &micro));
		must(executor_drain(&x));
		const char *at = executor_slot(&x, direct ? OWN : COPY_OF).at;
		assert_ptr_equal(given_to, at);
		assert_ptr_equal(given_from, at + BYTES / 2);
		assert_true(direct == !x.regions[SPACE_PINNED][0].at);
		assert_true(direct || ((const float *)given_from)[0] == 1);
		executor_close(&x);
		arena_free(arena);
	}
}

/* A program that a rank runs by itself starts no collective. */
static void
test_a_rank_alone_sums_nothing(void **state)
{
	static const CommDataOps data = {
		.name = "fake", .start = remember, .test = is_over, .finish = forget};
	const Comm comm = {.data_ops = &data, .size = 2, .rank = 1};
	Arena *arena = arena_new();
	Format f;
	Executor x = open_rank(arena, &comm, "cpu", &f);

	given_to = NULL;
	must(executor_run(&x, &f.programs[0], &(MicroBatch){0, 1, .alone = true}));
	must(executor_drain(&x));
	assert_null(given_to);
	must(executor_run(&x, &f.programs[0], &(MicroBatch){0, 1}));
	must(executor_drain(&x));
	assert_non_null(given_to);
	executor_close(&x);
	arena_free(arena);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_faults_are_named),
		cmocka_unit_test(test_copies_are_made_where_they_are_needed),
		cmocka_unit_test(test_a_rank_alone_sums_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

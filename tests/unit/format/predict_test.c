/* The predicted cost of a schedule, against numbers worked out by hand for a machine with round numbers; and the table of
 * real machines. */
#include "codegen/target/target.h"
#include "cost/cost.h"
#include "tests/unit/runtime/expect_status.h"

#include <math.h>

/* Nothing overlaps, so that times add up. */
static const CostFit toy_fit = {
	.cached_bytes = 1000,
	.overlap = 1,
	.step_seconds = 1e-6,
	.cached_step = 0.5,
	.alone_slowdown = 2,
	.tile_reached = 0.25,
	.call_overlap = 1,
	.split_seconds = 3e-6,
	.unaligned_memory = 0.5,
};
static const Chip toy_chip = {
	.fit = &toy_fit,
	.measured = true,
	.processors = 10,
	.most_blocks = 16,
	.most_threads = 1024,
	.busy_threads = 512,
	.sum_threads = 256,
	.shared_bytes = 1000,
	.block_shared_bytes = 50,
	.cache_rate = 1e10,
	.loop_rate[MATH_F32] = 1e9,
	.loop_rate[MATH_F64] = 5e8,
	.products[MATH_F32] = {2e9, 0.5, 0, 1, 4, 1},
	.products[MATH_F64] = {1e9, 0.5, 0, 1, 8, 1},
	.products[MATH_TF32] = {4e9, 0.5, 50, 0.5, 16, 1},
	.products[MATH_16_BITS] = {8e9, 0.8, 0, 1, 16, 0.25},
	.products[MATH_8_BITS] = {16e9, 0.5, 0, 1, 16, 1},
};
static const Machine toy = {
	.name = "toy",
	.title = "a toy",
	.target = "cuda-sm_90",
	.chip = &toy_chip,
	.memory_rate = 1e9,
	.memory_reached = 1,
	.launch = 1e-6,
	.host_rate = 1e8,
	.host_latency = 2e-6,
	.joined = 8,
	.link_rate = 1e8,
	.collective_latency = 5e-6,
	.link_hop = 1e-6,
	.network_hop = 3e-6,
};
static const Outlook alone = {.machine = &toy, .ranks = 1};

/* Equal up to a relative error of 10^-9, because the numbers are doubles. */
static void
assert_near(double got, double want)
{
	if (fabs(got - want) > 1e-9 * fabs(want))
		fail_msg("%.15g is not %.15g", got, want);
}

/* ---- utilization. The machine holds 80 blocks of 128 threads, and 40 of them keep it busy; for 512 threads 20 and 10. */
static void
test_utilization(void **state)
{
	static const struct {
		int64_t blocks, threads, shared;
		double want;
	} cases[] = {
		{80, 128, 0, 1},         /* a wave */
		{160, 128, 0, 1},        /* two waves */
		{20, 128, 0, 20 / 40.0}, /* half of the blocks that keep it busy */
		{60, 128, 0, 1},         /* less than a wave, but busy */
		{100, 128, 0,
	         100 / (80 + 40.0)},            /* a wave, and 20 blocks that take as long as 40 */
		{130, 128, 0, 1},               /* a wave, and 50 blocks */
		{5, 512, 0, 5 / 10.0},          /* larger blocks */
		{21, 512, 0, 21 / (20 + 10.0)}, /* a wave of larger blocks, and one more */
		{10, 128, 400, 10 / 20.0},      /* shared memory for two blocks per processor */
		{8, 128, 5000, 8 / 10.0},       /* shared memory for less than one block */
		{1, 16, 0, 1 / 160.0}, /* the limit of 16 blocks, though there are threads for 64 */
		{0, 128, 0, 1},        /* no work */
	};

	(void)state;
	for (int i = 0; i < COUNT(cases); i++)
		assert_near(predict_utilization(&toy_chip, 512, cases[i].blocks, cases[i].threads,
		                                cases[i].shared),
		            cases[i].want);
}

/* ---- single instructions */
static char strings[] = "\0allow_tf32\0"
			"1\0cuda-sm_90\0cpu-512\0/fc/MatMul\0batch=4";
enum {
	TEXT_ALLOW_TF32 = 1,
	TEXT_ONE = 12,
	TEXT_SM_90 = 14,
	TEXT_CPU = 25,
	TEXT_FC = 33,
	TEXT_BATCH = 44
};

static Prediction
predict_one(const Format *f, const Instruction *in, const Outlook *o, double seconds)
{
	Prediction p = predict_instruction(f, in, o);

	assert_near(p.seconds, seconds);
	return p;
}

static Prediction
predict_record(KernelRecord k, uint32_t dtype, double seconds)
{
	const KernelArgument arguments[] = {{.bytes = 8, .dtype = F32},
	                                    {.bytes = 800, .dtype = dtype}};
	const Instruction in = {.kind = RUN_KERNEL};

	k.n_arguments = 2;
	return predict_one(
		&(Format){.kernels = &k, .kernel_arguments = arguments, .strings = strings}, &in,
		&alone, seconds);
}

static void
test_kernels(void **state)
{
	KernelRecord k = {.team = 128, .iterations = 80, .flops = 1000, .bytes = 10000};
	(void)state;

	/* 10 us of memory traffic, and the launch */
	Prediction p = predict_record(k, F32, 11e-6);
	assert_int_equal(p.bound, BOUND_MEMORY);
	assert_near(p.roofline, 10e-6);
	/* 20 blocks reach half of the rate */
	k.iterations = 20;
	p = predict_record(k, F32, 21e-6);
	assert_near(prediction_of_roofline(&p), 0.5);
	assert_near(p.utilization, 0.5);
	/* 15,000 instructions: 30 us more, 60 in f64 */
	k.iterations = 80;
	k.instructions = 15000;
	assert_int_equal(predict_record(k, F32, 41e-6).bound, BOUND_COMPUTE);
	predict_record(k, F64, 71e-6);
	/* blocks that take a processor's shared memory: eight waves of ten, and instructions take twice as long */
	k.shared_bytes = 950;
	predict_record(k, F32, 1e-6 + 10e-6 + 60e-6);
	/* steps of one part, one after the other, in a single wave of blocks; in two waves */
	k.instructions = k.shared_bytes = 0;
	k.steps = 20;
	assert_int_equal(predict_record(k, F32, 31e-6).bound, BOUND_LATENCY);
	k.iterations = 160;
	predict_record(k, F32, 51e-6);
	/* data that fits into the cache: its steps are shorter, too */
	k.iterations = 80;
	k.bytes = 1000;
	predict_record(k, F32, 1e-6 + 0.1e-6 + 10e-6);
	k.steps = 0;
	assert_int_equal(predict_record(k, F32, 1.1e-6).bound, BOUND_CACHE);
	/* matrix products of f16 reach a quarter of the peak; their instructions run beside them */
	k.matrix_flops = 20000;
	k.instructions = 15000;
	assert_int_equal(predict_record(k, F16, 1e-6 + 0.1e-6 + 10e-6).bound, BOUND_COMPUTE);
	/* without a team, 12,800 iterations are 100 blocks of 128 threads */
	k = (KernelRecord){.team = 1, .iterations = 12701, .bytes = 10000};
	assert_near(predict_record(k, F32, 13e-6).utilization, 100 / 120.0);
	/* no iterations, no launch */
	k.iterations = 0;
	predict_record(k, F32, 0);
}

static void
set_product(LibraryCall *c, DType dtype, int64_t m, int64_t n, int64_t k)
{
	const int64_t dims[][2] = {{m, k}, {k, n}, {m, n}};

	library_call_begin(c, LIBRARY_DOT);
	for (int i = LIBRARY_FIRST; i <= LIBRARY_RESULT; i++) {
		LibraryOperand *o = &c->operands[i];
		*o = (LibraryOperand){.dtype = dtype, .rank = 2, .dims = {dims[i][0], dims[i][1]}};
		library_dense(o);
	}
}

/* Seconds that the operands of a product of m x k and k x n elements take to move. */
static double
moving(DType dtype, int64_t m, int64_t n, int64_t k)
{
	return 1e-9 * dtype_info[dtype].bits / 8 * (double)(m * k + k * n + m * n);
}

/* Ten tiles of 128 x 256 with sums of 128 elements: 83,886,080 FLOPs by the library, at the rates of the operands' type,
 * whatever the loops would cost. The kernel that prepares an operand for the loops is skipped. */
static void
test_products(void **state)
{
	static const struct {
		uint32_t dtype;
		double rate;
	} cases[] = {{F32, 1e9}, {F64, 0.5e9}, {BF16, 6.4e9}, {F16, 6.4e9}, {F8E4M3, 8e9}};
	enum { M = 128, N = 2560, K = 128 };
	const KernelRecord kernels[] = {
		{.team = 128, .iterations = 1, .flops = 10, .bytes = 500, .library = 1},
		{.team = 128, .iterations = 1, .bytes = 500, .serves = 1}};
	const Instruction product = {.kind = RUN_KERNEL}, pack = {.kind = RUN_KERNEL, .what = 1};
	const InfoRecord info = {TEXT_ALLOW_TF32, TEXT_ONE};
	LibraryRecord library = {0};
	const double flops = 2.0 * M * N * K;
	Format f = {.kernels = kernels, .library = &library, .info = &info, .strings = strings};

	(void)state;
	for (int i = 0; i < COUNT(cases); i++) {
		set_product(&library.call, cases[i].dtype, M, N, K);
		predict_one(&f, &product, &alone,
		            1e-6 + moving(cases[i].dtype, M, N, K) + flops / cases[i].rate);
	}
	predict_one(&f, &pack, &alone, 0);
	/* one row more is another row of tiles of 64 x 128, which are 1.15 times as slow: 3 waves in place of 2 */
	set_product(&library.call, F32, M + 1, N, K);
	predict_one(&f, &product, &alone,
	            1e-6 + moving(F32, M + 1, N, K) + 1.5 * 1.15 * flops / 1e9);
	/* a single tile: the library cuts the sum of 5120 into ten parts, one for each processor */
	set_product(&library.call, F32, 128, 256, 5120);
	predict_one(&f, &product, &alone,
	            1e-6 + moving(F32, 128, 256, 5120) + 2.0 * 128 * 256 * 5120 / 1e9 + 3e-6);
	/* rows of 129 elements of 16 bits are not aligned: a quarter of the speed, half of the memory's */
	set_product(&library.call, F16, M, N, K + 1);
	predict_one(&f, &product, &alone,
	            1e-6 + 2 * moving(F16, M, N, K + 1) + 4 * 2.0 * M * N * (K + 1) / 6.4e9);
	/* tf32: a tile begins and ends in the time of 50 elements of the sum; transposed operands take twice as long */
	f.n[SECTION_INFO] = 1;
	set_product(&library.call, F32, M, N, K);
	predict_one(&f, &product, &alone,
	            1e-6 + moving(F32, M, N, K) + 2.0 * M * N * (K + 50) / 2e9);
	library.call.operands[LIBRARY_FIRST].strides[0] = 1;
	library.call.operands[LIBRARY_FIRST].strides[1] = M;
	predict_one(&f, &product, &alone,
	            1e-6 + moving(F32, M, N, K) + 2 * 2.0 * M * N * (K + 50) / 2e9);
	/* with short sums, the memory traffic decides */
	f.n[SECTION_INFO] = 0;
	set_product(&library.call, F16, M, N, 8);
	Prediction p = predict_one(&f, &product, &alone,
	                           1e-6 + moving(F16, M, N, 8) + 2.0 * M * N * 8 / 6.4e9);
	assert_int_equal(p.bound, BOUND_COMPUTE);
}

/* Of batch axes the longest is the library's; each other index is a launch of its own. */
static void
test_batches(void **state)
{
	const KernelRecord kernel = {.team = 128, .iterations = 1, .library = 1};
	const Instruction in = {.kind = RUN_KERNEL};
	LibraryRecord library = {0};
	Format f = {.kernels = &kernel, .library = &library, .strings = strings};

	(void)state;
	library_call_begin(&library.call, LIBRARY_DOT);
	for (int i = LIBRARY_FIRST; i <= LIBRARY_RESULT; i++) {
		LibraryOperand *o = &library.call.operands[i];
		*o = (LibraryOperand){.dtype = F16, .rank = 4, .dims = {3, 10, 64, 64}};
		library_dense(o);
	}
	Work w = work_of_instruction(&f, &in, &alone);
	assert_int_equal(w.class, WORK_PRODUCT);
	assert_int_equal(w.product.runs, 3);
	assert_int_equal(w.product.batch, 10);
	assert_int_equal(w.product.alignment, 16);
	library.call.operands[LIBRARY_FIRST].offset = 4;
	assert_int_equal(work_of_instruction(&f, &in, &alone).product.alignment, 8);
	/* The library loops over the 66 adjacent elements of a row; an axis of one element does not count. */
	for (int i = LIBRARY_FIRST; i <= LIBRARY_RESULT; i++) {
		LibraryOperand *o = &library.call.operands[i];
		o->offset = 0;
		o->dims[3] = i == LIBRARY_FIRST ? 64 : 66;
		o->strides[2] = 72;
		o->strides[1] = 72 * 72;
		o->strides[0] = 72 * 72 * 10;
	}
	assert_int_equal(work_of_instruction(&f, &in, &alone).product.alignment, 4);
	library.call.operands[LIBRARY_SECOND].dims[3] =
		library.call.operands[LIBRARY_RESULT].dims[3] = 1;
	assert_int_equal(work_of_instruction(&f, &in, &alone).product.alignment, 16);
}

/* Matrix units multiply the smallest floats among the arguments, whatever integers there are. */
static void
test_tiles(void **state)
{
	static const struct {
		uint32_t dtypes[2];
		Math math;
	} cases[] = {{{F32, BF16}, MATH_16_BITS},
	             {{F16, U8}, MATH_16_BITS},
	             {{F32, S64}, MATH_F32},
	             {{F64, U8}, MATH_F64},
	             {{F8E4M3, F32}, MATH_8_BITS}};
	const KernelRecord kernel = {
		.team = 128, .iterations = 80, .matrix_flops = 1000, .n_arguments = 2};
	const Instruction in = {.kind = RUN_KERNEL};

	(void)state;
	for (int i = 0; i < COUNT(cases); i++) {
		const KernelArgument arguments[] = {{.bytes = 8, .dtype = cases[i].dtypes[0]},
		                                    {.bytes = 8, .dtype = cases[i].dtypes[1]}};
		const Format f = {
			.kernels = &kernel, .kernel_arguments = arguments, .strings = strings};
		assert_int_equal(work_of_instruction(&f, &in, &alone).math, cases[i].math);
	}
}

/* CUDA's names of devices. */
static void
test_devices(void **state)
{
	static const struct {
		const char *name, *machine;
	} cases[] = {{"NVIDIA H100 80GB HBM3", "h100"},
	             {"NVIDIA H200", "h200"},
	             {"NVIDIA A100-SXM4-80GB", "a100"},
	             {"NVIDIA L4", "l4"},
	             {"NVIDIA GB200", "gb200"},
	             {"NVIDIA GeForce RTX 4090", "rtx-4090"},
	             {"NVIDIA L40", NULL},
	             {"NVIDIA GH200 480GB", NULL},
	             {"NVIDIA GeForce RTX 4090D", NULL}};

	(void)state;
	for (int i = 0; i < COUNT(cases); i++) {
		const Machine *m = machine_of_device(cases[i].name);
		if (cases[i].machine)
			assert_string_equal(m->name, cases[i].machine);
		else
			assert_null(m);
	}
}

/* Convolutions are said not to be measured. */
static void
test_convolutions(void **state)
{
	const KernelRecord kernel = {.team = 128, .iterations = 1, .library = 1};
	const Instruction in = {.kind = RUN_KERNEL};
	LibraryRecord library = {0};
	Format f = {.kernels = &kernel, .library = &library, .strings = strings};
	static const int64_t dims[][3] = {{1, 1, 10}, {1, 1, 1}, {1, 1, 10}};

	(void)state;
	library_call_begin(&library.call, LIBRARY_CONV);
	for (int i = LIBRARY_FIRST; i <= LIBRARY_RESULT; i++) {
		LibraryOperand *o = &library.call.operands[i];
		*o = (LibraryOperand){
			.dtype = F32, .rank = 3, .dims = {dims[i][0], dims[i][1], dims[i][2]}};
		library_dense(o);
	}
	Prediction p = predict_instruction(&f, &in, &alone);
	assert_int_equal(p.work.class, WORK_CONVOLUTION);
	assert_false(prediction_is_measured(&p, &toy));
	assert_true(p.seconds > 0);
}

/* 4000 bytes: from the host 40 us and the latency; within the device they are read and written. */
static void
test_copies(void **state)
{
	const Slot slots[] = {{.space = SPACE_IO_HOST, .bytes = 4000},
	                      {.space = SPACE_IO, .bytes = 4000}};
	const Argument in[] = {{.slot = 0}, {.slot = 1}}, within[] = {{.slot = 1}, {.slot = 1}};
	const Instruction copy = {.kind = COPY, .n_args = 2},
			  fill = {.kind = FILL_ZERO, .n_args = 1};
	const Instruction wait = {.kind = WAIT};
	Format f = {.slots = slots, .arguments = in};

	(void)state;
	assert_int_equal(predict_one(&f, &copy, &alone, 42e-6).bound, BOUND_HOST);
	f.arguments = within;
	assert_int_equal(predict_one(&f, &copy, &alone, 9e-6).bound, BOUND_MEMORY);
	predict_one(&f, &fill, &alone, 5e-6);
	predict_one(&f, &wait, &alone, 0);
}

/* 4000 bytes among 4 ranks: 10 us for each quarter. */
static void
test_collectives(void **state)
{
	static const struct {
		CollectiveKind kind;
		double seconds, over_network; /* over_network: at half the rate */
	} cases[] = {
		{COMM_ALL_REDUCE, 5e-6 + 6e-6 + 60e-6, 5e-6 + 18e-6 + 120e-6},
		{COMM_ALL_GATHER, 5e-6 + 3e-6 + 30e-6, 5e-6 + 9e-6 + 60e-6},
		{COMM_REDUCE_SCATTER, 5e-6 + 3e-6 + 30e-6, 5e-6 + 9e-6 + 60e-6},
		{COMM_ALL_TO_ALL, 5e-6 + 1e-6 + 30e-6, 5e-6 + 3e-6 + 60e-6},
		{COMM_BROADCAST, 5e-6 + 3e-6 + 40e-6, 5e-6 + 9e-6 + 80e-6},
		{COMM_SEND, 5e-6 + 1e-6 + 40e-6, 5e-6 + 3e-6 + 80e-6},
		{COMM_RECV, 5e-6 + 1e-6 + 40e-6, 5e-6 + 3e-6 + 80e-6},
	};
	const Outlook four = {.machine = &toy, .ranks = 4};
	const Outlook far = {.machine = &toy, .ranks = 4, .network_rate = 5e7};
	const Instruction in = {.kind = COLLECTIVE};
	CollectiveRecord c = {.dtype = F32, .n = 1000, .group = GROUP_DATA};
	const Format f = {.collectives = &c};

	(void)state;
	assert_int_equal(COUNT(cases), N_COLLECTIVES);
	for (int i = 0; i < COUNT(cases); i++) {
		c.kind = cases[i].kind;
		predict_one(&f, &in, &four, cases[i].seconds);
		predict_one(&f, &in, &far, cases[i].over_network);
		predict_one(&f, &in, &alone, 0);
	}
	c.group = GROUP_TENSOR;
	predict_one(&f, &in, &four, 0);
}

/* ---- a step */
enum { N_CODE = 11 };
static const Instruction code[N_CODE] = {
	{.kind = RUN_KERNEL, .what = 0, .origin = TEXT_FC},
	{.kind = RUN_KERNEL, .what = 1},
	{.kind = RUN_KERNEL, .what = 0},
	{.kind = RUN_KERNEL, .what = 1, .when = WHEN_LATER},
	{.kind = RUN_KERNEL, .what = 1, .when = WHEN_FIRST},
	{.kind = LOOP, .what = 3},
	{.kind = RUN_KERNEL, .what = 0, .when = WHEN_LAST},
	{.kind = END},
	{.kind = COLLECTIVE, .stream = STREAM_COMMUNICATION, .only = ONLY_RANKS | ONLY_FAST},
	{.kind = COLLECTIVE, .stream = STREAM_COMMUNICATION, .only = ONLY_RANKS | ONLY_ORDERED},
	{.kind = RUN_KERNEL, .what = 1}, /* in the update */
};

static void
test_times(void **state)
{
	static const int64_t want[N_CODE] = {1, 1, 1, 0, 1, 1, 3, 1, 0, 0, 1};
	const Instruction later[] = {{.kind = LOOP, .what = (uint32_t)LOOP_LATER_RANKS},
	                             {.kind = RUN_KERNEL},
	                             {.kind = END}};
	const Outlook five = {.machine = &toy, .ranks = 5};
	int64_t times[N_CODE];

	(void)state;
	predict_times(&(Format){.instructions = code}, &(ProgramRecord){.n_instructions = N_CODE},
	              &alone, times);
	assert_memory_equal(times, want, sizeof(want));
	predict_times(&(Format){.instructions = code}, &(ProgramRecord){.n_instructions = N_CODE},
	              &five, times);
	assert_int_equal(times[8], 1);
	assert_int_equal(times[9], 0);
	predict_times(&(Format){.instructions = later}, &(ProgramRecord){.n_instructions = 3},
	              &five, times);
	assert_int_equal(times[1], 3);
}

/* Kernel 0 takes 11 us and runs 5 times. Kernel 1 takes 31 us and runs 3 times: twice in the micro-batch, once in the
 * update. Programs for other targets do not count. */
static Format
step_tables(void)
{
	static const KernelRecord kernels[] = {{.team = 128, .iterations = 80, .bytes = 10000},
	                                       {.team = 128, .iterations = 80, .bytes = 30000}};
	static const CollectiveRecord collective = {
		.kind = COMM_ALL_REDUCE, .dtype = F32, .n = 1000};
	static const TargetRecord targets[] = {{TEXT_CPU}, {TEXT_SM_90}};
	static const BindingRecord binding = {.text = TEXT_BATCH, .rows = 4};
	static const int64_t dims[] = {4, 16};
	static const PortRecord port = {.kind = PORT_INPUT, .dtype = S64, .rank = 2, .bounded = 1};
	static const ProgramRecord programs[] = {
		{.role = ROLE_ACCUMULATE, .target = 0, .n_instructions = 1},
		{.role = ROLE_ACCUMULATE, .target = 1, .n_instructions = N_CODE - 1, .n_inputs = 1},
		{.role = ROLE_UPDATE, .target = 0, .n_instructions = N_CODE},
		{.role = ROLE_UPDATE,
	         .target = 1,
	         .first_instruction = N_CODE - 1,
	         .n_instructions = 1},
	};

	return (Format){.instructions = code,
	                .kernels = kernels,
	                .collectives = &collective,
	                .targets = targets,
	                .bindings = &binding,
	                .dims = dims,
	                .ports = &port,
	                .programs = programs,
	                .strings = strings,
	                .n = {[SECTION_PROGRAMS] = COUNT(programs),
	                      [SECTION_TARGETS] = COUNT(targets),
	                      [SECTION_BINDINGS] = 1}};
}

static void
test_step(void **state)
{
	Arena *arena = arena_new();
	const Outlook two = {.machine = &toy, .ranks = 2};
	Format f = step_tables();
	PredictedSteps steps = predict_steps(arena, &f, &alone);
	PredictedStep *s = &steps.at[0];

	(void)state;
	assert_int_equal(steps.n, 1);
	assert_int_equal(s->launches.n, 2);
	assert_int_equal(s->launches.at[0].instruction->what, 1);
	assert_int_equal(s->launches.at[0].times, 3);
	assert_int_equal(s->launches.at[1].times, 5);
	assert_ptr_equal(s->launches.at[1].instruction, &code[0]);
	assert_near(s->total, 3 * 31e-6 + 5 * 11e-6);
	assert_near(s->least, s->total);
	assert_near(s->most, s->total);
	assert_int_equal(s->rows, 4);
	assert_int_equal(s->tokens, 64);

	steps = predict_steps(arena, &f, &two);
	s = &steps.at[0];
	assert_int_equal(s->launches.n, 3);
	assert_near(s->streams[STREAM_COMMUNICATION], 5e-6 + 2e-6 + 40e-6);
	assert_near(s->most - s->least, 47e-6);
	assert_int_equal(s->tokens, 128);
	arena_free(arena);
}

static void
test_text(void **state)
{
	Format f = step_tables();
	Text text = {0};

	(void)state;
	format_print_predictions(&text, &f, &(Outlook){.machine = &toy, .ranks = 2});
	static const char *const lines[] = {
		"training step \"batch=4\" of 8 rows, predicted for toy: a toy, 2 ranks, 0.1 GB/s between them; "
		"loop kernels of target cuda-sm_90\n",
		"       93.0 47.69%     3        31.0     100% memory        80      0.03     0.000  ",
		"       55.0 28.21%     5        11.0     100% memory        80      0.01     0.000  ",
		"       47.0 24.10%     1        47.0     100% link           1      0.00     0.000  all_reduce\n",
		"streams: compute 148.0 us, copy_in 0.0 us, copy_out 0.0 us, communication 47.0 us\n",
		"step: 0.148 ms, 864865 tokens/s where communication is hidden; 0.195 ms, 656410 tokens/s where "
		"it is not\n",
	};
	for (int i = 0; i < COUNT(lines); i++)
		if (!strstr(text.at, lines[i]))
			fail_msg("\"%s\" is not in\n%s", lines[i], text.at);
	text_free(&text);
}

/* ---- the table of machines */
static void
test_machines(void **state)
{
	(void)state;
	assert_null(machine_find("toy"));
	for (int i = 0; machine_table[i]; i++) {
		const Machine *m = machine_table[i];
		const Chip *c = m->chip;
		const double numbers[] = {c->processors,
		                          c->most_blocks,
		                          c->most_threads,
		                          c->busy_threads,
		                          c->sum_threads,
		                          (double)c->shared_bytes,
		                          (double)c->block_shared_bytes,
		                          c->cache_rate - m->memory_rate,
		                          m->memory_reached,
		                          c->loop_rate[MATH_F32],
		                          c->loop_rate[MATH_F64],
		                          m->memory_rate,
		                          m->launch,
		                          m->host_rate,
		                          m->host_latency,
		                          m->joined,
		                          m->link_rate,
		                          m->collective_latency,
		                          m->link_hop,
		                          m->network_hop};

		assert_ptr_equal(machine_find(m->name), m);
		const Target *t = target_find(m->target);
		assert_non_null(t);
		assert_int_equal(t->kind, TARGET_TEAMS);
		for (int k = 0; k < COUNT(numbers); k++)
			assert_true(numbers[k] > 0);
		for (int k = 0; k < N_MATHS; k++) {
			assert_true(c->products[k].peak > 0);
			assert_true(c->products[k].reached > 0 && c->products[k].reached <= 1);
		}
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_utilization),  cmocka_unit_test(test_kernels),
		cmocka_unit_test(test_products),     cmocka_unit_test(test_batches),
		cmocka_unit_test(test_tiles),        cmocka_unit_test(test_devices),
		cmocka_unit_test(test_convolutions), cmocka_unit_test(test_copies),
		cmocka_unit_test(test_collectives),  cmocka_unit_test(test_times),
		cmocka_unit_test(test_step),         cmocka_unit_test(test_text),
		cmocka_unit_test(test_machines),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

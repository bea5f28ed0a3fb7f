/* NVIDIA's GPUs, by the architecture that kernels are compiled for. A part is a block of threads. */
#include "codegen/target/target.h"
#include "cost/cost.h"

extern const Target target_cuda_sm_90;

/* A number was measured where its comment says "measured" or names a result; other comments say how the number was reckoned; a
 * number without a comment is the CPUs'. An H100 has 132 multiprocessors, each of which holds eight blocks of 256 threads: 1056
 * together. With these numbers the kernels of gpt2_124m other than products reach 65 to 88 % of an H200's 4.8 TB/s where they take
 * 0.4 ms of a step or more, but for the loss over 50257 classes, 31 % (bench/results/gpu-bench.json). */
const Tuning team_tuning = {
	.grains.large = 1 << 16,
	.grains.parts = 16,        /* for each of 64 cores: 1024, which an H100 holds at once */
	.grains.least_part = 1024, /* 16 bytes of f32 for each of 256 threads */
	.grains.most_block = 4096,

	.reduce.chunk_rows = 64, /* eight for each of eight outer members */
	.reduce.chunk_columns = 128,
	.reduce.few_rows = 8,
	.reduce.much = 1 << 19,
	/* 16 bytes of f32 for each of 32 members, who read rows of memory without gaps; 4, where there would be few parts. */
	.reduce.least_columns = 32,
	.reduce.most_columns = 128,
	.reduce.near_row =
		8192, /* 32 KiB of f32: seven blocks in the 228 KiB of a multiprocessor */
	/* 224 KiB of f32, of an H100's 227; where there are less, rows are read again. Cross-entropy of 50257 numbers takes 4.5 ms
         * so, read again 5.9, or 7.3 by 256 members (bench/results/long_rows.json). */
	.reduce.long_row = 56 << 10,
	.reduce.expensive = 4,
	.reduce.sums = 8,
	.reduce.team_row = 1024, /* a warp reads such a row of f32 in eight vectors a lane */
	.reduce.row_members = 32,
	/* A row of 1024 or 8192: with two of them a kernel has some 100 registers, of the 128 with which two blocks of 256 threads
	 * fit. */
	.reduce.own_numbers = 32,
	.reduce.all_own_numbers = 64,

	.repeats = {.most = 8,
                    .enough = 1.1}, /* less than a tenth of the time is for what is read again */

	.planes.block = 2048,
	.planes.most_planes = 16,
	.planes.most_bytes = 1 << 18,
	.planes.most_outputs = 10,
	.planes.least_parts = 16,
	.planes.most_sums = 8,

	.pool.most_unrolled = 32,

	.scatter.least_keys = 512,
	.scatter.most_sorting_parts = 64,
	.scatter.most_width = 1024,
	.scatter.least_width = 64,
	.scatter.least_elements = 256,
	/* On an H200 one kernel that sorts 16384 updates took 332 ns for each of them: 32 take as long as two or three kernels. */
	.scatter.least_sorted = 32,

	.lines.least_block = 4096, /* 16 elements for each of 256 members */
	.lines.least_merged = 256,
	.lines.most_merged = 4096,
	/* 32 bytes of f32, which memory moves at once; a binary search of 10 to 20 steps is shared by eight. */
	.lines.merged_by_member = 8,
	/* 16 bytes of f32 for each of 32 members; 32 lines of f64 are 33 KiB. */
	.lines.near = 128,

	.library.least_flops = 1 << 20,
	.library.least_size = 8,
	.library.least_reads = 16,
	.library.transposed_batches = true, /* cuBLASLt takes transposed operands as they are */
	/* H200, tf32, rows of 50257 numbers: products of 16384 x 768 x 50257 take 9.7, 9.7 and 10.8 ms, 3.1, 3.0 and 4.8 with
	 * rows of 50260 (PyTorch 2.11). */
	.library.row_alignment = 16,
	.library.least_pitched_row = 256,
	.library.least_pitched = 1 << 20,
	.library.f16 = true,
	.library.most_scratch = 64 << 20,
	/* cuDNN's engines for matrix units turn operands round in it, to channels-last: with 64 images, resnet50's largest convolution
	 * wants 295 MiB in f32 (1x1, 256 to 512 channels), and where it gets 64 an engine without these units. */
	.library.most_conv_scratch = 1 << 30,

	.recompute.next = {.additions = 12, .least_bytes = 1024},
	.recompute.backward = {.additions = 48, .least_bytes = 4096},

	.splits = &target_cuda_sm_90,
};

/* mma.sync, as the prelude of codegen/cuda/ has it. */
static const MatrixShape matrices[] = {{BF16, 16, 8, 16}, {F16, 16, 8, 16}, {F32, 16, 8, 8}, {0}};

/* Products. Nothing here is measured: what a GPU has in a cycle says what the numbers must be. Of all GPUs:
 *
 *	depth         128 x 128 in two stages are 37 KiB, so that no block asks for more than the 48 KiB that a kernel has without
 *	              asking
 *	most_sums     64 registers of f32, 8 x 8 sums: a member then reads 16 numbers for 64 products, as fast as it multiplies.
 *	              Twice as many would leave one part for a processor
 *	members       two warps for each of four schedulers
 *	read          a warp's numbers of 4 bytes, one for all lanes or one for each, take a cycle; accesses of 8 and 16 bytes less
 *	brought       from the second cache */
#define EVERY_GPU                                                                              \
	.depth = 16, .most_sums = 256, .few_rows = 4, .least_split = 256,                      \
	.most_scratch = 32 << 20, .members = 256, .read = 4, .brought = 64, .split_gain = 1.2, \
	.blocks = {{128, 128, 256}, {128, 64, 128}, {64, 64, 128}, {128, 16, 128},             \
	           {64, 32, 64},    {32, 32, 64},   {32, 16, 32}}

/* A100: the peaks of cost/machines.c. */
#define CLOCK 1.41e9
static const TeamTiles sm_80_tiles = {
	EVERY_GPU,
	.processors = 108,
	.multiplied = 64,
	.multiplied_16 = 880, /* of 1024: what libraries reach, by mma.sync as well */
	.stored = 2.039e12 / CLOCK,
	.launch = CUDA_LAUNCH * CLOCK,
};
#undef CLOCK

/* H100 SXM: the same table. */
#define CLOCK 1.755e9
static const TeamTiles sm_90_tiles = {
	EVERY_GPU,
	.processors = 132,
	.multiplied = 128,
	.multiplied_16 = 1024, /* mma.sync reaches some half of 2048 */
	.stored = 3.35e12 / CLOCK,
	.launch = CUDA_LAUNCH * CLOCK,
};
#undef CLOCK

/* B200: 80 TFLOP/s of f32 and 8 TB/s (NVIDIA's Blackwell brief, HGX B200, as https://glennklockwood.com/garden/processors/B200
 * quotes it). With 148 processors, of 128 products of f32 each as H100's, that is 2.11 GHz. Nobody has published what mma.sync
 * reaches: as on H100. */
#define CLOCK 2.11e9
static const TeamTiles sm_100_tiles = {
	EVERY_GPU,
	.processors = 148,
	.multiplied = 128,
	.multiplied_16 = 1024,
	.stored = 8e12 / CLOCK,
	.launch = CUDA_LAUNCH * CLOCK,
};
#undef CLOCK

/* Shared memory of a block: CUDA C++ Programming Guide, technical specifications per compute capability. */
/* What pays as cuBLASLt stores a product. A step of gpt2_124m, 16 rows of 1024 tokens, one H100, cuBLASLt 13.1, each column in one run
 * (bench/results/epilogues.json):
 *
 *	                               tf32       bf16
 *	none                        113.7 ms
 *	sum                         113.9 ms    79.3 ms    with less memory, and more where gradients of micro-batches add up: of 4
 *	                                                   ways to memory and back 2 are left
 *	sum, gelu                   118.4 ms    80.8 ms
 *	sum, gelu and its gradient  122.9 ms    80.1 ms
 *
 * Blackwell is not measured: llm.c has both by default from compute capability 9.0 on (train_gpt2.cu, option -ge); its GPT-2 of 124M
 * spent 5.2 % of a step in GELU's kernels (issue 378).
 *
 * Not joined: sums for gradients of biases (LibraryEpilogue has them): their kernels also add what earlier micro-batches summed. */
enum {
	sm_80_epilogues = JOINS_SUM,
	sm_90_epilogues = JOINS_SUM,
	sm_100_epilogues = JOINS_SUM | JOINS_GELU | JOINS_GELU_GRAD,
};

#define CUDA(architecture, shared)                                                        \
	const Target target_cuda_##architecture = {.name = "cuda-" #architecture,         \
	                                           .kind = TARGET_TEAMS,                  \
	                                           .lanes = 4, /* 16 bytes of a thread */ \
	                                           .team = 256,                           \
	                                           .most_team = 1024,                     \
	                                           .shared_bytes = (shared) << 10,        \
	                                           .matrices = matrices,                  \
	                                           .tiles = &architecture##_tiles,        \
	                                           .epilogues = architecture##_epilogues, \
	                                           .tuning = &team_tuning}
CUDA(sm_80, 163);
CUDA(sm_90, 227);
CUDA(sm_100, 227);

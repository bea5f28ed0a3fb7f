/* The rows of NVIDIA's GPUs, one target for each architecture that kernels are compiled for: how
 * loops, reductions and matrix products are cut. A part (one parallel iteration of a kernel)
 * runs on one block of threads, called a team; its threads are the members. */
#include "codegen/target/target.h"
#include "cost/cost.h"

extern const Target target_cuda_sm_90;

/* If the comment of a number says "measured" or names a result file, the number was measured.
 * Other comments say how their number was estimated. A number without a comment is taken from
 * the CPUs. An H100 has 132 multiprocessors, each of which holds eight blocks of 256 threads:
 * 1056 together. With these numbers those kernels of gpt2_124m that are not products and take at
 * least 0.4 ms of a step reach 65 to 88 % of an H200's 4.8 TB/s; only the loss over 50257
 * classes reaches 31 % (bench/results/gpu-bench.json). */
const Tuning team_tuning = {
	.grains.large = 1 << 16,
	/* parts are planned for 64 cores: 16 * 64 = 1024 parts, about as many as an H100 holds at
	 * the same time (1056) */
	.grains.parts = 16,
	.grains.least_part = 1024, /* 16 bytes of f32 for each of 256 threads */
	.grains.most_block = 4096,

	/* 8 rows for each of the 8 outer members (groups of 32 threads) of a team */
	.reduce.chunk_rows = 64,
	.reduce.chunk_columns = 128,
	.reduce.few_rows = 8,
	.reduce.much = 1 << 19,
	/* With 128 columns, each of 32 members reads 16 bytes of a row, without gaps between
	 * members. If this makes too few parts, a part has 16 columns: two sectors of memory. */
	.reduce.least_columns = 16,
	.reduce.most_columns = 128,
	/* 32 KiB of f32: seven blocks fit in the 228 KiB of a multiprocessor */
	.reduce.near_row = 8192,
	/* 224 KiB of f32, of an H100's 227. On targets with less memory the rows are read again.
	 * Cross-entropy of 50257 numbers takes 4.5 ms with this row in team memory; 5.9 ms if it is read
	 * again, or 7.3 ms by 256 members (bench/results/long_rows.json). */
	.reduce.long_row = 56 << 10,
	.reduce.expensive = 4,
	.reduce.sums = 8,
	.reduce.team_row = 1024, /* a warp reads such a row of f32 in eight vectors a lane */
	.reduce.row_members = 32,
	/* 32 elements a member are a row of 1024 elements with 32 members, or of 8192 with 256.
	 * If two values are kept for each element, a kernel has about 100 registers a thread.
	 * With up to 128, two blocks of 256 threads fit on a multiprocessor. */
	.reduce.own_numbers = 32,
	.reduce.all_own_numbers = 64,
	/* Not measured. Three sums for each of 1024 columns; with two values kept, a thread has about 170 registers, so a
	 * multiprocessor has one block of 256 threads. */
	.reduce.column_numbers = 96,
	/* Not measured. A batch norm reads tensors twice instead of three times, and its gradient reads
	 * them twice instead of three times, too: for resnet50 with 64 images in bf16 an H100's step
	 * is predicted to take 12.2 instead of 14.0 ms. */
	.reduce.merge_sums = true,

	/* enough = 1.1: at most a tenth of the bytes are read again */
	.repeats = {.most = 8, .enough = 1.1},

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
	/* On an H200 one kernel that sorts 16384 updates took 332 ns for each of them. At that rate 32
	 * updates take as long as two or three kernels. */
	.scatter.least_sorted = 32,

	.lines.least_block = 4096, /* 16 elements for each of 256 members */
	.lines.least_merged = 256,
	.lines.most_merged = 4096,
	/* 32 bytes of f32, the least that memory transfers. A binary search of 10 to 20 steps is shared by
	 * eight elements. */
	.lines.merged_by_member = 8,
	/* 16 bytes of f32 for each of 32 members; 32 lines of f64 are 33 KiB. */
	.lines.near = 128,

	/* Not measured. Chosen so that NVRTC keeps a member's numbers in 255 registers: for heads of 64
	 * forward 64 of the output and 64 of scores, in the gradients 32 of each of two or three sums
	 * and of two tiles of scores. A warp has 16 rows or more, because it has whole rows. The last
	 * blocks are for f32, whose matrices take twice the team memory. */
	.team_attention =
		{
			.forward = {{64, 128, 64, 128},
                                    {128, 128, 32, 256},
                                    {256, 64, 32, 128},
                                    {256, 32, 16, 64}},
			.by_keys = {{64, 64, 64, 128},
                                    {128, 32, 64, 128},
                                    {256, 32, 32, 64},
                                    {256, 16, 16, 64}},
			.by_queries = {{64, 64, 64, 128},
                                       {128, 64, 32, 128},
                                       {256, 32, 16, 64},
                                       {256, 16, 16, 64}},
			.most_bytes =
				99
				<< 10, /* what a block may have on GPUs 8.6 and 8.9, which run sm_80's code */
		},

	.library.least_flops = 1 << 20,
	.library.least_size = 8,
	.library.least_reads = 16,
	.library.transposed_batches = true, /* cuBLASLt takes transposed operands without a copy */
	/* Milliseconds on an H200, tf32. Three products of 16384 x 768 x 50257 take 9.7, 9.7 and 10.8 with
	 * rows of 50257 numbers, and 3.1, 3.0 and 4.8 with rows of 50260 (PyTorch 2.11). */
	.library.row_alignment = 16,
	.library.least_pitched_row = 256,
	.library.least_pitched = 1 << 20,
	/* Plans of cuDNN 9.19 for an H100. 64 images of 56 x 56, 64 to 256 channels, 1 x 1, bf16: with
	 * channels as axis 1, the three convolutions of a layer want scratch memory for both images,
	 * 129 MB; with channels last, at most 0.3 MB. In tf32 257 and 1.2 MB. */
	.library.channels_last = true,
	/* cuDNN 9.19 has no engine for a gradient of filters in f32 from images in bf16. */
	.library.conv_rounds = true,
	.library.f16 = true,
	.library.most_scratch = 64 << 20,
	/* cuDNN's engines for matrix units convert operands to channels-last in scratch memory. With 64
	 * images, the largest convolution of resnet50 wants 295 MiB in f32 (1x1, 256 to 512 channels). If it
	 * gets only 64 MiB, it uses an engine without matrix units. */
	.library.most_conv_scratch = 1 << 30,

	.recompute.next = {.additions = 12, .least_bytes = 1024},
	.recompute.backward = {.additions = 48, .least_bytes = 4096},
	/* Not measured: a value crosses a product once. Of a GPT-2 the outputs of GELUs and layer norms are kept, 1.8 GB at 16 x 1024; an H100's
	 * step is predicted to take 0.8 ms less. */
	.recompute.for_products = false,

	.splits = &target_cuda_sm_90,
};

/* The shapes of mma.sync in codegen/cuda/prelude.cuh. */
static const MatrixShape matrices[] = {{BF16, 16, 8, 16}, {F16, 16, 8, 16}, {F32, 16, 8, 8}, {0}};

/* Products. No number here is measured: all follow from what a GPU does in a cycle. For all
 * GPUs:
 *
 *	depth         two stages of 128 x 128 blocks take 37 KiB, so no block needs more than the 48 KiB that every kernel gets
 *	              by default
 *	most_sums     64 registers of f32, 8 x 8 sums: a member reads 16 numbers for 64 products, so it reads as fast as it
 *	              multiplies. With twice as many sums, only one part would fit on a processor
 *	members       two warps for each of four schedulers
 *	read          a warp's access to 4-byte numbers takes one cycle, whether all lanes read the same number or each its own.
 *	              Accesses of 8 and 16 bytes take less time for each number, so `read` is 4 numbers a cycle
 *	brought       bytes a cycle and processor, read from the second-level cache */
#define EVERY_GPU                                                                              \
	.depth = 16, .most_sums = 256, .few_rows = 4, .least_split = 256,                      \
	.most_scratch = 32 << 20, .members = 256, .read = 4, .brought = 64, .split_gain = 1.2, \
	.blocks = {{128, 128, 256}, {128, 64, 128}, {64, 64, 128}, {128, 16, 128},             \
	           {64, 32, 64},    {32, 32, 64},   {32, 16, 32}}

/* A100: the peak rates are from cost/machines.c. */
#define CLOCK 1.41e9
static const TeamTiles sm_80_tiles = {
	EVERY_GPU,
	.processors = 108,
	.multiplied = 64,
	.multiplied_16 = 880, /* the peak is 1024; libraries, also with mma.sync, reach 880 */
	.stored = 2.039e12 / CLOCK,
	.launch = CUDA_LAUNCH * CLOCK,
};
#undef CLOCK

/* H100 SXM: the peak rates are from cost/machines.c, too. */
#define CLOCK 1.755e9
static const TeamTiles sm_90_tiles = {
	EVERY_GPU,
	.processors = 132,
	.multiplied = 128,
	.multiplied_16 = 1024, /* mma.sync reaches about half of the peak of 2048 */
	.stored = 3.35e12 / CLOCK,
	.launch = CUDA_LAUNCH * CLOCK,
};
#undef CLOCK

/* B200: 80 TFLOP/s of f32 and 8 TB/s (NVIDIA's Blackwell brief, HGX B200, as
 * https://glennklockwood.com/garden/processors/B200 quotes it). 148 processors with 128 f32
 * products each, as on an H100, give 2.11 GHz. Nobody has published what mma.sync reaches; the
 * number of the H100 is used. */
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

/* Which epilogues are faster than kernels of their own. An epilogue is an operation after a
 * product, such as a sum or a GELU, that cuBLASLt can apply while it stores the product. The table
 * gives the time of a step of gpt2_124m with 16 rows of 1024 tokens on one H100 with cuBLASLt 13.1.
 * Each column was measured in one run (bench/results/epilogues.json):
 *
 *	                               tf32       bf16
 *	none                        113.7 ms
 *	sum                         113.9 ms    79.3 ms    less memory; gains more if gradients of micro-batches are added up: 2 of
 *	                                                   4 transfers to and from memory are left
 *	sum, gelu                   118.4 ms    80.8 ms
 *	sum, gelu and its gradient  122.9 ms    80.1 ms
 *
 * Blackwell is not measured. llm.c lets the library apply GELU and its gradient by default from
 * compute capability 9.0 on (train_gpt2.cu, option -ge); its GPT-2 of 124M spent 5.2 % of a step
 * in GELU's kernels (issue 378).
 *
 * Bias gradients are not left to the library, although LibraryEpilogue has them, because their
 * kernels also add the sums of earlier micro-batches. */
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

/* NVIDIA's GPUs, by the architecture that kernels are compiled for. A part is a block of threads. */
#include "codegen/target.h"

/* Nothing of this is measured: there was no GPU. Each number says what it was reckoned from; where nothing is said it is the
 * CPUs'. An H100 has 132 multiprocessors, each of which holds eight blocks of 256 threads: 1056 together. */
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
	.reduce.expensive = 4,
	.reduce.sums = 8,
	.reduce.team_row = 1024, /* a warp reads such a row of f32 in eight vectors a lane */
	.reduce.row_members = 32,

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

	.lines.least_block = 256,
	.lines.least_merged = 256,
	.lines.most_merged = 4096,

	.library.least_flops = 1 << 20,
	.library.least_size = 8,
	.library.least_reads = 16,
	.library.transposed_batches = true, /* cuBLASLt takes transposed operands as they are */

	.recompute.next = {.additions = 12, .least_bytes = 1024},
	.recompute.backward = {.additions = 48, .least_bytes = 4096},
};

/* Products. Nothing here is measured: what an H100 has at 1.755 GHz says what the numbers must be. */
static const TeamTiles cuda_tiles = {
	/* 128 x 128 in two stages are 37 KiB, so that no block asks for more than the 48 KiB that a kernel has without asking. */
	.depth = 16,
	/* 64 registers of f32, 8 x 8 sums: a member then reads 16 numbers for 64 products, as fast as it multiplies. Twice as
	 * many would leave one part for a processor. */
	.most_sums = 256,
	.few_rows = 4,
	.least_split = 256,
	.most_scratch = 32 << 20,
	.processors = 132,
	/* Two warps for each of four schedulers. */
	.members = 256,
	.multiplied = 128,
	/* Dense 2048; mma.sync reaches some half of it. */
	.multiplied_16 = 1024,
	/* A warp's numbers of 4 bytes, one for all lanes or one for each, take a cycle; accesses of 8 and 16 bytes less. */
	.read = 4,
	/* From the second cache. */
	.brought = 64,
	/* 3.35 TB a second. */
	.stored = 1900,
	/* 4 microseconds. */
	.launch = 7000,
	.split_gain = 1.2,
	.blocks = {{128, 128, 256},
                   {128, 64, 128},
                   {64, 64, 128},
                   {128, 16, 128},
                   {64, 32, 64},
                   {32, 32, 64},
                   {32, 16, 32}},
};

#define CUDA(architecture)                                       \
	const Target target_cuda_##architecture = {              \
		.name = "cuda-" #architecture,                   \
		.kind = TARGET_TEAMS,                            \
		.lanes = 4, /* 16 bytes, which a thread moves */ \
		.team = 256,                                     \
		.tiles = &cuda_tiles,                            \
		.tuning = &team_tuning}
CUDA(sm_80);
CUDA(sm_90);
CUDA(sm_100);

/* CPUs, by the vectors that loops are blocked for. */
#include "codegen/target/target.h"

/* Sums in registers leave room for columns of b and an element of a, and need fewer loads than multiplications.
 *
 * The costs are of one core with AVX-512 and 2 MiB of second cache, found with bench/gemm by forcing one cut after the
 * other. GFLOP/s: 512^3 in 256 parts has 146 where each of 16 chunks packs b, and 166 where it is packed once; 173 in 16
 * parts. 2048 x 384 x 1536 with panels of 32 columns has 149 to 155, of 256 columns 145. A gradient of 384 x 1536 over 2048
 * has 139 with panels of 256 and one chunk, 87 with panels of 128 and 16 rows, for which b comes from far away.
 *
 * Those for narrower vectors gave times of 0.91 to 1.08 of what was before, 0.99 in the mean, on that core with x86-64-v3. */
static const ProductTiles wide_product = {
	.rows = 8, /* 16 of 32 registers */
	.columns = 32,
	.depth = 256,
	.panel = 256,
	.first_bytes = 32 << 10,
	.near_bytes = 1 << 20,
	.waiting_bytes = 128 << 10,
	.most_scratch = 32 << 20,
	.least_part = 1 << 17,
	.pack = 0.2,
	.pack_along_k = 0.7,
	.first_rate = 100,
	.near_rate = 200,
	.far_rate = 12,
	.not_hidden = 0.2,
	.launch = 10000,
	.least_block = 64,
	.most_block = 1024,
};

static const ProductTiles narrow_product = {
	.rows = 6, /* 12 of 16 registers */
	.columns = 16,
	.depth = 384,
	.panel = 128,
	.first_bytes = 24 << 10,
	.near_bytes = 512 << 10,
	.waiting_bytes = 128 << 10,
	.most_scratch = 32 << 20,
	.least_part = 1 << 17,
	.pack = 0.2,
	.pack_along_k = 1.5,
	.first_rate = 100,
	.near_rate = 200,
	.far_rate = 12,
	.not_hidden = 0.2,
	.launch = 10000,
	.least_block = 64,
	.most_block = 1024,
};

/* Where nothing else is said: CPU time of a training step, one thread of a Zen 4 with AVX-512 and 1 MiB of second cache, f32,
 * the least of 7 runs by turns, in ms behind each value. Differences below 5 % are noise. */
const Tuning cpu_tuning = {
	/* Chosen so that what is large keeps 64 cores busy to the end, though they do not run at one speed. One thread does
         * not lose by it: with 1, 4, 16, 64 parts for each of 64 cores gpt2_mini takes 10.8, 11.0, 11.1, 10.9, a bias gradient
         * of [8192,768] 17.3, 17.2, 16.8, 18.2. From which size on more cores pay was not measured. */
	.grains.large = 1 << 16,
	.grains.parts = 4,
	/* Going on to the next part takes some instructions: with 8, 64, 512 elements gpt2_mini takes 11.0, 11.0, 11.2,
         * mobilenet_mini 1.95, 1.95, 1.91. */
	.grains.least_part = 64,
	/* 16 KiB of each operand, so that what one statement leaves in the first cache is there for the next. An update of 4
         * million parameters takes 3.2, 3.4, 3.1, 3.2, 3.4 with blocks of 64, 512, 4096, 65536, 1048576. */
	.grains.most_block = 4096,

	/* gpt2_mini takes 11.0, 10.9, 10.8 with 1, 8, 64 rows, a bias gradient of [8192,768] 16.9, 17.2, 16.9. */
	.reduce.chunk_rows = 8,
	/* On another CPU, with 96 columns a row of memory was read in pieces so short that it took almost twice as long. Here a
         * bias gradient of [8192,768] takes 15.9, 16.1, 16.4, 16.1 with 32, 96, 256, 768. */
	.reduce.chunk_columns = 256,
	/* A batch norm of 8 channels took 1.3 times as long on two cores when its rows were cut, since they are read again. */
	.reduce.few_rows = 8,
	/* A step of resnet50 takes 1.010 times as long on two cores where all of its batch norms from [8,64,112,112] to [8,128,28,28] are
	 * cut; those of 64 channels are. */
	.reduce.much = 1 << 19,
	/* That gradient takes 17.2, 16.3, 16.4 with least_columns of 16, 128, 256, and 16.5, 16.8, 16.2, 18.0 with most_columns of
         * 64, 128, 256, 1024. */
	.reduce.least_columns = 128,
	.reduce.most_columns = 256,
	/* 64 KiB of f32. Without any such row gpt2_mini takes 11.7 in place of 11.1, vit_mini 6.8 in place of 6.2. Longer rows
         * were not measured. */
	.reduce.near_row = 16384,
	/* exp has 4. With 1, 4, 8, 100 gpt2_mini takes 10.8, 11.0, 11.5, 11.6, bert_mini 5.28, 5.30, 5.54, 5.59. */
	.reduce.expensive = 4,
	/* More than registers hold would go through memory. With 1, 2, 8, 32 bert_mini takes 5.25, 5.20, 5.15, 5.10. */
	.reduce.sums = 8,
	/* CPUs have no teams; of another kind's nothing is measured: a warp reads 1024 numbers of f32 in eight vectors a lane. */
	.reduce.team_row = 1024,
	.reduce.long_row = 56 << 10,
	.reduce.row_members = 32,
	.reduce.own_numbers = 32, /* of teams, as the two behind it */
	.reduce.all_own_numbers = 64,
	.repeats = {.most = 8, .enough = 1.1},

	/* The first cache holds 8 KiB of dy, and x's planes: mobilenet_mini, whose images are small, takes 1.86, 1.87, 1.88,
         * 1.88 with 256, 1024, 2048, 8192. Larger images were not measured. */
	.planes.block = 2048,
	/* Code for strides of 4 in two axes. With 1, 4, 16 mobilenet_mini takes 1.79, 1.73, 1.74, unet_mini 4.96, 5.00, 4.97. */
	.planes.most_planes = 16,
	/* An array that lies on a thread's stack: codegen/llvm/print.c. */
	.planes.most_bytes = 1 << 18,
	/* With more, patches are worth their copies: mobilenet_mini takes 2.17, 1.90, 1.95 with 1, 10, 100. ADR 12 has depthwise
         * convolutions alone. */
	.planes.most_outputs = 10,
	/* With 1, 16, 256 mobilenet_mini takes 1.75, 1.74, 2.00. */
	.planes.least_parts = 16,
	/* mobilenet_mini takes 1.88, 1.88, 1.86, 1.87 with 1, 4, 8, 16. */
	.planes.most_sums = 8,

	/* cnn_mnist takes 1.91, and 2.29 where no window is written out. Larger windows were not measured. */
	.pool.most_unrolled = 32,

	/* Every part reads all indices, so parts cost: 65,536 updates of a table of [8192,64] take 21.9, 9.2, 5.7, 4.1 with 128,
         * 512, 2048, 8192 keys; of [65536,4] 1.5, 6.8, 20.2, 37.7 with at most 1, 16, 64, 128 parts. On many cores they go
         * side by side; that was not measured. */
	.scatter.least_keys = 512,
	.scatter.most_sorting_parts = 64,
	/* 2048 updates of a table of [256,4096] take 5.2, 3.9, 4.6, 4.7 with 64, 256, 1024, 4096. */
	.scatter.most_width = 1024,
	/* With 16, 64, 256 gpt2_mini takes 10.4, 10.5, 10.4, bert_mini 4.91, 4.91, 4.94. */
	.scatter.least_width = 64,
	/* 65,536 updates of a table of [65536,4] take 20.8, 20.5, 20.4, 20.5, 20.6 with 4, 64, 256, 1024, 16384. */
	.scatter.least_elements = 256,

	/* The larger half of a row of 262,144, in order, and its largest take 106.3, 106.1, 105.7 with least_block of 64, 256, 4096; 106.5,
	 * 106.1, 106.2 with least_merged of 64, 256, 1024; 106.2, 106.0, 106.2 with most_merged of 1024, 4096, 65536. */
	.lines.least_block = 256,
	.lines.least_merged = 256,
	.lines.most_merged = 4096,
	/* Of teams, which CPUs don't have. */
	.lines.merged_by_member = 8,
	.lines.near = 128,

	/* A call takes some microseconds. With 2^14, 2^17, 2^20, 2^23 mlp_digits takes 0.049, 0.047, 0.051, 0.051, gpt2_mini
         * 11.2, 11.0, 11.2, 10.9, vit_mini 6.5, 6.5, 6.4, 7.3 (oneDNN 2.6). */
	.library.least_flops = 1 << 20,
	/* gpt2_mini takes 10.9, 10.9, 10.6 with 1, 8, 64. */
	.library.least_size = 8,
	/* vit_mini takes 6.3, 6.3, 6.8 with 1, 16, 128, llama_mini 11.8, 11.8, 12.6. */
	.library.least_reads = 16,
	/* The library copies such operands, which takes a third of its time: gpt2_mini takes 11.5 with them and 11.1 with loops,
         * bert_mini 5.41 and 5.34. */
	.library.transposed_batches = false,
	.library.most_scratch = 64 << 20,
	.library.most_conv_scratch = 64 << 20,

	/* With 0, 4, 12, 48 mobilenet_mini takes 1.84, 1.72, 1.73, 1.68, gpt2_mini 10.1, 10.4, 10.4, 10.5, vit_mini 6.0,
	 * 5.9, 6.0, 6.0. For the backward pass with 0, 12, 48, 200 gpt2_mini takes 10.7, 10.1, 10.3, 10.4, llama_mini 11.6, 11.4, 11.2, 11.5. On
	 * another CPU gpt2_10m's step took 474 where GELU, of some 30 additions, is computed again, in 0.56 GB, and 481 where
	 * it is kept, in 0.94 GB. With 1024 bytes for both gpt2_124m has 1210 launches in place of 1160, with 4096 gpt2_mini 325 in
	 * place of 320. */
	.recompute.next = {.additions = 12, .least_bytes = 1024},
	.recompute.backward = {.additions = 48, .least_bytes = 4096},
};

const Target target_cpu_512 = {.name = "cpu-512",
                               .kind = TARGET_CPU,
                               .lanes = 16,
                               .registers = 32,
                               .gathers = true,
                               .line = 16,
                               .product = &wide_product,
                               .tuning = &cpu_tuning};

const Target target_cpu_256 = {.name = "cpu-256",
                               .kind = TARGET_CPU,
                               .lanes = 8,
                               .registers = 16,
                               .line = 16,
                               .product = &narrow_product,
                               .tuning = &cpu_tuning};

const Target target_cpu_128 = {.name = "cpu-128",
                               .kind = TARGET_CPU,
                               .lanes = 4,
                               .registers = 16,
                               .line = 16,
                               .product = &narrow_product,
                               .tuning = &cpu_tuning};

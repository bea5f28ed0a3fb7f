/* The rows of the CPU targets, one for each vector width: how loops, reductions and matrix
 * products are cut on such a CPU, with the measurements behind the numbers. */
#include "codegen/target/target.h"

/* The sums in registers leave room for columns of b and for one element of a. More rows and
 * columns mean fewer loads for each multiplication.
 *
 * The costs hold for one core with AVX-512 and 2 MiB of second-level cache. They were found with
 * bench/gemm by forcing one cut (division into parts) after the other:
 *
 *	product             cut                                          GFLOP/s
 *	512 x 512 x 512     256 parts, each of 16 chunks packs b             146
 *	                    256 parts, b is packed once                      166
 *	                    16 parts                                         173
 *	2048 x 384 x 1536   panels of 32 columns                      149 to 155
 *	                    panels of 256 columns                            145
 *	384 x 1536 x 2048   panels of 256 columns, one chunk                 139
 *	(a gradient)        panels of 128 columns, parts of 16 rows           87
 *
 * In the last line b is read from memory again and again.
 *
 * The costs for narrower vectors were measured on the same core with x86-64-v3. With these costs,
 * products take 0.91 to 1.08 times as long as with earlier costs, 0.99 times in the mean. */
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

/* How to read the comments: they list values of the number below, and for each value the CPU time
 * in ms of a training step (unless they say something else). Measured on one thread of a Zen 4
 * with AVX-512 and 1 MiB of second-level cache, in f32, as the least of 7 interleaved runs.
 * Differences below 5 % are noise. */
const Tuning cpu_tuning = {
	/* Several parts for each core keep 64 cores busy to the end, although cores differ in
	 * speed. They do not slow down a single thread: with 1, 4, 16, 64 parts for each of 64
	 * cores gpt2_mini takes 10.8, 11.0, 11.1, 10.9, and a bias gradient of [8192,768] 17.3,
	 * 17.2, 16.8, 18.2. `large`, the least size for several cores, was not measured. */
	.grains.large = 1 << 16,
	.grains.parts = 4,
	/* Starting the next part takes some instructions: with 8, 64, 512 elements gpt2_mini takes 11.0,
	 * 11.0, 11.2, mobilenet_mini 1.95, 1.95, 1.91. */
	.grains.least_part = 64,
	/* 16 KiB of each operand, so the first-level cache still holds the results of one
	 * statement that the next statement reads. An update of 4 million parameters takes 3.2,
	 * 3.4, 3.1, 3.2, 3.4 with blocks of 64, 512, 4096, 65536, 1048576. */
	.grains.most_block = 4096,

	/* gpt2_mini takes 11.0, 10.9, 10.8 with 1, 8, 64 rows, a bias gradient of [8192,768] 16.9, 17.2, 16.9. */
	.reduce.chunk_rows = 8,
	/* On another CPU, chunks of 96 columns read memory in pieces so short that they took almost twice as
	 * long. Here a bias gradient of [8192,768] takes 15.9, 16.1, 16.4, 16.1 with 32, 96, 256, 768. */
	.reduce.chunk_columns = 256,
	/* A batch norm of 8 channels took 1.3 times as long on two cores when its rows were cut, because the
	 * rows are read again. */
	.reduce.few_rows = 8,
	/* A step of resnet50 takes 1.010 times as long on two cores if all of its batch norms from
	 * [8,64,112,112] to [8,128,28,28] are cut. With this number, those of 64 channels are cut. */
	.reduce.much = 1 << 19,
	/* The bias gradient of [8192,768] takes 17.2, 16.3, 16.4 with least_columns of 16, 128, 256, and
	 * 16.5, 16.8, 16.2, 18.0 with most_columns of 64, 128, 256, 1024. */
	.reduce.least_columns = 128,
	.reduce.most_columns = 256,
	/* 64 KiB of f32. With 0 (no row stays near), gpt2_mini takes 11.7 instead of 11.1, and
	 * vit_mini 6.8 instead of 6.2. Longer rows were not measured. */
	.reduce.near_row = 16384,
	/* exp has weight 4. With 1, 4, 8, 100 gpt2_mini takes 10.8, 11.0, 11.5, 11.6, bert_mini 5.28, 5.30,
	 * 5.54, 5.59. */
	.reduce.expensive = 4,
	/* If one loop had more sums than there are registers, some would go through memory. With
	 * 1, 2, 8, 32 bert_mini takes 5.25, 5.20, 5.15, 5.10. */
	.reduce.sums = 8,
	/* Unused here: CPUs have no teams. The five numbers are those of team_tuning. */
	.reduce.team_row = 1024,
	.reduce.long_row = 56 << 10,
	.reduce.row_members = 32,
	.reduce.own_numbers = 32,
	.reduce.all_own_numbers = 64,
	/* Not tried: it changes the bits of batch norms' statistics. */
	.reduce.merge_sums = false,
	.repeats = {.most = 8, .enough = 1.1},

	/* The first-level cache holds 8 KiB of dy and the planes of x. mobilenet_mini, whose images are
	 * small, takes 1.86, 1.87, 1.88, 1.88 with 256, 1024, 2048, 8192. Larger images were not measured. */
	.planes.block = 2048,
	/* 16 planes are enough for strides of 4 in two axes. With 1, 4, 16 mobilenet_mini takes 1.79, 1.73,
	 * 1.74, unet_mini 4.96, 5.00, 4.97. */
	.planes.most_planes = 16,
	/* A limit for an array on a thread's stack: codegen/llvm/print.c. */
	.planes.most_bytes = 1 << 18,
	/* With more outputs, products over patches are faster in spite of the copies: mobilenet_mini takes
	 * 2.17, 1.90, 1.95 with 1, 10, 100. ADR 12 measures depthwise convolutions alone. */
	.planes.most_outputs = 10,
	/* With 1, 16, 256 mobilenet_mini takes 1.75, 1.74, 2.00. */
	.planes.least_parts = 16,
	/* mobilenet_mini takes 1.88, 1.88, 1.86, 1.87 with 1, 4, 8, 16. */
	.planes.most_sums = 8,

	/* cnn_mnist takes 1.91; 2.29 if no window is unrolled. Larger windows were not measured. */
	.pool.most_unrolled = 32,

	/* Every part reads all indices, so on one thread more parts cost more time. With
	 * least_keys of 128, 512, 2048, 8192, 65,536 updates of a table of [8192,64] take 21.9,
	 * 9.2, 5.7, 4.1. With most_sorting_parts of 1, 16, 64, 128, 65,536 updates of a table of
	 * [65536,4] take 1.5, 6.8, 20.2, 37.7. Many cores would run the parts at the same time;
	 * this was not measured. */
	.scatter.least_keys = 512,
	/* 65,536 updates of a table of [65536,4] take 1.5, 6.8, 20.2, 37.7 with at most 1, 16, 64,
	 * 128 parts. */
	.scatter.most_sorting_parts = 64,
	/* 2048 updates of a table of [256,4096] take 5.2, 3.9, 4.6, 4.7 with 64, 256, 1024, 4096. */
	.scatter.most_width = 1024,
	/* With 16, 64, 256 gpt2_mini takes 10.4, 10.5, 10.4, bert_mini 4.91, 4.91, 4.94. */
	.scatter.least_width = 64,
	/* 65,536 updates of a table of [65536,4] take 20.8, 20.5, 20.4, 20.5, 20.6 with 4, 64, 256, 1024, 16384. */
	.scatter.least_elements = 256,

	/* Sorting the larger half of a row of 262,144 and finding its largest element take 106.3, 106.1,
	 * 105.7 with least_block of 64, 256, 4096; 106.5, 106.1, 106.2 with least_merged of 64, 256, 1024;
	 * 106.2, 106.0, 106.2 with most_merged of 1024, 4096, 65536. */
	.lines.least_block = 256,
	.lines.least_merged = 256,
	.lines.most_merged = 4096,
	/* Unused here: these two are for teams. */
	.lines.merged_by_member = 8,
	.lines.near = 128,

	/* Time of PyTorch over gradc's for attention alone, forward and backward: bench/results/attention.json. Other sizes of
	 * blocks were not measured since the kernels have their present form, and no length was found where storing the scores is
	 * faster. */
	.attention.queries = 64,
	.attention.keys = 64,
	.attention.grad_queries = 64,
	.attention.grad_keys = 128,
	.attention.least_keys = 1,
	.attention.most_width = 256,

	/* Time of two layers of a model's training in chunks of 64 queries over time with stored scores, two cores of a Xeon
	 * with AVX-512, medians of 4 to 6 pairs: CaiT 0.97, 0.96, 0.90 with 256, 576, 1024 queries (in chunks of 128: 0.99,
	 * 1.03, 0.92), XLNet 1.02, 1.01 with 256, 512, DeBERTa 1.02, 1.02 with 256, 512; ConViT 1.03 with 196, DeBERTa 1.11
	 * with 128. Memory of CaiT with 1024: 0.43. */
	.attention_chunks.queries = 64,
	.attention_chunks.least_queries = 256,

	/* Medians of three runs by turns, two cores of a Xeon with AVX-512: a step of gpt2_124m with 1024 rows takes 2842, 2804,
	 * 2685, 2834 with 128, 256, 512, all rows in a chunk; with 512 rows 1460, 1382, -, 1415; llama_100m 899, 828, -, 862.
	 * Logits of 512 rows take twice the memory. The kernels of products (`depth` above) take 256 rows at a time. */
	.loss.rows = 256,
	/* Fewer logits are a small part of a step's memory. Not measured. */
	.loss.least_bytes = 8 << 20,

	/* A call takes some microseconds. With 2^14, 2^17, 2^20, 2^23 mlp_digits takes 0.049, 0.047, 0.051,
	 * 0.051, gpt2_mini 11.2, 11.0, 11.2, 10.9, vit_mini 6.5, 6.5, 6.4, 7.3 (oneDNN 2.6). */
	.library.least_flops = 1 << 20,
	/* gpt2_mini takes 10.9, 10.9, 10.6 with 1, 8, 64. */
	.library.least_size = 8,
	/* vit_mini takes 6.3, 6.3, 6.8 with 1, 16, 128, llama_mini 11.8, 11.8, 12.6. */
	.library.least_reads = 16,
	/* The library copies transposed operands, which takes a third of its time: gpt2_mini takes 11.5 with
	 * the library and 11.1 with loops, bert_mini 5.41 and 5.34. */
	.library.transposed_batches = false,
	.library.most_scratch = 64 << 20,
	.library.most_conv_scratch = 64 << 20,

	/* With 0, 4, 12, 48 additions in `next`, mobilenet_mini takes 1.84, 1.72, 1.73, 1.68,
	 * gpt2_mini 10.1, 10.4, 10.4, 10.5, vit_mini 6.0, 5.9, 6.0, 6.0. With 0, 12, 48, 200 in
	 * `backward`, gpt2_mini takes 10.7, 10.1, 10.3, 10.4, llama_mini 11.6, 11.4, 11.2, 11.5.
	 * On another CPU a step of gpt2_10m took 474 and 0.56 GB if GELU (some 30 additions) is
	 * computed again, and 481 and 0.94 GB if it is kept. If both least_bytes are 1024,
	 * gpt2_124m has 1210 launches instead of the 1160 that it has with the numbers here; if
	 * both are 4096, gpt2_mini has 325 instead of 320. */
	.recompute.next = {.additions = 12, .least_bytes = 1024},
	.recompute.backward = {.additions = 48, .least_bytes = 4096},
	.recompute.for_products = true,
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

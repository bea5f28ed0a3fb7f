/* CPUs, by the vectors that loops are blocked for. */
#include "codegen/target.h"

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

static const Tuning cpu_tuning = {
	.grains = {.large = 1 << 16, .parts = 4, .least_part = 64, .most_block = 4096},
	.reduce = {.chunk_rows = 8,
                   .chunk_columns = 256,
                   .few_rows = 8,
                   .least_columns = 128,
                   .most_columns = 256,
                   .near_row = 16384,
                   .expensive = 4,
                   .sums = 8},
	.planes = {.block = 2048,
                   .most_planes = 16,
                   .most_bytes = 1 << 18,
                   .most_outputs = 10,
                   .least_parts = 16,
                   .most_sums = 8},
	.pool = {.most_unrolled = 32},
	.scatter = {.least_keys = 512,
                    .most_sorting_parts = 64,
                    .most_width = 1024,
                    .least_elements = 256},
	.library = {.least_flops = 1 << 20, .least_size = 8, .least_reads = 16},
	.recompute = {.next_value = 12, .backward_value = 48},
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

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
};

/* gpt2_10m on two cores: with the backward pass computing chains of up to 48 additions again, GELU among them, a step takes 474 ms
 * and the process 0.56 GB; without 481 ms and 0.94 GB. */
enum { NEXT_VALUE = 12, BACKWARD_VALUE = 48 };

const Target target_cpu_512 = {.name = "cpu-512",
                               .kind = TARGET_CPU,
                               .lanes = 16,
                               .registers = 32,
                               .gathers = true,
                               .next_value = NEXT_VALUE,
                               .backward_value = BACKWARD_VALUE,
                               .product = &wide_product};

const Target target_cpu_256 = {.name = "cpu-256",
                               .kind = TARGET_CPU,
                               .lanes = 8,
                               .registers = 16,
                               .next_value = NEXT_VALUE,
                               .backward_value = BACKWARD_VALUE,
                               .product = &narrow_product};

const Target target_cpu_128 = {.name = "cpu-128",
                               .kind = TARGET_CPU,
                               .lanes = 4,
                               .registers = 16,
                               .next_value = NEXT_VALUE,
                               .backward_value = BACKWARD_VALUE,
                               .product = &narrow_product};

/* CPUs, by the vectors that loops are blocked for. */
#include "codegen/target.h"

/* Sums in registers leave room for columns of b and an element of a, and need fewer loads than multiplications. */
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

const Target target_cpu_512 = {.name = "cpu-512",
                               .kind = TARGET_CPU,
                               .lanes = 16,
                               .registers = 32,
                               .gathers = true,
                               .product = &wide_product};

const Target target_cpu_256 = {.name = "cpu-256",
                               .kind = TARGET_CPU,
                               .lanes = 8,
                               .registers = 16,
                               .product = &narrow_product};

const Target target_cpu_128 = {.name = "cpu-128",
                               .kind = TARGET_CPU,
                               .lanes = 4,
                               .registers = 16,
                               .product = &narrow_product};

/* CPUs, by the vectors that loops are blocked for. */
#include "codegen/target.h"

/* Sums in registers leave room for columns of b and an element of a, and need fewer loads than multiplications. The panel
 * of b is depth x panel: a wider one has a read less often, a deeper one c. The second cache holds it, or, where it is so
 * narrow that the first one does, rows of a. */
const Target target_cpu_512 = {.name = "cpu-512",
                               .kind = TARGET_CPU,
                               .lanes = 16,
                               .registers = 32,
                               .gathers = true,
                               .product = {.rows = 8, /* 16 of 32 registers */
                                           .columns = 32,
                                           .depth = 256,
                                           .panel = {32, 256},
                                           .near_bytes = 768 << 10,
                                           .waiting_bytes = 128 << 10,
                                           .least_chunk = 64,
                                           .many_panels = 8}};

#define NARROW_PRODUCT                                                          \
	{                                                                       \
		.rows = 6, .columns = 16, .depth = 384, .panel = {128, 128},    \
		.waiting_bytes = 128 << 10, .least_chunk = 64, .many_panels = 8 \
	}
const Target target_cpu_256 = {.name = "cpu-256",
                               .kind = TARGET_CPU,
                               .lanes = 8,
                               .registers = 16,
                               .product = NARROW_PRODUCT}; /* 12 of 16 registers */

const Target target_cpu_128 = {.name = "cpu-128",
                               .kind = TARGET_CPU,
                               .lanes = 4,
                               .registers = 16,
                               .product = NARROW_PRODUCT};

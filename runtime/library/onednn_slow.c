/* Where the loops are faster than the library: one table, each row with what was measured. All that gradc knows of single
 * vendors and of single implementations of the library stands here. */
#include "runtime/library/onednn_slow.h"
#include "base/numbers/numbers.h"

#include <string.h>

/* ---- grouped convolutions by products over patches */
static bool
has_groups(const LibraryUse *u)
{
	return u->call->groups > 1;
}

/* ---- products by gemm:jit without AVX-512 */
/* On 1 / rows + 1 / columns of a tile: above it both matrices are read in place (oneDNN's nocopy_checker_avx2). */
#define IN_PLACE 0.0038
enum { LARGE_CACHE = 1 << 20, SHARED_ROWS = 4096 }; /* bytes */

static bool
reads_in_place(const LibraryUse *u)
{
	const LibraryOperand *second = &u->call->operands[LIBRARY_SECOND];
	const int64_t *dims = u->call->operands[LIBRARY_RESULT].dims, *y = second->strides;
	int rows = (int)second->rank - 2, columns = rows + 1;
	double height = (double)(u->axis == rows ? u->step : dims[rows]);
	double width = (double)(u->axis == columns ? u->step : dims[columns]);

	if (1 / height + 1 / width < IN_PLACE)
		return false;
	if (u->axis < rows)
		return y[columns] == 1 &&
		       dtype_bytes((DType)second->dtype, y[rows]) % SHARED_ROWS == 0;
	return u->second_cache < LARGE_CACHE || u->tiles < u->enough;
}

/* ---- products by brg, which reads the second matrix in place unless that lies along k, or its rows are a power of 2 apart */
enum { DEEP = 192, WIDE_BYTES = 8192, SHARED_BYTES = 2048 };

static bool
rows_share_lines(const LibraryUse *u)
{
	const LibraryOperand *y = &u->call->operands[LIBRARY_SECOND];
	int rows = (int)y->rank - 2, columns = rows + 1;
	int64_t bytes = dtype_bytes((DType)y->dtype, y->strides[rows]);

	return y->dtype == F32 && y->strides[columns] == 1 && y->dims[rows] >= DEEP &&
	       bytes > WIDE_BYTES && bytes % SHARED_BYTES == 0 && (bytes & (bytes - 1)) != 0;
}

/* ---- the table */
static bool
any_cpu(const LibraryUse *u)
{
	(void)u;
	return true;
}

static bool
without_avx512(const LibraryUse *u)
{
	return !u->avx512;
}

static bool
on_intel(const LibraryUse *u)
{
	return u->intel;
}

#define DOT (1u << LIBRARY_DOT)
#define CONVOLUTIONS \
	(1u << LIBRARY_CONV | 1u << LIBRARY_CONV_GRAD_INPUT | 1u << LIBRARY_CONV_GRAD_WEIGHT)

static const struct {
	const char *code; /* in the implementation's name */
	unsigned kinds;
	bool (*cpu)(const LibraryUse *u);
	bool (*slow)(const LibraryUse *u);
} slow_code[] = {
	/* Two cores with AVX2; groups of 1, 2, 4, 12, 36 and 100 channels, for which the library has nothing else: the loops
         * are 20 to 30, 6, 5, 3, 1.5 and 1.1 times as fast. It copies patches to memory before it multiplies. */
	{"gemm", CONVOLUTIONS, any_cpu, has_groups},
	/* One thread, AVX2, operands that no near cache holds: in place the library had a third to nine tenths of its speed with
         * copies, the loops seven to nine tenths. The loops are slower where there are many small products, unless rows of the
         * second matrix are a multiple of 4 KiB apart and share lines of the first cache. With a second cache of 2 MiB (Golden
         * Cove, AVX-512 off; 37 shapes of bench/gemm) what is read in place is 1.05 to 1.8 times as fast as the loops, as long
         * as there is a tile for each CPU. */
	{"gemm", DOT, without_avx512, reads_in_place},
	/* Sapphire Rapids, two cores: 512 x 768 x 3072 has 185 GFLOP/s, and 385 with the loops; over such widths the library
         * had 0.45 to 0.75 of the speed of other widths, the loops 0.9. A Zen 5 had all of it. */
	{"brg", DOT, on_intel, rows_share_lines},
};

bool
onednn_is_slow(const LibraryUse *u)
{
	for (int i = 0; i < COUNT(slow_code); i++)
		if (slow_code[i].kinds >> u->call->kind & 1 && strstr(u->name, slow_code[i].code) &&
		    slow_code[i].cpu(u) && slow_code[i].slow(u))
			return true;
	return false;
}

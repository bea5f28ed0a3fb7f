/* A table of cases in which gradc's generated loops are faster than oneDNN, with the measurements. All knowledge about vendors
 * of CPUs and about oneDNN's implementations (such as gemm:jit) is here. */
#include "runtime/library/onednn_slow.h"
#include "base/numbers/numbers.h"

#include <string.h>

/* ---- grouped convolutions that are products over patches */
static bool
has_groups(const LibraryUse *u)
{
	return u->call->groups > 1;
}

/* ---- products by gemm:jit without AVX-512 */
/* Bound for 1 / rows + 1 / columns of a tile. Above it, gemm:jit reads both matrices in place (oneDNN's nocopy_checker_avx2). */
#define IN_PLACE 0.0038
enum { LARGE_CACHE = 1 << 20, SHARED_ROWS = 4096 }; /* in bytes */

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

/* ---- products by brg, which reads the second matrix in place, unless its rows lie along k or are a power of 2 apart */
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
	const char *code; /* part of the implementation's name */
	unsigned kinds;
	bool (*cpu)(const LibraryUse *u);
	bool (*slow)(const LibraryUse *u);
} slow_code[] = {
	/* Two cores with AVX2; groups of 1, 2, 4, 12, 36 and 100 channels, for which the library has no other code. For these
	 * sizes, in this order, the loops are 20 to 30, 6, 5, 3, 1.5 and 1.1 times as fast, because the library copies patches
	 * to memory before it multiplies. */
	{"gemm", CONVOLUTIONS, any_cpu, has_groups},
	/* One thread, AVX2, operands larger than the L1 and L2 caches. If the library copies the matrices, it is the fastest.
	 * If it reads them in place, it has 0.33 to 0.9 times that speed; the loops have 0.7 to 0.9 times that speed. The loops
	 * are slower than the library in batches of small products, unless rows of the second matrix are a multiple of 4 KiB
	 * apart, and so compete for the same lines of the L1 cache. With an L2 cache of 2 MiB (Golden Cove, AVX-512 off; 37
	 * shapes of bench/gemm) the library that reads in place is 1.05 to 1.8 times as fast as the loops, as long as there is
	 * a tile for each CPU. */
	{"gemm", DOT, without_avx512, reads_in_place},
	/* Sapphire Rapids, two cores: 512 x 768 x 3072 reaches 185 GFLOP/s with the library, and 385 with the loops. At such
	 * widths the library is 0.45 to 0.75 times as fast as at other widths; the loops are 0.9 times as fast. A Zen 5 does
	 * not slow down. */
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

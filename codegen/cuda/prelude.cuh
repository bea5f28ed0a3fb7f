typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef bool _Bool;
#define INT64_C(x) x##ll
#define UINT64_C(x) x##ull
#define INT32_MIN (-2147483647 - 1)
#define INT32_MAX 2147483647
#define UINT32_MAX 4294967295u
#define INT64_MIN (-9223372036854775807ll - 1)
#define INT64_MAX 9223372036854775807ll
#define UINT64_MAX 18446744073709551615ull
typedef union {
	double f;
	uint64_t u;
} Scalar;

#define GRADC_BITS(FROM, TO, NAME, CALL) \
	static __device__ __forceinline__ TO NAME(FROM x) \
	{ \
		return (TO)CALL(x); \
	}
#define GRADC_SAME(x) (x)
GRADC_BITS(double, uint64_t, gradc_f64_bits_u64, __double_as_longlong)
GRADC_BITS(uint64_t, double, gradc_u64_bits_f64, __longlong_as_double)
GRADC_BITS(uint64_t, int64_t, gradc_u64_bits_s64, GRADC_SAME)
GRADC_BITS(int64_t, uint64_t, gradc_s64_bits_u64, GRADC_SAME)
GRADC_BITS(float, uint32_t, gradc_f32_bits_u32, __float_as_uint)
GRADC_BITS(uint32_t, float, gradc_u32_bits_f32, __uint_as_float)
GRADC_BITS(uint32_t, int32_t, gradc_u32_bits_s32, GRADC_SAME)
GRADC_BITS(int32_t, uint32_t, gradc_s32_bits_u32, GRADC_SAME)
GRADC_BITS(double, int64_t, gradc_f64_bits_s64, __double_as_longlong)
GRADC_BITS(int64_t, double, gradc_s64_bits_f64, __longlong_as_double)
GRADC_BITS(float, int32_t, gradc_f32_bits_s32, __float_as_int)
GRADC_BITS(int32_t, float, gradc_s32_bits_f32, __int_as_float)

/* Contiguous numbers that are moved at once, up to 16 bytes. */
template <typename T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
	T at[N];
};

/* A mask of the warp's lanes that are in the thread's team of so many members. */
static __device__ __forceinline__ uint32_t
gradc_lanes(int members)
{
	return ((1u << members) - 1) << (threadIdx.x % 32 & ~(members - 1));
}

/* Elements of 4 and 2 bits. */
static __device__ __forceinline__ uint32_t
gradc_packed_load(const uint8_t *at, int64_t i, int bits)
{
	return at[i / (8 / bits)] >> i % (8 / bits) * bits & ((1u << bits) - 1);
}
static __device__ __forceinline__ void
gradc_packed_store(uint8_t *at, int64_t i, int bits, uint32_t x)
{
	const int shift = (int)(i % (8 / bits)) * bits;
	const uint32_t mask = (1u << bits) - 1;

	at += i / (8 / bits);
	*at = (uint8_t)((*at & ~(mask << shift)) | (x & mask) << shift);
}

/* ---- arrays of a team: padded rows; rows permuted by units of 16 bytes, so that eight rows of a matrix lie
 * in different banks */
template <long long COLUMNS, long long PAD>
static __device__ __forceinline__ int
gradc_pad(int place)
{
	return place + place / (int)COLUMNS * (int)PAD;
}
template <long long COLUMNS, int SIZE>
static __device__ __forceinline__ int
gradc_swizzle(int place)
{
	const int units = (int)COLUMNS * SIZE / 16, per_line = units < 8 ? 8 / units : 1;
	const int row = place / (int)COLUMNS, unit = place % (int)COLUMNS * SIZE / 16;

	return place + ((unit ^ row / per_line % (units < 8 ? units : 8)) - unit) * (16 / SIZE);
}

/* ---- tiles: fragments of 16 x 8 elements, dealt out to warps. r: number of a lane's row; b: which of its
 * two columns in fragment j */
static __device__ __forceinline__ int
gradc_least(int x, int y)
{
	return x < y ? x : y;
}
static __device__ __forceinline__ int
gradc_tile_row(int warp, int r, int row_warps)
{
	return (warp % row_warps + r / 2 * row_warps) * 16 + r % 2 * 8 + (int)threadIdx.x % 32 / 4;
}
static __device__ __forceinline__ int
gradc_tile_column(int warp, int j, int b, int row_warps, int column_warps)
{
	return (warp / row_warps + j * column_warps) * 8 + (int)threadIdx.x % 4 * 2 + b;
}
/* Two contiguous numbers, at a multiple of their common size. */
template <typename T> struct alignas(2 * sizeof(T)) GradcTwo {
	T low, high;
};
static __device__ __forceinline__ uint32_t
gradc_two(uint16_t low, uint16_t high)
{
	return (uint32_t)high << 16 | low;
}

static __device__ inline float
gradc_load_bf16(uint32_t x)
{
	return __uint_as_float(x << 16);
}

/* ---- functions with instructions of their own: asm for a GPU, C++ for a CPU */
#ifdef __CUDACC_RTC__
extern __shared__ __align__(128) unsigned char gradc_shared[];
#define GRADC_SHARED(at) ((uint32_t)__cvta_generic_to_shared(at))

/* sum[16,8] += left[16,depth] * right[depth,8] over a warp, with the fragments of PTX's mma.sync. */
#define GRADC_MMA(NAME, SHAPE, TYPES) \
	static __device__ __forceinline__ void \
	gradc_mma_##NAME(float *sum, const uint32_t *left, const uint32_t *right) \
	{ \
		asm volatile("mma.sync.aligned." SHAPE ".row.col.f32." TYPES ".f32 " \
		             "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
		             : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]) \
		             : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), \
		               "r"(right[1])); \
	}
GRADC_MMA(bf16, "m16n8k16", "bf16.bf16")
GRADC_MMA(f16, "m16n8k16", "f16.f16")

static __device__ __forceinline__ void
gradc_mma_tf32(float *sum, const uint32_t *left, const uint32_t *right)
{
	asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
	             "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
	             : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
	             : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
}
static __device__ __forceinline__ uint32_t
gradc_tf32(float x)
{
	uint32_t bits;

	asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
	return bits;
}
/* Conversions of storage. PTX converts two f8 numbers in a register of 16 bits at once. sm_80 has no such
 * instruction and computes f8 from integers. */
static __device__ __forceinline__ float
gradc_load_f16(uint32_t x)
{
	float number;

	asm("cvt.f32.f16 %0, %1;" : "=f"(number) : "h"((uint16_t)x));
	return number;
}
static __device__ __forceinline__ uint32_t
gradc_store_f16(float x)
{
	uint16_t bits;

	asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
	return bits;
}
/* The instruction for two numbers takes a cycle of a warp, the one for a single number several. */
static __device__ __forceinline__ uint32_t
gradc_store_bf16(float x)
{
	uint32_t two;

	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(0.0f), "f"(x));
	return two;
}
/* 2^(x log2 e). The relative error is at most 2^-22 (PTX ISA, ex2.approx.ftz.f32) and that of the product,
 * |x| 2^-24. */
static __device__ __forceinline__ float
gradc_exp_fast_f32(float x)
{
	float power;

	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 0x1.715476p+0f));
	return power;
}
#if __CUDA_ARCH__ >= 890
static __device__ __forceinline__ float
gradc_load_f8e4m3(uint32_t x)
{
	uint32_t two;

	asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(two) : "h"((uint16_t)x));
	return gradc_load_f16(two & 0xffff);
}
static __device__ __forceinline__ uint32_t
gradc_store_f8e4m3(float x)
{
	uint16_t two;

	asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(0.0f), "f"(x));
	return two;
}
static __device__ __forceinline__ float
gradc_f32_to_f8e4m3_nearest_default(float x)
{
	return gradc_load_f8e4m3(gradc_store_f8e4m3(x));
}
#endif

/* Loads four or two matrices of 8 x 8 16-bit elements. Lane l names row l % 8 of matrix l / 8. */
#define GRADC_LDMATRIX(NAME, SUFFIX) \
	static __device__ __forceinline__ void \
	gradc_ldmatrix##NAME##_4(uint32_t *out, const uint16_t *row) \
	{ \
		asm volatile("ldmatrix.sync.aligned.m8n8.x4" SUFFIX ".shared.b16 {%0,%1,%2,%3}, [%4];" \
		             : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) \
		             : "r"(GRADC_SHARED(row)) : "memory"); \
	} \
	static __device__ __forceinline__ void \
	gradc_ldmatrix##NAME##_2(uint32_t *out, const uint16_t *row) \
	{ \
		asm volatile("ldmatrix.sync.aligned.m8n8.x2" SUFFIX ".shared.b16 {%0,%1}, [%2];" \
		             : "=r"(out[0]), "=r"(out[1]) : "r"(GRADC_SHARED(row)) : "memory"); \
	}
GRADC_LDMATRIX(, "")
GRADC_LDMATRIX(_trans, ".trans")

/* Copies BYTES bytes; stores zeros if `inside` is false. */
template <int BYTES>
static __device__ __forceinline__ void
gradc_copy(void *to, const void *from, bool inside)
{
	if (BYTES == 16)
		asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
		             :: "r"(GRADC_SHARED(to)), "l"(from), "r"(inside ? 16 : 0) : "memory");
	else
		asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
		             :: "r"(GRADC_SHARED(to)), "l"(from), "n"(BYTES == 16 ? 8 : BYTES),
		                "r"(inside ? BYTES : 0) : "memory");
}
static __device__ __forceinline__ void
gradc_copy_commit()
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int GROUPS>
static __device__ __forceinline__ void
gradc_copy_wait()
{
	asm volatile("cp.async.wait_group %0;" :: "n"(GROUPS) : "memory");
}
#else
static inline float
gradc_load_f16(uint32_t x)
{
	const uint16_t bits = (uint16_t)x;
	_Float16 half;

	__builtin_memcpy(&half, &bits, sizeof(half));
	return (float)half;
}
static inline uint32_t
gradc_store_f16(float x)
{
	const _Float16 half = (_Float16)x;
	uint16_t bits;

	__builtin_memcpy(&bits, &half, sizeof(bits));
	return x != x ? 0x7fff : bits;
}
static inline uint32_t
gradc_store_bf16(float x)
{
	const uint32_t bits = __float_as_uint(x);

	return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
/* Each element adds its products in the order of k. */
template <typename T>
static inline void
gradc_mma(float *sum, const uint32_t *left, const uint32_t *right, int depth, float (*number)(uint32_t))
{
	struct Registers {
		uint32_t left[4], right[2];
	} own = {{left[0], left[1], left[2], left[3]}, {right[0], right[1]}}, all[32];
	const int per = 4 / sizeof(T), lane = threadIdx.x % 32;

	gradc_gather(&own, all, sizeof(own));
	for (int e = 0; e < 4; e++)
		for (int k = 0; k < depth; k++) {
			const int row = lane / 4, column = lane % 4 * 2 + e % 2, half = k / (4 * per);
			const int at = k % (4 * per) / per, part = k % per;
			T x, y;

			__builtin_memcpy(&x, (char *)&all[row * 4 + at].left[half * 2 + e / 2] + part * sizeof(T), sizeof(T));
			__builtin_memcpy(&y, (char *)&all[column * 4 + at].right[half] + part * sizeof(T), sizeof(T));
			sum[e] = fmaf(number(x), number(y), sum[e]);
		}
}
static inline void
gradc_mma_bf16(float *sum, const uint32_t *left, const uint32_t *right)
{
	gradc_mma<uint16_t>(sum, left, right, 16, gradc_load_bf16);
}
static inline void
gradc_mma_f16(float *sum, const uint32_t *left, const uint32_t *right)
{
	gradc_mma<uint16_t>(sum, left, right, 16, gradc_load_f16);
}
static inline void
gradc_mma_tf32(float *sum, const uint32_t *left, const uint32_t *right)
{
	gradc_mma<uint32_t>(sum, left, right, 8, __uint_as_float);
}
static inline uint32_t
gradc_tf32(float x)
{
	return x != x ? 0x7fffffffu : (__float_as_uint(x) + 0x1000u) & ~0x1fffu;
}
/* The registers of `n` matrices. A lane has two neighbours of a row; of a transposed matrix, it has two
 * neighbours of a column. */
static inline void
gradc_matrices(uint32_t *out, const uint16_t *row, int n, bool transposed)
{
	const uint16_t *rows[32];
	const int lane = threadIdx.x % 32, x = lane / 4, y = lane % 4 * 2;

	gradc_gather(&row, rows, sizeof(row));
	for (int m = 0; m < n; m++)
		out[m] = transposed ? gradc_two(rows[m * 8 + y][x], rows[m * 8 + y + 1][x])
		                    : gradc_two(rows[m * 8 + x][y], rows[m * 8 + x][y + 1]);
}
#define GRADC_LDMATRIX(NAME, TRANSPOSED) \
	static inline void \
	gradc_ldmatrix##NAME##_4(uint32_t *out, const uint16_t *row) \
	{ \
		gradc_matrices(out, row, 4, TRANSPOSED); \
	} \
	static inline void \
	gradc_ldmatrix##NAME##_2(uint32_t *out, const uint16_t *row) \
	{ \
		gradc_matrices(out, row, 2, TRANSPOSED); \
	}
GRADC_LDMATRIX(, false)
GRADC_LDMATRIX(_trans, true)

template <int BYTES>
static inline void
gradc_copy(void *to, const void *from, bool inside)
{
	gradc_copy_start(to, inside ? from : nullptr, BYTES);
}
template <int GROUPS>
static inline void
gradc_copy_wait()
{
	gradc_copy_finish(GROUPS);
}
#endif

/* ---- conversions made of other conversions */
static __device__ __forceinline__ float
gradc_load_f8e5m2(uint32_t x)
{
	return gradc_load_f16(x << 8); /* the first half of an f16 */
}
static __device__ __forceinline__ float
gradc_f32_to_f16_nearest_default(float x)
{
	return gradc_load_f16(gradc_store_f16(x));
}
static __device__ __forceinline__ float
gradc_f32_to_bf16_nearest_default(float x)
{
	return gradc_load_bf16(gradc_store_bf16(x));
}

/* CUDA's names, for running printed kernels on a CPU. This file stands before the kernels' text, which includes nothing.
 * Operations that need several threads of a block are in block.cpp. */
#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(threads, blocks)
#define __shared__ static
#define __align__(bytes) __attribute__((aligned(bytes)))

/* the shared memory that a launch requests; an H100 has no more */
static unsigned char gradc_shared[227 << 10] __attribute__((aligned(128)));

struct Index3 {
	unsigned x, y, z;
};
/* The indices of the running thread. */
extern Index3 threadIdx, blockIdx, blockDim, gridDim;

extern "C" {
void harness_block_barrier(void);
void harness_warp_barrier(unsigned mask);
/* Lane `from` of the calling lane's group of `width` lanes has put `bytes` bytes at *own; copies them to *out. */
void harness_exchange(unsigned mask, const void *own, void *out, int bytes, int from, int width);
/* Gathers what every lane of the warp has put at *own, `bytes` bytes each, by lane. */
void harness_gather(const void *own, void *all, int bytes);
/* Asynchronous copies of a thread. A wait leaves at most the given number of groups unfinished. from NULL: copies zeros. */
void harness_copy_start(void *to, const void *from, int bytes);
void harness_copy_commit(void);
void harness_copy_finish(int groups);
float fabsf(float), sqrtf(float), floorf(float), ceilf(float), rintf(float),
	fmaf(float, float, float);
double fabs(double), sqrt(double), floor(double), ceil(double), rint(double),
	fma(double, double, double);
}
static inline void
__syncthreads()
{
	harness_block_barrier();
}
static inline void
__syncwarp(unsigned mask = 0xffffffffu)
{
	harness_warp_barrier(mask);
}
template <typename T>
static inline T
__shfl_sync(unsigned mask, T x, int from, int width = 32)
{
	T out;

	harness_exchange(mask, &x, &out, sizeof(T), from % width, width);
	return out;
}
/* A lane whose source lies outside its group gets its own value. */
template <typename T>
static inline T
__shfl_down_sync(unsigned mask, T x, int by, int width = 32)
{
	int lane = (int)(threadIdx.x % (unsigned)width);
	T out;

	harness_exchange(mask, &x, &out, sizeof(T), lane + by < width ? lane + by : lane, width);
	return out;
}

#define gradc_gather harness_gather
#define gradc_copy_start harness_copy_start
#define gradc_copy_commit harness_copy_commit
#define gradc_copy_finish harness_copy_finish

#define HARNESS_BITS(TO, FROM, NAME)                 \
	static inline TO NAME(FROM x)                \
	{                                            \
		TO y;                                \
		__builtin_memcpy(&y, &x, sizeof(y)); \
		return y;                            \
	}
HARNESS_BITS(long long, double, __double_as_longlong)
HARNESS_BITS(double, long long, __longlong_as_double)
HARNESS_BITS(unsigned, float, __float_as_uint)
HARNESS_BITS(float, unsigned, __uint_as_float)
HARNESS_BITS(int, float, __float_as_int)
HARNESS_BITS(float, int, __int_as_float)

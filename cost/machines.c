/* The machines that --machine accepts. Each number comes with its source. To add a machine, add
 * a row here and its name in the table at the end of the file.
 *
 * Datasheets give peaks: memory and arithmetic without any disturbance. "Reached" numbers were
 * measured by others with large square products of a library. Their sources, with the short
 * names used below:
 *
 *   [torch]   github.com/zzc0721/torch-performance-test-data, issue 79: H100 80GB HBM3, PyTorch 2.7, CUDA 12.8, TFLOP/s of
 *             4096^3: FP32 51.88, TF32 402, FP16 760, BF16 789
 *   [paddle]  github.com/PaddlePaddle/Paddle, pull request 30612: A100, 10240^3 in 0.113 s, with TF32 in 0.017 s
 *   [mamf]    Stas Bekman, ml-engineering, maximum achievable matmul FLOPS: A100 SXM 267.9 of 312 TFLOP/s in BF16
 *   [semi]    SemiAnalysis, MI300X vs H100 vs H200, part 1: H100 and H200 some 1280 of 1979 TFLOP/s in FP8
 *   [hpl]     glennklockwood.com/garden/processors/h100: Top500's HPL of H100 and H200 is 55 to 59 of 66.9 TFLOP/s a GPU
 *   [nccl]    github.com/NVIDIA/nccl, src/graph/tuning.cc at 01afd20a: the table from which NCCL chooses, for Ring and Simple
 *   [bus]     github.com/NVIDIA/nccl-tests, issue 212, an author of NCCL: of 450 GB/s each way NCCL reaches 370
 *   [stream]  github.com/te42kyfo/gpu-benches, cuda-stream: a V100 with half of its threads reaches 95 % of the rate that it
 *             reaches with all of them, if each thread has one load running; with a quarter of its threads 77 %
 *   [volkov]  V. Volkov, Better Performance at Lower Occupancy, GTC 2010: products reach full speed with only 8
 *             warps, if each warp computes many sums */
#include "cost/cost.h"

#include <string.h>

/* The chip of H100 and H200. Hopper tuning guide: an SM has 32 blocks, 64 warps and 228 KB of shared memory;
 * a block takes 1 KB more than its arrays. H100 whitepaper and datasheet: 132 SMs, 50 MB of second-level
 * cache, dense FLOP/s. */
static const Chip gh100 = {
	.processors = 132,
	.most_blocks = 32,
	.most_threads = 2048,
	.busy_threads = 1024, /* [stream] */
	.sum_threads = 256,   /* [volkov] */
	.shared_bytes = 228 << 10,
	.block_shared_bytes = 1 << 10,
	.cache_bytes = 50 << 20,
	.cache_rate = 8.986e12, /* 5120 bytes a clock at 1.755 GHz: PMC10448217, table 3 */
	.loop_rate[MATH_F32] = 66.9e12,
	.loop_rate[MATH_F64] = 33.5e12,
	.products[MATH_F32] = {66.9e12, 0.775},     /* [torch] */
	.products[MATH_F64] = {66.9e12, 0.85},      /* [hpl] */
	.products[MATH_TF32] = {494.7e12, 0.81},    /* [torch] */
	.products[MATH_16_BITS] = {989.4e12, 0.78}, /* [torch] */
	.products[MATH_8_BITS] = {1978.9e12, 0.65}, /* [semi] */
};

/* The chip of A100. Its whitepaper and datasheet, Ampere tuning guide. */
static const Chip ga100 = {
	.processors = 108,
	.most_blocks = 32,
	.most_threads = 2048,
	.busy_threads = 1024, /* [stream] */
	.sum_threads = 256,   /* [volkov] */
	.shared_bytes = 164 << 10,
	.block_shared_bytes = 1 << 10,
	.cache_bytes = 40 << 20,
	.cache_rate = 7.219e12, /* 5120 bytes a clock at 1.41 GHz: PMC10448217, table 3 */
	.loop_rate[MATH_F32] = 19.5e12,
	.loop_rate[MATH_F64] = 9.7e12,
	.products[MATH_F32] = {19.5e12, 0.97},    /* [paddle] */
	.products[MATH_F64] = {19.5e12, 0.85},    /* not published; as for H100 */
	.products[MATH_TF32] = {156e12, 0.81},    /* [paddle] */
	.products[MATH_16_BITS] = {312e12, 0.86}, /* [mamf] */
	.products[MATH_8_BITS] = {624e12, 0.65},  /* not published; as for H100 */
};

static const Machine h100 = {
	.name = "h100",
	.device = "NVIDIA H100 80GB HBM3",
	.title = "NVIDIA H100 SXM5 80 GB",
	.target = "cuda-sm_90",
	.chip = &gh100,
	.memory_rate = 3.35e12, /* HBM3: datasheet */
	.host_rate = 64e9,      /* PCIe Gen5 x16, 128 GB/s both ways: datasheet */
	.link_rate = 370e9,     /* NVLink 4, 900 GB/s both ways; [bus] */
	.launch = CUDA_LAUNCH,
	.host_latency = 5e-6,         /* not published; assumed */
	.joined = 8,                  /* an HGX board */
	.collective_latency = 8.4e-6, /* [nccl], also the hops */
	.link_hop = 3.4e-6,
	.network_hop = 9.6e-6,
};

static const Machine h200 = {
	.name = "h200",
	.device = "NVIDIA H200",
	.title = "NVIDIA H200 SXM5 141 GB",
	.target = "cuda-sm_90",
	.chip = &gh100,
	.memory_rate = 4.8e12, /* HBM3e: datasheet */
	.host_rate = 64e9,
	/* as H100 */ .link_rate = 370e9, /* as H100 */
	.launch = CUDA_LAUNCH,
	.host_latency = 5e-6,         /* not published; assumed */
	.joined = 8,                  /* an HGX board */
	.collective_latency = 8.4e-6, /* [nccl], also the hops */
	.link_hop = 3.4e-6,
	.network_hop = 9.6e-6,
};

static const Machine a100 = {
	.name = "a100",
	.device = "NVIDIA A100-SXM4",
	.title = "NVIDIA A100 SXM4 80 GB",
	.target = "cuda-sm_80",
	.chip = &ga100,
	.memory_rate = 2.039e12, /* HBM2e: datasheet */
	.host_rate = 32e9,       /* PCIe Gen4 x16, 64 GB/s both ways: datasheet */
	.link_rate = 235e9,      /* NVLink 3, 600 GB/s both ways; [nccl] */
	.launch = CUDA_LAUNCH,
	.host_latency = 5e-6,         /* not published; assumed */
	.joined = 8,                  /* an HGX board */
	.collective_latency = 8.4e-6, /* [nccl], also the hops */
	.link_hop = 3.4e-6,
	.network_hop = 9.6e-6,
};

const Machine *const machine_table[] = {&h100, &h200, &a100, NULL};

const Machine *
machine_find(const char *name)
{
	for (int i = 0; machine_table[i]; i++)
		if (strcmp(machine_table[i]->name, name) == 0)
			return machine_table[i];
	return NULL;
}

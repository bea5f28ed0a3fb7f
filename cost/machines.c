/* The machines that --machine accepts. Each number comes with its source. To add a machine, add
 * a row here and its name in the table at the end of the file.
 *
 * Datasheets give peaks: memory and arithmetic without any disturbance. "Reached" numbers that are not
 * fitted were measured by others with large square products of a library, begin and end of tiles included; alignment and
 * begin_k beside them are Hopper's. Their sources, with the short names used below:
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
 *   [fit]     bench/gpu/fit.py: bench/results/gpu-bench*.json
 *   [b200]    glennklockwood.com/garden/processors/B200 and B300, of NVIDIA's Blackwell datasheet: dense TFLOP/s of HGX B200 (1000 W) and of
 *             GB200 (1200 W)
 *   [verda]   verda.com/blog/gb300-nvl72-architecture: dense TFLOP/s and memory of GB300, GB200, B300, B200
 *   [cheese]  chipsandcheese.com, Nvidia's B200: 148 SMs, 126 MB of second-level cache, shared memory as H100's
 *   [ultra]   NVIDIA's developer blog, Inside Blackwell Ultra: 288 GB at 8 TB/s
 *   [xla]     github.com/openxla/xla, xla/backends/gpu/target_config/specs: multiprocessors of GB200 and GB300
 *   [nvl72]   NVIDIA's GB200 NVL72 datasheet, a 72nd of it
 *   [ada]     NVIDIA Ada GPU architecture whitepaper; Ada tuning guide: an SM has 24 blocks, 48 warps and 100 KB of shared memory
 *   [l4]      NVIDIA L4 datasheet: 300 GB/s, 30.3 TFLOP/s of f32, which are 58 SMs of 2040 MHz; half of its figures with sparsity
 *   [volkov]  V. Volkov, Better Performance at Lower Occupancy, GTC 2010: products reach full speed with only 8
 *             warps, if each warp computes many sums */
#include "cost/cost.h"

#include <ctype.h>
#include <string.h>

/* Fitted to 621 launches of four models in tf32 and bf16 on an H100 and an H200 (bench/gpu/fit.py, docs/cost-model.md). Other
 * chips were not measured; these numbers are taken for them, too. */
static const CostFit hopper_fit = {
	.cached_bytes = 4e6,
	.start_seconds = 1.01e-6,
	.overlap = 2.0,
	.step_seconds = 0.183e-6,
	.cached_step = 0.81,
	.alone_slowdown = 1.57,
	.tile_reached = 0.059,
	.call_seconds = 4.4e-6,
	.call_overlap = 3.1,
	.split_seconds = 4.9e-6,
	.unaligned_memory = 0.6,
};

/* The chip of H100 and H200. Hopper tuning guide: an SM has 32 blocks, 64 warps and 228 KB of shared memory;
 * a block takes 1 KB more than its arrays. H100 whitepaper and datasheet: 132 SMs, 50 MB of second-level
 * cache, dense FLOP/s. */
static const Chip gh100 = {
	.fit = &hopper_fit,
	.measured = true,
	.processors = 132,
	.most_blocks = 32,
	.most_threads = 2048,
	.busy_threads = 1024, /* [stream] */
	.sum_threads = 256,   /* [volkov] */
	.shared_bytes = 228 << 10,
	.block_shared_bytes = 1 << 10,
	.cache_rate = 8.986e12, /* 5120 bytes a clock at 1.755 GHz: PMC10448217, table 3 */
	.loop_rate[MATH_F32] = 66.9e12,
	.loop_rate[MATH_F64] = 33.5e12,
	.sync_reached =
		0.5, /* wgmma reaches the peak; mma.sync 1024 products a clock of 2048, not measured here */
	.products[MATH_F32] = {66.9e12, 0.775, 84, 1, 4, 1},           /* [torch] */
	.products[MATH_F64] = {66.9e12, 0.85, 84, 1, 8, 1},            /* [hpl] */
	.products[MATH_TF32] = {494.7e12, 0.733, 130, 0.605, 16, 1},   /* [fit] */
	.products[MATH_16_BITS] = {989.4e12, 0.881, 84, 1, 16, 0.137}, /* [fit] */
	.products[MATH_8_BITS] = {1978.9e12, 0.65, 84, 1, 16, 0.137},  /* [semi] */
};

/* The chip of A100. Its whitepaper and datasheet, Ampere tuning guide. */
static const Chip ga100 = {
	.fit = &hopper_fit,
	.processors = 108,
	.most_blocks = 32,
	.most_threads = 2048,
	.busy_threads = 1024, /* [stream] */
	.sum_threads = 256,   /* [volkov] */
	.shared_bytes = 164 << 10,
	.block_shared_bytes = 1 << 10,
	.cache_rate = 7.219e12, /* 5120 bytes a clock at 1.41 GHz: PMC10448217, table 3 */
	.loop_rate[MATH_F32] = 19.5e12,
	.loop_rate[MATH_F64] = 9.7e12,
	.sync_reached = 0.86, /* as a library's products, which use the same instructions */
	.products[MATH_F32] = {19.5e12, 0.97, 84, 1, 4, 1},         /* [paddle] */
	.products[MATH_F64] = {19.5e12, 0.85, 84, 1, 8, 1},         /* not published; as for H100 */
	.products[MATH_TF32] = {156e12, 0.81, 130, 1, 16, 1},       /* [paddle] */
	.products[MATH_16_BITS] = {312e12, 0.86, 84, 1, 16, 0.137}, /* [mamf] */
	.products[MATH_8_BITS] = {624e12, 0.65, 84, 1, 16, 0.137},  /* not published; as for H100 */
};

/* Blackwell chips have no measured launches: what reaches the peak is taken from Hopper. The rate of the cache is not published:
 * 64 bytes a clock for each multiprocessor (Hopper: 39). */
#define BLACKWELL                                                                          \
	.fit = &hopper_fit, .most_blocks = 32, .most_threads = 2048, .busy_threads = 1024, \
	.sum_threads = 256, .shared_bytes = 228 << 10, .block_shared_bytes = 1 << 10

static const Chip gb100 = {
	BLACKWELL,
	.processors = 148, /* [cheese] */
	.cache_rate = 148 * 64 * 1.85e9,
	.loop_rate[MATH_F32] = 75e12, /* [verda] */
	.loop_rate[MATH_F64] = 37e12, /* [b200] */
	.sync_reached = 0.25,         /* not published: as many products a clock as Hopper */
	.products[MATH_F32] = {75e12, 0.775, 84, 1, 4, 1},
	.products[MATH_F64] = {37e12, 0.85, 84, 1, 8, 1},
	.products[MATH_TF32] = {1100e12, 0.733, 130, 0.605, 16, 1},   /* [b200] */
	.products[MATH_16_BITS] = {2250e12, 0.881, 84, 1, 16, 0.137}, /* [b200] */
	.products[MATH_8_BITS] = {4500e12, 0.65, 84, 1, 16, 0.137},   /* [b200] */
};

/* The chip of B200, with the power of a GB200 board. */
static const Chip gb100_1200w = {
	BLACKWELL,
	.processors = 152, /* [xla] */
	.cache_rate = 152 * 64 * 2.0e9,
	.loop_rate[MATH_F32] = 80e12, /* [nvl72] */
	.loop_rate[MATH_F64] = 40e12,
	.sync_reached = 0.25, /* not published: as many products a clock as Hopper */
	.products[MATH_F32] = {80e12, 0.775, 84, 1, 4, 1},
	.products[MATH_F64] = {40e12, 0.85, 84, 1, 8, 1},
	.products[MATH_TF32] = {1250e12, 0.733, 130, 0.605, 16, 1},   /* [b200] */
	.products[MATH_16_BITS] = {2500e12, 0.881, 84, 1, 16, 0.137}, /* [b200] */
	.products[MATH_8_BITS] = {5000e12, 0.65, 84, 1, 16, 0.137},   /* [b200] */
};

/* Blackwell Ultra. It has next to no f64. */
static const Chip gb110 = {
	BLACKWELL,
	.processors = 152, /* [xla] */
	.cache_rate = 152 * 64 * 2.0e9,
	.loop_rate[MATH_F32] = 80e12,  /* [verda] */
	.loop_rate[MATH_F64] = 1.3e12, /* [b200], of B300 */
	.sync_reached = 0.25,          /* not published: as many products a clock as Hopper */
	.products[MATH_F32] = {80e12, 0.775, 84, 1, 4, 1},
	.products[MATH_F64] = {1.3e12, 0.85, 84, 1, 8, 1},
	.products[MATH_TF32] = {1250e12, 0.733, 130, 0.605, 16, 1},   /* [verda] */
	.products[MATH_16_BITS] = {2500e12, 0.881, 84, 1, 16, 0.137}, /* [verda] */
	.products[MATH_8_BITS] = {5000e12, 0.65, 84, 1, 16, 0.137},   /* [verda] */
};

/* Ada. No launches were measured: fractions of the peaks are taken from A100. The rate of the cache is not published: 32 bytes a
 * clock for each multiprocessor. */
#define ADA                                                                               \
	.fit = &hopper_fit, .most_blocks = 24, .most_threads = 1536, .busy_threads = 768, \
	.sum_threads = 256, .shared_bytes = 100 << 10, .block_shared_bytes = 1 << 10

static const Chip ad102 = {
	ADA,
	.processors = 128, /* [ada], of an RTX 4090, as the numbers below */
	.cache_rate = 128 * 32 * 2.52e9,
	.loop_rate[MATH_F32] = 82.6e12,
	.loop_rate[MATH_F64] = 1.29e12,
	.sync_reached = 0.86, /* as a library's products, which use the same instructions */
	.products[MATH_F32] = {82.6e12, 0.775, 84, 1, 4, 1},
	.products[MATH_F64] = {1.29e12, 0.85, 84, 1, 8, 1},
	.products[MATH_TF32] = {82.6e12, 0.81, 130, 1, 16, 1},
	.products[MATH_16_BITS] = {165.2e12, 0.86, 84, 1, 16, 0.137}, /* with sums in f32 */
	.products[MATH_8_BITS] = {330.3e12, 0.65, 84, 1, 16, 0.137},
};

static const Chip ad104 = {
	ADA,
	.processors = 58, /* [l4], as the numbers below */
	.cache_rate = 58 * 32 * 2.04e9,
	.loop_rate[MATH_F32] = 30.3e12,
	.loop_rate[MATH_F64] = 0.47e12,
	.sync_reached = 0.86, /* as a library's products, which use the same instructions */
	.products[MATH_F32] = {30.3e12, 0.775, 84, 1, 4, 1},
	.products[MATH_F64] = {0.47e12, 0.85, 84, 1, 8, 1},
	.products[MATH_TF32] = {60e12, 0.81, 130, 1, 16, 1},
	.products[MATH_16_BITS] = {121e12, 0.86, 84, 1, 16, 0.137},
	.products[MATH_8_BITS] = {242.5e12, 0.65, 84, 1, 16, 0.137},
};

static const Machine h100 = {
	.name = "h100",
	.device = "NVIDIA H100 80GB HBM3",
	.title = "NVIDIA H100 SXM5 80 GB",
	.target = "cuda-sm_90",
	.chip = &gh100,
	.memory_rate = 3.35e12,  /* HBM3: datasheet */
	.memory_reached = 0.918, /* [fit] */
	.host_rate = 64e9,       /* PCIe Gen5 x16, 128 GB/s both ways: datasheet */
	.link_rate = 370e9,      /* NVLink 4, 900 GB/s both ways; [bus] */
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
	.memory_rate = 4.8e12,   /* HBM3e: datasheet */
	.memory_reached = 0.882, /* [fit] */
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
	.memory_reached = 0.9,   /* not measured; as H100 and H200 */
	.host_rate = 32e9,       /* PCIe Gen4 x16, 64 GB/s both ways: datasheet */
	.link_rate = 235e9,      /* NVLink 3, 600 GB/s both ways; [nccl] */
	.launch = CUDA_LAUNCH,
	.host_latency = 5e-6,         /* not published; assumed */
	.joined = 8,                  /* an HGX board */
	.collective_latency = 8.4e-6, /* [nccl], also the hops */
	.link_hop = 3.4e-6,
	.network_hop = 9.6e-6,
};

/* Of Blackwell boards: NVLink 5 has twice the rate of NVLink 4; what collectives reach of it, and their latencies, are taken from
 * H100. */
#define NVLINK_5 \
	.link_rate = 740e9, .collective_latency = 8.4e-6, .link_hop = 3.4e-6, .network_hop = 9.6e-6

static const Machine b200 = {
	.name = "b200",
	.device = "NVIDIA B200",
	.title = "NVIDIA HGX B200 180 GB",
	.target = "cuda-sm_100",
	.chip = &gb100,
	.memory_rate = 7.7e12,   /* HBM3e: [verda] */
	.memory_reached = 0.882, /* not measured; as H200 */
	.host_rate = 64e9,       /* PCIe Gen5 x16 */
	.launch = CUDA_LAUNCH,
	.host_latency = 5e-6,
	.joined = 8,
	NVLINK_5,
};

static const Machine gb200 = {
	.name = "gb200",
	.device = "NVIDIA GB200",
	.title = "NVIDIA GB200 NVL72, one GPU of 186 GB",
	.target = "cuda-sm_100",
	.chip = &gb100_1200w,
	.memory_rate = 8e12,     /* HBM3e: datasheet */
	.memory_reached = 0.882, /* not measured; as H200 */
	.host_rate = 225e9,      /* NVLink-C2C, 900 GB/s both ways for two GPUs: datasheet */
	.launch = CUDA_LAUNCH,
	.host_latency = 5e-6,
	.joined = 72,
	NVLINK_5,
};

static const Machine gb300 = {
	.name = "gb300",
	.device = "NVIDIA GB300",
	.title = "NVIDIA GB300 NVL72, one GPU of 288 GB",
	.target = "cuda-sm_100",
	.chip = &gb110,
	.memory_rate = 8e12,     /* HBM3e: [ultra] */
	.memory_reached = 0.882, /* not measured; as H200 */
	.host_rate = 225e9,      /* as GB200 */
	.launch = CUDA_LAUNCH,
	.host_latency = 5e-6,
	.joined = 72,
	NVLINK_5,
};

/* Ada cards have no NVLink: ranks send over PCIe Gen4 x16. Latencies as H100. */
#define PCIE_4                                                                           \
	.host_rate = 32e9, .link_rate = 26e9, .joined = 8, .collective_latency = 8.4e-6, \
	.link_hop = 9.6e-6, .network_hop = 9.6e-6

static const Machine l4 = {
	.name = "l4",
	.device = "NVIDIA L4",
	.title = "NVIDIA L4 24 GB",
	.target = "cuda-sm_80",
	.chip = &ad104,
	.memory_rate = 0.3e12, /* GDDR6: [l4] */
	.memory_reached = 0.9, /* not measured; as H100 and H200 */
	.launch = CUDA_LAUNCH,
	.host_latency = 5e-6,
	PCIE_4,
};

static const Machine rtx_4090 = {
	.name = "rtx-4090",
	.device = "NVIDIA GeForce RTX 4090",
	.title = "NVIDIA GeForce RTX 4090 24 GB",
	.target = "cuda-sm_80",
	.chip = &ad102,
	.memory_rate = 1.008e12, /* GDDR6X: [ada] */
	.memory_reached = 0.9,   /* not measured; as H100 and H200 */
	.launch = CUDA_LAUNCH,
	.host_latency = 5e-6,
	PCIE_4,
};

const Machine *const machine_table[] = {&h100,  &h200, &a100,     &b200, &gb200,
                                        &gb300, &l4,   &rtx_4090, NULL};

/* A device's name goes on behind the row's: "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB". An L40 is no L4. */
const Machine *
machine_of_device(const char *name)
{
	for (int i = 0; machine_table[i]; i++) {
		size_t n = strlen(machine_table[i]->device);
		if (strncmp(name, machine_table[i]->device, n) == 0 &&
		    !isalnum((unsigned char)name[n]))
			return machine_table[i];
	}
	return NULL;
}

const Machine *
machine_find(const char *name)
{
	for (int i = 0; machine_table[i]; i++)
		if (strcmp(machine_table[i]->name, name) == 0)
			return machine_table[i];
	return NULL;
}

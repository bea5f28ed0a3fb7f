/* Describes some kinds of GPU by numbers (memory, caches, clocks), so that the compiler can ask cuDNN for plans on a machine
 * without a GPU. For a GPU that is not in the table, plans are made when training starts.
 *
 * The numbers are from OpenXLA, which describes GPUs to cuDNN in the same way: github.com/openxla/xla, in
 * xla/backends/gpu/target_config/specs a100_sxm_80.txtpb (4336d12e), h100_sxm.txtpb (0774019d) and b200.txtpb (300ec95a). The
 * A100's memory clock and the widths of the buses are computed from the bytes per second given there, with two bits per line
 * and clock. PCI numbers: pci-ids.ucw.cz. Numbers that all GPUs share: CUDA C++ Programming Guide, technical specifications per
 * compute capability. */
#include "cudnn/cudnn.h"

#include <stdlib.h>
#include <string.h>

const DescribedGpu described_gpus[] = {
	{.name = "NVIDIA A100-SXM4-80GB",
         .capability = 80,
         .processors = 108,
         .pci = 0x20b2,
         .most_shared = 163 << 10,
         .cache = 40 << 20,
         .memory = 85100068864,
         .clock = 1410000,
         .memory_clock = 1593000,
         .bus = 5120},
	{.name = "NVIDIA H100 80GB HBM3",
         .capability = 90,
         .processors = 132,
         .pci = 0x2330,
         .most_shared = 227 << 10,
         .cache = 50 << 20,
         .memory = 84942979072,
         .clock = 1980000,
         .memory_clock = 2619000,
         .bus = 5120},
	{.name = "NVIDIA B200",
         .capability = 100,
         .processors = 148,
         .pci = 0x2901,
         .most_shared = 227 << 10,
         .cache = 132644864,
         .memory = 191514411008,
         .clock = 1965000,
         .memory_clock = 3996000,
         .bus = 7680},
	{0},
};

const DescribedGpu *
described_gpu_find(const char *architecture)
{
	const char *number = strchr(architecture, '_');

	for (const DescribedGpu *g = described_gpus; number && g->name; g++)
		if (atoi(number + 1) == g->capability)
			return g;
	return NULL;
}

/* The driver's version in a description, here CUDA 13: cuDNN refuses plans that were made for a driver of an older or newer
 * generation. */
enum { DRIVER = 13000 };

void
described_gpu_print(Text *out, const DescribedGpu *g)
{
	text_printf(out,
	            "{\"cudaDeviceId\":0,\"deviceVer\":%d,\"driverVer\":%d,\"deviceName\":\"%s\","
	            "\"pciDeviceId\":%d,\"isTccDriver\":0,\"supportCoopLaunch\":1,",
	            10 * g->capability, DRIVER, g->name, g->pci);
	text_printf(out,
	            "\"multiProcessorCount\":%d,\"warpSize\":32,\"maxThreadsPerBlock\":1024,"
	            "\"maxThreadsPerSM\":2048,\"maxCtasPerSM\":32,\"regsPerBlock\":65536,"
	            "\"maxRegistersPerSM\":65536,\"maxGridSize\":[2147483647,65535,65535],"
	            "\"maxBlockSize\":[1024,1024,64],",
	            g->processors);
	text_printf(out,
	            "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":%d,"
	            "\"reservedSharedMemoryPerBlock\":1024,\"l2CacheSize\":%d,"
	            "\"totalGlobalMem\":%lld,",
	            g->most_shared, g->cache, (long long)g->memory);
	text_printf(out, "\"smClockRateKHz\":%d,\"memClockRateKHz\":%d,\"memoryBusWidth\":%d}",
	            g->clock, g->memory_clock, g->bus);
}

Status
described_gpu_open(CudnnDescriptors *d, const DescribedGpu *g, void **out)
{
	Text text = {0};

	*out = cudnn_new(d, CUDNN_GPU_DESCRIPTOR);
	described_gpu_print(&text, g);
	cudnn_set(d, *out, CUDNN_GPU_JSON, CUDNN_CHARACTERS, (int64_t)text.n, text.at);
	cudnn_finish(d, *out);
	text_free(&text);
	return cudnn_status(d->dnn, d->code, g->name);
}

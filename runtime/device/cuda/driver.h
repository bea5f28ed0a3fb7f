/* Private to runtime/device/cuda: CUDA's driver, libcuda.so.1, opened with dlopen. Neither building gradc nor running on a CPU
 * needs CUDA. The declarations here are gradc's own, for the interface that CUDA's cuda.h describes. */
#ifndef GRADC_RUNTIME_DEVICE_CUDA_DRIVER_H
#define GRADC_RUNTIME_DEVICE_CUDA_DRIVER_H

#include "base/base.h"

/* CUmemPoolProps */
typedef struct {
	int allocation, handles; /* CUmemAllocationType, CUmemAllocationHandleType */
	struct {
		int kind, id; /* CUmemLocation */
	} location;
	void *security;
	size_t most_bytes;
	unsigned short usage;
	unsigned char reserved[54];
} CudaPoolProperties;

/* The values of CUresult that the code compares with. */
enum {
	CUDA_OK = 0,
	CUDA_OUT_OF_MEMORY = 2,
	CUDA_NO_DEVICE = 100,
	CUDA_UNKNOWN = 999,
	CUDA_NOT_READY = 600,
};
/* The values that are used, from CUdevice_attribute, CUfunction_attribute, CUmemPool_attribute, CUjit_option and other enums. */
enum {
	CUDA_DEVICE_PROCESSORS = 16,
	CUDA_DEVICE_CLOCK = 13, /* kHz */
	CUDA_DEVICE_MEMORY_CLOCK = 36,
	CUDA_DEVICE_BUS_WIDTH = 37,
	CUDA_DEVICE_MAJOR = 75,
	CUDA_DEVICE_MINOR = 76,
	CUDA_DEVICE_MOST_SHARED = 97, /* most bytes of shared memory per block */
	CUDA_DEVICE_HAS_POOLS = 115,

	CUDA_FUNCTION_DYNAMIC_SHARED = 8,

	CUDA_POOL_KEPT = 4,          /* uint64_t: bytes that the pool keeps */
	CUDA_POOL_RESERVED_HIGH = 6, /* uint64_t: most bytes the pool has held */

	CUDA_JIT_LOG = 5,
	CUDA_JIT_LOG_BYTES = 6,

	CUDA_ALLOCATION_PINNED = 1,
	CUDA_LOCATION_DEVICE = 1,
	CUDA_STREAM_NON_BLOCKING = 1,
	CUDA_HOST_PORTABLE = 1,
	CUDA_CAPTURE_RELAXED = 2,
};

typedef struct {
	void *library;
#define CUDA_SYMBOL(name, symbol, parameters) int(*name) parameters;
#include "runtime/device/cuda/driver_symbols.def"
#undef CUDA_SYMBOL
	int version; /* CUDA version of the driver: 1000 * major + 10 * minor */
} CudaDriver;

/* EXIT_SYSTEM, with the reason, if there is no driver, the driver is too old, or it sees no GPU. The library stays loaded. */
Status cuda_driver_open(CudaDriver *out);
/* NULL for CUDA_OK. Otherwise a status that says in words what the CUresult `code` means, with gradc's exit code for it. what:
 * what was being done, such as "kernel dot_3"; may be NULL. */
Status cuda_status(const CudaDriver *driver, int code, const char *what);

/* ---- gpu.c: a GPU that the driver sees */
typedef struct {
	int ordinal, device; /* number in this process; the driver's handle */
	char name[128];      /* "NVIDIA H100 80GB HBM3" */
	uint64_t uuid[2];    /* unique among all GPUs, and all instances of a GPU */
	char bus[32];        /* "0000:1b:00.0" */
	int major, minor;    /* compute capability */
	int processors;
	int64_t bytes; /* size of the memory */
	bool has_pools;
} Gpu;
/* A fault that says why the driver sees no GPU. */
Status gpu_none(const CudaDriver *driver);
Status gpu_find(const CudaDriver *driver, int ordinal, Gpu *out);
/* Does the GPU run code of that name? "sm_90" runs on every GPU 9.x, "sm_90a" only on 9.0, PTX "compute_80" on 8.0 and all
 * newer GPUs. */
bool gpu_runs(const Gpu *gpu, const char *image);

#endif

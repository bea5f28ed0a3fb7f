/* CUDA's driver, libcuda.so.1, opened with dlopen: nothing of CUDA is needed to build gradc or to run on a CPU. The declarations are
 * our own, of the driver's interface as cuda.h describes it. */
#ifndef GRADC_RUNTIME_CUDA_DRIVER_H
#define GRADC_RUNTIME_CUDA_DRIVER_H

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

/* Of CUresult: those that somebody asks for. */
enum {
	CUDA_OK = 0,
	CUDA_OUT_OF_MEMORY = 2,
	CUDA_NO_DEVICE = 100,
	CUDA_UNKNOWN = 999,
	CUDA_NOT_READY = 600,
};
/* Of CUdevice_attribute, CUfunction_attribute, CUmemPool_attribute, CUjit_option and other enums: those that are used. */
enum {
	CUDA_DEVICE_PROCESSORS = 16,
	CUDA_DEVICE_CLOCK = 13, /* kHz */
	CUDA_DEVICE_MEMORY_CLOCK = 36,
	CUDA_DEVICE_BUS_WIDTH = 37,
	CUDA_DEVICE_MAJOR = 75,
	CUDA_DEVICE_MINOR = 76,
	CUDA_DEVICE_MOST_SHARED = 97, /* bytes that a block may ask for */
	CUDA_DEVICE_HAS_POOLS = 115,

	CUDA_FUNCTION_DYNAMIC_SHARED = 8,

	CUDA_POOL_KEPT = 4,          /* uint64_t: bytes that stay with the pool */
	CUDA_POOL_RESERVED_HIGH = 6, /* uint64_t */

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
	int version; /* 1000 * major + 10 * minor, of the CUDA that the driver is made for */
} CudaDriver;

/* EXIT_SYSTEM where there is none, it is too old, or it sees no GPU; the message says which. It stays loaded. */
Status cuda_driver_open(CudaDriver *out);
/* NULL for CUDA_OK; else what the code means, in words, with the exit code for it. what: what was being done, "kernel dot_3";
 * NULL: nothing in particular. */
Status cuda_status(const CudaDriver *driver, int code, const char *what);

/* ---- gpu.c: one of the GPUs that the driver sees */
typedef struct {
	int ordinal, device; /* the driver's number for it */
	char name[128];      /* "NVIDIA H100 80GB HBM3" */
	uint64_t uuid[2];    /* of all GPUs, and of all instances of one */
	char bus[32];        /* "0000:1b:00.0" */
	int major, minor;    /* compute capability */
	int processors;
	int64_t bytes; /* of memory */
	bool has_pools;
} Gpu;
/* Why none is visible. */
Status gpu_none(const CudaDriver *driver);
Status gpu_find(const CudaDriver *driver, int ordinal, Gpu *out);
/* Does it run code of that name: "sm_90" on each GPU 9.x, "sm_90a" on 9.0 alone, PTX "compute_80" on 8.0 and all newer ones? */
bool gpu_runs(const Gpu *gpu, const char *image);

#endif

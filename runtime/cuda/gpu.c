/* What a GPU is, and which code it runs. */
#include "runtime/cuda/driver.h"

#include <stdlib.h>
#include <string.h>

static Status
not_there(const CudaDriver *d, int ordinal, int n)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");

	if (n == 0 && visible)
		return status_error(
			EXIT_SYSTEM,
			"CUDA: no GPU is visible, with CUDA_VISIBLE_DEVICES=%s: `nvidia-smi -L` "
			"lists numbers and names that it takes; with MIG it names an instance",
			visible);
	if (n == 0)
		return cuda_status(d, CUDA_NO_DEVICE, NULL);
	return status_error(EXIT_SYSTEM, "cuda:%d: there are %d GPUs, from cuda:0 on%s%s", ordinal,
	                    n, visible ? ", with CUDA_VISIBLE_DEVICES=" : "",
	                    visible ? visible : "");
}

static int
attribute(const CudaDriver *d, const Gpu *gpu, int which)
{
	int value = 0;

	return d->DeviceGetAttribute(&value, which, gpu->device) == CUDA_OK ? value : 0;
}

Status
gpu_find(const CudaDriver *d, int ordinal, Gpu *out)
{
	size_t bytes = 0;
	int n = 0, code = d->DeviceGetCount(&n);

	*out = (Gpu){.ordinal = ordinal};
	if (code != CUDA_OK && code != CUDA_NO_DEVICE)
		return cuda_status(d, code, "looking for GPUs");
	if (ordinal < 0 || ordinal >= n)
		return not_there(d, ordinal, n);
	RETURN_IF_ERROR(cuda_status(d, d->DeviceGet(&out->device, ordinal), "looking for a GPU"));
	RETURN_IF_ERROR(cuda_status(d, d->DeviceGetName(out->name, sizeof(out->name), out->device),
	                            "name of a GPU"));
	RETURN_IF_ERROR(cuda_status(d, d->DeviceTotalMem(&bytes, out->device), "memory of a GPU"));
	d->DeviceGetPCIBusId(out->bus, sizeof(out->bus), out->device);
	out->bytes = (int64_t)bytes;
	out->major = attribute(d, out, CUDA_DEVICE_MAJOR);
	out->minor = attribute(d, out, CUDA_DEVICE_MINOR);
	out->processors = attribute(d, out, CUDA_DEVICE_PROCESSORS);
	out->has_pools = attribute(d, out, CUDA_DEVICE_HAS_POOLS) != 0;
	return NULL;
}

/* "sm_90a": the last digit is the minor number; a letter says that it uses what other GPUs lack. */
bool
gpu_runs(const Gpu *gpu, const char *image)
{
	const char *number = strchr(image, '_');
	char *end;

	if (!number)
		return false;
	long of = strtol(number + 1, &end, 10);
	long own = gpu->major * 10 + gpu->minor;
	if (*end == 'a')
		return of == own;
	if (strncmp(image, "sm_", 3) == 0 || *end)
		return of / 10 == gpu->major && of <= own;
	return of <= own;
}

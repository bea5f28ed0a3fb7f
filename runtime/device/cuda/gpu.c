/* Describes a GPU (name, memory, compute capability), and says which compiled code the GPU can run. */
#include "base/base.h"
#include "runtime/device/cuda/driver.h"

#include <stdlib.h>
#include <string.h>

Status
gpu_none(const CudaDriver *d)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");

	if (!visible)
		return cuda_status(d, CUDA_NO_DEVICE, NULL);
	return status_error(
		EXIT_SYSTEM,
		"CUDA: no GPU is visible, with CUDA_VISIBLE_DEVICES=%s: `nvidia-smi -L` "
		"lists numbers and names that it takes; with MIG it names an instance",
		visible);
}

static Status
not_there(int ordinal, int n)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	char count[64];

	snprintf(count, sizeof(count), n == 1 ? "is %d GPU, cuda:0" : "are %d GPUs, from cuda:0 on",
	         n);
	return status_error(EXIT_SYSTEM, "cuda:%d: there %s%s%s", ordinal, count,
	                    visible ? ", with CUDA_VISIBLE_DEVICES=" : "", visible ? visible : "");
}

static Status
read_attributes(const CudaDriver *d, Gpu *gpu)
{
	int pools = 0;
	const struct {
		int which, *value;
	} all[] = {{CUDA_DEVICE_MAJOR, &gpu->major},
	           {CUDA_DEVICE_MINOR, &gpu->minor},
	           {CUDA_DEVICE_PROCESSORS, &gpu->processors},
	           {CUDA_DEVICE_HAS_POOLS, &pools}};

	for (int i = 0; i < COUNT(all); i++)
		RETURN_IF_ERROR(cuda_status(
			d, d->DeviceGetAttribute(all[i].value, all[i].which, gpu->device),
			"what a GPU is"));
	gpu->has_pools = pools != 0;
	return NULL;
}

Status
gpu_find(const CudaDriver *d, int ordinal, Gpu *out)
{
	size_t bytes = 0;
	int n = 0, code = d->DeviceGetCount(&n);

	*out = (Gpu){.ordinal = ordinal};
	if (code != CUDA_OK && code != CUDA_NO_DEVICE)
		return cuda_status(d, code, "looking for GPUs");
	if (n == 0)
		return gpu_none(d);
	if (ordinal < 0 || ordinal >= n)
		return not_there(ordinal, n);
	RETURN_IF_ERROR(cuda_status(d, d->DeviceGet(&out->device, ordinal), "looking for a GPU"));
	RETURN_IF_ERROR(cuda_status(d, d->DeviceGetName(out->name, sizeof(out->name), out->device),
	                            "name of a GPU"));
	RETURN_IF_ERROR(cuda_status(d, d->DeviceTotalMem(&bytes, out->device), "memory of a GPU"));
	RETURN_IF_ERROR(cuda_status(d, d->DeviceGetUuid((unsigned char *)out->uuid, out->device),
	                            "number of a GPU"));
	d->DeviceGetPCIBusId(out->bus, sizeof(out->bus), out->device);
	out->bytes = (int64_t)bytes;
	return read_attributes(d, out);
}

/* In "sm_90a", the last digit is the minor number, and the letter says that the code uses features of that GPU alone. */
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

/* Records when each kernel ran, by the GPU's own clock, including kernels of a graph. It injects CUPTI's activity records into
 * a program that does not know of them: the driver loads the library named by CUDA_INJECTION64_PATH and calls
 * InitializeInjection (CUPTI's documentation, "injection"). Each kernel is a line "START END STREAM NAME" of the file
 * $KERNEL_TIMES, in nanoseconds.
 *
 *     cc -shared -fPIC -I CUPTI/include -I CUDA/include kernel_times.c -o libkernel_times.so CUPTI/lib64/libcupti.so
 *     CUDA_INJECTION64_PATH=$PWD/libkernel_times.so KERNEL_TIMES=times.txt ./gpt2_124m --steps=6 */
#include <cupti.h>
#include <stdio.h>
#include <stdlib.h>

enum { BUFFER_BYTES = 8 << 20 };

static FILE *times;

/* The buffer is aligned as cuptiActivityRegisterCallbacks requires; complete() frees it. */
static void
request(uint8_t **buffer, size_t *bytes, size_t *most_records)
{
	*buffer = aligned_alloc(8, BUFFER_BYTES);
	*bytes = *buffer ? BUFFER_BYTES : 0;
	*most_records = 0;
}

/* The fields up to `name` have the same layout in all versions of the record since CUDA 12. */
static void
complete(CUcontext context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t used)
{
	(void)context, (void)stream, (void)bytes;
	CUpti_Activity *record = NULL;
	while (cuptiActivityGetNextRecord(buffer, used, &record) == CUPTI_SUCCESS)
		if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
			const CUpti_ActivityKernel9 *k = (const CUpti_ActivityKernel9 *)record;
			fprintf(times, "%llu %llu %u %s\n", (unsigned long long)k->start,
			        (unsigned long long)k->end, k->streamId, k->name);
		}
	free(buffer);
}

static void
finish(void)
{
	cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
	fclose(times);
}

int
InitializeInjection(void)
{
	const char *path = getenv("KERNEL_TIMES");
	times = path ? fopen(path, "w") : NULL;
	if (!times)
		return 0;
	if (cuptiActivityRegisterCallbacks(request, complete) != CUPTI_SUCCESS ||
	    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS) {
		fprintf(stderr, "kernel_times: CUPTI gives no records of kernels\n");
		return 0;
	}
	atexit(finish);
	return 1;
}

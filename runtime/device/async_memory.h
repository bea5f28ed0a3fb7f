/* Private to runtime/device: memory of the async device (async.c). Each allocation is mapped twice: without permissions at the
 * address that the host gets, and readable for the device's threads. */
#ifndef GRADC_RUNTIME_DEVICE_ASYNC_MEMORY_H
#define GRADC_RUNTIME_DEVICE_ASYNC_MEMORY_H

#include "runtime/device/device.h"

typedef struct AsyncMemory AsyncMemory;
Status async_memory_open(AsyncMemory **out);
void async_memory_close(AsyncMemory *m); /* frees all allocations; m may be NULL */
Status async_memory_alloc(AsyncMemory *m, int64_t bytes, Span *out); /* all zero */
void async_memory_free(AsyncMemory *m, Span span);
/* Translates an address that the host got from async_memory_alloc to the readable address for the device's threads. Any other
 * address is host memory and is returned unchanged. */
void *async_memory_at(AsyncMemory *m, const void *at);

#endif

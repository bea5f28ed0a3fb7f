/* Private to this room: memory of the async device. Each allocation is mapped twice: without permissions at the address that
 * the host gets, and readable for the device's threads. */
#ifndef GRADC_RUNTIME_DEVICE_ASYNC_MEMORY_H
#define GRADC_RUNTIME_DEVICE_ASYNC_MEMORY_H

#include "runtime/device/device.h"

typedef struct AsyncMemory AsyncMemory;
Status async_memory_open(AsyncMemory **out);
void async_memory_close(AsyncMemory *m); /* frees all allocations; m may be NULL */
Status async_memory_alloc(AsyncMemory *m, int64_t bytes, Span *out); /* all zero */
void async_memory_free(AsyncMemory *m, Span span);
/* The address at which the device's threads find the host's address; memory of the host keeps its address. */
void *async_memory_at(AsyncMemory *m, const void *at);

#endif

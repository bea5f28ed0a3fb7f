/* Memory of the async device: each piece is mapped twice, once without permission, which is the address that the host has,
 * and once for the device's threads. */
#ifndef GRADC_ASYNC_MEMORY_H
#define GRADC_ASYNC_MEMORY_H

#include "runtime/device/device.h"

typedef struct AsyncMemory AsyncMemory;
Status async_memory_open(AsyncMemory **out);
void async_memory_close(AsyncMemory *m); /* with all of its pieces; NULL is allowed */
Status async_memory_alloc(AsyncMemory *m, int64_t bytes, Span *out); /* zeroed */
void async_memory_free(AsyncMemory *m, Span span);
/* Where the device's threads find what the host names; other memory is the host's, and as it is. */
void *async_memory_at(AsyncMemory *m, const void *at);

#endif

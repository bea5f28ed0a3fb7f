/* The kernels of an executable that a library runs in place of their loops, made ready once: primitives, and operands
 * that never change in the library's own layout. */
#ifndef GRADC_LIBRARY_CALLS_H
#define GRADC_LIBRARY_CALLS_H

#include "runtime/device/device.h"
#include "runtime/library/library.h"

typedef struct LibraryCalls LibraryCalls;

/* A call is the first library's that takes it. What none does well is no fault: the loops do it. The libraries and tables
 * outlive the calls. */
Status library_calls_open(Libraries *libraries, const CodeSource *source, LibraryCalls **out);
void library_calls_close(LibraryCalls *calls); /* NULL is allowed */
/* Bytes of memory that they need, for scratch and packed operands. */
int64_t library_calls_bytes(const LibraryCalls *calls);
/* That memory, of the device, aligned to 64, before the first run. The caller frees it after the calls. */
void library_calls_place(LibraryCalls *calls, char *memory);
/* What runs kernel: an implementation's name; NULL: its loops. */
const char *library_calls_implementation(const LibraryCalls *calls, uint32_t kernel);
/* Does a library run the kernel that this one serves, so that nobody reads what it makes? */
bool library_calls_cover(const LibraryCalls *calls, uint32_t kernel);
/* For people: an implementation's name, "left out" or "generated". */
const char *library_calls_describe(const LibraryCalls *calls, uint32_t kernel);
/* A run of a kernel that has an implementation. Buffers of fixed operands are those of earlier runs or hold what
 * never changes. stream: a GPU's, the same for all runs, as they share their scratch; NULL on the host. */
Status library_calls_run(LibraryCalls *calls, uint32_t kernel, void *const *buffers, void *stream);

#endif

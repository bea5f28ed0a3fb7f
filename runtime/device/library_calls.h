/* Private to runtime/device: kernels that a library (such as oneDNN or cuBLASLt) runs in place of the loops that gradc
 * generated. Calls are prepared once; constant operands are packed, that is, copied once into the library's own layout. */
#ifndef GRADC_RUNTIME_DEVICE_LIBRARY_CALLS_H
#define GRADC_RUNTIME_DEVICE_LIBRARY_CALLS_H

#include "runtime/device/device.h"
#include "runtime/library/library.h"

typedef struct LibraryCalls LibraryCalls;

/* Prepares the calls. The tuner chooses the engine of each call, those that take the most time first. Without a tuner, or without
 * time for trials, a call goes to the first library that accepts the call. If no library runs it faster than the loops, the
 * loops run; that is not a fault. Libraries, tables and tuner must outlive the calls. tuner: NULL on the host. */
Status library_calls_open(Libraries *libraries, const CodeSource *source, Tuner *tuner,
                          LibraryCalls **out);
void library_calls_close(LibraryCalls *calls); /* calls may be NULL */
/* Bytes of memory that the calls need for scratch and packed operands. */
int64_t library_calls_bytes(const LibraryCalls *calls);
/* Gives the calls their memory: device memory, aligned to 64. Called before the first run. The caller frees the memory after
 * the calls. */
void library_calls_place(LibraryCalls *calls, char *memory);
/* The library's name for the code that runs the kernel; NULL if the generated loops run. */
const char *library_calls_implementation(const LibraryCalls *calls, uint32_t kernel);
/* For people: why the call is slower than it could be; NULL: no remark. */
const char *library_calls_remark(const LibraryCalls *calls, uint32_t kernel);
/* Some kernels only prepare operands for one other kernel. Does a library run that other kernel? Then nobody reads this
 * kernel's results. */
bool library_calls_cover(const LibraryCalls *calls, uint32_t kernel);
/* For people: an implementation's name, "left out" or "generated". */
const char *library_calls_describe(const LibraryCalls *calls, uint32_t kernel);
/* Runs a kernel that has an implementation. A fixed operand's buffer must hold the same contents in all runs. stream: a GPU's
 * stream, the same for all runs, because they share their scratch; NULL on the host. */
Status library_calls_run(LibraryCalls *calls, uint32_t kernel, void *const *buffers, void *stream);

#endif

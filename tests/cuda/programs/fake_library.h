/* What the pretended libraries of a GPU share: work that has its turn in a stream, and reads the device's memory as the pretended
 * driver shows it. Without a driver it is done at once, on addresses of the host. */
#ifndef GRADC_TESTS_CUDA_FAKE_LIBRARY_H
#define GRADC_TESTS_CUDA_FAKE_LIBRARY_H

#include "base/base.h"

/* A copy of the work runs in its turn; recorded work runs again and again. False: the stream does not take it. */
bool fake_enqueue(void *stream, void (*run)(void *work), const void *work, size_t bytes);
/* Where memory of the device is found in its turn; what is none ends the program. */
void *fake_readable(const void *address);
double fake_round_to_tf32(double x);
static inline bool
fake_is_aligned(const void *at, int64_t alignment)
{
	return alignment > 0 && (uintptr_t)at % (uintptr_t)alignment == 0;
}

#endif

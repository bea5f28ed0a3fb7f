/* Shared by the pretended GPU libraries: work that is queued in a stream and reads device memory through the pretended
 * driver. Without a driver the work is done at once, on addresses of the host. */
#ifndef GRADC_TESTS_CUDA_FAKE_LIBRARY_H
#define GRADC_TESTS_CUDA_FAKE_LIBRARY_H

#include "base/base.h"

/* Queues a copy of the work in the stream; work that is recorded into a graph runs at each launch. false: the stream refuses
 * the work. */
bool fake_enqueue(void *stream, void (*run)(void *work), const void *work, size_t bytes);
/* A host address for device memory, valid while the work runs. An invalid address ends the program. */
void *fake_readable(const void *address);
double fake_round_to_tf32(double x);
static inline bool
fake_is_aligned(const void *at, int64_t alignment)
{
	return alignment > 0 && (uintptr_t)at % (uintptr_t)alignment == 0;
}

#endif

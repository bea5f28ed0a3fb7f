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

/* What the environment says of an engine, by its number: FAKE_ENGINES="20:slow 21:nan 7:hangs". An engine that is slow takes a
 * second longer, by the GPU's clock; one that gives NaN has it in the result's last element; one that writes behind its workspace writes one byte
 * there; one that fails says so when it is called; one that hangs takes a minute. */
typedef enum {
	FAKE_SOUND,
	FAKE_SLOW,
	FAKE_NAN,
	FAKE_BEHIND,
	FAKE_FAILS,
	FAKE_HANGS,
} FakeBehaviour;
FakeBehaviour fake_behaviour(long long engine);
/* What the behaviour does before and after the engine's own work, which runs in the stream. last: the result's last element, of so
 * many bytes; all ones are a NaN in every float type. */
void fake_begin(FakeBehaviour b, void *workspace, int64_t workspace_bytes);
void fake_end(FakeBehaviour b, char *last, int64_t bytes);
static inline bool
fake_is_aligned(const void *at, int64_t alignment)
{
	return alignment > 0 && (uintptr_t)at % (uintptr_t)alignment == 0;
}

#endif

/* Private to runtime/device: streams of a device that computes in the caller's thread. The work of a call is done when the call
 * returns, unless the stream waits for a task of the host, such as a collective. Then the work is queued in order and tried
 * again between kernels. */
#ifndef GRADC_RUNTIME_DEVICE_CPU_STREAMS_H
#define GRADC_RUNTIME_DEVICE_CPU_STREAMS_H

#include "runtime/device/device.h"

typedef struct CpuStreams CpuStreams;
/* Does some or all of the work; sets *done if all of the work is done. If the work was queued, the payload is the queue's
 * copy. */
typedef Status (*CpuWork)(void *context, void *payload, bool *done);

CpuStreams *cpu_streams_open(int n_events);
void cpu_streams_close(CpuStreams *s); /* drops queued work; s may be NULL */
/* Can the stream's next work be done immediately? No if earlier work is still queued, or after a fault. */
bool cpu_streams_is_free(const CpuStreams *s, int stream);
/* Does the work immediately, or queues the work with a copy of the payload. Returns the first fault. */
Status cpu_streams_do(CpuStreams *s, int stream, CpuWork work, void *context, const void *payload,
                      size_t bytes);
Status cpu_streams_record(CpuStreams *s, int stream, int event);
/* Waits until the event is done; work of other streams continues meanwhile. */
void cpu_streams_reach(CpuStreams *s, int event);
Status cpu_streams_fault(const CpuStreams *s); /* the first fault */
/* cpu_streams_reach, then cpu_streams_fault */
Status cpu_streams_wait(CpuStreams *s, int event);
bool cpu_streams_is_done(const CpuStreams *s, int event); /* may be called by any thread */
double cpu_streams_seconds(const CpuStreams *s, int event);
/* Tries all queued work once. Costs nothing if no work is queued. */
void cpu_streams_progress(CpuStreams *s);
/* Waits until no work is queued. Returns the first fault. */
Status cpu_streams_sync(CpuStreams *s);

#endif

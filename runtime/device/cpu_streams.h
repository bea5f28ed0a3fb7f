/* Streams of a device that computes in the caller's thread: a call is done when it returns, unless its stream stands behind
 * a host's task that is not over, as a collective. Such work waits here, in order, and is tried again between kernels. */
#ifndef GRADC_CPU_STREAMS_H
#define GRADC_CPU_STREAMS_H

#include "runtime/device/device.h"

typedef struct CpuStreams CpuStreams;
/* Does its part; *done: all of it. The payload is the device's own copy, where it had to wait. */
typedef Status (*CpuWork)(void *context, void *payload, bool *done);

CpuStreams *cpu_streams_open(int n_events);
void cpu_streams_close(CpuStreams *s); /* what waits is dropped; NULL is allowed */
/* May work of this stream be done at once? Not behind other work, nor behind a fault. */
bool cpu_streams_is_free(const CpuStreams *s, int stream);
/* Does the work, or keeps a copy of the payload and does it later. The first fault. */
Status cpu_streams_do(CpuStreams *s, int stream, CpuWork work, void *context, const void *payload,
                      size_t bytes);
Status cpu_streams_record(CpuStreams *s, int stream, int event);
/* Until the event is done; others' work goes on meanwhile. */
void cpu_streams_reach(CpuStreams *s, int event);
Status cpu_streams_fault(const CpuStreams *s);            /* the first, at any time */
Status cpu_streams_wait(CpuStreams *s, int event);        /* both */
bool cpu_streams_is_done(const CpuStreams *s, int event); /* from any thread */
double cpu_streams_seconds(const CpuStreams *s, int event);
/* Tries what waits, once. Costs nothing where nothing does. */
void cpu_streams_progress(CpuStreams *s);
/* Until nothing waits; the first fault. */
Status cpu_streams_sync(CpuStreams *s);

#endif

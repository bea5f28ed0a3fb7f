/* Records the work of a program, so that it can be launched again with few calls. A recording is a list of pieces. A piece is a
 * CUDA graph with the work of one stream between two events, or it is an event. A graph is launched into the stream whose work
 * it holds, so that copies and kernels still run in parallel. Events stay outside of graphs, because the host asks whether they
 * are done: an event inside a graph would wrongly count as done until the graph reaches it. */
#include "runtime/device/cuda/cuda.h"

#include <string.h>

typedef struct {
	void *graph; /* an instantiated graph; NULL for an event */
	int stream;
	int event;
	bool records; /* true: records the event; false: the stream waits for it */
} Piece;
struct Recorded {
	Piece *at;
	int n;
};

static void
add_piece(Recorded *r, const Piece *p)
{
	r->at = memory_resize(r->at, sizeof(*r->at) * (size_t)(r->n + 1));
	r->at[r->n++] = *p;
}

/* Ends the graph that is being recorded for the stream, and adds it to the recording. */
static Status
close_stream(Device *d, int stream)
{
	Piece piece = {.stream = stream};
	void *graph = NULL;

	if (!d->capture.is_open[stream])
		return NULL;
	d->capture.is_open[stream] = false;
	RETURN_IF_ERROR(cuda_check(d, d->driver.StreamEndCapture(d->streams[stream], &graph),
	                           "recording a stream"));
	int code = d->driver.GraphInstantiate(&piece.graph, graph, 0);
	d->driver.GraphDestroy(graph);
	RETURN_IF_ERROR(cuda_check(d, code, "making a graph of a stream"));
	add_piece(d->capture.into, &piece);
	return NULL;
}

Status
cuda_stream(Device *d, int stream, void **out)
{
	Status fault = status_copy(atomic_load(&d->fault));

	cuda_enter(d);
	*out = atomic_load(&d->streams[stream]);
	if (!fault && !*out) {
		fault = cuda_check(d, d->driver.StreamCreate(out, CUDA_STREAM_NON_BLOCKING),
		                   "making a stream");
		if (!fault)
			atomic_store(&d->streams[stream], *out);
	}
	if (fault || !d->capture.into || d->capture.is_open[stream])
		return fault;
	RETURN_IF_ERROR(cuda_check(d, d->driver.StreamBeginCapture(*out, CUDA_CAPTURE_RELAXED),
	                           "recording a stream"));
	d->capture.is_open[stream] = true;
	return NULL;
}

Status
cuda_note_event(Device *d, int stream, int event, bool records, bool *noted)
{
	*noted = d->capture.into != NULL;
	if (!*noted)
		return NULL;
	cuda_enter(d);
	RETURN_IF_ERROR(close_stream(d, stream));
	add_piece(d->capture.into, &(Piece){.stream = stream, .event = event, .records = records});
	return NULL;
}

static void
set_records(Device *d, bool records)
{
	pthread_mutex_lock(&d->asking);
	d->records = records;
	pthread_mutex_unlock(&d->asking);
}

Status
cuda_capture_begin(Device *d)
{
	d->capture.into = memory_zeroed(1, sizeof(*d->capture.into));
	set_records(d, true);
	return NULL;
}

Status
cuda_capture_end(Device *d, Recorded **out)
{
	Status status = NULL;

	cuda_enter(d);
	for (int i = 0; i < MAX_STREAMS; i++)
		status = status_first(status, close_stream(d, i));
	*out = d->capture.into;
	d->capture.into = NULL;
	set_records(d, false);
	if (status) {
		cuda_forget(d, *out);
		*out = NULL;
	}
	return status;
}

Status
cuda_replay(Device *d, const Recorded *r, const EventShift *shift)
{
	void *stream;

	for (int i = 0; i < r->n; i++) {
		const Piece *p = &r->at[i];
		if (p->graph) {
			RETURN_IF_ERROR(cuda_stream(d, p->stream, &stream));
			RETURN_IF_ERROR(cuda_check(d, d->driver.GraphLaunch(p->graph, stream),
			                           "launch of a graph"));
		} else {
			int event = event_shifted(shift, p->event);
			RETURN_IF_ERROR(p->records ? cuda_record(d, p->stream, event)
			                           : cuda_wait(d, p->stream, event));
		}
	}
	return NULL;
}

void
cuda_forget(Device *d, Recorded *r)
{
	if (!r)
		return;
	cuda_enter(d);
	for (int i = 0; i < r->n; i++)
		if (r->at[i].graph)
			d->driver.GraphExecDestroy(r->at[i].graph);
	memory_free(r->at);
	memory_free(r);
}

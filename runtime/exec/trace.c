/* Writes the file of --trace: spans of time, such as a kernel's run, in Chrome's Trace Event Format, which Perfetto opens.
 * https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
 *
 * Complete events ("X") of one track nest by their times. A span is written when it ends. A fault of the file is kept for
 * trace_close, so that tracing never stops a step. */
#include "base/files/files.h"
#include "runtime/exec/exec.h"

#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct Trace {
	pthread_mutex_t lock; /* guards all fields below: several threads write spans */
	FileWriter *file;
	double zero;
	Status fault;
	bool any;
};

static const char *const track_names[N_TRACKS] = {
	[TRACK_TRAINING] = "training", [TRACK_READING] = "reading ahead",
	[TRACK_SAVING] = "saving",     [TRACK_COMMUNICATION] = "communication",
	[TRACK_COPY_IN] = "copy_in",   [TRACK_COPY_OUT] = "copy_out",
};

static void
unlock(void *mutex)
{
	pthread_mutex_unlock(mutex);
}

static void
write_event(Trace *t, json_t *event)
{
	char *text = json_dumps(event,
	                        JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(15));

	if (!text) { /* the name is not UTF-8: skip this span */
		json_decref(event);
		return;
	}
	pthread_mutex_lock(&t->lock);
	memory_hold(unlock, &t->lock);
	const char *before = t->any ? ",\n" : "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
	t->any = true;
	if (!t->fault)
		t->fault = file_writer_add(t->file, before, (int64_t)strlen(before));
	if (!t->fault)
		t->fault = file_writer_add(t->file, text, (int64_t)strlen(text));
	memory_let_go();
	pthread_mutex_unlock(&t->lock);
	memory_free(text);
	json_decref(event);
}

static void
write_metadata(Trace *t, const char *what, int track, const char *name)
{
	write_event(t, json_pack("{s:s,s:s,s:i,s:i,s:{s:s}}", "name", what, "ph", "M", "pid", 0,
	                         "tid", track, "args", "name", name));
}

static void
abort_file(void *file)
{
	file_writer_abort(file);
}

Status
trace_open(Arena *arena, const char *path, Trace **out)
{
	Trace *t = NEW(arena, Trace);

	*out = NULL;
	RETURN_IF_ERROR(file_writer_open(path, &t->file));
	pthread_mutex_init(&t->lock, NULL);
	t->zero = seconds_now();
	write_metadata(t, "process_name", 0, "rank 0");
	for (int i = 0; i < N_TRACKS; i++)
		write_metadata(t, "thread_name", i, track_names[i]);
	*out = t;
	return NULL;
}

/* Rounded to nanoseconds, so that the text is short. */
static double
microseconds(double seconds)
{
	return round(1e9 * seconds) / 1e3;
}

void
trace_span(Trace *t, const TraceSpan *s)
{
	json_t *args, *event;

	if (!t)
		return;
	args = json_object();
	if (s->origin)
		json_object_set_new(args, "from", json_name(s->origin));
	if (s->kernel)
		json_object_set_new(args, "kernel", json_name(s->kernel));
	if (s->count_of)
		json_object_set_new(args, s->count_of, json_integer(s->count));
	event = json_pack("{s:o,s:s,s:s,s:i,s:i,s:f,s:f,s:o}", "name", json_name(s->name), "cat",
	                  s->category, "ph", "X", "pid", 0, "tid", (int)s->track, "ts",
	                  microseconds(s->begin - t->zero), "dur", microseconds(s->end - s->begin),
	                  "args", args);
	write_event(t, event);
}

void
trace_abort(Trace *t)
{
	if (!t)
		return;
	pthread_mutex_destroy(&t->lock);
	status_free(t->fault);
	file_writer_abort(t->file);
}

Status
trace_close(Trace *t)
{
	static const char end[] = "\n]}\n";

	if (!t)
		return NULL;
	memory_hold(abort_file, t->file);
	Status status = t->fault ? t->fault : file_writer_add(t->file, end, sizeof(end) - 1);
	memory_let_go();
	pthread_mutex_destroy(&t->lock);
	if (!status)
		return file_writer_commit(t->file, false);
	file_writer_abort(t->file);
	return status;
}

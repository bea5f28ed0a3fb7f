/* A thread reads, checks and decodes the next micro-batch while this one is computed. There are IN_FLIGHT io regions (memory
 * for a program's inputs): the device reads one, while the thread fills the host's copy of the next. If the files are small and in
 * memory, the rows are read without the thread, when they are taken.
 *
 * At most one micro-batch is under way. The caller says which one it wants. Other rows that were read ahead are dropped, so
 * reading ahead never changes what is computed. A fault of the data is reported when its micro-batch is taken. */
#include "runtime/data/data.h"
#include "runtime/host/host.h"

#include <pthread.h>
#include <string.h>

typedef enum { STAGE_EMPTY, STAGE_ASKED, STAGE_FULL } Stage;

struct Prefetch {
	Executor *executor;
	Trace *trace;
	MemoryOrphans **orphans;
	Readers *readers; /* NULL: the thread reads alone */
	pthread_t thread;
	pthread_mutex_t lock; /* guards all fields below */
	pthread_cond_t changed;
	/* who may use the image (the host's copy of the io region): with STAGE_ASKED the thread, otherwise the caller */
	Stage stage;
	int turn; /* turn of the image */
	MicroRows rows;
	Status fault;
	bool was_free; /* the image was free when the rows were asked for */
	double begin;  /* time when reading began */
	bool closing;
};

static bool
same_rows(const MicroRows *a, const MicroRows *b)
{
	return a->dataset == b->dataset && a->epoch == b->epoch && a->first == b->first &&
	       a->end == b->end;
}

static Status
read_rows(void *prefetch)
{
	Prefetch *p = prefetch;

	p->was_free = executor_image_is_free(p->executor, p->turn);
	RETURN_IF_ERROR(executor_wait_image(p->executor, p->turn));
	double begin = seconds_now();
	p->begin = begin;
	Status fault = dataset_read(&p->rows, executor_image(p->executor, p->turn), p->readers);
	trace_span(p->trace, &(TraceSpan){.track = TRACK_READING,
	                                  .category = "data",
	                                  .name = "read",
	                                  .begin = begin,
	                                  .end = seconds_now(),
	                                  .count_of = "rows",
	                                  .count = p->rows.end - p->rows.first});
	return fault;
}

static void *
serve(void *data)
{
	Prefetch *p = data;

	pthread_mutex_lock(&p->lock);
	for (;;) {
		while (p->stage != STAGE_ASKED && !p->closing)
			pthread_cond_wait(&p->changed, &p->lock);
		if (p->stage != STAGE_ASKED)
			break;
		pthread_mutex_unlock(&p->lock);
		Status fault = memory_guard(read_rows, p, p->orphans);
		pthread_mutex_lock(&p->lock);
		p->fault = fault;
		p->stage = STAGE_FULL;
		pthread_cond_broadcast(&p->changed);
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

Status
prefetch_open(Arena *arena, Executor *x, Trace *trace, MemoryOrphans **orphans, Prefetch **out)
{
	Prefetch *p = NEW(arena, Prefetch);

	*out = NULL;
	p->executor = x;
	p->trace = trace;
	p->orphans = orphans;
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->changed, NULL);
	int readers = readers_wanted(x);
	Status status = readers > 1 ? readers_open(arena, readers, orphans, &p->readers) : NULL;
	if (!status)
		status = thread_start(&p->thread, "to read data", serve, p);
	if (!status)
		*out = p;
	else
		readers_close(p->readers);
	return status;
}

void
prefetch_close(Prefetch *p)
{
	if (!p)
		return;
	pthread_mutex_lock(&p->lock);
	p->closing = true;
	pthread_cond_broadcast(&p->changed);
	pthread_mutex_unlock(&p->lock);
	pthread_join(p->thread, NULL);
	readers_close(p->readers);
	status_free(p->fault);
	pthread_cond_destroy(&p->changed);
	pthread_mutex_destroy(&p->lock);
}

static void
unlock(void *mutex)
{
	pthread_mutex_unlock(mutex);
}

/* Are the rows read without the thread? Only if reading is faster than waking the thread, and not if the device has its own
 * memory: then the device may still be reading the image. */
static bool
is_at_hand(const Prefetch *p, const MicroRows *rows)
{
	return rows->dataset->at_hand && !executor_is_apart(p->executor);
}

/* Called with the lock held. If the thread is still reading earlier rows, waits for their end and drops them. */
static void
ask(Prefetch *p, const MicroRows *rows)
{
	if (p->stage != STAGE_EMPTY && same_rows(&p->rows, rows))
		return;
	while (p->stage == STAGE_ASKED)
		pthread_cond_wait(&p->changed, &p->lock);
	status_free(p->fault);
	p->fault = NULL;
	p->stage = STAGE_EMPTY;
	p->rows = *rows;
	p->turn = turn_after(p->executor->turns[TURN_MICRO]);
	if (is_at_hand(p, rows)) {
		p->fault = read_rows(p);
		p->stage = STAGE_FULL;
		return;
	}
	p->stage = STAGE_ASKED;
	pthread_cond_broadcast(&p->changed);
}

void
prefetch_ask(Prefetch *p, const MicroRows *rows)
{
	if (is_at_hand(p, rows))
		return; /* prefetch_take reads the rows */
	pthread_mutex_lock(&p->lock);
	ask(p, rows);
	pthread_mutex_unlock(&p->lock);
}

Status
prefetch_take(Prefetch *p, const MicroRows *rows, DataWait *out)
{
	double called = seconds_now();

	pthread_mutex_lock(&p->lock);
	memory_hold(unlock, &p->lock);
	ask(p, rows);
	memory_let_go();
	bool asked = p->stage == STAGE_ASKED;
	while (p->stage == STAGE_ASKED)
		pthread_cond_wait(&p->changed, &p->lock);
	/* A wait until the image is free is a wait for the device, not for data. */
	out->waited = asked && p->was_free;
	out->begin = p->begin > called ? p->begin : called;
	out->seconds = seconds_now() - out->begin;
	Status fault = p->fault;
	p->fault = NULL;
	p->stage = STAGE_EMPTY;
	pthread_mutex_unlock(&p->lock);
	if (!fault)
		executor_take_image(p->executor, p->turn, &p->rows.dataset->raw);
	return fault;
}

Status
prefetch_take_zeros(Prefetch *p)
{
	Executor *x = p->executor;
	char *image = executor_image(x, p->turn);

	RETURN_IF_ERROR(executor_wait_image(x, p->turn));
	memset(image, 0, (size_t)executor_image_bytes(x));
	executor_take_image(x, p->turn, &p->rows.dataset->raw);
	return NULL;
}

/* Captures and graphs of the pretended driver. A node is one piece of work; edges come from the order of the streams and
 * from events. */
#include "tests/cuda/fake/fake.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
	Work *work;
	Numbers after; /* nodes that wait for this node */
	int n_before;
} Node;
struct Graph {
	atomic_int references;
	pthread_mutex_t lock; /* only one replay at a time */
	Node *at;
	int n, cap;
};
struct Capture {
	Capture *next; /* next in the list of all captures, kept because events point to them */
	Stream *origin;
	Stream **streams;
	int n_streams;
	Graph *graph; /* NULL: the capture has ended */
	pthread_t thread;
	int mode;
	int broken; /* code of the first fault; 0: no fault */
};
typedef struct {
	Object object;
	Graph *graph;
} GraphHandle;
static Capture *captures;

static void
add_number(Numbers *numbers, int x)
{
	for (int i = 0; i < numbers->n; i++)
		if (numbers->at[i] == x)
			return;
	if (numbers->n == numbers->cap) {
		numbers->cap = numbers->cap ? 2 * numbers->cap : 4;
		numbers->at = realloc(numbers->at, sizeof(int) * (size_t)numbers->cap);
		if (!numbers->at)
			abort();
	}
	numbers->at[numbers->n++] = x;
}

static void
add_numbers(Numbers *to, const Numbers *from)
{
	for (int i = 0; i < from->n; i++)
		add_number(to, from->at[i]);
}

/* ---- captures */
bool
capture_is_on(const Capture *c)
{
	return c && c->graph;
}

int
capture_break(Capture *c, int code, const char *why)
{
	if (!c->broken)
		c->broken = code;
	return complain(code, "%s", why);
}

bool
capture_forbids(bool always)
{
	bool forbids = false;

	for (Capture *c = captures; c; c = c->next)
		if (c->graph && (always || c->mode != CUDA_CAPTURE_RELAXED)) {
			c->broken = c->broken ? c->broken : CAPTURE_REFUSES;
			forbids = true;
		}
	return forbids;
}

static void
join(Capture *c, Stream *s)
{
	c->streams = realloc(c->streams, sizeof(Stream *) * (size_t)(c->n_streams + 1));
	if (!c->streams)
		abort();
	c->streams[c->n_streams++] = s;
	s->capture = c;
	s->tips.n = 0;
}

int
capture_add(Stream *s, Work *w)
{
	Graph *g = s->capture->graph;

	if (w->kind == WORK_GRAPH || w->kind == WORK_FREE) {
		work_free(w);
		return capture_break(s->capture, CAPTURE_REFUSES,
		                     "a graph or memory inside of a graph");
	}
	if (g->n == g->cap) {
		g->cap = g->cap ? 2 * g->cap : 64;
		g->at = realloc(g->at, sizeof(Node) * (size_t)g->cap);
		if (!g->at)
			abort();
	}
	g->at[g->n] = (Node){.work = w, .n_before = s->tips.n};
	for (int i = 0; i < s->tips.n; i++)
		add_number(&g->at[s->tips.at[i]].after, g->n);
	s->tips.n = 0;
	add_number(&s->tips, g->n++);
	return s->capture->broken ? CAPTURE_BROKEN : 0;
}

int
capture_record(Stream *s, Event *e)
{
	e->capture = s->capture;
	e->tips.n = 0;
	add_numbers(&e->tips, &s->tips);
	return 0;
}

int
capture_wait(Stream *s, Event *e)
{
	if (s->capture && !e->capture)
		return capture_break(
			s->capture, CAPTURE_ISOLATION,
			"a capturing stream waits for an event from before the capture");
	if (!capture_is_on(e->capture))
		return complain(CAPTURE_ISOLATION,
		                "a wait for an event of a capture that has ended");
	if (s->capture && s->capture != e->capture) {
		capture_break(e->capture, CAPTURE_MERGE, "a wait for an event of another capture");
		return capture_break(s->capture, CAPTURE_MERGE, "which breaks both");
	}
	if (!s->capture)
		join(e->capture, s);
	add_numbers(&s->tips, &e->tips);
	return 0;
}

int
fake_StreamBeginCapture(void *stream, int mode)
{
	ENTER(StreamBeginCapture);
	Stream *s = stream ? stream_find(stream) : NULL;
	if (!s)
		return stream ? BAD_HANDLE : CAPTURE_REFUSES;
	if (mode < 0 || mode > CUDA_CAPTURE_RELAXED)
		return BAD_VALUE;
	pthread_mutex_lock(&fake_lock);
	Capture *c = s->capture ? NULL : calloc(1, sizeof(*c));
	if (c) {
		*c = (Capture){
			.next = captures, .origin = s, .mode = mode, .thread = pthread_self()};
		c->graph = calloc(1, sizeof(*c->graph));
		if (!c->graph)
			abort();
		atomic_init(&c->graph->references, 1);
		pthread_mutex_init(&c->graph->lock, NULL);
		captures = c;
		join(c, s);
	}
	pthread_mutex_unlock(&fake_lock);
	return c ? 0 : complain(BAD_STATE, "the stream is captured already");
}

/* Do all captured pieces of work come before the last piece of the stream where the capture began? */
static bool
is_joined(const Capture *c)
{
	const Graph *g = c->graph;
	bool joined = true, *reached = calloc((size_t)g->n + 1, sizeof(bool));

	if (!reached)
		abort();
	for (int i = 0; i < c->origin->tips.n; i++)
		reached[c->origin->tips.at[i]] = true;
	for (int i = g->n - 1; i >= 0; i--) {
		for (int j = 0; j < g->at[i].after.n; j++)
			reached[i] |= reached[g->at[i].after.at[j]];
		joined &= reached[i];
	}
	free(reached);
	return joined;
}

/* Ends the capture; the caller owns the graph. */
static Graph *
capture_close(Capture *c)
{
	Graph *g = c->graph;

	for (int i = 0; i < c->n_streams; i++) {
		c->streams[i]->capture = NULL;
		c->streams[i]->tips.n = 0;
	}
	c->graph = NULL;
	return g;
}

int
fake_StreamEndCapture(void *stream, void **graph)
{
	int code = enter(
		CALL_StreamEndCapture); /* the capture ends even if the call returns an error code */
	Stream *s = stream ? object_find(stream, OBJECT_STREAM) : NULL;

	*graph = NULL;
	if (!s)
		return code ? code : BAD_HANDLE;
	pthread_mutex_lock(&fake_lock);
	Capture *c = s->capture;
	Graph *g = NULL;
	if (!c)
		code = complain(BAD_STATE, "a capture ends that has not begun");
	else if (c->origin != s)
		code = capture_break(c, CAPTURE_UNMATCHED, "a capture ends on another stream");
	else if (c->mode != CUDA_CAPTURE_RELAXED && !pthread_equal(c->thread, pthread_self()))
		code = complain(CAPTURE_THREAD, "a capture ends in another thread");
	else {
		code = code        ? code
		       : c->broken ? complain(CAPTURE_BROKEN, "the capture was broken by error %d",
		                              c->broken)
		       : is_joined(c) ? 0
		                      : complain(CAPTURE_UNJOINED,
		                                 "a stream was not joined to the capture's first");
		g = capture_close(c);
	}
	pthread_mutex_unlock(&fake_lock);
	if (code && g)
		graph_free(g);
	if (code)
		return code;
	GraphHandle *handle = object_new(OBJECT_GRAPH, sizeof(*handle));
	handle->graph = g;
	*graph = handle;
	return 0;
}

/* ---- graphs */
void
graph_free(Graph *g)
{
	if (atomic_fetch_sub(&g->references, 1) > 1)
		return;
	for (int i = 0; i < g->n; i++) {
		work_free(g->at[i].work);
		free(g->at[i].after.at);
	}
	free(g->at);
	pthread_mutex_destroy(&g->lock);
	free(g);
}

/* Runs the nodes; among the nodes that may run now it picks one at random. */
int
graph_run(Stream *s, const Work *w)
{
	Graph *g = w->graph;
	int *left = calloc((size_t)g->n + 1, sizeof(int)),
	    *ready = calloc((size_t)g->n + 1, sizeof(int));
	int n = 0;

	if (!left || !ready)
		abort();
	pthread_mutex_lock(&g->lock);
	for (int i = 0; i < g->n; i++) {
		left[i] = g->at[i].n_before;
		if (left[i] == 0)
			ready[n++] = i;
	}
	while (n && !spent()) {
		int which = (int)(random_next(&s->random) % (uint64_t)n), node = ready[which];
		ready[which] = ready[--n];
		work_run(s, g->at[node].work);
		for (int i = 0; i < g->at[node].after.n; i++)
			if (--left[g->at[node].after.at[i]] == 0)
				ready[n++] = g->at[node].after.at[i];
	}
	pthread_mutex_unlock(&g->lock);
	free(left);
	free(ready);
	return 0;
}

/* Graphs are immutable, so a copy is a reference. */
int
fake_GraphInstantiate(void **executable, void *graph, unsigned long long flags)
{
	ENTER(GraphInstantiate);
	GraphHandle *from = object_find(graph, OBJECT_GRAPH);
	if (!from)
		return BAD_VALUE;
	if (flags)
		return complain(BAD_VALUE, "flags of a graph are not pretended");
	GraphHandle *handle = object_new(OBJECT_EXECUTABLE, sizeof(*handle));
	handle->graph = from->graph;
	atomic_fetch_add(&handle->graph->references, 1);
	*executable = handle;
	return 0;
}

int
fake_GraphLaunch(void *executable, void *stream)
{
	ENTER(GraphLaunch);
	GraphHandle *handle = object_find(executable, OBJECT_EXECUTABLE);
	Stream *s = stream_find(stream);
	if (!handle || !s)
		return handle ? BAD_HANDLE : BAD_VALUE;
	Work *w = work_new(WORK_GRAPH);
	w->graph = handle->graph;
	atomic_fetch_add(&w->graph->references, 1);
	return submit(s, w, false);
}

static int
destroy(void *graph, ObjectKind kind)
{
	GraphHandle *handle = object_find(graph, kind);

	if (!handle)
		return BAD_VALUE;
	handle->object.dead = true;
	graph_free(handle->graph);
	return 0;
}

int
fake_GraphDestroy(void *graph)
{
	ENTER(GraphDestroy);
	return destroy(graph, OBJECT_GRAPH);
}

int
fake_GraphExecDestroy(void *executable)
{
	ENTER(GraphExecDestroy);
	return destroy(executable, OBJECT_EXECUTABLE);
}

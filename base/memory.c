/* Allocates memory, and never returns NULL. When the system has no memory left, the process ends. A library must not
 * end its host's process, so inside a guarded call (memory_guard) only the call ends. The guard knows the blocks that
 * the call took and did not free, so that they can be freed later.
 *
 *	Guard               the set of blocks that a running call took and still has
 *	memory_free         removes the block from whichever set has it, since another thread may free it
 *	a call succeeds     its set is dropped: the blocks belong to the objects that the call made
 *	a call fails        its blocks are left as orphans. Some are garbage. The other blocks belong to an object that
 *	                    lives on and frees these blocks when it is closed. Then memory_orphans_free frees the
 *	                    remaining blocks. */
#include "base/base.h"

#include <jansson.h>
#include <malloc.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
	void *at; /* the block; NULL: empty entry */
	void (*release)(void *at);
} Block;

/* A hash set of blocks with linear probing: the blocks of a running call, or the orphans that a failed call left. */
struct MemoryOrphans {
	MemoryOrphans *next;  /* next in the list of all sets */
	MemoryOrphans *older; /* orphans of the same object's previous failed call */
	Block *at;
	size_t n, cap; /* cap: a power of 2 */
};

typedef struct {
	void (*undo)(void *what);
	void *what;
} Held;
enum { MAX_HELD = 8 };
typedef struct {
	jmp_buf here;
	MemoryOrphans *blocks;
	Held held[MAX_HELD]; /* resources of the running call that are not memory */
	int n_held;
} Guard;

enum { LEAST_CAPACITY = 64 };
static _Thread_local Guard *guard;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all sets */
static MemoryOrphans *sets;

void
out_of_memory(void)
{
	static const char message[] = "gradc: error: out of memory\n";

	if (guard)
		longjmp(guard->here, 1);
	ssize_t written = write(STDERR_FILENO, message, sizeof(message) - 1);
	(void)written;
	cleanup_now();
	/* _exit rather than exit: other threads still use the objects that exit would destroy */
	_exit(EXIT_SYSTEM);
}

/* ---- operations on a set, with the lock held */

static size_t
place_of(const MemoryOrphans *set, const void *at)
{
	size_t i = (size_t)hash_mix((uintptr_t)at, 0) & (set->cap - 1);

	while (set->at[i].at && set->at[i].at != at)
		i = (i + 1) & (set->cap - 1);
	return i;
}

/* Makes room for one more block. */
static bool
set_reserve(MemoryOrphans *set)
{
	if (set->n < set->cap / 2)
		return true;
	MemoryOrphans larger = {.cap = set->cap ? 2 * set->cap : LEAST_CAPACITY};
	larger.at = calloc(larger.cap, sizeof(*larger.at));
	if (!larger.at)
		return false;
	for (size_t i = 0; i < set->cap; i++)
		if (set->at[i].at)
			larger.at[place_of(&larger, set->at[i].at)] = set->at[i];
	free(set->at);
	set->at = larger.at;
	set->cap = larger.cap;
	return true;
}

static void
set_add(MemoryOrphans *set, Block block)
{
	set->at[place_of(set, block.at)] = block;
	set->n++;
}

/* Removes a block, then inserts the entries that follow it in the table again: linear probing would not find these
 * entries across the gap. */
static bool
set_remove(MemoryOrphans *set, const void *at, Block *out)
{
	size_t i = set->n ? place_of(set, at) : 0;

	if (!set->n || !set->at[i].at)
		return false;
	*out = set->at[i];
	set->at[i] = (Block){0};
	set->n--;
	for (i = (i + 1) & (set->cap - 1); set->at[i].at; i = (i + 1) & (set->cap - 1)) {
		Block moved = set->at[i];
		set->at[i] = (Block){0};
		set->at[place_of(set, moved.at)] = moved;
	}
	return true;
}

/* Removes the block from the set that has it. */
static Block
forget(void *at)
{
	Block block = {at, NULL};

	for (MemoryOrphans *set = sets; set && at; set = set->next)
		if (set_remove(set, at, &block))
			break;
	return block;
}

/* ---- creating, releasing and freeing sets */

static MemoryOrphans *
set_new(void)
{
	MemoryOrphans *set = calloc(1, sizeof(*set));

	if (!set)
		return NULL;
	pthread_mutex_lock(&lock);
	set->next = sets;
	sets = set;
	pthread_mutex_unlock(&lock);
	return set;
}

/* Frees the set, not its blocks: they have other owners from now on. */
static void
set_free(MemoryOrphans *set)
{
	MemoryOrphans **link = &sets;

	pthread_mutex_lock(&lock);
	while (*link != set)
		link = &(*link)->next;
	*link = set->next;
	pthread_mutex_unlock(&lock);
	free(set->at);
	free(set);
}

/* Removes the next block from *at on that has a release function. */
static bool
take_with_release(MemoryOrphans *set, size_t *at, Block *out)
{
	bool found = false;

	pthread_mutex_lock(&lock);
	for (; *at < set->cap && !found; *at += !found)
		found = set->at[*at].at && set->at[*at].release &&
		        set_remove(set, set->at[*at].at, out);
	pthread_mutex_unlock(&lock);
	return found;
}

/* A release may free other blocks of the set, and a removal moves entries. So the search starts again until a pass over the set
 * finds no block with a release function. */
static void
release_all(MemoryOrphans *set)
{
	Block block;
	bool any = true;

	while (any) {
		size_t at = 0;
		for (any = false; take_with_release(set, &at, &block); any = true)
			block.release(block.at);
	}
}

void
memory_orphans_free(MemoryOrphans *orphans)
{
	for (MemoryOrphans *older; orphans; orphans = older) {
		older = orphans->older;
		release_all(orphans);
		for (size_t i = 0; i < orphans->cap; i++)
			free(orphans->at[i].at); /* no object refers to the block any more */
		set_free(orphans);
	}
}

Status
memory_guard(Status (*call)(void *args), void *args, MemoryOrphans **orphans)
{
	/* static: local variables changed after setjmp are indeterminate */
	static _Thread_local Guard g;

	if (guard)
		return status_error(EXIT_USAGE,
		                    "a call from inside another call: a callback may not "
		                    "call the library again in the same thread");
	g.blocks = set_new();
	g.n_held = 0;
	if (!g.blocks)
		return status_no_memory();
	if (setjmp(g.here)) {
		guard = NULL;
		while (g.n_held > 0) {
			Held *last = &g.held[--g.n_held];
			last->undo(last->what);
		}
		pthread_mutex_lock(&lock);
		g.blocks->older = *orphans;
		*orphans = g.blocks;
		pthread_mutex_unlock(&lock);
		return status_no_memory();
	}
	guard = &g;
	Status status = call(args);
	guard = NULL;
	set_free(g.blocks);
	return status;
}

void
memory_hold(void (*undo)(void *what), void *what)
{
	if (!guard)
		return;
	if (guard->n_held == MAX_HELD)
		abort(); /* a bug of ours, which must not go on in release builds either */
	guard->held[guard->n_held++] = (Held){undo, what};
}

void
memory_let_go(void)
{
	if (guard)
		guard->n_held--;
}

/* ---- blocks */

/* Makes room in the guard's set before allocating, so that the set knows every block. */
static void *
take(void *old, size_t bytes, bool zeroed)
{
	Guard *g = guard;
	Block block = {0};

	if (g || old) {
		pthread_mutex_lock(&lock);
		bool room = !g || set_reserve(g->blocks);
		if (room)
			block = forget(old);
		pthread_mutex_unlock(&lock);
		if (!room)
			out_of_memory();
	}
	void *p = zeroed ? calloc(1, bytes) : realloc(old, bytes);
	if (p)
		block.at = p;
	if (g && block.at) {
		pthread_mutex_lock(&lock);
		set_add(g->blocks, block);
		pthread_mutex_unlock(&lock);
	}
	if (!p)
		out_of_memory();
	return p;
}

void *
memory_get(size_t bytes)
{
	return take(NULL, bytes ? bytes : 1, false);
}

void *
memory_zeroed(size_t n, size_t size)
{
	size_t bytes;

	if (__builtin_mul_overflow(n, size, &bytes))
		out_of_memory();
	return take(NULL, bytes ? bytes : 1, true);
}

void *
memory_resize(void *old, size_t bytes)
{
	return take(old, bytes ? bytes : 1, false);
}

void
memory_free(void *block)
{
	if (!block)
		return;
	pthread_mutex_lock(&lock);
	forget(block);
	pthread_mutex_unlock(&lock);
	free(block);
}

void
memory_on_orphaned(void *block, void (*release)(void *block))
{
	Guard *g = guard;

	if (!g)
		return;
	pthread_mutex_lock(&lock);
	g->blocks->at[place_of(g->blocks, block)].release = release;
	pthread_mutex_unlock(&lock);
}

/* Outside guarded calls returns NULL if no memory is left: the program that uses the library decides what to do. */
static void *
get_for_json(size_t bytes)
{
	return guard ? memory_get(bytes) : malloc(bytes);
}

/* jansson has one set of memory functions per process: functions that the library's host program has set stay in use. */
static void
serve_json_in_library(void)
{
	json_malloc_t now;
	json_free_t free_now;

	json_get_alloc_funcs(&now, &free_now);
	if (now == malloc)
		json_set_alloc_funcs(get_for_json, memory_free);
}

void
memory_serve_json(bool in_program)
{
	static pthread_once_t once =
		PTHREAD_ONCE_INIT; /* two threads may open sessions at the same time */

	if (in_program)
		json_set_alloc_funcs(memory_get, memory_free);
	else
		pthread_once(&once, serve_json_in_library);
}

void
memory_give_back(void)
{
	malloc_trim(0);
}

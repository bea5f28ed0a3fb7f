/* Memory that is never NULL. When the system has none left the process ends, or, in a guarded call, that call: whatever
 * it took and did not free is known, and is freed with what the call worked on.
 *
 *	Guard              of a call that runs: the blocks that it took and still has
 *	memory_free        forgets the block in whatever set has it, since another thread may free it
 *	a call that ends   forgets all its blocks: they belong to what it made
 *	one that fails     leaves them as orphans. Some are garbage and some belong to an object that lives on, which frees
 *	                   its own when it is closed; memory_orphans_free frees what remains then. */
#include "base/base.h"

#include <jansson.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
	void *at; /* NULL: empty */
	void (*release)(void *at);
} Block;

/* A hash set of blocks, with linear probing: of a call that runs, then the orphans that it left. */
struct MemoryOrphans {
	MemoryOrphans *next;  /* of all sets */
	MemoryOrphans *older; /* of one object: the call that failed before */
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
	Held held[MAX_HELD]; /* by the call that runs */
	int n_held;
} Guard;

enum { LEAST_CAPACITY = 64 };
static _Thread_local Guard *guard;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all sets */
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
	_exit(EXIT_SYSTEM); /* other threads run: nothing that they use may be taken down */
}

/* ---- sets, with the lock held */

static size_t
place_of(const MemoryOrphans *set, const void *at)
{
	size_t i = (size_t)hash_mix((uintptr_t)at, 0) & (set->cap - 1);

	while (set->at[i].at && set->at[i].at != at)
		i = (i + 1) & (set->cap - 1);
	return i;
}

/* Room for one more. */
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

/* What was pushed behind a block that goes would not be found any more: it is put again. */
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

/* The block, out of the set that has it. */
static Block
forget(void *at)
{
	Block block = {at, NULL};

	for (MemoryOrphans *set = sets; set && at; set = set->next)
		if (set_remove(set, at, &block))
			break;
	return block;
}

/* ---- sets as a whole */

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

/* Its blocks are others' from now on. */
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

/* The next block from *at on that holds more than memory. */
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

/* A release frees others of the set, and what is removed moves its neighbours: from the start until there is none. */
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
			free(orphans->at[i].at); /* nothing refers to them any more */
		set_free(orphans);
	}
}

Status
memory_guard(Status (*call)(void *args), void *args, MemoryOrphans **orphans)
{
	static _Thread_local Guard
		g; /* not on the stack: setjmp leaves what changes there indeterminate */

	if (guard)
		return status_error(EXIT_USAGE,
		                    "a call from within another one: a callback of this "
		                    "thread may not make it");
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
		abort(); /* a fault of ours, in release builds, too */
	guard->held[guard->n_held++] = (Held){undo, what};
}

void
memory_let_go(void)
{
	if (guard)
		guard->n_held--;
}

/* ---- blocks */

/* Room in the guard's set comes first: a block is never there unknown. */
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

/* Outside of guarded calls the host of the library decides what happens without memory. */
static void *
get_for_json(size_t bytes)
{
	return guard ? memory_get(bytes) : malloc(bytes);
}

/* jansson's functions are the process's: what the host of the library has set stays. */
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
	static pthread_once_t once = PTHREAD_ONCE_INIT; /* sessions may open at the same time */

	if (in_program)
		json_set_alloc_funcs(memory_get, memory_free);
	else
		pthread_once(&once, serve_json_in_library);
}

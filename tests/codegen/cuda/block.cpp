/* Blocks of threads on a CPU: each thread is a fiber, and runs until it meets others. A warp's threads meet in its operations, all
 * that the mask names; a block's at barriers. Whoever does not come ends the program: that is a kernel that hangs or computes
 * anything on a GPU.
 *
 * With ThreadSanitizer a switch orders nothing, barriers and warp operations do: what two threads do to one place without one between
 * is reported as a race, at its line. */
#include <cstdio>
#include <cstdlib>
#include <cstring>

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#define UNSEEN __attribute__((no_sanitize("thread"), noinline))
#else
#define UNSEEN
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

/* Goes on at `to`, a stack that stopped here or was made by first_stop; what stops is kept in *from. */
extern "C" void harness_switch(void **from, void *to);
#if defined(__x86_64__)
asm(".text\n.globl harness_switch\n.hidden harness_switch\n.type harness_switch,@function\nharness_switch:\n"
    "push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15\n"
    "mov %rsp, (%rdi); mov %rsi, %rsp\n"
    "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp\n"
    "ret\n");
enum { SAVED = 6, RETURN = 6 }; /* words below the stack's top, and which of them is where to go on */
#elif defined(__aarch64__)
asm(".text\n.globl harness_switch\n.hidden harness_switch\n.type harness_switch,%function\nharness_switch:\n"
    "stp x29, x30, [sp, #-160]!; stp x19, x20, [sp, #16]; stp x21, x22, [sp, #32]; stp x23, x24, [sp, #48]\n"
    "stp x25, x26, [sp, #64]; stp x27, x28, [sp, #80]; stp d8, d9, [sp, #96]; stp d10, d11, [sp, #112]\n"
    "stp d12, d13, [sp, #128]; stp d14, d15, [sp, #144]; mov x9, sp; str x9, [x0]; mov sp, x1\n"
    "ldp d14, d15, [sp, #144]; ldp d12, d13, [sp, #128]; ldp d10, d11, [sp, #112]; ldp d8, d9, [sp, #96]\n"
    "ldp x27, x28, [sp, #80]; ldp x25, x26, [sp, #64]; ldp x23, x24, [sp, #48]; ldp x21, x22, [sp, #32]\n"
    "ldp x19, x20, [sp, #16]; ldp x29, x30, [sp], #160; ret\n");
enum { SAVED = 20, RETURN = 1 };
#else
#error "the harness switches stacks on x86-64 and aarch64"
#endif

enum { MOST_THREADS = 1024, WARP = 32, STACK = 512 << 10, MOST_BYTES = 32, FIRST_ROOM = 16 };
struct Index3 {
	unsigned x, y, z;
};
Index3 threadIdx, blockIdx, blockDim, gridDim; /* of the thread that runs */

/* A copy that a thread has started. Its group: how many were closed before. */
struct Copy {
	void *to;
	const void *from;
	int bytes, group;
};
enum State : unsigned char { READY, AT_BLOCK, AT_WARP, DONE };
struct Fiber {
	void *stopped; /* where it goes on */
	char *stack;
	char given[MOST_BYTES], shown[MOST_BYTES]; /* to the warp; what that reads, from the meeting on to the next one */
	Copy *copies; /* a ring, from the first that has not come */
	int first_copy, n_copies, room; /* room: a power of two */
	int groups; /* closed */
#if defined(__SANITIZE_THREAD__)
	void *seen;                 /* as ThreadSanitizer has it */
#endif
};
static Fiber fibers[MOST_THREADS];
static State states[MOST_THREADS];
static unsigned masks[MOST_THREADS]; /* of the warp operations that they stand in */
static void *scheduler; /* where that goes on */
static int current, n_threads;
static void (*entry)(void *);
static void *entry_argument;
#if defined(__SANITIZE_THREAD__)
static void *scheduler_seen;
static char begin_order, end_order, block_order, warp_order[MOST_THREADS / WARP];
#endif
#if defined(__SANITIZE_ADDRESS__)
static void *scheduler_stack;
static const void *scheduler_bottom;
static size_t scheduler_size;
#endif

UNSEEN static void
fail(const char *what)
{
	fprintf(stderr, "block %u, thread %d: %s\n", blockIdx.x, current, what);
	abort();
}

/* ---- switches */
UNSEEN static void
give_way(State state)
{
	Fiber *f = &fibers[current];

	states[current] = state;
#if defined(__SANITIZE_THREAD__)
	__tsan_switch_to_fiber(scheduler_seen, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(__SANITIZE_ADDRESS__)
	void *stack;
	__sanitizer_start_switch_fiber(&stack, scheduler_bottom, scheduler_size);
#endif
	harness_switch(&f->stopped, scheduler);
#if defined(__SANITIZE_ADDRESS__)
	__sanitizer_finish_switch_fiber(stack, nullptr, nullptr);
#endif
}

UNSEEN static void
run(int thread)
{
	Fiber *f = &fibers[thread];

	current = thread;
	threadIdx.x = (unsigned)thread;
#if defined(__SANITIZE_THREAD__)
	__tsan_switch_to_fiber(f->seen, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(__SANITIZE_ADDRESS__)
	__sanitizer_start_switch_fiber(&scheduler_stack, f->stack, STACK);
#endif
	harness_switch(&scheduler, f->stopped);
#if defined(__SANITIZE_ADDRESS__)
	__sanitizer_finish_switch_fiber(scheduler_stack, nullptr, nullptr);
#endif
}

/* Blocks run one after the other: what threads of two do to one place is no race. That they touch no place together says the
 * check of loop IR. */
#if defined(__SANITIZE_THREAD__)
#define RELEASE(order) __tsan_release(&order)
#define ACQUIRE(order) __tsan_acquire(&order)
#else
#define RELEASE(order) (void)0
#define ACQUIRE(order) (void)0
#endif

/* One block after the other. */
UNSEEN static void
body()
{
#if defined(__SANITIZE_ADDRESS__)
	__sanitizer_finish_switch_fiber(nullptr, &scheduler_bottom, &scheduler_size);
#endif
	for (;;) {
		ACQUIRE(begin_order);
		entry(entry_argument);
		RELEASE(end_order);
		give_way(DONE);
	}
}

UNSEEN static void *
first_stop(char *stack)
{
	void **top = (void **)(stack + STACK) - 2; /* a call pushes where to return: 16 bytes are kept even */

	memset(top - SAVED, 0, (SAVED + 2) * sizeof(void *));
	(top - SAVED)[RETURN] = (void *)body;
	return top - SAVED;
}

UNSEEN static void
start(int thread)
{
	Fiber *f = &fibers[thread];

	if (!f->stack) {
		f->stack = (char *)aligned_alloc(64, STACK);
		f->stopped = first_stop(f->stack);
		f->room = FIRST_ROOM;
		f->copies = (Copy *)calloc(FIRST_ROOM, sizeof(Copy));
#if defined(__SANITIZE_THREAD__)
		f->seen = __tsan_create_fiber(0);
#endif
	}
	states[thread] = READY;
	f->first_copy = f->n_copies = f->groups = 0;
}

/* ---- where threads meet */
/* All that came before is known to all that comes behind. */
UNSEEN static void
meet(State state, void *order)
{
#if defined(__SANITIZE_THREAD__)
	__tsan_release(order);
#endif
	give_way(state);
#if defined(__SANITIZE_THREAD__)
	__tsan_acquire(order);
#endif
	(void)order;
}

extern "C" UNSEEN void
harness_block_barrier(void)
{
#if defined(__SANITIZE_THREAD__)
	meet(AT_BLOCK, &block_order);
#else
	meet(AT_BLOCK, nullptr);
#endif
}

extern "C" UNSEEN void
harness_warp_barrier(unsigned mask)
{
	masks[current] = mask;
	if (!(mask >> current % WARP & 1))
		fail("a warp operation whose mask lacks the thread");
#if defined(__SANITIZE_THREAD__)
	meet(AT_WARP, &warp_order[current / WARP]);
#else
	meet(AT_WARP, nullptr);
#endif
}

/* memcpy, which the sanitizers do not see. */
UNSEEN static void
move(void *to, const void *from, int bytes)
{
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
	for (int i = 0; i < bytes; i++)
		((volatile char *)to)[i] = ((const volatile char *)from)[i];
#else
	if (bytes == 4)
		__builtin_memcpy(to, from, 4);
	else
		__builtin_memcpy(to, from, (size_t)bytes);
#endif
}

/* Registers are exchanged, which orders no memory. */
extern "C" UNSEEN void
harness_exchange(unsigned mask, const void *own, void *out, int bytes, int from, int width)
{
	int me = current, source = (me & -width) + from;

	move(fibers[me].given, own, bytes);
	masks[me] = mask;
	if (!(mask >> me % WARP & 1))
		fail("a shuffle whose mask lacks the thread");
	if (!(mask >> source % WARP & 1))
		fail("a shuffle from a thread that the mask lacks");
	give_way(AT_WARP);
	move(out, fibers[source].shown, bytes);
}

extern "C" UNSEEN void
harness_gather(const void *own, void *all, int bytes)
{
	int first = current / WARP * WARP;

	move(fibers[current].given, own, bytes);
	masks[current] = 0xffffffffu;
	give_way(AT_WARP);
	for (int i = 0; i < WARP; i++)
		move((char *)all + i * bytes, fibers[first + i].shown, bytes);
}

/* ---- copies: made when the thread waits for them, so that who does not wait has old numbers */
UNSEEN static void
make_room(Fiber *f)
{
	Copy *more = (Copy *)calloc((size_t)f->room * 2, sizeof(Copy));

	for (int i = 0; i < f->n_copies; i++)
		more[i] = f->copies[(f->first_copy + i) & (f->room - 1)];
	free(f->copies);
	f->copies = more;
	f->room *= 2;
	f->first_copy = 0;
}

extern "C" UNSEEN void
harness_copy_start(void *to, const void *from, int bytes)
{
	Fiber *f = &fibers[current];

	if (((size_t)to | (size_t)from) & (size_t)(bytes - 1))
		fail("a copy between places that are no multiples of its size");
	if (f->n_copies == f->room)
		make_room(f);
	f->copies[(f->first_copy + f->n_copies++) & (f->room - 1)] = Copy{to, from, bytes, f->groups};
}

extern "C" UNSEEN void
harness_copy_commit(void)
{
	fibers[current].groups++;
}

/* Seen by the sanitizers as the thread's own stores. */
static __attribute__((noinline)) void
copy_bytes(char *to, const char *from, int bytes)
{
	if (bytes == 16 && from) {
		__builtin_memcpy(to, from, 16);
		return;
	}
	for (int i = 0; i < bytes; i++)
		to[i] = from ? from[i] : 0;
}

extern "C" UNSEEN void
harness_copy_finish(int groups)
{
	Fiber *f = &fibers[current];

	while (f->n_copies && f->copies[f->first_copy].group < f->groups - groups) {
		Copy *c = &f->copies[f->first_copy];
		f->first_copy = (f->first_copy + 1) & (f->room - 1);
		f->n_copies--;
		copy_bytes((char *)c->to, (const char *)c->from, c->bytes);
	}
}

/* ---- a block */
/* All are there that the mask names, and give the same one. */
UNSEEN static void
check_meeting(int thread, unsigned waiting)
{
	int first = thread / WARP * WARP;

	for (int j = 0; j < WARP; j++) {
		if (!(masks[thread] >> j & 1))
			continue;
		if (!(waiting >> j & 1))
			fail("a warp operation for which not all threads come");
		if (masks[first + j] != masks[thread])
			fail("threads of a warp give different masks");
	}
}

/* Those of a warp who stand in an operation go on. Groups of it may have one each.
 * A thread that goes on runs before any of them is here again: what is shown stays until all have read it. */
UNSEEN static bool
release_warp(int first)
{
	unsigned waiting = 0, checked = 0;

	for (int i = 0; i < WARP && first + i < n_threads; i++)
		waiting |= (unsigned)(states[first + i] == AT_WARP) << i;
	for (int i = 0; i < WARP && waiting >> i; i++) {
		if (!(waiting >> i & 1))
			continue;
		if (!(checked >> i & 1)) {
			check_meeting(first + i, waiting);
			checked |= masks[first + i];
		}
		move(fibers[first + i].shown, fibers[first + i].given, MOST_BYTES);
		states[first + i] = READY;
	}
	return waiting;
}

UNSEEN static void
run_warp(int first)
{
	do
		for (int i = first; i < first + WARP && i < n_threads; i++)
			if (states[i] == READY)
				run(i);
	while (release_warp(first));
}

UNSEEN static int
count(State state)
{
	int n = 0;

	for (int i = 0; i < n_threads; i++)
		n += states[i] == state;
	return n;
}

extern "C" UNSEEN void
harness_run_block(unsigned block, int threads, void (*kernel)(void *), void *argument)
{
	blockIdx = Index3{block, 0, 0};
	blockDim = Index3{(unsigned)threads, 1, 1};
	n_threads = threads;
	entry = kernel;
	entry_argument = argument;
#if defined(__SANITIZE_THREAD__)
	scheduler_seen = __tsan_get_current_fiber();
#endif
	RELEASE(begin_order);
	for (int i = 0; i < threads; i++)
		start(i);
	while (count(DONE) < threads) {
		for (int first = 0; first < threads; first += WARP)
			run_warp(first);
		int waiting = count(AT_BLOCK);
		if (waiting && waiting < threads)
			fail("a barrier for which not all threads come");
		for (int i = 0; i < threads && waiting; i++)
			states[i] = READY;
	}
	ACQUIRE(end_order);
}

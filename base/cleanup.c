/* Removes temporary files and folders and kills started programs, however the process ends. A signal handler may
 * neither allocate nor wait. So the handler walks a table of slots, each for one file or program. The table grows by
 * whole chunks, which never move. A slot is taken before the file is made or the program started, so there is always
 * room for it. The code that fills a slot owns it until cleanup_forget. */
#include "base/base.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

typedef enum { SLOT_FREE, SLOT_FILLING, SLOT_PATH, SLOT_CHILD } SlotState;
typedef struct {
	_Atomic SlotState state;
	char path[PATH_MAX];
	pid_t child;
} Slot;
enum { CHUNK_SLOTS = 16 };
typedef struct Chunk {
	Slot slots[CHUNK_SLOTS];
	struct Chunk *_Atomic next;
} Chunk;
static Chunk first_chunk;

/* Number of threads that are making a file or starting a program; the file or program may not be in
 * the table yet. Such a thread blocks its signals. Before the process ends, it waits until the
 * other threads have finished; after `ending` is set, no file is made and no program is started. */
static _Atomic int making;
static _Atomic bool ending;
static _Thread_local sigset_t mask_before;
static _Thread_local CleanupSlot reserved =
	-1; /* slot for the file or program that this thread is making */

static Slot *
slot_at(CleanupSlot i)
{
	Chunk *chunk = &first_chunk;

	for (; i >= CHUNK_SLOTS; i -= CHUNK_SLOTS)
		chunk = atomic_load(&chunk->next);
	return &chunk->slots[i];
}

static int
take_slot_of(Chunk *chunk)
{
	for (int i = 0; i < CHUNK_SLOTS; i++) {
		SlotState expected = SLOT_FREE;
		if (atomic_compare_exchange_strong(&chunk->slots[i].state, &expected, SLOT_FILLING))
			return i;
	}
	return -1;
}

/* Takes a free slot, and adds a chunk if no slot is free. If another thread adds a chunk at the same time, this thread
 * takes that chunk. -1: no memory. */
static CleanupSlot
take_slot(void)
{
	Chunk *chunk = &first_chunk;

	for (CleanupSlot first = 0;; first += CHUNK_SLOTS) {
		int i = take_slot_of(chunk);
		if (i >= 0)
			return first + i;
		Chunk *next = atomic_load(&chunk->next), *grown = NULL;
		if (!next && !(grown = calloc(1, sizeof(*grown))))
			return -1;
		if (grown && atomic_compare_exchange_strong(&chunk->next, &next, grown))
			next = grown;
		else
			free(grown);
		chunk = next;
	}
}

bool
cleanup_begin_making(void)
{
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &mask_before);
	reserved = take_slot();
	if (reserved < 0) {
		pthread_sigmask(SIG_SETMASK, &mask_before, NULL);
		out_of_memory();
	}
	atomic_fetch_add(&making, 1);
	if (!atomic_load(&ending))
		return true;
	cleanup_end_making();
	return false;
}

void
cleanup_end_making(void)
{
	cleanup_forget(reserved); /* still reserved only if nothing was added */
	reserved = -1;
	atomic_fetch_sub(&making, 1);
	pthread_sigmask(SIG_SETMASK, &mask_before, NULL);
}

/* The path fits into the slot: the system has accepted it as a name. */
CleanupSlot
cleanup_add_path(const char *path)
{
	CleanupSlot i = reserved;
	Slot *slot = slot_at(i);

	reserved = -1;
	snprintf(slot->path, sizeof(slot->path), "%s", path);
	atomic_store(&slot->state, SLOT_PATH);
	return i;
}

CleanupSlot
cleanup_add_child(pid_t child)
{
	CleanupSlot i = reserved;
	Slot *slot = slot_at(i);

	reserved = -1;
	slot->child = child;
	atomic_store(&slot->state, SLOT_CHILD);
	return i;
}

void
cleanup_forget(CleanupSlot slot)
{
	if (slot >= 0)
		atomic_store(&slot_at(slot)->state, SLOT_FREE);
}

/* Uses getdents64, because readdir allocates. */
static void
remove_files(const char *path)
{
	_Alignas(struct dirent64) char entries[4096];
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	ssize_t n;

	while (fd >= 0 && (n = getdents64(fd, entries, sizeof(entries))) > 0)
		for (ssize_t at = 0; at < n;) {
			const struct dirent64 *e = (const struct dirent64 *)(entries + at);
			unlinkat(fd, e->d_name, 0);
			at += e->d_reclen;
		}
	if (fd >= 0)
		close(fd);
}

/* Tries several times, because a program that was just killed may still have made a file in the
 * folder. */
static void
remove_folder(const char *path)
{
	const struct timespec a_moment = {.tv_nsec = 2000000};

	remove_files(path);
	for (int tries = 0; rmdir(path) != 0 && errno == ENOTEMPTY && tries < 50; tries++) {
		nanosleep(&a_moment, NULL);
		remove_files(path);
	}
}

static void
kill_child(const Slot *slot)
{
	if (atomic_load(&slot->state) == SLOT_CHILD)
		kill(slot->child,
		     SIGKILL); /* not SIGTERM, on which a trainer may save a checkpoint */
}

static void
remove_path(const Slot *slot)
{
	if (atomic_load(&slot->state) == SLOT_PATH && unlink(slot->path) != 0 && errno == EISDIR)
		remove_folder(slot->path);
}

static void
for_each_slot(void (*call)(const Slot *slot))
{
	for (const Chunk *chunk = &first_chunk; chunk; chunk = atomic_load(&chunk->next))
		for (int i = 0; i < CHUNK_SLOTS; i++)
			call(&chunk->slots[i]);
}

void
cleanup_now(void)
{
	const struct timespec a_moment = {.tv_nsec = 2000000};

	atomic_store(&ending, true);
	for (int tries = 0; atomic_load(&making) > 0 && tries < 50; tries++)
		nanosleep(
			&a_moment,
			NULL); /* a bounded wait: a handler may have interrupted the making thread */
	for_each_slot(kill_child);
	for_each_slot(remove_path);
}

/* ---- signals */
static uintptr_t stack_top, stack_bytes; /* stack of the first thread; 0: no limit */
/* stack for handlers, because the thread's own may be full */
static _Alignas(16) char signal_stack[1 << 16];

static _Noreturn void
end_with(const char *message)
{
	static const char prefix[] = "gradc: error: ";
	ssize_t n = write(STDERR_FILENO, prefix, sizeof(prefix) - 1);

	n += write(STDERR_FILENO, message, strlen(message));
	n += write(STDERR_FILENO, "\n", 1);
	(void)n;
	_exit(EXIT_SYSTEM);
}

static bool
is_stack_overflow(int number, const siginfo_t *info)
{
	const uintptr_t slack = 1 << 20; /* a frame may be large */
	uintptr_t at = (uintptr_t)info->si_addr;

	return number == SIGSEGV && stack_bytes && at < stack_top &&
	       stack_top - at < stack_bytes + slack;
}

/* A library may abort because it got no memory; libraries and our code also abort for other reasons. */
static bool
is_memory_short(void)
{
	const size_t bytes = 64 << 20;
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		return true;
	munmap(at, bytes);
	return false;
}

static void
on_signal(int number, siginfo_t *info, void *context)
{
	(void)context;
	cleanup_now();
	if (is_stack_overflow(number, info))
		end_with("the stack is full: a larger limit helps (ulimit -s)");
	if (number == SIGABRT && is_memory_short())
		end_with("out of memory: a library ended the process");
	signal(number, SIG_DFL);
	raise(number);
}

static void
note_stack(void *here)
{
	const stack_t stack = {.ss_sp = signal_stack, .ss_size = sizeof(signal_stack)};
	struct rlimit limit;

	stack_top = (uintptr_t)here;
	if (getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
		stack_bytes = (uintptr_t)limit.rlim_cur;
	sigaltstack(&stack, NULL);
}

void
cleanup_on_signals(void)
{
	/* Signals that end no process, and signals that no handler can catch. */
	static const int others[] = {SIGKILL, SIGSTOP, SIGCHLD, SIGCONT,  SIGTSTP,
	                             SIGTTIN, SIGTTOU, SIGURG,  SIGWINCH, SIGXFSZ};
	char here;

	note_stack(&here);
	for (int number = 1; number <= SIGRTMAX; number++) {
		struct sigaction action = {.sa_sigaction = on_signal,
		                           .sa_flags = SA_SIGINFO | SA_ONSTACK},
				 old;
		bool ends = true;
		for (int i = 0; i < COUNT(others); i++)
			ends &= others[i] != number;
		if (ends && sigaction(number, NULL, &old) == 0 && old.sa_handler == SIG_DFL)
			sigaction(number, &action, NULL);
	}
	signal(SIGXFSZ, SIG_IGN); /* a write above the limit fails with a message instead */
}

/* ---- child processes */
static void
forget_slot(const Slot *slot)
{
	atomic_store(&((Slot *)slot)->state, SLOT_FREE);
}

/* In a new child: forgets all slots, because the files and programs belong to the parent. */
static void
leave_all(void)
{
	for_each_slot(forget_slot);
	reserved = -1;
	atomic_store(&making, 0);
	pthread_sigmask(SIG_SETMASK, &mask_before, NULL);
}

pid_t
cleanup_fork(CleanupSlot *slot)
{
	const pid_t parent = getpid();

	*slot = -1;
	errno = ECANCELED;
	if (!cleanup_begin_making())
		return -1;
	pid_t child = fork();
	int error = errno;
	if (child == 0) {
		leave_all();
		/* A SIGKILL to the parent would not reach the child. */
		if (prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() != parent)
			_exit(EXIT_SYSTEM);
		return 0;
	}
	if (child > 0)
		*slot = cleanup_add_child(child);
	cleanup_end_making();
	errno = error;
	return child;
}

Status
temporary_folder_open(Arena *arena, TemporaryFolder *out)
{
	const char *base = getenv("TMPDIR");
	char *path = arena_printf(arena, "%s/gradc-XXXXXX", base && *base ? base : "/tmp");

	*out = (TemporaryFolder){.cleanup = -1};
	if (!cleanup_begin_making())
		return status_error(EXIT_SYSTEM, "%s: the process is ending", path);
	bool made = mkdtemp(path) != NULL;
	int error = errno;
	if (made)
		*out = (TemporaryFolder){path, cleanup_add_path(path)};
	cleanup_end_making();
	return made ? NULL
	            : status_error(EXIT_SYSTEM, "%s: %s%s", path, strerror(error),
	                           base && *base ? " (TMPDIR says where)" : "");
}

void
temporary_folder_close(TemporaryFolder *folder)
{
	if (!folder->path)
		return;
	remove_folder(folder->path);
	cleanup_forget(folder->cleanup);
	folder->path = NULL;
}

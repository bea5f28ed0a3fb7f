/* Compiles CUDA C sources with NVRTC in several processes that run at the same time: one process
 * can compile only one source at a time, and a process that crashes does no harm to the others.
 * Each process takes the next source that no process has taken, the longest first, and leaves
 * its result in a file. */
#include "codegen/cuda/nvrtc.h"
#include "format/bundle/bundle.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- sources */
/* About how many statements of loop IR a source has. Small sources keep more cores busy, and less
 * is compiled again when a kernel changes; but each further source costs 25 ms. To compile the 88
 * kernels of gpt2_124m for sm_90a, one core takes:
 *
 *	statements  sources  seconds
 *	all               1      4.6
 *	400               8      5.0
 *	200              16      5.2
 *	50               61      6.1 */
enum { STATEMENTS_OF_SOURCE = 200 };

static int
count_sources(const KernelPart *all)
{
	int statements = 0;

	for (int i = 0; i < all->n; i++)
		statements += all->at[i]->body.n;
	int n = statements / STATEMENTS_OF_SOURCE + 1;
	return n < all->n ? n : all->n;
}

static Status
check_kernels(const KernelPart *all, const Target *target)
{
	for (int i = 0; i < all->n; i++) {
		const char *refusal = cuda_refusal(all->at[i], target);
		if (refusal)
			return status_error(EXIT_UNSUPPORTED,
			                    "kernel @%s: CUDA C lacks a form for it: %s",
			                    all->at[i]->name, refusal);
	}
	return NULL;
}

Status
cuda_print_sources(Arena *arena, const Module *m, const Target *target, const char *architecture,
                   CudaSources *out)
{
	KernelPart all = build_list(arena, m, target);
	int n = count_sources(&all);
	KernelPart *parts = NEW_ARRAY(arena, KernelPart, n);

	RETURN_IF_ERROR(check_kernels(&all, target));
	build_divide(arena, &all, n, parts);
	for (int i = 0; i < n; i++) {
		Text text = {0};
		cuda_print_part(&text, target, &parts[i]);
		CudaSource s = {.text = arena_strdup(arena, text.at),
		                .architecture = architecture,
		                .name = arena_printf(arena, "kernels%d_%s", i, architecture),
		                .kernels = parts[i]};
		text_free(&text);
		vec_push(arena, out, s);
	}
	return NULL;
}

Status
cuda_print_all(Text *out, Arena *arena, const Module *m, const Target *target)
{
	KernelPart all = build_list(arena, m, target);

	RETURN_IF_ERROR(check_kernels(&all, target));
	cuda_print_part(out, target, &all);
	return NULL;
}

/* ---- in the worker processes */
/* Memory that all processes share. Processes take sources in order. So the first source with an
 * error is always compiled, and its error is the one reported, for any number of processes. */
typedef struct {
	atomic_int next;
	atomic_int faulty;   /* the first source with an error so far; NO_SOURCE: none */
	atomic_int worker[]; /* by source: 1 + the process that took it; 0: not taken */
} Board;
enum { NO_SOURCE = INT_MAX };
typedef struct {
	Arena *arena;
	Nvrtc nvrtc;
	const char *folder, *keep;
	VEC(CudaSource *) sources; /* sources that are not in the cache */
	Board *board;
} Compile;
typedef struct {
	pid_t pid;
	CleanupSlot cleanup;
	const char *log; /* file with the messages of the process and of NVRTC */
	bool ended, stopped;
} Worker;
/* The failure of a worker process. It is kept here until no earlier source can fail any more.
 * Only then it is reported, because reporting a failure writes its source to a file. */
typedef struct {
	const Worker *worker; /* NULL: no worker failed */
	int code;             /* as from waitpid */
	int source;           /* source that it was compiling; -1: none */
} WorkerFault;
/* The header of a result file; after it come log and code. */
typedef struct {
	int64_t accepted, log_bytes, code_bytes;
} ResultHeader;

static const char *
result_file(const Compile *c, int source)
{
	return path_join(c->arena, c->folder, arena_printf(c->arena, "result%d", source));
}

static Status
write_result(const char *path, const ResultHeader *h, const Text *log, const Text *code)
{
	FileWriter *w;

	RETURN_IF_ERROR(file_writer_open_part(path, NULL, 0, &w));
	Status status = file_writer_add(w, h, sizeof(*h));
	if (!status)
		status = file_writer_add(w, log->at, h->log_bytes);
	if (!status)
		status = file_writer_add(w, code->at, h->code_bytes);
	return file_writer_end(w, status);
}

/* Records an error; sources after the faulty source need not be compiled any more. */
static void
note_fault(Board *b, int source)
{
	int first = atomic_load(&b->faulty);

	while (source < first && !atomic_compare_exchange_weak(&b->faulty, &first, source))
		;
}

static Status
compile_source(const Compile *c, int i)
{
	const CudaSource *s = c->sources.at[i];
	Text code = {0}, log = {0};
	ResultHeader h = {
		.accepted = nvrtc_compile(&c->nvrtc, s->text, s->architecture, &code, &log)};

	h.log_bytes = (int64_t)log.n;
	h.code_bytes = h.accepted ? (int64_t)code.n : 0;
	Status status = write_result(result_file(c, i), &h, &log, &code);
	if (!h.accepted)
		note_fault(c->board, i);
	text_free(&code);
	text_free(&log);
	return status;
}

static _Noreturn void
work(const Compile *c, int worker, const char *log)
{
	int fd = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	Status status = NULL;

	if (fd >= 0) {
		dup2(fd, STDOUT_FILENO);
		dup2(fd, STDERR_FILENO);
	}
	for (int i; !status && (i = atomic_fetch_add(&c->board->next, 1)) < c->sources.n;) {
		if (i > atomic_load(&c->board->faulty))
			break;
		atomic_store(&c->board->worker[i], worker + 1);
		status = compile_source(c, i);
	}
	if (status)
		dprintf(STDERR_FILENO, "%s\n", status->message);
	_exit(status ? status->exit_code : EXIT_OK);
}

/* ---- in this process */
static Status
open_board(Compile *c, size_t bytes)
{
	c->board = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (c->board == MAP_FAILED)
		return status_error(EXIT_SYSTEM, "memory for NVRTC's processes: %s",
		                    strerror(errno));
	atomic_store(&c->board->faulty, NO_SOURCE);
	return NULL;
}

static int
count_workers(const Compile *c)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);

	return c->sources.n < cpus ? c->sources.n : cpus < 1 ? 1 : (int)cpus;
}

static Status
start_worker(const Compile *c, int number, Worker *w)
{
	w->log = path_join(c->arena, c->folder, arena_printf(c->arena, "nvrtc%d.log", number));
	fflush(NULL);
	w->pid = cleanup_fork(&w->cleanup);
	if (w->pid == 0)
		work(c, number, w->log);
	return w->pid > 0 ? NULL
	                  : status_error(EXIT_SYSTEM, "a process for NVRTC: %s", strerror(errno));
}

/* The kernels of a source with an error: "k3, k7, k9 and 4 more". look_up.cuh has no kernels of the module. */
static const char *
kernel_names(const Compile *c, const CudaSource *s)
{
	enum { SHOWN = 3 };
	Text t = {0};

	for (int i = 0; i < s->kernels.n && i < SHOWN; i++)
		text_printf(&t, "%s%s", i ? ", " : "", s->kernels.at[i]->name);
	if (s->kernels.n > SHOWN)
		text_printf(&t, " and %d more", s->kernels.n - SHOWN);
	const char *names = arena_strdup(c->arena, t.at ? t.at : "for look-ups");
	text_free(&t);
	return names;
}

/* Writes a source with an error for people to read, and returns the path of the file. The file
 * lies in the folder of kept sources, or in the temporary folder. Its name there is made of the
 * source's name and cache key, so a repeated build writes the same file. */
static const char *
keep_faulty(const Compile *c, int i)
{
	const CudaSource *s = c->sources.at[i];
	const char *base = getenv("TMPDIR");
	const char *path = c->keep ? path_join(c->arena, c->keep,
	                                       arena_printf(c->arena, "%s.cu", s->name))
	                           : arena_printf(c->arena, "%s/gradc-%s-%016llx.cu",
	                                          base && *base ? base : "/tmp", s->name,
	                                          (unsigned long long)s->key.words[0]);
	Status status = file_write(path, s->text, (int64_t)strlen(s->text));

	if (!status)
		return path;
	status_free(status);
	return "nowhere";
}

/* The source that a worker has taken and not finished; -1: none. */
static int
unfinished(const Compile *c, int worker)
{
	for (int i = 0; i < c->sources.n; i++)
		if (atomic_load(&c->board->worker[i]) == worker + 1 &&
		    access(result_file(c, i), F_OK) != 0)
			return i;
	return -1;
}

static Status
worker_fault(const Compile *c, WorkerFault fault)
{
	int code = fault.code, ended = WIFSIGNALED(code) ? WTERMSIG(code) : 0;
	const CudaSource *s = fault.source >= 0 ? c->sources.at[fault.source] : NULL;
	void *log = NULL;
	int64_t n = 0;
	Status status;

	status_free(file_read(c->arena, fault.worker->log, 1 << 20, &log, &n));
	const char *how = ended ? arena_printf(c->arena, "signal %d (%s)", ended, strsignal(ended))
	                        : arena_printf(c->arena, "exit code %d", WEXITSTATUS(code));
	if (s)
		status = status_error(EXIT_SYSTEM,
		                      "NVRTC %s (%s) ended with %s at kernels %s for %s; the "
		                      "source is kept: %s",
		                      c->nvrtc.version, c->nvrtc.path, how, kernel_names(c, s),
		                      s->architecture, keep_faulty(c, fault.source));
	else
		status = status_error(EXIT_SYSTEM, "a process that runs NVRTC ended with %s", how);
	return status_output(status, log, (size_t)n);
}

/* Has the worker ended, and with which code? A worker that cannot be waited for counts as failed. */
static bool
has_ended(Worker *w, int *code)
{
	pid_t ended;

	*code = 1 << 8;
	while ((ended = waitpid(w->pid, code, WNOHANG)) < 0 && errno == EINTR)
		;
	w->ended = ended != 0;
	if (w->ended)
		cleanup_forget(w->cleanup);
	return w->ended;
}

/* Stops workers at sources after the first source with an error. Workers at earlier sources go
 * on, because they may find an earlier error. */
static void
stop_later(const Compile *c, Worker *workers, int n)
{
	int faulty = atomic_load(&c->board->faulty);

	for (int i = 0; i < n; i++)
		if (!workers[i].ended && !workers[i].stopped && unfinished(c, i) > faulty) {
			workers[i].stopped = true;
			kill(workers[i].pid, SIGKILL);
		}
}

/* Records a worker's end as the failure to report, unless an earlier source has an error. */
static void
note_end(const Compile *c, int number, const Worker *w, int code, WorkerFault *first)
{
	int at = unfinished(c, number);

	/* a worker that ends with code 0 has also failed if it had not finished its source: the
	 * library may have called exit(0) */
	if ((code == 0 && at < 0) || w->stopped || at > atomic_load(&c->board->faulty))
		return;
	note_fault(c->board, at);
	*first = (WorkerFault){w, code, at};
}

/* Waits until all workers have ended. */
static WorkerFault
watch_workers(const Compile *c, Worker *workers, int n)
{
	const struct timespec pause = {.tv_nsec = 2000000};
	WorkerFault first = {0};
	int code;

	for (int left = n; left > 0;) {
		for (int i = 0; i < n; i++) {
			if (workers[i].ended || !has_ended(&workers[i], &code))
				continue;
			left--;
			note_end(c, i, &workers[i], code, &first);
		}
		stop_later(c, workers, n);
		if (left > 0)
			nanosleep(&pause, NULL);
	}
	return first;
}

/* Compiles the sources that are not in the cache. Sets *fault to the worker that failed at the
 * earliest source with an error; fault->worker is NULL if no worker failed. Errors that NVRTC
 * reports in a source are in the result files instead. */
static Status
run_workers(Compile *c, WorkerFault *fault)
{
	int n = count_workers(c), started = 0;
	Worker *workers = NEW_ARRAY(c->arena, Worker, n);
	Status status = NULL;

	for (; started < n && !status; started += !status)
		status = start_worker(c, started, &workers[started]);
	if (status)
		note_fault(c->board, -1);
	*fault = watch_workers(c, workers, started);
	return status;
}

static Status
read_result(const Compile *c, int i)
{
	CudaSource *s = c->sources.at[i];
	const ResultHeader *h;
	void *bytes;
	int64_t n;

	RETURN_IF_ERROR(file_read(c->arena, result_file(c, i), 1ll << 32, &bytes, &n));
	h = bytes;
	if (n < (int64_t)sizeof(*h) || h->log_bytes < 0 || h->code_bytes < 0 ||
	    h->log_bytes > n - (int64_t)sizeof(*h) ||
	    h->code_bytes != n - (int64_t)sizeof(*h) - h->log_bytes)
		return status_error(EXIT_SYSTEM, "%s: NVRTC's process did not finish it",
		                    result_file(c, i));
	const char *log = (const char *)(h + 1);
	if (!h->accepted)
		return status_output(
			status_error(EXIT_SYSTEM,
		                     "NVRTC %s rejects gradc's source of kernels %s for %s, "
		                     "which is a bug of gradc; the source is kept: %s",
		                     c->nvrtc.version, kernel_names(c, s), s->architecture,
		                     keep_faulty(c, i)),
			log, (size_t)h->log_bytes);
	s->code = (CudaCode){.at = log + h->log_bytes,
	                     .n = h->code_bytes,
	                     .log = arena_strndup(c->arena, log, (size_t)h->log_bytes)};
	return NULL;
}

static int
longest_first(const void *a, const void *b)
{
	const CudaSource *x = *(const CudaSource *const *)a, *y = *(const CudaSource *const *)b;
	size_t n = strlen(x->text), k = strlen(y->text);

	return n != k ? (n < k) - (n > k) : (x > y) - (x < y);
}

static Status
compile_missing(Compile *c, const CudaCache *cache)
{
	size_t bytes = sizeof(Board) + sizeof(atomic_int) * (size_t)c->sources.n;
	WorkerFault fault;

	qsort(c->sources.at, (size_t)c->sources.n, sizeof(*c->sources.at), longest_first);
	for (int i = 0; i < c->sources.n; i++)
		RETURN_IF_ERROR(
			nvrtc_check_architecture(&c->nvrtc, c->sources.at[i]->architecture));
	RETURN_IF_ERROR(open_board(c, bytes));
	Status status = run_workers(c, &fault);
	int n = status ? 0 : fault.worker ? fault.source : c->sources.n;
	for (int i = 0; i < n && !status; i++) {
		const CudaSource *s = c->sources.at[i];
		status = read_result(c, i);
		if (!status)
			cuda_cache_put(cache, s->key, s->architecture, c->nvrtc.version, &s->code);
	}
	if (!status && fault.worker)
		status = worker_fault(c, fault);
	munmap(c->board, bytes);
	cuda_cache_trim(cache);
	return status;
}

/* Writes NAME.cu, NAME.cubin or NAME.ptx, and NAME.log for each source. */
static Status
keep_all(const Compile *c, const CudaSources *sources)
{
	for (int i = 0; i < sources->n; i++) {
		const CudaSource *s = &sources->at[i];
		const char *path = path_join(c->arena, c->keep, s->name);
		const char *kind = bundle_is_ptx(s->architecture) ? "ptx" : "cubin";
		RETURN_IF_ERROR(file_write(arena_printf(c->arena, "%s.cu", path), s->text,
		                           (int64_t)strlen(s->text)));
		if (!s->code.at)
			continue;
		RETURN_IF_ERROR(file_write(arena_printf(c->arena, "%s.%s", path, kind), s->code.at,
		                           s->code.n));
		RETURN_IF_ERROR(file_write(arena_printf(c->arena, "%s.log", path), s->code.log,
		                           (int64_t)strlen(s->code.log)));
	}
	return NULL;
}

Status
cuda_compile(Arena *arena, const CudaSources *sources, const char *folder, const char *keep,
             int *n_compiled)
{
	Compile c = {.arena = arena, .folder = folder, .keep = keep};
	CudaCache cache = cuda_cache_open(arena);

	*n_compiled = 0;
	RETURN_IF_ERROR(nvrtc_open(arena, &c.nvrtc));
	if (keep)
		RETURN_IF_ERROR(folder_make(keep));
	for (int i = 0; i < sources->n; i++) {
		CudaSource *s = &sources->at[i];
		s->key = cuda_cache_key(s->text, s->architecture, &c.nvrtc);
		if (!cuda_cache_get(&cache, arena, s->key, &s->code))
			vec_push(arena, &c.sources, s);
	}
	*n_compiled = c.sources.n;
	Status status = c.sources.n ? compile_missing(&c, &cache) : NULL;
	if (keep) {
		Status kept = keep_all(&c, sources);
		status = status_first(status, kept);
	}
	return status;
}

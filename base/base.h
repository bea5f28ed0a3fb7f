/* What every folder stands on: memory, containers, strings, errors, this machine. Knows nothing of graphs. Sections are named
 * after the .c file. */
#ifndef GRADC_BASE_H
#define GRADC_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))
#define MAX_RANK 16 /* of any tensor */

/* Exit codes, as the command line page fixes them. */
enum {
	EXIT_OK = 0,
	EXIT_USAGE = 2,
	EXIT_INVALID = 3,
	EXIT_UNSUPPORTED = 4,
	EXIT_SYSTEM = 5,
	EXIT_DATA = 6,
	EXIT_CHECKPOINT = 7,
	EXIT_NON_FINITE = 8,
	EXIT_COMM = 9,
	EXIT_HANG = 10,
	EXIT_PREEMPTED = 75,
};

/* ---- memory.c: blocks of memory. Allocation never fails: when the system has no memory left the process ends with
 * EXIT_SYSTEM and a message, or the call inside memory_guard with that status. */
void *memory_get(size_t bytes);
void *memory_zeroed(size_t n, size_t size);
void *memory_resize(void *old, size_t bytes);
void memory_free(void *block); /* NULL is allowed */
_Noreturn void out_of_memory(void);

/* ---- arena.c: memory that is freed all at once. Addresses never move. */
typedef struct Arena Arena;

Arena *arena_new(void);
void arena_free(Arena *arena); /* NULL is allowed */
/* Zeroed, aligned to 16 bytes; a size of 0 gives a unique address. */
void *arena_alloc(Arena *arena, size_t bytes);
void *arena_copy(Arena *arena, const void *from, size_t bytes);
char *arena_strdup(Arena *arena, const char *text);
char *arena_strndup(Arena *arena, const char *text, size_t n);
char *arena_printf(Arena *arena, const char *fmt, ...) PRINTF(2, 3);
char *arena_vprintf(Arena *arena, const char *fmt, va_list args);
size_t arena_bytes(const Arena *arena); /* allocated from the system so far */
#define NEW(arena, T) ((T *)arena_alloc(arena, sizeof(T)))
#define NEW_ARRAY(arena, T, n) ((T *)arena_alloc(arena, sizeof(T) * (size_t)(n)))

/* Growable array in an arena: VEC(int) v = {0}; vec_push(arena, &v, 3); v.at[0], v.n.
 * Growing moves the elements, never what they point to. */
#define VEC(T)           \
	struct {         \
		T *at;   \
		int n;   \
		int cap; \
	}
void *vec_grow(Arena *arena, void *at, int n, int *cap, size_t size);
#define vec_push(arena, v, x)                                                               \
	((void)((v)->n == (v)->cap ? ((v)->at = vec_grow(arena, (v)->at, (v)->n, &(v)->cap, \
	                                                 sizeof(*(v)->at)))                 \
	                           : 0),                                                    \
	 (v)->at[(v)->n++] = (x))
typedef VEC(const char *) StringList;

/* ---- map.c: hash tables in an arena. */
typedef struct StrMap StrMap; /* string -> pointer */
typedef struct IntMap IntMap; /* uint64 -> uint64 */

StrMap *strmap_new(Arena *arena);
void *strmap_get(const StrMap *map, const char *key);       /* NULL when absent */
void strmap_put(StrMap *map, const char *key, void *value); /* the key is borrowed */
IntMap *intmap_new(Arena *arena);
bool intmap_get(const IntMap *map, uint64_t key, uint64_t *value); /* value may be NULL */
void intmap_put(IntMap *map, uint64_t key, uint64_t value);
/* XXH64-quality mixing of bytes; equal bytes and seed give equal results on every machine. */
uint64_t hash_bytes(const void *bytes, size_t n, uint64_t seed);
uint64_t hash_mix(uint64_t a, uint64_t b);

/* ---- text.c: text that grows, and text from outside made safe to print. */
typedef struct {
	char *at; /* always NUL-terminated once something was added */
	size_t n, cap;
} Text;

void text_free(Text *text);
void text_add(Text *text, const char *s);
void text_add_bytes(Text *text, const void *bytes, size_t n);
void text_printf(Text *text, const char *fmt, ...) PRINTF(2, 3);
/* s with control bytes and invalid UTF-8 as \xHH. */
void text_add_plain(Text *text, const char *s);
char *plain_text(Arena *arena, const char *s); /* what that adds, by itself */
/* s in double quotes; `"`, `\`, control bytes and invalid UTF-8 as \xHH. What text_add_quoted
 * writes, text_unquote reads. */
void text_add_quoted(Text *text, const char *s);
/* s as one word of a shell's command line: as it is where no byte has a meaning there, else between single quotes, and
 * with control bytes as bash's $'...'. */
void text_add_shell_word(Text *text, const char *s);
/* Reads a quoted string at *at, moves *at behind it; NULL when malformed. */
char *text_unquote(Arena *arena, const char **at);
/* Shortest text that reads back as the same value of that type (f64 or f32); inf, -inf, nan. */
void text_add_double(Text *text, double value);
void text_add_float(Text *text, float value);
/* Of settings "KEY=VALUE,KEY,..." the first key that stands there twice, *n bytes long; NULL: each stands there once. */
const char *text_key_twice(const char *settings, size_t *n);
/* Fewest insertions, deletions and replacements of bytes that make `part` a part of `whole`; of the first 255 bytes. */
int text_distance(const char *part, const char *whole);
/* Shell-style match with * and ? (no character classes). */
bool glob_match(const char *pattern, const char *name);
/* "12K", "3M", "1G" (1024) or a plain number; false when malformed or above INT64_MAX. */
bool parse_bytes(const char *text, int64_t *out);
bool parse_int(const char *text, int64_t *out);
bool parse_uint(const char *text, uint64_t *out); /* digits only */
bool parse_double(const char *text, double *out);
/* The file name for a tensor: its first 200 bytes, of which others than letters, digits, `.`, `_`, `-` become `_`. */
char *file_name_of(Arena *arena, const char *tensor_name);
void text_vprintf(Text *text, const char *fmt, va_list args);
/* n bytes of text from outside; control bytes, invalid UTF-8 and the bytes in `also` as \xHH. */
void text_add_escaped(Text *text, const char *s, size_t n, const char *also);
/* What stands before the ending, in the arena; NULL: text (NULL, too) does not end so, or has nothing before it. */
char *text_before_ending(Arena *arena, const char *text, const char *ending);
const char *shape_text(Arena *arena, int rank, const int64_t *dims); /* "[2,3]", in the arena */

/* ---- nearest.c: of what is offered, the items with the smallest distances, the first offered first. */
enum { N_NEAREST = 3 };
typedef struct {
	Text letters;                /* the glob without its wildcards */
	const void *item[N_NEAREST]; /* NULL: there are fewer */
	int distance[N_NEAREST];
} Nearest;
Nearest nearest_open(const char *glob);
int nearest_distance(const Nearest *n, const char *name); /* from the glob's letters */
void nearest_offer(Nearest *n, const void *item, int distance);
void nearest_close(Nearest *n);
bool utf8_valid(const char *s, size_t n);

/* ---- html.c: pages that need nothing but themselves. */
/* The page with the JSON where it says @DATA@, such that no text in it can end a script element. */
void html_page(Text *out, const char *page, const char *json);
/* A text from outside as a JSON string (of jansson); bytes that are not UTF-8 are escaped first. */
struct json_t *json_name(const char *text);
struct json_t *json_uint(uint64_t x); /* an integer; above jansson's, its digits as a string */

/* ---- diag.c: what the user is told. Lines go to a stream at once:
 * "gradc: error: model.onnx: node "conv1" (Conv, opset 17): ...", notes and hints indented. */
typedef struct Diag Diag;

Diag *diag_new(const char *program, FILE *stream);
void diag_free(Diag *diag);
/* One fault. The exit code of a run with several faults is the smallest one reported.
 * After 100 errors the rest are counted, not printed. Text from outside inside the message
 * has control bytes escaped by diag itself. */
void diag_error(Diag *diag, int exit_code, const char *fmt, ...) PRINTF(3, 4);
void diag_verror(Diag *diag, int exit_code, const char *fmt, va_list args);
void diag_warning(Diag *diag, const char *fmt, ...) PRINTF(2, 3);
void diag_note(Diag *diag, const char *fmt, ...) PRINTF(2, 3); /* "\tnote: ..." */
void diag_hint(Diag *diag, const char *fmt, ...) PRINTF(2, 3); /* "\thint: ..." */

/* Adds the errors, the exit code and the lines that a freed Diag had reported, as if `diag` had reported them itself. */
void diag_take_over(Diag *diag, int errors, int exit_code, const char *lines);

/* Before anything is opened: a stream that is closed gets a file that takes nothing, so that no other file gets its
 * number and what is printed. */
void streams_reserve(void);
/* Flushes stdout; the exit code of a run that ends with `code`: EXIT_SYSTEM where what it printed is lost. */
int diag_finish_stdout(Diag *diag, int code);

int diag_errors(const Diag *diag);    /* how many so far */
int diag_exit_code(const Diag *diag); /* EXIT_OK without errors */

/* Status: an error as a value, for library code. NULL is success. */
typedef struct {
	int exit_code;
	char *message; /* one line */
	char *output;  /* more about it, of several lines: what another program said; NULL */
} StatusInfo;
typedef StatusInfo *Status;

Status status_error(int exit_code, const char *fmt, ...) PRINTF(2, 3)
	__attribute__((returns_nonnull));
Status status_no_memory(void) __attribute__((returns_nonnull)); /* allocates nothing */
/* memory.c: call(args), whose status it hands on; EXIT_SYSTEM when memory runs out meanwhile in this thread. Then
 * *orphans are the blocks that the call took and did not free; after what it worked on was closed, memory_orphans_free frees the
 * rest. Guards do not nest. */
typedef struct MemoryOrphans MemoryOrphans;
Status memory_guard(Status (*call)(void *args), void *args, MemoryOrphans **orphans);
void memory_orphans_free(MemoryOrphans *orphans); /* NULL is allowed */
/* What a guarded call holds besides memory, from here to memory_let_go: undo(what) when memory runs out meanwhile. */
void memory_hold(void (*undo)(void *what), void *what);
void memory_let_go(void);
/* jansson's memory comes from here, too: in a program of ours all of it, else that of guarded calls. */
void memory_serve_json(bool in_program);
/* What memory_orphans_free does with a block that holds more than memory, instead of freeing it. It may not need others. */
void memory_on_orphaned(void *block, void (*release)(void *block));
/* Puts "PREFIX: " before the message; NULL stays NULL. */
Status status_annotate(Status status, const char *fmt, ...) PRINTF(2, 3);
/* Adds the first lines of what more there is to say, as another program's output, at most 4000 bytes: diag prints them
 * below the message, indented. */
Status status_output(Status status, const char *text, size_t n);
Status status_copy(const StatusInfo *status); /* of NULL: NULL */
void status_free(Status status);
/* The first of two, which is kept; the second is freed when both are faults. */
Status status_first(Status first, Status second);
/* Reports through diag and frees; true when it was an error. */
bool diag_status(Diag *diag, Status status);
#define RETURN_IF_ERROR(expr)            \
	do {                             \
		Status status_ = (expr); \
		if (status_)             \
			return status_;  \
	} while (0)

/* ---- cleanup.c: what must not outlive the process. A slot of -1 stands for none. */
typedef int CleanupSlot;
/* Around what makes one temporary file or folder, or starts one program, and adds it; signals wait meanwhile. false: the
 * process is ending, nothing may be made. */
bool cleanup_begin_making(void);
void cleanup_end_making(void);
/* Between the two. */
CleanupSlot cleanup_add_path(const char *path); /* a file, or a folder with the files in it */
CleanupSlot cleanup_add_child(int pid);         /* is killed; -PID: its group is */
void cleanup_forget(CleanupSlot slot);          /* it was removed, renamed or waited for */
/* fork(), for a child that is killed when this process ends in any way. The child cleans up what it makes itself. -1: errno says
 * why. */
int cleanup_fork(CleanupSlot *slot);
void cleanup_now(void); /* may be called by a signal handler */
/* From now on every signal that would end the process cleans up first, and a full stack, or an abort where memory is
 * short, ends it with EXIT_SYSTEM and a
 * message; SIGXFSZ is ignored, so that a write above the limit on file size fails like others. */
void cleanup_on_signals(void);
/* A new folder under $TMPDIR, else /tmp; closing it removes the files in it, too. */
typedef struct {
	const char *path;
	CleanupSlot cleanup;
} TemporaryFolder;
Status temporary_folder_open(Arena *arena, TemporaryFolder *out);
void temporary_folder_close(TemporaryFolder *folder);

/* ---- clock.c: monotonic, from an arbitrary moment. */
double seconds_now(void);

/* ---- cpu.c: features are words of cpu_feature_list.def. */
/* Those of a CPU: of this machine for "native", else of a level of cpu_level_list.def; NULL: unknown. */
const char *cpu_features(Arena *arena, const char *cpu);
/* Of the vector registers of a CPU with these features. */
int cpu_vector_bits(const char *features);
/* What this machine's CPU calls itself: "AMD EPYC 9654 96-Core Processor"; empty: unknown. */
enum { CPU_NAME = 49 };
const char *cpu_name(char to[CPU_NAME]);
bool cpu_is_intel(void);
int64_t cpu_second_cache(void); /* bytes that a core has of it; 0: unknown */
/* The first of the words that this machine lacks, *n bytes of it; NULL: none. */
const char *cpu_lacks(const char *features, int *n);

/* ---- amounts.c: "1.5 KiB", "1.2M"; they give back `to` */
const char *bytes_text(char to[32], double bytes);
const char *count_text(char to[32], double n);

/* ---- sizes.c */
/* Checked arithmetic on sizes: false on overflow. */
bool size_mul(int64_t a, int64_t b, int64_t *out);
/* n / by, rounded up; of n that is not negative. */
static inline int64_t
ceil_div(int64_t n, int64_t by)
{
	return n / by + (n % by != 0);
}
bool size_add(int64_t a, int64_t b, int64_t *out);

/* ---- cuda_toolkit.c: where NVIDIA's libraries and programs lie; compiler and runtime look in the same places. */
/* The folder of a toolkit: $CUDA_HOME, else /usr/local/cuda. */
const char *cuda_home(void);
/* A library that was opened ("libnvrtc.so.13"), where the loader looks by itself or in the toolkit's lib64; NULL: in neither. */
void *cuda_library_open(const char *soname);

#endif

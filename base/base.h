/* The foundation that every folder uses: memory, containers, strings, errors, facts about this machine. Nothing here
 * depends on models or graphs. Each section is named after its .c file. */
#ifndef GRADC_BASE_H
#define GRADC_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))
#define MAX_RANK 16 /* the highest rank of a tensor */

/* Exit codes, as documented on the command line page. */
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

/* ---- memory.c: blocks of memory. Allocation never returns NULL. When the system has no memory left, the process ends with
 * EXIT_SYSTEM and a message; inside memory_guard only the guarded call ends, with a Status of EXIT_SYSTEM. */
void *memory_get(size_t bytes);
void *memory_zeroed(size_t n, size_t size);
void *memory_resize(void *old, size_t bytes);
void memory_free(void *block); /* NULL is allowed */
void memory_give_back(void);   /* returns freed memory to the system; takes some milliseconds */
_Noreturn void out_of_memory(void);

/* ---- arena.c: memory whose allocations are freed together, by arena_free. Addresses never move. */
typedef struct Arena Arena;

Arena *arena_new(void);
void arena_free(Arena *arena); /* NULL is allowed */
/* The memory is zeroed and aligned to 16 bytes; a size of 0 gives a unique address. */
void *arena_alloc(Arena *arena, size_t bytes);
void *arena_copy(Arena *arena, const void *from, size_t bytes);
char *arena_strdup(Arena *arena, const char *text);
char *arena_strndup(Arena *arena, const char *text, size_t n);
char *arena_printf(Arena *arena, const char *fmt, ...) PRINTF(2, 3);
char *arena_vprintf(Arena *arena, const char *fmt, va_list args);
size_t arena_bytes(const Arena *arena); /* bytes that the arena has taken from the system so far */
#define NEW(arena, T) ((T *)arena_alloc(arena, sizeof(T)))
#define NEW_ARRAY(arena, T, n) ((T *)arena_alloc(arena, sizeof(T) * (size_t)(n)))

/* Growable array in an arena: VEC(int) v = {0}; vec_push(arena, &v, 3); v.at[0], v.n. Growing moves the elements. If
 * the elements are pointers, the objects that they point to stay where they are. */
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
/* XXH64 of n bytes; equal bytes and an equal seed give an equal hash on every machine. */
uint64_t hash_bytes(const void *bytes, size_t n, uint64_t seed);
uint64_t hash_mix(uint64_t a, uint64_t b);

/* ---- text.c: text that grows, and text from outside made safe to print. */
typedef struct {
	char *at; /* NULL while empty, then always NUL-terminated */
	size_t n, cap;
} Text;

void text_free(Text *text);
void text_add(Text *text, const char *s);
void text_add_bytes(Text *text, const void *bytes, size_t n);
void text_printf(Text *text, const char *fmt, ...) PRINTF(2, 3);
/* Adds s, its control bytes and invalid UTF-8 escaped as \xHH. */
void text_add_plain(Text *text, const char *s);
char *plain_text(Arena *arena, const char *s); /* s escaped as text_add_plain does, in the arena */
/* Adds s in double quotes; `"`, `\`, control bytes and invalid UTF-8 are escaped as \xHH. text_unquote reads the result. */
void text_add_quoted(Text *text, const char *s);
/* Adds s as one word for a shell's command line. A word without special bytes stays unchanged. A word with control bytes
 * is written as bash's $'...'. Any other word gets single quotes. */
void text_add_shell_word(Text *text, const char *s);
/* Reads the quoted string at *at and moves *at past the closing quote; NULL when malformed. */
char *text_unquote(Arena *arena, const char **at);
/* The shortest text that reads back as the same value of the type (f64 or f32); inf, -inf, nan. */
void text_add_double(Text *text, double value);
void text_add_float(Text *text, float value);
/* The first key that occurs twice in settings "KEY=VALUE,KEY,...", *n bytes long. NULL: no duplicate key. */
const char *text_key_twice(const char *settings, size_t *n);
/* The smallest number of byte insertions, deletions and replacements that make `part` a substring of `whole`. Only the
 * first 255 bytes of `part` and of `whole` are compared. */
int text_distance(const char *part, const char *whole);
/* Shell-style match with * and ? (no character classes). */
bool glob_match(const char *pattern, const char *name);
/* If the pattern matches the name: the replacement, in which the first `*` stands for what the pattern's first `*` took (as little
 * as fits), the second for the second, and so on. NULL: no match, or a pattern of more than MOST_STARS stars. In the arena. */
enum { MOST_STARS = 8 };
char *glob_replace(Arena *arena, const char *pattern, const char *name, const char *replacement);
/* "12K", "3M", "1G" (1024) or a plain number; false when malformed or above INT64_MAX. */
bool parse_bytes(const char *text, int64_t *out);
bool parse_int(const char *text, int64_t *out);
bool parse_uint(const char *text, uint64_t *out); /* digits only */
bool parse_double(const char *text, double *out);
/* The file name for a tensor: the first 200 bytes of its name. Bytes other than letters, digits, `.`, `_`, `-` become `_`. */
char *file_name_of(Arena *arena, const char *tensor_name);
bool utf8_valid(const char *s, size_t n);
void text_vprintf(Text *text, const char *fmt, va_list args);
/* Adds n bytes of text from outside; control bytes, invalid UTF-8 and the bytes in `also` are escaped as \xHH. */
void text_add_escaped(Text *text, const char *s, size_t n, const char *also);
bool text_ends_with(const char *text, const char *ending); /* and is longer */
/* The text without its ending, in the arena. NULL: the text is NULL, has another ending, or is the ending alone. */
char *text_before_ending(Arena *arena, const char *text, const char *ending);
const char *shape_text(Arena *arena, int rank, const int64_t *dims); /* "[2,3]", in the arena */

/* ---- cut.c */
/* Adds s, which is UTF-8 without control bytes, in at most `width` characters: a longer s keeps its beginning and most of its end,
 * "model.trans…layers.11.mlp.fc2.weight". Returns the number of characters. */
int text_add_cut(Text *text, const char *s, int width);

/* ---- html.c: self-contained HTML pages. */
/* Writes the frame of base/frame.html with the parts of `page` (its elements title, style, body and script) and the JSON, escaped
 * such that no string in the JSON can end a script element. */
void html_page(Text *out, const char *page, const char *json);
/* A text from outside as a JSON string (of jansson); bytes that are not UTF-8 are escaped first. */
struct json_t *json_name(const char *text);
struct json_t *
json_uint(uint64_t x); /* a JSON integer; above jansson's largest integer, a string of the digits */

/* ---- diag.c: messages for the user. Each line is written to a stream immediately: "gradc: error: model.onnx: node
 * "conv1" (Conv, opset 17): ...", notes and hints indented. */
typedef struct Diag Diag;

Diag *diag_new(const char *program, FILE *stream);
void diag_free(Diag *diag);
/* From now on warnings and notes are not printed, except the notes and hints of errors. */
void diag_be_quiet(Diag *diag);
/* Reports one fault. The exit code of a run with several faults is the smallest exit code reported.
 * Errors after the 100th are counted, not printed. diag escapes control bytes in the message, which may quote text from
 * outside. */
void diag_error(Diag *diag, int exit_code, const char *fmt, ...) PRINTF(3, 4);
void diag_verror(Diag *diag, int exit_code, const char *fmt, va_list args);
void diag_warning(Diag *diag, const char *fmt, ...) PRINTF(2, 3);
/* "gradc: note: ...": a fact on its own, such as a choice that was made for the user. */
void diag_remark(Diag *diag, const char *fmt, ...) PRINTF(2, 3);
void diag_note(Diag *diag, const char *fmt, ...) PRINTF(2, 3); /* "\tnote: ..." */
void diag_hint(Diag *diag, const char *fmt, ...) PRINTF(2, 3); /* "\thint: ..." */

/* Adds another Diag's number of errors, exit code and printed lines, as if `diag` had reported the faults itself. */
void diag_take_over(Diag *diag, int errors, int exit_code, const char *lines);

/* To be called before any file is opened. If a standard stream is closed, opens a file that accepts
 * no output in its place. Otherwise the next opened file would get the stream's number, and printed
 * text would go into that file. */
void streams_reserve(void);
/* Flushes stdout. Gives the exit code of a run that ends with `code`: EXIT_SYSTEM if printed text was lost. */
int diag_finish_stdout(Diag *diag, int code);

int diag_errors(const Diag *diag);    /* number of errors so far */
int diag_exit_code(const Diag *diag); /* EXIT_OK without errors */

/* Status: an error as a value, for library code. NULL is success. */
typedef struct {
	int exit_code;
	char *message; /* one line */
	char *output;  /* several lines of detail, such as another program's output, or NULL */
} StatusInfo;
typedef StatusInfo *Status;

Status status_error(int exit_code, const char *fmt, ...) PRINTF(2, 3)
	__attribute__((returns_nonnull));
Status status_no_memory(void) __attribute__((returns_nonnull)); /* allocates nothing */

/* ---- memory.c */
/* Calls call(args) and hands its status on. If memory runs out in this thread meanwhile, the result is EXIT_SYSTEM
 * and *orphans gets the blocks that the call took and did not free. Close the objects that the call worked on, then free the
 * remaining blocks with memory_orphans_free. Guards do not nest. */
typedef struct MemoryOrphans MemoryOrphans;
Status memory_guard(Status (*call)(void *args), void *args, MemoryOrphans **orphans);
void memory_orphans_free(MemoryOrphans *orphans); /* NULL is allowed */
/* Announces a resource of a guarded call that is not memory, such as an open file. If memory runs out before memory_let_go,
 * undo(what) is called. */
void memory_hold(void (*undo)(void *what), void *what);
void memory_let_go(void);
/* Makes jansson allocate with memory_get. in_program: true in gradc's own programs, where jansson always uses memory_get. false
 * in a library: the host program may use jansson, too, so jansson uses memory_get only inside memory_guard. */
void memory_serve_json(bool in_program);
/* Registers a block that owns more than memory: memory_orphans_free calls release(block) instead of freeing the block.
 * release must not use any other orphaned block. */
void memory_on_orphaned(void *block, void (*release)(void *block));

/* ---- diag.c */
/* Puts "PREFIX: " before the message; NULL stays NULL. */
Status status_annotate(Status status, const char *fmt, ...) PRINTF(2, 3);
/* Adds detail, such as another program's output: the first whole lines of `text`, at most 4000 bytes. diag prints these lines
 * below the message, indented. */
Status status_output(Status status, const char *text, size_t n);
Status status_copy(const StatusInfo *status); /* NULL stays NULL */
void status_free(Status status);
/* The first of two statuses that is a fault; when both are faults, the second is freed. */
Status status_first(Status first, Status second);
/* Reports the status through diag and frees it; true when it was an error. */
bool diag_status(Diag *diag, Status status);
#define RETURN_IF_ERROR(expr)            \
	do {                             \
		Status status_ = (expr); \
		if (status_)             \
			return status_;  \
	} while (0)

/* ---- nearest.c: keeps the offered items with the smallest distances; among equal distances the earlier item comes first. */
enum { N_NEAREST = 3 };
typedef struct {
	Text letters;                /* the glob without its wildcards */
	const void *item[N_NEAREST]; /* nearest first; NULL: fewer items were offered */
	int distance[N_NEAREST];
} Nearest;
Nearest nearest_open(const char *glob);
int nearest_distance(const Nearest *n,
                     const char *name); /* text_distance from the glob's letters to the name */
void nearest_offer(Nearest *n, const void *item, int distance);
void nearest_close(Nearest *n);
/* The word that a misspelt word was meant to be, among the words that are offered. */
typedef struct {
	const char *given;
	const char *word; /* NULL: no offered word is similar */
	int distance;
} WordGuess;
WordGuess guess_open(const char *given); /* the texts are borrowed */
void guess_offer(WordGuess *g, const char *word);
/* Adds a hint to the last error: "did you mean `WORD`?" if a similar word was offered, then `rest`. prefix: stands before WORD,
 * such as "--". rest: a sentence; NULL: no sentence. */
void hint_guess(Diag *diag, const WordGuess *g, const char *prefix, const char *rest);

/* ---- cleanup.c: files and programs that must not outlive the process. A slot is an entry of the table that lists
 * them; -1: no entry. */
typedef int CleanupSlot;
/* To be called before and after the code that makes one temporary file or folder, or starts one
 * program, and adds it to the table. In between, signals wait. false: the process is ending, and
 * nothing may be made. */
bool cleanup_begin_making(void);
void cleanup_end_making(void);
/* To be called between cleanup_begin_making and cleanup_end_making. */
CleanupSlot cleanup_add_path(const char *path); /* a file, or a folder with the files in it */
CleanupSlot cleanup_add_child(int pid);         /* a process to kill; -PID: a process group */
void
cleanup_forget(CleanupSlot slot); /* the file was removed or renamed, or the program waited for */
/* fork() for a child that is killed however this process ends. The child cleans up its own files and programs. -1: errno has
 * the reason. */
int cleanup_fork(CleanupSlot *slot);
void cleanup_now(void); /* may be called by a signal handler */
/* From now on every signal that would end the process cleans up first. A full stack, or an abort while memory is short, ends
 * the process with EXIT_SYSTEM and a message. SIGXFSZ is ignored, so a write above the file size limit fails like any
 * other write. */
void cleanup_on_signals(void);
/* A new folder under $TMPDIR, else /tmp; closing removes the folder with its files. */
typedef struct {
	const char *path;
	CleanupSlot cleanup;
} TemporaryFolder;
Status temporary_folder_open(Arena *arena, TemporaryFolder *out);
void temporary_folder_close(TemporaryFolder *folder);

/* ---- clock.c: a monotonic clock with an arbitrary zero. */
double seconds_now(void);

/* ---- cpu.c: features of CPUs, as words of cpu_feature_list.def. */
/* cpu is "native", for the features of this machine's CPU, or a name of cpu_level_list.def, for the
 * features of that level. NULL: unknown name. */
const char *cpu_features(Arena *arena, const char *cpu);
/* The width of the vector registers of a CPU with these features. */
int cpu_vector_bits(const char *features);
/* The name of this machine's CPU: "AMD EPYC 9654 96-Core Processor"; empty: unknown. */
enum { CPU_NAME = 49 };
const char *cpu_name(char to[CPU_NAME]);
bool cpu_is_intel(void);
const char *
cpu_bf16(void); /* what multiplies bf16 numbers here, as "AMX"; NULL: no instruction does */
int64_t cpu_second_cache(void); /* bytes of the second-level cache per core; 0: unknown */
/* The first feature in the list that this machine lacks, *n bytes long; NULL: the machine has all. */
const char *cpu_lacks(const char *features, int *n);

/* ---- amounts.c: "1.5 KiB", "1.2M"; both functions return `to` */
const char *bytes_text(char to[32], double bytes);
const char *count_text(char to[32], double n);

/* ---- sizes.c */
/* Checked arithmetic on sizes: false on overflow. */
bool size_mul(int64_t a, int64_t b, int64_t *out);
int64_t greatest_common_divisor(int64_t a, int64_t b); /* of numbers from 0 on; gcd(a, 0) = a */
/* n / by, rounded up, for n >= 0. */
static inline int64_t
ceil_div(int64_t n, int64_t by)
{
	return n / by + (n % by != 0);
}
bool size_add(int64_t a, int64_t b, int64_t *out);

/* ---- cuda_toolkit.c: where NVIDIA's libraries and programs lie; compiler and runtime look in the same places. */
/* The folder of the CUDA toolkit: $CUDA_HOME, else /usr/local/cuda. */
const char *cuda_home(void);
/* Opens a library ("libnvrtc.so.13") from the loader's own search path, else from the toolkit's lib64. NULL: found in
 * neither place. */
void *cuda_library_open(const char *soname);

/* ---- shared_library.c */
/* A function of a shared library. Its address goes into a struct of function pointers. */
typedef struct {
	const char *name; /* in the library; NULL ends a list */
	size_t at;        /* offset of the pointer in the struct */
	bool optional;    /* the pointer may stay NULL */
} LibrarySymbol;
/* Sets the pointers in the struct `into`. Returns the name of the first function that the library
 * lacks and that is not optional. NULL: no such function. */
const char *symbols_find(void *library, const LibrarySymbol *list, void *into);
/* Opens the first of the libraries (as cuda_library_open does; the list ends with NULL) that has all functions, and sets the
 * pointers in `into`. NULL: no library has all functions. *lacks is then the first missing function
 * of the last library that could be opened, or NULL if no library could be opened. */
void *cuda_library_load(const char *const *sonames, const LibrarySymbol *list, void *into,
                        const char **lacks);

#endif

/* What every folder stands on: memory, containers, strings, errors, element types, files.
 * Knows nothing of graphs. Sections are named after the .c file that implements them. */
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

/* memory.c: blocks of memory. Allocation never fails: when the system has no memory left the process ends with
 * EXIT_SYSTEM and a message, or the call inside memory_guard with that status. */
void *memory_get(size_t bytes);
void *memory_zeroed(size_t n, size_t size);
void *memory_resize(void *old, size_t bytes);
void memory_free(void *block); /* NULL is allowed */

/* arena.c: memory that is freed all at once. Addresses never move. */
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

/* map.c: hash tables in an arena. */
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

/* text.c: text that grows, and text from outside made safe to print. */
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
/* nearest.c: of what is offered, the items with the smallest distances, the first offered first. */
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

/* html.c: pages that need nothing but themselves. */
/* The page with the JSON where it says @DATA@, such that no text in it can end a script element. */
void html_page(Text *out, const char *page, const char *json);
/* A text from outside as a JSON string (of jansson); bytes that are not UTF-8 are escaped first. */
struct json_t *json_name(const char *text);
struct json_t *json_uint(uint64_t x); /* an integer; above jansson's, its digits as a string */

/* diag.c: what the user is told. Lines go to a stream at once:
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

/* cleanup.c: what must not outlive the process. A slot of -1 stands for none. */
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

/* clock.c: monotonic, from an arbitrary moment. */
double seconds_now(void);

/* cpu.c: features are words of cpu_feature_list.def. */
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

/* paths.c: no output is an input or another output, whatever the names. */
typedef enum {
	PATH_NONE, /* not a path */
	PATH_INPUT,
	PATH_OUTPUT, /* appears when complete */
	PATH_STREAM, /* an output that is written as it comes: may be a device */
	PATH_SHARED, /* the same, to which several runs add lines */
	PATH_FOLDER, /* outputs appear in it */
} PathKind;
typedef struct {
	PathKind kind;
	const char *option, *path; /* "--log", as it was given */
} PathUse;
typedef VEC(PathUse) PathUses;
/* Nothing for NULL and "". The texts are borrowed. */
void paths_add(Arena *arena, PathUses *uses, PathKind kind, const char *option, const char *path);
/* Reports every clash with both options, EXIT_USAGE; opens nothing. */
bool paths_check(Arena *arena, const PathUses *uses, Diag *diag);
/* Do both name one file or folder, also where it is not there yet? */
bool path_is_same(Arena *arena, const char *a, const char *b);
enum { MAX_LINKS = 40 }; /* of links to links, as many as Linux follows */
/* The path that a symbolic link holds, read from the link's folder; this path may be a link, too. NULL: `path` is no link. */
const char *path_link(Arena *arena, const char *path);
/* Where a file of that name is written: what a symbolic link leads to, be it there or not. */
const char *path_target(Arena *arena, const char *path);
/* Until paths_unguard no file of this process that is opened to be written is one of the inputs, be it in a folder of outputs. */
typedef struct PathGuard PathGuard;
PathGuard *paths_guard(const PathUses *uses);
void paths_unguard(PathGuard *guard); /* NULL is allowed */
/* Whether every output could be written where it is to be: a temporary file there, which is removed. EXIT_SYSTEM. */
Status paths_try(Arena *arena, const PathUses *uses);
/* Makes those folders of outputs that other outputs are to lie in. */
Status paths_make(Arena *arena, const PathUses *uses);
/* The output files are this process's until paths_unlock: EXIT_SYSTEM where another one has them, a warning where no lock
 * can be had. Nothing else keeps two runs from writing one log, or the later one's model over the first's. Folders may
 * be shared: a checkpoint folder has a lock of its own, in others files of one name are written over. */
typedef struct {
	int fd;
	const char *path;
	CleanupSlot cleanup;
} PathLock;
typedef VEC(PathLock) PathLocks;
Status paths_lock(Arena *arena, const PathUses *uses, PathLocks *out, Diag *diag);
void paths_unlock(PathLocks *locks);

/* options.c: one table of rows gives a program its command line, its --config file and its help. */
typedef VEC(const char *) StringList;

typedef enum {
	TAKES_STRING,  /* const char *, not empty */
	TAKES_INT,     /* int64_t, from `least` */
	TAKES_UINT,    /* uint64_t, all of its bits */
	TAKES_DOUBLE,  /* double, finite */
	TAKES_FLAG,    /* bool: no value on the command line, on or off in a config file */
	TAKES_SWITCH,  /* bool: on or off */
	TAKES_LIST,    /* StringList; may stand several times */
	TAKES_CHOICE,  /* const char *: one of the row's */
	TAKES_CHOICES, /* StringList of them */
	TAKES_KNOWN,   /* as TAKES_CHOICE; of every other value: "not supported in this build" */
	TAKES_CALL,    /* what the row's `set` does */
	TAKES_CONFIG, /* as TAKES_LIST: a file of options, one `name = value` a line, or DeepSpeed's JSON (deepspeed.h) */
	TAKES_NOTHING, /* whatever it is given: "not supported in this build" */
} OptionTakes;
typedef struct OptionRow OptionRow;
/* One option as it was given. Everything lives in the arena. */
typedef struct {
	const OptionRow *row;
	const char *value;  /* NULL: none */
	const char *origin; /* for messages: the config file as "FILE: ", or "" */
	void *to;           /* the struct that offsets belong to */
	Arena *arena;
	Diag *diag;
} OptionUse;
typedef enum { RANGE_ANY, RANGE_NOT_NEGATIVE, RANGE_POSITIVE, RANGE_BELOW_1 } OptionRange;
struct OptionRow {
	const char *name;
	const char *value; /* for the help; of the choosing kinds a|b|c; NULL: takes none */
	const char *help;  /* NULL: hidden */
	OptionTakes takes;
	size_t offset;     /* of its place */
	char letter;       /* its short name; 0: none */
	bool optional;     /* --name alone is "", and the next word is never its value */
	bool empty;        /* "" is a value too */
	bool repeats;      /* of TAKES_CALL: may stand several times */
	bool one_per_name; /* of NAME=VALUE: once for each NAME */
	bool (*set)(const OptionUse *use, void *at); /* false after reporting */
	int64_t least, most;                         /* of TAKES_INT; most 0: any */
	size_t origin; /* of TAKES_INT: place of a const char *, where it was given; 0: nowhere */
	OptionRange range; /* of TAKES_DOUBLE */
	const char *(*nth)(
		int i);    /* names of a table, shown and chosen before `value`; NULL ends */
	const char *group; /* title of the options from here on, for the help */
	unsigned commands; /* bits of the subcommands that take it; 0: all */
	/* What the value names in the file system; the row's `value` then has FILE, DIR or SPEC. */
	PathKind path; /* the whole value is a path of that kind */
	/* Adds the files and folders that a value of another form names; NULL: none. */
	void (*paths)(const OptionUse *use, PathUses *uses);
};
typedef struct {
	const OptionRow *rows;
	int n;
	const char *program; /* whose --help lists them */
	const char *mode;    /* what options have no meaning for; NULL: the program */
	const char *section; /* of a config file, which may have one for others; NULL: none */
	unsigned command;    /* the bit of the subcommand that was given; 0: any */
	const char *const *command_names; /* of the bits, from the lowest; ends with NULL */
	PathUses
		*uses; /* gets what the rows' `paths` add, of values that hold; NULL: nobody asks */
} OptionTable;
/* Sets what --config files and the line give into the struct `to`, the line last: it wins, and its
 * NAME=VALUE takes the place of the file's with the same NAME. argv[0] is skipped; words that are no
 * options become operands. Two values in one place (the line, a file) for what takes one are a fault, and so
 * are options of other subcommands on the line; a file, which may serve several subcommands, has them passed over, and so
 * the lines behind [gradc] or [executable] where the table's section is the other, and keys of DeepSpeed's file that are
 * the other's. Reports every fault; false when there was one. Not for several threads. */
bool options_read(const OptionTable *table, void *to, int argc, char **argv, StringList *operands,
                  Arena *arena, Diag *diag);
void options_print(FILE *out, const OptionTable *table); /* one line or two for each */

/* option_paths.c: for `paths` of a row, which names inputs */
void reads_named_file(const OptionUse *u, PathUses *uses); /* NAME=FILE */
void reads_named_files(const OptionUse *u,
                       PathUses *uses);       /* NAME=FILE, of which each may be a glob */
const char *option_title(const OptionUse *u); /* "-o", "--log" */
void option_add_path(const OptionUse *u, PathUses *uses, PathKind kind, const char *path);

/* dtype.c: the element types and the one table of conversions. */
/* clang-format off */
typedef enum {
	F64, F32, F16, BF16, F8E4M3, F8E5M2, F8E4M3FNUZ, F8E5M2FNUZ, F4E2M1, E8M0,
	S64, S32, S16, S8, S4, S2, U64, U32, U16, U8, U4, U2, BOOL,
	N_DTYPES,
} DType;
/* clang-format on */
typedef enum { CLASS_FLOAT, CLASS_SIGNED, CLASS_UNSIGNED, CLASS_BOOL } DTypeClass;
typedef struct {
	const char *name; /* "f32" */
	uint8_t bits;     /* 4- and 2-bit types are packed, low bits first */
	DTypeClass class;
	const char *npy;         /* "<f4", NULL where NumPy has no such type */
	const char *npy_bits;    /* the unsigned type that holds its raw bits: "<u2" for bf16 */
	const char *safetensors; /* "F32", NULL where the format has no such type */
} DTypeInfo;
extern const DTypeInfo dtype_info[N_DTYPES];

/* A float type below f32. Codes are bit patterns without the sign. */
typedef struct {
	uint8_t bits, mantissa;
	int16_t bias;       /* a normal number is 1.m * 2^(exponent - bias) */
	uint16_t sign;      /* its bit, 0 for e8m0 */
	uint16_t largest;   /* code of the largest finite value */
	uint16_t overflow;  /* code of finite values above */
	uint16_t infinity;  /* 0: has none */
	uint16_t nan;       /* the pattern that NaN becomes; f4e2m1 has no NaN and gives -0 */
	bool unsigned_zero; /* fnuz: no -0, its pattern is the only NaN */
	bool only_normal;   /* e8m0: exponent 0 is a power of two like any other */
} FloatFormat;
const FloatFormat *float_format(DType t); /* NULL: any other type */

/* How a number becomes one of a format that has fewer. AWAY: from zero. STOCHASTIC: the magnitude's fraction f of
 * a unit in the last place rounds up where 32 random bits are below floor(2^32 f). */
typedef enum { ROUND_NEAREST, ROUND_TOWARD_ZERO, ROUND_AWAY, ROUND_STOCHASTIC } Rounding;
/* What lies above the largest number. DEFAULT: infinity of f16 and bf16, the largest number of other formats, but
 * infinity stays infinity where there is one. SATURATE: the largest number. SPECIAL: infinity, or NaN where there is
 * none; f4e2m1 has neither and saturates. A finite number rounded toward zero never gets there. */
typedef enum { OVERFLOW_DEFAULT, OVERFLOW_SATURATE, OVERFLOW_SPECIAL } Overflow;
extern const char *const rounding_names[], *const overflow_names[];
typedef struct {
	Rounding round;
	Overflow overflow;
} Conversion;
typedef struct {
	uint16_t finite, infinite; /* codes of finite values above the largest, of infinity */
} OverflowCodes;
OverflowCodes float_overflow(const FloatFormat *f, Overflow overflow);

bool dtype_parse(const char *name, DType *out);
static inline bool
dtype_is_float(DType t)
{
	return dtype_info[t].class == CLASS_FLOAT;
}
/* The type in which a result computed as `computed` is written, where the graph declares `declared`: f64 stays
 * f64, other floats take the declared type. */
static inline DType
result_dtype(DType computed, DType declared)
{
	return computed == F64 || !dtype_is_float(computed) ? computed : declared;
}
/* Bytes of n elements; packed types round up. n must be >= 0. */
int64_t dtype_bytes(DType t, int64_t n);
/* Element i of an array of dtype t. Floats (round to nearest even, as Conversion's default) through double;
 * signed and bool through int64, u64 through its bits. */
double dtype_load_float(DType t, const void *at, int64_t i);
void dtype_store_float(DType t, void *at, int64_t i, double value);
int64_t dtype_load_int(DType t, const void *at, int64_t i);
void dtype_store_int(DType t, void *at, int64_t i, int64_t value); /* wraps */
/* value rounded once to the float type t, as a double. */
double dtype_round(DType t, double value);
/* To a float type below f32 in any way; random: 32 bits for ROUND_STOCHASTIC. */
double dtype_round_as(DType t, Conversion how, double value, uint32_t random);
/* An integer as a double from which every smaller float rounds as from the integer itself. */
double dtype_int_for_rounding(uint64_t bits, bool is_signed);
/* round(x / scale) + zero, clamped to the integer type t; NaN gives 0. Steps are rounded to the type `arithmetic`, f32 or f64.
 * reciprocal: x times 1 / scale, in place of the division. */
int64_t dtype_quantize(DType t, DType arithmetic, bool reciprocal, double x, double scale,
                       double zero);
/* The smallest and the largest number of an integer type of at most 32 bits, or of a float type below f32. */
void dtype_range(DType t, double *low, double *high);
/* Converts n elements from one type to another as C does (float to integer truncates and
 * saturates, NaN to 0; to bool: != 0). */
void dtype_convert(DType to, void *dst, DType from, const void *src, int64_t n);
/* A hash of floats by their values: the same whatever wider type holds them. */
uint64_t hash_numbers(DType dtype, const void *data, int64_t n);
/* groups.c: elements that share a number, as those of a block share a scale: group[i] places along each axis, the last group perhaps
 * shorter. Groups are counted in row-major order, as the elements. */
typedef struct {
	int rank;
	const int64_t *dims, *group; /* group: at least 1 each */
} Groups;
int64_t groups_along(const Groups *g, int axis);
int64_t groups_count(const Groups *g);
int64_t groups_at(const Groups *g, const int64_t *at); /* of the element at these indices */
/* Every element and its group: for (GroupWalk w = group_walk(&g); w.i < n; group_next(&w)) */
typedef struct {
	Groups groups;
	int64_t at[MAX_RANK], i, group;
} GroupWalk;
GroupWalk group_walk(const Groups *g);
void group_next(GroupWalk *w);

/* ---- quantization.c */
/* Codes: integers, or numbers of floats of 8 and 4 bits, whose zero point is 0. Scale and zero point for a range, 0 in it (quant_utils.py:
 * compute_scale_zp). symmetric: the same scale on both sides of the middle code; so it is for floats. A range of nothing has scale 1. */
void quantization_of(DType type, bool symmetric, float low, float high, float *scale,
                     int32_t *zero);
/* Of 0, 1, ... 255: what onnxruntime divides a standard deviation by for the scale of 8-bit floats, whatever numbers they are. */
#define DEVIATION_OF_BYTES 73.90027f
/* Those of each group of numbers of type `dtype`, by its smallest and largest: symmetric where codes are signed. Of 8-bit floats by the
 * group's standard deviation (compute_scale_zp_float8), where its largest number has a code then. */
void quantization_of_groups(DType type, const Groups *g, DType dtype, const void *data,
                            Arena *scratch, float *scale, int32_t *zero);
/* x's code as element i of an array, and the number that it stands for; steps are rounded to f32. */
void code_store(DType type, void *at, int64_t i, double x, double scale, double zero);
double code_number(DType type, double x, double scale, double zero);
/* ---- amounts.c: "1.5 KiB", "1.2M"; they give back `to` */
const char *bytes_text(char to[32], double bytes);
const char *count_text(char to[32], double n);
/* difference.c: a derivative at x beside central differences of f, with as many steps as it takes. dtype, F64 or a smaller
 * float: what x is stored in. f may be called at x and beside it, last at any of these. */
typedef Status (*DifferenceOf)(void *context, double x, double *y);
typedef struct {
	double slope; /* by the step that agrees best */
	double error; /* |slope - derivative| / max(|slope|, |derivative|, 1e-4) */
	bool kink;    /* they differ, and f has a kink at x, so that it has no slope there */
} Difference;
Status difference_check(DifferenceOf f, void *context, DType dtype, double x, double derivative,
                        Difference *out);
/* The worst of several, those that are not numbers before all others, kinks only where there is nothing else. Starts as {0}. */
typedef struct {
	double error, derivative, slope;
	int64_t at;             /* as difference_add was told */
	int64_t checked, kinks; /* so far */
} WorstDifference;
void difference_add(WorstDifference *worst, const Difference *d, double derivative, int64_t at);

/* ---- lapack.c */
/* u: [rows, n], s: [n], from the largest on, vt: [n, columns], n the lesser of both. */
typedef struct {
	int64_t n;
	double *u, *s, *vt;
} Svd;
/* Of a matrix [rows, columns] of finite numbers, which is lost: u diag(s) vt. EXIT_UNSUPPORTED where LAPACK is not installed. */
Status svd(Arena *arena, int64_t rows, int64_t columns, double *matrix, Svd *out);
/* ---- dynamic_map.c: 8-bit numbers of bitsandbytes, in ascending order */
enum { DYNAMIC_MAP = 256 };
void dynamic_map(bool is_signed, float out[DYNAMIC_MAP]);
/* ---- four_bit.c: bitsandbytes' numbers of 4 bits in blocks, with its bytes */
typedef enum { FOUR_BIT_NF4, FOUR_BIT_FP4, N_FOUR_BIT } FourBit;
enum { FOUR_BIT_CODES = 16, FOUR_BIT_BLOCK = 64, ABSMAX_BLOCK = 256 };
extern const char *const four_bit_names[]; /* "nf4", "fp4"; ends with NULL */
extern const float four_bit_values[N_FOUR_BIT][FOUR_BIT_CODES];
int64_t four_bit_blocks(int64_t n); /* of n elements */
int64_t absmax_blocks(int64_t n);   /* of n such blocks */
/* codes: (n + 1) / 2 bytes, the first of two in the upper half. absmax: of each block the largest size. x must be finite. */
void four_bit_quantize(FourBit kind, const float *x, int64_t n, uint8_t *codes, float *absmax);
/* Blocks run over [outputs, outer, inner]: where element i of [outer, outputs, inner] lies there. */
int64_t four_bit_place(int64_t i, int64_t outputs, int64_t outer, int64_t inner);
float four_bit_number(FourBit kind, const uint8_t *codes, const float *absmax, int64_t i);
/* absmax, less their mean `offset`, as codes of dynamic_map, with a largest size in `nested` for each 256 of them. */
void absmax_quantize(float *absmax, int64_t n, uint8_t *codes, float *nested, float *offset);
void absmax_numbers(const uint8_t *codes, const float *nested, float offset, int64_t n,
                    float *absmax);
/* scalar.c: the block of numbers that the trainer computes for each step and kernels read (scalar_list.def). */
typedef enum {
#define SCALAR(index, name, dtype, has_default) SCALAR_##index,
#include "base/scalar_list.def"
#undef SCALAR
	N_SCALARS,
} ScalarIndex;
typedef union {
	double f;   /* F64 */
	uint64_t u; /* U64 */
} Scalar;
extern const char *const scalar_names[]; /* "lr", "beta1", ...; ends with NULL */
extern const DType scalar_dtypes[N_SCALARS];
extern const bool scalar_has_default[N_SCALARS];

/* Checked arithmetic on sizes: false on overflow. */
bool size_mul(int64_t a, int64_t b, int64_t *out);
/* n / by, rounded up; of n that is not negative. */
static inline int64_t
ceil_div(int64_t n, int64_t by)
{
	return n / by + (n % by != 0);
}
bool size_add(int64_t a, int64_t b, int64_t *out);

/* file.c, file_append.c: the file system. */
/* The whole of a regular file, at most `limit` bytes. FIFOs, directories and devices are errors. */
/* Of a regular file, with that exit code for all that is wrong with it. */
Status file_read_regular(Arena *arena, const char *path, int exit_code, int64_t limit, void **bytes,
                         int64_t *n);
Status file_read(Arena *arena, const char *path, int64_t limit, void **bytes, int64_t *n);
/* Opens a regular file for reading; *n is its size. Never waits for a FIFO's writer. */
Status file_open_regular(const char *path, int exit_code, int *fd, int64_t *n);
/* A file that appears under its name only when complete: temporary name in the same folder,
 * fsync, rename. The new file has the permissions of the file that it replaces. Where the name is a symbolic link, the file behind
 * the link is written and the link stays. */
typedef struct FileWriter FileWriter;
Status file_writer_open(const char *path, FileWriter **out);
/* As file_writer_open, for a name that this program made, as in a cache: a link of that name is replaced, and the file behind the
 * link stays as it is. */
Status file_writer_open_name(const char *path, FileWriter **out);
/* A new file of a folder that gets its name when all are complete: it has its own from the start, and is synced by
 * file_sync_parts, when its neighbours are written, too: they share what the disk does for it. Through a buffer of the
 * caller's, of whole blocks and aligned to them, it goes past the page cache where the file system can: for files that
 * nobody reads soon the copy costs more than all else. Blocks that lie in memory as in the file, at a multiple of
 * FILE_BLOCK, are written from there. No buffer: NULL, 0. */
Status file_writer_open_part(const char *path, void *buffer, int64_t bytes, FileWriter **out);
Status file_writer_add(FileWriter *w, const void *bytes, int64_t n);
/* What a file holds: one part behind the other. */
typedef struct {
	const void *at;
	int64_t n;
} FilePart;
/* Is given n bytes of a part, those behind what it was given last. */
typedef struct {
	void *context;
	void (*take)(void *context, int part, const void *bytes, int64_t n);
} FileSink;
Status file_writer_add_parts(FileWriter *w, const FilePart *parts, int n);
int64_t file_writer_offset(const FileWriter *w);
Status file_writer_pad(FileWriter *w, int64_t alignment); /* zeros up to a multiple */
/* executable: whoever may read the file may run it. Frees w in any case. */
Status file_writer_commit(FileWriter *w, bool executable);
void file_writer_abort(FileWriter *w); /* removes the temporary file; NULL is allowed */
Status file_writer_end(FileWriter *w,
                       Status status); /* commits, or aborts and hands the fault on */
/* A file that grows, each addition whole: what a fault leaves of one is cut off again, where the file can be cut.
 * `keep`: behind what it has. */
typedef struct FileAppender FileAppender;
Status file_appender_open(const char *path, bool keep, FileAppender **out);
Status file_appender_add(FileAppender *a, const void *bytes, size_t n);
Status file_appender_close(FileAppender *a); /* NULL is allowed */
Status file_write(const char *path, const void *bytes, int64_t n);
/* Syncs what was written, and reads it again, through a buffer as of file_writer_open_part and past the page cache,
 * where the file system can: EXIT_SYSTEM where the file has not as many bytes as the parts. What it has is `seen`,
 * whatever it is. */
Status file_sync_parts(const char *path, const FilePart *parts, int n, void *buffer, int64_t bytes,
                       const FileSink *seen);
Status folder_make(const char *path); /* and its parents; existing is fine */
/* Names in it are durable; fine too where the file system has no such call. */
Status folder_sync(const char *path);
char *path_join(Arena *arena, const char *folder, const char *name);
/* As realpath, in the arena; NULL where there is nothing, errno then says why. */
const char *path_real(Arena *arena, const char *path);
/* Reads and writes go past the page cache from now on, or no longer; false where the file system cannot.
 * Addresses, sizes and offsets must then be multiples of FILE_BLOCK. */
enum { FILE_BLOCK = 4096, FILE_DIRECT_LEAST = 1 << 17 }; /* less is not worth it */
bool file_set_direct(int fd, bool direct);
/* Reads exactly n bytes at an offset, EINTR and short reads handled. */
Status file_pread(int fd, const char *path, void *to, int64_t n, int64_t offset);

/* npy.c: NumPy's array files, format 1.0 to 3.0, little endian, C order only. */
typedef struct {
	DType dtype; /* of the file's descr */
	int rank;
	int64_t dims[MAX_RANK];
	int64_t data_offset; /* in the file */
	int64_t n_elements, n_bytes;
} NpyInfo;
/* Reads and checks the header, and that the file is long enough. exit code EXIT_DATA. */
Status npy_open(const char *path, NpyInfo *info, int *fd);
Status npy_read(Arena *arena, const char *path, NpyInfo *info, void **data);
/* Is this shape the other one, or that with neighbouring axes merged: [24] of [4,6]? */
bool npy_merges_axes(int rank, const int64_t *dims, int of_rank, const int64_t *of);
/* Types that NumPy lacks are written as their raw bits (one element a byte for packed types). */
Status npy_write(const char *path, DType dtype, int rank, const int64_t *dims, const void *data);

/* safetensors.c: https://huggingface.co/docs/safetensors, as checked by its own reader: no
 * duplicate key, no hole, no overlap, header at most 100 MB. */
typedef struct {
	const char *name;
	DType dtype;
	int rank;
	int64_t dims[MAX_RANK];
	int64_t n_bytes;
	int64_t offset;   /* reading: from the start of the file */
	const void *data; /* writing */
} SafeTensor;
typedef struct {
	const char *key, *value;
} SafeText;
typedef struct {
	SafeTensor *tensors;
	int n_tensors;
	SafeText *metadata; /* of the file */
	int n_metadata;
	int fd;
} SafeTensors;
Status safetensors_open(Arena *arena, const char *path, int exit_code, SafeTensors *out);
/* The same of an open file of so many bytes, which is out's from here on; path: for messages. */
Status safetensors_read(Arena *arena, const char *path, int fd, int64_t file_bytes, int exit_code,
                        SafeTensors *out);
void safetensors_close(SafeTensors *st);
Status safetensors_write(const char *path, const SafeTensor *tensors, int n);
Status safetensors_write_with(const char *path, const SafeTensors *st); /* fd is not looked at */
/* The n + 1 parts of a file: what lies before the tensors, in the arena, spaces up to a multiple of FILE_BLOCK included,
 * and the tensors, order[i] (NULL: not wanted) in part i + 1. path: for messages. */
Status safetensors_parts(Arena *arena, const char *path, const SafeTensor *tensors, int n,
                         FilePart *parts, int *order);

/* The square of a norm of weights that have a learned size (passes/lora_magnitude.c) is read as that, where it is less: 0 / 0 is none. */
#define LEAST_NORM_SQUARE 1e-30

const char *shape_text(Arena *arena, int rank, const int64_t *dims); /* "[2,3]", in the arena */
/* What stands before the ending, in the arena; NULL: text (NULL, too) does not end so, or has nothing before it. */
char *text_before_ending(Arena *arena, const char *text, const char *ending);

/* philox.c: Philox4x32-10, Salmon et al., "Parallel random numbers: as easy as 1, 2, 3". */
typedef struct {
	uint32_t at[4];
} Philox;
Philox philox4x32(const uint32_t counter[4], uint64_t key);
/* What random numbers of a graph are made of: key = seed ^ stream, counter = index (words 0 and 1), step (2 and 3). */
Philox philox_at(uint64_t key, uint64_t index, uint64_t step);

#endif

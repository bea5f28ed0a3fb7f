/* Options, from the command line and from files: INI, or DeepSpeed's JSON. Sections are named after the .c file. */
#ifndef GRADC_CONFIG_CONFIG_H
#define GRADC_CONFIG_CONFIG_H

#include "base/files/files.h"

/* ---- options.c: one table of rows gives a program its command line, its --config file and its help. */
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
	TAKES_CONFIG, /* as TAKES_LIST: a file of options, one `name = value` a line, or DeepSpeed's JSON (deepspeed.c) */
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

/* ---- option_paths.c: for `paths` of a row, which names inputs */
void reads_named_file(const OptionUse *u, PathUses *uses); /* NAME=FILE */
void reads_named_files(const OptionUse *u,
                       PathUses *uses);       /* NAME=FILE, of which each may be a glob */
const char *option_title(const OptionUse *u); /* "-o", "--log" */
void option_add_path(const OptionUse *u, PathUses *uses, PathKind kind, const char *path);

/* ---- deepspeed.c */
/* DeepSpeed's configuration (https://www.deepspeed.ai/docs/config-json/) as options of gradc and of the executables that it
 * writes. One file serves both: each key has an owner, and the other program passes it over. */
/* ---- deepspeed_keys.c: every key, one row each */
typedef enum {
	KEY_BLOCK,  /* an object, whose keys have rows */
	KEY_BOOL,   /* true or false */
	KEY_WHOLE,  /* a whole number; 5e8 is one */
	KEY_NUMBER, /* any number */
	KEY_WORD,   /* a string; of `words`, where the row has them */
	KEY_PAIR,   /* two numbers in a list */
	KEY_ANY,    /* whatever it is; what is in it has no rows */
} KeyKind;
typedef enum {
	KEY_MAPPED,  /* becomes an option */
	KEY_IGNORED, /* changes no result here, or is read where a refused key is set only */
	KEY_REFUSED, /* what it asks for is not there; values that ask for nothing pass */
} KeyFate;
enum { OF_GRADC = 1, OF_EXECUTABLE = 2, OF_BOTH = 3 };
typedef struct {
	const char *
		path; /* "fp16.enabled"; `*` stands for one name, at the end one of `words` where there are any */
	KeyKind kind;
	KeyFate fate;
	unsigned of; /* OF_...: whose it is; of a refused one, who refuses it */
	/* What it becomes: an option of gradc's, of the executable's; NULL: none, or more than one value decides. */
	const char *compile, *run;
	const char *gate; /* key of a bool: without it this one says nothing */
	const char *on;   /* of KEY_BOOL: the option's value where it is true */
	/* Values of KEY_WORD, or what KEY_WHOLE's are called from 0 on: a|b|c; of a refused key those that pass. */
	const char *words;
	const char *names; /* the option's values, in the order of `words` */
	double least,
		most; /* of numbers; most 0: any. Of a refused key the ones above `most` are refused */
	bool below;  /* `most` itself is too much */
	bool stated; /* "auto" is no value */
	/* An option that takes its place where the command line has it. */
	const char *unless;
	const char *says; /* for people: what it becomes, or why it does not */
	const char *hint; /* what to do instead; NULL: nothing */
} DeepspeedKey;
extern const DeepspeedKey deepspeed_keys[]; /* ends with a zero row */

/* ---- deepspeed_types.c: optimizers and schedulers by their `type` */
enum { MOST_PARAMS = 20 };
typedef struct {
	const char *key;  /* of `params`, or a path */
	const char *part; /* setting of the option's value; NULL: none. Of a pair: part1, part2 */
	const char *run;  /* option of the executable; NULL: none. Of a pair: run1, run2 */
} TypeParam;
/* The first row that fits counts. */
typedef struct {
	const char *type; /* "AdamW", in whatever case */
	/* Keys of `params`: it fits where `when` is true or not 0, `without` is not, `off` is given and is not; NULL: in any case. */
	const char *when, *without, *off;
	const char *name;        /* the option's value; NULL: refused */
	const char *defaults;    /* DeepSpeed's where ours are others: "lr=0.001,weight_decay=0" */
	const char *run_default; /* likewise, of an option of the executable: "lr=0.001" */
	const char *needs[2];    /* keys of `params` without which there is nothing */
	TypeParam params[MOST_PARAMS];
	const char *says; /* why it is refused, or what is worth knowing; NULL: nothing */
	const char *hint;
} DeepspeedType;
extern const DeepspeedType deepspeed_optimizers[], deepspeed_schedulers[]; /* end with a zero row */

/* ---- deepspeed.c, deepspeed_map.c */
typedef struct {
	const char *name, *value; /* of an option */
	const char *origin;       /* for messages: "FILE: key: " */
	const char *unless;       /* an option of the line that takes its place, too; NULL: none */
} DeepspeedOption;
typedef VEC(DeepspeedOption) DeepspeedOptions;
typedef struct {
	const char *path;
	const char *text; /* of the file */
	size_t n;
	unsigned of;                                          /* OF_GRADC or OF_EXECUTABLE */
	bool (*is_given)(const void *line, const char *name); /* does the command line have it? */
	const void *line;
} DeepspeedFile;
bool deepspeed_is_json(const char *text, size_t n); /* does it begin as an object? */
/* The options that the file has for one of the two; false after reporting every fault. */
bool deepspeed_read(const DeepspeedFile *file, DeepspeedOptions *out, Arena *arena, Diag *diag);

#endif

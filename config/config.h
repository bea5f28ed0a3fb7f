/* Reads options from the command line and from files (INI, or DeepSpeed's JSON), for gradc and for the training
 * executables that it writes. Each section is named after its .c file. */
#ifndef GRADC_CONFIG_CONFIG_H
#define GRADC_CONFIG_CONFIG_H

#include "base/files/files.h"

/* ---- options.c: one table of rows defines a program's command line, its --config file and its help. */
typedef enum {
	TAKES_STRING,  /* const char *, not empty */
	TAKES_INT,     /* int64_t, at least `least` */
	TAKES_UINT,    /* uint64_t, its whole range */
	TAKES_DOUBLE,  /* double, finite */
	TAKES_FLAG,    /* bool: no value on the command line, on or off in a config file */
	TAKES_SWITCH,  /* bool: on or off */
	TAKES_LIST,    /* StringList; the option may be repeated */
	TAKES_CHOICE,  /* const char *: one of the row's choices */
	TAKES_CHOICES, /* StringList of choices */
	TAKES_KNOWN,   /* as TAKES_CHOICE; other values are "not supported in this build" */
	TAKES_CALL,    /* a value for the row's `set` function */
	TAKES_CONFIG, /* StringList of files of options: one `name = value` per line, or DeepSpeed's JSON (deepspeed.c) */
	TAKES_NOTHING, /* no value: every value is "not supported in this build" */
} OptionTakes;
typedef struct OptionRow OptionRow;
/* One option that was given. Its texts live in the arena. */
typedef struct {
	const OptionRow *row;
	const char *value;  /* NULL: no value */
	const char *origin; /* for messages: the config file as "FILE: ", or "" */
	void *to;           /* struct into which the rows' offsets point */
	Arena *arena;
	Diag *diag;
} OptionUse;
typedef enum { RANGE_ANY, RANGE_NOT_NEGATIVE, RANGE_POSITIVE, RANGE_BELOW_1 } OptionRange;
struct OptionRow {
	const char *name;
	/* value as the help shows it; choices as a|b|c; NULL: the option takes no value */
	const char *value;
	const char *help; /* NULL: hidden option */
	OptionTakes takes;
	size_t offset; /* offset of the value in the struct */
	char letter;   /* short name; 0: no short name */
	bool optional; /* the value may be left out: --name alone is "", and the next word is never the value */
	bool empty;        /* "" is allowed as a value */
	bool repeats;      /* TAKES_CALL: the option may be repeated */
	bool one_per_name; /* NAME=VALUE: the option may be repeated with other NAMEs */
	/* TAKES_CALL: sets the value; false after reporting a fault. */
	bool (*set)(const OptionUse *use, void *at);
	int64_t least, most; /* TAKES_INT: range; most 0: no upper limit */
	size_t origin; /* TAKES_INT: offset of a const char * that gets the option's origin; 0: no such field */
	OptionRange range; /* TAKES_DOUBLE: range */
	/* Returns choice i of a list that stands before the choices in `value`; NULL after the last one. */
	const char *(*nth)(int i);
	/* Returns word i of the names that the completion and hints know beside the choices, such as passes; NULL after the last one.
	 * The word may lie in the arena. */
	const char *(*words)(Arena *arena, int i);
	const char *group; /* title in the help for the options from here on */
	unsigned commands; /* subcommands that take the option, as bits; 0: all subcommands */
	/* Kind of the path, if the whole value is a path; the row's `value` then has FILE, DIR or SPEC. */
	PathKind path;
	/* Adds the files that a value names if it is not itself a path, such as NAME=FILE. NULL: values name no files. */
	void (*paths)(const OptionUse *use, PathUses *uses);
};
typedef struct {
	const OptionRow *rows;
	int n;
	const char *program; /* the command whose --help lists the options */
	/* name of the command in messages such as "has no meaning for `compile`"; NULL: `program` */
	const char *mode;
	/* this program's section in config files shared with another program; NULL: no section */
	const char *section;
	unsigned command; /* bit of the given subcommand; 0: any subcommand */
	/* Subcommand of each bit, from the lowest; ends with NULL. */
	const char *const *command_names;
	PathUses *uses; /* paths that valid values name, to be filled; NULL: not wanted */
	/* what the completion offers for NAME in a value such as NAME=FILE: the model's inputs; NULL: not known */
	const StringList *names;
	const char *
		operands; /* files that the command takes, "MODEL.onnx|EXE", for completion; NULL: no files */
} OptionTable;
/* Reads the --config files and the command line into the struct `to`. An option on the command line replaces the same
 * option of a file; NAME=VALUE on the line replaces the file's value of the same NAME. argv[0] is skipped; words that
 * are not options become operands. Faults are: two values in one place (the command line, or one file) for an option
 * that takes one value; and options of other subcommands on the command line. A file may serve several subcommands and
 * both programs. So options of other subcommands in a file are ignored, and so are lines in the other program's section
 * ([gradc] or [executable]) and the other program's keys in DeepSpeed's file. Reports every fault; false when there was
 * one. Only one thread may call this. */
bool options_read(const OptionTable *table, void *to, int argc, char **argv, StringList *operands,
                  Arena *arena, Diag *diag);

/* ---- rows.c */
/* The row's values as the help shows them, "a|b|FILE": those of `nth`, then those of `value`; "": no value. In the arena. */
char *option_values(Arena *arena, const OptionRow *row);
/* Adds a hint to the last error, about a misspelt word of the option's value: a similar choice, then `rest`. rest: a sentence;
 * NULL: no sentence. */
void option_hint(const OptionUse *u, const char *word, const char *rest);

/* ---- options_help.c: the help, at most HELP_WIDTH columns wide */
enum { HELP_WIDTH = 80 };
void options_print(FILE *out, const OptionTable *table); /* an option begins a line */
/* One entry of a list: the tag, indented, and the text in the column beside the tag. */
void help_entry(FILE *out, int indent, const char *tag, const char *text);
/* A list of {"name", "letter", "value", "optional", "help", "group", "commands"}; keys without a value are missing. */
struct json_t *options_help_json(const OptionTable *table);

/* ---- completion.c: what a shell offers for the last word of a command line */
enum { N_SHELLS = 3 };
extern const char *const completion_shells[N_SHELLS + 1]; /* bash, zsh, fish; ends with NULL */
/* Prints the candidates for the last of n words, one `WORD<TAB>HELP` per line. The last line begins with a colon and says what
 * else a shell must offer: ":", ":files", ":files onnx gir" (with these endings), ":folders"; `nospace` behind it: a candidate
 * is not a whole word. The words are those after the subcommand. */
void completion_print(FILE *out, const OptionTable *table, int n, char **words);
/* Begins such a list with a word and its help, if the word begins with `prefix`. */
void completion_word(FILE *out, const char *prefix, const char *word, const char *help);
/* Prints the script that teaches a shell to complete the program's command line, by asking `program __complete WORD...`. program:
 * its name, or its path. false: unknown shell. */
bool completion_script(FILE *out, const char *shell, const char *program);

/* ---- option_paths.c: functions for a row's `paths` */
void reads_named_file(const OptionUse *u, PathUses *uses); /* NAME=FILE: FILE is an input */
void reads_named_files(const OptionUse *u,
                       PathUses *uses);       /* NAME=FILE: FILE is an input or a glob of inputs */
const char *option_title(const OptionUse *u); /* "-o", "--log" */
void option_add_path(const OptionUse *u, PathUses *uses, PathKind kind, const char *path);

/* ---- deepspeed.c */
/* DeepSpeed's configuration (https://www.deepspeed.ai/docs/config-json/) as options of gradc and of the executables that it
 * writes. One file serves both programs: each key has an owner, and the other program ignores the key. */
/* ---- deepspeed_keys.c: one row per key */
typedef enum {
	KEY_BLOCK,  /* a JSON object, whose keys have rows of their own */
	KEY_BOOL,   /* true or false */
	KEY_WHOLE,  /* a whole number; 5e8 is allowed */
	KEY_NUMBER, /* any number */
	KEY_WORD,   /* a string: one of `words`, if the row has words */
	KEY_PAIR,   /* a list of two numbers */
	KEY_ANY,    /* any value, whose content has no rows */
} KeyKind;
typedef enum {
	KEY_MAPPED, /* becomes an option */
	KEY_IGNORED, /* changes no result in gradc, or matters in DeepSpeed only together with a refused key */
	KEY_REFUSED, /* asks for a feature that gradc lacks; values that turn the feature off are accepted */
} KeyFate;
enum { OF_GRADC = 1, OF_EXECUTABLE = 2, OF_BOTH = 3 };
typedef struct {
	/* "fp16.enabled"; `*` is any one name; a `*` at the end is one of `words`, if there are words */
	const char *path;
	KeyKind kind;
	KeyFate fate;
	unsigned of; /* OF_...: the program that owns the key, or that refuses it */
	/* Option of gradc and of the executable that the key becomes; NULL: no option, or an option that several keys decide. */
	const char *compile, *run;
	const char *gate; /* key of a bool; this key has an effect only if the bool is true */
	const char *on;   /* KEY_BOOL: the option's value for true */
	/* Values of a KEY_WORD, or names of a KEY_WHOLE's values from 0 on: a|b|c. Refused keys: the accepted values. */
	const char *words;
	const char *names; /* the option's values, in the order of `words` */
	/* Range of numbers; most 0: no upper limit. Refused keys: numbers above `most` are refused. */
	double least, most;
	bool below;  /* true: the range excludes `most` */
	bool stated; /* true: "auto" is not allowed */
	/* Option of the command line that replaces the key. */
	const char *unless;
	const char *says; /* for people: the key's meaning in gradc, or why it is refused */
	const char *hint; /* advice for a refused key; NULL: no advice */
} DeepspeedKey;
extern const DeepspeedKey deepspeed_keys[]; /* ends with a zero row */

/* ---- deepspeed_types.c: optimizers and schedulers by their `type` */
enum { MOST_PARAMS = 20 };
typedef struct {
	const char *key; /* key in `params`, or a whole path */
	/* setting in the option's value; part1, part2 for a pair; NULL: no setting */
	const char *part;
	const char *run; /* option of the executable; run1, run2 for a pair; NULL: no option */
} TypeParam;
/* One `type`. Of several rows with the same `type`, the first row whose conditions hold counts. */
typedef struct {
	const char *type; /* "AdamW", compared without case */
	/* Conditions on keys of `params`; a key is set if its value is true or not 0. The row fits if `when` is set, `without` is
	 * not set, and `off` is given but not set. NULL: no condition. */
	const char *when, *without, *off;
	const char *name; /* the option's value; NULL: the type is refused */
	/* DeepSpeed's defaults that differ from ours: "lr=0.001,weight_decay=0" */
	const char *defaults;
	const char *run_default; /* the same for an option of the executable: "lr=0.001" */
	const char *needs[2];    /* required keys of `params` */
	TypeParam params[MOST_PARAMS];
	const char *says; /* reason of a refusal, or a remark; NULL: no text */
	const char *hint;
} DeepspeedType;
extern const DeepspeedType deepspeed_optimizers[], deepspeed_schedulers[]; /* end with a zero row */

/* ---- deepspeed.c, deepspeed_map.c */
typedef struct {
	const char *name, *value; /* name and value of an option */
	const char *origin;       /* for messages: "FILE: key: " */
	/* another option that replaces this one when given on the command line; NULL: no other */
	const char *unless;
} DeepspeedOption;
typedef VEC(DeepspeedOption) DeepspeedOptions;
typedef struct {
	const char *path;
	const char *text; /* the file's content */
	size_t n;
	unsigned of; /* OF_GRADC or OF_EXECUTABLE */
	bool (*is_given)(const void *line,
	                 const char *name); /* does the command line have the option `name`? */
	const void *line;                   /* first argument of is_given */
} DeepspeedFile;
bool deepspeed_is_json(const char *text, size_t n); /* does the text begin as a JSON object? */
/* Sets *out to the options that the file has for the program file->of; false after reporting every fault. */
bool deepspeed_read(const DeepspeedFile *file, DeepspeedOptions *out, Arena *arena, Diag *diag);

#endif

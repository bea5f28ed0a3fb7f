/* DeepSpeed's configuration (https://www.deepspeed.ai/docs/config-json/) as options of gradc and of the executables that it
 * writes. One file serves both: each key has an owner, and the other program passes it over. */
#ifndef GRADC_DEEPSPEED_H
#define GRADC_DEEPSPEED_H

#include "base/base.h"

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

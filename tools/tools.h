/* Shared declarations of tools/, the program gradc itself: its subcommands, its options, what it
 * prints, and its exit codes. Sections are named after the .c file. */
#ifndef GRADC_TOOLS_TOOLS_H
#define GRADC_TOOLS_TOOLS_H

#include "driver/driver.h"
#include "quantize/quantize.h"

/* ---- options.c, commands.c: one table of options for all subcommands */
typedef struct {
	const char *name, *help;
	int (*run)(Options *o, Arena *arena, Diag *diag);
	const char *what; /* the file that the command takes: "MODEL.onnx" */
	unsigned bit;     /* COMMAND_... of the command */
} Command;
extern const Command commands[];               /* ends with a zero row */
const Command *command_find(const char *name); /* NULL: unknown */
enum {
	COMMAND_COMPILE = 1,
	COMMAND_CHECK = 2,
	COMMAND_RUN = 4,
	COMMAND_GRAD = 8,
	COMMAND_DUMP = 16,
	COMMAND_OPT = 32,
	COMMAND_OPS = 64,
	COMMAND_PASSES = 128,
	COMMAND_CACHE = 256,
	COMMAND_QUANTIZE = 512,
	COMMAND_COMPLETION = 1024,
};

/* ---- command_NAME.c */
int command_compile(Options *o, Arena *arena, Diag *diag);
int command_check(Options *o, Arena *arena, Diag *diag);
int command_run(Options *o, Arena *arena, Diag *diag);
int command_grad(Options *o, Arena *arena, Diag *diag);
int command_dump(Options *o, Arena *arena, Diag *diag);
int command_opt(Options *o, Arena *arena, Diag *diag);
int command_ops(Options *o, Arena *arena, Diag *diag);
int command_passes(Options *o, Arena *arena, Diag *diag);
int command_quantize(Options *o, Arena *arena, Diag *diag);
int command_cache(Options *o, Arena *arena, Diag *diag);
int command_completion(Options *o, Arena *arena, Diag *diag); /* in help.c */

/* ---- options.c */
/* Fills *o from the command line and --config. false after reporting, or after --help or --version (*exit_code). */
bool options_parse(Options *o, const Command *command, int argc, char **argv, Arena *arena,
                   Diag *diag, int *exit_code);
/* The options of a command; NULL: of all commands. In the arena. */
OptionTable option_table(Arena *arena, const Command *command);

/* ---- option_passes.c */
/* For `words` of a row: pass i, in the order in which passes run; a pass that runs several times counts once. */
const char *nth_pass(Arena *arena, int i);
const char *nth_pass_option(Arena *arena, int i); /* "PASS.NAME=" of each option of a pass */
/* `set` functions of rows: a pass; a pass or `all`; a list of passes; a list of PASS.NAME=VALUE; an option that a pass's row
 * declares. */
bool set_pass(const OptionUse *u, void *at);
bool set_pass_or_all(const OptionUse *u, void *at);
bool add_pass(const OptionUse *u, void *at);
bool add_pass_option(const OptionUse *u, void *at);
bool set_flag(const OptionUse *u, void *at);

/* ---- help.c */
void version_print(void);
void usage_print(FILE *out); /* the list of commands */
/* Prints the options of a command (NULL: of all commands, each option with the commands that have it), then losses and
 * optimizers. */
void help_print(const Command *command, bool json, Arena *arena);
/* Prints what a shell offers for the last of the n words behind `gradc __complete`. */
void complete(int n, char **words, Arena *arena);

/* ---- command_dump.c */
bool parse_stage(const char *text, Stage *stage,
                 Diag *diag); /* parses a stage's name; false after reporting */

/* ---- page.c: a module as one page */
typedef struct {
	const char *title, *stage;
	const Model *model;  /* model of the ONNX nodes; NULL: not shown */
	const Module *graph; /* module with the nodes; its fused functions will be kernels */
	const Module *plan;  /* module with kernels, and with memory if planned; NULL: not shown */
	/* ranges of codes over a training, from training_ranges; NULL: not shown */
	struct json_t *ranges;
} Page;
void page_print(Text *out, const Page *p);

/* ---- training_log.c */
/* The ranges in an executable's log: {value: {step, low, high, scale, zero_point}}, each a list. The
 * caller owns the result. NULL after reporting. */
struct json_t *training_ranges(const char *path, Diag *diag);

/* ---- table.c */
/* Prints a name in `width` columns; a longer name is cut, but keeps its end. */
void print_cut(const char *name, int width);
/* Prints the parameters that the glob matches. */
void print_matches(const Session *s, const char *glob);
bool match_fits(const Session *s, const char *glob); /* does the glob match any row? */
void print_summary(const Session *s, bool full);
void print_plan(const Session *s);         /* for a module at STAGE_MEMORY */
void print_gpus(const Session *s);         /* the compiled GPU code; call it after the link */
void print_summary_json(const Session *s); /* with the memory plan at STAGE_MEMORY */

#endif

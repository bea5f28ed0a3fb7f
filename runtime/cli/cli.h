/* The command line of a training executable. It trains by calling the library interface gradc.h. Sections are named after the
 * .c files. */
#ifndef GRADC_RUNTIME_CLI_CLI_H
#define GRADC_RUNTIME_CLI_CLI_H

#include "config/config.h"
#include "runtime/gradc.h"

#include <jansson.h>
#include <signal.h>

/* ---- words.c: words that stand before the options */
/* What an executable can do, as bits of OptionRow.commands. */
enum { FOR_TRAINING = 1, FOR_ONCE = 2, FOR_EVAL = 4, FOR_PREDICT = 8 };
typedef struct Session Session;
typedef struct {
	const char *name, *help;
	unsigned commands; /* its bit */
	Status (*run)(Session *s);
} Word;
extern const Word words[];               /* ends with a word without a name */
const Word *word_find(const char *name); /* NULL: no such word */

/* ---- options.c */
typedef struct {
	GradcOptions run;
	GradcPairs inputs;
	const char *command; /* the command line, quoted for a shell */
	/* the same without --resume; without --steps and --epochs, too */
	const char *resuming, *continue_command;
	const char *program; /* path of the executable */
	StringList configs;
	PathUses paths;   /* files that the options name */
	const Word *word; /* NULL: training, or --once */
	const char *output, *classes;
	const char *export, *export_merged, *export_adapter, *log, *progress, *dump_gradients,
		*output_dir, *table, *ignored;
	const char *tensorboard, *report;
	double find_lr[2]; /* lowest and highest rate of --find-lr; 0 without it */
	int64_t eval_every, save_every, check_gradients, parent;
	const char *completion; /* shell of --completion */
	bool info, json, once, backward, help, quiet, verbose, version;
} CliOptions;
/* Reports every fault to diag; false if there was one. With --help, --version or --completion nothing else is checked. */
bool options_parse(Arena *arena, Diag *diag, int argc, char **argv, CliOptions *out);
/* Splits NAME=VALUE again if the model has an input whose name contains `=`: the longest matching input name wins. */
Status options_match_names(Arena *arena, const GradcModel *model, CliOptions *o);
/* word: shows only the options of this word; NULL: shows the words and all options. */
void options_help(FILE *out, const char *program, const Word *word);
void options_help_as_json(FILE *out, const Word *word);
/* Prints what a shell offers for the last of n words; words[0] is the program. */
void options_complete(Arena *arena, const GradcModel *model, int n, char **words);
json_t *options_json(const CliOptions *o); /* given options and defaults */

/* ---- info.c */
int info_print(const GradcModel *model, const CliOptions *o, Diag *diag);

/* ---- info_device.c: "device", "library_calls" and "library_bytes" as JSON, and as lines of text */
json_t *info_device(const GradcModel *model, const Format *f, const GradcOptions *options);
void info_device_print(const GradcModel *model, const Format *f, const GradcOptions *options);
/* The code that computes each product of an open run, a line per product. */
void info_products_print(FILE *out, const Gradc *run);

/* ---- table.c: the table before training, with what is trained */
void table_print(FILE *out, const Gradc *run, const CliOptions *o);

/* ---- state_bytes.c: bytes of the states of all trained parameters, by kind */
enum { N_STATE_PARTS = 5 }; /* weights, working weights, gradients, moments, averages */
typedef struct {
	int64_t elements, bytes[N_STATE_PARTS];
} StateBytes;
StateBytes state_bytes(const Format *f);
int64_t parameter_elements(
	const Format *f); /* elements of all parameters, the frozen parameters included */
/* one line; no line if no parameter is trained */
void state_bytes_print(FILE *out, const Format *f);
json_t *state_bytes_json(const Format *f); /* bytes per parameter of each part, and their `total` */

/* ---- check.c: --check-gradients. Progress goes to stderr, the worst entry of each parameter to FOLDER/gradients.json. */
Status check_gradients(Gradc *run, const CliOptions *o);

/* ---- find_lr.c: --find-lr suggests a learning rate from the losses of a sweep */
typedef struct {
	int64_t n;         /* steps so far */
	double *lr, *loss; /* per step; losses are smoothed */
	/* running average from which `loss` is computed; lowest smoothed loss */
	double average, best;
	bool diverged;
} LrSweep;
LrSweep lr_sweep_new(Arena *arena, int64_t steps);
/* Adds a step's rate and loss. False if the loss has diverged, which ends the sweep. NaN (no target counted) is ignored. */
bool lr_sweep_add(LrSweep *s, double lr, double loss);
/* The learning rate at which the loss falls fastest over the logarithm of the rate; NaN with too few steps. */
double lr_sweep_steepest(const LrSweep *s);
double lr_sweep_lowest(const LrSweep *s); /* the rate with the lowest loss; NaN without steps */
/* Prints a table and the suggestion, or the same as JSON. */
void lr_sweep_print(const LrSweep *s, FILE *out, bool json);

/* ---- output_check.c */
/* Callbacks for options whose value stands for several files: each adds these files to `uses`. */
void writes_model(const OptionUse *u, PathUses *uses);
void reads_adapter(const OptionUse *u, PathUses *uses);
void writes_adapter(const OptionUse *u, PathUses *uses);
void reads_checkpoints(const OptionUse *u, PathUses *uses);
void writes_checkpoints(const OptionUse *u, PathUses *uses);
/* Checks that no output is an input, the executable, or another output. out: all files that the options name. */
bool outputs_prepare(const CliOptions *o, const GradcModel *model, Arena *arena, PathUses *out,
                     Diag *diag);

/* The evaluation after a step. */
typedef struct {
	const GradcEval *trained;  /* NULL: the step was not evaluated */
	const GradcEval *averaged; /* with the moving averages; NULL without averages */
	const GradcBest *best;     /* of all steps so far */
} StepEval;

/* ---- log.c: JSON lines */
typedef struct Log Log;
/* With path NULL, *out is NULL and writing does nothing. resumed: the checkpoint with which the run began; its path is NULL
 * without a checkpoint. If the checkpoint's step is > 0, an existing file is continued: lines of later steps are dropped, by an
 * atomic replacement. The first line that the run writes has the command, settings, fingerprints, machine and checkpoint. */
Status log_open(const char *path, const char *command, const GradcResume *resumed, Log **out);
/* Number of dropped steps, which this run computes again; *seconds: the time that these steps took in the earlier run. */
int64_t log_lost_steps(const Log *log, double *seconds);
Status log_eval_before(Log *log, Gradc *run, const GradcEval *eval);
/* ranges may be empty. */
Status log_step(Log *log, Gradc *run, const GradcStep *step, const StepEval *eval,
                const GradcRunningRanges *ranges);
/* Opens a file to add lines; existing lines stay. */
Status log_append(const char *path, const char *command, Log **out);
Status log_eval(Log *log, Gradc *run, const GradcEval *eval);
Status log_close(Log *log);
json_t *json_number(double value); /* null if not finite */
void json_add_eval(json_t *line, const GradcEval *eval);
json_t *json_best(const GradcBest *best); /* step, metric, value */

/* ---- tensorboard.c: an event file. With folder NULL, *out is NULL and writing does nothing. */
typedef struct EventFile EventFile;
Status tensorboard_open(const char *folder, EventFile **out);
Status tensorboard_eval_before(EventFile *e, const GradcEval *eval, int64_t step);
Status tensorboard_step(EventFile *e, const Gradc *run, const GradcStep *s, const StepEval *eval);
Status tensorboard_close(EventFile *e);

/* ---- report.c: a page about the training. report_open returns NULL without --report; then the other functions do nothing. */
typedef struct Report Report;
extern const char report_page[]; /* text of report.html */
Report *report_open(Arena *arena, const CliOptions *options);
void report_eval(Report *r, int64_t step, const GradcEval *eval);
void report_step(Report *r, const GradcStep *s, const StepEval *eval,
                 const GradcRunningRanges *ranges);
/* Writes the page. fault: why the training ended early; NULL if it did not. */
Status report_close(Report *r, const Gradc *run, const char *fault);

/* ---- profile.c: times per kernel and per ONNX node, for the report */
json_t *profile_json(const Format *f, const GradcProfile *p);

/* ---- views.c: the event file and the report together */
typedef struct {
	EventFile *events;
	Report *report;
} Views;
Status views_open(Arena *arena, const CliOptions *o, Views *out);
Status views_eval_before(const Views *v, int64_t step, const GradcEval *eval);
Status views_step(const Views *v, const Gradc *run, const GradcStep *s, const StepEval *eval,
                  const GradcRunningRanges *ranges);
void views_drop_events(Views *v); /* closes the event file after a fault */
/* Completes the event file and the report. fault: why the training ended early; NULL if it did not. */
Status views_close(Views *v, const Gradc *run, const char *fault);

/* ---- progress.c */
typedef enum { PROGRESS_OFF, PROGRESS_PLAIN, PROGRESS_BAR } ProgressKind;
typedef struct {
	ProgressKind kind;
	FILE *out;
	bool colour;
	int drawn; /* width of the line that is redrawn */
	double started, last, last_seconds;
	int64_t last_step, total;
	double rate;  /* steps per second, smoothed */
	double loss;  /* smoothed over some ten steps; NaN before the first step */
	int n_losses; /* steps in `loss`, at most the length of the window */
} Progress;
/* done: steps that earlier processes have done. */
Progress progress_start(const char *kind, FILE *out, int64_t done, int64_t total);
void progress_step(Progress *p, const Gradc *run, const GradcStep *step);
void progress_line(Progress *p, const char *fmt, ...) PRINTF(2, 3); /* prints above the live line */
void progress_end(Progress *p);

/* ---- training.c: what the options do with an open run */
typedef struct {
	volatile sig_atomic_t number; /* the signal that was received; 0 if none was */
	/* Training looks at `number` between steps. false: a signal ends the process immediately. */
	volatile sig_atomic_t awaited;
} Signals;
struct Session {
	Gradc *run;
	const CliOptions *o;
	Arena *arena;
	Diag *diag;
	Signals *signals;
	Progress progress;
	Log *log;
	Views views;
	GradcStep step;
	GradcEval before, after, averaged;
	GradcResume resumed;
	/* `after` was evaluated after the last step; if there was no step, it equals `before` */
	bool evaluated;
	bool eval_failed; /* an evaluation had a loss that is not finite, and the fault was reported */
	/* time of this process's steps; time of saving between them */
	double step_seconds, save_seconds;
	/* this rank could not begin a step that other ranks have begun, so the ranks are no longer at the same step */
	bool apart;
	/* rank 0 writes ranges to a log or report; the same on all ranks, because all must wait for the step */
	bool keeps_ranges;
	bool rescued; /* a fault ended training; the states before the fault are exported */
	int stop;     /* the signal that ended training, on any rank; 0 if none did */
};
/* Checks before training whether the exports can be written. */
Status session_check_exports(const Session *s);
Status session_run(Session *s);
bool session_finds_lr(const Session *s); /* --find-lr is given */
/* Loads the checkpoint of --resume, and says so. */
Status session_resume(Session *s);
/* does every rank find a fault with this exit code by itself? */
bool status_is_common(int exit_code);
/* has every rank found this fault by itself? */
bool session_is_everybodys(const Session *s, const StatusInfo *status);

/* ---- results.c: what is printed at the end */
int64_t results_machine_bytes(void);  /* memory of the machine, or of this container */
int64_t results_resident_bytes(void); /* largest resident memory of the process so far */
/* ", 8 of 12 rows", if rows were left out of the evaluation */
void results_add_left_out(Text *line, const GradcEval *e);
void results_print(const Session *s); /* losses and metrics, on stdout */
/* Memory, written files, and the command that goes on; after the exports. */
void results_print_end(Session *s);

/* ---- eval.c: the word eval */
Status word_eval(Session *s);
Status session_evaluate(Session *s); /* evaluates bound data, and shows the results */
/* EXIT_NON_FINITE, with the reason, if the loss of an evaluation is not finite. */
Status eval_check(const GradcEval *eval);

/* ---- predict.c: the word predict */
Status word_predict(Session *s);
void writes_predictions(const OptionUse *u, PathUses *uses);

/* ---- class_names.c: the names in the file of --classes. *out: `classes` names in the arena; NULL if path is NULL. EXIT_DATA if the
 * file has another number of lines; EXIT_USAGE if the model has no classes (0). */
Status class_names_of(Arena *arena, const char *path, int64_t classes, const char *const **out);

#endif

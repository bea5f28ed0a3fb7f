/* The command line of a training executable: a client of gradc.h. Sections are named after the
 * .c file. */
#ifndef GRADC_CLI_H
#define GRADC_CLI_H

#include "config/config.h"
#include "runtime/gradc.h"

#include <jansson.h>
#include <signal.h>

/* ---- options.c */
typedef struct {
	GradcOptions run;
	GradcPairs inputs;
	const char *command; /* this one, with --resume=auto */
	const char *program; /* this executable's file */
	StringList configs;
	PathUses paths; /* what the options name */
	const char *export, *export_merged, *export_adapter, *log, *progress, *dump_gradients,
		*output_dir, *table, *ignored;
	const char *tensorboard, *report;
	double find_lr[2]; /* from, to; 0: not asked for */
	int64_t eval_every, save_every, check_gradients, parent;
	bool info, json, once, backward, help;
} CliOptions;
/* Reports every fault through diag; false when there was one. */
bool options_parse(Arena *arena, Diag *diag, int argc, char **argv, CliOptions *out);
/* Splits every NAME=VALUE whose VALUE has an `=`, too, behind the longest name of an input that stands there. */
Status options_match_names(Arena *arena, const GradcModel *model, CliOptions *o);
void options_help(FILE *out, const char *program);
json_t *options_json(const CliOptions *o); /* what was given, and what holds without it */

/* ---- info.c */
int info_print(const GradcModel *model, const CliOptions *o, Diag *diag);

/* ---- info_device.c: "device", "library_calls" and "library_bytes"; the same as lines. */
json_t *info_device(const GradcModel *model, const Format *f, const GradcOptions *options);
void info_device_print(const GradcModel *model, const Format *f, const GradcOptions *options);

/* ---- table.c: what is trained, before training. */
void table_print(FILE *out, const Gradc *run, const CliOptions *o);

/* ---- state_bytes.c: bytes of what training keeps, of all trained parameters together */
enum { N_STATE_PARTS = 5 }; /* weights, working weights, gradients, moments, averages */
typedef struct {
	int64_t elements, bytes[N_STATE_PARTS];
} StateBytes;
StateBytes state_bytes(const Format *f);
void state_bytes_print(FILE *out, const Format *f); /* a line; nothing where nothing is trained */
json_t *state_bytes_json(const Format *f); /* bytes of each part a parameter, and `total` */

/* ---- check.c: --check-gradients, with progress on stderr; the worst of each parameter in FOLDER/gradients.json. */
Status check_gradients(Gradc *run, const CliOptions *o);

/* ---- find_lr.c: --find-lr. What the losses of a sweep of learning rates say of the best one. */
typedef struct {
	int64_t n;            /* steps so far */
	double *lr, *loss;    /* of each: `loss` smoothed */
	double average, best; /* what `loss` is made of; the lowest */
	bool diverged;
} LrSweep;
LrSweep lr_sweep_new(Arena *arena, int64_t steps);
/* False: the loss has diverged: the sweep is over. NaN, where no target counted, says nothing. */
bool lr_sweep_add(LrSweep *s, double lr, double loss);
/* Where the loss falls fastest by the logarithm of the learning rate; NaN: too few steps. */
double lr_sweep_steepest(const LrSweep *s);
double lr_sweep_lowest(const LrSweep *s); /* where the loss is lowest; NaN: no steps */
/* A table and what it suggests; json: the same as JSON. */
void lr_sweep_print(const LrSweep *s, FILE *out, bool json);

/* ---- output_check.c */
/* `paths` of rows whose values name more than a file */
void writes_model(const OptionUse *u, PathUses *uses);
void reads_adapter(const OptionUse *u, PathUses *uses);
void writes_adapter(const OptionUse *u, PathUses *uses);
void reads_checkpoints(const OptionUse *u, PathUses *uses);
void writes_checkpoints(const OptionUse *u, PathUses *uses);
/* No output of the options is one of their inputs, the executable, or another output; `out`: all of them. */
bool outputs_prepare(const CliOptions *o, const GradcModel *model, Arena *arena, PathUses *out,
                     Diag *diag);

/* ---- log.c: JSON lines. */
typedef struct Log Log;
/* NULL path: *out is NULL, and writes do nothing. With step > 0 a file that is there is continued:
 * what it has of later steps is dropped, in one moment. `resumed`: for the first line; path NULL: nothing was. */
Status log_open(const char *path, const GradcResume *resumed, Log **out);
/* Steps that were dropped, which this run computes again, and the seconds that they had taken. */
int64_t log_lost_steps(const Log *log, double *seconds);
Status log_eval_before(Log *log, const GradcEval *eval);
Status log_step(Log *log, Gradc *run, const GradcStep *step, const GradcEval *eval,
                const GradcRunningRanges *ranges); /* of which there may be none */
Status log_close(Log *log);
json_t *json_number(double value); /* null when not finite */
void json_add_eval(json_t *line, const GradcEval *eval);

/* ---- tensorboard.c: an event file. NULL folder: *out is NULL, and writes do nothing. */
typedef struct EventFile EventFile;
Status tensorboard_open(const char *folder, EventFile **out);
Status tensorboard_eval_before(EventFile *e, const GradcEval *eval, int64_t step);
Status tensorboard_step(EventFile *e, const Gradc *run, const GradcStep *s, const GradcEval *eval);
Status tensorboard_close(EventFile *e);

/* ---- report.c: a page. NULL without --report, and then the others do nothing. */
typedef struct Report Report;
extern const char report_page[]; /* report.html */
Report *report_open(Arena *arena, const CliOptions *options);
void report_eval(Report *r, int64_t step, const GradcEval *eval);
void report_step(Report *r, const GradcStep *s, const GradcEval *eval, /* eval may be NULL */
                 const GradcRunningRanges *ranges);
/* Writes the page. fault: why the training ended early; NULL: it did not. */
Status report_close(Report *r, const Gradc *run, const char *fault);

/* ---- profile.c: for the report, times by kernel and by ONNX node. */
json_t *profile_json(const Format *f, const GradcProfile *p);

/* ---- views.c: the event file and the report together. */
typedef struct {
	EventFile *events;
	Report *report;
} Views;
Status views_open(Arena *arena, const CliOptions *o, Views *out);
Status views_eval_before(const Views *v, int64_t step, const GradcEval *eval);
Status views_step(const Views *v, const Gradc *run, const GradcStep *s, const GradcEval *eval,
                  const GradcRunningRanges *ranges);
void views_drop_events(Views *v); /* after a fault of the event file, which ends there */
/* Completes both. fault: why the training ended early; NULL: it did not. */
Status views_close(Views *v, const Gradc *run, const char *fault);

/* ---- progress.c */
typedef enum { PROGRESS_OFF, PROGRESS_PLAIN, PROGRESS_BAR } ProgressKind;
typedef struct {
	ProgressKind kind;
	FILE *out;
	bool colour;
	int drawn; /* columns of the live line that may hold text */
	double started, last, last_seconds;
	int64_t last_step, total;
	double rate; /* steps a second, smoothed */
} Progress;
/* done: steps before this process. */
Progress progress_start(const char *kind, FILE *out, int64_t done, int64_t total);
void progress_step(Progress *p, const Gradc *run, const GradcStep *step);
void progress_line(Progress *p, const char *fmt, ...) PRINTF(2, 3); /* above the live line */
void progress_end(Progress *p);

/* ---- training.c: what is done with a run that is open. */
typedef struct {
	volatile sig_atomic_t number; /* that came; 0: none */
	volatile sig_atomic_t
		awaited; /* whoever trains looks at it between steps; else a signal ends the process at once */
} Signals;
typedef struct {
	Gradc *run;
	const CliOptions *o;
	Arena *arena;
	Diag *diag;
	Signals *signals;
	Progress progress;
	Log *log;
	Views views;
	GradcStep step;
	GradcEval before, after;
	GradcResume resumed;
	bool evaluated;                    /* `after` is of the last step, or `before` of no step */
	double step_seconds, save_seconds; /* of this process's steps, and between them */
	bool apart; /* this rank could not begin a step that others have begun */
	bool keeps_ranges; /* rank 0 does: a log or a report; all ranks know it, for all wait for a step that is read */
	bool rescued; /* training ended with a fault, and what there is of it is exported */
	int stop;     /* the signal that ended training, on whatever rank; 0: none */
} Session;
/* What could not be written at the end is told at the start. */
Status session_check_exports(const Session *s);
Status session_run(Session *s);
bool status_is_common(int exit_code); /* all ranks come to such a fault by themselves */
bool session_is_everybodys(const Session *s, const StatusInfo *status); /* they did */

#endif

/* What opening a run, steps and evaluation are made of. Sections are named after the .c file. */
#ifndef GRADC_RUNTIME_TRAIN_STEPS_H
#define GRADC_RUNTIME_TRAIN_STEPS_H

#include "runtime/data/data.h"
#include "runtime/metrics/metrics.h"
#include "runtime/train/train.h"

/* ---- trainer.c */
/* trainer_open gets a Gradc in which only the arena is set. */
Status trainer_open(const GradcModel *model, const GradcOptions *options, Diag *diag, Gradc *run);
Status trainer_finish(Gradc *run);
Status trainer_bind_data(Gradc *run);
Status trainer_bind_eval(Gradc *run);
/* Binds data by calling `open` on each rank, and compares the ranks; closes the data after a fault. */
Status trainer_bind(Gradc *run, Status (*open)(Gradc *run));
DataOptions eval_data_options(const GradcOptions *o);
Status trainer_open_prefetch(Gradc *run); /* after the data are open */
/* Computes run->total_steps from the run's present position. */
void trainer_count_steps(Gradc *run);

/* ---- step.c */
Status step_accumulate(Gradc *run, GradcStep *out);
Status step_update(Gradc *run, GradcStep *out);
Status step_take(Gradc *run, GradcStep *out); /* a whole step */
Status step_queue(Gradc *run);
Status step_result(Gradc *run, bool wait, GradcStep *out, bool *got);
Status step_forget_failure(Gradc *run);
void step_ask_first(Gradc *run); /* asks for the next step's rows, so that they are read ahead */
double without_sign(double x);   /* some processors give NaN a sign, which means nothing */

/* ---- evaluate.c */
Status step_evaluate(Gradc *run, GradcEval *out);
/* Does a forward pass gather weights from other ranks? Then all ranks must make the same number of passes. */
bool has_collective(const Format *f, const ProgramRecord *p);

/* ---- eval_metrics.c: metrics of an evaluation */
/* What the loss compares, with the programs of a binding and the evaluation data of the options. */
MetricTask eval_metrics_task(const Gradc *run, int binding);
/* After the evaluation data are bound: picks the metrics, with run->best.metric, and binds the data to the program of role forward
 * if a metric needs outputs. */
Status eval_metrics_bind(Gradc *run);
/* Adds run->best.metric, which has changed, to the metrics. */
Status eval_metrics_update(Gradc *run);
void eval_metrics_close(Gradc *run); /* before or after eval_metrics_bind, too */
/* The rows for the program of role forward. own: the rows are this rank's. false: the program does not run for these rows. */
bool eval_metrics_rows(const Gradc *run, const MicroRows *rows, bool own, MicroRows *out);
Status eval_metrics_begin(Gradc *run);
/* Keeps the labels of the rows that prefetch_take has brought, before a program overwrites them. */
void eval_metrics_keep_labels(Gradc *run);
/* Runs the program of role forward for the rows that prefetch_take has brought, and makes their record. */
Status eval_metrics_run(Gradc *run, const MicroRows *rows);
/* Adds the records of all ranks. own: this rank had rows in this round. Every rank calls it. */
Status eval_metrics_add(Gradc *run, bool own);
/* Fills in the metrics, from the loss's sums and from the records. */
Status eval_metrics_finish(Gradc *run, const LossSums *sums, GradcEval *out);

/* ---- tune.c: engines of a GPU's libraries */
/* Gives the device the time limit for trials and the choices of earlier runs. */
Status tune_device(Gradc *run, DeviceOptions *device);
/* Reads what earlier runs chose, and opens the executor: on rank 0 first, whose choices the other ranks take. */
Status tune_ranks(Gradc *run, Status (*open)(Gradc *run));

/* ---- predict.c */
Status predict_bind(Gradc *run, GradcPredictions *out);
Status predict_run(Gradc *run, const GradcPredict *options);
const Dataset *predict_data(const Gradc *run); /* NULL before predict_bind */
void predict_close(Gradc *run);                /* before or after predict_bind, too */

/* ---- eval_rows.c */
int64_t eval_covered_rows(const Gradc *run);
/* Why a last batch that is not full is left out; NULL if all rows are evaluated. */
const char *eval_left_out(const Gradc *run);
/* Warns if batches may divide their losses by different numbers: the mean of the batches' losses is then not the mean over all
 * targets. */
void eval_warn_uneven(const Gradc *run);
Status eval_check_rows(const Gradc *run); /* EXIT_DATA if no row of the data can be evaluated */

/* ---- best.c: the best evaluation, and early stopping */
/* "N" or "N,min-delta=X". EXIT_USAGE if the text is wrong. */
Status early_stop_parse(const char *text, int64_t *patience, double *min_delta);
Status best_open(Gradc *run); /* EXIT_USAGE if the model does not have the metric */
void best_judge(Gradc *run, const GradcEval *eval, bool counts); /* same as gradc_judge */
Status best_resume(Gradc *run, const GradcBest *saved);

/* ---- averages.c */
Status averages_evaluate(Gradc *run, GradcEval *out); /* same as gradc_evaluate_averages */

/* ---- resume.c */
/* Adds the engines that the checkpoint to resume names; nothing if there is none. */
void resume_engines(Gradc *run, Tunings *out);
/* Loads the states of the checkpoint of the best step; nothing changes if that step is the last one. */
Status resume_best(Gradc *run);
Status resume_checkpoint(Gradc *run, GradcResume *out);

/* ---- find_nan_text.c */
const GradcNotFinite *finder_describe(const Gradc *run, const Cause *cause);
void finder_print(Text *out, const GradcNotFinite *found, int64_t micro_batches);

/* ---- gradient_check.c */
Status gradients_check(Gradc *run, const GradcCheckOptions *options);

/* ---- check_options.c: EXIT_USAGE, naming the option, if a value makes no sense, or makes no sense with this model */
Status options_check_values(const GradcOptions *o);
Status options_check_model(const Format *f, const GradcOptions *o);

/* ---- batch.c: decides the number of micro-batches in a step and checks this number against the options. Called after the data
 * are bound. */
Status batch_settle(Gradc *run);

/* ---- ranks_compare.c */
/* EXIT_COMM, naming both values, if a rank's executable, options, data or weights differ from rank 0's. */
Status ranks_compare(Gradc *run);
/* Compares only the options that say how states are divided among ranks. Called before a rank reads the part of a state that
 * another rank holds. */
Status ranks_compare_parts(Gradc *run);
/* Compares the options that change weights. Called before any weight changes, because a change may need parts that other ranks
 * hold. */
Status ranks_compare_weights(Gradc *run);
/* same as gradc_compare */
Status ranks_compare_option(Gradc *run, const char *name, int64_t value);
/* same as gradc_compare_output */
Status ranks_compare_output(Gradc *run, const char *option, const char *path);

#endif

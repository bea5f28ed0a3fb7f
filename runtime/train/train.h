/* Training: opening a run, steps, evaluation. What guard.c puts a guard around has the arguments of the calls of gradc.h. Sections are
 * named after the .c file. */
#ifndef GRADC_RUNTIME_TRAIN_TRAIN_H
#define GRADC_RUNTIME_TRAIN_TRAIN_H

#include "runtime/run/run.h"

/* ---- trainer.c */
/* What guard.c calls; *run has its arena already. */
Status trainer_open(const GradcModel *model, const GradcOptions *options, Diag *diag, Gradc *run);
Status trainer_finish(Gradc *run);
Status trainer_bind_data(Gradc *run);
DeviceOptions device_options(const Format *f, int target, int ordinal, const GradcOptions *o);
/* total_steps, from where the run is. */
void trainer_count_steps(Gradc *run);

/* ---- step.c */
Status step_accumulate(Gradc *run, GradcStep *out);
Status step_update(Gradc *run, GradcStep *out);
Status step_take(Gradc *run, GradcStep *out); /* all of one */
Status step_queue(Gradc *run);
Status step_result(Gradc *run, bool wait, GradcStep *out, bool *got);
Status step_forget_failure(Gradc *run);
void step_ask_first(Gradc *run); /* the next step's rows are read meanwhile */
double without_sign(double x);   /* a nan has a sign on some processors, which says nothing */

/* ---- evaluate.c */
Status step_evaluate(Gradc *run, GradcEval *out);

/* ---- eval_rows.c */
int64_t eval_covered_rows(const Gradc *run);
void eval_warn_uneven(const Gradc *run);  /* a mean of means, which is not that of all targets */
Status eval_check_rows(const Gradc *run); /* EXIT_DATA: no row of the data can be evaluated */

/* ---- resume.c */
Status resume_checkpoint(Gradc *run, GradcResume *out);

/* ---- find_nan_text.c */
const GradcNotFinite *finder_describe(const Gradc *run, const Cause *cause);
void finder_print(Text *out, const GradcNotFinite *found, int64_t micro_batches);

/* ---- gradient_check.c */
Status gradients_check(Gradc *run, const GradcCheckOptions *options);

/* ---- check_options.c: EXIT_USAGE, naming the option, where a value makes no sense; or not with this model. */
Status options_check_values(const GradcOptions *o);
Status options_check_model(const Format *f, const GradcOptions *o);

/* ---- batch.c: settles how many micro-batches a step has, and checks what the caller takes for granted; after the data
 * is bound. */
Status batch_settle(Gradc *run);

/* ---- ranks_compare.c */
/* EXIT_COMM, naming both values, when a rank has another executable, other options, data or weights than rank 0. */
Status ranks_compare(Gradc *run);
/* Which parts ranks have: before anything reads those of others. */
Status ranks_compare_parts(Gradc *run);
/* Before weights get other values than they were compiled with: where ranks hold parts, they may read each other's for these. */
Status ranks_compare_weights(Gradc *run);
Status ranks_compare_option(Gradc *run, const char *name, int64_t value); /* as gradc_compare */

#endif

/* Hyperparameters of each step: learning rates, and the scalar block that kernels read. Sections are named after the .c file. */
#ifndef GRADC_RUNTIME_HYPER_HYPER_H
#define GRADC_RUNTIME_HYPER_HYPER_H

#include "runtime/gradc.h"

/* ---- plateau.c: a learning rate that gets smaller when the loss of evaluations does not. */
enum { PLATEAU_FACTOR, PLATEAU_PATIENCE, PLATEAU_THRESHOLD, PLATEAU_COOLDOWN, PLATEAU_EPS };
typedef struct {
	double lr;        /* of steps behind the warm-up; 0: another schedule's */
	double first;     /* what it began as */
	double best;      /* loss; infinity: none yet */
	int64_t bad;      /* evaluations in a row that were not better */
	int64_t cooldown; /* evaluations to come that do not count */
} Plateau;
Plateau plateau_new(double lr);
/* One evaluation, as torch.optim.lr_scheduler.ReduceLROnPlateau.step. settings: by PLATEAU_... */
void plateau_step(Plateau *p, const double *settings, double least_lr, double loss);
/* Goes on as `saved` was, with this run's first learning rate where that is another one. */
void plateau_resume(Plateau *p, const Plateau *saved);

/* ---- lr_schedule.c: learning rates and the scalar block. */
enum { MOST_LR_SETTINGS = 5 };
typedef struct {
	const char *lr_schedule;              /* "step,size=10": with its settings */
	double lr_settings[MOST_LR_SETTINGS]; /* as lr_schedule_parse gives them */
	Plateau plateau;
	double values
		[N_SCALARS]; /* lr .. momentum, clip norm, loss scale, ranks: of the whole run */
	uint64_t seed;
	double min_lr;
	int64_t warmup, steps;
} Hyper;
/* Settings of a schedule, by its row's order; a fault of the text. */
Status lr_schedule_parse(const char *text, double *settings);
Status hyper_new(const Format *f, const GradcOptions *o, Hyper *out);
/* Learning rate of step s, from 0. */
double hyper_lr(const Hyper *h, int64_t s);
/* Of step s; `offset`: where in the step's rows the micro-batch begins. out NULL: nobody reads them. */
void hyper_scalars(const Hyper *h, int64_t s, int64_t offset, Scalar out[N_SCALARS]);
/* Of a schedule that ends with the training: its learning rates depend on how many steps there are, and on the least one. */
bool lr_schedule_has_end(const char *text);
bool lr_schedule_is(const char *text, const char *name);
extern const char *const lr_schedule_names[];

/* ---- lr_deepspeed.c: its curves, as those of lr_schedule.c's rows */
double lr_deepspeed_warmup(const Hyper *h, double at, double of);
double lr_deepspeed_decay(const Hyper *h, double at, double of);
double lr_deepspeed_cosine(const Hyper *h, double at, double of);
double lr_deepspeed_range(const Hyper *h, double at, double of);
double lr_deepspeed_cycle(const Hyper *h, double at, double of);

#endif

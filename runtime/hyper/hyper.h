/* Hyperparameters of each step: the learning rate, and the scalar block, which is the array of numbers (learning rate, clip
 * norm, random seed ...) that kernels read in this step. Sections are named after the .c files. */
#ifndef GRADC_RUNTIME_HYPER_HYPER_H
#define GRADC_RUNTIME_HYPER_HYPER_H

#include "runtime/gradc.h"

/* ---- plateau.c: a learning rate that is reduced when the loss of evaluations stops falling */
typedef struct {
	double lr;        /* learning rate after the warm-up; 0 with any other schedule */
	double first;     /* first value of `lr` */
	double best;      /* best loss; infinity before the first evaluation */
	int64_t bad;      /* evaluations in a row without improvement */
	int64_t cooldown; /* number of coming evaluations that do not count */
} Plateau;
Plateau plateau_new(double lr);
/* Updates the rate after an evaluation with that loss, like torch.optim.lr_scheduler.ReduceLROnPlateau.step. settings: indexed
 * by PLATEAU_... */
void plateau_step(Plateau *p, const double *settings, double least_lr, double loss);
/* Continues from `saved`, but with this run's first learning rate if it differs. */
void plateau_resume(Plateau *p, const Plateau *saved);

/* ---- lr_schedule.c: learning rates and the scalar block */
enum { MOST_LR_SETTINGS = 5 };
typedef struct {
	const char *lr_schedule;              /* the option's text, such as "step,size=10" */
	double lr_settings[MOST_LR_SETTINGS]; /* settings from lr_schedule_parse */
	Plateau plateau;
	/* Scalars that hold for the whole run: lr .. momentum, clip norm, loss scale, ranks. */
	double values[N_SCALARS];
	uint64_t seed;
	double min_lr;
	int64_t warmup, steps;
} Hyper;
/* Reads the settings of a schedule, in the order of the schedule's row in lr_schedule.c. Returns a fault if the text is
 * wrong. */
Status lr_schedule_parse(const char *text, double *settings);
Status hyper_new(const Format *f, const GradcOptions *o, Hyper *out);
/* Learning rate of step s, counted from 0. */
double hyper_lr(const Hyper *h, int64_t s);
/* Scalars of step s. offset: first row of the micro-batch within the step. out may be NULL. */
void hyper_scalars(const Hyper *h, int64_t s, int64_t offset, Scalar out[N_SCALARS]);
/* Does the schedule depend on the number of steps in the training? Such schedules also use the least learning rate. */
bool lr_schedule_has_end(const char *text);
bool lr_schedule_is(const char *text, const char *name);
extern const char *const lr_schedule_names[];

#endif

/* Learning rates as functions of the step. Sections are named after the .c file. */
#ifndef GRADC_RUNTIME_HYPER_CURVES_H
#define GRADC_RUNTIME_HYPER_CURVES_H

#include "runtime/hyper/hyper.h"

/* ---- plateau.c: a learning rate that is reduced when the loss of evaluations stops falling */
enum { PLATEAU_FACTOR, PLATEAU_PATIENCE, PLATEAU_THRESHOLD, PLATEAU_COOLDOWN, PLATEAU_EPS };

/* ---- lr_deepspeed.c: the learning rates of DeepSpeed's schedules, for rows of lr_schedule.c */
double lr_deepspeed_warmup(const Hyper *h, double at, double of);
double lr_deepspeed_decay(const Hyper *h, double at, double of);
double lr_deepspeed_cosine(const Hyper *h, double at, double of);
double lr_deepspeed_range(const Hyper *h, double at, double of);
double lr_deepspeed_cycle(const Hyper *h, double at, double of);

#endif

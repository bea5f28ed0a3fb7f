/* Training: opening a run, steps, evaluation. gradc.h declares the same calls for users; guard.c checks each call and then
 * calls the function here. Sections are named after the .c files. */
#ifndef GRADC_RUNTIME_TRAIN_TRAIN_H
#define GRADC_RUNTIME_TRAIN_TRAIN_H

#include "runtime/run/run.h"

/* ---- trainer.c */
DeviceOptions device_options(const Format *f, int target, int ordinal, const GradcOptions *o);

#endif

/* Training: opening a run, steps, evaluation. gradc.h declares the same calls for users; guard.c checks each call and then
 * calls the function here. Sections are named after the .c files. */
#ifndef GRADC_RUNTIME_TRAIN_TRAIN_H
#define GRADC_RUNTIME_TRAIN_TRAIN_H

#include "runtime/metrics/metrics.h"
#include "runtime/run/run.h"

/* ---- trainer.c */
DeviceOptions device_options(const Format *f, int target, int ordinal, const GradcOptions *o);

/* ---- tune.c */
/* Reads the file of --tune, if the options name one. *missing: it does not exist. */
Status tune_file_read(const GradcOptions *o, Tunings *out, bool *missing);

/* ---- speed.c */
/* The peak of the device in the types of the target's largest product. measures: may take some ten milliseconds on a CPU. */
GradcPeak speed_peak(const Format *f, const DeviceOps *ops, Device *device, int target,
                     bool measures);

/* ---- eval_metrics.c */
/* Number of classes that results by class have, after the evaluation data are bound; 0: there are none. */
int64_t eval_classes(const Gradc *run);

/* ---- predict.c: what the loss compares; after gradc_bind_predict_data */
const MetricTask *predict_task(const Gradc *run);

#endif

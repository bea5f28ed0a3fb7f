/* The numbers of a model: initial values, results, exports, adapters. Sections are named after the .c files. */
#ifndef GRADC_RUNTIME_MODEL_MODEL_H
#define GRADC_RUNTIME_MODEL_MODEL_H

#include "runtime/run/run.h"

/* ---- weights.c: initial values */
Status weights_init(Gradc *run);
/* Some states begin as copies of other states. Copies them again, after the other states have changed. resumed: leaves out the
 * states that the checkpoint contained. */
Status weights_copy(Gradc *run, bool resumed);
/* Copies state `from` to `to`, converted to its type. All ranks call it: a state may be divided among them. */
Status weights_copy_state(Gradc *run, int to, int from);
/* Called before the first update. Replaces weights that will change and are mapped from the executable's file by ordinary
 * memory. */
Status weights_unmap(Gradc *run);
/* *same: the bytes of the weights have the hash that the executable's tables contain */
Status weights_check(const GradcModel *model, const Format *f, const char *file, bool *same);

/* ---- load.c: replaces initial values by name, from a safetensors file */
Status weights_load(Gradc *run, const char *path);

/* ---- export.c */
/* Does an export to this path write the weights alone, as safetensors? */
bool export_is_weights(const char *path);
Status export_trained(Gradc *run, const char *path);
Status export_merged(Gradc *run, const char *path);
/* Checks export_weights, export_form and export_preprocessing. */
Status export_check(const Format *f, const GradcOptions *o);

/* ---- once.c */
Status once_run(Gradc *run, const GradcPairs *inputs, bool backward, const char *folder);
Status once_dump_gradients(Gradc *run, const char *folder);
/* once.c: the factor by which sums of gradients must be multiplied to get the mean over the counted targets. */
Status gradient_factor(Gradc *run, double *out);

/* ---- adapters.c */
/* same as gradc_check_adapters */
Status adapters_check(Gradc *run, const char *option);
/* adapters_merge adds all adapters to their weights and starts new adapters. adapters_unmerge subtracts all adapters from
 * weights to which they were added. */
Status adapters_merge(Gradc *run);
Status adapters_unmerge(Gradc *run);

/* ---- peft.c, peft_write.c, peft_load.c: adapters as PEFT's files */
#define PEFT_CONFIG "adapter_config.json"
#define PEFT_TENSORS "adapter_model.safetensors"
Status peft_write(Gradc *run, const char *folder);
Status peft_load(Gradc *run, const char *folder);
/* loads an adapter that is kept in the executable */
Status peft_load_kept(Gradc *run, const char *name);

/* ---- running_ranges.c */
/* Same as gradc_running_ranges. */
Status running_ranges(Gradc *run, Arena *arena, GradcRunningRanges *out);

#endif

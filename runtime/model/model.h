/* The numbers of a model: initial values, results, exports, adapters. Sections are named after the .c files. */
#ifndef GRADC_RUNTIME_MODEL_MODEL_H
#define GRADC_RUNTIME_MODEL_MODEL_H

#include "runtime/run/run.h"

/* ---- weights.c: initial values */
Status weights_init(Gradc *run);
/* The compiled initial data of a state, in the arena; for states that have such data. */
Status weights_first(Gradc *run, Arena *arena, int state, char **out);
/* resets a state to its zeros, ones or random numbers */
Status weights_begin(Gradc *run, int state);
/* Some states begin as copies of other states. Copies them again, after the other states have changed. resumed: leaves out the
 * states that the checkpoint contained. */
Status weights_copy(Gradc *run, bool resumed);
/* Called before the first update. Replaces weights that will change and are mapped from the executable's file by ordinary
 * memory. */
Status weights_unmap(Gradc *run);
/* *same: do the bytes of the weights have the hash that the executable's tables give? */
Status weights_check(const GradcModel *model, const Format *f, const char *file, bool *same);

/* ---- load.c: replaces initial values by name, from a safetensors file */
Status weights_load(Gradc *run, const char *path);

/* ---- export.c */
/* The state to write for this state: its average if options.export_weights asks for averages, otherwise the state itself. */
int export_state(const Gradc *run, int state);
/* Warns about numbers that are not finite. The last update may have made them, and then no later step has reported a NaN. */
void export_warn(const Gradc *run, const char *option, const StateRecord *s, DType dtype,
                 const void *data, int64_t n);
Status export_trained(Gradc *run, const char *path);
Status export_merged(Gradc *run, const char *path);
Status export_check(const Format *f, const GradcOptions *o); /* checks options.export_weights */

/* ---- once.c */
Status once_run(Gradc *run, const GradcPairs *inputs, bool backward, const char *folder);
Status once_dump_gradients(Gradc *run, const char *folder);

/* once.c: the factor by which sums of gradients must be multiplied to get the mean over the counted targets. */
Status gradient_factor(Gradc *run, double *out);

/* ---- adapters.c */
/* same as gradc_check_adapters */
Status adapters_check(Gradc *run, const char *option);
/* NULL if the weight has no adapter */
const AdapterRecord *adapter_of_weight(const Format *f, int state);
/* Contents of an adapter's parts, and of the weight to which it belongs. magnitude is NULL without dora. The weight's dtype may
 * differ from the parts'. */
typedef struct {
	const void *a, *b, *magnitude;
	DType dtype;
	void *weight;
} AdapterValues;
/* weight += scale b a, and with dora each output scaled to its magnitude; computed in f64, rounded once. */
void adapter_merge(const Format *f, const AdapterRecord *r, const AdapterValues *v, Arena *arena);
/* The hash of the weight with which the adapter was trained, computed like AdapterRecord.base; 0 if unknown. */
Status adapter_base(Gradc *run, const AdapterRecord *r, uint64_t *out);
/* adapters_merge adds all adapters to their weights and starts new adapters. adapters_unmerge subtracts all adapters from
 * weights to which they were added. */
Status adapters_merge(Gradc *run);
Status adapters_unmerge(Gradc *run);
/* magnitude / |weight + scale b a| per output, [outputs]; does not change the weight. */
const double *adapter_factors(const Format *f, const AdapterRecord *r, const AdapterValues *v,
                              Arena *arena);

/* ---- peft.c, peft_write.c, peft_load.c: adapters as PEFT's files */
#define PEFT_CONFIG "adapter_config.json"
#define PEFT_TENSORS "adapter_model.safetensors"
Status peft_write(Gradc *run, const char *folder);
Status peft_load(Gradc *run, const char *folder);
/* loads an adapter that is kept in the executable */
Status peft_load_kept(Gradc *run, const char *name);

/* ---- running_ranges.c */
typedef struct {
	float low, high, scale; /* scale: NaN if an end of the range is not finite */
	int32_t zero_point;
} RunningRange;
/* The range of a record EXPORT_RANGE_SCALE or EXPORT_RANGE_ZERO. shifted_by: the state that is added to the written number;
 * NO_SCALE without one. */
Status running_range(Gradc *run, Arena *arena, const ExportRecord *e, uint32_t shifted_by,
                     RunningRange *out);
/* Same as gradc_running_ranges. */
Status running_ranges(Gradc *run, Arena *arena, GradcRunningRanges *out);

#endif

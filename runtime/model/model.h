/* The numbers of a model: first values, results, exports, adapters. Sections are named after the .c file. */
#ifndef GRADC_RUNTIME_MODEL_MODEL_H
#define GRADC_RUNTIME_MODEL_MODEL_H

#include "runtime/run/run.h"

/* ---- weights.c: initial values. */
Status weights_init(Gradc *run);
/* Makes the states that begin as copies of others anew: these have new contents. resumed: but for those that the
 * checkpoint had. */
/* Of a state that begins as data: these, in the arena. */
Status weights_first(Gradc *run, Arena *arena, int state, char **out);
Status weights_begin(Gradc *run, int state); /* one of zeros or random numbers, anew */
Status weights_copy(Gradc *run, bool resumed);
/* Before the first update: what is mapped of the executable and changes becomes memory of our own. */
Status weights_unmap(Gradc *run);
/* The bytes of the weights match their hash. */
Status weights_check(const GradcModel *model, const Format *f, const char *file, bool *same);

/* ---- load.c: other initial values by name, from a safetensors file. */
Status weights_load(Gradc *run, const char *path);

/* ---- export.c */
/* The state whose numbers are written as those of this one: its average, where options.export_weights asks for it. */
int export_state(const Gradc *run, int state);
/* Of numbers that are not finite: the last update may have made them so; the step after it would have said it. */
void export_warn(const Gradc *run, const char *option, const StateRecord *s, DType dtype,
                 const void *data, int64_t n);
Status export_trained(Gradc *run, const char *path);
Status export_merged(Gradc *run, const char *path);
Status export_check(const Format *f, const GradcOptions *o); /* of options.export_weights */

/* ---- once.c */
Status once_run(Gradc *run, const GradcPairs *inputs, bool backward, const char *folder);
Status once_dump_gradients(Gradc *run, const char *folder);

/* once.c: what turns the sums of gradient states into the mean over the targets that were counted. */
Status gradient_factor(Gradc *run, double *out);

/* ---- adapters.c */
Status adapters_check(Gradc *run, const char *option);              /* as gradc_check_adapters */
const AdapterRecord *adapter_of_weight(const Format *f, int state); /* NULL: it has none */
/* What is added up: the contents of the parts (magnitude NULL: there is none), and the weight's, of a type of its own. */
typedef struct {
	const void *a, *b, *magnitude;
	DType dtype;
	void *weight;
} AdapterValues;
/* weight += scale b a, and its outputs scaled to magnitude: in f64, rounded once. */
void adapter_merge(const Format *f, const AdapterRecord *r, const AdapterValues *v, Arena *arena);
/* A hash of the numbers that an adapter stands beside, as AdapterRecord.base; 0: not known. */
Status adapter_base(Gradc *run, const AdapterRecord *r, uint64_t *out);
/* Adds all adapters to their weights, and begins new ones; or subtracts them, for the weights hold the sum. */
Status adapters_merge(Gradc *run);
Status adapters_unmerge(Gradc *run);
/* magnitude / |weight + scale b a| of each output, [outputs]; the weight stays. */
const double *adapter_factors(const Format *f, const AdapterRecord *r, const AdapterValues *v,
                              Arena *arena);

/* ---- peft.c, peft_write.c, peft_load.c: adapters as files of PEFT */
#define PEFT_CONFIG "adapter_config.json"
#define PEFT_TENSORS "adapter_model.safetensors"
Status peft_write(Gradc *run, const char *folder);
Status peft_load(Gradc *run, const char *folder);
Status peft_load_kept(Gradc *run, const char *name); /* one that goes along */

/* ---- running_ranges.c */
typedef struct {
	float low, high, scale; /* scale: NaN where an end is not finite */
	int32_t zero_point;
} RunningRange;
/* Of a record EXPORT_RANGE_SCALE or EXPORT_RANGE_ZERO. shifted_by: the state that is added to what it writes; NO_SCALE: none. */
Status running_range(Gradc *run, Arena *arena, const ExportRecord *e, uint32_t shifted_by,
                     RunningRange *out);
Status running_ranges(Gradc *run, Arena *arena,
                      GradcRunningRanges *out); /* as gradc_running_ranges */

#endif

/* Adapters, exports and ranges, as the files of this room see them. Sections are named after the .c file. */
#ifndef GRADC_RUNTIME_MODEL_ADAPTERS_H
#define GRADC_RUNTIME_MODEL_ADAPTERS_H

#include "runtime/model/model.h"

/* ---- weights.c: initial values */
/* The compiled initial data of a state, in the arena; for states that have such data. */
Status weights_first(Gradc *run, Arena *arena, int state, char **out);
/* resets a state to its zeros, ones or random numbers */
Status weights_begin(Gradc *run, int state);

/* ---- export.c */
/* The state to write for this state: its average if options.export_weights asks for averages, otherwise the state itself. */
int export_state(const Gradc *run, int state);
/* Warns about numbers that are not finite. The last update may have made them, and then no later step has reported a NaN. */
void export_warn(const Gradc *run, const char *option, const StateRecord *s, DType dtype,
                 const void *data, int64_t n);

/* The numbers that an export has for a weight: of a 4-bit weight the numbers of its codes; averages if the options ask for
 * averages. merged: the product of the weight's adapter is added. In the arena. */
typedef struct {
	const int64_t *dims; /* in the order of the ONNX file */
	DType dtype;
	int64_t n;
	char *data;
} ExportedWeight;
Status export_weight(Gradc *run, Arena *arena, int state, bool merged, ExportedWeight *out);

/* ---- adapters.c */
/* NULL if the weight has no adapter */
const AdapterRecord *adapter_of_weight(const Format *f, int state);
bool adapter_is_part(const Format *f, int state); /* is the state a part of an adapter? */
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
/* magnitude / |weight + scale b a| per output, [outputs]; does not change the weight. */
const double *adapter_factors(const Format *f, const AdapterRecord *r, const AdapterValues *v,
                              Arena *arena);

/* ---- running_ranges.c */
typedef struct {
	float low, high, scale; /* scale: NaN if an end of the range is not finite */
	int32_t zero_point;
} RunningRange;
/* The range of a record EXPORT_RANGE_SCALE or EXPORT_RANGE_ZERO. shifted_by: the state whose number is added to the zero
 * point before the zero point is written; NO_SCALE: no state is added. */
Status running_range(Gradc *run, Arena *arena, const ExportRecord *e, uint32_t shifted_by,
                     RunningRange *out);

#endif

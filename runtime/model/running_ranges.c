/* Scale and zero point of quantized activations, as training uses them now: from the range of values that training saw, plus a
 * learned correction. */
#include "runtime/model/adapters.h"

#include <math.h>
#include <string.h>

enum { MOST_READINGS = 64 };

static Status
read_number(Gradc *run, Arena *arena, uint32_t state, float *out)
{
	const StateRecord *s = &run->format.states[state];
	char *data = arena_alloc(arena, (size_t)s->bytes);

	RETURN_IF_ERROR(state_read(run, (int)state, data));
	*out = (float)dtype_load_float((DType)s->dtype, data, 0);
	return NULL;
}

Status
running_range(Gradc *run, Arena *arena, const ExportRecord *e, uint32_t shifted_by,
              RunningRange *out)
{
	DType type = (DType)e->dtype;
	double least, most;
	float shift = 0;
	int32_t zero;

	RETURN_IF_ERROR(read_number(run, arena, e->state, &out->low));
	RETURN_IF_ERROR(read_number(run, arena, e->high, &out->high));
	if (shifted_by != NO_SCALE)
		RETURN_IF_ERROR(read_number(run, arena, shifted_by, &shift));
	if (!isfinite(out->low) || !isfinite(out->high) || !isfinite(shift)) {
		out->scale = NAN;
		out->zero_point = 0;
		return NULL;
	}
	quantization_of(type, false, out->low, out->high, &out->scale, &zero);
	dtype_range(type, &least, &most);
	if (e->kind == EXPORT_RANGE_SCALE)
		out->scale = fmaxf(out->scale + shift, (float)e->least);
	else
		zero = (int32_t)fmin(fmax(nearbyintf((float)zero + shift), least), most);
	out->zero_point = zero;
	return NULL;
}

/* ---- all activations */
/* Every template has records of all ranges; those of the first template are taken. */
static bool
is_taken(const Format *f, const ExportRecord *e)
{
	return e->of == f->exports[0].of && e->form == f->exports[0].form;
}

static bool
is_scale(const Format *f, const ExportRecord *e)
{
	return e->kind == EXPORT_RANGE_SCALE && is_taken(f, e);
}

static int
count_ranges(const Format *f)
{
	int n = 0;

	for (int i = 0; i < f->n[SECTION_EXPORT]; i++)
		n += is_scale(f, &f->exports[i]);
	return n;
}

bool
gradc_ranges_due(const Gradc *run, int64_t step)
{
	int64_t total = run->total_steps, every = total / MOST_READINGS + 1;

	return (step == 1 || step == total || step % every == 0) && count_ranges(&run->format) > 0;
}

/* The value's name: the name of the lower end's state without ".low". */
static const char *
name_of(Arena *arena, const Format *f, const ExportRecord *e)
{
	const char *state = format_text(f, f->states[e->state].name), *dot = strrchr(state, '.');

	return arena_strndup(arena, state, dot ? (size_t)(dot - state) : strlen(state));
}

Status
running_ranges(Gradc *run, Arena *arena, GradcRunningRanges *out)
{
	const Format *f = &run->format;
	GradcRunningRange *list = NEW_ARRAY(arena, GradcRunningRange, count_ranges(f));
	const ExportRecord *scale = NULL;
	RunningRange r;

	*out = (GradcRunningRanges){.at = list};
	/* The initializer of a scale comes before that of its zero point. */
	for (int i = 0; i < f->n[SECTION_EXPORT]; i++) {
		const ExportRecord *e = &f->exports[i];
		if (is_scale(f, e))
			scale = e;
		if (e->kind != EXPORT_RANGE_ZERO || !is_taken(f, e) || !scale ||
		    scale->state != e->state)
			continue;
		RETURN_IF_ERROR(running_range(run, arena, e, e->scale, &r));
		GradcRunningRange *to = &list[out->n++];
		*to = (GradcRunningRange){.name = name_of(arena, f, e),
		                          .low = r.low,
		                          .high = r.high,
		                          .zero_point = r.zero_point};
		RETURN_IF_ERROR(running_range(run, arena, scale, scale->scale, &r));
		to->scale = r.scale;
		scale = NULL;
	}
	return NULL;
}

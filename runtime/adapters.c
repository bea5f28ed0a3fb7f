/* Low-rank products added to their weights, and what can be done with adapters. */
#include "runtime/peft.h"

#include <string.h>

Status
adapters_check(Gradc *run, const char *option)
{
	const Format *f = &run->format;
	const char *without = format_info_get(f, "no_branch");

	if (strcmp(option, "--export") == 0)
		return without ? status_error(EXIT_UNSUPPORTED,
		                              "--export: %s reads a weight that has an adapter, "
		                              "and can have no branch: --export-merged writes the "
		                              "sum, --export-adapter the adapter",
		                              without)
		               : NULL;
	if (f->n[SECTION_ADAPTERS] == 0)
		return status_error(EXIT_USAGE,
		                    "%s: this executable has no adapters: compile with --lora",
		                    option);
	return strcmp(option, "--export-merged") == 0 ? NULL : peft_check(f, option);
}

const AdapterRecord *
adapter_of_weight(const Format *f, int state)
{
	for (int i = 0; i < f->n[SECTION_ADAPTERS]; i++)
		if (f->adapters[i].weight == (uint32_t)state)
			return &f->adapters[i];
	return NULL;
}

/* The product as three axes: [outer, outputs, inner] = [outer, rank, inner] by [outputs, rank]. */
typedef struct {
	int64_t rank, inner;
	double scale;
	const double *a, *b;
} Product;

static const double *
doubles(Arena *arena, DType dtype, const void *data, int64_t n)
{
	double *out = NEW_ARRAY(arena, double, n);

	dtype_convert(F64, out, dtype, data, n);
	return out;
}

/* The row of one output: sums in f64. */
static void
sum_row(const Product *s, int64_t outer, int64_t o, double *sum)
{
	for (int64_t i = 0; i < s->inner; i++)
		sum[i] = 0;
	for (int64_t r = 0; r < s->rank; r++) {
		double factor = s->scale * s->b[o * s->rank + r];
		const double *row = s->a + (outer * s->rank + r) * s->inner;
		for (int64_t i = 0; i < s->inner; i++)
			sum[i] += factor * row[i];
	}
}

void
adapter_add(const Format *f, const AdapterRecord *r, const AdapterValues *v, Arena *arena)
{
	const StateRecord *w = &f->states[r->weight], *a = &f->states[r->a], *b = &f->states[r->b];
	const int64_t *dims = f->dims + w->first_dim;
	int64_t outputs = dims[r->axis], outer = 1;
	Product s = {
		.rank = f->dims[b->first_dim + 1], .inner = 1, .scale = format_adapter_scale(f, r)};

	for (uint32_t i = 0; i < w->rank; i++)
		*(i < r->axis ? &outer : &s.inner) *= i == r->axis ? 1 : dims[i];
	s.a = doubles(arena, (DType)a->dtype, v->a, outer * s.rank * s.inner);
	s.b = doubles(arena, (DType)b->dtype, v->b, outputs * s.rank);
	double *sum = NEW_ARRAY(arena, double, s.inner);
	for (int64_t i = 0; i < outer; i++)
		for (int64_t o = 0; o < outputs; o++) {
			int64_t at = (i * outputs + o) * s.inner;
			sum_row(&s, i, o, sum);
			for (int64_t k = 0; k < s.inner; k++)
				dtype_store_float(v->dtype, v->weight, at + k,
				                  dtype_load_float(v->dtype, v->weight, at + k) +
				                          sum[k]);
		}
}

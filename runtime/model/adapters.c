/* Adapters (LoRA): small trained matrices a and b whose product, times a scale, is added to a weight. Here: merges adapters
 * into weights and subtracts them again. */
#include "runtime/model/adapters.h"
#include "runtime/model/peft.h"

#include <math.h>
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
	bool loads = strcmp(option, "--load-adapter") == 0 || strcmp(option, "--adapter") == 0;
	for (int i = 0; i < f->n[SECTION_ADAPTERS] && loads; i++)
		if (f->adapters[i].pissa)
			return status_error(
				EXIT_UNSUPPORTED,
				"%s: compiled with init=pissa, whose weights lack the product that "
				"their adapters began with: compile without",
				option);
	bool is_inside = strcmp(option, "--export-merged") == 0 || strcmp(option, "--merge") == 0 ||
	                 strcmp(option, "--unmerge") == 0;
	return is_inside ? NULL : peft_check(f, option);
}

const AdapterRecord *
adapter_of_weight(const Format *f, int state)
{
	for (int i = 0; i < f->n[SECTION_ADAPTERS]; i++)
		if (f->adapters[i].weight == (uint32_t)state)
			return &f->adapters[i];
	return NULL;
}

/* The adapter's matrices, with their axes joined to at most three: a is [outer, rank, inner], b is [outputs, rank], and the
 * product [outer, outputs, inner]. */
typedef struct {
	int64_t outer, outputs, rank, inner;
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

/* Computes one output's row of scale b a, in f64. */
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

static Product
product_of(const Format *f, const AdapterRecord *r, const AdapterValues *v, Arena *arena)
{
	FormatType w = format_weight_type(f, (int)r->weight);
	const int64_t *dims = f->dims + w.first_dim;
	Product p = {.outer = 1,
	             .outputs = dims[r->axis],
	             .rank = f->dims[f->states[r->b].first_dim + 1],
	             .inner = 1,
	             .scale = format_adapter_scale(f, r)};

	for (uint32_t i = 0; i < w.rank; i++)
		*(i < r->axis ? &p.outer : &p.inner) *= i == r->axis ? 1 : dims[i];
	p.a = doubles(arena, (DType)f->states[r->a].dtype, v->a, p.outer * p.rank * p.inner);
	p.b = doubles(arena, (DType)f->states[r->b].dtype, v->b, p.outputs * p.rank);
	return p;
}

/* Walks the rows of weight + scale b a. */
typedef struct {
	const Product *p;
	const AdapterValues *v;
	int64_t number, at; /* index of the row; index of its first element */
	double *row;
} Rows;

static Rows
rows_of(const Product *p, const AdapterValues *v, Arena *arena)
{
	return (Rows){p, v, -1, 0, NEW_ARRAY(arena, double, p->inner)};
}

static bool
next_row(Rows *r)
{
	const Product *p = r->p;

	if (++r->number == p->outer * p->outputs)
		return false;
	r->at = r->number * p->inner;
	sum_row(p, r->number / p->outputs, r->number % p->outputs, r->row);
	for (int64_t k = 0; k < p->inner; k++)
		r->row[k] += dtype_load_float(r->v->dtype, r->v->weight, r->at + k);
	return true;
}

const double *
adapter_factors(const Format *f, const AdapterRecord *r, const AdapterValues *v, Arena *arena)
{
	Product p = product_of(f, r, v, arena);
	double *out = NEW_ARRAY(arena, double, p.outputs);
	const double *magnitude = doubles(arena, (DType)f->states[r->magnitude - 1].dtype,
	                                  v->magnitude, p.outputs);

	for (Rows rows = rows_of(&p, v, arena); next_row(&rows);)
		for (int64_t k = 0; k < p.inner; k++)
			out[rows.number % p.outputs] += rows.row[k] * rows.row[k];
	for (int64_t o = 0; o < p.outputs; o++)
		out[o] = magnitude[o] / sqrt(fmax(out[o], LEAST_NORM_SQUARE));
	return out;
}

/* Replaces the weight by (weight + scale b a) * factor. factors: one per output; NULL: all 1. */
static void
store_sums(const Product *p, const AdapterValues *v, const double *factors, Arena *arena)
{
	for (Rows rows = rows_of(p, v, arena); next_row(&rows);) {
		double factor = factors ? factors[rows.number % p->outputs] : 1;
		for (int64_t k = 0; k < p->inner; k++)
			dtype_store_float(v->dtype, v->weight, rows.at + k, factor * rows.row[k]);
	}
}

void
adapter_merge(const Format *f, const AdapterRecord *r, const AdapterValues *v, Arena *arena)
{
	Product p = product_of(f, r, v, arena);

	store_sums(&p, v, r->magnitude ? adapter_factors(f, r, v, arena) : NULL, arena);
}

/* ---- merging when a run starts */
/* Refuses weights that cannot hold the sum with an adapter: 4-bit codes, and weights with dora, whose magnitudes belong to the
 * compiled weight. */
static Status
check_sums(const Format *f, const char *option)
{
	for (int i = 0; i < f->n[SECTION_ADAPTERS]; i++) {
		const AdapterRecord *r = &f->adapters[i];
		const char *why = r->magnitude
		                          ? "has dora, whose magnitudes are those of the weight "
		                            "that was compiled"
		                  : format_four_bit(f, (int)r->weight) ? "is kept in 4 bits"
		                                                       : NULL;
		if (why)
			return status_error(
				EXIT_UNSUPPORTED,
				"%s: \"%s\" %s: --export-merged writes the sum, compile "
				"that",
				option, format_text(f, f->states[r->weight].name), why);
	}
	return NULL;
}

static Status
read_whole(Gradc *run, Arena *arena, uint32_t state, char **out)
{
	*out = arena_alloc(arena, (size_t)run->format.states[state].bytes + 1);
	return state_read(run, (int)state, *out);
}

/* The hash of the weight that the adapter belongs to: the compiled hash, or a new hash if --load, --merge or --unmerge changed
 * the weight. */
Status
adapter_base(Gradc *run, const AdapterRecord *r, uint64_t *out)
{
	const GradcOptions *o = &run->options;
	FormatType t = format_weight_type(&run->format, (int)r->weight);
	int64_t n = format_elements(&run->format, t.first_dim, t.rank);
	char *weight;

	*out = (uint64_t)r->base;
	if ((!o->load && !o->merge && !o->unmerge) || format_four_bit(&run->format, (int)r->weight))
		return NULL;
	Arena *arena = arena_new();
	Status status = read_whole(run, arena, r->weight, &weight);
	if (!status)
		*out = hash_numbers(t.dtype, weight, n);
	arena_free(arena);
	return status;
}

static Status
add_product(Gradc *run, const AdapterRecord *r, double sign)
{
	const Format *f = &run->format;
	Arena *arena = arena_new();
	char *weight, *a, *b;

	Status status = read_whole(run, arena, r->weight, &weight);
	if (!status)
		status = read_whole(run, arena, r->a, &a);
	if (!status)
		status = read_whole(run, arena, r->b, &b);
	if (!status) {
		AdapterValues v = {a, b, NULL, (DType)f->states[r->weight].dtype, weight};
		Product p = product_of(f, r, &v, arena);
		p.scale *= sign;
		store_sums(&p, &v, NULL, arena);
		status = state_write(&run->executor, (int)r->weight, 0, weight,
		                     f->states[r->weight].bytes);
	}
	arena_free(arena);
	return status;
}

static Status
add_all(Gradc *run, const char *option, double sign)
{
	const Format *f = &run->format;

	RETURN_IF_ERROR(adapters_check(run, option));
	RETURN_IF_ERROR(check_sums(f, option));
	for (int i = 0; i < f->n[SECTION_ADAPTERS]; i++)
		RETURN_IF_ERROR(add_product(run, &f->adapters[i], sign));
	return NULL;
}

Status
adapters_merge(Gradc *run)
{
	const Format *f = &run->format;

	RETURN_IF_ERROR(add_all(run, "--merge", 1));
	for (int i = 0; i < f->n[SECTION_ADAPTERS]; i++) {
		RETURN_IF_ERROR(weights_begin(run, (int)f->adapters[i].a));
		RETURN_IF_ERROR(weights_begin(run, (int)f->adapters[i].b));
	}
	return weights_copy(run, false);
}

Status
adapters_unmerge(Gradc *run)
{
	RETURN_IF_ERROR(add_all(run, "--unmerge", -1));
	return weights_copy(run, false);
}

bool
adapter_is_part(const Format *f, int state)
{
	for (int i = 0; i < f->n[SECTION_ADAPTERS]; i++)
		if (f->adapters[i].a == (uint32_t)state || f->adapters[i].b == (uint32_t)state ||
		    f->adapters[i].magnitude == (uint32_t)state + 1)
			return true;
	return false;
}

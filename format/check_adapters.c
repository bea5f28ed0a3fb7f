/* Checks the records of an executable's tables for adapters, for 4-bit weights, and for kept adapters (files of further
 * adapters that the executable carries). */
#include "format/checks.h"

#include <math.h>

static const StateRecord *
float_state(const Format *f, uint32_t state)
{
	const StateRecord *s = &f->states[state < (uint32_t)f->n[SECTION_STATES] ? state : 0];

	return state < (uint32_t)f->n[SECTION_STATES] && dtype_is_float((DType)s->dtype) ? s : NULL;
}

static bool
is_vector_of(const Format *f, uint32_t state, DType dtype, int64_t n)
{
	return state < (uint32_t)f->n[SECTION_STATES] &&
	       f->states[state].dtype == (uint32_t)dtype && f->states[state].rank == 1 &&
	       f->dims[f->states[state].first_dim] == n;
}

Status
format_check_four_bit(const FormatIndex *x, int i)
{
	const Format *f = x->f;
	const FourBitRecord *r = &f->four_bit[i];
	int64_t bytes;

	RETURN_IF_ERROR(format_check_shape(f, "weight of 4 bits", i,
	                                   (uint32_t[]){r->dtype, r->rank, r->first_dim}, &bytes));
	if (r->kind >= N_FOUR_BIT || !dtype_is_float((DType)r->dtype) || r->axis >= r->rank)
		return FAULT("weight of 4 bits %d: kind %u, dtype %u, axis %u of rank %u", i,
		             r->kind, r->dtype, r->axis, r->rank);
	int64_t n = format_elements(f, r->first_dim, r->rank), blocks = four_bit_blocks(n);
	bool fits = is_vector_of(f, r->codes, U8, (n + 1) / 2) &&
	            is_vector_of(f, r->absmax, r->nested ? U8 : F32, blocks);
	if (r->nested)
		fits &= is_vector_of(f, r->nested - 1, F32, absmax_blocks(blocks)) &&
		        is_vector_of(f, r->offset - 1, F32, 1);
	if (!fits || f->states[r->codes].trainable || f->states[r->codes].kind != STATE_PARAMETER ||
	    x->four_bit[r->codes] != r)
		return FAULT("weight of 4 bits %d: its states do not have the shapes of its blocks",
		             i);
	return NULL;
}

Status
format_check_adapter(const FormatIndex *x, int i)
{
	const Format *f = x->f;
	const AdapterRecord *r = &f->adapters[i];
	const StateRecord *a = float_state(f, r->a), *b = float_state(f, r->b);
	bool is_state = r->weight < (uint32_t)f->n[SECTION_STATES];
	FormatType w = is_state ? format_index_weight_type(x, (int)r->weight) : (FormatType){0};

	if (!is_state || !dtype_is_float(w.dtype) || !a || !b || r->readers >= N_READ_BY ||
	    r->rslora > 1 || r->pissa > 1 || !isfinite(r->alpha))
		return FAULT("adapter %d: states %u, %u and %u of %d, readers %u, alpha %g", i,
		             r->weight, r->a, r->b, f->n[SECTION_STATES], r->readers, r->alpha);
	if (r->axis >= w.rank || a->rank != w.rank || b->rank != 2)
		return FAULT("adapter %d: axis %u of rank %u, parts of rank %u and %u", i, r->axis,
		             w.rank, a->rank, b->rank);
	if (r->pissa && (a->init != INIT_DATA || b->init != INIT_DATA))
		return FAULT("adapter %d: the initial values of its parts are missing", i);
	const int64_t *dims = f->dims + w.first_dim, *a_dims = f->dims + a->first_dim,
		      *b_dims = f->dims + b->first_dim;
	bool fits = b_dims[0] == dims[r->axis] && b_dims[1] == a_dims[r->axis] && b_dims[1] > 0;
	for (uint32_t k = 0; k < w.rank; k++)
		fits &= k == r->axis || a_dims[k] == dims[k];
	if (!fits)
		return FAULT("adapter %d: its parts do not have its weight's shape", i);
	const StateRecord *sizes = r->magnitude ? float_state(f, r->magnitude - 1) : NULL;
	if (r->magnitude &&
	    (!sizes || sizes->rank != 1 || f->dims[sizes->first_dim] != dims[r->axis]))
		return FAULT("adapter %d: state %u is not one magnitude per output", i,
		             r->magnitude - 1);
	RETURN_IF_ERROR(format_check_string(f, r->product, "adapter", i));
	return format_check_string(f, r->table, "adapter", i);
}

Status
format_check_kept_adapter(const Format *f, int i)
{
	const KeptAdapterRecord *r = &f->kept_adapters[i];
	int n = f->n[SECTION_KEPT];

	RETURN_IF_ERROR(format_check_string(f, r->name, "kept adapter", i));
	if (r->config < 0 || r->config_bytes < 0 || r->tensors < 0 || r->tensors_bytes < 0 ||
	    !in_range((uint64_t)r->config, (uint64_t)r->config_bytes, n) ||
	    !in_range((uint64_t)r->tensors, (uint64_t)r->tensors_bytes, n))
		return FAULT(
			"kept adapter %d: settings of %lld bytes at %lld, tensors of %lld bytes at %lld: not within the section of %d bytes",
			i, (long long)r->config_bytes, (long long)r->config,
			(long long)r->tensors_bytes, (long long)r->tensors, n);
	return NULL;
}

/* Each state may be a part or the weight of one adapter only. */
Status
format_check_adapters_apart(const Format *f)
{
	int *owner = memory_zeroed((size_t)f->n[SECTION_STATES] + 1,
	                           sizeof(*owner)); /* adapter + 1, by state */
	Status status = NULL;

	for (int i = 0; i < f->n[SECTION_ADAPTERS] && !status; i++) {
		const AdapterRecord *r = &f->adapters[i];
		const uint32_t parts[] = {r->weight, r->a, r->b, r->magnitude - 1};
		for (int k = 0; k < COUNT(parts) && !status; k++) {
			if (parts[k] == UINT32_MAX)
				continue;
			if (owner[parts[k]])
				status = FAULT("adapter %d: it shares a state with adapter %d", i,
				               owner[parts[k]] - 1);
			owner[parts[k]] = i + 1;
		}
	}
	memory_free(owner);
	return status;
}

Status
format_check_factors(const Format *f)
{
	bool *has_sizes = memory_zeroed((size_t)f->n[SECTION_STATES] + 1, sizeof(*has_sizes));
	Status status = NULL;

	for (int i = 0; i < f->n[SECTION_ADAPTERS]; i++)
		has_sizes[f->adapters[i].weight] |= f->adapters[i].magnitude != 0;
	for (int i = 0; i < f->n[SECTION_EXPORT] && !status; i++) {
		const ExportRecord *e = &f->exports[i];
		if (e->kind == EXPORT_FACTORS &&
		    (e->state >= (uint32_t)f->n[SECTION_STATES] || !has_sizes[e->state] ||
		     e->dtype >= N_DTYPES || !dtype_is_float((DType)e->dtype)))
			status = FAULT("export %d: factors of state %u, of dtype %u", i, e->state,
			               e->dtype);
	}
	memory_free(has_sizes);
	return status;
}

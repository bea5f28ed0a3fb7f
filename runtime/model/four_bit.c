/* Converts a weight that is stored in 4-bit codes back to numbers. */
#include "runtime/model/values.h"

char *
four_bit_weight(Arena *arena, const Format *f, const FourBitRecord *r, const FourBitBytes *bytes)
{
	const int64_t *dims = f->dims + r->first_dim;
	int64_t n = format_elements(f, r->first_dim, r->rank), blocks = four_bit_blocks(n);
	int64_t outputs = dims[r->axis], inner = 1;
	char *out = arena_alloc(arena, (size_t)dtype_bytes((DType)r->dtype, n) + 1);
	const float *absmax = bytes->absmax;

	if (bytes->nested) {
		float *sizes = NEW_ARRAY(arena, float, blocks);
		absmax_numbers(bytes->absmax, bytes->nested, *(const float *)bytes->offset, blocks,
		               sizes);
		absmax = sizes;
	}
	for (uint32_t i = r->axis + 1; i < r->rank; i++)
		inner *= dims[i];
	for (int64_t i = 0; i < n; i++) {
		int64_t from = four_bit_place(i, outputs, n / outputs / inner, inner);
		dtype_store_float((DType)r->dtype, out, i,
		                  four_bit_number((FourBit)r->kind, bytes->codes, absmax, from));
	}
	return out;
}

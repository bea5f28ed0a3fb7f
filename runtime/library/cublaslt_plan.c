/* Describes a product with strides in cuBLASLt's terms: matrices in column order, which may be transposed, and batches of
 * matrices at equal distances. A matrix in row order is the same memory as the transposed matrix in column order. So a product
 * z = x y in row order is computed as z^T = y^T x^T. */
#include "base/numbers/numbers.h"
#include "runtime/library/cublaslt.h"

/* Bytes: states of 16 bits in a unit begin at multiples of 16 elements (passes/units/units.c). */
enum { SLOT_ALIGNMENT = 32 };

int
cublaslt_type(uint32_t dtype)
{
	return dtype == F32    ? CUBLASLT_F32
	       : dtype == BF16 ? CUBLASLT_BF16
	       : dtype == F16  ? CUBLASLT_F16
	                       : -1;
}

/* ---- matrices */
/* Describes a matrix with these distances between rows and between columns. False if elements are adjacent along neither axis,
 * or if several elements have the same address. */
static bool
put_matrix(LtMatrix *m, int64_t rows, int64_t columns, int64_t by_row, int64_t by_column)
{
	m->transposed = rows > 1 && by_row != 1;
	m->rows = m->transposed ? columns : rows;
	m->columns = m->transposed ? rows : columns;
	m->leading = m->transposed ? by_row : by_column;
	if (m->transposed && columns > 1 && by_column != 1)
		return false;
	if (m->columns == 1)
		m->leading = m->rows;
	return m->leading >= m->rows;
}

/* Describes the last two axes of operand i, transposed if swapped. */
static bool
put_operand(const LibraryCall *call, int i, bool swapped, LtMatrix *m)
{
	const LibraryOperand *o = &call->operands[i];
	uint32_t row = o->rank - (swapped ? 1 : 2), column = o->rank - (swapped ? 2 : 1);

	m->operand = i;
	return put_matrix(m, o->dims[row], o->dims[column], o->strides[row], o->strides[column]);
}

/* ---- batches */
/* Picks the batch axis that the library itself iterates over: the longest one, so that few runs are needed. */
static uint32_t
longest_axis(const LibraryOperand *z)
{
	uint32_t longest = 0;

	for (uint32_t i = 1; i < z->rank - 2; i++)
		if (z->dims[i] > z->dims[longest])
			longest = i;
	return longest;
}

static void
put_batches(const LibraryCall *call, LtPlan *p)
{
	const LibraryOperand *z = &call->operands[LIBRARY_RESULT];
	uint32_t longest = longest_axis(z);

	p->batch = p->runs = 1;
	for (uint32_t i = 0; i < z->rank - 2; i++) {
		int at = i == longest ? -1 : p->n_outer++;
		if (at < 0)
			p->batch = z->dims[i];
		else
			p->runs *= p->outer[at] = z->dims[i];
		for (int m = 0; m < N_LT_MATRICES; m++) {
			int64_t stride = call->operands[p->matrices[m].operand].strides[i];
			if (at < 0)
				p->matrices[m].stride = stride;
			else
				p->matrices[m].steps[at] = stride;
		}
	}
}

static uint32_t
alignment_of(const LibraryCall *call, const LtPlan *p, const LtMatrix *m)
{
	const LibraryOperand *o = &call->operands[m->operand];
	int64_t places = o->offset;
	uint32_t alignment = SLOT_ALIGNMENT;

	for (int i = 0; i < p->n_outer; i++)
		places |= m->steps[i];
	while (dtype_bytes((DType)o->dtype, places) % alignment)
		alignment /= 2;
	return alignment;
}

static Status
check_call(const LibraryCall *c)
{
	if (c->kind != LIBRARY_DOT)
		return status_error(EXIT_UNSUPPORTED, "cuBLASLt has no %s",
		                    library_kind_names[c->kind]);
	for (int i = 0; i < N_LIBRARY_OPERANDS; i++)
		if (library_has_operand(c, i) && cublaslt_type(c->operands[i].dtype) < 0)
			return status_error(EXIT_UNSUPPORTED, "cuBLASLt: products of %s are loops",
			                    dtype_info[c->operands[i].dtype].name);
	return NULL;
}

/* A bias vector needs one number per row of d. The operand that a GELU saves needs columns that begin at multiples of 8
 * elements and 16 bytes. */
static Status
check_epilogue(const LibraryCall *call, const LtPlan *p)
{
	enum { AUX_ELEMENTS = 8, AUX_BYTES = 16 };
	const LtMatrix *aux = &p->matrices[LT_AUX];
	bool reads_bias = library_has_operand(call, LIBRARY_BIAS) &&
	                  !library_writes(call, LIBRARY_BIAS);

	if (reads_bias && !p->swapped)
		return status_error(EXIT_UNSUPPORTED, "cuBLASLt: a bias is for rows");
	if (library_has_operand(call, LIBRARY_AUX) &&
	    (aux->leading % AUX_ELEMENTS || aux->stride % AUX_ELEMENTS ||
	     aux->alignment < AUX_BYTES))
		return status_error(EXIT_UNSUPPORTED,
		                    "cuBLASLt: rows of a GELU's operand begin at multiples of %d",
		                    AUX_ELEMENTS);
	return NULL;
}

Status
cublaslt_plan(const LibraryCall *call, LtPlan *out)
{
	const LibraryOperand *z = &call->operands[LIBRARY_RESULT];
	LtPlan p = {0};

	*out = p;
	RETURN_IF_ERROR(check_call(call));
	int added = call->beta && !library_adds_in_place(call) ? LIBRARY_ADDED : LIBRARY_RESULT;
	/* The library's result is never transposed. If elements of the result z are adjacent along rows, all three matrices are
	 * transposed. */
	bool swapped = z->dims[z->rank - 1] == 1 || z->strides[z->rank - 1] == 1;
	bool fits = put_operand(call, LIBRARY_FIRST, swapped, &p.matrices[swapped ? LT_B : LT_A]) &&
	            put_operand(call, LIBRARY_SECOND, swapped,
	                        &p.matrices[swapped ? LT_A : LT_B]) &&
	            put_operand(call, added, swapped, &p.matrices[LT_C]) &&
	            put_operand(call, LIBRARY_RESULT, swapped, &p.matrices[LT_D]) &&
	            (!library_has_operand(call, LIBRARY_AUX) ||
	             put_operand(call, LIBRARY_AUX, swapped, &p.matrices[LT_AUX]));
	if (!fits)
		return status_error(
			EXIT_UNSUPPORTED,
			"cuBLASLt: an operand has no axis of stride 1, or overlaps itself");
	p.swapped = swapped;
	put_batches(call, &p);
	if (p.batch > INT32_MAX)
		return status_error(EXIT_UNSUPPORTED,
		                    "cuBLASLt: a batch of %lld products is "
		                    "too large",
		                    (long long)p.batch);
	for (int m = 0; m < N_LT_MATRICES; m++)
		p.matrices[m].alignment = alignment_of(call, &p, &p.matrices[m]);
	RETURN_IF_ERROR(check_epilogue(call, &p));
	*out = p;
	return NULL;
}

char *
cublaslt_place(const LibraryCall *call, const LtPlan *plan, int m, int64_t i, void *buffer)
{
	const LtMatrix *x = &plan->matrices[m];
	const LibraryOperand *o = &call->operands[x->operand];
	int64_t at = o->offset;

	for (int k = plan->n_outer - 1; k >= 0; i /= plan->outer[k--])
		at += i % plan->outer[k] * x->steps[k];
	return (char *)buffer + dtype_bytes((DType)o->dtype, at);
}

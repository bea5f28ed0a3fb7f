/* Rounds scalars to what memory of a storage type can hold (f16, s8 ...), and gives the values
 * at which accumulations start (0 for a sum). */
#include "ir/loop/loop.h"

#include <math.h>

LoopValue
lb_identity(LoopBuilder *lb, AccumulateKind kind, DType storage)
{
	static const double floats[] = {0, 1, -INFINITY, INFINITY};
	bool is_signed = dtype_info[storage].class == CLASS_SIGNED;
	int64_t most = (int64_t)(~0ull >> (64 - dtype_info[storage].bits + is_signed));
	const int64_t integers[] = {0, 1, is_signed ? -most - 1 : 0, most};
	DType type = compute_type(storage);

	return dtype_is_float(type) ? lb_float(lb, type, floats[kind])
	                            : lb_int(lb, type, integers[kind]);
}

/* Does the storage type hold x without rounding? True if x is only chosen (by select, max or min)
 * among numbers of this type: loaded numbers, results of casts, constants. */
static bool
is_narrow(const LoopBuilder *lb, DType type, LoopValue x, int depth)
{
	int at = lb->definitions.at[x];
	const LoopStatement *s = at >= 0 ? &lb->k->body.at[at] : NULL;

	if (!s || depth == 0)
		return false;
	if (s->kind == LOOP_STATEMENT_LOAD)
		return lb->k->buffers.at[s->buffer].type->dtype == type &&
		       (s->n_operands == 0 || dtype_round(type, 0) == 0);
	if (s->kind == LOOP_STATEMENT_CAST)
		return s->i == type;
	if (s->kind == LOOP_STATEMENT_CONST && dtype_is_float(type))
		return dtype_round(type, s->f) == s->f;
	if (s->kind != LOOP_STATEMENT_OP ||
	    (s->op != LOOP_select && s->op != LOOP_max && s->op != LOOP_min))
		return false;
	return is_narrow(lb, type, s->operands[s->n_operands - 2], depth - 1) &&
	       is_narrow(lb, type, s->operands[s->n_operands - 1], depth - 1);
}

LoopValue
lb_narrow(LoopBuilder *lb, DType type, LoopValue x)
{
	enum { DEPTH = 4 };

	if (compute_type(type) == type || is_narrow(lb, type, x, DEPTH))
		return x;
	return lb_cast_as(lb, type, (Conversion){0}, x, -1);
}

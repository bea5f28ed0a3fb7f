/* Arithmetic, loads, stores and casts of the loop IR's interpreter, on one number (a cell).
 * Loads, stores and casts use the table of conversions (base/numbers/dtype.c), not the code that
 * printers use, so a comparison with the interpreter tests the printers' conversions. */
#include "ir/loop/interp.h"

#include <math.h>
#include <string.h>

/* clang-format off */
#define BY_TYPE(F64E, F32E, S64E, S32E, U64E, U32E, BE)                                          \
	switch (t) {                                                                             \
	case F64: r.f64 = F64E; break;                                                           \
	case F32: r.f32 = F32E; break;                                                           \
	case S64: r.s64 = S64E; break;                                                           \
	case S32: r.s32 = S32E; break;                                                           \
	case U64: r.u64 = U64E; break;                                                           \
	case U32: r.u32 = U32E; break;                                                           \
	default: r.b = BE; break;                                                                \
	}                                                                                        \
	return r;
#define ARITHMETIC(name, op)                                                                     \
	case LOOP_##name:                                                                        \
		BY_TYPE(x.f64 op y.f64, x.f32 op y.f32, (int64_t)(x.u64 op y.u64),               \
		        (int32_t)(x.u32 op y.u32), x.u64 op y.u64, x.u32 op y.u32, x.b)
#define BITWISE(name, op)                                                                        \
	case LOOP_##name:                                                                        \
		BY_TYPE(x.f64, x.f32, x.s64 op y.s64, x.s32 op y.s32, x.u64 op y.u64,            \
		        x.u32 op y.u32, x.b op y.b)
#define BUILTIN(name, c) case LOOP_##name: BY_TYPE(c(x.f64), c##f(x.f32), 0, 0, 0, 0, 0)

/* Operations that machines have as instructions; t: the type of the result. */
Cell
cell_arithmetic(LoopOp op, DType t, Cell x, Cell y, Cell z)
{
	Cell r = {0};

	switch (op) {
	case LOOP_neg:
		BY_TYPE(-x.f64, -x.f32, (int64_t)(0 - x.u64), (int32_t)(0 - x.u32), 0 - x.u64,
		        0 - x.u32, x.b)
	BUILTIN(abs, fabs) BUILTIN(sqrt, sqrt) BUILTIN(floor, floor) BUILTIN(ceil, ceil)
	BUILTIN(round, rint)
	ARITHMETIC(add, +) ARITHMETIC(sub, -) ARITHMETIC(mul, *)
	case LOOP_div: case LOOP_quotient:
		BY_TYPE(x.f64 / y.f64, x.f32 / y.f32, x.s64 / y.s64, x.s32 / y.s32, x.u64 / y.u64,
		        x.u32 / y.u32, x.b)
	BITWISE(and, &) BITWISE(or, |) BITWISE(xor, ^)
	case LOOP_shl:
		BY_TYPE(0, 0, (int64_t)(x.u64 << y.u64), (int32_t)(x.u32 << y.u32), x.u64 << y.u64,
		        x.u32 << y.u32, x.b)
	BITWISE(shr, >>)
	case LOOP_fma: BY_TYPE(fma(x.f64, y.f64, z.f64), fmaf(x.f32, y.f32, z.f32), 0, 0, 0, 0, 0)
	case LOOP_not: r.b = !x.b; return r;
	case LOOP_select: return x.b ? y : z;
	case LOOP_bits: return x;
	default: return r;
	}
}

#define COMPARE_AS(member)                                                                       \
	switch (op) {                                                                            \
	case LOOP_eq: return x.member == y.member;                                               \
	case LOOP_ne: return x.member != y.member;                                               \
	case LOOP_lt: return x.member < y.member;                                                \
	case LOOP_le: return x.member <= y.member;                                               \
	case LOOP_gt: return x.member > y.member;                                                \
	default: return x.member >= y.member;                                                    \
	}

/* clang-format on */

/* t: the type of the operands */
bool
cell_compare(LoopOp op, DType t, Cell x, Cell y)
{
	switch (t) {
	case F64: COMPARE_AS(f64)
	case F32: COMPARE_AS(f32)
	case S64: COMPARE_AS(s64)
	case S32: COMPARE_AS(s32)
	case U64: COMPARE_AS(u64)
	case U32: COMPARE_AS(u32)
	default: COMPARE_AS(b)
	}
}

/* Converts a float to an integer; x must fit into type `to`. */
Cell
cell_truncate(DType from, DType to, Cell x)
{
	double f = from == F64 ? x.f64 : (double)x.f32;
	Cell r = {0};

	switch (to) {
	case S64: r.s64 = (int64_t)f; break;
	case S32: r.s32 = (int32_t)f; break;
	case U64: r.u64 = (uint64_t)f; break;
	default: r.u32 = (uint32_t)f; break;
	}
	return r;
}

Cell
cell_load(DType storage, const void *at, int64_t i)
{
	Cell r = {0};

	switch (compute_type(storage)) {
	case F64: r.f64 = ((const double *)at)[i]; break;
	case F32: r.f32 = (float)dtype_load_float(storage, at, i); break;
	case S64: r.s64 = dtype_load_int(storage, at, i); break;
	case U64: r.u64 = (uint64_t)dtype_load_int(storage, at, i); break;
	case S32: r.s32 = (int32_t)dtype_load_int(storage, at, i); break;
	case U32: r.u32 = (uint32_t)dtype_load_int(storage, at, i); break;
	default: r.b = dtype_load_int(storage, at, i) != 0; break;
	}
	return r;
}

static int64_t
cell_int(DType t, Cell x)
{
	switch (t) {
	case S32: return x.s32;
	case U32: return x.u32;
	case BOOL: return x.b;
	default: return x.s64;
	}
}

void
cell_store(DType storage, void *at, int64_t i, Cell x)
{
	DType t = compute_type(storage);

	if (t == F64)
		((double *)at)[i] = x.f64;
	else if (t == F32)
		dtype_store_float(storage, at, i, x.f32);
	else
		dtype_store_int(storage, at, i, cell_int(t, x));
}

/* Rounds x through a float type below f32. */
Cell
cell_round(DType storage, Conversion how, DType from, Cell x, Cell random)
{
	double value = from == F64   ? x.f64
	               : from == F32 ? (double)x.f32
	                             : dtype_int_for_rounding((uint64_t)cell_int(from, x),
	                                                      from != U64 && from != U32);

	return (Cell){.f32 = (float)dtype_round_as(storage, how, value, random.u32)};
}

Cell
cell_cast(DType storage, DType from, Cell x)
{
	char raw[8], source[8];

	memset(source, 0, sizeof(source));
	cell_store(from, source, 0, x);
	dtype_convert(storage, raw, from, source, 1);
	return cell_load(storage, raw, 0);
}

Cell
cell_identity(const Accumulator *a)
{
	Cell x = {0};
	static const double floats[] = {0, 1, -INFINITY, INFINITY};

	if (a->type == F64)
		x.f64 = floats[a->kind];
	else if (a->type == F32)
		x.f32 = (float)floats[a->kind];
	else if (a->kind == ACC_MUL)
		x.s64 = 1;
	else if (a->kind == ACC_MAX)
		x = a->type == S64   ? (Cell){.s64 = INT64_MIN}
		    : a->type == S32 ? (Cell){.s32 = INT32_MIN}
		                     : (Cell){0};
	else if (a->kind == ACC_MIN)
		x = a->type == S64   ? (Cell){.s64 = INT64_MAX}
		    : a->type == S32 ? (Cell){.s32 = INT32_MAX}
		    : a->type == U32 ? (Cell){.u32 = UINT32_MAX}
		                     : (Cell){.u64 = UINT64_MAX};
	return x;
}

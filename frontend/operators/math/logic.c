/* Imports comparisons, logic, operators on bits, and Where. */
#include "frontend/import/import.h"

#include <math.h>
#include <string.h>

static void
import_compare(OnnxNode *n)
{
	Value *x = want_input(n, 0);

	set_output(n, 0, e_binary(n, (OpKind)n->extra->op, x, want_second_input(n, x)));
}

static Value *
want_bool(OnnxNode *n, int i)
{
	Value *x = want_input(n, i);

	if (x && x->type->dtype != BOOL) {
		report_invalid(n, "input %d is %s, needs bool", i, dtype_info[x->type->dtype].name);
		return NULL;
	}
	return x;
}

static void
import_logic(OnnxNode *n)
{
	Value *x = want_bool(n, 0);

	set_output(n, 0,
	           want_bool(n, 1) ? e_binary(n, (OpKind)n->extra->op, x, want_second_input(n, x))
	                           : NULL);
}

/* ---- bits of integers */
static Value *
want_integers(OnnxNode *n, int i)
{
	Value *x = want_input(n, i);

	if (x && (is_float(x) || x->type->dtype == BOOL)) {
		report_invalid(n, "input %d is %s, needs integers", i,
		               dtype_info[x->type->dtype].name);
		return NULL;
	}
	return x;
}

static void
import_bitwise(OnnxNode *n)
{
	set_output(n, 0,
	           e_binary(n, (OpKind)n->extra->op, want_integers(n, 0), want_integers(n, 1)));
}

static void
import_bitwise_not(OnnxNode *n)
{
	Value *x = want_integers(n, 0), *zero = x ? e_number(n, x, 0) : NULL;

	set_output(n, 0,
	           x ? e_binary(n, OP_xor, x, e_binary(n, OP_sub, zero, e_number(n, x, 1))) : NULL);
}

/* 2^y, in the type of x; 0 if y is at least the number of x's bits. */
static Value *
power_of_two(OnnxNode *n, const Value *x, Value *y)
{
	enum { MOST_BITS = 64 };
	DType d = x->type->dtype;
	int64_t bits = dtype_info[d].bits;
	uint64_t powers[MOST_BITS] = {0};

	for (int64_t i = 0; i < bits; i++)
		dtype_store_int(d, powers, i, (int64_t)(UINT64_C(1) << i));
	Value *table = b_constant(n->b,
	                          tensor_new(n->im->m, type_new(n->im->m, d, 1, &bits), powers));
	return e_op(n, OP_lookup, 2, (Value *[]){table, e_cast(n, y, S64)}, NULL);
}

/* A shift of unsigned integers: a product with a power of two, or a quotient by it. */
static void
import_bit_shift(OnnxNode *n)
{
	Value *x = want_integers(n, 0), *y = want_integers(n, 1);
	const char *to = want_string(n, "direction", "");
	bool left = strcmp(to, "LEFT") == 0;

	if (!x || !y)
		return;
	if (dtype_info[x->type->dtype].class != CLASS_UNSIGNED) {
		report_invalid(n, "input 0 is %s, needs unsigned integers",
		               dtype_info[x->type->dtype].name);
		return;
	}
	if (!left && strcmp(to, "RIGHT") != 0) {
		report_invalid(n, "direction \"%s\" is neither LEFT nor RIGHT", to);
		return;
	}
	Value *power = power_of_two(n, x, y);
	if (left) {
		set_output(n, 0, e_binary(n, OP_mul, x, power));
		return;
	}
	Value *none = e_binary(n, OP_eq, power, e_number(n, power, 0));
	Value *divisor = e_select(n, none, e_number(n, power, 1), power);
	Value *shifted = e_binary(n, OP_div, x, divisor);
	set_output(n, 0, e_select(n, none, e_number(n, shifted, 0), shifted));
}

static void
import_not(OnnxNode *n)
{
	set_output(n, 0, e_unary(n, OP_not, want_bool(n, 0)));
}

static void
import_where(OnnxNode *n)
{
	Value *cond = want_bool(n, 0);

	set_output(n, 0, e_select(n, cond, want_input(n, 1), want_input(n, 2)));
}

static void
import_is_nan(OnnxNode *n)
{
	set_output(n, 0, e_unary(n, OP_is_nan, want_float_input(n, 0)));
}

static void
import_is_inf(OnnxNode *n)
{
	Value *x = want_float_input(n, 0);
	bool up = want_int(n, "detect_positive", 1), down = want_int(n, "detect_negative", 1);

	if (up && down)
		x = e_unary(n, OP_abs, x);
	if (!up && !down)
		set_output(n, 0, x ? e_splat(n, BOOL, shape_of(x), 0) : NULL);
	else
		set_output(n, 0, e_with(n, OP_eq, x, up ? HUGE_VAL : -HUGE_VAL));
}

#define COMPARE(name, ir_op, since)                                       \
	{                                                                 \
		name, since, 0, import_compare, {.op = ir_op}, .facts = { \
			.no_gradient = true,                              \
			.padded = PADDED_ELEMENTWISE,                     \
			.steering = INPUTS(0, 1)                          \
		}                                                         \
	}
#define LOGIC(name, ir_op)                                          \
	{                                                           \
		name, 6, 0, import_logic, {.op = ir_op}, .facts = { \
			.no_gradient = true,                        \
			.padded = PADDED_ELEMENTWISE                \
		}                                                   \
	}

/* clang-format off */
const ImportRow import_logic_rows[] = {
	COMPARE("Equal", OP_eq, 6),
	COMPARE("Less", OP_lt, 6),
	COMPARE("Greater", OP_gt, 6),
	COMPARE("LessOrEqual", OP_le, 12),
	COMPARE("GreaterOrEqual", OP_ge, 12),
	LOGIC("And", OP_and),
	LOGIC("Or", OP_or),
	LOGIC("Xor", OP_xor),
	{"BitwiseAnd", 18, 0, import_bitwise, {.op = OP_and},
	 .facts = {.no_gradient = true, .padded = PADDED_ELEMENTWISE}},
	{"BitwiseOr", 18, 0, import_bitwise, {.op = OP_or},
	 .facts = {.no_gradient = true, .padded = PADDED_ELEMENTWISE}},
	{"BitwiseXor", 18, 0, import_bitwise, {.op = OP_xor},
	 .facts = {.no_gradient = true, .padded = PADDED_ELEMENTWISE}},
	{"BitwiseNot", 18, 0, import_bitwise_not,
	 .facts = {.no_gradient = true, .padded = PADDED_ELEMENTWISE}},
	{"BitShift", 11, 0, import_bit_shift,
	 .facts = {.no_gradient = true, .padded = PADDED_ELEMENTWISE}},
	{"Not", 1, 0, import_not, .facts = {.no_gradient = true, .padded = PADDED_ELEMENTWISE}},
	{"Where", 9, 0, import_where,
	 .facts = {.padded = PADDED_ELEMENTWISE, .typed_by = 1, .filling = INPUTS(1, 2),
	           .joining = INPUTS(1, 2)}},
	{"IsNaN", 9, 0, import_is_nan,
	 .facts = {.no_gradient = true, .padded = PADDED_ELEMENTWISE, .steering = INPUT(0)}},
	{"IsInf", 10, 0, import_is_inf,
	 .facts = {.no_gradient = true, .padded = PADDED_ELEMENTWISE, .steering = INPUT(0)}},
	{0},
};
/* clang-format on */

/* Comparisons, logic on booleans and selection. */
#include "frontend/onnx/importer.h"

#include <math.h>

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

#define COMPARE(name, ir_op, since)                                 \
	{                                                           \
		name, since, 0, import_compare, {.op = ir_op}, NULL \
	}
#define LOGIC(name, ir_op)                                    \
	{                                                     \
		name, 6, 0, import_logic, {.op = ir_op}, NULL \
	}

const ImportRow import_logic_rows[] = {
	COMPARE("Equal", OP_eq, 6),
	COMPARE("Less", OP_lt, 6),
	COMPARE("Greater", OP_gt, 6),
	COMPARE("LessOrEqual", OP_le, 12),
	COMPARE("GreaterOrEqual", OP_ge, 12),
	LOGIC("And", OP_and),
	LOGIC("Or", OP_or),
	LOGIC("Xor", OP_xor),
	{"Not", 1, 0, import_not, {0}, NULL},
	{"Where", 9, 0, import_where, {0}, NULL},
	{"IsNaN", 9, 0, import_is_nan, {0}, NULL},
	{"IsInf", 10, 0, import_is_inf, {0}, NULL},
	{0},
};

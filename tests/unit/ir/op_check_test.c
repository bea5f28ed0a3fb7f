/* An op row with a missing entry is reported, with row and column, before any code reads it. */
#include "ir/ir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void
assert_said(const OpRow *row, const char *want)
{
	char *said = NULL;
	size_t n;
	FILE *stream = open_memstream(&said, &n);
	Diag *diag = diag_new("t", stream);

	assert_false(op_row_check(row, diag));
	diag_free(diag);
	fclose(stream);
	if (!strstr(said, want))
		fail_msg("want %s\nsaid %s", want, said);
	free(said);
}

static void
test_table(void **state)
{
	Diag *diag = diag_new("t", stderr);

	(void)state;
	assert_true(op_table_check(diag));
	diag_free(diag);
}

#define HOLE(op, column, text)                                     \
	{                                                          \
		OpRow row = *op_table[OP_##op];                    \
		memset(&row.column, 0, sizeof(row.column));        \
		assert_said(&row, "op \"" #op "\": column " text); \
	}

static void
test_holes(void **state)
{
	(void)state;
	HOLE(exp, doc, "doc is missing")
	HOLE(exp, infer, "infer is missing")
	HOLE(exp, eval, "eval is missing")
	HOLE(exp, grad, "grad is missing")
	HOLE(exp, scalar, "scalar is missing")
	HOLE(exp, samples, "samples is missing")
	HOLE(exp, results, "results is missing")
	HOLE(exp, flops, "flops is missing")
	HOLE(exp, precision, "precision is missing")
	HOLE(exp, partition.factors, "partition.factors is missing")
	HOLE(exp, partition.doc, "partition.doc is missing")
	HOLE(transpose, map, "map is missing")
	HOLE(transpose, attr_size, "attr_size is missing")
	HOLE(transpose, fields, "fields is missing")
	HOLE(gather, element, "element is missing")
	HOLE(concat, parts, "parts is missing")
	HOLE(dot, channel, "channel is missing")
	HOLE(dot, sums, "sums is missing")
	HOLE(dot, quantizes, "quantizes is missing")
}

static void
test_wrong_facts(void **state)
{
	OpRow row = *op_table[OP_exp];

	(void)state;
	row.adapts = OPERAND(1);
	assert_said(&row, "op \"exp\": column adapts names an operand beyond the 1 of the op");
	row.precision = N_PRECISIONS;
	assert_said(&row, "column precision is 5, no class");
	row.commutative = true;
	assert_said(&row, "column commutative is for two operands, it has 1");
	row.map = op_table[OP_transpose]->map;
	assert_said(&row, "column map is not read for the class in fuse");
}

static void
infer_nothing(Infer *in)
{
	(void)in;
}

/* Inference that forgets to set a result is reported with the row's name, and does not become a null pointer later. */
static void
test_no_type(void **state)
{
	Module *m = module_new("m");
	Type t = type_scalar(m, F32), result = NULL;
	OpRow row = *op_table[OP_exp];
	int n;

	(void)state;
	row.infer = infer_nothing;
	const char *fault = row_infer(m, m->arena, &row, NULL, 1, &t, &n, &result, 1);
	assert_string_equal(fault, "op \"exp\": column infer leaves result 0 without a type");
	module_free(m);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_table),
		cmocka_unit_test(test_holes),
		cmocka_unit_test(test_wrong_facts),
		cmocka_unit_test(test_no_type),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Which axis counts rows: batch_axes over functions of 4 rows, of which only %x has some. */
#include "tests/unit/sample_case.h"

static const struct {
	const char *body, *type;
	int axis; /* of %r; -1: none */
} cases[] = {
	{"%r = dot %x, %w {x_contract = [1], y_contract = [0]}", "f32[4,4]", 0},
	{"%r = dot %w, %x {x_contract = [0], y_contract = [1]}", "f32[4,4]", 1},
	{"%r = transpose %x {order = [1,0]}", "f32[4,4]", 1},
	{"%r = reshape %x {shape = [2,2,4]}", "f32[2,2,4]", -1},
	{"%r = reshape %x {shape = [16]}", "f32[16]", 0},
	{"%r = add %x, %w", "f32[4,4]", 0},
	{"%r = neg %w", "f32[4,4]", -1},
	{"%r = reduce %x {kind = sum, axes = [1]}", "f32[4]", 0},
	{"%r = reduce %x {kind = sum, axes = [0]}", "f32[4]", -1},
	/* every result counts rows along both axes, or sums over them */
	{"%r = dot %x, %x {x_contract = [1], y_contract = [1]}", "f32[4,4]", -1},
	{"%r = dot %x, %x {x_contract = [0], y_contract = [0]}", "f32[4,4]", -1},
	{"%r = cumulate %x {kind = sum, axis = 0}", "f32[4,4]", -1},
	{"%r = cumulate %x {kind = sum, axis = 1}", "f32[4,4]", 0},
};

static void
test_axes(void **state)
{
	(void)state;
	for (int i = 0; i < COUNT(cases); i++) {
		Arena *arena = arena_new();
		Diag *diag = diag_new("test", stderr);
		Module *m = module_parse(
			arena_printf(
				arena,
				"func @f(%%x: f32[4,4] is input 0 rows, %%w: f32[4,4]) -> %s {\n  %s : %s\n"
				"  return %%r\n}\n",
				cases[i].type, cases[i].body, cases[i].type),
			"batch", NULL, diag);
		assert_non_null(m);
		const Function *f = module_function(m, "f");
		int64_t rows;
		int axis = batch_axes(arena, f, &rows)[node_result(f->first, 0)->id];
		assert_int_equal(rows, 4);
		if (axis != cases[i].axis)
			fail_msg("%s: axis %d, not %d", cases[i].body, axis, cases[i].axis);
		module_free(m);
		diag_free(diag);
		arena_free(arena);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_axes)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

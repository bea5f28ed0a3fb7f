/* Verifier faults that text cannot express: what a buggy pass would leave behind. */
#include "ir/ir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Two functions of one parameter, exp and neg of it, built without text. Messages begin with the module's name. */
typedef struct {
	Module *m;
	Function *f, *other;
	Node *exp, *neg;
} Case;

static Case
case_open(void)
{
	Case c = {.m = module_new("model.onnx")};
	int64_t four = 4;
	Type t = type_new(c.m, F32, 1, &four);

	c.f = function_new(c.m, "f");
	c.other = function_new(c.m, "other");
	Builder b = {.m = c.m, .f = c.other};
	Value *y = function_param(c.other, t, "y");
	b_return(&b, 1, &y);
	b = (Builder){.m = c.m, .f = c.f, .loc = loc_name(c.m, "/fc/Exp")};
	Value *x = function_param(c.f, t, "x");
	c.exp = b_unary(&b, OP_exp, x)->node;
	c.neg = b_unary(&b, OP_neg, node_result(c.exp, 0))->node;
	b_return(&b, 1, (Value *[]){node_result(c.neg, 0)});
	return c;
}

/* The verifier's message must begin with `want`; empty: no fault. Frees the module. */
static void
assert_fault(Case *c, const char *want)
{
	char *said = NULL;
	size_t n;
	FILE *stream = open_memstream(&said, &n);
	Diag *diag = diag_new("t", stream);

	assert_true(module_verify(c->m, diag) == !*want);
	diag_free(diag);
	fclose(stream);
	if (strncmp(said, want, strlen(want)) != 0 || !*want != !*said)
		fail_msg("want %s\nsaid %s", want, said);
	free(said);
	module_free(c->m);
}

static void
test_sound(void **state)
{
	Case c = case_open();

	(void)state;
	assert_fault(&c, "");
}

static void
test_order(void **state)
{
	Case c = case_open();

	(void)state;
	node_move(c.neg, c.exp);
	assert_fault(&c, "t: error: model.onnx: @f: operand 0 is used before it is defined: "
	                 "%0 = neg %1 : f32[4] loc \"/fc/Exp\"\n");
}

static void
test_other_function(void **state)
{
	Case c = case_open();

	(void)state;
	node_set_operand(c.neg, 0, c.other->params.at[0]);
	assert_fault(&c, "t: error: model.onnx: @f: operand 0 belongs to another function: "
	                 "%1 = neg %y : f32[4] loc \"/fc/Exp\"\n");
}

static void
test_use_list(void **state)
{
	Case c = case_open();

	(void)state;
	c.neg->operands[0].user = c.neg->prev;
	assert_fault(&c, "t: error: model.onnx: @f: the use list of operand 0 is wrong: "
	                 "%1 = neg %0 : f32[4] loc \"/fc/Exp\"\n");
}

static void
test_no_return(void **state)
{
	Case c = case_open();

	(void)state;
	node_erase(c.f->last);
	assert_fault(&c, "t: error: model.onnx: @f: no return at the end: "
	                 "%1 = neg %0 : f32[4] loc \"/fc/Exp\"\n");
}

static void
test_no_nodes(void **state)
{
	Case c = case_open();

	(void)state;
	node_erase(c.other->last);
	assert_fault(&c, "t: error: model.onnx: @other: no return at the end\n");
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sound),          cmocka_unit_test(test_order),
		cmocka_unit_test(test_other_function), cmocka_unit_test(test_use_list),
		cmocka_unit_test(test_no_return),      cmocka_unit_test(test_no_nodes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

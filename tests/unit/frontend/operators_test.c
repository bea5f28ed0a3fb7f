/* Facts of ONNX operators in the rows of importers: each operator has them once, and they name inputs and attributes that the
 * operator's schema has. */
#include "frontend/file/reading.h"
#include "frontend/import/import.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define IMPORTER(family) extern const ImportRow import_##family##_rows[];
#include "frontend/import/importer_list.def"
#undef IMPORTER

static const ImportRow *const families[] = {
#define IMPORTER(family) import_##family##_rows,
#include "frontend/import/importer_list.def"
#undef IMPORTER
};

static const char *
domain_of_row(const ImportRow *row)
{
	return row->domain ? row->domain : "";
}

/* Calls `check` for each row; `first`: it is the first row of its operator. */
static int
for_each_row(void (*check)(const ImportRow *row, bool first))
{
	Arena *arena = arena_new();
	StrMap *seen = strmap_new(arena);
	int n = 0;

	for (int i = 0; i < COUNT(families); i++)
		for (const ImportRow *row = families[i]; row->name; row++, n++) {
			const char *key = arena_printf(arena, "%s %s", domain_of_row(row),
			                               row->name);
			check(row, !strmap_get(seen, key));
			strmap_put(seen, key, arena);
		}
	arena_free(arena);
	return n;
}

/* ---- facts stand once */
static void
check_once(const ImportRow *row, bool first)
{
	static const OperatorFacts nothing;

	if (!first && memcmp(&row->facts, &nothing, sizeof(nothing)) != 0)
		fail_msg("%s from opset %d: facts belong into the operator's first row", row->name,
		         row->from);
}

static void
test_once(void **state)
{
	(void)state;
	assert_true(for_each_row(check_once) > 250);
}

/* ---- facts fit the schemas */
typedef struct {
	int inputs; /* the most inputs in any opset */
	const SchemaRow *schemas[NEWEST_OPSET + 1];
} Known;

static Known
known_of(const ImportRow *row)
{
	Known k = {0};

	for (int opset = 1; opset <= NEWEST_OPSET; opset++) {
		k.schemas[opset] = schema_of(row->domain, row->name, opset);
		if (k.schemas[opset] && k.schemas[opset]->max_in > k.inputs)
			k.inputs = k.schemas[opset]->max_in;
	}
	return k;
}

static bool
knows_attribute(const Known *k, const char *name)
{
	for (int opset = 1; opset <= NEWEST_OPSET; opset++)
		if (k->schemas[opset] && schema_attribute(k->schemas[opset], name))
			return true;
	return false;
}

static void
check_input(const ImportRow *row, const Known *k, int input, const char *fact)
{
	if (input >= k->inputs)
		fail_msg("%s: fact %s names input %d of %d", row->name, fact, input, k->inputs);
}

static void
check_set(const ImportRow *row, const Known *k, unsigned set, const char *fact)
{
	for (int i = 0; i < 32; i++)
		if (set >> i & 1)
			check_input(row, k, i, fact);
}

static void
check_products(const ImportRow *row, const Known *k)
{
	const OperatorFacts *f = &row->facts;

	for (int i = 0; i < MAX_PRODUCTS; i++) {
		const Product *p = &f->products[i];
		if (!p->result)
			continue;
		assert_true(i == 0 ||
		            (f->products[0].result && f->products[0].weight != p->weight));
		assert_true(p->weight == 0 || p->weight == 1);
		assert_true(p->outputs != p->inputs);
		assert_true(f->weights & INPUT(p->weight));
		if (p->swapped_by && !knows_attribute(k, p->swapped_by))
			fail_msg("%s has no attribute %s", row->name, p->swapped_by);
	}
	assert_true(!f->bias || f->products[0].result);
	assert_true(!f->bias || f->weights & INPUT(f->bias));
}

static void
check_fits(const ImportRow *row, bool first)
{
	const OperatorFacts *f = &row->facts;
	const Known k = known_of(row);

	if (!first ||
	    (row->domain && k.inputs == 0)) /* few operators of other domains have schemas */
		return;
#define CHECK(set) check_set(row, &k, f->set, #set)
	CHECK(weights), CHECK(steering), CHECK(filling), CHECK(factors), CHECK(terms);
	CHECK(joining), CHECK(layer_inputs), CHECK(channels), CHECK(states), CHECK(statistics);
	for (int i = 0; i < MAX_CODED && f->codes[i].along; i++) {
		check_input(row, &k, f->codes[i].codes, "codes");
		check_input(row, &k, f->codes[i].scale, "scale");
		check_input(row, &k, f->codes[i].zero, "zero");
	}
	if (f->bias)
		check_input(row, &k, f->bias, "bias");
	if (f->typed_by)
		check_input(row, &k, f->typed_by, "typed_by");
	if (f->changed && k.schemas[f->changed]->since != f->changed)
		fail_msg("%s has no new schema in opset %d", row->name, f->changed);
	assert_true(f->neutral == 0 || f->padded == PADDED_REDUCE);
	check_products(row, &k);
}

static void
test_fits(void **state)
{
	(void)state;
	for_each_row(check_fits);
}

/* ---- nodes */
static NodeProto
node_of(const char *domain, const char *op)
{
	return (NodeProto){.domain = (char *)(uintptr_t)domain, .op_type = (char *)(uintptr_t)op};
}

static void
test_nodes(void **state)
{
	NodeProto conv = node_of(NULL, "Conv"), spelled = node_of("ai.onnx", "Conv"),
		  fused = node_of("com.microsoft", "Gelu"),
		  long_domain = node_of("com.microsoft.nchwc", "Gelu"),
		  nameless = node_of("", NULL);

	(void)state;
	assert_true(is_op(&conv, "Conv") && is_op(&spelled, "Conv"));
	assert_false(is_op(&conv, "Con") || is_op(&conv, "com.microsoft.Conv"));
	assert_true(is_op(&fused, "com.microsoft.Gelu"));
	assert_false(is_op(&fused, "Gelu") || is_op(&fused, "com.microsoftXGelu") ||
	             is_op(&fused, "com.microsoft.nchwc.Gelu"));
	assert_false(is_op(&long_domain, "com.microsoft.Gelu") || is_op(&long_domain, "Gelu"));
	assert_false(is_op(&nameless, "Conv") || is_op(NULL, "Conv"));
	assert_true(is_same_op(&conv, &spelled));
	assert_false(is_same_op(&fused, &long_domain) || is_same_op(&conv, &fused));
}

static void
test_lookup(void **state)
{
	static const OperatorFacts nothing;
	Arena *arena = arena_new();
	const Model model = {.operators = importer_facts(arena)};
	char domain[300];
	NodeProto gemm = node_of(NULL, "Gemm"), norm = node_of("", "GroupNormalization"),
		  ours = node_of("", "RotaryEmbedding"),
		  theirs = node_of("com.microsoft", "RotaryEmbedding"),
		  unknown = node_of("com.example", "Gemm"), nameless = node_of("", NULL),
		  far = node_of(domain, "Gemm");
	int outputs, inputs;

	(void)state;
	memset(domain, 'd', sizeof(domain) - 1);
	domain[sizeof(domain) - 1] = 0;
	assert_int_equal(node_bias(&model, &gemm), 2);
	assert_int_equal(operator_facts(&model, &norm)->channels,
	                 INPUTS(1, 2)); /* of several rows */
	assert_int_equal(operator_facts(&model, &ours)->steering, INPUT(1) | INPUT(2));
	assert_int_equal(operator_facts(&model, &theirs)->steering, INPUT(2) | INPUT(3));
	assert_memory_equal(operator_facts(&model, &unknown), &nothing, sizeof(nothing));
	assert_memory_equal(operator_facts(&model, &nameless), &nothing, sizeof(nothing));
	assert_memory_equal(operator_facts(&model, &far), &nothing, sizeof(nothing));
	assert_null(node_product(&model, &gemm, 2));
	product_axes(node_product(&model, &gemm, 1), &gemm, 2, &outputs, &inputs);
	assert_true(outputs == 1 && inputs == 0);
	NodeProto matmul = node_of(NULL, "MatMul");
	product_axes(node_product(&model, &matmul, 0), &matmul, 3, &outputs, &inputs);
	assert_true(outputs == 1 && inputs == 2);
	arena_free(arena);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_once),
		cmocka_unit_test(test_fits),
		cmocka_unit_test(test_nodes),
		cmocka_unit_test(test_lookup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

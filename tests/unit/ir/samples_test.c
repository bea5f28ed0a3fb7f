/* The coverage that a row's samples must have, by its field table: sizes of 0, 1, and an odd size above 1; every word of an
 * enum, both values of a bool, two values of any other attribute. For a row with a gradient, only samples count whose
 * gradient is compared with differences. */
#include "tests/unit/ir/sample_case.h"

enum { MAX_FIELDS = 16 };

typedef struct {
	uint64_t words;    /* FIELD_ENUM: the values seen, as bits */
	bool any, several; /* whether any value, and whether several values were seen */
	int64_t first;     /* first value seen */
} Coverage;
typedef struct {
	bool zero, one, odd; /* sizes seen */
	Coverage fields[MAX_FIELDS];
} RowCoverage;

static void
see(Coverage *c, int64_t value)
{
	c->several |= c->any && value != c->first;
	if (!c->any)
		c->first = value;
	c->any = true;
}

static void
see_field(Coverage *c, const Field *f, const void *at)
{
	const Ints *list = at;
	double number;

	switch (f->kind) {
	case FIELD_INT: see(c, *(const int64_t *)at); break;
	case FIELD_BOOL: see(c, *(const bool *)at); break;
	case FIELD_DTYPE_IF_ANY: see(c, *(const int *)at); break;
	case FIELD_DTYPE: see(c, *(const DType *)at); break;
	case FIELD_ENUM: c->words |= 1ull << *(const int *)at; break;
	case FIELD_TENSOR: see(c, (int64_t)(*(const Tensor *const *)at)->hash); break;
	case FIELD_FLOAT:
		number = *(const double *)at;
		see(c, number == 0 ? 0 : number > 0 ? 1 : -1);
		break;
	case FIELD_INTS: /* lists of one repeated number do not count */
		for (int i = 0; i < list->n; i++)
			see(c, list->at[i]);
		break;
	default: c->several = true; /* names of the module's functions: control_test covers them */
	}
}

static void
see_type(RowCoverage *r, Type t)
{
	for (int i = 0; i < t->rank; i++) {
		r->zero |= t->dims[i] == 0;
		r->one |= t->dims[i] == 1;
		r->odd |= t->dims[i] > 1 && t->dims[i] % 2 == 1;
	}
}

static bool
has_axes(const Node *n)
{
	for (int i = 0; i < n->n_operands; i++)
		if (node_operand(n, i)->type->rank)
			return true;
	return false;
}

/* Records the sizes of operands, and of results if no operand has axes. */
static void
see_case(RowCoverage *r, Case *c)
{
	const Node *n = c->f->first;
	const OpRow *row = op_row(n);

	if (row->grad != grad_zero)
		for (int i = 0; i < c->n_args; i++)
			if (has_kinks(&c->values[i]))
				return;
	for (int i = 0; i < n->n_operands; i++)
		see_type(r, node_operand(n, i)->type);
	for (int i = 0; !has_axes(n) && i < n->n_results; i++)
		see_type(r, node_result(n, i)->type);
	for (int i = 0; row->fields && row->fields[i].name; i++)
		see_field(&r->fields[i], &row->fields[i],
		          (const char *)n->attr + row->fields[i].offset);
}

static int
report(const OpRow *row, const RowCoverage *r)
{
	int faults = 0;

#define LACKS(condition, ...)                        \
	if (condition) {                             \
		print_error("%s lacks ", row->name); \
		print_error(__VA_ARGS__);            \
		print_error("\n");                   \
		faults++;                            \
	}
	LACKS(!r->zero, "a size of 0")
	LACKS(!r->one, "a size of 1")
	LACKS(!r->odd, "an odd size above 1")
	for (int i = 0; row->fields && row->fields[i].name; i++) {
		const Field *f = &row->fields[i];
		LACKS(f->kind != FIELD_ENUM && !r->fields[i].several, "a second value of %s",
		      f->name)
		for (int w = 0; f->kind == FIELD_ENUM && f->names[w]; w++)
			LACKS(!(r->fields[i].words >> w & 1), "%s = %s", f->name, f->names[w])
	}
#undef LACKS
	return faults;
}

static void
test_samples_cover(void **state)
{
	int faults = 0;

	(void)state;
	for (int op = 0; op < N_OPS; op++) {
		const Sample *s = op_table[op]->samples;
		RowCoverage r = {0};
		if (!op_is_selected(op))
			continue;
		assert_non_null(s);
		if (s->attrs && strcmp(s->attrs, "text") == 0)
			continue;
		for (; s->attrs; s++) {
			Case c;
			case_open(&c, (OpKind)op, s);
			see_case(&r, &c);
			case_close(&c);
		}
		faults += report(op_table[op], &r);
	}
	assert_int_equal(faults, 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_samples_cover)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

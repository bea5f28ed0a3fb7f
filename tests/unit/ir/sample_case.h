/* Shared by ops_test and samples_test: a module of one node, built from a sample of the op's row, and values for its
 * operands. */
#ifndef GRADC_TESTS_SAMPLE_CASE_H
#define GRADC_TESTS_SAMPLE_CASE_H

#include "ir/text.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
	char word[16]; /* positive, nonzero, ties, ... or "" */
	int64_t below; /* indices: [0, below) */
} Values;
typedef struct {
	Module *m;
	Function *f;
	Diag *diag;
	Arena *arena;
	Values values[8];
	EvalTensor args[8];
	int n_args;
	const Sample *sample; /* the sample from which the case is built */
	char name[200];
} Case;

/* ---- building a case from a sample */

/* The dtype that replaces the first operand's dtype everywhere, or, for ops without operands, the dtype attribute. N_DTYPES:
 * no replacement. */
static DType case_substitute = N_DTYPES;

static double
next_value(const Values *v, DType d, int64_t i)
{
	double x = drand48() * 2 - 1;

	if (v->below)
		return (double)(lrand48() % v->below);
	if (strcmp(v->word, "runs") == 0)
		return (double)((i % 8 + i / 8 % 3) / 6);
	if (strcmp(v->word, "ascending") == 0) /* partly out of range: -1, -1, 0, 1, 1, 2 ... */
		return (double)(i * 2 / 3 - 1);
	if (d == BOOL)
		return lrand48() % 2;
	if (!dtype_is_float(d))
		return (double)(lrand48() % 9 - 4);
	if (strcmp(v->word, "positive") == 0)
		return 0.2 + fabs(x) * 2;
	if (strcmp(v->word, "nonzero") == 0)
		return x < 0 ? x - 0.3 : x + 0.3;
	if (strcmp(v->word, "ties") == 0)
		return (double)(lrand48() % 3);
	if (strcmp(v->word, "ties_nonzero") == 0)
		return (double)(lrand48() % 3 + 1);
	if (strcmp(v->word, "with_zero") == 0)
		return i == 1 ? 0 : x;
	if (strcmp(v->word, "integers") == 0)
		return (double)(lrand48() % 4);
	if (strcmp(v->word, "large") == 0)
		return x * 1000;
	if (strcmp(v->word, "nans") == 0)
		return i % 3 == 1 ? NAN : x;
	if (strcmp(v->word, "pairs") == 0)
		return (double)(i / 2 * 7 % 5);
	if (strcmp(v->word, "eighths") == 0)
		return (double)(lrand48() % 17 - 8) / 8;
	return x;
}

static void
fill(Case *c, int i, Type t)
{
	EvalTensor x = eval_tensor_new(c->arena, t);

	for (int64_t k = 0; k < t->n; k++) {
		double v = next_value(&c->values[i], t->dtype, k);
		if (dtype_is_float(t->dtype))
			x.f[k] = t->dtype == E8M0 ? fabs(v) : v; /* e8m0 has no sign */
		else
			x.i[k] = (int64_t)v;
	}
	eval_tensor_round(&x);
	c->args[i] = x;
}

static void
read_operands(Case *c, Reader *r, const char *text)
{
	DType first = N_DTYPES;

	r->at = r->line_start = text;
	while (!read_at_line_end(r)) {
		Values *v = &c->values[c->n_args];
		Type t = read_type(r);
		assert_non_null(t);
		first = first == N_DTYPES ? t->dtype : first;
		if (case_substitute != N_DTYPES && t->dtype == first)
			t = type_with_dtype(c->m, t, case_substitute);
		if (read_word(r, "in"))
			assert_true(read_int(r, &v->below));
		const char *word = read_name(r);
		snprintf(v->word, sizeof(v->word), "%s", word ? word : "");
		char name[16];
		snprintf(name, sizeof(name), "a%d", c->n_args);
		function_param(c->f, t, name);
		fill(c, c->n_args++, t);
		read_char(r, ',');
	}
}

static void
substitute_attr(const OpRow *row, void *attr)
{
	for (const Field *f = row->fields; f && f->name; f++)
		if (f->kind == FIELD_DTYPE && case_substitute != N_DTYPES)
			*(DType *)((char *)attr + f->offset) = case_substitute;
}

/* Opens a case; the node is NULL if the row does not accept the replaced dtype. */
static inline void
case_open(Case *c, OpKind op, const Sample *s)
{
	const OpRow *row = op_table[op];
	Value *operands[8], *results[8];

	*c = (Case){.sample = s, .arena = arena_new(), .diag = diag_new("test", stderr)};
	c->m = module_new("sample");
	c->f = function_new(c->m, "main");
	snprintf(c->name, sizeof(c->name), "%s %s %s", row->name, s->attrs, s->operands);
	Reader r = {.file = c->name,
	            .at = s->attrs,
	            .line_start = s->attrs,
	            .line = 1,
	            .diag = c->diag,
	            .m = c->m,
	            .f = c->f};
	void *attr = arena_alloc(c->m->arena, row->attr_size + 1);
	assert_true(read_attrs(&r, row, attr));
	read_operands(c, &r, s->operands);
	if (c->n_args == 0)
		substitute_attr(row, attr);
	Type types[8], inferred[8];
	int n_inferred;
	for (int i = 0; i < c->n_args; i++)
		types[i] = c->f->params.at[i]->type;
	if (case_substitute != N_DTYPES && op_infer(c->m, c->arena, op, attr, c->n_args, types,
	                                            &n_inferred, inferred, COUNT(inferred)))
		return;
	for (int i = 0; i < c->n_args; i++)
		operands[i] = c->f->params.at[i];
	Builder b = {.m = c->m, .f = c->f, .loc = loc_name(c->m, row->name)};
	Node *n = build_node(&b, op, c->n_args, operands, attr);
	for (int i = 0; i < n->n_results; i++)
		results[i] = node_result(n, i);
	b_return(&b, n->n_results, results);
}

static inline void
case_close(Case *c)
{
	module_free(c->m);
	arena_free(c->arena);
	diag_free(c->diag);
}

/* Does the operand have kinks, so that no differences are taken? */
static inline bool
has_kinks(const Values *v)
{
	return strncmp(v->word, "ties", 4) == 0 || strcmp(v->word, "fixed") == 0 ||
	       strcmp(v->word, "nans") == 0;
}

typedef void (*CaseTest)(Case *c);
/* With $OP set, only that op is tried, and checks over all ops together are skipped. */
static inline bool
op_is_selected(int op)
{
	const char *only = getenv("OP");

	return !only || strcmp(only, op_table[op]->name) == 0;
}

static inline void
for_each_case(CaseTest test)
{
	for (int op = 0; op < N_OPS; op++) {
		const Sample *s = op_table[op]->samples;
		if (!op_is_selected(op))
			continue;
		if (!s || !s->attrs)
			fail_msg("op %s has no samples", op_table[op]->name);
		for (; s->attrs; s++) {
			Case c;
			if (strcmp(s->attrs, "text") == 0)
				continue; /* covered by tests/ir/control.gir */
			srand48(op + 1);
			case_open(&c, (OpKind)op, s);
			test(&c);
			case_close(&c);
		}
	}
}

#endif

/* Partition rules, proven for every row, every sample and every factor that 2, 3 or 4 parts divide. The operands are cut as
 * the rule says, each part is evaluated by itself, and the combined results must equal the whole node's result: to the bit,
 * or within a tolerance if floats are added or multiplied in another order. */
#include "tests/unit/ir/sample_case.h"

static const double TOLERANCE = 1e-12; /* for sums and products of a few dozen doubles around 1 */

/* Each of up to four parts is rounded once to the result's type, and so is the whole. */
static double
tolerance(DType d)
{
	double ulp = 1;

	if (d == F64 || !dtype_is_float(d))
		return TOLERANCE;
	while (dtype_round(d, 1 + ulp / 2) == 1 + ulp / 2)
		ulp /= 2;
	return 3 * ulp;
}

/* A node of a case, cut along a factor. */
typedef struct {
	Case *c;
	const Node *node;
	const Factor *factor;
	Cut cut;
	Function *f; /* computes one part */
} Split;

static bool
is_float(Type t)
{
	return dtype_is_float(t->dtype);
}

/* ---- operands of a part */
static int64_t
flat_in_whole(Type whole, const int64_t *at, int axis, int64_t first)
{
	int64_t strides[MAX_RANK], flat = 0;

	type_strides(whole, strides);
	for (int i = 0; i < whole->rank; i++)
		flat += (at[i] + (i == axis ? first : 0)) * strides[i];
	return flat;
}

/* Calls a function for every element of a piece, with its flat index in the piece and in the whole. */
static void
for_each_in_piece(Type piece, Type whole, int axis, int64_t part,
                  void (*visit)(void *ctx, int64_t i, int64_t j), void *ctx)
{
	int64_t at[MAX_RANK] = {0};

	for (int64_t i = 0; i < piece->n; i++) {
		int64_t left = i;
		for (int k = piece->rank - 1; k >= 0; k--) {
			at[k] = left % piece->dims[k];
			left /= piece->dims[k];
		}
		visit(ctx, i, flat_in_whole(whole, at, axis, part * piece->dims[axis]));
	}
}

typedef struct {
	EvalTensor *piece, *whole;
	int64_t plus;
} Move;
static void
take(void *ctx, int64_t i, int64_t j)
{
	Move *m = ctx;

	m->piece->i[i] = m->whole->i[j];
}
static void
put(void *ctx, int64_t i, int64_t j)
{
	Move *m = ctx;

	m->whole->i[j] = m->piece->i[i];
	if (m->plus && is_float(m->whole->type)) /* keeps -0 */
		m->whole->f[j] += (double)m->plus;
	else if (m->plus)
		m->whole->i[j] += m->plus;
}

static EvalTensor
copy_of(Case *c, const EvalTensor *x)
{
	EvalTensor y = eval_tensor_new(c->arena, x->type);

	memcpy(y.at, x->at, (size_t)x->type->n * 8);
	return y;
}

static EvalTensor
fill_with(Case *c, Type t, double value)
{
	EvalTensor x = eval_tensor_new(c->arena, t);

	for (int64_t i = 0; i < t->n; i++) {
		if (is_float(t))
			x.f[i] = value;
		else
			x.i[i] = (int64_t)value;
	}
	return x;
}

static int64_t
first_place(const Split *s, int64_t part)
{
	return part * s->cut.size;
}

static EvalTensor
operand_of_part(const Split *s, int i, int64_t part)
{
	Share share = s->factor->operand[i];
	EvalTensor *whole = &s->c->args[i];

	if (share.kind == SHARE_CUT) {
		EvalTensor x = eval_tensor_new(s->c->arena, s->cut.operand[i]);
		for_each_in_piece(x.type, whole->type, share.axis, part, take,
		                  &(Move){&x, whole, 0});
		return x;
	}
	if (share.kind == SHARE_FIRST && part > 0)
		return fill_with(s->c, whole->type, s->factor->combine == COMBINE_PROD);
	EvalTensor x = copy_of(s->c, whole);
	for (int64_t k = 0; share.kind == SHARE_SHIFTED && k < x.type->n; k++)
		x.i[k] -= first_place(s, part);
	return x;
}

/* ---- combining the parts */
static double
combine_floats(Combine how, double x, double y)
{
	switch (how) {
	case COMBINE_SUM: return x + y;
	case COMBINE_PROD: return x * y;
	case COMBINE_MAX: return isnan(x) || x > y ? x : y;
	default: return isnan(x) || x < y ? x : y;
	}
}

static int64_t
combine_ints(Combine how, int64_t x, int64_t y, bool is_u64)
{
	bool less = is_u64 ? (uint64_t)x < (uint64_t)y : x < y;

	switch (how) {
	case COMBINE_SUM: return (int64_t)((uint64_t)x + (uint64_t)y);
	case COMBINE_PROD: return (int64_t)((uint64_t)x * (uint64_t)y);
	case COMBINE_MAX: return less ? y : x;
	default: return less ? x : y;
	}
}

/* Do both elements have the same bits, or are both NaN? */
static bool
same_element(const EvalTensor *x, const EvalTensor *y, int64_t i)
{
	return x->i[i] == y->i[i] || (is_float(x->type) && isnan(x->f[i]) && isnan(y->f[i]));
}

/* Combines part's result i with the earlier parts. For copied results, gives the number of elements that differ from the
 * first part's. */
static int
combine_result(const Split *s, int i, int64_t part, EvalTensor *own, EvalTensor *all)
{
	Share share = s->factor->result[i];
	Combine how = s->factor->combine;
	int wrong = 0;

	if (share.kind == SHARE_CUT || share.kind == SHARE_SHIFTED) {
		Move move = {own, all, share.kind == SHARE_SHIFTED ? first_place(s, part) : 0};
		for_each_in_piece(own->type, all->type, share.axis, part, put, &move);
		return 0;
	}
	for (int64_t k = 0; k < all->type->n; k++) {
		if (part == 0)
			all->i[k] = own->i[k];
		else if (how == COMBINE_JOIN)
			wrong += !same_element(all, own, k);
		else if (is_float(all->type))
			all->f[k] = combine_floats(how, all->f[k], own->f[k]);
		else
			all->i[k] = combine_ints(how, all->i[k], own->i[k],
			                         all->type->dtype == U64);
	}
	return wrong;
}

/* Builds the function of one part; fails if inference from its operands and attributes gives other types than the cut. */
static void
build_part(Split *s)
{
	Case *c = s->c;
	const Node *n = s->node;
	Value *operands[8], *results[8];
	Type types[8];
	int count;
	const char *fault = op_infer(c->m, c->arena, n->op, s->cut.attr, n->n_operands,
	                             s->cut.operand, &count, types, 8);

	if (fault)
		fail_msg("%s: its part is wrong: %s", c->name, fault);
	for (int i = 0; i < n->n_results; i++)
		if (types[i] != s->cut.result[i])
			fail_msg("%s: a part has another type of result %d than its cut", c->name,
			         i);
	s->f = function_new(c->m, module_fresh_name(c->m, "part"));
	for (int i = 0; i < n->n_operands; i++)
		operands[i] = function_param(s->f, s->cut.operand[i], "x");
	Builder b = {.m = c->m, .f = s->f};
	Node *part = build_node(&b, n->op, n->n_operands, operands, s->cut.attr);
	for (int i = 0; i < n->n_results; i++)
		results[i] = node_result(part, i);
	b_return(&b, n->n_results, results);
}

/* The number of elements in which the combined parts differ from the whole. */
static int
differences(const Split *s, EvalTensor *all)
{
	EvalTensor whole[8];
	Interp in = interp_new(s->c->m, s->c->arena, false);
	bool reorders = s->factor->combine == COMBINE_SUM || s->factor->combine == COMBINE_PROD;
	int wrong = 0;

	interp_run(&in, s->c->f, s->c->args, whole);
	for (int i = 0; i < s->node->n_results; i++)
		for (int64_t k = 0; k < whole[i].type->n; k++) {
			bool near = reorders && is_float(whole[i].type) &&
			            fabs(whole[i].f[k] - all[i].f[k]) <=
			                    tolerance(whole[i].type->dtype) *
			                            fmax(1, fabs(whole[i].f[k]));
			wrong += !near && !same_element(&whole[i], &all[i], k);
		}
	return wrong;
}

static int
compare_parts(Case *c, const Node *n, const Factor *f, int64_t parts)
{
	Split s = {.c = c,
	           .node = n,
	           .factor = f,
	           .cut = node_cut(c->m, c->arena, n, f, f->size / parts)};
	EvalTensor args[8], own[8], all[8];
	int wrong = 0;

	build_part(&s);
	for (int i = 0; i < n->n_results; i++)
		all[i] = eval_tensor_new(c->arena, node_result(n, i)->type);
	for (int64_t part = 0; part < parts; part++) {
		Interp in = interp_new(c->m, c->arena, false);
		for (int i = 0; i < n->n_operands; i++)
			args[i] = operand_of_part(&s, i, part);
		interp_run(&in, s.f, args, own);
		for (int i = 0; i < n->n_results; i++)
			wrong += combine_result(&s, i, part, &own[i], &all[i]);
	}
	return wrong + differences(&s, all);
}

/* ---- the tried factors of a row; they differ in how they combine and in what is cut */
typedef struct {
	char text[80];
	unsigned tried; /* numbers of parts that were tried, as bits */
} Shape;
static Shape shapes[400];
static int n_shapes;

static Shape *
shape_of(const Node *n, const Factor *f)
{
	char text[80];
	int used = snprintf(text, sizeof(text), "%s: %s of", op_row(n)->name,
	                    combine_names[f->combine]);

	for (int i = 0; i < n->n_operands + n->n_results; i++) {
		bool result = i >= n->n_operands;
		Share share = result ? f->result[i - n->n_operands] : f->operand[i];
		static const char *const kinds[] = {"whole", "cut", "shifted", "first", "blocks"};
		Type t = result ? node_result(n, i - n->n_operands)->type
		                : node_operand(n, i)->type;
		int kind = share.kind == SHARE_CUT && t->dims[share.axis] != f->size
		                   ? COUNT(kinds) - 1
		                   : (int)share.kind;
		if (used < (int)sizeof(text) &&
		    (result || i < 4)) /* only the first operands of a variadic op */
			used += snprintf(text + used, sizeof(text) - (size_t)used, "%s%s",
			                 i == n->n_operands ? " -> " : " ", kinds[kind]);
	}
	for (int i = 0; i < n_shapes; i++)
		if (strcmp(shapes[i].text, text) == 0)
			return &shapes[i];
	assert_true(n_shapes < COUNT(shapes));
	strcpy(shapes[n_shapes].text, text);
	return &shapes[n_shapes++];
}

/* A factor must either join results along an axis that they have, or combine whole results. */
static void
check_combination(const Case *c, const Node *n, const Factor *f)
{
	for (int i = 0; i < n->n_results; i++)
		if (f->combine != COMBINE_JOIN && f->result[i].kind != SHARE_WHOLE)
			fail_msg("%s: %s of a result that is cut", c->name,
			         combine_names[f->combine]);
}

static void
check_parts(Case *c)
{
	const Node *n = c->f->first;
	Partition p = node_partition(c->arena, n);

	for (int i = 0; i < p.factors.n; i++) {
		const Factor *f = p.factors.at[i];
		if (f->size <= 1 || node_result(n, 0)->type->n == 0)
			continue;
		Shape *shape = shape_of(n, f);
		check_combination(c, n, f);
		for (int64_t parts = 2; parts <= 4; parts++) {
			if (!factor_divides(f, parts))
				continue;
			int wrong = compare_parts(c, n, f, parts);
			if (wrong)
				fail_msg("%s: %lld parts along factor %d (%s): %d elements differ",
				         c->name, (long long)parts, i, shape->text, wrong);
			shape->tried |= 1u << parts;
		}
	}
}

static void
test_parts(void **state)
{
	int untried = 0;

	(void)state;
	for_each_case(check_parts);
	for (int i = 0; i < n_shapes; i++)
		if (shapes[i].tried != 0x1c) {
			print_error("%s: no sample has a size that 2, 3 and 4 divide\n",
			            shapes[i].text);
			untried++;
		}
	assert_int_equal(untried, 0);
}

/* ---- a wrong rule is detected */
static void
expect_wrong(OpKind op, const char *attrs, const char *operands, int factor,
             void (*spoil)(Factor *f))
{
	Case c;
	Sample s = {attrs, operands};

	srand48(1);
	case_open(&c, op, &s);
	Partition p = node_partition(c.arena, c.f->first);
	Factor *f = p.factors.at[factor];
	assert_int_equal(compare_parts(&c, c.f->first, f, 2), 0);
	spoil(f);
	assert_true(compare_parts(&c, c.f->first, f, 2) > 0);
	case_close(&c);
}

static void
combine_as_maximum(Factor *f)
{
	f->combine = COMBINE_MAX;
}
static void
indices_whole(Factor *f)
{
	f->operand[1].kind = SHARE_WHOLE;
}
static void
data_everywhere(Factor *f)
{
	f->operand[0].kind = SHARE_WHOLE;
}
static void
result_unshifted(Factor *f)
{
	f->result[0].kind = SHARE_CUT;
}
static void
test_wrong_rules(void **state)
{
	(void)state;
	expect_wrong(OP_dot, "{x_contract = [0], y_contract = [0]}", "f64[4], f64[4]", 0,
	             combine_as_maximum);
	expect_wrong(OP_reduce, "{kind = sum, axes = [0]}", "f64[4,3]", 0, combine_as_maximum);
	expect_wrong(OP_gather, "{axis = 0}", "f64[4], s64[8] in 4", 0, indices_whole);
	expect_wrong(OP_scatter, "{kind = add, axis = 0}", "f64[3], s64[4] in 3, f64[4]", 1,
	             data_everywhere);
	expect_wrong(OP_iota, "{dtype = s64, shape = [4]}", "", 0, result_unshifted);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parts),
		cmocka_unit_test(test_wrong_rules),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

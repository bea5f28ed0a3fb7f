/* The op rows' facts about scales and adapters, proven by evaluating the samples.
 *
 * Scales along the channel axis of an operand are factors of the result: op(x, w s) / op(x, w) depends on s alone, not on the
 * numbers in x and w. So scales can be applied after a product in few bits. Scales along the axis `sums` are no such factors.
 * An operand that an adapter may join must be linear: op(x, w + d) = op(x, w) + op(x, d). */
#include "tests/unit/ir/sample_case.h"

static void
fill_random(EvalTensor *x)
{
	for (int64_t i = 0; i < x->type->n; i++)
		x->f[i] = 0.5 + drand48();
}

static EvalTensor
copy_of(Case *c, const EvalTensor *x)
{
	EvalTensor y = eval_tensor_new(c->arena, x->type);

	memcpy(y.at, x->at, (size_t)x->type->n * 8);
	return y;
}

static EvalTensor
result_with(Case *c, int i, EvalTensor operand)
{
	EvalTensor args[8], results[8];
	Interp in = interp_new(c->m, c->arena, false);

	memcpy(args, c->args, sizeof(args));
	args[i] = operand;
	interp_run(&in, c->f, args, results);
	return results[0];
}

static EvalTensor
scaled(Case *c, const EvalTensor *x, int axis, const double *scales)
{
	EvalTensor y = copy_of(c, x);
	int64_t strides[MAX_RANK];

	type_strides(x->type, strides);
	for (int64_t i = 0; i < x->type->n; i++)
		y.f[i] *= scales[axis < 0 ? 0 : i / strides[axis] % x->type->dims[axis]];
	return y;
}

/* The number of elements in the ratio of two results that differ between two draws of the floats. */
static int
dependent(Case *c, int i, int axis, const double *scales)
{
	EvalTensor ratio[2];
	int wrong = 0;

	for (int draw = 0; draw < 2; draw++) {
		for (int k = 0; k < c->n_args; k++)
			if (dtype_is_float(c->args[k].type->dtype))
				fill_random(&c->args[k]);
		EvalTensor plain = result_with(c, i, c->args[i]);
		EvalTensor with = result_with(c, i, scaled(c, &c->args[i], axis, scales));
		ratio[draw] = copy_of(c, &with);
		for (int64_t k = 0; k < with.type->n; k++)
			ratio[draw].f[k] = plain.f[k] == 0 ? 0 : with.f[k] / plain.f[k];
	}
	for (int64_t k = 0; k < ratio[0].type->n; k++)
		wrong += !(fabs(ratio[0].f[k] - ratio[1].f[k]) <= 1e-9);
	return wrong;
}

/* Is the result computed without rounding? Scales and sums of other types are rounded. */
static bool
is_exact(const Case *c)
{
	const Node *n = c->f->first;

	for (int i = 0; i < n->n_operands; i++)
		if (node_operand(n, i)->type->dtype != F64 &&
		    (op_row(n)->quantizes | op_row(n)->adapts) & OPERAND(i))
			return false;
	return node_result(n, 0)->type->dtype == F64;
}

static int n_channels, n_seen_wrong, n_adapted;

static void
check_channel(Case *c)
{
	const Node *n = c->f->first;
	double scales[1000];

	if (!is_exact(c))
		return;
	for (int i = 0; i < COUNT(scales); i++)
		scales[i] = 0.5 + drand48();
	for (int i = 0; i < n->n_operands; i++) {
		if (!(op_row(n)->quantizes & OPERAND(i)))
			continue;
		Type t = node_operand(n, i)->type;
		int channel = op_row(n)->channel(n, i);
		if (channel < -1 || channel >= t->rank)
			fail_msg("%s: column channel says axis %d of operand %d", c->name, channel,
			         i);
		if (dependent(c, i, channel, scales))
			fail_msg("%s: column channel: scales along axis %d of operand %d are no "
			         "factors of the result",
			         c->name, channel, i);
		int sums = op_row(n)->sums(n, i);
		if (sums < -1 || sums >= t->rank || (sums >= 0 && sums == channel))
			fail_msg("%s: column sums says axis %d of operand %d", c->name, sums, i);
		if (sums >= 0 && t->dims[sums] > 1 && t->n > 0 && node_result(n, 0)->type->n > 0 &&
		    !dependent(c, i, sums, scales))
			fail_msg("%s: column sums: nothing is added along axis %d of operand %d",
			         c->name, sums, i);
		n_channels += channel >= 0 && t->dims[channel] > 1;
		for (int axis = 0; axis < t->rank; axis++)
			n_seen_wrong += dependent(c, i, axis, scales) > 0;
	}
}
static void
test_channels(void **state)
{
	(void)state;
	for_each_case(check_channel);
	assert_true(getenv("OP") || (n_channels >= 20 && n_seen_wrong >= 20));
}

static void
check_linear(Case *c)
{
	const Node *n = c->f->first;

	if (!is_exact(c))
		return;
	for (int i = 0; i < n->n_operands; i++) {
		if (!(op_row(n)->adapts & OPERAND(i)))
			continue;
		EvalTensor d = copy_of(c, &c->args[i]), sum = copy_of(c, &c->args[i]);
		fill_random(&d);
		for (int64_t k = 0; k < d.type->n; k++)
			sum.f[k] += d.f[k];
		EvalTensor own = result_with(c, i, c->args[i]), more = result_with(c, i, d);
		EvalTensor both = result_with(c, i, sum);
		for (int64_t k = 0; k < both.type->n; k++)
			if (fabs(both.f[k] - own.f[k] - more.f[k]) > 1e-10)
				fail_msg("%s: column adapts: not linear in operand %d", c->name, i);
		n_adapted++;
	}
}
static void
test_adapted_operands(void **state)
{
	(void)state;
	for_each_case(check_linear);
	assert_true(getenv("OP") || n_adapted >= 30);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_channels),
		cmocka_unit_test(test_adapted_operands),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

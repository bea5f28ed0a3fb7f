/* Cost facts, proven: a row's FLOPs against the count of the loop interpreter for the sample's kernel, and its bytes against
 * the kernel's buffers. Only samples of floats: integer arithmetic on values cannot be told from index arithmetic. */
#include "codegen/codegen.h"
#include "tests/unit/ir/sample_case.h"

/* Kernels that run more or fewer operations than the row says, and why. The ratio of counted operations to the row's lies in
 * [least, most]. Every other row agrees exactly. */
static const struct {
	const char *op;
	double least, most;
	const char *why;
} allowed[] = {
	{"dot", 1, 256,
         "a block of up to 8 rows and 32 columns is computed whole, beyond the edges with zeros"},
	{"conv", 1, 256, "as dot"},
	{"conv_grad_input", 0.5, 256,
         "as dot; with a stride, window places outside the image are left out"},
	{"conv_grad_weight", 1, 256, "as dot"},
	{"pool", 0.5, 1, "the first element of an unrolled window starts the sum"},
	{"pool_gather", 0.5, 1, "as pool"},
	{"pool_grad", 0.5, 1, "window places outside the image are left out"},
	{"cumulate", 1, 3, "blocks of long lines are summed first, and begin with the sums before"},
	{"scatter", 1, 2, "each slice with updates is added to the data"},
	{"scatter_sorted", 1, 2, "as scatter"},
	{"reduce", 1, 1.5,
         "a sum over outer and inner axes adds the sums over inner ones, of two elements or more"},
};

static bool
is_sample_of_floats(const Case *c)
{
	const Node *n = c->f->first;

	for (int i = 0; i < n->n_operands; i++)
		if (dtype_is_float(node_operand(n, i)->type->dtype))
			return true;
	return n->n_operands == 0;
}

/* Random numbers; integers are below 2, to be valid indices. */
static void
fill_buffers(Case *c, const Kernel *k, void **at)
{
	for (int i = 0; i < k->n_inputs + k->n_outputs; i++) {
		Type t = k->buffers.at[i].type;
		at[i] = arena_alloc(c->arena, (size_t)type_bytes(t) + 64);
		for (int64_t e = 0; i < k->n_inputs && e < t->n; e++) {
			if (dtype_is_float(t->dtype))
				dtype_store_float(t->dtype, at[i], e, 0.5 + drand48());
			else
				dtype_store_int(t->dtype, at[i], e, lrand48() % 2);
		}
	}
}

/* The kernel that makes k's last input; NULL: no such kernel. */
static const Kernel *
serving(const Module *m, const Kernel *k)
{
	for (int i = 0; i < m->kernels.n; i++)
		if (m->kernels.at[i]->serves == k)
			return m->kernels.at[i];
	return NULL;
}

static int64_t
count_flops(Case *c)
{
	KernelCounts counts = {0};
	void *buffers[16];

	for (int i = 0; i < c->m->kernels.n; i++) {
		const Kernel *k = c->m->kernels.at[i], *before = serving(c->m, k);
		if (k->serves)
			continue;
		fill_buffers(c, k, buffers);
		if (before) /* the first kernel writes k's last input */
			kernel_interpret_counted(before, buffers, NULL, 0, before->iterations,
			                         &counts);
		kernel_interpret_counted(k, buffers, NULL, 0, k->iterations, &counts);
	}
	return counts.flops;
}

static void
check_flops(const Case *c, const char *op, int64_t said, int64_t counted)
{
	double least = 1, most = 1;

	for (int i = 0; i < COUNT(allowed); i++)
		if (strcmp(allowed[i].op, op) == 0) {
			least = allowed[i].least;
			most = allowed[i].most;
		}
	if ((double)counted < least * (double)said || (double)counted > most * (double)said)
		fail_msg("%s: the row says %lld FLOPs, its kernel runs %lld", c->name,
		         (long long)said, (long long)counted);
}

static void
lower_module(Case *c)
{
	static const PassRow *const rows[] = {&pass_legalize, &pass_fuse, &pass_lower};
	Pipeline p = {0};
	PassManagerOptions o = {0};
	Stage stage = STAGE_TRAIN;

	for (int i = 0; i < COUNT(rows); i++)
		vec_push(c->arena, &p, pass_call(c->arena, rows[i]));
	assert_true(pipeline_run(&p, c->m, &stage, &o, c->diag));
}

/* Products whose blocks are full cost exactly what the row says. */
static void
test_full_blocks(void **state)
{
	static const struct {
		OpKind op;
		Sample sample;
	} full[] = {
		{OP_dot, {"{x_contract = [1], y_contract = [0]}", "f64[64,64], f64[64,64]"}},
		{OP_conv,
	         {"{stride = [1], low = [0], high = [0], dilation = [1], groups = 1}",
	          "f64[1,16,66], f64[64,16,3]"}},
		{OP_conv_grad_input,
	         {"{stride = [1], low = [0], high = [0], dilation = [1], groups = 1, size = [64]}",
	          "f64[1,16,64], f64[16,64,1]"}},
		{OP_conv_grad_weight,
	         {"{stride = [1], low = [0], high = [0], dilation = [1], groups = 1, size = [1]}",
	          "f64[1,64,64], f64[1,64,64]"}},
	};

	(void)state;
	for (int i = 0; i < COUNT(full); i++) {
		Case c;
		case_open(&c, full[i].op, &full[i].sample);
		int64_t said = node_cost(c.f->first).flops;
		lower_module(&c);
		assert_int_equal(count_flops(&c), said);
		case_close(&c);
	}
}

static int n_checked, n_bytes;

static void
check_cost(Case *c)
{
	const Node *n = c->f->first;
	const char *op = op_row(n)->name;
	bool computes = node_result(n, 0)->type->n > 0 && is_sample_of_floats(c);
	Cost cost = node_cost(n);

	if (op_row(n)->fuse == FUSE_NONE)
		return;
	lower_module(c);
	if (computes && c->m->kernels.n) {
		check_flops(c, op, cost.flops, count_flops(c));
		n_checked++;
	}
	if (c->m->kernels.n != 1) /* an alias, or a sum in two kernels */
		return;
	const Kernel *k = c->m->kernels.at[0];
	int64_t bytes = 0;
	for (int i = 0; i < k->n_inputs + k->n_outputs; i++)
		bytes += type_bytes(k->buffers.at[i].type);
	if (bytes != cost.bytes)
		fail_msg("%s: the row says %lld bytes, its kernel has %lld", c->name,
		         (long long)cost.bytes, (long long)bytes);
	n_bytes++;
}

static void
test_cost(void **state)
{
	(void)state;
	for_each_case(check_cost);
	assert_true(getenv("OP") || (n_checked >= 100 && n_bytes >= 100));
}

/* An operand that is read twice counts once in the bytes. */
static void
test_bytes_of_one_operand_twice(void **state)
{
	Module *m = module_new("m");
	Function *f = function_new(m, "f");
	Builder b = {.m = m, .f = f};
	int64_t n = 10;
	Value *x = function_param(f, type_new(m, F32, 1, &n), "x");

	(void)state;
	assert_int_equal(node_cost(b_binary(&b, OP_mul, x, x)->node).bytes, 80);
	module_free(m);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cost),
		cmocka_unit_test(test_full_blocks),
		cmocka_unit_test(test_bytes_of_one_operand_twice),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

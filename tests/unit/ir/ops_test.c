/* Every op row with its samples: text round trip, gradients against central differences in f64, kernels of node and gradient
 * in the loop-IR interpreter against `eval`, and every printer's code against the loop-IR interpreter, bit for bit.
 * samples_test checks what samples must cover. */
#include "codegen/build/build.h"
#include "codegen/codegen.h"
#include "tests/codegen/programs/kernel_library.h"
#include "tests/unit/ir/sample_case.h"

static int
result_count(const Function *f)
{
	return function_return(f)->n_operands;
}

static void
run(const Case *c, const Function *f, const EvalTensor *args, EvalTensor *results)
{
	Interp in = interp_new(c->m, c->arena, false);

	interp_run(&in, f, args, results);
}

/* ---- commutative rows give the same bits in either order, including signs of zeros and infinities */
static EvalTensor
extremes(Case *c, Type t, const double *of, int skip)
{
	EvalTensor x = eval_tensor_new(c->arena, t);

	for (int64_t i = 0; i < t->n; i++)
		if (dtype_is_float(t->dtype))
			x.f[i] = of[i / skip % 7];
		else
			x.i[i] = (int64_t)fmax(-9, fmin(9, of[i / skip % 6])) &
			         (t->dtype == BOOL ? 1 : -1);
	return x;
}

static void
check_commutative(OpKind op, DType d)
{
	static const double of[7] = {0.0, -0.0, 1.5, -3, INFINITY, -INFINITY, NAN};
	Case c = {.m = module_new("commutative"), .arena = arena_new()};
	int64_t n = 49;
	Type t = type_new(c.m, d, 1, &n);
	EvalTensor x[2] = {extremes(&c, t, of, 1), extremes(&c, t, of, 7)}, y[2];
	Function *f = c.f = function_new(c.m, "f");
	Builder b = {.m = c.m, .f = f};
	Value *p[2] = {function_param(f, t, "x"), function_param(f, t, "y")}, *r[2];

	r[0] = build(&b, op, 2, p, NULL);
	r[1] = build(&b, op, 2, (Value *[]){p[1], p[0]}, NULL);
	b_return(&b, 2, r);
	run(&c, f, x, y);
	for (int i = 0; i < n; i++)
		if (y[0].i[i] != y[1].i[i] &&
		    !(dtype_is_float(y[0].type->dtype) && isnan(y[0].f[i])))
			fail_msg("%s %s: element %d depends on the order", op_table[op]->name,
			         dtype_info[d].name, i);
	module_free(c.m);
	arena_free(c.arena);
}

static void
test_commutative(void **state)
{
	static const DType dtypes[] = {F64, S64, U64, BOOL};

	(void)state;
	for (int op = 0; op < N_OPS; op++)
		for (int k = 0; op_table[op]->commutative && k < COUNT(dtypes); k++) {
			Module *m = module_new("types");
			Type t = type_scalar(m, dtypes[k]), result;
			int n;
			if (!op_infer(m, m->arena, (OpKind)op, NULL, 2, (Type[]){t, t}, &n, &result,
			              1))
				check_commutative((OpKind)op, dtypes[k]);
			module_free(m);
		}
}

/* ---- text */
static void
check_round_trip(Case *c)
{
	Text first = {0}, second = {0};

	assert_true(module_verify(c->m, c->diag));
	module_print(&first, c->m, NULL);
	StrMap *none = strmap_new(c->arena);
	Module *again = module_parse(first.at, c->name, none, c->diag);
	assert_non_null(again);
	assert_true(module_verify(again, c->diag));
	module_print(&second, again, NULL);
	assert_string_equal(first.at, second.at);
	module_free(again);
	text_free(&first);
	text_free(&second);
}
static void
test_round_trip(void **state)
{
	(void)state;
	for_each_case(check_round_trip);
}

/* ---- gradients: L = sum of weight * result; its analytic gradient against (L(x+h) - L(x-h)) / 2h */
static double
weighted(const Case *c, const EvalTensor *weights, const EvalTensor *args)
{
	EvalTensor results[8];
	double sum = 0;
	int n = result_count(c->f), k = 0;

	run(c, c->f, args, results);
	for (int i = 0; i < n; i++)
		if (dtype_is_float(results[i].type->dtype)) {
			for (int64_t e = 0; e < results[i].type->n; e++)
				sum += weights[k].f[e] * results[i].f[e];
			k++;
		}
	return sum;
}

/* If operands are multiples of 1/8, the step is 1/8, too: linear ops are then exact through f32. */
static void
compare_operand(Case *c, int i, const EvalTensor *weights, const EvalTensor *gradient)
{
	EvalTensor *x = &c->args[i];
	bool exact = strcmp(c->values[i].word, "eighths") == 0;

	for (int64_t k = 0; k < x->type->n; k++) {
		double old = x->f[k], h = exact ? 0.125 : 6e-6 * fmax(1, fabs(old));
		x->f[k] = old + h;
		double up = weighted(c, weights, c->args);
		x->f[k] = old - h;
		double down = weighted(c, weights, c->args);
		x->f[k] = old;
		double numeric = (up - down) / (2 * h), own = gradient->f[k];
		if (!(fabs(numeric - own) <= 1e-7 + 1e-6 * fabs(own))) /* true for NaN, too */
			fail_msg("%s: operand %d, element %lld: gradient %.12g, difference %.12g",
			         c->name, i, (long long)k, own, numeric);
	}
}

static void
assert_zeros(const Case *c, int i, const EvalTensor *gradient)
{
	for (int64_t k = 0; k < gradient->type->n; k++)
		if (gradient->f[k] != 0)
			fail_msg("%s: operand %d, element %lld: gradient %g of a row that has none",
			         c->name, i, (long long)k, gradient->f[k]);
}

/* Random weights, one for every element of a float result. */
static int
make_weights(Case *c, EvalTensor *weights)
{
	int n = 0;

	for (int i = 0; i < result_count(c->f); i++) {
		Type t = function_result(c->f, i)->type;
		if (!dtype_is_float(t->dtype))
			continue;
		weights[n] = eval_tensor_new(c->arena, t);
		for (int64_t e = 0; e < t->n; e++)
			weights[n].f[e] = drand48() * 2 - 1;
		eval_tensor_round(&weights[n++]);
	}
	return n;
}

/* The gradient function, its weights, and as its arguments the operands and the weights. NULL: the op has no gradient, and
 * says so instead of giving zeros. */
static Function *
gradient_of(Case *c, EvalTensor *weights, EvalTensor *args)
{
	const char *fault = NULL;
	int n = make_weights(c, weights);
	Function *d = function_gradient(c->f, &fault);

	if (!d)
		assert_non_null(fault);
	memcpy(args, c->args, sizeof(EvalTensor) * (size_t)c->n_args);
	memcpy(args + c->n_args, weights, sizeof(EvalTensor) * (size_t)n);
	return d;
}

static void
check_gradient(Case *c)
{
	EvalTensor args[16], weights[8], gradients[8];
	Function *d = gradient_of(c, weights, args);
	bool nans = false;
	int k = 0;

	if (!d)
		return;
	for (int i = 0; i < c->n_args; i++)
		nans |= strcmp(c->values[i].word, "nans") == 0;
	if (nans)
		return; /* differences are not taken for any operand */
	assert_true(module_verify(c->m, c->diag));
	run(c, d, args, gradients);
	for (int i = 0; i < c->n_args; i++) {
		if (!dtype_is_float(c->args[i].type->dtype))
			continue;
		if (op_row(c->f->first)->grad == grad_zero)
			assert_zeros(c, i, &gradients[k]);
		else if (!has_kinks(&c->values[i]))
			compare_operand(c, i, weights, &gradients[k]);
		k++;
	}
}
static void
test_gradients(void **state)
{
	(void)state;
	for_each_case(check_gradient);
}

/* ---- kernels */
static void
compare_results(const Case *c, const EvalTensor *want, const EvalTensor *got, int n)
{
	for (int i = 0; i < n; i++)
		for (int64_t k = 0; k < want[i].type->n; k++) {
			bool floats = dtype_is_float(want[i].type->dtype);
			double a = floats ? want[i].f[k] : (double)want[i].i[k];
			double b = floats ? got[i].f[k] : (double)got[i].i[k];
			bool same = (isnan(a) && isnan(b)) || a == b ||
			            fabs(a - b) <= 1e-12 * fmax(1, fabs(a));
			if (!same)
				fail_msg("%s: result %d, element %lld: eval %.17g, kernel %.17g",
				         c->name, i, (long long)k, a, b);
		}
}

static const char *target_name = "cpu-512";

static bool
lower_module(Case *c)
{
	Pipeline p = {0};
	PassManagerOptions o = {.verify_each = true};
	Stage stage = STAGE_TRAIN;
	static const PassRow *const rows[] = {&pass_legalize, &pass_fuse, &pass_lower};

	for (int i = 0; i < COUNT(rows); i++)
		vec_push(c->arena, &p, pass_call(c->arena, rows[i]));
	for (int i = 0; i < p.n; i++)
		((TargetOptions *)p.at[i].options)->target = target_name;
	return pipeline_run(&p, c->m, &stage, &o, c->diag);
}

/* The values that a row's columns build must have the types that its infer says; otherwise the verifier would blame the
 * kernel. */
static void
check_types(Case *c)
{
	static const char *const columns[] = {
		[FUSE_ELEMENTWISE] = "scalar", [FUSE_VIEW] = "map",   [FUSE_INDEX] = "element",
		[FUSE_REDUCE] = "fuse",        [FUSE_ROOT] = "parts", [FUSE_OPAQUE] = "kernel",
		[FUSE_NONE] = "eval"};
	const OpRow *row = op_row(c->f->first);

	if (!lower_module(c))
		fail_msg("op \"%s\": column infer gives another type than column %s: %s", row->name,
		         columns[row->fuse], c->name);
}
static void
test_types(void **state)
{
	(void)state;
	for_each_case(check_types);
}

/* Kernels of the node and of its gradient in the loop-IR interpreter, against eval. */
static void
check_kernel(Case *c)
{
	EvalTensor args[16], weights[8], want[8], got[8], want_d[8], got_d[8];
	Function *d = gradient_of(c, weights, args);

	run(c, c->f, c->args, want);
	if (d)
		run(c, d, args, want_d);
	assert_true(lower_module(c));
	Interp in = interp_new(c->m, c->arena, false);
	for (int i = 0; i < c->m->states.n; i++)
		in.states[i] = eval_tensor_from(c->arena, c->m->states.at[i]->type,
		                                c->m->states.at[i]->data->data);
	interp_run(&in, c->f, c->args, got);
	compare_results(c, want, got, result_count(c->f));
	if (d) {
		interp_run(&in, d, args, got_d);
		compare_results(c, want_d, got_d, result_count(d));
	}
}
static void
test_kernels(void **state)
{
	(void)state;
	for (int i = 0; target_table[i]; i++) {
		target_name = target_table[i]->name;
		for_each_case(check_kernel);
	}
	target_name = target_table[0]->name;
}

/* ---- ops_test TARGET FILE: writes all kernels of the samples and their gradients for other programs to run */
static Text written;
static int n_written;

static void
write_kernels(Case *c)
{
	EvalTensor args[16], weights[8];

	gradient_of(c, weights, args);
	assert_true(lower_module(c));
	for (int i = 0; i < c->m->kernels.n; i++)
		c->m->kernels.at[i]->name = arena_printf(c->arena, "k%d", n_written++);
	for (int i = 0; i < c->m->kernels.n; i++)
		kernel_print(&written, c->m->kernels.at[i], &(PrintOptions){0});
}

static void
write_samples(void)
{
	text_add(&written, "module @samples {\n");
	for_each_case(write_kernels);
	text_add(&written, "}\n");
}

static int
write_all(const char *target, const char *path)
{
	target_name = target;
	write_samples();
	Status status = file_write(path, written.at, (int64_t)written.n);
	text_free(&written);
	return status != NULL;
}

/* ---- the same with a bias along an axis of the result, if the row says that the kernel may add it */
static int n_biases;

static bool
add_bias(Case *c, int axis)
{
	Node *n = c->f->first, *ret = function_return(c->f);
	Value *z = node_result(n, 0);
	Type t = type_new(c->m, z->type->dtype, 1, &z->type->dims[axis]);
	Value *vector = function_param(c->f, t, "bias");
	Builder b = {.m = c->m, .f = c->f, .before = ret, .loc = n->loc};
	Value *sum = b_binary(
		&b, OP_add, z,
		b_broadcast(&b, vector, ints_of_type(z->type), (Ints){.n = 1, .at = {axis}}));

	node_set_operand(ret, 0, sum);
	fill(c, c->n_args++, t);
	return op_row(n)->bias(n, sum->node) == vector;
}

static int
count_launches(const Function *f)
{
	int launches = 0;

	for_each_node(f, n)
		launches += n->op == OP_launch;
	return launches;
}

static void
check_bias(Case *c)
{
	const Node *n = c->f->first;
	Type z = node_result(n, 0)->type;

	for (int axis = 0; op_row(n)->bias && z->n && axis < z->rank; axis++) {
		Case again;
		case_open(&again, n->op, c->sample);
		bool taken = add_bias(&again, axis);
		check_kernel(&again);
		if (taken)
			assert_int_equal(count_launches(again.f), 1);
		n_biases += taken;
		case_close(&again);
	}
}
static void
test_biases(void **state)
{
	(void)state;
	for_each_case(check_bias);
	assert_true(getenv("OP") || n_biases >= 10);
}

/* ---- generated C: one shared object per case, every kernel on random buffers */
static void
fill_buffer(Case *c, const Kernel *k, int i, const Values *v, void *at)
{
	Type t = k->buffers.at[i].type;

	for (int64_t e = 0; e < t->n; e++) {
		double x = next_value(v, t->dtype, e);
		if (dtype_is_float(t->dtype))
			dtype_store_float(t->dtype, at, e, x);
		else
			dtype_store_int(t->dtype, at, e, (int64_t)x);
	}
	(void)c;
}

/* Every element has the same bits, or both are NaN: the machine and C decide which NaN an operation gives. */
static bool
same_buffer(Type t, const void *a, const void *b)
{
	bool floats = dtype_is_float(t->dtype);

	for (int64_t e = 0; e < t->n; e++) {
		double x = dtype_load_float(t->dtype, a, e), y = dtype_load_float(t->dtype, b, e);
		if (floats ? memcmp(&x, &y, sizeof(x)) != 0 && !(isnan(x) && isnan(y))
		           : dtype_load_int(t->dtype, a, e) != dtype_load_int(t->dtype, b, e))
			return false;
	}
	return true;
}

static void
compare_kernel(Case *c, const Kernel *k, KernelFn code, const char *printer)
{
	void *a[16], *b[16];
	int n = k->n_inputs + k->n_outputs;
	Values index = {.below = 2};

	for (int i = 0; i < n; i++) {
		size_t bytes = (size_t)type_bytes(k->buffers.at[i].type);
		a[i] = arena_alloc(c->arena, bytes + 64);
		b[i] = arena_alloc(c->arena, bytes + 64);
		memset(a[i], 0x5a, bytes); /* elements that no kernel writes would differ */
		memset(b[i], 0xa5, bytes);
		if (i < k->n_inputs) {
			bool floats = dtype_is_float(k->buffers.at[i].type->dtype);
			fill_buffer(c, k, i, floats ? &c->values[0] : &index, a[i]);
			memcpy(b[i], a[i], bytes);
		}
	}
	kernel_interpret(k, a, NULL, 0, k->iterations);
	code(b, NULL, 0, k->iterations);
	for (int i = k->n_inputs; i < n; i++)
		if (!same_buffer(k->buffers.at[i].type, a[i], b[i]))
			fail_msg(
				"%s: kernel %s: by %s it differs from the interpreter in output %d",
				c->name, k->name, printer, i - k->n_inputs);
}

/* The code of all samples at once, because starting a compiler for each sample takes minutes. */
static const CodeImage *images[8];
static int n_compared;

static void
check_printers(Case *c)
{
	EvalTensor args[16], weights[8];

	gradient_of(c, weights, args);
	assert_true(lower_module(c));
	for (int i = 0; i < c->m->kernels.n; i++, n_compared++)
		for (int p = 0; kernel_printers[p]; p++)
			compare_kernel(c, c->m->kernels.at[i],
			               image_kernels(images[p])[n_compared].run,
			               kernel_printers[p]->name);
}

static void
test_printers(void **state)
{
	(void)state;
	Arena *arena = arena_new();
	CpuTarget native = {"native", cpu_features(arena, "native")};
	Diag *diag = diag_new("ops_test", stderr);

	write_samples();
	Module *all = module_parse(written.at, "samples", NULL, diag);
	assert_non_null(all);
	assert_int_equal(all->kernels.n, n_written);
	for (int p = 0; kernel_printers[p]; p++) {
		assert_true(p < COUNT(images));
		images[p] = kernel_library(arena, all, kernel_printers[p], &native, 1);
		assert_non_null(images[p]);
	}
	for_each_case(check_printers);
	assert_int_equal(n_compared, n_written);
	text_free(&written);
	module_free(all);
	diag_free(diag);
	arena_free(arena);
}

int
main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_commutative), cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_types),       cmocka_unit_test(test_gradients),
		cmocka_unit_test(test_kernels),     cmocka_unit_test(test_biases),
		cmocka_unit_test(test_printers),
	};

	if (argc == 3)
		return write_all(argv[1], argv[2]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

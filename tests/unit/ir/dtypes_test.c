/* Every row's samples with operands of every dtype that the row accepts: kernels in the loop-IR interpreter against `eval`,
 * and the C printer's code against the loop-IR interpreter. */
#include "codegen/build/build.h"
#include "codegen/codegen.h"
#include "tests/codegen/programs/kernel_library.h"
#include "tests/unit/ir/sample_case.h"

/* ---- a sample in another dtype */

/* Replaces the first operand's dtype, or, in samples without operands, an attribute. */
static bool
case_in(Case *c, OpKind op, const Sample *s, DType d)
{
	case_substitute = d;
	case_open(c, op, s);
	case_substitute = N_DTYPES;
	return c->f->last != NULL;
}

static bool
lower_module(Case *c)
{
	Pipeline p = {0};
	PassManagerOptions o = {.verify_each = true};
	Stage stage = STAGE_TRAIN;
	static const PassRow *const rows[] = {&pass_legalize, &pass_fuse, &pass_lower};

	for (int i = 0; i < COUNT(rows); i++)
		vec_push(c->arena, &p, pass_call(c->arena, rows[i]));
	return pipeline_run(&p, c->m, &stage, &o, c->diag);
}

/* ---- eval against kernels */

/* The allowed difference, relative and absolute: kernels compute in f32 where eval computes in f64. */
static double
tolerance(DType d, double want)
{
	const FloatFormat *f = float_format(d);

	if (d == F64)
		return 1e-12 * fmax(1, fabs(want));
	if (!f)
		return d == F32 ? 1e-5 * fmax(1, fabs(want)) : 0;
	return fmax(ldexp(1, 1 - f->bias), fabs(want)) * ldexp(1, -f->mantissa);
}

static int n_faults;

/* Reports at most one fault per case. */
#define FAULT(...)                        \
	do {                              \
		print_error(__VA_ARGS__); \
		n_faults++;               \
		return;                   \
	} while (0)

static void
compare(const Case *c, DType d, const EvalTensor *want, const EvalTensor *got, int n)
{
	for (int i = 0; i < n; i++)
		for (int64_t k = 0; k < want[i].type->n; k++) {
			DType t = want[i].type->dtype;
			bool floats = dtype_is_float(t);
			double a = floats ? want[i].f[k] : (double)want[i].i[k];
			double b = floats ? got[i].f[k] : (double)got[i].i[k];
			bool same = floats ? (isnan(a) && isnan(b)) || a == b ||
			                             fabs(a - b) <= tolerance(t, a)
			                   : want[i].i[k] == got[i].i[k];
			if (!same)
				FAULT("%s in %s: result %d, element %lld: eval %.17g, kernel "
				      "%.17g\n",
				      c->name, dtype_info[d].name, i, (long long)k, a, b);
		}
}

static void
check_eval(Case *c, DType d)
{
	EvalTensor want[8], got[8];
	Interp in = interp_new(c->m, c->arena, false);

	interp_run(&in, c->f, c->args, want);
	if (!lower_module(c))
		FAULT("%s in %s is not lowered\n", c->name, dtype_info[d].name);
	in = interp_new(c->m, c->arena, false);
	for (int i = 0; i < c->m->states.n; i++)
		in.states[i] = eval_tensor_from(c->arena, c->m->states.at[i]->type,
		                                c->m->states.at[i]->data->data);
	interp_run(&in, c->f, c->args, got);
	compare(c, d, want, got, function_return(c->f)->n_operands);
}

/* ---- C against the loop-IR interpreter: all kernels of a row's cases in one file */
typedef struct {
	Case *cases;
	DType *dtypes;
	int n;
	Module *all;
} Batch;

static bool
same_element(Type t, const void *a, const void *b, int64_t i)
{
	if (!dtype_is_float(t->dtype))
		return dtype_load_int(t->dtype, a, i) == dtype_load_int(t->dtype, b, i);
	double x = dtype_load_float(t->dtype, a, i), y = dtype_load_float(t->dtype, b, i);
	return memcmp(&x, &y, sizeof(x)) == 0 || (isnan(x) && isnan(y));
}

static void
compare_kernel(Case *c, DType d, const Kernel *k, KernelFn code)
{
	void *a[16], *b[16];
	int n = k->n_inputs + k->n_outputs;

	for (int i = 0; i < n; i++) {
		Type t = k->buffers.at[i].type;
		size_t bytes = (size_t)type_bytes(t);
		bool floats = dtype_is_float(t->dtype);
		a[i] = arena_alloc(c->arena, bytes + 64);
		b[i] = arena_alloc(c->arena, bytes + 64);
		for (int64_t e = 0; i < k->n_inputs && e < t->n; e++)
			floats ? dtype_store_float(t->dtype, a[i], e, drand48() * 2 - 1)
			       : dtype_store_int(t->dtype, a[i], e, lrand48() % 2);
		memcpy(b[i], a[i], bytes);
	}
	kernel_interpret(k, a, NULL, 0, k->iterations);
	code(b, NULL, 0, k->iterations);
	for (int i = k->n_inputs; i < n; i++)
		for (int64_t e = 0; e < k->buffers.at[i].type->n; e++)
			if (!same_element(k->buffers.at[i].type, a[i], b[i], e))
				FAULT("%s in %s: C differs from the interpreter in element %lld\n",
				      c->name, dtype_info[d].name, (long long)e);
}

static void
check_c(Batch *batch)
{
	CpuTarget native = {"native", cpu_features(batch->all->arena, "native")};
	const CodeImage *v;
	int next = 0;

	if (batch->all->kernels.n == 0)
		return;
	v = kernel_library(batch->all->arena, batch->all, &printer_c, &native, 1);
	assert_non_null(v);
	for (int i = 0; i < batch->n; i++) {
		Module *m = batch->cases[i].m;
		for (int k = 0; k < m->kernels.n; k++)
			compare_kernel(&batch->cases[i], batch->dtypes[i], m->kernels.at[k],
			               image_kernels(v)[next++].run);
	}
}

/* ---- all rows, all dtypes */
enum { MAX_BATCH = 64, C_SAMPLES = 2 };
#if defined(__SANITIZE_ADDRESS__) /* sanitized code is slow */
enum { EVERY = 4, LEAST_CASES = 500 };
#else
enum { EVERY = 1, LEAST_CASES = 2000 };
#endif
static int n_checked;

/* One sample of each dtype goes through C, a different sample for each dtype. */
static void
check_row(OpKind op)
{
	const Sample *samples = op_table[op]->samples;
	Batch batch = {.cases = calloc(MAX_BATCH, sizeof(Case)),
	               .dtypes = calloc(MAX_BATCH, sizeof(DType)),
	               .all = module_new("all")};
	int n = 0;

	while (samples[n].attrs)
		n++;
	for (int d = 0; d < N_DTYPES; d += EVERY)
		for (int i = 0; i < n; i++) {
			Case c;
			if (strcmp(samples[i].attrs, "text") == 0)
				continue;
			srand48(op + 1);
			if (!case_in(&c, op, &samples[i], (DType)d)) {
				case_close(&c);
				continue;
			}
			n_checked++;
			check_eval(&c, (DType)d);
			if ((i + d) % n >= C_SAMPLES - 1 || batch.n == MAX_BATCH) {
				case_close(&c);
				continue;
			}
			for (int k = 0; k < c.m->kernels.n; k++)
				kernel_add(batch.all, c.m->kernels.at[k],
				           arena_printf(batch.all->arena, "k%d",
				                        batch.all->kernels.n));
			batch.dtypes[batch.n] = (DType)d;
			batch.cases[batch.n++] = c;
		}
	check_c(&batch);
	for (int i = 0; i < batch.n; i++)
		case_close(&batch.cases[i]);
	module_free(batch.all);
	free(batch.cases);
	free(batch.dtypes);
}

static void
test_all_rows(void **state)
{
	for (int op = 0; op < N_OPS; op++)
		if (op_table[op]->samples && op_is_selected(op))
			check_row((OpKind)op);
	assert_int_equal(n_faults, 0);
	assert_true(getenv("OP") || n_checked > LEAST_CASES);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_rows)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

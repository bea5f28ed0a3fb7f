/* Kernels with narrow storage: two parts never change the same byte, sums are rounded once, and random rounding is right on
 * average and the same however it is computed. */
#include "codegen/build/build.h"
#include "codegen/codegen.h"
#include "tests/codegen/programs/kernel_library.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

typedef struct {
	Module *m;
	Arena *arena;
	Diag *diag;
} Case;

/* Opens a case from text, lowered. */
static Case
case_open(const char *text)
{
	Case c = {.arena = arena_new(), .diag = diag_new("test", stderr)};

	c.m = module_parse(text, "test.gir", strmap_new(c.arena), c.diag);
	assert_non_null(c.m);
	assert_true(module_verify(c.m, c.diag));
	return c;
}

static void
lower_case(Case *c, int64_t cores)
{
	static const PassRow *const rows[] = {&pass_legalize, &pass_fuse, &pass_lower};
	PassManagerOptions o = {.verify_each = true};
	Stage stage = STAGE_TRAIN;
	Pipeline p = {0};

	for (int i = 0; i < COUNT(rows); i++)
		vec_push(c->arena, &p, pass_call(c->arena, rows[i]));
	((TargetOptions *)p.at[p.n - 1].options)->cores = cores;
	assert_true(pipeline_run(&p, c->m, &stage, &o, c->diag));
}

static void
case_close(Case *c)
{
	module_free(c->m);
	arena_free(c->arena);
	diag_free(c->diag);
}

/* ---- parts and bytes */

/* Marks the bytes of the last buffer that a part stores into: bytes that change after the buffer was all 0 bits or all 1
 * bits. */
static void
mark_part(const Kernel *k, void **buffers, int64_t part, int64_t bytes, int *owner)
{
	int out = k->n_inputs;
	uint8_t *at = buffers[out];

	for (int fill = 0; fill < 256; fill += 255) {
		memset(at, fill, (size_t)bytes);
		kernel_interpret(k, buffers, NULL, part, part + 1);
		for (int64_t i = 0; i < bytes; i++) {
			if (at[i] == fill)
				continue;
			if (owner[i] >= 0 && owner[i] != part)
				fail_msg("parts %d and %lld of %s change byte %lld", owner[i],
				         (long long)part, k->name, (long long)i);
			owner[i] = (int)part;
		}
	}
}

static int64_t
check_parts(Case *c, const Kernel *k)
{
	void *buffers[8];
	int64_t bytes = type_bytes(k->buffers.at[k->n_inputs].type);
	int *owner = NEW_ARRAY(c->arena, int, bytes);

	for (int i = 0; i <= k->n_inputs; i++) {
		size_t size = (size_t)type_bytes(k->buffers.at[i].type);
		buffers[i] = arena_alloc(c->arena, size + 8);
		for (size_t b = 0; b < size; b++)
			((uint8_t *)buffers[i])[b] = (uint8_t)lrand48();
	}
	for (int64_t i = 0; i < bytes; i++)
		owner[i] = -1;
	for (int64_t part = 0; part < k->iterations; part++)
		mark_part(k, buffers, part, bytes, owner);
	for (int64_t i = 0; i < bytes; i++)
		assert_true(owner[i] >= 0);
	return k->iterations;
}

/* %s: the dtype. Most texts have rows that end within a byte. */
static const char *const part_texts[] = {
	"func @f(%%x: %s[32768]) -> (%s[32768]) {\n"
	"  %%0 = add %%x, %%x : %s[32768]\n  return %%0\n}\n",
	"func @f(%%x: %s[24,33]) -> (%s[33,24]) {\n"
	"  %%0 = transpose %%x {order = [1,0]} : %s[33,24]\n  return %%0\n}\n",
	"func @f(%%x: %s[24,33]) -> (%s[24,66]) {\n"
	"  %%0 = concat %%x, %%x {axis = 1} : %s[24,66]\n  return %%0\n}\n",
	"func @f(%%x: %s[7,33]) -> (%s[7,36]) {\n"
	"  %%0 = pad %%x {low = [0,1], high = [0,2], interior = [0,0], value = 1.0} : %s[7,36]\n"
	"  return %%0\n}\n",
	"func @f(%%x: %s[129,35]) -> (%s[129]) {\n"
	"  %%0 = reduce %%x {kind = max, axes = [1]} : %s[129]\n  return %%0\n}\n",
	"func @f(%%x: %s[5,515]) -> (%s[515]) {\n"
	"  %%0 = reduce %%x {kind = max, axes = [0]} : %s[515]\n  return %%0\n}\n",
	"func @f(%%x: %s[70,33]) -> (%s[70,70]) {\n"
	"  %%0 = dot %%x, %%x {x_contract = [1], y_contract = [1]} : %s[70,70]\n"
	"  return %%0\n}\n",
	"func @f(%%x: %s[9,33]) -> (%s[9,33]) {\n"
	"  %%0 = cumulate %%x {kind = sum, axis = 1, reverse = false, exclusive = false} : %s[9,33]\n"
	"  return %%0\n}\n",
	"func @f(%%x: %s[35,33], %%i: s64[51]) -> (%s[35,51]) {\n"
	"  %%0 = gather %%x, %%i {axis = 1} : %s[35,51]\n  return %%0\n}\n",
	"func @f(%%x: %s[3,4,9], %%w: f32[5,4,3]) -> (%s[3,5,7]) {\n"
	"  %%0 = cast %%w {to = %s} : %s[5,4,3]\n"
	"  %%1 = conv %%x, %%0 {stride = [1], low = [0], high = [0], dilation = [1], groups = 1} : "
	"%s[3,5,7]\n  return %%1\n}\n",
};

static void
test_parts_own_bytes(void **state)
{
	static const DType types[] = {S4, S2, U4, U2, F4E2M1};
	int64_t parts = 0;

	for (int t = 0; t < COUNT(types); t++)
		for (int i = 0; i < COUNT(part_texts); i++) {
			const char *d = dtype_info[types[t]].name;
			Arena *arena = arena_new();
			Case c = case_open(arena_printf(arena, part_texts[i], d, d, d, d, d));
			lower_case(&c, DEFAULT_CORES);
			for (int k = 0; k < c.m->kernels.n; k++)
				parts += check_parts(&c, c.m->kernels.at[k]);
			case_close(&c);
			arena_free(arena);
		}
	assert_true(parts > 200); /* the byte limit does not stop kernels from being cut */
}

/* ---- sums that are rounded once */
static void
fill(Type t, void *at)
{
	for (int64_t i = 0; i < t->n; i++)
		if (dtype_is_float(t->dtype))
			dtype_store_float(t->dtype, at, i, drand48() * 2 - 1);
		else
			dtype_store_int(t->dtype, at, i, lrand48());
}

/* Percentage of elements of @f's result that differ from eval's, for every printer; all printers give the same bits. */
static double
percent_different(Case *c)
{
	CpuTarget native = {"native", cpu_features(c->arena, "native")};
	const Function *f = module_function(c->m, "f");
	EvalTensor args[4], want;
	void *buffers[6], *first = NULL;
	int n = f->params.n;
	Interp in = interp_new(c->m, c->arena, false);

	for (int i = 0; i < n; i++) {
		Type t = f->params.at[i]->type;
		fill(t, buffers[i] = arena_alloc(c->arena, (size_t)type_bytes(t)));
		args[i] = eval_tensor_from(c->arena, t, buffers[i]);
	}
	interp_run(&in, f, args, &want);
	lower_case(c, 1);
	const Kernel *k = c->m->kernels.at[0];
	const Kernel *before = c->m->kernels.n > 1 ? c->m->kernels.at[1] : NULL;
	assert_true(c->m->kernels.n <= 2 && (!before || before->serves == k));
	if (before) { /* the first kernel makes the last input */
		buffers[n] = arena_alloc(c->arena, (size_t)type_bytes(k->buffers.at[n].type));
		n++;
	}
	size_t bytes = (size_t)type_bytes(want.type);
	for (int p = 0; kernel_printers[p]; p++) {
		const CodeImage *v = kernel_library(c->arena, c->m, kernel_printers[p], &native, 1);
		assert_non_null(v);
		buffers[n] = arena_alloc(c->arena, bytes);
		if (before)
			image_kernels(v)[1].run(buffers, NULL, 0, before->iterations);
		image_kernels(v)[0].run(buffers, NULL, 0, k->iterations);
		if (first)
			assert_memory_equal(first, buffers[n], bytes);
		first = buffers[n];
	}
	int64_t different = 0;
	for (int64_t i = 0; i < want.type->n; i++)
		different += dtype_is_float(want.type->dtype)
		                     ? dtype_load_float(want.type->dtype, first, i) != want.f[i]
		                     : dtype_load_int(want.type->dtype, first, i) != want.i[i];
	return 100.0 * (double)different / (double)want.type->n;
}

/* If the sum were rounded at each block of k, at least a third of the elements would differ. f32 sums differ from f64 sums
 * only near the edge between two bf16 numbers. */
static void
test_sums_wait(void **state)
{
	static const struct {
		const char *text;
		double most;
	} rows[] = {
		{"func @f(%x: bf16[300,800], %y: bf16[800,130]) -> (bf16[300,130]) {\n"
	         "  %0 = dot %x, %y {x_contract = [1], y_contract = [0]} : bf16[300,130]\n"
	         "  return %0\n}\n",
	         0.5},
		{"func @f(%x: bf16[1500,70], %y: bf16[33,1500], %b: bf16[33]) -> (bf16[70,33]) {\n"
	         "  %0 = dot %x, %y {x_contract = [0], y_contract = [1]} : bf16[70,33]\n"
	         "  %1 = broadcast %b {shape = [70,33], axes = [1]} : bf16[70,33]\n"
	         "  %2 = add %0, %1 : bf16[70,33]\n  return %2\n}\n",
	         0.5},
		{"func @f(%x: bf16[1,200,9,9], %w: bf16[40,200,3,3]) -> (bf16[1,40,7,7]) {\n"
	         "  %0 = conv %x, %w {stride = [1,1], low = [0,0], high = [0,0], dilation = [1,1], "
	         "groups = 1} : bf16[1,40,7,7]\n  return %0\n}\n",
	         0.5},
		{"func @f(%x: f8e4m3[40,1500], %y: f8e5m2[1500,40]) -> (bf16[40,40]) {\n"
	         "  %0 = dot %x, %y {x_contract = [1], y_contract = [0], dtype = bf16} : bf16[40,40]\n"
	         "  return %0\n}\n",
	         0.5},
		{"func @f(%x: s8[40,1500], %y: u8[1500,40]) -> (s32[40,40]) {\n"
	         "  %0 = dot %x, %y {x_contract = [1], y_contract = [0], dtype = s32} : s32[40,40]\n"
	         "  return %0\n}\n",
	         0},
		{"func @f(%x: s4[40,1500], %y: u4[1500,40]) -> (s16[40,40]) {\n"
	         "  %0 = dot %x, %y {x_contract = [1], y_contract = [0], dtype = s16} : s16[40,40]\n"
	         "  return %0\n}\n",
	         0},
		{"func @f(%x: f64[40,1500], %y: bf16[1500,40]) -> (f16[40,40]) {\n"
	         "  %0 = dot %x, %y {x_contract = [1], y_contract = [0], dtype = f16} : f16[40,40]\n"
	         "  return %0\n}\n",
	         0},
	};

	for (int i = 0; i < COUNT(rows); i++) {
		Case c = case_open(rows[i].text);
		double percent = percent_different(&c);
		if (percent > rows[i].most)
			fail_msg("%s: %g %% of the elements differ", rows[i].text, percent);
		case_close(&c);
	}
}

/* ---- fused values equal the interpreter's results node by node, to the bit. f32 sums, products and quotients, rounded to
 * fewer bits, equal those computed in f64. */
static const char chain_text[] =
	"func @f(%%x: %s[6,40], %%y: %s[6,40]) -> (%s[6,40], %s[6], bool[6,40]) {\n"
	"  %%0 = add %%x, %%y : %s[6,40]\n"
	"  %%1 = mul %%0, %%x : %s[6,40]\n"
	"  %%2 = reduce %%1 {kind = max, axes = [1]} : %s[6]\n"
	"  %%3 = broadcast %%2 {shape = [6,40], axes = [0]} : %s[6,40]\n"
	"  %%4 = sub %%1, %%3 : %s[6,40]\n"
	"  %%5 = div %%4, %%0 : %s[6,40]\n"
	"  %%6 = lt %%1, %%5 : bool[6,40]\n"
	"  return %%5, %%2, %%6\n}\n";

static void
check_chain(DType dtype)
{
	Arena *arena = arena_new();
	const char *d = dtype_info[dtype].name;
	Case c = case_open(arena_printf(arena, chain_text, d, d, d, d, d, d, d, d, d, d));
	const Function *f = module_function(c.m, "f");
	EvalTensor args[2], want[3], got[3];
	Interp in = interp_new(c.m, c.arena, false);

	for (int i = 0; i < 2; i++) {
		void *data = arena_alloc(arena, (size_t)type_bytes(f->params.at[i]->type));
		fill(f->params.at[i]->type, data);
		args[i] = eval_tensor_from(c.arena, f->params.at[i]->type, data);
	}
	interp_run(&in, f, args, want);
	lower_case(&c, DEFAULT_CORES);
	assert_int_equal(c.m->kernels.n, 1);
	in = interp_new(c.m, c.arena, false);
	interp_run(&in, f, args, got);
	for (int i = 0; i < 3; i++)
		for (int64_t k = 0; k < want[i].type->n; k++) {
			bool nan = dtype_is_float(want[i].type->dtype) && isnan(want[i].f[k]) &&
			           isnan(got[i].f[k]);
			if (want[i].i[k] != got[i].i[k] && !nan)
				fail_msg("%s: result %d, element %lld differs", d, i, (long long)k);
		}
	case_close(&c);
	arena_free(arena);
}

static void
test_chains(void **state)
{
	for (int d = 0; d < N_DTYPES; d++)
		if (d != BOOL)
			check_chain((DType)d);
}

/* ---- gradients of products of two dtypes: each gradient in its operand's dtype, from a cotangent in the result's dtype */
static void
test_gradients(void **state)
{
	static const char text[] =
		"func @dot(%x: bf16[6,40], %y: f8e4m3[40,5]) -> (f32[6,5]) {\n"
		"  %0 = dot %x, %y {x_contract = [1], y_contract = [0], dtype = f32} : f32[6,5]\n"
		"  return %0\n}\n"
		"func @conv(%x: bf16[1,3,9], %w: f32[4,3,3]) -> (f16[1,4,7]) {\n"
		"  %0 = conv %x, %w {stride = [1], low = [0], high = [0], dilation = [1], groups = 1, "
		"dtype = f16, allow_tf32 = true} : f16[1,4,7]\n  return %0\n}\n";
	Case c = case_open(text);
	int n = c.m->functions.n;

	for (int i = 0; i < n; i++) {
		Function *f = c.m->functions.at[i];
		const char *fault = NULL;
		Function *d = function_gradient(f, &fault);
		EvalTensor args[3], want[2], got[2];
		assert_non_null(d);
		assert_true(module_verify(c.m, c.diag));
		for (int k = 0; k < d->params.n; k++) {
			args[k] = eval_tensor_new(c.arena, d->params.at[k]->type);
			for (int64_t e = 0; e < args[k].type->n; e++)
				args[k].f[e] = drand48() * 2 - 1;
			eval_tensor_round(&args[k]);
		}
		Interp typed = interp_new(c.m, c.arena, false),
		       real = interp_new(c.m, c.arena, true);
		interp_run(&typed, d, args, got);
		interp_run(&real, d, args, want);
		for (int k = 0; k < 2; k++) {
			DType dtype = f->params.at[k]->type->dtype;
			assert_ptr_equal(got[k].type, f->params.at[k]->type);
			for (int64_t e = 0; e < got[k].type->n; e++)
				assert_true(got[k].f[e] == dtype_round(dtype, want[k].f[e]));
		}
	}
	lower_case(&c, DEFAULT_CORES);
	case_close(&c);
}

/* ---- stochastic rounding */
enum { DRAWS = 1 << 17 };

static const char stochastic_text[] =
	"func @f(%%x: f32[8,16384], %%seed: u64[], %%step: u64[], %%offset: u64[]) -> (%s[8,16384]) {\n"
	"  %%0 = cast %%x, %%seed, %%step, %%offset {to = %s, round = stochastic, stream = 77} : "
	"%s[8,16384]\n"
	"  return %%0\n}\n";

/* y must consist of the neighbours a and b of x = a + f (b - a), with b at probability f. */
static void
check_mean(DType d, const double *y, double x)
{
	double low = dtype_round_as(d, (Conversion){ROUND_TOWARD_ZERO, 0}, x, 0);
	double high = dtype_round_as(d, (Conversion){ROUND_AWAY, 0}, x, 0);
	double p = (x - low) / (high - low), up = 0;

	for (int i = 0; i < DRAWS; i++) {
		assert_true(y[i] == low || y[i] == high);
		up += y[i] == high;
	}
	if (fabs(up / DRAWS - p) > 4 * sqrt(p * (1 - p) / DRAWS))
		fail_msg("%s: %g rounds up with %g, not %g", dtype_info[d].name, x, up / DRAWS, p);
}

static void
test_stochastic(void **state)
{
	static const DType types[] = {F16, BF16, F8E4M3, F8E5M2, F8E4M3FNUZ, F8E5M2FNUZ, F4E2M1};
	static const float numbers[] = {1.0700001f, -2.3f, 0.0137f, 1e-5f};

	for (int t = 0; t < COUNT(types); t++)
		for (int i = 0; i < COUNT(numbers); i++) {
			Arena *arena = arena_new();
			const char *d = dtype_info[types[t]].name;
			Case c = case_open(arena_printf(arena, stochastic_text, d, d, d));
			const Function *f = module_function(c.m, "f");
			EvalTensor args[4], want, got;
			Interp in = interp_new(c.m, c.arena, false);
			uint64_t words[] = {0x123456789abcdef0u + (uint64_t)i, 1ull << 40,
			                    0xfffffffffffffff0u};
			for (int a = 0; a < 4; a++)
				args[a] = eval_tensor_new(c.arena, f->params.at[a]->type);
			for (int k = 0; k < DRAWS; k++)
				args[0].f[k] = numbers[i];
			for (int a = 1; a < 4; a++)
				args[a].i[0] = (int64_t)words[a - 1];
			interp_run(&in, f, args, &want);
			check_mean(types[t], want.f, numbers[i]);
			lower_case(&c, DEFAULT_CORES);
			in = interp_new(c.m, c.arena, false);
			interp_run(&in, f, args, &got);
			assert_memory_equal(want.f, got.f, DRAWS * sizeof(*want.f));
			case_close(&c);
			arena_free(arena);
		}
}

/* An element gets the same draw in whichever part of the tensor it is computed: rows 3 to 7 alone, by the offset. */
static void
test_offset(void **state)
{
	static const char text[] =
		"func @f(%x: f32[8,5], %seed: u64[], %step: u64[], %offset: u64[]) -> (bf16[8,5]) {\n"
		"  %0 = cast %x, %seed, %step, %offset {to = bf16, round = stochastic, stream = 9, rows = 8} : bf16[8,5]\n"
		"  return %0\n}\n"
		"func @part(%x: f32[5,5], %seed: u64[], %step: u64[], %offset: u64[]) -> (bf16[5,5]) {\n"
		"  %0 = cast %x, %seed, %step, %offset {to = bf16, round = stochastic, stream = 9, rows = 5} : bf16[5,5]\n"
		"  return %0\n}\n";
	Case c = case_open(text);
	EvalTensor args[4], all, part;
	Interp in = interp_new(c.m, c.arena, false);

	for (int a = 0; a < 4; a++)
		args[a] = eval_tensor_new(c.arena, module_function(c.m, "f")->params.at[a]->type);
	for (int i = 0; i < 40; i++)
		args[0].f[i] = (float)(1 + drand48());
	args[1].i[0] = 5;
	args[2].i[0] = 6;
	args[3].i[0] = 0;
	interp_run(&in, module_function(c.m, "f"), args, &all);
	args[0].f += 15;
	args[0].type = module_function(c.m, "part")->params.at[0]->type;
	args[3].i[0] = 3;
	interp_run(&in, module_function(c.m, "part"), args, &part);
	assert_memory_equal(all.f + 15, part.f, 25 * sizeof(double));
	case_close(&c);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parts_own_bytes), cmocka_unit_test(test_sums_wait),
		cmocka_unit_test(test_chains),          cmocka_unit_test(test_gradients),
		cmocka_unit_test(test_stochastic),      cmocka_unit_test(test_offset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

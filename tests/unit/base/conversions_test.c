/* Conversions in kernels, by the loop-IR interpreter and by every printer, in vector and in scalar code. Every pattern of a
 * type of at most 16 bits survives load and store. Numbers round to the neighbour that the rounding mode asks for, found in
 * a sorted table of all numbers of the format. An argument sets how many numbers to try per format and mode:
 * conversions_test 10000000 takes minutes. */
#include "tests/codegen/cuda/library.h"
#include "tests/codegen/programs/kernel_library.h"
#include "tests/unit/base/conversion_oracle.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#if defined(__SANITIZE_ADDRESS__) /* sanitized code is slow: few modes, few numbers */
enum { ONE_CALL = 2000, EVERY = 7 };
#else
enum { ONE_CALL = 100000, EVERY = 1 };
#endif
static int64_t n_numbers = ONE_CALL;

/* ---- kernels over n elements, most of them in a vector loop and the rest one by one */
enum { SCALARS = 1000, N = ONE_CALL + 7 };

typedef struct {
	Arena *arena;
	Module *m;
	VEC(const KernelCode *) codes;
	VEC(const char *) names;
} Kernels;

static Kernels
kernels_open(void)
{
	return (Kernels){.arena = arena_new(), .m = module_new("formats")};
}

static void
kernels_close(Kernels *ks)
{
	module_free(ks->m);
	arena_free(ks->arena);
}

typedef LoopValue (*Body)(LoopBuilder *lb, LoopValue x, LoopValue y, const void *ctx);

static void
body_at(LoopBuilder *lb, int n_in, Affine at, Body body, const void *ctx)
{
	LoopValue x = lb_load(lb, 0, at), y = n_in > 1 ? lb_load(lb, 1, at) : -1;

	lb_store(lb, n_in, at, body(lb, x, y, ctx));
}

static void
kernel_of(Kernels *ks, int64_t n, int n_in, const DType *in, DType out, Body body, const void *ctx)
{
	Diag *diag = diag_new("formats", stderr);
	Kernel *k = kernel_new(ks->arena, "k", loc_name(ks->m, "k"));
	LoopBuilder *lb = loop_builder(k, ks->m, ks->arena);
	int64_t scalars = n < SCALARS ? n / 2 : SCALARS;

	for (int i = 0; i < n_in; i++)
		lb_buffer(lb, arena_printf(ks->arena, "x%d", i), BUFFER_IN,
		          type_new(ks->m, in[i], 1, &n));
	lb_buffer(lb, "y0", BUFFER_OUT, type_new(ks->m, out, 1, &n));
	body_at(lb, n_in, affine_scalar(lb, lb_for(lb, LOOP_VECTOR, n - scalars)), body, ctx);
	lb_end(lb);
	Affine at = affine_scalar(lb, lb_for(lb, LOOP_PLAIN, scalars));
	body_at(lb, n_in, affine_plus(at, n - scalars), body, ctx);
	lb_end(lb);
	kernel_close(lb);
	k = kernel_add(ks->m, k, arena_printf(ks->arena, "k%d", ks->m->kernels.n));
	assert_true(kernel_verify(ks->m, k, diag));
	diag_free(diag);
}

static void
compile_by(Kernels *ks, const KernelPrinter *printer)
{
	CpuTarget native = {"native", cpu_features(ks->arena, "native")};
	const CodeImage *v = kernel_library(ks->arena, ks->m, printer, &native, 1);

	assert_non_null(v);
	vec_push(ks->arena, &ks->codes, image_kernels(v));
	vec_push(ks->arena, &ks->names, printer->name);
}

static void
kernels_compile(Kernels *ks)
{
	for (int p = 0; kernel_printers[p]; p++)
		compile_by(ks, kernel_printers[p]);
	compile_by(ks, &printer_harness);
}

/* Runs a kernel with the interpreter (code -1) or with a printer's code. */
static const char *
run(const Kernels *ks, int code, int kernel, void *const *buffers)
{
	const Kernel *k = ks->m->kernels.at[kernel];

	if (code < 0)
		kernel_interpret(k, buffers, NULL, 0, 1);
	else
		ks->codes.at[code][kernel].run(buffers, NULL, 0, 1);
	return code < 0 ? "interpreter" : ks->names.at[code];
}

/* ---- all patterns of types of at most 16 bits */
static LoopValue
same(LoopBuilder *lb, LoopValue x, LoopValue y, const void *ctx)
{
	return x;
}

static int
raw(DType t, const uint8_t *at, int64_t i)
{
	int bits = dtype_info[t].bits, per_byte = 8 / bits;

	if (bits == 16)
		return at[2 * i] | at[2 * i + 1] << 8;
	if (bits == 8)
		return at[i];
	return at[i / per_byte] >> i % per_byte * bits & ((1 << bits) - 1);
}

static void
set_raw(DType t, uint8_t *at, int64_t i, int value)
{
	int bits = dtype_info[t].bits, per_byte = 8 / bits;

	if (bits == 16)
		at[2 * i + 1] = (uint8_t)(value >> 8);
	if (bits >= 8)
		at[bits / 8 * i] = (uint8_t)value;
	else
		at[i / per_byte] |= (uint8_t)(value << i % per_byte * bits);
}

/* The value of a pattern, by the format's definition. */
static double
value_of(DType t, int pattern)
{
	const Table *table = table_of(t);
	int bits = dtype_info[t].bits;

	if (!table)
		return dtype_info[t].class == CLASS_SIGNED && pattern >> (bits - 1)
		               ? pattern - (1 << bits)
		               : pattern;
	int what = canonical(table, pattern), sign = sign_bit(table->d);
	if (what == NAN_CODE)
		return (double)NAN;
	int code = table->d->is_signed ? what & (sign - 1) : what;
	double x = code == table->n ? (double)INFINITY : table->at[code];
	return table->d->is_signed && (what & sign) ? -x : x;
}

static void
check_patterns(const Kernels *ks, int code, DType t, int load, int copy)
{
	int n = 1 << dtype_info[t].bits, count = n + 3; /* an odd number of elements */
	uint8_t *in = calloc(1, (size_t)count * 2), *out = calloc(1, (size_t)count * 2);
	double *values = calloc((size_t)count, sizeof(*values));

	for (int i = 0; i < count; i++)
		set_raw(t, in, i, i % n);
	const char *name = run(ks, code, load, (void *[]){in, values});
	run(ks, code, copy, (void *[]){in, out});
	for (int i = 0; i < count; i++) {
		double want = value_of(t, i % n);
		if (memcmp(&values[i], &want, sizeof(want)) != 0 &&
		    !(isnan(want) && isnan(values[i])))
			fail_msg("%s: %s 0x%x is %.17g, not %.17g", name, dtype_info[t].name, i % n,
			         values[i], want);
		if (raw(t, out, i) != i % n && !(isnan(want) && isnan(value_of(t, raw(t, out, i)))))
			fail_msg("%s: %s 0x%x comes back as 0x%x", name, dtype_info[t].name, i % n,
			         raw(t, out, i));
	}
	free(in);
	free(out);
	free(values);
}

static LoopValue
widened(LoopBuilder *lb, LoopValue x, LoopValue y, const void *ctx)
{
	return lb_cast(lb, F64, x);
}

static void
test_patterns(void **state)
{
	Kernels ks = kernels_open();
	DType types[N_DTYPES];
	int n = 0;

	for (int t = 0; t < N_DTYPES; t++) {
		if (dtype_info[t].bits > 16 || t == BOOL)
			continue;
		DType type = types[n++] = (DType)t;
		int64_t count = (1 << dtype_info[t].bits) + 3;
		kernel_of(&ks, count, 1, &type, F64, widened, NULL);
		kernel_of(&ks, count, 1, &type, type, same, NULL);
	}
	kernels_compile(&ks);
	for (int code = -1; code < ks.codes.n; code++)
		for (int i = 0; i < n; i++)
			check_patterns(&ks, code, types[i], 2 * i, 2 * i + 1);
	kernels_close(&ks);
}

/* ---- rounding numbers to formats */
static uint64_t
random_word(void)
{
	static uint64_t seed = 1;

	return seed = hash_mix(seed, 0x9e3779b97f4a7c15u);
}

static double
double_of(uint64_t bits)
{
	double x;

	memcpy(&x, &bits, sizeof(x));
	return x;
}

static float
float_of(uint32_t bits)
{
	float x;

	memcpy(&x, &bits, sizeof(x));
	return x;
}

/* A random number: in the format, in the middle between two numbers of the format or next to the middle, at the ends, or
 * arbitrary. */
static double
number_for(const Table *t, DType source)
{
	static const double ends[] = {0,        INFINITY, NAN, 0x1p-149, 0x1.fffffep127,
	                              0x1p-127, 0x1p-126};
	uint64_t word = random_word();
	int i = (int)(random_word() % (uint64_t)t->n);
	double a = t->at[i], b = t->at[i + 1], x;

	switch (word % 8) {
	case 0: x = a; break;
	case 1: x = a + (b - a) / 2; break;
	case 2: x = nextafter(a + (b - a) / 2, word & 8 ? 0 : INFINITY); break;
	case 3: x = nextafterf((float)(a + (b - a) / 2), word & 8 ? 0 : INFINITY); break;
	case 4: x = a + (b - a) * (double)(word >> 12) * 0x1p-52; break;
	case 5:
		x = source == F64 ? double_of(random_word()) : float_of((uint32_t)(word >> 32));
		break;
	case 6: x = ends[word / 8 % COUNT(ends)]; break;
	default: x = t->at[t->n] * (1 + (double)(word >> 40) * 0x1p-26); break;
	}
	return word >> 63 ? -x : x;
}

typedef struct {
	DType source, storage;
	Conversion how;
	bool stored; /* true: converted by the store alone, without a cast before it */
} Way;

static LoopValue
converted(LoopBuilder *lb, LoopValue x, LoopValue y, const void *ctx)
{
	const Way *w = ctx;

	return w->stored ? x : lb_cast_as(lb, w->storage, w->how, x, y);
}

/* The number at index i of a kernel's input, all of which lie in memory. Integers are taken from their bits. */
static long double
number_at(DType source, const void *in, int64_t i)
{
	switch (source) {
	case F32: return ((const float *)in)[i];
	case F64: return ((const double *)in)[i];
	case S64: return ((const int64_t *)in)[i];
	case U64: return ((const uint64_t *)in)[i];
	case S32: return ((const int32_t *)in)[i];
	default: return ((const uint32_t *)in)[i];
	}
}

static void
fill_numbers(const Table *t, DType source, void *in)
{
	for (int64_t i = 0; i < N; i++) {
		double x = dtype_is_float(source) ? number_for(t, source) : 0;
		uint64_t word = random_word();
		if (source == F32)
			((float *)in)[i] = (float)x;
		else if (source == F64)
			((double *)in)[i] = x;
		else if (dtype_info[source].bits == 64) /* near the middle of two numbers */
			((uint64_t *)in)[i] = ((word | 0x7ffffffffffff) + word % 7 - 3) >>
			                      word % 53;
		else
			((uint32_t *)in)[i] = (uint32_t)word >> word % 29;
	}
}

static void
check_way(const Kernels *ks, int kernel, const Way *w)
{
	const Table *t = table_of(w->storage);
	double *in = malloc(N * sizeof(*in));
	uint32_t *random = malloc(N * sizeof(*random));
	int *want = malloc(N * sizeof(*want));
	uint8_t *out = malloc(N * 2);
	bool stochastic = w->how.round == ROUND_STOCHASTIC;

	for (int64_t done = 0; done < n_numbers; done += ONE_CALL) {
		fill_numbers(t, w->source, in);
		for (int64_t i = 0; i < N; i++) {
			random[i] = (uint32_t)random_word();
			want[i] = expected(t, w->how, number_at(w->source, in, i), random[i]);
		}
		for (int code = -1; code < ks->codes.n; code++) {
			memset(out, 0xa5, N * 2);
			const char *name = run(
				ks, code, kernel,
				(void *[]){in, stochastic ? (void *)random : out, out});
			for (int64_t i = 0; i < N; i++)
				if (canonical(t, raw(w->storage, out, i)) != want[i])
					fail_msg("%s: %.17Lg of %s to %s %s %s: 0x%x, not 0x%x",
					         name, number_at(w->source, in, i),
					         dtype_info[w->source].name,
					         dtype_info[w->storage].name,
					         rounding_names[w->how.round],
					         overflow_names[w->how.overflow],
					         (unsigned)raw(w->storage, out, i),
					         (unsigned)want[i]);
		}
	}
	free(in);
	free(random);
	free(want);
	free(out);
}

static void
check_ways(const Way *ways, int n)
{
	Kernels ks = kernels_open();

	for (int i = 0; i < n; i += EVERY) {
		DType in[] = {ways[i].source, U32};
		bool stochastic = ways[i].how.round == ROUND_STOCHASTIC;
		kernel_of(&ks, N, stochastic ? 2 : 1, in, ways[i].storage, converted, &ways[i]);
	}
	kernels_compile(&ks);
	for (int i = 0; i < n; i += EVERY)
		check_way(&ks, i / EVERY, &ways[i]);
	kernels_close(&ks);
}

static void
test_numbers(void **state)
{
	Way ways[2 * COUNT(definitions) * 12 + COUNT(definitions)];
	int n = 0;

	for (int d = 0; d < COUNT(definitions); d++) {
		DType to = definitions[d].type;
		for (int round = 0; rounding_names[round]; round++)
			for (int over = 0; overflow_names[over]; over++) {
				Conversion how = {(Rounding)round, (Overflow)over};
				ways[n++] = (Way){F32, to, how, false};
				ways[n++] = (Way){F64, to, how, false};
			}
		ways[n++] = (Way){F32, to, {0}, true};
	}
	check_ways(ways, n);
}

static void
test_integers(void **state)
{
	static const DType sources[] = {S64, U64, S32, U32};
	static const Conversion hows[] = {{0}, {ROUND_TOWARD_ZERO, OVERFLOW_SPECIAL}};
	Way ways[COUNT(definitions) * COUNT(sources) * COUNT(hows)];
	int n = 0;

	for (int d = 0; d < COUNT(definitions); d++)
		for (int s = 0; s < COUNT(sources); s++)
			for (int h = 0; h < COUNT(hows); h++)
				ways[n++] = (Way){sources[s], definitions[d].type, hows[h], false};
	check_ways(ways, n);
}

/* ---- conversions to small integers: floats are truncated and saturate, integers wrap */
static LoopValue
cast_to(LoopBuilder *lb, LoopValue x, LoopValue y, const void *ctx)
{
	return lb_cast(lb, *(const DType *)ctx, x);
}

static int
integer_expected(DType from, DType to, long double x)
{
	int bits = dtype_info[to].bits;
	bool is_signed = dtype_info[to].class == CLASS_SIGNED;
	long double least = is_signed ? -(1 << (bits - 1)) : 0;
	long double most = is_signed ? (1 << (bits - 1)) - 1 : (1 << bits) - 1;

	if (!dtype_is_float(from))
		return (int)((uint64_t)(x < 0 ? (int64_t)x : (int64_t)(uint64_t)x) &
		             ((1u << bits) - 1));
	x = isnan(x) ? 0 : truncl(x) < least ? least : truncl(x) > most ? most : truncl(x);
	return (int)x & ((1 << bits) - 1);
}

static void
test_to_small_integers(void **state)
{
	static const DType from[] = {F32, F64, S64, U64, S32, U32},
			   to[] = {S4, S2, U4, U2, S8, U8, S16, U16};
	Kernels ks = kernels_open();
	static double in[N];
	static uint8_t out[N * 2];

	for (int f = 0; f < COUNT(from); f++)
		for (int t = 0; t < COUNT(to); t++)
			kernel_of(&ks, N, 1, &from[f], to[t], cast_to, &to[t]);
	kernels_compile(&ks);
	for (int f = 0; f < COUNT(from); f++) {
		fill_numbers(table_of(F8E5M2), from[f], in);
		for (int t = 0; t < COUNT(to); t++)
			for (int code = -1; code < ks.codes.n; code++) {
				const char *name = run(&ks, code, f * COUNT(to) + t,
				                       (void *[]){in, out});
				for (int i = 0; i < N; i++) {
					long double x = number_at(from[f], in, i);
					if (raw(to[t], out, i) !=
					    integer_expected(from[f], to[t], x))
						fail_msg("%s: %.17Lg of %s to %s: 0x%x", name, x,
						         dtype_info[from[f]].name,
						         dtype_info[to[t]].name,
						         (unsigned)raw(to[t], out, i));
				}
			}
	}
	kernels_close(&ks);
}

/* ---- random bits: equal to those of the reference, which reproduces the published vectors */
static LoopValue
words_01(LoopBuilder *lb, LoopValue x, LoopValue y, const void *ctx)
{
	return lb_op(lb, LOOP_philox, U64,
	             (LoopValue[]){x, y, lb_int(lb, U64, *(const int64_t *)ctx)});
}

static LoopValue
words_23(LoopBuilder *lb, LoopValue x, LoopValue y, const void *ctx)
{
	return lb_op(lb, LOOP_philox_high, U64,
	             (LoopValue[]){x, y, lb_int(lb, U64, *(const int64_t *)ctx)});
}

static void
test_philox(void **state)
{
	static uint64_t keys[N], indices[N], out[2][N];
	static const int64_t step = (int64_t)0x85a308d3243f6a88;
	static const DType in[] = {U64, U64};
	Kernels ks = kernels_open();

	for (int i = 0; i < N; i++) {
		keys[i] = random_word();
		indices[i] = i % 2 ? random_word() : (uint64_t)i;
	}
	kernel_of(&ks, N, 2, in, U64, words_01, &step);
	kernel_of(&ks, N, 2, in, U64, words_23, &step);
	kernels_compile(&ks);
	for (int code = -1; code < ks.codes.n; code++) {
		run(&ks, code, 0, (void *[]){keys, indices, out[0]});
		run(&ks, code, 1, (void *[]){keys, indices, out[1]});
		for (int i = 0; i < N; i++) {
			Philox p = philox_at(keys[i], indices[i], (uint64_t)step);
			assert_true(out[0][i] == (p.at[0] | (uint64_t)p.at[1] << 32));
			assert_true(out[1][i] == (p.at[2] | (uint64_t)p.at[3] << 32));
		}
	}
	kernels_close(&ks);
}

int
main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_patterns), cmocka_unit_test(test_numbers),
		cmocka_unit_test(test_integers), cmocka_unit_test(test_to_small_integers),
		cmocka_unit_test(test_philox),
	};

	if (argc > 1)
		n_numbers = strtoll(argv[1], NULL, 10);
	tables_fill();
	return cmocka_run_group_tests(tests, NULL, NULL);
}

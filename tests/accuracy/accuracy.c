/* accuracy [STRIDE]: checks the unary scalar functions over all f32, or every STRIDE-th f32, and over random f64. Prints the
 * largest error in ulp beside the bound of docs/accuracy.md, and whether all printers agree in every bit. The reference is
 * libm: in double for f32, in long double for f64. Exit code 1 if a bound is exceeded or a bit differs. */
#include "tests/codegen/programs/kernel_library.h"

#include <math.h>
#include <pthread.h>

enum { BLOCK = 1 << 16, F64_BLOCKS = 64, /* four million */ MAX_CODES = 4, THREADS = 2 };

typedef struct {
	const char *name;
	double (*f)(double);
	long double (*exact)(long double);
	double ulp_f32, ulp_f64; /* promised bounds */
	double range;            /* largest |x| that the promise covers; 0: all x */
} FunctionRow;
static const FunctionRow rows[] = {
#define SCALAR_FUNCTION(name, f64, f32, ...) {#name, name, name##l, __VA_ARGS__},
#include "ir/scalar/function_list.def"
#undef SCALAR_FUNCTION
	{"sqrt", sqrt, sqrtl, 0.51, 0.51, 0}, /* the machine's instruction */
};

typedef struct {
	const char *printer;
	const KernelCode *kernels;
} Code;
static Code codes[MAX_CODES];
static int n_codes;
static int64_t stride = 1;

typedef struct {
	int row, thread;
	bool wide;
	double worst, at;
	int64_t different; /* number of values for which another printer gives other bits */
} Job;

/* One unit in the last place of an f32 result, by the exponent of r. Below the normal numbers the unit no longer shrinks. */
static double
ulp_f32(double r)
{
	uint64_t u;
	double one;

	memcpy(&u, &r, sizeof(u));
	u = u >> 52 & 0x7ff;
	u = ((u < 1023 - 126 ? 1023 - 126 : u) - 23) << 52;
	memcpy(&one, &u, sizeof(one));
	return one;
}

static long double
ulp_f64(long double r)
{
	int e = r == 0 ? -1022 : ilogbl(r);

	return ldexpl(1, (e < -1022 ? -1022 : e) - 52);
}

/* Overflow to infinity is right if the reference rounds to infinity. */
static double
error_f32(const FunctionRow *row, double x, double y)
{
	double r = row->f(x);

	if (isfinite((float)r) && isfinite(y))
		return fabs(y - r) / ulp_f32(r);
	return (float)r == y || (isnan(r) && isnan(y)) ? 0 : INFINITY;
}

static double
error_f64(const FunctionRow *row, double x, double y)
{
	long double r = row->exact((long double)x);

	if (isfinite((double)r) && isfinite(y))
		return (double)(fabsl((long double)y - r) / ulp_f64(r));
	return (double)r == y || (isnan((double)r) && isnan(y)) ? 0 : INFINITY;
}

static uint64_t
mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

/* Random f64: half of them have random bits, half lie between -40 and 40. */
static double
random_f64(uint64_t i)
{
	uint64_t u = mix(i * 2 + 1);
	double x;

	if (i & 1)
		return ((double)(u >> 11) * 0x1p-53 - 0.5) * 80;
	memcpy(&x, &u, sizeof(x));
	return x;
}

static void
fill(const Job *j, int64_t block, void *x)
{
	for (int64_t i = 0; i < BLOCK; i++) {
		uint32_t u = (uint32_t)((block * BLOCK + i) * stride);
		if (j->wide)
			((double *)x)[i] = random_f64((uint64_t)(block * BLOCK + i));
		else
			memcpy((float *)x + i, &u, sizeof(u));
	}
}

static void
check_block(Job *j, int64_t block, void *x, void *const *y)
{
	const FunctionRow *row = &rows[j->row];
	int kernel = 2 * j->row + j->wide;
	size_t size = j->wide ? 8 : 4;

	fill(j, block, x);
	for (int c = 0; c < n_codes; c++)
		codes[c].kernels[kernel].run((void *[]){x, y[c]}, NULL, 0, 1);
	for (int64_t i = 0; i < BLOCK; i++) {
		double in = j->wide ? ((double *)x)[i] : (double)((float *)x)[i];
		double out = j->wide ? ((double *)y[0])[i] : (double)((float *)y[0])[i];
		for (int c = 1; c < n_codes; c++)
			j->different += memcmp((char *)y[0] + (size_t)i * size,
			                       (char *)y[c] + (size_t)i * size, size) != 0 &&
			                !isnan(out);
		if (row->range && !(fabs(in) <= row->range))
			continue;
		double e = j->wide ? error_f64(row, in, out) : error_f32(row, in, out);
		if (e > j->worst) {
			j->worst = e;
			j->at = in;
		}
	}
}

static void *
run(void *arg)
{
	Job *j = arg;
	int64_t blocks = j->wide ? F64_BLOCKS : ((1ll << 32) / stride + BLOCK - 1) / BLOCK;
	void *x = malloc(BLOCK * 8), *y[MAX_CODES];

	for (int c = 0; c < n_codes; c++)
		y[c] = malloc(BLOCK * 8);
	for (int64_t block = j->thread; block < blocks; block += THREADS)
		check_block(j, block, x, y);
	for (int c = 0; c < n_codes; c++)
		free(y[c]);
	free(x);
	return NULL;
}

/* Checks the row's function in one type; false if it exceeds its bound. */
static bool
check(int row, bool wide)
{
	double promised = wide ? rows[row].ulp_f64 : rows[row].ulp_f32;
	pthread_t threads[THREADS];
	Job jobs[THREADS];

	for (int t = 0; t < THREADS; t++) {
		jobs[t] = (Job){.row = row, .thread = t, .wide = wide};
		pthread_create(&threads[t], NULL, run, &jobs[t]);
	}
	for (int t = 0; t < THREADS; t++)
		pthread_join(threads[t], NULL);
	for (int t = 1; t < THREADS; t++) {
		jobs[0].different += jobs[t].different;
		if (jobs[t].worst > jobs[0].worst) {
			jobs[0].worst = jobs[t].worst;
			jobs[0].at = jobs[t].at;
		}
	}
	bool ok = jobs[0].worst <= promised && jobs[0].different == 0;
	printf("%-6s %s  %8.4f ulp at %-24a promised %.2f, %lld bits differ%s\n", rows[row].name,
	       wide ? "f64" : "f32", jobs[0].worst, jobs[0].at, promised,
	       (long long)jobs[0].different, ok ? "" : "  BROKEN");
	fflush(stdout);
	return ok;
}

/* Two kernels per function, y = f(x) in f32 and in f64. */
static Module *
make_module(Arena *arena, Diag *diag)
{
	Text text = {0};

	text_add(&text, "module @accuracy {\n");
	for (int i = 0; i < 2 * COUNT(rows); i++) {
		const char *t = i % 2 ? "f64" : "f32";
		text_printf(&text,
		            "  kernel @k%d(x0: in %s[%d], y0: out %s[%d]) flops 0 loc \"%s\" {\n"
		            "    vector v0 < %d {\n      v1 = load x0[v0] : %s\n"
		            "      v2 = %s v1 : %s\n      store y0[v0] = v2\n    }\n  }\n",
		            i, t, BLOCK, t, BLOCK, rows[i / 2].name, BLOCK, t, rows[i / 2].name, t);
	}
	text_add(&text, "}\n");
	Module *m = module_parse(arena_strdup(arena, text.at), "accuracy.gir", NULL, diag);
	text_free(&text);
	return m;
}

int
main(int argc, char **argv)
{
	Arena *arena = arena_new();
	Module *m = make_module(arena, diag_new("accuracy", stderr));
	CpuTarget native = {"native", cpu_features(arena, "native")};
	bool ok = true;

	if (!m || (argc > 1 && (!parse_int(argv[1], &stride) || stride < 1)))
		return 2;
	for (int i = 0; kernel_printers[i]; i++) {
		const CodeImage *v = kernel_library(arena, m, kernel_printers[i], &native, 1);
		if (!v)
			return 2;
		codes[n_codes++] = (Code){kernel_printers[i]->name, image_kernels(v)};
	}
	for (int i = 0; i < COUNT(rows); i++) {
		ok &= check(i, false);
		ok &= check(i, true);
	}
	return !ok;
}

/* bench_gemm [THREADS]: GFLOP/s of matrix products as gradc generates them and as oneDNN does them, beside what
 * the machine could do.
 * Every row is a dot in text IR, compiled as a model's would be, and run on the pool of threads. */
#include "runtime/onednn.h"
#include "tests/codegen/kernel_library.h"

typedef struct {
	const char *name, *x, *y, *attrs, *z;
} Shape;

/* A GPT-2 of 384 features, 8 rows of 256 tokens, 6 heads: forward, and both gradients. Last one of 768 features, whose rows
 * of 12 KiB share lines of the cache: the first matrix of a layer. */
static const Shape shapes[] = {
	{"512^3", "f32[512,512]", "f32[512,512]", "x_contract = [1], y_contract = [0]",
         "f32[512,512]"},
	{"qkv", "f32[8,256,384]", "f32[384,1152]", "x_contract = [2], y_contract = [0]",
         "f32[8,256,1152]"},
	{"qkv dx", "f32[8,256,1152]", "f32[384,1152]", "x_contract = [2], y_contract = [1]",
         "f32[8,256,384]"},
	{"qkv dw", "f32[8,256,384]", "f32[8,256,1152]", "x_contract = [0,1], y_contract = [0,1]",
         "f32[384,1152]"},
	{"fc", "f32[8,256,384]", "f32[384,1536]", "x_contract = [2], y_contract = [0]",
         "f32[8,256,1536]"},
	{"fc dw", "f32[8,256,384]", "f32[8,256,1536]", "x_contract = [0,1], y_contract = [0,1]",
         "f32[384,1536]"},
	{"proj", "f32[8,256,1536]", "f32[1536,384]", "x_contract = [2], y_contract = [0]",
         "f32[8,256,384]"},
	{"scores", "f32[8,6,256,64]", "f32[8,6,256,64]",
         "x_batch = [0,1], y_batch = [0,1], x_contract = [3], y_contract = [3]",
         "f32[8,6,256,256]"},
	{"mix", "f32[8,6,256,256]", "f32[8,6,256,64]",
         "x_batch = [0,1], y_batch = [0,1], x_contract = [3], y_contract = [2]", "f32[8,6,256,64]"},
	{"mix dv", "f32[8,6,256,256]", "f32[8,6,256,64]",
         "x_batch = [0,1], y_batch = [0,1], x_contract = [2], y_contract = [2]", "f32[8,6,256,64]"},
	{"fc 768", "f32[512,768]", "f32[768,3072]", "x_contract = [1], y_contract = [0]",
         "f32[512,3072]"},
	{"fc 768 dw", "f32[512,768]", "f32[512,3072]", "x_contract = [0], y_contract = [0]",
         "f32[768,3072]"},
};

/* The kernel of one product; NULL after saying why not. */
static const Kernel *
compile(Arena *arena, const Shape *s, Diag *diag, KernelFn *code)
{
	static const PassRow *const rows[] = {&pass_legalize, &pass_fuse, &pass_lower};
	const char *text = arena_printf(
		arena,
		"module @bench {\n  func @f(%%x: %s, %%y: %s) -> (%s) {\n"
		"    %%0 = dot %%x, %%y {%s} : %s\n    return %%0\n  }\n}\n",
		s->x, s->y, s->z, s->attrs, s->z);
	Module *m = module_parse(text, s->name, strmap_new(arena), diag);
	CpuTarget target = {"native", cpu_features(arena, "native")};
	Pipeline p = {0};
	PassManagerOptions o = {0};
	Stage stage = STAGE_TRAIN;

	for (int i = 0; i < COUNT(rows); i++)
		vec_push(arena, &p, pass_call(arena, rows[i]));
	for (int i = 0; i < p.n; i++)
		((TargetOptions *)p.at[i].options)->target =
			target_of_vectors(cpu_vector_bits(target.features))->name;
	if (!m || !pipeline_run(&p, m, &stage, &o, diag))
		return NULL;
	const KernelVariant *v = kernel_library(arena, m, kernel_printers[0], &target, 1);
	*code = v ? v->kernels[0] : NULL;
	return v ? m->kernels.at[0] : NULL;
}

typedef struct {
	KernelFn code;
	void *buffers[3];
} Run;

static void
run_part(void *ctx, int64_t begin, int64_t end)
{
	Run *r = ctx;

	r->code(r->buffers, NULL, begin, end);
}

/* GFLOP/s of the best of several runs. */
static double
measure(Pool *pool, const Kernel *k, Run *r)
{
	double best = 1e9, until = seconds_now() + 0.4;

	while (seconds_now() < until) {
		double start = seconds_now();
		parallel_for(pool, k->iterations, 1, run_part, r);
		double t = seconds_now() - start;
		best = t < best ? t : best;
	}
	return (double)k->flops / best * 1e-9;
}

/* The same by the library; 0 where it does not do this product. */
static double
measure_library(Onednn *lib, Arena *arena, const Kernel *k, Run *r, const char **name)
{
	Module m = {.kernels = {.at = (Kernel *[]){(Kernel *)k}, .n = 1}};
	FormatWriter *w = format_writer_new(arena);
	double best = 1e9, until = seconds_now() + 0.4;
	OnednnCall *call = NULL;
	LibraryWork work;
	int64_t bytes;
	Format f;

	*name = "";
	if (!lib || !k->library)
		return 0;
	tables_write(w, &(Tables){.m = &m});
	void *blob = format_finish(w, &bytes);
	Status status = format_read(blob, bytes, &f);
	if (!status)
		status = format_library_work(&f, 0, &work);
	if (!status)
		status = onednn_call_open(lib, &work, 0, f.library[0].scratch_limit, &call);
	if (status) {
		fprintf(stderr, "%s\n", status->message);
		status_free(status);
		return 0;
	}
	*name = onednn_implementation(call);
	void *buffers[N_LIBRARY_OPERANDS] = {r->buffers[work.buffer[LIBRARY_FIRST]],
	                                     r->buffers[work.buffer[LIBRARY_SECOND]],
	                                     r->buffers[2]};
	char *scratch = aligned_alloc(64, (size_t)onednn_scratch(call) + 64);
	while (seconds_now() < until) {
		double start = seconds_now();
		status_free(onednn_run(call, buffers, (char *const[]){NULL, NULL}, scratch));
		double t = seconds_now() - start;
		best = t < best ? t : best;
	}
	free(scratch);
	onednn_call_close(call);
	return (double)k->flops / best * 1e-9;
}

/* ---- the peak: independent chains of fused multiply-adds in registers */
#ifdef __AVX512F__
enum { VECTOR_BYTES = 64 };
#else
enum { VECTOR_BYTES = 32 };
#endif
enum { CHAINS = 12, STEPS = 1000000, LANES = VECTOR_BYTES / 4 };
typedef float Lanes __attribute__((vector_size(VECTOR_BYTES)));
static volatile float sink;

static void
multiply_add(void *ctx, int64_t begin, int64_t end)
{
	Lanes sums[CHAINS], a = {0}, b = {0};

	(void)ctx;
	for (int i = 0; i < LANES; i++)
		a[i] = b[i] = 0.5f + 0.01f * (float)i;
	for (int c = 0; c < CHAINS; c++)
		sums[c] = a * (float)c;
	for (int64_t part = begin; part < end; part++)
		for (int i = 0; i < STEPS; i++)
			for (int c = 0; c < CHAINS; c++)
				sums[c] = a * sums[c] + b;
	for (int c = 0; c < CHAINS; c++)
		sink += sums[c][c % LANES];
}

static double
peak(Pool *pool)
{
	double best = 0;

	for (int round = 0; round < 5; round++) {
		double start = seconds_now();
		parallel_for(pool, 2 * pool_threads(pool), 1, multiply_add, NULL);
		double t = seconds_now() - start;
		double rate = 2.0 * LANES * CHAINS * STEPS * 2 * pool_threads(pool) / t * 1e-9;
		best = rate > best ? rate : best;
	}
	return best;
}

int
main(int argc, char **argv)
{
	Diag *diag = diag_new("bench_gemm", stderr);
	Pool *pool;
	Arena *arena = arena_new();
	Onednn *lib;
	const char *name;

	if (diag_status(diag, pool_open(THREADS_BEST, argc > 1 ? (int)strtol(argv[1], NULL, 10) : 0,
	                                &pool)))
		return 1;
	diag_status(diag, onednn_open(pool, false, &lib));
	double most = peak(pool);
	printf("%d threads (%s), peak %.0f GFLOP/s\n%-8s %10s %8s %8s\n", pool_threads(pool),
	       pool_name(pool), most, "shape", "generated", "of peak", "library");
	for (int i = 0; i < COUNT(shapes); i++) {
		Run r = {0};
		const Kernel *k = compile(arena, &shapes[i], diag, &r.code);
		if (!k)
			return 1;
		for (int b = 0; b < 3; b++) {
			int64_t bytes = (type_bytes(k->buffers.at[b].type) + 63) / 64 * 64;
			r.buffers[b] = aligned_alloc(64, (size_t)bytes);
			memset(r.buffers[b], 0, (size_t)bytes);
		}
		double generated = measure(pool, k, &r);
		double library = measure_library(lib, arena, k, &r, &name);
		printf("%-8s %10.0f %7.0f%% %8.0f %s\n", shapes[i].name, generated,
		       100 * generated / most, library, name);
		for (int b = 0; b < 3; b++)
			free(r.buffers[b]);
	}
	onednn_close(lib);
	pool_close(pool);
	arena_free(arena);
	diag_free(diag);
	return 0;
}

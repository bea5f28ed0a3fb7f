/* bench_gemm [THREADS [SHAPE]]: GFLOP/s of matrix products as gradc generates them and as oneDNN computes them, beside the
 * machine's peak. BENCH_CPU: the CPU for which the loops are compiled, a level of --target. Each row is a dot in text IR,
 * compiled like a model and run on the thread pool. */
#include "codegen/codegen.h"
#include "runtime/library/library.h"
#include "tests/codegen/programs/kernel_library.h"

typedef struct {
	const char *name, *x, *y, *attrs, *z;
} Shape;

/* The products of a GPT-2 with 384 features, 8 rows of 256 tokens and 6 heads: forward, and both gradients. The last shape
 * is a layer's first matrix in a model of 768 features, whose matrix rows of 12 KiB share cache lines. */
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

/* The kernels of one product and their code; the last kernel stores the product. NULL after reporting a fault. */
static const Module *
compile(Arena *arena, const Shape *s, Diag *diag, const KernelCode **code)
{
	static const PassRow *const rows[] = {&pass_legalize, &pass_fuse, &pass_lower};
	const char *text = arena_printf(
		arena,
		"module @bench {\n  func @f(%%x: %s, %%y: %s) -> (%s) {\n"
		"    %%0 = dot %%x, %%y {%s} : %s\n    return %%0\n  }\n}\n",
		s->x, s->y, s->z, s->attrs, s->z);
	Module *m = module_parse(text, s->name, strmap_new(arena), diag);
	const char *cpu = getenv("BENCH_CPU") ? getenv("BENCH_CPU") : "native";
	CpuTarget target = {cpu, cpu_features(arena, cpu)};
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
	const CodeImage *v = kernel_library(arena, m, kernel_printers[0], &target, 1);
	*code = v ? image_kernels(v) : NULL;
	return v ? m : NULL;
}

/* x, y, z, and the scratch that the first of two kernels writes for the second. */
enum { X, Y, Z, SCRATCH, N_BUFFERS, MOST_SCRATCH = 64 << 20 };
typedef struct {
	KernelFn code;
	void *buffers[N_BUFFERS]; /* in the kernel's order */
} Run;

static void
run_part(void *ctx, int64_t begin, int64_t end)
{
	Run *r = ctx;

	r->code(r->buffers, NULL, begin, end);
}

/* GFLOP/s of the best of several runs. If there are two kernels, the first writes the scratch, which is the second's last
 * input. */
static double
measure(Pool *pool, const Module *m, const KernelCode *code, void *const *buffers)
{
	double best = 1e9, until = seconds_now() + 0.4;
	const Kernel *last = m->kernels.at[0], *before = m->kernels.n > 1 ? m->kernels.at[1] : NULL;
	Run run = {code[0].run,
	           {buffers[X], buffers[Y], before ? buffers[SCRATCH] : buffers[Z], buffers[Z]}};
	Run first = {before ? code[1].run : NULL, {buffers[X], buffers[Y], buffers[SCRATCH]}};

	while (seconds_now() < until) {
		double start = seconds_now();
		if (before)
			parallel_for(pool, before->iterations, 1, run_part, &first);
		parallel_for(pool, last->iterations, 1, run_part, &run);
		double t = seconds_now() - start;
		best = t < best ? t : best;
	}
	return (double)(last->flops + (before ? before->flops : 0)) / best * 1e-9;
}

/* GFLOP/s of the library; 0 if it does not support the product. */
static double
measure_library(Library *lib, const Kernel *k, const Kernel *before, void *const *own,
                const char **name)
{
	const LibraryOps *ops = &library_onednn;
	double flops = (double)(k->flops + (before ? before->flops : 0));
	double best = 1e9, until = seconds_now() + 0.4;
	PreparedCall *call = NULL;

	*name = "";
	if (!lib || !k->library)
		return 0;
	Status status = ops->prepare(lib, k->library, 0, MOST_SCRATCH, &call);
	if (status) {
		fprintf(stderr, "%s\n", status->message);
		status_free(status);
		return 0;
	}
	*name = ops->implementation(call);
	void *buffers[N_LIBRARY_OPERANDS] = {own[X], own[Y], own[Z]};
	char *scratch = aligned_alloc(64, (size_t)ops->scratch(call) + 64);
	while (seconds_now() < until) {
		double start = seconds_now();
		status_free(ops->run(call, buffers, (char *const[]){NULL, NULL}, scratch, NULL));
		double t = seconds_now() - start;
		best = t < best ? t : best;
	}
	free(scratch);
	ops->release(call);
	return flops / best * 1e-9;
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
	Library *lib;
	const char *name;

	if (diag_status(diag, pool_open(THREADS_BEST, argc > 1 ? (int)strtol(argv[1], NULL, 10) : 0,
	                                &pool)))
		return 1;
	diag_status(diag, library_onednn.open(&(LibraryHome){.pool = pool}, &lib));
	double most = peak(pool);
	printf("%d threads (%s), peak %.0f GFLOP/s\n%-10s %10s %8s %8s %6s\n", pool_threads(pool),
	       pool_name(pool), most, "shape", "generated", "of peak", "library", "parts");
	for (int i = 0; i < COUNT(shapes); i++) {
		const KernelCode *code;
		if (argc > 2 && strcmp(argv[2], shapes[i].name) != 0)
			continue;
		const Module *m = compile(arena, &shapes[i], diag, &code);
		void *buffers[N_BUFFERS] = {0};
		if (!m)
			return 1;
		const Kernel *k = m->kernels.at[0];
		for (int b = 0; b < k->n_inputs + k->n_outputs; b++) {
			int64_t bytes = (type_bytes(k->buffers.at[b].type) + 63) / 64 * 64;
			int to = b < 2 ? b : b < k->n_inputs ? SCRATCH : Z;
			buffers[to] = aligned_alloc(64, (size_t)bytes);
			memset(buffers[to], 0, (size_t)bytes);
		}
		double generated = measure(pool, m, code, buffers);
		const Kernel *before = m->kernels.n > 1 ? m->kernels.at[1] : NULL;
		double library = measure_library(lib, k, before, buffers, &name);
		printf("%-10s %10.0f %7.0f%% %8.0f %6lld %s%s\n", shapes[i].name, generated,
		       100 * generated / most, library, (long long)k->iterations, name,
		       m->kernels.n > 1 ? " +1" : "");
		for (int b = 0; b < N_BUFFERS; b++)
			free(buffers[b]);
	}
	library_onednn.close(lib);
	pool_close(pool);
	arena_free(arena);
	diag_free(diag);
	return 0;
}

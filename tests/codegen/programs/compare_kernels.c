/* compare_kernels FILE.gir [plain|flip|cuda [EDIT]|gpu ARCHITECTURE]: runs every kernel of a lowered module on random buffers,
 * with every printer and for every CPU that this machine can emulate, both at once and with its range of iterations cut into
 * pieces. The interpreter runs small kernels, too. All results must have the same bits; a NaN equals any NaN. Prints one line
 * per difference and a last line with counts; exit code 1 if there was a difference.
 *
 * `flip` changes a bit of each first result of the last code; the comparison must find it. `plain`: the C compiler does not
 * optimize. `cuda`: compares plain C, the interpreter, and CUDA C run by the harness (cuda/block.cpp); EDIT, a sed expression,
 * changes the CUDA text first. `gpu`: compares C, the interpreter, and a real GPU. */
#include "tests/codegen/cuda/gpu.h"
#include "tests/codegen/cuda/library.h"
#include "tests/codegen/programs/kernel_library.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>

enum { MAX_BUFFERS = 256, MAX_CODES = 16, SMALL = 20000, HUGE_ROW_END = 4096 };

typedef struct {
	const char *printer, *cpu;
	const KernelCode *kernels; /* NULL: the interpreter, or the GPU */
	bool first;                /* true: the code with which the others are compared */
	GpuKernels *gpu;           /* NULL: no GPU */
} Candidate;

static uint64_t seed = 1,
		integers = 4; /* random integers are below $INTEGERS, since some are indices */
static bool flip;

static uint64_t
random_word(void)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return seed >> 33;
}

/* Is the tensor a gigabyte or more? Then inputs are zeros except for the end of each row, and all codes share one input,
 * because memory that is never written takes no space. */
static bool
is_huge(Type t)
{
	return type_bytes(t) >= 1ll << 30;
}

static void
fill(Type t, void *at)
{
	int64_t row = is_huge(t) ? t->dims[t->rank - 1] : 1;

	for (int64_t i = 0; i < t->n; i++) {
		if (is_huge(t) && i % row < row - HUGE_ROW_END) {
			i += row - HUGE_ROW_END - i % row - 1;
			continue;
		}
		double x = (double)random_word() / (double)(1ull << 31) * 4 - 2;
		if (dtype_is_float(t->dtype))
			dtype_store_float(t->dtype, at, i, x);
		else
			dtype_store_int(t->dtype, at, i, (int64_t)(random_word() % integers));
	}
}

/* The tolerance for products whose operands are rounded to tf32 (11 bits); all operands are below 2. */
static double
tf32_slack(const Kernel *k)
{
	double slack = 0;

	for (int i = 0; i < k->body.n; i++)
		if (k->body.at[i].tf32)
			slack += (double)k->body.at[i].extent * 2 * (2 * 2.0 / (1 << 11));
	return slack;
}

/* The tolerance for a GPU's matrix unit, which adds 16-bit products in an order of its own and drops bits far below the
 * largest. */
static double
matrix_slack(const Kernel *k)
{
	double slack = 0;

	for (int i = 0; i < k->body.n; i++)
		if (k->body.at[i].kind == LOOP_STATEMENT_MMA)
			slack += (double)k->body.at[i].extent * 4 / (1 << 20);
	return slack;
}

/* The tolerance for a GPU's instruction in the place of exp (ADR 41): its operands are below 2. */
static double
fast_slack(const Kernel *k)
{
	for (int i = 0; i < k->body.n; i++)
		if (k->body.at[i].kind == LOOP_STATEMENT_OP &&
		    (k->body.at[i].op == LOOP_exp_fast || k->body.at[i].op == LOOP_tanh_fast))
			return 1.0 / (1 << 18);
	return 0;
}

static bool
is_near(Type t, const char *a, const char *b, double slack)
{
	for (int64_t i = 0; i < t->n; i++)
		if (!(fabs(dtype_load_float(t->dtype, a, i) - dtype_load_float(t->dtype, b, i)) <=
		      slack))
			return false;
	return true;
}

static bool
same(Type t, const char *a, const char *b)
{
	int64_t size = dtype_bytes(t->dtype, 1);
	bool packed = dtype_info[t->dtype].bits < 8;

	if (packed) /* all bits but those behind the last element */
		for (int64_t i = 0; i < t->n; i++)
			if (dtype_load_int(t->dtype, a, i) != dtype_load_int(t->dtype, b, i) ||
			    dtype_load_float(t->dtype, a, i) != dtype_load_float(t->dtype, b, i))
				return false;
	for (int64_t i = 0; !packed && i < t->n; i++) {
		bool both_nan = dtype_is_float(t->dtype) &&
		                dtype_load_float(t->dtype, a, i) !=
		                        dtype_load_float(t->dtype, a, i) &&
		                dtype_load_float(t->dtype, b, i) !=
		                        dtype_load_float(t->dtype, b, i);
		if (memcmp(a + i * size, b + i * size, (size_t)size) != 0 && !both_nan)
			return false;
	}
	return true;
}

/* Runs a code on the given inputs: first the iterations up to a random one, then the rest. */
static void
run(const Kernel *k, const Candidate *code, int index, void **buffers, void *const *inputs)
{
	static const Scalar scalars[N_SCALARS] = {
		[SCALAR_LR].f = 1e-3,           [SCALAR_BETA1].f = 0.9,
		[SCALAR_BETA2].f = 0.999,       [SCALAR_EPS].f = 1e-8,
		[SCALAR_WEIGHT_DECAY].f = 0.01, [SCALAR_MOMENTUM].f = 0.9,
		[SCALAR_CLIP_NORM].f = 1,       [SCALAR_RANKS].f = 3,
		[SCALAR_STEP].u = 1ull << 60,   [SCALAR_SEED].u = UINT64_MAX - 1};
	void *copies[MAX_BUFFERS];

	for (int i = 0; i < k->n_inputs + k->n_outputs; i++) {
		size_t bytes = (size_t)type_bytes(k->buffers.at[i].type);
		copies[i] = buffers[i] == inputs[i] ? inputs[i]
		                                    : memcpy(buffers[i], inputs[i], bytes);
	}
	int64_t middle = code->first || k->iterations == 0 ? 0
	                                                   : (int64_t)random_word() % k->iterations;
	for (int piece = 0; piece < 2; piece++) {
		int64_t begin = piece ? middle : 0, end = piece ? k->iterations : middle;
		if (begin == end && k->iterations)
			continue;
		if (code->gpu)
			gpu_run(code->gpu, index, copies, scalars, begin, end);
		else if (code->kernels)
			code->kernels[index].run(copies, scalars, begin, end);
		else
			kernel_interpret(k, copies, scalars, begin, end);
	}
}

static bool
is_small(const Kernel *k)
{
	int64_t n = k->flops;

	for (int i = 0; i < k->buffers.n; i++)
		n += k->buffers.at[i].type->n;
	return n <= SMALL;
}

/* A buffer that ends with its last element, so that AddressSanitizer sees accesses behind it. */
static void *
buffer(Type t)
{
	size_t bytes = (size_t)type_bytes(t);
	void *at = NULL;

	if (is_huge(t)) {
		at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (at == MAP_FAILED)
			abort();
		return at;
	}
	if (posix_memalign(&at, 64, bytes ? bytes : 1) != 0)
		abort();
	return at;
}

static void
release(Type t, void *at)
{
	if (is_huge(t))
		munmap(at, (size_t)type_bytes(t));
	else
		free(at);
}

static int
compare(const Kernel *k, int index, const Candidate *codes, int n_codes)
{
	int n = k->n_inputs + k->n_outputs, differences = 0;
	void *inputs[MAX_BUFFERS] = {0}, *want[MAX_BUFFERS] = {0}, *got[MAX_BUFFERS] = {0};

	for (int i = 0; i < n; i++) {
		Type t = k->buffers.at[i].type;
		inputs[i] = buffer(t);
		want[i] = is_huge(t) && i < k->n_inputs ? inputs[i] : buffer(t);
		got[i] = is_huge(t) && i < k->n_inputs ? inputs[i] : buffer(t);
		fill(t, inputs[i]);
	}
	run(k, &codes[0], index, want, inputs);
	for (int c = 1; c < n_codes; c++) {
		if (!codes[c].kernels && !codes[c].gpu && !is_small(k))
			continue;
		bool rounds = codes[c].gpu || strcmp(codes[c].printer, "cuda") == 0;
		double slack = (rounds ? tf32_slack(k) : 0) +
		               (codes[c].gpu ? matrix_slack(k) + fast_slack(k) : 0);
		run(k, &codes[c], index, got, inputs);
		if (flip && c == n_codes - 1)
			*(char *)got[k->n_inputs] ^= 1;
		for (int i = k->n_inputs; i < n; i++)
			if (!same(k->buffers.at[i].type, want[i], got[i]) &&
			    !(slack > 0 &&
			      is_near(k->buffers.at[i].type, want[i], got[i], slack))) {
				printf("%s: output %d by %s for %s differs\n", k->name,
				       i - k->n_inputs, codes[c].printer, codes[c].cpu);
				differences++;
			}
	}
	for (int i = 0; i < n; i++) {
		release(k->buffers.at[i].type, inputs[i]);
		if (want[i] != inputs[i])
			release(k->buffers.at[i].type, want[i]);
		if (got[i] != inputs[i])
			release(k->buffers.at[i].type, got[i]);
	}
	return differences;
}

static bool
has_tiles(const Module *m)
{
	for (int i = 0; i < m->kernels.n; i++)
		if (kernel_has_tiles(m->kernels.at[i]))
			return true;
	return false;
}

int
main(int argc, char **argv)
{
	static const char *const cpus[] = {"native", "x86-64-v2", "x86-64-v3", "x86-64-v4"};
	Arena *arena = arena_new();
	Diag *diag = diag_new("compare_kernels", stderr);
	Module *m = argc >= 2 ? module_of_file(arena, argv[1], diag) : NULL;
	CpuTarget targets[COUNT(cpus)];
	Candidate codes[MAX_CODES];
	int n_targets = 0, n_codes = 0, differences = 0, lacks;
	GpuKernels gpu = {0};

	if (!m)
		return 2;
	integers = getenv("INTEGERS") ? (uint64_t)atoi(getenv("INTEGERS")) : integers;
	flip = argc > 2 && strcmp(argv[2], "flip") == 0;
	bool on_gpu = argc > 3 && strcmp(argv[2], "gpu") == 0;
	bool cuda = argc > 2 && strcmp(argv[2], "cuda") == 0;
	bool plain = cuda || (argc > 2 && strcmp(argv[2], "plain") == 0);
	for (int i = 0; i < COUNT(cpus); i++) {
		targets[n_targets] = (CpuTarget){cpus[i], cpu_features(arena, cpus[i])};
		n_targets += !cpu_lacks(targets[n_targets].features, &lacks);
	}
	for (int i = 0; kernel_printers[i]; i++) {
		bool c = kernel_printers[i] ==
		         &printer_c; /* C is slow to compile: this machine's CPU only */
		if (!c && (has_tiles(m) || cuda || on_gpu))
			continue;
		const CodeImage *v = kernel_library(
			arena, m, c && plain ? &printer_plain_c : kernel_printers[i], targets,
			c ? 1 : n_targets);
		if (!v)
			return 2;
		for (; v->name; v++) {
			codes[n_codes] = (Candidate){kernel_printers[i]->name, v->name,
			                             image_kernels(v), n_codes == 0};
			n_codes++;
		}
	}
	if (cuda) {
		harness_edit = argv[3];
		kernel_library_stays = true;
		const CodeImage *v = kernel_library(arena, m, &printer_harness, targets, 1);
		if (!v)
			return 2;
		codes[n_codes++] = (Candidate){"cuda", "harness", image_kernels(v), false};
	}
	if (on_gpu) {
		if (!gpu_open(arena, m, argv[3], &gpu))
			return 2;
		codes[n_codes++] = (Candidate){"gpu", argv[3], .gpu = &gpu};
	}
	codes[n_codes++] = (Candidate){"interpreter", "any", NULL, false};
	for (int i = 0; i < m->kernels.n; i++)
		differences += compare(m->kernels.at[i], i, codes, n_codes);
	printf("%d kernels, %d codes, %d differences\n", m->kernels.n, n_codes, differences);
	module_free(m);
	diag_free(diag);
	arena_free(arena);
	return differences > 0 || gpu.faulty;
}

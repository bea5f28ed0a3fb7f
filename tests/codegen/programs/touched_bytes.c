/* touched_bytes FILE.gir: prints a line for each large kernel of a lowered module with few operations per byte: its
 * iterations, the bytes of its arguments, the bytes that its iterations touch (each element counts once per iteration), and
 * its origin. A sample of iterations stands for all. Arguments are zeros. */
#include "tests/codegen/programs/kernel_library.h"

#include <math.h>
#include <sys/mman.h>

enum {
	PARTS = 5,
	OPERATIONS = 15, /* per byte; kernels with more operations are limited by computing */
	LEAST = 1 << 20  /* bytes of a large kernel */
};

static int64_t
argument_bytes(const Kernel *k)
{
	int64_t bytes = 0;

	for (int i = 0; i < k->n_inputs + k->n_outputs; i++)
		bytes += type_bytes(k->buffers.at[i].type);
	return bytes;
}

/* Zeros; only written pages take memory. */
static void *
zeros(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
	               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED) {
		perror("touched_bytes");
		exit(1);
	}
	return p;
}

static int64_t
touched_bytes(const Kernel *k)
{
	static const Scalar scalars[N_SCALARS];
	KernelCounts counts = {0};
	int n = k->n_inputs + k->n_outputs;
	int64_t parts = k->iterations < PARTS ? k->iterations : PARTS;
	void **buffers = calloc((size_t)n, sizeof(*buffers));

	for (int i = 0; i < n && buffers; i++)
		buffers[i] = zeros((size_t)type_bytes(k->buffers.at[i].type) + 1);
	for (int64_t i = 0; i < parts; i++) {
		/* Not even steps: they would select the same iterations of the inner loops each time. */
		int64_t part = (int64_t)((double)k->iterations * fmod((double)i * 0.6180339887, 1));
		kernel_interpret_counted(k, buffers, scalars, part, part + 1, &counts);
	}
	for (int i = 0; i < n && buffers; i++)
		munmap(buffers[i], (size_t)type_bytes(k->buffers.at[i].type) + 1);
	free(buffers);
	return counts.touched_bits / 8 * k->iterations / parts;
}

int
main(int argc, char **argv)
{
	Arena *arena = arena_new();
	Diag *diag = diag_new("touched_bytes", stderr);
	Module *m = argc == 2 ? module_of_file(arena, argv[1], diag) : NULL;

	for (int i = 0; m && i < m->kernels.n; i++) {
		const Kernel *k = m->kernels.at[i];
		int64_t bytes = argument_bytes(k);
		if (bytes < LEAST || k->flops >= OPERATIONS * bytes || k->iterations == 0)
			continue;
		Text from = {0};
		loc_text(&from, k->loc);
		printf("%lld %lld %lld %s\n", (long long)k->iterations, (long long)bytes,
		       (long long)touched_bytes(k), from.at ? from.at : "");
		text_free(&from);
		fflush(stdout);
	}
	if (m)
		module_free(m);
	diag_free(diag);
	arena_free(arena);
	return !m;
}

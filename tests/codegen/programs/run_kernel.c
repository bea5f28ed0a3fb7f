/* run_kernel FILE.gir KERNEL interpreter|PRINTER FILE...: runs one kernel of a module on this machine's CPU. There is one
 * raw file per parameter, in order: the files of inputs are read, the files of outputs are written. */
#include "tests/codegen/programs/kernel_library.h"

enum { MAX_BUFFERS = 64 };

static const KernelPrinter *
printer_named(const char *name)
{
	for (int i = 0; kernel_printers[i]; i++)
		if (strcmp(kernel_printers[i]->name, name) == 0)
			return kernel_printers[i];
	return NULL;
}

static int
kernel_index(const Module *m, const char *name)
{
	for (int i = 0; i < m->kernels.n; i++)
		if (strcmp(m->kernels.at[i]->name, name) == 0)
			return i;
	return -1;
}

static bool
run_kernel(Arena *arena, const Module *m, int index, const char *how, void *const *buffers)
{
	static const Scalar scalars[N_SCALARS];
	const Kernel *k = m->kernels.at[index];
	const KernelPrinter *printer = printer_named(how);

	if (!printer) {
		kernel_interpret(k, buffers, scalars, 0, k->iterations);
		return true;
	}
	CpuTarget target = {"native", cpu_features(arena, "native")};
	const CodeImage *v = kernel_library(arena, m, printer, &target, 1);
	if (v)
		image_kernels(v)[index].run(buffers, scalars, 0, k->iterations);
	return v;
}

int
main(int argc, char **argv)
{
	Arena *arena = arena_new();
	Diag *diag = diag_new("run_kernel", stderr);
	Module *m = argc > 4 ? module_of_file(arena, argv[1], diag) : NULL;
	int index = m ? kernel_index(m, argv[2]) : -1;
	void *buffers[MAX_BUFFERS];

	if (index < 0)
		return 2;
	const Kernel *k = m->kernels.at[index];
	int n = k->n_inputs + k->n_outputs;
	if (argc != 4 + n || n > MAX_BUFFERS)
		return 2;
	for (int i = 0; i < n; i++) {
		int64_t bytes = type_bytes(k->buffers.at[i].type), got = bytes;
		if (i >= k->n_inputs)
			buffers[i] = arena_alloc(arena, (size_t)bytes + 64);
		else if (diag_status(diag,
		                     file_read(arena, argv[4 + i], 1 << 30, &buffers[i], &got)))
			return 2;
		if (got != bytes)
			return 2;
	}
	if (!run_kernel(arena, m, index, argv[3], buffers))
		return 2;
	for (int i = k->n_inputs; i < n; i++)
		if (diag_status(diag, file_write(argv[4 + i], buffers[i],
		                                 type_bytes(k->buffers.at[i].type))))
			return 2;
	arena_free(arena);
	return 0;
}

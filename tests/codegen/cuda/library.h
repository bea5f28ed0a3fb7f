/* A module's kernels as CUDA C, compiled for a harness that runs blocks of threads on this CPU. */
#ifndef GRADC_TESTS_CUDA_LIBRARY_H
#define GRADC_TESTS_CUDA_LIBRARY_H

#include "tests/codegen/programs/kernel_library.h"

/* Prints a function that launches the kernel, running its blocks one after the other. */
static inline void
print_launch(Text *out, const Kernel *k)
{
	text_printf(
		out,
		"\nstatic void\nenter_%s(void *call)\n{\n\tconst Call *c = (const Call *)call;\n\n"
		"\tgradc_%s(",
		k->name, k->name);
	for (int i = 0; i < k->n_inputs + k->n_outputs; i++)
		text_printf(out, "(decltype(argument<%d>(gradc_%s)))c->buffers[%d], ", i, k->name,
		            i);
	text_printf(
		out,
		"c->scalars, c->begin, c->end);\n}\nextern \"C\" void\ngradc_%s_launch(void *const *buffers, "
		"const Scalar *scalars, int64_t begin, int64_t end)\n{\n"
		"\tCall c = {buffers, scalars, begin, end};\n\n"
		"\tfor (int64_t i = 0; i < ",
		k->name);
	if (k->n_team)
		text_add(out, "end - begin");
	else
		text_printf(out, "(end - begin + %d) / %d", cuda_threads(k) - 1, cuda_threads(k));
	text_printf(out, "; i++)\n\t\tharness_run_block((unsigned)i, %d, enter_%s, &c);\n}\n",
	            cuda_threads(k), k->name);
}

/* The same sanitizers as this program has: other code would show neither races nor bounds errors. */
#if defined(__SANITIZE_THREAD__)
#define HARNESS_FLAGS "-O1 -g -fsanitize=thread "
#elif defined(__SANITIZE_ADDRESS__)
#define HARNESS_FLAGS "-O1 -g -fsanitize=address "
#else
#define HARNESS_FLAGS "-O0 "
#endif

/* A fault to plant in the kernels' text, as a sed expression; NULL: no fault. */
static const char *harness_edit;

static inline Status
edit(const char *path)
{
	Text command = {0};

	if (!harness_edit)
		return NULL;
	text_printf(&command, "cp %s %s.was && sed -i -E '%s' %s && ! cmp -s %s %s.was", path, path,
	            harness_edit, path, path, path);
	int rc = system(command.at);
	text_free(&command);
	return rc ? status_error(EXIT_USAGE, "%s changes nothing", harness_edit) : NULL;
}

static inline Status
harness_build(Build *b, const Module *m, const void *blob, int64_t bytes)
{
	KernelPart all = build_list(b->arena, m, NULL);
	const Target *target = target_find("cuda-sm_90");
	const char *kernels = build_file(b, "kernels.cpp"), *table = build_file(b, "table.c");
	Text text = {0};

	(void)blob, (void)bytes;
	for (int i = 0; i < all.n; i++)
		if (cuda_refusal(all.at[i], target))
			return status_error(EXIT_UNSUPPORTED, "kernel @%s: %s", all.at[i]->name,
			                    cuda_refusal(all.at[i], target));
	text_add(&text, "#include \"" HARNESS "/device.h\"\n");
	cuda_print_part(&text, target, &all);
	text_add(
		&text,
		"\nstruct Call {\n\tvoid *const *buffers;\n\tconst Scalar *scalars;\n\tint64_t begin, end;\n};\n"
		"extern \"C\" void harness_run_block(unsigned, int, void (*)(void *), void *);\n"
		"template <int I, typename A, typename... Rest> struct At { typedef typename At<I - 1, Rest...>::Type Type; };\n"
		"template <typename A, typename... Rest> struct At<0, A, Rest...> { typedef A Type; };\n"
		"template <int I, typename... A> typename At<I, A...>::Type argument(void (*)(A...));\n");
	for (int i = 0; i < all.n; i++)
		print_launch(&text, all.at[i]);
	Status status = file_write(kernels, text.at, (int64_t)text.n);
	if (!status)
		status = edit(kernels);
	text_free(&text);
	if (!status)
		status = kernel_table_write(b, m, table, "_launch");
	vec_push(b->arena, &b->objects, HARNESS_FLAGS "-ffp-contract=off -fwrapv -fPIC -xc++");
	vec_push(b->arena, &b->objects, kernels);
	vec_push(b->arena, &b->objects, HARNESS "/block.cpp");
	vec_push(b->arena, &b->objects, "-xc");
	vec_push(b->arena, &b->objects, table);
	vec_push(b->arena, &b->objects, "-lstdc++");
	return status;
}

static const KernelPrinter printer_harness = {.name = "cuda", .build = harness_build};

#endif

/* Compiles kernels with the C compiler. The kernels are divided into several source files
 * (parts), so that several compilers run at the same time. */
#include "codegen/c/c.h"

#include <string.h>

enum { MAX_FEATURES = 64 };

static const char *const compile_flags[] = {
	"-std=gnu11",
	"-O3",
	"-ffp-contract=off",
	"-fno-math-errno",
	"-fno-trapping-math",
	"-mtune=native",
	"-fopenmp-simd",
	"-fwrapv",
	"-fPIC",
	"-w",
};

typedef struct {
	Build *b;
	const CpuTarget *target;
	const char *source[MAX_PARTS], *object[MAX_PARTS], *log[MAX_PARTS];
	int n_parts;
} Compile;

/* The path of a source file: in the user's folder if sources are kept, otherwise in the
 * temporary folder. */
static const char *
source_file(Build *b, const char *name)
{
	const char *keep = b->options->keep_sources;

	return keep ? path_join(b->arena, keep, name) : build_file(b, name);
}

/* -mNAME for each feature of the target. */
static int
feature_flags(Build *b, const char *features, char **argv)
{
	char *copy = arena_strdup(b->arena, features), *save = NULL;
	int n = 0;

	for (char *word = strtok_r(copy, " ", &save); word && n < MAX_FEATURES;
	     word = strtok_r(NULL, " ", &save))
		argv[n++] = arena_printf(b->arena, "-m%s", word);
	return n;
}

static Status
start_part(const Compile *c, int part, Process *out)
{
	char *argv[COUNT(compile_flags) + MAX_FEATURES + 8];
	int n = 0;

	argv[n++] = (char *)build_compiler(c->b);
	for (int k = 0; k < COUNT(compile_flags); k++)
		argv[n++] = (char *)compile_flags[k];
	n += feature_flags(c->b, c->target->features, argv + n);
	argv[n++] = "-c";
	argv[n++] = (char *)c->source[part];
	argv[n++] = "-o";
	argv[n++] = (char *)c->object[part];
	argv[n] = NULL;
	return build_start(c->b, argv, c->log[part], out);
}

/* Runs the compilers of all parts at the same time. */
static Status
run_compilers(const Compile *c)
{
	Process compilers[MAX_PARTS];
	Status first = NULL;
	int started = 0;

	for (; started < c->n_parts && !first; started += !first)
		first = start_part(c, started, &compilers[started]);
	for (int i = 0; i < started; i++) {
		Status status = build_finish(c->b, &compilers[i]);
		first = status_first(first, status);
	}
	return first;
}

static Status
compile_target(Build *b, const Module *m, int index)
{
	KernelPart parts[MAX_PARTS];
	const CpuTarget *target = &b->options->targets[index];
	Compile c = {.b = b,
	             .target = target,
	             .n_parts = build_parts(b->arena, m, target->target, parts)};
	const char *suffix = index ? arena_printf(b->arena, "_%d", index) : "";
	Status status = NULL;

	for (int i = 0; i < c.n_parts && !status; i++) {
		Text source = {0};
		c.source[i] = source_file(b, arena_printf(b->arena, "kernels%d%s.c", i, suffix));
		c.object[i] = build_file(b, arena_printf(b->arena, "kernels%d%s.o", i, suffix));
		c.log[i] = build_file(b, arena_printf(b->arena, "log%d%s", i, suffix));
		vec_push(b->arena, &b->objects, c.object[i]);
		c_print_part(&source, &parts[i], suffix);
		status = file_write(c.source[i], source.at, (int64_t)source.n);
		text_free(&source);
	}
	return status ? status : run_compilers(&c);
}

static const char *
table_name(Build *b, int target)
{
	return target ? arena_printf(b->arena, "gradc_kernels_%d", target) : "gradc_kernels";
}

/* Writes images that a device loads, as files that the assembler includes. */
static Status
write_images(Build *b)
{
	for (int i = 0; i < b->images.n; i++) {
		const Text *bytes = &b->images.at[i].bytes;
		RETURN_IF_ERROR(file_write(build_file(b, arena_printf(b->arena, "image%d.bin", i)),
		                           bytes->at, (int64_t)bytes->n));
	}
	return NULL;
}

static void
print_bytes(Text *out, const char *symbol, const char *file)
{
	text_printf(out,
	            "\n__asm__(\".section .rodata\\n.balign 64\\n%s:\\n"
	            "\t.incbin \\\"%s\\\"\\n.previous\\n\");\n"
	            "extern const char %s[] __attribute__((visibility(\"hidden\")));\n",
	            symbol, file, symbol);
}

/* Prints the GradcModel: the tables as bytes, and the kernels of each CPU. */
static void
print_model(Text *out, Build *b, const Module *m, const char *blob, int64_t bytes)
{
	print_bytes(out, "gradc_blob", blob);
	for (int i = 0; i < b->images.n; i++)
		print_bytes(out, arena_printf(b->arena, "gradc_image%d", i),
		            build_file(b, arena_printf(b->arena, "image%d.bin", i)));
	text_add(out, "static const struct {\n\tconst char *name, *features;\n\tint64_t kind;\n"
	              "\tconst void *data;\n\tint64_t size, target;\n} images[] = {\n");
	for (int i = 0; i < b->options->n_targets; i++) {
		const CpuTarget *t = &b->options->targets[i];
		text_printf(out, "\t{\"%s\", \"%s\", %d, %s, %d, %d},\n", t->cpu, t->features,
		            IMAGE_FUNCTIONS, table_name(b, i), m->kernels.n,
		            build_target(b->arena, m, t->target));
	}
	for (int i = 0; i < b->images.n; i++)
		text_printf(out, "\t{\"%s\", \"\", %d, gradc_image%d, %lld, %d},\n",
		            b->images.at[i].name, IMAGE_BYTES, i,
		            (long long)b->images.at[i].bytes.n, b->images.at[i].target);
	text_printf(out,
	            "\t{0},\n};\n"
	            "const struct {\n\tint64_t abi;\n\tconst void *blob;\n\tint64_t bytes;\n"
	            "\tconst void *images, *file;\n} %s = {%d, gradc_blob, %lld, images, 0};\n",
	            build_model_symbol(b), GRADC_ABI, (long long)bytes);
	if (!b->options->library)
		text_add(out, "extern const int " GRADC_ABI_NAME ";\n"
		              "const int *const gradc_abi_needed = &" GRADC_ABI_NAME ";\n");
}

static Status
c_build(Build *b, const Module *m, const void *blob, int64_t bytes)
{
	const char *blob_file = build_file(b, "tables.bin"), *table = source_file(b, "table.c");
	Text source = {0};

	if (b->options->keep_sources)
		RETURN_IF_ERROR(folder_make(b->options->keep_sources));
	RETURN_IF_ERROR(file_write(blob_file, blob, bytes));
	RETURN_IF_ERROR(write_images(b));
	for (int i = 0; i < b->options->n_targets; i++)
		RETURN_IF_ERROR(compile_target(b, m, i));
	c_print_table_types(&source);
	for (int i = 0; i < b->options->n_targets; i++)
		c_print_table(&source, build_kernels(b->arena, m, b->options->targets[i].target),
		              m->kernels.n, i ? arena_printf(b->arena, "_%d", i) : "");
	print_model(&source, b, m, blob_file, bytes);
	Status status = file_write(table, source.at, (int64_t)source.n);
	text_free(&source);
	/* the program that links, a C compiler, also compiles this file */
	vec_push(b->arena, &b->objects, table);
	return status;
}

static Status
c_print(Text *out, const Module *m, const CpuTarget *target, const char *language)
{
	Arena *arena = arena_new();
	KernelPart all = build_list(arena, m, target->target);

	(void)language;
	c_print_part(out, &all, "");
	arena_free(arena);
	return NULL;
}

static const char *const languages[] = {"c", NULL};
const KernelPrinter printer_c = {
	.name = "c", .languages = languages, .print = c_print, .build = c_build};

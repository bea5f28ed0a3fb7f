/* Compiles kernels, links them, and appends weights and tables to the ELF file. The file is
 * written under another name and renamed at the end, so no half-written executable ever has the
 * final name. */
#include "codegen/cuda/cuda.h"
#include "codegen/emit/emit.h"
#include "codegen/legalize/legalize.h"

static const char *const link_flags[] = {GRADC_LINK_FLAGS NULL}; /* flags of the build of gradc */

static Status
link_objects(Build *b, const char *executable)
{
	const char *log = build_file(b, "log");
	char **argv = NEW_ARRAY(b->arena, char *, b->objects.n + COUNT(link_flags) + 16);
	Process linker;
	int n = 0;

	argv[n++] = (char *)build_compiler(b);
	argv[n++] = "-w";
	for (int i = 0; i < b->objects.n; i++)
		argv[n++] = (char *)b->objects.at[i];
	argv[n++] = b->options->library ? "-shared" : "-pie";
	if (!b->options->library)
		argv[n++] = (char *)b->options->runtime;
	for (int i = 0; link_flags[i]; i++)
		argv[n++] = (char *)link_flags[i];
	argv[n++] = "-lm";
	argv[n++] = "-lpthread";
	argv[n++] = "-o";
	argv[n++] = (char *)executable;
	argv[n] = NULL;
	RETURN_IF_ERROR(build_start(b, argv, log, &linker));
	return build_finish(b, &linker);
}

static Status
add_zeros(FileWriter *out, int64_t n)
{
	static const char zeros[4096];

	for (int64_t part; n > 0; n -= part) {
		part = n < (int64_t)sizeof(zeros) ? n : (int64_t)sizeof(zeros);
		RETURN_IF_ERROR(file_writer_add(out, zeros, part));
	}
	return NULL;
}

/* Writes the weights at the offsets in the tables, with zeros in between. */
static Status
write_weights(FileWriter *out, const Module *m, const FormatWriter *w)
{
	int64_t begin = file_writer_offset(out);

	for (int i = 0; i < m->states.n; i++) {
		const State *s = m->states.at[i];
		if (s->init != INIT_DATA || !s->data)
			continue;
		RETURN_IF_ERROR(add_zeros(out, begin + w->states.at[i].data_offset -
		                                       file_writer_offset(out)));
		RETURN_IF_ERROR(file_writer_add(out, s->data->data, type_bytes(s->type)));
	}
	return NULL;
}

static Status
write_weights_file(const Module *m, const FormatWriter *w, const char *path)
{
	FileWriter *out;

	RETURN_IF_ERROR(file_writer_open(path, &out));
	return file_writer_end(out, write_weights(out, m, w));
}

static Status
append_tail(FileWriter *out, Build *b, const char *executable, const Module *m,
            const FormatWriter *w, const void *blob, int64_t blob_bytes)
{
	FormatTail tail = {.magic = FORMAT_MAGIC};
	void *elf;
	int64_t n;

	RETURN_IF_ERROR(file_read(b->arena, executable, 1ll << 32, &elf, &n));
	RETURN_IF_ERROR(file_writer_add(out, elf, n));
	RETURN_IF_ERROR(file_writer_pad(out, 4096));
	tail.offset = file_writer_offset(out);
	if (!b->options->weights_file)
		RETURN_IF_ERROR(write_weights(out, m, w));
	tail.bytes = file_writer_offset(out) - tail.offset;
	tail.blob_offset = file_writer_offset(out);
	tail.blob_bytes = blob_bytes;
	RETURN_IF_ERROR(file_writer_add(out, blob, blob_bytes));
	RETURN_IF_ERROR(file_writer_pad(out, 64));
	return file_writer_add(out, &tail, sizeof(tail));
}

static uint64_t
weights_hash(const Module *m)
{
	uint64_t hash = 0;

	for (int i = 0; i < m->states.n; i++) {
		const State *s = m->states.at[i];
		if (s->init == INIT_DATA && s->data)
			hash = hash_bytes(s->data->data, (size_t)type_bytes(s->type), hash);
	}
	return hash;
}

/* Is there a program for each CPU and GPU for which the executable is built? With a single
 * target, its programs run on any CPU. With several targets, each CPU needs programs of its own
 * target. A GPU always needs programs of its own target. */
static Status
check_targets(Build *b, const Module *m)
{
	const LinkOptions *o = b->options;
	Versions v = module_versions(b->arena, m);

	for (int i = 0; i < o->n_targets && v.names.n > 1; i++)
		if (version_index(&v, o->targets[i].target->name) < 0)
			return status_error(
				EXIT_USAGE,
				"--target=cpu:%s is target %s, but the programs are for other "
				"targets (multiversion.targets)",
				o->targets[i].cpu, o->targets[i].target->name);
	for (int i = 0; i < o->n_gpus; i++)
		if (version_index(&v, o->gpus[i]->target->name) < 0)
			return status_error(
				EXIT_USAGE,
				"--target=cuda:%s is target %s, but the programs are for "
				"other targets (multiversion.targets)",
				o->gpus[i]->name, o->gpus[i]->target->name);
	return NULL;
}

static Status
link_in(Build *b, const Module *m, FormatWriter *w)
{
	const char *executable = build_file(b, "executable");
	int64_t blob_bytes;
	FileWriter *out;
	void *blob;

	RETURN_IF_ERROR(check_targets(b, m));
	w->weights_hash = weights_hash(m);
	RETURN_IF_ERROR(cuda_build_images(b, m));
	cuda_plan_convolutions(b, m, w);
	RETURN_IF_ERROR(format_finish(w, &blob, &blob_bytes));
	RETURN_IF_ERROR(b->options->printer->build(b, m, blob, blob_bytes));
	RETURN_IF_ERROR(link_objects(b, executable));
	if (b->options->weights_file)
		RETURN_IF_ERROR(write_weights_file(m, w, b->options->weights_file));
	RETURN_IF_ERROR(file_writer_open(b->options->output, &out));
	Status status = append_tail(out, b, executable, m, w, blob, blob_bytes);
	if (status) {
		file_writer_abort(out);
		return status;
	}
	return file_writer_commit(out, true);
}

Status
link_executable(const Module *m, FormatWriter *w, const LinkOptions *options)
{
	Build b = {.arena = arena_new(), .options = options};
	Status status = temporary_folder_open(b.arena, &b.folder);

	if (!status)
		status = link_in(&b, m, w);
	temporary_folder_close(&b.folder);
	for (int i = 0; i < b.images.n; i++)
		text_free(&b.images.at[i].bytes);
	arena_free(b.arena);
	return status;
}

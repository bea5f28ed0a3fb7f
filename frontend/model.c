/* Opening a model: read, scan, unpack with a capped allocator, check, flatten. */
#define _GNU_SOURCE
#include "frontend/frontend_impl.h"
#include "frontend/onnx/importer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_FILE INT32_MAX
enum { HEADER = 16 }; /* before each block: its size; keeps the alignment of malloc */

static void *
capped_alloc(void *data, size_t size)
{
	Budget *b = data;

	if (size > b->limit - b->used || b->limit - b->used - size < HEADER)
		return NULL;
	char *block = malloc(size + HEADER);
	if (!block)
		return NULL;
	b->used += size + HEADER;
	memcpy(block, &size, sizeof(size));
	return block + HEADER;
}

static void
capped_free(void *data, void *at)
{
	Budget *b = data;
	size_t size;

	if (!at)
		return;
	memcpy(&size, (char *)at - HEADER, sizeof(size));
	b->used -= size + HEADER;
	free((char *)at - HEADER);
}

/* The bytes of a regular file of at most 2 GiB - 1, in memory of their own. */
static Status
read_model(const char *path, uint8_t **bytes, int64_t *n)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;
	Status status = NULL;

	*bytes = NULL;
	if (fd < 0 || fstat(fd, &st) != 0)
		status = status_error(EXIT_SYSTEM, "%s: %s", path, strerror(errno));
	else if (!S_ISREG(st.st_mode))
		status = status_error(EXIT_SYSTEM, "%s: not a regular file", path);
	else if (st.st_size > MAX_FILE)
		status = status_error(EXIT_INVALID,
		                      "%s: %lld bytes, a model has at most 2147483647", path,
		                      (long long)st.st_size);
	else if (st.st_size == 0)
		status = status_error(EXIT_INVALID, "%s: the file is empty", path);
	else {
		*n = st.st_size;
		*bytes = mmap(NULL, (size_t)*n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		              -1, 0);
		if (*bytes == MAP_FAILED) {
			*bytes = NULL;
			status = status_error(EXIT_SYSTEM, "%s: %s", path, strerror(errno));
		} else {
			status = file_pread(fd, path, *bytes, *n, 0);
		}
	}
	if (fd >= 0)
		close(fd);
	return status;
}

static Status
unpack_model(Model *model, const uint8_t *bytes, int64_t n)
{
	Status status = scan_model(bytes, n);

	if (status)
		return status_annotate(status, "%s", model->path);
	model->budget.limit = 4 * (size_t)n + (256u << 20);
	model->allocator = (ProtobufCAllocator){capped_alloc, capped_free, &model->budget};
	model->proto = onnx__model_proto__unpack(&model->allocator, (size_t)n, bytes);
	if (!model->proto)
		return status_error(
			EXIT_INVALID,
			"%s: not a valid ONNX model, or it needs more than the %zu bytes "
			"of memory allowed for its size",
			model->path, model->budget.limit);
	return NULL;
}

static const char *
folder_of(Arena *arena, const char *path)
{
	const char *slash = strrchr(path, '/');

	if (!slash)
		return ".";
	return slash == path ? "/" : arena_strndup(arena, path, (size_t)(slash - path));
}

/* Every operator has an importer; all that lack one are reported. */
static void
check_supported(Model *model, Diag *diag)
{
	bool missing = false;

	for (int i = 0; i < model->nodes.n; i++) {
		const FlatNode *n = &model->nodes.at[i];
		const char *fault = importer_missing(n);
		if (fault)
			node_error(model, diag, n, EXIT_UNSUPPORTED, "%s", fault);
		missing |= fault != NULL;
	}
	if (missing)
		diag_hint(diag, "`gradc ops` lists what can be read; model-local functions are "
		                "inlined by themselves");
}

static void
check_all(Model *model, Diag *diag)
{
	const GraphProto *g = model->proto->graph;

	model->opset = opset_version(model->proto->n_opset_import, model->proto->opset_import, "");
	bool functions = check_functions(model, diag);
	check_model(model, diag);
	if (!functions || !g)
		return;
	for (size_t i = 0; i < g->n_initializer; i++)
		if (g->initializer[i]->name)
			strmap_put(model->initializers, g->initializer[i]->name, g->initializer[i]);
	if (inline_functions(model, diag))
		check_supported(model, diag);
	for (size_t i = 0; i < g->n_sparse_initializer; i++)
		model_error(model, diag, EXIT_UNSUPPORTED, "sparse initializers are not supported");
}

Model *
model_open(const char *path, Diag *diag)
{
	Arena *arena = arena_new();
	Model *model = NEW(arena, Model);
	int before = diag_errors(diag);
	uint8_t *bytes;
	int64_t n = 0;

	model->arena = arena;
	model->path = arena_strdup(arena, path);
	model->folder = folder_of(arena, path);
	model->functions = strmap_new(arena);
	model->initializers = strmap_new(arena);
	model->loaded = intmap_new(arena);
	model->files = strmap_new(arena);
	Status status = read_model(path, &bytes, &n);
	if (!status)
		status = unpack_model(model, bytes, n);
	if (bytes)
		munmap(bytes, (size_t)n);
	if (!diag_status(diag, status))
		check_all(model, diag);
	if (diag_errors(diag) == before)
		return model;
	model_close(model);
	return NULL;
}

void
model_close(Model *model)
{
	if (!model)
		return;
	external_close_all(model);
	for (int i = 0; i < model->blocks.n; i++)
		free(model->blocks.at[i]);
	if (model->proto)
		onnx__model_proto__free_unpacked(model->proto, &model->allocator);
	arena_free(model->arena);
}

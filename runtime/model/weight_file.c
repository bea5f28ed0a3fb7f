/* Opens a file of weights for --load: safetensors, or an ONNX model with its external data. */
#include "runtime/model/weight_file.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* protobuf's largest message; larger models have external data */
static const int64_t MOST_ONNX = (int64_t)1 << 31;

void *
matrix_transposed(Arena *arena, const char *from, int64_t rows, int64_t columns, int64_t size)
{
	char *to = arena_alloc(arena, (size_t)(rows * columns * size) + 1);

	for (int64_t i = 0; i < rows; i++)
		for (int64_t k = 0; k < columns; k++)
			memcpy(to + (k * rows + i) * size, from + (i * columns + k) * size,
			       (size_t)size);
	return to;
}

static Status
open_onnx(WeightFile *w)
{
	void *bytes;
	int64_t n;

	RETURN_IF_ERROR(
		file_read_regular(w->arena, w->path, EXIT_CHECKPOINT, MOST_ONNX, &bytes, &n));
	w->folders = external_folders(w->arena, w->path);
	return onnx_weights_read(w->arena, w->path, bytes, n, &w->tensors);
}

static Status
open_safetensors(WeightFile *w)
{
	SafeTensors st;

	RETURN_IF_ERROR(safetensors_open(w->arena, w->path, EXIT_CHECKPOINT, &st));
	w->fd = st.fd;
	for (int i = 0; i < st.n_tensors; i++)
		vec_push(w->arena, &w->tensors, ((WeightTensor){.of = st.tensors[i]}));
	return NULL;
}

Status
weight_file_open(const char *path, WeightFile *out)
{
	*out = (WeightFile){.path = path,
	                    .onnx = text_ends_with(path, ".onnx"),
	                    .fd = -1,
	                    .arena = arena_new()};
	Status status = out->onnx ? open_onnx(out) : open_safetensors(out);

	out->by_name = strmap_new(out->arena);
	for (int i = 0; !status && i < out->tensors.n; i++)
		strmap_put(out->by_name, out->tensors.at[i].of.name, &out->tensors.at[i]);
	if (status)
		weight_file_close(out);
	return status;
}

void
weight_file_close(WeightFile *w)
{
	if (w->fd >= 0)
		close(w->fd);
	w->fd = -1;
	arena_free(w->arena);
	w->arena = NULL;
}

/* Reads external data of an ONNX model. */
static Status
read_external(const WeightFile *w, const WeightTensor *t, void *to)
{
	Arena *arena = arena_new();
	const char *location, *path, *what = external_location(arena, t->from, &location);
	Status status = NULL;
	struct stat st;
	int fd = -1;

	if (!what)
		fd = external_open_path(arena, &w->folders, location, &path);
	if (what || fd < 0)
		what = what ? what
		            : arena_printf(arena, "has external data %s: %s",
		                           plain_text(arena, location),
		                           errno == EXDEV ? "it lies outside of the model's folder"
		                                          : strerror(errno));
	else if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || t->of.offset > st.st_size ||
	         t->of.n_bytes > st.st_size - t->of.offset)
		what = arena_printf(
			arena, "needs bytes %lld to %lld of external data %s, which lacks them",
			(long long)t->of.offset, (long long)t->of.offset + t->of.n_bytes,
			plain_text(arena, location));
	else
		status = file_pread_as(EXIT_CHECKPOINT, fd, path, to, t->of.n_bytes, t->of.offset);
	if (what)
		status = status_error(EXIT_CHECKPOINT, "%s: tensor \"%s\" %s", w->path, t->of.name,
		                      what);
	if (fd >= 0)
		close(fd);
	arena_free(arena);
	return status;
}

Status
weight_file_read(const WeightFile *w, const WeightTensor *t, void *to)
{
	if (t->of.data)
		memcpy(to, t->of.data, (size_t)t->of.n_bytes);
	else if (t->from)
		return read_external(w, t, to);
	else
		return file_pread(w->fd, w->path, to, t->of.n_bytes, t->of.offset);
	return NULL;
}

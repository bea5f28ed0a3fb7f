/* Reads the bytes of a model file step by step, as far as the check of the bytes (scan.c) needs
 * them. The large raw_data of a tensor is not read then: its place in the buffer holds only its
 * offset in the file. protobuf-c copies the offset into the tensor, and `fill_tensors` replaces it
 * by the content once the buffer is freed. So the weights are in memory once. pread, unlike a
 * mapping, turns a file that shrinks meanwhile into an error instead of a signal. */
#define _GNU_SOURCE
#include "frontend/file/reading.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_FILE INT32_MAX
enum { SET_ASIDE = 16 << 10, FIRST_READ = 4 << 10, LARGEST_READ = 1 << 20 };

Status
model_file_open(const char *path, ModelFile *f)
{
	struct stat st;

	*f = (ModelFile){.path = path, .next_read = FIRST_READ};
	f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (f->fd < 0 || fstat(f->fd, &st) != 0)
		return status_error(EXIT_SYSTEM, "%s: %s", path, strerror(errno));
	if (!S_ISREG(st.st_mode))
		return status_error(EXIT_SYSTEM, "%s: not a regular file", path);
	if (st.st_size > MAX_FILE)
		return status_error(EXIT_INVALID, "%s: %lld bytes, a model has at most 2147483647",
		                    path, (long long)st.st_size);
	if (st.st_size == 0)
		return status_error(EXIT_INVALID, "%s: the file is empty", path);
	void *at = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE,
	                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		return status_error(EXIT_SYSTEM, "%s: %s", path, strerror(errno));
	f->bytes = at;
	f->n = st.st_size;
	return NULL;
}

void
model_file_drop(ModelFile *f)
{
	if (f->bytes)
		munmap(f->bytes, (size_t)f->n);
	f->bytes = NULL;
}

void
model_file_close(ModelFile *f)
{
	model_file_drop(f);
	if (f->fd >= 0)
		close(f->fd);
	f->fd = -1;
}

Status
model_file_need(ModelFile *f, int64_t end)
{
	if (end <= f->ready)
		return NULL;
	int64_t size = end - f->ready > f->next_read ? end - f->ready : f->next_read;
	if (size > f->n - f->ready)
		size = f->n - f->ready;
	RETURN_IF_ERROR(file_pread(f->fd, f->path, f->bytes + f->ready, size, f->ready));
	f->ready += size;
	if (f->next_read < LARGEST_READ)
		f->next_read *= 2;
	return NULL;
}

bool
model_file_set_aside(ModelFile *f, int64_t offset, int64_t n)
{
	if (n < SET_ASIDE)
		return false;
	memcpy(f->bytes + offset, &offset, sizeof(offset));
	if (f->ready < offset + n)
		f->ready = offset + n;
	f->next_read = FIRST_READ;
	return true;
}

/* ---- after unpacking */
static Status
fill_tensor(const ModelFile *f, TensorProto *t)
{
	int64_t offset;

	if (!t->has_raw_data || t->raw_data.len < SET_ASIDE)
		return NULL;
	memcpy(&offset, t->raw_data.data, sizeof(offset));
	return file_pread(f->fd, f->path, t->raw_data.data, (int64_t)t->raw_data.len, offset);
}

/* Does the message have this field? Fields of a oneof share their memory. */
static bool
field_present(const ProtobufCMessage *m, const ProtobufCFieldDescriptor *field)
{
	uint32_t chosen;

	if (!(field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF))
		return true;
	memcpy(&chosen, (const char *)m + field->quantifier_offset, sizeof(chosen));
	return chosen == field->id;
}

static Status
fill_field(const ModelFile *f, const ProtobufCMessage *m, const ProtobufCFieldDescriptor *field)
{
	const char *at = (const char *)m + field->offset;
	ProtobufCMessage **list, *one;
	size_t n;

	if (field->type != PROTOBUF_C_TYPE_MESSAGE || !field_present(m, field))
		return NULL;
	if (field->label != PROTOBUF_C_LABEL_REPEATED) {
		memcpy(&one, at, sizeof(one));
		return one ? fill_tensors(f, one) : NULL;
	}
	memcpy(&list, at, sizeof(list));
	memcpy(&n, (const char *)m + field->quantifier_offset, sizeof(n));
	for (size_t i = 0; i < n; i++)
		RETURN_IF_ERROR(fill_tensors(f, list[i]));
	return NULL;
}

Status
fill_tensors(const ModelFile *f, ProtobufCMessage *m)
{
	if (m->descriptor == &onnx__tensor_proto__descriptor)
		return fill_tensor(f, (TensorProto *)(void *)m);
	for (unsigned i = 0; i < m->descriptor->n_fields; i++)
		RETURN_IF_ERROR(fill_field(f, m, &m->descriptor->fields[i]));
	return NULL;
}

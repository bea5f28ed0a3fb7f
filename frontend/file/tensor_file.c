/* Reads and writes TensorProto files, as in ONNX's test data. */
#include "frontend/file/tensor_file.h"
#include "frontend/file/reading.h"

#include <string.h>

#define MAX_TENSOR_FILE INT32_MAX

Status
tensor_proto_decode(Arena *arena, const char *path, const uint8_t *bytes, int64_t n, DType *dtype,
                    int *rank, int64_t dims[MAX_RANK], void **data)
{
	TensorData t;
	int exit_code;
	Status status = scan_tensor(bytes, n);

	*data = NULL;
	if (status) {
		status->exit_code = EXIT_DATA;
		return status_annotate(status, "%s", path);
	}
	TensorProto *proto = onnx__tensor_proto__unpack(NULL, (size_t)n, bytes);
	if (!proto)
		return status_error(EXIT_DATA, "%s: not a serialized TensorProto", path);
	const char *fault = tensor_decode(arena, proto, &t, &exit_code);
	if (!fault && tensor_is_external(proto))
		fault = "has external data";
	if (fault) {
		status = status_error(EXIT_DATA, "%s: the tensor %s", path, fault);
	} else {
		*dtype = t.dtype;
		*rank = t.rank;
		memcpy(dims, t.dims, sizeof(t.dims));
		*data = arena_copy(arena, t.data, (size_t)dtype_bytes(t.dtype, t.n));
	}
	onnx__tensor_proto__free_unpacked(proto, NULL);
	return status;
}

Status
tensor_proto_read(Arena *arena, const char *path, DType *dtype, int *rank, int64_t dims[MAX_RANK],
                  void **data)
{
	void *bytes;
	int64_t n;

	*data = NULL;
	RETURN_IF_ERROR(file_read(arena, path, MAX_TENSOR_FILE, &bytes, &n));
	return tensor_proto_decode(arena, path, bytes, n, dtype, rank, dims, data);
}

uint8_t *
tensor_proto_encode(Arena *arena, const char *name, DType dtype, int rank, const int64_t *dims,
                    const void *data, size_t *n_bytes)
{
	TensorProto t = ONNX__TENSOR_PROTO__INIT;
	int64_t n = 1;

	for (int i = 0; i < rank; i++)
		n *= dims[i];
	t.name = *name ? arena_strdup(arena, name) : NULL;
	t.has_data_type = 1;
	t.data_type = tensor_onnx_type(dtype);
	t.n_dims = (size_t)rank;
	t.dims = arena_copy(arena, dims, sizeof(*dims) * (size_t)rank);
	t.has_raw_data = 1;
	t.raw_data.len = (size_t)dtype_bytes(dtype, n);
	t.raw_data.data = (uint8_t *)(uintptr_t)data;
	*n_bytes = onnx__tensor_proto__get_packed_size(&t);
	uint8_t *bytes = arena_alloc(arena, *n_bytes);
	onnx__tensor_proto__pack(&t, bytes);
	return bytes;
}

Status
tensor_proto_write(const char *path, const char *name, DType dtype, int rank, const int64_t *dims,
                   const void *data)
{
	Arena *arena = arena_new();
	size_t n;
	uint8_t *bytes = tensor_proto_encode(arena, name, dtype, rank, dims, data, &n);
	Status status = file_write(path, bytes, (int64_t)n);

	arena_free(arena);
	return status;
}

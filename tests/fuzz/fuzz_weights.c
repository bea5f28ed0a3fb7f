/* Fuzzes the reading of an ONNX file's tensors for --load. The file is refused with one message; otherwise every tensor has the bytes
 * that its shape needs, inside of the file or in memory, or lies in a named file at an offset from 0. */
#include "runtime/model/weight_file.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
check(const WeightTensor *t)
{
	int64_t n = 1;

	for (int i = 0; i < t->of.rank; i++)
		n *= t->of.dims[i];
	if (n < 0 || t->of.n_bytes != dtype_bytes(t->of.dtype, n) || !*t->of.name)
		abort();
	if (t->from ? t->of.data || t->of.offset < 0 : !t->of.data)
		abort();
	if (t->of.data) /* reads every byte */
		hash_bytes(t->of.data, (size_t)t->of.n_bytes, 0);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	Arena *arena = arena_new();
	WeightTensors tensors = {0};
	Status status = onnx_weights_read(arena, "file", data, (int64_t)size, &tensors);

	if (status && (status->exit_code != EXIT_CHECKPOINT || !*status->message))
		abort();
	for (int i = 0; !status && i < tensors.n; i++)
		check(&tensors.at[i]);
	status_free(status);
	arena_free(arena);
	return 0;
}

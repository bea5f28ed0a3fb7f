/* What ties the code of a kernel to its record. */
#include "format/format.h"

uint64_t
kernel_facts(const KernelRecord *k, const KernelArgument *arguments)
{
	const int64_t numbers[] = {k->iterations, k->elements,     k->n_arguments,
	                           k->team,       k->shared_bytes, k->reads_scalars};

	return hash_bytes(arguments, sizeof(*arguments) * k->n_arguments,
	                  hash_bytes(numbers, sizeof(numbers), 0));
}

/* Computes hashes by which the runtime notices that compiled code does not belong to a kernel's
 * record, or a plan to its library call. */
#include "format/format.h"

#include <string.h>

uint64_t
kernel_facts(const KernelRecord *k, const KernelArgument *arguments)
{
	const int64_t numbers[] = {k->iterations, k->elements,     k->n_arguments,
	                           k->team,       k->shared_bytes, k->reads_scalars};

	return hash_bytes(arguments, sizeof(*arguments) * k->n_arguments,
	                  hash_bytes(numbers, sizeof(numbers), 0));
}

uint64_t
plan_facts(const LibraryRecord *library, const PlanRecord *p, const char *strings)
{
	const StrRef texts[] = {p->gpu, p->version, p->text};
	const int64_t numbers[] = {p->capability, p->processors, p->scratch};
	uint64_t hash = hash_bytes(numbers, sizeof(numbers),
	                           hash_bytes(library, sizeof(*library), 0));

	for (int i = 0; i < COUNT(texts); i++)
		hash = hash_bytes(strings + texts[i], strlen(strings + texts[i]) + 1, hash);
	return hash;
}

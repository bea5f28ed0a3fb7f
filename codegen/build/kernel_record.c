/* Fills in a kernel's record in the tables of the executable: how the kernel uses its arguments,
 * the size of its team (block of GPU threads), and its memory. The loop checkers prove that
 * no kernel reads or writes outside of its buffers. */
#include "codegen/build/build.h"
#include "codegen/schedule/schedule.h"
#include "ir/programs/programs.h"

static bool
reads_scalars(const Kernel *k)
{
	for (int i = 0; i < k->body.n; i++)
		if (k->body.at[i].kind == LOOP_STATEMENT_SCALAR)
			return true;
	return false;
}

void
kernel_record(const Kernel *k, KernelRecord *r, KernelArgument *arguments)
{
	*r = (KernelRecord){.n_arguments = (uint32_t)(k->n_inputs + k->n_outputs),
	                    .iterations = k->iterations,
	                    .elements = k->sums ? k->buffers.at[0].type->n : 0,
	                    .flops = k->flops,
	                    .shared_bytes = kernel_shared_bytes(k),
	                    .reads_scalars = reads_scalars(k),
	                    .team = 1};
	for (int i = 0; i < k->n_team; i++)
		r->team *= (uint32_t)k->team[i];
	uint32_t *access = memory_zeroed(r->n_arguments + 1, sizeof(*access));
	kernel_access(k, access);
	for (int i = 0; i < k->n_inputs + k->n_outputs; i++) {
		Type t = k->buffers.at[i].type;
		arguments[i] = (KernelArgument){.bytes = type_bytes(t),
		                                .each = dtype_bytes(t->dtype, kernel_each(k, i)),
		                                .dtype = t->dtype,
		                                .access = access[i]};
	}
	memory_free(access);
}

uint64_t
kernel_code_facts(Arena *arena, const Kernel *k)
{
	KernelArgument *arguments = NEW_ARRAY(arena, KernelArgument, k->n_inputs + k->n_outputs);
	KernelRecord r;

	kernel_record(k, &r, arguments);
	return kernel_facts(&r, arguments);
}

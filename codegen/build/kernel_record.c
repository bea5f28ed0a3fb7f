/* Fills in a kernel's record in the tables of the executable: how the kernel uses its arguments,
 * the size of its team (block of GPU threads), and its memory. The loop checkers prove that
 * no kernel reads or writes outside of its buffers. */
#include "codegen/build/build.h"
#include "codegen/schedule/schedule.h"

/* How the loops access the buffer. */
static uint32_t
loop_access(const Kernel *k, int buffer)
{
	uint32_t access = 0;

	for (int i = 0; i < k->body.n; i++) {
		const LoopStatement *s = &k->body.at[i];
		if (s->kind == LOOP_STATEMENT_COPY)
			access |= s->windows->buffer == buffer ? ACCESS_READ : 0;
		else if (s->buffer == buffer)
			access |= s->kind == LOOP_STATEMENT_LOAD    ? ACCESS_READ
			          : s->kind == LOOP_STATEMENT_STORE ? ACCESS_WRITE
			                                            : 0;
	}
	return access;
}

/* How the library call, which may replace the loops, accesses the buffer. */
static uint32_t
library_access(const LibraryCall *c, int buffer)
{
	uint32_t access = 0;

	for (int i = 0; c && i < N_LIBRARY_OPERANDS; i++)
		if (library_has_operand(c, i) && c->operands[i].buffer == buffer)
			access |= library_writes(c, i) ? ACCESS_WRITE : ACCESS_READ;
	return access;
}

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
	for (int i = 0; i < k->n_inputs + k->n_outputs; i++) {
		Type t = k->buffers.at[i].type;
		uint32_t access = loop_access(k, i);
		r->bytes += access ? type_bytes(t) : 0;
		arguments[i] = (KernelArgument){.bytes = type_bytes(t),
		                                .each = dtype_bytes(t->dtype, kernel_each(k, i)),
		                                .dtype = t->dtype,
		                                .access = access | library_access(k->library, i)};
	}
}

uint64_t
kernel_code_facts(Arena *arena, const Kernel *k)
{
	KernelArgument *arguments = NEW_ARRAY(arena, KernelArgument, k->n_inputs + k->n_outputs);
	KernelRecord r;

	kernel_record(k, &r, arguments);
	return kernel_facts(&r, arguments);
}

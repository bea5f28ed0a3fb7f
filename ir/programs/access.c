/* How instructions access their arguments: which arguments an instruction reads, and which it writes. A kernel's loops say
 * it for the loops; a library call, which may replace the loops, may access other arguments than the loops. */
#include "ir/loop/loop.h"
#include "ir/programs/programs.h"

#include <string.h>

/* The ACCESS_... bits of the kernel's loops alone. */
static void
loop_access(const Kernel *k, uint32_t *out)
{
	memset(out, 0, sizeof(*out) * (size_t)(k->n_inputs + k->n_outputs));
	/* an output that begins as an input keeps the elements that the kernel does not write */
	for (int i = k->n_inputs; i < k->n_inputs + k->n_outputs; i++)
		out[i] = (k->buffers.at[i].from ? ACCESS_READ : 0u) |
		         (k->buffers.at[i].part ? ACCESS_PART : 0u);
	for (int i = 0; i < k->body.n; i++) {
		const LoopStatement *s = &k->body.at[i];
		int buffer = s->kind == LOOP_STATEMENT_COPY ? s->windows->buffer : s->buffer;
		uint32_t access = s->kind == LOOP_STATEMENT_LOAD || s->kind == LOOP_STATEMENT_COPY
		                          ? ACCESS_READ
		                  : s->kind == LOOP_STATEMENT_STORE ? ACCESS_WRITE
		                                                    : 0;
		if (access && buffer < k->n_inputs + k->n_outputs)
			out[buffer] |= access;
	}
}

void
kernel_access(const Kernel *k, uint32_t *out)
{
	const LibraryCall *c = k->library;

	loop_access(k, out);
	for (int i = 0; c && i < N_LIBRARY_OPERANDS; i++)
		if (library_has_operand(c, i))
			out[c->operands[i].buffer] |= library_writes(c, i) ? ACCESS_WRITE
			                                                   : ACCESS_READ;
}

AccessTable
access_table_new(Arena *arena, const Module *m)
{
	return (AccessTable){arena, m, NEW_ARRAY(arena, uint32_t *, m->kernels.n + 1)};
}

uint32_t
instruction_access(const AccessTable *a, const Instruction *n, uint32_t i)
{
	if (n->kind != RUN_KERNEL) {
		bool writes = n->kind == COLLECTIVE || (i == 0 && !instruction_asks(n->kind));
		return writes ? ACCESS_WRITE : ACCESS_READ;
	}
	uint32_t **of = &a->of[n->what];
	const Kernel *k = a->m->kernels.at[n->what];

	if (!*of) {
		*of = NEW_ARRAY(a->arena, uint32_t, k->n_inputs + k->n_outputs);
		kernel_access(k, *of);
	}
	return (*of)[i];
}

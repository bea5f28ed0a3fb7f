/* What the tables say of a kernel beside its code: what it does with its arguments, who runs it together and in how much
 * memory. The loop checkers prove it: every place lies inside its buffer. */
#include "codegen/build/build.h"
#include "codegen/schedule/schedule.h"

/* In the loops. */
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

/* By the library in their place. */
static uint32_t
library_access(const LibraryCall *c, int buffer)
{
	uint32_t access = 0;

	for (int i = 0; c && i < N_LIBRARY_OPERANDS; i++)
		if (library_has_operand(c, i) && c->operands[i].buffer == buffer)
			access |= library_writes(c, i) ? ACCESS_WRITE : ACCESS_READ;
	return access;
}

/* A local array, for each outer member that has its own. */
static int64_t
array_bytes(const Kernel *k, const LoopBuffer *b, bool of_outer)
{
	int64_t columns = b->type->rank ? b->type->dims[b->type->rank - 1] : 1;
	int64_t rows = columns ? b->type->n / columns : 0;
	int64_t bytes = dtype_bytes(b->type->dtype, rows * (columns + b->pad));

	return bytes * (of_outer ? k->team[0] : 1);
}

static int64_t
aligned(int64_t bytes)
{
	return (bytes + SHARED_ALIGNMENT - 1) / SHARED_ALIGNMENT * SHARED_ALIGNMENT;
}

int64_t
kernel_partials(const Kernel *k, DType type)
{
	int members = 1, depth = 0, most = 0;

	for (int i = 0; i < k->n_team; i++)
		members *= k->team[i];
	for (int i = 0; i < k->body.n && (members > TEAM_OF_REGISTERS || k->n_team > 1); i++) {
		const LoopStatement *s = &k->body.at[i];
		bool of_team = s->kind == LOOP_STATEMENT_FOR && s->mode == LOOP_TEAM;
		for (int a = 0; of_team && depth == 0 && a < s->n_accumulators; a++)
			if (s->accumulators[a].type == type && s->accumulators[a].number > most)
				most = s->accumulators[a].number;
		depth += of_team;
		depth -= s->kind == LOOP_STATEMENT_END && k->body.at[s->match].mode == LOOP_TEAM;
	}
	return most > 1 ? most : 0;
}

int64_t
kernel_staged(const Kernel *k, DType type)
{
	int64_t most = 0;

	for (int i = 0; i < k->body.n; i++)
		for (int w = 0; k->body.at[i].kind == LOOP_STATEMENT_MMA && w < 2; w++) {
			const LoopWindow *window = &k->body.at[i].windows[w];
			Type t = k->buffers.at[window->buffer].type;
			if (!window->place && t->dtype == type && t->n > most)
				most = t->n;
		}
	return most;
}

int64_t
kernel_shared_bytes(const Kernel *k)
{
	int64_t bytes = 0;
	int depth = 0;

	for (int i = 0; i < k->body.n; i++) {
		const LoopStatement *s = &k->body.at[i];
		if (s->kind == LOOP_STATEMENT_LOCAL &&
		    k->buffers.at[s->buffer].kind == BUFFER_LOCAL)
			bytes += aligned(array_bytes(k, &k->buffers.at[s->buffer], depth > 0));
		if (s->kind == LOOP_STATEMENT_FOR && s->mode == LOOP_TEAM)
			depth++;
		if (s->kind == LOOP_STATEMENT_END && k->body.at[s->match].mode == LOOP_TEAM)
			depth--;
	}
	for (DType t = 0; t < N_DTYPES; t++)
		bytes += aligned(dtype_bytes(t, kernel_partials(k, t))) +
		         aligned(dtype_bytes(t, kernel_staged(k, t)));
	return bytes;
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

/* Computes how much team memory (shared memory of a GPU's thread block) a kernel needs. */
#include "codegen/target/target.h"

/* Bytes of a local array; an array declared inside the outer team loop exists once for each
 * outer member (group of threads). */
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
			if (!window->place && !tile_in_registers(type) && t->dtype == type &&
			    t->n > most)
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

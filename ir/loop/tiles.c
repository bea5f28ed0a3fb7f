/* Interprets the work that all members (threads) of a team do together: loops over the elements
 * of a tile (a block of a matrix, spread over the members), products of tiles, copies. It is not
 * known which member owns an element of a tile. So the check for races treats each owner as an
 * unknown member, different from all others. */
#include "ir/loop/interp.h"

void
run_each(Run *r, const LoopStatement *s, int at)
{
	Type t = r->k->buffers.at[s->buffer].type;
	int64_t columns = s->column >= 0 ? t->dims[1] : 1;

	for (int64_t i = 0; i < t->dims[0]; i++) {
		r->cells[s->result].s64 = i;
		run_accumulators_start(r, s);
		for (int64_t j = 0; j < columns; j++) {
			if (s->column >= 0)
				r->cells[s->column].s64 = j;
			run_accumulators_take(r, s, j);
			loop_memory_someone(r->memory, true);
			run_block(r, at + 1, s->match);
			loop_memory_someone(r->memory, false);
		}
		run_accumulators_finish(r, s);
	}
}

/* Element (i, j) of a tile, or of a window of an array. */
static Cell
window_element(Run *r, const LoopWindow *w, int64_t i, int64_t j)
{
	if (!w->place)
		return run_load(r, w->buffer, i * r->k->buffers.at[w->buffer].type->dims[1] + j);
	return run_load(r, w->buffer, run_place(r, w->place) + i * w->row + j * w->column);
}

void
run_mma(Run *r, const LoopStatement *s)
{
	Type t = r->k->buffers.at[s->buffer].type;

	loop_memory_someone(r->memory, true);
	for (int64_t i = 0; i < t->dims[0]; i++)
		for (int64_t j = 0; j < t->dims[1]; j++) {
			Cell sum = run_load(r, s->buffer, i * t->dims[1] + j);
			for (int64_t k = 0; k < s->extent; k++)
				sum = cell_arithmetic(LOOP_fma, t->dtype,
				                      window_element(r, &s->windows[0], i, k),
				                      window_element(r, &s->windows[1], k, j), sum);
			run_store(r, s->buffer, i * t->dims[1] + j, sum);
		}
	loop_memory_someone(r->memory, false);
	if (r->flops)
		*r->flops += 2 * t->n * s->extent;
}

void
run_copy(Run *r, const LoopStatement *s)
{
	bool inside = s->n_operands == 0 || r->cells[s->operands[0]].b;

	loop_memory_copy(r->memory, s, run_place(r, s->place), run_place(r, s->windows->place),
	                 inside);
}

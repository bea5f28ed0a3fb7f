/* Copies a tensor row by row, for a team of threads: the kernel's places say row and column, so they can be moved to a pitch. */
#include "codegen/legalize/pitch.h"

Kernel *
row_copy_kernel(Module *m, Arena *scratch, Type t, int members)
{
	Kernel *k = kernel_new(scratch, "copy_rows", loc_name(m, "pitch"));
	LoopBuilder *lb = loop_builder(k, m, scratch);
	int x = lb_buffer(lb, "x0", BUFFER_IN, t), y = lb_buffer(lb, "y0", BUFFER_OUT, t);
	int64_t row = t->dims[t->rank - 1];

	lb_team(lb, 1, &members);
	Affine at = affine_scale(lb, affine_scalar(lb, lb_for(lb, LOOP_PARALLEL, t->n / row)), row);
	Affine column = affine_scalar(lb, lb_for(lb, LOOP_TEAM, members));
	column = affine_add_scaled(
		lb, column,
		affine_scalar(lb, lb_for(lb, LOOP_PLAIN, (row + members - 1) / members)), members);
	at = affine_add(lb, at, lb_open_below(lb, column, row));
	lb_store(lb, y, at, lb_load(lb, x, at));
	for (int i = 0; i < 4; i++)
		lb_end(lb);
	kernel_finish(k);
	const char *name = k->name;
	for (int i = 2; strmap_get(m->kernel_names, name); i++)
		name = arena_printf(scratch, "copy_rows_%d", i);
	return kernel_add(m, k, name);
}

/* Adds the kernels that sum what ranks sent: y = x0 + x1, element by element. With R ranks, the
 * kernel is launched R - 1 times, in the order of ranks: each launch adds the numbers that one
 * more rank sent. A launch runs only the iterations of the part that this rank sums. */
#include "codegen/schedule/order.h"

#include "ir/loop/loop.h"

static void
add_kernel(Pass *p, Module *m, DType dtype, int64_t n)
{
	Kernel *k = kernel_new(p->scratch, "", loc_name(m, "all_reduce"));
	LoopBuilder *lb = loop_builder(k, m, p->scratch);
	Type type = type_new(m, dtype, 1, &n);
	int sum = lb_buffer(lb, "x0", BUFFER_IN, type), term = lb_buffer(lb, "x1", BUFFER_IN, type);
	int result = lb_buffer(lb, "y0", BUFFER_OUT, type);
	LoopValue block = lb_for(lb, LOOP_PARALLEL, n / SUM_BLOCK);
	LoopValue lane = lb_for(lb, LOOP_VECTOR, SUM_BLOCK);
	Affine at = affine_add_scaled(lb, affine_scalar(lb, lane), affine_scalar(lb, block),
	                              SUM_BLOCK);

	lb_store(lb, result, at,
	         lb_binary(lb, LOOP_add, lb_load(lb, sum, at), lb_load(lb, term, at)));
	lb_end(lb);
	lb_end(lb);
	kernel_close(lb);
	k->sums = true;
	k->flops = n;
	kernel_add(m, k,
	           module_fresh_name(m, arena_printf(m->arena, "sum_%s", dtype_info[dtype].name)));
}

/* Smaller floats have no kernel: the communicator sums them in f32 and rounds once. */
bool
rank_sum_has(DType dtype)
{
	return dtype == F32 || dtype == F64;
}

int
rank_sum_kernel(const Module *m, DType dtype)
{
	for (int i = 0; i < m->kernels.n; i++)
		if (m->kernels.at[i]->sums && m->kernels.at[i]->buffers.n > 0 &&
		    m->kernels.at[i]->buffers.at[0].type->dtype == dtype)
			return i;
	return -1;
}

void
rank_sums_add(Pass *p, Module *m)
{
	Buckets all = buckets_of(p->scratch, m, MODE_DDP);
	int64_t most[N_DTYPES] = {0};

	if (!module_first(m, ROLE_UPDATE))
		return; /* the module cannot be trained */
	for (int i = 0; i < all.n; i++)
		if (all.at[i].n > most[all.at[i].dtype])
			most[all.at[i].dtype] = all.at[i].n;
	for (int i = 0; i < m->states.n; i++) { /* gradients that are reduced in one piece */
		const State *s = m->states.at[i];
		if (s->kind == STATE_GRADIENT && s->block && s->type->n > most[s->type->dtype])
			most[s->type->dtype] = s->type->n;
	}
	for (DType t = 0; t < N_DTYPES; t++)
		if (most[t] > 0 && rank_sum_has(t))
			add_kernel(p, m, t, most[t]);
}

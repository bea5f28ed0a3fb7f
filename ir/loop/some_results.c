/* Makes of a kernel with several results a kernel that computes some of them:
 *
 *	kernel @k(x0, x1, y0: out, y1: out)              kernel @k_y1(x0, x1, y0: out)
 *	  for v0 < 8 {                                     for v0 < 8 {
 *	    v1 = load x0[v0]                                 v1 = load x0[v0]
 *	    store y0[v0] = v1
 *	    v2 = load x1[v0]                                 v2 = load x1[v0]
 *	    v3 = add v1, v2                                  v3 = add v1, v2
 *	    store y1[v0] = v3                                store y0[v0] = v3
 *
 * The results have the same bits. Inputs that only the other results needed are gone. Takes linear time in statements. */
#include "ir/loop/loop.h"

/* May the kernel's results be computed apart? Not if a result begins as an input or is read again, or if the kernel belongs to
 * another kernel. */
static bool
is_plain(const Module *m, const Kernel *k)
{
	if (k->library || k->serves || k->sums || k->moves || k->all_reduces)
		return false;
	for (int i = 0; i < m->kernels.n; i++)
		if (m->kernels.at[i]->serves == k)
			return false;
	for (int i = 0; i < k->n_inputs + k->n_outputs; i++)
		if (k->buffers.at[i].from)
			return false;
	for (int i = 0; i < k->body.n; i++) {
		const LoopStatement *s = &k->body.at[i];
		bool reads = s->kind == LOOP_STATEMENT_LOAD && s->buffer >= k->n_inputs;
		if ((reads && s->buffer < k->n_inputs + k->n_outputs) || statement_windows(s) > 0)
			return false;
	}
	return true;
}

static void
drop_other_stores(Kernel *k, const bool *keep)
{
	int n = 0, first = k->n_inputs;

	for (int i = 0; i < k->body.n; i++) {
		const LoopStatement *s = &k->body.at[i];
		bool other = s->kind == LOOP_STATEMENT_STORE && s->buffer >= first &&
		             s->buffer < first + k->n_outputs && !keep[s->buffer - first];
		if (!other)
			k->body.at[n++] = *s;
	}
	k->body.n = n;
}

/* Removes loops and conditions without statements; false: every block has statements. */
static bool
drop_empty_blocks(Kernel *k)
{
	int n = 0;

	for (int i = 0; i < k->body.n; i++) {
		const LoopStatement *s = &k->body.at[i];
		bool closes = s->kind == LOOP_STATEMENT_END && n > 0;
		if (closes && statement_opens(&k->body.at[n - 1]) &&
		    k->body.at[n - 1].n_accumulators == 0)
			n--;
		else
			k->body.at[n++] = *s;
	}
	bool dropped = n < k->body.n;
	k->body.n = n;
	return dropped;
}

/* Keeps the buffers that statements use, and the results. inputs: the number that each input has in the old kernel. */
static void
drop_buffers(Kernel *k, Arena *scratch, const bool *keep, int *inputs)
{
	int *moved = NEW_ARRAY(scratch, int, k->buffers.n), n = 0, n_inputs = 0, n_outputs = 0;
	bool *used = NEW_ARRAY(scratch, bool, k->buffers.n);

	for (int i = 0; i < k->n_outputs; i++) {
		used[k->n_inputs + i] = keep[i];
		n_outputs += keep[i];
	}
	for (int i = 0; i < k->body.n; i++)
		if (k->body.at[i].buffer >= 0 && k->body.at[i].kind != LOOP_STATEMENT_SCALAR)
			used[k->body.at[i].buffer] = true;
	for (int b = 0; b < k->buffers.n; b++) {
		moved[b] = n;
		if (!used[b])
			continue;
		if (b < k->n_inputs)
			inputs[n_inputs++] = b;
		k->buffers.at[n++] = k->buffers.at[b];
	}
	k->buffers.n = n;
	kernel_renumber_buffers(k, scratch, moved);
	k->n_inputs = n_inputs;
	k->n_outputs = n_outputs;
	for (int i = 0; i < n_inputs + n_outputs; i++)
		k->buffers.at[i].name = i < n_inputs ? arena_printf(scratch, "x%d", i)
		                                     : arena_printf(scratch, "y%d", i - n_inputs);
}

Kernel *
kernel_some_results(Module *m, Arena *scratch, const Kernel *k, const bool *keep, int *inputs)
{
	Kernel some = *k;
	int first = 0;

	if (!is_plain(m, k))
		return NULL;
	some.buffers.at = arena_copy(scratch, k->buffers.at,
	                             sizeof(LoopBuffer) * (size_t)k->buffers.n);
	some.body.at = arena_copy(scratch, k->body.at, sizeof(LoopStatement) * (size_t)k->body.n);
	drop_other_stores(&some, keep);
	do {
		kernel_match_blocks(&some, scratch);
		kernel_drop_unused(&some, scratch);
	} while (drop_empty_blocks(&some));
	drop_buffers(&some, scratch, keep, inputs);
	while (!keep[first])
		first++;
	const char *name = arena_printf(m->arena, "%s_y%d", k->name, first);
	for (int i = 2; strmap_get(m->kernel_names, name); i++)
		name = arena_printf(m->arena, "%s_y%d_%d", k->name, first, i);
	Kernel *added = kernel_add(m, &some, name);
	kernel_finish(added);
	return added;
}

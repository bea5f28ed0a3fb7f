/* The interpreter of tensor IR: runs every node through the function `eval` of its op (a column
 * of the op table). A value is freed after its last use. */
#include "ir/ir.h"

#include <stdlib.h>
#include <string.h>

Interp
interp_new(Module *m, Arena *arena, bool real)
{
	return (Interp){.module = m,
	                .arena = arena,
	                .real = real,
	                .states = NEW_ARRAY(arena, EvalTensor, m->states.n)};
}

EvalTensor
eval_tensor_new(Arena *arena, Type type)
{
	return (EvalTensor){.type = type, .at = arena_alloc(arena, (size_t)type->n * 8)};
}

EvalTensor
eval_tensor_from(Arena *arena, Type type, const void *data)
{
	EvalTensor t = eval_tensor_new(arena, type);

	for (int64_t i = 0; i < type->n; i++) {
		if (dtype_is_float(type->dtype))
			t.f[i] = dtype_load_float(type->dtype, data, i);
		else
			t.i[i] = dtype_load_int(type->dtype, data, i);
	}
	return t;
}

void
eval_tensor_to(const EvalTensor *t, void *data)
{
	for (int64_t i = 0; i < t->type->n; i++) {
		if (dtype_is_float(t->type->dtype))
			dtype_store_float(t->type->dtype, data, i, t->f[i]);
		else
			dtype_store_int(t->type->dtype, data, i, t->i[i]);
	}
}

static int64_t
wrap_int(DType t, int64_t x)
{
	char raw[8];

	dtype_store_int(t, raw, 0, x);
	return dtype_load_int(t, raw, 0);
}

void
eval_tensor_round(EvalTensor *t)
{
	DType d = t->type->dtype;

	if (d == F64 || d == S64 || d == U64)
		return;
	for (int64_t i = 0; i < t->type->n; i++) {
		if (d == F32)
			t->f[i] = (float)t->f[i];
		else if (dtype_is_float(d))
			t->f[i] = dtype_round(d, t->f[i]);
		else
			t->i[i] = wrap_int(d, t->i[i]);
	}
}

/* A run of one function: its values, and scratch memory for the ops. Each result has its own heap allocation, so that
 * it can be freed after its last use. */
typedef struct {
	Interp *in;
	EvalTensor *values; /* by value id */
	/* by value id: how many reads of the value are still to come. After the last read the value
	 * is freed. 0 from the start: the value's memory belongs to the caller, and is not freed */
	int *uses_left;
	Arena *scratch;
} Frame;

static EvalTensor
frame_tensor(Type type)
{
	return (EvalTensor){.type = type, .at = memory_zeroed((size_t)type->n + 1, 8)};
}

static void
frame_release(Frame *fr, const Value *v)
{
	if (v && fr->uses_left[v->id] > 0 && --fr->uses_left[v->id] == 0) {
		memory_free(fr->values[v->id].at);
		fr->values[v->id].at = NULL;
	}
}

static void
run_node(Frame *fr, const Node *n)
{
	Arena *arena = arena_new();
	Eval ev = {.interp = fr->in, .arena = arena, .node = n, .attr = n->attr};
	EvalTensor *operands = NEW_ARRAY(arena, EvalTensor, n->n_operands);
	EvalTensor *results = NEW_ARRAY(arena, EvalTensor, n->n_results);

	for (int i = 0; i < n->n_operands; i++)
		if (node_operand(n, i))
			operands[i] = fr->values[node_operand(n, i)->id];
	for (int i = 0; i < n->n_results; i++)
		fr->values[node_result(n, i)->id] = results[i] = frame_tensor(
			node_result(n, i)->type);
	ev.operand = operands;
	ev.result = results;
	op_row(n)->eval(&ev);
	for (int i = 0; i < n->n_results; i++) {
		EvalTensor *kept = &fr->values[node_result(n, i)->id];
		bool floats = dtype_is_float(kept->type->dtype);
		if (results[i].at != kept->at) /* the op returned memory of its own, in the arena */
			memcpy(kept->at, results[i].at, (size_t)kept->type->n * 8);
		if (!fr->in->real || !floats)
			eval_tensor_round(kept);
	}
	arena_free(arena);
}

static EvalTensor
keep(Arena *arena, const EvalTensor *t)
{
	return (EvalTensor){.type = t->type,
	                    .at = arena_copy(arena, t->at, (size_t)t->type->n * 8)};
}

static void
count_uses(Frame *fr, const Function *f)
{
	for_each_node(f, n)
		for (int i = 0; i < n->n_results; i++) {
			int count = 0;
			for_each_use(node_result(n, i), u)
				count++;
			fr->uses_left[node_result(n, i)->id] = count ? count : 1;
		}
}

static void
release_dead(Frame *fr, const Node *n)
{
	for (int i = 0; i < n->n_operands; i++)
		frame_release(fr, node_operand(n, i));
	for (int i = 0; i < n->n_results; i++)
		if (!value_used(node_result(n, i)))
			frame_release(fr, node_result(n, i));
}

void
interp_run(Interp *in, const Function *f, const EvalTensor *args, EvalTensor *results)
{
	Arena *scratch = arena_new();
	Frame fr = {.in = in, .scratch = scratch};
	EvalTensor *stored = NEW_ARRAY(scratch, EvalTensor, in->module->states.n);

	fr.values = NEW_ARRAY(scratch, EvalTensor, f->next_value_id);
	fr.uses_left = NEW_ARRAY(scratch, int, f->next_value_id);
	for (int i = 0; i < f->params.n; i++)
		fr.values[f->params.at[i]->id] = args[i];
	for (int i = 0; i < f->states.n; i++)
		fr.values[f->states.at[i]->id] = in->states[f->states.at[i]->state->id];
	count_uses(&fr, f);
	for_each_node(f, n) {
		if (n->when == (in->later ? WHEN_FIRST : WHEN_LATER)) {
			release_dead(&fr, n);
			continue;
		}
		if (n->op == OP_store) {
			State *s = ((StoreAttr *)n->attr)->state;
			stored[s->id] = keep(in->arena, &fr.values[node_operand(n, 0)->id]);
		} else if (n->op == OP_return) {
			for (int i = 0; i < n->n_operands; i++)
				results[i] = keep(in->arena, &fr.values[node_operand(n, i)->id]);
		} else {
			run_node(&fr, n);
		}
		release_dead(&fr, n);
	}
	for (int i = 0; i < in->module->states.n; i++)
		if (stored[i].at)
			in->states[i] = stored[i];
	arena_free(scratch);
}

bool
node_fold(Module *m, const Node *n, Tensor **results)
{
	for (int i = 0; i < n->n_operands; i++)
		if (!node_operand(n, i) || !value_constant(node_operand(n, i)))
			return false;
	if (op_row(n)->effect || op_row(n)->fuse == FUSE_NONE || op_row(n)->fuse == FUSE_CONTROL)
		return false;
	Arena *arena = arena_new();
	Interp in = {.module = m, .arena = arena};
	Eval ev = {.interp = &in, .arena = arena, .node = n, .attr = n->attr};
	EvalTensor *operands = NEW_ARRAY(arena, EvalTensor, n->n_operands);
	EvalTensor *out = NEW_ARRAY(arena, EvalTensor, n->n_results);

	for (int i = 0; i < n->n_operands; i++) {
		const Tensor *t = value_constant(node_operand(n, i));
		operands[i] = eval_tensor_from(arena, t->type, t->data);
	}
	for (int i = 0; i < n->n_results; i++)
		out[i] = eval_tensor_new(arena, node_result(n, i)->type);
	ev.operand = operands;
	ev.result = out;
	op_row(n)->eval(&ev);
	for (int i = 0; i < n->n_results; i++) {
		eval_tensor_round(&out[i]);
		void *data = arena_alloc(m->arena, (size_t)type_bytes(out[i].type));
		eval_tensor_to(&out[i], data);
		results[i] = tensor_borrow(m, out[i].type, data);
	}
	arena_free(arena);
	return true;
}

/* Finds the nodes that read a weight, and the axis of the weight that counts their outputs. */
#include "passes/lora/lora.h"

typedef struct {
	Arena *arena;
	const char *why; /* why the weight can have no adapter; NULL: it can */
} Search;

/* Finds the weight's axis of outputs: the axis that the node's result also has, but that no other
 * operand of the node has. False if there is not exactly one such axis; s->why then says so. */
static bool
find_outputs(Search *s, LoraReader *r)
{
	const Node *n = r->node;
	Partition p = node_partition(s->arena, n);
	int n_axes = 0;

	for (int i = 0; i < n->n_operands; i++)
		if (i != r->operand && behind_views(node_operand(n, i))->kind == VALUE_STATE) {
			s->why = "it multiplies another weight";
			return false;
		}
	r->is_table = true;
	for (int i = 0; i < r->order.n; i++) {
		const Factor *f = partition_of_operand(&p, r->operand, i);
		bool is_whole = true;
		for (int k = 0; f && k < n->n_operands; k++) {
			bool is_cut = k != r->operand && f->operand[k].kind == SHARE_CUT;
			is_whole &= !is_cut;
			r->is_table &= !is_cut || f->combine != COMBINE_SUM;
		}
		if (!f || f->result[0].kind != SHARE_CUT)
			continue;
		s->why = "groups or batches have a part of it each";
		if (!is_whole)
			return false;
		r->axis = (int)r->order.at[i];
		r->outputs = i;
		r->result_axis = f->result[0].axis;
		n_axes++;
	}
	s->why = n_axes == 1 ? NULL : "its outputs are not one axis";
	return n_axes == 1;
}

static bool
adapts(const Node *n, int operand)
{
	return (op_row(n)->adapts & OPERAND(operand)) &&
	       dtype_is_float(node_result(n, 0)->type->dtype);
}

/* The order of axes after a transpose. */
static Ints
transposed(const Ints *order, const TransposeAttr *a)
{
	Ints out = {.n = order->n};

	for (int i = 0; i < order->n; i++)
		out.at[i] = order->at[a->order.at[i]];
	return out;
}

/* Follows the readers of v. Elementwise nodes that read codes compute floats from the codes. is_code: v is computed
 * from codes. */
static bool
find_readers(Search *s, const Value *v, Ints order, bool is_code, LoraReaders *out)
{
	bool has_codes = false;
	const char *other = NULL;

	for_each_use(v, u) {
		Node *n = u->user;
		LoraReader r = {
			.node = n, .operand = use_index(u), .order = order, .has_codes = is_code};
		bool makes_codes = n->op == OP_quantize && use_index(u) == 0;
		has_codes |= makes_codes;
		if (adapts(n, use_index(u))) {
			if (!find_outputs(s, &r))
				return false;
			vec_push(s->arena, out, r);
		} else if (n->op == OP_transpose) {
			if (!find_readers(s, node_result(n, 0), transposed(&order, n->attr),
			                  is_code, out))
				return false;
		} else if (makes_codes || (is_code && op_row(n)->fuse == FUSE_ELEMENTWISE)) {
			if (!find_readers(s, node_result(n, 0), order, true, out))
				return false;
		} else {
			other = op_row(n)->name;
		}
	}
	/* Scales and zero points of the codes are computed from the weight, too: such readers are allowed. */
	if (other && !has_codes) {
		s->why = arena_printf(s->arena, "op %s reads it", other);
		return false;
	}
	return true;
}

const LoraReader *
lora_leader(const LoraReaders *readers)
{
	const LoraReader *best = NULL;

	for (int i = 0; i < readers->n; i++) {
		const LoraReader *r = &readers->at[i];
		bool is_earlier = best && r->is_table == best->is_table &&
		                  r->node->id < best->node->id;
		if (!best || (best->is_table && !r->is_table) || is_earlier)
			best = r;
	}
	return best;
}

static bool
is_program(const Function *f)
{
	return f->role == ROLE_FORWARD || f->role == ROLE_INFERENCE;
}

const char *
lora_find_readers(const Module *m, const State *w, Arena *arena, LoraReaders *out)
{
	Ints order = {.n = w->type->rank};
	Search s = {arena, NULL};

	for (int i = 0; i < order.n; i++)
		order.at[i] = i;
	if (w->type->n == 0)
		return "it has no elements";
	if (!dtype_is_float(w->type->dtype))
		return "it holds no floats";
	for_each_function(m, f)
		if (is_program(f) && w->id < f->by_state.n && f->by_state.at[w->id] &&
		    !find_readers(&s, f->by_state.at[w->id], order, false, out))
			return s.why;
	const LoraReader *first = lora_leader(out);
	for (int i = 0; i < out->n; i++)
		if (out->at[i].axis != first->axis && w->type->rank != 2)
			return "its readers have outputs along several axes";
	return first ? NULL : "nothing reads it";
}

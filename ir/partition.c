/* Computes how a node can be cut into parts. A factor is a loop of the node that can be divided
 * (ir/op.h); here are the functions with which op rows list their factors, and the function that
 * cuts a node. */
#include "ir/ir.h"

#include <string.h>

const char *const combine_names[] = {"join", "sum", "prod", "max", "min"};

Partition
node_partition(Arena *arena, const Node *n)
{
	Partition p = {.node = n, .arena = arena};

	op_row(n)->partition.factors(&p);
	return p;
}

Factor *
partition_add(Partition *p, int64_t size, Combine combine)
{
	Factor *f = NEW(p->arena, Factor);

	f->size = size;
	f->combine = combine;
	f->operand = NEW_ARRAY(p->arena, Share, p->node->n_operands + 1);
	f->result = NEW_ARRAY(p->arena, Share, p->node->n_results + 1);
	vec_push(p->arena, &p->factors, f);
	return f;
}

void
factor_cut_operand(Factor *f, int operand, int axis)
{
	f->operand[operand] = (Share){SHARE_CUT, axis};
}

void
factor_cut_result(Factor *f, int result, int axis)
{
	f->result[result] = (Share){SHARE_CUT, axis};
}

void
partition_alike(Partition *p, const Ints *except)
{
	const Node *n = p->node;
	Type t = node_result(n, 0)->type;

	for (int axis = 0; axis < t->rank; axis++) {
		if (ints_has(except, axis))
			continue;
		Factor *f = partition_add(p, t->dims[axis], COMBINE_JOIN);
		for (int i = 0; i < n->n_operands; i++)
			factor_cut_operand(f, i, axis);
		for (int i = 0; i < n->n_results; i++)
			factor_cut_result(f, i, axis);
	}
}

void
partition_elements(Partition *p)
{
	partition_alike(p, &(Ints){0});
}

void
partition_none(Partition *p)
{
	(void)p;
}

const Factor *
partition_of_operand(const Partition *p, int operand, int axis)
{
	for (int i = 0; i < p->factors.n; i++) {
		Share s = p->factors.at[i]->operand[operand];
		if (s.kind == SHARE_CUT && s.axis == axis)
			return p->factors.at[i];
	}
	return NULL;
}

const Factor *
partition_of_result(const Partition *p, int result, int axis)
{
	for (int i = 0; i < p->factors.n; i++) {
		Share s = p->factors.at[i]->result[result];
		if ((s.kind == SHARE_CUT || s.kind == SHARE_SHIFTED) && s.axis == axis)
			return p->factors.at[i];
	}
	return NULL;
}

bool
factor_divides(const Factor *f, int64_t parts)
{
	return parts > 0 && f->size > 0 && f->size % parts == 0;
}

static Type
piece_type(Module *m, Type t, int axis, const Factor *f, int64_t size)
{
	Ints dims = ints_of_type(t);

	dims.at[axis] = dims.at[axis] / f->size * size;
	return type_new(m, t->dtype, dims.n, dims.at);
}

Cut
node_cut(Module *m, Arena *arena, const Node *n, const Factor *f, int64_t size)
{
	const OpRow *row = op_row(n);
	Type *operand = NEW_ARRAY(arena, Type, n->n_operands + 1);
	Type *result = NEW_ARRAY(arena, Type, n->n_results + 1);
	Cut cut = {.node = n, .factor = f, .size = size, .operand = operand, .result = result};

	for (int i = 0; i < n->n_operands; i++) {
		operand[i] = node_operand(n, i) ? node_operand(n, i)->type : NULL;
		if (operand[i] && f->operand[i].kind == SHARE_CUT)
			operand[i] = piece_type(m, operand[i], f->operand[i].axis, f, size);
	}
	for (int i = 0; i < n->n_results; i++) {
		result[i] = node_result(n, i)->type;
		if (f->result[i].kind == SHARE_CUT || f->result[i].kind == SHARE_SHIFTED)
			result[i] = piece_type(m, result[i], f->result[i].axis, f, size);
	}
	cut.attr = arena_alloc(arena, row->attr_size + 1);
	if (row->attr_size)
		memcpy(cut.attr, n->attr, row->attr_size);
	if (row->partition.attrs)
		row->partition.attrs(m, &cut);
	return cut;
}

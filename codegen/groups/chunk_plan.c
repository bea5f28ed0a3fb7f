/* Decides how a function is cut into chunks of rows. Example: logits of 2 x 256 rows. For chunks of 256 rows or more, one
 * level cuts axis 0 into 2 parts. For chunks of 100 rows, level 0 cuts axis 0 into 2 parts, and
 * level 1 cuts axis 1 into 2 parts of 86 rows and a rest of 84. */
#include "codegen/groups/chunks.h"

/* Are all results either cut along an axis, or combined from the parts? */
static bool
results_fit(const Function *f, const AxisCut *cut)
{
	const Node *ret = function_return(f);

	for (int i = 0; i < ret->n_operands; i++)
		if (!cut->of[node_operand(ret, i)->id].known)
			return false;
	return true;
}

unsigned
chunks_operands_cut(Arena *arena, const Value *v, int axis)
{
	Partition p = node_partition(arena, v->node);
	const Factor *f = partition_of_result(&p, v->index, axis);
	unsigned cut = 0;

	for (int i = 0; f && i < v->node->n_operands; i++)
		cut |= f->operand[i].kind == SHARE_CUT ? OPERAND(i) : 0;
	return cut;
}

/* The first axis of the product v that can be cut, with its cut; -1: there is no such axis. side: the operands that are
 * cut with it; 0: any. */
static int
first_axis(Arena *arena, const Function *f, Value *v, unsigned side, AxisCut *cut)
{
	for (int axis = 0; axis < v->type->rank; axis++)
		if (v->type->dims[axis] > 1 &&
		    (!side || chunks_operands_cut(arena, v, axis) == side) &&
		    axis_cut(arena, f, v, axis, cut) && results_fit(f, cut) && cut->units > 1)
			return axis;
	return -1;
}

/* The number of rows: the product of the sizes of all axes on this side. */
static int64_t
count_rows(Arena *arena, const Value *v, unsigned side)
{
	int64_t rows = 1;

	for (int axis = 0; axis < v->type->rank; axis++)
		if (chunks_operands_cut(arena, v, axis) == side)
			rows *= v->type->dims[axis];
	return rows;
}

/* The value of `to`, a part of `from`, that stands for the result v. */
static Value *
same_value(const Function *from, const Function *to, const Value *v)
{
	Node *other = to->first;

	for (Node *n = from->first; n != v->node; n = n->next)
		other = other->next;
	return node_result(other, v->index);
}

/* Are results combined in one way? Does no result have a part for each chunk that is about as large as the product, because one
 * level cuts it and another combines it? Sums, and largest and smallest floats, have a neutral element. */
static bool
results_combine(const Chunks *c)
{
	const Node *ret = function_return(c->levels[0].f);

	for (int i = 0; i < ret->n_operands; i++) {
		Type t = node_operand(ret, i)->type;
		Combine how = COMBINE_JOIN;
		int64_t elements = t->n;
		bool cut = false;
		for (int k = 0; k < c->n; k++) {
			const ChunkLevel *l = &c->levels[k];
			const ValueCut *of = &l->cut.of[function_result(l->f, i)->id];
			cut |= of->axis >= 0;
			if (of->axis >= 0)
				continue;
			if (how != COMBINE_JOIN && how != of->combine)
				return false;
			how = of->combine;
			elements *= ceil_div(l->cut.units, l->units);
		}
		if ((cut && how != COMBINE_JOIN && elements > c->elements / 2) ||
		    (how > COMBINE_PROD && !dtype_is_float(t->dtype)))
			return false;
	}
	return true;
}

/* Is no operand that is cut along one level repeated along another to about as many elements as the product has? */
static bool
operands_fit(const Chunks *c)
{
	const Function *f = c->levels[0].f;

	for (int i = 0; i < f->params.n; i++) {
		int64_t elements = f->params.at[i]->type->n;
		bool cut = false;
		for (int k = 0; k < c->n; k++) {
			const ChunkLevel *l = &c->levels[k];
			bool here = l->cut.of[l->f->params.at[i]->id].known;
			cut |= here;
			elements *= here ? 1 : ceil_div(l->cut.units, l->units);
		}
		if (cut && elements > f->params.at[i]->type->n && elements > c->elements / 2)
			return false;
	}
	return true;
}

/* Have values room for the axes of the levels in front of their own, and one more while an axis is split? */
static bool
ranks_fit(const Chunks *c)
{
	const Function *f = c->levels[0].f;
	const Node *ret = function_return(f);
	int most = 0;

	for (int i = 0; i < f->params.n; i++)
		most = f->params.at[i]->type->rank > most ? f->params.at[i]->type->rank : most;
	for (int i = 0; i < ret->n_operands; i++)
		most = node_operand(ret, i)->type->rank > most ? node_operand(ret, i)->type->rank
		                                               : most;
	return most + c->n + 1 <= MAX_RANK;
}

/* Cuts with at most so many levels; false: there is no more than one chunk. */
static bool
cut_levels(Arena *arena, const Function *body, Value *product, int64_t rows, int most, Chunks *c)
{
	AxisCut cut;
	int axis = first_axis(arena, body, product, 0, &cut);
	unsigned side = axis < 0 ? 0 : chunks_operands_cut(arena, product, axis);
	int64_t left = count_rows(arena, product, side), chunks = 1;

	*c = (Chunks){.arena = arena, .elements = product->type->n};
	while (axis >= 0) {
		ChunkLevel *l = &c->levels[c->n++];
		int64_t each = left / cut.units;
		bool last = each <= rows || c->n == most;
		*l = (ChunkLevel){.f = body, .cut = cut, .units = 1};
		if (each < rows)
			l->units = ceil_div(cut.units, ceil_div(left, rows));
		l->count = cut.units / l->units;
		chunks *= ceil_div(cut.units, l->units);
		if (last)
			break;
		Function *part = function_part(body, &cut, 1);
		product = same_value(body, part, product);
		axis = first_axis(arena, part, product, side, &cut);
		if (axis < 0)
			function_remove(part);
		body = part;
		left = each;
	}
	return chunks > 1;
}

bool
chunks_plan(Arena *arena, const Function *body, Value *product, int64_t rows, Chunks *out)
{
	for (int most = MAX_CHUNK_LEVELS; most > 0; most--) {
		bool cut = cut_levels(arena, body, product, rows, most, out);
		if (cut && ranks_fit(out) && results_combine(out) && operands_fit(out))
			return true;
		chunks_drop(out);
	}
	return false;
}

bool
chunks_plan_axis(Arena *arena, const Function *body, Value *v, int axis, int64_t size, Chunks *out)
{
	AxisCut cut;

	*out = (Chunks){.arena = arena, .elements = v->type->n};
	if (!axis_cut(arena, body, v, axis, &cut) || !results_fit(body, &cut))
		return false;
	int64_t unit = v->type->dims[axis] / cut.units;
	int64_t most = size > unit ? size / unit : 1;
	int64_t units = ceil_div(cut.units, ceil_div(cut.units, most));
	out->levels[out->n++] = (ChunkLevel){
		.f = body, .cut = cut, .count = cut.units / units, .units = units};
	return cut.units > units && ranks_fit(out) && results_combine(out);
}

void
chunks_drop(const Chunks *c)
{
	for (int k = 1; k < c->n; k++)
		function_remove((Function *)(uintptr_t)c->levels[k].f);
}

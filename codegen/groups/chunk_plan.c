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

/* The first axis of v from `axis` on that can be cut, with its cut; -1: there is no such axis. */
static int
next_axis(Arena *arena, const Function *f, Value *v, int axis, AxisCut *cut)
{
	for (; axis < v->type->rank; axis++)
		if (v->type->dims[axis] > 1 && axis_cut(arena, f, v, axis, cut) &&
		    results_fit(f, cut) && cut->units > 1)
			return axis;
	return -1;
}

/* The number of rows: the product of the sizes of all axes that can be cut. */
static int64_t
count_rows(Arena *arena, const Function *f, Value *v)
{
	AxisCut cut;
	int64_t rows = 1;

	for (int axis = next_axis(arena, f, v, 0, &cut); axis >= 0;
	     axis = next_axis(arena, f, v, axis + 1, &cut))
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

/* Results that all levels combine are combined in one way, and other results are cut along no axis only if every level
 * cuts or combines them. */
static bool
levels_fit(const Chunks *c)
{
	const Node *ret = function_return(c->levels[0].f);

	for (int i = 0; i < ret->n_operands; i++) {
		Combine how = COMBINE_JOIN;
		for (int k = 0; k < c->n; k++) {
			const ChunkLevel *l = &c->levels[k];
			const ValueCut *of = &l->cut.of[function_result(l->f, i)->id];
			if (of->axis >= 0)
				continue;
			if (how != COMBINE_JOIN && how != of->combine)
				return false;
			how = of->combine;
		}
	}
	return true;
}

bool
chunks_plan(Arena *arena, const Function *body, Value *product, int64_t rows, Chunks *out)
{
	Chunks c = {.arena = arena};
	int64_t left = count_rows(arena, body, product), chunks = 1;

	for (const Function *f = body; f && c.n < MAX_CHUNK_LEVELS;) {
		ChunkLevel *l = &c.levels[c.n];
		AxisCut more;
		int axis = next_axis(arena, f, product, 0, &l->cut);
		if (axis < 0)
			break;
		int64_t units = l->cut.units, each = left / units;
		bool again = each > rows && c.n + 1 < MAX_CHUNK_LEVELS;
		c.n++;
		l->f = f;
		l->units = again ? 1 : ceil_div(units, ceil_div(left, rows < each ? each : rows));
		l->count = units / l->units;
		chunks *= ceil_div(units, l->units);
		if (!again)
			break;
		Function *part = function_part(f, &l->cut, 1);
		product = same_value(f, part, product);
		left = each;
		f = next_axis(arena, part, product, 0, &more) < 0 ? NULL : part;
		if (!f)
			function_remove(part);
	}
	*out = c;
	if (chunks > 1 && levels_fit(&c))
		return true;
	chunks_drop(&c);
	return false;
}

void
chunks_drop(const Chunks *c)
{
	for (int k = 1; k < c->n; k++)
		function_remove((Function *)(uintptr_t)c->levels[k].f);
}

/* Follows an axis through the nodes of a function, by the partition rules of their ops, and makes the
 * function of one part. Example, with axis 0 of z cut:
 *
 *	z = dot x[512,768], w[768,50257]     x is cut along axis 0; each part has the whole of w
 *	m = reduce.max z over axis 1         m[512] is cut along axis 0
 *	g = dot x, z over axis 0 of both     each part has a g of its own; their sum is the whole g
 *	h = transpose g                      each part has an h of its own, too
 *
 * Takes linear time in the number of nodes. */
#include "ir/ir.h"

static bool cut_value(AxisCut *c, Value *v, int axis);

/* The axis that is cut; -1: no axis. */
static int
axis_of(const AxisCut *c, const Value *v)
{
	return c->of[v->id].known ? c->of[v->id].axis : -1;
}

/* Cuts the node's loop f: operands must be cut as f says, and results are cut as f says. */
static bool
cut_node(AxisCut *c, const Node *n, const Factor *f)
{
	if (!f)
		return false;
	c->factor[n->id] = f;
	c->units = greatest_common_divisor(c->units, f->size);
	for (int i = 0; i < n->n_results; i++) {
		Share s = f->result[i];
		if (s.kind != SHARE_CUT && s.kind != SHARE_WHOLE)
			return false;
		bool cut = s.kind == SHARE_CUT;
		c->of[node_result(n, i)->id] = (ValueCut){cut || f->combine != COMBINE_JOIN,
		                                          cut ? s.axis : -1, f->combine};
	}
	for (int i = 0; i < n->n_operands; i++) {
		Share s = f->operand[i];
		if (!node_operand(n, i))
			continue;
		if ((s.kind != SHARE_CUT && s.kind != SHARE_WHOLE) ||
		    !cut_value(c, node_operand(n, i), s.kind == SHARE_CUT ? s.axis : -1))
			return false;
	}
	return true;
}

/* Each part needs the whole of v (axis -1) or a piece of it. The nodes that compute v follow. */
static bool
cut_value(AxisCut *c, Value *v, int axis)
{
	ValueCut *of = &c->of[v->id];

	if (of->known)
		return of->axis == axis && of->combine == COMBINE_JOIN;
	if (axis < 0)
		return true; /* a later node may cut v: axis_cut checks all nodes at the end */
	*of = (ValueCut){.known = true, .axis = axis};
	if (!v->node)
		return true;
	Partition p = node_partition(c->arena, v->node);
	return cut_node(c, v->node, partition_of_result(&p, v->index, axis));
}

/* The loop of n that the axis of an operand is; NULL: no operand is cut, or the axis cannot be cut in n. */
static const Factor *
factor_reached(const AxisCut *c, const Node *n, bool *reached)
{
	for (int i = 0; i < n->n_operands; i++) {
		const Value *v = node_operand(n, i);
		*reached = v && c->of[v->id].known;
		if (!*reached)
			continue;
		Partition p = node_partition(c->arena, n);
		return axis_of(c, v) < 0 ? NULL : partition_of_operand(&p, i, axis_of(c, v));
	}
	return NULL;
}

static bool
is_combined(const AxisCut *c, const Value *v)
{
	return v && c->of[v->id].known && c->of[v->id].combine != COMBINE_JOIN;
}

/* Does n only move or round a value that each part has of its own, such as a part's sum? */
static bool
keeps_combined(const AxisCut *c, const Node *n)
{
	const Value *x = n->n_results == 1 ? value_cast_of(node_result(n, 0)) : NULL;
	bool rounds = x && dtype_is_float(x->type->dtype) &&
	              dtype_is_float(node_result(n, 0)->type->dtype);

	return (is_move(n) || rounds) && is_combined(c, node_operand(n, 0));
}

/* Is every operand of n cut as the loop that is cut says? */
static bool
is_cut_right(const AxisCut *c, const Node *n)
{
	const Factor *f = c->factor[n->id];

	if (keeps_combined(c, n)) {
		const ValueCut *x = &c->of[node_operand(n, 0)->id],
			       *y = &c->of[node_result(n, 0)->id];
		return !f && y->known && y->axis < 0 && y->combine == x->combine;
	}

	for (int i = 0; i < n->n_operands; i++) {
		const Value *v = node_operand(n, i);
		bool whole = !f || f->operand[i].kind != SHARE_CUT;
		if (v && (axis_of(c, v) != (whole ? -1 : f->operand[i].axis) ||
		          (c->of[v->id].known && c->of[v->id].combine != COMBINE_JOIN)))
			return false;
	}
	return true;
}

/* Cuts every node that reads a cut value. */
static bool
follow(AxisCut *c, const Function *f)
{
	for (Node *n = f->first; n != function_return(f); n = n->next) {
		bool reached = false;
		if (keeps_combined(c, n)) {
			c->of[node_result(n, 0)->id] = c->of[node_operand(n, 0)->id];
			continue;
		}
		const Factor *factor = factor_reached(c, n, &reached);
		if (reached && !c->factor[n->id] && !cut_node(c, n, factor))
			return false;
	}
	return true;
}

bool
axis_cut(Arena *arena, const Function *f, Value *v, int axis, AxisCut *out)
{
	AxisCut c = {.arena = arena,
	             .of = NEW_ARRAY(arena, ValueCut, f->next_value_id),
	             .factor = NEW_ARRAY(arena, const Factor *, f->next_node_id)};

	c.units = v->type->dims[axis];
	if (!cut_value(&c, v, axis))
		return false;
	if (!follow(&c, f) ||
	    !follow(&c, f)) /* an operand that the first walk cut may have earlier readers */
		return false;
	for (Node *n = f->first; n != function_return(f); n = n->next)
		if (!is_cut_right(&c, n))
			return false;
	*out = c;
	return true;
}

/* ---- the function of a part */
static Type
param_type(Module *m, const AxisCut *cut, const Value *v, int64_t units)
{
	int axis = axis_of(cut, v);
	Ints dims = ints_of_type(v->type);

	if (axis < 0)
		return v->type;
	dims.at[axis] = dims.at[axis] / cut->units * units;
	return type_new(m, v->type->dtype, dims.n, dims.at);
}

static void
add_part(Function *to, const Node *n, const AxisCut *cut, int64_t units, Value **map)
{
	Arena *scratch = arena_new();
	const Factor *f = cut->factor[n->id];
	Value **operands = NEW_ARRAY(scratch, Value *, n->n_operands);
	Type *types = NEW_ARRAY(scratch, Type, n->n_results);
	const Type *results = types;
	void *attr = n->attr;

	for (int i = 0; i < n->n_operands; i++)
		operands[i] = node_operand(n, i) ? map[node_operand(n, i)->id] : NULL;
	for (int i = 0; i < n->n_results; i++)
		types[i] = node_result(n, i)->type;
	if (f) {
		Cut part = node_cut(to->module, scratch, n, f, f->size / cut->units * units);
		results = part.result;
		attr = part.attr;
	}
	Node *copy = node_insert(to, NULL, n->op, n->n_operands, operands, attr, n->n_results,
	                         results, n->loc);
	copy->phase = n->phase;
	for (int i = 0; i < n->n_results; i++)
		map[node_result(n, i)->id] = node_result(copy, i);
	arena_free(scratch);
}

Function *
function_part(const Function *f, const AxisCut *cut, int64_t units)
{
	Module *m = f->module;
	const char *name = arena_printf(m->arena, "%s.part", f->name);
	Function *to = function_new(m, module_fresh_name(m, name));
	Arena *scratch = arena_new();
	Value **map = NEW_ARRAY(scratch, Value *, f->next_value_id);
	const Node *ret = function_return(f);
	Value **results = NEW_ARRAY(scratch, Value *, ret->n_operands);

	to->loc = f->loc;
	for (int i = 0; i < f->params.n; i++) {
		const Value *p = f->params.at[i];
		map[p->id] = function_param(to, param_type(m, cut, p, units), p->name);
	}
	for (Node *n = f->first; n != ret; n = n->next)
		add_part(to, n, cut, units, map);
	for (int i = 0; i < ret->n_operands; i++)
		results[i] = map[node_operand(ret, i)->id];
	b_return(&(Builder){.m = m, .f = to}, ret->n_operands, results);
	arena_free(scratch);
	return to;
}

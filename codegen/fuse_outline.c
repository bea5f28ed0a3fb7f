/* Outlining: a group becomes a fused function and one call of it. */
#include "codegen/fuse_impl.h"

typedef struct {
	Fuse *fu;
	int gi;
	Function *body;
	Builder b;
	Value **map;          /* by value id of the original function */
	VEC(Value *) map_set; /* what to clear again */
	VEC(Value *) arguments;
} Outline;

static void
map_put(Outline *o, Value *from, Value *to)
{
	o->map[from->id] = to;
	vec_push(o->fu->arena, &o->map_set, from);
}

static void outline_node(Outline *o, Node *n);

/* v inside the body: a member's clone, a copy of what readers copy, or a new parameter. */
static Value *
outline_value(Outline *o, Value *v)
{
	Fuse *fu = o->fu;
	Node *n = v->node;

	if (!v)
		return NULL;
	if (o->map[v->id])
		return o->map[v->id];
	if (n && (fuse_is_copied(fu, n) || (fu->pulled[v->id] && fuse_group_of(fu, v) != o->gi))) {
		outline_node(o, n);
		return o->map[v->id];
	}
	char name[16];
	snprintf(name, sizeof(name), "x%d", o->arguments.n);
	Value *p = function_param(o->body, v->type, name);
	vec_push(fu->arena, &o->arguments, v);
	map_put(o, v, p);
	return p;
}

static void
outline_node(Outline *o, Node *n)
{
	Value **operands = NEW_ARRAY(o->fu->arena, Value *, n->n_operands);
	Type *types = NEW_ARRAY(o->fu->arena, Type, n->n_results);

	for (int i = 0; i < n->n_operands; i++)
		operands[i] = outline_value(o, node_operand(n, i));
	for (int i = 0; i < n->n_results; i++)
		types[i] = node_result(n, i)->type;
	Node *copy = node_insert(o->body, NULL, n->op, n->n_operands, operands, n->attr,
	                         n->n_results, types, n->loc);
	for (int i = 0; i < n->n_results; i++)
		map_put(o, node_result(n, i), node_result(copy, i));
}

/* Is a member needed here: stored for others, or read by another member? A pulled value that only
 * other groups read is not. */
static bool
read_inside(const Fuse *fu, const Node *reader, int gi)
{
	return fuse_class_of(reader) != FUSE_NONE &&
	       fuse_group_of(fu, node_result(reader, 0)) == gi;
}

static bool
is_live(const Fuse *fu, const Node *n, int gi)
{
	for (int i = 0; i < n->n_results; i++)
		if (fuse_is_stored(fu, node_result(n, i)) ||
		    fuse_any_reader(fu, node_result(n, i), read_inside, gi))
			return true;
	return false;
}

static Loc
group_loc(Fuse *fu, const Group *g)
{
	Loc locs[64];
	int n = 0;

	for (int i = 0; i < g->members.n && n < COUNT(locs); i++)
		locs[n++] = g->members.at[i]->loc;
	return loc_fuse(fu->m, locs, n);
}

/* Makes the group's function and its call, before the stores. */
void
fuse_outline_group(Fuse *fu, int gi, Value **map, Node *before)
{
	const Group *g = &fu->groups.at[gi];
	Outline o = {.fu = fu, .gi = gi, .map = map};
	VEC(Value *) results = {0};
	VEC(Value *) originals = {0};

	o.body = function_new(fu->m, module_fresh_name(fu->m, arena_printf(fu->m->arena, "%s.k%d",
	                                                                   fu->f->name, gi)));
	o.body->kind = FUNCTION_FUSED;
	o.body->loc = group_loc(fu, g);
	for (int i = 0; i < g->members.n; i++) {
		Node *n = g->members.at[i];
		if (!is_live(fu, n, gi))
			continue;
		outline_node(&o, n);
		for (int k = 0; k < n->n_results; k++) {
			Value *v = node_result(n, k);
			/* an opaque kernel writes all its results */
			if (!fuse_is_stored(fu, v) && !g->opaque)
				continue;
			vec_push(fu->arena, &results, o.map[v->id]);
			vec_push(fu->arena, &originals, v);
		}
	}
	b_return(&(Builder){.m = fu->m, .f = o.body}, results.n, results.at);
	Value **arguments = NEW_ARRAY(fu->arena, Value *, o.arguments.n);
	for (int i = 0; i < o.arguments.n; i++) {
		Value *v = o.arguments.at[i];
		arguments[i] = fu->stored[v->id] ? fu->stored[v->id] : v;
	}
	Builder b = {.m = fu->m,
	             .f = fu->f,
	             .before = before,
	             .loc = o.body->loc,
	             .phase = g->members.at[0]->phase};
	if (results.n == 0) {
		function_remove(o.body);
	} else {
		Node *call = build_node(&b, OP_call, o.arguments.n, arguments,
		                        &(CallAttr){.callee = o.body});
		for (int i = 0; i < results.n; i++)
			fu->stored[originals.at[i]->id] = node_result(call, i);
	}
	for (int i = 0; i < o.map_set.n; i++)
		map[o.map_set.at[i]->id] = NULL;
}

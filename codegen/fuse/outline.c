/* Outlining: replaces a group by a call of a fused function. Because layers repeat, many groups
 * have equal bodies; they share one fused function, in all functions of the module. */
#include "codegen/fuse/outline.h"

/* A function's body before it is built. A reference is a number that names a value: 0 is no
 * value, r > 0 is the r-th result among all nodes, -p is the p-th parameter. */
typedef struct {
	Fuse *fu;
	int gi;
	VEC(Node *) nodes;
	VEC(int) references;    /* of all operands, node after node */
	VEC(Value *) arguments; /* values that the parameters stand for */
	VEC(Value *) results;   /* values that other groups read */
	int n_values;
} Outline;

struct FusedBody {
	Function *function;
	int n_references, n_results;
	const int *references, *results;
};

static void outline_node(Outline *o, Node *n);

/* Gives v a reference. If v is computed inside the group, or copied or recomputed for it, its
 * node becomes part of the body; otherwise v becomes a parameter. */
static void
outline_value(Outline *o, Value *v)
{
	Fuse *fu = o->fu;

	if (!v || fu->reference[v->id])
		return;
	Node *n = v->node;
	if (n && (plan_is_copied(fu->plan, n) ||
	          (fu->plan->recomputed[v->id] && plan_group_of(fu->plan, v) != o->gi))) {
		outline_node(o, n);
		return;
	}
	vec_push(fu->arena, &o->arguments, v);
	fu->reference[v->id] = -o->arguments.n;
}

static int
reference_of(const Outline *o, const Value *v)
{
	return v ? o->fu->reference[v->id] : 0;
}

static void
outline_node(Outline *o, Node *n)
{
	for (int i = 0; i < n->n_operands; i++)
		outline_value(o, node_operand(n, i));
	for (int i = 0; i < n->n_operands; i++)
		vec_push(o->fu->arena, &o->references, reference_of(o, node_operand(n, i)));
	for (int i = 0; i < n->n_results; i++)
		o->fu->reference[node_result(n, i)->id] = ++o->n_values;
	vec_push(o->fu->arena, &o->nodes, n);
}

static void
forget_references(const Outline *o)
{
	for (int i = 0; i < o->arguments.n; i++)
		o->fu->reference[o->arguments.at[i]->id] = 0;
	for (int i = 0; i < o->nodes.n; i++)
		for (int k = 0; k < o->nodes.at[i]->n_results; k++)
			o->fu->reference[node_result(o->nodes.at[i], k)->id] = 0;
}

/* ---- members: a member of the group is part of the body if its value is stored for other groups
 * or read by another member. It is left out if only other groups read it and they compute it
 * again. */
static void
outline_member(Outline *o, Node *n)
{
	const StorePlan *p = o->fu->plan;
	const Group *g = &p->groups.at[o->gi];
	/* the opaque node's kernel writes all results of the node */
	bool alone = g->opaque && g->members.n == 1;
	int first = o->results.n;
	bool live = false;

	for (int i = 0; i < n->n_results; i++) {
		Value *v = node_result(n, i);
		unsigned readers = plan_readers(p, v, o->gi);
		bool stored = plan_stored_for(p, v, readers);
		live = live || stored || (readers & READ_INSIDE);
		if (stored || alone)
			vec_push(o->fu->arena, &o->results, v);
	}
	if (live)
		outline_node(o, n);
	else
		o->results.n = first;
}

/* ---- bodies */
static uint64_t
body_hash(const Outline *o)
{
	uint64_t h = hash_mix((uint64_t)o->arguments.n, (uint64_t)o->n_values);

	for (int i = 0; i < o->arguments.n; i++)
		h = hash_mix(h, (uint64_t)(uintptr_t)o->arguments.at[i]->type);
	for (int i = 0; i < o->nodes.n; i++) {
		const Node *n = o->nodes.at[i];
		h = hash_mix(h, hash_mix(n->op, attr_hash(op_row(n), n->attr)));
	}
	for (int i = 0; i < o->references.n; i++)
		h = hash_mix(h, (uint64_t)o->references.at[i]);
	for (int i = 0; i < o->results.n; i++)
		h = hash_mix(h, (uint64_t)reference_of(o, o->results.at[i]));
	return h;
}

/* Are both bodies equal? Types of results need no check: they follow from the parameters. */
static bool
body_equal(const FusedBody *b, const Outline *o)
{
	const Node *mine = b->function->first;

	if (b->function->params.n != o->arguments.n || b->function->n_nodes != o->nodes.n + 1 ||
	    b->n_references != o->references.n || b->n_results != o->results.n)
		return false;
	for (int i = 0; i < o->references.n; i++)
		if (b->references[i] != o->references.at[i])
			return false;
	for (int i = 0; i < o->arguments.n; i++)
		if (b->function->params.at[i]->type != o->arguments.at[i]->type)
			return false;
	for (int i = 0; i < o->nodes.n; i++, mine = mine->next)
		if (mine->op != o->nodes.at[i]->op ||
		    !attr_equal(op_row(mine), mine->attr, o->nodes.at[i]->attr))
			return false;
	for (int i = 0; i < o->results.n; i++)
		if (b->results[i] != reference_of(o, o->results.at[i]))
			return false;
	return true;
}

static Value *
resolve(const Function *f, Value *const *values, int reference)
{
	return reference > 0   ? values[reference]
	       : reference < 0 ? f->params.at[-reference - 1]
	                       : NULL;
}

static Function *
build_body(const Outline *o, Loc loc)
{
	Fuse *fu = o->fu;
	Module *m = fu->m;
	const char *name = arena_printf(m->arena, "%s.k%d", fu->f->name, o->gi);
	Function *f = function_new(m, module_fresh_name(m, name));
	Value **values = NEW_ARRAY(fu->arena, Value *, o->n_values + 1);
	const int *reference = o->references.at;
	int n_values = 0;

	f->kind = FUNCTION_FUSED;
	f->loc = loc;
	for (int i = 0; i < o->arguments.n; i++)
		function_param(f, o->arguments.at[i]->type, arena_printf(fu->arena, "x%d", i));
	for (int k = 0; k < o->nodes.n; k++) {
		const Node *n = o->nodes.at[k];
		Value **operands = NEW_ARRAY(fu->arena, Value *, n->n_operands);
		Type *types = NEW_ARRAY(fu->arena, Type, n->n_results);
		for (int i = 0; i < n->n_operands; i++)
			operands[i] = resolve(f, values, *reference++);
		for (int i = 0; i < n->n_results; i++)
			types[i] = node_result(n, i)->type;
		Node *copy = node_insert(f, NULL, n->op, n->n_operands, operands, n->attr,
		                         n->n_results, types, n->loc);
		for (int i = 0; i < n->n_results; i++)
			values[++n_values] = node_result(copy, i);
	}
	Value **results = NEW_ARRAY(fu->arena, Value *, o->results.n);
	for (int i = 0; i < o->results.n; i++)
		results[i] = values[reference_of(o, o->results.at[i])];
	b_return(&(Builder){.m = m, .f = f}, o->results.n, results);
	return f;
}

static Function *
body_for(const Outline *o, Loc loc)
{
	FusedBodies *bodies = o->fu->bodies;
	uint64_t i, h = body_hash(o);

	for (; intmap_get(bodies->by_hash, h, &i); h++)
		if (body_equal(&bodies->at[i], o))
			return bodies->at[i].function;
	int *results = NEW_ARRAY(o->fu->arena, int, o->results.n);
	for (int k = 0; k < o->results.n; k++)
		results[k] = reference_of(o, o->results.at[k]);
	FusedBody b = {build_body(o, loc), o->references.n, o->results.n, o->references.at,
	               results};
	intmap_put(bodies->by_hash, h, (uint64_t)bodies->n);
	vec_push(o->fu->arena, bodies, b);
	return b.function;
}

static Loc
group_loc(Fuse *fu, const Group *g)
{
	Loc *locs = NEW_ARRAY(fu->arena, Loc, g->members.n + 1);

	for (int i = 0; i < g->members.n; i++)
		locs[i] = g->members.at[i]->loc;
	return loc_fuse(fu->m, locs, g->members.n, 0);
}

static void
insert_call(const Outline *o, Node *before)
{
	Fuse *fu = o->fu;
	const Group *g = &fu->plan->groups.at[o->gi];
	Loc loc = group_loc(fu, g);
	Value **arguments = NEW_ARRAY(fu->arena, Value *, o->arguments.n);
	Type *types = NEW_ARRAY(fu->arena, Type, o->results.n);

	for (int i = 0; i < o->arguments.n; i++) {
		Value *v = o->arguments.at[i];
		arguments[i] = fu->stored[v->id] ? fu->stored[v->id] : v;
	}
	for (int i = 0; i < o->results.n; i++)
		types[i] = o->results.at[i]->type;
	Node *call = node_insert(fu->f, before, OP_call, o->arguments.n, arguments,
	                         &(CallAttr){.callee = body_for(o, loc)}, o->results.n, types, loc);
	call->phase = g->members.at[0]->phase;
	for (int i = 0; i < o->results.n; i++)
		fu->stored[o->results.at[i]->id] = node_result(call, i);
}

/* Inserts a copy of a loop's or branch's node. The functions that it runs are fused separately. */
static void
insert_control(Fuse *fu, const Node *n, Node *before)
{
	Value **operands = NEW_ARRAY(fu->arena, Value *, n->n_operands);
	Type *types = NEW_ARRAY(fu->arena, Type, n->n_results);

	for (int i = 0; i < n->n_operands; i++) {
		Value *v = node_operand(n, i);
		operands[i] = fu->stored[v->id] ? fu->stored[v->id] : v;
	}
	for (int i = 0; i < n->n_results; i++)
		types[i] = node_result(n, i)->type;
	Node *copy = node_insert(fu->f, before, n->op, n->n_operands, operands, n->attr,
	                         n->n_results, types, n->loc);
	copy->phase = n->phase;
	for (int i = 0; i < n->n_results; i++)
		fu->stored[node_result(n, i)->id] = node_result(copy, i);
}

void
fuse_outline_group(Fuse *fu, int gi, Node *before)
{
	const Group *g = &fu->plan->groups.at[gi];
	Outline o = {.fu = fu, .gi = gi};

	if (fuse_class_of(g->members.at[0]) == FUSE_CONTROL) {
		insert_control(fu, g->members.at[0], before);
		return;
	}

	for (int i = 0; i < g->members.n; i++)
		outline_member(&o, g->members.at[i]);
	if (o.results.n)
		insert_call(&o, before);
	forget_references(&o);
}

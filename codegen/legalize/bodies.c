/* Gives loops and branches the form that the executable's instructions need: Each loop or branch
 * gets functions (bodies) of its own, with the node's target and phase. Each result of a body can
 * be written to a place of its own: if a body returns one of its parameters, it returns a copy
 * instead, except for a carried value that it does not change. The number of the iteration
 * becomes a carried value.
 *
 * Changes no number. Takes linear time in the number of nodes. */
#include "codegen/legalize/legalize.h"
#include "format/format.h"

#include <string.h>

typedef struct {
	Module *m;
	Arena *arena;
	Diag *diag;
	VEC(Function *) replaced; /* bodies that the nodes had before */
	bool ok;
} Bodies;

static Value *
copy_of(Function *f, Node *before, Value *v)
{
	Builder b = {.m = f->module, .f = f, .before = before, .loc = before->loc};

	return b_unary(&b, OP_copy, v);
}

/* ---- functions */
static Function *
function_for(Bodies *o, Function *from, const Node *n)
{
	Function *f = function_new(o->m, module_fresh_name(o->m, from->name));

	f->target = n->function->target;
	f->loc = n->loc;
	vec_push(o->arena, &o->replaced, from);
	return f;
}

static Value *
param_like(Function *f, const Value *p)
{
	return function_param(f, p->type, p->name ? p->name : "x");
}

/* Returns v if it is a node's result that can have a place of its own; otherwise a copy of v,
 * inserted before the node `before`. */
static Value *
settled(Function *f, Node *before, Value *v)
{
	return v->kind == VALUE_RESULT ? v : copy_of(f, before, v);
}

static void
give_phase(Function *f, const Node *n)
{
	for_each_node(f, k)
		k->phase = n->phase;
}

/* ---- operands of loops and branches */
/* Is v a row of a stack that the loop `around` passes over? The row's place advances with that
 * loop, and a place can advance with one loop only. */
static bool
is_slice(const Value *v, const Node *around)
{
	return v->kind == VALUE_PARAM && around && loop_part(around, v->index - 1) == LOOP_SLICED;
}

static Value *
readable(Node *n, Value *v, bool sliced, const Node *around)
{
	bool hyper = v->kind == VALUE_PARAM && v->param == PARAM_HYPERPARAMETER;

	return hyper || (sliced && is_slice(v, around)) ? copy_of(n->function, n, v) : v;
}

/* ---- loops */
/* Does a node read the loop's number of iterations, or the number of the current iteration? */
static bool
is_counted(const Node *n)
{
	const LoopAttr *a = n->attr;

	return value_used(a->body->params.at[0]) ||
	       (value_used(node_result(n, n->n_results - 1)) && !a->always);
}

/* Makes a function for the loop's body: body(i, carried, [count], slices, invariants) -> (continue, carried,
 * [count + 1], rows). */
static Function *
loop_body(Bodies *o, const Node *n, bool counted)
{
	const LoopAttr *a = n->attr;
	Function *f = function_for(o, a->body, n);
	Value **map = NEW_ARRAY(o->arena, Value *, a->body->next_value_id);
	Value **out = NEW_ARRAY(o->arena, Value *, n->n_results + 2);
	int carried = (int)a->carried, n_out = 0;
	Value *count = NULL;

	for (int i = 0; i < a->body->params.n; i++) {
		if (i == 1 + carried && counted)
			count = function_param(f, type_scalar(o->m, S64), "count");
		map[a->body->params.at[i]->id] = param_like(f, a->body->params.at[i]);
	}
	if (counted && !count)
		count = function_param(f, type_scalar(o->m, S64), "count");
	if (counted)
		map[a->body->params.at[0]->id] = count;
	function_clone_body(a->body, f, NULL, map);
	Node *old = function_return(a->body);
	Builder b = {.m = o->m, .f = f, .loc = n->loc};
	Value *one = counted ? b_splat(&b, count->type, 1) : NULL;
	Value *next = counted ? b_binary(&b, a->reverse ? OP_sub : OP_add, count, one) : NULL;
	for (int i = 0; i < old->n_operands; i++) {
		if (i == 1 + carried && counted)
			out[n_out++] = next;
		out[n_out++] = map[node_operand(old, i)->id];
	}
	if (counted && old->n_operands == 1 + carried)
		out[n_out++] = next;
	b_return(&b, n_out, out);
	Node *ret = function_return(f);
	for (int i = 0; i < n_out; i++)
		if (!(i >= 1 && i <= carried && out[i] == f->params.at[i]) &&
		    !(i == 0 && a->always))
			node_set_operand(ret, i, settled(f, ret, out[i]));
	give_phase(f, n);
	return f;
}

/* If the loop always runs all its iterations, nobody reads the condition that its body returns.
 * Then the body returns a parameter in its place, and the condition is not computed. */
static void
return_no_condition(Node *n, Function *f, Value **operands, int *n_operands)
{
	Builder b = {
		.m = f->module, .f = n->function, .before = n, .loc = n->loc, .phase = n->phase};
	Type t = type_scalar(f->module, BOOL);

	operands[(*n_operands)++] = b_splat(&b, t, 1);
	node_set_operand(function_return(f), 0, function_param(f, t, "go"));
}

/* How often a loop ran, computed from the last value of its count. */
static Value *
trips(Builder *b, const LoopAttr *a, Value *count)
{
	Type t = type_scalar(b->m, S64);

	if (!count)
		return b_splat(b, t, (double)a->bound);
	return a->reverse ? b_binary(b, OP_sub, b_splat(b, t, (double)(a->bound - 1)), count)
	                  : count;
}

static Node *
own_loop(Bodies *o, Node *n, const Node *around)
{
	LoopAttr a = *(const LoopAttr *)n->attr;
	double go;

	a.always |= value_splat(function_result(a.body, 0), &go) && go == 1;
	((LoopAttr *)n->attr)->always = a.always;
	bool counted = is_counted(n);
	Value **operands = NEW_ARRAY(o->arena, Value *, n->n_operands + 2);
	Builder b = {.m = o->m, .f = n->function, .before = n, .loc = n->loc, .phase = n->phase};
	int carried = (int)a.carried, k = 0, rows = n->n_results - 1 - carried;

	for (int i = 0; i <= n->n_operands; i++) {
		if (i == carried && counted)
			operands[k++] = b_splat(&b, type_scalar(o->m, S64),
			                        a.reverse ? (double)(a.bound - 1) : 0);
		if (i < n->n_operands)
			operands[k++] = readable(n, node_operand(n, i),
			                         loop_part(n, i) == LOOP_SLICED, around);
	}
	a.body = loop_body(o, n, counted);
	a.carried += counted;
	if (a.always)
		return_no_condition(n, a.body, operands, &k);
	Node *own = build_node(&b, OP_loop, k, operands, &a);
	for (int i = 0; i < carried; i++)
		value_replace_uses(node_result(n, i), node_result(own, i));
	for (int i = 0; i < rows; i++)
		value_replace_uses(node_result(n, carried + i),
		                   node_result(own, carried + counted + i));
	Value *trip = node_result(n, n->n_results - 1);
	b.before = own->next;
	if (value_used(trip))
		value_replace_uses(trip,
		                   trips(&b, &a, a.always ? NULL : node_result(own, carried)));
	node_erase(n);
	return own;
}

/* ---- branches */
static Function *
branch_body(Bodies *o, const Node *n, Function *from)
{
	Function *f = function_for(o, from, n);
	Value **map = NEW_ARRAY(o->arena, Value *, from->next_value_id);
	Node *old = function_return(from);
	Value **out = NEW_ARRAY(o->arena, Value *, old->n_operands);
	Builder b = {.m = o->m, .f = f, .loc = n->loc};

	for (int i = 0; i < from->params.n; i++)
		map[from->params.at[i]->id] = param_like(f, from->params.at[i]);
	function_clone_body(from, f, NULL, map);
	for (int i = 0; i < old->n_operands; i++)
		out[i] = map[node_operand(old, i)->id];
	b_return(&b, old->n_operands, out);
	Node *ret = function_return(f);
	for (int i = 0; i < old->n_operands; i++)
		node_set_operand(ret, i, settled(f, ret, out[i]));
	give_phase(f, n);
	return f;
}

static Node *
own_branches(Bodies *o, Node *n, const Node *around)
{
	CondAttr *a = n->attr;

	for (int i = 0; i < n->n_operands; i++)
		node_set_operand(n, i, readable(n, node_operand(n, i), true, around));
	a->then_branch = branch_body(o, n, a->then_branch);
	a->else_branch = branch_body(o, n, a->else_branch);
	return n;
}

/* ---- all functions of the module */
/* Does each row of each stack begin at a whole byte? Reports a stack whose rows do not. */
static bool
has_whole_rows(Bodies *o, const Node *n)
{
	for (int i = 0; loop_of(n) && i + 1 < n->n_operands + n->n_results; i++) {
		bool operand = i < n->n_operands;
		int k = operand ? i : i - n->n_operands;
		Type t = operand ? node_operand(n, k)->type : node_result(n, k)->type;
		bool stack = operand ? loop_part(n, k) == LOOP_SLICED : k >= loop_of(n)->carried;
		if (!stack || t->rank == 0 || t->dims[0] == 0 ||
		    t->n / t->dims[0] * dtype_info[t->dtype].bits % 8 == 0)
			continue;
		diag_error(
			o->diag, EXIT_UNSUPPORTED,
			"%s: node \"%s\" (%s): a row of %lld numbers of %s does not fill whole bytes",
			o->m->name, loc_origin(n->loc), op_row(n)->name,
			(long long)(t->n / t->dims[0]), dtype_info[t->dtype].name);
		diag_hint(o->diag, "use a Cast before the loop and another one after it");
		o->ok = false;
		return false;
	}
	return true;
}

static bool
fits(Bodies *o, const Node *n, int depth, int64_t *times)
{
	const LoopAttr *a = loop_of(n);

	if (depth <= MAX_LOOPS &&
	    (!a || (size_mul(*times, a->bound, times) && *times <= MAX_ITERATIONS)))
		return true;
	diag_error(
		o->diag, EXIT_UNSUPPORTED,
		"%s: node \"%s\" (%s): %d nested loops and branches of %lld iterations; at most %d of %d iterations",
		o->m->name, loc_origin(n->loc), op_row(n)->name, depth, (long long)*times,
		MAX_LOOPS, MAX_ITERATIONS);
	o->ok = false;
	return false;
}

static void
own_function(Bodies *o, Function *f, const Node *around, int depth, int64_t times)
{
	for_each_node(f, n) {
		int64_t inside = times;
		if (op_row(n)->fuse != FUSE_CONTROL || !has_whole_rows(o, n) ||
		    !fits(o, n, depth, &inside))
			continue;
		bool loop = loop_of(n) != NULL;
		Function *bodies[2];
		Node *own = loop ? own_loop(o, n, around) : own_branches(o, n, around);
		node_bodies(own, bodies);
		for (int i = 0; i < 2 && bodies[i]; i++)
			own_function(o, bodies[i], loop ? own : NULL, depth + 1, inside);
	}
}

/* ---- bodies that no node runs any more */
static void mark_run(const Function *f, IntMap *run);

static void
mark_run_by(const Function *f, IntMap *run)
{
	for_each_node(f, n)
		for (const Field *k = op_row(n)->fields; k && k->name; k++) {
			const Function *g = NULL;
			if (k->kind == FIELD_FUNC)
				memcpy(&g, (const char *)n->attr + k->offset, sizeof(Function *));
			if (g)
				mark_run(g, run);
		}
}

static void
mark_run(const Function *f, IntMap *run)
{
	uint64_t seen;

	if (intmap_get(run, (uint64_t)(uintptr_t)f, &seen))
		return;
	intmap_put(run, (uint64_t)(uintptr_t)f, 1);
	mark_run_by(f, run);
}

IntMap *
functions_run_by_others(const Module *m, Arena *arena)
{
	IntMap *run = intmap_new(arena);

	for_each_function(m, f)
		mark_run_by(f, run);
	return run;
}

const LoopAttr *
loop_of(const Node *n)
{
	return n->op == OP_loop ? n->attr : NULL;
}

void
node_bodies(const Node *n, Function *bodies[2])
{
	const CondAttr *c = n->attr;

	bodies[0] = loop_of(n) ? loop_of(n)->body : c->then_branch;
	bodies[1] = loop_of(n) ? NULL : c->else_branch;
}

static void
drop_replaced(Bodies *o, int n, Function *const *outer)
{
	IntMap *run = intmap_new(o->arena);
	uint64_t seen;

	for (int i = 0; i < n; i++)
		mark_run(outer[i], run);
	for (int i = 0; i < o->replaced.n; i++) {
		Function *f = o->replaced.at[i];
		if (!intmap_get(run, (uint64_t)(uintptr_t)f, &seen)) {
			intmap_put(run, (uint64_t)(uintptr_t)f, 1); /* once */
			function_remove(f);
		}
	}
}

bool
bodies_own(Module *m, Arena *scratch, Diag *diag)
{
	Bodies o = {.m = m, .arena = scratch, .diag = diag, .ok = true};
	IntMap *inner = functions_run_by_others(m, scratch);
	VEC(Function *) outer = {0};
	uint64_t seen;

	for_each_function(m, f)
		if (!intmap_get(inner, (uint64_t)(uintptr_t)f, &seen))
			vec_push(scratch, &outer, f);
	for (int i = 0; i < outer.n; i++)
		own_function(&o, outer.at[i], NULL, 1, 1);
	if (o.replaced.n)
		drop_replaced(&o, outer.n, outer.at);
	return o.ok;
}

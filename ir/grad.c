/* Reverse-mode automatic differentiation over one flat function. First marks the values that
 * depend on a value whose gradient is wanted. Then visits the nodes backwards: the function
 * `grad` of each node's op adds to the gradients of the node's operands. Griewank and Walther,
 * "Evaluating Derivatives", 2008, chapter 3. */
#include "ir/ir.h"

typedef struct {
	Builder *b;
	Arena *arena;
	bool *active;      /* by value id: a float that depends on a wanted value */
	Value **cotangent; /* by value id */
	Diag *diag;
	const char *fault;
} Reverse;

static void
mark_active(Reverse *r, const Function *f, const Node *last, int n_wanted, Value *const *wanted)
{
	for (int i = 0; i < n_wanted; i++)
		r->active[wanted[i]->id] = true;
	for (const Node *n = f->first; n; n = n->next) {
		bool any = false;
		for (int i = 0; i < n->n_operands; i++)
			any |= node_operand(n, i) && r->active[node_operand(n, i)->id];
		for (int i = 0; i < n->n_results; i++)
			r->active[node_result(n, i)->id] |=
				any && dtype_is_float(node_result(n, i)->type->dtype);
		if (n == last)
			break;
	}
}

static void
add_cotangent(Reverse *r, Value *v, Value *d)
{
	Value **c = &r->cotangent[v->id];

	*c = *c ? b_binary(r->b, OP_add, *c, d) : d;
}

static void
report_no_gradient(Reverse *r, const Node *n, const char *fault)
{
	r->fault = arena_printf(r->b->m->arena, "node \"%s\" (%s) %s", loc_origin(n->loc),
	                        op_row(n)->name, fault);
	if (!r->diag)
		return;
	diag_error(r->diag, EXIT_UNSUPPORTED, "%s: %s", r->b->m->name, r->fault);
	diag_hint(r->diag,
	          "freeze the parameters before it (--freeze=GLOB), or export the model with "
	          "another operator in its place");
}

static void
reverse_node(Reverse *r, Node *n)
{
	Value **d_result = NEW_ARRAY(r->arena, Value *, n->n_results);
	Value **d_operand = NEW_ARRAY(r->arena, Value *, n->n_operands);
	bool *needs = NEW_ARRAY(r->arena, bool, n->n_operands);
	bool any_d = false, any_need = false;
	Grad g = {.b = r->b, .node = n, .dresult = d_result, .needs = needs, .doperand = d_operand};

	for (int i = 0; i < n->n_results; i++) {
		d_result[i] = r->cotangent[node_result(n, i)->id];
		any_d |= d_result[i] != NULL;
	}
	for (int i = 0; i < n->n_operands; i++) {
		needs[i] = node_operand(n, i) && r->active[node_operand(n, i)->id];
		any_need |= needs[i];
	}
	if (!any_d || !any_need)
		return;
	r->b->loc = loc_gradient(r->b->m, n->loc);
	op_row(n)->grad(&g);
	if (g.fault) {
		report_no_gradient(r, n, g.fault);
		return;
	}
	for (int i = 0; i < n->n_operands; i++)
		if (needs[i] && d_operand[i])
			add_cotangent(r, node_operand(n, i), d_operand[i]);
}

bool
gradient_build(Builder *b, int n_seeds, const GradSeed *seeds, int n_wanted, Value *const *wanted,
               Value **out, Diag *diag)
{
	Function *f = b->f;
	Node *last = b->before ? b->before->prev : f->last;
	Reverse r = {.b = b, .arena = arena_new(), .diag = diag};
	Loc loc = b->loc;
	uint32_t n_values = f->next_value_id;

	r.active = NEW_ARRAY(r.arena, bool, n_values);
	r.cotangent = NEW_ARRAY(r.arena, Value *, n_values);
	mark_active(&r, f, last, n_wanted, wanted);
	for (int i = 0; i < n_seeds; i++)
		add_cotangent(&r, seeds[i].value, seeds[i].cotangent);
	for (Node *n = last; n; n = n->prev)
		reverse_node(&r, n);
	b->loc = loc;
	for (int i = 0; i < n_wanted; i++)
		out[i] = r.cotangent[wanted[i]->id];
	arena_free(r.arena);
	return r.fault == NULL;
}

static void
mark_operands(Function *d)
{
	for (int i = 0; i < d->params.n; i++) {
		d->params.at[i]->param = PARAM_OPERAND;
		d->params.at[i]->number = i;
	}
}

/* The derivative is a clone of f. Gradients of the float results become further parameters. */
Function *
function_gradient(Function *f, const char **fault)
{
	Module *m = f->module;
	const char *name = module_fresh_name(m, arena_printf(m->arena, "%s.grad", f->name));

	if (f->derivative)
		return f->derivative;
	Function *d = function_clone(f->surrogate ? f->surrogate : f, name);
	d->kind = FUNCTION_PLAIN; /* the derivative of a group is no such group */
	d->group = NULL;
	d->role = ROLE_HELPER;
	d->surrogate = NULL;
	mark_operands(d);
	Node *ret = function_return(d);
	Builder b = {.m = m, .f = d, .before = ret, .loc = f->loc};
	GradSeed *seeds = NEW_ARRAY(m->arena, GradSeed, ret->n_operands);
	Value **wanted = NEW_ARRAY(m->arena, Value *, d->params.n);
	Value **out = NEW_ARRAY(m->arena, Value *, d->params.n);
	int n_seeds = 0, n_wanted = 0;

	for (int i = 0; i < d->params.n; i++)
		if (dtype_is_float(d->params.at[i]->type->dtype))
			wanted[n_wanted++] = d->params.at[i];
	for (int i = 0; i < ret->n_operands; i++) {
		Value *v = node_operand(ret, i);
		if (!dtype_is_float(v->type->dtype))
			continue;
		Value *seed = function_param_as(d, v->type, arena_printf(m->arena, "d.%d", i),
		                                PARAM_COTANGENT, i);
		seeds[n_seeds++] = (GradSeed){v, seed};
	}
	if (!gradient_build(&b, n_seeds, seeds, n_wanted, wanted, out, NULL)) {
		*fault = "calls a function with a node that has no gradient";
		function_remove(d);
		return NULL;
	}
	for (int i = 0; i < n_wanted; i++)
		out[i] = out[i] ? out[i] : b_splat(&b, wanted[i]->type, 0);
	node_erase(ret);
	b.before = NULL;
	b_return(&b, n_wanted, out);
	return f->derivative = d;
}

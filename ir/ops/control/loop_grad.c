/* The gradient of a loop: a loop over the same iterations from the last to the first.
 *
 *	forward    c[i + 1], row[i]             = f(i, c[i], slice[i], v)
 *	backward   dc[i], dslice[i], dv[i]      = f'(i, c[i], slice[i], v, dc[i + 1], drow[i]),     dv = sum of dv[i]
 *
 * c: carried values, v: invariants, f': the gradient of the body f. f' needs values that f
 * computes. The forward loop keeps (stacks) the carried values and the results of opaque nodes:
 * products, convolutions, sorts. f' computes all other values again from these, including inner
 * loops.
 *
 * If dv[i] is a matrix product whose operands are not larger than its result, the product is not
 * computed in the loop: the backward loop stacks the operands, and after the loop a single product
 * also sums over the iterations. If the forward loop ended early, the backward loop still has all
 * iterations; those that did not run in the forward loop pass dc on unchanged. */
#include "ir/ops/control/control.h"

#include <string.h>

/* A gradient dv = sum over iterations of x[i] y[i], computed after the backward loop from stacks
 * of x and y. */
typedef struct {
	int operand; /* number of operand v */
	const Node *dot;
	Value *x[2]; /* operands of the dot, values of f': rows that the backward loop stacks or reads */
} Product;

typedef struct {
	Grad *g;
	Builder *b;
	Module *m;
	Arena *arena;
	Node *node; /* the forward loop */
	const LoopAttr *a;
	const Function *f;
	Function *back; /* f': parameters of f, gradients of f's results, kept values */
	Value **d; /* by result of f: parameter of f' for its gradient; NULL: the gradient is zero */
	Value **out;          /* by operand: its gradient, a value of f'; NULL: not wanted */
	VEC(Value *) kept;    /* values of f that the forward loop stacks for f' */
	VEC(Value *) kept_as; /* parameters of f' for the kept values */
	VEC(int) sums;        /* operands whose gradients the backward loop sums */
	VEC(Value *) rows;    /* values of f' that the backward loop stacks */
	/* row_of[k]: number of the operand whose gradient is rows[k]; further rows are operands
	 * of products */
	VEC(int) row_of;
	VEC(Product) products;
	Value **step;  /* by value id of f': the value in the body of the backward loop */
	Value **whole; /* by value id of f': the stack that the value is a slice of */
} LoopGrad;

static bool
is_float(const Value *v)
{
	return dtype_is_float(v->type->dtype);
}

static Value *
result_of(const Function *f, int i)
{
	return node_operand(function_return(f), i);
}

static int
n_carried(const LoopGrad *lg)
{
	return (int)lg->a->carried;
}

/* ---- f' */
static void
erase_unread(Function *f)
{
	for_each_node_reverse(f, n) {
		bool used = op_row(n)->effect;
		for (int i = 0; i < n->n_results; i++)
			used |= value_used(node_result(n, i));
		if (!used)
			node_erase(n);
	}
}

/* Adds parameters for the gradients of f's carried results, and of rows that have a gradient. */
static int
add_cotangents(LoopGrad *lg, Value *const *map, GradSeed *seeds)
{
	int n = 0;

	for (int i = 1; i < control_results(lg->f); i++) {
		Value *y = result_of(lg->f, i);
		bool carried = i <= n_carried(lg);
		if (!is_float(y) || (!carried && !lg->g->dresult[i - 1]))
			continue;
		lg->d[i] = function_param(lg->back, y->type, arena_printf(lg->arena, "d.%d", i));
		seeds[n++] = (GradSeed){map[y->id], lg->d[i]};
	}
	return n;
}

/* The operands whose gradients are wanted. Gradients of carried values are always wanted, since they flow through all
 * iterations. */
static int
wanted_operands(const LoopGrad *lg, int *operands)
{
	int n = 0;

	for (int i = 0; i < lg->node->n_operands; i++)
		if (is_float(node_operand(lg->node, i)) &&
		    (loop_part(lg->node, i) == LOOP_CARRIED || lg->g->needs[i]))
			operands[n++] = i;
	return n;
}

static void
return_cotangents(LoopGrad *lg)
{
	VEC(Value *) results = {0};

	for (int i = 0; i < lg->node->n_operands; i++)
		if (lg->out[i])
			vec_push(lg->arena, &results, lg->out[i]);
	b_return(&(Builder){.m = lg->m, .f = lg->back, .loc = lg->node->loc}, results.n,
	         results.at);
	erase_unread(lg->back);
}

/* Finds the opaque nodes of f whose results f' reads. The forward loop keeps these results, so f' does not compute
 * them again. Carried values that f' reads are kept, too. */
static void
keep_products(LoopGrad *lg, Value *const *map)
{
	for (Node *n = lg->f->last; n; n = n->prev)
		for (int i = 0; i < n->n_results && op_row(n)->fuse == FUSE_OPAQUE; i++) {
			Value *again = map[node_result(n, i)->id];
			if (!value_used(again))
				continue;
			Value *p = function_param(lg->back, again->type, "kept");
			value_replace_uses(again, p);
			vec_push(lg->arena, &lg->kept, node_result(n, i));
			vec_push(lg->arena, &lg->kept_as, p);
			erase_unread(lg->back);
		}
	for (int i = 0; i < n_carried(lg); i++)
		if (value_used(lg->back->params.at[1 + i])) {
			vec_push(lg->arena, &lg->kept, lg->f->params.at[1 + i]);
			vec_push(lg->arena, &lg->kept_as, lg->back->params.at[1 + i]);
		}
}

static bool
differentiate_body(LoopGrad *lg)
{
	Value **map = NEW_ARRAY(lg->arena, Value *, lg->f->next_value_id);
	GradSeed *seeds = NEW_ARRAY(lg->arena, GradSeed, control_results(lg->f));
	int *operands = NEW_ARRAY(lg->arena, int, lg->node->n_operands);
	Value **wanted = NEW_ARRAY(lg->arena, Value *, lg->node->n_operands);
	Value **found = NEW_ARRAY(lg->arena, Value *, lg->node->n_operands);
	Builder b = {.m = lg->m, .f = lg->back, .loc = lg->node->loc};

	for (int i = 0; i < lg->f->params.n; i++)
		map[lg->f->params.at[i]->id] = function_param(lg->back, lg->f->params.at[i]->type,
		                                              "x");
	function_clone_body(lg->f, lg->back, NULL, map);
	int n_seeds = add_cotangents(lg, map, seeds), n_wanted = wanted_operands(lg, operands);
	for (int k = 0; k < n_wanted; k++)
		wanted[k] = lg->back->params.at[1 + operands[k]];
	if (!gradient_build(&b, n_seeds, seeds, n_wanted, wanted, found, NULL)) {
		lg->g->fault = "runs a function with a node that has no gradient";
		return false;
	}
	for (int k = 0; k < n_wanted; k++) {
		bool carried = loop_part(lg->node, operands[k]) == LOOP_CARRIED;
		lg->out[operands[k]] = found[k] || !carried ? found[k]
		                                            : b_splat(&b, wanted[k]->type, 0);
	}
	return_cotangents(lg);
	keep_products(lg, map);
	return true;
}

/* ---- the forward loop, with stacks of kept values */
static Function *
keeping_body(const LoopGrad *lg)
{
	const char *name = arena_printf(lg->m->arena, "%s.keeping", lg->f->name);
	Function *f = function_new(lg->m, module_fresh_name(lg->m, name));
	Value **map = NEW_ARRAY(lg->arena, Value *, lg->f->next_value_id);
	int n = control_results(lg->f);
	Value **results = NEW_ARRAY(lg->arena, Value *, n + lg->kept.n);

	for (int i = 0; i < lg->f->params.n; i++)
		map[lg->f->params.at[i]->id] = function_param(f, lg->f->params.at[i]->type,
		                                              lg->f->params.at[i]->name);
	function_clone_body(lg->f, f, NULL, map);
	for (int i = 0; i < n; i++)
		results[i] = map[result_of(lg->f, i)->id];
	for (int i = 0; i < lg->kept.n; i++)
		results[n + i] = map[lg->kept.at[i]->id];
	b_return(&(Builder){.m = lg->m, .f = f, .loc = lg->node->loc}, n + lg->kept.n, results);
	return f;
}

/* Replaces the forward loop by a new loop with these stacks; the results of the old loop are no
 * longer read. */
static Node *
build_forward(const LoopGrad *lg)
{
	Node *n = lg->node;
	Value **operands = NEW_ARRAY(lg->arena, Value *, n->n_operands);
	Builder b = {
		.m = lg->m, .f = n->function, .before = n->next, .loc = n->loc, .phase = n->phase};
	LoopAttr a = *lg->a;

	if (lg->kept.n == 0)
		return n;
	for (int i = 0; i < n->n_operands; i++)
		operands[i] = node_operand(n, i);
	a.body = keeping_body(lg);
	Node *forward = build_node(&b, OP_loop, n->n_operands, operands, &a);
	for (int i = 0; i + 1 < n->n_results; i++)
		value_replace_uses(node_result(n, i), node_result(forward, i));
	value_replace_uses(node_result(n, n->n_results - 1),
	                   node_result(forward, forward->n_results - 1));
	return forward;
}

/* ---- sums over iterations */
/* Is v a slice of a stack in f'? */
static bool
is_slice(const LoopGrad *lg, const Value *v)
{
	for (int i = 0; i < lg->kept_as.n; i++)
		if (lg->kept_as.at[i] == v)
			return true;
	for (int i = 1 + n_carried(lg); i < control_results(lg->f); i++)
		if (lg->d[i] == v)
			return true;
	return v->kind == VALUE_PARAM && v->index >= 1 && v->index <= lg->node->n_operands &&
	       loop_part(lg->node, v->index - 1) == LOOP_SLICED;
}

static bool
may_be_stacked(const LoopGrad *lg, const Value *v)
{
	return (v->node || is_slice(lg, v)) && v->type->rank < MAX_RANK;
}

/* Returns the dot if v is a dot, perhaps seen through views, whose operands together are not larger
 * than v. Otherwise returns NULL. */
static const Node *
product_behind(const LoopGrad *lg, Value *v)
{
	const Node *n = behind_views(v)->node;

	if (!n || n->op != OP_dot || !may_be_stacked(lg, node_operand(n, 0)) ||
	    !may_be_stacked(lg, node_operand(n, 1)))
		return NULL;
	int64_t bytes = type_bytes(node_operand(n, 0)->type) + type_bytes(node_operand(n, 1)->type);
	return bytes <= type_bytes(v->type) ? n : NULL;
}

/* Makes v a row of the backward loop, unless it is in a stack already. */
static void
stack(LoopGrad *lg, Value *v)
{
	for (int i = 0; i < lg->rows.n; i++)
		if (lg->rows.at[i] == v)
			return;
	/* if the loop may end early, rows of iterations that did not run must become zero */
	if (!is_slice(lg, v) || !lg->a->always)
		vec_push(lg->arena, &lg->rows, v);
}

/* Decides which gradients are rows, which are summed, and which are products of rows. */
static void
sort_cotangents(LoopGrad *lg)
{
	for (int i = n_carried(lg); i < lg->node->n_operands; i++)
		if (lg->out[i] && loop_part(lg->node, i) == LOOP_SLICED) {
			vec_push(lg->arena, &lg->rows, lg->out[i]);
			vec_push(lg->arena, &lg->row_of, i);
		}
	for (int i = n_carried(lg); i < lg->node->n_operands; i++) {
		if (!lg->out[i] || loop_part(lg->node, i) != LOOP_INVARIANT)
			continue;
		const Node *n = product_behind(lg, lg->out[i]);
		if (!n) {
			vec_push(lg->arena, &lg->sums, i);
			continue;
		}
		Product p = {.operand = i, .dot = n, .x = {node_operand(n, 0), node_operand(n, 1)}};
		stack(lg, p.x[0]);
		stack(lg, p.x[1]);
		vec_push(lg->arena, &lg->products, p);
	}
}

/* ---- the backward loop */
typedef VEC(Value *) Values;

/* Adds `operand` to the operands of the backward loop, and a parameter for it to `step`, the body
 * of the backward loop. param: the parameter of f' that the new parameter stands for; NULL: no such
 * parameter. */
static void
feed(LoopGrad *lg, Function *step, Values *operands, Value *param, Value *operand, bool sliced)
{
	Type t = sliced ? type_drop_axis(lg->m, operand->type, 0) : operand->type;
	Value *p = function_param(step, t, param ? param->name : "sum");

	vec_push(lg->arena, operands, operand);
	if (param)
		lg->step[param->id] = p;
	if (param && sliced)
		lg->whole[param->id] = operand;
}

static void
feed_carried(LoopGrad *lg, Function *step, Values *operands)
{
	for (int i = 0; i < n_carried(lg); i++)
		if (lg->d[1 + i]) {
			Value *d = lg->g->dresult[i];
			feed(lg, step, operands, lg->d[1 + i],
			     d ? d : zeros_like(lg->b, node_result(lg->node, i)), false);
		}
	for (int i = 0; i < lg->sums.n; i++)
		feed(lg, step, operands, NULL,
		     zeros_like(lg->b, node_operand(lg->node, lg->sums.at[i])), false);
}

static void
feed_sliced(LoopGrad *lg, Function *step, Values *operands, const Node *forward)
{
	int first = lg->node->n_results - 1; /* first result that is a stack of kept values */

	for (int i = 0; i < lg->kept.n; i++)
		feed(lg, step, operands, lg->kept_as.at[i], node_result(forward, first + i), true);
	for (int i = 0; i < lg->node->n_operands; i++)
		if (loop_part(lg->node, i) == LOOP_SLICED && value_used(lg->back->params.at[1 + i]))
			feed(lg, step, operands, lg->back->params.at[1 + i],
			     node_operand(lg->node, i), true);
	for (int i = 1 + n_carried(lg); i < control_results(lg->f); i++)
		if (lg->d[i])
			feed(lg, step, operands, lg->d[i], lg->g->dresult[i - 1], true);
}

static void
feed_invariant(LoopGrad *lg, Function *step, Values *operands)
{
	for (int i = 0; i < lg->node->n_operands; i++)
		if (loop_part(lg->node, i) == LOOP_INVARIANT &&
		    value_used(lg->back->params.at[1 + i]))
			feed(lg, step, operands, lg->back->params.at[1 + i],
			     node_operand(lg->node, i), false);
}

/* x if the iteration ran, otherwise y. live NULL: every iteration runs, so the result is x. */
static Value *
where_live(Builder *b, Value *live, Value *x, Value *y)
{
	return live ? b_select(b, b_broadcast(b, live, ints_of_type(x->type), (Ints){0}), x, y) : x;
}

/* The results of an iteration: gradients of the carried values, sums so far, rows. */
static void
return_step(LoopGrad *lg, Function *step, Value *trip)
{
	Builder b = {.m = lg->m, .f = step, .loc = lg->b->loc, .phase = lg->b->phase};
	Value *live = trip ? b_binary(&b, OP_lt, step->params.at[0], trip) : NULL;
	Values results = {0};
	int at = 1; /* number of the next carried parameter */

	vec_push(lg->arena, &results, b_splat(&b, type_scalar(lg->m, BOOL), 1));
	for (int i = 0; i < n_carried(lg); i++)
		if (lg->out[i]) {
			Value *d = lg->step[lg->out[i]->id];
			vec_push(lg->arena, &results, where_live(&b, live, d, step->params.at[at]));
			at++;
		}
	for (int i = 0; i < lg->sums.n; i++, at++) {
		Value *so_far = step->params.at[at], *d = lg->step[lg->out[lg->sums.at[i]]->id];
		vec_push(lg->arena, &results,
		         where_live(&b, live, b_binary(&b, OP_add, so_far, d), so_far));
	}
	for (int i = 0; i < lg->rows.n; i++) {
		Value *row = lg->step[lg->rows.at[i]->id];
		vec_push(lg->arena, &results, where_live(&b, live, row, zeros_like(&b, row)));
	}
	b_return(&b, results.n, results.at);
	erase_unread(step);
}

static Node *
build_backward(LoopGrad *lg, const Node *forward)
{
	const char *name = arena_printf(lg->m->arena, "%s.backward", lg->f->name);
	Function *step = function_new(lg->m, module_fresh_name(lg->m, name));
	LoopAttr a = {
		.body = step, .bound = lg->a->bound, .always = true, .reverse = !lg->a->reverse};
	Values operands = {0};
	Value *trip = NULL;

	lg->step = NEW_ARRAY(lg->arena, Value *, lg->back->next_value_id);
	lg->whole = NEW_ARRAY(lg->arena, Value *, lg->back->next_value_id);
	lg->step[lg->back->params.at[0]->id] = function_param(step, type_scalar(lg->m, S64), "i");
	feed_carried(lg, step, &operands);
	a.carried = operands.n;
	feed_sliced(lg, step, &operands, forward);
	a.sliced = operands.n - a.carried;
	feed_invariant(lg, step, &operands);
	if (!lg->a->always) {
		vec_push(lg->arena, &operands, node_result(forward, forward->n_results - 1));
		trip = function_param(step, type_scalar(lg->m, S64), "trip");
	}
	function_clone_body(lg->back, step, NULL, lg->step);
	return_step(lg, step, trip);
	return build_node(lg->b, OP_loop, operands.n, operands.at, &a);
}

/* ---- after the backward loop */
static Ints
one_further(Ints axes)
{
	for (int i = 0; i < axes.n; i++)
		axes.at[i]++;
	return axes;
}

static Ints
with_first(Ints axes)
{
	Ints all = {.n = 1};

	for (int i = 0; i < axes.n; i++)
		all.at[all.n++] = axes.at[i] + 1;
	return all;
}

/* [iterations, n, ...] -> [iterations * n, ...] */
static Value *
merged(Builder *b, Value *stack)
{
	Ints shape = ints_of_type(stack->type);

	shape.at[1] *= shape.at[0];
	for (int i = 0; i + 1 < shape.n; i++)
		shape.at[i] = shape.at[i + 1];
	shape.n--;
	return b_reshape(b, stack, shape);
}

/* x[i, ...] y[i, ...], summed over the iterations, too. */
static Value *
product_of_stacks(Builder *b, Value *x, Value *y, DotAttr a)
{
	bool rows = a.x_batch.n == 0 && a.x_contract.n == 1 && a.x_contract.at[0] == 0 &&
	            a.y_contract.at[0] == 0;
	Value *operands[] = {rows ? merged(b, x) : x, rows ? merged(b, y) : y};

	if (!rows) {
		a.x_batch = one_further(a.x_batch);
		a.y_batch = one_further(a.y_batch);
		a.x_contract = with_first(a.x_contract);
		a.y_contract = with_first(a.y_contract);
	}
	return build(b, OP_dot, 2, operands, &a);
}

/* In f', v is `dot` seen through views. Builds the same views of `product`. */
static Value *
through_views(Builder *b, const Value *v, const Node *dot, Value *product)
{
	if (v->node == dot)
		return product;
	Value *x = through_views(b, node_operand(v->node, 0), dot, product);
	return build(b, v->node->op, 1, &x, v->node->attr);
}

static void
add_results(LoopGrad *lg, const Node *backward)
{
	Grad *g = lg->g;
	int at = 0;

	for (int i = 0; i < n_carried(lg); i++)
		if (lg->out[i])
			grad_add(g, i, node_result(backward, at++));
	for (int i = 0; i < lg->sums.n; i++)
		grad_add(g, lg->sums.at[i], node_result(backward, at++));
	for (int i = 0; i < lg->row_of.n; i++)
		grad_add(g, lg->row_of.at[i], node_result(backward, at + i));
	for (int i = 0; i < lg->rows.n; i++)
		lg->whole[lg->rows.at[i]->id] = node_result(backward, at + i);
	for (int i = 0; i < lg->products.n; i++) {
		const Product *p = &lg->products.at[i];
		Value *sum = product_of_stacks(lg->b, lg->whole[p->x[0]->id],
		                               lg->whole[p->x[1]->id],
		                               *(const DotAttr *)p->dot->attr);
		grad_add(g, p->operand, through_views(lg->b, lg->out[p->operand], p->dot, sum));
	}
}

void
loop_grad(Grad *g)
{
	const LoopAttr *a = g->node->attr;
	Module *m = g->b->m;
	LoopGrad lg = {.g = g,
	               .b = g->b,
	               .m = m,
	               .arena = arena_new(),
	               .node = g->node,
	               .a = a,
	               .f = a->body,
	               .back = function_new(m, module_fresh_name(m, "back"))};

	lg.d = NEW_ARRAY(lg.arena, Value *, control_results(a->body));
	lg.out = NEW_ARRAY(lg.arena, Value *, g->node->n_operands);
	if (differentiate_body(&lg)) {
		const Node *forward = build_forward(&lg);
		sort_cotangents(&lg);
		add_results(&lg, build_backward(&lg, forward));
	}
	function_remove(lg.back);
	arena_free(lg.arena);
}

/* The gradient of attention. Nothing of the size of the scores is kept: the gradient computes the
 * scores again, and the softmax from the largest logit and the sum of each row (Dao et al. 2022,
 * arXiv:2205.14135). For one query with the weights' gradient dw, the logits' gradient is
 *
 *	dp = g'(dw)    dlogits = p * (dp - sum(p * dp))    where sum(p * dp) = sum(do * o)
 *
 * because g is linear. The pair function computes sum(do * o) of each row, and the group
 * attention_grad all that has the scores' shape. */
#include "ir/groups/attention.h"

const GroupRow group_attention_grad = {
	.name = "attention_grad",
	.doc = "gradients of q, k and v of an attention, from the softmax's rows and the gradient of o",
	.drop_hints = attention_drop_range};

/* The rows' axes: those of the scores without keys. */
static Labels
rows_of(const Attention *a)
{
	return labels_range(0, a->n - 1);
}

/* The scores' value in the body: the result of its first product. */
static Value *
scores_of(const Attention *a)
{
	for_each_node(a->body, n)
		if (n->op == OP_dot)
			return node_result(n, 0);
	return NULL;
}

/* The second product of the body. */
static Node *
product_of(const Attention *a)
{
	for_each_node_reverse(a->body, n)
		if (n->op == OP_dot)
			return n;
	return NULL;
}

/* What the gradient is computed from. */
typedef struct {
	Value *const *operands; /* of the attention */
	Value *most, *inverse,
		*delta; /* of each row: largest logit, one over the sum, sum(do * o) */
	Value *d_o;
} Given;

/* Copies what the body computes before and after the softmax into b->f. The softmax itself comes
 * from its rows. map: by value id of the body. */
static void
copy_elementwise(Builder *b, const Attention *a, const Given *g, Value **map)
{
	Arena *scratch = arena_new();
	Ints keys = {.n = 1, .at = {a->n - 1}};
	const Node *end = product_of(a);
	bool softmax = false;

	for (int i = 0; i < a->body->params.n; i++)
		map[a->body->params.at[i]->id] = g->operands[i];
	for (const Node *n = a->body->first; n != end; n = n->next) {
		softmax |= node_result(n, 0) == a->most;
		if (node_result(n, 0) == a->p) {
			Value *logits = map[a->logits->id];
			Value *most = b_broadcast_back(b, g->most, logits->type, keys);
			Value *e = b_unary(b, OP_exp, b_binary(b, OP_sub, logits, most));
			Value *inverse = b_broadcast_back(b, g->inverse, logits->type, keys);
			/* the gradient of the logits is known; that of p ends here */
			map[a->p->id] = b_unary(b, OP_stop_gradient,
			                        b_binary(b, OP_mul, e, inverse));
			softmax = false;
			continue;
		}
		if (softmax)
			continue;
		Value **operands = NEW_ARRAY(scratch, Value *, n->n_operands + 1);
		for (int i = 0; i < n->n_operands; i++)
			operands[i] = node_operand(n, i) ? map[node_operand(n, i)->id] : NULL;
		map[node_result(n, 0)->id] = build(b, n->op, n->n_operands, operands, n->attr);
	}
	arena_free(scratch);
}

/* The gradients of the wanted values, given those of other values. */
static void
derivatives(Builder *b, int n_seeds, const GradSeed *seeds, int n, Value *const *wanted,
            Value **out)
{
	gradient_build(b, n_seeds, seeds, n, wanted, out, NULL);
	for (int i = 0; i < n; i++)
		out[i] = out[i] ? out[i] : b_splat(b, wanted[i]->type, 0);
}

static Value *
derivative(Builder *b, Value *of, Value *gradient, Value *wanted)
{
	Value *d;

	if (of == wanted)
		return gradient;
	derivatives(b, 1, &(GradSeed){of, gradient}, 1, &wanted, &d);
	return d;
}

/* The gradient of an operand behind views, turned back to the operand's own shape. */
static Value *
undo_views(Builder *b, Value *d, const Peeled *from)
{
	for (int i = 0; i < from->n; i++) {
		const Node *n = from->views[i];
		if (n->op == OP_transpose) {
			const Ints *order = &((const TransposeAttr *)n->attr)->order;
			Ints back = {.n = order->n};
			for (int k = 0; k < order->n; k++)
				back.at[order->at[k]] = k;
			d = b_transpose(b, d, back);
		} else {
			d = b_reshape(b, d, ints_of_type(node_operand(n, 0)->type));
		}
	}
	return d;
}

/* v before a cast from `type`, which may stand before reshapes and transposes. A kernel keeps sums
 * in memory between blocks, so these need the type in which it computes. */
static Value *
before_cast_from(Builder *b, Value *v, DType type)
{
	const Node *n = v->node;

	if (value_cast_of(v) && value_cast_of(v)->type->dtype == type)
		return value_cast_of(v);
	if (v->type->dtype == type || !is_move(n))
		return v;
	Value *x = before_cast_from(b, node_operand(n, 0), type);
	return x == node_operand(n, 0) ? v : build(b, n->op, 1, &x, n->attr);
}

/* The gradients of the logits and of the weights. Fills in map, by value id of the body, and *d_o, with
 * an axis for each label. */
typedef struct {
	GradSeed of[2];
} Seeds;
static Seeds
known_gradients(Builder *b, const Attention *a, const Given *g, Value **map, Value **d_o)
{
	Labels all = labels_range(0, a->n);
	Ints keys = {.n = 1, .at = {a->n - 1}};

	copy_elementwise(b, a, g, map);
	Value *v = map[node_operand(product_of(a), 1)->id];
	Value *weights = map[a->weights->id], *p = map[a->p->id];
	*d_o = b_reshape(b, g->d_o, attention_shape(a, &a->o));
	Value *dw = labels_dot(b, (Labeled){*d_o, &a->o}, (Labeled){v, &a->v}, &all,
	                       weights->type->dtype, a->allow_tf32);
	Value *dp = derivative(b, weights, dw, p);
	Value *delta = b_broadcast_back(b, g->delta, p->type, keys);
	Value *dl = b_binary(b, OP_mul, p, b_binary(b, OP_sub, dp, delta));
	return (Seeds){{{map[a->logits->id], dl}, {weights, dw}}};
}

/* Are the values computed by the same nodes? The pass cse would make one value of them, and a result
 * cannot stand twice. */
static bool
is_same(const Value *x, const Value *y, int depth)
{
	const Node *m = x->node, *n = y->node;

	if (x == y || depth == 0)
		return x == y;
	if (!m || !n || m->op != n->op || m->n_operands != n->n_operands ||
	    !attr_equal(op_row(m), m->attr, n->attr))
		return false;
	for (int i = 0; i < m->n_operands; i++)
		if (!node_operand(m, i) || !node_operand(n, i) ||
		    !is_same(node_operand(m, i), node_operand(n, i), depth - 1))
			return false;
	return x->type == y->type;
}

/* The gradient of a trained argument, as the group's result gives it. Of a sum over keys and over heads or the
 * batch, such as the gradient of one scale of all scores, the group sums over keys, so that its
 * parts need not run one after the other; the pair function sums over the rest. */
typedef struct {
	int result; /* number among the group's results; other arguments may have the same */
	Ints outer; /* axes of the result that the pair function sums over */
	const Value
		*as_one; /* the whole sum, as the group would compute it; NULL: outer is empty */
} TrainedGradient;

static Value *
behind_moves(Value *v)
{
	while (is_move(v->node))
		v = node_operand(v->node, 0);
	return v;
}

/* The part of the sum that the group computes. Sets out->outer and out->as_one. */
static Value *
sum_over_keys(Builder *b, const Attention *a, Value *v, TrainedGradient *out)
{
	const Node *n = behind_moves(v)->node;
	const ReduceAttr *sum = n && n->op == OP_reduce ? n->attr : NULL;
	Value *x = sum ? node_operand(n, 0) : NULL;
	Ints inner = {0};

	if (!sum || sum->kind != REDUCE_SUM || x->type->rank != a->n ||
	    !ints_has(&sum->axes, a->n - 1))
		return v;
	for (int i = 0; i < sum->axes.n; i++) {
		int64_t axis = sum->axes.at[i];
		Ints *to = axis < a->n - 2 ? &out->outer : &inner;
		to->at[to->n++] = axis;
	}
	if (out->outer.n == 0)
		return v;
	out->as_one = v;
	return b_reduce(b, REDUCE_SUM, x, inner);
}

/* The rest of the sum, in the pair function. */
static Value *
sum_over_rest(Builder *b, const TrainedGradient *g, Value *x)
{
	const Node *moves[MAX_RANK];
	int n = 0;

	if (!g->as_one)
		return x;
	x = b_reduce(b, REDUCE_SUM, x, g->outer);
	for (const Value *v = g->as_one; is_move(v->node) && n < COUNT(moves);
	     v = node_operand(v->node, 0))
		moves[n++] = v->node;
	while (n-- > 0)
		x = build(b, moves[n]->op, 1, &x, moves[n]->attr);
	return x;
}

/* The body of attention_grad: (q, k, v, ..., max, 1/sum, sum(do * o), do) -> (dq, dk, dv, ...), the
 * gradients of trained arguments last, which `of` describes by argument. Two arguments that are added up
 * have the same gradient. */
static Function *
build_group(Recognition *r, const Attention *a, TrainedGradient *of)
{
	Function *f = group_begin(r->m, &group_attention_grad);
	Builder b = {.m = r->m, .f = f};
	int n = a->body->params.n;
	Value **x = NEW_ARRAY(r->scratch, Value *, n);
	Value **map = NEW_ARRAY(r->scratch, Value *, a->body->next_value_id), *d_o;
	Labels rows = rows_of(a), all = labels_range(0, a->n);
	DType sums = a->logits->type->dtype;
	Ints row_shape = attention_shape(a, &rows);
	Type row = type_new(r->m, sums, row_shape.n, row_shape.at);
	const Node *scores = scores_of(a)->node;

	for (int i = 0; i < n; i++) {
		const Value *p = a->body->params.at[i];
		x[i] = function_param_as(f, p->type, p->name, p->param, p->number);
	}
	Given g = {.operands = x};
	g.most = function_param(f, row, "max");
	g.inverse = function_param(f, row, "inverse");
	g.delta = function_param(f, row, "delta");
	g.d_o = function_param(f, a->o_type, "do");
	Seeds seeds = known_gradients(&b, a, &g, map, &d_o);
	Value *q = map[node_operand(scores, 0)->id], *k = map[node_operand(scores, 1)->id];
	Value *wanted[1 + MOST_TRAINED_ARGUMENTS] = {map[node_result(scores, 0)->id]},
			  *d[1 + MOST_TRAINED_ARGUMENTS];
	int n_wanted = 1;
	for (int i = 3; i < n; i++)
		if (a->trained.at[i])
			wanted[n_wanted++] = x[i];
	derivatives(&b, COUNT(seeds.of), seeds.of, n_wanted, wanted, d);
	Value *dq = labels_dot(&b, (Labeled){d[0], &all}, (Labeled){k, &a->k}, &a->q, sums,
	                       a->allow_tf32);
	Value *dk = labels_dot(&b, (Labeled){d[0], &all}, (Labeled){q, &a->q}, &a->k, sums,
	                       a->allow_tf32);
	Value *dv = labels_dot(&b, (Labeled){map[a->weights->id], &all}, (Labeled){d_o, &a->o},
	                       &a->v, sums, a->allow_tf32);
	dq = b_reshape(&b, dq, ints_of_type(a->q_type));
	dk = b_reshape(&b, dk, ints_of_type(a->k_type));
	dv = b_reshape(&b, dv, ints_of_type(a->v_type));
	Value *results[3 + MOST_TRAINED_ARGUMENTS] = {undo_views(&b, dq, &a->q_from),
	                                              undo_views(&b, dk, &a->k_from),
	                                              undo_views(&b, dv, &a->v_from)};
	int n_results = 3;
	for (int i = 3, at = 1; i < n; i++) {
		if (!a->trained.at[i])
			continue;
		Value *mine = before_cast_from(&b, d[at++], sums);
		mine = sum_over_keys(&b, a, mine, &of[i]);
		int at_result = 3;
		while (at_result < n_results && !is_same(results[at_result], mine, MOST_VIEWS))
			at_result++;
		results[at_result] = mine;
		n_results += at_result == n_results;
		of[i].result = at_result;
	}
	b_return(&b, n_results, results);
	return f;
}

/* sum(do * o) of each row */
static Value *
row_sums(Builder *b, const Attention *a, Value *o, Value *d_o)
{
	Labels left = {0}, rows = rows_of(a);
	DType sums = a->logits->type->dtype;
	Ints values = {0}, shape = attention_shape(a, &a->o);
	Value *x = b_binary(b, OP_mul, b_cast(b, o, sums), b_cast(b, d_o, sums));

	for (int i = 0; i < a->o.n; i++)
		if (a->o.at[i] >= VALUE_LABEL)
			values.at[values.n++] = i;
		else
			left.at[left.n++] = a->o.at[i];
	x = b_reduce(b, REDUCE_SUM, b_reshape(b, x, shape), values);
	return labels_transpose(b, x, &left, &rows);
}

static bool
is_other(const Attention *a, int i, const Value *x)
{
	return i >= 3 && dtype_is_float(x->type->dtype) && !a->trained.at[i];
}

/* The gradients of what the logits are computed from besides q, k and trained values. Where they
 * are wanted, as for --wrt, the nodes store the scores. */
static void
other_gradients(Recognition *r, Builder *b, const Attention *a, const Given *g, Value **out)
{
	int n = a->body->params.n, n_wanted = 0;
	Value **map = NEW_ARRAY(r->scratch, Value *, a->body->next_value_id), *d_o;
	Value **wanted = NEW_ARRAY(r->scratch, Value *, n);

	for (int i = 3; i < n; i++)
		if (is_other(a, i, g->operands[i]))
			wanted[n_wanted++] = g->operands[i];
	if (n_wanted == 0)
		return;
	Seeds seeds = known_gradients(b, a, g, map, &d_o);
	derivatives(b, COUNT(seeds.of), seeds.of, n_wanted, wanted, out);
}

Function *
attention_gradient(Recognition *r, const Attention *a)
{
	Module *m = r->m;
	const char *name = module_fresh_name(m, arena_printf(r->scratch, "%s.grad", a->body->name));
	int n = a->body->params.n, n_results = 0;
	TrainedGradient *trained = NEW_ARRAY(r->scratch, TrainedGradient, n);
	Function *group = build_group(r, a, trained), *f = function_new(m, name);
	Builder b = {.m = m, .f = f};
	Value **x = NEW_ARRAY(r->scratch, Value *, n + 4);
	Value **results = NEW_ARRAY(r->scratch, Value *, n);
	static const char *const names[] = {"o", "max", "sum"};
	Value *of[COUNT(names)];

	for (int i = 0; i < n; i++) {
		const Value *p = a->body->params.at[i];
		x[i] = function_param_as(f, p->type, p->name, PARAM_OPERAND, i);
	}
	for (int i = 0; i < COUNT(names); i++)
		of[i] = function_param_as(f, function_result(a->body, i)->type, names[i],
		                          PARAM_RESULT, i);
	Given g = {.operands = x, .most = of[1]};
	g.d_o = function_param_as(f, a->o_type, "do", PARAM_COTANGENT, 0);
	g.inverse = b_binary(&b, OP_div, b_number_like(&b, of[2], 1), of[2]);
	g.delta = row_sums(&b, a, of[0], g.d_o);
	x[n] = g.most;
	x[n + 1] = g.inverse;
	x[n + 2] = g.delta;
	x[n + 3] = g.d_o;
	Node *call = build_node(&b, OP_call, n + 4, x, &(CallAttr){.callee = group});
	Value **others = NEW_ARRAY(r->scratch, Value *, n);
	other_gradients(r, &b, a, &g, others);
	for (int i = 0; i < n; i++) {
		if (i < 3)
			results[n_results++] = b_cast(&b, node_result(call, i), x[i]->type->dtype);
		else if (a->trained.at[i])
			results[n_results++] = b_cast(
				&b,
				sum_over_rest(&b, &trained[i],
			                      node_result(call, trained[i].result)),
				x[i]->type->dtype);
		else if (is_other(a, i, x[i]))
			results[n_results++] = *others++;
	}
	b_return(&b, n_results, results);
	function_drop_unread(group); /* sums that as_one describes */
	return f;
}

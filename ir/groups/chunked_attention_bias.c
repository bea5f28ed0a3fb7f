/* An attention whose bias products compute: queries with positions, as in DeBERTa and XLNet. Such a bias has an element
 * for each score. The group computes it with the scores, for some queries at a time. Example:
 *
 *	x = dot q, r                            [b,h,q,distances]
 *	bias = gather_elements x, places        [b,h,q,k]
 *	o, max, sum = call q, k, v, bias {callee = @attention}
 *
 * The body has all three. On targets that have no chunks, both products become kernels, and attention stays a call. */
#include "ir/groups/chunked_attention.h"

#include "ir/groups/groups.h"

extern const GroupRow group_chunked_attention;

enum { MOST_COPIES = 512 };

typedef struct {
	Recognition *r;
	Function *body;
	VEC(Value *) arguments; /* in the graph, by number of the body's parameter */
	IntMap *copies; /* a value of the graph and its axis of queries -> value of the body */
	int64_t pairs;  /* queries times keys: smaller values are computed outside */
	int n_copies;
	bool has_product;
} BiasBody;

/* ---- the body. A value is copied for each axis along which its readers have the queries: with 16 positions, as many
 * queries and as many keys, they may read one list of positions along different axes. */
static Value *copy_at(BiasBody *b, Value *v, int queries, bool inside);

static bool
is_number(Value *v)
{
	double number;

	return value_splat(v, &number);
}

static Value *
new_param(BiasBody *b, Value *v)
{
	vec_push(b->r->scratch, &b->arguments, v);
	return function_param(b->body, v->type, v->kind == VALUE_PARAM ? v->name : "x");
}

static bool
is_product(const Node *n)
{
	return op_row(n)->precision == PRECISION_LOW;
}

/* loop: of n over the queries; NULL: each part computes the whole node. */
static Value *
copy_of_node(BiasBody *b, const Node *n, const Factor *loop)
{
	Value **operands = NEW_ARRAY(b->r->scratch, Value *, n->n_operands);
	Type type = node_result(n, 0)->type;

	for (int i = 0; i < n->n_operands; i++) {
		bool cut = loop && loop->operand[i].kind == SHARE_CUT;
		operands[i] = copy_at(b, node_operand(n, i), cut ? loop->operand[i].axis : -1,
		                      !is_product(n));
	}
	b->has_product |= is_product(n);
	Node *copy = node_insert(b->body, NULL, n->op, n->n_operands, operands, n->attr, 1, &type,
	                         n->loc);
	copy->phase = n->phase;
	return node_result(copy, 0);
}

/* The loop over the queries of v's node, if it is computed inside: products, and values with an element for each query
 * and key. */
static const Factor *
loop_inside(BiasBody *b, const Value *v, int queries)
{
	const Node *n = v->node;
	ScoreNode loops;

	if (!n || queries < 0 || b->n_copies > MOST_COPIES ||
	    !score_node_of(b->r->scratch, v, (ScoreAxes){queries, -1}, &loops))
		return NULL;
	FuseClass c = node_fuse_class(n);
	bool cheap = c == FUSE_ELEMENTWISE || c == FUSE_VIEW || c == FUSE_INDEX;
	return is_product(n) || (cheap && v->type->n >= b->pairs) ? loops.queries : NULL;
}

/* The value of the body that stands for v, with queries along this axis; -1: each part needs the whole of v. inside:
 * the body may compute v; else it is an operand, or a view of one. */
static Value *
copy_at(BiasBody *b, Value *v, int queries, bool inside)
{
	uint64_t key = (uint64_t)v->id * (MAX_RANK + 1) + (uint64_t)(queries + 1), found;
	const Factor *loop;

	if (intmap_get(b->copies, key, &found))
		return (Value *)(uintptr_t)found;
	loop = inside ? loop_inside(b, v, queries) : NULL;
	b->n_copies++;
	Value *copy = loop || is_number(v) || (queries < 0 && is_move(v->node))
	                      ? copy_of_node(b, v->node, loop)
	                      : new_param(b, v);
	intmap_put(b->copies, key, (uint64_t)(uintptr_t)copy);
	return copy;
}

/* ---- attention's axes */
/* Follows the queries, the longest axis of the scores that can be cut, and that only one operand of the product has.
 * Sets the product of the sizes of all such axes. */
static bool
follow_queries(Arena *scratch, const Function *f, AxisCut *out, int64_t *pairs)
{
	Value *scores = group_scores(f);
	int64_t longest = 1;

	*pairs = 1;
	for (int i = 0; scores && i < scores->type->rank; i++) {
		Partition p = node_partition(scratch, scores->node);
		const Factor *loop = partition_of_result(&p, 0, i);
		int64_t size = scores->type->dims[i];
		AxisCut cut;
		if (!loop ||
		    (loop->operand[0].kind == SHARE_CUT) == (loop->operand[1].kind == SHARE_CUT))
			continue;
		*pairs *= size;
		if (size > longest && axis_cut(scratch, f, scores, i, &cut)) {
			longest = size;
			*out = cut;
		}
	}
	return longest > 1;
}

/* Is the operand a float value with at least as many elements as the scores? */
static bool
may_be_bias(const Function *attention, const Value *v)
{
	return v->node && dtype_is_float(v->type->dtype) &&
	       v->type->n >= group_scores(attention)->type->n;
}

static bool
build_body(BiasBody *b, const Node *call, const AxisCut *cut, const Function *opened)
{
	Value **operands = NEW_ARRAY(b->r->scratch, Value *, call->n_operands);
	CallAttr attr = *(const CallAttr *)call->attr;
	Builder at = {.m = b->r->m, .f = b->body, .loc = call->loc, .phase = call->phase};

	for (int i = 0; i < call->n_operands; i++) {
		const ValueCut *of = &cut->of[opened->params.at[i]->id];
		operands[i] = copy_at(b, node_operand(call, i), of->known ? of->axis : -1, i >= 3);
	}
	Node *copy = build_node(&at, OP_call, call->n_operands, operands, &attr);
	b_return(&at, 1, (Value *[]){node_result(copy, 0)});
	return b->has_product;
}

/* Can the body be computed for some queries at a time? */
static bool
is_query_by_query(Arena *scratch, const Function *body)
{
	Function *opened = group_opened(body);
	AxisCut cut;
	int64_t pairs;
	bool is = follow_queries(scratch, opened, &cut, &pairs) &&
	          cut.of[function_result(opened, 0)->id].known;

	function_remove(opened);
	return is;
}

bool
chunked_attention_with_bias(Recognition *r, Node *attention)
{
	Function *callee = called_function(attention), *opened;
	BiasBody b = {.r = r, .copies = intmap_new(r->scratch)};
	AxisCut cut;
	bool any = false;

	for (int i = 3; i < attention->n_operands; i++)
		any |= may_be_bias(callee, node_operand(attention, i));
	if (!any || value_used(node_result(attention, 1)) || value_used(node_result(attention, 2)))
		return false;
	opened = group_opened(callee);
	b.body = group_begin(r->m, &group_chunked_attention);
	b.body->loc = attention->loc;
	bool is = follow_queries(r->scratch, opened, &cut, &b.pairs) &&
	          build_body(&b, attention, &cut, opened) && is_query_by_query(r->scratch, b.body);
	function_remove(opened);
	if (!is) {
		function_remove(b.body);
		return false;
	}
	group_call(r, attention, chunked_attention_share(r, b.body), b.arguments.n, b.arguments.at);
	return true;
}

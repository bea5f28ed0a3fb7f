/* Recognizes attention: a product, a softmax over one of its axes, and a product with the result,
 * whatever stands in between. Exporters write attention in many ways. Scales may stand before the
 * product or after it, heads may be reshaped and transposed anywhere, masks are added or
 * selected. So the recognizer does not look for patterns. It walks back from the second product to
 * the softmax and on to the first product, through any elementwise nodes, reshapes and transposes.
 * Then it builds the body (attention_body.c).
 *
 * Takes linear time, because all walks are bounded. */
#include "ir/groups/attention_match.h"

bool
attention_fail(AttentionMatch *m, const char *why)
{
	m->why = m->why ? m->why : why;
	return false;
}

bool
attention_is_link(const Value *v)
{
	const Node *n = v->node;

	return n && n->n_results == 1 &&
	       (op_row(n)->fuse == FUSE_ELEMENTWISE || op_row(n)->fuse == FUSE_VIEW);
}

/* Can the elements of v's operand x be the scores from which v is computed? */
bool
attention_leads_on(const Value *v, const Value *x)
{
	return x && x->type->n == v->type->n && dtype_is_float(x->type->dtype);
}

static bool
find_softmax(AttentionMatch *m, Value *v)
{
	if (!attention_is_link(v) || m->steps++ > MOST_STEPS)
		return false;
	if (attention_is_softmax(m, v)) {
		m->p = v;
		return true;
	}
	for (int i = 0; i < v->node->n_operands; i++)
		if (attention_leads_on(v, node_operand(v->node, i)) &&
		    find_softmax(m, node_operand(v->node, i)))
			return true;
	return false;
}

/* Finds the products from which v is computed; false: there are several. */
static bool
find_scores(AttentionMatch *m, Value *v)
{
	if (v->node && v->node->op == OP_dot) {
		if (m->scores && m->scores != v->node)
			return false;
		m->scores = v->node;
		return true;
	}
	if (!attention_is_link(v) || m->steps++ > MOST_STEPS)
		return true;
	for (int i = 0; i < v->node->n_operands; i++)
		if (attention_leads_on(v, node_operand(v->node, i)) &&
		    !find_scores(m, node_operand(v->node, i)))
			return false;
	return true;
}

/* ---- in the graph */
static bool
is_own(const AttentionMatch *m, const Node *n)
{
	for (int i = 0; i < m->own.n; i++)
		if (m->own.at[i] == n)
			return true;
	return n == m->product;
}

/* The first node besides the attention's that reads what would not be computed any more: the
 * scores, and all that depends on them. NULL: no such node. */
static const Node *
other_reader(const AttentionMatch *m)
{
	for (int i = 0; i < m->own.n; i++)
		for (int k = 0; k < m->own.at[i]->n_results; k++)
			for_each_use(node_result(m->own.at[i], k), u)
				if (!is_own(m, u->user))
					return u->user;
	return NULL;
}

static bool
is_attention(AttentionMatch *m)
{
	Value *weights = node_operand(m->product, m->side);

	if (weights->type->n == 0 || !find_softmax(m, weights))
		return false;
	m->steps = 0;
	return find_scores(m, m->logits)
	               ? m->scores != NULL
	               : attention_fail(m, "its scores are a sum of several products") || true;
}

static bool
recognize_side(Recognition *r, Node *n, int side)
{
	AttentionMatch m = {.r = r, .product = n, .side = side};
	Attention a = {0};

	if (!is_attention(&m))
		return false;
	Factors factors;
	int keys = m.why ? -1 : attention_factors(&m, &factors);
	if (keys < 0)
		attention_fail(&m, "its scores are sliced or regrouped on the way");
	a.body = m.why ? NULL : group_begin(r->m, &group_attention);
	if (!m.why && attention_build_body(&m, &a, &factors, keys)) {
		vec_push(r->scratch, &m.own, (const Node *)m.scores);
		const Node *reader = other_reader(&m);
		if (reader)
			attention_fail(
				&m, arena_printf(r->scratch, "%s reads its scores, too",
			                         reader->op == OP_return
			                                 ? "the model's user"
			                                 : arena_printf(r->scratch, "node \"%s\"",
			                                                loc_origin(reader->loc))));
	}
	if (m.why) {
		group_note(r, &group_attention, n, m.why);
		if (a.body)
			function_remove(a.body);
		return false;
	}
	GroupBody *body = group_share(r, a.body);
	if (!body->gradient)
		body->gradient = attention_gradient(r, &a);
	Builder before = {.m = r->m, .f = r->f, .before = n, .loc = n->loc, .phase = n->phase};
	if (a.range)
		attention_range_set(&before, &a, &m.mask);
	group_call(r, n, body, a.arguments.n, a.arguments.at);
	return true;
}

/* n may be the second product, with the weights as either operand. */
static bool
recognize_attention(Recognition *r, Node *n)
{
	const DotAttr *a = n->op == OP_dot ? n->attr : NULL;

	if (!a || a->x_contract.n != 1 || !dtype_is_float(node_result(n, 0)->type->dtype))
		return false;
	return recognize_side(r, n, 0) || recognize_side(r, n, 1);
}

const GroupRow group_attention = {
	.name = "attention",
	.doc = "softmax(f(q k)) v: o, and of each query's row the largest logit and the sum of exponentials",
	.recognize = recognize_attention,
	.drop_hints = attention_drop_range};

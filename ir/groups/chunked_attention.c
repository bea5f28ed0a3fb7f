/* The group chunked_attention: an attention whose nodes no kernel has, such as CaiT's, where trained matrices mix the
 * heads' scores. The nodes are computed for some queries at a time, so that the scores of all queries are never
 * stored; the gradient computes them again. The idea is Rabe and Staats' (2021, arXiv:2112.05682). The body holds the
 * nodes as they are, and begins with a product that makes scores. */
#include "ir/groups/attention_match.h"
#include "ir/groups/chunked_attention.h"
#include "ir/groups/group_nodes.h"

extern const GroupRow group_chunked_attention, group_chunked_attention_grad;

enum { MOST_STEPS_TO_ROWS = 32 };

typedef struct {
	ChunkMatch *m;
	GroupNodes nodes;
	IntMap *scores; /* ids of nodes inside that are scores, masks and the like, or depend on them */
	VEC(const Node *) added;
	int steps; /* of add_scores */
} ChunkBody;

/* ---- the nodes inside */
static bool
is_inside(const ChunkBody *b, const Node *n)
{
	return n && intmap_get(b->nodes.inside, n->id, NULL);
}

/* Adds n, and the numbers that n reads. */
static void
add_node(ChunkBody *b, const Node *n)
{
	double number;

	if (is_inside(b, n))
		return;
	intmap_put(b->nodes.inside, n->id, 1);
	vec_push(b->m->r->scratch, &b->added, n);
	for (int i = 0; i < n->n_operands; i++) {
		Value *v = node_operand(n, i);
		if (v && value_splat(v, &number))
			add_node(b, v->node);
	}
}

/* Adds the nodes that compute v, a value with both axes that depends on no first product, such as a mask. */
static void
add_scores(ChunkBody *b, const Value *v, ScoreAxes axes)
{
	ScoreNode n;

	if (is_inside(b, v->node) || b->steps++ > MOST_SCORE_NODES ||
	    !score_node_of(b->m->r->scratch, v, axes, &n))
		return;
	intmap_put(b->scores, n.node->id, 1);
	add_node(b, n.node);
	for (int i = 0; i < n.node->n_operands; i++) {
		ScoreAxes of = score_axes_of_operand(&n, i);
		if (node_operand(n.node, i) && of.queries >= 0 && of.keys >= 0)
			add_scores(b, node_operand(n.node, i), of);
	}
}

/* Is v computed from scores inside, as the sum of a row is? Then adds the nodes on the way. */
static bool
add_values_of_rows(ChunkBody *b, const Value *v, int steps)
{
	const Node *n = v ? v->node : NULL;
	bool any = false;

	if (!n || steps == 0)
		return false;
	if (is_inside(b, n))
		return intmap_get(b->scores, n->id, NULL);
	FuseClass c = node_fuse_class(n);
	if (n->n_results != 1 || n->when != WHEN_ALWAYS || op_row(n)->effect ||
	    (c != FUSE_ELEMENTWISE && c != FUSE_VIEW && c != FUSE_REDUCE))
		return false;
	for (int i = 0; i < n->n_operands; i++)
		any |= add_values_of_rows(b, node_operand(n, i), steps - 1);
	if (any) {
		add_node(b, n);
		intmap_put(b->scores, n->id, 1);
	}
	return any;
}

/* Adds the reshapes and transposes through which products read operand i, which is the same for all queries. */
static void
add_views(ChunkBody *b, const ScoreNode *n, int i)
{
	const Value *v = node_operand(n->node, i);

	if (!n->queries || n->queries->operand[i].kind != SHARE_WHOLE)
		return;
	for (; v && is_move(v->node) && !is_inside(b, v->node); v = node_operand(v->node, 0))
		add_node(b, v->node);
}

static void
add_nodes(ChunkBody *b)
{
	const ChunkMatch *m = b->m;
	ScoreAxes known;

	for (int k = 0; k < m->reached.n; k++) {
		const Node *n = m->reached.at[k].node;
		if (!intmap_get(m->member, n->id, NULL))
			continue;
		intmap_put(b->scores, n->id, 1);
		add_node(b, n);
	}
	for (int k = 0; k < m->reached.n; k++) {
		const ScoreNode *n = &m->reached.at[k];
		for (int i = 0; is_inside(b, n->node) && i < n->node->n_operands; i++) {
			const Value *v = node_operand(n->node, i);
			ScoreAxes of = score_axes_of_operand(n, i);
			if (!v || score_axes_of(m->axes, v, &known))
				continue;
			if (of.queries >= 0 && of.keys >= 0)
				add_scores(b, v, of);
			if (op_row(n->node)->precision == PRECISION_LOW)
				add_views(b, n, i);
		}
	}
	for (int k = 0; k < b->added.n; k++)
		for (int i = 0; i < b->added.at[k]->n_operands; i++)
			add_values_of_rows(b, node_operand(b->added.at[k], i), MOST_STEPS_TO_ROWS);
}

/* ---- the group */
/* Can the body be computed for some queries at a time? They lie along an axis of the first product's result. */
static bool
is_query_by_query(const ChunkBody *b)
{
	Function *opened = group_opened(b->nodes.body);
	ScoreAxes axes;
	AxisCut cut;
	bool is = score_axes_of(b->m->axes, node_result(b->nodes.first, 0), &axes) &&
	          axis_cut(b->m->r->scratch, opened, group_scores(opened), axes.queries, &cut);

	for (int i = 0; is && i < function_return(opened)->n_operands; i++)
		is = cut.of[function_result(opened, i)->id].known;
	function_remove(opened);
	return is;
}

/* Makes a group of the derivative of a body with n_forward nodes. The backward pass computes all of its nodes. */
static void
make_group(Function *derivative, int n_forward)
{
	Builder b = {.m = derivative->module, .f = derivative, .phase = PHASE_BACKWARD};
	int number = 0;

	derivative->kind = FUNCTION_GROUP;
	derivative->group = &group_chunked_attention_grad;
	for_each_node(derivative, n)
		n->phase = number++ < n_forward ? PHASE_FORWARD : PHASE_BACKWARD;
	gradient_widen(&b, 0, NULL);
	for_each_node(derivative, n)
		n->phase = PHASE_BACKWARD;
}

const GroupBody *
chunked_attention_share(Recognition *r, Function *body)
{
	GroupBody *shared = group_share(r, body);
	const char *fault = NULL;

	if (shared->gradient)
		return shared;
	shared->gradient = function_gradient(shared->body, &fault);
	if (shared->gradient)
		make_group(shared->gradient, shared->body->n_nodes - 1);
	return shared;
}

static bool
recognize_queries(Recognition *r, Value *p, ScoreAxes axes)
{
	ChunkMatch m = {.r = r,
	                .needed = intmap_new(r->scratch),
	                .axes = intmap_new(r->scratch),
	                .member = intmap_new(r->scratch)};

	if (!chunked_attention_match(&m, p, axes) ||
	    !group_nodes_run_together(r, m.member, m.first, m.last))
		return false;
	ChunkBody b = {.m = &m,
	               .nodes = {.r = r,
	                         .member = m.member,
	                         .first = m.first,
	                         .last = m.last,
	                         .body = group_begin(r->m, &group_chunked_attention),
	                         .inside = intmap_new(r->scratch)},
	               .scores = intmap_new(r->scratch)};
	b.nodes.body->loc = m.first->loc;
	add_nodes(&b);
	group_nodes_build(&b.nodes);
	/* nobody reads the nodes of a group that was found before */
	if (b.nodes.results.n == 0 || !is_query_by_query(&b)) {
		function_remove(b.nodes.body);
		return false;
	}
	group_nodes_call(&b.nodes, chunked_attention_share(r, b.nodes.body));
	group_drop_notes(r, m.member);
	return true;
}

/* n may be an attention with a bias, or the last node of a softmax. The softmax's longest axis besides that of keys has
 * the queries, or else another one. */
static bool
recognize_chunked_attention(Recognition *r, Node *n)
{
	AttentionMatch m = {.r = r};
	bool tried[MAX_RANK] = {false};

	if (called_group(n) == &group_attention)
		return chunked_attention_with_bias(r, n);
	if (n->n_results != 1 || !dtype_is_float(node_result(n, 0)->type->dtype) ||
	    !attention_is_softmax(&m, node_result(n, 0)))
		return false;
	Type t = node_result(n, 0)->type;
	tried[m.axis] = true;
	for (int k = 1; k < t->rank; k++) {
		int longest = -1;
		for (int i = 0; i < t->rank; i++)
			if (!tried[i] && (longest < 0 || t->dims[i] > t->dims[longest]))
				longest = i;
		tried[longest] = true;
		if (t->dims[longest] > 1 &&
		    recognize_queries(r, node_result(n, 0), (ScoreAxes){longest, m.axis}))
			return true;
	}
	return false;
}

const GroupRow group_chunked_attention = {
	.name = "chunked_attention",
	.doc = "attention without a kernel: its nodes, for some queries at a time",
	.recognize = recognize_chunked_attention,
	.stored = "scores of all queries, or a bias of them,"};

const GroupRow group_chunked_attention_grad = {
	.name = "chunked_attention_grad",
	.doc = "gradients of the operands of chunked_attention; computes the scores again"};

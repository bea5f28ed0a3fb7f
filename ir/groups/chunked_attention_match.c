/* Finds the nodes of an attention that has no kernel, by the partition rules of the ops. Example, heads that a
 * trained matrix w mixes, as in CaiT:
 *
 *	s[b,h,q,k] = dot x, y         a first product: x has the axis q, y the axis k
 *	l[b,g,q,k] = dot s, w         a member: its result has both axes
 *	m[b,g,q] = reduce.max l       a member: it reads a value with both axes
 *	p[b,g,q,k] = exp (l - m) ..   members; the softmax, from which the walk goes back to the first products
 *	o[b,g,q,d] = dot p, v         a member, where the group ends: a product that sums over k
 *
 * The group is computed for some queries at a time, so every member has to have the axis q. Walks go back
 * for at most MOST_SCORE_NODES nodes, and forward as far as values with the axis q are read. */
#include "ir/groups/chunked_attention.h"

static bool
is_product(const Node *n)
{
	return op_row(n)->precision == PRECISION_LOW;
}

/* ---- axes */
static void
put_axes(IntMap *axes, const Value *v, ScoreAxes at)
{
	intmap_put(axes, v->id,
	           (uint64_t)(at.queries + 1) * (MAX_RANK + 1) + (uint64_t)(at.keys + 1));
}

bool
score_axes_of(const IntMap *axes, const Value *v, ScoreAxes *out)
{
	uint64_t both;

	if (!v || !intmap_get(axes, v->id, &both))
		return false;
	*out = (ScoreAxes){(int)(both / (MAX_RANK + 1)) - 1, (int)(both % (MAX_RANK + 1)) - 1};
	return true;
}

static int
axis_of(const Factor *f, const Share *s)
{
	return f && s->kind == SHARE_CUT ? s->axis : -1;
}

ScoreAxes
score_axes_of_operand(const ScoreNode *n, int i)
{
	return (ScoreAxes){n->queries ? axis_of(n->queries, &n->queries->operand[i]) : -1,
	                   n->keys ? axis_of(n->keys, &n->keys->operand[i]) : -1};
}

static ScoreAxes
axes_of_result(const ScoreNode *n, int i)
{
	return (ScoreAxes){n->queries ? axis_of(n->queries, &n->queries->result[i]) : -1,
	                   n->keys ? axis_of(n->keys, &n->keys->result[i]) : -1};
}

static bool
has_both(ScoreAxes a)
{
	return a.queries >= 0 && a.keys >= 0;
}

/* Can a group compute n? */
static bool
is_plain(const Node *n)
{
	FuseClass c = node_fuse_class(n);

	return n->n_results == 1 && !op_row(n)->effect && n->when == WHEN_ALWAYS &&
	       c != FUSE_CONTROL && c != FUSE_NONE && !called_group(n);
}

bool
score_node_of(Arena *scratch, const Value *v, ScoreAxes axes, ScoreNode *out)
{
	if (!v->node || !v->node->n_operands || !is_plain(v->node))
		return false;
	Partition p = node_partition(scratch, v->node);
	*out = (ScoreNode){v->node, partition_of_result(&p, v->index, axes.queries),
	                   axes.keys < 0 ? NULL : partition_of_result(&p, v->index, axes.keys)};
	ScoreAxes result = axes_of_result(out, v->index);
	return result.queries == axes.queries && result.keys == axes.keys;
}

/* ---- back from the softmax */
/* The product's operands have the axes of n's result: one operand has the queries, the other one the keys. */
static bool
add_product(ChunkMatch *m, const ScoreNode *n)
{
	int queries = 0, keys = 0;

	for (int i = 0; i < n->node->n_operands; i++) {
		queries += score_axes_of_operand(n, i).queries >= 0;
		keys += score_axes_of_operand(n, i).keys >= 0;
	}
	vec_push(m->r->scratch, &m->products, n->node);
	return queries == 1 && keys == 1;
}

/* Walks back from v, a value with both axes. False: the nodes cannot be a group. */
static bool
walk_back(ChunkMatch *m, Value *v, ScoreAxes axes)
{
	ScoreAxes known;
	ScoreNode n;
	bool first = true;

	if (score_axes_of(m->needed, v, &known))
		return known.queries == axes.queries && known.keys == axes.keys;
	put_axes(m->needed, v, axes);
	if (m->steps++ > MOST_SCORE_NODES)
		return false;
	if (!score_node_of(m->r->scratch, v, axes, &n))
		return true; /* an operand of the group */
	for (int i = 0; i < n.node->n_operands; i++) {
		ScoreAxes of = score_axes_of_operand(&n, i);
		if (!node_operand(n.node, i) || !has_both(of))
			continue;
		first = false;
		if (!walk_back(m, node_operand(n.node, i), of))
			return false;
	}
	return !first || !is_product(n.node) || add_product(m, &n);
}

static bool
is_first_product(const ChunkMatch *m, const Node *n)
{
	for (int i = 0; i < m->products.n; i++)
		if (m->products.at[i] == n)
			return true;
	return false;
}

/* The first product that stands first, before the node `end`. */
static Node *
earliest(const ChunkMatch *m, Node *end)
{
	int left = m->products.n;
	Node *n = end;

	while (left > 0) {
		n = n->prev;
		left -= is_first_product(m, n);
	}
	return n;
}

/* ---- forward from the first products */
static void
add_axes(ChunkMatch *m, const Value *v, ScoreAxes at)
{
	put_axes(m->axes, v, at);
	for_each_use(v, u)
		m->pending++;
}

/* How many operands of n depend on a first product. *both: an operand has both axes. */
static int
reads(const ChunkMatch *m, const Node *n, bool *both)
{
	ScoreAxes at;
	int read = 0;

	*both = false;
	for (int i = 0; i < n->n_operands; i++)
		if (score_axes_of(m->axes, node_operand(n, i), &at)) {
			read++;
			*both |= at.keys >= 0;
		}
	return read;
}

/* Sets the loops of n, so that all operands that depend on a first product are cut along their axes. */
static bool
loops_of(const ChunkMatch *m, Node *n, ScoreNode *out)
{
	Partition p = node_partition(m->r->scratch, n);
	ScoreAxes at, cut;

	*out = (ScoreNode){.node = n};
	for (int i = 0; i < n->n_operands; i++)
		if (score_axes_of(m->axes, node_operand(n, i), &at)) {
			if (!out->queries)
				out->queries = partition_of_operand(&p, i, at.queries);
			if (!out->keys && at.keys >= 0)
				out->keys = partition_of_operand(&p, i, at.keys);
		}
	for (int i = 0; i < n->n_operands; i++)
		if (score_axes_of(m->axes, node_operand(n, i), &at)) {
			cut = score_axes_of_operand(out, i);
			if (cut.queries != at.queries || (at.keys >= 0 && cut.keys != at.keys))
				return false;
		}
	return out->queries != NULL;
}

/* Follows the axes through n, which reads a value with both axes. False: n cannot be computed for some queries. */
static bool
follow_scores(ChunkMatch *m, const ScoreNode *n)
{
	ScoreAxes at = axes_of_result(n, 0);

	vec_push(m->r->scratch, &m->reached, *n);
	if (at.queries < 0)
		return false;
	if (at.keys < 0 && is_product(n->node)) {
		m->ends = true;
		return true;
	}
	add_axes(m, node_result(n->node, 0), at);
	return true;
}

/* Follows the axis of queries through n, which reads values of a query, such as the sum of its row. */
static void
follow_rows(ChunkMatch *m, const ScoreNode *n)
{
	const Value *v = node_result(n->node, 0);
	ScoreAxes at = axes_of_result(n, 0), known;
	FuseClass c = node_fuse_class(n->node);

	if (at.queries < 0 || (c != FUSE_ELEMENTWISE && c != FUSE_VIEW))
		return;
	if (score_axes_of(m->needed, v, &known) && known.queries == at.queries)
		at = known;
	vec_push(m->r->scratch, &m->reached, *n);
	add_axes(m, v, at);
}

static bool
begin_at(ChunkMatch *m, Node *product)
{
	const Value *v = node_result(product, 0);
	ScoreAxes at;
	ScoreNode n;

	if (!score_axes_of(m->needed, v, &at) || !score_node_of(m->r->scratch, v, at, &n))
		return false;
	vec_push(m->r->scratch, &m->reached, n);
	add_axes(m, v, at);
	return true;
}

static bool
follow(ChunkMatch *m, Node *n)
{
	ScoreNode loops;
	bool both;
	int read = reads(m, n, &both);

	m->pending -= read;
	if (is_first_product(m, n))
		return read == 0 && begin_at(m, n);
	if (read == 0)
		return true;
	if (!is_plain(n) || !loops_of(m, n, &loops))
		return !both;
	if (both)
		return follow_scores(m, &loops);
	follow_rows(m, &loops);
	return true;
}

static bool
follow_all(ChunkMatch *m)
{
	Node *n = m->first;

	do {
		if (!follow(m, n))
			return false;
		n = n->next;
	} while (n && m->pending > 0);
	return m->ends;
}

/* ---- members */
/* Has n a value with both axes, or does a member read its result? */
static bool
leads_on(const ChunkMatch *m, const ScoreNode *n)
{
	ScoreAxes at;
	bool both;

	reads(m, n->node, &both);
	if (both || (score_axes_of(m->axes, node_result(n->node, 0), &at) && at.keys >= 0))
		return true;
	for_each_use(node_result(n->node, 0), u)
		if (intmap_get(m->member, u->user->id, NULL))
			return true;
	return false;
}

static void
find_members(ChunkMatch *m)
{
	for (int i = m->reached.n - 1; i >= 0; i--) {
		Node *n = m->reached.at[i].node;
		if (!leads_on(m, &m->reached.at[i]))
			continue;
		intmap_put(m->member, n->id, 1);
		m->last = m->last ? m->last : n;
	}
}

bool
chunked_attention_match(ChunkMatch *m, Value *p, ScoreAxes axes)
{
	if (!walk_back(m, p, axes) || m->products.n == 0)
		return false;
	m->first = earliest(m, p->node);
	if (!follow_all(m))
		return false;
	find_members(m);
	return intmap_get(m->member, p->node->id, NULL);
}

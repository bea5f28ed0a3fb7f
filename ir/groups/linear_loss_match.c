/* Finds the nodes of a linear loss. From the last product on, this follows the rows of its result, by the
 * partition rules of the ops, to the nodes that make something smaller of them. Example, a cross
 * entropy with logits[rows, classes] = dot x, w:
 *
 *	m[rows] = reduce.max logits            a member: it reads a large value
 *	e[rows, classes] = exp (logits - m)    members: their results are large
 *	s[rows] = reduce.sum e                 a member
 *	loss = reduce.sum (log s - ..)         none: no large value depends on it, row by row
 *	dlogits[rows, classes] = e / s - ..    members; 1 / s is one too, because dlogits depends on it
 *	dx[rows, ..] = dot dlogits, w          members, where the group ends:
 *	dw = dot dlogits, x                    products in the backward pass, and sums over rows */
#include "ir/groups/linear_loss_match.h"
#include "ir/groups/group_nodes.h"

enum { LARGE_SHARE = 2 }; /* more than 1 / LARGE_SHARE of the product's elements are large */

bool
linear_loss_is_large(const LossMatch *m, const Value *v)
{
	return v->type->n > node_result(m->product, 0)->type->n / LARGE_SHARE;
}

bool
linear_loss_has(const LossMatch *m, const Node *n)
{
	return intmap_get(m->member, n->id, NULL);
}

static bool
is_product(const Node *n)
{
	return op_row(n)->precision == PRECISION_LOW;
}

/* ---- following rows */
/* The axis of v along which rows lie that depend on the product; -1: v does not depend on it, or it is a sum over rows. */
static int
rows_of(const LossMatch *m, const Value *v)
{
	uint64_t axis;

	return v && intmap_get(m->rows, v->id, &axis) ? (int)axis : -1;
}

/* How many operands of n are values whose rows are followed. */
static int
reads_rows(const LossMatch *m, const Node *n)
{
	int read = 0;

	for (int i = 0; i < n->n_operands; i++)
		read += rows_of(m, node_operand(n, i)) >= 0;
	return read;
}

const Factor *
linear_loss_factor(const LossMatch *m, const Node *n)
{
	Partition p = node_partition(m->r->scratch, n);
	const Factor *f = NULL;

	if (n == m->product)
		return partition_of_result(&p, 0, m->axis);

	for (int i = 0; i < n->n_operands; i++) {
		int axis = rows_of(m, node_operand(n, i));
		f = axis >= 0 && !f ? partition_of_operand(&p, i, axis) : f;
		if (axis >= 0 &&
		    (!f || f->operand[i].kind != SHARE_CUT || f->operand[i].axis != axis))
			return NULL;
	}
	return f;
}

static void
add_rows(LossMatch *m, const Value *v, int axis)
{
	intmap_put(m->rows, v->id, (uint64_t)axis);
	for_each_use(v, u)
		m->pending++;
}

/* Follows the rows through n. A product and a sum over rows end the way. */
static bool
follow(LossMatch *m, Node *n)
{
	bool always = !op_row(n)->effect && n->when == WHEN_ALWAYS;
	const Factor *f = always ? linear_loss_factor(m, n) : NULL;

	if (!f)
		return false;
	vec_push(m->r->scratch, &m->reached, n);
	for (int i = 0; i < n->n_results && !is_product(n); i++)
		if (f->result[i].kind == SHARE_CUT)
			add_rows(m, node_result(n, i), f->result[i].axis);
	return true;
}

static const char *
reads_too(const LossMatch *m, const Node *n)
{
	return n->op == OP_return
	               ? "the model's user reads its result, too"
	               : arena_printf(m->r->scratch, "node \"%s\" reads its result in another way",
	                              loc_origin(n->loc));
}

/* Reads n a large value that depends on the product? */
static bool
reads_large(const LossMatch *m, const Node *n)
{
	for (int i = 0; i < n->n_operands; i++) {
		const Value *v = node_operand(n, i);
		if (rows_of(m, v) >= 0 && linear_loss_is_large(m, v))
			return true;
	}
	return false;
}

/* Do n's results have fewer elements than it reads, because it leaves elements out, as the parts of a product for queries, keys
 * and values do? A loss makes something of all of them. */
static bool
leaves_out(const LossMatch *m, const Node *n)
{
	return op_row(n)->fuse == FUSE_VIEW && !linear_loss_is_large(m, node_result(n, 0));
}

/* Follows the rows through all nodes. False: another product of the forward pass, or something that cannot
 * be computed row by row, reads a large value. */
static bool
follow_all(LossMatch *m)
{
	add_rows(m, node_result(m->product, 0), m->axis);
	vec_push(m->r->scratch, &m->reached, m->product);
	for (Node *n = m->product->next; n && m->pending > 0; n = n->next) {
		int read = reads_rows(m, n);
		if (!read)
			continue;
		m->pending -= read;
		if (reads_large(m, n) &&
		    (leaves_out(m, n) || (is_product(n) && n->phase != PHASE_BACKWARD)))
			return false;
		if (!follow(m, n) && reads_large(m, n)) {
			m->why = reads_too(m, n);
			return false;
		}
	}
	return true;
}

/* ---- members */
/* Is n's result large, or does a member read it row by row? */
static bool
leads_on(const LossMatch *m, const Node *n)
{
	for (int i = 0; i < n->n_results; i++) {
		const Value *v = node_result(n, i);
		if (rows_of(m, v) < 0)
			continue;
		if (linear_loss_is_large(m, v))
			return true;
		for_each_use(v, u)
			if (linear_loss_has(m, u->user))
				return true;
	}
	return false;
}

static void
find_members(LossMatch *m)
{
	for (int i = m->reached.n - 1; i >= 0; i--) {
		Node *n = m->reached.at[i];
		if (!leads_on(m, n) && !reads_large(m, n))
			continue;
		intmap_put(m->member, n->id, 1);
		m->last = m->last ? m->last : n;
	}
}

bool
linear_loss_match(LossMatch *m)
{
	if (!follow_all(m))
		return false;
	find_members(m);
	if (m->reached.n < 2 || m->last == m->product)
		return false;
	if (!group_nodes_run_together(m->r, m->member, m->product, m->last)) {
		m->why = "its gradient needs all rows, or other products";
		return false;
	}
	return true;
}

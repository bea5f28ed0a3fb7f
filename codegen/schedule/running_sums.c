/* Lets a gradient that several nodes add up, each in the place of the sum so far, be computed in the gradient's own place. The
 * first micro-batch stores a gradient, later ones add to it; so later ones must not overwrite the old sum
 * before they have added the new gradient.
 *
 *	u = dot ..                                  old = copy @grad            in later micro-batches
 *	v = scatter u, ..                           u = dot ..                  in @grad's place
 *	store @grad v      in the first   becomes   v = scatter u, ..           in @grad's place
 *	a = add @grad, v                            store @grad v               no work: it is there
 *	store @grad a      in later ones            a = add old, v
 *
 * A gradient that one launch computes has two launches instead, one of which stores (schedule.c). Without this, a step
 * would hold u, which may wait long for the scatter, besides the gradient. */
#include "codegen/legalize/legalize.h"
#include "codegen/schedule/order.h"

/* Does a serving kernel run before n's kernel? A scatter's indices are sorted by one. */
static bool
is_served(const Node *n)
{
	for (int i = 0; i < n->n_operands; i++) {
		const Node *from = node_operand(n, i)->node;
		const Kernel *k = from ? launched_kernel(from) : NULL;
		if (k && k->serves == launched_kernel(n))
			return true;
	}
	return false;
}

/* Do only n and the kernels that run before it for its sake read v? */
static bool
only_serves(const Value *v, const Node *n)
{
	for_each_use(v, u) {
		const Kernel *k = launched_kernel(u->user);
		if (u->user != n && (!k || k->serves != launched_kernel(n)))
			return false;
	}
	return true;
}

/* The sum to which v's node adds, and whose place v takes; NULL: the node makes something else. */
static Value *
added_to(const Value *v)
{
	const Node *n = v->node;
	const Kernel *k = n ? launched_kernel(n) : NULL;

	if (n && loop_of(n))
		return loop_part(n, v->index) == LOOP_CARRIED ? node_operand(n, v->index) : NULL;
	bool adds = k && !k->moves && (k->buffers.at[k->n_inputs + v->index].from || is_served(n));
	for (int i = 0; adds && i < n->n_operands; i++)
		if (node_operand(n, i)->node && only_serves(node_operand(n, i), n) &&
		    kernel_may_overwrite(k, i, k->n_inputs + v->index))
			return node_operand(n, i);
	return NULL;
}

/* The launch that adds v to the old sum in later micro-batches; NULL: v has other readers. */
static Node *
addition_of(const Node *store, const State *sum)
{
	Node *addition = NULL;

	for_each_use(node_operand(store, 0), u) {
		if (u->user == store)
			continue;
		if (addition || u->user->op != OP_launch || u->user->when != WHEN_LATER)
			return NULL;
		addition = u->user;
	}
	for (int i = 0; addition && i < addition->n_operands; i++)
		if (node_operand(addition, i)->state == sum)
			return addition;
	return NULL;
}

static Kernel *
copy_kernel(Pass *p, Module *m, Type type)
{
	Kernel *k = kernel_new(p->scratch, "", loc_name(m, "old_sum"));
	LoopBuilder *lb = loop_builder(k, m, p->scratch);
	int x = lb_buffer(lb, "x0", BUFFER_IN, type), y = lb_buffer(lb, "y0", BUFFER_OUT, type);
	int64_t run = greatest_common_divisor(type->n, 64);
	LoopValue i = lb_for(lb, LOOP_PARALLEL, type->n / run), j = lb_for(lb, LOOP_VECTOR, run);
	Affine at = affine_add_scaled(lb, affine_scalar(lb, j), affine_scalar(lb, i), run);

	lb_store(lb, y, at, lb_load(lb, x, at));
	lb_end(lb);
	lb_end(lb);
	kernel_close(lb);
	return kernel_add(
		m, k, module_fresh_name(m, arena_printf(m->arena, "copy_sum_%d", m->kernels.n)));
}

/* Puts a copy of the old sum before the node, for the addition. */
static void
copy_old_sum(Pass *p, Node *before, Node *addition, const State *sum)
{
	Function *f = before->function;

	for (int i = 0; i < addition->n_operands; i++) {
		Value *old = node_operand(addition, i);
		if (old->state != sum)
			continue;
		LaunchAttr attr = {.kernel = copy_kernel(p, f->module, old->type)};
		Node *copy = node_insert(f, before, OP_launch, 1, &old, &attr, 1, &old->type,
		                         addition->loc);
		copy->phase = addition->phase;
		copy->when = WHEN_LATER;
		node_set_operand(addition, i, node_result(copy, 0));
	}
}

IntMap *
sums_keep_place(Pass *p, Function *f)
{
	IntMap *kept = intmap_new(p->scratch);

	for_each_node(f, n) {
		const State *sum = stored_state(n);
		Node *addition = sum && n->when == WHEN_FIRST ? addition_of(n, sum) : NULL;
		Value *v = addition ? node_operand(n, 0) : NULL, *first = v;

		while (first && added_to(first) && added_to(first)->node)
			first = added_to(first);
		if (first == v)
			continue;
		copy_old_sum(p, first->node, addition, sum);
		intmap_put(kept, v->node->id, 1);
		p->changed = true;
	}
	return kept;
}

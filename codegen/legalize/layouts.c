/* The pass `layouts`: for GPUs, images of chains of convolutions lie in memory as [batch, spatial.., channels] instead of
 * [batch, channels, spatial..], because the library's engines for matrix units want channels next to each other. With
 * images as they were, each call moves x and y to scratch memory and back.
 *
 * A chain is all values that ops with a rule (elementwise ops, and column `channels_last`) connect. Example: conv, add,
 * relu, conv becomes transpose, conv, add, relu, conv, transpose. A chain is left as it is if a convolution in it is not
 * for matrix units, or has groups, or if the transposes at its ends would move as many bytes as the library. Filters stay as they
 * are: the library moves them, which takes little time, because filters are small.
 *
 * The pass goes through the nodes in order. It builds each node of a chain from transposed operands. Its readers get the
 * transpose of the new result, until they are built anew, too. So transposes remain at the ends of a chain only. Takes
 * linear time in the number of nodes. Changes no number, but the order of additions. */
#include "codegen/codegen.h"
#include "codegen/strategy/strategy.h"

#include <string.h>

enum { LEAST_RANK = 3 };

typedef struct {
	const Target *target;
	uint32_t n_values; /* values of the function before the pass */
	uint32_t *chain;   /* by value id: another value of the same chain, or the value itself */
	/* By the id of a chain's first value: bytes that the library would move, less those that transposes at the ends
	 * move; and may the layout change? */
	int64_t *saved;
	bool *refused;
	bool *counted; /* by value id: have the transposes been counted? */
} Layouts;

/* ---- chains */
static uint32_t
chain_of(Layouts *l, const Value *v)
{
	uint32_t id = v->id;

	while (l->chain[id] != id)
		id = l->chain[id] = l->chain[l->chain[id]];
	return id;
}

static void
connect(Layouts *l, const Value *a, const Value *b)
{
	l->chain[chain_of(l, a)] = chain_of(l, b);
}

static bool
is_elementwise(const Node *n)
{
	return op_row(n)->fuse == FUSE_ELEMENTWISE && n->n_results == 1;
}

static bool
same_shape(Type a, Type b)
{
	return a->rank == b->rank &&
	       memcmp(a->dims, b->dims, sizeof(*a->dims) * (size_t)a->rank) == 0;
}

/* Broadcasts are built in either order where they are read. */
static bool
is_broadcast(const Value *v)
{
	return v->node && op_row(v->node)->channels_last.build &&
	       !op_row(v->node)->channels_last.operands;
}

/* Is operand i of n an image whose channels n can read as the last axis? */
static bool
reads_image(const Node *n, int i)
{
	const Value *v = node_operand(n, i);
	unsigned images = op_row(n)->channels_last.operands;

	if (!v || v->type->rank < LEAST_RANK)
		return false;
	return is_elementwise(n) ? same_shape(v->type, node_result(n, 0)->type)
	                         : operand_in(images, i) || images == EVERY_OPERAND;
}

static bool
gives_image(const Node *n)
{
	return n->n_results == 1 && node_result(n, 0)->type->rank >= LEAST_RANK &&
	       (is_elementwise(n) || op_row(n)->channels_last.result);
}

/* Does n give, or read, images with products that matrix units compute? */
static bool
is_convolution(const Node *n)
{
	return op_row(n)->channels_last.build && op_row(n)->precision == PRECISION_LOW;
}

/* Does the library compute the convolution with matrix units, in one group? */
static bool
wants_channels_last(const Layouts *l, const Node *n)
{
	const LibraryLimits *limits = &l->target->tuning->library;
	const ConvAttr *a = n->attr;
	bool wide = node_operand(n, 0)->type->dtype == F32;

	return a->groups == 1 && !a->channels_last && library_takes_dtypes(limits, n) &&
	       op_row(n)->flops(n) >= limits->least_flops && (!wide || a->allow_tf32);
}

/* Connects the images that n reads and gives. Returns one of them; NULL: n has no images. */
static const Value *
connect_images(Layouts *l, const Node *n)
{
	if (n->n_results == 1 && is_broadcast(node_result(n, 0)))
		return NULL;
	const Value *any = gives_image(n) ? node_result(n, 0) : NULL;

	for (int i = 0; i < n->n_operands; i++) {
		const Value *v = node_operand(n, i);
		if (!reads_image(n, i) || is_broadcast(v))
			continue;
		if (any)
			connect(l, v, any);
		any = v;
	}
	return any;
}

/* Counts the bytes of images that the library would read and write once more, for a convolution. `image` is an image of its
 * chain. */
static void
count_convolution(Layouts *l, const Node *n, const Value *image)
{
	uint32_t chain = chain_of(l, image);

	l->refused[chain] |= !wants_channels_last(l, n);
	for (int i = 0; i < n->n_operands; i++)
		if (reads_image(n, i))
			l->saved[chain] += 2 * type_bytes(node_operand(n, i)->type);
	if (gives_image(n))
		l->saved[chain] += 2 * type_bytes(node_result(n, 0)->type);
}

/* Counts the bytes that a transpose of v would move, if v is an end of its chain: an image that no node of the chain makes,
 * or that other nodes read, too. */
static void
count_end(Layouts *l, const Value *v)
{
	bool end = !v->node || !gives_image(v->node);

	if (l->counted[v->id])
		return;
	l->counted[v->id] = true;
	for_each_use(v, u)
		end |= !reads_image(u->user, use_index(u));
	if (end)
		l->saved[chain_of(l, v)] -= 2 * type_bytes(v->type);
}

static void
find_chains(Layouts *l, const Function *f)
{
	for (uint32_t i = 0; i < l->n_values; i++)
		l->chain[i] = i;
	for_each_node(f, n)
		connect_images(l, n);
	for_each_node(f, n) {
		const Value *image = connect_images(l, n); /* they are connected already */
		if (!image)
			continue;
		if (is_convolution(n))
			count_convolution(l, n, image);
		if (gives_image(n))
			count_end(l, node_result(n, 0));
		for (int i = 0; i < n->n_operands; i++)
			if (reads_image(n, i) && !is_broadcast(node_operand(n, i)))
				count_end(l, node_operand(n, i));
	}
}

/* ---- rewriting */
/* The order of axes that moves the channels to the end, or back. */
static Ints
moving_order(int rank, bool back)
{
	Ints order = {.n = rank};

	for (int i = 1; i < rank; i++)
		order.at[i] = back ? (i == 1 ? rank - 1 : i - 1) : i == rank - 1 ? 1 : i + 1;
	return order;
}

/* The value that v is a view of, if v is such a value with its channels moved back to axis 1. NULL: v is something else. */
static Value *
moved_behind(const Value *v)
{
	Value *from = value_viewed(v);

	if (!from || v->node->op != OP_transpose || v->type->rank < LEAST_RANK)
		return NULL;
	const Ints *order = &((const TransposeAttr *)v->node->attr)->order;
	const Ints back = moving_order(v->type->rank, true);
	for (int i = 0; i < order->n; i++)
		if (order->at[i] != back.at[i])
			return NULL;
	return from;
}

/* v with its channels as the last axis. */
static Value *
with_channels_last(Builder *b, Value *v)
{
	Value *known = moved_behind(v);

	if (known)
		return known;
	if (is_broadcast(v)) {
		Value *from = node_operand(v->node, 0);
		return op_row(v->node)->channels_last.build(b, v->node, &from);
	}
	return b_transpose(b, v, moving_order(v->type->rank, false));
}

static bool
changes_layout(Layouts *l, const Value *image)
{
	uint32_t chain = chain_of(l, image);

	return !l->refused[chain] && l->saved[chain] > 0;
}

/* Builds n from operands with channels last, and lets its readers read the result. */
static void
rewrite(Pass *p, Node *n)
{
	Builder b = {.m = n->function->module,
	             .f = n->function,
	             .before = n,
	             .loc = n->loc,
	             .phase = n->phase};
	Value **operands = NEW_ARRAY(p->scratch, Value *, n->n_operands), *y;

	for (int i = 0; i < n->n_operands; i++)
		operands[i] = reads_image(n, i) ? with_channels_last(&b, node_operand(n, i))
		                                : node_operand(n, i);
	y = is_elementwise(n) ? b_retyped(&b, n, operands)
	                      : op_row(n)->channels_last.build(&b, n, operands);
	if (!y)
		return;
	if (gives_image(n))
		y = b_transpose(&b, y, moving_order(y->type->rank, true));
	value_replace_uses(node_result(n, 0), y);
	node_erase(n);
}

static bool
change_layouts(Pass *p, const Target *target, Function *f)
{
	Layouts l = {.target = target,
	             .n_values = f->next_value_id,
	             .chain = NEW_ARRAY(p->scratch, uint32_t, f->next_value_id),
	             .saved = NEW_ARRAY(p->scratch, int64_t, f->next_value_id),
	             .refused = NEW_ARRAY(p->scratch, bool, f->next_value_id),
	             .counted = NEW_ARRAY(p->scratch, bool, f->next_value_id)};
	bool *of_chain = NEW_ARRAY(p->scratch, bool, f->next_node_id), changed = false;

	find_chains(&l, f);
	for_each_node(f, n) {
		const Value *image = connect_images(&l, n);
		of_chain[n->id] = n->n_results == 1 && image && changes_layout(&l, image);
	}
	for_each_node(f, n)
		if (of_chain[n->id]) {
			rewrite(p, n);
			changed = true;
		}
	return changed;
}

static bool
run_layouts(Pass *p, Module *m)
{
	for_each_function(m, f) {
		const Target *target = pass_target(p, f);
		if (!target)
			return false;
		if (target->tuning->library.channels_last && f->kind == FUNCTION_PLAIN)
			p->changed |= change_layouts(p, target, f);
	}
	return true;
}

const PassRow pass_layouts = {
	.name = "layouts",
	.help = "move the channels of convolutions' images to the last axis, on GPUs",
	.takes = STAGE_TRAIN,
	.leaves = STAGE_ANY,
	.options = target_options,
	.options_size = sizeof(TargetOptions),
	.defaults = &target_defaults,
	.run = run_layouts};

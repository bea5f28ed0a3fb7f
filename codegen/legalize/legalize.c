/* The pass `legalize`: rewrites nodes that kernels cannot compute in their present form.
 *
 * A constant becomes data in the memory of states, unless it repeats one number (a splat). A
 * reduction with few results becomes sums of blocks, which run in parallel and fix the order of
 * additions for all targets. Sums of 16-bit and smaller floats are computed in f32. Operands of
 * products and convolutions are copied to memory if their views would be computed again for every
 * element. Each loop and branch gets functions that no other node runs.
 *
 * Changes no number, except that additions may be done in another order, and that gradients of filters may be rounded to 16
 * bits for a GPU's library. Takes linear time in the
 * number of nodes. */
#include "codegen/legalize/legalize.h"
#include "codegen/codegen.h"
#include "codegen/legalize/rewrites.h"
#include "codegen/strategy/strategy.h"
#include "ir/groups/groups.h"

/* The state that holds t, made at first use; equal tensors share one state. */
static State *
constant_state(Module *m, const Tensor *t, Loc loc)
{
	for (int i = 0; i < m->states.n; i++) {
		State *s = m->states.at[i];
		if (s->kind == STATE_CONSTANT && s->data && tensor_equal(s->data, t))
			return s;
	}
	const char *name = arena_printf(m->arena, "constant.%016llx", (unsigned long long)t->hash);
	State *s = state_new(m, module_fresh_name(m, name), t->type, STATE_CONSTANT, LIFE_CONSTANT);
	s->init = INIT_DATA;
	s->data = t;
	s->loc = loc;
	return s;
}

static void
store_constant(Node *n)
{
	Function *f = n->function;
	Module *m = f->module;
	Value *v = node_result(n, 0);
	double splat;

	if (!value_used(v) || tensor_is_splat(value_constant(v), &splat))
		return;
	const Tensor *t = value_constant(v);
	value_replace_uses(v, function_state(f, constant_state(m, t, n->loc)));
	node_erase(n);
}

/* Rewrites a node of a small float type whose kernel adds to its results in memory: the new node
 * adds in f32, and a conversion follows. */
static void
sum_in_f32(Pass *p, const Target *target, Node *n)
{
	const Strategy *s = strategy_of(target, n);
	DType dtype = n->n_results ? node_result(n, 0)->type->dtype : BOOL;
	if (!float_format(dtype) || !s || !s->sums_in_memory || !s->sums_in_memory(n))
		return;
	Builder b = builder_before(n);
	Value **operands = NEW_ARRAY(p->scratch, Value *, n->n_operands);
	for (int i = 0; i < n->n_operands; i++) {
		Value *v = node_operand(n, i);
		operands[i] = v && dtype_is_float(v->type->dtype) ? b_cast(&b, v, F32) : v;
	}
	Value *wide = build(&b, n->op, n->n_operands, operands, n->attr);
	value_replace_uses(node_result(n, 0), b_cast(&b, wide, dtype));
	node_erase(n);
}

/* Gives a large gradient of filters in f32 from 16-bit images the images' type, if the library has no other: the library adds up
 * in f32 and rounds the result once, as PyTorch's autocast does. A conversion to f32 follows. */
static void
round_filter_gradient(const Target *target, Node *n)
{
	const LibraryLimits *l = &target->tuning->library;

	if (n->op != OP_conv_grad_weight || !l->conv_rounds)
		return;
	ConvAttr attr = *(const ConvAttr *)n->attr;
	DType images = node_operand(n, 0)->type->dtype;
	if (node_result(n, 0)->type->dtype != F32 || dtype_info[images].bits != 16 ||
	    !library_takes_dtypes(l, n) || op_row(n)->flops(n) < l->least_flops)
		return;
	Builder b = builder_before(n);
	Value *operands[] = {node_operand(n, 0), node_operand(n, 1)};
	attr.dtype = 0; /* the operands' */
	Value *rounded = build(&b, n->op, COUNT(operands), operands, &attr);
	value_replace_uses(node_result(n, 0), b_cast(&b, rounded, F32));
	node_erase(n);
}

/* ---- copies of views that kernels read badly, such as windows of an image (im2col),
 * or attention heads in a layout [positions, heads, width] */

static bool
is_one_of(LoopValue x, const LoopValue *list, int n)
{
	while (n > 0 && list[n - 1] != x)
		n--;
	return n > 0;
}

/* v may be a view, or a chain of views, of a value in memory. Can a kernel with the access
 * pattern `how` read that memory directly, through the views? axes: the axes that matter for `how`. */
static bool
reads_well(Pass *p, Module *m, const Value *v, Reading how, const Ints *axes)
{
	LoopBuilder *lb = loop_builder(kernel_new(p->scratch, "", v->node->loc), m, p->scratch);
	Index at = {.rank = v->type->rank};
	LoopValue steps[MAX_RANK];
	Type t = v->type;

	for (int i = 0; i < at.rank; i++)
		at.at[i] = affine_constant(0);
	for (int i = 0; i < axes->n; i++) {
		steps[i] = lb_for(lb, LOOP_PLAIN, t->dims[axes->at[i]]);
		at.at[axes->at[i]] = affine_scalar(lb, steps[i]);
	}
	Affine dense = index_flat(lb, t, &at);
	for (; v->node && op_row(v->node)->fuse == FUSE_VIEW; v = node_operand(v->node, 0)) {
		Index from = {0};
		op_row(v->node)->map(lb, v->node, &at, &from);
		at = from;
	}
	Affine place = index_flat(lb, v->type, &at);
	bool strided = true;
	for (int i = 0; i < place.n; i++)
		strided &= is_one_of(place.terms[i].scalar, steps, axes->n);
	for (int i = 0; i < axes->n; i++)
		lb_end(lb);
	dense.constant = place.constant; /* where a view begins does not matter, only its strides */
	return how == READ_DENSE ? affine_equal(&place, &dense) : strided;
}

/* Copies those operands of n to memory that n's kernel would read badly through their views.
 * Readers in the same phase share a copy (copies, by value id). The backward pass makes a new
 * copy, so the forward pass's copy need not be kept. */
static void
copy_views(Pass *p, const Target *target, Node *n, Value **copies)
{
	Module *m = n->function->module;
	Builder b = {.m = m, .f = n->function, .before = n, .loc = n->loc, .phase = n->phase};
	Ints axes;

	const Strategy *s = strategy_of(target, n);

	for (int i = 0; s && s->reads && i < n->n_operands; i++) {
		Value *v = node_operand(n, i);
		const Node *from = v->node ? behind_views(v)->node : NULL;
		if (!v->node || op_row(v->node)->fuse != FUSE_VIEW ||
		    (from && op_row(from)->computed_by_readers))
			continue;
		Reading how = s->reads(target, n, i, &axes);
		if (how == READ_ONCE || reads_well(p, m, v, how, &axes))
			continue;
		Value **copy = &copies[v->id];
		if (!*copy || (*copy)->node->phase != n->phase)
			*copy = b_unary(&b, OP_copy, v);
		node_set_operand(n, i, *copy);
	}
}

static bool
run_legalize(Pass *p, Module *m)
{
	const TargetOptions *o = p->options;

	if (!pass_check_cores(p) || !bodies_own(m, p->scratch, p->diag))
		return false;

	for_each_function(m, f) {
		const Target *target = pass_target(p, f);
		if (!target)
			return false;
		if (f->kind != FUNCTION_PLAIN)
			continue;
		for_each_node(f, n)
			round_filter_gradient(target, n);
		compute_beside_readers(f, p->scratch);
		Value **copies = NEW_ARRAY(p->scratch, Value *, f->next_value_id);
		for_each_node(f, n)
			copy_views(p, target, n, copies);
		scatters_sort(f, target);
		sorts_split(f);
		reduces_split(f, target, target_parts(target, o->cores), p->scratch);
		for_each_node(f, n) {
			if (n->op == OP_constant)
				store_constant(n);
			else
				sum_in_f32(p, target, n);
		}
	}
	p->changed = true;
	return true;
}

const PassRow pass_legalize = {.name = "legalize",
                               .help = "rewrite nodes that kernels cannot compute as they are",
                               .needed = true,
                               .takes = STAGE_REMATERIALIZED,
                               .leaves = STAGE_ANY,
                               .options = target_options,
                               .options_size = sizeof(TargetOptions),
                               .defaults = &target_defaults,
                               .run = run_legalize};

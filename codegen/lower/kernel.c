/* Makes the kernel of a fused function. For each element of a result, it emits code for all nodes
 * that compute this element, from loads of the kernel's inputs to the store. Each node's op has a
 * function (scalar, map or element in the op's table row) that emits the node's element.
 * docs/loop-ir.md describes the result. */
#include "codegen/fuse/fuse.h"
#include "codegen/lower/lower.h"
#include "codegen/lower/nest.h"

#include <string.h>

static const LowerCalls lent_calls = {
	.element = kernel_element,
	.element_inside = kernel_element_inside,
	.open_parts = kernel_open_parts,
	.close_parts = kernel_close_parts,
	.part = kernel_part,
};

/* The last node that has loops of its own; NULL: no node has. */
static Node *
root_node(const Function *f)
{
	for_each_node_reverse(f, n)
		if (op_row(n)->fuse == FUSE_OPAQUE || op_row(n)->fuse == FUSE_ROOT)
			return n;
	return NULL;
}

const Strategy *
lower_strategy(const Target *t, const Function *f)
{
	const Node *root = root_node(f);
	int opaque = 0;

	for_each_node(f, n)
		opaque += op_row(n)->fuse == FUSE_OPAQUE;
	return root && opaque <= 1 && !f->group ? strategy_of(t, root) : NULL;
}

static void
declare_buffers(Lower *lw, const Node *call, Type scratch, bool before)
{
	const Function *f = lw->f;
	struct LowerState *st = lw->state;
	const Node *ret = function_return(f);
	char name[16];

	for (int i = 0; i < f->params.n; i++) {
		const Value *actual = node_operand(call, i);
		const Value *p = f->params.at[i];
		st->hyper[p->id] = hyperparameter(actual);
		if (st->hyper[p->id] >= 0)
			continue;
		snprintf(name, sizeof(name), "x%d", i);
		st->buffers[p->id] = lb_buffer(lw->lb, name, BUFFER_IN, p->type);
	}
	snprintf(name, sizeof(name), before ? "y0" : "x%d", f->params.n);
	st->kernel_scratch = scratch ? lb_buffer(lw->lb, name, before ? BUFFER_OUT : BUFFER_IN,
	                                         scratch)
	                             : -1;
	for (int i = 0; i < ret->n_operands && !before; i++) {
		Value *v = node_operand(ret, i);
		const Value *sum = lw->node && v->node ? added_to_product(v->node, lw->node) : NULL;
		snprintf(name, sizeof(name), "y%d", i);
		if (sum) /* the kernel adds to the old content of the result */
			st->buffers[sum->id] = st->buffers[v->id] = lb_buffer_from(
				lw->lb, name, st->buffers[sum->id]);
		else
			st->buffers[v->id] = lb_buffer(lw->lb, name, BUFFER_OUT, v->type);
	}
}

static bool
depends_on_params_only(const Value *v, int depth)
{
	const Node *n = v->node;

	if (!n)
		return true;
	FuseClass c = op_row(n)->fuse;
	if ((c != FUSE_ELEMENTWISE && c != FUSE_VIEW && n->n_operands) || depth > 64)
		return false;
	for (int i = 0; i < n->n_operands; i++)
		if (!depends_on_params_only(node_operand(n, i), depth + 1))
			return false;
	return true;
}

/* Emits arithmetic on single numbers once, before the loops. */
static void
hoist_numbers(Lower *lw)
{
	for_each_node(lw->f, n) {
		const Value *v = n->n_results ? node_result(n, 0) : NULL;
		bool ready = v && v->type->n == 1 && op_row(n)->fuse == FUSE_ELEMENTWISE;
		for (int i = 0; ready && i < n->n_operands; i++)
			ready = depends_on_params_only(node_operand(n, i), 0);
		if (!ready)
			continue;
		Index at = index_at(lw, v->type, affine_constant(0));
		lower_element(lw, v, &at);
	}
}

/* Has the function enough elements for more than one part? */
static bool
is_large(const Target *t, const Function *f)
{
	int64_t most = function_flops(f);

	for_each_node(f, n)
		for (int i = 0; i < n->n_results; i++)
			if (node_result(n, i)->type->n > most)
				most = node_result(n, i)->type->n;
	return most >= t->tuning->grains.large;
}

/* A kernel with its buffers and without statements. before: makes the serving kernel, which runs
 * before the main kernel and leaves data for it. */
static Lower
open_kernel(const Lowering *l, bool before)
{
	Module *m = l->m;
	const Function *f = l->f;
	Arena *scratch = l->arena;
	struct LowerState *st = NEW(scratch, struct LowerState);
	Kernel *k = kernel_new(scratch, "", f->loc);
	Lower lw = {.calls = &lent_calls,
	            .lb = loop_builder(k, m, scratch),
	            .m = m,
	            .f = f,
	            .node = root_node(f),
	            .target = l->target,
	            .parts = is_large(l->target, f) ? target_parts(l->target, l->cores) : 1,
	            .state = st};

	*st = (struct LowerState){.scratch = scratch, .memo = intmap_new(scratch)};
	st->buffers = NEW_ARRAY(scratch, int, f->next_value_id);
	st->hyper = NEW_ARRAY(scratch, int, f->next_value_id);
	for (uint32_t i = 0; i < f->next_value_id; i++)
		st->buffers[i] = st->hyper[i] = -1;
	declare_buffers(&lw, l->call, l->scratch, before);
	return lw;
}

/* Is x a load of type `dtype` whose place is a constant plus multiples of the loop variables
 * `axes`? Fills *out with the constant and the factors. */
static bool
is_strided(const LoopBuilder *lb, LoopValue x, DType dtype, const LoopValue *axes, int rank,
           Strided *out)
{
	const LoopStatement *s = &lb->k->body.at[lb->definitions.at[x]];

	if (s->kind != LOOP_STATEMENT_LOAD || lb->k->buffers.at[s->buffer].kind != BUFFER_IN ||
	    lb->k->buffers.at[s->buffer].type->dtype != dtype || s->n_operands)
		return false;
	out->buffer = s->buffer;
	out->offset = s->place->constant;
	for (int t = 0; t < s->place->n; t++) {
		int i = 0;
		while (i < rank && axes[i] != s->place->terms[t].scalar)
			i++;
		if (i == rank || s->place->terms[t].coefficient < 0)
			return false;
		out->strides[i] = s->place->terms[t].coefficient;
	}
	return true;
}

/* Emits loops over all axes of v with a load of one element, and reads the strides from the place
 * of that load. */
bool
lower_strided(Lower *lw, const Value *v, Strided *out)
{
	Type t = v->type;
	Index at = {.rank = t->rank};
	LoopValue axes[MAX_RANK];

	*out = (Strided){0};
	for (int i = 0; i < t->rank; i++) {
		axes[i] = lb_for(lw->lb, LOOP_PLAIN, t->dims[i]);
		at.at[i] = affine_scalar(lw->lb, axes[i]);
	}
	LoopValue x = lower_element(lw, v, &at);
	bool ok = is_strided(lw->lb, x, t->dtype, axes, t->rank, out);
	for (int i = 0; i < t->rank; i++) {
		ok &= (out->strides[i] == 0) == (t->dims[i] == 1);
		lb_end(lw->lb);
	}
	return ok;
}

static const LibraryCall *
library_call(const Lowering *l)
{
	Lower probe = open_kernel(l, false);
	LibraryCall *c = NEW(l->arena, LibraryCall);

	const Strategy *s = l->strategy;

	if (!s || !s->library || node_result(probe.node, 0)->type->n == 0)
		return NULL;
	return s->library(&probe, probe.node, c) ? c : NULL;
}

/* If parts would store to the same byte, makes the whole kernel one part. */
static void
keep_bytes_whole(Kernel *k)
{
	if (kernel_shared_byte(k) < 0)
		return;
	for (int i = 0; i < k->body.n; i++)
		if (k->body.at[i].kind == LOOP_STATEMENT_FOR && k->body.at[i].mode == LOOP_PARALLEL)
			k->body.at[i].mode = LOOP_PLAIN;
}

static Kernel *
close_kernel(Lower *lw)
{
	Kernel *k = lw->lb->k;

	keep_bytes_whole(k);
	kernel_close(lw->lb);
	/* CPU compilers move loads out of loops themselves, because no store stands in between,
	 * or because the compiled code checks whether memory overlaps. GPU compilers need this
	 * help. */
	if (k->n_team)
		kernel_hoist(k, lw->lb->scratch);
	return k;
}

/* Can the target sum columns while it reduces rows? */
static bool
has_room_for_columns(const Lower *lw, const Spaces *spaces)
{
	int sums = 0;

	for_each_node(lw->f, n)
		sums += reduces(n) && spaces->of[node_result(n, 0)->id] == ITER_COLUMNS;
	return lw->target->kind == TARGET_TEAMS &&
	       columns_fit(lw->target, &spaces->domain.columns, sums);
}

/* Emits loops over the function's domain. `fuse` only makes functions with a domain, but a
 * module written by hand may contain others. */
static bool
lower_fused(Lower *lw, Diag *diag)
{
	Spaces spaces = spaces_of_function(lw->f, lw->state->scratch);

	if (spaces.fault) {
		diag_error(diag, EXIT_INVALID, "%s: fused function @%s: %s", lw->m->name,
		           lw->f->name, spaces.fault);
		return false;
	}
	if (spaces.domain.columns.n && !has_room_for_columns(lw, &spaces)) {
		diag_error(diag, EXIT_INVALID,
		           "%s: fused function @%s: target %s has no room for its sums of columns",
		           lw->m->name, lw->f->name, lw->target->name);
		return false;
	}
	if (spaces.domain.elements[ITER_ROWS] || spaces.domain.reduction[ITER_FULL].n)
		lower_reductions(lw, &spaces);
	else
		lower_elementwise(lw, &spaces);
	return true;
}

Kernel *
lower_function(const Lowering *l)
{
	Lower lw = open_kernel(l, false);
	Kernel *k = lw.lb->k;
	const Node *root = lw.node;

	k->flops = function_flops(l->f);
	hoist_numbers(&lw);
	if (l->f->group)
		group_strategy(l->target, l->f)->emit(&lw);
	else if (root && op_row(root)->fuse == FUSE_OPAQUE)
		l->strategy->emit(&lw, root);
	else if (root)
		op_row(root)->parts(&lw, root);
	else if (!lower_fused(&lw, l->diag))
		return NULL;
	k->library = l->library ? l->library : library_call(l);
	return close_kernel(&lw);
}

Type
lower_needs(const Lowering *l)
{
	Lower probe = open_kernel(l, false);
	const Strategy *s = l->strategy;

	return s && s->scratch ? s->scratch(&probe, probe.node) : NULL;
}

Kernel *
lower_before(const Lowering *l, const Kernel *serves)
{
	Lower lw = open_kernel(l, true);

	lw.lb->k->serves = serves;
	l->strategy->prepare(&lw, lw.node);
	return close_kernel(&lw);
}

/* ---- checks */
static bool
is_result(const Function *f, const Value *v)
{
	const Node *ret = function_return(f);

	for (int i = 0; i < ret->n_operands; i++)
		if (node_operand(ret, i) == v)
			return true;
	return false;
}

/* Does the function return exactly the root's results, or the root's result with its bias or added to a parameter? */
static bool
stores_root(const Target *t, const Strategy *s, const Function *f, const Node *root)
{
	const Node *ret = function_return(f);
	const Node *last = ret->n_operands == 1 ? node_operand(ret, 0)->node : NULL;

	if (last && last != root &&
	    (bias_of(t, last) || (s && s->adds && added_to_product(last, root))))
		return true;
	for (int i = 0; i < root->n_results; i++)
		if (!is_result(f, node_result(root, i)))
			return false;
	return ret->n_operands == root->n_results;
}

/* NULL, or why the function cannot be one kernel. `fuse` makes no such functions, but a module
 * written by hand may contain them. */
static const char *
fault_of(const Lowering *l)
{
	const Node *root = root_node(l->f);

	if (l->f->group)
		return group_strategy(l->target, l->f) ? NULL : "no strategy computes its group";
	if (!root)
		return NULL;
	if (!l->strategy && op_row(root)->fuse == FUSE_OPAQUE)
		return "no strategy computes it in one kernel";
	return stores_root(l->target, l->strategy, l->f, root)
	               ? NULL
	               : "the node with loops of its own is not what is returned";
}

bool
lower_check(const Lowering *l)
{
	const char *fault = fault_of(l);

	if (!fault)
		return true;
	diag_error(l->diag, EXIT_INVALID, "%s: fused function @%s: %s (target %s)", l->m->name,
	           l->f->name, fault, l->target->name);
	if (l->f->group)
		diag_hint(l->diag,
		          "the pass ungroup{target=%s} opens such groups, before the pass fuse",
		          l->target->name);
	return false;
}

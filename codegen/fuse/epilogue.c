/* Finds epilogues: operations on the result of a matrix product, such as a GELU, that a library
 * can apply while it stores the product. Target.epilogues says which of them are faster that way
 * than in a kernel of their own. */
#include "codegen/fuse/spaces.h"
#include "codegen/strategy/strategy.h"
#include "ir/groups/groups.h"

#include <string.h>

/* ---- which values must lie in memory */
/* Will some kernel read v from memory, directly or through views? Repeats the rule by which
 * `fuse` decides which values are stored (plan_recompute.c). */
static bool
is_read_whole(const Value *v)
{
	for_each_use(v, u) {
		FuseClass c = node_fuse_class(u->user);
		if (c == FUSE_OPAQUE || c == FUSE_INDEX || c == FUSE_NONE ||
		    (c == FUSE_VIEW && is_read_whole(node_result(u->user, 0))))
			return true;
	}
	return false;
}

/* The vector that `reader` adds to the result of an opaque node; NULL: `reader` adds no vector. */
static Value *
added_to(const Node *reader)
{
	Value *vector = NULL;

	for (int i = 0; i < reader->n_operands && !vector; i++) {
		const Value *x = node_operand(reader, i);
		const OpRow *row = x && x->node ? op_row(x->node) : NULL;
		vector = row && row->bias ? row->bias(x->node, reader) : NULL;
	}
	return vector;
}

/* If v is a product or a product plus its bias: the product's node. Otherwise NULL. */
static const Node *
product_behind(Value *v)
{
	const Node *n = behind_reshapes(v)->node;

	for (int i = 0; n && n->op != OP_dot && i < n->n_operands; i++) {
		const Node *x = node_operand(n, i) ? node_operand(n, i)->node : NULL;
		if (x && x->op == OP_dot && op_row(x)->bias(x, n))
			return x;
	}
	return n && n->op == OP_dot ? n : NULL;
}

/* GELU is left to the library only in 16-bit types. In f32 the tanh of gradc's own loops is more
 * exact than the library's, and in tf32 the library is slower with GELU than without
 * (target/cuda.c). */
static bool
has_16_bits(DType d)
{
	return dtype_info[d].bits == 16;
}

/* Does a library run this product? */
static bool
is_of_library(const Target *t, const Node *product)
{
	const LibraryLimits *l = &t->tuning->library;

	return has_16_bits(node_operand(product, 0)->type->dtype) &&
	       library_takes_dtypes(l, product) &&
	       op_row(product)->flops(product) >= l->least_flops;
}

bool
epilogue_alone(const Target *t, const Node *n)
{
	const unsigned gelus = t->epilogues & (JOINS_GELU | JOINS_GELU_GRAD);
	const Node *product = op_row(n)->joins & gelus ? product_behind(node_operand(n, 0)) : NULL;

	return product && is_of_library(t, product) && is_read_whole(node_result(n, 0));
}

/* Does a GELU read v, possibly through reshapes, and can the product's library apply it? */
static bool
has_alone(const Target *t, const Value *v)
{
	for_each_use(v, u)
		if (u->user->op == OP_reshape
		            ? has_alone(t, node_result(u->user, 0))
		            : op_row(u->user)->joins == JOINS_GELU && epilogue_alone(t, u->user))
			return true;
	return false;
}

Value *
bias_of(const Target *t, const Node *n)
{
	Value *vector = added_to(n);

	if (!vector)
		return NULL;
	const Value *sum = node_result(n, 0);
	return is_read_whole(sum) || has_alone(t, sum) ? vector : NULL;
}

Value *
added_to_product(const Node *n, const Node *product)
{
	const Value *z = node_result(product, 0);

	if (!(op_row(n)->joins & JOINS_SUM) || !value_used_once(z) ||
	    dtype_info[z->type->dtype].bits < 32)
		return NULL;
	for (int i = 0; i < 2; i++) {
		Value *other = node_operand(n, 1 - i);
		FuseClass c = other->node ? node_fuse_class(other->node) : FUSE_OPAQUE;
		if (node_operand(n, i) == z && other->type == z->type && value_used_once(other) &&
		    (c == FUSE_OPAQUE || c == FUSE_ELEMENTWISE))
			return other;
	}
	return NULL;
}

/* ---- products */
/* The launch of a library call that computes v, a product with at most a bias; NULL: no launch. */
static Node *
product_of(const Value *v)
{
	Node *n = v->node;
	const Kernel *k = n ? launched_kernel(n) : NULL;
	const LibraryCall *c = k ? k->library : NULL;
	bool plain = c && c->kind == LIBRARY_DOT && !c->beta && c->epilogue <= EPILOGUE_BIAS &&
	             !k->serves && k->n_outputs == 1;

	return plain && c->operands[LIBRARY_RESULT].buffer == k->n_inputs ? n : NULL;
}

/* Is `reader` the only node that reads v? Also true, with *again set, if `reader` adds v to a
 * gradient in later micro-batches, and a store reads v in the first: the product then has two
 * launches. */
static bool
is_read_alone(const Value *v, const Node *reader, bool *again)
{
	*again = false;
	for_each_use(v, u) {
		if (u->user == reader)
			continue;
		if (!stored_state(u->user) || u->user->when != WHEN_FIRST || *again)
			return false;
		*again = true;
	}
	return true;
}

/* Does `reader` read the product v before all other readers of v? Checks only a few nodes back. */
static bool
is_read_first(const Value *v, const Node *reader)
{
	enum { NEAR = 16 };
	const Node *n = reader->prev;

	for (int i = 0; n && n != v->node; n = n->prev) {
		for (int k = 0; k < n->n_operands; k++)
			if (node_operand(n, k) == v)
				return false;
		if (++i == NEAR)
			return false;
	}
	return n != NULL;
}

/* ---- readers */
/* The node whose result the function returns, if the function has one result and no other nodes
 * except reshapes; otherwise NULL. */
static const Node *
only_node(const Function *f)
{
	const Node *ret = function_return(f), *n = NULL;

	if (ret->n_operands != 1)
		return NULL;
	n = behind_reshapes(node_operand(ret, 0))->node;
	for (int i = 0; n && i < n->n_operands; i++)
		if (behind_reshapes(node_operand(n, i))->kind != VALUE_PARAM)
			return NULL;
	return n;
}

/* n is a node of the called function. Returns the number of the parameter that n reads as operand
 * i, which is also the number of the call's argument. -1: the operand is no parameter. */
static int
argument_of(const Node *n, int i)
{
	const Value *v = behind_reshapes(node_operand(n, i));

	for (int k = 0; k < n->function->params.n; k++)
		if (n->function->params.at[k] == v)
			return k;
	return -1;
}

/* The launch that computes argument number `product` of the call, if this is a library's product
 * and argument number `other` is a different value of the same type and size. Otherwise NULL. */
static Node *
product_beside(const Node *call, int product, int other)
{
	if (product < 0 || other < 0)
		return NULL;
	const Value *z = node_operand(call, product), *x = node_operand(call, other);
	bool alike = z != x && z->type->n == x->type->n && z->type->dtype == x->type->dtype;
	return alike ? product_of(z) : NULL;
}

static const LibraryCall *
call_of(const Node *product)
{
	return launched_kernel(product)->library;
}

/* The operand is laid out in memory like the result, so both have the same strides. */
static void
put_operand(Epilogue *e, int operand, int buffer)
{
	e->library.operands[operand] = e->library.operands[LIBRARY_RESULT];
	e->library.operands[operand].buffer = buffer;
}

/* Is n a sum x + y where x or y is an f32 product? Fills *e. Sums in 16-bit types stay in the
 * reader's loops: a library would add before it rounds the product, which changes the result. */
static bool
find_sum(const Node *call, const Node *n, Epilogue *e)
{
	for (int i = 0; i < 2; i++) {
		int product = argument_of(n, i), added = argument_of(n, 1 - i);
		e->product = product_beside(call, product, added);
		if (!e->product || node_operand(call, product)->type->dtype != F32 ||
		    !is_read_alone(node_operand(call, product), call, &e->again))
			continue;
		e->library = *call_of(e->product);
		e->library.beta = 1;
		put_operand(e, LIBRARY_ADDED, added);
		return true;
	}
	return false;
}

/* Is n gelu(x) of a product x, possibly with a bias? Fills *e. */
static bool
find_gelu(const Node *call, const Node *n, Epilogue *e)
{
	int product = argument_of(n, 0);
	const Value *z = product < 0 ? NULL : node_operand(call, product);
	bool alone, again;

	e->product = z && has_16_bits(z->type->dtype) ? product_of(z) : NULL;
	if (!e->product)
		return false;
	alone = is_read_alone(z, call, &again) && !again;
	if (!alone && !is_read_first(z, call))
		return false;
	e->library = *call_of(e->product);
	if (e->library.epilogue == EPILOGUE_BIAS)
		e->library.epilogue = alone ? EPILOGUE_GELU_BIAS : EPILOGUE_GELU_AUX_BIAS;
	else
		e->library.epilogue = alone ? EPILOGUE_GELU : EPILOGUE_GELU_AUX;
	return true;
}

/* Is n gelu_grad(dy, x) of a product dy? Fills *e. */
static bool
find_gelu_grad(const Node *call, const Node *n, Epilogue *e)
{
	int product = argument_of(n, 0), saved = argument_of(n, 1);

	e->product = product_beside(call, product, saved);
	if (!e->product || !has_16_bits(node_operand(call, product)->type->dtype) ||
	    call_of(e->product)->epilogue != EPILOGUE_NONE ||
	    !is_read_alone(node_operand(call, product), call, &e->again) || e->again)
		return false;
	e->library = *call_of(e->product);
	e->library.epilogue = EPILOGUE_DGELU;
	put_operand(e, LIBRARY_AUX, saved);
	return true;
}

typedef struct {
	Joins joins;
	bool (*find)(const Node *call, const Node *n, Epilogue *e);
} EpilogueRow;
static const EpilogueRow rows[] = {
	{JOINS_SUM, find_sum}, {JOINS_GELU, find_gelu}, {JOINS_GELU_GRAD, find_gelu_grad}};

/* ---- the reader with added operands */
/* Does the library call store two results: the product, and GELU of it? */
static bool
stores_product(const LibraryCall *c)
{
	return library_has_operand(c, LIBRARY_AUX) && library_writes(c, LIBRARY_AUX);
}

static Function *
widen(Module *m, const Function *f, int n, Value *const *more, int saved)
{
	const char *name = arena_printf(m->arena, "%s.%d", f->name, m->functions.n);
	Function *to = function_new(m, module_fresh_name(m, name));
	Value **map = NEW_ARRAY(m->arena, Value *, f->next_value_id);
	Value *results[2];

	to->kind = FUNCTION_FUSED;
	to->loc = f->loc;
	for (int i = 0; i < f->params.n; i++)
		map[f->params.at[i]->id] = function_param(to, f->params.at[i]->type,
		                                          f->params.at[i]->name);
	for (int i = 0; i < n; i++)
		function_param(to, more[i]->type, "of");
	function_clone_body(f, to, NULL, map);
	Builder b = {.m = m, .f = to, .loc = f->loc};
	results[0] = map[node_operand(function_return(f), 0)->id];
	if (saved >= 0)
		results[1] = b_unary(&b, OP_copy, to->params.at[saved]);
	b_return(&b, 1 + (saved >= 0), results);
	return to;
}

static bool
is_widened(const Widened *w, const Function *f, int n, Value *const *more, int saved)
{
	if (w->from != f || w->to->params.n != f->params.n + n ||
	    function_return(w->to)->n_operands != 1 + (saved >= 0))
		return false;
	for (int i = 0; i < n; i++)
		if (w->to->params.at[f->params.n + i]->type != more[i]->type)
			return false;
	return true;
}

/* A copy of f with n more parameters, with the types of the values `more`. If `saved` is not -1,
 * the copy also returns parameter number `saved`. If an equal copy exists, returns that copy. */
static Function *
widened(Module *m, Readers *readers, const Function *f, int n, Value *const *more, int saved)
{
	uint64_t at, h = hash_mix((uint64_t)(uintptr_t)f, (uint64_t)n);

	for (int i = 0; i < n; i++)
		h = hash_mix(h, (uint64_t)(uintptr_t)more[i]->type);
	for (; intmap_get(readers->by_hash, h, &at); h++)
		if (is_widened(&readers->list.at[at], f, n, more, saved))
			return readers->list.at[at].to;
	Widened w = {f, widen(m, f, n, more, saved)};
	intmap_put(readers->by_hash, h, (uint64_t)readers->list.n);
	vec_push(readers->arena, &readers->list, w);
	return w.to;
}

/* Sets e->call: a copy of the call with more operands, inserted before the call. The additional
 * operands are those of the product's launch, which the library needs. */
static void
add_operands(Node *call, Readers *readers, const Node *n, Epilogue *e)
{
	Module *m = call->function->module;
	Value **operands = NEW_ARRAY(m->arena, Value *, call->n_operands + N_LIBRARY_OPERANDS);
	Value **more = operands + call->n_operands;
	const unsigned own = 1u << LIBRARY_RESULT | 1u << LIBRARY_ADDED | 1u << LIBRARY_AUX;
	int n_more = 0, saved = stores_product(&e->library) ? argument_of(n, 0) : -1;

	for (int i = 0; i < call->n_operands; i++)
		operands[i] = node_operand(call, i);
	for (int i = 0; i < N_LIBRARY_OPERANDS; i++) {
		LibraryOperand *o = &e->library.operands[i];
		if (own >> i & 1 || !library_has_operand(&e->library, i))
			continue;
		more[n_more] = node_operand(e->product, (int)o->buffer);
		o->buffer = call->n_operands + n_more++;
	}
	int result = call->n_operands + n_more;
	e->library.operands[LIBRARY_RESULT].buffer = result;
	if (saved >= 0)
		put_operand(e, LIBRARY_AUX, result + 1);
	CallAttr attr = {.callee = widened(m, readers, n->function, n_more, more, saved)};
	Type types[] = {node_result(call, 0)->type,
	                saved >= 0 ? node_operand(call, saved)->type : NULL};
	e->call = node_insert(call->function, call, OP_call, result, operands, &attr,
	                      1 + (saved >= 0), types, call->loc);
	e->call->phase = call->phase;
	e->call->when = call->when;
}

static bool
has_hyperparameters(const Node *call)
{
	for (int i = 0; i < call->n_operands; i++)
		if (hyperparameter(node_operand(call, i)) >= 0)
			return true;
	return false;
}

/* May an axis of the product get padding (codegen/legalize/pitch.c)? Operands of an epilogue get none. */
static bool
may_get_padding(const LibraryLimits *l, const LibraryCall *product)
{
	bool padded = false;

	for (int a = 0; a < N_PRODUCT_AXES; a++)
		padded |= library_axis_is_odd(l, product, (ProductAxis)a);
	return padded;
}

bool
epilogue_open(const Target *t, Node *call, Readers *readers, Epilogue *out)
{
	const Function *f = ((CallAttr *)call->attr)->callee;
	const Node *n = t->epilogues && !has_hyperparameters(call) ? only_node(f) : NULL;

	*out = (Epilogue){0};
	for (int i = 0; n && i < COUNT(rows); i++)
		if (op_row(n)->joins & t->epilogues & rows[i].joins && rows[i].find(call, n, out) &&
		    !may_get_padding(&t->tuning->library, call_of(out->product))) {
			add_operands(call, readers, n, out);
			return true;
		}
	return false;
}

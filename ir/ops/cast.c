/* The ops cast (conversion between dtypes), copy, and stop_gradient (the operand itself, through
 * which no gradient flows). */
#include "ir/loop/loop.h"
#include "ir/ops/control/counter.h"
#include "ir/ops/elementwise.h"

#include <math.h>

/* ---- cast {to, round, overflow, stream, axis, rows}. `round` and `overflow` say how a float
 * becomes a float below f32. For other types these attributes have no effect, but they are kept
 * if a module's dtypes are widened. With stochastic rounding, an element takes word 0 of the
 * random numbers at its place (ir/ops/control/counter.h). The stream must not be 0, so that no
 * two casts share a stream by default. */
static const Field cast_fields[] = {
	{"to", FIELD_DTYPE, offsetof(CastAttr, to), NULL, false},
	{"round", FIELD_ENUM, offsetof(CastAttr, round), rounding_names, true},
	{"overflow", FIELD_ENUM, offsetof(CastAttr, overflow), overflow_names, true},
	COUNTER_FIELDS(CastAttr, true),
	{0}};

enum { CAST_X, CAST_COUNTER, N_CAST_OPERANDS = CAST_COUNTER + N_COUNTER_OPERANDS };

static bool
is_stochastic(const CastAttr *a)
{
	return a->round == ROUND_STOCHASTIC;
}

static void
infer_cast(Infer *in)
{
	const CastAttr *a = in->attr;
	int n = is_stochastic(a) ? N_CAST_OPERANDS : 1;

	if (in->n_operands != n)
		infer_error(in, "a cast rounded %s takes %d operands, not %d",
		            rounding_names[a->round], n, in->n_operands);
	if (!in->fault && is_stochastic(a)) {
		Ints shape = ints_of_type(in->operand[CAST_X]);
		infer_counter(in, CAST_COUNTER, &a->counter, &shape);
		if (a->counter.stream == 0)
			infer_error(in, "stochastic rounding needs a stream other than 0");
	}
	in->result[0] = type_with_dtype(in->m, in->operand[CAST_X], a->to);
}

/* Casts to a float below f32, rounding as the attributes say. */
static void
eval_cast_small(Eval *ev)
{
	const CastAttr *a = ev->attr;
	const EvalTensor *x = &ev->operand[CAST_X];
	Conversion how = {(Rounding)a->round, (Overflow)a->overflow};
	DType from = x->type->dtype;
	Ints shape = ints_of_type(x->type);
	Draws draws = {0};

	if (is_stochastic(a))
		draws = eval_draws(ev, CAST_COUNTER, &a->counter, &shape);
	for (IndexWalk w = index_walk(x->type); w.ok; index_walk_next(&w)) {
		int64_t i = w.flat;
		double value = dtype_is_float(from)
		                       ? x->f[i]
		                       : dtype_int_for_rounding((uint64_t)x->i[i], from != U64);
		uint32_t random = is_stochastic(a) ? draw(&draws, w.at).at[0] : 0;
		ev->result[0].f[i] = dtype_round_as(a->to, how, value, random);
	}
}

static void
eval_cast(Eval *ev)
{
	const EvalTensor *x = &ev->operand[0];
	EvalTensor *y = &ev->result[0];
	DType from = x->type->dtype, to = y->type->dtype;
	DType wide_from = dtype_is_float(from) ? F64 : from == U64 ? U64 : S64;
	DType wide_to = dtype_is_float(to) ? F64 : to == U64 ? U64 : S64;
	bool real = ev->interp->real && dtype_is_float(from);

	if (float_format(to) && !real) {
		eval_cast_small(ev);
	} else if (to == BOOL) {
		for (int64_t i = 0; i < x->type->n; i++)
			y->i[i] = wide_from == F64 ? x->f[i] != 0 : x->i[i] != 0;
	} else if (dtype_is_float(from) && !dtype_is_float(to)) {
		/* converts to `to` first, so that numbers saturate at its bounds, not at those of
		 * s64 */
		char *narrow = arena_alloc(ev->arena, (size_t)dtype_bytes(to, x->type->n));
		dtype_convert(to, narrow, F64, x->f, x->type->n);
		for (int64_t i = 0; i < x->type->n; i++)
			y->i[i] = dtype_load_int(to, narrow, i);
	} else {
		dtype_convert(wide_to, y->at, wide_from, x->at, x->type->n);
	}
}

static void
grad_cast(Grad *g)
{
	if (dtype_is_float(X->type->dtype) && dtype_is_float(Y->type->dtype))
		grad_add(g, 0, b_cast(B, DY, X->type->dtype));
}

static LoopValue
element_cast(Lower *lw, const Node *n, const Index *at)
{
	const CastAttr *a = n->attr;
	Conversion how = {(Rounding)a->round, (Overflow)a->overflow};
	LoopValue x = lower_element(lw, node_operand(n, CAST_X), at);

	if (!float_format(a->to))
		return lb_cast(lw->lb, a->to, x);
	if (!is_stochastic(a))
		return lb_cast_as(lw->lb, a->to, how, x, -1);
	LoopValue words = lower_draw(lw, n, CAST_COUNTER, &a->counter, at);
	return lb_cast_as(lw->lb, a->to, how, x, lb_cast(lw->lb, U32, words));
}

Value *
value_cast_of(const Value *v)
{
	const Node *n = v->node;
	const CastAttr *a = n && n->op == OP_cast ? n->attr : NULL;

	return a && !is_stochastic(a) && a->overflow == OVERFLOW_DEFAULT ? node_operand(n, 0)
	                                                                 : NULL;
}

/* Builds v again with a result in dtype `to`, if v is a dequantize to f32, perhaps seen through
 * views. So the number is rounded only once. NULL: v is something else. */
static Value *
dequantized_as(Builder *b, const Value *v, DType to)
{
	const Node *n = v->node;
	DequantizeAttr a;

	if (n && n->op == OP_dequantize && v->type->dtype == F32) {
		a = *(const DequantizeAttr *)n->attr;
		a.dtype = to;
		return build(b, n->op, n->n_operands,
		             (Value *[]){node_operand(n, 0), node_operand(n, 1)}, &a);
	}
	if (!n || op_row(n)->fuse != FUSE_VIEW)
		return NULL;
	Value *x = dequantized_as(b, node_operand(n, 0), to);
	return x ? b_retyped(b, n, (Value *[]){x}) : NULL;
}

/* Drops a cast to the type that x has, and a cast of a float to f32 or f64, which have all numbers of smaller floats, and
 * back. A cast with a rule for overflow stays, because it changes infinities. */
static Value *
simplify_cast(Builder *b, Node *n)
{
	const CastAttr *a = n->attr;
	Value *x = node_operand(n, 0), *before = value_cast_of(x);
	bool keeps = a->overflow == OVERFLOW_DEFAULT || !float_format(a->to);

	if (keeps && x->type == node_result(n, 0)->type)
		return x;
	if (keeps && before && before->type == node_result(n, 0)->type && dtype_is_float(a->to) &&
	    (x->type->dtype == F32 || x->type->dtype == F64) &&
	    dtype_info[a->to].bits < dtype_info[x->type->dtype].bits)
		return before;
	bool is_plain = value_cast_of(node_result(n, 0)) && a->round == ROUND_NEAREST;
	return is_plain && dtype_is_float(a->to) ? dequantized_as(b, x, a->to) : NULL;
}

static const Sample cast_samples[] = {
	{"{to = f32}", "f64[12] eighths"},
	{"{to = s64}", "f64[3]"},
	{"{to = bool}", "f64[2,2]"},
	{"{to = f64}", "s64[3]"},
	{"{to = f64}", "bool[3]"},
	{"{to = u8}", "f64[5] large"},
	{"{to = s8}", "f64[5] large"},
	{"{to = s4}", "f64[5] large"},
	{"{to = u2}", "s64[2,7]"},
	{"{to = f8e4m3, round = toward_zero}", "f64[3,7] eighths"},
	{"{to = f8e5m2, round = away, overflow = saturate}", "f64[35] fixed"},
	{"{to = f16, overflow = special, stream = 7}", "f64[35] eighths"},
	{"{to = bf16, round = stochastic, stream = 7, axis = 1, rows = 7}",
         "f64[3,7] fixed, u64[], u64[], u64[]"},
	{"{to = f32, round = toward_zero, overflow = saturate, stream = 7}", "f64[3] eighths"},
	{"{to = f32, round = away}", "f64[3] eighths"},
	{"{to = f32, round = stochastic, stream = 7}", "f64[3] eighths, u64[], u64[], u64[]"},
	{"{to = f16, round = stochastic, stream = -1, axis = 1, rows = 3}",
         "f64[4,6] eighths, u64[], u64[], u64[]"},
	{"{to = f32, round = stochastic, stream = 9, axis = 2, rows = 1}",
         "f64[4,3,5] eighths, u64[], u64[], u64[]"},
	{"{to = f32}", "f64[1,0]"},
	{0}};

/* A stochastic cast has no factors: a part counts places from 0, so it would draw random bits
 * that belong to other places. */
static void
cast_factors(Partition *p)
{
	if (!is_stochastic(p->node->attr))
		partition_elements(p);
}

const OpRow op_cast = {
	.name = "cast",
	.doc = "conversion to another dtype; to integers truncates and saturates; to bool is x != 0",
	.operands = {{"x", OPERAND_REQUIRED},
                     {"seed", OPERAND_OPTIONAL},
                     {"step", OPERAND_OPTIONAL},
                     {"offset", OPERAND_OPTIONAL}},
	.results = {"y"},
	.fields = cast_fields,
	.attr_size = sizeof(CastAttr),
	.infer = infer_cast,
	.eval = eval_cast,
	.grad = grad_cast,
	.fuse = FUSE_ELEMENTWISE,
	.element = element_cast,
	.flops = flops_none,
	.precision = PRECISION_FIXED,
	.partition = {cast_factors, NULL, "every axis; no axis if rounding is stochastic"},
	.simplify = simplify_cast,
	.samples = cast_samples};

/* ---- stop_gradient, copy: the result is x */
/* clang-format off */
FLOAT1(same, x)
INT1(same, x)
/* clang-format on */

#define SAME(name)                                                                         \
	static LoopValue scalar_##name(LoopBuilder *lb, const Node *n, const LoopValue *x) \
	{                                                                                  \
		(void)lb, (void)n;                                                         \
		return x[0];                                                               \
	}
SAME(stop_gradient)
SAME(copy)

static void
grad_copy(Grad *g)
{
	grad_add(g, 0, DY);
}

static const Sample fixed_samples[] = {
	/* `fixed`: no test with finite differences, because these are not 0, but the op's gradient
	 * is 0 */
	{"", "f64[12,5] fixed"},
	{"", "f64[1,0]"},
	{0}};
/* clang-format off */
UNARY(stop_gradient, "x; no gradient flows to x", ANY, false, f_same, i_same, 1,
      flops_none, PRECISION_FOLLOW, grad_zero, fixed_samples, .as_floats = OPERAND(0))
UNARY(copy, "a copy of x in its own memory", ANY, false, f_same, i_same, 1,
      flops_none, PRECISION_FOLLOW, grad_copy, unary_samples)
/* clang-format on */

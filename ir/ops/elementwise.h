/* Declarations that the files of elementwise ops (arithmetic.c, logic.c, ...) share. Result
 * element i comes from operand elements i. All operands but the condition of `select` have one
 * type; comparisons give bool. */
#ifndef GRADC_IR_OPS_ELEMENTWISE_H
#define GRADC_IR_OPS_ELEMENTWISE_H

#include "ir/ops/family.h"

/* ---- types and loops */
enum { FLOATS = 1, INTS = 2, BOOLS = 4, NUMBERS = FLOATS | INTS, ANY = 7 };
/* Checks that all operands have one type T of an allowed class. The result is T[...], or bool[...] with to_bool. */
void infer_same(Infer *in, int allowed, bool to_bool);

typedef double (*Float1)(double);
typedef int64_t (*Int1)(int64_t, bool is_u64);
typedef double (*Float2)(double, double);
typedef int64_t (*Int2)(int64_t, int64_t, bool is_u64);
/* Evaluates f on floats, and g on integers and bools. If the result's type is bool, the result is
 * true where f or g gives a number other than 0. */
void eval_unary(Eval *ev, Float1 f, Int1 g);
void eval_binary(Eval *ev, Float2 f, Int2 g);

/* Integers are computed as u64, because u64 wraps. */
#define U(x) ((uint64_t)(x))

/* ---- gradients: names for the operands, the result and its gradient, and arithmetic on them */
#define X node_operand(g->node, 0)
#define Z node_operand(g->node, 1)
#define Y node_result(g->node, 0)
#define DY g->dresult[0]
#define B g->b
/* clang-format off */
static inline Value *number(Grad *g, const Value *like, double x) { return b_splat(g->b, like->type, x); }
static inline Value *add(Grad *g, Value *a, Value *b) { return b_binary(g->b, OP_add, a, b); }
static inline Value *sub(Grad *g, Value *a, Value *b) { return b_binary(g->b, OP_sub, a, b); }
static inline Value *mul(Grad *g, Value *a, Value *b) { return b_binary(g->b, OP_mul, a, b); }
static inline Value *divide(Grad *g, Value *a, Value *b) { return b_binary(g->b, OP_div, a, b); }
static inline Value *neg(Grad *g, Value *a) { return b_unary(g->b, OP_neg, a); }
/* clang-format on */

/* ---- algebra: rewrites change no bits except the sign of zero and NaN payloads */
bool operand_is(const Node *n, int i, double x); /* is the operand a splat of x? */
Value *simplify_involution(Builder *b, Node *n); /* neg neg x, not not x */

/* ---- samples: the word after a type selects the values */
extern const Sample unary_samples[], positive_samples[], binary_samples[];

/* ---- kernels: one op of loop IR computes the element */
#define DIRECT(name)                                                                            \
	static LoopValue scalar_##name(LoopBuilder *lb, const Node *n, const LoopValue *x)      \
	{                                                                                       \
		return lb_op(lb, LOOP_##name, compute_type(node_result(n, 0)->type->dtype), x); \
	}

#define ELEMENTWISE_PARTITION                                      \
	{                                                          \
		.factors = partition_elements, .doc = "every axis" \
	}

/* ---- rows. allowed, to_bool: as in infer_same. f, i: functions of eval (NULL if their class is
 * not allowed). time: the time of one element, as a number of additions, measured roughly on one
 * core with vectors of f32. */
#define ROW(op, text, allowed, to_bool, ...)                       \
	static void infer_##op(Infer *in)                          \
	{                                                          \
		infer_same(in, allowed, to_bool);                  \
	}                                                          \
	const OpRow op_##op = {.name = #op,                        \
	                       .doc = text,                        \
	                       .infer = infer_##op,                \
	                       .eval = eval_##op,                  \
	                       .fuse = FUSE_ELEMENTWISE,           \
	                       .scalar = scalar_##op,              \
	                       .partition = ELEMENTWISE_PARTITION, \
	                       __VA_ARGS__};
#define UNARY(op, text, allowed, to_bool, f, i, time, flop, class, grad_fn, sample, ...)          \
	static void eval_##op(Eval *ev)                                                           \
	{                                                                                         \
		eval_unary(ev, f, i);                                                             \
	}                                                                                         \
	ROW(op, text, allowed, to_bool, .of_one = f, .operands = {{"x", OPERAND_REQUIRED}},       \
	    .results = {"y"}, .weight = time, .flops = flop, .precision = class, .grad = grad_fn, \
	    .samples = sample, __VA_ARGS__)
#define BINARY(op, text, allowed, to_bool, f, i, time, flop, class, grad_fn, sample, ...)          \
	static void eval_##op(Eval *ev)                                                            \
	{                                                                                          \
		eval_binary(ev, f, i);                                                             \
	}                                                                                          \
	ROW(op, text, allowed, to_bool, .of_two = f,                                               \
	    .operands = {{"x", OPERAND_REQUIRED}, {"y", OPERAND_REQUIRED}}, .results = {"z"},      \
	    .weight = time, .flops = flop, .precision = class, .grad = grad_fn, .samples = sample, \
	    __VA_ARGS__)

/* Functions of evaluation, in one line each. */
#define FLOAT1(name, result)             \
	static double f_##name(double x) \
	{                                \
		return result;           \
	}
#define FLOAT2(name, result)                       \
	static double f_##name(double x, double y) \
	{                                          \
		return result;                     \
	}
#define INT1(name, result)                         \
	static int64_t i_##name(int64_t x, bool u) \
	{                                          \
		return (void)u, (int64_t)(result); \
	}
#define INT2(name, result)                                    \
	static int64_t i_##name(int64_t x, int64_t y, bool u) \
	{                                                     \
		return (void)u, (int64_t)(result);            \
	}

#endif

/* Functions that the files of elementwise ops (arithmetic.c, logic.c, ...) share: checks of
 * types, evaluation, gradients, samples. */
#include "ir/ops/elementwise.h"

static bool
class_allowed(DType t, int allowed)
{
	DTypeClass c = dtype_info[t].class;

	return allowed & (c == CLASS_FLOAT ? FLOATS : c == CLASS_BOOL ? BOOLS : INTS);
}

void
infer_same(Infer *in, int allowed, bool to_bool)
{
	Type x = in->operand[0];

	for (int i = 0; i < in->n_operands; i++)
		if (in->operand[i] != x)
			infer_error(in, "operands have different types");
	if (!class_allowed(x->dtype, allowed))
		infer_error(in, "not defined for %s", dtype_info[x->dtype].name);
	in->result[0] = to_bool ? type_with_dtype(in->m, x, BOOL) : x;
}

void
eval_unary(Eval *ev, Float1 f, Int1 g)
{
	const EvalTensor *x = &ev->operand[0];
	EvalTensor *y = &ev->result[0];

	for (int64_t i = 0; i < x->type->n; i++) {
		if (!dtype_is_float(x->type->dtype))
			y->i[i] = g(x->i[i], x->type->dtype == U64);
		else if (dtype_is_float(y->type->dtype))
			y->f[i] = f(x->f[i]);
		else
			y->i[i] = f(x->f[i]) != 0;
	}
}

void
eval_binary(Eval *ev, Float2 f, Int2 g)
{
	const EvalTensor *x = &ev->operand[0], *z = &ev->operand[1];
	EvalTensor *y = &ev->result[0];
	bool is_u64 = x->type->dtype == U64;

	for (int64_t i = 0; i < x->type->n; i++) {
		if (!dtype_is_float(x->type->dtype))
			y->i[i] = g(x->i[i], z->i[i], is_u64);
		else if (dtype_is_float(y->type->dtype))
			y->f[i] = f(x->f[i], z->f[i]);
		else
			y->i[i] = f(x->f[i], z->f[i]) != 0;
	}
}

bool
operand_is(const Node *n, int i, double x)
{
	double v;

	return value_splat(node_operand(n, i), &v) && v == x;
}

Value *
simplify_involution(Builder *b, Node *n)
{
	Node *inner = node_operand(n, 0)->node;

	(void)b;
	return inner && inner->op == n->op ? node_operand(inner, 0) : NULL;
}

const Sample unary_samples[] = {
	{"", "f64[12,3]"}, {"", "f64[1]"}, {"", "f64[]"}, {"", "f64[0,4]"}, {0}};
const Sample positive_samples[] = {
	{"", "f64[12,3] positive"}, {"", "f64[] positive"}, {"", "f64[0,1]"}, {0}};
const Sample binary_samples[] = {{"", "f64[12,3], f64[12,3] nonzero"},
                                 {"", "f64[], f64[] nonzero"},
                                 {"", "f64[1,0], f64[1,0]"},
                                 {"", "f64[2,3] ties, f64[2,3] ties_nonzero"},
                                 {"", "s64[3,5], s64[3,5]"},
                                 {"", "u64[3,5], u64[3,5]"},

                                 {0}};

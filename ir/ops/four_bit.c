/* The op dequantize: expands weights that are stored as 4-bit codes with a scale for each block,
 * as the library bitsandbytes stores them (base/numbers/four_bit.c). */
#include "ir/ops/family.h"

/* ---- dequantize {codes, block, dtype, shape}: codes: u8[(n + 1) / 2], absmax: f32[blocks] ->
 * dtype[shape] of n elements. With i counted in row-major order, and code 0 in the upper half of
 * byte 0:
 *
 *	y[i] = four_bit_values[codes][code i] * absmax[i / block]
 *
 * The product is rounded to f32, then to dtype. The result is never stored: each kernel that
 * reads it computes it; a matrix product does so while it loads this operand. */
enum { CODES, ABSMAX };
enum { MOST_BLOCK = 1 << 20 };

static const Field dequantize_fields[] = {
	{"codes", FIELD_ENUM, offsetof(DequantizeAttr, codes), four_bit_names, false},
	{"block", FIELD_INT, offsetof(DequantizeAttr, block), NULL, false},
	{"dtype", FIELD_DTYPE, offsetof(DequantizeAttr, dtype), NULL, false},
	{"shape", FIELD_INTS, offsetof(DequantizeAttr, shape), NULL, false},
	{0}};

static void
dequantize_infer(Infer *in)
{
	const DequantizeAttr *a = in->attr;
	Type codes = in->operand[CODES], absmax = in->operand[ABSMAX];

	if (a->block < 1 || a->block > MOST_BLOCK) {
		infer_error(in, "blocks of %lld elements, need 1 to %d", (long long)a->block,
		            MOST_BLOCK);
		return;
	}
	if (!dtype_is_float(a->dtype)) {
		infer_error(in, "the result is %s, no float", dtype_info[a->dtype].name);
		return;
	}
	infer_set(in, 0, a->dtype, &a->shape);
	if (in->fault)
		return;
	int64_t n = in->result[0]->n, blocks = (n + a->block - 1) / a->block;
	if (codes->dtype != U8 || codes->rank != 1 || codes->n != (n + 1) / 2)
		infer_error(in, "codes are no u8[%lld]", (long long)(n + 1) / 2);
	else if (absmax->dtype != F32 || absmax->rank != 1 || absmax->n != blocks)
		infer_error(in, "absmax is no f32[%lld]", (long long)blocks);
}

static void
dequantize_eval(Eval *ev)
{
	const DequantizeAttr *a = ev->attr;
	const float *value = four_bit_values[a->codes];
	const EvalTensor *codes = &ev->operand[CODES], *absmax = &ev->operand[ABSMAX];

	for (int64_t i = 0; i < ev->result[0].type->n; i++) {
		int code = (int)(codes->i[i / 2] >> (i % 2 ? 0 : 4) & 15);
		ev->result[0].f[i] = value[code] * (float)absmax->f[i / a->block];
	}
}

/* dabsmax = the sum over each block of dy times the value of the code, in f64. The values of the
 * codes are computed as dequantize with absmax = 1. */
static void
dequantize_grad(Grad *g)
{
	const DequantizeAttr *a = g->node->attr;
	Value *absmax = node_operand(g->node, ABSMAX);
	DequantizeAttr plain = *a;
	int64_t n = node_result(g->node, 0)->type->n, blocks = absmax->type->n;
	Ints none = {.n = 1}, behind = {.n = 1, .at = {blocks * a->block - n}};

	plain.dtype = F32;
	Value *numbers = build(
		g->b, OP_dequantize, 2,
		(Value *[]){node_operand(g->node, CODES), b_splat(g->b, absmax->type, 1)}, &plain);
	Value *x = b_binary(g->b, OP_mul, b_cast(g->b, g->dresult[0], F64),
	                    b_cast(g->b, numbers, F64));
	x = b_pad(g->b, b_reshape(g->b, x, (Ints){.n = 1, .at = {n}}), none, behind, none, 0);
	x = b_reshape(g->b, x, (Ints){.n = 2, .at = {blocks, a->block}});
	x = b_reduce(g->b, REDUCE_SUM, x, (Ints){.n = 1, .at = {1}});
	grad_add(g, ABSMAX, b_cast(g->b, x, F32));
}

/* The value of a code, selected by comparing the code's bits, from the lowest bit on, so that no
 * table is loaded from memory. */
static LoopValue
number_of_code(LoopBuilder *lb, FourBit codes, LoopValue code)
{
	LoopValue at[FOUR_BIT_CODES], zero = lb_int(lb, U32, 0);

	for (int i = 0; i < FOUR_BIT_CODES; i++)
		at[i] = lb_float(lb, F32, four_bit_values[codes][i]);
	for (int n = FOUR_BIT_CODES / 2, bit = 1; n; n /= 2, bit *= 2) {
		LoopValue is_set = lb_compare(
			lb, LOOP_ne, lb_binary(lb, LOOP_and, code, lb_int(lb, U32, bit)), zero);
		for (int i = 0; i < n; i++)
			at[i] = lb_select(lb, is_set, at[2 * i + 1], at[2 * i]);
	}
	return at[0];
}

static LoopValue
dequantize_element(Lower *lw, const Node *n, const Index *at)
{
	const DequantizeAttr *a = n->attr;
	Type t = node_result(n, 0)->type, absmax = node_operand(n, ABSMAX)->type;
	LoopBuilder *lb = lw->lb;
	int64_t pairs[] = {node_operand(n, CODES)->type->n, 2}, blocks[] = {absmax->n, a->block};
	Index in_bytes, in_blocks;

	Affine flat = index_flat(lb, t, at);
	index_split(lb, type_new(lw->m, U8, 2, pairs), flat, &in_bytes);
	index_split(lb, type_new(lw->m, U8, 2, blocks), flat, &in_blocks);
	Index byte = {.rank = 1, .at = {in_bytes.at[0]}},
	      block = {.rank = 1, .at = {in_blocks.at[0]}};
	LoopValue both = lb_cast(lb, U32, lower_element(lw, node_operand(n, CODES), &byte));
	LoopValue odd = lb_cast(lb, U32, lb_affine(lb, in_bytes.at[1]));
	LoopValue shift = lb_binary(lb, LOOP_sub, lb_int(lb, U32, 4),
	                            lb_binary(lb, LOOP_mul, odd, lb_int(lb, U32, 4)));
	LoopValue code = lb_binary(lb, LOOP_shr, both, shift);
	LoopValue number = number_of_code(lb, (FourBit)a->codes, code);
	LoopValue size = lower_element(lw, node_operand(n, ABSMAX), &block);
	return lb_cast(lb, compute_type(a->dtype), lb_binary(lb, LOOP_mul, number, size));
}

static const Sample dequantize_samples[] = {
	{"{codes = nf4, block = 4, dtype = f32, shape = [3,6]}", "u8[9], f32[5] eighths"},
	{"{codes = fp4, block = 64, dtype = f64, shape = [7]}", "u8[4], f32[1] eighths"},
	{"{codes = nf4, block = 2, dtype = bf16, shape = [2,3,2]}", "u8[6], f32[6] fixed"},
	{"{codes = nf4, block = 64, dtype = f32, shape = [1,1]}", "u8[1], f32[1] eighths"},
	{"{codes = nf4, block = 64, dtype = f32, shape = [0,3]}", "u8[0], f32[0]"},
	{0}};
const OpRow op_dequantize = {
	COLUMNS(dequantize, DequantizeAttr, dequantize_fields, dequantize_grad,
                "4-bit numbers of bitsandbytes, from codes and the largest magnitude of each block"),
	.operands = {{"codes", OPERAND_REQUIRED}, {"absmax", OPERAND_REQUIRED}},
	.results = {"y"},
	.fuse = FUSE_INDEX,
	.computed_by_readers = true,
	.element = dequantize_element,
	.weight = 8,
	.flops = flops_one,
	.precision = PRECISION_FIXED,
	.partition = {.factors = partition_none, .doc = "no axis: a block may lie in two parts"},
};

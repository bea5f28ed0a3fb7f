/* The op bitcast: reads the bits of a number as a number of another type. */
#include "ir/loop/loop.h"
#include "ir/ops/family.h"

/* ---- bitcast {from, to, as}: reads the bits of a number of type `from` as a number of type
 * `to`. The operand may hold its numbers in a wider type; the result is kept in type `as`. If all
 * dtypes of a module are widened, `from` and `to` stay: they say what the op does. A NaN of a
 * float below f32 has the bits of the type's standard NaN. */
static const Field bitcast_fields[] = {
	{"from", FIELD_ENUM, offsetof(BitcastAttr, from), dtype_names, false},
	{"to", FIELD_ENUM, offsetof(BitcastAttr, to), dtype_names, false},
	{"as", FIELD_DTYPE, offsetof(BitcastAttr, as), NULL, false},
	{0}};

static bool
is_kept_in(DType type, DType as)
{
	return type == as || (dtype_is_float(type) && dtype_is_float(as) &&
	                      dtype_info[as].bits >= dtype_info[type].bits);
}

static void
infer_bitcast(Infer *in)
{
	const BitcastAttr *a = in->attr;
	Type x = in->operand[0];

	if (dtype_info[a->from].bits != dtype_info[a->to].bits)
		infer_error(in, "%s has %d bits, %s has %d", dtype_names[a->from],
		            dtype_info[a->from].bits, dtype_names[a->to], dtype_info[a->to].bits);
	else if (!is_kept_in((DType)a->from, x->dtype))
		infer_error(in, "x is %s, not %s", dtype_info[x->dtype].name, dtype_names[a->from]);
	else if (!is_kept_in((DType)a->to, a->as))
		infer_error(in, "%s cannot keep a %s", dtype_info[a->as].name, dtype_names[a->to]);
	in->result[0] = type_with_dtype(in->m, x, a->as);
}

static void
eval_bitcast(Eval *ev)
{
	const BitcastAttr *a = ev->attr;
	const EvalTensor *x = &ev->operand[0];
	EvalTensor *y = &ev->result[0];
	DType from = (DType)a->from, to = (DType)a->to;
	uint64_t word = 0;

	for (int64_t i = 0; i < x->type->n; i++) {
		if (dtype_is_float(from))
			dtype_store_float(from, &word, 0, x->f[i]);
		else
			dtype_store_int(from, &word, 0, x->i[i]);
		if (dtype_is_float(to))
			y->f[i] = dtype_load_float(to, &word, 0);
		else
			y->i[i] = dtype_load_int(to, &word, 0);
	}
}

static LoopValue
scalar_bitcast(LoopBuilder *lb, const Node *n, const LoopValue *x)
{
	const BitcastAttr *a = n->attr;

	return lb_cast(lb, compute_type(a->as), lb_bitcast(lb, (DType)a->from, (DType)a->to, x[0]));
}

/* For subnormal numbers, rounding takes an addition and reading takes a product, except in
 * formats with the exponents of f32. */
static int64_t
flops_bitcast(const Node *n)
{
	const BitcastAttr *a = n->attr;
	const FloatFormat *from = float_format((DType)a->from), *to = float_format((DType)a->to);
	bool adds = from && (from->only_normal || from->bias != 127);
	bool multiplies = to && !to->only_normal && to->bias != 127;

	return node_operand(n, 0)->type->n * (adds + multiplies);
}

static const Sample bitcast_samples[] = {
	{"{from = f64, to = s64, as = s64}", "f64[12]"},
	{"{from = s64, to = f64, as = f64}", "s64[3]"},
	{"{from = f64, to = u64, as = u64}", "f64[1,0]"},
	{"{from = u64, to = s64, as = s64}", "u64[3]"},
	{"{from = f32, to = u32, as = u32}", "f64[12] eighths"},
	{"{from = u32, to = f32, as = f32}", "u32[3]"},
	{"{from = s32, to = u32, as = u32}", "s32[5]"},
	{"{from = f32, to = s32, as = s32}", "f64[3]"},
	{"{from = f16, to = s16, as = s16}", "f64[5] eighths"},
	{"{from = bf16, to = u16, as = u16}", "f64[5] eighths"},
	{"{from = s16, to = bf16, as = f32}", "s16[5]"},
	{"{from = u16, to = f16, as = f32}", "u16[5]"},
	{"{from = f8e4m3, to = s8, as = s8}", "f64[2,7] eighths"},
	{"{from = f8e5m2, to = u8, as = u8}", "f64[5] eighths"},
	{"{from = f8e4m3fnuz, to = bool, as = bool}", "f64[5] eighths"},
	{"{from = f8e5m2fnuz, to = s8, as = s8}", "f64[5] eighths"},
	{"{from = s8, to = f8e4m3, as = f32}", "s8[5]"},
	{"{from = u8, to = f8e5m2, as = f32}", "u8[5]"},
	{"{from = s8, to = f8e4m3fnuz, as = f32}", "s8[5]"},
	{"{from = u8, to = f8e5m2fnuz, as = f32}", "u8[5]"},
	{"{from = u8, to = e8m0, as = f32}", "u8[5]"},
	{"{from = e8m0, to = u8, as = u8}", "f64[5] eighths"},
	{"{from = bool, to = u8, as = u8}", "bool[3,7]"},
	{"{from = f4e2m1, to = u4, as = u4}", "f64[5] eighths"},
	{"{from = s4, to = f4e2m1, as = f32}", "s4[5]"},
	{"{from = u4, to = s4, as = s4}", "u4[5]"},
	{"{from = s2, to = u2, as = u2}", "s2[5]"},
	{"{from = u2, to = s2, as = s2}", "u2[7]"},
	{0}};

const OpRow op_bitcast = {.name = "bitcast",
                          .doc = "the bits of x, read as a number of another type",
                          .operands = {{"x", OPERAND_REQUIRED}},
                          .results = {"y"},
                          .fields = bitcast_fields,
                          .attr_size = sizeof(BitcastAttr),
                          .infer = infer_bitcast,
                          .eval = eval_bitcast,
                          .grad = grad_zero,
                          .fuse = FUSE_ELEMENTWISE,
                          .scalar = scalar_bitcast,
                          .flops = flops_bitcast,
                          .precision = PRECISION_FIXED,
                          .partition = {.factors = partition_elements, .doc = "every axis"},
                          .samples = bitcast_samples};

/* The op random: random numbers that depend only on the element's place, the step, the seed and
 * the stream. */
#include "ir/ops/control/counter.h"

/* ---- random {dtype, shape, stream, axis, rows}: seed, step, offset -> numbers of Philox 4x32-10
 * (ir/ops/control/counter.h). rows > 0: `axis` is the batch axis; it has `rows` rows of equal
 * length, and its first row is row `offset` of the step. rows = 0: no batch axis; every
 * micro-batch and every rank gets the same noise. How words become numbers:
 *
 *	f32   the upper 24 bits of word 0, as a number in [0, 1)
 *	f64   53 bits of words 0 and 1, as a number in [0, 1)
 *	u32   word 0
 *	u64   word 0 is the lower half, word 1 the upper half */
static const Field random_fields[] = {
	{"dtype", FIELD_DTYPE, offsetof(RandomAttr, dtype), NULL, false},
	{"shape", FIELD_INTS, offsetof(RandomAttr, shape), NULL, false},
	COUNTER_FIELDS(RandomAttr, false),
	{0}};

static void
random_infer(Infer *in)
{
	const RandomAttr *a = in->attr;
	bool known = a->dtype == F32 || a->dtype == F64 || a->dtype == U32 || a->dtype == U64;

	if (!known)
		infer_error(in, "random numbers are f32, f64, u32 or u64, not %s",
		            dtype_info[a->dtype].name);
	infer_counter(in, 0, &a->counter, &a->shape);
	if (!in->fault)
		infer_set(in, 0, a->dtype, &a->shape);
}

static double
uniform(DType d, Philox p)
{
	double high = (double)(d == F32 ? p.at[0] & 0xffffff00u : p.at[0]) * 0x1p-32;

	return d == F32 ? high : high + (double)(p.at[1] & 0xfffff800u) * 0x1p-64;
}

static void
random_eval(Eval *ev)
{
	const RandomAttr *a = ev->attr;
	EvalTensor *y = &ev->result[0];
	Draws draws = eval_draws(ev, 0, &a->counter, &a->shape);

	for (IndexWalk w = index_walk(y->type); w.ok; index_walk_next(&w)) {
		Philox p = draw(&draws, w.at);
		if (dtype_is_float(a->dtype))
			y->f[w.flat] = uniform(a->dtype, p);
		else
			y->i[w.flat] = (int64_t)(p.at[0] |
			                         (a->dtype == U64 ? (uint64_t)p.at[1] << 32 : 0));
	}
}

/* The bits of a word under a mask, as a float times `scale`. */
static LoopValue
fraction(LoopBuilder *lb, DType d, LoopValue word, uint32_t mask, double scale)
{
	LoopValue bits = lb_binary(lb, LOOP_and, word, lb_int(lb, U32, mask));

	return lb_binary(lb, LOOP_mul, lb_cast(lb, d, bits), lb_float(lb, d, scale));
}

static LoopValue
random_element(Lower *lw, const Node *n, const Index *at)
{
	const RandomAttr *a = n->attr;
	LoopBuilder *lb = lw->lb;
	LoopValue words = lower_draw(lw, n, 0, &a->counter, at);

	if (a->dtype == U64)
		return words;
	LoopValue word = lb_cast(lb, U32, words);
	if (a->dtype == U32)
		return word;
	if (a->dtype == F32)
		return fraction(lb, F32, word, 0xffffff00u, 0x1p-32);
	LoopValue upper = lb_binary(lb, LOOP_div, words, lb_int(lb, U64, 1ll << 32));
	return lb_binary(lb, LOOP_add, fraction(lb, F64, word, 0xffffffffu, 0x1p-32),
	                 fraction(lb, F64, lb_cast(lb, U32, upper), 0xfffff800u, 0x1p-64));
}

static int64_t
random_flops(const Node *n)
{
	static const int per_element[N_DTYPES] = {[F32] = 1, [F64] = 3};

	return node_result(n, 0)->type->n * per_element[node_result(n, 0)->type->dtype];
}

static const Sample random_samples[] = {
	{"{dtype = f32, shape = [3,5], stream = 7}", "u64[] fixed, u64[], u64[]"},
	{"{dtype = f64, shape = [2,6,3], stream = -1, axis = 1, rows = 3}",
         "u64[], u64[], u64[] large"},
	{"{dtype = u32, shape = [12], stream = 7, rows = 12}", "u64[], u64[] large, u64[]"},
	{"{dtype = u64, shape = [1,1], stream = 7}", "u64[] large, u64[], u64[]"},
	{"{dtype = f32, shape = [4,1,3], stream = 9, rows = 2}", "u64[], u64[], u64[]"},
	{"{dtype = f64, shape = [0,2], stream = 7, rows = 1, axis = 1}", "u64[], u64[], u64[]"},
	{"{dtype = f32, shape = [], stream = 7}", "u64[], u64[], u64[]"},
	{0}};
const OpRow op_random = {
	COLUMNS(random, RandomAttr, random_fields, grad_zero, "random numbers, by Philox 4x32-10"),
	.operands = {{"seed", OPERAND_REQUIRED},
                     {"step", OPERAND_REQUIRED},
                     {"offset", OPERAND_REQUIRED}},
	.results = {"y"},
	.fuse = FUSE_INDEX,
	.element = random_element,
	.weight = 60,
	.flops = random_flops,
	.precision = PRECISION_FIXED,
	.partition = {.factors = partition_none,
                      .doc = "no axis: a rank selects its rows by `offset`"},
};

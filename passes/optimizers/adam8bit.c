/* Adam and AdamW with 8-bit moments, as bitsandbytes (Dettmers et al., arXiv:2110.02861;
 * csrc/kernels.cu, blockwise) and, with torchao=true, as torchao (optim/adam.py,
 * subclass_8bit.py).
 *
 * A block of 256 elements of a moment is stored as 8-bit codes (indices into a table of 256
 * numbers, the dynamic map) and the block's largest magnitude in f32. Both moments together take
 * 2.03 bytes per element of a parameter. Parameters of fewer than 4096 elements have f32 moments;
 * with torchao, so have parameters whose size is not a multiple of a block.
 *
 * With m and v as read from codes, c1 = 1 - beta1^t, c2 = 1 - beta2^t:
 *
 *	m = beta1 m + (1 - beta1) g
 *	v = beta2 v + (1 - beta2) g^2
 *	p = p - lr sqrt(c2)/c1 m / (sqrt(v) + eps sqrt(c2))
 *	p = p (1 - lr wd)
 *	code of m = the nearest to m/max|m|, moved by one if its sign differs from m's
 *	code of v = the nearest to v/max v
 *
 * Weight decay comes after the step, as written here; but if moments are f32, or with torchao, it
 * comes before the step. torchao's adam8bit adds weight decay to the gradient. adam8bit and
 * adamw8bit of bitsandbytes differ only in the default weight decay. */
#include "passes/pass.h"

#include <math.h>
#include <string.h>

typedef struct {
	bool torchao;
} Adam8Settings;

enum { FIRST, SECOND, FIRST_MAX, SECOND_MAX };
enum { BLOCK = 256, LEAST = 4096 };

static const PassOption options[] = {{"torchao", "codes and decay as torchao's, not bitsandbytes'",
                                      OPTION_BOOL, offsetof(Adam8Settings, torchao)},
                                     {0}};

static bool
is_quantized(const void *settings, Type param)
{
	const Adam8Settings *s = settings;

	return param->n >= LEAST && (!s->torchao || param->n % BLOCK == 0);
}

static int64_t
blocks_of(Type param)
{
	return (param->n + BLOCK - 1) / BLOCK;
}

/* With blocks: codes u8[blocks,256] and magnitudes f32[blocks]. Without blocks: only the two moments. */
static Type
moment_type(Module *m, const void *settings, Type param, int moment)
{
	int64_t dims[] = {blocks_of(param), BLOCK};
	bool codes = moment == FIRST || moment == SECOND;

	if (!is_quantized(settings, param))
		return codes ? type_new(m, param->dtype, 1, &param->n) : NULL;
	return codes ? type_new(m, U8, 2, dims) : type_new(m, param->dtype, 1, dims);
}

/* ---- codes */
/* x in blocks, with zeros after its last element. */
static Value *
in_blocks(Builder *b, Value *x)
{
	int64_t blocks = blocks_of(x->type), behind = blocks * BLOCK - x->type->n;
	Ints none = {.n = 1}, high = {.n = 1, .at = {behind}};

	if (behind)
		x = b_pad(b, x, none, high, none, 0);
	return b_reshape(b, x, (Ints){.n = 2, .at = {blocks, BLOCK}});
}

static Value *
out_of_blocks(Builder *b, Value *x, Type param)
{
	x = b_reshape(b, x, (Ints){.n = 1, .at = {x->type->n}});
	return x->type->n == param->n ? x : b_slice_axis(b, x, 0, 0, param->n);
}

static Value *
table(Builder *b, const float *at, DType d)
{
	int64_t n = DYNAMIC_MAP;
	const Tensor *t = tensor_new(b->m, type_new(b->m, F32, 1, &n), at);

	return b_constant(b, tensor_convert(b->m, t, d));
}

static Value *
lookup(Builder *b, Value *numbers, Value *indices)
{
	return build(b, OP_lookup, 2, (Value *[]){numbers, indices}, NULL);
}

/* A number per block, repeated for the block's elements. */
static Value *
for_elements(Builder *b, Value *of_blocks)
{
	Ints shape = {.n = 2, .at = {of_blocks->type->n, BLOCK}};

	return b_broadcast(b, of_blocks, shape, (Ints){.n = 1, .at = {0}});
}

static Value *
dequantized(Builder *b, Value *codes, Value *sizes, bool is_signed)
{
	float map[DYNAMIC_MAP];

	dynamic_map(is_signed, map);
	Value *numbers = lookup(b, table(b, map, sizes->type->dtype), b_cast(b, codes, S32));
	return b_binary(b, OP_mul, numbers, for_elements(b, sizes));
}

/* Finds by binary search in the ascending table `at` the last index i with x > at[i]; if `above` is
 * OP_ge, with x >= at[i]. 0: no such index above 0. */
static Value *
search(Builder *b, Value *x, const float *at, OpKind above)
{
	Type index = type_with_dtype(b->m, x->type, S32);
	Value *numbers = table(b, at, x->type->dtype), *found = b_splat(b, index, 0);

	for (int step = DYNAMIC_MAP / 2; step; step /= 2) {
		Value *next = b_binary(b, OP_add, found, b_splat(b, index, step));
		Value *is_above = b_binary(b, above, x, lookup(b, numbers, next));
		found = b_select(b, is_above, next, found);
	}
	return found;
}

/* The nearest code; of two equally near, the lower code. If the code's number has another sign than x, the next code
 * towards x. */
static Value *
nearest(Builder *b, Value *x, bool is_signed)
{
	float map[DYNAMIC_MAP],
		from[DYNAMIC_MAP]; /* from[i]: above this number, code i is nearer than code i - 1 */
	Type index = type_with_dtype(b->m, x->type, S32);
	Value *zero = b_splat(b, x->type, 0), *one = b_splat(b, index, 1);

	dynamic_map(is_signed, map);
	from[0] = -INFINITY;
	for (int i = 1; i < DYNAMIC_MAP; i++)
		from[i] = (map[i - 1] + map[i]) / 2;
	Value *code = search(b, x, from, OP_gt);
	if (!is_signed)
		return code;
	Value *number = lookup(b, table(b, map, x->type->dtype), code);
	Value *is_less = b_binary(b, OP_lt, x, zero), *has_less = b_binary(b, OP_lt, number, zero);
	Value *too_low = b_binary(b, OP_and, b_binary(b, OP_gt, x, zero), has_less);
	Value *too_high = b_binary(b, OP_and, is_less, b_unary(b, OP_not, has_less));
	code = b_select(b, too_low, b_binary(b, OP_add, code, one), code);
	return b_select(b, too_high, b_binary(b, OP_sub, code, one), code);
}

/* torchao: the last code whose number is not above x, or the next code if x is at least half-way to it. */
static Value *
nearest_of_torchao(Builder *b, Value *x, bool is_signed)
{
	float map[DYNAMIC_MAP];
	Type index = type_with_dtype(b->m, x->type, S32);

	dynamic_map(is_signed, map);
	Value *numbers = table(b, map, x->type->dtype);
	Value *code = search(b, x, map, OP_ge), *one = b_splat(b, index, 1);
	Value *next = b_binary(b, OP_min, b_binary(b, OP_add, code, one),
	                       b_splat(b, index, DYNAMIC_MAP - 1));
	Value *low = lookup(b, numbers, code), *high = lookup(b, numbers, next);
	Value *half = b_binary(b, OP_mul, b_binary(b, OP_sub, high, low), b_splat(b, x->type, 0.5));
	Value *up = b_binary(b, OP_ge, b_binary(b, OP_sub, x, low), half);

	return b_select(b, up, next, code);
}

/* The codes and magnitudes of x, which is in blocks. */
static void
quantize(Update *u, Value *x, bool is_signed, Value **codes, Value **sizes)
{
	Builder *b = u->b;
	bool torchao = ((const Adam8Settings *)u->settings)->torchao;
	Value *largest = b_reduce(b, REDUCE_MAX, b_unary(b, OP_abs, x), (Ints){.n = 1, .at = {1}});
	Value *zero = b_splat(b, largest->type, 0), *divisor;

	if (torchao) {
		divisor = largest = b_binary(b, OP_max, largest, b_splat(b, largest->type, 1e-12));
	} else {
		Value *none = b_binary(b, OP_eq, largest, zero);
		divisor = b_select(b, none, b_splat(b, largest->type, 1), largest);
	}
	x = b_binary(b, OP_div, x, for_elements(b, divisor));
	x = torchao ? nearest_of_torchao(b, x, is_signed) : nearest(b, x, is_signed);
	*codes = b_cast(b, x, U8);
	*sizes = largest;
}

/* ---- the update */
static Value *
like(Builder *b, Value *scalar, Value *v)
{
	return b_broadcast(b, b_cast(b, scalar, v->type->dtype), ints_of_type(v->type), (Ints){0});
}

/* m + (1 - beta)(x y - m), as torchao computes it. y may be NULL: then m + (1 - beta)(x - m). */
static Value *
lerp(Update *u, ScalarIndex beta, Value *m, Value *x, Value *y)
{
	Builder *b = u->b;
	Value *rest = b_binary(b, OP_sub, update_number(u, 1), update_scalar(u, beta));

	x = y ? b_binary(b, OP_mul, x, y) : x;
	return b_binary(b, OP_add, m,
	                b_binary(b, OP_mul, like(b, rest, m), b_binary(b, OP_sub, x, m)));
}

/* beta m + (1 - beta) x y, as bitsandbytes computes it: 1 - beta in m's type. y may be NULL: then
 * beta m + (1 - beta) x. */
static Value *
average(Update *u, ScalarIndex index, Value *m, Value *x, Value *y)
{
	Builder *b = u->b;
	Value *beta = b_cast(b, update_scalar(u, index), m->type->dtype);
	Value *rest = b_binary(b, OP_sub, b_splat(b, beta->type, 1), beta);
	Value *new = b_binary(b, OP_mul, like(b, rest, m), x);

	new = y ? b_binary(b, OP_mul, new, y) : new;
	return b_binary(b, OP_add, b_binary(b, OP_mul, m, like(b, beta, m)), new);
}

/* p - lr sqrt(c2)/c1 m / (sqrt(v) + eps sqrt(c2)) */
static Value *
step(Update *u, Value *p, Value *m, Value *v)
{
	Builder *b = u->b;
	Value *root = b_unary(b, OP_sqrt, update_bias_correction(u, SCALAR_BETA2));
	Value *rate = b_binary(b, OP_div, b_binary(b, OP_mul, u->lr, root),
	                       update_bias_correction(u, SCALAR_BETA1));
	Value *eps = b_binary(b, OP_mul, update_scalar(u, SCALAR_EPS), root);
	Value *d = b_binary(b, OP_add, b_unary(b, OP_sqrt, v), update_spread(u, eps));

	return b_binary(b, OP_sub, p, update_times(u, rate, b_binary(b, OP_div, m, d)));
}

/* (1 - lr wd) p */
static Value *
shrunk(Update *u, Value *p)
{
	Value *less = b_binary(u->b, OP_mul, u->lr, u->decay);

	return update_times(u, b_binary(u->b, OP_sub, update_number(u, 1), less), p);
}

static void
update(Update *u, bool in_gradient)
{
	Builder *b = u->b;
	bool torchao = ((const Adam8Settings *)u->settings)->torchao,
	     is_coded = u->moment[FIRST_MAX];
	bool behind = is_coded && !torchao;
	Value *g = torchao && in_gradient ? update_decayed(u) : u->grad, *p = u->param;
	Value *m = u->moment[FIRST], *v = u->moment[SECOND], *of_blocks = g;

	if (is_coded) {
		m = dequantized(b, m, u->moment[FIRST_MAX], true);
		v = dequantized(b, v, u->moment[SECOND_MAX], false);
		of_blocks = in_blocks(b, g);
	}
	m = (torchao ? lerp : average)(u, SCALAR_BETA1, m, of_blocks, NULL);
	v = (torchao ? lerp : average)(u, SCALAR_BETA2, v, of_blocks, of_blocks);
	u->new_moment[FIRST] = m;
	u->new_moment[SECOND] = v;
	if (is_coded) {
		quantize(u, m, true, &u->new_moment[FIRST], &u->new_moment[FIRST_MAX]);
		quantize(u, v, false, &u->new_moment[SECOND], &u->new_moment[SECOND_MAX]);
		m = out_of_blocks(b, m, p->type);
		v = out_of_blocks(b, v, p->type);
	}
	if (!behind && !(torchao && in_gradient))
		p = shrunk(u, p);
	p = step(u, p, m, v);
	u->new_param = behind ? shrunk(u, p) : p;
}

static void
adam8bit_update(Update *u)
{
	update(u, true);
}

static void
adamw8bit_update(Update *u)
{
	update(u, false);
}

#define ADAM8                                                                        \
	.moments = {"exp_avg", "exp_avg_sq", "exp_avg_absmax", "exp_avg_sq_absmax"}, \
	.moment_type = moment_type, .options = options, .options_size = sizeof(Adam8Settings)
const OptimizerRow optimizer_adam8bit = {
	.name = "adam8bit",
	.doc = "Adam with moments of 8 bits",
	.defaults = "lr=0.001 beta1=0.9 beta2=0.999 eps=1e-08 weight_decay=0",
	.update = adam8bit_update,
	ADAM8};
const OptimizerRow optimizer_adamw8bit = {
	.name = "adamw8bit",
	.doc = "AdamW with moments of 8 bits",
	.defaults = "lr=0.001 beta1=0.9 beta2=0.999 eps=1e-08 weight_decay=0.01",
	.update = adamw8bit_update,
	ADAM8};

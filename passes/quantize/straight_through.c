/* Lets gradients flow through quantized values. No gradient flows through integers (codes), so
 * codes are replaced by floats that hold the same integers. Straight through: for the gradient,
 * rounding counts as the identity (Bengio et al. 2013, arXiv:1308.3432). For example, if @w is
 * trained, and a file quantizes and dequantizes it:
 *
 *	%1 = quantize @w, %s {to = s8} : s8[8,8]
 *	%2 = cast %1 {to = f32}                   ->    %3 = fake_quantize @w, %s {to = s8} : f32[8,8]
 *	%3 = mul %2, %s
 *
 * Other nodes may lie between quantize and the floats, such as a maximum of windows or a product
 * of codes. They then compute with floats instead of codes:
 *
 *	%1 = quantize %x, %s, %z {to = u8}              %r = div %x, %s
 *	%2 = pool %1 {kind = max}                 ->    %1 = add (fake_quantize %r, 1, %z {to = u8}), %z
 *	%3 = cast %2 {to = f32}                         %3 = pool %1 {kind = max}
 *
 * Trained scales (`trainable` says which) get a gradient. The options learning = lsq (Esser et
 * al. 2019, arXiv:1902.08153) and learning = torch differ in which numbers count as inside the
 * range. The gradient is multiplied by a factor: scale_grad = lsq: 1 / sqrt(N Q), inv_n: 1 / N,
 * none: 1. N is the number of elements that share a scale (for an activation: elements of one
 * row), Q the largest code. A learned scale below 2^-23 is read as 2^-23.
 *
 * Values stay the same bit for bit, with one exception: sums of products of codes, which are
 * exact in s32, are rounded in f32 if they exceed 2^24. Codes from which no float is computed
 * stay integers. Time: linear in nodes. */
#include "passes/pass.h"

#include <math.h>
#include <string.h>

typedef struct {
	Pass *p;
	Module *m;
	Function *f;
	IntMap *floats;     /* by id of a value of codes: the floats that hold them */
	IntMap *quantizers; /* by id of such floats: the node that made the codes */
	IntMap *learned;    /* ids of the values that are learned scales */
	IntMap *holding;    /* by id of a value of floats that hold codes: 1 + DType of the codes */
} Through;

static Value *
floats_of(const Through *t, const Value *v)
{
	uint64_t found;

	return v && intmap_get(t->floats, v->id, &found) ? (Value *)(uintptr_t)found : NULL;
}

static void
set_floats(Through *t, const Value *codes, Value *floats)
{
	intmap_put(t->floats, codes->id, (uint64_t)(uintptr_t)floats);
}

static Builder
before(const Through *t, Node *n)
{
	return (Builder){.m = t->m, .f = t->f, .before = n, .loc = n->loc, .phase = n->phase};
}

static Value *
operand_or_null(const Node *n, int i)
{
	return i < n->n_operands ? node_operand(n, i) : NULL;
}

/* ---- learned scales */
enum { QUANTIZE_X, QUANTIZE_SCALE, QUANTIZE_ZERO };

static const StraightThroughOptions *
options_of(const Through *t)
{
	return t->p->options;
}

static bool
is_word(const char *text, const char *word)
{
	return text && strcmp(text, word) == 0;
}

/* Puts max(scale, 2^-23) in place of a trained scale. Below 2^-23 the gradient still passes, so that later steps can
 * raise a scale that became too small. */
static void
bound_scale(Through *t, Value *scale)
{
	Builder b = before(t, scale->node ? scale->node->next : t->f->first);
	b.loc = scale->node ? scale->node->loc : scale->state->loc;
	Value *least = b_splat(&b, scale->type, LEAST_SCALE);
	Value *below = b_binary(&b, OP_lt, scale, least);
	Value *here = b_unary(&b, OP_stop_gradient, scale);
	Value *none = b_binary(&b, OP_sub, scale, here); /* 0, with the gradient of scale */
	Value *kept = b_select(&b, below, b_binary(&b, OP_add, least, none), scale);

	value_replace_uses(scale, kept);
	node_set_operand(below->node, 0, scale);
	node_set_operand(here->node, 0, scale);
	node_set_operand(none->node, 0, scale);
	node_set_operand(kept->node, 2, scale);
	intmap_put(t->learned, kept->id, 1);
	t->p->changed = true;
}

static void
bound_scales(Through *t)
{
	for_each_node(t->f, n) {
		Value *scale = scale_of_codes(n);
		if (scale && scale_parameter(scale)->trainable)
			bound_scale(t, scale);
	}
}

/* The number of rows of the function's first input. */
static int64_t
rows_of(const Function *f)
{
	for (int i = 0; i < f->params.n; i++)
		if (f->params.at[i]->param == PARAM_INPUT && f->params.at[i]->type->rank)
			return f->params.at[i]->type->dims[0];
	return 1;
}

static double
scale_grad(const Through *t, DType to, Value *x, int64_t n_scales)
{
	const char *rule = options_of(t)->scale_grad;
	double low, high, n = (double)x->type->n / (double)n_scales;

	dtype_range(to, &low, &high);
	if (behind_views(x)->kind != VALUE_STATE)
		n /= (double)rows_of(t->f);
	if (is_word(rule, "none") || !(n > 0))
		return 1;
	return is_word(rule, "inv_n") ? 1 / n : 1 / sqrt(n * high);
}

/* ---- quantize */
/* scale: the scale of x's elements; `operands` may have the scale 1 instead, and x divided by scale. */
static Value *
fake_quantize(const Through *t, Builder *b, const QuantizeAttr *a, Value *x, Value *scale,
              Value *operands[3])
{
	QuantizeAttr attr = {.to = a->to, .division = a->division};
	Value *root = behind_views(scale);

	if (intmap_get(t->learned, root->id, NULL)) {
		bool is_lsq = is_word(options_of(t)->learning, "lsq");
		attr.clip = is_lsq ? CLIP_REAL : CLIP_ROUNDED;
		attr.scale_grad = scale_grad(t, a->to, x, root->type->n);
	}
	return build(b, OP_fake_quantize, operands[QUANTIZE_ZERO] ? 3 : 2, operands, &attr);
}

static void
open_quantize(Through *t, Node *n)
{
	const QuantizeAttr *a = n->attr;
	Builder b = before(t, n);
	Value *x = node_operand(n, QUANTIZE_X), *scale = node_operand(n, QUANTIZE_SCALE);
	Value *zero = operand_or_null(n, QUANTIZE_ZERO), *one = b_splat(&b, x->type, 1);

	/* With a scale of 0 all numbers become 0, whatever their codes are. */
	Value *is_none = b_binary(&b, OP_eq, scale, b_splat(&b, x->type, 0));
	Value *by = b_select(&b, is_none, one, scale);
	Value *ratio = a->division == DIVISION_EXACT
	                       ? b_binary(&b, OP_div, x, by)
	                       : b_binary(&b, OP_mul, x, b_binary(&b, OP_div, one, by));
	Value *operands[] = {ratio, one, zero};
	Value *code = fake_quantize(t, &b, &(QuantizeAttr){.to = a->to}, x, scale, operands);
	if (zero)
		code = b_binary(&b, OP_add, code, b_unary(&b, OP_round, zero));
	set_floats(t, node_result(n, 0), code);
	intmap_put(t->quantizers, code->id, (uint64_t)(uintptr_t)n);
}

/* If n is the product (code - zero) * scale, with the scale and zero point from which the codes
 * were made: replaces n by one fake_quantize, and returns true. */
static bool
close_quantize(Through *t, Node *n)
{
	uint64_t found;

	for (int i = 0; n->op == OP_mul && i < 2; i++) {
		Value *code = node_operand(n, i), *scale = node_operand(n, !i), *zero = NULL;
		if (code->node && code->node->op == OP_sub) {
			zero = node_operand(code->node, 1);
			code = node_operand(code->node, 0);
		}
		if (!intmap_get(t->quantizers, code->id, &found))
			continue;
		const Node *q = (const Node *)(uintptr_t)found;
		if (node_operand(q, QUANTIZE_SCALE) != scale ||
		    operand_or_null(q, QUANTIZE_ZERO) != zero)
			continue;
		Builder b = before(t, n);
		Value *x = node_operand(q, QUANTIZE_X), *operands[] = {x, scale, zero};
		value_replace_uses(node_result(n, 0),
		                   fake_quantize(t, &b, q->attr, x, scale, operands));
		t->p->changed = true;
		return true;
	}
	return false;
}

/* ---- between codes and floats */
static bool
is_integer(const Value *v)
{
	DTypeClass class = dtype_info[v->type->dtype].class;

	return class == CLASS_SIGNED || class == CLASS_UNSIGNED;
}

/* Does type `to` hold all integers of type `from`? */
static bool
holds(DType to, DType from)
{
	int to_bits = dtype_info[to].bits - (dtype_info[to].class == CLASS_SIGNED);
	int from_bits = dtype_info[from].bits - (dtype_info[from].class == CLASS_SIGNED);
	bool sign = dtype_info[from].class == CLASS_SIGNED && dtype_info[to].class != CLASS_SIGNED;

	return !sign && to_bits >= from_bits;
}

static void
follow_cast(Through *t, Node *n, Value *floats)
{
	Value *y = node_result(n, 0);
	DType to = y->type->dtype;

	if (dtype_is_float(to)) {
		Builder b = before(t, n);
		Value *as = b_cast(&b, floats, to);
		intmap_put(t->holding, as->id, 1 + node_operand(n, 0)->type->dtype);
		value_replace_uses(y, as);
		t->p->changed = true;
	} else if (is_integer(y) && holds(to, node_operand(n, 0)->type->dtype)) {
		set_floats(t, y, floats);
	}
}

/* May operand i be floats that hold codes? An index may not, for example. */
static bool
takes_floats(const Node *n, int i)
{
	return op_row(n)->as_floats >> (i < MAX_OPERANDS ? i : MAX_OPERANDS - 1) & 1;
}

static bool
may_follow(const Node *n)
{
	const Value *y = node_result(n, 0);

	return op_row(n)->as_floats && n->n_results == 1 && is_integer(y) &&
	       (!op_row(n)->leaves_range || dtype_info[y->type->dtype].bits >= 32);
}

/* Builds n with floats instead of codes. Other integers of the codes' type become floats, too. */
static void
follow(Through *t, Node *n, DType type, DType as)
{
	Builder b = before(t, n);
	Value **operands = NEW_ARRAY(t->p->scratch, Value *, n->n_operands);

	for (int i = 0; i < n->n_operands; i++) {
		Value *v = node_operand(n, i), *floats = floats_of(t, v);
		bool becomes = v && v->type->dtype == type && takes_floats(n, i);
		operands[i] = !becomes ? v : b_cast(&b, floats ? floats : v, as);
	}
	set_floats(t, node_result(n, 0), b_retyped(&b, n, operands));
}

/* Follows floats that hold codes through ops whose results are codes, such as a maximum over
 * windows. A cast that makes codes of the floats again is noted, so that its readers read the
 * floats. */
static void
follow_floats(Through *t, Node *n)
{
	uint64_t held;

	if (n->n_operands != 1 || n->n_results != 1 ||
	    !intmap_get(t->holding, node_operand(n, 0)->id, &held))
		return;
	Value *x = node_operand(n, 0), *y = node_result(n, 0);
	if (n->op == OP_cast && is_integer(y) && holds(y->type->dtype, (DType)(held - 1)))
		set_floats(t, y, x);
	if (takes_floats(n, 0) && !op_row(n)->leaves_range)
		intmap_put(t->holding, y->id, held);
}

static void
visit(Through *t, Node *n)
{
	const Value *codes = NULL;
	bool takes = false;

	if (n->op == OP_quantize)
		open_quantize(t, n);
	if (close_quantize(t, n))
		return;
	for (int i = 0; i < n->n_operands && !codes; i++) {
		codes = floats_of(t, node_operand(n, i)) ? node_operand(n, i) : NULL;
		takes = takes_floats(n, i);
	}
	if (!codes)
		follow_floats(t, n);
	else if (n->op == OP_cast)
		follow_cast(t, n, floats_of(t, codes));
	else if (takes && may_follow(n))
		follow(t, n, codes->type->dtype, floats_of(t, codes)->type->dtype);
}

static bool
check_options(Pass *p)
{
	const StraightThroughOptions *o = p->options;
	bool modes = !o->learning || is_word(o->learning, "none") || is_word(o->learning, "lsq") ||
	             is_word(o->learning, "torch");
	bool rules = !o->scale_grad || is_word(o->scale_grad, "none") ||
	             is_word(o->scale_grad, "inv_n") || is_word(o->scale_grad, "lsq");

	if (!modes)
		diag_error(p->diag, EXIT_USAGE, "--scale-learning=%s: must be none, lsq or torch",
		           o->learning);
	if (!rules)
		diag_error(p->diag, EXIT_USAGE,
		           "--scale-learning: scale-grad=%s: must be none, inv_n or lsq",
		           o->scale_grad);
	return modes && rules;
}

static bool
run_straight_through(Pass *p, Module *m)
{
	if (!check_options(p))
		return false;
	for_each_function(m, f) {
		if (f->kind == FUNCTION_FUSED)
			continue;
		Through t = {.p = p,
		             .m = m,
		             .f = f,
		             .floats = intmap_new(p->scratch),
		             .quantizers = intmap_new(p->scratch),
		             .learned = intmap_new(p->scratch),
		             .holding = intmap_new(p->scratch)};
		bound_scales(&t);
		for_each_node(f, n)
			visit(&t, n);
		function_drop_unread(f);
	}
	return true;
}

static const PassOption straight_through_options[] = {
	{"learning", "gradient of trained scales: lsq, torch", OPTION_STRING,
         offsetof(StraightThroughOptions, learning)},
	{"scale_grad", "factor of a scale's gradient: lsq, inv_n, none", OPTION_STRING,
         offsetof(StraightThroughOptions, scale_grad)},
	{0}};
const PassRow pass_straight_through = {.name = "straight_through",
                                       .help = "floats in place of codes, so that gradients pass",
                                       .takes = STAGE_FORWARD,
                                       .leaves = STAGE_ANY,
                                       .when = PASS_WITH_LOSS,
                                       .options = straight_through_options,
                                       .options_size = sizeof(StraightThroughOptions),
                                       .run = run_straight_through};

/* Sets the type of every float in the program: f32 (or the file's wider type), or f64 everywhere,
 * for checks of the arithmetic. Casts between floats follow, so that an f64 program computes in
 * one type. A cast to a float of fewer than 16 bits still rounds: the result is rounded, then
 * widened again. For gradients, such a cast counts as the identity. Time: linear in nodes. */
#include "passes/pass.h"

static DType
map_dtype(DType d, DType to)
{
	return !dtype_is_float(d) || (d == F64 && to == F32) ? d : to;
}

static const Tensor *
convert_tensor(Module *m, const Tensor *t, DType to)
{
	return t ? tensor_convert(m, t, map_dtype(t->type->dtype, to)) : NULL;
}

static void
convert_attrs(Module *m, Node *n, DType to)
{
	for (const Field *f = op_row(n)->fields; f && f->name; f++) {
		char *at = (char *)n->attr + f->offset;
		if (f->kind == FIELD_DTYPE)
			*(DType *)at = map_dtype(*(DType *)at, to);
		else if (f->kind == FIELD_DTYPE_IF_ANY && *(int *)at)
			*(int *)at = 1 + (int)map_dtype((DType)(*(int *)at - 1), to);
		else if (f->kind == FIELD_TENSOR)
			*(const Tensor **)at = convert_tensor(m, *(const Tensor **)at, to);
	}
}

/* Lets products of f32 round their operands. */
static void
allow_tf32(Node *n)
{
	if (op_row(n)->allow_tf32 && node_operand(n, 0)->type->dtype == F32)
		*op_row(n)->allow_tf32(n->attr) = true;
}

static void
convert_value(Module *m, Value *v, DType to)
{
	v->type = type_with_dtype(m, v->type, map_dtype(v->type->dtype, to));
}

/* ---- casts that round: f8, f6, f4 */
static bool
rounds(const Node *n)
{
	const CastAttr *a = n->op == OP_cast ? n->attr : NULL;

	return a && dtype_is_float(a->to) && dtype_info[a->to].bits < 16;
}

/* Makes @round.f8e4m3(x): x rounded as the attributes say, then widened to type `to`. */
static Function *
rounding(Module *m, Loc loc, Type x_type, const CastAttr *a, DType to)
{
	const char *name = arena_printf(m->arena, "round.%s", dtype_info[a->to].name);
	Function *f = function_new(m, module_fresh_name(m, name));
	Builder b = {.m = m, .f = f, .loc = loc};
	Value *x = function_param(f, x_type, "x");
	Value *y = b_cast(&b, build(&b, OP_cast, 1, &x, a), to);

	b_return(&b, 1, &y);
	return f;
}

/* Makes the gradient of the rounding: x gets the gradient of the rounded value. */
static Function *
passing(Module *m, Loc loc, Type x_type, Type y_type)
{
	Function *f = function_new(m, module_fresh_name(m, "round.grad"));
	Builder b = {.m = m, .f = f, .loc = loc};
	Value *dy = function_param_as(f, y_type, "dy", PARAM_COTANGENT, 0);
	Value *dx = b_cast(&b, dy, x_type->dtype);

	b_return(&b, 1, &dx);
	return f;
}

static void
keep_rounding(Module *m, Node *n, DType to)
{
	Value *x = node_operand(n, 0), *y = node_result(n, 0), *wide;
	Type type = type_with_dtype(m, y->type, to);
	Builder b = {.m = m, .f = n->function, .before = n, .loc = n->loc, .phase = n->phase};

	if (n->n_operands == 1 && dtype_is_float(x->type->dtype)) {
		CallAttr call = {rounding(m, n->loc, x->type, n->attr, to),
		                 passing(m, n->loc, x->type, type)};
		wide = build(&b, OP_call, 1, &x, &call);
	} else {
		Value **operands = NEW_ARRAY(m->arena, Value *, n->n_operands);
		for (int i = 0; i < n->n_operands; i++)
			operands[i] = node_operand(n, i);
		wide = b_cast(&b, build(&b, OP_cast, n->n_operands, operands, n->attr), to);
	}
	value_replace_uses(y, wide);
	node_erase(n);
}

static void
convert_function(Module *m, Function *f, DType to, bool tf32)
{
	for (int i = 0; i < f->params.n; i++)
		convert_value(m, f->params.at[i], to);
	for (int i = 0; i < f->states.n; i++)
		f->states.at[i]->type = f->states.at[i]->state->type;
	for_each_node(f, n) {
		if (rounds(n)) {
			keep_rounding(m, n, to);
			continue;
		}
		convert_attrs(m, n, to);
		for (int i = 0; i < n->n_results; i++)
			convert_value(m, node_result(n, i), to);
		if (tf32)
			allow_tf32(n);
	}
}

/* Only the pass `mixed` gives products another type. */
static bool
is_uniform(const Recipe *recipe)
{
	return !recipe_is_mixed(recipe);
}

static bool
run_precision(Pass *p, Module *m)
{
	const PrecisionOptions *o = p->options;
	const Recipe *recipe = recipe_of_option(p, o->to, is_uniform);

	if (!recipe)
		return false;
	DType to = recipe->floats;
	for (int i = 0; i < m->states.n; i++) {
		State *s = m->states.at[i];
		s->type = type_with_dtype(m, s->type, map_dtype(s->type->dtype, to));
		s->data = convert_tensor(m, s->data, to);
	}
	int n = m->functions.n; /* functions that keep_rounding adds are converted already */
	for (int i = 0; i < n; i++)
		convert_function(m, m->functions.at[i], to, recipe->allow_tf32);
	p->changed = true;
	return true;
}

static const PassOption precision_options[] = {{"to", "the recipe of --precision: f32, f64 ...",
                                                OPTION_STRING, offsetof(PrecisionOptions, to)},
                                               {0}};
const PassRow pass_precision = {.name = "precision",
                                .help = "the type of every float",
                                .takes = STAGE_FORWARD,
                                .leaves = STAGE_ANY,
                                .options = precision_options,
                                .options_size = sizeof(PrecisionOptions),
                                .run = run_precision};

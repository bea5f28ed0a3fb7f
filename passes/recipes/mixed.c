/* Mixed precision: products take 16-bit operands and give 16-bit results, while their sums stay
 * f32 inside. Cheap nodes after a product stay in 16 bits. All other values are f32, including
 * the weights. For example, with to=bf16, and w and bias f32:
 *
 *	%1 = dot %x, %w : f32[8,64]              %1 = cast %x {to = bf16}          loc cast("fc1")
 *	                                         %2 = cast %w {to = bf16}          loc cast("fc1")
 *	                                  ->     %3 = dot %1, %2 : bf16[8,64]
 *	%2 = add %1, %bias                       %4 = add %3, cast(%bias)
 *	%3 = exp %2                              %5 = exp cast(%4) : f32[8,64]
 *
 * The recipe decides, as a rule by the column `precision` of an op's row. Here `to` is the recipe's type of
 * products:
 *
 *	low     its operands become `to`, and so does its result
 *	follow  becomes `to` if all its operands are `to`; constants count if `to` holds them exactly
 *	high, fixed   takes f32; but the sum of a product and a vector (column `bias`) is treated as the product
 *
 * A value has at most one cast to `to` and one to f32; a value cast from `to` to f32 is not
 * rounded again. If a product reads a reshape or transpose of a value, the cast comes before the
 * reshape or transpose. So a library can read the cast value through strides. The pass runs
 * before autograd: the derivative of a cast is a cast, so products of the backward pass have 16
 * bits, too.
 *
 * With master=off trained weights exist only in type `to`, and nodes other than products read
 * them cast to f32. Time: linear in nodes. */
#include "passes/pass.h"

#include <math.h>
#include <string.h>

/* A glob over nodes that stay f32. */
typedef struct {
	const char *glob;
	bool fits; /* some node fits the glob */
} Rule;

typedef struct {
	Pass *p;
	VEC(Rule) rules;
} Rules;

typedef struct {
	Pass *p;
	Module *m;
	Function *f;
	const Recipe *recipe;
	DType to; /* recipe->products */
	/* By id of an f32 value: */
	IntMap *sources; /* the 16-bit value from which it was widened */
	IntMap *casts;   /* the 16-bit value to which it was rounded for a reader */
	int products;    /* number of products that became 16-bit */
	IntMap *biases;  /* for the sum of a product and a vector: the broadcast of the vector */
} Mixed;

static bool
is_wide(const Value *v)
{
	return v && v->type->dtype == F32;
}

static Value *
find(const IntMap *map, const Value *v)
{
	uint64_t found;

	return v && intmap_get(map, v->id, &found) ? (Value *)(uintptr_t)found : NULL;
}

static void
note(IntMap *map, const Value *v, Value *is)
{
	intmap_put(map, v->id, (uint64_t)(uintptr_t)is);
}

/* A copy of n with operands of other types, before `reader`; the result has the operands' type. */
static Value *
copy_of(const Mixed *x, Node *n, Value *const *operands, Node *reader)
{
	Builder b = {.m = x->m, .f = x->f, .before = reader, .loc = n->loc, .phase = n->phase};

	return b_retyped(&b, n, operands);
}

static bool
is_exact_number(const Mixed *x, const Value *v)
{
	double number;

	return value_splat(v, &number) && (dtype_round(x->to, number) == number || isnan(number));
}

/* Does v hold the elements of another value, moved (reshape, transpose)? */
static bool
is_moved(const Value *v)
{
	const Node *n = v->node;

	return n && op_row(n)->fuse == FUSE_VIEW && op_row(n)->precision == PRECISION_FOLLOW &&
	       n->n_operands == 1 && node_operand(n, 0)->type->n == v->type->n;
}

static Value *
cast(const Mixed *x, Value *v, DType to, Node *reader)
{
	Builder b = {.m = x->m,
	             .f = x->f,
	             .before = reader,
	             .loc = reader->loc ? loc_of_parts(x->m, "cast", &reader->loc, 1) : NULL,
	             .phase = reader->phase};

	return b_cast(&b, v, to);
}

/* v in type `to`, before its first reader. bias: the result of a broadcast of a vector: the vector
 * is cast, and the cast vector is broadcast. NULL: no such vector. */
static Value *
narrowed(Mixed *x, Value *v, Node *reader, const Value *bias)
{
	Value *found = is_wide(v) ? find(x->sources, v) : v;

	found = found ? found : find(x->casts, v);
	if (found)
		return found;
	if (is_moved(v) || v == bias) {
		Value *moved = narrowed(x, node_operand(v->node, 0), reader, NULL);
		found = copy_of(x, v->node, &moved, reader);
	} else {
		found = cast(x, v, x->to, reader);
	}
	note(x->casts, v, found);
	return found;
}

/* Replaces n by a copy with operands in type `to`. */
static void
narrow(Mixed *x, Node *n)
{
	Value **operands = NEW_ARRAY(x->m->arena, Value *, n->n_operands + 1);
	Value *old = node_result(n, 0);

	for (int i = 0; i < n->n_operands; i++) {
		Value *v = node_operand(n, i);
		operands[i] = is_wide(v) ? narrowed(x, v, n, find(x->biases, old)) : v;
	}
	Value *y = copy_of(x, n, operands, n);
	if (!is_wide(old)) { /* e.g. an index */
		value_replace_uses(old, y);
		return;
	}
	Value *wide = cast(x, y, F32, n);
	note(x->sources, wide, y);
	value_replace_uses(old, wide);
}

/* Does n take f32, and give one value of f32 or of no float type? */
static bool
may_narrow(const Node *n)
{
	bool wide = false;

	for (int i = 0; i < n->n_operands; i++)
		wide |= is_wide(node_operand(n, i));
	return wide && n->n_results == 1 &&
	       (is_wide(node_result(n, 0)) || !dtype_is_float(node_result(n, 0)->type->dtype));
}

/* Are the numbers in n's attributes exact in type `to`, e.g. the number that a pad writes? */
static bool
has_exact_attributes(const Mixed *x, const Node *n)
{
	for (const Field *f = op_row(n)->fields; f && f->name; f++) {
		double number = f->kind == FIELD_FLOAT ? *(double *)((char *)n->attr + f->offset)
		                                       : 0;
		if (dtype_round(x->to, number) != number && !isnan(number))
			return false;
	}
	return true;
}

/* Is n a square, as norms contain it? The square of a 16-bit number may overflow 16 bits. */
static bool
is_square(const Node *n)
{
	return n->n_operands == 2 && node_operand(n, 0) == node_operand(n, 1);
}

/* Should n be computed in type `to`? True if one of its operands has that type, and no other
 * operand and no attribute would lose digits. */
static bool
follows(const Mixed *x, const Node *n)
{
	int narrow = 0;

	if (!has_exact_attributes(x, n) || is_square(n))
		return false;

	for (int i = 0; i < n->n_operands; i++) {
		const Value *v = node_operand(n, i);
		if (!is_wide(v))
			continue;
		if (find(x->sources, v))
			narrow++;
		else if (!is_exact_number(x, v))
			return false;
	}
	return narrow > 0;
}

static bool
stays_finite(const Mixed *x, const State *s)
{
	for (int64_t i = 0; s->data && i < s->type->n; i++) {
		double v = dtype_load_float(s->data->type->dtype, s->data->data, i);
		if (isfinite(v) && !isfinite(dtype_round(x->to, v)))
			return false;
	}
	return true;
}

/* If the only reader of product n adds a vector to it, and the vector is a parameter (a bias):
 * notes the broadcast of the vector, and casts the vector. A vector that is no parameter may be a
 * mask, whose numbers 16 bits cannot hold. The bias is cast before the product, so that the
 * product's kernel may read it. */
static void
find_bias(Mixed *x, Node *n)
{
	const OpRow *row = op_row(n);
	Value *y = node_result(n, 0), *vector = NULL;

	if (row->bias && value_used_once(y))
		vector = row->bias(n, y->uses->user);
	const Value *parameter = vector ? find(x->sources, vector) : NULL;
	parameter = parameter ? parameter : vector;
	if (!vector || !is_wide(vector) || parameter->kind != VALUE_STATE ||
	    !stays_finite(x, parameter->state))
		return;
	const Node *reader = y->uses->user;
	Value *repeated = node_operand(reader, node_operand(reader, 0) == y);
	note(x->biases, node_result(reader, 0), repeated);
	narrowed(x, vector, n, NULL);
}

/* ---- without master weights */
/* Trained weights become states of type `to`; other states keep all their digits. */
static void
narrow_states(Pass *p, Module *m, DType to)
{
	const bool *reached = parameters_reached(m, p->scratch);

	for (int i = 0; i < m->states.n; i++) {
		State *s = m->states.at[i];
		if (!reached[i] || s->type->dtype != F32)
			continue;
		s->type = type_with_dtype(m, s->type, to);
		s->data = s->data ? tensor_convert(m, s->data, to) : NULL;
	}
}

/* Nodes read a weight of type `to` through a cast to f32, which counts as widened. */
static void
widen_states(Mixed *x)
{
	for (int i = 0; i < x->f->states.n; i++) {
		Value *v = x->f->states.at[i];
		bool narrowed = v->type != v->state->type;
		v->type = v->state->type;
		if (!narrowed || !v->uses || !x->f->first)
			continue;
		Value *wide = cast(x, v, F32, x->f->first);
		value_replace_uses(v, wide);
		node_set_operand(wide->node, 0, v);
		note(x->sources, wide, v);
	}
}

/* ---- the nodes that a rule keeps in f32 */
static void
read_rules(Rules *r, const char *text)
{
	const char *end;

	for (const char *at = text ? text : ""; *at; at = *end ? end + 1 : end) {
		end = at + strcspn(at, "\n");
		Rule rule = {.glob = arena_strndup(r->p->scratch, at, (size_t)(end - at))};
		vec_push(r->p->scratch, &r->rules, rule);
	}
}

static bool
is_kept(Rules *r, const Node *n)
{
	bool kept = false;

	for (int i = 0; i < r->rules.n; i++)
		if (glob_match(r->rules.at[i].glob, loc_origin(n->loc)))
			kept = r->rules.at[i].fits = true;
	return kept;
}

static bool
check_rules(const Rules *r)
{
	bool ok = true;

	for (int i = 0; i < r->rules.n; i++) {
		if (r->rules.at[i].fits)
			continue;
		diag_error(r->p->diag, EXIT_USAGE, "--mixed=%s=f32 fits no node",
		           r->rules.at[i].glob);
		diag_hint(r->p->diag, "`gradc dump --stage=forward` shows nodes' names");
		ok = false;
	}
	return ok;
}

/* Widens a value at its first reader, so that the reader's kernel does it. */
static void
widen_late(Mixed *x)
{
	Node *stores = function_stores(x->f); /* stores stand together at the end */

	for_each_node(x->f, n) {
		Node *reader = op_row(n)->effect && stores ? stores : n;
		for (int i = 0; i < n->n_operands; i++) {
			Value *v = node_operand(n, i), *source = find(x->sources, v);
			if (source)
				value_replace_uses(v, cast(x, source, F32, reader));
		}
	}
}

static void
mix(Mixed *x, Rules *rules)
{
	for_each_node(x->f, n) {
		Precision class = recipe_precision(x->recipe, n);
		bool low = class == PRECISION_LOW;
		if (is_kept(rules, n) || !may_narrow(n))
			continue;
		if (low)
			find_bias(x, n);
		x->products += low;
		if (low || find(x->biases, node_result(n, 0)) ||
		    (class == PRECISION_FOLLOW && follows(x, n)))
			narrow(x, n);
	}
	function_drop_unread(x->f);
	widen_late(x);
	function_drop_unread(x->f);
}

static bool
refuse_without_master(Pass *p, const Recipe *recipe)
{
	diag_error(p->diag, EXIT_USAGE, "--master=off: weights of %s alone do not train",
	           dtype_info[recipe->products].name);
	diag_hint(p->diag, "use --precision=bf16, whose range is that of f32");
	return false;
}

/* Returns true if no option asks for 16 bits. */
static bool
refuse_without_precision(Pass *p)
{
	const MixedOptions *o = p->options;
	bool rules = o->f32 && *o->f32, master = o->master && strcmp(o->master, "off") == 0;

	if (rules)
		diag_error(p->diag, EXIT_USAGE, "--mixed needs --precision=bf16 or f16");
	if (master)
		diag_error(p->diag, EXIT_USAGE, "--master=off needs --precision=bf16");
	return !rules && !master;
}

/* Recipes with products of 16 bits, and the default, with which nothing changes. */
static bool
is_taken(const Recipe *recipe)
{
	return recipe_is_mixed(recipe) || recipe == recipe_find(NULL);
}

static bool
run_mixed(Pass *p, Module *m)
{
	const MixedOptions *o = p->options;
	const Recipe *recipe = recipe_of_option(p, o->to, is_taken);

	if (!recipe)
		return false;
	DType to = recipe->products;
	if (!recipe_is_mixed(recipe))
		return refuse_without_precision(p);
	bool master = !o->master || strcmp(o->master, "off") != 0;
	if (master && o->master && strcmp(o->master, "on") != 0) {
		diag_error(p->diag, EXIT_USAGE, "pass mixed: master=%s is not on or off",
		           o->master);
		return false;
	}
	if (!master && !recipe->trains)
		return refuse_without_master(p, recipe);
	Rules rules = {.p = p};
	int products = 0;
	read_rules(&rules, o->f32);
	if (!master)
		narrow_states(p, m, to);
	for_each_function(m, f) {
		if (f->kind == FUNCTION_FUSED)
			continue;
		Mixed x = {.p = p,
		           .m = m,
		           .f = f,
		           .recipe = recipe,
		           .to = to,
		           .sources = intmap_new(p->scratch),
		           .casts = intmap_new(p->scratch),
		           .biases = intmap_new(p->scratch)};
		if (!master)
			widen_states(&x);
		mix(&x, &rules);
		products += x.products;
		p->changed = true;
	}
	if (products == 0)
		diag_warning(p->diag, "--precision=%s changes nothing: there is no product of f32",
		             o->to);
	return check_rules(&rules);
}

static const PassOption mixed_options[] = {
	{"to", "the recipe of --precision: bf16, f16 ...", OPTION_STRING,
         offsetof(MixedOptions, to)},
	{"f32", "GLOB of nodes that stay f32, one a line", OPTION_STRING,
         offsetof(MixedOptions, f32)},
	{"master", "on: weights are f32; off: trained weights have the type of products",
         OPTION_STRING, offsetof(MixedOptions, master)},
	{0}};
const PassRow pass_mixed = {.name = "mixed",
                            .help = "products in 16 bits",
                            .takes = STAGE_FORWARD,
                            .leaves = STAGE_ANY,
                            .options = mixed_options,
                            .options_size = sizeof(MixedOptions),
                            .run = run_mixed};

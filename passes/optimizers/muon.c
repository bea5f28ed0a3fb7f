/* Muon as torch.optim.Muon: Jordan et al. 2024, kellerjordan.github.io/posts/muon. The momentum
 * step s is a matrix; five steps of a Newton-Schulz iteration turn it into a matrix X whose
 * singular values are near 1:
 *
 *	m = m + (1 - momentum)(g - m)
 *	s = g + momentum (m - g)           without nesterov: s = m
 *	X = s / max(|s|, eps)              transposed if it has more rows than columns
 *	five times:
 *	    A = X X'
 *	    X = a X + (b A + c A A) X
 *	r = sqrt(max(1, outputs/inputs))   with match_rms: 0.2 sqrt(max(outputs, inputs))
 *	p = p (1 - lr wd) - lr r X
 *
 * The iteration is computed in bf16; with ns_f32, or in an f64 program, in the type of the
 * update. Muon updates matrices, except those from which rows are looked up (embeddings) and the
 * one that makes the model's output (the head); AdamW updates all other parameters. */
#include "passes/pass.h"

#include <math.h>

typedef struct {
	int64_t ns_steps;
	bool nesterov, match_rms, ns_f32;
	double a, b, c, rest_lr, rest_weight_decay, rest_beta1, rest_beta2, rest_eps;
} MuonSettings;

static const PassOption options[] = {
	{"nesterov", "Nesterov momentum", OPTION_BOOL, offsetof(MuonSettings, nesterov)},
	{"ns_steps", "steps of the iteration", OPTION_INT, offsetof(MuonSettings, ns_steps), 1,
         100},
	{"ns_a", "first coefficient of the iteration", OPTION_DOUBLE, offsetof(MuonSettings, a),
         -1e9, 1e9},
	{"ns_b", "second coefficient of the iteration", OPTION_DOUBLE, offsetof(MuonSettings, b),
         -1e9, 1e9},
	{"ns_c", "third coefficient of the iteration", OPTION_DOUBLE, offsetof(MuonSettings, c),
         -1e9, 1e9},
	{"ns_f32", "the iteration in f32, not bf16", OPTION_BOOL, offsetof(MuonSettings, ns_f32)},
	{"rest_lr", "AdamW's learning rate for other parameters; follows the schedule",
         OPTION_DOUBLE, offsetof(MuonSettings, rest_lr), 0, 1e9},
	{"rest_weight_decay", "AdamW's weight decay", OPTION_DOUBLE,
         offsetof(MuonSettings, rest_weight_decay), 0, 1e9},
	{"rest_beta1", "AdamW's decay of the first moment", OPTION_DOUBLE,
         offsetof(MuonSettings, rest_beta1), 0, 1},
	{"rest_beta2", "AdamW's decay of the second moment", OPTION_DOUBLE,
         offsetof(MuonSettings, rest_beta2), 0, 1},
	{"rest_eps", "added to AdamW's denominator", OPTION_DOUBLE,
         offsetof(MuonSettings, rest_eps), 0, 1e9},
	{"match_rms", "steps as long as AdamW's (Moonshot, arXiv:2502.16982)", OPTION_BOOL,
         offsetof(MuonSettings, match_rms)},
	{0}};

/* ---- which parameters Muon updates */
static bool
is_product(const Node *n)
{
	return op_row(n)->precision == PRECISION_LOW;
}

/* By value id: is some product computed from the value? */
static bool *
values_before_products(const Function *f, Arena *arena)
{
	bool *before = NEW_ARRAY(arena, bool, f->next_value_id);

	for (const Node *n = f->last; n; n = n->prev) {
		bool leads = is_product(n);
		for (int i = 0; i < n->n_results; i++)
			leads |= before[node_result(n, i)->id];
		for (int i = 0; leads && i < n->n_operands; i++)
			if (node_operand(n, i))
				before[node_operand(n, i)->id] = true;
	}
	return before;
}

/* Does a reader of the weight look up rows, or is a reader the last product? */
static bool
is_outer(const Value *weight, const bool *before)
{
	for_each_use(weight, u) {
		const Node *n = u->user;
		bool same = op_row(n)->fuse == FUSE_VIEW || n->op == OP_cast;
		if (n->op == OP_gather || (is_product(n) && !before[node_result(n, 0)->id]) ||
		    (same && is_outer(node_result(n, 0), before)))
			return true;
	}
	return false;
}

static bool
takes(const Module *m, const State *param)
{
	const Function *f = module_first(m, ROLE_FORWARD);
	bool outer = false;

	if (param->type->rank != 2 || !f)
		return param->type->rank == 2;
	Arena *arena = arena_new();
	const bool *before = values_before_products(f, arena);
	for (int i = 0; i < f->states.n; i++)
		if (f->states.at[i]->state == param)
			outer |= is_outer(f->states.at[i], before);
	arena_free(arena);
	return !outer;
}

static const char *
fallback(const void *settings, Arena *arena)
{
	const MuonSettings *s = settings;

	return arena_printf(
		arena, "adamw,lr=%.17g,weight_decay=%.17g,beta1=%.17g,beta2=%.17g,eps=%.17g",
		s->rest_lr, s->rest_weight_decay, s->rest_beta1, s->rest_beta2, s->rest_eps);
}

/* ---- the update */
static Value *
splat(Builder *b, Value *scalar, Value *like)
{
	return b_broadcast(b, b_cast(b, scalar, like->type->dtype), ints_of_type(like->type),
	                   (Ints){0});
}

/* x y, or x y' if `contract` is 1, in type d. */
static Value *
product(Builder *b, Value *x, Value *y, int contract, DType d)
{
	Value *operands[] = {x, y};
	DotAttr how = {.x_contract = {.n = 1, .at = {1}},
	               .y_contract = {.n = 1, .at = {contract}},
	               .dtype = d == x->type->dtype ? 0 : 1 + (int)d};

	return build(b, OP_dot, 2, operands, &how);
}

/* s x + by z, computed in z's type and rounded to x's type, as torch.addmm. */
static Value *
combined(Update *u, double s, Value *x, double by, Value *z)
{
	Builder *b = u->b;
	Value *wide = b_cast(b, x, z->type->dtype);
	Value *first = b_binary(b, OP_mul, wide, splat(b, update_number(u, s), wide));
	Value *second = b_binary(b, OP_mul, z, splat(b, update_number(u, by), z));

	return b_cast(b, b_binary(b, OP_add, first, second), x->type->dtype);
}

/* x divided by max(its norm, eps), in x's type. */
static Value *
normalized(Update *u, Value *x, DType wide)
{
	Builder *b = u->b;
	Value *v = b_cast(b, x, wide);
	Value *sum = b_reduce(b, REDUCE_SUM, b_binary(b, OP_mul, v, v),
	                      (Ints){.n = 2, .at = {0, 1}});
	Value *norm = b_cast(b, b_cast(b, b_unary(b, OP_sqrt, sum), x->type->dtype), wide);
	Value *eps = b_cast(b, update_scalar(u, SCALAR_EPS), wide);

	return b_cast(b, b_binary(b, OP_div, v, splat(b, b_binary(b, OP_max, norm, eps), v)),
	              x->type->dtype);
}

static Value *
orthogonal(Update *u, Value *step)
{
	Builder *b = u->b;
	const MuonSettings *s = u->settings;
	DType wide = step->type->dtype;
	bool narrow = wide == F32 && !s->ns_f32;
	bool tall = step->type->dims[0] > step->type->dims[1];
	Ints turned = {.n = 2, .at = {1, 0}};
	Value *x = b_cast(b, step, narrow ? BF16 : wide);

	x = normalized(u, tall ? b_transpose(b, x, turned) : x, wide);
	for (int64_t i = 0; i < s->ns_steps; i++) {
		Value *a = product(b, x, x, 1, x->type->dtype);
		a = combined(u, s->b, a, s->c, product(b, a, a, 0, wide));
		x = combined(u, s->a, x, 1, product(b, a, x, 0, wide));
	}
	return b_cast(b, tall ? b_transpose(b, x, turned) : x, wide);
}

static void
muon_update(Update *u)
{
	Builder *b = u->b;
	const MuonSettings *s = u->settings;
	Value *momentum = update_scalar(u, SCALAR_MOMENTUM);
	Value *m = update_lerp(u, momentum, u->moment[0], u->grad), *step = m;
	/* In torch's weights rows are outputs. A product may read a weight whose rows are inputs. */
	int in = u->inputs_axis < 0 ? 1 : u->inputs_axis;
	double rows = (double)u->param->type->dims[!in], columns = (double)u->param->type->dims[in];
	double size = s->match_rms ? 0.2 * sqrt(fmax(rows, columns))
	                           : sqrt(fmax(1, rows / columns));

	if (s->nesterov)
		step = b_binary(b, OP_add, u->grad,
		                update_times(u, momentum, b_binary(b, OP_sub, m, u->grad)));
	Value *rate = b_binary(b, OP_mul, u->lr, update_number(u, size));
	u->new_param = b_binary(b, OP_sub, update_shrunk(u),
	                        update_times(u, rate, orthogonal(u, step)));
	u->new_moment[0] = m;
}

static const MuonSettings settings = {.ns_steps = 5,
                                      .nesterov = true,
                                      .a = 3.4445,
                                      .b = -4.775,
                                      .c = 2.0315,
                                      .rest_lr = 0.001,
                                      .rest_weight_decay = 0.01,
                                      .rest_beta1 = 0.9,
                                      .rest_beta2 = 0.999,
                                      .rest_eps = 1e-8};
const OptimizerRow optimizer_muon = {
	.name = "muon",
	.doc = "momentum of hidden matrices, orthogonalized; AdamW for other parameters",
	.defaults = "lr=0.001 momentum=0.95 eps=1e-07 weight_decay=0.1",
	.moments = {"momentum_buffer"},
	.whole = true,
	.takes = takes,
	.fallback = fallback,
	.update = muon_update,
	.options = options,
	.options_size = sizeof(MuonSettings),
	.settings = &settings};

/* Imports RNN, GRU and LSTM: https://onnx.ai/onnx/operators/onnx__LSTM.html, onnx__GRU.html,
 * onnx__RNN.html
 *
 * The products with the input do not depend on earlier steps: one matrix product computes them for
 * all steps. The rest is a loop over the sequence; its body is the standard's formula for one time
 * step. The reverse direction runs the loop from the end. */
#include "frontend/operators/quantize/quantize.h"

#include <math.h>
#include <string.h>
#include <strings.h>

enum { MOST_GATES = 4, MOST_ACTIVATIONS = 3 };

/* ---- activations */
typedef struct {
	const char *name;
	Value *(*build)(OnnxNode *n, Value *x, double alpha, double beta);
	bool has_alpha, has_beta;
	double alpha, beta;
} ActivationRow;
typedef struct {
	const ActivationRow *row;
	double alpha, beta;
} Activation;

static Value *
act_sigmoid(OnnxNode *n, Value *x, double alpha, double beta)
{
	(void)alpha, (void)beta;
	return e_unary(n, OP_sigmoid, x);
}

static Value *
act_tanh(OnnxNode *n, Value *x, double alpha, double beta)
{
	(void)alpha, (void)beta;
	return e_unary(n, OP_tanh, x);
}

/* x if it is above the threshold, else 0 */
static Value *
act_thresholded(OnnxNode *n, Value *x, double alpha, double beta)
{
	(void)beta;
	return e_select(n, e_with(n, OP_gt, x, alpha), x, e_number(n, x, 0));
}

static Value *
act_relu(OnnxNode *n, Value *x, double alpha, double beta)
{
	(void)alpha;
	return act_thresholded(n, x, 0, beta);
}

static Value *
act_affine(OnnxNode *n, Value *x, double alpha, double beta)
{
	return e_with(n, OP_add, e_with(n, OP_mul, x, alpha), beta);
}

static Value *
act_leaky(OnnxNode *n, Value *x, double alpha, double beta)
{
	(void)beta;
	return e_select(n, e_with(n, OP_ge, x, 0), x, e_with(n, OP_mul, x, alpha));
}

/* alpha tanh(beta x) */
static Value *
act_scaled_tanh(OnnxNode *n, Value *x, double alpha, double beta)
{
	return e_with(n, OP_mul, e_unary(n, OP_tanh, e_with(n, OP_mul, x, beta)), alpha);
}

static Value *
act_hard_sigmoid(OnnxNode *n, Value *x, double alpha, double beta)
{
	Value *y = act_affine(n, x, alpha, beta);

	return e_at_most(n, e_at_least(n, y, e_number(n, y, 0)), e_number(n, y, 1));
}

static Value *
act_elu(OnnxNode *n, Value *x, double alpha, double beta)
{
	Value *zero = e_number(n, x, 0), *above = e_with(n, OP_gt, x, 0);
	Value *low = e_with(n, OP_mul, e_unary(n, OP_expm1, e_select(n, above, zero, x)), alpha);

	(void)beta;
	return e_select(n, above, x, low);
}

static Value *
act_softsign(OnnxNode *n, Value *x, double alpha, double beta)
{
	(void)alpha, (void)beta;
	return e_binary(n, OP_div, x, e_with(n, OP_add, e_unary(n, OP_abs, x), 1));
}

/* log(1 + e^x) = max(x, 0) + log(1 + e^-|x|) */
static Value *
act_softplus(OnnxNode *n, Value *x, double alpha, double beta)
{
	Value *small = e_unary(n, OP_log1p,
	                       e_unary(n, OP_exp, e_unary(n, OP_neg, e_unary(n, OP_abs, x))));

	return e_binary(n, OP_add, act_relu(n, x, alpha, beta), small);
}

/* Default alpha and beta: as in ONNX's operators of these names; for Affine and ScaledTanh as in
 * onnxruntime, since ONNX has none. */
static const ActivationRow activation_rows[] = {
	{"Sigmoid", act_sigmoid, false, false, 0, 0},
	{"Tanh", act_tanh, false, false, 0, 0},
	{"Relu", act_relu, false, false, 0, 0},
	{"Affine", act_affine, true, true, 1, 0},
	{"LeakyRelu", act_leaky, true, false, 0.01f, 0},
	{"ThresholdedRelu", act_thresholded, true, false, 1, 0},
	{"ScaledTanh", act_scaled_tanh, true, true, 1, 1},
	{"HardSigmoid", act_hard_sigmoid, true, true, 0.2f, 0.5f},
	{"Elu", act_elu, true, false, 1, 0},
	{"Softsign", act_softsign, false, false, 0, 0},
	{"Softplus", act_softplus, false, false, 0, 0},
};

static Value *
activate(OnnxNode *n, const Activation *a, Value *x)
{
	return a->row->build(n, x, a->alpha, a->beta);
}

/* ---- the operators */
typedef struct Recurrent Recurrent;
/* One time step: state[0] is h, state[1] is c. x: products of this step's input with W, [batch,
 * gates * hidden]. */
typedef void (*StepFn)(const Recurrent *r, Value *x, Value **state);

typedef struct {
	int gates, states, activations;
	const char *defaults[MOST_ACTIVATIONS];
	StepFn step;
} CellRow;

struct Recurrent {
	OnnxNode *n;
	const CellRow *cell;
	int64_t steps, batch, hidden;
	int directions;
	bool batch_first, backwards;
	double clip; /* infinite: no clipping */
	bool input_forget, linear_before_reset;
	Value *x, *w, *r, *b, *lengths, *peepholes; /* x: [steps, batch, inputs]; NULL: not given */
	Value *initial[2];                          /* [directions, batch, hidden] */
	Activation activations[2 * MOST_ACTIVATIONS];
	/* For the direction that is built, inside the body: */
	const Activation *f;
	Value *rt, *rb, *p; /* the direction's R, recurrent part of B, and P */
	int at;             /* index of the direction */
	bool dynamic;       /* products use codes */
	/* samples whose hidden state counts for the range of the codes; NULL: all samples */
	Value *kept;
};

/* ---- attributes and inputs of the node */
static bool
find_activation(OnnxNode *n, const char *name, Activation *out)
{
	for (int i = 0; i < COUNT(activation_rows); i++)
		if (strcasecmp(activation_rows[i].name, name) == 0) {
			*out = (Activation){&activation_rows[i], activation_rows[i].alpha,
			                    activation_rows[i].beta};
			return true;
		}
	report_unsupported(n, "activation %s is not known", quoted(n->im->model, name));
	return false;
}

/* Takes the next number of a list, if any. */
static void
take_number(const AttributeProto *a, int *at, double *out)
{
	if (a && *at < (int)a->n_floats)
		*out = (double)a->floats[(*at)++];
}

static bool
read_activations(Recurrent *r)
{
	OnnxNode *n = r->n;
	const AttributeProto *names = node_attribute(n->proto, "activations");
	const AttributeProto *alpha = node_attribute(n->proto, "activation_alpha");
	const AttributeProto *beta = node_attribute(n->proto, "activation_beta");
	int each = r->cell->activations, count = each * r->directions, at_alpha = 0, at_beta = 0;

	if (names && names->n_strings && (int)names->n_strings != count) {
		report_invalid(n, "%zu activations, need %d for %d directions", names->n_strings,
		               count, r->directions);
		return false;
	}
	for (int i = 0; i < count; i++) {
		Activation *a = &r->activations[i];
		const char *name = r->cell->defaults[i % each];
		if (names && names->n_strings)
			name = arena_strndup(n->im->arena, (char *)names->strings[i].data,
			                     names->strings[i].len);
		if (!find_activation(n, name, a))
			return false;
		if (a->row->has_alpha)
			take_number(alpha, &at_alpha, &a->alpha);
		if (a->row->has_beta)
			take_number(beta, &at_beta, &a->beta);
	}
	return true;
}

/* Has the input this shape, and X's type if it is a float? */
static bool
has_shape(const Recurrent *r, int i, const Value *v, Ints shape)
{
	OnnxNode *n = r->n;
	DType d = is_float(v) ? r->x->type->dtype : v->type->dtype;
	Type want = type_new(n->im->m, d, shape.n, shape.at);

	if (v->type == want)
		return true;
	report_invalid(n, "input %d is %s, need %s", i, type_text(n, v->type), type_text(n, want));
	return false;
}

/* Reads an optional input with this shape; false after reporting. */
static bool
read_optional(Recurrent *r, int i, Ints shape, Value **out)
{
	*out = has_input(r->n, i) ? want_input(r->n, i) : NULL;
	return !has_input(r->n, i) || (*out && has_shape(r, i, *out, shape));
}

static Value *
swap_first(OnnxNode *n, Value *x)
{
	Ints order = ints_range(0, x->type->rank);

	order.at[0] = 1;
	order.at[1] = 0;
	return e_transpose(n, x, order);
}

/* Reads a first state; [batch, directions, hidden] is transposed to [directions, batch, hidden]. */
static bool
read_initial(Recurrent *r, int i, Value **out)
{
	Ints shape = {.n = 3, .at = {r->directions, r->batch, r->hidden}};
	Ints batch_first = {.n = 3, .at = {r->batch, r->directions, r->hidden}};

	if (!read_optional(r, i, r->batch_first ? batch_first : shape, out))
		return false;
	if (*out && r->batch_first)
		*out = swap_first(r->n, *out);
	if (!*out)
		*out = e_splat(r->n, r->x->type->dtype, shape, 0);
	return *out != NULL;
}

static bool
read_direction(Recurrent *r)
{
	const char *direction = want_word(r->n, "direction", "forward reverse bidirectional");

	r->directions = strcmp(direction, "bidirectional") == 0 ? 2 : 1;
	r->backwards = strcmp(direction, "reverse") == 0;
	return !r->n->failed;
}

static bool
read_weights(Recurrent *r)
{
	OnnxNode *n = r->n;
	int64_t rows = r->w && r->w->type->rank == 3 ? r->w->type->dims[1] : 0;

	if (!r->x || !r->w || !r->r)
		return false;
	if (r->x->type->rank != 3 || rows % r->cell->gates != 0 || rows == 0) {
		report_invalid(
			n,
			"X is %s and W is %s: need [steps, batch, inputs] and [directions, %d * hidden, inputs]",
			type_text(n, r->x->type), type_text(n, r->w->type), r->cell->gates);
		return false;
	}
	r->hidden = rows / r->cell->gates;
	int64_t said = want_int(n, "hidden_size", r->hidden);
	if (said != r->hidden) {
		report_invalid(n, "hidden_size is %lld, but W has %lld rows for %d gates",
		               (long long)said, (long long)rows, r->cell->gates);
		return false;
	}
	r->x = r->batch_first ? swap_first(n, r->x) : r->x;
	r->steps = r->x->type->dims[0];
	r->batch = r->x->type->dims[1];
	return has_shape(r, 1, r->w,
	                 (Ints){.n = 3, .at = {r->directions, rows, r->x->type->dims[2]}}) &&
	       has_shape(r, 2, r->r, (Ints){.n = 3, .at = {r->directions, rows, r->hidden}}) &&
	       read_optional(r, 3, (Ints){.n = 2, .at = {r->directions, 2 * rows}}, &r->b);
}

static bool
read_lengths(Recurrent *r)
{
	if (!read_optional(r, 4, (Ints){.n = 1, .at = {r->batch}}, &r->lengths))
		return false;
	if (r->lengths && r->lengths->type->dtype != S32) {
		report_invalid(r->n, "sequence_lens is %s, need s32",
		               dtype_info[r->lengths->type->dtype].name);
		return false;
	}
	return true;
}

static bool
read_recurrent(Recurrent *r)
{
	OnnxNode *n = r->n;

	r->clip = has_attribute(n, "clip") ? want_float(n, "clip", 0) : HUGE_VAL;
	r->batch_first = want_int(n, "layout", 0);
	r->input_forget = want_int(n, "input_forget", 0);
	r->linear_before_reset = want_int(n, "linear_before_reset", 0);
	r->x = want_float_input(n, 0);
	r->w = r->dynamic ? codes_want_gates(n, 1, 8) : want_float_input(n, 1);
	r->r = r->dynamic ? codes_want_gates(n, 2, 10) : want_float_input(n, 2);
	if (!(r->clip > 0)) {
		report_invalid(n, "clip %g is not above 0", r->clip);
		return false;
	}
	if (!read_direction(r) || !read_activations(r) || !read_weights(r) || !read_lengths(r))
		return false;
	for (int i = 0; i < r->cell->states; i++)
		if (!read_initial(r, 5 + i, &r->initial[i]))
			return false;
	return r->cell->states < 2 ||
	       read_optional(r, 7, (Ints){.n = 2, .at = {r->directions, 3 * r->hidden}},
	                     &r->peepholes);
}

/* ---- one direction: a slice of axis 0 */
static Value *
of_direction(OnnxNode *n, Value *v, int at)
{
	if (!v)
		return NULL;
	Value *one = v->type->dims[0] == 1 ? v : e_slice_axis(n, v, 0, at, at + 1);
	return e_reshape(n, one, ints_without(shape_of(v), 0));
}

/* Part k of the last axis; each part has `size` elements. */
static Value *
part(OnnxNode *n, Value *v, int k, int64_t size)
{
	return v ? e_slice_axis(n, v, v->type->rank - 1, k * size, (k + 1) * size) : NULL;
}

static Value *
plus(OnnxNode *n, Value *x, Value *y)
{
	return x && y ? e_binary(n, OP_add, x, y) : x ? x : y;
}

/* ---- cells, in the loop's body */
static Value *
clipped(const Recurrent *r, Value *x)
{
	OnnxNode *n = r->n;

	if (!x || isinf(r->clip))
		return x;
	return e_at_most(n, e_at_least(n, x, e_number(n, x, -r->clip)), e_number(n, x, r->clip));
}

/* h R^T for the gates from..to */
static Value *
recurrent_product(const Recurrent *r, Value *h, int from, int to)
{
	OnnxNode *n = r->n;

	h = r->kept ? e_select(n, r->kept, h, e_number(n, h, 0)) : h;
	h = r->dynamic ? codes_and_back(n, h) : h;
	Value *rt = from == 0 && to == r->cell->gates
	                    ? r->rt
	                    : e_slice_axis(n, r->rt, 0, from * r->hidden, to * r->hidden);
	DotAttr a = {.x_contract = {.n = 1, .at = {1}}, .y_contract = {.n = 1, .at = {1}}};

	return e_dot(n, h, rt, &a);
}

static void
step_rnn(const Recurrent *r, Value *x, Value **state)
{
	OnnxNode *n = r->n;
	Value *sum = e_binary(n, OP_add, x, recurrent_product(r, state[0], 0, 1));

	state[0] = activate(n, &r->f[0], clipped(r, sum));
}

/* The sums of the input's and the recurrent products, for the first gates. */
static void
gate_sums(const Recurrent *r, Value *x, Value *hr, int count, Value **sums)
{
	for (int k = 0; k < count; k++)
		sums[k] = e_binary(r->n, OP_add, part(r->n, x, k, r->hidden),
		                   part(r->n, hr, k, r->hidden));
}

/* z = f(xz + h Rz), r = f(xr + h Rr), g = g(xh + (r h) Rh) or g(xh + r (h Rh + Rbh)), h' = (1 - z) g + z h */
static void
step_gru(const Recurrent *r, Value *x, Value **state)
{
	OnnxNode *n = r->n;
	Value *h = state[0], *inner;
	bool linear = r->linear_before_reset;
	Value *hr = recurrent_product(r, h, 0, linear ? 3 : 2);
	Value *sum[2], *gate[2];

	gate_sums(r, x, hr, 2, sum);
	for (int k = 0; k < 2; k++)
		gate[k] = activate(n, &r->f[0], clipped(r, sum[k]));
	if (linear)
		inner = e_binary(n, OP_mul, gate[1],
		                 plus(n, part(n, hr, 2, r->hidden), part(n, r->rb, 2, r->hidden)));
	else
		inner = recurrent_product(r, e_binary(n, OP_mul, gate[1], h), 2, 3);
	Value *g = activate(n, &r->f[1],
	                    clipped(r, e_binary(n, OP_add, part(n, x, 2, r->hidden), inner)));
	Value *keep = e_binary(n, OP_mul, gate[0], h);
	Value *one = e_number(n, gate[0], 1);
	state[0] = e_binary(n, OP_add, e_binary(n, OP_mul, e_binary(n, OP_sub, one, gate[0]), g),
	                    keep);
}

/* P c for gate k of i, o, f; NULL: no peepholes. */
static Value *
peep(const Recurrent *r, int k, Value *c)
{
	return r->p ? e_binary(r->n, OP_mul, part(r->n, r->p, k, r->hidden), c) : NULL;
}

/* i = f(xi + Pi c), f = f(xf + Pf c), c' = f c + i g(xc), o = f(xo + Po c'), h' = o h(c') */
static void
step_lstm(const Recurrent *r, Value *x, Value **state)
{
	OnnxNode *n = r->n;
	Value *c = state[1], *sum[MOST_GATES];

	gate_sums(r, x, recurrent_product(r, state[0], 0, 4), 4, sum);
	Value *i = activate(n, &r->f[0], clipped(r, plus(n, sum[0], peep(r, 0, c))));
	Value *f = r->input_forget
	                   ? e_binary(n, OP_sub, e_number(n, i, 1), i)
	                   : activate(n, &r->f[0], clipped(r, plus(n, sum[2], peep(r, 2, c))));
	Value *g = activate(n, &r->f[1], clipped(r, sum[3]));

	c = e_binary(n, OP_add, e_binary(n, OP_mul, f, c), e_binary(n, OP_mul, i, g));
	Value *o = activate(n, &r->f[0], clipped(r, plus(n, sum[1], peep(r, 1, c))));
	state[0] = e_binary(n, OP_mul, o, activate(n, &r->f[2], c));
	state[1] = c;
}

/* ---- a direction */
/* The input's products of all steps, with all biases except the one inside GRU's reset. */
static Value *
input_products(const Recurrent *r, int at)
{
	OnnxNode *n = r->n;
	int64_t rows = r->cell->gates * r->hidden;
	DotAttr a = {.x_contract = {.n = 1, .at = {2}}, .y_contract = {.n = 1, .at = {1}}};
	Value *steps = r->dynamic ? codes_and_back(n, r->x) : r->x;
	Value *x = e_dot(n, steps, of_direction(n, r->w, at), &a);
	Value *b = of_direction(n, r->b, at);

	if (!b)
		return x;
	Value *wb = part(n, b, 0, rows), *rb = part(n, b, 1, rows);
	if (r->linear_before_reset) { /* Rbh is left out */
		Value *zr = e_slice_axis(n, rb, 0, 0, 2 * r->hidden);
		Value *zeros = e_splat(n, b->type->dtype, (Ints){.n = 1, .at = {r->hidden}}, 0);
		rb = e_concat(n, 2, (Value *[]){zr, zeros}, 0);
	}
	return e_binary(n, OP_add, x, e_binary(n, OP_add, wb, rb));
}

/* bool[steps, batch, 1]: is the step inside the sequence? With OP_le: is the step inside, or the
 * first after the end? */
static Value *
inside_sequences(const Recurrent *r, OpKind compare)
{
	OnnxNode *n = r->n;
	Ints shape = {.n = 3, .at = {r->steps, r->batch, 1}};

	if (!r->lengths)
		return NULL;
	Value *lengths = e_reshape(n, e_cast(n, r->lengths, S64),
	                           (Ints){.n = 2, .at = {r->batch, 1}});
	return e_binary(n, compare, e_iota(n, S64, shape, 0), lengths);
}

/* x [steps, batch, ..] with each sequence reversed by itself; steps after the end of a sequence
 * stay. */
static Value *
turned_sequences(const Recurrent *r, Value *x)
{
	OnnxNode *n = r->n;
	Ints places = {.n = 2, .at = {r->steps, r->batch}};
	Ints rows = {.n = 2,
	             .at = {r->steps * r->batch, x ? x->type->n / (r->steps * r->batch) : 0}};

	if (!x)
		return NULL;
	Value *step = e_iota(n, S64, places, 0), *lengths = e_cast(n, r->lengths, S64);
	Value *turned = e_with(n, OP_sub, e_binary(n, OP_sub, lengths, step), 1);
	Value *from = e_select(n, e_binary(n, OP_lt, step, lengths), turned, step);
	Value *at = e_binary(n, OP_add, e_with(n, OP_mul, from, (double)r->batch),
	                     e_iota(n, S64, places, 1));
	return e_reshape(n, e_gather(n, e_reshape(n, x, rows), e_flat(n, at), 0), shape_of(x));
}

/* Does the reverse direction reverse each sequence by itself?
 * With codes a step's range spans all sequences, so each sequence must begin at its own end. Otherwise
 * the loop runs from the end. */
static bool
turns_sequences(const Recurrent *r, int at)
{
	return r->dynamic && r->lengths && (at == 1 || r->backwards) && r->steps * r->batch > 0;
}

/* The loop's operands; the body's parameters are in the same order. */
typedef struct {
	Value **operands;
	int n;
} Operands;

static Value *
pass(Recurrent *r, Scope *s, Operands *o, Value *v, bool row)
{
	if (!v)
		return NULL;
	o->operands[o->n++] = v;
	return function_param(s->f, row ? type_drop_axis(r->n->im->m, v->type, 0) : v->type, "x");
}

/* The body of the loop; its results are the condition, the states, and a row of outputs. */
static bool
build_body(Recurrent *r, Scope *s, Value *x, Value *live, Value **state)
{
	OnnxNode *n = r->n;
	Value *old[2] = {state[0], state[1]}, *results[4] = {e_scalar(n, BOOL, 1)};
	int k = 1;

	r->cell->step(r, x, state);
	Value *y = live ? e_select(n, live, state[0], e_number(n, state[0], 0)) : state[0];
	for (int i = 0; i < r->cell->states; i++)
		results[k++] = live ? e_select(n, live, state[i], old[i]) : state[i];
	results[k++] = y;
	return scope_close(n, s, k, results);
}

static Node *
build_direction(Recurrent *r, int at)
{
	OnnxNode *n = r->n;
	Value *x = input_products(r, at), *inside = inside_sequences(r, OP_lt);
	Value *kept = r->dynamic ? inside_sequences(r, OP_le) : NULL;
	bool turns = turns_sequences(r, at);
	Value *operands[8], *state[2] = {NULL, NULL}, *initial[2];
	Value *b = of_direction(n, r->b, at), *p = of_direction(n, r->peepholes, at);
	Value *rb = b && r->linear_before_reset ? part(n, b, 1, r->cell->gates * r->hidden) : NULL;
	/* With one direction the matrix is the input itself; the body drops its first axis by a reshape. */
	Value *rt = r->directions == 1 ? r->r : of_direction(n, r->r, at);
	Operands o = {operands, 0};
	Scope s;

	for (int i = 0; i < r->cell->states; i++)
		initial[i] = of_direction(n, r->initial[i], at);
	if (!x || !rt || n->failed)
		return NULL;
	x = turns ? turned_sequences(r, x) : x;
	scope_open(n, &s, "step");
	function_param(s.f, type_scalar(n->im->m, S64), "i");
	for (int i = 0; i < r->cell->states; i++)
		state[i] = pass(r, &s, &o, initial[i], false);
	x = pass(r, &s, &o, x, true);
	Value *live = pass(r, &s, &o, inside, true);
	r->kept = pass(r, &s, &o, kept, true);
	r->rt = pass(r, &s, &o, rt, false);
	r->rb = pass(r, &s, &o, rb, false);
	r->p = pass(r, &s, &o, p, false);
	r->rt = e_reshape(n, r->rt, (Ints){.n = 2, .at = {r->cell->gates * r->hidden, r->hidden}});
	r->f = &r->activations[at * r->cell->activations];
	if (!build_body(r, &s, x, live, state))
		return NULL;
	LoopAttr a = {.body = s.f,
	              .bound = r->steps,
	              .carried = r->cell->states,
	              .sliced = 1 + (inside != NULL) + (kept != NULL),
	              .always = true,
	              .reverse = !turns && (at == 1 || r->backwards)};
	return build_node(n->b, OP_loop, o.n, operands, &a);
}

/* ---- results */
/* Stacks the results of the directions along a new axis. */
static Value *
beside(OnnxNode *n, int count, Value **list, int axis)
{
	for (int i = 0; i < count; i++) {
		Ints shape = {0};
		for (int k = 0; k <= list[i]->type->rank; k++)
			shape.at[shape.n++] = k == axis ? 1 : list[i]->type->dims[k - (k > axis)];
		list[i] = e_reshape(n, list[i], shape);
	}
	return e_concat(n, count, list, axis);
}

static void
import_recurrent(OnnxNode *n, const CellRow *cell, bool dynamic)
{
	Recurrent r = {.n = n, .cell = cell, .dynamic = dynamic};
	Node *loops[2];
	Value *list[2];

	if (!read_recurrent(&r))
		return;
	for (int i = 0; i < r.directions; i++)
		if (!(loops[i] = build_direction(&r, i)))
			return;
	for (int i = 0; i < r.directions; i++)
		list[i] = turns_sequences(&r, i)
		                  ? turned_sequences(&r, node_result(loops[i], cell->states))
		                  : node_result(loops[i], cell->states);
	Value *y = beside(n, r.directions, list, 1); /* [steps, directions, batch, hidden] */
	set_output(n, 0, r.batch_first ? e_transpose(n, y, (Ints){.n = 4, .at = {2, 0, 1, 3}}) : y);
	for (int k = 0; k < cell->states; k++) {
		for (int i = 0; i < r.directions; i++)
			list[i] = node_result(loops[i], k);
		set_output(n, 1 + k, beside(n, r.directions, list, r.batch_first ? 1 : 0));
	}
}

static void
import_rnn(OnnxNode *n)
{
	static const CellRow cell = {1, 1, 1, {"Tanh"}, step_rnn};

	import_recurrent(n, &cell, false);
}

static void
import_gru(OnnxNode *n)
{
	static const CellRow cell = {3, 1, 2, {"Sigmoid", "Tanh"}, step_gru};

	import_recurrent(n, &cell, false);
}

static const CellRow lstm_cell = {4, 2, 3, {"Sigmoid", "Tanh", "Tanh"}, step_lstm};

static void
import_lstm(OnnxNode *n)
{
	import_recurrent(n, &lstm_cell, false);
}

/* Weights are codes. X is quantized over the range of all steps, and the hidden state over its own
 * range in each step. */
static void
import_dynamic_lstm(OnnxNode *n)
{
	import_recurrent(n, &lstm_cell, true);
}

/* clang-format off */
const ImportRow import_recurrent_rows[] = {
	/* name     from  to  importer  extra */
	{"RNN", 1, 0, import_rnn, .facts = {.weights = INPUTS(1, 3), .states = INPUT(5)}},
	{"GRU", 1, 0, import_gru, .facts = {.weights = INPUTS(1, 3), .states = INPUT(5)}},
	{"LSTM", 1, 0, import_lstm,
	 .facts = {.weights = INPUTS(1, 3) | INPUT(7), .states = INPUTS(5, 6)}},
	{"DynamicQuantizeLSTM", 1, 0, import_dynamic_lstm, {0}, "com.microsoft",
	 .facts = {.weights = INPUT(3) | INPUT(7), .states = INPUTS(5, 6),
	           .codes = {{NO_INPUT, 8, 9, ALONG_FIRST},
	                     {NO_INPUT, 10, 11, ALONG_FIRST}}}},
	{0},
};
/* clang-format on */

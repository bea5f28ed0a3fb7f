/* Imports MoE, a mixture of experts:
 * https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MoE.
 * Each token goes through the k experts that the router prefers. Here all experts process all
 * tokens, so that products have fixed sizes; experts that were not chosen have weight 0. */
#include "frontend/import/import.h"

#include <math.h>
#include <string.h>

/* A layer of all experts: weight [E, outputs, inputs], bias [E, outputs]. */
typedef struct {
	Value *weight, *bias;
} Layer;

typedef struct {
	Value *x, *gates; /* [T, H] and [T, E] */
	Layer fc1, fc2, fc3;
	int64_t tokens, experts, hidden, inner;
} Experts;

static bool
want_layer(OnnxNode *n, int i, int64_t experts, int64_t outputs, int64_t inputs, Layer *out)
{
	Value *w = want_float_input(n, i),
	      *b = has_input(n, i + 1) ? want_float_input(n, i + 1) : NULL;

	if (!w || (has_input(n, i + 1) && !b))
		return false;
	const int64_t *d = w->type->dims;
	if (w->type->rank != 3 || d[0] != experts || d[1] != outputs || d[2] != inputs) {
		report_invalid(n, "input %d does not have the shape [%lld, %lld, %lld]", i,
		               (long long)experts, (long long)outputs, (long long)inputs);
		return false;
	}
	if (b &&
	    (b->type->rank != 2 || b->type->dims[0] != experts || b->type->dims[1] != outputs)) {
		report_invalid(n, "input %d does not have the shape [%lld, %lld]", i + 1,
		               (long long)experts, (long long)outputs);
		return false;
	}
	*out = (Layer){w, b};
	return true;
}

/* Weights of the experts for each token: the softmax over the router's numbers, set to 0 for all
 * but the k largest. */
static Value *
want_gates(OnnxNode *n, Experts *e)
{
	Value *router = want_float_input(n, 1);
	int64_t k = want_int(n, "k", 1);
	Ints last = {.n = 1, .at = {1}};

	if (!router)
		return NULL;
	const int64_t *d = router->type->dims;
	if (router->type->rank != 2 || d[0] != e->tokens || d[1] < 1 || k < 1 || k > d[1]) {
		report_invalid(n,
		               "k is %lld for %lld experts and %lld tokens: the router needs "
		               "rank 2 and a row for each token, and k must be from 1 to the "
		               "number of experts",
		               (long long)k, router->type->rank == 2 ? (long long)d[1] : 0LL,
		               (long long)e->tokens);
		return NULL;
	}
	e->experts = d[1];
	Value *p = e_softmax(n, router, last, false);
	Value *order = p ? e_op(n, OP_sort, 1, &p, &(SortAttr){.axis = 1, .descending = true})
	                 : NULL;
	if (!order)
		return NULL;
	Value *chosen = e_slice_axis(n, node_result(order->node, 1), 1, 0, k);
	Ints wide = {.n = 3, .at = {e->tokens, k, e->experts}},
	     thin = {.n = 3, .at = {e->tokens, k, 1}};
	Value *hits = e_binary(n, OP_eq, e_iota(n, S64, wide, 2), e_reshape(n, chosen, thin));
	Value *any = e_reduce(n, REDUCE_MAX, e_cast(n, hits, U8), last, false);
	p = e_select(n, e_cast(n, any, BOOL), p, e_number(n, p, 0));
	if (!want_int(n, "normalize_routing_weights", 0))
		return p;
	return e_binary(n, OP_div, p, e_reduce(n, REDUCE_SUM, p, last, true));
}

/* Applies a layer to x [E, T, inputs] or [T, inputs]: [E, T, outputs]. */
static Value *
through(OnnxNode *n, Value *x, const Layer *l)
{
	bool each = x && x->type->rank == 3;
	DotAttr a = {.x_contract = {.n = 1, .at = {each ? 2 : 1}},
	             .y_contract = {.n = 1, .at = {2}}};

	if (each)
		a.x_batch = a.y_batch = ints_range(0, 1);
	Value *y = e_dot(n, x, l->weight, &a);
	if (!each) /* [T, E, outputs] */
		y = e_transpose(n, y, (Ints){.n = 3, .at = {1, 0, 2}});
	if (!l->bias)
		return y;
	const int64_t *d = l->bias->type->dims;
	return e_binary(n, OP_add, y, e_reshape(n, l->bias, (Ints){.n = 3, .at = {d[0], 1, d[1]}}));
}

/* G sigmoid(alpha G) (L + beta), G = min(g, limit), L = l between -limit and limit */
static Value *
swiglu(OnnxNode *n, Value *g, Value *l)
{
	double alpha = want_float(n, "activation_alpha", 1),
	       beta = want_float(n, "activation_beta", 0);

	if (!g || !l)
		return NULL;
	if (has_attribute(n, "swiglu_limit")) {
		double limit = want_float(n, "swiglu_limit", 0);
		g = e_at_most(n, g, e_number(n, g, limit));
		l = e_at_most(n, e_at_least(n, l, e_number(n, l, -limit)), e_number(n, l, limit));
	}
	Value *gate = e_binary(n, OP_mul, g, e_unary(n, OP_sigmoid, e_with(n, OP_mul, g, alpha)));
	return e_binary(n, OP_mul, gate, e_with(n, OP_add, l, beta));
}

/* Splits [E, T, 2 I] into halves; interleaved: every other number. */
static void
halves(OnnxNode *n, const Experts *e, Value *x, bool interleaved, Value *out[2])
{
	Ints half = {.n = 3, .at = {e->experts, e->tokens, e->inner}}, pairs = half;

	pairs.at[pairs.n++] = 2;
	for (int i = 0; i < 2; i++)
		out[i] = interleaved
		                 ? e_reshape(n,
		                             e_slice_axis(n, e_reshape(n, x, pairs), 3, i, i + 1),
		                             half)
		                 : e_slice_axis(n, x, 2, i * e->inner, (i + 1) * e->inner);
}

/* The activation between the first and the second layer: [E, T, inner]. */
static Value *
activated(OnnxNode *n, const Experts *e, const char *type, Value *x)
{
	int64_t fusion = want_int(n, "swiglu_fusion", 0);
	Value *both[2];

	if (!x)
		return NULL;
	if (!strcmp(type, "swiglu")) {
		both[0] = x;
		both[1] = fusion ? NULL : through(n, e->x, &e->fc3);
		if (fusion)
			halves(n, e, x, fusion == 1, both);
		return swiglu(n, both[0], both[1]);
	}
	Value *y = x;
	if (!strcmp(type, "relu"))
		y = e_curve(n, x, "Relu", 0, NULL);
	else if (!strcmp(type, "gelu"))
		y = e_gelu(n, x, true); /* as in onnxruntime's kernels */
	else if (!strcmp(type, "silu"))
		y = e_silu(n, x);
	return e->fc3.weight ? e_binary(n, OP_mul, y, through(n, e->x, &e->fc3)) : y;
}

static bool
want_experts(OnnxNode *n, const char *type, Experts *e)
{
	Value *x = want_float_input(n, 0), *second = want_float_input(n, 4);
	int64_t fusion = want_int(n, "swiglu_fusion", 0);
	bool fused = !strcmp(type, "swiglu") && fusion;

	if (fusion < 0 || fusion > 2)
		report_invalid(n, "swiglu_fusion is %lld, needs 0, 1 or 2", (long long)fusion);
	if (want_int(n, "use_sparse_mixer", 0))
		report_unsupported(n, "use_sparse_mixer");
	if (!x || !second || n->failed)
		return false;
	int rank = x->type->rank;
	if ((rank != 2 && rank != 3) || second->type->rank != 3) {
		report_invalid(n, "input of rank %d, needs 2 or 3, and input 4 of rank %d, needs 3",
		               rank, second->type->rank);
		return false;
	}
	e->hidden = x->type->dims[rank - 1];
	e->tokens = rank == 3 ? x->type->dims[0] * x->type->dims[1] : x->type->dims[0];
	e->inner = second->type->dims[2];
	e->x = e_reshape(n, x, (Ints){.n = 2, .at = {e->tokens, e->hidden}});
	e->gates = want_gates(n, e);
	if (!e->x || !e->gates ||
	    !want_layer(n, 2, e->experts, fused ? 2 * e->inner : e->inner, e->hidden, &e->fc1) ||
	    !want_layer(n, 4, e->experts, e->hidden, e->inner, &e->fc2))
		return false;
	if (!has_input(n, 6) && !strcmp(type, "swiglu") && !fused)
		report_invalid(n, "swiglu without fc3 and without swiglu_fusion");
	if (has_input(n, 6) && fused)
		report_invalid(n, "fc3 beside a fused swiglu");
	return !n->failed &&
	       (!has_input(n, 6) || want_layer(n, 6, e->experts, e->inner, e->hidden, &e->fc3));
}

static void
import_moe(OnnxNode *n)
{
	const char *type = want_word(n, "activation_type", "relu gelu silu swiglu identity");
	Experts e = {0};

	if (!want_experts(n, type, &e))
		return;
	Value *y = activated(n, &e, type, through(n, e.x, &e.fc1));
	y = through(n, y, &e.fc2); /* [E, T, H] */
	Value *gates = e_reshape(n, e_transpose(n, e.gates, (Ints){.n = 2, .at = {1, 0}}),
	                         (Ints){.n = 3, .at = {e.experts, e.tokens, 1}});
	y = e_reduce(n, REDUCE_SUM, e_binary(n, OP_mul, y, gates), (Ints){.n = 1, .at = {0}},
	             false);
	set_output(n, 0, e_reshape(n, y, shape_of(want_input(n, 0))));
}

const ImportRow import_experts_rows[] = {
	/* name from  to  importer  extra  domain */
	{"MoE", 1, 0, import_moe, {0}, "com.microsoft", .facts = {.weights = INPUTS(2, 7)}},
	{0},
};

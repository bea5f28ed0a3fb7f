/* Folds batch norms into the convolutions before them. A batch norm with running statistics, y =
 * (conv(x, w) + b - mean) s + beta with s = scale / sqrt(variance + epsilon), is a convolution of x
 * with the weight w s and the bias (b - mean) s + beta (Jacob et al. 2018, arXiv:1712.05877, 3.2). */
#include "frontend/file/file.h"

#include <math.h>
#include <string.h>

typedef struct {
	Model *model;
	Diag *diag;
	Neighbours all;
	int n_folded, n_left;
} Fold;

/* Loads the numbers of an f32 initializer. n not 0: it must be a vector of n numbers. NULL: it is
 * of another type or shape, or cannot be loaded. */
static const float *
load(Fold *f, const char *name, int64_t n, TensorData *out)
{
	const TensorProto *t = strmap_get(f->model->initializers, name);

	if (!t || t->data_type != ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT ||
	    !tensor_load(f->model, t, false, out, f->diag) ||
	    (n && (out->rank != 1 || out->n != n)))
		return NULL;
	return out->data;
}

/* Makes `data` an input of the convolution. `data` replaces the content of the old initializer if
 * nothing else reads that initializer; else it goes to a new initializer. */
static void
put(Fold *f, NodeProto *conv, size_t input, const char *base, bool is_own, const TensorData *like,
    const float *data)
{
	Ints shape = {.n = like->rank};
	const char *name = base;

	memcpy(shape.at, like->dims, sizeof(*shape.at) * (size_t)like->rank);
	if (is_own)
		edit_set_initializer(f->model, base, F32, &shape, data);
	else
		name = edit_add_initializer(f->model, base, "_folded", F32, &shape, data);
	if (input < conv->n_input)
		conv->input[input] = (char *)(uintptr_t)name;
	else
		conv->input = edit_grown(f->model, conv->input, conv->n_input++, name);
}

static bool
others_are_read(const Fold *f, const NodeProto *p)
{
	bool any = false;

	for (size_t i = 1; i < p->n_output; i++)
		any |= *p->output[i] && count_readers(&f->all, p->output[i]) > 0;
	return any;
}

static bool
are_finite(const float *x, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		if (!isfinite(x[i]))
			return false;
	return true;
}

static bool
fold_one(Fold *f, NodeProto *norm)
{
	enum { SCALE = 1, BETA, MEAN, VARIANCE, N_INPUTS };
	NodeProto *conv = norm->n_input == N_INPUTS ? maker_of(&f->all, norm->input[0]) : NULL;
	bool is_transposed = is_op(conv, "ConvTranspose");
	const AttributeProto *epsilon = node_attribute(norm, "epsilon");
	TensorData weight, of[N_INPUTS], bias = {0};
	const float *at[N_INPUTS], *w;

	if ((!is_op(conv, "Conv") && !is_transposed) ||
	    count_readers(&f->all, norm->input[0]) != 1 || others_are_read(f, norm) ||
	    (is_transposed && node_int(conv, "group", 1) != 1) ||
	    !(w = load(f, conv->input[1], 0, &weight)) || weight.rank < 3)
		return false;
	int axis = is_transposed ? 1 : 0;
	int64_t channels = weight.dims[axis], inner = 1;
	bool has_bias = conv->n_input > 2 && *conv->input[2];
	for (int i = SCALE; i < N_INPUTS; i++)
		if (!(at[i] = load(f, norm->input[i], channels, &of[i])))
			return false;
	const float *b = has_bias ? load(f, conv->input[2], channels, &bias) : NULL;
	if (has_bias && !b)
		return false;
	for (int i = axis + 1; i < weight.rank; i++)
		inner *= weight.dims[i];
	float *folded = NEW_ARRAY(f->model->arena, float, weight.n),
	      *shift = NEW_ARRAY(f->model->arena, float, channels);
	double *factor = NEW_ARRAY(f->model->arena, double, channels);
	for (int64_t c = 0; c < channels; c++) {
		factor[c] = at[SCALE][c] / sqrt((double)at[VARIANCE][c] +
		                                (epsilon ? (double)epsilon->f : (double)1e-5f));
		shift[c] = (float)(((b ? (double)b[c] : 0) - at[MEAN][c]) * factor[c] +
		                   at[BETA][c]);
	}
	for (int64_t i = 0; i < weight.n; i++)
		folded[i] = (float)(w[i] * factor[i / inner % channels]);
	if (!are_finite(folded, weight.n) || !are_finite(shift, channels))
		return false;
	edit_node(f->model, conv);
	const char *bias_name = has_bias ? conv->input[2] : norm->input[BETA];
	put(f, conv, 1, conv->input[1], count_readers(&f->all, conv->input[1]) == 1, &weight,
	    folded);
	put(f, conv, 2, bias_name, count_readers(&f->all, bias_name) == 1, &of[BETA], shift);
	conv->output[0] = norm->output[0];
	strmap_put(f->all.makers, norm->output[0], conv);
	edit_remove_node(f->model, norm);
	return true;
}

void
model_fold_batch_norms(Model *model, Diag *diag)
{
	Arena *scratch = arena_new();
	GraphProto *g = edit_graph(model);
	Fold f = {.model = model, .diag = diag, .all = neighbours_of(g, scratch)};
	size_t n = g->n_node;
	NodeProto **nodes = NEW_ARRAY(scratch, NodeProto *, (int64_t)n);

	if (n)
		memcpy(nodes, g->node, sizeof(*nodes) * n);
	for (size_t i = 0; i < n; i++)
		if (is_op(nodes[i], "BatchNormalization"))
			*(fold_one(&f, nodes[i]) ? &f.n_folded : &f.n_left) += 1;
	if (f.n_left)
		diag_warning(
			diag,
			"%d of %d batch norms are not folded: they follow no convolution of "
			"their own, their numbers are not f32, or their factors are not finite",
			f.n_left, f.n_left + f.n_folded);
	arena_free(scratch);
}

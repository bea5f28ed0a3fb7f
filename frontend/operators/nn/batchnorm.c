/* Imports BatchNormalization. Its inference form normalizes by the running statistics. Training
 * form normalizes by the batch and computes the next running statistics, running' = m running + (1
 * - m) batch, with the population variance. If the running statistics are states, @forward stores
 * the next ones at its end, and @inference has the inference form. A frozen batch norm has the
 * inference form in both functions. The file marks training form by training_mode = 1 from opset 14
 * on; before opset 14, by more than one output. */
#include "frontend/import/import.h"

/* The inputs, converted to the widest of their types. Results are converted back to the types of x
 * and of the statistics. */
typedef struct {
	Value *x, *scale, *bias, *mean, *variance;
	DType type, statistics;
} BatchNorm;

static void
set_normalized(OnnxNode *n, const BatchNorm *bn, Value *y)
{
	y = e_binary(n, OP_add, y, e_channel(n, bn->bias, bn->x, 1));
	set_output(n, 0, e_cast(n, y, bn->type));
}

static void
inference_form(OnnxNode *n, const BatchNorm *bn)
{
	Value *shifted = e_with(n, OP_add, bn->variance, want_float(n, "epsilon", 1e-5f));
	Value *factor = e_binary(n, OP_mul, bn->scale, e_unary(n, OP_rsqrt, shifted));
	Value *d = e_binary(n, OP_sub, bn->x, e_channel(n, bn->mean, bn->x, 1));
	Value *y = e_binary(n, OP_mul, d, e_channel(n, factor, bn->x, 1));

	set_normalized(n, bn, y);
	for (int i = 1; i < n_outputs(n); i++)
		set_output(n, i, e_cast(n, i % 2 ? bn->mean : bn->variance, bn->statistics));
}

/* m running + (1 - m) batch */
static Value *
moved(OnnxNode *n, Value *running, Value *batch)
{
	double m = want_float(n, "momentum", 0.9f);

	return e_binary(n, OP_add, e_with(n, OP_mul, running, m),
	                e_binary(n, OP_mul, batch, e_with(n, OP_sub, e_number(n, batch, 1), m)));
}

/* Each call of a norm updates its statistics, as in PyTorch. All nodes of its calls may read the
 * same initializer, or each node the running statistics of the node before. */
static void
update(OnnxNode *n, const BatchNorm *bn, Value *running, Value *batch, int input, int output)
{
	Value *next = e_cast(n, moved(n, running, batch), bn->statistics);
	State *state = input_statistic(n, input);

	set_output(n, output, next);
	if (output + 2 < n_outputs(n)) /* opset 13 and before: saved batch statistics */
		set_output(n, output + 2, e_cast(n, batch, bn->statistics));
	if (!state || !next || !outside_of_bodies(n, "running statistics"))
		return;
	Value *before = importer_next_content(n->im, state);
	if (before)
		next = e_cast(n, moved(n, e_cast(n, before, running->type->dtype), batch),
		              bn->statistics);
	importer_store_at_end(n->im, state, next);
}

/* The mean of v over all ranks (processes of the run). All ranks have equally many elements. */
static Value *
over_ranks(OnnxNode *n, Value *mean)
{
	Value *ranks = function_hyperparameter(n->b->f, SCALAR_RANKS);

	if (!mean || !n->im->options->sync_batch_norm)
		return mean;
	n->im->has_synchronized_norms = true;
	ranks = e_cast(n, ranks, mean->type->dtype);
	return e_binary(n, OP_div, e_op(n, OP_all_reduce, 1, &mean, NULL),
	                e_broadcast(n, ranks, ints_of_type(mean->type)));
}

/* Does the same as e_normalize, with statistics over the batches of all ranks. */
static Value *
normalize(OnnxNode *n, Value *x, Ints axes, Value **mean, Value **variance)
{
	*mean = over_ranks(n, e_mean(n, x, axes, true));
	Value *d = e_binary(n, OP_sub, x, *mean);
	*variance = over_ranks(n, e_mean(n, e_binary(n, OP_mul, d, d), axes, true));
	Value *shifted = e_with(n, OP_add, *variance, want_float(n, "epsilon", 1e-5f));
	return e_binary(n, OP_mul, d, e_unary(n, OP_rsqrt, shifted));
}

static void
training_form(OnnxNode *n, const BatchNorm *bn)
{
	Ints axes = {0}, channels = {.n = 1, .at = {bn->x->type->dims[1]}};
	Value *mean, *variance, *inverse, *y;

	for (int i = 0; i < bn->x->type->rank; i++)
		if (i != 1)
			axes.at[axes.n++] = i;
	if (n->im->options->sync_batch_norm) {
		y = normalize(n, bn->x, axes, &mean, &variance);
	} else {
		y = e_normalize(n, bn->x, axes, want_float(n, "epsilon", 1e-5f), &mean, &inverse);
		Value *d = e_binary(n, OP_sub, bn->x, mean);
		variance = e_mean(n, e_binary(n, OP_mul, d, d), axes, false);
	}
	y = e_binary(n, OP_mul, y, e_channel(n, bn->scale, bn->x, 1));
	set_normalized(n, bn, y);
	update(n, bn, bn->mean, e_reshape(n, mean, channels), 3, 1);
	update(n, bn, bn->variance, e_reshape(n, variance, channels), 4, 2);
	n->im->differs = true;
}

/* Does the input read a parameter that --freeze freezes, perhaps under the name of a parameter tied
 * to it? */
static bool
is_frozen_parameter(const OnnxNode *n, int input)
{
	const Repairs *r = n->im->repairs;
	const Weight *w = r ? repairs_weight(r, n->proto->input[input]) : NULL;

	if (w && w->tied)
		w = w->tied;
	return w && w->kind == WEIGHT_PARAMETER && weight_is_frozen(r, w);
}

/* A frozen batch norm normalizes by its running statistics and does not update them, as in Keras. */
static bool
is_kept(OnnxNode *n)
{
	if (!is_frozen_parameter(n, 1) || !is_frozen_parameter(n, 2))
		return false;
	n->im->has_frozen_norms = true;
	if (n->im->options->update_statistics)
		return false;
	if (!n->im->inference)
		repairs_note(n->im->repairs, "batchnorm",
		             "%s is frozen: it normalizes by its running statistics, which stay as "
		             "they are (--statistics=update: by the batch)",
		             quoted(n->im->model, node_location(n->proto)));
	return true;
}

/* x, scale and bias, and the statistics may have three float types; converts them to the widest. */
static void
unify(OnnxNode *n, BatchNorm *bn)
{
	Value **parts[] = {&bn->x, &bn->scale, &bn->bias, &bn->mean, &bn->variance};
	DType wide = bn->x->type->dtype;

	for (int i = 1; i < COUNT(parts); i++) {
		DType t = (*parts[i])->type->dtype;
		if (t != wide && dtype_is_float(t))
			wide = dtype_info[t].bits > dtype_info[wide].bits ? t
			       : dtype_info[t].bits == dtype_info[wide].bits
			               ? F32 /* f16 and bf16 */
			               : wide;
	}
	bn->type = bn->x->type->dtype;
	bn->statistics = bn->mean->type->dtype;
	for (int i = 0; i < COUNT(parts); i++)
		if (is_float(*parts[i]))
			*parts[i] = e_cast(n, *parts[i], wide);
}

static void
import_batch_norm(OnnxNode *n)
{
	BatchNorm bn = {.x = want_float_input(n, 0),
	                .scale = want_input(n, 1),
	                .bias = want_input(n, 2),
	                .mean = want_input(n, 3),
	                .variance = want_input(n, 4)};
	bool training = n->extra->flag ? want_int(n, "training_mode", 0) : n_outputs(n) > 1;

	if (!bn.x || !bn.scale || !bn.bias || !bn.mean || !bn.variance)
		return;
	unify(n, &bn);
	if (bn.x->type->rank < 2) {
		report_invalid(n, "input of rank %d, needs 2 or more", bn.x->type->rank);
		return;
	}
	if (!e_channel(n, bn.mean, bn.x, 1) || !e_channel(n, bn.variance, bn.x, 1))
		return; /* the next statistics must have the shape of the old ones */
	if (!want_int(n, "spatial", 1)) {
		report_unsupported(n, "spatial = 0");
		return;
	}
	if (n->extra->flag && !training && n_outputs(n) > 1) {
		report_invalid(n, "%d outputs, with training_mode = 0 there is one", n_outputs(n));
		return;
	}
	bool exported_so = training;
	if (!training && n->im->options->restore_train_mode && n->im->repairs &&
	    repair_enabled(n->im->options, "batchnorm")) {
		training = n->im->restored = true;
		if (!n->im->inference)
			repairs_note(n->im->repairs, "batchnorm", "training form of %s",
			             quoted(n->im->model, n->proto->output[0]));
	}
	bool kept = training && !n->im->inference && is_kept(n);
	if (exported_so)
		importer_in_training_form(n, "batch norm", !kept);
	if (training && !n->im->inference && !kept)
		training_form(n, &bn);
	else
		inference_form(n, &bn);
}

const ImportRow import_batchnorm_rows[] = {
	/* name               from  to  importer  extra */
	{"BatchNormalization", 6, 13, import_batch_norm,
         .facts = {.weights = INPUTS(1, 2), .channels = INPUTS(1, 2), .statistics = INPUTS(3, 4)}},
	{"BatchNormalization", 14, 0, import_batch_norm, {.flag = true}, NULL},
	{0},
};

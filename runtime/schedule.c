/* Hyperparameters: the user's, else the optimizer's defaults from the info table; the learning
 * rate of each step; the scalar block that kernels read. */
#include "runtime/runtime_impl.h"

#include <math.h>
#include <string.h>

/* r: how far training is between warm-up (0) and its end (1). */
typedef double (*LrCurve)(double lr, double min_lr, double r);

static double
lr_constant(double lr, double min_lr, double r)
{
	(void)min_lr;
	(void)r;
	return lr;
}

static double
lr_linear(double lr, double min_lr, double r)
{
	return lr + (min_lr - lr) * r;
}

static double
lr_cosine(double lr, double min_lr, double r)
{
	return min_lr + (lr - min_lr) * (1 + cos(3.14159265358979323846 * r)) / 2;
}

/* Warm-up, stable, decay: flat for the first nine tenths. */
static double
lr_wsd(double lr, double min_lr, double r)
{
	return r < 0.9 ? lr : lr_linear(lr, min_lr, (r - 0.9) / 0.1);
}

const char *const lr_schedule_names[] = {"constant", "linear", "cosine", "wsd", NULL};
static const LrCurve lr_curves[] = {lr_constant, lr_linear, lr_cosine, lr_wsd};

double
hyper_lr(const Hyper *h, int64_t s)
{
	double lr = h->values[SCALAR_LR], span = (double)(h->steps - h->warmup);
	int curve = 0;

	if (s < h->warmup)
		return lr * (double)(s + 1) / (double)h->warmup;
	while (strcmp(lr_schedule_names[curve], h->lr_schedule) != 0)
		curve++;
	return lr_curves[curve](lr, h->min_lr, span > 0 ? (double)(s - h->warmup) / span : 1);
}

void
hyper_scalars(const Hyper *h, int64_t s, int64_t offset, Scalar out[N_SCALARS])
{
	if (!out)
		return;
	for (int i = 0; i < N_SCALARS; i++)
		out[i].f = h->values[i];
	out[SCALAR_LR].f = hyper_lr(h, s);
	out[SCALAR_STEP].u = (uint64_t)s;
	out[SCALAR_SEED].u = h->seed;
	out[SCALAR_SHARD_FIRST].u = 0; /* ranks hold whole states */
	out[SCALAR_OFFSET].u = (uint64_t)offset;
}

typedef struct {
	const char *option, *key;
	ScalarIndex index;
	size_t offset; /* in GradcOptions */
	double low, high;
} HyperRow;

static const HyperRow hyper_rows[] = {
	{"--lr", "default.lr", SCALAR_LR, offsetof(GradcOptions, lr), 0, INFINITY},
	{"--beta1", "default.beta1", SCALAR_BETA1, offsetof(GradcOptions, beta1), 0, 1},
	{"--beta2", "default.beta2", SCALAR_BETA2, offsetof(GradcOptions, beta2), 0, 1},
	{"--eps", "default.eps", SCALAR_EPS, offsetof(GradcOptions, eps), 0, INFINITY},
	{"--weight-decay", "default.weight_decay", SCALAR_WEIGHT_DECAY,
         offsetof(GradcOptions, weight_decay), 0, INFINITY},
	{"--momentum", "default.momentum", SCALAR_MOMENTUM, offsetof(GradcOptions, momentum), 0,
         INFINITY},
};

static Status
hyper_set(const Format *f, const GradcOptions *o, const HyperRow *row, Hyper *h)
{
	double given = *(const double *)((const char *)o + row->offset);
	bool has_default = format_info_get(f, row->key) != NULL;
	const char *optimizer = format_info_get(f, "optimizer");

	h->values[row->index] = isnan(given) ? info_double(f, row->key, 0) : given;
	if (isnan(given))
		return NULL;
	if (given < row->low || given > row->high || (row->high == 1 && given == 1) || isinf(given))
		return status_error(EXIT_USAGE, "%s: %g is out of range", row->option, given);
	if (!has_default && given != 0)
		return status_error(EXIT_USAGE, "%s: the optimizer %s does not use it", row->option,
		                    optimizer ? optimizer : "of this executable");
	return NULL;
}

static bool
is_schedule(const char *name)
{
	for (int i = 0; lr_schedule_names[i]; i++)
		if (strcmp(lr_schedule_names[i], name) == 0)
			return true;
	return false;
}

Status
hyper_new(const Format *f, const GradcOptions *o, Hyper *out)
{
	*out = (Hyper){.lr_schedule = o->lr_schedule,
	               .warmup = o->warmup,
	               .min_lr = isnan(o->min_lr) ? 0 : o->min_lr};
	for (int i = 0; i < COUNT(hyper_rows); i++)
		RETURN_IF_ERROR(hyper_set(f, o, &hyper_rows[i], out));
	if (!is_schedule(o->lr_schedule))
		return status_error(EXIT_USAGE,
		                    "--lr-schedule: \"%s\" is none of constant, linear, cosine, "
		                    "wsd",
		                    o->lr_schedule);
	if (!isnan(o->clip_norm) && o->clip_norm < 0)
		return status_error(EXIT_USAGE, "--clip-norm: %g is negative", o->clip_norm);
	out->values[SCALAR_CLIP_NORM] = o->clip_norm > 0 ? o->clip_norm : INFINITY;
	out->values[SCALAR_RANKS] = 1;
	out->seed = o->seed;
	return NULL;
}

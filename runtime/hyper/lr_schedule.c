/* Hyperparameters: the user's values; if the user gave no value, the optimizer's default from the info table of the executable.
 * Computes the learning rate of each step, and the scalar block that kernels read. */
#include "runtime/hyper/curves.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- learning rates: rows of a table. `at`: steps since the warm-up; `of`: steps from the warm-up to the end. */
typedef double (*LrCurve)(const Hyper *h, double at, double of);

static double
lr_constant(const Hyper *h, double at, double of)
{
	(void)at;
	(void)of;
	return h->values[SCALAR_LR];
}

/* A rate between the least learning rate (left = 0) and the full one (left = 1). */
static double
lr_between(const Hyper *h, double left)
{
	return h->min_lr + (h->values[SCALAR_LR] - h->min_lr) * left;
}

static double
part_of(double at, double of)
{
	return of > 0 ? at / of : 1;
}

static double
lr_line(const Hyper *h, double part)
{
	double lr = h->values[SCALAR_LR];

	return lr + (h->min_lr - lr) * part;
}

static double
lr_linear(const Hyper *h, double at, double of)
{
	return lr_line(h, part_of(at, of));
}

static double
cosine(double part)
{
	return (1 + cos(3.14159265358979323846 * part)) / 2;
}

static double
lr_cosine(const Hyper *h, double at, double of)
{
	return lr_between(h, cosine(part_of(at, of)));
}

/* Warm-up, stable, decay: the rate is constant for nine tenths of the steps after the warm-up, then falls along a line. */
static double
lr_wsd(const Hyper *h, double at, double of)
{
	double part = part_of(at, of);

	return part < 0.9 ? h->values[SCALAR_LR] : lr_line(h, (part - 0.9) / 0.1);
}

/* torch's PolynomialLR over the whole training. */
static double
lr_polynomial(const Hyper *h, double at, double of)
{
	return lr_between(h, pow(1 - part_of(at, of), h->lr_settings[0]));
}

/* torch's StepLR with settings size, gamma. */
static double
lr_step(const Hyper *h, double at, double of)
{
	(void)of;
	return h->values[SCALAR_LR] * pow(h->lr_settings[1], floor(at / h->lr_settings[0]));
}

/* torch's OneCycleLR with cosines (Smith and Topin, arXiv:1708.07120), settings pct_start, div_factor, final_div_factor. The
 * rate rises from lr / div_factor to lr during the first pct_start of the steps, then falls to lr / div_factor /
 * final_div_factor at the last step. */
static double
lr_one_cycle(const Hyper *h, double at, double of)
{
	double most = h->values[SCALAR_LR], first = most / h->lr_settings[1];
	double last = first / h->lr_settings[2];
	double up = h->lr_settings[0] * of - 1, end = of - 1;

	if (at <= up)
		return most + (first - most) * cosine(up > 0 ? at / up : 1);
	return last + (most - last) * cosine(end > up ? (at - up) / (end - up) : 1);
}

/* The rate of the plateau schedule, which evaluations reduce (plateau.c). */
static double
lr_plateau(const Hyper *h, double at, double of)
{
	(void)at;
	(void)of;
	return h->plateau.lr;
}

/* The schedule of --find-lr (Smith, arXiv:1506.01186), settings low, high: grows by the same factor in each step. */
static double
lr_sweep(const Hyper *h, double at, double of)
{
	double low = h->lr_settings[0], high = h->lr_settings[1];

	return low * pow(high / low, of > 1 ? at / (of - 1) : 0);
}

/* The range of a setting. With no bits, it must be greater than `low` and at most `high` */
typedef enum { FROM_LOW = 1, BELOW_HIGH = 2, WHOLE = 4 } LrRange;
typedef struct {
	const char *name;
	double otherwise, low, high;
	int range; /* bits of LrRange */
} LrSetting;
typedef struct {
	const char *name;
	LrCurve curve;
	bool has_end; /* the schedule depends on the number of steps */
	LrSetting settings[MOST_LR_SETTINGS];
} LrRow;
static const LrRow lr_rows[] = {
	{"constant", lr_constant},
	{"linear", lr_linear, true},
	{"cosine", lr_cosine, true},
	{"wsd", lr_wsd, true},
	{"polynomial", lr_polynomial, true, {{"power", 1, 0, INFINITY}}},
	{"step", lr_step, false, {{"size", 30, 0, INFINITY}, {"gamma", 0.1, 0, INFINITY}}},
	{"one-cycle",
         lr_one_cycle,
         true,
         {{"pct_start", 0.3, 0, 1},
          {"div_factor", 25, 0, INFINITY},
          {"final_div_factor", 1e4, 0, INFINITY}}},
	{"plateau",
         lr_plateau,
         false,
         {[PLATEAU_FACTOR] = {"factor", 0.1, 0, 1, BELOW_HIGH},
          [PLATEAU_PATIENCE] = {"patience", 10, 0, 1e9, FROM_LOW | WHOLE},
          [PLATEAU_THRESHOLD] = {"threshold", 1e-4, 0, 1, FROM_LOW | BELOW_HIGH},
          [PLATEAU_COOLDOWN] = {"cooldown", 0, 0, 1e9, FROM_LOW | WHOLE},
          [PLATEAU_EPS] = {"eps", 1e-8, 0, INFINITY, FROM_LOW}}},
	{"deepspeed-warmup",
         lr_deepspeed_warmup,
         false,
         {{"steps", 1000, 0, INFINITY, FROM_LOW}, {"log", 1, 0, 1, FROM_LOW | WHOLE}}},
	{"deepspeed-decay",
         lr_deepspeed_decay,
         true,
         {{"steps", 1000, 0, INFINITY, FROM_LOW},
          {"log", 1, 0, 1, FROM_LOW | WHOLE},
          {"total", 0, 0, INFINITY, FROM_LOW}}},
	{"deepspeed-cosine",
         lr_deepspeed_cosine,
         true,
         {{"steps", 1000, 0, INFINITY, FROM_LOW},
          {"log", 1, 0, 1, FROM_LOW | WHOLE},
          {"total", 0, 0, INFINITY, FROM_LOW},
          {"min_ratio", 0, 0, INFINITY, FROM_LOW},
          {"cos_min_ratio", 1e-4, 0, INFINITY, FROM_LOW}}},
	{"deepspeed-range",
         lr_deepspeed_range,
         false,
         {{"size", 2000, 0, INFINITY},
          {"rate", 1, 0, INFINITY, FROM_LOW},
          {"stairs", 0, 0, 1, FROM_LOW | WHOLE}}},
	{"deepspeed-cycle",
         lr_deepspeed_cycle,
         false,
         {{"first", 2000, 1, INFINITY, FROM_LOW},
          {"second", 0, 0, INFINITY, FROM_LOW},
          {"size", 0, 0, INFINITY, FROM_LOW},
          {"rate", 0, 0, INFINITY, FROM_LOW}}},
	{"sweep", lr_sweep, true, {{"low", 1e-7, 0, INFINITY}, {"high", 10, 0, INFINITY}}},
};
/* clang-format off */
const char *const lr_schedule_names[] = {
	"constant", "linear", "cosine", "wsd", "polynomial", "step", "one-cycle", "plateau",
	"deepspeed-warmup", "deepspeed-decay", "deepspeed-cosine", "deepspeed-range", "deepspeed-cycle", "sweep", NULL};
/* clang-format on */

/* The row of "NAME" or "NAME,KEY=VALUE"; NULL if there is no such row. */
static const LrRow *
lr_row(const char *text)
{
	size_t n = strcspn(text, ",");

	for (int i = 0; i < COUNT(lr_rows); i++)
		if (strlen(lr_rows[i].name) == n && memcmp(lr_rows[i].name, text, n) == 0)
			return &lr_rows[i];
	return NULL;
}

static bool
is_in_range(const LrSetting *s, double x)
{
	bool above = s->range & FROM_LOW ? x >= s->low : x > s->low;
	bool below = s->range & BELOW_HIGH ? x < s->high : x <= s->high;

	return above && below && !isinf(x) && (!(s->range & WHOLE) || x == floor(x));
}

static Status
set_lr_setting(const LrRow *row, const char *word, size_t n, double *settings)
{
	char copy[64];
	double value;

	snprintf(copy, sizeof(copy), "%.*s", (int)(n < sizeof(copy) ? n : sizeof(copy) - 1), word);
	char *equals = strchr(copy, '=');
	if (equals)
		*equals = 0;
	for (int i = 0; i < MOST_LR_SETTINGS && row->settings[i].name; i++) {
		const LrSetting *s = &row->settings[i];
		if (strcmp(s->name, copy) != 0)
			continue;
		if (!equals || n >= sizeof(copy) || !parse_double(equals + 1, &value) ||
		    !is_in_range(s, value))
			return status_error(EXIT_USAGE, "--lr-schedule=%s: %s=%s is out of range",
			                    row->name, s->name, equals ? equals + 1 : "");
		settings[i] = value;
		return NULL;
	}
	return status_error(EXIT_USAGE, "--lr-schedule=%s has no setting \"%s\"", row->name, copy);
}

Status
lr_schedule_parse(const char *text, double *settings)
{
	const LrRow *row = lr_row(text);

	if (!row)
		return status_error(
			EXIT_USAGE,
			"--lr-schedule: \"%s\" is not one of constant, linear, cosine, wsd, "
			"polynomial, step, one-cycle, plateau, deepspeed-warmup, "
			"deepspeed-decay, deepspeed-cosine, deepspeed-range, deepspeed-cycle",
			text);
	for (int i = 0; i < MOST_LR_SETTINGS; i++)
		settings[i] = row->settings[i].otherwise;
	size_t n;
	const char *keys = strchr(text, ','), *twice = keys ? text_key_twice(keys + 1, &n) : NULL;
	if (twice)
		return status_error(EXIT_USAGE, "--lr-schedule=%s: %.*s is given twice", text,
		                    (int)n, twice);
	for (const char *word = keys; word; word = strchr(word, ',')) {
		word++;
		RETURN_IF_ERROR(set_lr_setting(row, word, strcspn(word, ","), settings));
	}
	return NULL;
}

bool
lr_schedule_has_end(const char *text)
{
	return lr_row(text)->has_end && !strstr(text, ",total=");
}

bool
lr_schedule_is(const char *text, const char *name)
{
	const LrRow *row = lr_row(text);

	return row && strcmp(row->name, name) == 0;
}

double
hyper_lr(const Hyper *h, int64_t s)
{
	double lr = h->values[SCALAR_LR];

	if (s < h->warmup)
		return lr * (double)(s + 1) / (double)h->warmup;
	return lr_row(h->lr_schedule)
	        ->curve(h, (double)(s - h->warmup), (double)(h->steps - h->warmup));
}

void
hyper_scalars(const Hyper *h, int64_t s, int64_t offset, Scalar out[N_SCALARS])
{
	if (!out)
		return;
	for (int i = 0; i < N_SCALARS; i++)
		out[i].f = h->values[i];
	out[SCALAR_LR].f = hyper_lr(h, s);
	out[SCALAR_LR_FACTOR].f = h->values[SCALAR_LR] > 0 ? out[SCALAR_LR].f / h->values[SCALAR_LR]
	                                                   : 0;
	out[SCALAR_STEP].u = (uint64_t)s;
	out[SCALAR_SEED].u = h->seed;
	out[SCALAR_SHARD_FIRST].u = 0; /* used only if ranks hold parts */
	out[SCALAR_OFFSET].u = (uint64_t)offset;
}

typedef struct {
	const char *option, *key;
	ScalarIndex index;
	size_t offset; /* in GradcOptions */
} HyperRow;

static const HyperRow hyper_rows[] = {
#define HYPER(index, name, option, below, help) \
	{"--" option, "default." #name, SCALAR_##index, offsetof(GradcOptions, name)},
#include "base/numbers/optimizer_list.def"
};

static Status
hyper_set(const Format *f, const GradcOptions *o, const HyperRow *row, Hyper *h)
{
	double given = *(const double *)((const char *)o + row->offset);
	bool has_default = format_info_get(f, row->key) != NULL;
	const char *optimizer = format_info_get(f, "optimizer");

	h->values[row->index] = isnan(given) ? format_info_double(f, row->key, 0) : given;
	if (isnan(given))
		return NULL;
	if (given < 0 || given >= hyperparameters[row->index].below)
		return status_error(EXIT_USAGE, "%s: %g is out of range", row->option, given);
	if (!has_default && given != 0)
		return status_error(EXIT_USAGE, "%s: the optimizer %s does not use it", row->option,
		                    optimizer ? optimizer : "of this executable");
	return NULL;
}

/* NaN and 0 mean no limit. */
static Status
clip_set(const char *option, double given, double *out)
{
	if (given < 0)
		return status_error(EXIT_USAGE, "%s: %g is negative", option, given);
	*out = given > 0 ? given : INFINITY;
	return NULL;
}

Status
hyper_new(const Format *f, const GradcOptions *o, Hyper *out)
{
	*out = (Hyper){.lr_schedule = o->lr_schedule,
	               .warmup = o->warmup,
	               .min_lr = isnan(o->min_lr) ? 0 : o->min_lr};
	for (int i = 0; i < COUNT(hyper_rows); i++)
		RETURN_IF_ERROR(hyper_set(f, o, &hyper_rows[i], out));
	RETURN_IF_ERROR(lr_schedule_parse(o->lr_schedule, out->lr_settings));
	if (lr_schedule_is(o->lr_schedule, "plateau"))
		out->plateau = plateau_new(out->values[SCALAR_LR]);
	RETURN_IF_ERROR(clip_set("--clip-norm", o->clip_norm, &out->values[SCALAR_CLIP_NORM]));
	RETURN_IF_ERROR(clip_set("--clip-value", o->clip_value, &out->values[SCALAR_CLIP_VALUE]));
	out->values[SCALAR_RANKS] = 1;
	out->seed = o->seed;
	return NULL;
}

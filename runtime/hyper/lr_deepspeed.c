/* DeepSpeed's learning rates (deepspeed/runtime/lr_schedules.py), computed so that every step has the same rate as with
 * DeepSpeed. DeepSpeed's scheduler starts at iteration -1 and advances after each step. So step s, counted from 0, has the
 * learning rate of iteration s - 1. Below, lr is the full learning rate, least the lowest one, and the other words are settings
 * of the schedule:
 *
 * last = s - 1,  W = max(2, steps),  N = total, or the steps of the training
 * g(s)       0 in step 0;  below W: log(last + 1) / log(W), or last / W without `log`
 * warmup     least + (lr - least) g,  g = 1 from W on
 * decay      the same with g = max(0, (N - last) / max(1, N - W)) from W on
 * cosine     lr r;  r = 0 in step 0, below W: min_ratio + (1 - min_ratio) g, then down to cos_min_ratio
 * range      lr (1 + rate s / size); with `stairs`, s / size is rounded down
 * cycle      up to lr in `first` steps, down in `second`; then least / (1 + rate (s - first - second) / size) */
#include "runtime/hyper/curves.h"

#include <math.h>

/* Settings of warmup, decay and cosine. */
enum { WARM_STEPS, WARM_LOG, WARM_TOTAL, WARM_MIN_RATIO, WARM_COS_MIN_RATIO };

static double
warm_steps(const Hyper *h)
{
	return fmax(2, h->lr_settings[WARM_STEPS]);
}

static double
total_steps(const Hyper *h, double of)
{
	return h->lr_settings[WARM_TOTAL] > 0 ? h->lr_settings[WARM_TOTAL] : of;
}

/* g below W. */
static double
warm_part(const Hyper *h, double last)
{
	if (last < 0)
		return 0;
	return h->lr_settings[WARM_LOG] > 0 ? log(last + 1) / log(warm_steps(h))
	                                    : last / warm_steps(h);
}

static double
above_least(const Hyper *h, double part)
{
	return h->min_lr + (h->values[SCALAR_LR] - h->min_lr) * part;
}

double
lr_deepspeed_warmup(const Hyper *h, double at, double of)
{
	(void)of;
	return above_least(h, at - 1 < warm_steps(h) ? warm_part(h, at - 1) : 1);
}

double
lr_deepspeed_decay(const Hyper *h, double at, double of)
{
	double last = at - 1, warm = warm_steps(h), n = total_steps(h, of);

	return above_least(h, last < warm ? warm_part(h, last)
	                                  : fmax(0, (n - last) / fmax(1, n - warm)));
}

double
lr_deepspeed_cosine(const Hyper *h, double at, double of)
{
	double last = at - 1, warm = warm_steps(h), n = total_steps(h, of);
	double lr = h->values[SCALAR_LR], first = h->lr_settings[WARM_MIN_RATIO];
	double end = h->lr_settings[WARM_COS_MIN_RATIO];

	if (last < 0)
		return 0;
	if (last < warm)
		return lr * (first + (1 - first) * warm_part(h, last));
	double part = fmin(1, (last - warm + 1) / fmax(1, n - warm));
	return lr * (end + (1 - end) * (1 + cos(3.14159265358979323846 * part)) / 2);
}

/* settings: size, rate, stairs */
double
lr_deepspeed_range(const Hyper *h, double at, double of)
{
	double sizes = at / h->lr_settings[0];

	(void)of;
	return h->values[SCALAR_LR] *
	       (1 + h->lr_settings[1] * (h->lr_settings[2] > 0 ? floor(sizes) : sizes));
}

/* settings: first, second (0: same as first), size of the decay after these steps (0: no decay), rate of the decay */
double
lr_deepspeed_cycle(const Hyper *h, double at, double of)
{
	double first = h->lr_settings[0],
	       second = h->lr_settings[1] > 0 ? h->lr_settings[1] : first;
	double size = h->lr_settings[2], behind = at - first - second;

	(void)of;
	if (behind > 0)
		return size > 0 ? h->min_lr / (1 + h->lr_settings[3] * behind / size) : h->min_lr;
	return above_least(h, at <= first ? at / first : -behind / second);
}

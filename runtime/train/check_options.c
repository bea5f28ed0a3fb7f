/* Checks the values of GradcOptions (gradc.h) before a run uses them, for example that the learning rate is not negative. The
 * command line refuses the same values. */
#include "runtime/data/data.h"
#include "runtime/host/host.h"
#include "runtime/train/steps.h"

#include <math.h>
#include <stddef.h>

#define AT(field) offsetof(GradcOptions, field)
static const struct {
	const char *option;
	size_t at; /* offset of an int64_t */
	int64_t least, most;
} numbers[] = {
	{"--steps", AT(steps), -1, GRADC_MOST_STEPS},
	{"--epochs", AT(epochs), -1, GRADC_MOST_PARTS},
	{"--accumulate", AT(accumulate), 0, GRADC_MOST_PARTS},
	{"--warmup", AT(warmup), 0, INT64_MAX},
	{"--global-batch", AT(global_batch), 0, GRADC_MOST_PARTS},
	{"--micro-batch", AT(micro_batch), 0, GRADC_MOST_PARTS},
	{"--shard-size", AT(shard_size), 0, GRADC_MOST_PARTS},
	{"--keep", AT(keep), 0, INT64_MAX},
	{"--shard-bytes", AT(shard_bytes), 1, INT64_MAX},
	{"--threads", AT(threads), 0, MAX_CPUS},
	{"keep_data", AT(keep_data), 0, INT64_MAX},
};

static const struct {
	const char *option;
	size_t at; /* offset of a GradcPairs */
} pairs[] = {
	{"--data", AT(data)},   {"--eval-data", AT(eval_data)}, {"--fill", AT(fill)},
	{"--scale", AT(scale)}, {"--mean-std", AT(mean_std)},
};

static Status
check_both(const GradcOptions *o)
{
	const struct {
		bool one, two;
		const char *names;
	} exclusive[] = {
		{o->steps >= 0, o->epochs >= 0, "--steps and --epochs"},
		{o->adapter, o->load_adapter, "--adapter and --load-adapter"},
		{o->merge, o->unmerge, "--merge and --unmerge"},
		{o->split, o->eval_data.n || o->eval_tokens || o->eval_text,
	         "--split and evaluation data"},
	};

	for (int i = 0; i < COUNT(exclusive); i++)
		if (exclusive[i].one && exclusive[i].two)
			return status_error(EXIT_USAGE, "%s: only one of them", exclusive[i].names);
	return NULL;
}

Status
options_check_values(const GradcOptions *o)
{
	uint64_t seed;
	double share;

	for (int i = 0; i < COUNT(numbers); i++) {
		int64_t value = *(const int64_t *)((const char *)o + numbers[i].at);
		if (value < numbers[i].least || value > numbers[i].most)
			return status_error(
				EXIT_USAGE, "%s: %lld: need a number from %lld, at most %lld",
				numbers[i].option, (long long)value, (long long)numbers[i].least,
				(long long)numbers[i].most);
	}
	for (int i = 0; i < COUNT(pairs); i++)
		RETURN_IF_ERROR(pairs_check(pairs[i].option,
		                            (const GradcPairs *)((const char *)o + pairs[i].at)));
	if (o->accumulate == 0 && o->global_batch == 0)
		return status_error(EXIT_USAGE, "--accumulate: 0 is not positive");
	if (!isnan(o->min_lr) && !(o->min_lr >= 0 && isfinite(o->min_lr)))
		return status_error(EXIT_USAGE, "--min-lr: %g: need a number from 0", o->min_lr);
	int64_t patience;
	if (o->early_stop)
		RETURN_IF_ERROR(early_stop_parse(o->early_stop, &patience, &share));
	if (o->split)
		RETURN_IF_ERROR(split_parse(o->split, &share, &seed));
	return check_both(o);
}

static Status
check_keep_last(const Format *f)
{
	if (format_info_is(f, "keep_last", "1"))
		return NULL;
	if (format_info_is(f, "rows_mix", "1") && !format_info_is(f, "has_batch_statistics", "1"))
		return status_error(EXIT_USAGE,
		                    "--keep-last: the rows of a micro-batch see each other "
		                    "in this model, and would see rows of weight 0");
	return status_error(
		EXIT_USAGE, "--keep-last: this model's %s does not allow rows of weight 0",
		format_info_is(f, "has_batch_statistics", "1") ? "batch statistics" : "loss");
}

Status
options_check_model(const Format *f, const GradcOptions *o)
{
	double most = format_info_double(f, "max_accumulate", 0);

	if (most > 0 && (double)o->accumulate > most)
		return status_error(EXIT_USAGE,
		                    "--accumulate: %lld is more than the model was compiled "
		                    "for, with --max-accumulate=%g",
		                    (long long)o->accumulate, most);
	return o->keep_last ? check_keep_last(f) : NULL;
}

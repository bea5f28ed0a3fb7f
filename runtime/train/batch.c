/* How many micro-batches a step has, and whether they fit --global-batch and --micro-batch. A step is one update; its rows are
 * computed in several micro-batches, one after another. The executable fixes the rows of a micro-batch, and the launcher the
 * number of ranks, so only the number of micro-batches is free. */
#include "runtime/data/data.h"
#include "runtime/train/steps.h"

static const char *
origin_of(const char *origin)
{
	return origin ? origin : "";
}

/* The numbers of rows of a micro-batch for which there are compiled training programs, as text: "2, 3, 5". */
static const char *
rows_compiled(const Gradc *run)
{
	const Format *f = &run->format;
	const char *list = NULL;

	for (int b = 0; b < f->n[SECTION_BINDINGS]; b++) {
		long long rows = (long long)f->bindings[b].rows;
		bool again = false;
		for (int k = 0; k < b; k++)
			again |= f->bindings[k].rows == rows;
		if (!again && program_find(run, ROLE_ACCUMULATE, b))
			list = list ? arena_printf(run->arena, "%s, %lld", list, rows)
			            : arena_printf(run->arena, "%lld", rows);
	}
	return list;
}

static Status
check_micro_batch(const Gradc *run)
{
	const GradcOptions *o = &run->options;
	int64_t rows = run->train->micro_rows;

	if (o->micro_batch == 0 || o->micro_batch == rows)
		return NULL;
	return status_error(EXIT_USAGE,
	                    "%s--micro-batch=%lld: %s rows are compiled in; compile with "
	                    "--batch=%lld, or ask for %lld here",
	                    origin_of(o->micro_batch_origin), (long long)o->micro_batch,
	                    rows_compiled(run), (long long)o->micro_batch, (long long)rows);
}

enum { MOST_CHOICES = 16, MOST_RANKS = 1 << 16 };

/* The numbers of ranks among which the micro-batches can be divided evenly, as text with at most MOST_CHOICES numbers; NULL if
 * there is no such number of ranks. */

static const char *
rank_choices(Arena *arena, int64_t micro_batches, double most_accumulate)
{
	const char *text = NULL;
	int n = 0;

	for (int64_t ranks = 1; ranks <= micro_batches && ranks <= MOST_RANKS && n < MOST_CHOICES;
	     ranks++) {
		bool fits = micro_batches % ranks == 0 &&
		            (most_accumulate <= 0 ||
		             (double)(micro_batches / ranks) <= most_accumulate);

		if (!fits)
			continue;
		text = text ? arena_printf(arena, "%s, %lld", text, (long long)ranks)
		            : arena_printf(arena, "%lld", (long long)ranks);
		n++;
	}
	return text;
}

static Status
no_multiple(Gradc *run, double most)
{
	const GradcOptions *o = &run->options;
	int64_t rows = run->train->micro_rows, ranks = gradc_ranks(run);
	const char *choices = o->global_batch % rows == 0
	                              ? rank_choices(run->arena, o->global_batch / rows, most)
	                              : NULL;

	return status_error(EXIT_USAGE,
	                    "%s--global-batch=%lld: no multiple of %lld rows of a "
	                    "micro-batch times %lld ranks, %lld%s%s",
	                    origin_of(o->global_batch_origin), (long long)o->global_batch,
	                    (long long)rows, (long long)ranks, (long long)(rows * ranks),
	                    choices ? "; it fits with this many ranks: " : "",
	                    choices ? choices : "");
}

/* Computes --accumulate (micro-batches per rank) from --global-batch. */
static Status
derive_accumulation(Gradc *run)
{
	GradcOptions *o = &run->options;
	int64_t rows = run->train->micro_rows, ranks = gradc_ranks(run);
	double most = format_info_double(&run->format, "max_accumulate", 0);

	o->accumulate = o->global_batch / (rows * ranks);
	if (o->accumulate * rows * ranks != o->global_batch)
		return no_multiple(run, most);
	if (most > 0 && (double)o->accumulate > most)
		return status_error(
			EXIT_USAGE,
			"%s--global-batch=%lld: %lld micro-batches of %lld rows are more than "
			"the model was compiled for, with --max-accumulate=%g",
			origin_of(o->global_batch_origin), (long long)o->global_batch,
			(long long)o->accumulate, (long long)rows, most);
	return NULL;
}

/* Refuses several micro-batches if the loss is a mean over a number of targets that depends on the data: each micro-batch's
 * mean would count the same, whatever its number of targets. */
static Status
check_uneven(const Gradc *run)
{
	int64_t parts = run->options.accumulate * gradc_ranks(run);

	if (parts <= 1 || !format_info_is(&run->format, "uneven_loss", "1"))
		return NULL;
	return status_error(
		EXIT_USAGE,
		"a step of %lld micro-batches: the model's loss divides by a number that the data of each "
		"decide, and the mean of such losses is not the loss of the step; compile with "
		"--loss=output:NAME,count=OUTPUT, or ,count=1 where every micro-batch is to count "
		"the same",
		(long long)parts);
}

static Status
settle(Gradc *run)
{
	const GradcOptions *o = &run->options;
	int64_t rows = run->train->micro_rows, ranks = gradc_ranks(run);

	RETURN_IF_ERROR(check_micro_batch(run));
	if (o->accumulate == 0)
		return derive_accumulation(run);
	if (o->global_batch == 0 || o->global_batch == rows * o->accumulate * ranks)
		return NULL;
	return status_error(
		EXIT_USAGE,
		"%s--global-batch=%lld: %lld rows of a micro-batch times --accumulate=%lld times "
		"%lld ranks are %lld",
		origin_of(o->global_batch_origin), (long long)o->global_batch, (long long)rows,
		(long long)o->accumulate, (long long)ranks,
		(long long)(rows * o->accumulate * ranks));
}

Status
batch_settle(Gradc *run)
{
	RETURN_IF_ERROR(settle(run));
	return check_uneven(run);
}

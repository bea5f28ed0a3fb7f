/* Decides how many rows of the evaluation data are evaluated. If the last batch is not full, it is padded with rows of weight
 * 0; if the model has no weights for rows, the last batch is left out. */
#include "runtime/data/data.h"
#include "runtime/train/steps.h"

int64_t
eval_covered_rows(const Gradc *run)
{
	const Dataset *d = run->eval;
	bool pad = d->has_weight && !format_info_is(&run->format, "eval_padding", "0");

	return pad ? d->rows : d->rows / d->micro_rows * d->micro_rows;
}

const char *
eval_left_out(const Gradc *run)
{
	if (eval_covered_rows(run) == run->eval->rows)
		return NULL;
	return run->eval->has_weight ? "a row's result depends on the other rows of its batch"
	                             : "the model computes its own loss";
}

Status
eval_check_rows(const Gradc *run)
{
	const Dataset *d = run->eval;

	if (eval_covered_rows(run) > 0)
		return NULL;
	return status_error(EXIT_DATA,
	                    "%s: %lld rows do not fill a batch of %lld, and the batch cannot be "
	                    "padded: %s; compile with --batch %lld or less",
	                    run->options.split ? "--split" : "--eval-data", (long long)d->rows,
	                    (long long)d->micro_rows, eval_left_out(run), (long long)d->rows);
}

void
eval_warn_uneven(const Gradc *run)
{
	int64_t batches = eval_covered_rows(run) / run->eval->micro_rows;

	if (batches < 2 || !format_info_is(&run->format, "uneven_loss", "1") || !run->diag ||
	    gradc_rank(run) > 0)
		return;
	diag_warning(run->diag,
	             "the evaluation loss is the mean of the losses of %lld batches; each batch "
	             "divides its loss by a number that depends on its data, so batches may "
	             "weigh their rows differently",
	             (long long)batches);
}

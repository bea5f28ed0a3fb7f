/* What a rank does if it cannot read its rows, for example because a label is 1000 in a model with 10 classes. The other ranks
 * wait for this rank in the step's collectives. So this rank computes the step with zeros in place of its rows, and sets its
 * count of targets to NaN. The count over all ranks becomes NaN. Then no rank makes the update, and the NaN in the step's
 * result tells every rank to ask the others for the fault. */
#include "runtime/data/data.h"

#include <math.h>

Status
unread_take(Gradc *run, const MicroRows *rows, Status *unread, DataWait *wait)
{
	Status fault = prefetch_take(run->prefetch, rows, wait);

	if (!fault || gradc_ranks(run) == 1)
		return fault;
	*unread = status_first(*unread, fault);
	return prefetch_take_zeros(run->prefetch);
}

Status
unread_spoil_count(Gradc *run, MicroBatch *micro)
{
	/* The first micro-batch overwrites the count; later micro-batches add to the count. */
	if (micro->index == 0)
		*micro = (MicroBatch){.index = 1, .n = micro->n + 1};
	return write_scalar(run, run->loss_count, NAN);
}

Status
unread_share(Gradc *run, double count, Status *unread)
{
	Status fault = isnan(count) && gradc_ranks(run) > 1 ? ranks_share(run, *unread) : *unread;

	*unread = NULL;
	return fault;
}

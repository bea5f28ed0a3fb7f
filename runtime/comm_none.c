/* No collectives of data: for ranks that have none but control. */
#include "runtime/comm.h"

/* All ranks fail alike, so one says why. */
static Status
none_open(const CommControlOps *ops, CommControl *control, const CommOptions *options,
          CommData **out)
{
	(void)options;
	*out = NULL;
	if (ops->rank(control) > 0)
		return status_error(EXIT_COMM, "%s", "");
	return status_error(EXIT_COMM,
	                    "%d ranks without MPI need --device=cuda and NCCL, which this build "
	                    "lacks: start them with mpirun, or with `srun --mpi=pmix`",
	                    ops->size(control));
}

const CommDataOps comm_data_none = {
	.name = "none",
	.open = none_open,
};

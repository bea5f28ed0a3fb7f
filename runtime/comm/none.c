/* A CommData without collectives. TCP ranks have only control at first; this CommData fills the place until NCCL is picked
 * (runtime/run/carrier.c). */
#include "runtime/comm/comm.h"

static Status
none_open(const CommControlOps *ops, CommControl *control, const CommOptions *options,
          CommData **out)
{
	(void)ops;
	(void)control;
	(void)options;
	*out = NULL;
	return NULL;
}

static bool
none_close(CommData *data)
{
	(void)data;
	return true;
}

const CommDataOps comm_data_none = {
	.name = "none",
	.open = none_open,
	.close = none_close,
};

/* The communicators of comm_list.def, and collectives that are waited for. */
#include "runtime/comm.h"

#include "runtime/mpi_library.h"

#include <string.h>

const CommOps *const comm_table[] = {
#define COMM(name) &comm_##name,
#include "runtime/comm_list.def"
#undef COMM
	NULL,
};

const CommOps *
comm_find(const char *name)
{
	if (strcmp(name, "auto") == 0)
		name = mpi_launched_ranks() > 1 ? "mpi" : comm_table[0]->name;
	for (int i = 0; comm_table[i]; i++)
		if (strcmp(comm_table[i]->name, name) == 0)
			return comm_table[i];
	return NULL;
}

Status
comm_check(const char *name)
{
	if (!comm_find(name))
		return status_error(EXIT_USAGE, "unknown communicator %s", name);
	return strcmp(name, "auto") == 0 ? mpi_check_environment() : NULL;
}

Status
comm_sum(const CommOps *ops, Comm *comm, DType dtype, void *values, int64_t n)
{
	CommBuffers b = {.to = values, .from = values, .n = n, .dtype = dtype};
	CommRequest *request;

	RETURN_IF_ERROR(ops->all_reduce(comm, &b, &request));
	return ops->finish(comm, request);
}

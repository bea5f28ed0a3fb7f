/* The list of communicators (comm_list.def), such as "mpi" and "tcp": picks a communicator by name or launcher, opens it, and
 * wraps its calls. */
#include "runtime/comm/comm.h"
#include "runtime/comm/mpi/mpi_library.h"
#include "runtime/comm/tcp/tcp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const CommRow comm_table[] = {
#define COMM(name, control, data) {#name, &comm_control_##control, &comm_data_##data},
#include "runtime/comm/comm_list.def"
#undef COMM
	{0},
};

Status
comm_patience(double *seconds)
{
	const char *text = getenv("GRADC_COMM_TIMEOUT");

	*seconds = 20;
	if (text && (!parse_double(text, seconds) || !(*seconds > 0) || *seconds > 1e6))
		return status_error(EXIT_USAGE,
		                    "GRADC_COMM_TIMEOUT=%s: need seconds above 0, at most 1e6",
		                    text);
	return NULL;
}

static const CommRow *
find(const char *name)
{
	for (int i = 0; comm_table[i].name; i++)
		if (strcmp(comm_table[i].name, name) == 0)
			return &comm_table[i];
	return NULL;
}

/* mpirun or srun may start one torchrun per machine, and torchrun then starts the ranks. So torchrun's variables are looked at
 * first, then the variables of an MPI launcher. */
static Status
choose(const CommRow **out)
{
	bool torchrun = getenv("TORCHELASTIC_RUN_ID") != NULL;
	int n_mpi = torchrun ? 1 : mpi_launched_ranks();
	TcpPlace place;

	*out = &comm_table[0];
	if (!torchrun)
		RETURN_IF_ERROR(mpi_check_environment());
	if (n_mpi > 1)
		*out = find("mpi");
	if (n_mpi > 1 && !mpi_launched_by_srun())
		return NULL;
	RETURN_IF_ERROR(tcp_place(&place));
	if (place.size > 1 && !(place.is_srun && mpi_starts_by_srun()))
		*out = find("tcp");
	return NULL;
}

static Status
pick(const char *name, const CommRow **out)
{
	double patience;

	RETURN_IF_ERROR(comm_patience(&patience));
	if (strcmp(name, "auto") == 0)
		return choose(out);
	*out = find(name);
	return *out ? NULL : status_error(EXIT_USAGE, "unknown communicator %s", name);
}

Status
comm_check(const char *name)
{
	const CommRow *row;

	return pick(name, &row);
}

/* Refuses a communicator that does not fit the launcher: each rank would train alone, and all would write the same files. */
static Status
check_launched(int size)
{
	int launched = mpi_launched_ranks();

	if (launched <= 1 || launched == size)
		return NULL;
	return status_error(
		EXIT_COMM,
		"the launcher's variables say %d ranks, its MPI library knows %d: the launcher "
		"is not that library's, or the variables are of another program",
		launched, size);
}

Status
comm_open(const char *name, const CommOptions *options, Comm *out)
{
	const CommRow *row;

	*out = (Comm){.size = 1};
	RETURN_IF_ERROR(pick(name, &row));
	RETURN_IF_ERROR(row->control->open(options, &out->control));
	out->control_ops = row->control;
	out->rank = row->control->rank(out->control);
	out->size = row->control->size(out->control);
	if (strcmp(name, "auto") == 0 && row->control == &comm_control_mpi)
		RETURN_IF_ERROR(check_launched(out->size));
	RETURN_IF_ERROR(row->data->open(row->control, out->control, options, &out->data));
	out->data_ops = row->data;
	return NULL;
}

bool
comm_close_data(Comm *comm)
{
	bool over = !comm->data_ops || comm->data_ops->close(comm->data);

	comm->data_ops = NULL;
	comm->data = NULL;
	return over;
}

Status
comm_carry(Comm *comm, const CommDataOps *ops, const CommOptions *options)
{
	CommData *data;

	RETURN_IF_ERROR(ops->open(comm->control_ops, comm->control, options, &data));
	comm->data_ops->close(comm->data);
	comm->data_ops = ops;
	comm->data = data;
	return NULL;
}

bool
comm_enqueues(const Comm *comm)
{
	return comm && comm->data_ops && comm->data_ops->enqueue;
}

void
comm_close(Comm *comm)
{
	comm_close_data(comm);
	if (comm->control_ops)
		comm->control_ops->close(comm->control);
	comm->control_ops = NULL;
	comm->control = NULL;
}

void
comm_doing(const Comm *comm, const char *what)
{
	if (comm->control_ops)
		comm->control_ops->doing(comm->control, what);
}

Status
comm_reduce(const Comm *comm, void *values, int64_t n, DType dtype, CommReduction reduction)
{
	int64_t bytes = dtype_bytes(dtype, n);

	if (comm->size == 1)
		return NULL;
	char *all = memory_get((size_t)(bytes * comm->size));
	Status status = comm->control_ops->all_gather(comm->control, values, all, bytes);
	if (!status)
		comm_sum(&(CommSum){.dtype = dtype,
		                    .reduction = reduction,
		                    .to = values,
		                    .terms = all,
		                    .n = n,
		                    .stride = n,
		                    .n_terms = comm->size});
	memory_free(all);
	return status;
}

Status
comm_alone(const Collective *c)
{
	if (c->kind == COMM_SEND || c->kind == COMM_RECV ||
	    (c->kind == COMM_BROADCAST && c->peer != 0))
		return status_error(EXIT_COMM, "%s: rank %d of group %s, which has one",
		                    collective_names[c->kind], c->peer, comm_group_names[c->group]);
	if (c->to != c->from)
		memmove(c->to, c->from, (size_t)dtype_bytes(c->dtype, c->n));
	return NULL;
}

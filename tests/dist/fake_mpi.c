/* An MPI library with faults, for LD_PRELOAD. It has the interface of Open MPI. This process is rank 0 of two; the other rank
 * always gives the same answers as this rank.
 *
 *	FAKE_THREADS=N      the result of MPI_Init_thread (2)
 *	FAKE_SENDS=N        the first N large sends succeed, the next fails (all succeed); large sends are gradients, small
 *	                    sends are numbers and questions and always succeed
 *	FAKE_RECEIVES=N     the first N large receives get zeros, later ones nothing (all get zeros)
 *	FAKE_CANCEL=no      receives cannot be cancelled
 *	FAKE_ABORT=no       MPI_Abort returns
 *
 * Freeing memory that a pending receive could still write to ends the process with exit code 99. */
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef uintptr_t Handle;
enum { MOST = 1 << 16, FAULT = 17, LARGE = 64 };
enum { OVER = 1 }; /* handle of a finished request; a pending receive has 2 + its index */

static struct {
	char *at;
	size_t n;
} waiting[MOST];
static int n_waiting, sends, receives;

int ompi_mpi_comm_world, ompi_mpi_byte, ompi_mpi_double, ompi_mpi_float, ompi_mpi_int64_t,
	ompi_mpi_int32_t, ompi_mpi_op_sum, ompi_mpi_op_max, ompi_mpi_errors_return;

static int
number(const char *name, int otherwise)
{
	return getenv(name) ? atoi(getenv(name)) : otherwise;
}

static int
says_no(const char *name)
{
	return getenv(name) && strcmp(getenv(name), "no") == 0;
}

extern void __libc_free(void *block);

void
free(void *block)
{
	static const char said[] = "memory of a receive is freed\n";
	char *at = block;

	for (int i = 0; block && i < n_waiting; i++)
		if (waiting[i].at && waiting[i].at < at + malloc_usable_size(block) &&
		    waiting[i].at + waiting[i].n > at)
			_exit(write(2, said, sizeof(said) - 1) > 0 ? 99 : 98);
	__libc_free(block);
}

int
MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
	(void)argc, (void)argv;
	*provided = number("FAKE_THREADS", required);
	return 0;
}

int
MPI_Initialized(int *flag)
{
	*flag = 0;
	return 0;
}

int
MPI_Query_thread(int *provided)
{
	*provided = number("FAKE_THREADS", 2);
	return 0;
}

int
MPI_Finalize(void)
{
	return 0;
}

int
MPI_Comm_rank(Handle comm, int *rank)
{
	(void)comm;
	*rank = 0;
	return 0;
}

int
MPI_Comm_size(Handle comm, int *size)
{
	(void)comm;
	*size = 2;
	return 0;
}

int
MPI_Comm_dup(Handle comm, Handle *out)
{
	*out = comm;
	return 0;
}

int
MPI_Comm_split(Handle comm, int color, int key, Handle *out)
{
	(void)color, (void)key;
	*out = comm;
	return 0;
}

int
MPI_Comm_set_errhandler(Handle comm, Handle handler)
{
	(void)comm, (void)handler;
	return 0;
}

int
MPI_Isend(const void *at, int n, Handle type, int peer, int tag, Handle comm, Handle *request)
{
	(void)at, (void)type, (void)peer, (void)tag, (void)comm;
	*request = OVER;
	return n >= LARGE && sends++ == number("FAKE_SENDS", -1) ? FAULT : 0;
}

int
MPI_Irecv(void *at, int n, Handle type, int peer, int tag, Handle comm, Handle *request)
{
	(void)type, (void)tag, (void)comm;
	if (peer >= 0 && (n < LARGE || receives++ < number("FAKE_RECEIVES", MOST))) {
		memset(at, 0, (size_t)n);
		*request = OVER;
		return 0;
	}
	if (n_waiting == MOST)
		abort();
	waiting[n_waiting].at = at;
	waiting[n_waiting].n = (size_t)n;
	*request = (Handle)(2 + n_waiting++);
	return 0;
}

int
MPI_Test(Handle *request, int *done, void *status)
{
	(void)status;
	*done = *request < 2 || !waiting[*request - 2].at;
	if (*done)
		*request = 0;
	return 0;
}

int
MPI_Cancel(Handle *request)
{
	if (*request >= 2 && !says_no("FAKE_CANCEL"))
		waiting[*request - 2].at = NULL;
	return 0;
}

int
MPI_Iallgather(const void *from, int n, Handle type, void *to, int n_to, Handle type_to,
               Handle comm, Handle *request)
{
	(void)type, (void)n_to, (void)type_to, (void)comm;
	memcpy(to, from, (size_t)n);
	memcpy((char *)to + n, from, (size_t)n);
	*request = OVER;
	return 0;
}

int
MPI_Ibcast(void *at, int n, Handle type, int root, Handle comm, Handle *request)
{
	(void)at, (void)n, (void)type, (void)root, (void)comm;
	*request = OVER;
	return 0;
}

int
MPI_Iallreduce(const void *from, void *to, int n, Handle type, Handle op, Handle comm,
               Handle *request)
{
	(void)from, (void)to, (void)n, (void)type, (void)op, (void)comm;
	*request = OVER;
	return 0;
}

int
MPI_Ireduce_scatter(const void *from, void *to, const int *n, Handle type, Handle op, Handle comm,
                    Handle *request)
{
	(void)from, (void)to, (void)n, (void)type, (void)op, (void)comm;
	*request = OVER;
	return 0;
}

int
MPI_Error_string(int code, char *text, int *n)
{
	*n = sprintf(text, "fault %d", code);
	return 0;
}

int
MPI_Abort(Handle comm, int code)
{
	(void)comm;
	if (!says_no("FAKE_ABORT"))
		_exit(code);
	return 0;
}

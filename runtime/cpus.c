/* Which CPUs are this process's: those that it may run on, divided by the ranks that its launcher put on
 * this machine, unless the launcher has divided them already. */
#include "runtime/parallel.h"

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

/* How launchers tell a process its place on the machine. */
static const struct {
	const char *rank, *ranks;
} launchers[] = {
	{"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
	{"MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
	{"SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"},
};

static int
number_of(const char *variable)
{
	const char *text = getenv(variable);

	return text ? (int)strtol(text, NULL, 10) : -1;
}

void
local_rank(int *local, int *ranks)
{
	*local = 0;
	*ranks = 1;
	for (int i = 0; i < COUNT(launchers); i++) {
		int r = number_of(launchers[i].rank), n = number_of(launchers[i].ranks);

		if (r < 0 || n <= r)
			continue;
		*local = r;
		*ranks = n;
		return;
	}
}

void
cpu_share_divide(CpuShare *s, int all, int local, int ranks)
{
	int first = s->n * local / ranks, last = s->n * (local + 1) / ranks;

	s->own = true;
	if (ranks == 1 || s->n * ranks <= all)
		return; /* alone, or the launcher gave each rank its part */
	if (s->n < all || s->n < ranks) {
		s->own = false; /* parts that overlap: of a socket, or fewer CPUs than ranks */
		s->n = all / ranks < s->n ? all / ranks : s->n;
		s->n = s->n < 1 ? 1 : s->n;
		return;
	}
	for (int i = first; i < last; i++)
		s->at[i - first] = s->at[i];
	s->n = last - first;
}

/* The CPUs of process 1: no launcher has narrowed them for this process. */
int
cpu_count(void)
{
	cpu_set_t set;
	long online = sysconf(_SC_NPROCESSORS_ONLN);

	if (sched_getaffinity(1, sizeof(set), &set) == 0)
		return CPU_COUNT(&set);
	return online < 1 ? 1 : online > MAX_CPUS ? MAX_CPUS : (int)online;
}

void
cpu_share(CpuShare *out)
{
	cpu_set_t set;
	int local, ranks, all = cpu_count();

	*out = (CpuShare){0};
	if (sched_getaffinity(0, sizeof(set), &set) != 0) { /* more CPUs than a cpu_set_t has */
		out->n = all;
		return;
	}
	for (int i = 0; i < CPU_SETSIZE && out->n < MAX_CPUS; i++)
		if (CPU_ISSET(i, &set))
			out->at[out->n++] = i;
	local_rank(&local, &ranks);
	cpu_share_divide(out, all < out->n ? out->n : all, local, ranks);
}

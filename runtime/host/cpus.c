/* Finds the CPUs for the threads of this process: the CPUs on which the process may run. If several ranks on this machine may
 * run on the same CPUs, the CPUs are divided among these ranks. */
#include "base/base.h"
#include "runtime/host/host.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The environment variables by which launchers tell a process its number on the machine. The first row that is set counts. A
 * launcher may start another launcher, for example mpirun a torchrun per machine; so torchrun comes first. */
static const struct {
	const char *rank, *ranks;
	const char *with; /* variable that must be set as well; NULL: none */
} launchers[] = {
	{"LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"},
	{"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", NULL},
	{"MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL},
	{"LOCAL_RANK", "LOCAL_WORLD_SIZE", NULL},
	{"SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", NULL},
	{"SLURM_LOCALID", "SLURM_NTASKS_PER_NODE", NULL},
};

static int
number_of(const char *variable)
{
	const char *text = getenv(variable);

	return text ? (int)strtol(text, NULL, 10) : -1;
}

/* This machine's number of ranks, from srun's list, for example "4(x2),3": 4 for the first two machines, 3 for the third. A
 * plain number holds for every machine. */
static int
ranks_of(const char *variable)
{
	const char *text = getenv(variable);
	int machine = number_of("SLURM_NODEID");
	long n = text ? strtol(text, NULL, 10) : -1;

	for (char *end; text && machine >= 0; text = *end == ',' ? end + 1 : NULL) {
		n = strtol(text, &end, 10);
		long machines = strncmp(end, "(x", 2) == 0 ? strtol(end + 2, &end, 10) : 1;
		end += *end == ')';
		if (machine < machines)
			break;
		machine -= (int)machines;
	}
	return (int)n;
}

void
local_rank(int *local, int *ranks)
{
	*local = 0;
	*ranks = 1;
	for (int i = 0; i < COUNT(launchers); i++) {
		int r = number_of(launchers[i].rank), n = ranks_of(launchers[i].ranks);

		if (r < 0 || n <= r || (launchers[i].with && !getenv(launchers[i].with)))
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
		return; /* this rank is alone, or the launcher gave each rank CPUs of its own */
	if (s->n < all || s->n < ranks) {
		/* ranks share CPUs: the launcher gave several ranks the same socket, or there are fewer CPUs than ranks */
		s->own = false;
		s->n = all / ranks < s->n ? all / ranks : s->n;
		s->n = s->n < 1 ? 1 : s->n;
		return;
	}
	for (int i = first; i < last; i++)
		s->at[i - first] = s->at[i];
	s->n = last - first;
}

/* Counts the CPUs on which process 1 may run: process 1 is not restricted by a launcher. */
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
	/* the machine has more CPUs than a cpu_set_t can hold */
	if (sched_getaffinity(0, sizeof(set), &set) != 0) {
		out->n = all;
		return;
	}
	for (int i = 0; i < CPU_SETSIZE && out->n < MAX_CPUS; i++)
		if (CPU_ISSET(i, &set))
			out->at[out->n++] = i;
	local_rank(&local, &ranks);
	cpu_share_divide(out, all < out->n ? out->n : all, local, ranks);
}

/* Reads from environment variables of torchrun, srun or the user which rank this process is, and where it meets the other
 * ranks. */
#include "runtime/comm/tcp/link.h"
#include "runtime/comm/tcp/tcp.h"

#include <stdlib.h>
#include <string.h>

/* Several ports are tried: torchrun's own process listens at MASTER_PORT, and a computed port may belong to another job's rank
 * 0. The first message of a connection tells which program listens. */
enum { N_PORTS = 8, FIRST_PORT = 15000, PORTS = 16000, MOST_PORT = 65535, MOST_RANKS = 1 << 20 };

static const char *
variable(const char *name)
{
	const char *text = getenv(name);

	return text && *text ? text : NULL;
}

static Status
read_number(const char *name, int64_t least, int64_t most, int *out)
{
	int64_t n = 0;

	if (!parse_int(getenv(name), &n) || n < least || n > most)
		return status_error(EXIT_USAGE, "%s=%s: need a number from %lld to %lld", name,
		                    getenv(name), (long long)least, (long long)most);
	*out = (int)n;
	return NULL;
}

/* ---- rank and size */
static const struct {
	const char *rank, *size;
	const char *with; /* further variable that must be set; NULL: none is needed */
	bool is_srun;
} sources[] = {
	{"RANK", "WORLD_SIZE", "MASTER_ADDR", false},
	{"RANK", "WORLD_SIZE", "GRADC_RENDEZVOUS", false},
	{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", NULL, true},
	/* srun sets SLURM_STEP_ID for each rank; a batch script outside of srun has none */
	{"SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID", true},
};

/* Refuses an environment in which only some of the variables are set: each process would train alone, and all would write the
 * same files. */
static Status
check_half(void)
{
	const char *half = variable("RANK") ? "RANK" : variable("WORLD_SIZE") ? "WORLD_SIZE" : NULL;

	if (variable("GRADC_RENDEZVOUS"))
		return status_error(EXIT_USAGE,
		                    "GRADC_RENDEZVOUS=%s: RANK and WORLD_SIZE must say which of "
		                    "how many ranks this process is",
		                    getenv("GRADC_RENDEZVOUS"));
	if (variable("RANK") && variable("WORLD_SIZE") && strcmp(getenv("WORLD_SIZE"), "1") != 0)
		return status_error(
			EXIT_USAGE,
			"RANK=%s and WORLD_SIZE=%s: set MASTER_ADDR or GRADC_RENDEZVOUS as well, to "
			"say where rank 0 is; or unset RANK and WORLD_SIZE to train alone",
			getenv("RANK"), getenv("WORLD_SIZE"));
	if (half && variable("MASTER_ADDR"))
		return status_error(
			EXIT_USAGE,
			"MASTER_ADDR=%s with %s alone: RANK and WORLD_SIZE must both be "
			"set, or MASTER_ADDR unset",
			getenv("MASTER_ADDR"), half);
	return NULL;
}

static Status
read_rank(TcpPlace *p)
{
	for (int i = 0; i < COUNT(sources) && !p->size; i++) {
		if (!getenv(sources[i].rank) || !getenv(sources[i].size) ||
		    (sources[i].with && !variable(sources[i].with)))
			continue;
		p->rank_name = sources[i].rank;
		p->size_name = sources[i].size;
		p->is_srun = sources[i].is_srun;
		RETURN_IF_ERROR(read_number(p->size_name, 1, MOST_RANKS, &p->size));
		RETURN_IF_ERROR(read_number(p->rank_name, 0, p->size - 1, &p->rank));
	}
	return p->size ? NULL : check_half();
}

/* ---- address of rank 0 */
/* "host:1234", "[::1]:1234" */
static bool
split_address(const char *text, TcpPlace *p)
{
	const char *colon = strrchr(text, ':');
	int64_t port = 0;
	size_t n = colon ? (size_t)(colon - text) : 0;

	if (n && text[0] == '[' && colon[-1] == ']') {
		text++;
		n -= 2;
	}
	if (!n || n >= HOST_BYTES || !parse_int(colon + 1, &port) || port < 1 || port > MOST_PORT)
		return false;
	memcpy(p->host, text, n);
	p->host[n] = '\0';
	p->port = (int)port;
	p->n_ports = 1;
	return true;
}

const char *
comm_rendezvous_file(void)
{
	static const char file[] = "file://";
	const char *text = variable("GRADC_RENDEZVOUS");

	return text && strncmp(text, file, sizeof(file) - 1) == 0 ? text + sizeof(file) - 1 : NULL;
}

static Status
read_rendezvous(const char *text, TcpPlace *p)
{
	static const char tcp[] = "tcp://";

	if (strncmp(text, tcp, sizeof(tcp) - 1) == 0 && split_address(text + sizeof(tcp) - 1, p))
		return NULL;
	const char *path = comm_rendezvous_file();
	if (path && *path == '/' && path[1] && strlen(path) < PATH_BYTES) {
		memcpy(p->file, path, strlen(path) + 1);
		return NULL;
	}
	return status_error(EXIT_USAGE,
	                    "GRADC_RENDEZVOUS=%s: need tcp://HOST:PORT or file:///PATH, of a file "
	                    "that all ranks see",
	                    text);
}

/* The first number of "[01-03,7]"; NULL if there are no such brackets. */
static const char *
skip_brackets(const char *at, char *out, size_t *n)
{
	size_t digits = strspn(at + 1, "0123456789");
	const char *end = strchr(at, ']');

	if (!digits || !end || *n + digits >= HOST_BYTES)
		return NULL;
	memcpy(out + *n, at + 1, digits);
	*n += digits;
	return end + 1;
}

bool
tcp_first_host(const char *list, char out[HOST_BYTES])
{
	size_t n = 0;

	while (list && *list && *list != ',') {
		if (*list == '[')
			list = skip_brackets(list, out, &n);
		else if (n < HOST_BYTES - 1 && *list != ']')
			out[n++] = *list++;
		else
			list = NULL;
	}
	out[list ? n : 0] = '\0';
	return list && n > 0;
}

static Status
read_host(TcpPlace *p)
{
	const char *master = variable("MASTER_ADDR"), *list = variable("SLURM_STEP_NODELIST");

	if (!list)
		list = variable("SLURM_JOB_NODELIST");
	if (master && strlen(master) < HOST_BYTES)
		memcpy(p->host, master, strlen(master) + 1);
	else if (master)
		return status_error(EXIT_USAGE, "MASTER_ADDR=%s: too long", master);
	else if (!list)
		return status_error(
			EXIT_USAGE,
			"%d ranks by %s, and SLURM_STEP_NODELIST is not set: MASTER_ADDR "
			"must name the host of rank 0",
			p->size, p->size_name);
	else if (!tcp_first_host(list, p->host))
		return status_error(EXIT_USAGE, "SLURM_STEP_NODELIST=%s: no list of hosts", list);
	return NULL;
}

/* Finds the ports at which rank 0 may listen: MASTER_PORT; the ports after it, if torchrun's own process listens at
 * MASTER_PORT; with srun and no MASTER_PORT, ports computed from the job. */
static Status
read_port(TcpPlace *p)
{
	const char *shares = variable("TORCHELASTIC_USE_AGENT_STORE");

	p->n_ports = 1;
	if (!getenv("MASTER_PORT") && p->is_srun) {
		p->port = FIRST_PORT + (int)(p->job % PORTS);
		p->n_ports = N_PORTS;
		return NULL;
	}
	if (!getenv("MASTER_PORT"))
		return status_error(EXIT_USAGE, "MASTER_ADDR=%s without MASTER_PORT", p->host);
	RETURN_IF_ERROR(read_number("MASTER_PORT", 1, MOST_PORT - N_PORTS, &p->port));
	if (shares && strcmp(shares, "True") == 0) {
		p->port++;
		p->n_ports = N_PORTS;
	}
	return NULL;
}

/* A hash of the launcher's names for the job: the same on all ranks of the job, and different for other jobs. */
static uint64_t
job_of(const TcpPlace *p)
{
	static const char *const of_srun[] = {"SLURM_JOB_ID", "SLURM_STEP_ID", NULL};
	static const char *const of_torchrun[] = {"TORCHELASTIC_RUN_ID", NULL};
	const char *const *names = p->is_srun ? of_srun : of_torchrun;
	uint64_t job = 0;

	for (; *names; names++)
		if (variable(*names))
			job = hash_bytes(getenv(*names), strlen(getenv(*names)), job + 1);
	return job;
}

Status
tcp_place(TcpPlace *out)
{
	const char *rendezvous = variable("GRADC_RENDEZVOUS");

	*out = (TcpPlace){0};
	RETURN_IF_ERROR(read_rank(out));
	if (out->size <= 1)
		return NULL;
	out->is_torchrun = !out->is_srun && variable("TORCHELASTIC_RUN_ID");
	out->job = job_of(out);
	if (rendezvous)
		return read_rendezvous(rendezvous, out);
	RETURN_IF_ERROR(read_host(out));
	return read_port(out);
}

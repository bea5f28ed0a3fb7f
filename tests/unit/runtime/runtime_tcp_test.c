/* Control over TCP: the environment's settings, and calls between processes that this program starts. Failures and lost
 * ranks are tested in tests/dist/test_rendezvous.py. */
#include "runtime/comm/tcp/link.h"
#include "runtime/comm/tcp/tcp.h"
#include "tests/unit/runtime/runtime_tiny.h"

#include <sys/wait.h>
#include <unistd.h>

static const CommControlOps *const ops = &comm_control_tcp;

/* ---- the environment */
static const char *const variables[] = {
	"RANK",
	"WORLD_SIZE",
	"MASTER_ADDR",
	"MASTER_PORT",
	"TORCHELASTIC_RUN_ID",
	"TORCHELASTIC_USE_AGENT_STORE",
	"SLURM_PROCID",
	"SLURM_NTASKS",
	"SLURM_STEP_NUM_TASKS",
	"SLURM_JOB_ID",
	"SLURM_STEP_ID",
	"SLURM_STEP_NODELIST",
	"SLURM_JOB_NODELIST",
	"GRADC_RENDEZVOUS",
};

/* Sets "RANK=1 WORLD_SIZE=2", and clears all other such variables. */
static void
set_environment(const char *text)
{
	char *copy = strdup(text), *rest = copy;

	for (int i = 0; i < COUNT(variables); i++)
		unsetenv(variables[i]);
	for (char *word; (word = strsep(&rest, " "));) {
		char *value = strchr(word, '=');
		if (!value)
			continue;
		*value = '\0';
		setenv(word, value + 1, 1);
	}
	free(copy);
}

static void
test_places(void **state)
{
	static const struct {
		const char *environment;
		int rank, size;
		const char *host;
		int port, n_ports; /* 0: any port */
		const char *file;
	} cases[] = {
		{"", 0, 0, "", 0, 0, ""},
		{"WORLD_SIZE=4", 0, 0, "", 0, 0, ""},
		{"SLURM_PROCID=0 SLURM_NTASKS=4", 0, 0, "", 0, 0, ""}, /* a batch script */
		{"RANK=0 WORLD_SIZE=1 MASTER_ADDR=a MASTER_PORT=5", 0, 1, "", 0, 0, ""},
		{"RANK=1 WORLD_SIZE=4 MASTER_ADDR=node7 MASTER_PORT=29500", 1, 4, "node7", 29500, 1,
	         ""},
		{"RANK=1 WORLD_SIZE=4 MASTER_ADDR=node7 MASTER_PORT=29500 TORCHELASTIC_USE_AGENT_STORE=False",
	         1, 4, "node7", 29500, 1, ""},
		{"RANK=1 WORLD_SIZE=4 MASTER_ADDR=node7 MASTER_PORT=29500 TORCHELASTIC_USE_AGENT_STORE=True",
	         1, 4, "node7", 29501, 8, ""},
		{"RANK=3 WORLD_SIZE=4 GRADC_RENDEZVOUS=tcp://h:81", 3, 4, "h", 81, 1, ""},
		{"RANK=3 WORLD_SIZE=4 GRADC_RENDEZVOUS=tcp://[fe80::1]:81", 3, 4, "fe80::1", 81, 1,
	         ""},
		{"RANK=3 WORLD_SIZE=4 GRADC_RENDEZVOUS=file:///tmp/meet", 3, 4, "", 0, 0,
	         "/tmp/meet"},
		{"SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=3 SLURM_JOB_ID=7 SLURM_STEP_ID=1 SLURM_STEP_NODELIST=n[08-10,12]",
	         2, 3, "n08", 0, 8, ""},
		{"SLURM_PROCID=2 SLURM_NTASKS=3 SLURM_JOB_ID=7 SLURM_STEP_ID=1 SLURM_JOB_NODELIST=n",
	         2, 3, "n", 0, 8, ""},
		{"SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=3 MASTER_ADDR=m MASTER_PORT=9", 2, 3, "m", 9,
	         1, ""},
		/* One torchrun process per srun task. */
		{"RANK=5 WORLD_SIZE=8 MASTER_ADDR=m MASTER_PORT=9 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2",
	         5, 8, "m", 9, 1, ""},
	};
	TcpPlace p;

	(void)state;
	for (int i = 0; i < COUNT(cases); i++) {
		set_environment(cases[i].environment);
		must(tcp_place(&p));
		assert_int_equal(p.size, cases[i].size);
		assert_int_equal(p.rank, cases[i].rank);
		if (p.size < 2)
			continue;
		assert_string_equal(p.host, cases[i].host);
		assert_string_equal(p.file, cases[i].file);
		assert_int_equal(p.n_ports, cases[i].n_ports);
		if (cases[i].port)
			assert_int_equal(p.port, cases[i].port);
		else if (!*p.file)
			assert_true(p.port >= 1024 && p.port < 32000);
	}
}

static void
test_jobs_differ(void **state)
{
	TcpPlace a, b;

	(void)state;
	set_environment(
		"SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_JOB_ID=7 SLURM_STEP_ID=1 SLURM_STEP_NODELIST=n");
	must(tcp_place(&a));
	setenv("SLURM_PROCID", "1", 1);
	must(tcp_place(&b));
	assert_true(a.job == b.job && a.port == b.port);
	setenv("SLURM_STEP_ID", "2", 1);
	must(tcp_place(&b));
	assert_true(a.job != b.job && a.port != b.port);
}

static void
test_what_makes_no_sense(void **state)
{
	static const struct {
		const char *environment, *says;
	} cases[] = {
		{"RANK=4 WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=5",
	         "RANK=4: need a number from 0 to 3"},
		{"RANK=x WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=5", "RANK=x: need a number"},
		{"RANK=0 WORLD_SIZE=0 MASTER_ADDR=a MASTER_PORT=5",
	         "WORLD_SIZE=0: need a number from 1"},
		{"RANK=0 MASTER_ADDR=a MASTER_PORT=5", "MASTER_ADDR=a with RANK alone"},
		{"WORLD_SIZE=2 MASTER_ADDR=a", "MASTER_ADDR=a with WORLD_SIZE alone"},
		{"RANK=0 WORLD_SIZE=2 MASTER_ADDR=a", "MASTER_ADDR=a without MASTER_PORT"},
		{"RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=70000", "MASTER_PORT=70000: need"},
		{"GRADC_RENDEZVOUS=tcp://a:1", "GRADC_RENDEZVOUS=tcp://a:1: RANK and WORLD_SIZE"},
		{"RANK=0 WORLD_SIZE=2 GRADC_RENDEZVOUS=tcp://a", "GRADC_RENDEZVOUS=tcp://a: need"},
		{"RANK=0 WORLD_SIZE=2 GRADC_RENDEZVOUS=tcp://:80",
	         "GRADC_RENDEZVOUS=tcp://:80: need"},
		{"RANK=0 WORLD_SIZE=2 GRADC_RENDEZVOUS=file://meet",
	         "GRADC_RENDEZVOUS=file://meet: need"},
		{"RANK=0 WORLD_SIZE=2 GRADC_RENDEZVOUS=/tmp/meet",
	         "GRADC_RENDEZVOUS=/tmp/meet: need"},
		{"SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2",
	         "2 ranks by SLURM_STEP_NUM_TASKS, and SLURM_STEP_NODELIST is not set"},
		{"SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=n[",
	         "SLURM_STEP_NODELIST=n[: no list"},
	};
	TcpPlace p;

	(void)state;
	for (int i = 0; i < COUNT(cases); i++) {
		set_environment(cases[i].environment);
		expect_status(tcp_place(&p), EXIT_USAGE, cases[i].says);
	}
}

static void
test_lists_of_hosts(void **state)
{
	static const struct {
		const char *list, *first; /* NULL: no list */
	} cases[] = {
		{"node1", "node1"},
		{"node1,node2", "node1"},
		{"node[01-03,7]", "node01"},
		{"node[7],x", "node7"},
		{"a[1-2]-b[003-4].org,c", "a1-b003.org"},
		{"", NULL},
		{"n[", NULL},
		{"n[]", NULL},
		{"n[x]", NULL},
		{"n]", NULL},
		{",n", NULL},
	};
	char host[HOST_BYTES], *longer = malloc(1000);

	(void)state;
	for (int i = 0; i < COUNT(cases); i++) {
		assert_int_equal(tcp_first_host(cases[i].list, host), cases[i].first != NULL);
		assert_string_equal(host, cases[i].first ? cases[i].first : "");
	}
	memset(longer, 'n', 999);
	longer[999] = '\0';
	assert_false(tcp_first_host(longer, host));
	longer[10] = '[';
	memset(longer + 11, '1', 900);
	longer[998] = ']';
	assert_false(tcp_first_host(longer, host));
	free(longer);
}

/* ---- calls of several processes */
enum { RANKS = 4 };

/* The sizes: empty, smaller than a message, several messages. */
static const int64_t sizes[] = {0, 1, 8, 1000, (5 << 20) + 3};

static Status
check_gathers(CommControl *c, int n_sizes)
{
	int rank = ops->rank(c), size = ops->size(c);

	for (int i = 0; i < n_sizes; i++) {
		int64_t n = sizes[i];
		unsigned char *own = malloc((size_t)n + 1),
			      *all = calloc(1, (size_t)(n * size) + 1);

		for (int64_t k = 0; k < n; k++)
			own[k] = (unsigned char)(k * 7 + rank);
		RETURN_IF_ERROR(ops->all_gather(c, own, all, n));
		for (int64_t k = 0; k < n * size; k++)
			if (all[k] != (unsigned char)(k % n * 7 + k / n))
				return status_error(EXIT_DATA, "all_gather of %lld: byte %lld",
				                    (long long)n, (long long)k);
		free(own);
		free(all);
	}
	return NULL;
}

static Status
check_broadcasts(CommControl *c)
{
	int64_t n = (17 << 20) + 5;
	unsigned char *at = malloc((size_t)n);

	for (int root = 0; root < ops->size(c); root++) {
		memset(at, ops->rank(c) == root ? 10 + root : 0, (size_t)n);
		RETURN_IF_ERROR(ops->broadcast(c, at, n, root));
		for (int64_t k = 0; k < n; k++)
			if (at[k] != 10 + root)
				return status_error(EXIT_DATA, "broadcast from %d", root);
	}
	free(at);
	Status status = ops->broadcast(c, NULL, 0, ops->size(c));
	if (!status)
		return status_error(EXIT_DATA, "a root that is no rank is taken");
	status_free(status);
	return NULL;
}

static void *
say_what_it_does(void *context)
{
	double told = 0;

	for (int i = 0; i < 200; i++) {
		ops->doing(context, i & 1 ? "saving a checkpoint" : NULL);
		status_free(tcp_watch(context, "a test", seconds_now() - 6, &told));
	}
	return NULL;
}

/* Several threads may make calls at the same time. */
static Status
check_threads(CommControl *c)
{
	pthread_t thread;
	Status status = NULL;

	pthread_create(&thread, NULL, say_what_it_does, c);
	for (int i = 0; i < 50 && !status; i++)
		status = check_gathers(c, COUNT(sizes) - 1);
	pthread_join(thread, NULL);
	return status;
}

static int
be_rank(int rank, const char *environment)
{
	CommOptions options = {0};
	CommControl *c = NULL;
	char number[16];

	set_environment(environment);
	snprintf(number, sizeof(number), "%d", rank);
	setenv("RANK", number, 1);
	Status status = ops->open(&options, &c);
	if (!status && (ops->rank(c) != rank || ops->size(c) != RANKS))
		status = status_error(EXIT_DATA, "rank %d of %d", ops->rank(c), ops->size(c));
	if (!status)
		status = check_gathers(c, COUNT(sizes));
	if (!status)
		status = check_broadcasts(c);
	if (!status)
		status = check_threads(c);
	if (status)
		fprintf(stderr, "rank %d: %s\n", rank, status->message);
	int code = status ? status->exit_code : 0;
	status_free(status);
	ops->close(c);
	return code;
}

static void
test_calls(void **state)
{
	char folder[] = "/tmp/gradc-tcp-XXXXXX", environment[256];

	(void)state;
	assert_non_null(mkdtemp(folder));
	snprintf(environment, sizeof(environment), "WORLD_SIZE=%d GRADC_RENDEZVOUS=file://%s/meet",
	         RANKS, folder);
	for (int r = 0; r < RANKS; r++)
		if (fork() == 0)
			_exit(be_rank(r, environment));
	for (int r = 0; r < RANKS; r++) {
		int how;
		assert_true(wait(&how) > 0);
		assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
	}
	assert_int_equal(rmdir(folder), 0); /* the rendezvous file is gone */
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_places),
		cmocka_unit_test(test_jobs_differ),
		cmocka_unit_test(test_what_makes_no_sense),
		cmocka_unit_test(test_lists_of_hosts),
		cmocka_unit_test(test_calls),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

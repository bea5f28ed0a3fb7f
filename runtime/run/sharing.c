/* How ranks share the work and the states of a run: --reduce, --data-parallel and --shard-size. */
#include "runtime/run/run.h"

#include <string.h>

/* Decides whether sums over ranks are made in the order of the ranks. That needs messages from all ranks to all ranks, which
 * costs little with few ranks. */
static Status
pick_reduction(Gradc *run)
{
	enum { MOST_ORDERED = 8 };
	const char *asked = run->options.reduce;

	if (asked && strcmp(asked, "ordered") != 0 && strcmp(asked, "fast") != 0)
		return status_error(EXIT_USAGE, "--reduce: %s: need ordered or fast", asked);
	run->reduce_ordered = asked ? strcmp(asked, "ordered") == 0
	                            : gradc_ranks(run) <= MOST_ORDERED;
	return NULL;
}

/* --data-parallel picks one of the compiled modes, by default the first. Work of a single rank uses whole states. */
static Status
pick_mode(Gradc *run)
{
	const GradcOptions *o = &run->options;
	const char *list = format_info_get(&run->format, "data_parallel"),
		   *asked = o->data_parallel;
	char *copy = arena_strdup(run->arena, list ? list : mode_names[MODE_DDP]);
	char *save = NULL;

	run->mode = MODE_DDP;
	for (char *name = strtok_r(copy, ",", &save); name && !o->alone;
	     name = strtok_r(NULL, ",", &save)) {
		if (asked && strcmp(asked, name) != 0)
			continue;
		while (run->mode < N_MODES && strcmp(mode_names[run->mode], name) != 0)
			run->mode++;
		return run->mode < N_MODES ? NULL
		                           : status_error(EXIT_SYSTEM,
		                                          "the executable's tables are damaged: "
		                                          "--data-parallel=%s",
		                                          name);
	}
	return !asked || o->alone ? NULL
	                          : status_error(EXIT_USAGE,
	                                         "--data-parallel=%s: compiled with "
	                                         "--data-parallel=%s",
	                                         asked, list ? list : mode_names[MODE_DDP]);
}

/* If ranks hold only parts of the states: refuses a feature (`what`) that needs whole gradients, or all values that kernels
 * read. */
Status
sharing_needs_whole(const Gradc *run, const char *what)
{
	if (run->mode == MODE_DDP)
		return NULL;
	return status_error(
		EXIT_USAGE,
		"%s: not with --data-parallel=%s; compile with --data-parallel=ddp, too, "
		"and run with it",
		what, mode_names[run->mode]);
}

/* Checks --shard-size, which is only for runs in which ranks hold parts. */
static Status
check_shard_size(const Gradc *run)
{
	int64_t n = run->options.shard_size;
	int ranks = gradc_ranks(run);

	if (n == 0 || (run->mode && n > 1 && ranks % n == 0))
		return NULL;
	if (run->mode == MODE_DDP)
		return status_error(EXIT_USAGE,
		                    "--shard-size=%lld: with --data-parallel=ddp every rank holds "
		                    "all",
		                    (long long)n);
	return status_error(
		EXIT_USAGE,
		"--shard-size=%lld: %d rank%s cannot be divided into groups of this size%s",
		(long long)n, ranks, ranks == 1 ? "" : "s",
		n == 1 ? "; --data-parallel=ddp is without parts" : "");
}

/* The members of each group. Neighbouring ranks form a group whose members together hold all parts of the states. With
 * --shard-size there are several such groups. */
void
sharing_mesh(void *context, int rank, int size, int colors[N_GROUPS])
{
	const Gradc *run = context;
	int64_t asked = run->options.shard_size;
	int each = asked > 0 && asked < size ? (int)asked : size;

	for (int g = 0; g < N_GROUPS; g++)
		colors[g] = g == GROUP_WORLD || g == GROUP_DATA ? 0 : rank;
	colors[GROUP_SHARD] = rank / each;
	colors[GROUP_REPLICATE] = rank % each;
}

bool
gradc_holds_parts(const Gradc *run)
{
	return run->mode != MODE_DDP;
}

Status
sharing_pick(Gradc *run)
{
	RETURN_IF_ERROR(pick_reduction(run));
	RETURN_IF_ERROR(pick_mode(run));
	if (run->options.find_nan)
		RETURN_IF_ERROR(sharing_needs_whole(run, "--find-nan"));
	return check_shard_size(run);
}

/* Do both lists contain the same words? Each word must be known and occur once. */
static bool
is_same_set(const char *asked, const char *list)
{
	uint32_t set = offload_set(asked);
	int words = 1;

	for (const char *c = asked; *c; c++)
		words += *c == ',';
	return set == offload_set(list) && words == __builtin_popcount(set);
}

Status
offload_check(const Gradc *run)
{
	const char *list = format_info_get(&run->format, "offload");
	const GradcOptions *o = &run->options;
	bool states = format_offloads(&run->format, OFFLOAD_OPTIMIZER) ||
	              format_offloads(&run->format, OFFLOAD_PARAMS);

	if (o->offload && (!list || !is_same_set(o->offload, list)))
		return status_error(EXIT_USAGE, "--offload=%s: compiled %s%s", o->offload,
		                    list ? "with --offload=" : "without --offload",
		                    list ? list : "");
	if (states && (o->offload || o->offload_folder) && run->mode == MODE_DDP && !o->alone)
		return status_error(EXIT_USAGE,
		                    "--offload%s: with --data-parallel=ddp all lies on the device",
		                    o->offload ? "" : "-dir");
	if (o->offload_folder && !states)
		return status_error(EXIT_USAGE,
		                    "--offload-dir: compile with --offload=optimizer, too");
	return NULL;
}

/* Finds the members of each group of ranks, such as the tensor group or the data group, and checks which collectives a group
 * can run. */
#include "runtime/comm/comm.h"

/* Groups without a mesh: all ranks divide the data among them, and nothing else is divided. */
static void
plain_mesh(void *context, int rank, int size, int colors[N_GROUPS])
{
	(void)context;
	(void)size;
	for (int g = 0; g < N_GROUPS; g++)
		colors[g] = g == GROUP_WORLD || g == GROUP_DATA || g == GROUP_REPLICATE ? 0 : rank;
}

typedef int Colors[N_GROUPS]; /* colours of a rank */

/* The first member of this rank's group. */
static int
first_of(const Colors *all, int rank, int group)
{
	int r = 0;

	while (all[r][group] != all[rank][group])
		r++;
	return r;
}

static bool
divide_alike(const Colors *all, int size, int a, int b)
{
	for (int r = 0; r < size; r++)
		if (first_of(all, r, a) != first_of(all, r, b))
			return false;
	return true;
}

static void
find_members(const Colors *all, int rank, int size, int group, CommMembers *out)
{
	*out = (CommMembers){.members = memory_get(sizeof(int) * (size_t)size)};
	for (int r = 0; r < size; r++) {
		out->is_shared |= first_of(all, r, group) != r;
		if (all[r][group] != all[rank][group])
			continue;
		if (r == rank)
			out->rank = out->size;
		out->members[out->size++] = r;
	}
	while (!divide_alike(all, size, out->same, group))
		out->same++;
}

Status
comm_members(const CommControlOps *ops, CommControl *control, const CommOptions *options,
             CommMembers out[N_GROUPS])
{
	int rank = ops->rank(control), size = ops->size(control);
	Colors own, *all = memory_get(sizeof(own) * (size_t)size);

	for (int g = 0; g < N_GROUPS; g++)
		out[g] = (CommMembers){0};
	(options->mesh ? options->mesh : plain_mesh)(options->context, rank, size, own);
	Status status = ops->all_gather(control, own, all, sizeof(own));
	for (int g = 0; g < N_GROUPS && !status; g++)
		find_members((const Colors *)all, rank, size, g, &out[g]);
	memory_free(all);
	return status;
}

void
comm_members_free(CommMembers groups[N_GROUPS])
{
	for (int g = 0; g < N_GROUPS; g++) {
		memory_free(groups[g].members);
		groups[g] = (CommMembers){0};
	}
}

/* ---- collectives */
static Status
check_peer(const Collective *c, int rank, int size)
{
	bool itself = c->kind != COMM_BROADCAST && c->peer == rank;

	if (c->peer >= 0 && c->peer < size && !itself)
		return NULL;
	return status_error(EXIT_COMM, "%s: rank %d is %s in group %s, which has %d",
	                    collective_names[c->kind], c->peer, itself ? "this one" : "not",
	                    comm_group_names[c->group], size);
}

Status
comm_check_collective(const Collective *c, int rank, int size)
{
	int64_t block = c->block ? c->block : 1, bits = dtype_info[c->dtype].bits;
	bool reduces = c->kind == COMM_ALL_REDUCE || c->kind == COMM_REDUCE_SCATTER;

	if (c->n < 0 || block < 0)
		return status_error(EXIT_COMM,
		                    "%s: %lld elements in blocks of %lld, needs 0 or "
		                    "more of both",
		                    collective_names[c->kind], (long long)c->n, (long long)block);
	if (reduces && !comm_sum_has(c->dtype))
		return status_error(EXIT_COMM, "no sums of %s over ranks",
		                    dtype_info[c->dtype].name);
	if (c->kind == COMM_SEND || c->kind == COMM_RECV || c->kind == COMM_BROADCAST)
		return check_peer(c, rank, size);
	if (block * bits % 8 != 0)
		return status_error(EXIT_COMM, "blocks of %lld elements of %s are not whole bytes",
		                    (long long)block, dtype_info[c->dtype].name);
	return NULL;
}

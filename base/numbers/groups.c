/* Finds the group of each element of a tensor, where a group of elements shares a number, such as a
 * scale. */
#include "base/numbers/numbers.h"

int64_t
groups_along(const Groups *g, int axis)
{
	return g->dims[axis] ? (g->dims[axis] - 1) / g->group[axis] + 1 : 0;
}

int64_t
groups_count(const Groups *g)
{
	int64_t n = 1;

	for (int i = 0; i < g->rank; i++)
		n *= groups_along(g, i);
	return n;
}

int64_t
groups_at(const Groups *g, const int64_t *at)
{
	int64_t flat = 0;

	for (int i = 0; i < g->rank; i++)
		flat = flat * groups_along(g, i) + at[i] / g->group[i];
	return flat;
}

GroupWalk
group_walk(const Groups *g)
{
	return (GroupWalk){.groups = *g};
}

void
group_next(GroupWalk *w)
{
	const Groups *g = &w->groups;

	w->i++;
	for (int i = g->rank - 1; i >= 0 && ++w->at[i] == g->dims[i]; i--)
		w->at[i] = 0;
	w->group = groups_at(g, w->at);
}

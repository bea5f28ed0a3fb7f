/* Finds the targets (kinds of CPU or GPU) of a module's programs, and the kernels that each
 * target needs. */
#include "codegen/legalize/legalize.h"

#include <string.h>

int
version_index(const Versions *v, const char *target)
{
	int i = v->names.n - 1;

	while (i >= 0 && strcmp(v->names.at[i], target) != 0)
		i--;
	return i;
}

static void
list_targets(Arena *arena, const Module *m, Versions *v)
{
	for_each_function(m, f)
		if (f->target && version_index(v, f->target) < 0)
			vec_push(arena, &v->names, f->target);
	if (v->names.n == 0)
		vec_push(arena, &v->names, "");
}

/* Records that programs for `target` need the kernel. target NULL: all targets need it. */
static void
mark_needed(const Versions *v, const char *target, int kernel)
{
	for (int t = 0; t < v->names.n; t++)
		v->needs[t][kernel] |= !target || strcmp(v->names.at[t], target) == 0;
}

static bool
is_needed(const Versions *v, int kernel)
{
	for (int t = 0; t < v->names.n; t++)
		if (v->needs[t][kernel])
			return true;
	return false;
}

static void
mark_launched(const Versions *v, const Function *f)
{
	for_each_node(f, n) {
		const Kernel *k = launched_kernel(n);
		if (k)
			mark_needed(v, f->target, k->id);
	}
}

Versions
module_versions(Arena *arena, const Module *m)
{
	Versions v = {0};

	list_targets(arena, m, &v);
	v.needs = NEW_ARRAY(arena, bool *, v.names.n);
	for (int t = 0; t < v.names.n; t++)
		v.needs[t] = NEW_ARRAY(arena, bool, m->kernels.n);
	for_each_function(m, f)
		mark_launched(&v, f);
	for (int i = 0; i < m->kernels.n; i++)
		if (!is_needed(&v, i))
			mark_needed(&v, NULL, i);
	return v;
}

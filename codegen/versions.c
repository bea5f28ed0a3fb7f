/* For which targets the programs of a module are, and which kernels each of them needs. */
#include "codegen/codegen.h"

#include <assert.h>
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
	assert(v->names.n <= MAX_TARGETS); /* of targets/target_list.def, or refused by then */
}

Versions
module_versions(Arena *arena, const Module *m)
{
	Versions v = {.kernels = NEW_ARRAY(arena, uint32_t, m->kernels.n)};
	IntMap *by_kernel = intmap_new(arena);
	uint64_t i;

	list_targets(arena, m, &v);
	uint32_t all = UINT32_MAX >> (MAX_TARGETS - v.names.n);
	for (int k = 0; k < m->kernels.n; k++)
		intmap_put(by_kernel, (uint64_t)(uintptr_t)m->kernels.at[k], (uint64_t)k);
	for_each_function(m, f)
		for_each_node(f, n)
			if (n->op == OP_launch &&
			    intmap_get(by_kernel,
			               (uint64_t)(uintptr_t)((LaunchAttr *)n->attr)->kernel, &i))
				v.kernels[i] |= f->target ? 1u << version_index(&v, f->target)
				                          : all;
	for (int k = 0; k < m->kernels.n; k++)
		v.kernels[k] = v.kernels[k] ? v.kernels[k] : all;
	return v;
}

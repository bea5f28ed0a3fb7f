/* Which of the compiled variants of the kernels run on this CPU, and which of several is taken. */
#include "runtime/runtime_impl.h"

#include <string.h>

enum { MAX_VARIANTS = 64 }; /* as bits of a set */

static int
count_words(const char *text)
{
	int n = 0;

	for (; *text; text += strcspn(text, " "), text += strspn(text, " "))
		n++;
	return n;
}

static Status
no_variant(const KernelVariant *closest)
{
	int n = 0;

	if (!closest)
		return status_error(EXIT_SYSTEM, "there are no kernels");
	const char *lacks = cpu_lacks(closest->features, &n);
	return status_error(EXIT_SYSTEM,
	                    "this CPU lacks %.*s, which the kernels for cpu:%s use: compile the "
	                    "model on this machine, or with --target=cpu:x86-64-v2,cpu:%s",
	                    n, lacks, closest->cpu,
	                    strcmp(closest->cpu, "native") ? closest->cpu : "x86-64-v3");
}

static Status
not_compiled(const KernelVariant *all, const char *asked)
{
	Text names = {0};

	for (const KernelVariant *v = all; v->cpu; v++)
		text_printf(&names, "%scpu:%s", v == all ? "" : ", ", v->cpu);
	Status status = status_error(EXIT_USAGE, "--target=%s: the model is compiled for %s", asked,
	                             names.at ? names.at : "no CPU");
	text_free(&names);
	return status;
}

static bool
is_asked(const KernelVariant *v, const char *asked)
{
	return !asked || strcmp(v->cpu, strncmp(asked, "cpu:", 4) == 0 ? asked + 4 : asked) == 0;
}

Status
variant_list(const KernelVariant *all, const char *asked, uint64_t *out)
{
	const KernelVariant *closest = NULL;
	bool any = false;
	int n;

	*out = 0;
	for (int i = 0; all[i].cpu; i++) {
		if (i == MAX_VARIANTS)
			return status_error(EXIT_SYSTEM, "kernels for more than %d CPUs",
			                    MAX_VARIANTS);
		if (!is_asked(&all[i], asked))
			continue;
		any = true;
		if (cpu_lacks(all[i].features, &n))
			closest = &all[i];
		else
			*out |= 1ull << i;
	}
	if (!any && asked)
		return not_compiled(all, asked);
	return *out ? NULL : no_variant(closest);
}

const KernelVariant *
variant_best(const KernelVariant *all, uint64_t of)
{
	const KernelVariant *best = NULL;

	for (int i = 0; all[i].cpu; i++)
		if (of >> i & 1 &&
		    (!best || count_words(all[i].features) > count_words(best->features)))
			best = &all[i];
	return best;
}

Status
variant_pick(const KernelVariant *all, const char *asked, const KernelVariant **out)
{
	uint64_t here;

	*out = NULL;
	RETURN_IF_ERROR(variant_list(all, asked, &here));
	*out = variant_best(all, here);
	return NULL;
}

/* Which of the compiled variants of the kernels runs on this CPU. */
#include "runtime/runtime_impl.h"

#include <string.h>

static int
count_words(const char *text)
{
	int n = 0;

	for (; *text; text += strcspn(text, " "), text += strspn(text, " "))
		n++;
	return n;
}

Status
variant_pick(const KernelVariant *all, const KernelVariant **out)
{
	const KernelVariant *closest = NULL;
	int most = -1, n = 0;

	*out = NULL;
	for (const KernelVariant *v = all; v->cpu; v++) {
		if (cpu_lacks(v->features, &n)) {
			closest = v;
		} else if (count_words(v->features) > most) {
			most = count_words(v->features);
			*out = v;
		}
	}
	if (*out)
		return NULL;
	if (!closest)
		return status_error(EXIT_SYSTEM, "there are no kernels");
	const char *lacks = cpu_lacks(closest->features, &n);
	return status_error(EXIT_SYSTEM,
	                    "this CPU lacks %.*s, which the kernels for cpu:%s use: compile the "
	                    "model on this machine, or with --target=cpu:x86-64-v2,cpu:%s",
	                    n, lacks, closest->cpu,
	                    strcmp(closest->cpu, "native") ? closest->cpu : "x86-64-v3");
}

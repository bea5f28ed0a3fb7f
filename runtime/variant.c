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
no_variant(const CodeImage *closest)
{
	int n = 0;

	if (!closest)
		return status_error(EXIT_SYSTEM, "there are no kernels");
	const char *lacks = cpu_lacks(closest->features, &n);
	return status_error(EXIT_SYSTEM,
	                    "this CPU lacks %.*s, which the kernels for cpu:%s use: compile the "
	                    "model on this machine, or with --target=cpu:x86-64-v2,cpu:%s",
	                    n, lacks, closest->name,
	                    strcmp(closest->name, "native") ? closest->name : "x86-64-v3");
}

static Status
not_compiled(const CodeImage *all, const char *asked)
{
	Text names = {0};

	for (const CodeImage *v = all; v->name; v++)
		text_printf(&names,
		            v->kind == IMAGE_FUNCTIONS
		                    ? "%scpu:%s"
		                    : "%scuda:%s (for which this build has no device)",
		            v == all ? "" : ", ", v->name);
	Status status = status_error(EXIT_USAGE, "--target=%s: the model is compiled for %s", asked,
	                             names.at ? names.at : "no CPU");
	text_free(&names);
	return status;
}

/* Code for GPUs is in the executable, and what runs it is not in this runtime: programs run on CPUs. */
static bool
has_functions(const CodeImage *all)
{
	for (; all->name; all++)
		if (all->kind == IMAGE_FUNCTIONS)
			return true;
	return false;
}

static Status
no_functions(const CodeImage *all)
{
	Text names = {0};

	for (const CodeImage *v = all; v->name; v++)
		text_printf(&names, "%s%s", v == all ? "cuda:" : ",", v->name);
	Status status = status_error(EXIT_SYSTEM,
	                             "the model is compiled for %s only, which this build has no "
	                             "device for: compile it with --target=cpu,%s",
	                             names.at, names.at);
	text_free(&names);
	return status;
}

static bool
is_asked(const CodeImage *v, const char *asked)
{
	return !asked || strcmp(v->name, strncmp(asked, "cpu:", 4) == 0 ? asked + 4 : asked) == 0;
}

Status
variant_list(const CodeImage *all, const char *asked, uint64_t *out)
{
	const CodeImage *closest = NULL;
	bool any = false;
	int n;

	*out = 0;
	if (all->name && !has_functions(all))
		return no_functions(all);
	for (int i = 0; all[i].name; i++) {
		if (i == MAX_VARIANTS)
			return status_error(EXIT_SYSTEM, "kernels for more than %d CPUs",
			                    MAX_VARIANTS);
		if (all[i].kind != IMAGE_FUNCTIONS)
			continue;
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

const CodeImage *
variant_best(const CodeImage *all, uint64_t of)
{
	const CodeImage *best = NULL;

	for (int i = 0; all[i].name; i++)
		if (of >> i & 1 &&
		    (!best || count_words(all[i].features) > count_words(best->features)))
			best = &all[i];
	return best;
}

Status
variant_pick(const CodeImage *all, const char *asked, const CodeImage **out)
{
	uint64_t here;

	*out = NULL;
	RETURN_IF_ERROR(variant_list(all, asked, &here));
	*out = variant_best(all, here);
	return NULL;
}

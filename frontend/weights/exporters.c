/* Facts about the files of each exporter (torch, tf2onnx, skl2onnx ...), such as "names of
 * parameters are kept", and the rules that judge tensors by these facts. */
#include "frontend/weights/judge.h"
#include "frontend/weights/roles.h"

#include <string.h>

static const char *const sgd_of_scikit_learn[] = {"coef", "intercept", NULL};

/* One row per exporter that a rule knows facts about. */
static const Exporter exporters[] = {
	{.producer = "pytorch",
         .keeps_names = true,
         .keeps_constants = true,
         .tells_parameters = true},
	{.producer = "tf2onnx", .names_operations = true, .drops_zeros = true},
	{.producer = "skl2onnx", .learned = sgd_of_scikit_learn},
};

const Exporter *
exporter_find(const char *producer)
{
	static const Exporter unknown = {.producer = ""};

	for (int i = 0; producer && i < COUNT(exporters); i++)
		if (!strcmp(producer, exporters[i].producer))
			return &exporters[i];
	return &unknown;
}

bool
weight_made_by_exporter(const Repairs *r, const Weight *w)
{
	if (!r->exporter->keeps_names || (w->origin && w->origin->kind))
		return false;
	if (w->constant || name_is_generated(w->name))
		return true;
	return r->tells_origins && (r->tells_all || !name_is_like_parameter(w->name));
}

bool
is_named_by_module(const Repairs *r, const Weight *w)
{
	return r->exporter->keeps_names && !weight_made_by_exporter(r, w) &&
	       !strpbrk(w->name, "/:");
}

bool
weight_is_named(const Repairs *r, const Weight *w)
{
	return name_is_like_parameter(w->name) || is_named_by_module(r, w);
}

/* Vectors of spectral_norm: `weight_u` and `weight_v` of the same module as `weight_orig`, or `_u`
 * and `_v` under `parametrizations`. */
bool
rule_power_iteration(Case *c)
{
	const char *name = c->w->name;
	size_t n = strlen(name);

	if (!c->r->exporter->keeps_names || n < 2 ||
	    (strcmp(name + n - 2, "_u") && strcmp(name + n - 2, "_v")))
		return false;
	const char *original = arena_printf(c->r->arena, "%.*s_orig", (int)n - 2, name);
	return (name_is_private(name) && strstr(name, "parametrizations.")) ||
	       repairs_weight(c->r, original);
}

/* In files of scikit-learn's exporter, only coefficients and intercepts come from gradients;
 * decompositions, means and scales are computed in other ways. */
bool
rule_fitted(Case *c)
{
	const char *const *name = c->r->exporter->learned;

	if (!name)
		return false;
	for (; *name; name++)
		if (!strncmp(c->w->name, *name, strlen(*name)))
			return false;
	return true;
}

/* The exporter names the tensors that it computed from parameters, and this tensor is not among
 * them. Two kinds of tensors may be parameters nevertheless: a tensor in a weight's place, since
 * rewritten layers lose their metadata; and, in a file without a signature, a tensor with a usual
 * name of a parameter. */
bool
rule_untold(Case *c)
{
	return c->r->exporter->tells_parameters && c->r->tells_folding && !c->w->origin &&
	       (c->r->tells_all || !name_is_like_parameter(c->w->name)) && !is_in_weights_place(c);
}

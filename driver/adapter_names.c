/* Finds the module names under which PEFT saves adapters and fully trained weights, such as
 * "model.layers.0.q_proj". The names come from the model file, or from --adapter-name
 * PARAM=PATH. */
#include "driver/session.h"

#include <string.h>

/* The module's path: "fc" for "fc.weight" and for "fc". */
static const char *
module_of(const Session *s, const char *path)
{
	const char *module = text_before_ending(s->arena, path, ".weight");

	return module ? module : path;
}

/* Sets the modules of an adapter. paths: TABLE,PRODUCT if both a table and a product read the
 * weight, else one path. */
static bool
name_modules(Session *s, const char *option, const char *paths, AdapterReaders readers,
             AdapterModules *out)
{
	const char *comma = strchr(paths, ',');

	if ((comma != NULL) != (readers == ADAPTS_BOTH)) {
		diag_error(
			s->diag, EXIT_USAGE, "--adapter-name=%s: need PARAM=%s", option,
			comma ? "PATH: only one module reads the parameter"
			      : "TABLE,PRODUCT: an embedding and a linear layer read the parameter");
		return false;
	}
	if (readers != ADAPTS_TABLES)
		out->product = module_of(s, comma ? comma + 1 : paths);
	if (readers != ADAPTS_PRODUCTS)
		out->table = module_of(
			s, comma ? arena_strndup(s->arena, paths, (size_t)(comma - paths)) : paths);
	return true;
}

/* Sets the name of a fully trained weight: a path that includes the tensor's own name. */
static bool
name_source(Session *s, const char *option, const State *state, const char *path,
            StateSource *sources)
{
	if (!strchr(path, '.')) {
		diag_error(s->diag, EXIT_USAGE,
		           "--adapter-name=%s: need PARAM=MODULE.NAME, as head.weight: \"%s\" has "
		           "no adapter",
		           option, state->name);
		return false;
	}
	sources[state->id].parameter = path;
	return true;
}

static bool
apply(Session *s, const char *option, AdapterModules *modules, StateSource *sources)
{
	const char *name, *path;

	if (!split_pair(s, "adapter-name", option, &name, &path))
		return false;
	if (!*path) {
		diag_error(s->diag, EXIT_USAGE, "--adapter-name=%s: need PARAM=PATH", option);
		return false;
	}
	const State *state = module_state(s->m, name);
	if (!state || state->kind != STATE_PARAMETER) {
		diag_error(s->diag, EXIT_USAGE, "--adapter-name=%s: \"%s\" is not a parameter",
		           option, name);
		hint_nearest_states(s->m, name, s->diag);
		return false;
	}
	for (int i = 0; i < s->m->adapters.n; i++)
		if (s->m->adapters.at[i].weight == state)
			return name_modules(s, option, path, s->m->adapters.at[i].readers,
			                    &modules[i]);
	if (state->id < s->import->state_sources.n)
		return name_source(s, option, state, path, sources);
	diag_error(s->diag, EXIT_USAGE, "--adapter-name=%s: \"%s\" is a part of an adapter", option,
	           name);
	return false;
}

bool
adapter_names(Session *s, AdapterModules **modules, StateSource **sources)
{
	const Module *m = s->m;
	bool ok = true;

	*modules = NEW_ARRAY(s->arena, AdapterModules, m->adapters.n);
	*sources = arena_copy(s->arena, s->import->state_sources.at,
	                      sizeof(StateSource) * (size_t)s->import->state_sources.n);
	for (int i = 0; i < m->adapters.n; i++)
		(*modules)[i] = model_adapter_modules(m, &m->adapters.at[i]);
	for (int i = 0; i < s->o->adapter_names.n; i++)
		ok &= apply(s, s->o->adapter_names.at[i], *modules, *sources);
	return ok;
}

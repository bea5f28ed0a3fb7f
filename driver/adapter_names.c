/* Finds the module names under which PEFT saves adapters and fully trained weights, such as
 * "model.layers.0.q_proj". The names come from the model file, or from --adapter-name
 * PARAM=PATH, where PARAM may be a glob: '*.attn.q=base.*.q_proj'. */
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
	for (int i = 0; i < s->m->states.n; i++) {
		const State *other = s->m->states.at[i];
		if (other != state && other->kind == STATE_PARAMETER &&
		    strcmp(other->name, path) == 0) {
			diag_error(s->diag, EXIT_USAGE,
			           "--adapter-name=%s: \"%s\" is the name of another parameter",
			           option, path);
			return false;
		}
	}
	sources[state->id].parameter = path;
	return true;
}

/* What --adapter-name sets. */
typedef struct {
	AdapterModules *modules;
	StateSource *sources;
} NamedParameters;

/* Sets the names of one parameter. */
static bool
apply_to(Session *s, const char *option, const State *state, const char *path,
         const NamedParameters *out)
{
	if (!*path) {
		diag_error(s->diag, EXIT_USAGE, "--adapter-name=%s: need PARAM=PATH", option);
		return false;
	}
	for (int i = 0; i < s->m->adapters.n; i++)
		if (s->m->adapters.at[i].weight == state)
			return name_modules(s, option, path, s->m->adapters.at[i].readers,
			                    &out->modules[i]);
	if (state->id < s->import->state_sources.n)
		return name_source(s, option, state, path, out->sources);
	diag_error(s->diag, EXIT_USAGE, "--adapter-name=%s: \"%s\" is a part of an adapter", option,
	           state->name);
	return false;
}

/* The name that GLOB=PATH gives to the parameter, by its name or its path; NULL: the glob does not match, or training changes
 * neither the parameter nor an adapter of the parameter. */
static const char *
path_by_glob(Session *s, const State *state, const char *glob, const char *path)
{
	bool adapted = false;

	for (int i = 0; i < s->m->adapters.n; i++)
		adapted |= s->m->adapters.at[i].weight == state;
	bool trained = state->trainable && state->id < s->import->state_sources.n;
	if (state->kind != STATE_PARAMETER || (!adapted && !trained))
		return NULL;
	const char *found = glob_replace(s->arena, glob, state->name, path);
	return found || !state->path ? found : glob_replace(s->arena, glob, state->path, path);
}

static int
count_stars(const char *text)
{
	int n = 0;

	for (; *text; text++)
		n += *text == '*';
	return n;
}

static bool
check_stars(Session *s, const char *option, const char *glob, const char *path)
{
	int stars = count_stars(glob);

	if (stars > MOST_STARS)
		diag_error(s->diag, EXIT_USAGE, "--adapter-name=%s: %d stars, %d are the most",
		           option, stars, MOST_STARS);
	else if (count_stars(path) > stars)
		diag_error(s->diag, EXIT_USAGE,
		           "--adapter-name=%s: the path has %d stars, and \"%s\" has %d", option,
		           count_stars(path), glob, stars);
	return stars <= MOST_STARS && count_stars(path) <= stars;
}

/* GLOB=PATH for all parameters that training adapts or changes, and that the glob matches. */
static bool
apply_glob(Session *s, const char *option, const char *glob, const char *path,
           const NamedParameters *out)
{
	StrMap *seen = strmap_new(s->arena);
	bool ok = check_stars(s, option, glob, path);
	int n = 0;

	for (int i = 0; ok && i < s->m->states.n; i++) {
		State *state = s->m->states.at[i];
		const char *name = path_by_glob(s, state, glob, path);
		if (!name)
			continue;
		const State *other = strmap_get(seen, name);
		if (other) {
			diag_error(s->diag, EXIT_USAGE,
			           "--adapter-name=%s: \"%s\" and \"%s\" would both be \"%s\"",
			           option, other->name, state->name, name);
			return false;
		}
		strmap_put(seen, name, state);
		ok = apply_to(s, option, state, name, out);
		n++;
	}
	if (ok && n == 0) {
		diag_error(
			s->diag, EXIT_USAGE,
			"--adapter-name=%s: \"%s\" fits no parameter with an adapter, and none that "
			"is trained",
			option, glob);
		hint_nearest_states(s->m, glob, s->diag);
	}
	return ok && n > 0;
}

/* PARAM=PATH, or GLOB=PATH. */
static bool
apply(Session *s, const char *option, const NamedParameters *out)
{
	const char *name, *path;

	if (!split_pair(s, "adapter-name", option, &name, &path))
		return false;
	const State *state = module_state(s->m, name);
	if (!state && strpbrk(name, "*?"))
		return apply_glob(s, option, name, path, out);
	if (state && state->kind == STATE_PARAMETER)
		return apply_to(s, option, state, path, out);
	diag_error(s->diag, EXIT_USAGE, "--adapter-name=%s: \"%s\" is not a parameter", option,
	           name);
	hint_nearest_states(s->m, name, s->diag);
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
		ok &= apply(s, s->o->adapter_names.at[i], &(NamedParameters){*modules, *sources});
	return ok;
}

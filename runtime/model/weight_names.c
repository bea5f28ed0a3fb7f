/* Matches the states of the model with the tensors of a file of weights. A state has the name of the ONNX file, such as
 * "onnx::MatMul_7", and often a name in the module from which the file was exported, "fc.weight"; under the module's name a matrix
 * may be the state's transpose. A file may put one prefix before all names: "model.fc.weight". */
#include "runtime/model/adapters.h"
#include "runtime/model/weight_file.h"

#include <string.h>

bool
state_is_loadable(const StateRecord *s)
{
	return s->kind == STATE_PARAMETER || s->kind == STATE_STATISTIC;
}

/* The tensor that a name of the model stands for. */
static const WeightTensor *
find(Arena *arena, const WeightNames *names, const char *name)
{
	size_t n = strlen(names->model_prefix);

	if (n && strncmp(name, names->model_prefix, n) != 0)
		return NULL;
	if (*names->file_prefix)
		return strmap_get(names->file->by_name,
		                  arena_printf(arena, "%s%s", names->file_prefix, name + n));
	return strmap_get(names->file->by_name, name + n);
}

WeightMatch
weight_match(Arena *arena, const WeightNames *names, const Format *f, int state)
{
	const StateRecord *s = &f->states[state];
	const char *name = format_text(f, s->name), *parameter = format_text(f, s->parameter);
	WeightMatch match = {find(arena, names, name), false};

	if (!match.tensor && *parameter && strcmp(parameter, name) != 0)
		match = (WeightMatch){find(arena, names, parameter), s->transposed && s->rank == 2};
	/* a tied parameter has the name of one reader and the path of the other: "lm_head.weight" and "transformer.wte" */
	const char *path = format_text(f, s->path), *dot = strrchr(name, '.');
	if (!match.tensor && *path && dot)
		match.tensor = find(arena, names, arena_printf(arena, "%s%s", path, dot));
	return match;
}

/* --load reads adapters' parts only under their own names. */
static bool
has_module_name(const Format *f, int state)
{
	return state_is_loadable(&f->states[state]) && !adapter_is_part(f, state);
}

static int
count_matched(Arena *arena, const WeightNames *names, const Format *f)
{
	int n = 0;

	for (int i = 0; i < f->n[SECTION_STATES]; i++)
		n += has_module_name(f, i) && weight_match(arena, names, f, i).tensor != NULL;
	return n;
}

/* What stands before `name` in `longer`: "model." for "model.fc.weight" and "fc.weight"; NULL: not a prefix of whole parts. */
static const char *
prefix_before(Arena *arena, const char *longer, const char *name)
{
	size_t n = strlen(longer), k = strlen(name);

	if (k == 0 || n <= k || strcmp(longer + n - k, name) != 0 ||
	    !strchr("./", longer[n - k - 1]))
		return NULL;
	return arena_strndup(arena, longer, n - k);
}

/* Tries the prefix with which `name` of the model is a name of the file, or the other way round, for each name of the file. Keeps
 * the prefix that matches most states. */
static void
try_prefixes(Arena *arena, const Format *f, const char *name, StrMap *seen, WeightNames *best)
{
	enum { MOST = 16 }; /* prefixes to try */

	for (int i = 0, tried = 0; *name && i < best->file->tensors.n && tried < MOST; i++) {
		const char *of_file = best->file->tensors.at[i].of.name;
		const char *longer = prefix_before(arena, of_file, name);
		const char *shorter = longer ? NULL : prefix_before(arena, name, of_file);
		const char *prefix = longer ? longer : shorter;
		if (!prefix || strmap_get(seen, prefix))
			continue;
		strmap_put(seen, prefix, best);
		tried++;
		WeightNames names = {best->file, longer ? longer : "", shorter ? shorter : "", 0};
		names.matched = count_matched(arena, &names, f);
		bool has_prefix = *best->file_prefix || *best->model_prefix;
		if (names.matched > best->matched)
			*best = names;
		else if (names.matched == best->matched && names.matched > 0 && has_prefix)
			best->also = prefix;
	}
}

/* Three states whose names are tried: the one with the longest name, which has the fewest candidates, the first and the last. A file
 * may lack some of them. */
static void
pick_states(const Format *f, int picked[3])
{
	picked[0] = picked[1] = picked[2] = -1;
	for (int i = 0; i < f->n[SECTION_STATES]; i++) {
		if (!has_module_name(f, i))
			continue;
		if (picked[0] < 0 || strlen(format_text(f, f->states[i].name)) >
		                             strlen(format_text(f, f->states[picked[0]].name)))
			picked[0] = i;
		if (picked[1] < 0)
			picked[1] = i;
		picked[2] = i;
	}
}

WeightNames
weight_names(Arena *arena, const Format *f, const WeightFile *file)
{
	WeightNames names = {file, "", "", 0};
	StrMap *seen = strmap_new(arena);
	int all = 0, picked[3];

	for (int i = 0; i < f->n[SECTION_STATES]; i++)
		all += has_module_name(f, i);
	names.matched = count_matched(arena, &names, f);
	pick_states(f, picked);
	for (int i = 0; i < COUNT(picked) && picked[i] >= 0 && names.matched < all; i++) {
		const StateRecord *s = &f->states[picked[i]];
		try_prefixes(arena, f, format_text(f, s->name), seen, &names);
		try_prefixes(arena, f, format_text(f, s->parameter), seen, &names);
	}
	return names;
}

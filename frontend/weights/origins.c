/* Reads the origins of tensors from the metadata of torch's dynamo exporter. InputSpec.kind marks
 * each initializer that the module had. folded_from lists the sources of a tensor that the exporter
 * computed, as a Python list. The signature lists all tensors of the module, in lines such as
 * "p_fc_weight: PARAMETER target='fc.weight'". */
#include "frontend/weights/origins.h"
#include "frontend/weights/judge.h"

#include <string.h>

static const char KIND[] = "pkg.torch.export.graph_signature.InputSpec.kind";
static const char FOLDED_FROM[] = "pkg.onnxscript.optimizer.folded_from";
static const char TARGET[] = " target=";
static const char SIGNATURE[] = "pkg.torch.export.ExportedProgram.graph_signature";

/* The next text in ' or " quotes from *at on; moves *at past the closing quote. NULL: no more
 * quotes. */
static const char *
next_quoted(Arena *arena, const char **at)
{
	const char *begin = *at + strcspn(*at, "'\"\n"), *end;

	if (!*begin || *begin == '\n')
		return NULL;
	end = strchr(begin + 1, *begin);
	if (!end)
		return NULL;
	*at = end + 1;
	return arena_strndup(arena, begin + 1, (size_t)(end - begin - 1));
}

/* The text between the quote at `line` and the last such quote of the line: a name may contain an
 * apostrophe. NULL: no quote at `line`, or no text. */
static const char *
quoted_to_end(Arena *arena, const char *line)
{
	const char *end = line + strcspn(line, "\n");

	if (*line != '\'' && *line != '"')
		return NULL;
	while (end[-1] != *line)
		end--;
	return end > line + 2 ? arena_strndup(arena, line + 1, (size_t)(end - line - 2)) : NULL;
}

static Origin *
origin_at(Repairs *r, const char *name)
{
	Origin *o = strmap_get(r->origins, name);

	if (o)
		return o;
	o = NEW(r->arena, Origin);
	strmap_put(r->origins, name, o);
	return o;
}

static const char *
metadata_value(size_t n, Onnx__StringStringEntryProto *const *props, const char *key)
{
	for (size_t i = 0; i < n; i++)
		if (props[i]->key && props[i]->value && !strcmp(props[i]->key, key))
			return props[i]->value;
	return NULL;
}

/* Is it the line of an updated statistic? A module exported in training mode has such outputs:
 * "getitem_3: BUFFER_MUTATION target='bn.running_mean'". */
static bool
is_moved_statistic(const char *line)
{
	static const char WORD[] = ": BUFFER_MUTATION target=";
	const char *at = line + strcspn(line, ":\n"), *mean;

	if (strncmp(at, WORD, sizeof(WORD) - 1))
		return false;
	mean = strstr(at, "running_mean");
	return mean && mean < at + strcspn(at, "\n");
}

/* Is it a batch norm's counter of steps? No operator reads it. */
static bool
is_counter(const char *name)
{
	static const char word[] = "num_batches_tracked";
	size_t n = strlen(name);

	return n >= sizeof(word) - 1 && !strcmp(name + n - (sizeof(word) - 1), word);
}

/* Reads the lines of the module's tensors; lines of inputs and outputs have other kinds. */
static void
read_signature(Repairs *r)
{
	static const char *const kinds[] = {ORIGIN_PARAMETER, ORIGIN_BUFFER, ORIGIN_CONSTANT};
	const GraphProto *g = r->model->proto->graph;
	const char *line = metadata_value(g->n_metadata_props, g->metadata_props, SIGNATURE);

	for (; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
		const char *at = line + strcspn(line, ":\n");
		const char *placeholder = arena_strndup(r->arena, line, (size_t)(at - line));
		if (*at == ':' && !strmap_get(r->placeholders, placeholder))
			strmap_put(r->placeholders, placeholder, (void *)(uintptr_t) "");
		r->moves_statistics |= is_moved_statistic(line);
		for (int i = 0; *at == ':' && i < COUNT(kinds); i++) {
			size_t n = strlen(kinds[i]);
			if (strncmp(at, ": ", 2) || strncmp(at + 2, kinds[i], n) ||
			    strncmp(at + 2 + n, TARGET, strlen(TARGET)))
				continue;
			const char *target = quoted_to_end(r->arena, at + 2 + n + strlen(TARGET));
			if (!target)
				continue;
			strmap_put(r->placeholders, placeholder, (void *)(uintptr_t)target);
			if (strmap_get(r->signature, target))
				continue;
			strmap_put(r->signature, target, (void *)(uintptr_t)kinds[i]);
			if (i == 0)
				vec_push(r->arena, &r->signed_parameters, target);
			if (i < 2 && !is_counter(target))
				vec_push(r->arena, &r->signed_tensors, target);
		}
	}
}

/* The kind of a source: from the signature, else from the metadata of an initializer. */
static const char *
kind_of(const Repairs *r, const char *name)
{
	const char *kind = strmap_get(r->signature, name);
	const Origin *o = strmap_get(r->origins, name);

	return kind || !o ? kind : o->kind;
}

/* Is a source a parameter by its name? Tools that copy a graph lose the signature and the metadata
 * of initializers. Then only the name of a source remains. */
static bool
is_parameter_by_name(const Repairs *r, const char *name)
{
	return !r->tells_all && name_is_like_parameter(name) && !name_is_of_table(name);
}

static void
read_folded(Repairs *r, const char *name, const char *list)
{
	Origin *o = origin_at(r, name);
	const char *part;

	o->folded = r->tells_folding = true;
	o->expanded = name_is_expansion(name);
	while ((part = next_quoted(r->arena, &list))) {
		o->expanded |= name_is_expansion(part);
		o->steps++;
		const char *kind = kind_of(r, part);
		bool guessed = !kind && is_parameter_by_name(r, part);
		if (guessed || (kind && !strcmp(kind, ORIGIN_PARAMETER)))
			vec_push(r->arena, &o->from, part);
		o->guessed |= guessed;
		o->unknown |= !kind && !r->tells_all && name_is_own(part);
	}
}

/* Applies the signature to initializers that lost their own metadata. */
static void
read_signed(Repairs *r)
{
	const GraphProto *g = r->model->proto->graph;

	for (size_t i = 0; i < g->n_initializer; i++) {
		const char *name = g->initializer[i]->name;
		const char *kind = name ? strmap_get(r->signature, name) : NULL;
		if (kind && !origin_at(r, name)->kind)
			origin_at(r, name)->kind = kind;
	}
}

void
origins_read(Repairs *r)
{
	const GraphProto *g = r->model->proto->graph;

	read_signature(r);
	r->tells_all = r->signed_parameters.n > 0;
	for (size_t i = 0; i < g->n_value_info; i++) {
		const ValueInfoProto *v = g->value_info[i];
		const char *kind = metadata_value(v->n_metadata_props, v->metadata_props, KIND);
		if (v->name && kind)
			origin_at(r, v->name)->kind = kind;
	}
	read_signed(r);
	for (size_t i = 0; i < g->n_value_info; i++) {
		const ValueInfoProto *v = g->value_info[i];
		const char *list = metadata_value(v->n_metadata_props, v->metadata_props,
		                                  FOLDED_FROM);
		if (v->name && list)
			read_folded(r, v->name, list);
	}
}

static Origin
origin_of_restored(Repairs *r, const Restored *restored)
{
	const Origin *from = restored->from ? strmap_get(r->origins, restored->from) : NULL;
	Origin own = {.kind = strmap_get(r->signature, restored->wanted)};

	switch (restored->kind) {
	case RESTORED_MERGED:
	case RESTORED_DROPPED: return own;
	case RESTORED_NUMBER: return (Origin){.kind = ORIGIN_CONSTANT};
	case RESTORED_UNTIED: return from ? *from : (Origin){0};
	case RESTORED_COMPUTED: break;
	}
	own = (Origin){.folded = true, .steps = from->steps, .expanded = from->expanded};
	vec_push(r->arena, &own.from, restored->wanted);
	return own;
}

void
origins_of_restored(Repairs *r)
{
	for (int i = 0; i < r->model->restored.n; i++) {
		const Restored *restored = r->model->restored.at[i];
		const Origin o = origin_of_restored(r, restored);
		if (o.kind || o.folded)
			*origin_at(r, restored->name) = o;
	}
}

void
origins_add_names(StrMap *in_file, const char *name, const Origin *o)
{
	strmap_put(in_file, name, in_file);
	for (int i = 0; o && i < o->from.n; i++)
		strmap_put(in_file, o->from.at[i], in_file);
}

bool
origin_is(const Weight *w, const char *kind)
{
	return w->origin && w->origin->kind && !strcmp(w->origin->kind, kind);
}

/* Does the file have neither w's parameters nor another tensor of several numbers computed from
 * them? Example: w is a single number computed from p. If the file also has p, the number is one of
 * p's sizes. If not, the number holds the value of p. */
bool
origin_is_all_there_is(const Repairs *r, const Weight *w)
{
	for (int i = 0; i < w->origin->from.n; i++) {
		const char *name = w->origin->from.at[i];
		if (repairs_weight(r, name))
			return false;
		for (int k = 0; k < r->list.n; k++) {
			const Origin *other = r->list.at[k]->origin;
			for (int j = 0; r->list.at[k] != w && other && j < other->from.n; j++)
				if (r->list.at[k]->data.n > 1 && !strcmp(other->from.at[j], name))
					return false;
		}
	}
	return w->origin->from.n > 0;
}

const char *
origin_text(const Repairs *r, const Weight *w)
{
	enum { SHOWN = 6 };
	const Origin *o = w->origin;
	Text t = {0};

	text_add(&t, "computed from ");
	for (int i = 0; i < o->from.n && i < SHOWN; i++) {
		text_add(&t, i ? ", " : "");
		text_add_plain(&t, o->from.at[i]);
	}
	if (o->from.n > SHOWN)
		text_printf(&t, " and %d more", o->from.n - SHOWN);
	text_add(&t, " when exported");
	if (o->from.n > 1 || o->steps > 1 || !name_is_generated(w->name))
		text_add(&t, ": trains as one tensor; export with optimize=False to keep "
		             "what it was computed from");
	const char *said = arena_strdup(r->arena, t.at);
	text_free(&t);
	return said;
}

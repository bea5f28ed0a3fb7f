/* Choices of engines as text. They come from a file or a checkpoint that anybody may have written: a choice is used only if the
 * library itself offers that engine for the call (tuner.c). */
#include "base/calls/library_call.h"

#include <string.h>

void
tunings_free(Tunings *t)
{
	for (int i = 0; i < t->n; i++) {
		memory_free(t->at[i].key);
		memory_free(t->at[i].engine);
		memory_free(t->at[i].fault);
	}
	memory_free(t->at);
	*t = (Tunings){0};
}

static char *
copy(const char *text, size_t n)
{
	char *to = memory_zeroed(n + 1, 1);

	memcpy(to, text, n);
	return to;
}

/* The key's choice, or its entry with a fault of this engine. */
static TunedEngine *
find(const Tunings *t, const char *key, const char *engine)
{
	for (int i = 0; i < t->n; i++) {
		TunedEngine *e = &t->at[i];
		if (strcmp(e->key, key) == 0 &&
		    (engine ? e->fault && strcmp(e->engine, engine) == 0 : !e->fault))
			return e;
	}
	return NULL;
}

bool
tunings_knows(const Tunings *t, const char *key)
{
	for (int i = 0; i < t->n; i++)
		if (strcmp(t->at[i].key, key) == 0)
			return true;
	return false;
}

bool
tunings_ask(Tunings *t, const char *key)
{
	for (int i = 0; i < t->n; i++)
		if (t->at[i].fault && strcmp(t->at[i].key, key) == 0)
			t->at[i].use = ENGINE_KNOWN;
	return tunings_knows(t, key);
}

const char *
tunings_choice(const Tunings *t, const char *key)
{
	const TunedEngine *e = find(t, key, NULL);

	return e ? e->engine : NULL;
}

const char *
tunings_fault(const Tunings *t, const char *key, const char *engine)
{
	const TunedEngine *e = find(t, key, engine);

	return e ? e->fault : NULL;
}

void
tunings_use(Tunings *t, const char *key, EngineUse use)
{
	TunedEngine *e = find(t, key, NULL);

	if (e && e->use == ENGINE_IDLE)
		e->use = use;
}

void
tunings_replace(Tunings *t, const TunedEngine *e)
{
	TunedEngine *old = find(t, e->key, NULL);

	memory_free(old->engine);
	old->engine = copy(e->engine, strlen(e->engine));
	old->use = e->use;
	t->n_lost++;
}

void
tunings_add(Tunings *t, const TunedEngine *e)
{
	t->at = memory_resize(t->at, sizeof(*t->at) * (size_t)(t->n + 1));
	t->at[t->n++] = (TunedEngine){copy(e->key, strlen(e->key)),
	                              copy(e->engine, strlen(e->engine)),
	                              e->fault ? copy(e->fault, strlen(e->fault)) : NULL, e->use};
}

void
tunings_print(const TunedEngine *e, Text *out)
{
	text_printf(out, "%s\t%s%s%s", e->key, e->engine, e->fault ? "\t" : "",
	            e->fault ? e->fault : "");
}

/* Cuts the line at its tabs. False if it has another form than KEY, ENGINE and perhaps a fault. */
static bool
cut_line(char *line, char *parts[3])
{
	int n = 0;

	for (char *at = line; at && n < 3; n++) {
		parts[n] = at;
		at = strchr(at, '\t');
		if (at)
			*at++ = '\0';
		if (!*parts[n] || (at && n == 2))
			return false;
	}
	return n > 1;
}

/* A hash of what may stand in the list only once: the key of a choice, or the key and the engine of a fault. */
static uint64_t
hash_of(const char *key, const char *engine, bool fault)
{
	uint64_t h = hash_bytes(key, strlen(key), 0);

	return fault ? hash_bytes(engine, strlen(engine), h) : h;
}

void
tunings_parse(Tunings *t, const char *text, size_t n)
{
	char *lines = copy(text, n), *next = lines;
	Arena *arena = arena_new();
	IntMap *seen = intmap_new(arena);

	for (int i = 0; i < t->n; i++)
		intmap_put(seen, hash_of(t->at[i].key, t->at[i].engine, t->at[i].fault), 1);
	for (char *line = lines; next; line = next) {
		char *parts[3] = {0};
		next = strchr(line, '\n');
		if (next)
			*next++ = '\0';
		if (!cut_line(line, parts))
			continue;
		uint64_t known, h = hash_of(parts[0], parts[1], parts[2]);
		if (intmap_get(seen, h, &known))
			continue;
		intmap_put(seen, h, 1);
		tunings_add(t, &(TunedEngine){parts[0], parts[1], parts[2], ENGINE_IDLE});
	}
	arena_free(arena);
	memory_free(lines);
}

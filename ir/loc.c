/* Makes locations, which say where a node comes from: an ONNX name, or a derivation such as
 * grad("x"). Equal locations are one object. */
#include "ir/ir.h"

#include <string.h>

static Loc
loc_intern(Module *m, const struct LocInfo *key)
{
	uint64_t counts = (uint64_t)key->more << 8 | (uint64_t)key->n_parts, found;
	uint64_t h = hash_bytes(key->text, strlen(key->text), counts);

	h = hash_bytes(key->parts, sizeof(Loc) * (size_t)key->n_parts, h);
	for (;; h++) {
		if (!intmap_get(m->interned_locs, h, &found))
			break;
		Loc old = (Loc)(uintptr_t)found;
		if (old->n_parts == key->n_parts && old->more == key->more &&
		    strcmp(old->text, key->text) == 0 &&
		    memcmp(old->parts, key->parts, sizeof(Loc) * (size_t)key->n_parts) == 0)
			return old;
	}
	struct LocInfo *fresh = arena_copy(m->arena, key, sizeof(*key));
	fresh->text = arena_strdup(m->arena, key->text);
	intmap_put(m->interned_locs, h, (uint64_t)(uintptr_t)fresh);
	return fresh;
}

Loc
loc_name(Module *m, const char *name)
{
	return loc_intern(m, &(struct LocInfo){.text = name});
}

static const char gradient_word[] = "grad";

Loc
loc_gradient(Module *m, Loc of)
{
	if (!of)
		return NULL;
	return loc_intern(m, &(struct LocInfo){.text = gradient_word, .n_parts = 1, .parts = {of}});
}

bool
loc_is_gradient(Loc loc)
{
	return loc && loc->n_parts && strcmp(loc->text, gradient_word) == 0;
}

/* The number of different locations in `locs` that are no parts of `key`. */
static int
count_others(const struct LocInfo *key, const Loc *locs, int n)
{
	Arena *arena = arena_new();
	IntMap *seen = intmap_new(arena);
	int others = 0;

	for (int i = 0; i < key->n_parts; i++)
		intmap_put(seen, (uint64_t)(uintptr_t)key->parts[i], 1);
	for (int i = 0; i < n; i++) {
		if (!locs[i] || intmap_get(seen, (uint64_t)(uintptr_t)locs[i], NULL))
			continue;
		intmap_put(seen, (uint64_t)(uintptr_t)locs[i], 1);
		others++;
	}
	arena_free(arena);
	return others;
}

Loc
loc_fuse(Module *m, const Loc *locs, int n, int more)
{
	struct LocInfo key = {.text = "fused", .more = more};
	int i;

	for (i = 0; i < n && key.n_parts < COUNT(key.parts); i++) {
		bool seen = !locs[i];
		for (int k = 0; k < key.n_parts; k++)
			seen |= key.parts[k] == locs[i];
		if (!seen)
			key.parts[key.n_parts++] = locs[i];
	}
	if (i < n)
		key.more += count_others(&key, locs + i, n - i);
	if (key.n_parts < 2 && !key.more)
		return key.n_parts ? key.parts[0] : NULL;
	return loc_intern(m, &key);
}

Loc
loc_of_parts(Module *m, const char *word, const Loc *parts, int n)
{
	struct LocInfo key = {.text = word, .n_parts = n};

	memcpy(key.parts, parts, sizeof(Loc) * (size_t)n);
	return loc_intern(m, &key);
}

Loc
loc_inline(Module *m, Loc call, Loc inner)
{
	if (!call || !inner || call == inner)
		return call ? call : inner;
	return loc_of_parts(m, "inlined", (Loc[]){call, inner}, 2);
}

const char *
loc_origin(Loc loc)
{
	while (loc && loc->n_parts)
		loc = loc->parts[0];
	return loc ? loc->text : "";
}

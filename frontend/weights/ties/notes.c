/* Notes for the table that users see before training: parameters that are tied, and equal weights
 * that are not tied. A note gives the first names and the number of further names. */
#include "frontend/weights/ties/ties.h"

enum { SHOWN = 6 };
typedef enum { TIED, TURNED, COPIED } Relation;
/* All copies of one weight that have the same relation to it. */
typedef struct {
	const Weight *home, *first;
	Relation relation;
	Text names;
	int n;
} Copies;
typedef struct {
	const Repairs *r;
	IntMap *found[3]; /* per relation: address of the home -> Copies */
	VEC(Copies *) list;
} Notes;

static void
add_copy(Notes *notes, Relation relation, const Weight *home, const Weight *copy)
{
	Arena *arena = notes->r->arena;
	uint64_t key = (uint64_t)(uintptr_t)home, found = 0;
	Copies *c;

	if (intmap_get(notes->found[relation], key, &found)) {
		c = (Copies *)(uintptr_t)found;
	} else {
		c = NEW(arena, Copies);
		*c = (Copies){.home = home, .first = copy, .relation = relation};
		intmap_put(notes->found[relation], key, (uint64_t)(uintptr_t)c);
		vec_push(arena, &notes->list, c);
	}
	if (c->n++ < SHOWN)
		text_printf(&c->names, "%s%s", c->n > 1 ? ", " : "",
		            quoted(notes->r->model, copy->name));
}

static void
note_tied(Repairs *r, const Copies *c)
{
	const char *home = quoted(r->model, c->home->name);
	bool turned = c->relation == TURNED;

	if (c->n == 1)
		repairs_note(r, "ties", "%s is %s%s; --no-tie=%s makes them two", c->names.at,
		             turned ? "the transpose of " : "", home, c->first->name);
	else
		repairs_note(r, "ties",
		             "%s are %s%s; --no-tie=NAME makes NAME a parameter of its own",
		             c->names.at, turned ? "transposes of " : "", home);
}

static void
note_copied(Repairs *r, const Copies *c)
{
	const char *home = quoted(r->model, c->home->name);

	if (c->n == 1)
		repairs_note(r, "ties", "%s equals %s: --tie %s=%s makes them one", c->names.at,
		             home, c->first->name, c->home->name);
	else
		repairs_note(r, "ties", "%s equal %s: --tie NAME=%s makes NAME and this weight one",
		             c->names.at, home, c->home->name);
}

void
tie_notes(Repairs *r, const CopiedWeights *copies)
{
	Notes notes = {.r = r};

	for (int i = 0; i < COUNT(notes.found); i++)
		notes.found[i] = intmap_new(r->arena);
	for (int i = 0; i < r->list.n; i++) {
		const Weight *w = r->list.at[i];
		if (w->tied)
			add_copy(&notes, w->transposed ? TURNED : TIED, w->tied, w);
	}
	for (int i = 0; i < copies->n; i++)
		add_copy(&notes, COPIED, copies->at[i].home, copies->at[i].copy);
	for (int i = 0; i < notes.list.n; i++) {
		Copies *c = notes.list.at[i];
		if (c->n > SHOWN)
			text_printf(&c->names, " and %d more", c->n - SHOWN);
		if (c->relation == COPIED)
			note_copied(r, c);
		else
			note_tied(r, c);
		text_free(&c->names);
	}
}

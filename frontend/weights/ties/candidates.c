/* The pairs of weights that ties.c looks at. Comparing each weight with every equal one takes time quadratic in their number, and most
 * such pairs say nothing: two equal vectors are one only if a name of the exporter's or an Identity says so. Each weight therefore
 * stands in lists, one for each way in which a pair may be one, and looks at the lists that may hold its partner. Behind a tie only
 * the home stays in them, and of copied layers only the first. */
#include "frontend/weights/ties/ties.h"
#include "frontend/weights/values.h"

#include <string.h>

/* The lists of a class of equal tensors. */
typedef enum {
	EQUAL_LIST,     /* matrices, which are one because they are equal ... */
	ASKED_LIST,     /* ... and those that --train names, which two such are not */
	TENSOR_LIST,    /* names of one tensor of the file */
	GENERATED_LIST, /* a module reads them, and the exporter made their names */
	MODULE_LIST,    /* a module reads them under other names */
	TURNED_LIST,    /* all of them, for weights that are their transposes */
	N_LISTS
} ListKind;

typedef struct {
	Weight *weight;
	int place; /* among all weights, in the order in which they came */
} Candidate;
typedef struct {
	VEC(Candidate) at;
	int first; /* candidates before it are tied */
} CandidateList;
/* Tensors equal bit for bit. */
typedef struct {
	const Weight *first;
	int turned; /* the class of their transposes; -1: none yet */
} EqualClass;

struct TieCandidates {
	const Repairs *r;
	IntMap *lists; /* hash of the values, the list's kind and its key (a module, a tensor) -> CandidateList */
	uint64_t hash;
	VEC(EqualClass) classes; /* of that hash */
	Candidate of;
	int last;                                        /* place of the candidate that came last */
	CandidateList *looks[N_LISTS], *stands[N_LISTS]; /* NULL: not, or no more */
	int next[N_LISTS];
};

TieCandidates *
tie_candidates_new(const Repairs *r)
{
	TieCandidates *c = NEW(r->arena, TieCandidates);

	c->r = r;
	c->lists = intmap_new(r->arena);
	c->of.place = -1;
	return c;
}

/* A third class under one hash is a collision. */
static int
class_of(TieCandidates *c, const Weight *w)
{
	EqualClass new = {w, -1};

	for (int i = 0; i < c->classes.n; i++)
		if (tensor_data_equal(&c->classes.at[i].first->data, &w->data))
			return i;
	for (int i = 0; i < c->classes.n && new.turned < 0; i++)
		if (tensor_is_transpose(&c->classes.at[i].first->data, &w->data)) {
			new.turned = i;
			c->classes.at[i].turned = c->classes.n;
		}
	vec_push(c->r->arena, &c->classes, new);
	return c->classes.n - 1;
}

static CandidateList *
list_of(TieCandidates *c, int class, ListKind kind, uint64_t what)
{
	uint64_t key = hash_mix(hash_mix(c->hash, (uint64_t) class * N_LISTS + kind), what);
	uint64_t found = 0;

	if (!intmap_get(c->lists, key, &found)) {
		found = (uint64_t)(uintptr_t)NEW(c->r->arena, CandidateList);
		intmap_put(c->lists, key, found);
	}
	return (CandidateList *)(uintptr_t)found;
}

/* 0: no module reads it. */
static uint64_t
module_hash(const Repairs *r, const Weight *w)
{
	Reader reader;
	const char *path;
	size_t n = 0;

	if (final_readers(r, w->value, &reader, 1))
		n = node_module(reader.node->proto, &path);
	return n ? hash_bytes(path, n, 1) | 1 : 0;
}

void
tie_candidates_begin(TieCandidates *c, uint64_t hash, Weight *w)
{
	CandidateList *at[N_LISTS];
	bool wide = values_are_wide(&w->data), generated = name_is_generated(w->name);

	if (hash != c->hash)
		c->classes.n = 0;
	c->hash = hash;
	int class = class_of(c, w), turned = c->classes.at[class].turned;
	uint64_t module = module_hash(c->r, w);
	for (int i = 0; i < N_LISTS; i++) {
		uint64_t what = i == TENSOR_LIST ? (uint64_t)(uintptr_t)w->tensor
		                : i == GENERATED_LIST || i == MODULE_LIST ? module
		                                                          : 0;
		at[i] = list_of(c, class, (ListKind)i, what);
		c->next[i] = 0;
	}
	bool looks[N_LISTS] = {[EQUAL_LIST] = wide,
	                       [ASKED_LIST] = wide && !w->is_asked_for,
	                       [TENSOR_LIST] = true,
	                       [GENERATED_LIST] = module,
	                       [MODULE_LIST] = module && generated};
	bool stands[N_LISTS] = {[EQUAL_LIST] = wide && !w->is_asked_for,
	                        [ASKED_LIST] = wide && w->is_asked_for,
	                        [TENSOR_LIST] = true,
	                        [GENERATED_LIST] = module && generated,
	                        [MODULE_LIST] = module && !generated,
	                        [TURNED_LIST] = w->data.rank == 2};
	for (int i = 0; i < N_LISTS; i++) {
		c->looks[i] = looks[i] ? at[i] : NULL;
		c->stands[i] = stands[i] ? at[i] : NULL;
	}
	c->looks[TURNED_LIST] = turned < 0 ? NULL : list_of(c, turned, TURNED_LIST, 0);
	c->of = (Candidate){w, c->of.place + 1};
}

/* The next one in the list that is not tied; NULL: the list has ended. */
static const Candidate *
peek(CandidateList *list, int *next)
{
	if (!list)
		return NULL;
	while (list->first < list->at.n && list->at.at[list->first].weight->tied)
		list->first++;
	*next = *next < list->first ? list->first : *next;
	while (*next < list->at.n && list->at.at[*next].weight->tied)
		++*next;
	return *next < list->at.n ? &list->at.at[*next] : NULL;
}

/* Of the lists that bit i of `kinds` names, the first in the file. */
static const Candidate *
first_candidate(TieCandidates *c, unsigned kinds)
{
	const Candidate *best = NULL;

	for (int i = 0; i < N_LISTS; i++) {
		const Candidate *at = kinds >> i & 1 ? peek(c->looks[i], &c->next[i]) : NULL;
		best = at && (!best || at->place < best->place) ? at : best;
	}
	return best;
}

/* What its own module reads comes before what equals it by chance: layers may have begun as copies. Then file order decides what is
 * whose copy. */
Weight *
tie_candidates_next(TieCandidates *c)
{
	const Candidate *best = first_candidate(c, 1u << GENERATED_LIST | 1u << MODULE_LIST);

	best = best ? best : first_candidate(c, ~0u);
	for (int i = 0; best && i < N_LISTS; i++)
		c->next[i] += peek(c->looks[i], &c->next[i]) &&
		              c->looks[i]->at.at[c->next[i]].place == best->place;
	c->last = best ? best->place : -1;
	return best ? best->weight : NULL;
}

void
tie_candidates_stand_for(TieCandidates *c)
{
	for (int i = 0; i < N_LISTS; i++) {
		const CandidateList *list = c->looks[i];
		if (i == TURNED_LIST) /* its members may be several parameters */
			continue;
		if (!list || c->next[i] == 0 || list->at.at[c->next[i] - 1].place != c->last)
			continue;
		c->looks[i] = c->stands[i] = NULL;
		if (i == EQUAL_LIST) /* whoever looks at ASKED_LIST looks at EQUAL_LIST, too */
			c->looks[ASKED_LIST] = c->stands[ASKED_LIST] = NULL;
	}
}

void
tie_candidates_end(TieCandidates *c)
{
	for (int i = 0; i < N_LISTS && !c->of.weight->tied; i++)
		if (c->stands[i])
			vec_push(c->r->arena, &c->stands[i]->at, c->of);
}

/* Chooses the pairs of weights that ties.c compares. Comparing all equal weights with each other
 * takes quadratic time, and most pairs tell nothing: two equal vectors are one parameter only if a
 * name of the exporter or an Identity says so. So each weight is entered into lists, one for each
 * reason to tie, and is compared only with weights in the lists that may hold its partner. Of two
 * tied weights only the home, which gives the parameter its name and layout, stays in the lists. Of
 * layers that are copies of each other only the first stays. */
#include "frontend/weights/judge.h"
#include "frontend/weights/ties/ties.h"
#include "frontend/weights/values.h"

#include <string.h>

/* The lists of a class of equal tensors. */
typedef enum {
	EQUAL_LIST,     /* matrices, which tie because they are equal */
	ASKED_LIST,     /* matrices that --train names; two such matrices do not tie */
	TENSOR_LIST,    /* names for one tensor of the file */
	GENERATED_LIST, /* weights with generated names that a module reads */
	MODULE_LIST,    /* weights with other names that a module reads */
	TURNED_LIST,    /* all matrices, to be compared with their transposes */
	N_LISTS
} ListKind;

typedef struct {
	Weight *weight;
	int place; /* index among all weights, by arrival */
} Candidate;
typedef struct {
	VEC(Candidate) at;
	int first; /* index in `at`; all candidates before it are tied */
} CandidateList;
/* A class of tensors equal bit for bit. */
typedef struct {
	const Weight *first;
	int turned; /* class of the transposes; -1: unknown */
} EqualClass;

struct TieCandidates {
	const Repairs *r;
	/* hash of the values, the list's kind and its key (a module, a tensor) -> CandidateList */
	IntMap *lists;
	uint64_t hash;
	VEC(EqualClass) classes; /* classes under `hash` */
	Candidate of;
	int last; /* place of the last candidate */
	/* lists to compare with, lists to be entered into; NULL: not this list */
	CandidateList *looks[N_LISTS], *stands[N_LISTS];
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

/* Index of the weight's class among classes of equal hash. A hash has two classes, a tensor's and
 * its transpose's; a third is a hash collision. */
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

/* Hash of the path of the module that reads the weight; 0: no module does. */
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

/* The list's next weight that is not tied; NULL: the end. */
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

/* The first candidate by file order, from the lists in `kinds` (bit i: list i). */
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

/* Candidates of the weight's own module come first: other equal weights may be equal because their
 * layers began as copies. Then file order decides. */
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
		/* a weight that looks at ASKED_LIST looks at EQUAL_LIST, too */
		if (i == EQUAL_LIST)
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

/* What the files that find equal parameters share: ties.c decides about a pair, the others choose the pairs and list what was found. */
#ifndef GRADC_TIES_H
#define GRADC_TIES_H

#include "frontend/weights/weights.h"

/* ---- weights/ties/candidates.c: the earlier weights that a weight is compared with. */
typedef struct TieCandidates TieCandidates;
TieCandidates *tie_candidates_new(const Repairs *r);
/* Begins with the next weight, in file order within a hash: equal tensors and transposes have one hash. */
void tie_candidates_begin(TieCandidates *c, uint64_t hash, Weight *w);
Weight *tie_candidates_next(TieCandidates *c); /* NULL: no more */
/* The candidate that came last stands for the weight: other weights are compared with that candidate alone. */
void tie_candidates_stand_for(TieCandidates *c);
/* Behind the last candidate: the weight is a candidate for weights that follow. */
void tie_candidates_end(TieCandidates *c);

/* ---- copies.c */
typedef struct LayerCopies LayerCopies;
LayerCopies *layer_copies_new(const Repairs *r);
/* Do two equal weights belong to layers that are copies of each other, not trained yet? */
bool weights_of_copied_layers(LayerCopies *c, const Weight *a, const Weight *b);

/* ---- weights/ties/notes.c: one note for all copies of a weight. */
typedef struct {
	const Weight *home, *copy;
} CopiedWeight;
typedef VEC(CopiedWeight) CopiedWeights;
/* Of tied weights, and of copies, each with the weight that it equals, which are not tied. */
void tie_notes(Repairs *r, const CopiedWeights *copies);

#endif

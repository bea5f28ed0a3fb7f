/* Private header: shared by the files that find equal parameters. candidates.c chooses the pairs,
 * ties.c decides on each, notes.c lists the results. */
#ifndef GRADC_FRONTEND_WEIGHTS_TIES_TIES_H
#define GRADC_FRONTEND_WEIGHTS_TIES_TIES_H

#include "frontend/weights/weights.h"

/* ---- candidates.c: the earlier weights that a weight is compared with. */
typedef struct TieCandidates TieCandidates;
TieCandidates *tie_candidates_new(const Repairs *r);
/* Starts with the next weight. Weights come by hash, and in file order within a hash; equal tensors
 * and transposes have the same hash. */
void tie_candidates_begin(TieCandidates *c, uint64_t hash, Weight *w);
Weight *tie_candidates_next(TieCandidates *c); /* NULL: no more candidates */
/* Lets the last candidate stand for the weight: later weights are compared only with the candidate. */
void tie_candidates_stand_for(TieCandidates *c);
/* Ends with this weight, which becomes a candidate for later weights. */
void tie_candidates_end(TieCandidates *c);

/* ---- copies.c */
typedef struct LayerCopies LayerCopies;
LayerCopies *layer_copies_new(const Repairs *r);
/* Do two equal weights belong to untrained layers that are copies of each other? */
bool weights_of_copied_layers(LayerCopies *c, const Weight *a, const Weight *b);

/* ---- notes.c: one note for all copies of a weight. */
typedef struct {
	const Weight *home, *copy;
} CopiedWeight;
typedef VEC(CopiedWeight) CopiedWeights;
/* Adds notes on tied weights and on copies, which are equal to another weight but not tied. */
void tie_notes(Repairs *r, const CopiedWeights *copies);

#endif

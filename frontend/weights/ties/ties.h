/* Private header of the files that find weights that are one parameter under two names, such as an
 * embedding that also is the head. candidates.c chooses pairs of equal weights, ties.c decides on
 * each pair, notes.c lists the results for the user. */
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
/* The last candidate stands for the weight begun: later weights are compared only with the
 * candidate. */
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

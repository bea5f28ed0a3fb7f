/* When a value is computed again by who reads it, rather than written to memory: one cost model, for values that the next
 * kernels read (the store plan) and for values that wait for the backward pass (rematerialize). */
#ifndef GRADC_CODEGEN_RECOMPUTE_H
#define GRADC_CODEGEN_RECOMPUTE_H

#include "codegen/target/target.h"
#include "ir/ir.h"

/* Where what leads to a value comes from: computed again with it; memory; or nothing (numbers, what readers copy). */
typedef enum { FROM_LINK, FROM_MEMORY, FROM_NOTHING } RecomputeSource;

enum {
	MAX_LEAVES = 2,
	SMALL_VALUE = 4, /* what is so many times smaller is read at no cost */
};
/* What it takes: arithmetic for an element, in additions, and values to load that are not small. */
typedef struct {
	int64_t elements;
	int nodes, arithmetic, n_leaves;
	Value *leaves[MAX_LEAVES];
	int64_t leaf_bytes; /* of all leaves */
} RecomputeCost;

/* Of v, whose links and views are walked back to what `source` finds in memory or nowhere. Views lead to what they read and
 * are never asked about. false: that is a chain that never pays, too long or of too many leaves. */
bool recompute_cost(Value *v, RecomputeSource (*source)(const void *ctx, const Value *v),
                    const void *ctx, RecomputeCost *c);

/* How long a value would lie in memory: what its way there and back costs. */
typedef enum { KEPT_FOR_NEXT, KEPT_FOR_BACKWARD } Kept;
/* Is v large enough that it matters? */
bool recompute_matters(const Target *t, const Value *v, Kept kept);
/* Computed again, bytes are loaded that would not be otherwise, and others are saved: neither stored nor loaded. */
bool recompute_pays(const Target *t, const RecomputeCost *c, int64_t loaded, int64_t saved,
                    Kept kept);

#endif

/* Decides whether readers compute a value again instead of loading it from memory. Two parts of
 * this folder use the cost model: the store plan, for values that the next kernels read, and the
 * pass `rematerialize`, for values that would lie in memory until the backward pass. */
#ifndef GRADC_CODEGEN_FUSE_RECOMPUTE_H
#define GRADC_CODEGEN_FUSE_RECOMPUTE_H

#include "codegen/target/target.h"
#include "ir/ir.h"

/* Where an operand of a recomputed value comes from. LINK: the operand is computed again, too.
 * MEMORY: the operand is loaded. NOTHING: the operand is a constant or an index, which costs no
 * load. */
typedef enum { FROM_LINK, FROM_MEMORY, FROM_NOTHING } RecomputeSource;

enum {
	MAX_LEAVES = 2,
	SMALL_VALUE = 4, /* an operand with at most 1/4 of the elements counts as free to read */
};
/* The cost of computing a value again. elements: of the value; nodes, arithmetic: the work for
 * each element; leaves: the large values in memory that must be loaded. */
typedef struct {
	int64_t elements;
	int nodes, arithmetic, n_leaves;
	Value *leaves[MAX_LEAVES];
	int64_t leaf_bytes; /* of all leaves */
} RecomputeCost;

/* Sets *c to the cost of computing v again. Walks back through operands and asks `source` where
 * each comes from; for a view, it asks about the viewed value. False: there are so many nodes or
 * leaves that it cannot pay. */
bool recompute_cost(Value *v, RecomputeSource (*source)(const void *ctx, const Value *v),
                    const void *ctx, RecomputeCost *c);

/* Until when the value would lie in memory: until the next kernels run, or until the backward pass. */
typedef enum { KEPT_FOR_NEXT, KEPT_FOR_BACKWARD } Kept;
/* Is v large enough for recomputing to matter? */
bool recompute_matters(const Target *t, const Value *v, Kept kept);
/* Is it cheaper to compute the value again? loaded: bytes of leaves that recomputing loads in
 * addition; saved: bytes that are not stored or loaded if the value is computed again. */
bool recompute_pays(const Target *t, const RecomputeCost *c, int64_t loaded, int64_t saved,
                    Kept kept);

#endif

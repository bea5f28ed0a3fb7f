/* Private to codegen/groups: the body of a group, computed in chunks of rows by a loop. */
#ifndef GRADC_CODEGEN_GROUPS_CHUNKS_H
#define GRADC_CODEGEN_GROUPS_CHUNKS_H

#include "ir/ir.h"

/* Rows mostly have at most two axes: samples, and places within a sample. */
enum { MAX_CHUNK_LEVELS = 4 };
/* Chunks are cut along one axis of rows after the other. Along each but the last axis, a part has one unit of the cut. */
typedef struct {
	const Function *f; /* the function that this level cuts */
	AxisCut cut;
	int64_t count; /* parts with `units` units each; there may be a smaller one after them */
	int64_t units;
} ChunkLevel;
typedef struct {
	Arena *arena;     /* of the levels' arrays */
	int64_t elements; /* of the product's result, for all rows */
	ChunkLevel levels[MAX_CHUNK_LEVELS];
	int n;
} Chunks;
/* Cuts a function without states into chunks of about `rows` rows. `product`: its result has the rows along its first axes that can
 * be cut. False: no axis can be cut, or there is no more than one chunk. Makes functions of the module, which
 * chunks_drop removes. */
bool chunks_plan(Arena *arena, const Function *body, Value *product, int64_t rows, Chunks *out);
/* The operands of v's node, a product, that are cut with this axis of v, as bits. */
unsigned chunks_operands_cut(Arena *arena, const Value *v, int axis);
/* As chunks_plan, along one axis of the result v of a node, in chunks of at most `size` of its elements. */
bool chunks_plan_axis(Arena *arena, const Function *body, Value *v, int axis, int64_t size,
                      Chunks *out);
void chunks_drop(const Chunks *c);
/* Puts a loop over the chunks in place of the call. Stacks the rows of results, and adds up results that each chunk has a
 * part of. */
void chunks_expand(const Chunks *c, Node *call);

#endif

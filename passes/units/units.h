/* What the files of the pass `units` share. */
#ifndef GRADC_PASSES_UNITS_H
#define GRADC_PASSES_UNITS_H

#include "passes/pass.h"

/* ---- layer_blocks.c: by state id, the layer block of a parameter, from 0 in the order of the forward pass. */
int *layer_blocks(const Module *m, Arena *arena);
/* The blocks of f before small ones are merged. */
int *layer_blocks_of(const Function *f, Arena *arena);

/* ---- units/match.c: what @update does to each parameter, as something that can be compared. */
/* What a state is to an update: the gradient, the second moment. */
typedef struct {
	StateKind kind;
	int number;
	DType dtype;
	bool is_read; /* by programs besides @update: such a weight is gathered for them, a master of other bits is not */
} UnitRole;
/* A sum over all elements, which is a term of a larger sum. */
typedef struct {
	Node *reduce;
	Value *operand;
} UnitSum;
/* The states that an update reads and stores element by element: a parameter with gradient and moments, a statistic with
 * what is pending. */
typedef struct {
	VEC(State *) states; /* in the order of their roles */
	VEC(int) roles;      /* of each */
	VEC(Node *) stores;  /* of each; NULL: it is only read */
	VEC(UnitSum) sums;   /* in the order of the nodes */
	VEC(int) signature;  /* equal: the updates are equal but for the states and their lengths */
} UnitMember;
typedef struct {
	Function *f;
	Arena *arena;
	VEC(UnitRole) roles;
	VEC(UnitMember) members; /* in the order of their first states */
	uint32_t n_values;       /* that there are, of which is known by id: */
	int *leaf;     /* a state of the member whose elements it is computed from; -1: none */
	bool *is_read; /* by state id: by programs besides it */
	bool *flat;    /* elements of a member, or a number repeated for each of them */
	State **of;    /* the state that it is; NULL: it is computed */
} UnitMatch;
/* Members that do more with a state than element by element are left out. */
void unit_match(Function *f, Arena *arena, UnitMatch *out);
/* Of a node that draws a random number for each element in a row, by its place there; NULL: it draws none, or others. */
RandomCounter *unit_counter(const Node *n);
/* The addition that a sum is a term of, and the term, perhaps cast; NULL: it is used in another way. */
Node *unit_sum_addition(const UnitSum *s, Value **term);

#endif

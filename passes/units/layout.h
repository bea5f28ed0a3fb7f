/* How parameters are laid out in units. Sections are named after the .c file. */
#ifndef GRADC_PASSES_UNITS_LAYOUT_H
#define GRADC_PASSES_UNITS_LAYOUT_H

#include "passes/units/units.h"

/* ---- layer_blocks.c: by state id: the layer block of a parameter, from 0 in the order of the forward pass. */
int *layer_blocks(const Module *m, Arena *arena);

/* ---- units/match.c: describes what @update does to each parameter, so that two updates can be
 * compared. */
/* The role of a state in an update, e.g. gradient or second moment. */
typedef struct {
	StateKind kind;
	int number;
	DType dtype;
	/* programs besides @update read it: such a weight is gathered for them, unlike a master copy in another
	 * type */
	bool is_read;
} UnitRole;
/* A sum over all elements, which is a term of a larger sum. */
typedef struct {
	Node *reduce;
	Value *operand;
} UnitSum;
/* A member: states that one update reads and stores together, element by element. Examples: a
 * parameter with its gradient and moments; a statistic with its pending state. */
typedef struct {
	VEC(State *) states; /* in the order of their roles */
	VEC(int) roles;      /* role of each state */
	VEC(Node *) stores;  /* store of each state; NULL: the state is only read */
	VEC(UnitSum) sums;   /* in the order of the nodes */
	/* a list of numbers; equal for two members if their updates differ only in the states and
	 * their lengths */
	VEC(int) signature;
} UnitMember;
typedef struct {
	Function *f;
	Arena *arena;
	VEC(UnitRole) roles;
	VEC(UnitMember) members; /* in the order of their first states */
	uint32_t n_values;       /* number of values; the next arrays are indexed by value id */
	/* by value id: if the value is computed from the elements of a member, the id of one of
	 * the member's states; otherwise -1 */
	int *leaf;
	bool *is_read; /* by state id: do programs besides @update read it? */
	bool *flat; /* by value id: elements of a member in a row, or a number repeated for each of them */
	bool *is_state; /* by value id: is the value the state `leaf`, and not computed from it? */
} UnitMatch;
/* Finds the members of f. States that the update uses in another way than element by element are left out. */
void unit_match(Function *f, Arena *arena, UnitMatch *out);
/* Returns the RandomCounter in n's attributes, if n draws one random number for each element of a
 * vector, selected by the element's place. Otherwise returns NULL. */
RandomCounter *unit_counter(const Node *n);
/* If the sum, perhaps after casts, is a term of an addition: returns that addition and sets *term
 * to the term. NULL: the sum is used in another way. */
Node *unit_sum_addition(const UnitSum *s, Value **term);

#endif

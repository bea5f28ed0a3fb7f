/* Which nodes share a kernel, and so which values lie in memory: an analysis. `fuse` makes functions of its groups,
 * `rematerialize` reads what it would store. */
#ifndef GRADC_CODEGEN_STORE_PLAN_H
#define GRADC_CODEGEN_STORE_PLAN_H

#include "codegen/fuse/fuse.h"

/* Nodes that become one kernel. */
typedef struct {
	bool opaque; /* a kernel of its own: nothing but a bias joins */
	bool closed; /* concat, pad, what a strategy gathered: nothing joins */
	Domain domain;
	VEC(Node *) members;
	int merged_into; /* -1, or a later group */
	int64_t weight;  /* of the members together: OpRow.weight */
} Group;

typedef struct {
	const Function *f;
	Arena *arena;
	const Target *target;
	int64_t parts; /* wanted of a large kernel */
	VEC(Group) groups;
	uint32_t n_nodes;       /* ids below are of the function as it was */
	uint8_t *copied;        /* by node id: 0, or the depth of the chain of copied nodes */
	int *group;             /* by node id; -1: none (views, stores) */
	VEC(Gathered) patterns; /* that strategies compute in one kernel */
	int *pattern;           /* by node id: one plus the number of its pattern; 0: none */
	VEC(Node *) nodes;      /* members in order */
	uint8_t *space;         /* by value id: its IterSpace in its group's domain */
	bool *recomputed;       /* by value id: readers in other groups compute it again */
	bool *kept;             /* by value id: stored because a recomputed value needs it */
	uint8_t *readers;       /* by value id: what plan_readers found, until groups merge */
	int merge_from, merge_to;
} StorePlan;

/* Of a function of tensor IR, which stays as it is, for so many cores. Near linear: every step looks at a node's
 * operands and uses only. */
StorePlan *store_plan(const Function *f, const Target *target, int64_t cores, Arena *arena);

FuseClass fuse_class_of(const Node *n);
/* It reads its operands in memory, and is part of no kernel. */
bool plan_stands_outside(const Node *n);
/* Nodes that every reader copies: views, iota, splats, arithmetic on single numbers that no group
 * computes (learning rates), and on stored values for one reader. gather is none: it has a group. */
bool plan_is_copied(const StorePlan *p, const Node *n);
/* The group that n is a member of, -1: none. A view that is stored has one, besides being copied by readers. */
int plan_own_group(const StorePlan *p, const Node *n);
/* The group that computes v, -1 when v is there from the start or copied. */
int plan_group_of(const StorePlan *p, Value *v);
/* Who reads v, a value of group gi: bits of those below; stores and the return stand outside. */
enum { READ_INSIDE = 1, READ_OUTSIDE = 2, READ_KNOWN = 4 };
unsigned plan_readers(const StorePlan *p, const Value *v, int gi);
/* Is v written to memory, because other groups read it? */
bool plan_stored_for(const StorePlan *p, const Value *v, unsigned readers);
bool plan_is_stored(const StorePlan *p, Value *v);

#endif

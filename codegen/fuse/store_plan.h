/* The store plan: which nodes share a kernel, and so which values lie in memory. The plan changes
 * no node. The pass `fuse` makes a function of each group of the plan; the pass `rematerialize`
 * asks the plan which values would be stored. */
#ifndef GRADC_CODEGEN_FUSE_STORE_PLAN_H
#define GRADC_CODEGEN_FUSE_STORE_PLAN_H

#include "codegen/fuse/fuse.h"

/* Nodes that become one kernel. */
typedef struct {
	/* the group of an opaque node, which has a kernel of its own; only the addition of a bias
	 * may join */
	bool opaque;
	bool closed; /* nothing may join: concat, pad */
	Domain domain;
	VEC(Node *) members;
	int merged_into; /* the group that has taken the members; -1: this group still has them */
	int64_t weight;  /* sum of the members' OpRow.weight */
} Group;

typedef struct {
	const Function *f;
	Arena *arena;
	const Target *target;
	int64_t parts; /* parts that a large kernel should have */
	VEC(Group) groups;
	uint32_t n_nodes;  /* nodes with smaller ids existed when the plan was made */
	uint8_t *copied;   /* by node id: 0, or the depth of the chain of copied nodes */
	int *group;        /* by node id; -1: no group, as for views and stores */
	VEC(Node *) nodes; /* the members of all groups, in the order of placing */
	uint8_t *space;    /* by value id: the IterSpace in its group's domain */
	bool *recomputed;  /* by value id: do readers in other groups compute it again? */
	bool *kept;        /* by value id: is it stored because a recomputed value reads it? */
	/* by value id: result of plan_readers, once computed; cleared when groups merge */
	uint8_t *readers;
	int merge_from, merge_to;
} StorePlan;

/* Plans a function of tensor IR for a number of cores. f is not changed. Takes near linear time: every step
 * looks at the operands and uses of one node only. */
StorePlan *store_plan(const Function *f, const Target *target, int64_t cores, Arena *arena);

FuseClass fuse_class_of(const Node *n);
/* Does n belong to no kernel and read its operands from memory? */
bool plan_stands_outside(const Node *n);
/* Does every reader's group get a copy of n instead of loading n's result? True for views, iota
 * and splats, for arithmetic on single numbers (learning rates), and for arithmetic on stored
 * values that only one node reads. gather is not copied: it has a group. */
bool plan_is_copied(const StorePlan *p, const Node *n);
/* The group of which n is a member; -1: none. A view that is stored has a group, although the
 * view's readers copy it. */
int plan_own_group(const StorePlan *p, const Node *n);
/* The group that computes v; -1: v is a parameter, or every reader copies v's node. */
int plan_group_of(const StorePlan *p, Value *v);
/* Who reads v, a value of group gi, as bits. READ_INSIDE: nodes of the group. READ_OUTSIDE: other
 * nodes, also stores and the return. READ_KNOWN: always set; marks entries of StorePlan.readers
 * that are computed. */
enum { READ_INSIDE = 1, READ_OUTSIDE = 2, READ_KNOWN = 4 };
unsigned plan_readers(const StorePlan *p, const Value *v, int gi);
/* Is v written to memory because other groups read it? */
bool plan_stored_for(const StorePlan *p, const Value *v, unsigned readers);
bool plan_is_stored(const StorePlan *p, Value *v);

#endif

/* Shared by the files of `fuse`: groups of nodes, and who reads what. */
#ifndef GRADC_CODEGEN_FUSE_IMPL_H
#define GRADC_CODEGEN_FUSE_IMPL_H

#include "codegen/codegen.h"
#include "codegen/domain.h"

typedef struct {
	bool opaque;      /* a kernel of its own: nothing joins */
	bool root;        /* concat, pad: nothing joins */
	int64_t n;        /* elements of the full iteration space */
	ReduceForm form;  /* of its reductions; n = 0 while there are none */
	int64_t rows;     /* elements of the first reduction's result */
	ReduceForm outer; /* of a reduction of row values */
	int64_t chunks;
	VEC(Node *) members;
	int merged_into; /* -1, or a later group */
} Group;

typedef struct {
	Pass *p;
	Module *m;
	Function *f;
	Arena *arena;
	VEC(Group) groups;
	uint32_t n_nodes;  /* ids below are of the original function */
	uint8_t *copied;   /* by node id: 0, or the depth of the chain of copied nodes */
	int *group;        /* by node id; -1: none (views, stores) */
	VEC(Node *) nodes; /* members in order */
	bool *pulled;      /* by value id: readers in other groups compute it again */
	bool *kept;        /* by value id: stored because a pulled value needs it */
	Value **stored;    /* by value id: the call result that holds it */
	int merge_from, merge_to;
} Fuse;

FuseClass fuse_class_of(const Node *n);
/* Nodes that every reader copies: views, iota, splats, arithmetic on single numbers that no group
 * computes (learning rates), and on stored values for one reader. gather is none: it has a group. */
bool fuse_is_copied(const Fuse *fu, const Node *n);
void fuse_mark_copied(Fuse *fu, const Node *n); /* in the order of the nodes, with placing */
bool fuse_must_be_stored(const Node *n);        /* read by a store, the return or a call */
/* The group that computes v, -1 when v is there from the start or copied. */
int fuse_group_of(const Fuse *fu, Value *v);
/* Calls visit for every node that reads v's elements, directly or through copied nodes; stops and returns
 * true when visit does. */
bool fuse_any_reader(const Fuse *fu, const Value *v,
                     bool (*visit)(const Fuse *fu, const Node *reader, int ctx), int ctx);
bool fuse_reads_from_outside(const Fuse *fu, const Node *reader, int gi);
/* Is v written to memory, because other groups read it? */
bool fuse_is_stored(const Fuse *fu, Value *v);

/* fuse_group.c */
void fuse_place_node(Fuse *fu, Node *n); /* joins or opens a group */
void fuse_merge_siblings(Fuse *fu,
                         Node *n); /* earlier column reductions of the same value join n's */
/* fuse_pull.c */
void fuse_sink_node(Fuse *fu,
                    Node *n); /* marks n as computed again by its readers where that is cheaper */
/* fuse_outline.c */
/* Makes the group's function and its call, before the stores. map: by value id, all NULL. */
void fuse_outline_group(Fuse *fu, int gi, Value **map, Node *before);

#endif

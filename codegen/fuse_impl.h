/* Shared by the files of `fuse`: groups of nodes, and who reads what. */
#ifndef GRADC_CODEGEN_FUSE_IMPL_H
#define GRADC_CODEGEN_FUSE_IMPL_H

#include "codegen/codegen.h"
#include "codegen/domain.h"

typedef struct {
	bool opaque;             /* a kernel of its own: nothing but a bias joins */
	bool root;               /* concat, pad: nothing joins */
	int64_t n;               /* elements of the full iteration space */
	const ReduceForm *form;  /* of its reductions; NULL while there are none */
	int64_t rows;            /* elements of the first reduction's result */
	const ReduceForm *outer; /* of a reduction of row values; NULL: none */
	int64_t chunks;
	VEC(Node *) members;
	int merged_into; /* -1, or a later group */
} Group;

/* The fused functions so far, of all functions of the module. */
typedef struct FusedBody FusedBody;
typedef struct {
	FusedBody *at;
	int n, cap;
	IntMap *by_hash;
} FusedBodies;

typedef struct {
	Pass *p;
	Module *m;
	Function *f;
	Arena *arena;
	FusedBodies *bodies;
	int64_t parts; /* wanted of a large kernel */
	VEC(Group) groups;
	uint32_t n_nodes;  /* ids below are of the original function */
	uint8_t *copied;   /* by node id: 0, or the depth of the chain of copied nodes */
	int *group;        /* by node id; -1: none (views, stores) */
	VEC(Node *) nodes; /* members in order */
	bool *pulled;      /* by value id: readers in other groups compute it again */
	bool *kept;        /* by value id: stored because a pulled value needs it */
	uint8_t *readers;  /* by value id: what fuse_readers found, until groups merge */
	Value **stored;    /* by value id: the call result that holds it */
	int *reference;    /* by value id: while a group is outlined */
	int merge_from, merge_to;
} Fuse;

FuseClass fuse_class_of(const Node *n);
/* Nodes that every reader copies: views, iota, splats, arithmetic on single numbers that no group
 * computes (learning rates), and on stored values for one reader. gather is none: it has a group. */
bool fuse_is_copied(const Fuse *fu, const Node *n);
void fuse_mark_copied(Fuse *fu, const Node *n); /* in the order of the nodes, with placing */
bool fuse_must_be_stored(const Node *n);        /* read by a store, the return or a call */
/* The group that n is a member of, -1: none. A view that is stored has one, besides being copied by readers. */
int fuse_own_group(const Fuse *fu, const Node *n);
/* The group that computes v, -1 when v is there from the start or copied. */
int fuse_group_of(const Fuse *fu, Value *v);
/* Calls visit for every node that reads v's elements, directly or through copied nodes; stops and returns
 * true when visit does. */
bool fuse_any_reader(const Fuse *fu, const Value *v,
                     bool (*visit)(const Fuse *fu, const Node *reader, int ctx), int ctx);
bool fuse_reads_from_outside(const Fuse *fu, const Node *reader, int gi);
/* Who reads v, a value of group gi, once all nodes are placed: bits of those below; stores and the return stand
 * outside. */
enum { READ_INSIDE = 1, READ_OUTSIDE = 2, READ_KNOWN = 4 };
unsigned fuse_readers(const Fuse *fu, const Value *v, int gi);
/* Is v written to memory, because other groups read it? */
bool fuse_stored_for(const Fuse *fu, const Value *v, unsigned readers);
bool fuse_is_stored(const Fuse *fu, Value *v);

/* fuse_group.c */
void fuse_place_node(Fuse *fu, Node *n); /* joins or opens a group */
void fuse_merge_siblings(Fuse *fu,
                         int gi); /* earlier column reductions of the same values join gi's */
/* fuse_pull.c */
void fuse_sink_node(Fuse *fu,
                    Node *n); /* marks n as computed again by its readers where that is cheaper */
/* fuse_outline.c */
/* Inserts the group's call, of a new function or of one that computes the same. */
void fuse_outline_group(Fuse *fu, int gi, Node *before);

#endif

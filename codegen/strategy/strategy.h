/* How ops that need loops of their own (FUSE_OPAQUE) are done: a strategy per op and kind of target. Each file of codegen/kernels/ ends
 * in its strategies; strategy_list.def lists them. */
#ifndef GRADC_CODEGEN_STRATEGY_STRATEGY_H
#define GRADC_CODEGEN_STRATEGY_STRATEGY_H

#include "codegen/target/target.h"

/* How often a kernel reads an element, and so what a chain of views before it may be: anything, where each is read
 * once or few times; in memory with a stride for each of some axes, or without gaps. */
typedef enum { READ_ONCE, READ_STRIDED, READ_DENSE } Reading;

enum { MAX_PRODUCTS = 16 };
typedef struct Product Product; /* product.h */
typedef struct Strategy Strategy;

/* Nodes that one kernel computes, in their order. */
typedef struct {
	Arena *arena;
	VEC(Node *) nodes;
} Gathered;

struct Strategy {
	OpKind op;
	unsigned kinds; /* of targets that do it so */
	const char *doc;
	/* Does it take the node? NULL: every one. */
	bool (*takes)(const Target *t, const Node *n);
	/* Of a strategy for a pattern of several nodes, of which n is the last: appends the others, views aside. They may be
	 * whatever leads to n; nobody else may read them, which the store plan finds out. False: n does not end the pattern.
	 * NULL: the strategy computes n alone. */
	bool (*gathers)(const Target *t, const Node *n, Gathered *out);
	/* Emits the whole body of the kernel. */
	void (*emit)(Lower *lw, const Node *n);
	/* What a kernel that runs before leaves in memory for it, NULL where there is none, and that kernel's body. Both or
	 * neither. */
	Type (*scratch)(Lower *lw, const Node *n);
	void (*prepare)(Lower *lw, const Node *n);
	/* Of products_emit and its like, product.h: the blocked products that the kernel consists of; how many. */
	int (*products)(Lower *lw, const Node *n, Product *list); /* room for MAX_PRODUCTS */
	/* What a library can do instead, where that pays; false: nothing. NULL: never. */
	bool (*library)(Lower *lw, const Node *n, LibraryCall *out);
	/* Does the kernel add a bias that follows? NULL: yes. False where the library could not. */
	bool (*takes_bias)(const Target *t, const Node *n);
	/* How the kernel reads operand i, along which axes. NULL: as READ_ONCE. */
	Reading (*reads)(const Target *t, const Node *n, int i, Ints *axes);
	/* Does the kernel add to what it has stored? Of a float type below f32 it would round each sum: `legalize`
	 * makes it f32. NULL: no. */
	bool (*sums_in_memory)(const Node *n);
};

/* ---- strategies.c: names every opaque op without a strategy, and every column that a strategy lacks. True when
 * there are none. */
bool strategy_table_check(Diag *diag);
/* The first of the list that computes n alone; NULL: n is not opaque. */
const Strategy *strategy_of(const Target *t, const Node *n);
/* The first that n ends a pattern of, with the pattern's nodes; NULL: there is none. */
const Strategy *strategy_gathering(const Target *t, Node *n, Gathered *out);
/* Are all three f32, or both operands of one type of 16 bits and the result that or f32? Libraries get no other work. */
bool library_takes_dtypes(const LibraryLimits *l, const Node *n);
/* Has the target a team whose members may store what n makes? Elements smaller than a byte share theirs. */
bool team_stores(const Target *t, const Node *n);

#endif

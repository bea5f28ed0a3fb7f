/* A strategy is the code that emits the kernel of an op that needs loops of its own
 * (FUSE_OPAQUE), such as a matrix product or a sort. For each such op and kind of target there
 * is at least one strategy. Each file of codegen/kernels/ ends with its strategies;
 * strategy_list.def lists all strategies. */
#ifndef GRADC_CODEGEN_STRATEGY_STRATEGY_H
#define GRADC_CODEGEN_STRATEGY_STRATEGY_H

#include "codegen/target/target.h"

/* How a kernel reads an operand. This decides through which views the kernel may read; other
 * views are copied to memory first. READ_ONCE: each element is read once or a few times, through
 * any view. READ_STRIDED: each element is read often; the view must have a fixed stride along each
 * of the given axes. READ_DENSE: each element is read often; the elements must lie in memory
 * without gaps. */
typedef enum { READ_ONCE, READ_STRIDED, READ_DENSE } Reading;

enum { MAX_PRODUCTS = 16 };
typedef struct Product Product; /* codegen/kernels/product/product.h */
typedef struct Strategy Strategy;

struct Strategy {
	OpKind op;
	unsigned kinds; /* bits of the kinds of targets that use the strategy */
	const char *doc;
	/* Does the strategy compute this node? NULL: it computes every node of its op. */
	bool (*takes)(const Target *t, const Node *n);
	/* Emits the whole body of the kernel. */
	void (*emit)(Lower *lw, const Node *n);
	/* For strategies whose main kernel may need a serving kernel, which runs before it.
	 * scratch: the type of the data that the serving kernel leaves in memory; NULL if this
	 * node needs no serving kernel. prepare: emits the serving kernel's body. A strategy has
	 * both functions or neither. */
	Type (*scratch)(Lower *lw, const Node *n);
	void (*prepare)(Lower *lw, const Node *n);
	/* For strategies that use products_emit and the other functions of product.h: writes the
	 * matrix products of which the kernel consists to `list`, and returns how many there are. */
	int (*products)(Lower *lw, const Node *n, Product *list); /* room for MAX_PRODUCTS */
	/* Fills in the library call that can replace the kernel, if the call is faster; false:
	 * the call is not faster or not possible. NULL: no library computes this op. */
	bool (*library)(Lower *lw, const Node *n, LibraryCall *out);
	/* May the kernel also add a bias that follows the node? NULL: yes. False if the library
	 * call could not add the bias. */
	bool (*takes_bias)(const Target *t, const Node *n);
	/* May the kernel also add its result to a sum of the same type that a loop carries? */
	bool adds;
	/* How the kernel reads operand i, and along which axes. NULL: READ_ONCE. */
	Reading (*reads)(const Target *t, const Node *n, int i, Ints *axes);
	/* Does the kernel add to results that it has already stored? In a float type below f32
	 * each such addition would be rounded, so `legalize` makes the result f32. NULL: it never
	 * does. */
	bool (*sums_in_memory)(const Node *n);
};

/* How the results of a group (ir/groups/groups.h) are computed: by one kernel, or by nodes that take the place of the
 * group's call. group_strategy_list.def lists all of them; they are in codegen/groups/. */
typedef struct {
	const GroupRow *group;
	unsigned kinds; /* bits of the kinds of targets */
	const char *doc;
	/* Does the strategy compute a group with this body? The body may begin with views of its
	 * operands. NULL: it computes every body of its group. */
	bool (*takes)(const Target *t, const Function *body);
	/* Emits the whole body of the kernel, from the nodes of lw->f. NULL: the group is no kernel. */
	void (*emit)(Lower *lw);
	/* Puts nodes in place of the call, such as a loop; false: changes nothing. NULL: `emit` makes a kernel. */
	bool (*expand)(const Target *t, Node *call);
} GroupStrategy;
/* ---- strategies.c: the first strategy that takes the group; NULL: its nodes become kernels of
 * their own. */
const GroupStrategy *group_strategy(const Target *t, const Function *body);
/* Has the target's kind any strategy for groups of this kind? */
bool group_has_strategy(const Target *t, const struct GroupRow *row);

/* ---- strategies.c: reports every opaque op without a strategy and every strategy without a required field.
 * True: nothing is wrong. */
bool strategy_table_check(Diag *diag);
/* The first strategy of the list that computes n; NULL: n is not opaque. */
const Strategy *strategy_of(const Target *t, const Node *n);
/* Do libraries compute a product of these types? All f32, or both operands of one 16-bit type and a result
 * of that type or f32. */
bool library_takes_dtypes(const LibraryLimits *l, const Node *n);
/* Should rows of so many elements get padding, if a library multiplies or computes them (codegen/legalize/pitch.c)? */
bool library_row_is_odd(const LibraryLimits *l, DType dtype, int64_t elements);
/* Should an axis of the product get padding? */
bool library_axis_is_odd(const LibraryLimits *l, const LibraryCall *product, ProductAxis axis);
/* Does the target have teams, and can their members store n's results? Results with elements
 * smaller than a byte cannot be stored so, because several members would write to one byte. */
bool team_stores(const Target *t, const Node *n);

#endif

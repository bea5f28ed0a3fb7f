/* What the passes `fuse` and `lower` know of a kernel before the kernel has loops: the spaces of
 * elements that the kernel iterates over, and the epilogues (operations that a library applies
 * while it stores a matrix product). Each section is named after its .c file. */
#ifndef GRADC_CODEGEN_FUSE_FUSE_H
#define GRADC_CODEGEN_FUSE_FUSE_H

#include "codegen/strategy/strategy.h"

/* ---- domain.c */
/* What a kernel iterates over, and which iterations each of its values belongs to. `fuse` asks whether nodes
 * may share a kernel; `lower` makes the loops. Example: a softmax over f32[64,96]. Full values have an
 * element for each of 64 x 96 iterations. The maximum and the sum of a row are row values, one for each of
 * 64 rows. A sum over blocks of 8 rows would be a chunk value, one for each of 8 chunks. */
/* Which axes of a shape a reduction keeps and which it reduces. Neighbouring axes that are both
 * kept or both reduced count as one; axes of one element are left out. Example: reducing the last
 * axis of [8,1,4,6] gives the form kept 32, reduced 6. Reductions with equal forms read their
 * operands in the same way. */
typedef struct {
	int n; /* 0: one element */
	int64_t extent[MAX_RANK];
	bool reduced[MAX_RANK];
} ReduceForm;
/* Does the reduction keep the innermost axis? If so, vector lanes run along the results; if not,
 * along the reduced elements. */
bool reduce_form_by_column(const ReduceForm *f);
/* Does n add anything up? A reduction over axes of one element is a copy. */
bool reduces(const Node *n);
/* A space: for which iterations a value has an element. If the operand of a reduction is in one
 * space, the result is in the next: full, rows, chunks. A kernel that reduces rows may also add up blocks
 * of rows, column by column: those sums are in the space `columns`. Example: the gradient of a layer norm over f32[64,96] needs sums along
 * rows; beside them it gives sums of 8 rows for the gradient of the weight, f32[8,96]. */
typedef enum {
	ITER_NONE,
	ITER_FULL,
	ITER_ROWS,
	ITER_CHUNKS,
	ITER_COLUMNS,
	N_ITER_SPACES
} IterSpace;
typedef struct {
	/* elements of a value of each space; 0: the kernel has no such values */
	int64_t elements[N_ITER_SPACES];
	/* form of all reductions whose operand is in that space; n = 0: no reductions */
	ReduceForm reduction[N_ITER_SPACES];
	/* form of the reductions from full values to columns; n = 0: no such reductions */
	ReduceForm columns;
} Domain;
/* A strategy that makes a kernel of several nodes describes the kernel's domain with these functions. */
Domain domain_full(Type t); /* domain of a kernel that computes values of type t */
/* Records in the domain that values of space s are reduced in the way in which n reduces its
 * operand: sets reduction[s], and elements of the next space. */
void domain_add_reduction(Domain *d, IterSpace s, const Node *n);
/* Like domain_add_reduction, for a reduction n from full values to columns. */
void domain_add_columns(Domain *d, const Node *n);
/* May a kernel with reductions of the form `rows` also add up blocks of rows in the form `columns`? */
bool domain_takes_columns(const ReduceForm *rows, const ReduceForm *columns);
/* Are there enough blocks of rows, each of which is a part, for a tensor of this many elements? */
bool columns_have_blocks(const Target *t, int64_t elements, int64_t blocks, int64_t parts);
/* Do the members of the target's teams have room for this many sums of each column of a row, beside the row itself? */
bool columns_fit(const Target *t, const ReduceForm *columns, int sums);
/* The space over which a node reads v. v is a value in space `base`, or a chain of views of such
 * a value. If all views are reshapes, the result is `base`. If a view is a broadcast that repeats
 * row values along the reduced axes, the result is ITER_FULL. Any other view gives ITER_NONE. */
IterSpace domain_reached(const Domain *d, Value *v, IterSpace base);
/* The domain of a fused function and the space of every value, by id. ITER_NONE: parameters, and values that
 * views read in another order. f is not changed; the arrays live in the arena. */
typedef struct {
	Domain domain;
	const uint8_t *of;
	const char *fault; /* why the function has no domain; NULL: it has one */
} Spaces;
Spaces spaces_of_function(const Function *f, Arena *arena);
/* v without reshapes: a value with the same elements in the same order. */
Value *behind_reshapes(Value *v);
/* The number of the hyperparameter that parameter v stands for, named "scalar.NAME"; -1: v is not a
 * hyperparameter. */
int hyperparameter(const Value *v);

/* ---- epilogue.c */
/* Epilogues: while a library stores a product, it applies the next operation, so no kernel has to
 * read the product for that. */
/* Returns the vector that n adds to the result of an opaque node, if that node's kernel may add
 * the vector itself (column `bias` of the op). Otherwise returns NULL. Also returns NULL if no
 * kernel reads the sum from memory: the reader's loops then add the vector at no cost. */
Value *bias_of(const Target *t, const Node *n);
/* The value that n adds to the product's result, if nobody else reads the result and only n reads the value: the product
 * may be added in the value's place, so it must not read the value itself. NULL: n is no such sum, the value is computed by
 * its readers, as a broadcast is, or the type has fewer than 32 bits, so that the product would be rounded first. */
Value *added_to_product(const Node *n, const Node *product);
/* A product's reader whose operation the product's library may apply. The reader's loops read the product
 * from memory. If the library runs both, the product's own kernel is not launched (Kernel.serves). */
typedef struct Epilogue {
	Node *product; /* the launch of the product */
	/* The reader's new call, inserted before the old call: after the call's own operands come
	 * those of the library. If other nodes read the product too, the new call's second result
	 * is the product, because the product has no kernel of its own if the library computes
	 * both. */
	Node *call;
	/* the library call for product and reader; its buffers are numbered as the new call's
	 * operands, then results */
	LibraryCall library;
	/* the first micro-batch stores the product, so it is launched once more for this reader */
	bool again;
} Epilogue;
/* A function of a reader (`from`), and its copy with more parameters (`to`). */
typedef struct {
	const Function *from;
	Function *to;
} Widened;
typedef struct {
	IntMap *by_hash;
	VEC(Widened) list;
	Arena *arena;
} Readers;
/* call: a call of a fused function whose operands are lowered. Fills *out. False: the call's
 * function is not an epilogue of a product, or the target's library is faster without the
 * epilogue. */
bool epilogue_open(const Target *t, Node *call, Readers *readers, Epilogue *out);

#endif

/* What fuse knows of kernels to be: the spaces that they run over, and products with what a library does as it stores them. Sections
 * are named after the .c file. */
#ifndef GRADC_CODEGEN_FUSE_FUSE_H
#define GRADC_CODEGEN_FUSE_FUSE_H

#include "codegen/strategy/strategy.h"

/* ---- domain.c */
/* What a kernel iterates over, and how each of its values follows: shared by `fuse` (may these nodes share a kernel?) and `lower`
 * (its loops). A softmax over f32[64,96]: full values have an element for each of 64 x 96 iterations; its maximum and its sum
 * are row values, one for each of 64 rows; a sum over all rows of a block of 8 would be a chunk value, of 8 chunks. */
/* Which runs of a shape's axes a reduction keeps and which it sums over. Neighbouring axes of the same
 * kind are joined and axes of one element left out, so that equal forms mean equal index maps. */
typedef struct {
	int n; /* 0: one element */
	int64_t extent[MAX_RANK];
	bool reduced[MAX_RANK];
} ReduceForm;
ReduceForm reduce_form(const Ints *shape, const Ints *reduced_axes);
ReduceForm reduce_form_of(const Node *reduce);
bool reduce_form_equal(const ReduceForm *a, const ReduceForm *b);
/* Is the innermost run kept? Then lanes run along results, else along what is summed. */
bool reduce_form_by_column(const ReduceForm *f);

/* Does n add anything up? A reduction over axes of one element is a copy. */
bool reduces(const Node *n);

/* Which iterations a value has an element for. A reduction leads from a space to the next. */
typedef enum { ITER_NONE, ITER_FULL, ITER_ROWS, ITER_CHUNKS, N_ITER_SPACES } IterSpace;

typedef struct {
	int64_t elements[N_ITER_SPACES]; /* of its values; 0: the kernel has none */
	ReduceForm reduction
		[N_ITER_SPACES]; /* of all reductions of values of that space; n = 0: there are none */
} Domain;
Domain domain_full(Type t); /* of a kernel that computes values of that shape */
bool domain_equal(const Domain *a, const Domain *b);
/* Reductions like n, of values of space s, belong to the domain from now on. */
void domain_add_reduction(Domain *d, IterSpace s, const Node *n);
/* The space over which a node reads v where what v's views start from has an element for each iteration of `base`: the same;
 * that of rows repeated along what reductions sum over; NONE in any other way. */
IterSpace domain_reached(const Domain *d, Value *v, IterSpace base);

/* A fused function's domain, and every value's space by its id: NONE of parameters, and of what views read in another order.
 * f stays the caller's; the rest lives in the arena. */
typedef struct {
	Domain domain;
	const uint8_t *of;
	const char *fault; /* why there is none; NULL: there is */
} Spaces;
Spaces spaces_of_function(const Function *f, Arena *arena);

/* v behind reshapes: the same elements in the same order. */
Value *behind_reshapes(Value *v);

/* ---- epilogue.c */
/* What a library does with a product as it stores it, in place of the kernel that would read the product next. */
/* The vector that n adds to an opaque node's result, if that node's kernel may store the sum (column `bias`) and somebody reads
 * the sum from memory: a kernel of loops would add the vector itself, for nothing. Else NULL. */
Value *bias_of(const Target *t, const Node *n);
/* Is n a GELU of a product, or the derivative of one times a product, whose library does that as it stores the product? It then has
 * a kernel of its own. */
bool epilogue_alone(const Target *t, const Node *n);

/* A reader of a product whose kernel a library may run together with it. Its loops read what the product's kernel made; where
 * the library runs both, that one is left out (Kernel.serves). */
typedef struct Epilogue {
	Node *product; /* the launch of the product */
	/* Of the reader, with the library's operands behind its own; it stands before the one that was found. Its second result, where
	 * it has one, is the product again, for whoever else reads it: where the library runs both, nobody made the first. */
	Node *call;
	LibraryCall library; /* both; its buffers are the call's operands, then its results */
	bool again; /* the first micro-batch stores the product: it is launched once more, for this reader */
} Epilogue;

/* Functions of readers with more operands, by what they were. */
typedef struct {
	const Function *from;
	Function *to;
} Widened;
typedef struct {
	IntMap *by_hash;
	VEC(Widened) list;
	Arena *arena;
} Readers;

/* call: of a fused function, whose operands are lowered. False: it is none, or the target's library does better without. */
bool epilogue_open(const Target *t, Node *call, Readers *readers, Epilogue *out);
/* The hyperparameter that a parameter named "scalar.NAME" stands for; -1: none. */
int hyperparameter(const Value *v);

#endif

/* What `fuse` and `lower` know of a kernel before it has loops: the spaces that it iterates over, and the
 * library epilogues of products. Sections are named after the .c file. */
#ifndef GRADC_CODEGEN_FUSE_FUSE_H
#define GRADC_CODEGEN_FUSE_FUSE_H

#include "codegen/strategy/strategy.h"

/* ---- domain.c */
/* What a kernel iterates over, and which iterations each of its values belongs to. `fuse` asks whether nodes
 * may share a kernel; `lower` makes the loops. Example: a softmax over f32[64,96]. Full values have an
 * element for each of 64 x 96 iterations. The maximum and the sum of a row are row values, one for each of
 * 64 rows. A sum over blocks of 8 rows would be a chunk value, one for each of 8 chunks. */
/* Which axes of a shape a reduction keeps and which it sums over. Neighbouring axes that are both kept or
 * both reduced are joined into one run. Axes of one element are left out. Equal forms therefore mean equal
 * index maps. */
typedef struct {
	int n; /* 0: one element */
	int64_t extent[MAX_RANK];
	bool reduced[MAX_RANK];
} ReduceForm;
ReduceForm reduce_form(const Ints *shape, const Ints *reduced_axes);
ReduceForm reduce_form_of(const Node *reduce);
bool reduce_form_equal(const ReduceForm *a, const ReduceForm *b);
/* Is the innermost run kept? If so, lanes run along results; if not, along the reduced elements. */
bool reduce_form_by_column(const ReduceForm *f);

/* Does n add anything up? A reduction over axes of one element is a copy. */
bool reduces(const Node *n);

/* Which iterations a value has elements for. A reduction leads from one space to the next. */
typedef enum { ITER_NONE, ITER_FULL, ITER_ROWS, ITER_CHUNKS, N_ITER_SPACES } IterSpace;

typedef struct {
	/* elements of a value of each space; 0: the kernel has no such values */
	int64_t elements[N_ITER_SPACES];
	/* form of all reductions whose operand is in that space; n = 0: no reductions */
	ReduceForm reduction[N_ITER_SPACES];
} Domain;
Domain domain_full(Type t); /* domain of a kernel that computes values of type t */
bool domain_equal(const Domain *a, const Domain *b);
/* From now on, the domain has reductions like n, of values of space s. */
void domain_add_reduction(Domain *d, IterSpace s, const Node *n);
/* The space over which a node reads v, where the value below v's views is in space `base`. With reshapes
 * only: `base`. With a broadcast that repeats rows along the reduced axes: ITER_FULL. With other views:
 * ITER_NONE. */
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

/* ---- epilogue.c */
/* Epilogues: a library applies the next operation while it stores a product, so no kernel has to read the
 * product again. */
/* If n adds a vector to an opaque node's result, the vector that the node's kernel may add itself (column
 * `bias` of the op). NULL if n does not, or if nobody reads the sum from memory: the reader's loops can add
 * the vector at no cost. */
Value *bias_of(const Target *t, const Node *n);
/* Is n a GELU of a product, or a GELU derivative times a product, and can the product's library apply it?
 * Then n has a kernel of its own. */
bool epilogue_alone(const Target *t, const Node *n);

/* A product's reader whose operation the product's library may apply. The reader's loops read the product
 * from memory. If the library runs both, the product's own kernel is not launched (Kernel.serves). */
typedef struct Epilogue {
	Node *product; /* the launch of the product */
	/* The reader's new call, inserted before the old one. The library's operands follow its own
	 * operands. If others read the product too, its second result is the product again: when the library
	 * runs both, nobody else computes the product. */
	Node *call;
	/* the library call for both; buffers count the call's operands, then its results */
	LibraryCall library;
	/* the first micro-batch stores the product, so it is launched once more for this reader */
	bool again;
} Epilogue;

/* Functions of readers with added parameters, by the original function. */
typedef struct {
	const Function *from;
	Function *to;
} Widened;
typedef struct {
	IntMap *by_hash;
	VEC(Widened) list;
	Arena *arena;
} Readers;

/* call: a call of a fused function whose operands are lowered. False: the call is not such a reader, or the
 * target's library is faster without the epilogue. */
bool epilogue_open(const Target *t, Node *call, Readers *readers, Epilogue *out);
/* The number of the hyperparameter that parameter v stands for, named "scalar.NAME"; -1: v is not a
 * hyperparameter. */
int hyperparameter(const Value *v);

#endif

/* What a library does with a product as it stores it, in place of the kernel that would read the product next. */
#ifndef GRADC_CODEGEN_EPILOGUE_H
#define GRADC_CODEGEN_EPILOGUE_H

#include "codegen/codegen.h"
#include "codegen/target.h"

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

#endif

/* Functions for strategies. A strategy is the code that emits one kind of kernel, such as a
 * matrix product, for a node with loops of its own (an opaque node). The functions give it the
 * buffers and elements of the node's operands and results, and loops that the members of a team
 * (the threads of a GPU block) share. */
#ifndef GRADC_CODEGEN_LOWER_LOWER_H
#define GRADC_CODEGEN_LOWER_LOWER_H

#include "codegen/strategy/strategy.h"

/* ---- operands and results of an opaque node */
/* An operand that is a view of a buffer with a fixed stride along each axis. */
typedef struct {
	int buffer;
	/* in elements; strides are positive, or 0 along axes of one element */
	int64_t offset, strides[MAX_RANK];
} Strided;
bool lower_strided(Lower *lw, const Value *v, Strided *out);
/* The number of the kernel's buffer that holds v, an operand or result of an opaque node. Not for
 * an operand that is a view of another value: a view has no buffer; read its elements with
 * `lower_element`. */
int lower_buffer(Lower *lw, const Value *v);
/* The value that the kernel stores for an opaque node: its result, or the result plus its bias (column
 * `bias` of the op). */
const Value *lower_stored(const Lower *lw);
/* Element number `place` of the stored value. x: the same element of the node's own result, to
 * which a bias may be added. */
LoopValue lower_stored_element(Lower *lw, const Node *n, Affine place, LoopValue x);
/* The number of the buffer through which a serving kernel (a kernel that runs before the main
 * kernel) passes data to the main kernel. Both kernels find the buffer with this function. */
int lower_scratch(Lower *lw);
/* Tells the emitter that the element of n's result at this index is x. Code emitted from now on
 * uses x wherever it needs that element. */
void lower_give_element(Lower *lw, const Node *n, const Index *at, LoopValue x);

/* The index along each axis of t of element number `flat` (row-major order). */
Index index_at(Lower *lw, Type t, Affine flat);

/* ---- copies.c: which elements members can copy, several at once. Emit loops and the code of one
 * element, look at the element, and lb_forget all of it. */
enum { LEAST_COPY_BYTES = 4, COPY_BYTES = 16 /* bytes of a copy instruction */ };
/* The load from an input that gives x; NULL: x is computed. */
const LoopStatement *lower_load(const LoopBuilder *lb, LoopValue x);
/* How many elements along `variable` are contiguous and can be copied by one instruction; each
 * copy begins at a multiple of this number. 0: elements are not contiguous. */
int lower_contiguous(const LoopBuilder *lb, const LoopStatement *load, LoopValue variable,
                     int64_t extent);

/* ---- team.c */
/* Loops whose iterations the members of a team share on GPUs, and the lanes of a vector on CPUs.
 * A strategy writes such a loop once for both. */
/* Called before a kernel's loops: gives the kernel a team as large as the target's. False: the
 * kernel gets no team, because the target has none, or because results have elements smaller than
 * a byte, which two members could store at the same time. One thread then runs each part. */
bool team_begin(Lower *lw);
/* Like team_begin, but the team has only as many members as can work on `elements` neighbouring
 * elements, and at least ReduceTiles.row_members. */
bool team_begin_for(Lower *lw, int64_t elements);
/* Divides the team into groups of `inner` members (a power of two). A group is called an outer
 * member, its threads are inner members. */
void team_divide(Lower *lw, int inner);

/* A loop of `extent` iterations that lanes or members share. With a bound `below`, only the
 * iterations below it run. Without a team it is a vector loop. In a team of T, member m has the
 * iterations m, m + T, m + 2T ...; where possible, a member has vectors of neighbouring
 * iterations instead of single iterations. Order of calls: spread_open, spread_enter, the body,
 * spread_close. Accumulators made between spread_open and spread_enter collect over the loop. */
typedef struct {
	LoopBuilder *lb;
	int64_t extent;
	const Affine *below; /* the bound; NULL: all iterations */
	/* neighbouring iterations that a member has as one vector; 1: no vectors */
	int vector;
	bool unrolled; /* teams: unroll the member's loop; set between open and enter */
	/* teams: the member's own count of its iterations (0, 1, ...), which indexes its private
	 * arrays */
	Affine own;
	LoopValue variable; /* of the vector or team loop */
	int inner;          /* number of the member's loops inside this loop */
} Spread;
Spread spread_open(Lower *lw, int64_t extent, const Affine *below);
/* The most iterations that one member has in a shared loop of this extent. */
int64_t spread_own(const Lower *lw, int64_t extent);
Affine spread_enter(Spread *s); /* returns the iteration */
void spread_close(Spread *s);

#endif

/* Who runs the loops: all that `lower` and the strategies of codegen/kernels/ know of a machine. targets/ has the rows. */
#ifndef GRADC_CODEGEN_TARGET_H
#define GRADC_CODEGEN_TARGET_H

#include "base/base.h"

typedef enum { TARGET_CPU, N_TARGET_KINDS } TargetKind;
#define ON(kind) (1u << TARGET_##kind) /* in a set of kinds */

enum { MOST_PRODUCT_ROWS = 16 };
/* How a blocked product is cut. Widths count elements of f32; of f64 half as many. Times are cycles of a core, beside what
 * it multiplies in them. */
typedef struct {
	int rows, columns;     /* of sums in registers: columns are two vectors */
	int depth;             /* numbers along k in a block */
	int panel;             /* columns, at most */
	int64_t near_bytes;    /* of a part's rows: what stays near from one panel to the next */
	int64_t waiting_bytes; /* of sums that wait for the next block of k */
	int64_t most_scratch;  /* bytes that a kernel before may leave in memory */
	double least_part;     /* FLOPs of a part */
	double pack;           /* a number, where numbers lie side by side as they are packed */
	double pack_along_k;   /* where they do not */
	int64_t first_bytes;   /* of a panel that is near for all rows of a chunk */
	double first_rate;     /* bytes a cycle of panels that are not */
	double near_rate; /* bytes a cycle from what is near, most of it hidden behind the products */
	double far_rate;   /* and from what is not */
	double not_hidden; /* of the time for that, the part that multiplying does not hide */
	double launch;     /* of one more kernel */
} ProductTiles;

struct Target {
	const char *name;
	TargetKind kind;
	int lanes;     /* numbers of f32 in a vector */
	int registers; /* vectors that a core holds */
	bool gathers;  /* loads numbers that are not side by side in one instruction */
	/* Additions that take as long as the way of an element to memory and back: where a next kernel reads it, and where it waits
	 * for the backward pass. */
	int next_value, backward_value;
	const ProductTiles *product;
};
typedef struct Target Target;

/* Ends with NULL; the first is the default. */
extern const Target *const target_table[];
const Target *target_find(const char *name); /* NULL: unknown */
/* The CPU for vectors of so many bits, or the next narrower one; the narrowest where there is none. */
const Target *target_of_vectors(int bits);

#endif

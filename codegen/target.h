/* Who runs the loops: all that `lower` and the strategies of codegen/kernels/ know of a machine. targets/ has the rows. */
#ifndef GRADC_CODEGEN_TARGET_H
#define GRADC_CODEGEN_TARGET_H

#include "base/base.h"

typedef enum { TARGET_CPU, N_TARGET_KINDS } TargetKind;
#define ON(kind) (1u << TARGET_##kind) /* in a set of kinds */

/* How a blocked product is cut. Widths count elements of f32; of f64 half as many. */
typedef struct {
	int rows, columns;  /* of sums in registers: columns are two vectors */
	int depth;          /* numbers along k in a panel of b */
	int panel[2];       /* columns of a panel: where a lies along k, or rows of it are packed */
	int64_t near_bytes; /* of a: they stay near from one panel to the next; 0: any number */
	int64_t waiting_bytes; /* of sums that wait for the next block of k */
	int least_chunk;       /* rows of a part, at least */
	int many_panels; /* that are multiplied with one block of k before the next, where a is too deep to stay near */
} ProductTiles;

struct Target {
	const char *name;
	TargetKind kind;
	int lanes;     /* numbers of f32 in a vector */
	int registers; /* vectors that a core holds */
	bool gathers;  /* loads numbers that are not side by side in one instruction */
	ProductTiles product;
};
typedef struct Target Target;

/* Ends with NULL; the first is the default. */
extern const Target *const target_table[];
const Target *target_find(const char *name); /* NULL: unknown */
/* The CPU for vectors of so many bits, or the next narrower one; the narrowest where there is none. */
const Target *target_of_vectors(int bits);

#endif

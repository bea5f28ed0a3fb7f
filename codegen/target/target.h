/* Who runs the loops: all that `lower` and the strategies of codegen/kernels/ know of a machine. targets/ has the rows. */
#ifndef GRADC_CODEGEN_TARGET_TARGET_H
#define GRADC_CODEGEN_TARGET_TARGET_H

#include "base/numbers/numbers.h"
#include "ir/ir.h"
#include "ir/loop/loop.h"

/* CPUs, whose threads run parts; machines whose parts are run by teams, as GPUs' blocks of threads. */
typedef enum { TARGET_CPU, TARGET_TEAMS, N_TARGET_KINDS } TargetKind;
#define ON(kind) (1u << TARGET_##kind) /* in a set of kinds */
#define ON_EVERY_KIND ((1u << N_TARGET_KINDS) - 1)

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
	int64_t least_block, most_block; /* sums that a part adds over splits of k */
} ProductTiles;

/* How a team cuts a blocked product: a part is a block of the result, whose sums are a tile. All numbers of a block are powers
 * of two. Each sum takes its products in the order of k, so that blocks change no bits. What changes some is alike on all
 * targets of a kind: depth and few_rows are, and Tuning says by whose numbers k is split. */
typedef struct {
	int rows, columns; /* at most as many as the team has members */
	int team;          /* whole warps */
} TeamBlock;
enum { MAX_TEAM_BLOCKS = 8 };
typedef struct {
	int depth;         /* numbers along k in a block; of 16 bits twice as many */
	int64_t most_sums; /* bytes of them that a member has */
	int few_rows;      /* up to so many a member has a column of the result instead */
	int64_t least_split, most_scratch; /* numbers along k; bytes of the sums of all splits */
	int processors, members;           /* that run parts; members that keep one busy */
	/* Of a processor in a cycle: products of f32 and of 16 bits, bytes that warps read of the team's memory in units of a
	 * warp's, bytes from memory; of all of them: bytes of sums stored and loaded again. */
	double multiplied, multiplied_16, read, brought, stored;
	double launch;     /* cycles of one more kernel */
	double split_gain; /* splits must be so many times as fast */
	TeamBlock blocks
		[MAX_TEAM_BLOCKS]; /* that the fastest is taken from; one without rows ends them */
} TeamTiles;

/* What a matrix unit does in one instruction: sum[rows, columns] += left[rows, depth] * right[depth, columns], of f32. */
typedef struct {
	DType type; /* of both operands; F32: rounded to tf32 */
	int rows, columns, depth;
} MatrixShape;

/* How loops are cut into parts. */
typedef struct {
	int64_t large;      /* element operations from which a kernel is cut for all cores */
	int64_t parts;      /* of a large kernel, for each core */
	int64_t least_part; /* elements */
	int64_t most_block; /* elements of a block of the innermost loop */
} Grains;

/* Reductions. Lanes run along rows of memory: where the last axis is added up, along what is added; else along results,
 * which are columns then. */
typedef struct {
	int64_t chunk_rows, chunk_columns; /* of a chunk of partial results, at least */
	/* Rows that are read again stay whole in an operand of fewer elements than `much`, unless they are fewer than few_rows. */
	int64_t few_rows, much;
	int64_t least_columns, most_columns; /* of a part, whose sums are an array */
	int64_t near_row; /* elements of a row that stay near for the next pass over it */
	int64_t long_row; /* teams: that stay near a team which has all of a processor */
	int expensive;    /* weight of what is kept for that pass, not computed again */
	int sums;         /* of a row that one loop makes */
	/* Teams: rows of up to so many elements have a team of so many members each, longer ones all of it. */
	int64_t team_row;
	int row_members;
	/* Numbers of a row that a member keeps from one pass over it to the next, of one value and of all, in units of 4 bytes. */
	int own_numbers, all_own_numbers;
} ReduceTiles;

/* Weight gradients of convolutions by planes. */
typedef struct {
	int64_t block;        /* elements of dy */
	int64_t most_planes;  /* each has code of its own */
	int64_t most_bytes;   /* of an array */
	int64_t most_outputs; /* of a group, times what is computed for an element of dy */
	int64_t least_parts;
	int most_sums; /* in registers */
} PlaneTiles;

/* Teams: parts have up to `most` times as many iterations of a loop as they would, the fewest with which all of them touch at most
 * `enough` times the bytes of inputs and outputs. */
typedef struct {
	int most;
	double enough;
} Repeats;

typedef struct {
	int64_t most_unrolled; /* places of a window */
} PoolTiles;

typedef struct {
	int64_t least_keys;         /* indices that a part sorts */
	int64_t most_sorting_parts; /* each reads all indices */
	/* Elements of a slice that are combined in an array; at least, where slices are fewer than parts. */
	int64_t most_width, least_width;
	int64_t least_elements; /* of the result, that a part makes */
	int64_t least_sorted;   /* updates that go through `sort` before; 0: never */
} ScatterTiles;

/* Sorting, argmax and running sums within lines: elements that a part looks at, and of the result that it merges. */
typedef struct {
	int64_t least_block;
	int64_t least_merged, most_merged;
	int64_t merged_by_member; /* of a team instead */
	int64_t near;             /* elements of each of its lines that a team has in its memory */
} LineTiles;

/* When a library's product or convolution pays. */
typedef struct {
	int64_t least_flops;
	int64_t least_size;      /* of rows, columns and what is added up */
	int64_t least_reads;     /* of an element, for which its view is copied */
	bool transposed_batches; /* of f32: the first operand of a batched product */
	/* Rows of such operands and results begin at multiples of so many bytes, where they have so many and all rows together
	 * so many (pitch.c); 0: anywhere. */
	int row_alignment;
	int64_t least_pitched_row, least_pitched;
	bool f16;                                /* it takes products of f16, as those of bf16 */
	int64_t most_scratch, most_conv_scratch; /* bytes: of a product, of a convolution */
} LibraryLimits;

/* What is computed again: up to so many additions an element, which is what its way to memory and back takes, in values of so
 * many bytes at least. Of values that next kernels read, and of those that would wait for the backward pass. */
typedef struct {
	int additions;
	int64_t least_bytes;
} RecomputeLimit;
typedef struct {
	RecomputeLimit next, backward;
} RecomputeLimits;

/* What is tuned: one table for each kind of target, beside the measurement behind each number.
 *
 * Parts, chunks and blocks decide in which order partial sums are added. Targets of one kind have the same table, so that
 * these sums have the same bits on each. */
typedef struct Target Target;
typedef struct {
	Grains grains;
	ReduceTiles reduce;
	Repeats repeats;
	PlaneTiles planes;
	PoolTiles pool;
	ScatterTiles scatter;
	LineTiles lines;
	LibraryLimits library;
	RecomputeLimits recompute;
	const Target
		*splits; /* of teams: k of products is split as is best for it, on all of them */
} Tuning;
extern const Tuning cpu_tuning, team_tuning; /* of TARGET_CPU, of TARGET_TEAMS */

/* What a library may do with a product as it stores it, as bits (epilogue.c). */
enum {
	JOINS_SUM = 1,       /* adds another value of the same shape */
	JOINS_GELU = 2,      /* only for products of 16 bits */
	JOINS_GELU_GRAD = 4, /* times the derivative of a GELU; likewise */
};

struct Target {
	const char *name;
	TargetKind kind;
	int lanes;            /* numbers of f32 in a vector */
	int registers;        /* of CPUs: vectors that a core holds */
	int line;             /* of CPUs: numbers of f32 in a line of the cache */
	bool gathers;         /* loads numbers that are not side by side in one instruction */
	int team;             /* members that run a part together, a power of two; 0: one alone */
	int most_team;        /* members of a team that has all of a processor; 0: not more */
	int64_t shared_bytes; /* of teams: memory that one may have */
	const MatrixShape
		*matrices; /* of teams: one for a type, one without depth ends them; NULL: none */
	const ProductTiles *product; /* of CPUs */
	const TeamTiles *tiles;      /* of teams; NULL: their products have no blocks */
	unsigned epilogues;          /* of products that its library stores: those that pay */
	const Tuning *tuning;
};

/* Parts that a large kernel should have. */
static inline int64_t
target_parts(const Target *t, int64_t cores)
{
	return t->tuning->grains.parts * cores;
}

/* NULL: the target multiplies matrices of the type element by element. */
static inline const MatrixShape *
target_matrix(const Target *t, DType type)
{
	const MatrixShape *m = t->matrices;

	while (m && m->depth && m->type != type)
		m++;
	return m && m->depth ? m : NULL;
}

/* Ends with NULL; the first is the default. */
extern const Target *const target_table[];
const Target *target_find(const char *name); /* NULL: unknown */
/* The CPU for vectors of so many bits, or the next narrower one; the narrowest where there is none. */
const Target *target_of_vectors(int bits);

/* ---- targets.c: of rematerialize, legalize, fuse and lower: who runs the loops. */
typedef struct {
	const char *
		target; /* of target_list.def; NULL: as each function says, the first where it does not */
	int64_t cores; /* that loops are cut for */
} TargetOptions;
extern const PassOption target_options[];
extern const TargetOptions target_defaults;
/* Names what a row lacks, and a table of its own where its kind has one; of all rows. True when there is nothing. */
bool target_row_check(const Target *t, Diag *diag);
bool target_table_check(Diag *diag);
/* NULL after reporting that there is none of that name. */
const Target *pass_find_target(const Pass *p, const char *name);
/* Who runs the loops of f. */
const Target *pass_target(const Pass *p, const Function *f);
/* False after reporting that the pass's option makes no sense. */
bool pass_check_cores(const Pass *p);

/* ---- kernels that are compiled together: some of a module's, so that several compilers may run at once. */
typedef VEC(Kernel *) KernelPart;

/* ---- team_memory.c */
/* What a team has in memory of its own: its arrays, partials that members of more than one warp combine, and tiles that are
 * operands, each at a multiple of SHARED_ALIGNMENT. */
enum { SHARED_ALIGNMENT = 128, TEAM_OF_REGISTERS = 32 };
int64_t kernel_shared_bytes(const Kernel *k);
int64_t kernel_partials(const Kernel *k, DType type); /* numbers of a type; 0: none */
int64_t kernel_staged(const Kernel *k, DType type);

#endif

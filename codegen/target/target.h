/* Targets: what the compiler knows of the machines for which it makes kernels. A target is a CPU
 * with some vector width, or a GPU architecture; it is one row of type Target, in cpu.c or
 * cuda.c. The pass `lower` and the strategies of codegen/kernels/ read it. A part is what one
 * parallel iteration of a kernel computes; a serving kernel runs before another kernel and leaves
 * packed data for it. */
#ifndef GRADC_CODEGEN_TARGET_TARGET_H
#define GRADC_CODEGEN_TARGET_TARGET_H

#include "base/numbers/numbers.h"
#include "ir/ir.h"
#include "ir/loop/loop.h"

/* TARGET_CPU: threads run the parts of a kernel. TARGET_TEAMS: teams run the parts. A team is a
 * block of GPU threads, which are its members. */
typedef enum { TARGET_CPU, TARGET_TEAMS, N_TARGET_KINDS } TargetKind;
#define ON(kind) (1u << TARGET_##kind) /* the kind's bit in a set of kinds */
#define ON_EVERY_KIND ((1u << N_TARGET_KINDS) - 1)

enum { MOST_PRODUCT_ROWS = 16 };
/* How a blocked product is cut on a CPU. Widths count f32 elements; a product of f64 has half as
 * many columns. Times are cycles of one core, in addition to the cycles of the multiplications. */
typedef struct {
	int rows, columns; /* size of the block of sums in registers; `columns` is two vectors */
	int depth;         /* numbers along k in a block */
	int panel;         /* most columns of a panel */
	/* the most bytes that the rows of a part may have so that they stay in cache from one
	 * panel to the next */
	int64_t near_bytes;
	int64_t waiting_bytes; /* most bytes of sums that wait for the next block of k */
	int64_t most_scratch;  /* most bytes that a serving kernel may leave in memory */
	double least_part;     /* least FLOPs of a part */
	/* cycles to pack (copy in reading order) a number of an operand that already lies in
	 * this order in memory */
	double pack;
	double pack_along_k; /* cycles to pack a number of an operand that is contiguous along k */
	/* the most bytes that a block of a panel may have so that it stays in the first-level
	 * cache for all rows of a chunk */
	int64_t first_bytes;
	double first_rate; /* bytes a cycle read from larger panel blocks */
	/* bytes a cycle read from near caches; multiplying hides most of this time */
	double near_rate;
	double far_rate;   /* bytes a cycle read from far caches and memory */
	double not_hidden; /* share of the far reading time that multiplying does not hide */
	double launch;     /* cycles of one more kernel */
	/* if k is split: the least and the most sums that one part of the kernel adds up over the
	 * splits */
	int64_t least_block, most_block;
} ProductTiles;

/* How a team cuts a blocked product. A part is one block of the result; the block's sums are a
 * tile. All numbers of a block are powers of two. Each sum adds its products in the order of k,
 * so the choice of a block changes no bits. Three numbers do change bits, so they are the same
 * for all GPU targets: depth, few_rows, and the number of splits of k, which Tuning.splits
 * decides. */
typedef struct {
	/* size of the block; rows and columns are each at most the number of members */
	int rows, columns;
	int team; /* members, in whole warps */
} TeamBlock;
enum { MAX_TEAM_BLOCKS = 8 };
typedef struct {
	int depth;         /* numbers along k in a block; twice as many for 16-bit types */
	int64_t most_sums; /* most bytes of sums that one member holds */
	/* products of up to so many rows use no blocks: each member computes columns of the result */
	int few_rows;
	/* least_split: least numbers along k in a split; most_scratch: most bytes of the sums of
	 * all splits */
	int64_t least_split, most_scratch;
	/* processors: number of processors that run parts; members: number of threads that keep
	 * one processor busy */
	int processors, members;
	/* Rates, in numbers or bytes a cycle. Of one processor:
	 *	multiplied, multiplied_16  products of f32, of 16-bit types
	 *	read                       numbers that warps read from team memory, in units of one warp's access
	 *	brought                    bytes that arrive from memory
	 * Of all processors together:
	 *	stored                     bytes of sums that are stored and loaded again */
	double multiplied, multiplied_16, read, brought, stored;
	double launch;     /* cycles of one more kernel */
	double split_gain; /* speedup that splitting k must reach to be chosen */
	/* The fastest of these blocks is chosen for each product. An entry with rows = 0 ends
	 * the list. */
	TeamBlock blocks[MAX_TEAM_BLOCKS];
} TeamTiles;

/* What a matrix unit does in one instruction, with f32 sums: sum[rows, columns] += left[rows, depth] *
 * right[depth, columns]. */
typedef struct {
	DType type; /* of both operands; F32 is rounded to tf32 */
	int rows, columns, depth;
} MatrixShape;

/* How loops are cut into parts. */
typedef struct {
	/* a kernel with at least this many element operations is cut for all cores */
	int64_t large;
	int64_t parts;      /* parts of a large kernel, for each core */
	int64_t least_part; /* least elements of a part */
	int64_t most_block; /* most elements of a block of the innermost loop */
} Grains;

/* How reductions are cut. The lanes of a vector run along rows of memory. If the last axis is reduced, lanes
 * run along the reduced elements; otherwise they run along results, which are called columns then. */
typedef struct {
	int64_t chunk_rows, chunk_columns; /* least size of a chunk of partial results */
	/* A later loop reads the rows of some reductions again, as in a batch norm. Such a
	 * reduction is not split if it has at least few_rows rows and its operand has fewer than
	 * `much` elements. */
	int64_t few_rows, much;
	/* least and most columns of a part that keeps the sums of its columns in an array */
	int64_t least_columns, most_columns;
	/* elements of a row that stay in cache or team memory until the next pass over the row */
	int64_t near_row;
	int64_t long_row; /* like near_row, for a team that has a whole processor */
	/* the least weight (OpRow.weight) of an op whose values are kept for the next pass;
	 * cheaper ones are computed again */
	int expensive;
	int sums; /* most sums over a row that one loop computes */
	/* Teams: row_members members together reduce a row of up to team_row elements. The
	 * whole team reduces a longer row. */
	int64_t team_row;
	int row_members;
	/* How many elements of a row a member keeps in registers from one pass to the next:
	 * own_numbers: of one value; all_own_numbers: of all values together, in units of 4
	 * bytes. */
	int own_numbers, all_own_numbers;
	/* the most sums of columns that a member keeps in registers while it reduces rows */
	int column_numbers;
	/* Sums over the same tensor are computed in one read, even if one sum needs the result of
	 * another (the pass merge_sums), and one kernel adds up their partial results. */
	bool merge_sums;
} ReduceTiles;

/* Weight gradients of convolutions that are computed by planes (kernels/conv_planes.c). */
typedef struct {
	int64_t block;       /* elements of dy in a block */
	int64_t most_planes; /* most planes; the kernel has separate code for each plane */
	int64_t most_bytes;  /* most bytes of a local array */
	/* Most output channels of a group. The limit is lower if rows are padded: with two
	 * products for each element of dy, only half as many channels are allowed. */
	int64_t most_outputs;
	int64_t least_parts;
	int most_sums; /* most sums in registers */
} PlaneTiles;

/* Teams: if several parts would read the same data, a part takes more iterations of a loop, up to
 * `most` times as many (reuse.c). No more are tried once all parts together touch at most
 * `enough` times the bytes of the inputs and outputs. */
typedef struct {
	int most;
	double enough;
} Repeats;

typedef struct {
	int64_t most_unrolled; /* most window positions that are unrolled */
} PoolTiles;

typedef struct {
	int64_t least_keys;         /* least indices that a part sorts */
	int64_t most_sorting_parts; /* most parts that sort; each part reads all indices */
	/* A slice is all elements of the result with one index. A part combines at most
	 * most_width elements of a slice, in an array. If there are fewer slices than wanted
	 * parts, a part combines fewer elements, but at least least_width. */
	int64_t most_width, least_width;
	int64_t least_elements; /* least elements of the result that a part computes */
	/* with at least this many updates, indices are sorted by `sort` first; 0: never */
	int64_t least_sorted;
} ScatterTiles;

/* Sorting, argmax and running sums along lines. */
typedef struct {
	int64_t least_block;
	int64_t least_merged, most_merged;
	int64_t merged_by_member; /* elements that one member of a team merges */
	int64_t near;             /* elements of each line that lie in team memory */
} LineTiles;

/* Attention without score matrices, on CPUs: the blocks of queries and keys whose scores are
 * computed together, in the forward and in the backward pass. The bits of sums depend on them. */
typedef struct {
	int64_t queries, keys, grad_queries, grad_keys;
	/* with fewer keys, scores are stored; so they are if a head is wider than most_width */
	int64_t least_keys, most_width;
} AttentionTiles;

/* Attention on teams: a part's block of scores, and its members, at least as many as its queries. For
 * heads of at most most_width numbers. The first block is taken whose matrices fit into team memory; an
 * entry with most_width = 0 ends a list. */
typedef struct {
	int most_width, queries, keys, team;
} TeamScoreBlock;
enum { MAX_SCORE_BLOCKS = 5 };
typedef struct {
	/* forward; gradients of keys and values, whose parts have a block of keys; gradients of
	 * queries, whose parts have a block of queries. The bits of sums depend on the sizes along
	 * which a part has several blocks. */
	TeamScoreBlock forward[MAX_SCORE_BLOCKS], by_keys[MAX_SCORE_BLOCKS],
		by_queries[MAX_SCORE_BLOCKS];
	int64_t most_bytes; /* most bytes of a part's blocks of matrices and scores */
} TeamAttention;

/* The last product and its loss in chunks of rows, on CPUs. The bits of sums depend on them. */
typedef struct {
	int64_t rows; /* of a chunk, at most, unless one step along the rows' first axis has more */
	int64_t least_bytes; /* of the logits of all rows in f32: with fewer, all rows are one chunk */
} LossChunks;

/* Attention without a kernel, for some queries at a time, on CPUs. The bits of gradients depend on it. */
typedef struct {
	int64_t queries;       /* of a chunk, at most */
	int64_t least_queries; /* with fewer, there is one chunk, and its scores are stored */
} AttentionChunks;

/* When a library's product or convolution is faster than our loops. */
typedef struct {
	int64_t least_flops;
	int64_t least_size; /* least rows, columns and reduced numbers of a product */
	/* a view is copied to memory if each of its elements is read at least this often */
	int64_t least_reads;
	/* f32: may the first operand of a batched product be transposed? */
	bool transposed_batches;
	/* Rows of library operands and results begin at multiples of row_alignment bytes (0: anywhere). This
	 * holds for values with rows of at least least_pitched_row bytes and at least least_pitched bytes in
	 * all (pitch.c). */
	int row_alignment;
	int64_t least_pitched_row, least_pitched;
	/* The library's convolutions for matrix units want channels as the last axis, and move images
	 * of another layout (the pass layouts). */
	bool channels_last;
	/* the library's convolutions give results of their operands' type only */
	bool conv_rounds;
	/* the library takes f16 products as well as bf16 products */
	bool f16;
	/* most bytes of scratch memory, for a product and for a convolution */
	int64_t most_scratch, most_conv_scratch;
} LibraryLimits;

/* Which values are computed again instead of stored: values of at least least_bytes bytes that
 * cost at most `additions` additions an element. That many additions take as long as a store and
 * a load. `next`: values that the next kernels read; `backward`: values that would wait for the
 * backward pass. */
typedef struct {
	int additions;
	int64_t least_bytes;
} RecomputeLimit;
typedef struct {
	RecomputeLimit next, backward;
	/* Are values that a library's product reads in the backward pass computed again, too? They must be stored again. */
	bool for_products;
} RecomputeLimits;

/* The tuned numbers: one table for each kind of target, with a comment at each number that gives
 * the measurement from which it comes.
 *
 * Parts, chunks and blocks decide the order in which partial sums are added. All targets of one
 * kind share a table, so these sums have the same bits on each of them. */
typedef struct Target Target;
typedef struct {
	Grains grains;
	ReduceTiles reduce;
	Repeats repeats;
	PlaneTiles planes;
	PoolTiles pool;
	ScatterTiles scatter;
	LineTiles lines;
	AttentionTiles attention;
	TeamAttention team_attention;
	AttentionChunks attention_chunks;
	LossChunks loss;
	LibraryLimits library;
	RecomputeLimits recompute;
	/* teams: the target whose costs decide into how many splits k of a product is cut, for
	 * all targets of the kind */
	const Target *splits;
} Tuning;
extern const Tuning cpu_tuning, team_tuning; /* one for each kind of target */

struct Target {
	const char *name;
	TargetKind kind;
	int lanes;     /* f32 numbers in a vector */
	int registers; /* CPUs: vector registers of a core */
	int line;      /* CPUs: f32 numbers in a cache line */
	bool gathers;  /* one instruction loads numbers that are not contiguous */
	/* number of threads (members) that run a part together, a power of two; 0: a part runs
	 * on one thread */
	int team;
	int most_team;        /* members of a team that has a whole processor; 0: no larger teams */
	int64_t shared_bytes; /* teams: most bytes of shared memory that a team has */
	/* teams: at most one shape for a type; a shape with depth = 0 ends the list; NULL: no
	 * matrix units */
	const MatrixShape *matrices;
	const ProductTiles *product; /* CPUs: how products are cut */
	const TeamTiles *tiles;      /* teams: how products are cut; NULL: products use no blocks */
	/* JOINS_ bits: operations that are faster if the library applies them while it stores a
	 * product than in a kernel of their own */
	unsigned epilogues;
	const Tuning *tuning;
};

/* Parts that a large kernel should have. */
static inline int64_t
target_parts(const Target *t, int64_t cores)
{
	return t->tuning->grains.parts * cores;
}

/* The matrix unit's shape for operands of this type; NULL: the target has no unit for the type. */
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
/* The CPU target for vectors of `bits` bits, or the next narrower target; the narrowest target if no target
 * is so narrow. */
const Target *target_of_vectors(int bits);

/* ---- targets.c: options of the passes rematerialize, legalize, fuse and lower: which target
 * runs the kernels. */
typedef struct {
	/* a name in target_list.def; NULL: the function's own target, or the first of the list */
	const char *target;
	int64_t cores; /* cores that loops are cut for */
} TargetOptions;
extern const PassOption target_options[];
extern const TargetOptions target_defaults;
/* Checks one row: reports fields that are missing, and a tuning table that differs from the
 * table of its kind. target_table_check checks all rows. True: nothing is wrong. */
bool target_row_check(const Target *t, Diag *diag);
bool target_table_check(Diag *diag);
/* NULL after reporting that no target has that name. */
const Target *pass_find_target(const Pass *p, const char *name);
/* The target that runs the loops of f; NULL after reporting that there is no such target. */
const Target *pass_target(const Pass *p, const Function *f);
/* False after reporting that the option `cores` is out of range. */
bool pass_check_cores(const Pass *p);

/* ---- A list of kernels of a module that are compiled together. A module is divided into
 * several lists, so that several compilers run at the same time. */
typedef VEC(Kernel *) KernelPart;

/* ---- team_memory.c */
/* Bytes of memory that a team has of its own for a kernel: local arrays, partials that are combined across
 * warps, and tiles that are operands. Each begins at a multiple of SHARED_ALIGNMENT. */
enum { SHARED_ALIGNMENT = 128, TEAM_OF_REGISTERS = 32 };
int64_t kernel_shared_bytes(const Kernel *k);
int64_t kernel_partials(const Kernel *k, DType type); /* count of partials of a type; 0: none */
int64_t kernel_staged(const Kernel *k, DType type);
/* May a tile of this type, as the left operand of mma, stay in registers? */
static inline bool
tile_in_registers(DType type)
{
	return dtype_info[type].bits == 16;
}

#endif

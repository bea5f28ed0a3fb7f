/* Shared by the files of `lower`. */
#ifndef GRADC_CODEGEN_LOWER_IMPL_H
#define GRADC_CODEGEN_LOWER_IMPL_H

#include "codegen/fuse/fuse.h"
#include "codegen/lower/lower.h"

/* One loop of the nest: its extent, and what a step means in the flat numbering of full values, row
 * values (results of reductions) and chunk values (reductions of those). */
typedef struct {
	int64_t extent, full, row, chunk;
	bool reduced;  /* summed over */
	int64_t whole; /* of blocks of that extent, which the loop around counts: how many elements there are; 0: as many as
	                * the blocks have */
	int apart;     /* so many other loops stand between that loop and this one */
	int64_t before; /* where the loop over these blocks was cut again: iterations of its inner part; else 0 */
	LoopValue variable; /* of the open loop */
} LoopDim;
/* Where a nest has no room for another loop, an index is divided out, or a loop stays whole. */
enum { MAX_NEST = 2 * MAX_RANK };
typedef struct {
	int n;
	int64_t again; /* iterations of a loop that is still to stand within parts; 0: there is none */
	LoopDim at[MAX_NEST];
} LoopNest;

typedef enum { REDUCED_NOT, REDUCED_SCALAR, REDUCED_LOCAL } ReducedKind;

/* Loads of a square that come through memory of the team. */
enum { MOST_TURNED = 4 };

/* An element that the team's memory holds, too: of a parameter, and where. */
typedef struct {
	int buffer;
	Affine place;
	int array;
	Affine place_in_array;
} Brought;

typedef struct {
	int array;
	LoopValue x;
} LateStore;
struct LowerState {
	Arena *scratch;
	int *buffers;       /* by value id: kernel buffer of a parameter or result; -1 */
	int kernel_scratch; /* buffer of what the kernel before makes; -1: none */
	int *hyper;         /* by value id of a parameter: hyperparameter number; -1 */
	IntMap *memo;       /* (node, index) -> entry */
	VEC(struct MemoEntry) entries;
	ReducedKind *reduced; /* by node id: where a reduction's result is */
	int *reduced_at;      /* scalar or local buffer */
	Affine column;        /* place in local result arrays */
	int *cache;           /* by value id: an array of the row at hand that has it; -1 */
	uint8_t *cached;      /* by value id: 1 this pass fills the array, 2 it is filled */
	/* By value id: the value whose array it takes over, when that is read for the last time; -1: none. What is to be stored
	 * there waits until all of the element at hand is computed. */
	int *taken_from;
	VEC(LateStore) late;
	bool own_rows; /* these arrays are members' own */
	Affine full_flat,
		inner_flat; /* of the element being computed, there and in these arrays; valid in the innermost loop */
	int64_t rows;   /* that every part is cut into (lower/parts.c); 0 outside parts */
	int row_loops;  /* over these, and blocks */
	int64_t blocks; /* of all parts, each with a number; 0: parts are not cut */
	int64_t first_block,
		block_elements; /* the number of a part's first one; elements that one is to have */
	LoopValue block;        /* at hand */
	bool counts_blocks;     /* nothing is emitted yet */
	bool squares;           /* blocks are squares (lower/squares.c) */
	bool wants_squares;     /* some part is transposed, or has short rows */
	bool overlap;           /* parts store over each other's elements, in order */
	Affine row;             /* at hand */
	/* Arrays of squares by dtype: how many of them a block needs, and their buffers. */
	int n_squares[N_DTYPES], square_arrays[N_DTYPES][MOST_TURNED];
	const Brought *brought; /* loaded from there instead (lower/squares.c) */
	int n_brought;
};

/* lower/nest.c */
/* Loops over the full space, flat and fine enough that every view's index splits. Scratch is of the arena. */
LoopNest nest_elementwise(const Lower *lw, const Spaces *spaces);
/* Loops over one of `rows` equal runs of a part of that shape, by its axes at least. */
LoopNest nest_part(const Lower *lw, Type shape, int64_t rows);
/* Kept loops first (outermost in order), reduced loops last. */
LoopNest nest_reduce(const Lower *lw, const Spaces *spaces);

/* Loop `at` becomes a loop over blocks and one within a block, which ends early in the last block. False: it stays one loop. */
bool nest_cut(LoopNest *nest, int at, int64_t block);

/* Loop `from` becomes loop `to`; none of the two, nor what is between, is within blocks. */
void nest_move(LoopNest *nest, int from, int to);

/* The loop that lanes run along is never parallel itself, but blocks of so many elements are. */
typedef struct {
	int at;
	int64_t least, most;
	bool array; /* what lanes make stays in an array of at most `most`, whether there are parts enough or not */
} LanesLoop;
/* How many of the first n loops are parallel: the outermost, and as many as give the parts that the kernel should have, of
 * the least size that the target wants. Cuts one of them in blocks where that gives more; lanes NULL: along none of them. */
int nest_parallel(LoopNest *nest, int n, const LanesLoop *lanes, const Lower *lw);
/* Of a loop within blocks: the elements of the one at hand, from its first on. */
Affine nest_left(LoopBuilder *lb, const LoopDim *d);
/* Opens loop `at`, directly inside of those before. */
LoopValue nest_open(LoopBuilder *lb, LoopNest *nest, int at, LoopMode mode);

/* lower/team.c */
/* The loop of a nest without reductions that lanes or members run along: the innermost, or one that has an element for each
 * member. -1: there is no loop. */
int nest_spread_loop(const Lower *lw, const LoopNest *nest);
/* What the target moves at once, of the smallest numbers that the kernel reads or stores; at most two such of f32. */
int team_vector(const Lower *lw);
/* Members that so many elements of memory side by side keep busy: a power of two, at most those of the target's rows. */
int team_inner(const Lower *lw, int64_t elements);
enum { LEAST_INNER = 4 }; /* of a team within the team */
/* Where the innermost loop is too short for all members it gets a team for each row, and outer members take rows: the loop over
 * these, which has become an iteration for each. -1: members stay one team. */
int nest_divide(Lower *lw, LoopNest *nest);
/* Opens loop `at` over rows that outer members take; how many loops of loop IR. */
int nest_open_rows(Lower *lw, const LoopNest *nest, int at, Affine *step);
/* Opens a loop that runs once, where `at` is below the end, and counts it; `at` as its form says that it is. */
Affine nest_if_below(LoopBuilder *lb, Affine at, Affine end, int *loops);
/* Opens loop `at` for them, directly inside of those before. */
Spread nest_spread(Lower *lw, const LoopNest *nest, int at);

/* lower/probe.c */
/* A load, at constant + the sum of strides[d] * (the variable of loop d). */
typedef struct {
	int buffer;
	bool masked;
	int64_t constant, strides[MAX_NEST];
} NestLoad;
/* Of a nest: what is emitted between its beginning and its end, which takes it back and lists its loads, each once. Those with
 * other places are left out. */
typedef struct {
	int first;
	LoopValue variables[MAX_NEST];
	Affine flat; /* of the element */
	VEC(NestLoad) loads;
} NestProbe;
NestProbe nest_probe(Lower *lw, const LoopNest *nest);
void nest_probe_end(Lower *lw, const LoopNest *nest, NestProbe *p);

/* lower/reuse.c */
/* So many iterations of a loop that a part has. */
typedef struct {
	int loop;
	int64_t iterations;
} Reuse;
typedef struct Squares Squares;
/* How a nest is cut into parts otherwise: into squares, or by its first n loops. There the loop whose iterations parts repeat
 * is one of those up to `last`, and goes behind these. */
typedef struct {
	int last, n;
	int64_t least;          /* iterations of it that a part has in any case */
	const LanesLoop *lanes; /* as nest_parallel takes them */
	const Squares *squares;
} Cutting;
Reuse nest_reuse(const Lower *lw, const LoopNest *nest, const NestProbe *p, const Cutting *c);
/* nest_parallel of that nest; the iterations that a part has stand before loop `within`, which is behind the n or that of the
 * lanes. */
int nest_parallel_again(LoopNest *nest, const Reuse *r, const Cutting *c, int within,
                        const Lower *lw);

/* lower/squares.c */
/* How a nest without reductions is cut into squares along its last loop and another one. Loads that run along that one come
 * through memory of the team. */
enum {
	SQUARE_SIDE = 32,
	LEAST_SQUARE_SIDE = 8, /* of a loop that is worth it */
};
struct Squares {
	int down; /* the other one */
	int n;
	NestLoad loads[MOST_TURNED];
	Reuse again;
};
/* False: the target's team is too small, or there is one loop. */
bool nest_squares(const Lower *lw, const LoopNest *nest, const NestProbe *p, Squares *out);
int64_t squares_along(const LoopNest *nest, const Squares *s, int loop);
int64_t squares_count(Lower *lw, const LoopNest *nest, const Squares *s);
/* Before the kernel's loops: its team, and arrays for any of the squares that were wanted so far. */
void squares_want(Lower *lw, const Squares *s);
void squares_begin(Lower *lw);
/* All of square `number`. store: what belongs to element `flat`. */
typedef void StoreElement(Lower *lw, Affine flat, const void *ctx);
void lower_square(Lower *lw, const LoopNest *nest, const Squares *s, Affine number,
                  StoreElement *store, const void *ctx);

/* lower/elementwise.c, lower/reduce.c: of a function without reductions, with some */
void lower_elementwise(Lower *lw, const Spaces *spaces);
void lower_reductions(Lower *lw, const Spaces *spaces);

/* kernel_name.c: of the function's kernel, or of the one before it. */
const char *lower_kernel_name(Arena *arena, const Function *f, Phase phase, bool before,
                              int number);

/* ---- lower/kernel.c: a function's kernel */
/* A fused function on its way to one kernel, or to two: the first leaves `scratch` in memory for the other. */
typedef struct {
	Module *m;
	const Node *call;
	const Function *f;
	const Target *target;
	int64_t cores;
	Diag *diag;
	Arena *arena;
	const Strategy *strategy;   /* NULL: none */
	Type scratch;               /* NULL: one kernel */
	const LibraryCall *library; /* of an epilogue; NULL: as the strategy says */
} Lowering;
/* Who emits the function's kernel: where opaque nodes are several, the strategy that gathered them. NULL: loops over its
 * domain, or the row's parts. */
const Strategy *lower_strategy(const Target *t, const Function *f, Arena *arena);
/* False after reporting that no kernel has this function's loops. */
bool lower_check(const Lowering *l);
/* What the kernel needs in memory, made by another; NULL: nothing. */
Type lower_needs(const Lowering *l);
/* The kernel that stores the function's results; NULL after reporting a fault. */
Kernel *lower_function(const Lowering *l);
/* The kernel that makes what that one needs. */
Kernel *lower_before(const Lowering *l, const Kernel *serves);

/* ---- lower.c: what calls and kernels share */
/* Equal groups call the same function; hyperparameters among the arguments are numbers of the kernel. */
typedef struct {
	const Node *call;
	const Target *target;
	Kernel *kernel;
	Kernel *before; /* makes the kernel's last input; NULL: it has none */
	Type scratch;   /* that input */
	const LibraryCall
		*library; /* of an epilogue, in the module's kernel; NULL: as the strategy says */
} Lowered;
typedef struct {
	IntMap *by_call, *by_kernel;
	VEC(Lowered) done;
	Readers readers;
} Sharing;
/* An equal kernel of the module, whatever its name; NULL: there is none, and the next one to be put into it is k. */
Kernel *sharing_find(const Module *m, Sharing *sh, const Kernel *k);
/* Of k, with call's phase and location, before it. */
Node *lower_insert_launch(Node *call, Kernel *k, int n_operands, Value *const *operands,
                          int n_results, const Type *types);

/* ---- lower/reader.c */
/* The launch of the product has a kernel that serves that one, the kernel of e's reader, whose launch stands before e's call. */
void lower_serve_reader(Module *m, Sharing *sh, const Epilogue *e, const Kernel *server);

/* ---- lower/element.c, lower/parts.c: the calls that rows are lent (ir/loop/lower.c) */
LoopValue kernel_element(Lower *lw, const Value *v, const Index *at);
LoopValue kernel_element_inside(Lower *lw, const Value *v, const Index *at, LoopValue inside);
void kernel_open_parts(Lower *lw, const Node *n, int axes, bool apart);
void kernel_close_parts(Lower *lw);
void kernel_part(Lower *lw, const Node *n, Type shape, PartElement element, PartPlace place,
                 const void *ctx);

#endif

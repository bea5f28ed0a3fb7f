/* Private to lower: the nest of loops of a kernel and the state of the emitter, shared by the
 * files of this folder. Words: a part is what one parallel iteration computes. Lanes are the
 * lanes of a vector. Members are the threads of a team. A team may be divided into groups of
 * threads; a group is an outer member. */
#ifndef GRADC_CODEGEN_LOWER_NEST_H
#define GRADC_CODEGEN_LOWER_NEST_H

#include "codegen/fuse/fuse.h"
#include "codegen/lower/lower.h"

/* One loop of a nest. Example: in a softmax over f32[64,96], full values have 64 x 96 elements.
 * Row values, such as the maximum of each row, have 64. Chunk values are reductions of row
 * values; sums over 8 rows would have 8 elements. One iteration of the loop moves `full` elements
 * further in full values, `row` elements in row values, and `chunk` elements in chunk values. */
typedef struct {
	int64_t extent, full, row, chunk;
	bool reduced; /* is the loop summed over? */
	/* For a loop within blocks whose last block is shorter: the elements of all blocks
	 * together. 0: all blocks have `extent` elements. */
	int64_t whole;
	int apart; /* number of loops between the loop over the blocks and this loop */
	/* if the loop over the blocks was itself cut into two loops: iterations of the inner
	 * one; otherwise 0 */
	int64_t before;
	LoopValue variable; /* the loop's variable while it is open */
} LoopDim;
/* The most loops of a nest. If there is no room for another loop, a loop is not cut; indices
 * within it may need a division. */
enum { MAX_NEST = 2 * MAX_RANK };
typedef struct {
	int n;
	/* iterations of a loop that will be added inside parts (reuse.c); 0: no such loop */
	int64_t again;
	LoopDim at[MAX_NEST];
} LoopNest;

typedef enum { REDUCED_NOT, REDUCED_SCALAR, REDUCED_LOCAL } ReducedKind;

/* The most loads of a square (a transposed block, squares.c) that may go through team memory. */
enum { MOST_TURNED = 4 };

/* Element `place` of the kernel's input `buffer`. Team memory has a copy of this element: element
 * `place_in_array` of `array`. */
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
	int *buffers;       /* by value id: buffer of a parameter or result; -1: none */
	int kernel_scratch; /* buffer through which a serving kernel passes data; -1: none */
	int *hyper;         /* by value id: hyperparameter that a parameter stands for; -1: none */
	IntMap *memo;       /* (node, index) -> entry */
	VEC(struct MemoEntry) entries;
	ReducedKind *reduced; /* by node id: where the reduction's result is */
	int *reduced_at;      /* by node id: the scalar or the local buffer */
	Affine column;        /* column of the current element, the place in local result arrays */
	/* by value id: array with the value's elements of the current row; -1: none */
	int *cache;
	/* by value id: 1: the current pass fills the array; 2: it is filled */
	uint8_t *cached;
	/* taken_from[v]: the value whose array v takes over once nobody reads that value any
	 * more; -1: none. The store into the array is delayed (`late`) until all code of the
	 * current element has read the old content. */
	int *taken_from;
	VEC(LateStore) late;
	bool own_rows; /* are the arrays in `cache` private to members? */
	/* the current element's number in the full space, and in the arrays in `cache`; valid
	 * in the innermost loop */
	Affine full_flat, inner_flat;
	/* number of rows that every part of a result is cut into (parts.c); 0: no parts */
	int64_t rows;
	int row_loops;  /* open loops over rows and blocks */
	int64_t blocks; /* blocks of all parts together; 0: parts are not cut into blocks */
	/* number of the first block of the current part of the result; elements that a block
	 * should have */
	int64_t first_block, block_elements;
	LoopValue block;    /* number of the current block */
	bool counts_blocks; /* a trial run that only counts blocks; its statements are removed */
	bool squares;       /* blocks are squares (squares.c) */
	bool wants_squares; /* some part of the result is transposed or has short rows */
	bool overlap;       /* parts of the result overlap, so they are stored in order */
	Affine row;         /* number of the current row */
	/* Arrays for squares, by dtype: how many arrays a block needs, and their buffers. */
	int n_squares[N_DTYPES], square_arrays[N_DTYPES][MOST_TURNED];
	const Brought *brought; /* elements that are read from team memory (squares.c) */
	int n_brought;
};

/* ---- nest.c */
/* Loops over the full space, cut so finely that the index of every view is affine in the loop variables. The
 * arena owns scratch data. */
LoopNest nest_elementwise(const Lower *lw, const Spaces *spaces);
/* The loops over one row of a part of the result. The part has this shape and is cut into `rows`
 * equal rows; there is a loop for each axis within a row, or more. */
LoopNest nest_part(const Lower *lw, Type shape, int64_t rows);
/* The loops of a kernel with reductions: first the loops over axes that are kept, outermost
 * first, then those over axes that are reduced. */
LoopNest nest_reduce(const Lower *lw, const Spaces *spaces);

/* Cuts loop `at` in two: loop `at` then runs over blocks of `block` iterations, loop at + 1 runs
 * within a block (the last block may be shorter). False: the loop was not cut. */
bool nest_cut(LoopNest *nest, int at, int64_t block);

/* Moves loop `from` to position `to`. Of the loops at these positions and in between, none may be
 * the inner loop of a nest_cut, because it refers to its outer loop by distance. */
void nest_move(LoopNest *nest, int from, int to);

/* The loop that lanes run along. This loop is never parallel itself. It is cut into blocks of
 * `least` to `most` elements, and the loop over the blocks may be parallel. */
typedef struct {
	int at;
	int64_t least, most;
	/* an array with room for `most` elements holds the results of lanes, so a longer loop is
	 * always cut */
	bool array;
} LanesLoop;
/* Chooses which of the first n loops are parallel, and returns how many. Takes loops from the
 * outermost on, until the kernel has as many parts as it should have, but no part is smaller than
 * the target wants. May cut one of these loops into blocks to get more parts. lanes NULL: lanes
 * run along none of the first n loops. */
int nest_parallel(LoopNest *nest, int n, const LanesLoop *lanes, const Lower *lw);
/* For the inner loop of a nest_cut: how many elements there are from the current block's first
 * element to the end of all blocks. */
Affine nest_left(LoopBuilder *lb, const LoopDim *d);
/* Opens loop `at`, directly inside the loops before it. */
LoopValue nest_open(LoopBuilder *lb, LoopNest *nest, int at, LoopMode mode);

/* ---- team.c */
/* For a nest without reductions: the loop that lanes or members run along. It is the innermost loop, or the
 * nearest loop that has an element for each member. -1: the nest has no loop. */
int nest_spread_loop(const Lower *lw, const LoopNest *nest);
/* How many elements of the kernel's smallest type the target loads with one instruction; at most
 * as many as two vectors of f32 have numbers. */
int team_vector(const Lower *lw);
/* How many members `elements` neighbouring elements keep busy: a power of two, at most
 * ReduceTiles.row_members. */
int team_inner(const Lower *lw, int64_t elements);
enum { LEAST_INNER = 4 }; /* least members of a group of a divided team */
/* If the innermost loop is too short for all members, divides the team: each group of threads
 * (outer member) takes a row of its own. Returns the loop over these rows, cut to one iteration
 * for each group. -1: the team is not divided. */
int nest_divide(Lower *lw, LoopNest *nest);
/* Opens loop `at`, whose rows outer members share. Sets *step to the iteration. Returns how many
 * loops were opened; the caller closes them. */
int nest_open_rows(Lower *lw, const LoopNest *nest, int at, Affine *step);
/* Opens a loop that runs once if at < end and otherwise not at all, and adds 1 to *loops. Returns
 * `at`, written with the loop's variable, so that later stages can see that it is below `end`. */
Affine nest_if_below(LoopBuilder *lb, Affine at, Affine end, int *loops);
/* Opens loop `at` for lanes or members, directly inside the loops before it. */
Spread nest_spread(Lower *lw, const LoopNest *nest, int at);

/* ---- probe.c */
/* A load at place constant + the sum of strides[d] * (variable of loop d). */
typedef struct {
	int buffer;
	bool masked;
	int64_t constant, strides[MAX_NEST];
} NestLoad;
/* Finds out what a nest loads, before its final code is emitted: between nest_probe and
 * nest_probe_end, the caller emits the body once. nest_probe_end lists each load in it once and
 * removes all these statements. A load is left out if its place is not a sum as in NestLoad. */
typedef struct {
	int first;
	LoopValue variables[MAX_NEST];
	Affine flat; /* flat number of the element */
	VEC(NestLoad) loads;
} NestProbe;
NestProbe nest_probe(Lower *lw, const LoopNest *nest);
void nest_probe_end(Lower *lw, const LoopNest *nest, NestProbe *p);

/* ---- reuse.c */
/* A loop, and how many of its iterations each part has. */
typedef struct {
	int loop;
	int64_t iterations;
} Reuse;
typedef struct Squares Squares;
/* How a nest would be cut into parts without reuse: into squares, or at its first n loops. With
 * reuse, each part has several iterations of one of the loops 0 to `last`. Without squares, this
 * loop moves to position `last`. */
typedef struct {
	int last, n;
	int64_t least;          /* least iterations of that loop in a part */
	const LanesLoop *lanes; /* as for nest_parallel */
	const Squares *squares;
} Cutting;
Reuse nest_reuse(const Lower *lw, const LoopNest *nest, const NestProbe *p, const Cutting *c);
/* Like nest_parallel, with the reuse r: cuts loop r->loop, so that each part has r->iterations
 * iterations of this loop. The new loop over these iterations is placed directly before loop
 * `within`, which is the first loop after the first n, or the loop that lanes run along. */
int nest_parallel_again(LoopNest *nest, const Reuse *r, const Cutting *c, int within,
                        const Lower *lw);

/* ---- squares.c */
/* How a nest without reductions is cut into squares along its last loop and one other loop. Loads that are
 * contiguous along the other loop go through team memory. */
enum {
	SQUARE_SIDE = 32,
	LEAST_SQUARE_SIDE = 8, /* least extent of a loop for which squares pay */
};
struct Squares {
	int down; /* the loop other than the last along which a square lies */
	int n;
	NestLoad loads[MOST_TURNED];
	Reuse again;
};
/* Fills *out. False: the nest cannot be cut into squares, because the target's team is too small
 * or the nest has only one loop. */
bool nest_squares(const Lower *lw, const LoopNest *nest, const NestProbe *p, Squares *out);
int64_t squares_along(const LoopNest *nest, const Squares *s, int loop);
int64_t squares_count(Lower *lw, const LoopNest *nest, const Squares *s);
/* Called before the kernel's loops: squares_want once for each Squares that the kernel will use,
 * then squares_begin. squares_want notes how many arrays in team memory they need; squares_begin
 * declares the team and the arrays. */
void squares_want(Lower *lw, const Squares *s);
void squares_begin(Lower *lw);
/* Emits square `number` as a whole. store: stores the results for element `flat`. */
typedef void StoreElement(Lower *lw, Affine flat, const void *ctx);
void lower_square(Lower *lw, const LoopNest *nest, const Squares *s, Affine number,
                  StoreElement *store, const void *ctx);

/* ---- elementwise.c, reduce.c: lower a function without reductions, and one with reductions */
void lower_elementwise(Lower *lw, const Spaces *spaces);
void lower_reductions(Lower *lw, const Spaces *spaces);

/* ---- kernel_name.c */
/* The name of the function's kernel, or of its serving kernel. */
const char *lower_kernel_name(Arena *arena, const Function *f, Phase phase, bool before,
                              int number);

/* ---- kernel.c: a function's kernel */
/* A fused function to be lowered to one kernel, or to two. With two, the serving kernel runs
 * first and leaves data of type `scratch` in memory for the main kernel. */
typedef struct {
	Module *m;
	const Node *call;
	const Function *f;
	const Target *target;
	int64_t cores;
	Diag *diag;
	Arena *arena;
	const Strategy *strategy;   /* NULL: see lower_strategy */
	Type scratch;               /* NULL: one kernel */
	const LibraryCall *library; /* for an epilogue; NULL: the strategy decides */
} Lowering;
/* The strategy that emits the kernel of the function's opaque node. NULL: the function has no
 * opaque node, it has several, or a group's strategy emits the kernel. */
const Strategy *lower_strategy(const Target *t, const Function *f);
/* False after reporting why the function cannot be one kernel. */
bool lower_check(const Lowering *l);
/* The type of the data that a serving kernel must leave for the main kernel; NULL: no serving
 * kernel is needed. */
Type lower_needs(const Lowering *l);
/* The kernel that stores the function's results; NULL after reporting an error. */
Kernel *lower_function(const Lowering *l);
/* The serving kernel, which runs before kernel `serves` and leaves data for it. */
Kernel *lower_before(const Lowering *l, const Kernel *serves);

/* ---- lower.c: calls and kernels are shared */
/* A lowered call. Other calls of the same function with the same hyperparameters use the same kernel,
 * because hyperparameters are numbers in the kernel. */
typedef struct {
	const Node *call;
	const Target *target;
	Kernel *kernel;
	Kernel *before; /* the serving kernel, which makes the kernel's last input; NULL: none */
	Type scratch;   /* type of that input */
	/* the library call for an epilogue, owned by the module's kernel; NULL: the strategy
	 * decides */
	const LibraryCall *library;
} Lowered;
typedef struct {
	IntMap *by_call, *by_kernel;
	VEC(Lowered) done;
	Readers readers;
} Sharing;
/* A kernel of the module that equals k apart from the name. If there is none, remembers k, which
 * the caller must then add to the module, and returns NULL. */
Kernel *sharing_find(const Module *m, Sharing *sh, const Kernel *k);
/* Inserts a launch of k before the call, with the call's phase and location. */
Node *lower_insert_launch(Node *call, Kernel *k, int n_operands, Value *const *operands,
                          int n_results, const Type *types);

/* ---- concat_in_place.c */
/* If the call is a concat whose operands are computed by kernels that can write into the concat, makes them do so, gives
 * the call's readers the result and returns true. The call itself stays until all calls are lowered. */
bool lower_concat_in_place(const Lowering *l, Sharing *sh, Node *call);

/* ---- reader.c */
/* Marks the kernel of e's product as serving `server`, the kernel of e's reader: if a library
 * runs both in one call, the product's kernel is not launched. The reader's launch already stands
 * before e->call. */
void lower_serve_reader(Module *m, Sharing *sh, const Epilogue *e, const Kernel *server);
/* The launch had the kernel `from`. Makes the kernels that served `from` serve its present kernel. */
void lower_serve_instead(Sharing *sh, Node *launch, const Kernel *from);

/* ---- element.c, parts.c: functions that ops call through LowerCalls (ir/loop/lower.c) */
LoopValue kernel_element(Lower *lw, const Value *v, const Index *at);
LoopValue kernel_element_inside(Lower *lw, const Value *v, const Index *at, LoopValue inside);
void kernel_open_parts(Lower *lw, const Node *n, int axes, bool apart);
void kernel_close_parts(Lower *lw);
void kernel_part(Lower *lw, const Node *n, Type shape, PartElement element, PartPlace place,
                 const void *ctx);

#endif

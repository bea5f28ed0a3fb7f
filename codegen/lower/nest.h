/* Private to lower: the nest of loops of a kernel and the state of the emitter, shared by the
 * files of this folder. A part is what one parallel iteration computes; lanes are the lanes of a
 * vector; members are the threads of a team; a divided team has groups of threads (outer
 * members). */
#ifndef GRADC_CODEGEN_LOWER_NEST_H
#define GRADC_CODEGEN_LOWER_NEST_H

#include "codegen/fuse/fuse.h"
#include "codegen/lower/lower.h"

/* One loop of a nest. In a softmax over f32[64,96], full values have 64 x 96 elements; row
 * values, the results of reductions, have 64; chunk values, the reductions of row values, would
 * have fewer still. `full`, `row` and `chunk` say by how much one iteration advances the flat
 * number of an element of such values. */
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
/* Most loops of a nest. If a nest has no room for another loop, an index is computed by a
 * division, or a loop stays whole. */
enum { MAX_NEST = 2 * MAX_RANK };
typedef struct {
	int n;
	int64_t again; /* iterations of one more loop that parts will contain; 0: no such loop */
	LoopDim at[MAX_NEST];
} LoopNest;

typedef enum { REDUCED_NOT, REDUCED_SCALAR, REDUCED_LOCAL } ReducedKind;

/* Most loads of a square (a transposed block, squares.c) that go through team memory. */
enum { MOST_TURNED = 4 };

/* An element of a parameter that also lies in team memory: its buffer and the place in that
 * buffer, and the array in team memory and the place in that array. */
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
	/* taken_from[v]: the value whose array v takes over when that value is read for the last
	 * time; -1: none. A store into such an array waits until everything for the current
	 * element is computed. */
	int *taken_from;
	VEC(LateStore) late;
	bool own_rows; /* are the arrays in `cache` private to members? */
	/* the current element's number, in the full space and in these arrays; valid in the innermost loop */
	Affine full_flat, inner_flat;
	/* number of rows that every part of a result is cut into (parts.c); 0: no parts */
	int64_t rows;
	int row_loops;  /* open loops over rows and blocks */
	int64_t blocks; /* blocks of all parts together; 0: parts are not cut into blocks */
	/* number of the part's first block; elements that a block should have */
	int64_t first_block, block_elements;
	LoopValue block;    /* number of the current block */
	bool counts_blocks; /* only counting blocks: no statements are kept */
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
/* Loops over one of `rows` equal runs of a part with this shape, cut at its axes at least. */
LoopNest nest_part(const Lower *lw, Type shape, int64_t rows);
/* Kept loops first, outermost first; reduced loops last. */
LoopNest nest_reduce(const Lower *lw, const Spaces *spaces);

/* Cuts loop `at` into a loop over blocks and a loop within a block, which ends early in the last block.
 * False: the loop stays whole. */
bool nest_cut(LoopNest *nest, int at, int64_t block);

/* Moves loop `from` to position `to`. Neither this loop nor a loop in between may be within blocks. */
void nest_move(LoopNest *nest, int from, int to);

/* The loop that lanes run along. This loop is never parallel itself. It is cut into blocks of
 * `least` to `most` elements, and the loop over the blocks may be parallel. */
typedef struct {
	int at;
	int64_t least, most;
	/* results of lanes lie in an array of at most `most` elements, so the loop is cut even if there are
	 * enough parts */
	bool array;
} LanesLoop;
/* How many of the first n loops are parallel. Takes loops from the outermost on, until the
 * kernel has the number of parts it should have; a part is never smaller than the target wants.
 * Cuts one of these loops into blocks if that gives more parts. lanes NULL: lanes run along no
 * loop of the first n. */
int nest_parallel(LoopNest *nest, int n, const LanesLoop *lanes, const Lower *lw);
/* For a loop within blocks: the elements from the current block's first element to the end. */
Affine nest_left(LoopBuilder *lb, const LoopDim *d);
/* Opens loop `at`, directly inside the loops before it. */
LoopValue nest_open(LoopBuilder *lb, LoopNest *nest, int at, LoopMode mode);

/* ---- team.c */
/* For a nest without reductions: the loop that lanes or members run along. It is the innermost loop, or the
 * nearest loop that has an element for each member. -1: the nest has no loop. */
int nest_spread_loop(const Lower *lw, const LoopNest *nest);
/* Elements of the kernel's smallest type that the target loads with one instruction, but at most
 * two vectors of f32 numbers. */
int team_vector(const Lower *lw);
/* How many members `elements` neighbouring elements keep busy: a power of two, at most
 * ReduceTiles.row_members. */
int team_inner(const Lower *lw, int64_t elements);
enum { LEAST_INNER = 4 }; /* least members of a group of a divided team */
/* If the innermost loop is too short for all members, divides the team: each group of threads
 * (outer member) takes a row of its own. Returns the loop over these rows, cut to one iteration
 * for each group. -1: the team is not divided. */
int nest_divide(Lower *lw, LoopNest *nest);
/* Opens loop `at` over rows that outer members take; returns how many loops that opened. */
int nest_open_rows(Lower *lw, const LoopNest *nest, int at, Affine *step);
/* Opens a loop that runs once if `at` is below `end`, and counts it in *loops. Returns `at` in a form that
 * shows the bound. */
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
/* Lists the loads of a nest before its final code is emitted. Statements emitted between
 * nest_probe and nest_probe_end are taken back; each load among these statements is listed once.
 * A load is left out if its place is not a sum as in NestLoad. */
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
/* How a nest is cut if reuse is not considered: into squares, or by its first n loops. In the
 * second case, the loop of which a part takes several iterations is one of the loops up to
 * `last`, and moves to position `last`. */
typedef struct {
	int last, n;
	int64_t least;          /* least iterations of that loop in a part */
	const LanesLoop *lanes; /* as for nest_parallel */
	const Squares *squares;
} Cutting;
Reuse nest_reuse(const Lower *lw, const LoopNest *nest, const NestProbe *p, const Cutting *c);
/* Like nest_parallel, for a nest with reuse. The loop over a part's iterations is placed before
 * loop `within`, which is the first loop after the n, or the loop of the lanes. */
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
/* Called before the kernel's loops. squares_want notes the arrays that a kind of square needs; squares_begin
 * declares the team and the arrays for all kinds noted. */
void squares_want(Lower *lw, const Squares *s);
void squares_begin(Lower *lw);
/* Emits square `number` as a whole. store: stores the results for element `flat`. */
typedef void StoreElement(Lower *lw, Affine flat, const void *ctx);
void lower_square(Lower *lw, const LoopNest *nest, const Squares *s, Affine number,
                  StoreElement *store, const void *ctx);

/* ---- elementwise.c, reduce.c: lower a function without reductions, and one with reductions */
void lower_elementwise(Lower *lw, const Spaces *spaces);
void lower_reductions(Lower *lw, const Spaces *spaces);

/* kernel_name.c: the name of the function's kernel, or of its serving kernel. */
const char *lower_kernel_name(Arena *arena, const Function *f, Phase phase, bool before,
                              int number);

/* ---- kernel.c: a function's kernel */
/* A fused function to be lowered to one kernel, or to two: the serving kernel then leaves `scratch` in
 * memory for the other. */
typedef struct {
	Module *m;
	const Node *call;
	const Function *f;
	const Target *target;
	int64_t cores;
	Diag *diag;
	Arena *arena;
	const Strategy *strategy;   /* NULL: no opaque node */
	Type scratch;               /* NULL: one kernel */
	const LibraryCall *library; /* for an epilogue; NULL: the strategy decides */
} Lowering;
/* The strategy that emits the function's kernel. If several opaque nodes share a kernel, this is
 * the strategy that put them together. NULL: no strategy; the kernel has plain loops over
 * elements, or is written in parts. */
const Strategy *lower_strategy(const Target *t, const Function *f, Arena *arena);
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
/* A kernel of the module that equals k apart from the name. NULL: no such kernel; the caller adds k to the
 * module next. */
Kernel *sharing_find(const Module *m, Sharing *sh, const Kernel *k);
/* Inserts a launch of k before the call, with the call's phase and location. */
Node *lower_insert_launch(Node *call, Kernel *k, int n_operands, Value *const *operands,
                          int n_results, const Type *types);

/* ---- reader.c */
/* Makes the product's kernel a serving kernel for `server`, which is the kernel of the reader of e. The
 * reader's launch stands before e's call. */
void lower_serve_reader(Module *m, Sharing *sh, const Epilogue *e, const Kernel *server);

/* ---- element.c, parts.c: functions that ops call through LowerCalls (ir/loop/lower.c) */
LoopValue kernel_element(Lower *lw, const Value *v, const Index *at);
LoopValue kernel_element_inside(Lower *lw, const Value *v, const Index *at, LoopValue inside);
void kernel_open_parts(Lower *lw, const Node *n, int axes, bool apart);
void kernel_close_parts(Lower *lw);
void kernel_part(Lower *lw, const Node *n, Type shape, PartElement element, PartPlace place,
                 const void *ctx);

#endif

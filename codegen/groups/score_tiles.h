/* Private to groups: kernels that compute scores tile by tile. Such a kernel has products of two
 * matrices whose result has the scores' shape, elementwise nodes over scores, and products of
 * scores with a matrix. Example: in attention, q k gives scores, and weights v consumes them. No
 * score leaves the kernel: it multiplies a block of queries with a block of keys, does the
 * elementwise nodes on this tile, and adds the tile's products to its results. */
#ifndef GRADC_CODEGEN_GROUPS_SCORE_TILES_H
#define GRADC_CODEGEN_GROUPS_SCORE_TILES_H

#include "codegen/kernels/tiles.h"
#include "codegen/lower/lower.h"

/* A matrix whose rows are queries or keys, such as q: an operand of a product. */
typedef struct {
	Value *value;
	int score_axis[MAX_RANK]; /* by axis of value: axis of the scores; -1: the width */
	int64_t width;
	bool has_keys; /* do its rows belong to keys? */
} ScoreMatrix;

/* A product whose result has the scores' shape. */
typedef struct {
	const Node *dot;
	ScoreMatrix queries, keys;
} ScoreProduct;

/* A result of the kernel, and the value that it is, perhaps reshaped and transposed. */
typedef struct {
	Value *result, *inner;
	int score_axis[MAX_RANK]; /* by axis of inner: axis of the scores; -1: the width */
} ScoreResult;

/* A product of a value of the scores' shape with a matrix. */
typedef struct {
	const Node *dot;
	Value *tile;        /* the value of the scores' shape */
	ScoreMatrix matrix; /* rows are keys: the result has rows of queries, and vice versa */
	ScoreResult to;     /* the product */
	int64_t width;
} ScoreConsumer;

/* A sum of a value of the scores' shape over some axes: the gradient of what was added to the
 * scores, or multiplied with them. A reshape may split axes first: of 16 keys as 4 rows and 4 columns,
 * perhaps only the rows are summed. */
typedef struct {
	Value *tile;
	const Node *reduce; /* NULL: nothing is summed */
	ScoreResult to;
	/* by axis of the scores. summed: some factor of the axis is summed; kept: some factor of it
	 * is an axis of the result */
	bool summed[MAX_RANK], kept[MAX_RANK];
} ScoreSum;

/* The keys that each query sees: logits of keys outside of [begin, end) are -inf. A block of keys
 * that no query of a block sees is left out. */
typedef struct {
	const Node *select; /* puts -inf outside of the range; NULL: each query sees all keys */
	const Value *begin, *end; /* of each row: the scores' axes without keys */
} ScoreRange;
ScoreRange score_range(const Function *f, Type scores);

/* Describes a product. False: the product has another form, such as a width of several axes. */
bool score_product(const Node *dot, Type scores, ScoreProduct *out);
/* result: a result of the function; tile must be operand 0 of the product behind it. */
bool score_consumer(Value *result, Type scores, ScoreConsumer *out);
bool score_sum(Value *result, Type scores, ScoreSum *out);
bool score_matrix_equal(const ScoreMatrix *a, const ScoreMatrix *b);

/* The value that v is, rounded to a float of fewer bits; or v. */
Value *score_unrounded(Value *v);
/* The value whose elements reshapes and transposes move to give v. */
Value *score_behind_moves(Value *v);

/* By value id of f: can an element of the value be computed from f's parameters, by elementwise nodes, views
 * and indices, and from the same element of the given values, by elementwise nodes? */
bool *score_computable(Arena *arena, const Function *f, int n, const Value *const *given);
bool score_product_computable(const bool *computable, const ScoreProduct *p);

/* ---- emitting */
/* Tells the emitter that the element of the product `dot` at this index is x. If the product has 16 bits and is only multiplied by
 * numbers and then widened, as scores are, the emitter gets the widened element instead, so that nothing is rounded on the way. */
void score_give(Lower *lw, const Node *dot, const Index *at, LoopValue x);
static inline int64_t
score_least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}
/* A block of a matrix in an array of the kernel: element (i, j) lies at i * row + j * column. */
typedef struct {
	int array;
	int64_t row, column;
} TileView;
typedef struct {
	Lower *lw;
	Type scores;
	DType type; /* of all arrays */
	int lanes;
	int rows;                    /* of a block of sums in registers */
	int sums[MOST_PRODUCT_ROWS]; /* arrays that the kernel's compiler keeps in registers */
	/* the index into the scores, by axis: loop variables */
	Affine at[MAX_RANK];
} ScoreTiles;
ScoreTiles score_tiles(Lower *lw, Type scores, DType type);
int64_t score_padded(const ScoreTiles *t, int64_t n); /* n in whole vectors */
Index score_index(const ScoreTiles *t);
/* Copies rows first, first + 1, ... of m (n rows along axis `axis` of the scores) to an array:
 * [n, width], or [width, n] if `across`. The last axis is padded with zeros to whole vectors. */
TileView score_copy(ScoreTiles *t, const ScoreMatrix *m, int axis, Affine first, int64_t n,
                    int array, bool across);
/* c = a b, or c + a b if `adds`, or c * scale[row] + a b if scale is an array, not -1. c has m
 * rows and n columns, in whole vectors. */
void score_multiply(ScoreTiles *t, TileView c, bool adds, int scale, TileView a, TileView b,
                    int64_t m, int64_t n, int64_t k);
/* The first key and the end of the keys that some query of a block sees. Queries are numbers first,
 * first + 1, ... along axis `axis` of the scores; n of them. */
typedef struct {
	LoopValue begin, end; /* s64 */
} KeysSeen;
KeysSeen score_keys_seen(ScoreTiles *t, const ScoreRange *range, int axis, Affine first, int64_t n);
/* For code that goes through no block outside of the range: tells the emitter that this score lies inside.
 * In such a block, the mask itself gives weight 0 to the keys outside of a query's range. */
void score_inside(ScoreTiles *t, const ScoreRange *range, const Index *at);
/* Place of the element of a result that t->at tells; w: its number along the width. */
Affine score_place(ScoreTiles *t, const ScoreResult *r, Affine w);
/* The element of m in the row that t->at tells, in t->type. */
LoopValue score_element(ScoreTiles *t, const ScoreMatrix *m, Affine w);
/* Place of the sum to which the scores' element t->at belongs. */
Affine score_sum_place(ScoreTiles *t, const ScoreSum *s);

#endif

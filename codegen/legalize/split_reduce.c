/* Splits reductions that have few results over many elements and would therefore run in few
 * parallel parts. The operand is cut into chunks; each chunk gives a partial result, and the
 * partial results are added in order. The split fixes the order of additions for every target.
 *
 *	f32[16384,768] -> f32[768]   =   f32[32,512,768] -> f32[32,768] -> f32[768]
 *
 * If no suitable number divides an axis, the remainder becomes a second, short reduction. */
#include "codegen/fuse/fuse.h"
#include "codegen/legalize/rewrites.h"

#include <string.h>

/* Not tuned, because they fix the order of additions for every target. A tensor of LONG_SUM
 * elements or more that is reduced to a single number is cut into blocks of BLOCK elements and a
 * remainder. Ranks divide states at multiples of the same size, so a norm has the same additions
 * for any number of ranks. */
enum { BLOCK = UNIT_BLOCK, LONG_SUM = 1 << 16 };
/* the most elementwise nodes that may lie between a row's result and the node that reads the row
 * again */
enum { DEPTH = 12 };
/* a second reduction of that many chunks of the least size is cut, too */
enum { MANY_CHUNKS = 16 };
/* A kernel that reduces rows and sums their columns, too, has a part for each chunk: half as many as other kernels have, with half of
 * the threads that an H100 can hold, which reach its memory's rate. A chunk has 16 rows or more: two for each of a team's 8 warps. */
enum { PARTS_OF_ROWS = 2, LEAST_ROWS = 16 };

/* The least divisor d of n with wanted <= d < 2 * wanted; 0: there is no such divisor. */
static int64_t
divisor_from(int64_t n, int64_t wanted)
{
	for (int64_t d = wanted; d < 2 * wanted && d < n; d++)
		if (n % d == 0)
			return d;
	return 0;
}

/* How a reduction is cut. A reduced axis becomes two axes; the partial results keep the first one. */
typedef struct {
	Ints shape; /* of the operand after the cut */
	/* axes reduced first; axes of the partial results that are reduced second */
	Ints inner, outer;
	int64_t chunks;
	int whole; /* an axis without a divisor near the wanted number; -1: no such axis */
} ReduceCut;

/* Cuts reduced axes from the outermost on, until there are enough chunks. */
static ReduceCut
cut_axes(Type x, const Ints *axes, int64_t wanted)
{
	ReduceCut cut = {.chunks = 1, .whole = -1};
	int kept = 0; /* axes of the partial results so far */

	for (int i = 0; i < x->rank; i++) {
		int64_t extent = x->dims[i], missing = (wanted + cut.chunks - 1) / cut.chunks;
		bool reduced = ints_has(axes, i);
		int64_t chunks = !reduced || missing <= 1 ? 1
		                 : extent < 2 * missing   ? extent
		                                          : divisor_from(extent, missing);
		if (chunks == 0 && cut.whole < 0)
			cut.whole = i;
		if (chunks > 1 && cut.shape.n + x->rank - i < MAX_RANK) {
			cut.chunks *= chunks;
			cut.shape.at[cut.shape.n++] = chunks;
			cut.outer.at[cut.outer.n++] = kept++;
			extent /= chunks;
			if (extent == 1)
				continue;
		}
		if (reduced)
			cut.inner.at[cut.inner.n++] = cut.shape.n;
		else
			kept++;
		cut.shape.at[cut.shape.n++] = extent;
	}
	return cut;
}

/* Like cut_axes, but neighbouring reduced axes are first merged to one. Example: neither 8 nor
 * 197 can be cut into about 128 chunks, but the merged axis of 1576 elements can be cut into 197
 * chunks. */
static ReduceCut
cut_merged_axes(Module *m, Type x, const Ints *axes, int64_t wanted)
{
	int64_t dims[MAX_RANK];
	Ints reduced = {0};
	int rank = 0;

	for (int i = 0; i < x->rank; i++) {
		bool is = ints_has(axes, i);
		if (is && i > 0 && ints_has(axes, i - 1)) {
			dims[rank - 1] *= x->dims[i];
			continue;
		}
		if (is)
			reduced.at[reduced.n++] = rank;
		dims[rank++] = x->dims[i];
	}
	return cut_axes(type_new(m, x->dtype, rank, dims), &reduced, wanted);
}

static void
replace(Builder *b, Node *n, Value *result)
{
	Value *old = node_result(n, 0);

	value_replace_uses(old, b_reshape(b, result, ints_of_type(old->type)));
	node_erase(n);
}

/* Replaces n by two reductions. Returns the second one. Partial results are not rounded to fewer bits than f32
 * before they are added. */
static Node *
cut_reduce(Node *n, const ReduceCut *cut)
{
	Builder b = builder_before(n);
	Value *x = node_operand(n, 0);
	ReduceKind kind = ((const ReduceAttr *)n->attr)->kind;
	DType dtype = x->type->dtype, wide = float_format(dtype) ? F32 : dtype;

	Value *chunks = b_cast(&b, b_reshape(&b, x, cut->shape), wide);
	Value *partial = b_reduce(&b, kind, chunks, cut->inner);
	/* A barrier keeps the partial results in memory, because each rank computes only some of
	 * them. */
	if (n->function->role == ROLE_UPDATE || n->function->role == ROLE_REFRESH)
		partial = b_unary(&b, OP_barrier, partial);
	Value *sum = b_reduce(&b, kind, partial, cut->outer);
	replace(&b, n, b_cast(&b, sum, dtype));
	return sum->node;
}

/* Replaces n by two reductions: one over the longest slice whose length is a multiple of
 * `multiple`, and one over the short rest. Returns the first one. */
static Node *
part_from_rest(Node *n, int axis, int64_t multiple)
{
	Builder b = builder_before(n);
	Value *x = node_operand(n, 0);
	const ReduceAttr *a = n->attr;
	DType dtype = x->type->dtype, wide = float_format(dtype) ? F32 : dtype;
	int64_t extent = x->type->dims[axis], rest = extent % multiple;

	Value *wider = b_cast(&b, x, wide);
	Value *most = b_reduce(&b, a->kind, b_slice_axis(&b, wider, axis, 0, extent - rest),
	                       a->axes);
	Value *last = b_reduce(&b, a->kind, b_slice_axis(&b, wider, axis, extent - rest, extent),
	                       a->axes);
	Node *first = most->node;
	replace(&b, n, b_cast(&b, b_binary(&b, reduce_pair[a->kind], most, last), dtype));
	return first;
}

/* Length of the blocks if n elements are reduced to a single number; 0: they are not cut. Fewer
 * than LONG_SUM elements are cut into equal blocks: the largest number of blocks up to 64 that
 * divides n. */
static int64_t
block_length(int64_t n)
{
	if (n <= BLOCK)
		return 0;
	if (n % BLOCK == 0 || n >= LONG_SUM)
		return BLOCK;
	for (int64_t blocks = 64; blocks > 1; blocks--)
		if (n % blocks == 0)
			return n / blocks;
	return 0;
}

/* Splits n, which reduces a whole tensor to a single number: the tensor is reshaped to one axis,
 * which is cut into blocks. */
static void
split_full(Node *n)
{
	Value *x = node_operand(n, 0);
	Ints all = {.n = 1, .at = {0}};
	int64_t block = block_length(x->type->n);

	if (block == 0)
		return;
	if (x->type->rank != 1 && x->type->n % block) {
		Builder b = builder_before(n);
		Value *flat = b_reshape(&b, x, (Ints){.n = 1, .at = {x->type->n}});
		Value *sum = b_reduce(&b, ((const ReduceAttr *)n->attr)->kind, flat, all);
		replace(&b, n, sum);
		n = sum->node;
	}
	if (x->type->n % block)
		n = part_from_rest(n, 0, block);
	int64_t blocks = x->type->n / block;
	cut_reduce(n, &(ReduceCut){.shape = {.n = 2, .at = {blocks, block}},
	                           .inner = {.n = 1, .at = {1}},
	                           .outer = {.n = 1, .at = {0}}});
}

/* Are the results broadcast, after some elementwise nodes, to as many elements as were reduced? Then one
 * kernel reads each row again while the row is in the cache. Example: statistics of batch norms. */
static bool
comes_back(Value *v, int64_t elements, int depth)
{
	for_each_use(v, u) {
		const Node *n = u->user;
		FuseClass c = op_row(n)->fuse;
		Value *y = n->n_results ? node_result(n, 0) : NULL;
		bool passes = y && depth > 0 && (c == FUSE_ELEMENTWISE || c == FUSE_VIEW) &&
		              y->type->n == v->type->n;
		if ((c == FUSE_VIEW && y->type->n == elements) ||
		    (passes && comes_back(y, elements, depth - 1)))
			return true;
	}
	return false;
}

/* The operand types and axes of reductions that are not split because their rows are read again. Other
 * reductions of the same form are not split either, so that they can join the same kernel. Example: the
 * gradients of a batch norm's weight and bias. */
typedef struct {
	Type x;
	Ints axes;
} Form;
typedef VEC(Form) Forms;

bool
reduce_is_by_column(const Node *n)
{
	const ReduceAttr *a = n->attr;

	return !ints_has(&a->axes, node_operand(n, 0)->type->rank - 1);
}

/* For a large operand, parts / 2 rows (two per core) are enough, because splitting would read the
 * operand from memory three times. */
int64_t
reduce_rows_enough(const Target *t, const Node *n, int64_t parts)
{
	return node_operand(n, 0)->type->n < t->tuning->reduce.much ? t->tuning->reduce.few_rows
	                                                            : parts / 2;
}

static bool
stays_whole(const Node *n, const Forms *forms)
{
	const ReduceAttr *a = n->attr;

	for (int i = 0; i < forms->n; i++)
		if (forms->at[i].x == node_operand(n, 0)->type &&
		    forms->at[i].axes.n == a->axes.n &&
		    memcmp(forms->at[i].axes.at, a->axes.at,
		           sizeof(*a->axes.at) * (size_t)a->axes.n) == 0)
			return true;
	return false;
}

/* Tensors of which rows are reduced. */
typedef struct {
	int64_t elements, width;
} RowsReduced;
typedef struct {
	Forms forms;
	VEC(RowsReduced) rows;
} Reductions;

/* Notes the tensor whose rows n reduces. */
static void
add_rows(Reductions *r, const Node *n, Arena *scratch)
{
	const ReduceAttr *a = n->attr;
	Type t = op_row(n)->fuse == FUSE_REDUCE ? node_operand(n, 0)->type : NULL;

	if (!t || a->axes.n != 1 || a->axes.at[0] != t->rank - 1)
		return;
	for (int i = 0; i < r->rows.n; i++)
		if (r->rows.at[i].elements == t->n && r->rows.at[i].width == t->dims[t->rank - 1])
			return;
	vec_push(scratch, &r->rows, ((RowsReduced){t->n, t->dims[t->rank - 1]}));
}

/* Might one kernel sum n's columns and reduce the rows of its tensor? Then there are also enough rows for it (plan_columns.c). */
static bool
is_beside_rows(const Node *n, const Reductions *r, const Target *t, int64_t parts)
{
	Type x = node_operand(n, 0)->type, y = node_result(n, 0)->type;

	if (t->kind != TARGET_TEAMS || !reduce_is_by_column(n) || y->n == 0)
		return false;
	if (!columns_have_blocks(t, x->n, x->n / y->n / LEAST_ROWS, parts))
		return false;
	for (int i = 0; i < r->rows.n; i++)
		if (r->rows.at[i].elements == x->n && r->rows.at[i].width == y->n)
			return true;
	return false;
}

static void
split(Node *n, const Reductions *r, const Target *t, int64_t parts)
{
	const ReduceTiles *tiles = &t->tuning->reduce;
	Type x = node_operand(n, 0)->type, y = node_result(n, 0)->type;
	const ReduceAttr *a = n->attr;
	bool beside = is_beside_rows(n, r, t, parts);
	int64_t own = beside ? PARTS_OF_ROWS
	              : reduce_is_by_column(n)
	                      ? (y->n + tiles->chunk_columns - 1) / tiles->chunk_columns
	                      : y->n;

	if (y->n == 1) {
		split_full(n);
		return;
	}
	if (x->n < t->tuning->grains.large / 4 || own >= parts || stays_whole(n, &r->forms))
		return;
	int64_t least = beside ? LEAST_ROWS : tiles->chunk_rows;
	int64_t wanted = (parts + own - 1) / own, most = x->n / y->n / least;
	wanted = wanted < most ? wanted : most;
	ReduceCut cut = cut_axes(x, &a->axes, wanted);
	if (2 * cut.chunks < wanted && cut.whole >= 0) {
		ReduceCut merged = cut_merged_axes(n->function->module, x, &a->axes, wanted);
		cut = merged.chunks > cut.chunks ? merged : cut;
	}
	if (2 * cut.chunks < wanted && cut.whole >= 0) {
		int64_t missing = (wanted + cut.chunks - 1) / cut.chunks;
		n = part_from_rest(n, cut.whole, missing);
		cut = cut_axes(node_operand(n, 0)->type, &a->axes, wanted);
	}
	if (cut.chunks <= 1 || cut.inner.n == 0)
		return;
	n = cut_reduce(n, &cut);
	/* So many partial results that few teams take longer to add them up than to start once more. */
	if (t->kind == TARGET_TEAMS && cut.chunks >= MANY_CHUNKS * tiles->chunk_rows)
		split(n, r, t, parts);
}

void
reduces_split(Function *f, const Target *t, int64_t parts, Arena *scratch)
{
	Reductions r = {0};

	for_each_node(f, n) {
		add_rows(&r, n, scratch);
		if (op_row(n)->fuse != FUSE_REDUCE || reduce_is_by_column(n) ||
		    node_result(n, 0)->type->n < reduce_rows_enough(t, n, parts) ||
		    stays_whole(n, &r.forms) ||
		    !comes_back(node_result(n, 0), node_operand(n, 0)->type->n, DEPTH))
			continue;
		Form form = {node_operand(n, 0)->type, ((const ReduceAttr *)n->attr)->axes};
		vec_push(scratch, &r.forms, form);
	}
	for_each_node(f, n)
		if (op_row(n)->fuse == FUSE_REDUCE)
			split(n, &r, t, parts);
}

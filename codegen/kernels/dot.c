/* dot: blocked matrix products, or a library's product. */
#include "codegen/kernels/library.h"
#include "codegen/kernels/product/product.h"
#include "ir/ops/ops.h"

/* ---- lowering */
static void
put_group(LoopBuilder *lb, Type group, const Ints *axes, Affine flat, Index *at)
{
	Index part;

	index_split(lb, group, flat, &part);
	for (int i = 0; i < axes->n; i++)
		at->at[axes->at[i]] = part.at[i];
}

static LoopValue
dot_x(Lower *lw, const Product *p, Affine batch, Affine m, Affine k)
{
	const Node *n = p->node;
	const DotAttr *a = n->attr;
	Value *x = node_operand(n, 0);
	DotShape s = dot_shape(lw->m, a, x->type, node_operand(n, 1)->type);
	Index at = {.rank = x->type->rank};

	put_group(lw->lb, s.batch, &a->x_batch, batch, &at);
	put_group(lw->lb, s.rows, &s.x_free, m, &at);
	put_group(lw->lb, s.inner, &a->x_contract, k, &at);
	return lower_element(lw, x, &at);
}

static LoopValue
dot_y(Lower *lw, const Product *p, Affine batch, Affine k, Affine col)
{
	const Node *n = p->node;
	const DotAttr *a = n->attr;
	Value *y = node_operand(n, 1);
	DotShape s = dot_shape(lw->m, a, node_operand(n, 0)->type, y->type);
	Index at = {.rank = y->type->rank};

	put_group(lw->lb, s.batch, &a->y_batch, batch, &at);
	put_group(lw->lb, s.inner, &a->y_contract, k, &at);
	put_group(lw->lb, s.columns, &s.y_free, col, &at);
	return lower_element(lw, y, &at);
}

static Affine
strided_place(LoopBuilder *lb, Type group, const int64_t *strides, Affine flat)
{
	Affine place = affine_constant(0);
	Index at;

	index_split(lb, group, flat, &at);
	for (int i = 0; i < group->rank; i++)
		place = affine_add_scaled(lb, place, at.at[i], strides[i]);
	return place;
}

static Affine
dot_z(Lower *lw, const Product *p, Affine batch, Affine m, Affine col)
{
	LoopBuilder *lb = lw->lb;
	const Node *n = p->node;
	const DotAttr *a = n->attr;
	DotShape s = dot_shape(lw->m, a, node_operand(n, 0)->type, node_operand(n, 1)->type);
	int64_t strides[MAX_RANK];

	if (a->order.n) {
		const int64_t *rows = strides + s.batch->rank, *columns = rows + s.rows->rank;
		dot_result_strides(a, node_result(n, 0)->type, strides);
		Affine place = strided_place(lb, s.batch, strides, batch);
		place = affine_add(lb, place, strided_place(lb, s.rows, rows, m));
		return affine_add(lb, place, strided_place(lb, s.columns, columns, col));
	}
	return affine_add(lb, affine_scale(lb, batch, s.rows->n * s.columns->n),
	                  affine_add(lb, affine_scale(lb, m, s.columns->n), col));
}

static int
dot_products(Lower *lw, const Node *n, Product *out)
{
	const DotAttr *a = n->attr;
	Type x = node_operand(n, 0)->type, y = node_operand(n, 1)->type;
	DotShape s = dot_shape(lw->m, a, x, y);

	*out = (Product){.node = n,
	                 .type = accumulation_type(n),
	                 .batch = s.batch->n,
	                 .m = s.rows->n,
	                 .n = ints_of_type(s.columns),
	                 .k = ints_of_type(s.inner),
	                 .a_along_k = x->rank && ints_has(&a->x_contract, x->rank - 1),
	                 .b_along_k = y->rank && ints_has(&a->y_contract, y->rank - 1),
	                 .a = dot_x,
	                 .b = dot_y,
	                 .c = dot_z};
	return 1;
}

/* READ_STRIDED if each element is multiplied with many elements of the other operand: copying an
 * operand without fixed strides then pays. Batch axes may have any strides, because the product's
 * inner loops do not step along them. */
static Reading
dot_reads(const Target *target, const Node *n, int i, Ints *axes)
{
	const LibraryLimits *l = &target->tuning->library;
	const DotAttr *a = n->attr;
	Type t = node_operand(n, i)->type;
	bool often = op_row(n)->flops(n) >= l->least_flops &&
	             op_row(n)->flops(n) / (2 * t->n) >= l->least_reads;

	*axes = free_axes(t->rank, i ? &a->y_batch : &a->x_batch, &(Ints){0});
	return often ? READ_STRIDED : READ_ONCE;
}

/* ---- as a library's product. A library's matrix has one stride for its rows and one for its
 * columns. So neighbouring axes of a tensor are joined to runs of axes, if all strides allow it. */
typedef struct {
	int n;
	/* strides in the two tensors that have these axes */
	int64_t size[MAX_RANK], strides[2][MAX_RANK];
	/* strides in the result, for batch axes only */
	int64_t result[MAX_RANK];
} AxisRuns;

static void
add_axis(AxisRuns *r, int64_t size, int64_t a, int64_t b, int64_t c)
{
	int last = r->n - 1;

	if (size == 1)
		return;
	bool joins = r->n && r->strides[0][last] == a * size && r->strides[1][last] == b * size &&
	             r->result[last] == c * size;
	int at = joins ? last : r->n++;
	r->size[at] = joins ? r->size[at] * size : size;
	r->strides[0][at] = a;
	r->strides[1][at] = b;
	r->result[at] = c;
}

/* Runs of axes that two tensors share: x and y, or one of them and the result z. */
static AxisRuns
runs_of(Type t, const Ints *axes, const int64_t *a, const int64_t *b)
{
	AxisRuns r = {0};

	for (int i = 0; i < axes->n; i++)
		add_axis(&r, t->dims[axes->at[i]], a[axes->at[i]], b[i], 0);
	return r;
}

static AxisRuns
batch_runs(Type t, const DotAttr *a, const int64_t *x, const int64_t *y, const int64_t *z)
{
	AxisRuns r = {0};

	for (int i = 0; i < a->x_batch.n; i++)
		add_axis(&r, t->dims[a->x_batch.at[i]], x[a->x_batch.at[i]], y[a->y_batch.at[i]],
		         z[i]);
	return r;
}

/* Does r have exactly one run, and has this run enough elements for the library? */
static bool
is_one_run(const LibraryLimits *l, const AxisRuns *r)
{
	return r->n == 1 && r->size[0] >= l->least_size;
}

static bool
dot_pays(const LibraryLimits *l, const Node *n, const AxisRuns *batch, const AxisRuns *rows,
         const AxisRuns *inner)
{
	DType d = node_operand(n, 0)->type->dtype;

	if (!library_takes_dtypes(l, n) || op_row(n)->flops(n) < l->least_flops)
		return false;
	return l->transposed_batches || d == BF16 || batch->n == 0 || inner->strides[0][0] == 1 ||
	       rows->strides[0][0] != 1;
}

/* Sets the sizes and strides of library operand o: first the batch runs, then rows, then columns. */
static void
set_axes(LibraryOperand *o, const AxisRuns *batch, const int64_t *batch_strides, int64_t rows,
         int64_t columns, const int64_t strides[2])
{
	for (int i = 0; i < batch->n; i++) {
		o->dims[i] = batch->size[i];
		o->strides[i] = batch_strides[i];
	}
	o->dims[batch->n] = rows;
	o->dims[batch->n + 1] = columns;
	o->strides[batch->n] = strides[0];
	o->strides[batch->n + 1] = strides[1];
}

static bool
dot_library(Lower *lw, const Node *n, LibraryCall *out)
{
	const LibraryLimits *l = &lw->target->tuning->library;
	const DotAttr *a = n->attr;
	Value *x = node_operand(n, 0), *y = node_operand(n, 1);
	DotShape s = dot_shape(lw->m, a, x->type, y->type);
	int64_t z[MAX_RANK], yk[MAX_RANK];
	Strided sx, sy;

	if (!lower_strided(lw, x, &sx) || !lower_strided(lw, y, &sy))
		return false;
	dot_result_strides(a, node_result(n, 0)->type, z);
	for (int i = 0; i < a->y_contract.n; i++)
		yk[i] = sy.strides[a->y_contract.at[i]];
	AxisRuns batch = batch_runs(x->type, a, sx.strides, sy.strides, z);
	AxisRuns rows = runs_of(x->type, &s.x_free, sx.strides, z + a->x_batch.n);
	AxisRuns columns = runs_of(y->type, &s.y_free, sy.strides, z + a->x_batch.n + s.x_free.n);
	AxisRuns inner = runs_of(x->type, &a->x_contract, sx.strides, yk);
	if (batch.n > MAX_LIBRARY_BATCH_AXES || !is_one_run(l, &rows) || !is_one_run(l, &columns) ||
	    !is_one_run(l, &inner) || !dot_pays(l, n, &batch, &rows, &inner))
		return false;
	if ((rows.strides[0][0] != 1 && inner.strides[0][0] != 1) ||
	    (columns.strides[0][0] != 1 && inner.strides[1][0] != 1))
		/* neither rows nor columns are contiguous, which is slow in any library */
		return false;
	LibraryOperand *o = out->operands;
	int rank = batch.n + 2;
	library_call_begin(out, LIBRARY_DOT);
	o[LIBRARY_FIRST] = library_operand(x->type->dtype, rank, sx.buffer, sx.offset);
	o[LIBRARY_SECOND] = library_operand(y->type->dtype, rank, sy.buffer, sy.offset);
	o[LIBRARY_RESULT] = library_result(lw, rank);
	set_axes(&o[LIBRARY_FIRST], &batch, batch.strides[0], rows.size[0], inner.size[0],
	         (int64_t[]){rows.strides[0][0], inner.strides[0][0]});
	set_axes(&o[LIBRARY_SECOND], &batch, batch.strides[1], inner.size[0], columns.size[0],
	         (int64_t[]){inner.strides[1][0], columns.strides[0][0]});
	set_axes(&o[LIBRARY_RESULT], &batch, batch.result, rows.size[0], columns.size[0],
	         (int64_t[]){rows.strides[1][0], columns.strides[1][0]});
	return library_put_added(lw, n, out);
}

/* False if rows of the result get padding for a library (codegen/legalize/pitch.c), because the bias has none. The kernels that
 * read the product then add the bias. */
static bool
dot_takes_bias(const Target *t, const Node *n)
{
	const LibraryLimits *l = &t->tuning->library;
	Type z = node_result(n, 0)->type, y = node_operand(n, 1)->type;
	const DotAttr *a = n->attr;
	int64_t columns = y->n;

	for (int i = 0; i < a->y_batch.n; i++)
		columns /= y->dims[a->y_batch.at[i]];
	for (int i = 0; i < a->y_contract.n; i++)
		columns /= y->dims[a->y_contract.at[i]];
	return !library_row_is_odd(l, z->dtype, columns) || type_bytes(z) < l->least_pitched ||
	       !library_takes_dtypes(l, n) || op_row(n)->flops(n) < l->least_flops;
}

const Strategy strategy_dot = {.op = OP_dot,
                               .kinds = ON(CPU),
                               .doc = "blocks of packed panels",
                               BY_PRODUCTS,
                               .products = dot_products,
                               .library = dot_library,
                               .adds = true,
                               .reads = dot_reads};

const Strategy strategy_dot_team = {.op = OP_dot,
                                    .kinds = ON(TEAMS),
                                    .doc = "each team computes a block, or each member a column",
                                    BY_TEAM_PRODUCTS,
                                    .products = dot_products,
                                    .library = dot_library,
                                    .takes_bias = dot_takes_bias,
                                    .reads = dot_reads};

/* Emits the blocked matrix product c = a b for CPUs. For each block of columns and of k (the axis
 * that is summed over), b is packed (copied in reading order) into a panel: by the part itself,
 * or earlier by a serving kernel. Then blocks of sums, held in registers, are computed from the
 * panel. Every element is summed in the order of k, whatever the sizes of blocks. If k is split,
 * the sums of the splits are added in order. Scheme: Goto and van de Geijn, "Anatomy of
 * High-Performance Matrix Multiplication", 2008.
 *
 * Batches, splits of k, chunks of rows and panels of columns run in parallel. */
#include "codegen/kernels/product/emit.h"
#include "codegen/lower/lower.h"

/* ---- the parts */
enum { BATCH, SPLIT, NEXT_SPLIT, OUTER, INNER, INNERMOST, N_PART_AXES };

/* The shape of the parts: [batch, split, split of k's next axis, chunk, repeat, panel]; with panels_outer
 * the last three are [repeat, panel, chunk]. */
static Type
part_shape(const Lower *lw, const Product *p, const ProductCut *c)
{
	int64_t dims[N_PART_AXES] = {0};
	int panel = c->panels_outer ? OUTER : INNER;

	if (tiling_size(&c->columns) && p->batch && p->m) {
		dims[BATCH] = p->batch;
		dims[SPLIT] = c->splits / c->next_splits;
		dims[NEXT_SPLIT] = c->next_splits;
		dims[c->panels_outer ? INNERMOST : OUTER] = c->chunks;
		dims[panel] = repeats(&c->columns);
		dims[panel + 1] = blocks_along(&c->columns);
	}
	return type_new(lw->m, S64, N_PART_AXES, dims);
}

static void
part_at(const ProductEmit *e, const Index *at)
{
	int panel = e->cut->panels_outer ? OUTER : INNER;
	LoopBuilder *lb = e->lw->lb;
	Affine split = affine_add(lb, affine_scale(lb, at->at[SPLIT], e->cut->next_splits),
	                          at->at[NEXT_SPLIT]);

	product_part(e,
	             (Panel){.batch = at->at[BATCH],
	                     .split = split,
	                     .repeat = at->at[panel],
	                     .number = at->at[panel + 1]},
	             at->at[e->cut->panels_outer ? INNERMOST : OUTER]);
}

static void
parallel_parts(Lower *lw, const ProductEmit *list, int n)
{
	Type shapes[MAX_PRODUCTS];
	int64_t all = 0;

	for (int i = 0; i < n; i++)
		all += (shapes[i] = part_shape(lw, list[i].p, list[i].cut))->n;
	PartSpaces parts = part_spaces(lw->lb, all);
	for (int i = 0; i < n; i++) {
		if (shapes[i]->n == 0)
			continue;
		Index at = part_space(&parts, shapes[i]);
		part_at(&list[i], &at);
		part_space_end(&parts);
	}
	lb_end(lw->lb);
}

static int64_t
larger(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

/* Declares the arrays; all products of the kernel use the same arrays. */
static void
declare_arrays(ProductEmit *list, int n)
{
	LoopBuilder *lb = list->lw->lb;
	DType type = list->p->type;
	int64_t panel = 0, rows = 0, waiting = 0;

	for (int i = 0; i < n; i++) {
		const ProductCut *c = list[i].cut;
		int64_t depth = c->depth.count * c->depth.inside, columns = packed_columns(c);
		int64_t width = c->columns.count * c->columns.inside;
		int64_t strips = (width + columns - 1) / columns;
		if (!c->shared)
			panel = larger(panel, strips * columns * larger(depth, 1));
		if (c->pack_rows && !c->shared)
			rows = larger(rows, c->rows * depth);
		if (product_waits(list->lw, list[i].p, c))
			waiting = larger(waiting, waiting_elements(list[i].p, c));
	}
	int own_panel = panel ? lb_local(lb, type, panel) : -1;
	int own_rows = rows ? lb_local(lb, type, rows) : -1;
	int own_waiting = waiting ? lb_local(lb, type, waiting) : -1;
	for (int r = 0; r < list->cut->rows; r++)
		list->sums[r] = lb_local(lb, type, list->cut->strip);
	for (int i = 0; i < n; i++) {
		const ProductCut *c = list[i].cut;
		list[i].panel = c->shared ? lower_scratch(list->lw) : own_panel;
		list[i].rows = !c->pack_rows ? -1 : c->shared ? list[i].panel : own_rows;
		list[i].waiting = product_waits(list->lw, list[i].p, c) ? own_waiting : -1;
		for (int r = 0; r < c->rows; r++)
			list[i].sums[r] = list->sums[r];
	}
}

static void
multiply_all(Lower *lw, const Product *list, int n, int out)
{
	ProductCut *cuts = NEW_ARRAY(lw->lb->scratch, ProductCut, n);
	ProductEmit *emits = NEW_ARRAY(lw->lb->scratch, ProductEmit, n);

	for (int i = 0; i < n; i++) {
		cuts[i] = product_cut(lw, list, n, i);
		emits[i] = (ProductEmit){.lw = lw, .p = &list[i], .cut = &cuts[i], .out = out};
	}
	declare_arrays(emits, n);
	parallel_parts(lw, emits, n);
}

/* ---- the kernels of a node */
static int
products_of(Lower *lw, const Node *n, Product *list)
{
	return strategy_of(lw->target, n)->products(lw, n, list);
}

Type
products_scratch(Lower *lw, const Node *node)
{
	Product list[MAX_PRODUCTS];
	int n = products_of(lw, node, list);
	int64_t size;

	if (n > 1)
		return NULL;
	ProductCut c = product_cut(lw, list, n, 0);
	if (c.splits > 1)
		size = c.splits * node_result(list->node, 0)->type->n;
	else if (c.shared)
		size = shared_columns(list, &c) + shared_rows(list, &c);
	else
		return NULL;
	return type_new(lw->m, list->type, 1, &size);
}

void
products_prepare(Lower *lw, const Node *node)
{
	Product list[MAX_PRODUCTS];
	int n = products_of(lw, node, list);
	ProductCut c = product_cut(lw, list, n, 0);
	int scratch = lower_scratch(lw);

	if (c.splits > 1) {
		lw->lb->k->flops = op_row(list->node)->flops(list->node);
		multiply_all(lw, list, n, scratch);
	} else {
		pack_all(&(ProductEmit){
			.lw = lw, .p = list, .cut = &c, .panel = scratch, .rows = scratch});
	}
}

/* c = the sum over the splits, in order. The serving kernel's operation count has the operations
 * of the product; this kernel's count has only the additions. */
static void
add_splits(Lower *lw, const Product *p, const ProductCut *c)
{
	LoopBuilder *lb = lw->lb;
	const ProductTiles *t = lw->target->product;
	int64_t n = node_result(p->node, 0)->type->n, wanted = (n + lw->parts - 1) / lw->parts;
	int64_t block = wanted < t->least_block  ? t->least_block
	                : wanted > t->most_block ? t->most_block
	                                         : wanted;
	int out = lower_buffer(lw, lower_stored(lw)), sums = lb_local(lb, p->type, block);
	Affine number = affine_scalar(lb, lb_for(lb, LOOP_PARALLEL, (n + block - 1) / block));

	lb->k->flops += (c->splits - 1) * n - op_row(p->node)->flops(p->node);
	for (Pieces b = piece_of(lb, n, block, number); b.size; pieces_next(&b)) {
		Affine first = affine_scale(lb, b.number, block);
		Affine i = affine_scalar(lb, lb_for(lb, LOOP_VECTOR, b.size));
		lb_store(lb, sums, i, lb_load(lb, lower_scratch(lw), affine_add(lb, first, i)));
		lb_end(lb);
		Affine s = affine_scalar(lb, lb_for(lb, LOOP_PLAIN, c->splits - 1));
		i = affine_scalar(lb, lb_for(lb, LOOP_VECTOR, b.size));
		Affine from = affine_add(lb, affine_scale(lb, affine_plus(s, 1), n),
		                         affine_add(lb, first, i));
		LoopValue sum = lb_load(lb, sums, i), x = lb_load(lb, lower_scratch(lw), from);
		lb_store(lb, sums, i, lb_binary(lb, LOOP_add, sum, x));
		lb_end(lb);
		lb_end(lb);
		i = affine_scalar(lb, lb_for(lb, LOOP_VECTOR, b.size));
		Affine place = affine_add(lb, first, i);
		sum = result_of_sum(lb, p->node, lb_load(lb, sums, i));
		lb_store(lb, out, place, lower_stored_element(lw, p->node, place, sum));
		lb_end(lb);
	}
	lb_end(lb);
}

void
products_emit(Lower *lw, const Node *node)
{
	Product list[MAX_PRODUCTS];
	int n = products_of(lw, node, list);
	ProductCut c = product_cut(lw, list, n, 0);

	if (c.splits > 1)
		add_splits(lw, list, &c);
	else
		multiply_all(lw, list, n, lower_buffer(lw, lower_stored(lw)));
}

DType
accumulation_type(const Node *n)
{
	DType z = node_result(n, 0)->type->dtype;

	if (!dtype_is_float(z))
		return compute_type(z);
	for (int i = 0; i < 2; i++)
		if (node_operand(n, i)->type->dtype == F64)
			return F64;
	return compute_type(z);
}

LoopValue
result_of_sum(LoopBuilder *lb, const Node *n, LoopValue sum)
{
	DType z = node_result(n, 0)->type->dtype;

	return lb_type(lb, sum) == compute_type(z) ? sum : lb_cast(lb, z, sum);
}

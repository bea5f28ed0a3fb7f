/* Recognizes the relative shift of Transformer-XL and XLNet (Dai et al. 2019, arXiv:1901.02860, appendix B). A product of
 * queries with positions has a column for each distance. The shift moves row i by i columns, so that a column is a
 * key. Exporters write this as views. With 2 queries and 4 distances, and 2 keys:
 *
 *	x[2,4]      reshape [4,2]   slice from row 1   reshape [2,3]   slice to column 2
 *	a b c d     a b             c d                c d e           c d
 *	e f g h     c d             e f                f g h           f g
 *	            e f             g h
 *	            g h
 *
 * One node takes their place, which reads column 2 + j - i of row i. So its rows can be computed for some queries at a
 * time. */
#include "passes/idioms.h"

/* The views between x and v, with the numbers of an element on the way. The last two axes of x and v are rows and
 * columns. */
typedef struct {
	Value *x;
	int64_t rows, columns; /* of v */
	int64_t first; /* the flat place in a block of x's last two axes of v's element 0, 0 */
	int64_t width; /* how many places later the next row begins */
} Shift;

/* Does n slice only axis `axis`, in steps of 1? */
static bool
slices_axis(const Node *n, int axis)
{
	if (!n || n->op != OP_slice)
		return false;
	const SliceAttr *a = n->attr;
	Type x = node_operand(n, 0)->type;
	for (int i = 0; i < x->rank; i++)
		if (a->step.at[i] != 1 ||
		    (i != axis && (a->start.at[i] != 0 || a->stop.at[i] != x->dims[i])))
			return false;
	return true;
}

/* Do the last two axes of both types have axes of the same sizes in front? */
static bool
same_blocks(Type x, Type y)
{
	bool same = x->rank == y->rank && x->rank >= 2;

	for (int i = 0; same && i < x->rank - 2; i++)
		same = x->dims[i] == y->dims[i];
	return same;
}

static bool
is_reshape(const Node *n)
{
	return n && n->op == OP_reshape &&
	       same_blocks(node_operand(n, 0)->type, node_result(n, 0)->type);
}

/* Finds the four views; the last slice may be missing. */
static bool
find_views(const Value *v, Shift *s)
{
	int rank = v->type->rank;
	const Node *n = v->node;
	int64_t first = 0;

	if (rank < 2)
		return false;
	if (slices_axis(n, rank - 1)) {
		first = ((const SliceAttr *)n->attr)->start.at[rank - 1];
		n = node_operand(n, 0)->node;
	}
	if (!is_reshape(n) || !slices_axis(node_operand(n, 0)->node, rank - 2))
		return false;
	const Node *cut = node_operand(n, 0)->node, *begin = node_operand(cut, 0)->node;
	if (!is_reshape(begin))
		return false;
	*s = (Shift){.x = node_operand(begin, 0),
	             .rows = v->type->dims[rank - 2],
	             .columns = v->type->dims[rank - 1],
	             .first = first + ((const SliceAttr *)cut->attr)->start.at[rank - 2] *
	                                      node_result(cut, 0)->type->dims[rank - 1],
	             .width = node_result(n, 0)->type->dims[rank - 1]};
	return true;
}

/* Does every row of v read the same row of x? The columns of row i begin at first + i (width - extent). */
static bool
stays_in_row(const Shift *s, int64_t extent)
{
	int64_t last = s->first + (s->rows - 1) * (s->width - extent);
	int64_t low = s->first < last ? s->first : last, high = s->first < last ? last : s->first;

	return low >= 0 && high + s->columns <= extent;
}

bool
name_relative_shift(Value *v)
{
	int rank = v->type->rank;
	Shift s;

	if (!find_views(v, &s) || v->type->n == 0 || s.rows < 2)
		return false;
	int64_t extent = s.x->type->dims[rank - 1];
	if (s.x->type->dims[rank - 2] != s.rows || s.width == extent || !stays_in_row(&s, extent))
		return false;
	Builder b = {.m = v->function->module,
	             .f = v->function,
	             .before = v->node,
	             .loc = v->node->loc,
	             .phase = v->node->phase};
	Ints shape = ints_of_type(v->type), rows = {.n = 1, .at = {rank - 2}},
	     columns = {.n = 1, .at = {rank - 1}};
	Value *row = b_iota(&b, S64, (Ints){.n = 1, .at = {s.rows}}, 0);
	Value *column = b_iota(&b, S64, (Ints){.n = 1, .at = {s.columns}}, 0);
	row = b_binary(&b, OP_mul, row, b_number_like(&b, row, (double)(s.width - extent)));
	row = b_binary(&b, OP_add, row, b_number_like(&b, row, (double)s.first));
	Value *place = b_binary(&b, OP_add, b_broadcast(&b, row, shape, rows),
	                        b_broadcast(&b, column, shape, columns));
	Value *y = build(&b, OP_gather_elements, 2, (Value *[]){s.x, place}, &(AxisAttr){rank - 1});
	value_replace_uses(v, y);
	return true;
}

/* Writes gather, scatter, and both of elements, in ONNX. An index out of range gives 0 in gather and drops the update in
 * scatter. ONNX counts negative indices from the end, and accepts no other index out of range. */
#include "frontend/export/writer.h"

/* A bool per index: is the index in [0, extent)? NULL: all indices are constants in this range. */
static const char *
inside(GraphWriter *w, const Node *n, int operand, int64_t extent)
{
	const Tensor *t = value_constant(node_operand(n, operand));
	DType d = type_of(n, operand)->dtype;
	const char *i = writer_operand(w, n, operand);
	bool outside = !t;

	for (int64_t k = 0; t && k < t->type->n; k++)
		outside |= tensor_int(t, k) < 0 || tensor_int(t, k) >= extent;
	if (!outside)
		return NULL;
	return writer_binary(w, "And",
	                     writer_binary(w, "GreaterOrEqual", i, writer_number(w, d, 0)),
	                     writer_binary(w, "Less", i, writer_number(w, d, (double)extent)));
}

/* The indices in an operand of n; an index out of range is replaced by `instead`. */
static const char *
safe_indices(GraphWriter *w, const Node *n, int operand, const char *inside, int64_t instead)
{
	const char *i = writer_operand(w, n, operand);

	if (!inside)
		return i;
	return writer_where(w, inside, i,
	                    writer_number(w, type_of(n, operand)->dtype, (double)instead));
}

/* x where c is true, else 0. */
static const char *
or_zero(GraphWriter *w, const char *c, const char *x, DType d)
{
	if (d == BOOL)
		return writer_binary(w, "And", c, x);
	return writer_where(w, c, x, writer_number(w, d, 0));
}

static const char *
zeros(GraphWriter *w, DType d, Ints shape)
{
	return writer_binary(w, "Expand", writer_number(w, d, 0), writer_ints(w, shape));
}

static bool
write_gather(GraphWriter *w, const Node *n)
{
	int axis = (int)((const AxisAttr *)n->attr)->axis;
	const WrittenAttribute a[] = {{.name = "axis", .kind = WRITE_INT, .i = axis}, {0}};
	Type data = type_of(n, 0), indices = type_of(n, 1);
	Ints shape = ints_of_type(node_result(n, 0)->type);

	if (data->n == 0)
		return done(w, n, zeros(w, data->dtype, shape));
	const char *known = inside(w, n, 1, data->dims[axis]);
	const char *y = writer_node(
		w, "Gather", a, 2,
		(const char *[]){writer_operand(w, n, 0), safe_indices(w, n, 1, known, 0)});
	if (!known)
		return done(w, n, y);
	for (int i = 0; i < shape.n; i++)
		if (i < axis || i >= axis + indices->rank)
			shape.at[i] = 1;
	return done(w, n, or_zero(w, writer_reshape(w, known, shape), y, data->dtype));
}

/* The permutation that moves `axis` to the front; back: the inverse permutation. */
static Ints
axis_first(int rank, int axis, bool back)
{
	Ints order = {.n = rank};

	for (int i = 0; i < rank; i++) {
		int from = i == 0 ? axis : i <= axis ? i - 1 : i;
		order.at[back ? from : i] = back ? i : from;
	}
	return order;
}

/* The permutation [axes before] [indices] [axes after] -> [indices] [axes before] [axes after] */
static Ints
indices_first(int rank, int axis, int n)
{
	Ints order = {0};

	for (int i = axis; i < axis + n; i++)
		order.at[order.n++] = i;
	for (int i = 0; i < rank; i++)
		if (i < axis || i >= axis + n)
			order.at[order.n++] = i;
	return order;
}

/* ScatterND writes slices of axis 0. Dropped updates go to an extra slice at the end, which is cut
 * off. */
static bool
write_scatter(GraphWriter *w, const Node *n)
{
	static const char *const reductions[] = {"none", "add", "mul", "max", "min"};
	const ScatterAttr *s = n->attr;
	const WrittenAttribute a[] = {
		{.name = "reduction", .kind = WRITE_TEXT, .text = reductions[s->kind]}, {0}};
	Type data = type_of(n, 0), indices = type_of(n, 1), updates = type_of(n, 2);
	int axis = (int)s->axis;
	Ints columns = ints_of_type(indices), order = axis_first(data->rank, axis, false);
	Ints zero = {.n = data->rank}, one = zero, behind = zero, whole = zero;

	if (columns.n >= MAX_RANK)
		return false;
	if (updates->n == 0)
		return done(w, n, writer_operand(w, n, 0));
	columns.at[columns.n++] = 1;
	for (int i = 0; i < data->rank; i++) {
		whole.at[i] = data->dims[order.at[i]];
		one.at[i] = 1;
	}
	const char *known = inside(w, n, 1, data->dims[axis]);
	behind.at[0] = known != NULL;
	const char *x = writer_pad(w, writer_transpose(w, writer_operand(w, n, 0), order),
	                           data->dtype, zero, behind, 0);
	const char *u = writer_transpose(w, writer_operand(w, n, 2),
	                                 indices_first(updates->rank, axis, indices->rank));
	const char *i = writer_reshape(
		w, writer_cast(w, safe_indices(w, n, 1, known, data->dims[axis]), S64), columns);
	const char *y = writer_node(w, "ScatterND", a, 3, (const char *[]){x, i, u});
	if (known)
		y = writer_slice(w, y, zero, whole, one);
	return done(w, n, writer_transpose(w, y, axis_first(data->rank, axis, true)));
}

static bool
write_gather_elements(GraphWriter *w, const Node *n)
{
	int axis = (int)((const AxisAttr *)n->attr)->axis;
	const WrittenAttribute a[] = {{.name = "axis", .kind = WRITE_INT, .i = axis}, {0}};
	Type data = type_of(n, 0);

	if (data->n == 0)
		return done(w, n, zeros(w, data->dtype, ints_of_type(node_result(n, 0)->type)));
	const char *known = inside(w, n, 1, data->dims[axis]);
	const char *y = writer_node(
		w, "GatherElements", a, 2,
		(const char *[]){writer_operand(w, n, 0), safe_indices(w, n, 1, known, 0)});
	return done(w, n, known ? or_zero(w, known, y, data->dtype) : y);
}

/* Dropped updates go to an extra place at the end of each line, which is cut off. */
static bool
write_scatter_elements(GraphWriter *w, const Node *n)
{
	const ScatterElementsAttr *s = n->attr;
	const WrittenAttribute a[] = {{.name = "axis", .kind = WRITE_INT, .i = s->axis},
	                              {.name = "reduction", .kind = WRITE_TEXT, .text = "add"},
	                              {0}};
	Type y = node_result(n, 0)->type;
	Ints whole = ints_of_type(y), wide = whole, start = {.n = y->rank}, step = start;

	for (int i = 0; i < y->rank; i++)
		step.at[i] = 1;
	if (type_of(n, 1)->n == 0)
		return done(w, n, zeros(w, y->dtype, whole));
	const char *known = inside(w, n, 0, s->size);
	wide.at[s->axis] += known != NULL;
	const char *sums = writer_node(w, "ScatterElements", a, 3,
	                               (const char *[]){zeros(w, y->dtype, wide),
	                                                safe_indices(w, n, 0, known, s->size),
	                                                writer_operand(w, n, 1)});
	return done(w, n, known ? writer_slice(w, sums, start, whole, step) : sums);
}

const WriteRow write_index_rows[] = {
	{"gather", write_gather, NULL},
	{"scatter", write_scatter, NULL},
	{"gather_elements", write_gather_elements, NULL},
	{"scatter_elements", write_scatter_elements, NULL},
	{0},
};

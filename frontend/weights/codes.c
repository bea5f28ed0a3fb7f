/* Weights stored as codes: integers with a scale and a zero point, (code - zero) scale. The facts
 * of an operator (`.codes`) say from which inputs it reads codes, scale and zero point. Such weights
 * train as floats, are quantized wherever they are read, and are exported as codes again. */
#include "frontend/weights/judge.h"

#include <math.h>
#include <string.h>

/* The row of facts by which the reader reads codes; NULL: it reads no codes. */
static const CodedInputs *
place_of(const Repairs *r, const Reader *reader)
{
	const CodedInputs *row = operator_facts(r->model, reader->node->proto)->codes;

	for (int i = 0; i < MAX_CODED; i++)
		if (reader->input >= 0 && row[i].along && row[i].codes == reader->input)
			return &row[i];
	return NULL;
}

/* ---- scales and zero points */
static const char *
input_name(const NodeProto *p, int i)
{
	return i >= 0 && i < (int)p->n_input && *p->input[i] ? p->input[i] : NULL;
}

/* The tensor of an initializer or a Constant node. */
static const TensorProto *
initializer(const Repairs *r, const char *name, bool is_float)
{
	const TensorProto *t = name ? strmap_get(r->model->initializers, name) : NULL;
	const FlatNode *n = name && !t ? strmap_get(r->producers, name) : NULL;

	if (n)
		t = constant_tensor(r, n);

	return t && is_float_type(t->data_type) == is_float ? t : NULL;
}

/* The only node that reads a value; NULL: no node or several. */
static const FlatNode *
only_reader(const Repairs *r, const char *name)
{
	Readers list = readers_of(r, name);

	return list.n == 1 && list.at[0].input >= 0 ? list.at[0].node : NULL;
}

/* The scale in quantize_dynamic's form: the product, cast to floats, times (the computed scale of x
 * times the scale of w, an initializer). */
static const char *
scale_behind(const Repairs *r, const NodeProto *product)
{
	const FlatNode *n = product->n_output ? only_reader(r, product->output[0]) : NULL;

	if (!n || !is_op(n->proto, "Cast") || !n->proto->n_output)
		return NULL;
	const char *floats = n->proto->output[0];
	n = only_reader(r, floats);
	if (!n || !is_op(n->proto, "Mul") || n->proto->n_input != 2)
		return NULL;
	const char *factor = n->proto->input[strcmp(n->proto->input[0], floats) == 0];
	const FlatNode *both = strmap_get(r->producers, factor);
	if (initializer(r, factor, true))
		return factor;
	for (int i = 0; both && is_op(both->proto, "Mul") && i < (int)both->proto->n_input; i++)
		if (initializer(r, both->proto->input[i], true))
			return both->proto->input[i];
	return NULL;
}

/* ---- shapes */
static int
axis_of(const CodedInputs *place, const NodeProto *p, int rank)
{
	int64_t axis = node_int(p, "axis", 1);

	switch (place->along) {
	case ALONG_ATTRIBUTE: return (int)(axis < 0 ? axis + rank : axis < rank ? axis : -1);
	case ALONG_ROWS: return rank > 1 ? rank - 2 : 0;
	case ALONG_COLUMNS: return rank - 1;
	case ALONG_CHANNELS: return node_int(p, "transB", 0) ? 0 : rank - 1;
	default: return 0;
	}
}

const char *
packed_shape(const NodeProto *p, Arena *arena, PackedShape *out)
{
	int64_t rows = node_int(p, "N", 0), columns = node_int(p, "K", 0);
	int64_t block = node_int(p, "block_size", 0);

	if (rows < 1 || columns < 1 || rows > MAX_ELEMENTS / columns)
		return arena_printf(arena, "N = %lld, K = %lld", (long long)rows,
		                    (long long)columns);
	if (block < 16 || block > 1 << 16 || block & (block - 1))
		return arena_printf(arena, "block_size = %lld, need a power of two of 16 or more",
		                    (long long)block);
	*out = (PackedShape){rows, columns, block, (columns - 1) / block + 1};
	return out->blocks > MAX_ELEMENTS / block / rows ? "the weight is over the budget" : NULL;
}

/* Shape [rows, blocks, block] of codes of 2, 4 or 8 bits packed in the file's bytes. */
static bool
shape_packed(Repairs *r, const NodeProto *p, const TensorData *data, Codes *out)
{
	int64_t bits = node_int(p, "bits", 4);
	PackedShape s;

	if ((bits != 2 && bits != 4 && bits != 8) || data->dtype != U8 ||
	    packed_shape(p, r->arena, &s))
		return false;
	out->type = bits == 2 ? U2 : bits == 4 ? U4 : U8;
	out->shape = (Ints){.n = 3, .at = {s.rows, s.blocks, s.block}};
	out->group = (Ints){.n = 3, .at = {1, 1, s.block}};
	return dtype_bytes(out->type, s.rows * s.blocks * s.block) == data->n;
}

static bool
shape_plain(const CodedInputs *place, const NodeProto *p, const TensorData *data, int64_t n_scales,
            Codes *out)
{
	int axis = axis_of(place, p, data->rank);
	int64_t block = node_int(p, "block_size", 0);

	out->type = data->dtype;
	out->shape = out->group = (Ints){.n = data->rank};
	bool is_single = n_scales == 1 && !block;
	bool has_axis = axis >= 0 && axis < data->rank;
	if (block < 0 || (!is_single && !has_axis) || (block && data->rank == MAX_RANK))
		return false;
	for (int i = 0; i < data->rank; i++) {
		bool is_axis = i == axis;
		out->shape.at[i] = data->dims[i];
		out->group.at[i] = block           ? is_axis ? block : 1
		                   : n_scales == 1 ? data->dims[i]
		                   : is_axis       ? 1
		                                   : data->dims[i];
	}
	return true;
}

Groups
codes_groups(const Codes *c)
{
	return (Groups){c->shape.n, c->shape.at, c->group.at};
}

int64_t
codes_scales(const Codes *c)
{
	Groups g = codes_groups(c);

	return groups_count(&g);
}

/* ---- zero points, as s32, one per scale; false: not valid zero points */
static bool
read_zeros(Repairs *r, const char *name, bool packed, Codes *c)
{
	const TensorProto *t = initializer(r, name, false);
	int64_t n = codes_scales(c), packed_row = 0;
	TensorData d;
	bool any = false;

	if (!name && !packed)
		return true;
	int32_t *zero = arena_alloc(r->arena, sizeof(*zero) * (size_t)n);
	if (name && (!t || !tensor_load(r->model, t, false, &d, r->diag)))
		return false;
	if (name && c->type != c->stored) /* each row of packed zero points begins at a byte */
		packed_row = dtype_bytes(c->type, c->shape.at[1]) * 8 / dtype_info[c->type].bits;
	if (name && (d.dtype != c->stored ||
	             d.n != (packed_row ? dtype_bytes(c->type, packed_row) * c->shape.at[0] : n)))
		return false;
	for (int64_t i = 0; i < n; i++) {
		int64_t at = packed_row ? i / c->shape.at[1] * packed_row + i % c->shape.at[1] : i;
		zero[i] = name ? (int32_t)dtype_load_int(c->type, d.data, at)
		               : 1 << (dtype_info[c->type].bits - 1);
		any |= zero[i] != 0;
	}
	c->zero = any ? zero : NULL;
	c->zeros = packed_row ? NULL : name;
	return true;
}

/* Does quantizing the floats give back the same codes? It does not if a scale is 0 or not finite,
 * nor for large 32-bit codes, because f32 holds 24 bits. */
static bool
come_back(const Codes *c, const void *codes, const TensorData *scale)
{
	const int64_t most = 1 << 22;
	int64_t n = 1;

	for (int64_t i = 0; i < scale->n; i++) {
		double x = dtype_load_float(scale->dtype, scale->data, i);
		if (!isfinite(x) || x == 0)
			return false;
	}
	for (int i = 0; i < c->shape.n; i++)
		n *= c->shape.at[i];
	for (int64_t i = 0; i < n && dtype_info[c->type].bits == 32; i++) {
		int64_t code = dtype_load_int(c->type, codes, i);
		if (code > most || code < -most)
			return false;
	}
	return true;
}

/* Finds scale, shape and zero points of the codes from one node that reads them. */
static bool
read_place(Repairs *r, const Reader *reader, const TensorData *data, Codes *c)
{
	const CodedInputs *place = place_of(r, reader);
	const NodeProto *p = reader->node->proto;
	TensorData scale;

	if (!place)
		return false;
	*c = (Codes){.stored = data->dtype};
	c->scale = place->scale < 0 ? scale_behind(r, p) : input_name(p, place->scale);
	const TensorProto *t = initializer(r, c->scale, true);
	if (!t || !tensor_load(r->model, t, false, &scale, r->diag))
		return false;
	bool fits = place->along == ALONG_BLOCKS ? shape_packed(r, p, data, c)
	                                         : shape_plain(place, p, data, scale.n, c);
	return fits && codes_scales(c) == scale.n &&
	       read_zeros(r, input_name(p, place->zero), place->along == ALONG_BLOCKS, c) &&
	       come_back(c, data->data, &scale);
}

static bool
same_codes(const Codes *a, const Codes *b)
{
	return a->type == b->type && !strcmp(a->scale, b->scale) &&
	       !memcmp(&a->shape, &b->shape, sizeof(Ints)) &&
	       !memcmp(&a->group, &b->group, sizeof(Ints)) && !a->zero == !b->zero &&
	       (!a->zero || !memcmp(a->zero, b->zero, sizeof(*a->zero) * (size_t)codes_scales(a)));
}

bool
reads_scale(const Repairs *r, const Reader *reader)
{
	const CodedInputs *row = operator_facts(r->model, reader->node->proto)->codes;

	for (int i = 0; i < MAX_CODED && reader->input >= 0; i++)
		if (row[i].along && (row[i].scale == reader->input || row[i].zero == reader->input))
			return true;
	return false;
}

const Codes *
codes_find(Repairs *r, const char *name, const TensorData *data)
{
	Readers readers = readers_of(r, name);
	Codes first, other;

	if (!data->data || data->n == 0 || readers.n == 0 ||
	    !read_place(r, &readers.at[0], data, &first))
		return NULL;
	for (int i = 1; i < readers.n; i++)
		if (!read_place(r, &readers.at[i], data, &other) || !same_codes(&first, &other))
			return NULL;
	strmap_put(r->scales, first.scale, (void *)(uintptr_t)name);
	return arena_copy(r->arena, &first, sizeof(first));
}

void
codes_to_floats(const Codes *c, const void *codes, const TensorData *scale, float *out)
{
	Groups groups = codes_groups(c);
	int64_t n = 1;

	for (int i = 0; i < c->shape.n; i++)
		n *= c->shape.at[i];
	for (GroupWalk w = group_walk(&groups); w.i < n; group_next(&w)) {
		int64_t zero = c->zero ? c->zero[w.group] : 0;
		int64_t code = dtype_load_int(c->type, codes, w.i) - zero;
		out[w.i] = (float)code *
		           (float)dtype_load_float(scale->dtype, scale->data, w.group);
	}
}

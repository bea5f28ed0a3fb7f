/* Weights that a file holds as codes: integers for which a scale and a zero point stand beside them, (code - zero) scale. A row says
 * which node reads codes, scale and zero point from which inputs. They are trained as floats that are quantized wherever they are
 * read, and written as codes again. */
#include "frontend/frontend_impl.h"

#include <string.h>

/* Whose scale an element has: that of its place along an axis (an attribute, the first, or the last), or of its block. */
typedef enum { ALONG_ATTRIBUTE, ALONG_FIRST, ALONG_ROWS, ALONG_COLUMNS, ALONG_BLOCKS } Along;
typedef struct {
	const char *domain, *op;
	int codes, scale, zero; /* inputs; scale -1: what the product is scaled by */
	Along along;
} CodesPlace;
#define MICROSOFT "com.microsoft"
static const CodesPlace places[] = {
	{"", "DequantizeLinear", 0, 1, 2, ALONG_ATTRIBUTE},
	{"", "QLinearMatMul", 0, 1, 2, ALONG_ROWS},
	{"", "QLinearMatMul", 3, 4, 5, ALONG_COLUMNS},
	{"", "QLinearConv", 3, 4, 5, ALONG_FIRST},
	{"", "MatMulInteger", 0, -1, 2, ALONG_ROWS},
	{"", "MatMulInteger", 1, -1, 3, ALONG_COLUMNS},
	{"", "ConvInteger", 1, -1, 3, ALONG_FIRST},
	{MICROSOFT, "DequantizeLinear", 0, 1, 2, ALONG_ATTRIBUTE},
	{MICROSOFT, "MatMulNBits", 1, 2, 3, ALONG_BLOCKS},
};

static const CodesPlace *
place_of(const Reader *reader)
{
	const NodeProto *p = reader->node->proto;

	for (int i = 0; i < COUNT(places); i++)
		if (places[i].codes == reader->input && !strcmp(places[i].op, p->op_type) &&
		    !strcmp(places[i].domain, domain_of(p->domain)))
			return &places[i];
	return NULL;
}

/* ---- what stands beside the codes */
static const char *
input_name(const NodeProto *p, int i)
{
	return i >= 0 && i < (int)p->n_input && *p->input[i] ? p->input[i] : NULL;
}

static const TensorProto *
initializer(const Repairs *r, const char *name, bool is_float)
{
	const TensorProto *t = name ? strmap_get(r->model->initializers, name) : NULL;

	return t && is_float_type(t->data_type) == is_float ? t : NULL;
}

static int64_t
attribute(const NodeProto *p, const char *name, int64_t otherwise)
{
	const AttributeProto *a = node_attribute(p, name);

	return a && a->type == ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT ? a->i : otherwise;
}

/* The only node that reads a value; NULL: none or several do. */
static const FlatNode *
only_reader(const Repairs *r, const char *name)
{
	Readers list = readers_of(r, name);

	return list.n == 1 && list.at[0].input >= 0 ? list.at[0].node : NULL;
}

/* As quantize_dynamic writes it: the product, as floats, times (scale of x, computed, times scale of w, an initializer). */
static const char *
scale_behind(const Repairs *r, const NodeProto *product)
{
	const FlatNode *n = product->n_output ? only_reader(r, product->output[0]) : NULL;

	if (!n || !node_is(n, "Cast") || !n->proto->n_output)
		return NULL;
	const char *floats = n->proto->output[0];
	n = only_reader(r, floats);
	if (!n || !node_is(n, "Mul") || n->proto->n_input != 2)
		return NULL;
	const char *factor = n->proto->input[strcmp(n->proto->input[0], floats) == 0];
	const FlatNode *both = strmap_get(r->producers, factor);
	if (initializer(r, factor, true))
		return factor;
	for (int i = 0; both && node_is(both, "Mul") && i < (int)both->proto->n_input; i++)
		if (initializer(r, both->proto->input[i], true))
			return both->proto->input[i];
	return NULL;
}

/* ---- shapes */
static int
axis_of(const CodesPlace *place, const NodeProto *p, int rank)
{
	int64_t axis = attribute(p, "axis", 1);

	switch (place->along) {
	case ALONG_ATTRIBUTE: return (int)(axis < 0 ? axis + rank : axis < rank ? axis : -1);
	case ALONG_ROWS: return rank > 1 ? rank - 2 : 0;
	case ALONG_COLUMNS: return rank - 1;
	default: return 0;
	}
}

/* [N, blocks, block] of codes of 2, 4 or 8 bits, in the bytes of the file. */
static bool
shape_packed(const NodeProto *p, const TensorData *data, Codes *out)
{
	int64_t bits = attribute(p, "bits", 4), block = attribute(p, "block_size", 0);
	int64_t rows = attribute(p, "N", 0), columns = attribute(p, "K", 0);

	if ((bits != 2 && bits != 4 && bits != 8) || block < 16 || block > 1 << 16 || rows < 1 ||
	    columns < 1 || rows > MAX_ELEMENTS / columns || data->dtype != U8)
		return false;
	out->type = bits == 2 ? U2 : bits == 4 ? U4 : U8;
	out->shape = (Ints){.n = 3, .at = {rows, (columns - 1) / block + 1, block}};
	out->group = (Ints){.n = 3, .at = {1, 1, block}};
	return dtype_bytes(out->type, rows * out->shape.at[1] * block) == data->n;
}

static bool
shape_plain(const CodesPlace *place, const NodeProto *p, const TensorData *data, int64_t n_scales,
            Codes *out)
{
	int axis = axis_of(place, p, data->rank);
	int64_t block = attribute(p, "block_size", 0);

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

int64_t
codes_groups(const Codes *c)
{
	int64_t n = 1;

	for (int i = 0; i < c->shape.n; i++)
		n *= (c->shape.at[i] - 1) / c->group.at[i] + 1;
	return n;
}

/* ---- zero points, as s32, one for each scale; false: they are none that codes have */
static bool
read_zeros(Repairs *r, const char *name, bool packed, Codes *c)
{
	const TensorProto *t = initializer(r, name, false);
	int64_t n = codes_groups(c), packed_row = 0;
	TensorData d;
	bool any = false;

	if (!name && !packed)
		return true;
	int32_t *zero = arena_alloc(r->arena, sizeof(*zero) * (size_t)n);
	if (name && (!t || !tensor_load(r->model, t, false, &d, r->diag)))
		return false;
	if (name && c->type != c->stored) /* each row of packed ones begins with a byte */
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

/* What one reader makes of the codes. */
static bool
read_place(Repairs *r, const Reader *reader, const TensorData *data, Codes *c)
{
	const CodesPlace *place = place_of(reader);
	const NodeProto *p = reader->node->proto;
	TensorData scale;

	if (!place)
		return false;
	*c = (Codes){.stored = data->dtype};
	c->scale = place->scale < 0 ? scale_behind(r, p) : input_name(p, place->scale);
	const TensorProto *t = initializer(r, c->scale, true);
	if (!t || !tensor_load(r->model, t, false, &scale, r->diag))
		return false;
	bool fits = place->along == ALONG_BLOCKS ? shape_packed(p, data, c)
	                                         : shape_plain(place, p, data, scale.n, c);
	return fits && codes_groups(c) == scale.n &&
	       read_zeros(r, input_name(p, place->zero), place->along == ALONG_BLOCKS, c);
}

static bool
same_codes(const Codes *a, const Codes *b)
{
	return a->type == b->type && !strcmp(a->scale, b->scale) &&
	       !memcmp(&a->shape, &b->shape, sizeof(Ints)) &&
	       !memcmp(&a->group, &b->group, sizeof(Ints)) && !a->zero == !b->zero &&
	       (!a->zero || !memcmp(a->zero, b->zero, sizeof(*a->zero) * (size_t)codes_groups(a)));
}

bool
reads_scale(const Reader *reader)
{
	static const struct {
		const char *op;
		unsigned inputs; /* bit i: input i */
	} scales[] = {{"QuantizeLinear", 2}, {"DequantizeLinear", 2}, {"QLinearMatMul", 82},
	              {"QLinearConv", 82},   {"MatMulNBits", 12},     {"MatMulBnb4", 4}};
	const NodeProto *p = reader->node->proto;
	const char *domain = domain_of(p->domain);

	for (int i = 0; i < COUNT(scales) && reader->input >= 0 && reader->input < 32; i++)
		if (!strcmp(scales[i].op, p->op_type) && scales[i].inputs >> reader->input & 1 &&
		    (!*domain || !strcmp(domain, MICROSOFT)))
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

/* ---- codes and floats */
static int64_t
group_at(const Codes *c, const int64_t *at)
{
	int64_t flat = 0;

	for (int i = 0; i < c->shape.n; i++)
		flat = flat * ((c->shape.at[i] - 1) / c->group.at[i] + 1) + at[i] / c->group.at[i];
	return flat;
}

void
codes_to_floats(const Codes *c, const void *codes, const TensorData *scale, float *out)
{
	int64_t at[MAX_RANK] = {0}, n = 1;

	for (int i = 0; i < c->shape.n; i++)
		n *= c->shape.at[i];
	for (int64_t k = 0; k < n; k++) {
		int64_t g = group_at(c, at);
		int64_t code = dtype_load_int(c->type, codes, k) - (c->zero ? c->zero[g] : 0);
		out[k] = (float)code * (float)dtype_load_float(scale->dtype, scale->data, g);
		for (int i = c->shape.n - 1; i >= 0 && ++at[i] == c->shape.at[i]; i--)
			at[i] = 0;
	}
}

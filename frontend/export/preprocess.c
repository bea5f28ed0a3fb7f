/* --export-preprocessing: an exported model may take the integers of the data files. Nodes before the
 * first node then compute what --scale and --mean-std compute in training (runtime/data/decode.c): in
 * f64, rounded once. The input keeps its name. The nodes that read it read the computed floats
 * instead, under a name of equal length, so that no length of a message depends on the choice. For
 * example, "image" is read as "ima_f". Which of the records are written is chosen at export. */
#include "frontend/export/template.h"

#include <string.h>

enum { GRAPH_NODE = 1, GRAPH_INITIALIZER = 5, GRAPH_INPUT = 11, OPSET_OF_BROADCASTING = 7 };

/* Values of the added nodes: after Cast, Mul, Add, Sub and Div. */
typedef enum { CAST_VALUE, MUL_VALUE, SCALED_VALUE, SUB_VALUE, NORMALIZED_VALUE, N_VALUES } Step;
typedef enum { MUL_TENSOR, ADD_TENSOR, MEAN_TENSOR, STD_TENSOR, N_TENSORS } Operand;
static const char *const value_endings[] = {"cast", "mul", "scaled", "sub", "normalized"};
static const char *const operand_names[] = {"factor", "term", "mean", "std"};

struct PreprocessedInput {
	const ValueInfoProto *info;
	DType dtype;
	const char *floats; /* name of the computed floats; as long as the input's name */
	char *alias;        /* a unique address that stands for both names */
	const char *values[N_VALUES], *operands[N_TENSORS];
	/* channels of --mean-std along the first or last axis of a sample, with the shape of the means
	 * in the graph; shape.n -1: no such axis */
	Ints shape[N_MEANS];
};

/* ---- names */
static void
take_graph(StrMap *taken, StrMap *outputs, const GraphProto *g)
{
	for (size_t i = 0; i < g->n_input; i++)
		strmap_put(taken, g->input[i]->name, (void *)1);
	for (size_t i = 0; i < g->n_initializer; i++)
		strmap_put(taken, g->initializer[i]->name, (void *)1);
	for (size_t i = 0; i < g->n_output; i++)
		strmap_put(outputs, g->output[i]->name, (void *)1);
	for (size_t i = 0; i < g->n_node; i++) {
		const NodeProto *p = g->node[i];
		for (size_t k = 0; k < p->n_output; k++)
			strmap_put(taken, p->output[k], (void *)1);
		for (size_t k = 0; k < p->n_attribute; k++)
			if (p->attribute[k]->g)
				take_graph(taken, outputs, p->attribute[k]->g);
	}
}

static bool
take(StrMap *taken, const char *name)
{
	if (strmap_get(taken, name))
		return false;
	strmap_put(taken, name, (void *)1);
	return true;
}

/* A free name as long as `name`, which differs in one or two of the last bytes; NULL: all such names are taken. */
static const char *
name_of_length(Arena *arena, StrMap *taken, const char *name)
{
	static const char letters[] = "fgabcdehijklmnopqrstuvwxyz0123456789_";
	size_t n = strlen(name);
	char *other = arena_strdup(arena, name);

	if (n > 2 && (name[n - 2] & 0x80) == 0 && (name[n - 1] & 0x80) == 0) {
		memcpy(other + n - 2, "_f", 2);
		if (take(taken, other))
			return other;
		memcpy(other, name, n);
	}
	for (size_t at = n; at-- > 0 && (name[at] & 0x80) == 0;)
		for (const char *c = letters; *c; c++) {
			other[at] = *c;
			if (take(taken, other))
				return other;
		}
	return NULL;
}

static const char *
fresh(Arena *arena, StrMap *taken, const char *base, const char *ending)
{
	const char *name = arena_printf(arena, "%s_%s", base, ending);

	for (int i = 2; !take(taken, name); i++)
		name = arena_printf(arena, "%s_%s_%d", base, ending, i);
	return name;
}

/* ---- which inputs can be preprocessed */
static const ImportPort *
port_of(const Export *e, const char *name)
{
	const ImportPorts *ports = &e->info->base.bindings.at[0].inputs;

	for (int i = 0; i < ports->n; i++)
		if (!strcmp(ports->at[i].name, name))
			return &ports->at[i];
	return NULL;
}

/* Means along an axis of the input: [C,1,1] for axis 1 of [N,C,H,W]. */
static Ints
shape_along(const ImportPort *port, int axis)
{
	Ints shape = {.n = axis < 0 || axis >= port->rank ? -1 : port->rank - axis};

	for (int i = 0; i < shape.n; i++)
		shape.at[i] = i ? 1 : port->dims[axis];
	return shape;
}

static void
find_channels(PreprocessedInput *p, const ImportPort *port)
{
	int rows = port->has_rows ? port->batch_axis : -1;
	int first = rows == 0 ? 1 : 0, last = port->rank - 1 - (rows == port->rank - 1);

	p->shape[MEAN_FIRST] = shape_along(port, first);
	p->shape[MEAN_LAST] = last < first ? (Ints){.n = -1} : shape_along(port, last);
}

/* Why the input cannot be preprocessed; NULL: it can. */
static const char *
fill_input(Export *e, StrMap *taken, const StrMap *outputs, PreprocessedInput *p)
{
	const char *name = p->info->name;

	if (e->model->opset < OPSET_OF_BROADCASTING)
		return "the model's opset is below 7";
	if (strmap_get(outputs, name))
		return "it is an output, too";
	p->floats = name_of_length(e->arena, taken, name);
	if (!p->floats)
		return "no other name of this length is free";
	p->alias = arena_strdup(e->arena, name);
	for (int i = 0; i < N_VALUES; i++)
		p->values[i] = fresh(e->arena, taken, name, value_endings[i]);
	for (int i = 0; i < N_TENSORS; i++)
		p->operands[i] = fresh(e->arena, taken, name, operand_names[i]);
	return NULL;
}

void
preprocess_find(Export *e, const GraphProto *g)
{
	StrMap *taken = strmap_new(e->arena), *outputs = strmap_new(e->arena);
	Text refused = {0};

	e->inputs.n = 0;
	take_graph(taken, outputs, g);
	for (size_t i = 0; i < g->n_input; i++) {
		const ImportPort *port = port_of(e, g->input[i]->name);
		PreprocessedInput *p = NEW(e->arena, PreprocessedInput);
		if (!port || (port->dtype != F32 && port->dtype != F64))
			continue;
		p->info = g->input[i];
		p->dtype = port->dtype;
		find_channels(p, port);
		const char *why = fill_input(e, taken, outputs, p);
		if (why)
			text_printf(&refused, "%s%s: %s", refused.n ? "; " : "",
			            quoted(e->model, g->input[i]->name), why);
		else
			vec_push(e->arena, &e->inputs, p);
	}
	e->not_preprocessed = refused.n ? arena_strdup(e->arena, refused.at) : NULL;
	text_free(&refused);
}

/* ---- the readers of an input */
static const PreprocessedInput *
input_named(const Export *e, const char *name)
{
	for (int i = 0; i < e->inputs.n; i++)
		if (!strcmp(e->inputs.at[i]->info->name, name))
			return e->inputs.at[i];
	return NULL;
}

static bool
edit_readers(Export *e, size_t n, NodeProto ***nodes)
{
	NodeProto **out = arena_copy(e->arena, *nodes, sizeof(*out) * n);
	bool changed = false;

	for (size_t i = 0; i < n; i++) {
		NodeProto *from = out[i], *p = arena_copy(e->arena, from, sizeof(*p));
		bool here = false;
		p->input = arena_copy(e->arena, p->input, sizeof(*p->input) * p->n_input);
		p->attribute = arena_copy(e->arena, p->attribute,
		                          sizeof(*p->attribute) * p->n_attribute);
		for (size_t k = 0; k < p->n_input; k++) {
			const PreprocessedInput *read = input_named(e, p->input[k]);
			p->input[k] = read ? read->alias : p->input[k];
			here |= read != NULL;
		}
		for (size_t k = 0; k < p->n_attribute; k++) {
			AttributeProto *a = p->attribute[k];
			GraphProto *g = a->g ? arena_copy(e->arena, a->g, sizeof(*g)) : NULL;
			if (!g || !edit_readers(e, g->n_node, &g->node))
				continue;
			a = p->attribute[k] = arena_copy(e->arena, a, sizeof(*a));
			a->g = g;
			here = true;
		}
		out[i] = here ? p : from;
		changed |= here;
	}
	*nodes = changed ? out : *nodes;
	return changed;
}

void
preprocess_readers(Export *e, GraphProto *g)
{
	if (e->inputs.n)
		edit_readers(e, g->n_node, &g->node);
}

/* ---- records */
static void
choose(Export *e, int input, uint32_t when)
{
	flush_literal(e);
	e->input = (uint32_t)input;
	e->when = when;
}

bool
preprocess_put_name(Export *e, const void *bytes)
{
	for (int i = 0; i < e->inputs.n; i++) {
		const PreprocessedInput *p = e->inputs.at[i];
		if (bytes != p->alias)
			continue;
		choose(e, i + 1, NO_PREPROCESSING);
		put_literal(e, p->info->name, strlen(p->info->name));
		choose(e, i + 1, ALL_PREPROCESSINGS & ~(uint32_t)NO_PREPROCESSING);
		put_literal(e, p->floats, strlen(p->floats));
		choose(e, 0, 0);
		return true;
	}
	return false;
}

/* The set of preprocessings whose scale is in the set `scales` and whose mean is in the set `means`; all sets are
 * bits. */
static uint32_t
choices(unsigned scales, unsigned means)
{
	uint32_t set = 0;

	for (int s = 0; s < N_SCALES; s++)
		for (int m = 0; m < N_MEANS; m++)
			if (scales >> s & means >> m & 1)
				set |= export_preprocessing((ExportScale)s, (ExportMean)m);
	return set;
}

enum {
	SCALED = 1 << SCALE_MUL | 1 << SCALE_MUL_ADD,
	ADDED = 1 << SCALE_MUL_ADD,
	NOT_ADDED = 1 << SCALE_MUL,
	NOT_SCALED = 1 << SCALE_NONE,
	ANY_SCALE = SCALED | NOT_SCALED,
	NORMALIZED = 1 << MEAN_FIRST | 1 << MEAN_LAST,
	NOT_NORMALIZED = 1 << MEAN_NONE,
	ANY_MEAN = NORMALIZED | NOT_NORMALIZED,
};

typedef struct {
	const char *op, *a, *b; /* b NULL: one input */
	const char *y;
	DType to; /* of Cast */
} AddedNode;

static void
put_node(Export *e, int input, uint32_t when, AddedNode n)
{
	NodeProto p;
	AttributeProto to, *attributes = &to;
	char *inputs[] = {(char *)(uintptr_t)n.a, (char *)(uintptr_t)n.b};
	char *output = (char *)(uintptr_t)n.y;

	onnx__node_proto__init(&p);
	onnx__attribute_proto__init(&to);
	to.name = (char *)(uintptr_t) "to";
	to.has_type = to.has_i = 1;
	to.type = ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT;
	to.i = tensor_onnx_type(n.to);
	p.op_type = (char *)(uintptr_t)n.op;
	p.name = output;
	p.input = inputs;
	p.n_input = n.b ? 2 : 1;
	p.output = &output;
	p.n_output = 1;
	p.attribute = &attributes;
	p.n_attribute = !n.b;
	choose(e, input, when);
	put_header(e, GRAPH_NODE,
	           (Length){(int64_t)protobuf_c_message_get_packed_size(&p.base), 0});
	pack_message(e, &p);
	choose(e, 0, 0);
}

void
preprocess_put_nodes(Export *e)
{
	for (int i = 0; i < e->inputs.n; i++) {
		const PreprocessedInput *p = e->inputs.at[i];
		const char *const *v = p->values, *const *c = p->operands, *x = p->info->name;
		const struct {
			unsigned scales, means;
			AddedNode node;
		} nodes[] = {
			{SCALED, ANY_MEAN, {"Cast", x, NULL, v[CAST_VALUE], F64}},
			{NOT_SCALED, NORMALIZED, {"Cast", x, NULL, v[SCALED_VALUE], F64}},
			{ADDED, ANY_MEAN, {"Mul", v[CAST_VALUE], c[MUL_TENSOR], v[MUL_VALUE], 0}},
			{ADDED, ANY_MEAN, {"Add", v[MUL_VALUE], c[ADD_TENSOR], v[SCALED_VALUE], 0}},
			{NOT_ADDED,
		         ANY_MEAN,
		         {"Mul", v[CAST_VALUE], c[MUL_TENSOR], v[SCALED_VALUE], 0}},
			{ANY_SCALE,
		         NORMALIZED,
		         {"Sub", v[SCALED_VALUE], c[MEAN_TENSOR], v[SUB_VALUE], 0}},
			{ANY_SCALE,
		         NORMALIZED,
		         {"Div", v[SUB_VALUE], c[STD_TENSOR], v[NORMALIZED_VALUE], 0}},
			{ANY_SCALE,
		         NORMALIZED,
		         {"Cast", v[NORMALIZED_VALUE], NULL, p->floats, p->dtype}},
			{SCALED,
		         NOT_NORMALIZED,
		         {"Cast", v[SCALED_VALUE], NULL, p->floats, p->dtype}},
		};
		for (int k = 0; k < COUNT(nodes); k++)
			put_node(e, i + 1, choices(nodes[k].scales, nodes[k].means), nodes[k].node);
	}
}

static void
put_operand(Export *e, int input, uint32_t when, ExportKind kind, const char *name, Ints shape)
{
	enum { TENSOR_RAW = 9 };
	TensorProto *t = edit_tensor(e->model, name, F64, &shape, NULL);
	int64_t bytes = (int64_t)t->raw_data.len;
	Length raw = field_length(TENSOR_RAW, (Length){bytes, 0});

	t->has_raw_data = 0;
	t->raw_data = (ProtobufCBinaryData){0, NULL};
	raw.base += (int64_t)protobuf_c_message_get_packed_size(&t->base);
	choose(e, input, when);
	put_header(e, GRAPH_INITIALIZER, raw);
	pack_message(e, t);
	put_header(e, TENSOR_RAW, (Length){bytes, 0});
	flush_literal(e);
	put_record(e, (ExportRecord){.kind = kind,
	                             .dtype = F64,
	                             .bytes = bytes,
	                             .block = bytes / (int64_t)sizeof(double)});
	choose(e, 0, 0);
}

void
preprocess_put_operands(Export *e)
{
	const Ints scalar = {0};

	for (int i = 0; i < e->inputs.n; i++) {
		const PreprocessedInput *p = e->inputs.at[i];
		put_operand(e, i + 1, choices(SCALED, ANY_MEAN), EXPORT_MUL,
		            p->operands[MUL_TENSOR], scalar);
		put_operand(e, i + 1, choices(ADDED, ANY_MEAN), EXPORT_ADD, p->operands[ADD_TENSOR],
		            scalar);
		for (int m = MEAN_FIRST; m < N_MEANS; m++) {
			uint32_t when = choices(ANY_SCALE, 1u << m);
			if (p->shape[m].n < 0)
				continue;
			put_operand(e, i + 1, when, EXPORT_MEAN, p->operands[MEAN_TENSOR],
			            p->shape[m]);
			put_operand(e, i + 1, when, EXPORT_STD, p->operands[STD_TENSOR],
			            p->shape[m]);
		}
	}
}

/* ---- the graph's inputs */
/* A ValueInfoProto with another type, packed. */
static uint8_t *
pack_input(Arena *arena, const ValueInfoProto *from, int onnx_type, size_t *n)
{
	ValueInfoProto info = *from;
	Onnx__TypeProto type = *from->type;
	Onnx__TypeProto__Tensor tensor = *from->type->tensor_type;

	info.type = &type;
	type.tensor_type = &tensor;
	tensor.elem_type = onnx_type;
	*n = protobuf_c_message_get_packed_size(&info.base);
	uint8_t *bytes = arena_alloc(arena, *n + 1);
	protobuf_c_message_pack(&info.base, bytes);
	return bytes;
}

/* The literal bytes of the ONNX types, by DType. */
static int64_t
put_types(Export *e)
{
	int64_t at = (int64_t)e->w->literal.n;
	uint8_t types[N_DTYPES];

	for (int i = 0; i < N_DTYPES; i++)
		types[i] = (uint8_t)tensor_onnx_type((DType)i);
	text_add_bytes(&e->w->literal, types, sizeof(types));
	return at;
}

static void
put_input(Export *e, const ValueInfoProto *info, int number)
{
	size_t n, at = 0;
	const uint8_t *a = pack_input(e->arena, info, 1, &n),
		      *b = pack_input(e->arena, info, 2, &n);

	while (at < n && a[at] == b[at])
		at++;
	put_header(e, GRAPH_INPUT, (Length){(int64_t)n, 0});
	put_literal(e, a, at);
	flush_literal(e);
	put_record(e, (ExportRecord){.kind = EXPORT_INPUT_TYPE,
	                             .input = (uint32_t)number,
	                             .when = ALL_PREPROCESSINGS,
	                             .dtype = e->inputs.at[number - 1]->dtype,
	                             .name = format_string(e->w, info->name),
	                             .offset = put_types(e),
	                             .bytes = N_DTYPES});
	put_literal(e, a + at + 1, n - at - 1);
}

Length
preprocess_inputs_length(const GraphProto *g)
{
	Length total = {0};

	for (size_t i = 0; i < g->n_input; i++) {
		size_t n = protobuf_c_message_get_packed_size(&g->input[i]->base);
		total.base += field_length(GRAPH_INPUT, (Length){(int64_t)n, 0}).base;
	}
	return total;
}

void
preprocess_put_inputs(Export *e, const GraphProto *g)
{
	for (size_t i = 0; i < g->n_input; i++) {
		int number = 0;
		for (int k = 0; k < e->inputs.n; k++)
			number = e->inputs.at[k]->info == g->input[i] ? k + 1 : number;
		if (number) {
			put_input(e, g->input[i], number);
			continue;
		}
		put_header(e, GRAPH_INPUT,
		           (Length){(int64_t)protobuf_c_message_get_packed_size(&g->input[i]->base),
		                    0});
		pack_message(e, g->input[i]);
	}
}

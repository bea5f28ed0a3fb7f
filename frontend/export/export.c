/* Writes the template from which a training executable exports its model: the input file's bytes,
 * with holes for the tensors that training changes. The messages around the initializers are packed
 * by hand, because their lengths depend on the name of the external data file, which is known only
 * at export. protobuf-c packs all other messages. In such a message (a Constant node) a trained
 * tensor is recognized by the address of its raw_data. */
#include "frontend/export/branches.h"
#include "frontend/import/import.h"

#include <string.h>

enum { DATA_ALIGNMENT = 64, PADDED_VARINT = 5 };

/* A length that depends on the data file's name: base + times * length of the name. */
typedef struct {
	int64_t base;
	uint32_t times;
} Length;

typedef struct {
	ProtobufCBuffer buffer; /* must be first: protobuf-c appends through it */
	const Module *m;
	FormatWriter *w;
	Model *model;
	const ImportInfo *info;
	/* for --quantize: address of an initializer -> QuantizedPart; NULL: not quantized */
	const IntMap *parts;
	Diag *diag;
	Arena *arena;
	IntMap *holes;    /* address of raw data -> Weight */
	IntMap *branches; /* for adapters: address of an initializer -> ExportRecord */
	ExportedModel which;
	bool failed;            /* reported: a node's external data cannot be read */
	int64_t data_bytes;     /* size of the external file so far */
	int64_t pending, start; /* number and start of literal bytes without a record */
} Export;

/* ---- records */
static void
put_record(Export *e, ExportRecord r)
{
	r.of = e->which;
	vec_push(e->w->arena, &e->w->exports, r);
}

static void
flush(Export *e, int file)
{
	if (e->pending)
		put_record(e, ((ExportRecord){.kind = EXPORT_LITERAL,
		                              .file = (uint32_t)file,
		                              .offset = e->start,
		                              .bytes = e->pending}));
	e->pending = 0;
}

static void
literal(Export *e, const void *bytes, size_t n)
{
	if (e->pending == 0)
		e->start = (int64_t)e->w->literal.n;
	text_add_bytes(&e->w->literal, bytes, n);
	e->pending += (int64_t)n;
}

/* The lower bound that straight_through applies to a learned scale. */
static double
least_of(const Weight *scale)
{
	return scale->kind == WEIGHT_QUANTIZED && scale->state->trainable ? LEAST_SCALE : 0;
}

/* Adds the hole for codes. The codes' zero points are stored with the template's literal bytes, but
 * are not part of the exported file. */
static void
codes_hole(Export *e, const Weight *w, int file)
{
	const Codes *c = w->codes;
	const Weight *scale = repairs_weight(e->info->repairs, c->scale);
	ExportRecord r = {.kind = EXPORT_CODES,
	                  .file = (uint32_t)file,
	                  .state = (uint32_t)w->state->id,
	                  .scale = (uint32_t)scale->state->id,
	                  .least = least_of(scale),
	                  .dtype = c->type,
	                  .rank = (uint32_t)c->shape.n,
	                  .zero = -1,
	                  .bytes = dtype_bytes(w->data.dtype, w->data.n)};

	memcpy(r.group, c->group.at, sizeof(r.group));
	for (int i = 0; i < c->shape.n; i++)
		r.perm[i] = (uint8_t)i;
	flush(e, file);
	if (c->zero) {
		r.zero = (int64_t)e->w->literal.n;
		text_add_bytes(&e->w->literal, c->zero, sizeof(*c->zero) * (size_t)codes_scales(c));
	}
	put_record(e, r);
}

static void
tensor_hole(Export *e, const Weight *w, int file)
{
	const Weight *home = w->tied ? w->tied : w;
	const State *state = home->state;
	ExportRecord r = {.kind = EXPORT_TENSOR,
	                  .file = (uint32_t)file,
	                  .state = (uint32_t)state->id,
	                  .dtype = w->data.dtype,
	                  .rank = (uint32_t)w->data.rank,
	                  .least = least_of(home),
	                  .bytes = dtype_bytes(w->data.dtype, w->data.n)};
	int64_t copies = 1;

	if (w->codes) {
		codes_hole(e, w, file);
		return;
	}
	for (int i = w->expanded_from; i < w->expanded_to; i++)
		copies *= w->data.dims[i];
	r.times = (uint32_t)(copies - 1);
	r.block = w->expanded_to || w->data.n == 0 ? 1 : w->data.n;
	for (int i = w->expanded_to; w->expanded_to && i < w->data.rank; i++)
		r.block *= w->data.dims[i];
	for (int i = 0; i < w->data.rank; i++)
		r.perm[i] = (uint8_t)(w->transposed ? w->data.rank - 1 - i : i);
	flush(e, file);
	put_record(e, r);
}

/* ---- initializers that --quantize adds */
static bool
is_trained(const State *s)
{
	return s && s->trainable;
}

/* The record of an added initializer that training changes; false: the initializer keeps its
 * numbers. */
static bool
part_record(const Export *e, const QuantizedPart *p, ExportRecord *r)
{
	const QuantizedTensor *t = p->tensor;
	const QuantizedOperand *q = &e->m->quantized.at[t->number];
	const Weight *w = repairs_weight(e->info->repairs, t->name);
	const Weight *home = w && w->tied ? w->tied : w;
	bool is_range = q->low && p->part != QUANTIZED_CODES;

	*r = (ExportRecord){.dtype = t->type, .scale = NO_SCALE, .zero = -1};
	if (is_range) {
		r->kind = p->part == QUANTIZED_SCALE ? EXPORT_RANGE_SCALE : EXPORT_RANGE_ZERO;
		r->state = (uint32_t)q->low->id;
		r->high = (uint32_t)q->high->id;
		const State *shift = p->part == QUANTIZED_SCALE ? q->scale_shift : q->zero_shift;
		r->scale = shift ? (uint32_t)shift->id : NO_SCALE;
		r->least = p->part == QUANTIZED_SCALE && is_trained(shift) ? LEAST_SCALE : 0;
		return true;
	}
	if (p->part == QUANTIZED_ZERO || t->kind != QUANTIZED_WEIGHT || !w || w->as_constant ||
	    !home->state)
		return false;
	r->least = is_trained(q->learned) ? LEAST_SCALE : 0;
	if (q->learned && p->part == QUANTIZED_SCALE) {
		r->kind = EXPORT_TENSOR;
		r->state = (uint32_t)q->learned->id;
		r->dtype = F32;
		r->rank = (uint32_t)q->learned->type->rank;
		r->block = t->n_scales;
		return true;
	}
	r->kind = p->part == QUANTIZED_CODES ? EXPORT_CODES : EXPORT_SCALES;
	r->state = (uint32_t)home->state->id;
	r->scale = q->learned ? (uint32_t)q->learned->id : NO_SCALE;
	r->rank = (uint32_t)t->shape.n;
	for (int i = 0; i < t->shape.n; i++)
		r->perm[i] = (uint8_t)(w->transposed ? t->shape.n - 1 - i : i);
	memcpy(r->group, t->group.at, sizeof(r->group));
	return true;
}

static const QuantizedPart *
part_of(const Export *e, const TensorProto *t)
{
	uint64_t found;

	return e->parts && intmap_get(e->parts, (uint64_t)(uintptr_t)t, &found)
	               ? (const QuantizedPart *)(uintptr_t)found
	               : NULL;
}

static const ExportRecord *
branch_part(const Export *e, const TensorProto *t)
{
	uint64_t found;

	return intmap_get(e->branches, (uint64_t)(uintptr_t)t, &found)
	               ? (const ExportRecord *)(uintptr_t)found
	               : NULL;
}

/* Returns w if its content comes from a state, else NULL. */
static const Weight *
trained(const Export *e, const Weight *w)
{
	const Weight *home = w && w->tied ? w->tied : w;

	return w && !w->as_constant && home->state && w->data.n ? w : NULL;
}

/* Does the Identity's parameter have a state of its own? If it shares the state of its input, the
 * node stays. */
static bool
stands_alone(const Export *e, const Weight *w)
{
	return trained(e, w) && !(w->tied && !strcmp(w->tied->name, w->identity->input[0]));
}

static void
append(ProtobufCBuffer *buffer, size_t n, const uint8_t *bytes)
{
	Export *e = (Export *)(void *)buffer;
	uint64_t found;

	if (n && intmap_get(e->holes, (uint64_t)(uintptr_t)bytes, &found))
		tensor_hole(e, (const Weight *)(uintptr_t)found, 0);
	else
		literal(e, bytes, n);
}

static void
pack(Export *e, const void *message)
{
	protobuf_c_message_pack_to_buffer(message, &e->buffer);
}

/* ---- packing by hand: tags and lengths */
static int
varint_bytes(uint64_t v)
{
	int n = 1;

	for (; v >= 0x80; v >>= 7)
		n++;
	return n;
}

static void
put_varint(Export *e, uint64_t v)
{
	uint8_t bytes[10];
	size_t n = 0;

	do {
		bytes[n++] = (uint8_t)((v & 0x7f) | (v >= 0x80 ? 0x80 : 0));
		v >>= 7;
	} while (v);
	literal(e, bytes, n);
}

/* Bytes of a field: tag, length, content. */
static Length
field_length(int number, Length content)
{
	int prefix = content.times ? PADDED_VARINT : varint_bytes((uint64_t)content.base);

	return (Length){content.base + prefix + varint_bytes((uint64_t)number << 3), content.times};
}

static void
put_header(Export *e, int number, Length content)
{
	put_varint(e, (uint64_t)number << 3 | 2);
	if (!content.times) {
		put_varint(e, (uint64_t)content.base);
		return;
	}
	flush(e, 0);
	put_record(e,
	           ((ExportRecord){
			   .kind = EXPORT_LENGTH, .offset = content.base, .times = content.times}));
}

/* ---- tensors */
typedef struct {
	TensorProto rest;     /* the tensor without raw data and external keys */
	const Weight *weight; /* NULL: the bytes are `data` */
	bool is_part;         /* `hole` describes the bytes */
	ExportRecord hole;
	const void *data;
	int64_t bytes;
	bool external, verbatim; /* verbatim: protobuf-c packs the tensor */
	char offset[24], length[24];
} TensorPlan;

enum { TENSOR_RAW = 9, TENSOR_EXTERNAL = 13, GRAPH_INITIALIZER = 5, MODEL_GRAPH = 7 };

static Length
text_field(int number, const char *text)
{
	return field_length(number, (Length){(int64_t)strlen(text), 0});
}

/* Length of a key with its value; value NULL: the data file's name. */
static Length
entry_length(const char *key, const char *value)
{
	Length k = text_field(1, key);
	Length v = value ? text_field(2, value) : field_length(2, (Length){0, 1});

	return (Length){k.base + v.base, v.times};
}

static void
put_text(Export *e, int number, const char *text)
{
	put_header(e, number, (Length){(int64_t)strlen(text), 0});
	literal(e, text, strlen(text));
}

static void
put_entry(Export *e, const char *key, const char *value)
{
	put_header(e, TENSOR_EXTERNAL, entry_length(key, value));
	put_text(e, 1, key);
	if (value) {
		put_text(e, 2, value);
		return;
	}
	put_header(e, 2, (Length){0, 1});
	flush(e, 0);
	put_record(e, ((ExportRecord){.kind = EXPORT_NAME}));
}

static void
clear_data(TensorProto *t)
{
	t->n_float_data = t->n_int32_data = t->n_int64_data = 0;
	t->n_double_data = t->n_uint64_data = 0;
	t->has_raw_data = 0;
	t->raw_data = (ProtobufCBinaryData){0, NULL};
	t->n_external_data = 0;
}

static bool
plan_tensor(Export *e, const TensorProto *t, const Weight *w, const char *name, TensorPlan *p)
{
	const QuantizedPart *part = part_of(e, t);
	TensorData data;

	*p = (TensorPlan){.rest = *t, .weight = trained(e, w), .external = tensor_is_external(t)};
	p->rest.name = (char *)(uintptr_t)name;
	const ExportRecord *branch = branch_part(e, t);
	if (branch)
		p->hole = *branch;
	p->is_part = branch || (part && part_record(e, part, &p->hole));
	if (p->is_part) {
		p->weight = NULL;
		p->bytes = (int64_t)t->raw_data.len;
		clear_data(&p->rest);
		return true;
	}
	if (!p->weight && !p->external) {
		p->verbatim = true;
		return true;
	}
	if (p->weight)
		p->bytes = dtype_bytes(w->data.dtype, w->data.n);
	else if (!tensor_load(e->model, t, false, &data, e->diag))
		return false;
	else
		p->bytes = dtype_bytes(data.dtype, data.n), p->data = data.data;
	clear_data(&p->rest);
	if (p->external) {
		e->data_bytes = (e->data_bytes + DATA_ALIGNMENT - 1) / DATA_ALIGNMENT *
		                DATA_ALIGNMENT;
		snprintf(p->offset, sizeof(p->offset), "%lld", (long long)e->data_bytes);
		snprintf(p->length, sizeof(p->length), "%lld", (long long)p->bytes);
		e->data_bytes += p->bytes;
	}
	return true;
}

static Length
plan_length(const TensorPlan *p)
{
	Length total = {(int64_t)protobuf_c_message_get_packed_size(&p->rest.base), 0};
	const char *const entries[][2] = {
		{"location", NULL}, {"offset", p->offset}, {"length", p->length}};

	if (!p->verbatim && !p->external)
		total.base += field_length(TENSOR_RAW, (Length){p->bytes, 0}).base;
	for (int i = 0; p->external && i < COUNT(entries); i++) {
		Length entry = field_length(TENSOR_EXTERNAL,
		                            entry_length(entries[i][0], entries[i][1]));
		total.base += entry.base;
		total.times += entry.times;
	}
	return total;
}

static void
put_tensor(Export *e, const TensorPlan *p)
{
	put_header(e, GRAPH_INITIALIZER, plan_length(p));
	pack(e, &p->rest);
	if (p->verbatim)
		return;
	if (p->external) {
		put_entry(e, "location", NULL);
		put_entry(e, "offset", p->offset);
		put_entry(e, "length", p->length);
		return;
	}
	put_header(e, TENSOR_RAW, (Length){p->bytes, 0});
	flush(e, 0);
	if (p->is_part)
		put_record(e, p->hole);
	else
		tensor_hole(e, p->weight, 0);
}

/* Writes the second file: external tensors in the order of the first file. */
static void
put_data(Export *e, const TensorPlan *plans, int n)
{
	flush(e, 0);
	for (int i = 0; i < n; i++) {
		if (!plans[i].external)
			continue;
		flush(e, 1);
		put_record(e, ((ExportRecord){
				      .kind = EXPORT_ALIGN, .file = 1, .bytes = DATA_ALIGNMENT}));
		if (plans[i].weight)
			tensor_hole(e, plans[i].weight, 1);
		else
			literal(e, plans[i].data, (size_t)plans[i].bytes);
	}
	flush(e, 1);
}

/* ---- nodes: the tensor of a Constant node becomes a hole; stack traces are dropped, and so are
 * Identity nodes that became parameters */
static bool
is_stack_trace(const Onnx__StringStringEntryProto *p)
{
	size_t n = p->key ? strlen(p->key) : 0;

	return n >= 11 && !strcmp(p->key + n - 11, "stack_trace");
}

static void
drop_traces(Export *e, NodeProto *n)
{
	Onnx__StringStringEntryProto **kept = NEW_ARRAY(e->arena, Onnx__StringStringEntryProto *,
	                                                n->n_metadata_props);
	size_t count = 0;

	for (size_t i = 0; i < n->n_metadata_props; i++)
		if (!is_stack_trace(n->metadata_props[i]))
			kept[count++] = n->metadata_props[i];
	n->metadata_props = kept;
	n->n_metadata_props = count;
}

/* A copy of the tensor with a hole for its bytes. */
static TensorProto *
tensor_with_hole(Export *e, const Weight *w)
{
	TensorProto *t = arena_copy(e->arena, w->tensor, sizeof(*t));

	clear_data(t);
	t->has_data_location = 0;
	t->has_raw_data = 1;
	/* A unique address stands for the bytes; nothing reads memory at this address. */
	t->raw_data.data = arena_alloc(e->arena, 16);
	t->raw_data.len = (size_t)dtype_bytes(w->data.dtype, w->data.n);
	intmap_put(e->holes, (uint64_t)(uintptr_t)t->raw_data.data, (uint64_t)(uintptr_t)w);
	return t;
}

static GraphProto *inner_graph(Export *e, const GraphProto *from);

/* Copies the attributes of n, a copy of a node, and puts holes in place of a Constant's tensor and
 * of tensors in subgraphs. */
static void
open_holes(Export *e, NodeProto *n, const Weight *constant)
{
	n->attribute = arena_copy(e->arena, n->attribute, sizeof(*n->attribute) * n->n_attribute);
	for (size_t i = 0; i < n->n_attribute; i++) {
		AttributeProto *a = n->attribute[i];
		bool here = constant && a->t == constant->tensor;
		if (!here && !a->g)
			continue;
		a = n->attribute[i] = arena_copy(e->arena, a, sizeof(*a));
		a->t = here ? tensor_with_hole(e, constant) : a->t;
		a->g = a->g ? inner_graph(e, a->g) : NULL;
	}
}

static const Weight *
trained_inside(const Export *e, const TensorProto *t)
{
	return trained(e, inner_weight(e->info->repairs, t));
}

static GraphProto *
inner_graph(Export *e, const GraphProto *from)
{
	GraphProto *g = arena_copy(e->arena, from, sizeof(*g));

	g->initializer = NEW_ARRAY(e->arena, TensorProto *, (int64_t)from->n_initializer);
	g->node = NEW_ARRAY(e->arena, NodeProto *, (int64_t)from->n_node);
	for (size_t i = 0; i < from->n_initializer; i++) {
		const Weight *w = trained_inside(e, from->initializer[i]);
		g->initializer[i] = w ? tensor_with_hole(e, w) : from->initializer[i];
	}
	for (size_t i = 0; i < from->n_node; i++) {
		NodeProto *n = arena_copy(e->arena, from->node[i], sizeof(*n));
		const AttributeProto *a = is_op(n, "Constant") ? node_attribute(n, "value") : NULL;
		open_holes(e, n, a ? trained_inside(e, a->t) : NULL);
		g->node[i] = n;
	}
	return g;
}

/* A copy of the node; NULL: the node is dropped. */
static NodeProto *
export_node(Export *e, const NodeProto *from, bool main_graph)
{
	NodeProto *n = arena_copy(e->arena, from, sizeof(*from));
	const Weight *w = main_graph && from->n_output == 1
	                          ? repairs_weight(e->info->repairs, from->output[0])
	                          : NULL;

	if (!e->info->keep_metadata)
		drop_traces(e, n);
	if (w && w->identity == from && stands_alone(e, w))
		return NULL;
	if (main_graph)
		open_holes(e, n, w && w->constant == from ? trained(e, w) : NULL);
	e->failed |= !node_take_data_in(e->model, n, e->diag);
	return n;
}

static void
export_nodes(Export *e, size_t *n, NodeProto ***nodes, bool main_graph)
{
	NodeProto **kept = NEW_ARRAY(e->arena, NodeProto *, *n);
	size_t count = 0;

	for (size_t i = 0; i < *n; i++)
		if ((kept[count] = export_node(e, (*nodes)[i], main_graph)))
			count++;
	*nodes = kept;
	*n = count;
}

/* ---- the model */
/* Plans the initializers: first the file's initializers in order, then one initializer for each
 * Identity node that becomes a parameter again. */
static TensorPlan *
plan_initializers(Export *e, const GraphProto *g, int *n)
{
	const Repairs *r = e->info->repairs;
	TensorPlan *plans = NEW_ARRAY(e->arena, TensorPlan, (int64_t)g->n_initializer + r->list.n);
	bool ok = true;

	*n = 0;
	for (size_t i = 0; i < g->n_initializer; i++) {
		const TensorProto *t = g->initializer[i];
		ok &= plan_tensor(e, t, repairs_weight(r, t->name), t->name, &plans[(*n)++]);
	}
	for (int i = 0; i < r->list.n; i++) {
		const Weight *w = r->list.at[i];
		if (w->identity && stands_alone(e, w))
			ok &= plan_tensor(e, w->tensor, w, w->name, &plans[(*n)++]);
	}
	return ok ? plans : NULL;
}

static void
put_graph(Export *e, const GraphProto *rest, const TensorPlan *plans, int n)
{
	Length total = {(int64_t)protobuf_c_message_get_packed_size(&rest->base), 0};

	for (int i = 0; i < n; i++) {
		Length tensor = field_length(GRAPH_INITIALIZER, plan_length(&plans[i]));
		total.base += tensor.base;
		total.times += tensor.times;
	}
	put_header(e, MODEL_GRAPH, total);
	pack(e, rest);
	for (int i = 0; i < n; i++)
		put_tensor(e, &plans[i]);
}

static bool
write_template(const Module *m, FormatWriter *w, ExportedModel which, Diag *diag)
{
	const ImportInfo *info = m->import;
	Arena *arena = arena_new();
	Export e = {.buffer = {append},
	            .m = m,
	            .w = w,
	            .model = info->base.model,
	            .info = info,
	            .which = which,
	            .diag = diag,
	            .arena = arena,
	            .holes = intmap_new(arena),
	            .branches = intmap_new(arena)};
	ModelProto model = *e.model->proto;
	GraphProto graph = *model.graph;
	FakeQuantization *quantize = info->quantize;
	QuantizedModel edited;
	int n;

	if (quantize) {
		model_quantize_edit(e.model, &quantize->tensors, quantize->opset, &edited);
		model = edited.proto;
		graph = edited.graph;
		e.parts = edited.parts;
	}
	const char *without = NULL;
	if (m->adapters.n && which == EXPORTED_TRAINED)
		without = model_branch_edit(m, quantize ? &quantize->tensors : NULL, &graph,
		                            e.branches, arena);
	if (without) {
		format_info(w, "no_branch", "%s", without);
		arena_free(arena);
		return true;
	}
	TensorPlan *plans = plan_initializers(&e, &graph, &n);
	if (plans) {
		export_nodes(&e, &graph.n_node, &graph.node, true);
		model.functions = NEW_ARRAY(arena, FunctionProto *, model.n_functions);
		for (size_t i = 0; i < model.n_functions; i++) {
			FunctionProto *f = arena_copy(arena, e.model->proto->functions[i],
			                              sizeof(FunctionProto));
			export_nodes(&e, &f->n_node, &f->node, false);
			model.functions[i] = f;
		}
		model.graph = NULL;
		graph.n_initializer = 0;
		pack(&e, &model);
		put_graph(&e, &graph, plans, n);
		put_data(&e, plans, n);
	}
	arena_free(arena);
	return plans && !e.failed;
}

bool
model_export_template(const Module *m, FormatWriter *w, Diag *diag)
{
	return write_template(m, w, EXPORTED_TRAINED, diag) &&
	       (m->adapters.n == 0 || write_template(m, w, EXPORTED_MERGED, diag));
}

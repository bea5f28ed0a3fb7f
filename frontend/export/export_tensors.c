/* The initializers of an exported model: which bytes are holes, which are external, and how long their
 * messages are. */
#include "frontend/export/template.h"

#include <string.h>

enum { DATA_ALIGNMENT = 64 };

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

const Weight *
weight_trained(const Weight *w)
{
	const Weight *home = w && w->tied ? w->tied : w;

	return w && !w->as_constant && home->state && w->data.n ? w : NULL;
}

bool
weight_stands_alone(const Weight *w)
{
	return weight_trained(w) && !(w->tied && !strcmp(w->tied->name, w->identity->input[0]));
}

/* ---- tensors */
struct TensorPlan {
	TensorProto rest;     /* the tensor without raw data and external keys */
	const Weight *weight; /* NULL: the bytes are `data` */
	bool is_part;         /* `hole` describes the bytes */
	ExportRecord hole;
	const void *data;
	int64_t bytes;
	bool external, verbatim; /* verbatim: protobuf-c packs the tensor */
	char offset[24], length[24];
};

enum { TENSOR_RAW = 9, TENSOR_EXTERNAL = 13, GRAPH_INITIALIZER = 5 };

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
	put_literal(e, text, strlen(text));
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
	flush_literal(e);
	put_record(e, ((ExportRecord){.kind = EXPORT_NAME}));
}

void
tensor_clear_data(TensorProto *t)
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

	*p = (TensorPlan){
		.rest = *t, .weight = weight_trained(w), .external = tensor_is_external(t)};
	p->rest.name = (char *)(uintptr_t)name;
	const ExportRecord *branch = branch_part(e, t);
	if (branch)
		p->hole = *branch;
	p->is_part = branch || (part && part_record(e, part, &p->hole));
	if (p->is_part) {
		p->weight = NULL;
		p->bytes = (int64_t)t->raw_data.len;
		tensor_clear_data(&p->rest);
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
	tensor_clear_data(&p->rest);
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
	pack_message(e, &p->rest);
	if (p->verbatim)
		return;
	if (p->external) {
		put_entry(e, "location", NULL);
		put_entry(e, "offset", p->offset);
		put_entry(e, "length", p->length);
		return;
	}
	put_header(e, TENSOR_RAW, (Length){p->bytes, 0});
	flush_literal(e);
	if (p->is_part)
		put_record(e, p->hole);
	else
		tensor_hole(e, p->weight);
}

void
put_data(Export *e, const TensorPlan *plans, int n)
{
	flush_literal(e);
	e->file = 1;
	for (int i = 0; i < n; i++) {
		if (!plans[i].external)
			continue;
		flush_literal(e);
		put_record(e, ((ExportRecord){.kind = EXPORT_ALIGN, .bytes = DATA_ALIGNMENT}));
		if (plans[i].weight)
			tensor_hole(e, plans[i].weight);
		else
			put_literal(e, plans[i].data, (size_t)plans[i].bytes);
	}
	flush_literal(e);
}

TensorPlan *
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
		if (w->identity && weight_stands_alone(w))
			ok &= plan_tensor(e, w->tensor, w, w->name, &plans[(*n)++]);
	}
	return ok ? plans : NULL;
}

Length
initializers_length(const TensorPlan *plans, int n)
{
	Length total = {0};

	for (int i = 0; i < n; i++) {
		Length tensor = field_length(GRAPH_INITIALIZER, plan_length(&plans[i]));
		total.base += tensor.base;
		total.times += tensor.times;
	}
	return total;
}

void
put_initializers(Export *e, const TensorPlan *plans, int n)
{
	for (int i = 0; i < n; i++)
		put_tensor(e, &plans[i]);
}

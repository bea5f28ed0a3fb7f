/* Writes the records of a template: literal bytes, with holes for the tensors that training changes.
 * protobuf-c packs most messages. Messages with lengths that depend on the name of the external data
 * file are packed by hand, because the name is known only at export. In a message of protobuf-c (a
 * Constant node) a trained tensor is recognized by the address of its raw_data. Large blocks of bytes
 * are shared by all templates of an executable. */
#include "frontend/export/template.h"

#include <string.h>

enum { PADDED_VARINT = 5 };

/* ---- records */
void
put_record(Export *e, ExportRecord r)
{
	r.of = e->which;
	r.form = e->form;
	r.file = e->file;
	if (!r.input) {
		r.input = e->input;
		r.when = e->when;
	}
	vec_push(e->w->arena, &e->w->exports, r);
}

void
flush_literal(Export *e)
{
	if (e->pending)
		put_record(e, ((ExportRecord){.kind = EXPORT_LITERAL,
		                              .offset = e->start,
		                              .bytes = e->pending}));
	e->pending = 0;
}

enum { LARGE = 4096 }; /* bytes from which on templates share */

/* Puts a record of bytes that the literal section has already; false: the section lacks them. */
static bool
put_known(Export *e, const void *bytes, size_t n)
{
	const Text *literal = &e->w->literal;
	uint64_t key = (uint64_t)(uintptr_t)bytes, at;

	if (n < LARGE)
		return false;
	if (!intmap_get(e->known, key, &at) || at + n > literal->n ||
	    memcmp(literal->at + at, bytes, n) != 0) {
		intmap_put(e->known, key, literal->n);
		return false;
	}
	flush_literal(e);
	put_record(e, ((ExportRecord){
			      .kind = EXPORT_LITERAL, .offset = (int64_t)at, .bytes = (int64_t)n}));
	return true;
}

void
put_literal(Export *e, const void *bytes, size_t n)
{
	if (put_known(e, bytes, n))
		return;
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
codes_hole(Export *e, const Weight *w)
{
	const Codes *c = w->codes;
	const Weight *scale = repairs_weight(e->info->repairs, c->scale);
	ExportRecord r = {.kind = EXPORT_CODES,
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
	flush_literal(e);
	if (c->zero) {
		r.zero = (int64_t)e->w->literal.n;
		text_add_bytes(&e->w->literal, c->zero, sizeof(*c->zero) * (size_t)codes_scales(c));
	}
	put_record(e, r);
}

void
tensor_hole(Export *e, const Weight *w)
{
	const Weight *home = w->tied ? w->tied : w;
	const State *state = home->state;
	ExportRecord r = {.kind = EXPORT_TENSOR,
	                  .state = (uint32_t)state->id,
	                  .dtype = w->data.dtype,
	                  .rank = (uint32_t)w->data.rank,
	                  .least = least_of(home),
	                  .bytes = dtype_bytes(w->data.dtype, w->data.n)};
	int64_t copies = 1;

	if (w->codes) {
		codes_hole(e, w);
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
	flush_literal(e);
	put_record(e, r);
}

/* ---- messages of protobuf-c */
static void
append(ProtobufCBuffer *buffer, size_t n, const uint8_t *bytes)
{
	Export *e = (Export *)(void *)buffer;
	uint64_t found;

	if (n && e->inputs.n && preprocess_put_name(e, bytes))
		return;
	if (n && intmap_get(e->holes, (uint64_t)(uintptr_t)bytes, &found))
		tensor_hole(e, (const Weight *)(uintptr_t)found);
	else
		put_literal(e, bytes, n);
}

void
template_open(Export *e)
{
	e->buffer = (ProtobufCBuffer){append};
}

void
pack_message(Export *e, const void *message)
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
	put_literal(e, bytes, n);
}

Length
field_length(int number, Length content)
{
	int prefix = content.times ? PADDED_VARINT : varint_bytes((uint64_t)content.base);

	return (Length){content.base + prefix + varint_bytes((uint64_t)number << 3), content.times};
}

static void
put_length(Export *e, Length content, bool of_graph)
{
	flush_literal(e);
	put_record(e, (ExportRecord){.kind = EXPORT_LENGTH,
	                             .offset = content.base,
	                             .times = content.times,
	                             .input = of_graph});
}

void
put_header(Export *e, int number, Length content)
{
	put_varint(e, (uint64_t)number << 3 | 2);
	if (content.times)
		put_length(e, content, false);
	else
		put_varint(e, (uint64_t)content.base);
}

void
put_graph_header(Export *e, int number, Length content)
{
	put_varint(e, (uint64_t)number << 3 | 2);
	if (e->inputs.n)
		put_length(e, content, true);
	else if (content.times)
		put_length(e, content, false);
	else
		put_varint(e, (uint64_t)content.base);
}

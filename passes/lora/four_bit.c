/* --qlora: stores a frozen weight as 4-bit numbers (Dettmers et al. 2023, arXiv:2305.14314);
 * products that read the weight compute its numbers from the 4-bit codes. A block is a range of
 * numbers that share a scale. Blocks run along the inputs of one output, because bitsandbytes
 * stores weights as [outputs, inputs]. For example
 *
 *	%1 = dot %x, @w                                                       of @w: f32[64,32]
 *
 * becomes
 *
 *	%2 = add (mul (lookup MAP, @w.absmax), @w.nested_absmax for each 256), @w.nested_offset       one number for each 64
 *	%3 = transpose (dequantize @w, %2 {codes = nf4, block = 64, dtype = f32, shape = [32,64]})    of @w: u8[1024]
 *	%1 = dot %x, %3 */
#include "passes/lora/lora.h"

#include <math.h>
#include <string.h>

static const Tensor *
vector(Module *m, DType dtype, int64_t n, const void *data)
{
	return tensor_borrow(m, type_new(m, dtype, 1, &n), data);
}

/* Stores absmax as codes. Afterwards `absmax` has the numbers that the codes stand for. */
static void
nest(Module *m, float *absmax, int64_t n, LoraCodes *out)
{
	uint8_t *codes = NEW_ARRAY(m->arena, uint8_t, n);
	float *nested = NEW_ARRAY(m->arena, float, absmax_blocks(n));
	float *offset = NEW(m->arena, float);

	absmax_quantize(absmax, n, codes, nested, offset);
	absmax_numbers(codes, nested, *offset, n, absmax);
	out->absmax = vector(m, U8, n, codes);
	out->nested = vector(m, F32, absmax_blocks(n), nested);
	out->offset = vector(m, F32, 1, offset);
}

const LoraCodes *
lora_codes(Module *m, const Tensor *weight, int axis, const LoraSettings *s, const char **why)
{
	Type t = weight->type;
	LoraPlace p = lora_place_of(t, axis, s);
	int64_t blocks = four_bit_blocks(t->n), bytes = (t->n + 1) / 2;
	LoraCodes *out = NEW(m->arena, LoraCodes);
	uint8_t *codes = NEW_ARRAY(m->arena, uint8_t, bytes);
	float *absmax = NEW_ARRAY(m->arena, float, blocks);
	char *numbers = s->dora ? arena_alloc(m->arena, (size_t)dtype_bytes(t->dtype, t->n) + 1)
	                        : NULL;
	Arena *scratch = arena_new();
	float *x = NEW_ARRAY(scratch, float, t->n);

	*why = NULL;
	for (int64_t i = 0; i < t->n; i++) {
		double number = tensor_float(weight, i);
		if (!isfinite((float)number))
			*why = "one of its numbers is not finite";
		x[lora_place(&p, i)] = (float)number;
	}
	if (!*why)
		four_bit_quantize(s->kind, x, t->n, codes, absmax);
	arena_free(scratch);
	if (*why)
		return NULL;
	out->codes = vector(m, U8, bytes, codes);
	if (s->nested)
		nest(m, absmax, blocks, out);
	else
		out->absmax = vector(m, F32, blocks, absmax);
	for (int64_t i = 0; numbers && i < t->n; i++)
		dtype_store_float(t->dtype, numbers, i,
		                  four_bit_number(s->kind, codes, absmax, lora_place(&p, i)));
	out->numbers = numbers ? tensor_borrow(m, t, numbers) : NULL;
	return out;
}

static State *
constant_state(Module *m, const State *weight, const char *suffix, const Tensor *data)
{
	const char *name = arena_printf(m->arena, "%s.%s", weight->name, suffix);
	State *s = state_new(m, module_fresh_name(m, name), data->type, STATE_CONSTANT,
	                     LIFE_CONSTANT);

	s->init = INIT_DATA;
	s->data = data;
	s->loc = weight->loc;
	return s;
}

/* The largest magnitude in each block of the weight. */
static Value *
absmax_of(Builder *b, const FourBitWeight *w)
{
	Value *codes = function_state(b->f, w->absmax);
	int64_t n = w->absmax->type->n, map_size = DYNAMIC_MAP;
	float map[DYNAMIC_MAP];

	if (!w->nested)
		return codes;
	Ints in_blocks = {.n = 2, .at = {absmax_blocks(n), ABSMAX_BLOCK}}, flat = {.n = 1};
	flat.at[0] = in_blocks.at[0] * ABSMAX_BLOCK;
	dynamic_map(true, map);
	Value *table = b_constant(b, tensor_new(b->m, type_new(b->m, F32, 1, &map_size), map));
	Value *size = build(b, OP_lookup, 2, (Value *[]){table, b_cast(b, codes, S32)}, NULL);
	Value *of = b_broadcast(b, function_state(b->f, w->nested), in_blocks,
	                        (Ints){.n = 1, .at = {0}});
	of = b_slice_axis(b, b_reshape(b, of, flat), 0, 0, n);
	Value *offset = b_broadcast_to(b, function_state(b->f, w->offset),
	                               (Ints){.n = 1, .at = {n}});
	return b_binary(b, OP_add, b_binary(b, OP_mul, size, of), offset);
}

/* v now holds codes. Makes its readers read the dequantized numbers instead, with the axes in the
 * weight's order. */
static void
read_numbers(Builder *b, const FourBitWeight *w, Value *v)
{
	DequantizeAttr a = {.codes = w->kind, .block = FOUR_BIT_BLOCK, .dtype = w->type->dtype};
	Ints back = {.n = w->type->rank};

	a.shape.n = w->type->rank;
	for (int i = 0; i < w->type->rank; i++) {
		int from = i == 0         ? w->axis
		           : i <= w->axis ? i - 1
		                          : i; /* the weight's axis that is stored as axis i */
		a.shape.at[i] = w->type->dims[from];
		back.at[from] = i;
	}
	v->type = w->codes->type;
	Value *y = build(b, OP_dequantize, 2, (Value *[]){v, absmax_of(b, w)}, &a);
	value_replace_uses(v, w->axis == 0 ? y : b_transpose(b, y, back));
	node_set_operand(y->node, 0, v);
}

void
lora_keep_codes(Module *m, State *weight, int axis, const LoraCodes *codes, const LoraSettings *s)
{
	FourBitWeight w = {.codes = weight, .kind = s->kind, .type = weight->type, .axis = axis};

	w.absmax = constant_state(m, weight, "absmax", codes->absmax);
	if (codes->nested) {
		w.nested = constant_state(m, weight, "nested_absmax", codes->nested);
		w.offset = constant_state(m, weight, "nested_offset", codes->offset);
	}
	weight->type = codes->codes->type;
	weight->data = codes->codes;
	weight->init = INIT_DATA;
	weight->init_given = true;
	vec_push(m->arena, &m->four_bit, w);
	for_each_function(m, f) {
		Value *v = weight->id < f->by_state.n ? f->by_state.at[weight->id] : NULL;
		if (!v)
			continue;
		Builder b = {.m = m,
		             .f = f,
		             .before = f->first,
		             .loc = weight->loc,
		             .phase = f->first->phase};
		read_numbers(&b, &w, v);
	}
}

/* Prints loads and stores, and the places that they access, as LLVM IR. In a vector loop each
 * lane accesses an element. If the elements are contiguous, they are one access; otherwise they
 * are a gather or scatter, or accessed one by one. */
#include "codegen/llvm/print.h"

V
lane_constants(const Printer *p, int64_t step)
{
	V lanes[LOOP_LANES];

	for (int i = 0; i < LOOP_LANES; i++)
		lanes[i] = llvm_word(p, i * step);
	return LLVMConstVector(lanes, LOOP_LANES);
}

V
lane_mask(const Printer *p, int n)
{
	LLVMTypeRef bit = LLVMInt1TypeInContext(p->context);
	V lanes[LOOP_LANES];

	for (int i = 0; i < LOOP_LANES; i++)
		lanes[i] = LLVMConstInt(bit, i < n, false);
	return LLVMConstVector(lanes, LOOP_LANES);
}

V
lanes_below(const Printer *p, V n)
{
	LLVMTypeRef t = LLVMInt32TypeInContext(p->context);
	V lanes[LOOP_LANES];

	for (int i = 0; i < LOOP_LANES; i++)
		lanes[i] = LLVMConstInt(t, (unsigned)i, false);
	return LLVMBuildICmp(p->b, LLVMIntULT, LLVMConstVector(lanes, LOOP_LANES),
	                     widen(p, LLVMBuildTrunc(p->b, n, t, "")), "");
}

/* ---- places */
static V
scaled(const Printer *p, V x, int64_t by)
{
	V factor = llvm_word(p, by);

	if (by == 1)
		return x;
	return LLVMBuildMul(p->b, x, is_vector(x) ? widen(p, factor) : factor, "");
}

V
llvm_plus(const Printer *p, V x, V y)
{
	if (is_vector(x) != is_vector(y)) {
		x = widen(p, x);
		y = widen(p, y);
	}
	return LLVMBuildAdd(p->b, x, y, "");
}

/* The place in lane i is shared + step * i + varying[i] + constant. The constant is added last,
 * so that places that differ only by a constant share the code for the rest. */
typedef struct {
	V shared, varying; /* NULL: 0 */
	int64_t step, constant;
} Place;

static V
added(const Printer *p, V sum, V x)
{
	return sum ? llvm_plus(p, sum, x) : x;
}

static Place
split_place(const Printer *p, const Affine *a)
{
	Place place = {.constant = a->constant};

	for (int i = 0; i < a->n; i++) {
		int64_t by = a->terms[i].coefficient;
		V x = p->frame.values[a->terms[i].scalar];
		if (a->terms[i].scalar == p->variable) {
			place.step += by;
			x = p->block;
		}
		if (LLVMIsAConstantInt(x)) {
			place.constant += by * LLVMConstIntGetSExtValue(x);
			continue;
		}
		V *sum = is_vector(x) ? &place.varying : &place.shared;
		*sum = added(p, *sum, scaled(p, x, by));
	}
	return place;
}

V
emit_affine(const Printer *p, const Affine *a)
{
	Place place = split_place(p, a);
	V x = place.shared;

	if (place.varying)
		x = added(p, x, place.varying);
	if (place.step)
		x = added(p, x, lane_constants(p, place.step));
	return x && place.constant == 0 ? x : added(p, x, llvm_word(p, place.constant));
}

V
llvm_address(const Printer *p, LLVMTypeRef t, V base, V offset)
{
	return LLVMBuildGEP2(p->b, t, base, &offset, 1, "");
}

/* The address of the array's first element. In a private array: the first element of the share of
 * the current team member. Shares of packed elements begin at a whole byte. */
V
array_base(const Printer *p, int buffer)
{
	const LoopBuffer *b = &p->k->buffers.at[buffer];
	V member = NULL;

	for (int i = p->declared[buffer]; b->kind == BUFFER_PRIVATE && i < p->k->n_team; i++)
		member = member ? LLVMBuildAdd(p->b, scaled(p, member, p->k->team[i]), p->open[i],
		                               "")
		                : p->open[i];
	if (!member)
		return p->buffers[buffer];
	return llvm_address(p, LLVMInt8TypeInContext(p->context), p->buffers[buffer],
	                    scaled(p, member, type_bytes(b->type)));
}

/* The address of the first lane's element. A freeze hides the sum before it from LLVM's loop
 * strength reduction. That pass then handles all places that differ only by a constant as one
 * address; without the freeze, it takes a quarter of the compile time. */
static V
first_address(const Printer *p, LLVMTypeRef t, V base, const Place *place)
{
	if (place->shared)
		base = LLVMBuildFreeze(p->b, llvm_address(p, t, base, place->shared), "");
	return place->constant ? llvm_address(p, t, base, llvm_word(p, place->constant)) : base;
}

/* The addresses of all lanes' elements. */
static V
addresses(const Printer *p, LLVMTypeRef t, V base, const Place *place)
{
	V lanes = place->varying;

	if (place->step)
		lanes = added(p, lanes, lane_constants(p, place->step));
	return llvm_address(p, t, first_address(p, t, base, place), lanes);
}

static V
all_lanes(const Printer *p)
{
	return p->mask ? p->mask : lane_mask(p, LOOP_LANES);
}

static V
alignment(const Printer *p, DType storage)
{
	return LLVMConstInt(LLVMInt32TypeInContext(p->context),
	                    (unsigned long long)dtype_bytes(storage, 1), false);
}

/* Is the buffer a local array? Local arrays have room for a vector after their end. */
static bool
is_local(const Printer *p, int buffer)
{
	return p->k->buffers.at[buffer].kind == BUFFER_LOCAL;
}

static V
masked_load(const Printer *p, DType storage, V at, V mask)
{
	LLVMTypeRef t = LLVMVectorType(storage_type(p, storage), LOOP_LANES);
	V args[] = {at, alignment(p, storage), mask, LLVMConstNull(t)};

	return call_intrinsic(p, "llvm.masked.load", (LLVMTypeRef[]){t, LLVMTypeOf(at)}, 2, args,
	                      4);
}

/* Loads LOOP_LANES elements from `at`; 0 in lanes that do not run. A local array may be read past
 * its end, so its load needs no mask. But the numbers there may be subnormal and slow CPUs down,
 * so those lanes are set to 0 afterwards. */
static V
load_lanes(const Printer *p, const LoopStatement *s, DType storage, V at)
{
	LLVMTypeRef t = LLVMVectorType(storage_type(p, storage), LOOP_LANES);

	if (p->mask && !is_local(p, s->buffer))
		return masked_load(p, storage, at, p->mask);
	V x = LLVMBuildLoad2(p->b, t, at, "");
	LLVMSetAlignment(x, (unsigned)dtype_bytes(storage, 1));
	return p->mask ? LLVMBuildSelect(p->b, p->mask, x, LLVMConstNull(t), "") : x;
}

/* For CPUs without a gather instruction: loads lanes that are `step` elements apart, one by one,
 * each from the first address plus a constant. A gather in LLVM IR would build a vector of
 * addresses and take it apart again. */
static V
load_apart(const Printer *p, LLVMTypeRef t, V first, int64_t step)
{
	LLVMTypeRef wide = LLVMVectorType(t, LOOP_LANES);
	V x = p->mask ? LLVMConstNull(wide) : LLVMGetPoison(wide);

	for (int i = 0; i < p->active; i++) {
		V lane = LLVMBuildLoad2(p->b, t, llvm_address(p, t, first, llvm_word(p, i * step)),
		                        "");
		x = LLVMBuildInsertElement(p->b, x, lane, llvm_word(p, i), "");
	}
	return x;
}

static void
store_apart(const Printer *p, LLVMTypeRef t, V first, int64_t step, V x)
{
	for (int i = 0; i < p->active; i++)
		LLVMBuildStore(p->b, LLVMBuildExtractElement(p->b, x, llvm_word(p, i), ""),
		               llvm_address(p, t, first, llvm_word(p, i * step)));
}

/* The lanes of x that run, as a shorter vector. */
static V
first_lanes(const Printer *p, V x)
{
	V lanes[LOOP_LANES];

	for (int i = 0; i < p->active; i++)
		lanes[i] = LLVMConstInt(LLVMInt32TypeInContext(p->context), (unsigned)i, false);
	return LLVMBuildShuffleVector(p->b, x, LLVMGetUndef(LLVMTypeOf(x)),
	                              LLVMConstVector(lanes, (unsigned)p->active), "");
}

static void
store_lanes(const Printer *p, const LoopStatement *s, DType storage, V at, V x)
{
	LLVMTypeRef t = LLVMTypeOf(x);

	if (p->mask && (p->count || !is_local(p, s->buffer))) {
		V args[] = {x, at, alignment(p, storage), p->mask};
		call_intrinsic(p, "llvm.masked.store", (LLVMTypeRef[]){t, LLVMTypeOf(at)}, 2, args,
		               4);
		return;
	}
	if (p->mask)
		x = first_lanes(p, x);
	LLVMSetAlignment(LLVMBuildStore(p->b, x, at), (unsigned)dtype_bytes(storage, 1));
}

/* Lane i of x; if lane i does not run, the last lane that runs. */
static V
lane_of(const Printer *p, V x, int i)
{
	LLVMTypeRef word = LLVMInt64TypeInContext(p->context);
	V number = llvm_word(p, i);

	if (p->count) {
		V args[] = {number, LLVMBuildSub(p->b, p->count, llvm_word(p, 1), "")};
		number = call_intrinsic(p, "llvm.umin", &word, 1, args, 2);
	}
	return LLVMBuildExtractElement(p->b, x, number, "");
}

/* If all lanes store to one place, the value of the last lane that runs is stored. */
static V
last_lane(const Printer *p, V x)
{
	return is_vector(x) ? lane_of(p, x, p->active - 1) : x;
}

/* ---- under a mask */

/* The mask of a load, limited to the lanes that run. */
static V
lanes_of_mask(const Printer *p, V mask)
{
	mask = widen(p, mask);
	return p->mask ? LLVMBuildAnd(p->b, mask, p->mask, "") : mask;
}

/* The address from which masked lanes read: zeros. */
static V
zeros(const Printer *p)
{
	LLVMTypeRef t = LLVMInt64TypeInContext(p->context);
	V at = LLVMGetNamedGlobal(p->module, "gradc.zeros");

	if (at)
		return at;
	at = LLVMAddGlobal(p->module, t, "gradc.zeros");
	LLVMSetInitializer(at, LLVMConstNull(t));
	LLVMSetGlobalConstant(at, true);
	LLVMSetLinkage(at, LLVMPrivateLinkage);
	return at;
}

/* Loads each lane from its own address. For a CPU without a gather instruction, LLVM would turn
 * the mask into a branch per lane; so here lanes that the mask switches off read from an address
 * that holds zeros. */
static V
gather(const Printer *p, DType storage, V at, V mask)
{
	LLVMTypeRef wide = LLVMVectorType(storage_type(p, storage), LOOP_LANES);

	if (!p->gathers && !LLVMIsConstant(mask)) {
		at = LLVMBuildSelect(p->b, mask, at, widen(p, zeros(p)), "");
		mask = lane_mask(p, LOOP_LANES);
	}
	V args[] = {at, alignment(p, storage), mask, LLVMConstNull(wide)};
	return call_intrinsic(p, "llvm.masked.gather", (LLVMTypeRef[]){wide, LLVMTypeOf(at)}, 2,
	                      args, 4);
}

static V
address_if(const Printer *p, V inside, V at)
{
	return LLVMBuildSelect(p->b, inside, at, zeros(p), "");
}

/* ---- several elements in a byte */

/* The integer `value` in x's type; if x is a vector, in all lanes. */
static V
same_lanes(const Printer *p, V x, int64_t value)
{
	LLVMTypeRef t = LLVMTypeOf(x);
	V one = LLVMConstInt(is_vector(x) ? LLVMGetElementType(t) : t, (unsigned long long)value,
	                     true);

	return is_vector(x) ? widen(p, one) : one;
}

/* The byte of a packed element, and by how many bits the element is shifted in this byte. */
typedef struct {
	V byte, shift;
} PackedPlace;

static PackedPlace
packed_place(const Printer *p, DType storage, V base, V place)
{
	LLVMTypeRef byte = LLVMInt8TypeInContext(p->context);
	int bits = dtype_info[storage].bits, per_byte = 8 / bits;
	V number = LLVMBuildUDiv(p->b, place, same_lanes(p, place, per_byte), "");
	V within = LLVMBuildAnd(p->b, place, same_lanes(p, place, per_byte - 1), "");
	V shift = LLVMBuildMul(p->b, within, same_lanes(p, within, bits), "");
	LLVMTypeRef wide = is_vector(place) ? LLVMVectorType(byte, LOOP_LANES) : byte;

	return (PackedPlace){llvm_address(p, byte, base, number),
	                     LLVMBuildTrunc(p->b, shift, wide, "")};
}

/* mask: the mask of the load; NULL: none. */
static V
load_packed(Printer *p, const LoopStatement *s, DType storage, V mask)
{
	LLVMTypeRef byte = LLVMInt8TypeInContext(p->context);
	V place = emit_affine(p, s->place), x;
	bool wide = is_vector(place) || (mask && is_vector(mask));
	PackedPlace at = packed_place(p, storage, array_base(p, s->buffer),
	                              wide ? widen(p, place) : place);

	if (wide)
		x = gather(p, storage, at.byte, mask ? lanes_of_mask(p, mask) : all_lanes(p));
	else
		x = LLVMBuildLoad2(p->b, byte, mask ? address_if(p, mask, at.byte) : at.byte, "");
	x = LLVMBuildLShr(p->b, x, at.shift, "");
	return LLVMBuildAnd(p->b, x, same_lanes(p, x, (1 << dtype_info[storage].bits) - 1), "");
}

static void
store_one_packed(const Printer *p, DType storage, V base, V place, V x)
{
	LLVMTypeRef byte = LLVMInt8TypeInContext(p->context);
	PackedPlace at = packed_place(p, storage, base, place);
	V mask = LLVMConstInt(byte, (1ull << dtype_info[storage].bits) - 1, false);
	V others = LLVMBuildNot(p->b, LLVMBuildShl(p->b, mask, at.shift, ""), "");
	V old = LLVMBuildAnd(p->b, LLVMBuildLoad2(p->b, byte, at.byte, ""), others, "");

	x = LLVMBuildShl(p->b, LLVMBuildAnd(p->b, x, mask, ""), at.shift, "");
	LLVMBuildStore(p->b, LLVMBuildOr(p->b, old, x, ""), at.byte);
}

/* Stores lane after lane, because lanes share bytes. A lane that does not run stores the value of
 * the last running lane at that lane's place once more, which changes nothing. */
static void
store_packed(Printer *p, const LoopStatement *s, DType storage, V x)
{
	V place = emit_affine(p, s->place), base = array_base(p, s->buffer);

	if (!is_vector(place)) {
		store_one_packed(p, storage, base, place, last_lane(p, x));
		return;
	}
	x = widen(p, x);
	for (int i = 0; i < p->active; i++)
		store_one_packed(p, storage, base, lane_of(p, place, i), lane_of(p, x, i));
}

/* Loads elements as they are in memory; lanes that the mask switches off read zeros. */
static V
load_bits_if(Printer *p, const LoopStatement *s, DType storage, V inside)
{
	LLVMTypeRef t = storage_type(p, storage);
	V base = array_base(p, s->buffer);

	if (is_packed(storage))
		return load_packed(p, s, storage, inside);
	Place place = split_place(p, s->place);
	bool one = !place.varying && place.step == 0;
	if (one && !is_vector(inside))
		return LLVMBuildLoad2(p->b, t,
		                      address_if(p, inside, first_address(p, t, base, &place)), "");
	V mask = lanes_of_mask(p, inside);
	if (!place.varying && place.step == 1 && p->masks)
		return masked_load(p, storage, first_address(p, t, base, &place), mask);
	V at = one ? widen(p, first_address(p, t, base, &place)) : addresses(p, t, base, &place);
	return gather(p, storage, at, mask);
}

/* Loads the element; 0 in lanes where the load's mask (operand 0 of the statement) is false. */
static V
emit_load_if(Printer *p, const LoopStatement *s, DType storage)
{
	V inside = p->frame.values[s->operands[0]];
	V x = from_storage(p, storage, load_bits_if(p, s, storage, inside));

	/* masked lanes have read zero bits, which mean 0 in every type but E8M0 (2^-127) */
	if (storage != E8M0)
		return x;
	if (is_vector(x) != is_vector(inside)) {
		x = widen(p, x);
		inside = widen(p, inside);
	}
	return LLVMBuildSelect(p->b, inside, x, LLVMConstNull(LLVMTypeOf(x)), "");
}

V
emit_load(Printer *p, const LoopStatement *s)
{
	DType storage = p->k->buffers.at[s->buffer].type->dtype;
	LLVMTypeRef t = storage_type(p, storage);

	if (s->n_operands)
		return emit_load_if(p, s, storage);
	if (is_packed(storage))
		return from_storage(p, storage, load_packed(p, s, storage, NULL));
	Place place = split_place(p, s->place);
	V base = array_base(p, s->buffer), x;

	if (!place.varying && place.step == 0) {
		x = LLVMBuildLoad2(p->b, t, first_address(p, t, base, &place), "");
	} else if (!place.varying && place.step == 1) {
		x = load_lanes(p, s, storage, first_address(p, t, base, &place));
	} else if (!place.varying && !p->gathers && !p->count) {
		x = load_apart(p, t, first_address(p, t, base, &place), place.step);
	} else {
		x = gather(p, storage, addresses(p, t, base, &place), all_lanes(p));
	}
	return from_storage(p, storage, x);
}

void
emit_store(Printer *p, const LoopStatement *s)
{
	DType storage = p->k->buffers.at[s->buffer].type->dtype;
	LLVMTypeRef t = storage_type(p, storage);
	Place place = split_place(p, s->place);
	V base = array_base(p, s->buffer);
	V x = to_storage(p, storage, p->frame.values[s->operands[0]]);

	if (is_packed(storage)) {
		store_packed(p, s, storage, x);
		return;
	}
	if (!place.varying && place.step == 0) {
		LLVMBuildStore(p->b, last_lane(p, x), first_address(p, t, base, &place));
		return;
	}
	x = widen(p, x);
	if (!place.varying && place.step == 1) {
		store_lanes(p, s, storage, first_address(p, t, base, &place), x);
		return;
	}
	if (!place.varying && !p->gathers && !p->count) {
		store_apart(p, t, first_address(p, t, base, &place), place.step, x);
		return;
	}
	V at = addresses(p, t, base, &place);
	V args[] = {x, at, alignment(p, storage), all_lanes(p)};
	call_intrinsic(p, "llvm.masked.scatter", (LLVMTypeRef[]){LLVMTypeOf(x), LLVMTypeOf(at)}, 2,
	               args, 4);
}

/* Places, loads and stores as LLVM IR: consecutive lanes as one access, others by gather and scatter. */
#include "codegen/llvm/llvm_impl.h"

V
lane_constants(const Printer *p, int64_t step)
{
	V lanes[LOOP_LANES];

	for (int i = 0; i < LOOP_LANES; i++)
		lanes[i] = llvm_word(p, i * step);
	return LLVMConstVector(lanes, LOOP_LANES);
}

/* The first n lanes. */
V
lane_mask(const Printer *p, int n)
{
	LLVMTypeRef bit = LLVMInt1TypeInContext(p->context);
	V lanes[LOOP_LANES];

	for (int i = 0; i < LOOP_LANES; i++)
		lanes[i] = LLVMConstInt(bit, i < n, false);
	return LLVMConstVector(lanes, LOOP_LANES);
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

/* A place as what all lanes share, what a lane adds for its number, and what else differs. */
typedef struct {
	V shared, varying; /* varying NULL: nothing */
	int64_t step;
} Place;

static Place
split_place(const Printer *p, const Affine *a)
{
	Place place = {.shared = llvm_word(p, a->constant)};

	for (int i = 0; i < a->n; i++) {
		int64_t by = a->terms[i].coefficient;
		V x = p->frame.values[a->terms[i].scalar];
		if (a->terms[i].scalar == p->variable) {
			place.step += by;
			place.shared = llvm_plus(p, place.shared, scaled(p, p->block, by));
		} else if (is_vector(x)) {
			V more = scaled(p, x, by);
			place.varying = place.varying ? llvm_plus(p, place.varying, more) : more;
		} else {
			place.shared = llvm_plus(p, place.shared, scaled(p, x, by));
		}
	}
	return place;
}

V
emit_affine(const Printer *p, const Affine *a)
{
	Place place = split_place(p, a);
	V x = place.shared;

	if (place.step)
		x = llvm_plus(p, x, lane_constants(p, place.step));
	return place.varying ? llvm_plus(p, x, place.varying) : x;
}

V
llvm_address(const Printer *p, LLVMTypeRef t, V base, V offset)
{
	return LLVMBuildGEP2(p->b, t, base, &offset, 1, "");
}

/* Where each lane's element is. */
static V
addresses(const Printer *p, LLVMTypeRef t, V base, const Place *place)
{
	V lanes = place->varying;

	if (place->step) {
		V steps = lane_constants(p, place->step);
		lanes = lanes ? llvm_plus(p, lanes, steps) : steps;
	}
	return llvm_address(p, t, llvm_address(p, t, base, place->shared), lanes);
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

static bool
is_local(const Printer *p, int buffer)
{
	return p->k->buffers.at[buffer].kind == BUFFER_LOCAL;
}

/* LOOP_LANES elements from `at`. A local has room for all of them behind its end. */
static V
load_lanes(const Printer *p, const LoopStatement *s, DType storage, V at)
{
	LLVMTypeRef t = LLVMVectorType(storage_type(p, storage), LOOP_LANES);

	if (p->mask && !is_local(p, s->buffer)) {
		V args[] = {at, alignment(p, storage), p->mask, LLVMConstNull(t)};
		return call_intrinsic(p, "llvm.masked.load", (LLVMTypeRef[]){t, LLVMTypeOf(at)}, 2,
		                      args, 4);
	}
	V x = LLVMBuildLoad2(p->b, t, at, "");
	LLVMSetAlignment(x, (unsigned)dtype_bytes(storage, 1));
	return x;
}

/* Those that run, as a shorter vector. */
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

	if (p->mask && !is_local(p, s->buffer)) {
		V args[] = {x, at, alignment(p, storage), p->mask};
		call_intrinsic(p, "llvm.masked.store", (LLVMTypeRef[]){t, LLVMTypeOf(at)}, 2, args,
		               4);
		return;
	}
	if (p->mask)
		x = first_lanes(p, x);
	LLVMSetAlignment(LLVMBuildStore(p->b, x, at), (unsigned)dtype_bytes(storage, 1));
}

V
emit_load(Printer *p, const LoopStatement *s)
{
	DType storage = p->k->buffers.at[s->buffer].type->dtype;
	LLVMTypeRef t = storage_type(p, storage);
	Place place = split_place(p, s->place);
	V base = p->buffers[s->buffer], x;

	if (!place.varying && place.step == 0) {
		x = LLVMBuildLoad2(p->b, t, llvm_address(p, t, base, place.shared), "");
	} else if (!place.varying && place.step == 1) {
		x = load_lanes(p, s, storage, llvm_address(p, t, base, place.shared));
	} else {
		V at = addresses(p, t, base, &place);
		LLVMTypeRef wide = LLVMVectorType(t, LOOP_LANES);
		V args[] = {at, alignment(p, storage), all_lanes(p), LLVMConstNull(wide)};
		x = call_intrinsic(p, "llvm.masked.gather", (LLVMTypeRef[]){wide, LLVMTypeOf(at)},
		                   2, args, 4);
	}
	return from_storage(p, storage, x);
}

/* To one place for all lanes the last one stores. */
static V
last_lane(const Printer *p, V x)
{
	return is_vector(x) ? LLVMBuildExtractElement(p->b, x, llvm_word(p, p->active - 1), "") : x;
}

void
emit_store(Printer *p, const LoopStatement *s)
{
	DType storage = p->k->buffers.at[s->buffer].type->dtype;
	LLVMTypeRef t = storage_type(p, storage);
	Place place = split_place(p, s->place);
	V base = p->buffers[s->buffer];
	V x = to_storage(p, storage, p->frame.values[s->operands[0]]);

	if (!place.varying && place.step == 0) {
		LLVMBuildStore(p->b, last_lane(p, x), llvm_address(p, t, base, place.shared));
		return;
	}
	x = widen(p, x);
	if (!place.varying && place.step == 1) {
		store_lanes(p, s, storage, llvm_address(p, t, base, place.shared), x);
		return;
	}
	V at = addresses(p, t, base, &place);
	V args[] = {x, at, alignment(p, storage), all_lanes(p)};
	call_intrinsic(p, "llvm.masked.scatter", (LLVMTypeRef[]){LLVMTypeOf(x), LLVMTypeOf(at)}, 2,
	               args, 4);
}

/* Kernels as LLVM IR. A vector loop runs LOOP_LANES iterations at a time, the rest of them under a mask;
 * a value is a vector where it depends on the loop's variable and a scalar elsewhere. Whoever wants
 * to read the result: gradc dump --stage=llvm. */
#include "codegen/llvm/llvm.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

typedef LLVMValueRef V;
/* What a straight line computes with: a kernel's scalars, or those of a scalar function. */
typedef struct {
	const DType *types;
	V *values; /* by scalar */
} Frame;
typedef struct {
	LLVMContextRef context;
	LLVMModuleRef module;
	LLVMBuilderRef b;
	LLVMBuilderRef top; /* at the end of the entry block, where local memory is made */
	Arena *arena;
	ScalarFunctions *functions;
	const Kernel *k;
	V function, scalars, begin, end;
	Frame frame;
	V *buffers;      /* by buffer: where it begins */
	V *accumulators; /* by scalar: where it is kept */
	/* Of the vector loop around: its variable, the block's first iteration, which lanes run. */
	LoopValue variable; /* -1: no vector loop */
	V block, mask;      /* mask NULL: all lanes */
	int active;         /* lanes that run */
} Printer;

enum { UNROLLED_BLOCKS = 4, LARGE_LOCAL = 1 << 18 };

/* ---- types and constants */
static LLVMTypeRef
llvm_type(const Printer *p, DType type)
{
	int bits = dtype_info[type].bits;

	if (type == F64)
		return LLVMDoubleTypeInContext(p->context);
	if (type == F32)
		return LLVMFloatTypeInContext(p->context);
	return LLVMIntTypeInContext(p->context, type == BOOL ? 1 : (unsigned)bits);
}

/* As memory holds it: f16 and bf16 are their bits, bool is a byte. */
static LLVMTypeRef
storage_type(const Printer *p, DType type)
{
	return type == BOOL ? LLVMInt8TypeInContext(p->context) : llvm_type(p, type);
}

static V
word(const Printer *p, int64_t value)
{
	return LLVMConstInt(LLVMInt64TypeInContext(p->context), (unsigned long long)value, true);
}

static V
constant(const Printer *p, DType type, double f, int64_t i)
{
	LLVMTypeRef t = llvm_type(p, type);

	return dtype_is_float(type) ? LLVMConstReal(t, type == F32 ? (double)(float)f : f)
	                            : LLVMConstInt(t, (unsigned long long)i, true);
}

static bool
is_vector(V x)
{
	return LLVMGetTypeKind(LLVMTypeOf(x)) == LLVMVectorTypeKind;
}

static V
lane_constants(const Printer *p, int64_t step)
{
	V lanes[LOOP_LANES];

	for (int i = 0; i < LOOP_LANES; i++)
		lanes[i] = word(p, i * step);
	return LLVMConstVector(lanes, LOOP_LANES);
}

/* The first n lanes. */
static V
lane_mask(const Printer *p, int n)
{
	LLVMTypeRef bit = LLVMInt1TypeInContext(p->context);
	V lanes[LOOP_LANES];

	for (int i = 0; i < LOOP_LANES; i++)
		lanes[i] = LLVMConstInt(bit, i < n, false);
	return LLVMConstVector(lanes, LOOP_LANES);
}

static V
widen(const Printer *p, V x)
{
	LLVMTypeRef index = LLVMInt32TypeInContext(p->context), t = LLVMTypeOf(x);

	if (is_vector(x))
		return x;
	V one = LLVMBuildInsertElement(p->b, LLVMGetPoison(LLVMVectorType(t, LOOP_LANES)), x,
	                               LLVMConstInt(index, 0, false), "");
	return LLVMBuildShuffleVector(p->b, one, LLVMGetPoison(LLVMTypeOf(one)),
	                              LLVMConstNull(LLVMVectorType(index, LOOP_LANES)), "");
}

/* The type t with as many lanes as x. */
static LLVMTypeRef
like(V x, LLVMTypeRef t)
{
	return is_vector(x) ? LLVMVectorType(t, LLVMGetVectorSize(LLVMTypeOf(x))) : t;
}

static V
intrinsic(const Printer *p, const char *name, LLVMTypeRef *types, int n_types, V *args, int n)
{
	unsigned id = LLVMLookupIntrinsicID(name, strlen(name));
	V f = LLVMGetIntrinsicDeclaration(p->module, id, types, (size_t)n_types);
	LLVMTypeRef type = LLVMIntrinsicGetType(p->context, id, types, (size_t)n_types);

	return LLVMBuildCall2(p->b, type, f, args, (unsigned)n, "");
}

/* ---- scalar operations: on scalars and vectors alike */
static V
call_builtin(const Printer *p, LoopOp op, V *x, int n)
{
	static const char *const names[N_LOOP_OPS] = {
		[LOOP_abs] = "llvm.fabs",  [LOOP_sqrt] = "llvm.sqrt",  [LOOP_floor] = "llvm.floor",
		[LOOP_ceil] = "llvm.ceil", [LOOP_round] = "llvm.rint", [LOOP_fma] = "llvm.fma"};
	LLVMTypeRef t = LLVMTypeOf(x[0]);

	return intrinsic(p, names[op], &t, 1, x, n);
}

static V
build_compare(const Printer *p, LoopOp op, DType type, V x, V y)
{
	static const LLVMRealPredicate reals[] = {LLVMRealOEQ, LLVMRealUNE, LLVMRealOLT,
	                                          LLVMRealOLE, LLVMRealOGT, LLVMRealOGE};
	static const LLVMIntPredicate integers[2][6] = {
		{LLVMIntEQ, LLVMIntNE, LLVMIntULT, LLVMIntULE, LLVMIntUGT, LLVMIntUGE},
		{LLVMIntEQ, LLVMIntNE, LLVMIntSLT, LLVMIntSLE, LLVMIntSGT, LLVMIntSGE}};
	bool is_signed = dtype_info[type].class == CLASS_SIGNED;

	if (dtype_is_float(type))
		return LLVMBuildFCmp(p->b, reals[op - LOOP_eq], x, y, "");
	return LLVMBuildICmp(p->b, integers[is_signed][op - LOOP_eq], x, y, "");
}

typedef struct {
	LLVMOpcode real, integer, is_unsigned; /* is_unsigned 0: as integer */
} Opcodes;
static const Opcodes opcodes[N_LOOP_OPS] = {
	[LOOP_add] = {LLVMFAdd, LLVMAdd, 0},
	[LOOP_sub] = {LLVMFSub, LLVMSub, 0},
	[LOOP_mul] = {LLVMFMul, LLVMMul, 0},
	[LOOP_div] = {LLVMFDiv, 0, 0},
	[LOOP_quotient] = {0, LLVMSDiv, LLVMUDiv},
	[LOOP_and] = {0, LLVMAnd, 0},
	[LOOP_or] = {0, LLVMOr, 0},
	[LOOP_xor] = {0, LLVMXor, 0},
	[LOOP_shl] = {0, LLVMShl, 0},
	[LOOP_shr] = {0, LLVMAShr, LLVMLShr},
};

static V
build_binary(const Printer *p, LoopOp op, DType type, V x, V y)
{
	const Opcodes *o = &opcodes[op];
	bool is_unsigned = dtype_info[type].class == CLASS_UNSIGNED;
	LLVMOpcode code = dtype_is_float(type)            ? o->real
	                  : is_unsigned && o->is_unsigned ? o->is_unsigned
	                                                  : o->integer;

	return LLVMBuildBinOp(p->b, code, x, y, "");
}

static V
build_truncate(const Printer *p, DType to, V x)
{
	LLVMTypeRef t = like(x, llvm_type(p, to));

	return dtype_info[to].class == CLASS_SIGNED ? LLVMBuildFPToSI(p->b, x, t, "")
	                                            : LLVMBuildFPToUI(p->b, x, t, "");
}

static V
build_bits(const Printer *p, DType to, V x)
{
	LLVMTypeRef t = like(x, llvm_type(p, to));

	return LLVMTypeOf(x) == t ? x : LLVMBuildBitCast(p->b, x, t, "");
}

/* An op that is an instruction. x: operands, all scalars or all vectors; from: type of the last. */
static V
build_op(const Printer *p, const LoopStatement *s, DType from, V *x)
{
	switch (s->op) {
	case LOOP_select: return LLVMBuildSelect(p->b, x[0], x[1], x[2], "");
	case LOOP_truncate: return build_truncate(p, s->type, x[0]);
	case LOOP_bits: return build_bits(p, s->type, x[0]);
	case LOOP_not: return LLVMBuildNot(p->b, x[0], "");
	case LOOP_neg:
		return dtype_is_float(from) ? LLVMBuildFNeg(p->b, x[0], "")
		                            : LLVMBuildNeg(p->b, x[0], "");
	default: break;
	}
	if (loop_ops[s->op].result == RESULT_TRUTH)
		return build_compare(p, s->op, from, x[0], x[1]);
	if (isalpha((unsigned char)*loop_ops[s->op].c))
		return call_builtin(p, s->op, x, s->n_operands);
	return build_binary(p, s->op, from, x[0], x[1]);
}

static V emit_definition(Printer *p, const Frame *frame, const LoopStatement *s);

static V
emit_function(Printer *p, const ScalarFunction *f, V *x)
{
	const Kernel *k = f->body;
	DType *types = NEW_ARRAY(p->arena, DType, k->n_scalars);
	Frame frame = {types, NEW_ARRAY(p->arena, V, k->n_scalars)};

	for (int i = 0; i < f->n_params; i++) {
		types[i] = f->params[i];
		frame.values[i] = x[i];
	}
	kernel_scalar_types(k, types);
	for (int i = 0; i < k->body.n; i++)
		frame.values[k->body.at[i].result] = emit_definition(p, &frame, &k->body.at[i]);
	return frame.values[f->result];
}

static V
emit_op(Printer *p, const Frame *frame, const LoopStatement *s)
{
	DType from = frame->types[s->operands[s->n_operands - 1]];
	const ScalarFunction *f = scalar_function_of(p->functions, s, from);
	V x[3];
	bool wide = false;

	for (int i = 0; i < s->n_operands; i++) {
		x[i] = frame->values[s->operands[i]];
		wide |= is_vector(x[i]);
	}
	for (int i = 0; wide && i < s->n_operands; i++)
		x[i] = widen(p, x[i]);
	return f ? emit_function(p, f, x) : build_op(p, s, from, x);
}

/* ---- conversions */
static V
call_function(Printer *p, const char *name, DType storage, V x)
{
	char full[32];

	snprintf(full, sizeof(full), "%s_%s", name, dtype_info[storage].name);
	return emit_function(p, scalar_function(p->functions, full), &x);
}

static V
resize_integer(const Printer *p, V x, LLVMTypeRef to, bool is_signed)
{
	return LLVMBuildIntCast2(p->b, x, like(x, to), is_signed, "");
}

static V
to_float(const Printer *p, DType from, DType to, V x)
{
	LLVMTypeRef t = like(x, llvm_type(p, to));

	if (dtype_is_float(from))
		return LLVMBuildFPCast(p->b, x, t, "");
	return dtype_info[from].class == CLASS_SIGNED ? LLVMBuildSIToFP(p->b, x, t, "")
	                                              : LLVMBuildUIToFP(p->b, x, t, "");
}

static V
emit_cast(Printer *p, const Frame *frame, const LoopStatement *s)
{
	DType from = frame->types[s->operands[0]], storage = (DType)s->i;
	V x = frame->values[s->operands[0]];
	const ScalarFunction *f = scalar_function_of(p->functions, s, from);

	if (f)
		return emit_function(p, f, &x);
	if (storage == BOOL)
		return build_compare(p, LOOP_ne, from, x, LLVMConstNull(LLVMTypeOf(x)));
	if (storage == F16 || storage == BF16) {
		x = call_function(p, "store", storage, to_float(p, from, F32, x));
		return call_function(p, "load", storage, x);
	}
	if (dtype_is_float(s->type))
		return to_float(p, from, s->type, x);
	x = resize_integer(p, x, storage_type(p, storage), dtype_info[from].class == CLASS_SIGNED);
	return resize_integer(p, x, llvm_type(p, s->type),
	                      dtype_info[storage].class == CLASS_SIGNED);
}

/* A value of the compute type from what memory holds, and back. */
static V
from_storage(Printer *p, DType storage, V x)
{
	DType type = compute_type(storage);

	if (storage == BOOL)
		return build_compare(p, LOOP_ne, U8, x, LLVMConstNull(LLVMTypeOf(x)));
	if (storage == F16 || storage == BF16)
		return call_function(p, "load", storage,
		                     resize_integer(p, x, llvm_type(p, U32), false));
	if (dtype_is_float(storage))
		return x;
	return resize_integer(p, x, llvm_type(p, type), dtype_info[storage].class == CLASS_SIGNED);
}

static V
to_storage(Printer *p, DType storage, V x)
{
	if (storage == F16 || storage == BF16)
		x = call_function(p, "store", storage, x);
	if (dtype_is_float(storage) && storage != F16 && storage != BF16)
		return x;
	return resize_integer(p, x, storage_type(p, storage), false);
}

/* ---- places */
static V
scaled(const Printer *p, V x, int64_t by)
{
	V factor = word(p, by);

	if (by == 1)
		return x;
	return LLVMBuildMul(p->b, x, is_vector(x) ? widen(p, factor) : factor, "");
}

static V
plus(const Printer *p, V x, V y)
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
	Place place = {.shared = word(p, a->constant)};

	for (int i = 0; i < a->n; i++) {
		int64_t by = a->terms[i].coefficient;
		V x = p->frame.values[a->terms[i].scalar];
		if (a->terms[i].scalar == p->variable) {
			place.step += by;
			place.shared = plus(p, place.shared, scaled(p, p->block, by));
		} else if (is_vector(x)) {
			V more = scaled(p, x, by);
			place.varying = place.varying ? plus(p, place.varying, more) : more;
		} else {
			place.shared = plus(p, place.shared, scaled(p, x, by));
		}
	}
	return place;
}

static V
emit_affine(const Printer *p, const Affine *a)
{
	Place place = split_place(p, a);
	V x = place.shared;

	if (place.step)
		x = plus(p, x, lane_constants(p, place.step));
	return place.varying ? plus(p, x, place.varying) : x;
}

static V
address(const Printer *p, LLVMTypeRef t, V base, V offset)
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
		lanes = lanes ? plus(p, lanes, steps) : steps;
	}
	return address(p, t, address(p, t, base, place->shared), lanes);
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
		return intrinsic(p, "llvm.masked.load", (LLVMTypeRef[]){t, LLVMTypeOf(at)}, 2, args,
		                 4);
	}
	V x = LLVMBuildLoad2(p->b, t, at, "");
	LLVMSetAlignment(x, (unsigned)dtype_bytes(storage, 1));
	return x;
}

static void
store_lanes(const Printer *p, const LoopStatement *s, DType storage, V at, V x)
{
	LLVMTypeRef t = LLVMTypeOf(x);

	if (p->mask && !is_local(p, s->buffer)) {
		V args[] = {x, at, alignment(p, storage), p->mask};
		intrinsic(p, "llvm.masked.store", (LLVMTypeRef[]){t, LLVMTypeOf(at)}, 2, args, 4);
		return;
	}
	if (p->mask)
		x = LLVMBuildSelect(p->b, p->mask, x, load_lanes(p, s, storage, at), "");
	LLVMSetAlignment(LLVMBuildStore(p->b, x, at), (unsigned)dtype_bytes(storage, 1));
}

static V
emit_load(Printer *p, const LoopStatement *s)
{
	DType storage = p->k->buffers.at[s->buffer].type->dtype;
	LLVMTypeRef t = storage_type(p, storage);
	Place place = split_place(p, s->place);
	V base = p->buffers[s->buffer], x;

	if (!place.varying && place.step == 0) {
		x = LLVMBuildLoad2(p->b, t, address(p, t, base, place.shared), "");
	} else if (!place.varying && place.step == 1) {
		x = load_lanes(p, s, storage, address(p, t, base, place.shared));
	} else {
		V at = addresses(p, t, base, &place);
		LLVMTypeRef wide = LLVMVectorType(t, LOOP_LANES);
		V args[] = {at, alignment(p, storage), all_lanes(p), LLVMConstNull(wide)};
		x = intrinsic(p, "llvm.masked.gather", (LLVMTypeRef[]){wide, LLVMTypeOf(at)}, 2,
		              args, 4);
	}
	return from_storage(p, storage, x);
}

/* To one place for all lanes the last one stores. */
static V
last_lane(const Printer *p, V x)
{
	return is_vector(x) ? LLVMBuildExtractElement(p->b, x, word(p, p->active - 1), "") : x;
}

static void
emit_store(Printer *p, const LoopStatement *s)
{
	DType storage = p->k->buffers.at[s->buffer].type->dtype;
	LLVMTypeRef t = storage_type(p, storage);
	Place place = split_place(p, s->place);
	V base = p->buffers[s->buffer];
	V x = to_storage(p, storage, p->frame.values[s->operands[0]]);

	if (!place.varying && place.step == 0) {
		LLVMBuildStore(p->b, last_lane(p, x), address(p, t, base, place.shared));
		return;
	}
	x = widen(p, x);
	if (!place.varying && place.step == 1) {
		store_lanes(p, s, storage, address(p, t, base, place.shared), x);
		return;
	}
	V at = addresses(p, t, base, &place);
	V args[] = {x, at, alignment(p, storage), all_lanes(p)};
	intrinsic(p, "llvm.masked.scatter", (LLVMTypeRef[]){LLVMTypeOf(x), LLVMTypeOf(at)}, 2, args,
	          4);
}

/* ---- definitions */
static V
emit_definition(Printer *p, const Frame *frame, const LoopStatement *s)
{
	switch (s->kind) {
	case LOOP_STATEMENT_OP: return emit_op(p, frame, s);
	case LOOP_STATEMENT_CONST: return constant(p, s->type, s->f, s->i);
	case LOOP_STATEMENT_CAST: return emit_cast(p, frame, s);
	case LOOP_STATEMENT_AFFINE: return emit_affine(p, s->place);
	case LOOP_STATEMENT_SCALAR: {
		LLVMTypeRef t = llvm_type(p, F64);
		return LLVMBuildLoad2(p->b, t, address(p, t, p->scalars, word(p, s->buffer)), "");
	}
	default: return emit_load(p, s);
	}
}

/* ---- accumulators: kept in memory, which LLVM makes registers */
static V
identity(const Printer *p, const Accumulator *a)
{
	static const double floats[] = {0, 1, -INFINITY, INFINITY};
	int bits = dtype_info[a->type].bits;
	bool is_signed = dtype_info[a->type].class == CLASS_SIGNED;
	uint64_t most = ~0ull >> (64 - bits + is_signed);
	const int64_t integers[] = {0, 1, is_signed ? -(int64_t)most - 1 : 0, (int64_t)most};

	return constant(p, a->type, floats[a->kind], integers[a->kind]);
}

static V
combine(Printer *p, LoopOp op, DType type, V x, V y)
{
	DType types[] = {type, type};
	V values[] = {x, y};
	Frame frame = {types, values};
	LoopStatement s = {.kind = LOOP_STATEMENT_OP,
	                   .op = op,
	                   .type = type,
	                   .n_operands = 2,
	                   .operands = {0, 1}};

	return emit_op(p, &frame, &s);
}

static void
start_accumulators(Printer *p, const LoopStatement *s, bool wide)
{
	for (int i = 0; i < s->n_accumulators; i++) {
		const Accumulator *a = &s->accumulators[i];
		V start = identity(p, a);
		if (wide)
			start = widen(p, start);
		p->accumulators[a->scalar] = LLVMBuildAlloca(p->top, LLVMTypeOf(start), "");
		LLVMBuildStore(p->b, start, p->accumulators[a->scalar]);
	}
}

static void
emit_accumulate(Printer *p, const LoopStatement *s)
{
	V at = p->accumulators[s->operands[1]], x = p->frame.values[s->operands[0]];
	bool wide = p->variable >= 0;
	LLVMTypeRef t = llvm_type(p, s->type);

	V old = LLVMBuildLoad2(p->b, wide ? LLVMVectorType(t, LOOP_LANES) : t, at, "");
	V sum = combine(p, s->op, s->type, old, wide ? widen(p, x) : x);
	if (wide && p->mask)
		sum = LLVMBuildSelect(p->b, p->mask, sum, old, "");
	LLVMBuildStore(p->b, sum, at);
}

/* Half of the lanes of x. */
static V
half(const Printer *p, V x, int from, int n)
{
	V lanes[LOOP_LANES];

	for (int i = 0; i < n; i++)
		lanes[i] = LLVMConstInt(LLVMInt32TypeInContext(p->context),
		                        (unsigned long long)(from + i), false);
	return LLVMBuildShuffleVector(p->b, x, LLVMGetPoison(LLVMTypeOf(x)),
	                              LLVMConstVector(lanes, (unsigned)n), "");
}

/* Lane l takes lane l + n/2 until one is left. */
static V
reduce_lanes(Printer *p, const Accumulator *a, V x)
{
	for (int n = LOOP_LANES / 2; n > 0; n /= 2)
		x = combine(p, accumulate_op(a->kind), a->type, half(p, x, 0, n), half(p, x, n, n));
	return LLVMBuildExtractElement(p->b, x, word(p, 0), "");
}

static void
finish_accumulators(Printer *p, const LoopStatement *s, bool wide)
{
	for (int i = 0; i < s->n_accumulators; i++) {
		const Accumulator *a = &s->accumulators[i];
		LLVMTypeRef t = llvm_type(p, a->type);
		V x = LLVMBuildLoad2(p->b, wide ? LLVMVectorType(t, LOOP_LANES) : t,
		                     p->accumulators[a->scalar], "");
		p->frame.values[a->scalar] = wide ? reduce_lanes(p, a, x) : x;
	}
}

/* ---- control */
static void emit_block(Printer *p, int from, int to);

/* A loop whose body stands between open and close. */
typedef struct {
	LLVMBasicBlockRef body, behind;
	V variable, last;
	int64_t step;
} Loop;

static LLVMBasicBlockRef
block_new(const Printer *p)
{
	return LLVMAppendBasicBlockInContext(p->context, p->function, "");
}

/* From `first` by `step` while below `last`; `guarded`: it may not run at all. */
static Loop
open_loop(const Printer *p, V first, V last, int64_t step, bool guarded)
{
	Loop loop = {.body = block_new(p), .behind = block_new(p), .last = last, .step = step};
	LLVMBasicBlockRef before = LLVMGetInsertBlock(p->b);

	if (guarded)
		LLVMBuildCondBr(p->b, LLVMBuildICmp(p->b, LLVMIntSLT, first, last, ""), loop.body,
		                loop.behind);
	else
		LLVMBuildBr(p->b, loop.body);
	LLVMPositionBuilderAtEnd(p->b, loop.body);
	loop.variable = LLVMBuildPhi(p->b, LLVMInt64TypeInContext(p->context), "");
	LLVMAddIncoming(loop.variable, &first, &before, 1);
	return loop;
}

static void
close_loop(const Printer *p, const Loop *loop)
{
	V next = LLVMBuildNSWAdd(p->b, loop->variable, word(p, loop->step), "");
	LLVMBasicBlockRef latch = LLVMGetInsertBlock(p->b);

	LLVMAddIncoming(loop->variable, &next, &latch, 1);
	LLVMBuildCondBr(p->b, LLVMBuildICmp(p->b, LLVMIntSLT, next, loop->last, ""), loop->body,
	                loop->behind);
	LLVMPositionBuilderAtEnd(p->b, loop->behind);
}

/* LOOP_LANES iterations from `block`, or the first n of them. */
static void
emit_lanes(Printer *p, const LoopStatement *s, int at, V block, int n)
{
	p->variable = s->result;
	p->block = block;
	p->active = n;
	p->mask = n < LOOP_LANES ? lane_mask(p, n) : NULL;
	p->frame.values[s->result] = plus(p, block, lane_constants(p, 1));
	emit_block(p, at + 1, s->match);
	p->variable = -1;
	p->mask = NULL;
}

static void
emit_vector(Printer *p, const LoopStatement *s, int at)
{
	int64_t full = s->extent / LOOP_LANES * LOOP_LANES;

	start_accumulators(p, s, true);
	if (full <= UNROLLED_BLOCKS * LOOP_LANES) {
		for (int64_t block = 0; block < full; block += LOOP_LANES)
			emit_lanes(p, s, at, word(p, block), LOOP_LANES);
	} else {
		Loop loop = open_loop(p, word(p, 0), word(p, full), LOOP_LANES, false);
		emit_lanes(p, s, at, loop.variable, LOOP_LANES);
		close_loop(p, &loop);
	}
	if (full < s->extent)
		emit_lanes(p, s, at, word(p, full), (int)(s->extent - full));
	finish_accumulators(p, s, true);
}

static void
emit_for(Printer *p, const LoopStatement *s, int at)
{
	bool parallel = s->mode == LOOP_PARALLEL;

	if (s->mode == LOOP_VECTOR && (s->extent > 1 || s->n_accumulators)) {
		emit_vector(p, s, at);
		return;
	}
	start_accumulators(p, s, false);
	if (s->extent == 1 && !parallel) {
		p->frame.values[s->result] = word(p, 0);
		emit_block(p, at + 1, s->match);
	} else if (s->extent > 0) {
		Loop loop = open_loop(p, parallel ? p->begin : word(p, 0),
		                      parallel ? p->end : word(p, s->extent), 1, parallel);
		p->frame.values[s->result] = loop.variable;
		emit_block(p, at + 1, s->match);
		close_loop(p, &loop);
	}
	finish_accumulators(p, s, false);
}

static void
emit_if(Printer *p, const LoopStatement *s, int at)
{
	LLVMBasicBlockRef then = block_new(p), behind = block_new(p);

	LLVMBuildCondBr(p->b, p->frame.values[s->operands[0]], then, behind);
	LLVMPositionBuilderAtEnd(p->b, then);
	emit_block(p, at + 1, s->match);
	LLVMBuildBr(p->b, behind);
	LLVMPositionBuilderAtEnd(p->b, behind);
}

/* On the stack, a large one as memory of the thread. */
static void
emit_local(Printer *p, const LoopStatement *s)
{
	const LoopBuffer *b = &p->k->buffers.at[s->buffer];
	LLVMTypeRef t = LLVMArrayType(storage_type(p, b->type->dtype),
	                              (unsigned)(b->type->n + LOOP_LANES));
	V *at = &p->buffers[s->buffer];

	if (type_bytes(b->type) <= LARGE_LOCAL) {
		*at = LLVMBuildAlloca(p->top, t, b->name);
		LLVMSetAlignment(*at, 64);
		return;
	}
	*at = LLVMAddGlobal(p->module, t, b->name);
	LLVMSetInitializer(*at, LLVMConstNull(t));
	LLVMSetLinkage(*at, LLVMInternalLinkage);
	LLVMSetThreadLocal(*at, true);
	LLVMSetAlignment(*at, 64);
}

static void
emit_block(Printer *p, int from, int to)
{
	for (int at = from; at < to; at++) {
		const LoopStatement *s = &p->k->body.at[at];
		switch (s->kind) {
		case LOOP_STATEMENT_STORE: emit_store(p, s); break;
		case LOOP_STATEMENT_LOCAL: emit_local(p, s); break;
		case LOOP_STATEMENT_FOR:
			emit_for(p, s, at);
			at = s->match;
			break;
		case LOOP_STATEMENT_ACCUMULATE: emit_accumulate(p, s); break;
		case LOOP_STATEMENT_IF:
			emit_if(p, s, at);
			at = s->match;
			break;
		case LOOP_STATEMENT_END: break;
		default: p->frame.values[s->result] = emit_definition(p, &p->frame, s);
		}
	}
}

/* ---- kernels */
static V
declare(const Printer *p, const char *symbol)
{
	LLVMTypeRef pointer = LLVMPointerTypeInContext(p->context, 0);
	LLVMTypeRef number = LLVMInt64TypeInContext(p->context);
	LLVMTypeRef params[] = {pointer, pointer, number, number};
	V f = LLVMAddFunction(
		p->module, symbol,
		LLVMFunctionType(LLVMVoidTypeInContext(p->context), params, 4, false));

	LLVMSetVisibility(f, LLVMHiddenVisibility);
	return f;
}

static void
emit_kernel(Printer *p, const Kernel *k, const char *symbol)
{
	DType *types = NEW_ARRAY(p->arena, DType, k->n_scalars);
	LLVMTypeRef pointer = LLVMPointerTypeInContext(p->context, 0);

	kernel_scalar_types(k, types);
	p->k = k;
	p->frame = (Frame){types, NEW_ARRAY(p->arena, V, k->n_scalars)};
	p->buffers = NEW_ARRAY(p->arena, V, k->buffers.n);
	p->accumulators = NEW_ARRAY(p->arena, V, k->n_scalars);
	p->variable = -1;
	p->function = declare(p, symbol);
	p->scalars = LLVMGetParam(p->function, 1);
	p->begin = LLVMGetParam(p->function, 2);
	p->end = LLVMGetParam(p->function, 3);
	LLVMBasicBlockRef entry = block_new(p), body = block_new(p);
	LLVMPositionBuilderAtEnd(p->top, entry);
	LLVMPositionBuilderAtEnd(p->b, body);
	for (int i = 0; i < k->n_inputs + k->n_outputs; i++) {
		V at = address(p, pointer, LLVMGetParam(p->function, 0), word(p, i));
		p->buffers[i] = LLVMBuildLoad2(p->b, pointer, at, k->buffers.at[i].name);
	}
	emit_block(p, 0, k->body.n);
	LLVMBuildRetVoid(p->b);
	LLVMBuildBr(p->top, body);
}

const char *
llvm_symbol(Arena *arena, const Kernel *k, int target)
{
	const char *variant = target ? arena_printf(arena, ".%d", target) : "";
	char *symbol = arena_printf(arena, "gradc_%s%s:%.200s", k->name, variant,
	                            loc_origin(k->loc));

	for (char *c = symbol; *c; c++)
		if (!isalnum((unsigned char)*c) && !strchr("_./:-", *c))
			*c = '_';
	return symbol;
}

LLVMModuleRef
llvm_print_kernels(LLVMContextRef context, const Module *m, int target, int part, int parts)
{
	Printer p = {.context = context,
	             .module = LLVMModuleCreateWithNameInContext("gradc", context),
	             .b = LLVMCreateBuilderInContext(context),
	             .top = LLVMCreateBuilderInContext(context),
	             .arena = arena_new()};

	p.functions = scalar_functions_new(p.arena);
	for (int i = part; i < m->kernels.n; i += parts)
		emit_kernel(&p, m->kernels.at[i], llvm_symbol(p.arena, m->kernels.at[i], target));
	LLVMDisposeBuilder(p.b);
	LLVMDisposeBuilder(p.top);
	arena_free(p.arena);
	return p.module;
}

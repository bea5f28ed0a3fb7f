/* Prints scalar types and operations as LLVM IR. A value is a scalar, or a vector of LOOP_LANES
 * lanes in a vector loop. An operation with both kinds of operands widens the scalar. Scalar
 * functions are expanded where they are called. */
#include "codegen/llvm/print.h"

#include <ctype.h>
#include <string.h>

/* ---- types and constants */
LLVMTypeRef
llvm_type(const Printer *p, DType type)
{
	int bits = dtype_info[type].bits;

	if (type == F64)
		return LLVMDoubleTypeInContext(p->context);
	if (type == F32)
		return LLVMFloatTypeInContext(p->context);
	return LLVMIntTypeInContext(p->context, type == BOOL ? 1 : (unsigned)bits);
}

/* The type in memory: a small float is an integer with the same bits; a bool is a byte; several
 * packed elements are one byte. */
LLVMTypeRef
storage_type(const Printer *p, DType type)
{
	return type == BOOL || is_packed(type) ? LLVMInt8TypeInContext(p->context)
	                                       : llvm_type(p, type);
}

V
llvm_word(const Printer *p, int64_t value)
{
	return LLVMConstInt(LLVMInt64TypeInContext(p->context), (unsigned long long)value, true);
}

V
llvm_constant(const Printer *p, DType type, double f, int64_t i)
{
	LLVMTypeRef t = llvm_type(p, type);

	return dtype_is_float(type) ? LLVMConstReal(t, type == F32 ? (double)(float)f : f)
	                            : LLVMConstInt(t, (unsigned long long)i, true);
}

bool
is_vector(V x)
{
	return LLVMGetTypeKind(LLVMTypeOf(x)) == LLVMVectorTypeKind;
}

V
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

/* Type t with as many lanes as x. */
static LLVMTypeRef
like(V x, LLVMTypeRef t)
{
	return is_vector(x) ? LLVMVectorType(t, LLVMGetVectorSize(LLVMTypeOf(x))) : t;
}

V
call_intrinsic(const Printer *p, const char *name, LLVMTypeRef *types, int n_types, V *args, int n)
{
	unsigned id = LLVMLookupIntrinsicID(name, strlen(name));
	V f = LLVMGetIntrinsicDeclaration(p->module, id, types, (size_t)n_types);
	LLVMTypeRef type = LLVMIntrinsicGetType(p->context, id, types, (size_t)n_types);

	return LLVMBuildCall2(p->b, type, f, args, (unsigned)n, "");
}

/* ---- scalar operations, on scalars and on vectors */
static V
call_builtin(const Printer *p, LoopOp op, V *x, int n)
{
	static const char *const names[N_LOOP_OPS] = {
		[LOOP_abs] = "llvm.fabs",  [LOOP_sqrt] = "llvm.sqrt",  [LOOP_floor] = "llvm.floor",
		[LOOP_ceil] = "llvm.ceil", [LOOP_round] = "llvm.rint", [LOOP_fma] = "llvm.fma"};
	LLVMTypeRef t = LLVMTypeOf(x[0]);

	return call_intrinsic(p, names[op], &t, 1, x, n);
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
	LLVMOpcode real, integer, is_unsigned; /* is_unsigned 0: the same opcode as `integer` */
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

/* Emits an op that is a single LLVM instruction. x: its operands, all scalars or all vectors;
 * from: type of the last operand. */
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

static V emit_straight(Printer *p, const Frame *frame, const LoopStatement *s);

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
		frame.values[k->body.at[i].result] = emit_straight(p, &frame, &k->body.at[i]);
	return frame.values[f->result];
}

V
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

/* Calls a function such as "load_bf16", which converts bits in memory to a number, or back. Returns x if
 * there is no such function. */
static V
by_function(Printer *p, const char *name, DType storage, V x)
{
	char full[32];

	snprintf(full, sizeof(full), "%s_%s", name, dtype_info[storage].name);
	const ScalarFunction *f = scalar_function(p->functions, full);
	return f ? emit_function(p, f, &x) : x;
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

V
emit_cast(Printer *p, const Frame *frame, const LoopStatement *s)
{
	DType from = frame->types[s->operands[0]], storage = (DType)s->i;
	V x = frame->values[s->operands[0]];
	const ScalarFunction *f = scalar_function_of(p->functions, s, from);

	if (f) {
		V operands[] = {x, s->n_operands > 1 ? frame->values[s->operands[1]] : NULL};
		if (operands[1] && is_vector(x) != is_vector(operands[1])) {
			operands[0] = widen(p, operands[0]);
			operands[1] = widen(p, operands[1]);
		}
		return emit_function(p, f, operands);
	}
	if (storage == BOOL)
		return build_compare(p, LOOP_ne, from, x, LLVMConstNull(LLVMTypeOf(x)));
	if (dtype_is_float(s->type))
		return to_float(p, from, s->type, x);
	x = resize_integer(p, x, storage_type(p, storage), dtype_info[from].class == CLASS_SIGNED);
	return resize_integer(p, x, llvm_type(p, s->type),
	                      dtype_info[storage].class == CLASS_SIGNED);
}

V
from_storage(Printer *p, DType storage, V x)
{
	DType type = compute_type(storage);

	if (storage == BOOL)
		return build_compare(p, LOOP_ne, U8, x, LLVMConstNull(LLVMTypeOf(x)));
	if (float_format(storage) || is_packed(storage))
		return by_function(p, "load", storage,
		                   resize_integer(p, x, llvm_type(p, U32), false));
	if (dtype_is_float(storage))
		return x;
	return resize_integer(p, x, llvm_type(p, type), dtype_info[storage].class == CLASS_SIGNED);
}

V
to_storage(Printer *p, DType storage, V x)
{
	if (float_format(storage))
		x = by_function(p, "store", storage, x);
	else if (dtype_is_float(storage))
		return x;
	return resize_integer(p, x, storage_type(p, storage), false);
}

/* A statement in the body of a scalar function. */
static V
emit_straight(Printer *p, const Frame *frame, const LoopStatement *s)
{
	if (s->kind == LOOP_STATEMENT_CONST)
		return llvm_constant(p, s->type, s->f, s->i);
	return s->kind == LOOP_STATEMENT_OP ? emit_op(p, frame, s) : emit_cast(p, frame, s);
}

/* What the files that print LLVM IR share. Sections are named after the .c files. */
#ifndef GRADC_CODEGEN_LLVM_IMPL_H
#define GRADC_CODEGEN_LLVM_IMPL_H

#include "codegen/llvm/llvm.h"

typedef LLVMValueRef V;
/* What a straight line computes with: a kernel's scalars, or those of a scalar function. */
typedef struct {
	const DType *types;
	V *values; /* by scalar */
} Frame;
typedef struct {
	const Accumulator *accumulator;
	V at;   /* partials that take now: all lanes', a member's, or the one */
	V team; /* those of all members */
} Partials;
typedef struct {
	LLVMContextRef context;
	LLVMModuleRef module;
	LLVMBuilderRef b;
	LLVMBuilderRef top; /* at the end of the entry block, where local memory is made */
	Arena *arena;
	ScalarFunctions *functions;
	bool gathers; /* the CPU loads and stores lanes that are apart by one instruction */
	bool masks;   /* and some of those that are neighbours */
	const Kernel *k;
	V function, scalars, begin, end;
	Frame frame;
	V *buffers;             /* by buffer: where it begins */
	int *declared;          /* by array: team loops around its declaration */
	int n_open;             /* team loops around */
	V open[MAX_TEAM];       /* their variables, outermost first */
	Partials *accumulators; /* by scalar */
	/* Of the vector loop around: its variable, the block's first iteration, which lanes run. */
	LoopValue variable; /* -1: no vector loop */
	V block, mask;      /* mask NULL: all lanes */
	int active;         /* lanes that may run */
	V count;            /* how many of them do; NULL: all */
} Printer;

/* ---- scalar.c: types, constants, operations and conversions, on scalars and vectors alike */
LLVMTypeRef llvm_type(const Printer *p, DType type);    /* of a scalar */
LLVMTypeRef storage_type(const Printer *p, DType type); /* as memory holds it: bool is a byte */
static inline bool
is_packed(DType type) /* several elements in a byte */
{
	return dtype_info[type].bits < 8;
}
V llvm_word(const Printer *p, int64_t value);
V llvm_constant(const Printer *p, DType type, double f, int64_t i);
bool is_vector(V x);
V widen(const Printer *p, V x); /* a scalar in all lanes; a vector as it is */
V call_intrinsic(const Printer *p, const char *name, LLVMTypeRef *types, int n_types, V *args,
                 int n);
V emit_op(Printer *p, const Frame *frame, const LoopStatement *s);
V emit_cast(Printer *p, const Frame *frame, const LoopStatement *s);
/* A value of the compute type from what memory holds, and back. */
V from_storage(Printer *p, DType storage, V x);
V to_storage(Printer *p, DType storage, V x);

/* ---- memory.c: places, loads and stores */
V lane_constants(const Printer *p, int64_t step); /* 0, step, 2 step ... */
V lane_mask(const Printer *p, int n);             /* the first n lanes */
V lanes_below(const Printer *p, V n);             /* the same of a number that is computed */
V llvm_plus(const Printer *p, V x, V y);
V llvm_address(const Printer *p, LLVMTypeRef t, V base, V offset);
V emit_affine(const Printer *p, const Affine *a);
V array_base(const Printer *p, int buffer); /* of a private one the member's share */
V emit_load(Printer *p, const LoopStatement *s);
void emit_store(Printer *p, const LoopStatement *s);

/* ---- accumulators.c: those of a loop */
void start_accumulators(Printer *p, const LoopStatement *s);
void emit_accumulate(Printer *p, const LoopStatement *s);
void finish_accumulators(Printer *p, const LoopStatement *s);
/* Of a team loop: a member's partials begin, and are kept with those of the others. */
void start_member(Printer *p, const LoopStatement *s);
void finish_member(Printer *p, const LoopStatement *s, V member);

/* ---- print.c */
/* A loop whose body stands between open and close. */
typedef struct {
	LLVMBasicBlockRef body, behind;
	V variable, last;
	int64_t step;
} Loop;
/* From `first` by `step` while below `last`; `guarded`: it may not run at all. */
Loop open_loop(const Printer *p, V first, V last, int64_t step, bool guarded);
void close_loop(const Printer *p, const Loop *loop);

#endif

/* Private to llvm: shared by the files that print LLVM IR. Each section is named after its .c
 * file. A lane is an iteration of a vector loop; partials are the partial sums of an
 * accumulator; members are the iterations of a team loop. */
#ifndef GRADC_CODEGEN_LLVM_PRINT_H
#define GRADC_CODEGEN_LLVM_PRINT_H

#include "codegen/llvm/llvm.h"

typedef LLVMValueRef V;
/* The scalars of straight-line code: of a kernel, or of a scalar function. */
typedef struct {
	const DType *types;
	V *values; /* by scalar */
} Frame;
typedef struct {
	const Accumulator *accumulator;
	/* address of the partials that values are added to now: those of all lanes, those of one
	 * member, or a single one */
	V at;
	V team; /* partials of all members */
} Partials;
typedef struct {
	LLVMContextRef context;
	LLVMModuleRef module;
	LLVMBuilderRef b;
	LLVMBuilderRef top; /* at the end of the entry block, where local arrays are allocated */
	Arena *arena;
	ScalarFunctions *functions;
	bool gathers; /* does the CPU load and store distant lanes in one instruction? */
	bool masks;   /* does the CPU mask loads and stores of neighbouring lanes? */
	const Kernel *k;
	V function, scalars, begin, end;
	Frame frame;
	V *buffers;             /* by buffer: its address */
	int *declared;          /* by array: open team loops at its declaration */
	int n_open;             /* open team loops */
	V open[MAX_TEAM];       /* variables of the open team loops, outermost first */
	Partials *accumulators; /* by scalar */
	/* The open vector loop: its variable, the first iteration of the block of lanes, and
	 * which lanes run. */
	LoopValue variable; /* -1: no vector loop */
	V block, mask;      /* mask NULL: all lanes */
	int active;         /* largest number of lanes that run */
	V count;            /* how many lanes do run, if computed at run time; NULL: `active` */
} Printer;

/* ---- scalar.c: types, constants, operations and conversions, on scalars and on vectors */
LLVMTypeRef llvm_type(const Printer *p, DType type); /* LLVM's type of a scalar */
/* LLVM's type of an element in memory: bool is a byte */
LLVMTypeRef storage_type(const Printer *p, DType type);
static inline bool
is_packed(DType type) /* several elements in a byte */
{
	return dtype_info[type].bits < 8;
}
V llvm_word(const Printer *p, int64_t value);
V llvm_constant(const Printer *p, DType type, double f, int64_t i);
bool is_vector(V x);
V widen(const Printer *p, V x); /* a scalar copied to all lanes; a vector unchanged */
V call_intrinsic(const Printer *p, const char *name, LLVMTypeRef *types, int n_types, V *args,
                 int n);
V emit_op(Printer *p, const Frame *frame, const LoopStatement *s);
V emit_cast(Printer *p, const Frame *frame, const LoopStatement *s);
/* Converts an element in memory to a value of the compute type, and back. */
V from_storage(Printer *p, DType storage, V x);
V to_storage(Printer *p, DType storage, V x);

/* ---- memory.c: places, loads and stores */
V lane_constants(const Printer *p, int64_t step); /* 0, step, 2 step ... */
V lane_mask(const Printer *p, int n);             /* the first n lanes */
V lanes_below(const Printer *p, V n);             /* the first n lanes, for a computed n */
V llvm_plus(const Printer *p, V x, V y);
V llvm_address(const Printer *p, LLVMTypeRef t, V base, V offset);
V emit_affine(const Printer *p, const Affine *a);
V array_base(const Printer *p, int buffer); /* for a private array, the member's share */
V emit_load(Printer *p, const LoopStatement *s);
void emit_store(Printer *p, const LoopStatement *s);

/* ---- accumulators.c: accumulators of a loop */
void start_accumulators(Printer *p, const LoopStatement *s);
void emit_accumulate(Printer *p, const LoopStatement *s);
void finish_accumulators(Printer *p, const LoopStatement *s);
/* For a team loop. start_member: the member's partials get their start values. finish_member:
 * stores the member's partials next to the partials of the other members. */
void start_member(Printer *p, const LoopStatement *s);
void finish_member(Printer *p, const LoopStatement *s, V member);

/* ---- print.c */
/* A loop whose body is emitted between open_loop and close_loop. */
typedef struct {
	LLVMBasicBlockRef body, behind;
	V variable, last;
	int64_t step;
} Loop;
/* A loop from `first` on, in steps of `step`, while below `last`. guarded: the loop may have no
 * iterations. */
Loop open_loop(const Printer *p, V first, V last, int64_t step, bool guarded);
void close_loop(const Printer *p, const Loop *loop);

#endif

/* Prints kernels (loop IR) as C source. Languages that look like C, such as CUDA C, share this
 * code; a CDialect says how they differ. In this folder, a part is a list of kernels that are
 * compiled together, not a part of a kernel. */
#ifndef GRADC_CODEGEN_C_C_H
#define GRADC_CODEGEN_C_C_H

#include "codegen/build/build.h"

/* ---- print.c: kernels as C. A part becomes one source file, whose symbols end in `suffix`. */
void c_print_part(Text *out, const KernelPart *part, const char *suffix);
void c_print_table_types(Text *out); /* once, before the tables */
/* gradc_kernels[] of KernelCode; zeros for a kernel that is NULL */
void c_print_table(Text *out, Kernel *const *kernels, int n, const char *suffix);
typedef struct CPrinter CPrinter;
/* A scalar function that a dialect's prelude defines itself. when: a preprocessor condition for
 * this (NULL: always). Where the condition is false, the prelude has no such function, and the
 * usual code is printed. */
typedef struct {
	const char *name, *when;
} OwnFunction;
/* How a dialect differs from C: its keywords, and functions for statements that the dialect
 * prints in its own way. */
typedef struct {
	const char *prelude;    /* start of a file */
	const char *function;   /* words before a scalar function's type */
	const OwnFunction *own; /* ends with an entry without a name; NULL: none */
	const char *math;       /* prefix of C's math functions */
	const char *nan64, *nan32, *infinity64, *infinity32;
	/* lines before vector and unrolled loops; unroll is a format for the count */
	const char *simd, *unroll;
	bool narrow; /* loop variables and places are 32-bit numbers where 32 bits are enough */
	/* open prints what comes before the kernel's body, close what comes after the body */
	void (*open)(CPrinter *p, const char *suffix);
	void (*close)(CPrinter *p);
	/* how an array is named in an expression: "local3", "private3[v1]" */
	const char *(*array)(CPrinter *p, int buffer);
	/* Returns the C index of element `place` of an array. An array with padded rows has
	 * another index than `place`. NULL: the index is always `place`. */
	const char *(*place)(CPrinter *p, int buffer, const char *place);
	/* by kind of statement: prints the statement. For a statement that opens a block, it prints
	 * the whole block. */
	void (*print[N_LOOP_STATEMENTS])(CPrinter *p, const LoopStatement *s, int at);
} CDialect;
struct CPrinter {
	const CDialect *dialect;
	const Target *target; /* NULL: any CPU */
	Text *out;
	Arena *arena;
	ScalarFunctions *functions;
	StrMap *printed; /* scalar functions already printed in this file, by name */
	const Kernel *k;
	DType *types; /* by scalar */
	/* by scalar: the largest magnitude of a 64-bit integer that fits in 32 bits; -1: it needs
	 * 64 bits */
	int64_t *most;
	/* by accumulator: where values are added now, such as "v2" or "v2_lanes[lane]" */
	const char **accumulated;
	int depth;
	int n_open;                          /* open team loops */
	const LoopStatement *open[MAX_TEAM]; /* the open team loops, outermost first */
	int *declared;                       /* by array: open team loops at its declaration */
	const LoopStatement *each;           /* the open loop over a tile; NULL: none */
	int64_t shared;                      /* bytes of team memory in use */
	const LoopStatement *vector;         /* the open loop over a short vector; NULL: none */
	/* by load or store: the vector, such as "pack7.at", whose element the statement reads or
	 * sets instead of memory */
	const char **packs;
	/* the vector of the current statement; NULL: the statement accesses memory */
	const char *pack;
};

/* ---- print.c */
void c_indent(CPrinter *p);
void c_print_block(CPrinter *p, int from, int to);
/* A file with these kernels in a dialect; target: see CPrinter. */
void c_print_file(Text *out, const CDialect *dialect, const Target *target, const KernelPart *part,
                  const char *suffix);
/* Statements that all dialects print in the same way. */
void c_print_if(CPrinter *p, const LoopStatement *s, int at);
void c_print_nothing(CPrinter *p, const LoopStatement *s, int at);

/* ---- expressions.c */
extern const char *const c_compute_names[N_DTYPES];
extern const char *const c_storage_names[N_DTYPES];
static inline bool
is_packed(DType d) /* several elements in a byte */
{
	return dtype_info[d].bits < 8;
}
/* The type of scalar v: "int", or the name of its compute type. */
const char *c_type_name(const CPrinter *p, LoopValue v);
const char *c_affine(CPrinter *p, const Affine *a);
const char *c_place(CPrinter *p, int buffer, const char *place); /* see CDialect.place */
const char *c_name(CPrinter *p, int buffer);                     /* "x0", "y1", "local3" */
/* The function that converts bits in memory to a number ("load_s4"), or back ("store_s4"); NULL: C converts
 * them. */
const ScalarFunction *c_storage_function(CPrinter *p, const char *name, DType storage);
void c_print_definition(CPrinter *p, const LoopStatement *s, int at);
/* prints a STORE without indentation */
void c_print_assignment(CPrinter *p, const LoopStatement *s);

/* ---- loops.c */
void c_print_for(CPrinter *p, const LoopStatement *s, int at);
/* a loop that is neither parallel nor over lanes */
void c_print_counted_loop(CPrinter *p, const LoopStatement *s, int at);
void c_print_combine(CPrinter *p, AccumulateKind kind, DType t, const char *to, const char *with);
void c_print_identity(CPrinter *p, AccumulateKind kind, DType t);
/* "float v2 = 0": the accumulator's own variable. */
void c_declare_accumulator(CPrinter *p, const Accumulator *a);
void c_print_accumulate(CPrinter *p, const LoopStatement *s, int at);

/* ---- tiles.c: statements that all threads of a team run together */
/* Place of element (i, j) of an operand; i and j are names of variables. */
const char *c_window_place(CPrinter *p, const LoopWindow *w, const char *i, const char *j);

#endif

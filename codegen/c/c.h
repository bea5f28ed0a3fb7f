/* Kernels as C; what other languages that look like C take from that. */
#ifndef GRADC_CODEGEN_C_C_H
#define GRADC_CODEGEN_C_C_H

#include "codegen/build/build.h"

/* ---- print.c: kernels as C: a part is a translation unit, its symbols have that suffix. */
void c_print_part(Text *out, const KernelPart *part, const char *suffix);
void c_print_table_types(Text *out); /* once, before the tables */
void c_print_table(Text *out, Kernel *const *kernels, int n,
                   const char *suffix); /* gradc_kernels[] of KernelCode, zeros for a NULL */

typedef struct CPrinter CPrinter;

/* A scalar function that a dialect's prelude has. when: a condition of the preprocessor, without which it is printed as others
 * are; NULL: none. */
typedef struct {
	const char *name, *when;
} OwnFunction;

/* What a relative of C writes otherwise: words, and how statements are printed that are not alike. */
typedef struct {
	const char *prelude;    /* of a file */
	const char *function;   /* stands before a scalar function's type */
	const OwnFunction *own; /* one without a name ends them; NULL: none */
	const char *math;       /* before the name of a function of C's math */
	const char *nan64, *nan32, *infinity64, *infinity32;
	const char *simd, *unroll; /* before such loops; unroll is a format for their count */
	bool narrow; /* loop variables and places are numbers of 32 bits where these are enough */
	/* Up to the body, and from its end on. */
	void (*open)(CPrinter *p, const char *suffix);
	void (*close)(CPrinter *p);
	const char *(*array)(CPrinter *p,
	                     int buffer); /* where it is used: "local3", "private3[v1]" */
	/* Where element `place` of an array lies in it. NULL: there. */
	const char *(*place)(CPrinter *p, int buffer, const char *place);
	/* One that opens a block prints all of it. */
	void (*print[N_LOOP_STATEMENTS])(CPrinter *p, const LoopStatement *s, int at);
} CDialect;
extern const CDialect c_dialect; /* print.c */

struct CPrinter {
	const CDialect *dialect;
	const Target *target; /* NULL: any CPU */
	Text *out;
	Arena *arena;
	ScalarFunctions *functions;
	StrMap *printed; /* scalar functions that stand in this file, by name */
	const Kernel *k;
	DType *types; /* by scalar */
	int64_t *
		most; /* by scalar of the dialect's 32 bits: its greatest magnitude; -1: it has 64 */
	const char **
		accumulated; /* by accumulator scalar: where it takes now, "v2" or "v2_lanes[lane]" */
	int depth;
	int n_open;                          /* team loops around */
	const LoopStatement *open[MAX_TEAM]; /* outermost first */
	int *declared;                       /* by array: team loops around its declaration */
	const LoopStatement *each;           /* the loop over a tile around; NULL: none */
	int64_t shared;                      /* bytes of the team's memory that are given away */
	const LoopStatement *vector;         /* the short vector loop around; NULL: none */
	const char **packs; /* by statement: the vector that it loads or stores an element of */
	const char *pack;   /* that of the statement at hand; NULL: it goes to memory */
};

/* ---- print.c */
void c_indent(CPrinter *p);
void c_print_block(CPrinter *p, int from, int to);
void
c_print_comment(Text *out,
                const char *name); /* a name from a model, with nothing that could end a comment */
/* A file of these kernels in a dialect; target: as CPrinter has it. */
void c_print_file(Text *out, const CDialect *dialect, const Target *target, const KernelPart *part,
                  const char *suffix);
/* Statements that all dialects print alike. */
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
void c_print_literal(CPrinter *p, DType t, double f, int64_t i);
/* "int", or the name of its compute type: of the scalar v. */
const char *c_type_name(const CPrinter *p, LoopValue v);
const char *c_value(CPrinter *p, LoopValue v); /* with all bits of its type: "v3", "(int64_t)v3" */
void c_set_most(CPrinter *p, LoopValue v,
                int64_t most); /* v is s64, and has no greater magnitude */
int64_t c_affine_most(const CPrinter *p, const Affine *a); /* -1: it may need more than 32 bits */
const char *c_affine(CPrinter *p, const Affine *a);
const char *c_place(CPrinter *p, int buffer, const char *place); /* as the dialect has it */
/* Element `place` of a buffer, as number of its compute type. */
void c_print_element(CPrinter *p, int buffer, const char *place);
const char *c_name(CPrinter *p, int buffer); /* "x0", "y1", "local3" */
/* "load_s4": how memory's bits become a number, and back; NULL: as C converts them. */
const ScalarFunction *c_storage_function(CPrinter *p, const char *name, DType storage);
void c_print_definition(CPrinter *p, const LoopStatement *s, int at);
void c_print_assignment(CPrinter *p, const LoopStatement *s); /* of a STORE, without indentation */
void c_print_store(CPrinter *p, const LoopStatement *s, int at);

/* ---- loops.c */
void c_print_for(CPrinter *p, const LoopStatement *s, int at);
void c_print_counted_loop(CPrinter *p, const LoopStatement *s,
                          int at); /* what is no lanes' or parallel loop */
void c_print_combine(CPrinter *p, AccumulateKind kind, DType t, const char *to, const char *with);
void c_print_identity(CPrinter *p, AccumulateKind kind, DType t);
/* The number of the part is a variable `part`: those of the parallel loops at `at`, which are so deep. */
void c_print_parallel_variables(CPrinter *p, int at, int depth);
/* "float v2 = 0": an accumulator that takes itself. */
void c_declare_accumulator(CPrinter *p, const Accumulator *a);
/* now: the number of the partial that takes, or of a row's column. */
void c_start_accumulators(CPrinter *p, const LoopStatement *s, const char *now);
void c_finish_accumulators(CPrinter *p, const LoopStatement *s);
void c_print_accumulate(CPrinter *p, const LoopStatement *s, int at);

/* ---- tiles.c: what a team does together */
void c_print_each(CPrinter *p, const LoopStatement *s, int at);
/* Place of element (i, j) of an operand, by the names of variables. */
const char *c_window_place(CPrinter *p, const LoopWindow *w, const char *i, const char *j);
void c_print_mma(CPrinter *p, const LoopStatement *s, int at);
void c_print_copy(CPrinter *p, const LoopStatement *s, int at);

#endif

/* Programs: what an executable runs for a function, as lists of instructions. The passes of codegen/programs make programs
 * and rewrite them; codegen/emit writes them to the tables. The records are those of the tables (base/schedule), but their
 * indices count from the program's own lists. In the text form, a program stands behind the functions (docs/ir.md):
 *
 *	program update {
 *	  %0 = slot state+0 f32 bytes 64 "w"
 *	  %1 = slot state+64 f32 bytes 64 "grad.w"
 *	  run @sgd (%1, %0) phase update loc "w"
 *	} */
#ifndef GRADC_IR_PROGRAMS_PROGRAMS_H
#define GRADC_IR_PROGRAMS_PROGRAMS_H

#include "base/schedule/schedule.h"
#include "ir/ir.h"

/* A travel is one exchange of data between ranks while a program computes. The pass `streams` writes it as collectives,
 * copies and sums on the communication stream. */
typedef enum {
	TRAVEL_SUM,    /* every rank gets the sum over all ranks */
	TRAVEL_REDUCE, /* each rank gets its part of the sum over all ranks */
	TRAVEL_GATHER, /* every rank gets the parts of all ranks, which make the whole */
	/* like GATHER, but done as a sum in any order: each rank fills the elements of the other
	 * ranks with zeros. The sum is exact if at most one rank's number is not zero; for other
	 * uses a rounded sum is enough */
	TRAVEL_FILL,
} TravelKind;
typedef struct {
	TravelKind kind;
	/* the travel starts after this instruction; -1: before the first */
	int behind;
	When when;
	bool adds; /* REDUCE: adds to the part in later micro-batches; stores in the first */
	/* Slots in the device's memory. Both describe the same tensor; `part` stands for this
	 * rank's share of it, cut at multiples of the slot's block size. The part may lie within
	 * the whole. */
	Slot whole, part;
} Travel;

/* An input or a result of a program. */
typedef struct {
	StrRef name;
	PortKind kind;
	Type type;
	uint32_t slot;
	/* of PORT_INPUT: number of the graph input; of results: number of the function's result */
	int number;
	int rows_axis; /* of PORT_LABELS: the axis that counts rows */
} ProgramPort;

typedef VEC(Instruction) Instructions;
typedef VEC(Travel) Travels;
struct Program {
	Arena *arena; /* the module's */
	/* Together, these five fields identify one program. */
	Role role;
	int binding, stage;
	DataParallelMode mode;
	const char *target; /* NULL: the only one */
	bool on_host;       /* do the host's processors run the program, instead of the device? */
	bool offloads;      /* does the program update states that lie in the host's memory? */
	VEC(const char *) names; /* StrRef is an index; names.at[0] is "" */
	StrMap *known;           /* by name: its number */
	VEC(Slot) slots;         /* Slot.mode stays 0: the program has the mode */
	VEC(Argument) arguments; /* Argument.slot: index in slots */
	/* Instruction.what: index in Module.kernels or in collectives; Instruction.args: index in arguments */
	Instructions instructions;
	VEC(CollectiveRecord) collectives;
	/* exchanges of data that are not instructions yet, by `behind`, ascending */
	Travels travels;
	VEC(ProgramPort) inputs, outputs;
	uint32_t
		scalars; /* 1 + the slot of the scalars that kernels read; 0: no kernel reads one */
	uint32_t
		n_events; /* the program's own events: N_SHARED_EVENTS to N_SHARED_EVENTS + n_events - 1 */
	int64_t bytes[N_SPACES]; /* size of each region that is planned for a program */
	int64_t gathered; /* bytes of SPACE_GATHERED that arguments use; rooms lie after them */
	int64_t flops;
	int line; /* line in the module's file, as in Node */
};

#define for_each_program(m, p)                                \
	for (int p##_i = 0; p##_i < (m)->programs.n; p##_i++) \
		for (Program *p = (m)->programs.at[p##_i]; p; p = NULL)

/* ---- programs.c: building programs */
/* An empty program at the end of the module's list. */
Program *program_append(Module *m, Role role, int binding);
StrRef program_name(Program *p, const char *text); /* equal texts have one number; NULL is "" */
uint32_t program_slot(Program *p, Slot slot);      /* adds a slot; its number */
/* Adds an argument for each slot; returns the number of the first argument. */
uint32_t program_arguments(Program *p, int n, const uint32_t *slots);
/* Orders the travels by the instruction behind which they start. Travels that start behind one instruction keep their order.
 * A pass that adds travels calls this at its end. */
void program_sort_travels(Program *p);

/* ---- access.c: how instructions access their arguments */
/* Sets out[i] to the ACCESS_... bits of buffer i, of the kernel's loops and its library call. */
void kernel_access(const Kernel *k, uint32_t *out);
/* The access of all kernels of a module. Each kernel is looked through once, when the first question about it comes. */
typedef struct {
	Arena *arena;
	const Module *m;
	uint32_t **of; /* by number of a kernel: ACCESS_... bits by argument; NULL: not known yet */
} AccessTable;
AccessTable access_table_new(Arena *arena, const Module *m);
/* ACCESS_... bits of the instruction's argument i. A kernel says how it accesses its arguments. A collective counts as
 * writing all of them. Other instructions write their first argument and read the others; BRANCH and LEAVE only read. */
uint32_t instruction_access(const AccessTable *a, const Instruction *n, uint32_t i);

/* ---- print.c, parse.c: programs in the text form of modules */
void program_print(Text *out, const Module *m, const Program *p, const PrintOptions *options);

/* ---- check.c: reports the faults of all programs; true: no fault */
bool programs_verify(const Module *m, Arena *scratch, Diag *diag);

#endif

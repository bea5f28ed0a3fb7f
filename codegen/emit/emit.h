/* Writes a compiled module (after the pass `events`) as an executable: writes its tables
 * (instructions, states, kernels) and links it. Each section is named after its .c file. */
#ifndef GRADC_CODEGEN_EMIT_EMIT_H
#define GRADC_CODEGEN_EMIT_EMIT_H

#include "codegen/cuda/cuda.h"

/* ---- tables.c: the module after `events` as an executable's tables */
/* Facts about a port (an input or output of the executable) that are not in the port's type. */
typedef struct {
	DType file_dtype;
	int sample_axis;
	bool bounded, has_ignore;
	int64_t min, max, ignore;
} PortInfo;
/* Rows and classes of an output of the forward program; fields of PortRecord. */
typedef struct {
	int row_axis, class_axis;
	int64_t repeats;
	bool mixes_rows;
	Compared compared;
} OutputRows;
typedef struct {
	const char *text; /* "batch=8 seq=128" */
	int64_t rows;     /* rows of a micro-batch */
} BindingInfo;
typedef struct {
	const Module *m;
	const PortInfo *inputs; /* by number of PARAM_INPUT */
	int n_inputs;
	const PortInfo *outputs; /* by result of the forward function */
	int n_outputs;
	const OutputRows *rows; /* by binding, then by output: [n_bindings][n_outputs] */
	PortInfo labels;
	const BindingInfo *bindings;
	int n_bindings;
	const StateSource *sources; /* by state id; states after these come from no file */
	int n_sources;
	const AdapterModules *adapters; /* by adapter of m; NULL: nothing is known */
} Tables;
/* Fills the sections of w that come from the module; the caller writes info and export. False
 * after reporting a number that is too large for its field in a record. */
bool tables_write(FormatWriter *w, const Tables *t, Diag *diag);

/* ---- link.c */
/* Compiles the kernels, links them with the runtime, appends weights and tables, and renames the result to
 * its final name. */
Status link_executable(const Module *m, FormatWriter *w, const LinkOptions *options);

#endif

/* Private header: state and helpers for the rows that write a program's nodes as ONNX. Each value of
 * the program has a name in the graph. A row reads the names of its operands and sets the name of
 * its result. */
#ifndef GRADC_FRONTEND_EXPORT_WRITER_H
#define GRADC_FRONTEND_EXPORT_WRITER_H

#include "frontend/export/branches.h"

enum { WRITTEN_OPSET = 18, WRITTEN_IR = 8, MOST_WRITTEN_INPUTS = 4096 };

typedef struct {
	Arena *arena;
	const Module *m;
	const Function *f;
	Diag *diag;
	StrMap *taken;     /* all names in the graph */
	const char **name; /* by value id; NULL: not written so far */
	bool *live;        /* by value id: a result depends on it */
	VEC(NodeProto *) nodes;
	VEC(TensorProto *) initializers;
	VEC(ValueInfoProto *) inputs, outputs;
	int count;          /* number of names made */
	const char *origin; /* origin of the current node */
} GraphWriter;

/* ---- write.c */
/* Returns `wanted`, followed by a number if the name is taken. */
const char *writer_name(GraphWriter *w, const char *wanted);
const char *writer_operand(const GraphWriter *w, const Node *n, int i);
void writer_set(GraphWriter *w, const Node *n, int i, const char *name);

/* Attributes of a node; name NULL ends a list. */
typedef struct {
	const char *name;
	enum { WRITE_INT, WRITE_INTS, WRITE_TEXT } kind;
	int64_t i;
	Ints ints;
	const char *text;
} WrittenAttribute;
/* Adds a node; sets the names of its results. */
void writer_node_of(GraphWriter *w, const char *op, const WrittenAttribute *attributes, int n,
                    const char *const *inputs, int n_results, const char **results);
/* Adds a node with one result; returns the result's name. */
const char *writer_node(GraphWriter *w, const char *op, const WrittenAttribute *attributes, int n,
                        const char *const *inputs);
/* Adds a node with one operand, one result and no attributes; returns the result's name. */
const char *writer_unary(GraphWriter *w, const char *op, const char *x);
const char *writer_binary(GraphWriter *w, const char *op, const char *x, const char *y);
/* x where c is true, else y. onnxruntime's Where has no bools. */
const char *writer_where(GraphWriter *w, const char *c, const char *x, const char *y);
/* Adds an initializer. */
const char *writer_tensor(GraphWriter *w, const char *wanted, DType dtype, Ints shape,
                          const void *data);
const char *writer_ints(GraphWriter *w, Ints list);               /* s64[n] */
const char *writer_number(GraphWriter *w, DType dtype, double x); /* scalar */
const char *writer_integer(GraphWriter *w, int64_t x);            /* scalar of type s64 */
/* Common operators. */
const char *writer_reshape(GraphWriter *w, const char *x, Ints shape);
const char *writer_transpose(GraphWriter *w, const char *x, Ints order);
const char *writer_cast(GraphWriter *w, const char *x, DType to);
const char *writer_slice(GraphWriter *w, const char *x, Ints start, Ints stop, Ints step);
const char *writer_pad(GraphWriter *w, const char *x, DType dtype, Ints low, Ints high,
                       double value);

static inline DType
dtype_of(const Node *n)
{
	return node_result(n, 0)->type->dtype;
}

static inline Type
type_of(const Node *n, int operand)
{
	return node_operand(n, operand)->type;
}

/* Sets result 0. */
static inline bool
done(GraphWriter *w, const Node *n, const char *name)
{
	writer_set(w, n, 0, name);
	return true;
}

/* ---- ops.c, indices.c, products.c, windows.c: tables of rows. A row's function returns false if
 * ONNX has no form for the attributes. */
typedef bool (*WriteFn)(GraphWriter *w, const Node *n);
typedef struct {
	const char *op; /* as OpRow.name */
	WriteFn write;
	const char *onnx; /* for rows that are one operator */
} WriteRow;
extern const WriteRow write_op_rows[], write_index_rows[], write_product_rows[],
	write_window_rows[];

#endif

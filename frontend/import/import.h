/* What an importer needs, a function that translates one ONNX operator into IR: its node, checked
 * accessors of inputs and attributes, and builders of IR nodes. The rule is: NULL in, NULL out. An
 * accessor that finds a fault reports it and returns NULL. A builder given NULL returns NULL. An
 * output given NULL is poisoned, and readers of poisoned values report nothing. So an importer is a
 * straight line of calls, and one run shows every fault. */
#ifndef GRADC_FRONTEND_IMPORT_IMPORT_H
#define GRADC_FRONTEND_IMPORT_IMPORT_H

#include "frontend/edit/edit.h"
#include "frontend/weights/weights.h"

/* The object to which `module->import` points; the public part must come first. */
typedef struct {
	Import base;
	Repairs *repairs;
	bool keep_metadata;
	FakeQuantization *quantize; /* --quantize; NULL: not given */
} ImportInfo;
typedef struct Importer Importer;
/* The content of a name of the graph: a tensor, a sequence or an optional. */
typedef struct {
	Value *value; /* the tensor; NULL: poisoned, or a sequence */
	Value **list; /* elements of the sequence */
	int n_list;
	bool sequence;
	bool optional; /* the tensor or sequence may be absent */
	bool absent;   /* an optional without content */
	/* s64[]: number of elements of `value` along `axis` that are data; the rest is padding.
	 * NULL: no padding. */
	Value *count;
	int axis;
} Bound;
typedef struct OnnxNode OnnxNode;
typedef struct {
	int op;     /* OpKind */
	int kind;   /* ReduceKind, PoolKind or a choice of the family */
	bool input; /* axes, pads, bounds ... are inputs, not attributes */
	bool flag;
	double alpha, beta; /* defaults of the attributes alpha and beta */
	Value *(*pre)(OnnxNode *n, Value *x);
	Value *(*post)(OnnxNode *n, Value *x);
	Value *(*f)(OnnxNode *n, Value *x, Value *y);
} Extra;
typedef struct {
	const char *name;
	int from, to; /* first and last opset of the row; `to` 0: no last opset */
	void (*import)(OnnxNode *n);
	Extra extra;
	const char *domain; /* NULL: ai.onnx */
	/* of all opsets; only the operator's first row has facts */
	OperatorFacts facts;
} ImportRow;
/* Random numbers that follow the batch axis of another value. */
typedef struct {
	Value *random, *rows_of;
} PendingRandom;
/* A store at the end of the function. */
typedef struct {
	State *state;
	Value *value;
} StoreAtEnd;
/* A function under construction that a node will run (scope.c). */
typedef struct Scope {
	struct Scope *up;
	Function *f;
	Builder around;
	IntMap *params; /* a value of the outer function -> its parameter here */
	/* keys of `params`, in the order of their parameters, which come last */
	VEC(Value *) captured;
} Scope;
struct Importer {
	Model *model;
	Scope *scope;            /* body being built; NULL: the program */
	int loops_around;        /* number of loops around the current nodes */
	int64_t unrolled_around; /* number of copies of the current nodes; 0: one copy */
	Module *m;
	Builder b;
	Diag *diag;
	const ImportOptions *options;
	bool *bounds_read;   /* per bound of the options: did a node read it? */
	Repairs *repairs;    /* NULL: every initializer is a constant (loss graphs) */
	Arena *arena;        /* scratch */
	StrMap *values;      /* name -> Bound */
	int before;          /* number of errors before this import */
	int binding;         /* index of the binding in the options */
	int64_t baked_batch; /* --repair=batch: the batch size to replace; 0: off */
	/* hash that tells copies of a repeated graph apart; 0: one copy */
	uint64_t repetition;
	bool inference;           /* build @inference */
	int64_t listed;           /* number of elements of all sequences so far */
	bool full;                /* the budget of nodes or of elements is exhausted */
	bool differs;             /* some node has another form in inference */
	bool restored;            /* --train-mode=restore changed a node */
	StringList training_form; /* nodes in training form, for Import */
	bool computes_training_form;
	bool has_frozen_norms;       /* some batch norm in training form has frozen weights */
	bool has_synchronized_norms; /* some batch norm uses the batch of all ranks */
	VEC(StoreAtEnd) stores_at_end;
	IntMap *store_of_state;             /* State -> its index in stores_at_end */
	IntMap *state_of_next;              /* Value that is or was to be stored -> State */
	VEC(Value *) overflows;             /* bools of the program: data exceed a bound */
	VEC(PendingRandom) pending_randoms; /* random values of the function being built */
	IntMap *marked; /* node of the file -> its MarkedInputs; NULL: a loss graph */
};
struct OnnxNode {
	Importer *im;
	const FlatNode *flat;
	const NodeProto *proto;
	const ImportRow *row;
	const Extra *extra;
	int opset;
	Builder *b;
	bool failed;
	Bound *out;          /* one per output */
	const Bound *padded; /* the first padded input that the importer read; NULL: none so far */
	int padded_at;       /* index of that input */
};

/* ---- importers.c: the tables of the families. */
/* The facts of all operators: "Conv" or "com.microsoft.Gelu" -> OperatorFacts; in the arena. */
StrMap *importer_facts(Arena *arena);
/* The reason why a node has no importer; NULL: it has an importer. */
const char *importer_missing(const FlatNode *n);
/* What to use instead of an operator without importer; NULL: no advice. */
const char *importer_hint(const FlatNode *n);

/* ---- import.c */
void import_nodes(Importer *im, int n, const FlatNode *nodes);
Bound *importer_lookup(Importer *im, const char *name); /* NULL: unknown */
void importer_bind(Importer *im, const char *name, Value *v);
void importer_bind_weight(Importer *im, const char *name, const Weight *w);
bool weight_has_state(const Weight *w); /* w may be NULL */
/* The content of `state` at the end of the function, as imported so far; NULL: unchanged. */
Value *importer_next_content(Importer *im, const State *state);
/* Stores value in state at the end of the function; replaces an earlier store to this state. */
void importer_store_at_end(Importer *im, State *state, Value *value);
/* The state whose content, or next content, input i reads; NULL: the input is computed. */
State *input_statistic(OnnxNode *n, int i);
/* Computes v if it depends only on constants, iotas and given inputs; else NULL. */
const Tensor *known_value(Importer *im, Value *v);

/* ---- control.c */
/* Imports the nodes of an attribute's graph in place of the node. The caller binds the graph's
 * inputs before, and looks up its outputs after. */
void import_subgraph(OnnxNode *n, const GraphProto *g);
/* Does the same for copy number `at` of the graph. Each copy draws different random numbers. */
void import_subgraph_again(OnnxNode *n, const GraphProto *g, int64_t at);

/* ---- scope.c */
/* From now on the importers build the body of a new function. Its parameters must be made before the
 * body reads any value. */
void scope_open(OnnxNode *n, Scope *s, const char *name);
/* Ends the function with these results. False if a result is NULL: its fault was reported, and the
 * function has no return. */
bool scope_close(OnnxNode *n, Scope *s, int n_results, Value **results);
void scope_leave(OnnxNode *n, Scope *s); /* leaves the function unfinished */
/* b for a reader in the function under construction: if b is a value of an outer function, it
 * becomes a parameter. */
Bound *scope_bound(Importer *im, Bound *b);
/* False after reporting that `what` is not supported inside a body. */
bool outside_of_bodies(OnnxNode *n, const char *what);

/* ---- padded.c: values whose size depends on data */
/* The largest size of the node's output, by --bound; false after reporting. */
bool want_size_bound(OnnxNode *n, int64_t *out);
bool has_size_bound(const OnnxNode *n); /* does --bound name an output? */
/* If `over`, a computed bool, is true, the program's float results become NaN: no loss is computed
 * from a part of the data. */
void note_overflow(OnnxNode *n, Value *over);
/* Sets output i to v: `count` elements along the axis are data, the rest is padding. count NULL:
 * all of v is data. */
void set_output_padded(OnnxNode *n, int i, Value *v, int axis, Value *count);

/* ---- data_sizes.c */
/* The indices at which a mask is true, ascending. */
typedef struct {
	Value *at;    /* s64[number of true elements], or padded with the first index */
	Value *count; /* s64[]; NULL: `at` is not padded */
} Places;
/* mask: bool[n]. `at` is NULL after reporting: a mask that is not known at import needs a bound. */
Places places_of(OnnxNode *n, Value *mask);
/* Does the same with a bound on the number of true elements, which the caller knows. */
Places places_within(OnnxNode *n, Value *mask, int64_t bound);

/* ---- reduce.c */
/* The axes of a reduction of x, from an attribute or an input; false after reporting. */
bool want_reduce_axes(OnnxNode *n, const Value *x, Ints *axes);

/* ---- list_ports.c: inputs and outputs that are sequences or optionals */
/* The element type of a tensor, sequence or optional; *out says which of these. NULL: it does not
 * hold tensors. */
const Onnx__TypeProto__Tensor *list_type(const Onnx__TypeProto *t, GivenList *out);

/* ---- ports.c, loss_graph.c */
typedef struct {
	Importer *im;
	ImportInfo *info;
	Text open; /* names of unbound dimensions, for the message */
} Inputs;
bool bind_port(Inputs *in, const ValueInfoProto *v, ImportPort *port);

/* ---- import.c */
/* Notes that the file has the node in training form. what: for example "dropout". computed: the
 * imported program also computes the training form. */
void importer_in_training_form(OnnxNode *n, const char *what, bool computed);

/* ---- accessors.c: faults and accessors. */
void report_invalid(OnnxNode *n, const char *fmt, ...) PRINTF(2, 3);     /* exit code 3 */
void report_unsupported(OnnxNode *n, const char *fmt, ...) PRINTF(2, 3); /* exit code 4 */
int n_inputs(const OnnxNode *n);
int n_outputs(const OnnxNode *n);
bool has_input(const OnnxNode *n, int i);
bool has_output(const OnnxNode *n, int i);
bool has_attribute(const OnnxNode *n, const char *name);
Value *want_input(OnnxNode *n, int i);
const char *type_text(OnnxNode *n, Type t); /* "f32[2,3]" */
/* Input 1 of a binary operator, aligned with x, input 0. From opset 7 on, NumPy's broadcasting
 * aligns the two. Before opset 7, with `broadcast` = 1, input 1 may have fewer axes; these begin at
 * axis `axis` of x (https://onnx.ai/onnx/operators/onnx__Add.html, version 6). */
Value *want_second_input(OnnxNode *n, const Value *x);
Value *want_float_input(OnnxNode *n, int i); /* an input of a float type */
Bound *want_bound(OnnxNode *n, int i);
const Tensor *want_constant(OnnxNode *n, int i);
/* A constant list of at most 16 integers, or one integer. */
bool want_constant_ints(OnnxNode *n, int i, Ints *out);
bool want_constant_int(OnnxNode *n, int i, int64_t *out);
bool want_constant_float(OnnxNode *n, int i, double *out);
int64_t want_int(OnnxNode *n, const char *name, int64_t otherwise);
double want_float(OnnxNode *n, const char *name, double otherwise);
const char *want_string(OnnxNode *n, const char *name, const char *otherwise);
/* An attribute that must be one of these words. Returns the first word if the attribute is absent,
 * and after reporting. */
const char *want_word(OnnxNode *n, const char *name, const char *words);
/* false: the attribute is absent, or too long (reported). */
bool want_ints(OnnxNode *n, const char *name, Ints *out);
/* Sets the first numbers of an attribute; more than `most` are reported. Returns their number, 0 if
 * the attribute is absent. */
int want_floats(OnnxNode *n, const char *name, int most, double *out);
/* An axis of a tensor with this rank; a negative axis counts from the end. -1 after reporting. */
int want_axis(OnnxNode *n, int64_t axis, int rank);
/* All axes of a list, sorted, without repetition. */
bool want_axes(OnnxNode *n, Ints list, int rank, Ints *out);
/* The axes from attribute `name` or from input i, as the row's `input` says. */
bool want_axes_list(OnnxNode *n, const char *name, int i, Ints *out);
bool want_dtype(OnnxNode *n, int64_t onnx_type, DType *out);
void set_output(OnnxNode *n, int i, Value *v);
void set_output_list(OnnxNode *n, int i, int n_list, Value **list);
void set_output_bound(OnnxNode *n, int i, const Bound *b);
/* Did the maker of b report a fault? */
bool is_poisoned(const Bound *b);

/* ---- builders.c: builders that take NULL, and report what type inference would assert. */
Value *e_op(OnnxNode *n, OpKind op, int n_operands, Value *const *operands, const void *attr);
Value *e_unary(OnnxNode *n, OpKind op, Value *x);
Value *e_binary(OnnxNode *n, OpKind op, Value *x, Value *y);   /* NumPy broadcasting */
Value *e_select(OnnxNode *n, Value *cond, Value *x, Value *y); /* NumPy broadcasting */
Value *e_cast(OnnxNode *n, Value *x, DType to);
Value *e_reshape(OnnxNode *n, Value *x, Ints shape);
Value *e_flat(OnnxNode *n, Value *x);
/* x: [a], reshaped to [a, 1, 1 ..] of that rank */
Value *e_column(OnnxNode *n, Value *x, int rank);
Value *e_transpose(OnnxNode *n, Value *x, Ints order);
Value *e_broadcast(OnnxNode *n, Value *x, Ints shape); /* NumPy rules */
Value *e_broadcast_axes(OnnxNode *n, Value *x, Ints shape, Ints axes);
Value *e_reduce(OnnxNode *n, ReduceKind kind, Value *x, Ints axes, bool keep);
Value *e_mean(OnnxNode *n, Value *x, Ints axes, bool keep);
Value *e_slice(OnnxNode *n, Value *x, Ints start, Ints stop, Ints step);
Value *e_slice_axis(OnnxNode *n, Value *x, int axis, int64_t start, int64_t stop);
Value *e_pad(OnnxNode *n, Value *x, Ints low, Ints high, double value);
Value *e_concat(OnnxNode *n, int count, Value *const *x, int axis);
Value *e_iota(OnnxNode *n, DType dtype, Ints shape, int axis);
Value *e_gather(OnnxNode *n, Value *data, Value *indices, int axis);
Value *e_dot(OnnxNode *n, Value *x, Value *y, const DotAttr *attr);
/* e_number: `value` in x's type and shape; the other functions give a scalar. If x's type cannot
 * hold the double exactly, the result is a sum of constants of this type, so the program keeps all
 * digits if it is later computed in a wider type. */
Value *e_number(OnnxNode *n, Value *x, double value);
Value *e_scalar(OnnxNode *n, DType dtype, double value);
Value *e_splat(OnnxNode *n, DType dtype, Ints shape, double value);
/* A vector of these numbers, exact as in e_number. */
Value *e_vector(OnnxNode *n, DType dtype, int count, const double *at);
/* x op value */
Value *e_with(OnnxNode *n, OpKind op, Value *x, double value);
Value *e_constant_ints(OnnxNode *n, int count, const int64_t *at); /* s64[count] */
/* Makes negative indices into an axis of `size` elements positive. trusted: a graph input that the
 * trainer checks against the size. */
Value *e_indices(OnnxNode *n, Value *indices, int64_t size, bool trusted);
/* Broadcasts *shape with another shape; false after reporting. */
bool broadcast_shapes(OnnxNode *n, Ints *shape, Ints other);
bool shape_fits(OnnxNode *n, Ints shape); /* is the number of elements within the budget? */
Ints shape_of(const Value *v);
Ints ints_range(int from, int to);
Ints ints_without(Ints list, int at);
bool is_float(const Value *v);
DType at_least_f32(DType t); /* the type for computing with floats of 16 bits or less */

/* ---- ../operators: builders that families of operators share */
Value *e_softmax(OnnxNode *n, Value *x, Ints axes, bool log);
Value *e_normalize(OnnxNode *n, Value *x, Ints axes, double epsilon, Value **mean, Value **inverse);
Value *e_matmul(OnnxNode *n, Value *x, Value *y);
Value *e_silu(OnnxNode *n, Value *x); /* x sigmoid(x) */
/* GELU by the error function, or ONNX's approximation by tanh. */
Value *e_gelu(OnnxNode *n, Value *x, bool tanh);
/* The activation that an operator names in an attribute. numbers: the activation's first `count`
 * parameters (alpha and beta; of Selu alpha and gamma; of Clip the bounds). Further parameters have
 * the standard's defaults. NULL after reporting. */
Value *e_curve(OnnxNode *n, Value *x, const char *name, int count, const double *numbers);
/* A convolution with the node's attributes; `weight`: the index of the input w. */
Value *e_conv(OnnxNode *n, Value *x, Value *w, int weight);
Value *e_channel(OnnxNode *n, Value *per_channel, Value *like, int axis);
/* [group, channel, spatial..] -> [group * spatial, channel] */
Value *e_rows_of_places(OnnxNode *n, Value *x);
Value *e_mod(OnnxNode *n, Value *x, Value *y);
/* max(x, bound) and min(x, bound); if x equals the bound, the gradient goes to the bound. */
Value *e_at_least(OnnxNode *n, Value *x, Value *bound);
Value *e_at_most(OnnxNode *n, Value *x, Value *bound);

#endif

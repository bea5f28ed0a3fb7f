/* What an importer of an ONNX operator sees: its node, checked accessors, and builders of IR.
 *
 * NULL in, NULL out: an accessor that finds a fault reports it and returns NULL, a builder given
 * NULL returns NULL, an output given NULL is poisoned, and readers of poisoned values stay silent.
 * So an importer is a straight line of calls, and one run shows every fault. */
#ifndef GRADC_FRONTEND_IMPORT_IMPORT_H
#define GRADC_FRONTEND_IMPORT_IMPORT_H

#include "frontend/edit/edit.h"
#include "frontend/weights/weights.h"

/* What `module->import` points to: the public part first. */
typedef struct {
	Import base;
	Repairs *repairs;
	bool keep_metadata;
	FakeQuantization *quantize; /* NULL: nothing is */
} ImportInfo;
typedef struct Importer Importer;

/* What a name of the graph stands for. */
typedef struct {
	Value *value; /* NULL: poisoned, or a sequence */
	Value **list; /* elements of a sequence */
	int n_list;
	bool sequence;
	bool optional; /* what it has, a tensor or a sequence, may be missing */
	bool absent;   /* an optional that has nothing */
	/* s64[]: so many elements of `value` along `axis` are data, the others padding; NULL: all are. */
	Value *count;
	int axis;
} Bound;

typedef struct OnnxNode OnnxNode;
typedef struct {
	int op;     /* OpKind */
	int kind;   /* ReduceKind, PoolKind or a choice of the family */
	bool input; /* axes, pads, bounds ... are inputs, not attributes */
	bool flag;
	double alpha, beta; /* defaults of the attributes of that name */
	Value *(*pre)(OnnxNode *n, Value *x);
	Value *(*post)(OnnxNode *n, Value *x);
	Value *(*f)(OnnxNode *n, Value *x, Value *y);
} Extra;
typedef struct {
	const char *name;
	int from, to; /* opsets; to 0: still current */
	void (*import)(OnnxNode *n);
	Extra extra;
	const char *domain; /* NULL: ai.onnx */
} ImportRow;

/* Random numbers, and the value whose batch axis is theirs. */
typedef struct {
	Value *random, *rows_of;
} PendingRandom;

/* What the function stores when it ends. */
typedef struct {
	State *state;
	Value *value;
} StoreAtEnd;

/* A function that is being built for a node to run (scope.c). */
typedef struct Scope {
	struct Scope *up;
	Function *f;
	Builder around;
	IntMap *params; /* a value of the function around -> the parameter that stands for it */
	VEC(Value *) captured; /* those values, in the order of their parameters, which come last */
} Scope;

struct Importer {
	Model *model;
	Scope *scope;            /* NULL: it builds a program */
	int loops_around;        /* of the nodes that are being imported */
	int64_t unrolled_around; /* how often what is being imported stands there; 0: once */
	Module *m;
	Builder b;
	Diag *diag;
	const ImportOptions *options;
	bool *bounds_read;        /* of options->bounds: some node wanted it */
	Repairs *repairs;         /* NULL: every initializer is a constant (loss graphs) */
	Arena *arena;             /* scratch */
	StrMap *values;           /* name -> Bound */
	int before;               /* errors reported before */
	int binding;              /* which of the options' */
	int64_t baked_batch;      /* --repair=batch: the number to replace; 0: off */
	uint64_t repetition;      /* of a graph that stands there several times; 0: of none */
	bool inference;           /* build @inference */
	int64_t listed;           /* elements of sequences */
	bool full;                /* over the budget of nodes, or of those */
	bool differs;             /* some node has another form in inference */
	bool restored;            /* --train-mode=restore changed one */
	StringList training_form; /* as Import's */
	bool computes_training_form;
	bool has_frozen_norms;       /* batch norms in training form whose weights are frozen */
	bool has_synchronized_norms; /* batch norms that take the batch of all ranks */
	VEC(StoreAtEnd) stores_at_end;
	IntMap *store_of_state;             /* State -> its place in stores_at_end */
	IntMap *state_of_next;              /* Value that is or was to be stored -> State */
	VEC(Value *) overflows;             /* bools of the program: data say more than a bound */
	VEC(PendingRandom) pending_randoms; /* of the function being built */
	IntMap *quantized; /* reader of a node's input -> QuantizedTensor; NULL: nothing is */
	IntMap *fakes; /* QuantizedTensor -> the numbers that its readers read, of the function */
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
	Bound *out;          /* per output */
	const Bound *padded; /* the first padded input that was read; NULL: none */
	int padded_at;       /* which input that is */
};

/* ---- importers.c: the tables of the families. */
const ImportRow *importer_find(const FlatNode *n);
/* NULL, or why there is no importer. */
const char *importer_missing(const FlatNode *n);
/* What to do without an operator that has no importer; NULL: nothing is known. */
const char *importer_hint(const FlatNode *n);

/* ---- import.c */
/* Imports one node into im->values. */
void import_node(Importer *im, const FlatNode *flat);
void import_nodes(Importer *im, int n, const FlatNode *nodes);
Bound *importer_lookup(Importer *im, const char *name); /* NULL: unknown */
void importer_bind(Importer *im, const char *name, Value *v);
Value *weight_value(Importer *im, const Weight *w);
void importer_bind_weight(Importer *im, const char *name, const Weight *w);
bool weight_has_state(const Weight *w); /* w may be NULL */
/* What `state` will hold at the end of the function, as far as it is imported; NULL: what it held at the start. */
Value *importer_next_content(Importer *im, const State *state);
/* Stores value in state at the end of the function, in place of what was to be stored before. */
void importer_store_at_end(Importer *im, State *state, Value *value);
/* The state that input i reads, or whose next content it reads; NULL when the input is computed. */
State *input_statistic(OnnxNode *n, int i);
/* Computes v if it depends on constants and iotas alone; NULL when it does not. */
const Tensor *known_value(Importer *im, Value *v);

/* ---- control.c */
/* The nodes of an attribute's graph, in the node's place; the caller binds the graph's inputs before, and looks its outputs up after. */
void import_subgraph(OnnxNode *n, const GraphProto *g);
/* The same for the time number `at`: it draws random numbers of its own. */
void import_subgraph_again(OnnxNode *n, const GraphProto *g, int64_t at);

/* ---- scope.c */
/* What the importers build from now on is the body of a new function. Its parameters are to be made before anything is read. */
void scope_open(OnnxNode *n, Scope *s, const char *name);
/* Ends it with these results. False where one is NULL: what made it was reported, and the function is none. */
bool scope_close(OnnxNode *n, Scope *s, int n_results, Value **results);
void scope_leave(OnnxNode *n, Scope *s); /* without an end */
/* b as the function that is being built may read it. */
Bound *scope_bound(Importer *im, Bound *b);
Builder scope_program(const Importer *im); /* of the program around all bodies */
/* False after reporting that the node stands in a body, where `what` is not supported. */
bool outside_of_bodies(OnnxNode *n, const char *what);

/* ---- fake_quantize.c */
void fake_quantize_open(Importer *im, ImportInfo *info);
/* What input i of the node reads in place of v: numbers that went through codes, with --quantize; else v. */
Value *fake_quantized(OnnxNode *n, int i, Value *v);

/* ---- padded.c: values whose size depends on data */
/* The size at most that --bound declares for an output of the node; false after reporting. */
bool want_size_bound(OnnxNode *n, int64_t *out);
bool has_size_bound(const OnnxNode *n); /* does --bound say one? */
/* Where `over`, a bool that is computed, holds, the program's float results are NaN: a loss is never made of a part of the data. */
void note_overflow(OnnxNode *n, Value *over);
/* count NULL: all of v is data. */
void set_output_padded(OnnxNode *n, int i, Value *v, int axis, Value *count);
/* What the operator reads of a padded input; NULL after reporting. */
Value *padded_input(OnnxNode *n, int i, const Bound *b);
/* Outputs of a node that read one are padded in turn. */
void padded_outputs(OnnxNode *n);

/* ---- data_sizes.c */
/* Where a mask is true, in order. */
typedef struct {
	Value *at;    /* s64[as many], or padded with the first of them */
	Value *count; /* s64[]; NULL: there are as many as `at` has */
} Places;
/* mask: bool[n]. `at` NULL after reporting: what is not known needs a bound. */
Places places_of(OnnxNode *n, Value *mask);
/* The same with at most so many true ones, which the caller knows. */
Places places_within(OnnxNode *n, Value *mask, int64_t bound);

/* ---- reduce.c */
/* The axes that a reduction of x is over: an attribute or an input; false after reporting. */
bool want_reduce_axes(OnnxNode *n, const Value *x, Ints *axes);

/* ---- list_ports.c: inputs and outputs that are sequences or optionals */
/* The tensors of a type: its own, or those that a sequence or an optional holds, which is said of the list; NULL: no tensors. */
const Onnx__TypeProto__Tensor *list_type(const Onnx__TypeProto *t, GivenList *out);
/* False where v is a tensor. */
bool import_list_input(Importer *im, ImportInfo *info, const ValueInfoProto *v);
/* The elements of b, from result `first` on. */
void add_output_list(Importer *im, ImportInfo *info, const char *name, const Bound *b, int first);

/* ---- ports.c, loss_graph.c */
typedef struct {
	Importer *im;
	ImportInfo *info;
	Text open; /* names of dimensions that nothing binds */
} Inputs;
bool bind_port(Inputs *in, const ValueInfoProto *v, ImportPort *port);
int count_inputs(const Function *f);
/* An input of the module, and its parameter. */
Value *bind_tensor_port(Importer *im, ImportInfo *info, const ImportPort *port);
void import_inputs(Importer *im, ImportInfo *info);
void import_outputs(Importer *im, ImportInfo *info);              /* and the end of the function */
const DimBinding *find_dim(const Importer *im, const char *name); /* of --dim; NULL: none */

/* ---- rows.c */
/* The axis that --batch binds, where it is open; -1: --batch-axis says that no axis does. */
int rows_axis_of(const ValueInfoProto *v, const BatchAxisOption *options, int n);
bool rows_axis_is_known(const ValueInfoProto *v, const BatchAxisOption *options, int n);
void rows_find_inputs(const Importer *im, ImportBinding *b);
void rows_find_outputs(const Importer *im, ImportBinding *b); /* of the function being built */

/* ---- import.c */
/* So the file has it; what: "dropout". computed: so do we. */
void importer_in_training_form(OnnxNode *n, const char *what, bool computed);

/* ---- accessors.c: faults and accessors. */
void report_invalid(OnnxNode *n, const char *fmt, ...) PRINTF(2, 3);     /* exit 3 */
void report_unsupported(OnnxNode *n, const char *fmt, ...) PRINTF(2, 3); /* exit 4 */
int n_inputs(const OnnxNode *n);
int n_outputs(const OnnxNode *n);
bool has_input(const OnnxNode *n, int i);
bool has_output(const OnnxNode *n, int i);
bool has_attribute(const OnnxNode *n, const char *name);
Value *want_input(OnnxNode *n, int i);
const char *type_text(OnnxNode *n, Type t); /* "f32[2,3]" */
/* Input 1 of a binary operator, as x, input 0, is aligned with it: from opset 7 on as NumPy does it; before, `broadcast` lets it have
 * fewer axes, which begin at `axis` of x (https://onnx.ai/onnx/operators/onnx__Add.html, version 6). */
Value *want_second_input(OnnxNode *n, const Value *x);
Value *want_float_input(OnnxNode *n, int i); /* of a float type */
Bound *want_bound(OnnxNode *n, int i);
const Tensor *want_constant(OnnxNode *n, int i);
/* A constant list (or one number) of at most 16 integers. */
bool want_constant_ints(OnnxNode *n, int i, Ints *out);
bool want_constant_int(OnnxNode *n, int i, int64_t *out);
bool want_constant_float(OnnxNode *n, int i, double *out);
int64_t want_int(OnnxNode *n, const char *name, int64_t otherwise);
double want_float(OnnxNode *n, const char *name, double otherwise);
const char *want_string(OnnxNode *n, const char *name, const char *otherwise);
/* An attribute that is one of these words; the first where it is absent, and after reporting. */
const char *want_word(OnnxNode *n, const char *name, const char *words);
/* false where the attribute is absent, or too long (reported). */
bool want_ints(OnnxNode *n, const char *name, Ints *out);
/* The first numbers of an attribute, at most `most`; more are reported. How many: 0 where it is absent. */
int want_floats(OnnxNode *n, const char *name, int most, double *out);
/* An axis of a rank, negative counting from the end; -1 after reporting. */
int want_axis(OnnxNode *n, int64_t axis, int rank);
/* All of a list, sorted, without repetition. */
bool want_axes(OnnxNode *n, Ints list, int rank, Ints *out);
/* Attribute `name` or input i, as the row's `input` says. */
bool want_axes_list(OnnxNode *n, const char *name, int i, Ints *out);
bool want_dtype(OnnxNode *n, int64_t onnx_type, DType *out);
void set_output(OnnxNode *n, int i, Value *v);
void set_output_list(OnnxNode *n, int i, int n_list, Value **list);
void set_output_bound(OnnxNode *n, int i, const Bound *b);
/* Nothing is known of b: what made it reported a fault. */
bool is_poisoned(const Bound *b);

/* ---- builders.c: builders that take NULL and check what inference would assert. */
Value *e_op(OnnxNode *n, OpKind op, int n_operands, Value *const *operands, const void *attr);
Value *e_unary(OnnxNode *n, OpKind op, Value *x);
Value *e_binary(OnnxNode *n, OpKind op, Value *x, Value *y);   /* NumPy broadcasting */
Value *e_select(OnnxNode *n, Value *cond, Value *x, Value *y); /* NumPy broadcasting */
Value *e_cast(OnnxNode *n, Value *x, DType to);
Value *e_reshape(OnnxNode *n, Value *x, Ints shape);
Value *e_flat(OnnxNode *n, Value *x);
Value *e_column(OnnxNode *n, Value *x, int rank); /* x: [a], as [a, 1, 1 ..] of that rank */
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
/* value in x's type and shape, or as a scalar of x's dtype. A double that the type cannot hold is
 * the sum of pieces that it can, so that the graph means the same in a wider type. */
Value *e_number(OnnxNode *n, Value *x, double value);
Value *e_scalar(OnnxNode *n, DType dtype, double value);
Value *e_splat(OnnxNode *n, DType dtype, Ints shape, double value);
/* A vector of these numbers, exact as e_number. */
Value *e_vector(OnnxNode *n, DType dtype, int count, const double *at);
/* x op value */
Value *e_with(OnnxNode *n, OpKind op, Value *x, double value);
Value *e_constant_ints(OnnxNode *n, int count, const int64_t *at); /* s64[count] */
/* Negative indices into an axis of that many elements made positive; trusted: a graph input that the
 * trainer checks against the size. */
Value *e_indices(OnnxNode *n, Value *indices, int64_t size, bool trusted);
/* The common shape of two shapes; false after reporting. */
bool broadcast_shapes(OnnxNode *n, Ints *shape, Ints other);
bool shape_fits(OnnxNode *n, Ints shape); /* elements within the budget */
Ints shape_of(const Value *v);
Ints ints_range(int from, int to);
Ints ints_without(Ints list, int at);
bool is_float(const Value *v);
DType at_least_f32(DType t); /* what floats of 16 bits or less are computed in */

/* Shared between families. */
Value *e_softmax(OnnxNode *n, Value *x, Ints axes, bool log);
Value *e_normalize(OnnxNode *n, Value *x, Ints axes, double epsilon, Value **mean, Value **inverse);
Value *e_matmul(OnnxNode *n, Value *x, Value *y);
Value *e_silu(OnnxNode *n, Value *x); /* x sigmoid(x) */
/* By the error function, or ONNX's approximation by tanh. */
Value *e_gelu(OnnxNode *n, Value *x, bool tanh);
/* The activation of that name, as operators name it that have one in them. numbers: its alpha and beta (of Selu alpha and gamma, of Clip
 * the bounds), as many as are given; the others are the standard's. NULL after reporting. */
Value *e_curve(OnnxNode *n, Value *x, const char *name, int count, const double *numbers);
/* A convolution with the node's attributes; `weight`: the number of the input that w is. */
Value *e_conv(OnnxNode *n, Value *x, Value *w, int weight);
Value *e_channel(OnnxNode *n, Value *per_channel, Value *like, int axis);
/* [group, channel, spatial..] -> [group * spatial, channel] */
Value *e_rows_of_places(OnnxNode *n, Value *x);
Value *e_mod(OnnxNode *n, Value *x, Value *y);
/* DynamicQuantizeLinear's scale and zero point, for u8, of x over these axes, which keep one element. No gradient passes them. */
void e_dynamic_range(OnnxNode *n, Value *x, Ints axes, Value **scale, Value **zero);
/* max(x, bound) and min(x, bound); where they are equal the gradient is the bound's. */
Value *e_at_least(OnnxNode *n, Value *x, Value *bound);
Value *e_at_most(OnnxNode *n, Value *x, Value *bound);

#endif

/* The tensor IR: one SSA form from import to schedule. Sections are named after the .c file.
 *
 * A module holds states and functions; a function is one flat list of nodes; a node has an op,
 * operands, results, attributes and a location. The IR is pure: state changes only by `store`
 * nodes at the end of a function. Everything lives in the module's arena: addresses never move,
 * ids are dense. */
#ifndef GRADC_IR_H
#define GRADC_IR_H

#include "base/files/files.h"

typedef struct Module Module;
typedef struct Function Function;
typedef struct Node Node;
typedef struct Value Value;
typedef struct State State;
typedef struct Kernel Kernel; /* ir/loop/loop.h */
typedef struct OpRow OpRow;

/* ---- type.c: dtype + shape, interned: two types are equal when the handles are. */
typedef struct {
	DType dtype;
	int rank;
	int64_t n; /* elements */
	int64_t dims[MAX_RANK];
} TypeInfo;
typedef const TypeInfo *Type;

Type type_new(Module *m, DType dtype, int rank, const int64_t *dims);
Type type_scalar(Module *m, DType dtype);
Type type_with_dtype(Module *m, Type t, DType dtype); /* same shape */
Type type_drop_axis(Module *m, Type t, int axis);
bool type_same_shape(Type a, Type b);
int64_t type_bytes(Type t);
/* Row-major strides in elements. */
void type_strides(Type t, int64_t strides[MAX_RANK]);
void type_print(Text *out, Type t); /* f32[4,8]; f32[] is a scalar */

/* A short list of integers: shapes, axes, pads. Unused places are 0. */
typedef struct {
	int n;
	int reserved; /* 0: no padding, so that lists compare and hash by their bytes */
	int64_t at[MAX_RANK];
} Ints;
Ints ints_of_type(Type t); /* its dims */
bool ints_has(const Ints *list, int64_t x);

/* ---- loc.c: where a node comes from. Derived, never lost. Interned. */
typedef const struct LocInfo *Loc;
struct LocInfo {
	const char *text; /* an ONNX name, or the word of a derived location: "grad", "fused" */
	int n_parts;      /* 0 for a name */
	Loc parts[4];     /* fused keeps at most its first four */
};
Loc loc_name(Module *m, const char *name);
Loc loc_gradient(Module *m, Loc of); /* grad(of); NULL of NULL */
bool loc_is_gradient(Loc loc);
Loc loc_fuse(Module *m, const Loc *locs, int n);
/* Of a node that a call of `inner`'s function became: inlined(call, inner). */
Loc loc_inline(Module *m, Loc call, Loc inner);
Loc loc_of_parts(Module *m, const char *word, const Loc *parts,
                 int n);           /* at most four; any word but fused */
void loc_text(Text *out, Loc loc); /* fused("/a", grad("/b")), as the text form has it */
const char *loc_origin(Loc loc);   /* the first ONNX name inside; "" for NULL */

/* ---- attributes: a struct per op and a table of its fields. Everything that touches attributes
 * (text, hash, comparison, cloning) goes through the table. */
typedef enum {
	FIELD_INT,          /* int64_t */
	FIELD_FLOAT,        /* double */
	FIELD_BOOL,         /* bool */
	FIELD_ENUM,         /* int, printed as one of .names */
	FIELD_DTYPE,        /* DType */
	FIELD_DTYPE_IF_ANY, /* int: 1 + DType; 0: not said */
	FIELD_INTS,         /* Ints */
	FIELD_TENSOR,       /* const Tensor * */
	FIELD_FUNC,         /* Function * */
	FIELD_STATE,        /* State * */
	FIELD_KERNEL,       /* Kernel * */
} FieldKind;
typedef struct {
	const char *name;
	FieldKind kind;
	size_t offset;
	const char *const *names; /* FIELD_ENUM, NULL-terminated */
	bool optional;            /* left out of the text when zero, empty or NULL */
} Field;

size_t field_size(FieldKind kind); /* bytes in the struct of attributes */
bool attr_equal(const OpRow *row, const void *a, const void *b);
uint64_t attr_hash(const OpRow *row, const void *attr);

/* Constant data in its own dtype (bf16, packed s4, ...). */
typedef struct {
	Type type;
	const void *data;
	uint64_t hash; /* of type and bytes */
} Tensor;
Tensor *tensor_new(Module *m, Type type, const void *data);    /* data is copied */
Tensor *tensor_borrow(Module *m, Type type, const void *data); /* data must outlive the module */
Tensor *tensor_splat(Module *m, Type type,
                     double value); /* of an integer type: truncated, saturated; of bool: != 0 */
const Tensor *tensor_convert(Module *m, const Tensor *t,
                             DType to);              /* t itself where it is of `to` */
bool tensor_equal(const Tensor *a, const Tensor *b); /* type and bits; NULL equals NULL */
/* All elements equal? Then *value is it. */
bool tensor_is_splat(const Tensor *t, double *value);
double tensor_float(const Tensor *t, int64_t i);
int64_t tensor_int(const Tensor *t, int64_t i);

/* ---- module.c: the graph and the only functions that change it. */
typedef enum {
#define OP(name) OP_##name,
#include "ir/ops/op_list.def"
#undef OP
	N_OPS,
} OpKind;

typedef struct Use Use;
struct Use {
	Value *value; /* NULL: optional operand left out */
	Node *user;
	int index;         /* among the user's operands */
	Use *next, **link; /* in value's list */
};

typedef enum { VALUE_RESULT, VALUE_PARAM, VALUE_STATE } ValueKind;
/* What a parameter of a function is. */
typedef enum {
	PARAM_ARGUMENT, /* of functions that others call */
	PARAM_INPUT,    /* graph input `number`; a loss graph's own inputs count on behind them */
	PARAM_LABELS,   /* the loss's target: graph input `number`, or -1: one that the loss made */
	PARAM_SAMPLE_WEIGHT,  /* [rows]: 1 for a real row, 0 for padding */
	PARAM_HYPERPARAMETER, /* `number` of base/numbers/scalar_list.def, with that dtype */
	/* Of a function that is a gradient: what it takes of the call that it is the gradient of. */
	PARAM_OPERAND,   /* operand `number` */
	PARAM_RESULT,    /* result `number` */
	PARAM_COTANGENT, /* the cotangent of result `number`, a float */
} ParamKind;
/* Of functions that loops and branches run: workspace offsets count from where the caller's workspace ends, and a value may lie
 * where the node has what a parameter stands for, or a result; `offset` is then the number of the parameter or result. */
typedef enum {
	REGION_NONE,
	REGION_STATE,
	REGION_WORKSPACE,
	REGION_IO,
	REGION_HOST,
	REGION_PARAM,
	REGION_RESULT,
} Region;
struct Value {
	uint32_t id; /* dense within the function */
	ValueKind kind;
	Type type;
	Function *function;
	Node *node;       /* VALUE_RESULT */
	State *state;     /* VALUE_STATE: its content when the function starts */
	int index;        /* among the results or params */
	const char *name; /* params: for people, never read for a meaning */
	ParamKind param;  /* params: what it is */
	int number;       /* params: see ParamKind */
	bool has_rows;    /* params: axis rows_axis counts the rows of a micro-batch */
	int rows_axis;
	Use *uses;
	/* Set by the `memory` pass. */
	Region region;
	int64_t offset; /* bytes; see Region */
};

/* In which micro-batches of a step a node runs. */
typedef enum { WHEN_ALWAYS, WHEN_FIRST, WHEN_LATER, WHEN_LAST } When;
/* Bit 0: it may run in the first, bit 1: in a later one. */
static inline unsigned
when_runs(When when)
{
	return when == WHEN_FIRST ? 1 : when == WHEN_LATER ? 2 : 3;
}
typedef enum { PHASE_NONE, PHASE_FORWARD, PHASE_BACKWARD, PHASE_UPDATE } Phase;
struct Node {
	uint32_t id; /* dense within the function */
	OpKind op;
	Function *function;
	Node *prev, *next;
	int n_operands, n_results;
	Use *operands;
	Value **results;
	void *attr; /* row->attr_size bytes */
	Loc loc;
	int line; /* in the module's file; 0: made by a pass or an importer */
	Phase phase;
	When when;
};

typedef enum {
	STATE_PARAMETER, /* weights; `trainable` says which */
	STATE_STATISTIC, /* running mean and variance */
	STATE_MOMENT,    /* of the optimizer */
	STATE_GRADIENT,
	STATE_LOSS_SUM,   /* sum of the loss's terms over micro-batches */
	STATE_LOSS_COUNT, /* and of their weights */
	STATE_CORRECT,    /* weighted hits of an evaluation */
	STATE_UNIT,       /* flat, padded concatenation of parameters' storage */
	STATE_CONSTANT,   /* numbers of the graph that kernels read */
	STATE_PENDING,    /* what a step makes of a statistic, until @update commits it */
	STATE_UPDATES,    /* s64[]: how many updates were made */
	STATE_FAILED,     /* bool[]: a loss or norm was not finite; no update after that */
	STATE_LOSS_SCALE, /* f64[]: the backward is seeded with it; gradients are divided by it */
	STATE_GOOD_STEPS, /* s64[]: steps without overflow since the loss scale changed */
	STATE_HYSTERESIS, /* s64[]: overflows until it gets smaller */
	STATE_NUMBER,     /* f64[]: of the optimizer, for all parameters */
	STATE_WORKING,    /* a parameter rounded for those that read it so */
	STATE_AVERAGE,    /* of a parameter over the updates, which nothing but the export reads */
} StateKind;
/* Elements: a unit has whole blocks of so many, which a rank holds or does not, and by which norms are added up. */
enum { UNIT_BLOCK = 4096 };
typedef enum { LIFE_SAVED, LIFE_STEP, LIFE_DERIVED, LIFE_CONSTANT } Lifetime;
/* How ranks along the data axis share states: all hold all; parts of what the optimizer keeps; and of gradients; and of
 * weights (Rajbhandari et al. 2020, arXiv:1910.02054). */
typedef enum {
	MODE_DDP,
	MODE_ZERO1,
	MODE_ZERO2,
	MODE_ZERO3,
	N_DATA_PARALLEL_MODES
} DataParallelMode;
typedef enum { INIT_ZEROS, INIT_ONES, INIT_DATA, INIT_NORMAL, INIT_UNIFORM, INIT_COPY } InitKind;
struct State {
	int id; /* dense within the module */
	const char *name;
	Type type;
	StateKind kind;
	Lifetime lifetime;
	bool trainable;
	bool decay;      /* weight decay applies */
	double lr_scale; /* 1 by default */
	InitKind init;
	const Tensor *data;    /* INIT_DATA */
	double init_a, init_b; /* mean and std, or bounds */
	bool init_given;       /* by a rule of the user's: `initialize` keeps it */
	const char *path;      /* another name, of the module that reads it; NULL: none */
	const char *groups; /* "filters doubtful": --train=@filters takes all of them; NULL: none */
	const char *why;    /* for the table: "read by MatMul", "--freeze", ... */
	State *of; /* gradient or moment of this parameter or unit, pending of this statistic; NULL else */
	int number;          /* moments: which of the optimizer's */
	State *unit;         /* lies inside this unit, at: */
	int64_t unit_offset; /* elements */
	Loc loc;
	int line;       /* in the module's file, as in Node */
	int64_t offset; /* in the state region, set by `memory`; -1 before */
	/* The first of the data-parallel modes in which a rank holds a part of it, set by `memory`; MODE_DDP: none. It is divided
	 * in multiples of `block` elements; 0: with the unit that it lies in, or as its own units. */
	DataParallelMode sharded;
	int64_t block;
	bool offloaded; /* such a part lies in the host's memory */
};

/* Who reads a weight that has an adapter: products that sum over it, or nodes that take its rows by place, as an
 * embedding's. */
typedef enum { ADAPTS_PRODUCTS, ADAPTS_TABLES, ADAPTS_BOTH } AdapterReaders;
extern const char *const adapter_readers_texts[];
/* A low-rank product that is added to a weight which is not trained (LoRA: Hu et al. 2021, arXiv:2106.09685):
 *
 *	weight[.., o, ..] + adapter_scale * sum over r of b[o, r] * a[.., r, ..]        o, r along `axis` */
typedef struct {
	State *weight;
	State *a, *b; /* the weight's shape with the rank along `axis`; [outputs, rank] */
	/* [outputs]: what each output's weights are scaled to (DoRA: Liu et al. 2024, arXiv:2402.09353), the sum above times magnitude by its
	 * norm over all axes but `axis`; NULL: it is not scaled. */
	State *magnitude;
	int axis; /* of the weight, along which the outputs of its products lie; of a table's, its rows' elements */
	AdapterReaders readers;
	double alpha;
	bool rslora;
	bool pissa; /* the weight lacks what the adapter began as (Meng et al. 2024, arXiv:2404.02948) */
	int64_t base; /* a hash of the weight's numbers in the file, whatever the executable keeps of them; 0: not known */
	int line;     /* in the module's file, as in Node */
} Adapter;

/* A frozen weight that is kept as numbers of 4 bits (op dequantize), its axes in the order: `axis`, then the others. */
typedef struct {
	State *codes;  /* u8, under the weight's name */
	State *absmax; /* f32, or u8 where these are codes, too: */
	State *nested,
		*offset; /* f32, as base.h's absmax_quantize makes them; NULL: absmax is f32 */
	FourBit kind;
	Type type; /* the weight's */
	int axis;
	int line; /* in the module's file, as in Node */
} FourBitWeight;

/* What a state is in the file that was imported, and in the module that was exported to it. */
typedef struct {
	DType dtype;
	const char *parameter; /* "model.layers.0.mlp.up_proj.weight"; NULL: not known */
	bool transposed;       /* a matrix, the transpose of that one */
} StateSource;
/* The modules that read an adapter's weight, as PEFT calls them: "h.0.attn.c_attn". NULL: there is none, or it is not known. */
typedef struct {
	const char *product, *table;
} AdapterModules;

/* Kernels to be are FUNCTION_FUSED. */
typedef enum { FUNCTION_PLAIN, FUNCTION_FUSED } FunctionKind;
/* What a function is for. */
typedef enum {
	FUNCTION_HELPER,  /* called by others */
	FUNCTION_FORWARD, /* inputs -> graph outputs, as exported */
	FUNCTION_INFERENCE, /* the same with running statistics and without noise, where that differs */
	FUNCTION_EVAL,      /* adds to the loss's sums and the hits */
	FUNCTION_ACCUMULATE, /* one micro-batch: adds to gradients and the loss's sums */
	FUNCTION_UPDATE,     /* optimizer step */
	FUNCTION_ESTIMATE,   /* as accumulate, with targets that are drawn from the model */
	FUNCTION_REFRESH,    /* what the optimizer makes of the gradients of an estimate */
} FunctionRole;
struct Function {
	Module *module;
	const char *name; /* for people and `call`; never read for a meaning */
	FunctionKind kind;
	FunctionRole role;
	/* Of functions with a role, which is told by all five. */
	int binding; /* of the open dimensions */
	int stage;   /* of the pipeline */
	DataParallelMode mode;
	const char *target; /* who will run it, as codegen/ names them; NULL: not yet decided */
	/* What is differentiated in its place, of the same types: the identity for a rounding. NULL: itself. */
	Function *surrogate;
	Function *derivative;           /* by reverse mode, once somebody asked for it */
	VEC(const char *) result_names; /* for people; "", or fewer than results: none */
	VEC(Value *) params;
	VEC(Value *) states;   /* values of the states it reads */
	VEC(Value *) by_state; /* the same by state id; NULL where not read */
	Node *first, *last;    /* `last` is the return */
	int n_nodes;
	uint32_t next_node_id, next_value_id;
	Loc loc;
	int line; /* of its header, as in Node */
	int index;
};

struct Module {
	Arena *arena;
	const char *name;
	const char *file; /* that it was read from as text; NULL else */
	VEC(Function *) functions;
	VEC(State *) states;
	VEC(Adapter) adapters;       /* at most one of a weight; after `lora` */
	VEC(FourBitWeight) four_bit; /* after `lora` */
	VEC(Kernel *) kernels;       /* after `lower` */
	StrMap *function_names, *state_names, *kernel_names;
	IntMap *interned_types, *interned_locs;
	int64_t workspace_bytes, state_bytes, io_bytes; /* after `memory`; 0 before */
	int64_t targets;    /* of the loss in a full micro-batch; 0 before `loss` */
	uint32_t modes;     /* besides DDP: bit m is DataParallelMode m; set by `memory` */
	const void *import; /* the importer's knowledge of the file; NULL for text */
};

Module *module_new(const char *name);
void module_free(Module *m);
Function *module_function(const Module *m, const char *name); /* NULL when absent */
/* A new function with a role, named after it: @accumulate, @accumulate.1 for binding 1 ... */
Function *program_new(Module *m, FunctionRole role, int binding);
/* Of stage 0, replicated, for the first target; NULL when absent. */
Function *module_program(const Module *m, FunctionRole role, int binding);
State *module_state(const Module *m, const char *name);
State *module_state_of_kind(const Module *m, StateKind kind); /* the first; NULL when absent */
const Adapter *module_adapter(const Module *m,
                              const State *s); /* that s is the weight or a part of; NULL: none */
double adapter_scale(
	const Adapter *
		a); /* alpha / rank; with rslora alpha / sqrt(rank), Kalajdzievski 2023, arXiv:2312.03732 */
const FourBitWeight *module_four_bit(const Module *m,
                                     const State *codes); /* NULL: s holds numbers */
Type state_weight_type(const Module *m, const State *s);  /* of what it stands for */
State *module_updates(Module *m); /* that of STATE_UPDATES, made where there is none */
/* Names must be new in the module; `function_new` and `state_new` copy them. */
Function *function_new(Module *m, const char *name);
void function_remove(Function *f);
State *state_new(Module *m, const char *name, Type type, StateKind kind, Lifetime lifetime);
/* What it begins as in place of its data. */
void state_begin_as(State *s, InitKind init, double a, double b);
/* "PREFIX.NAME", of `of` and of its shape, which begins as a copy of it in type d. */
State *state_copy(Module *m, const char *prefix, State *of, DType d, StateKind kind,
                  Lifetime lifetime);
/* Is the word one of those in a list with spaces between? groups may be NULL. */
bool group_listed(const char *groups, const char *word);
/* By its name or its path, or by a group: @filters. */
bool state_matches(const State *s, const char *glob);
/* Three parameters whose names or paths are nearest to the glob, as a hint of the last fault. */
void hint_nearest_states(const Module *m, const char *glob, Diag *diag);
/* name, or name.2, name.3 ...: the first that the module does not have. */
const char *module_fresh_name(const Module *m, const char *name);
/* An argument; function_param_as says what else it is. Where the function has a parameter of that name, the new one's
 * is name.2, name.3 ... */
Value *function_param(Function *f, Type type, const char *name);
Value *function_param_as(Function *f, Type type, const char *name, ParamKind kind, int number);
/* number -1: any; NULL when absent. */
Value *function_find_param(const Function *f, ParamKind kind, int number);
/* The parameter that reads a number of the scalar block, made at first use. */
Value *function_hyperparameter(Function *f, ScalarIndex index);
/* The value of a state at the start of f, made at first use. */
Value *function_state(Function *f, State *state);
Node *function_return(const Function *f); /* NULL while it is being built */
/* The first of the stores that stand last, else the return: what nodes are inserted before. NULL: neither. */
Node *function_stores(const Function *f);
Node *function_store_of(const Function *f,
                        const State *s); /* where stores stand last; NULL: none */
Value *
store_elements(const Node *store); /* what it stores, before a reshape to the state's shape */
Value *function_result(const Function *f, int i);

/* The five that mutate. */
Node *node_insert(Function *f, Node *before, OpKind op, int n_operands, Value *const *operands,
                  const void *attr, int n_results, const Type *types, Loc loc);
void node_set_operand(Node *n, int i, Value *v);
void node_erase(Node *n); /* its results must be unused */
void value_replace_uses(Value *from, Value *to);
void node_move(Node *n, Node *before);

static inline Value *
node_operand(const Node *n, int i)
{
	return n->operands[i].value;
}
static inline Value *
node_result(const Node *n, int i)
{
	return n->results[i];
}
static inline bool
value_used(const Value *v)
{
	return v->uses != NULL;
}
bool value_used_once(const Value *v);
/* The tensor of a `constant` node's result; NULL for any other value. */
const Tensor *value_constant(const Value *v);
/* What v is a cast of; NULL: it is none, or rounds by a rule of its own. */
Value *value_cast_of(const Value *v);
/* Splat constant, also behind broadcasts and reshapes. */
bool value_splat(const Value *v, double *out);

#define for_each_function(m, f)                                \
	for (int f##_i = 0; f##_i < (m)->functions.n; f##_i++) \
		for (Function *f = (m)->functions.at[f##_i]; f; f = NULL)
/* The body may erase n itself or insert before it. */
#define for_each_node(f, n) \
	for (Node *n = (f)->first, *n##_next; n && (n##_next = n->next, true); n = n##_next)
#define for_each_node_reverse(f, n) \
	for (Node *n = (f)->last, *n##_prev; n && (n##_prev = n->prev, true); n = n##_prev)
#define for_each_use(v, u) \
	for (Use *u = (v)->uses, *u##_next; u && (u##_next = u->next, true); u = u##_next)

/* Copies the nodes of `from` (not its return) before `before`. map[value id of from] must hold the params' images; the
 * other entries are filled in. States map to the target function's. */
void function_clone_body(const Function *from, Function *to, Node *before, Value **map);
/* A function of that name with copies of the nodes, not of what `from` is for. */
Function *function_clone(const Function *from, const char *name);
/* Names the next result; where another one has that name it is name.2, name.3 ... */
void function_name_result(Function *f, const char *name);

/* ---- build.c: nodes with inferred types. Faults of inference here are our bugs (assert). */
typedef struct {
	Module *m;
	Function *f;
	Node *before; /* NULL: at the end */
	Loc loc;
	Phase phase;
} Builder;

Node *build_node(Builder *b, OpKind op, int n, Value *const *operands, const void *attr);
Value *build(Builder *b, OpKind op, int n, Value *const *operands, const void *attr);
Value *b_unary(Builder *b, OpKind op, Value *x);
Value *b_binary(Builder *b, OpKind op, Value *x, Value *y); /* equal types */
Value *b_select(Builder *b, Value *cond, Value *x, Value *y);
/* A copy of n of operands in other types; its result has theirs. */
Value *b_retyped(Builder *b, const Node *n, Value *const *operands);
Value *b_cast(Builder *b, Value *x, DType to); /* x itself when it has that dtype */
Value *b_constant(Builder *b, const Tensor *t);
/* A splat of that type, as scalar constant and broadcast. */
Value *b_splat(Builder *b, Type type, double value);
Value *b_reshape(Builder *b, Value *x, Ints shape); /* x itself when it has that shape */
/* Operand axis i becomes result axis axes[i]; the others are new. */
Value *b_broadcast(Builder *b, Value *x, Ints shape, Ints axes);
/* NumPy rules: aligned at the last axis, 1 stretches. x itself when equal. */
Value *b_broadcast_to(Builder *b, Value *x, Ints shape);
/* One element for each group of group[i] places along every axis i, the last group perhaps shorter, repeated to `shape`. v has
 * ceil(shape / group) elements, in whatever shape. A group that is neither 1 nor a whole axis takes an axis more: of these and
 * the shape's axes there are at most MAX_RANK. */
Value *b_spread(Builder *b, Value *v, Ints shape, Ints group);
/* y, whose `axes` of x's shape were reduced away, back to x's shape. */
Value *b_broadcast_back(Builder *b, Value *y, Type x, Ints axes);
Value *b_transpose(Builder *b, Value *x, Ints order);
Value *b_slice(Builder *b, Value *x, Ints start, Ints stop, Ints step);
Value *b_slice_axis(Builder *b, Value *x, int axis, int64_t start, int64_t stop);
Value *b_pad(Builder *b, Value *x, Ints low, Ints high, Ints interior, double value);
Value *b_concat(Builder *b, int n, Value *const *x, int axis);
Value *b_reverse(Builder *b, Value *x, Ints axes);
Value *b_iota(Builder *b, DType dtype, Ints shape, int axis);
typedef enum { REDUCE_SUM, REDUCE_PROD, REDUCE_MAX, REDUCE_MIN } ReduceKind;
Value *b_reduce(Builder *b, ReduceKind kind, Value *x, Ints axes); /* axes vanish */
Value *b_gather(Builder *b, Value *data, Value *indices, int axis);
typedef enum { SCATTER_SET, SCATTER_ADD, SCATTER_MUL, SCATTER_MAX, SCATTER_MIN } ScatterKind;
Value *b_scatter(Builder *b, ScatterKind kind, Value *data, Value *indices, Value *updates,
                 int axis);
/* Result axes: batch, then the free axes of x, then those of y. */
Value *b_dot(Builder *b, Value *x, Value *y, Ints x_batch, Ints y_batch, Ints x_contract,
             Ints y_contract);
void b_store(Builder *b, State *state, Value *v);
/* A sum over the micro-batches of a step, in two halves, as stores stand last: state + v; and b_store_step of v and
 * that sum. */
Value *b_running_sum(Builder *b, State *state, Value *v);
/* What a state of a step gets: `first` from the first micro-batch, `later` from each later one. */
void b_store_step(Builder *b, State *state, Value *first, Value *later);
void b_return(Builder *b, int n, Value *const *values);

/* ---- grad.c: reverse mode over a function; only this and the rows' grad columns know calculus. */
typedef struct {
	Value *value, *cotangent;
} GradSeed;
/* Appends the backward of b->f at b->before. seeds: cotangents of values; wanted[i] gets its
 * cotangent in out[i], NULL where the seeds do not depend on it. false after reporting an op without gradient
 * that a wanted value needs (EXIT_UNSUPPORTED). */
bool gradient_build(Builder *b, int n_seeds, const GradSeed *seeds, int n_wanted,
                    Value *const *wanted, Value **out, Diag *diag);
/* The gradient of f, or of its surrogate, as a function: the operands of f, then a cotangent per float result (see
 * ParamKind); returns a cotangent per float param. Made once per function. NULL on an op without gradient; *fault then
 * says which. */
Function *function_gradient(Function *f, const char **fault);

/* ---- text_print.c, text_parse.c: .gir */
typedef struct {
	bool no_locations;
} PrintOptions;
void module_print(Text *out, const Module *m, const PrintOptions *options);
/* By value id: the numbers that module_print gives to f's results. They belong to the arena. */
int *function_numbers(Arena *arena, const Function *f);
/* One line without its end, as in the module's text; numbers NULL: values show their ids. */
void node_print(Text *out, const Node *n, const int *numbers);
/* Parses text (NUL-terminated) of a module or of bare functions. Constants behind @data[hash] come
 * from `data` (hash in hex -> Tensor), NULL for none. Faults go to diag as FILE:LINE: ...;
 * NULL on any. */
Module *module_parse(const char *text, const char *file, const StrMap *data, Diag *diag);
/* Every tensor too large for the text, once, for the file beside it: name 0xHASH. The list belongs to the arena, the
 * numbers to the module; no file is written where there are none. */
typedef VEC(SafeTensor) ModuleData;
ModuleData module_data(const Module *m, Arena *arena);
Status module_data_write(const ModuleData *data, const char *path);
Status module_write_data(const Module *m, const char *path); /* both */
/* The safetensors file back as the map module_parse wants; the file may be absent. */
Status module_read_data(Arena *arena, const char *path, StrMap **data);

/* ---- verify.c */
/* Collects all faults, kernels' included, each with FILE:LINE where the module was read from text, the
 * function, the node as text and its location. true when there are none. */
bool module_verify(const Module *m, Diag *diag);
/* FILE:LINE of a module read from text, FILE where line is 0, the module's name for any other. */
void module_place(Text *out, const Module *m, int line);

/* ---- interp.c: the oracle. Elements are doubles or int64 (u64 as its bits). */
typedef struct {
	Type type;
	union {
		double *f;
		int64_t *i;
		void *at;
	};
} EvalTensor;
typedef struct {
	Module *module;
	Arena *arena;          /* results live here */
	bool real;             /* no rounding of floats */
	bool later;            /* a micro-batch behind the first: runs what is `when later` */
	const Scalar *scalars; /* what kernels read as hyperparameters; NULL before `lower` */
	EvalTensor *states;    /* by state id; .at NULL: not yet initialized */
} Interp;

Interp interp_new(Module *m, Arena *arena, bool real);
/* Runs f; state reads see interp.states, `store` replaces them. Errors only for what verify cannot
 * rule out: a loop that exceeds its bound is cut there. */
void interp_run(Interp *in, const Function *f, const EvalTensor *args, EvalTensor *results);
EvalTensor eval_tensor_new(Arena *arena, Type type);
EvalTensor eval_tensor_from(Arena *arena, Type type, const void *data);
void eval_tensor_to(const EvalTensor *t, void *data); /* in its dtype */
/* Rounds to the tensor's dtype: what typed mode does with every result. */
void eval_tensor_round(EvalTensor *t);
/* n's results from constant operands as constants; false when an operand isn't one. */
bool node_fold(Module *m, const Node *n, Tensor **results);

/* ---- pass.c: the driver. A pass is one function and one line of a pass_list.def. */
typedef enum {
	STAGE_ANY,
	STAGE_IMPORT,
	STAGE_FORWARD,
	STAGE_TRAIN,
	STAGE_REMATERIALIZED, /* the backward pass has copies of its own: equal nodes stay apart */
	STAGE_FUSED,
	STAGE_LOWERED,
	STAGE_SCHEDULE,
	STAGE_MEMORY,
} Stage;
extern const char *const stage_names[];
typedef enum {
	PASS_ALWAYS,
	PASS_WITH_LOSS,
	PASS_WITH_OPTIMIZER, /* and a loss */
	PASS_WHEN_ASKED,     /* by an option of the command line */
} PassWhen;
extern const char *const pass_when_names[];

typedef struct {
	const char *name, *help;
	enum { OPTION_STRING, OPTION_INT, OPTION_DOUBLE, OPTION_BOOL } kind;
	size_t offset;    /* in the pass's option struct */
	double low, high; /* of a number; high 0: any */
} PassOption;
typedef struct {
	const char *name, *value;
} OptionText;

typedef struct Pass Pass;
typedef struct {
	const char *name, *help;
	Stage takes, leaves; /* leaves STAGE_ANY: unchanged */
	Stage until;         /* of a pass that takes any: the last one; STAGE_ANY: there is none */
	PassWhen when;       /* which runs of the whole pipeline have it */
	bool needed;         /* without it there is no program to run */
	const PassOption *options; /* ends with a zero row; NULL for none */
	size_t options_size;
	const void *defaults;            /* of the options; NULL: zeros */
	bool (*run)(Pass *p, Module *m); /* false: reported a fault */
} PassRow;
struct Pass {
	const PassRow *row;
	const void *options; /* options_size bytes */
	Arena *scratch;      /* freed after the pass */
	Diag *diag;
	bool changed;
};

/* One entry of a pipeline: a row and its options' struct. */
typedef struct {
	const PassRow *row;
	void *options;
} PassCall;
typedef VEC(PassCall) Pipeline;

typedef struct {
	const char *dump_after; /* pass name or "all"; NULL */
	const char *dump_dir;   /* NULL: stderr */
	bool dump_changed;
	const char *stop_after;
	const char *const *disable; /* NULL-terminated */
	bool verify_each, time_passes;
	/* Where every pass has its input while it runs, as a file that replays it. NULL: with verify_each a pass that
	 * fails leaves one in the working folder. */
	const char *reproducer_dir;
	const char *abort_in,
		*fail_in; /* for tests: the pass that aborts, or that fails when it has run */
} PassManagerOptions;

/* A call of that pass with its row's defaults. */
PassCall pass_call(Arena *arena, const PassRow *row);
/* Sets the option that text names; reports one that the table lacks, and a value of another kind. `owner`, for
 * messages: whose options they are. */
bool option_set(const PassOption *table, const char *owner, void *options, Arena *arena,
                const OptionText *text, Diag *diag);
bool pass_set(PassCall *call, Arena *arena, const OptionText *text, Diag *diag);
/* "a,b{x=1,y=2}" with rows looked up in `rows` (ends with a zero row). */
bool pipeline_parse(Pipeline *out, Arena *arena, const char *text, const PassRow *const *rows,
                    int n_rows, Diag *diag);
/* Of a module read from text, as far as it shows: one before `fused` may be at any. */
Stage module_stage(const Module *m);
/* Runs it: for each pass check the stage, time, run, verify, dump. false on the first failure.
 * *stage is the module's stage, updated. */
bool pipeline_run(const Pipeline *pipeline, Module *m, Stage *stage,
                  const PassManagerOptions *options, Diag *diag);

#include "ir/op.h"

#endif

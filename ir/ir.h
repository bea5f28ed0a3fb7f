/* The tensor IR: the form of a model (tensors and operations on them) in all passes from import
 * to schedule. It is in SSA form: each value is computed once. Each section is named after its
 * .c file.
 *
 * A module holds states and functions. A function is one flat list of nodes. A node has an op,
 * operands, results, attributes and a location. The IR is pure: only the `store` nodes at the
 * end of a function change states. All of this lives in the module's arena: addresses never
 * move, and ids count from 0 without gaps. */
#ifndef GRADC_IR_H
#define GRADC_IR_H

#include "base/files/files.h"
#include "base/program/program.h"

typedef struct Module Module;
typedef struct Function Function;
typedef struct Node Node;
typedef struct Value Value;
typedef struct State State;
typedef struct Kernel Kernel;   /* ir/loop/loop.h */
typedef struct Program Program; /* ir/programs/programs.h */
typedef struct OpRow OpRow;
typedef struct GroupRow GroupRow; /* ir/groups/groups.h */

/* ---- type.c: a type is a dtype and a shape. Types are interned: two types are equal when their
 * pointers are equal. */
typedef struct {
	DType dtype;
	int rank;
	int64_t n; /* number of elements */
	int64_t dims[MAX_RANK];
} TypeInfo;
typedef const TypeInfo *Type;

Type type_new(Module *m, DType dtype, int rank, const int64_t *dims);
Type type_scalar(Module *m, DType dtype);
Type type_with_dtype(Module *m, Type t, DType dtype); /* the same shape */
Type type_drop_axis(Module *m, Type t, int axis);
bool type_same_shape(Type a, Type b);
int64_t type_bytes(Type t);
/* Row-major strides, in elements. */
void type_strides(Type t, int64_t strides[MAX_RANK]);
void type_print(Text *out, Type t); /* f32[4,8]; f32[] is a scalar */

/* A short list of integers: shapes, axes, pads. Unused entries of `at` are 0. */
typedef struct {
	int n;
	/* always 0. Without this field the struct would have padding bytes, and lists could not be
	 * compared and hashed by their bytes */
	int reserved;
	int64_t at[MAX_RANK];
} Ints;
Ints ints_of_type(Type t); /* the dims of the type */
bool ints_has(const Ints *list, int64_t x);

/* ---- loc.c: a location says where a node comes from. If a pass replaces a node, the new node gets
 * a location derived from the old node's location. Locations are interned: equal locations are one
 * object. */
typedef const struct LocInfo *Loc;
struct LocInfo {
	const char *text; /* an ONNX name, or the word of a derived location: "grad", "fused" */
	int n_parts;      /* 0: an ONNX name */
	Loc parts[4];     /* fused(...) keeps at most its first four parts */
	int more;         /* fused: the number of parts that were left out */
};
Loc loc_name(Module *m, const char *name);
Loc loc_gradient(Module *m, Loc of); /* grad(of); NULL for NULL */
bool loc_is_gradient(Loc loc);
/* fused("/a", "/b"); of more than four locations: fused("/a", "/b", "/c", "/d", 3 more). Equal
 * locations count once. NULL does not count. `more` locations are only counted. */
Loc loc_fuse(Module *m, const Loc *locs, int n, int more);
/* The location of a node that replaced a call: inlined(call, inner), where `inner` is the node's
 * location in the callee. */
Loc loc_inline(Module *m, Loc call, Loc inner);
/* 1 to 4 parts; `word` is not "fused": loc_fuse makes fused locations */
Loc loc_of_parts(Module *m, const char *word, const Loc *parts, int n);
const char *loc_origin(Loc loc); /* the first ONNX name that loc contains; "" for NULL */
/* text_print.c: in the text form: fused("/a", grad("/b")) */
void loc_text(Text *out, Loc loc);

/* ---- attributes: each op has a struct of attributes and a table that describes the struct's
 * fields. Printing, reading, hashing, comparing and copying of attributes all use this table. */
typedef enum {
	FIELD_INT,          /* int64_t */
	FIELD_FLOAT,        /* double */
	FIELD_BOOL,         /* bool */
	FIELD_ENUM,         /* int, printed as one of the field's `names` */
	FIELD_DTYPE,        /* DType */
	FIELD_DTYPE_IF_ANY, /* int: 1 + DType; 0: not given */
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
	const char *const *names; /* for FIELD_ENUM, NULL-terminated */
	bool optional;            /* the text leaves the field out if it is zero, empty or NULL */
} Field;

size_t field_size(FieldKind kind); /* bytes of a field of this kind in the struct of attributes */
bool attr_equal(const OpRow *row, const void *a, const void *b);
uint64_t attr_hash(const OpRow *row, const void *attr);

/* Constant data in its own dtype (bf16, packed s4, ...). */
typedef struct {
	Type type;
	const void *data;
	uint64_t hash; /* hash of type and bytes */
} Tensor;
Tensor *tensor_new(Module *m, Type type, const void *data); /* copies the data */
/* Does not copy the data, which must live longer than the module */
Tensor *tensor_borrow(Module *m, Type type, const void *data);
/* A tensor whose elements are all `value`. For an integer type, the value is truncated and
 * saturated; for bool, it is value != 0. */
Tensor *tensor_splat(Module *m, Type type, double value);
/* The same elements in dtype `to`; t itself if it has that dtype */
const Tensor *tensor_convert(Module *m, const Tensor *t, DType to);
/* Same type and same bits; NULL equals NULL only */
bool tensor_equal(const Tensor *a, const Tensor *b);
/* Are all elements equal? If so, *value is their value. */
bool tensor_is_splat(const Tensor *t, double *value);
double tensor_float(const Tensor *t, int64_t i);
int64_t tensor_int(const Tensor *t, int64_t i);

/* ---- module.c: the graph, and the only functions that change the graph. */
typedef enum {
#define OP(name) OP_##name,
#include "ir/ops/op_list.def"
#undef OP
	N_OPS,
} OpKind;

typedef struct Use Use;
struct Use {
	Value *value; /* NULL: an optional operand that was left out */
	Node *user;
	Use *next, **link; /* list of the uses of `value` */
};

typedef enum { VALUE_RESULT, VALUE_PARAM, VALUE_STATE } ValueKind;
/* The meaning of a function's parameter. */
typedef enum {
	PARAM_ARGUMENT, /* argument of a function that other functions call */
	PARAM_INPUT,    /* graph input `number`; a loss graph's own inputs come after the model's */
	PARAM_LABELS, /* target of the loss: graph input `number`; -1: an input that the loss added */
	PARAM_SAMPLE_WEIGHT, /* [rows]: 1 for a real row, 0 for padding */
	PARAM_HYPERPARAMETER, /* scalar `number` of base/numbers/scalar_list.def, with that scalar's dtype */
	/* Parameters of a gradient function, which belongs to a call: */
	PARAM_OPERAND,   /* operand `number` of the call */
	PARAM_RESULT,    /* result `number` of the call */
	PARAM_COTANGENT, /* gradient (a float) of result `number` of the call */
	/* of a group's body: number `number` of the facts that only help a strategy to do less; the
	 * results do not depend on them */
	PARAM_HINT,
} ParamKind;
/* The memory region of a value. Two regions exist only in the body of a loop or branch: the value
 * lies where the body's parameter number `offset` lies (REGION_PARAM), or where result number
 * `offset` of the loop or branch lies (REGION_RESULT). Workspace offsets of a body count from the
 * end of the caller's workspace. */
typedef enum {
	REGION_NONE,
	REGION_STATE,
	REGION_WORKSPACE,
	REGION_IO,
	REGION_HOST,
	REGION_PARAM,
	REGION_RESULT,
} Region;
/* A large model has millions of values and nodes: both are kept small. */
struct Value {
	Type type;
	Function *function;
	Node *node; /* of VALUE_RESULT */
	union {
		/* of VALUE_STATE: the value is this state's content when the function starts */
		State *state;
		/* of parameters: for people; code never reads a meaning from it */
		const char *name;
	};
	Use *uses;
	uint32_t id; /* dense within the function */
	int index;   /* number among the node's results, or among the function's parameters */
	int number;  /* of parameters: see ParamKind */
	ValueKind kind : 4;
	ParamKind param : 4; /* of parameters: the meaning */
	bool has_rows : 1;   /* of parameters: axis rows_axis counts the rows of a micro-batch */
	int rows_axis : 6;
	/* Set by the `memory` pass: */
	Region region : 4;
	int64_t offset; /* in bytes; or the number of a parameter or result: see Region */
};

/* The micro-batches as bits. Bit 0: the node runs in the first micro-batch; bit 1: the node runs
 * in some later micro-batch. */
static inline unsigned
when_runs(When when)
{
	return when == WHEN_FIRST ? 1 : when == WHEN_LATER ? 2 : 3;
}
/* Says that an operand becomes codes: */
typedef struct {
	int of; /* 1 + number of the module's QuantizedOperand; 0: the operand is not quantized */
	int views; /* the operand is what so many views make of the value that becomes codes */
} OperandMark;
struct Node {
	Node *prev, *next;
	Function *function;
	/* row->attr_size bytes; the struct of the op. Nodes of views and reductions share equal attributes, which
	 * never change. */
	void *attr;
	Loc loc;
	uint32_t id; /* dense within the function */
	int n_operands, n_results;
	int line; /* line in the module's file; 0: a pass or an importer made the node */
	OpKind op : 16;
	Phase phase : 8;
	When when : 8;
	Use operands[]; /* the results follow in memory: node_result */
};

/* Number of elements in a block. A unit consists of whole blocks. If ranks share a unit, each
 * rank's part consists of whole blocks, too. Norms are summed block by block. */
enum { UNIT_BLOCK = 4096 };
struct State {
	int id; /* dense within the module */
	const char *name;
	Type type;
	StateKind kind;
	Lifetime lifetime;
	bool trainable;
	bool decay;      /* does weight decay apply? */
	double lr_scale; /* factor of the learning rate; 1 by default */
	InitKind init;
	const Tensor *data;    /* of INIT_DATA */
	double init_a, init_b; /* mean and standard deviation, or the bounds */
	/* the user has chosen `init`, so the pass `initialize` does not change it */
	bool init_given;
	/* second name, which starts with the name of the module that reads the state; NULL: not known */
	const char *path;
	/* names of the state's groups, separated by spaces. Example: "filters doubtful"; then
	 * --train=@filters selects the state. NULL: no group */
	const char *groups;
	/* why the state is trainable or not, printed in tables: "read by MatMul", "--freeze",
	 * ... */
	const char *why;
	State *of; /* of a gradient or moment: its parameter or unit; of a pending state: its statistic; else NULL */
	int number;          /* of moments: number among the optimizer's moments */
	State *unit;         /* unit that contains the state; NULL: no unit */
	int64_t unit_offset; /* first element of the state in the unit */
	Loc loc;
	int line;       /* line in the module's file, as in Node */
	int64_t offset; /* byte in the state region, set by `memory`; -1 before */
	/* Set by `memory`. sharded: the first data-parallel mode that divides the state among the
	 * ranks; MODE_DDP: no mode divides the state. block: the size of a rank's part is a
	 * multiple of `block` elements. block 0: the state itself is not divided. Then either the
	 * unit that contains the state is divided, or the state is a run of units, and each of
	 * these units is divided. */
	DataParallelMode sharded;
	int64_t block;
	bool offloaded; /* is the rank's part in the host's memory? */
};

/* Which nodes read a weight that has an adapter: products that sum over the weight's inputs, or nodes that take its
 * rows by index, as an embedding does. */
typedef enum { ADAPTS_PRODUCTS, ADAPTS_TABLES, ADAPTS_BOTH } AdapterReaders;
extern const char *const adapter_readers_texts[];
/* A low-rank product that is added to a frozen weight (LoRA: Hu et al. 2021, arXiv:2106.09685).
 * With o the index along `axis` of the weight, and r the index along `axis` of a, nodes read the
 * following sum in place of weight[.., o, ..]:
 *
 *	weight[.., o, ..] + adapter_scale * sum over r of b[o, r] * a[.., r, ..] */
typedef struct {
	State *weight;
	State *a, *b; /* a: the weight's shape, but `axis` has rank elements; b: [outputs, rank] */
	/* [outputs]: the norm that each output's weights are scaled to (DoRA: Liu et al. 2024,
	 * arXiv:2402.09353): the sum above is multiplied by magnitude and divided by the sum's
	 * norm over all axes except `axis`. NULL: no scaling. */
	State *magnitude;
	/* axis of the weight: for products, the axis of outputs; for a table, the axis along
	 * which a row's numbers lie */
	int axis;
	AdapterReaders readers;
	double alpha;
	bool rslora;
	/* the adapter starts with the weight's largest singular values, which were subtracted
	 * from the weight (Meng et al. 2024, arXiv:2404.02948) */
	bool pissa;
	/* hash of the weight's numbers in the imported file, before any conversion to another
	 * dtype; 0: not known */
	int64_t base;
	int line; /* line in the module's file, as in Node */
} Adapter;

/* A frozen weight that is stored as 4-bit codes (op dequantize). In the codes' order, `axis` is
 * the outermost axis, whatever its place in the weight's type. */
typedef struct {
	State *codes;  /* u8, under the weight's name */
	State *absmax; /* scale of each block: f32; u8 codes if `nested` is set */
	State *nested,
		/* scales of the codes in absmax, and an offset: f32, from absmax_quantize of base.h; NULL: absmax
		 * is f32 */
		*offset;
	FourBit kind;
	Type type; /* type of the weight */
	int axis;
	int line; /* line in the module's file, as in Node */
} FourBitWeight;

/* Where the scales of a quantized operand come from. */
typedef enum {
	SCALES_TENSOR, /* of a weight: one scale, from its largest magnitude */
	SCALES_CHANNEL, /* of a weight: a scale for each index along the axis in the op's column `channel` */
	SCALES_BLOCK, /* of a weight: a scale for each block along the axis in the op's column `sums` */
	SCALES_RUNNING, /* of an activation: one scale, from a range that follows the batches */
	SCALES_DYNAMIC, /* of an activation: one scale, from the tensor itself */
	SCALES_TOKEN, /* of an activation: a scale for each row along the last axis, from the row itself */
	N_SCALE_SOURCES,
} ScaleSource;
extern const char *const scale_source_names[];
/* An operand of products that training sees quantized (--quantize). Import marks the operands (node_mark), the
 * pass `quantize` quantizes them, and the export quantizes the ONNX value. */
typedef struct {
	const char *name; /* of the ONNX value; states that belong to the operand begin with it */
	const char *node; /* the ONNX value's first reader, by location, */
	int input;        /* and the number of the value among the inputs of that node */
	DType type;       /* type of the codes */
	ScaleSource scales;
	int64_t block; /* of SCALES_BLOCK: elements in a block */
	/* Of a weight: each block of this shape has one scale. Empty until the pass `quantize` has run. */
	Ints group;
	/* States; NULL: the operand does not have the state. */
	State *learned;    /* of a weight: its scales, trained */
	State *low, *high; /* of SCALES_RUNNING: the range */
	State *scale_shift,
		*zero_shift; /* of SCALES_RUNNING: trained, added to the scale and zero point of the range */
	int line;            /* line in the module's file, as in Node */
} QuantizedOperand;
static inline bool
quantized_is_weight(const QuantizedOperand *q)
{
	return q->scales <= SCALES_BLOCK;
}

/* Facts about a state in the imported file, and in the PyTorch module from which the file was
 * exported. */
typedef struct {
	DType dtype;
	/* name in the module: "model.layers.0.mlp.up_proj.weight"; NULL: not known */
	const char *parameter;
	bool transposed; /* the state is the transpose of the module's matrix */
} StateSource;
/* The names that the library PEFT gives to the modules that read an adapter's weight:
 * "h.0.attn.c_attn". NULL: no such module, or not known. */
typedef struct {
	const char *product, *table;
} AdapterModules;

/* FUNCTION_GROUP: the body of a group (ir/groups/groups.h): a call of the function stays a call until `fuse`.
 * FUNCTION_FUSED: the function will become a kernel. */
typedef enum { FUNCTION_PLAIN, FUNCTION_GROUP, FUNCTION_FUSED } FunctionKind;
struct Function {
	Module *module;
	Arena *arena; /* has nodes and values; program_new makes one, other functions have the module's */
	const char *name; /* for people and `call`; code never reads a meaning from it */
	FunctionKind kind;
	/* the group of which the function is the body or the kernel; NULL: no group */
	const GroupRow *group;
	Role role;
	/* Of functions with a role: role, binding, stage, mode and target together identify one function. */
	int binding; /* number of the binding (the sizes chosen for the open dimensions) */
	int stage;   /* number of the pipeline stage */
	DataParallelMode mode;
	/* name of the target (kind of machine) that runs the function, see codegen/target/;
	 * NULL: not decided yet */
	const char *target;
	/* The function that reverse mode differentiates instead of this function, for example
	 * the identity instead of a rounding. It has the same parameter and result types. NULL:
	 * the function itself. */
	Function *surrogate;
	/* the gradient function, made by reverse mode at first use; NULL before */
	Function *derivative;
	VEC(const char *) result_names; /* for people; "" or no entry: no name */
	VEC(Value *) params;
	VEC(Value *) states; /* values of the states that the function reads */
	/* the same values, by state id; NULL: the function does not read the state */
	VEC(Value *) by_state;
	IntMap *marks;      /* of operands, for node_mark; NULL: no operand is marked */
	Node *first, *last; /* `last` is the return */
	int n_nodes;
	uint32_t next_node_id, next_value_id;
	Loc loc;
	int line; /* line of the header, as in Node */
	int index;
};

/* How far a module has gone through the passes. */
typedef enum {
	STAGE_ANY,
	STAGE_IMPORT,
	STAGE_FORWARD,
	STAGE_TRAIN,
	/* the backward pass has its own copies of some nodes: from this stage on, passes must not
	 * merge equal nodes */
	STAGE_REMATERIALIZED,
	STAGE_FUSED,
	STAGE_LOWERED,
	STAGE_SCHEDULE,
	STAGE_MEMORY,
	/* with programs; each pass over programs has a stage of its own */
	STAGE_INSTRUCTIONS,
	STAGE_SHARD,
	STAGE_SUMS,
	STAGE_STREAMS,
	STAGE_EVENTS,
	N_STAGES,
} Stage;

struct Module {
	Arena *arena;
	const char *name;
	const char *file; /* file of text that the module was read from; NULL: not from text */
	VEC(Function *) functions;
	VEC(State *) states;
	VEC(Adapter) adapters;           /* at most one per weight; after `lora` */
	VEC(FourBitWeight) four_bit;     /* after `lora` */
	VEC(QuantizedOperand) quantized; /* with --quantize */
	VEC(Kernel *) kernels;           /* after `lower` */
	VEC(Program *) programs;         /* after `instructions` */
	StrMap *function_names, *state_names, *kernel_names;
	IntMap *interned_types, *interned_locs, *interned_attrs;
	VEC(Arena *) arenas;                            /* of functions that have their own */
	int64_t workspace_bytes, state_bytes, io_bytes; /* set by `memory`; 0 before */
	int64_t targets; /* targets of the loss in a full micro-batch; 0 before `loss` */
	Stage stage; /* stage of a module with programs; STAGE_ANY: no programs (module_stage) */
	uint32_t
		modes; /* modes besides DDP: bit m stands for DataParallelMode m; set by `memory` */
	/* what the importer knows about the file; NULL: the module was read from text */
	const void *import;
};

Module *module_new(const char *name);
void module_free(Module *m);
Function *module_function(const Module *m, const char *name); /* NULL: no such function */
/* A new function with a role, and named after the role: @accumulate, @accumulate.1 for binding 1 ... */
Function *program_new(Module *m, Role role, int binding);
/* Makes a copy with role inference of each function of role forward that has none beside it. */
void module_split_inference(Module *m);
/* A module may have several functions of one role: for each binding, stage, mode and target. Work on all of them goes
 * through for_each_of_role. module_first is for facts on which all of them agree, such as the number of results: the
 * first of that role; NULL: no such function. function_beside: the function of that role whose binding, stage, mode and
 * target are those of f; NULL: no such function. */
Function *module_first(const Module *m, Role role);
Function *function_beside(const Function *f, Role role);
State *module_state(const Module *m, const char *name);
/* The first state of that kind; NULL: no such state */
State *module_state_of_kind(const Module *m, StateKind kind);
/* The adapter whose weight, a, b or magnitude is s; NULL: no such adapter. */
const Adapter *module_adapter(const Module *m, const State *s);
/* alpha / rank; with rslora alpha / sqrt(rank), Kalajdzievski 2023, arXiv:2312.03732 */
double adapter_scale(const Adapter *a);
/* NULL: the state holds no 4-bit codes */
const FourBitWeight *module_four_bit(const Module *m, const State *codes);
/* Type of the weight, also if s holds its 4-bit codes */
Type state_weight_type(const Module *m, const State *s);
State *module_updates(Module *m); /* the state of kind STATE_UPDATES, made at first use */
/* The name must be new in the module; `function_new` and `state_new` copy it. */
Function *function_new(Module *m, const char *name);
void function_remove(Function *f);
/* The name must be new in the module; it is copied. */
void function_rename(Function *f, const char *name);
State *state_new(Module *m, const char *name, Type type, StateKind kind, Lifetime lifetime);
/* Sets the state's initial value, and drops its data. */
void state_begin_as(State *s, InitKind init, double a, double b);
/* A new state "PREFIX.NAME": the state belongs to `of`, has the shape of `of` with dtype d, and
 * begins as a copy of `of`. */
State *state_copy(Module *m, const char *prefix, State *of, DType d, StateKind kind,
                  Lifetime lifetime);

/* ---- state_names.c */
/* Is the word in the list, whose words are separated by spaces? groups may be NULL: false. */
bool group_listed(const char *groups, const char *word);
/* Does the glob match the state's name or path? A glob @filters matches the states of group filters. */
bool state_matches(const State *s, const char *glob);
/* Adds a hint to the last error of diag: the three parameters whose names or paths are nearest to the glob. */
void hint_nearest_states(const Module *m, const char *glob, Diag *diag);

/* ---- rules.c: options for the parameters that a glob matches: --train=GLOB, --lr-scale=GLOB=X and
 * so on */
typedef enum {
	RULE_TRAIN,
	RULE_FREEZE,
	RULE_DECAY,
	RULE_NO_DECAY,
	RULE_LR_SCALE,
	RULE_INIT,
} RuleVerb;
extern const char
	*const rule_verbs[]; /* names of the options: "train", "lr-scale"; ends with NULL */
typedef struct {
	RuleVerb verb;
	const char *glob;  /* for state_matches */
	const char *value; /* of lr-scale and init: the text after the last `=`; "": missing */
} ParameterRule;
typedef VEC(ParameterRule) ParameterRules;
bool rule_takes_value(RuleVerb verb);
/* The rule of the option --VERB=TEXT. */
ParameterRule rule_of(Arena *arena, RuleVerb verb, const char *text);
/* Reads "VERB TEXT", as rule_print writes it; false if the text has no such verb. */
bool rule_parse(Arena *arena, const char *text, ParameterRule *out);
void rule_print(Text *out, const ParameterRule *rule);

/* ---- module.c */
/* The first of name, name.2, name.3 ... that no function, state or kernel of the module has. */
const char *module_fresh_name(const Module *m, const char *name);
/* Adds a parameter to f: function_param an argument, function_param_as a parameter with the given
 * meaning (see ParamKind). If the function already has a parameter of that name, the new name is
 * name.2, name.3 ... */
Value *function_param(Function *f, Type type, const char *name);
Value *function_param_as(Function *f, Type type, const char *name, ParamKind kind, int number);
/* The first parameter of that kind and number; number -1: any number. NULL: no such parameter. */
Value *function_find_param(const Function *f, ParamKind kind, int number);
/* The parameter that reads a hyperparameter, made at first use. */
Value *function_hyperparameter(Function *f, ScalarIndex index);
/* The value of a state at the start of f, made at first use. */
Value *function_state(Function *f, State *state);
Node *function_return(const Function *f); /* NULL while the function is being built */
/* The node before which passes insert nodes: the first of the stores at the end, else the return. NULL: f has
 * neither. */
Node *function_stores(const Function *f);
/* The store to state s among the stores at the end of f; NULL: no such store. */
Node *function_store_of(const Function *f, const State *s);
/* The stored value, before a reshape to the state's shape */
Value *store_elements(const Node *store);
Value *function_result(const Function *f, int i);

/* The five functions that change a graph. They keep the use lists right. */
Node *node_insert(Function *f, Node *before, OpKind op, int n_operands, Value *const *operands,
                  const void *attr, int n_results, const Type *types, Loc loc);
void node_set_operand(Node *n, int i, Value *v);
void node_erase(Node *n); /* its results must be unused */
/* Frees the memory of erased nodes: moves all nodes and values of f, so that pointers to them become invalid. Order, ids up to
 * gaps, and lists of uses stay. Does nothing if f has no arena of its own. */
void function_compact(Function *f);
void value_replace_uses(Value *from, Value *to);
void node_move(Node *n, Node *before);
/* Erases the nodes whose results nobody reads. Returns true if there were such nodes. */
bool function_drop_unread(Function *f);

static inline Value *
node_operand(const Node *n, int i)
{
	return n->operands[i].value;
}
/* Marks are there until the pass `quantize` has run. */
OperandMark node_mark(const Node *n, int i);
void node_set_mark(Node *n, int i, OperandMark mark);
/* The number of the operand. */
static inline int
use_index(const Use *u)
{
	return (int)(u - u->user->operands);
}
static inline Value *
node_result(const Node *n, int i)
{
	return (Value *)(uintptr_t)(n->operands + n->n_operands) + i;
}
static inline bool
value_used(const Value *v)
{
	return v->uses != NULL;
}
bool value_used_once(const Value *v);
/* The tensor, if v is the result of a `constant`; else NULL. */
const Tensor *value_constant(const Value *v);

/* ---- ops/cast.c */
/* The operand of the cast that gives v. NULL: v comes from no cast, or from a cast with its own rule of rounding. */
Value *value_cast_of(const Value *v);

/* ---- module.c */
/* Is v a splat constant, perhaps seen through broadcasts and reshapes? If so, *out is its value. */
bool value_splat(const Value *v, double *out);

#define for_each_function(m, f)                                \
	for (int f##_i = 0; f##_i < (m)->functions.n; f##_i++) \
		for (Function *f = (m)->functions.at[f##_i]; f; f = NULL)
/* The functions of one role. The body may add functions. */
#define for_each_of_role(m, of_role, f) \
	for_each_function(m, f)         \
		if (f->role == (of_role))
/* The body may erase n itself or insert nodes before it. */
#define for_each_node(f, n) \
	for (Node *n = (f)->first, *n##_next; n && (n##_next = n->next, true); n = n##_next)
#define for_each_node_reverse(f, n) \
	for (Node *n = (f)->last, *n##_prev; n && (n##_prev = n->prev, true); n = n##_prev)
#define for_each_use(v, u) \
	for (Use *u = (v)->uses, *u##_next; u && (u##_next = u->next, true); u = u##_next)

/* ---- inline.c: puts the nodes of the called function in place of the call. The nodes get the
 * call's phase, and a location inlined(call, node). */
void call_inline(Node *call);

/* ---- module.c */
/* Copies all nodes of `from` except its return into `to`, before the node `before`. map[id] is
 * the value in `to` for the value with that id in `from`: the caller sets the entries of
 * parameters, this function sets all others. A state's value in `from` becomes the same state's
 * value in `to`. */
void function_clone_body(const Function *from, Function *to, Node *before, Value **map);
/* A new function of that name with the same parameters, nodes and results. Its role is ROLE_HELPER. */
Function *function_clone(const Function *from, const char *name);
/* Names the next result. If another result has that name, the new name is name.2, name.3 ... */
void function_name_result(Function *f, const char *name);

/* ---- build.c: builds nodes with inferred types. If inference reports a fault here, gradc has a
 * bug, and the process aborts. */
typedef struct {
	Module *m;
	Function *f;
	Node *before; /* new nodes go before it; NULL: at the end */
	Loc loc;
	Phase phase;
	/* hash -> a node that computes from single numbers, or views a state: if an equal node is built again, this
	 * node is returned. New nodes go to the end of one function. NULL: every node is built */
	IntMap *known;
} Builder;

Node *build_node(Builder *b, OpKind op, int n, Value *const *operands, const void *attr);
Value *build(Builder *b, OpKind op, int n, Value *const *operands, const void *attr);
Value *b_unary(Builder *b, OpKind op, Value *x);
Value *b_binary(Builder *b, OpKind op, Value *x, Value *y); /* x and y have equal types */
Value *b_select(Builder *b, Value *cond, Value *x, Value *y);
/* A copy of node n with operands of other types. Its result has the type that inference gives. */
Value *b_retyped(Builder *b, const Node *n, Value *const *operands);
Value *b_cast(Builder *b, Value *x, DType to); /* x itself if it has that dtype */
Value *b_constant(Builder *b, const Tensor *t);
/* A splat of that type: a scalar constant and a broadcast. */
Value *b_splat(Builder *b, Type type, double value);
/* A scalar, and a tensor of x's type whose elements are all `value`. If the type cannot hold the double exactly, the
 * result is a sum of constants of this type, or a cast from f64, so a program that is later computed in a wider type
 * keeps all digits. */
Value *b_number(Builder *b, DType dtype, double value);
Value *b_number_like(Builder *b, const Value *x, double value);
/* x op value, with b_number_like's value */
Value *b_with(Builder *b, OpKind op, Value *x, double value);
Value *b_reshape(Builder *b, Value *x, Ints shape); /* x itself if it has that shape */
/* Repeats x along new axes: axis i of x becomes result axis axes[i]; x is repeated along all
 * other result axes. */
Value *b_broadcast(Builder *b, Value *x, Ints shape, Ints axes);
/* Broadcasts by NumPy's rules: the last axes of both shapes are aligned, and an axis of size 1
 * is repeated. x itself if it has that shape. */
Value *b_broadcast_to(Builder *b, Value *x, Ints shape);
/* Spreads v to a tensor of shape `shape`. Along axis i, that tensor is cut into groups of
 * group[i] elements (the last group may be shorter), and every element of a group is the same
 * element of v. v has one element for each group, in row-major order and any shape. An axis with
 * several groups of more than one element temporarily becomes two axes; there may be at most
 * MAX_RANK axes in all. */
Value *b_spread(Builder *b, Value *v, Ints shape, Ints group);
/* Scale and zero point of ONNX's DynamicQuantizeLinear, for codes of u8, from the range of x over these axes, which
 * have size 1 in the results (https://onnx.ai/onnx/operators/onnx__DynamicQuantizeLinear.html). The results pass no
 * gradient. */
void b_dynamic_range(Builder *b, Value *x, Ints axes, Value **scale, Value **zero);
/* Repeats y, the result of reducing `axes` of a tensor of type x, along these axes. The result has x's shape. */
Value *b_broadcast_back(Builder *b, Value *y, Type x, Ints axes);
Value *b_transpose(Builder *b, Value *x, Ints order);
Value *b_slice(Builder *b, Value *x, Ints start, Ints stop, Ints step);
Value *b_slice_axis(Builder *b, Value *x, int axis, int64_t start, int64_t stop);
Value *b_pad(Builder *b, Value *x, Ints low, Ints high, Ints interior, double value);
Value *b_concat(Builder *b, int n, Value *const *x, int axis);
Value *b_reverse(Builder *b, Value *x, Ints axes);
Value *b_iota(Builder *b, DType dtype, Ints shape, int axis);
typedef enum { REDUCE_SUM, REDUCE_PROD, REDUCE_MAX, REDUCE_MIN } ReduceKind;
extern const OpKind reduce_pair[]; /* by ReduceKind: the op that combines two elements */
Value *b_reduce(Builder *b, ReduceKind kind, Value *x, Ints axes); /* the axes vanish */
Value *b_gather(Builder *b, Value *data, Value *indices, int axis);
typedef enum { SCATTER_SET, SCATTER_ADD, SCATTER_MUL, SCATTER_MAX, SCATTER_MIN } ScatterKind;
Value *b_scatter(Builder *b, ScatterKind kind, Value *data, Value *indices, Value *updates,
                 int axis);
/* Result axes: batch axes, then the free axes of x, then the free axes of y. */
Value *b_dot(Builder *b, Value *x, Value *y, Ints x_batch, Ints y_batch, Ints x_contract,
             Ints y_contract);
void b_store(Builder *b, State *state, Value *v);
/* A sum over the micro-batches of a step takes two calls, because stores must stand at the end of
 * a function. First, b_running_sum builds the sum state + v. At the end, b_store_step stores v in
 * the first micro-batch, and that sum in later ones. */
Value *b_running_sum(Builder *b, State *state, Value *v);
/* Stores `first` in the first micro-batch of a step, and `later` in each later one. */
void b_store_step(Builder *b, State *state, Value *first, Value *later);
void b_return(Builder *b, int n, Value *const *values);

/* ---- grad.c: reverse mode over a function. Only grad.c and the `grad` columns of op rows
 * contain derivatives. */
typedef struct {
	Value *value, *cotangent;
} GradSeed;
/* Inserts the backward pass of b->f before the node b->before. seeds: values whose gradients are
 * given. Sets out[i] to the gradient of wanted[i], or to NULL if no seed depends on wanted[i].
 * Returns false after reporting EXIT_UNSUPPORTED: a wanted gradient flows through an op that has
 * no gradient. */
bool gradient_build(Builder *b, int n_seeds, const GradSeed *seeds, int n_wanted,
                    Value *const *wanted, Value **out, Diag *diag);
/* ---- grad_wide.c: rebuilds nodes of the backward phase in f32 that are in 16 bits, if their op should be computed in
 * f32 (column `precision`). Updates grads, gradients that no node reads yet. */
void gradient_widen(const Builder *b, int n_grads, Value **grads);
/* v without the last rounding to 16 bits, in f32. Example: of a product, the sum before the sum is rounded. Returns v if v
 * was not rounded, or if several nodes read v. */
Value *gradient_unrounded(Builder *b, Value *v);
bool value_is_narrow(const Value *v); /* a float of fewer than 32 bits? */
/* ---- grad.c again. The gradient of f, or of its surrogate, as a function, made at the first call. Its parameters
 * are those of f, then one gradient per float result of f (see ParamKind). Its results are one
 * gradient per float parameter of f. If an op has no gradient, returns NULL and sets *fault. */
Function *function_gradient(Function *f, const char **fault);

/* ---- text_print.c, text_parse.c: .gir */
typedef struct {
	bool no_locations;
} PrintOptions;
void module_print(Text *out, const Module *m, const PrintOptions *options);
/* By value id: the numbers that module_print gives to the results in f. The array belongs to the arena. */
int *function_numbers(Arena *arena, const Function *f);
/* Prints one line without its end, as in the module's text. numbers NULL: prints ids of values. */
void node_print(Text *out, const Node *n, const int *numbers);
/* Parses the text (NUL-terminated) of a module, or of functions only. `data` has the constants to
 * which the text refers as @data[hash]; its keys are the hashes in hex, its values Tensors. NULL:
 * there are none. Reports faults with FILE:LINE and then returns NULL. */
Module *module_parse(const char *text, const char *file, const StrMap *data, Diag *diag);
/* Tensors that are too large for the text go to a data file next to the text. module_data lists
 * each such tensor once, under the name 0xHASH. The list belongs to the arena, the tensors' data to
 * the module. module_data_write makes no file if the list is empty. */
typedef VEC(SafeTensor) ModuleData;
ModuleData module_data(const Module *m, Arena *arena);
Status module_data_write(const ModuleData *data, const char *path);
Status module_write_data(const Module *m, const char *path); /* module_data and module_data_write */
/* Reads the safetensors file into the map that module_parse takes. A missing file gives an empty
 * map. */
Status module_read_data(Arena *arena, const char *path, StrMap **data);

/* ---- verify.c */
/* Reports all faults of functions, states and kernels: each with FILE:LINE (of a module read from text), the
 * function, the node as text and its location. Returns true if there is no fault. */
bool module_verify(const Module *m, Diag *diag);
/* Appends FILE:LINE if the module was read from a file, only FILE if line is 0, or the module's
 * name if there is no file. */
void module_place(Text *out, const Module *m, int line);

/* ---- interp.c: the interpreter. Tests compare the results of all other code with the
 * interpreter's. Elements are doubles or int64 (a u64 is stored as an int64 with the same bits). */
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
	Arena *arena; /* results live here */
	bool real;    /* floats are not rounded to their dtype */
	/* true: runs the nodes of a later micro-batch, and skips nodes that run only in the first
	 * micro-batch of a step */
	bool later;
	const Scalar *scalars; /* hyperparameters for kernels; NULL before `lower` */
	EvalTensor *states;    /* by state id; `.at` NULL: not initialized yet */
} Interp;

Interp interp_new(Module *m, Arena *arena, bool real);
/* Runs f. Reads of states take the values of interp.states; stores replace these values when f
 * ends. There are no errors: a loop that would run longer than its bound ends at the bound. */
void interp_run(Interp *in, const Function *f, const EvalTensor *args, EvalTensor *results);
EvalTensor eval_tensor_new(Arena *arena, Type type);
EvalTensor eval_tensor_from(Arena *arena, Type type, const void *data);
void eval_tensor_to(const EvalTensor *t, void *data); /* converts to the tensor's dtype */
/* Rounds to the tensor's dtype, as the interpreter does with every result unless `real` is set. */
void eval_tensor_round(EvalTensor *t);
/* Computes n's results from constant operands. Returns false if an operand is no constant, or if n has an effect. */
bool node_fold(Module *m, const Node *n, Tensor **results);

/* ---- pass.c: the driver. A pass is one function and one line of a pass_list.def. */
extern const char *const stage_names[];
typedef enum {
	PASS_ALWAYS,
	PASS_WITH_LOSS,
	PASS_WITH_OPTIMIZER, /* with a loss and an optimizer */
	PASS_WHEN_ASKED,     /* only if an option of the command line asks for it */
} PassWhen;
extern const char *const pass_when_names[];

/* An option of gradc's command line that sets an option of a pass: --layer-decay=0.65. */
typedef struct {
	const char *name;         /* "layer-decay"; NULL: only --pass-option sets the option */
	const char *value;        /* as the help shows it: "X" */
	const char *help, *group; /* group: title in the help */
	const char *hint;         /* for values that are refused; NULL: no hint */
	bool keeps_results;       /* training computes the same with any value */
} PassFlag;
/* An option whose text is parsed once, into a struct of the pass. */
typedef struct {
	size_t size; /* of the struct */
	/* Parses text into the struct `at`; false after reporting. */
	bool (*parse)(const char *text, void *at, Arena *arena, Diag *diag);
	/* Text that parse reads as the struct `at`; NULL: the option is not set. */
	const char *(*text)(const void *at, Arena *arena);
} OptionParser;
typedef struct {
	const char *name, *help;
	/* BYTES: an int64_t above 0, given as 32M or a plain number */
	enum {
		OPTION_STRING,
		OPTION_INT,
		OPTION_DOUBLE,
		OPTION_BOOL,
		OPTION_BYTES,
		OPTION_PARSED
	} kind;
	size_t offset;     /* offset in the struct of the pass's options */
	double low, high;  /* bounds of a number; high 0: no bounds */
	bool above, below; /* the bound low, or high, is excluded */
	PassFlag flag;
	const OptionParser *parser; /* of OPTION_PARSED, which has no flag */
} PassOption;
typedef struct {
	const char *name, *value;
} OptionText;

/* Something that a pass finds, such as a group: `gradc passes` lists it. */
typedef struct {
	const char *name, *doc;
} PassFinding;

typedef struct Pass Pass;
typedef struct {
	const char *name, *help;
	/* the module's stage before (`takes`) and after the pass (`leaves`). If `leaves` is
	 * STAGE_ANY, the pass does not change the stage */
	Stage takes, leaves;
	/* for a pass that takes any stage: the last stage that it takes; STAGE_ANY: no limit */
	Stage until;
	PassWhen when;             /* which runs of the whole pipeline include the pass */
	bool needed;               /* cannot be disabled: without it there is no program to run */
	const PassOption *options; /* ends with a zero row; NULL: no options */
	size_t options_size;
	const void *defaults; /* struct of default options; NULL: zeros */
	/* Finding i of the pass, from 0. If there are fewer findings, the finding's name is NULL.
	 * NULL: the pass has no list of findings. */
	PassFinding (*finding)(int i);
	bool (*run)(Pass *p, Module *m); /* false: the pass reported a fault */
} PassRow;
struct Pass {
	const PassRow *row;
	const void *options; /* options_size bytes */
	Arena *scratch;      /* freed after the pass */
	Diag *diag;
	bool changed;
};

/* One entry of a pipeline: a row and the struct of its options. */
typedef struct {
	const PassRow *row;
	void *options;
} PassCall;
typedef VEC(PassCall) Pipeline;

typedef struct {
	const char *dump_after; /* name of a pass, or "all"; NULL: no dumps */
	const char *dump_dir;   /* NULL: dumps go to stderr */
	bool dump_changed;
	const char *stop_after;
	const char *const *disable; /* NULL-terminated */
	bool verify_each, time_passes;
	/* Folder for reproducers: while a pass runs, its input lies there as a file that replays the pass. NULL: with
	 * verify_each, a pass that fails leaves a reproducer in the working folder. */
	const char *reproducer_dir;
	const char *abort_in,
		*fail_in; /* for tests: name of the pass that aborts before it runs; name of the pass that fails after it ran */
} PassManagerOptions;

/* A call of that pass, with the row's default options. */
PassCall pass_call(Arena *arena, const PassRow *row);
/* Sets the option that `text` names. Returns false after reporting: the table lacks the option, or
 * the value has the wrong kind. `owner` names the owner of the options in messages. */
bool option_set(const PassOption *table, const char *owner, void *options, Arena *arena,
                const OptionText *text, Diag *diag);
bool pass_set(PassCall *call, Arena *arena, const OptionText *text, Diag *diag);
/* Reads the value of an option other than OPTION_PARSED into `at`; false if the text is no such value. */
bool option_read(const PassOption *o, const char *text, void *at, Arena *arena);
/* What a value of the option must be: "a number above 0, up to 1". */
const char *option_needs(const PassOption *o, Arena *arena);
/* The value at `at` as text that option_set reads; NULL: a string or struct that is not set. */
const char *option_text(const PassOption *o, const void *at, Arena *arena);
/* Parses "a,b{x=1,y=2}" with rows looked up in `rows`, which has n_rows entries. Returns false after reporting. */
bool pipeline_parse(Pipeline *out, Arena *arena, const char *text, const PassRow *const *rows,
                    int n_rows, Diag *diag);
/* The stage of a module that was read from text: the text of a module with programs says it, other
 * stages are found from the nodes. Stages before STAGE_FUSED cannot be told apart and count as
 * STAGE_IMPORT. */
Stage module_stage(const Module *m);
/* Runs the pipeline: for each pass check the stage, time, run, verify, dump. Stops at the first
 * failure and returns false. *stage: the module's stage; the call updates it. */
bool pipeline_run(const Pipeline *pipeline, Module *m, Stage *stage,
                  const PassManagerOptions *options, Diag *diag);

#include "ir/op.h"

#endif

/* An ONNX file: its messages, its nodes as flat lists, its tensors, and edits of all three. Sections are named after the .c file. */
#ifndef GRADC_FRONTEND_FILE_FILE_H
#define GRADC_FRONTEND_FILE_FILE_H

#include "frontend/frontend.h"
#include "onnx.pb-c.h"

typedef Onnx__ModelProto ModelProto;
typedef Onnx__GraphProto GraphProto;
typedef Onnx__NodeProto NodeProto;
typedef Onnx__TensorProto TensorProto;
typedef Onnx__AttributeProto AttributeProto;
typedef Onnx__FunctionProto FunctionProto;
typedef Onnx__ValueInfoProto ValueInfoProto;
enum {
	OLDEST_IR = 3,
	NEWEST_IR = 13,
	OLDEST_OPSET = 1,
	/* before this opset gradc knows only operators whose meaning has not changed since, and
	 * operators with an importer row for the older opset */
	OLDEST_FULL_OPSET = 6,
	NEWEST_OPSET = 27,
	MAX_MESSAGE_DEPTH = 100,
	MAX_CALL_DEPTH = 100,
	MAX_FUNCTIONS = 10000,
	MAX_NODES = 1 << 17,     /* of the file, and after inlining: about half a GiB */
	MAX_EXPANSION = 4 << 20, /* nodes that functions expand to: more can only be an attack */
	/* elements of all sequences together: each version of a sequence counts all its elements */
	MAX_LISTED = 1 << 24,
	MAX_IMPORTED_NODES = 3 << 19, /* of the IR, before anything is simplified */
};
#define MAX_FIELDS (64ll << 20)
#define MAX_ELEMENTS (1ll << 40) /* of one value */
/* A node, with model-local functions inlined. */
typedef struct {
	const NodeProto *proto;
	int opset; /* opset of the node's domain; 0: no import names the domain */
} FlatNode;
typedef VEC(FlatNode) FlatNodes;
/* The elements of one TensorProto, in the tensor's dtype, row-major. */
typedef struct {
	DType dtype;
	int rank;
	int64_t dims[MAX_RANK];
	int64_t n;
	const void *data; /* NULL: the file lacks the elements (allowed with shapes_only) */
} TensorData;
typedef struct {
	size_t used, limit;
} Budget;
typedef struct {
	NodeProto *node, was;
} EditedNode;
/* How import made an initializer that the file lacks. Exporters merge equal tensors of a module and
 * drop unused ones. */
typedef enum {
	RESTORED_MERGED,
	RESTORED_COMPUTED, /* merged after the exporter had computed it from the module's tensor */
	RESTORED_NUMBER,   /* a number in the module's code, merged with an equal initializer */
	RESTORED_DROPPED,
	RESTORED_UNTIED
} RestoredKind;
typedef struct {
	RestoredKind kind;
	/* name of the module's tensor; for RESTORED_NUMBER: the initializer that the number was
	 * merged with */
	const char *wanted;
	/* name of the new initializer; differs from `wanted` if the graph uses that name */
	const char *name;
	/* the initializer that the file's nodes read instead; NULL: the exporter dropped the tensor */
	const char *from;
} Restored;
struct Model {
	Arena *arena;
	const char *path;
	StringList folders; /* resolved folders of external data, by precedence */
	ModelProto *proto;
	ProtobufCAllocator allocator;
	Budget budget;
	int opset;       /* opset of ai.onnx */
	FlatNodes nodes; /* nodes of the main graph, and of the loss that the file carries */
	VEC(Onnx__ValueInfoProto *) training_inputs; /* further inputs of that loss */
	IntMap *subgraphs;    /* address of a node's GraphProto -> its FlatNodes */
	int n_flat;           /* total number of nodes in `nodes` and `subgraphs` */
	StrMap *functions;    /* "domain\nname" -> FunctionProto */
	StrMap *operators;    /* "Conv" or "com.microsoft.Gelu" -> OperatorFacts */
	StrMap *initializers; /* name -> dense TensorProto */
	IntMap *loaded;       /* address of a TensorProto -> TensorData */
	StrMap *files;        /* location -> external file */
	VEC(void *) blocks;   /* malloc'ed element data */
	/* Edited messages with their original content, which protobuf-c has to free. */
	VEC(EditedNode) edited_nodes;
	GraphProto *edited_graph,
		own_graph; /* edited_graph NULL: the list of initializers is unchanged */
	VEC(int) fds;      /* file descriptors of external data */
	VEC(Restored *) restored;
	StrMap *restored_names; /* restored by `wanted`; NULL: nothing was restored */
	StrMap *taken; /* names of all values, to find free ones; NULL: not needed so far */
	size_t room_for_nodes, room_for_initializers; /* capacities of edited lists */
};

/* ---- nodes.c */
/* The name of a node in locations: its own, else its first output's. */
const char *node_location(const NodeProto *p);
/* The exporter's metadata of the node under the key; "": there is no such key. */
const char *node_metadata(const NodeProto *p, const char *key);
/* Sets *path to the path of the module whose call the node belongs to; returns its length. 0:
 * unknown. */
size_t node_module(const NodeProto *p, const char **path);
/* Do both nodes belong to calls of the same module, by the names that PyTorch's exporters give? */
bool node_same_module(const NodeProto *a, const NodeProto *b);
/* Maps a module's path to its nodes in the graph; in the arena. */
typedef VEC(NodeProto *) ModuleNodes;
StrMap *nodes_by_module(const GraphProto *g, Arena *arena);

/* ---- errors.c: reports faults; each message begins with the file and the node. */
void model_error(const Model *model, Diag *diag, int exit_code, const char *fmt, ...) PRINTF(4, 5);
void node_error(const Model *model, Diag *diag, const FlatNode *n, int exit_code, const char *fmt,
                ...) PRINTF(5, 6);
void node_verror(const Model *model, Diag *diag, const FlatNode *n, int exit_code, const char *fmt,
                 va_list args);
/* A name cut to 200 bytes, quoted and escaped, in the arena. */
const char *quoted(const Model *model, const char *name);

/* ---- check.c, check_node.c: check the structure of the graph and report all faults. */
void check_model(Model *model, Diag *diag);
/* Checks the model's graph joined with its training algorithm. */
void check_combined(Model *model, const GraphProto *g, Diag *diag);
const AttributeProto *node_attribute(const NodeProto *n, const char *name);
int64_t node_int(const NodeProto *n, const char *name,
                 int64_t otherwise);       /* the value of an integer attribute */
const char *domain_of(const char *domain); /* "" for ai.onnx */
/* The version of a domain in a list of imports; 0: the list lacks the domain. */
int opset_version(size_t n, Onnx__OperatorSetIdProto **imports, const char *domain);

/* ---- schema.c: ONNX's schemas of operators; for other domains, onnxruntime's. */
typedef struct {
	const char *name;
	int since;
	int min_in, max_in, min_out, max_out; /* max 999: any number */
	uint32_t required;                    /* bit i: input i may not be left out */
	/* "axis:i keepdims:b! ...": name and type letter; b: an integer that is 0 or 1; `!`:
	 * required. "-": a deprecated operator. */
	const char *attributes;
} SchemaRow;
/* The newest row not above opset; NULL: there is no such row. */
const SchemaRow *schema_find(const char *name, int opset);
/* Type letter of an attribute; 0: the schema lacks the attribute. */
char schema_attribute(const SchemaRow *row, const char *name);

/* ---- inline.c */
void inline_functions(Model *model);
/* Appends a node to the main graph's nodes. */
void model_add_node(Model *model, const NodeProto *n);
/* The nodes of a subgraph; call inline_functions before. */
const FlatNodes *subgraph_nodes(const Model *model, const GraphProto *g);
/* Are all called functions known, acyclic, and small enough when expanded? Call it before
 * inline_functions. */
bool check_functions(Model *model, Diag *diag);
/* Is n at most MAX_NODES? false after reporting. */
bool nodes_in_budget(const Model *model, int64_t n, Diag *diag);
/* The function that a node calls; NULL for operators. */
const FunctionProto *node_callee(const Model *model, const NodeProto *n);

/* ---- tensor.c */
/* false: strings, complex numbers or an unknown type */
bool tensor_dtype(int onnx_type, DType *out);
int tensor_onnx_type(DType t);
bool is_float_type(int onnx_type);
/* Checks dimensions, type, encoding and length; reads no external data. what: for example
 * `initializer "w"`. */
void check_tensor(const Model *model, const TensorProto *t, const char *what, Diag *diag);
bool tensor_is_external(const TensorProto *t);
/* Loads the elements, once. false after reporting. shapes_only: elements may be missing. */
bool tensor_load(Model *model, const TensorProto *t, bool shapes_only, TensorData *out, Diag *diag);
/* Are the elements in the message, or in a file that exists? */
bool tensor_is_there(const Model *model, const TensorProto *t);
bool tensor_has_non_finite(const TensorData *t);
bool tensor_data_equal(const TensorData *a, const TensorData *b);
/* Is b the transpose of a, bit for bit? */
bool tensor_is_transpose(const TensorData *a, const TensorData *b);
bool tensor_constant_valued(const TensorData *t, double *value);

/* ---- operators.c: which operator a node is, and what is known of the operator */
/* Is the node the operator? For other domains than ONNX's own, `op` starts with the domain:
 * "com.microsoft.Gelu". p may be NULL. */
bool is_op(const NodeProto *p, const char *op);
bool is_op_of(const NodeProto *p, const char *domain, const char *name); /* domain "": ONNX's own */
bool is_same_op(const NodeProto *p, const NodeProto *q);

/* A set of a node's inputs. INPUTS(1, 3): the inputs 1, 2 and 3. ALL_INPUTS: however many. */
#define INPUT(i) (1u << (i))
#define INPUTS(first, last) (~0u << (first) & ~0u >> (31 - (last)))
#define ALL_INPUTS ~0u
/* What the operator does with a padded input (import/padded.c). */
typedef enum {
	PADDED_REFUSED,
	/* element i of the results depends on element i of the inputs, with NumPy broadcasting */
	PADDED_ELEMENTWISE,
	PADDED_GATHER,
	PADDED_GATHER_ND,
	/* indices in the padding point outside the data, so they write nothing */
	PADDED_SCATTER_ND,
	PADDED_TRANSPOSE,
	PADDED_RESHAPE, /* the padded axis remains an axis of the result */
	PADDED_REDUCE,  /* the padding is replaced by the reduction's neutral element */
	PADDED_MEAN,
	PADDED_SHAPE,
	PADDED_SIZE,
	/* along the padded axis, the data of all inputs move to the front; along another axis, all
	 * inputs have the same count */
	PADDED_CONCAT,
} Padded;
/* A product of inputs 0 and 1, one of which may be a weight. For example, MatMul(x, w) sums over the
 * last axis of x and the last but one of w; w's last axis becomes the last axis of the result. A
 * negative axis counts from the last. */
typedef struct {
	int weight;             /* index of the weight; the other operand is input !weight */
	int outputs, inputs;    /* axes of the weight: of the outputs; that the product sums over */
	const char *swapped_by; /* an attribute, not 0 if these two axes are swapped; NULL: none */
	int x_inputs;           /* axis of the other operand that the product sums over */
	int result;             /* axis of the result that has the outputs; 0: not a product */
} Product;
/* Inputs that are codes (small integers) with a scale and a zero point, by index. codes NO_INPUT:
 * the codes are not an input, or not a weight. scale NO_INPUT: a later node multiplies by it. */
typedef struct {
	int codes, scale, zero;
	/* Which scale an element of the codes has: by its index along an axis (from an attribute,
	 * the first, or the last), or by its block. 0: no codes. */
	enum {
		ALONG_ATTRIBUTE = 1,
		ALONG_FIRST,
		ALONG_ROWS,
		ALONG_COLUMNS,
		ALONG_CHANNELS,
		ALONG_BLOCKS
	} along;
} CodedInputs;
enum { MAX_PRODUCTS = 2, MAX_CODED = 3, NO_INPUT = -1 };
/* What is known of an operator, in every opset, besides its importer. A fact that a row leaves out
 * is 0. */
typedef struct {
	/* the results are not floats, or do not change with small changes of an input */
	bool no_gradient;
	Padded padded;
	double neutral; /* neutral element of PADDED_REDUCE */
	/* sets of inputs, by what the operator does with a tensor there */
	unsigned weights;      /* it is a weight, whatever its size */
	unsigned steering;     /* it steers the operator: a bound, an axis */
	unsigned filling;      /* it is data; if all its numbers are equal, it is filling */
	unsigned factors;      /* it scales */
	unsigned terms;        /* it is added */
	unsigned joining;      /* an all-ones tensor there is a mask that hides nothing */
	unsigned layer_inputs; /* zeros there are the first state of a recurrence */
	unsigned channels;     /* one number per channel of a layer: a bias or a norm's scale */
	unsigned states;       /* the first state of a recurrence */
	unsigned statistics;   /* means and variances of batches */
	/* The operator computes this product and at most adds a bias. A second row is for a weight
	 * that is the other operand. */
	Product products[MAX_PRODUCTS];
	int bias; /* index of the product's bias, one number per output; 0: the operator has none */
	CodedInputs codes[MAX_CODED];
	/* The input whose type the results have. NO_INPUT: the results are f32, or their type is not
	 * known. 0: input 0, but not known for operators of other domains than ONNX's own. */
	int typed_by;
	/* From this opset on the operator's old form has another meaning or is invalid, although the
	 * newer schema accepts the form; 0: there is no such opset. */
	int changed;
} OperatorFacts;
/* The facts of the node's operator; all of them are 0 for an unknown operator. */
const OperatorFacts *operator_facts(const Model *model, const NodeProto *p);
/* Index of the input that the node's operator adds as a bias to its product; 0: it takes none. */
int node_bias(const Model *model, const NodeProto *p);
/* The product in which the node's input is the weight; NULL: no such product. */
const Product *node_product(const Model *model, const NodeProto *p, int input);
/* The axes of a weight of this rank: *outputs is the axis of outputs, *inputs the axis that the
 * product sums over. */
void product_axes(const Product *product, const NodeProto *p, int rank, int *outputs, int *inputs);

/* ---- neighbours.c */
/* Counts the readers of each value by name: inputs of nodes, also in subgraphs, and outputs of
 * graphs. */
void graph_count_readers(const GraphProto *g, StrMap *readers);
/* Maps from the name of a value of the main graph to the node that makes the value, the number of
 * its readers, and one of its readers. */
typedef struct {
	StrMap *makers, *counts, *readers;
} Neighbours;
Neighbours neighbours_of(const GraphProto *g, Arena *arena);
NodeProto *maker_of(const Neighbours *all, const char *name); /* NULL: an input or initializer */
int count_readers(const Neighbours *all, const char *name);
/* NULL if the value has several readers or none, or if its reader is in a subgraph or is an output. */
NodeProto *only_reader_of(const Neighbours *all, const char *name);

/* ---- value_types.c */
/* Three sets of names: of the values that are not f32; of the values with a declared rank; of the
 * values with declared rank 1. */
typedef struct {
	StrMap *other, *shaped, *vectors;
} ValueTypes;
ValueTypes value_types_of(const Model *model, const GraphProto *g, Arena *arena);
const Onnx__TypeProto__Tensor *tensor_type(const ValueInfoProto *v); /* NULL: not a tensor */
/* NULL: a number; "": unknown */
const char *dim_symbol(const Onnx__TensorShapeProto__Dimension *d);

/* ---- take_in.c */
/* Copies tensors from external files into the messages, including tensors of subgraphs. The caller
 * owns m, its graph and p. */
bool model_take_data_in(Model *model, ModelProto *m, Diag *diag);
bool node_take_data_in(Model *model, NodeProto *p, Diag *diag);

/* ---- edit.c */
/* A copy of a list of n pointers, with `item` appended. */
void *edit_grown(Model *model, void *list, size_t n, const void *item);
/* Makes the node's lists private to the caller, who may change them from then on. */
void edit_node(Model *model, NodeProto *p);
/* The main graph; the caller may change its lists from then on. */
GraphProto *edit_graph(Model *model);
/* A tensor that is in no graph yet. The caller keeps the data. */
TensorProto *edit_tensor(const Model *model, const char *name, DType type, const Ints *shape,
                         const void *data);
AttributeProto *edit_int(const Model *model, const char *name, int64_t value);
/* Adds an initializer with a copy of the data to the main graph; returns its name. Subgraphs may
 * read it, too. */
const char *edit_add_initializer(Model *model, const char *base, const char *ending, DType type,
                                 const Ints *shape, const void *data);
/* A tensor with the same elements as `of`, in memory or in an external file. The tensor is in no
 * graph yet. */
TensorProto *edit_copy(const Model *model, const char *name, const TensorProto *of);
/* Adds t as an initializer and lists it in model->restored. Returns its name: t's own, or another if
 * the graph uses that name. */
const char *edit_restore(Model *model, RestoredKind kind, const char *wanted, const char *from,
                         TensorProto *t);
/* The initializer restored for the module's tensor; NULL: nothing was restored. */
const char *edit_restored(const Model *model, const char *wanted);
/* Replaces the content of an initializer. */
void edit_set_initializer(Model *model, const char *name, DType type, const Ints *shape,
                          const void *data);
void edit_remove_node(Model *model, const NodeProto *p);
/* Inserts y = op(a, b) before a node of the main graph; returns the name of y, derived from a's. */
const char *edit_insert_node(Model *model, const NodeProto *before, const char *op, const char *a,
                             const char *b);
void edit_close(Model *model);

/* ---- external.c */
void external_close_all(Model *model);

/* ---- read.c: reads the file as far as the scan needs it. A large raw_data is read last, straight
 * into its tensor. */
typedef struct {
	const char *path;
	int fd;
	uint8_t *bytes; /* n bytes in total; the bytes below `ready` are read or set aside */
	int64_t n, ready, next_read;
} ModelFile;
/* Opens a regular file of 1 to 2 GiB - 1 bytes. Close it in any case, also after a fault. */
Status model_file_open(const char *path, ModelFile *f);
void model_file_drop(ModelFile *f); /* frees the bytes; the file stays open */
/* Reads the content that was set aside, for all tensors of an unpacked message. */
Status fill_tensors(const ModelFile *f, ProtobufCMessage *m);
void model_file_close(ModelFile *f);

/* ---- scan.c: checks that the bytes are a well-formed ModelProto, before unpacking. */
/* *n_nodes: the number of nodes in all graphs and functions. */
Status scan_model(ModelFile *file, int64_t *n_nodes);

/* ---- list_file.c */
/* "NAME[I]" */
const char *list_element_name(Arena *arena, const char *name, int i);

#endif

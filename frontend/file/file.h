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
	OLDEST_FULL_OPSET =
		6, /* before it, operators that mean the same in it, or have rows of their own */
	NEWEST_OPSET = 27,
	MAX_MESSAGE_DEPTH = 100,
	MAX_CALL_DEPTH = 100,
	MAX_FUNCTIONS = 10000,
	MAX_NODES = 1 << 17,     /* of the file, and after inlining: about half a GiB */
	MAX_EXPANSION = 4 << 20, /* of functions: more is no model but an attack */
	MAX_LISTED =
		1
		<< 24, /* elements of all sequences: those that differ by one have all of theirs */
	MAX_IMPORTED_NODES = 3 << 19, /* of the IR, before anything is simplified */
};
#define MAX_FIELDS (64ll << 20)
#define MAX_ELEMENTS (1ll << 40) /* of any one value */

/* A node after inlining of model-local functions. */
typedef struct {
	const NodeProto *proto;
	int opset; /* of the node's domain; 0 where no import names it */
} FlatNode;
typedef VEC(FlatNode) FlatNodes;

/* The elements of one TensorProto, in its own dtype, row-major. */
typedef struct {
	DType dtype;
	int rank;
	int64_t dims[MAX_RANK];
	int64_t n;
	const void *data; /* NULL: the file lacks it (allowed with shapes_only) */
} TensorData;

typedef struct {
	size_t used, limit;
} Budget;

typedef struct {
	NodeProto *node, was;
} EditedNode;
/* An initializer that the file does not have and import made. */
typedef enum {
	RESTORED_MERGED,
	RESTORED_COMPUTED, /* what was computed from the module's tensor was merged */
	RESTORED_NUMBER,   /* a number of the module's code was merged */
	RESTORED_DROPPED,
	RESTORED_UNTIED
} RestoredKind;
typedef struct {
	RestoredKind kind;
	const char *
		wanted; /* the name of the module's tensor; of a number of the code, the initializer that the number was merged with */
	const char *name; /* of the initializer: another one where the graph has that name */
	const char *from; /* the initializer that had its readers; NULL: it was dropped */
} Restored;

struct Model {
	Arena *arena;
	const char *path;
	VEC(const char *) folders; /* resolved: where external data may lie, the first first */
	ModelProto *proto;
	ProtobufCAllocator allocator;
	Budget budget;
	int opset;       /* of ai.onnx */
	FlatNodes nodes; /* of the main graph, and of a loss that it carries */
	VEC(Onnx__ValueInfoProto *) training_inputs; /* of that loss alone: further inputs */
	IntMap *subgraphs;    /* address of a node's GraphProto -> its FlatNodes */
	int n_flat;           /* nodes of all these lists */
	StrMap *functions;    /* "domain\nname" -> FunctionProto */
	StrMap *initializers; /* name -> TensorProto, dense ones */
	IntMap *loaded;       /* address of a TensorProto -> TensorData */
	StrMap *files;        /* location -> external file */
	VEC(void *) blocks;   /* malloc'ed data */
	/* Messages that were edited, and what protobuf-c is to free in their place. */
	VEC(EditedNode) edited_nodes;
	GraphProto *edited_graph,
		own_graph; /* edited_graph NULL: its list of initializers was not */
	VEC(int) fds;      /* of external files */
	VEC(Restored *) restored;
	StrMap *restored_names; /* its `wanted` -> Restored; NULL: nothing was restored */
	StrMap *taken; /* names that values have, so that an edit's new value gets a free name; NULL: no edit has needed a name */
	size_t room_for_nodes, room_for_initializers; /* of edited lists */
};

/* ---- nodes.c */
/* The name of a node in locations: its own, else its first output's. */
const char *node_location(const NodeProto *p);
/* What the exporter wrote under the key; "": nothing. */
const char *node_metadata(const NodeProto *p, const char *key);
/* Length of the path of the module whose call the node belongs to; 0: unknown. */
size_t node_module(const NodeProto *p, const char **path);
/* Do both belong to calls of one module, as PyTorch's exporters name them? */
bool node_same_module(const NodeProto *a, const NodeProto *b);

/* Path of a module -> its nodes in the graph, in the arena. */
typedef VEC(NodeProto *) ModuleNodes;
StrMap *nodes_by_module(const GraphProto *g, Arena *arena);
/* A layer whose third input is its bias. */
bool node_takes_bias(const NodeProto *p);

/* ---- errors.c: faults with the file and the node in front. */
void model_error(const Model *model, Diag *diag, int exit_code, const char *fmt, ...) PRINTF(4, 5);
void node_error(const Model *model, Diag *diag, const FlatNode *n, int exit_code, const char *fmt,
                ...) PRINTF(5, 6);
void node_verror(const Model *model, Diag *diag, const FlatNode *n, int exit_code, const char *fmt,
                 va_list args);
/* A name cut to 200 bytes, quoted and escaped, in the arena. */
const char *quoted(const Model *model, const char *name);

/* ---- check.c, check_node.c: the structure of the graph. Report all faults. */
void check_model(Model *model, Diag *diag);
/* The model's graph with a training algorithm behind it. */
void check_combined(Model *model, const GraphProto *g, Diag *diag);
void check_node(Model *model, const FlatNode *n, bool in_function, Diag *diag);
const AttributeProto *node_attribute(const NodeProto *n, const char *name);
int64_t node_int(const NodeProto *n, const char *name,
                 int64_t otherwise);       /* an attribute that is an integer */
const char *domain_of(const char *domain); /* "" for ai.onnx */
/* Version that an import list gives a domain; 0 when it has none. */
int opset_version(size_t n, Onnx__OperatorSetIdProto **imports, const char *domain);

/* ---- schema.c: what ONNX itself says of an operator, out of its package; of other domains what onnxruntime says. */
typedef struct {
	const char *name;
	int since;
	int min_in, max_in, min_out, max_out; /* max 999: any number */
	uint32_t required;                    /* bit i: input i may not be left out */
	/* "axis:i keepdims:b! ..."; a letter of the type, b: an integer that is 0 or 1; `!` is required; "-" deprecated */
	const char *attributes;
} SchemaRow;
/* The newest row not above opset; NULL when there is none. */
const SchemaRow *schema_find(const char *name, int opset);
/* The same in any domain: NULL for most operators of other domains. */
const SchemaRow *schema_of(const char *domain, const char *name, int opset);
/* Kind letter of an attribute and whether it is required; 0 when the schema has none. */
char schema_attribute(const SchemaRow *row, const char *name);

/* ---- inline.c: model-local functions replaced by their bodies, in subgraphs too. */
void inline_functions(Model *model);
/* One more node behind those of the main graph. */
void model_add_node(Model *model, const NodeProto *n);
/* The nodes of a subgraph, after inline_functions. */
const FlatNodes *subgraph_nodes(const Model *model, const GraphProto *g);
/* They are known, acyclic, and expand to few enough nodes. Before inline_functions. */
bool check_functions(Model *model, Diag *diag);
/* Not more than MAX_NODES; false after reporting. */
bool nodes_in_budget(const Model *model, int64_t n, Diag *diag);
/* The function that a node calls; NULL for operators. */
const FunctionProto *node_callee(const Model *model, const NodeProto *n);

/* ---- tensor.c */
bool tensor_dtype(int onnx_type, DType *out); /* false: string, complex or unknown */
int tensor_onnx_type(DType t);
bool is_float_type(int onnx_type);
/* Dims, dtype, encoding and length, without reading external data. what: initializer "w". */
void check_tensor(const Model *model, const TensorProto *t, const char *what, Diag *diag);
void check_sparse(const Model *model, const Onnx__SparseTensorProto *s, const char *what,
                  Diag *diag);
bool tensor_is_external(const TensorProto *t);
/* The elements, read at first use. false after reporting. shapes_only: data may be missing. */
bool tensor_load(Model *model, const TensorProto *t, bool shapes_only, TensorData *out, Diag *diag);
/* Has it elements, in the message or in a file that exists? */
bool tensor_is_there(const Model *model, const TensorProto *t);
/* As tensor_load, for a bare TensorProto without external data. */
/* NULL, or what is wrong; *exit_code then says how. */
const char *tensor_decode(Arena *arena, const TensorProto *t, TensorData *out, int *exit_code);
bool tensor_has_non_finite(const TensorData *t);
bool tensor_data_equal(const TensorData *a, const TensorData *b);
/* b[j,i] = a[i,j] bit for bit; both of rank 2. */
bool tensor_is_transpose(const TensorData *a, const TensorData *b);
bool tensor_constant_valued(const TensorData *t, double *value);

/* ---- neighbours.c */
/* Adds, by name, how many inputs of nodes, subgraphs' too, and outputs read a value. */
void graph_count_readers(const GraphProto *g, StrMap *readers);
/* By name of a value: the node of the main graph that makes it; how many read it; one that does. */
typedef struct {
	StrMap *makers, *counts, *readers;
} Neighbours;
Neighbours neighbours_of(const GraphProto *g, Arena *arena);
NodeProto *maker_of(const Neighbours *all, const char *name); /* NULL: none */
int count_readers(const Neighbours *all, const char *name);
/* NULL: several or none, or it reads from a subgraph, or as an output. */
NodeProto *only_reader_of(const Neighbours *all, const char *name);
bool is_op(const NodeProto *p, const char *op); /* of ONNX's own; p may be NULL */

/* ---- value_types.c */
/* Names of values: of other types than f32; whose rank is declared; whose declared rank is 1. */
typedef struct {
	StrMap *other, *shaped, *vectors;
} ValueTypes;
ValueTypes value_types_of(const GraphProto *g, Arena *arena);
const Onnx__TypeProto__Tensor *tensor_type(const ValueInfoProto *v); /* NULL: no tensor */
const char *dim_symbol(const Onnx__TensorShapeProto__Dimension *d);  /* NULL: a number; "": open */

/* ---- take_in.c */
/* Tensors in files beside the model come into the messages, those of the graphs inside, too; m, its graph and p are the caller's. */
bool model_take_data_in(Model *model, ModelProto *m, Diag *diag);
bool node_take_data_in(Model *model, NodeProto *p, Diag *diag);

/* ---- edit.c */
/* A copy of a list of n pointers with another behind them. */
void *edit_grown(Model *model, void *list, size_t n, const void *item);
/* From now on the node's lists are the caller's to change. */
void edit_node(Model *model, NodeProto *p);
/* Likewise the main graph's. */
GraphProto *edit_graph(Model *model);
/* Of no graph yet; the data is the caller's and stays. */
TensorProto *edit_tensor(const Model *model, const char *name, DType type, const Ints *shape,
                         const void *data);
AttributeProto *edit_int(const Model *model, const char *name, int64_t value);
/* A copy of the data in the main graph, which subgraphs see, too; its name. */
const char *edit_add_initializer(Model *model, const char *base, const char *ending, DType type,
                                 const Ints *shape, const void *data);
/* Another tensor with the elements of `of`, wherever they lie. Of no graph yet. */
TensorProto *edit_copy(const Model *model, const char *name, const TensorProto *of);
/* Adds t as an initializer and lists it in model->restored; its name, which is t's own unless the graph has that one. */
const char *edit_restore(Model *model, RestoredKind kind, const char *wanted, const char *from,
                         TensorProto *t);
/* The initializer that was restored for the module's tensor; NULL: none was. */
const char *edit_restored(const Model *model, const char *wanted);
/* Another content under the same name. */
void edit_set_initializer(Model *model, const char *name, DType type, const Ints *shape,
                          const void *data);
void edit_remove_node(Model *model, const NodeProto *p);
/* y = op(a, b) before a node of the main graph; the name of y, after that of a. */
const char *edit_insert_node(Model *model, const NodeProto *before, const char *op, const char *a,
                             const char *b);
void edit_close(Model *model);

/* ---- external.c */
void external_close_all(Model *model);

/* ---- external_location.c */
/* Finds model->folders. */
void external_folders(Model *model);

/* ---- read.c: the file, read as the scan gets to it; large raw_data last, straight into its tensor. */
typedef struct {
	const char *path;
	int fd;
	uint8_t *bytes; /* n of them; those below `ready` are read or set aside */
	int64_t n, ready, next_read;
} ModelFile;
/* A regular file of 1 to 2 GiB - 1 bytes. To be closed in any case. */
Status model_file_open(const char *path, ModelFile *f);
/* Reads on until the bytes below `end` are there. */
Status model_file_need(ModelFile *f, int64_t end);
/* Leaves the n bytes of a raw_data at `offset` in the file, when they are worth it: true. Protobuf-c
 * then unpacks them as that offset and zeros. */
bool model_file_set_aside(ModelFile *f, int64_t offset, int64_t n);
void model_file_drop(ModelFile *f); /* frees the bytes; the file stays open */
/* Reads what was set aside, for all tensors in an unpacked message. */
Status fill_tensors(const ModelFile *f, ProtobufCMessage *m);
void model_file_close(ModelFile *f);

/* ---- scan.c: the bytes are a well-formed ModelProto, before anything is unpacked. */
/* *n_nodes: of all graphs and functions together. */
Status scan_model(ModelFile *file, int64_t *n_nodes);
/* The same for a TensorProto. */
Status scan_tensor(const uint8_t *bytes, int64_t n);
/* The same for a SequenceProto or an OptionalProto. */
Status scan_list(const uint8_t *bytes, int64_t n, bool optional);

/* ---- list_file.c */
/* NAME[I] */
const char *list_element_name(Arena *arena, const char *name, int i);

#endif

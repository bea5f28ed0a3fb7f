/* What the files of frontend/ share: the parsed file, its tensors, its flattened node list, the
 * verdict on each weight. Importers of operators see onnx/importer.h on top of it. */
#ifndef GRADC_FRONTEND_IMPL_H
#define GRADC_FRONTEND_IMPL_H

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

typedef enum {
	WEIGHT_CONSTANT, /* becomes a constant node */
	WEIGHT_PARAMETER,
	WEIGHT_STATISTIC, /* running mean or variance */
	WEIGHT_TABLE,     /* a float table that is no parameter: a frozen state */
	WEIGHT_QUANTIZED, /* codes that are not trained, or a scale of codes: a frozen state */
} WeightKind;
/* Where an initializer comes from, says the exporter. */
#define ORIGIN_PARAMETER "PARAMETER"
#define ORIGIN_BUFFER "BUFFER"
#define ORIGIN_CONSTANT "CONSTANT_TENSOR"
typedef struct {
	const char *
		kind; /* of the module's own tensor: an ORIGIN_...; NULL: it had none of that name */
	bool folded;  /* computed when exporting */
	VEC(const char *) from; /* ... from these parameters of the module, among others */
	bool guessed;           /* ... by their names: the file does not say what these were */
	bool unknown;           /* the file does not say what some of its sources were */
	int steps;              /* values that it was computed from, one after the other */
	bool expanded;          /* one of them repeats another */
} Origin;
/* Nobody can tell from the file whether a tensor is a parameter. */
typedef struct {
	const char *reasons_for, *reasons_against; /* that it is one */
} Doubt;
/* A tensor of integers that stand for (code - zero) scale. */
typedef struct {
	DType type;   /* of a code, packed as the file packs it */
	DType stored; /* of the tensor in the file: `type`, or u8 with several codes in a byte */
	Ints shape;   /* of the codes; of packed ones [rows, blocks, block] */
	Ints group;   /* places along each axis that share a scale and a zero point */
	const char *scale;   /* an initializer of ceil(shape / group) elements */
	const int32_t *zero; /* as many; NULL: all 0 */
	const char *zeros;   /* the initializer that holds them as they are; NULL: none does */
} Codes;
/* A float tensor of the graph, or one of codes: an initializer, a Constant node's value, or an Identity of one. */
typedef struct Weight Weight;
struct Weight {
	const char *
		name; /* of the ONNX value; in a subgraph that shares it with another, made unique */
	const char *value;         /* the ONNX value */
	bool is_inner;             /* in a subgraph of the main graph: a branch or a loop's body */
	const TensorProto *tensor; /* where its elements are */
	const NodeProto *constant; /* the Constant node that holds it; NULL for initializers */
	const NodeProto *identity; /* un-merged: the Identity node whose output this is */
	const Codes *codes;        /* NULL: the file holds its numbers */
	const Origin *origin;      /* what metadata say of it; NULL: nothing */
	const char *beside_cast; /* the codes that it scales, which Cast makes floats; NULL: none */
	TensorData data;
	WeightKind kind;
	const char *
		path; /* another name: what it was computed from, else the module or node that reads it */
	const char *why;
	const Doubt *doubt; /* NULL: none */
	const char *groups; /* as of a State */
	bool is_read;       /* by a node */
	bool is_asked_for;  /* --train names it */
	Weight *tied;       /* shares that one's state ... */
	bool transposed;    /* ... as its transpose; of rank 2 then */
	int expanded_from,
		expanded_to; /* along these axes it repeats, the last excluded: the state has 1 there */
	bool as_constant; /* read as a constant; the state is there for the table only */
	State *state;
};

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

/* ---- tensor_file.c */
/* A serialized TensorProto; path: of messages. */
Status tensor_proto_decode(Arena *arena, const char *path, const uint8_t *bytes, int64_t n,
                           DType *dtype, int *rank, int64_t dims[MAX_RANK], void **data);
uint8_t *tensor_proto_encode(Arena *arena, const char *name, DType dtype, int rank,
                             const int64_t *dims, const void *data, size_t *n);

/* ---- list_file.c */
/* NAME[I] */
const char *list_element_name(Arena *arena, const char *name, int i);

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

/* ---- external_location.c */
/* A location without its "." components; a fault or NULL. Relative, no "..", no empty component, no
 * backslash or drive letter. */
const char *external_location(Arena *arena, const char *location, const char **out);
/* Finds model->folders. */
void external_folders(Model *model);
/* The resolved path of a location's file; NULL and errno: ENOTUNIQ where two folders have different ones. */
const char *external_path(const Model *model, const char *location);
/* A descriptor of that file, or -1 and errno: EXDEV where it lies in none of the folders. */
int external_open_path(const Model *model, const char *location, const char **path);

/* ---- external.c: data beside the model, never outside its folders. */
typedef struct {
	const char *location, *checksum;
	int64_t offset, length; /* length -1: to the end of the file */
} ExternalData;
/* Reads and checks the five known keys. */
bool external_parse(const Model *model, const TensorProto *t, ExternalData *out, Diag *diag);
/* Opens (once) and checks that the range lies inside. *fd is the model's. */
bool external_open(Model *model, const TensorProto *t, const ExternalData *e, int64_t bytes,
                   int *fd, Diag *diag);
void external_close_all(Model *model);

/* ---- sha1.c */
void sha1_hex(const void *bytes, size_t n, char hex[41]);

/* ---- exporters.c: what is known of the files of the program that wrote this one. */
typedef struct {
	const char *producer; /* the file's producer_name */
	bool keeps_names; /* the module's tensors have the module's names; what it computed, others */
	bool keeps_constants; /* Constant nodes hold what the model's code has, not what was computed */
	bool tells_parameters; /* where its metadata tell of a parameter, they tell of all */
	bool names_operations; /* tensors are called by the operation that made them, variables too */
	bool drops_zeros;      /* additions of zeros are left out, as of fresh biases */
	const char *const *learned; /* how names of what gradients make begin; NULL: anyhow */
} Exporter;
/* A row without any fact for a producer that is not known, or NULL. */
const Exporter *exporter_find(const char *producer);

/* ---- repairs.c, ties.c; roles.c and its neighbours, see roles_impl.h: what each float tensor of the graph is. */
/* Who reads a value: a node through its input, or -1 from inside a subgraph. */
typedef struct {
	const FlatNode *node;
	int input;
} Reader;
typedef VEC(Reader) Readers;
typedef struct {
	Model *model;
	const ImportOptions *options;
	const Exporter *exporter;
	Diag *diag;
	Arena *arena;
	StrMap *weights;    /* name -> Weight */
	VEC(Weight *) list; /* in file order */
	StrMap *readers;    /* name -> Readers */
	StrMap *producers;  /* name -> FlatNode that makes it */
	StrMap *inputs;     /* name -> ValueInfoProto of the graph's inputs */
	StrMap *origins;    /* name of an initializer -> Origin */
	StrMap *scales;     /* names of tensors that are scales of weights in codes */
	StrMap *signature;  /* name of a tensor of the exported module -> its ORIGIN_... */
	StrMap *placeholders; /* "p_fc_weight", in texts of calls -> the module's tensor; "" for its inputs and outputs */
	StringList signed_parameters; /* those of them that are parameters */
	StringList signed_tensors;    /* ... that are parameters or buffers */
	StrMap *apart;                /* names that --no-tie keeps from being tied */
	StrMap *untied;               /* ... that would have been, without it */
	bool tells_all;        /* it has a signature, which lists all of the module's tensors */
	bool tells_folding;    /* the exporter says from what it computed tensors */
	bool tells_origins;    /* a weight of the list has an origin */
	bool moves_statistics; /* the module moved running statistics: it was training */
	IntMap *inner;         /* address of a TensorProto in a subgraph -> Weight */
	IntMap *main_nodes;    /* addresses of the main graph's nodes: not those of functions */
	StringList log;        /* "repair: what it did" */
	StringList notes;      /* what a person should know of the file before training */
} Repairs;
bool repair_enabled(const ImportOptions *options, const char *name);
Repairs *repairs_find(Model *model, const ImportOptions *options, Arena *arena, Diag *diag);
Weight *repairs_weight(const Repairs *r, const char *name); /* NULL: not one */
Readers readers_of(const Repairs *r, const char *name);
/* Readers behind reshapes, transposes and other views of the value, at most `max` of them. */
int final_readers(const Repairs *r, const char *name, Reader *out, int max);
int all_readers(const Repairs *r, const char *name,
                const Reader **out); /* all of them, in r's arena */
/* "repair: text" for the table before training. */
void repairs_note(Repairs *r, const char *repair, const char *fmt, ...) PRINTF(3, 4);
/* Of another domain than ONNX's own the name has it in front: "com.microsoft.Gelu". */
bool node_is(const FlatNode *n, const char *op);
/* Sets kind, why and doubt. */
void weight_judge(Repairs *r, Weight *w);
/* Is it no parameter, or one that --freeze takes? */
bool weight_is_frozen(const Repairs *r, const Weight *w);
/* Reports rules that take nothing but constants, which have no state. */
void asked_check(const Repairs *r);
/* Reports rules that name a tensor which is another one's copy. */
void asked_check_ties(const Repairs *r);
/* Did PyTorch's exporter compute it from constants and, maybe, parameters? Its TorchScript writer keeps Constant nodes for
 * the former, the dynamo one says of each parameter that it is one. */
bool weight_made_by_exporter(const Repairs *r, const Weight *w);
/* Called by the module's or the person's name for it. */
bool weight_is_named(const Repairs *r, const Weight *w);
void repairs_tie(Repairs *r);

/* ---- quantize_find.c */
/* The axes of a product's second operand, of that rank, that are its outputs and that are added up; false: no product. */
bool product_axes(const NodeProto *p, int rank, int *channel, int *inputs);
/* Which of a quantized tensor's initializers. */
typedef struct {
	enum { QUANTIZED_CODES, QUANTIZED_SCALE, QUANTIZED_ZERO } part;
	const QuantizedTensor *tensor;
} QuantizedPart;
/* The model's messages with what is quantized, in its arena; the graph is `graph`. */
typedef struct {
	ModelProto proto;
	GraphProto graph;
	IntMap *parts; /* address of an initializer -> QuantizedPart */
} QuantizedModel;
/* opset 0: its own. */
void model_quantize_edit(Model *model, QuantizedTensors *list, int opset, QuantizedModel *out);

/* ---- adapter_branches.c */
/* Puts the adapters' branches into g, a copy of the main graph, with initializers for their parts: holes has an ExportRecord by the
 * address of each. quantized: what --quantize made, or NULL. The node that can have none; NULL: there is no such node. */
const char *model_branch_edit(const Module *m, const QuantizedTensors *quantized, GraphProto *g,
                              IntMap *holes, Arena *arena);

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

/* ---- opsets.c */
/* Operators that mean another thing there are reported. */
bool model_raise_opset(Model *model, int to, Diag *diag);

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

/* What a Constant node of the main graph holds; NULL: it is none, or repair `constants` is off. */
const TensorProto *constant_tensor(const Repairs *r, const FlatNode *n);
/* ---- codes.c */
/* The weight [rows, columns] of MatMulNBits and MatMulBnb4, in blocks along its columns. */
typedef struct {
	int64_t rows, columns, block, blocks;
} PackedShape;
/* NULL, or what is wrong with N, K or block_size, in the arena. */
const char *packed_shape(const NodeProto *p, Arena *arena, PackedShape *out);
/* NULL: it is no weight, or what its codes stand for is not in the file. */
const Codes *codes_find(Repairs *r, const char *name, const TensorData *data);
/* Does the node take it for a scale of codes, or for a zero point? */
bool reads_scale(const Reader *reader);
Groups codes_groups(const Codes *c);
int64_t codes_scales(const Codes *c); /* how many there are */
/* The numbers that the codes stand for. */
void codes_to_floats(const Codes *c, const void *codes, const TensorData *scale, float *out);

/* ---- names.c */
bool name_is_generated(const char *name); /* by an exporter: val_67, onnx::MatMul_12, 331 */
/* The exporters name a value after the function or operator that made it: zeros_3, new_full, /m/ConstantOfShape_output_0;
 * expand, repeat_1, and embedding, which repeats the row of a token that is everywhere. */
bool name_is_creation(const char *name);
bool name_is_expansion(const char *name);
/* tf2onnx names a tensor after the operation that made it: dense/MatMul/ReadVariableOp:0 is a variable, conv/Squeeze:0 one
 * in another shape, batchnorm/mul:0 was computed. */
bool name_is_variable(const char *name);
bool name_is_variable_or_view(const char *name);
/* As people name what they train: a path, or with a word for it. */
bool name_is_like_parameter(const char *name);
bool
name_is_learned_number(const char *name); /* the same of a single number: logit_scale, act.alpha */
bool name_is_scale(const char *name);
/* Of a number that scales by a size: embed_scale, dpa_scale_0, scaling, sqrt_d. */
bool name_is_of_scaling(const char *name);
/* As a person or a module calls a tensor: neither made by an exporter nor that of an operation. */
bool name_is_own(const char *name);
bool name_is_of_layer(const char *name); /* fc.weight, fc.bias: not final_logits_bias */
bool name_is_private(const char *name);  /* its last part begins with _, as buffers' names may */
/* A path's last part: "weight" of "blocks.0.weight" or "blocks/0/weight:0". */
const char *name_last_part(const char *name);
/* Length of the path of the module that has the tensor: of "blocks.0" for "blocks.0.weight"; 0: the root has it. */
size_t name_module_length(const char *name);
/* As modules call what they compute and keep: forward_basis_buffer, inv_freq, window. */
bool name_is_of_table(const char *name);

/* ---- origins.c */
void origins_read(Repairs *r);
/* Of what edits restored: behind unmerge and untie_readers. */
void origins_of_restored(Repairs *r);
/* Adds to in_file the initializer's name, and the names of the parameters that the initializer was computed from. */
void origins_add_names(StrMap *in_file, const char *name, const Origin *o);
/* ---- unmerge.c: repairs `unmerge` and `biases`, in the model's graph; behind origins_read. */
void unmerge(Repairs *r);
/* unmerge_calls.c: how often the exporter's text of the node's call names the module's tensor. */
int node_text_names(const Repairs *r, const NodeProto *p, const char *tensor);
/* ---- untie.c: --no-tie of one initializer with several readers, likewise. */
void untie_readers(Repairs *r);
bool origin_is(const Weight *w, const char *kind);
/* What it was computed from is nowhere else in the file. */
bool origin_is_all_there_is(const Repairs *r, const Weight *w);
/* "computed from a, b when exported: ..." */
const char *origin_text(const Repairs *r, const Weight *w);

/* ---- inner_weights.c: what subgraphs of the main graph's nodes hold */
void repairs_add_inner(Repairs *r);
/* The weight whose elements are those of a tensor in a subgraph; NULL: there is none. */
Weight *inner_weight(const Repairs *r, const TensorProto *t);
/* One more candidate; value: the name that readers know it by. NULL after reporting. */
Weight *repairs_add_weight(Repairs *r, const char *name, const char *value, const TensorProto *t);

/* ---- findings.c: what the exporter changed without a trace, as notes. */
void findings_note(Repairs *r);

/* ---- table_values.c */
/* More than one axis is longer than 1. */
bool values_are_wide(const TensorData *t);
/* Are all that lie along the axis the same? */
bool values_repeat(const TensorData *t, int axis);
/* 0 and very negative numbers: what is added before a softmax. */
bool values_are_mask(const TensorData *t);
/* Ones and zeros. */
bool values_are_binary(const TensorData *t);
/* Ones on and below the diagonal of the last two axes, zeros above. */
bool values_are_triangle(const TensorData *t);
/* Position encodings, sinusoidal and rotary: along some axis, the positions', nothing but sines and cosines, of angles
 * from 0 on if `from_zero`. */
bool values_are_waves(const TensorData *t, bool from_zero);
/* The same of 4 or 5 positions from 0 on, too few to be sure. */
bool values_are_short_waves(const TensorData *t);
/* Line k is cos(pi / n (i + 1/2) k) times some number: of 3 lines or more, in order. */
bool values_are_cosine_transform(const TensorData *t);
/* A kernel [out, in, ...], or one without channels, that is the same for all channels and, to the last bit, the mirror image of
 * itself or of its negative along each axis. */
bool values_are_symmetric_kernel(const TensorData *t);
/* ALiBi (Press et al. 2022): along the last of three axes or more each line rises or falls evenly. */
bool values_are_ramps(const TensorData *t);

/* ---- filter_values.c */
/* Sines behind a window, or lines of 8 numbers or more that are mirror images: bases of transforms, fixed filters. */
bool values_are_basis(const TensorData *t);
/* One line that rises to its middle and falls again: Hann, Hamming, Blackman, Kaiser ... */
bool values_are_window(const TensorData *t);
/* One bump a line, in order: filters of mel, ERB and Bark scales, matrices that interpolate. */
bool values_are_filter_bank(const TensorData *t);
/* One line of a + b r^i: evenly spaced numbers, powers, frequencies of a mel scale. */
bool values_are_sequence(const TensorData *t);
/* Whole numbers and halves, at least three, some beyond 1: positions, anchors, the numbers of a distribution's bins. */
bool values_are_whole(const TensorData *t);

/* ---- import.c */
/* What `module->import` points to: the public part first. */
typedef struct {
	Import base;
	Repairs *repairs;
	bool keep_metadata;
	FakeQuantization *quantize; /* NULL: nothing is */
} ImportInfo;
typedef struct Importer Importer;

#endif

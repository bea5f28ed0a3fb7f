/* Decides what each float tensor of the graph is (parameter, statistic, table or constant) and why.
 * Sections are named after the .c file. */
#ifndef GRADC_FRONTEND_WEIGHTS_WEIGHTS_H
#define GRADC_FRONTEND_WEIGHTS_WEIGHTS_H

#include "frontend/file/file.h"

typedef enum {
	WEIGHT_CONSTANT, /* becomes a constant node */
	WEIGHT_PARAMETER,
	WEIGHT_STATISTIC, /* running mean or variance */
	WEIGHT_TABLE,     /* a float table that is not a parameter: a frozen state */
	WEIGHT_QUANTIZED, /* codes that are not trained, or a scale of codes: a frozen state */
} WeightKind;
/* Origin of an initializer, by the exporter's metadata. */
#define ORIGIN_PARAMETER "PARAMETER"
#define ORIGIN_BUFFER "BUFFER"
#define ORIGIN_CONSTANT "CONSTANT_TENSOR"
typedef struct {
	/* kind of the module's tensor of that name: ORIGIN_...; NULL: the module had no such tensor */
	const char *kind;
	bool folded;            /* computed by the exporter */
	VEC(const char *) from; /* parameters of the module among its sources */
	/* `from` was found by names: the file does not say what its sources were */
	bool guessed;
	bool unknown;  /* the file does not say what some sources were */
	int steps;     /* number of values in the chain that it was computed from */
	bool expanded; /* one of these values is an expansion of another */
} Origin;
/* A tensor of which the file does not tell whether it is a parameter, with the reasons for both
 * answers. */
typedef struct {
	const char *reasons_for, *reasons_against; /* for and against being a parameter */
} Doubt;
/* A tensor of integer codes; a code stands for (code - zero) scale. */
typedef struct {
	DType type;   /* type of a code */
	DType stored; /* type of the file's tensor: `type`, or u8 with several codes in a byte */
	Ints shape;   /* shape of the codes; packed codes: [rows, blocks, block] */
	Ints group;   /* lengths along each axis that share a scale and a zero point */
	const char *scale;   /* initializer of ceil(shape / group) elements */
	const int32_t *zero; /* one per scale; NULL: all are 0 */
	const char *zeros;   /* initializer with these zero points; NULL: no such initializer */
} Codes;
/* A tensor of the graph, of floats or of codes: an initializer, the value of a Constant node, or an
 * Identity of one of these. */
typedef struct Weight Weight;
struct Weight {
	/* name of the ONNX value; made unique if another subgraph has the same name */
	const char *name;
	const char *value; /* the ONNX value */
	/* lies in a subgraph of the main graph: a branch or a loop's body */
	bool is_inner;
	const TensorProto *tensor; /* message with the elements */
	const NodeProto *constant; /* Constant node that holds it; NULL: an initializer */
	const NodeProto *identity; /* Identity node whose output became a parameter again */
	const Codes *codes;        /* NULL: the file holds floats */
	const Origin *origin;      /* from metadata; NULL: unknown */
	/* codes that Cast makes floats and this tensor scales; NULL: none */
	const char *beside_cast;
	TensorData data;
	WeightKind kind;
	/* another name: the tensor it was computed from, else the module or node that reads it */
	const char *path;
	const char *why;
	const Doubt *doubt; /* NULL: there is no doubt */
	const char *groups; /* as in State */
	bool is_read;       /* some node reads it */
	bool is_asked_for;  /* --train names it */
	Weight *tied;       /* weight whose state it shares */
	bool transposed;    /* shares it as the transpose; rank 2 */
	/* it repeats along the axes from expanded_from to before expanded_to; the state has size 1
	 * there */
	int expanded_from, expanded_to;
	bool as_constant; /* read as a constant; its state exists only for the parameter table */
	State *state;
};

/* ---- exporters.c: facts about the files of each exporter */
typedef struct {
	const char *producer; /* the file's producer_name */
	bool keeps_names; /* tensors of the module keep its names; computed tensors have others */
	/* Constant nodes hold constants of the model's code, not computed tensors */
	bool keeps_constants;
	bool tells_parameters; /* if metadata mark one parameter, they mark every parameter */
	/* tensors, also variables, are named after the operation that made them */
	bool names_operations;
	bool drops_zeros;           /* additions of zeros, such as fresh biases, are left out */
	const char *const *learned; /* prefixes of the names of trained tensors; NULL: any name */
} Exporter;
/* The row for a producer; a row without facts if the producer is NULL or unknown. */
const Exporter *exporter_find(const char *producer);

/* ---- repairs.c, ties.c, roles.c: decide what each float tensor of the graph is */
/* A reader of a value: a node and its input; input -1: a subgraph of the node reads it. */
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
	StrMap *producers;  /* name -> FlatNode that makes the value */
	StrMap *inputs;     /* name -> ValueInfoProto of the graph's inputs */
	StrMap *origins;    /* name of an initializer -> Origin */
	StrMap *scales;     /* names of tensors that are scales of codes */
	StrMap *signature;  /* name of a tensor of the exported module -> its ORIGIN_... */
	/* "p_fc_weight", as in texts of calls -> the module's tensor; "" for its inputs and outputs */
	StrMap *placeholders;
	StringList signed_parameters; /* parameters in the signature */
	StringList signed_tensors;    /* parameters and buffers in the signature */
	StrMap *apart;                /* names that must not be tied (--no-tie, restored copies) */
	StrMap *untied;               /* names that would have been tied without --no-tie */
	bool tells_all;               /* a signature lists all tensors of the module */
	bool tells_folding;           /* metadata name the sources of computed tensors */
	bool tells_origins;           /* some weight has an origin */
	/* the module updated running statistics: it was exported in training mode */
	bool moves_statistics;
	IntMap *inner;      /* address of a TensorProto in a subgraph -> Weight */
	IntMap *main_nodes; /* addresses of nodes written in the main graph, not in functions */
	StringList log;     /* "repair: its effect" */
	StringList notes;   /* facts about the file to know before training */
} Repairs;
bool repair_enabled(const ImportOptions *options, const char *name);
Repairs *repairs_find(Model *model, const ImportOptions *options, Arena *arena, Diag *diag);
Weight *repairs_weight(const Repairs *r, const char *name); /* NULL: not a weight */
Readers readers_of(const Repairs *r, const char *name);
/* At most `max` readers of a value. The readers of a reshape, transpose or other view of the value
 * take the place of the view. */
int final_readers(const Repairs *r, const char *name, Reader *out, int max);
int all_readers(const Repairs *r, const char *name,
                const Reader **out); /* The same readers without limit, in r's arena. */
/* Adds "repair: text" to the log that precedes training. */
void repairs_note(Repairs *r, const char *repair, const char *fmt, ...) PRINTF(3, 4);
/* Is it the operator? For other domains than ONNX's own, the name starts with the domain:
 * "com.microsoft.Gelu". */
bool node_is(const FlatNode *n, const char *op);
/* Sets kind, why and doubt. */
void weight_judge(Repairs *r, Weight *w);
/* Is the tensor frozen: not a parameter, or frozen by --freeze? */
bool weight_is_frozen(const Repairs *r, const Weight *w);
/* Reports options of --train, --freeze and so on that match only constants, which have no state. */
void asked_check(const Repairs *r);
/* Reports options that name a tensor that shares the state of another. */
void asked_check_ties(const Repairs *r);
/* Did PyTorch's exporter compute the tensor from constants and perhaps parameters? The TorchScript
 * exporter puts tensors computed from constants alone into Constant nodes. The dynamo exporter marks
 * every parameter. */
bool weight_made_by_exporter(const Repairs *r, const Weight *w);
/* Does the tensor have a name that the module or a person gave it? */
bool weight_is_named(const Repairs *r, const Weight *w);
void repairs_tie(Repairs *r);
/* The tensor of a Constant node in the main graph; NULL: the node has none, or repair `constants` is
 * off. */
const TensorProto *constant_tensor(const Repairs *r, const FlatNode *n);

/* ---- codes.c */
/* The weight [rows, columns] of MatMulNBits and MatMulBnb4, in blocks along its columns. */
typedef struct {
	int64_t rows, columns, block, blocks;
} PackedShape;
/* Returns NULL or what is wrong with N, K or block_size, in the arena. */
const char *packed_shape(const NodeProto *p, Arena *arena, PackedShape *out);
/* The codes of an integer tensor; NULL: it is not a weight, or its scales are not in the file. */
const Codes *codes_find(Repairs *r, const char *name, const TensorData *data);
/* Does the node use the input as a scale or zero point of codes? */
bool reads_scale(const Reader *reader);
Groups codes_groups(const Codes *c);
int64_t codes_scales(const Codes *c); /* number of scales */
/* Computes the numbers that the codes stand for. */
void codes_to_floats(const Codes *c, const void *codes, const TensorData *scale, float *out);

/* ---- names.c */
bool name_is_generated(const char *name); /* by an exporter: val_67, onnx::MatMul_12, 331 */
/* Exporters name a value after the function or operator that made it. Creation: zeros_3, new_full,
 * /m/ConstantOfShape_output_0. Expansion: expand, repeat_1; also embedding, if it repeats the row of
 * one token. */
bool name_is_creation(const char *name);
bool name_is_expansion(const char *name);
/* tf2onnx names a tensor after the operation that made it: dense/MatMul/ReadVariableOp:0 is a
 * variable, conv/Squeeze:0 a view of a variable, batchnorm/mul:0 a computed tensor. */
bool name_is_variable(const char *name);
bool name_is_variable_or_view(const char *name);
/* Is it a usual name of a parameter: a path, or with a usual word? */
bool name_is_like_parameter(const char *name);
bool
name_is_learned_number(const char *name); /* the same for a single number: logit_scale, act.alpha */
bool name_is_scale(const char *name);
/* Is it a usual name of a number that scales by a size: embed_scale, dpa_scale_0, scaling, sqrt_d? */
bool name_is_of_scaling(const char *name);
/* Did a person or a module give the name? Neither an exporter nor an operation did. */
bool name_is_own(const char *name);
bool name_is_of_layer(const char *name); /* fc.weight, fc.bias; not final_logits_bias */
bool name_is_private(const char *name);  /* the last part begins with _, as names of buffers may */
/* The last part of a path: "weight" of "blocks.0.weight" or "blocks/0/weight:0". */
const char *name_last_part(const char *name);
/* Length of the path of the tensor's module: of "blocks.0" in "blocks.0.weight"; 0: the root module. */
size_t name_module_length(const char *name);
/* Is it a usual name of a computed table: forward_basis_buffer, inv_freq, window? */
bool name_is_of_table(const char *name);

/* ---- inner_weights.c: tensors in subgraphs of the main graph's nodes */
void repairs_add_inner(Repairs *r);
/* The weight that holds a tensor of a subgraph; NULL: no weight does. */
Weight *inner_weight(const Repairs *r, const TensorProto *t);
/* Adds a candidate; value: the name that its readers use. NULL after reporting. */
Weight *repairs_add_weight(Repairs *r, const char *name, const char *value, const TensorProto *t);

#endif

/* What each float tensor of the graph is: a parameter, a statistic, a table or a constant, and why. Sections are named after the .c
 * file. */
#ifndef GRADC_FRONTEND_WEIGHTS_WEIGHTS_H
#define GRADC_FRONTEND_WEIGHTS_WEIGHTS_H

#include "frontend/file/file.h"

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

/* ---- repairs.c, ties.c; roles.c and its neighbours, see roles.h: what each float tensor of the graph is. */
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

/* ---- inner_weights.c: what subgraphs of the main graph's nodes hold */
void repairs_add_inner(Repairs *r);
/* The weight whose elements are those of a tensor in a subgraph; NULL: there is none. */
Weight *inner_weight(const Repairs *r, const TensorProto *t);
/* One more candidate; value: the name that readers know it by. NULL after reporting. */
Weight *repairs_add_weight(Repairs *r, const char *name, const char *value, const TensorProto *t);

#endif

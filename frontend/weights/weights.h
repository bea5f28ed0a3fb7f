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
	bool transposed;    /* it is the transpose of `tied`; rank 2 */
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
int all_readers(const Repairs *r, const char *name,
                const Reader **out); /* The same readers without limit, in r's arena. */
/* Adds "repair: text" to the log that precedes training. */
void repairs_note(Repairs *r, const char *repair, const char *fmt, ...) PRINTF(3, 4);
/* asked.c: is the tensor frozen: not a parameter, or frozen by --freeze? */
bool weight_is_frozen(const Repairs *r, const Weight *w);
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
int64_t codes_scales(const Codes *c); /* number of scales */
/* Computes the numbers that the codes stand for. */
void codes_to_floats(const Codes *c, const void *codes, const TensorData *scale, float *out);

/* ---- names.c */
bool name_is_generated(const char *name); /* by an exporter: val_67, onnx::MatMul_12, 331 */

/* ---- inner_weights.c: tensors in subgraphs of the main graph's nodes */
/* The weight that holds a tensor of a subgraph; NULL: no weight does. */
Weight *inner_weight(const Repairs *r, const TensorProto *t);

#endif

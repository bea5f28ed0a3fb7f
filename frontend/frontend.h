/* Public header of frontend/: ONNX files to IR and back. Only frontend/ knows ONNX, opsets and protobuf. */
#ifndef GRADC_FRONTEND_FRONTEND_H
#define GRADC_FRONTEND_FRONTEND_H

#include "format/format.h"
#include "ir/ir.h"

typedef struct {
	const char *name;
	int64_t value;
} DimBinding;
/* A number for each open dimension. */
typedef struct {
	const char *text; /* "batch=8 seq=128" */
	const DimBinding *dims;
	int n_dims;
} Binding;
typedef struct {
	const char *name;
	enum { FILL_ONES, FILL_ZEROS, FILL_IOTA, FILL_VALUE } kind;
	double value;
} Fill;
typedef struct {
	const char *a, *b; /* b NULL: --no-tie A */
	bool untie;
} TieOption;

/* Source of an activation's scale. */
typedef enum {
	ACTIVATIONS_STATIC,  /* one range, of calibration data or of training's batches */
	ACTIVATIONS_DYNAMIC, /* each tensor itself */
	ACTIVATIONS_TOKEN,   /* each row along the last axis */
	ACTIVATIONS_FLOAT,   /* activations stay floats */
} ActivationScales;
typedef struct {
	DType weight_type, activation_type;
	ActivationScales activations;
	bool per_channel; /* a weight has a scale per output channel */
	/* length of a weight's blocks along its inputs, each with a scale; 0: no blocks */
	int64_t block;
	bool keep_bias; /* biases stay floats */
	bool add_bias;  /* convolutions and Gemms without a bias get a bias of zeros */
	/* results of convolutions become codes, too, as integer kernels write them */
	bool results;
	bool tables;      /* tables whose rows Gather picks become codes, too */
	bool quiet;       /* no warnings of products that are not quantized */
	bool divides;     /* a block must divide its axis; otherwise an error */
	bool shapes_only; /* numbers may be missing: QuantizedTensor has NULL then */
	/* globs for names of nodes, NULL-terminated; `only` empty: all nodes */
	const char *const *only, *const *skip;
} QuantizeOptions;
typedef enum { QUANTIZED_ACTIVATION, QUANTIZED_WEIGHT, QUANTIZED_BIAS } QuantizedKind;
typedef struct {
	void *node; /* node of the file's graph; NULL: the value is an output of the graph */
	int input;
} QuantizedReader;
typedef struct QuantizedTensor QuantizedTensor;
struct QuantizedTensor {
	QuantizedKind kind;
	int number; /* in the list of all quantized tensors, and of the module's QuantizedOperand */
	const char *name;  /* name of the ONNX value */
	const char *node;  /* name of its first reader */
	DType type;        /* type of a code */
	Ints shape, group; /* of a weight or bias; a block of shape `group` has one scale */
	int axis;          /* axis along which scales differ; -1: one scale */
	/* length of a weight's blocks along its inputs, or of an activation's rows */
	int64_t block;
	int64_t n_scales;
	/* n numbers of a weight or bias, owned by the model; NULL: missing (shapes_only) */
	const float *numbers;
	int64_t n;
	/* for a bias: its scale is the product of their scales */
	const QuantizedTensor *input, *weight;
	/* For a weight: the only node that multiplies by it from the right (NULL: several nodes, or
	 * from the left), the axis of its outputs, and the axis that the product sums over. */
	void *product;
	int channel_axis, input_axis;
	/* For a matrix: the value whose last axis the product sums over; NULL: another product. */
	const char *product_input;
	ActivationScales activations; /* for an activation */
	bool is_running; /* of static activations in training: the range follows the batches */
	/* each row has a scale, but the rank is unknown: see quantized_is_vector */
	bool may_be_vector;
	/* n_scales numbers of the caller; NULL: computed from the values (dynamic, token) */
	float *scale;
	int32_t *zero; /* n_scales zero points, likewise */
	VEC(QuantizedReader) readers;
	/* the products whose operand it is: a weight's reader may be a Transpose before the product */
	VEC(QuantizedReader) products;
	void *maker; /* node that makes a result which is an output of the graph; else NULL */
	/* Names, set when the tensor is written: `output` is the dequantized value, which the
	 * readers read. */
	const char *output, *codes, *scales, *zeros;
};
typedef VEC(QuantizedTensor *) QuantizedTensors;
/* The bias behind a weight's product, and how to correct it. mean[c] is the mean of channel c of the
 * product's input x: bias -= factor * sum over c of (dequantized weight - weight) * mean[c]. */
typedef struct {
	const char *name;       /* name of an initializer; NULL: no bias to correct */
	QuantizedTensor *codes; /* the bias in codes; NULL: it stays floats */
	Ints shape;
	int64_t n; /* number of the result's channels */
	const float *floats;
	const char *x;
	/* axis of the channels that the product sums over; negative: from the end */
	int x_axis;
	int64_t x_channels; /* its size */
	int64_t group;      /* groups of a convolution, else 1 */
	bool is_transposed; /* ConvTranspose: groups lie along the weight's inputs */
	double factor;
} ProductBias;
/* Quantization-aware training: inputs of products are quantized and dequantized. */
typedef struct {
	QuantizedTensors tensors;
	int opset; /* opset of the exported model; 0: the model's own */
} FakeQuantization;

/* An input of `gradc run --input`, or a result. */
typedef struct {
	const char *name;
	DType dtype;
	int rank;
	int64_t dims[MAX_RANK];
	const void *data;
} NamedTensor;
/* An input or output of the graph that is a list: a sequence, an optional tensor, or an optional
 * sequence. Each element becomes an input or output of its own: NAME[0], NAME[1] ... */
typedef struct {
	const char *name;
	bool sequence, optional;
	bool absent; /* an optional without content */
	int n;
	/* elements of an input; NULL: an output, whose elements are results from `first` on */
	const NamedTensor *elements;
	int first;
} GivenList;

/* --batch-axis: the axis of an input that counts rows; -1: no axis does. */
typedef struct {
	const char *input;
	int axis;
} BatchAxisOption;

/* --bound: the largest size of an operator's result, if the size depends on data. */
typedef struct {
	const char *name; /* name of the result */
	int64_t value;
	bool *used;
} SizeBound;
/* A padded output: result `first`, followed by its count. */
typedef struct {
	const char *name;
	int axis, first;
} PaddedOutput;

typedef struct {
	const Binding *bindings; /* at least one; each has its own functions over the same states */
	int n_bindings;
	int64_t batch; /* --batch; 0: not given */
	const BatchAxisOption *batch_axes;
	int n_batch_axes;
	/* Treatment of dimensions that nothing binds. */
	enum { OPEN_ERROR, OPEN_ONE } open_dims;
	const Fill *fills;
	int n_fills;
	/* Inputs whose numbers are known at import, for example axes and sizes. The imported module
	 * is right only for these numbers. They stay inputs. */
	const NamedTensor *given;
	int n_given;
	const SizeBound *bounds;
	int n_bounds;
	const GivenList *lists; /* lists whose lengths and shapes the module is built for */
	int n_lists;
	const TieOption *ties;
	int n_ties;
	const char *const *repairs; /* --repair, NULL-terminated; NULL: not given */
	const char *const *no_repairs;
	/* --train, --freeze and so on, in order. A tensor whose full name is the glob of a rule
	 * `train` is a parameter whatever the file says. Freezing decides whether a batch norm uses
	 * batch statistics. */
	ParameterRules rules;
	bool update_statistics; /* --statistics=update: frozen batch norms update statistics, too */
	bool restore_train_mode; /* --train-mode=restore */
	bool train_mode_given;   /* --train-mode, whatever its value */
	bool sync_batch_norm;    /* --sync-batchnorm: batch norms use the batch of all ranks */
	bool keep_metadata;
	bool forward_only;          /* nothing will be trained: codes stay codes */
	FakeQuantization *quantize; /* --quantize; NULL: not given */
	bool shapes_only;           /* --init random: weights may be missing */
	/* further values that become results, NULL-terminated; NULL: no further ones */
	const char *const *outputs;
} ImportOptions;

/* A graph input or output as the file declares it. */
typedef struct {
	const char *name;
	DType dtype; /* type in the file */
	int rank;
	int64_t dims[MAX_RANK];        /* bound sizes */
	const char *symbols[MAX_RANK]; /* NULL: a number in the file; "": an unnamed dimension */
	int batch_axis;   /* axis that --batch binds: the leading axis, or one called batch */
	bool open_batch;  /* the batch axis is symbolic, unnamed or open */
	bool known_batch; /* the batch axis is called batch, or --batch-axis gives it */
	/* The batch axis counts rows (frontend/import/rows.c). If the file leaves an input's batch
	 * axis open, it counts rows if its symbol equals that of the first input, is missing, or is
	 * bound by --batch. In a file without open dimensions it counts rows if its size equals that
	 * of the first input. For an output, the graph decides. */
	bool has_rows;
} ImportPort;

typedef VEC(ImportPort) ImportPorts;

/* Inputs and outputs of the graph under one binding. */
typedef struct {
	const char *text;
	ImportPorts inputs; /* in file order, without inputs that initializers or --fill provide */
	ImportPorts outputs;
	VEC(GivenList) lists; /* outputs that are lists, in order */
	VEC(PaddedOutput) padded;
	/* number of samples: the batch axis of the first open input, else of the first input */
	int64_t rows;
} ImportBinding;

/* A float tensor that may be a parameter or not: the file does not tell. */
typedef struct {
	const char *name;
	const char *reasons_for, *reasons_against; /* for and against being a parameter */
	const char *option;                        /* option that decides otherwise */
	bool trains;                               /* decision without that option */
	const State *state;                        /* NULL: it is a constant of the graph */
} ImportDoubt;

/* A float tensor of the file that became a constant: it has no state. */
typedef struct {
	const char *name, *path, *why;
	const char *option; /* option that makes it a parameter; NULL: nothing reads the tensor */
	Type type;
} ImportConstant;

/* Tensors with the same verdict, or in doubt. --train and --freeze take a group as @NAME. */
typedef struct {
	const char *name;
	int n;
} ImportGroup;

typedef struct {
	const char *path;
	int64_t ir_version, opset; /* opset of ai.onnx */
	const char *producer;
	int n_nodes, n_functions;
	VEC(ImportBinding) bindings;
	StringList repairs;       /* "transposes: val_67 of h.0.fc.weight" ... */
	StringList notes;         /* facts about the file to know before training */
	StringList training_form; /* nodes in training form: batch norm "bn" */
	/* some of them run in training form: their layers are not frozen */
	bool computes_training_form;
	VEC(ImportDoubt) doubts; /* in file order */
	VEC(ImportGroup) groups;
	VEC(ImportConstant) constants;  /* in file order */
	VEC(StateSource) state_sources; /* indexed by state id */
	struct Model *model;            /* the parsed file */
} Import;

typedef struct Model Model; /* An ONNX file: scanned, unpacked, checked, not yet imported. */

/* ---- adapter_modules.c: the result is in the module's arena */
AdapterModules model_adapter_modules(const Module *m, const Adapter *a);

/* ---- model.c */
/* Reads and checks the whole file and reports every fault. NULL after any fault. Exit codes: 3
 * malformed, 4 unsupported, 5 file or system. */
Model *model_open(const char *path, Diag *diag);
void model_close(Model *model);

/* ---- export/write.c */
/* Returns the bytes of an ONNX file with a function of the module; in the arena. The file's outputs
 * are the function's results, by name. For @accumulate the outputs are those of one micro-batch:
 * "loss", the mean, and "grad.NAME" for each trained parameter. NULL after reporting. */
uint8_t *module_encode_onnx(const Module *m, const Function *f, Arena *arena, Diag *diag,
                            size_t *size);

/* ---- import/import.c */
/* Imports the graph as a module. For each binding (see Function.binding) it has a function of role
 * forward, (inputs) -> (outputs), and one of role inference if that differs. All functions share the
 * states: parameters and running statistics. Each state has kind, lifetime, trainable, why, decay
 * (true for all parameters, as in PyTorch's single parameter group) and lr_scale 1.
 * `module->import` is an Import in the module's arena. The model must outlive the module. Under
 * OPEN_ERROR, one EXIT_USAGE error lists all open dimensions. NULL after any fault; all faults are
 * reported. */
Module *model_import(Model *model, const ImportOptions *options, Diag *diag);

/* ---- model.c */
/* The effort of an import, independent of the machine: one step per node, with functions inlined,
 * and one per 1024 elements of initializers. Unrolled loops are not counted. At least 1. */
int64_t model_import_steps(const Model *model);

/* ---- import/ports.c */
/* Visits the open dimensions of the inputs, so that `run` can bind them from its files. name: the
 * symbol, or INPUT[AXIS] if there is no symbol. rows: --batch binds the dimension. Of the options
 * only batch_axes are used. */
void model_open_dims(const Model *model, const ImportOptions *o,
                     void (*visit)(void *ctx, const char *input, int axis, const char *name,
                                   bool rows),
                     void *ctx);

/* ---- file/nodes.c */
/* A node of the main graph, with model-local functions inlined. */
typedef struct {
	const char *name; /* as in locations; never empty */
	const char *op, *domain;
	/* scopes by torch's exporter: "['', 'layers', 'layers.1', 'add']"; "": unknown */
	const char *scopes;
	const char *const *inputs, *const *outputs;
	int n_inputs, n_outputs;
} GraphNode;
void model_nodes(const Model *model, void (*visit)(void *ctx, const GraphNode *node), void *ctx);

/* ---- file/external_files.c */
/* Visits the absolute paths where the files of the model's tensors may be, in each
 * of the model's folders. */
void model_external_files(const Model *model, void (*visit)(void *ctx, const char *path),
                          void *ctx);

/* ---- export/export.c */
/* Writes the template of the exported file into the writer's export and literal sections. Records
 * refer to states by their id in m. */
bool model_export_template(const Module *m, FormatWriter *w, Diag *diag);

/* ---- import/loss_graph.c */
/* Adds another ONNX file's graph to the function under construction (--loss onnx:FILE). An input
 * named like a value in `names` is joined with it; other inputs become parameters of the function;
 * initializers become constants. Returns the graph's outputs; NULL after reporting. */
Value **model_inline(Model *loss, Builder *b, const char *const *names, Value *const *values,
                     int n_values, int *n_outputs, Diag *diag);

/* ---- frontend/edit: the functions of `gradc quantize` */
/* Brings nodes to inference form: batch norms use running statistics, Dropout becomes Identity.
 * Warns if the file has nodes in training form. False after reporting: a node reads a result that
 * only training form has. */
bool model_use_inference_form(Model *model, Diag *diag);
/* Folds batch norms in inference form into the convolutions before them; reports how many remain. */
void model_fold_batch_norms(Model *model, Diag *diag);
/* Moves factors between the weights of consecutive products, so that a weight's channels have
 * similar ranges. */
void model_equalize(Model *model, Diag *diag);
/* Fills out[i] with the bias of list item i's product; its name is NULL if there is no bias to
 * correct. Returns the number of weights without a bias. */
int model_find_biases(Model *model, const QuantizedTensors *list, ProductBias *out, Diag *diag);
void model_set_bias(Model *model, const ProductBias *bias, const float *numbers);
/* Multiplies the matrices in `readers`, which all read one value, by s[input], and divides the value
 * by s. The division is done in constants that the value is made of, if no other nodes read it; else
 * by a Mul. list: all quantized tensors. */
void model_scale_inputs(Model *model, const QuantizedTensors *readers, const QuantizedTensors *list,
                        const float *s, Diag *diag);
/* For an activation with a scale per row whose rank turns out to be 1. ONNX has no blocks for
 * vectors; the tensor gets one scale. */
void quantized_is_vector(QuantizedTensor *t);
/* Finds the tensors to quantize, in graph order; false after reporting. */
bool model_quantize_find(Model *model, const QuantizeOptions *options, Arena *arena,
                         QuantizedTensors *out, Diag *diag);
Groups quantized_groups(const QuantizedTensor *t);
/* Does the model's opset, or `opset` (0: the model's), have all needed forms of codes? Raises the
 * model to `opset`. False after reporting. */
bool model_quantize_opset(Model *model, const QuantizedTensors *list, int opset, Diag *diag);
/* Warns of forms that onnxruntime's CPU cannot run. */
void model_quantize_warn(const QuantizedTensors *list, Diag *diag);
/* Writes the quantized model; opset 0: the model's own. False after reporting. The model must not be
 * used afterwards. */
bool model_quantize_write(Model *model, QuantizedTensors *list, int opset, const char *path,
                          Diag *diag);

/* ---- training_info.c: the training algorithm in the file */
typedef struct {
	const char *loss;        /* name of the loss value */
	const char *optimizer;   /* as --optimizer takes it */
	StringList parameters;   /* names of initializers */
	StringList first_values; /* "NAME=HOW", as --init takes it */
} TrainingInfo;
/* Adds the loss's nodes and inputs to the model; reports unsupported algorithms. */
bool model_take_training(Model *model, TrainingInfo *out, Diag *diag);

/* ---- import/importers.c */
/* A row of `gradc ops`; importer_rows visits each importer row. */
typedef struct {
	const char *domain, *name;
	int since, until; /* until 0: no last opset */
	/* false: results are not floats, or do not change with small changes of a float input */
	bool gradient;
} OpsetRow;
void importer_rows(void (*visit)(void *ctx, const OpsetRow *row), void *ctx);

/* ---- file/tensor_file.c */
/* TensorProto files, as in ONNX's test data. */
Status tensor_proto_read(Arena *arena, const char *path, DType *dtype, int *rank,
                         int64_t dims[MAX_RANK], void **data);
Status tensor_proto_write(const char *path, const char *name, DType dtype, int rank,
                          const int64_t *dims, const void *data);

/* ---- file/list_file.c */
/* SequenceProto and OptionalProto files, according to list->sequence and list->optional. */
Status list_proto_read(Arena *arena, const char *path, GivenList *list);
Status list_proto_write(const char *path, const GivenList *list);

/* ---- import/list_ports.c */
/* Is the graph's input a list? *out says which kind; it has no elements. */
bool model_list_input(const Model *model, const char *name, GivenList *out);

#endif

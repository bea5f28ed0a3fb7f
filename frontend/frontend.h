/* ONNX bytes <-> IR. The only place that knows ONNX, opsets and protobuf. */
#ifndef GRADC_FRONTEND_H
#define GRADC_FRONTEND_H

#include "format/format.h"
#include "ir/ir.h"

typedef struct {
	const char *name;
	int64_t value;
} DimBinding;
/* One choice of numbers for the open dimensions. */
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
	const char *a, *b; /* b NULL for --no-tie A */
	bool untie;
} TieOption;

/* What the scales of activations are computed from. */
typedef enum {
	ACTIVATIONS_STATIC,  /* one range: of calibration data, or of training's batches */
	ACTIVATIONS_DYNAMIC, /* the tensor itself */
	ACTIVATIONS_TOKEN,   /* each row of it, along the last axis */
	ACTIVATIONS_FLOAT,   /* they have none */
} ActivationScales;
typedef struct {
	DType weight_type, activation_type;
	ActivationScales activations;
	bool per_channel; /* a scale for each output channel of a weight */
	int64_t block;    /* a scale for each block along the inputs of a weight; 0: none */
	bool keep_bias;   /* biases stay floats */
	bool add_bias;    /* convolutions and Gemms without a bias get one of zeros */
	bool results;     /* of convolutions become codes, too, as integer kernels write them */
	bool tables;      /* that Gather reads rows of, too */
	bool quiet;       /* products that stay are not told */
	bool divides;     /* a block that does not divide an axis is an error */
	bool shapes_only; /* missing numbers are fine: those of QuantizedTensor are NULL then */
	const char *const *only,
		*const *skip; /* globs over nodes' names, NULL-terminated; only empty: all */
} QuantizeOptions;
typedef enum { QUANTIZED_ACTIVATION, QUANTIZED_WEIGHT, QUANTIZED_BIAS } QuantizedKind;
typedef struct {
	void *node; /* of the file's graph; NULL: the graph gives the value out */
	int input;
} QuantizedReader;
typedef struct QuantizedTensor QuantizedTensor;
struct QuantizedTensor {
	QuantizedKind kind;
	const char *name;  /* of the ONNX value */
	const char *node;  /* the first that reads it */
	DType type;        /* of a code */
	Ints shape, group; /* of weights and biases: places along each axis that share a scale */
	int axis;          /* along which scales differ; -1: there is one */
	int64_t block; /* of a weight's inputs; of an activation with a scale for each row: the row */
	int64_t n_scales;
	const float *
		numbers; /* n, of weights and biases; the model's; NULL where shapes_only left them out */
	int64_t n;
	const QuantizedTensor *input, *weight; /* of a bias, whose scale is the product of theirs */
	/* Of a weight: the one node that multiplies by it from the right, NULL: several do, or from the left; its axes that are
	 * outputs and that are added up. */
	void *product;
	int channel_axis, input_axis;
	/* Of a matrix: the value whose last axis its product adds up; NULL: another product. */
	const char *product_input;
	ActivationScales activations; /* of an activation */
	bool may_be_vector; /* rows have their scales, and nothing declares how many there are: see quantized_is_vector */
	float *scale;  /* the caller's, n_scales; NULL: computed from the values (dynamic, token) */
	int32_t *zero; /* likewise */
	VEC(QuantizedReader) readers;
	void *maker; /* of a result that the graph gives out: who makes it; else NULL */
	/* Set when it is written: what readers read, and before it the codes, their scales and zero points. */
	const char *output, *codes, *scales, *zeros;
	/* In training, NULL where there is none. Of a weight: the scales, learned. Of a static activation: its range, and what is learned
	 * beyond the scale and zero point of that range. */
	State *learned, *low, *high, *scale_shift, *zero_shift;
};
typedef VEC(QuantizedTensor *) QuantizedTensors;
/* The bias behind a weight's product, and how the mean of what the product reads gets into it: with the mean[c] of each channel of x,
 * bias -= factor * sum over c of (codes' weight - weight) * mean[c]. */
typedef struct {
	const char *name;       /* of an initializer; NULL: no bias to correct */
	QuantizedTensor *codes; /* the same where it becomes codes, else NULL */
	Ints shape;
	int64_t n; /* channels of the result */
	const float *floats;
	const char *x;
	int x_axis;         /* of the channels that are added up; from the end where negative */
	int64_t x_channels; /* along it */
	int64_t group;      /* of a convolution, else 1 */
	bool is_transposed; /* ConvTranspose: groups lie along the weight's inputs */
	double factor;
} ProductBias;
/* Quantization-aware training: what products read becomes codes and numbers again. */
typedef struct {
	QuantizedTensors tensors;
	double averaging;     /* a batch's part in a static range: PyTorch's averaging_constant */
	int64_t freeze_after; /* so many updates static ranges stay; 0: never */
	bool learn_scales;    /* scales of weights and of static activations are parameters */
	bool learn_zeros;     /* zero points of static activations, too */
	int opset;            /* of the exported model; 0: its own */
} FakeQuantization;

/* An input of `gradc run --input`, or a result. */
typedef struct {
	const char *name;
	DType dtype;
	int rank;
	int64_t dims[MAX_RANK];
	const void *data;
} NamedTensor;
/* A graph's input or output that is a list: a sequence, an optional tensor, or an optional sequence. Its elements are inputs and
 * outputs of their own, NAME[0], NAME[1] ... */
typedef struct {
	const char *name;
	bool sequence, optional;
	bool absent; /* an optional that has nothing */
	int n;
	const NamedTensor
		*elements; /* of inputs; NULL: of outputs, which are results from `first` on */
	int first;
} GivenList;

/* --batch-axis: which axis of an input counts rows; -1: none does. */
typedef struct {
	const char *input;
	int axis;
} BatchAxisOption;

/* --bound: how many elements an operator's result has at most, where the data say it. */
typedef struct {
	const char *name; /* of the result */
	int64_t value;
	bool *used;
} SizeBound;
/* An output that is padded: result `first`, with the count behind it. */
typedef struct {
	const char *name;
	int axis, first;
} PaddedOutput;

typedef struct {
	const Binding *bindings; /* at least one; each has its own functions over one state table */
	int n_bindings;
	int64_t batch; /* --batch; 0: not given */
	const BatchAxisOption *batch_axes;
	int n_batch_axes;
	/* What becomes of dimensions that nothing binds. */
	enum { OPEN_ERROR, OPEN_ONE } open_dims;
	const Fill *fills;
	int n_fills;
	/* Axes, sizes and the like may depend on these: what is imported is then right for these numbers alone. They stay inputs. */
	const NamedTensor *given;
	int n_given;
	const SizeBound *bounds;
	int n_bounds;
	const GivenList *lists; /* their lengths and shapes are those of the module */
	int n_lists;
	const TieOption *ties;
	int n_ties;
	const char *const *repairs; /* --repair, NULL-terminated; NULL for none */
	const char *const *no_repairs;
	/* "train GLOB", "freeze GLOB" and others, in order, NULL-terminated: a name after train is a parameter
	 * whatever the file says, and who is frozen decides over batch statistics. */
	const char *const *rules;
	bool update_statistics;  /* --statistics=update: also those of frozen batch norms */
	bool restore_train_mode; /* --train-mode=restore */
	bool sync_batch_norm;    /* --sync-batchnorm: batch norms take the batch of all ranks */
	bool keep_metadata;
	bool forward_only;          /* nothing will be trained: codes stay codes */
	FakeQuantization *quantize; /* --quantize; NULL: nothing */
	bool shapes_only;           /* --init random: missing weights are fine */
	const char *const *
		outputs; /* values that are results besides the graph's, NULL-terminated; NULL: none */
} ImportOptions;

/* A graph input or output as the file declares it. */
typedef struct {
	const char *name;
	DType dtype; /* in the file */
	int rank;
	int64_t dims[MAX_RANK];        /* bound */
	const char *symbols[MAX_RANK]; /* NULL where the file has a number; "" where unnamed */
	int batch_axis;   /* that --batch binds: the leading one, or another that is called batch */
	bool open_batch;  /* it was symbolic, unnamed or open */
	bool known_batch; /* it is called batch, or --batch-axis says it */
	/* It counts rows (frontend/import/rows.c). Of inputs whose batch axis the file leaves open, those with the symbol of the
	 * first, without a symbol, or bound by --batch. Of a file without open dimensions, which does not tell, those with
	 * the number of the first. Of outputs: what the graph computes tells. */
	bool has_rows;
	bool rows_mixed; /* of outputs: an element may depend on several rows */
} ImportPort;

typedef VEC(ImportPort) ImportPorts;

/* The graph's ports under one binding. */
typedef struct {
	const char *text;
	ImportPorts inputs; /* in file order, without those that initializers or --fill give */
	ImportPorts outputs;
	VEC(GivenList) lists; /* outputs that are lists, in order */
	VEC(PaddedOutput) padded;
	int64_t rows; /* how many samples: the batch axis of the first open input, else of the first */
} ImportBinding;

/* A float tensor of which the file does not say whether it is a parameter. */
typedef struct {
	const char *name;
	const char *reasons_for, *reasons_against; /* that it is one */
	const char *option;                        /* that settles it otherwise than the table */
	bool trains;                               /* unless it does */
	const State *state;                        /* NULL: a constant of the graph */
} ImportDoubt;

/* A float tensor of the file that is a constant of the graph: it has no state. */
typedef struct {
	const char *name, *path, *why;
	const char *option; /* that makes it a parameter; NULL: nothing reads it */
	Type type;
} ImportConstant;

/* Tensors of one verdict, or in doubt: --train and --freeze take them as @NAME. */
typedef struct {
	const char *name;
	int n;
} ImportGroup;

typedef struct {
	const char *path;
	int64_t ir_version, opset; /* of ai.onnx */
	const char *producer;
	int n_nodes, n_functions;
	VEC(ImportBinding) bindings;
	StringList repairs;          /* "transposes: val_67 of h.0.fc.weight" ... */
	StringList notes;            /* what a person should know of the file before training */
	StringList training_form;    /* nodes that the file has in training form: batch norm "bn" */
	bool computes_training_form; /* some are computed so: their layers are not frozen */
	VEC(ImportDoubt) doubts;     /* in file order */
	VEC(ImportGroup) groups;
	VEC(ImportConstant) constants;  /* likewise */
	VEC(StateSource) state_sources; /* by state id */
	struct Model *model;            /* the parsed file */
} Import;

typedef struct Model Model; /* an ONNX file: scanned, unpacked, checked, not yet lowered */

/* ---- adapter_modules.c: in the module's arena */
AdapterModules model_adapter_modules(const Module *m, const Adapter *a);

/* Reads and checks the whole file: every fault is reported. NULL on any.
 * Exit codes: 3 malformed, 4 unsupported, 5 file or system. */
Model *model_open(const char *path, Diag *diag);
/* A function as an ONNX file (onnx_out/): its results, by their names; of @accumulate one micro-batch, "loss", the mean, and "grad.NAME" of each
 * trained parameter. In the arena; NULL after reporting. */
uint8_t *module_encode_onnx(const Module *m, const Function *f, Arena *arena, Diag *diag,
                            size_t *size);
void model_close(Model *model);
/* The graph as module with one function of role forward, (inputs) -> (outputs), for each binding (see
 * module_program), and one of role inference where that differs, over its states: parameters and running statistics, each with kind, lifetime, trainable, why, decay (true for rank >= 2 or
 * all: as PyTorch's single group, true for all) and lr_scale 1. `module->import` is an Import in
 * the module's arena. The model must outlive the module. Names of open dimensions are listed by one
 * EXIT_USAGE error under OPEN_ERROR. NULL on any fault, after all were reported. */
Module *model_import(Model *model, const ImportOptions *options, Diag *diag);
/* How long an import takes, whatever the machine: one step for each node, functions inlined, and for each 1024 elements of
 * initializers, which are looked through. What loops unroll is not counted. At least 1. */
int64_t model_import_steps(const Model *model);
/* The open dimensions of the inputs, so that `run` can bind them from its files: calls visit(ctx, input, axis,
 * name, rows) for each; its name is its symbol, or INPUT[AXIS] where it has none; rows: --batch binds it. Of the options only
 * batch_axes matter. */
void model_open_dims(const Model *model, const ImportOptions *o,
                     void (*visit)(void *ctx, const char *input, int axis, const char *name,
                                   bool rows),
                     void *ctx);

/* A node of the main graph, model-local functions inlined. */
typedef struct {
	const char *name; /* as in locations; never empty */
	const char *op, *domain;
	const char
		*scopes; /* of torch's exporter: "['', 'layers', 'layers.1', 'add']"; "" for none */
	const char *const *inputs, *const *outputs;
	int n_inputs, n_outputs;
} GraphNode;
void model_nodes(const Model *model, void (*visit)(void *ctx, const GraphNode *node), void *ctx);

/* external_files.c: the absolute paths of the files that the model's tensors name, in each folder where they are looked for. */
void model_external_files(const Model *model, void (*visit)(void *ctx, const char *path),
                          void *ctx);

/* The template of the exported file, into the writer's export and literal sections. States are
 * referred to by their id in m. */
bool model_export_template(const Module *m, FormatWriter *w, Diag *diag);
/* A function over the given values made of another ONNX file's graph (--loss onnx:FILE): inputs
 * named like a value in `names` are joined, the others become parameters of `f`; initializers are
 * constants. Returns the graph's outputs; NULL after reporting. */
Value **model_inline(Model *loss, Builder *b, const char *const *names, Value *const *values,
                     int n_values, int *n_outputs, Diag *diag);

/* ---- quantize_find.c, quantize_write.c: QuantizeLinear and DequantizeLinear put into a file's graph */
/* Batch norms normalize by their running statistics, and Dropout goes; warns where the file has them in training form. False after
 * reporting: something reads what only training has. */
bool model_use_inference_form(Model *model, Diag *diag);
/* Folds batch norms in that form into the convolutions before them; says how many stay. */
void model_fold_batch_norms(Model *model, Diag *diag);
/* Moves factors between the weights of products that follow one another, so that each weight's channels have ranges alike. */
void model_equalize(Model *model, Diag *diag);
/* The bias of each weight's product, n of the list; the others' are NULL by name. How many weights have none. */
int model_find_biases(Model *model, const QuantizedTensors *list, ProductBias *out, Diag *diag);
void model_set_bias(Model *model, const ProductBias *bias, const float *numbers);
/* Multiplies matrices that read one value by s[input], and divides the value: where it is made, if only they read it and what makes
 * it is linear in numbers of the file, else by a Mul. list: all that is quantized. */
void model_scale_inputs(Model *model, const QuantizedTensors *readers, const QuantizedTensors *list,
                        const float *s, Diag *diag);
/* Of an activation with a scale for each row that turns out to be one row: one scale for the tensor, as a block of a vector is none. */
void quantized_is_vector(QuantizedTensor *t);
/* What would be quantized, in the order of the graph; false after reporting. */
bool model_quantize_find(Model *model, const QuantizeOptions *options, Arena *arena,
                         QuantizedTensors *out, Diag *diag);
Groups quantized_groups(const QuantizedTensor *t);
/* Can the model's opset, or `opset` to which it is raised (0: its own), say all that? False after reporting. */
bool model_quantize_opset(Model *model, const QuantizedTensors *list, int opset, Diag *diag);
/* Of what onnxruntime's CPU does not run. */
void model_quantize_warn(const QuantizedTensors *list, Diag *diag);
/* Writes the model with what is quantized; opset 0: its own. False after reporting. The model is of no other use then. */
bool model_quantize_write(Model *model, QuantizedTensors *list, int opset, const char *path,
                          Diag *diag);

/* ---- training_info.c: the training algorithm that the file carries */
typedef struct {
	const char *loss;        /* the value */
	const char *optimizer;   /* as --optimizer takes it */
	StringList parameters;   /* names of initializers */
	StringList first_values; /* "NAME=HOW", as --init takes it */
} TrainingInfo;
/* The nodes and inputs of its loss become the model's; what does not fit is reported. */
bool model_take_training(Model *model, TrainingInfo *out, Diag *diag);

/* What `gradc ops` prints: calls visit for each importer row. */
typedef struct {
	const char *domain, *name;
	int since, until; /* until 0: still current */
	bool gradient; /* false: of results that no small change of a float input changes, or that are no floats */
} OpsetRow;
void importer_rows(void (*visit)(void *ctx, const OpsetRow *row), void *ctx);

/* TensorProto files, as in ONNX's test data. */
Status tensor_proto_read(Arena *arena, const char *path, DType *dtype, int *rank,
                         int64_t dims[MAX_RANK], void **data);
Status tensor_proto_write(const char *path, const char *name, DType dtype, int rank,
                          const int64_t *dims, const void *data);
/* SequenceProto and OptionalProto files, as list->sequence and list->optional say. */
Status list_proto_read(Arena *arena, const char *path, GivenList *list);
Status list_proto_write(const char *path, const GivenList *list);
/* Is the graph's input of that name a list? Says which, without elements. */
bool model_list_input(const Model *model, const char *name, GivenList *out);

#endif

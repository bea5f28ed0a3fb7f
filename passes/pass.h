/* Declarations of the passes. A pass changes a module of the IR; for example, autograd adds the
 * backward pass. Each pass has its own file. The options of a pass are a struct here, so that the
 * driver can set them directly. */
#ifndef GRADC_PASSES_PASS_H
#define GRADC_PASSES_PASS_H

#include "ir/ir.h"

#define PASS(name) extern const PassRow pass_##name;
#include "passes/pass_list.def"
#undef PASS

/* ---- recipes/recipe.c: --precision */
/* A recipe says in which number formats a program computes. */
typedef struct {
	const char *name;       /* "bf16" */
	DType floats;           /* type of every float: F32 or F64 */
	DType products;         /* type of the operands and results of products */
	bool allow_tf32;        /* may products round operands of f32 to 11 bits? */
	const char *loss_scale; /* the rule of --loss-scale if the option is not given */
	bool trains;            /* do weights train that exist only in the type `products`? */
	/* For the forward graph; the backward pass has the types of its operands. Names of ops that compute in f32 or more, whatever the column `precision` of their rows says; ends with NULL. NULL: no
	 * such op. */
	const char *const *high;
} Recipe;
extern const Recipe *const recipe_table[];   /* ends with NULL; the first recipe is the default */
const Recipe *recipe_find(const char *name); /* name NULL: the default; NULL: no such recipe */
/* What the recipe does with the floats of a node. */
Precision recipe_precision(const Recipe *recipe, const Node *n);
/* Do products have another type than the other floats? */
bool recipe_is_mixed(const Recipe *recipe);
/* The recipe that a pass's option `to` names; NULL after reporting. allowed: does the pass take the recipe? */
const Recipe *recipe_of_option(Pass *p, const char *name, bool (*allowed)(const Recipe *recipe));

/* ---- recipes/precision.c */
typedef struct {
	const char *to; /* name of the recipe; NULL: the default */
} PrecisionOptions;

/* ---- quantize/quantize.c */
typedef struct {
	double averaging; /* weight of a batch in a running range: PyTorch's averaging_constant */
	int64_t freeze_after; /* number of updates after which running ranges stay fixed; 0: never */
	bool learn_scales;    /* scales of weights and of running ranges are parameters */
	bool learn_zeros;     /* zero points of running ranges are parameters, too */
	bool inference; /* make functions of role inference, which read the running ranges, for bindings without such functions */
} QuantizePassOptions;

/* ---- lora/choice.c */
/* Settings of a low-rank product; the defaults are PEFT's. */
typedef struct {
	int64_t rank;
	double alpha;
	double dropout; /* probability that an input of the product is dropped, in training */
	bool rslora, dora;
	const char *init, *bits; /* words as given; bits NULL: the weight keeps its numbers */
	FourBit kind;            /* from the word `bits` */
	bool nested;             /* absmax is stored as codes, too */
	bool pissa;              /* from the word `init` */
} LoraSettings;
typedef struct {
	const char *option; /* "lora", "qlora" */
	const char *glob;   /* glob over names and paths of parameters */
	LoraSettings settings;
} LoraChoice;
/* "lora GLOB,rank=8,alpha=16,rslora,dora", "qlora GLOB,bits=nf4,double=on,rank=8"; false after reporting. */
bool lora_parse(const char *text, LoraChoice *out, Arena *arena, Diag *diag);

/* ---- lora.c: the last choice whose glob fits a parameter wins */
typedef struct {
	const char *adapters; /* choices for lora_parse, one per line */
} LoraOptions;

/* ---- trainable.c: the last rule whose glob fits a parameter wins */
typedef struct {
	const char *rules; /* VERB GLOB[=VALUE], one per line; the verbs are names of options */
	bool scales;       /* train scales of codes, unless a rule says otherwise */
} TrainableOptions;

/* ---- quantize/scales.c */
/* The scale of n before reshapes and other views, if n is a `quantize` to less than 32 bits whose scale is a parameter,
 * or a sum with a parameter. NULL: n is no such node. */
Value *scale_of_codes(const Node *n);
State *scale_parameter(Value *scale); /* the parameter in a scale that scale_of_codes returned */
/* Makes the parameters of all scales that scale_of_codes finds trainable, without weight decay. A parameter that holds
 * a scale below LEAST_SCALE is not made trainable, with a warning. Returns the number of `quantize` nodes with such a
 * scale. */
int scales_train(Module *m, Diag *diag);

/* ---- quantize/straight_through.c */
typedef struct {
	/* gradient of trained scales: "lsq"; "torch", "none" or NULL: as in PyTorch */
	const char *learning;
	const char *scale_grad; /* factor of that gradient: "lsq", "inv_n", "none"; NULL: "lsq" */
} StraightThroughOptions;

/* ---- layer_decay.c */
typedef struct {
	double factor; /* factor of the learning rate from one layer to the layer before it; 1: no change */
} LayerDecayOptions;

/* ---- ema.c */
typedef struct {
	double decay; /* decay of the average at each update; 0: no average */
} EmaOptions;

/* ---- working.c */
typedef struct {
	bool all; /* also keep copies of weights that are read without a cast */
} WorkingOptions;

/* ---- loss.c */
/* Values of LossOptions.count if no output holds the count. FOUND: the number by which the graph divides. EVEN: every
 * micro-batch counts the same. */
enum { LOSS_COUNT_FOUND = -1, LOSS_COUNT_EVEN = -2 };
typedef struct {
	const char *kind; /* a name of loss_list.def, or "output" */
	int64_t output;   /* number of the model's output */
	int64_t target;   /* number of the graph input that holds the target; -1: a new input */
	int64_t count; /* of a loss that the graph computes: the output with its count; negative: see above */
	int64_t axis; /* class axis of the output; -1: the axis that the labels lack */
	int64_t rows; /* axis of the output that counts rows; -1: found from the graph */
	int64_t axis_given,
		rows_given; /* axis and rows as --loss gives them, for messages; negative: counted from the last axis */
	bool infers;     /* forward becomes the inference form, if the module has one */
	bool rows_known; /* the file or an option says which axes of inputs count rows */
	double label_smoothing;
	/* name of the constant state with the class weights, f[classes]; NULL: no class weights */
	const char *class_weight;
	const char *settings; /* the loss's own options, "gamma=2 alpha=0.25"; NULL: defaults */
	/* name of the optimizer that needs functions of role estimate; NULL: no optimizer does */
	const char *estimates_for;
} LossOptions;
/* A loss that is being built: the row's function reads output, target and weight, values of @accumulate or @eval, and
 * sets sum and count of the micro-batch. */
typedef struct {
	Builder *b;
	Value *output, *target, *weight; /* weight: [rows], 1 for a real row, 0 for padding */
	const LossOptions *options;
	const Tensor *class_weight; /* [classes]; NULL: no class weights */
	const void *settings;       /* struct of the loss's own options */
	int class_axis;
	BatchAxis rows;     /* row axis of the output */
	Value *sum, *count; /* out: f[], the sum of the loss's terms and of their weights */
	Value *correct;     /* out: f[], correct predictions; NULL: the loss has no accuracy */
	int64_t targets;    /* out: targets in a full micro-batch */
} Loss;
typedef enum { LOSS_TAKES_NUMBERS, LOSS_TAKES_LOGITS, LOSS_TAKES_LOG_PROBABILITIES } LossTakes;
typedef struct {
	const char *name, *doc;
	LossTakes takes; /* form of the output that the loss takes; another form gives a warning */
	bool class_targets; /* targets are integer labels without the class axis; else they have the output's type */
	void (*build)(Loss *l);
	/* The loss's own options, of --loss=NAME,OPTION=VALUE; columns as in PassRow. */
	const PassOption *options;
	size_t options_size;
	const void *defaults;
} LossRow;
extern const LossRow *const loss_table[];
const LossRow *loss_find(const char *name); /* NULL: unknown name */

/* ---- losses/form.c */
bool loss_output_is_sigmoid(const Function *f,
                            int64_t output); /* is the output the result of a sigmoid? */

/* ---- losses/output_rows.c */
/* Does the output of this forward or inference function depend on several rows of a micro-batch?
 * stores = true: also yes if a value that the function stores depends on rows. */
bool loss_rows_mix(const Function *f, int64_t output, bool stores);

/* ---- losses/target.c */
/* Where the rows and the classes of the loss's output lie. */
typedef struct {
	BatchAxis rows;
	int class_axis; /* -1: the loss has no classes */
} LossPlace;
/* Finds the place before the pass runs. false: the pass will report a fault. f: a forward function. */
bool loss_place(Module *m, Function *f, const LossOptions *o, LossPlace *out);

/* ---- losses/own.c */
/* Does the loss that the graph computes divide by a number that depends on the data and is not a
 * known count of targets? Then the mean of the micro-batches' losses is not the mean over the
 * step. */
bool loss_is_uneven(const Function *f, const LossOptions *o);

/* ---- losses/loss.c */
/* Returns a struct of the row's own options: its defaults, changed by the text. NULL after reporting. */
const void *loss_settings(const LossRow *row, const char *text, Arena *arena, Diag *diag);

/* ---- statistics.c */
/* Redirects f's stores to statistics: they store to pending states, which @update commits to the
 * statistics. */
void statistics_make_pending(Function *f, Arena *scratch);

/* ---- autograd.c */
typedef struct {
	/* numbers of the inputs whose gradients @accumulate returns, "0 2"; NULL: no inputs */
	const char *wrt;
	/* type of gradients of parameters below f64: "f32" or "bf16"; NULL: "f32" */
	const char *gradients;
	bool skips_empty; /* a micro-batch with count 0 gets zero gradients, not those of 0/0 */
} AutogradOptions;
/* The state whose number (by default 1) is the factor with which all programs begin the backward pass; made at first
 * use. */
State *loss_scale_state(Module *m);

/* ---- reached.c: by state id: is it a trained parameter on which the loss of some program depends? */
bool *parameters_reached(Module *m, Arena *arena);

/* ---- mixed.c */
typedef struct {
	const char *to; /* name of the recipe; NULL: the default */
	/* globs over ONNX names of nodes that stay f32, one per line; NULL: no such node */
	const char *f32;
	/* "off": trained weights have the type of products; NULL or "on": they are f32 */
	const char *master;
} MixedOptions;

/* ---- inline.c */
typedef struct {
	bool final; /* also inline calls with a custom gradient: autograd has run */
} InlineOptions;

/* ---- loss_scale.c */
/* How the loss scale changes; interval 0: it stays `init`. */
typedef struct {
	double init, growth, backoff, least;
	int64_t interval;   /* good steps until the scale grows */
	int64_t restart;    /* good steps that already count towards the next growth */
	int64_t hysteresis; /* number of overflows until the scale shrinks */
	bool consecutive;   /* only consecutive overflows count: a good step ends the count */
} LossScale;
typedef struct {
	const char *name, *doc;
	LossScale scale;
} LossScaleRow;
extern const LossScaleRow *const loss_scale_table; /* ends with a zero row */
/* "none", "torch", "torch,interval=5", "128"; false after reporting. */
bool loss_scale_parse(const char *text, LossScale *out, Arena *arena, Diag *diag);
/* The states that a loss scale has, and the new values that @update stores to them. */
typedef struct {
	const LossScale *rule;
	State *scale, *good, *hysteresis; /* good, hysteresis: NULL if the scale never changes */
	Value *new_scale, *new_good, *new_hysteresis;
} LossScaling;
LossScaling loss_scale_open(Builder *b, const LossScale *rule);
/* bool[]: is the scale so small already that an overflow would not make it smaller? */
Value *loss_scale_is_least(Builder *b, const LossScaling *s);
/* Builds the new values of the loss scale's states, and sets the fields new_scale, new_good and
 * new_hysteresis of s. overflow: bool[], the loss is finite but the gradients are not. made:
 * bool[], the update is made. */
void loss_scale_update(Builder *b, LossScaling *s, Value *overflow, Value *made);

/* ---- optimizer.c */
enum {
	MAX_MOMENTS = 4, /* states of an optimizer per parameter */
	MAX_NUMBERS = 2, /* states of an optimizer for all parameters */
};
/* The update of one parameter while its nodes are built: values that an optimizer's row reads, and results that the row
 * sets. All values are f32, or f64 in an f64 program. Tensors are vectors of elements, unless the row says `whole` or
 * has moment types. */
typedef struct {
	Builder *b;
	const void *settings; /* struct of the optimizer's own options */
	const double
		/* values of the hyperparameters, by ScalarIndex; NULL: the program's
		 * hyperparameters are used */
		*fixed;
	bool decays;                /* does weight decay apply to the parameter? */
	int inputs_axis;            /* of a matrix: axis over which a product sums; -1: not known */
	Value *param, *grad;        /* grad is already scaled and clipped */
	Value *moment[MAX_MOMENTS]; /* NULL: no such moment */
	Value *numbers[MAX_NUMBERS]; /* f64[]: numbers that all parameters share */
	Value *count;    /* f64[]: targets of the step; in `refresh`, targets of the estimate */
	Value *t;        /* f64[]: number of this update, from 1 */
	Value *lr;       /* f64[]: learning rate times the parameter's lr_scale */
	Value *group_lr; /* f64[]: learning rate without lr_scale */
	Value *decay;    /* f64[]: weight decay; 0 if it does not apply */
	/* out: the new contents; NULL: the content does not change */
	Value *new_param, *new_moment[MAX_MOMENTS], *new_numbers[MAX_NUMBERS];
} Update;
typedef struct {
	const char *name, *doc;
	const char *defaults; /* default hyperparameters, "lr=0.001 beta1=0.9 ...", as in PyTorch */
	const char *moments[MAX_MOMENTS];
	/* Returns which moments are not needed with these settings, as bits (bit i: moment i).
	 * Column NULL: all moments are needed. */
	unsigned (*without)(const void *settings);
	/* Type of moment i, given the parameter's type in the update. Returns NULL if the parameter has no such
	 * moment. Column NULL: moments have the parameter's type. */
	Type (*moment_type)(Module *m, const void *settings, Type param, int moment);
	unsigned starts_as_parameter; /* bit i: moment i begins as a copy of the parameter */
	/* For an optimizer that takes gradients at another point than the parameter: the moment
	 * that holds this point, and that @accumulate reads instead (bit i: moment i). 0:
	 * @accumulate reads the parameter. */
	unsigned gradient_at;
	bool whole; /* parameters and gradients keep their shapes; else they are vectors */
	/* May the optimizer update the parameter? If not, the parameter gets the optimizer that `fallback` returns,
	 * as text: "adamw,lr=0.001". Column NULL: it updates all parameters. */
	bool (*takes)(const Module *m, const State *param);
	const char *(*fallback)(const void *settings, Arena *arena);
	struct {
		const char *name;
		double first;
	} numbers[MAX_NUMBERS]; /* states for all parameters, f64[]; name NULL: no such state */
	void (*update)(Update *u);
	/* For optimizers that estimate something from labels drawn from the model. every: steps from one estimate to
	 * the next. refresh: sets moments and numbers from the estimate's mean gradients; the contents of fields left
	 * unset do not change. NULL: no estimates. */
	int64_t (*every)(const void *settings);
	void (*refresh)(Update *u);
	/* The optimizer's own options, of --optimizer=NAME,KEY=VALUE; columns as in PassRow. */
	const PassOption *options;
	size_t options_size;
	const void *settings; /* struct of default options */
} OptimizerRow;
extern const OptimizerRow *const optimizer_table[];

/* ---- update/optimizer_choice.c */
const OptimizerRow *optimizer_find(const char *name); /* NULL: unknown name */
/* An optimizer with settings. */
typedef struct {
	const OptimizerRow *row;
	const void *settings;
	/* name with all settings except values of hyperparameters; a checkpoint must have the same
	 * name */
	const char *name;
	const char *defaults; /* the row's default hyperparameters, changed by the settings */
	/* the text that was parsed: the executable's settings and reproducers show it */
	const char *text;
} OptimizerChoice;
/* Parses "NAME" or "NAME,KEY=VALUE,...". Keys are the row's own options and its hyperparameters, whose defaults
 * change. text NULL: the default optimizer. False after reporting. */
bool optimizer_parse(const char *text, OptimizerChoice *out, Arena *arena, Diag *diag);
/* The optimizer of a group of parameters. */
typedef struct {
	const char *glob; /* glob over names of parameters; NULL: all parameters */
	OptimizerChoice choice;
	/* true: the hyperparameters are those of `fixed`, and the learning rate follows the
	 * schedule. false: they are the program's hyperparameters */
	bool is_fixed;
	double fixed[N_SCALARS];
} OptimizerGroup;
typedef VEC(OptimizerGroup) OptimizerGroups;
/* Steps from one estimate of the optimizer to the next; 0: no estimates. */
int64_t optimizer_every(const OptimizerChoice *c);
/* "GLOB=NAME,KEY=VALUE"; false after reporting. */
bool optimizer_group_parse(const char *text, OptimizerGroup *out, Arena *arena, Diag *diag);
/* Options of the pass. Text is parsed once: by the command line, or by the parser of the option's row. */
typedef struct {
	OptimizerChoice choice; /* row NULL: the default optimizer */
	OptimizerGroups groups; /* other optimizers of some parameters */
	const char *loss_scale; /* text for loss_scale_parse; NULL: no loss scale */
	const char *moments;    /* type of the moments, "f32" or "bf16"; NULL: type of the update */
	const char *rounding; /* rounding of 16-bit weights and moments: "nearest", "stochastic" */
} OptimizerOptions;
/* Parsers of the options `name`, one OptimizerChoice, and `groups`, OptimizerGroups with one group per line. */
extern const OptionParser optimizer_choice_parser, optimizer_groups_parser;

/* ---- update/rows.c */
/* For rows of optimizers. update_scalar: a hyperparameter, f64[] or u64[]; update_spread: a scalar
 * f64[] repeated to the type of `param`. */
Value *update_scalar(Update *u, ScalarIndex index);
Value *update_spread(Update *u, Value *scalar);
Value *update_number(Update *u, double x); /* f64[] */
/* x times v, where v has the type of `param`. update_times: x is an f64[] value; update_scaled: x
 * is a constant. */
Value *update_times(Update *u, Value *x, Value *v);
Value *update_scaled(Update *u, double x, Value *v);
/* grad + decay param: weight decay as in PyTorch's Adam */
Value *update_decayed(Update *u);
/* param (1 - lr decay): decoupled weight decay, as AdamW's */
Value *update_shrunk(Update *u);
/* m + (1 - beta)(x - m): torch's lerp; its rounding differs from update_average's */
Value *update_lerp(Update *u, Value *beta, Value *m, Value *x);
/* beta m + (1 - beta) x */
Value *update_average(Update *u, Value *beta, Value *m, Value *x);
/* 1 - beta^t, f64[]: the divisor of a moment that began at 0. */
Value *update_bias_correction(Update *u, ScalarIndex beta);

/* ---- units.c */
typedef struct {
	/* most bytes of parameters in a unit of several layer blocks; a larger block is a unit of its own */
	int64_t unit_bytes;
	/* a unit of several blocks also has at most this part of the model: 8: an eighth; 1: any part */
	int64_t parts;
} UnitsOptions;

/* ---- row_check.c: reports every column that a row lacks or has wrong. Returns true if there is no fault. */
bool optimizer_row_check(const OptimizerRow *row, Diag *diag);
bool loss_row_check(const LossRow *row, Diag *diag);
bool recipe_row_check(const Recipe *recipe, Diag *diag);
bool pass_row_check(const PassRow *row, Diag *diag);
bool pass_tables_check(Diag *diag); /* all optimizers and losses */

#endif

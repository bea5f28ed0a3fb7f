/* IR -> IR, one file per pass. Options of a pass are a struct here, so that the driver can fill them in
 * without text. */
#ifndef GRADC_PASSES_PASS_H
#define GRADC_PASSES_PASS_H

#include "ir/ir.h"

#define PASS(name) extern const PassRow pass_##name;
#include "passes/pass_list.def"
#undef PASS

/* ---- simplify.c */
/* Nodes whose results nobody reads; true: there were some. */
bool function_drop_unread(Function *f);

/* ---- precision.c */
typedef struct {
	const char *to; /* "f32" or "f64": the type of every float */
} PrecisionOptions;

/* ---- lora/choice.c */
/* Of a low-rank product; the defaults are PEFT's. */
typedef struct {
	int64_t rank;
	double alpha;
	double dropout; /* of what the first part multiplies, in training */
	bool rslora, dora;
	const char *init, *bits; /* as they are given; bits NULL: the weight keeps its numbers */
	FourBit kind;            /* of bits */
	bool nested;             /* absmax is codes, too */
	bool pissa;              /* of init */
} LoraSettings;
typedef struct {
	const char *option; /* "lora", "qlora" */
	const char *glob;   /* over names and paths */
	LoraSettings settings;
} LoraChoice;
/* "lora GLOB,rank=8,alpha=16,rslora,dora", "qlora GLOB,bits=nf4,double=on,rank=8"; false after reporting. */
bool lora_parse(const char *text, LoraChoice *out, Arena *arena, Diag *diag);

/* ---- lora.c: later globs win */
typedef struct {
	const char *adapters; /* as lora_parse takes them, one a line */
} LoraOptions;

/* ---- trainable.c: later globs win */
typedef struct {
	const char *rules; /* VERB GLOB[=VALUE], one a line; verbs: the options' names */
	bool scales;       /* scales of codes are trained, unless a rule says otherwise */
} TrainableOptions;

/* ---- scales.c */
/* What the scale of a node `quantize` is a view of: a parameter, or a sum with one. NULL: it is no such node, or its scale neither. */
Value *scale_of_codes(const Node *n);
State *scale_parameter(Value *scale); /* the parameter of what scale_of_codes gave */
/* Makes all such parameters trained ones, without decay; those that hold less than LEAST_SCALE stay, with a warning. How often scales stand
 * in the module. */
int scales_train(Module *m, Diag *diag);

/* ---- straight_through.c */
typedef struct {
	const char *
		learning; /* of scales that are trained: "lsq"; "torch", "none", NULL: as PyTorch's */
	const char *scale_grad; /* "lsq", "inv_n", "none"; NULL: lsq */
} StraightThroughOptions;

/* ---- layer_decay.c */
typedef struct {
	double factor; /* of the learning rate, from a layer to the one before it; 1: nothing changes */
} LayerDecayOptions;

/* ---- ema.c */
typedef struct {
	double decay; /* of the average, at each update; 0: there is none */
} EmaOptions;

/* ---- working.c */
typedef struct {
	bool all; /* weights that are read as they are have a copy, too */
} WorkingOptions;

/* ---- loss.c */
/* LossOptions.count where no output has it: what the graph divides by; or each micro-batch counts the same. */
enum { LOSS_COUNT_FOUND = -1, LOSS_COUNT_EVEN = -2 };
typedef struct {
	const char *kind; /* a name of loss_list.def, or "output" */
	int64_t output;   /* of the model, from 0 */
	int64_t target;   /* number of the graph input that holds the target; -1: a new input */
	int64_t count;    /* output loss: the output that holds its count; negative: see above */
	int64_t axis;     /* class axis; -1: where the labels lack one */
	int64_t rows; /* axis of the output that counts rows; -1: that which the graph computes */
	int64_t axis_given,
		rows_given; /* negative: --loss counts from the last axis, and messages do */
	bool rows_known;    /* the axes of inputs that count rows are called batch, or given */
	double label_smoothing;
	const char *class_weight; /* the constant state that holds them, f[classes]; NULL: none */
	const char *settings;     /* the row's own options, "gamma=2 alpha=0.25"; NULL: defaults */
	const char *
		estimates_for; /* the optimizer that needs functions of role estimate; NULL: none */
} LossOptions;
/* What a loss is made of: sum and count of the micro-batch, over values in @accumulate or @eval. */
typedef struct {
	Builder *b;
	Value *output, *target, *weight; /* weight: [rows], 1 for a real row */
	const LossOptions *options;
	const Tensor *class_weight; /* [classes]; NULL: none */
	const void *settings;       /* the struct of the row's own options */
	int class_axis;
	BatchAxis rows;     /* of the output */
	Value *sum, *count; /* f[]: out */
	Value *correct;     /* f[]: hits, for accuracy; NULL where it makes no sense */
	int64_t targets;    /* in a full micro-batch */
} Loss;
typedef enum { LOSS_TAKES_NUMBERS, LOSS_TAKES_LOGITS, LOSS_TAKES_LOG_PROBABILITIES } LossTakes;
typedef struct {
	const char *name, *doc;
	LossTakes takes;    /* what is said where the output is something else */
	bool class_targets; /* integer labels of one axis less; else as the output */
	void (*build)(Loss *l);
	/* Options of its own, of --loss=NAME,OPTION=VALUE; as in PassRow. */
	const PassOption *options;
	size_t options_size;
	const void *defaults;
} LossRow;
extern const LossRow *const loss_table[];
const LossRow *loss_find(const char *name); /* NULL: unknown */
/* Does the output of this forward or inference function, or what it stores, depend on several rows of a micro-batch? */
bool loss_rows_mix(const Function *f, int64_t output, bool stores);
/* Is the loss that the graph computes a mean over a number of targets that data decide and nobody says? Means of micro-batches
 * do not make the mean of a step. */
bool loss_is_uneven(const Function *f, const LossOptions *o);
/* A struct of the row's own options: its defaults, then the text; NULL after reporting. */
const void *loss_settings(const LossRow *row, const char *text, Arena *arena, Diag *diag);

/* ---- statistics.c */
/* f's stores of statistics become stores of pending states, which @update commits. */
void statistics_make_pending(Function *f, Arena *scratch);

/* ---- autograd.c */
typedef struct {
	const char
		*wrt; /* numbers of the inputs whose gradients @accumulate returns, "0 2"; NULL */
	const char *
		gradients; /* the type of the parameters' f32 gradients, "f32" or "bf16"; NULL: f32 */
	bool skips_empty; /* a micro-batch whose count is 0 has no gradients, whatever 0/0 makes of them */
} AutogradOptions;
/* What all programs seed the backward with, made at first use. It is 1 where nothing changes it. */
State *loss_scale_state(Module *m);

/* ---- reached.c: by state id, is it a trained parameter on which the loss of some program depends? */
bool *parameters_reached(Module *m, Arena *arena);

/* ---- mixed.c */
typedef struct {
	const char *
		to; /* "bf16", "f16": of products' operands and results; NULL or "f32": nothing changes */
	const char *f32; /* GLOB of nodes that stay f32, by ONNX name, one a line; NULL: none */
	const char
		*master; /* "off": trained weights are of `to`, too; NULL or "on": they are f32 */
} MixedOptions;

/* ---- inline.c */
typedef struct {
	bool final; /* calls with a custom gradient, too: autograd has run */
} InlineOptions;

/* ---- loss_scale.c */
/* How the scale of the loss changes; interval 0: it stays `init`. */
typedef struct {
	double init, growth, backoff, least;
	int64_t interval;   /* good steps until it grows */
	int64_t restart;    /* good steps that count for the next time */
	int64_t hysteresis; /* the overflow that makes it smaller */
	bool consecutive;   /* of those in a row: a good step begins to count anew */
} LossScale;
typedef struct {
	const char *name, *doc;
	LossScale scale;
} LossScaleRow;
extern const LossScaleRow *const loss_scale_table; /* ends with a zero row */
/* "none", "torch", "torch,interval=5", "128"; false after reporting. */
bool loss_scale_parse(const char *text, LossScale *out, Arena *arena, Diag *diag);
/* The states of a scale and what they get, in @update. */
typedef struct {
	const LossScale *rule;
	State *scale, *good, *hysteresis; /* the last two: NULL where the scale stays */
	Value *new_scale, *new_good, *new_hysteresis;
} LossScaling;
LossScaling loss_scale_open(Builder *b, const LossScale *rule);
/* bool[]: no smaller scale is left for an overflow. */
Value *loss_scale_is_least(Builder *b, const LossScaling *s);
/* overflow: bool[], the gradients were not finite, the loss was; made: bool[], the update is made. Fills new_... */
void loss_scale_update(Builder *b, LossScaling *s, Value *overflow, Value *made);

/* ---- optimizer.c */
typedef struct {
	const char *name;       /* "adamw", "rmsprop,centered=true" */
	const char *loss_scale; /* as loss_scale_parse takes it; NULL: none */
	const char *
		groups; /* other optimizers, as optimizer_group_parse takes them, one a line; NULL: none */
	const char *moments;  /* their type, "f32" or "bf16"; NULL: that of the update */
	const char *rounding; /* of weights and moments of 16 bits: "nearest", "stochastic" */
} OptimizerOptions;
enum {
	MAX_MOMENTS = 4, /* states of an optimizer for each parameter */
	MAX_NUMBERS = 2, /* and for all of them */
};
/* One optimizer: its moments and the update of a parameter, all of f32, or of f64 in a program of it; elements in a row, where the
 * row does not say otherwise. */
typedef struct {
	Builder *b;
	const void *settings; /* the struct of the row's own options */
	const double *fixed;  /* hyperparameters, by ScalarIndex; NULL: those of the program */
	bool decays;          /* weight decay applies to the parameter */
	int inputs_axis;      /* of a matrix, along which a product adds up; -1: not known */
	Value *param, *grad;  /* grad is scaled and clipped */
	Value *moment[MAX_MOMENTS];  /* NULL: there is none */
	Value *numbers[MAX_NUMBERS]; /* f64[]: what all parameters have in common */
	Value *count;    /* f64[]: targets of the step, in `refresh` those of the estimate */
	Value *t;        /* f64[]: the number of this update, from 1 */
	Value *lr;       /* f64[], times the parameter's lr_scale */
	Value *group_lr; /* f64[], without */
	Value *decay;    /* f64[]: weight decay; 0 where it does not apply */
	Value *new_param, *new_moment[MAX_MOMENTS], *new_numbers[MAX_NUMBERS]; /* out */
} Update;
typedef struct {
	const char *name, *doc;
	const char *defaults; /* of hyperparameters, "lr=0.001 beta1=0.9 ...": PyTorch's */
	const char *moments[MAX_MOMENTS];
	/* Moments that these settings do without, as bits; NULL: none. */
	unsigned (*without)(const void *settings);
	/* Of a parameter with that type, one of the update; what this gives is its own, whatever its elements, and NULL where there
	 * is none. Column NULL: the parameter's type. */
	Type (*moment_type)(Module *m, const void *settings, Type param, int moment);
	unsigned starts_as_parameter; /* moments that begin as the parameter, as bits */
	/* The moment that @accumulate reads in the parameter's place, as a bit; 0: the parameter. */
	unsigned gradient_at;
	bool whole; /* takes parameters and gradients in their shape */
	/* Is the parameter one for it? Others get the optimizer with settings that `fallback` says, "adamw,lr=0.001". NULL: all are. */
	bool (*takes)(const Module *m, const State *param);
	const char *(*fallback)(const void *settings, Arena *arena);
	struct {
		const char *name;
		double first;
	} numbers[MAX_NUMBERS]; /* states for all parameters, f64[]; name NULL: none */
	void (*update)(Update *u);
	/* For optimizers that estimate something by labels drawn from the model: after how many steps they do, and what becomes of
	 * moments and numbers then, by the estimate's mean gradients; what is left unset stays. NULL: they do not. */
	int64_t (*every)(const void *settings);
	void (*refresh)(Update *u);
	/* Of --optimizer=NAME,KEY=VALUE; as in PassRow. */
	const PassOption *options;
	size_t options_size;
	const void *settings; /* their defaults */
} OptimizerRow;
extern const OptimizerRow *const optimizer_table[];
const OptimizerRow *optimizer_find(const char *name); /* NULL: unknown */
/* An optimizer with settings. */
typedef struct {
	const OptimizerRow *row;
	const void *settings;
	const char *
		name; /* with what else than the values of hyperparameters was set: what a checkpoint must have in common */
	const char *defaults; /* as in the row, with what was set */
} OptimizerChoice;
/* "NAME" or "NAME,KEY=VALUE,...": keys are the row's options and its hyperparameters, whose defaults they change. NULL: adamw. False
 * after reporting. */
bool optimizer_parse(const char *text, OptimizerChoice *out, Arena *arena, Diag *diag);
/* The optimizer of some parameters. */
typedef struct {
	const char *glob; /* over their names; NULL: all */
	OptimizerChoice choice;
	bool is_fixed; /* its hyperparameters are these, its learning rate follows the schedule; else those of the program */
	double fixed[N_SCALARS];
} OptimizerGroup;
/* After how many steps the optimizers estimate something; 0: they do not. Reports what does not parse. */
int64_t optimizer_every(const OptimizerOptions *o, Arena *arena, Diag *diag);
/* "GLOB=NAME,KEY=VALUE"; false after reporting. */
bool optimizer_group_parse(const char *text, OptimizerGroup *out, Arena *arena, Diag *diag);
/* What rows build with: a number of the scalar block, f64[] or u64[]; and an f64[] repeated to the type of `param`. */
Value *update_scalar(Update *u, ScalarIndex index);
Value *update_spread(Update *u, Value *scalar);
Value *update_number(Update *u, double x); /* f64[] */
/* x f64[], or a number, times v of the type of `param`. */
Value *update_times(Update *u, Value *x, Value *v);
Value *update_scaled(Update *u, double x, Value *v);
/* grad + decay param: weight decay as in PyTorch's Adam */
Value *update_decayed(Update *u);
/* param (1 - lr decay): decoupled weight decay, as AdamW's */
Value *update_shrunk(Update *u);
/* m + (1 - beta)(x - m): torch's lerp, other bits than the average's */
Value *update_lerp(Update *u, Value *beta, Value *m, Value *x);
/* beta m + (1 - beta) x */
Value *update_average(Update *u, Value *beta, Value *m, Value *x);
/* 1 - beta^t, f64[]: what a moment that began at 0 is divided by. */
Value *update_bias_correction(Update *u, ScalarIndex beta);

/* ---- units.c */
typedef struct {
	int64_t unit_bytes; /* a block of the model that has more is a unit of its own */
} UnitsOptions;

/* ---- row_check.c: name every column that a row lacks or has wrong; true when there are none. */
bool optimizer_row_check(const OptimizerRow *row, Diag *diag);
bool loss_row_check(const LossRow *row, Diag *diag);
bool pass_row_check(const PassRow *row, Diag *diag);
bool pass_tables_check(Diag *diag); /* all optimizers and losses */

#endif

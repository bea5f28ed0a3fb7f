/* Interface of driver/ for the subcommands of tools/. As the command line's options say, driver/
 * compiles a model file to a module of the IR, to the tables that are part of an executable, or to
 * an executable. Sections are named after the .c file. */
#ifndef GRADC_DRIVER_DRIVER_H
#define GRADC_DRIVER_DRIVER_H

#include "codegen/emit/emit.h"
#include "config/config.h"
#include "cost/cost.h"
#include "frontend/frontend.h"
#include "passes/pass.h"

/* ---- options of all subcommands */
/* An option of the command line that a pass's row declares (PassFlag). */
typedef struct {
	const PassRow *row;
	OptionText text; /* name of the pass's option, and its value */
} FlagUse;
typedef struct {
	const char *input; /* the file of the command */
	const char *output, *output_dir, *target, *loss, *precision, *weights, *engine;
	const char *stage, *format, *log, *after, *passes, *dump_after, *dump_dir, *stop_after;
	const char *keep_sources, *class_weight, *match, *train_mode, *statistics, *output_format,
		*eval_mode, *cc, *emit;
	const char *data_parallel, *offload, *table, *ignored, *abort_in, *fail_in;
	const char *weight_type, *activation_type, *calibrate, *algorithm; /* for quantize */
	const char *scale_learning, *scale_grad, *quantize;
	bool learn_zero_points, sync_batchnorm;
	bool fold_batch_norms, no_fold_batch_norms, equalize, sensitivity, bias_correction;
	const char *report;
	const char *loss_scale, *moments, *master, *rounding, *gradients;
	/* --init without a glob, and its origin (command line or file) */
	const char *init, *init_origin;
	VEC(CpuTarget) cpus; /* CPUs of --target */
	VEC(const CudaArchitecture *) gpus;
	const KernelPrinter *printer;
	Outlook machine; /* from --machine; machine NULL: not given */
	StringList configs, dims, batch_axes, bounds, fills, ties, no_ties, repairs, no_repairs,
		mixed, lora, adapter_names, kept_adapters, inputs, disable, enable, wrt,
		pass_options, data, scales, mean_stds, only, skip;
	VEC(FlagUse) flags;        /* options that rows of passes declare, such as --ema */
	OptimizerChoice optimizer; /* row NULL: not given */
	OptimizerGroups optimizers_for;
	ParameterRules rules;      /* --train, --freeze ..., in the order of the command line */
	int64_t block_size, opset; /* for quantize */
	int64_t batch, max_accumulate, check_gradients, cores; /* 0: the default */
	uint64_t init_seed;
	double label_smoothing; /* 0: not given */
	bool per_channel;       /* for quantize */
	bool forward_only;      /* the command trains nothing; set by the command */
	/* outputs are computed as the file says, also in training form; set by the command. false: by
	 * the inference form, as evaluation computes them */
	bool forward_as_exported;
	/* -o gets a module as text, and a second file in the same folder gets its tensors; set by
	 * the command */
	bool writes_text;
	PathUses paths; /* files and folders that options name */
	bool json, keep_metadata, dump_changed, verify_each, time_passes, init_random, real, list,
		clear, help, version, quiet, verbose;
} Options;

/* ---- choices.c */
bool options_offload(const Options *o, Offload what); /* does --offload name `what`? */
bool options_write_pb(const Options *o);              /* are results .pb files? else .npy */

/* ---- targets.c: set_target is the `set` function of --target */
bool set_target(const OptionUse *u, void *at);

/* ---- options_together.c */
/* Sets options that were not given and that others imply, and checks options that only make sense together; false after
 * reporting. Call it before session_open. */
bool options_complete(Options *o, Arena *arena, Diag *diag);

/* ---- machine.c: set_machine is the `set` function of --machine */
bool set_machine(const OptionUse *u, void *at);
/* For executables with code for GPUs: the rates of each machine of the table, as info "machine.NVIDIA H200". */
void machines_write(FormatWriter *w, const Options *o);

/* ---- session.c, session_dims.c, session_loss.c: from a file to a module */
typedef struct {
	const Options *o;
	Arena *arena;
	Diag *diag;
	Model *model;
	const Model *loss_graph; /* graph of --loss=onnx:FILE; NULL: not given */
	Module *m;
	const Import *import;
	FakeQuantization *quantize;     /* --quantize; NULL: not given */
	QuantizePassOptions quantizing; /* what --quantize says to the pass */
	Stage stage;
	LossOptions loss;
	bool has_loss;
	/* --loss=model: the loss value that the file's training algorithm names; else NULL */
	const char *own_loss;
	const char *loss_kind;
	/* open dimensions that cannot be 1: "height=2 width=2"; NULL: all can be 1 */
	const char *sizes;
	StringList outputs;       /* names of the graph's outputs */
	VEC(GivenList) lists;     /* inputs that are sequences or optionals, from their files */
	VEC(int) wrt;             /* indices of the inputs of --wrt */
	GpuReport gpu_report;     /* compiled GPU code, reported by the link */
	struct json_t *gradients; /* results of a compiled --check-gradients; NULL: not run */
} Session;
typedef enum { OPEN_DIMS_REFUSE, OPEN_DIMS_ONE, OPEN_DIMS_FROM_INPUTS } OpenDims;
bool session_open(Session *s, const Options *o, OpenDims open, Arena *arena, Diag *diag);
/* The two steps of session_open: session_read reads the file, session_import imports it. outputs:
 * further values that become results, NULL-terminated, or NULL. */
bool session_read(Session *s, const Options *o, Arena *arena, Diag *diag);
bool session_import(Session *s, OpenDims open, const char *const *outputs);
void session_close(Session *s);
/* session_open for a training: without --optimizer AdamW, unless the file's training algorithm names another one, and without
 * --loss a loss that fits the output (session_default_loss). Close the session even after a failure. */
bool session_open_training(Session *s, const Options *o, OpenDims open, Arena *arena, Diag *diag);
/* The nodes that the file has in training form, the first few by name: `batch norm "bn1", dropout
 * "drop" and 3 others`; NULL: no such node. */
const char *training_form_text(const Session *s);
/* Forgets the module; the file may be edited and imported again. */
void session_forget_import(Session *s);

/* ---- session_loss.c */
/* Parses --loss into s; false after reporting. */
bool session_parse_loss(Session *s, const char *text);
/* ---- default_loss.c */
/* Without --loss: a loss that fits the form of the first output; a note says which one, and why. */
bool session_default_loss(Session *s);

/* ---- outputs.c */
/* Checks before any file is written: -o, --weights and others are not files that the command reads,
 * and can be written. model: NULL if the input is not a model; loss: the graph of --loss=onnx:FILE,
 * or NULL. */
bool outputs_prepare(const Options *o, const Model *model, const Model *loss, Arena *arena,
                     Diag *diag);
/* Functions for the column `paths` of options whose values contain file names. */
void reads_loss(const OptionUse *u, PathUses *uses);
void reads_settings(const OptionUse *u, PathUses *uses);
void reads_named_adapter(const OptionUse *u, PathUses *uses);
void writes_weights(const OptionUse *u, PathUses *uses);
/* The file with the tensors of the module in FILE.gir. */
const char *text_data_path(Arena *arena, const char *path);

/* ---- reached.c */
/* Freezes parameters on which no output depends, and gives the reason. With a loss, only the loss's
 * output counts. */
void session_freeze_unreached(Session *s);
/* Warns of --train, --decay, --no-decay and --lr-scale if no parameter that the glob matches is
 * trained, and warns if nothing is trained. */
void session_warn_idle_rules(const Session *s);

/* ---- pipeline.c: which passes run, with which options. with_update: the optimizer's passes run,
 * too */
/* Runs the passes up to and including the pass named `last`; if the pass is listed several times,
 * up to the last of these. */
bool session_run(Session *s, const char *last, bool with_update);
/* Runs passes until the module has the stage, including all passes of that stage. */
bool session_stage(Session *s, Stage stage, bool with_update);
/* Does the command line ask for the pass, which runs only when asked for? */
bool session_asks_for(const Session *s, const char *pass);
/* Visits the options of passes that are options of the command line, with their values in this session; the defaults if a pass
 * does not run because nothing asks for it. */
void session_flags(const Session *s,
                   void (*visit)(void *ctx, const PassOption *o, const void *value), void *ctx);
const PassRow *pass_find(const char *name); /* NULL: unknown */
/* Parses PASS.NAME=VALUE, an option of a pass; *row NULL: unknown pass. */
OptionText pass_option_text(Arena *arena, const char *text, const PassRow **row);
/* all passes, of passes/ and of codegen/, in the order in which they run; a pass may occur several
 * times */
const PassRow *const *pass_rows(int *n);
bool pass_is_repeated(int i); /* does pass i of pass_rows stand before i, too? */
PassManagerOptions manager_options(const Options *o, Arena *arena);
/* the list, followed by a NULL */
const char *const *terminated(Arena *arena, const StringList *list);

/* ---- executable.c: tables and link */
/* Runs the remaining passes and links the executable. embed_export: includes the optimizer and the
 * export template. false after reporting. */
bool session_link(Session *s, const char *path, bool embed_export);
/* Makes the tables that an executable would have, in the arena; false after reporting. */
bool session_tables(Session *s, bool with_update, Format *out);

/* ---- adapter_names.c */
/* Modules by adapter, sources by state id; false after reporting. */
bool adapter_names(Session *s, AdapterModules **modules, StateSource **sources);

/* ---- files.c: reads tensors of --input and writes results */
/* Reads NAME=FILE, .npy or .pb; false after reporting. */
bool input_read(Session *s, const char *text, NamedTensor *out);
/* The input of a parameter as a value of the interpreter: converts between float types and checks
 * the shape. */
bool input_for(Session *s, const NamedTensor *list, int n, const Value *param, EvalTensor *out);
/* Writes FOLDER/PREFIX.NAME.npy (or .pb) for each tensor, and names.json. */
Status tensors_write(Arena *arena, const char *folder, const char *prefix, const NamedTensor *list,
                     int n, bool as_pb);

/* ---- lists.c: sequences and optionals of `gradc run` */
/* Does the NAME=FILE of --input give a list? */
bool is_list_input(const Session *s, const char *text);
/* Sets *out to all elements of the inputs; returns their number. */
int list_elements(const Session *s, NamedTensor **out);
/* Finishes the results in a folder: joins elements to their list outputs, and cuts padded outputs to
 * their counts. false after reporting. */
bool results_finish(Session *s, const char *folder, bool as_pb);

/* ---- quantize_spec.c: the scales of activations by the type on the command line; NULL: static. */
ActivationScales activations_of(const char *type);
bool quantized_is_finite(const QuantizedTensor *t, Diag *diag);

/* ---- interpret.c: --engine=interp. The module is brought to the stage first. */
/* Computes the outputs from the inputs of --input, and writes them to --output-dir; false after reporting. */
bool interpret_outputs(Session *s, Stage stage);
typedef struct {
	const State *parameter;
	WorstDifference worst;
} CheckedGradient;
typedef struct {
	double loss;
	VEC(CheckedGradient) checked; /* with --check-gradients: one per parameter */
} Gradients;
/* Computes loss and gradients. Checks them as --check-gradients says, and writes them to --output-dir, if there is one. false
 * after reporting. */
bool interpret_gradients(Session *s, Stage stage, Gradients *out);

/* ---- run_compiled.c: builds a temporary executable and runs it once */
int run_compiled(Session *s, bool backward);
/* Runs `exe`, compiled before, on the files of --input; returns its exit code. */
int run_executable(Session *s, const char *exe, const char *output_dir);

#endif

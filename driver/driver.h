/* The compiler: a file and options in, a module, tables or an executable out. Sections are named after the .c file. */
#ifndef GRADC_DRIVER_DRIVER_H
#define GRADC_DRIVER_DRIVER_H

#include "codegen/emit/emit.h"
#include "config/config.h"
#include "cost/cost.h"
#include "frontend/frontend.h"
#include "passes/pass.h"

/* ---- what is asked of the compiler: the options of all subcommands */
typedef struct {
	const char *input; /* the file of the command */
	const char *output, *output_dir, *target, *loss, *optimizer, *precision, *weights, *engine;
	const char *stage, *format, *log, *after, *passes, *dump_after, *dump_dir, *stop_after;
	const char *keep_sources, *class_weight, *match, *train_mode, *statistics, *output_format,
		*eval_mode, *cc, *emit;
	const char *data_parallel, *offload, *table, *ignored, *abort_in, *fail_in;
	const char *weight_type, *activation_type, *calibrate, *algorithm; /* of quantize */
	const char *scale_learning, *scale_grad, *quantize;
	bool learn_zero_points, sync_batchnorm;
	bool fold_batch_norms, no_fold_batch_norms, equalize, sensitivity, bias_correction;
	const char *report;
	const char *loss_scale, *moments, *master, *rounding, *gradients;
	const char *init, *init_origin; /* --init without a glob, and where it stands */
	VEC(CpuTarget) cpus;            /* of --target */
	VEC(const CudaArchitecture *) gpus;
	const KernelPrinter *printer;
	Outlook machine; /* of --machine; without, its machine is NULL */
	StringList configs, dims, batch_axes, bounds, fills, ties, no_ties, repairs, no_repairs,
		rules, mixed, optimizers_for, lora, adapter_names, kept_adapters, inputs, disable,
		enable, wrt, pass_options, data, scales, mean_stds, only, skip;
	int64_t block_size, opset;                                         /* of quantize */
	int64_t batch, max_accumulate, check_gradients, cores, unit_bytes; /* 0: the default */
	uint64_t init_seed;
	double label_smoothing, layer_decay, ema; /* 0: not given */
	bool per_channel;                         /* of quantize */
	bool forward_only; /* the command trains nothing: it says so itself */
	bool writes_text; /* likewise: -o gets a module, and a file beside it the module's tensors */
	PathUses paths;   /* what the options name */
	bool json, keep_metadata, dump_changed, verify_each, time_passes, init_random, real, list,
		clear, help;
} Options;

/* ---- choices.c */
/* Of --loss-scale, or what fits --precision: gradients of f16 want one. */
const char *options_loss_scale(const Options *o);
bool options_offload(const Options *o, Offload what); /* does --offload name it? */

/* ---- machine.c: the `set` of --machine */
bool set_machine(const OptionUse *u, void *at);

/* ---- session.c, session_dims.c, session_loss.c: file -> module -> passes */
typedef struct {
	const Options *o;
	Arena *arena;
	Diag *diag;
	Model *model;
	const Model *loss_graph; /* of --loss=onnx:FILE; NULL: none */
	Module *m;
	const Import *import;
	FakeQuantization *quantize; /* --quantize; NULL: nothing */
	Stage stage;
	LossOptions loss;
	bool has_loss;
	const char *
		own_loss; /* --loss=model: a value that the file's training algorithm names; else NULL */
	const char *loss_kind;
	const char *
		sizes; /* of open dimensions that cannot be 1: "height=2 width=2"; NULL: all are 1 */
	StringList outputs;   /* names of the graph's outputs */
	VEC(GivenList) lists; /* inputs that are sequences or optionals, as files give them */
	VEC(int) wrt;         /* numbers of the inputs that --wrt names */
	GpuReport gpu_report; /* of the link */
	struct json_t
		*gradients; /* what a compiled --check-gradients found: a list; NULL: none ran */
} Session;
typedef enum { OPEN_DIMS_REFUSE, OPEN_DIMS_ONE, OPEN_DIMS_FROM_INPUTS } OpenDims;

bool session_open(Session *s, const Options *o, OpenDims open, Arena *arena, Diag *diag);
/* Its two parts: the file, and the module; outputs: values that are results besides the graph's, NULL-terminated, or NULL. */
bool session_read(Session *s, const Options *o, Arena *arena, Diag *diag);
bool session_import(Session *s, OpenDims open, const char *const *outputs);
void session_close(Session *s);
/* The nodes that the file has in training form, of many the first: `batch norm "bn1", dropout "drop" and 3 others`; NULL: none. */
const char *training_form_text(const Session *s);
/* The file alone is open again: it may be edited and imported anew. */
void session_forget_import(Session *s);

/* ---- quantize_spec.c: sets what --quantize asks for; false after reporting. */
bool session_quantize(Session *s);
/* NAME=VALUE at the last `=`: names may have one, the values of these options have none; false after reporting. */
bool split_pair(Session *s, const char *option, const char *text, const char **name,
                const char **value);
/* Fills what `io` says of dimensions; false after reporting. */
bool session_bind(Session *s, OpenDims open, ImportOptions *io);

/* ---- session_sizes.c: the module, with sizes that work for open dimensions under OPEN_ONE; NULL after reporting. */
Module *session_import_open(Session *s, const ImportOptions *io);
bool session_parse_loss(Session *s, const char *text);

/* ---- outputs.c */
/* -o, --weights and such are none of the files that the command reads, and can be written; before anything is opened to be
 * written. model: NULL where the input is none; loss: of --loss=onnx:FILE, NULL where there is none. */
bool outputs_prepare(const Options *o, const Model *model, const Model *loss, Arena *arena,
                     Diag *diag);
/* `paths` of rows whose values are no plain files */
void reads_loss(const OptionUse *u, PathUses *uses);
void reads_settings(const OptionUse *u, PathUses *uses);
void reads_named_adapter(const OptionUse *u, PathUses *uses);
void writes_weights(const OptionUse *u, PathUses *uses);
const char *text_data_path(Arena *arena,
                           const char *path); /* the file of tensors beside FILE.gir */

/* ---- reached.c */
/* Parameters on which neither the loss's output nor, without --loss, any output depends: not trainable, with the reason. */
void session_freeze_unreached(Session *s);
/* Warns of --train, --decay, --no-decay and --lr-scale where none of the parameters that the glob takes is trained in
 * the end, and where nothing is trained at all. */
void session_warn_idle_rules(const Session *s);

/* ---- pipeline.c: which passes run, with which options. with_update: also the optimizer */
/* Runs the passes up to and including `last` (a pass name), the last time that it stands in the list. */
bool session_run(Session *s, const char *last, bool with_update);
/* Runs them until the module has that stage, and all that belong to it. */
bool session_stage(Session *s, Stage stage, bool with_update);
const PassRow *pass_find(const char *name); /* NULL: unknown */
/* PASS.NAME=VALUE, an option of that pass; *row NULL: unknown. */
OptionText pass_option_text(Arena *arena, const char *text, const PassRow **row);
const PassRow *const *pass_rows(int *n); /* both lists, as they run: a pass may stand there twice */
PassManagerOptions manager_options(const Options *o, Arena *arena);
const char *const *terminated(Arena *arena, const StringList *list); /* with a NULL behind */

/* ---- executable.c: tables, link */
/* Runs the remaining passes and links. embed_export: with the optimizer and the export template. false
 * after reporting. */
bool session_link(Session *s, const char *path, bool embed_export);
Status library_path(Arena *arena, char **path); /* of libgradc_rt.a */
/* The tables that an executable would have, in the arena; false after reporting. */
bool session_tables(Session *s, bool with_update, Format *out);

/* ---- adapter_names.c */
/* By adapter, and by state id; false after reporting. */
bool adapter_names(Session *s, AdapterModules **modules, StateSource **sources);

/* ---- kept_adapters.c */
extern const char *const adapter_files[2]; /* in an adapter's folder: its settings, its tensors */
bool kept_adapters_write(Session *s, FormatWriter *w); /* false after reporting */

/* ---- files.c: tensors of --input and of results */
/* NAME=FILE, .npy or .pb; false after reporting. */
bool input_read(Session *s, const char *text, NamedTensor *out);
/* The input for a parameter as an interpreter value: dtype converted between floats, shape checked. */
bool input_for(Session *s, const NamedTensor *list, int n, const Value *param, EvalTensor *out);
/* FOLDER/PREFIX.NAME.npy (or .pb) each, and names.json. */
Status tensors_write(Arena *arena, const char *folder, const char *prefix, const NamedTensor *list,
                     int n, bool as_pb);

/* ---- lists.c: sequences and optionals of `gradc run` */
/* Is a NAME=FILE of --input one's? */
bool is_list_input(const Session *s, const char *text);
bool lists_read(Session *s, ImportOptions *io); /* false after reporting */
/* All elements of the inputs; how many. */
int list_elements(const Session *s, NamedTensor **out);
/* Results in that folder that are elements become the outputs that they belong to, padded ones are cut; false after reporting. */
bool results_finish(Session *s, const char *folder, bool as_pb);

/* ---- quantize_spec.c: by the name of a type on the command line; NULL: static. */
ActivationScales activations_of(const char *type);
bool quantized_is_finite(const QuantizedTensor *t, Diag *diag);

/* ---- run_compiled.c: a temporary executable, run once */
int run_compiled(Session *s, bool backward);
/* Runs `exe`, compiled before, on the files of --input; its exit code. */
int run_executable(Session *s, const char *exe, const char *output_dir);

#endif

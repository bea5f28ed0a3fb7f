/* The table of options: one row for each option of all subcommands. */
#include "codegen/codegen.h"
#include "tools/tools.h"

#include <string.h>

static const char *
nth_loss(int i)
{
	return loss_table[i] ? loss_table[i]->name : NULL;
}

/* --train, --freeze, --lr-scale ...: adds a rule to one list, in the order of the command line. */
static bool
set_rule(const OptionUse *u, void *at)
{
	int verb = 0;

	while (strcmp(rule_verbs[verb], u->row->name) != 0)
		verb++;
	vec_push(u->arena, (ParameterRules *)at, rule_of(u->arena, (RuleVerb)verb, u->value));
	return true;
}

static const char *
nth_optimizer(int i)
{
	return optimizer_table[i] ? optimizer_table[i]->name : NULL;
}

static const char *
nth_recipe(int i)
{
	return recipe_table[i] ? recipe_table[i]->name : NULL;
}

static bool
set_optimizer(const OptionUse *u, void *at)
{
	return optimizer_parse(u->value, at, u->arena, u->diag);
}

static bool
set_optimizer_for(const OptionUse *u, void *at)
{
	OptimizerGroup group;

	bool good = optimizer_group_parse(u->value, &group, u->arena, u->diag);

	if (good)
		vec_push(u->arena, (OptimizerGroups *)at, group);
	return good;
}

static bool
set_lora(const OptionUse *u, void *at)
{
	LoraChoice choice;

	const char *line = arena_printf(u->arena, "%s %s", u->row->name, u->value);

	vec_push(u->arena, (StringList *)at, line);
	return lora_parse(line, &choice, u->arena, u->diag);
}

static bool
set_loss_scale(const OptionUse *u, void *at)
{
	LossScale scale;

	*(const char **)at = u->value;
	return loss_scale_parse(u->value, &scale, u->arena, u->diag);
}

/* --mixed GLOB=f32: collects the globs. */
static bool
set_mixed(const OptionUse *u, void *at)
{
	StringList *globs = at;
	size_t n = strlen(u->value);

	if (n > 4 && strcmp(u->value + n - 4, "=f32") == 0) {
		vec_push(u->arena, globs, arena_strndup(u->arena, u->value, n - 4));
		return true;
	}
	diag_error(u->diag, EXIT_USAGE, "%s--mixed=%s: need GLOB=f32", u->origin, u->value);
	return false;
}

/* --init: model, random[:SEED], or a rule. */
static bool
set_init(const OptionUse *u, void *at)
{
	Options *o = u->to;
	const char *value = u->value;

	if (strchr(value, '='))
		return set_rule(u, at);
	if (o->init && strcmp(o->init, value) != 0 && strcmp(o->init_origin, u->origin) == 0) {
		diag_error(u->diag, EXIT_USAGE, "%s--init=%s and --init=%s: one of them", u->origin,
		           o->init, value);
		return false;
	}
	o->init = value;
	o->init_origin = u->origin;
	o->init_random = strncmp(value, "random", 6) == 0;
	if (strcmp(value, "model") == 0 || strcmp(value, "random") == 0 ||
	    (strncmp(value, "random:", 7) == 0 && parse_uint(value + 7, &o->init_seed)))
		return true;
	diag_error(u->diag, EXIT_USAGE, "%s--init=%s: need model, random, random:SEED or GLOB=HOW",
	           u->origin, value);
	return false;
}

static bool
set_fraction(const OptionUse *u, void *at)
{
	double value;

	if (parse_double(u->value, &value) && value >= 0 && value <= 1) {
		*(double *)at = value;
		return true;
	}
	diag_error(u->diag, EXIT_USAGE, "%s--%s=%s: need a number from 0 to 1", u->origin,
	           u->row->name, u->value);
	return false;
}

/* words: NULL-terminated */
static bool
is_one_of(const char *text, const char *const *words)
{
	while (*words && strcmp(*words, text) != 0)
		words++;
	return *words;
}

/* MODE[,scale-grad=RULE][,zero-points=on|off] */
static bool
set_scale_learning(const OptionUse *u, void *at)
{
	Options *o = u->to;
	char *text = arena_strdup(u->arena, u->value), *rest = text;
	const char *mode = strsep(&rest, ","), *zero_points = "off";
	const struct {
		const char *key, *const *words, *allowed;
		const char **to;
	} parts[] = {
		{"scale-grad", (const char *[]){"none", "inv_n", "lsq", NULL}, "none, inv_n or lsq",
	         &o->scale_grad},
		{"zero-points", (const char *[]){"on", "off", NULL}, "on or off", &zero_points},
	};

	*(const char **)at = mode;
	if (!is_one_of(mode, (const char *[]){"none", "lsq", "torch", NULL})) {
		diag_error(u->diag, EXIT_USAGE, "%s--scale-learning=%s: must be none, lsq or torch",
		           u->origin, mode);
		return false;
	}
	o->scale_grad = NULL;
	size_t n;
	const char *twice = rest ? text_key_twice(rest, &n) : NULL;
	if (twice) {
		diag_error(u->diag, EXIT_USAGE, "%s--scale-learning=%s: %.*s is given twice",
		           u->origin, u->value, (int)n, twice);
		return false;
	}
	while (rest) {
		char *value = strsep(&rest, ",");
		const char *key = strsep(&value, "=");
		int i = 0;
		while (i < COUNT(parts) && strcmp(parts[i].key, key) != 0)
			i++;
		if (i == COUNT(parts)) {
			diag_error(
				u->diag, EXIT_USAGE,
				"%s--scale-learning=%s: \"%s\": need scale-grad= or zero-points=",
				u->origin, u->value, key);
			return false;
		}
		if (!value || !is_one_of(value, parts[i].words)) {
			diag_error(u->diag, EXIT_USAGE,
			           "%s--scale-learning=%s: need %s in %s=", u->origin, u->value,
			           parts[i].allowed, key);
			return false;
		}
		*parts[i].to = value;
	}
	o->learn_zero_points = strcmp(zero_points, "on") == 0;
	return true;
}

/* Parses a list of known words, each at most once. need: what the error message asks for. */
static bool
set_words(const OptionUse *u, void *at, const char *const *known, const char *need)
{
	char *rest = arena_strdup(u->arena, u->value);
	uint32_t seen = 0;

	*(const char **)at = u->value;
	for (const char *name; (name = strsep(&rest, ","));) {
		int i = 0;
		while (known[i] && strcmp(name, known[i]) != 0)
			i++;
		if (!known[i] || seen >> i & 1) {
			diag_error(u->diag, EXIT_USAGE, "%s--%s=%s: need some of %s", u->origin,
			           u->row->name, u->value, need);
			option_hint(u, name, NULL);
			return false;
		}
		seen |= 1u << i;
	}
	return true;
}

/* ddp,zero3 */
static bool
set_modes(const OptionUse *u, void *at)
{
	return set_words(u, at, mode_names, "ddp, zero1, zero2, zero3");
}

static bool
set_offload(const OptionUse *u, void *at)
{
	return set_words(u, at, offload_names, "optimizer, params, activations");
}

static const char *
nth_printer(int i)
{
	return kernel_printers[i] ? kernel_printers[i]->name : NULL;
}

static const char *
nth_machine(int i)
{
	return machine_table[i] ? machine_table[i]->name : NULL;
}

/* Refuses an option that training executables have and gradc has not. */
static bool
refuse_executables(const OptionUse *u, void *at)
{
	(void)at;
	diag_error(u->diag, EXIT_USAGE, "%s--%s: this is an option of the training executable",
	           u->origin, u->row->name);
	return false;
}

static bool
set_printer(const OptionUse *u, void *at)
{
	for (int i = 0; kernel_printers[i]; i++)
		if (strcmp(kernel_printers[i]->name, u->value) == 0)
			*(const KernelPrinter **)at = kernel_printers[i];
	if (*(const KernelPrinter **)at)
		return true;
	diag_error(u->diag, EXIT_USAGE, "%s--printer=%s: not supported in this build", u->origin,
	           u->value);
	option_hint(u, u->value, NULL);
	return false;
}

/* clang-format off */
#define AT(field) offsetof(Options, field)
/* The commands that have an option, as bits of the table of commands. */
enum {
	COMPILE = COMMAND_COMPILE, CHECK = COMMAND_CHECK, RUN = COMMAND_RUN, GRAD = COMMAND_GRAD,
	DUMP = COMMAND_DUMP, OPT = COMMAND_OPT, LISTS = COMMAND_OPS | COMMAND_PASSES, CACHE = COMMAND_CACHE,
	TRAIN = COMPILE | CHECK | GRAD | DUMP, MODEL = TRAIN | RUN, PASSES = MODEL | OPT, QUANTIZE = COMMAND_QUANTIZE,
};
/* LATER: an option that a later build will have. */
#define LATER(name) {name, "VALUE", NULL, TAKES_NOTHING, .optional = true, .commands = MODEL}
#define EXECUTABLES(name) {name, "VALUE", NULL, TAKES_CALL, AT(ignored), .set = refuse_executables, .optional = true, .commands = MODEL}
#define REPAIRS "constants|transposes|merged|unmerge|biases|ties|batchnorm|dropout|tables|batch"
static const OptionRow option_rows[] = {
	{"output", "FILE", "what to write", TAKES_STRING, AT(output), .letter = 'o',
	 .group = "Output", .commands = COMPILE | DUMP | OPT | QUANTIZE, .path = PATH_OUTPUT},
	{"output-dir", "DIR", "where results go", TAKES_STRING, AT(output_dir), .commands = RUN | GRAD, .path = PATH_FOLDER},
	{"dim", "NAME=N[,N...]", "binds a dimension, by symbol or as INPUT[AXIS]; several values: several "
	 "programs", TAKES_LIST, AT(dims), .one_per_name = true, .group = "Dimensions", .commands = MODEL | QUANTIZE},
	{"bound", "NAME=N", "upper limit for the elements of a result whose size depends on data (NonZero, Compress, Unique, NonMaxSuppression), or for the iterations of a Loop, named by the Loop's first output; a glob names several", TAKES_LIST, AT(bounds),
	 .one_per_name = true, .commands = MODEL | QUANTIZE},
	{"batch", "N", "binds the leading dimension of every input, or the one that is called batch", TAKES_INT, AT(batch), .least = 1, .commands = MODEL | QUANTIZE},
	{"batch-axis", "INPUT=N|none", "the axis of an input that counts rows, from 0 (the one that is called batch, else 0); none: one array for every step",
	 TAKES_LIST, AT(batch_axes), .one_per_name = true, .commands = MODEL | QUANTIZE},
	{"data", "NAME=FILE", "real rows of an input, .npy, for the ranges of activations; repeatable", TAKES_LIST, AT(data), .one_per_name = true,
	 .group = "Quantization", .commands = QUANTIZE, .paths = reads_named_file},
	{"scale", "NAME=MUL[,ADD]", "turns an input's rows of u8 into floats, as the executable's option does", TAKES_LIST, AT(scales), .commands = QUANTIZE},
	{"mean-std", "NAME=FILE", "the same, by means and standard deviations of channels: f32 .npy [2,C]", TAKES_LIST, AT(mean_stds), .commands = QUANTIZE, .paths = reads_named_file},
	{"weight-type", "s8|u8|s4|u4|s2|u2|f8e4m3fn|f8e5m2|f4e2m1", "type of weights' codes (s8); signed: symmetric, zero point 0", TAKES_CHOICE, AT(weight_type), .commands = QUANTIZE},
	{"activation-type", "u8|s8|u16|s16|f8e4m3fn|f8e5m2|dynamic|token|none", "type of activations' codes (u8); dynamic: u8 by each tensor's own range, token: by each row's; none: floats", TAKES_CHOICE, AT(activation_type), .commands = QUANTIZE},
	{"per-channel", NULL, "a scale for each output channel of a weight", TAKES_FLAG, AT(per_channel), .commands = QUANTIZE},
	{"block-size", "N", "a scale for each block of N inputs of a weight's output", TAKES_INT, AT(block_size), .least = 2, .commands = QUANTIZE},
	{"calibrate", "METHOD", "minmax, percentile[:99.999], entropy, mse, moving-average or distribution over the data (minmax)", TAKES_STRING, AT(calibrate), .commands = QUANTIZE},
	{"algorithm", "rtn|gptq|awq", "rounding of weights: rtn: to nearest (the default); gptq: so that products over the data change least; awq: to nearest, after weights of large inputs are enlarged", TAKES_CHOICE, AT(algorithm), .commands = QUANTIZE},
	{"bias-correction", NULL, "corrects biases, so that means of results over the data stay those of floats", TAKES_FLAG, AT(bias_correction), .commands = QUANTIZE},
	{"only", "GLOB", "quantizes these nodes; repeatable", TAKES_LIST, AT(only), .commands = QUANTIZE},
	{"skip", "GLOB", "leaves these nodes out; repeatable", TAKES_LIST, AT(skip), .commands = QUANTIZE},
	{"fold-batch-norms", NULL, "folds batch norms into the convolutions before them, by running statistics (the default)", TAKES_FLAG, AT(fold_batch_norms), .commands = QUANTIZE},
	{"no-fold-batch-norms", NULL, "keeps batch norms, with their running statistics", TAKES_FLAG, AT(no_fold_batch_norms), .commands = QUANTIZE},
	{"equalize", NULL, "first moves factors between consecutive products, so that one scale fits all channels", TAKES_FLAG, AT(equalize), .commands = QUANTIZE},
	{"sensitivity", NULL, "measures how much the codes of each tensor change the results: runs the model once per tensor, with this tensor as floats", TAKES_FLAG, AT(sensitivity), .commands = QUANTIZE},
	{"report", "FILE.html", "a page: the codes of each tensor, and their error", TAKES_STRING, AT(report), .commands = QUANTIZE, .path = PATH_OUTPUT},
	{"opset", "N", "raises the model's opset, if its operators mean the same", TAKES_INT, AT(opset), .least = 10, .commands = QUANTIZE | TRAIN},
	{"loss", "output:NAME|onnx:FILE|model", "losses by name take [:OUTPUT][,target=INPUT][,axis=N][,rows=N][,OPTION=VALUE], with a negative N from the last axis; "
	 "output:NAME takes [,count=OUTPUT|1], onnx:FILE [,count=OUTPUT]", TAKES_STRING, AT(loss), .nth = nth_loss,
	 .group = "Training", .commands = MODEL, .paths = reads_loss},
	{"label-smoothing", "X", "for cross_entropy and nll, from 0 to 1 (0)", TAKES_CALL, AT(label_smoothing),
	 .set = set_fraction, .commands = MODEL},
	{"class-weight", "FILE.npy", "for cross_entropy and nll", TAKES_STRING, AT(class_weight), .commands = MODEL, .path = PATH_INPUT},
	{"optimizer", NULL, "with PyTorch's semantics and defaults (adamw); each [,KEY=VALUE...], see below", TAKES_CALL, AT(optimizer),
	 .nth = nth_optimizer, .set = set_optimizer, .commands = COMPILE | DUMP},
	{"optimizer-for", "GLOB=NAME[,KEY=VALUE...]", "another optimizer for these parameters, with its own hyperparameters; its learning rate follows the schedule", TAKES_CALL,
	 AT(optimizers_for), .set = set_optimizer_for, .repeats = true, .commands = COMPILE | DUMP},
	{"precision", NULL, "the type of every float (f32); tf32: products on a GPU round their f32 operands to 11 bits; bf16, f16: the type of products; weights stay f32",
	 TAKES_KNOWN, AT(precision), .nth = nth_recipe, .commands = MODEL},
	{"loss-scale", "none|torch|megatron|deepspeed|N", "grows and shrinks by a rule, or is fixed (f16: torch); settings follow the rule: torch,init=1024,interval=100",
	 TAKES_CALL, AT(loss_scale), .set = set_loss_scale, .commands = COMPILE | DUMP},
	{"master", "on|off", "off: with bf16, trained weights are kept in bf16 only (on)", TAKES_CHOICE, AT(master), .commands = COMPILE | DUMP},
	{"moments", "f32|bf16", "the type of the optimizer's moments (the update's type: f32 or f64)", TAKES_CHOICE, AT(moments), .commands = COMPILE | DUMP},
	{"gradients", "f32|bf16", "the type of parameters' gradients (f32); bf16 needs --max-accumulate=1", TAKES_CHOICE, AT(gradients), .commands = COMPILE | DUMP},
	{"rounding", "nearest|stochastic", "rounding of weights and moments that are kept in bf16 (nearest)", TAKES_CHOICE, AT(rounding), .commands = COMPILE | DUMP},
	{"mixed", "GLOB=f32", "with bf16 or f16: these nodes stay f32, by ONNX name", TAKES_CALL, AT(mixed), .set = set_mixed, .repeats = true, .commands = MODEL},
	{"train", "GLOB", "trains these parameters, or a group of the table: @filters, @doubtful ...", TAKES_CALL, AT(rules), .set = set_rule, .repeats = true, .commands = TRAIN},
	{"freeze", "GLOB", "keeps these parameters, or a group of the table, as they are", TAKES_CALL, AT(rules), .set = set_rule, .repeats = true, .commands = TRAIN},
	{"decay", "GLOB", "weight decay applies to these", TAKES_CALL, AT(rules), .set = set_rule, .repeats = true, .commands = TRAIN},
	{"no-decay", "GLOB", "weight decay leaves these out", TAKES_CALL, AT(rules), .set = set_rule, .repeats = true, .commands = TRAIN},
	{"lr-scale", "GLOB=X", "multiplies their learning rate", TAKES_CALL, AT(rules), .set = set_rule, .repeats = true, .commands = TRAIN},
	{"lora", "GLOB[,KEY=VALUE...]", "trains a low-rank product beside these weights and freezes the rest: rank=8, alpha=8, dropout=0, init=kaiming|pissa, rslora, dora", TAKES_CALL, AT(lora),
	 .set = set_lora, .repeats = true, .commands = TRAIN},
	{"qlora", "GLOB[,KEY=VALUE...]", "the same beside weights that are kept in 4 bits; --lora's settings, and bits=nf4|fp4 (nf4), double=on|off (on): scales of 8 bits", TAKES_CALL, AT(lora),
	 .set = set_lora, .repeats = true, .commands = TRAIN},
	{"adapter-name", "GLOB=PATH", "the parameter's module in --export-adapter, as PEFT calls it, if the file does not say it; a star in PATH is what the glob's star took; TABLE,PRODUCT for a tied parameter", TAKES_LIST,
	 AT(adapter_names), .one_per_name = true, .commands = COMPILE},
	{"load-adapter", "NAME=DIR", "puts an adapter of PEFT or --export-adapter into the executable, whose option --adapter=NAME then starts from this adapter; repeatable", TAKES_LIST,
	 AT(kept_adapters), .one_per_name = true, .commands = COMPILE, .paths = reads_named_adapter},
	{"quantize", "SPEC", "trains with quantized weights and activations, and exports their codes: w8a8, w4a8-g32, ... or a file of settings", TAKES_STRING, AT(quantize), .commands = TRAIN, .paths = reads_settings},
	{"scale-learning", "none|lsq|torch", "each [,scale-grad=none|inv_n|lsq][,zero-points=on|off]: scales of codes are trained, too (none); with --quantize zero points of activations (off)", TAKES_CALL, AT(scale_learning), .set = set_scale_learning, .commands = TRAIN},
	{"init", "model|random[:SEED]|GLOB=HOW", "first values; HOW: normal(M,S), uniform(A,B), zeros, "
	 "ones", TAKES_CALL, AT(rules), .set = set_init, .repeats = true, .commands = TRAIN},
	{"fill", "NAME=HOW", "fills an input with ones, zeros, iota (0, 1, 2 ...) or a number", TAKES_LIST, AT(fills), .one_per_name = true,
	 .group = "Import", .commands = MODEL | QUANTIZE},
	{"tie", "A=B", "trains B as A", TAKES_LIST, AT(ties), .commands = MODEL},
	{"no-tie", "A", "does not tie A to an equal parameter; if several modules read A, each gets its own", TAKES_LIST, AT(no_ties), .commands = MODEL},
	{"repair", REPAIRS, "switches an import repair on", TAKES_CHOICES, AT(repairs), .commands = MODEL},
	{"no-repair", REPAIRS, "switches an import repair off", TAKES_CHOICES, AT(no_repairs), .commands = MODEL},
	{"statistics", "keep|update", "batch statistics of frozen layers (keep)", TAKES_CHOICE, AT(statistics), .commands = TRAIN},
	{"train-mode", "keep|restore", "dropout and batch statistics as exported, or for training (keep)",
	 TAKES_CHOICE, AT(train_mode), .commands = MODEL},
	{"eval-mode", "inference|as-exported", "dropout and batch statistics in @eval (inference)", TAKES_CHOICE, AT(eval_mode), .commands = COMPILE | DUMP},
	{"weights", "embed|FILE", "stores weights in the executable, or in a file beside it (embed)", TAKES_STRING, AT(weights),
	 .group = "The executable", .commands = COMPILE, .paths = writes_weights},
	{"keep-metadata", NULL, "keeps exporters' stack traces", TAKES_FLAG, AT(keep_metadata), .commands = COMPILE},
	{"max-accumulate", "N", "the largest number of micro-batches per step (any)", TAKES_INT, AT(max_accumulate), .least = 1, .commands = COMPILE | DUMP},
	{"keep-sources", "DIR", "keeps the generated C (OUTPUT.sources)", TAKES_STRING, AT(keep_sources),
	 .optional = true, .commands = COMPILE | RUN | GRAD, .path = PATH_FOLDER},
	{"emit", "executable|library", "what to write: a program, or a shared library for runtime/gradc.h (executable)",
	 TAKES_KNOWN, AT(emit), .commands = COMPILE},
	{"cc", "PROGRAM", "the C compiler ($CC, cc)", TAKES_STRING, AT(cc), .commands = COMPILE | RUN | GRAD},
	{"input", "NAME=FILE", "an input of the model; axes and sizes may depend on the numbers of a small input; repeatable", TAKES_LIST, AT(inputs), .one_per_name = true,
	 .group = "run and grad", .commands = RUN | GRAD, .paths = reads_named_file},
	{"wrt", "INPUT", "also this input's gradient; repeatable", TAKES_LIST, AT(wrt), .commands = GRAD},
	{"check-gradients", "N", "compares N random entries of each parameter's gradient with finite differences", TAKES_INT,
	 AT(check_gradients), .least = 1, .commands = GRAD},
	{"engine", "compiled|interp", "a temporary executable, or the interpreter (compiled)", TAKES_CHOICE,
	 AT(engine), .commands = RUN | GRAD},
	{"real", NULL, "interp: no rounding of floats", TAKES_FLAG, AT(real), .commands = RUN | GRAD},
	{"output-format", "npy|pb", "format of results (npy)", TAKES_CHOICE, AT(output_format), .commands = RUN | GRAD},
	{"stage", "import|forward|train|rematerialized|fused|lowered|schedule|memory", "the last stage; for opt: the stage of the "
	 "text", TAKES_CHOICE, AT(stage), .nth = printer_language, .group = "Inspection", .commands = RUN | GRAD | DUMP | OPT},
	{"format", "text|dot|html|json|onnx", "format of the dump (text); onnx: forward and backward of a model as plain ONNX, with --stage=train and --loss", TAKES_KNOWN, AT(format), .commands = DUMP | OPT},
	{"log", "FILE", "with --format=html: ranges of codes over the training that wrote this log", TAKES_STRING, AT(log), .commands = DUMP, .path = PATH_INPUT},
	{"machine", NULL, "each [,ranks=N][,link=400G]; for --stage=schedule: the predicted time of each launch on that GPU, with N "
	 "ranks and 400 Gbit/s between any two", TAKES_CALL, AT(machine), .nth = nth_machine, .set = set_machine, .commands = DUMP},
	{"after", "PASS", "the module after that pass", TAKES_CALL, AT(after), .set = set_pass, .words = nth_pass, .commands = DUMP},
	{"passes", "LIST", "for opt: a,b{x=1}", TAKES_STRING, AT(passes), .empty = true, .words = nth_pass, .commands = OPT},
	{"dump-after", "PASS|all", "prints the module after a pass, or after all", TAKES_CALL, AT(dump_after),
	 .set = set_pass_or_all, .words = nth_pass, .commands = PASSES},
	{"dump-dir", "DIR", "writes dumps to files in this folder, and the input of each pass while the pass runs", TAKES_STRING, AT(dump_dir), .commands = PASSES, .path = PATH_FOLDER},
	{"dump-changed", NULL, "dumps after every pass that changed something", TAKES_FLAG,
	 AT(dump_changed), .commands = PASSES},
	{"stop-after", "PASS", "ends after this pass", TAKES_CALL, AT(stop_after), .set = set_pass, .words = nth_pass, .commands = COMPILE | DUMP | OPT},
	{"disable", "PASS", "leaves a pass out; repeatable", TAKES_CALL, AT(disable), .set = add_pass, .repeats = true, .words = nth_pass, .commands = PASSES},
	{"enable", "PASS", "runs a pass that `gradc passes` marks as run when asked for; repeatable",
	 TAKES_CALL, AT(enable), .set = add_pass, .repeats = true, .words = nth_pass, .commands = PASSES},
	{"pass-option", "PASS.NAME=VALUE", "an option of a pass, as `gradc passes` lists them; repeatable",
	 TAKES_CALL, AT(pass_options), .set = add_pass_option, .repeats = true, .words = nth_pass_option, .commands = PASSES},
	{"verify-each", NULL, "verifies after every pass", TAKES_FLAG, AT(verify_each), .commands = PASSES},
	{"time-passes", NULL, "a table of times", TAKES_FLAG, AT(time_passes), .commands = PASSES},
	{"abort-in", "PASS", NULL, TAKES_CALL, AT(abort_in), .set = set_pass, .commands = PASSES}, /* for tests */
	{"fail-in", "PASS", NULL, TAKES_CALL, AT(fail_in), .set = set_pass, .commands = PASSES},   /* for tests */
	{"json", NULL, "machine-readable results", TAKES_FLAG, AT(json), .commands = COMPILE | CHECK | GRAD | LISTS | CACHE | QUANTIZE},
	{"list", NULL, "lists compiled CUDA kernels that are kept on disk, the latest used first", TAKES_FLAG, AT(list), .commands = CACHE},
	{"clear", NULL, "removes all compiled CUDA kernels that are kept on disk", TAKES_FLAG, AT(clear), .commands = CACHE},
	{"table", "full", "every parameter", TAKES_CHOICE, AT(table), .commands = COMPILE | CHECK},
	{"match", "GLOB", "for check: shows the parameters that the glob matches, by either name", TAKES_STRING, AT(match), .commands = CHECK},
	{"target", "cpu:native|cpu:x86-64-v2|cpu:x86-64-v3|cpu:x86-64-v4|cuda|cuda:sm_80|cuda:sm_90a|cuda:sm_100a|cuda:compute_100",
	 "what is compiled for; several with commas: the executable picks at start (cpu:native)", TAKES_CALL, AT(target), .set = set_target,
	 .group = "Kernels and ranks", .commands = COMPILE | RUN | GRAD | DUMP},
	{"cores", "N", "number of cores that loops are divided for, on any machine (64)", TAKES_INT, AT(cores), .least = 1,
	 .most = MAX_CORES, .commands = COMPILE | RUN | GRAD | DUMP},
	{"printer", NULL, "the printer that makes code of kernels (the first)", TAKES_CALL, AT(printer), .nth = nth_printer,
	 .set = set_printer, .commands = COMPILE | RUN | GRAD | DUMP},
	{"data-parallel", "ddp,zero1,zero2,zero3",
	 "what is divided among ranks: nothing (ddp); the optimizer's states (zero1); gradients, too (zero2); weights, too (zero3); several: the executable picks at start",
	 TAKES_CALL, AT(data_parallel), .set = set_modes, .commands = COMPILE | DUMP},
	{"offload", "optimizer,params,activations",
	 "what is kept in the host's memory: the optimizer's states, which the host's cores update; weights, which are copied before they are read; activations between forward and backward",
	 TAKES_CALL, AT(offload), .set = set_offload, .commands = COMPILE | DUMP},
	{"sync-batchnorm", NULL, "batch norms use the statistics of all ranks' batches together", TAKES_FLAG, AT(sync_batchnorm),
	 .commands = COMPILE | DUMP},
	{"help", NULL, "this text; with --json as JSON", TAKES_FLAG, AT(help), .letter = 'h', .group = "Other"},
	{"quiet", NULL, "only errors and results: no warnings, no table of compile", TAKES_FLAG, AT(quiet), .letter = 'q'},
	{"verbose", NULL, "also every parameter in the table (--table=full), and the time of each pass (--time-passes)", TAKES_FLAG, AT(verbose), .letter = 'v'},
	{"version", NULL, "the version of gradc", TAKES_FLAG, AT(version)},
	{"config", "FILE", "options from a file, one `name = value` a line, or DeepSpeed's JSON; the command line wins", TAKES_CONFIG, AT(configs), .path = PATH_INPUT},
	{"mesh", "tensor=1|pipeline=1|tensor=1,pipeline=1", NULL, TAKES_KNOWN, AT(ignored), .commands = COMPILE | DUMP},
	{"remat", "none|off", NULL, TAKES_KNOWN, AT(ignored), .commands = COMPILE | DUMP},
	EXECUTABLES("export"), EXECUTABLES("export-adapter"), EXECUTABLES("export-merged"), LATER("schedule"),
};
/* clang-format on */

typedef VEC(OptionRow) OptionRows;

/* Adds the options of a group that rows of passes declare. */
static void
add_flags(Arena *arena, OptionRows *to, const char *group)
{
	int n;
	const PassRow *const *rows = pass_rows(&n);

	for (int i = 0; i < n; i++)
		for (const PassOption *p = rows[i]->options; p && p->name; p++) {
			if (!p->flag.name || strcmp(p->flag.group, group) != 0 ||
			    pass_is_repeated(i))
				continue;
			bool updates = rows[i]->when == PASS_WITH_OPTIMIZER;
			vec_push(arena, to,
			         ((OptionRow){.name = p->flag.name,
			                      .value = p->flag.value,
			                      .help = p->flag.help,
			                      .takes = TAKES_CALL,
			                      .set = set_flag,
			                      .commands = updates ? COMPILE | DUMP : TRAIN}));
		}
}

/* The rows of the table above; the options of passes stand at the end of their groups. */
static OptionRows
all_rows(Arena *arena)
{
	OptionRows all = {0};
	const char *group = NULL;

	for (int i = 0; i < COUNT(option_rows); i++) {
		const OptionRow *row = &option_rows[i];
		if (row->group && group)
			add_flags(arena, &all, group);
		group = row->group ? row->group : group;
		vec_push(arena, &all, *row);
	}
	add_flags(arena, &all, group);
	return all;
}

OptionTable
option_table(Arena *arena, const Command *command)
{
	enum { MOST = 32 };
	const char **names = NEW_ARRAY(arena, const char *, MOST + 1);
	OptionRows all = all_rows(arena);

	for (int i = 0; commands[i].name; i++)
		names[__builtin_ctz(commands[i].bit)] = commands[i].name;
	return (OptionTable){
		.rows = all.at,
		.n = all.n,
		.section = "gradc",
		.program = command ? arena_printf(arena, "gradc %s", command->name) : "gradc",
		.command = command ? command->bit : 0,
		.command_names = names,
		.operands = command ? command->what : NULL,
	};
}

bool
options_parse(Options *o, const Command *command, int argc, char **argv, Arena *arena, Diag *diag,
              int *exit_code)
{
	OptionTable table = option_table(arena, command);
	StringList files = {0};
	table.uses = &o->paths;
	bool ok = options_read(&table, o, argc, argv, &files, arena, diag);

	*exit_code = EXIT_OK;
	if (ok && (o->help || o->version)) {
		if (o->help)
			help_print(command, o->json, arena);
		else
			version_print();
		return false;
	}
	if (ok && o->quiet && o->verbose) {
		diag_error(diag, EXIT_USAGE, "--quiet and --verbose: one of them");
		ok = false;
	}
	if (o->quiet)
		diag_be_quiet(diag);
	if (o->verbose) {
		o->table = "full";
		o->time_passes = true;
	}
	ok = ok && options_complete(o, arena, diag);
	o->input = files.n ? files.at[0] : NULL;
	for (int i = *command->what ? 1 : 0; i < files.n; i++) {
		diag_error(diag, EXIT_USAGE, "unexpected argument `%s`", files.at[i]);
		ok = false;
	}
	if (!ok)
		*exit_code = diag_exit_code(diag);
	return ok;
}

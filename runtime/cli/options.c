/* The options of a training executable, as rows of a table that config/options.c reads. */
#include "runtime/cli/cli.h"

#include "runtime/metrics/metrics.h"
#include "runtime/model/model.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

/* NAME=VALUE, may be repeated; values of one name keep their order. */
static bool
set_pair(const OptionUse *u, void *at)
{
	GradcPairs *pairs = at;
	const char *equal = strchr(u->value, '=');

	if (!equal || equal == u->value || !equal[1]) {
		diag_error(u->diag, EXIT_USAGE, "%s--%s=%s: need %s", u->origin, u->row->name,
		           u->value, u->row->value);
		return false;
	}
	GradcPair pair = {arena_strndup(u->arena, u->value, (size_t)(equal - u->value)), equal + 1};
	vec_push(u->arena, pairs, pair);
	return true;
}

/* MIN,MAX: two learning rates, the lower one first. */
static bool
set_find_lr(const OptionUse *u, void *at)
{
	double *range = at;
	const char *comma = strchr(u->value, ',');
	const char *low = comma ? arena_strndup(u->arena, u->value, (size_t)(comma - u->value))
	                        : "";

	if (comma && parse_double(low, &range[0]) && parse_double(comma + 1, &range[1]) &&
	    range[0] > 0 && range[0] < range[1] && !isinf(range[1]))
		return true;
	diag_error(u->diag, EXIT_USAGE,
	           "%s--find-lr=%s: need two learning rates, the lower first, as 1e-7,10",
	           u->origin, u->value);
	return false;
}

/* Splits NAME=VALUE again if the model has an input whose name contains `=`. set_pair keeps name and value in a single text, so
 * the text before the value is still there. */
static void
match_name(Arena *arena, const Format *f, GradcPair *pair)
{
	const char *text = pair->value - 1 - strlen(pair->name);

	for (int i = 0; i < f->n[SECTION_PORTS]; i++) {
		const char *name = format_text(f, f->ports[i].name);
		size_t n = strlen(name);
		if (port_is_input(f->ports[i].kind) && n > strlen(pair->name) &&
		    strncmp(text, name, n) == 0 && text[n] == '=')
			*pair = (GradcPair){arena_strdup(arena, name), text + n + 1};
	}
}

Status
options_match_names(Arena *arena, const GradcModel *model, CliOptions *o)
{
	GradcPairs *lists[] = {&o->run.data,  &o->run.eval_data, &o->run.fill,
	                       &o->run.scale, &o->run.mean_std,  &o->inputs};
	bool any = false;
	Format f;

	for (int l = 0; l < COUNT(lists); l++)
		for (int i = 0; i < lists[l]->n; i++)
			any |= strchr(lists[l]->at[i].value, '=') != NULL;
	if (!any)
		return NULL;
	RETURN_IF_ERROR(format_read(model->blob, model->bytes, &f));
	for (int l = 0; l < COUNT(lists); l++)
		for (int i = 0; i < lists[l]->n; i++)
			match_name(arena, &f, &lists[l]->at[i]);
	return NULL;
}

/* The schedules for users: without the one of --find-lr, the last. */
static const char *
nth_schedule(int i)
{
	return lr_schedule_names[i + 1] ? lr_schedule_names[i] : NULL;
}

/* Metrics for completion and hints; topN without its number is no word. */
static const char *
metric_word(Arena *arena, int i)
{
	(void)arena;
	for (const MetricRow *m = metric_table; m->name; m++)
		if (!m->takes_number && i-- == 0)
			return m->name;
	return NULL;
}

/* clang-format off */
enum { TRAINING = FOR_TRAINING, ONCE = FOR_ONCE, EVAL = FOR_EVAL, PREDICT = FOR_PREDICT };
#define RUN(field) offsetof(CliOptions, run.field)
#define CLI(field) offsetof(CliOptions, field)
static const OptionRow rows[] = {
	{"data", "NAME=FILE", "binds an input or labels to .npy files (or a glob), rows first; "
	 "repeatable", TAKES_CALL, RUN(data), .set = set_pair, .repeats = true, .group = "Data", .commands = TRAINING | PREDICT, .paths = reads_named_files},
	{"tokens", "FILE", "token stream: .bin (u16), .u32.bin, .npy", TAKES_STRING, RUN(tokens), .commands = TRAINING | PREDICT, .path = PATH_INPUT},
	{"text", "FILE", "the bytes of a text as tokens", TAKES_STRING, RUN(text), .commands = TRAINING | PREDICT, .path = PATH_INPUT},
	{"fill", "NAME=HOW", "inputs that need no data: ones, zeros, iota or a number", TAKES_CALL,
	 RUN(fill), .set = set_pair, .repeats = true, .one_per_name = true},
	{"scale", "NAME=MUL[,ADD]", "turns u8 values into floats", TAKES_CALL, RUN(scale),
	 .set = set_pair, .repeats = true, .one_per_name = true},
	{"mean-std", "NAME=FILE", "f32 .npy [2,C]: means and deviations of channels", TAKES_CALL,
	 RUN(mean_std), .set = set_pair, .repeats = true, .one_per_name = true, .paths = reads_named_files},
	{"steps", "N", "steps in all (those of --epochs)", TAKES_INT, RUN(steps), .most = GRADC_MOST_STEPS, .group = "Length", .commands = TRAINING},
	{"epochs", "N", "passes over the data (1)", TAKES_INT, RUN(epochs), .most = GRADC_MOST_PARTS, .commands = TRAINING},
	{"accumulate", "N", "micro-batches a step (1, or computed from --global-batch)", TAKES_INT, RUN(accumulate), .least = 1, .most = GRADC_MOST_PARTS, .commands = TRAINING},
	{"global-batch", "N", "rows of a step over all ranks: sets --accumulate, or must agree with it", TAKES_INT, RUN(global_batch),
	 .least = 1, .most = GRADC_MOST_PARTS, .origin = RUN(global_batch_origin), .commands = TRAINING},
	{"micro-batch", "N", "rows of a micro-batch, one of the compiled numbers (the largest for which the data fill a step)", TAKES_INT, RUN(micro_batch),
	 .least = 1, .most = GRADC_MOST_PARTS, .origin = RUN(micro_batch_origin), .commands = TRAINING | EVAL | PREDICT},
	{"shuffle", "on|off", "another order of the rows in every epoch (on)", TAKES_SWITCH,
	 RUN(shuffle), .commands = TRAINING},
	{"seed", "N", "seed of the order and of random initial values (0)", TAKES_UINT, RUN(seed)},
	{"keep-last", NULL, "pads the last partial batch instead of dropping it", TAKES_FLAG,
	 RUN(keep_last), .commands = TRAINING},
#define FINITE RANGE_NOT_NEGATIVE
#define LESS_1 RANGE_BELOW_1
#define HYPER(index, name, option, below, help) \
	{option, "X", help, TAKES_DOUBLE, RUN(name), .range = below, .group = SCALAR_##index == 0 ? "Hyperparameters" : NULL, .commands = TRAINING},
#include "base/numbers/optimizer_list.def"
	{"lr-schedule", NULL, "how the learning rate changes (constant); polynomial[,power=1], step[,size=30,gamma=0.1], "
	 "one-cycle[,pct_start=0.3,div_factor=25,final_div_factor=10000], "
	 "plateau[,factor=0.1,patience=10], also threshold=0.0001, cooldown=0, eps=1e-08, by the losses of --eval-every; DeepSpeed's schedules: deepspeed-warmup[,steps=1000,log=1], "
	 "deepspeed-decay, -cosine[,steps=1000,log=1,total=N], -range[,size=2000,rate=1,stairs=0], -cycle[,first=2000,second=2000,size=0,rate=0]", TAKES_STRING,
	 RUN(lr_schedule), .nth = nth_schedule, .commands = TRAINING},
	{"find-lr", "MIN,MAX", "suggests a learning rate instead of training: it grows from MIN to MAX over --steps, and stdout gets the losses",
	 TAKES_CALL, CLI(find_lr), .set = set_find_lr, .commands = TRAINING},
	{"warmup", "N", "steps of linear warm-up (0)", TAKES_INT, RUN(warmup), .commands = TRAINING},
	{"min-lr", "X", "learning rate at the end (0)", TAKES_DOUBLE, RUN(min_lr), .range = RANGE_NOT_NEGATIVE, .commands = TRAINING},
	{"clip-norm", "X", "clips the global norm of the gradients (off)", TAKES_DOUBLE,
	 RUN(clip_norm), .range = RANGE_POSITIVE, .commands = TRAINING},
	{"clip-value", "X", "clamps each element of the gradients to [-X, X], before --clip-norm (off)", TAKES_DOUBLE,
	 RUN(clip_value), .range = RANGE_POSITIVE, .commands = TRAINING},
	{"eval-data", "NAME=FILE", "evaluation data, as --data", TAKES_CALL, RUN(eval_data),
	 .set = set_pair, .repeats = true, .group = "Evaluation", .commands = TRAINING | EVAL, .paths = reads_named_files},
	{"eval-tokens", "FILE", "as --tokens", TAKES_STRING, RUN(eval_tokens), .commands = TRAINING | EVAL, .path = PATH_INPUT},
	{"eval-text", "FILE", "as --text", TAKES_STRING, RUN(eval_text), .commands = TRAINING | EVAL, .path = PATH_INPUT},
	{"split", "X[,SEED]", "holds the share X of the training rows out for evaluation, by class where labels are classes", TAKES_STRING, RUN(split), .commands = TRAINING},
	{"eval-every", "N", "evaluates every N steps, and before and after training (0: only before and after)", TAKES_INT,
	 CLI(eval_every), .commands = TRAINING},
	{"metric", "NAME", "decides which evaluation is the best: accuracy, topN, f1, auc, r2, mae, perplexity ...; `eval` shows those of the model (loss)", TAKES_STRING, RUN(metric), .words = metric_word, .commands = TRAINING},
	{"early-stop", "N[,min-delta=X]", "ends training after N evaluations in a row that are not better by more than X (0)", TAKES_STRING, RUN(early_stop), .commands = TRAINING},
	{"save", "DIR", "checkpoints: at the end, and when a signal stops training", TAKES_STRING,
	 RUN(save), .group = "Checkpoints", .commands = TRAINING, .paths = writes_checkpoints},
	{"save-every", "N", "saves every N steps as well, in the background", TAKES_INT,
	 CLI(save_every), .least = 1, .commands = TRAINING},
	{"keep", "N", "keeps the newest N checkpoints (all)", TAKES_INT, RUN(keep), .least = 1, .commands = TRAINING},
	{"keep-best", NULL, "also keeps the checkpoint of the best evaluation, and exports its weights", TAKES_FLAG,
	 RUN(keep_best), .commands = TRAINING},
	{"resume", "DIR|auto", "continues from a checkpoint or the newest of a folder; auto: the newest of --save, "
	 "else starts fresh", TAKES_STRING, RUN(resume), .paths = reads_checkpoints},
	{"load", "FILE.safetensors|FILE.onnx", "other initial weights, by name; a prefix of all names, such as \"model.\", may differ", TAKES_STRING, RUN(load),
	 .group = "Weights and single runs", .path = PATH_INPUT},
	{"load-adapter", "DIR", "other initial adapters, as PEFT or --export-adapter wrote them", TAKES_STRING, RUN(load_adapter), .paths = reads_adapter},
	{"adapter", "NAME", "the adapter of that name that is kept in the executable (gradc compile --load-adapter)", TAKES_STRING, RUN(adapter)},
	{"merge", NULL, "adds the loaded adapters to their weights, and starts new ones", TAKES_FLAG, RUN(merge)},
	{"unmerge", NULL, "subtracts the loaded adapters from weights that hold the sums", TAKES_FLAG, RUN(unmerge)},
	{"weights", "FILE", "the initial weights, if they are not embedded", TAKES_STRING,
	 RUN(weights), .path = PATH_INPUT},
	{"once", NULL, "one forward run on --input files, results to --output-dir", TAKES_FLAG,
	 CLI(once), .commands = TRAINING | ONCE},
	{"input", "NAME=FILE.npy", "with --once: a whole input; repeatable", TAKES_CALL, CLI(inputs),
	 .set = set_pair, .repeats = true, .commands = ONCE, .paths = reads_named_files},
	{"output-dir", "DIR", "with --once: where NAME.npy and names.json go", TAKES_STRING,
	 CLI(output_dir), .commands = ONCE, .path = PATH_FOLDER},
	{"export", "FILE.onnx|FILE.safetensors", "at the end: the trained model; or its weights alone, under the names of the exported module", TAKES_STRING, CLI(export), .commands = TRAINING, .paths = writes_model},
	{"export-merged", "FILE.onnx|FILE.safetensors", "at the end: the model without adapters, with their products added to its weights", TAKES_STRING, CLI(export_merged), .commands = TRAINING, .paths = writes_model},
	{"export-adapter", "DIR", "at the end: the adapters alone, as PEFT reads them", TAKES_STRING, CLI(export_adapter), .commands = TRAINING, .paths = writes_adapter},
	{"export-weights", "best|last|ema", "what --export writes: the weights of the best step, of the last one, or their moving averages (best with --keep-best, otherwise last)", TAKES_CHOICE,
	 RUN(export_weights), .commands = TRAINING},
	{"export-form", "inference|as-imported", "batch norms and dropout in exported models: as evaluation computes them, or as in the compiled file (inference)", TAKES_CHOICE,
	 RUN(export_form), .commands = TRAINING},
	{"export-preprocessing", "on|off", "writes --scale and --mean-std into exported models, whose inputs then take the values of the data files (off)", TAKES_SWITCH,
	 RUN(export_preprocessing), .commands = TRAINING},
	{"output", "FILE|DIR/", "what is predicted: FILE.npy (the raw output), FILE.csv, FILE.jsonl, or DIR/ with a .npy for each output (.jsonl to standard output)",
	 TAKES_STRING, CLI(output), .group = "Predictions", .commands = PREDICT, .paths = writes_predictions},
	{"classes", "FILE", "names of the classes, one a line", TAKES_STRING, CLI(classes), .commands = EVAL | PREDICT, .path = PATH_INPUT},
	{"log", "FILE.jsonl", "a JSON line for every step", TAKES_STRING, CLI(log),
	 .group = "What is shown and written", .commands = TRAINING | EVAL, .path = PATH_STREAM},
	{"tensorboard", "DIR", "an event file with the numbers of the log", TAKES_STRING,
	 CLI(tensorboard), .commands = TRAINING, .path = PATH_FOLDER},
	{"report", "FILE.html", "at the end: a page with curves, settings, memory, and where the time "
	 "went", TAKES_STRING, CLI(report), .commands = TRAINING, .path = PATH_OUTPUT},
	{"trace", "FILE.json", "what happened when, down to kernels; opens in Perfetto", TAKES_STRING,
	 RUN(trace), .path = PATH_OUTPUT},
	{"progress", "auto|bar|plain|off", "what is shown during training (auto)", TAKES_CHOICE,
	 CLI(progress), .commands = TRAINING | ONCE},
	{"table", "auto|full|off", "the table before training (auto: cut in the middle)", TAKES_CHOICE,
	 CLI(table), .commands = TRAINING | ONCE},
	{"find-nan", NULL, "if the loss or norm is not finite: names the ONNX node that made the first NaN or infinity, and its operands",
	 TAKES_FLAG, RUN(find_nan), .commands = TRAINING},
	{"dump-gradients", "DIR", "grad.NAME.npy of the first step, before clipping", TAKES_STRING,
	 CLI(dump_gradients), .commands = TRAINING, .path = PATH_FOLDER},
	{"device", "cpu|cuda[:N]", "where to run (a GPU that runs the compiled code, otherwise the CPU)", TAKES_STRING,
	 RUN(device), .group = "The machine"},
	{"target", "cpu:NAME|cuda:NAME", "which of the compiled targets runs (the best that the devices of all ranks run)",
	 TAKES_STRING, RUN(target)},
	{"threads", "N", "number of computing threads (one per CPU; one for short steps)", TAKES_INT,
	 RUN(threads), .least = 1},
	{"deterministic", NULL, "the same bits with any number of threads", TAKES_FLAG,
	 RUN(deterministic)},
	{"libraries", "on|off", "products by oneDNN or cuBLASLt, if they are faster (on)", TAKES_SWITCH,
	 RUN(libraries)},
	{"tune", "off|FILE",
	 "engines of a GPU's libraries are timed at the start, and checkpoints keep the choices; off: the first engine that a library offers; FILE: keeps them, too",
	 TAKES_STRING, RUN(tune), .path = PATH_SHARED},
	{"data-parallel", "ddp|zero1|zero2|zero3",
	 "what ranks hold only in parts: nothing (ddp); the optimizer's states (zero1); gradients as well (zero2); weights as well (zero3); one of the compiled modes", TAKES_CHOICE,
	 RUN(data_parallel), .commands = TRAINING | EVAL | PREDICT},
	{"offload", "optimizer,params", "states in the host's memory; must be what was compiled", TAKES_STRING, RUN(offload), .commands = TRAINING | EVAL | PREDICT},
	{"offload-dir", "DIR", "offloaded states are in a nameless file in this folder instead of the host's memory", TAKES_STRING, RUN(offload_folder),
	 .commands = TRAINING | EVAL | PREDICT, .path = PATH_FOLDER},
	{"shard-size", "N", "ranks in a group that holds all parts together; further groups hold copies (all ranks)", TAKES_INT, RUN(shard_size),
	 .least = 1, .commands = TRAINING | EVAL | PREDICT},
	{"reduce", "ordered|fast", "sums over ranks: in the order of the ranks, or in any order (ordered up to 8 ranks)",
	 TAKES_CHOICE, RUN(reduce), .commands = TRAINING},
	{"collectives", "auto|nccl|host", "collectives of GPUs: by NCCL, or through the host's memory (NCCL if each rank has a GPU of its own)",
	 TAKES_CHOICE, RUN(collectives), .commands = TRAINING | EVAL | PREDICT},
	{"info", NULL, "shows what is compiled in; runs nothing", TAKES_FLAG, CLI(info),
	 .group = "Other"},
	{"json", NULL, "results as JSON", TAKES_FLAG, CLI(json)},
	{"help", NULL, "this text; with --json as JSON", TAKES_FLAG, CLI(help), .letter = 'h'},
	{"quiet", NULL, "only errors and results: no warnings, no table (--table=off), no progress (--progress=off)", TAKES_FLAG, CLI(quiet), .letter = 'q'},
	{"verbose", NULL, "also every parameter in the table (--table=full), and which library or code computes each product", TAKES_FLAG, CLI(verbose), .letter = 'v'},
	{"version", NULL, "the version of gradc that compiled this program", TAKES_FLAG, CLI(version)},
	{"completion", "bash|zsh|fish", "prints a script that completes this program's command lines: source <(./train --completion bash)", TAKES_CHOICE, CLI(completion)},
	{"config", "FILE", "options from a file, one `name = value` a line, or DeepSpeed's JSON; the command line wins", TAKES_CONFIG, CLI(configs), .path = PATH_INPUT},
	{"backward", NULL, NULL, TAKES_FLAG, CLI(backward)},  /* with --once: for gradc grad */
	/* with --once: for gradc grad */
	{"check-gradients", "N", NULL, TAKES_INT, CLI(check_gradients), .least = 1},
	/* for gradc run and gradc grad: ends when that process ends */
	{"parent", "PID", NULL, TAKES_INT, CLI(parent), .least = 1},
	{"output-format", "npy", NULL, TAKES_KNOWN, CLI(ignored)},
	/* for tests: freed memory holds NaN */
	{"poison", NULL, NULL, TAKES_FLAG, RUN(poison)},
	{"shard-bytes", "N", NULL, TAKES_INT, RUN(shard_bytes), .least = 1}, /* for tests */
};
/* clang-format on */

static const char *const modes[] = {"training", "--once", "eval", "predict", NULL};
static const OptionTable table = {rows, COUNT(rows), "this program", .section = "executable",
                                  .command_names = modes};

static bool
exports_models(const CliOptions *o)
{
	const char *paths[] = {o->export, o->export_merged};
	bool any = false;

	for (int i = 0; i < COUNT(paths); i++)
		any |= paths[i] && !export_is_weights(paths[i]);
	return any;
}

/* Checks options that need another option, and options without effect. */
static bool
check_needs(const CliOptions *o, Diag *diag)
{
	const struct {
		bool given, there;
		const char *option, *needs;
	} needs[] = {
		{o->once, o->output_dir != NULL, "--once", "--output-dir DIR"},
		{o->save_every > 0, o->run.save != NULL, "--save-every", "--save DIR"},
		{o->run.keep > 0, o->run.save != NULL, "--keep", "--save DIR"},
		{o->run.keep_best, o->run.save != NULL, "--keep-best", "--save DIR"},
		{o->run.export_weights != NULL, o->export || o->export_merged || o->export_adapter,
	         "--export-weights", "--export FILE.onnx"},
		{o->run.export_weights && strcmp(o->run.export_weights, "best") == 0,
	         o->run.keep_best || o->run.resume, "--export-weights=best",
	         "--keep-best, or --resume of a training with it"},
		{o->run.early_stop != NULL, o->eval_every > 0, "--early-stop",
	         "--eval-every N, whose evaluations it counts"},
		{o->run.export_form != NULL, exports_models(o), "--export-form",
	         "--export FILE.onnx"},
		{o->run.export_preprocessing, exports_models(o), "--export-preprocessing",
	         "--export FILE.onnx"},
		{lr_schedule_is(o->run.lr_schedule, "plateau"), o->eval_every > 0,
	         "--lr-schedule=plateau", "--eval-every N, whose losses it follows"},
		{o->find_lr[0] > 0, o->run.steps > 0, "--find-lr", "--steps N, as 100"},
		{o->run.merge, o->run.load_adapter || o->run.adapter, "--merge",
	         "--load-adapter DIR or --adapter NAME"},
		{o->run.unmerge, o->run.load_adapter || o->run.adapter, "--unmerge",
	         "--load-adapter DIR or --adapter NAME"},
		{!o->word && o->run.resume && strcmp(o->run.resume, "auto") == 0,
	         o->run.save != NULL, "--resume=auto", "--save DIR"},
	};
	bool ok = true;

	if (o->word && o->run.resume && strcmp(o->run.resume, "auto") == 0) {
		diag_error(diag, EXIT_USAGE, "--resume=auto: has no meaning for `%s`",
		           o->word->name);
		diag_hint(diag, "--resume DIR takes the newest checkpoint of a folder");
		ok = false;
	}
	for (int i = 0; i < COUNT(needs); i++)
		if (needs[i].given && !needs[i].there) {
			diag_error(diag, EXIT_USAGE, "%s needs %s", needs[i].option,
			           needs[i].needs);
			ok = false;
		}
	if (ok && o->run.min_lr > 0 && strcmp(o->run.lr_schedule, "constant") == 0) {
		diag_warning(diag, "--min-lr: has no meaning for a constant learning rate");
		diag_hint(diag, "--lr-schedule linear, cosine, wsd or polynomial ends there");
	}
	return ok;
}

/* --find-lr writes no checkpoints or exports, and sets the learning rate itself. */
enum { MOST_SWEPT = 1000000 }; /* most steps of --find-lr */
static bool
check_find_lr(const CliOptions *o, Diag *diag)
{
	const struct {
		bool given;
		const char *option;
	} refused[] = {
		{o->run.save != NULL, "--save"},
		{o->run.resume != NULL, "--resume"},
		{o->export != NULL, "--export"},
		{o->export_merged != NULL, "--export-merged"},
		{o->export_adapter != NULL, "--export-adapter"},
		{o->dump_gradients != NULL, "--dump-gradients"},
		{!isnan(o->run.lr), "--lr"},
		{strcmp(o->run.lr_schedule, "constant") != 0, "--lr-schedule"},
		{o->run.warmup > 0, "--warmup"},
		{o->eval_every > 0, "--eval-every"},
		{!isnan(o->run.min_lr), "--min-lr"},
	};
	bool ok = o->find_lr[0] <= 0 || o->run.steps <= MOST_SWEPT;

	if (!ok)
		diag_error(diag, EXIT_USAGE,
		           "--find-lr: --steps=%lld is more than %d; a hundred are enough",
		           (long long)o->run.steps, MOST_SWEPT);
	for (int i = 0; i < COUNT(refused); i++)
		if (o->find_lr[0] > 0 && refused[i].given) {
			diag_error(
				diag, EXIT_USAGE,
				"--find-lr and %s: one of them: it looks for a learning rate, and "
				"trains nothing",
				refused[i].option);
			ok = false;
		}
	return ok;
}

static bool
has_word(int argc, char **argv, const char *word)
{
	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], word) == 0)
			return true;
	return false;
}

/* Refuses unknown schedules, and the schedule that is reserved for --find-lr. The name of a schedule ends at a comma. */
static bool
check_schedule(const CliOptions *o, Arena *arena, Diag *diag)
{
	const char *text = o->run.lr_schedule;
	OptionUse use = {.value = text, .arena = arena, .diag = diag};

	if (strncmp(text, "sweep", 5) == 0) {
		diag_error(diag, EXIT_USAGE, "--lr-schedule: \"%s\" is what --find-lr does", text);
		return false;
	}
	for (int i = 0; lr_schedule_names[i]; i++)
		if (lr_schedule_is(text, lr_schedule_names[i]))
			return true;
	for (int i = 0; i < COUNT(rows); i++)
		if (rows[i].offset == RUN(lr_schedule))
			use.row = &rows[i];
	diag_error(diag, EXIT_USAGE, "--lr-schedule=%s: need one of %s", text,
	           option_values(arena, use.row));
	option_hint(&use, arena_strndup(arena, text, strcspn(text, ",")), NULL);
	return false;
}

/* The word before the options; NULL: none. */
static const Word *
word_of(int argc, char **argv)
{
	return argc > 1 ? word_find(argv[1]) : NULL;
}

/* The table for a command line with these words. */
static OptionTable
table_of_mode(Arena *arena, int argc, char **argv)
{
	OptionTable of_mode = table;
	const Word *word = word_of(argc, argv);
	bool once = !word && has_word(argc, argv, "--once");

	of_mode.command = word ? word->commands : once ? ONCE : TRAINING;
	of_mode.mode = word ? word->name : once ? "--once" : "training";
	of_mode.program = argc ? plain_text(arena, argv[0]) : table.program;
	if (word)
		of_mode.program = arena_printf(arena, "%s %s", of_mode.program, word->name);
	return of_mode;
}

/* What --quiet and --verbose change. */
static bool
apply_verbosity(CliOptions *o, Diag *diag)
{
	if (o->quiet && o->verbose) {
		diag_error(diag, EXIT_USAGE, "--quiet and --verbose: one of them");
		return false;
	}
	if (o->quiet)
		diag_be_quiet(diag);
	if (!o->progress)
		o->progress = o->quiet ? "off" : "auto";
	if (!o->table)
		o->table = o->quiet ? "off" : o->verbose ? "full" : "auto";
	return true;
}

static void
hint_words(Arena *arena, Diag *diag, const char *given)
{
	WordGuess guess = guess_open(given);
	const char *list = "";

	for (const Word *w = words; w->name; w++) {
		guess_offer(&guess, w->name);
		list = arena_printf(arena, "%s%s%s", list, *list ? ", " : "", w->name);
	}
	hint_guess(diag, &guess, "",
	           arena_printf(arena, "words that may stand before the options: %s", list));
}

/* Refuses unknown metrics. Whether the model has the metric is known when its data are bound. */
static bool
check_metric(const CliOptions *o, Arena *arena, Diag *diag)
{
	const char *name = o->run.metric;
	OptionUse use = {.value = name, .arena = arena, .diag = diag};

	if (!name || metric_find(name).row)
		return true;
	for (int i = 0; i < COUNT(rows); i++)
		if (rows[i].offset == RUN(metric))
			use.row = &rows[i];
	diag_error(diag, EXIT_USAGE, "--metric=%s: no such metric", name);
	option_hint(&use, name, "`eval` shows the metrics of the model");
	return false;
}

bool
options_parse(Arena *arena, Diag *diag, int argc, char **argv, CliOptions *out)
{
	StringList rest = {0};
	OptionTable of_mode = table_of_mode(arena, argc, argv);
	const Word *word = word_of(argc, argv);
	int skipped = word != NULL;

	*out = (CliOptions){.run = gradc_default_options(), .word = word};
	out->run.accumulate = 0; /* 0 until an option sets it */
	out->run.every_metric = word != NULL;
	of_mode.uses = &out->paths;
	bool ok = options_read(&of_mode, out, argc - skipped, argv + skipped, &rest, arena, diag);
	if (ok && (out->help || out->version || out->completion))
		return true;
	ok = apply_verbosity(out, diag) && ok;
	out->run.profile = out->report != NULL;
	if (of_mode.command != TRAINING && !out->run.tune)
		out->run.tune = "off"; /* a pass over data does not wait for trials */
	for (int i = 0; i < rest.n; i++) {
		diag_error(diag, EXIT_USAGE, "unexpected argument `%s`", rest.at[i]);
		hint_words(arena, diag, rest.at[0]);
		ok = false;
	}
	if (out->run.accumulate == 0 && out->run.global_batch == 0)
		out->run.accumulate = 1;
	if (!ok || !check_schedule(out, arena, diag) || !check_metric(out, arena, diag) ||
	    !check_needs(out, diag) || !check_find_lr(out, diag))
		return false;
	if (out->find_lr[0] > 0)
		out->run.lr_schedule = arena_printf(arena, "sweep,low=%.17g,high=%.17g",
		                                    out->find_lr[0], out->find_lr[1]);
	return true;
}

/* ---- values as JSON; NULL if there is nothing to show */
static json_t *
show_pairs(const void *at)
{
	const GradcPairs *pairs = at;
	json_t *list = pairs->n ? json_array() : NULL;

	for (int i = 0; i < pairs->n; i++) {
		Text t = {0};
		text_printf(&t, "%s=%s", pairs->at[i].name, pairs->at[i].value);
		json_array_append_new(list, json_name(t.at));
		text_free(&t);
	}
	return list;
}

static json_t *
show_string(const void *at)
{
	const char *text = *(const char *const *)at;

	return text ? json_name(text) : NULL;
}

static json_t *
show_int(const void *at)
{
	int64_t value = *(const int64_t *)at;

	return value < 0 ? NULL : json_integer(value);
}

static json_t *
show_uint(const void *at)
{
	return json_uint(*(const uint64_t *)at);
}

static json_t *
show_double(const void *at)
{
	double value = *(const double *)at;

	return isnan(value) ? NULL : json_real(value);
}

static json_t *
show_flag(const void *at)
{
	return *(const bool *)at ? json_string("on") : NULL;
}

static json_t *
show_switch(const void *at)
{
	return json_string(*(const bool *)at ? "on" : "off");
}

static json_t *(*const show[])(const void *) = {
	[TAKES_STRING] = show_string,
	[TAKES_CHOICE] = show_string,
	[TAKES_KNOWN] = show_string,
	[TAKES_UINT] = show_uint,
	[TAKES_INT] = show_int,
	[TAKES_DOUBLE] = show_double,
	[TAKES_FLAG] = show_flag,
	[TAKES_SWITCH] = show_switch,
	/* values stored by set_pair; options_json leaves out --find-lr, which has no such values */
	[TAKES_CALL] = show_pairs,
	[TAKES_NOTHING] = NULL,
	[TAKES_CONFIG] = NULL,
};

json_t *
options_json(const CliOptions *o)
{
	json_t *settings = json_object();

	for (int i = 0; i < COUNT(rows); i++) {
		bool shown = show[rows[i].takes] && rows[i].help &&
		             rows[i].offset != CLI(ignored) && rows[i].offset != CLI(find_lr) &&
		             rows[i].offset != CLI(completion);
		json_t *value = shown ? show[rows[i].takes]((const char *)o + rows[i].offset)
		                      : NULL;

		if (value)
			json_object_set_new(settings, rows[i].name, value);
	}
	return settings;
}

static OptionTable
table_of_word(const Word *word)
{
	OptionTable plain = table;

	plain.command_names = NULL;
	plain.command = word ? word->commands : 0;
	return plain;
}

void
options_help(FILE *out, const char *program, const Word *word)
{
	OptionTable plain = table_of_word(word);

	if (word) {
		fprintf(out, "usage: %s %s [options]\n\n%s\n", program, word->name, word->help);
	} else {
		fprintf(out,
		        "usage: %s [word] [options]\n\nA training executable made by gradc.\n\n"
		        "Words:\n",
		        program);
		for (const Word *w = words; w->name; w++)
			help_entry(out, 2, w->name, w->help);
		fprintf(out, "  WORD --help lists the options of a word\n");
	}
	options_print(out, &plain);
}

void
options_help_as_json(FILE *out, const Word *word)
{
	OptionTable plain = table_of_word(word);
	json_t *list = json_array();

	for (const Word *w = words; !word && w->name; w++)
		json_array_append_new(list,
		                      json_pack("{s:s,s:s}", "name", w->name, "help", w->help));
	json_t *root = json_pack("{s:o,s:o}", "words", list, "options", options_help_json(&plain));
	json_dumpf(root, out, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
	fprintf(out, "\n");
	json_decref(root);
}

void
options_complete(Arena *arena, const GradcModel *model, int n, char **line)
{
	OptionTable of_mode = table_of_mode(arena, n, line);
	int skipped = 1 + (word_of(n, line) && n > 2);
	StringList names = {0};
	StrMap *seen = strmap_new(arena); /* several programs have the same inputs */
	Format f;
	Status status = format_read(model->blob, model->bytes, &f);

	for (int i = 0; !status && i < f.n[SECTION_PORTS]; i++) {
		const char *name = format_text(&f, f.ports[i].name);
		if (port_is_input(f.ports[i].kind) && f.ports[i].kind != PORT_WEIGHT &&
		    !strmap_get(seen, name))
			vec_push(arena, &names, name);
		strmap_put(seen, name, &names);
	}
	status_free(status);
	of_mode.names = &names;
	for (const Word *w = words; n == 2 && w->name; w++)
		completion_word(stdout, line[1], w->name, w->help);
	completion_print(stdout, &of_mode, n - skipped, line + skipped);
}

/* Every option of every subcommand, once. */
#include "tools/tools.h"

#include <getopt.h>
#include <ini.h>
#include <stdlib.h>
#include <string.h>

typedef enum {
	TAKES_STRING,
	TAKES_LIST,
	TAKES_INT,
	TAKES_DOUBLE,
	TAKES_FLAG,
	TAKES_RULE, /* a line of --train, --freeze ...: kept in order */
	TAKES_INIT, /* --init: random, model, or a rule */
	TAKES_ONLY, /* only its default; anything else is not in this build */
} OptionTakes;
typedef struct {
	const char *name, *value, *help;
	OptionTakes takes;
	size_t offset;
	const char *only;          /* TAKES_ONLY: the values that do nothing, space-separated */
	const char *(*nth)(int i); /* the rows that the option names, for the help; NULL: none */
} OptionRow;

static const char *
nth_loss(int i)
{
	return loss_table[i] ? loss_table[i]->name : NULL;
}

static const char *
nth_optimizer(int i)
{
	return optimizer_table[i] ? optimizer_table[i]->name : NULL;
}

/* clang-format off */
#define AT(field) offsetof(Options, field)
static const OptionRow option_rows[] = {
	{"output", "FILE", "what to write (-o)", TAKES_STRING, AT(output), NULL},
	{"output-dir", "DIR", "where results go", TAKES_STRING, AT(output_dir), NULL},
	{"dim", "NAME=N[,N...]", "binds a symbolic dimension; several values: several programs", TAKES_LIST, AT(dims), NULL},
	{"batch", "N", "binds the leading dimension of every input", TAKES_INT, AT(batch), NULL},
	{"loss", "LOSS", "each [:OUTPUT[,target=INPUT][,axis=N]]; or output:NAME[,count=NAME], "
	 "onnx:FILE[,count=NAME]", TAKES_STRING, AT(loss), .nth = nth_loss},
	{"label-smoothing", "X", "for cross_entropy and nll", TAKES_DOUBLE, AT(label_smoothing), NULL},
	{"class-weight", "FILE.npy", "for cross_entropy and nll", TAKES_STRING, AT(class_weight), NULL},
	{"optimizer", "NAME", "with PyTorch's semantics", TAKES_STRING, AT(optimizer),
	 .nth = nth_optimizer},
	{"precision", "P", "f32 or f64", TAKES_STRING, AT(precision), NULL},
	{"train", "GLOB", "trains these parameters", TAKES_RULE, 0, NULL},
	{"freeze", "GLOB", "keeps these parameters as they are", TAKES_RULE, 0, NULL},
	{"decay", "GLOB", "weight decay applies to these", TAKES_RULE, 0, NULL},
	{"no-decay", "GLOB", "weight decay leaves these out", TAKES_RULE, 0, NULL},
	{"lr-scale", "GLOB=X", "multiplies their learning rate", TAKES_RULE, 0, NULL},
	{"init", "HOW", "model, random, or GLOB=normal(M,S), uniform(A,B), zeros, ones", TAKES_INIT, 0,
	 NULL},
	{"fill", "NAME=HOW", "makes an input ones, zeros, iota or a number", TAKES_LIST, AT(fills), NULL},
	{"tie", "A=B", "trains B as A", TAKES_LIST, AT(ties), NULL},
	{"no-tie", "A", "unties what import tied", TAKES_LIST, AT(no_ties), NULL},
	{"repair", "NAME", "switches an import repair on", TAKES_LIST, AT(repairs), NULL},
	{"no-repair", "NAME", "switches an import repair off", TAKES_LIST, AT(no_repairs), NULL},
	{"train-mode", "MODE", "keep or restore dropout and batch statistics", TAKES_STRING,
	 AT(train_mode), NULL},
	{"eval-mode", "MODE", "inference or as-exported", TAKES_STRING, AT(eval_mode), NULL},
	{"weights", "WHERE", "embed, or a FILE beside the executable", TAKES_STRING, AT(weights), NULL},
	{"keep-metadata", NULL, "keeps exporters' stack traces", TAKES_FLAG, AT(keep_metadata), NULL},
	{"max-accumulate", "N", "most micro-batches a step", TAKES_INT, AT(max_accumulate), NULL},
	{"keep-sources", "DIR", "keeps the generated C", TAKES_STRING, AT(keep_sources), NULL},
	{"cc", "PROGRAM", "the C compiler ($CC, cc)", TAKES_STRING, AT(cc), NULL},
	{"input", "NAME=FILE", "an input of the model; repeatable", TAKES_LIST, AT(inputs), NULL},
	{"wrt", "INPUT", "also this input's gradient", TAKES_LIST, AT(wrt), NULL},
	{"check-gradients", "N", "N random entries per parameter against differences", TAKES_INT,
	 AT(check_gradients), NULL},
	{"engine", "E", "compiled or interp", TAKES_STRING, AT(engine), NULL},
	{"real", NULL, "interp: no rounding of floats", TAKES_FLAG, AT(real), NULL},
	{"output-format", "F", "npy or pb", TAKES_STRING, AT(output_format), NULL},
	{"stage", "S", "import forward train sharded fused lowered schedule memory", TAKES_STRING,
	 AT(stage), NULL},
	{"format", "F", "text dot json", TAKES_STRING, AT(format), NULL},
	{"after", "PASS", "the module after that pass", TAKES_STRING, AT(after), NULL},
	{"passes", "LIST", "a,b{x=1}", TAKES_STRING, AT(passes), NULL},
	{"dump-after", "PASS", "prints the module after a pass, or `all`", TAKES_STRING,
	 AT(dump_after), NULL},
	{"dump-dir", "DIR", "dumps become files there", TAKES_STRING, AT(dump_dir), NULL},
	{"dump-changed", NULL, "dumps after every pass that changed something", TAKES_FLAG,
	 AT(dump_changed), NULL},
	{"stop-after", "PASS", "ends there", TAKES_STRING, AT(stop_after), NULL},
	{"disable", "PASS", "leaves a pass out; repeatable", TAKES_LIST, AT(disable), NULL},
	{"enable", "PASS", "runs a pass that `gradc passes` marks as run when asked for; repeatable",
	 TAKES_LIST, AT(enable), NULL},
	{"verify-each", NULL, "verifies after every pass", TAKES_FLAG, AT(verify_each), NULL},
	{"time-passes", NULL, "a table of times", TAKES_FLAG, AT(time_passes), NULL},
	{"json", NULL, "machine-readable results", TAKES_FLAG, AT(json), NULL},
	{"table", "HOW", "full: every parameter", TAKES_STRING, AT(table), NULL},
	{"target", "T", "auto or cpu", TAKES_ONLY, AT(target), "auto cpu cpu:native"},
	{"data-parallel", "MODES", "ddp", TAKES_ONLY, AT(data_parallel), "ddp"},
	{"mesh", "M", "not in this build", TAKES_ONLY, 0, "tensor=1 pipeline=1 tensor=1,pipeline=1"},
	{"schedule", "S", "not in this build", TAKES_ONLY, 0, ""},
	{"lora", "R", "not in this build", TAKES_ONLY, 0, ""},
	{"qlora", "R", "not in this build", TAKES_ONLY, 0, ""},
	{"quantize", "Q", "not in this build", TAKES_ONLY, 0, ""},
	{"remat", "R", "not in this build", TAKES_ONLY, 0, "none off"},
	{"emit", "E", "not in this build", TAKES_ONLY, 0, "executable"},
};

/* clang-format on */

typedef struct {
	Options *o;
	Arena *arena;
	Diag *diag;
	bool ok;
} OptionSink;

static const OptionRow *
find_row(const char *name)
{
	for (int i = 0; i < COUNT(option_rows); i++)
		if (strcmp(option_rows[i].name, name) == 0)
			return &option_rows[i];
	return NULL;
}

static bool
word_in(const char *words, const char *word)
{
	size_t n = strlen(word);

	for (const char *at = words; (at = strstr(at, word)) != NULL; at += n)
		if ((at == words || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0'))
			return true;
	return false;
}

static bool
add_rule(OptionSink *s, const OptionRow *row, const char *value)
{
	if (row->takes == TAKES_INIT && strcmp(value, "model") == 0) {
		s->o->init_random = false;
		return true;
	}
	if (row->takes == TAKES_INIT && strncmp(value, "random", 6) == 0 && !strchr(value, '=')) {
		s->o->init_random = true;
		if (value[6] == '\0' || (value[6] == ':' && parse_int(value + 7, &s->o->init_seed)))
			return true;
		diag_error(s->diag, EXIT_USAGE, "--init=%s: need random or random:SEED", value);
		return false;
	}
	vec_push(s->arena, &s->o->rules, arena_printf(s->arena, "%s %s", row->name, value));
	return true;
}

static bool
set_value(OptionSink *s, const OptionRow *row, const char *value)
{
	char *at = (char *)s->o + row->offset;

	switch (row->takes) {
	case TAKES_STRING: *(const char **)at = arena_strdup(s->arena, value); return true;
	case TAKES_LIST:
		vec_push(s->arena, (StringList *)at, arena_strdup(s->arena, value));
		return true;
	case TAKES_INT:
		if (parse_int(value, (int64_t *)at) && *(int64_t *)at >= 0)
			return true;
		break;
	case TAKES_DOUBLE:
		if (parse_double(value, (double *)at))
			return true;
		break;
	case TAKES_FLAG: *(bool *)at = true; return true;
	case TAKES_RULE:
	case TAKES_INIT: return add_rule(s, row, value);
	case TAKES_ONLY:
		if (word_in(row->only, value))
			return true;
		diag_error(s->diag, EXIT_USAGE, "--%s=%s: not supported in this build", row->name,
		           value);
		return false;
	}
	diag_error(s->diag, EXIT_USAGE, "--%s=%s: need a number", row->name, value);
	return false;
}

static int
config_line(void *user, const char *section, const char *name, const char *value)
{
	OptionSink *s = user;
	const OptionRow *row = find_row(name);

	(void)section;
	if (!row) {
		diag_error(s->diag, EXIT_USAGE, "--config: unknown option %s", name);
		s->ok = false;
	} else {
		s->ok &= set_value(s, row, value);
	}
	return 1;
}

static bool
read_config(OptionSink *s, const char *path)
{
	int line = ini_parse(path, config_line, s);

	if (line < 0)
		diag_error(s->diag, EXIT_USAGE, "--config %s: cannot be read", path);
	else if (line > 0)
		diag_error(s->diag, EXIT_USAGE, "--config %s: line %d is no `name = value`", path,
		           line);
	return line == 0 && s->ok;
}

static void
print_help(const Command *c)
{
	printf("usage: gradc %s %s [options]\n%s\n\noptions (of all commands; those without meaning "
	       "here are ignored):\n",
	       c->name, c->what, c->help);
	for (int i = 0; i < COUNT(option_rows); i++) {
		char left[64];
		snprintf(left, sizeof(left), "--%s%s%s", option_rows[i].name,
		         option_rows[i].value ? "=" : "",
		         option_rows[i].value ? option_rows[i].value : "");
		printf("  %-28s ", left);
		for (int k = 0; option_rows[i].nth && option_rows[i].nth(k); k++)
			printf("%s%s", k ? " " : "", option_rows[i].nth(k));
		printf("%s%s\n", option_rows[i].nth ? ": " : "", option_rows[i].help);
	}
	printf("  %-28s %s\n", "--config=FILE", "options, one `name = value` a line");
}

enum { OPTION_CONFIG = 1000, OPTION_HELP };

static struct option *
getopt_table(Arena *arena)
{
	struct option *table = NEW_ARRAY(arena, struct option, COUNT(option_rows) + 3);
	int n = 0;

	for (; n < COUNT(option_rows); n++)
		table[n] = (struct option){option_rows[n].name,
		                           option_rows[n].takes == TAKES_FLAG ? no_argument
		                                                              : required_argument,
		                           NULL, n};
	table[n++] = (struct option){"config", required_argument, NULL, OPTION_CONFIG};
	table[n++] = (struct option){"help", no_argument, NULL, OPTION_HELP};
	return table;
}

/* The config file comes first, so that the command line wins. */
static bool
find_config(OptionSink *s, int argc, char **argv)
{
	for (int i = 0; i < argc; i++) {
		const char *path = NULL;
		if (strncmp(argv[i], "--config=", 9) == 0)
			path = argv[i] + 9;
		else if (strcmp(argv[i], "--config") == 0 && i + 1 < argc)
			path = argv[i + 1];
		if (path && !read_config(s, path))
			return false;
	}
	return true;
}

bool
options_parse(Options *o, const Command *command, int argc, char **argv, Arena *arena, Diag *diag,
              int *exit_code)
{
	OptionSink s = {o, arena, diag, true};
	struct option *table = getopt_table(arena);
	bool ok = find_config(&s, argc, argv);
	int c;

	*exit_code = EXIT_USAGE;
	opterr = 0;
	while ((c = getopt_long(argc, argv, ":o:", table, NULL)) >= 0) {
		if (c == OPTION_HELP) {
			print_help(command);
			*exit_code = EXIT_OK;
			return false;
		}
		if (c == 'o')
			o->output = optarg;
		else if (c == '?' || c == ':') {
			diag_error(diag, EXIT_USAGE, "%s %s",
			           c == '?' ? "unknown option" : "no value for", argv[optind - 1]);
			diag_hint(diag, "`gradc %s --help` lists the options", command->name);
			ok = false;
		} else if (c != OPTION_CONFIG) {
			ok &= set_value(&s, &option_rows[c], optarg ? optarg : "");
		}
	}
	if (optind < argc)
		o->input = argv[optind++];
	if (optind < argc) {
		diag_error(diag, EXIT_USAGE, "unexpected argument `%s`", argv[optind]);
		ok = false;
	}
	return ok;
}

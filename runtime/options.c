/* Options are rows of a table: name, kind, place in CliOptions, help. getopt_long's table and the
 * help text are made from it. */
#include "runtime/cli.h"

#include <getopt.h>
#include <math.h>
#include <string.h>

typedef enum {
	O_STRING,
	O_INT,
	O_DOUBLE,
	O_FLAG,
	O_ON_OFF,
	O_PAIR,
	O_CHOICE,
	O_CONFIG,
	O_ABSENT
} OptionKind;
typedef struct {
	const char *name;
	OptionKind kind;
	size_t offset;
	const char *value; /* for the help; of O_CHOICE the choices */
	const char *help;  /* NULL: hidden */
} OptionRow;

#define RUN(field) offsetof(CliOptions, run.field)
#define CLI(field) offsetof(CliOptions, field)
static const OptionRow rows[] = {
	{"data", O_PAIR, RUN(data), "NAME=FILE",
         "binds an input or labels to .npy files (or a glob), rows first"},
	{"tokens", O_STRING, RUN(tokens), "FILE", "token stream: .bin (u16), .u32.bin, .npy"},
	{"text", O_STRING, RUN(text), "FILE", "the bytes of a text as tokens"},
	{"fill", O_PAIR, RUN(fill), "NAME=ones|zeros|iota|VALUE", "inputs that need no data"},
	{"scale", O_PAIR, RUN(scale), "NAME=MUL[,ADD]", "turns u8 values into floats"},
	{"mean-std", O_PAIR, RUN(mean_std), "NAME=FILE",
         "f32 .npy [2,C]: means and deviations of channels"},
	{"steps", O_INT, RUN(steps), "N", "steps in all"},
	{"epochs", O_INT, RUN(epochs), "N", "passes over the data (1)"},
	{"accumulate", O_INT, RUN(accumulate), "N", "micro-batches a step (1)"},
	{"shuffle", O_ON_OFF, RUN(shuffle), "on|off",
         "another order of the rows in every epoch (on)"},
	{"seed", O_INT, RUN(seed), "N", "of the order and of random initial values (0)"},
	{"keep-last", O_FLAG, RUN(keep_last), NULL,
         "pads the last partial batch instead of dropping it"},
	{"lr", O_DOUBLE, RUN(lr), "X", "learning rate"},
	{"lr-schedule", O_CHOICE, RUN(lr_schedule), "constant|linear|cosine|wsd",
         "how it changes (constant)"},
	{"warmup", O_INT, RUN(warmup), "N", "steps of linear warm-up (0)"},
	{"min-lr", O_DOUBLE, RUN(min_lr), "X", "learning rate at the end (0)"},
	{"weight-decay", O_DOUBLE, RUN(weight_decay), "X", "weight decay"},
	{"beta1", O_DOUBLE, RUN(beta1), "X", "decay of the first moment"},
	{"beta2", O_DOUBLE, RUN(beta2), "X", "decay of the second moment"},
	{"eps", O_DOUBLE, RUN(eps), "X", "added to the denominator"},
	{"momentum", O_DOUBLE, RUN(momentum), "X", "momentum"},
	{"clip-norm", O_DOUBLE, RUN(clip_norm), "X",
         "clips the global norm of the gradients (off)"},
	{"eval-data", O_PAIR, RUN(eval_data), "NAME=FILE", "evaluation data, as --data"},
	{"eval-tokens", O_STRING, RUN(eval_tokens), "FILE", "as --tokens"},
	{"eval-text", O_STRING, RUN(eval_text), "FILE", "as --text"},
	{"eval-every", O_INT, CLI(eval_every), "N",
         "evaluates every N steps, besides before and after"},
	{"load", O_STRING, RUN(load), "FILE.safetensors", "other initial weights, by name"},
	{"weights", O_STRING, RUN(weights), "FILE",
         "the initial weights, when they are not embedded"},
	{"once", O_FLAG, CLI(once), NULL,
         "one forward run on --input files, results to --output-dir"},
	{"backward", O_FLAG, CLI(backward), NULL, NULL},
	{"input", O_PAIR, CLI(inputs), "NAME=FILE.npy", "with --once: a whole input"},
	{"output-dir", O_STRING, CLI(output_dir), "DIR",
         "with --once: where NAME.npy and names.json go"},
	{"output-format", O_CHOICE, CLI(output_format), "npy", "with --once"},
	{"export", O_STRING, CLI(export), "FILE.onnx", "at the end: the trained model"},
	{"log", O_STRING, CLI(log), "FILE.jsonl", "a JSON line for every step"},
	{"progress", O_CHOICE, CLI(progress), "auto|bar|plain|off",
         "what is shown meanwhile (auto)"},
	{"table", O_CHOICE, CLI(table), "auto|full|off",
         "the table before training (auto: cut in the middle)"},
	{"dump-gradients", O_STRING, CLI(dump_gradients), "DIR",
         "grad.NAME.npy of the first step, before clipping"},
	{"device", O_STRING, RUN(device), "cpu", "where to run (cpu)"},
	{"threads", O_INT, CLI(threads), "N", "accepted; this build computes on one thread"},
	{"deterministic", O_FLAG, CLI(deterministic), NULL, "accepted; this build always is"},
	{"poison", O_FLAG, RUN(poison), NULL, NULL},
	{"info", O_FLAG, CLI(info), NULL, "what is compiled in; nothing is run"},
	{"json", O_FLAG, CLI(json), NULL, "results as JSON"},
	{"config", O_CONFIG, 0, "FILE", "options from an INI file; the command line wins"},
	{"help", O_FLAG, CLI(help), NULL, "this text"},
	{"save", O_ABSENT, 0, "DIR", NULL},
	{"save-every", O_ABSENT, 0, "N", NULL},
	{"keep", O_ABSENT, 0, "N", NULL},
	{"keep-best", O_ABSENT, 0, NULL, NULL},
	{"resume", O_ABSENT, 0, "DIR", NULL},
	{"tensorboard", O_ABSENT, 0, "DIR", NULL},
	{"trace", O_ABSENT, 0, "FILE", NULL},
	{"offload", O_ABSENT, 0, "WHAT", NULL},
	{"data-parallel", O_CHOICE, 0, "ddp", NULL},
};

typedef struct {
	Arena *arena;
	Diag *diag;
	CliOptions *o;
	const OptionRow *row;
	const char *value;
	bool from_config;
} Setting;

static bool
malformed(const Setting *s, const char *what)
{
	diag_error(s->diag, EXIT_USAGE, "--%s: \"%s\" is %s", s->row->name, s->value, what);
	return false;
}

static bool
set_string(const Setting *s, void *at)
{
	*(const char **)at = s->value;
	return true;
}

static bool
set_int(const Setting *s, void *at)
{
	if (parse_int(s->value, at) && *(int64_t *)at >= 0)
		return true;
	return malformed(s, "not a whole number from 0");
}

static bool
set_double(const Setting *s, void *at)
{
	if (parse_double(s->value, at) && isfinite(*(double *)at))
		return true;
	return malformed(s, "not a number");
}

static bool
set_flag(const Setting *s, void *at)
{
	bool off = s->value && strcmp(s->value, "off") == 0;

	*(bool *)at = !off;
	return !s->value || off || strcmp(s->value, "on") == 0 ||
	       malformed(s, "neither on nor off");
}

static bool
set_on_off(const Setting *s, void *at)
{
	return set_flag(s, at);
}

/* Pairs of the command line take the place of those of the same name in the config file. */
static bool
set_pair(const Setting *s, void *at)
{
	GradcPairs *pairs = at;
	const char *equal = strchr(s->value, '=');

	if (!equal || equal == s->value || !equal[1])
		return malformed(s, "not NAME=VALUE");
	GradcPair pair = {arena_strndup(s->arena, s->value, (size_t)(equal - s->value)), equal + 1};
	vec_push(s->arena, pairs, pair);
	return true;
}

static bool
set_choice(const Setting *s, void *at)
{
	const char *choices = s->row->value;

	for (const char *c = choices; c; c = strchr(c, '|') ? strchr(c, '|') + 1 : NULL) {
		size_t n = strcspn(c, "|");
		if (strlen(s->value) == n && memcmp(c, s->value, n) == 0) {
			if (s->row->offset || s->row->help)
				*(const char **)at = s->value;
			return true;
		}
	}
	diag_error(s->diag, EXIT_USAGE,
	           s->row->help ? "--%s: \"%s\" is none of %s"
	                        : "--%s: %s: not supported in this build (%s)",
	           s->row->name, s->value, choices);
	return false;
}

static bool
set_absent(const Setting *s, void *at)
{
	diag_error(s->diag, EXIT_USAGE, "--%s: not supported in this build", s->row->name);
	return false;
}

static bool
set_config(const Setting *s, void *at)
{
	return true; /* read before all others */
}

static bool (*const setters[])(const Setting *, void *) = {
	[O_STRING] = set_string, [O_INT] = set_int,       [O_DOUBLE] = set_double,
	[O_FLAG] = set_flag,     [O_ON_OFF] = set_on_off, [O_PAIR] = set_pair,
	[O_CHOICE] = set_choice, [O_CONFIG] = set_config, [O_ABSENT] = set_absent,
};

static bool
takes_value(const OptionRow *row)
{
	return row->kind != O_FLAG && (row->kind != O_ABSENT || row->value);
}

bool
options_set(Arena *arena, Diag *diag, CliOptions *o, const char *name, const char *value,
            bool from_config)
{
	for (int i = 0; i < COUNT(rows); i++) {
		Setting s = {arena, diag, o, &rows[i], value, from_config};

		if (strcmp(rows[i].name, name) == 0)
			return setters[rows[i].kind](&s, (char *)o + rows[i].offset);
	}
	diag_error(diag, EXIT_USAGE, "--%s: no such option", name);
	return false;
}

/* Which kinds of pairs the command line has: those of the config file then do not count. */
static void
drop_config_pairs(CliOptions *o, CliOptions *config)
{
	for (int i = 0; i < COUNT(rows); i++) {
		GradcPairs *own = (GradcPairs *)((char *)o + rows[i].offset);

		if (rows[i].kind == O_PAIR && own->n == 0)
			*own = *(GradcPairs *)((char *)config + rows[i].offset);
	}
}

static void
reset_pairs(CliOptions *o)
{
	for (int i = 0; i < COUNT(rows); i++)
		if (rows[i].kind == O_PAIR)
			*(GradcPairs *)((char *)o + rows[i].offset) = (GradcPairs){0};
}

static bool
read_configs(Arena *arena, Diag *diag, int argc, char **argv, CliOptions *out)
{
	bool ok = true;

	for (int i = 1; i < argc; i++) {
		if (strncmp(argv[i], "--config=", 9) == 0)
			ok = config_read(arena, diag, argv[i] + 9, out) && ok;
		else if (strcmp(argv[i], "--config") == 0 && i + 1 < argc)
			ok = config_read(arena, diag, argv[i + 1], out) && ok;
	}
	return ok;
}

static bool
parse_arguments(Arena *arena, Diag *diag, int argc, char **argv, CliOptions *out)
{
	struct option longs[COUNT(rows) + 1] = {0};
	bool ok = true;
	int index, c;

	for (int i = 0; i < COUNT(rows); i++)
		longs[i] = (struct option){rows[i].name,
		                           takes_value(&rows[i]) ? required_argument : no_argument,
		                           NULL, 1};
	opterr = 0;
	optind = 1;
	while ((c = getopt_long(argc, argv, ":", longs, &index)) != -1) {
		if (c == 1) {
			ok = options_set(arena, diag, out, longs[index].name, optarg, false) && ok;
			continue;
		}
		diag_error(diag, EXIT_USAGE,
		           c == ':' ? "%s: a value is missing"
		                    : "%s: no such option, or "
		                      "it takes no value",
		           argv[optind - 1]);
		ok = false;
	}
	if (optind < argc) {
		diag_error(diag, EXIT_USAGE, "%s: unexpected argument", argv[optind]);
		ok = false;
	}
	return ok;
}

bool
options_parse(Arena *arena, Diag *diag, int argc, char **argv, CliOptions *out)
{
	*out = (CliOptions){.run = gradc_default_options(),
	                    .progress = "auto",
	                    .table = "auto",
	                    .output_format = "npy"};
	bool ok = read_configs(arena, diag, argc, argv, out);
	CliOptions config = *out;

	reset_pairs(out);
	ok = parse_arguments(arena, diag, argc, argv, out) && ok;
	drop_config_pairs(out, &config);
	if (ok && out->once && !out->output_dir) {
		diag_error(diag, EXIT_USAGE, "--once needs --output-dir DIR");
		ok = false;
	}
	return ok;
}

void
options_help(FILE *out, const char *program)
{
	fprintf(out, "usage: %s [options]\n\nA training executable made by gradc.\n\n", program);
	for (int i = 0; i < COUNT(rows); i++) {
		char left[64];

		if (!rows[i].help)
			continue;
		snprintf(left, sizeof(left), "--%s%s%s", rows[i].name, rows[i].value ? " " : "",
		         rows[i].value ? rows[i].value : "");
		fprintf(out, "  %-40s %s\n", left, rows[i].help);
	}
}

/* --quantize SPEC: a short form such as w8a8 or w4a8-g32-token, or a file with the same settings,
 * one `name = value` per line. */
#include "driver/session.h"

#include <math.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>

typedef struct {
	const char *weight_type, *activation_type;
	bool per_channel, fold_batch_norms;
	int64_t block_size, freeze_after;
	double averaging;
	StringList only, skip, config;
} Spec;

#define AT(field) offsetof(Spec, field)
static const OptionRow rows[] = {
	{"weight-type", "s8|s4|s2", "", TAKES_CHOICE, AT(weight_type)},
	{"activation-type", "u8|s8|u16|s16|dynamic|token|none", "", TAKES_CHOICE,
         AT(activation_type)},
	{"per-channel", NULL, "", TAKES_FLAG, AT(per_channel)},
	{"block-size", "N", "", TAKES_INT, AT(block_size), .least = 2},
	{"averaging", "X", "", TAKES_DOUBLE, AT(averaging), .range = RANGE_POSITIVE},
	{"freeze-after", "N", "", TAKES_INT, AT(freeze_after), .least = 1},
	{"fold-batch-norms", NULL, "", TAKES_FLAG, AT(fold_batch_norms)},
	{"only", "GLOB", "", TAKES_LIST, AT(only)},
	{"skip", "GLOB", "", TAKES_LIST, AT(skip)},
	{"config", "FILE", "", TAKES_CONFIG, AT(config)},
};

/* ---- the short form */
/* Long form of each word of the short form; %s: the word's number. */
static const struct {
	const char *word, *option;
} words[] = {
	{"w", "--weight-type=s%s"},
	{"a", "--activation-type=u%s"},
	{"-g", "--block-size=%s"},
	{"-token", "--activation-type=token"},
	{"-dynamic", "--activation-type=dynamic"},
	{"-tensor", NULL},
};

static bool
word_at(const char **text, Arena *arena, int *which, const char **number)
{
	for (int i = 0; i < COUNT(words); i++) {
		size_t n = strlen(words[i].word);
		bool has_number = words[i].option && strchr(words[i].option, '%');
		if (strncmp(*text, words[i].word, n) != 0)
			continue;
		size_t digits = has_number ? strspn(*text + n, "0123456789") : 0;
		if (has_number != (digits > 0) || digits > 9)
			continue;
		*which = i;
		*number = arena_strndup(arena, *text + n, digits);
		*text += n + digits;
		return true;
	}
	return false;
}

/* Expands the short form to words of a command line; returns their number. 0: the text is not a
 * short form. */
static int
expand(const char *text, Arena *arena, char *argv[COUNT(words) + 2])
{
	const char *given[COUNT(words)] = {NULL}, *number;
	enum { WEIGHTS, ACTIVATIONS, BLOCKS, TOKEN, DYNAMIC, TENSOR };
	int n = 1, which;

	argv[0] = (char *)(uintptr_t) "--quantize";
	while (*text) {
		if (!word_at(&text, arena, &which, &number) || given[which])
			return 0;
		given[which] = number;
	}
	bool by_value = given[TOKEN] || given[DYNAMIC];
	if (!given[WEIGHTS] || (given[TOKEN] && given[DYNAMIC]) ||
	    (given[TENSOR] && given[BLOCKS]) ||
	    (by_value && (!given[ACTIVATIONS] || strcmp(given[ACTIVATIONS], "8") != 0)))
		return 0;
	for (int i = 0; i < COUNT(words); i++) {
		if (!given[i] || !words[i].option || (i == ACTIVATIONS && by_value))
			continue;
		const char *percent = strstr(words[i].option, "%s");
		argv[n++] = arena_printf(arena, "%.*s%s",
		                         percent ? (int)(percent - words[i].option)
		                                 : (int)strlen(words[i].option),
		                         words[i].option, given[i]);
	}
	if (!given[ACTIVATIONS])
		argv[n++] = (char *)(uintptr_t) "--activation-type=none";
	if (!given[BLOCKS] && !given[TENSOR])
		argv[n++] = (char *)(uintptr_t) "--per-channel";
	return n;
}

static bool
is_file(const char *text)
{
	struct stat st;
	size_t n = strlen(text);

	return strchr(text, '/') || (n > 4 && !strcmp(text + n - 4, ".ini")) ||
	       stat(text, &st) == 0;
}

static bool
read_spec(const Session *s, Spec *out)
{
	const char *text = s->o->quantize;
	const OptionTable table = {.rows = rows, .n = COUNT(rows), .program = "gradc quantize"};
	StringList operands = {0};
	char *argv[COUNT(words) + 3] = {(char *)(uintptr_t) "--quantize"};
	int n = expand(text, s->arena, argv);

	if (!n && is_file(text)) {
		argv[1] = arena_printf(s->arena, "--config=%s", text);
		n = 2;
	}

	*out = (Spec){.averaging = 0.01};
	if (n)
		return options_read(&table, out, n, argv, &operands, s->arena, s->diag);
	diag_error(s->diag, EXIT_USAGE,
	           "--quantize=%s: need wN[aN][-gN|-tensor][-token|-dynamic] or a file of settings",
	           text);
	diag_hint(
		s->diag,
		"w8a8: weights of 8 bits, a scale for each channel, activations of 8 bits; w4a8-g32-token: weights of 4 bits in blocks of 32, a scale for each row of activations");
	return false;
}

/* ---- options for the importer */
static bool
check_spec(const Session *s, const Spec *spec)
{
	const char *fault = spec->per_channel && spec->block_size
	                            ? "per-channel and block-size: one of them"
	                    : spec->averaging > 1 ? "averaging is above 1"
	                                          : NULL;

	if (fault)
		diag_error(s->diag, EXIT_USAGE, "--quantize=%s: %s", s->o->quantize, fault);
	return !fault;
}

ActivationScales
activations_of(const char *type)
{
	static const char *const by[] = {[ACTIVATIONS_DYNAMIC] = "dynamic",
	                                 [ACTIVATIONS_TOKEN] = "token",
	                                 [ACTIVATIONS_FLOAT] = "none"};

	for (int i = 0; i < COUNT(by); i++)
		if (by[i] && type && !strcmp(by[i], type))
			return (ActivationScales)i;
	return ACTIVATIONS_STATIC;
}

/* Sets scales and zero points from the file's numbers. At export, the scales and zero points of the
 * training replace them. */
static bool
set_first_scales(const Session *s, QuantizedTensor *t)
{
	if (t->numbers && !quantized_is_finite(t, s->diag))
		return false;
	if (t->kind == QUANTIZED_ACTIVATION && t->activations != ACTIVATIONS_STATIC)
		return true;
	t->is_running = t->kind == QUANTIZED_ACTIVATION;
	t->scale = NEW_ARRAY(s->arena, float, t->n_scales);
	t->zero = NEW_ARRAY(s->arena, int32_t, t->n_scales);
	for (int64_t i = 0; i < t->n_scales; i++)
		t->scale[i] = 1;
	Groups groups = quantized_groups(t);
	if (t->numbers)
		quantization_of_groups(t->type, &groups, F32, t->numbers, s->arena, t->scale,
		                       t->zero);
	return true;
}

bool
session_quantize(Session *s)
{
	const char *learning = s->o->scale_learning;
	bool ok = true;
	Spec spec;

	if (!s->o->quantize && s->o->opset && !s->o->forward_only) {
		diag_error(s->diag, EXIT_USAGE, "--opset: needs --quantize");
		return false;
	}
	if (!s->o->quantize && s->o->learn_zero_points) {
		diag_error(s->diag, EXIT_USAGE,
		           "--scale-learning: zero-points=on: needs --quantize: zero points belong "
		           "to ranges of activations");
		return false;
	}
	if (!s->o->quantize)
		return true;
	if (!read_spec(s, &spec) || !check_spec(s, &spec))
		return false;
	bool inits = s->o->init_random, learns = learning && strcmp(learning, "none") != 0;
	for (int i = 0; i < s->o->rules.n; i++)
		inits |= s->o->rules.at[i].verb == RULE_INIT;
	if (inits && learns) {
		diag_error(
			s->diag, EXIT_USAGE,
			"--init with --quantize and --scale-learning: scales begin from the weights of the file");
		return false;
	}
	QuantizeOptions how = {.weight_type = S8,
	                       .activation_type = U8,
	                       .activations = activations_of(spec.activation_type),
	                       .per_channel = spec.per_channel,
	                       .block = spec.block_size,
	                       .keep_bias = true,
	                       .divides = true,
	                       .shapes_only = s->o->init_random,
	                       .only = terminated(s->arena, &spec.only),
	                       .skip = terminated(s->arena, &spec.skip)};
	if (spec.weight_type)
		dtype_parse(spec.weight_type, &how.weight_type);
	if (spec.activation_type && how.activations == ACTIVATIONS_STATIC)
		dtype_parse(spec.activation_type, &how.activation_type);
	if (s->o->learn_zero_points && (!learns || how.activations != ACTIVATIONS_STATIC)) {
		diag_error(s->diag, EXIT_USAGE,
		           "--scale-learning: zero-points=on: needs lsq or torch, and activations "
		           "with running ranges, as with --quantize=w8a8");
		return false;
	}
	FakeQuantization *q = s->quantize = NEW(s->arena, FakeQuantization);
	s->quantizing = (QuantizePassOptions){
		.averaging = spec.averaging,
		/* learned shifts are added to a range, which must then stay fixed */
		.freeze_after = spec.freeze_after || !learns ? spec.freeze_after : 1,
		.learn_scales = learns,
		.learn_zeros = learns && s->o->learn_zero_points,
		.inference = !evaluates_as_exported(s->o)};
	q->opset = (int)s->o->opset;
	if (spec.fold_batch_norms) {
		if (!model_use_inference_form(s->model, s->diag))
			return false;
		model_fold_batch_norms(s->model, s->diag);
	}
	if (!model_quantize_find(s->model, &how, s->arena, &q->tensors, s->diag) ||
	    !model_quantize_opset(s->model, &q->tensors, q->opset, s->diag))
		return false;
	model_quantize_warn(&q->tensors, s->diag);
	for (int i = 0; i < q->tensors.n; i++)
		ok &= set_first_scales(s, q->tensors.at[i]);
	return ok;
}

bool
quantized_is_finite(const QuantizedTensor *t, Diag *diag)
{
	for (int64_t k = 0; k < t->n; k++)
		if (!isfinite(t->numbers[k])) {
			diag_error(diag, EXIT_INVALID,
			           "%s of node %s has numbers that are not finite", t->name,
			           t->node);
			return false;
		}
	return true;
}

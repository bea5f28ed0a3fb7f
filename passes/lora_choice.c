/* --lora GLOB,KEY=VALUE and --qlora: which parameters get a low-rank product, and which one. */
#include "passes/pass.h"

#include <string.h>

#define LORA_SETTINGS                                                              \
	{"rank",   "of the product", OPTION_INT, offsetof(LoraSettings, rank),     \
	 .low = 1, .high = 1 << 20},                                               \
		{"alpha",       "the product is multiplied by alpha / rank",       \
	         OPTION_DOUBLE, offsetof(LoraSettings, alpha),                     \
	         .low = -1e6,   .high = 1e6},                                      \
		{"dropout",     "of what the first part multiplies, in training",  \
	         OPTION_DOUBLE, offsetof(LoraSettings, dropout),                   \
	         .low = 0,      .high = 0.999999},                                 \
		{"rslora", "by alpha / sqrt(rank) instead", OPTION_BOOL,           \
	         offsetof(LoraSettings, rslora)},                                  \
	{                                                                          \
		"dora", "the sum's outputs have a learned size each", OPTION_BOOL, \
			offsetof(LoraSettings, dora)                               \
	}
static const PassOption lora_settings[] = {LORA_SETTINGS, {0}};
static const PassOption qlora_settings[] = {
	LORA_SETTINGS,
	{"bits", "the weight's numbers", OPTION_STRING, offsetof(LoraSettings, bits)},
	{"double", "the largest size of each block is a code, too", OPTION_BOOL,
         offsetof(LoraSettings, nested)},
	{0}};
/* Defaults of the product are PEFT's (LoraConfig), of codes those of Dettmers et al. 2023, arXiv:2305.14314. */
static const struct {
	const char *name, *keys;
	const PassOption *settings;
	LoraSettings defaults;
} options[] = {
	{"lora",
         "[,rank=N][,alpha=X][,dropout=X][,rslora][,dora]",
         lora_settings,
         {.rank = 8, .alpha = 8}},
	{"qlora",
         "[,bits=nf4|fp4][,double=on|off][,rank=N][,alpha=X][,dropout=X][,rslora][,dora]",
         qlora_settings,
         {.rank = 8, .alpha = 8, .bits = "nf4", .nested = true}},
};

static bool
check_bits(const LoraChoice *c, Diag *diag)
{
	const char *bits = c->settings.bits;

	for (int i = 0; bits && four_bit_names[i]; i++)
		if (strcmp(four_bit_names[i], bits) == 0)
			return true;
	if (bits)
		diag_error(diag, EXIT_USAGE, "--%s=%s: bits=%s is not nf4 or fp4", c->option,
		           c->glob, bits);
	return !bits;
}

bool
lora_parse(const char *text, LoraChoice *out, Arena *arena, Diag *diag)
{
	char *rest = arena_strdup(arena, text);
	const char *option = strsep(&rest, " ");
	int kind = strcmp(option, "qlora") == 0;

	*out = (LoraChoice){.option = options[kind].name, .settings = options[kind].defaults};
	if (strcmp(option, options[kind].name) != 0 || !rest) {
		diag_error(diag, EXIT_USAGE, "adapters: `%s`: need lora GLOB or qlora GLOB", text);
		return false;
	}
	out->glob = strsep(&rest, ",");
	if (!*out->glob) {
		diag_error(diag, EXIT_USAGE, "--%s=%s: need GLOB%s", out->option,
		           text + strlen(option) + 1, options[kind].keys);
		return false;
	}
	for (char *value; (value = strsep(&rest, ","));) {
		const char *key = strsep(&value, "=");
		const OptionText of = {key, value ? value : "true"};
		if (!option_set(options[kind].settings,
		                arena_printf(arena, "--%s=%s", out->option, out->glob),
		                &out->settings, arena, &of, diag))
			return false;
	}
	return check_bits(out, diag);
}

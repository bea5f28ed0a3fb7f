/* --lora GLOB,KEY=VALUE and --qlora: which parameters get a low-rank product, and with which settings. */
#include "passes/pass.h"

#include <string.h>

/* The first two settings exist in --qlora only. */
enum { OF_QLORA = 2 };
static const PassOption settings[] = {
	{"bits", "type of the weight's codes", OPTION_STRING, offsetof(LoraSettings, bits)},
	{"double", "scales of blocks are codes, too", OPTION_BOOL, offsetof(LoraSettings, nested)},
	{"rank", "rank of the product", OPTION_INT, offsetof(LoraSettings, rank), .low = 1,
         .high = 1 << 20},
	{"alpha", "the product is multiplied by alpha / rank", OPTION_DOUBLE,
         offsetof(LoraSettings, alpha), .low = -1e6, .high = 1e6},
	{"dropout", "probability that an input of the product is dropped, in training",
         OPTION_DOUBLE, offsetof(LoraSettings, dropout), .low = 0, .high = 0.999999},
	{"init", "kaiming, or pissa: the weight's largest part", OPTION_STRING,
         offsetof(LoraSettings, init)},
	{"rslora", "multiplies by alpha / sqrt(rank) instead", OPTION_BOOL,
         offsetof(LoraSettings, rslora)},
	{"dora", "each output's weights have a learned norm", OPTION_BOOL,
         offsetof(LoraSettings, dora)},
	{0}};

#define KEYS_OF_LORA "[,rank=N][,alpha=X][,dropout=X][,init=kaiming|pissa][,rslora][,dora]"
/* Defaults of the product are PEFT's (LoraConfig); defaults of codes are from Dettmers et al. 2023,
 * arXiv:2305.14314. */
static const struct {
	const char *name, *keys;
	const PassOption *settings;
	LoraSettings defaults;
} options[] = {
	{"lora", KEYS_OF_LORA, settings + OF_QLORA, {.rank = 8, .alpha = 8, .init = "kaiming"}},
	{"qlora",
         "[,bits=nf4|fp4][,double=on|off]" KEYS_OF_LORA,
         settings,
         {.rank = 8, .alpha = 8, .init = "kaiming", .bits = "nf4", .nested = true}},
};

/* Sets the fields that the words `bits` and `init` stand for. */
static bool
read_words(LoraChoice *c, Diag *diag)
{
	LoraSettings *s = &c->settings;

	while (s->bits && s->kind < N_FOUR_BIT && strcmp(four_bit_names[s->kind], s->bits) != 0)
		s->kind++;
	s->pissa = strcmp(s->init, "pissa") == 0;
	if (s->kind == N_FOUR_BIT)
		diag_error(diag, EXIT_USAGE, "--%s=%s: bits=%s is not nf4 or fp4", c->option,
		           c->glob, s->bits);
	else if (!s->pissa && strcmp(s->init, "kaiming") != 0)
		diag_error(diag, EXIT_USAGE, "--%s=%s: init=%s is not kaiming or pissa", c->option,
		           c->glob, s->init);
	else if (s->pissa && s->dora)
		diag_error(diag, EXIT_USAGE, "--%s=%s: init=pissa and dora: choose one of the two",
		           c->option, c->glob);
	else if (s->pissa && !(s->alpha > 0))
		diag_error(diag, EXIT_USAGE, "--%s=%s: init=pissa needs alpha above 0", c->option,
		           c->glob);
	else
		return true;
	return false;
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
	StrMap *given = strmap_new(arena);
	for (char *value; (value = strsep(&rest, ","));) {
		const char *key = strsep(&value, "=");
		if (strmap_get(given, key)) {
			diag_error(diag, EXIT_USAGE, "--%s=%s: %s is given twice", out->option,
			           out->glob, key);
			return false;
		}
		strmap_put(given, key, out);
		const OptionText of = {key, value ? value : "true"};
		if (!option_set(options[kind].settings,
		                arena_printf(arena, "--%s=%s", out->option, out->glob),
		                &out->settings, arena, &of, diag))
			return false;
	}
	return read_words(out, diag);
}

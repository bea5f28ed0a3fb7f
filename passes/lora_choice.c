/* --lora GLOB,KEY=VALUE: which parameters get a low-rank product, and which one. */
#include "passes/pass.h"

#include <string.h>

/* PEFT's (LoraConfig). */
const LoraSettings lora_defaults = {.rank = 8, .alpha = 8};

static const PassOption lora_settings[] = {
	{"rank", "of the product", OPTION_INT, offsetof(LoraSettings, rank), .low = 1,
         .high = 1 << 20},
	{"alpha", "the product is multiplied by alpha / rank", OPTION_DOUBLE,
         offsetof(LoraSettings, alpha), .low = -1e6, .high = 1e6},
	{"dropout", "of what the first part multiplies, in training", OPTION_DOUBLE,
         offsetof(LoraSettings, dropout), .low = 0, .high = 0.999999},
	{"rslora", "by alpha / sqrt(rank) instead", OPTION_BOOL, offsetof(LoraSettings, rslora)},
	{"dora", "the sum's outputs have a learned size each", OPTION_BOOL,
         offsetof(LoraSettings, dora)},
	{0}};

bool
lora_parse(const char *text, LoraChoice *out, Arena *arena, Diag *diag)
{
	char *rest = arena_strdup(arena, text);

	*out = (LoraChoice){.glob = strsep(&rest, ","), .settings = lora_defaults};
	if (!*out->glob) {
		diag_error(diag, EXIT_USAGE,
		           "--lora=%s: need GLOB[,rank=N][,alpha=X][,dropout=X][,rslora][,dora]",
		           text);
		return false;
	}
	for (char *value; (value = strsep(&rest, ","));) {
		const char *key = strsep(&value, "=");
		const OptionText option = {key, value ? value : "true"};
		if (!option_set(lora_settings, arena_printf(arena, "--lora=%s", out->glob),
		                &out->settings, arena, &option, diag))
			return false;
	}
	return true;
}

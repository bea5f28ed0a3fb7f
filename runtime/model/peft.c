/* Hugging Face's PEFT stores adapters in a folder (peft.h). Says which tensor of the folder belongs to which state, and which
 * adapters PEFT can represent. */
#include "runtime/model/adapters.h"
#include "runtime/model/peft.h"

#include <string.h>

const int64_t *
peft_dims(const Format *f, uint32_t state)
{
	return f->dims + f->states[state].first_dim;
}

int64_t
peft_rank(const Format *f, const AdapterRecord *r)
{
	return peft_dims(f, r->b)[1];
}

PeftModules
peft_modules(Arena *arena, const Format *f)
{
	PeftModules out = {0};

	for (int i = 0; i < f->n[SECTION_ADAPTERS]; i++) {
		const AdapterRecord *r = &f->adapters[i];
		PeftModule product = {r, format_text(f, r->product), false};
		PeftModule table = {r, format_text(f, r->table), true};
		if (r->readers != READ_BY_TABLES)
			vec_push(arena, &out, product);
		if (r->readers != READ_BY_PRODUCTS)
			vec_push(arena, &out, table);
	}
	return out;
}

int
peft_parts(Arena *arena, const Format *f, const PeftModule *m, PeftPart parts[MAX_PEFT_PARTS])
{
	const AdapterRecord *r = m->record;
	int rank = (int)format_weight_type(f, (int)r->weight).rank, axis = (int)r->axis;
	bool is_matrix = rank == 2;
	const char *format = m->is_table ? "base_model.model.%s.lora_embedding_%c"
	                                 : "base_model.model.%s.lora_%c.weight";

	/* If products and an embedding table read the same weight, the outputs of the products are the rows of the table, so
	 * inputs and outputs are exchanged. */
	if (m->is_table && r->readers == READ_BY_BOTH) {
		parts[0] = (PeftPart){NULL, r->b, true, 1, 2};
		parts[1] = (PeftPart){NULL, r->a, axis == 0, axis, 2};
	} else {
		parts[0] = (PeftPart){NULL, r->a, is_matrix && axis == 1, axis, rank};
		parts[1] = (PeftPart){NULL, r->b, false, 1, rank};
	}
	for (int i = 0; i < 2; i++)
		parts[i].name = arena_printf(arena, format, m->name, 'A' + i);
	if (!r->magnitude)
		return 2;
	parts[2] = (PeftPart){
		.name = arena_printf(arena, "base_model.model.%s.lora_magnitude_vector", m->name),
		.state = r->magnitude - 1,
		.rank_axis = -1,
		.rank = is_matrix ? 1 : rank,
		.lead = !is_matrix};
	return 3;
}

const char *
peft_base_key(Arena *arena, const PeftModule *m)
{
	return arena_printf(arena, "gradc.base.%s", m->name);
}

/* ---- parameters that are trained whole */
bool
peft_is_trained_whole(const Format *f, int state)
{
	const StateRecord *s = &f->states[state];

	return s->kind == STATE_PARAMETER && s->trainable && !adapter_is_part(f, state);
}

PeftPart
peft_trained_part(Arena *arena, const Format *f, int state)
{
	const StateRecord *s = &f->states[state];

	return (PeftPart){arena_printf(arena, "base_model.model.%s", format_text(f, s->parameter)),
	                  (uint32_t)state, s->transposed, -1, (int)s->rank};
}

/* ---- what PEFT can represent */
/* PEFT has no adapters for transposed convolutions. */
static bool
has_layout(const Format *f, const AdapterRecord *r)
{
	uint32_t rank = format_weight_type(f, (int)r->weight).rank;

	return rank == 2 || (rank > 2 && r->axis == 0 && r->readers == READ_BY_PRODUCTS);
}

static void
add_unknown(Text *unknown, const Format *f, uint32_t state)
{
	text_add(unknown, unknown->n ? ", " : "");
	text_add_quoted(unknown, format_text(f, f->states[state].name));
}

/* Checks the adapters, and adds to `unknown` the weights whose modules the ONNX file does not name. */
static Status
check_modules(const Format *f, const PeftModules *modules, const char *option, Text *unknown)
{
	for (int i = 0; i < modules->n; i++) {
		const AdapterRecord *r = modules->at[i].record;
		if (!r->magnitude != !modules->at[0].record->magnitude)
			return status_error(EXIT_UNSUPPORTED,
			                    "%s: PEFT has dora for all of an adapter's modules, "
			                    "or for none",
			                    option);
		if (!has_layout(f, r))
			return status_error(EXIT_UNSUPPORTED,
			                    "%s: PEFT has no adapter for a weight like \"%s\"",
			                    option, format_text(f, f->states[r->weight].name));
		if (!*modules->at[i].name)
			add_unknown(unknown, f, r->weight);
		for (int k = 0; k < i && *modules->at[i].name; k++)
			if (strcmp(modules->at[i].name, modules->at[k].name) == 0)
				return status_error(
					EXIT_USAGE,
					"%s: module \"%s\" would have two adapters, of \"%s\" and "
					"\"%s\": compile with --adapter-name PARAM=PATH",
					option, modules->at[i].name,
					format_text(f,
				                    f->states[modules->at[k].record->weight].name),
					format_text(f, f->states[r->weight].name));
	}
	for (int i = 0; i < f->n[SECTION_STATES]; i++)
		if (peft_is_trained_whole(f, i) &&
		    !strchr(format_text(f, f->states[i].parameter), '.'))
			add_unknown(unknown, f, (uint32_t)i);
	return NULL;
}

Status
peft_check(const Format *f, const char *option)
{
	Arena *arena = arena_new();
	PeftModules modules = peft_modules(arena, f);
	Text unknown = {0};
	Status status = check_modules(f, &modules, option, &unknown);

	if (!status && unknown.n)
		status = status_error(EXIT_USAGE,
		                      "%s: the file does not say which parameters of a module "
		                      "these are: %s; compile with --adapter-name PARAM=PATH",
		                      option, unknown.at);
	text_free(&unknown);
	arena_free(arena);
	return status;
}

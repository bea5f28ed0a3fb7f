/* --export-adapter: writes the adapters in PEFT's format. */
#include "base/files/files.h"
#include "runtime/model/adapters.h"
#include "runtime/model/peft.h"
#include "runtime/model/weight_file.h"

#include <math.h>
#include <string.h>

typedef struct {
	Gradc *run;
	const Format *f;
	Arena *arena;
	PeftModules modules;
	VEC(SafeTensor) tensors;
	VEC(SafeText) metadata;
} Writer;

/* ---- tensors */
/* With pissa, the product of the initial adapter was subtracted from the weight. PEFT adds adapters to the original weight, so
 * the written adapter must subtract the initial product as well: it has twice the rank, and each row along the rank is followed
 * by the initial row times `sign`. */
static Status
add_first(Writer *w, const PeftPart *p, double sign, char **data, int64_t *dims)
{
	const StateRecord *s = &w->f->states[p->state];
	DType dtype = (DType)s->dtype;
	int64_t block = dims[p->rank_axis], n = s->bytes / dtype_bytes(dtype, 1);
	char *first, *both = arena_alloc(w->arena, 2 * (size_t)s->bytes + 1);

	RETURN_IF_ERROR(weights_first(w->run, w->arena, (int)p->state, &first));
	for (uint32_t i = (uint32_t)p->rank_axis + 1; i < s->rank; i++)
		block *= dims[i];
	for (int64_t i = 0; i < n; i++) {
		int64_t to = i / block * 2 * block + i % block;
		dtype_store_float(dtype, both, to, dtype_load_float(dtype, *data, i));
		dtype_store_float(dtype, both, to + block,
		                  sign * dtype_load_float(dtype, first, i));
	}
	dims[p->rank_axis] *= 2;
	*data = both;
	return NULL;
}

/* Writes an adapter's part. first: the sign of the initial values for pissa; 0 without pissa. */
static Status
add_tensor(Writer *w, const PeftPart *p, double first)
{
	const StateRecord *s = &w->f->states[p->state];
	int64_t dims[MAX_RANK];
	char *data = arena_alloc(w->arena, (size_t)s->bytes + 1);
	SafeTensor t = {
		.name = p->name, .dtype = (DType)s->dtype, .rank = p->rank, .n_bytes = s->bytes};

	memcpy(dims, peft_dims(w->f, p->state), sizeof(*dims) * s->rank);
	int state = export_state(w->run, (int)p->state);
	RETURN_IF_ERROR(state_read(w->run, state, data));
	export_warn(w->run, "--export-adapter", s, (DType)s->dtype, data,
	            format_elements(w->f, s->first_dim, s->rank));
	if (first != 0) {
		RETURN_IF_ERROR(add_first(w, p, first, &data, dims));
		t.n_bytes *= 2;
	}
	for (int i = 0; i < p->rank; i++) {
		int at = p->turn ? p->rank - 1 - i : i - p->lead;
		t.dims[i] = at >= 0 && at < (int)s->rank ? dims[at] : 1;
	}
	t.data = p->turn ? matrix_transposed(w->arena, data, dims[0], dims[1],
	                                     dtype_bytes(t.dtype, 1))
	                 : data;
	vec_push(w->arena, &w->tensors, t);
	return NULL;
}

static Status
add_tensors(Writer *w)
{
	PeftPart parts[MAX_PEFT_PARTS];

	for (int i = 0; i < w->modules.n; i++) {
		int n = peft_parts(w->arena, w->f, &w->modules.at[i], parts);
		bool is_pissa = w->modules.at[i].record->pissa;
		for (int k = 0; k < n; k++)
			RETURN_IF_ERROR(add_tensor(w, &parts[k], !is_pissa ? 0 : k ? -1 : 1));
	}
	for (int i = 0; i < w->f->n[SECTION_STATES]; i++) {
		if (!peft_is_trained_whole(w->f, i))
			continue;
		parts[0] = peft_trained_part(w->arena, w->f, i);
		RETURN_IF_ERROR(add_tensor(w, &parts[0], 0));
	}
	return NULL;
}

static Status
add_bases(Writer *w)
{
	for (int i = 0; i < w->modules.n; i++) {
		const PeftModule *m = &w->modules.at[i];
		uint64_t base;
		RETURN_IF_ERROR(adapter_base(w->run, m->record, &base));
		SafeText text = {peft_base_key(w->arena, m),
		                 arena_printf(w->arena, "%016llx", (unsigned long long)base)};
		if (base)
			vec_push(w->arena, &w->metadata, text);
	}
	return NULL;
}

/* ---- settings */
/* "lm_head" from "lm_head.weight". */
static const char *
module_of_parameter(Arena *arena, const char *parameter)
{
	return arena_strndup(arena, parameter, (size_t)(strrchr(parameter, '.') - parameter));
}

/* The names of the modules, each name once. */
static json_t *
saved_modules_json(const Writer *w)
{
	StrMap *seen = strmap_new(w->arena);
	json_t *out = json_array();

	for (int i = 0; i < w->f->n[SECTION_STATES]; i++) {
		if (!peft_is_trained_whole(w->f, i))
			continue;
		const char *module = module_of_parameter(
			w->arena, format_text(w->f, w->f->states[i].parameter));
		if (!strmap_get(seen, module))
			json_array_append_new(out, json_string(module));
		strmap_put(seen, module, w->run);
	}
	if (json_array_size(out))
		return out;
	json_decref(out);
	return json_null();
}

/* The rank of the written tensors. */
static int64_t
rank_of(const Format *f, const AdapterRecord *r)
{
	return peft_rank(f, r) * (r->pissa ? 2 : 1);
}

/* The alpha to write. PEFT has one setting use_rslora for all adapters (scale alpha / sqrt(rank), not alpha / rank). An adapter
 * with the other rule gets an alpha that gives the same scale. */
static double
alpha_of(const Format *f, const AdapterRecord *r, bool rslora)
{
	double more = r->pissa ? 2 : 1; /* factor of the rank */

	return rslora == (bool)r->rslora ? r->alpha * (rslora ? sqrt(more) : more)
	                                 : format_adapter_scale(f, r) * (double)rank_of(f, r);
}

static bool
all_rslora(const PeftModules *modules)
{
	for (int i = 0; i < modules->n; i++)
		if (!modules->at[i].record->rslora)
			return false;
	return true;
}

/* Is a module a Conv1D of transformers, which holds its weight as [inputs, outputs]? */
static bool
fan_in_fan_out(const Writer *w)
{
	for (int i = 0; i < w->modules.n; i++) {
		const AdapterRecord *r = w->modules.at[i].record;
		const StateRecord *s = &w->f->states[r->weight];
		bool is_matrix = format_weight_type(w->f, (int)r->weight).rank == 2;
		if (!w->modules.at[i].is_table && is_matrix && r->axis == !s->transposed)
			return true;
	}
	return false;
}

static json_t *
number_json(double x)
{
	return x == rint(x) && fabs(x) < 1e15 ? json_integer((json_int_t)x) : json_real(x);
}

/* Key for a pattern, which PEFT compares with the end of names: "^fc" if another target ends in ".fc". */
static const char *
pattern_key(const Writer *w, const char *name)
{
	size_t n = strlen(name);

	for (int i = 0; i < w->modules.n; i++) {
		const char *other = w->modules.at[i].name;
		size_t longer = strlen(other);
		if (longer > n && other[longer - n - 1] == '.' &&
		    strcmp(other + longer - n, name) == 0)
			return arena_printf(w->arena, "^%s", name);
	}
	return name;
}

/* The first adapter's settings are the default; adapters that differ have patterns. */
static json_t *
config_json(const Writer *w)
{
	const Format *f = w->f;
	const AdapterRecord *first = w->modules.at[0].record;
	bool rslora = all_rslora(&w->modules);
	double alpha = alpha_of(f, first, rslora);
	json_t *ranks = json_object(), *alphas = json_object(), *targets = json_array();

	for (int i = 0; i < w->modules.n; i++) {
		const AdapterRecord *r = w->modules.at[i].record;
		const char *name = w->modules.at[i].name;
		json_array_append_new(targets, json_string(name));
		if (rank_of(f, r) != rank_of(f, first))
			json_object_set_new(ranks, pattern_key(w, name),
			                    json_integer(rank_of(f, r)));
		if (alpha_of(f, r, rslora) != alpha)
			json_object_set_new(alphas, pattern_key(w, name),
			                    number_json(alpha_of(f, r, rslora)));
	}
	return json_pack("{s:o,s:n,s:n,s:s,s:b,s:b,s:b,s:o,s:f,s:o,s:s,s:I,s:o,s:o,s:n,s:b,s:b}",
	                 "alpha_pattern", alphas, "auto_mapping", "base_model_name_or_path", "bias",
	                 "none", "fan_in_fan_out", fan_in_fan_out(w), "inference_mode", 1,
	                 "init_lora_weights", 1, "lora_alpha", number_json(alpha), "lora_dropout",
	                 0.0, "modules_to_save", saved_modules_json(w), "peft_type", "LORA", "r",
	                 (json_int_t)rank_of(f, first), "rank_pattern", ranks, "target_modules",
	                 targets, "task_type", "use_dora", first->magnitude != 0, "use_rslora",
	                 rslora);
}

static Status
write_config(const Writer *w, const char *folder)
{
	json_t *root = config_json(w);
	char *text = root ? json_dumps(root, JSON_INDENT(2) | JSON_PRESERVE_ORDER |
	                                             JSON_REAL_PRECISION(17))
	                  : NULL;
	const char *path = path_join(w->arena, folder, PEFT_CONFIG);
	Status status = text ? file_write(path, text, (int64_t)strlen(text))
	                     : status_error(EXIT_SYSTEM, "%s: a module's name is not UTF-8", path);

	memory_free(text);
	json_decref(root);
	return status;
}

Status
peft_write(Gradc *run, const char *folder)
{
	Arena *arena = arena_new();
	Writer w = {.run = run,
	            .f = &run->format,
	            .arena = arena,
	            .modules = peft_modules(arena, &run->format)};
	Status status = adapters_check(run, "--export-adapter");

	if (!status)
		status = add_tensors(&w);
	if (!status)
		status = folder_make(folder);
	if (!status)
		status = add_bases(&w);
	SafeTensors st = {w.tensors.at, w.tensors.n, w.metadata.at, w.metadata.n, -1};
	if (!status)
		status = safetensors_write_with(path_join(arena, folder, PEFT_TENSORS), &st);
	if (!status)
		status = write_config(&w, folder);
	arena_free(arena);
	return status;
}

/* --load-adapter, --adapter: loads an adapter that PEFT or an executable wrote into the compiled adapters. If the file's
 * adapter has a lower rank than the compiled one, it is filled up with zeros. If its scale differs, its second matrix (b) is
 * multiplied by the quotient of the scales. */
#include "base/files/files.h"
#include "runtime/model/adapters.h"
#include "runtime/model/peft.h"
#include "runtime/model/weight_file.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST_CONFIG = 1 << 26, MOST_PATTERN = 256 }; /* in bytes */

typedef struct {
	Gradc *run;
	const Format *f;
	Arena *arena;
	const char *config_path, *path; /* paths of the settings and of the tensors */
	json_t *config;
	SafeTensors st;
	bool *taken; /* per tensor of the file: was it used? */
} Loader;

/* ---- settings */
static Status
config_error(const Loader *l, const char *what)
{
	return status_error(EXIT_CHECKPOINT, "%s: %s", l->config_path, what);
}

static bool
is_on(const Loader *l, const char *key)
{
	return json_is_true(json_object_get(l->config, key));
}

/* Refuses settings that change what PEFT computes and that are not supported here, unless they are absent, null, false or
 * empty. */
static Status
check_others(const Loader *l)
{
	static const char *const keys[] = {"layer_replication",
	                                   "use_qalora",
	                                   "use_bdlora",
	                                   "lora_bias",
	                                   "trainable_token_indices",
	                                   "target_parameters",
	                                   "arrow_config",
	                                   "alora_invocation_tokens",
	                                   "corda_config",
	                                   "eva_config"};
	static const char *const flags[] = {"use_dora", "use_rslora", "fan_in_fan_out"};
	const json_t *bias = json_object_get(l->config, "bias");

	for (int i = 0; i < COUNT(keys); i++) {
		const json_t *v = json_object_get(l->config, keys[i]);
		bool is_empty = !v || json_is_null(v) || json_is_false(v) ||
		                (json_is_object(v) && json_object_size(v) == 0) ||
		                (json_is_array(v) && json_array_size(v) == 0);
		if (!is_empty)
			return status_error(EXIT_CHECKPOINT, "%s: %s: not supported",
			                    l->config_path, keys[i]);
	}
	for (int i = 0; i < COUNT(flags); i++) {
		const json_t *v = json_object_get(l->config, flags[i]);
		if (v && !json_is_boolean(v) && !json_is_null(v))
			return status_error(EXIT_CHECKPOINT, "%s: %s is not true or false",
			                    l->config_path, flags[i]);
	}
	if (bias && !json_is_null(bias) &&
	    (!json_is_string(bias) || strcmp(json_string_value(bias), "none") != 0))
		return config_error(l, "bias is not \"none\": trained biases are not read");
	return NULL;
}

/* Refuses initializations that change the base weights. With "gaussian" and the other names in this list the base does not
 * change. With "pissa", "olora" and others, PEFT decomposes the base into a product and a remainder each time it loads the
 * adapter, and keeps only the remainder as base (peft/tuners/lora/layer.py, update_layer). */
static Status
check_beginning(const Loader *l)
{
	static const char *const beside_the_base[] = {"gaussian", "eva", "orthogonal", "mica"};
	const json_t *v = json_object_get(l->config, "init_lora_weights");

	if (!v || json_is_null(v) || json_is_boolean(v))
		return NULL;
	for (int i = 0; i < COUNT(beside_the_base) && json_is_string(v); i++)
		if (strcasecmp(json_string_value(v), beside_the_base[i]) == 0)
			return NULL;
	return status_error(
		EXIT_CHECKPOINT,
		"%s: init_lora_weights is \"%s\": PEFT changes the base's weights when it loads such an "
		"adapter, and nothing here does; PEFT's save_pretrained(..., "
		"path_initial_model_for_weight_conversion=...) writes it beside the unchanged base",
		l->config_path, json_is_string(v) ? json_string_value(v) : "no word");
}

/* config: jansson's result; NULL after a fault. */
static Status
take_config(Loader *l, json_t *config, const json_error_t *fault)
{
	const char *type;

	l->config = config;
	if (!l->config)
		return status_error(EXIT_CHECKPOINT, "%s: line %d: %s", l->config_path, fault->line,
		                    fault->text);
	type = json_string_value(json_object_get(l->config, "peft_type"));
	if (!type || strcmp(type, "LORA") != 0)
		return config_error(l, "is not LoRA: peft_type is not \"LORA\"");
	RETURN_IF_ERROR(check_others(l));
	RETURN_IF_ERROR(check_beginning(l));
	if (is_on(l, "use_dora") != (l->f->adapters[0].magnitude != 0))
		return config_error(
			l,
			is_on(l, "use_dora")
				? "use_dora is set, but this executable has no dora: compile with dora"
				: "use_dora is not set, but this executable has dora");
	if (!json_is_number(json_object_get(l->config, "lora_alpha")))
		return config_error(l, "lora_alpha is not a number");
	return NULL;
}

/* Refuses patterns with classes such as \d, which Python and POSIX read differently. */
static bool
is_posix(const char *key)
{
	for (; (key = strchr(key, '\\')); key += 1 + (key[1] != '\0'))
		if (isalnum((unsigned char)key[1]))
			return false;
	return true;
}

/* Like PEFT's get_pattern_key: the key is a regular expression that must match the whole name, or its end after a dot. */
static Status
fits(const Loader *l, const char *key, const char *module, bool *out)
{
	const char *pattern = arena_printf(l->arena, "^(.*\\.)?(%s)$", key);
	regex_t regex;

	/* refuses patterns that could take unlimited time or memory */
	if (strlen(key) > MOST_PATTERN || strchr(key, '{') || strstr(key, ")*") ||
	    strstr(key, ")+"))
		return status_error(EXIT_CHECKPOINT,
		                    "%s: \"%.*s\": a pattern of more than %d bytes, with {, )* or "
		                    ")+, is not read",
		                    l->config_path, MOST_PATTERN, key, MOST_PATTERN);
	if (!is_posix(key))
		return status_error(EXIT_CHECKPOINT,
		                    "%s: \"%s\": only POSIX's regular expressions are read: write "
		                    "[0-9] for \\d",
		                    l->config_path, key);
	if (regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB) != 0)
		return status_error(EXIT_CHECKPOINT, "%s: \"%s\" is not a regular expression",
		                    l->config_path, key);
	*out = regexec(&regex, module, 0, NULL, 0) == 0;
	regfree(&regex);
	return NULL;
}

/* The scale of the file's adapter, by PEFT's settings. */
static Status
scale_of(const Loader *l, const char *module, int64_t rank, double *out)
{
	double alpha = json_number_value(json_object_get(l->config, "lora_alpha"));
	const char *key;
	json_t *value;
	bool found = false;

	json_object_foreach(json_object_get(l->config, "alpha_pattern"), key, value) {
		if (!found)
			RETURN_IF_ERROR(fits(l, key, module, &found));
		else
			break;
		if (found && !json_is_number(value))
			return status_error(EXIT_CHECKPOINT,
			                    "%s: alpha_pattern: \"%s\" is not a number",
			                    l->config_path, key);
		if (found)
			alpha = json_number_value(value);
	}
	*out = alpha / (is_on(l, "use_rslora") ? sqrt((double)rank) : (double)rank);
	return isfinite(*out) ? NULL : config_error(l, "alpha is not finite");
}

/* Checks that the settings name the same rank as the tensors have, because PEFT uses the settings. */
static Status
check_rank(const Loader *l, const char *module, int64_t rank)
{
	const json_t *r = json_object_get(l->config, "r");
	double said = r ? json_number_value(r) : 8;
	bool found = false, sound = !r || json_is_integer(r);
	const char *key;
	json_t *value;

	json_object_foreach(json_object_get(l->config, "rank_pattern"), key, value) {
		if (found)
			break;
		RETURN_IF_ERROR(fits(l, key, module, &found));
		sound = found ? json_is_integer(value) : sound;
		said = found ? json_number_value(value) : said;
	}
	if (sound && said == (double)rank)
		return NULL;
	return status_error(
		EXIT_CHECKPOINT,
		"%s: r or rank_pattern give \"%s\" another rank than its tensors have, %lld",
		l->config_path, module, (long long)rank);
}

/* ---- tensors */
static const SafeTensor *
find(Loader *l, const char *name)
{
	for (int i = 0; i < l->st.n_tensors; i++)
		if (strcmp(l->st.tensors[i].name, name) == 0) {
			l->taken[i] = true;
			return &l->st.tensors[i];
		}
	return NULL;
}

/* Checks that the file's tensor has the same shape as the adapter's part, except that the rank may be lower. */
static Status
check_shape(const Loader *l, const SafeTensor *t, const PeftPart *p, int64_t *rank)
{
	const int64_t *dims = peft_dims(l->f, p->state);
	int n = (int)l->f->states[p->state].rank;
	bool fits = t->rank == p->rank && dtype_is_float(t->dtype), rank_fits = true;

	for (int i = 0; i < t->rank && fits; i++) {
		int at = p->turn ? n - 1 - i : i - p->lead;
		int64_t want = at >= 0 && at < n ? dims[at] : 1;
		bool is_rank = at >= 0 && at == p->rank_axis;
		if (is_rank)
			*rank = t->dims[i];
		rank_fits &= !is_rank || (t->dims[i] >= 1 && t->dims[i] <= want);
		fits = is_rank || t->dims[i] == want;
	}
	if (fits && rank_fits)
		return NULL;
	if (fits)
		return status_error(
			EXIT_CHECKPOINT,
			"%s: \"%s\" has rank %lld, this executable's adapter %lld: compile "
			"with at least the file's rank",
			l->path, t->name, (long long)*rank, (long long)dims[p->rank_axis]);
	return status_error(EXIT_CHECKPOINT,
	                    "%s: \"%s\" has shape %s, this executable's adapter %s%s", l->path,
	                    t->name, shape_text(l->arena, t->rank, t->dims),
	                    shape_text(l->arena, n, dims), p->turn ? ", the other way round" : "");
}

/* Copies the file's elements. If the file's rank is lower, the other elements of the part stay zero. */
static void
pad(const Loader *l, const PeftPart *p, int64_t rank, double factor, const double *from, double *to)
{
	const int64_t *dims = peft_dims(l->f, p->state);
	int64_t outer = 1, inner = 1, full = p->rank_axis < 0 ? 1 : dims[p->rank_axis];

	for (int i = 0; i < (int)l->f->states[p->state].rank; i++)
		*(i < p->rank_axis ? &outer : &inner) *= i == p->rank_axis ? 1 : dims[i];
	for (int64_t i = 0; i < outer; i++)
		for (int64_t k = 0; k < rank * inner; k++)
			to[i * full * inner + k] = factor * from[i * rank * inner + k];
}

static Status
load_part(Loader *l, const SafeTensor *t, const PeftPart *p, double factor)
{
	const StateRecord *s = &l->f->states[p->state];
	int64_t n = format_elements(l->f, s->first_dim, s->rank), in_file = 1, rank = 1;
	Arena *arena = arena_new();

	for (int i = 0; i < t->rank; i++)
		in_file *= t->dims[i];
	Status status = check_shape(l, t, p, &rank);
	char *raw = arena_alloc(arena, (size_t)t->n_bytes + 1);
	if (!status)
		status = file_pread(l->st.fd, l->path, raw, t->n_bytes, t->offset);
	if (!status) {
		double *from = NEW_ARRAY(arena, double, in_file), *to = NEW_ARRAY(arena, double, n);
		char *own = arena_alloc(arena, (size_t)s->bytes + 1);
		dtype_convert(F64, from, t->dtype, raw, in_file);
		if (p->turn)
			from = matrix_transposed(arena, (char *)from, t->dims[0], t->dims[1],
			                         sizeof(double));
		pad(l, p, rank, factor, from, to);
		dtype_convert((DType)s->dtype, own, F64, to, n);
		for (int64_t i = 0; i < n && !status; i++)
			if (!isfinite(dtype_load_float((DType)s->dtype, own, i)))
				status = status_error(
					EXIT_CHECKPOINT, "%s: \"%s\": not all numbers are finite%s",
					l->path, t->name,
					factor != 1 ? ", as they are multiplied" : "");
		if (!status)
			status = state_write(&l->run->executor, (int)p->state, 0, own, s->bytes);
	}
	arena_free(arena);
	return status;
}

static Status
read_state(const Loader *l, uint32_t state, Arena *arena, char **out)
{
	*out = arena_alloc(arena, (size_t)l->f->states[state].bytes + 1);
	return state_read(l->run, (int)state, *out);
}

/* Loads the weight of a table or head with an adapter, which PEFT writes as well (save_embedding_layers). With dora the loaded
 * weight must equal the compiled weight, because the magnitudes belong to the compiled weight. */
static Status
load_base(Loader *l, const PeftModule *m)
{
	uint32_t weight = m->record->weight;
	const StateRecord *s = &l->f->states[weight];
	PeftPart p = {arena_printf(l->arena, "base_model.model.%s.base_layer.weight", m->name),
	              weight, s->transposed, -1, (int)s->rank};
	const SafeTensor *t = find(l, p.name);
	char *before, *after;

	if (t && format_four_bit(l->f, (int)weight)) {
		if (l->run->diag)
			diag_warning(l->run->diag,
			             "%s: \"%s\" is left out: the weight keeps the 4-bit codes "
			             "that were compiled",
			             l->path, p.name);
		return NULL;
	}
	if (!t || !m->record->magnitude)
		return t ? load_part(l, t, &p, 1) : NULL;
	Arena *arena = arena_new();
	Status status = read_state(l, weight, arena, &before);
	if (!status)
		status = load_part(l, t, &p, 1);
	if (!status)
		status = read_state(l, weight, arena, &after);
	if (!status && memcmp(before, after, (size_t)s->bytes) != 0)
		status = status_error(EXIT_CHECKPOINT,
		                      "%s: \"%s\" is not the compiled weight, to which dora's "
		                      "magnitudes belong: compile that model",
		                      l->path, p.name);
	arena_free(arena);
	return status;
}

/* Compares the base weight's hash with the hash in the file, if the file has a hash. Not with --unmerge, which restores the
 * base only later. */
static Status
check_base(const Loader *l, const PeftModule *m)
{
	const char *key = peft_base_key(l->arena, m), *said = NULL;
	uint64_t base;

	for (int i = 0; i < l->st.n_metadata; i++)
		if (strcmp(l->st.metadata[i].key, key) == 0)
			said = l->st.metadata[i].value;
	if (!said || l->run->options.unmerge)
		return NULL;
	RETURN_IF_ERROR(adapter_base(l->run, m->record, &base));
	const char *own = arena_printf(l->arena, "%016llx", (unsigned long long)base);
	if (base == 0 || strcmp(said, own) == 0)
		return NULL;
	return status_error(
		EXIT_CHECKPOINT,
		"%s: the adapter of \"%s\" was trained with other weights (hash %s, here %s): "
		"compile that model",
		l->path, m->name, said, own);
}

/* Loads a module's adapter. The adapter's scale is computed from the rank of the first tensor. */
static Status
load_module(Loader *l, const PeftModule *m)
{
	PeftPart parts[MAX_PEFT_PARTS];
	const SafeTensor *found[MAX_PEFT_PARTS];
	int64_t rank = 1, second_rank = 1;
	double scale, own = format_adapter_scale(l->f, m->record);

	int n = peft_parts(l->arena, l->f, m, parts), missing = 0;
	for (int i = 0; i < n; i++)
		missing += !(found[i] = find(l, parts[i].name));
	if (missing == n) {
		if (l->run->diag)
			diag_warning(l->run->diag, "%s: no \"%s\": it keeps its initial value",
			             l->path, parts[0].name);
		return NULL;
	}
	for (int i = 0; i < n; i++)
		if (!found[i])
			return status_error(EXIT_CHECKPOINT, "%s: no \"%s\"", l->path,
			                    parts[i].name);
	RETURN_IF_ERROR(check_shape(l, found[0], &parts[0], &rank));
	RETURN_IF_ERROR(check_shape(l, found[1], &parts[1], &second_rank));
	if (rank != second_rank)
		return status_error(EXIT_CHECKPOINT,
		                    "%s: \"%s\" has rank %lld, but \"%s\" has "
		                    "rank %lld",
		                    l->path, parts[0].name, (long long)rank, parts[1].name,
		                    (long long)second_rank);
	RETURN_IF_ERROR(check_rank(l, m->name, rank));
	RETURN_IF_ERROR(scale_of(l, m->name, rank, &scale));
	double factor = scale == own ? 1 : scale / own;
	if (!isfinite(factor))
		return status_error(EXIT_CHECKPOINT,
		                    "%s: \"%s\" has scale %g, in this executable %g", l->path,
		                    m->name, scale, own);
	if (factor != 1 && l->run->diag)
		diag_warning(
			l->run->diag,
			"%s: \"%s\" has scale %g, in this executable %g: the second matrix of its "
			"adapter is multiplied by the quotient",
			l->path, m->name, scale, own);
	RETURN_IF_ERROR(check_base(l, m));
	RETURN_IF_ERROR(load_base(l, m));
	for (int i = 0; i < n; i++)
		RETURN_IF_ERROR(load_part(l, found[i], &parts[i], i == 1 ? factor : 1));
	return NULL;
}

static bool
has_module(Loader *l, const PeftModule *m)
{
	PeftPart parts[MAX_PEFT_PARTS];

	peft_parts(l->arena, l->f, m, parts);
	return find(l, parts[0].name) != NULL;
}

/* If the last product reads the embedding table as well, gradc has a single adapter for both, so PEFT's two adapters must be
 * equal. */
static Status
load_both(Loader *l, const PeftModule modules[2])
{
	const AdapterRecord *r = modules[0].record;
	const uint32_t parts[] = {r->a, r->b};
	const char *weight = format_text(l->f, l->f->states[r->weight].name);
	char *first[2] = {NULL}, *second[2] = {NULL};

	for (int i = 0; i < 2; i++)
		if (!has_module(l, &modules[i]) && has_module(l, &modules[1 - i]))
			return status_error(EXIT_CHECKPOINT,
			                    "%s: an adapter for \"%s\" and none for \"%s\", which "
			                    "this executable trains as one: compile with "
			                    "--no-tie %s",
			                    l->path, modules[1 - i].name, modules[i].name, weight);
	Arena *arena = arena_new();
	Status status = load_module(l, &modules[0]);
	for (int i = 0; i < 2 && !status; i++)
		status = read_state(l, parts[i], arena, &first[i]);
	if (!status)
		status = load_module(l, &modules[1]);
	for (int i = 0; i < 2 && !status; i++) {
		status = read_state(l, parts[i], arena, &second[i]);
		if (!status &&
		    memcmp(first[i], second[i], (size_t)l->f->states[parts[i]].bytes) != 0)
			status = status_error(
				EXIT_CHECKPOINT,
				"%s: \"%s\" and \"%s\" have adapters of their own, this executable "
				"one for both: compile with --no-tie %s",
				l->path, modules[0].name, modules[1].name, weight);
	}
	arena_free(arena);
	return status;
}

static Status
load_trained(Loader *l)
{
	for (int i = 0; i < l->f->n[SECTION_STATES]; i++) {
		if (!peft_is_trained_whole(l->f, i))
			continue;
		PeftPart p = peft_trained_part(l->arena, l->f, i);
		const SafeTensor *t = find(l, p.name);
		if (t)
			RETURN_IF_ERROR(load_part(l, t, &p, 1));
		else if (l->run->diag)
			diag_warning(l->run->diag, "%s: no \"%s\": it keeps its initial value",
			             l->path, p.name);
	}
	return NULL;
}

/* Refuses a file with tensors that were not used: an adapter without one of its tensors would compute something else. */
static Status
check_taken(const Loader *l)
{
	Status fault = NULL;

	for (int i = 0; i < l->st.n_tensors; i++)
		if (!l->taken[i])
			fault = fault_join(
				l->run->diag, fault,
				status_error(EXIT_CHECKPOINT,
			                     "%s: \"%s\" is not a tensor of this executable's "
			                     "adapters: compile with --lora for its module",
			                     l->path, l->st.tensors[i].name));
	return fault;
}

static Status
load_all(Loader *l)
{
	PeftModules modules = peft_modules(l->arena, l->f);

	l->taken = NEW_ARRAY(l->arena, bool, l->st.n_tensors + 1);
	for (int i = 0; i < modules.n; i++) {
		const PeftModule *m = &modules.at[i];
		bool is_pair = i + 1 < modules.n && m[1].record == m->record;
		RETURN_IF_ERROR(is_pair ? load_both(l, m) : load_module(l, m));
		i += is_pair;
	}
	RETURN_IF_ERROR(load_trained(l));
	return check_taken(l);
}

/* If opening gave no fault, loads the adapter. Closes everything in any case. */
static Status
finish(Loader *l, Status status)
{
	if (!status) {
		status = load_all(l);
		safetensors_close(&l->st);
	}
	json_decref(l->config);
	arena_free(l->arena);
	return status;
}

Status
peft_load(Gradc *run, const char *folder)
{
	Arena *arena = arena_new();
	json_error_t fault;
	Loader l = {.run = run,
	            .f = &run->format,
	            .arena = arena,
	            .config_path = path_join(arena, folder, PEFT_CONFIG),
	            .path = path_join(arena, folder, PEFT_TENSORS)};
	Status status = adapters_check(run, "--load-adapter");

	void *text;
	int64_t n;
	if (!status)
		status = file_read_regular(arena, l.config_path, EXIT_CHECKPOINT, MOST_CONFIG,
		                           &text, &n);
	if (!status) {
		json_t *config = json_loadb(text, (size_t)n, 0, &fault);
		status = take_config(&l, config, &fault);
	}
	if (!status)
		status = safetensors_open(arena, l.path, EXIT_CHECKPOINT, &l.st);
	return finish(&l, status);
}

/* ---- adapters that are kept in the executable */
static const KeptAdapterRecord *
find_kept(const Format *f, const char *name)
{
	for (int i = 0; i < f->n[SECTION_KEPT_ADAPTERS]; i++)
		if (strcmp(format_text(f, f->kept_adapters[i].name), name) == 0)
			return &f->kept_adapters[i];
	return NULL;
}

static Status
unknown(const Format *f, const char *name)
{
	Text names = {0};
	int n = f->n[SECTION_KEPT_ADAPTERS];

	for (int i = 0; i < n; i++) {
		text_add(&names, i ? ", " : "");
		text_add_quoted(&names, format_text(f, f->kept_adapters[i].name));
	}
	Status status = status_error(EXIT_USAGE, "--adapter=%s: this executable has %s%s", name,
	                             n ? "" : "none: compile with --load-adapter NAME=DIR",
	                             n ? names.at : "");
	text_free(&names);
	return status;
}

/* Opens the tensors of an adapter that is kept in the executable, as a file without a name. */
static Status
open_kept(Loader *l, const KeptAdapterRecord *r)
{
	int fd = memfd_create("gradc-adapter", MFD_CLOEXEC);
	const uint8_t *at = l->f->kept + r->tensors;

	for (int64_t done = 0; fd >= 0 && done < r->tensors_bytes;) {
		ssize_t n = write(fd, at + done, (size_t)(r->tensors_bytes - done));
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			close(fd);
			fd = -1;
			break;
		}
		done += n;
	}
	if (fd < 0)
		return status_error(EXIT_SYSTEM, "%s: %s", l->path, strerror(errno));
	return safetensors_read(l->arena, l->path, fd, r->tensors_bytes, EXIT_CHECKPOINT, &l->st);
}

Status
peft_load_kept(Gradc *run, const char *name)
{
	const Format *f = &run->format;
	const KeptAdapterRecord *r = find_kept(f, name);
	Arena *arena = arena_new();
	json_error_t fault;
	Loader l = {.run = run,
	            .f = f,
	            .arena = arena,
	            .config_path = arena_printf(arena, "--adapter=%s: %s", name, PEFT_CONFIG),
	            .path = arena_printf(arena, "--adapter=%s: %s", name, PEFT_TENSORS)};
	Status status = r ? adapters_check(run, "--adapter") : unknown(f, name);

	if (!status) {
		json_t *config = json_loadb((const char *)f->kept + r->config,
		                            (size_t)r->config_bytes, 0, &fault);
		status = take_config(&l, config, &fault);
	}
	if (!status)
		status = open_kept(&l, r);
	return finish(&l, status);
}

/* What a checkpoint records about the run that wrote it: fingerprints of the model and the data, and every setting that changes
 * what training computes. A resumed run compares them with its own. */
#include "runtime/checkpoint/parts.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t
mix_text(uint64_t hash, const char *text)
{
	return hash_bytes(text, strlen(text), hash);
}

static uint64_t
mix_dims(uint64_t hash, uint32_t dtype, uint32_t rank, const int64_t *dims)
{
	hash = hash_mix(hash, (uint64_t)dtype << 32 | rank);
	return hash_bytes(dims, rank * sizeof(*dims), hash);
}

static uint64_t
mix_state(uint64_t hash, const Format *f, const StateRecord *s)
{
	hash = mix_text(hash, format_text(f, s->name));
	hash = mix_dims(hash, s->dtype, s->rank, f->dims + s->first_dim);
	return hash_mix(hash, (uint64_t)s->lifetime << 32 | s->kind);
}

/* Returns a fingerprint of the model: of the states and of the graph that uses them. Bindings (such as the batch size) are left
 * out, so a model with another batch size has the same fingerprint. The layout of states in memory is left out as well. */
uint64_t
facts_model(const Format *f)
{
	uint64_t hash = hash_bytes(f->literal, (size_t)f->n[SECTION_LITERAL], 0);
	const char *optimizer = format_info_get(f, "optimizer");
	const char *groups = format_info_get(f, "optimizer_for");
	Arena *arena = arena_new();
	int n, *saved = saved_states(arena, f, &n);

	for (int i = 0; i < n; i++)
		hash = mix_state(hash, f, &f->states[saved[i]]);
	for (int i = 0; i < f->n[SECTION_STATES]; i++)
		if (f->states[i].lifetime == LIFE_CONSTANT)
			hash = mix_state(hash, f, &f->states[i]);
	arena_free(arena);
	hash = mix_text(hash, optimizer ? optimizer : "");
	return groups && *groups ? mix_text(hash, groups) : hash;
}

enum { BLOCKS = 64, BLOCK = 4096 };

/* Hashes some blocks, spread evenly over the n bytes from `first` on: reading all data for a fingerprint would take too
 * long. */
static Status
mix_blocks(int fd, const char *path, int64_t first, int64_t n, uint64_t *hash)
{
	int64_t blocks = n / BLOCK < BLOCKS ? n / BLOCK + 1 : BLOCKS;
	char block[BLOCK];

	for (int64_t i = 0; i < blocks; i++) {
		int64_t last = n > BLOCK ? n - BLOCK : 0;
		int64_t at = blocks > 1 ? last / (blocks - 1) * i : 0;
		int64_t bytes = n - at < BLOCK ? n - at : BLOCK;

		RETURN_IF_ERROR(file_pread(fd, path, block, bytes, first + at));
		*hash = hash_bytes(block, (size_t)bytes, *hash);
	}
	return NULL;
}

static Status
mix_file(const DataFile *file, uint64_t *hash)
{
	*hash = mix_dims(*hash, file->info.dtype, (uint32_t)file->info.rank, file->info.dims);
	return mix_blocks(file->fd, file->path, file->info.data_offset, file->info.n_bytes, hash);
}

Status
facts_file(const char *path, uint64_t *out)
{
	int fd;
	int64_t n;

	RETURN_IF_ERROR(file_open_regular(path, EXIT_CHECKPOINT, &fd, &n));
	*out = hash_mix(0, (uint64_t)n);
	Status status = mix_blocks(fd, path, 0, n, out);
	close(fd);
	return status;
}

Status
facts_data(const Dataset *d, uint64_t *out)
{
	uint64_t hash = (uint64_t)(d->split ? d->split->rows : d->rows);

	*out = 0;
	for (int i = 0; i < d->n_sources; i++) {
		const Source *s = &d->sources[i];

		hash = mix_text(hash, s->name);
		for (int k = 0; k < s->set.n_files; k++)
			RETURN_IF_ERROR(mix_file(&s->set.files[k], &hash));
	}
	*out = hash;
	return NULL;
}

/* ---- settings */

typedef struct {
	Arena *arena;
	VEC(GradcPair) pairs;
} Settings;
static void
add(Settings *s, const char *name, json_t *value)
{
	char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(17));

	GradcPair pair = {name, arena_strdup(s->arena, text ? text : "null")};

	vec_push(s->arena, &s->pairs, pair);
	memory_free(text);
	json_decref(value);
}

static void
add_number(Settings *s, const char *name, double value)
{
	add(s, name, isfinite(value) ? json_real(value) : json_null());
}

/* The settings that were chosen when the model was compiled; the compiler lists their keys. */
static void
add_compiled(Settings *s, const Format *f)
{
	const char *keys = format_info_get(f, "settings");
	char *copy = arena_strdup(s->arena, keys ? keys : ""), *save = NULL;

	for (char *key = strtok_r(copy, " ", &save); key; key = strtok_r(NULL, " ", &save)) {
		const char *text = format_info_get(f, key);
		add(s, key, text ? json_string(text) : json_null());
	}
}

/* Settings of a schedule are left out if the learning rate is constant. */
static void
add_schedule(Settings *s, const Gradc *run)
{
	const Hyper *h = &run->hyper;

	add(s, "lr_schedule", json_string(h->lr_schedule));
	add(s, "warmup", json_integer(h->warmup));
	if (!lr_schedule_is(h->lr_schedule, "constant"))
		add_number(s, "min_lr", h->min_lr);
	if (lr_schedule_has_end(h->lr_schedule))
		add(s, "steps", json_integer(run->total_steps));
}

/* "0.2,7"; so that .2 and 0.2,0 are the same. */
static void
add_split(Settings *s, const char *split)
{
	char text[64];
	uint64_t seed;
	double share;

	if (split) {
		status_free(split_parse(split, &share, &seed));
		snprintf(text, sizeof(text), "%.12g,%llu", share, (unsigned long long)seed);
	}
	add(s, "split", split ? json_string(text) : json_null());
}

/* Facts about the machine on which the last bits of results may depend. */
static void
add_machine(Settings *s, const Gradc *run)
{
	const Executor *x = &run->executor;
	const char *kind = run->variant->kind == IMAGE_FUNCTIONS ? "cpu" : "cuda";

	add(s, "device", json_string(kind));
	add(s, kind, json_string(run->variant->name));
	add(s, "processor", json_string(run->processor));
	add(s, "deterministic", json_boolean(run->options.deterministic));
	if (gradc_ranks(run) > 1)
		add(s, "reduce", json_string(gradc_reduce(run)));
	if (comm_enqueues(&run->comm)) /* versions of NCCL may add in different orders */
		add(s, "collectives", json_string(gradc_collectives(run)));
	if (!x->ops->facts)
		return;
	DeviceFacts facts = x->ops->facts(x->device);
	add(s, "library", facts.library ? json_string(facts.library) : json_null());
	if (facts.gpu) {
		add(s, "gpu", json_string(facts.gpu));
		return;
	}
	add(s, "threads", json_integer(facts.threads));
	add(s, "cpus", json_integer(facts.cpus));
}

static Settings
collect_settings(const Gradc *run)
{
	Settings s = {.arena = run->arena};
	const GradcOptions *o = &run->options;

	add_compiled(&s, &run->format);
	for (int i = 0; i < N_SCALARS; i++)
		if (hyperparameters[i].option || i == SCALAR_CLIP_NORM || i == SCALAR_CLIP_VALUE)
			add_number(&s, scalar_names[i], run->hyper.values[i]);
	if (run->train) {
		add_schedule(&s, run);
		add(&s, "seed", json_uint(o->seed));
		add(&s, "shuffle", json_boolean(o->shuffle));
		add(&s, "keep_last", json_boolean(o->keep_last));
		add_split(&s, o->split);
		add(&s, "rows_per_step",
		    json_integer(run->train->micro_rows * o->accumulate * gradc_ranks(run)));
	}
	add_machine(&s, run);
	return s;
}

const GradcPair *
facts_settings(Gradc *run, int *n)
{
	Saver *saver = run->saver;

	if (!saver->settings) {
		Settings s = collect_settings(run);

		saver->settings = s.pairs.at;
		saver->n_settings = s.pairs.n;
	}
	*n = saver->n_settings;
	return saver->settings;
}

Status
facts_read_data(Gradc *run)
{
	Saver *saver = run->saver;

	if (!run->train || saver->has_data)
		return NULL;
	RETURN_IF_ERROR(facts_data(run->train, &saver->data));
	saver->has_data = true;
	return NULL;
}

GradcFingerprints
gradc_fingerprints(Gradc *run)
{
	Saver *saver = run->saver;

	status_free(facts_read_data(run));
	if (!saver->model)
		saver->model = facts_model(&run->format);
	return (GradcFingerprints){saver->model, run->train ? saver->data : run->eval_data};
}

/* The engines that this run's libraries took or left out as faulty, which do not change after the run is opened. */
static void
collect_engines(Gradc *run)
{
	const Tunings *t = &run->tunings;
	Saver *saver = run->saver;

	if (saver->engines)
		return;
	saver->engines = NEW_ARRAY(run->arena, const char *, t->n + 1);
	for (int i = 0; i < t->n; i++) {
		Text line = {0};
		if (t->at[i].use == ENGINE_IDLE)
			continue;
		tunings_print(&t->at[i], &line);
		saver->engines[saver->n_engines++] = arena_strdup(run->arena, line.at);
		text_free(&line);
	}
}

Status
facts_collect(Gradc *run, Manifest *out)
{
	Saver *saver = run->saver;

	RETURN_IF_ERROR(facts_read_data(run));
	if (!saver->model)
		saver->model = facts_model(&run->format);
	*out = (Manifest){.version = CHECKPOINT_VERSION,
	                  .run = saver->run,
	                  .step = run->step,
	                  .samples = run->samples,
	                  .world = gradc_ranks(run),
	                  .loss = run->loss,
	                  .eval_loss = NAN,
	                  .plateau = run->hyper.plateau,
	                  .best = run->best,
	                  .model = saver->model,
	                  .data = saver->data,
	                  .rows = run->train ? run->train->rows : 0};
	out->settings = facts_settings(run, &out->n_settings);
	collect_engines(run);
	out->engines = saver->engines;
	out->n_engines = saver->n_engines;
	return NULL;
}

static const char *
setting(const Manifest *m, const char *name)
{
	for (int i = 0; i < m->n_settings; i++)
		if (strcmp(m->settings[i].name, name) == 0)
			return m->settings[i].value;
	return NULL;
}

/* A number with as few digits as it needs: 0.1, not 0.10000000000000001. */
static const char *
shown(Arena *arena, const char *json)
{
	Text text = {0};
	double value;

	if (*json == '"' || !strpbrk(json, ".e") || !parse_double(json, &value))
		return json;
	text_add_double(&text, value);
	json = arena_strdup(arena, text.at);
	text_free(&text);
	return json;
}

/* Are the last bits the same with any number of threads and CPUs? Yes if no library is used, or with --deterministic. */
static bool
is_free_of_threads(const Manifest *m)
{
	const char *deterministic = setting(m, "deterministic"), *library = setting(m, "library");

	return (deterministic && strcmp(deterministic, "true") == 0) ||
	       (library && strcmp(library, "null") == 0);
}

static bool
is_compared(const char *name, const Manifest *old, const Manifest *now)
{
	bool cuts = strcmp(name, "threads") == 0 || strcmp(name, "cpus") == 0;

	return !cuts || (!is_free_of_threads(old) && !is_free_of_threads(now));
}

Status
facts_check_split(const Gradc *run, const char *path, const Manifest *old, const Manifest *now)
{
	const char *before = setting(old, "split"), *after = setting(now, "split");

	if (!before || strcmp(before, "null") == 0 || (after && strcmp(before, after) == 0))
		return NULL;
	return status_error(EXIT_USAGE,
	                    "%s: its training held rows out with --split=%.*s: give the same "
	                    "--split, or these rows are trained on",
	                    path, (int)strcspn(before + 1, "\""), before + 1);
}

void
facts_compare(Gradc *run, const char *path, const Manifest *old, const Manifest *now)
{
	if (!run->diag || gradc_rank(run) > 0)
		return;
	if (old->n_settings == 0)
		diag_warning(run->diag,
		             "%s: its manifest has no settings, so they cannot be compared "
		             "with the settings of this run",
		             path);
	for (int i = 0; i < now->n_settings; i++) {
		const char *name = now->settings[i].name, *before = setting(old, name);

		if (before && strcmp(before, now->settings[i].value) != 0 &&
		    is_compared(name, old, now))
			diag_warning(run->diag, "%s: \"%s\" was %s, is %s", path, name,
			             shown(run->arena, before),
			             shown(run->arena, now->settings[i].value));
	}
	if (now->rows && old->rows && old->rows != now->rows)
		diag_warning(run->diag, "%s: the data had %lld rows, these have %lld", path,
		             (long long)old->rows, (long long)now->rows);
	else if (now->rows && old->rows && old->data != now->data)
		diag_warning(run->diag, "%s: the data differ from those it was trained on", path);
}

/* The manifest of a checkpoint: JSON whose first line is the checksum of the bytes after it. No value is used before the
 * checksum has been compared.
 *
 * {
 *  "checksum": "<16 hex digits, XXH3 of the bytes after them>",
 *  "format": "gradc-checkpoint",
 *  "version": 1, ...
 *
 * In version 2 a tensor may consist of several pieces, written by several ranks. */
#include "runtime/checkpoint/parts.h"
#include "runtime/host/host.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Limits against hostile files: the number of bytes and of commas bounds the number of JSON values, and so the memory that the
 * JSON reader allocates. */
#define MAX_BYTES 100000000
#define MAX_VALUES 2000000
#define MAX_COUNT (1ll << 60) /* limit of steps and samples */
#define MAX_WORLD 1000000
#define FORMAT_NAME "gradc-checkpoint"

static const char head[] = "{\n \"checksum\": \"";
enum { HEX = CHECKSUM_HEX, HEAD = sizeof(head) - 1 };

/* ---- writing */

static json_t *
number_or_null(double value)
{
	return isfinite(value) ? json_real(value) : json_null();
}

static json_t *
hex_json(uint64_t value)
{
	char text[HEX + 1];

	return json_string(checksum_text(text, value));
}

static json_t *
pieces_json(const SavedTensor *t)
{
	json_t *list = json_array();

	for (int i = 0; i < t->n_pieces; i++) {
		const SavedPiece *p = &t->pieces[i];

		json_array_append_new(list,
		                      json_pack("{s:i, s:I, s:I, s:o}", "shard", p->shard, "first",
		                                (json_int_t)p->first, "count", (json_int_t)p->count,
		                                "checksum", hex_json(p->checksum)));
	}
	return list;
}

static json_t *
tensor_json(const SavedTensor *t)
{
	json_t *shape = json_array();

	for (int d = 0; d < t->rank; d++)
		json_array_append_new(shape, json_integer(t->dims[d]));
	json_t *entry = json_pack("{s:s, s:s, s:o}", "name", t->name, "dtype",
	                          dtype_info[t->dtype].name, "shape", shape);
	if (t->n_pieces > 1) {
		json_object_set_new(entry, "pieces", pieces_json(t));
		return entry;
	}
	json_object_set_new(entry, "checksum", hex_json(t->pieces->checksum));
	if (t->pieces->shard >= 0)
		json_object_set_new(entry, "shard", json_integer(t->pieces->shard));
	return entry;
}

static json_t *
tensors_json(const SavedTensor *tensors, int n)
{
	json_t *list = json_array();

	for (int i = 0; i < n; i++)
		json_array_append_new(list, tensor_json(&tensors[i]));
	return list;
}

static json_t *
shards_json(const Manifest *m)
{
	json_t *list = json_array();

	for (int i = 0; i < m->n_shards; i++)
		json_array_append_new(list, json_pack("{s:s, s:I, s:o}", "file", m->shards[i].file,
		                                      "bytes", (json_int_t)m->shards[i].bytes,
		                                      "header", hex_json(m->shards[i].header)));
	return list;
}

static json_t *
settings_json(const Manifest *m)
{
	json_t *object = json_object();

	for (int i = 0; i < m->n_settings; i++)
		json_object_set_new(object, m->settings[i].name,
		                    json_loads(m->settings[i].value, JSON_DECODE_ANY, NULL));
	return object;
}

static json_t *
engines_json(const Manifest *m)
{
	json_t *list = json_array();

	for (int i = 0; i < m->n_engines; i++)
		json_array_append_new(list, json_string(m->engines[i]));
	return list;
}

static json_t *
plateau_json(const Plateau *p)
{
	return json_pack("{s:f, s:f, s:o, s:I, s:I}", "lr", p->lr, "first", p->first, "best",
	                 number_or_null(p->best), "bad", (json_int_t)p->bad, "cooldown",
	                 (json_int_t)p->cooldown);
}

/* "stops" and "improved" follow from the options. */
static json_t *
best_json(const GradcBest *b)
{
	return json_pack("{s:s, s:I, s:o, s:o, s:o, s:I}", "metric", b->metric, "step",
	                 (json_int_t)b->step, "data", hex_json(b->data), "value",
	                 number_or_null(b->value), "mark", number_or_null(b->mark), "since",
	                 (json_int_t)b->since);
}

/* Returns the version to write: the oldest version that can express the contents, so that older programs can read the
 * checkpoint. */
static int
version_of(const Manifest *m)
{
	for (int i = 0; i < m->n_tensors; i++)
		if (m->tensors[i].n_pieces > 1)
			return 2;
	return 1;
}

static json_t *
manifest_json(const Manifest *m)
{
	json_t *root = json_pack(
		"{s:s, s:i, s:s, s:o, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:I, s:o, "
		"s:o, s:o, s:o}",
		"format", FORMAT_NAME, "version", version_of(m), "gradc", GRADC_VERSION, "run",
		hex_json(m->run), "serial", (json_int_t)m->serial, "step", (json_int_t)m->step,
		"samples", (json_int_t)m->samples, "world", (json_int_t)m->world, "loss",
		number_or_null(m->loss), "eval_loss", number_or_null(m->eval_loss), "model",
		hex_json(m->model), "data", hex_json(m->data), "rows", (json_int_t)m->rows,
		"settings", settings_json(m), "shards", shards_json(m), "tensors",
		tensors_json(m->tensors, m->n_tensors), "constants",
		tensors_json(m->constants, m->n_constants));

	if (root && m->n_engines > 0)
		json_object_set_new(root, "engines", engines_json(m));
	if (root && m->plateau.lr > 0)
		json_object_set_new(root, "plateau", plateau_json(&m->plateau));
	if (root && m->best.metric)
		json_object_set_new(root, "best", best_json(&m->best));
	if (root && m->only_best)
		json_object_set_new(root, "only_best", json_true());
	return root;
}

static bool
has_too_many_values(const char *text, size_t n)
{
	int64_t n_values = 0;

	for (size_t i = 0; i < n; i++)
		n_values += text[i] == ',';
	return n_values > MAX_VALUES;
}

Status
manifest_text(Arena *arena, const char *path, const Manifest *m, FilePart *out)
{
	json_t *root = manifest_json(m);
	char *json = root ? json_dumps(root, JSON_INDENT(1) | JSON_PRESERVE_ORDER |
	                                             JSON_REAL_PRECISION(17))
	                  : NULL;
	char hex[HEX + 1];

	json_decref(root);
	if (!json)
		return status_error(EXIT_SYSTEM, "%s: a tensor's name is not UTF-8", path);
	size_t n = strlen(json + 1);
	if (n > MAX_BYTES - HEAD - HEX - 3 || has_too_many_values(json, n)) {
		memory_free(json);
		return status_error(
			EXIT_SYSTEM,
			"%s: %zu bytes, or more than %d values, which no manifest may have", path,
			n, MAX_VALUES);
	}
	char *text = arena_alloc(arena, HEAD + HEX + n + 3), *body = text + HEAD + HEX;
	memcpy(body, "\",", 2);
	memcpy(body + 2, json + 1, n);
	body[n + 2] = '\n';
	checksum_text(hex, checksum_bytes(body, (int64_t)n + 3));
	memcpy(text, head, HEAD);
	memcpy(text + HEAD, hex, HEX);
	*out = (FilePart){text, (int64_t)(HEAD + HEX + n + 3)};
	memory_free(json);
	return NULL;
}

/* ---- reading */

typedef struct {
	Arena *arena;
	const char *path;
	Status fault; /* the first fault */
} Reader;

static void malformed(Reader *r, const char *fmt, ...) PRINTF(2, 3);

static void
malformed(Reader *r, const char *fmt, ...)
{
	va_list args;

	if (r->fault)
		return;
	va_start(args, fmt);
	char *message = arena_vprintf(r->arena, fmt, args);
	va_end(args);
	r->fault = status_error(EXIT_CHECKPOINT, "%s: %s", r->path, message);
}

static bool
parse_hex(const char *text, size_t n, uint64_t *out)
{
	*out = 0;
	for (size_t i = 0; i < n; i++) {
		char c = text[i];
		if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')))
			return false;
		*out = *out << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
	}
	return n == HEX;
}

static const char *
want_text(Reader *r, const json_t *object, const char *key)
{
	const json_t *value = json_object_get(object, key);

	if (!json_is_string(value))
		malformed(r, "\"%s\" is not a text", key);
	return json_is_string(value) ? arena_strdup(r->arena, json_string_value(value)) : "";
}

static uint64_t
want_hex(Reader *r, const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));
	uint64_t value = 0;

	if (!text || !parse_hex(text, strlen(text), &value))
		malformed(r, "\"%s\" is not a number of 16 hex digits", key);
	return value;
}

static int64_t
want_count(Reader *r, const json_t *object, const char *key, int64_t least, int64_t most)
{
	const json_t *value = json_object_get(object, key);
	int64_t n = json_integer_value(value);

	if (json_is_integer(value) && n >= least && n <= most)
		return n;
	if (json_is_integer(value))
		malformed(r, "\"%s\" is %lld, not in [%lld, %lld]", key, (long long)n,
		          (long long)least, (long long)most);
	else
		malformed(r, "\"%s\" is not a whole number", key);
	return least;
}

static double
want_number(Reader *r, const json_t *object, const char *key)
{
	const json_t *value = json_object_get(object, key);

	if (!json_is_number(value) && !json_is_null(value))
		malformed(r, "\"%s\" is not a number", key);
	return json_is_number(value) ? json_number_value(value) : NAN;
}

static const json_t *
want_list(Reader *r, const json_t *object, const char *key, int *n)
{
	const json_t *list = json_object_get(object, key);

	if (!json_is_array(list))
		malformed(r, "\"%s\" is not a list", key);
	*n = (int)json_array_size(list);
	return list;
}

static void
read_shape(Reader *r, const json_t *entry, SavedTensor *t)
{
	const json_t *shape = want_list(r, entry, "shape", &t->rank);
	int64_t n = 1;

	if (t->rank > MAX_RANK) {
		malformed(r, "tensor \"%s\" has more than %d dimensions", t->name, MAX_RANK);
		t->rank = 0;
	}
	for (int i = 0; i < t->rank; i++) {
		const json_t *dim = json_array_get(shape, (size_t)i);

		t->dims[i] = json_integer_value(dim);
		if (!json_is_integer(dim) || t->dims[i] < 0 || !size_mul(n, t->dims[i], &n))
			malformed(r, "tensor \"%s\": dimension %d is not a size", t->name, i);
	}
}

/* Checks that a tensor's pieces follow each other without gap or overlap, so that each element is in exactly one piece. */
static void
read_pieces(Reader *r, const json_t *list, int n_shards, int64_t elements, SavedTensor *t)
{
	int64_t next = 0;

	t->n_pieces = (int)json_array_size(list);
	t->pieces = NEW_ARRAY(r->arena, SavedPiece, t->n_pieces);
	if (t->n_pieces < 2)
		malformed(r, "tensor \"%s\": \"pieces\" is not a list of two or more", t->name);
	for (int i = 0; i < t->n_pieces && !r->fault; i++) {
		const json_t *entry = json_array_get(list, (size_t)i);
		SavedPiece *p = &t->pieces[i];

		p->shard = (int)want_count(r, entry, "shard", 0, n_shards - 1);
		p->first = want_count(r, entry, "first", 0, elements);
		p->count = want_count(r, entry, "count", 1, elements);
		p->checksum = want_hex(r, entry, "checksum");
		if (p->first != next)
			malformed(r, "tensor \"%s\": piece %d begins at element %lld, not at %lld",
			          t->name, i, (long long)p->first, (long long)next);
		else if (p->count > elements - next)
			malformed(r, "tensor \"%s\": piece %d has %lld elements, %lld are left",
			          t->name, i, (long long)p->count, (long long)(elements - next));
		else if (p->first % 8 * dtype_info[t->dtype].bits % 8 != 0)
			malformed(r, "tensor \"%s\": piece %d begins within a byte", t->name, i);
		next += p->count;
	}
	if (!r->fault && next < elements)
		malformed(r, "tensor \"%s\": its pieces have %lld elements of %lld", t->name,
		          (long long)next, (long long)elements);
}

/* Reads a list of tensors. n_shards: number of shards in which they may be; 0 for constants, which are in no shard. */
static void
read_places(Reader *r, const json_t *entry, int n_shards, SavedTensor *t)
{
	const json_t *pieces = json_object_get(entry, "pieces");
	SavedPiece *whole = t->pieces = saved_whole(r->arena, t, -1, 0);

	t->n_pieces = 1;
	if (pieces && n_shards > 0) {
		if (json_object_get(entry, "shard"))
			malformed(r, "tensor \"%s\" has a \"shard\" and \"pieces\"", t->name);
		else
			read_pieces(r, pieces, n_shards, whole->count, t);
		return;
	}
	whole->checksum = want_hex(r, entry, "checksum");
	if (n_shards > 0)
		whole->shard = (int)want_count(r, entry, "shard", 0, n_shards - 1);
}

static SavedTensor *
read_tensors(Reader *r, const json_t *root, const char *key, int n_shards, int *n)
{
	const json_t *list = want_list(r, root, key, n);
	SavedTensor *tensors = NEW_ARRAY(r->arena, SavedTensor, *n);

	for (int i = 0; i < *n && !r->fault; i++) {
		const json_t *entry = json_array_get(list, (size_t)i);
		SavedTensor *t = &tensors[i];

		t->name = want_text(r, entry, "name");
		const char *dtype = want_text(r, entry, "dtype");
		if (!dtype_parse(dtype, &t->dtype))
			malformed(r, "tensor \"%s\" has dtype \"%s\", which is unknown", t->name,
			          dtype);
		read_shape(r, entry, t);
		if (!r->fault)
			read_places(r, entry, n_shards, t);
	}
	return tensors;
}

/* Is it a plain file name without a folder? A shard must be in the checkpoint's own folder. */
static bool
is_shard_name(const char *name)
{
	return glob_match(SHARD_PATTERN, name) && !strchr(name, '/');
}

static void
read_shards(Reader *r, const json_t *root, Manifest *m)
{
	const json_t *list = want_list(r, root, "shards", &m->n_shards);

	m->shards = NEW_ARRAY(r->arena, Shard, m->n_shards);
	for (int i = 0; i < m->n_shards && !r->fault; i++) {
		const json_t *entry = json_array_get(list, (size_t)i);
		Shard *s = &m->shards[i];

		s->file = want_text(r, entry, "file");
		if (!is_shard_name(s->file))
			malformed(r, "\"%s\" is not the name of a shard", s->file);
		s->bytes = want_count(r, entry, "bytes", 0, INT64_MAX);
		s->header = want_hex(r, entry, "header");
	}
}

static void
read_settings(Reader *r, const json_t *root, Manifest *m)
{
	json_t *object = json_object_get(root, "settings"), *value;
	const char *name;

	if (!json_is_object(object))
		malformed(r, "\"settings\" is not an object");
	GradcPair *settings = NEW_ARRAY(r->arena, GradcPair, json_object_size(object));
	m->settings = settings;
	json_object_foreach(object, name, value) {
		char *text = json_dumps(value,
		                        JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(17));

		settings[m->n_settings++] = (GradcPair){arena_strdup(r->arena, name),
		                                        arena_strdup(r->arena, text ? text : "")};
		memory_free(text);
	}
}

static void
read_engines(Reader *r, const json_t *root, Manifest *m)
{
	if (!json_object_get(root, "engines"))
		return;
	const json_t *list = want_list(r, root, "engines", &m->n_engines);
	m->engines = NEW_ARRAY(r->arena, const char *, m->n_engines);
	for (int i = 0; i < m->n_engines; i++) {
		const char *line = json_string_value(json_array_get(list, (size_t)i));
		if (!line)
			malformed(r, "\"engines\" has an entry that is not a text");
		m->engines[i] = line ? arena_strdup(r->arena, line) : "";
	}
}

/* Reads a positive number. */
static double
want_rate(Reader *r, const json_t *object, const char *key)
{
	double x = want_number(r, object, key);

	if (!(x > 0))
		malformed(r, "\"%s\" is not a learning rate", key);
	return x;
}

static void
read_plateau(Reader *r, const json_t *root, Plateau *p)
{
	const json_t *object = json_object_get(root, "plateau");

	if (!object)
		return;
	p->lr = want_rate(r, object, "lr");
	p->first = want_rate(r, object, "first");
	p->best = want_number(r, object, "best");
	p->best = isnan(p->best) ? INFINITY : p->best;
	p->bad = want_count(r, object, "bad", 0, MAX_COUNT);
	p->cooldown = want_count(r, object, "cooldown", 0, MAX_COUNT);
}

/* A step of -1 says that there was no evaluation. */
static void
read_best(Reader *r, const json_t *root, GradcBest *b)
{
	const json_t *object = json_object_get(root, "best");

	*b = (GradcBest){.step = -1, .value = NAN, .mark = NAN};
	if (!object)
		return;
	b->metric = want_text(r, object, "metric");
	b->step = want_count(r, object, "step", -1, MAX_COUNT);
	b->data = want_hex(r, object, "data");
	b->value = want_number(r, object, "value");
	b->mark = want_number(r, object, "mark");
	b->since = want_count(r, object, "since", 0, MAX_COUNT);
}

static void
read_root(Reader *r, const json_t *root, Manifest *m)
{
	if (strcmp(want_text(r, root, "format"), FORMAT_NAME) != 0)
		malformed(r, "not a manifest of gradc");
	m->version = want_count(r, root, "version", 1, INT64_MAX);
	if (m->version > CHECKPOINT_VERSION)
		malformed(
			r,
			"format version %lld, this program reads up to %d: it was written by a newer "
			"gradc (%s)",
			(long long)m->version, CHECKPOINT_VERSION, want_text(r, root, "gradc"));
	if (r->fault)
		return;
	m->run = want_hex(r, root, "run");
	m->serial = want_count(r, root, "serial", 0, MAX_COUNT);
	m->step = want_count(r, root, "step", 0, MAX_COUNT);
	m->samples = want_count(r, root, "samples", 0, MAX_COUNT);
	m->world = want_count(r, root, "world", 1, MAX_WORLD);
	m->loss = want_number(r, root, "loss");
	m->eval_loss = want_number(r, root, "eval_loss");
	m->model = want_hex(r, root, "model");
	m->data = want_hex(r, root, "data");
	m->rows = want_count(r, root, "rows", 0, MAX_COUNT);
	read_plateau(r, root, &m->plateau);
	read_best(r, root, &m->best);
	m->only_best = json_is_true(json_object_get(root, "only_best"));
	read_settings(r, root, m);
	read_engines(r, root, m);
	read_shards(r, root, m);
	m->tensors = read_tensors(r, root, "tensors", m->n_shards, &m->n_tensors);
	m->constants = read_tensors(r, root, "constants", 0, &m->n_constants);
	if (m->n_tensors > 0 && m->n_shards == 0)
		malformed(r, "tensors without a shard");
}

static void
check_checksum(Reader *r, const char *text, size_t n)
{
	uint64_t want;
	char hex[2][HEX + 1];

	if (n < HEAD + HEX || memcmp(text, head, HEAD) != 0 ||
	    !parse_hex(text + HEAD, HEX, &want)) {
		malformed(r, "damaged, or no manifest of gradc: it does not begin with a checksum");
		return;
	}
	uint64_t got = checksum_bytes(text + HEAD + HEX, (int64_t)(n - HEAD - HEX));
	if (got != want)
		malformed(r, "damaged: its checksum is %s, its bytes have %s",
		          checksum_text(hex[0], want), checksum_text(hex[1], got));
}

static void
check_values(Reader *r, const char *text, size_t n)
{
	if (has_too_many_values(text, n))
		malformed(r, "more than %d values", MAX_VALUES);
}

Status
manifest_parse(Arena *arena, const char *path, const char *text, size_t n, Manifest *out)
{
	Reader r = {.arena = arena, .path = path};
	json_error_t error;

	*out = (Manifest){0};
	check_checksum(&r, text, n);
	check_values(&r, text, n);
	if (r.fault)
		return r.fault;
	json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
	if (!root)
		malformed(&r, "malformed: %s at byte %d", error.text, error.position);
	else
		read_root(&r, root, out);
	json_decref(root);
	return r.fault;
}

Status
manifest_read(Arena *arena, const char *path, Manifest *out)
{
	void *text;
	int64_t n;
	Status status = file_read(arena, path, MAX_BYTES, &text, &n);

	*out = (Manifest){0};
	if (!status)
		return manifest_parse(arena, path, text, (size_t)n, out);
	status->exit_code = EXIT_CHECKPOINT;
	return status;
}

uint64_t
manifest_constants(const Manifest *m)
{
	uint64_t hash = 0;

	for (int i = 0; i < m->n_constants; i++) {
		const SavedTensor *t = &m->constants[i];
		hash = hash_bytes(t->name, strlen(t->name), hash + 1);
		hash = hash_mix(hash, t->pieces->checksum);
	}
	return hash;
}

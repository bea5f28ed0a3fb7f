/* Predictions as text, for people and scripts: CSV with a line per row, or JSON with an object per line.
 *
 * If the loss compares an output with classes, a row has the predicted class, its name with --classes, and the probabilities of
 * the classes. Otherwise a row has the numbers of the outputs. */
#include "runtime/cli/predict.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static bool
has_classes(const Writer *p)
{
	return task_classes(&p->task) > 0;
}

/* A row has one class: one target with several classes, or one label that is 0 or 1. */
static bool
has_one_class(const Writer *p)
{
	return has_classes(p) && p->task.per_row == 1;
}

/* ---- values */
/* Shortest text from which a reader gets the number back. missing: for NaN and infinities. */
static void
add_number(Text *out, DType dtype, double x, const char *missing)
{
	if (!isfinite(x))
		text_add(out, missing ? missing : isnan(x) ? "nan" : x > 0 ? "inf" : "-inf");
	else if (dtype == F64)
		text_add_double(out, x);
	else
		text_add_float(out, (float)x);
}

static void
add_element(Text *out, const GradcOutput *o, const void *data, int64_t i, const char *missing)
{
	if (dtype_is_float(o->dtype))
		add_number(out, o->dtype, dtype_load_float(o->dtype, data, i), missing);
	else
		text_printf(out, "%" PRId64, dtype_load_int(o->dtype, data, i));
}

/* The probabilities of target `target` of a row: of each class, or of the labels 0 and 1. */
static void
load_probabilities(Writer *p, const void *data, int64_t row, int64_t target)
{
	const MetricTask *t = &p->task;
	const GradcOutput *o = &p->of.outputs[p->first];
	bool classes = t->kind == TARGETS_CLASSES;
	const Scores scores = {data, o->dtype, t->inner, classes ? t->classes : 1};
	int64_t at = classes ? target / t->inner * t->classes * t->inner + target % t->inner
	                     : target;

	scores_load(p->scores, &scores, row * o->elements + at);
	scores_to_probabilities(p->scores, scores.classes, t);
	if (!classes && !t->is_multilabel) {
		p->scores[1] = p->scores[0];
		p->scores[0] = 1 - p->scores[1];
	}
}

/* The class with the highest probability; of a label among several in a row: 1 if its probability is above 1/2. -1: a probability
 * is NaN, so there is no class. */
static int64_t
predicted(const Writer *p)
{
	int64_t best = 0, n = p->task.is_multilabel ? 1 : p->task.classes;

	for (int64_t i = 0; i < n; i++) {
		if (isnan(p->scores[i]))
			return -1;
		if (p->scores[i] > p->scores[best])
			best = i;
	}
	return p->task.is_multilabel ? p->scores[0] > 0.5 : best;
}

/* The number of a class; `none` if there is no class. */
static void
add_class(Text *out, int64_t class, const char *none)
{
	if (class < 0)
		text_add(out, none);
	else
		text_printf(out, "%" PRId64, class);
}

static void
add_json_name(Text *out, const char *name)
{
	json_t *json = json_name(name);
	char *text = json_dumps(json, JSON_ENCODE_ANY);

	text_add(out, text);
	memory_free(text);
	json_decref(json);
}

/* ---- JSON lines */
/* A row of an output, as nested lists. */
static void
add_lists(Text *out, const GradcOutput *o, const void *data, int axis, int64_t *at)
{
	if (axis == o->rank) {
		add_element(out, o, data, (*at)++, "null");
		return;
	}
	text_add(out, "[");
	for (int64_t i = 0; i < o->dims[axis]; i++) {
		text_add(out, i ? "," : "");
		add_lists(out, o, data, axis + 1, at);
	}
	text_add(out, "]");
}

static void
add_outputs(Writer *p, int64_t row, const void *const *outputs)
{
	text_add(&p->text, ",\"outputs\":{");
	for (int i = 0; i < p->n; i++) {
		const GradcOutput *o = &p->of.outputs[p->first + i];
		int64_t at = row * o->elements;
		text_add(&p->text, i ? "," : "");
		add_json_name(&p->text, o->name);
		text_add(&p->text, ":");
		add_lists(&p->text, o, outputs[i], 0, &at);
	}
	text_add(&p->text, "}");
}

static void
add_one_class(Writer *p, const void *data, int64_t row)
{
	Text *out = &p->text;

	load_probabilities(p, data, row, 0);
	int64_t class = predicted(p);
	text_add(out, ",\"class\":");
	add_class(out, class, "null");
	if (p->names) {
		text_add(out, ",\"name\":");
		if (class < 0)
			text_add(out, "null");
		else
			add_json_name(out, p->names[class]);
	}
	text_add(out, ",\"probabilities\":[");
	for (int64_t i = 0; i < p->task.classes; i++) {
		text_add(out, i ? "," : "");
		add_number(out, F32, p->scores[i], "null");
	}
	text_add(out, "]");
}

/* Lists with an entry per target: the class, its name, its probability. A label that is one of several in a row has the class 0
 * or 1 and the probability of 1; its names are those of the labels that are 1. */
static void
add_many_classes(Writer *p, const void *data, int64_t row)
{
	Text classes = {0}, names = {0}, *out = &p->text;
	bool multi = p->task.is_multilabel;

	text_add(out, ",\"probability\":[");
	for (int64_t i = 0; i < p->task.per_row; i++) {
		load_probabilities(p, data, row, i);
		int64_t class = predicted(p);
		text_add(out, i ? "," : "");
		add_number(out, F32, class < 0 ? NAN : p->scores[multi ? 0 : class], "null");
		text_add(&classes, i ? "," : "");
		add_class(&classes, class, "null");
		if (!p->names || (multi && class <= 0))
			continue;
		text_add(&names, names.n ? "," : "");
		if (class < 0)
			text_add(&names, "null");
		else
			add_json_name(&names, p->names[multi ? i : class]);
	}
	text_printf(out, "],\"class\":[%s]", classes.at);
	if (p->names)
		text_printf(out, ",\"name\":[%s]", names.n ? names.at : "");
	text_free(&classes);
	text_free(&names);
}

static Status
check_jsonl(Writer *p)
{
	(void)p;
	return NULL;
}

static void
add_jsonl(Writer *p, int64_t rows, const void *const *outputs)
{
	for (int64_t r = 0; r < rows; r++) {
		text_printf(&p->text, "{\"row\":%" PRId64, p->row + r);
		if (!has_classes(p))
			add_outputs(p, r, outputs);
		else if (has_one_class(p))
			add_one_class(p, outputs[0], r);
		else
			add_many_classes(p, outputs[0], r);
		text_add(&p->text, "}\n");
	}
}

/* ---- CSV */
/* A field, in quotes if it needs them (RFC 4180). */
static void
add_field(Text *out, const char *text)
{
	if (!text[strcspn(text, ",\"\r\n")]) {
		text_add(out, text);
		return;
	}
	text_add(out, "\"");
	for (const char *c = text; *c; c++)
		text_add_bytes(out, *c == '"' ? "\"\"" : c, *c == '"' ? 2 : 1);
	text_add(out, "\"");
}

static Status
check_csv(Writer *p)
{
	if (has_classes(p) && (has_one_class(p) || p->task.is_multilabel))
		return NULL;
	for (int i = p->first; i < p->first + p->n; i++) {
		const GradcOutput *o = &p->of.outputs[i];
		if (o->rank > 1 || has_classes(p))
			return status_error(
				EXIT_USAGE,
				"--output %s: a row of output \"%s\" is %s, and a line of "
				"CSV has one axis: write .npy or .jsonl",
				p->o->output, o->name, shape_text(p->arena, o->rank, o->dims));
	}
	return NULL;
}

/* "p_cat" or "p_3" */
static void
add_column(Writer *p, const char *prefix, const char *name, int64_t i)
{
	Text field = {0};

	if (name)
		text_printf(&field, "%s%s", prefix, name);
	else
		text_printf(&field, "%s%" PRId64, prefix, i);
	text_add(&p->text, ",");
	add_field(&p->text, field.at);
	text_free(&field);
}

static void
begin_csv(Writer *p)
{
	text_add(&p->text, "row");
	if (has_one_class(p))
		text_add(&p->text, p->names ? ",class,name" : ",class");
	for (int64_t i = 0; has_classes(p) && i < p->task.classes; i++)
		add_column(p, "p_", p->names ? p->names[i] : NULL, i);
	for (int i = 0; !has_classes(p) && i < p->n; i++) {
		const GradcOutput *o = &p->of.outputs[p->first + i];
		const char *prefix = arena_printf(p->arena, "%s_", o->name);
		for (int64_t k = 0; k < o->elements; k++)
			add_column(p, o->elements == 1 ? "" : prefix,
			           o->elements == 1 ? o->name : NULL, k);
	}
	text_add(&p->text, "\n");
}

static void
add_class_fields(Writer *p, const void *data, int64_t row)
{
	Text *out = &p->text;

	if (has_one_class(p)) {
		load_probabilities(p, data, row, 0);
		int64_t class = predicted(p);
		text_add(out, ",");
		add_class(out, class, "");
		if (p->names) {
			text_add(out, ",");
			add_field(out, class < 0 ? "" : p->names[class]);
		}
	}
	for (int64_t i = 0; i < p->task.classes; i++) {
		if (!has_one_class(p))
			load_probabilities(p, data, row, i);
		text_add(out, ",");
		add_number(out, F32, p->scores[has_one_class(p) ? i : 0], NULL);
	}
}

static void
add_csv(Writer *p, int64_t rows, const void *const *outputs)
{
	for (int64_t r = 0; r < rows; r++) {
		text_printf(&p->text, "%" PRId64, p->row + r);
		if (has_classes(p))
			add_class_fields(p, outputs[0], r);
		for (int i = 0; !has_classes(p) && i < p->n; i++) {
			const GradcOutput *o = &p->of.outputs[p->first + i];
			for (int64_t k = 0; k < o->elements; k++) {
				text_add(&p->text, ",");
				add_element(&p->text, o, outputs[i], r * o->elements + k, NULL);
			}
		}
		text_add(&p->text, "\n");
	}
}

const PredictFormat predict_csv = {".csv", check_csv, begin_csv, add_csv};
const PredictFormat predict_jsonl = {".jsonl", check_jsonl, NULL, add_jsonl};

/* The word eval: evaluates the model once, and writes loss, metrics and results by class to stdout. */
#include "runtime/cli/cli.h"

#include "runtime/train/train.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { MOST_CONFUSED = 20, MOST_CLASSES = 100 }; /* classes that are printed as text */

Status
eval_check(const GradcEval *e)
{
	if (isfinite(e->loss))
		return NULL;
	if (e->count == 0)
		return status_error(EXIT_NON_FINITE,
		                    "eval loss nan: all targets of the %lld rows are ignored "
		                    "(-100), so nothing was evaluated",
		                    (long long)e->rows);
	return status_error(
		EXIT_NON_FINITE,
		"eval loss %g: a weight, an input or a result of the model is not finite; a step of "
		"training with --find-nan names the node, an earlier checkpoint (--resume DIR) may "
		"have finite weights",
		e->loss);
}

/* ---- JSON */
static json_t *
classes_json(const GradcByClass *c, const char *const *names)
{
	json_t *list = json_array();

	for (int64_t i = 0; i < c->classes; i++) {
		json_t *one = json_object();
		json_object_set_new(one, "class", json_integer(i));
		if (names)
			json_object_set_new(one, "name", json_name(names[i]));
		json_object_set_new(one, "precision", json_number(c->precision[i]));
		json_object_set_new(one, "recall", json_number(c->recall[i]));
		json_object_set_new(one, "f1", json_number(c->f1[i]));
		json_object_set_new(one, "support", json_integer(c->support[i]));
		json_array_append_new(list, one);
	}
	return list;
}

static json_t *
confusion_json(const GradcByClass *c)
{
	json_t *rows = json_array();

	for (int64_t i = 0; i < c->classes; i++) {
		json_t *row = json_array();
		for (int64_t k = 0; k < c->classes; k++)
			json_array_append_new(row, json_integer(c->confusion[i * c->classes + k]));
		json_array_append_new(rows, row);
	}
	return rows;
}

static json_t *
eval_json(int64_t step, const GradcEval *e, const char *const *names)
{
	json_t *root = json_object(), *metrics = json_object();

	json_object_set_new(root, "step", json_integer(step));
	json_object_set_new(root, "rows", json_integer(e->rows));
	json_object_set_new(root, "all_rows", json_integer(e->all_rows));
	json_object_set_new(root, "left_out", e->left_out ? json_string(e->left_out) : json_null());
	json_object_set_new(root, "targets", json_number(e->count));
	for (int i = 0; i < e->n_metrics; i++)
		json_object_set_new(metrics, e->metrics[i].name, json_number(e->metrics[i].value));
	json_object_set_new(root, "metrics", metrics);
	if (e->by_class)
		json_object_set_new(root, "classes", classes_json(e->by_class, names));
	if (e->by_class && e->by_class->confusion)
		json_object_set_new(root, "confusion", confusion_json(e->by_class));
	json_object_set_new(root, "seconds", json_number(e->seconds));
	return root;
}

static void
print_json(json_t *root)
{
	json_dumpf(root, stdout, JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(17));
	printf("\n");
	json_decref(root);
}

/* ---- text */
/* A class's name, or its number. */
static const char *
class_text(char to[24], const char *const *names, int64_t class)
{
	if (names)
		return names[class];
	snprintf(to, 24, "%" PRId64, class);
	return to;
}

static int
name_width(const GradcByClass *c, const char *const *names)
{
	size_t width = strlen("class");
	char text[24];

	for (int64_t i = 0; i < c->classes; i++) {
		size_t n = strlen(class_text(text, names, i));
		width = n > width ? n : width;
	}
	return width < 30 ? (int)width : 30;
}

static void
print_classes(const GradcByClass *c, const char *const *names)
{
	int width = name_width(c, names);
	char text[24];

	printf("\n%-*s  precision  recall  f1      support\n", width, "class");
	for (int64_t i = 0; i < c->classes && i < MOST_CLASSES; i++)
		printf("%-*.*s  %-9.4f  %-6.4f  %-6.4f  %" PRId64 "\n", width, width,
		       class_text(text, names, i), c->precision[i], c->recall[i], c->f1[i],
		       c->support[i]);
	if (c->classes > MOST_CLASSES)
		printf("... %" PRId64 " more classes; --json has all\n", c->classes - MOST_CLASSES);
}

static void
print_confusion(const GradcByClass *c, const char *const *names)
{
	int width = name_width(c, names), cell = 1;
	char text[24];

	for (int64_t i = 0; i < c->classes * c->classes; i++) {
		int n = snprintf(text, sizeof(text), "%" PRId64, c->confusion[i]);
		cell = n > cell ? n : cell;
	}
	printf("\nlabels (rows) that were predicted as class 0, 1 ... (columns)\n");
	for (int64_t i = 0; i < c->classes; i++) {
		printf("%-*.*s ", width, width, class_text(text, names, i));
		for (int64_t k = 0; k < c->classes; k++)
			printf(" %*" PRId64, cell, c->confusion[i * c->classes + k]);
		printf("\n");
	}
}

static void
print_text(int64_t step, const GradcEval *e, const char *const *names)
{
	const GradcByClass *c = e->by_class;

	printf("step %lld, %lld rows", (long long)step, (long long)e->rows);
	if (e->left_out)
		printf(" of %lld: the last %lld are left out: %s", (long long)e->all_rows,
		       (long long)(e->all_rows - e->rows), e->left_out);
	printf("\n");
	for (int i = 0; i < e->n_metrics; i++)
		printf("%-13s  %.9g\n", e->metrics[i].name, e->metrics[i].value);
	if (c)
		print_classes(c, names);
	if (c && c->confusion && c->classes <= MOST_CONFUSED)
		print_confusion(c, names);
}

/* ---- the word */
static Status
write_log(const Session *s, const GradcEval *e)
{
	Log *log;

	if (!s->o->log)
		return NULL;
	RETURN_IF_ERROR(log_append(s->o->log, s->o->command, &log));
	Status status = log_eval(log, s->run, e);
	return status_first(status, log_close(log));
}

/* Evaluates and shows the results. The data are bound. */
Status
session_evaluate(Session *s)
{
	const CliOptions *o = s->o;
	const char *const *names;
	GradcEval eval;

	RETURN_IF_ERROR(class_names_of(s->arena, o->classes, eval_classes(s->run), &names));
	s->signals->awaited = true;
	Status status = gradc_evaluate(s->run, &eval);
	if (status && status->exit_code == EXIT_PREEMPTED) {
		status_free(status);
		return gradc_agree(s->run, (int)s->signals->number, &s->stop);
	}
	RETURN_IF_ERROR(status);
	if (gradc_rank(s->run) > 0)
		return eval_check(&eval);
	if (o->json)
		print_json(eval_json(gradc_steps_done(s->run), &eval, names));
	else
		print_text(gradc_steps_done(s->run), &eval, names);
	return status_first(write_log(s, &eval), eval_check(&eval));
}

Status
word_eval(Session *s)
{
	RETURN_IF_ERROR(gradc_bind_eval_data(s->run));
	RETURN_IF_ERROR(session_resume(s));
	return session_evaluate(s);
}

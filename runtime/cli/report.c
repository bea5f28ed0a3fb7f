/* Writes the file of --report: an HTML page about the training, with curves, settings, memory and time. Steps are collected
 * during training; the page is written at the end, even after a fault. */
#include "runtime/cli/cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_POINTS = 2000 };

typedef struct {
	int64_t step;
	double loss, lr, grad_norm, step_ms, data_ms, save_ms;
} Point;
typedef struct {
	int64_t step;
	GradcEval eval;
	double ema_loss; /* with the moving averages; NaN without averages */
} EvalPoint;
typedef struct {
	int64_t step;
	GradcRunningRange range;
} RangePoint;

struct Report {
	Arena *arena;
	const CliOptions *options;
	struct timespec began;
	int64_t stride; /* every stride-th step is kept */
	VEC(Point) points;
	VEC(EvalPoint) evals;
	VEC(RangePoint) ranges;
	double phases[N_PHASES], data_seconds, save_seconds, seconds;
	int64_t n_steps, rows;
	GradcStep last;
};

Report *
report_open(Arena *arena, const CliOptions *options)
{
	if (!options->report)
		return NULL;
	Report *r = NEW(arena, Report);
	*r = (Report){.arena = arena, .options = options, .stride = 1};
	clock_gettime(CLOCK_REALTIME, &r->began);
	return r;
}

/* If there are too many points, drops every other point; the curve keeps its shape. */
static void
thin_out(Report *r)
{
	int n = 0;

	r->stride *= 2;
	for (int i = 0; i < r->points.n; i++)
		if (r->points.at[i].step % r->stride == 0)
			r->points.at[n++] = r->points.at[i];
	r->points.n = n;
}

static void
keep_eval(Report *r, int64_t step, const GradcEval *eval, double ema_loss)
{
	EvalPoint point = {step, *eval, ema_loss};

	vec_push(r->arena, &r->evals, point);
}

void
report_eval(Report *r, int64_t step, const GradcEval *eval)
{
	if (r)
		keep_eval(r, step, eval, NAN);
}

static void
keep_range(Report *r, int64_t step, const GradcRunningRange *range)
{
	RangePoint point = {step, *range};

	point.range.name = arena_strdup(r->arena, range->name);
	vec_push(r->arena, &r->ranges, point);
}

void
report_step(Report *r, const GradcStep *s, const StepEval *eval, const GradcRunningRanges *ranges)
{
	if (!r)
		return;
	Point point = {s->step,
	               s->loss,
	               s->lr,
	               s->grad_norm,
	               1e3 * s->seconds,
	               1e3 * s->data_seconds,
	               1e3 * s->save_seconds};
	if (s->step % r->stride == 0)
		vec_push(r->arena, &r->points, point);
	if (r->points.n > MOST_POINTS)
		thin_out(r);
	for (int p = 0; p < N_PHASES; p++)
		r->phases[p] += s->phase_seconds[p];
	r->data_seconds += s->data_seconds;
	r->save_seconds += s->save_seconds;
	r->seconds += s->seconds;
	r->rows += s->rows;
	r->n_steps++;
	r->last = *s;
	if (eval->trained)
		keep_eval(r, s->step, eval->trained, eval->averaged ? eval->averaged->loss : NAN);
	for (int i = 0; i < ranges->n; i++)
		keep_range(r, s->step, &ranges->at[i]);
}

/* ---- JSON for the page */
static void
append(json_t *object, const char *key, json_t *value)
{
	json_t *list = json_object_get(object, key);

	if (!list) {
		list = json_array();
		json_object_set_new(object, key, list);
	}
	json_array_append_new(list, value);
}

static json_t *
curve_json(const Report *r)
{
	json_t *curve = json_pack("{s:[],s:[],s:[],s:[],s:[],s:[],s:[]}", "step", "loss", "lr",
	                          "grad_norm", "step_ms", "data_ms", "save_ms");

	for (int i = 0; i < r->points.n; i++) {
		const Point *p = &r->points.at[i];

		append(curve, "step", json_integer(p->step));
		append(curve, "loss", json_number(p->loss));
		append(curve, "lr", json_number(p->lr));
		append(curve, "grad_norm", json_number(p->grad_norm));
		append(curve, "step_ms", json_number(p->step_ms));
		append(curve, "data_ms", json_number(p->data_ms));
		append(curve, "save_ms", json_number(p->save_ms));
	}
	return curve;
}

static json_t *
eval_json(const Report *r)
{
	json_t *eval = json_pack("{s:[],s:[],s:[],s:[],s:[]}", "step", "loss", "accuracy",
	                         "perplexity", "ema_loss");

	for (int i = 0; i < r->evals.n; i++) {
		const EvalPoint *p = &r->evals.at[i];

		append(eval, "step", json_integer(p->step));
		append(eval, "loss", json_number(p->eval.loss));
		append(eval, "accuracy", json_number(p->eval.accuracy));
		append(eval, "perplexity", json_number(p->eval.perplexity));
		append(eval, "ema_loss", json_number(p->ema_loss));
	}
	return eval;
}

/* {value: {step, low, high}}, each a list. */
static json_t *
ranges_json(const Report *r)
{
	json_t *ranges = json_object();

	for (int i = 0; i < r->ranges.n; i++) {
		const RangePoint *p = &r->ranges.at[i];
		json_t *name = json_name(p->range.name),
		       *of = json_object_get(ranges, json_string_value(name));

		if (!of) {
			of = json_pack("{s:[],s:[],s:[]}", "step", "low", "high");
			json_object_set_new(ranges, json_string_value(name), of);
		}
		json_decref(name);
		append(of, "step", json_integer(p->step));
		append(of, "low", json_number(p->range.low));
		append(of, "high", json_number(p->range.high));
	}
	return ranges;
}

static json_t *
phases_json(const Report *r)
{
	double steps = r->n_steps ? (double)r->n_steps : 1, rest = r->seconds - r->data_seconds;
	json_t *phases = json_object();

	for (int p = 1; p < N_PHASES; p++) {
		json_object_set_new(phases, phase_names[p], json_real(1e3 * r->phases[p] / steps));
		rest -= r->phases[p];
	}
	json_object_set_new(phases, "data", json_real(1e3 * r->data_seconds / steps));
	if (r->options->run.save)
		json_object_set_new(phases, "saving", json_real(1e3 * r->save_seconds / steps));
	json_object_set_new(phases, "other", json_real(1e3 * fmax(rest, 0) / steps));
	return phases;
}

static json_t *
memory_json(const Gradc *run)
{
	json_t *memory = json_object();
	GradcRegion regions[GRADC_MAX_REGIONS];
	int n = gradc_regions(run, regions);

	for (int i = 0; i < n; i++)
		json_object_set_new(memory, regions[i].name, json_integer(regions[i].bytes));
	return memory;
}

static json_t *
info_json(const Format *f)
{
	json_t *info = json_object();

	for (int i = 0; i < f->n[SECTION_INFO]; i++)
		json_object_set_new(info, format_text(f, f->info[i].key),
		                    json_name(format_text(f, f->info[i].value)));
	return info;
}

static int
compare(const void *a, const void *b)
{
	double x = ((const Point *)a)->step_ms, y = ((const Point *)b)->step_ms;

	return (x > y) - (x < y);
}

static double
median_ms(const Report *r)
{
	if (r->points.n == 0)
		return NAN;
	Point *sorted = arena_copy(r->arena, r->points.at, sizeof(Point) * (size_t)r->points.n);
	qsort(sorted, (size_t)r->points.n, sizeof(Point), compare);
	return sorted[r->points.n / 2].step_ms;
}

static void
add_facts(json_t *root, const Report *r, const Gradc *run)
{
	const Format *f = gradc_tables(run);
	const char *model = format_info_get(f, "model");
	int64_t tokens = gradc_tokens_per_row(run);
	double rate = r->seconds > 0 ? (double)r->rows / r->seconds : 0;
	struct tm when;
	struct timespec now;
	char text[64] = "";

	clock_gettime(CLOCK_REALTIME, &now);
	if (localtime_r(&r->began.tv_sec, &when))
		strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &when);
	json_object_set_new(root, "model", json_name(model ? model : "model"));
	json_object_set_new(root, "version", json_string(GRADC_VERSION));
	json_object_set_new(root, "started", json_string(text));
	json_object_set_new(root, "seconds",
	                    json_real((double)(now.tv_sec - r->began.tv_sec) +
	                              1e-9 * (double)(now.tv_nsec - r->began.tv_nsec)));
	json_object_set_new(root, "steps", json_integer(r->last.step));
	json_object_set_new(root, "total_steps", json_integer(gradc_total_steps(run)));
	json_object_set_new(root, "loss", json_number(r->n_steps ? r->last.loss : NAN));
	json_object_set_new(root, "median_ms", json_number(median_ms(r)));
	json_object_set_new(root, "rows_per_s", json_real(rate));
	json_object_set_new(root, "tokens_per_s",
	                    tokens ? json_real(rate * (double)tokens) : json_null());
	json_object_set_new(root, "parameters", json_integer(parameter_elements(f)));
	json_object_set_new(root, "peak_bytes", json_integer(gradc_peak_bytes(run)));
	json_object_set_new(root, "rss_bytes", json_integer(results_resident_bytes()));
	json_object_set_new(root, "stride", json_integer(r->stride));
}

Status
report_close(Report *r, const Gradc *run, const char *fault)
{
	if (!r)
		return NULL;
	const Format *f = gradc_tables(run);
	json_t *root = json_object();
	Text page = {0};

	add_facts(root, r, run);
	json_object_set_new(root, "fault", fault ? json_name(fault) : json_null());
	json_object_set_new(root, "curve", curve_json(r));
	json_object_set_new(root, "eval", eval_json(r));
	json_object_set_new(root, "best",
	                    gradc_best(run)->step >= 0 ? json_best(gradc_best(run)) : json_null());
	json_object_set_new(root, "ranges", ranges_json(r));
	json_object_set_new(root, "phases", phases_json(r));
	json_object_set_new(root, "memory", memory_json(run));
	json_object_set_new(root, "profile", profile_json(f, gradc_profile(run)));
	json_object_set_new(root, "settings", options_json(r->options));
	json_object_set_new(root, "info", info_json(f));
	char *text = json_dumps(root, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(9));
	html_page(&page, report_page, text);
	Status status = file_write(r->options->report, page.at, (int64_t)page.n);
	memory_free(text);
	json_decref(root);
	text_free(&page);
	return status;
}

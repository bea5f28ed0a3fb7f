/* Writes the file of --log: one JSON object per line, for each step and evaluation. Each line is written immediately, without
 * buffering, so that a killed run keeps the lines written so far. */
#include "runtime/cli/cli.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct Log {
	FileAppender *file;
	bool has_head; /* this process has written its first line */
	const char *command;
	GradcResume resumed;
	int64_t lost_steps; /* steps after the checkpoint in an earlier run's log */
	double lost_ms;
};

json_t *
json_number(double value)
{
	return isfinite(value) ? json_real(value) : json_null();
}

/* Is the line kept? Only if it is complete and its step is not after the checkpoint's. Later steps are counted as lost: this
 * run computes them again. */
static bool
is_kept(Log *log, const char *line, size_t n)
{
	json_t *root = n > 0 && line[n - 1] == '\n' ? json_loadb(line, n, 0, NULL) : NULL;
	const json_t *at = json_object_get(root, "step");
	bool is_step = json_is_integer(at);
	bool kept = is_step && json_integer_value(at) <= log->resumed.step;

	if (is_step && !kept) {
		log->lost_steps++;
		log->lost_ms += json_number_value(json_object_get(root, "step_ms"));
	}
	json_decref(root);
	return kept;
}

static Status
copy_lines(Log *log, FILE *from, const char *path, FileWriter *to)
{
	char *line = NULL;
	size_t size = 0;
	Status status = NULL;

	for (ssize_t n; !status && (n = getline(&line, &size, from)) >= 0;)
		if (is_kept(log, line, (size_t)n))
			status = file_writer_add(to, line, n);
	if (!status && ferror(from))
		status = status_error(EXIT_SYSTEM, "%s: %s", path, strerror(errno));
	free(line);
	return status;
}

/* Drops the lines that an earlier run wrote for steps after the checkpoint. A pipe or device has no lines to drop. */
static Status
cut_after(Log *log, const char *path)
{
	struct stat st;
	FileWriter *to;

	if (stat(path, &st) != 0 || !S_ISREG(st.st_mode))
		return NULL; /* opening the file reports the fault */
	FILE *from = fopen(path, "r");
	if (!from)
		return status_error(EXIT_SYSTEM, "%s: %s", path, strerror(errno));
	Status status = file_writer_open(path, &to);
	if (!status) {
		status = copy_lines(log, from, path, to);
		if (status)
			file_writer_abort(to);
		else
			status = file_writer_commit(to, false);
	}
	fclose(from);
	return status;
}

Status
log_open(const char *path, const char *command, const GradcResume *resumed, Log **out)
{
	Log log = {.resumed = *resumed, .command = command};
	bool continued = resumed->step > 0;

	*out = NULL;
	if (!path)
		return NULL;
	if (continued)
		RETURN_IF_ERROR(cut_after(&log, path));
	RETURN_IF_ERROR(file_appender_open(path, continued, &log.file));
	*out = memory_get(sizeof(**out));
	**out = log;
	return NULL;
}

int64_t
log_lost_steps(const Log *log, double *seconds)
{
	*seconds = log ? 1e-3 * log->lost_ms : 0;
	return log ? log->lost_steps : 0;
}

static Status
write_line(Log *log, json_t *line)
{
	char *json = json_dumps(line, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(17));
	Text text = {0};

	if (!json) {
		json_decref(line);
		return status_error(EXIT_SYSTEM, "the log: a line cannot be written as JSON");
	}
	text_printf(&text, "%s\n", json);
	Status status = file_appender_add(log->file, text.at, text.n);
	text_free(&text);
	memory_free(json);
	json_decref(line);
	return status;
}

void
json_add_eval(json_t *line, const GradcEval *e)
{
	json_object_set_new(line, "eval_loss", json_number(e->loss));
	if (!isnan(e->accuracy))
		json_object_set_new(line, "eval_accuracy", json_number(e->accuracy));
	if (!isnan(e->perplexity))
		json_object_set_new(line, "eval_perplexity", json_number(e->perplexity));
	json_object_set_new(line, "eval_rows", json_integer(e->rows));
	if (e->rows != e->all_rows) {
		json_object_set_new(line, "eval_all_rows", json_integer(e->all_rows));
		json_object_set_new(line, "eval_left_out", json_string(e->left_out));
	}
	for (int i = 0; i < e->n_metrics; i++) {
		char key[64];
		snprintf(key, sizeof(key), "eval_%s", e->metrics[i].name);
		if (!json_object_get(line, key))
			json_object_set_new(line, key, json_number(e->metrics[i].value));
	}
}

/* "mfu" is null if the device's peak is unknown; --info says why. */
static void
add_rates(json_t *line, const Gradc *run, const GradcStep *s)
{
	int64_t tokens = gradc_tokens_per_row(run);

	json_object_set_new(line, "tokens",
	                    tokens ? json_integer(s->samples * tokens) : json_null());
	json_object_set_new(line, "samples", json_integer(s->samples));
	json_object_set_new(line, "step_ms", json_number(1e3 * s->seconds));
	json_object_set_new(line, "tokens_per_s",
	                    tokens ? json_number((double)(s->rows * tokens) / s->seconds)
	                           : json_null());
	json_object_set_new(line, "rows_per_s", json_number((double)s->rows / s->seconds));
	json_object_set_new(line, "mfu", json_number(gradc_mfu(run, s->seconds)));
	json_object_set_new(line, "peak_bytes", json_integer(gradc_peak_bytes(run)));
	if (gradc_gpu_bytes(run) > 0)
		json_object_set_new(line, "gpu_peak_bytes", json_integer(gradc_gpu_bytes(run)));
	json_object_set_new(line, "rss_bytes", json_integer(results_resident_bytes()));
	for (int p = 1; p < N_PHASES; p++) {
		char key[32];

		snprintf(key, sizeof(key), "%s_ms", phase_names[p]);
		json_object_set_new(line, key, json_number(1e3 * s->phase_seconds[p]));
	}
	json_object_set_new(line, "data_ms", json_number(1e3 * s->data_seconds));
	json_object_set_new(line, "data_waits", json_integer(s->data_waits));
	if (s->offload_in_bytes > 0) {
		json_object_set_new(line, "offload_in_bytes", json_integer(s->offload_in_bytes));
		json_object_set_new(line, "offload_out_bytes", json_integer(s->offload_out_bytes));
	}
	json_object_set_new(line, "save_ms", json_number(1e3 * s->save_seconds));
}

/* The model, by its states and graph, and the rows of the data, by some of their bytes. */
static void
add_fingerprints(json_t *line, Gradc *run)
{
	GradcFingerprints f = gradc_fingerprints(run);
	char model[24], data[24];

	snprintf(model, sizeof(model), "%016llx", (unsigned long long)f.model);
	snprintf(data, sizeof(data), "%016llx", (unsigned long long)f.data);
	json_object_set_new(line, "fingerprints",
	                    json_pack("{s:s, s:s}", "model", model, "data", data));
}

static void
add_machine(json_t *line, const Gradc *run)
{
	const GradcPeak *peak = gradc_peak(run);
	char name[CPU_NAME];
	Text device = {0};

	gradc_describe_device(run, &device);
	json_object_set_new(line, "machine",
	                    json_pack("{s:s, s:I, s:I, s:s, s:i, s:o, s:s}", "processor",
	                              cpu_name(name), "cpus",
	                              (json_int_t)sysconf(_SC_NPROCESSORS_ONLN), "memory_bytes",
	                              (json_int_t)results_machine_bytes(), "device", device.at,
	                              "ranks", gradc_ranks(run), "peak_flops",
	                              peak->flops > 0 ? json_real(peak->flops) : json_null(),
	                              "peak_source", peak->source));
	text_free(&device);
}

static void
add_settings(json_t *line, Gradc *run)
{
	json_t *object = json_object();
	int n;
	const GradcPair *settings = gradc_settings(run, &n);

	for (int i = 0; i < n; i++)
		json_object_set_new(object, settings[i].name,
		                    json_loads(settings[i].value, JSON_DECODE_ANY, NULL));
	json_object_set_new(line, "settings", object);
}

/* The checkpoint that this process began with, and the steps lost since it was written. */
static void
add_resumed(json_t *line, const Log *log)
{
	json_t *object = json_object();

	json_object_set_new(object, "step", json_integer(log->resumed.step));
	json_object_set_new(object, "checkpoint_age_s", json_number(log->resumed.age));
	json_object_set_new(object, "lost_steps", json_integer(log->lost_steps));
	json_object_set_new(object, "lost_ms", json_number(log->lost_ms));
	json_object_set_new(line, "resumed", object);
}

static json_t *
names_json(const StringList *names)
{
	json_t *list = json_array();

	for (int i = 0; i < names->n; i++)
		json_array_append_new(list, json_name(names->at[i]));
	return list;
}

static json_t *
tensor_json(const GradcTensor *t)
{
	const GradcRange *r = &t->range;
	json_t *json = json_object();

	json_object_set_new(json, "role", json_string(t->is_result ? "result" : "operand"));
	json_object_set_new(json, "kind", json_string(t->kind));
	json_object_set_new(json, "name", json_name(t->name));
	json_object_set_new(json, "dtype", json_string(t->dtype));
	json_object_set_new(json, "shape", t->shape ? json_string(t->shape) : json_null());
	json_object_set_new(json, "elements", json_integer(r->elements));
	json_object_set_new(json, "nan", json_integer(r->n[GRADC_NAN]));
	json_object_set_new(json, "inf", json_integer(r->n[GRADC_PLUS_INFINITY]));
	json_object_set_new(json, "minus_inf", json_integer(r->n[GRADC_MINUS_INFINITY]));
	json_object_set_new(json, "min", json_number(r->least));
	json_object_set_new(json, "max", json_number(r->most));
	json_object_set_new(json, "since", t->since ? json_name(t->since) : json_null());
	return json;
}

static json_t *
not_finite_json(const GradcNotFinite *found)
{
	json_t *json = json_object(), *tensors = json_array();

	for (int i = 0; i < found->n_tensors; i++)
		json_array_append_new(tensors, tensor_json(&found->tensors[i]));
	json_object_set_new(json, "nodes", names_json(&found->nodes));
	json_object_set_new(json, "gradients", names_json(&found->gradients));
	json_object_set_new(json, "phase", json_string(found->phase));
	json_object_set_new(json, "micro_batch", json_integer(found->micro_batch));
	json_object_set_new(json, "tensors", tensors);
	json_object_set_new(json, "nan", found->nan ? json_name(found->nan) : json_null());
	return json;
}

static json_t *
ranges_json(const GradcRunningRanges *ranges)
{
	json_t *object = json_object();

	for (int i = 0; i < ranges->n; i++) {
		const GradcRunningRange *r = &ranges->at[i];
		json_t *range = json_object();
		json_object_set_new(range, "low", json_number(r->low));
		json_object_set_new(range, "high", json_number(r->high));
		json_object_set_new(range, "scale", json_number(r->scale));
		json_object_set_new(range, "zero_point", json_integer(r->zero_point));
		json_t *name = json_name(r->name);
		json_object_set_new(object, json_string_value(name), range);
		json_decref(name);
	}
	return object;
}

json_t *
json_best(const GradcBest *b)
{
	return json_pack("{s:I, s:s, s:o}", "step", (json_int_t)b->step, "metric", b->metric,
	                 "value", json_number(b->value));
}

static void
add_step_eval(json_t *line, const StepEval *eval)
{
	json_add_eval(line, eval->trained);
	if (eval->averaged) {
		json_t *averaged = json_object();
		json_add_eval(averaged, eval->averaged);
		json_object_set_new(line, "ema", averaged);
	}
	if (eval->best->step >= 0)
		json_object_set_new(line, "best", json_best(eval->best));
}

/* What the first line of a process says: the command, the settings, what was trained on what, and where. */
static void
add_head(json_t *line, Log *log, Gradc *run)
{
	if (log->has_head)
		return;
	log->has_head = true;
	json_object_set_new(line, "command", json_name(log->command));
	json_object_set_new(line, "gradc", json_string(GRADC_VERSION));
	add_settings(line, run);
	json_object_set_new(line, "export_form", json_string(gradc_export_form(run)));
	add_fingerprints(line, run);
	add_machine(line, run);
	if (log->resumed.path)
		add_resumed(line, log);
}

Status
log_eval_before(Log *log, Gradc *run, const GradcEval *eval)
{
	if (!log)
		return NULL;
	json_t *line = json_object();
	json_object_set_new(line, "step", json_integer(0));
	json_add_eval(line, eval);
	add_head(line, log, run);
	return write_line(log, line);
}

Status
log_step(Log *log, Gradc *run, const GradcStep *s, const StepEval *eval,
         const GradcRunningRanges *ranges)
{
	if (!log)
		return NULL;
	json_t *line = json_object();
	json_object_set_new(line, "step", json_integer(s->step));
	json_object_set_new(line, "loss", json_number(s->loss));
	json_object_set_new(line, "lr", json_number(s->lr));
	json_object_set_new(line, "grad_norm", json_number(s->grad_norm));
	json_object_set_new(line, "count", json_number(s->count));
	if (s->count == 0)
		json_object_set_new(line, "skipped", json_string("no valid targets"));
	if (s->overflow)
		json_object_set_new(line, "skipped", json_string("the gradients overflowed"));
	if (!isnan(s->loss_scale)) {
		json_object_set_new(line, "loss_scale", json_real(s->loss_scale));
		json_object_set_new(line, "overflows", json_integer(s->overflows));
	}
	if (s->not_finite)
		json_object_set_new(line, "not_finite", not_finite_json(s->not_finite));
	add_rates(line, run, s);
	if (eval->trained)
		add_step_eval(line, eval);
	if (ranges->n)
		json_object_set_new(line, "ranges", ranges_json(ranges));
	add_head(line, log, run);
	return write_line(log, line);
}

Status
log_append(const char *path, const char *command, Log **out)
{
	FileAppender *file;

	RETURN_IF_ERROR(file_appender_open(path, true, &file));
	*out = memory_get(sizeof(**out));
	**out = (Log){.file = file, .command = command};
	return NULL;
}

Status
log_eval(Log *log, Gradc *run, const GradcEval *eval)
{
	json_t *line = json_object();

	json_object_set_new(line, "step", json_integer(gradc_steps_done(run)));
	json_add_eval(line, eval);
	add_head(line, log, run);
	return write_line(log, line);
}

Status
log_close(Log *log)
{
	if (!log)
		return NULL;
	Status status = file_appender_close(log->file);
	memory_free(log);
	return status;
}

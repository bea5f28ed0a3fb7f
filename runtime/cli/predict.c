/* The word predict: computes the model's outputs for all rows of the data, and writes them row by row. A file appears when it is
 * complete; standard output, devices and pipes get the rows as they are computed.
 *
 * FILE.npy holds a raw output, its rows along the first axis; DIR/ has a .npy for each output. FILE.csv and FILE.jsonl hold what
 * people read: predict_text.c. */
#include "runtime/cli/predict.h"

#include "runtime/train/train.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

/* ---- .npy */
static Status
check_npy(Writer *p)
{
	for (int i = p->first; i < p->first + p->n; i++)
		if (dtype_info[p->of.outputs[i].dtype].bits % 8 != 0)
			return status_error(
				EXIT_UNSUPPORTED,
				"--output: output \"%s\" is %s, whose numbers are no whole bytes",
				p->of.outputs[i].name, dtype_info[p->of.outputs[i].dtype].name);
	return NULL;
}

static Status
begin_npy(const Writer *p, int i)
{
	const GradcOutput *o = &p->of.outputs[p->first + i];
	int64_t dims[MAX_RANK + 1] = {p->of.rows};

	memcpy(dims + 1, o->dims, sizeof(*dims) * (size_t)o->rank);
	return npy_write_header(p->files[i], o->dtype, o->rank + 1, dims);
}

static Status
add_npy(const Writer *p, int i, int64_t rows, const void *data)
{
	const GradcOutput *o = &p->of.outputs[p->first + i];

	return file_writer_add(p->files[i], data, dtype_bytes(o->dtype, o->elements * rows));
}

static const PredictFormat npy = {".npy", check_npy, NULL, NULL};
static const PredictFormat *const formats[] = {&npy, &predict_csv, &predict_jsonl};

/* ---- where rows go */
static bool
is_folder(const char *path)
{
	struct stat st;
	size_t n = strlen(path);

	return path[n - 1] == '/' || (stat(path, &st) == 0 && S_ISDIR(st.st_mode));
}

/* A device or pipe, such as /dev/stdout. */
static bool
is_stream(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
}

void
writes_predictions(const OptionUse *u, PathUses *uses)
{
	PathKind kind = is_stream(u->value)   ? PATH_STREAM
	                : is_folder(u->value) ? PATH_FOLDER
	                                      : PATH_OUTPUT;

	option_add_path(u, uses, kind, u->value);
}

static Status
pick_format(Writer *p)
{
	const char *path = p->o->output;
	size_t n = path ? strlen(path) : 0;

	p->format = !path || is_stream(path) ? &predict_jsonl : is_folder(path) ? &npy : NULL;
	for (int i = 0; i < COUNT(formats); i++) {
		size_t k = strlen(formats[i]->ending);
		if (n > k && strcmp(path + n - k, formats[i]->ending) == 0)
			p->format = formats[i];
	}
	if (path && is_stream(path) && p->format == &npy)
		return status_error(EXIT_USAGE,
		                    "--output %s: a stream gets .jsonl or .csv, no .npy", path);
	return p->format ? NULL
	                 : status_error(
				   EXIT_USAGE,
				   "--output %s: need FILE.npy, FILE.csv, FILE.jsonl, or DIR/ with "
				   "a .npy for each output",
				   path);
}

/* The output that the loss compares with the labels, or all outputs. A folder gets all outputs. */
static Status
pick_outputs(Writer *p)
{
	bool folder = p->format == &npy && is_folder(p->o->output);

	p->n = p->of.n_outputs;
	for (int i = 0; i < p->of.n_outputs && !folder; i++)
		if (p->of.outputs[i].is_compared) {
			p->first = i;
			p->n = 1;
		}
	if (p->format == &npy && !folder && p->n > 1)
		return status_error(EXIT_USAGE,
		                    "--output %s: the model has %d outputs; --output DIR/ writes a "
		                    ".npy for each",
		                    p->o->output, p->n);
	return p->format->check(p);
}

/* DIR/NAME.npy; two names that would share a file get a number. */
static const char *
path_of(Writer *p, StrMap *taken, int i)
{
	const char *stem = file_name_of(p->arena, p->of.outputs[p->first + i].name);
	const char *file = arena_printf(p->arena, "%s.npy", stem);

	for (int k = 2; strmap_get(taken, file); k++)
		file = arena_printf(p->arena, "%s.%d.npy", stem, k);
	strmap_put(taken, file, p);
	return path_join(p->arena, p->o->output, file);
}

static Status
open_files(Writer *p)
{
	const char *path = p->o->output;
	StrMap *taken = strmap_new(p->arena);
	int n = p->format == &npy ? p->n : 1;

	if (!path)
		return NULL;
	if (is_stream(path))
		return file_appender_open(path, false, &p->stream);
	if (is_folder(path))
		RETURN_IF_ERROR(folder_make(path));
	p->files = NEW_ARRAY(p->arena, FileWriter *, n);
	p->paths = NEW_ARRAY(p->arena, const char *, n);
	for (int i = 0; i < n; i++) {
		p->paths[i] = is_folder(path) ? path_of(p, taken, i) : path;
		RETURN_IF_ERROR(file_writer_open(p->paths[i], &p->files[i]));
		if (p->format == &npy)
			RETURN_IF_ERROR(begin_npy(p, i));
	}
	return NULL;
}

static Status
flush(Writer *p)
{
	Status status = NULL;

	if (p->text.n == 0)
		return NULL;
	if (p->stream)
		status = file_appender_add(p->stream, p->text.at, p->text.n);
	else if (p->files)
		status = file_writer_add(p->files[0], p->text.at, (int64_t)p->text.n);
	else if (fwrite(p->text.at, 1, p->text.n, stdout) != p->text.n)
		status = status_error(EXIT_SYSTEM, "standard output: %s", strerror(errno));
	p->text.n = 0;
	return status;
}

static bool
has_nan(const GradcOutput *o, const void *data, int64_t row)
{
	for (int64_t i = row * o->elements; i < (row + 1) * o->elements; i++)
		if (isnan(dtype_load_float(o->dtype, data, i)))
			return true;
	return false;
}

static void
count_nan(Writer *p, int64_t rows, const void *const *outputs)
{
	for (int64_t r = 0; r < rows; r++) {
		bool found = false;
		for (int i = 0; i < p->n && !found; i++) {
			const GradcOutput *o = &p->of.outputs[p->first + i];
			found = dtype_is_float(o->dtype) && has_nan(o, outputs[i], r);
		}
		if (found && p->n_nan++ == 0)
			p->first_nan = p->row + r;
	}
}

static Status
take_rows(void *context, int64_t rows, const void *const *outputs)
{
	Writer *p = context;

	count_nan(p, rows, outputs);
	for (int i = 0; i < p->n && p->format == &npy; i++)
		RETURN_IF_ERROR(add_npy(p, i, rows, outputs[i]));
	if (p->format != &npy)
		p->format->add(p, rows, outputs);
	p->row += rows;
	return flush(p);
}

/* names.json, as `--once` writes it. */
static Status
write_names(const Writer *p)
{
	json_t *root = json_object();

	for (int i = 0; i < p->n; i++) {
		const GradcOutput *o = &p->of.outputs[p->first + i];
		json_t *shape = json_pack("[I]", (json_int_t)p->of.rows),
		       *name = json_name(o->name);
		for (int k = 0; k < o->rank; k++)
			json_array_append_new(shape, json_integer(o->dims[k]));
		json_object_set_new(root, json_string_value(name),
		                    json_pack("{s:s,s:s,s:o}", "file",
		                              strrchr(p->paths[i], '/') + 1, "dtype",
		                              dtype_info[o->dtype].name, "shape", shape));
		json_decref(name);
	}
	char *text = json_dumps(root, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
	Status status = file_write(path_join(p->arena, p->o->output, "names.json"), text,
	                           (int64_t)strlen(text));
	memory_free(text);
	json_decref(root);
	return status;
}

/* Completes the files, or removes them after a fault. */
static Status
close_files(Writer *p, Status status)
{
	int n = p->format == &npy ? p->n : 1;

	for (int i = 0; i < n && p->files; i++)
		if (p->files[i])
			status = file_writer_end(p->files[i], status);
	status = status_first(status, file_appender_close(p->stream));
	if (!status && p->files && is_folder(p->o->output))
		status = write_names(p);
	text_free(&p->text);
	return status;
}

/* EXIT_NON_FINITE if results are NaN; the files have all rows all the same. */
static Status
check_nan(const Writer *p)
{
	if (p->n_nan == 0)
		return NULL;
	return status_error(
		EXIT_NON_FINITE,
		"predict: %lld of %lld rows have results that are NaN, the first is row "
		"%lld: such a row has no class",
		(long long)p->n_nan, (long long)p->row, (long long)p->first_nan);
}

/* ---- the word */
static Status
prepare(Session *s, Writer *p)
{
	int64_t classes;

	RETURN_IF_ERROR(pick_format(p));
	RETURN_IF_ERROR(gradc_bind_predict_data(s->run, &p->of));
	p->task = *predict_task(s->run);
	classes = task_classes(&p->task);
	p->scores = NEW_ARRAY(p->arena, double, p->task.classes);
	RETURN_IF_ERROR(class_names_of(p->arena, p->o->classes, classes, &p->names));
	return pick_outputs(p);
}

Status
word_predict(Session *s)
{
	Writer p = {.arena = s->arena, .o = s->o};
	bool first = gradc_rank(s->run) == 0;

	RETURN_IF_ERROR(prepare(s, &p));
	RETURN_IF_ERROR(session_resume(s));
	GradcPredict options = {p.n == p.of.n_outputs ? -1 : p.first, take_rows, &p};
	s->signals->awaited = true;
	Status status = gradc_share(s->run, first ? open_files(&p) : NULL);
	if (!status && first && p.format->begin)
		p.format->begin(&p);
	if (!status)
		status = gradc_predict(s->run, &options);
	bool ended = status && status->exit_code == EXIT_PREEMPTED;
	if (first)
		status = close_files(&p, status);
	if (first && !status)
		status = check_nan(&p);
	if (!ended)
		return status;
	status_free(status);
	return gradc_agree(s->run, (int)s->signals->number, &s->stop);
}

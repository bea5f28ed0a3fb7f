/* Reads the rows of --data, and runs a temporary executable on them, batch by batch, to get the
 * values of tensors. */
#include "quantize/steps.h"

#include <jansson.h>
#include <string.h>

const char *
quantize_observes(const Quantize *q, int i)
{
	const QuantizedTensor *t = q->tensors.at[i];

	if (q->inputs && q->inputs[i].n)
		return t->product_input;
	if (q->biases && q->biases[i].bias.name)
		return q->biases[i].bias.x;
	return t->kind == QUANTIZED_ACTIVATION && q->how.activations == ACTIVATIONS_STATIC ? t->name
	                                                                                   : NULL;
}

/* ---- rows */
/* Refuses NAME=... of an option if no --data has that name. */
static bool
check_names(Quantize *q, const char *option, const StringList *list)
{
	bool ok = true;

	for (int i = 0; i < list->n; i++) {
		size_t n = strcspn(list->at[i], "=");
		bool has = false;
		for (int k = 0; k < q->n_data; k++)
			has |= strlen(q->data[k].name) == n &&
			       strncmp(q->data[k].name, list->at[i], n) == 0;
		has &= list->at[i][n] == '=';
		if (!has)
			diag_error(q->diag, EXIT_USAGE, "--%s %s: no --data of this name", option,
			           list->at[i]);
		ok &= has;
	}
	return ok;
}

bool
quantize_read_data(Quantize *q)
{
	const StringList *list = &q->o->data;

	q->data = NEW_ARRAY(q->arena, NamedTensor, list->n);
	for (int i = 0; i < list->n; i++) {
		const char *equal = strchr(list->at[i], '=');
		NpyInfo info;
		void *bytes;
		if (!equal || equal == list->at[i]) {
			diag_error(q->diag, EXIT_USAGE, "--data %s: need NAME=FILE", list->at[i]);
			return false;
		}
		if (diag_status(q->diag, npy_read(q->arena, equal + 1, &info, &bytes)))
			return false;
		NamedTensor *t = &q->data[q->n_data++];
		*t = (NamedTensor){
			.name = arena_strndup(q->arena, list->at[i], (size_t)(equal - list->at[i])),
			.dtype = info.dtype,
			.rank = info.rank,
			.data = bytes};
		memcpy(t->dims, info.dims, sizeof(t->dims));
		int64_t rows = info.rank ? info.dims[0] : 0;
		if (rows == 0) {
			diag_error(q->diag, EXIT_DATA, "%s holds no rows", equal + 1);
			return false;
		}
		if (i > 0 && rows != q->rows) {
			diag_error(q->diag, EXIT_DATA,
			           "%s has %lld rows, but the data before "
			           "it has %lld",
			           equal + 1, (long long)rows, (long long)q->rows);
			return false;
		}
		q->rows = rows;
	}
	return check_names(q, "scale", &q->o->scales) &&
	       check_names(q, "mean-std", &q->o->mean_stds);
}

/* Writes rows [first, first + batch) of all data as files of --input. */
static bool
write_batch(Quantize *q, int64_t first)
{
	StringList inputs = {0};

	for (int i = 0; i < q->n_data; i++) {
		const NamedTensor *t = &q->data[i];
		char *path = path_join(q->arena, q->folder,
		                       arena_printf(q->arena, "data%d.npy", i));
		int64_t dims[MAX_RANK], row = 1;
		memcpy(dims, t->dims, sizeof(dims));
		dims[0] = q->batch;
		for (int k = 1; k < t->rank; k++)
			row *= t->dims[k];
		const char *at = (const char *)t->data + dtype_bytes(t->dtype, row * first);
		if (diag_status(q->diag, npy_write(path, t->dtype, t->rank, dims, at)))
			return false;
		vec_push(q->arena, &inputs, arena_printf(q->arena, "%s=%s", t->name, path));
	}
	q->o->inputs = inputs;
	return true;
}

static bool
check_rows(Quantize *q)
{
	if (q->rows >= q->batch)
		return true;
	diag_error(q->diag, EXIT_DATA,
	           "--data: %lld rows are less than the %lld that the model "
	           "takes at once",
	           (long long)q->rows, (long long)q->batch);
	return false;
}

bool
quantize_write_first(Quantize *q)
{
	enum { MOST_ROWS = 32 }; /* rows of a batch if the model leaves it open */

	if (!q->batch)
		q->batch = q->o->batch ? q->o->batch : q->rows < MOST_ROWS ? q->rows : MOST_ROWS;
	return check_rows(q) && write_batch(q, 0);
}

static bool
is_integer(DType t)
{
	return dtype_info[t].class == CLASS_SIGNED || dtype_info[t].class == CLASS_UNSIGNED;
}

/* Do --scale or --mean-std convert the input's rows from u8 to floats? */
static bool
is_scaled(const Quantize *q, const char *name)
{
	const StringList *lists[] = {&q->o->scales, &q->o->mean_stds};
	size_t n = strlen(name);

	for (int k = 0; k < COUNT(lists); k++)
		for (int i = 0; i < lists[k]->n; i++)
			if (strncmp(lists[k]->at[i], name, n) == 0 && lists[k]->at[i][n] == '=')
				return true;
	return false;
}

/* Can the model take numbers of the type? */
static bool
converts(const Quantize *q, const char *name, DType from, DType to)
{
	if (from == U8 && dtype_is_float(to) && is_scaled(q, name))
		return true;
	return from == to || (is_integer(from) && is_integer(to)) ||
	       ((from == F32 || from == F64) && dtype_is_float(to));
}

static bool
check_tensor(Quantize *q, const NamedTensor *t, const char *given, const ImportPort *port)
{
	bool same = port->rank == t->rank && memcmp(port->dims + 1, t->dims + 1,
	                                            sizeof(int64_t) * (size_t)(t->rank - 1)) == 0;

	if (!same)
		diag_error(q->diag, EXIT_DATA, "--data %s: shape %s, \"%s\" takes rows of %s",
		           given, shape_text(q->arena, t->rank, t->dims), t->name,
		           shape_text(q->arena, port->rank - 1, port->dims + 1));
	else if (port->dims[0] != q->batch)
		diag_error(q->diag, EXIT_DATA,
		           "--data %s: \"%s\" takes %lld rows at once, but the model takes %lld",
		           given, t->name, (long long)port->dims[0], (long long)q->batch);
	else if (!converts(q, t->name, t->dtype, port->dtype))
		diag_error(q->diag, EXIT_DATA, "--data %s: holds %s, \"%s\" takes %s%s", given,
		           dtype_info[t->dtype].name, t->name, dtype_info[port->dtype].name,
		           t->dtype == U8 ? " (--scale or --mean-std converts them)" : "");
	return same && port->dims[0] == q->batch && converts(q, t->name, t->dtype, port->dtype);
}

/* Checks the files' rows against the model's inputs; each input must have data. */
static bool
check_tensors(Quantize *q)
{
	const ImportPorts *inputs = &q->s.import->bindings.at[0].inputs;
	bool ok = true;

	for (int i = 0; i < q->n_data; i++) {
		const ImportPort *port = NULL;
		for (int k = 0; k < inputs->n; k++)
			if (strcmp(inputs->at[k].name, q->data[i].name) == 0)
				port = &inputs->at[k];
		if (!port)
			diag_error(q->diag, EXIT_USAGE,
			           "--data %s: the model has no input of this name",
			           q->o->data.at[i]);
		ok &= port && check_tensor(q, &q->data[i], q->o->data.at[i], port);
	}
	for (int k = 0; k < inputs->n; k++) {
		bool has = false;
		for (int i = 0; i < q->n_data; i++)
			has |= strcmp(inputs->at[k].name, q->data[i].name) == 0;
		if (!has)
			diag_error(q->diag, EXIT_USAGE, "no --data for input \"%s\"",
			           inputs->at[k].name);
		ok &= has;
	}
	return ok;
}

/* ---- ranks that the file does not declare */
bool
quantize_settle_rows(Quantize *q)
{
	StringList names = {0};

	for (int i = 0; i < q->tensors.n; i++)
		if (q->tensors.at[i]->may_be_vector)
			vec_push(q->arena, &names, q->tensors.at[i]->name);
	if (names.n == 0)
		return true;
	if (!session_import(&q->s, OPEN_DIMS_ONE, terminated(q->arena, &names)))
		return false;
	const ImportPorts *found = &q->s.import->bindings.at[0].outputs;
	for (int k = 0; k < found->n; k++)
		for (int i = 0; i < q->tensors.n; i++) {
			QuantizedTensor *t = q->tensors.at[i];
			if (t->may_be_vector && found->at[k].rank == 1 &&
			    !strcmp(t->name, found->at[k].name))
				quantized_is_vector(t);
		}
	session_forget_import(&q->s);
	return true;
}

/* ---- running the model */
bool
quantize_compile(Quantize *q)
{
	StringList outputs = {0};
	StrMap *seen = strmap_new(q->arena);

	for (int i = 0; i < q->tensors.n; i++) {
		const char *name = quantize_observes(q, i);
		if (!name || strmap_get(seen, name))
			continue;
		strmap_put(seen, name, q);
		vec_push(q->arena, &outputs, name);
	}
	if (!quantize_write_first(q) ||
	    !session_import(&q->s, OPEN_DIMS_FROM_INPUTS, terminated(q->arena, &outputs)))
		return false;
	q->batch = q->s.import->bindings.at[0].rows;
	if (!q->how.quiet && q->batch > 0 && q->rows % q->batch && q->rows > q->batch)
		diag_warning(
			q->diag,
			"--data: the last %lld of %lld rows are left out: the model runs on %lld at once",
			(long long)(q->rows % q->batch), (long long)q->rows, (long long)q->batch);
	return check_tensors(q) && check_rows(q) && session_link(&q->s, q->exe, false);
}

/* Reads a tensor's values from the last results; NULL after reporting. */
static const float *
read_values(Quantize *q, Arena *arena, const json_t *names, const char *name, NpyInfo *info)
{
	const char *file = json_string_value(json_object_get(json_object_get(names, name), "file"));
	void *values;

	if (!file) {
		diag_error(q->diag, EXIT_UNSUPPORTED, "%s: the model did not compute it", name);
		return NULL;
	}
	if (diag_status(q->diag,
	                npy_read(arena, path_join(arena, q->results, file), info, &values)))
		return NULL;
	if (info->dtype != F32) {
		diag_error(q->diag, EXIT_UNSUPPORTED, "%s: its values are %s, need f32", name,
		           dtype_info[info->dtype].name);
		return NULL;
	}
	return values;
}

static bool
visit_batch(Quantize *q, QuantizeVisitor visit)
{
	Arena *arena = arena_new();
	bool ok = run_executable(&q->s, q->exe, q->results) == EXIT_OK;
	json_t *names = ok ? json_load_file(path_join(arena, q->results, "names.json"), 0, NULL)
	                   : NULL;
	NpyInfo info;

	for (int i = 0; i < q->tensors.n && ok; i++) {
		const char *name = quantize_observes(q, i);
		if (!name)
			continue;
		const float *x = read_values(q, arena, names, name, &info);
		ok = x && visit(q, i, x, &info);
	}
	json_decref(names);
	arena_free(arena);
	return ok;
}

bool
quantize_visit_all(Quantize *q, QuantizeVisitor visit)
{
	for (int64_t first = 0; first + q->batch <= q->rows; first += q->batch)
		if (!write_batch(q, first) || !visit_batch(q, visit))
			return false;
	return true;
}

bool
quantize_visit_first(Quantize *q, QuantizeVisitor visit)
{
	return write_batch(q, 0) && visit_batch(q, visit);
}

/* Reads --loss and the graph of onnx:FILE, class weights, and the inputs of --wrt. The text of
 * --loss is KIND[:OUTPUT][,target=INPUT][,axis=N][,rows=N][,OPTION=VALUE], with OPTION from the
 * loss's row; or output:NAME[,count=NAME|1]; or onnx:FILE[,count=NAME]; or model. */
#include "driver/driver.h"

#include <string.h>

/* The port with the longest name that starts at text, followed by a comma or the end; -1: no port. */
static int
port_at(const ImportPorts *ports, const char *text)
{
	size_t longest = 0;
	int found = -1;

	for (int i = 0; i < ports->n; i++) {
		size_t n = strlen(ports->at[i].name);
		bool fits = strncmp(text, ports->at[i].name, n) == 0 &&
		            (text[n] == ',' || text[n] == '\0');
		if (fits && n >= longest) {
			longest = n;
			found = i;
		}
	}
	return found;
}

/* Sets *number to the index of the port that `text` names. Returns the text after the port's name;
 * NULL after reporting. */
static const char *
read_port(Session *s, const char *what, const ImportPorts *ports, const char *text, int64_t *number)
{
	int found = port_at(ports, text);

	if (found >= 0) {
		*number = found;
		return text + strlen(ports->at[found].name);
	}
	diag_error(s->diag, EXIT_USAGE, "%s: --loss: the model has no %s \"%.*s\"", s->o->input,
	           what, (int)strcspn(text, ","), text);
	diag_hint(s->diag, "`gradc check` lists the %ss", what);
	return NULL;
}

/* Adds OPTION=VALUE, an option of the loss's row, to the options read so far. Returns the text
 * after VALUE; NULL after reporting. */
static const char *
read_loss_setting(Session *s, const LossRow *row, const char *part)
{
	LossOptions *l = &s->loss;
	size_t n = strcspn(part, ",");

	l->settings = arena_printf(s->arena, "%s%s%.*s", l->settings ? l->settings : "",
	                           l->settings ? " " : "", (int)n, part);
	if (loss_settings(row, l->settings, s->arena, s->diag))
		return part + n;
	diag_hint(s->diag, "--loss=%s; `gradc compile --help` lists a loss's own options",
	          s->o->loss);
	return NULL;
}

/* Reads axis=N or rows=N. Returns the text after N; NULL after reporting. */
static const char *
read_loss_axis(Session *s, const char *part, int64_t *out)
{
	size_t n = strcspn(part, ",");

	if (parse_int(arena_strndup(s->arena, part + 5, n - 5), out))
		return part + n;
	diag_error(s->diag, EXIT_USAGE, "--loss: %s: need %.5sN", part, part);
	return NULL;
}

/* Reads one part: target=INPUT, count=OUTPUT, axis=N, rows=N, OPTION=VALUE or OUTPUT. Returns the
 * text after the part; NULL after reporting. */
static const char *
read_loss_part(Session *s, const char *part)
{
	const LossRow *row = loss_find(s->loss_kind);
	const ImportBinding *b = &s->import->bindings.at[0];
	LossOptions *l = &s->loss;

	if (strncmp(part, "target=", 7) == 0 && port_at(&b->outputs, part) < 0)
		return read_port(s, "input", &b->inputs, part + 7, &l->target);
	if (strncmp(part, "count=1", 7) == 0 && (!part[7] || part[7] == ',') &&
	    port_at(&b->outputs, part + 6) < 0) {
		l->count = LOSS_COUNT_EVEN;
		return part + 7;
	}
	if (strncmp(part, "count=", 6) == 0 && port_at(&b->outputs, part) < 0)
		return read_port(s, "output", &b->outputs, part + 6, &l->count);
	if (strncmp(part, "axis=", 5) == 0 && port_at(&b->outputs, part) < 0)
		return read_loss_axis(s, part, &l->axis);
	if (strncmp(part, "rows=", 5) == 0 && port_at(&b->outputs, part) < 0)
		return read_loss_axis(s, part, &l->rows);
	bool is_pair = part[-1] == ',' && part[strcspn(part, "=,")] == '=';
	if (row && is_pair && port_at(&b->outputs, part) < 0)
		return read_loss_setting(s, row, part);
	return read_port(s, "output", &b->outputs, part, &l->output);
}

/* Reads the part after a colon or comma. The part must not be empty, and its key must not be in
 * `seen`. A name of an output may contain commas and equal signs, so it is tried before a key. */
static const char *
read_loss_part_once(Session *s, const char *text, const char *part, StrMap *seen)
{
	const ImportBinding *b = &s->import->bindings.at[0];
	size_t n = strcspn(part, "=,");
	bool is_port = port_at(&b->outputs, part) >= 0;
	const char *key = part[n] == '=' && !is_port ? arena_strndup(s->arena, part, n)
	                                             : "the output";

	if ((!*part || *part == ',') && !is_port) {
		diag_error(s->diag, EXIT_USAGE, "--loss=%s: there is no text behind a %s", text,
		           part[-1] == ':' ? "colon" : "comma");
		return NULL;
	}
	if (strmap_get(seen, key)) {
		diag_error(s->diag, EXIT_USAGE, "--loss=%s: %s is given twice", text, key);
		if (is_port && part[n] == '=')
			diag_hint(
				s->diag,
				"the model has an output \"%s\": names of outputs take precedence over "
				"options",
				b->outputs.at[port_at(&b->outputs, part)].name);
		return NULL;
	}
	strmap_put(seen, key, s);
	return read_loss_part(s, part);
}

/* Joins the loss graph of --loss onnx:FILE with the forward function f; its outputs become further
 * results. */
static bool
join_loss_graph(Session *s, const char *path, Function *f)
{
	Node *ret = function_return(f);
	int n = ret->n_operands, extra = 0;
	Value **values = NEW_ARRAY(s->arena, Value *, n + 2);
	Builder b = {.m = s->m, .f = f, .before = ret};
	Model *loss = model_open(path, s->diag);

	if (!loss)
		return false;
	s->loss_graph = loss;
	for (int i = 0; i < n; i++)
		values[i] = node_operand(ret, i);
	Value **out = model_inline(loss, &b, s->outputs.at, values, n, &extra, s->diag);
	if (!out || extra < 1)
		return false;
	values[n] = out[0];
	function_name_result(f, "loss");
	if (extra > 1) {
		values[n + 1] = out[1];
		function_name_result(f, "loss.count");
	}
	node_erase(ret);
	b.before = NULL;
	b_return(&b, n + (extra > 1 ? 2 : 1), values);
	return true;
}

static bool
use_loss_graph(Session *s, const char *path, bool wants_count)
{
	int n = s->outputs.n;

	for_each_of_role(s->m, ROLE_FORWARD, forward) {
		Function *inference = function_beside(forward, ROLE_INFERENCE);
		if (!join_loss_graph(s, path, forward) ||
		    (inference && !join_loss_graph(s, path, inference)))
			return false;
	}
	const Function *f = module_first(s->m, ROLE_FORWARD);
	bool counted = function_return(f)->n_operands > n + 1;
	if (wants_count && !counted) {
		diag_error(s->diag, EXIT_USAGE, "--loss: %s has no second output for count=", path);
		return false;
	}
	s->loss.output = n;
	s->loss.count = wants_count ? n + 1 : LOSS_COUNT_FOUND;
	s->loss.kind = "output";
	return true;
}

static bool
read_class_weight(Session *s)
{
	NpyInfo info;
	void *data;

	if (!s->o->class_weight)
		return true;
	if (diag_status(s->diag, npy_read(s->arena, s->o->class_weight, &info, &data)))
		return false;
	if (!dtype_is_float(info.dtype)) {
		diag_error(s->diag, EXIT_DATA, "%s: class weights must be floats",
		           s->o->class_weight);
		return false;
	}
	Type type = type_new(s->m, info.dtype, info.rank, info.dims);
	State *state = state_new(s->m, module_fresh_name(s->m, "class_weight"), type,
	                         STATE_CONSTANT, LIFE_CONSTANT);
	state->init = INIT_DATA;
	state->data = tensor_new(s->m, type, data);
	s->loss.class_weight = state->name;
	return true;
}

/* Refuses options that this loss does not have. */
static bool
check_loss_options(Session *s, const StrMap *seen)
{
	static const char no_classes[] = "that loss has no classes";
	static const char from_model[] = "the model computes that loss";
	const LossRow *row = loss_find(s->loss_kind);
	bool classes = row && row->class_targets, own = strcmp(s->loss_kind, "output") == 0;
	const struct {
		bool refused;
		const char *option, *why;
	} options[] = {
		{!classes && s->o->label_smoothing != 0, "--label-smoothing", no_classes},
		{!classes && s->o->class_weight, "--class-weight", no_classes},
		{!classes && strmap_get(seen, "axis"), "axis=", no_classes},
		{own && strmap_get(seen, "target"), "target=", from_model},
		{own && strmap_get(seen, "rows"), "rows=", from_model},
		{row && strmap_get(seen, "count"), "count=", "that loss counts its own targets"},
	};
	bool ok = true;

	for (int i = 0; i < COUNT(options); i++) {
		if (!options[i].refused)
			continue;
		diag_error(s->diag, EXIT_USAGE, "%s and --loss=%s: %s", options[i].option,
		           s->o->loss ? s->o->loss : s->loss_kind, options[i].why);
		ok = false;
	}
	return ok;
}

/* Converts a negative axis=N or rows=N, which counts from the output's last axis, to a number
 * counted from axis 0. The pass uses -1 for an axis that is not given. */
static bool
resolve_loss_axis(Session *s, const StrMap *seen, const char *key, int64_t *axis, int64_t *given)
{
	const Function *f = module_first(s->m, ROLE_FORWARD);

	if (!strmap_get(seen, key) || *axis >= 0)
		return true;
	int rank = s->loss.output < function_return(f)->n_operands
	                   ? function_result(f, (int)s->loss.output)->type->rank
	                   : 0;
	if (*axis >= -rank) {
		*given = *axis;
		*axis += rank;
		return true;
	}
	diag_error(s->diag, EXIT_USAGE, "%s: --loss: %s=%lld: axis %lld of a rank-%d output",
	           s->o->input, key, (long long)*axis, (long long)*axis, rank);
	return false;
}

/* Finds the inputs of --wrt in the model or its loss graph. */
static bool
find_wrt(Session *s)
{
	const Function *f = module_first(s->m, ROLE_FORWARD);
	bool ok = true;

	for (int i = 0; i < s->o->wrt.n; i++) {
		const Value *found = NULL;
		for (int k = 0; k < f->params.n; k++)
			if (strcmp(f->params.at[k]->name, s->o->wrt.at[i]) == 0)
				found = f->params.at[k];
		if (found && dtype_is_float(found->type->dtype)) {
			vec_push(s->arena, &s->wrt, found->number);
			continue;
		}
		diag_error(s->diag, EXIT_USAGE, "%s: --wrt %s: %s", s->o->input, s->o->wrt.at[i],
		           found ? "only floats have gradients" : "no such input");
		ok = false;
	}
	return ok;
}

/* FILE[,count=NAME] */
static bool
read_loss_graph(Session *s, const char *text)
{
	size_t n = strcspn(text, ",");
	bool counted = strncmp(text + n, ",count=", 7) == 0 && text[n + 7];

	if (n > 0 && (counted || !text[n]))
		return use_loss_graph(s, arena_strndup(s->arena, text, n), counted);
	diag_error(s->diag, EXIT_USAGE, "--loss=onnx:%s: need onnx:FILE or onnx:FILE,count=NAME",
	           text);
	return false;
}

static bool
rows_are_known(const Session *s)
{
	const ImportBinding *b = &s->import->bindings.at[0];
	bool known = true;

	for (int i = 0; i < b->inputs.n; i++)
		known &= !b->inputs.at[i].has_rows || b->inputs.at[i].known_batch;
	return known;
}

static bool
check_loss_kind(Session *s)
{
	const char *kind = s->loss_kind;

	if (loss_find(kind) || strcmp(kind, "output") == 0 || strcmp(kind, "onnx") == 0)
		return true;
	WordGuess guess = guess_open(kind);
	for (int i = 0; loss_table[i]; i++)
		guess_offer(&guess, loss_table[i]->name);
	diag_error(s->diag, EXIT_USAGE, "%s: --loss: unknown loss `%s`", s->o->input, kind);
	hint_guess(s->diag, &guess, "", "`gradc compile --help` lists the losses");
	return false;
}

bool
session_parse_loss(Session *s, const char *text)
{
	size_t n = strcspn(text, ":,");
	const char *at = text + n;

	s->loss_kind = arena_strndup(s->arena, text, n);
	s->loss = (LossOptions){.kind = s->loss_kind,
	                        .target = -1,
	                        .count = LOSS_COUNT_FOUND,
	                        .axis = -1,
	                        .rows = -1,
	                        .label_smoothing = s->o->label_smoothing};
	if (!check_loss_kind(s))
		return false;
	s->has_loss = true;
	s->loss.rows_known = rows_are_known(s);
	if (strcmp(s->loss_kind, "onnx") == 0) {
		if (!read_loss_graph(s, *at ? at + 1 : at))
			return false;
		at = "";
	}
	StrMap *seen = strmap_new(s->arena);
	while (at && *at) /* at a colon or comma */
		at = read_loss_part_once(s, text, at + 1, seen);
	return at && check_loss_options(s, seen) &&
	       resolve_loss_axis(s, seen, "axis", &s->loss.axis, &s->loss.axis_given) &&
	       resolve_loss_axis(s, seen, "rows", &s->loss.rows, &s->loss.rows_given) &&
	       read_class_weight(s) && find_wrt(s);
}

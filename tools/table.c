/* Prints the parameter table of `gradc check` and `compile`: which parameters are trained, and
 * why. */
#include "tools/tools.h"

#include <jansson.h>
#include <string.h>

static const char *
role_of(const State *s)
{
	return s->kind == STATE_STATISTIC ? "state" : s->trainable ? "trainable" : "frozen";
}

/* The adapter that has s as a part; NULL: no adapter. */
static const Adapter *
adapter_of_part(const Module *m, const State *s)
{
	const Adapter *a = module_adapter(m, s);

	return a && s != a->weight ? a : NULL;
}

/* The word for the state's role; a trained part of an adapter has its own word. */
static const char *
row_role(const Module *m, const State *s)
{
	return s->trainable && adapter_of_part(m, s) ? "adapter" : role_of(s);
}

static bool
in_table(const State *s)
{
	return s->kind == STATE_PARAMETER || s->kind == STATE_STATISTIC;
}

/* Prints a name in `width` columns, cut with an ellipsis: names may be long, and contain anything. */
void
print_cut(const char *name, int width)
{
	Text plain = {0}, t = {0};

	text_add(&plain, "");
	text_add_plain(&plain, name);
	int n = text_add_cut(&t, plain.at, width);
	printf("%s%*s", t.at, width - n, "");
	text_free(&plain);
	text_free(&t);
}

/* Prints a name; control bytes are made visible. */
static void
print_name(const char *name)
{
	Text t = {0};

	text_add(&t, "");
	text_add_plain(&t, name);
	fputs(t.at, stdout);
	text_free(&t);
}

/* Prints the name, and the path unless the name contains it. */
static void
print_names(const char *name, const char *path, int width)
{
	Text t = {0};

	text_add(&t, name);
	if (path && !strstr(name, path))
		text_printf(&t, " (%s)", path);
	print_cut(t.at, width);
	text_free(&t);
}

/* How a parameter is stored: its type as text, "nf4[64,64]", and its bytes, scales included. */
typedef struct {
	const char *format;
	Type type;
	int64_t bytes;
} Stored;

static Stored
stored_as(Type t)
{
	return (Stored){dtype_info[t->dtype].name, t, type_bytes(t)};
}

static Stored
stored_state_as(const Module *m, const State *s)
{
	const FourBitWeight *w = module_four_bit(m, s);
	Stored out = stored_as(s->type);

	if (!w)
		return out;
	out = (Stored){four_bit_names[w->kind], w->type, out.bytes + type_bytes(w->absmax->type)};
	if (w->nested)
		out.bytes += type_bytes(w->nested->type) + type_bytes(w->offset->type);
	return out;
}

static void
print_row(const char *name, const char *path, const Stored *as, const char *role, const char *why)
{
	Text t = {0};
	char amount[32];

	text_printf(&t, "%s[", as->format);
	for (int i = 0; i < as->type->rank; i++)
		text_printf(&t, "%s%lld", i ? "," : "", (long long)as->type->dims[i]);
	text_add(&t, "]");
	printf("  ");
	print_names(name, path, 44);
	printf("  %-18s %10s  %-9s  ", t.at, bytes_text(amount, (double)as->bytes), role);
	print_name(why ? why : "");
	text_free(&t);
}

static void
print_state(const Module *m, const State *s)
{
	Stored as = stored_state_as(m, s);

	print_row(s->name, s->path, &as, row_role(m, s), s->why);
	if (s->trainable && s->lr_scale != 1)
		printf("; learning rate times %g", s->lr_scale);
	if (s->trainable && !s->decay)
		printf("; does not decay");
	if (s->init_given && !adapter_of_part(m, s) && !module_four_bit(m, s))
		printf("; starts as --init says");
	printf("\n");
}

/* Prints a constant, with the option that makes it a parameter. */
static void
print_constant(const ImportConstant *c)
{
	Stored as = stored_as(c->type);

	print_row(c->name, c->path, &as, "constant", c->why);
	if (c->option)
		printf("; to train it: %s", c->option);
	printf("\n");
}

/* Notes a batch axis other than 0, or a missing one, because files usually have rows on axis 0. */
static void
print_rows(const ImportPort *p, bool is_input)
{
	if (p->has_rows && p->batch_axis > 0)
		printf(", rows along axis %d", p->batch_axis);
	else if (!p->has_rows && is_input && p->rank > 0)
		printf(", one array for every step");
}

static void
print_ports(const char *what, const ImportPort *at, int n)
{
	bool is_input = strcmp(what, "input") == 0;

	for (int i = 0; i < n; i++) {
		printf("  %-7s ", what);
		print_name(at[i].name);
		printf(": %s[", dtype_info[at[i].dtype].name);
		for (int k = 0; k < at[i].rank; k++) {
			const char *symbol = at[i].symbols[k];
			printf("%s%lld", k ? "," : "", (long long)at[i].dims[k]);
			if (symbol)
				printf(" ");
			if (symbol)
				print_name(*symbol ? symbol : "(open)");
		}
		printf("]");
		print_rows(&at[i], is_input);
		printf("\n");
	}
}

/* Is f the first function of its role and binding? Versions for other targets have the same inputs. */
static bool
is_first_version(const Function *f)
{
	for_each_of_role(f->module, f->role, other)
		if (other->binding == f->binding)
			return other == f;
	return false;
}

/* Prints the target that the loss added, once for each binding: the labels, under the name that the executable uses. */
static void
print_target(const Module *m)
{
	for_each_of_role(m, ROLE_ACCUMULATE, f) {
		const Value *v = function_find_param(f, PARAM_LABELS, -1);
		Text t = {0};
		if (!v)
			return;
		if (!is_first_version(f))
			continue;
		type_print(&t, v->type);
		printf("  %-7s ", "target");
		print_name(v->name);
		printf(": %s (of the loss: --data %s=FILE)\n", t.at, v->name);
		text_free(&t);
	}
}

/* Notes that `check` uses size 1 for dimensions that nothing binds. */
static void
note_open_dims(const Session *s)
{
	const ImportBinding *im = &s->import->bindings.at[0];

	if (s->sizes) {
		printf("  open dimensions are taken as ");
		print_name(s->sizes);
		printf(", the smallest that work, and 1; --dim NAME=N and --batch N bind them\n");
		return;
	}
	for (int i = 0; i < im->inputs.n; i++)
		for (int k = 0; k < im->inputs.at[i].rank; k++)
			if (im->inputs.at[i].symbols[k] && im->inputs.at[i].dims[k] == 1) {
				printf("  open dimensions are taken as 1; --dim NAME=N and --batch N bind them\n");
				return;
			}
}

enum { SHORT_TABLE = 40, SHORT_LIST = 8, SHORT_NUMBERS = 4 };

/* Prints the first items of a list, one per line after the word. */
static void
print_list(const char *word, const StringList *list, bool full)
{
	int n = full || list->n <= SHORT_LIST ? list->n : SHORT_LIST;

	for (int i = 0; i < n; i++) {
		printf("  %-7s ", word);
		print_name(list->at[i]);
		printf("\n");
	}
	if (n < list->n)
		printf("  %-7s ... and %d more (--table=full)\n", word, list->n - n);
}

/* Does an option decide the doubt already, or would --freeze change nothing because no gradient
 * reaches the tensor? */
static bool
is_settled(const ImportDoubt *d)
{
	const State *s = d->state;

	return s && ((s->why && strncmp(s->why, "--", 2) == 0) ||
	             (d->trains && !strcmp(role_of(s), "frozen")));
}

static const char *
doubted_role(const ImportDoubt *d)
{
	return d->state ? role_of(d->state) : "constant";
}

/* The effect of the doubt's option. */
static const char *
settles_by(const ImportDoubt *d)
{
	return d->trains ? "freeze" : "train";
}

/* Prints doubts about tensors with a state, or about constants, which are single numbers. */
static void
print_doubts_of(const Import *im, bool constants, int most)
{
	int n = 0;

	for (int i = 0; i < im->doubts.n; i++) {
		const ImportDoubt *d = &im->doubts.at[i];
		if (is_settled(d) || (d->state == NULL) != constants || n++ >= most)
			continue;
		printf("    ");
		print_cut(d->name, 42);
		printf("  %-9s  for a parameter: %s; against: %s; to %s it: %s\n", doubted_role(d),
		       d->reasons_for, d->reasons_against, settles_by(d), d->option);
	}
	if (n > most)
		printf("    ... and %d more%s (--table=full)\n", n - most,
		       constants ? " numbers" : "");
}

static void
print_doubts(const Import *im, bool full)
{
	bool any = false;

	for (int i = 0; i < im->doubts.n; i++)
		any |= !is_settled(&im->doubts.at[i]);
	if (any)
		printf("  doubtful: the file does not say whether these are parameters\n");
	print_doubts_of(im, false, full ? im->doubts.n : SHORT_LIST);
	print_doubts_of(im, true, full ? im->doubts.n : SHORT_NUMBERS);
}

/* Prints the groups that --train=@NAME and --freeze=@NAME accept. */
static void
print_groups(const Import *im)
{
	for (int i = 0; i < im->groups.n; i++)
		printf("%s@%s %d",
		       i ? ", " : "  groups, for --train and --freeze: ", im->groups.at[i].name,
		       im->groups.at[i].n);
	if (im->groups.n)
		printf("\n");
}

void
print_summary(const Session *s, bool full)
{
	const Import *im = s->import;
	int rows = 0, at = 0;
	int64_t trainable = 0, all = 0;

	printf("%s: ONNX IR %lld, opset %lld, ", plain_text(s->arena, s->o->input),
	       (long long)im->ir_version, (long long)im->opset);
	print_name(im->producer ? im->producer : "");
	printf("%s%d nodes\n", im->producer && *im->producer ? ", " : "", im->n_nodes);
	for (int i = 0; i < im->bindings.n; i++) {
		const ImportBinding *b = &im->bindings.at[i];
		if (im->bindings.n > 1)
			printf("  binding %s\n", plain_text(s->arena, b->text));
		print_ports("input", b->inputs.at, b->inputs.n);
		print_ports("output", b->outputs.at, b->outputs.n);
	}
	print_target(s->m);
	note_open_dims(s);
	print_list("repair", &im->repairs, full);
	print_list("note", &im->notes, full);
	for (int i = 0; i < s->m->states.n; i++)
		rows += in_table(s->m->states.at[i]);
	for (int i = 0; i < s->m->states.n; i++) {
		const State *st = s->m->states.at[i];
		if (!in_table(st))
			continue;
		all += state_weight_type(s->m, st)->n;
		trainable += st->trainable ? st->type->n : 0;
		if (full || rows <= SHORT_TABLE || at < SHORT_TABLE / 2 ||
		    at >= rows - SHORT_TABLE / 2)
			print_state(s->m, st);
		else if (at == SHORT_TABLE / 2)
			printf("  ... %d more (--table=full)\n", rows - SHORT_TABLE);
		at++;
	}
	for (int i = 0; full && i < im->constants.n; i++)
		print_constant(&im->constants.at[i]);
	print_doubts(im, full);
	print_groups(im);
	if (s->quantize)
		quantized_print(s->arena, &s->quantize->tensors, NULL, NULL);
	printf("  %lld parameters, %lld trainable; %.4g MFLOP forward\n", (long long)all,
	       (long long)trainable,
	       1e-6 * (double)function_flops(module_first(s->m, ROLE_FORWARD)));
}

void
print_plan(const Session *s)
{
	printf("  memory: state %.2f MB, workspace %.2f MB, io %.2f MB\n",
	       1e-6 * (double)s->m->state_bytes, 1e-6 * (double)s->m->workspace_bytes,
	       1e-6 * (double)s->m->io_bytes);
	printf("  %d kernels; %.4g MFLOP a micro-batch, forward and backward\n", s->m->kernels.n,
	       1e-6 * (double)first_micro_batch_flops(s->m));
}

static void
print_plans(const GpuReport *r)
{
	int left = r->n_convolutions - r->n_plans;

	if (r->n_convolutions == 0)
		return;
	if (!*r->planner)
		printf("  convolutions: no cuDNN here: planned when training starts\n");
	else if (left == 0)
		printf("  convolutions: %d plans by %s\n", r->n_plans, r->planner);
	else
		printf("  convolutions: %d plans by %s, %d are planned when training starts\n",
		       r->n_plans, r->planner, left);
}

void
print_gpus(const Session *s)
{
	const GpuReport *r = &s->gpu_report;

	if (s->o->gpus.n == 0)
		return;
	printf("  kernels for cuda:");
	for (int i = 0; i < s->o->gpus.n; i++)
		printf("%s%s", i ? "," : "", s->o->gpus.at[i]->name);
	printf(": %d sources, %d compiled, %d from the cache\n", r->n_sources, r->n_compiled,
	       r->n_sources - r->n_compiled);
	print_plans(r);
}

static json_t *
row_json(const char *name, const char *path, const Stored *as, const char *role, const char *why)
{
	json_t *shape = json_array();

	for (int k = 0; k < as->type->rank; k++)
		json_array_append_new(shape, json_integer(as->type->dims[k]));
	return json_pack("{s:s,s:s,s:s,s:s,s:o,s:s,s:s,s:I}", "name", name, "path",
	                 path ? path : "", "dtype", dtype_info[as->type->dtype].name, "format",
	                 as->format, "shape", shape, "kind", role, "why", why ? why : "", "bytes",
	                 (json_int_t)as->bytes);
}

static json_t *
state_json(const Module *m, const State *s)
{
	Stored as = stored_state_as(m, s);
	json_t *row = row_json(s->name, s->path, &as, row_role(m, s), s->why);
	const Adapter *a = module_adapter(m, s);

	if (a)
		json_object_set_new(row, "rank", json_integer(a->b->type->dims[1]));

	if (s->groups)
		json_object_set_new(row, "groups", json_string(s->groups));
	if (s->trainable)
		json_object_set_new(row, "lr_scale", json_real(s->lr_scale));
	return row;
}

/* Does the glob match a constant? The table shows a constant with the option that makes it a
 * parameter. */
static bool
takes_constant(const ImportConstant *c, const char *glob)
{
	return glob_match(glob, c->name) || (c->path && glob_match(glob, c->path));
}

static json_t *
constants_json(const Session *s)
{
	json_t *out = json_array();

	for (int i = 0; i < s->import->constants.n; i++) {
		const ImportConstant *c = &s->import->constants.at[i];
		Stored as = stored_as(c->type);
		json_t *row = row_json(c->name, c->path, &as, "constant", c->why);
		if (c->option)
			json_object_set_new(row, "option", json_string(c->option));
		if (!s->o->match || takes_constant(c, s->o->match))
			json_array_append_new(out, row);
		else
			json_decref(row);
	}
	return out;
}

static json_t *
texts_json(const StringList *list)
{
	json_t *out = json_array();

	for (int i = 0; i < list->n; i++)
		json_array_append_new(out, json_string(list->at[i]));
	return out;
}

static json_t *
groups_json(const Import *im)
{
	json_t *out = json_object();

	for (int i = 0; i < im->groups.n; i++)
		json_object_set_new(out, im->groups.at[i].name, json_integer(im->groups.at[i].n));
	return out;
}

static json_t *
doubts_json(const Import *im)
{
	json_t *out = json_array();

	for (int i = 0; i < im->doubts.n; i++) {
		const ImportDoubt *d = &im->doubts.at[i];
		if (!is_settled(d))
			json_array_append_new(
				out, json_pack("{s:s,s:s,s:s,s:s,s:s}", "name", d->name, "kind",
			                       doubted_role(d), "for", d->reasons_for, "against",
			                       d->reasons_against, "option", d->option));
	}
	return out;
}

/* Does the glob match a parameter? --freeze and similar options match only parameters. */
static bool
takes(const State *s, const char *glob)
{
	return s->kind == STATE_PARAMETER && state_matches(s, glob);
}

void
print_matches(const Session *s, const char *glob)
{
	const Module *m = s->m;
	int rows = 0, constants = 0;
	int64_t n = 0;

	for (int i = 0; i < m->states.n; i++) {
		const State *state = m->states.at[i];
		if (!takes(state, glob))
			continue;
		print_state(m, state);
		rows++;
		n += state_weight_type(m, state)->n;
	}
	for (int i = 0; i < s->import->constants.n; i++) {
		const ImportConstant *c = &s->import->constants.at[i];
		if (!takes_constant(c, glob))
			continue;
		print_constant(c);
		constants++;
	}
	printf("  %d parameter%s of %lld elements match%s ", rows, rows == 1 ? "" : "s",
	       (long long)n, rows == 1 ? "es" : "");
	print_name(glob);
	if (constants)
		printf(", and %d constant%s, which only --train=NAME makes %s", constants,
		       constants == 1 ? "" : "s", constants == 1 ? "a parameter" : "parameters");
	printf("\n");
}

bool
match_fits(const Session *s, const char *glob)
{
	for (int i = 0; i < s->m->states.n; i++)
		if (takes(s->m->states.at[i], glob))
			return true;
	for (int i = 0; i < s->import->constants.n; i++)
		if (takes_constant(&s->import->constants.at[i], glob))
			return true;
	return false;
}

void
print_summary_json(const Session *s)
{
	const Module *m = s->m;
	json_t *list = json_array();

	for (int i = 0; i < m->states.n; i++) {
		const State *st = m->states.at[i];
		if (in_table(st) && (!s->o->match || takes(st, s->o->match)))
			json_array_append_new(list, state_json(s->m, st));
	}
	json_t *root = json_pack("{s:s,s:I,s:s,s:I,s:o,s:o,s:o,s:o,s:o,s:o}", "model", s->o->input,
	                         "opset", (json_int_t)s->import->opset, "producer",
	                         s->import->producer ? s->import->producer : "", "flops_forward",
	                         (json_int_t)function_flops(module_first(m, ROLE_FORWARD)),
	                         "parameters", list, "constants", constants_json(s), "repairs",
	                         texts_json(&s->import->repairs), "notes",
	                         texts_json(&s->import->notes), "doubtful", doubts_json(s->import),
	                         "groups", groups_json(s->import));
	if (s->quantize)
		json_object_set_new(root, "quantized",
		                    quantized_json(&s->quantize->tensors, NULL, NULL, NULL));
	if (s->stage >= STAGE_MEMORY) {
		json_t *memory = json_pack("{s:I,s:I,s:I}", "state", (json_int_t)m->state_bytes,
		                           "workspace", (json_int_t)m->workspace_bytes, "io",
		                           (json_int_t)m->io_bytes);
		json_t *plan = json_pack("{s:s,s:o,s:i,s:I}", "output", s->o->output, "memory",
		                         memory, "kernels", m->kernels.n, "flops_micro_batch",
		                         (json_int_t)first_micro_batch_flops(m));
		json_object_set_new(plan, "gpu_sources", json_integer(s->gpu_report.n_sources));
		json_object_set_new(plan, "gpu_compiled", json_integer(s->gpu_report.n_compiled));
		json_object_set_new(plan, "convolutions",
		                    json_integer(s->gpu_report.n_convolutions));
		json_object_set_new(plan, "plans", json_integer(s->gpu_report.n_plans));
		json_object_update(root, plan);
		json_decref(plan);
	}
	json_dumpf(root, stdout, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
	printf("\n");
	json_decref(root);
}

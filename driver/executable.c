/* Writes the tables that are part of an executable (inputs, outputs, loss, optimizer, settings),
 * from the compiled module and the options, and links the executable. */
#include "driver/session.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the indices that an input may hold: every gather that reads the input limits them */
static int64_t
bound_by_gathers(Arena *arena, const Value *input)
{
	VEC(const Value *) views = {0}; /* the input, and views and casts of it */
	int64_t bound = -1;

	vec_push(arena, &views, input);
	for (int i = 0; i < views.n; i++)
		for_each_use(views.at[i], u) {
			const Node *n = u->user;
			FuseClass c = op_row(n)->fuse;
			if (n->op == OP_gather && use_index(u) == 1) {
				int64_t size =
					node_operand(n, 0)->type->dims[((AxisAttr *)n->attr)->axis];
				bound = bound < 0 || size < bound ? size : bound;
			} else if (c == FUSE_VIEW || n->op == OP_cast) {
				vec_push(arena, &views, (const Value *)node_result(n, 0));
			}
		}
	return bound;
}

typedef struct {
	Session *s;
	VEC(PortInfo) inputs, outputs;
	const OutputRows *output_rows; /* as in Tables */
	PortInfo labels;
	/* rows of a micro-batch in the first binding; the ports' shapes are those of this binding */
	int64_t rows;
	/* true: in at least one binding (numbers for the open dimensions) the rows of a micro-batch
	 * depend on each other */
	bool train_mixes, eval_mixes;
	const char *training_form; /* names of the nodes in training form; "" */
	bool uneven;               /* for a loss that the model computes: see loss_is_uneven */
	/* the output merges the rows with another axis of the labels: labels [rows, seq], output
	 * [rows * seq, classes] */
	bool flat_labels;
} Ports;

static bool
is_class_loss(const Session *s)
{
	for (int i = 0; s->has_loss && loss_table[i]; i++)
		if (strcmp(loss_table[i]->name, s->loss.kind) == 0)
			return loss_table[i]->class_targets;
	return false;
}

static bool
is_own_loss(const Session *s)
{
	return s->has_loss && strcmp(s->loss.kind, "output") == 0;
}

/* The number of classes: the size of the axis that the loss's output has and its target lacks. */
static int64_t
class_count(const Session *s, const Value *labels)
{
	const Function *f = module_first(s->m, ROLE_FORWARD);
	Type t = function_result(f, (int)s->loss.output)->type;

	return labels->type->n ? t->n / labels->type->n : 0;
}

/* Finds dependences between rows. Call it before the passes change the graph. */
static void
find_mixing(Ports *p)
{
	const Session *s = p->s;
	int64_t output = s->loss.output;

	if (!s->has_loss)
		return;
	for_each_of_role(s->m, ROLE_FORWARD, f) {
		if (output < 0 || output >= function_return(f)->n_operands)
			return; /* the loss pass reports this fault */
		const Function *eval = function_beside(f, ROLE_INFERENCE);
		p->uneven |= is_own_loss(s) && loss_is_uneven(f, &s->loss);
		p->train_mixes |= loss_rows_mix(f, output, true);
		p->eval_mixes |= loss_rows_mix(eval ? eval : f, output, false);
	}
}

static void
set_rows(OutputRows *out, BatchAxis rows)
{
	out->row_axis = rows.axis < 0 ? 0 : rows.axis;
	out->repeats = rows.axis < 0 ? 0 : rows.repeats;
	out->mixes_rows = rows.mixed;
}

/* Marks the output that the loss compares with labels. f: as in collect_rows */
static void
mark_compared(const Session *s, Function *f, OutputRows *rows)
{
	const LossRow *row = s->has_loss ? loss_find(s->loss.kind) : NULL;
	LossPlace place;

	if (!row || !loss_place(s->m, f, &s->loss, &place))
		return; /* the loss pass reports faults */
	OutputRows *out = &rows[s->loss.output];
	set_rows(out, place.rows);
	out->class_axis = place.class_axis < 0 ? 0 : place.class_axis;
	out->compared = row->class_targets ? (row->takes == LOSS_TAKES_LOG_PROBABILITIES
	                                              ? COMPARED_LOG_PROBABILITIES
	                                              : COMPARED_LOGITS)
	                : row->takes == LOSS_TAKES_LOGITS ? COMPARED_BINARY_LOGITS
	                                                  : COMPARED_NUMBERS;
}

/* Finds rows and classes of the outputs in each binding. The function that becomes the program of role forward is, with a loss,
 * the inference form, if there is one (losses/loss.c). */
static OutputRows *
collect_rows(const Session *s, int n_outputs)
{
	int bindings = s->import->bindings.n;
	OutputRows *all = NEW_ARRAY(s->arena, OutputRows, bindings * n_outputs + 1);

	for_each_of_role(s->m, ROLE_FORWARD, f) {
		Function *inference = function_beside(f, ROLE_INFERENCE);
		Function *program = s->has_loss && inference && !s->o->forward_as_exported
		                            ? inference
		                            : f;
		BatchAxes batch = batch_of(s->arena, program);
		OutputRows *rows = all + f->binding * n_outputs;
		for (int i = 0; i < n_outputs; i++)
			set_rows(&rows[i], batch.rows ? batch.of[function_result(program, i)->id]
			                              : batch_none);
		mark_compared(s, program, rows);
	}
	return all;
}

/* Collects inputs and outputs. Call it before the passes change the graph, from which bounds are
 * read. */
static void
collect_ports(Ports *p)
{
	Session *s = p->s;
	const ImportBinding *im = &s->import->bindings.at[0];
	const Function *f = module_first(s->m, ROLE_FORWARD);

	p->rows = im->rows;
	find_mixing(p);
	p->training_form = training_form_text(s);
	p->training_form = p->training_form ? p->training_form : "";
	for (int i = 0; i < im->inputs.n; i++) {
		const ImportPort *in = &im->inputs.at[i];
		const Value *v = function_find_param(f, PARAM_INPUT, i);
		PortInfo info = {.file_dtype = in->dtype,
		                 .sample_axis = in->has_rows ? in->batch_axis : -1};
		int64_t bound = v && !dtype_is_float(in->dtype) ? bound_by_gathers(s->arena, v)
		                                                : -1;
		info.bounded = bound >= 0;
		info.max = bound - 1;
		vec_push(s->arena, &p->inputs, info);
	}
	for (int i = 0; i < im->outputs.n; i++) {
		const ImportPort *out = &im->outputs.at[i];
		PortInfo info = {.file_dtype = out->dtype,
		                 .sample_axis = out->has_rows ? out->batch_axis : -1};
		vec_push(s->arena, &p->outputs, info);
	}
	p->output_rows = collect_rows(s, p->outputs.n);
}

static DType
declared_dtype(const Value *v)
{
	return dtype_is_float(v->type->dtype) ? F32 : v->type->dtype;
}

/* Adds the loss's own inputs. Values of a class target are indices of classes, or -100. */
static void
add_loss_ports(Ports *p)
{
	Session *s = p->s;
	const Function *f = module_first(s->m, ROLE_ACCUMULATE);
	const Value *labels = f ? function_find_param(f, PARAM_LABELS, -1) : NULL;

	if (labels) {
		p->labels = (PortInfo){
			.file_dtype = labels->number < 0 ? declared_dtype(labels)
		                                         : p->inputs.at[labels->number].file_dtype,
			.sample_axis = labels->rows_axis};
		if (is_class_loss(s)) {
			p->labels.bounded = p->labels.has_ignore = true;
			p->labels.ignore = -100;
			p->labels.max = class_count(s, labels) - 1;
		}
	}
	if (labels) {
		const Function *forward = module_first(s->m, ROLE_FORWARD);
		int usual = function_result(forward, (int)s->loss.output)->type->rank -
		            is_class_loss(s);
		p->flat_labels = labels->rows_axis == 0 && labels->type->rank > usual;
	}
	/* further inputs of a loss graph are numbered after the model's */
	for (const Value *v; f && (v = function_find_param(f, PARAM_INPUT, p->inputs.n));) {
		PortInfo info = {.file_dtype = declared_dtype(v),
		                 .sample_axis = v->has_rows ? v->rows_axis : -1};
		vec_push(s->arena, &p->inputs, info);
	}
}

/* ---- info */
static void
write_defaults(FormatWriter *w, const OptimizerChoice *choice, Arena *arena)
{
	char *copy = arena_strdup(arena, choice->defaults), *save = NULL;

	for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
		char *equal = strchr(word, '=');
		*equal = '\0';
		format_info(w, arena_printf(arena, "default.%s", word), "%s", equal + 1);
	}
}

/* Does a batch norm that is not frozen use batch statistics? */
static bool
has_batch_statistics(const Module *m)
{
	for (int i = 0; i < m->states.n; i++)
		if (m->states.at[i]->kind == STATE_PENDING)
			return true;
	return false;
}

static int64_t
trainable_elements(const Module *m)
{
	int64_t n = 0;

	for (int i = 0; i < m->states.n; i++)
		if (m->states.at[i]->kind == STATE_PARAMETER && m->states.at[i]->trainable)
			n += m->states.at[i]->type->n;
	return n;
}

static const char *
eval_metric(const Session *s)
{
	const Function *f = module_first(s->m, ROLE_ACCUMULATE);
	const Value *labels = f ? function_find_param(f, PARAM_LABELS, -1) : NULL;

	if (!is_class_loss(s) || !labels)
		return "";
	return labels->type->rank > 1 ? "perplexity" : "accuracy";
}

static void
write_external(void *ctx, const char *path)
{
	format_info(ctx, "external", "%s", path);
}

/* Writes the list of files that an export must never overwrite. */
static bool
write_files(Session *s, FormatWriter *w)
{
	char *path = realpath(s->o->input, NULL);

	if (!path) {
		diag_error(s->diag, EXIT_SYSTEM, "%s: %s", s->o->input, strerror(errno));
		return false;
	}
	format_info(w, "model", "%s", path);
	free(path);
	model_external_files(s->model, write_external, w);
	return true;
}

/* Settings that change what training computes. The entry `settings` lists their keys: a resumed run
 * compares the settings with its checkpoint's (runtime/checkpoint/facts.c). */
typedef struct {
	FormatWriter *w;
	const char *keys; /* separated by blanks */
} Settings;

static void PRINTF(3, 4) write_setting(Settings *x, const char *key, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	const char *value = arena_vprintf(x->w->arena, fmt, args);
	va_end(args);
	format_info(x->w, key, "%s", value);
	x->keys = arena_printf(x->w->arena, "%s%s%s", x->keys, *x->keys ? " " : "", key);
}

/* Writes the optimizers of single parameters: the kinds that a checkpoint must match, and the
 * settings. */
static void
write_groups(const Session *s, Settings *x)
{
	const char *kinds = "", *settings = "";

	for (int i = 0; i < s->o->optimizers_for.n; i++) {
		const OptimizerGroup *g = &s->o->optimizers_for.at[i];
		const char *gap = i ? " " : "";
		kinds = arena_printf(s->arena, "%s%s%s=%s", kinds, gap, g->glob, g->choice.name);
		settings = arena_printf(s->arena, "%s%s%s=%s", settings, gap, g->glob,
		                        g->choice.text);
	}
	write_setting(x, "optimizer_for", "%s", kinds);
	write_setting(x, "optimizer_for_settings", "%s", settings);
}

/* --layer-decay becomes the entry layer_decay. */
static void
write_flag(void *ctx, const PassOption *o, const void *value)
{
	Settings *x = ctx;
	Arena *arena = arena_new();
	char *key = arena_strdup(arena, o->flag.name);
	const char *text = o->kind == OPTION_DOUBLE
	                           ? arena_printf(arena, "%.17g", *(const double *)value)
	                           : option_text(o, value, arena);

	for (char *c = key; *c; c++)
		*c = *c == '-' ? '_' : *c;
	if (o->flag.keeps_results)
		format_info(x->w, key, "%s", text);
	else
		write_setting(x, key, "%s", text);
	arena_free(arena);
}

/* How the training computes: the optimizers, the types, and the options of passes. */
static void
write_training(Session *s, Settings *x)
{
	OptimizerChoice choice = s->o->optimizer;
	const char *mixed = "";

	if (!choice.row && !optimizer_parse(NULL, &choice, s->arena, s->diag))
		return;
	write_setting(x, "optimizer", "%s", choice.name);
	write_groups(s, x);
	for (int i = 0; i < s->o->mixed.n; i++)
		mixed = arena_printf(s->arena, "%s%s%s=f32", mixed, i ? " " : "",
		                     s->o->mixed.at[i]);
	write_setting(x, "mixed", "%s", mixed);
	write_setting(x, "loss_scale", "%s", options_loss_scale(s->o));
	session_flags(s, write_flag, x);
	write_setting(x, "master", "%s", s->o->master ? s->o->master : "on");
	write_setting(x, "moments", "%s", s->o->moments ? s->o->moments : "f32");
	write_setting(x, "gradients", "%s", s->o->gradients ? s->o->gradients : "f32");
	write_setting(x, "rounding", "%s", s->o->rounding ? s->o->rounding : "nearest");
	format_info(x->w, "estimate_every", "%lld", (long long)options_estimate_every(s->o));
	write_defaults(x->w, &choice, s->arena);
}

static void
write_info(Session *s, FormatWriter *w, const Ports *p)
{
	Settings x = {w, ""};
	const Recipe *recipe = recipe_find(s->o->precision);
	bool own = is_own_loss(s);

	format_info(w, "gradc_version", "%s", GRADC_VERSION);
	format_info(w, "producer", "%s", s->import->producer ? s->import->producer : "");
	format_info(w, "opset", "%lld", (long long)s->import->opset);
	write_setting(&x, "target", "%s", s->o->target ? s->o->target : "cpu:native");
	write_setting(&x, "precision", "%s", recipe->name);
	format_info(w, "allow_tf32", "%d", recipe->allow_tf32);
	machines_write(w, s->o);
	format_info(w, "rows", "%lld", (long long)p->rows);
	format_info(w, "trainable_elements", "%lld", (long long)trainable_elements(s->m));
	format_info(w, "has_batch_statistics", "%d", has_batch_statistics(s->m));
	if (s->o->init_random)
		format_info(w, "init_seed", "%llu", (unsigned long long)s->o->init_seed);
	format_info(w, "sync_batch_norm", "%d", s->o->sync_batchnorm);
	format_info(w, "data_parallel", "%s", s->o->data_parallel ? s->o->data_parallel : "ddp");
	if (s->o->offload)
		format_info(w, "offload", "%s", s->o->offload);
	format_info(w, "training_form", "%s", p->training_form);
	format_info(w, "forward_in_training_form", "%d",
	            s->import->computes_training_form &&
	                    (s->o->forward_as_exported || evaluates_as_exported(s->o)));
	format_info(w, "max_accumulate", "%lld", (long long)s->o->max_accumulate);
	if (!s->has_loss)
		return;
	write_setting(&x, "loss", "%s", s->o->loss ? s->o->loss : s->loss.kind);
	format_info(w, "loss_kind", "%s", s->loss_kind);
	format_info(w, "targets_per_micro_batch", "%lld", (long long)s->m->targets);
	format_info(w, "keep_last", "%d", !own && !has_batch_statistics(s->m) && !p->train_mixes);
	format_info(w, "rows_mix", "%d", !own && p->train_mixes);
	format_info(w, "uneven_loss", "%d", p->uneven);
	format_info(w, "flat_labels", "%d", p->flat_labels);
	format_info(w, "class_weights", "%d", s->loss.class_weight != NULL);
	format_info(w, "eval_padding", "%d", !p->eval_mixes);
	format_info(w, "eval_metric", "%s", eval_metric(s));
	write_training(s, &x);
	format_info(w, "settings", "%s", x.keys);
}

/* ---- programs */
Status
library_path(Arena *arena, char **path)
{
	char self[4096];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	if (n < 0)
		return status_error(EXIT_SYSTEM, "/proc/self/exe cannot be read");
	self[n] = '\0';
	char *slash = strrchr(self, '/');
	*slash = '\0';
	char *beside = arena_printf(arena, "%s/lib/libgradc_rt.a", self);
	char *installed = arena_printf(arena, "%s/../lib/libgradc_rt.a", self);
	*path = access(beside, R_OK) == 0 ? beside : installed;
	if (access(*path, R_OK) != 0)
		return status_error(EXIT_SYSTEM,
		                    "%s: the runtime library is missing: install gradc "
		                    "whole, or build it with `make build`",
		                    *path);
	return NULL;
}

static BindingInfo *
binding_infos(const Session *s)
{
	const Import *im = s->import;
	BindingInfo *list = NEW_ARRAY(s->arena, BindingInfo, im->bindings.n);

	for (int i = 0; i < im->bindings.n; i++)
		list[i] = (BindingInfo){im->bindings.at[i].text, im->bindings.at[i].rows};
	return list;
}

/* The folder of --keep-sources; by default a folder next to the executable. */
static const char *
sources_folder(const Session *s)
{
	const Options *o = s->o;

	if (!o->keep_sources || *o->keep_sources)
		return o->keep_sources;
	return arena_printf(s->arena, "%s.sources", o->output ? o->output : "gradc");
}

/* libNAME.so or NAME.so; characters that an identifier cannot have become `_`. */
static const char *
library_name(Arena *arena, const char *path)
{
	const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
	char *name = arena_strdup(arena, strncmp(base, "lib", 3) == 0 ? base + 3 : base);

	name[strcspn(name, ".")] = '\0';
	for (char *c = name; *c; c++)
		if (!isalnum((unsigned char)*c))
			*c = '_';
	return name;
}

/* Runs the remaining passes, and collects the facts about inputs and outputs: some from the graph
 * before the passes change it, some from the loss that a pass adds. */
static bool
compile(Session *s, bool with_update, Ports *ports)
{
	*ports = (Ports){.s = s};
	collect_ports(ports);
	if (!session_stage(s, STAGE_EVENTS, with_update))
		return false;
	add_loss_ports(ports);
	return true;
}

/* Writes the tables. link_tables adds the list of files and the export template. */
static bool
write_tables(Session *s, const Ports *ports, FormatWriter *w)
{
	AdapterModules *modules;
	StateSource *sources;

	if (!adapter_names(s, &modules, &sources))
		return false;
	bool ok = tables_write(w,
	                       &(Tables){.m = s->m,
	                                 .inputs = ports->inputs.at,
	                                 .n_inputs = ports->inputs.n,
	                                 .outputs = ports->outputs.at,
	                                 .n_outputs = ports->outputs.n,
	                                 .rows = ports->output_rows,
	                                 .labels = ports->labels,
	                                 .bindings = binding_infos(s),
	                                 .n_bindings = s->import->bindings.n,
	                                 .sources = sources,
	                                 .n_sources = s->import->state_sources.n,
	                                 .adapters = modules},
	                       s->diag);
	write_info(s, w, ports);
	return kept_adapters_write(s, w) && ok;
}

bool
session_tables(Session *s, bool with_update, Format *out)
{
	FormatWriter *w = format_writer_new(s->arena);
	int64_t n = 0;
	Ports ports;
	bool ok = compile(s, with_update, &ports) && write_tables(s, &ports, w);
	void *bytes = NULL;

	if (!ok)
		format_writer_free(w);
	return ok && !diag_status(s->diag, format_finish(w, &bytes, &n)) &&
	       !diag_status(s->diag, format_read(bytes, n, out));
}

static bool
link_tables(Session *s, const char *path, bool embed_export, FormatWriter *w)
{
	LinkOptions link = {.printer = s->o->printer,
	                    .targets = s->o->cpus.at,
	                    .n_targets = s->o->cpus.n,
	                    .gpus = s->o->gpus.at,
	                    .n_gpus = s->o->gpus.n,
	                    .gpu_report = &s->gpu_report,
	                    .tf32 = recipe_find(s->o->precision)->allow_tf32,
	                    .cc = s->o->cc,
	                    .output = path,
	                    .keep_sources = sources_folder(s)};

	char *runtime;
	Ports ports;
	if (!compile(s, s->o->optimizer.row || embed_export, &ports) || !write_tables(s, &ports, w))
		return false;
	if (!write_files(s, w) || (embed_export && !model_export_template(s->m, w, s->diag)) ||
	    diag_status(s->diag, library_path(s->arena, &runtime)))
		return false;
	link.runtime = runtime;
	if (s->o->emit && strcmp(s->o->emit, "library") == 0)
		link.library = library_name(s->arena, path);
	if (s->o->weights && strcmp(s->o->weights, "embed") != 0)
		link.weights_file = s->o->weights;
	return !diag_status(s->diag, link_executable(s->m, w, &link));
}

/* Refuses --disable of a pass without which there is no program to run. */
static bool
check_disabled(const Session *s)
{
	bool ok = true;

	for (int i = 0; i < s->o->disable.n; i++) {
		const char *name = s->o->disable.at[i];
		if (!pass_find(name)->needed)
			continue;
		diag_error(s->diag, EXIT_USAGE,
		           "--disable=%s: without that pass there is no whole program to run",
		           name);
		diag_hint(s->diag, "`gradc dump` and `gradc opt` show modules without it");
		ok = false;
	}
	return ok;
}

bool
session_link(Session *s, const char *path, bool embed_export)
{
	FormatWriter *w = format_writer_new(s->arena);
	bool ok = check_disabled(s) && link_tables(s, path, embed_export, w);

	format_writer_free(w);
	return ok;
}

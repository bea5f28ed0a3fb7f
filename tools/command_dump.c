/* The subcommands `gradc dump`, `opt`, `ops` and `passes`, for compiler developers: they print a
 * module at any stage, run passes on a module in text, and list ops and passes. */
#include "tools/tools.h"

#include "ir/groups/groups.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- writing a module */
static void
print_dot(Text *out, const Function *f)
{
	text_add(out, "digraph gradc {\n\tnode [shape=box, fontname=\"monospace\"];\n");
	for_each_node(f, n) {
		Text line = {0};
		node_print(&line, n, NULL);
		text_printf(out, "\tn%u [label=", n->id);
		text_add_quoted(out, line.at);
		text_add(out, "];\n");
		text_free(&line);
		for (int i = 0; i < n->n_operands; i++) {
			const Value *v = node_operand(n, i);
			if (v && v->node)
				text_printf(out, "\tn%u -> n%u;\n", v->node->id, n->id);
		}
	}
	text_add(out, "}\n");
}

static json_t *
node_json(const Node *n)
{
	json_t *operands = json_array(), *results = json_array();
	Text line = {0};

	node_print(&line, n, NULL);
	for (int i = 0; i < n->n_operands; i++) {
		const Value *v = node_operand(n, i);
		json_array_append_new(operands, !v ? json_null()
		                                : v->kind == VALUE_STATE
		                                        ? json_string(v->state->name)
		                                : v->kind == VALUE_PARAM ? json_string(v->name)
		                                                         : json_integer(v->id));
	}
	for (int i = 0; i < n->n_results; i++) {
		Text t = {0};
		type_print(&t, node_result(n, i)->type);
		json_array_append_new(results, json_pack("{s:i,s:s}", "id",
		                                         (int)node_result(n, i)->id, "type", t.at));
		text_free(&t);
	}
	json_t *j = json_pack("{s:s,s:o,s:o,s:s,s:s}", "op", op_row(n)->name, "operands", operands,
	                      "results", results, "text", line.at, "loc", loc_origin(n->loc));
	text_free(&line);
	return j;
}

static void
print_json(Text *out, const Module *m)
{
	json_t *functions = json_object();

	for_each_function(m, f) {
		json_t *nodes = json_array();
		for_each_node(f, n)
			json_array_append_new(nodes, node_json(n));
		json_object_set_new(functions, f->name, nodes);
	}
	char *text = json_dumps(functions, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
	text_add(out, text);
	text_add(out, "\n");
	memory_free(text);
	json_decref(functions);
}

static bool
format_module(Text *out, const Module *m, const char *format, Diag *diag)
{
	if (!format || strcmp(format, "text") == 0)
		module_print(out, m, NULL);
	else if (strcmp(format, "dot") == 0)
		for_each_function(m, f)
			print_dot(out, f);
	else if (strcmp(format, "json") == 0)
		print_json(out, m);
	else if (strcmp(format, "html") == 0)
		page_print(out, &(Page){.title = m->name,
		                        .stage = stage_names[module_stage(m)],
		                        .graph = m,
		                        .plan = m->kernels.n ? m : NULL});
	else {
		diag_error(diag, EXIT_USAGE, "--format=%s: not supported in this build", format);
		return false;
	}
	return true;
}

/* Writes to a file, or to stdout if the path is NULL. */
static bool
write_text(const Text *text, const char *path, Diag *diag)
{
	if (path)
		return !diag_status(diag, file_write(path, text->at, (int64_t)text->n));
	fwrite(text->at, 1, text->n, stdout);
	return true;
}

/* Writes the module to stdout; or to FILE as text, with its tensors in STEM.safetensors in the same
 * folder. */
static bool
write_module(const Module *m, const char *path, const char *format, Arena *arena, Diag *diag)
{
	Text out = {0};

	text_add(&out, "");
	bool ok = format_module(&out, m, format, diag) && write_text(&out, path, diag);
	if (ok && path && (!format || strcmp(format, "text") == 0))
		ok = !diag_status(diag, module_write_data(m, text_data_path(arena, path)));
	text_free(&out);
	return ok;
}

static bool
writes_text(const Options *o)
{
	return !(o->stage && printer_of_language(o->stage)) &&
	       (!o->format || strcmp(o->format, "text") == 0);
}

static bool
shows_gpu(const Options *o)
{
	return o->stage && printer_of_language(o->stage) == &printer_cuda;
}

/* Keeps only the target that is shown, so that only its kernels are lowered. */
static void
pick_machine(Options *o, Arena *arena)
{
	if (!shows_gpu(o))
		return;
	o->cpus.n = 0;
	if (o->gpus.n == 0)
		vec_push(arena, &o->gpus, cuda_architecture_find(cuda_shown));
	o->gpus.n = 1;
}

/* Writes the code that a printer makes of the kernels. */
static bool
write_code(const Module *m, const Options *o, Diag *diag)
{
	const CudaArchitecture *gpu = shows_gpu(o) ? o->gpus.at[0] : NULL;
	const CpuTarget of_gpu = gpu ? (CpuTarget){gpu->name, "", gpu->target} : (CpuTarget){0};
	Text out = {0};
	const CpuTarget *target = gpu ? &of_gpu : &o->cpus.at[0];

	if (!gpu && o->cpus.n == 0) {
		diag_error(diag, EXIT_USAGE,
		           "--stage=%s shows code for CPUs, but --target=%s names no CPU", o->stage,
		           o->target);
		return false;
	}
	text_add(&out, "");
	Status status = printer_of_language(o->stage)->print(&out, m, target, o->stage);
	bool ok = !diag_status(diag, status) && write_text(&out, o->output, diag);
	text_free(&out);
	return ok;
}

/* ---- reading text */
static Module *
read_text(const char *path, Arena *arena, Diag *diag)
{
	StrMap *data;
	void *bytes;
	int64_t n;

	if (diag_status(diag, file_read(arena, path, 1ll << 31, &bytes, &n)) ||
	    diag_status(diag, module_read_data(arena, text_data_path(arena, path), &data)))
		return NULL;
	char *text = arena_strndup(arena, bytes, (size_t)n);
	Module *m = module_parse(text, path, data, diag);
	if (m && !module_verify(m, diag)) {
		module_free(m);
		return NULL;
	}
	return m;
}

int
command_opt(Options *o, Arena *arena, Diag *diag)
{
	Pipeline p = {0};
	PassManagerOptions mo = manager_options(o, arena);
	int n;
	const PassRow *const *rows = pass_rows(&n);

	mo.verify_each = true;
	o->writes_text = writes_text(o);
	if (!o->input) {
		diag_error(diag, EXIT_USAGE, "no file given");
		return EXIT_USAGE;
	}
	if (!pipeline_parse(&p, arena, o->passes ? o->passes : "", rows, n, diag) ||
	    !outputs_prepare(o, NULL, NULL, arena, diag))
		return diag_exit_code(diag);
	Module *m = read_text(o->input, arena, diag);
	if (m) {
		Stage stage = module_stage(m);
		if ((!o->stage || parse_stage(o->stage, &stage, diag)) &&
		    pipeline_run(&p, m, &stage, &mo, diag))
			write_module(m, o->output, o->format, arena, diag);
	}
	module_free(m);
	return diag_exit_code(diag);
}

/* ---- dump */
bool
parse_stage(const char *text, Stage *stage, Diag *diag)
{
	for (int i = STAGE_IMPORT; i <= STAGE_MEMORY; i++)
		if (strcmp(stage_names[i], text) == 0) {
			*stage = (Stage)i;
			return true;
		}
	diag_error(diag, EXIT_USAGE,
	           "--stage=%s: need import, forward, train, rematerialized, fused, lowered, "
	           "schedule or memory",
	           text);
	return false;
}

/* The first mode of --data-parallel, if the tables have it. */
static int
predicted_mode(const Format *f, const Options *o)
{
	const char *list = o->data_parallel;

	for (int mode = 0; list && mode < N_MODES; mode++) {
		size_t n = strlen(mode_names[mode]);
		if (strncmp(list, mode_names[mode], n) == 0 && (list[n] == ',' || !list[n]) &&
		    format_has_mode(f, mode))
			return mode;
	}
	return MODE_DDP;
}

/* Prints the tables in --format, with their predicted time on --machine. */
static bool
print_tables(Text *out, const Format *f, const char *stage, const Options *o, Diag *diag)
{
	Outlook outlook = o->machine;
	const Outlook *where = outlook.machine ? &outlook : NULL;
	Arena *arena = arena_new();
	int64_t *shard_at = NEW_ARRAY(arena, int64_t, f->n[SECTION_STATES] + 1);

	if (where) {
		outlook.mode = predicted_mode(f, o);
		outlook.shard_at = shard_at;
		RunFacts facts = predict_facts(where);
		format_shard_places(f, &facts, SPACE_SHARD, shard_at);
		if (diag_status(diag, format_check_world(f, &facts))) {
			arena_free(arena);
			return false;
		}
	}
	if (o->format && strcmp(o->format, "json") == 0)
		format_print_json(out, f, where);
	else if (where)
		format_print_predictions(out, f, where);
	else
		format_print(out, f, stage);
	arena_free(arena);
	return true;
}

static int
dump_executable(const char *path, const FormatTail *tail, int64_t size, Options *o, Arena *arena,
                Diag *diag)
{
	const char *stage = o->stage ? o->stage : "schedule";
	void *bytes;
	int64_t n;
	Format f;
	Text out = {0};

	if (strcmp(stage, "schedule") != 0 && strcmp(stage, "memory") != 0) {
		diag_error(diag, EXIT_USAGE, "%s: an executable has the stages schedule and memory",
		           path);
		return EXIT_USAGE;
	}
	if (diag_status(diag, file_read(arena, path, size, &bytes, &n)))
		return diag_exit_code(diag);
	if (tail->blob_offset < 0 || tail->blob_bytes < 0 || tail->blob_offset > n ||
	    tail->blob_bytes > n - tail->blob_offset) {
		diag_error(diag, EXIT_SYSTEM, "%s: its tail is damaged", path);
		return EXIT_SYSTEM;
	}
	void *blob = arena_copy(arena, (char *)bytes + tail->blob_offset, (size_t)tail->blob_bytes);
	if (!diag_status(diag, format_read(blob, tail->blob_bytes, &f)) &&
	    print_tables(&out, &f, stage, o, diag))
		write_text(&out, o->output, diag);
	text_free(&out);
	return diag_exit_code(diag);
}

/* Reads the FormatTail at the end of an executable made by gradc; other files give magic 0. */
static Status
read_tail(const char *path, FormatTail *tail, int64_t *size)
{
	int fd;

	*tail = (FormatTail){0};
	RETURN_IF_ERROR(file_open_regular(path, EXIT_SYSTEM, &fd, size));
	int64_t at = *size - (int64_t)sizeof(*tail);
	Status status = at >= 0 ? file_pread(fd, path, tail, sizeof(*tail), at) : NULL;
	close(fd);
	if (tail->magic != FORMAT_MAGIC)
		*tail = (FormatTail){0};
	return status;
}

static bool
is_text(const char *path)
{
	size_t n = strlen(path);

	return n > 4 && strcmp(path + n - 4, ".gir") == 0;
}

static int
dump_text(Options *o, Arena *arena, Diag *diag)
{
	Module *m = read_text(o->input, arena, diag);

	if (m && o->stage && printer_of_language(o->stage))
		write_code(m, o, diag);
	else if (m)
		write_module(m, o->output, o->format, arena, diag);
	module_free(m);
	return diag_exit_code(diag);
}

/* The HTML page of a stage after `fused` needs two modules: a module at an earlier stage, which has
 * all nodes, and the module at the stage itself. */
static bool
write_page(Session *graph, const Module *plan, Stage stage)
{
	const Options *o = graph->o;
	json_t *ranges = o->log ? training_ranges(o->log, graph->diag) : NULL;
	Text page = {0};

	if (o->log && !ranges)
		return false;
	page_print(&page, &(Page){.title = o->input,
	                          .stage = o->after ? o->after : stage_names[stage],
	                          .model = graph->model,
	                          .graph = graph->m,
	                          .plan = plan,
	                          .ranges = ranges});
	json_decref(ranges);
	bool ok = write_text(&page, o->output, graph->diag);
	text_free(&page);
	return ok;
}

static int
dump_page_of_model(Options *o, Arena *arena, Diag *diag)
{
	Session graph = {0}, plan = {0};
	Stage stage = STAGE_MEMORY;
	bool ok = !o->stage || parse_stage(o->stage, &stage, diag);
	bool planned = !o->after && stage > STAGE_FUSED;

	ok = ok && session_open(&graph, o, OPEN_DIMS_ONE, arena, diag);
	if (ok)
		ok = o->after
		             ? session_run(&graph, o->after, graph.has_loss)
		             : session_stage(&graph, planned ? STAGE_FUSED : stage, graph.has_loss);
	if (ok && planned)
		ok = session_open(&plan, o, OPEN_DIMS_ONE, arena, diag) &&
		     session_stage(&plan, stage, plan.has_loss);
	if (ok)
		write_page(&graph, plan.m, stage);
	session_close(&plan);
	session_close(&graph);
	return diag_exit_code(diag);
}

/* Prints the launches that the executor would run, for --stage=schedule. */
static bool
write_schedule(Session *s)
{
	Text out = {0};
	Format f;
	bool ok = session_tables(s, s->has_loss, &f) &&
	          print_tables(&out, &f, "schedule", s->o, s->diag) &&
	          write_text(&out, s->o->output, s->diag);

	text_free(&out);
	return ok;
}

static bool
wants_schedule_json(const Options *o)
{
	return o->format && strcmp(o->format, "json") == 0 && o->stage &&
	       strcmp(o->stage, "schedule") == 0;
}

static bool
wants_onnx(const Options *o)
{
	return o->format && strcmp(o->format, "onnx") == 0;
}

/* Writes the computation of a micro-batch as an ONNX file. */
static bool
write_onnx(const Session *s)
{
	Function *f = module_first(s->m, ROLE_ACCUMULATE);
	size_t size = 0;

	groups_open(f); /* ONNX has no groups */
	const uint8_t *bytes = module_encode_onnx(s->m, f, s->arena, s->diag, &size);

	if (bytes && s->o->output)
		return !diag_status(s->diag, file_write(s->o->output, bytes, (int64_t)size));
	if (bytes)
		fwrite(bytes, 1, size, stdout);
	return bytes != NULL;
}

static int
dump_model(Options *o, Arena *arena, Diag *diag)
{
	Session s = {0};
	Stage stage = STAGE_FORWARD;
	bool code = o->stage && printer_of_language(o->stage);
	bool ok = !o->stage || parse_stage(code ? "lowered" : o->stage, &stage, diag);

	ok = ok && session_open(&s, o, OPEN_DIMS_ONE, arena, diag);
	if (ok && (wants_schedule_json(o) || o->machine.machine)) {
		write_schedule(&s);
		session_close(&s);
		return diag_exit_code(diag);
	}
	if (ok)
		ok = o->after ? session_run(&s, o->after, s.has_loss)
		              : session_stage(&s, stage, s.has_loss);
	if (ok && o->dump_dir && !o->output && !o->dump_after && !o->dump_changed) {
		ok = !diag_status(diag, folder_make(o->dump_dir));
		o->output = path_join(
			arena, o->dump_dir,
			arena_printf(arena, "%s.gir", o->after ? o->after : stage_names[stage]));
	}
	if (ok && wants_onnx(o))
		write_onnx(&s);
	else if (ok && code)
		write_code(s.m, o, diag);
	else if (ok)
		write_module(s.m, o->output, o->format, arena, diag);
	session_close(&s);
	return diag_exit_code(diag);
}

/* Refuses --machine for modules in text: predictions need tables. */
static bool
check_machine(const Options *o, Diag *diag)
{
	const char *format = o->format ? o->format : "text";
	const char *fault = !o->machine.machine ? NULL
	                    : !o->stage || strcmp(o->stage, "schedule") != 0
	                            ? "needs --stage=schedule"
	                    : is_text(o->input) ? "needs a model or an executable"
	                    : strcmp(format, "text") != 0 && strcmp(format, "json") != 0
	                            ? "needs --format=text or --format=json"
	                            : NULL;

	if (fault)
		diag_error(diag, EXIT_USAGE, "--machine=%s: %s", o->machine.machine->name, fault);
	return !fault;
}

int
command_dump(Options *o, Arena *arena, Diag *diag)
{
	FormatTail tail = {0};
	int64_t size;

	o->writes_text = writes_text(o);
	if (!o->input) {
		diag_error(diag, EXIT_USAGE, "no file given");
		return EXIT_USAGE;
	}
	if (o->stage && o->after) {
		diag_error(diag, EXIT_USAGE, "--stage=%s and --after=%s: one of them", o->stage,
		           o->after);
		return EXIT_USAGE;
	}
	if (wants_onnx(o) && (!o->loss || !o->stage || strcmp(o->stage, "train") != 0)) {
		diag_error(diag, EXIT_USAGE, "--format=onnx: needs --stage=train and --loss");
		return EXIT_USAGE;
	}
	if (o->log && (!o->format || strcmp(o->format, "html") != 0)) {
		diag_error(diag, EXIT_USAGE, "--log=%s: needs --format=html of a model", o->log);
		return EXIT_USAGE;
	}
	pick_machine(o, arena);
	bool text = is_text(o->input);
	if (!check_machine(o, diag))
		return EXIT_USAGE;
	if (!text && diag_status(diag, read_tail(o->input, &tail, &size)))
		return diag_exit_code(diag);
	if ((text || tail.magic) && !outputs_prepare(o, NULL, NULL, arena, diag))
		return diag_exit_code(diag);
	if (text)
		return dump_text(o, arena, diag);
	if (tail.magic) {
		if (o->format && strcmp(o->format, "text") != 0 && !wants_schedule_json(o)) {
			diag_error(diag, EXIT_USAGE,
			           "--format=%s: of an executable not supported in this build",
			           o->format);
			return EXIT_USAGE;
		}
		return dump_executable(o->input, &tail, size, o, arena, diag);
	}
	if (o->format && strcmp(o->format, "html") == 0)
		return dump_page_of_model(o, arena, diag);
	return dump_model(o, arena, diag);
}

/* ---- lists */
static void
print_importer(void *ctx, const OpsetRow *row)
{
	char until[24] = "", name[64];
	const bool *json = ctx;
	bool is_onnx = strcmp(row->domain, "ai.onnx") == 0;

	if (row->until)
		snprintf(until, sizeof(until), "%d", row->until);
	snprintf(name, sizeof(name), "%s%s%s", is_onnx ? "" : row->domain, is_onnx ? "" : ".",
	         row->name);
	if (*json)
		printf("{\"domain\": \"%s\", \"name\": \"%s\", \"since\": %d, \"until\": %s, \"gradient\": \"%s\"}\n",
		       row->domain, row->name, row->since, row->until ? until : "null",
		       row->gradient ? "yes" : "zero");
	else
		printf("%-48s %2d - %-4s%s\n", name, row->since, until,
		       row->gradient ? "" : "zero gradient");
}

int
command_ops(Options *o, Arena *arena, Diag *diag)
{
	(void)arena, (void)diag;
	if (!o->json)
		printf("ONNX operators, with the opset versions that are read. `zero gradient`: the operator is piecewise constant, or its results are not floats\n");
	importer_rows(print_importer, &o->json);
	return EXIT_OK;
}

static void
print_pass_json(const PassRow *row)
{
	json_t *options = json_object(), *findings = row->finding ? json_object() : NULL;

	for (const PassOption *p = row->options; p && p->name; p++)
		json_object_set_new(options, p->name, json_string(p->help));
	for (int i = 0; row->finding && row->finding(i).name; i++) {
		PassFinding f = row->finding(i);
		json_object_set_new(findings, f.name, json_string(f.doc));
	}
	json_t *j = json_pack("{s:s,s:s,s:s,s:s,s:s,s:o,s:o*}", "name", row->name, "help",
	                      row->help, "takes", stage_names[row->takes], "leaves",
	                      row->leaves ? stage_names[row->leaves] : "same", "when",
	                      pass_when_names[row->when], "options", options, "finds", findings);
	json_dumpf(j, stdout, JSON_PRESERVE_ORDER);
	printf("\n");
	json_decref(j);
}

static void
print_pass(const PassRow *row, bool first)
{
	bool always = row->when == PASS_ALWAYS;

	printf("%-12s %-10s -> %-10s %s%s%s%s\n", row->name, stage_names[row->takes],
	       row->leaves ? stage_names[row->leaves] : "same", row->help, always ? "" : " (",
	       always ? "" : pass_when_names[row->when], always ? "" : ")");
	for (const PassOption *p = row->options; first && p && p->name; p++)
		printf("    {%s=...}  %s\n", p->name, p->help);
	for (int i = 0; first && row->finding && row->finding(i).name; i++)
		printf("    %s  %s\n", row->finding(i).name, row->finding(i).doc);
}

/* Prints the passes in the order in which they run; a pass that runs three times has three
 * lines. */
int
command_passes(Options *o, Arena *arena, Diag *diag)
{
	int n;
	const PassRow *const *rows = pass_rows(&n);

	(void)arena, (void)diag;
	for (int i = 0; i < n; i++) {
		int k = 0;
		while (rows[k] != rows[i])
			k++;
		if (o->json)
			print_pass_json(rows[i]);
		else
			print_pass(rows[i], k == i);
	}
	return EXIT_OK;
}

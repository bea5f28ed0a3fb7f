/* Prints an executable's instructions, and their predicted times, as JSON for scripts. Each launch is one object, so scripts can add up parts, operations and bytes
 * without the table of kernels. */
#include "cost/cost.h"

#include <jansson.h>

/* The conditions under which an instruction runs, as a list of words such as ["ranks", "staged"]. */
static json_t *
only_json(uint32_t only)
{
	json_t *list = json_array();

	for (int bit = 0; only_names[bit]; bit++)
		if (only >> bit & 1)
			json_array_append_new(list, json_string(only_names[bit]));
	return list;
}

static void
set_microseconds(json_t *j, const char *key, double seconds)
{
	json_object_set_new(j, key, json_real(1e6 * seconds));
}

/* The time of one run of an instruction, how often the step runs the instruction, and which
 * resource limits it. */
static void
set_prediction(json_t *j, const Prediction *p, const Machine *m)
{
	bool works = p->seconds > 0;

	set_microseconds(j, "predicted_us", p->seconds);
	set_microseconds(j, "roofline_us", p->roofline);
	json_object_set_new(j, "times", json_integer(p->times));
	json_object_set_new(j, "bound", works ? json_string(bound_names[p->bound]) : json_null());
	json_object_set_new(j, "measured", json_boolean(prediction_is_measured(p, m)));
	json_object_set_new(j, "utilization", json_real(p->utilization));
	json_object_set_new(j, "of_roofline", json_real(prediction_of_roofline(p)));
}

static json_t *
instruction_json(const Format *f, const Instruction *n)
{
	const KernelRecord *k = n->kind == RUN_KERNEL ? &f->kernels[n->what] : NULL;
	const CollectiveRecord *c = n->kind == COLLECTIVE ? &f->collectives[n->what] : NULL;
	json_t *j = json_pack("{s:s,s:s,s:s,s:o,s:o}", "op",
	                      c ? collective_names[c->kind] : instruction_names[n->kind], "stream",
	                      stream_names[n->stream], "when", when_names[n->when], "only",
	                      only_json(n->only), "origin", json_name(format_text(f, n->origin)));

	json_object_set_new(j, "kernel", k ? json_name(format_text(f, k->name)) : json_null());
	json_object_set_new(j, "parts", json_integer(k ? k->iterations : 1));
	if (k) {
		json_object_set_new(j, "arguments", json_integer(k->n_arguments));
		json_object_set_new(j, "team", json_integer(k->team));
		json_object_set_new(j, "block_threads", json_integer(kernel_block_threads(k)));
		json_object_set_new(j, "shared_bytes", json_integer(k->shared_bytes));
	}
	json_object_set_new(j, "flops", json_integer(k ? k->flops : 0));
	json_object_set_new(j, "bytes",
	                    json_integer(k   ? k->bytes
	                                 : c ? dtype_bytes((DType)c->dtype, c->n)
	                                     : 0));
	if (c)
		json_object_set_new(j, "group", json_string(comm_group_names[c->group]));
	return j;
}

static json_t *
instructions_json(const Format *f, const ProgramRecord *p, const Outlook *where)
{
	int64_t *times = memory_get(sizeof(*times) * (p->n_instructions + 1u));
	json_t *list = json_array();

	if (where)
		predict_times(f, p, where, times);
	for (uint32_t i = 0; i < p->n_instructions; i++) {
		const Instruction *n = &f->instructions[p->first_instruction + i];
		json_t *j = instruction_json(f, n);
		if (where) {
			Prediction prediction = predict_instruction(f, n, where);
			prediction.times = times[i];
			set_prediction(j, &prediction, where->machine);
		}
		json_array_append_new(list, j);
	}
	memory_free(times);
	return list;
}

static json_t *
program_json(const Format *f, const ProgramRecord *p, const Outlook *where)
{
	return json_pack("{s:s,s:o,s:i,s:s,s:o,s:o}", "role", role_names[p->role], "binding",
	                 json_name(format_text(f, f->bindings[p->binding].text)), "stage",
	                 (int)p->stage, "mode", mode_names[p->mode], "target",
	                 json_name(format_text(f, f->targets[p->target].name)), "instructions",
	                 instructions_json(f, p, where));
}

/* ---- predictions */
static json_t *
machine_json(const Outlook *o)
{
	double link = o->network_rate > 0 ? o->network_rate : o->machine->link_rate;

	return json_pack("{s:s,s:s,s:s,s:i,s:f}", "name", o->machine->name, "title",
	                 o->machine->title, "target", o->machine->target, "ranks", o->ranks,
	                 "link_bytes_per_s", link);
}

/* What the launch asks of any machine: enough for predict_work, on this machine or another, later (bench/gpu/predict_work.c). */
static void
set_work(json_t *j, const Work *w)
{
	json_object_set_new(j, "class", json_string(work_class_names[w->class]));
	json_object_set_new(j, "math", json_string(math_names[w->math]));
	for (const WorkField *f = work_fields; f->name; f++) {
		const char *at = (const char *)w + f->offset;
		json_object_set_new(j, f->name,
		                    f->whole ? json_integer(*(const int64_t *)at)
		                             : json_real(*(const double *)at));
	}
}

/* The call that a library runs, as text; null: loops. */
static json_t *
call_json(const Format *f, const Instruction *n)
{
	const KernelRecord *k = n->kind == RUN_KERNEL ? &f->kernels[n->what] : NULL;
	Text text = {0};

	if (!k || !k->library)
		return json_null();
	library_call_print(&text, &f->library[k->library - 1].call, NULL, NULL);
	json_t *j = json_string(text.at);
	text_free(&text);
	return j;
}

/* The instruction's object with parts, operations and bytes for this number of ranks, and the total of all
 * its runs. */
static json_t *
launch_json(const Format *f, const Prediction *p, const Machine *m, double total)
{
	json_t *j = instruction_json(f, p->instruction);

	set_work(j, &p->work);
	json_object_set_new(j, "call", call_json(f, p->instruction));
	set_prediction(j, p, m);
	set_microseconds(j, "total_us", prediction_total(p));
	json_object_set_new(j, "share", json_real(prediction_total(p) / total));
	return j;
}

/* The step on its streams, and how much of the communication is exposed (runs while nothing is
 * computed). */
static json_t *
timeline_json(Arena *arena, const Format *f, const PredictedStep *s, const Outlook *o)
{
	Timeline t = predict_timeline(arena, f, s, o);
	json_t *list = json_array(), *root = json_object();

	for (int i = 0; i < t.bars[STREAM_COMMUNICATION].n; i++) {
		const Bar *b = &t.bars[STREAM_COMMUNICATION].at[i];
		json_t *j = instruction_json(f, b->instruction);
		set_microseconds(j, "begin_us", b->begin);
		set_microseconds(j, "end_us", b->end);
		set_microseconds(j, "exposed_us", b->exposed);
		json_array_append_new(list, j);
	}
	set_microseconds(root, "step_us", t.seconds);
	set_microseconds(root, "exposed_us", t.exposed);
	json_object_set_new(root, "communication", list);
	return root;
}

static json_t *
step_json(Arena *arena, const Format *f, const PredictedStep *s, const Outlook *o)
{
	const ProgramRecord *p = s->programs[0];
	json_t *launches = json_array(), *streams = json_object();

	for (int i = 0; i < s->launches.n; i++)
		json_array_append_new(launches,
		                      launch_json(f, &s->launches.at[i], o->machine, s->total));
	for (int i = 0; i < N_STREAMS; i++)
		set_microseconds(streams, stream_names[i], s->streams[i]);
	json_t *j = json_pack("{s:s,s:o,s:o,s:I,s:I,s:o,s:o}", "role", role_names[p->role],
	                      "binding", json_name(format_text(f, f->bindings[p->binding].text)),
	                      "target", json_name(format_text(f, f->targets[p->target].name)),
	                      "rows", (json_int_t)s->rows, "tokens", (json_int_t)s->tokens,
	                      "streams", streams, "launches", launches);
	set_microseconds(j, "step_us", s->least);
	set_microseconds(j, "step_without_overlap_us", s->most);
	json_object_set_new(j, "timeline", timeline_json(arena, f, s, o));
	return j;
}

static void
set_predictions(json_t *root, const Format *f, const Outlook *where)
{
	Arena *arena = arena_new();
	PredictedSteps steps = predict_steps(arena, f, where);
	json_t *list = json_array();

	for (int i = 0; i < steps.n; i++)
		json_array_append_new(list, step_json(arena, f, &steps.at[i], where));
	json_object_set_new(root, "machine", machine_json(where));
	json_object_set_new(root, "steps", list);
	arena_free(arena);
}

void
format_print_json(Text *out, const Format *f, const Outlook *where)
{
	json_t *programs = json_array();

	for (int i = 0; i < f->n[SECTION_PROGRAMS]; i++)
		json_array_append_new(programs, program_json(f, &f->programs[i], where));
	json_t *root = json_pack("{s:o}", "programs", programs);
	if (where)
		set_predictions(root, f, where);
	char *text = json_dumps(root, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
	text_add(out, text);
	text_add(out, "\n");
	memory_free(text);
	json_decref(root);
}

/* Writes the error message for a NaN or infinity in a step: which ONNX node made it, and what the node's results and operands
 * hold. For example:
 *
 * the first NaN is a result of "log" (forward, micro-batch 2 of 4)
 * result "log" (f32, 64 elements): 3 NaN, the rest from -1.2 to 2.1
 * operand "fc1" (f32, 64 elements): from -0.7 to 8.4 */
#include "runtime/train/steps.h"

#include <string.h>

typedef struct {
	Arena *arena;
	const Gradc *run;
	const Format *format;
} Describer;

/* ---- names */
static void
add_names(Text *out, const StringList *names, const char *before, int *written, int all)
{
	for (int i = 0; i < names->n; i++, ++*written) {
		if (*written > 0)
			text_add(out, *written == all - 1 ? " or " : ", ");
		text_add(out, before);
		text_add_quoted(out, names->at[i]);
	}
}

/* "/a", "/b" or the gradient of "/c" */
static void
add_nodes(Text *out, const StringList *nodes, const StringList *gradients)
{
	int written = 0, all = nodes->n + gradients->n;

	add_names(out, nodes, "", &written, all);
	add_names(out, gradients, "the gradient of ", &written, all);
	if (all == 0)
		text_add(out, "no ONNX node");
}

static const char *
instruction_text(const Describer *d, const Instruction *n)
{
	OriginNodes nodes = origin_nodes(d->arena, d->format, n);
	Text t = {0};

	add_nodes(&t, &nodes.forward, &nodes.gradients);
	const char *copy = arena_strdup(d->arena, t.at);
	text_free(&t);
	return copy;
}

/* ---- tensors */
static void
name_as(const Describer *d, GradcTensor *t, const char *kind, StrRef name, uint32_t rank,
        uint32_t first_dim)
{
	t->kind = kind;
	t->name = format_text(d->format, name);
	t->shape = shape_text(d->arena, (int)rank, d->format->dims + first_dim);
}

/* Is the slot a state of the model or a unit of states? Then names it. */
static bool
name_state(const Describer *d, const Slot *s, GradcTensor *t)
{
	for (int i = 0; i < d->format->n[SECTION_STATES] && s->space == SPACE_STATE; i++) {
		const StateRecord *state = &d->format->states[i];

		if (state->offset != s->offset || state->bytes != s->bytes)
			continue;
		bool cast = state->kind == STATE_WORKING && state->of;
		name_as(d, t, cast ? "cast of" : state_kind_names[state->kind],
		        cast ? d->format->states[state->of - 1].name : state->name, state->rank,
		        state->first_dim);
		return true;
	}
	return false;
}

static bool
name_port(const Describer *d, const ProgramRecord *p, const Slot *s, GradcTensor *t)
{
	for (uint32_t i = 0; i < p->n_inputs; i++) {
		const PortRecord *port = &d->format->ports[p->first_input + i];
		const Slot *own = &d->format->slots[port->slot];

		if (own->offset != s->offset ||
		    (own->space != s->space && space_table[own->space].twin != s->space))
			continue;
		name_as(d, t, port_kind_names[port->kind], port->name, port->rank, port->first_dim);
		return true;
	}
	return false;
}

static GradcTensor
describe_tensor(const Describer *d, const ProgramRecord *p, const Watched *w, bool is_result)
{
	GradcTensor t = {.name = format_text(d->format, w->slot->name),
	                 .kind = "",
	                 .dtype = dtype_info[w->slot->dtype].name,
	                 .range = is_result ? w->after : w->before,
	                 .is_result = is_result};

	if (!name_state(d, w->slot, &t))
		name_port(d, p, w->slot, &t);
	return t;
}

/* parameter "w" */
static void
add_name(Text *out, const GradcTensor *t)
{
	text_printf(out, "%s%s", t->kind, *t->kind ? " " : "");
	text_add_quoted(out, t->name);
}

/* from parameter "w", which held it before the step */
static const char *
held_text(const Describer *d, const Finding *found)
{
	GradcTensor t = describe_tensor(d, found->program, found->args, false);
	Text text = {0};

	text_add(&text, "from ");
	add_name(&text, &t);
	text_add(&text, ", which held it before the step");
	const char *copy = arena_strdup(d->arena, text.at);
	text_free(&text);
	return copy;
}

static const char *
describe_origin(const Describer *d, const Watched *w)
{
	const Finding *found = NULL;

	for (int k = 0; k < GRADC_N_UNFIT && !found; k++)
		found = finder_get(d->run->executor.finder, w->from[k]);
	if (!found)
		return NULL;
	if (found->cause == CAUSE_RECEIVED)
		return "from another rank";
	if (found->cause == CAUSE_HELD && found->args[0].slot == w->slot)
		return "there before the step";
	if (found->cause == CAUSE_HELD)
		return held_text(d, found);
	return arena_printf(d->arena, "from %s", instruction_text(d, found->instruction));
}

typedef VEC(GradcTensor) Tensors;

static void
add_tensors(const Describer *d, const Finding *found, uint32_t access, Tensors *out)
{
	bool is_result = access == ACCESS_WRITE;

	for (int i = 0; i < found->n_args; i++) {
		const Watched *w = &found->args[i];

		bool is_kept = !is_result &&
		               (w->access & ACCESS_PART); /* other kernels have written it */
		if (!(w->access & access) || is_kept || (is_result && range_is_finite(&w->after)))
			continue;
		GradcTensor t = describe_tensor(d, found->program, w, is_result);
		if (!is_result && found->cause == CAUSE_MADE)
			t.since = describe_origin(d, w);
		vec_push(d->arena, out, t);
	}
}

const GradcNotFinite *
finder_describe(const Gradc *run, const Cause *cause)
{
	const Describer d = {run->arena, run, &run->format};
	const Finding *found = finder_get(run->executor.finder, cause->first);
	const Finding *nan = finder_get(run->executor.finder, cause->nan);
	Tensors tensors = {0};

	if (!found)
		return NULL;
	bool made = found->cause == CAUSE_MADE;
	OriginNodes nodes = origin_nodes(d.arena, d.format, found->instruction);
	GradcNotFinite *out = NEW(run->arena, GradcNotFinite);
	if (made)
		add_tensors(&d, found, ACCESS_WRITE, &tensors);
	add_tensors(&d, found, ACCESS_READ, &tensors);
	*out = (GradcNotFinite){.nodes = nodes.forward,
	                        .gradients = nodes.gradients,
	                        .phase = made ? phase_names[found->instruction->phase] : "",
	                        .micro_batch = found->micro.index + 1,
	                        .tensors = tensors.at,
	                        .n_tensors = tensors.n,
	                        .nan = nan ? instruction_text(&d, nan->instruction) : NULL};
	return out;
}

/* ---- text */
static const char *const unfit_names[GRADC_N_UNFIT] = {"NaN", "inf", "-inf"};

static void
add_range(Text *out, const GradcRange *r)
{
	const char *before = "";
	bool finite = r->least <= r->most;

	for (int k = 0; k < GRADC_N_UNFIT; k++)
		if (r->n[k] > 0) {
			text_printf(out, "%s%lld %s", before, (long long)r->n[k], unfit_names[k]);
			before = ", ";
		}
	if (finite)
		text_printf(out, "%sfrom %g to %g", *before ? ", the rest " : "", r->least,
		            r->most);
}

static void
add_tensor(Text *out, const GradcTensor *t)
{
	text_add(out, t->is_result ? "result " : "operand ");
	add_name(out, t);
	if (t->shape)
		text_printf(out, " (%s%s): ", t->dtype, t->shape);
	else
		text_printf(out, " (%s, %lld elements): ", t->dtype, (long long)t->range.elements);
	add_range(out, &t->range);
	if (t->since)
		text_printf(out, "; %s", t->since);
	text_add(out, "\n");
}

static bool
has_nan(const GradcNotFinite *found)
{
	for (int i = 0; i < found->n_tensors; i++)
		if (found->tensors[i].is_result && found->tensors[i].range.n[GRADC_NAN] > 0)
			return true;
	return false;
}

/* of "/a" (forward, micro-batch 1 of 2) */
static void
add_place(Text *out, const GradcNotFinite *found, int64_t micro_batches)
{
	bool several = found->nodes.n + found->gradients.n > 1;

	add_nodes(out, &found->nodes, &found->gradients);
	text_printf(out, "%s (%s%smicro-batch %lld of %lld)\n",
	            several ? ", which are one kernel" : "", found->phase,
	            *found->phase ? ", " : "", (long long)found->micro_batch,
	            (long long)micro_batches);
}

void
finder_print(Text *out, const GradcNotFinite *found, int64_t micro_batches)
{
	if (*found->phase)
		text_printf(out, "the first %s is a result of ",
		            has_nan(found) ? "NaN" : "infinity");
	else {
		add_name(out, &found->tensors[0]);
		text_add(out, " held it before the step, and was read first by ");
	}
	add_place(out, found, micro_batches);
	for (int i = 0; i < found->n_tensors; i++)
		add_tensor(out, &found->tensors[i]);
	if (found->nan)
		text_printf(out, "the infinity became NaN in %s\n", found->nan);
}

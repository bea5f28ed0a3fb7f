/* Checks gradients against central differences, for --check-gradients: (loss(w + h) - loss(w - h)) / 2h. One micro-batch
 * gives the gradients; then the evaluation program, which has no backward pass, computes the loss with one element moved up
 * and down. The model must be compiled with --eval-mode=as-exported, so that dropout and batch statistics are the same in
 * both programs. */
#include "runtime/data/data.h"
#include "runtime/model/model.h"
#include "runtime/train/steps.h"

#include <stdlib.h>

typedef struct {
	Gradc *run;
	Dataset *data; /* of the program that is run */
	char *image;   /* the program's inputs */
} Pass;

static Status
pass_open(Gradc *run, Role role, const GradcPairs *inputs, Pass *out)
{
	const GradcOptions *o = &run->options;
	DataOptions data = {inputs, &o->fill, &o->scale, &o->mean_std, NULL, NULL, "--input", true};

	*out = (Pass){.run = run};
	if (!program_any(run, role, 0))
		return status_error(EXIT_UNSUPPORTED, "this executable has no %s program",
		                    role_names[role]);
	RETURN_IF_ERROR(dataset_open(run, role, &data, &out->data));
	MicroRows rows = {.dataset = out->data, .end = out->data->micro_rows};
	out->image = arena_alloc(
		run->arena, (size_t)format_space_bytes(&run->format, SPACE_IO, gradc_target(run)));
	return dataset_read(&rows, out->image, NULL);
}

/* Runs the program once, with the sums cleared; returns the loss. */
static Status
pass_run(Pass *p, double *loss)
{
	Gradc *run = p->run;
	const int sums[] = {run->loss_sum, run->loss_count};
	const MicroBatch micro = {0, 1, .alone = true};
	double values[COUNT(sums)];

	for (int i = 0; i < COUNT(sums); i++)
		RETURN_IF_ERROR(run->executor.ops->fill_zero(
			run->executor.device, 0, executor_state(&run->executor, sums[i])));
	hyper_scalars(&run->hyper, 0, 0, executor_scalars(&run->executor, p->data->program));
	/* so that no earlier run still reads the image */
	RETURN_IF_ERROR(executor_drain(&run->executor));
	dataset_write(p->data, &run->executor, p->image);
	RETURN_IF_ERROR(executor_run(&run->executor, p->data->program, &micro));
	for (int i = 0; i < COUNT(sums); i++)
		RETURN_IF_ERROR(read_scalar(run, sums[i], &values[i]));
	*loss = values[0] / values[1];
	run->count = values[1];
	return NULL;
}

/* ---- single elements of states */
static DType
dtype_of(const Gradc *run, int state)
{
	return (DType)run->format.states[state].dtype;
}

static Span
element(const Gradc *run, int state, int64_t at)
{
	Span all = executor_state(&run->executor, state);

	return (Span){all.at + dtype_bytes(dtype_of(run, state), at),
	              dtype_bytes(dtype_of(run, state), 1)};
}

static Status
read_element(Gradc *run, int state, int64_t at, double *out)
{
	char raw[16];

	RETURN_IF_ERROR(executor_read(&run->executor, raw, element(run, state, at)));
	*out = dtype_load_float(dtype_of(run, state), raw, 0);
	return NULL;
}

static Status
write_element(Gradc *run, int state, int64_t at, double value)
{
	char raw[16];

	dtype_store_float(dtype_of(run, state), raw, 0, value);
	return executor_write(&run->executor, element(run, state, at), raw);
}

/* ---- entries */
typedef struct {
	int param; /* number of the parameter's state */
	int64_t at;
	double gradient;
} Entry;
typedef VEC(Entry) Entries;

/* Picks the elements to check: all elements of a small tensor, n random elements of a large one. Copies the gradients of these
 * elements, because the next run may overwrite them. */
static Status
choose_entries(Gradc *run, int64_t n, double factor, Entries *out)
{
	const Format *f = &run->format;
	unsigned short seed[3] = {0};

	for (int i = 0; i < f->n[SECTION_STATES]; i++) {
		const StateRecord *s = &f->states[i];
		int64_t size = format_elements(f, s->first_dim, s->rank);

		if (s->kind != STATE_GRADIENT || !s->of ||
		    f->states[s->of - 1].kind != STATE_PARAMETER)
			continue;
		for (int64_t k = 0; k < n && k < size; k++) {
			Entry e = {.param = (int)s->of - 1,
			           .at = size <= n ? k : (int64_t)(erand48(seed) * (double)size)};
			RETURN_IF_ERROR(read_element(run, i, e.at, &e.gradient));
			e.gradient *= factor;
			vec_push(run->arena, out, e);
		}
	}
	return NULL;
}

typedef struct {
	Pass *loss;
	const Entry *entry;
} Moved;

static Status
loss_at(void *context, double x, double *loss)
{
	const Moved *m = context;

	RETURN_IF_ERROR(write_element(m->loss->run, m->entry->param, m->entry->at, x));
	return pass_run(m->loss, loss);
}

static Status
difference(Pass *loss, const Entry *e, Difference *out)
{
	Gradc *run = loss->run;
	Moved moved = {loss, e};
	double x;

	RETURN_IF_ERROR(read_element(run, e->param, e->at, &x));
	RETURN_IF_ERROR(
		difference_check(loss_at, &moved, dtype_of(run, e->param), x, e->gradient, out));
	return write_element(run, e->param, e->at, x);
}

static Status
check_entries(Pass *loss, const Entries *list, const GradcCheckOptions *o)
{
	const Format *f = &loss->run->format;
	WorstDifference worst;

	for (int i = 0; i < list->n; i++) {
		const Entry *e = &list->at[i];
		Difference d;

		if (i == 0 || list->at[i - 1].param != e->param)
			worst = (WorstDifference){0};
		RETURN_IF_ERROR(difference(loss, e, &d));
		difference_add(&worst, &d, e->gradient, e->at);
		GradcCheck check = {.name = format_text(f, f->states[e->param].name),
		                    .error = worst.error,
		                    .gradient = worst.derivative,
		                    .difference = worst.slope,
		                    .at = worst.at,
		                    .checked = worst.checked,
		                    .kinks = worst.kinks,
		                    .done = i + 1,
		                    .n_entries = list->n};
		check.complete = i + 1 == list->n || list->at[i + 1].param != e->param;
		if (o->report)
			o->report(o->context, &check);
	}
	return NULL;
}

static Status
check_gradients(Gradc *run, Pass *backward, Pass *loss, const GradcCheckOptions *o)
{
	Entries list = {0};
	double value;

	RETURN_IF_ERROR(pass_open(run, ROLE_ACCUMULATE, o->inputs, backward));
	RETURN_IF_ERROR(pass_run(backward, &value));
	double factor;
	RETURN_IF_ERROR(gradient_factor(run, &factor));
	RETURN_IF_ERROR(choose_entries(run, o->entries, factor, &list));
	RETURN_IF_ERROR(pass_open(run, ROLE_EVAL, o->inputs, loss));
	RETURN_IF_ERROR(weights_unmap(run));
	return check_entries(loss, &list, o);
}

Status
gradients_check(Gradc *run, const GradcCheckOptions *o)
{
	Pass backward = {0}, loss = {0};

	if (!o->inputs || o->entries < 1)
		return status_error(EXIT_USAGE, "gradc_check_gradients: need inputs, and one entry "
		                                "of each parameter or more");
	RETURN_IF_ERROR(pairs_check("--input", o->inputs));
	RETURN_IF_ERROR(sharing_needs_whole(run, "--check-gradients"));
	Status status = check_gradients(run, &backward, &loss, o);

	dataset_close(backward.data);
	dataset_close(loss.data);
	return status;
}

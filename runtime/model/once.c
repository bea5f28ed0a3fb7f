/* --once: runs a program a single time on whole inputs, and writes results and gradients as files. */
#include "runtime/data/data.h"
#include "runtime/model/model.h"
#include "runtime/model/values.h"

#include <math.h>
#include <string.h>

/* Gradient states hold a sum over micro-batches. The backward pass of each micro-batch begins with scale / C, where scale is
 * the loss scale and C the compiled number of targets in a micro-batch. So the mean over the step's `count` valid targets is
 * the sum times C / (count scale). */
Status
gradient_factor(Gradc *run, double *out)
{
	int state = format_state_of_kind(&run->format, STATE_LOSS_SCALE);
	double targets = format_info_double(&run->format, "targets_per_micro_batch", 1), scale = 1;

	if (state >= 0)
		RETURN_IF_ERROR(read_scalar(run, state, &scale));
	*out = run->count > 0 ? targets / (run->count * scale) : 0;
	return NULL;
}

Status
once_dump_gradients(Gradc *run, const char *folder)
{
	NamedFiles files;
	double factor;

	RETURN_IF_ERROR(sharing_needs_whole(run, "--dump-gradients"));
	RETURN_IF_ERROR(gradient_factor(run, &factor));
	RETURN_IF_ERROR(named_open(run->arena, folder, &files));
	return named_close(&files, outputs_write_gradients(run, &files, run->loss, factor));
}

/* Checks that a file holds a whole input, with exactly the program's number of rows. */
static Status
check_whole(Gradc *run, const GradcPairs *inputs, const ProgramRecord *p)
{
	const Format *f = &run->format;
	Status fault = NULL;

	for (uint32_t i = 0; i < p->n_inputs; i++) {
		const PortRecord *port = &f->ports[p->first_input + i];
		const char *path = pairs_get(inputs, format_text(f, port->name));
		NpyInfo info;
		FileSet set;

		if (!path || port->sample_axis != 0)
			continue; /* the input's shape is checked when its file is read */
		const GradcPair one = {"", path};
		Status status = files_open(run->arena, &(GradcPairs){(GradcPair *)&one, 1, 1}, "",
		                           &set);
		if (!status) {
			info = set.files[0].info;
			const int64_t *dims = f->dims + port->first_dim;
			bool flat = port->kind == PORT_LABELS &&
			            npy_merges_axes(info.rank, info.dims, (int)port->rank, dims);
			if (!flat && (info.rank != (int)port->rank ||
			              info.dims[0] != f->bindings[p->binding].rows))
				status = status_error(EXIT_DATA, "%s: shape %s, \"%s\" takes %s",
				                      path,
				                      shape_text(run->arena, info.rank, info.dims),
				                      format_text(f, port->name),
				                      shape_text(run->arena, (int)port->rank,
				                                 f->dims + port->first_dim));
		}
		files_close(&set);
		fault = fault_join(run->diag, fault, status);
	}
	return fault;
}

static Status
run_once(Gradc *run, Dataset *d)
{
	Executor *x = &run->executor;
	const MicroBatch micro = {0, 1, .alone = true};
	MicroRows rows = {.dataset = d, .end = d->micro_rows};

	RETURN_IF_ERROR(executor_drain(x)); /* so that no earlier run still reads the image */
	hyper_scalars(&run->hyper, 0, 0, executor_scalars(x, d->program));
	RETURN_IF_ERROR(dataset_read(&rows, executor_image(x, x->turns[TURN_MICRO]), NULL));
	executor_take_image(x, x->turns[TURN_MICRO], NULL);
	return executor_run(x, d->program, &micro);
}

static Status
write_forward(Gradc *run, NamedFiles *files, const ProgramRecord *p)
{
	for (uint32_t i = 0; i < p->n_outputs; i++)
		RETURN_IF_ERROR(
			outputs_write_port(run, files, &run->format.ports[p->first_output + i], 1));
	return NULL;
}

/* Writes the loss and the gradients of parameters and inputs. */
static Status
write_backward(Gradc *run, NamedFiles *files, const ProgramRecord *p)
{
	RETURN_IF_ERROR(read_scalar(run, run->loss_sum, &run->loss));
	RETURN_IF_ERROR(read_scalar(run, run->loss_count, &run->count));
	run->loss /= run->count;
	double factor;
	RETURN_IF_ERROR(gradient_factor(run, &factor));
	RETURN_IF_ERROR(outputs_write_gradients(run, files, run->loss, factor));
	for (uint32_t i = 0; i < p->n_outputs; i++) {
		const PortRecord *port = &run->format.ports[p->first_output + i];

		if (port->kind == PORT_GRADIENT)
			RETURN_IF_ERROR(outputs_write_port(run, files, port, factor));
	}
	return NULL;
}

Status
once_run(Gradc *run, const GradcPairs *inputs, bool backward, const char *folder)
{
	const GradcOptions *o = &run->options;
	Role role = backward ? ROLE_ACCUMULATE : ROLE_FORWARD;
	DataOptions data = {inputs, &o->fill, &o->scale, &o->mean_std, NULL, NULL, "--input", true};
	Dataset *d = NULL;
	NamedFiles files;

	RETURN_IF_ERROR(pairs_check("--input", inputs));
	RETURN_IF_ERROR(sharing_needs_whole(run, "--once"));
	if (!program_any(run, role, 0))
		return status_error(EXIT_UNSUPPORTED, "--once: this executable has no %s program",
		                    role_names[role]);
	Status status = dataset_open(run, role, &data, &d);
	if (!status)
		status = check_whole(run, inputs, d->program);
	if (!status)
		status = run_once(run, d);
	const ProgramRecord *p = d ? d->program : NULL;
	dataset_close(d);
	RETURN_IF_ERROR(status);
	RETURN_IF_ERROR(named_open(run->arena, folder, &files));
	return named_close(&files, backward ? write_backward(run, &files, p)
	                                    : write_forward(run, &files, p));
}

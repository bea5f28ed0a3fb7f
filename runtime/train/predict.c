/* Predictions: runs the program of role forward over all rows of the data. Rank r of W takes every W-th micro-batch, beginning with
 * the r-th; after each round every rank gets the outputs of all, so rank 0 hands them out in the order of the rows. The last
 * micro-batch is padded by repeating its last row, and its outputs are cut. */
#include "runtime/train/steps.h"

#include <string.h>

typedef struct {
	const PortRecord *port;
	PortRows rows;
	GradcOutput out;
	int64_t row_bytes; /* of a row in the file's type */
	char *raw;         /* a copy of the port */
	bool wanted;
	int64_t at; /* its place in a record, if wanted */
} Predicted;
struct Predictor {
	MetricTask task;
	Dataset *data;
	Predicted *outputs;
	GradcOutput *public;
	int n;
	int64_t record_bytes;
};

/* What a rank sends in each round: this header, then the rows of each output. */
typedef struct {
	int64_t rows;
	int64_t ends; /* the rank cannot go on: ENDS_... */
} Record;
enum { GOES_ON, ENDS_INTERRUPTED, ENDS_FAULT };

/* ---- binding */
static void
describe_row(const Gradc *run, const PortRecord *p, const PortRows *rows, GradcOutput *out)
{
	const int64_t *dims = run->format.dims + p->first_dim;
	int64_t inside = dims[p->row_axis] / run->predictor->data->micro_rows;

	/* what the row axis holds besides rows becomes an axis of its own */
	for (int i = 0; i < (int)p->rank; i++)
		if (i != (int)p->row_axis)
			out->dims[out->rank++] = dims[i];
		else if (inside > 1)
			out->dims[out->rank++] = inside;
	out->elements = rows->before * rows->after;
}

static Status
describe_outputs(Gradc *run, Predictor *p)
{
	const Format *f = &run->format;
	const ProgramRecord *program = p->data->program;

	p->outputs = NEW_ARRAY(run->arena, Predicted, program->n_outputs);
	p->public = NEW_ARRAY(run->arena, GradcOutput, program->n_outputs);
	for (uint32_t i = 0; i < program->n_outputs && p->n < GRADC_MAX_OUTPUTS; i++) {
		const PortRecord *port = &f->ports[program->first_output + i];
		Predicted *o = &p->outputs[p->n];

		if (!format_port_rows(f, port, p->data->micro_rows, &o->rows))
			continue;
		o->port = port;
		o->out = (GradcOutput){
			.name = format_text(f, port->name),
			.dtype = result_dtype((DType)port->dtype, (DType)port->file_dtype),
			.is_compared = port->compared != COMPARED_NOT};
		describe_row(run, port, &o->rows, &o->out);
		o->row_bytes = dtype_bytes(o->out.dtype, o->out.elements);
		o->raw = arena_alloc(run->arena,
		                     (size_t)dtype_bytes((DType)port->dtype,
		                                         o->out.elements * p->data->micro_rows));
		p->public[p->n++] = o->out;
	}
	return p->n > 0 ? NULL
	                : status_error(EXIT_UNSUPPORTED,
	                               "predict: no output of the model has an axis that counts "
	                               "rows; --once runs it");
}

/* A last micro-batch that is not full can only be padded if no row depends on the others. */
static Status
check_padding(const Predictor *p)
{
	long long rows = p->data->rows, each = p->data->micro_rows;

	for (int i = 0; i < p->n && rows % each != 0; i++)
		if (p->outputs[i].port->mixes_rows)
			return status_error(
				EXIT_DATA,
				"--data: %lld rows do not fill batches of %lld, and a batch cannot be "
				"padded: a row of output \"%s\" depends on the other rows of its batch; "
				"compile with a --batch that divides the rows",
				rows, each, p->outputs[i].out.name);
	return NULL;
}

static Status
open_predictor(Gradc *run)
{
	const GradcOptions *o = &run->options;
	DataOptions data = {&o->data,  &o->fill, &o->scale, &o->mean_std,
	                    o->tokens, o->text,  "--data",  .spare = true};
	Predictor *p = run->predictor = NEW(run->arena, Predictor);

	RETURN_IF_ERROR(dataset_open(run, ROLE_FORWARD, &data, &p->data));
	p->task = metric_task(&run->format, p->data->program);
	RETURN_IF_ERROR(describe_outputs(run, p));
	RETURN_IF_ERROR(check_padding(p));
	return trainer_open_prefetch(run);
}

Status
predict_bind(Gradc *run, GradcPredictions *out)
{
	*out = (GradcPredictions){0};
	RETURN_IF_ERROR(trainer_bind(run, open_predictor));
	*out = (GradcPredictions){run->predictor->public, run->predictor->n,
	                          run->predictor->data->rows};
	return NULL;
}

const Dataset *
predict_data(const Gradc *run)
{
	return run->predictor ? run->predictor->data : NULL;
}

void
predict_close(Gradc *run)
{
	if (run->predictor)
		dataset_close(run->predictor->data);
	run->predictor = NULL;
}

const MetricTask *
predict_task(const Gradc *run)
{
	return &run->predictor->task;
}

/* ---- a round */
static MicroRows
rows_of(const Gradc *run, int64_t round)
{
	Dataset *d = run->predictor->data;
	int64_t part = round * gradc_ranks(run) + gradc_rank(run);
	int64_t first = part * d->micro_rows, end = first + d->micro_rows;

	first = first < d->rows ? first : d->rows;
	return (MicroRows){d, 0, first, end < d->rows ? end : d->rows};
}

/* The rows that the program computes. If it gathers weights from other ranks, a rank without rows computes others' rows. */
static MicroRows
pass_of(const Gradc *run, int64_t round)
{
	Dataset *d = run->predictor->data;
	MicroRows rows = rows_of(run, round);

	if (rows.first < d->rows || round * gradc_ranks(run) * d->micro_rows >= d->rows ||
	    !has_collective(&run->format, d->program))
		return rows;
	return (MicroRows){d, 0, 0, d->micro_rows < d->rows ? d->micro_rows : d->rows};
}

/* Copies the first n rows, one after the other, in the file's type. */
static void
pack(const Predicted *o, int64_t micro_rows, int64_t n, char *to)
{
	DType from = (DType)o->port->dtype;
	int64_t bytes = dtype_bytes(from, o->rows.after);
	int64_t out = dtype_bytes(o->out.dtype, o->rows.after);

	for (int64_t r = 0; r < n; r++)
		for (int64_t b = 0; b < o->rows.before; b++, to += out) {
			const char *at = o->raw + (b * micro_rows + r) * bytes;
			if (from == o->out.dtype)
				memcpy(to, at, (size_t)bytes);
			else
				dtype_convert(o->out.dtype, to, from, at, o->rows.after);
		}
}

/* A run over all rows. */
typedef struct {
	Gradc *run;
	const GradcPredict *options;
	Record *own; /* this rank's */
	char *all;   /* those of all ranks */
	/* why this rank cannot go on: unread rows, or outputs that could not be handed out. Owned */
	Status fault;
} Rounds;

static Status
run_rows(Rounds *x, int64_t round)
{
	Gradc *run = x->run;
	Predictor *p = run->predictor;
	Executor *e = &run->executor;
	const MicroBatch micro = {0, 1, false};
	MicroRows rows = pass_of(run, round), next = pass_of(run, round + 1);
	DataWait wait;

	RETURN_IF_ERROR(unread_take(run, &rows, &x->fault, &wait));
	hyper_scalars(&run->hyper, run->step, rows.first, executor_scalars(e, p->data->program));
	if (next.first < p->data->rows)
		prefetch_ask(run->prefetch, &next);
	RETURN_IF_ERROR(executor_run(e, p->data->program, &micro));
	for (int i = 0; i < p->n; i++) {
		Predicted *o = &p->outputs[i];
		Span from = executor_slot(e, o->port->slot);
		if (!o->wanted)
			continue;
		from.bytes = dtype_bytes((DType)o->port->dtype,
		                         o->out.elements * p->data->micro_rows);
		RETURN_IF_ERROR(executor_read(e, o->raw, from));
		pack(o, p->data->micro_rows, x->own->rows, (char *)x->own + o->at);
	}
	return NULL;
}

/* Hands out the rows of a rank's record. */
static Status
take_record(const Rounds *x, const Record *record)
{
	const Predictor *p = x->run->predictor;
	const void *at[GRADC_MAX_OUTPUTS];
	int n = 0;

	for (int i = 0; i < p->n; i++)
		if (p->outputs[i].wanted)
			at[n++] = (const char *)record + p->outputs[i].at;
	return record->rows > 0 ? x->options->take(x->options->context, record->rows, at) : NULL;
}

static int64_t
why_end(const Rounds *x)
{
	const GradcOptions *o = &x->run->options;

	if (x->fault)
		return ENDS_FAULT;
	return o->interrupted && o->interrupted(o->interrupted_context) ? ENDS_INTERRUPTED
	                                                                : GOES_ON;
}

static Status
run_round(Rounds *x, int64_t round)
{
	Gradc *run = x->run;
	Predictor *p = run->predictor;
	const Comm *comm = &run->comm;
	MicroRows rows = rows_of(run, round);
	int64_t ends = GOES_ON;

	*x->own = (Record){rows.end - rows.first, GOES_ON};
	if (pass_of(run, round).first < p->data->rows)
		RETURN_IF_ERROR(run_rows(x, round));
	x->own->ends = why_end(x);
	if (comm->size > 1)
		RETURN_IF_ERROR(comm->control_ops->all_gather(comm->control, x->own, x->all,
		                                              p->record_bytes));
	for (int r = 0; r < comm->size; r++) {
		const Record *record = (const void *)(x->all + r * p->record_bytes);
		ends = record->ends > ends ? record->ends : ends;
	}
	if (ends == ENDS_INTERRUPTED)
		return status_error(EXIT_PREEMPTED, "the predictions were ended");
	for (int r = 0; r < comm->size && ends == GOES_ON && comm->rank == 0 && !x->fault; r++)
		x->fault = take_record(x, (const void *)(x->all + r * p->record_bytes));
	if (ends == GOES_ON && (comm->size > 1 || !x->fault))
		return NULL; /* the other ranks hear of a fault in the next round, or after the last one */
	Status fault = x->fault;
	x->fault = NULL;
	return ranks_share(run, fault);
}

static Status
run_rounds(Rounds *x)
{
	const Predictor *p = x->run->predictor;
	int64_t each = p->data->micro_rows * gradc_ranks(x->run);

	for (int64_t round = 0; round * each < p->data->rows; round++)
		RETURN_IF_ERROR(run_round(x, round));
	Status fault = x->fault;
	x->fault = NULL;
	return ranks_share(x->run, fault);
}

/* Lays out the records. */
static void
pick_outputs(Predictor *p, int only)
{
	p->record_bytes = (int64_t)sizeof(Record);
	for (int i = 0; i < p->n; i++) {
		Predicted *o = &p->outputs[i];
		o->wanted = only < 0 || only == i;
		o->at = p->record_bytes;
		if (o->wanted)
			p->record_bytes += (o->row_bytes * p->data->micro_rows + 7) / 8 * 8;
	}
}

Status
predict_run(Gradc *run, const GradcPredict *options)
{
	Rounds x = {.run = run, .options = options};
	int ranks = gradc_ranks(run);

	if (!run->predictor)
		return status_error(EXIT_USAGE,
		                    "no data are bound: gradc_bind_predict_data comes first");
	run->executor.observer = NULL;
	run->fault_is_shared = false;
	pick_outputs(run->predictor, options->only);
	Arena *arena = arena_new();
	x.own = arena_alloc(arena, (size_t)run->predictor->record_bytes);
	x.all = (char *)x.own;
	if (ranks > 1)
		x.all = arena_alloc(arena, (size_t)(run->predictor->record_bytes * ranks));
	Status status = run_rounds(&x);
	status_free(x.fault);
	arena_free(arena);
	return status;
}

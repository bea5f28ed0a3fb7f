/* Metrics of an evaluation. Metrics that need outputs run the program of role forward beside the program of role eval, on the same
 * rows. From output and labels each rank makes a record of its micro-batch. All ranks exchange the records of a round, and add
 * them in the order of the micro-batches; so every rank has the metrics, with the same bits as a single rank. */
#include "runtime/train/steps.h"

#include <math.h>
#include <string.h>

struct EvalMetrics {
	MetricTask task;
	Metric metrics[GRADC_MAX_METRICS];
	int n, chosen;    /* chosen: the number of options.metric */
	Dataset *forward; /* NULL: no metric needs outputs */
	bool scores;      /* the metric auc is computed */
	const PortRecord *labels, *output;
	PortRows label_rows, output_rows;
	char *label_copy, *output_copy;
	Arena *results; /* results of the last evaluation */
	MetricSums *sums;
	char *record, *records; /* this rank's; those of all ranks */
	GradcByClass by_class;
};

/* ---- the choice of metrics */
/* The labels of the program of role eval; NULL: the model computes its own loss. */
static const PortRecord *
labels_of(const Gradc *run, const ProgramRecord *eval)
{
	for (uint32_t i = 0; eval && i < eval->n_inputs; i++)
		if (run->format.ports[eval->first_input + i].kind == PORT_LABELS)
			return &run->format.ports[eval->first_input + i];
	return NULL;
}

MetricTask
eval_metrics_task(const Gradc *run, int binding)
{
	const GradcOptions *o = &run->options;
	const ProgramRecord *forward = program_any(run, ROLE_FORWARD, binding);
	const ProgramRecord *eval = program_any(run, ROLE_EVAL, binding);
	MetricTask task = {.output = -1, .classes = 1, .per_row = 1, .columns = 1};

	if (forward && labels_of(run, eval))
		task = metric_task(&run->format, forward);
	task.is_text = o->eval_text || (o->split && o->text);
	return task;
}

static bool
is_auc(const Metric *m)
{
	return m->row->of_sums && m->row == metric_find("auc").row;
}

static void
add_metric(EvalMetrics *e, const Metric *m)
{
	for (int i = 0; i < e->n; i++)
		if (strcmp(e->metrics[i].name, m->name) == 0)
			return;
	if (e->n < GRADC_MAX_METRICS)
		e->metrics[e->n++] = *m;
}

/* The metrics that the program of role eval gives anyway, the one of options.metric, or all. A list of all leaves out the AUC of
 * so many rows that their scores are too many to keep. */
static Status
choose(Gradc *run, EvalMetrics *e)
{
	const char *name = run->best.metric;
	Metric chosen, all[GRADC_MAX_METRICS];
	int n = metric_list(&e->task, all, GRADC_MAX_METRICS - 1);

	RETURN_IF_ERROR(metric_check(run->arena, name, &e->task, &chosen));
	if (is_auc(&chosen))
		RETURN_IF_ERROR(sums_check_scores(&e->task, run->eval->rows));
	for (int i = 0; i < n; i++) {
		Status many = is_auc(&all[i]) ? sums_check_scores(&e->task, run->eval->rows) : NULL;
		if (!many &&
		    (run->options.every_metric || !metric_needs_outputs(&all[i], &e->task)))
			add_metric(e, &all[i]);
		status_free(many);
	}
	add_metric(e, &chosen);
	for (int i = 0; i < e->n; i++) {
		e->chosen = strcmp(e->metrics[i].name, name) == 0 ? i : e->chosen;
		e->scores |= is_auc(&e->metrics[i]);
	}
	return NULL;
}

static int64_t
port_bytes(const Format *f, const PortRecord *p)
{
	return dtype_bytes((DType)p->dtype, format_elements(f, p->first_dim, p->rank));
}

/* Labels have one row axis, sample_axis. */
static PortRows
label_rows(const Format *f, const PortRecord *p)
{
	uint32_t axis = p->sample_axis < 0 ? 0 : (uint32_t)p->sample_axis;

	return (PortRows){format_elements(f, p->first_dim, axis),
	                  format_elements(f, p->first_dim + axis + 1, p->rank - axis - 1)};
}

static Status
open_forward(Gradc *run, EvalMetrics *e)
{
	const Format *f = &run->format;
	DataOptions options = eval_data_options(&run->options);

	options.like = run->eval;
	options.spare = true;
	RETURN_IF_ERROR(dataset_open(run, ROLE_FORWARD, &options, &e->forward));
	e->forward->split = run->eval->split;
	e->forward->held_out = run->eval->held_out;
	e->forward->rows = run->eval->rows;
	e->labels = labels_of(run, run->eval->program);
	e->output = &f->ports[e->forward->program->first_output + (uint32_t)e->task.output];
	e->label_rows = label_rows(f, e->labels);
	if (!format_port_rows(f, e->output, run->eval->micro_rows, &e->output_rows) ||
	    e->label_rows.before * e->label_rows.after != e->task.per_row)
		return status_error(EXIT_SYSTEM, "the executable's tables are damaged: labels and "
		                                 "output have different rows");
	e->label_copy = arena_alloc(run->arena, (size_t)port_bytes(f, e->labels));
	e->output_copy = arena_alloc(run->arena, (size_t)port_bytes(f, e->output));
	return NULL;
}

Status
eval_metrics_update(Gradc *run)
{
	EvalMetrics *e = run->eval_metrics;
	bool outputs = false;

	if (!e)
		return NULL;
	RETURN_IF_ERROR(choose(run, e));
	for (int i = 0; i < e->n; i++)
		outputs |= metric_needs_outputs(&e->metrics[i], &e->task);
	return outputs && !e->forward ? open_forward(run, e) : NULL;
}

Status
eval_metrics_bind(Gradc *run)
{
	run->eval_metrics = NEW(run->arena, EvalMetrics);
	run->eval_metrics->task = eval_metrics_task(run, run->eval->binding);
	return eval_metrics_update(run);
}

void
eval_metrics_close(Gradc *run)
{
	EvalMetrics *e = run->eval_metrics;

	if (!e)
		return;
	dataset_close(e->forward);
	arena_free(e->results);
	run->eval_metrics = NULL;
}

int64_t
eval_classes(const Gradc *run)
{
	return run->eval_metrics ? task_classes(&run->eval_metrics->task) : 0;
}

/* ---- an evaluation */
bool
eval_metrics_rows(const Gradc *run, const MicroRows *rows, bool own, MicroRows *out)
{
	*out = *rows;
	out->dataset = run->eval_metrics->forward;
	return out->dataset && (own || has_collective(&run->format, out->dataset->program));
}

Status
eval_metrics_begin(Gradc *run)
{
	EvalMetrics *e = run->eval_metrics;
	int ranks = gradc_ranks(run);

	arena_free(e->results);
	e->results = arena_new();
	if (!e->forward)
		return NULL;
	e->sums = sums_new(e->results, &e->task, run->eval->micro_rows, e->scores);
	int64_t bytes = sums_record_bytes(e->sums);
	e->record = arena_alloc(e->results, (size_t)bytes);
	e->records = ranks > 1 ? arena_alloc(e->results, (size_t)(bytes * ranks)) : e->record;
	return NULL;
}

void
eval_metrics_keep_labels(Gradc *run)
{
	EvalMetrics *e = run->eval_metrics;

	memcpy(e->label_copy, executor_host(&run->executor, e->labels->slot),
	       (size_t)port_bytes(&run->format, e->labels));
}

Status
eval_metrics_run(Gradc *run, const MicroRows *rows)
{
	EvalMetrics *e = run->eval_metrics;
	Executor *x = &run->executor;
	const ProgramRecord *p = e->forward->program;
	const MicroBatch micro = {0, 1, false};
	int64_t all = e->forward->micro_rows;
	const Batch labels = {e->label_copy, (DType)e->labels->dtype, e->label_rows.before, all,
	                      e->label_rows.after};
	const Batch output = {e->output_copy, (DType)e->output->dtype, e->output_rows.before, all,
	                      e->output_rows.after};
	Span from = executor_slot(x, e->output->slot);

	hyper_scalars(&run->hyper, run->step, rows->first, executor_scalars(x, p));
	RETURN_IF_ERROR(executor_run(x, p, &micro));
	from.bytes = port_bytes(&run->format, e->output);
	RETURN_IF_ERROR(executor_read(x, e->output_copy, from));
	sums_record(e->sums, &output, &labels, rows->end - rows->first, e->record);
	return NULL;
}

Status
eval_metrics_add(Gradc *run, bool own)
{
	EvalMetrics *e = run->eval_metrics;
	const Comm *comm = &run->comm;
	int64_t bytes = e->sums ? sums_record_bytes(e->sums) : 0;

	if (!e->forward)
		return NULL;
	if (!own)
		memset(e->record, 0, (size_t)bytes);
	if (comm->size > 1)
		RETURN_IF_ERROR(
			comm->control_ops->all_gather(comm->control, e->record, e->records, bytes));
	for (int r = 0; r < comm->size; r++)
		sums_add(e->sums, e->records + r * bytes);
	return NULL;
}

/* The metric's value from the sums over outputs. */
static double
value_of(const EvalMetrics *e, const char *name)
{
	Metric m = metric_find(name);

	return m.row->of_sums(e->sums, &m);
}

Status
eval_metrics_finish(Gradc *run, const LossSums *sums, GradcEval *out)
{
	EvalMetrics *e = run->eval_metrics;
	ByClass by_class;

	for (int i = 0; i < e->n; i++) {
		const Metric *m = &e->metrics[i];
		double value = metric_needs_outputs(m, &e->task) ? m->row->of_sums(e->sums, m)
		                                                 : m->row->of_loss(sums);
		out->metrics[i] = (GradcMetric){m->name, value, m->row->higher_is_better,
		                                m->row->is_field};
	}
	out->n_metrics = e->n;
	if (e->task.weighted) /* the sums of the loss do not give it */
		out->accuracy = e->sums ? value_of(e, "accuracy") : NAN;
	out->metric = out->metrics[e->chosen];
	if (!run->options.every_metric || !e->forward ||
	    !sums_by_class(e->results, e->sums, &by_class))
		return NULL;
	e->by_class = (GradcByClass){by_class.classes, by_class.precision, by_class.recall,
	                             by_class.f1,      by_class.support,   by_class.confusion};
	out->by_class = &e->by_class;
	return NULL;
}

/* Evaluation: loss and metrics over the rows of the evaluation data. Rank r of W takes every W-th micro-batch, beginning with
 * the r-th. The sums of all micro-batches are added in the order of the micro-batches, as the device of a single rank adds
 * them. So the loss has the same bits with any number of ranks. That matters because schedules and --keep-best depend on the
 * loss. */
#include "runtime/data/data.h"
#include "runtime/train/steps.h"

#include <limits.h>
#include <math.h>
#include <string.h>

enum { COUNTED_LOSS, COUNTED_TARGETS, COUNTED_CORRECT, N_COUNTED };
typedef struct {
	Gradc *run;
	Dataset *data;
	int64_t covered; /* number of rows */
	/* micro-batches per rank; in the last round some ranks may have none */
	int64_t rounds;
	/* for each counted quantity: the state that holds its sum; -1 if the model does not count the quantity */
	int state[N_COUNTED];
	/* sums of each of this rank's micro-batches; NULL with one rank, because there the device adds the micro-batches up */
	double (*own)[N_COUNTED];
	double sums[N_COUNTED]; /* NaN if the model does not count the quantity */
	MicroBatch micro;
	Status unread; /* why this rank could not read its rows; NULL if it could. Owned */
} Evaluation;

static int64_t
lower(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* Rows of this rank's micro-batch in that round; an empty range at `covered` if no rows are left. */
static MicroRows
rows_of(const Evaluation *e, int64_t round)
{
	Dataset *d = e->data;
	int64_t part = round * gradc_ranks(e->run) + gradc_rank(e->run);
	int64_t first = lower(part * d->micro_rows, e->covered);

	return (MicroRows){d, 0, first, lower(first + d->micro_rows, e->covered)};
}

bool
has_collective(const Format *f, const ProgramRecord *p)
{
	for (uint32_t i = 0; i < p->n_instructions; i++)
		if (f->instructions[p->first_instruction + i].kind == COLLECTIVE)
			return true;
	return false;
}

/* The rows that a forward pass computes. If a forward pass gathers weights from other ranks, all ranks must make the same
 * number of passes: a rank without rows in the last round computes another rank's rows and does not count the result. */
static MicroRows
pass_of(const Evaluation *e, int64_t round)
{
	Dataset *d = e->data;
	MicroRows rows = rows_of(e, round);

	if (rows.first < e->covered || round >= e->rounds ||
	    !has_collective(&e->run->format, d->program))
		return rows;
	return (MicroRows){d, 0, 0, lower(d->micro_rows, e->covered)};
}

/* Asks for the rows that are needed next, so that they are read ahead. After the last micro-batch of an evaluation these are
 * the rows of the next training step. */
static void
ask_next(const Evaluation *e, int64_t round)
{
	MicroRows next = pass_of(e, round + 1);

	if (next.first < e->covered)
		prefetch_ask(e->run->prefetch, &next);
	else
		step_ask_first(e->run);
}

/* ---- sums */
static Status
clear_counts(const Evaluation *e)
{
	const Executor *x = &e->run->executor;

	for (int i = 0; i < N_COUNTED; i++)
		if (e->state[i] >= 0)
			RETURN_IF_ERROR(
				x->ops->fill_zero(x->device, 0, executor_state(x, e->state[i])));
	return NULL;
}

static Status
read_counts(const Evaluation *e, double out[N_COUNTED])
{
	for (int i = 0; i < N_COUNTED; i++) {
		out[i] = NAN;
		if (e->state[i] >= 0)
			RETURN_IF_ERROR(read_scalar(e->run, e->state[i], &out[i]));
	}
	return NULL;
}

/* Adds in the same way as the device: the sum is rounded to the state's type. */
static double
add_as(DType dtype, double sum, double term)
{
	char raw[16];

	if (!dtype_is_float(dtype))
		return sum + term;
	dtype_store_float(dtype, raw, 0, sum + term);
	return dtype_load_float(dtype, raw, 0);
}

/* Adds up the sums of all micro-batches. all: the sums of `rounds` micro-batches of rank 0, then of rank 1, and so on. */
static void
add_up(Evaluation *e, const double (*all)[N_COUNTED])
{
	for (int i = 0; i < N_COUNTED; i++) {
		if (e->state[i] < 0)
			continue;
		DType dtype = (DType)e->run->format.states[e->state[i]].dtype;
		e->sums[i] = 0;
		for (int64_t round = 0; round < e->rounds; round++)
			for (int r = 0; r < gradc_ranks(e->run); r++)
				e->sums[i] = add_as(dtype, e->sums[i],
				                    all[r * e->rounds + round][i]);
	}
}

static Status
sum_over_ranks(Evaluation *e)
{
	const Comm *comm = &e->run->comm;
	int64_t bytes = e->rounds * (int64_t)sizeof(*e->own);
	Arena *arena = arena_new();
	void *all = arena_alloc(arena, (size_t)(bytes * comm->size));
	Status status = comm->control_ops->all_gather(comm->control, e->own, all, bytes);

	if (!status)
		add_up(e, all);
	arena_free(arena);
	return status ? status : unread_share(e->run, e->sums[COUNTED_TARGETS], &e->unread);
}

/* ---- one micro-batch */
static Status
run_rows(Evaluation *e, const MicroRows *rows, int64_t round)
{
	Gradc *run = e->run;
	bool counts = rows_of(e, round).first < e->covered;
	MicroRows of_forward;
	DataWait wait;

	RETURN_IF_ERROR(unread_take(run, rows, &e->unread, &wait));
	hyper_scalars(&run->hyper, run->step, rows->first,
	              executor_scalars(&run->executor, e->data->program));
	bool forward = eval_metrics_rows(run, rows, counts, &of_forward);
	if (forward) {
		eval_metrics_keep_labels(run);
		prefetch_ask(run->prefetch, &of_forward);
	} else
		ask_next(e, round);
	RETURN_IF_ERROR(executor_run(&run->executor, e->data->program, &e->micro));
	e->micro.index++;
	if (!forward)
		return NULL;
	RETURN_IF_ERROR(unread_take(run, &of_forward, &e->unread, &wait));
	ask_next(e, round);
	return eval_metrics_run(run, &of_forward);
}

static Status
run_round(Evaluation *e, int64_t round)
{
	MicroRows rows = pass_of(e, round);
	bool counts = rows_of(e, round).first < e->covered;

	if (rows.first >= e->covered)
		return eval_metrics_add(e->run, false);
	if (e->own)
		RETURN_IF_ERROR(clear_counts(e));
	RETURN_IF_ERROR(run_rows(e, &rows, round));
	if (e->own && counts)
		RETURN_IF_ERROR(read_counts(e, e->own[round]));
	if (e->unread)
		e->own[round][COUNTED_TARGETS] = NAN;
	return eval_metrics_add(e->run, counts);
}

/* ---- ending early */
/* The next round in which all ranks ask whether one of them is interrupted. The slowest rank decides how many rounds lie
 * between two questions. */
typedef struct {
	int64_t round, every;
	double asked;
} Question;

static Status
ask_interrupted(const Evaluation *e, int64_t round, Question *q, bool *out)
{
	enum { MOST_ROUNDS = 1 << 20 };
	const double seconds = 0.2; /* time between two questions */
	const GradcOptions *o = &e->run->options;
	bool own = o->interrupted && o->interrupted(o->interrupted_context);
	int most;

	*out = own;
	if (gradc_ranks(e->run) == 1)
		return NULL;
	*out = false;
	if (round < q->round)
		return NULL;
	double rounds = (double)q->every * seconds / fmax(seconds_now() - q->asked, 1e-9);
	/* grows at most fourfold: the first rounds may be unusually short */
	double most_rounds = fmin(4 * (double)q->every, MOST_ROUNDS);
	int64_t every = (int64_t)fmin(fmax(rounds, 1), most_rounds);
	RETURN_IF_ERROR(ranks_agree(e->run, own ? INT_MAX : MOST_ROUNDS - (int)every, &most));
	*out = most == INT_MAX;
	*q = (Question){round + MOST_ROUNDS - most, MOST_ROUNDS - most, seconds_now()};
	return NULL;
}

/* Evaluates the rows in the order of the file. */
static Status
run_all(Evaluation *e)
{
	Question q = {.round = 1, .every = 1, .asked = seconds_now()};
	bool ends = false;

	RETURN_IF_ERROR(clear_counts(e));
	RETURN_IF_ERROR(eval_metrics_begin(e->run));
	for (int64_t round = 0; round < e->rounds; round++) {
		RETURN_IF_ERROR(ask_interrupted(e, round, &q, &ends));
		if (ends)
			return status_error(
				EXIT_PREEMPTED, "the evaluation was ended before row %lld of %lld",
				(long long)rows_of(e, round).first, (long long)e->covered);
		RETURN_IF_ERROR(run_round(e, round));
	}
	return e->own ? sum_over_ranks(e) : read_counts(e, e->sums);
}

static Status
evaluate(Evaluation *e, GradcEval *out)
{
	Gradc *run = e->run;
	Dataset *d = e->data;
	Arena *arena = arena_new();
	int ranks = gradc_ranks(run);

	e->covered = eval_covered_rows(run);
	e->micro = (MicroBatch){0, e->covered / d->micro_rows + 1, false};
	int64_t parts = (e->covered + d->micro_rows - 1) / d->micro_rows;
	e->rounds = (parts + ranks - 1) / ranks;
	if (ranks > 1)
		e->own = (double(*)[N_COUNTED])NEW_ARRAY(arena, double, N_COUNTED *(e->rounds + 1));
	Status status = run_all(e);
	arena_free(arena);
	out->rows = e->covered;
	out->all_rows = d->rows;
	out->left_out = eval_left_out(run);
	return status;
}

Status
step_evaluate(Gradc *run, GradcEval *out)
{
	Evaluation e = {.run = run,
	                .data = run->eval,
	                .state = {run->loss_sum, run->loss_count, run->metric_correct}};
	double start = seconds_now();

	*out = (GradcEval){.loss = NAN, .accuracy = NAN, .perplexity = NAN};
	RETURN_IF_ERROR(step_check_accumulated(run));
	if (!run->eval)
		return status_error(EXIT_USAGE, "there are no evaluation data");
	run->executor.observer = NULL;
	run->fault_is_shared = false;
	Status status = evaluate(&e, out);
	status_free(e.unread); /* an evaluation that ended early may have left a fault here */
	RETURN_IF_ERROR(status);
	observe_span(run, "evaluation", start, -1);
	/* nothing ran: the states still hold the sums of an earlier evaluation */
	if (out->rows == 0)
		return NULL;
	out->count = e.sums[COUNTED_TARGETS];
	out->loss = out->count != 0 ? without_sign(e.sums[COUNTED_LOSS] / out->count) : NAN;
	out->accuracy = out->count != 0 ? e.sums[COUNTED_CORRECT] / out->count : NAN;
	if (format_info_is(&run->format, "eval_metric", "perplexity"))
		out->perplexity = exp(out->loss);
	const LossSums sums = {out->loss, e.sums[COUNTED_CORRECT], out->count};
	RETURN_IF_ERROR(eval_metrics_finish(run, &sums, out));
	out->seconds = seconds_now() - start;
	return NULL;
}

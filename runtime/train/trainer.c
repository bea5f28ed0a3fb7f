/* Opens and closes a training run (Gradc), binds its data, and implements the calls of gradc.h that return information about
 * the run. */
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/library/library.h"
#include "runtime/model/model.h"
#include "runtime/train/steps.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const int gradc_abi_17 = 17; /* compiled objects refer to this symbol */

GradcOptions
gradc_default_options(void)
{
	return (GradcOptions){
		.steps = -1,
		.epochs = -1,
		.accumulate = 1,
		.shuffle = true,
		.lr_schedule = "constant",
#define HYPER(index, name, option, below, help) .name = NAN,
#include "base/numbers/optimizer_list.def"
		.min_lr = NAN,
		.clip_norm = NAN,
		.clip_value = NAN,
		.libraries = true,
		.keep_data = 64ll << 20,
		.communicator = "self",
		.shard_bytes = 4ll << 30,
	};
}

/* Are all programs so short that one thread is faster than several? Starting other threads on a kernel, and moving results
 * between the caches, takes microseconds per kernel. With one thread instead of several, the example mlp_digits needs 0.5 to
 * 0.7 times the time, cnn_mnist 0.7 times with batch 1 but 1.08 times with batch 8. */
static bool
has_short_programs(const Format *f, int target)
{
	enum { SHORT = 1500000 }; /* estimated nanoseconds */

	for (int i = 0; i < f->n[SECTION_PROGRAMS]; i++)
		if (f->programs[i].target == (uint32_t)target &&
		    program_estimate(f, &f->programs[i]) > SHORT)
			return false;
	return true;
}

DeviceOptions
device_options(const Format *f, int target, int ordinal, const GradcOptions *o)
{
	return (DeviceOptions){
		.ordinal = ordinal,
		.threads = o->threads == 0 && has_short_programs(f, target) ? 1 : (int)o->threads,
		.deterministic = o->deterministic,
		.no_libraries = !o->libraries,
		.tf32 = format_info_is(f, "allow_tf32", "1")};
}

/* Reads the executable's tables, and lists the variants of the kernels that this machine can run. */
static Status
open_tables(Gradc *run, const GradcModel *model, uint64_t *variants)
{
	if (model->abi != GRADC_ABI)
		return status_error(
			EXIT_SYSTEM,
			"the model was compiled by another gradc: its interface is %lld, "
			"the runtime's %d",
			(long long)model->abi, GRADC_ABI);
	RETURN_IF_ERROR(device_choose(model->images, run->options.device, run->options.target,
	                              &run->device));
	if (run->device.why_not_gpu && run->diag && gradc_rank(run) == 0)
		diag_warning(run->diag, "no GPU is used: %s", run->device.why_not_gpu->message);
	RETURN_IF_ERROR(variant_list(model->images, run->options.target, &run->device, variants));
	return format_read(model->blob, model->bytes, &run->format);
}

/* Picks the code for updates that run on the host's processors; NULL if the device is the CPU, which runs its own code. */
static Status
pick_host(Gradc *run, const CodeImage **out)
{
	const DeviceChoice cpu = {.ops = &device_cpu};

	*out = NULL;
	if (run->mode == MODE_DDP || !format_offloads(&run->format, OFFLOAD_OPTIMIZER) ||
	    run->device.ops->image_kind == device_cpu.image_kind)
		return NULL;
	return variant_pick(run->model.images, NULL, &cpu, out);
}

static Status
open_plan(Gradc *run, const GradcOptions *options)
{
	char name[CPU_NAME];

	run->processor = arena_strdup(run->arena, cpu_name(name));
	RETURN_IF_ERROR(options_check_model(&run->format, options));
	RETURN_IF_ERROR(export_check(&run->format, options));
	RETURN_IF_ERROR(sharing_pick(run));
	RETURN_IF_ERROR(offload_check(run));
	RETURN_IF_ERROR(hyper_new(&run->format, options, &run->hyper));
	run->hyper.values[SCALAR_RANKS] = options->alone ? 1 : gradc_ranks(run);
	return NULL;
}

static Status
open_executor(Gradc *run)
{
	const GradcOptions *options = &run->options;
	const CodeImage *host;

	RETURN_IF_ERROR(pick_host(run, &host));
	ExecutorOptions executor = {.ops = run->device.ops,
	                            .device = device_options(&run->format, gradc_target(run),
	                                                     run->device.ordinal, options),
	                            .variant = run->variant,
	                            .host = host,
	                            .comm = &run->comm,
	                            .ordered = run->reduce_ordered,
	                            .mode = run->mode,
	                            .shard_ranks = (int)options->shard_size,
	                            .observed = options->trace || options->profile,
	                            .offload_folder = options->offload_folder};
	RETURN_IF_ERROR(tune_device(run, &executor.device));
	RETURN_IF_ERROR(executor_open(run->arena, &run->format, &executor, &run->executor));
	run->executor.poison = options->poison;
	return NULL;
}

static Status
open_states(Gradc *run)
{
	run->loss_sum = format_state_of_kind(&run->format, STATE_LOSS_SUM);
	run->loss_count = format_state_of_kind(&run->format, STATE_LOSS_COUNT);
	run->metric_correct = format_state_of_kind(&run->format, STATE_CORRECT);
	RETURN_IF_ERROR(best_open(run));
	RETURN_IF_ERROR(weights_init(run));
	return observe_open(run);
}

/* Replaces the weights in the executable by those of --load and similar options. */
static Status
load_weights(Gradc *run, const GradcOptions *options)
{
	if (options->load)
		RETURN_IF_ERROR(weights_load(run, options->load));
	if (options->load_adapter)
		RETURN_IF_ERROR(peft_load(run, options->load_adapter));
	if (options->adapter)
		RETURN_IF_ERROR(peft_load_kept(run, options->adapter));
	return NULL;
}

/* Changes weights in ways that may need parts of other ranks. Called after all ranks have read their files. */
static Status
merge_weights(Gradc *run, const GradcOptions *options)
{
	if (options->load || options->load_adapter || options->adapter)
		RETURN_IF_ERROR(weights_copy(run, false));
	if (options->merge)
		RETURN_IF_ERROR(adapters_merge(run));
	if (options->unmerge)
		RETURN_IF_ERROR(adapters_unmerge(run));
	return NULL;
}

static void
warn_of_wait(void *context, const char *line)
{
	const Gradc *run = context;

	if (run->diag)
		diag_warning(run->diag, "%s", line);
}

static Status
check_options(Gradc *run)
{
	RETURN_IF_ERROR(options_check_values(&run->options));
	inputs_guard_named(run);
	return NULL;
}

Status
trainer_open(const GradcModel *model, const GradcOptions *options, Diag *diag, Gradc *run)
{
	CommOptions comm = {.mesh = sharing_mesh, .report = warn_of_wait, .context = run};
	uint64_t variants = 0;

	run->options = *options;
	run->model = *model;
	run->diag = diag;
	if (!run->options.lr_schedule)
		run->options.lr_schedule = "constant";
	if (!run->options.communicator)
		run->options.communicator = "self";
	options = &run->options;
	Status status = comm_open(options->communicator, &comm, &run->comm);
	if (!status)
		status = ranks_share(run, check_options(run));
	if (!status)
		status = ranks_share(run, open_tables(run, model, &variants));
	if (!status)
		status = ranks_pick_variant(run, variants);
	if (!status)
		status = ranks_check_devices(run);
	if (!status)
		status = ranks_share(run, open_plan(run, options));
	if (!status)
		status = ranks_compare_parts(run);
	if (!status)
		status = carrier_pick(run, &comm);
	if (!status)
		status = tune_ranks(run, open_executor);
	if (!status)
		status = carrier_attach(run);
	if (!status)
		status = ranks_share(run, open_states(run));
	if (!status)
		status = ranks_compare_weights(run);
	if (!status)
		status = ranks_share(run, load_weights(run, options));
	if (!status)
		status = ranks_share(run, merge_weights(run, options));
	if (!status)
		status = ranks_share(run, saver_open(run));
	return status;
}

Status
trainer_finish(Gradc *run)
{
	Trace *trace = run->observer.trace;

	run->is_finished = true;
	/* The prefetch thread and the checkpoint's writer may be writing spans. */
	prefetch_close(run->prefetch);
	run->prefetch = NULL;
	saver_wait(run);
	executor_stop(&run->executor);
	run->observer.trace = run->executor.trace = NULL;
	return trace_close(trace);
}

const GradcProfile *
gradc_profile(const Gradc *run)
{
	return &run->observer.profile;
}

void
gradc_close(Gradc *run)
{
	if (!run)
		return;
	saver_close(run);
	status_free(gradc_finish(run));
	/* close it here as well: gradc_finish may have failed at its beginning, for lack of memory */
	prefetch_close(run->prefetch);
	trace_abort(run->observer.trace);
	dataset_close(run->train);
	dataset_close(run->eval);
	eval_metrics_close(run);
	predict_close(run);
	executor_stop(&run->executor);
	/* If this is false, messages under way still use the executor's memory. */
	bool over = comm_close_data(&run->comm);
	if (over)
		executor_close(&run->executor);
	comm_close(&run->comm);
	tunings_free(&run->tunings);
	status_free(run->device.why_not_gpu);
	for (int i = 0; i < run->n_queued; i++)
		status_free(run->queued[i].unread);
	for (int i = 0; i < COUNT(run->guards); i++)
		paths_unguard(run->guards[i]);
	MemoryOrphans *orphans = run->orphans; /* memory that nothing above has freed */
	arena_free(run->arena);
	if (over)
		memory_orphans_free(orphans);
}

static int64_t
step_rows(const Gradc *run)
{
	return run->train->micro_rows * run->options.accumulate * gradc_ranks(run);
}

static int64_t
steps_of(const Gradc *run, int64_t rows)
{
	int64_t size = step_rows(run);

	return rows / size + (run->options.keep_last && rows % size != 0);
}

/* a * b, limited to INT64_MAX / 2; a and b are not negative. */
static int64_t
times(int64_t a, int64_t b)
{
	int64_t product;

	return __builtin_mul_overflow(a, b, &product) || product > INT64_MAX / 2 ? INT64_MAX / 2
	                                                                         : product;
}

void
trainer_count_steps(Gradc *run)
{
	const GradcOptions *o = &run->options;
	int64_t rows = run->train->rows, epochs = o->epochs >= 0 ? o->epochs : 1;
	int64_t epoch = run->samples / rows, left = rows - run->samples % rows;

	run->total_steps = run->step;
	if (o->steps >= 0)
		run->total_steps = o->steps;
	else if (epoch < epochs)
		run->total_steps += steps_of(run, left) +
		                    times(epochs - epoch - 1, steps_of(run, rows));
	run->hyper.steps = run->total_steps;
	/* collected anew: the settings contain the numbers of steps and rows */
	run->saver->settings = NULL;
}

static Status
count_steps(Gradc *run)
{
	if (steps_of(run, run->train->rows) == 0)
		return status_error(
			EXIT_DATA,
			"%lld samples are less than the %lld of a step (%lld in a micro-batch, "
			"--accumulate %lld, %d ranks); --keep-last pads the last one",
			(long long)run->train->rows, (long long)step_rows(run),
			(long long)run->train->micro_rows, (long long)run->options.accumulate,
			gradc_ranks(run));
	trainer_count_steps(run);
	return NULL;
}

bool
gradc_has_eval(const Gradc *run)
{
	const GradcOptions *o = &run->options;

	return o->eval_data.n > 0 || o->eval_tokens || o->eval_text || o->split;
}

/* Checks that the program of the optimizer's estimate reads the same inputs as the step, at the same addresses. */
static Status
check_estimates(const Gradc *run)
{
	const Format *f = &run->format;
	const ProgramRecord *p = run->train->program;
	const ProgramRecord *e = program_any(run, ROLE_ESTIMATE, run->train->binding);
	bool fits = e && program_any(run, ROLE_REFRESH, run->train->binding) &&
	            e->n_inputs == p->n_inputs;

	for (uint32_t i = 0; fits && i < p->n_inputs; i++) {
		const PortRecord *a = &f->ports[p->first_input + i],
				 *b = &f->ports[e->first_input + i];
		fits = a->kind == b->kind && a->dtype == b->dtype &&
		       f->slots[a->slot].offset == f->slots[b->slot].offset;
	}
	return fits || run->every <= 0
	               ? NULL
	               : status_error(EXIT_SYSTEM,
	                              "the executable's tables are damaged: its estimate and its "
	                              "micro-batches have different inputs");
}

/* FLOPs of a training from which on measuring the device's peak, some ten milliseconds, is less than a hundredth. */
#define LEAST_MEASURED 1e12

DataOptions
eval_data_options(const GradcOptions *o)
{
	if (o->split)
		return (DataOptions){&o->data,  &o->fill, &o->scale, &o->mean_std,
		                     o->tokens, o->text,  "--data"};
	return (DataOptions){&o->eval_data,  &o->fill,     &o->scale,    &o->mean_std,
	                     o->eval_tokens, o->eval_text, "--eval-data"};
}

/* Opens the evaluation data; with --split after the training data. */
static Status
open_eval(Gradc *run)
{
	const GradcOptions *o = &run->options;
	DataOptions data = eval_data_options(o);

	RETURN_IF_ERROR(dataset_open(run, ROLE_EVAL, &data, &run->eval));
	if (o->split)
		RETURN_IF_ERROR(split_datasets(run, run->train, run->eval));
	RETURN_IF_ERROR(eval_check_rows(run));
	RETURN_IF_ERROR(facts_data(run->eval, &run->eval_data));
	if (o->split)
		run->eval_data = hash_bytes(run->eval->split->held,
		                            (size_t)run->eval->rows * sizeof(int64_t),
		                            run->eval_data);
	RETURN_IF_ERROR(eval_metrics_bind(run));
	eval_warn_uneven(run);
	return NULL;
}

Status
trainer_open_prefetch(Gradc *run)
{
	inputs_guard_bound(run);
	return prefetch_open(run->arena, &run->executor, run->observer.trace, &run->orphans,
	                     &run->prefetch);
}

static Status
bind_eval_alone(Gradc *run)
{
	if (run->loss_sum < 0 || run->loss_count < 0)
		return status_error(EXIT_UNSUPPORTED,
		                    "this executable was compiled without a loss: it cannot "
		                    "evaluate");
	if (!gradc_has_eval(run) || run->options.split)
		return status_error(EXIT_USAGE, "there are no evaluation data: give --eval-data, "
		                                "--eval-tokens or --eval-text");
	RETURN_IF_ERROR(open_eval(run));
	return trainer_open_prefetch(run);
}

static Status
bind_all(Gradc *run)
{
	const GradcOptions *o = &run->options;
	DataOptions train = {&o->data,  &o->fill, &o->scale, &o->mean_std,
	                     o->tokens, o->text,  "--data"};
	Status fault = NULL;

	if (run->loss_sum < 0 || run->loss_count < 0 || !program_any(run, ROLE_UPDATE, 0))
		return status_error(EXIT_UNSUPPORTED,
		                    "this executable was compiled without a loss: it cannot "
		                    "train");
	fault = fault_join(run->diag, fault,
	                   dataset_open(run, ROLE_ACCUMULATE, &train, &run->train));
	if (gradc_has_eval(run) && !(fault && o->split))
		fault = fault_join(run->diag, fault, open_eval(run));
	RETURN_IF_ERROR(fault);
	run->train->shuffle = o->shuffle;
	run->train->seed = o->seed;
	RETURN_IF_ERROR(batch_settle(run));
	RETURN_IF_ERROR(count_steps(run));
	run->every = (int64_t)format_info_double(&run->format, "estimate_every", 0);
	RETURN_IF_ERROR(check_estimates(run));
	double flops = (double)gradc_step_flops(run) * (double)(run->total_steps - run->step);
	run->peak = speed_peak(&run->format, run->executor.ops, run->executor.device,
	                       gradc_target(run), flops >= LEAST_MEASURED);
	return trainer_open_prefetch(run);
}

/* Closes the data, so that a caller can correct the files and bind them again. */
static void
unbind(Gradc *run)
{
	prefetch_close(run->prefetch);
	dataset_close(run->train);
	dataset_close(run->eval);
	eval_metrics_close(run);
	predict_close(run);
	paths_unguard(run->guards[1]);
	run->prefetch = NULL;
	run->train = run->eval = NULL;
	run->guards[1] = NULL;
}

Status
trainer_bind(Gradc *run, Status (*open)(Gradc *run))
{
	if (run->is_eval_bound)
		return status_error(EXIT_USAGE, "the data are bound already");
	Status status = ranks_share(run, open(run));
	if (!status)
		status = ranks_compare(run);
	if (status)
		unbind(run);
	run->is_eval_bound = !status;
	return status;
}

Status
trainer_bind_data(Gradc *run)
{
	Status status = trainer_bind(run, bind_all);

	run->is_bound |= !status;
	return status;
}

Status
trainer_bind_eval(Gradc *run)
{
	return trainer_bind(run, bind_eval_alone);
}

int64_t
gradc_total_steps(const Gradc *run)
{
	return run->total_steps;
}

GradcRows
gradc_rows(const Gradc *run)
{
	if (!run->train)
		return (GradcRows){0};
	return (GradcRows){run->train->rows, run->eval ? run->eval->rows : 0,
	                   run->options.split != NULL, step_rows(run),
	                   steps_of(run, run->train->rows)};
}

int64_t
gradc_accumulation(const Gradc *run)
{
	return run->options.accumulate;
}

int
gradc_steps_queued(const Gradc *run)
{
	return run->n_queued;
}

bool
gradc_computes_at_once(const Gradc *run)
{
	return !executor_is_apart(&run->executor);
}

int64_t
gradc_steps_done(const Gradc *run)
{
	return run->step;
}

const GradcBest *
gradc_best(const Gradc *run)
{
	return &run->best;
}

void
gradc_judge(Gradc *run, const GradcEval *eval, bool counts)
{
	best_judge(run, eval, counts);
}

const GradcPeak *
gradc_peak(const Gradc *run)
{
	return &run->peak;
}

const Format *
gradc_tables(const Gradc *run)
{
	return &run->format;
}

int
gradc_binding(const Gradc *run)
{
	return run->train ? run->train->binding : 0;
}

int
gradc_target(const Gradc *run)
{
	return (int)run->variant->target;
}

int64_t
gradc_step_flops(const Gradc *run)
{
	const ProgramRecord *micro = program_find(run, ROLE_ACCUMULATE, gradc_binding(run));
	const ProgramRecord *update = program_any(run, ROLE_UPDATE, gradc_binding(run));

	return (micro ? micro->flops * gradc_accumulation(run) : 0) + (update ? update->flops : 0);
}

int64_t
gradc_tokens_per_row(const Gradc *run)
{
	return run->train ? run->train->token_elements : 0;
}

int
gradc_regions(const Gradc *run, GradcRegion out[GRADC_MAX_REGIONS])
{
	const Executor *x = &run->executor;
	bool in_file = x->offload_folder != NULL;
	int n = 0, with_bytes = 0;

	for (int s = 0; s < N_SPACES; s++)
		out[n++] = (GradcRegion){space_table[s].name, executor_region_total(x, (Space)s),
		                         space_table[s].on_host, offload_in_file(x, (Space)s)};
	out[n++] = (GradcRegion){"snapshot", run->saver->snapshot.bytes, .on_host = true,
	                         .in_file = in_file};
	out[n++] = (GradcRegion){"library",
	                         x->ops->library_bytes ? x->ops->library_bytes(x->code) : 0};
	out[n++] = (GradcRegion){"tables", raw_input_table_bytes(x)};
	for (int i = 0; i < n; i++)
		if (out[i].bytes > 0)
			out[with_bytes++] = out[i];
	return with_bytes;
}

int64_t
gradc_peak_bytes(const Gradc *run)
{
	GradcRegion regions[GRADC_MAX_REGIONS];
	int64_t bytes = 0;

	for (int i = gradc_regions(run, regions) - 1; i >= 0; i--)
		bytes += regions[i].in_file ? 0 : regions[i].bytes;
	return bytes;
}

int64_t
gradc_gpu_bytes(const Gradc *run)
{
	GradcRegion regions[GRADC_MAX_REGIONS];
	int64_t bytes = 0;

	if (!run->executor.ops->memory)
		return 0;
	for (int i = gradc_regions(run, regions) - 1; i >= 0; i--)
		bytes += regions[i].on_host ? 0 : regions[i].bytes;
	return bytes;
}

bool
gradc_gpu_memory(const Gradc *run, int64_t *taken, int64_t *total)
{
	const Executor *x = &run->executor;
	DeviceMemory memory;

	if (!x->ops->memory || !x->ops->memory(x->device, &memory))
		return false;
	*taken = memory.total - memory.free;
	*total = memory.total;
	return true;
}

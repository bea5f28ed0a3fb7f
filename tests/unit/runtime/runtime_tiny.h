/* A model small enough to check by hand, in the form in which the compiler hands it to the runtime: y = w * x, loss = weight
 * * (y - t)^2, plain gradient descent, four rows per micro-batch, all in f64. A stream of its own computes the difference;
 * the other instructions wait for it. */
#ifndef GRADC_RUNTIME_TINY_H
#define GRADC_RUNTIME_TINY_H

#include "base/files/files.h"
#include "runtime/gradc.h"
#include "tests/unit/runtime/expect_status.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

enum { ROWS = 4 };
enum {
	SLOT_W,
	SLOT_GRAD,
	SLOT_SUM,
	SLOT_COUNT,
	SLOT_X,
	SLOT_T,
	SLOT_WEIGHT,
	SLOT_Y,
	SLOT_DIFF,
	SLOT_NORM,
	SLOT_REPORTED_SUM,
	SLOT_REPORTED_COUNT,
	SLOT_SCALARS,
	SLOT_FAILED,
	SLOT_TWINS /* twins of SLOT_X and later slots in io and step, in the same order, without the scratch */
};
enum { TWIN_X = SLOT_TWINS, TWIN_T, TWIN_WEIGHT, TWIN_NORM, TWIN_SUM, TWIN_COUNT, TWIN_SCALARS };
static const Stream STREAM_DIFF = STREAM_COPY_OUT;
/* No program uses K_ADD_ONE. */
enum { K_DIFF, K_GRADIENT, K_UPDATE, K_FORWARD, K_EVAL, K_ADD_ONE, N_KERNELS };
enum { ADDED = 64 }; /* number of elements that K_ADD_ONE changes */

static void
k_diff(void *const *b, const Scalar *scalars, int64_t begin, int64_t end)
{
	const double *x = b[0], *t = b[1], *w = b[2];

	for (int64_t i = begin; i < end; i++)
		((double *)b[3])[i] = *w * x[i] - t[i];
}

static void
k_gradient(void *const *b, const Scalar *scalars, int64_t begin, int64_t end)
{
	const double *diff = b[0], *x = b[1], *weight = b[2];

	for (int i = 0; i < ROWS; i++) {
		*(double *)b[3] += 2 * diff[i] * x[i] * weight[i] / ROWS;
		*(double *)b[4] += weight[i] * diff[i] * diff[i];
		*(double *)b[5] += weight[i];
	}
}

static void
k_update(void *const *b, const Scalar *scalars, int64_t begin, int64_t end)
{
	double sum = *(double *)b[2], count = *(double *)b[3], loss = sum / count;
	double g = *(double *)b[1] * ROWS / count, norm = fabs(g);
	double factor = fmin(1, scalars[SCALAR_CLIP_NORM].f / (norm + 1e-6));
	bool *failed = b[7], finite = isfinite(loss) && isfinite(norm);

	*(double *)b[4] = norm;
	*(double *)b[5] = sum;
	*(double *)b[6] = count;
	if (finite && !*failed)
		*(double *)b[0] -= scalars[SCALAR_LR].f * g * factor;
	*failed |= !finite;
}

static void
k_forward(void *const *b, const Scalar *scalars, int64_t begin, int64_t end)
{
	for (int64_t i = begin; i < end; i++)
		((double *)b[2])[i] = *(double *)b[1] * ((double *)b[0])[i];
}

static void
k_eval(void *const *b, const Scalar *scalars, int64_t begin, int64_t end)
{
	const double *diff = b[0], *weight = b[1];

	for (int i = 0; i < ROWS; i++) {
		*(double *)b[2] += weight[i] * diff[i] * diff[i];
		*(double *)b[3] += weight[i];
	}
}

static void
k_add_one(void *const *b, const Scalar *scalars, int64_t begin, int64_t end)
{
	for (int64_t i = begin; i < end; i++)
		((double *)b[1])[i] = ((double *)b[0])[i] + scalars[SCALAR_LR].f;
}

enum { READS = ACCESS_READ, WRITES = ACCESS_WRITE, BOTH = READS | WRITES, MAX_TINY_ARGUMENTS = 8 };
typedef struct {
	const char *name;
	KernelFn run;
	int64_t iterations;
	int n_arguments;
	KernelArgument arguments[MAX_TINY_ARGUMENTS];
} TinyKernel;
#define ONE(access)            \
	{                      \
		8, F64, access \
	}
#define EACH_ROW(access)              \
	{                             \
		8 * ROWS, F64, access \
	}
static const TinyKernel tiny_kernels[N_KERNELS] = {
	[K_DIFF] = {"k_diff",
                    k_diff,
                    ROWS,
                    4,
                    {EACH_ROW(READS), EACH_ROW(READS), ONE(READS), EACH_ROW(WRITES)}},
	[K_GRADIENT] = {"k_gradient",
                        k_gradient,
                        1,
                        6,
                        {EACH_ROW(READS), EACH_ROW(READS), EACH_ROW(READS), ONE(BOTH), ONE(BOTH),
                         ONE(BOTH)}},
	[K_UPDATE] = {"k_update",
                      k_update,
                      1,
                      8,
                      {ONE(BOTH),
                       ONE(READS),
                       ONE(READS),
                       ONE(READS),
                       ONE(WRITES),
                       ONE(WRITES),
                       ONE(WRITES),
                       {1, F64, BOTH}}},
	[K_FORWARD] =
		{"k_forward", k_forward, ROWS, 3, {EACH_ROW(READS), ONE(READS), EACH_ROW(WRITES)}},
	[K_EVAL] =
		{"k_eval", k_eval, 1, 4, {EACH_ROW(READS), EACH_ROW(READS), ONE(BOTH), ONE(BOTH)}},
	[K_ADD_ONE] = {"k_add_one",
                       k_add_one,
                       ADDED,
                       2,
                       {{8 * ADDED, F64, READS}, {8 * ADDED, F64, WRITES}}},
};

/* A record without a name, and its arguments. */
static inline KernelRecord
tiny_record(const TinyKernel *k)
{
	return (KernelRecord){.targets = 1,
	                      .n_arguments = (uint32_t)k->n_arguments,
	                      .iterations = k->iterations,
	                      .grain = 1,
	                      .team = 1};
}

static inline void
tiny_add_kernel(FormatWriter *w, const TinyKernel *k)
{
	KernelRecord r = tiny_record(k);

	r.name = format_string(w, k->name);
	r.first_argument = (uint32_t)w->kernel_arguments.n;
	for (int i = 0; i < k->n_arguments; i++)
		vec_push(w->arena, &w->kernel_arguments, k->arguments[i]);
	vec_push(w->arena, &w->kernels, r);
}

/* The code of n kernels, in the form in which the compiler writes it. */
static inline const CodeImage *
tiny_image(Arena *arena, const TinyKernel *kernels, int n)
{
	KernelCode *code = NEW_ARRAY(arena, KernelCode, n);
	CodeImage *images = NEW_ARRAY(arena, CodeImage, 2);

	for (int i = 0; i < n; i++) {
		KernelRecord r = tiny_record(&kernels[i]);
		code[i] = (KernelCode){kernels[i].run, kernel_facts(&r, kernels[i].arguments)};
	}
	images[0] = (CodeImage){"native", "", IMAGE_FUNCTIONS, code, n, 0};
	return images;
}

static void
tiny_state(FormatWriter *w, const char *name, uint32_t kind, uint32_t lifetime, int64_t offset)
{
	StateRecord s = {.name = format_string(w, name),
	                 .why = format_string(w, "read by Mul"),
	                 .dtype = kind == STATE_STATISTIC ? F32
	                          : kind == STATE_FAILED  ? BOOL
	                                                  : F64,
	                 .first_dim = format_dims(w, 0, NULL),
	                 .kind = kind,
	                 .lifetime = lifetime,
	                 .trainable = kind == STATE_PARAMETER,
	                 .init = kind == STATE_PARAMETER ? INIT_DATA : INIT_ZEROS,
	                 .of = kind == STATE_GRADIENT ? 2 : 0,
	                 .lr_scale = 1,
	                 .offset = offset,
	                 .bytes = kind == STATE_STATISTIC ? 4
	                          : kind == STATE_FAILED  ? 1
	                                                  : 8,
	                 .data_offset = kind == STATE_PARAMETER ? 0 : -1,
	                 .file_dtype = F32};

	vec_push(w->arena, &w->states, s);
}

static void
tiny_slot(FormatWriter *w, Space space, int64_t offset, int64_t bytes, const char *name)
{
	Slot s = {.space = space,
	          .dtype = F64,
	          .offset = offset,
	          .bytes = bytes,
	          .name = format_string(w, name)};

	vec_push(w->arena, &w->slots, s);
}

/* The tables as a reader has them. */
static inline Status
tiny_read(FormatWriter *w, Format *out)
{
	void *blob;
	int64_t bytes;

	must(format_finish(w, &blob, &bytes));
	return format_read(blob, bytes, out);
}

static void
tiny_add(FormatWriter *w, Instruction in, int n, const uint32_t *slots)
{
	in.args = (uint32_t)w->arguments.n;
	in.n_args = (uint16_t)n;
	for (int i = 0; i < n; i++)
		vec_push(w->arena, &w->arguments, ((Argument){.slot = slots[i]}));
	vec_push(w->arena, &w->instructions, in);
}

static void
tiny_run(FormatWriter *w, uint32_t kernel, int stream, int phase, int n, const uint32_t *slots)
{
	tiny_add(w,
	         (Instruction){.kind = RUN_KERNEL,
	                       .what = kernel,
	                       .stream = (uint8_t)stream,
	                       .phase = (uint16_t)phase,
	                       .origin = format_string(w, "\"/Mul\"")},
	         n, slots);
}

static void
tiny_event(FormatWriter *w, InstructionKind kind, Stream stream, uint32_t event)
{
	bool apart = stream == STREAM_COPY_IN || event == EVENT_IO_FILLED ||
	             event == EVENT_STEP_FILLED;
	Instruction in = {.kind = kind,
	                  .stream = stream,
	                  .what = event,
	                  .only = apart ? ONLY_APART : ONLY_ALWAYS};

	vec_push(w->arena, &w->instructions, in);
}

static void
tiny_copy(FormatWriter *w, Stream stream, uint32_t to, uint32_t from)
{
	tiny_add(w, (Instruction){.kind = COPY, .stream = stream, .only = ONLY_APART}, 2,
	         (const uint32_t[]){to, from});
}

/* Copies the inputs of a program in. */
static void
tiny_fill(FormatWriter *w, int n)
{
	tiny_event(w, WAIT, STREAM_COPY_IN, EVENT_IO_FREE);
	for (int i = 0; i < n; i++)
		tiny_copy(w, STREAM_COPY_IN, SLOT_X + (uint32_t)i, TWIN_X + (uint32_t)i);
	tiny_event(w, RECORD, STREAM_COPY_IN, EVENT_IO_FILLED);
	tiny_event(w, WAIT, STREAM_COMPUTE, EVENT_IO_FILLED);
}

static void
tiny_port(FormatWriter *w, const char *name, PortKind kind, uint32_t slot, int rank)
{
	const int64_t dims[] = {ROWS};
	PortRecord p = {.name = format_string(w, name),
	                .kind = kind,
	                .dtype = F64,
	                .rank = (uint32_t)rank,
	                .first_dim = format_dims(w, rank, dims),
	                .slot = slot,
	                .file_dtype = F32,
	                .sample_axis = rank ? 0 : -1};

	vec_push(w->arena, &w->ports, p);
}

enum { TINY_STEP = 64 + SCALARS_BYTES };

/* Bytes of io that the forward program needs. */
static int64_t tiny_forward_io = 256;

/* Makes a program of all instructions added since `first`. */
static void
tiny_program(FormatWriter *w, Role role, int first, uint32_t n_inputs, uint32_t n_outputs)
{
	uint32_t ports = (uint32_t)w->ports.n - n_inputs - n_outputs;
	ProgramRecord p = {.role = role,
	                   .first_instruction = (uint32_t)first,
	                   .n_instructions = (uint32_t)(w->instructions.n - first),
	                   .first_input = ports,
	                   .n_inputs = n_inputs,
	                   .first_output = ports + n_inputs,
	                   .n_outputs = n_outputs,
	                   .n_events = 2,
	                   .scalars = role == ROLE_UPDATE ? SLOT_SCALARS + 1 : 0,
	                   .bytes = {[SPACE_WORKSPACE] = 128,
	                             [SPACE_IO] = 256,
	                             [SPACE_IO_HOST] = 256,
	                             [SPACE_STEP] = TINY_STEP,
	                             [SPACE_STEP_HOST] = TINY_STEP},
	                   .flops = 8};

	if (role == ROLE_FORWARD)
		p.bytes[SPACE_IO] = p.bytes[SPACE_IO_HOST] = tiny_forward_io;
	vec_push(w->arena, &w->programs, p);
}

static void
tiny_memory(FormatWriter *w)
{
	tiny_state(w, "statistic", STATE_STATISTIC, LIFE_SAVED,
	           32); /* narrower than the fields that follow */
	tiny_state(w, "w", STATE_PARAMETER, LIFE_SAVED, 0);
	tiny_state(w, "grad.w", STATE_GRADIENT, LIFE_STEP, 8);
	tiny_state(w, "loss.sum", STATE_LOSS_SUM, LIFE_STEP, 16);
	tiny_state(w, "loss.count", STATE_LOSS_COUNT, LIFE_STEP, 24);
	tiny_state(w, "failed", STATE_FAILED, LIFE_DERIVED, 40);
	for (int i = 0; i < 4; i++)
		tiny_slot(w, SPACE_STATE, 8 * i, 8, "state");
	for (int i = 0; i < 4; i++)
		tiny_slot(w, SPACE_IO, 64 * i, 8 * ROWS, "io");
	tiny_slot(w, SPACE_WORKSPACE, 0, 8 * ROWS, "difference");
	for (int i = 0; i < 3; i++)
		tiny_slot(w, SPACE_STEP, 8 * i, 8, "report");
	tiny_slot(w, SPACE_STEP, 64, SCALARS_BYTES, "scalars");
	tiny_slot(w, SPACE_STATE, 40, 1, "failed");
	for (int i = 0; i < 3; i++)
		tiny_slot(w, SPACE_IO_HOST, 64 * i, 8 * ROWS, "io");
	for (int i = 0; i < 3; i++)
		tiny_slot(w, SPACE_STEP_HOST, 8 * i, 8, "report");
	tiny_slot(w, SPACE_STEP_HOST, 64, SCALARS_BYTES, "scalars");
}

static void
tiny_inputs(FormatWriter *w)
{
	tiny_port(w, "x", PORT_INPUT, SLOT_X, 1);
	tiny_port(w, "labels", PORT_LABELS, SLOT_T, 1);
	tiny_port(w, "weight", PORT_WEIGHT, SLOT_WEIGHT, 1);
}

enum { TINY_STATE_BYTES = 64 };
enum { TINY_RUN = 11 }; /* the first kernel of @accumulate */

/* Clears the sums in the first micro-batch of a step. */
static void
tiny_clear(FormatWriter *w, int n, const uint32_t *slots)
{
	const Instruction clear = {
		.kind = FILL_ZERO, .when = WHEN_FIRST, .stream = STREAM_DIFF, .phase = 1};

	for (int i = 0; i < n; i++)
		tiny_add(w, clear, 1, &slots[i]);
}

/* Begins both programs: clears the sums and computes the difference, after all previously queued work. */
static void
tiny_difference(FormatWriter *w, int n, const uint32_t *sums, bool with_wait)
{
	tiny_fill(w, 3);
	tiny_event(w, RECORD, STREAM_COMPUTE, N_SHARED_EVENTS);
	tiny_event(w, WAIT, STREAM_DIFF, N_SHARED_EVENTS);
	tiny_clear(w, n, sums);
	tiny_run(w, K_DIFF, STREAM_DIFF, 1, 4,
	         (const uint32_t[]){SLOT_X, SLOT_T, SLOT_W, SLOT_DIFF});
	tiny_event(w, RECORD, STREAM_DIFF, N_SHARED_EVENTS + 1);
	if (with_wait)
		tiny_event(w, WAIT, STREAM_COMPUTE, N_SHARED_EVENTS + 1);
}

/* Copies the scalars in and the results out. */
static void
tiny_update(FormatWriter *w)
{
	tiny_event(w, WAIT, STREAM_COPY_IN, EVENT_STEP_FREE);
	tiny_copy(w, STREAM_COPY_IN, SLOT_SCALARS, TWIN_SCALARS);
	tiny_event(w, RECORD, STREAM_COPY_IN, EVENT_STEP_FILLED);
	tiny_event(w, WAIT, STREAM_COMPUTE, EVENT_STEP_FILLED);
	tiny_run(w, K_UPDATE, STREAM_COMPUTE, 3, 8,
	         (const uint32_t[]){SLOT_W, SLOT_GRAD, SLOT_SUM, SLOT_COUNT, SLOT_NORM,
	                            SLOT_REPORTED_SUM, SLOT_REPORTED_COUNT, SLOT_FAILED});
	tiny_event(w, RECORD, STREAM_COMPUTE, EVENT_STEP_FREE);
	tiny_event(w, WAIT, STREAM_COPY_OUT, EVENT_STEP_FREE);
	for (uint32_t i = 0; i < 3; i++)
		tiny_copy(w, STREAM_COPY_OUT, TWIN_NORM + i, SLOT_NORM + i);
	tiny_event(w, RECORD, STREAM_COPY_OUT, EVENT_REPORT);
	tiny_port(w, "grad_norm", PORT_NORM, SLOT_NORM, 0);
	tiny_port(w, "loss_sum", PORT_LOSS_SUM, SLOT_REPORTED_SUM, 0);
	tiny_port(w, "loss_count", PORT_LOSS_COUNT, SLOT_REPORTED_COUNT, 0);
}

static void
tiny_programs(FormatWriter *w, bool with_wait)
{
	int first = 0;

	tiny_difference(w, 3, (const uint32_t[]){SLOT_GRAD, SLOT_SUM, SLOT_COUNT}, with_wait);
	tiny_run(w, K_GRADIENT, 0, 2, 6,
	         (const uint32_t[]){SLOT_DIFF, SLOT_X, SLOT_WEIGHT, SLOT_GRAD, SLOT_SUM,
	                            SLOT_COUNT});
	tiny_event(w, RECORD, STREAM_COMPUTE, EVENT_IO_FREE);
	tiny_inputs(w);
	tiny_program(w, ROLE_ACCUMULATE, first, 3, 0);
	first = w->instructions.n;
	tiny_update(w);
	tiny_program(w, ROLE_UPDATE, first, 0, 3);
	first = w->instructions.n;
	tiny_difference(w, 2, (const uint32_t[]){SLOT_SUM, SLOT_COUNT}, with_wait);
	tiny_run(w, K_EVAL, 0, 1, 4,
	         (const uint32_t[]){SLOT_DIFF, SLOT_WEIGHT, SLOT_SUM, SLOT_COUNT});
	tiny_event(w, RECORD, STREAM_COMPUTE, EVENT_IO_FREE);
	tiny_inputs(w);
	tiny_program(w, ROLE_EVAL, first, 3, 0);
	first = w->instructions.n;
	tiny_fill(w, 1);
	tiny_run(w, K_FORWARD, 0, 1, 3, (const uint32_t[]){SLOT_X, SLOT_W, SLOT_Y});
	tiny_event(w, RECORD, STREAM_COMPUTE, EVENT_IO_FREE);
	tiny_port(w, "x", PORT_INPUT, SLOT_X, 1);
	tiny_port(w, "y", PORT_OUTPUT, SLOT_Y, 1);
	tiny_program(w, ROLE_FORWARD, first, 1, 1);
}

static void
tiny_facts(FormatWriter *w)
{
	static const char head[] = "HEAD", tail[] = "TAIL";
	TargetRecord target = {.name = format_string(w, "cpu-512")};
	BindingRecord binding = {.text = format_string(w, "batch=4"), .rows = ROWS};
	ExportRecord exports[] = {
		{.kind = EXPORT_LITERAL, .bytes = 4},
		{.kind = EXPORT_TENSOR, .dtype = F32, .state = 1, .block = 1},
		{.kind = EXPORT_LITERAL, .offset = 4, .bytes = 4},
		{.kind = EXPORT_NAME},
		{.kind = EXPORT_LENGTH, .offset = 300, .times = 2},
	};

	for (int i = 0; i < N_KERNELS; i++)
		tiny_add_kernel(w, &tiny_kernels[i]);
	vec_push(w->arena, &w->bindings, binding);
	vec_push(w->arena, &w->targets, target);
	text_add_bytes(&w->literal, head, 4);
	text_add_bytes(&w->literal, tail, 4);
	for (int i = 0; i < COUNT(exports); i++)
		vec_push(w->arena, &w->exports, exports[i]);
	format_info(w, "optimizer", "sgd");
	format_info(w, "default.lr", "0.1");
	format_info(w, "keep_last", "1");
	format_info(w, "targets_per_micro_batch", "%d", ROWS);
}

static const double tiny_weight = 0.5;

static void *
tiny_blob(Arena *arena, bool with_wait, int64_t *bytes)
{
	FormatWriter *w = format_writer_new(arena);

	tiny_memory(w);
	tiny_programs(w, with_wait);
	tiny_facts(w);
	w->state_bytes = TINY_STATE_BYTES;
	w->weights_bytes = 8;
	w->weights_hash = hash_bytes(&tiny_weight, 8, 0);
	void *blob;
	Status status = format_finish(w, &blob, bytes);
	if (status)
		fail_msg("%s", status->message);
	return blob;
}

/* A folder of its own, with the weights, and n rows of x and t = 3x. */
typedef struct {
	Arena *arena;
	Diag *diag;
	FILE *messages;
	char *folder;
	GradcModel model;
	GradcOptions options;
} Tiny;

static char *
tiny_path(const Tiny *t, const char *name)
{
	return path_join(t->arena, t->folder, name);
}

static void
tiny_data(Tiny *t, const char *prefix, int n, GradcPairs *pairs)
{
	double *x = NEW_ARRAY(t->arena, double, n), *y = NEW_ARRAY(t->arena, double, n);
	const int64_t dims[] = {n};

	for (int i = 0; i < n; i++) {
		x[i] = 1 + 0.25 * i;
		y[i] = 3 * x[i];
	}
	GradcPair px = {"x", tiny_path(t, arena_printf(t->arena, "%sx.npy", prefix))};
	GradcPair py = {"labels", tiny_path(t, arena_printf(t->arena, "%sy.npy", prefix))};
	must(npy_write(px.value, F64, 1, dims, x));
	must(npy_write(py.value, F64, 1, dims, y));
	vec_push(t->arena, pairs, px);
	vec_push(t->arena, pairs, py);
}

static inline Tiny
tiny_open(bool with_wait, int n)
{
	Arena *arena = arena_new();
	Tiny t = {.arena = arena, .messages = tmpfile(), .options = gradc_default_options()};
	int64_t bytes;

	t.diag = diag_new("gradc", t.messages);
	t.folder = arena_strdup(arena, "/tmp/gradc-test-XXXXXX");
	assert_non_null(mkdtemp(t.folder));
	t.model.blob = tiny_blob(arena, with_wait, &bytes);
	t.model.bytes = bytes;
	t.model.abi = GRADC_ABI;
	t.model.images = tiny_image(arena, tiny_kernels, N_KERNELS);
	t.options.weights = tiny_path(&t, "weights");
	t.options.lr = 0.01;
	t.options.threads = 1;
	must(file_write(t.options.weights, &tiny_weight, 8));
	tiny_data(&t, "", n, &t.options.data);
	return t;
}

static inline void
tiny_close(Tiny *t)
{
	char *command = arena_printf(t->arena, "rm -rf '%s'", t->folder);

	assert_int_equal(system(command), 0);
	diag_free(t->diag);
	fclose(t->messages);
	arena_free(t->arena);
}

#endif

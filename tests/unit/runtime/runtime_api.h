/* Interprets bytes as calls of gradc.h on sessions of the tiny model: any call, in any order, with options at their limits,
 * from one to three threads that share a session or have one each. Each call must end with a Status that has an exit code
 * and a message. Sanitizers and asserts find everything else. */
#ifndef GRADC_RUNTIME_API_H
#define GRADC_RUNTIME_API_H

#include "base/files/files.h"
#include "tests/unit/runtime/runtime_tiny.h"

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>

enum { API_ROWS = 13, API_MOST_THREADS = 3, API_MOST_CALLS = 40 };

typedef struct {
	const uint8_t *at;
	size_t left;
} ApiBytes;

static unsigned
api_next(ApiBytes *b)
{
	if (b->left == 0)
		return 0;
	b->left--;
	return *b->at++;
}

typedef struct {
	const Tiny *tiny;
	ApiBytes bytes;
	Arena *arena;
	GradcOptions options;
	Gradc *run;
	bool shared; /* true: another thread opens and closes the run */
	bool stop;   /* answer of the evaluation callback */
} ApiSession;

/* ---- options at their limits */
#define API_AT(field) offsetof(GradcOptions, field)
static const size_t api_numbers[] = {API_AT(steps),      API_AT(epochs),       API_AT(accumulate),
                                     API_AT(warmup),     API_AT(global_batch), API_AT(micro_batch),
                                     API_AT(shard_size), API_AT(keep),         API_AT(shard_bytes),
                                     API_AT(keep_data),  API_AT(threads)};
static const size_t api_doubles[] = {API_AT(lr),       API_AT(min_lr),    API_AT(weight_decay),
                                     API_AT(beta1),    API_AT(beta2),     API_AT(eps),
                                     API_AT(momentum), API_AT(clip_norm), API_AT(clip_value)};
static const size_t api_flags[] = {API_AT(shuffle),       API_AT(keep_last), API_AT(merge),
                                   API_AT(unmerge),       API_AT(alone),     API_AT(profile),
                                   API_AT(keep_best),     API_AT(find_nan),  API_AT(poison),
                                   API_AT(deterministic), API_AT(libraries)};
static const size_t api_texts[] = {
	API_AT(tokens),       API_AT(text),          API_AT(eval_tokens),    API_AT(eval_text),
	API_AT(lr_schedule),  API_AT(load),          API_AT(load_adapter),   API_AT(weights),
	API_AT(adapter),      API_AT(device),        API_AT(export_weights), API_AT(target),
	API_AT(communicator), API_AT(reduce),        API_AT(data_parallel),  API_AT(offload),
	API_AT(collectives),  API_AT(save),          API_AT(resume),         API_AT(trace),
	API_AT(tune),         API_AT(offload_folder)};
static const int64_t api_edges[] = {0,  1,  2,       3,         5,         13,       1 << 20,
                                    -1, -2, 1 << 31, 1ll << 53, INT64_MAX, INT64_MIN};
static const double api_points[] = {NAN, 0, -1, 0.5, 1, 0.999, 1e-300, 1e300, INFINITY, -INFINITY};
/* Values for the text options; files lie in the current folder. */
static const char *const api_words[] = {"",
                                        "x.npy",
                                        "y.npy",
                                        "nosuch",
                                        "ck",
                                        "ck/step-00000001",
                                        "auto",
                                        "cpu",
                                        "async",
                                        "cuda",
                                        "cuda:7",
                                        "self",
                                        "other",
                                        "constant",
                                        "cosine",
                                        "linear",
                                        "plateau",
                                        "step,size=2",
                                        "step,size=0",
                                        "wsd",
                                        "sweep,low=1,high=2",
                                        "ordered",
                                        "fast",
                                        "ddp",
                                        "zero3",
                                        "host",
                                        "nccl",
                                        "ema",
                                        "trained",
                                        "weights",
                                        "out"};

static void *
api_field(GradcOptions *o, size_t at)
{
	return (char *)o + at;
}

static bool
api_is_path(const char *word)
{
	return strchr(word, '.') || strncmp(word, "ck", 2) == 0 || strcmp(word, "weights") == 0 ||
	       strcmp(word, "out") == 0 || strcmp(word, "nosuch") == 0;
}

static const char *
api_word(ApiSession *s)
{
	unsigned i = api_next(&s->bytes) % (COUNT(api_words) + 1);

	if (i == COUNT(api_words))
		return NULL;
	return api_is_path(api_words[i]) ? path_join(s->arena, s->tiny->folder, api_words[i])
	                                 : api_words[i];
}

static void
api_set_pairs(ApiSession *s, GradcPairs *pairs)
{
	static const char *const names[] = {"x", "labels", "nosuch", "", NULL};

	*pairs = (GradcPairs){0};
	for (unsigned n = api_next(&s->bytes) % 4; n > 0; n--) {
		GradcPair pair = {names[api_next(&s->bytes) % COUNT(names)], api_word(s)};
		vec_push(s->arena, pairs, pair);
	}
	unsigned how = api_next(&s->bytes);
	if (how == 1)
		pairs->n = -1;
	else if (how == 2)
		pairs->at = NULL;
}

static bool
api_is_interrupted(void *context)
{
	ApiSession *s = context;
	GradcStep step;

	if (s->stop) /* a call from inside a callback is refused */
		status_free(gradc_step(s->run, &step));
	return s->stop;
}

static void
api_set_option(ApiSession *s)
{
	GradcPairs *const pairs[] = {&s->options.data, &s->options.eval_data, &s->options.fill,
	                             &s->options.scale, &s->options.mean_std};
	GradcOptions *o = &s->options;
	unsigned which = api_next(&s->bytes), i = api_next(&s->bytes), value = api_next(&s->bytes);

	switch (which % 6) {
	case 0:
		*(int64_t *)api_field(o, api_numbers[i % COUNT(api_numbers)]) =
			api_edges[value % COUNT(api_edges)];
		break;
	case 1:
		*(double *)api_field(o, api_doubles[i % COUNT(api_doubles)]) =
			api_points[value % COUNT(api_points)];
		break;
	case 2: *(bool *)api_field(o, api_flags[i % COUNT(api_flags)]) = value % 2; break;
	case 3: *(const char **)api_field(o, api_texts[i % COUNT(api_texts)]) = api_word(s); break;
	case 4: api_set_pairs(s, pairs[i % COUNT(pairs)]); break;
	default:
		o->interrupted = value % 2 ? api_is_interrupted : NULL;
		o->interrupted_context = s;
		s->stop = value % 3 == 0;
	}
}

/* Sets options as a program would, and some unlikely values. */
static void
api_set_options(ApiSession *s)
{
	unsigned how = api_next(&s->bytes);

	s->options = s->tiny->options;
	s->options.steps = 4;
	if (how & 1)
		s->options.save = path_join(s->arena, s->tiny->folder, "ck");
	if (how & 2)
		s->options.eval_data = s->options.data;
	if (how & 4)
		s->options.device = "async";
	for (unsigned n = how >> 4 & 3; n > 0; n--)
		api_set_option(s);
	if (s->options.accumulate > API_ROWS || s->options.global_batch > API_ROWS)
		s->options.keep_last =
			false; /* a step of a million padded micro-batches would count as one step */
}

/* ---- calls */
static Status
api_open(ApiSession *s)
{
	const GradcModel *model = &s->tiny->model;

	if (s->shared)
		return NULL;
	gradc_close(s->run);
	s->run = NULL;
	api_set_options(s);
	unsigned how = api_next(&s->bytes);
	Status status = gradc_open(how == 1 ? NULL : model, how == 2 ? NULL : &s->options, NULL,
	                           how == 3 ? NULL : &s->run);
	if (status && s->run)
		fail_msg("gradc_open: a fault, and a run");
	return status;
}

static Status
api_close(ApiSession *s)
{
	if (s->shared)
		return NULL;
	gradc_close(s->run);
	s->run = NULL;
	return NULL;
}

static Status
api_step(ApiSession *s)
{
	GradcStep step = {0};

	return gradc_step(s->run, api_next(&s->bytes) == 1 ? NULL : &step);
}

static Status
api_accumulate(ApiSession *s)
{
	GradcStep step = {0};

	return gradc_accumulate(s->run, &step);
}

static Status
api_update(ApiSession *s)
{
	GradcStep step = {0};

	return gradc_update(s->run, &step);
}

static Status
api_result(ApiSession *s)
{
	unsigned how = api_next(&s->bytes);
	GradcStep step = {0};
	bool got;

	return gradc_step_result(s->run, how & 1, how == 4 ? NULL : &step, how == 6 ? NULL : &got);
}

static Status
api_evaluate(ApiSession *s)
{
	GradcEval eval = {0};

	return gradc_evaluate(s->run, api_next(&s->bytes) == 1 ? NULL : &eval);
}

static Status
api_resume(ApiSession *s)
{
	GradcResume resume = {0};

	return gradc_resume(s->run, api_next(&s->bytes) == 1 ? NULL : &resume);
}

static Status
api_save(ApiSession *s)
{
	return gradc_save(s->run, api_points[api_next(&s->bytes) % COUNT(api_points)]);
}

static Status
api_poll(ApiSession *s)
{
	return gradc_save_poll(s->run, api_next(&s->bytes) & 1);
}

static Status
api_check_saves(ApiSession *s)
{
	return gradc_check_saves(s->run, api_edges[api_next(&s->bytes) % COUNT(api_edges)]);
}

static Status
api_write(ApiSession *s)
{
	static Status (*const writers[])(Gradc *, const char *) = {
		gradc_export, gradc_export_merged, gradc_export_adapter, gradc_dump_gradients,
		gradc_check_adapters};
	unsigned i = api_next(&s->bytes);

	return writers[i % COUNT(writers)](s->run, api_word(s));
}

static Status
api_plain(ApiSession *s)
{
	static Status (*const plain[])(Gradc *) = {gradc_bind_data, gradc_queue_step, gradc_finish,
	                                           gradc_begin_exports, gradc_end_exports};
	unsigned i = api_next(&s->bytes);

	return plain[i % COUNT(plain)](s->run);
}

static Status
api_bind(ApiSession *s)
{
	return gradc_bind_data(s->run);
}

static Status
api_queue(ApiSession *s)
{
	return gradc_queue_step(s->run);
}

static Status
api_once(ApiSession *s)
{
	GradcPairs inputs;
	unsigned how = api_next(&s->bytes);

	if (how & 2)
		inputs = s->tiny->options.data;
	else
		api_set_pairs(s, &inputs);
	const char *folder = path_join(s->arena, s->tiny->folder, "once");
	return gradc_once(s->run, how == 4 ? NULL : &inputs, how & 1, how == 8 ? NULL : folder);
}

static Status
api_check_gradients(ApiSession *s)
{
	unsigned how = api_next(&s->bytes);
	GradcCheckOptions o = {.inputs = how & 1 ? &s->tiny->options.data : NULL,
	                       .entries = api_edges[how / 2 % COUNT(api_edges)]};

	return gradc_check_gradients(s->run, how == 255 ? NULL : &o);
}

static Status
api_agree(ApiSession *s)
{
	unsigned how = api_next(&s->bytes);
	GradcRunningRanges ranges;
	int most, n;

	if (how % 4 == 0)
		return gradc_agree(s->run, 7, how & 4 ? NULL : &most);
	if (how % 4 == 1)
		return gradc_compare(s->run, how & 4 ? NULL : "--steps", 7);
	if (how % 4 == 2)
		return gradc_running_ranges(s->run, s->arena, how & 4 ? NULL : &ranges);
	if (how & 4)
		return gradc_share(s->run, how & 8 ? status_error(EXIT_DATA, "own") : NULL);
	if (s->run)
		gradc_settings(s->run, &n);
	return NULL;
}

/* Calls that ask for facts need a session, and one thread. */
static Status
api_ask(ApiSession *s)
{
	GradcRegion regions[GRADC_MAX_REGIONS];
	int64_t taken, total;
	int by_loops;
	Text text = {0};

	if (!s->run || s->shared)
		return NULL;
	gradc_describe_device(s->run, &text);
	gradc_describe_parts(s->run, &text);
	text_free(&text);
	gradc_regions(s->run, regions);
	gradc_gpu_memory(s->run, &taken, &total);
	gradc_narrow_products(s->run, &by_loops);
	gradc_schedule_loss(s->run, api_points[api_next(&s->bytes) % COUNT(api_points)]);
	int64_t sum = gradc_total_steps(s->run) ^ gradc_accumulation(s->run) ^
	              gradc_binding(s->run) ^ gradc_target(s->run) ^ gradc_step_flops(s->run) ^
	              gradc_steps_done(s->run) ^ gradc_tokens_per_row(s->run) ^
	              gradc_peak_bytes(s->run) ^ gradc_gpu_bytes(s->run) ^ gradc_rank(s->run) ^
	              gradc_ranks(s->run) ^ gradc_steps_queued(s->run) ^ gradc_saved_step(s->run) ^
	              gradc_holds_parts(s->run) ^ gradc_computes_at_once(s->run) ^
	              gradc_saves_together(s->run) ^ gradc_has_eval(s->run) ^
	              gradc_is_whole(s->run) ^ gradc_is_shared(s->run) ^
	              gradc_ranges_due(s->run, api_edges[taken % 2]);
	const char *texts[] = {gradc_reduce(s->run), gradc_collectives(s->run),
	                       gradc_shared_fault(s->run)};
	return gradc_profile(s->run) && gradc_tables(s->run) && texts[0] && texts[1] && texts[2] &&
	                       sum
	               ? NULL
	               : NULL;
}

/* Likely calls stand several times in the list. */
static Status (*const api_calls[])(ApiSession *) = {api_open,   api_bind,
                                                    api_bind,   api_step,
                                                    api_step,   api_step,
                                                    api_queue,  api_queue,
                                                    api_result, api_result,
                                                    api_save,   api_save,
                                                    api_poll,   api_resume,
                                                    api_resume, api_accumulate,
                                                    api_update, api_evaluate,
                                                    api_close,  api_write,
                                                    api_once,   api_check_gradients,
                                                    api_agree,  api_ask,
                                                    api_plain,  api_check_saves};

static void
api_call(ApiSession *s)
{
	Status status = api_calls[api_next(&s->bytes) % COUNT(api_calls)](s);

	if (status &&
	    (status->exit_code <= 0 || status->exit_code > EXIT_PREEMPTED || !*status->message))
		fail_msg("exit code %d: \"%s\"", status->exit_code, status->message);
	status_free(status);
}

static void *
api_session(void *context)
{
	ApiSession *s = context;

	for (int i = 0; i < API_MOST_CALLS && s->bytes.left > 0; i++)
		api_call(s);
	api_close(s);
	return NULL;
}

/* ---- an input */
/* Runs in the current folder: words that are meant as other values may become files, too. */
static Tiny
api_open_tiny(void)
{
	Tiny t = tiny_open(true, API_ROWS);

	assert_int_equal(chdir(t.folder), 0);
	return t;
}

/* Removes the files that the calls have made. */
static void
api_clear(void)
{
	static const char *const kept[] = {".", "..", "x.npy", "y.npy", "weights"};
	DIR *dir = opendir(".");
	bool any = false;

	for (struct dirent *e; dir && (e = readdir(dir));) {
		bool is_kept = false;
		for (int i = 0; i < COUNT(kept); i++)
			is_kept |= strcmp(e->d_name, kept[i]) == 0;
		any |= !is_kept;
	}
	closedir(dir);
	if (any &&
	    system("find . -mindepth 1 -maxdepth 1 ! -name x.npy ! -name y.npy ! -name weights "
	           "-exec rm -rf {} +") != 0)
		fail_msg("the folder cannot be cleared");
}

/* Restores the input files, because a session may have been told to overwrite files that another session reads. */
static void
api_restore(const Tiny *t)
{
	Tiny copy = *t;
	GradcPairs pairs = {0};
	uint64_t hash = 0;

	copy.arena = arena_new();
	for (int i = 0; i < t->options.data.n; i++) {
		void *bytes;
		int64_t n;
		must(file_read(copy.arena, t->options.data.at[i].value, 1 << 20, &bytes, &n));
		hash = hash_bytes(bytes, (size_t)n, hash);
	}
	static uint64_t whole;
	whole = whole ? whole : hash;
	if (hash != whole)
		tiny_data(&copy, "", API_ROWS, &pairs);
	void *weight;
	int64_t bytes = 0;
	Status status = file_read(copy.arena, t->options.weights, 1 << 20, &weight, &bytes);
	if (status || bytes != 8 || memcmp(weight, &tiny_weight, 8) != 0)
		must(file_write(t->options.weights, &tiny_weight, 8));
	status_free(status);
	arena_free(copy.arena);
}

static inline void
api_run(const Tiny *t, const uint8_t *data, size_t size)
{
	ApiBytes bytes = {data, size};
	unsigned how = api_next(&bytes);
	int n = (int)(how % API_MOST_THREADS) + 1;
	bool shared = how / API_MOST_THREADS % 2;
	ApiSession sessions[API_MOST_THREADS] = {0}, owner = {.tiny = t, .arena = arena_new()};
	pthread_t threads[API_MOST_THREADS];
	size_t each = bytes.left / (size_t)n;

	if (shared) {
		owner.bytes = bytes;
		status_free(api_open(&owner));
		bytes = owner.bytes;
		each = bytes.left / (size_t)n;
	}
	for (int i = 0; i < n; i++) {
		sessions[i] = (ApiSession){.tiny = t,
		                           .bytes = {bytes.at + each * (size_t)i, each},
		                           .arena = arena_new(),
		                           .run = owner.run,
		                           .shared = shared};
		assert_int_equal(pthread_create(&threads[i], NULL, api_session, &sessions[i]), 0);
	}
	for (int i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	gradc_close(owner.run);
	for (int i = 0; i < n; i++)
		arena_free(sessions[i].arena);
	arena_free(owner.arena);
	api_clear();
	api_restore(t);
}

#endif

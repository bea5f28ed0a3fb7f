/* The tuner of engines, with a library of scripted engines and a clock of its own: which engine is taken, what it costs, and what
 * happens to engines that fail, hang, give NaN or write where they must not. */
#include "base/numbers/numbers.h"
#include "runtime/library/library.h"
#include "tests/unit/runtime/expect_status.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIZE = 8, WORKSPACE = 100, LIMIT = 1 << 20 };

/* ---- the library */
typedef enum {
	SOUND,
	FAILS,
	HANGS,
	GIVES_NAN,
	GIVES_INFINITY,
	WRITES_BEHIND,
	LEAVES_OUT,    /* the result's last element */
	STARTS_SLOWLY, /* its first run takes a hundred seconds longer */
	BREAKS,        /* the device computes nothing any more */
} Behaviour;
typedef struct {
	const char *name;
	double seconds; /* of a run */
	Behaviour behaviour;
	int64_t workspace; /* 0: WORKSPACE */
} Script;
struct PreparedCall {
	const Script *script;
	int runs;
};
static struct {
	const Script *scripts; /* NULL: no engines */
	int n;
	int asked, alive, runs; /* calls of `engines`; prepared calls; runs of engines */
	double clock;           /* by which engines take time */
	bool hung, broken;
	int64_t memory, most; /* bytes given out, and that may be given out */
} fake;

static Status
fake_engines(Library *library, const LibraryCall *call, int64_t limit,
             PreparedCall *out[MOST_ENGINES], int *n)
{
	(void)library;
	(void)call;
	assert_int_equal(limit, LIMIT);
	fake.asked++;
	for (*n = 0; *n < fake.n; (*n)++) {
		out[*n] = malloc(sizeof(PreparedCall));
		*out[*n] = (PreparedCall){&fake.scripts[*n], 0};
		fake.alive++;
	}
	return NULL;
}

static void
fake_print(const PreparedCall *call, Text *out)
{
	text_add(out, call->script->name);
}

static void
fake_release(PreparedCall *call)
{
	fake.alive--;
	free(call);
}

static int64_t
fake_scratch(const PreparedCall *call)
{
	return call->script->workspace ? call->script->workspace : WORKSPACE;
}

static Status
fake_run(PreparedCall *call, void *const buffers[N_LIBRARY_OPERANDS], char *const packed[2],
         char *scratch, void *stream)
{
	const Script *s = call->script;
	float *z = buffers[LIBRARY_RESULT];
	const float *x = buffers[LIBRARY_FIRST];

	(void)packed;
	(void)stream;
	fake.runs++;
	fake.clock += s->seconds;
	fake.clock += s->behaviour == STARTS_SLOWLY && call->runs++ == 0 ? 100 : 0;
	for (int i = 0; i < SIZE * SIZE - (s->behaviour == LEAVES_OUT); i++) {
		assert_true(isfinite(x[i]) && x[i] != 0);
		z[i] = x[i];
	}
	if (s->behaviour == GIVES_NAN)
		z[SIZE * SIZE - 1] = NAN;
	if (s->behaviour == GIVES_INFINITY)
		z[0] = INFINITY;
	memset(scratch, 0, (size_t)fake_scratch(call) + (s->behaviour == WRITES_BEHIND));
	fake.broken |= s->behaviour == BREAKS;
	fake.hung = s->behaviour == HANGS;
	return s->behaviour == FAILS ? status_error(EXIT_SYSTEM, "it fails") : NULL;
}

static const LibraryOps fake_ops = {.name = "Fake",
                                    .engines = fake_engines,
                                    .print_engine = fake_print,
                                    .release = fake_release,
                                    .scratch = fake_scratch,
                                    .run = fake_run};

/* ---- the device */
static void *
device_alloc(void *context, int64_t bytes)
{
	(void)context;
	if (fake.memory + bytes > fake.most)
		return NULL;
	fake.memory += bytes;
	return calloc(1, (size_t)bytes);
}

static void
device_free(void *context, void *at, int64_t bytes)
{
	(void)context;
	fake.memory -= bytes;
	free(at);
}

static Status
device_fill(void *context, void *at, int byte, int64_t bytes)
{
	(void)context;
	memset(at, byte, (size_t)bytes);
	return fake.broken ? status_error(EXIT_COMM, "an illegal address") : NULL;
}

static Status
device_read(void *context, void *to, const void *from, int64_t bytes)
{
	(void)context;
	memcpy(to, from, (size_t)bytes);
	return fake.broken ? status_error(EXIT_COMM, "an illegal address") : NULL;
}

static Status
device_time(void *context, Status (*run)(void *call, void *stream), void *call, int runs,
            double *seconds)
{
	double begin = fake.clock;

	(void)context;
	for (int i = 0; i < runs; i++)
		RETURN_IF_ERROR(run(call, NULL));
	*seconds = (fake.clock - begin) / runs;
	return fake.hung ? status_error(EXIT_HANG, "nothing for 10 seconds") : NULL;
}

static const LibraryTrials device = {device_alloc, device_free, device_fill,
                                     device_read,  device_time, NULL};

/* ---- a choice */
static LibraryCall
product(void)
{
	LibraryCall c = {0};

	library_call_begin(&c, LIBRARY_DOT);
	for (int i = 0; i <= LIBRARY_RESULT; i++) {
		c.operands[i] = (LibraryOperand){
			.dtype = F32, .rank = 2, .buffer = i, .dims = {SIZE, SIZE}};
		library_dense(&c.operands[i]);
	}
	return c;
}

static Status
pick_of(Tuner *t, const LibraryCall *call, TunedCall *out)
{
	Libraries libraries = {.n = 1, .at = {{&fake_ops, (Library *)&fake, NULL}}};

	text_add(&libraries.versions, "Fake 1.0");
	*out = (TunedCall){0};
	Status status = tuner_pick(t, &libraries, call, 3, LIMIT, out);
	text_free(&libraries.versions);
	assert_int_equal(fake.memory, 0);
	assert_int_equal(fake.alive, out->call != NULL);
	return status;
}

static void
begin(const Script *scripts, int n)
{
	memset(&fake, 0, sizeof(fake));
	fake.scripts = scripts;
	fake.n = n;
	fake.most = INT64_MAX;
}

static Tuner
tuner(Tunings *tunings, double seconds)
{
	return (Tuner){.tunings = tunings,
	               .seconds = seconds,
	               .steps = 3,
	               .trials = &device,
	               .machine = "GPU"};
}

/* The name of the engine that is taken; "none", or "first" if the choice is left to the library. */
static const char *
taken(Tuner *t)
{
	LibraryCall w = product();
	TunedCall out;

	must(pick_of(t, &w, &out));
	if (!out.call)
		return out.none ? "none" : "first";
	const char *name = out.call->script->name;
	out.ops->release(out.call);
	return name;
}

static void
expect_taken(const Script *scripts, int n, const char *name, int faults)
{
	Tunings tunings = {0};
	Tuner t = tuner(&tunings, 2);
	int found = 0;

	begin(scripts, n);
	assert_string_equal(taken(&t), name);
	for (int i = 0; i < tunings.n; i++)
		found += tunings.at[i].fault != NULL;
	assert_int_equal(found, faults);
	int runs = fake.runs;
	assert_string_equal(taken(&t), name); /* known by now */
	assert_int_equal(fake.runs, runs);
	tunings_free(&tunings);
}

static void
test_the_fastest_is_taken(void **state)
{
	static const Script three[] = {{"a", 3, 0}, {"b", 1, 0}, {"c", 2, 0}};
	static const Script one[] = {{"a", 3, 0}};

	(void)state;
	expect_taken(three, 3, "b", 0);
	expect_taken(one, 1, "a", 0);
	assert_int_equal(fake.runs, 6);
}

/* The first run of an engine, which may load code, says nothing about the engine. */
static void
test_first_runs_do_not_count(void **state)
{
	static const Script scripts[] = {
		{"a", 3, SOUND}, {"b", 1, STARTS_SLOWLY}, {"c", 2, STARTS_SLOWLY}};

	(void)state;
	expect_taken(scripts, 3, "b", 0);
}

static void
test_faulty_engines_are_left_out(void **state)
{
	static const Script mixed[] = {{"fails", 1, FAILS},
	                               {"slow", 9, SOUND},
	                               {"nan", 1, GIVES_NAN},
	                               {"inf", 1, GIVES_INFINITY},
	                               {"behind", 1, WRITES_BEHIND},
	                               {"good", 5, SOUND},
	                               {"less", 1, WRITES_BEHIND, WORKSPACE / 2},
	                               {"part", 1, LEAVES_OUT}};
	static const Script bad[] = {{"fails", 1, FAILS}, {"nan", 1, GIVES_NAN}};

	(void)state;
	expect_taken(mixed, COUNT(mixed), "good", 6);
	expect_taken(bad, COUNT(bad), "none", 2);
}

/* The run ends. The next run, which has read the file, leaves the engine out. */
static void
test_an_engine_hangs(void **state)
{
	static const Script scripts[] = {{"a", 2, SOUND}, {"stuck", 1, HANGS}, {"c", 3, SOUND}};
	char path[] = "/tmp/gradc-tune-XXXXXX";
	int fd = mkstemp(path);
	Tunings tunings = {0}, later = {0};
	Tuner t = tuner(&tunings, 2), next = tuner(&later, 2);
	LibraryCall w = product();
	TunedCall out;
	bool missing;

	(void)state;
	assert_true(fd >= 0);
	close(fd);
	must(tune_file_open(path, true, &tunings, &missing));
	t.file = next.file = path;
	begin(scripts, 3);
	expect_status(pick_of(&t, &w, &out), EXIT_HANG, "Fake stuck: nothing for 10 seconds");
	must(tune_file_open(path, true, &later, &missing));
	assert_int_equal(later.n, 1);
	assert_string_equal(later.at[0].fault, "hangs");
	fake.hung = false;
	assert_string_equal(taken(&next), "a");
	tunings_free(&later);
	must(tune_file_open(path, false, &later, &missing));
	assert_int_equal(later.n, 2);
	assert_string_equal(later.at[1].engine, "Fake a");
	unlink(path);
	tunings_free(&tunings);
	tunings_free(&later);
}

/* The run ends, and no other engine is blamed. */
static void
test_an_engine_breaks_the_device(void **state)
{
	static const Script scripts[] = {{"a", 2, SOUND}, {"bad", 1, BREAKS}, {"c", 3, SOUND}};
	Tunings tunings = {0};
	Tuner t = tuner(&tunings, 2);
	LibraryCall w = product();
	TunedCall out;

	(void)state;
	begin(scripts, 3);
	expect_status(pick_of(&t, &w, &out), EXIT_COMM,
	              "a trial of an engine broke the device: Fake bad: an illegal address");
	assert_int_equal(tunings.n, 0);
	tunings_free(&tunings);
}

/* A call that the compiler has planned competes, too; it is kept if nothing can be tried. */
static void
test_a_plan(void **state)
{
	static const Script scripts[] = {{"a", 3, SOUND}}, fast = {"plan", 1, SOUND},
			    slow = {"plan", 9, SOUND};
	const Script *plans[] = {&fast, &slow, &slow};
	static const char *const wanted[] = {"plan", "a", "plan"};

	(void)state;
	for (int i = 0; i < COUNT(plans); i++) {
		Tunings tunings = {0};
		Tuner t = tuner(&tunings, 2);
		LibraryCall w = product();
		Libraries libraries = {.n = 1, .at = {{&fake_ops, (Library *)&fake, NULL}}};
		begin(scripts, 1);
		fake.most = i == 2 ? 1 : INT64_MAX; /* no memory for trials */
		PreparedCall *plan = malloc(sizeof(*plan));
		*plan = (PreparedCall){plans[i], 0};
		fake.alive++;
		TunedCall out = {.ops = &fake_ops, .call = plan};
		text_add(&libraries.versions, "Fake 1.0");
		must(tuner_pick(&t, &libraries, &w, 1, LIMIT, &out));
		text_free(&libraries.versions);
		assert_string_equal(out.call->script->name, wanted[i]);
		assert_int_equal(fake.alive, 1);
		fake_release(out.call);
		tunings_free(&tunings);
	}
}

/* Without time for trials the library chooses, but never a faulty engine; what it chose is noted. */
static void
test_nothing_is_tried(void **state)
{
	static const Script scripts[] = {{"a", 3, SOUND}, {"b", 1, SOUND}};
	Tunings tunings = {0};
	Tuner t = tuner(&tunings, 0), other;
	LibraryCall w = product();
	Libraries libraries = {.n = 1};

	(void)state;
	begin(scripts, 2);
	assert_string_equal(taken(&t), "first");
	assert_int_equal(fake.asked, 0);
	text_add(&libraries.versions, "Fake 1.0");
	tuner_note(&t, &libraries, &w, LIMIT, &fake_ops, &(PreparedCall){&scripts[1], 0});
	text_free(&libraries.versions);
	assert_int_equal(tunings.at[0].use, ENGINE_FIRST);
	other = tuner(&tunings, 2); /* a choice is kept, even if trials might find a faster one */
	assert_string_equal(taken(&other), "b");
	assert_int_equal(tunings.at[0].use, ENGINE_FIRST); /* of this run */
	assert_int_equal(fake.runs, 0);
	char *key = strdup(tunings.at[0].key);
	tunings_free(&tunings);
	tunings_add(
		&tunings,
		&(TunedEngine){.key = key, .engine = (char *)"Fake a", .fault = (char *)"fails"});
	free(key);
	assert_string_equal(taken(&t), "b");
	tunings_free(&tunings);
}

/* A choice that the library does not offer any more is replaced, for this run. */
static void
test_a_lost_choice(void **state)
{
	static const Script before[] = {{"old", 1, SOUND}},
			    now[] = {{"a", 3, SOUND}, {"b", 1, SOUND}};
	Tunings tunings = {0};
	Tuner t = tuner(&tunings, 2);

	(void)state;
	begin(before, 1);
	assert_string_equal(taken(&t), "old");
	begin(now, 2);
	assert_string_equal(taken(&t), "b");
	assert_int_equal(tunings.n, 1); /* what the checkpoint and other ranks get */
	assert_string_equal(tunings.at[0].engine, "Fake b");
	assert_int_equal(tunings.n_lost, 1);
	tunings_free(&tunings);
}

static void
test_too_little_memory(void **state)
{
	static const Script scripts[] = {{"a", 3, SOUND}, {"b", 1, SOUND}};
	Tunings tunings = {0};
	Tuner t = tuner(&tunings, 2);

	(void)state;
	begin(scripts, 2);
	fake.most = SIZE * SIZE * 4 + 1;
	assert_string_equal(taken(&t), "first");
	assert_int_equal(tunings.n, 0);
	tunings_free(&tunings);
}

/* Trials stop when their time is over, at the latest after an engine is found; slow calls allow them more time. */
static void
test_time(void **state)
{
	static const Script scripts[] = {{"a", 3, SOUND}, {"b", 1, SOUND}};
	Tunings tunings = {.seconds = 2};
	Tuner t = tuner(&tunings, 2);

	(void)state;
	begin(scripts, 2);
	assert_string_equal(taken(&t), "first"); /* 2 of 2 seconds are over */
	t.in_step = 1;                           /* 3 steps of 1 second */
	assert_string_equal(taken(&t), "b");
	assert_true(t.in_step == 1 + 3 * 1); /* 3 launches of 1 second */
	tunings_free(&tunings);
}

/* Lines in other forms are skipped; the first choice for a key counts. */
static void
test_lines(void **state)
{
	static const char text[] =
		"k1\te1\nk1\te2\n\n\t\nk2\nk3\te3\thangs\nk3\te3\tfails\nk3\te4\n"
		"k4\te5\tf\tmore\nk5\t\nk6\te6";
	Tunings t = {0};

	(void)state;
	tunings_parse(&t, text, sizeof(text) - 1);
	assert_int_equal(t.n, 4);
	assert_string_equal(tunings_choice(&t, "k1"), "e1");
	assert_string_equal(tunings_choice(&t, "k3"), "e4");
	assert_string_equal(tunings_fault(&t, "k3", "e3"), "hangs");
	assert_null(tunings_choice(&t, "k4"));
	assert_string_equal(tunings_choice(&t, "k6"), "e6");
	tunings_free(&t);
	tunings_parse(&t, "", 0);
	assert_int_equal(t.n, 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_fastest_is_taken),
		cmocka_unit_test(test_first_runs_do_not_count),
		cmocka_unit_test(test_faulty_engines_are_left_out),
		cmocka_unit_test(test_an_engine_breaks_the_device),
		cmocka_unit_test(test_a_plan),
		cmocka_unit_test(test_an_engine_hangs),
		cmocka_unit_test(test_nothing_is_tried),
		cmocka_unit_test(test_a_lost_choice),
		cmocka_unit_test(test_too_little_memory),
		cmocka_unit_test(test_time),
		cmocka_unit_test(test_lines),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

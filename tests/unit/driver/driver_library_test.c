/* The compiler as a library: one process compiles good, broken and unsupported models by turns, and two threads compile at once.
 * A process that compiles only one model makes the same tables to the byte. Two threads also check gradients at once: each
 * checks the elements that it checks alone. */
#include "codegen/codegen.h"
#include "driver/driver.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MODELS "tests/models/"
enum { USUAL_ROUNDS = 20, THOROUGH_ROUNDS = 200 };

static const char *exe; /* this program */
static char folder[] = "/tmp/driver_library_XXXXXX";

typedef struct {
	const char *model, *loss, *optimizer, *precision;
	int exit_code; /* of a compile */
} Case;
static const Case cases[] = {
	{MODELS "mlp_digits/model.onnx", "cross_entropy", "adamw", NULL, EXIT_OK},
	{"broken.onnx", "cross_entropy", "adamw", NULL, EXIT_INVALID},
	{MODELS "mlp_diabetes/model.onnx", "mse", "sgd", "f64", EXIT_OK},
	{"unsupported.onnx", "cross_entropy", "adamw", NULL, EXIT_UNSUPPORTED},
	{MODELS "mlp_digits/model.onnx", "mystery", "adamw", NULL, EXIT_USAGE},
	{MODELS "mlp_digits/model.onnx", "cross_entropy", "muon", "bf16", EXIT_OK},
	{MODELS "mlp_digits/model.onnx", "cross_entropy", "adamw", "f8", EXIT_USAGE},
};

typedef struct {
	void *bytes; /* the tables; NULL after a fault */
	int64_t n;
	int exit_code;
} Compiled;
static Compiled apart[COUNT(cases)]; /* by a process for each case */

static Compiled
compile(const Case *c)
{
	Arena *arena = arena_new();
	FILE *quiet = fopen("/dev/null", "w");
	Diag *diag = diag_new("test", quiet);
	Options o = {.input = c->model[0] == 't' ? c->model
	                                         : arena_printf(arena, "%s/%s", folder, c->model),
	             .loss = c->loss,
	             .precision = c->precision,
	             .target = "cpu:x86-64-v3",
	             .batch = 8};
	Session s;
	Format f;
	Compiled made = {0};

	if (optimizer_parse(c->optimizer, &o.optimizer, arena, diag) &&
	    options_complete(&o, arena, diag)) {
		if (session_open(&s, &o, OPEN_DIMS_REFUSE, arena, diag) &&
		    session_tables(&s, true, &f)) {
			made.n = f.header->bytes;
			made.bytes = memory_get((size_t)made.n);
			memcpy(made.bytes, f.header, (size_t)made.n);
		}
		session_close(&s);
	}
	made.exit_code = diag_exit_code(diag);
	diag_free(diag);
	fclose(quiet);
	arena_free(arena);
	return made;
}

static void
expect_same(const Compiled *a, const Compiled *b)
{
	assert_int_equal(a->exit_code, b->exit_code);
	assert_int_equal(a->n, b->n);
	if (a->n)
		assert_memory_equal(a->bytes, b->bytes, (size_t)a->n);
}

/* ---- a process for each compile: this program with the number of a case and a file as arguments */
static int
compile_in_process(const char *number, const char *path)
{
	Compiled made = compile(&cases[atoi(number)]);
	FILE *file = fopen(path, "wb");

	if (!file || (made.n && fwrite(made.bytes, 1, (size_t)made.n, file) != (size_t)made.n) ||
	    fclose(file))
		return 99;
	memory_free(made.bytes);
	return made.exit_code;
}

static Compiled
compile_apart(int number)
{
	char path[128], text[16];
	Compiled made = {0};
	int status;
	pid_t child;

	snprintf(path, sizeof(path), "%s/%d.tables", folder, number);
	snprintf(text, sizeof(text), "%d", number);
	child = fork();
	if (child == 0) {
		execl(exe, exe, text, path, folder, NULL);
		_exit(98);
	}
	assert_true(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
	made.exit_code = WEXITSTATUS(status);
	FILE *file = fopen(path, "rb");
	assert_non_null(file);
	fseek(file, 0, SEEK_END);
	made.n = ftell(file);
	rewind(file);
	made.bytes = memory_get((size_t)made.n + 1);
	assert_int_equal(fread(made.bytes, 1, (size_t)made.n, file), made.n);
	fclose(file);
	return made;
}

static void
one_process_compiles_many_models(void **state)
{
	int rounds = getenv("GRADC_THOROUGH") ? THOROUGH_ROUNDS : USUAL_ROUNDS;

	(void)state;
	for (int i = 0; i < rounds; i++) {
		Compiled made = compile(&cases[i % COUNT(cases)]);
		expect_same(&made, &apart[i % COUNT(cases)]);
		memory_free(made.bytes);
	}
}

/* Two threads compile at one time, usually two models. */
static void *
compile_upwards(void *at)
{
	Compiled *made = at;

	for (int i = 0; i < COUNT(cases); i++)
		made[i] = compile(&cases[i]);
	return NULL;
}

static void *
compile_downwards(void *at)
{
	Compiled *made = at;

	for (int i = COUNT(cases) - 1; i >= 0; i--)
		made[i] = compile(&cases[i]);
	return NULL;
}

static void
two_threads_compile_at_once(void **state)
{
	Compiled made[2][COUNT(cases)];
	pthread_t threads[2];

	(void)state;
	assert_int_equal(pthread_create(&threads[0], NULL, compile_upwards, made[0]), 0);
	assert_int_equal(pthread_create(&threads[1], NULL, compile_downwards, made[1]), 0);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < COUNT(cases); i++)
		for (int k = 0; k < 2; k++) {
			expect_same(&made[k][i], &apart[i]);
			memory_free(made[k][i].bytes);
		}
}

/* ---- two threads check gradients by the interpreter */
/* The worst difference of each parameter. A gradient of few of its elements is checked, so the choice of other elements shows. */
typedef struct {
	int n;
	WorstDifference at[8];
} Checked;

static void
write_rows(const char *name, int columns)
{
	float rows[8 * 10];
	int64_t dims[] = {8, columns};
	char path[128];

	for (int i = 0; i < 8 * columns; i++)
		rows[i] = (float)(i * 37 % 19) / 8 - 1;
	snprintf(path, sizeof(path), "%s/%s.npy", folder, name);
	assert_null(npy_write(path, F32, 2, dims, rows));
}

static void *
check_gradients(void *at)
{
	Checked *out = at;
	Arena *arena = arena_new();
	FILE *quiet = fopen("/dev/null", "w");
	Diag *diag = diag_new("test", quiet);
	Options o = {.input = MODELS "mlp_diabetes/model.onnx",
	             .loss = "mse",
	             .precision = "f64",
	             .check_gradients = 20,
	             .batch = 8};
	Session s = {0};
	Gradients gradients;

	vec_push(arena, &o.inputs, arena_printf(arena, "x=%s/x.npy", folder));
	vec_push(arena, &o.inputs, arena_printf(arena, "labels=%s/labels.npy", folder));
	*out = (Checked){0};
	if (options_complete(&o, arena, diag) &&
	    session_open(&s, &o, OPEN_DIMS_FROM_INPUTS, arena, diag) &&
	    interpret_gradients(&s, STAGE_TRAIN, &gradients))
		for (int i = 0; i < gradients.checked.n && i < COUNT(out->at); i++)
			out->at[out->n++] = gradients.checked.at[i].worst;
	session_close(&s);
	diag_free(diag);
	fclose(quiet);
	arena_free(arena);
	return NULL;
}

static void
two_threads_check_the_elements_that_one_checks(void **state)
{
	Checked alone, made[2];
	pthread_t threads[2];

	(void)state;
	write_rows("x", 10);
	write_rows("labels", 1);
	check_gradients(&alone);
	assert_true(alone.n > 2);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, check_gradients, &made[i]), 0);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(made[i].n, alone.n);
		for (int k = 0; k < alone.n; k++)
			assert_int_equal(made[i].at[k].at, alone.at[k].at);
	}
}

/* ---- models that are refused */
static void
write_model(const char *name, const char *bytes, size_t n)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	FILE *file = fopen(path, "wb");
	assert_non_null(file);
	assert_int_equal(fwrite(bytes, 1, n, file), n);
	fclose(file);
}

static int
make_models(void **state)
{
	static char bytes[1 << 20];
	FILE *file = fopen(MODELS "mlp_digits/model.onnx", "rb");

	(void)state;
	assert_non_null(file);
	size_t n = fread(bytes, 1, sizeof(bytes), file);
	fclose(file);
	assert_true(mkdtemp(folder) && n > 1000 && n < sizeof(bytes));
	write_model("broken.onnx", bytes, n / 2);
	for (char *op = bytes; (op = memmem(op, n - (size_t)(op - bytes), "Gemm", 4));)
		memcpy(op, "Gemx", 4);
	write_model("unsupported.onnx", bytes, n);
	for (int i = 0; i < COUNT(cases); i++) {
		apart[i] = compile_apart(i);
		assert_int_equal(apart[i].exit_code, cases[i].exit_code);
		assert_int_equal(apart[i].n > 0, cases[i].exit_code == EXIT_OK);
	}
	return 0;
}

static int
remove_models(void **state)
{
	char command[128];

	(void)state;
	for (int i = 0; i < COUNT(cases); i++)
		memory_free(apart[i].bytes);
	snprintf(command, sizeof(command), "rm -r %s", folder);
	return system(command);
}

int
main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			two_threads_compile_at_once), /* first: nothing is initialized yet */
		cmocka_unit_test(one_process_compiles_many_models),
		cmocka_unit_test(two_threads_check_the_elements_that_one_checks),
	};

	exe = argv[0];
	if (argc == 4) {
		strcpy(folder, argv[3]);
		return compile_in_process(argv[1], argv[2]);
	}
	return cmocka_run_group_tests(tests, make_models, remove_models);
}

/* Data that training must not see: each fault is exit 6 with a line that names file, row and value. Inputs that the user
 * forgot to name are exit 2. */
#include "runtime/data/sources.h"
#include "runtime/gradc.h"
#include "runtime/run/run.h"
#include "tests/unit/runtime/runtime_tiny.h"

/* Opens, binds and takes one step; gives the first fault. */
static Status
try_step(Tiny *t)
{
	Gradc *run;
	GradcStep step;
	Status status = gradc_open(&t->model, &t->options, t->diag, &run);

	if (!status)
		status = gradc_bind_data(run);
	if (!status)
		status = gradc_step(run, &step);
	gradc_close(run);
	return status;
}

static void
expect_fault(Tiny *t, int exit_code, const char *words)
{
	expect_status(try_step(t), exit_code, words);
	tiny_close(t);
}

static Tiny
with_x(DType dtype, int rank, const int64_t *dims, const void *data)
{
	Tiny t = tiny_open(true, 16);

	t.options.shuffle = false;
	must(npy_write(t.options.data.at[0].value, dtype, rank, dims, data));
	return t;
}

static const int64_t sixteen[] = {16, 1};

static void
test_nan(void **state)
{
	double x[16] = {[2] = NAN};
	Tiny t = with_x(F64, 1, sixteen, x);

	expect_fault(&t, EXIT_DATA, "x.npy: row 2: \"x\": element 0 is nan");
}

static void
test_dtype(void **state)
{
	int64_t x[16] = {0};
	Tiny t = with_x(S64, 1, sixteen, x);

	expect_fault(&t, EXIT_DATA, "x.npy: values are s64, \"x\" takes f32");
}

static void
test_f32_is_as_good_as_f64(void **state)
{
	float x[16] = {1, 2, 3};
	Tiny t = with_x(F32, 1, sixteen, x);

	must(try_step(&t));
	tiny_close(&t);
}

static void
test_scale(void **state)
{
	uint8_t x[16] = {255, 1};
	Tiny t = with_x(U8, 1, sixteen, x);
	GradcPair scale = {"x", "0.5,1"};

	vec_push(t.arena, &t.options.scale, scale);
	must(try_step(&t));
	expect_fault((t.options.scale.n = 0, &t), EXIT_DATA, "--scale or --mean-std converts them");
}

static void
test_shape(void **state)
{
	double x[16] = {0};
	Tiny t = with_x(F64, 2, sixteen, x);

	expect_fault(&t, EXIT_DATA, "x.npy: shape [16,1], \"x\" takes any number of samples of []");
}

static void
test_rows_differ(void **state)
{
	const int64_t twelve[] = {12};
	double x[12] = {0};
	Tiny t = with_x(F64, 1, twelve, x);

	expect_fault(&t, EXIT_DATA, "x.npy has 12 samples, ");
}

static void
test_too_few_rows(void **state)
{
	Tiny t = tiny_open(true, 3);

	expect_fault(&t, EXIT_DATA, "3 samples are less than the 4 of a step");
}

static void
test_truncated(void **state)
{
	Tiny t = tiny_open(true, 16);

	assert_int_equal(truncate(t.options.data.at[0].value, 140), 0);
	expect_fault(&t, EXIT_DATA, "x.npy");
}

/* The file shrinks while it is in use. */
static void
test_truncated_later(void **state)
{
	Tiny t = tiny_open(true, 16);
	Gradc *run;
	GradcStep step;

	must(gradc_open(&t.model, &t.options, t.diag, &run));
	must(gradc_bind_data(run));
	assert_int_equal(truncate(t.options.data.at[0].value, 130), 0);
	Status status = gradc_step(run, &step);
	assert_non_null(status);
	assert_int_equal(status->exit_code, EXIT_DATA);
	status_free(status);
	gradc_close(run);
	tiny_close(&t);
}

static void
test_missing(void **state)
{
	Tiny t = tiny_open(true, 16);

	assert_int_equal(unlink(t.options.data.at[1].value), 0);
	expect_fault(&t, EXIT_SYSTEM, "y.npy: No such file");
}

static void
test_unknown_name(void **state)
{
	Tiny t = tiny_open(true, 16);
	GradcPair pair = {"nothing", t.options.data.at[0].value};

	vec_push(t.arena, &t.options.data, pair);
	expect_fault(&t, EXIT_USAGE, "--data nothing: the model has no input of this name");
}

static void
test_no_data(void **state)
{
	Tiny t = tiny_open(true, 16);

	t.options.data.n = 1;
	expect_fault(&t, EXIT_USAGE, "\"labels\" (f32 [4]) has no data");
}

static void
test_weights_of_another(void **state)
{
	Tiny t = tiny_open(true, 16);

	must(file_write(t.options.weights, "12345678", 8));
	expect_fault(&t, EXIT_SYSTEM, "not the weights of this executable");
}

static void
test_weights_size(void **state)
{
	Tiny t = tiny_open(true, 16);

	must(file_write(t.options.weights, "1234", 4));
	expect_fault(&t, EXIT_SYSTEM, "4 bytes, the executable's weights have 8");
}

static void
test_weights_missing(void **state)
{
	Tiny t = tiny_open(true, 16);

	t.model.file = t.options.data.at[0].value;
	t.options.weights = NULL;
	expect_fault(&t, EXIT_SYSTEM, "--weights FILE");
}

static void
test_several_files_in_order(void **state)
{
	Tiny t = tiny_open(true, 16);
	double x[6] = {1, 1, 1, 1, 1, NAN};
	const int64_t six[] = {6}, ten[] = {10};
	double rest[10] = {0};
	GradcPair second = {"x", tiny_path(&t, "x2.npy")};

	must(npy_write(t.options.data.at[0].value, F64, 1, ten, rest));
	must(npy_write(second.value, F64, 1, six, x));
	vec_push(t.arena, &t.options.data, second);
	t.options.shuffle = false;
	t.options.accumulate = 4;
	expect_fault(&t, EXIT_DATA, "x2.npy: row 5: ");
}

/* Labels from a table of files against bounds, as validate_values sees them. */
static void
test_bounds(void **state)
{
	const PortRecord port = {
		.dtype = S64, .file_dtype = S64, .max = 9, .ignore = -100, .bounded = 2};
	const Source source = {.port = &port, .name = "labels", .elements = 2};
	const DataFile file = {.path = "labels.npy", .info = {.dtype = S32}};
	const int32_t good[] = {0, 9, -100, 5}, high[] = {0, 1, 2, 10}, low[] = {0, -1, 2, 3};

	must(validate_values(&source, &file, 4, 4, good));
	Status status = validate_values(&source, &file, 4, 4, high);
	assert_string_equal(
		status->message,
		"labels.npy: row 5: \"labels\": value 10 is not in [0, 9] nor the ignored -100");
	status_free(status);
	status = validate_values(&source, &file, 4, 4, low);
	assert_non_null(strstr(status->message, "row 4: \"labels\": value -1"));
	status_free(status);
}

static void
test_integers_must_fit(void **state)
{
	const PortRecord port = {.dtype = S32, .file_dtype = S32};
	const Source source = {.port = &port, .name = "x", .elements = 1};
	const DataFile file = {.path = "x.npy", .info = {.dtype = S64}};
	const int64_t values[] = {1, 1ll << 40};

	Status status = validate_values(&source, &file, 0, 2, values);
	assert_non_null(strstr(status->message, "row 1: \"x\": value 1099511627776"));
	status_free(status);
}

static void
test_token_files(void **state)
{
	Tiny t = tiny_open(true, 16);
	char *path = tiny_path(&t, "a.bin");
	FileSet set;

	must(file_write(path, "abcd", 4));
	must(tokens_open(t.arena, path, false, &set));
	assert_int_equal(set.files[0].info.n_elements, 2);
	files_close(&set);
	must(tokens_open(t.arena, path, true, &set));
	assert_int_equal(set.files[0].info.n_elements, 4);
	files_close(&set);
	must(file_write(path, "abc", 3));
	Status status = tokens_open(t.arena, path, false, &set);
	assert_non_null(status);
	assert_int_equal(status->exit_code, EXIT_DATA);
	status_free(status);
	files_close(&set);
	tiny_close(&t);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nan),
		cmocka_unit_test(test_dtype),
		cmocka_unit_test(test_f32_is_as_good_as_f64),
		cmocka_unit_test(test_scale),
		cmocka_unit_test(test_shape),
		cmocka_unit_test(test_rows_differ),
		cmocka_unit_test(test_too_few_rows),
		cmocka_unit_test(test_truncated),
		cmocka_unit_test(test_truncated_later),
		cmocka_unit_test(test_missing),
		cmocka_unit_test(test_unknown_name),
		cmocka_unit_test(test_no_data),
		cmocka_unit_test(test_weights_of_another),
		cmocka_unit_test(test_weights_size),
		cmocka_unit_test(test_weights_missing),
		cmocka_unit_test(test_several_files_in_order),
		cmocka_unit_test(test_bounds),
		cmocka_unit_test(test_integers_must_fit),
		cmocka_unit_test(test_token_files),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

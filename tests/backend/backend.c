/* Runs ONNX's backend tests (https://github.com/onnx/onnx/blob/main/docs/OnnxBackendTest.md) through `gradc run` in one engine,
 * all in one process, and compares how each ends with a manifest.
 *
 *	backend DATA MANIFEST interp|compiled FOLDER [--write | WORD...]
 *
 * DATA has node/, simple/ and further folders. FOLDER is for results. With --write, prints the new manifest. With WORDs, runs only
 * tests whose names contain a WORD. Exit code 1 if a test ends differently than the manifest says. */
#include "frontend/frontend.h"
#include "tools/tools.h"

#include "onnx.pb-c.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The suite's own tolerances, as in numpy.testing.assert_allclose. */
#define RTOL 1e-3
#define ATOL 1e-7

/* The ways in which a test may end, named as in the manifest. */
typedef enum {
	PASSES,
	REFUSED, /* exit code 4: the model asks for something unsupported */
	FAILS,   /* another exit code */
	DIFFERS, /* results differ in type, shape or values */
	RANDOM, /* expected numbers are random draws of NumPy; types, shapes and distribution are right */
	N_ENDS,
} End;
static const char *const end_names[N_ENDS] = {"pass", "refused", "fails", "differs", "random"};
enum { N_ENGINES = 2 };
static const char *const engines[N_ENGINES] = {"interp", "compiled"};

typedef struct {
	const char *name; /* "node/test_add" */
	End expected[N_ENGINES];
} Case;
typedef struct {
	const char *data, *folder;
	int engine;
	VEC(Case) cases;
} Suite;
/* One test; its memory is in `arena`. */
typedef struct {
	const Suite *suite;
	Arena *arena;
	const char *path, *results; /* folders: the test's, and the results' */
	Onnx__ModelProto *model;
	Text why; /* one line: why the test did not pass */
} Run;

/* ---- results */
static bool
read_tensor(Run *r, const char *path, NamedTensor *out)
{
	void *data = NULL;
	Status status = tensor_proto_read(r->arena, path, &out->dtype, &out->rank, out->dims,
	                                  &data);

	out->data = data;
	if (status)
		text_printf(&r->why, "%s", status->message);
	status_free(status);
	return !status;
}

static double
number(const NamedTensor *t, int64_t i)
{
	return dtype_is_float(t->dtype) ? dtype_load_float(t->dtype, t->data, i)
	                                : (double)dtype_load_int(t->dtype, t->data, i);
}

static bool
is_near(double got, double want)
{
	if (isnan(want) || isinf(want) || isnan(got) || isinf(got))
		return (isnan(want) && isnan(got)) || got == want;
	return fabs(got - want) <= ATOL + RTOL * fabs(want);
}

static bool
is_equal(Run *r, const char *name, const NamedTensor *got, const NamedTensor *want)
{
	int64_t n = 1;

	if (got->dtype != want->dtype || got->rank != want->rank ||
	    memcmp(got->dims, want->dims, sizeof(int64_t) * (size_t)got->rank) != 0) {
		text_printf(&r->why, "%s: %s%s, not %s%s", name, dtype_info[got->dtype].name,
		            shape_text(r->arena, got->rank, got->dims),
		            dtype_info[want->dtype].name,
		            shape_text(r->arena, want->rank, want->dims));
		return false;
	}
	for (int i = 0; i < want->rank; i++)
		n *= want->dims[i];
	for (int64_t i = 0; i < n; i++)
		if (!is_near(number(got, i), number(want, i))) {
			text_printf(&r->why, "%s: element %lld is %.9g, not %.9g", name,
			            (long long)i, number(got, i), number(want, i));
			return false;
		}
	return true;
}

static char *
data_path(const Run *r, const char *what, size_t i)
{
	return arena_printf(r->arena, "%s/test_data_set_0/%s_%zu.pb", r->path, what, i);
}

/* What the type of a model's output is: a tensor, a sequence or an optional. */
static GivenList
kind_of(const Onnx__ValueInfoProto *value)
{
	const Onnx__TypeProto *t = value->type;
	GivenList list = {.name = value->name};

	if (t && t->value_case == ONNX__TYPE_PROTO__VALUE_OPTIONAL_TYPE) {
		list.optional = true;
		t = t->optional_type->elem_type;
	}
	list.sequence = t && t->value_case == ONNX__TYPE_PROTO__VALUE_SEQUENCE_TYPE;
	return list;
}

static bool
read_list(Run *r, const char *path, GivenList *out)
{
	Status status = list_proto_read(r->arena, path, out);

	if (status)
		text_printf(&r->why, "%s", status->message);
	status_free(status);
	return !status;
}

static bool
lists_are_equal(Run *r, const GivenList *got, const GivenList *want)
{
	if (got->n != want->n || got->absent != want->absent) {
		text_printf(&r->why, "%s: %d elements, not %d", got->name, got->n, want->n);
		return false;
	}
	for (int i = 0; i < got->n; i++)
		if (!is_equal(r, got->name, &got->elements[i], &want->elements[i]))
			return false;
	return true;
}

/* Compares a result's file with the expected file. */
static bool
is_right(Run *r, const Onnx__ValueInfoProto *output, const char *file, const char *expected)
{
	GivenList got = kind_of(output), want = got;
	NamedTensor a, b;

	if (got.sequence || got.optional)
		return read_list(r, expected, &want) && read_list(r, file, &got) &&
		       lists_are_equal(r, &got, &want);
	return read_tensor(r, expected, &b) && read_tensor(r, file, &a) &&
	       is_equal(r, output->name, &a, &b);
}

static const char *
result_path(Run *r, json_t *names, const char *name)
{
	const char *file = json_string_value(json_object_get(json_object_get(names, name), "file"));

	if (!file)
		text_printf(&r->why, "%s: no result", name);
	return file ? path_join(r->arena, r->results, file) : NULL;
}

static bool
all_are_right(Run *r, json_t *names)
{
	const Onnx__GraphProto *g = r->model->graph;

	for (size_t i = 0; i < g->n_output; i++) {
		const char *name = g->output[i]->name;
		const char *file = *name ? result_path(r, names, name) : NULL;
		if (*name && (!file || !is_right(r, g->output[i], file, data_path(r, "output", i))))
			return false;
	}
	return true;
}

/* ---- tests whose expected numbers are random draws of NumPy */
static const Onnx__NodeProto *
find_node(const Run *r, const char *op)
{
	const Onnx__GraphProto *g = r->model->graph;

	for (size_t i = 0; i < g->n_node; i++)
		if (strcmp(g->node[i]->op_type, op) == 0)
			return g->node[i];
	return NULL;
}

static int64_t
elements(const NamedTensor *t)
{
	int64_t n = 1;

	for (int i = 0; i < t->rank; i++)
		n *= t->dims[i];
	return n;
}

static bool
is_alike(const NamedTensor *got, const NamedTensor *want)
{
	return got->dtype == want->dtype && got->rank == want->rank &&
	       memcmp(got->dims, want->dims, sizeof(int64_t) * (size_t)got->rank) == 0;
}

/* Is the sum within five standard deviations of the mean? */
static bool
is_likely(Run *r, const char *what, double sum, double mean, double variance)
{
	if (fabs(sum - mean) <= 5 * sqrt(variance))
		return true;
	text_printf(&r->why, "%s: %g of about %g", what, sum, mean);
	return false;
}

/* Each element must be 0 or 1, and 1 with the probability in the input. ONNX's own decomposition, a Greater, swaps 0 and 1. */
static bool
is_bernoulli(Run *r, const NamedTensor *p, const NamedTensor *y)
{
	bool reversed = find_node(r, "Greater") != NULL;
	double ones = 0, mean = 0, variance = 0;

	for (int64_t i = 0; i < elements(y); i++) {
		double one = reversed ? 1 - number(p, i) : number(p, i);
		if (number(y, i) != 0 && number(y, i) != 1) {
			text_printf(&r->why, "element %lld is %g", (long long)i, number(y, i));
			return false;
		}
		ones += number(y, i);
		mean += one;
		variance += one * (1 - one);
	}
	return is_likely(r, "ones", ones, mean, variance);
}

/* Each element must be 0, or kept and scaled; if there is a mask, it must say which. */
static bool
is_dropout(Run *r, const NamedTensor *x, const NamedTensor *y, const NamedTensor *mask)
{
	NamedTensor ratio;
	double kept = 0, n = (double)elements(y), p = 0.5;

	if (access(data_path(r, "input", 1), R_OK) == 0) {
		if (!read_tensor(r, data_path(r, "input", 1), &ratio))
			return false;
		p = number(&ratio, 0);
	}
	for (int64_t i = 0; i < elements(y); i++) {
		bool zero = number(y, i) == 0;
		if ((!zero && !is_near(number(y, i), number(x, i) / (1 - p))) ||
		    (mask && (number(mask, i) != 0) == zero)) {
			text_printf(&r->why, "element %lld is %g of %g", (long long)i, number(y, i),
			            number(x, i));
			return false;
		}
		kept += !zero;
	}
	return is_likely(r, "kept elements", kept, n * (1 - p), n * p * (1 - p));
}

/* The result differs from the expected numbers; is it a valid random draw? */
static bool
is_drawn(Run *r, json_t *names)
{
	const Onnx__GraphProto *g = r->model->graph;
	bool dropout = find_node(r, "Dropout") != NULL;
	NamedTensor x, got[2], want[2];

	if (!dropout && !find_node(r, "Bernoulli") && !find_node(r, "RandomUniformLike"))
		return false;
	r->why.n = 0;
	if (g->n_output > 2 || !read_tensor(r, data_path(r, "input", 0), &x))
		return false;
	for (size_t i = 0; i < g->n_output; i++) {
		const char *file = result_path(r, names, g->output[i]->name);
		if (!file || !read_tensor(r, file, &got[i]) ||
		    !read_tensor(r, data_path(r, "output", i), &want[i]))
			return false;
		if (!is_alike(&got[i], &want[i]) || elements(&got[i]) != elements(&x)) {
			text_printf(&r->why, "output %zu has another type or shape", i);
			return false;
		}
	}
	return dropout ? is_dropout(r, &x, &got[0], g->n_output > 1 ? &got[1] : NULL)
	               : is_bernoulli(r, &x, &got[0]);
}

static End
compare(Run *r)
{
	json_t *names = json_load_file(path_join(r->arena, r->results, "names.json"), 0, NULL);
	End end = !names                    ? FAILS
	          : all_are_right(r, names) ? PASSES
	          : is_drawn(r, names)      ? RANDOM
	                                    : DIFFERS;

	json_decref(names);
	return end;
}

/* ---- one test */
static void
add_first_line(Text *out, const char *text)
{
	const char *from = text ? strstr(text, "error: ") : NULL;

	from = from ? from + strlen("error: ") : text ? text : "";
	text_printf(out, "%.*s", (int)strcspn(from, "\n"), from);
}

static int
call_gradc(Run *r, int argc, char **argv)
{
	char *said = NULL;
	size_t n = 0;
	FILE *stream = open_memstream(&said, &n);
	Diag *diag = diag_new("gradc", stream);
	Options o = {0};
	int code = EXIT_USAGE;

	if (options_parse(&o, command_find("run"), argc, argv, r->arena, diag, &code))
		code = command_run(&o, r->arena, diag);
	diag_free(diag);
	fclose(stream);
	if (code)
		add_first_line(&r->why, said);
	free(said);
	return code;
}

static End
run_model(Run *r)
{
	const Onnx__GraphProto *g = r->model->graph;
	char **argv = NEW_ARRAY(r->arena, char *, 2 * g->n_input + 8);
	int argc = 0;

	argv[argc++] = "run";
	argv[argc++] = path_join(r->arena, r->path, "model.onnx");
	argv[argc++] = arena_printf(r->arena, "--engine=%s", engines[r->suite->engine]);
	argv[argc++] = "--output-format=pb";
	argv[argc++] = arena_printf(r->arena, "--output-dir=%s", r->results);
	for (size_t i = 0; i < g->n_input; i++) {
		char *file = data_path(r, "input", i);
		if (access(file, R_OK) != 0)
			continue;
		argv[argc++] = "--input";
		argv[argc++] = arena_printf(r->arena, "%s=%s", g->input[i]->name, file);
	}
	int code = call_gradc(r, argc, argv);
	return code == EXIT_OK ? compare(r) : code == EXIT_UNSUPPORTED ? REFUSED : FAILS;
}

static End
run_case(const Suite *suite, const Case *c, Text *why)
{
	Arena *arena = arena_new();
	Run r = {.suite = suite,
	         .arena = arena,
	         .path = path_join(arena, suite->data, c->name),
	         .results = arena_printf(arena, "%s/%s.%s", suite->folder, engines[suite->engine],
	                                 strrchr(c->name, '/') + 1)};
	void *bytes;
	int64_t n;
	End end = FAILS;
	Status status = file_read_regular(arena, path_join(arena, r.path, "model.onnx"),
	                                  EXIT_SYSTEM, INT64_MAX, &bytes, &n);

	if (!status)
		r.model = onnx__model_proto__unpack(NULL, (size_t)n, bytes);
	if (r.model)
		end = run_model(&r);
	else
		text_printf(&r.why, "%s", status ? status->message : "not a model");
	status_free(status);
	if (r.model)
		onnx__model_proto__free_unpacked(r.model, NULL);
	*why = r.why;
	arena_free(arena);
	return end;
}

/* ---- the manifest: one line per test, "node/test_add pass pass" */
static End
parse_end(const char *word)
{
	for (int e = 0; e < N_ENDS; e++)
		if (strcmp(word, end_names[e]) == 0)
			return (End)e;
	return N_ENDS;
}

static bool
read_manifest(Suite *s, const char *path, Arena *arena)
{
	FILE *in = fopen(path, "r");
	char line[512], name[256], of[N_ENGINES][16];

	for (int n = 1; in && fgets(line, sizeof(line), in); n++) {
		if (*line == '#' || *line == '\n')
			continue;
		Case c = {0};
		bool ok = sscanf(line, "%255s %15s %15s", name, of[0], of[1]) == 3 &&
		          strchr(name, '/');
		for (int e = 0; ok && e < N_ENGINES; e++)
			ok = (c.expected[e] = parse_end(of[e])) != N_ENDS;
		if (!ok) {
			fprintf(stderr, "%s:%d: need NAME and how it ends in each engine\n", path,
			        n);
			fclose(in);
			return false;
		}
		c.name = arena_strdup(arena, name);
		vec_push(arena, &s->cases, c);
	}
	if (!in)
		perror(path);
	else
		fclose(in);
	return in != NULL;
}

static bool
is_chosen(const Case *c, char *const *words)
{
	bool chosen = !*words;

	for (; *words; words++)
		chosen |= strstr(c->name, *words) != NULL;
	return chosen;
}

int
main(int argc, char **argv)
{
	Arena *arena = arena_new();
	Suite suite = {0};
	int changed = 0, n = 0;

	if (argc < 5 || !read_manifest(&suite, argv[2], arena))
		return 2;
	bool writes = argc == 6 && strcmp(argv[5], "--write") == 0;
	suite.data = argv[1];
	suite.engine = strcmp(argv[3], engines[1]) == 0;
	suite.folder = argv[4];
	memory_serve_json(true);
	for (int i = 0; i < suite.cases.n; i++) {
		const Case *c = &suite.cases.at[i];
		Text why = {0};
		if (!writes && !is_chosen(c, argv + 5))
			continue;
		End end = run_case(&suite, c, &why), expected = c->expected[suite.engine];
		n++;
		if (writes)
			printf("%s %s\n", c->name, end_names[end]);
		else if (end != expected || argc > 5)
			printf("%s %s: %s, the manifest says %s: %s\n", c->name,
			       engines[suite.engine], end_names[end], end_names[expected],
			       why.at ? why.at : "");
		fflush(stdout);
		changed += end != expected;
		text_free(&why);
	}
	if (!writes)
		printf("%d of %d as the manifest says\n", n - changed, n);
	arena_free(arena);
	return changed && !writes;
}

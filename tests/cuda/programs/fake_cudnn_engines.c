/* Engines, and plans as text. FAKE_CUDNN_ENGINES lists the engines of the heuristic, each as NUMBER:WORKSPACE:NOTES,
 * separated by blanks. Engines of the fallback follow behind a bar. NOTES is the sum of 1 << note. */
#include "tests/cuda/programs/fake_cudnn.h"

#include <stdlib.h>
#include <string.h>

enum {
	MOST_ENGINES = 64,
	N_NUMBERS = sizeof(FakeEngine) / sizeof(int64_t),
	MOST_CHARACTERS = 1 << 16
};
_Static_assert(sizeof(FakeEngine) % sizeof(int64_t) == 0, "an engine is numbers");

/* ---- the heuristic */
/* The default lists: engines with matrix units, which round f32 to tf32, and engines without. */
static const char *
list_of(int mode)
{
	const char *list = getenv("FAKE_CUDNN_ENGINES");

	list = list ? list : "67:4096:1 1:4096:0|0:4096:0";
	if (mode == CUDNN_HEURISTIC_A)
		return list;
	list = strchr(list, '|');
	return list ? list + 1 : "";
}

/* Is the padding behind x as large as before it? Fast engines require it. */
static bool
is_even(const FakeWindows *w)
{
	for (int64_t i = 0; i < w->n; i++)
		if (w->low[i] != w->high[i])
			return false;
	return true;
}

/* Finds no engine if operands and result have different types. */
static int64_t
find_engines(const FakeHeuristic *h, FakeEngine engines[MOST_ENGINES])
{
	const FakeTensor *t = h->operation.tensors;
	const char *at = list_of(h->mode);
	int64_t n = 0;

	if (t[FAKE_X].type != t[FAKE_W].type || t[FAKE_W].type != t[FAKE_Y].type ||
	    (h->mode == CUDNN_HEURISTIC_A && !is_even(&h->operation.windows)))
		return 0;
	while (*at && *at != '|' && n < MOST_ENGINES) {
		long long number, workspace, notes;
		int length;
		if (sscanf(at, "%lld:%lld:%lld%n", &number, &workspace, &notes, &length) != 3)
			abort();
		engines[n++] = (FakeEngine){number, workspace, notes, h->device, h->operation};
		at += length;
		at += strspn(at, " ");
	}
	return n;
}

/* ---- plans as text */
static void
print_plan(Text *out, const FakeEngine *e)
{
	const int64_t *numbers = (const int64_t *)e;

	text_printf(out, "{\"cudnn\":%d,\"plan\":[", FAKE_VERSION);
	for (int i = 0; i < N_NUMBERS; i++)
		text_printf(out, "%s%lld", i ? "," : "", (long long)numbers[i]);
	text_add(out, "]}");
}

int
fake_plan_from_text(const char *text, int64_t n, int64_t device, FakeEngine *out)
{
	static _Thread_local char copy[MOST_CHARACTERS];
	int64_t *numbers = (int64_t *)out;
	int version, length = 0;

	if (n >= MOST_CHARACTERS)
		return BAD_VALUE;
	memcpy(copy, text, (size_t)n);
	copy[n] = 0;
	if (sscanf(copy, "{\"cudnn\":%d,\"plan\":[%n", &version, &length) != 1 || !length)
		return BAD_VALUE;
	if (version != FAKE_VERSION)
		return OTHER_VERSION;
	char *at = copy + length;
	for (int i = 0; i < N_NUMBERS; i++) {
		numbers[i] = strtoll(at, &at, 10);
		if (*at++ != (i == N_NUMBERS - 1 ? ']' : ','))
			return BAD_VALUE;
	}
	if (strcmp(at, "}") != 0)
		return BAD_VALUE;
	if (out->device != device)
		return OTHER_GPU;
	return out->workspace >= 0 ? fake_check_operation(&out->operation) : BAD_VALUE;
}

/* ---- reading */
static int
fill(void *descriptor, int type, const FakeEngine *engine)
{
	FakeDescriptor *d = descriptor;

	if (!d || d->type != type || d->finished)
		return BAD_DESCRIPTOR;
	d->value.engine = *engine;
	d->finished = true;
	return CUDNN_OK;
}

static int
read_configs(const FakeValue *v, int64_t most, int64_t *n, void *out)
{
	FakeEngine engines[MOST_ENGINES];
	int code = CUDNN_OK;

	*n = find_engines(&v->heuristic, engines);
	for (int64_t i = 0; i < *n && i < most && !code; i++)
		code = fill(((void **)out)[i], CUDNN_CONFIG_DESCRIPTOR, &engines[i]);
	return code;
}

static int
read_engine(const FakeValue *v, int64_t most, int64_t *n, void *out)
{
	*n = 1;
	return most > 0 ? fill(*(void **)out, CUDNN_ENGINE_DESCRIPTOR, &v->engine) : CUDNN_OK;
}

static int
read_config(const FakeValue *v, int64_t most, int64_t *n, void *out)
{
	*n = 1;
	return most > 0 ? fill(*(void **)out, CUDNN_CONFIG_DESCRIPTOR, &v->plan.engine) : CUDNN_OK;
}

static int
read_number(const FakeValue *v, int64_t most, int64_t *n, void *out)
{
	*n = 1;
	if (most > 0)
		*(int64_t *)out = v->engine.number;
	return CUDNN_OK;
}

static int
read_notes(const FakeValue *v, int64_t most, int64_t *n, void *out)
{
	*n = 0;
	for (int i = 0; i < MOST_CUDNN_NOTES; i++)
		if (v->engine.notes >> i & 1 && (*n)++ < most)
			((int *)out)[*n - 1] = i;
	return CUDNN_OK;
}

static int
read_workspace(const FakeValue *v, int64_t most, int64_t *n, void *out)
{
	*n = 1;
	if (most > 0)
		*(int64_t *)out = v->plan.engine.workspace;
	return CUDNN_OK;
}

static int
read_text(const FakeValue *v, int64_t most, int64_t *n, void *out)
{
	Text text = {0};

	print_plan(&text, &v->plan.engine);
	*n = (int64_t)text.n;
	if (most > 0)
		memcpy(out, text.at, (size_t)(most < *n ? most : *n));
	text_free(&text);
	return CUDNN_OK;
}

int
fake_read(const FakeDescriptor *d, int number, int type, int64_t most, int64_t *n, void *out)
{
	static const struct {
		int of, number, type;
		int (*read)(const FakeValue *v, int64_t most, int64_t *n, void *out);
	} rows[] = {
		{CUDNN_HEURISTIC_DESCRIPTOR, CUDNN_HEURISTIC_CONFIGS, CUDNN_DESCRIPTORS,
	         read_configs},
		{CUDNN_CONFIG_DESCRIPTOR, CUDNN_CONFIG_ENGINE, CUDNN_DESCRIPTORS, read_engine},
		{CUDNN_ENGINE_DESCRIPTOR, CUDNN_ENGINE_NUMBER, CUDNN_INT64S, read_number},
		{CUDNN_ENGINE_DESCRIPTOR, CUDNN_ENGINE_NOTES, CUDNN_NOTES, read_notes},
		{CUDNN_PLAN_DESCRIPTOR, CUDNN_PLAN_WORKSPACE, CUDNN_INT64S, read_workspace},
		{CUDNN_PLAN_DESCRIPTOR, CUDNN_PLAN_CONFIG, CUDNN_DESCRIPTORS, read_config},
		{CUDNN_PLAN_DESCRIPTOR, CUDNN_PLAN_JSON, CUDNN_CHARACTERS, read_text},
	};

	for (int i = 0; i < COUNT(rows); i++)
		if (rows[i].of == d->type && rows[i].number == number)
			return rows[i].type == type ? rows[i].read(&d->value, most, n, out)
			                            : BAD_TYPE;
	return BAD_VALUE;
}

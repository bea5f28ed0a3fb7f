/* Fuzzes sequences of passes. The first line names passes, as "units working"; the rest is a module in text, from `gradc
 * dump --dump-after=all` or mutated. Each pass runs after any other, as far as stages allow, until one reports why it
 * cannot. An unknown word chooses a pass by its bytes. Half of all mutations change the passes. */
#include "codegen/codegen.h"
#include "passes/pass.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max);

enum { MOST_PASSES = 4, MOST_NODES = 4096 };
static FILE *quiet;

#define PASS(name) &pass_##name,
static const PassRow *const rows[] = {
#include "passes/pass_list.def"
#include "codegen/pass_list.def"
};
#undef PASS

static const PassRow *
row_of(const char *word, size_t n)
{
	uint64_t hash = 0;

	for (int i = 0; i < COUNT(rows); i++)
		if (strlen(rows[i]->name) == n && memcmp(rows[i]->name, word, n) == 0)
			return rows[i];
	for (size_t i = 0; i < n; i++)
		hash = hash * 31 + (unsigned char)word[i];
	return rows[hash % COUNT(rows)];
}

static bool
is_small(const Module *m)
{
	int n = 0;

	for_each_function(m, f)
		for_each_node(f, node)
			n++;
	return n <= MOST_NODES;
}

static void
run(Module *m, const char *line, Diag *diag)
{
	Arena *arena = arena_new();
	const PassManagerOptions options = {0};
	Stage stage = module_stage(m);
	int n = 0;
	bool ok = true;

	while (ok && *line && *line != '\n' && n++ < MOST_PASSES) {
		size_t length = strcspn(line, " ,\n");
		Pipeline p = {0};
		vec_push(arena, &p, pass_call(arena, row_of(line, length)));
		/* as `gradc opt`, which verifies after each pass: a pass that runs twice may leave two of the things that it
		 * makes */
		ok = pipeline_run(&p, m, &stage, &options, diag) && module_verify(m, diag);
		line += length;
		line += *line == ' ' || *line == ',';
	}
	arena_free(arena);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1);

	if (!quiet)
		quiet = getenv("FUZZ_VERBOSE") ? stderr : fopen("/dev/null", "w");
	memcpy(text, data, size);
	text[size] = '\0';
	const char *module = strchr(text, '\n');
	if (module) {
		Diag *diag = diag_new("fuzz", quiet);
		Module *m = module_parse(module + 1, "fuzz.gir", NULL, diag);
		if (m && module_verify(m, diag) && is_small(m))
			run(m, text, diag);
		module_free(m);
		diag_free(diag);
	}
	free(text);
	return 0;
}

/* Puts other passes in front of the same text. */
static size_t
choose_passes(uint8_t *data, size_t size, size_t max, unsigned seed)
{
	const uint8_t *end = memchr(data, '\n', size);
	size_t skipped = end ? (size_t)(end - data) : size, n = 0;
	char line[256];

	srand(seed);
	for (int i = rand() % MOST_PASSES; i >= 0; i--)
		n += (size_t)snprintf(line + n, sizeof(line) - n, "%s%s", n ? " " : "",
		                      rows[rand() % COUNT(rows)]->name);
	if (n + size - skipped > max)
		return size;
	memmove(data + n, data + skipped, size - skipped);
	memcpy(data, line, n);
	return n + size - skipped;
}

size_t
LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
	return seed % 2 ? choose_passes(data, size, max, seed) : LLVMFuzzerMutate(data, size, max);
}

/* Remembers which algorithm of cuBLASLt a product takes: the heuristic's choice, or the fastest in a trial. The key is a text
 * with everything on which the choice depends: product, library and GPU. Results of trials are also stored in the file of
 * --autotune, one line each:
 *
 * NVIDIA H100 80GB HBM3, cuBLASLt 13.1.0, tf32, at most 67108864 bytes, dot {x = ...} 0700...00
 *
 * A line is used only if the library itself offers that algorithm for the product. So a wrong file cannot make the library run
 * an algorithm that does not fit the product. */
#include "base/files/files.h"
#include "runtime/library/cublaslt.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEX_DIGITS = 2 * sizeof(CublasLtAlgorithm) };

struct LtTuning {
	char *key;
	CublasLtAlgorithm algorithm;
	int64_t workspace; /* -1 if the choice comes from the file and was not yet asked for */
};

/* ---- keys */
/* The key does not say which arguments of a kernel the operands are, because the product does not depend on the arguments'
 * numbers. */
char *
cublaslt_tuning_key(const char *machine, const char *version, bool tf32, int64_t limit,
                    const LibraryCall *call)
{
	LibraryCall c = *call;
	Text key = {0};

	for (int i = 0; i < N_LIBRARY_OPERANDS; i++)
		c.operands[i].buffer = i;
	if (library_adds_in_place(call))
		c.operands[LIBRARY_ADDED].buffer = LIBRARY_RESULT;
	text_printf(&key, "%s, %s, %s, at most %lld bytes, ", machine, version,
	            tf32 ? "tf32" : "f32", (long long)limit);
	library_call_print(&key, &c, NULL, NULL);
	return key.at;
}

static LtTuning *
find(const LtTunings *t, const char *key)
{
	for (int i = t->n - 1; i >= 0; i--)
		if (strcmp(t->at[i].key, key) == 0)
			return &t->at[i];
	return NULL;
}

static LtTuning *
add(LtTunings *t, const char *key, const CublasLtAlgorithm *algorithm, int64_t workspace)
{
	t->at = memory_resize(t->at, sizeof(*t->at) * (size_t)(t->n + 1));
	char *copy = memory_zeroed(1, strlen(key) + 1);
	strcpy(copy, key);
	t->at[t->n] = (LtTuning){copy, *algorithm, workspace};
	return &t->at[t->n++];
}

/* ---- the file */
/* Splits the line, which it changes. False if the line has another form. */
static bool
read_line(char *line, const char **key, CublasLtAlgorithm *out)
{
	char *hex = strrchr(line, '\t');
	unsigned char *bytes = (unsigned char *)out;

	if (!hex || strlen(hex + 1) != HEX_DIGITS ||
	    strspn(hex + 1, "0123456789abcdef") != HEX_DIGITS)
		return false;
	*hex++ = '\0';
	for (size_t i = 0; i < sizeof(*out); i++, hex += 2) {
		char digits[] = {hex[0], hex[1], '\0'};
		bytes[i] = (unsigned char)strtoul(digits, NULL, 16);
	}
	*key = line;
	return true;
}

Status
cublaslt_tunings_read(LtTunings *t, const char *path)
{
	Arena *arena = arena_new();
	void *bytes = NULL;
	int64_t n = 0;
	char *save = NULL;
	Status status = access(path, F_OK) == 0 ? file_read(arena, path, AUTOTUNE_BYTES, &bytes, &n)
	                                        : NULL;

	char *text = status || !n ? NULL : arena_strndup(arena, bytes, (size_t)n);
	for (char *line = text ? strtok_r(text, "\n", &save) : NULL; line;
	     line = strtok_r(NULL, "\n", &save)) {
		const char *key;
		CublasLtAlgorithm algorithm;
		if (read_line(line, &key, &algorithm))
			add(t, key, &algorithm, -1);
	}
	arena_free(arena);
	return status;
}

/* A single write, so that lines of several processes do not mix. */
bool
cublaslt_tuning_write(const char *path, const char *key, const CublasLtAlgorithm *algorithm)
{
	const unsigned char *bytes = (const unsigned char *)algorithm;
	Text line = {0};

	text_printf(&line, "%s\t", key);
	for (size_t i = 0; i < sizeof(*algorithm); i++)
		text_printf(&line, "%02x", bytes[i]);
	text_add(&line, "\n");
	int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
	bool ok = fd >= 0 && write(fd, line.at, (size_t)line.n) == (ssize_t)line.n;
	if (fd >= 0)
		ok &= close(fd) == 0;
	text_free(&line);
	return ok;
}

void
cublaslt_tunings_free(LtTunings *t)
{
	for (int i = 0; i < t->n; i++)
		memory_free(t->at[i].key);
	memory_free(t->at);
	*t = (LtTunings){0};
}

/* ---- choices */
bool
cublaslt_tuning_known(const LtTunings *t, const char *key, CublasLtChoice *out)
{
	const LtTuning *found = find(t, key);

	if (!found || found->workspace < 0)
		return false;
	*out = (CublasLtChoice){.algorithm = found->algorithm,
	                        .workspace = (size_t)found->workspace};
	return true;
}

void
cublaslt_tuning_keep(LtTunings *t, const char *key, const CublasLtChoice *choice)
{
	LtTuning *found = find(t, key);

	found = found ? found : add(t, key, &choice->algorithm, 0);
	found->algorithm = choice->algorithm;
	found->workspace = (int64_t)choice->workspace;
}

int
cublaslt_tuning_said(const LtTunings *t, const char *key, const CublasLtChoice *choices, int n)
{
	const LtTuning *found = find(t, key);

	for (int i = 0; found && i < n; i++)
		if (memcmp(&choices[i].algorithm, &found->algorithm, sizeof(found->algorithm)) == 0)
			return i;
	return -1;
}

/* Reads the kernels of PTX text: names, parameters, threads of a block. */
#include "tests/cuda/fake/fake.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* The size of a type ".u64", ".b8" and so on. */
static uint32_t
type_bytes(const char *at)
{
	return strchr("usfb", at[1]) ? (uint32_t)strtoul(at + 2, NULL, 10) / 8 : 0;
}

/* Reads one ".param ...": its last type, and its number of elements. */
static void
read_parameter(Function *f, const char *at, const char *end)
{
	uint32_t size = 0, alignment = 0, n = 1;

	for (; at < end; at++) {
		if (*at == '.' && isdigit((unsigned char)at[2]))
			size = type_bytes(at);
		if (!size && end - at > 7 && strncmp(at, ".align ", 7) == 0)
			alignment = (uint32_t)strtoul(at + 7, NULL, 10);
		if (*at == '[')
			n = (uint32_t)strtoul(at + 1, NULL, 10);
	}
	if (!size || f->n_parameters == MOST_PARAMETERS)
		return;
	if (n == 1 || !alignment)
		alignment = size;
	Parameter *p = &f->parameters[f->n_parameters];
	uint32_t from = f->n_parameters ? p[-1].offset + p[-1].bytes : 0;
	*p = (Parameter){.offset = (from + alignment - 1) / alignment * alignment,
	                 .bytes = size * n};
	f->n_parameters++;
}

/* Reads a kernel; `at` is behind ".entry ". */
static void
read_entry(Module *m, const char *at)
{
	size_t n = strcspn(at, " (\t\n");
	Function *f = module_add(m, at, n);
	const char *end = strpbrk(at, "){"), *body = strchr(at, '{');

	while (end && at < end && (at = strstr(at, ".param ")) && at < end) {
		const char *comma = at + strcspn(at, ",)");
		read_parameter(f, at + strlen(".param"), comma);
		at = comma;
	}
	const char *threads = end ? strstr(end, ".maxntid ") : NULL;
	if (threads && body && threads < body)
		f->most_threads = atoi(threads + strlen(".maxntid "));
}

/* Is the PTX version newer than the driver reads? CUDA 12.x reads PTX 8.x, 13.x reads 9.x. */
static bool
is_too_new(int major, int minor)
{
	int version = settings()->version;

	return major * 10 + minor > (version / 1000 - 4) * 10 + version % 1000 / 10;
}

int
ptx_read(Module *m, const char *text, char *log, size_t bytes)
{
	const char *version = strstr(text, ".version "), *target = strstr(text, ".target sm_");
	int major = 0, minor = 0, of = target ? atoi(target + strlen(".target sm_")) : 0;

	if (!version || !target || sscanf(version, ".version %d.%d", &major, &minor) != 2) {
		snprintf(log, bytes, "neither a cubin nor PTX");
		return BAD_IMAGE;
	}
	if (is_too_new(major, minor)) {
		snprintf(log, bytes, "PTX %d.%d is newer than the driver", major, minor);
		return NEWER_PTX;
	}
	if (of > settings()->major * 10 + settings()->minor) {
		snprintf(log, bytes, "PTX for sm_%d is not for capability %d.%d", of,
		         settings()->major, settings()->minor);
		return BAD_PTX;
	}
	for (const char *at = text; (at = strstr(at, ".entry "));) {
		at += strlen(".entry ");
		read_entry(m, at);
	}
	return 0;
}

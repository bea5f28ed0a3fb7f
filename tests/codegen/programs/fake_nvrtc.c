/* A libnvrtc.so that compiles nothing: its result is a header and a copy of the source. Environment variables:
 *
 *   FAKE_NVRTC        behaviour of a compilation: "error", "crash", "empty", "slow" (sleeps for ever), "exit" (ends its process),
 *                     "later" (an error after half a second), "dies" (a crash after half a second); otherwise it succeeds.
 *                     "KERNEL=MODE,KERNEL=MODE" sets the behaviour for sources with these kernels only
 *   FAKE_NVRTC_CALLS  a file that gets a line for each compilation that begins
 *   FAKE_NVRTC_MINOR  the minor version; otherwise the version is 13.0
 *   FAKE_NVRTC_OLD    if set, the library knows sm_80 and sm_90 only */

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
	const char *source;
	char *code;
	char log[200];
} Program;

static int
is_mode(const Program *p, const char *mode)
{
	char list[400], kernel[200], *rest = list;
	const char *text = getenv("FAKE_NVRTC");

	snprintf(list, sizeof(list), "%s", text ? text : "");
	if (!strchr(list, '='))
		return strcmp(list, mode) == 0;
	for (char *entry; (entry = strsep(&rest, ","));) {
		char *value = strchr(entry, '=');
		*value++ = '\0';
		snprintf(kernel, sizeof(kernel), "gradc_%s(", entry);
		if (strcmp(value, mode) == 0 && strstr(p->source, kernel))
			return 1;
	}
	return 0;
}

const char *
nvrtcGetErrorString(int code)
{
	return code == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR_INTERNAL_ERROR";
}

int
nvrtcVersion(int *major, int *minor)
{
	const char *text = getenv("FAKE_NVRTC_MINOR");

	*major = 13;
	*minor = text ? atoi(text) : 0;
	return 0;
}

int
nvrtcGetNumSupportedArchs(int *n)
{
	*n = getenv("FAKE_NVRTC_OLD") ? 2 : 3;
	return 0;
}

int
nvrtcGetSupportedArchs(int *numbers)
{
	int n;

	nvrtcGetNumSupportedArchs(&n);
	for (int i = 0; i < n; i++)
		numbers[i] = 80 + 10 * i;
	return 0;
}

int
nvrtcCreateProgram(void **out, const char *source, const char *name, int n_headers,
                   const char *const *headers, const char *const *names)
{
	Program *p = calloc(1, sizeof(*p));

	(void)name, (void)n_headers, (void)headers, (void)names;
	p->source = source;
	*out = p;
	return 0;
}

int
nvrtcDestroyProgram(void **program)
{
	free(((Program *)*program)->code);
	free(*program);
	*program = NULL;
	return 0;
}

static void
note_call(void)
{
	const char *path = getenv("FAKE_NVRTC_CALLS");
	int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;

	if (fd >= 0 && write(fd, "call\n", 5) == 5)
		close(fd);
}

int
nvrtcCompileProgram(void *program, int n_options, const char *const *options)
{
	Program *p = program;
	size_t n = strlen(p->source) + 100;

	note_call();
	if (is_mode(p, "dies"))
		usleep(500000);
	if (is_mode(p, "crash") || is_mode(p, "dies")) {
		fprintf(stderr, "fake NVRTC: assertion failed\n");
		abort();
	}
	if (is_mode(p, "exit"))
		_exit(0);
	while (is_mode(p, "slow"))
		pause();
	if (is_mode(p, "later"))
		usleep(500000);
	if (is_mode(p, "error") || is_mode(p, "later")) {
		snprintf(p->log, sizeof(p->log),
		         "kernels.cu(3): error: identifier \"floaty\" is undefined\n");
		return 6;
	}
	snprintf(p->log, sizeof(p->log), "ptxas info    : Used 10 registers\n");
	p->code = malloc(n);
	snprintf(p->code, n, "\177ELF %s\n%s", options[n_options - 1], p->source);
	return 0;
}

int
nvrtcGetProgramLogSize(void *program, size_t *n)
{
	*n = strlen(((Program *)program)->log) + 1;
	return 0;
}

int
nvrtcGetProgramLog(void *program, char *to)
{
	strcpy(to, ((Program *)program)->log);
	return 0;
}

int
nvrtcGetCUBINSize(void *program, size_t *n)
{
	*n = is_mode(program, "empty") ? 0 : strlen(((Program *)program)->code);
	return 0;
}

int
nvrtcGetCUBIN(void *program, char *to)
{
	memcpy(to, ((Program *)program)->code, strlen(((Program *)program)->code));
	return 0;
}

int
nvrtcGetPTXSize(void *program, size_t *n)
{
	*n = strlen(((Program *)program)->code) + 1;
	return 0;
}

int
nvrtcGetPTX(void *program, char *to)
{
	strcpy(to, ((Program *)program)->code);
	return 0;
}

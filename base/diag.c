/* Prints messages for the user, and passes errors between functions as values (Status). A message is one line, whatever
 * text it quotes: bytes that would disturb a terminal or a log are written as \xHH. */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_PRINTED 100
#define MAX_OUTPUT 4000

struct Diag {
	const char *program;
	FILE *stream;
	int errors;
	int exit_code;
	/* True if the last message was not printed; then its notes are not printed either. Any thread may warn; only one thread reports
	 * errors. */
	_Atomic bool muted;
	bool quiet; /* warnings are not printed */
};

Diag *
diag_new(const char *program, FILE *stream)
{
	Diag *diag = memory_get(sizeof(*diag));

	*diag = (Diag){.program = program, .stream = stream, .exit_code = EXIT_OK};
	return diag;
}

void
diag_be_quiet(Diag *diag)
{
	diag->quiet = true;
	diag->muted = diag->errors == 0;
}

void
diag_free(Diag *diag)
{
	if (diag && diag->errors > MAX_PRINTED)
		fprintf(diag->stream, "%s: error: %d more errors, not shown\n", diag->program,
		        diag->errors - MAX_PRINTED);
	memory_free(diag);
}

/* Prints one line in one write, so that lines of several processes do not mix. */
static void
print_line(Diag *diag, const char *prefix, const char *kind, const char *fmt, va_list args)
{
	Text message = {0}, line = {0};

	text_vprintf(&message, fmt, args);
	text_printf(&line, "%s%s: ", prefix, kind);
	text_add_escaped(&line, message.at, message.n, "");
	text_add(&line, "\n");
	fwrite(line.at, 1, line.n, diag->stream);
	fflush(diag->stream);
	text_free(&message);
	text_free(&line);
}

static void
print_headline(Diag *diag, const char *kind, const char *fmt, va_list args)
{
	Text prefix = {0};

	text_printf(&prefix, "%s: ", diag->program);
	print_line(diag, prefix.at, kind, fmt, args);
	text_free(&prefix);
}

void
diag_verror(Diag *diag, int exit_code, const char *fmt, va_list args)
{
	if (diag->errors == 0 || exit_code < diag->exit_code)
		diag->exit_code = exit_code;
	diag->errors++;
	diag->muted = diag->errors > MAX_PRINTED;
	if (!diag->muted)
		print_headline(diag, "error", fmt, args);
}

void
diag_error(Diag *diag, int exit_code, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	diag_verror(diag, exit_code, fmt, args);
	va_end(args);
}

void
diag_warning(Diag *diag, const char *fmt, ...)
{
	va_list args;

	diag->muted = diag->quiet;
	va_start(args, fmt);
	if (!diag->quiet)
		print_headline(diag, "warning", fmt, args);
	va_end(args);
}

void
diag_remark(Diag *diag, const char *fmt, ...)
{
	va_list args;

	diag->muted = diag->quiet;
	va_start(args, fmt);
	if (!diag->quiet)
		print_headline(diag, "note", fmt, args);
	va_end(args);
}

void
diag_note(Diag *diag, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	if (!diag->muted)
		print_line(diag, "\t", "note", fmt, args);
	va_end(args);
}

void
diag_hint(Diag *diag, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	if (!diag->muted)
		print_line(diag, "\t", "hint", fmt, args);
	va_end(args);
}

void
diag_take_over(Diag *diag, int errors, int exit_code, const char *lines)
{
	if (errors && (diag->errors == 0 || exit_code < diag->exit_code))
		diag->exit_code = exit_code;
	diag->errors += errors < MAX_PRINTED ? errors : MAX_PRINTED;
	fputs(lines, diag->stream);
	fflush(diag->stream);
}

int
diag_errors(const Diag *diag)
{
	return diag->errors;
}

int
diag_exit_code(const Diag *diag)
{
	return diag->exit_code;
}

Status
status_error(int exit_code, const char *fmt, ...)
{
	Status status = memory_get(sizeof(*status));
	Text message = {0};
	va_list args;

	va_start(args, fmt);
	text_vprintf(&message, fmt, args);
	va_end(args);
	*status = (StatusInfo){.exit_code = exit_code, .message = message.at};
	return status;
}

static StatusInfo no_memory = {.exit_code = EXIT_SYSTEM, .message = (char *)"out of memory"};

Status
status_no_memory(void)
{
	return &no_memory;
}

Status
status_annotate(Status status, const char *fmt, ...)
{
	Text message = {0};
	va_list args;

	if (!status || status == &no_memory)
		return status;
	va_start(args, fmt);
	text_vprintf(&message, fmt, args);
	va_end(args);
	text_add(&message, ": ");
	text_add(&message, status->message);
	memory_free(status->message);
	status->message = message.at;
	return status;
}

/* How many bytes of the text to keep: whole lines, as many as fit. */
static size_t
output_length(const char *text, size_t n)
{
	size_t kept = MAX_OUTPUT;

	if (n <= MAX_OUTPUT)
		return n;
	while (kept && text[kept - 1] != '\n')
		kept--;
	return kept ? kept : MAX_OUTPUT;
}

Status
status_output(Status status, const char *text, size_t n)
{
	Text output = {0};

	if (!status || status == &no_memory || !n)
		return status;
	text_add_bytes(&output, text, output_length(text, n));
	memory_free(status->output);
	status->output = output.at;
	return status;
}

Status
status_copy(const StatusInfo *status)
{
	if (!status)
		return NULL;
	Status copy = status_error(status->exit_code, "%s", status->message);

	return status->output ? status_output(copy, status->output, strlen(status->output)) : copy;
}

void
status_free(Status status)
{
	if (!status || status == &no_memory)
		return;
	memory_free(status->output);
	memory_free(status->message);
	memory_free(status);
}

Status
status_first(Status first, Status second)
{
	if (!first)
		return second;
	status_free(second);
	return first;
}

void
streams_reserve(void)
{
	for (int fd = 0; fd <= 2; fd++)
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDONLY) != fd)
			_exit(EXIT_SYSTEM);
}

int
diag_finish_stdout(Diag *diag, int code)
{
	bool lost = ferror(stdout);

	if (fflush(stdout) == 0 && !lost)
		return code;
	diag_error(diag, EXIT_SYSTEM, "standard output: %s", strerror(lost ? EIO : errno));
	return code == EXIT_OK ? EXIT_SYSTEM : code;
}

/* Prints each line of the text indented; tabs stay, all other control bytes are escaped. */
static void
print_output(Diag *diag, const char *text)
{
	Text lines = {0};

	while (*text) {
		size_t n = strcspn(text, "\n\t");
		if (lines.n == 0 || lines.at[lines.n - 1] == '\n')
			text_add(&lines, "\t");
		text_add_escaped(&lines, text, n, "");
		if (text[n])
			text_add_bytes(&lines, text + n, 1);
		else
			text_add(&lines, "\n");
		text += n + (text[n] != '\0');
	}
	fwrite(lines.at, 1, lines.n, diag->stream);
	fflush(diag->stream);
	text_free(&lines);
}

bool
diag_status(Diag *diag, Status status)
{
	if (!status)
		return false;
	diag_error(diag, status->exit_code, "%s", status->message);
	if (status->output && !diag->muted)
		print_output(diag, status->output);
	status_free(status);
	return true;
}

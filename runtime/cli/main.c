/* The main function of a training executable: handles options, outputs, signals and the exit code. No other file knows the
 * compiled object's symbols, handles signals, or decides to exit. */
#include "runtime/cli/cli.h"

#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

extern const GradcModel gradc_model;

static Signals signals;

/* Handles a signal. The first signal during training is only noted. A second signal, or a signal before training, ends the
 * process immediately: before training, ranks may wait for each other without end. */
static void
on_signal(int number)
{
	if (signals.number || !signals.awaited) {
		cleanup_now();
		_exit(128 + number);
	}
	signals.number = number;
}

static bool
is_interrupted(void *context)
{
	(void)context;
	return signals.number != 0;
}

static void
catch_signals(void)
{
	const int numbers[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP};
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, old;

	for (int i = 0; i < COUNT(numbers); i++) {
		sigaction(numbers[i], &action, &old);
		if (numbers[i] == SIGHUP && old.sa_handler == SIG_IGN) /* started with nohup */
			sigaction(SIGHUP, &old, NULL);
	}
	signal(SIGPIPE, SIG_IGN);
	cleanup_on_signals();
}

/* The outputs that rank 0 writes. */
static const struct {
	const char *option;
	size_t at; /* the field of CliOptions with the path */
} outputs[] = {
	{"--export", offsetof(CliOptions, export)},
	{"--export-merged", offsetof(CliOptions, export_merged)},
	{"--export-adapter", offsetof(CliOptions, export_adapter)},
	{"--log", offsetof(CliOptions, log)},
	{"--tensorboard", offsetof(CliOptions, tensorboard)},
	{"--report", offsetof(CliOptions, report)},
	{"--dump-gradients", offsetof(CliOptions, dump_gradients)},
	{"--trace", offsetof(CliOptions, run.trace)},
	{"--output", offsetof(CliOptions, output)},
};

static const char **
output_path(CliOptions *o, int i)
{
	return (const char **)(void *)((char *)o + outputs[i].at);
}

/* An output that only another rank was told to write is not dropped in silence. */
static Status
compare_outputs(const Session *s, CliOptions *o)
{
	for (int i = 0; i < COUNT(outputs) && !o->once; i++)
		RETURN_IF_ERROR(
			gradc_compare_output(s->run, outputs[i].option, *output_path(o, i)));
	return NULL;
}

/* Turns off printing and output files on all ranks but rank 0. */
static void
keep_quiet(CliOptions *o)
{
	for (int i = 0; i < COUNT(outputs); i++)
		*output_path(o, i) = NULL;
	o->table = NULL;
	o->progress = "off";
}

enum { SILENT_WAIT = 200000 }; /* in microseconds */

/* Reports and frees the status; true if it is an error. Rank 0 reports errors that all ranks have; another rank reports only
 * errors that it alone knows. */
static bool
report(const Session *s, Status status)
{
	bool others = s->run && gradc_rank(s->run) > 0 && status &&
	              session_is_everybodys(s, status) && !s->step.not_finite;

	if (!status || (*status->message && !others))
		return diag_status(s->diag, status);
	status_free(status);
	/* a launcher ends all ranks when the first one exits, so the reporting rank must be first */
	usleep(SILENT_WAIT);
	return true;
}

/* Says at which step training stopped, and how to continue. */
static void
show_stop(const Session *s)
{
	Text command = {0};

	if (!s->stop || gradc_rank(s->run) > 0)
		return;
	if (s->o->word) {
		fprintf(stderr, "stopped by signal %d (%s)\n", s->stop, strsignal(s->stop));
		return;
	}
	fprintf(stderr, "stopped by signal %d (%s) after step %lld", s->stop, strsignal(s->stop),
	        (long long)gradc_steps_done(s->run));
	if (!s->o->run.save) {
		fprintf(stderr, ": nothing is saved without --save DIR\n");
		return;
	}
	text_add_plain(&command, s->o->resuming);
	fprintf(stderr, "; saved in %s; to continue%s:\n  %s --resume=auto\n",
	        plain_text(s->arena, s->o->run.save),
	        gradc_ranks(s->run) > 1 ? ", run under the same launcher" : "", command.at);
	text_free(&command);
}

/* Before training: checks that outputs can be written, and locks them against other processes. */
static Status
take_outputs(Arena *arena, const PathUses *paths, PathLocks *locks, Diag *diag)
{
	RETURN_IF_ERROR(paths_try(arena, paths));
	return paths_lock(arena, paths, locks, diag);
}

static int
run_executable(CliOptions *o, Arena *arena, Diag *diag)
{
	GradcModel model = gradc_model;
	Session s = {.o = o,
	             .arena = arena,
	             .diag = diag,
	             .signals = &signals,
	             .step.loss = NAN,
	             .keeps_ranges = o->log || o->report};
	PathUses paths = {0};
	PathLocks locks = {0};

	model.file = o->program;
	if (o->info)
		return info_print(&model, o, diag);
	o->run.communicator = "auto";
	o->run.interrupted = is_interrupted;
	o->run.alone = o->once;
	Status status = options_match_names(arena, &model, o);
	if (!status && !outputs_prepare(o, &model, arena, &paths, diag))
		return EXIT_USAGE;
	if (!status)
		status = paths_make(arena, &paths);
	if (!status)
		status = gradc_open(&model, &o->run, diag, &s.run);
	if (!status)
		status = compare_outputs(&s, o);
	if (!status)
		/* same result on all ranks, because all ranks check together */
		status = session_check_exports(&s);
	if (!status && gradc_rank(s.run) == 0)
		status = take_outputs(arena, &paths, &locks, diag);
	else if (!status)
		keep_quiet(o);
	if (!status)
		status = session_run(&s);
	if (s.run)
		status = status_first(status, gradc_finish(s.run));
	/* a launcher ends all ranks when the first one exits, so wait until all ranks have exported the rescued states */
	if (s.rescued)
		status = status_first(status, gradc_share(s.run, NULL));
	int code = status ? status->exit_code : EXIT_OK;
	if (!status && s.run)
		show_stop(&s);
	bool failed = report(&s, status);
	if (failed && s.run && (!status_is_common(code) || s.apart))
		gradc_abort(s.run, code);
	gradc_close(s.run);
	paths_unlock(&locks);
	if (!failed && diag_errors(diag) > 0)
		code = diag_exit_code(diag);
	if (failed || !s.stop)
		return code;
	return o->run.save ? EXIT_PREEMPTED : 128 + s.stop;
}

/* Does the word name one of the options, perhaps by its beginning, alone or with its value? *value: the value is the next word. */
static bool
is_option(const char *word, const char *const names[], bool *value)
{
	enum { LEAST = 5 }; /* shorter beginnings, such as --re, are not unique */
	size_t n = strcspn(word, "=");

	for (int i = 0; names[i] && n >= LEAST; i++)
		if (n <= strlen(names[i]) && strncmp(word, names[i], n) == 0) {
			*value = word[n] == '\0';
			return true;
		}
	return false;
}

/* The command line, quoted for a shell, without some options. */
static const char *
command_without(Arena *arena, int argc, char **argv, const char *const names[])
{
	Text t = {0};

	for (int i = 0; i < argc; i++) {
		bool value = false;
		if (i > 0 && is_option(argv[i], names, &value)) {
			i += value;
			continue;
		}
		if (i > 0)
			text_add(&t, " ");
		text_add_shell_word(&t, argv[i]);
	}
	const char *copy = arena_strdup(arena, t.at ? t.at : "");
	text_free(&t);
	return copy;
}

/* Ends this process when its parent ends, even if the parent is killed. parent: its process id; 0: do nothing. */
static void
end_with_parent(int64_t parent)
{
	if (parent == 0)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent) /* the parent has already ended */
		raise(SIGKILL);
}

/* The path of the executable, for messages: the name that the user typed, unless the shell found the executable in PATH. */
static const char *
own_path(Arena *arena, const char *name)
{
	static const char self[] = "/proc/self/exe";
	char path[PATH_MAX];
	ssize_t n = readlink(self, path, sizeof(path) - 1);

	if (name && (n < 0 || path_is_same(arena, name, self)))
		return name;
	path[n < 0 ? 0 : n] = '\0';
	return n > 0 && path_is_same(arena, path, self) ? arena_strdup(arena, path) : self;
}

static void
print_version(void)
{
	Format f;
	Status status = format_read(gradc_model.blob, gradc_model.bytes, &f);
	const char *version = status ? NULL : format_info_get(&f, "gradc_version");

	printf("gradc %s\n", version ? version : GRADC_VERSION);
	status_free(status);
}

/* Answers an option that asks about the program itself; false: there is no such option. */
static bool
answer(const CliOptions *o, Arena *arena, const char *program)
{
	if (o->help && o->json)
		options_help_as_json(stdout, o->word);
	else if (o->help)
		options_help(stdout, plain_text(arena, program), o->word);
	else if (o->version)
		print_version();
	else if (o->completion)
		completion_script(stdout, o->completion, program);
	else
		return false;
	return true;
}

int
main(int argc, char **argv)
{
	streams_reserve();
	memory_serve_json(true);
	Arena *arena = arena_new();
	Diag *diag = diag_new("gradc", stderr);
	CliOptions options;
	const char *command = command_without(arena, argc, argv, (const char *[]){NULL});
	const char *resuming = command_without(arena, argc, argv,
	                                       (const char *[]){"--resume", NULL});
	const char *continue_command = command_without(
		arena, argc, argv, (const char *[]){"--resume", "--steps", "--epochs", NULL});
	int code = EXIT_OK;

	if (argc > 1 && strcmp(argv[1], "__complete") == 0) {
		argv[1] = argv[0];
		options_complete(arena, &gradc_model, argc - 1, argv + 1);
	} else if (!options_parse(arena, diag, argc, argv, &options)) {
		code = diag_exit_code(diag);
	} else if (!answer(&options, arena, argv[0])) {
		options.command = command;
		options.resuming = resuming;
		options.continue_command = continue_command;
		end_with_parent(options.parent);
		options.program = own_path(arena, argv[0]);
		catch_signals();
		code = run_executable(&options, arena, diag);
	}
	code = diag_finish_stdout(diag, code);
	diag_free(diag);
	arena_free(arena);
	return code;
}

/* --check-gradients of a training executable, which `gradc grad --check-gradients` compiles and runs. Shows progress to the
 * user, and writes the results to a file that gradc reads. */
#include "runtime/cli/cli.h"
#include "runtime/run/run.h"

#include <jansson.h>
#include <unistd.h>

#define EVERY 0.5       /* seconds between lines on a terminal */
#define PLAIN_EVERY 5.0 /* seconds between lines elsewhere */

typedef struct {
	json_t *list;
	double started, last, every;
	bool terminal;
} Meter;

static void
show(Meter *r, const GradcCheck *c, double now)
{
	double left = (now - r->started) / (double)c->done * (double)(c->n_entries - c->done);
	bool over = c->done == c->n_entries;

	if (now - r->last < r->every && !(over && r->terminal && r->last > r->started))
		return;
	r->last = now;
	fprintf(stderr, "%sgradients: entry %lld of %lld, %.0f s left%s", r->terminal ? "\r" : "",
	        (long long)c->done, (long long)c->n_entries, left,
	        !r->terminal ? "\n"
	        : over       ? " \033[K\n"
	                     : "\033[K");
}

static void
report(void *context, const GradcCheck *c)
{
	Meter *r = context;

	show(r, c, seconds_now());
	if (c->complete)
		json_array_append_new(
			r->list, json_pack("{s:o,s:o,s:I,s:o,s:o,s:I,s:I}", "name",
		                           json_name(c->name), "error", json_number(c->error), "at",
		                           (json_int_t)c->at, "gradient", json_number(c->gradient),
		                           "difference", json_number(c->difference), "checked",
		                           (json_int_t)c->checked, "kinks", (json_int_t)c->kinks));
}

static Status
write_results(const char *folder, const json_t *list)
{
	char *path = NULL;
	Arena *arena = arena_new();

	path = path_join(arena, folder, "gradients.json");
	Status status = folder_make(folder);
	if (!status && json_dump_file(list, path, JSON_REAL_PRECISION(17)) != 0)
		status = status_error(EXIT_SYSTEM, "%s: cannot be written", path);
	arena_free(arena);
	return status;
}

Status
check_gradients(Gradc *run, const CliOptions *o)
{
	double now = seconds_now();
	bool terminal = isatty(STDERR_FILENO);
	Meter r = {.list = json_array(),
	           .started = now,
	           .last = now,
	           .every = terminal ? EVERY : PLAIN_EVERY,
	           .terminal = terminal};
	Status status = gradc_check_gradients(
		run, &(GradcCheckOptions){&o->inputs, o->check_gradients, report, &r});

	if (!status)
		status = write_results(o->output_dir, r.list);
	json_decref(r.list);
	return status;
}

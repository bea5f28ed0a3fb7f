/* What a training executable prints at its end: the results on stdout; memory, files and the command that goes on on stderr. */
#include "runtime/cli/cli.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

/* ru_maxrss of getrusage would also count the process that started this program. */
int64_t
results_resident_bytes(void)
{
	static const char key[] = "VmHWM:";
	FILE *file = fopen("/proc/self/status", "r");
	char line[256];
	long long kilobytes = 0;

	while (file && fgets(line, sizeof(line), file))
		if (strncmp(line, key, sizeof(key) - 1) == 0)
			sscanf(line + sizeof(key) - 1, "%lld", &kilobytes);
	if (file)
		fclose(file);
	return kilobytes * 1024;
}

int64_t
results_machine_bytes(void)
{
	int64_t bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
	FILE *file = fopen("/sys/fs/cgroup/memory.max", "r");
	long long limit = 0;

	if (file && fscanf(file, "%lld", &limit) == 1 && limit > 0 && limit < bytes)
		bytes = limit;
	if (file)
		fclose(file);
	return bytes;
}

/* ", 8 of 12 rows (the model computes its own loss)" */
void
results_add_left_out(Text *line, const GradcEval *e)
{
	if (e->rows != e->all_rows)
		text_printf(line, ", %lld of %lld rows (%s)", (long long)e->rows,
		            (long long)e->all_rows, e->left_out);
}

static bool
shows_best(const Session *s)
{
	const GradcOptions *o = &s->o->run;

	return gradc_best(s->run)->step >= 0 && (o->keep_best || o->early_stop || o->metric);
}

static bool
stopped_early(const Session *s)
{
	return gradc_best(s->run)->stops && gradc_steps_done(s->run) < gradc_total_steps(s->run);
}

/* ", best step 300 (accuracy 0.97); stopped early: 5 evaluations were not better" */
static void
print_best(const Session *s)
{
	const GradcBest *b = gradc_best(s->run);

	if (shows_best(s))
		printf(", best step %lld (%s %.6g)", (long long)b->step, b->metric, b->value);
	if (stopped_early(s))
		printf("; stopped early: %lld evaluations in a row were not better",
		       (long long)b->since);
}

void
results_print(const Session *s)
{
	if (gradc_rank(s->run) > 0 || session_finds_lr(s))
		return;
	if (s->o->json) {
		json_t *root = json_object();
		json_object_set_new(root, "steps", json_integer(s->step.step));
		json_object_set_new(root, "loss", json_number(s->step.loss));
		if (s->evaluated)
			json_add_eval(root, &s->after);
		if (shows_best(s))
			json_object_set_new(root, "best", json_best(gradc_best(s->run)));
		json_object_set_new(root, "stopped_early", json_boolean(stopped_early(s)));
		json_object_set_new(root, "peak_bytes", json_integer(gradc_peak_bytes(s->run)));
		json_object_set_new(root, "rss_bytes", json_integer(results_resident_bytes()));
		json_dumpf(root, stdout, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
		printf("\n");
		json_decref(root);
		return;
	}
	printf("steps %lld", (long long)s->step.step);
	/* not NaN: a step was made, whose loss is finite because otherwise a fault would have ended the run */
	if (!isnan(s->step.loss))
		printf(", loss %.9g", s->step.loss);
	if (s->evaluated)
		printf(", eval loss %.9g -> %.9g", s->before.loss, s->after.loss);
	if (s->evaluated && !isnan(s->after.accuracy))
		printf(", accuracy %.4f -> %.4f", s->before.accuracy, s->after.accuracy);
	if (s->evaluated && !isnan(s->after.perplexity))
		printf(", perplexity %.5g -> %.5g", s->before.perplexity, s->after.perplexity);
	Text left_out = {0};
	if (s->evaluated)
		results_add_left_out(&left_out, &s->after);
	printf("%s", left_out.n ? left_out.at : "");
	print_best(s);
	printf("\n");
	text_free(&left_out);
}

/* ---- after the exports */
/* The files of a training beside its exports, with commas between them. */
static void
add_written(Text *out, const Session *s)
{
	const CliOptions *o = s->o;
	const char *files[] = {o->log, o->report, o->tensorboard, o->run.trace, o->dump_gradients};
	int64_t step = gradc_saved_step(s->run);

	if (o->run.save && step >= 0)
		text_printf(out, "step %lld in %s", (long long)step,
		            plain_text(s->arena, o->run.save));
	for (int i = 0; i < COUNT(files); i++)
		if (files[i])
			text_printf(out, "%s%s", out->n ? ", " : "",
			            plain_text(s->arena, files[i]));
}

/* The command that trains as many steps or epochs again. */
static void
add_continue_command(Text *out, const Session *s)
{
	const GradcOptions *o = &s->o->run;

	text_add_plain(out, s->o->continue_command);
	if (o->steps >= 0)
		text_printf(out, " --resume=auto --steps=%lld", (long long)(2 * o->steps));
	else
		text_printf(out, " --resume=auto --epochs=%lld",
		            (long long)(2 * (o->epochs >= 0 ? o->epochs : 1)));
}

void
results_print_end(Session *s)
{
	const CliOptions *o = s->o;
	char planned[32], resident[32];
	bool exports = o->export || o->export_merged || o->export_adapter;
	Text written = {0}, command = {0};

	if (gradc_rank(s->run) > 0 || session_finds_lr(s))
		return;
	progress_line(&s->progress, "peak memory: %s planned, %s of the process\n",
	              bytes_text(planned, (double)gradc_peak_bytes(s->run)),
	              bytes_text(resident, (double)results_resident_bytes()));
	add_written(&written, s);
	if (written.n)
		progress_line(&s->progress, "wrote %s\n", written.at);
	if (o->run.save && o->run.steps != 0 && !stopped_early(s)) {
		add_continue_command(&command, s);
		progress_line(&s->progress, "to continue training: %s\n", command.at);
	} else if (!o->run.save && !exports) {
		progress_line(&s->progress,
		              "the trained weights were not written: --export FILE.onnx writes the "
		              "model, --save DIR checkpoints\n");
	}
	text_free(&written);
	text_free(&command);
}

/* The subcommands `gradc compile`, which makes a training executable, and `gradc check`, which only
 * tells whether and how a model would be compiled. */
#include "tools/tools.h"

#include <string.h>

int
command_compile(Options *o, Arena *arena, Diag *diag)
{
	Session s;

	if (!o->output) {
		diag_error(diag, EXIT_USAGE, "no output: give -o EXE");
		return EXIT_USAGE;
	}
	bool ok = session_open_training(&s, o, OPEN_DIMS_REFUSE, arena, diag);
	if (ok && o->stop_after) {
		ok = session_stage(&s, STAGE_EVENTS, true);
		if (ok)
			diag_warning(diag, "stopped after `%s`: no executable is written",
			             o->stop_after);
		session_close(&s);
		return diag_exit_code(diag);
	}
	if (ok)
		ok = session_link(&s, o->output, true);
	if (ok)
		session_warn_idle_rules(&s);
	if (ok && o->json) {
		print_summary_json(&s);
	} else if (ok && !o->quiet) {
		print_summary(&s, o->table != NULL);
		print_plan(&s);
		print_gpus(&s);
		printf("  wrote %s\n", plain_text(arena, o->output));
	}
	session_close(&s);
	return diag_exit_code(diag);
}

static bool
check_match(const Session *s)
{
	const char *glob = s->o->match;

	if (!glob || match_fits(s, glob))
		return true;
	diag_error(s->diag, EXIT_USAGE, "--match=%s fits no parameter", glob);
	hint_nearest_states(s->m, glob, s->diag);
	return false;
}

int
command_check(Options *o, Arena *arena, Diag *diag)
{
	Session s;
	bool ok = session_open(&s, o, OPEN_DIMS_ONE, arena, diag);

	const char *last = s.has_loss                                  ? "loss"
	                   : ok && session_asks_for(&s, "layer_decay") ? "layer_decay"
	                                                               : "trainable";
	ok = ok && session_run(&s, last, false) && module_verify(s.m, diag);
	if (ok && check_match(&s)) {
		session_freeze_unreached(&s);
		session_warn_idle_rules(&s);
		if (o->json)
			print_summary_json(&s);
		else if (o->match)
			print_matches(&s, o->match);
		else
			print_summary(&s, o->table != NULL);
	}
	session_close(&s);
	return diag_exit_code(diag);
}

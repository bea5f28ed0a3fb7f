/* gradc compile and gradc check. */
#include "tools/tools.h"

/* The loss where none is given: cross entropy of the first output. */
static bool
default_loss(Session *s)
{
	return s->has_loss || session_parse_loss(s, "cross_entropy");
}

static void
print_plan(const Session *s)
{
	int64_t flops = 0;
	const Function *f = module_function(s->m, "accumulate");

	for_each_node(f, n)
		flops += op_row(n)->cost ? op_row(n)->cost(n) : 0;
	printf("  memory: state %.2f MB, workspace %.2f MB, io %.2f MB\n",
	       1e-6 * (double)s->m->state_bytes, 1e-6 * (double)s->m->workspace_bytes,
	       1e-6 * (double)s->m->io_bytes);
	printf("  %d kernels; %.4g MFLOP a micro-batch, forward and backward\n", s->m->kernels.n,
	       1e-6 * (double)flops);
}

int
command_compile(Options *o, Arena *arena, Diag *diag)
{
	Session s;

	if (!o->output) {
		diag_error(diag, EXIT_USAGE, "no output: give -o EXE");
		return EXIT_USAGE;
	}
	if (!o->optimizer)
		o->optimizer = "adamw";
	bool ok = session_open(&s, o, OPEN_DIMS_REFUSE, arena, diag) && default_loss(&s);
	if (ok)
		ok = session_link(&s, o->output, true);
	if (ok) {
		print_summary(&s, o->table != NULL);
		print_plan(&s);
		printf("  wrote %s\n", o->output);
	}
	session_close(&s);
	return ok ? EXIT_OK : diag_exit_code(diag);
}

int
command_check(Options *o, Arena *arena, Diag *diag)
{
	Session s;
	bool ok = session_open(&s, o, OPEN_DIMS_ONE, arena, diag);

	if (ok && session_run(&s, "trainable", false) && module_verify(s.m, diag)) {
		if (o->json)
			print_summary_json(&s);
		else
			print_summary(&s, o->table != NULL);
	}
	session_close(&s);
	return diag_exit_code(diag);
}

/* Prints the predicted time of a training step on a machine as a table for people to read, the
 * longest launches first. */
#include "cost/cost.h"

static void
print_ranks(Text *out, const Outlook *o)
{
	text_printf(out, ", %d rank%s", o->ranks, o->ranks > 1 ? "s" : "");
	if (o->ranks > 1 && o->network_rate > 0)
		text_printf(out, ", %g Gbit/s between them", 8e-9 * o->network_rate);
	else if (o->ranks > 1)
		text_printf(out, ", %g GB/s between them", 1e-9 * o->machine->link_rate);
}

static void
print_head(Text *out, const Format *f, const PredictedStep *s, const Outlook *o)
{
	const ProgramRecord *p = s->programs[0];
	const BindingRecord *b = &f->bindings[p->binding];

	text_printf(out, "%s%s", s->programs[1] ? "training step" : role_names[p->role],
	            b->text ? " " : "");
	if (b->text)
		text_add_quoted(out, format_text(f, b->text));
	text_printf(out, " of %lld rows, predicted for %s: %s", (long long)s->rows,
	            o->machine->name, o->machine->title);
	print_ranks(out, o);
	text_add(out, "; loop kernels of target ");
	text_add_plain(out, format_text(f, f->targets[p->target].name));
	text_add(out, o->machine->chip->measured ? "\n\n" : "; no launch was measured\n\n");
	text_printf(out, "%11s %6s %5s %11s %8s %-7s %8s %9s %9s  %s\n", "total us", "share",
	            "times", "each us", "roofline", "bound", "parts", "MB", "GFLOP", "launch");
}

/* The name of the argument that the instruction writes. */
static const char *
last_name(const Format *f, const Instruction *in)
{
	return format_text(f, f->slots[f->arguments[in->args + in->n_args - 1u].slot].name);
}

/* Prints "k12 dot", "copy" or "all_reduce", and the name of the ONNX node; that name may hold any
 * characters. */
static void
print_launch(Text *out, Arena *arena, const Format *f, const Instruction *in)
{
	if (in->kind == RUN_KERNEL) {
		const KernelRecord *k = &f->kernels[in->what];
		text_add(out, format_text(f, k->name));
		if (k->library)
			text_printf(out, " %s",
			            library_kind_names[f->library[k->library - 1].call.kind]);
	} else if (in->kind == COLLECTIVE) {
		text_add(out, collective_names[f->collectives[in->what].kind]);
	} else {
		text_add(out, instruction_names[in->kind]);
	}
	if (!in->origin && in->n_args == 0)
		return;
	text_add(out, " ");
	text_add_plain(out, in->origin ? origin_title(arena, f, in) : last_name(f, in));
}

static void
print_row(Text *out, Arena *arena, const Format *f, const Prediction *p, double total)
{
	text_printf(out, "%11.1f %5.2f%% %5lld %11.1f %7.0f%% %-7s %8lld %9.2f %9.3f  ",
	            1e6 * prediction_total(p), 100 * prediction_total(p) / total,
	            (long long)p->times, 1e6 * p->seconds, 100 * prediction_of_roofline(p),
	            bound_names[p->bound], (long long)p->work.parts, 1e-6 * p->work.bytes,
	            1e-9 * p->work.flops);
	print_launch(out, arena, f, p->instruction);
	bool measured = p->work.class != WORK_CONVOLUTION && p->work.class != WORK_ATTENTION;
	text_add(out, measured ? "\n" : " (not measured)\n");
}

static void
print_rate(Text *out, const PredictedStep *s, double seconds)
{
	int64_t n = s->tokens ? s->tokens : s->rows;

	if (seconds <= 0)
		text_add(out, "nothing is launched");
	else
		text_printf(out, "%.0f %s/s", (double)n / seconds, s->tokens ? "tokens" : "rows");
}

static void
print_totals(Text *out, const PredictedStep *s)
{
	text_add(out, "\nstreams:");
	for (int i = 0; i < N_STREAMS; i++)
		text_printf(out, "%s %s %.1f us", i ? "," : "", stream_names[i],
		            1e6 * s->streams[i]);
	text_printf(out, "\nstep: %.3f ms, ", 1e3 * s->least);
	print_rate(out, s, s->least);
	if (s->most > s->least) {
		text_printf(out, " where communication is hidden; %.3f ms, ", 1e3 * s->most);
		print_rate(out, s, s->most);
		text_add(out, " where it is not");
	}
	text_add(out, "\n");
}

/* Prints the step in the order of time, as its streams (queues of instructions) would run it,
 * with the communication during which nothing is computed. */
static void
print_timeline(Text *out, Arena *arena, const Format *f, const PredictedStep *s, const Outlook *o)
{
	Timeline t = predict_timeline(arena, f, s, o);

	if (o->ranks < 2)
		return;
	text_printf(out, "as streams run it: %.3f ms, ", 1e3 * t.seconds);
	print_rate(out, s, t.seconds);
	text_printf(out, "; %.1f us of communication while nothing is computed\n", 1e6 * t.exposed);
	for (int i = 0; i < t.bars[STREAM_COMMUNICATION].n; i++) {
		const Bar *b = &t.bars[STREAM_COMMUNICATION].at[i];
		if (b->exposed < 1e-7)
			continue;
		text_printf(out, "%11.1f us exposed of %.1f us that begin at %.1f us: ",
		            1e6 * b->exposed, 1e6 * (b->end - b->begin), 1e6 * b->begin);
		print_launch(out, arena, f, b->instruction);
		text_add(out, "\n");
	}
}

void
format_print_predictions(Text *out, const Format *f, const Outlook *o)
{
	Arena *arena = arena_new();
	PredictedSteps steps = predict_steps(arena, f, o);

	for (int i = 0; i < steps.n; i++) {
		const PredictedStep *s = &steps.at[i];

		text_add(out, i ? "\n" : "");
		print_head(out, f, s, o);
		for (int k = 0; k < s->launches.n; k++)
			print_row(out, arena, f, &s->launches.at[k], s->total);
		print_totals(out, s);
		print_timeline(out, arena, f, s, o);
	}
	arena_free(arena);
}

/* What is shown while training: one line that is written over and over on a terminal, a line every
 * two seconds elsewhere. */
#include "runtime/cli.h"
#include "runtime/runtime_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define BAR_EVERY 0.1
#define PLAIN_EVERY 2.0

Progress
progress_start(const char *kind, FILE *out, int64_t total)
{
	bool terminal = isatty(fileno(out)) &&
	                !(getenv("TERM") && strcmp(getenv("TERM"), "dumb") == 0);
	bool bar = strcmp(kind, "bar") == 0 || (strcmp(kind, "auto") == 0 && terminal);
	const char *no_colour = getenv("NO_COLOR");

	return (Progress){
		.kind = strcmp(kind, "off") == 0 ? PROGRESS_OFF
	                : bar                    ? PROGRESS_BAR
	                                         : PROGRESS_PLAIN,
		.out = out,
		.colour = terminal && !(no_colour && *no_colour),
		.total = total,
		.started = seconds_now(),
		.last = -INFINITY,
		.last_seconds = seconds_now(),
	};
}

static int
line_width(FILE *out)
{
	struct winsize size;

	return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
}

static void
add_time(Text *t, double seconds)
{
	if (!isfinite(seconds))
		text_add(t, "--:--");
	else if (seconds >= 3600)
		text_printf(t, "%d:%02d:%02d", (int)(seconds / 3600), (int)(seconds / 60) % 60,
		            (int)seconds % 60);
	else
		text_printf(t, "%d:%02d", (int)(seconds / 60), (int)seconds % 60);
}

static void
update_rate(Progress *p, const GradcStep *s, double now)
{
	double rate = (double)(s->step - p->last_step) / (now - p->last_seconds + 1e-9);

	p->rate = p->rate > 0 ? 0.7 * p->rate + 0.3 * rate : rate;
	p->last_step = s->step;
	p->last_seconds = now;
}

static void
add_facts(Text *t, const Progress *p, const Gradc *run, const GradcStep *s)
{
	int64_t tokens = gradc_tokens_per_row(run);
	char number[32];

	text_printf(t, "loss %.4f  lr %.3g  %s %s/s  %.3g step/s", s->loss, s->lr,
	            count_text(number, p->rate * (double)(s->rows * (tokens ? tokens : 1))),
	            tokens ? "tokens" : "rows", p->rate);
	text_printf(t, "  %s  left ", bytes_text(number, (double)gradc_peak_bytes(run)));
	add_time(t, (double)(p->total - s->step) / p->rate);
}

static void
add_bar(Text *t, const Progress *p, int64_t step, int width)
{
	int done = p->total > 0 ? (int)((double)step / (double)p->total * width) : width;

	text_add(t, p->colour ? "\x1b[32m" : "");
	for (int i = 0; i < width; i++)
		text_add(t, i < done ? "#" : "-");
	text_add(t, p->colour ? "\x1b[0m " : " ");
}

static void
draw_bar(const Progress *p, const Gradc *run, const GradcStep *s)
{
	Text head = {0}, facts = {0}, line = {0};

	text_printf(&head, "%lld/%lld ", (long long)s->step, (long long)p->total);
	add_facts(&facts, p, run, s);
	int room = line_width(p->out) - 2 - (int)head.n - (int)facts.n;
	text_add(&line, "\r");
	text_add(&line, head.at);
	if (room > 5)
		add_bar(&line, p, s->step, room < 30 ? room - 1 : 29);
	int left = line_width(p->out) - 1 - (int)head.n;
	if (left > 0)
		text_add_bytes(&line, facts.at, (int)facts.n < left ? facts.n : (size_t)left);
	text_add(&line, "\x1b[K");
	fputs(line.at, p->out);
	fflush(p->out);
	text_free(&head);
	text_free(&facts);
	text_free(&line);
}

static void
print_plain(const Progress *p, const Gradc *run, const GradcStep *s)
{
	Text line = {0};

	text_printf(&line, "step %lld/%lld  ", (long long)s->step, (long long)p->total);
	add_facts(&line, p, run, s);
	fprintf(p->out, "%s\n", line.at);
	fflush(p->out);
	text_free(&line);
}

void
progress_step(Progress *p, const Gradc *run, const GradcStep *s)
{
	double now = seconds_now(), every = p->kind == PROGRESS_BAR ? BAR_EVERY : PLAIN_EVERY;

	if (p->kind == PROGRESS_OFF || (now - p->last < every && s->step != p->total))
		return;
	update_rate(p, s, now);
	p->last = now;
	if (p->kind == PROGRESS_BAR)
		draw_bar(p, run, s);
	else
		print_plain(p, run, s);
}

void
progress_line(Progress *p, const char *fmt, ...)
{
	va_list args;

	if (p->kind == PROGRESS_BAR)
		fputs("\r\x1b[K", p->out);
	va_start(args, fmt);
	if (p->kind != PROGRESS_OFF)
		vfprintf(p->out, fmt, args);
	va_end(args);
}

void
progress_end(Progress *p)
{
	if (p->kind == PROGRESS_BAR && p->last > 0)
		fputs("\n", p->out);
	fflush(p->out);
}

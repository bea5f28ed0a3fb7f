/* Shows the progress of training: on a terminal a line that is redrawn, elsewhere (in a file or pipe) a new line every two
 * seconds. */
#include "runtime/cli/cli.h"
#include "runtime/run/run.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define BAR_EVERY 0.1
#define PLAIN_EVERY 2.0
/* shortest and longest bar; shortest line with a bar, in columns */
enum { BAR_LEAST = 12, BAR_MOST = 40, BAR_FROM = 60 };

Progress
progress_start(const char *kind, FILE *out, int64_t done, int64_t total)
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
		.last_step = done,
		.total = total,
		.started = seconds_now(),
		.last = -INFINITY,
		.loss = NAN,
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
	if (!(seconds < 1e9)) /* 30 years */
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

/* The facts in a line, in this order. If the terminal is too narrow, facts with the highest rank (the least important ones) are
 * left out first. */
enum { FACT_LOSS, FACT_LR, FACT_RATE, FACT_MFU, FACT_STEPS, FACT_MEMORY, FACT_LEFT, N_FACTS };
static const int fact_rank[N_FACTS] = {
	[FACT_LOSS] = 0,   [FACT_LEFT] = 1, [FACT_RATE] = 2,  [FACT_MFU] = 3,
	[FACT_MEMORY] = 4, [FACT_LR] = 5,   [FACT_STEPS] = 6,
};

/* Adds the memory in use: on a GPU the memory taken by all processes, on the host the planned memory of this run. */
static void
add_memory(Text *t, const Gradc *run)
{
	char number[32], all[32];
	int64_t taken, total;

	if (gradc_gpu_memory(run, &taken, &total))
		text_printf(t, "GPU %s of %s", bytes_text(number, (double)taken),
		            bytes_text(all, (double)total));
	else
		text_add(t, bytes_text(number, (double)gradc_peak_bytes(run)));
}

static void
collect_facts(Text facts[N_FACTS], const Progress *p, const Gradc *run, const GradcStep *s)
{
	int64_t tokens = gradc_tokens_per_row(run);
	char number[32];

	double mfu = gradc_mfu(run, 1 / p->rate);

	text_printf(&facts[FACT_LOSS], "loss %.4f", p->loss);
	if (!isnan(mfu))
		text_printf(&facts[FACT_MFU], "MFU %.0f%%", 100 * mfu);
	text_printf(&facts[FACT_LR], "lr %.3g", s->lr);
	text_printf(&facts[FACT_RATE], "%s %s/s",
	            count_text(number, p->rate * (double)(s->rows * (tokens ? tokens : 1))),
	            tokens ? "tokens" : "rows");
	text_printf(&facts[FACT_STEPS], "%.3g step/s", p->rate);
	add_memory(&facts[FACT_MEMORY], run);
	text_add(&facts[FACT_LEFT], "left ");
	add_time(&facts[FACT_LEFT], (double)(p->total - s->step) / p->rate);
}

/* Adds as many facts as there is room for, with two blanks between them. */
static void
add_facts(Text *t, const Progress *p, const Gradc *run, const GradcStep *s, int room)
{
	Text facts[N_FACTS] = {{0}};
	bool chosen[N_FACTS] = {false};

	collect_facts(facts, p, run, s);
	for (int rank = 0; rank < N_FACTS; rank++)
		for (int i = 0; i < N_FACTS; i++)
			if (fact_rank[i] == rank && facts[i].n && (int)facts[i].n <= room) {
				chosen[i] = true;
				room -= (int)facts[i].n + 2;
			}
	for (int i = 0; i < N_FACTS; i++) {
		if (chosen[i])
			text_printf(t, "%s%s", t->n ? "  " : "", facts[i].at);
		text_free(&facts[i]);
	}
	text_add(t, "");
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

/* Clears the line with blanks, because not every terminal knows escape codes. */
static void
clear_line(const Progress *p)
{
	if (p->drawn)
		fprintf(p->out, "\r%*s\r", p->drawn, "");
}

static void
draw_bar(Progress *p, const Gradc *run, const GradcStep *s)
{
	Text head = {0}, facts = {0}, line = {0};

	text_printf(&head, "%lld/%lld ", (long long)s->step, (long long)p->total);
	int room = line_width(p->out) - 1 - (int)head.n;
	add_facts(&facts, p, run, s, room > BAR_FROM ? room - BAR_LEAST - 1 : room);
	room -= (int)facts.n + 1;
	text_add(&line, head.at);
	if (room >= BAR_LEAST)
		add_bar(&line, p, s->step, room < BAR_MOST ? room : BAR_MOST);
	text_add(&line, facts.at);
	clear_line(p);
	fputs(line.at, p->out);
	fflush(p->out);
	p->drawn = line_width(p->out) - 1;
	text_free(&head);
	text_free(&facts);
	text_free(&line);
}

static void
print_plain(const Progress *p, const Gradc *run, const GradcStep *s)
{
	Text facts = {0};

	add_facts(&facts, p, run, s, INT_MAX / 2);
	fprintf(p->out, "step %lld/%lld  %s\n", (long long)s->step, (long long)p->total, facts.at);
	fflush(p->out);
	text_free(&facts);
}

/* An average in which the newest loss has a tenth of the weight, or more in the first ten steps. Steps without targets do not
 * count. */
static void
smooth_loss(Progress *p, double loss)
{
	enum { WINDOW = 10 };

	if (isnan(loss))
		return;
	p->n_losses += p->n_losses < WINDOW;
	p->loss = p->n_losses == 1 ? loss : p->loss + (loss - p->loss) / p->n_losses;
}

void
progress_step(Progress *p, const Gradc *run, const GradcStep *s)
{
	smooth_loss(p, s->loss);
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

	clear_line(p);
	p->drawn = 0;
	va_start(args, fmt);
	if (p->kind != PROGRESS_OFF)
		vfprintf(p->out, fmt, args);
	va_end(args);
}

void
progress_end(Progress *p)
{
	if (p->drawn)
		fputs("\n", p->out);
	fflush(p->out);
}

/* How many bytes a rank holds if ranks hold parts of the states: S + P / W + padding, where S is the bytes of undivided states,
 * P the bytes of divided states, and W the number of ranks. There is padding because a part consists of whole blocks, and
 * because every rank allocates memory for the largest part. */
#include "runtime/run/run.h"

#include <jansson.h>

RankBytes
rank_bytes(const Format *f, const RunFacts *facts)
{
	RankBytes b = {.whole = format_state_bytes(f, facts->mode),
	               .host = format_region_bytes(f, SPACE_OFFLOAD, EVERY_TARGET, facts) +
	                       format_region_bytes(f, SPACE_OPTIMIZER, EVERY_TARGET, facts)};

	b.shard = b.host + format_region_bytes(f, SPACE_SHARD, EVERY_TARGET, facts);

	for (int i = 0; i < f->n[SECTION_STATES]; i++)
		if (state_is_sharded(&f->states[i], facts->mode) && f->states[i].block)
			b.parts += f->states[i].bytes;
	b.padding = b.shard - b.parts / run_group(facts, GROUP_SHARD).n;
	for (int s = 0; s < N_SPACES; s++)
		if (!space_table[s].on_host)
			b.all += format_region_bytes(f, (Space)s, EVERY_TARGET, facts);
	b.gathered = format_region_bytes(f, SPACE_GATHERED, EVERY_TARGET, facts);
	return b;
}

/* "state 1.2 KiB, parts 3.5 MiB / 2 ranks + 32.0 KiB" */
void
rank_bytes_text(Text *out, const RankBytes *b, int ranks)
{
	char text[32];

	text_printf(out, "state %s", bytes_text(text, (double)b->whole));
	text_printf(out, ", parts %s", bytes_text(text, (double)b->parts));
	text_printf(out, " / %d rank%s", ranks, ranks == 1 ? "" : "s");
	text_printf(out, " + %s", bytes_text(text, (double)b->padding));
	if (b->host)
		text_printf(out, ", of it %s in the host's memory",
		            bytes_text(text, (double)b->host));
}

bool
gradc_describe_parts(const Gradc *run, Text *out)
{
	const RunFacts *facts = &run->executor.facts;
	RankBytes b = rank_bytes(&run->format, facts);

	if (facts->mode == MODE_DDP)
		return false;
	text_printf(out, "data-parallel %s, a rank holds: ", mode_names[facts->mode]);
	rank_bytes_text(out, &b, run_group(facts, GROUP_SHARD).n);
	return true;
}

/* ---- numbers for every mode that is compiled in, with 1 to 512 ranks */
typedef struct {
	const Format *f;
	void (*row)(void *context, const RunFacts *facts, const RankBytes *b);
	void *context;
} Worlds;

static void
visit_mode(const Worlds *w, int mode)
{
	enum { MOST_ORDERED = 8 };
	static const int worlds[] = {1, 2, 4, 8, 64, 512};

	for (int k = 0; k < COUNT(worlds); k++) {
		RunFacts facts = {.ranks = worlds[k], .mode = mode};
		facts.holds = run_holds(&facts, worlds[k] <= MOST_ORDERED, false);
		RankBytes b = rank_bytes(w->f, &facts);
		w->row(w->context, &facts, &b);
	}
}

static void
for_each_world(const Worlds *w)
{
	for (int mode = MODE_DDP + 1; mode < N_MODES; mode++)
		if (format_has_mode(w->f, mode))
			visit_mode(w, mode);
}

static void
add_json(void *context, const RunFacts *facts, const RankBytes *b)
{
	json_array_append_new(
		context,
		json_pack("{s:s,s:i,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "mode", mode_names[facts->mode],
	                  "ranks", facts->ranks, "whole", (json_int_t)b->whole, "parts",
	                  (json_int_t)b->parts, "shard", (json_int_t)b->shard, "padding",
	                  (json_int_t)b->padding, "host", (json_int_t)b->host, "gathered",
	                  (json_int_t)b->gathered, "bytes", (json_int_t)b->all));
}

json_t *
rank_bytes_json(const Format *f)
{
	json_t *list = json_array();

	for_each_world(&(Worlds){f, add_json, list});
	return list;
}

static void
print_row(void *context, const RunFacts *facts, const RankBytes *b)
{
	Text line = {0};
	char text[2][32];

	rank_bytes_text(&line, b, facts->ranks);
	fprintf(context, "%s, %d rank%s: %s; gathered %s, %s in all\n", mode_names[facts->mode],
	        facts->ranks, facts->ranks == 1 ? "" : "s", line.at,
	        bytes_text(text[0], (double)b->gathered), bytes_text(text[1], (double)b->all));
	text_free(&line);
}

void
rank_bytes_print(FILE *out, const Format *f)
{
	for_each_world(&(Worlds){f, print_row, out});
}

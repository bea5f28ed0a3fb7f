/* Parses --machine=NAME[,ranks=N][,link=RATE], which describes the machine for which `gradc dump`
 * predicts the time of a step. */
#include "driver/driver.h"

#include <math.h>
#include <string.h>

enum { MOST_RANKS = 1 << 16 };

static bool
refuse(const OptionUse *u, const char *what)
{
	diag_error(u->diag, EXIT_USAGE, "%s--machine=%s: %s", u->origin, u->value, what);
	return false;
}

static bool
set_name(const OptionUse *u, Outlook *o, const char *name)
{
	Text known = {0};

	o->machine = machine_find(name);
	if (o->machine)
		return true;
	refuse(u, "no such machine");
	for (int i = 0; machine_table[i]; i++)
		text_printf(&known, "%s%s", i ? ", " : "", machine_table[i]->name);
	diag_hint(u->diag, "there are %s", known.at);
	text_free(&known);
	return false;
}

static bool
set_ranks(const OptionUse *u, Outlook *o, const char *value)
{
	int64_t ranks;

	if (!parse_int(value, &ranks) || ranks < 1 || ranks > MOST_RANKS)
		return refuse(u, "ranks: need a whole number from 1 to 65536");
	o->ranks = (int)ranks;
	return true;
}

/* Networks are rated in bits per second, with powers of ten: 400G is 50 GB/s. */
static bool
set_link(const OptionUse *u, Outlook *o, const char *value)
{
	size_t n = strlen(value);
	double rate;

	if (n < 2 || value[n - 1] != 'G' ||
	    !parse_double(arena_strndup(u->arena, value, n - 1), &rate) || !(rate > 0) ||
	    isinf(rate))
		return refuse(u, "link: need gigabits a second, as 400G");
	o->network_rate = rate * 1e9 / 8;
	return true;
}

static const struct {
	const char *name;
	bool (*set)(const OptionUse *u, Outlook *o, const char *value);
} keys[] = {{"ranks", set_ranks}, {"link", set_link}};

static bool
set_key(const OptionUse *u, Outlook *o, const char *word)
{
	size_t n = strcspn(word, "=");

	for (int i = 0; i < COUNT(keys); i++)
		if (strlen(keys[i].name) == n && strncmp(keys[i].name, word, n) == 0 && word[n])
			return keys[i].set(u, o, word + n + 1);
	return refuse(u, "only ranks=N and link=RATE may follow the name");
}

bool
set_machine(const OptionUse *u, void *at)
{
	Outlook *o = at;
	char *copy = arena_strdup(u->arena, u->value), *save = NULL;
	const char *word = strtok_r(copy, ",", &save);

	*o = (Outlook){.ranks = 1};
	if (!set_name(u, o, word ? word : ""))
		return false;
	size_t n;
	const char *twice = save && *save ? text_key_twice(save, &n) : NULL;
	if (twice)
		return refuse(u, arena_printf(u->arena, "%.*s is given twice", (int)n, twice));
	while ((word = strtok_r(NULL, ",", &save)))
		if (!set_key(u, o, word))
			return false;
	if (o->ranks <= o->machine->joined || o->network_rate > 0)
		return true;
	refuse(u, "more ranks than the machine's own link joins");
	diag_hint(u->diag, "the link joins %d GPUs; link=400G gives the rate of a network",
	          o->machine->joined);
	return false;
}

void
machines_write(FormatWriter *w, const Options *o)
{
	static const char *const names[N_MATHS] = {[MATH_F32] = "f32",
	                                           [MATH_F64] = "f64",
	                                           [MATH_TF32] = "tf32",
	                                           [MATH_16_BITS] = "16",
	                                           [MATH_8_BITS] = "8"};

	for (int i = 0; o->gpus.n > 0 && machine_table[i]; i++) {
		const Machine *m = machine_table[i];
		Text row = {0};

		for (int k = 0; k < N_MATHS; k++)
			text_printf(&row, "%s=%g %s.reached=%g ", names[k],
			            m->chip->products[k].peak, names[k],
			            m->chip->products[k].reached);
		text_printf(&row, "loops=%g memory=%g launch=%g", m->chip->loop_rate[MATH_F32],
		            m->memory_rate, m->launch);
		format_info(w, arena_printf(w->arena, "machine.%s", m->device), "%s", row.at);
		text_free(&row);
	}
}

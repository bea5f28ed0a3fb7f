/* Computes how many bytes training keeps for each trained parameter, by kind of state: weights, gradients, moments and so on.
 * Optimizers and precisions can be compared by these numbers. */
#include "runtime/cli/cli.h"

static const struct {
	const char *name;
	uint32_t kind;
} parts[N_STATE_PARTS] = {
	{"weights", STATE_PARAMETER}, {"working", STATE_WORKING},  {"gradients", STATE_GRADIENT},
	{"moments", STATE_MOMENT},    {"averages", STATE_AVERAGE},
};

static bool
is_trained(const StateRecord *s)
{
	return s->kind == STATE_PARAMETER && s->trainable;
}

/* Is the state a trained parameter, or does it belong to one, like a moment? A unit (several states laid out together) does not
 * count, because its members are counted. */
static bool
belongs(const Format *f, const StateRecord *s)
{
	return is_trained(s) || (s->of && is_trained(&f->states[s->of - 1]));
}

StateBytes
state_bytes(const Format *f)
{
	StateBytes out = {0};

	for (int i = 0; i < f->n[SECTION_STATES]; i++) {
		const StateRecord *s = &f->states[i];
		if (is_trained(s))
			out.elements += format_elements(f, s->first_dim, s->rank);
		for (int k = 0; k < N_STATE_PARTS; k++)
			if (s->kind == parts[k].kind && belongs(f, s))
				out.bytes[k] += s->bytes;
	}
	return out;
}

static double
each(const StateBytes *b, int64_t bytes)
{
	return b->elements ? (double)bytes / (double)b->elements : 0;
}

static int64_t
sum(const StateBytes *b)
{
	int64_t total = 0;

	for (int k = 0; k < N_STATE_PARTS; k++)
		total += b->bytes[k];
	return total;
}

int64_t
parameter_elements(const Format *f)
{
	int64_t n = 0;

	for (int i = 0; i < f->n[SECTION_STATES]; i++) {
		FormatType t = format_weight_type(f, i);
		if (f->states[i].kind == STATE_PARAMETER)
			n += format_elements(f, t.first_dim, t.rank);
	}
	return n;
}

void
state_bytes_print(FILE *out, const Format *f)
{
	StateBytes b = state_bytes(f);
	char text[32];

	if (b.elements == 0)
		return;
	fprintf(out, "bytes a parameter: %.2f", each(&b, sum(&b)));
	for (int k = 0, n = 0; k < N_STATE_PARTS; k++)
		if (b.bytes[k])
			fprintf(out, "%s%s %.2f", n++ ? ", " : " (", parts[k].name,
			        each(&b, b.bytes[k]));
	fprintf(out, "), %s of ", count_text(text, (double)b.elements));
	fprintf(out, "%s are trained\n", count_text(text, (double)parameter_elements(f)));
}

json_t *
state_bytes_json(const Format *f)
{
	StateBytes b = state_bytes(f);
	json_t *out = json_object();

	for (int k = 0; k < N_STATE_PARTS; k++)
		json_object_set_new(out, parts[k].name, json_real(each(&b, b.bytes[k])));
	json_object_set_new(out, "total", json_real(each(&b, sum(&b))));
	return out;
}

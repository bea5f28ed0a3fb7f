/* Finds out whether the elements of an operand lie side by side in memory, so that members of a team
 * can copy several elements with one instruction. */
#include "codegen/lower/lower.h"

const LoopStatement *
lower_load(const LoopBuilder *lb, LoopValue x)
{
	const LoopStatement *s = &lb->k->body.at[lb->definitions.at[x]];
	bool load = s->kind == LOOP_STATEMENT_LOAD &&
	            lb->k->buffers.at[s->buffer].kind == BUFFER_IN;

	return load ? s : NULL;
}

static bool
depends_on(const LoopBuilder *lb, LoopValue x, LoopValue variable)
{
	const LoopStatement *s = &lb->k->body.at[lb->definitions.at[x]];
	const Affine *places[MAX_PLACES];

	if (x == variable || s->kind > LOOP_STATEMENT_LOAD)
		return x == variable;
	for (int i = 0; i < s->n_operands; i++)
		if (depends_on(lb, s->operands[i], variable))
			return true;
	for (int p = statement_places(s, places) - 1; p >= 0; p--)
		for (int i = 0; i < places[p]->n; i++)
			if (depends_on(lb, places[p]->terms[i].scalar, variable))
				return true;
	return false;
}

int
lower_contiguous(const LoopBuilder *lb, const LoopStatement *load, LoopValue variable,
                 int64_t extent)
{
	const Affine *a = load->place;
	int64_t bits = dtype_info[lb->k->buffers.at[load->buffer].type->dtype].bits;
	int64_t n = COPY_BYTES * 8 / bits;
	bool beside = false;

	while (n > 1 && (extent % n || !affine_is_multiple(a, variable, n) || load->n_operands))
		n /= 2;
	for (int i = 0; i < a->n; i++) {
		AffineTerm t = a->terms[i];
		if (t.scalar == variable && t.coefficient == 1) {
			beside = true;
			continue;
		}
		if (depends_on(lb, t.scalar, variable))
			return 0;
	}
	return beside ? (int)n : 0;
}

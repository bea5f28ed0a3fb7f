/* Prints the vector loops of a GPU thread: up to 16 bytes of contiguous elements are loaded or
 * stored by one instruction.
 *
 *	const Pack<float, 4> pack7 = *(const Pack<float, 4> *)&x0[1024 * v0 + 4 * v1];
 *	Pack<float, 4> pack9;
 *	for (int v5 = 0; v5 < 4; v5++) {
 *		const float v6 = pack7.at[v5];
 *		pack9.at[v5] = v6 * v6;
 *	}
 *	*(Pack<float, 4> *)&y0[1024 * v0 + 4 * v1] = pack9;
 *
 * Iterations may run in any order, so loads come first and stores last. */
#include "codegen/cuda/print.h"

/* Writes to *out the place of the loop's first element: `place` without the loop's variable.
 * False: the place does not advance by one element per iteration, or the first place is not a
 * multiple of the loop's extent, so one instruction could not load the elements. */
static bool
first_place(CPrinter *p, const LoopStatement *loop, const Affine *place, Affine *out)
{
	AffineTerm *terms = NEW_ARRAY(p->arena, AffineTerm, place->n);
	bool counts = false;

	*out = (Affine){.constant = place->constant, .terms = terms};
	for (int i = 0; i < place->n; i++) {
		if (place->terms[i].scalar == loop->result)
			counts = place->terms[i].coefficient == 1;
		else
			terms[out->n++] = place->terms[i];
	}
	return counts && affine_is_multiple(out, -1, loop->extent);
}

static bool
is_defined_within(const CPrinter *p, int from, int to, const Affine *place)
{
	for (int at = from; at < to; at++)
		for (int i = 0; i < place->n; i++)
			if (p->k->body.at[at].result == place->terms[i].scalar)
				return true;
	return false;
}

static bool
is_touched(const CPrinter *p, int from, int to, int buffer, bool by_loads)
{
	for (int at = from; at < to; at++) {
		const LoopStatement *s = &p->k->body.at[at];
		if (s->buffer == buffer && (s->kind == LOOP_STATEMENT_STORE ||
		                            (by_loads && s->kind == LOOP_STATEMENT_LOAD)))
			return true;
	}
	return false;
}

/* Are the elements that a load or store touches in the loop contiguous, and may one instruction
 * move all of them? */
static bool
is_pack(CPrinter *p, const LoopStatement *loop, int at, int i, Affine *first)
{
	const LoopStatement *s = &p->k->body.at[i];
	const LoopBuffer *b = &p->k->buffers.at[s->buffer];
	bool load = s->kind == LOOP_STATEMENT_LOAD && s->n_operands == 0;

	if ((!load && s->kind != LOOP_STATEMENT_STORE) || dtype_info[b->type->dtype].bits < 8 ||
	    (!buffer_is_param(b) && b->kind != BUFFER_LOCAL) || b->pad || b->swizzle ||
	    (b->kind == BUFFER_LOCAL && b->type->n % loop->extent))
		return false;
	return first_place(p, loop, s->place, first) &&
	       !is_defined_within(p, at + 1, loop->match, first) &&
	       (load ? !is_touched(p, at + 1, i, s->buffer, false)
	             : !is_touched(p, i + 1, loop->match, s->buffer, true));
}

static void
print_pack(CPrinter *p, const LoopStatement *loop, int i, const Affine *first, bool before)
{
	const LoopStatement *s = &p->k->body.at[i];
	bool load = s->kind == LOOP_STATEMENT_LOAD;
	const char *type = arena_printf(p->arena, "Pack<%s, %lld>",
	                                c_storage_names[p->k->buffers.at[s->buffer].type->dtype],
	                                (long long)loop->extent);
	const char *place = arena_printf(p->arena, "%s[%s]", cuda_array(p, s->buffer),
	                                 c_affine(p, first));

	c_indent(p);
	if (!before)
		text_printf(p->out, "*(%s *)&%s = pack%d;\n", type, place, i);
	else if (load)
		text_printf(p->out, "const %s pack%d = *(const %s *)&%s;\n", type, i, type, place);
	else
		text_printf(p->out, "%s pack%d;\n", type, i);
}

/* If `before`, prints the loads that come before the loop, and declarations of packs for the
 * stores. Otherwise prints the stores that come after the loop. */
static void
print_packs(CPrinter *p, const LoopStatement *loop, int at, bool before)
{
	for (int i = at + 1; i < loop->match; i++) {
		const LoopStatement *s = &p->k->body.at[i];
		Affine first;
		if ((before || s->kind == LOOP_STATEMENT_STORE) &&
		    is_pack(p, loop, at, i, &first)) {
			print_pack(p, loop, i, &first, before);
			p->packs[i] = arena_printf(p->arena, "pack%d.at", i);
		}
	}
}

bool
cuda_is_short_vector(const CPrinter *p, const LoopStatement *s)
{
	return s->mode == LOOP_VECTOR && !s->place && s->n_accumulators == 0 &&
	       s->extent <= MAX_UNROLL && p->n_open == p->k->n_team && p->k->n_team;
}

void
cuda_print_vector(CPrinter *p, const LoopStatement *s, int at)
{
	const LoopStatement *outer = p->vector;
	bool packs = s->extent > 1 && (s->extent & (s->extent - 1)) == 0 && s->extent <= 16;

	if (packs)
		print_packs(p, s, at, true);
	p->vector = s;
	c_indent(p);
	text_printf(p->out, "#pragma unroll\n");
	c_print_counted_loop(p, s, at);
	p->vector = outer;
	if (packs)
		print_packs(p, s, at, false);
}

void
cuda_print_load(CPrinter *p, const LoopStatement *s, int at)
{
	p->pack = p->packs[at];
	c_print_definition(p, s, at);
	p->pack = NULL;
}

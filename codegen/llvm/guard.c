/* Loads at clamped places of which a select takes only what lay inside, as patches of convolutions have at an image's edge:
 *
 *	c = min(max(x, 0), size - 1); y = load b[.. + c]; z = select(x == c and .., y, 0)
 *
 * One access under a mask, at the place that is not clamped: lanes side by side stay so, where clamped ones need a gather
 * and arithmetic on their places. Masked lanes touch no memory. */
#include "codegen/llvm/llvm_impl.h"

typedef struct {
	LoopValue x, clamped;
	int64_t size;
	bool checked; /* the select's condition says that x lay inside */
} Clamp;

struct Guard {
	const LoopStatement *load;
	Affine place; /* not clamped */
	int n_clamps, n_others;
	Clamp clamps[MAX_TERMS];    /* at most one for each term of the load */
	LoopValue others[MAX_RANK]; /* what else the condition asks for */
};

/* By scalar. */
typedef struct {
	const Kernel *k;
	const LoopStatement **definitions; /* NULL: a loop's */
	int *uses;
} Scalars;

static const LoopStatement *
defined_by(const Scalars *s, LoopValue x, LoopOp op)
{
	const LoopStatement *d = s->definitions[x];

	return d && d->kind == LOOP_STATEMENT_OP && d->op == op ? d : NULL;
}

static bool
is_constant(const Scalars *s, LoopValue x, int64_t *value)
{
	const LoopStatement *d = s->definitions[x];

	if (!d || d->kind != LOOP_STATEMENT_CONST)
		return false;
	*value = d->i;
	return d->f == 0 || d->i != 0;
}

/* min(max(x, 0), size - 1) */
static bool
is_clamp(const Scalars *s, LoopValue c, Clamp *out)
{
	const LoopStatement *min = defined_by(s, c, LOOP_min);
	const LoopStatement *max = min ? defined_by(s, min->operands[0], LOOP_max) : NULL;
	int64_t last, first;

	if (!max || !is_constant(s, min->operands[1], &last) || last < 0 ||
	    !is_constant(s, max->operands[1], &first) || first != 0)
		return false;
	*out = (Clamp){.x = max->operands[0], .clamped = c, .size = last + 1};
	return true;
}

/* The load's place, with every x in place of its clamped one. */
static bool
free_place(const Scalars *s, Guard *g)
{
	const Affine *a = g->load->place;

	g->place = affine_constant(a->constant);
	for (int i = 0; i < a->n; i++) {
		Affine term = affine_scalar(a->terms[i].scalar);
		Clamp clamp;
		if (is_clamp(s, a->terms[i].scalar, &clamp)) {
			const LoopStatement *x = s->definitions[clamp.x];
			bool is_affine = x && x->kind == LOOP_STATEMENT_AFFINE;
			term = is_affine ? affine_of(x->place) : affine_scalar(clamp.x);
			g->clamps[g->n_clamps++] = clamp;
		}
		if (g->place.n + term.n > MAX_TERMS)
			return false;
		g->place = affine_add(g->place, affine_scale(term, a->terms[i].coefficient));
	}
	return g->n_clamps > 0;
}

/* Takes the condition apart; false where it asks for too much. */
static bool
add_condition(const Scalars *s, Guard *g, LoopValue x)
{
	const LoopStatement *both = defined_by(s, x, LOOP_and), *equal = defined_by(s, x, LOOP_eq);

	if (both)
		return add_condition(s, g, both->operands[0]) &&
		       add_condition(s, g, both->operands[1]);
	for (int i = 0; equal && i < g->n_clamps; i++)
		if (equal->operands[0] == g->clamps[i].x &&
		    equal->operands[1] == g->clamps[i].clamped) {
			g->clamps[i].checked = true;
			return true;
		}
	if (g->n_others == COUNT(g->others))
		return false;
	g->others[g->n_others++] = x;
	return true;
}

/* The guard of what `select` takes; NULL: there is none. */
static Guard *
guard_of(Arena *arena, const Scalars *s, const LoopStatement *select)
{
	const LoopStatement *load = s->definitions[select->operands[1]];
	Guard g = {.load = load};
	int64_t otherwise;

	if (!load || load->kind != LOOP_STATEMENT_LOAD ||
	    is_packed(s->k->buffers.at[load->buffer].type->dtype) || s->uses[load->result] != 1 ||
	    !is_constant(s, select->operands[2], &otherwise) || otherwise != 0 ||
	    !free_place(s, &g) || !add_condition(s, &g, select->operands[0]))
		return NULL;
	for (int i = 0; i < g.n_clamps; i++)
		if (!g.clamps[i].checked)
			return NULL;
	return arena_copy(arena, &g, sizeof(g));
}

static void
count_uses(const Scalars *s)
{
	for (int i = 0; i < s->k->body.n; i++) {
		const LoopStatement *at = &s->k->body.at[i];

		if (at->result >= 0 && at->kind != LOOP_STATEMENT_FOR)
			s->definitions[at->result] = at;
		for (int k = 0; k < at->n_operands; k++)
			s->uses[at->operands[k]]++;
		for (int k = 0; at->place && k < at->place->n; k++)
			s->uses[at->place->terms[k].scalar]++;
	}
}

void
guards_find(Printer *p)
{
	const Kernel *k = p->k;
	Scalars s = {k, NEW_ARRAY(p->arena, const LoopStatement *, k->n_scalars),
	             NEW_ARRAY(p->arena, int, k->n_scalars)};

	p->guards = NEW_ARRAY(p->arena, Guard *, k->n_scalars);
	if (!p->masks)
		return;
	count_uses(&s);
	for (int i = 0; i < k->body.n; i++) {
		const LoopStatement *at = &k->body.at[i];
		if (at->kind != LOOP_STATEMENT_OP || at->op != LOOP_select)
			continue;
		Guard *g = guard_of(p->arena, &s, at);
		if (g)
			p->guards[at->result] = p->guards[g->load->result] = g;
	}
}

/* ---- printed */

/* Where lanes lie side by side when they are not clamped, the select loads. */
static bool
is_used(const Printer *p, const Guard *g)
{
	return g && p->variable >= 0 && lanes_are_neighbours(p, &g->place);
}

static V
and_masks(const Printer *p, V x, V y)
{
	if (!x || !y)
		return x ? x : y;
	if (is_vector(x) != is_vector(y)) {
		x = widen(p, x);
		y = widen(p, y);
	}
	return LLVMBuildAnd(p->b, x, y, "");
}

bool
guard_defers(const Printer *p, const LoopStatement *s)
{
	return s->kind == LOOP_STATEMENT_LOAD && is_used(p, p->guards[s->result]);
}

V
emit_guarded(Printer *p, const LoopStatement *s)
{
	const Guard *g = p->guards[s->result];
	V mask = NULL;

	if (s->kind != LOOP_STATEMENT_OP || !is_used(p, g))
		return NULL;
	for (int i = 0; i < g->n_clamps; i++)
		mask = and_masks(p, mask, emit_inside(p, g->clamps[i].x, g->clamps[i].size));
	for (int i = 0; i < g->n_others; i++)
		mask = and_masks(p, mask, p->frame.values[g->others[i]]);
	return emit_masked_load(p, g->load, &g->place, and_masks(p, widen(p, mask), p->mask));
}

/* Finds out what a nest of loops loads before the final code is emitted: opens the loops, emits
 * their bodies, lists the loads and removes all these statements again. */
#include "codegen/lower/nest.h"

NestProbe
nest_probe(Lower *lw, const LoopNest *nest)
{
	LoopBuilder *lb = lw->lb;
	NestProbe p = {.first = lb->k->body.n, .flat = affine_constant(0)};
	LoopNest open = *nest;

	for (int d = 0; d < nest->n; d++) {
		p.variables[d] = nest_open(lb, &open, d, LOOP_PLAIN);
		p.flat = affine_add_scaled(lb, p.flat, affine_scalar(lb, p.variables[d]),
		                           nest->at[d].full);
	}
	return p;
}

/* Writes the load's place as a sum over the loops; False: s is not a load of an input, or its
 * place contains something other than loop variables. */
static bool
load_of(const LoopBuilder *lb, const LoopStatement *s, const NestProbe *p, int loops, NestLoad *out)
{
	if (s->kind != LOOP_STATEMENT_LOAD || lb->k->buffers.at[s->buffer].kind != BUFFER_IN)
		return false;
	*out = (NestLoad){
		.buffer = s->buffer, .masked = s->n_operands > 0, .constant = s->place->constant};
	for (int i = 0; i < s->place->n; i++) {
		int d = 0;
		while (d < loops && p->variables[d] != s->place->terms[i].scalar)
			d++;
		if (d == loops)
			return false;
		out->strides[d] = s->place->terms[i].coefficient;
	}
	return true;
}

static bool
is_listed(const NestProbe *p, const NestLoad *load, int loops)
{
	for (int i = 0; i < p->loads.n; i++) {
		const NestLoad *l = &p->loads.at[i];
		bool same = l->buffer == load->buffer && l->constant == load->constant &&
		            l->masked == load->masked;
		for (int d = 0; d < loops; d++)
			same &= l->strides[d] == load->strides[d];
		if (same)
			return true;
	}
	return false;
}

void
nest_probe_end(Lower *lw, const LoopNest *nest, NestProbe *p)
{
	LoopBuilder *lb = lw->lb;
	NestLoad load;

	for (int d = 0; d < nest->n; d++)
		lb_end(lb);
	for (int i = p->first; i < lb->k->body.n; i++)
		if (load_of(lb, &lb->k->body.at[i], p, nest->n, &load) &&
		    !is_listed(p, &load, nest->n))
			vec_push(lw->state->scratch, &p->loads, load);
	lb_forget(lb, p->first);
}

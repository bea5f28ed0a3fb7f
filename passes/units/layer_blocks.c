/* Divides the parameters of a model into layer blocks. A block ends, and the next block begins, where only one
 * activation is live (computed, and read later) in the forward pass:
 *
 *	x1 = x0 + attention(norm(x0))      x0 and values inside of attention are live: inside of a block
 *	x2 = x1 + mlp(norm(x1))            between the two lines only x1 is live: a boundary
 *
 * A rank that gathers the parameters of a block from other ranks can drop them at the end of the block. An activation
 * is a float that depends on an input and on a parameter. Masks and positions, which all layers read, are not
 * activations. Time: linear in nodes. */
#include "passes/units/layout.h"

/* Elements of a block's parameters. A smaller block is merged with the next block; otherwise units (units.c) would be
 * mostly padding. */
enum { LEAST_BLOCK = 1 << 16 };

enum { FROM_INPUT = 1, FROM_PARAMETER = 2 };
typedef struct {
	const Function *f;
	Arena *arena;
	uint8_t *origin;         /* by value id */
	int *defined, *last_use; /* by value id: positions of forward nodes; 0: no position */
	int *position;           /* by node id, from 1; 0: no node of the forward pass */
	int n;                   /* number of positions */
	int *block;              /* out, by state id: position of its first reader; 0: no reader */
	bool *visited;           /* by node id: its parameters have their first reader */
	VEC(Value *) pending;    /* work list of note_reader */
} Forward;

static bool
is_forward(const Node *n)
{
	return n->phase != PHASE_BACKWARD && n->phase != PHASE_UPDATE && !op_row(n)->effect;
}

/* s itself if s is a parameter; the parameter if s is a copy of one; else NULL. */
static const State *
weight_of(const State *s)
{
	return s->kind == STATE_PARAMETER ? s : s->kind == STATE_WORKING ? s->of : NULL;
}

static uint8_t
origin_of(const Forward *w, const Value *v)
{
	if (v->kind == VALUE_PARAM)
		return v->param == PARAM_INPUT ? FROM_INPUT : 0;
	if (v->kind == VALUE_STATE)
		return weight_of(v->state) ? FROM_PARAMETER : 0;
	return w->origin[v->id];
}

static bool
is_activation(const Forward *w, const Value *v)
{
	return v->node && w->origin[v->id] == (FROM_INPUT | FROM_PARAMETER) &&
	       dtype_is_float(v->type->dtype) && v->type->n > 1;
}

/* If v is computed from parameters alone: notes that the first node that reads these parameters
 * stands at `position`. */
static void
note_reader(Forward *w, Value *v, int position)
{
	w->pending.n = 0;
	vec_push(w->arena, &w->pending, v);
	while (w->pending.n) {
		v = w->pending.at[--w->pending.n];
		const State *s = v->kind == VALUE_STATE ? v->state : NULL;
		if (s && w->block[s->id] == 0)
			w->block[s->id] = position;
		if (s && weight_of(s) && w->block[weight_of(s)->id] == 0)
			w->block[weight_of(s)->id] = position;
		if (!v->node || w->visited[v->node->id] || (w->origin[v->id] & FROM_INPUT))
			continue;
		w->visited[v->node->id] = true;
		for (int i = 0; i < v->node->n_operands; i++)
			if (node_operand(v->node, i))
				vec_push(w->arena, &w->pending, node_operand(v->node, i));
	}
}

static void
visit(Forward *w, const Node *n)
{
	uint8_t origin = 0;
	int at = w->position[n->id] = ++w->n;

	for (int i = 0; i < n->n_operands; i++) {
		const Value *v = node_operand(n, i);
		if (!v)
			continue;
		origin |= origin_of(w, v);
		w->last_use[v->id] = at;
	}
	for (int i = 0; i < n->n_results; i++) {
		w->origin[node_result(n, i)->id] = origin;
		w->defined[node_result(n, i)->id] = at;
	}
	for (int i = 0; (origin & FROM_INPUT) && i < n->n_operands; i++)
		if (node_operand(n, i))
			note_reader(w, node_operand(n, i), at);
}

/* By position: the number of the block. */
static int *
number_blocks(const Forward *w)
{
	int *change = NEW_ARRAY(w->arena, int, w->n + 2),
	    *number = NEW_ARRAY(w->arena, int, w->n + 2);
	int live = 0, blocks = 0;

	for_each_node(w->f, n) {
		for (int i = 0; w->position[n->id] && i < n->n_results; i++) {
			const Value *v = node_result(n, i);
			if (!is_activation(w, v) || w->last_use[v->id] <= w->defined[v->id])
				continue;
			change[w->defined[v->id]]++; /* live after this node */
			change[w->last_use[v->id]]--;
		}
	}
	for (int at = 1; at <= w->n; at++) {
		number[at] = blocks;
		live += change[at];
		blocks += live <= 1;
	}
	return number;
}

/* Merges neighbouring blocks until each has LEAST_BLOCK elements of parameters. Small blocks after a full block, such
 * as the bias of a product, join the full block; the next block begins when these small blocks together reach
 * LEAST_BLOCK elements. */
static void
merge_small(const Module *m, int *block, int n_blocks, Arena *arena)
{
	int64_t *elements = NEW_ARRAY(arena, int64_t, n_blocks), sum = 0, tail = 0, left = 0;
	int *merged = NEW_ARRAY(arena, int, n_blocks), number = 0;

	for (int i = 0; i < m->states.n; i++)
		if (m->states.at[i]->kind == STATE_PARAMETER && m->states.at[i]->trainable) {
			elements[block[i]] += m->states.at[i]->type->n;
			left += m->states.at[i]->type->n;
		}
	for (int b = 0; b < n_blocks; b++) {
		tail = sum >= LEAST_BLOCK ? tail + elements[b] : 0;
		if (tail >= LEAST_BLOCK && left >= LEAST_BLOCK) {
			number++;
			sum = tail = 0;
		}
		merged[b] = number;
		sum += elements[b];
		left -= elements[b];
	}
	for (int i = 0; i < m->states.n; i++)
		block[i] = merged[block[i]];
}

int *
layer_blocks_of(const Function *f, Arena *arena)
{
	const Module *m = f->module;
	int *block = NEW_ARRAY(arena, int, m->states.n + 1);
	Forward w = {.f = f,
	             .arena = arena,
	             .origin = NEW_ARRAY(arena, uint8_t, f->next_value_id),
	             .defined = NEW_ARRAY(arena, int, f->next_value_id),
	             .last_use = NEW_ARRAY(arena, int, f->next_value_id),
	             .position = NEW_ARRAY(arena, int, f->next_node_id),
	             .block = block,
	             .visited = NEW_ARRAY(arena, bool, f->next_node_id)};
	for_each_node(f, n)
		if (is_forward(n))
			visit(&w, n);
	int *number = number_blocks(&w), last = w.n ? number[w.n] : 0;
	for (int i = 0; i < m->states.n;
	     i++) /* a parameter that only another binding reads goes to the last block */
		block[i] = block[i] ? number[block[i]] : last;
	return block;
}

int *
layer_blocks(const Module *m, Arena *arena)
{
	const Function *f = module_first(m, ROLE_ACCUMULATE);
	int last = 0;

	if (!f)
		return NEW_ARRAY(arena, int, m->states.n + 1);
	int *block = layer_blocks_of(f, arena);
	for (int i = 0; i < m->states.n; i++)
		last = block[i] > last ? block[i] : last;
	merge_small(m, block, last + 1, arena);
	return block;
}

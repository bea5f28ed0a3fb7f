/* Functions on whole kernels of loop IR: listing the places of statements, hashing, comparing
 * and copying kernels. */
#include "ir/loop/loop.h"

#include <string.h>

Kernel *
kernel_new(Arena *arena, const char *name, Loc loc)
{
	Kernel *k = NEW(arena, Kernel);

	k->name = arena_strdup(arena, name);
	k->loc = loc;
	k->iterations = 1;
	return k;
}

int
statement_windows(const LoopStatement *s)
{
	return s->kind == LOOP_STATEMENT_MMA ? 2 : s->kind == LOOP_STATEMENT_COPY ? 1 : 0;
}

int
statement_places(const LoopStatement *s, const Affine **out)
{
	int n = 0;

	if (s->place)
		out[n++] = s->place;
	for (int i = 0; i < statement_windows(s); i++)
		if (s->windows[i].place)
			out[n++] = s->windows[i].place;
	return n;
}

static bool
windows_equal(const LoopStatement *a, const LoopStatement *b)
{
	for (int i = 0; i < statement_windows(a); i++) {
		const LoopWindow *x = &a->windows[i], *y = &b->windows[i];
		if (x->buffer != y->buffer || !affine_equal(x->place, y->place) ||
		    x->row != y->row || x->column != y->column)
			return false;
	}
	return true;
}

uint64_t
statement_hash(const LoopStatement *s)
{
	uint64_t h = hash_mix(((uint64_t)s->kind << 32) | (uint64_t)s->op, (uint64_t)s->type);

	h = hash_bytes(s->operands, sizeof(LoopValue) * (size_t)s->n_operands, h);
	h = hash_mix(h, (uint64_t)s->buffer);
	h = hash_bytes(&s->f, sizeof(s->f), h);
	h = hash_mix(h, (uint64_t)s->i << 1 | s->tf32);
	h = hash_mix(h, (uint64_t)s->how.round << 8 | (uint64_t)s->how.overflow);
	const Affine *places[MAX_PLACES];
	int n_places = statement_places(s, places);
	for (int p = 0; p < n_places; p++) {
		h = hash_mix(h, (uint64_t)places[p]->constant);
		for (int i = 0; i < places[p]->n; i++)
			h = hash_mix(h, hash_mix((uint64_t)places[p]->terms[i].coefficient,
			                         (uint64_t)places[p]->terms[i].scalar));
	}
	for (int i = 0; i < statement_windows(s); i++)
		h = hash_mix(h, hash_mix((uint64_t)s->windows[i].buffer,
		                         hash_mix((uint64_t)s->windows[i].row,
		                                  (uint64_t)s->windows[i].column)));
	return h;
}

bool
affine_equal(const Affine *a, const Affine *b)
{
	if (!a || !b)
		return a == b;
	if (a->constant != b->constant || a->n != b->n)
		return false;
	for (int i = 0; i < a->n; i++)
		if (a->terms[i].coefficient != b->terms[i].coefficient ||
		    a->terms[i].scalar != b->terms[i].scalar)
			return false;
	return true;
}

bool
statement_equal(const LoopStatement *a, const LoopStatement *b)
{
	return a->kind == b->kind && a->op == b->op && a->type == b->type &&
	       a->n_operands == b->n_operands && a->buffer == b->buffer && a->i == b->i &&
	       a->how.round == b->how.round && a->how.overflow == b->how.overflow &&
	       memcmp(&a->f, &b->f, sizeof(a->f)) == 0 &&
	       memcmp(a->operands, b->operands, sizeof(LoopValue) * (size_t)a->n_operands) == 0 &&
	       affine_equal(a->place, b->place) && windows_equal(a, b) && a->tf32 == b->tf32 &&
	       (a->kind != LOOP_STATEMENT_EACH || a->column == b->column);
}

LoopOp
accumulate_op(AccumulateKind kind)
{
	static const LoopOp ops[] = {LOOP_add, LOOP_mul, LOOP_max, LOOP_min};

	return ops[kind];
}

static void
resolve_accumulates(Kernel *k, const LoopStatement *loop)
{
	for (LoopStatement *s = k->body.at; s < k->body.at + k->body.n; s++) {
		if (s->kind != LOOP_STATEMENT_ACCUMULATE)
			continue;
		for (int a = 0; a < loop->n_accumulators; a++) {
			if (loop->accumulators[a].scalar == s->operands[1]) {
				s->op = accumulate_op(loop->accumulators[a].kind);
				s->type = loop->accumulators[a].type;
			}
		}
	}
}

static uint64_t
library_hash(const LibraryCall *c)
{
	return c ? hash_bytes(c, sizeof(*c), 0) : 0;
}

static bool
library_equal(const LibraryCall *a, const LibraryCall *b)
{
	if (!a || !b)
		return a == b;
	return memcmp(a, b, sizeof(*a)) == 0;
}

void
kernel_finish(Kernel *k)
{
	for (int i = 0; i < k->body.n; i++)
		if (k->body.at[i].n_accumulators)
			resolve_accumulates(k, &k->body.at[i]);
	uint64_t h = hash_mix((uint64_t)k->n_inputs, (uint64_t)k->n_outputs);

	h = hash_bytes(k->team, sizeof(*k->team) * (size_t)k->n_team, h);
	for (int i = 0; i < k->buffers.n; i++) {
		const LoopBuffer *b = &k->buffers.at[i];
		h = hash_mix(h, hash_mix((uint64_t)b->kind, (uint64_t)(uintptr_t)b->type));
		h = hash_mix(h, (uint64_t)b->pad << 1 | b->swizzle);
		h = hash_mix(h, (uint64_t)b->from << 1 | b->part);
	}
	k->iterations = 1;
	for (int i = 0; i < k->body.n; i++) {
		const LoopStatement *s = &k->body.at[i];
		h = hash_mix(h, statement_hash(s));
		h = hash_mix(h, hash_mix((uint64_t)s->extent, (uint64_t)s->mode));
		for (int a = 0; a < s->n_accumulators; a++)
			h = hash_mix(h, hash_bytes(&s->accumulators[a], sizeof(Accumulator), 0));
		if (s->kind == LOOP_STATEMENT_FOR && s->mode == LOOP_PARALLEL &&
		    !size_mul(k->iterations, s->extent, &k->iterations))
			/* the product overflows; kernel_verify reports it */
			k->iterations = INT64_MAX;
	}
	h = hash_mix(h, k->all_reduces);
	h = hash_mix(h, k->moves);
	h = hash_mix(h, k->serves ? k->serves->hash + 1 : 0);
	k->hash = hash_mix(h, library_hash(k->library));
}

int
parallel_depth(const Kernel *k, int at)
{
	int n = 0;

	while (at + n < k->body.n && k->body.at[at + n].kind == LOOP_STATEMENT_FOR &&
	       k->body.at[at + n].mode == LOOP_PARALLEL)
		n++;
	return n;
}

void
kernel_scalar_types(const Kernel *k, DType *types)
{
	for (int i = 0; i < k->body.n; i++) {
		const LoopStatement *s = &k->body.at[i];
		if (s->result >= 0)
			types[s->result] = s->type;
		if (s->kind == LOOP_STATEMENT_EACH && s->column >= 0)
			types[s->column] = S64;
		for (int a = 0; a < s->n_accumulators; a++)
			types[s->accumulators[a].scalar] = s->accumulators[a].type;
	}
}

bool
kernel_equal(const Kernel *a, const Kernel *b)
{
	if (a->hash != b->hash || a->body.n != b->body.n || a->buffers.n != b->buffers.n ||
	    a->n_inputs != b->n_inputs || a->n_outputs != b->n_outputs || a->flops != b->flops ||
	    a->serves != b->serves || !library_equal(a->library, b->library) ||
	    a->n_team != b->n_team || a->all_reduces != b->all_reduces || a->moves != b->moves ||
	    memcmp(a->team, b->team, sizeof(*a->team) * (size_t)a->n_team) != 0)
		return false;
	for (int i = 0; i < a->buffers.n; i++) {
		const LoopBuffer *x = &a->buffers.at[i], *y = &b->buffers.at[i];
		if (x->kind != y->kind || x->type != y->type || x->pad != y->pad ||
		    x->swizzle != y->swizzle || x->from != y->from || x->part != y->part)
			return false;
	}
	for (int i = 0; i < a->body.n; i++) {
		const LoopStatement *x = &a->body.at[i], *y = &b->body.at[i];
		if (!statement_equal(x, y) || x->result != y->result || x->extent != y->extent ||
		    x->mode != y->mode || x->match != y->match ||
		    x->n_accumulators != y->n_accumulators ||
		    (x->n_accumulators && memcmp(x->accumulators, y->accumulators,
		                                 sizeof(Accumulator) * (size_t)x->n_accumulators)))
			return false;
	}
	return true;
}

static const Affine *
copy_place(Arena *arena, const Affine *place)
{
	Affine *copy = NEW(arena, Affine);

	*copy = affine_copy(arena, place);
	return copy;
}

static const LoopWindow *
copy_windows(Arena *arena, const LoopStatement *s)
{
	int n = statement_windows(s);
	LoopWindow *copy = arena_copy(arena, s->windows, sizeof(LoopWindow) * (size_t)n);

	for (int i = 0; i < n; i++)
		if (copy[i].place)
			copy[i].place = copy_place(arena, copy[i].place);
	return copy;
}

bool
kernel_has_tiles(const Kernel *k)
{
	for (int i = 0; i < k->buffers.n; i++)
		if (k->buffers.at[i].kind == BUFFER_TILE)
			return true;
	for (int i = 0; i < k->body.n; i++)
		if (k->body.at[i].kind >= LOOP_STATEMENT_EACH &&
		    k->body.at[i].kind <= LOOP_STATEMENT_WAIT)
			return true;
	return false;
}

Kernel *
kernel_add(Module *m, const Kernel *k, const char *name)
{
	Kernel *copy = arena_copy(m->arena, k, sizeof(*k));

	copy->name = arena_strdup(m->arena, name);
	if (k->library)
		copy->library = arena_copy(m->arena, k->library, sizeof(*k->library));
	copy->buffers.at = arena_copy(m->arena, k->buffers.at,
	                              sizeof(LoopBuffer) * (size_t)k->buffers.n);
	copy->buffers.cap = copy->buffers.n;
	for (int i = 0; i < copy->buffers.n; i++)
		copy->buffers.at[i].name = arena_strdup(m->arena, k->buffers.at[i].name);
	copy->body.at = arena_copy(m->arena, k->body.at, sizeof(LoopStatement) * (size_t)k->body.n);
	copy->body.cap = copy->body.n;
	for (int i = 0; i < copy->body.n; i++) {
		LoopStatement *s = &copy->body.at[i];
		if (s->place)
			s->place = copy_place(m->arena, s->place);
		if (s->windows)
			s->windows = copy_windows(m->arena, s);
		if (s->n_accumulators)
			s->accumulators = arena_copy(m->arena, s->accumulators,
			                             sizeof(Accumulator) *
			                                     (size_t)s->n_accumulators);
	}
	copy->id = m->kernels.n;
	strmap_put(m->kernel_names, copy->name, copy);
	vec_push(m->arena, &m->kernels, copy);
	return copy;
}

void
kernel_match_blocks(Kernel *k, Arena *scratch)
{
	VEC(int) open = {0};

	for (int i = 0; i < k->body.n; i++) {
		LoopStatement *s = &k->body.at[i];
		if (statement_opens(s)) {
			vec_push(scratch, &open, i);
		} else if (s->kind == LOOP_STATEMENT_END) {
			s->match = open.at[--open.n];
			k->body.at[s->match].match = i;
		}
	}
}

static void
renumber_statement(LoopStatement *s, Arena *arena, const int *to)
{
	int n = statement_windows(s);

	if (s->buffer >= 0 && s->kind != LOOP_STATEMENT_SCALAR)
		s->buffer = to[s->buffer];
	if (n) {
		LoopWindow *w = arena_copy(arena, s->windows, sizeof(*w) * (size_t)n);
		for (int i = 0; i < n; i++)
			w[i].buffer = to[w[i].buffer];
		s->windows = w;
	}
	if (s->n_accumulators == 0)
		return;
	s->accumulators = arena_copy(arena, s->accumulators,
	                             sizeof(Accumulator) * (size_t)s->n_accumulators);
	for (int i = 0; i < s->n_accumulators; i++)
		if (s->accumulators[i].level == ACC_ROW)
			s->accumulators[i].tile = to[s->accumulators[i].tile];
}

void
kernel_renumber_buffers(Kernel *k, Arena *arena, const int *to)
{
	for (int i = 0; i < k->body.n; i++)
		renumber_statement(&k->body.at[i], arena, to);
	for (int b = 0; b < k->buffers.n; b++)
		if (k->buffers.at[b].from)
			k->buffers.at[b].from = 1 + to[k->buffers.at[b].from - 1];
	if (!k->library)
		return;
	LibraryCall *c = arena_copy(arena, k->library, sizeof(*c));
	for (int i = 0; i < N_LIBRARY_OPERANDS; i++)
		if (library_has_operand(c, i))
			c->operands[i].buffer = to[c->operands[i].buffer];
	k->library = c;
}

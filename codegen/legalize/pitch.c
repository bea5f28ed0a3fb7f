/* The pass `pitch`: pads rows of products to multiples of 16 bytes. Matrix units of GPUs want
 * rows of operands and results to begin at such multiples; with rows of 50257 f32 numbers they
 * take three times as long. So a value that a library multiplies or computes gets a few padding
 * elements after each row, which no kernel reads or writes. The padded length of a row is its
 * pitch:
 *
 *	%1 = launch ... {kernel = @dot_29} : f32[16384,50257]   ->   f32[16384,50260]
 *
 * Kernels that read or write the value get new places (indices into the buffer): the element in
 * row r and column c moves from 50257 r + c to 50260 r + c. Library calls get new strides. All
 * readers must be kernels. A kernel that is also launched on values without a pitch gets a twin:
 * a copy of the kernel for values with a pitch. Changes no number. Takes linear time in the number
 * of places in the kernels. */
#include "codegen/codegen.h"
#include "codegen/target/target.h"

#include <string.h>

/* ---- which values */
typedef struct {
	Arena *arena;
	Module *m;
	int64_t alignment; /* in bytes; the same for all targets that want an alignment */
	/* by a value's address: 1 if the value is to get a pitch, 0 if it turned out that it
	 * cannot */
	IntMap *pitched;
	VEC(Value *) all; /* every value that was ever in `pitched` */
	bool dropped;     /* was a value dropped in this round? */
} Pitches;

static bool
is_pitched(const Pitches *p, const Value *v)
{
	uint64_t in;

	return v && intmap_get(p->pitched, (uint64_t)(uintptr_t)v, &in) && in;
}

static int64_t
row_of(Type t)
{
	return t->dims[t->rank - 1];
}

static int64_t
pitch_of(Type t, int64_t alignment)
{
	int64_t numbers = alignment * 8 / dtype_info[t->dtype].bits;

	return (row_of(t) + numbers - 1) / numbers * numbers;
}

static Value *
argument(const Node *n, int buffer)
{
	int n_inputs = launched_kernel(n)->n_inputs;

	return buffer < n_inputs ? node_operand(n, buffer) : node_result(n, buffer - n_inputs);
}

static int
n_buffers(const Kernel *k)
{
	return k->n_inputs + k->n_outputs;
}

/* Does the kernel's library call use the buffer as a matrix, an operand or result of a product,
 * with rows of this length? */
static bool
has_product_rows(const Kernel *k, int buffer, int64_t row)
{
	const LibraryCall *c = k->library;

	for (int i = 0; c && c->kind == LIBRARY_DOT && i < N_LIBRARY_OPERANDS; i++) {
		const LibraryOperand *o = &c->operands[i];
		if (i == LIBRARY_BIAS || !library_has_operand(c, i))
			continue;
		int64_t a = o->strides[o->rank - 1], b = o->strides[o->rank - 2];
		if (o->buffer == buffer && ((a == row && b == 1) || (a == 1 && b == row)))
			return true;
	}
	return false;
}

/* Is v computed by a kernel and read by kernels only? */
static bool
is_of_kernels(const Value *v)
{
	if (!v->node || !launched_kernel(v->node))
		return false;
	for_each_use(v, u)
		if (!launched_kernel(u->user))
			return false;
	return true;
}

static bool
wants_pitch(const LibraryLimits *l, const Value *v)
{
	Type t = v->type;
	int bits = dtype_info[t->dtype].bits;

	return t->rank > 1 && bits >= 8 && type_bytes(t) >= l->least_pitched &&
	       row_of(t) * bits / 8 % l->row_alignment != 0 &&
	       row_of(t) * bits / 8 >= l->least_pitched_row && is_of_kernels(v);
}

static void
find_values(Pitches *p, const Function *f, const LibraryLimits *l)
{
	for_each_node(f, n) {
		const Kernel *k = launched_kernel(n);
		for (int b = 0; k && b < n_buffers(k); b++) {
			Value *v = argument(n, b);
			if (!wants_pitch(l, v) || !has_product_rows(k, b, row_of(v->type)) ||
			    is_pitched(p, v))
				continue;
			intmap_put(p->pitched, (uint64_t)(uintptr_t)v, 1);
			vec_push(p->arena, &p->all, v);
		}
	}
}

/* ---- can a kernel's places move? */
/* Facts about the scalars of a kernel. */
typedef struct {
	const Kernel *k;
	int64_t *extents;         /* extents of loop variables; 0 for other scalars */
	const Affine **bounds;    /* places that loop variables stay below; NULL: no such bound */
	const LoopStatement **by; /* the statement that defines each scalar */
} Scalars;

/* Returns c if v is the scalar x / c with a constant c; otherwise 0. */
static int64_t
divisor(const Scalars *s, LoopValue v, LoopValue x)
{
	const LoopStatement *q = s->by[v];
	bool divides = q && q->kind == LOOP_STATEMENT_OP && q->op == LOOP_div &&
	               q->operands[0] == x;
	const LoopStatement *c = divides ? s->by[q->operands[1]] : NULL;

	return c && c->kind == LOOP_STATEMENT_CONST ? c->i : 0;
}

/* If the statement computes x - c * (x / c), a remainder, records that its result is below c. */
static void
find_remainder(Scalars *s, const LoopStatement *at)
{
	const Affine *a = at->place;

	for (int i = 0; i < 2 && a->n == 2 && a->constant == 0; i++) {
		LoopValue x = a->terms[i].scalar, q = a->terms[1 - i].scalar;
		int64_t c = divisor(s, q, x);
		if (c > 0 && s->extents[x] > 0 && a->terms[i].coefficient == 1 &&
		    a->terms[1 - i].coefficient == -c)
			s->extents[at->result] = c;
	}
}

static Scalars
scalars_of(Arena *arena, const Kernel *k)
{
	Scalars s = {k, NEW_ARRAY(arena, int64_t, k->n_scalars),
	             NEW_ARRAY(arena, const Affine *, k->n_scalars),
	             NEW_ARRAY(arena, const LoopStatement *, k->n_scalars)};

	for (int i = 0; i < k->body.n; i++) {
		const LoopStatement *at = &k->body.at[i];
		if (at->result < 0)
			continue;
		s.by[at->result] = at;
		if (at->kind == LOOP_STATEMENT_FOR) {
			s.extents[at->result] = at->extent;
			s.bounds[at->result] = at->place;
		} else if (at->kind == LOOP_STATEMENT_AFFINE) {
			find_remainder(&s, at);
		} else if (at->kind == LOOP_STATEMENT_EACH) {
			Type tile = k->buffers.at[at->buffer].type;
			s.extents[at->result] = tile->dims[0];
			if (at->column >= 0)
				s.extents[at->column] = tile->dims[1];
		}
	}
	return s;
}

/* Splits a place, term by term, so that place = *rows * row + *rest. row: elements of a row. */
static void
split_place(Arena *arena, const Affine *place, int64_t row, Affine *rows, Affine *rest)
{
	AffineTerm *of_rows = NEW_ARRAY(arena, AffineTerm, place->n);
	AffineTerm *of_rest = NEW_ARRAY(arena, AffineTerm, place->n);
	int64_t whole = place->constant / row - (place->constant % row < 0);

	*rows = (Affine){.constant = whole, .terms = of_rows};
	*rest = (Affine){.constant = place->constant - whole * row, .terms = of_rest};
	for (int i = 0; i < place->n; i++) {
		AffineTerm t = place->terms[i];
		if (t.coefficient % row == 0)
			of_rows[rows->n++] = (AffineTerm){t.coefficient / row, t.scalar};
		else
			of_rest[rest->n++] = t;
	}
}

static const LoopStatement *
giver(const Scalars *s, LoopValue v)
{
	return v >= 0 ? s->by[v] : NULL;
}

/* Does the condition say that `place`, the place within a row, is below `row`, the length of the
 * row? */
static bool
says_below(const Scalars *s, LoopValue condition, const Affine *place, int64_t row)
{
	const LoopStatement *c = giver(s, condition);

	if (!c || c->kind != LOOP_STATEMENT_OP)
		return false;
	if (c->op == LOOP_and)
		return says_below(s, c->operands[0], place, row) ||
		       says_below(s, c->operands[1], place, row);
	const LoopStatement *x = c->op == LOOP_lt ? giver(s, c->operands[0]) : NULL;
	const LoopStatement *end = c->op == LOOP_lt ? giver(s, c->operands[1]) : NULL;
	return x && end && x->kind == LOOP_STATEMENT_AFFINE && affine_same(x->place, place) &&
	       end->kind == LOOP_STATEMENT_CONST && end->i <= row;
}

/* Do the element at the place and `more` elements after it lie in one row? condition: the statement touches
 * them only if it is true; -1: always. */
static bool
is_in_row(Arena *arena, const Scalars *s, const Affine *place, int64_t row, int64_t more,
          LoopValue condition)
{
	Affine rows, rest;
	int64_t low, high;

	split_place(arena, place, row, &rows, &rest);
	if (affine_range(arena, &rest, s->extents, s->bounds, &low, &high) && low >= 0 &&
	    high + more < row)
		return true;
	return more == 0 && says_below(s, condition, &rest, row);
}

/* A place at which a statement touches the buffer: the statement's own place, or the place that a copy
 * reads. */
typedef struct {
	const Affine *at;
	int64_t more;
	LoopValue condition;
} Touch;

static int
touches(const LoopStatement *s, int buffer, Touch out[2])
{
	LoopValue condition = s->n_operands && s->kind != LOOP_STATEMENT_STORE ? s->operands[0]
	                                                                       : -1;
	bool own = s->kind == LOOP_STATEMENT_LOAD || s->kind == LOOP_STATEMENT_STORE;
	int n = 0;

	if (own && s->buffer == buffer)
		out[n++] = (Touch){s->place, 0, condition};
	if (s->kind == LOOP_STATEMENT_COPY && s->windows[0].buffer == buffer)
		out[n++] = (Touch){s->windows[0].place, s->extent - 1, condition};
	return n;
}

/* Must operand i of the library call have the same layout as its result? True for an operand that
 * is added, and for the value that a GELU saves or reads. Operand and result could only get a
 * pitch together, so neither gets one. */
static bool
is_alike(const LibraryCall *c, int i)
{
	return i == LIBRARY_ADDED || i == LIBRARY_AUX ||
	       (i == LIBRARY_RESULT &&
	        (library_has_operand(c, LIBRARY_ADDED) || library_has_operand(c, LIBRARY_AUX)));
}

static bool
call_moves(const LibraryCall *c, int buffer, int64_t row)
{
	for (int i = 0; c && i < N_LIBRARY_OPERANDS; i++) {
		const LibraryOperand *o = &c->operands[i];
		int64_t last = 0; /* the last element, within a row */
		if (!library_has_operand(c, i) || o->buffer != buffer)
			continue;
		if (c->kind != LIBRARY_DOT || i == LIBRARY_BIAS || is_alike(c, i) ||
		    o->offset % row)
			return false;
		for (uint32_t d = 0; d < o->rank; d++)
			last += o->strides[d] % row ? o->strides[d] * (o->dims[d] - 1) : 0;
		if (last >= row)
			return false;
	}
	return true;
}

static bool
kernel_moves(Arena *arena, const Kernel *k, int buffer, int64_t row)
{
	Scalars s = scalars_of(arena, k);
	Touch t[2];

	for (int i = 0; i < k->body.n; i++)
		for (int n = touches(&k->body.at[i], buffer, t) - 1; n >= 0; n--)
			if (!is_in_row(arena, &s, t[n].at, row, t[n].more, t[n].condition))
				return false;
	return call_moves(k->library, buffer, row);
}

/* ---- which values can get a pitch */
/* Flags for a kernel's buffer. MOVES, STAYS: the buffer's places can move to a pitch, or cannot
 * (0: not known yet). SOME_PITCHED, SOME_PLAIN: some launch passes a value with a pitch, or one
 * without. */
enum { MOVES = 1, STAYS = 2, SOME_PITCHED = 4, SOME_PLAIN = 8 };
/* only the first 64 buffers of a kernel may get a pitch: sets of buffers are 64 bits */
enum { MOST_PITCHED = 64 };

static uint64_t
buffer_key(const Kernel *k, int buffer)
{
	return hash_mix((uint64_t)(uintptr_t)k, (uint64_t)buffer);
}

typedef void Visit(Pitches *p, IntMap *found, Node *n, int buffer);

static void
for_each_argument(Pitches *p, IntMap *found, Visit *visit)
{
	for (int i = 0; i < p->m->functions.n; i++)
		for_each_node(p->m->functions.at[i], n) {
			const Kernel *k = launched_kernel(n);
			for (int b = 0; k && b < n_buffers(k); b++)
				visit(p, found, n, b);
		}
}

static void
look_at(Pitches *p, IntMap *found, Node *n, int buffer)
{
	const Kernel *k = launched_kernel(n);
	const Value *v = argument(n, buffer);
	uint64_t key = buffer_key(k, buffer), bits = 0;

	intmap_get(found, key, &bits);
	bits |= is_pitched(p, v) ? SOME_PITCHED : SOME_PLAIN;
	if (is_pitched(p, v) && !(bits & (MOVES | STAYS)))
		bits |= buffer < MOST_PITCHED && kernel_moves(p->arena, k, buffer, row_of(v->type))
		                ? MOVES
		                : STAYS;
	intmap_put(found, key, bits);
}

/* Has k a serving kernel, or is it one? Then k gets no twin: the pair would have to be copied
 * together, which this pass does not do. */
static bool
is_served(const Pitches *p, const Kernel *k)
{
	for (int i = 0; i < p->m->kernels.n; i++)
		if (p->m->kernels.at[i]->serves == k)
			return true;
	return k->serves != NULL;
}

static void
drop_impossible(Pitches *p, IntMap *found, Node *n, int buffer)
{
	const Kernel *k = launched_kernel(n);
	const Value *v = argument(n, buffer);
	uint64_t bits = 0;

	intmap_get(found, buffer_key(k, buffer), &bits);
	if (!is_pitched(p, v) || (bits & MOVES && (!(bits & SOME_PLAIN) || !is_served(p, k))))
		return;
	intmap_put(p->pitched, (uint64_t)(uintptr_t)v, 0);
	p->dropped = true;
}

static void
drop_all_impossible(Pitches *p)
{
	do {
		IntMap *found = intmap_new(p->arena);
		p->dropped = false;
		for_each_argument(p, found, look_at);
		for_each_argument(p, found, drop_impossible);
	} while (p->dropped);
}

/* ---- moving */
static Affine
moved(Arena *arena, const Affine *place, int64_t row, int64_t pitch)
{
	AffineTerm *terms = NEW_ARRAY(arena, AffineTerm, place->n);
	int64_t whole = place->constant / row - (place->constant % row < 0);

	for (int i = 0; i < place->n; i++) {
		terms[i] = place->terms[i];
		if (terms[i].coefficient % row == 0)
			terms[i].coefficient = terms[i].coefficient / row * pitch;
	}
	return (Affine){place->constant + whole * (pitch - row), place->n, terms};
}

static const Affine *
moved_copy(Arena *arena, const Affine *place, int64_t row, int64_t pitch)
{
	Affine a = moved(arena, place, row, pitch);

	return arena_copy(arena, &a, sizeof(a));
}

static void
move_statement(Arena *arena, LoopStatement *s, int buffer, int64_t row, int64_t pitch)
{
	Touch t[2];

	if (touches(s, buffer, t) == 0)
		return;
	if (s->kind != LOOP_STATEMENT_COPY) {
		s->place = moved_copy(arena, s->place, row, pitch);
		return;
	}
	LoopWindow w = s->windows[0];
	w.place = moved_copy(arena, w.place, row, pitch);
	s->windows = arena_copy(arena, &w, sizeof(w));
}

static void
move_call(Arena *arena, Kernel *k, int buffer, int64_t row, int64_t pitch)
{
	if (!k->library)
		return;
	LibraryCall *c = arena_copy(arena, k->library, sizeof(*c));
	for (int i = 0; i < N_LIBRARY_OPERANDS; i++) {
		LibraryOperand *o = &c->operands[i];
		if (!library_has_operand(c, i) || o->buffer != buffer)
			continue;
		for (uint32_t d = 0; d < o->rank; d++)
			if (o->strides[d] % row == 0)
				o->strides[d] = o->strides[d] / row * pitch;
		o->offset = o->offset / row * pitch;
	}
	k->library = c;
}

static Type
with_pitch(Module *m, Type t, int64_t alignment)
{
	int64_t dims[MAX_RANK];

	memcpy(dims, t->dims, sizeof(*dims) * (size_t)t->rank);
	dims[t->rank - 1] = pitch_of(t, alignment);
	return type_new(m, t->dtype, t->rank, dims);
}

static void
move_buffer(const Pitches *p, Kernel *k, int buffer)
{
	LoopBuffer *b = &k->buffers.at[buffer];
	int64_t row = row_of(b->type), pitch = pitch_of(b->type, p->alignment);

	for (int i = 0; i < k->body.n; i++)
		move_statement(p->m->arena, &k->body.at[i], buffer, row, pitch);
	move_call(p->m->arena, k, buffer, row, pitch);
	b->type = with_pitch(p->m, b->type, p->alignment);
}

/* ---- kernels: a kernel whose launches differ gets a twin */
static uint64_t
pitched_arguments(const Pitches *p, const Node *n)
{
	uint64_t set = 0;

	for (int b = 0; b < n_buffers(launched_kernel(n)) && b < MOST_PITCHED; b++)
		set |= (uint64_t)is_pitched(p, argument(n, b)) << b;
	return set;
}

static bool
launches_differ(const Pitches *p, const Kernel *k, uint64_t set)
{
	for (int i = 0; i < p->m->functions.n; i++)
		for_each_node(p->m->functions.at[i], n)
			if (launched_kernel(n) == k && pitched_arguments(p, n) != set)
				return true;
	return false;
}

static Kernel *
twin_of(const Pitches *p, const Kernel *k)
{
	const char *name = arena_printf(p->arena, "%s_pitched", k->name);

	for (int i = 2; strmap_get(p->m->kernel_names, name); i++)
		name = arena_printf(p->arena, "%s_pitched%d", k->name, i);
	return kernel_add(p->m, k, name);
}

/* The kernel for launches with this set of pitched arguments. */
static Kernel *
moved_kernel(Pitches *p, IntMap *moved_ones, Kernel *k, uint64_t set)
{
	uint64_t key = hash_mix((uint64_t)(uintptr_t)k, set), known;

	if (intmap_get(moved_ones, key, &known))
		return p->m->kernels.at[known];
	Kernel *to = launches_differ(p, k, set) ? twin_of(p, k) : k;
	for (int b = 0; b < n_buffers(k) && b < MOST_PITCHED; b++)
		if (set >> b & 1)
			move_buffer(p, to, b);
	kernel_finish(to);
	intmap_put(moved_ones, key, (uint64_t)to->id);
	return to;
}

/* A launch and the set of its arguments that have a pitch. All are collected first, while
 * launches still have their original kernels. */
typedef struct {
	Node *node;
	uint64_t set;
} PitchedLaunch;

static void
move_kernels(Pitches *p)
{
	IntMap *moved_ones = intmap_new(p->arena);
	VEC(PitchedLaunch) launches = {0};

	for (int i = 0; i < p->m->functions.n; i++)
		for_each_node(p->m->functions.at[i], n) {
			uint64_t set = launched_kernel(n) ? pitched_arguments(p, n) : 0;
			if (set)
				vec_push(p->arena, &launches, ((PitchedLaunch){n, set}));
		}
	VEC(Kernel *) to = {0};
	for (int i = 0; i < launches.n; i++) {
		Kernel *k = ((LaunchAttr *)launches.at[i].node->attr)->kernel;
		vec_push(p->arena, &to, moved_kernel(p, moved_ones, k, launches.at[i].set));
	}
	for (int i = 0; i < launches.n; i++)
		((LaunchAttr *)launches.at[i].node->attr)->kernel = to.at[i];
	for (int i = 0; i < p->m->kernels.n; i++)
		if (p->m->kernels.at[i]->serves)
			kernel_finish(p->m->kernels.at[i]);
}

/* ---- the pass */
static bool
run_pitch(Pass *pass, Module *m)
{
	Pitches p = {.arena = pass->scratch, .m = m, .pitched = intmap_new(pass->scratch)};

	for (int i = 0; i < m->functions.n; i++) {
		const Function *f = m->functions.at[i];
		const Target *t = f->target ? target_find(f->target) : NULL;
		if (!t || t->tuning->library.row_alignment == 0)
			continue;
		p.alignment = t->tuning->library.row_alignment;
		find_values(&p, f, &t->tuning->library);
	}
	if (p.all.n == 0)
		return true;
	drop_all_impossible(&p);
	move_kernels(&p);
	for (int i = 0; i < p.all.n; i++)
		if (is_pitched(&p, p.all.at[i])) {
			p.all.at[i]->type = with_pitch(m, p.all.at[i]->type, p.alignment);
			pass->changed = true;
		}
	return true;
}

const PassRow pass_pitch = {.name = "pitch",
                            .help = "pad rows of products on GPUs to multiples of 16 bytes",
                            .takes = STAGE_LOWERED,
                            .leaves = STAGE_LOWERED,
                            .run = run_pitch};

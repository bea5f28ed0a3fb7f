/* Moves the elements of a kernel's buffer to longer rows: the element in row r and column c goes from place 50257 r + c to
 * place 50264 r + c, and further if rows begin `offset` elements later. Whatever touches the buffer must say its row and its column: a place whose column cannot be proven to
 * stay in the row does not move.
 *
 * A kernel that writes the buffer also writes zeros behind each row, and into rows behind the last row. Each part of the
 * kernel writes its share, after its own work:
 *
 *	for v9 < 4 {
 *	  for v10 < min(1, -4 v0 - v9 + 512) {             rows 4 v0 to 4 v0 + 3 of 512
 *	    for v11 < 7: store y0[201056 v0 + 50264 v9 + v11 + 50257] = 0
 */
#include "ir/loop/loop.h"

/* ---- can the places move? */
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

/* If the statement divides a number below n by a constant c, records that its result is at most (n - 1) / c. */
static void
find_quotient(Scalars *s, const LoopStatement *at)
{
	int64_t c = at->op == LOOP_div ? divisor(s, at->result, at->operands[0]) : 0;

	if (c > 0 && s->extents[at->operands[0]] > 0)
		s->extents[at->result] = (s->extents[at->operands[0]] - 1) / c + 1;
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
		} else if (at->kind == LOOP_STATEMENT_OP) {
			find_quotient(&s, at);
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

/* May the row of the place be found by a division? Divisions are slow, but loops that a library's call replaces hardly run. */
static bool
may_divide(const Kernel *k, const Touch *t)
{
	return k->library && t->more == 0;
}

bool
places_can_move(Arena *arena, const Kernel *k, int buffer, int64_t row)
{
	Scalars s = scalars_of(arena, k);
	Touch t[2];

	for (int i = 0; i < k->body.n; i++)
		for (int n = touches(&k->body.at[i], buffer, t) - 1; n >= 0; n--)
			if (!is_in_row(arena, &s, t[n].at, row, t[n].more, t[n].condition) &&
			    !may_divide(k, &t[n]))
				return false;
	return call_moves(k->library, buffer, row);
}

/* ---- writing statements */
/* A new body for kernel k. */
typedef struct {
	Arena *arena;
	Kernel *k;
	VEC(LoopStatement) body;
} Writer;

static LoopStatement *
write_statement(Writer *w, LoopStatementKind kind)
{
	vec_push(w->arena, &w->body,
	         ((LoopStatement){.kind = kind, .result = -1, .buffer = -1, .match = -1}));
	return &w->body.at[w->body.n - 1];
}

/* a + by * scalar */
static Affine
plus(Arena *arena, const Affine *a, LoopValue scalar, int64_t by)
{
	AffineTerm *terms = NEW_ARRAY(arena, AffineTerm, a->n + 1);

	for (int i = 0; i < a->n; i++)
		terms[i] = a->terms[i];
	terms[a->n] = (AffineTerm){by, scalar};
	return (Affine){a->constant, a->n + 1, terms};
}

/* by * a + constant */
static Affine
scaled(Arena *arena, const Affine *a, int64_t by, int64_t constant)
{
	AffineTerm *terms = NEW_ARRAY(arena, AffineTerm, a->n);

	for (int i = 0; i < a->n; i++)
		terms[i] = (AffineTerm){a->terms[i].coefficient * by, a->terms[i].scalar};
	return (Affine){a->constant * by + constant, a->n, terms};
}

static void
finish_writing(Writer *w)
{
	w->k->body.n = 0;
	for (int i = 0; i < w->body.n; i++)
		vec_push(w->arena, &w->k->body, w->body.at[i]);
	kernel_match_blocks(w->k, w->arena);
}

/* ---- moving */
static Affine
moved(Arena *arena, const Affine *place, const RowMove *to)
{
	int64_t row = to->row, pitch = to->pitch;
	AffineTerm *terms = NEW_ARRAY(arena, AffineTerm, place->n);
	int64_t whole = place->constant / row - (place->constant % row < 0);

	for (int i = 0; i < place->n; i++) {
		terms[i] = place->terms[i];
		if (terms[i].coefficient % row == 0)
			terms[i].coefficient = terms[i].coefficient / row * pitch;
	}
	return (Affine){place->constant + whole * (pitch - row) + to->offset, place->n, terms};
}

static const Affine *
moved_copy(Arena *arena, const Affine *place, const RowMove *to)
{
	Affine a = moved(arena, place, to);

	return arena_copy(arena, &a, sizeof(a));
}

static void
move_statement(Arena *arena, LoopStatement *s, int buffer, const RowMove *to)
{
	Touch t[2];

	if (touches(s, buffer, t) == 0)
		return;
	if (s->kind != LOOP_STATEMENT_COPY) {
		s->place = moved_copy(arena, s->place, to);
		return;
	}
	LoopWindow w = s->windows[0];
	w.place = moved_copy(arena, w.place, to);
	s->windows = arena_copy(arena, &w, sizeof(w));
}

static void
move_call(Arena *arena, Kernel *k, int buffer, const RowMove *to)
{
	if (!k->library)
		return;
	LibraryCall *c = arena_copy(arena, k->library, sizeof(*c));
	for (int i = 0; i < N_LIBRARY_OPERANDS; i++) {
		LibraryOperand *o = &c->operands[i];
		if (!library_has_operand(c, i) || o->buffer != buffer)
			continue;
		for (uint32_t d = 0; d < o->rank; d++)
			if (o->strides[d] % to->row == 0)
				o->strides[d] = o->strides[d] / to->row * to->pitch;
		o->offset = o->offset / to->row * to->pitch + to->offset;
	}
	k->library = c;
}

/* place + (pitch - row) * (place / row) + offset */
static const Affine *
divided(Writer *w, const Affine *place, const RowMove *to)
{
	LoopStatement *s = write_statement(w, LOOP_STATEMENT_AFFINE);
	LoopValue at = s->result = w->k->n_scalars++;
	s->type = S64;
	s->place = place;
	s = write_statement(w, LOOP_STATEMENT_CONST);
	LoopValue length = s->result = w->k->n_scalars++;
	s->type = S64;
	s->i = to->row;
	s = write_statement(w, LOOP_STATEMENT_OP);
	LoopValue number = s->result = w->k->n_scalars++;
	s->op = LOOP_div;
	s->type = S64;
	s->n_operands = 2;
	s->operands[0] = at;
	s->operands[1] = length;
	Affine moved = plus(w->arena, place, number, to->pitch - to->row);
	moved.constant += to->offset;
	return arena_copy(w->arena, &moved, sizeof(moved));
}

void
places_move(Arena *arena, Kernel *k, int buffer, const RowMove *to)
{
	Scalars scalars = scalars_of(arena, k);
	Writer w = {.arena = arena, .k = k};
	Touch t[2];

	for (int i = 0; i < k->body.n; i++) {
		LoopStatement s = k->body.at[i];
		bool divides = false;
		for (int n = touches(&s, buffer, t) - 1; n >= 0; n--)
			divides |= !is_in_row(arena, &scalars, t[n].at, to->row, t[n].more,
			                      t[n].condition);
		if (divides)
			s.place = divided(&w, s.place, to);
		else
			move_statement(arena, &s, buffer, to);
		vec_push(arena, &w.body, s);
	}
	finish_writing(&w);
	move_call(arena, k, buffer, to);
}

/* ---- zeros */
/* Opens a loop over the numbers from 0 to extent, but only those below *bound; NULL: no bound. Returns the loop's variable. */
static LoopValue
open_loop(Writer *w, int64_t extent, const Affine *bound)
{
	LoopStatement *s = write_statement(w, LOOP_STATEMENT_FOR);

	s->mode = LOOP_PLAIN;
	s->type = S64;
	s->extent = extent;
	s->place = bound ? arena_copy(w->arena, bound, sizeof(*bound)) : NULL;
	return s->result = w->k->n_scalars++;
}

/* Zeros of `width` elements each, `stride` elements apart. */
typedef struct {
	int64_t first, stride, width, n;
} Zeros;

/* The part with this number writes its share. */
static void
write_zeros(Writer *w, int buffer, DType dtype, const Zeros *z, const Affine *part)
{
	int64_t each = (z->n + w->k->iterations - 1) / w->k->iterations;
	Affine number = scaled(w->arena, part, each, 0);

	number = plus(w->arena, &number, open_loop(w, each, NULL), 1);
	Affine left = scaled(w->arena, &number, -1, z->n);
	number = plus(w->arena, &number, open_loop(w, 1, &left), 1);
	Affine at = scaled(w->arena, &number, z->stride, z->first);
	at = plus(w->arena, &at, open_loop(w, z->width, NULL), 1);
	LoopStatement *zero = write_statement(w, LOOP_STATEMENT_CONST);
	zero->type = compute_type(dtype);
	LoopValue value = zero->result = w->k->n_scalars++;
	LoopStatement *store = write_statement(w, LOOP_STATEMENT_STORE);
	store->buffer = buffer;
	store->place = arena_copy(w->arena, &at, sizeof(at));
	store->n_operands = 1;
	store->operands[0] = value;
	for (int i = 0; i < 3; i++)
		write_statement(w, LOOP_STATEMENT_END);
}

/* The number of the part, counted over the nest of parallel loops that begins at statement `at`. */
static Affine
part_number(Arena *arena, const Kernel *k, int at, int depth)
{
	Affine number = {0};

	for (int i = 0; i < depth; i++) {
		number = scaled(arena, &number, k->body.at[at + i].extent, 0);
		number = plus(arena, &number, k->body.at[at + i].result, 1);
	}
	return number;
}

void
places_write_zeros(Arena *arena, Kernel *k, int buffer, Type from, Type to)
{
	int64_t row = from->dims[from->rank - 1], pitch = to->dims[to->rank - 1];
	int64_t rows = from->n / row, more = to->n - rows * pitch;
	Writer w = {.arena = arena, .k = k};
	int first = 0;

	while (first < k->body.n && parallel_depth(k, first) == 0)
		first++;
	int depth = first < k->body.n ? parallel_depth(k, first) : 0;
	int end = depth ? k->body.at[first + depth - 1].match : k->body.n;
	Affine part = part_number(arena, k, first, depth);
	for (int i = 0; i < end; i++)
		vec_push(arena, &w.body, k->body.at[i]);
	if (pitch > row)
		write_zeros(&w, buffer, to->dtype, &(Zeros){row, pitch, pitch - row, rows}, &part);
	if (more)
		write_zeros(&w, buffer, to->dtype, &(Zeros){rows * pitch, 1, 1, more}, &part);
	for (int i = end; i < k->body.n; i++)
		vec_push(arena, &w.body, k->body.at[i]);
	finish_writing(&w);
}

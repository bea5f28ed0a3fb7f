/* Reads the text form of kernels (loop IR) in .gir files: one statement per line. Comments over
 * the functions show the text that each function reads. */
#include "ir/text.h"

#include <ctype.h>
#include <string.h>

extern const char *const buffer_kind_texts[],
	*const loop_mode_texts[], *const accumulate_texts[], *const accumulate_level_texts[];

enum { MAX_PAD = 64 };
typedef struct {
	Reader *r;
	Kernel *k;
	VEC(int) open;
} KernelReader;

/* Reads a scalar such as v12; returns -1 after reporting an error. */
static LoopValue
read_scalar(KernelReader *kr)
{
	int64_t n;

	read_space(kr->r);
	if (*kr->r->at != 'v' || !isdigit((unsigned char)kr->r->at[1])) {
		read_fault(kr->r, "expected a scalar, v0, v1, ...");
		return -1;
	}
	kr->r->at++;
	if (!read_int(kr->r, &n) || n > 1 << 24) {
		read_fault(kr->r, "a scalar's number is out of range");
		return -1;
	}
	if (n >= kr->k->n_scalars)
		kr->k->n_scalars = (int)n + 1;
	return (LoopValue)n;
}

static bool
read_affine(KernelReader *kr, const Affine **out)
{
	Arena *arena = kr->r->m->arena;
	Affine *a = NEW(arena, Affine);
	VEC(AffineTerm) terms = {0};

	*out = a;
	do {
		int64_t n = 1;
		read_space(kr->r);
		if (*kr->r->at != 'v') {
			if (!read_int(kr->r, &n))
				return false;
			if (!read_char(kr->r, '*')) {
				a->constant += n;
				continue;
			}
		}
		LoopValue v = read_scalar(kr);
		if (v < 0)
			return false;
		vec_push(arena, &terms, ((AffineTerm){n, v}));
	} while (read_char(kr->r, '+'));
	a->n = terms.n;
	a->terms = terms.at;
	return true;
}

static int
read_buffer(KernelReader *kr)
{
	const char *name = read_name(kr->r);

	for (int i = 0; name && i < kr->k->buffers.n; i++)
		if (strcmp(kr->k->buffers.at[i].name, name) == 0)
			return i;
	read_fault(kr->r, "unknown buffer %s", name ? name : "");
	return -1;
}

/* An element of a tile, by its axes: v1, v2 */
static bool
read_tile_place(KernelReader *kr, Type t, const Affine **out)
{
	Affine *a = NEW(kr->r->m->arena, Affine);
	AffineTerm *terms = NEW_ARRAY(kr->r->m->arena, AffineTerm, 2);

	*out = a;
	a->terms = terms;
	for (; a->n < t->rank; a->n++) {
		LoopValue v = a->n && !read_expect(kr->r, ',') ? -1 : read_scalar(kr);
		if (v < 0 || a->n == 2)
			return false;
		terms[a->n] = (AffineTerm){a->n + 1 < t->rank ? t->dims[1] : 1, v};
	}
	return true;
}

static bool
read_buffer_place(KernelReader *kr, LoopStatement *s)
{
	s->buffer = read_buffer(kr);
	if (s->buffer < 0 || !read_expect(kr->r, '['))
		return false;
	const LoopBuffer *b = &kr->k->buffers.at[s->buffer];
	return (b->kind == BUFFER_TILE ? read_tile_place(kr, b->type, &s->place)
	                               : read_affine(kr, &s->place)) &&
	       read_expect(kr->r, ']');
}

/* NAME of a tile, or NAME[place : row, column] of a local array */
static bool
read_window(KernelReader *kr, LoopWindow *w)
{
	Reader *r = kr->r;

	w->buffer = read_buffer(kr);
	if (w->buffer < 0 || !read_char(r, '['))
		return w->buffer >= 0;
	return read_affine(kr, &w->place) && read_expect(r, ':') && read_int(r, &w->row) &&
	       read_expect(r, ',') && read_int(r, &w->column) && read_expect(r, ']');
}

/* ACC, WINDOW, WINDOW k N [tf32] */
static bool
read_mma(KernelReader *kr, LoopStatement *s)
{
	Reader *r = kr->r;
	LoopWindow *windows = NEW_ARRAY(r->m->arena, LoopWindow, 2);

	s->kind = LOOP_STATEMENT_MMA;
	s->windows = windows;
	s->buffer = read_buffer(kr);
	if (s->buffer < 0 || !read_expect(r, ',') || !read_window(kr, &windows[0]) ||
	    !read_expect(r, ',') || !read_window(kr, &windows[1]) || !read_word(r, "k") ||
	    !read_int(r, &s->extent))
		return false;
	s->tf32 = read_word(r, "tf32");
	return true;
}

static bool read_mask(KernelReader *kr, LoopStatement *s);

/* NAME[place] = NAME[place] N [if MASK] */
static bool
read_copy(KernelReader *kr, LoopStatement *s)
{
	Reader *r = kr->r;
	LoopWindow *from = NEW(r->m->arena, LoopWindow);

	s->kind = LOOP_STATEMENT_COPY;
	s->windows = from;
	if (!read_buffer_place(kr, s) || !read_expect(r, '=') ||
	    (from->buffer = read_buffer(kr)) < 0)
		return false;
	return read_expect(r, '[') && read_affine(kr, &from->place) && read_expect(r, ']') &&
	       read_int(r, &s->extent) && (!read_word(r, "if") || read_mask(kr, s));
}

static bool
read_scalars(KernelReader *kr, LoopStatement *s)
{
	do {
		if (s->n_operands == COUNT(s->operands)) {
			read_fault(kr->r, "too many operands");
			return false;
		}
		if ((s->operands[s->n_operands++] = read_scalar(kr)) < 0)
			return false;
	} while (read_char(kr->r, ','));
	return true;
}

static bool
read_dtype(KernelReader *kr, DType *out)
{
	const char *name = read_name(kr->r);

	if (name && dtype_parse(name, out))
		return true;
	read_fault(kr->r, "expected a dtype");
	return false;
}

/* [ROUNDING] [OVERFLOW]: the defaults are left out */
static void
read_conversion(Reader *r, Conversion *how)
{
	for (int i = 1; rounding_names[i]; i++)
		if (read_word(r, rounding_names[i]))
			how->round = (Rounding)i;
	for (int i = 1; overflow_names[i]; i++)
		if (read_word(r, overflow_names[i]))
			how->overflow = (Overflow)i;
}

static bool
read_mask(KernelReader *kr, LoopStatement *s)
{
	s->n_operands = 1;
	return (s->operands[0] = read_scalar(kr)) >= 0;
}

/* The text after `v3 = `. The dtype comes last in the line, and decides how a literal before it
 * is read. */
static bool
read_definition(KernelReader *kr, LoopStatement *s)
{
	Reader *r = kr->r;
	const char *literal = NULL, *word;
	DType storage;
	int op = 0;

	if (read_word(r, "const")) {
		s->kind = LOOP_STATEMENT_CONST;
		read_space(r);
		literal = r->at;
		r->at += strcspn(r->at, " \n");
	} else if (read_word(r, "cast")) {
		s->kind = LOOP_STATEMENT_CAST;
		if (!read_scalars(kr, s) || !read_word(r, "to") || !read_dtype(kr, &storage))
			return false;
		s->i = storage;
		read_conversion(r, &s->how);
	} else if (read_word(r, "affine")) {
		s->kind = LOOP_STATEMENT_AFFINE;
		if (!read_affine(kr, &s->place))
			return false;
	} else if (read_word(r, "scalar")) {
		s->kind = LOOP_STATEMENT_SCALAR;
		if ((s->buffer = read_enum(r, scalar_names)) < 0)
			return false;
	} else if (read_word(r, "load")) {
		s->kind = LOOP_STATEMENT_LOAD;
		if (!read_buffer_place(kr, s) || (read_word(r, "if") && !read_mask(kr, s)))
			return false;
	} else {
		word = read_name(r);
		while (word && op < N_LOOP_OPS && strcmp(loop_ops[op].name, word) != 0)
			op++;
		if (!word || op == N_LOOP_OPS) {
			read_fault(r, "unknown loop op %s", word ? word : "");
			return false;
		}
		s->kind = LOOP_STATEMENT_OP;
		s->op = (LoopOp)op;
		if (!read_scalars(kr, s))
			return false;
	}
	if (!read_expect(r, ':') || !read_dtype(kr, &s->type))
		return false;
	if (literal) {
		const char *behind = r->at;
		r->at = literal;
		bool ok = dtype_is_float(s->type) ? read_double(r, &s->f) : read_int(r, &s->i);
		r->at = behind;
		return ok;
	}
	return true;
}

/* EXTENT or min(EXTENT, PLACE) */
static bool
read_extent(KernelReader *kr, LoopStatement *s)
{
	Reader *r = kr->r;

	if (!read_word(r, "min"))
		return read_int(r, &s->extent);
	return read_expect(r, '(') && read_int(r, &s->extent) && read_expect(r, ',') &&
	       read_affine(kr, &s->place) && read_expect(r, ')');
}

/* v2: max f32 [LEVEL N [to TILE]] */
static bool
read_accumulator(KernelReader *kr, Accumulator *a)
{
	Reader *r = kr->r;
	int kind;
	int64_t number;

	*a = (Accumulator){.scalar = read_scalar(kr), .number = 1};
	if (a->scalar < 0 || !read_expect(r, ':') || (kind = read_enum(r, accumulate_texts)) < 0 ||
	    !read_dtype(kr, &a->type))
		return false;
	a->kind = (AccumulateKind)kind;
	for (int level = 1; accumulate_level_texts[level]; level++) {
		if (!read_word(r, accumulate_level_texts[level]))
			continue;
		if (!read_int(r, &number) || number < 1 || number > MAX_PARTIALS) {
			read_fault(r, "an accumulator has 1 to %d partials", MAX_PARTIALS);
			return false;
		}
		a->level = (AccumulateLevel)level;
		a->number = (int)number;
	}
	if (a->level != ACC_ROW)
		return true;
	return read_word(r, "to") && (a->tile = read_buffer(kr)) >= 0;
}

/* [(ACCUMULATOR, ...)] { */
static bool
read_accumulators(KernelReader *kr, LoopStatement *s)
{
	Reader *r = kr->r;
	VEC(Accumulator) list = {0};

	if (!read_char(r, '('))
		return read_expect(r, '{');
	do {
		Accumulator a;
		if (!read_accumulator(kr, &a))
			return false;
		vec_push(r->m->arena, &list, a);
	} while (read_char(r, ','));
	s->accumulators = list.at;
	s->n_accumulators = list.n;
	return read_expect(r, ')') && read_expect(r, '{');
}

/* v1, v2 of NAME [(ACCUMULATOR, ...)] { */
static bool
read_each(KernelReader *kr, LoopStatement *s)
{
	Reader *r = kr->r;

	s->kind = LOOP_STATEMENT_EACH;
	s->type = S64;
	s->column = -1;
	if ((s->result = read_scalar(kr)) < 0 ||
	    (read_char(r, ',') && (s->column = read_scalar(kr)) < 0) || !read_word(r, "of"))
		return false;
	s->buffer = read_buffer(kr);
	return s->buffer >= 0 && read_accumulators(kr, s);
}

static bool
read_for(KernelReader *kr, LoopStatement *s, LoopMode mode)
{
	Reader *r = kr->r;

	s->kind = LOOP_STATEMENT_FOR;
	s->mode = mode;
	s->type = S64;
	if ((s->result = read_scalar(kr)) < 0 || !read_expect(r, '<') || !read_extent(kr, s))
		return false;
	return read_accumulators(kr, s);
}

/* NAME : TYPE [pad N] [swizzle] */
static bool
read_array(KernelReader *kr, LoopStatement *s, BufferKind kind)
{
	Reader *r = kr->r;
	LoopBuffer b = {.kind = kind};

	s->kind = LOOP_STATEMENT_LOCAL;
	if (!(b.name = read_name(r)) || !read_expect(r, ':') || !(b.type = read_type(r)))
		return false;
	if (kind == BUFFER_LOCAL && read_word(r, "pad") &&
	    (!read_int(r, &b.pad) || b.pad < 1 || b.pad > MAX_PAD)) {
		read_fault(r, "a row is padded by 1 to %d elements", MAX_PAD);
		return false;
	}
	b.swizzle = kind == BUFFER_LOCAL && read_word(r, "swizzle");
	s->buffer = kr->k->buffers.n;
	s->extent = b.type->n;
	vec_push(r->m->arena, &kr->k->buffers, b);
	return true;
}

static bool
read_statement(KernelReader *kr, LoopStatement *s)
{
	Reader *r = kr->r;

	*s = (LoopStatement){.result = -1, .buffer = -1, .match = -1, .line = r->line};
	for (int mode = 0; loop_mode_texts[mode]; mode++)
		if (read_word(r, loop_mode_texts[mode]))
			return read_for(kr, s, (LoopMode)mode);
	for (int kind = BUFFER_LOCAL; buffer_kind_texts[kind]; kind++)
		if (read_word(r, buffer_kind_texts[kind]))
			return read_array(kr, s, (BufferKind)kind);
	if (read_word(r, "each"))
		return read_each(kr, s);
	if (read_word(r, "mma"))
		return read_mma(kr, s);
	if (read_word(r, "copy"))
		return read_copy(kr, s);
	if (read_word(r, "barrier")) {
		s->kind = LOOP_STATEMENT_BARRIER;
		return true;
	}
	if (read_word(r, "commit")) {
		s->kind = LOOP_STATEMENT_COMMIT;
		return true;
	}
	if (read_word(r, "wait")) {
		s->kind = LOOP_STATEMENT_WAIT;
		return read_int(r, &s->i);
	}
	if (read_word(r, "store")) {
		s->kind = LOOP_STATEMENT_STORE;
		return read_buffer_place(kr, s) && read_expect(r, '=') && read_scalars(kr, s);
	}
	if (read_word(r, "accumulate")) {
		s->kind = LOOP_STATEMENT_ACCUMULATE;
		return read_scalars(kr, s) && s->n_operands == 2;
	}
	if (read_word(r, "if")) {
		s->kind = LOOP_STATEMENT_IF;
		return read_scalars(kr, s) && read_expect(r, '{');
	}
	return (s->result = read_scalar(kr)) >= 0 && read_expect(r, '=') && read_definition(kr, s);
}

/* The input that an output begins as: `from x0`. */
static void
read_beginning(KernelReader *kr, LoopBuffer *b)
{
	int input = read_buffer(kr);
	const LoopBuffer *x = input < 0 ? NULL : &kr->k->buffers.at[input];

	if (x && (b->kind != BUFFER_INOUT || x->kind != BUFFER_IN || x->type != b->type))
		read_fault(kr->r, "%s cannot begin as %s", b->name, x->name);
	b->from = 1 + input;
}

static bool
read_kernel_params(KernelReader *kr)
{
	Reader *r = kr->r;

	while (!read_char(r, ')')) {
		LoopBuffer b = {0};
		int kind;
		if ((kr->k->buffers.n && !read_expect(r, ',')) || !(b.name = read_name(r)) ||
		    !read_expect(r, ':') || (kind = read_enum(r, buffer_kind_texts)) < 0 ||
		    kind >= BUFFER_LOCAL || !(b.type = read_type(r))) {
			read_fault(r, "malformed kernel parameter");
			return false;
		}
		b.kind = (BufferKind)kind;
		b.part = read_word(r, "part");
		if (b.part && b.kind == BUFFER_IN)
			read_fault(r, "%s is read only, so no part of it is written", b.name);
		if (read_word(r, "from"))
			read_beginning(kr, &b);
		if (b.kind == BUFFER_IN && kr->k->n_outputs)
			read_fault(r, "inputs stand before outputs");
		kr->k->n_inputs += b.kind == BUFFER_IN;
		kr->k->n_outputs += b.kind != BUFFER_IN;
		vec_push(r->m->arena, &kr->k->buffers, b);
	}
	return true;
}

static bool
read_close(KernelReader *kr)
{
	LoopStatement end = {
		.kind = LOOP_STATEMENT_END, .result = -1, .buffer = -1, .line = kr->r->line};

	if (kr->open.n == 0)
		return false; /* this closing brace ends the kernel */
	end.match = kr->open.at[--kr->open.n];
	kr->k->body.at[end.match].match = kr->k->body.n;
	vec_push(kr->r->m->arena, &kr->k->body, end);
	return true;
}

/* N or NxN */
static void
read_team(KernelReader *kr)
{
	Kernel *k = kr->k;
	int64_t n, all = 1;

	do {
		if (k->n_team == MAX_TEAM || !read_int(kr->r, &n) || n < 1 || n > MAX_PARTIALS ||
		    (n & (n - 1)) != 0 || (all *= n) > MAX_PARTIALS) {
			read_fault(kr->r,
			           "a team has at most %d levels, and at most %d members, "
			           "powers of two",
			           MAX_TEAM, MAX_PARTIALS);
			return;
		}
		k->team[k->n_team++] = (int)n;
	} while (*kr->r->at == 'x' && kr->r->at++);
}

/* @KERNEL: the kernel must stand before this one */
static const Kernel *
read_served(Reader *r)
{
	const char *name = read_symbol(r, '@');
	const Kernel *k = name ? strmap_get(r->m->kernel_names, name) : NULL;

	if (name && !k)
		read_fault(r, "kernel @%s must stand before the kernel that serves it", name);
	return k;
}

/* The text between the parameters and the body. */
static void
read_facts(KernelReader *kr)
{
	Reader *r = kr->r;

	if (read_word(r, "team"))
		read_team(kr);
	if (read_word(r, "flops"))
		read_int(r, &kr->k->flops);
	kr->k->sums = read_word(r, "sums");
	kr->k->all_reduces = read_word(r, "all_reduces");
	if (read_word(r, "to_host"))
		kr->k->moves = MOVES_TO_HOST;
	else if (read_word(r, "to_device"))
		kr->k->moves = MOVES_TO_DEVICE;
	if (read_word(r, "serves"))
		kr->k->serves = read_served(r);
	if (read_word(r, "library") && !(kr->k->library = read_library(r, kr->k))) {
		read_skip_line(r); /* the body still follows */
		return;
	}
	if (read_word(r, "loc"))
		kr->k->loc = read_loc(r);
	read_expect(r, '{');
}

void
read_kernel(Reader *r)
{
	const char *name = read_symbol(r, '@');
	KernelReader kr = {.r = r};
	LoopStatement s;
	bool closed = false;

	if (!name || strmap_get(r->m->kernel_names, name)) {
		read_fault(r, "expected a new @name");
		return;
	}
	kr.k = kernel_new(r->m->arena, name, NULL);
	if (!read_expect(r, '(') || !read_kernel_params(&kr))
		return;
	read_facts(&kr);
	for (read_lines(r); *r->at; read_lines(r)) {
		if (read_char(r, '}')) {
			if ((closed = !read_close(&kr)))
				break;
			continue;
		}
		if (!read_statement(&kr, &s)) {
			read_fault(r, "malformed statement");
			read_skip_line(r);
			continue;
		}
		if (statement_opens(&s))
			vec_push(r->m->arena, &kr.open, kr.k->body.n);
		vec_push(r->m->arena, &kr.k->body, s);
	}
	if (!closed)
		read_fault(r, "kernel @%s is not closed", name);
	kernel_finish(kr.k);
	kr.k->id = r->m->kernels.n;
	vec_push(r->m->arena, &r->m->kernels, kr.k);
	strmap_put(r->m->kernel_names, kr.k->name, kr.k);
}

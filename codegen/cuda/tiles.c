/* Prints tiles as CUDA C. A tile is a block of a matrix whose elements are held in the registers
 * of a team's warps (32 threads, called lanes), in the layout that the matrix instruction mma
 * uses for sums: fragments of 16 x 8 elements. Lane l of a warp holds four elements of a
 * fragment: rows l / 4 and l / 4 + 8, columns l % 4 * 2 and the next one. A tile with one axis
 * has one value for each row; all lanes with elements of a row hold the row's value.
 *
 *	tile5[e]	e = ((i * COLUMNS + j) * 2 + h) * 2 + b: fragment (i, j) of the warp, half h of its rows, column b of two
 *	tile10[r]	r = i * 2 + h
 *
 * If the kernel has tiles with one axis, or tiles of 16 bits that an mma multiplies, a warp has whole
 * rows; otherwise warps share rows and columns. A tile of 16 bits is the left operand of mma as it lies
 * in the registers; of other types, it is first stored into team memory. Products of bf16 and f16 use tensor cores. Products of f32 use them only if tf32 is
 * allowed. All other products are added in the order of k, with fma. */
#include "codegen/cuda/cuda.h"
#include "codegen/cuda/print.h"

enum { FRAGMENT_ROWS = 16, FRAGMENT_COLUMNS = 8, FRAGMENT = 4 /* elements of a lane */ };

typedef struct {
	/* the warps form a grid of row_warps x column_warps, which divides the tile's rows and
	 * columns */
	int row_warps, column_warps;
	/* fragments of a warp; columns is 1 for a tile with one axis */
	int rows, columns;
	int all_rows, all_columns; /* fragments of the tile; the last may reach beyond the tile */
	bool whole;                /* no element of a fragment lies outside of the tile */
	const char *warp;          /* expression for the warp's number */
} Layout;

static int
parts(int64_t n, int of)
{
	return (int)((n + of - 1) / of);
}

static bool
has_whole_rows(const Kernel *k)
{
	for (int i = 0; i < k->buffers.n; i++) {
		const LoopBuffer *b = &k->buffers.at[i];
		if (b->kind == BUFFER_TILE &&
		    (b->type->rank == 1 || dtype_info[b->type->dtype].bits == 16))
			return true;
	}
	return false;
}

static Layout
layout_of(CPrinter *p, int tile)
{
	Type t = p->k->buffers.at[tile].type;
	int level = p->declared[tile], warps = level ? 1 : cuda_threads(p->k) / WARP;
	Layout best = {.all_rows = parts(t->dims[0], FRAGMENT_ROWS),
	               .all_columns = t->rank == 2 ? parts(t->dims[1], FRAGMENT_COLUMNS) : 1};
	int64_t least = INT64_MAX;

	for (int rows = warps; rows >= 1; rows /= 2) {
		Layout now = best;
		now.row_warps = rows;
		now.column_warps = warps / rows;
		now.rows = parts(best.all_rows, rows);
		now.columns = parts(best.all_columns, now.column_warps);
		/* mostly the number of sums that a warp computes; for equal numbers, the
		 * operands that the warp reads */
		int64_t cost = 1000ll * now.rows * now.columns + 3ll * now.rows + 2ll * now.columns;
		if (cost < least) {
			least = cost;
			best = now;
		}
		if (has_whole_rows(p->k))
			break;
	}
	best.whole = t->dims[0] == (int64_t)best.rows * best.row_warps * FRAGMENT_ROWS &&
	             (t->rank == 1 ||
	              t->dims[1] == (int64_t)best.columns * best.column_warps * FRAGMENT_COLUMNS);
	best.warp = warps == 1 ? "0" : "(int)threadIdx.x / 32";
	return best;
}

void
cuda_print_tile(CPrinter *p, int tile)
{
	const LoopBuffer *b = &p->k->buffers.at[tile];
	Layout l = layout_of(p, tile);

	c_indent(p);
	text_printf(p->out, "%s %s[%d];\n", c_storage_names[b->type->dtype], c_name(p, tile),
	            b->type->rank == 1 ? l.rows * 2 : l.rows * l.columns * FRAGMENT);
}

const char *
cuda_tile_element(const CPrinter *p, int tile)
{
	return p->k->buffers.at[tile].type->rank == 1 ? "r" : "e";
}

static void PRINTF(2, 3) line(CPrinter *p, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	c_indent(p);
	text_printf(p->out, "%s\n", arena_vprintf(p->arena, fmt, args));
	va_end(args);
}

/* Opens the body of an unrolled loop. */
static void
open_unrolled(CPrinter *p, const char *variable, int n)
{
	line(p, "#pragma unroll");
	line(p, "for (int %s = 0; %s < %d; %s++) {", variable, variable, n, variable);
	p->depth++;
}

static void
close_block(CPrinter *p)
{
	p->depth--;
	line(p, "}");
}

/* ---- each */
static void
print_row(CPrinter *p, const LoopStatement *s, const Layout *l)
{
	line(p, "const int v%d = gradc_tile_row(%s, r, %d);", s->result, l->warp, l->row_warps);
}

/* Declares a lane's partials of a row. A warp has the whole row. Each partial adds one column of
 * some of the row's fragments: column 2t or column 2t + 1 of the fragment, where t is lane % 4. */
static void
start_partials(CPrinter *p, const LoopStatement *s)
{
	for (int i = 0; i < s->n_accumulators; i++) {
		const Accumulator *a = &s->accumulators[i];
		int own = a->number / FRAGMENT_COLUMNS * 2;

		line(p, "%s v%d[%d];", c_compute_names[a->type], a->scalar, own);
		open_unrolled(p, "l", own);
		c_indent(p);
		text_printf(p->out, "v%d[l] = ", a->scalar);
		c_print_identity(p, a->kind, a->type);
		text_add(p->out, ";\n");
		close_block(p);
		p->accumulated[a->scalar] = arena_printf(p->arena, "v%d[j %% %d * 2 + b]",
		                                         a->scalar, own / 2);
	}
}

/* Combines the partials of a row pairwise: partial l + n into partial l, for halving n. First each
 * lane combines its own partials down to two. Then shuffles combine the lanes of the row. Last,
 * the two partials of the row's first lane are combined. */
static void
finish_partials(CPrinter *p, const LoopStatement *s)
{
	for (int i = 0; i < s->n_accumulators; i++) {
		const Accumulator *a = &s->accumulators[i];
		const char *v = arena_printf(p->arena, "v%d", a->scalar);

		for (int n = a->number / FRAGMENT_COLUMNS; n > 1; n /= 2)
			for (int x = 0; x < n; x++)
				c_print_combine(p, a->kind, a->type,
				                arena_printf(p->arena, "%s[%d]", v, x),
				                arena_printf(p->arena, "%s[%d]", v, x + n));
		for (int by = 2; by > 0; by /= 2)
			for (int x = 0; x < 2; x++)
				c_print_combine(
					p, a->kind, a->type, arena_printf(p->arena, "%s[%d]", v, x),
					arena_printf(p->arena,
				                     "__shfl_down_sync(0xffffffffu, %s[%d], %d, 4)",
				                     v, x, by));
		c_print_combine(p, a->kind, a->type, arena_printf(p->arena, "%s[0]", v),
		                arena_printf(p->arena, "%s[1]", v));
		line(p, "%s[r] = __shfl_sync(0xffffffffu, %s[0], 0, 4);", c_name(p, a->tile), v);
	}
}

static void
print_columns(CPrinter *p, const LoopStatement *s, int at, const Layout *l)
{
	Type t = p->k->buffers.at[s->buffer].type;

	open_unrolled(p, "j", l->columns);
	open_unrolled(p, "b", 2);
	line(p, "const int e = (r / 2 * %d + j) * 4 + r %% 2 * 2 + b;", l->columns);
	line(p, "const int v%d = gradc_tile_column(%s, j, b, %d, %d);", s->column, l->warp,
	     l->row_warps, l->column_warps);
	if (!l->whole) {
		line(p, "if (v%d < %lld && v%d < %lld) {", s->result, (long long)t->dims[0],
		     s->column, (long long)t->dims[1]);
		p->depth++;
	}
	c_print_block(p, at + 1, s->match);
	if (!l->whole)
		close_block(p);
	close_block(p);
	close_block(p);
}

void
cuda_print_each(CPrinter *p, const LoopStatement *s, int at)
{
	Layout l = layout_of(p, s->buffer);
	bool masked = s->column < 0 && !l.whole;

	p->each = s;
	open_unrolled(p, "r", l.rows * 2);
	print_row(p, s, &l);
	if (masked) {
		line(p, "if (v%d < %lld) {", s->result,
		     (long long)p->k->buffers.at[s->buffer].type->dims[0]);
		p->depth++;
	}
	if (s->column < 0) {
		c_print_block(p, at + 1, s->match);
	} else {
		start_partials(p, s);
		print_columns(p, s, at, &l);
		finish_partials(p, s);
	}
	if (masked)
		close_block(p);
	close_block(p);
	p->each = NULL;
}

/* ---- mma */
/* Is each row of the window part of one row of the padded array, with equal distances from row to
 * row? Then places in the padded array are affine, too. Otherwise gradc_pad computes each place
 * with a division. */
static bool
is_padded_window(const LoopBuffer *b, const LoopWindow *w, int64_t rows, int64_t columns)
{
	int64_t row = b->type->rank ? b->type->dims[b->type->rank - 1] : 1;
	bool down = w->column == 1 && w->row % row == 0,
	     across = w->row == 1 && w->column % row == 0;
	const Affine *a = w->place;

	if (!b->pad || !a || a->constant < 0 || (!down && !across) ||
	    a->constant % row + (down ? columns : rows) > row)
		return false;
	Affine first = affine_plus(*a, -(a->constant % row)); /* start of the window's row */
	return affine_is_multiple(&first, -1, row);
}

/* The same window with places in the padded array. */
static LoopWindow
padded_window(CPrinter *p, const LoopBuffer *b, const LoopWindow *w)
{
	int64_t row = b->type->dims[b->type->rank - 1];
	AffineTerm *terms = arena_copy(p->arena, w->place->terms,
	                               sizeof(AffineTerm) * (size_t)w->place->n);
	Affine *place = arena_copy(p->arena, w->place, sizeof(Affine));
	LoopWindow padded = *w;

	for (int i = 0; i < place->n; i++)
		terms[i].coefficient += terms[i].coefficient / row * b->pad;
	place->constant += place->constant / row * b->pad;
	place->terms = terms;
	padded.place = place;
	padded.row += w->row / row * b->pad;
	padded.column += w->column / row * b->pad;
	return padded;
}

/* The place of element (i, j) of an operand, as an expression; for a tile, its place in the staged copy. */
static const char *
window_element(CPrinter *p, const LoopStatement *s, int side, const char *i, const char *j)
{
	const LoopWindow *w = &s->windows[side];
	const LoopBuffer *b = &p->k->buffers.at[w->buffer];
	const int64_t *sums = p->k->buffers.at[s->buffer].type->dims;

	if (is_padded_window(b, w, side ? s->extent : sums[0], side ? sums[1] : s->extent)) {
		LoopWindow padded = padded_window(p, b, w);
		return c_window_place(p, &padded, i, j);
	}
	const char *place = c_window_place(p, w, i, j);
	return w->place ? c_place(p, w->buffer, place) : place;
}

static const char *
window_array(CPrinter *p, const LoopWindow *w)
{
	return w->place ? p->dialect->array(p, w->buffer)
	                : arena_printf(p->arena, "staged_%s",
	                               dtype_info[p->k->buffers.at[w->buffer].type->dtype].name);
}

/* Stores an operand that is a tile into team memory. */
static void
stage(CPrinter *p, const LoopWindow *w)
{
	Type t = p->k->buffers.at[w->buffer].type;
	Layout l = layout_of(p, w->buffer);
	const char *barrier = p->n_open ? "__syncwarp();" : "__syncthreads();";

	if (w->place || tile_in_registers(t->dtype))
		return;
	line(p, "%s", barrier);
	open_unrolled(p, "e", l.rows * l.columns * FRAGMENT);
	line(p, "const int row = gradc_tile_row(%s, e / %d * 2 + e / 2 %% 2, %d);", l.warp,
	     l.columns * FRAGMENT, l.row_warps);
	line(p, "const int column = gradc_tile_column(%s, e / 4 %% %d, e %% 2, %d, %d);", l.warp,
	     l.columns, l.row_warps, l.column_warps);
	line(p, "if (row < %lld && column < %lld)", (long long)t->dims[0], (long long)t->dims[1]);
	line(p, "\t%s[row * %lld + column] = %s[e];", window_array(p, w), (long long)t->dims[1],
	     c_name(p, w->buffer));
	close_block(p);
	line(p, "%s", barrier);
}

/* An expression for the number, but at most n - 1. If a fragment reaches beyond the tile (not
 * whole), a lane so reads an element inside the tile. */
static const char *
inside(CPrinter *p, const char *number, int64_t n, bool whole)
{
	return whole ? number
	             : arena_printf(p->arena, "gradc_least(%s, %lld)", number, (long long)n - 1);
}

static void
print_element(CPrinter *p, const LoopStatement *s, int side, const char *i, const char *j)
{
	const LoopWindow *w = &s->windows[side];
	DType d = p->k->buffers.at[w->buffer].type->dtype;
	const ScalarFunction *f = c_storage_function(p, "load", d);

	text_printf(p->out, f ? "gradc_%s(%s[%s]);\n" : "%s%s[%s];\n", f ? f->name : "",
	            window_array(p, w), window_element(p, s, side, i, j));
}

/* Do groups of n elements in a row begin at multiples of n, if rows are `stride` apart? */
static bool
is_aligned(const Kernel *k, const LoopWindow *w, int64_t stride, int n)
{
	const LoopBuffer *b = &k->buffers.at[w->buffer];
	return w->place && stride % n == 0 && b->pad % n == 0 &&
	       affine_is_multiple(w->place, -1, n);
}

/* Can a lane's two columns of a fragment be read in one access, because they are contiguous? */
static bool
reads_pairs(CPrinter *p, const LoopStatement *s, const Layout *l)
{
	const LoopWindow *w = &s->windows[1];
	DType d = p->k->buffers.at[w->buffer].type->dtype;

	return l->whole && w->column == 1 && dtype_info[d].bits >= 32 &&
	       is_aligned(p->k, w, w->row, 2);
}

static void
print_right(CPrinter *p, const LoopStatement *s, const Layout *l)
{
	Type t = p->k->buffers.at[s->buffer].type;
	const char *type = c_compute_names[t->dtype];

	if (!reads_pairs(p, s, l)) {
		const char *column = arena_printf(p->arena,
		                                  "gradc_tile_column(%s, c / 2, c %% 2, %d, %d)",
		                                  l->warp, l->row_warps, l->column_warps);
		open_unrolled(p, "c", l->columns * 2);
		line(p, "const int column = %s;", inside(p, column, t->dims[1], l->whole));
		c_indent(p);
		text_add(p->out, "right[c] = ");
		print_element(p, s, 1, "k", "column");
		close_block(p);
		return;
	}
	open_unrolled(p, "j", l->columns);
	line(p, "const int column = gradc_tile_column(%s, j, 0, %d, %d);", l->warp, l->row_warps,
	     l->column_warps);
	line(p, "const GradcTwo<%s> two = *(const GradcTwo<%s> *)&%s[%s];", type, type,
	     window_array(p, &s->windows[1]), window_element(p, s, 1, "k", "column"));
	line(p, "right[j * 2] = two.low;");
	line(p, "right[j * 2 + 1] = two.high;");
	close_block(p);
}

/* Adds products without tensor cores, in the order of k. */
static void
print_sums(CPrinter *p, const LoopStatement *s, const Layout *l)
{
	Type t = p->k->buffers.at[s->buffer].type;
	const char *type = c_compute_names[t->dtype];
	const char *row = arena_printf(p->arena, "gradc_tile_row(%s, r, %d)", l->warp,
	                               l->row_warps);

	line(p, "#pragma unroll 4");
	line(p, "for (int k = 0; k < %lld; k++) {", (long long)s->extent);
	p->depth++;
	line(p, "%s left[%d], right[%d];", type, l->rows * 2, l->columns * 2);
	open_unrolled(p, "r", l->rows * 2);
	line(p, "const int row = %s;", inside(p, row, t->dims[0], l->whole));
	c_indent(p);
	text_add(p->out, "left[r] = ");
	print_element(p, s, 0, "row", "k");
	close_block(p);
	print_right(p, s, l);
	open_unrolled(p, "e", l->rows * l->columns * FRAGMENT);
	line(p,
	     "%s[e] = %s(left[e / %d * 2 + e / 2 %% 2], right[e / 4 %% %d * 2 + e %% 2], %s[e]);",
	     c_name(p, s->buffer), t->dtype == F64 ? "fma" : "fmaf", l->columns * FRAGMENT,
	     l->columns, c_name(p, s->buffer));
	close_block(p);
	close_block(p);
}

/* ---- with tensor cores */
typedef struct {
	const char *name; /* the word for this unit in the names of the prelude's functions */
	DType storage;    /* type of both operands */
	/* in_registers: elements have 16 bits, two in a register; matrices of them are loaded by ldmatrix */
	bool in_registers;
} Unit;
static const Unit units[] = {
	{"bf16", BF16, true},
	{"f16", F16, true},
	{"tf32", F32, false},
};

/* The tensor-core unit that can run the statement; NULL: the target has no such unit. */
static const Unit *
unit_of(const Kernel *k, const Target *target, const LoopStatement *s)
{
	DType left = k->buffers.at[s->windows[0].buffer].type->dtype;
	DType right = k->buffers.at[s->windows[1].buffer].type->dtype;
	const MatrixShape *m = target_matrix(target, left);

	if (!m || m->rows != FRAGMENT_ROWS || m->columns != FRAGMENT_COLUMNS || left != right ||
	    k->buffers.at[s->buffer].type->dtype != F32 || s->extent % m->depth ||
	    (left == F32 && !s->tf32))
		return NULL;
	for (int i = 0; i < COUNT(units); i++)
		if (units[i].storage == left)
			return &units[i];
	return NULL;
}

bool
cuda_multiplies_tiles(const Kernel *k, const Target *target, const LoopStatement *s)
{
	for (int side = 0; side < 2; side++) {
		const LoopBuffer *b = &k->buffers.at[s->windows[side].buffer];
		if (!s->windows[side].place && tile_in_registers(b->type->dtype) &&
		    (side || !unit_of(k, target, s)))
			return false;
	}
	return true;
}

/* One operand of an mma. Its fragments are rows of the left operand, or columns of the right operand. */
typedef struct {
	const LoopStatement *s;
	const Unit *unit;
	int side;
	const LoopWindow *window;
	const char *name; /* name of its registers: "left" */
	/* rows or columns of a fragment; registers of a lane for a fragment */
	int size, registers;
	int64_t all; /* rows or columns of the tile */
	/* are groups of eight elements contiguous along k; or across k? */
	bool by_rows, by_columns;
} Operand;

static Operand
operand_of(CPrinter *p, const LoopStatement *s, const Unit *u, int side)
{
	const LoopWindow *w = &s->windows[side];
	int64_t along_k = side ? w->row : w->column, across = side ? w->column : w->row;

	return (Operand){.s = s,
	                 .unit = u,
	                 .side = side,
	                 .window = w,
	                 .name = side ? "right" : "left",
	                 .size = side ? FRAGMENT_COLUMNS : FRAGMENT_ROWS,
	                 .registers = side ? 2 : 4,
	                 .all = p->k->buffers.at[s->buffer].type->dims[side],
	                 .by_rows = along_k == 1 && is_aligned(p->k, w, across, 8),
	                 .by_columns = across == 1 && is_aligned(p->k, w, along_k, 8)};
}

/* The place of an element; `across` and `along` are names of variables. */
static const char *
operand_element(CPrinter *p, const Operand *o, const char *across, const char *along)
{
	return window_element(p, o->s, o->side, o->side ? along : across, o->side ? across : along);
}

/* Loads all registers of a fragment with one instruction: lane l gives the address of row l % 8
 * of one of the 8 x 8 matrices. */
static void
print_by_matrices(CPrinter *p, const Operand *o)
{
	line(p, "const int across = first%s%s;", o->side ? "" : " + lane / 8 % 2 * 8",
	     o->by_rows ? " + lane % 8" : "");
	line(p, "const int along = k + %s%s;", o->side ? "lane / 8 % 2 * 8" : "lane / 16 * 8",
	     o->by_rows ? "" : " + lane % 8");
	line(p, "gradc_ldmatrix%s_%d(%s[i], &%s[%s]);", o->by_rows ? "" : "_trans", o->registers,
	     o->name, window_array(p, o->window), operand_element(p, o, "across", "along"));
}

/* Loads a fragment register by register. Register q of the left operand holds elements
 * of row lane / 4 + q % 2 * 8. The first of these elements has k = 2 * (lane % 4) + q / 2 * 8. */
static void
print_by_registers(CPrinter *p, const Operand *o, bool whole)
{
	const char *across = o->side ? "first + lane / 4" : "first + lane / 4 + q % 2 * 8";
	const char *deep = o->side ? "q" : "q / 2", *array = window_array(p, o->window);
	const char *one = operand_element(p, o, "across", "along");

	open_unrolled(p, "q", o->registers);
	line(p, "const int across = %s;", inside(p, across, o->all, whole));
	if (o->unit->in_registers) {
		line(p, "const int along = k + lane %% 4 * 2 + %s * 8;", deep);
		line(p, "%s[i][q] = gradc_two(%s[%s], %s[%s]);", o->name, array, one, array,
		     operand_element(p, o, "across", "(along + 1)"));
	} else {
		line(p, "const int along = k + lane %% 4 + %s * 4;", deep);
		line(p, "%s[i][q] = gradc_tf32(%s[%s]);", o->name, array, one);
	}
	close_block(p);
}

/* The left operand is a tile: fragments j and j + 1 of its sums are a fragment of the operand. */
static void
print_by_tile(CPrinter *p, const LoopStatement *s, const Layout *l)
{
	const char *name = c_name(p, s->windows[0].buffer);
	int columns = layout_of(p, s->windows[0].buffer).columns;

	open_unrolled(p, "f", l->rows * 4);
	line(p, "const int e = ((f / 4 * %d + k / 8 + f / 2 %% 2) * 2 + f %% 2) * 2;", columns);
	line(p, "left[f / 4][f %% 4] = gradc_two(%s[e], %s[e + 1]);", name, name);
	close_block(p);
}

/* Loads the operand's fragments into registers of the warp. */
static void
print_operand(CPrinter *p, const LoopStatement *s, const Layout *l, const Unit *u, int side)
{
	if (side == 0 && !s->windows[0].place) {
		print_by_tile(p, s, l);
		return;
	}
	Operand o = operand_of(p, s, u, side);
	const char *fragment = arena_printf(
		p->arena, side ? "(%s / %d + i * %d)" : "(%s %% %d + i * %d)", l->warp,
		l->row_warps, side ? l->column_warps : l->row_warps);
	bool whole = o.all % o.size == 0;

	open_unrolled(p, "i", side ? l->columns : l->rows);
	line(p, "const int first = %s * %d;", inside(p, fragment, parts(o.all, o.size), l->whole),
	     o.size);
	line(p, "const int lane = threadIdx.x %% 32;");
	if (u->in_registers && whole && (o.by_rows || o.by_columns))
		print_by_matrices(p, &o);
	else
		print_by_registers(p, &o, whole);
	close_block(p);
}

static void
print_by_unit(CPrinter *p, const LoopStatement *s, const Layout *l, const Unit *u)
{
	if (!s->windows[0].place)
		line(p, "#pragma unroll"); /* k is part of a register's number */
	line(p, "for (int k = 0; k < %lld; k += %d) {", (long long)s->extent,
	     target_matrix(p->target, u->storage)->depth);
	p->depth++;
	line(p, "uint32_t left[%d][4], right[%d][2];", l->rows, l->columns);
	print_operand(p, s, l, u, 0);
	print_operand(p, s, l, u, 1);
	open_unrolled(p, "f", l->rows * l->columns);
	line(p, "gradc_mma_%s(&%s[f * 4], left[f / %d], right[f %% %d]);", u->name,
	     c_name(p, s->buffer), l->columns, l->columns);
	close_block(p);
	close_block(p);
}

void
cuda_print_mma(CPrinter *p, const LoopStatement *s, int at)
{
	Layout l = layout_of(p, s->buffer);
	const Unit *u = unit_of(p->k, p->target, s);

	(void)at;
	line(p, "{");
	p->depth++;
	stage(p, &s->windows[0]);
	stage(p, &s->windows[1]);
	if (u)
		print_by_unit(p, s, &l, u);
	else
		print_sums(p, s, &l);
	close_block(p);
}

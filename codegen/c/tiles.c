/* Prints as C the statements that a team of GPU threads runs together. In C the team is one
 * thread: a tile is an array, the thread loops over the tile, and asynchronous copies become
 * ordinary copies. */
#include "codegen/c/print.h"

static void
open_loop(CPrinter *p, LoopValue variable, int64_t extent)
{
	c_indent(p);
	text_printf(p->out, "for (int64_t v%d = 0; v%d < %lld; v%d++) {\n", variable, variable,
	            (long long)extent, variable);
	p->depth++;
}

static void
close_loop(CPrinter *p)
{
	p->depth--;
	c_indent(p);
	text_add(p->out, "}\n");
}

/* Stores the results of a loop over one row: each result becomes the row's value in its tile. */
static void
store_rows(CPrinter *p, const LoopStatement *s)
{
	for (int i = 0; i < s->n_accumulators; i++) {
		Affine row = {.n = 1, .terms = &(AffineTerm){1, s->result}};
		LoopStatement store = {.kind = LOOP_STATEMENT_STORE,
		                       .buffer = s->accumulators[i].tile,
		                       .place = &row,
		                       .n_operands = 1,
		                       .operands = {s->accumulators[i].scalar}};
		c_print_store(p, &store, 0);
	}
}

void
c_print_each(CPrinter *p, const LoopStatement *s, int at)
{
	Type t = p->k->buffers.at[s->buffer].type;

	open_loop(p, s->result, t->dims[0]);
	if (s->column >= 0) {
		c_start_accumulators(p, s, arena_printf(p->arena, "v%d", s->column));
		open_loop(p, s->column, t->dims[1]);
	}
	c_print_block(p, at + 1, s->match);
	if (s->column >= 0) {
		close_loop(p);
		c_finish_accumulators(p, s);
		store_rows(p, s);
	}
	close_loop(p);
}

const char *
c_window_place(CPrinter *p, const LoopWindow *w, const char *i, const char *j)
{
	if (w->place)
		return arena_printf(p->arena, "%s + %s * %lld + %s * %lld", c_affine(p, w->place),
		                    i, (long long)w->row, j, (long long)w->column);
	return arena_printf(p->arena, "%s * %lld + %s", i,
	                    (long long)p->k->buffers.at[w->buffer].type->dims[1], j);
}

static void
print_window(CPrinter *p, const LoopWindow *w, const char *i, const char *j)
{
	c_print_element(p, w->buffer, c_window_place(p, w, i, j));
}

/* Each element adds its products in the order of k; the order of the other loops does not
 * matter. */
void
c_print_mma(CPrinter *p, const LoopStatement *s, int at)
{
	const LoopBuffer *b = &p->k->buffers.at[s->buffer];
	const char *type = c_compute_names[b->type->dtype];
	const char *sum = arena_printf(p->arena, "%s[i * %lld + j]", c_name(p, s->buffer),
	                               (long long)b->type->dims[1]);

	(void)at;
	c_indent(p);
	text_printf(p->out, "for (int64_t i = 0; i < %lld; i++)\n", (long long)b->type->dims[0]);
	p->depth++;
	c_indent(p);
	text_printf(p->out, "for (int64_t k = 0; k < %lld; k++) {\n", (long long)s->extent);
	p->depth++;
	c_indent(p);
	text_printf(p->out, "const %s a = ", type);
	print_window(p, &s->windows[0], "i", "k");
	text_add(p->out, ";\n#pragma omp simd\n");
	c_indent(p);
	text_printf(p->out, "for (int64_t j = 0; j < %lld; j++)\n", (long long)b->type->dims[1]);
	c_indent(p);
	text_printf(p->out, "\t%s = __builtin_fma%s(a, ", sum, b->type->dtype == F32 ? "f" : "");
	print_window(p, &s->windows[1], "k", "j");
	text_printf(p->out, ", %s);\n", sum);
	p->depth--;
	c_indent(p);
	text_add(p->out, "}\n");
	p->depth--;
}

void
c_print_copy(CPrinter *p, const LoopStatement *s, int at)
{
	(void)at;
	c_indent(p);
	text_printf(p->out, "for (int64_t i = 0; i < %lld; i++)\n", (long long)s->extent);
	c_indent(p);
	text_printf(p->out, "\t%s[%s + i] = ", c_name(p, s->buffer), c_affine(p, s->place));
	if (s->n_operands)
		text_printf(p->out, "!v%d ? 0 : ", s->operands[0]);
	text_printf(p->out, "%s[%s + i];\n", c_name(p, s->windows->buffer),
	            c_affine(p, s->windows->place));
}

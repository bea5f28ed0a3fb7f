/* Prints loops and their accumulators as C. */
#include "codegen/c/print.h"

#include <math.h>

void
c_print_combine(CPrinter *p, AccumulateKind kind, DType t, const char *to, const char *with)
{
	c_indent(p);
	if (kind <= ACC_MUL)
		text_printf(p->out, "%s = %s %s %s;\n", to, to, kind == ACC_ADD ? "+" : "*", with);
	else
		text_printf(p->out, "%s = gradc_%s_%s(%s, %s);\n", to,
		            kind == ACC_MAX ? "max" : "min", dtype_info[t].name, to, with);
}

void
c_print_identity(CPrinter *p, AccumulateKind kind, DType t)
{
	static const double floats[] = {0, 1, -INFINITY, INFINITY};
	int bits = dtype_info[t].bits;
	bool is_signed = dtype_info[t].class == CLASS_SIGNED;
	const char *name = is_signed ? "INT" : "UINT";

	if (dtype_is_float(t))
		c_print_literal(p, t, floats[kind], 0);
	else if (kind <= ACC_MUL || (kind == ACC_MAX && !is_signed))
		text_printf(p->out, "%d", kind == ACC_MUL);
	else
		text_printf(p->out, "%s%d_%s", name, bits, kind == ACC_MAX ? "MIN" : "MAX");
}

void
c_declare_accumulator(CPrinter *p, const Accumulator *a)
{
	c_indent(p);
	text_printf(p->out, "%s v%d = ", c_compute_names[a->type], a->scalar);
	c_print_identity(p, a->kind, a->type);
	text_add(p->out, ";\n");
	p->accumulated[a->scalar] = arena_printf(p->arena, "v%d", a->scalar);
}

/* Declares a variable such as "v2" for each accumulator of the loop. If the accumulator has
 * several partial sums, also declares the array v2_partials. The loop then adds its values to
 * element `now` of this array. */
void
c_start_accumulators(CPrinter *p, const LoopStatement *s, const char *now)
{
	for (int i = 0; i < s->n_accumulators; i++) {
		const Accumulator *a = &s->accumulators[i];
		c_declare_accumulator(p, a);
		if (a->number == 1)
			continue;
		p->accumulated[a->scalar] =
			a->level == ACC_ROW
				? arena_printf(p->arena, "v%d_partials[%s %% %d]", a->scalar, now,
		                               a->number)
				: arena_printf(p->arena, "v%d_partials[%s]", a->scalar, now);
		c_indent(p);
		text_printf(p->out, "%s v%d_partials[%d] __attribute__((aligned(64)));\n",
		            c_compute_names[a->type], a->scalar, a->number);
		c_indent(p);
		text_printf(p->out, "for (int l = 0; l < %d; l++)\n", a->number);
		c_indent(p);
		text_printf(p->out, "\tv%d_partials[l] = v%d;\n", a->scalar, a->scalar);
	}
}

/* Combines partial l + n/2 into partial l, and halves n, until one partial is left. */
void
c_finish_accumulators(CPrinter *p, const LoopStatement *s)
{
	for (int i = 0; i < s->n_accumulators; i++) {
		const Accumulator *a = &s->accumulators[i];
		if (a->number == 1)
			continue;
		c_indent(p);
		text_printf(p->out, "for (int n = %d; n > 0; n /= 2)\n", a->number / 2);
		c_indent(p);
		text_add(p->out, "\tfor (int l = 0; l < n; l++)\n");
		p->depth += 2;
		c_print_combine(p, a->kind, a->type,
		                arena_printf(p->arena, "v%d_partials[l]", a->scalar),
		                arena_printf(p->arena, "v%d_partials[l + n]", a->scalar));
		p->depth -= 2;
		c_indent(p);
		text_printf(p->out, "v%d = v%d_partials[0];\n", a->scalar, a->scalar);
	}
}

/* The number of iterations. */
static const char *
end_text(CPrinter *p, const LoopStatement *s)
{
	return s->place ? arena_printf(p->arena, "v%d_end", s->result)
	                : arena_printf(p->arena, "%lld", (long long)s->extent);
}

static void
print_end(CPrinter *p, const LoopStatement *s)
{
	if (!s->place)
		return;
	c_indent(p);
	text_printf(p->out, "const %s v%d_below = %s;\n",
	            p->dialect->narrow && c_affine_most(p, s->place) >= 0 ? "int" : "int64_t",
	            s->result, c_affine(p, s->place));
	c_indent(p);
	text_printf(p->out,
	            "const %s v%d_end = v%d_below < 0 ? 0 : v%d_below < %lld ? v%d_below : %lld;\n",
	            c_type_name(p, s->result), s->result, s->result, s->result,
	            (long long)s->extent, s->result, (long long)s->extent);
}

static bool
owns(const LoopStatement *s, LoopValue accumulator)
{
	for (int i = 0; i < s->n_accumulators; i++)
		if (s->accumulators[i].scalar == accumulator)
			return true;
	return false;
}

/* Must the lanes of this vector loop run one after the other? True if two lanes may store into
 * the same byte, if an accumulator adds in order, or if lanes add to an outer loop's accumulator. */
static bool
is_in_order(const CPrinter *p, const LoopStatement *loop, int at)
{
	for (int i = at + 1; i < loop->match; i++) {
		const LoopStatement *s = &p->k->body.at[i];
		if (s->kind == LOOP_STATEMENT_STORE &&
		    is_packed(p->k->buffers.at[s->buffer].type->dtype))
			return true;
		if (s->kind == LOOP_STATEMENT_ACCUMULATE &&
		    (!owns(loop, s->operands[1]) || loop->accumulators->number == 1))
			return true;
	}
	return false;
}

/* Prints a loop over blocks of n iterations, where n is the number of partials. Partial l adds
 * the values of iterations l, l + n, l + 2n, ... */
static void
print_lanes_loop(CPrinter *p, const LoopStatement *s, int at)
{
	int lanes = s->accumulators->number;
	const char *rest = s->place
	                           ? arena_printf(p->arena, "v%d_end %% %d", s->result, lanes)
	                           : arena_printf(p->arena, "%lld", (long long)(s->extent % lanes));
	const char *end = end_text(p, s);

	for (int part = 0; part < 2; part++) {
		if (!s->place && (part ? s->extent % lanes == 0 : s->extent < lanes))
			continue;
		c_indent(p);
		if (part)
			text_printf(p->out,
			            "for (int64_t block = %s - %s; block < %s; block += %d) {\n",
			            end, rest, end, lanes);
		else
			text_printf(p->out,
			            "for (int64_t block = 0; block < %s - %s; block += %d) {\n",
			            end, rest, lanes);
		if (!is_in_order(p, s, at))
			text_add(p->out, p->dialect->simd);
		p->depth++;
		c_indent(p);
		text_printf(p->out, "for (int lane = 0; lane < %s; lane++) {\n",
		            part ? rest : arena_printf(p->arena, "%d", lanes));
		p->depth++;
		c_indent(p);
		text_printf(p->out, "const int64_t v%d = block + lane;\n", s->result);
		c_print_block(p, at + 1, s->match);
		p->depth--;
		c_indent(p);
		text_add(p->out, "}\n");
		p->depth--;
		c_indent(p);
		text_add(p->out, "}\n");
	}
}

void
c_print_counted_loop(CPrinter *p, const LoopStatement *s, int at)
{
	if (s->mode == LOOP_VECTOR && !is_in_order(p, s, at))
		text_add(p->out, p->dialect->simd);
	if (s->mode == LOOP_UNROLL)
		text_printf(p->out, p->dialect->unroll, (long long)s->extent);
	c_indent(p);
	text_printf(p->out, "for (%s v%d = 0; v%d < %s; v%d++) {\n", c_type_name(p, s->result),
	            s->result, s->result, end_text(p, s), s->result);
	if (s->mode == LOOP_TEAM)
		p->open[p->n_open++] = s;
	p->depth++;
	c_print_block(p, at + 1, s->match);
	p->depth--;
	p->n_open -= s->mode == LOOP_TEAM;
	c_indent(p);
	text_add(p->out, "}\n");
}

/* Prints code that goes on to the next part: it advances the variables of the `depth` nested
 * parallel loops, of which statement `at` is the outermost. */
static void
print_counting(CPrinter *p, int at, int depth)
{
	const LoopStatement *s = &p->k->body.at[at];

	if (depth == 1)
		return;
	c_indent(p);
	text_printf(p->out, "v%d++;\n", s[depth - 1].result);
	for (int i = depth - 1; i > 0; i--) {
		c_indent(p);
		text_printf(p->out, "if (v%d == %lld) {\n", s[i].result, (long long)s[i].extent);
		c_indent(p);
		text_printf(p->out, "\tv%d = 0;\n", s[i].result);
		c_indent(p);
		text_printf(p->out, "\tv%d++;\n", s[i - 1].result);
		c_indent(p);
		text_add(p->out, "}\n");
	}
}

/* Prints nested parallel loops as one loop over the parts from `begin` to `end`. After each part,
 * the variables of the nest advance like digits: the innermost variable first. */
static void
print_parallel(CPrinter *p, const LoopStatement *s, int at)
{
	int depth = parallel_depth(p->k, at);

	if (depth == 1) {
		c_indent(p);
		text_printf(p->out, "for (int64_t v%d = begin; v%d < end; v%d++) {\n", s->result,
		            s->result, s->result);
	} else {
		int64_t inner = 1;
		for (int i = depth - 1; i >= 0; i--, inner *= s->extent ? s->extent : 1) {
			s = &p->k->body.at[at + i];
			c_indent(p);
			text_printf(p->out, "int64_t v%d = begin / %lld", s->result,
			            (long long)inner);
			text_printf(p->out, i ? " %% %lld;\n" : ";\n",
			            (long long)(s->extent ? s->extent : 1));
		}
		c_indent(p);
		text_add(p->out, "for (int64_t part = begin; part < end; part++) {\n");
	}
	p->depth++;
	c_print_block(p, at + depth, p->k->body.at[at + depth - 1].match);
	print_counting(p, at, depth);
	p->depth--;
	c_indent(p);
	text_add(p->out, "}\n");
}

void
c_print_for(CPrinter *p, const LoopStatement *s, int at)
{
	if (s->mode == LOOP_PARALLEL) {
		print_parallel(p, s, at);
		return;
	}
	bool lanes = s->n_accumulators && s->accumulators->level == ACC_LANES &&
	             s->accumulators->number > 1;
	print_end(p, s);
	c_start_accumulators(p, s, lanes ? "lane" : arena_printf(p->arena, "v%d", s->result));
	if (lanes)
		print_lanes_loop(p, s, at);
	else
		c_print_counted_loop(p, s, at);
	c_finish_accumulators(p, s);
}

void
c_print_accumulate(CPrinter *p, const LoopStatement *s, int at)
{
	static const AccumulateKind kinds[N_LOOP_OPS] = {[LOOP_add] = ACC_ADD,
	                                                 [LOOP_mul] = ACC_MUL,
	                                                 [LOOP_max] = ACC_MAX,
	                                                 [LOOP_min] = ACC_MIN};

	(void)at;
	c_print_combine(p, kinds[s->op], s->type, p->accumulated[s->operands[1]],
	                arena_printf(p->arena, "v%d", s->operands[0]));
}

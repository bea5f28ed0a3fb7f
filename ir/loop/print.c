/* Prints kernels (loop IR) as text, one statement per line, as in .gir files. Comments over the
 * functions show the text that each function prints. */
#include "ir/text.h"

const char *const buffer_kind_texts[] = {"in", "out", "inout", "local", "private", "tile", NULL};
const char *const loop_mode_texts[] = {"for", "parallel", "vector", "unroll", "team", NULL};
const char *const accumulate_texts[] = {"add", "mul", "max", "min", NULL};
const char *const accumulate_level_texts[] = {"", "lanes", "team", "row", NULL};

static void
print_affine(Text *out, const Affine *a)
{
	for (int i = 0; i < a->n; i++) {
		text_add(out, i ? " + " : "");
		if (a->terms[i].coefficient != 1)
			text_printf(out, "%lld*", (long long)a->terms[i].coefficient);
		text_printf(out, "v%d", a->terms[i].scalar);
	}
	if (a->constant || a->n == 0)
		text_printf(out, "%s%lld", a->n ? " + " : "", (long long)a->constant);
}

static void
print_place(Text *out, const Kernel *k, const LoopStatement *s)
{
	const LoopBuffer *b = &k->buffers.at[s->buffer];

	text_printf(out, " %s[", b->name);
	if (b->kind == BUFFER_TILE) /* by axes */
		for (int i = 0; i < s->place->n; i++)
			text_printf(out, i ? ", v%d" : "v%d", s->place->terms[i].scalar);
	else
		print_affine(out, s->place);
	text_add(out, "]");
}

/* NAME of a tile, or NAME[place : row, column] of a local array */
static void
print_window(Text *out, const Kernel *k, const LoopWindow *w)
{
	text_printf(out, ", %s", k->buffers.at[w->buffer].name);
	if (!w->place)
		return;
	text_add(out, "[");
	print_affine(out, w->place);
	text_printf(out, " : %lld, %lld]", (long long)w->row, (long long)w->column);
}

static void
print_copy(Text *out, const Kernel *k, const LoopStatement *s)
{
	text_add(out, "copy");
	print_place(out, k, s);
	text_printf(out, " = %s[", k->buffers.at[s->windows->buffer].name);
	print_affine(out, s->windows->place);
	text_printf(out, "] %lld", (long long)s->extent);
	if (s->n_operands)
		text_printf(out, " if v%d", s->operands[0]);
}

static void
print_operands(Text *out, const LoopStatement *s)
{
	for (int i = 0; i < s->n_operands; i++)
		text_printf(out, "%sv%d", i ? ", " : " ", s->operands[i]);
}

static void
print_accumulator(Text *out, const Kernel *k, const Accumulator *a, bool first)
{
	text_printf(out, "%sv%d: %s %s", first ? " (" : ", ", a->scalar, accumulate_texts[a->kind],
	            dtype_info[a->type].name);
	if (a->level)
		text_printf(out, " %s %d", accumulate_level_texts[a->level], a->number);
	if (a->level == ACC_ROW)
		text_printf(out, " to %s", k->buffers.at[a->tile].name);
}

static void
print_accumulators(Text *out, const Kernel *k, const LoopStatement *s)
{
	for (int i = 0; i < s->n_accumulators; i++)
		print_accumulator(out, k, &s->accumulators[i], i == 0);
	text_add(out, s->n_accumulators ? ") {" : " {");
}

static void
print_each(Text *out, const Kernel *k, const LoopStatement *s)
{
	text_printf(out, s->column < 0 ? "each v%d" : "each v%d, v%d", s->result, s->column);
	text_printf(out, " of %s", k->buffers.at[s->buffer].name);
	print_accumulators(out, k, s);
}

static void
print_for(Text *out, const Kernel *k, const LoopStatement *s)
{
	text_printf(out, s->place ? "%s v%d < min(%lld, " : "%s v%d < %lld",
	            loop_mode_texts[s->mode], s->result, (long long)s->extent);
	if (s->place) {
		print_affine(out, s->place);
		text_add(out, ")");
	}
	print_accumulators(out, k, s);
}

static void
print_array(Text *out, const LoopBuffer *b)
{
	text_printf(out, "%s %s : ", buffer_kind_texts[b->kind], b->name);
	type_print(out, b->type);
	if (b->pad)
		text_printf(out, " pad %lld", (long long)b->pad);
	if (b->swizzle)
		text_add(out, " swizzle");
}

static void
print_const(Text *out, const LoopStatement *s)
{
	text_add(out, "const ");
	if (s->type == F64)
		text_add_double(out, s->f);
	else if (dtype_is_float(s->type))
		text_add_float(out, (float)s->f);
	else
		text_printf(out, "%lld", (long long)s->i);
}

static void
print_cast(Text *out, const LoopStatement *s)
{
	text_add(out, "cast");
	print_operands(out, s);
	text_printf(out, " to %s", dtype_info[s->i].name);
	if (s->how.round)
		text_printf(out, " %s", rounding_names[s->how.round]);
	if (s->how.overflow)
		text_printf(out, " %s", overflow_names[s->how.overflow]);
}

/* v3 = ... : type */
static void
print_definition(Text *out, const Kernel *k, const LoopStatement *s)
{
	text_printf(out, "v%d = ", s->result);
	switch (s->kind) {
	case LOOP_STATEMENT_OP:
		text_add(out, loop_ops[s->op].name);
		print_operands(out, s);
		break;
	case LOOP_STATEMENT_CONST: print_const(out, s); break;
	case LOOP_STATEMENT_CAST: print_cast(out, s); break;
	case LOOP_STATEMENT_AFFINE:
		text_add(out, "affine ");
		print_affine(out, s->place);
		break;
	case LOOP_STATEMENT_SCALAR: text_printf(out, "scalar %s", scalar_names[s->buffer]); break;
	default:
		text_add(out, "load");
		print_place(out, k, s);
		if (s->n_operands)
			text_printf(out, " if v%d", s->operands[0]);
	}
	text_printf(out, " : %s", dtype_info[s->type].name);
}

static void
print_mma(Text *out, const Kernel *k, const LoopStatement *s)
{
	text_printf(out, "mma %s", k->buffers.at[s->buffer].name);
	print_window(out, k, &s->windows[0]);
	print_window(out, k, &s->windows[1]);
	text_printf(out, " k %lld%s", (long long)s->extent, s->tf32 ? " tf32" : "");
}

void
loop_print_statement(Text *out, const Kernel *k, const LoopStatement *s)
{
	switch (s->kind) {
	case LOOP_STATEMENT_STORE:
		text_add(out, "store");
		print_place(out, k, s);
		text_add(out, " =");
		print_operands(out, s);
		break;
	case LOOP_STATEMENT_LOCAL: print_array(out, &k->buffers.at[s->buffer]); break;
	case LOOP_STATEMENT_FOR: print_for(out, k, s); break;
	case LOOP_STATEMENT_ACCUMULATE:
		text_add(out, "accumulate");
		print_operands(out, s);
		break;
	case LOOP_STATEMENT_IF:
		text_add(out, "if");
		print_operands(out, s);
		text_add(out, " {");
		break;
	case LOOP_STATEMENT_BARRIER: text_add(out, "barrier"); break;
	case LOOP_STATEMENT_EACH: print_each(out, k, s); break;
	case LOOP_STATEMENT_MMA: print_mma(out, k, s); break;
	case LOOP_STATEMENT_COPY: print_copy(out, k, s); break;
	case LOOP_STATEMENT_COMMIT: text_add(out, "commit"); break;
	case LOOP_STATEMENT_WAIT: text_printf(out, "wait %lld", (long long)s->i); break;
	case LOOP_STATEMENT_END: text_add(out, "}"); break;
	default: print_definition(out, k, s);
	}
}

static void
print_header(Text *out, const Kernel *k, const PrintOptions *options)
{
	text_printf(out, "  kernel @%s(", k->name);
	for (int i = 0; i < k->n_inputs + k->n_outputs; i++) {
		const LoopBuffer *b = &k->buffers.at[i];
		text_printf(out, "%s%s: %s ", i ? ", " : "", b->name, buffer_kind_texts[b->kind]);
		type_print(out, b->type);
		if (b->part)
			text_add(out, " part");
		if (b->from)
			text_printf(out, " from %s", k->buffers.at[b->from - 1].name);
	}
	text_add(out, ")");
	for (int i = 0; i < k->n_team; i++)
		text_printf(out, i ? "x%d" : " team %d", k->team[i]);
	text_printf(out, " flops %lld", (long long)k->flops);
	if (k->sums)
		text_add(out, " sums");
	if (k->all_reduces)
		text_add(out, " all_reduces");
	if (k->moves)
		text_add(out, k->moves == MOVES_TO_HOST ? " to_host" : " to_device");
	if (k->serves)
		text_printf(out, " serves @%s", k->serves->name);
	if (k->library) {
		text_add(out, " library ");
		kernel_print_library(out, k);
	}
	loc_print(out, k->loc, options);
	text_add(out, " {\n");
}

void
kernel_print(Text *out, const Kernel *k, const PrintOptions *options)
{
	int depth = 2;

	print_header(out, k, options);
	for (int i = 0; i < k->body.n; i++) {
		const LoopStatement *s = &k->body.at[i];
		depth -= s->kind == LOOP_STATEMENT_END;
		for (int d = 0; d < depth; d++)
			text_add(out, "  ");
		loop_print_statement(out, k, s);
		text_add(out, "\n");
		depth += statement_opens(s);
	}
	text_add(out, "  }\n");
}

/* Prints kernels as plain C, for any C11 compiler with GNU builtins; dialects (CDialect) share
 * most of this code. There is one function per kernel and one line per statement. Variables are
 * named by number (v3, x0); names from a model appear in comments only. */
#include "codegen/c/print.h"

#include <ctype.h>
#include <string.h>

void
c_indent(CPrinter *p)
{
	for (int i = 0; i < p->depth; i++)
		text_add(p->out, "\t");
}

/* Prints a name inside a comment; characters that could end the comment or confuse a terminal become `?`. */
void
c_print_comment(Text *out, const char *name)
{
	for (int i = 0; name[i] && i < 200; i++) {
		bool plain = isalnum((unsigned char)name[i]) || strchr("_./:-", name[i]);
		text_add_bytes(out, plain ? &name[i] : "?", 1);
	}
}

static void
print_local(CPrinter *p, const LoopStatement *s, int at)
{
	const LoopBuffer *b = &p->k->buffers.at[s->buffer];
	int64_t n = b->type->n ? b->type->n : 1, bytes = dtype_bytes(b->type->dtype, n);
	Text members = {0};

	(void)at;
	p->declared[s->buffer] = p->n_open;
	for (int i = p->n_open; b->kind == BUFFER_PRIVATE && i < p->k->n_team; i++) {
		text_printf(&members, "[%d]", p->k->team[i]);
		bytes *= p->k->team[i];
	}
	c_indent(p);
	text_printf(p->out, "%s%s %s%s[%lld] __attribute__((aligned(64)));\n",
	            bytes > 1 << 18 ? "static _Thread_local " : "", c_storage_names[b->type->dtype],
	            c_name(p, s->buffer), members.n ? members.at : "", (long long)n);
	text_free(&members);
}

/* The name of an array; for a private array, with the indices of the current member's copy. */
static const char *
array_of(CPrinter *p, int buffer)
{
	const char *name = c_name(p, buffer);

	if (p->k->buffers.at[buffer].kind != BUFFER_PRIVATE)
		return name;
	for (int i = p->declared[buffer]; i < p->k->n_team; i++)
		name = arena_printf(p->arena, "%s[v%d]", name, p->open[i]->result);
	return name;
}

void
c_print_if(CPrinter *p, const LoopStatement *s, int at)
{
	c_indent(p);
	text_printf(p->out, "if (v%d) {\n", s->operands[0]);
	p->depth++;
	c_print_block(p, at + 1, s->match);
	p->depth--;
	c_indent(p);
	text_add(p->out, "}\n");
}

void
c_print_nothing(CPrinter *p, const LoopStatement *s, int at)
{
	(void)p, (void)s, (void)at;
}

/* Barriers and waits: on a CPU all earlier statements are complete already, so only a comment is
 * printed. */
static void
print_order(CPrinter *p, const LoopStatement *s, int at)
{
	(void)at;
	c_indent(p);
	text_add(p->out, "/* ");
	loop_print_statement(p->out, p->k, s);
	text_add(p->out, " */\n");
}

void
c_print_block(CPrinter *p, int from, int to)
{
	for (int at = from; at < to; at++) {
		const LoopStatement *s = &p->k->body.at[at];
		p->dialect->print[s->kind](p, s, at);
		if (statement_opens(s))
			at = s->match;
	}
}

/* ---- scalar functions: the functions that the file's kernels call, each printed before its
 * callers */
static void print_functions_of(CPrinter *p, const Kernel *k, const DType *types);

/* A new CPrinter.most: no scalar is known to fit in 32 bits. */
static int64_t *
wide_scalars(const CPrinter *p, const Kernel *k)
{
	int64_t *most = NEW_ARRAY(p->arena, int64_t, k->n_scalars);

	for (int i = 0; i < k->n_scalars; i++)
		most[i] = -1;
	return most;
}

static const OwnFunction *
own_function(const CDialect *dialect, const char *name)
{
	for (const OwnFunction *own = dialect->own; own && own->name; own++)
		if (strcmp(own->name, name) == 0)
			return own;
	return NULL;
}

static void
print_body(CPrinter *p, const ScalarFunction *f, DType *types)
{
	CPrinter inner = *p;

	text_printf(p->out, "\n%s %s\ngradc_%s(", p->dialect->function, c_compute_names[f->type],
	            f->name);
	for (int i = 0; i < f->n_params; i++)
		text_printf(p->out, "%s%s v%d", i ? ", " : "", c_compute_names[f->params[i]], i);
	text_add(p->out, ")\n{\n");
	inner.k = f->body;
	inner.types = types;
	inner.most = wide_scalars(p, f->body);
	inner.depth = 1;
	c_print_block(&inner, 0, f->body->body.n);
	text_printf(p->out, "\treturn v%d;\n}\n", f->result);
}

static void
print_function(CPrinter *p, const ScalarFunction *f)
{
	const OwnFunction *own = own_function(p->dialect, f->name);
	DType *types = NEW_ARRAY(p->arena, DType, f->body->n_scalars);

	if (strmap_get(p->printed, f->name) || (own && !own->when))
		return;
	strmap_put(p->printed, f->name, (void *)f);
	for (int i = 0; i < f->n_params; i++)
		types[i] = f->params[i];
	kernel_scalar_types(f->body, types);
	print_functions_of(p, f->body, types);
	if (own)
		text_printf(p->out, "\n#if !(%s)", own->when);
	print_body(p, f, types);
	if (own)
		text_add(p->out, "#endif\n");
}

static void
print_function_named(CPrinter *p, const char *name, DType type)
{
	const ScalarFunction *f = c_storage_function(p, name, type);

	if (f)
		print_function(p, f);
}

static void
print_functions_of(CPrinter *p, const Kernel *k, const DType *types)
{
	for (int i = 0; i < k->body.n; i++) {
		const LoopStatement *s = &k->body.at[i];
		const ScalarFunction *f = NULL;

		if (s->kind == LOOP_STATEMENT_OP || s->kind == LOOP_STATEMENT_CAST)
			f = scalar_function_of(p->functions, s, function_operand(s, types));
		if (f)
			print_function(p, f);
		for (int a = 0; a < s->n_accumulators; a++)
			print_function_named(p,
			                     loop_ops[accumulate_op(s->accumulators[a].kind)].name,
			                     s->accumulators[a].type);
	}
	for (int i = 0; i < k->buffers.n; i++) {
		print_function_named(p, "load", k->buffers.at[i].type->dtype);
		print_function_named(p, "store", k->buffers.at[i].type->dtype);
	}
}

/* Records the range of loop variables, from the loops' extents. */
static void
find_narrow_variables(CPrinter *p)
{
	for (int i = 0; i < p->k->body.n; i++) {
		const LoopStatement *s = &p->k->body.at[i];
		if (s->kind == LOOP_STATEMENT_FOR)
			c_set_most(p, s->result, s->extent > 0 ? s->extent - 1 : 0);
		if (s->kind != LOOP_STATEMENT_EACH)
			continue;
		Type t = p->k->buffers.at[s->buffer].type;
		c_set_most(p, s->result, t->dims[0]);
		if (s->column >= 0)
			c_set_most(p, s->column, t->dims[1]);
	}
}

static void
print_kernel(CPrinter *p, const Kernel *k, const char *suffix)
{
	p->k = k;
	p->depth = 1;
	p->n_open = 0;
	p->each = NULL;
	p->types = NEW_ARRAY(p->arena, DType, k->n_scalars);
	kernel_scalar_types(k, p->types);
	p->most = wide_scalars(p, k);
	find_narrow_variables(p);
	p->accumulated = NEW_ARRAY(p->arena, const char *, k->n_scalars);
	p->declared = NEW_ARRAY(p->arena, int, k->buffers.n);
	p->packs = NEW_ARRAY(p->arena, const char *, k->body.n);
	print_functions_of(p, k, p->types);
	text_add(p->out, "\n/* ");
	c_print_comment(p->out, loc_origin(k->loc));
	text_add(p->out, " */\n");
	p->dialect->open(p, suffix);
	c_print_block(p, 0, k->body.n);
	p->dialect->close(p);
}

static void
open_kernel(CPrinter *p, const char *suffix)
{
	const Kernel *k = p->k;

	text_printf(
		p->out,
		"__attribute__((visibility(\"hidden\"))) void\ngradc_%s%s(void *const *buffers, "
		"const Scalar *scalars, int64_t begin, int64_t end)\n{\n",
		k->name, suffix);
	for (int i = 0; i < k->n_inputs + k->n_outputs; i++)
		text_printf(p->out, "\t%s%s *%s = buffers[%d];\n", i < k->n_inputs ? "const " : "",
		            c_storage_names[k->buffers.at[i].type->dtype], c_name(p, i), i);
	text_add(p->out, "\t(void)scalars, (void)begin, (void)end;\n");
}

static void
close_kernel(CPrinter *p)
{
	text_add(p->out, "}\n");
}

static const char prelude[] =
	"#include <stdint.h>\n"
	"typedef union { double f; uint64_t u; } Scalar;\n"
	"#define GRADC_BITS(FROM, TO, NAME) \\\n"
	"static inline __attribute__((always_inline)) TO \\\n"
	"NAME(FROM x) { TO y; __builtin_memcpy(&y, &x, sizeof(y)); return y; }\n"
	"GRADC_BITS(double, uint64_t, gradc_f64_bits_u64)\n"
	"GRADC_BITS(uint64_t, double, gradc_u64_bits_f64)\n"
	"GRADC_BITS(uint64_t, int64_t, gradc_u64_bits_s64)\n"
	"GRADC_BITS(int64_t, uint64_t, gradc_s64_bits_u64)\n"
	"GRADC_BITS(float, uint32_t, gradc_f32_bits_u32)\n"
	"GRADC_BITS(uint32_t, float, gradc_u32_bits_f32)\n"
	"GRADC_BITS(uint32_t, int32_t, gradc_u32_bits_s32)\n"
	"GRADC_BITS(int32_t, uint32_t, gradc_s32_bits_u32)\n"
	"GRADC_BITS(double, int64_t, gradc_f64_bits_s64)\n"
	"GRADC_BITS(int64_t, double, gradc_s64_bits_f64)\n"
	"GRADC_BITS(float, int32_t, gradc_f32_bits_s32)\n"
	"GRADC_BITS(int32_t, float, gradc_s32_bits_f32)\n"
	"static inline __attribute__((always_inline)) uint32_t\n"
	"gradc_packed_load(const uint8_t *at, int64_t i, int bits)\n"
	"{ return at[i / (8 / bits)] >> i % (8 / bits) * bits & ((1u << bits) - 1); }\n"
	"static inline __attribute__((always_inline)) void\n"
	"gradc_packed_store(uint8_t *at, int64_t i, int bits, uint32_t x)\n"
	"{ const int shift = (int)(i % (8 / bits)) * bits;\n"
	"  const uint32_t mask = (1u << bits) - 1; at += i / (8 / bits);\n"
	"  *at = (uint8_t)((*at & ~(mask << shift)) | (x & mask) << shift); }\n";

const CDialect c_dialect = {
	.prelude = prelude,
	.function = "static inline __attribute__((always_inline))",
	.math = "__builtin_",
	.nan64 = "__builtin_nan(\"\")",
	.nan32 = "__builtin_nanf(\"\")",
	.infinity64 = "__builtin_inf()",
	.infinity32 = "__builtin_inff()",
	.simd = "#pragma omp simd\n",
	.unroll = "#pragma GCC unroll %lld\n", /* known to Clang as well */
	.open = open_kernel,
	.close = close_kernel,
	.array = array_of,
	.print = {[LOOP_STATEMENT_OP] = c_print_definition,
                  [LOOP_STATEMENT_CONST] = c_print_definition,
                  [LOOP_STATEMENT_CAST] = c_print_definition,
                  [LOOP_STATEMENT_AFFINE] = c_print_definition,
                  [LOOP_STATEMENT_SCALAR] = c_print_definition,
                  [LOOP_STATEMENT_LOAD] = c_print_definition,
                  [LOOP_STATEMENT_STORE] = c_print_store,
                  [LOOP_STATEMENT_LOCAL] = print_local,
                  [LOOP_STATEMENT_FOR] = c_print_for,
                  [LOOP_STATEMENT_ACCUMULATE] = c_print_accumulate,
                  [LOOP_STATEMENT_IF] = c_print_if,
                  [LOOP_STATEMENT_BARRIER] = print_order,
                  [LOOP_STATEMENT_EACH] = c_print_each,
                  [LOOP_STATEMENT_MMA] = c_print_mma,
                  [LOOP_STATEMENT_COPY] = c_print_copy,
                  [LOOP_STATEMENT_COMMIT] = print_order,
                  [LOOP_STATEMENT_WAIT] = print_order,
                  [LOOP_STATEMENT_END] = c_print_nothing},
};

void
c_print_file(Text *out, const CDialect *dialect, const Target *target, const KernelPart *part,
             const char *suffix)
{
	CPrinter p = {.dialect = dialect, .target = target, .out = out, .arena = arena_new()};

	p.functions = scalar_functions_new(p.arena);
	p.printed = strmap_new(p.arena);
	text_add(out, "/* Kernels, written by gradc. */\n");
	text_add(out, dialect->prelude);
	for (int i = 0; i < part->n; i++)
		print_kernel(&p, part->at[i], suffix);
	arena_free(p.arena);
}

void
c_print_part(Text *out, const KernelPart *part, const char *suffix)
{
	c_print_file(out, &c_dialect, NULL, part, suffix);
}

void
c_print_table_types(Text *out)
{
	text_add(out, "#include <stdint.h>\n"
	              "typedef void Kernel(void *const *, const double *, int64_t, int64_t);\n"
	              "typedef struct { Kernel *run; uint64_t facts; } KernelCode;\n");
}

void
c_print_table(Text *out, Kernel *const *kernels, int n, const char *suffix)
{
	Arena *arena = arena_new();

	text_add(out,
	         "/* The kernels by number, each with a hash of its record in the tables. */\n");
	for (int i = 0; i < n; i++)
		if (kernels[i])
			text_printf(out,
			            "Kernel gradc_%s%s __attribute__((visibility(\"hidden\")));\n",
			            kernels[i]->name, suffix);
	text_printf(out, "static const KernelCode gradc_kernels%s[] = {\n", suffix);
	for (int i = 0; i < n; i++)
		if (kernels[i])
			text_printf(out, "\t{gradc_%s%s, UINT64_C(%llu)},\n", kernels[i]->name,
			            suffix,
			            (unsigned long long)kernel_code_facts(arena, kernels[i]));
		else
			text_add(out, "\t{0, 0},\n");
	text_add(out, "\t{0, 0},\n};\n");
	arena_free(arena);
}

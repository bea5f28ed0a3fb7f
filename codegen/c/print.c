/* Kernels as plain C: readable, for any C11 compiler with GNU builtins. One function per kernel, one
 * line per statement; identifiers are numbers, and names from a model stand in comments only. */
#include "codegen/codegen.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

typedef struct {
	Text *out;
	Arena *arena;
	ScalarFunctions *functions;
	StrMap *printed; /* scalar functions that stand in this file, by name */
	const Kernel *k;
	DType *types; /* by scalar */
	int depth;
	const LoopStatement *vector_loop; /* with accumulators, being printed; NULL: none */
} CPrinter;

static const char *const compute_names[N_DTYPES] = {
	[F64] = "double",   [F32] = "float",    [S64] = "int64_t", [S32] = "int32_t",
	[U64] = "uint64_t", [U32] = "uint32_t", [BOOL] = "_Bool"};
/* What memory holds: an element, of formats that C lacks its bits, or a byte of several. */
static const char *const storage_names[N_DTYPES] = {
	[F64] = "double",         [F32] = "float",          [F16] = "uint16_t",
	[BF16] = "uint16_t",      [F8E4M3] = "uint8_t",     [F8E5M2] = "uint8_t",
	[F8E4M3FNUZ] = "uint8_t", [F8E5M2FNUZ] = "uint8_t", [F4E2M1] = "uint8_t",
	[E8M0] = "uint8_t",       [S64] = "int64_t",        [S32] = "int32_t",
	[S16] = "int16_t",        [S8] = "int8_t",          [S4] = "uint8_t",
	[S2] = "uint8_t",         [U64] = "uint64_t",       [U32] = "uint32_t",
	[U16] = "uint16_t",       [U8] = "uint8_t",         [U4] = "uint8_t",
	[U2] = "uint8_t",         [BOOL] = "uint8_t"};

static void
indent(CPrinter *p)
{
	for (int i = 0; i < p->depth; i++)
		text_add(p->out, "\t");
}

/* A name inside a comment: what could end it or confuse a terminal becomes `?`. */
static void
print_comment(Text *out, const char *name)
{
	for (int i = 0; name[i] && i < 200; i++) {
		bool plain = isalnum((unsigned char)name[i]) || strchr("_./:-", name[i]);
		text_add_bytes(out, plain ? &name[i] : "?", 1);
	}
}

static void
print_literal(Text *out, DType t, double f, int64_t i)
{
	if (!dtype_is_float(t)) {
		if (i == INT64_MIN)
			text_add(out, "INT64_MIN");
		else
			text_printf(out, t == S64 ? "INT64_C(%lld)" : "%lld", (long long)i);
	} else if (isnan(f)) {
		text_add(out, t == F64 ? "__builtin_nan(\"\")" : "__builtin_nanf(\"\")");
	} else if (isinf(f)) {
		text_add(out, f < 0 ? "-" : "");
		text_add(out, t == F64 ? "__builtin_inf()" : "__builtin_inff()");
	} else if (t == F64) {
		text_add_double(out, f);
	} else {
		text_add_float(out, (float)f);
		text_add(out, "f");
	}
}

static void
print_affine(Text *out, const Affine *a)
{
	for (int i = 0; i < a->n; i++) {
		int64_t c = a->terms[i].coefficient;
		text_add(out, i ? " + " : "");
		if (c == 1)
			text_printf(out, "v%d", a->terms[i].scalar);
		else
			text_printf(out, "v%d * INT64_C(%lld)", a->terms[i].scalar, (long long)c);
	}
	if (a->constant || a->n == 0)
		text_printf(out, "%s%lld", a->n ? " + " : "", (long long)a->constant);
}

static void
print_place(CPrinter *p, const LoopStatement *s)
{
	text_printf(p->out, "%s[", p->k->buffers.at[s->buffer].name);
	print_affine(p->out, s->place);
	text_add(p->out, "]");
}

/* ---- expressions */
static void
print_call(CPrinter *p, const ScalarFunction *f, const LoopValue *x)
{
	text_printf(p->out, "gradc_%s(", f->name);
	for (int i = 0; i < f->n_params; i++)
		text_printf(p->out, "%sv%d", i ? ", " : "", x[i]);
	text_add(p->out, ")");
}

static void
print_op(CPrinter *p, const LoopStatement *s)
{
	const char *c = loop_ops[s->op].c;
	const LoopValue *x = s->operands;
	DType t = p->types[x[s->n_operands - 1]];
	const ScalarFunction *f = scalar_function_of(p->functions, s, t);

	if (f)
		print_call(p, f, x);
	else if (s->op == LOOP_select)
		text_printf(p->out, "v%d ? v%d : v%d", x[0], x[1], x[2]);
	else if (s->op == LOOP_truncate)
		text_printf(p->out, "(%s)v%d", compute_names[s->type], x[0]);
	else if (s->op == LOOP_bits)
		text_printf(p->out, "gradc_%s_bits_%s(v%d)", dtype_info[t].name,
		            dtype_info[s->type].name, x[0]);
	else if (isalpha((unsigned char)*c)) {
		text_printf(p->out, "__builtin_%s%s(", c, t == F32 ? "f" : "");
		for (int i = 0; i < s->n_operands; i++)
			text_printf(p->out, "%sv%d", i ? ", " : "", x[i]);
		text_add(p->out, ")");
	} else if (s->n_operands == 1)
		text_printf(p->out, "%sv%d", c, x[0]);
	else
		text_printf(p->out, "v%d %s v%d", x[0], c, x[1]);
}

static void
print_cast(CPrinter *p, const LoopStatement *s)
{
	LoopValue x = s->operands[0];
	DType storage = (DType)s->i, to = s->type;
	const ScalarFunction *f = scalar_function_of(p->functions, s, p->types[x]);

	if (f)
		print_call(p, f, s->operands);
	else if (storage == BOOL)
		text_printf(p->out, "v%d != 0", x);
	else if (dtype_is_float(to))
		text_printf(p->out, "(%s)v%d", compute_names[to], x);
	else
		text_printf(p->out, "(%s)(%s)v%d", compute_names[to], storage_names[storage], x);
}

static bool
is_packed(DType d)
{
	return dtype_info[d].bits < 8;
}

/* "load_s4": how memory's bits become a number, and back; NULL: as C converts them. */
static const ScalarFunction *
storage_function(CPrinter *p, const char *name, DType storage)
{
	char full[32];

	snprintf(full, sizeof(full), "%s_%s", name, dtype_info[storage].name);
	return scalar_function(p->functions, full);
}

/* Of several elements in a byte the bits of one. */
static void
print_packed(CPrinter *p, const char *access, const LoopStatement *s)
{
	const LoopBuffer *b = &p->k->buffers.at[s->buffer];

	text_printf(p->out, "gradc_packed_%s(%s, ", access, b->name);
	print_affine(p->out, s->place);
	text_printf(p->out, ", %d", dtype_info[b->type->dtype].bits);
}

static void
print_load(CPrinter *p, const LoopStatement *s)
{
	DType d = p->k->buffers.at[s->buffer].type->dtype;
	const ScalarFunction *f = storage_function(p, "load", d);

	if (f)
		text_printf(p->out, "gradc_%s(", f->name);
	if (is_packed(d)) {
		print_packed(p, "load", s);
		text_add(p->out, ")");
	} else {
		print_place(p, s);
	}
	text_add(p->out, f ? ")" : d == BOOL ? " != 0" : "");
}

static void
print_store(CPrinter *p, const LoopStatement *s)
{
	DType d = p->k->buffers.at[s->buffer].type->dtype;
	const ScalarFunction *f = storage_function(p, "store", d);

	if (is_packed(d)) {
		print_packed(p, "store", s);
		text_printf(p->out, f ? ", gradc_%s(v%d)" : ", %s(uint32_t)v%d", f ? f->name : "",
		            s->operands[0]);
		text_add(p->out, ");\n");
		return;
	}
	print_place(p, s);
	text_printf(p->out, f ? " = (%s)gradc_%s(v%d);\n" : " = (%s)%sv%d;\n", storage_names[d],
	            f ? f->name : "", s->operands[0]);
}

/* Lanes that store into one byte run one after the other. */
static bool
stores_packed(const CPrinter *p, int from, int to)
{
	for (int i = from; i < to; i++) {
		const LoopStatement *s = &p->k->body.at[i];
		if (s->kind == LOOP_STATEMENT_STORE &&
		    is_packed(p->k->buffers.at[s->buffer].type->dtype))
			return true;
	}
	return false;
}

/* ---- accumulators */
static void
print_combine(CPrinter *p, AccumulateKind kind, DType t, const char *to, const char *with)
{
	indent(p);
	if (kind <= ACC_MUL)
		text_printf(p->out, "%s = %s %s %s;\n", to, to, kind == ACC_ADD ? "+" : "*", with);
	else
		text_printf(p->out, "%s = gradc_%s_%s(%s, %s);\n", to,
		            kind == ACC_MAX ? "max" : "min", dtype_info[t].name, to, with);
}

static void
print_identity(Text *out, AccumulateKind kind, DType t)
{
	static const double floats[] = {0, 1, -INFINITY, INFINITY};
	int bits = dtype_info[t].bits;
	bool is_signed = dtype_info[t].class == CLASS_SIGNED;
	const char *name = is_signed ? "INT" : "UINT";

	if (dtype_is_float(t))
		print_literal(out, t, floats[kind], 0);
	else if (kind <= ACC_MUL || (kind == ACC_MAX && !is_signed))
		text_printf(out, "%d", kind == ACC_MUL);
	else
		text_printf(out, "%s%d_%s", name, bits, kind == ACC_MAX ? "MIN" : "MAX");
}

static void print_block(CPrinter *p, int from, int to);

static void
print_accumulator_starts(CPrinter *p, const LoopStatement *s, bool lanes)
{
	for (int i = 0; i < s->n_accumulators; i++) {
		const Accumulator *a = &s->accumulators[i];
		indent(p);
		text_printf(p->out, "%s v%d = ", compute_names[a->type], a->scalar);
		print_identity(p->out, a->kind, a->type);
		text_add(p->out, ";\n");
		if (!lanes)
			continue;
		indent(p);
		text_printf(p->out, "%s v%d_lanes[%d] __attribute__((aligned(64)));\n",
		            compute_names[a->type], a->scalar, LOOP_LANES);
		indent(p);
		text_printf(p->out, "for (int lane = 0; lane < %d; lane++)\n", LOOP_LANES);
		indent(p);
		text_printf(p->out, "\tv%d_lanes[lane] = v%d;\n", a->scalar, a->scalar);
	}
}

/* How many iterations a loop has. */
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
	indent(p);
	text_printf(p->out, "const int64_t v%d_below = ", s->result);
	print_affine(p->out, s->place);
	text_add(p->out, ";\n");
	indent(p);
	text_printf(
		p->out,
		"const int64_t v%d_end = v%d_below < 0 ? 0 : v%d_below < %lld ? v%d_below : %lld;\n",
		s->result, s->result, s->result, (long long)s->extent, s->result,
		(long long)s->extent);
}

/* Lane l takes iterations l, l + LOOP_LANES, ...; then l + n/2 is added to l until one is left. */
static void
print_lanes_loop(CPrinter *p, const LoopStatement *s, int at)
{
	const char *rest = s->place ? arena_printf(p->arena, "v%d_end %% %d", s->result, LOOP_LANES)
	                            : arena_printf(p->arena, "%lld",
	                                           (long long)(s->extent % LOOP_LANES));
	const char *end = end_text(p, s);

	p->vector_loop = s;
	for (int part = 0; part < 2; part++) {
		if (!s->place && (part ? s->extent % LOOP_LANES == 0 : s->extent < LOOP_LANES))
			continue;
		indent(p);
		if (part)
			text_printf(p->out,
			            "for (int64_t block = %s - %s; block < %s; block += %d) {\n",
			            end, rest, end, LOOP_LANES);
		else
			text_printf(p->out,
			            "for (int64_t block = 0; block < %s - %s; block += %d) {\n",
			            end, rest, LOOP_LANES);
		if (!stores_packed(p, at, s->match))
			text_add(p->out, "#pragma omp simd\n");
		p->depth++;
		indent(p);
		if (part)
			text_printf(p->out, "for (int lane = 0; lane < %s; lane++) {\n", rest);
		else
			text_printf(p->out, "for (int lane = 0; lane < %d; lane++) {\n",
			            LOOP_LANES);
		p->depth++;
		indent(p);
		text_printf(p->out, "const int64_t v%d = block + lane;\n", s->result);
		print_block(p, at + 1, s->match);
		p->depth--;
		indent(p);
		text_add(p->out, "}\n");
		p->depth--;
		indent(p);
		text_add(p->out, "}\n");
	}
	p->vector_loop = NULL;
}

static void
print_lane_tree(CPrinter *p, const LoopStatement *s)
{
	char to[64], with[64];

	for (int i = 0; i < s->n_accumulators; i++) {
		const Accumulator *a = &s->accumulators[i];
		indent(p);
		text_printf(p->out, "for (int n = %d; n > 0; n /= 2)\n", LOOP_LANES / 2);
		indent(p);
		text_add(p->out, "\tfor (int lane = 0; lane < n; lane++)\n");
		snprintf(to, sizeof(to), "v%d_lanes[lane]", a->scalar);
		snprintf(with, sizeof(with), "v%d_lanes[lane + n]", a->scalar);
		p->depth += 2;
		print_combine(p, a->kind, a->type, to, with);
		p->depth -= 2;
		indent(p);
		text_printf(p->out, "v%d = v%d_lanes[0];\n", a->scalar, a->scalar);
	}
}

static void print_parallel(CPrinter *p, const LoopStatement *s, int at);

static void
print_for(CPrinter *p, const LoopStatement *s, int at)
{
	bool lanes = s->mode == LOOP_VECTOR && s->n_accumulators;

	if (s->mode == LOOP_PARALLEL) {
		print_parallel(p, s, at);
		return;
	}
	print_end(p, s);
	print_accumulator_starts(p, s, lanes);
	if (lanes) {
		print_lanes_loop(p, s, at);
		print_lane_tree(p, s);
		return;
	}
	if (s->mode == LOOP_VECTOR && !stores_packed(p, at, s->match))
		text_add(p->out, "#pragma omp simd\n");
	indent(p);
	text_printf(p->out, "for (int64_t v%d = 0; v%d < %s; v%d++) {\n", s->result, s->result,
	            end_text(p, s), s->result);
	p->depth++;
	print_block(p, at + 1, s->match);
	p->depth--;
	indent(p);
	text_add(p->out, "}\n");
}

/* The variables of parallel loops go on to the next part. */
static void
print_counting(CPrinter *p, int at, int depth)
{
	const LoopStatement *s = &p->k->body.at[at];

	if (depth == 1)
		return;
	indent(p);
	text_printf(p->out, "v%d++;\n", s[depth - 1].result);
	for (int i = depth - 1; i > 0; i--) {
		indent(p);
		text_printf(p->out, "if (v%d == %lld) {\n", s[i].result, (long long)s[i].extent);
		indent(p);
		text_printf(p->out, "\tv%d = 0;\n", s[i].result);
		indent(p);
		text_printf(p->out, "\tv%d++;\n", s[i - 1].result);
		indent(p);
		text_add(p->out, "}\n");
	}
}

/* One loop over the parts of the range; behind each the variables count on, the last one first. */
static void
print_parallel(CPrinter *p, const LoopStatement *s, int at)
{
	int depth = parallel_depth(p->k, at);

	if (depth == 1) {
		indent(p);
		text_printf(p->out, "for (int64_t v%d = begin; v%d < end; v%d++) {\n", s->result,
		            s->result, s->result);
	} else {
		int64_t inner = 1;
		for (int i = depth - 1; i >= 0; i--, inner *= s->extent ? s->extent : 1) {
			s = &p->k->body.at[at + i];
			indent(p);
			text_printf(p->out, "int64_t v%d = begin / %lld", s->result,
			            (long long)inner);
			text_printf(p->out, i ? " %% %lld;\n" : ";\n",
			            (long long)(s->extent ? s->extent : 1));
		}
		indent(p);
		text_add(p->out, "for (int64_t part = begin; part < end; part++) {\n");
	}
	p->depth++;
	print_block(p, at + depth, p->k->body.at[at + depth - 1].match);
	print_counting(p, at, depth);
	p->depth--;
	indent(p);
	text_add(p->out, "}\n");
}

static void
print_accumulate(CPrinter *p, const LoopStatement *s)
{
	static const AccumulateKind kinds[N_LOOP_OPS] = {[LOOP_add] = ACC_ADD,
	                                                 [LOOP_mul] = ACC_MUL,
	                                                 [LOOP_max] = ACC_MAX,
	                                                 [LOOP_min] = ACC_MIN};
	char to[64], with[64];
	bool lanes = false;

	for (int i = 0; p->vector_loop && i < p->vector_loop->n_accumulators; i++)
		lanes |= p->vector_loop->accumulators[i].scalar == s->operands[1];
	snprintf(to, sizeof(to), lanes ? "v%d_lanes[lane]" : "v%d", s->operands[1]);
	snprintf(with, sizeof(with), "v%d", s->operands[0]);
	print_combine(p, kinds[s->op], s->type, to, with);
}

static void
print_local(CPrinter *p, const LoopStatement *s)
{
	const LoopBuffer *b = &p->k->buffers.at[s->buffer];
	bool large = type_bytes(b->type) > 1 << 18;

	indent(p);
	text_printf(p->out, "%s%s %s[%lld] __attribute__((aligned(64)));\n",
	            large ? "static _Thread_local " : "", storage_names[b->type->dtype], b->name,
	            (long long)(b->type->n ? b->type->n : 1));
}

static void
print_definition(CPrinter *p, const LoopStatement *s)
{
	indent(p);
	text_printf(p->out, "const %s v%d = ", compute_names[s->type], s->result);
	switch (s->kind) {
	case LOOP_STATEMENT_OP: print_op(p, s); break;
	case LOOP_STATEMENT_CONST: print_literal(p->out, s->type, s->f, s->i); break;
	case LOOP_STATEMENT_CAST: print_cast(p, s); break;
	case LOOP_STATEMENT_AFFINE: print_affine(p->out, s->place); break;
	case LOOP_STATEMENT_SCALAR:
		text_printf(p->out, "scalars[%d].%s", s->buffer, s->type == F64 ? "f" : "u");
		break;
	default: print_load(p, s);
	}
	text_add(p->out, ";\n");
}

static void
print_block(CPrinter *p, int from, int to)
{
	for (int at = from; at < to; at++) {
		const LoopStatement *s = &p->k->body.at[at];
		switch (s->kind) {
		case LOOP_STATEMENT_STORE:
			indent(p);
			print_store(p, s);
			break;
		case LOOP_STATEMENT_LOCAL: print_local(p, s); break;
		case LOOP_STATEMENT_FOR:
			print_for(p, s, at);
			at = s->match;
			break;
		case LOOP_STATEMENT_ACCUMULATE: print_accumulate(p, s); break;
		case LOOP_STATEMENT_IF:
			indent(p);
			text_printf(p->out, "if (v%d) {\n", s->operands[0]);
			p->depth++;
			print_block(p, at + 1, s->match);
			p->depth--;
			indent(p);
			text_add(p->out, "}\n");
			at = s->match;
			break;
		case LOOP_STATEMENT_END: break;
		default: print_definition(p, s);
		}
	}
}

/* ---- scalar functions: those that the kernels of the file call, before whoever calls them */
static void print_functions_of(CPrinter *p, const Kernel *k, const DType *types);

static void
print_function(CPrinter *p, const ScalarFunction *f)
{
	const Kernel *k = f->body;
	DType *types = NEW_ARRAY(p->arena, DType, k->n_scalars);
	CPrinter inner = *p;

	if (strmap_get(p->printed, f->name))
		return;
	strmap_put(p->printed, f->name, (void *)f);
	for (int i = 0; i < f->n_params; i++)
		types[i] = f->params[i];
	kernel_scalar_types(k, types);
	print_functions_of(p, k, types);
	text_printf(p->out, "\nstatic inline __attribute__((always_inline)) %s\ngradc_%s(",
	            compute_names[f->type], f->name);
	for (int i = 0; i < f->n_params; i++)
		text_printf(p->out, "%s%s v%d", i ? ", " : "", compute_names[f->params[i]], i);
	text_add(p->out, ")\n{\n");
	inner.k = k;
	inner.types = types;
	inner.depth = 1;
	print_block(&inner, 0, k->body.n);
	text_printf(p->out, "\treturn v%d;\n}\n", f->result);
}

static void
print_function_named(CPrinter *p, const char *name, DType type)
{
	const ScalarFunction *f = storage_function(p, name, type);

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
		if (s->kind == LOOP_STATEMENT_FOR)
			for (int a = 0; a < s->n_accumulators; a++)
				print_function_named(
					p, loop_ops[accumulate_op(s->accumulators[a].kind)].name,
					s->accumulators[a].type);
	}
	for (int i = 0; i < k->buffers.n; i++) {
		print_function_named(p, "load", k->buffers.at[i].type->dtype);
		print_function_named(p, "store", k->buffers.at[i].type->dtype);
	}
}

static void
c_print_kernel(CPrinter *p, const Kernel *k, const char *suffix)
{
	p->k = k;
	p->depth = 1;
	p->types = NEW_ARRAY(p->arena, DType, k->n_scalars);
	kernel_scalar_types(k, p->types);
	print_functions_of(p, k, p->types);
	text_add(p->out, "\n/* ");
	print_comment(p->out, loc_origin(k->loc));
	text_printf(
		p->out,
		" */\n__attribute__((visibility(\"hidden\"))) void\ngradc_%s%s(void *const *buffers, "
		"const Scalar *scalars, int64_t begin, int64_t end)\n{\n",
		k->name, suffix);
	for (int i = 0; i < k->n_inputs + k->n_outputs; i++)
		text_printf(p->out, "\t%s%s *%s = buffers[%d];\n", i < k->n_inputs ? "const " : "",
		            storage_names[k->buffers.at[i].type->dtype], k->buffers.at[i].name, i);
	text_add(p->out, "\t(void)scalars, (void)begin, (void)end;\n");
	print_block(p, 0, k->body.n);
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

void
c_print_part(Text *out, const KernelPart *part, const char *suffix)
{
	CPrinter p = {.out = out, .arena = arena_new()};

	p.functions = scalar_functions_new(p.arena);
	p.printed = strmap_new(p.arena);
	text_add(out, "/* Kernels, written by gradc. */\n");
	text_add(out, prelude);
	for (int i = 0; i < part->n; i++)
		c_print_kernel(&p, part->at[i], suffix);
	arena_free(p.arena);
}

void
c_print_table(Text *out, const Module *m, const char *suffix)
{
	text_add(out, "/* The kernels by number. */\n#include <stdint.h>\n");
	text_add(out,
	         "typedef void KernelCode(void *const *, const double *, int64_t, int64_t);\n");
	for (int i = 0; i < m->kernels.n; i++)
		text_printf(out, "KernelCode gradc_%s%s __attribute__((visibility(\"hidden\")));\n",
		            m->kernels.at[i]->name, suffix);
	text_printf(out, "static KernelCode *const gradc_kernels%s[] = {\n", suffix);
	for (int i = 0; i < m->kernels.n; i++)
		text_printf(out, "\tgradc_%s%s,\n", m->kernels.at[i]->name, suffix);
	text_add(out, "\t0,\n};\n");
}

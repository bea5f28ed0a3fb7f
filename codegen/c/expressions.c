/* Scalars, loads and stores as C expressions. */
#include "codegen/c/c_impl.h"

#include <ctype.h>
#include <math.h>

const char *const c_compute_names[N_DTYPES] = {
	[F64] = "double",   [F32] = "float",    [S64] = "int64_t", [S32] = "int32_t",
	[U64] = "uint64_t", [U32] = "uint32_t", [BOOL] = "_Bool"};
/* What memory holds: an element, of formats that C lacks its bits, or a byte of several. */
const char *const c_storage_names[N_DTYPES] = {
	[F64] = "double",         [F32] = "float",          [F16] = "uint16_t",
	[BF16] = "uint16_t",      [F8E4M3] = "uint8_t",     [F8E5M2] = "uint8_t",
	[F8E4M3FNUZ] = "uint8_t", [F8E5M2FNUZ] = "uint8_t", [F4E2M1] = "uint8_t",
	[E8M0] = "uint8_t",       [S64] = "int64_t",        [S32] = "int32_t",
	[S16] = "int16_t",        [S8] = "int8_t",          [S4] = "uint8_t",
	[S2] = "uint8_t",         [U64] = "uint64_t",       [U32] = "uint32_t",
	[U16] = "uint16_t",       [U8] = "uint8_t",         [U4] = "uint8_t",
	[U2] = "uint8_t",         [BOOL] = "uint8_t"};

void
c_print_literal(Text *out, DType t, double f, int64_t i)
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

const char *
c_affine(CPrinter *p, const Affine *a)
{
	const char *text = "";

	for (int i = 0; i < a->n; i++) {
		int64_t c = a->terms[i].coefficient;
		text = arena_printf(p->arena, i ? "%s + v%d" : "%sv%d", text, a->terms[i].scalar);
		if (c != 1)
			text = arena_printf(p->arena, "%s * INT64_C(%lld)", text, (long long)c);
	}
	if (a->constant || a->n == 0)
		text = arena_printf(p->arena, a->n ? "%s + %lld" : "%s%lld", text,
		                    (long long)a->constant);
	return text;
}

/* By number: the text form's name may be any word. */
const char *
c_name(CPrinter *p, int buffer)
{
	static const char *const kinds[] = {
		[BUFFER_LOCAL] = "local", [BUFFER_PRIVATE] = "private", [BUFFER_TILE] = "tile"};
	const LoopBuffer *b = &p->k->buffers.at[buffer];

	if (!buffer_is_param(b))
		return arena_printf(p->arena, "%s%d", kinds[b->kind], buffer);
	return buffer < p->k->n_inputs ? arena_printf(p->arena, "x%d", buffer)
	                               : arena_printf(p->arena, "y%d", buffer - p->k->n_inputs);
}

const char *
c_array(CPrinter *p, int buffer)
{
	const char *name = c_name(p, buffer);

	if (p->k->buffers.at[buffer].kind != BUFFER_PRIVATE)
		return name;
	for (int i = p->declared[buffer]; i < p->k->n_team; i++)
		name = arena_printf(p->arena, "%s[v%d]", name, p->open[i]->result);
	return name;
}

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
		text_printf(p->out, "(%s)v%d", c_compute_names[s->type], x[0]);
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
		text_printf(p->out, "(%s)v%d", c_compute_names[to], x);
	else
		text_printf(p->out, "(%s)(%s)v%d", c_compute_names[to], c_storage_names[storage],
		            x);
}

const ScalarFunction *
c_storage_function(CPrinter *p, const char *name, DType storage)
{
	char full[32];

	snprintf(full, sizeof(full), "%s_%s", name, dtype_info[storage].name);
	return scalar_function(p->functions, full);
}

void
c_print_element(CPrinter *p, int buffer, const char *place)
{
	DType d = p->k->buffers.at[buffer].type->dtype;
	const ScalarFunction *f = c_storage_function(p, "load", d);

	if (f)
		text_printf(p->out, "gradc_%s(", f->name);
	if (is_packed(d))
		text_printf(p->out, "gradc_packed_load(%s, %s, %d)", c_array(p, buffer), place,
		            dtype_info[d].bits);
	else
		text_printf(p->out, "%s[%s]", c_array(p, buffer), place);
	text_add(p->out, f ? ")" : d == BOOL ? " != 0" : "");
}

static void
print_load(CPrinter *p, const LoopStatement *s)
{
	if (s->n_operands)
		text_printf(p->out, "!v%d ? 0 : ", s->operands[0]);
	c_print_element(p, s->buffer, c_affine(p, s->place));
}

void
c_print_store(CPrinter *p, const LoopStatement *s)
{
	DType d = p->k->buffers.at[s->buffer].type->dtype;
	const ScalarFunction *f = c_storage_function(p, "store", d);
	const char *array = c_array(p, s->buffer), *place = c_affine(p, s->place);

	if (is_packed(d)) {
		text_printf(p->out, "gradc_packed_store(%s, %s, %d", array, place,
		            dtype_info[d].bits);
		text_printf(p->out, f ? ", gradc_%s(v%d)" : ", %s(uint32_t)v%d", f ? f->name : "",
		            s->operands[0]);
		text_add(p->out, ");\n");
		return;
	}
	text_printf(p->out, "%s[%s]", array, place);
	text_printf(p->out, f ? " = (%s)gradc_%s(v%d);\n" : " = (%s)%sv%d;\n", c_storage_names[d],
	            f ? f->name : "", s->operands[0]);
}

void
c_print_definition(CPrinter *p, const LoopStatement *s)
{
	c_indent(p);
	text_printf(p->out, "const %s v%d = ", c_compute_names[s->type], s->result);
	switch (s->kind) {
	case LOOP_STATEMENT_OP: print_op(p, s); break;
	case LOOP_STATEMENT_CONST: c_print_literal(p->out, s->type, s->f, s->i); break;
	case LOOP_STATEMENT_CAST: print_cast(p, s); break;
	case LOOP_STATEMENT_AFFINE: text_add(p->out, c_affine(p, s->place)); break;
	case LOOP_STATEMENT_SCALAR:
		text_printf(p->out, "scalars[%d].%s", s->buffer, s->type == F64 ? "f" : "u");
		break;
	default: print_load(p, s);
	}
	text_add(p->out, ";\n");
}

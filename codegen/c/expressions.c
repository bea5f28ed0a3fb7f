/* Prints scalars, loads and stores as C expressions. */
#include "codegen/c/print.h"

#include <ctype.h>
#include <math.h>

const char *const c_compute_names[N_DTYPES] = {
	[F64] = "double",   [F32] = "float",    [S64] = "int64_t", [S32] = "int32_t",
	[U64] = "uint64_t", [U32] = "uint32_t", [BOOL] = "_Bool"};
/* The type of an array element in memory. A format that C lacks is stored as an integer with the
 * same bits; packed types as bytes of several elements. */
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
c_print_literal(CPrinter *p, DType t, double f, int64_t i)
{
	const CDialect *d = p->dialect;
	Text *out = p->out;

	if (!dtype_is_float(t)) {
		if (i == INT64_MIN)
			text_add(out, "INT64_MIN");
		else
			text_printf(out, t == S64 ? "INT64_C(%lld)" : "%lld", (long long)i);
	} else if (isnan(f)) {
		text_add(out, t == F64 ? d->nan64 : d->nan32);
	} else if (isinf(f)) {
		text_add(out, f < 0 ? "-" : "");
		text_add(out, t == F64 ? d->infinity64 : d->infinity32);
	} else if (t == F64) {
		text_add_double(out, f);
	} else {
		text_add_float(out, (float)f);
		text_add(out, "f");
	}
}

/* ---- 64-bit integers are printed as 32-bit integers if their values fit into 32 bits: GPUs
 * have no 64-bit integer instructions */
static bool
is_narrow(const CPrinter *p, LoopValue v)
{
	return p->dialect->narrow && p->most[v] >= 0;
}

const char *
c_type_name(const CPrinter *p, LoopValue v)
{
	return is_narrow(p, v) ? "int" : c_compute_names[p->types[v]];
}

const char *
c_value(CPrinter *p, LoopValue v)
{
	return arena_printf(p->arena, is_narrow(p, v) ? "(int64_t)v%d" : "v%d", v);
}

void
c_set_most(CPrinter *p, LoopValue v, int64_t most)
{
	/* a loop's counter is `most` + 1 after the loop; this number must fit into 32 bits, too */
	if (p->dialect->narrow && most < INT32_MAX)
		p->most[v] = most;
}

/* The largest magnitude of the affine place a and of all its partial sums. */
int64_t
c_affine_most(const CPrinter *p, const Affine *a)
{
	int64_t sum, term;

	if (a->constant == INT64_MIN)
		return -1;
	sum = a->constant < 0 ? -a->constant : a->constant;
	for (int i = 0; i < a->n; i++) {
		int64_t c = a->terms[i].coefficient;
		if (!is_narrow(p, a->terms[i].scalar) || c == INT64_MIN ||
		    !size_mul(c < 0 ? -c : c, p->most[a->terms[i].scalar], &term) ||
		    !size_add(sum, term, &sum))
			return -1;
	}
	return sum <= INT32_MAX ? sum : -1;
}

const char *
c_affine(CPrinter *p, const Affine *a)
{
	bool narrow = p->dialect->narrow && c_affine_most(p, a) >= 0;
	const char *text = "";

	for (int i = 0; i < a->n; i++) {
		int64_t c = a->terms[i].coefficient;
		const char *v = narrow ? arena_printf(p->arena, "v%d", a->terms[i].scalar)
		                       : c_value(p, a->terms[i].scalar);
		text = arena_printf(p->arena, i ? "%s + %s" : "%s%s", text, v);
		if (c != 1)
			text = arena_printf(p->arena, narrow ? "%s * %lld" : "%s * INT64_C(%lld)",
			                    text, (long long)c);
	}
	if (a->constant || a->n == 0)
		text = arena_printf(p->arena, a->n ? "%s + %lld" : "%s%lld", text,
		                    (long long)a->constant);
	return text;
}

/* Names a buffer by number, because the buffer's name in the text form of loop IR may be any
 * word. */
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

static void
print_call(CPrinter *p, const ScalarFunction *f, const LoopValue *x)
{
	text_printf(p->out, "gradc_%s(", f->name);
	for (int i = 0; i < f->n_params; i++)
		text_printf(p->out, "%s%s", i ? ", " : "", c_value(p, x[i]));
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
		text_printf(p->out, "v%d ? %s : %s", x[0], c_value(p, x[1]), c_value(p, x[2]));
	else if (s->op == LOOP_truncate)
		text_printf(p->out, "(%s)v%d", c_compute_names[s->type], x[0]);
	else if (s->op == LOOP_bits)
		text_printf(p->out, "gradc_%s_bits_%s(%s)", dtype_info[t].name,
		            dtype_info[s->type].name, c_value(p, x[0]));
	else if (isalpha((unsigned char)*c)) {
		text_printf(p->out, "%s%s%s(", p->dialect->math, c, t == F32 ? "f" : "");
		for (int i = 0; i < s->n_operands; i++)
			text_printf(p->out, "%sv%d", i ? ", " : "", x[i]);
		text_add(p->out, ")");
	} else if (s->n_operands == 1)
		text_printf(p->out, "%s%s", c, c_value(p, x[0]));
	else
		text_printf(p->out, "%s %s %s", c_value(p, x[0]), c, c_value(p, x[1]));
}

/* ---- results of ops that fit into 32 bits */
static const LoopStatement *
constant_of(const CPrinter *p, LoopValue v)
{
	for (int i = 0; i < p->k->body.n; i++)
		if (p->k->body.at[i].result == v)
			return p->k->body.at[i].kind == LOOP_STATEMENT_CONST ? &p->k->body.at[i]
			                                                     : NULL;
	return NULL;
}

/* The operand's largest magnitude; -1: unknown. */
static int64_t
operand_most(const CPrinter *p, LoopValue v)
{
	const LoopStatement *c = constant_of(p, v);

	if (c)
		return c->i >= -INT32_MAX && c->i <= INT32_MAX ? (c->i < 0 ? -c->i : c->i) : -1;
	return is_narrow(p, v) ? p->most[v] : -1;
}

/* The divisor of a div or rem, if it is a positive constant below 2^31; otherwise 0. */
static int64_t
divisor_of(const CPrinter *p, const LoopStatement *s)
{
	const LoopStatement *c = s->op == LOOP_div || s->op == LOOP_rem
	                                 ? constant_of(p, s->operands[1])
	                                 : NULL;

	return c && c->i > 0 && c->i <= INT32_MAX ? c->i : 0;
}

/* The largest magnitude of an op's result if it is known and below 2^31; otherwise -1. */
static int64_t
op_most(const CPrinter *p, const LoopStatement *s)
{
	if (s->kind != LOOP_STATEMENT_OP || s->type != S64 || s->n_operands != 2)
		return -1;
	int64_t x = operand_most(p, s->operands[0]), y = operand_most(p, s->operands[1]);
	int64_t by = divisor_of(p, s);

	if (x < 0 || y < 0)
		return -1;
	if (s->op == LOOP_min || s->op == LOOP_max)
		return x > y ? x : y;
	if (by == 0)
		return -1;
	return s->op == LOOP_div ? x / by : x < by ? x : by - 1;
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
		text_printf(p->out, "(%s)%s", c_compute_names[to], c_value(p, x));
	else
		text_printf(p->out, "(%s)(%s)%s", c_compute_names[to], c_storage_names[storage],
		            c_value(p, x));
}

const ScalarFunction *
c_storage_function(CPrinter *p, const char *name, DType storage)
{
	char full[32];

	snprintf(full, sizeof(full), "%s_%s", name, dtype_info[storage].name);
	return scalar_function(p->functions, full);
}

const char *
c_place(CPrinter *p, int buffer, const char *place)
{
	return p->dialect->place ? p->dialect->place(p, buffer, place) : place;
}

void
c_print_element(CPrinter *p, int buffer, const char *place)
{
	DType d = p->k->buffers.at[buffer].type->dtype;
	const ScalarFunction *f = c_storage_function(p, "load", d);

	place = c_place(p, buffer, place);
	if (f)
		text_printf(p->out, "gradc_%s(", f->name);
	if (is_packed(d))
		text_printf(p->out, "gradc_packed_load(%s, %s, %d)", p->dialect->array(p, buffer),
		            place, dtype_info[d].bits);
	else
		text_printf(p->out, "%s[%s]", p->dialect->array(p, buffer), place);
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
c_print_assignment(CPrinter *p, const LoopStatement *s)
{
	DType d = p->k->buffers.at[s->buffer].type->dtype;
	const ScalarFunction *f = c_storage_function(p, "store", d);
	const char *array = p->dialect->array(p, s->buffer);
	const char *place = c_place(p, s->buffer, c_affine(p, s->place));

	if (is_packed(d)) {
		text_printf(p->out, "gradc_packed_store(%s, %s, %d", array, place,
		            dtype_info[d].bits);
		text_printf(p->out, f ? ", gradc_%s(%s)" : ", %s(uint32_t)%s", f ? f->name : "",
		            c_value(p, s->operands[0]));
		text_add(p->out, ");\n");
		return;
	}
	text_printf(p->out, "%s[%s]", array, place);
	text_printf(p->out, f ? " = (%s)gradc_%s(%s);\n" : " = (%s)%s%s;\n", c_storage_names[d],
	            f ? f->name : "", c_value(p, s->operands[0]));
}

void
c_print_store(CPrinter *p, const LoopStatement *s, int at)
{
	(void)at;
	c_indent(p);
	c_print_assignment(p, s);
}

void
c_print_definition(CPrinter *p, const LoopStatement *s, int at)
{
	(void)at;
	int64_t most = s->kind == LOOP_STATEMENT_AFFINE ? c_affine_most(p, s->place)
	                                                : op_most(p, s);
	if (most >= 0)
		c_set_most(p, s->result, most);
	c_indent(p);
	text_printf(p->out, "const %s v%d = ", c_type_name(p, s->result), s->result);
	switch (s->kind) {
	case LOOP_STATEMENT_OP:
		if (is_narrow(p, s->result) && divisor_of(p, s))
			text_printf(p->out, "v%d %c %lld", s->operands[0],
			            s->op == LOOP_div ? '/' : '%', (long long)divisor_of(p, s));
		else
			print_op(p, s);
		break;
	case LOOP_STATEMENT_CONST: c_print_literal(p, s->type, s->f, s->i); break;
	case LOOP_STATEMENT_CAST: print_cast(p, s); break;
	case LOOP_STATEMENT_AFFINE: text_add(p->out, c_affine(p, s->place)); break;
	case LOOP_STATEMENT_SCALAR:
		text_printf(p->out, "scalars[%d].%s", s->buffer, s->type == F64 ? "f" : "u");
		break;
	default: print_load(p, s);
	}
	text_add(p->out, ";\n");
}

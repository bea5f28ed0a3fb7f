/* The type of every float: at least f32, or f64 throughout for proofs. Casts between floats follow, so
 * that an f64 program computes in one type. Linear. */
#include "passes/pass.h"

#include <string.h>

static DType
map_dtype(DType d, DType to)
{
	return !dtype_is_float(d) || (d == F64 && to == F32) ? d : to;
}

static const Tensor *
convert_tensor(Module *m, const Tensor *t, DType to)
{
	if (!t || map_dtype(t->type->dtype, to) == t->type->dtype)
		return t;
	Type type = type_with_dtype(m, t->type, to);
	void *data = arena_alloc(m->arena, (size_t)type_bytes(type));
	dtype_convert(to, data, t->type->dtype, t->data, type->n);
	return tensor_borrow(m, type, data);
}

static void
convert_attrs(Module *m, Node *n, DType to)
{
	for (const Field *f = op_row(n)->fields; f && f->name; f++) {
		char *at = (char *)n->attr + f->offset;
		if (f->kind == FIELD_DTYPE)
			*(DType *)at = map_dtype(*(DType *)at, to);
		else if (f->kind == FIELD_DTYPE_IF_ANY && *(int *)at)
			*(int *)at = 1 + (int)map_dtype((DType)(*(int *)at - 1), to);
		else if (f->kind == FIELD_TENSOR)
			*(const Tensor **)at = convert_tensor(m, *(const Tensor **)at, to);
	}
}

static void
convert_value(Module *m, Value *v, DType to)
{
	v->type = type_with_dtype(m, v->type, map_dtype(v->type->dtype, to));
}

static void
convert_function(Module *m, Function *f, DType to)
{
	for (int i = 0; i < f->params.n; i++)
		convert_value(m, f->params.at[i], to);
	for (int i = 0; i < f->states.n; i++)
		f->states.at[i]->type = f->states.at[i]->state->type;
	for_each_node(f, n) {
		convert_attrs(m, n, to);
		for (int i = 0; i < n->n_results; i++)
			convert_value(m, node_result(n, i), to);
	}
}

static bool
run_precision(Pass *p, Module *m)
{
	const PrecisionOptions *o = p->options;
	DType to = F32;

	if (o->to && strcmp(o->to, "f64") == 0)
		to = F64;
	else if (o->to && strcmp(o->to, "f32") != 0) {
		diag_error(p->diag, EXIT_USAGE, "--precision=%s: not supported in this build",
		           o->to);
		return false;
	}
	for (int i = 0; i < m->states.n; i++) {
		State *s = m->states.at[i];
		s->type = type_with_dtype(m, s->type, map_dtype(s->type->dtype, to));
		s->data = convert_tensor(m, s->data, to);
	}
	for_each_function(m, f)
		convert_function(m, f, to);
	p->changed = true;
	return true;
}

static const PassOption precision_options[] = {
	{"to", "f32 or f64", OPTION_STRING, offsetof(PrecisionOptions, to)}, {0}};
const PassRow pass_precision = {.name = "precision",
                                .help = "the type of every float",
                                .takes = STAGE_FORWARD,
                                .leaves = STAGE_ANY,
                                .options = precision_options,
                                .options_size = sizeof(PrecisionOptions),
                                .run = run_precision};

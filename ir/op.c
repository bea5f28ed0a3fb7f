/* The op table, which has one row for each op, and code that is the same for all ops, such as
 * checks of operands. */
#include "ir/ir.h"

#include <string.h>

#define OP(name) extern const OpRow op_##name;
#include "ir/ops/op_list.def"
#undef OP

const OpRow *const op_table[N_OPS] = {
#define OP(name) [OP_##name] = &op_##name,
#include "ir/ops/op_list.def"
#undef OP
};

bool
op_find(const char *name, OpKind *out)
{
	for (int i = 0; i < N_OPS; i++) {
		if (strcmp(op_table[i]->name, name) == 0) {
			*out = (OpKind)i;
			return true;
		}
	}
	return false;
}

Value *
value_viewed(const Value *v)
{
	const Node *n = v->kind == VALUE_RESULT ? v->node : NULL;

	return n && op_row(n)->fuse == FUSE_VIEW && n->n_operands == 1 ? node_operand(n, 0) : NULL;
}

bool
is_move(const Node *n)
{
	return n && (n->op == OP_reshape || n->op == OP_transpose);
}

Value *
behind_views(Value *v)
{
	while (v->node && op_row(v->node)->fuse == FUSE_VIEW)
		v = node_operand(v->node, 0);
	return v;
}

void
infer_error(Infer *in, const char *fmt, ...)
{
	va_list args;

	if (in->fault)
		return;
	va_start(args, fmt);
	in->fault = arena_vprintf(in->arena, fmt, args);
	va_end(args);
}

/* Checks the number of operands, and absent operands, against the row. */
static void
infer_arity(Infer *in, const OpRow *row)
{
	int required = 0, most = 0;
	bool variadic = false;

	for (int i = 0; i < MAX_OPERANDS && row->operands[i].name; i++) {
		most++;
		required += row->operands[i].kind == OPERAND_REQUIRED;
		variadic |= row->operands[i].kind == OPERAND_VARIADIC;
	}
	if (in->n_operands < required || (!variadic && in->n_operands > most)) {
		infer_error(in, "%s takes %d%s operands, not %d", row->name, required,
		            variadic ? " or more" : "", in->n_operands);
		return;
	}
	for (int i = 0; i < in->n_operands; i++) {
		int k = i < most ? i : most - 1;
		if (!in->operand[i] && row->operands[k].kind != OPERAND_OPTIONAL)
			infer_error(in, "%s needs operand %s", row->name, row->operands[k].name);
	}
}

static int
row_results(const OpRow *row)
{
	int n = 0;

	while (n < COUNT(row->results) && row->results[n])
		n++;
	return n;
}

const char *
op_infer(Module *m, Arena *arena, OpKind op, const void *attr, int n_operands, const Type *operands,
         int *n_results, Type *results, int max_results)
{
	return row_infer(m, arena, op_table[op], attr, n_operands, operands, n_results, results,
	                 max_results);
}

const char *
row_infer(Module *m, Arena *arena, const OpRow *row, const void *attr, int n_operands,
          const Type *operands, int *n_results, Type *results, int max_results)
{
	Infer in = {.m = m,
	            .attr = attr,
	            .n_operands = n_operands,
	            .operand = operands,
	            .n_results = row_results(row),
	            .result = results,
	            .arena = arena};

	if (in.n_results && strcmp(row->results[in.n_results - 1], "...") == 0)
		in.n_results = max_results; /* infer sets the number of results */
	memset(results, 0, sizeof(*results) * (size_t)max_results);
	infer_arity(&in, row);
	if (!in.fault)
		row->infer(&in);
	for (int i = 0; !in.fault && i < in.n_results; i++)
		if (!results[i])
			infer_error(&in, "op \"%s\": column infer leaves result %d without a type",
			            row->name, i);
	*n_results = in.fault ? 0 : in.n_results;
	return in.fault;
}

void
grad_add(Grad *g, int i, Value *dx)
{
	if (!g->needs[i])
		return;
	if (dx->type != node_operand(g->node, i)->type) {
		g->fault = arena_printf(g->b->m->arena,
		                        "has a column grad that gives operand %d another type", i);
		return;
	}
	g->doperand[i] = g->doperand[i] ? b_binary(g->b, OP_add, g->doperand[i], dx) : dx;
}

void
grad_zero(Grad *g)
{
	(void)g;
}

void
grad_none(Grad *g)
{
	g->fault = "has no gradient";
}

#include "codegen/fuse/spaces.h"

/* ---- forms */
ReduceForm
reduce_form(const Ints *shape, const Ints *reduced_axes)
{
	ReduceForm f = {0};

	for (int i = 0; i < shape->n; i++) {
		bool reduced = ints_has(reduced_axes, i);
		if (shape->at[i] == 1)
			continue;
		if (f.n && f.reduced[f.n - 1] == reduced) {
			f.extent[f.n - 1] *= shape->at[i];
		} else {
			f.extent[f.n] = shape->at[i];
			f.reduced[f.n++] = reduced;
		}
	}
	return f;
}

ReduceForm
reduce_form_of(const Node *reduce)
{
	Ints shape = ints_of_type(node_operand(reduce, 0)->type);

	return reduce_form(&shape, &((const ReduceAttr *)reduce->attr)->axes);
}

bool
reduce_form_equal(const ReduceForm *a, const ReduceForm *b)
{
	if (a->n != b->n)
		return false;
	for (int i = 0; i < a->n; i++)
		if (a->extent[i] != b->extent[i] || a->reduced[i] != b->reduced[i])
			return false;
	return true;
}

bool
reduce_form_by_column(const ReduceForm *f)
{
	return f->n && !f->reduced[f->n - 1];
}

bool
reduces(const Node *n)
{
	if (op_row(n)->fuse != FUSE_REDUCE)
		return false;
	ReduceForm f = reduce_form_of(n);
	return f.n > 1 || (f.n == 1 && f.reduced[0]);
}

Value *
behind_reshapes(Value *v)
{
	while (v->node && v->node->op == OP_reshape)
		v = node_operand(v->node, 0);
	return v;
}

/* ---- domains */
Domain
domain_full(Type t)
{
	return (Domain){.elements = {[ITER_FULL] = t->n}};
}

bool
domain_equal(const Domain *a, const Domain *b)
{
	for (int s = ITER_FULL; s < N_ITER_SPACES; s++)
		if (a->elements[s] != b->elements[s] ||
		    !reduce_form_equal(&a->reduction[s], &b->reduction[s]))
			return false;
	return reduce_form_equal(&a->columns, &b->columns);
}

void
domain_add_reduction(Domain *d, IterSpace s, const Node *n)
{
	d->reduction[s] = reduce_form_of(n);
	d->elements[s] = node_operand(n, 0)->type->n;
	d->elements[s + 1] = node_result(n, 0)->type->n;
}

void
domain_add_columns(Domain *d, const Node *n)
{
	d->columns = reduce_form_of(n);
	d->elements[ITER_COLUMNS] = node_result(n, 0)->type->n;
}

/* rows: kept r, reduced w. columns: kept b, reduced r / b, kept w */
bool
domain_takes_columns(const ReduceForm *rows, const ReduceForm *columns)
{
	const int64_t *c = columns->extent;

	return rows->n == 2 && rows->reduced[1] && columns->n == 3 && columns->reduced[1] &&
	       c[0] * c[1] == rows->extent[0] && c[2] == rows->extent[1];
}

/* A block's part has several rows at a time. */
bool
columns_have_blocks(const Target *t, int64_t elements, int64_t blocks, int64_t parts)
{
	int64_t at_once = t->team / t->tuning->reduce.row_members;

	return elements < t->tuning->grains.large || blocks * at_once >= parts;
}

bool
columns_fit(const Target *t, const ReduceForm *columns, int sums)
{
	const ReduceTiles *tiles = &t->tuning->reduce;
	int64_t width = columns->extent[2];
	int64_t members = width <= tiles->team_row ? tiles->row_members : t->team;
	int64_t own = members > 0 ? (width + members - 1) / members : 0;

	return own > 0 && own <= tiles->own_numbers && own * sums <= tiles->column_numbers;
}

/* The form of a reduction over exactly the axes that the broadcast repeats. */
static ReduceForm
form_of_broadcast(const BroadcastAttr *a)
{
	Ints fresh = {0};

	for (int i = 0; i < a->shape.n; i++)
		if (!ints_has(&a->axes, i))
			fresh.at[fresh.n++] = i;
	return reduce_form(&a->shape, &fresh);
}

static bool
is_view(const Value *v)
{
	return v->node && op_row(v->node)->fuse == FUSE_VIEW;
}

IterSpace
domain_reached(const Domain *d, Value *v, IterSpace base)
{
	Value *x = behind_reshapes(v);

	if (!is_view(x))
		return base;
	if (x->node->op != OP_broadcast || base != ITER_ROWS ||
	    is_view(behind_reshapes(node_operand(x->node, 0))))
		return ITER_NONE;
	ReduceForm form = form_of_broadcast(x->node->attr);
	return reduce_form_equal(&form, &d->reduction[ITER_FULL]) ? ITER_FULL : ITER_NONE;
}

/* ---- spaces of a function. A space is a set of iterations: all elements (full), rows, or chunks
 * of rows (fuse.h). First, values whose elements correspond one by one are joined to classes
 * (union-find). Then reductions, and broadcasts of rows, tell in which space each class is. */
typedef struct {
	const Function *f;
	/* by value id: another value of the class; the value itself if it represents the class */
	uint32_t *parent;
	uint8_t *of; /* by value id of a representative: the space of the class */
} Classes;

static uint32_t
class_of(const Classes *c, const Value *v)
{
	uint32_t id = v->id;

	for (; c->parent[id] != id; id = c->parent[id])
		c->parent[id] = c->parent[c->parent[id]];
	return id;
}

/* Joins the classes of both values. Does nothing if one is a parameter: parameters have no class,
 * because each reader loads a parameter in its own order. */
static void
join(Classes *c, const Value *a, const Value *b)
{
	if (b && b->node)
		c->parent[class_of(c, b)] = class_of(c, a);
}

static bool
keeps_places(const Node *n)
{
	return op_row(n)->fuse == FUSE_ELEMENTWISE || n->op == OP_reshape ||
	       (op_row(n)->fuse == FUSE_REDUCE && !reduces(n));
}

static void
find_classes(Classes *c)
{
	for_each_node(c->f, n) {
		if (!keeps_places(n))
			continue;
		for (int i = 1; i < n->n_results; i++)
			join(c, node_result(n, 0), node_result(n, i));
		for (int i = 0; i < n->n_operands; i++)
			join(c, node_result(n, 0), node_operand(n, i));
	}
}

/* The space that reduction n reduces: rows if its operand is computed from results of other
 * reductions, otherwise full. */
static IterSpace
space_reduced(const Classes *c, const Node *n)
{
	const Value *x = node_operand(n, 0);

	return x->node && c->of[class_of(c, x)] == ITER_ROWS ? ITER_ROWS : ITER_FULL;
}

/* Are there reductions of full values along rows? */
static bool
reduces_rows(const Classes *c)
{
	for_each_node(c->f, n) {
		ReduceForm form = reduces(n) ? reduce_form_of(n) : (ReduceForm){0};
		if (form.n && space_reduced(c, n) == ITER_FULL && !reduce_form_by_column(&form))
			return true;
	}
	return false;
}

/* Returns NULL, or why the reductions of this space do not have one form. */
static const char *
add_reductions(const Classes *c, Domain *d, IterSpace s)
{
	bool has_rows = s == ITER_FULL && reduces_rows(c);

	for_each_node(c->f, n) {
		if (!reduces(n) || space_reduced(c, n) != s)
			continue;
		ReduceForm form = reduce_form_of(n);
		bool columns = has_rows && reduce_form_by_column(&form);
		const ReduceForm *other = columns ? &d->columns : &d->reduction[s];
		if (other->n && !reduce_form_equal(&form, other))
			return "two of its reductions do not keep the same rows";
		if (columns)
			domain_add_columns(d, n);
		else
			domain_add_reduction(d, s, n);
		c->of[class_of(c, node_result(n, 0))] = (uint8_t)(columns ? ITER_COLUMNS : s + 1);
		if (node_operand(n, 0)->node)
			c->of[class_of(c, node_operand(n, 0))] = (uint8_t)s;
	}
	if (d->columns.n && !domain_takes_columns(&d->reduction[ITER_FULL], &d->columns))
		return "its sums of columns are not sums of blocks of the rows that it reduces";
	return NULL;
}

/* Marks the classes of all results of reductions, so that space_reduced knows them. */
static void
mark_reduced(const Classes *c)
{
	for_each_node(c->f, n)
		if (reduces(n))
			c->of[class_of(c, node_result(n, 0))] = ITER_ROWS;
}

static void
mark_repeated(const Classes *c, const Domain *d)
{
	for_each_node(c->f, n) {
		if (n->op != OP_broadcast)
			continue;
		Value *base = behind_reshapes(node_operand(n, 0));
		if (base->node &&
		    domain_reached(d, node_result(n, 0), c->of[class_of(c, base)]) == ITER_FULL)
			c->of[class_of(c, node_result(n, 0))] = ITER_FULL;
	}
}

/* Without reductions there is one space, and all results are in this space. */
static void
mark_results(const Classes *c, Domain *d)
{
	const Node *ret = function_return(c->f);

	if (ret->n_operands)
		*d = domain_full(node_operand(ret, 0)->type);
	for (int i = 0; i < ret->n_operands; i++)
		c->of[class_of(c, node_operand(ret, i))] = ITER_FULL;
}

static const char *
results_fault(const Function *f, const Spaces *s)
{
	const Node *ret = function_return(f);

	for_each_node(f, n)
		for (int i = 0; n != ret && n->op != OP_reshape && i < n->n_operands; i++)
			if (node_operand(n, i) && s->of[node_operand(n, i)->id] == ITER_COLUMNS)
				return "it computes something from sums of columns, beside reductions of rows";
	for (int i = 0; i < ret->n_operands; i++) {
		const Value *v = node_operand(ret, i);
		IterSpace of = s->of[v->id];
		if (of == ITER_NONE || v->type->n != s->domain.elements[of])
			return "a result is in no space of the function, or has another number of elements than its space";
	}
	return NULL;
}

Spaces
spaces_of_function(const Function *f, Arena *arena)
{
	uint8_t *of = NEW_ARRAY(arena, uint8_t, f->next_value_id);
	Classes c = {f, NEW_ARRAY(arena, uint32_t, f->next_value_id), of};
	Spaces s = {.of = of};

	for (uint32_t i = 0; i < f->next_value_id; i++)
		c.parent[i] = i;
	find_classes(&c);
	mark_reduced(&c);
	s.fault = add_reductions(&c, &s.domain, ITER_FULL);
	if (!s.fault)
		s.fault = add_reductions(&c, &s.domain, ITER_ROWS);
	if (s.domain.reduction[ITER_FULL].n)
		mark_repeated(&c, &s.domain);
	else
		mark_results(&c, &s.domain);
	for_each_node(f, n)
		for (int i = 0; i < n->n_results; i++)
			of[node_result(n, i)->id] = of[class_of(&c, node_result(n, i))];
	if (!s.fault)
		s.fault = results_fault(f, &s);
	return s;
}

int
hyperparameter(const Value *v)
{
	return v->kind == VALUE_PARAM && v->param == PARAM_HYPERPARAMETER ? v->number : -1;
}

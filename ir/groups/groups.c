/* The table of groups, and what their recognizers share: equal bodies are one function, so that
 * layers share their kernels. */
#include "ir/groups/groups.h"

#include <string.h>

const GroupRow *const group_table[] = {
#define GROUP(name) &group_##name,
#include "ir/groups/group_list.def"
#undef GROUP
	NULL};

const GroupRow *
group_find(const char *name)
{
	for (int i = 0; group_table[i]; i++)
		if (strcmp(group_table[i]->name, name) == 0)
			return group_table[i];
	return NULL;
}

const GroupRow *
group_row(int i, bool spans_backward)
{
	for (int k = 0; group_table[k]; k++)
		if (group_table[k]->spans_backward == spans_backward && i-- == 0)
			return group_table[k];
	return NULL;
}

bool
group_table_check(Diag *diag)
{
	bool sound = true;

	for (int i = 0; group_table[i]; i++) {
		const GroupRow *row = group_table[i];
		RowCheck c = {.table = "group", .name = row->name, .diag = diag, .sound = true};
		row_needs(&c, "name", row->name && *row->name);
		row_needs(&c, "doc", row->doc && *row->doc);
		sound &= c.sound;
	}
	return sound;
}

const GroupRow *
called_group(const Node *n)
{
	const Function *f = called_function(n);

	return f && f->kind == FUNCTION_GROUP ? f->group : NULL;
}

FuseClass
node_fuse_class(const Node *n)
{
	return called_group(n) ? FUSE_OPAQUE : op_row(n)->fuse;
}

/* The function whose nodes take the place of a call of `body`. */
static Function *
without_hints(Function *body, IntMap *opened)
{
	Module *m = body->module;
	uint64_t found;

	if (!body->group->drop_hints)
		return body;
	if (intmap_get(opened, (uint64_t)(uintptr_t)body, &found))
		return (Function *)(uintptr_t)found;
	const char *name = arena_printf(m->arena, "%s.open", body->name);
	Function *f = function_clone(body, module_fresh_name(m, name));
	body->group->drop_hints(f);
	intmap_put(opened, (uint64_t)(uintptr_t)body, (uint64_t)(uintptr_t)f);
	return f;
}

void
group_open(Node *call, IntMap *opened)
{
	CallAttr *a = call->attr;

	a->callee = without_hints(a->callee, opened);
	call_inline(call);
}

void
groups_open(Function *f)
{
	Arena *scratch = arena_new();
	IntMap *opened = intmap_new(scratch);
	bool again = true;

	while (again) { /* the nodes of a group may call groups, too */
		again = false;
		for_each_node(f, n)
			if (called_group(n)) {
				group_open(n, opened);
				again = true;
			}
	}
	arena_free(scratch);
}

/* Puts nodes in place of the calls in f. False: f calls nothing. */
static bool
open_calls(Function *f)
{
	bool any = false;

	for_each_node(f, n) {
		const Function *callee = called_function(n);
		if (!callee)
			continue;
		Function *open = function_clone(callee, module_fresh_name(f->module, callee->name));
		if (callee->kind == FUNCTION_GROUP && callee->group->drop_hints)
			callee->group->drop_hints(open);
		((CallAttr *)n->attr)->callee = open;
		call_inline(n);
		function_remove(open);
		any = true;
	}
	return any;
}

/* A copy of v, a parameter of f or a view, for the node `reader` alone. */
static Value *
own_copy(Function *f, Value *v, Node *reader)
{
	Builder before = {.m = f->module,
	                  .f = f,
	                  .before = reader,
	                  .loc = v->node ? v->node->loc : reader->loc,
	                  .phase = reader->phase};

	if (v->kind != VALUE_PARAM)
		return build(&before, v->node->op, 1, (Value *[]){node_operand(v->node, 0)},
		             v->node->attr);
	int number = 0;
	while (f->params.at[number] != v)
		number++;
	return function_param_as(f, v->type, v->name, PARAM_OPERAND, number);
}

/* Gives every reader of a parameter or of a view a copy of its own. */
static void
unshare(Function *f)
{
	int n_params = f->params.n;

	for (Node *n = f->last; n; n = n->prev)
		for (int i = 0; i < n->n_operands; i++) {
			Value *v = node_operand(n, i);
			if (!v || value_used_once(v))
				continue;
			bool param = v->kind == VALUE_PARAM && v->index < n_params;
			if (param || value_viewed(v))
				node_set_operand(n, i, own_copy(f, v, n));
		}
}

Function *
group_opened(const Function *body)
{
	Module *m = body->module;
	const char *name = arena_printf(m->arena, "%s.open", body->name);
	Function *f = function_clone(body, module_fresh_name(m, name));

	while (open_calls(f))
		;
	function_drop_unread(f);
	unshare(f);
	return f;
}

Function *
group_begin(Module *m, const GroupRow *row)
{
	Function *f = function_new(m, module_fresh_name(m, row->name));

	f->kind = FUNCTION_GROUP;
	f->group = row;
	return f;
}

Value *
group_scores(const Function *body)
{
	for_each_node(body, n)
		if (op_row(n)->precision == PRECISION_LOW && n->n_results == 1)
			return node_result(n, 0);
	return NULL;
}

Function *
group_part(const Function *body, const char *name, int n, const int *results, const DType *types)
{
	Function *part = function_new(body->module, name);
	Arena *scratch = arena_new();
	bool *needed = NEW_ARRAY(scratch, bool, body->next_value_id);
	Value **map = NEW_ARRAY(scratch, Value *, body->next_value_id);
	Value **out = NEW_ARRAY(scratch, Value *, n);
	Builder b = {.m = body->module, .f = part};

	part->kind = body->kind;
	part->group = body->group;
	for (int i = 0; i < n; i++)
		needed[function_result(body, results[i])->id] = true;
	for_each_node_reverse(body, node) {
		bool any = false;
		for (int i = 0; i < node->n_results; i++)
			any |= needed[node_result(node, i)->id];
		for (int i = 0; i < node->n_operands && any; i++)
			if (node_operand(node, i))
				needed[node_operand(node, i)->id] = true;
	}
	for (int i = 0; i < body->params.n; i++) {
		const Value *p = body->params.at[i];
		if (needed[p->id])
			map[p->id] = function_param_as(part, p->type, p->name, p->param, p->number);
	}
	function_clone_body(body, part, NULL, map);
	for (int i = 0; i < n; i++)
		out[i] = b_cast(&b, map[function_result(body, results[i])->id], types[i]);
	b_return(&b, n, out);
	function_drop_unread(part);
	arena_free(scratch);
	return part;
}

Value *
group_part_argument(const Node *call, const Value *param)
{
	const Function *body = called_function(call);
	int i = 0;

	while (strcmp(body->params.at[i]->name, param->name))
		i++;
	return node_operand(call, i);
}

/* ---- equal bodies */
/* By value id: numbers of parameters and results in their order, which do not depend on ids. */
static int *
numbers_of(Arena *arena, const Function *f)
{
	int *numbers = NEW_ARRAY(arena, int, f->next_value_id), next = 1;

	for (int i = 0; i < f->params.n; i++)
		numbers[f->params.at[i]->id] = next++;
	for_each_node(f, n)
		for (int i = 0; i < n->n_results; i++)
			numbers[node_result(n, i)->id] = next++;
	return numbers;
}

static uint64_t
body_hash(const Function *f, const int *numbers)
{
	uint64_t h = hash_mix((uint64_t)(uintptr_t)f->group, (uint64_t)f->params.n);

	for (int i = 0; i < f->params.n; i++)
		h = hash_mix(h, (uint64_t)(uintptr_t)f->params.at[i]->type);
	for_each_node(f, n) {
		h = hash_mix(h, hash_mix(n->op, attr_hash(op_row(n), n->attr)));
		for (int i = 0; i < n->n_operands; i++) {
			const Value *v = node_operand(n, i);
			h = hash_mix(h, v ? (uint64_t)numbers[v->id] : 0);
		}
	}
	return h;
}

static bool
node_same(const Node *a, const int *in_a, const Node *b, const int *in_b)
{
	if (a->op != b->op || a->n_operands != b->n_operands ||
	    !attr_equal(op_row(a), a->attr, b->attr))
		return false;
	for (int i = 0; i < a->n_operands; i++) {
		const Value *x = node_operand(a, i), *y = node_operand(b, i);
		if (!x != !y || (x && in_a[x->id] != in_b[y->id]))
			return false;
	}
	return true;
}

/* Types of results need no comparison: they follow from the parameters. */
static bool
body_same(Arena *scratch, const Function *a, const Function *b, const int *in_b)
{
	const int *in_a = numbers_of(scratch, a);
	const Node *other = b->first;

	if (a->group != b->group || a->params.n != b->params.n || a->n_nodes != b->n_nodes)
		return false;
	for (int i = 0; i < a->params.n; i++)
		if (a->params.at[i]->type != b->params.at[i]->type)
			return false;
	for_each_node(a, n) {
		if (!node_same(n, in_a, other, in_b))
			return false;
		other = other->next;
	}
	return true;
}

GroupBody *
group_share(Recognition *r, Function *body)
{
	const int *numbers = numbers_of(r->scratch, body);
	uint64_t i, h = body_hash(body, numbers);

	for (; intmap_get(r->by_hash, h, &i); h++) {
		GroupBody *earlier = &r->bodies.at[i];
		if (!body_same(r->scratch, earlier->body, body, numbers))
			continue;
		function_remove(body);
		return earlier;
	}
	intmap_put(r->by_hash, h, (uint64_t)r->bodies.n);
	vec_push(r->scratch, &r->bodies, ((GroupBody){body, NULL}));
	return &r->bodies.at[r->bodies.n - 1];
}

Node *
group_call(Recognition *r, Node *n, const GroupBody *body, int n_arguments, Value *const *arguments)
{
	Builder b = {.m = r->m, .f = r->f, .before = n, .loc = n->loc, .phase = n->phase};
	CallAttr attr = {.callee = body->body, .gradient = body->gradient};
	Node *call = build_node(&b, OP_call, n_arguments, arguments, &attr);

	value_replace_uses(node_result(n, 0), node_result(call, 0));
	return call;
}

void
group_note(Recognition *r, const GroupRow *row, const Node *n, const char *why)
{
	vec_push(r->scratch, &r->notes, ((GroupNote){row, n, why}));
}

void
group_drop_notes(Recognition *r, const IntMap *members)
{
	int kept = 0;

	for (int i = 0; i < r->notes.n; i++)
		if (!intmap_get(members, r->notes.at[i].node->id, NULL))
			r->notes.at[kept++] = r->notes.at[i];
	r->notes.n = kept;
}

static void
print_notes(Recognition *r)
{
	for (int i = 0; i < r->notes.n; i++) {
		const GroupNote *n = &r->notes.at[i];
		const char *text = arena_printf(r->scratch, "%s %s", n->row->name, n->why);
		if (strmap_get(r->said, text))
			continue;
		strmap_put(r->said, text, (void *)(uintptr_t)n->row);
		diag_remark(r->diag, "%s: node \"%s\" looks like %s, but %s: its nodes stay apart",
		            r->m->name, loc_origin(n->node->loc), n->row->name, n->why);
	}
	r->notes.n = 0;
}

/* ---- all groups of a function */
static bool
recognize_row(Recognition *r, const GroupRow *row)
{
	bool found = false;

	for_each_node(r->f, n)
		found |= row->recognize(r, n);
	if (found)
		function_drop_unread(r->f);
	return found;
}

bool
groups_recognize(Recognition *r)
{
	bool found = false;

	for (int i = 0; group_table[i]; i++)
		if (group_table[i]->recognize &&
		    group_table[i]->spans_backward == (r->takes != NULL))
			found |= recognize_row(r, group_table[i]);
	print_notes(r);
	return found;
}

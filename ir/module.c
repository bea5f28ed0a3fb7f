/* Creates and queries modules, functions and states of tensor IR, and contains the five
 * functions that change a graph. */
#include "ir/ir.h"

#include <assert.h>
#include <math.h>
#include <string.h>

Module *
module_new(const char *name)
{
	Arena *arena = arena_new();
	Module *m = NEW(arena, Module);

	m->arena = arena;
	m->name = arena_strdup(arena, name);
	m->function_names = strmap_new(arena);
	m->state_names = strmap_new(arena);
	m->kernel_names = strmap_new(arena);
	m->interned_types = intmap_new(arena);
	m->interned_locs = intmap_new(arena);
	m->interned_attrs = intmap_new(arena);
	return m;
}

void
module_free(Module *m)
{
	if (!m)
		return;
	for (int i = 0; i < m->arenas.n; i++)
		arena_free(m->arenas.at[i]);
	arena_free(m->arena);
}

Function *
module_function(const Module *m, const char *name)
{
	return strmap_get(m->function_names, name);
}

/* "accumulate", "accumulate.1" */
static const char *
program_name(const Module *m, Role role, int binding)
{
	return module_fresh_name(
		m, binding ? arena_printf(m->arena, "%s.%d", role_names[role], binding)
			   : role_names[role]);
}

Function *
program_new(Module *m, Role role, int binding)
{
	Function *f = function_new(m, program_name(m, role, binding));

	f->role = role;
	f->binding = binding;
	f->arena = arena_new();
	vec_push(m->arena, &m->arenas, f->arena);
	return f;
}

void
module_split_inference(Module *m)
{
	for_each_of_role(m, ROLE_FORWARD, f) {
		if (function_beside(f, ROLE_INFERENCE))
			continue;
		Function *to = function_clone(f, program_name(m, ROLE_INFERENCE, f->binding));
		to->role = ROLE_INFERENCE;
		to->binding = f->binding;
		to->stage = f->stage;
		to->mode = f->mode;
		to->target = f->target;
	}
}

Function *
module_first(const Module *m, Role role)
{
	for_each_of_role(m, role, f)
		return f;
	return NULL;
}

Function *
function_beside(const Function *f, Role role)
{
	for_each_of_role(f->module, role, other)
		if (other->binding == f->binding && other->stage == f->stage &&
		    other->mode == f->mode &&
		    strcmp(other->target ? other->target : "", f->target ? f->target : "") == 0)
			return other;
	return NULL;
}

State *
module_state(const Module *m, const char *name)
{
	return strmap_get(m->state_names, name);
}

State *
module_state_of_kind(const Module *m, StateKind kind)
{
	for (int i = 0; i < m->states.n; i++)
		if (m->states.at[i]->kind == kind)
			return m->states.at[i];
	return NULL;
}

State *
module_updates(Module *m)
{
	State *s = module_state_of_kind(m, STATE_UPDATES);

	return s ? s
	         : state_new(m, module_fresh_name(m, "updates"), type_scalar(m, S64), STATE_UPDATES,
	                     LIFE_SAVED);
}

const char *
module_fresh_name(const Module *m, const char *name)
{
	const char *fresh = name;

	for (int i = 2; module_function(m, fresh) || module_state(m, fresh) ||
	                strmap_get(m->kernel_names, fresh);
	     i++)
		fresh = arena_printf(m->arena, "%s.%d", name, i);
	return fresh;
}

Function *
function_new(Module *m, const char *name)
{
	Function *f = NEW(m->arena, Function);

	assert(!module_function(m, name));
	f->module = m;
	f->arena = m->arena;
	f->name = arena_strdup(m->arena, name);
	f->index = m->functions.n;
	vec_push(m->arena, &m->functions, f);
	strmap_put(m->function_names, f->name, f);
	return f;
}

void
function_remove(Function *f)
{
	Module *m = f->module;

	for (int i = f->index; i + 1 < m->functions.n; i++) {
		m->functions.at[i] = m->functions.at[i + 1];
		m->functions.at[i]->index = i;
	}
	m->functions.n--;
	strmap_put(m->function_names, f->name, NULL);
	for_each_function(m, other)
		if (other->derivative == f)
			other->derivative = NULL;
}

void
function_rename(Function *f, const char *name)
{
	Module *m = f->module;

	assert(!module_function(m, name));
	strmap_put(m->function_names, f->name, NULL);
	f->name = arena_strdup(m->arena, name);
	strmap_put(m->function_names, f->name, f);
}

State *
state_new(Module *m, const char *name, Type type, StateKind kind, Lifetime lifetime)
{
	State *s = NEW(m->arena, State);

	assert(!module_state(m, name));
	*s = (State){.id = m->states.n,
	             .type = type,
	             .kind = kind,
	             .lifetime = lifetime,
	             .lr_scale = 1,
	             .offset = -1};
	s->name = arena_strdup(m->arena, name);
	vec_push(m->arena, &m->states, s);
	strmap_put(m->state_names, s->name, s);
	return s;
}

const Adapter *
module_adapter(const Module *m, const State *s)
{
	for (int i = 0; s && i < m->adapters.n; i++) {
		const Adapter *a = &m->adapters.at[i];
		if (s == a->weight || s == a->a || s == a->b || s == a->magnitude)
			return a;
	}
	return NULL;
}

const FourBitWeight *
module_four_bit(const Module *m, const State *codes)
{
	for (int i = 0; i < m->four_bit.n; i++)
		if (m->four_bit.at[i].codes == codes)
			return &m->four_bit.at[i];
	return NULL;
}

Type
state_weight_type(const Module *m, const State *s)
{
	const FourBitWeight *w = module_four_bit(m, s);

	return w ? w->type : s->type;
}

double
adapter_scale(const Adapter *a)
{
	double rank = (double)a->b->type->dims[1];

	return a->alpha / (a->rslora ? sqrt(rank) : rank);
}

void
state_begin_as(State *s, InitKind init, double a, double b)
{
	s->init = init;
	s->init_a = a;
	s->init_b = b;
	s->data = NULL;
}

State *
state_copy(Module *m, const char *prefix, State *of, DType d, StateKind kind, Lifetime lifetime)
{
	const char *name = arena_printf(m->arena, "%s.%s", prefix, of->name);
	State *s = state_new(m, module_fresh_name(m, name), type_with_dtype(m, of->type, d), kind,
	                     lifetime);

	s->of = of;
	s->init = INIT_COPY;
	s->loc = of->loc;
	return s;
}

static Value *
value_init(Value *v, Function *f, ValueKind kind, Type type, int index)
{
	*v = (Value){.id = f->next_value_id++,
	             .kind = kind,
	             .type = type,
	             .function = f,
	             .index = index};
	return v;
}

static Value *
value_new(Function *f, ValueKind kind, Type type, int index)
{
	return value_init(NEW(f->arena, Value), f, kind, type, index);
}

static const char *
numbered_name(Arena *arena, const char *name, int i)
{
	return i > 1 ? arena_printf(arena, "%s.%d", name, i) : arena_strdup(arena, name);
}

static bool
has_result_name(const Function *f, const char *name)
{
	for (int i = 0; i < f->result_names.n; i++)
		if (strcmp(f->result_names.at[i], name) == 0)
			return true;
	return false;
}

void
function_name_result(Function *f, const char *name)
{
	const char *fresh = name;

	for (int i = 1; has_result_name(f, fresh = numbered_name(f->module->arena, name, i)); i++)
		;
	vec_push(f->module->arena, &f->result_names, fresh);
}

static bool
has_param(const Function *f, const char *name)
{
	for (int i = 0; i < f->params.n; i++)
		if (strcmp(f->params.at[i]->name, name) == 0)
			return true;
	return false;
}

Value *
function_param_as(Function *f, Type type, const char *name, ParamKind kind, int number)
{
	Arena *arena = f->module->arena;
	const char *fresh = name;

	for (int i = 1; has_param(f, fresh = numbered_name(arena, name, i)); i++)
		;
	Value *v = value_new(f, VALUE_PARAM, type, f->params.n);
	v->name = fresh;
	v->param = kind;
	v->number = number;
	vec_push(arena, &f->params, v);
	return v;
}

Value *
function_param(Function *f, Type type, const char *name)
{
	return function_param_as(f, type, name, PARAM_ARGUMENT, 0);
}

Value *
function_find_param(const Function *f, ParamKind kind, int number)
{
	for (int i = 0; i < f->params.n; i++) {
		Value *v = f->params.at[i];
		if (v->param == kind && (number < 0 || v->number == number))
			return v;
	}
	return NULL;
}

Value *
function_hyperparameter(Function *f, ScalarIndex index)
{
	Value *v = function_find_param(f, PARAM_HYPERPARAMETER, (int)index);
	Type type = type_scalar(f->module, scalar_dtypes[index]);

	return v ? v
	         : function_param_as(f, type, scalar_names[index], PARAM_HYPERPARAMETER,
	                             (int)index);
}

Value *
function_state(Function *f, State *state)
{
	while (f->by_state.n <= state->id)
		vec_push(f->module->arena, &f->by_state, NULL);
	Value *v = f->by_state.at[state->id];
	if (v)
		return v;
	v = value_new(f, VALUE_STATE, state->type, f->states.n);
	v->state = state;
	vec_push(f->module->arena, &f->states, v);
	return f->by_state.at[state->id] = v;
}

Node *
function_return(const Function *f)
{
	return f->last && f->last->op == OP_return ? f->last : NULL;
}

Node *
function_stores(const Function *f)
{
	Node *first = NULL;

	for (Node *n = f->last; n && (n->op == OP_return || n->op == OP_store); n = n->prev)
		first = n;
	return first;
}

Node *
function_store_of(const Function *f, const State *s)
{
	for (Node *n = f->last; n && (n->op == OP_return || n->op == OP_store); n = n->prev)
		if (n->op == OP_store && ((const StoreAttr *)n->attr)->state == s)
			return n;
	return NULL;
}

Value *
store_elements(const Node *store)
{
	Value *v = node_operand(store, 0);

	return v->node && v->node->op == OP_reshape ? node_operand(v->node, 0) : v;
}

Value *
function_result(const Function *f, int i)
{
	return node_operand(function_return(f), i);
}

static void
use_link(Use *u, Value *v)
{
	u->value = v;
	if (!v)
		return;
	u->next = v->uses;
	u->link = &v->uses;
	if (u->next)
		u->next->link = &u->next;
	v->uses = u;
}

static void
use_unlink(Use *u)
{
	if (!u->value)
		return;
	*u->link = u->next;
	if (u->next)
		u->next->link = u->link;
	*u = (Use){.user = u->user};
}

static void
node_link(Node *n, Node *before)
{
	Function *f = n->function;

	n->next = before;
	n->prev = before ? before->prev : f->last;
	*(n->prev ? &n->prev->next : &f->first) = n;
	*(before ? &before->prev : &f->last) = n;
}

static void
node_unlink(Node *n)
{
	Function *f = n->function;

	*(n->prev ? &n->prev->next : &f->first) = n->next;
	*(n->next ? &n->next->prev : &f->last) = n->prev;
}

typedef struct {
	const OpRow *row;
	void *attr;
} SharedAttr;

static Node *
node_alloc(Arena *arena, int n_operands, int n_results)
{
	_Static_assert(_Alignof(Value) <= _Alignof(Use) && sizeof(Node) % _Alignof(Use) == 0,
	               "operands and results follow the node");
	return arena_alloc(arena, sizeof(Node) + sizeof(Use) * (size_t)n_operands +
	                                  sizeof(Value) * (size_t)n_results);
}

/* Views and reductions have large attributes, most of them equal; such nodes share one copy. */
static bool
shares_attrs(const OpRow *row)
{
	return row->fuse == FUSE_VIEW || row->fuse == FUSE_REDUCE;
}

static void *
node_attr(Function *f, const OpRow *row, const void *attr)
{
	Module *m = f->module;
	uint64_t h, found;

	if (row->attr_size == 0)
		return NULL;
	if (!shares_attrs(row))
		return arena_copy(f->arena, attr, row->attr_size);
	for (h = hash_mix((uint64_t)(uintptr_t)row, attr_hash(row, attr));
	     intmap_get(m->interned_attrs, h, &found); h++) {
		const SharedAttr *shared = (const SharedAttr *)(uintptr_t)found;
		if (shared->row == row && attr_equal(row, shared->attr, attr))
			return shared->attr;
	}
	SharedAttr *fresh = NEW(m->arena, SharedAttr);
	*fresh = (SharedAttr){row, arena_copy(m->arena, attr, row->attr_size)};
	intmap_put(m->interned_attrs, h, (uint64_t)(uintptr_t)fresh);
	return fresh->attr;
}

Node *
node_insert(Function *f, Node *before, OpKind op, int n_operands, Value *const *operands,
            const void *attr, int n_results, const Type *types, Loc loc)
{
	Node *n = node_alloc(f->arena, n_operands, n_results);

	*n = (Node){.id = f->next_node_id++,
	            .op = op,
	            .function = f,
	            .attr = node_attr(f, op_table[op], attr),
	            .loc = loc,
	            .n_operands = n_operands,
	            .n_results = n_results};
	for (int i = 0; i < n_operands; i++) {
		n->operands[i] = (Use){.user = n};
		use_link(&n->operands[i], operands[i]);
	}
	for (int i = 0; i < n_results; i++)
		value_init(node_result(n, i), f, VALUE_RESULT, types[i], i)->node = n;
	node_link(n, before);
	f->n_nodes++;
	return n;
}

void
node_set_operand(Node *n, int i, Value *v)
{
	use_unlink(&n->operands[i]);
	use_link(&n->operands[i], v);
}

static uint64_t
mark_key(const Node *n, int i)
{
	return (uint64_t)n->id << 32 | (uint32_t)i;
}

OperandMark
node_mark(const Node *n, int i)
{
	uint64_t found;

	if (!n->function->marks || !intmap_get(n->function->marks, mark_key(n, i), &found))
		return (OperandMark){0};
	return (OperandMark){(int)(found >> 32), (int)(uint32_t)found};
}

void
node_set_mark(Node *n, int i, OperandMark mark)
{
	Function *f = n->function;

	if (!f->marks && mark.of)
		f->marks = intmap_new(f->module->arena);
	if (f->marks)
		intmap_put(f->marks, mark_key(n, i),
		           (uint64_t)mark.of << 32 | (uint32_t)mark.views);
}

void
node_erase(Node *n)
{
	for (int i = 0; i < n->n_results; i++)
		assert(!node_result(n, i)->uses);
	for (int i = 0; i < n->n_operands; i++)
		use_unlink(&n->operands[i]);
	node_unlink(n);
	n->function->n_nodes--;
}

/* ---- compaction */
typedef struct {
	Function *f;
	Arena *arena;   /* new */
	Value **values; /* by old id: the value's new place; NULL: the value is gone */
	Node **nodes;   /* by old id */
} Compaction;

static void
move_value(Compaction *c, Value *to, const Value *from, Node *node)
{
	*to = *from;
	to->node = node;
	c->values[from->id] = to;
}

static Value *
moved_value(Compaction *c, const Value *from)
{
	move_value(c, NEW(c->arena, Value), from, NULL);
	return c->values[from->id];
}

static Node *
moved_node(Compaction *c, const Node *from)
{
	const OpRow *row = op_row(from);
	Node *n = node_alloc(c->arena, from->n_operands, from->n_results);

	*n = *from;
	c->nodes[n->id] = n;
	if (row->attr_size && !shares_attrs(row))
		n->attr = arena_copy(c->arena, from->attr, row->attr_size);
	for (int i = 0; i < n->n_operands; i++)
		n->operands[i] = (Use){.user = n};
	for (int i = 0; i < n->n_results; i++)
		move_value(c, node_result(n, i), node_result(from, i), n);
	return n;
}

/* Lists the uses of a moved value, which still has the list of its old uses, in the same order. */
static void
move_uses(const Compaction *c, Value *v)
{
	const Use *from = v->uses;

	v->uses = NULL;
	for (Use **link = &v->uses; from; from = from->next) {
		Use *u = &c->nodes[from->user->id]->operands[use_index(from)];
		u->value = v;
		u->link = link;
		*link = u;
		link = &u->next;
	}
}

static void
renumber(const Compaction *c)
{
	Function *f = c->f;
	uint32_t n_values = 0, n_nodes = 0;

	for (uint32_t i = 0; i < f->next_value_id; i++)
		if (c->values[i])
			move_uses(c, c->values[i]);
	for (uint32_t i = 0; i < f->next_value_id; i++)
		if (c->values[i])
			c->values[i]->id = n_values++;
	for (uint32_t i = 0; i < f->next_node_id; i++)
		if (c->nodes[i])
			c->nodes[i]->id = n_nodes++;
	f->next_value_id = n_values;
	f->next_node_id = n_nodes;
}

static void
replace_arena(Function *f, Arena *fresh)
{
	Module *m = f->module;

	for (int i = 0; i < m->arenas.n; i++)
		if (m->arenas.at[i] == f->arena)
			m->arenas.at[i] = fresh;
	arena_free(f->arena);
	memory_give_back();
	f->arena = fresh;
}

void
function_compact(Function *f)
{
	if (f->arena == f->module->arena)
		return;
	Arena *scratch = arena_new();
	Compaction c = {f, arena_new(), NEW_ARRAY(scratch, Value *, f->next_value_id),
	                NEW_ARRAY(scratch, Node *, f->next_node_id)};
	const Node *first = f->first;

	f->marks = NULL; /* only `quantize` reads them, which runs before */
	f->first = f->last = NULL;
	for (int i = 0; i < f->params.n; i++)
		f->params.at[i] = moved_value(&c, f->params.at[i]);
	for (int i = 0; i < f->states.n; i++) {
		f->states.at[i] = moved_value(&c, f->states.at[i]);
		f->by_state.at[f->states.at[i]->state->id] = f->states.at[i];
	}
	for (const Node *n = first; n; n = n->next)
		node_link(moved_node(&c, n), NULL);
	renumber(&c);
	replace_arena(f, c.arena);
	arena_free(scratch);
}

void
value_replace_uses(Value *from, Value *to)
{
	assert(from != to);
	while (from->uses) {
		Use *u = from->uses;
		use_unlink(u);
		use_link(u, to);
	}
}

void
node_move(Node *n, Node *before)
{
	if (before == n)
		return;
	node_unlink(n);
	node_link(n, before);
}

bool
function_drop_unread(Function *f)
{
	bool changed = false;

	for_each_node_reverse(f, n) {
		bool read = op_row(n)->effect;
		for (int i = 0; i < n->n_results; i++)
			read |= value_used(node_result(n, i));
		if (!read) {
			node_erase(n);
			changed = true;
		}
	}
	return changed;
}

bool
value_used_once(const Value *v)
{
	return v->uses && !v->uses->next;
}

const Tensor *
value_constant(const Value *v)
{
	return v->node && v->node->op == OP_constant ? ((ConstantAttr *)v->node->attr)->value
	                                             : NULL;
}

bool
value_splat(const Value *v, double *out)
{
	while (v->node && (v->node->op == OP_broadcast || v->node->op == OP_reshape))
		v = node_operand(v->node, 0);
	const Tensor *t = value_constant(v);
	return t && tensor_is_splat(t, out);
}

void
function_clone_body(const Function *from, Function *to, Node *before, Value **map)
{
	Arena *scratch = arena_new();

	for (int i = 0; i < from->states.n; i++)
		map[from->states.at[i]->id] = function_state(to, from->states.at[i]->state);
	for_each_node(from, n) {
		if (n->op == OP_return)
			continue;
		Value **operands = NEW_ARRAY(scratch, Value *, n->n_operands);
		Type *types = NEW_ARRAY(scratch, Type, n->n_results);
		for (int i = 0; i < n->n_operands; i++)
			operands[i] = node_operand(n, i) ? map[node_operand(n, i)->id] : NULL;
		for (int i = 0; i < n->n_results; i++)
			types[i] = node_result(n, i)->type;
		Node *copy = node_insert(to, before, n->op, n->n_operands, operands, n->attr,
		                         n->n_results, types, n->loc);
		copy->phase = n->phase;
		copy->when = n->when;
		copy->line = n->line;
		for (int i = 0; from->marks && i < n->n_operands; i++)
			node_set_mark(copy, i, node_mark(n, i));
		for (int i = 0; i < n->n_results; i++)
			map[node_result(n, i)->id] = node_result(copy, i);
	}
	arena_free(scratch);
}

Function *
function_clone(const Function *from, const char *name)
{
	Function *to = function_new(from->module, name);
	Arena *scratch = arena_new();
	Value **map = NEW_ARRAY(scratch, Value *, from->next_value_id);
	Builder b = {.m = from->module, .f = to};

	to->kind = from->kind;
	to->group = from->group;
	to->surrogate = from->surrogate;
	to->line = from->line;
	for (int i = 0; i < from->result_names.n; i++)
		vec_push(from->module->arena, &to->result_names, from->result_names.at[i]);
	for (int i = 0; i < from->params.n; i++) {
		Value *p = from->params.at[i];
		map[p->id] = function_param_as(to, p->type, p->name, p->param, p->number);
		map[p->id]->has_rows = p->has_rows;
		map[p->id]->rows_axis = p->rows_axis;
	}
	function_clone_body(from, to, NULL, map);
	Node *ret = function_return(from);
	Value **results = NEW_ARRAY(scratch, Value *, ret->n_operands);
	for (int i = 0; i < ret->n_operands; i++)
		results[i] = map[node_operand(ret, i)->id];
	b_return(&b, ret->n_operands, results);
	arena_free(scratch);
	return to;
}

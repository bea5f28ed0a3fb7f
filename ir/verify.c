/* The verifier: reports every fault of a module. It infers the types of all nodes again and
 * compares them with the stored types. */
#include "ir/ir.h"
#include "ir/loop/loop.h"
#include "ir/programs/programs.h"

#include <string.h>

typedef struct {
	const Module *m;
	const Function *f;
	Diag *diag;
	Arena *arena;
	const int *numbers; /* printed numbers of f's values; made at f's first fault */
	bool ok;
	bool *seen;
	const Value **marked;
	/* of the function: by number of a quantized operand, the value that becomes codes */ /* by value id: is the value defined before the current node? */
	bool *called; /* by function index: a node of another function calls it, or it is a surrogate */
} Verify;

void
module_place(Text *out, const Module *m, int line)
{
	text_add(out, m->file ? m->file : m->name);
	if (m->file && line)
		text_printf(out, ":%d", line);
}

static void PRINTF(3, 4) report(Verify *v, const Node *n, const char *fmt, ...)
{
	va_list args;
	Text line = {0};

	module_place(&line, v->m, n ? n->line : v->f->line);
	va_start(args, fmt);
	text_printf(&line, ": @%s: %s", v->f->name, arena_vprintf(v->arena, fmt, args));
	va_end(args);
	if (n) {
		if (!v->numbers)
			v->numbers = function_numbers(v->arena, v->f);
		text_add(&line, ": ");
		node_print(&line, n, v->numbers);
	}
	diag_error(v->diag, EXIT_INVALID, "%s", line.at);
	text_free(&line);
	v->ok = false;
}

static void PRINTF(3, 4) state_fault(Verify *v, const State *s, const char *fmt, ...)
{
	va_list args;
	Text line = {0};

	module_place(&line, v->m, s->line);
	va_start(args, fmt);
	text_printf(&line, ": state @%s %s", s->name, arena_vprintf(v->arena, fmt, args));
	va_end(args);
	diag_error(v->diag, EXIT_INVALID, "%s", line.at);
	text_free(&line);
	v->ok = false;
}

static void
verify_operands(Verify *v, const Node *n)
{
	for (int i = 0; i < n->n_operands; i++) {
		const Use *u = &n->operands[i];
		if (!u->value)
			continue;
		if (u->value->function != v->f)
			report(v, n, "operand %d belongs to another function", i);
		else if (!v->seen[u->value->id])
			report(v, n, "operand %d is used before it is defined", i);
		if (u->user != n || use_index(u) != i || *u->link != u)
			report(v, n, "the use list of operand %d is wrong", i);
	}
}

static void
verify_types(Verify *v, const Node *n)
{
	Type *operands = NEW_ARRAY(v->arena, Type, n->n_operands);
	Type *results = NEW_ARRAY(v->arena, Type, n->n_results + 8);
	int n_results;

	for (int i = 0; i < n->n_operands; i++)
		operands[i] = node_operand(n, i) ? node_operand(n, i)->type : NULL;
	const char *why = op_infer((Module *)v->m, v->arena, n->op, n->attr, n->n_operands,
	                           operands, &n_results, results, n->n_results + 4);
	if (why) {
		report(v, n, "%s", why);
		return;
	}
	if (n_results != n->n_results)
		report(v, n, "has %d results, inference gives %d", n->n_results, n_results);
	for (int i = 0; i < n->n_results && i < n_results; i++)
		if (results[i] != node_result(n, i)->type)
			report(v, n, "result %d has another type than inference gives", i);
}

/* The stores that a walk over a function has passed so far. Until the pass `schedule`, stores stand
 * at the end of a function. Later they may stand between launches, but no node after a store may
 * read the state's old content. */
typedef struct {
	bool began;
	uint8_t *stored; /* by state id: when_runs of the stores so far */
	uint8_t *inside; /* by id of a unit: when_runs of the stores into its members so far */
} Stores;

static void
verify_read(Verify *v, const Node *n, const Stores *s, const State *read)
{
	unsigned behind = s->stored[read->id] | s->inside[read->id];

	for (const State *unit = read->unit; unit; unit = unit->unit)
		behind |= s->stored[unit->id];
	if (behind & when_runs(n->when))
		report(v, n, "reads @%s after its store", read->name);
}

static void
verify_store(Verify *v, const Node *n, Stores *s)
{
	if (n->op == OP_store) {
		if (v->called[v->f->index])
			report(v, n, "a store in a function that others call");
		const State *state = ((StoreAttr *)n->attr)->state;
		s->began = true;
		if (!state)
			return;
		if (s->stored[state->id] & when_runs(n->when))
			report(v, n, "@%s is stored twice", state->name);
		s->stored[state->id] |= when_runs(n->when);
		for (const State *unit = state->unit; unit; unit = unit->unit)
			s->inside[unit->id] |= when_runs(n->when);
		return;
	}
	if (s->began && n->op != OP_launch && n->op != OP_return && op_row(n)->fuse != FUSE_CONTROL)
		report(v, n, "a node after a store");
	for (int i = 0; s->began && n->op == OP_launch && i < n->n_operands; i++)
		if (node_operand(n, i) && node_operand(n, i)->kind == VALUE_STATE)
			verify_read(v, n, s, node_operand(n, i)->state);
}

/* Checks that each parameter has the type that its meaning requires, and that no two parameters
 * have the same meaning. */
static void
verify_params(Verify *v, const Function *f)
{
	for (int i = 0; i < f->params.n; i++) {
		const Value *p = f->params.at[i];
		if (p->param == PARAM_HYPERPARAMETER &&
		    p->type != type_scalar((Module *)v->m, scalar_dtypes[p->number]))
			report(v, NULL, "%%%s is hyperparameter %s, which is %s[]", p->name,
			       scalar_names[p->number], dtype_info[scalar_dtypes[p->number]].name);
		if (p->param == PARAM_SAMPLE_WEIGHT &&
		    (p->type->rank != 1 || !dtype_is_float(p->type->dtype)))
			report(v, NULL, "%%%s is sample_weight, floats of rank 1", p->name);
		if (p->param != PARAM_ARGUMENT && function_find_param(f, p->param, p->number) != p)
			report(v, NULL, "%%%s has the same meaning as another parameter", p->name);
	}
}

/* Checks that a surrogate (the function differentiated instead of another) has the same types as
 * the function that it replaces. */
static void
verify_surrogate(Verify *v, const Function *f)
{
	const Function *s = f->surrogate;
	const Node *own = function_return(f), *other = s ? function_return(s) : NULL;
	bool same = s && own && other && s->params.n == f->params.n &&
	            own->n_operands == other->n_operands;

	for (int i = 0; same && i < f->params.n; i++)
		same = f->params.at[i]->type == s->params.at[i]->type;
	for (int i = 0; same && i < own->n_operands; i++)
		same = node_operand(own, i)->type == node_operand(other, i)->type;
	if (s && !same)
		report(v, NULL, "its surrogate @%s has other parameters or results", s->name);
}

static bool
same_target(const Function *a, const Function *b)
{
	return strcmp(a->target ? a->target : "", b->target ? b->target : "") == 0;
}

static void
verify_role(Verify *v, const Function *f)
{
	if (f->role == ROLE_HELPER)
		return;
	for_each_function(v->m, other) {
		if (other == f)
			return;
		if (other->role == f->role && other->binding == f->binding &&
		    other->stage == f->stage && other->mode == f->mode && same_target(other, f))
			report(v, NULL, "has the role of @%s", other->name);
	}
}

/* The function that a field names; NULL: it names no function. */
static const Function *
field_function(const Node *n, const Field *field)
{
	return field->kind == FIELD_FUNC ? *(Function **)((char *)n->attr + field->offset) : NULL;
}

/* A unit (a state that contains other states) may lie in another unit, and so on. A cycle of
 * units is a fault that stops the verifier, because code that goes from unit to unit would not
 * end. */
static bool
verify_unit(Verify *v, const State *s)
{
	const State *unit = s->unit;
	int steps = 0;

	if (!unit)
		return true;
	if (unit->type->dtype != s->type->dtype || s->unit_offset < 0 ||
	    s->unit_offset > unit->type->n - s->type->n)
		state_fault(v, s, "does not fit in its unit");
	while (unit && steps++ < v->m->states.n)
		unit = unit->unit;
	if (unit)
		state_fault(v, s, "lies in itself");
	return !unit;
}

/* Bytes of memory that no machine has. */
static const int64_t MOST_BYTES = (int64_t)1 << 46;

/* Returns false if units form a cycle: the verifier must stop. */
static bool
verify_states(Verify *v)
{
	bool ends = true;

	Module *m = (Module *)v->m; /* only to intern types */

	for (int i = 0; i < m->states.n; i++) {
		const State *s = m->states.at[i];
		int scalar = state_kinds[s->kind].scalar;
		if (scalar == ANY_SCALAR && s->type->rank)
			state_fault(v, s, "is of kind %s, which has no axes",
			            state_kind_names[s->kind]);
		if (scalar >= 0 && s->type != type_scalar(m, (DType)scalar))
			state_fault(v, s, "is of kind %s, which has the type %s[]",
			            state_kind_names[s->kind], dtype_info[scalar].name);
		if (s->init == INIT_COPY && (!s->of || s->of->type->n != s->type->n))
			state_fault(v, s, "is a copy, but `of` names no state of its size");
		if (s->kind == STATE_PENDING && (!s->of || s->of->type != s->type))
			state_fault(v, s, "is pending, but `of` names no state of its type");
		if (s->block < 0 || s->block > s->type->n ||
		    (s->block && s->type->n % s->block != 0))
			state_fault(v, s, "is not divided into whole blocks");
		if (m->stage &&
		    (s->offset < 0 || s->offset > MOST_BYTES || type_bytes(s->type) > MOST_BYTES))
			state_fault(v, s, "has no place in memory, but the module has programs");
		ends &= verify_unit(v, s);
	}
	return ends;
}

static void
adapter_fault(Verify *v, const Adapter *a, const char *what)
{
	Text line = {0};

	module_place(&line, v->m, a->line);
	diag_error(v->diag, EXIT_INVALID, "%s: adapter of @%s %s", line.at, a->weight->name, what);
	text_free(&line);
	v->ok = false;
}

static bool
has_adapter_shapes(const Module *m, const Adapter *a)
{
	Type w = state_weight_type(m, a->weight), x = a->a->type, y = a->b->type;

	if (a->axis >= w->rank || x->rank != w->rank || y->rank != 2 ||
	    y->dims[0] != w->dims[a->axis] || y->dims[1] != x->dims[a->axis])
		return false;
	for (int i = 0; i < w->rank; i++)
		if (i != a->axis && x->dims[i] != w->dims[i])
			return false;
	const State *s = a->magnitude;
	bool scales = !s || (s->type->rank == 1 && s->type->dims[0] == w->dims[a->axis] &&
	                     dtype_is_float(s->type->dtype));
	return scales && dtype_is_float(x->dtype) && dtype_is_float(y->dtype);
}

static bool
is_vector(const State *s, DType dtype, int64_t n)
{
	return s->type->dtype == dtype && s->type->rank == 1 && s->type->n == n;
}

static bool
has_four_bit_shapes(const Module *m, const FourBitWeight *w)
{
	int64_t n = w->type->n, blocks = four_bit_blocks(n);
	bool is_one = module_four_bit(m, w->codes) == w;
	bool has_codes = is_vector(w->codes, U8, (n + 1) / 2) && w->axis < w->type->rank &&
	                 dtype_is_float(w->type->dtype);

	if (!w->nested)
		return is_one && has_codes && is_vector(w->absmax, F32, blocks);
	return is_one && has_codes && is_vector(w->absmax, U8, blocks) &&
	       is_vector(w->nested, F32, absmax_blocks(blocks)) && is_vector(w->offset, F32, 1);
}

static void
verify_four_bit(Verify *v)
{
	for (int i = 0; i < v->m->four_bit.n; i++) {
		const FourBitWeight *w = &v->m->four_bit.at[i];
		Text line = {0};
		if (has_four_bit_shapes(v->m, w))
			continue;
		module_place(&line, v->m, w->line);
		diag_error(v->diag, EXIT_INVALID,
		           "%s: four_bit @%s: its states do not have the shapes of its blocks",
		           line.at, w->codes->name);
		text_free(&line);
		v->ok = false;
	}
}

static bool
is_code_type(DType d)
{
	DTypeClass class = dtype_info[d].class;

	return (class == CLASS_SIGNED || class == CLASS_UNSIGNED) && dtype_info[d].bits <= 16;
}

/* Codes with scales from the values themselves are those of ONNX's DynamicQuantizeLinear. */
static bool
is_dynamic(const QuantizedOperand *q)
{
	return q->scales == SCALES_DYNAMIC || q->scales == SCALES_TOKEN;
}

static void
verify_quantized(Verify *v)
{
	for (int i = 0; i < v->m->quantized.n; i++) {
		const QuantizedOperand *q = &v->m->quantized.at[i];
		bool is_sound = is_code_type(q->type) &&
		                (q->scales != SCALES_BLOCK || q->block >= 1) &&
		                (!is_dynamic(q) || q->type == U8);
		for (int k = 0; k < q->group.n; k++)
			is_sound &= q->group.at[k] >= 1;
		if (is_sound)
			continue;
		Text line = {0};
		module_place(&line, v->m, q->line);
		diag_error(
			v->diag, EXIT_INVALID,
			"%s: quantized operand %d: its codes need an integer type of at most 16 bits (dynamic and token: u8), its blocks one element or more",
			line.at, i);
		text_free(&line);
		v->ok = false;
	}
}

/* Only operands that the op's column `quantizes` lists may be quantized, behind views alone. */
static void
verify_marks(Verify *v, const Node *n)
{
	for (int i = 0; n->function->marks && i < n->n_operands; i++) {
		const Value *at = node_operand(n, i);
		int views = node_mark(n, i).views;
		if (!node_mark(n, i).of)
			continue;
		if (!operand_in(op_row(n)->quantizes, i))
			report(v, n, "operand %d cannot be quantized", i);
		while (views > 0 && at && value_viewed(at)) {
			at = value_viewed(at);
			views--;
		}
		if (views > 0 || !at)
			report(v, n, "operand %d is not behind %d views", i, node_mark(n, i).views);
		const Value **marked = &v->marked[node_mark(n, i).of - 1];
		if (*marked && *marked != at)
			report(v, n,
			       "operand %d is another value than an operand with the same mark", i);
		*marked = at;
	}
}

static void
verify_adapters(Verify *v)
{
	for (int i = 0; i < v->m->adapters.n; i++) {
		const Adapter *a = &v->m->adapters.at[i];
		if (!has_adapter_shapes(v->m, a))
			adapter_fault(v, a, "has parts of other shapes or types");
		if (module_adapter(v->m, a->weight) != a || module_adapter(v->m, a->a) != a ||
		    module_adapter(v->m, a->b) != a || a->a == a->b ||
		    (a->magnitude && module_adapter(v->m, a->magnitude) != a))
			adapter_fault(v, a, "shares a state with another one");
	}
}

static void
verify_function(Verify *v, const Function *f)
{
	Stores stores = {.stored = NEW_ARRAY(v->arena, uint8_t, v->m->states.n + 1),
	                 .inside = NEW_ARRAY(v->arena, uint8_t, v->m->states.n + 1)};

	v->f = f;
	v->numbers = NULL;
	v->seen = NEW_ARRAY(v->arena, bool, f->next_value_id + 1);
	v->marked = NEW_ARRAY(v->arena, const Value *, v->m->quantized.n + 1);
	verify_params(v, f);
	verify_role(v, f);
	verify_surrogate(v, f);
	for (int i = 0; i < f->params.n; i++)
		v->seen[f->params.at[i]->id] = true;
	for (int i = 0; i < f->states.n; i++)
		v->seen[f->states.at[i]->id] = true;
	for_each_node(f, n) {
		verify_operands(v, n);
		verify_types(v, n);
		verify_marks(v, n);
		verify_store(v, n, &stores);
		if ((n->op == OP_return) != (n == f->last))
			report(v, n,
			       n->op == OP_return ? "a return inside" : "no return at the end");
		for (int i = 0; i < n->n_results; i++)
			v->seen[node_result(n, i)->id] = true;
	}
	if (!f->last)
		report(v, NULL, "no return at the end");
}

static void
find_called(Verify *v)
{
	v->called = NEW_ARRAY(v->arena, bool, v->m->functions.n + 1);
	for_each_function(v->m, f) {
		if (f->surrogate)
			v->called[f->surrogate->index] = true;
		for_each_node(f, n) {
			for (const Field *field = op_row(n)->fields; field && field->name;
			     field++) {
				const Function *callee = field_function(n, field);
				if (callee)
					v->called[callee->index] = true;
			}
		}
	}
}

/* Functions that call each other in a cycle can be neither inlined nor interpreted. */
static bool
calls_in_circle(const Function *f, uint8_t *color)
{
	if (color[f->index])
		return color[f->index] == 1;
	color[f->index] = 1;
	if (f->surrogate && calls_in_circle(f->surrogate, color))
		return true;
	for_each_node(f, n) {
		for (const Field *field = op_row(n)->fields; field && field->name; field++) {
			const Function *callee = field_function(n, field);
			if (callee && calls_in_circle(callee, color))
				return true;
		}
	}
	color[f->index] = 2;
	return false;
}

bool
module_verify(const Module *m, Diag *diag)
{
	Verify v = {.m = m, .diag = diag, .arena = arena_new(), .ok = true};
	uint8_t *color = NEW_ARRAY(v.arena, uint8_t, m->functions.n + 1);

	find_called(&v);
	bool circle = !verify_states(&v);
	verify_adapters(&v);
	verify_four_bit(&v);
	verify_quantized(&v);
	for (int i = 0; i < m->functions.n && !circle; i++)
		verify_function(&v, m->functions.at[i]);
	for (int i = 0; i < m->functions.n && !circle; i++) {
		v.f = m->functions.at[i];
		circle = calls_in_circle(v.f, color);
		if (circle)
			report(&v, NULL, "functions call each other in a circle");
	}
	for (int i = 0; i < m->kernels.n; i++)
		v.ok &= kernel_verify(m, m->kernels.at[i], diag);
	v.ok &= programs_verify(m, v.arena, diag);
	arena_free(v.arena);
	return v.ok;
}

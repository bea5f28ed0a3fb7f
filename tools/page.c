/* gradc dump --format=html: prints a module of the IR as one HTML page. The page shows the
 * functions, foldable by scope, each node with its ONNX node and its gradient; the kernels, with
 * the nodes that each computes; and the use of memory over time. */

#include "tools/tools.h"
#include "ir/groups/groups.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

extern const char dump_page[]; /* the text of dump.html */

static void
set_text(json_t *object, const char *key, Text *text)
{
	json_object_set_new(object, key, json_name(text->at ? text->at : ""));
	text_free(text);
}

/* ---- locations: [[name, is it a gradient's?], ...] */
static void
add_names(json_t *names, Loc loc, bool gradient)
{
	if (!loc)
		return;
	gradient = gradient || loc_is_gradient(loc);
	for (int i = 0; i < loc->n_parts; i++)
		add_names(names, loc->parts[i], gradient);
	if (loc->n_parts == 0)
		json_array_append_new(names, json_pack("[o,b]", json_name(loc->text), gradient));
}

static void
set_location(json_t *object, Loc loc)
{
	json_t *names = json_array();
	Text text = {0};

	loc_text(&text, loc);
	add_names(names, loc, false);
	json_object_set_new(object, "names", names);
	set_text(object, "loc", &text);
}

/* ---- functions */
/* The name of the state from which the scale v is computed: the lower end of a running range, with
 * the name of the ONNX value followed by ".low". NULL: not found. Only scalar operands are
 * searched. */
static const char *
range_behind(Value *v, int depth)
{
	v = behind_views(v);
	if (v->kind == VALUE_STATE) {
		const char *dot = strrchr(v->state->name, '.');
		return v->state->kind == STATE_STATISTIC && dot && !strcmp(dot, ".low")
		               ? v->state->name
		               : NULL;
	}
	for (int i = 0; depth > 0 && v->node && v->type->rank == 0 && i < v->node->n_operands;
	     i++) {
		Value *x = node_operand(v->node, i);
		const char *found = x && x->type->rank == 0 ? range_behind(x, depth - 1) : NULL;
		if (found)
			return found;
	}
	return NULL;
}

/* If a node makes codes by a running range, sets its "range" to the name of the ONNX value that has
 * this range. */
static void
set_range(json_t *json, const Node *n)
{
	enum { SCALE = 1, DEPTH = 8 };
	bool makes_codes = n->op == OP_quantize || n->op == OP_fake_quantize;
	const char *low = makes_codes ? range_behind(node_operand(n, SCALE), DEPTH) : NULL;

	if (!low)
		return;
	Text name = {0};
	text_add_bytes(&name, low, strlen(low) - strlen(".low"));
	set_text(json, "range", &name);
}

static json_t *
node_json(const Node *n, const int *numbers)
{
	json_t *json = json_object();
	Text text = {0};

	node_print(&text, n, numbers);
	set_text(json, "text", &text);
	set_location(json, n->loc);
	json_object_set_new(json, "op", json_string(op_row(n)->name));
	json_object_set_new(json, "phase", json_integer(n->phase));
	set_range(json, n);
	if (called_function(n))
		json_object_set_new(json, "callee", json_name(called_function(n)->name));
	if (launched_kernel(n))
		json_object_set_new(json, "kernel", json_name(launched_kernel(n)->name));
	return json;
}

static json_t *
params_json(const Function *f)
{
	json_t *params = json_array();

	for (int i = 0; i < f->params.n; i++) {
		json_t *p = json_pack("{s:o}", "name", json_name(f->params.at[i]->name));
		Text type = {0};

		type_print(&type, f->params.at[i]->type);
		set_text(p, "type", &type);
		json_array_append_new(params, p);
	}
	return params;
}

static json_t *
functions_json(const Module *m)
{
	json_t *functions = json_array();
	Arena *scratch = arena_new();

	for_each_function(m, f) {
		const int *numbers = function_numbers(scratch, f);
		json_t *json = json_pack("{s:o,s:b,s:s*,s:o}", "name", json_name(f->name), "fused",
		                         f->kind == FUNCTION_FUSED, "group",
		                         f->group ? f->group->name : NULL, "params",
		                         params_json(f));
		json_t *nodes = json_array();

		for_each_node(f, n)
			if (n->n_operands + n->n_results > 0) /* an empty return is not shown */
				json_array_append_new(nodes, node_json(n, numbers));
		json_object_set_new(json, "nodes", nodes);
		set_location(json, f->loc);
		json_array_append_new(functions, json);
	}
	arena_free(scratch);
	return functions;
}

static json_t *
states_json(const Module *m)
{
	json_t *states = json_array();

	for (int i = 0; i < m->states.n; i++) {
		const State *s = m->states.at[i];
		json_t *json = json_pack("{s:o,s:o,s:I,s:b,s:b}", "name", json_name(s->name), "why",
		                         json_name(s->why ? s->why : ""), "bytes",
		                         (json_int_t)type_bytes(s->type), "trainable", s->trainable,
		                         "unit", s->unit != NULL);
		Text type = {0};

		type_print(&type, s->type);
		set_text(json, "type", &type);
		if (s->of)
			json_object_set_new(json, "of", json_name(s->of->name));
		json_array_append_new(states, json);
	}
	return states;
}

/* ---- kernels */
static json_t *
kernels_json(const Module *m)
{
	json_t *kernels = json_array();

	for (int i = 0; i < m->kernels.n; i++) {
		const Kernel *k = m->kernels.at[i];
		json_t *json = json_pack("{s:o,s:I,s:I}", "name", json_name(k->name), "flops",
		                         (json_int_t)k->flops, "iterations",
		                         (json_int_t)k->iterations);
		Text code = {0};

		kernel_print(&code, k, &(PrintOptions){.no_locations = true});
		set_text(json, "code", &code);
		set_location(json, k->loc);
		json_array_append_new(kernels, json);
	}
	return kernels;
}

/* Nodes with one op, in the order in which they were made. */
typedef VEC(const Node *) Nodes;

static int
compare_ids(const void *a, const void *b)
{
	uint32_t x = (*(const Node *const *)a)->id, y = (*(const Node *const *)b)->id;

	return (x > y) - (x < y);
}

static bool
is_call(const Node *n)
{
	return called_function(n) != NULL;
}

static bool
is_launch(const Node *n)
{
	return launched_kernel(n) != NULL;
}

static Nodes
nodes_of(Arena *arena, const Function *f, bool (*is)(const Node *n))
{
	Nodes list = {0};

	for_each_node(f, n)
		if (is(n))
			vec_push(arena, &list, n);
	if (list.n)
		qsort(list.at, (size_t)list.n, sizeof(*list.at), compare_ids);
	return list;
}

/* Did every call become a launch, in the same order? `schedule` appends copies for first
 * micro-batches, which are ignored. */
static bool
is_launched(const Nodes *calls, const Nodes *launches)
{
	for (int i = calls->n; i < launches->n; i++)
		if (launches->at[i]->when != WHEN_FIRST)
			return false;
	return launches->n >= calls->n;
}

/* Maps each kernel to the fused functions whose calls became its launches. */
static json_t *
members_json(const Module *graph, const Module *plan)
{
	json_t *members = json_object();
	Arena *scratch = arena_new();

	for_each_function(plan, f) {
		const Function *before = module_function(graph, f->name);
		Nodes launches = nodes_of(scratch, f, is_launch);
		Nodes calls = before ? nodes_of(scratch, before, is_call) : (Nodes){0};

		for (int i = 0; i < calls.n && is_launched(&calls, &launches); i++) {
			const char *k = launched_kernel(launches.at[i])->name;
			json_t *set = json_object_get(members, k);
			if (!set) {
				set = json_object();
				json_object_set_new(members, k, set);
			}
			json_object_set_new(set, called_function(calls.at[i])->name, json_true());
		}
	}
	arena_free(scratch);
	return members;
}

/* ---- memory */
typedef struct {
	int *first, *last; /* by value id: positions of the first and last node of its lifetime */
	int n;
} Lives;

static Lives
find_lives(Arena *arena, const Function *f)
{
	Lives l = {NEW_ARRAY(arena, int, f->next_value_id), NEW_ARRAY(arena, int, f->next_value_id),
	           0};

	for_each_node(f, n) {
		for (int i = 0; i < n->n_operands; i++)
			if (node_operand(n, i))
				l.last[node_operand(n, i)->id] = l.n;
		for (int i = 0; i < n->n_results; i++)
			l.first[node_result(n, i)->id] = l.last[node_result(n, i)->id] = l.n;
		l.n++;
	}
	return l;
}

static void
add_slot(json_t *slots, const Value *v, const Lives *l, const int *numbers)
{
	static const char *const regions[] = {"", "state", "workspace", "io"};
	Text name = {0}, type = {0};

	if (v->region != REGION_WORKSPACE && v->region != REGION_IO)
		return;
	if (v->node)
		text_printf(&name, "%%%d", numbers[v->id]);
	else
		text_printf(&name, "%%%s", v->name);
	json_t *json = json_pack("{s:s,s:I,s:I,s:i,s:i,s:i}", "region", regions[v->region],
	                         "offset", (json_int_t)v->offset, "bytes",
	                         (json_int_t)type_bytes(v->type), "first", l->first[v->id], "last",
	                         l->last[v->id], "phase", v->node ? (int)v->node->phase : 0);
	type_print(&type, v->type);
	set_text(json, "value", &name);
	set_text(json, "type", &type);
	set_location(json, v->node ? v->node->loc : NULL);
	json_array_append_new(slots, json);
}

static json_t *
plan_json(const Function *f)
{
	Arena *scratch = arena_new();
	const int *numbers = function_numbers(scratch, f);
	Lives lives = find_lives(scratch, f);
	json_t *slots = json_array(), *steps = json_array();

	for (int i = 0; i < f->params.n; i++)
		add_slot(slots, f->params.at[i], &lives, numbers);
	for_each_node(f, n) {
		for (int i = 0; i < n->n_results; i++)
			add_slot(slots, node_result(n, i), &lives, numbers);
		json_array_append_new(steps, node_json(n, numbers));
	}
	arena_free(scratch);
	return json_pack("{s:o,s:o,s:o}", "name", json_name(f->name), "slots", slots, "steps",
	                 steps);
}

static json_t *
memory_json(const Module *m)
{
	json_t *programs = json_array();

	for_each_function(m, f)
		json_array_append_new(programs, plan_json(f));
	return json_pack("{s:I,s:I,s:I,s:o}", "state", (json_int_t)m->state_bytes, "workspace",
	                 (json_int_t)m->workspace_bytes, "io", (json_int_t)m->io_bytes, "programs",
	                 programs);
}

/* ---- ONNX */
static json_t *
strings_json(const char *const *list, int n)
{
	json_t *json = json_array();

	for (int i = 0; i < n; i++)
		json_array_append_new(json, json_name(list[i]));
	return json;
}

static void
add_onnx(void *ctx, const GraphNode *n)
{
	json_array_append_new(ctx, json_pack("{s:o,s:o,s:o,s:o,s:o,s:o}", "name",
	                                     json_name(n->name), "op", json_name(n->op), "domain",
	                                     json_name(n->domain), "scopes", json_name(n->scopes),
	                                     "inputs", strings_json(n->inputs, n->n_inputs),
	                                     "outputs", strings_json(n->outputs, n->n_outputs)));
}

void
page_print(Text *out, const Page *p)
{
	json_t *onnx = json_array();

	if (p->model)
		model_nodes(p->model, add_onnx, onnx);
	json_t *root = json_pack(
		"{s:o,s:s,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "title", json_name(p->title), "stage",
		p->stage, "onnx", onnx, "functions", functions_json(p->graph), "states",
		states_json(p->plan ? p->plan : p->graph), "kernels",
		p->plan ? kernels_json(p->plan) : json_array(), "members",
		p->plan ? members_json(p->graph, p->plan) : json_object(), "memory",
		p->plan && p->plan->state_bytes + p->plan->workspace_bytes + p->plan->io_bytes
			? memory_json(p->plan)
			: json_null(),
		"ranges", p->ranges ? json_incref(p->ranges) : json_object());
	char *text = json_dumps(root, JSON_COMPACT | JSON_PRESERVE_ORDER);

	html_page(out, dump_page, text);
	memory_free(text);
	json_decref(root);
}

/* Scan: https://onnx.ai/onnx/operators/onnx__Scan.html. Its body is a function of the module, which
 * `loop` runs once per row of the scanned inputs. In version 8 all inputs have a batch axis first,
 * and each sample is scanned separately. */
#include "frontend/operators/control/control.h"

#include <string.h>

/* ---- Scan: its body runs for each row of its inputs */
typedef struct {
	const GraphProto *body;
	int states, scanned, stacked;
	int64_t trips;
	/* states, then scanned inputs with the axis first, in the order of the iterations */
	Value **operands;
} Scan;

/* Element i of a list attribute; `otherwise` if the attribute is absent. */
static int64_t
listed(const AttributeProto *a, int i, int64_t otherwise)
{
	return a && i < (int)a->n_ints ? a->ints[i] : otherwise;
}

static bool
check_list(OnnxNode *n, const char *name, int count)
{
	const AttributeProto *a = node_attribute(n->proto, name);

	if (!a || (int)a->n_ints == count)
		return true;
	report_invalid(n, "attribute \"%s\" has %zu numbers, need %d", name, a->n_ints, count);
	return false;
}

static Value *
move_axis(OnnxNode *n, Value *x, int from, int to)
{
	Ints order = {0};

	if (!x || from == to)
		return x;
	for (int i = 0, k = 0; i < x->type->rank; i++) {
		k += k == from;
		order.at[order.n++] = i == to ? from : k++;
	}
	return e_transpose(n, x, order);
}

static Value *
reversed(OnnxNode *n, Value *x, bool reverse)
{
	return reverse && x ? b_reverse(n->b, x, (Ints){.n = 1, .at = {0}}) : x;
}

static bool
is_direction(OnnxNode *n, int64_t d)
{
	if (d != 0 && d != 1)
		report_invalid(n, "direction %lld is neither 0 nor 1", (long long)d);
	return d == 0 || d == 1;
}

/* A scanned input with its rows in the order of the iterations. */
static Value *
scan_input(OnnxNode *n, int i, int input)
{
	int64_t direction = listed(node_attribute(n->proto, "scan_input_directions"), i, 0);
	int64_t axis = listed(node_attribute(n->proto, "scan_input_axes"), i, 0);
	Value *x = want_input(n, input);
	int at = x && is_direction(n, direction) ? want_axis(n, axis, x->type->rank) : -1;

	return at < 0 ? NULL : reversed(n, move_axis(n, x, at, 0), direction == 1);
}

/* Reads the node into *s. first: index of the first state among the inputs. */
static bool
open_scan(OnnxNode *n, Scan *s, int first)
{
	int64_t scanned = want_int(n, "num_scan_inputs", 0);

	s->body = want_graph(n, "body");
	if (!s->body)
		return false;
	int given = n_inputs(n) - first;
	if (scanned < 1 || scanned > given || (int)s->body->n_input != given ||
	    (int64_t)s->body->n_output < given - scanned || n_outputs(n) > (int)s->body->n_output) {
		report_invalid(n,
		               "%lld scanned of %d inputs and %d outputs do not fit the body's "
		               "%zu and %zu: need 1 scanned input or more, and a body with the "
		               "same number of inputs, and with an output for each state and "
		               "result",
		               (long long)scanned, given, n_outputs(n), s->body->n_input,
		               s->body->n_output);
		return false;
	}
	s->scanned = (int)scanned;
	s->states = given - s->scanned;
	s->stacked = (int)s->body->n_output - s->states;
	return check_list(n, "scan_input_axes", s->scanned) &&
	       check_list(n, "scan_input_directions", s->scanned) &&
	       check_list(n, "scan_output_axes", s->stacked) &&
	       check_list(n, "scan_output_directions", s->stacked);
}

static bool
read_scan_inputs(OnnxNode *n, Scan *s)
{
	s->operands = NEW_ARRAY(n->im->arena, Value *, n_inputs(n));
	s->trips = -1;
	for (int i = 0; i < n_inputs(n); i++) {
		s->operands[i] = i < s->states ? want_input(n, i) : scan_input(n, i - s->states, i);
		if (!s->operands[i] || i < s->states)
			continue;
		if (s->trips >= 0 && s->operands[i]->type->dims[0] != s->trips)
			report_invalid(n,
			               "inputs %d and %d have %lld and %lld rows to scan, need "
			               "equal numbers",
			               s->states, i, (long long)s->trips,
			               (long long)s->operands[i]->type->dims[0]);
		s->trips = s->operands[i]->type->dims[0];
	}
	return !n->failed;
}

/* body(i, states, rows, captured) -> (true, states, rows) */
static bool
scan_body(OnnxNode *n, const Scan *s, Scope *scope)
{
	Importer *im = n->im;
	Value **results = NEW_ARRAY(im->arena, Value *, s->body->n_output + 1);

	scope_open(n, scope, "scan");
	function_param(scope->f, type_scalar(im->m, S64), "i");
	for (int i = 0; i < s->states + s->scanned; i++) {
		Type t = s->operands[i]->type;
		Type row = i < s->states ? t : type_drop_axis(im->m, t, 0);
		set_graph_value(n, s->body, (size_t)i,
		                function_param(scope->f, row, s->body->input[i]->name));
	}
	if (!n->failed)
		import_subgraph(n, s->body);
	results[0] = e_scalar(n, BOOL, 1);
	for (size_t i = 0; !n->failed && i < s->body->n_output; i++) {
		Bound *b = graph_output(n, s->body, i);
		results[1 + i] = b ? b->value : NULL;
		if (b && !b->value)
			report_unsupported(n, "output %s is no tensor",
			                   quoted(im->model, s->body->output[i]->name));
		else if (b && (int)i < s->states && b->value->type != s->operands[i]->type)
			report_invalid(n, "state %zu is %s before an iteration and %s after it", i,
			               type_text(n, s->operands[i]->type),
			               type_text(n, b->value->type));
		else if (b && b->value->type->rank >= MAX_RANK)
			report_unsupported(n, "output %zu has rank %d, it cannot be stacked", i,
			                   b->value->type->rank);
	}
	if (n->failed) {
		scope_leave(n, scope);
		return false;
	}
	scope_close(n, scope, 1 + (int)s->body->n_output, results);
	return true;
}

/* Sets the node's outputs: the states, then the stacked rows, with the axis of iterations in the
 * declared position. */
static void
set_scan_outputs(OnnxNode *n, const Scan *s, const Node *loop)
{
	const AttributeProto *axes = node_attribute(n->proto, "scan_output_axes");
	const AttributeProto *directions = node_attribute(n->proto, "scan_output_directions");

	for (int i = 0; i < (int)s->body->n_output; i++) {
		Value *y = node_result(loop, i);
		int64_t direction = listed(directions, i - s->states, 0);
		if (i >= s->states) {
			int axis = want_axis(n, listed(axes, i - s->states, 0), y->type->rank);
			y = axis >= 0 && is_direction(n, direction)
			            ? move_axis(n, reversed(n, y, direction == 1), 0, axis)
			            : NULL;
		}
		set_output(n, i, y);
	}
}

/* Adds the loop over s's operands to the function under construction; NULL after reporting. */
static Node *
build_scan(OnnxNode *n, const Scan *s)
{
	int given = s->states + s->scanned;
	Scope scope;

	if (!scan_body(n, s, &scope))
		return NULL;
	int count = given + scope.captured.n;
	Value **operands = NEW_ARRAY(n->im->arena, Value *, count);
	memcpy(operands, s->operands, sizeof(*operands) * (size_t)given);
	for (int i = 0; i < scope.captured.n; i++)
		operands[given + i] = scope.captured.at[i];
	LoopAttr a = {.body = scope.f,
	              .bound = s->trips,
	              .carried = s->states,
	              .sliced = s->scanned,
	              .always = true};
	return build_node(n->b, OP_loop, count, operands, &a);
}

static void
import_scan(OnnxNode *n)
{
	Scan s = {0};
	Node *loop;

	if (open_scan(n, &s, 0) && read_scan_inputs(n, &s) && (loop = build_scan(n, &s)))
		set_scan_outputs(n, &s, loop);
}

/* ---- version 8 */
/* Reads all inputs after sequence_lens; each sample has its own states and rows. */
static bool
read_batched_inputs(OnnxNode *n, Scan *s)
{
	int64_t batch = -1;

	if (has_input(n, 0)) {
		report_unsupported(n, "sequence_lens is given: sequences of different lengths");
		return false;
	}
	s->operands = NEW_ARRAY(n->im->arena, Value *, n_inputs(n));
	for (int i = 0; i < s->states + s->scanned; i++) {
		Value *x = s->operands[i] = want_input(n, 1 + i);
		if (!x)
			continue;
		if (x->type->rank < 1 + (i >= s->states) ||
		    (batch >= 0 && x->type->dims[0] != batch)) {
			report_invalid(
				n, "input %d is %s, without the batch and the rows that it needs",
				1 + i, type_text(n, x->type));
			return false;
		}
		batch = x->type->dims[0];
	}
	return !n->failed;
}

/* In the body of the loop over the batch: puts the rows into the order of the iterations. */
static bool
order_rows(OnnxNode *n, Scan *s)
{
	const AttributeProto *directions = node_attribute(n->proto, "directions");

	s->trips = -1;
	for (int i = s->states; i < s->states + s->scanned; i++) {
		int64_t direction = listed(directions, i - s->states, 0),
			rows = s->operands[i]->type->dims[0];
		if (!is_direction(n, direction))
			return false;
		s->operands[i] = reversed(n, s->operands[i], direction == 1);
		if (s->trips >= 0 && rows != s->trips)
			report_invalid(n,
			               "inputs have %lld and %lld rows to scan, need equal "
			               "numbers",
			               (long long)s->trips, (long long)rows);
		s->trips = rows;
	}
	return !n->failed;
}

static void
import_batched_scan(OnnxNode *n)
{
	Scan s = {0};
	Scope batch;
	Node *inner = NULL;

	if (!open_scan(n, &s, 1) || !read_batched_inputs(n, &s))
		return;
	int given = s.states + s.scanned, count = (int)s.body->n_output;
	Value **whole = s.operands, **results = NEW_ARRAY(n->im->arena, Value *, count + 1);
	s.operands = NEW_ARRAY(n->im->arena, Value *, given);
	scope_open(n, &batch, "batch");
	function_param(batch.f, type_scalar(n->im->m, S64), "i");
	for (int i = 0; i < given; i++)
		s.operands[i] = function_param(batch.f, type_drop_axis(n->im->m, whole[i]->type, 0),
		                               "x");
	results[0] = e_scalar(n, BOOL, 1);
	inner = order_rows(n, &s) ? build_scan(n, &s) : NULL;
	for (int i = 0; inner && i < count; i++)
		results[1 + i] = node_result(inner, i);
	if (!inner) {
		scope_leave(n, &batch);
		return;
	}
	scope_close(n, &batch, 1 + count, results);
	Value **operands = NEW_ARRAY(n->im->arena, Value *, given + batch.captured.n);
	memcpy(operands, whole, sizeof(*whole) * (size_t)given);
	for (int i = 0; i < batch.captured.n; i++)
		operands[given + i] = batch.captured.at[i];
	LoopAttr a = {
		.body = batch.f, .bound = whole[0]->type->dims[0], .sliced = given, .always = true};
	Node *loop = build_node(n->b, OP_loop, given + batch.captured.n, operands, &a);
	for (int i = 0; i < count; i++)
		set_output(n, i, node_result(loop, i));
}

const ImportRow import_scan_rows[] = {
	/* name     from  to  importer  extra */
	{"Scan", 8, 8, import_batched_scan, .facts = {.typed_by = NO_INPUT}},
	{"Scan", 9, 0, import_scan, {0}, NULL},
	{0},
};

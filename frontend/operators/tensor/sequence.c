/* Imports operators on sequences. A sequence is a list of values that exists only during import, so
 * positions in it must be constants. */
#include "frontend/operators/control/control.h"

static Bound *
want_sequence(OnnxNode *n, int i)
{
	Bound *b = want_bound(n, i);

	if (b && !b->sequence) {
		if (b->value)
			report_invalid(n, "input %d is no sequence", i);
		return NULL;
	}
	return b;
}

/* Do all elements of the list, and x if not NULL, have one type? False after reporting. */
static bool
is_of_one_type(OnnxNode *n, int count, Value *const *list, const Value *x)
{
	for (int i = 0; i < count; i++) {
		x = x ? x : list[i];
		if (x->type->dtype == list[i]->type->dtype)
			continue;
		report_invalid(n, "elements of %s and %s cannot be in one sequence",
		               dtype_info[list[i]->type->dtype].name,
		               dtype_info[x->type->dtype].name);
		return false;
	}
	return true;
}

/* A position in a sequence of `count` elements; negative positions count from its end. end: `count`
 * itself is valid, for an insertion. */
static bool
want_position(OnnxNode *n, int i, int count, bool end, int64_t *out)
{
	if (!want_constant_int(n, i, out))
		return false;
	if (*out < -count || *out >= count + end) {
		report_invalid(n, "position %lld is outside of a sequence of %d", (long long)*out,
		               count);
		return false;
	}
	*out += *out < 0 ? count : 0;
	return true;
}

static void
give_parts(OnnxNode *n, Value *x, int axis, int count, const int64_t *sizes, bool keep)
{
	Value **list = NEW_ARRAY(n->im->arena, Value *, count);
	int64_t at = 0;

	for (int i = 0; i < count; i++) {
		list[i] = e_slice_axis(n, x, axis, at, at + sizes[i]);
		at += sizes[i];
		if (!keep && list[i])
			list[i] = e_reshape(n, list[i], ints_without(shape_of(list[i]), axis));
	}
	set_output_list(n, 0, count, list);
}

static void
import_split_to_sequence(OnnxNode *n)
{
	enum { MOST = 1 << 16 };
	Value *x = want_input(n, 0);
	const Tensor *split = has_input(n, 1) ? want_constant(n, 1) : NULL;
	int axis = x ? want_axis(n, want_int(n, "axis", 0), x->type->rank) : -1;

	if (axis < 0 || n->failed)
		return;
	int64_t total = x->type->dims[axis], sum = 0, chunk = 1;
	if (split && split->type->rank > 1) {
		report_invalid(n, "split is of rank %d, needs a number or a list",
		               split->type->rank);
		return;
	}
	if (split && split->type->rank == 0)
		chunk = tensor_int(split, 0);
	if (chunk < 1 || total / chunk > MOST || (split && split->type->n > MOST)) {
		report_invalid(n,
		               "cannot split %lld elements into parts of %lld: a part needs at "
		               "least 1 element, and there may be at most %d parts",
		               (long long)total, (long long)chunk, (int)MOST);
		return;
	}
	bool listed = split && split->type->rank == 1;
	int count = listed ? (int)split->type->n : (int)((total + chunk - 1) / chunk);
	int64_t *sizes = NEW_ARRAY(n->im->arena, int64_t, count);
	for (int i = 0; i < count; i++) {
		sizes[i] = listed                ? tensor_int(split, i)
		           : total - sum < chunk ? total - sum
		                                 : chunk;
		if (sizes[i] < 0 || sizes[i] > total - sum) {
			report_invalid(n, "part %d has %lld elements, but %lld are left", i,
			               (long long)sizes[i], (long long)(total - sum));
			return;
		}
		sum += sizes[i];
	}
	if (sum != total)
		report_invalid(n, "the parts together have %lld elements, but the axis has %lld",
		               (long long)sum, (long long)total);
	else
		give_parts(n, x, axis, count, sizes, split || want_int(n, "keepdims", 1));
}

static void
import_sequence_at(OnnxNode *n)
{
	Bound *b = want_sequence(n, 0);
	int64_t at;

	if (b && want_position(n, 1, b->n_list, false, &at))
		set_output(n, 0, b->list[at]);
}

static void
import_sequence_construct(OnnxNode *n)
{
	Value **list = NEW_ARRAY(n->im->arena, Value *, n_inputs(n));

	for (int i = 0; i < n_inputs(n); i++)
		list[i] = want_input(n, i);
	if (!n->failed && is_of_one_type(n, n_inputs(n), list, NULL))
		set_output_list(n, 0, n_inputs(n), list);
}

static void
import_sequence_empty(OnnxNode *n)
{
	set_output_list(n, 0, 0, (Value *[]){NULL});
}

static void
import_sequence_insert(OnnxNode *n)
{
	Bound *b = want_sequence(n, 0);
	Value *x = want_input(n, 1);

	if (!b || !x || !is_of_one_type(n, b->n_list, b->list, x))
		return;
	int64_t at = b->n_list;
	if (has_input(n, 2) && !want_position(n, 2, b->n_list, true, &at))
		return;
	Value **list = NEW_ARRAY(n->im->arena, Value *, b->n_list + 1);
	for (int i = 0; i <= b->n_list; i++)
		list[i] = i == at ? x : b->list[i - (i > at)];
	set_output_list(n, 0, b->n_list + 1, list);
}

static void
import_sequence_erase(OnnxNode *n)
{
	Bound *b = want_sequence(n, 0);
	int64_t at = b ? b->n_list - 1 : 0;

	if (!b)
		return;
	if (b->n_list == 0) {
		report_invalid(n, "the sequence is empty");
		return;
	}
	if (has_input(n, 1) && !want_position(n, 1, b->n_list, false, &at))
		return;
	Value **list = NEW_ARRAY(n->im->arena, Value *, b->n_list);
	for (int i = 0; i + 1 < b->n_list; i++)
		list[i] = b->list[i + (i >= at)];
	set_output_list(n, 0, b->n_list - 1, list);
}

static void
import_sequence_length(OnnxNode *n)
{
	Bound *b = want_sequence(n, 0);

	if (b)
		set_output(n, 0,
		           e_reshape(n, e_constant_ints(n, 1, (int64_t[]){b->n_list}), (Ints){0}));
}

static void
import_concat_from_sequence(OnnxNode *n)
{
	Bound *b = want_sequence(n, 0);
	bool fresh = want_int(n, "new_axis", 0);

	if (!b)
		return;
	if (b->n_list == 0) {
		report_invalid(n, "the sequence is empty");
		return;
	}
	int rank = b->list[0]->type->rank + fresh;
	int axis = want_axis(n, want_int(n, "axis", 0), rank);
	if (axis < 0 || rank > MAX_RANK)
		return;
	Value **list = NEW_ARRAY(n->im->arena, Value *, b->n_list);
	for (int i = 0; i < b->n_list; i++) {
		Ints shape = {0};
		list[i] = b->list[i];
		if (list[i]->type->rank + fresh != rank) {
			report_invalid(n, "elements of different ranks");
			return;
		}
		for (int k = 0, d = 0; fresh && k < rank; k++)
			shape.at[shape.n++] = k == axis ? 1 : list[i]->type->dims[d++];
		list[i] = fresh ? e_reshape(n, list[i], shape) : list[i];
	}
	set_output(n, 0, e_concat(n, b->n_list, list, axis));
}

/* ---- SequenceMap: the body runs once per element */
enum { MAX_MAPPED = 4096 };

/* The number of runs of the body; all sequences must have as many elements. -1 after reporting. */
static int
mapped_count(OnnxNode *n, const GraphProto *body)
{
	Bound *first = want_sequence(n, 0);

	for (int i = 1; i < n_inputs(n); i++) {
		Bound *b = want_bound(n, i);
		if (b && first && b->sequence && b->n_list != first->n_list)
			report_invalid(n, "input %d has %d elements, input 0 has %d", i, b->n_list,
			               first->n_list);
		else if (b && b->optional)
			report_invalid(n, "input %d is an optional", i);
		else if (b && b->count)
			report_unsupported(n, "input %d has a size that depends on data", i);
	}
	if ((size_t)n_inputs(n) != body->n_input || (size_t)n_outputs(n) != body->n_output)
		report_invalid(n, "%d inputs and %d outputs, the body has %zu and %zu", n_inputs(n),
		               n_outputs(n), body->n_input, body->n_output);
	if (first && first->n_list > MAX_MAPPED)
		report_unsupported(n, "%d elements, at most %d are supported", first->n_list,
		                   MAX_MAPPED);
	return n->failed || !first ? -1 : first->n_list;
}

/* Imports the body for element `at`; lists[i][at] is set to its output i. */
static void
map_element(OnnxNode *n, const GraphProto *body, int at, Value ***lists)
{
	for (size_t i = 0; i < body->n_input; i++) {
		Bound *b = want_bound(n, (int)i);
		set_graph_value(n, body, i, b->sequence ? b->list[at] : b->value);
	}
	if (!n->failed)
		import_subgraph_again(n, body, at);
	for (size_t i = 0; !n->failed && i < body->n_output; i++) {
		Bound *b = graph_output(n, body, i);
		lists[i][at] = b ? b->value : NULL;
		n->failed |= !lists[i][at];
		if (b && b->sequence)
			report_invalid(n, "output %zu of the body is a sequence", i);
		else if (b && b->count)
			report_counted_output(n, body, i);
	}
}

static void
import_sequence_map(OnnxNode *n)
{
	const AttributeProto *a = node_attribute(n->proto, "body");
	int count = a && a->g ? mapped_count(n, a->g) : -1;

	if (count < 0)
		return;
	Value ***lists = NEW_ARRAY(n->im->arena, Value **, n_outputs(n));
	for (int i = 0; i < n_outputs(n); i++)
		lists[i] = NEW_ARRAY(n->im->arena, Value *, count + 1);
	for (int at = 0; at < count && !n->failed; at++)
		map_element(n, a->g, at, lists);
	for (int i = 0; i < n_outputs(n) && !n->failed; i++)
		set_output_list(n, i, count, lists[i]);
}

const ImportRow import_sequence_rows[] = {
	/* name                from  to  importer  extra */
	{"SplitToSequence", 11, 0, import_split_to_sequence, {0}, NULL},
	{"SequenceAt", 11, 0, import_sequence_at, {0}, NULL},
	{"SequenceMap", 17, 0, import_sequence_map, {0}, NULL},
	{"SequenceConstruct", 11, 0, import_sequence_construct, {0}, NULL},
	{"SequenceEmpty", 11, 0, import_sequence_empty, .facts = {.no_gradient = true}},
	{"SequenceInsert", 11, 0, import_sequence_insert, {0}, NULL},
	{"SequenceErase", 11, 0, import_sequence_erase, {0}, NULL},
	{"SequenceLength", 11, 0, import_sequence_length, .facts = {.no_gradient = true}},
	{"ConcatFromSequence", 11, 0, import_concat_from_sequence, {0}, NULL},
	{0},
};

/* The pass `quantize`, for --quantize: training sees the rounding that codes (small integers with a scale) bring.
 * Import marks the operands of products that the ONNX file can hold as codes and that the column `quantizes` of the op
 * lists. The pass quantizes each marked operand and converts it back to floats (fakes.c). For example:
 *
 *	quantized "w" s8 channel input 1 of "fc"
 *	%0 = dot %x, @w {x_contract = [1], y_contract = [1]} quantized (_, 0)
 *
 * becomes, with a scale for each row of @w, the axis that the column `channel` gives:
 *
 *	%3 = …                                                  (the scales: largest magnitudes / 127)
 *	%4 = quantize @w, %3 {to = s8}
 *	%5 = mul (cast %4 {to = f32}), %3
 *	%6 = dot %x, %5 {x_contract = [1], y_contract = [1]}
 *
 * Products that read the same ONNX value read the same codes. A running range belongs to training: it moves in
 * functions of role forward, and functions of role inference, which are made here if the module has none, read it.
 * Runs before all other passes, which would merge or move what import has marked. Time: linear in nodes. */
#include "passes/quantize/quantize.h"

#include <math.h>

typedef struct {
	Pass *p;
	Module *m;
	const QuantizePassOptions *options;
	Place *first; /* by number of the quantized operand: its first place; product NULL: it is not read */
} Quantize;

static bool
is_seen(const Function *f)
{
	return f->role == ROLE_FORWARD || f->role == ROLE_INFERENCE;
}

static bool
runs(const QuantizedOperand *q)
{
	return q->scales == SCALES_RUNNING;
}

/* ---- functions of role inference */
static bool
has_running_ranges(const Quantize *z)
{
	for (int i = 0; i < z->m->quantized.n; i++)
		if (runs(&z->m->quantized.at[i]) && z->first[i].product)
			return true;
	return false;
}

/* ---- groups that share a scale, and states */
/* The axis of the value along which the op's column says that scales may differ. -1: none. */
static int
axis_of(const Place *at, int (*column)(const Node *n, int i))
{
	int axis = column(at->product, at->operand);

	return axis < 0 ? -1 : (int)at->axes.at[axis];
}

/* Blocks divide their axis, which becomes two axes while scales are found. False after reporting. */
static bool
check_blocks(Quantize *z, const QuantizedOperand *q, const Place *at, int axis)
{
	Type t = place_value(at)->type;
	bool divides = q->block >= t->dims[axis] || t->dims[axis] % q->block == 0;
	bool has_room = q->block >= t->dims[axis] || q->block == 1 || t->rank < MAX_RANK;

	if (!divides)
		diag_error(
			z->p->diag, EXIT_USAGE,
			"node \"%s\": blocks of %lld do not divide axis %d of weight \"%s\", of %lld elements",
			loc_origin(at->product->loc), (long long)q->block, axis, q->name,
			(long long)t->dims[axis]);
	else if (!has_room)
		diag_error(z->p->diag, EXIT_UNSUPPORTED,
		           "node \"%s\": blocks in a weight of rank %d",
		           loc_origin(at->product->loc), t->rank);
	return divides && has_room;
}

static bool
set_group(Quantize *z, QuantizedOperand *q, const Place *at)
{
	const OpRow *row = op_row(at->product);
	Ints shape = ints_of_type(place_value(at)->type);
	int channel = q->scales == SCALES_CHANNEL ? axis_of(at, row->channel) : -1;
	int block = q->scales == SCALES_BLOCK ? axis_of(at, row->sums) : -1;

	q->group = shape;
	for (int i = 0; i < shape.n; i++)
		q->group.at[i] = block >= 0 || shape.at[i] == 0 ? 1 : shape.at[i];
	if (channel >= 0)
		q->group.at[channel] = 1;
	if (block >= 0)
		q->group.at[block] = q->block < shape.at[block] ? q->block : shape.at[block];
	return block < 0 || check_blocks(z, q, at, block);
}

static State *
new_state(Quantize *z, const Place *at, const char *ending, Type type, StateKind kind,
          const char *why)
{
	const char *name = arena_printf(z->m->arena, "%s%s", at->of->name, ending);
	State *s = state_new(z->m, module_fresh_name(z->m, name), type, kind, LIFE_SAVED);

	s->lr_scale = 1;
	s->loc = at->product->loc;
	s->why = why;
	return s;
}

static State *
new_parameter(Quantize *z, const Place *at, const char *ending, Type type, const float *numbers,
              const char *why)
{
	State *s = new_state(z, at, ending, type, STATE_PARAMETER, why);

	s->init = INIT_DATA;
	s->data = tensor_new(z->m, type, numbers);
	s->trainable = true;
	return s;
}

/* The first numbers of a weight. NULL: it has none. */
static const Tensor *
numbers_of(Quantize *z, Value *v)
{
	if (v->kind == VALUE_STATE)
		return v->state->data;
	const Tensor *t = v->kind == VALUE_RESULT ? value_constant(v) : NULL;
	if (t || v->kind != VALUE_RESULT || v->node->n_operands != 1)
		return t;
	const Tensor *operand = numbers_of(z, node_operand(v->node, 0));
	Tensor *folded[1];
	if (!operand)
		return NULL;
	Builder b = {.m = z->m, .f = v->function, .before = v->node};
	Value *constant = b_constant(&b, operand);
	Node *view = build_node(&b, v->node->op, 1, &constant, v->node->attr);
	t = node_fold(z->m, view, folded) ? folded[0] : NULL;
	node_erase(view);
	node_erase(constant->node);
	return t;
}

/* Makes a weight's scales parameters. Each group begins with the paper's scale, 2 mean(|w|) / sqrt(Q)
 * (arXiv:1902.08153, 2.1). */
static bool
learn_scales(Quantize *z, QuantizedOperand *q, const Place *at)
{
	Value *v = place_value(at);
	Groups groups = {v->type->rank, v->type->dims, q->group.at};
	int64_t n = groups_count(&groups);
	double *sums = NEW_ARRAY(z->p->scratch, double, n), least, most;
	int64_t *counts = NEW_ARRAY(z->p->scratch, int64_t, n);
	float *scale = NEW_ARRAY(z->p->scratch, float, n);
	const Tensor *numbers = numbers_of(z, v);

	if (!numbers) {
		diag_error(
			z->p->diag, EXIT_USAGE,
			"--scale-learning: \"%s\" has no numbers from which its scales could begin",
			q->name);
		return false;
	}
	dtype_range(q->type, &least, &most);
	for (GroupWalk w = group_walk(&groups); w.i < v->type->n; group_next(&w)) {
		sums[w.group] += fabs(tensor_float(numbers, w.i));
		counts[w.group]++;
	}
	for (int64_t g = 0; g < n; g++)
		scale[g] = (float)fmax(2 * sums[g] / (double)counts[g] / sqrt(most), LEAST_SCALE);
	Type type = n > 1 ? type_new(z->m, F32, 1, &n) : type_scalar(z->m, F32);
	q->learned = new_parameter(z, at, "_scale", type, scale, "a scale of codes, learned");
	return true;
}

static void
open_range(Quantize *z, QuantizedOperand *q, const Place *at)
{
	static const float none = 0;
	static const char *const why = "the range of an activation in codes";
	Type number = type_scalar(z->m, F32);

	q->low = new_state(z, at, ".low", number, STATE_STATISTIC, why);
	q->high = new_state(z, at, ".high", number, STATE_STATISTIC, why);
	if (z->options->learn_scales)
		q->scale_shift = new_parameter(z, at, ".scale_shift", number, &none,
		                               "added to a scale of codes");
	if (z->options->learn_zeros)
		q->zero_shift = new_parameter(z, at, ".zero_shift", number, &none,
		                              "added to a zero point of codes");
}

static bool
open_operands(Quantize *z)
{
	bool ok = true;

	for (int i = 0; i < z->m->quantized.n; i++) {
		QuantizedOperand *q = &z->m->quantized.at[i];
		const Place *at = &z->first[i];
		q->learned = q->low = q->high = q->scale_shift = q->zero_shift = NULL;
		if (!at->product)
			continue;
		if (quantized_is_weight(q) && !set_group(z, q, at))
			ok = false;
		else if (quantized_is_weight(q) && z->options->learn_scales)
			ok &= learn_scales(z, q, at);
		if (runs(q))
			open_range(z, q, at);
	}
	return ok;
}

/* ---- places */
static bool
check_place(const Quantize *z, const Place *at)
{
	const Value *v = place_value(at);

	if (v->type->dtype != F32)
		diag_error(z->p->diag, EXIT_UNSUPPORTED,
		           "node \"%s\": input %d is %s: only f32 is quantized",
		           loc_origin(at->product->loc), at->operand,
		           dtype_info[v->type->dtype].name);
	return v->type->dtype == F32;
}

/* Notes the first place of each quantized operand. Values without elements and numbers stay as they are. */
static bool
find_places(Quantize *z, Function *f)
{
	bool ok = true;

	for_each_node(f, n)
		for (int i = 0; i < n->n_operands; i++) {
			int number = node_mark(n, i).of - 1;
			if (number < 0)
				continue;
			Place at = place_find(z->m, z->p->scratch, n, i);
			Type t = place_value(&at)->type;
			ok &= check_place(z, &at);
			if (t->n == 0 || t->rank == 0)
				node_set_mark(n, i, (OperandMark){0});
			else if (!z->first[number].product)
				z->first[number] = at;
		}
	return ok;
}

/* ---- one function */
typedef struct {
	Quantize *z;
	Function *f;
	int *position; /* by node id */
	Node **earliest; /* by number of the quantized operand: the first node that will read its codes */
	Value **fakes; /* by number of the quantized operand: what was built so far */
} Inside;

/* Products may read a value through views that stand before the first product. */
static void
find_earliest(Inside *in)
{
	int count = 0;

	for_each_node(in->f, n)
		in->position[n->id] = count++;
	for_each_node(in->f, n)
		for (int i = 0; n->function->marks && i < n->n_operands; i++) {
			int number = node_mark(n, i).of - 1;
			if (number < 0)
				continue;
			Node *reader = place_find(in->z->m, in->z->p->scratch, n, i).reader;
			Node **earliest = &in->earliest[number];
			if (!*earliest || in->position[reader->id] < in->position[(*earliest)->id])
				*earliest = reader;
		}
}

static Value *
build_fake(Inside *in, int number, const Place *at)
{
	FakeBuilder f = {.options = in->z->options,
	                 .trains = in->f->role == ROLE_FORWARD,
	                 .b = {.m = in->z->m,
	                       .f = in->f,
	                       .before = in->earliest[number],
	                       .loc = at->reader->loc,
	                       .phase = at->product->phase}};

	return fake_build(&f, at);
}

static void
quantize_product(Inside *in, Node *n)
{
	for (int i = 0; i < n->n_operands; i++) {
		int number = node_mark(n, i).of - 1;
		if (number < 0)
			continue;
		Place at = place_find(in->z->m, in->z->p->scratch, n, i);
		in->z->p->changed = true;
		if (!in->fakes[number])
			in->fakes[number] = build_fake(in, number, &at);
		if (place_value(&at) != in->fakes[number])
			node_set_operand(at.reader, at.input, in->fakes[number]);
	}
}

static void
quantize_function(Quantize *z, Function *f)
{
	int n_operands = z->m->quantized.n + 1;
	Inside in = {.z = z,
	             .f = f,
	             .position = NEW_ARRAY(z->p->scratch, int, f->next_node_id),
	             .earliest = NEW_ARRAY(z->p->scratch, Node *, n_operands),
	             .fakes = NEW_ARRAY(z->p->scratch, Value *, n_operands)};

	if (!f->marks)
		return;
	find_earliest(&in);
	for_each_node(f, n)
		quantize_product(&in, n);
	f->marks = NULL;
}

static bool
check_options(const Quantize *z)
{
	bool learns = z->options->learn_scales || !z->options->learn_zeros;

	if (!learns)
		diag_error(z->p->diag, EXIT_USAGE, "pass quantize: learn_zeros needs learn_scales");
	if (z->m->quantized.n == 0)
		diag_warning(z->p->diag,
		             "pass quantize: no operand is marked: --quantize=SPEC marks them");
	return learns;
}

static bool
run_quantize(Pass *p, Module *m)
{
	Quantize z = {.p = p,
	              .m = m,
	              .options = p->options,
	              .first = NEW_ARRAY(p->scratch, Place, m->quantized.n + 1)};
	bool ok = check_options(&z);

	for_each_function(m, f)
		ok &= !is_seen(f) || find_places(&z, f);
	ok = ok && open_operands(&z);
	if (ok && z.options->inference && has_running_ranges(&z))
		module_split_inference(m);
	for (int i = 0; ok && i < m->functions.n; i++)
		if (is_seen(m->functions.at[i]))
			quantize_function(&z, m->functions.at[i]);
	return ok;
}

static const QuantizePassOptions quantize_defaults = {.averaging = 0.01, .inference = true};
static const PassOption quantize_options[] = {
	{"averaging", "weight of a batch in a running range", OPTION_DOUBLE,
         offsetof(QuantizePassOptions, averaging), 0, 1, .above = true},
	{"freeze_after", "updates after which running ranges stay fixed; 0: never", OPTION_INT,
         offsetof(QuantizePassOptions, freeze_after), 0, 1e15},
	{"learn_scales", "scales of weights and running ranges are parameters", OPTION_BOOL,
         offsetof(QuantizePassOptions, learn_scales)},
	{"learn_zeros", "zero points of running ranges are parameters, too", OPTION_BOOL,
         offsetof(QuantizePassOptions, learn_zeros)},
	{"inference", "makes functions of role inference where running ranges need them",
         OPTION_BOOL, offsetof(QuantizePassOptions, inference)},
	{0}};
const PassRow pass_quantize = {.name = "quantize",
                               .help = "training sees operands of products rounded to codes",
                               .takes = STAGE_IMPORT,
                               .leaves = STAGE_ANY,
                               .when = PASS_WHEN_ASKED,
                               .options = quantize_options,
                               .options_size = sizeof(QuantizePassOptions),
                               .defaults = &quantize_defaults,
                               .run = run_quantize};

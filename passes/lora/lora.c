/* --lora GLOB: adds a low-rank product to each product with a weight. The weight itself is frozen
 * (Hu et al. 2021, arXiv:2106.09685; initial values and defaults as in PEFT). For example, for @w
 * with rank 8 and alpha 16:
 *
 *	%1 = dot %x, @w {x_contract = [1], y_contract = [1]} : f32[4,64]
 *
 * becomes
 *
 *	%1 = dot %x, @w {x_contract = [1], y_contract = [1]} : f32[4,64]
 *	%2 = dot %x, @w.lora_A.weight {x_contract = [1], y_contract = [1]} : f32[4,8]
 *	%3 = dot %2, @w.lora_B.weight {x_contract = [1], y_contract = [1]} : f32[4,64]
 *	%4 = add %1, (mul %3, 2)
 *
 * %2 is a copy of node %1, but reads lora_A in place of @w. lora_A has fewer outputs: as many as
 * the rank. This works for every op whose row has the column `adapts`; the column `partition` tells
 * which axis counts outputs. A weight with several readers, such as an embedding tied to the last
 * product, has one adapter. Some readers may have their outputs along the other axis of the weight;
 * for them, lora_A and lora_B change places.
 *
 * All other parameters are frozen; `trainable` runs next and trains the parameters of --train.
 *
 * Before training, results stay the same bit for bit, because @w.lora_B.weight begins as 0 (for a
 * table, lora_A does). Time: linear in nodes. */
#include "passes/lora/lora.h"

#include <math.h>
#include <string.h>

typedef struct {
	Pass *p;
	Module *m;
	VEC(LoraChoice) choices;
	bool failed; /* an error was reported */
	bool *fits;  /* by choice: does some parameter have an adapter of this choice? */
	/* by function: the row axes of its values before the pass adds branches; empty: no
	 * dropout */
	VEC(BatchAxes) rows;
	const char
		*why; /* why a parameter that the choice names has no adapter; NULL: it has one */
} Lora;

/* ---- the adapter */
/* Makes a state of the weight's adapter. It gets PEFT's name: "h.0.attn.lora_A.weight" for the
 * weight "h.0.attn.weight". The weight's name in the PyTorch module counts, if it is known. */
static State *
part_new(Lora *l, const State *weight, const char *suffix, Ints shape)
{
	Module *m = l->m;
	const char *exported = text_before_ending(m->arena, weight->path, ".weight");
	const char *named = text_before_ending(m->arena, weight->name, ".weight");
	const char *module = exported ? exported : named ? named : weight->name;
	const char *name = arena_printf(m->arena, "%s.%s", module, suffix);
	Type type = type_new(m, weight->type->dtype, shape.n, shape.at);
	State *s = state_new(m, module_fresh_name(m, name), type, STATE_PARAMETER, LIFE_SAVED);

	s->trainable = s->decay = s->init_given = true;
	s->loc = weight->loc;
	return s;
}

LoraPlace
lora_place_of(Type weight, int axis, const LoraSettings *s)
{
	double rank = (double)s->rank;
	LoraPlace p = {.axis = axis,
	               .outputs = weight->dims[axis],
	               .outer = 1,
	               .inner = 1,
	               .rank = s->rank,
	               .scale = s->alpha / (s->rslora ? sqrt(rank) : rank)};

	for (int i = 0; i < weight->rank; i++)
		*(i < axis ? &p.outer : &p.inner) *= i == axis ? 1 : weight->dims[i];
	return p;
}

int64_t
lora_place(const LoraPlace *p, int64_t i)
{
	return four_bit_place(i, p->outputs, p->outer, p->inner);
}

/* As PEFT's LoraLayer.reset_lora_parameters: kaiming_uniform_ with a = sqrt(5), which is U(-1/sqrt(inputs),
 * 1/sqrt(inputs)). */
static void
init_parts(const Adapter *a)
{
	int64_t outputs = a->b->type->dims[0];
	double inputs = outputs ? (double)(a->weight->type->n / outputs) : 0;
	double bound = inputs > 0 ? 1 / sqrt(inputs) : 0;

	if (a->readers == ADAPTS_TABLES) {
		state_begin_as(a->a, INIT_ZEROS, 0, 0);
		state_begin_as(a->b, INIT_NORMAL, 0, 1);
	} else {
		state_begin_as(a->a, INIT_UNIFORM, -bound, bound);
		state_begin_as(a->b, INIT_ZEROS, 0, 0);
	}
}

/* Adds dora's magnitudes. codes: the weight's 4-bit codes; NULL: the weight keeps its numbers. */
static void
add_magnitude(Lora *l, Adapter *a, const LoraCodes *codes)
{
	const Tensor *weight = codes ? codes->numbers : a->weight->data;
	const Tensor *norms = lora_norms(l->m, weight, a->axis);

	a->magnitude = part_new(l, a->weight, "lora_magnitude_vector", ints_of_type(norms->type));
	a->magnitude->init = INIT_DATA;
	a->magnitude->data = norms;
	a->magnitude->why = a->a->why;
}

static Adapter
adapter_new(Lora *l, State *weight, const LoraReaders *readers, const LoraChoice *c,
            const LoraCodes *codes)
{
	const LoraReader *r = lora_leader(readers);
	bool is_table = r->is_table;

	Adapter a = {.weight = weight,
	             .axis = r->axis,
	             .readers = is_table ? ADAPTS_TABLES : ADAPTS_PRODUCTS,
	             .alpha = c->settings.alpha,
	             .rslora = c->settings.rslora,
	             .pissa = c->settings.pissa};
	if (weight->data)
		a.base = (int64_t)hash_numbers(weight->type->dtype, weight->data->data,
		                               weight->type->n);
	Ints shape = ints_of_type(weight->type);
	Ints outputs = {.n = 2, .at = {shape.at[a.axis], c->settings.rank}};

	shape.at[a.axis] = c->settings.rank;
	for (int i = 0; i < readers->n; i++)
		if (readers->at[i].is_table != is_table)
			a.readers = ADAPTS_BOTH;
	a.a = part_new(l, weight, is_table ? "lora_embedding_A" : "lora_A.weight", shape);
	a.b = part_new(l, weight, is_table ? "lora_embedding_B" : "lora_B.weight", outputs);
	a.a->why = a.b->why = arena_printf(l->m->arena, "--%s=%s: rank %lld, times %g", c->option,
	                                   c->glob, (long long)c->settings.rank, adapter_scale(&a));
	weight->why = arena_printf(l->m->arena, "--%s=%s", c->option, c->glob);
	init_parts(&a);
	if (c->settings.dora)
		add_magnitude(l, &a, codes);
	vec_push(l->m->arena, &l->m->adapters, a);
	return a;
}

/* ---- the branch */
/* If a product may round its operands, the second product may do so, too. */
static bool
allows_tf32(const Node *n)
{
	return op_row(n)->allow_tf32 && *op_row(n)->allow_tf32(n->attr);
}

static Value *
turned(Builder *b, Value *matrix)
{
	return b_transpose(b, matrix, (Ints){.n = 2, .at = {1, 0}});
}

/* Returns x after dropout, for the product with lora_A. Rows of a table are not dropped. */
static Value *
dropped(const Lora *l, Builder *b, const Adapter *a, const LoraChoice *c, const LoraReader *r,
        Value *x)
{
	const BatchAxes *rows = l->rows.n ? &l->rows.at[b->f->index] : NULL;
	const Value *known = x;

	if (c->settings.dropout == 0 || r->is_table || !rows || !rows->of)
		return x;
	while (known->id >=
	       rows->n) /* the sum of an earlier branch has the row axis of the value to which it adds */
		known = node_operand(known->node, 0);
	const char *name = arena_printf(l->m->arena, "%s %u", a->a->name, r->node->id);
	return lora_dropped(b, x, c->settings.dropout, name, batch_blocks(rows, known), rows->rows);
}

/* r->order maps axes of the operand to axes of the weight. */
static void
add_branch(Lora *l, const Adapter *a, const LoraChoice *c, const LoraReader *r)
{
	Node *n = r->node;
	Loc parts[] = {n->loc};
	Builder b = {.m = l->m,
	             .f = n->function,
	             .before = n->next,
	             .loc = n->loc ? loc_of_parts(l->m, "lora", parts, 1) : NULL,
	             .phase = n->phase};
	Value *down = function_state(b.f, a->a), *up = function_state(b.f, a->b);
	Value *y = node_result(n, 0), *operands[MAX_OPERANDS];
	int rank = y->type->rank, at = r->result_axis;
	DotAttr product = {.x_contract = {.n = 1, .at = {at}},
	                   .y_contract = {.n = 1, .at = {1}},
	                   .allow_tf32 = allows_tf32(n)};
	Ints product_axis = {.n = 1, .at = {at}};

	if (r->axis !=
	    a->axis) { /* a matrix whose outputs lie along the other axis: the parts change places */
		Value *first = down;
		down = a->axis == 0 ? up : turned(&b, up);
		up = a->axis == 0 ? turned(&b, first) : first;
	}
	for (int i = 0; i < n->n_operands; i++)
		operands[i] = i == r->operand ? b_transpose(&b, down, r->order)
		                              : dropped(l, &b, a, c, r, node_operand(n, i));
	product.order.n = at == rank - 1 ? 0 : rank; /* outputs come last in the product */
	for (int i = 0; i < product.order.n; i++)
		product.order.at[i] = i < at ? i : i == at ? rank - 1 : i - 1;
	Value *x = b_retyped(&b, n, operands);
	x = build(&b, OP_dot, 2, (Value *[]){x, up}, &product);
	x = b_binary(&b, OP_mul, x, b_splat(&b, x->type, adapter_scale(a)));
	Value *sum = b_binary(&b, OP_add, y, x), *all = sum;
	if (a->magnitude) {
		LoraUse use = {node_operand(n, r->operand), operands[r->operand], up, r->outputs};
		Value *factor = lora_factor(&b, a, &use);
		factor = b_broadcast(&b, factor, ints_of_type(y->type), product_axis);
		all = b_binary(&b, OP_mul, sum, factor);
	}
	value_replace_uses(y, all);
	node_set_operand(sum->node, 0, y);
}

/* ---- the module */
/* The last choice that names the parameter; NULL: no choice does. */
static const LoraChoice *
choice_of(const Lora *l, const State *s)
{
	for (int i = l->choices.n - 1; i >= 0; i--)
		if (state_matches(s, l->choices.at[i].glob))
			return &l->choices.at[i];
	return NULL;
}

/* Can the weight have magnitudes (dora)? All its readers must have their outputs along one axis, and must read the
 * file's numbers. */
static bool
may_have_magnitude(Lora *l, const State *s, const LoraReaders *readers)
{
	const LoraReader *first = lora_leader(readers);
	bool is_table = false;

	for (int i = 0; i < readers->n; i++)
		is_table |= readers->at[i].is_table;
	l->why = s->data ? NULL : "dora needs the weight's numbers, which the file lacks";
	for (int i = 0; i < readers->n; i++) {
		if (readers->at[i].axis != first->axis)
			l->why =
				is_table
					? "dora: it is a table and the last product, with outputs along both axes"
					: "dora: products read it as it is and transposed, with outputs along both axes";
		if (node_result(readers->at[i].node, 0)->type->rank < 2)
			l->why = "dora: a vector is multiplied";
		if (readers->at[i].has_codes)
			l->why = "dora: its codes are read, whose norms differ";
	}
	const Tensor *norms = l->why ? NULL : lora_norms(l->m, s->data, first->axis);
	for (int64_t i = 0; norms && i < norms->type->n; i++) {
		double x = tensor_float(norms, i);
		if (!isfinite(s->type->dtype == F64 ? x * x : (double)(float)(x * x)))
			l->why = "dora: the square of a norm of it is not finite";
	}
	return !l->why;
}

static void
begin_as(State *s, const Tensor *data)
{
	s->init = INIT_DATA;
	s->data = data;
}

/* May `setting` use and change the weight's numbers? The file must have the numbers, and no
 * reader may read codes that were made from them. */
static bool
may_be_changed(Lora *l, const State *s, const LoraReaders *readers, const char *setting)
{
	l->why = s->data ? NULL
	                 : arena_printf(l->p->scratch,
	                                "%s needs the weight's numbers, which the file lacks",
	                                setting);
	for (int i = 0; i < readers->n; i++)
		if (readers->at[i].has_codes)
			l->why = arena_printf(l->p->scratch,
			                      "%s: other codes of it are read (--quantize)",
			                      setting);
	return !l->why;
}

/* A table has no largest part, because no sum runs along its rows. */
static bool
may_have_largest_part(Lora *l, const State *s, const LoraReaders *readers)
{
	if (!may_be_changed(l, s, readers, "init=pissa"))
		return false;
	for (int i = 0; i < readers->n; i++)
		if (readers->at[i].is_table)
			l->why = "init=pissa: a table has no largest part";
	return !l->why;
}

/* The largest rank of the weight as a matrix of outputs and inputs. */
static int64_t
most_rank(const LoraPlace *p)
{
	int64_t inputs = p->outer * p->inner;

	return p->outputs < inputs ? p->outputs : inputs;
}

static void
note_rank(Lora *l, const State *s, const LoraChoice *c, int axis)
{
	LoraPlace at = lora_place_of(s->type, axis, &c->settings);

	if (at.rank > most_rank(&at))
		diag_warning(
			l->p->diag,
			"--%s=%s: rank %lld for \"%s\": as a matrix [%lld,%lld] it has no more "
			"than %lld",
			c->option, c->glob, (long long)at.rank, s->name, (long long)at.outputs,
			(long long)(at.outer * at.inner), (long long)most_rank(&at));
}

/* Splits the weight for init=pissa. False after reporting. */
static bool
split_weight(Lora *l, const State *s, const LoraChoice *c, int axis, LoraParts *parts)
{
	LoraPlace at = lora_place_of(s->type, axis, &c->settings);
	int64_t most = most_rank(&at);
	Status status = NULL;

	for (int64_t i = 0; i < s->type->n && !status; i++)
		if (!isfinite(tensor_float(s->data, i)))
			status = status_error(EXIT_INVALID, "one of its numbers is not finite");
	if (!status && at.rank > most)
		status = status_error(EXIT_USAGE,
		                      "rank %lld is above %lld, the rank of its matrix [%lld,%lld]",
		                      (long long)at.rank, (long long)most, (long long)at.outputs,
		                      (long long)(at.outer * at.inner));
	if (!status)
		status = lora_pissa(l->m, s->data, &at, parts);
	if (!status)
		return true;
	l->failed = true;
	return diag_status(l->p->diag, status_annotate(status, "--%s=%s: init=pissa of \"%s\"",
	                                               c->option, c->glob, s->name));
}

/* Can the weight have an adapter with these settings? */
static bool
takes(Lora *l, const State *s, LoraReaders *readers, const LoraSettings *settings)
{
	l->why = lora_find_readers(l->m, s, l->p->scratch, readers);
	return !l->why && (!settings->dora || may_have_magnitude(l, s, readers)) &&
	       (!settings->bits || may_be_changed(l, s, readers, "qlora")) &&
	       (!settings->pissa || may_have_largest_part(l, s, readers));
}

static void
refuse(Lora *l, State *s, const LoraChoice *c)
{
	s->why = arena_printf(l->m->arena, "--%s: not adapted: %s", c->option, l->why);
}

/* Gives the weight s an adapter. The weight's data are changed last, because everything else is
 * computed from them. */
static void
adapt(Lora *l, State *s, const LoraChoice *c)
{
	const LoraSettings *settings = &c->settings;
	const LoraCodes *codes = NULL;
	LoraParts parts = {s->data, NULL, NULL};
	LoraReaders readers = {0};

	if (!takes(l, s, &readers, settings)) {
		refuse(l, s, c);
		return;
	}
	int axis = lora_leader(&readers)->axis;
	if (settings->pissa && !split_weight(l, s, c, axis, &parts))
		return;
	if (settings->bits && !(codes = lora_codes(l->m, parts.weight, axis, settings, &l->why))) {
		refuse(l, s, c);
		return;
	}
	note_rank(l, s, c, axis);
	Adapter a = adapter_new(l, s, &readers, c, codes);
	if (settings->pissa) {
		begin_as(a.a, parts.a);
		begin_as(a.b, parts.b);
	}
	s->data = parts.weight;
	for (int i = 0; i < readers.n; i++)
		add_branch(l, &a, c, &readers.at[i]);
	if (codes)
		lora_keep_codes(l->m, s, a.axis, codes, settings);
	l->fits[c - l->choices.at] = true;
}

/* Reports a choice without an adapter: a typing error, or a parameter that cannot have one. */
static bool
report_choice(const Lora *l, const LoraChoice *c)
{
	const State *named = NULL;

	for (int i = 0; i < l->m->states.n && !named; i++) {
		const State *s = l->m->states.at[i];
		if (s->kind == STATE_PARAMETER && state_matches(s, c->glob))
			named = s;
	}
	if (!named) {
		diag_error(l->p->diag, EXIT_USAGE, "--%s=%s fits no parameter", c->option, c->glob);
		hint_nearest_states(l->m, c->glob, l->p->diag);
		return false;
	}
	diag_error(l->p->diag, EXIT_USAGE, "--%s=%s: no parameter that it names can be adapted",
	           c->option, c->glob);
	diag_hint(l->p->diag, "\"%s\": %s", named->name,
	          named->why ? named->why : "a later option names it");
	return false;
}

/* The option has one choice per line. */
static bool
read_choices(Lora *l, const char *text)
{
	char *lines = arena_strdup(l->p->scratch, text ? text : ""), *save = NULL;
	bool ok = true;

	for (char *line = strtok_r(lines, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		LoraChoice c;
		ok &= lora_parse(line, &c, l->m->arena, l->p->diag);
		vec_push(l->p->scratch, &l->choices, c);
	}
	l->fits = NEW_ARRAY(l->p->scratch, bool, l->choices.n + 1);
	return ok;
}

/* With dropout, training runs other functions than evaluation. */
static void
find_rows(Lora *l)
{
	bool drops = false;

	for (int i = 0; i < l->choices.n; i++)
		drops |= l->choices.at[i].settings.dropout > 0;
	if (!drops)
		return;
	module_split_inference(l->m); /* it drops nothing */
	for_each_function(l->m, f) {
		BatchAxes rows = {0};
		if (f->role == ROLE_FORWARD)
			rows = batch_of(l->p->scratch, f);
		vec_push(l->p->scratch, &l->rows, rows);
	}
}

static bool
run_lora(Pass *p, Module *m)
{
	Lora l = {.p = p, .m = m};
	int n = m->states.n;

	if (!read_choices(&l, ((const LoraOptions *)p->options)->adapters))
		return false;
	if (l.choices.n == 0)
		return true;
	find_rows(&l);
	for (int i = 0; i < n; i++) {
		State *s = m->states.at[i];
		const LoraChoice *c = s->kind == STATE_PARAMETER ? choice_of(&l, s) : NULL;
		bool is_parameter = s->trainable;
		if (s->kind == STATE_PARAMETER && is_parameter) {
			s->trainable = false;
			s->why = arena_printf(m->arena, "--%s", l.choices.at[0].option);
		}
		if (c && is_parameter)
			adapt(&l, s, c);
		else if (c)
			s->why = arena_printf(m->arena, "--%s: not adapted: no parameter: %s",
			                      c->option, s->why ? s->why : "frozen");
	}
	p->changed = true;
	if (l.failed)
		return false;
	for (int i = 0; i < l.choices.n; i++)
		if (!l.fits[i])
			return report_choice(&l, &l.choices.at[i]);
	return true;
}

static const PassOption lora_options[] = {
	{"adapters", "lora GLOB[,KEY=VALUE] or qlora GLOB[,KEY=VALUE], one a line", OPTION_STRING,
         offsetof(LoraOptions, adapters)},
	{0}};
const PassRow pass_lora = {.name = "lora",
                           .help = "low-rank products beside frozen weights",
                           .takes = STAGE_IMPORT,
                           .leaves = STAGE_IMPORT,
                           .when = PASS_WHEN_ASKED,
                           .options = lora_options,
                           .options_size = sizeof(LoraOptions),
                           .run = run_lora};

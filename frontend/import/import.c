/* Imports an ONNX graph into a module of the IR, node by node: a table gives the importer for each
 * operator. Integer arithmetic on constants is folded immediately, so that importers see shapes as
 * numbers. Float arithmetic is left to later passes, which know the precision. */
#include "frontend/import/walk.h"

#include <string.h>

enum { FOLD_ELEMENTS = 64, FOLD_BYTES = 64 << 10, KNOWN_DEPTH = 64, KNOWN_ELEMENTS = 64 << 10 };

/* ---- names */
void
importer_bind(Importer *im, const char *name, Value *v)
{
	Bound *b = NEW(im->arena, Bound);

	b->value = v;
	strmap_put(im->values, name, b);
}

static Value *
constant_of(Importer *im, const TensorProto *t)
{
	TensorData data;

	if (!tensor_load(im->model, t, false, &data, im->diag))
		return NULL;
	Type type = type_new(im->m, data.dtype, data.rank, data.dims);
	return b_constant(&im->b, tensor_borrow(im->m, type, data.data));
}

static Ints
weight_shape(const Weight *w)
{
	Ints shape = {.n = w->data.rank};

	memcpy(shape.at, w->data.dims, sizeof(*shape.at) * (size_t)shape.n);
	return shape;
}

static Value *
expand(Importer *im, const Weight *w, Value *v)
{
	Ints shape = weight_shape(w);

	if (w->expanded_from == 0 && shape.at[0] == im->baked_batch)
		shape.at[0] = im->options->batch;
	return b_broadcast_to(&im->b, v, shape);
}

/* The value of a scale or zero point. If a Constant node holds this value, the node may come later
 * in the graph, so the constant is made here. */
static Value *
beside_codes(Importer *im, const char *name)
{
	Bound *found = importer_lookup(im, name);
	const Weight *w = repairs_weight(im->repairs, name);
	const FlatNode *n = strmap_get(im->repairs->producers, name);

	if (found)
		return found->value;
	if (w)
		return weight_value(im, w);
	const TensorProto *t = n ? constant_tensor(im->repairs, n) : NULL;
	return t ? constant_of(im, t) : NULL;
}

/* Zero points, cast as the importer of DequantizeLinear casts them, so that CSE merges the two
 * values. */
static Value *
zero_values(Importer *im, const Codes *c)
{
	int n = (int)codes_scales(c);

	if (c->zeros)
		return b_cast(&im->b, beside_codes(im, c->zeros), F32);
	float *zero = NEW_ARRAY(im->arena, float, n);
	for (int i = 0; i < n; i++)
		zero[i] = (float)c->zero[i];
	return b_constant(&im->b, tensor_new(im->m, type_new(im->m, F32, 1, (int64_t[]){n}), zero));
}

/* The trained floats, quantized again. */
static Value *
codes_value(Importer *im, const Weight *w)
{
	const Codes *c = w->codes;
	Builder *b = &im->b;
	Value *scale = beside_codes(im, c->scale), *x = function_state(b->f, w->state);

	if (!scale)
		return NULL;
	Value *operands[] = {x, b_spread(b, b_cast(b, scale, F32), c->shape, c->group), NULL};
	if (c->zero)
		operands[2] = b_spread(b, zero_values(im, c), c->shape, c->group);
	return build(b, OP_quantize, c->zero ? 3 : 2, operands, &(QuantizeAttr){.to = c->type});
}

Value *
weight_value(Importer *im, const Weight *w)
{
	const Weight *home = w->tied ? w->tied : w;

	if (!home->state || w->as_constant)
		return constant_of(im, w->tensor);
	if (w->codes)
		return codes_value(im, w);
	Value *v = function_state(im->b.f, home->state);
	if (w->expanded_to)
		return expand(im, w, v);
	return w->transposed ? b_transpose(&im->b, v, (Ints){.n = 2, .at = {1, 0}}) : v;
}

Bound *
importer_lookup(Importer *im, const char *name)
{
	Bound *found = strmap_get(im->values, name);

	if (found)
		return scope_bound(im, found);
	const TensorProto *t = strmap_get(im->model->initializers, name);
	if (!t)
		return NULL;
	Weight *w = im->repairs ? repairs_weight(im->repairs, name) : NULL;
	if (w) {
		importer_bind_weight(im, name, w);
	} else {
		Builder reader = im->b;
		im->b = scope_program(im);
		im->b.loc = loc_name(im->m, name);
		importer_bind(im, name, constant_of(im, t));
		im->b = reader;
	}
	return scope_bound(im, strmap_get(im->values, name));
}

/* Binds a weight's name to a value of the program, even if the weight lies in a loop's body. */
void
importer_bind_weight(Importer *im, const char *name, const Weight *w)
{
	Builder reader = im->b;

	im->b = scope_program(im);
	im->b.loc = loc_name(im->m, w->name);
	importer_bind(im, name, weight_value(im, w));
	im->b = reader;
}

bool
weight_has_state(const Weight *w)
{
	return w && (w->tied ? w->tied->state : w->state) && !w->as_constant;
}

static uint64_t
key_of(const void *p)
{
	return (uint64_t)(uintptr_t)p;
}

Value *
importer_next_content(Importer *im, const State *state)
{
	uint64_t place;

	return intmap_get(im->store_of_state, key_of(state), &place)
	               ? im->stores_at_end.at[place].value
	               : NULL;
}

void
importer_store_at_end(Importer *im, State *state, Value *value)
{
	uint64_t place;

	if (!intmap_get(im->store_of_state, key_of(state), &place)) {
		place = (uint64_t)im->stores_at_end.n;
		intmap_put(im->store_of_state, key_of(state), place);
		vec_push(im->arena, &im->stores_at_end, ((StoreAtEnd){.state = state}));
	}
	im->stores_at_end.at[place].value = value;
	intmap_put(im->state_of_next, key_of(value), key_of(state));
}

State *
input_statistic(OnnxNode *n, int i)
{
	Value *v = has_input(n, i) ? want_input(n, i) : NULL;
	uint64_t state;

	if (!v || v->kind == VALUE_STATE)
		return v ? v->state : NULL;
	return intmap_get(n->im->state_of_next, key_of(v), &state) ? (State *)(uintptr_t)state
	                                                           : NULL;
}

/* ---- folding */
static bool
moves_data(const OpRow *row)
{
	bool selects = row->fuse == FUSE_INDEX && row->as_floats; /* elements of an operand */

	return row->fuse == FUSE_VIEW || row->fuse == FUSE_ROOT || selects;
}

static bool
worth_folding(const Node *n)
{
	const OpRow *row = op_row(n);
	int64_t largest = 0;

	if (row->effect || row->fuse == FUSE_NONE || n->n_operands == 0)
		return false;
	for (int i = 0; i < n->n_operands; i++) {
		if (!node_operand(n, i) || !value_constant(node_operand(n, i)))
			return false;
		if (node_operand(n, i)->type->n > largest)
			largest = node_operand(n, i)->type->n;
	}
	for (int i = 0; i < n->n_results; i++) {
		Type t = node_result(n, i)->type;
		if (dtype_is_float(t->dtype) && !moves_data(row))
			return false;
		if (t->n > FOLD_ELEMENTS && (t->n > largest || type_bytes(t) > FOLD_BYTES))
			return false;
	}
	return true;
}

/* Folds the nodes that an importer built after the node `before`, and updates the ONNX node's
 * outputs to the folded values. */
static void
fold_new(OnnxNode *on, Node *before)
{
	Function *f = on->b->f;

	for (Node *n = before ? before->next : f->first, *next; n; n = next) {
		next = n->next;
		if (!worth_folding(n))
			continue;
		Tensor **folded = NEW_ARRAY(on->im->arena, Tensor *, n->n_results);
		if (!node_fold(on->im->m, n, folded))
			continue;
		Builder b = *on->b;
		b.before = n;
		for (int i = 0; i < n->n_results; i++) {
			Value *from = node_result(n, i), *to = b_constant(&b, folded[i]);
			value_replace_uses(from, to);
			for (int k = 0; k < n_outputs(on); k++) {
				if (on->out[k].value == from)
					on->out[k].value = to;
				if (on->out[k].count == from)
					on->out[k].count = to;
				for (int j = 0; j < on->out[k].n_list; j++)
					if (on->out[k].list[j] == from)
						on->out[k].list[j] = to;
			}
		}
	}
}

/* The numbers given for an input; NULL: no numbers are given, or numbers of another type. */
static const Tensor *
given(const Importer *im, const Value *v)
{
	const ImportOptions *o = im->options;

	for (int i = 0; i < o->n_given && v->param == PARAM_INPUT; i++) {
		const NamedTensor *g = &o->given[i];
		Type type = type_new(im->m, g->dtype, g->rank, g->dims);
		if (strcmp(g->name, v->name) == 0)
			return type == v->type ? tensor_new(im->m, type, g->data) : NULL;
	}
	return NULL;
}

/* Computes v from constants, iotas and given inputs; NULL: v depends on something else. found:
 * value's id -> Tensor or NULL, for values tried before. */
static const Tensor *
known(Importer *im, Value *v, int depth, IntMap *found)
{
	uint64_t before;

	if (intmap_get(found, v->id, &before))
		return (const Tensor *)(uintptr_t)before;
	const Tensor *t = value_constant(v);
	Tensor *results[8];

	if (!t && v->kind == VALUE_PARAM)
		return given(im, v);
	if (t || v->kind != VALUE_RESULT)
		return t;
	Node *n = v->node;
	if (depth == 0 || n->n_results > COUNT(results) || op_row(n)->effect ||
	    op_row(n)->fuse == FUSE_NONE || v->type->n > KNOWN_ELEMENTS)
		return NULL;
	Value **operands = NEW_ARRAY(im->arena, Value *, n->n_operands);
	Builder b = im->b;
	bool all = true;
	int made = 0;
	for (; made < n->n_operands && all; made++) {
		t = known(im, node_operand(n, made), depth - 1, found);
		all = t != NULL;
		operands[made] = all ? b_constant(&b, t) : NULL;
	}
	t = NULL;
	if (all) {
		Node *copy = build_node(&b, n->op, n->n_operands, operands, n->attr);
		if (node_fold(im->m, copy, results))
			t = results[v->index];
		node_erase(copy);
	}
	for (int i = 0; i < made; i++)
		if (operands[i])
			node_erase(operands[i]->node);
	if (t)
		intmap_put(found, v->id, (uint64_t)(uintptr_t)t);
	return t;
}

const Tensor *
known_value(Importer *im, Value *v)
{
	return known(im, v, KNOWN_DEPTH, intmap_new(im->arena));
}

/* Imports an Identity whose output became a parameter of its own again (repair `merged`): the output
 * is that parameter. */
static bool
import_unmerged(Importer *im, const NodeProto *p)
{
	Weight *w = im->repairs && p->n_output == 1 ? repairs_weight(im->repairs, p->output[0])
	                                            : NULL;

	if (!w || w->identity != p || !w->state)
		return false;
	im->b.loc = loc_name(im->m, p->output[0]);
	importer_bind(im, p->output[0], weight_value(im, w));
	return true;
}

/* Is the function over the budget of nodes? The first node over the budget reports this; that node
 * and all later nodes are skipped. */
static bool
imported_enough(Importer *im, const FlatNode *flat)
{
	if (im->full || im->b.f->next_node_id <= MAX_IMPORTED_NODES)
		return im->full;
	im->full = true;
	node_error(im->model, im->diag, flat, EXIT_UNSUPPORTED,
	           "the nodes before it became %u primitive ones, at most %d are supported",
	           (unsigned)im->b.f->next_node_id, MAX_IMPORTED_NODES);
	diag_hint(im->diag, "`gradc dump --stage=import` shows what a part of the model becomes");
	return true;
}

void
import_node(Importer *im, const FlatNode *flat)
{
	const NodeProto *p = flat->proto;
	OnnxNode n = {.im = im,
	              .flat = flat,
	              .proto = p,
	              .row = importer_find(flat),
	              .opset = flat->opset,
	              .b = &im->b};
	const MarkedInputs *inputs = quantized_inputs(im, p);
	Node *before = im->b.f->last;
	int errors = diag_errors(im->diag);

	if (imported_enough(im, flat) || import_unmerged(im, p))
		return;
	n.out = NEW_ARRAY(im->arena, Bound, p->n_output);
	im->b.loc = loc_name(im->m, node_location(p));
	if (n.row) {
		n.extra = &n.row->extra;
		n.row->import(&n);
		padded_outputs(&n);
		if (inputs)
			quantized_mark(&n, inputs, before ? before->next : im->b.f->first);
	} else {
		report_unsupported(&n, "%s", importer_missing(flat));
	}
	if (!inputs) /* a folded view would hide a constant weight */
		fold_new(&n, before);
	for (size_t i = 0; i < p->n_output; i++) {
		bool empty = is_poisoned(&n.out[i]);
		if (!*p->output[i])
			continue;
		if (empty && !n.failed && diag_errors(im->diag) == errors)
			report_unsupported(&n, "output %zu is not supported", i);
		strmap_put(im->values, p->output[i], &n.out[i]);
	}
}

void
import_nodes(Importer *im, int n, const FlatNode *nodes)
{
	for (int i = 0; i < n; i++)
		import_node(im, &nodes[i]);
}

/* Erases pure nodes without readers, last node first. */
static void
sweep(Function *f)
{
	for_each_node_reverse(f, n) {
		bool used = op_row(n)->effect;
		for (int i = 0; i < n->n_results; i++)
			used |= value_used(node_result(n, i));
		if (!used)
			node_erase(n);
	}
}

/* Sets the inputs' batch axes. If a tensor of random numbers has a batch axis, each rank draws only
 * its own rows of the tensor for the whole step. */
static void
set_random_batch_axes(Importer *im, const ImportBinding *binding)
{
	const Function *f = im->b.f;

	for (int i = 0; i < f->params.n; i++) {
		Value *v = f->params.at[i];
		if (v->param != PARAM_INPUT)
			continue;
		const ImportPort *port = &binding->inputs.at[v->number];
		v->has_rows = port->has_rows;
		v->rows_axis = v->has_rows ? port->batch_axis : 0;
	}
	if (im->pending_randoms.n == 0)
		return;
	BatchAxes batch = batch_of(im->arena, f);
	for (int i = 0; i < im->pending_randoms.n; i++) {
		PendingRandom *pending = &im->pending_randoms.at[i];
		RandomAttr *a = pending->random->node->attr;
		int axis = batch_blocks(&batch, pending->rows_of);
		if (axis < 0 || axis >= a->shape.n || a->shape.at[axis] % batch.rows != 0)
			continue;
		a->counter.axis = axis;
		a->counter.rows = batch.rows;
	}
}

/* ---- the module */
static void
import_function(Importer *im, ImportInfo *info)
{
	Role role = im->inference ? ROLE_INFERENCE : ROLE_FORWARD;

	im->b = (Builder){
		.m = im->m, .f = program_new(im->m, role, im->binding), .phase = PHASE_FORWARD};
	im->values = strmap_new(im->arena);
	im->store_of_state = intmap_new(im->arena);
	im->state_of_next = intmap_new(im->arena);
	im->stores_at_end.n = im->pending_randoms.n = im->overflows.n = 0;
	import_inputs(im, info);
	if (diag_errors(im->diag) != im->before)
		return;
	import_nodes(im, im->model->nodes.n, im->model->nodes.at);
	import_outputs(im, info);
	if (diag_errors(im->diag) != im->before)
		return;
	set_random_batch_axes(im, &info->base.bindings.at[im->binding]);
	if (!im->inference)
		rows_find_outputs(im, &info->base.bindings.at[im->binding]);
	sweep(im->b.f);
}

static void
import_bindings(Importer *im, ImportInfo *info)
{
	for (im->binding = 0; im->binding < im->options->n_bindings; im->binding++)
		if (diag_errors(im->diag) == im->before)
			import_function(im, info);
}

/* The state's elements. An expanded tensor has copies along some axes: only the first copy of each
 * block is taken. */
static const void *
state_data(Module *m, const ImportInfo *info, const Weight *w, Type type)
{
	int64_t block = 1, copies = 1;

	if (w->codes && !w->as_constant) {
		float *floats = arena_alloc(m->arena, (size_t)type_bytes(type));
		codes_to_floats(w->codes, w->data.data,
		                &repairs_weight(info->repairs, w->codes->scale)->data, floats);
		return floats;
	}
	if (!w->expanded_to || w->expanded_from == 0)
		return w->data.data;
	for (int i = w->data.rank - 1; i >= w->expanded_from; i--)
		*(i < w->expanded_to ? &copies : &block) *= w->data.dims[i];
	int64_t bytes = dtype_bytes(w->data.dtype, block);
	char *out = arena_alloc(m->arena, (size_t)type_bytes(type));
	for (int64_t i = 0; i < type->n / block; i++)
		memcpy(out + i * bytes, (const char *)w->data.data + i * copies * bytes,
		       (size_t)bytes);
	return out;
}

/* How to find the tensor in the exported module: its name there, and whether it is transposed. If
 * an exporter computed a matrix from one parameter, the matrix is the parameter's transpose.
 * TorchScript's exporter gives no origin, but names the matrix after the MatMul that reads the
 * matrix. */
static StateSource
source_of(const Weight *w, DType dtype)
{
	const Origin *o = w->origin;
	bool folded = !strncmp(w->name, "onnx::MatMul_", 13) && w->data.rank == 2;
	bool computed = o && o->folded && o->from.n == 1 && name_is_generated(w->name);

	if (computed && o->steps <= 1 && w->data.rank == 2)
		return (StateSource){dtype, o->from.at[0], true};
	return (StateSource){dtype,
	                     name_is_generated(w->name) || !strchr(w->name, '.') ? NULL : w->name,
	                     folded};
}

static void
make_state(Module *m, ImportInfo *info, Weight *w)
{
	static const struct {
		StateKind kind;
		Lifetime lifetime;
	} rows[] = {[WEIGHT_PARAMETER] = {STATE_PARAMETER, LIFE_SAVED},
	            [WEIGHT_STATISTIC] = {STATE_STATISTIC, LIFE_SAVED},
	            [WEIGHT_TABLE] = {STATE_PARAMETER, LIFE_CONSTANT},
	            [WEIGHT_QUANTIZED] = {STATE_PARAMETER, LIFE_CONSTANT}};
	bool floats = w->codes && !w->as_constant;
	Ints shape = floats ? w->codes->shape : weight_shape(w);
	DType dtype = floats ? F32 : w->data.dtype;

	for (int i = w->expanded_from; i < w->expanded_to; i++)
		shape.at[i] = 1;
	Type type = type_new(m, dtype, shape.n, shape.at);
	State *s = state_new(m, module_fresh_name(m, w->name), type, rows[w->kind].kind,
	                     rows[w->kind].lifetime);

	s->trainable = s->decay = w->kind == WEIGHT_PARAMETER;
	s->lr_scale = 1;
	s->init = w->data.data ? INIT_DATA : INIT_ZEROS;
	s->data = w->data.data ? tensor_borrow(m, type, state_data(m, info, w, type)) : NULL;
	s->path = w->path;
	s->groups = w->groups;
	s->why = arena_strdup(m->arena, w->why);
	s->loc = loc_name(m, w->name);
	w->state = s;
	vec_push(m->arena, &info->base.state_sources, source_of(w, dtype));
}

/* The option as a word of a shell: "--train=NAME". */
static const char *
option_for(Module *m, const char *option, const Weight *w)
{
	Text t = {0};

	text_printf(&t, "--%s=", option);
	text_add_shell_word(&t, w->name);
	const char *made = arena_strdup(m->arena, t.at);
	text_free(&t);
	return made;
}

/* Lists a tensor in doubt with the option that decides otherwise: --train for a constant, --freeze
 * for a parameter. */
static void
add_doubt(Module *m, ImportInfo *info, const Weight *w)
{
	bool trains = w->kind == WEIGHT_PARAMETER;

	if (!w->doubt || w->tied)
		return;
	ImportDoubt doubt = {.name = w->name,
	                     .reasons_for = w->doubt->reasons_for,
	                     .reasons_against = w->doubt->reasons_against,
	                     .option = option_for(m, trains ? "freeze" : "train", w),
	                     .trains = trains,
	                     .state = w->state};
	vec_push(m->arena, &info->base.doubts, doubt);
}

static void
add_constant(Module *m, ImportInfo *info, const Weight *w)
{
	if (w->kind != WEIGHT_CONSTANT || w->identity)
		return;
	ImportConstant c = {.name = w->name,
	                    .path = w->path,
	                    .why = w->why,
	                    .option = w->is_read ? option_for(m, "train", w) : NULL,
	                    .type = type_new(m, w->data.dtype, w->data.rank, w->data.dims)};
	vec_push(m->arena, &info->base.constants, c);
}

/* Counts the tensors of each group; groups are listed by first appearance. */
static void
count_groups(Module *m, ImportInfo *info, const Weight *w)
{
	const char *at = w->identity && w->kind == WEIGHT_CONSTANT ? NULL : w->groups;

	for (int i = 0; at && *at; at += strspn(at, " ")) {
		size_t n = strcspn(at, " ");
		for (i = 0; i < info->base.groups.n; i++)
			if (strlen(info->base.groups.at[i].name) == n &&
			    !strncmp(info->base.groups.at[i].name, at, n))
				break;
		if (i == info->base.groups.n)
			vec_push(m->arena, &info->base.groups,
			         ((ImportGroup){arena_strndup(m->arena, at, n), 0}));
		info->base.groups.at[i].n++;
		at += n;
	}
}

static ImportInfo *
import_info(Module *m, Model *model, const ImportOptions *options)
{
	ImportInfo *info = NEW(m->arena, ImportInfo);
	const ModelProto *p = model->proto;

	info->base = (Import){.path = model->path,
	                      .ir_version = p->ir_version,
	                      .opset = model->opset,
	                      .producer = p->producer_name ? p->producer_name : "",
	                      .n_nodes = (int)p->graph->n_node,
	                      .n_functions = (int)p->n_functions,
	                      .model = model};
	for (int i = 0; i < options->n_bindings; i++) {
		ImportBinding b = {.text = options->bindings[i].text};
		vec_push(m->arena, &info->base.bindings, b);
	}
	m->import = info;
	return info;
}

/* The batch size that --repair=batch replaces: the leading dimension of the first input whose
 * leading dimension is a number. 0: --repair=batch or --batch is not given, or no such input. */
static int64_t
baked_batch(const Model *model, const ImportOptions *o)
{
	const GraphProto *g = model->proto->graph;
	bool asked = false;

	for (int i = 0; o->repairs && o->repairs[i]; i++)
		asked |= !strcmp(o->repairs[i], "batch");
	for (size_t i = 0; asked && o->batch && i < g->n_input; i++) {
		const Onnx__TypeProto__Tensor *t = tensor_type(g->input[i]);
		if (!strmap_get(model->initializers, g->input[i]->name) && t && t->shape &&
		    t->shape->n_dim && !dim_symbol(t->shape->dim[0]))
			return t->shape->dim[0]->dim_value;
	}
	return 0;
}

void
importer_in_training_form(OnnxNode *n, const char *what, bool computed)
{
	Arena *arena = n->im->m->arena;
	StringList *list = &n->im->training_form;
	const char *text = arena_printf(arena, "%s %s", what,
	                                quoted(n->im->model, node_location(n->proto)));

	if (n->im->inference)
		return;
	n->im->computes_training_form |= computed;
	for (int i = 0; i < list->n; i++)
		if (strcmp(list->at[i], text) == 0)
			return;
	vec_push(arena, list, text);
}

/* Warns of options that had no effect on this model. */
static void
warn_idle_options(const Importer *im)
{
	if (im->options->restore_train_mode && !im->restored)
		diag_warning(im->diag,
		             "--train-mode=restore: the model has no dropout and no batch norm in "
		             "inference form");
	if (im->options->update_statistics && !im->has_frozen_norms)
		diag_warning(im->diag, "--statistics=update: the model has no frozen batch norm in "
		                       "training form");
	if (im->options->sync_batch_norm && !im->has_synchronized_norms)
		diag_warning(im->diag,
		             "--sync-batchnorm: the model has no batch norm in training form");
}

Module *
model_import(Model *model, const ImportOptions *options, Diag *diag)
{
	const GraphProto *g = model->proto->graph;
	Module *m = module_new(g->name && *g->name ? g->name : "main");
	Arena *scratch = arena_new();
	int before = diag_errors(diag);
	ImportInfo *info = import_info(m, model, options);
	Importer im = {.model = model,
	               .m = m,
	               .diag = diag,
	               .options = options,
	               .arena = scratch,
	               .baked_batch = baked_batch(model, options),
	               .before = before};

	info->keep_metadata = options->keep_metadata;
	info->quantize = options->quantize;
	info->repairs = im.repairs = repairs_find(model, options, m->arena, diag);
	if (diag_errors(diag) == before) {
		for (int i = 0; i < im.repairs->list.n; i++) {
			Weight *w = im.repairs->list.at[i];
			if (w->kind != WEIGHT_CONSTANT && !w->tied)
				make_state(m, info, w);
		}
		quantized_open(&im);
		import_bindings(&im, info);
	}
	if (im.baked_batch)
		repairs_note(im.repairs, "batch", "%lld rows became %lld",
		             (long long)im.baked_batch, (long long)options->batch);
	if (diag_errors(diag) == before && im.differs) {
		im.inference = true;
		import_bindings(&im, info);
	}
	warn_idle_options(&im);
	for (int i = 0; i < im.repairs->log.n; i++)
		vec_push(m->arena, &info->base.repairs, im.repairs->log.at[i]);
	for (int i = 0; i < im.repairs->notes.n; i++)
		vec_push(m->arena, &info->base.notes, im.repairs->notes.at[i]);
	info->base.training_form = im.training_form;
	info->base.computes_training_form = im.computes_training_form;
	for (int i = 0; i < im.repairs->list.n; i++) {
		add_doubt(m, info, im.repairs->list.at[i]);
		add_constant(m, info, im.repairs->list.at[i]);
		count_groups(m, info, im.repairs->list.at[i]);
	}
	arena_free(scratch);
	if (diag_errors(diag) == before)
		return m;
	module_free(m);
	return NULL;
}

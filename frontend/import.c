/* Graph -> IR: inputs bound to numbers, nodes one by one through the importers' table, outputs
 * compared with what the file declares. Integer arithmetic on constants folds on the way, so that
 * shapes are numbers where importers ask for them; float arithmetic is left to later passes, which
 * know the precision. */
#include "frontend/onnx/importer.h"

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

Value *
weight_value(Importer *im, const Weight *w)
{
	const Weight *home = w->tied ? w->tied : w;

	if (!home->state || w->as_constant)
		return constant_of(im, w->tensor);
	Value *v = function_state(im->b.f, home->state);
	return w->transposed ? b_transpose(&im->b, v, (Ints){.n = 2, .at = {1, 0}}) : v;
}

Bound *
importer_lookup(Importer *im, const char *name)
{
	Bound *found = strmap_get(im->values, name);

	if (found)
		return found;
	const TensorProto *t = strmap_get(im->model->initializers, name);
	if (!t)
		return NULL;
	Weight *w = im->repairs ? repairs_weight(im->repairs, name) : NULL;
	im->b.loc = loc_name(im->m, name);
	importer_bind(im, name, w ? weight_value(im, w) : constant_of(im, t));
	return strmap_get(im->values, name);
}

State *
input_state(OnnxNode *n, int i)
{
	Value *v = has_input(n, i) ? want_input(n, i) : NULL;

	return v && v->kind == VALUE_STATE ? v->state : NULL;
}

/* ---- folding */
static bool
moves_data(const OpRow *row)
{
	return row->fuse == FUSE_VIEW || row->fuse == FUSE_ROOT || row == op_table[OP_gather];
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

/* Folds what an importer built behind `before`, and swaps the node's outputs accordingly. */
static void
fold_new(OnnxNode *on, Node *before)
{
	Function *f = on->b->f;
	Tensor *folded[8];

	for (Node *n = before ? before->next : f->first, *next; n; n = next) {
		next = n->next;
		if (n->n_results > COUNT(folded) || !worth_folding(n) ||
		    !node_fold(on->im->m, n, folded))
			continue;
		Builder b = *on->b;
		b.before = n;
		for (int i = 0; i < n->n_results; i++) {
			Value *from = node_result(n, i), *to = b_constant(&b, folded[i]);
			value_replace_uses(from, to);
			for (int k = 0; k < n_outputs(on); k++) {
				if (on->out[k].value == from)
					on->out[k].value = to;
				for (int j = 0; j < on->out[k].n_list; j++)
					if (on->out[k].list[j] == from)
						on->out[k].list[j] = to;
			}
		}
	}
}

static const Tensor *
known(Importer *im, Value *v, int depth)
{
	const Tensor *t = value_constant(v);
	Tensor *results[8];

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
		t = known(im, node_operand(n, made), depth - 1);
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
	return t;
}

const Tensor *
known_value(Importer *im, Value *v)
{
	return known(im, v, KNOWN_DEPTH);
}

/* ---- nodes */
static const char *
location_of(const NodeProto *p)
{
	if (p->name && *p->name)
		return p->name;
	for (size_t i = 0; i < p->n_output; i++)
		if (*p->output[i])
			return p->output[i];
	return p->op_type;
}

void
import_node(Importer *im, const FlatNode *flat)
{
	const NodeProto *p = flat->proto;
	OnnxNode n = {.im = im, .flat = flat, .proto = p, .row = importer_find(flat),
	              .opset = flat->opset, .b = &im->b};
	Node *before = im->b.f->last;
	int errors = diag_errors(im->diag);

	n.out = NEW_ARRAY(im->arena, Bound, p->n_output);
	im->b.loc = loc_name(im->m, location_of(p));
	if (n.row) {
		n.extra = &n.row->extra;
		n.row->import(&n);
	} else {
		unsupported(&n, "%s", importer_missing(flat));
	}
	fold_new(&n, before);
	for (size_t i = 0; i < p->n_output; i++) {
		bool empty = !n.out[i].value && !n.out[i].sequence;
		if (!*p->output[i])
			continue;
		if (empty && !n.failed && diag_errors(im->diag) == errors)
			unsupported(&n, "output %zu is not supported", i);
		strmap_put(im->values, p->output[i], &n.out[i]);
	}
}

void
import_nodes(Importer *im, int n, const FlatNode *nodes)
{
	for (int i = 0; i < n; i++)
		import_node(im, &nodes[i]);
}

/* ---- inputs */
typedef struct {
	Importer *im;
	ImportInfo *info;
	Text open; /* names of dimensions that nothing binds */
} Inputs;

static const Onnx__TypeProto__Tensor *
tensor_type(const ValueInfoProto *v)
{
	return v->type && v->type->value_case == ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE
	               ? v->type->tensor_type
	               : NULL;
}

static const char *
dim_symbol(const Onnx__TensorShapeProto__Dimension *d)
{
	if (d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM)
		return d->dim_param;
	if (d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE && d->dim_value >= 0)
		return NULL;
	return "";
}

static bool
bound_dim(const ImportOptions *o, const char *symbol, int axis, int64_t *out)
{
	for (int i = 0; *symbol && i < o->n_dims; i++)
		if (!strcmp(o->dims[i].name, symbol)) {
			*out = o->dims[i].value;
			return true;
		}
	*out = axis == 0 && o->batch ? o->batch : 1;
	return (axis == 0 && o->batch) || o->open_dims == OPEN_ONE;
}

static void
bind_dim(Inputs *in, ImportPort *port, int axis, const Onnx__TensorShapeProto__Dimension *d)
{
	Importer *im = in->im;
	const char *symbol = dim_symbol(d);

	port->symbols[axis] = symbol ? arena_strdup(im->m->arena, symbol) : NULL;
	if (!symbol) {
		port->dims[axis] = d->dim_value;
		if (axis == 0 && im->baked_batch && d->dim_value == im->baked_batch)
			port->dims[axis] = im->options->batch;
		return;
	}
	if (axis == 0)
		port->open_leading = true;
	if (!bound_dim(im->options, symbol, axis, &port->dims[axis]))
		text_printf(&in->open, "%s%s of input %s (axis %d)", in->open.n ? ", " : "",
		            *symbol ? symbol : "unnamed", quoted(im->model, port->name), axis);
}

static bool
bind_port(Inputs *in, const ValueInfoProto *v, ImportPort *port)
{
	Importer *im = in->im;
	const Onnx__TypeProto__Tensor *t = tensor_type(v);
	const char *name = quoted(im->model, v->name);
	int64_t n = 1;

	*port = (ImportPort){.name = arena_strdup(im->m->arena, v->name)};
	if (!t || !t->shape) {
		model_error(im->model, im->diag, EXIT_UNSUPPORTED,
		            "input %s is no tensor with a shape", name);
		return false;
	}
	if (!tensor_dtype(t->elem_type, &port->dtype)) {
		model_error(im->model, im->diag,
		            t->elem_type <= 0 || t->elem_type > 64 ? EXIT_INVALID : EXIT_UNSUPPORTED,
		            "input %s has element type %d", name, t->elem_type);
		return false;
	}
	if (t->shape->n_dim > MAX_RANK) {
		model_error(im->model, im->diag, EXIT_INVALID, "input %s has rank %zu, at most %d",
		            name, t->shape->n_dim, MAX_RANK);
		return false;
	}
	port->rank = (int)t->shape->n_dim;
	for (int i = 0; i < port->rank; i++) {
		bind_dim(in, port, i, t->shape->dim[i]);
		if (!size_mul(n, port->dims[i] ? port->dims[i] : 1, &n) || n > MAX_ELEMENTS) {
			model_error(im->model, im->diag, EXIT_INVALID,
			            "input %s has more elements than can be addressed", name);
			return false;
		}
	}
	return true;
}

static Value *
fill_value(Importer *im, Type type, const Fill *fill)
{
	static const double values[] = {[FILL_ONES] = 1, [FILL_ZEROS] = 0};

	if (fill->kind == FILL_IOTA)
		return b_iota(&im->b, type->dtype, ints_of_type(type), type->rank - 1);
	return b_splat(&im->b, type, fill->kind == FILL_VALUE ? fill->value : values[fill->kind]);
}

static const Fill *
find_fill(const ImportOptions *o, const char *name)
{
	for (int i = 0; i < o->n_fills; i++)
		if (!strcmp(o->fills[i].name, name))
			return &o->fills[i];
	return NULL;
}

static void
import_inputs(Inputs *in)
{
	Importer *im = in->im;
	const GraphProto *g = im->model->proto->graph;
	ImportPort port;

	for (size_t i = 0; i < g->n_input; i++) {
		const ValueInfoProto *v = g->input[i];
		if (strmap_get(im->model->initializers, v->name))
			continue;
		if (!bind_port(in, v, &port)) {
			importer_bind(im, v->name, NULL);
			continue;
		}
		Type type = type_new(im->m, port.dtype, port.rank, port.dims);
		const Fill *fill = find_fill(im->options, v->name);
		im->b.loc = loc_name(im->m, v->name);
		if (fill && fill->kind == FILL_IOTA && type->rank == 0) {
			model_error(im->model, im->diag, EXIT_USAGE, "--fill %s=iota of a scalar",
			            v->name);
		} else if (fill) {
			importer_bind(im, v->name, fill_value(im, type, fill));
		} else {
			importer_bind(im, v->name, function_param(im->b.f, type, port.name));
			if (!im->inference)
				vec_push(im->m->arena, &in->info->base.inputs, port);
		}
	}
	for (int i = 0; i < im->options->n_fills && !im->inference; i++)
		if (!strmap_get(im->values, im->options->fills[i].name))
			model_error(im->model, im->diag, EXIT_USAGE, "--fill %s: no such input",
			            im->options->fills[i].name);
	if (in->open.n && !im->inference)
		model_error(im->model, im->diag, EXIT_USAGE,
		            "open dimensions, bind them with --dim NAME=N or --batch N: %s",
		            in->open.at);
	text_free(&in->open);
}

/* ---- outputs */
static void
check_output(Importer *im, const ValueInfoProto *v, Type type)
{
	const Onnx__TypeProto__Tensor *t = tensor_type(v);
	const char *name = quoted(im->model, v->name);
	DType dtype;

	if (!t)
		return;
	if (t->elem_type && (!tensor_dtype(t->elem_type, &dtype) || dtype != type->dtype))
		model_error(im->model, im->diag, EXIT_INVALID,
		            "output %s is declared with element type %d, it is %s", name,
		            t->elem_type, dtype_info[type->dtype].name);
	if (!t->shape)
		return;
	if (t->shape->n_dim != (size_t)type->rank) {
		model_error(im->model, im->diag, EXIT_INVALID,
		            "output %s is declared with rank %zu, it has rank %d", name,
		            t->shape->n_dim, type->rank);
		return;
	}
	for (int i = 0; i < type->rank; i++) {
		const Onnx__TensorShapeProto__Dimension *d = t->shape->dim[i];
		bool rebound = i == 0 && im->baked_batch && d->dim_value == im->baked_batch;
		if (!dim_symbol(d) && d->dim_value != type->dims[i] && !rebound)
			model_error(im->model, im->diag, EXIT_INVALID,
			            "output %s is declared with %lld elements along axis %d, it has "
			            "%lld", name, (long long)d->dim_value, i,
			            (long long)type->dims[i]);
	}
}

static void
add_output_port(Importer *im, ImportInfo *info, const ValueInfoProto *v, Type type)
{
	ImportPort port = {.name = arena_strdup(im->m->arena, v->name), .dtype = type->dtype,
	                   .rank = type->rank};
	const Onnx__TypeProto__Tensor *t = tensor_type(v);

	for (int i = 0; i < type->rank; i++) {
		bool declared = t && t->shape && (int)t->shape->n_dim == type->rank;
		const char *symbol = declared ? dim_symbol(t->shape->dim[i]) : "";
		port.dims[i] = type->dims[i];
		port.symbols[i] = symbol ? arena_strdup(im->m->arena, symbol) : NULL;
	}
	port.open_leading = type->rank > 0 && port.symbols[0];
	vec_push(im->m->arena, &info->base.outputs, port);
}

static void
import_outputs(Importer *im, ImportInfo *info)
{
	const GraphProto *g = im->model->proto->graph;
	Value **values = NEW_ARRAY(im->arena, Value *, g->n_output);
	bool complete = true;

	for (size_t i = 0; i < g->n_output; i++) {
		Bound *b = importer_lookup(im, g->output[i]->name);
		if (b && b->sequence)
			model_error(im->model, im->diag, EXIT_UNSUPPORTED,
			            "output %s is a sequence", quoted(im->model, g->output[i]->name));
		values[i] = b ? b->value : NULL;
		complete &= values[i] != NULL;
		if (!values[i] || im->inference)
			continue;
		check_output(im, g->output[i], values[i]->type);
		add_output_port(im, info, g->output[i], values[i]->type);
	}
	if (!complete)
		return;
	for (int i = 0; i < im->pending_states.n; i++)
		b_store(&im->b, im->pending_states.at[i], im->pending_values.at[i]);
	b_return(&im->b, (int)g->n_output, values);
}

/* Pure nodes that nobody reads, users first. */
static void
sweep(Function *f)
{
	for_each_node_reverse(f, n) {
		bool used = op_row(n)->effect || n->op == OP_return || n->op == OP_store;
		for (int i = 0; i < n->n_results; i++)
			used |= value_used(node_result(n, i));
		if (!used)
			node_erase(n);
	}
}

/* ---- the module */
static void
import_function(Importer *im, ImportInfo *info, const char *name)
{
	Inputs in = {.im = im, .info = info};

	im->b = (Builder){.m = im->m, .f = function_new(im->m, name), .phase = PHASE_FORWARD};
	im->values = strmap_new(im->arena);
	im->pending_states.n = im->pending_values.n = 0;
	import_inputs(&in);
	if (diag_errors(im->diag) != im->before)
		return;
	import_nodes(im, im->model->nodes.n, im->model->nodes.at);
	import_outputs(im, info);
	if (diag_errors(im->diag) == im->before)
		sweep(im->b.f);
}

static void
make_state(Module *m, ImportInfo *info, Weight *w)
{
	static const struct {
		StateKind kind;
		Lifetime lifetime;
	} rows[] = {[WEIGHT_PARAMETER] = {STATE_PARAMETER, LIFE_SAVED},
	            [WEIGHT_STATISTIC] = {STATE_STATISTIC, LIFE_SAVED},
	            [WEIGHT_TABLE] = {STATE_PARAMETER, LIFE_CONSTANT}};
	Type type = type_new(m, w->data.dtype, w->data.rank, w->data.dims);
	State *s = state_new(m, w->name, type, rows[w->kind].kind, rows[w->kind].lifetime);

	s->trainable = s->decay = w->kind == WEIGHT_PARAMETER;
	s->lr_scale = 1;
	s->init = w->data.data ? INIT_DATA : INIT_ZEROS;
	s->data = w->data.data ? tensor_borrow(m, type, w->data.data) : NULL;
	s->why = arena_strdup(m->arena, w->why);
	s->loc = loc_name(m, w->name);
	w->state = s;
	vec_push(m->arena, &info->base.state_dtypes, w->data.dtype);
}

static ImportInfo *
import_info(Module *m, Model *model)
{
	ImportInfo *info = NEW(m->arena, ImportInfo);
	const ModelProto *p = model->proto;

	info->base = (Import){.path = model->path, .ir_version = p->ir_version,
	                      .opset = model->opset,
	                      .producer = p->producer_name ? p->producer_name : "",
	                      .n_nodes = (int)p->graph->n_node,
	                      .n_functions = (int)p->n_functions, .model = model};
	m->import = info;
	return info;
}

/* The number of rows that --repair=batch replaces: the leading one of all inputs that bake it. */
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

Module *
model_import(Model *model, const ImportOptions *options, Diag *diag)
{
	const GraphProto *g = model->proto->graph;
	Module *m = module_new(g->name && *g->name ? g->name : "main");
	Arena *scratch = arena_new();
	int before = diag_errors(diag);
	ImportInfo *info = import_info(m, model);
	Importer im = {.model = model, .m = m, .diag = diag, .options = options, .arena = scratch,
	               .baked_batch = baked_batch(model, options), .before = before};

	info->keep_metadata = options->keep_metadata;
	info->repairs = im.repairs = repairs_find(model, options, m->arena, diag);
	if (diag_errors(diag) == before) {
		for (int i = 0; i < im.repairs->list.n; i++) {
			Weight *w = im.repairs->list.at[i];
			if (w->kind != WEIGHT_CONSTANT && !w->tied)
				make_state(m, info, w);
		}
		import_function(&im, info, "forward");
	}
	if (im.baked_batch)
		repairs_note(im.repairs, "batch", "%lld rows became %lld",
		             (long long)im.baked_batch, (long long)options->batch);
	if (diag_errors(diag) == before && im.differs) {
		im.inference = true;
		import_function(&im, info, "inference");
	}
	for (int i = 0; i < im.repairs->log.n; i++)
		vec_push(m->arena, &info->base.repairs, im.repairs->log.at[i]);
	arena_free(scratch);
	if (diag_errors(diag) == before)
		return m;
	module_free(m);
	return NULL;
}

void
model_open_dims(const Model *model,
                void (*visit)(void *ctx, const char *input, int axis, const char *symbol), void *ctx)
{
	const GraphProto *g = model->proto->graph;

	for (size_t i = 0; i < g->n_input; i++) {
		const Onnx__TypeProto__Tensor *t = tensor_type(g->input[i]);
		if (strmap_get(model->initializers, g->input[i]->name) || !t || !t->shape)
			continue;
		for (size_t k = 0; k < t->shape->n_dim; k++) {
			const char *symbol = dim_symbol(t->shape->dim[k]);
			if (symbol)
				visit(ctx, g->input[i]->name, (int)k, symbol);
		}
	}
}

/* The symbols of a loss graph's joined inputs stand for the numbers of what is joined. */
static void
bind_joined(Importer *im, const ValueInfoProto *v, Value *joined, DimBinding *dims, int *n)
{
	const Onnx__TypeProto__Tensor *t = tensor_type(v);

	for (int i = 0; t && t->shape && i < joined->type->rank && i < (int)t->shape->n_dim; i++) {
		const char *symbol = dim_symbol(t->shape->dim[i]);
		if (!symbol && t->shape->dim[i]->dim_value != joined->type->dims[i])
			model_error(im->model, im->diag, EXIT_INVALID,
			            "input %s is declared with %lld elements along axis %d, it is "
			            "joined with %lld", quoted(im->model, v->name),
			            (long long)t->shape->dim[i]->dim_value, i,
			            (long long)joined->type->dims[i]);
		if (symbol && *symbol && *n < MAX_RANK)
			dims[(*n)++] = (DimBinding){symbol, joined->type->dims[i]};
	}
}

static void
loss_inputs(Importer *im, ImportOptions *options, DimBinding *dims)
{
	const GraphProto *g = im->model->proto->graph;
	Inputs in = {.im = im};
	ImportPort port;

	for (size_t i = 0; i < g->n_input; i++) {
		Bound *joined = strmap_get(im->values, g->input[i]->name);
		if (joined)
			bind_joined(im, g->input[i], joined->value, dims, &options->n_dims);
	}
	for (size_t i = 0; i < g->n_input; i++) {
		const ValueInfoProto *v = g->input[i];
		if (strmap_get(im->values, v->name) ||
		    strmap_get(im->model->initializers, v->name) || !bind_port(&in, v, &port))
			continue;
		Type type = type_new(im->m, port.dtype, port.rank, port.dims);
		importer_bind(im, v->name, function_param(im->b.f, type, port.name));
	}
	if (in.open.n)
		model_error(im->model, im->diag, EXIT_USAGE,
		            "dimensions that no joined input binds: %s", in.open.at);
	text_free(&in.open);
}

Value **
model_inline(Model *loss, Builder *b, const char *const *names, Value *const *values, int n_values,
             int *n_outputs, Diag *diag)
{
	const GraphProto *g = loss->proto->graph;
	Arena *scratch = arena_new();
	int before = diag_errors(diag);
	DimBinding dims[MAX_RANK];
	ImportOptions options = {.dims = dims};
	Importer im = {.model = loss, .m = b->m, .b = *b, .diag = diag, .options = &options,
	               .arena = scratch, .values = strmap_new(scratch), .before = before};
	Value **out = NEW_ARRAY(b->m->arena, Value *, g->n_output);

	for (int i = 0; i < n_values; i++) {
		importer_bind(&im, names[i], values[i]);
		if (i == 0 && values[i]->type->rank)
			options.batch = values[i]->type->dims[0];
	}
	loss_inputs(&im, &options, dims);
	if (diag_errors(diag) == before)
		import_nodes(&im, loss->nodes.n, loss->nodes.at);
	*n_outputs = (int)g->n_output;
	for (size_t i = 0; diag_errors(diag) == before && i < g->n_output; i++) {
		Bound *found = importer_lookup(&im, g->output[i]->name);
		out[i] = found ? found->value : NULL;
		if (!out[i])
			model_error(loss, diag, EXIT_UNSUPPORTED, "output %s is no tensor",
			            quoted(loss, g->output[i]->name));
	}
	arena_free(scratch);
	return diag_errors(diag) == before ? out : NULL;
}

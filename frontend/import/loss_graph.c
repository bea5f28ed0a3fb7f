/* Imports loss graphs: ONNX files that compute a loss from the model's outputs. Each input of a
 * loss graph is joined with a value of the model's graph, or becomes a further input of the
 * program. */
#include "frontend/import/walk.h"

#include <string.h>

/* Dimensions of a loss graph that its joined inputs determine. */
typedef struct {
	Inputs ports;
	BatchAxes axes;   /* batch axes of the joined values */
	const char *rows; /* symbol of their batch axis; NULL: it has no symbol */
	DimBinding *dims; /* numbers bound to symbols */
	Binding *binding;
} Joined;

/* Binds the symbols of a joined input's declared shape to the dimensions of the joined value. */
static void
bind_joined(Joined *j, const ValueInfoProto *v, Value *joined)
{
	Importer *im = j->ports.im;
	const Onnx__TypeProto__Tensor *t = tensor_type(v);
	int rows = batch_blocks(&j->axes, joined), *n = &j->binding->n_dims;

	for (int i = 0; t && t->shape && i < joined->type->rank && i < (int)t->shape->n_dim; i++) {
		const char *symbol = dim_symbol(t->shape->dim[i]);
		if (!symbol && t->shape->dim[i]->dim_value != joined->type->dims[i])
			model_error(im->model, im->diag, EXIT_INVALID,
			            "input %s is declared with %lld elements along axis %d, it is "
			            "joined with %lld",
			            quoted(im->model, v->name),
			            (long long)t->shape->dim[i]->dim_value, i,
			            (long long)joined->type->dims[i]);
		if (symbol && *symbol && *n < MAX_RANK)
			j->dims[(*n)++] = (DimBinding){symbol, joined->type->dims[i]};
		if (symbol && *symbol && i == rows && joined->type->dims[i] == j->axes.rows)
			j->rows = symbol;
	}
}

/* Sets the batch axis of a further input: the axis with the symbol of the joined values' batch axis,
 * else the leading axis if its size is the number of rows. */
static void
find_rows(const Joined *j, const ImportPort *port, Value *param)
{
	for (int i = 0; i < port->rank && !param->has_rows; i++) {
		bool named = j->rows && port->symbols[i] && strcmp(port->symbols[i], j->rows) == 0;
		param->has_rows = named;
		param->rows_axis = named ? i : 0;
	}
	param->has_rows |= port->rank > 0 && port->dims[0] == j->axes.rows;
}

static void
loss_inputs(Joined *j)
{
	Importer *im = j->ports.im;
	const GraphProto *g = im->model->proto->graph;
	ImportPort port;

	for (size_t i = 0; i < g->n_input; i++) {
		Bound *joined = strmap_get(im->values, g->input[i]->name);
		if (joined)
			bind_joined(j, g->input[i], joined->value);
	}
	for (size_t i = 0; i < g->n_input; i++) {
		const ValueInfoProto *v = g->input[i];
		if (strmap_get(im->values, v->name) ||
		    strmap_get(im->model->initializers, v->name) || !bind_port(&j->ports, v, &port))
			continue;
		Type type = type_new(im->m, port.dtype, port.rank, port.dims);
		Value *param = function_param_as(im->b.f, type, port.name, PARAM_INPUT,
		                                 count_inputs(im->b.f));
		find_rows(j, &port, param);
		importer_bind(im, v->name, param);
	}
	if (j->ports.open.n)
		model_error(im->model, im->diag, EXIT_USAGE,
		            "dimensions that no joined input binds: %s", j->ports.open.at);
	text_free(&j->ports.open);
}

Value **
model_inline(Model *loss, Builder *b, const char *const *names, Value *const *values, int n_values,
             int *n_outputs, Diag *diag)
{
	const GraphProto *g = loss->proto->graph;
	Arena *scratch = arena_new();
	int before = diag_errors(diag);
	DimBinding dims[MAX_RANK];
	Binding binding = {.text = "", .dims = dims};
	ImportOptions options = {.bindings = &binding, .n_bindings = 1};
	Importer im = {.model = loss,
	               .m = b->m,
	               .b = *b,
	               .diag = diag,
	               .options = &options,
	               .arena = scratch,
	               .values = strmap_new(scratch),
	               .store_of_state = intmap_new(scratch),
	               .state_of_next = intmap_new(scratch),
	               .before = before};
	Value **out = NEW_ARRAY(b->m->arena, Value *, g->n_output);

	Joined joined = {.ports = {.im = &im},
	                 .axes = batch_of(scratch, b->f),
	                 .dims = dims,
	                 .binding = &binding};
	for (int i = 0; i < n_values; i++) {
		importer_bind(&im, names[i], values[i]);
		if (i == 0 && values[i]->type->rank)
			options.batch = joined.axes.rows ? joined.axes.rows
			                                 : values[i]->type->dims[0];
	}
	loss_inputs(&joined);
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

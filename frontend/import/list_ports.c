/* Inputs and outputs of a graph that are sequences or optionals: each element becomes an input or
 * output of the module. Number and shapes of an input's elements come from the given list (`gradc
 * run --input NAME=FILE.pb`). */
#include "frontend/import/walk.h"

#include <string.h>

/* The type of the list's elements; *out says what kind of list it is. NULL: the elements are not
 * tensors. */
const Onnx__TypeProto__Tensor *
list_type(const Onnx__TypeProto *t, GivenList *out)
{
	if (t && t->value_case == ONNX__TYPE_PROTO__VALUE_OPTIONAL_TYPE) {
		out->optional = true;
		t = t->optional_type->elem_type;
	}
	if (t && t->value_case == ONNX__TYPE_PROTO__VALUE_SEQUENCE_TYPE) {
		out->sequence = true;
		t = t->sequence_type->elem_type;
	}
	return t && t->value_case == ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE ? t->tensor_type : NULL;
}

static const Onnx__TypeProto__Tensor *
list_of(const ValueInfoProto *v, GivenList *out)
{
	*out = (GivenList){.name = v->name};
	const Onnx__TypeProto__Tensor *t = list_type(v->type, out);

	return out->sequence || out->optional ? t : NULL;
}

bool
model_list_input(const Model *model, const char *name, GivenList *out)
{
	const GraphProto *g = model->proto->graph;

	for (size_t i = 0; i < g->n_input; i++)
		if (strcmp(g->input[i]->name, name) == 0)
			return list_of(g->input[i], out) != NULL;
	return false;
}

/* Does an element match the declared type? The declaration may leave the shape and any dimension
 * open. */
static bool
is_as_declared(const Onnx__TypeProto__Tensor *t, const NamedTensor *e)
{
	DType declared;

	if (!tensor_dtype(t->elem_type, &declared) || declared != e->dtype)
		return false;
	if (!t->shape)
		return true;
	if ((int)t->shape->n_dim != e->rank)
		return false;
	for (int i = 0; i < e->rank; i++)
		if (!dim_symbol(t->shape->dim[i]) && t->shape->dim[i]->dim_value != e->dims[i])
			return false;
	return true;
}

static ImportPort
element_port(Importer *im, const NamedTensor *e)
{
	ImportPort port = {
		.name = arena_strdup(im->m->arena, e->name), .dtype = e->dtype, .rank = e->rank};

	memcpy(port.dims, e->dims, sizeof(port.dims));
	return port;
}

static bool
is_input(const Model *model, const char *name)
{
	const GraphProto *g = model->proto->graph;

	for (size_t i = 0; i < g->n_input; i++)
		if (strcmp(g->input[i]->name, name) == 0)
			return true;
	return false;
}

static Bound *
bind_elements(Importer *im, ImportInfo *info, const Onnx__TypeProto__Tensor *type,
              const GivenList *list)
{
	Bound *b = NEW(im->arena, Bound);

	*b = (Bound){.list = NEW_ARRAY(im->arena, Value *, list->n + 1),
	             .n_list = list->n,
	             .sequence = list->sequence && !list->absent,
	             .optional = list->optional,
	             .absent = list->absent};
	for (int i = 0; i < list->n; i++) {
		const NamedTensor *e = &list->elements[i];
		if (is_input(im->model, e->name)) {
			model_error(im->model, im->diag, EXIT_UNSUPPORTED,
			            "input %s: its element %d has the name of another input, %s",
			            quoted(im->model, list->name), i, quoted(im->model, e->name));
			return NULL;
		}
		ImportPort port = element_port(im, e);
		if (!is_as_declared(type, e)) {
			model_error(im->model, im->diag, EXIT_DATA,
			            "input %s: element %d is %s of rank %d, not as the model "
			            "declares it",
			            quoted(im->model, list->name), i, dtype_info[e->dtype].name,
			            e->rank);
			return NULL;
		}
		b->list[i] = bind_tensor_port(im, info, &port);
	}
	if (!list->sequence && !list->absent)
		b->value = b->list[0];
	return b;
}

static const GivenList *
find_list(const ImportOptions *o, const char *name)
{
	for (int i = 0; i < o->n_lists; i++)
		if (strcmp(o->lists[i].name, name) == 0)
			return &o->lists[i];
	return NULL;
}

bool
import_list_input(Importer *im, ImportInfo *info, const ValueInfoProto *v)
{
	GivenList declared;
	const Onnx__TypeProto__Tensor *type = list_of(v, &declared);
	const GivenList *given = find_list(im->options, v->name);
	Bound *b = NULL;

	if (!type)
		return false;
	if (given) {
		b = bind_elements(im, info, type, given);
	} else if (!im->inference) {
		model_error(im->model, im->diag, EXIT_UNSUPPORTED,
		            "input %s is %s: its elements are not known",
		            quoted(im->model, v->name),
		            declared.optional ? "an optional" : "a sequence");
		diag_hint(im->diag, "`gradc run --input NAME=FILE.pb` gives its elements");
	}
	if (!b)
		b = NEW(im->arena, Bound);
	strmap_put(im->values, v->name, b);
	return true;
}

void
add_output_list(Importer *im, ImportInfo *info, const char *name, const Bound *b, int first)
{
	GivenList list = {.name = arena_strdup(im->m->arena, name),
	                  .sequence = b->sequence,
	                  .optional = b->optional,
	                  .absent = b->absent,
	                  .n = b->sequence ? b->n_list : !b->absent,
	                  .first = first};

	vec_push(im->m->arena, &info->base.bindings.at[im->binding].lists, list);
}

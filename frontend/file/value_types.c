/* Types of the main graph's values, as far as they are known before import: declared types, and
 * types that operators pass on from an input. */
#include "frontend/file/file.h"

#include <string.h>

static void
note_type(ValueTypes *all, const ValueInfoProto *v)
{
	const Onnx__TypeProto__Tensor *t =
		v->type && v->type->value_case == ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE
			? v->type->tensor_type
			: NULL;

	if (t && t->elem_type && t->elem_type != ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT)
		strmap_put(all->other, v->name, all->other);
	if (t && t->shape)
		strmap_put(all->shaped, v->name, all->other);
	if (t && t->shape && t->shape->n_dim == 1)
		strmap_put(all->vectors, v->name, all->other);
}

static void
note_results(const Model *model, ValueTypes *all, const NodeProto *p)
{
	int typed_by = operator_facts(model, p)->typed_by;
	int input = *domain_of(p->domain) && !typed_by ? NO_INPUT : typed_by;
	bool is_cast = is_op(p, "Cast");
	bool other = is_cast ? node_int(p, "to", 1) != ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT
	                     : input >= 0 && (size_t)input < p->n_input &&
	                               strmap_get(all->other, p->input[input]);
	for (size_t k = 0; k < p->n_output; k++)
		if (other && *p->output[k])
			strmap_put(all->other, p->output[k], all->other);
}

ValueTypes
value_types_of(const Model *model, const GraphProto *g, Arena *arena)
{
	ValueTypes all = {strmap_new(arena), strmap_new(arena), strmap_new(arena)};

	for (size_t i = 0; i < g->n_input; i++)
		note_type(&all, g->input[i]);
	for (size_t i = 0; i < g->n_value_info; i++)
		note_type(&all, g->value_info[i]);
	for (size_t i = 0; i < g->n_initializer; i++)
		if (g->initializer[i]->data_type != ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT)
			strmap_put(all.other, g->initializer[i]->name, all.other);
	for (size_t i = 0; i < g->n_node; i++)
		note_results(model, &all, g->node[i]);
	return all;
}

const Onnx__TypeProto__Tensor *
tensor_type(const ValueInfoProto *v)
{
	return v->type && v->type->value_case == ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE
	               ? v->type->tensor_type
	               : NULL;
}

/* Words that exporters write for an unknown size. These words are not symbols: two dimensions with
 * the same word may differ. */
static bool
is_no_name(const char *symbol)
{
	static const char *const words[] = {"?", "*", "-1", "None", "unk__", "<unk>"};

	for (int i = 0; i < COUNT(words); i++)
		if (!strcmp(symbol, words[i]))
			return true;
	return false;
}

const char *
dim_symbol(const Onnx__TensorShapeProto__Dimension *d)
{
	if (d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_PARAM)
		return is_no_name(d->dim_param) ? "" : d->dim_param;
	if (d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE &&
	    d->dim_value >= 0)
		return NULL;
	return "";
}

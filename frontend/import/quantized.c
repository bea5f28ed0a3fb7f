/* Marks the operands that --quantize quantizes (node_mark), for the pass `quantize`. Which inputs of which nodes
 * of the file these are, model_quantize_find has decided. For example, input 1 of the Gemm "fc" is "fc.weight", in
 * codes of s8 with a scale for each output:
 *
 *	quantized "fc.weight" s8 channel input 1 of "fc"
 *	%3 = dot %2, @fc.weight {x_contract = [1], y_contract = [1]} : f32[4,8] quantized (_, 0) loc "fc"
 *
 * An operand is marked if only views lie between it and the value that the file calls by the tensor's name. */
#include "frontend/import/walk.h"

/* A node's input that is quantized. */
typedef struct {
	int input, number; /* number: of the module's QuantizedOperand */
} Marked;
struct MarkedInputs {
	VEC(Marked) list;
};

/* Can the weight's state be quantized? It cannot if the state holds only one copy of an expanded
 * tensor, or if the weight is an Identity of another parameter's tensor. Such a weight stays in
 * floats. */
static bool
stands_for_itself(const Importer *im, const QuantizedTensor *t)
{
	const Weight *w = repairs_weight(im->repairs, t->name);

	for (int k = 0; k < t->readers.n; k++) {
		const NodeProto *p = t->readers.at[k].node;
		const Weight *made = p->n_output == 1 ? repairs_weight(im->repairs, p->output[0])
		                                      : NULL;
		if (made && made->identity == p)
			return false;
	}
	return !w || !w->expanded_to;
}

static ScaleSource
scales_of(const QuantizedTensor *t)
{
	static const ScaleSource of_activations[] = {[ACTIVATIONS_STATIC] = SCALES_RUNNING,
	                                             [ACTIVATIONS_DYNAMIC] = SCALES_DYNAMIC,
	                                             [ACTIVATIONS_TOKEN] = SCALES_TOKEN};

	if (t->kind == QUANTIZED_ACTIVATION)
		return of_activations[t->activations];
	return t->axis < 0 ? SCALES_TENSOR : t->block ? SCALES_BLOCK : SCALES_CHANNEL;
}

/* The inputs of the node that are quantized, made at first use: also of a node that only hands a weight on. */
static MarkedInputs *
inputs_of(Importer *im, const void *node)
{
	uint64_t key = (uint64_t)(uintptr_t)node, found;

	if (intmap_get(im->marked, key, &found))
		return (MarkedInputs *)(uintptr_t)found;
	MarkedInputs *made = NEW(im->arena, MarkedInputs);
	intmap_put(im->marked, key, (uint64_t)(uintptr_t)made);
	return made;
}

void
quantized_open(Importer *im)
{
	const FakeQuantization *q = im->options->quantize;

	im->marked = intmap_new(im->arena);
	for (int i = 0; q && i < q->tensors.n; i++) {
		QuantizedTensor *t = q->tensors.at[i];
		const QuantizedReader *first = &t->readers.at[0];
		QuantizedOperand operand = {.name = t->name,
		                            .node = node_location(first->node),
		                            .input = first->input,
		                            .type = t->type,
		                            .scales = scales_of(t),
		                            .block = t->block};
		vec_push(im->m->arena, &im->m->quantized, operand);
		if (t->kind == QUANTIZED_WEIGHT && !stands_for_itself(im, t)) {
			diag_warning(
				im->diag,
				"weight %s of node %s is not quantized: the exporter merged or repeated "
				"it",
				quoted(im->model, t->name), quoted(im->model, t->node));
			t->readers.n = t->products.n = 0;
		}
		for (int k = 0; k < t->readers.n; k++)
			inputs_of(im, t->readers.at[k].node);
		for (int k = 0; k < t->products.n; k++)
			vec_push(im->arena, &inputs_of(im, t->products.at[k].node)->list,
			         ((Marked){t->products.at[k].input, i}));
	}
}

const MarkedInputs *
quantized_inputs(const Importer *im, const NodeProto *p)
{
	uint64_t found;

	return im->marked && !im->scope && intmap_get(im->marked, (uint64_t)(uintptr_t)p, &found)
	               ? (const MarkedInputs *)(uintptr_t)found
	               : NULL;
}

/* How many views lie between v and the value; -1: something else does. */
static int
views_between(const Value *v, const Value *value)
{
	int n = 0;

	for (; v && v != value; v = value_viewed(v))
		n++;
	return v ? n : -1;
}

/* The mark of operand i. Input i is asked first, for two inputs may be the same value. */
static OperandMark
mark_of(OnnxNode *n, const MarkedInputs *inputs, int i, const Value *v)
{
	OperandMark found = {0};

	for (int k = 0; k < inputs->list.n; k++) {
		const Marked *m = &inputs->list.at[k];
		const Bound *b = importer_lookup(n->im, n->im->m->quantized.at[m->number].name);
		int views = b ? views_between(v, b->value) : -1;
		if (views >= 0 && (!found.of || m->input == i))
			found = (OperandMark){1 + m->number, views};
	}
	return found;
}

/* A vector has one row, and ONNX has no blocks for vectors: it gets one scale. */
static void
settle_vector(Importer *im, int number, const Value *operand)
{
	QuantizedOperand *q = &im->m->quantized.at[number];

	if (q->scales != SCALES_TOKEN || operand->type->rank != 1)
		return;
	q->scales = SCALES_DYNAMIC;
	quantized_is_vector(im->options->quantize->tensors.at[number]);
}

void
quantized_mark(OnnxNode *n, const MarkedInputs *inputs, Node *first)
{
	for (Node *node = first; node; node = node->next)
		for (int i = 0; i < node->n_operands; i++) {
			Value *v = node_operand(node, i);
			if (!operand_in(op_row(node)->quantizes, i))
				continue;
			OperandMark mark = mark_of(n, inputs, i, v);
			node_set_mark(node, i, mark);
			if (mark.of)
				settle_vector(n->im, mark.of - 1, v);
		}
}

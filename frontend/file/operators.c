/* Which operator a node is, and what is known of the operator. For example, is_op(p, "Conv") is true
 * for ONNX's Conv, and is_op(p, "com.microsoft.FusedConv") for an operator of onnxruntime. No other
 * file compares the names of operators. The facts of an operator stand in its row of importers
 * (frontend/operators). */
#include "frontend/file/file.h"

#include <stdio.h>
#include <string.h>

/* The operator's name within the node's domain, NULL if `op` is of another domain. */
static const char *
name_in_domain(const NodeProto *p, const char *op)
{
	const char *domain = domain_of(p->domain);
	size_t n = strlen(domain);

	if (n == 0)
		return op;
	return !strncmp(op, domain, n) && op[n] == '.' ? op + n + 1 : NULL;
}

bool
is_op(const NodeProto *p, const char *op)
{
	const char *name = p && p->op_type ? name_in_domain(p, op) : NULL;

	return name && !strcmp(p->op_type, name);
}

bool
is_op_of(const NodeProto *p, const char *domain, const char *name)
{
	return p->op_type && !strcmp(p->op_type, name) && !strcmp(domain_of(p->domain), domain);
}

bool
is_same_op(const NodeProto *p, const NodeProto *q)
{
	return is_op_of(p, domain_of(q->domain), q->op_type);
}

const OperatorFacts *
operator_facts(const Model *model, const NodeProto *p)
{
	static const OperatorFacts nothing;
	const char *domain = domain_of(p->domain), *name = p->op_type;
	char key[128];

	if (!name)
		return &nothing;
	if (*domain && snprintf(key, sizeof(key), "%s.%s", domain, name) >= (int)sizeof(key))
		return &nothing;
	const OperatorFacts *found = strmap_get(model->operators, *domain ? key : name);
	return found ? found : &nothing;
}

int
node_bias(const Model *model, const NodeProto *p)
{
	return operator_facts(model, p)->bias;
}

const Product *
node_product(const Model *model, const NodeProto *p, int input)
{
	const OperatorFacts *facts = operator_facts(model, p);

	for (int i = 0; i < MAX_PRODUCTS; i++)
		if (facts->products[i].result && facts->products[i].weight == input)
			return &facts->products[i];
	return NULL;
}

void
product_axes(const Product *product, const NodeProto *p, int rank, int *outputs, int *inputs)
{
	bool swapped = product->swapped_by && node_int(p, product->swapped_by, 0);
	int a = product->outputs < 0 ? product->outputs + rank : product->outputs;
	int b = product->inputs < 0 ? product->inputs + rank : product->inputs;

	*outputs = swapped ? b : a;
	*inputs = swapped ? a : b;
}

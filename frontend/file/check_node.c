/* Checks one node against its operator's schema: number of inputs and outputs, attributes and their
 * types. */
#include "frontend/file/reading.h"

#include <string.h>

const char *
domain_of(const char *domain)
{
	return !domain || !strcmp(domain, "ai.onnx") ? "" : domain;
}

int
opset_version(size_t n, Onnx__OperatorSetIdProto **imports, const char *domain)
{
	for (size_t i = 0; i < n; i++)
		if (!strcmp(domain_of(imports[i]->domain), domain_of(domain)))
			return imports[i]->version < 0 || imports[i]->version > INT32_MAX
			               ? 0
			               : (int)imports[i]->version;
	return 0;
}

const AttributeProto *
node_attribute(const NodeProto *n, const char *name)
{
	for (size_t i = 0; i < n->n_attribute; i++)
		if (n->attribute[i]->name && !strcmp(n->attribute[i]->name, name))
			return n->attribute[i];
	return NULL;
}

int64_t
node_int(const NodeProto *n, const char *name, int64_t otherwise)
{
	const AttributeProto *a = node_attribute(n, name);

	return a && a->type == ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT ? a->i : otherwise;
}

/* The schema's letter for the attribute's declared type; 0: the type is undefined or unknown. */
static char
type_letter(const AttributeProto *a)
{
	static const char letters[] = "\0fistgFISTGpPyY";

	return a->has_type && a->type > 0 && a->type < (int)sizeof(letters) - 1 ? letters[a->type]
	                                                                        : 0;
}

/* Does the attribute fill a field that does not belong to its declared type? A field of value zero
 * may be absent: proto3 writers omit it. */
static bool
holds_other_data(const AttributeProto *a, char type)
{
	const struct {
		char letter;
		bool filled;
	} fields[] = {
		{'f', a->has_f},
		{'i', a->has_i},
		{'s', a->has_s},
		{'t', a->t},
		{'g', a->g},
		{'F', a->n_floats},
		{'I', a->n_ints},
		{'S', a->n_strings},
		{'T', a->n_tensors},
		{'G', a->n_graphs},
		{'p', a->sparse_tensor},
		{'P', a->n_sparse_tensors},
		{'y', a->tp},
		{'Y', a->n_type_protos},
	};

	for (int i = 0; i < COUNT(fields); i++)
		if (fields[i].filled && fields[i].letter != type)
			return true;
	return (type == 't' && !a->t) || (type == 'g' && !a->g) ||
	       (type == 'p' && !a->sparse_tensor);
}

static void
check_attribute_tensors(Model *model, const FlatNode *n, const AttributeProto *a, Diag *diag)
{
	const NodeProto *p = n->proto;
	const char *what = arena_printf(model->arena, "attribute %s of node %s",
	                                quoted(model, a->name),
	                                quoted(model, p->name ? p->name : ""));

	if (a->t)
		check_tensor(model, a->t, what, diag);
	for (size_t i = 0; i < a->n_tensors; i++)
		check_tensor(model, a->tensors[i], what, diag);
	if (a->sparse_tensor)
		check_sparse(model, a->sparse_tensor, what, diag);
}

static void
check_attribute(Model *model, const FlatNode *n, const SchemaRow *schema, const AttributeProto *a,
                bool in_function, Diag *diag)
{
	const char *name = quoted(model, a->name ? a->name : "");
	char type = type_letter(a);

	if (!a->name || !*a->name) {
		node_error(model, diag, n, EXIT_INVALID, "an attribute without a name");
		return;
	}
	if (node_attribute(n->proto, a->name) != a)
		node_error(model, diag, n, EXIT_INVALID, "attribute %s stands twice", name);
	bool reference = a->ref_attr_name && *a->ref_attr_name;
	if (reference && !in_function)
		node_error(model, diag, n, EXIT_INVALID,
		           "attribute %s refers to an attribute %s of a function, but the node is "
		           "in no function",
		           name, quoted(model, a->ref_attr_name));
	if (!type) {
		node_error(model, diag, n, EXIT_INVALID, "attribute %s has no valid type", name);
		return;
	}
	if (reference ? holds_other_data(a, 0) : holds_other_data(a, type))
		node_error(model, diag, n, EXIT_INVALID,
		           "attribute %s holds data of another type than it declares", name);
	char want = schema ? schema_attribute(schema, a->name) : type;
	if (!want)
		node_error(model, diag, n, EXIT_INVALID, "no attribute %s in this operator", name);
	else if (type != (want == 'b' ? 'i' : want))
		node_error(model, diag, n, EXIT_INVALID, "attribute %s has the wrong type", name);
	else if (want == 'b' && !reference && a->i != 0 && a->i != 1)
		node_error(model, diag, n, EXIT_INVALID, "attribute %s is %lld, not 0 or 1", name,
		           (long long)a->i);
	check_attribute_tensors(model, n, a, diag);
}

static void
check_required_attributes(Model *model, const FlatNode *n, const SchemaRow *schema, Diag *diag)
{
	for (const char *p = schema->attributes; *p; p += *p == ' ') {
		size_t length = strcspn(p, " "), name = strcspn(p, ":");
		if (length && p[length - 1] == '!') {
			const char *key = arena_strndup(model->arena, p, name);
			if (!node_attribute(n->proto, key))
				node_error(model, diag, n, EXIT_INVALID,
				           "attribute \"%s\" is missing", key);
		}
		p += length;
	}
}

static void
check_arity(Model *model, const FlatNode *n, const SchemaRow *s, Diag *diag)
{
	const NodeProto *p = n->proto;
	int n_in = (int)p->n_input, n_out = (int)p->n_output;

	if (n_in < s->min_in || n_in > s->max_in)
		node_error(model, diag, n, EXIT_INVALID, "%d inputs, needs %d to %d", n_in,
		           s->min_in, s->max_in);
	if (n_out < s->min_out || n_out > s->max_out)
		node_error(model, diag, n, EXIT_INVALID, "%d outputs, needs %d to %d", n_out,
		           s->min_out, s->max_out);
	for (int i = 0; i < n_in && i < 32; i++)
		if (s->required >> i & 1 && !*p->input[i])
			node_error(model, diag, n, EXIT_INVALID, "input %d is missing", i);
	for (int i = 0; i < n_out && i < s->min_out; i++)
		if (!*p->output[i])
			node_error(model, diag, n, EXIT_INVALID, "output %d has no name", i);
}

static void
check_call(Model *model, const FlatNode *n, const FunctionProto *f, Diag *diag)
{
	if (n->proto->n_input > f->n_input)
		node_error(model, diag, n, EXIT_INVALID, "%zu inputs, the function has %zu",
		           n->proto->n_input, f->n_input);
	if (n->proto->n_output > f->n_output)
		node_error(model, diag, n, EXIT_INVALID, "%zu outputs, the function has %zu",
		           n->proto->n_output, f->n_output);
}

void
check_node(Model *model, const FlatNode *n, bool in_function, Diag *diag)
{
	const NodeProto *p = n->proto;
	const FunctionProto *callee = NULL;
	const SchemaRow *schema = NULL;

	if (!p->op_type || !*p->op_type) {
		node_error(model, diag, n, EXIT_INVALID, "no operator");
		return;
	}
	if (p->n_input == 0 && p->n_output == 0)
		node_error(model, diag, n, EXIT_INVALID, "neither inputs nor outputs");
	if ((callee = node_callee(model, p)))
		check_call(model, n, callee, diag);
	else if (!*domain_of(p->domain) && n->opset == 0)
		node_error(model, diag, n, EXIT_INVALID, "no opset is imported for its domain");
	else
		schema = schema_of(p->domain, p->op_type, n->opset);
	if (schema && schema->attributes[0] == '-')
		schema = NULL; /* a deprecated operator is refused as unsupported */
	if (schema) {
		check_arity(model, n, schema, diag);
		check_required_attributes(model, n, schema, diag);
	}
	for (size_t i = 0; i < p->n_attribute; i++)
		check_attribute(model, n, schema, p->attribute[i], in_function, diag);
}

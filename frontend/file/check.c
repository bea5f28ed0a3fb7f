/* Checks the structure of a model before import: its versions, that each value is defined once and
 * before its use, and its functions. Every fault is reported. Recursion follows only the nesting of
 * messages, which the scan (scan.c) has bounded. */
#include "frontend/file/reading.h"

#include <string.h>

/* Names defined so far in one graph, inside its outer scopes. */
typedef struct Names Names;
struct Names {
	const Names *outer;
	StrMap *defined; /* before the current node */
	StrMap *later;   /* by any node of the graph */
};
typedef struct {
	Model *model;
	Diag *diag;
	size_t n_imports;
	Onnx__OperatorSetIdProto **imports;
	bool in_function;
	/* node whose attribute the graph is; NULL: the model's graph, or a function */
	const FlatNode *around;
} Check;

/* Reports a fault of a graph, with the node around it. */
static void
graph_error(const Check *c, int exit_code, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	const char *text = arena_vprintf(c->model->arena, fmt, args);
	va_end(args);
	if (c->around)
		node_error(c->model, c->diag, c->around, exit_code, "%s", text);
	else
		model_error(c->model, c->diag, exit_code, "%s", text);
}

static char here[] = "x"; /* any non-NULL value for the maps */

static bool
name_known(const Names *names, const char *name)
{
	for (; names; names = names->outer)
		if (strmap_get(names->defined, name))
			return true;
	return false;
}

static void
define(const Check *c, Names *names, const char *name, const char *what)
{
	if (name_known(names, name))
		graph_error(c, EXIT_INVALID, "%s %s is defined twice", what,
		            quoted(c->model, name));
	strmap_put(names->defined, name, here);
}

static void
check_inputs(const Check *c, const Names *names, const FlatNode *n)
{
	const NodeProto *p = n->proto;

	for (size_t i = 0; i < p->n_input; i++) {
		const char *name = p->input[i];
		if (!*name || name_known(names, name))
			continue;
		bool own = false;
		for (size_t k = 0; k < p->n_output; k++)
			own |= !strcmp(p->output[k], name);
		node_error(c->model, c->diag, n, EXIT_INVALID, "input %zu, %s, %s", i,
		           quoted(c->model, name),
		           own ? "is its own output"
		           : strmap_get(names->later, name)
		                   ? "is made by a later node: the graph is not sorted, or cyclic"
		                   : "is made by no node, input or initializer");
	}
}

static void check_graph(const Check *c, const Names *outer, const GraphProto *g, const char *what);

/* then_branch and else_branch must have the same number of outputs, of the same declared types. */
static void
check_branches(const Check *c, const FlatNode *n)
{
	const AttributeProto *t = node_attribute(n->proto, "then_branch");
	const AttributeProto *e = node_attribute(n->proto, "else_branch");

	if (!is_op(n->proto, "If") || !t || !e || !t->g || !e->g)
		return;
	if (t->g->n_input || e->g->n_input) {
		node_error(c->model, c->diag, n, EXIT_INVALID,
		           "branches with %zu and %zu inputs: a branch takes no inputs, it reads "
		           "the values around it",
		           t->g->n_input, e->g->n_input);
		return;
	}
	if (t->g->n_output != e->g->n_output || t->g->n_output != n->proto->n_output) {
		node_error(c->model, c->diag, n, EXIT_INVALID,
		           "branches with %zu and %zu outputs, the "
		           "node has %zu",
		           t->g->n_output, e->g->n_output, n->proto->n_output);
		return;
	}
	for (size_t i = 0; i < t->g->n_output; i++) {
		const Onnx__TypeProto *x = t->g->output[i]->type, *y = e->g->output[i]->type;
		const Onnx__TypeProto__Tensor *a = x ? x->tensor_type : NULL;
		const Onnx__TypeProto__Tensor *b = y ? y->tensor_type : NULL;
		if (!x || !y || x->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE ||
		    y->value_case != ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE)
			continue;
		if (a->elem_type !=
		    b->elem_type) /* shapes may differ: the condition may be known at import */
			node_error(c->model, c->diag, n, EXIT_INVALID,
			           "output %zu has another type in one branch than in the other",
			           i);
	}
}

static void
check_one(const Check *c, Names *names, const NodeProto *p)
{
	FlatNode n = {p, opset_version(c->n_imports, c->imports, p->domain)};
	Check inside = *c;

	inside.around = &n;

	check_node(c->model, &n, c->in_function, c->diag);
	check_inputs(c, names, &n);
	for (size_t i = 0; i < p->n_attribute; i++) {
		const AttributeProto *a = p->attribute[i];
		if (a->g)
			check_graph(&inside, names, a->g, "subgraph");
		for (size_t k = 0; k < a->n_graphs; k++)
			check_graph(&inside, names, a->graphs[k], "subgraph");
	}
	if (p->op_type)
		check_branches(c, &n);
	for (size_t i = 0; i < p->n_output; i++)
		if (*p->output[i])
			define(c, names, p->output[i], "output");
}

static void
check_initializers(const Check *c, Names *names, const GraphProto *g)
{
	bool is_body = names->outer != NULL;

	StrMap *seen = strmap_new(c->model->arena);

	for (size_t i = 0; i < g->n_initializer + g->n_sparse_initializer; i++) {
		bool dense = i < g->n_initializer;
		const Onnx__SparseTensorProto *s =
			dense ? NULL : g->sparse_initializer[i - g->n_initializer];
		const TensorProto *t = dense ? g->initializer[i] : s->values;
		const char *name = t && t->name ? t->name : "";
		const char *what = arena_printf(c->model->arena, "initializer %s",
		                                quoted(c->model, name));
		if (!*name)
			graph_error(c, EXIT_INVALID, "an initializer without a name");
		else if (strmap_get(seen, name))
			graph_error(c, EXIT_INVALID, "%s stands twice", what);
		/* in the main graph an initializer may have an input's name: it is the input's
		 * default */
		else if (is_body && strmap_get(names->defined, name))
			graph_error(c, EXIT_INVALID, "%s has the name of an input of its subgraph",
			            what);
		strmap_put(seen, name, here);
		strmap_put(names->defined, name, here);
		if (dense) {
			check_tensor(c->model, t, what, c->diag);
			continue;
		}
		check_sparse(c->model, s, what, c->diag);
		graph_error(c, EXIT_UNSUPPORTED, "%s is sparse, which is not supported", what);
	}
}

static void
check_graph(const Check *c, const Names *outer, const GraphProto *g, const char *what)
{
	Arena *arena = c->model->arena;
	Names names = {outer, strmap_new(arena), strmap_new(arena)};

	for (size_t i = 0; i < g->n_input; i++) {
		const char *name = g->input[i]->name ? g->input[i]->name : "";
		if (!*name)
			graph_error(c, EXIT_INVALID, "an input without a name");
		else
			define(c, &names, name, "input");
	}
	check_initializers(c, &names, g);
	for (size_t i = 0; i < g->n_node; i++)
		for (size_t k = 0; k < g->node[i]->n_output; k++)
			strmap_put(names.later, g->node[i]->output[k], here);
	for (size_t i = 0; i < g->n_node; i++)
		check_one(c, &names, g->node[i]);
	for (size_t i = 0; i < g->n_output; i++) {
		const char *name = g->output[i]->name ? g->output[i]->name : "";
		if (!name_known(&names, name))
			graph_error(c, EXIT_INVALID, "%s output %s is made by no node", what,
			            quoted(c->model, name));
	}
	if (g->n_output == 0)
		graph_error(c, EXIT_INVALID, "the %s has no outputs", what);
}

static void
check_function(const Check *parent, const FunctionProto *f)
{
	Check c = *parent;
	Names names = {NULL, strmap_new(c.model->arena), strmap_new(c.model->arena)};

	c.in_function = true;
	if (f->n_opset_import) {
		c.n_imports = f->n_opset_import;
		c.imports = f->opset_import;
	}
	for (size_t i = 0; i < f->n_input; i++)
		define(&c, &names, f->input[i], "function input");
	for (size_t i = 0; i < f->n_node; i++)
		for (size_t k = 0; k < f->node[i]->n_output; k++)
			strmap_put(names.later, f->node[i]->output[k], here);
	for (size_t i = 0; i < f->n_node; i++)
		check_one(&c, &names, f->node[i]);
	for (size_t i = 0; i < f->n_output; i++)
		if (!name_known(&names, f->output[i]))
			model_error(c.model, c.diag, EXIT_INVALID,
			            "function %s: output %s is made by "
			            "no node",
			            quoted(c.model, f->name ? f->name : ""),
			            quoted(c.model, f->output[i]));
}

static void
check_versions(Model *model, Diag *diag)
{
	const ModelProto *p = model->proto;

	if (!p->has_ir_version || p->ir_version < 1 || p->ir_version > 99)
		model_error(model, diag, EXIT_INVALID, "IR version %lld is not valid",
		            (long long)p->ir_version);
	else if (p->ir_version < OLDEST_IR || p->ir_version > NEWEST_IR)
		model_error(model, diag, EXIT_UNSUPPORTED,
		            "IR version %lld, %d to %d are supported", (long long)p->ir_version,
		            OLDEST_IR, NEWEST_IR);
	if (p->n_opset_import == 0)
		model_error(model, diag, EXIT_INVALID, "no opset_import");
	for (size_t i = 0; i < p->n_opset_import; i++) {
		const char *domain = domain_of(p->opset_import[i]->domain);
		int64_t version = p->opset_import[i]->version;
		for (size_t k = 0; k < i; k++)
			if (!strcmp(domain, domain_of(p->opset_import[k]->domain)) &&
			    version != p->opset_import[k]->version)
				model_error(model, diag, EXIT_INVALID,
				            "opset_import names domain %s twice, with versions "
				            "%lld and %lld",
				            quoted(model, domain),
				            (long long)p->opset_import[k]->version,
				            (long long)version);
		if (version < 1)
			model_error(model, diag, EXIT_INVALID,
			            "opset version %lld of domain %s is "
			            "not valid, needs 1 or more",
			            (long long)version, quoted(model, domain));
		else if (!*domain && (version < OLDEST_OPSET || version > NEWEST_OPSET))
			model_error(model, diag, EXIT_UNSUPPORTED,
			            "opset %lld of ai.onnx, %d to %d are supported",
			            (long long)version, OLDEST_OPSET, NEWEST_OPSET);
	}
}

void
check_model(Model *model, Diag *diag)
{
	const ModelProto *p = model->proto;
	Check c = {model, diag, p->n_opset_import, p->opset_import, false, NULL};

	check_versions(model, diag);
	if (!p->graph) {
		model_error(model, diag, EXIT_INVALID, "no graph");
		return;
	}
	check_graph(&c, NULL, p->graph, "graph");
	for (size_t i = 0; i < p->n_functions; i++)
		check_function(&c, p->functions[i]);
}

void
check_combined(Model *model, const GraphProto *g, Diag *diag)
{
	const ModelProto *p = model->proto;
	Check c = {model, diag, p->n_opset_import, p->opset_import, false, NULL};

	check_graph(&c, NULL, g, "graph with its training algorithm");
}

/* Replaces model-local functions by their bodies: afterwards the model is one flat list of nodes.
 * Names inside a body get a prefix of their own per call; attribute references are resolved. */
#include "frontend/file/file.h"

#include <string.h>

static const char *
function_key(Arena *arena, const char *domain, const char *name, const char *overload)
{
	return arena_printf(arena, "%s\n%s\n%s", domain_of(domain), name ? name : "",
	                    overload ? overload : "");
}

const FunctionProto *
node_callee(const Model *model, const NodeProto *n)
{
	if (model->proto->n_functions == 0)
		return NULL;
	return strmap_get(model->functions,
	                  function_key(model->arena, n->domain, n->op_type, n->overload));
}

/* ---- the size after expansion */
typedef struct {
	Model *model;
	Diag *diag;
	IntMap *sizes; /* address of a function -> 1 + nodes it expands to; 1 while being counted */
} Sizes;

static int64_t body_size(Sizes *s, size_t n, NodeProto **nodes, int depth);

/* Nodes that a call expands to; -1 after reporting. */
static int64_t
call_size(Sizes *s, const FunctionProto *f, int depth)
{
	const char *name = quoted(s->model, f->name ? f->name : "");
	uint64_t known;

	if (intmap_get(s->sizes, (uint64_t)(uintptr_t)f, &known)) {
		if (known == 1)
			model_error(s->model, s->diag, EXIT_INVALID, "function %s calls itself",
			            name);
		return (int64_t)known - 2 < 0 ? -1 : (int64_t)known - 2;
	}
	if (depth > MAX_CALL_DEPTH) {
		model_error(s->model, s->diag, EXIT_INVALID,
		            "function %s: calls nested deeper than %d", name, MAX_CALL_DEPTH);
		return -1;
	}
	intmap_put(s->sizes, (uint64_t)(uintptr_t)f, 1);
	int64_t size = body_size(s, f->n_node, f->node, depth);
	intmap_put(s->sizes, (uint64_t)(uintptr_t)f, size < 0 ? 1 : (uint64_t)size + 2);
	return size;
}

/* Nodes that the subgraphs of a node expand to; -1 after reporting. */
static int64_t
subgraph_size(Sizes *s, const NodeProto *n, int depth)
{
	int64_t size = 0;

	for (size_t i = 0; i < n->n_attribute; i++) {
		const GraphProto *g = n->attribute[i]->g;
		int64_t inner = g ? body_size(s, g->n_node, g->node, depth) : 0;
		if (inner < 0)
			return -1;
		size += inner;
	}
	return size;
}

static int64_t
body_size(Sizes *s, size_t n, NodeProto **nodes, int depth)
{
	int64_t size = 0;

	for (size_t i = 0; i < n; i++) {
		const FunctionProto *f = node_callee(s->model, nodes[i]);
		int64_t inner = f ? call_size(s, f, depth + 1) : 1;
		int64_t below = subgraph_size(s, nodes[i], depth);
		if (inner < 0 || below < 0)
			return -1;
		size += inner + below;
		if (size > MAX_EXPANSION) {
			model_error(s->model, s->diag, EXIT_INVALID,
			            "functions expand to more than %d "
			            "nodes: over the budget",
			            MAX_EXPANSION);
			return -1;
		}
	}
	return size;
}

/* ---- expansion */
typedef struct {
	Model *model;
	const FunctionProto *function;
	const NodeProto *call;
	StrMap *names; /* name inside the body -> name outside */
	const char *prefix, *label;
	size_t n_imports;
	Onnx__OperatorSetIdProto **imports;
} Body;

static void
add_node(Model *model, FlatNodes *to, FlatNode n)
{
	vec_push(model->arena, to, n);
	model->n_flat++;
}

/* A NULL name becomes ""; check.c reports it. */
static const char *
outside_name(Body *b, const char *name)
{
	const char *found = name && *name ? strmap_get(b->names, name) : "";

	if (!found) {
		found = arena_printf(b->model->arena, "%s%s", b->prefix, name);
		strmap_put(b->names, name, (void *)(uintptr_t)found);
	}
	return found;
}

static char **
outside_names(Body *b, size_t n, char **names)
{
	char **out = NEW_ARRAY(b->model->arena, char *, n);

	for (size_t i = 0; i < n; i++)
		out[i] = (char *)(uintptr_t)outside_name(b, names[i]);
	return out;
}

/* The attribute that a reference in a body means: the call's, else the function's default, else
 * NULL. */
static const AttributeProto *
resolve(const Body *b, const char *name)
{
	const AttributeProto *a = node_attribute(b->call, name);

	for (size_t i = 0; !a && i < b->function->n_attribute_proto; i++)
		if (b->function->attribute_proto[i]->name &&
		    !strcmp(b->function->attribute_proto[i]->name, name))
			a = b->function->attribute_proto[i];
	return a;
}

static NodeProto *copy_node(Body *b, const NodeProto *from);

static ValueInfoProto **
copy_values(Body *b, size_t n, ValueInfoProto **from)
{
	ValueInfoProto **to = NEW_ARRAY(b->model->arena, ValueInfoProto *, n);

	for (size_t i = 0; i < n; i++) {
		to[i] = arena_copy(b->model->arena, from[i], sizeof(*from[i]));
		to[i]->name = (char *)(uintptr_t)outside_name(b, from[i]->name);
	}
	return to;
}

/* Copies a subgraph of the body. Names that the subgraph defines get the prefix; so do the body's
 * names that it reads. */
static GraphProto *
copy_graph(Body *b, const GraphProto *from)
{
	Arena *arena = b->model->arena;
	GraphProto *to = arena_copy(arena, from, sizeof(*from));

	to->input = copy_values(b, from->n_input, from->input);
	to->output = copy_values(b, from->n_output, from->output);
	to->n_value_info = 0;
	to->initializer = NEW_ARRAY(arena, TensorProto *, from->n_initializer);
	for (size_t i = 0; i < from->n_initializer; i++) {
		TensorProto *t = arena_copy(arena, from->initializer[i], sizeof(*t));
		t->name = (char *)(uintptr_t)outside_name(b, t->name);
		to->initializer[i] = t;
	}
	to->node = NEW_ARRAY(arena, NodeProto *, from->n_node);
	for (size_t i = 0; i < from->n_node; i++)
		to->node[i] = copy_node(b, from->node[i]);
	return to;
}

static NodeProto *
copy_node(Body *b, const NodeProto *from)
{
	Arena *arena = b->model->arena;
	NodeProto *to = arena_copy(arena, from, sizeof(*from));

	to->input = outside_names(b, from->n_input, from->input);
	to->output = outside_names(b, from->n_output, from->output);
	to->name = arena_printf(arena, "%s/%s", b->label, from->name ? from->name : "");
	to->attribute = NEW_ARRAY(arena, AttributeProto *, from->n_attribute);
	to->n_attribute = 0;
	for (size_t i = 0; i < from->n_attribute; i++) {
		AttributeProto *a = from->attribute[i];
		if (a->ref_attr_name && *a->ref_attr_name) {
			const AttributeProto *value = resolve(b, a->ref_attr_name);
			if (!value)
				continue;
			char *name = a->name;
			a = arena_copy(arena, value, sizeof(*value));
			a->name = name;
		}
		if (a->g) {
			a = arena_copy(arena, a, sizeof(*a));
			a->g = copy_graph(b, a->g);
		}
		to->attribute[to->n_attribute++] = a;
	}
	return to;
}

static void
add_identity(Model *model, FlatNodes *list, const char *from, const char *to, int opset)
{
	static char op[] = "Identity";
	NodeProto *n = NEW(model->arena, NodeProto);

	onnx__node_proto__init(n);
	n->op_type = op;
	n->name = arena_strdup(model->arena, to);
	n->input = NEW_ARRAY(model->arena, char *, 1);
	n->output = NEW_ARRAY(model->arena, char *, 1);
	n->input[0] = arena_strdup(model->arena, from);
	n->output[0] = arena_strdup(model->arena, to);
	n->n_input = n->n_output = 1;
	add_node(model, list, (FlatNode){n, opset});
}

static void flatten_subgraphs(Model *model, const NodeProto *n, size_t n_imports,
                              Onnx__OperatorSetIdProto **imports);

static void
flatten(Model *model, FlatNodes *to, const NodeProto *n, size_t n_imports,
        Onnx__OperatorSetIdProto **imports)
{
	const FunctionProto *f = node_callee(model, n);
	int opset = opset_version(n_imports, imports, n->domain);

	if (!f) {
		flatten_subgraphs(model, n, n_imports, imports);
		add_node(model, to, (FlatNode){n, opset});
		return;
	}
	Body b = {.model = model,
	          .function = f,
	          .call = n,
	          .names = strmap_new(model->arena),
	          .label = n->name && *n->name ? n->name : f->name,
	          .prefix = arena_printf(model->arena, "%s/%d/", f->name, model->n_flat),
	          .n_imports = f->n_opset_import ? f->n_opset_import : n_imports,
	          .imports = f->n_opset_import ? f->opset_import : imports};
	for (size_t i = 0; i < f->n_input; i++)
		strmap_put(b.names, f->input[i], i < n->n_input ? n->input[i] : "");
	/* If a function's output is also an input or another output of the function, its name
	 * outside is taken: an Identity after the body copies the value to the output's name. */
	bool *copied = NEW_ARRAY(model->arena, bool, f->n_output);
	for (size_t i = 0; i < f->n_output && i < n->n_output; i++) {
		copied[i] = strmap_get(b.names, f->output[i]) != NULL;
		if (!copied[i] && *n->output[i])
			strmap_put(b.names, f->output[i], n->output[i]);
	}
	for (size_t i = 0; i < f->n_node; i++)
		flatten(model, to, copy_node(&b, f->node[i]), b.n_imports, b.imports);
	for (size_t i = 0; i < f->n_output && i < n->n_output; i++)
		if (copied[i] && *n->output[i])
			add_identity(model, to, outside_name(&b, f->output[i]), n->output[i],
			             model->opset);
}

static void
flatten_subgraphs(Model *model, const NodeProto *n, size_t n_imports,
                  Onnx__OperatorSetIdProto **imports)
{
	for (size_t i = 0; i < n->n_attribute; i++) {
		const GraphProto *g = n->attribute[i]->g;
		if (!g)
			continue;
		FlatNodes *list = NEW(model->arena, FlatNodes);
		for (size_t k = 0; k < g->n_node; k++)
			flatten(model, list, g->node[k], n_imports, imports);
		intmap_put(model->subgraphs, (uint64_t)(uintptr_t)g, (uint64_t)(uintptr_t)list);
	}
}

const FlatNodes *
subgraph_nodes(const Model *model, const GraphProto *g)
{
	uint64_t found = 0;

	intmap_get(model->subgraphs, (uint64_t)(uintptr_t)g, &found);
	return (const FlatNodes *)(uintptr_t)found;
}

static void
register_functions(Model *model, Diag *diag)
{
	const ModelProto *p = model->proto;

	if (p->n_functions > MAX_FUNCTIONS)
		model_error(model, diag, EXIT_INVALID, "%zu functions, at most %d are allowed",
		            p->n_functions, MAX_FUNCTIONS);
	for (size_t i = 0; i < p->n_functions; i++) {
		FunctionProto *f = p->functions[i];
		if (!f->name || !*f->name) {
			model_error(model, diag, EXIT_INVALID, "a function without a name");
			continue;
		}
		const char *key = function_key(model->arena, f->domain, f->name, f->overload);
		if (strmap_get(model->functions, key))
			model_error(model, diag, EXIT_INVALID, "function %s stands twice",
			            quoted(model, f->name));
		strmap_put(model->functions, key, f);
	}
}

bool
nodes_in_budget(const Model *model, int64_t n, Diag *diag)
{
	if (n <= MAX_NODES)
		return true;
	model_error(model, diag, EXIT_UNSUPPORTED, "%lld nodes, at most %d are supported",
	            (long long)n, MAX_NODES);
	diag_hint(diag, "loops that the exporter unrolled make such models: keep them as Loop or "
	                "Scan, or fold constants before the export");
	return false;
}

/* Are all called functions known, does none call itself, and is their expansion small enough? */
bool
check_functions(Model *model, Diag *diag)
{
	const GraphProto *g = model->proto->graph;
	Sizes sizes = {model, diag, intmap_new(model->arena)};
	int before = diag_errors(diag);

	register_functions(model, diag);
	if (diag_errors(diag) != before || !g)
		return false;
	for (size_t i = 0; i < model->proto->n_functions; i++)
		if (call_size(&sizes, model->proto->functions[i], 1) < 0)
			return false;
	int64_t n = body_size(&sizes, g->n_node, g->node, 0);
	return n >= 0 && nodes_in_budget(model, n, diag);
}

void
inline_functions(Model *model)
{
	const ModelProto *p = model->proto;

	for (size_t i = 0; i < p->graph->n_node; i++)
		flatten(model, &model->nodes, p->graph->node[i], p->n_opset_import,
		        p->opset_import);
}

void
model_add_node(Model *model, const NodeProto *n)
{
	const ModelProto *p = model->proto;

	flatten(model, &model->nodes, n, p->n_opset_import, p->opset_import);
}

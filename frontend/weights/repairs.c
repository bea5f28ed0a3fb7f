/* Finds the weights of the graph. Candidates are float initializers, float tensors of Constant nodes
 * (repair `constants`), and Identity nodes that name a parameter which the exporter merged with an
 * equal one (repair `merged`). roles.c judges each candidate; ties.c finds candidates that are the
 * same parameter. */
#include "frontend/weights/judge.h"
#include "frontend/weights/origins.h"

#include <string.h>

static bool
listed(const char *const *list, const char *name)
{
	for (; list && *list; list++)
		if (!strcmp(*list, name))
			return true;
	return false;
}

bool
repair_enabled(const ImportOptions *options, const char *name)
{
	return !listed(options->no_repairs, name);
}

void
repairs_note(Repairs *r, const char *repair, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	const char *text = arena_vprintf(r->arena, fmt, args);
	va_end(args);
	vec_push(r->arena, &r->log, arena_printf(r->arena, "%s: %s", repair, text));
}

/* ---- readers */
Readers
readers_of(const Repairs *r, const char *name)
{
	const Readers *found = strmap_get(r->readers, name);

	return found ? *found : (Readers){0};
}

static void
add_reader(Repairs *r, const char *name, const FlatNode *node, int input)
{
	Readers *list = *name ? strmap_get(r->readers, name) : NULL;

	if (!*name)
		return;
	if (!list) {
		list = NEW(r->arena, Readers);
		strmap_put(r->readers, name, list);
	}
	vec_push(r->arena, list, ((Reader){node, input}));
}

static bool
is_integer_of_file(const Repairs *r, const char *name)
{
	const TensorProto *t = strmap_get(r->model->initializers, name);

	return t && !is_float_type(t->data_type);
}

/* Indexes a node: as a reader of its inputs and as the producer of its outputs; then the nodes of
 * its subgraphs. outer: the main graph's node whose subgraph has the node; NULL: the node is in the
 * main graph. If a node of a subgraph reads integers of the file, `outer` counts as their reader,
 * because codes that a subgraph reads do not train. */
static void
index_node(Repairs *r, const FlatNode *n, const FlatNode *outer)
{
	const NodeProto *p = n->proto;

	for (size_t k = 0; k < p->n_input; k++) {
		bool is_outer = outer && is_integer_of_file(r, p->input[k]);
		add_reader(r, p->input[k], is_outer ? outer : n, is_outer ? -1 : (int)k);
	}
	for (size_t k = 0; k < p->n_output; k++)
		if (!outer || !strmap_get(r->producers, p->output[k]))
			strmap_put(r->producers, p->output[k], (void *)(uintptr_t)n);
	for (size_t k = 0; k < p->n_attribute; k++) {
		const GraphProto *g = p->attribute[k]->g;
		const FlatNodes *nodes = g ? subgraph_nodes(r->model, g) : NULL;
		for (int i = 0; nodes && i < nodes->n; i++)
			index_node(r, &nodes->at[i], outer ? outer : n);
		for (size_t i = 0; g && i < g->n_output; i++)
			add_reader(r, g->output[i]->name, outer ? outer : n, -1);
	}
}

static void
index_nodes(Repairs *r)
{
	const GraphProto *g = r->model->proto->graph;

	for (size_t i = 0; i < g->n_node; i++)
		intmap_put(r->main_nodes, (uint64_t)(uintptr_t)g->node[i], 1);
	for (int i = 0; i < r->model->nodes.n; i++)
		index_node(r, &r->model->nodes.at[i], NULL);
}

static bool
is_view(const Reader *reader)
{
	static const char *const views[] = {"Identity", "Transpose", "Reshape", "Unsqueeze",
	                                    "Squeeze",  "Expand",    "Cast",    "CastLike",
	                                    "Flatten",  "Slice",     "Split",   "Tile"};

	for (int i = 0; reader->input == 0 && i < COUNT(views); i++)
		if (is_op(reader->node->proto, views[i]))
			return true;
	return false;
}

/* Readers of one value, and how many of them the walk has passed. */
typedef struct {
	Readers list;
	int at;
} ReadersLeft;
enum { FEW_VIEWS = 8 };
/* A walk from a value's readers through views to their readers, and so on. */
typedef struct {
	const Repairs *r;
	ReadersLeft *open; /* values whose readers are not passed yet */
	int n, cap;
	IntMap *passed; /* the views that the walk has passed; NULL: none */
} ReaderWalk;

static void
open_readers(ReaderWalk *w, const char *name)
{
	if (w->n == w->cap) {
		ReadersLeft *more = NEW_ARRAY(w->r->arena, ReadersLeft, 2 * w->cap);
		memcpy(more, w->open, sizeof(*more) * (size_t)w->n);
		w->open = more;
		w->cap *= 2;
	}
	w->open[w->n++] = (ReadersLeft){readers_of(w->r, name), 0};
}

/* Is this the first time that the walk comes to the view? Two subgraphs may use the same two names
 * in opposite directions, and then the readers, found by name, form a cycle. */
static bool
pass_view(ReaderWalk *w, const NodeProto *view)
{
	uint64_t key = (uint64_t)(uintptr_t)view;

	if (!w->passed)
		w->passed = intmap_new(w->r->arena);
	if (intmap_get(w->passed, key, NULL))
		return false;
	intmap_put(w->passed, key, 1);
	return true;
}

int
final_readers(const Repairs *r, const char *name, Reader *out, int max)
{
	ReadersLeft few[FEW_VIEWS];
	ReaderWalk w = {.r = r, .open = few, .cap = FEW_VIEWS};
	int n = 0;

	open_readers(&w, name);
	while (w.n && n < max) {
		ReadersLeft *left = &w.open[w.n - 1];
		if (left->at == left->list.n) {
			w.n--;
			continue;
		}
		const Reader *reader = &left->list.at[left->at++];
		const NodeProto *p = reader->node->proto;
		if (!is_view(reader)) {
			out[n++] = *reader;
			continue;
		}
		if (p->n_output && repairs_weight(r, p->output[0]))
			continue; /* an Identity that became a parameter of its own */
		if (pass_view(&w, p))
			for (size_t k = p->n_output; k-- > 0;)
				open_readers(&w, p->output[k]);
	}
	return n;
}

int
all_readers(const Repairs *r, const char *name, const Reader **out)
{
	for (int room = 4;; room *= 4) {
		Reader *list = NEW_ARRAY(r->arena, Reader, room);
		int n = final_readers(r, name, list, room);
		*out = list;
		if (n < room)
			return n;
	}
}

static void
index_inputs(Repairs *r)
{
	const GraphProto *g = r->model->proto->graph;

	for (size_t i = 0; i < g->n_input; i++)
		strmap_put(r->inputs, g->input[i]->name, g->input[i]);
}

/* ---- candidates */
Weight *
repairs_weight(const Repairs *r, const char *name)
{
	return strmap_get(r->weights, name);
}

Weight *
repairs_add_weight(Repairs *r, const char *name, const char *value, const TensorProto *t)
{
	TensorData data;

	if (!tensor_load(r->model, t, r->options->shapes_only, &data, r->diag))
		return NULL;
	Weight *w = NEW(r->arena, Weight);
	w->name = name;
	w->value = value;
	w->tensor = t;
	w->data = data;
	w->origin = strmap_get(r->origins, name);
	r->tells_origins |= w->origin != NULL;
	strmap_put(r->weights, name, w);
	vec_push(r->arena, &r->list, w);
	return w;
}

static Weight *
add_weight(Repairs *r, const char *name, const TensorProto *t)
{
	return repairs_add_weight(r, name, name, t);
}

/* Adds an integer tensor as a weight stored as codes; NULL: the tensor is not such a weight. */
static Weight *
add_codes(Repairs *r, const char *name, const TensorProto *t)
{
	TensorData data;

	if (t->data_type == ONNX__TENSOR_PROTO__DATA_TYPE__STRING || readers_of(r, name).n == 0 ||
	    !tensor_load(r->model, t, false, &data, r->diag))
		return NULL;
	const Codes *codes = codes_find(r, name, &data);
	Weight *w = codes ? add_weight(r, name, t) : NULL;
	if (w)
		w->codes = codes;
	return w;
}

static void
add_initializers(Repairs *r)
{
	const GraphProto *g = r->model->proto->graph;

	for (size_t i = 0; i < g->n_initializer; i++) {
		TensorProto *t = g->initializer[i];
		if (!is_float_type(t->data_type)) {
			add_codes(r, t->name, t);
			continue;
		}
		Weight *w = add_weight(r, t->name, t);
		if (w && tensor_has_non_finite(&w->data))
			diag_warning(r->diag, "%s: initializer %s holds NaN or infinite values",
			             r->model->path, quoted(r->model, t->name));
	}
}

/* Is the node in the main graph? A function's node cannot be rewritten at export, because one node
 * of a function stands for a node in every call. */
static bool
in_main_graph(const Repairs *r, const FlatNode *n)
{
	return intmap_get(r->main_nodes, (uint64_t)(uintptr_t)n->proto, NULL);
}

const TensorProto *
constant_tensor(const Repairs *r, const FlatNode *n)
{
	bool own = repair_enabled(r->options, "constants") && in_main_graph(r, n) &&
	           is_op(n->proto, "Constant");
	const AttributeProto *a = own ? node_attribute(n->proto, "value") : NULL;

	return a ? a->t : NULL;
}

static void
add_constants(Repairs *r)
{
	for (int i = 0; i < r->model->nodes.n; i++) {
		const FlatNode *n = &r->model->nodes.at[i];
		const TensorProto *t = constant_tensor(r, n);
		int64_t count = 1;
		for (size_t k = 0; t && k < t->n_dims; k++)
			count *= t->dims[k] != 0;
		if (!t || count == 0)
			continue;
		const char *name = n->proto->output[0];
		Weight *w = is_float_type(t->data_type) ? add_weight(r, name, t)
		                                        : add_codes(r, name, t);
		if (w)
			w->constant = n->proto;
	}
}

/* Adds the Identity nodes whose input also has other readers. */
static void
add_identities(Repairs *r)
{
	for (int i = 0; i < r->model->nodes.n; i++) {
		const FlatNode *n = &r->model->nodes.at[i];
		if (!is_op(n->proto, "Identity") || !in_main_graph(r, n))
			continue;
		const Weight *of = repairs_weight(r, n->proto->input[0]);
		if (!of || of->data.n < 1 || readers_of(r, of->name).n < 2)
			continue;
		const Weight *base = of;
		Weight *w = add_weight(r, n->proto->output[0], base->tensor);
		if (w)
			w->identity = n->proto;
	}
}

/* ---- verdicts and their notes */
static void
note_merged(Repairs *r, const char *repair, const char *name, const char *other)
{
	repairs_note(r, repair,
	             "%s is a parameter of its own again, merged by the exporter with %s",
	             quoted(r->model, name), quoted(r->model, other));
}

static void
note_verdict(Repairs *r, const Weight *w)
{
	const char *name = quoted(r->model, w->name);

	if (w->kind == WEIGHT_TABLE)
		repairs_note(r, "tables", "%s is frozen: %s", name, w->why);
	if (w->kind != WEIGHT_PARAMETER)
		return;
	if (w->expanded_to == w->expanded_from + 1)
		repairs_note(r, "ties", "%s repeats along axis %d", name, w->expanded_from);
	else if (w->expanded_to)
		repairs_note(r, "ties", "%s repeats along axes %d to %d", name, w->expanded_from,
		             w->expanded_to - 1);
	if (w->identity && w->tied)
		return;
	if (w->identity)
		note_merged(r, "merged", w->name, w->identity->input[0]);
	else if (w->constant)
		repairs_note(r, "constants", "%s in a Constant node is a parameter", name);
	else if (w->data.rank == 2 && name_is_generated(w->name))
		repairs_note(r, "transposes", "%s is a parameter under a name made by the exporter",
		             name);
}

/* May several readers share the weight? Yes, if all readers belong to calls of one module, or if
 * the text of each reader's call names the weight as often as the call reads the weight. */
static bool
is_read_by_right(const Repairs *r, const Weight *w)
{
	const Reader *readers;
	int n = all_readers(r, w->value, &readers), times = 0, named = 0;
	bool told = true, one_module = true;

	for (int i = 0; i < n && n > 1; i++) {
		const NodeProto *p = readers[i].node->proto;
		bool again = i > 0 && p == readers[i - 1].node->proto;
		times = again ? times + 1 : 1;
		named = again ? named : node_text_names(r, p, w->name);
		told &= named >= times;
		one_module &= i == 0 || (times == 1 && node_same_module(p, readers[0].node->proto));
	}
	return told || one_module;
}

/* Warns of equal parameters that the exporter merged without a trace, because they train as one. */
static void
warn_merged(Repairs *r, const Weight *w)
{
	double value;

	if (w->kind != WEIGHT_PARAMETER || w->identity ||
	    !tensor_constant_valued(&w->data, &value) || is_read_by_right(r, w))
		return;
	diag_warning(r->diag,
	             "%s: parameter %s has one value everywhere and several readers: the "
	             "exporter may have merged equal parameters, which train as one",
	             r->model->path, quoted(r->model, w->name));
}

/* Judges all candidates. An Identity whose tensor is not a parameter stays a copy. */
static void
judge_all(Repairs *r)
{
	for (int i = 0; i < r->list.n; i++)
		weight_judge(r, r->list.at[i]);
	for (int i = 0; i < r->list.n; i++) {
		Weight *w = r->list.at[i];
		if (w->identity && w->kind != WEIGHT_PARAMETER) {
			w->kind = WEIGHT_CONSTANT;
			strmap_put(r->weights, w->name, NULL);
		}
	}
}

/* Notes the initializers that repairs added, in this import or an earlier one. */
static void
note_restored(Repairs *r)
{
	static const struct {
		const char *repair, *what, *end;
	} sentences[] = {
		[RESTORED_NUMBER] = {"unmerge",
	                             "is a number of the code again, merged by the exporter with ",
	                             ""},
		[RESTORED_DROPPED] = {"biases", "is there again: zeros, which the exporter drops",
	                              ""},
		[RESTORED_UNTIED] = {"ties", "begins as ", " and trains apart"},
	};

	for (int i = 0; i < r->model->restored.n; i++) {
		const Restored *restored = r->model->restored.at[i];
		const char *from = restored->from ? quoted(r->model, restored->from) : "";
		if (restored->kind == RESTORED_MERGED || restored->kind == RESTORED_COMPUTED)
			note_merged(r, "unmerge", restored->name, restored->from);
		else
			repairs_note(r, sentences[restored->kind].repair, "%s %s%s%s",
			             quoted(r->model, restored->name),
			             sentences[restored->kind].what, from,
			             sentences[restored->kind].end);
	}
}

static void
say_all(Repairs *r)
{
	note_restored(r);
	for (int i = 0; i < r->list.n; i++) {
		note_verdict(r, r->list.at[i]);
		warn_merged(r, r->list.at[i]);
	}
}

static void
check_names(Repairs *r)
{
	static const char *const names[] = {"constants", "transposes", "merged",    "unmerge",
	                                    "biases",    "ties",       "batchnorm", "dropout",
	                                    "tables",    "batch"};
	const char *const *lists[] = {r->options->repairs, r->options->no_repairs};

	for (int k = 0; k < COUNT(lists); k++)
		for (const char *const *p = lists[k]; p && *p; p++) {
			bool found = false;
			for (int i = 0; i < COUNT(names); i++)
				found |= !strcmp(*p, names[i]);
			if (!found)
				diag_error(r->diag, EXIT_USAGE, "unknown repair \"%s\"", *p);
		}
}

Repairs *
repairs_find(Model *model, const ImportOptions *options, Arena *arena, Diag *diag)
{
	Repairs *r = NEW(arena, Repairs);

	*r = (Repairs){.model = model,
	               .options = options,
	               .exporter = exporter_find(model->proto->producer_name),
	               .diag = diag,
	               .arena = arena,
	               .weights = strmap_new(arena),
	               .readers = strmap_new(arena),
	               .producers = strmap_new(arena),
	               .inputs = strmap_new(arena),
	               .origins = strmap_new(arena),
	               .scales = strmap_new(arena),
	               .signature = strmap_new(arena),
	               .placeholders = strmap_new(arena),
	               .apart = strmap_new(arena),
	               .untied = strmap_new(arena),
	               .inner = intmap_new(arena),
	               .main_nodes = intmap_new(arena)};
	check_names(r);
	index_inputs(r);
	origins_read(r);
	unmerge(r);
	untie_readers(r);
	origins_of_restored(r);
	index_nodes(r);
	add_initializers(r);
	if (repair_enabled(options, "constants"))
		add_constants(r);
	if (repair_enabled(options, "merged"))
		add_identities(r);
	repairs_add_inner(r);
	judge_all(r);
	asked_check(r);
	repairs_tie(r);
	asked_check_ties(r);
	say_all(r);
	findings_note(r);
	return r;
}

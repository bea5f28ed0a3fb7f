/* Notes for the user on changes that the exporter made without a trace in the graph, such as a
 * parameter that the file lacks. Metadata tell of these changes. Notes only: the imported module
 * stays unchanged. */
#include "frontend/weights/judge.h"
#include "frontend/weights/origins.h"

#include <string.h>

/* ---- tensors of the module that the file lacks */
static StrMap *
names_in_file(const Repairs *r)
{
	StrMap *names = strmap_new(r->arena);

	for (int i = 0; i < r->list.n; i++) {
		Weight *w = r->list.at[i];
		origins_add_names(names, w->name, w->origin);
	}
	return names;
}

typedef struct {
	Repairs *r;
	StrMap *modules; /* path -> ModuleNodes */
	StrMap *in_file; /* names of the module's tensors that the file has */
} Lost;

/* The nodes of the module that had the tensor; none for the root module. */
static ModuleNodes
nodes_of(const Lost *l, const char *name)
{
	size_t n = name_module_length(name);
	const ModuleNodes *nodes = n ? strmap_get(l->modules, arena_strndup(l->r->arena, name, n))
	                             : NULL;

	return nodes ? *nodes : (ModuleNodes){0};
}

/* The tensor of another module that the lost tensor's module reads: the exporter merged the two. A
 * tensor with the same last part of the name is preferred; any other must have one value everywhere. */
static const Weight *
read_instead(const Lost *l, const char *name)
{
	const ModuleNodes nodes = nodes_of(l, name);
	const Weight *found = NULL;
	size_t n = name_module_length(name);
	double value;

	for (int i = 0; i < nodes.n; i++)
		for (size_t k = 0; k < nodes.at[i]->n_input; k++) {
			const Weight *w = repairs_weight(l->r, nodes.at[i]->input[k]);
			if (!w || !origin_is(w, ORIGIN_PARAMETER) ||
			    (name_module_length(w->name) == n && !strncmp(w->name, name, n)))
				continue;
			if (!strcmp(name_last_part(w->name), name_last_part(name)))
				return w;
			if (!found && tensor_constant_valued(&w->data, &value))
				found = w;
		}
	return found;
}

/* Is the lost tensor part of a batch norm that was folded into a layer? */
static bool
is_of_folded_norm(const Lost *l, const char *name)
{
	const ModuleNodes nodes = nodes_of(l, name);
	size_t n = name_module_length(name);
	const char *buffer = arena_printf(l->r->arena, "%.*s%srunning_mean", (int)n, name,
	                                  n ? "." : "");
	bool layer = nodes.n == 0;

	for (int i = 0; i < nodes.n; i++) {
		if (is_op(nodes.at[i], "BatchNormalization"))
			return false;
		layer |= node_product(l->r->model, nodes.at[i], 1) != NULL;
	}
	return layer && strmap_get(l->r->signature, buffer);
}

/* Is it a bias of zeros that onnxscript's optimizer dropped? The optimizer drops biases only from
 * the layers checked here. */
static bool
is_dropped_bias(const Lost *l, const char *name)
{
	const ModuleNodes nodes = nodes_of(l, name);

	for (int i = 0; i < nodes.n; i++)
		if (node_bias(l->r->model, nodes.at[i]))
			return !strcmp(name_last_part(name), "bias");
	return false;
}

enum { MERGED, FOLDED_NORM, ZERO_BIAS, UNREAD, N_FATES, SHOWN = 6 };
static const struct {
	const char *what, *meaning;
} fates[N_FATES] = {
	[MERGED] = {"parameters merged with others",
                    "they train as one: tied in the module, or equal and joined by the exporter's "
                    "optimizer, which optimize=False leaves out"},
	[FOLDED_NORM] =
		{"batch norms folded into the layers before them",
                 "these train as the layers' weights and biases, without batch statistics; "
                 "with optimize=False the norms stay, and --train-mode=restore trains them"},
	[ZERO_BIAS] =
		{"biases left out",
                 "nothing reads them, or the exporter's optimizer dropped biases of zeros, which "
                 "optimize=False keeps"},
	[UNREAD] = {"parameters left out",
                    "nothing reads them, or the exporter rewrote their readers"},
};

static int
fate_of(const Lost *l, const char *name, Text *out)
{
	text_add(out, quoted(l->r->model, name));
	if (is_of_folded_norm(l, name))
		return FOLDED_NORM;
	const Weight *other = read_instead(l, name);
	if (other) {
		text_printf(out, " with %s", quoted(l->r->model, other->name));
		return MERGED;
	}
	return is_dropped_bias(l, name) ? ZERO_BIAS : UNREAD;
}

/* Is the lost tensor reported? Most lost buffers are not, because the exporter folded them into the
 * nodes that read them. */
static bool
is_told(const Lost *l, const char *name)
{
	return !strmap_get(l->in_file, name) && !edit_restored(l->r->model, name) &&
	       (!strcmp(strmap_get(l->r->signature, name), ORIGIN_PARAMETER) ||
	        (read_instead(l, name) && !is_of_folded_norm(l, name)));
}

/* Adds one note per fate, with all tensors of that fate. */
static void
note_lost_tensors(Repairs *r)
{
	const Lost l = {r, nodes_by_module(r->model->proto->graph, r->arena), names_in_file(r)};
	Text lists[N_FATES] = {{0}};
	int counts[N_FATES] = {0};

	for (int i = 0; i < r->signed_tensors.n; i++) {
		Text name = {0};
		if (!is_told(&l, r->signed_tensors.at[i]))
			continue;
		int fate = fate_of(&l, r->signed_tensors.at[i], &name);
		if (counts[fate]++ < SHOWN)
			text_printf(&lists[fate], "%s%s", counts[fate] > 1 ? ", " : "", name.at);
		text_free(&name);
	}
	for (int i = 0; i < N_FATES; i++) {
		if (counts[i] > SHOWN)
			text_printf(&lists[i], " and %d more", counts[i] - SHOWN);
		if (counts[i])
			vec_push(r->arena, &r->notes,
			         arena_printf(r->arena, "%s: %s (%s)", fates[i].what, lists[i].at,
			                      fates[i].meaning));
		text_free(&lists[i]);
	}
}

/* A convolution's weight with a generated name was computed: the only uncomputed tensors that
 * TorchScript's exporter renames are matrices, when it transposes them. */
static void
note_computed_convolutions(Repairs *r)
{
	const char *first = NULL;
	int count = 0;

	if (!r->exporter->keeps_names || r->signed_parameters.n || r->tells_folding)
		return;
	for (int i = 0; i < r->model->nodes.n; i++) {
		const FlatNode *n = &r->model->nodes.at[i];
		const Weight *w = is_op(n->proto, "Conv") ? repairs_weight(r, n->proto->input[1])
		                                          : NULL;
		if (!w || w->constant || !name_is_generated(w->name))
			continue;
		first = first ? first : node_location(n->proto);
		count++;
	}
	if (count)
		vec_push(
			r->arena, &r->notes,
			arena_printf(
				r->arena,
				"weights of %d Conv, the first one %s, were computed when exported, "
				"as batch norms folded into them: they train as the layers' weights "
				"and biases, without batch statistics; export with "
				"training=TrainingMode.TRAINING to keep the norms",
				count, quoted(r->model, first)));
}

/* ---- biases left out */
static bool
is_bias_or_norm(const Repairs *r, const Reader *reader)
{
	const NodeProto *p = reader->node->proto;
	const char *path = p->name ? p->name : "";

	return (is_op(reader->node->proto, "Add") && p->n_input == 2 &&
	        repairs_weight(r, p->input[!reader->input])) ||
	       strstr(path, "batchnorm") || strstr(path, "BatchNorm");
}

static bool
is_layer_without_bias(const Repairs *r, const NodeProto *p)
{
	Reader readers[2];
	bool conv = is_op(p, "Conv"), product = is_op(p, "MatMul");

	if ((!conv && !product) || (conv && p->n_input > 2) || !p->name || !strchr(p->name, '/'))
		return false;
	const Weight *w = repairs_weight(r, p->input[1]);
	if (!w || w->kind != WEIGHT_PARAMETER || !name_is_variable(w->name))
		return false;
	int n = final_readers(r, p->output[0], readers, 2);
	return n != 1 || !is_bias_or_norm(r, &readers[0]);
}

/* tf2onnx removes additions of zeros, such as fresh biases, together with their names. */
static void
note_layers_without_bias(Repairs *r)
{
	Text list = {0};
	int n = 0;

	if (!r->exporter->drops_zeros)
		return;
	for (int i = 0; i < r->model->nodes.n; i++) {
		const NodeProto *p = r->model->nodes.at[i].proto;
		if (!is_layer_without_bias(r, p) || n++ >= SHOWN)
			continue;
		int layer = (int)(strrchr(p->name, '/') - p->name);
		text_printf(&list, "%s%s", n > 1 ? ", " : "",
		            quoted(r->model, arena_printf(r->arena, "%.*s", layer, p->name)));
	}
	if (n > SHOWN)
		text_printf(&list, " and %d more", n - SHOWN);
	if (n)
		vec_push(r->arena, &r->notes,
		         arena_printf(
				 r->arena,
				 "layers without a bias: %s (tf2onnx leaves out biases of zeros: "
				 "export after some steps of training to train them)",
				 list.at));
	text_free(&list);
}

/* ---- codes that do not train */
/* Notes integers of rank 2 or more that Cast makes floats, directly or after nodes that only move
 * elements. */
static void
note_cast_codes(Repairs *r)
{
	const char *first = NULL;
	int n = 0;

	for (int i = 0; i < r->list.n; i++) {
		const Weight *w = r->list.at[i];
		if (w->kind == WEIGHT_QUANTIZED && w->beside_cast) {
			first = first ? first : w->beside_cast;
			n++;
		}
	}
	if (n)
		vec_push(
			r->arena, &r->notes,
			arena_printf(
				r->arena,
				"%d scales or zero points belong to codes that Cast makes floats, the "
				"first one to %s: neither codes nor scales train; to train the codes, "
				"write DequantizeLinear in place of Cast and Mul, or add adapters",
				n, quoted(r->model, first)));
}

/* ---- weights in attributes */
static void
note_attributes(Repairs *r)
{
	const FlatNode *first = NULL;
	int n = 0;

	for (int i = 0; i < r->model->nodes.n; i++) {
		const FlatNode *node = &r->model->nodes.at[i];
		if (!is_op(node->proto, "ai.onnx.ml.LinearClassifier") &&
		    !is_op(node->proto, "ai.onnx.ml.LinearRegressor"))
			continue;
		first = first ? first : node;
		n++;
	}
	if (n)
		vec_push(
			r->arena, &r->notes,
			arena_printf(
				r->arena,
				"%d linear models, the first one %s, have their coefficients in "
				"attributes, which do not train; coefficients in initializers, read by "
				"MatMul and Add, would train",
				n, quoted(r->model, node_location(first->proto))));
}

/* ---- modes */
/* The value of a constant with one element; `otherwise` if it is not known. */
static double
constant_number(const Repairs *r, const char *name, double otherwise)
{
	const FlatNode *n = *name ? strmap_get(r->producers, name) : NULL;
	const AttributeProto *a = n && is_op(n->proto, "Constant")
	                                  ? node_attribute(n->proto, "value")
	                                  : NULL;
	const TensorProto *t = a ? a->t : strmap_get(r->model->initializers, name);
	TensorData data;

	if (!t || t->n_dims > 1 || (t->n_dims == 1 && t->dims[0] != 1) ||
	    !tensor_is_there(r->model, t) || !tensor_load(r->model, t, false, &data, r->diag))
		return otherwise;
	return dtype_is_float(data.dtype) ? dtype_load_float(data.dtype, data.data, 0)
	                                  : (double)dtype_load_int(data.dtype, data.data, 0);
}

static double
input_number(const Repairs *r, const NodeProto *p, size_t input, double otherwise)
{
	return input < p->n_input ? constant_number(r, p->input[input], otherwise) : otherwise;
}

/* The fraction that Dropout drops in training form. */
static double
dropout_ratio(const Repairs *r, const FlatNode *n)
{
	const AttributeProto *ratio = node_attribute(n->proto, "ratio");

	return n->opset >= 12 ? input_number(r, n->proto, 1, 0.5) : ratio ? (double)ratio->f : 0.5;
}

/* Would a batch norm in training form normalize by the batch? Not if its parameters are frozen. */
static bool
is_free_norm(const Repairs *r, const NodeProto *p)
{
	bool frozen = true;

	for (size_t i = 1; i <= 2; i++) {
		const Weight *w = i < p->n_input ? repairs_weight(r, p->input[i]) : NULL;
		w = w && w->tied ? w->tied : w;
		frozen &= w && w->kind == WEIGHT_PARAMETER && weight_is_frozen(r, w);
	}
	return !frozen || r->options->update_statistics;
}

/* The model's batch norms and dropouts, by their form. Dropout that drops nothing in any form is
 * not counted. */
typedef struct {
	int training;
	struct {
		const FlatNode *first;
		int n;
	} norms, dropouts; /* in inference form, which --train-mode=restore would change */
} Modes;

static Modes
modes_of(const Repairs *r)
{
	Modes m = {0};

	for (int i = 0; i < r->model->nodes.n; i++) {
		const FlatNode *n = &r->model->nodes.at[i];
		bool norm = is_op(n->proto, "BatchNormalization");
		if (!norm && (!is_op(n->proto, "Dropout") || dropout_ratio(r, n) <= 0))
			continue;
		bool trains = norm && n->opset < 14 ? n->proto->n_output > 1
		              : norm                ? node_int(n->proto, "training_mode", 0) != 0
		                     : n->opset >= 12 && input_number(r, n->proto, 2, 0) != 0;
		m.training += trains;
		if (!trains && norm && is_free_norm(r, n->proto))
			m.norms.first = m.norms.n++ ? m.norms.first : n;
		if (!trains && !norm)
			m.dropouts.first = m.dropouts.n++ ? m.dropouts.first : n;
	}
	if (!repair_enabled(r->options, "batchnorm"))
		m.norms.n = 0;
	if (!repair_enabled(r->options, "dropout"))
		m.dropouts.n = 0;
	return m;
}

/* "8 batch norms, the first one "bn1", are" */
static const char *
counted(const Repairs *r, const char *what, int n, const FlatNode *first)
{
	const char *name = quoted(r->model, node_location(first->proto));

	return n == 1 ? arena_printf(r->arena, "the %s %s is", what, name)
	              : arena_printf(r->arena, "%d %ss, the first one %s, are", n, what, name);
}

/* Notes what trains otherwise than in the framework, because the file has it in inference form.
 * dynamo's exporter keeps dropout in training mode but writes batch norms for inference; the file's
 * signature tells that the module updates running statistics. */
static void
note_modes(Repairs *r)
{
	Modes m = modes_of(r);
	bool for_training = m.training || r->moves_statistics;

	if (r->options->train_mode_given || r->options->forward_only)
		return;
	if (for_training && m.norms.n)
		vec_push(r->arena, &r->notes,
		         arena_printf(r->arena,
		                      "%d BatchNormalization, the first one %s, read running "
		                      "statistics in a model exported for training; "
		                      "--train-mode=restore makes them normalize by the batch",
		                      m.norms.n,
		                      quoted(r->model, node_location(m.norms.first->proto))));
	else if (m.norms.n)
		vec_push(
			r->arena, &r->notes,
			arena_printf(r->arena,
		                     "%s in inference form: training leaves the statistics as they "
		                     "are; --train-mode=restore makes batch norms normalize by "
		                     "the batch",
		                     counted(r, "batch norm", m.norms.n, m.norms.first)));
	if (m.dropouts.n)
		vec_push(r->arena, &r->notes,
		         arena_printf(r->arena,
		                      "%s in inference form: training drops nothing; "
		                      "--train-mode=restore makes it drop",
		                      counted(r, "dropout", m.dropouts.n, m.dropouts.first)));
}

/* tf2onnx folds a batch norm without a convolution before it into the numbers of Mul and Add, whose
 * names keep the path of the norm. */
static void
note_folded_norms(Repairs *r)
{
	StrMap *seen = strmap_new(r->arena);
	const char *first = NULL;
	int n = 0;

	for (int i = 0; r->exporter->names_operations && i < r->list.n; i++) {
		const Weight *w = r->list.at[i];
		const char *at = strstr(w->name, "/batchnorm/");
		if (!at || w->kind != WEIGHT_PARAMETER)
			continue;
		const char *path = arena_strndup(r->arena, w->name, (size_t)(at - w->name));
		if (strmap_get(seen, path))
			continue;
		strmap_put(seen, path, (void *)1);
		first = n++ ? first : path;
	}
	if (n)
		vec_push(
			r->arena, &r->notes,
			arena_printf(r->arena,
		                     "%d batch norms, the first one %s, were folded into Mul and "
		                     "Add when exported: these train as scales and shifts, without "
		                     "batch statistics, which no option brings back",
		                     n, quoted(r->model, first)));
}

void
findings_note(Repairs *r)
{
	note_lost_tensors(r);
	note_computed_convolutions(r);
	note_layers_without_bias(r);
	note_cast_codes(r);
	note_attributes(r);
	note_folded_norms(r);
	note_modes(r);
}

/* Reads the training algorithm that a file may carry (TrainingInfoProto,
 * https://github.com/onnx/onnx/blob/main/onnx/onnx.proto). The loss is the value `y` of the
 * algorithm's Gradient node. An initializer that `update_binding` replaces by the result of an
 * optimizer node (Adam ...) is trained by that optimizer, with the node's attributes and rate. The
 * graph `initialization` gives first values. Only the nodes that the loss depends on are imported.
 * An algorithm is refused if gradc would train in another way. */
#include "frontend/file/file.h"

#include <string.h>

#define TRAINING "ai.onnx.preview.training."

typedef struct {
	Model *model;
	const Onnx__TrainingInfoProto *proto;
	const GraphProto *algorithm;
	GraphProto combined; /* the model's graph joined with the algorithm */
	StrMap *makers;      /* of the combined graph: name -> NodeProto */
	/* initializers of the model and of the algorithm: name -> TensorProto */
	StrMap *tensors;
	StrMap *updates; /* update_binding: name -> name of the new value */
	const NodeProto *gradient;
	TrainingInfo *out;
	Diag *diag;
	bool ok;
} TrainingReader;

static void PRINTF(2, 3) refuse(TrainingReader *r, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	model_error(r->model, r->diag, EXIT_UNSUPPORTED, "its TrainingInfoProto: %s",
	            arena_vprintf(r->model->arena, fmt, args));
	va_end(args);
	r->ok = false;
}

static const char *
name_in(TrainingReader *r, const char *name)
{
	return quoted(r->model, name);
}

/* ---- the combined graph */
#define JOIN(r, to, from, list)                                                             \
	do {                                                                                \
		size_t n_ = (to)->n_##list, m_ = (from)->n_##list;                          \
		void **all_ = NEW_ARRAY((r)->model->arena, void *, (int64_t)(n_ + m_ + 1)); \
		for (size_t i_ = 0; i_ < n_ + m_; i_++)                                     \
			all_[i_] = i_ < n_ ? (void *)(to)->list[i_]                         \
			                   : (void *)(from)->list[i_ - n_];                 \
		(to)->list = (void *)all_;                                                  \
		(to)->n_##list = n_ + m_;                                                   \
	} while (0)

static void
combine(TrainingReader *r)
{
	GraphProto *g = &r->combined;

	*g = *r->model->proto->graph;
	JOIN(r, g, r->algorithm, input);
	JOIN(r, g, r->algorithm, output);
	JOIN(r, g, r->algorithm, initializer);
	JOIN(r, g, r->algorithm, node);
}

/* Fills the maps by name; check_combined has checked the names before. */
static void
index_names(TrainingReader *r)
{
	const GraphProto *g = &r->combined;

	for (size_t i = 0; i < g->n_node; i++)
		for (size_t k = 0; k < g->node[i]->n_output; k++)
			strmap_put(r->makers, g->node[i]->output[k], g->node[i]);
	for (size_t i = 0; i < g->n_initializer; i++)
		strmap_put(r->tensors, g->initializer[i]->name, g->initializer[i]);
	for (size_t i = 0; i < r->proto->n_update_binding; i++) {
		const Onnx__StringStringEntryProto *e = r->proto->update_binding[i];
		if (e->key && e->value)
			strmap_put(r->updates, e->key, e->value);
	}
}

/* The node that makes the value `name`; Identity nodes in between are skipped. *name becomes that
 * node's own output. */
static const NodeProto *
maker(TrainingReader *r, const char **name)
{
	const NodeProto *n = strmap_get(r->makers, *name);

	for (int depth = 0; is_op(n, "Identity") && depth < 64; depth++) {
		*name = n->input[0];
		n = strmap_get(r->makers, *name);
	}
	return n;
}

/* Do both names stand for the same value, if Identity nodes are skipped? */
static bool
is_same(TrainingReader *r, const char *a, const char *b)
{
	maker(r, &a);
	maker(r, &b);
	return strcmp(a, b) == 0;
}

/* ---- numbers of the file */
static const TensorProto *
constant_named(TrainingReader *r, const char *name)
{
	const NodeProto *n = maker(r, &name);
	const AttributeProto *a = is_op(n, "Constant") ? node_attribute(n, "value") : NULL;

	return n ? (a ? a->t : NULL) : strmap_get(r->tensors, name);
}

static double
element(const TensorData *d, int64_t i)
{
	return dtype_is_float(d->dtype) ? dtype_load_float(d->dtype, d->data, i)
	                                : (double)dtype_load_int(d->dtype, d->data, i);
}

/* The number that a name always stands for; false: the name is not a constant number. */
static bool
one_number(TrainingReader *r, const char *name, double *out)
{
	const TensorProto *t = constant_named(r, name);
	TensorData d;

	if (!t || !tensor_load(r->model, t, false, &d, r->diag) || d.n != 1)
		return false;
	*out = element(&d, 0);
	return true;
}

/* Are all elements of an initializer equal to the number? */
static bool
is_all(TrainingReader *r, const TensorProto *t, double value)
{
	TensorData d;

	if (!t || !tensor_load(r->model, t, false, &d, r->diag))
		return false;
	for (int64_t i = 0; i < d.n; i++)
		if (element(&d, i) != value)
			return false;
	return true;
}

/* ---- the gradient */
static void
find_gradient(TrainingReader *r)
{
	const AttributeProto *y;

	for (size_t i = 0; i < r->algorithm->n_node; i++) {
		const NodeProto *n = r->algorithm->node[i];
		if (!is_op(n, TRAINING "Gradient"))
			continue;
		if (r->gradient)
			refuse(r, "it has several Gradient nodes");
		r->gradient = n;
	}
	if (!r->gradient) {
		refuse(r, "its algorithm has no Gradient node");
		return;
	}
	y = node_attribute(r->gradient, "y");
	r->out->loss = y ? arena_strndup(r->model->arena, y->s.data ? (char *)y->s.data : "",
	                                 y->s.len)
	                 : "";
	if (!*r->out->loss)
		refuse(r, "its Gradient node names no y");
}

/* The name of input i of the Gradient node, by its lists: xs, then zs. */
static const char *
differentiated(TrainingReader *r, size_t i)
{
	const AttributeProto *xs = node_attribute(r->gradient, "xs");
	const AttributeProto *zs = node_attribute(r->gradient, "zs");
	size_t n = xs ? xs->n_strings : 0;
	const AttributeProto *a = i < n ? xs : zs;

	i -= i < n ? 0 : n;
	if (!a || i >= a->n_strings)
		return "";
	return arena_strndup(r->model->arena, a->strings[i].data ? (char *)a->strings[i].data : "",
	                     a->strings[i].len);
}

static void
check_gradient(TrainingReader *r)
{
	for (size_t i = 0; i < r->gradient->n_input; i++)
		if (strcmp(r->gradient->input[i], differentiated(r, i)) != 0)
			refuse(r,
			       "input %zu of its Gradient node is %s, but xs and zs name %s there: "
			       "gradients at other values are not supported",
			       i, name_in(r, r->gradient->input[i]),
			       name_in(r, differentiated(r, i)));
}

/* Is `g` the loss's gradient by x? */
static bool
is_gradient_of(TrainingReader *r, const char *g, const char *x)
{
	if (maker(r, &g) != r->gradient)
		return false;
	for (size_t i = 0; i < r->gradient->n_output; i++)
		if (strcmp(r->gradient->output[i], g) == 0)
			return strcmp(differentiated(r, i), x) == 0;
	return false;
}

/* ---- the optimizers */
static double
float_of(const NodeProto *n, const char *name, float otherwise)
{
	const AttributeProto *a = node_attribute(n, name);

	return (double)(a ? a->f : otherwise);
}

static void
add_setting(Text *t, const char *name, double value)
{
	text_printf(t, ",%s=", name);
	text_add_double(t, value);
}

/* Adds the node's attributes as settings of --optimizer. */
static void
add_attributes(Text *t, const NodeProto *n)
{
	if (is_op(n, TRAINING "Adam")) {
		add_setting(t, "beta1", float_of(n, "alpha", 0.9f));
		add_setting(t, "beta2", float_of(n, "beta", 0.999f));
		add_setting(t, "norm_coefficient_post", float_of(n, "norm_coefficient_post", 0));
	} else if (is_op(n, TRAINING "Adagrad")) {
		add_setting(t, "decay_factor", float_of(n, "decay_factor", 0));
	} else {
		const AttributeProto *mode = node_attribute(n, "mode");
		bool nesterov = mode && mode->s.len == 8 && !memcmp(mode->s.data, "nesterov", 8);
		add_setting(t, "momentum", float_of(n, "alpha", 0));
		add_setting(t, "beta", float_of(n, "beta", 1));
		text_printf(t, ",nesterov=%s", nesterov ? "true" : "false");
	}
	if (!is_op(n, TRAINING "Momentum"))
		add_setting(t, "eps", float_of(n, "epsilon", 1e-6f));
	add_setting(t, "weight_decay", float_of(n, "norm_coefficient", 0));
}

/* Sets the optimizer, which must be the same for all parameters. */
static void
set_optimizer(TrainingReader *r, const char *parameter, Text *t)
{
	const char *own = arena_strdup(r->model->arena, t->at);

	if (r->out->optimizer && strcmp(r->out->optimizer, own) != 0)
		refuse(r, "%s is updated by %s, others by %s; one optimizer is supported",
		       name_in(r, parameter), own, r->out->optimizer);
	r->out->optimizer = own;
}

/* Does T, the optimizer node's second input, begin at 0 and grow by 1 with each update? */
static bool
counts_updates(TrainingReader *r, const NodeProto *n)
{
	const char *t = n->input[1], *next;
	double one;

	maker(r, &t);
	next = strmap_get(r->updates, t);
	const NodeProto *add = next ? maker(r, &next) : NULL;
	if (!is_op(add, "Add") || add->n_input != 2 || !is_all(r, strmap_get(r->tensors, t), 0))
		return false;
	bool first = is_same(r, add->input[0], t);
	return (first || is_same(r, add->input[1], t)) && one_number(r, add->input[first], &one) &&
	       one == 1;
}

static bool
needs_count(const NodeProto *n)
{
	if (is_op(n, TRAINING "Adam"))
		return true;
	if (is_op(n, TRAINING "Adagrad"))
		return float_of(n, "decay_factor", 0) != 0;
	return float_of(n, "beta", 1) != 1;
}

static void
add_rate(TrainingReader *r, Text *t, const char *name)
{
	double rate;
	const char *origin = name;

	maker(r, &origin);
	if (strmap_get(r->updates, origin) || !one_number(r, name, &rate))
		refuse(r,
		       "the learning rate %s is no constant: give --optimizer, and a schedule when "
		       "it trains",
		       name_in(r, name));
	else
		add_setting(t, "lr", rate);
}

/* Checks the moments of tensor k: zero at first, and replaced by the node's results. */
static void
check_moments(TrainingReader *r, const NodeProto *n, size_t count, size_t k)
{
	for (size_t i = 2 + 2 * count + k, o = count + k; i < n->n_input; i += count, o += count) {
		const char *moment = n->input[i], *next;
		maker(r, &moment);
		next = strmap_get(r->updates, moment);
		if (!next || o >= n->n_output || !is_same(r, next, n->output[o]))
			refuse(r, "%s of its %s node is not replaced by output %zu",
			       name_in(r, moment), n->op_type, o);
		else if (!is_all(r, strmap_get(r->tensors, moment), 0))
			refuse(r, "%s of its %s node does not begin at 0", name_in(r, moment),
			       n->op_type);
	}
}

/* Reads an update of x by result `made` of an optimizer node. */
static void
read_optimizer(TrainingReader *r, const char *x, const NodeProto *n, const char *made)
{
	size_t each = is_op(n, TRAINING "Adam") ? 4 : 3, count = (n->n_input - 2) / each;
	Text t = {0};
	size_t k = 0;

	if (n->n_input < 2 + each || n->n_input != 2 + each * count) {
		refuse(r, "its %s node has %zu inputs", n->op_type, n->n_input);
		return;
	}
	while (k < count && (k >= n->n_output || strcmp(n->output[k], made) != 0))
		k++;
	if (k == count || !is_same(r, n->input[2 + k], x) ||
	    !is_gradient_of(r, n->input[2 + count + k], x)) {
		refuse(r, "%s becomes %s, which is not its own update by its own gradient",
		       name_in(r, x), name_in(r, made));
		return;
	}
	text_printf(&t, "onnx-%s",
	            is_op(n, TRAINING "Adam")      ? "adam"
	            : is_op(n, TRAINING "Adagrad") ? "adagrad"
	                                           : "momentum");
	add_rate(r, &t, n->input[0]);
	add_attributes(&t, n);
	if (needs_count(n) && !counts_updates(r, n))
		refuse(r, "T of its %s node, %s, does not count updates from 0", n->op_type,
		       name_in(r, n->input[1]));
	check_moments(r, n, count, k);
	set_optimizer(r, x, &t);
	text_free(&t);
}

/* Reads an update of x by gradient descent: x - r g. */
static bool
read_descent(TrainingReader *r, const char *x, const NodeProto *sub)
{
	const char *product = sub->n_input == 2 ? sub->input[1] : "";
	const NodeProto *mul = maker(r, &product);
	Text t = {0};

	if (!is_same(r, sub->input[0], x) || !is_op(mul, "Mul") || mul->n_input != 2)
		return false;
	bool second = is_gradient_of(r, mul->input[1], x);
	if (!second && !is_gradient_of(r, mul->input[0], x))
		return false;
	text_printf(&t, "sgd");
	add_rate(r, &t, mul->input[!second]);
	set_optimizer(r, x, &t);
	text_free(&t);
	return true;
}

static bool
is_optimizer(const NodeProto *n)
{
	return is_op(n, TRAINING "Adam") || is_op(n, TRAINING "Adagrad") ||
	       is_op(n, TRAINING "Momentum");
}

static bool
is_own_initializer(const GraphProto *g, const char *name)
{
	for (size_t i = 0; i < g->n_initializer; i++)
		if (strcmp(g->initializer[i]->name, name) == 0)
			return true;
	return false;
}

/* Reads one update. An initializer of the model that is updated is a parameter. An initializer of
 * the algorithm is a state of its optimizer, which read_optimizer checks. */
static void
read_update(TrainingReader *r, const char *x, const char *made)
{
	const char *value = made;
	const NodeProto *n = maker(r, &value);

	if (is_own_initializer(r->algorithm, x))
		return;
	if (!is_own_initializer(r->model->proto->graph, x)) {
		refuse(r, "update_binding names %s, which is no initializer", name_in(r, x));
		return;
	}
	if (is_optimizer(n))
		read_optimizer(r, x, n, value);
	else if (!is_op(n, "Sub") || !read_descent(r, x, n))
		refuse(r,
		       "%s becomes %s, which is neither a result of Adam, Adagrad or Momentum "
		       "nor x - r g",
		       name_in(r, x), name_in(r, made));
	vec_push(r->model->arena, &r->out->parameters, arena_strdup(r->model->arena, x));
}

/* ---- first values */
/* The first values that a node of the initialization graph makes, as "normal(0,0.1)"; NULL: not
 * supported. */
static const char *
first_values(TrainingReader *r, const NodeProto *n)
{
	const AttributeProto *value = node_attribute(n, "value");
	Text t = {0};

	if (is_op(n, "RandomNormal")) {
		text_printf(&t, "normal(%.9g,%.9g)", float_of(n, "mean", 0),
		            float_of(n, "scale", 1));
	} else if (is_op(n, "RandomUniform")) {
		text_printf(&t, "uniform(%.9g,%.9g)", float_of(n, "low", 0),
		            float_of(n, "high", 1));
	} else if (is_op(n, "Constant") || is_op(n, "ConstantOfShape")) {
		bool zero = !value || is_all(r, value->t, 0);
		if (zero || is_all(r, value->t, 1))
			text_add(&t, zero ? "zeros" : "ones");
	}
	const char *text = t.n ? arena_strdup(r->model->arena, t.at) : NULL;
	text_free(&t);
	return text;
}

static const NodeProto *
maker_in(const GraphProto *g, const char *name)
{
	for (size_t i = 0; g && i < g->n_node; i++)
		for (size_t k = 0; k < g->node[i]->n_output; k++)
			if (strcmp(g->node[i]->output[k], name) == 0)
				return g->node[i];
	return NULL;
}

static void
read_first(TrainingReader *r, const char *x, const char *made)
{
	const NodeProto *n = maker_in(r->proto->initialization, made);
	const char *how = n ? first_values(r, n) : NULL;

	if (!how)
		refuse(r,
		       "its initialization makes %s, which is not RandomNormal, RandomUniform, "
		       "zeros or ones",
		       name_in(r, made));
	else if (is_own_initializer(r->model->proto->graph, x))
		vec_push(r->model->arena, &r->out->first_values,
		         (const char *)arena_printf(r->model->arena, "%s=%s", x, how));
	else if (strcmp(how, "zeros") != 0)
		refuse(r, "its initialization gives %s other numbers than 0", name_in(r, x));
}

/* ---- the loss */
/* Marks by name all values of the algorithm that the loss depends on. */
static void
mark_reads(TrainingReader *r, StrMap *needed)
{
	static char here[] = "x";

	strmap_put(needed, r->out->loss, here);
	for (size_t i = r->algorithm->n_node; i-- > 0;) {
		const NodeProto *n = r->algorithm->node[i];
		bool any = false;
		for (size_t k = 0; k < n->n_output; k++)
			any |= strmap_get(needed, n->output[k]) != NULL;
		for (size_t k = 0; any && k < n->n_input; k++)
			strmap_put(needed, n->input[k], here);
		for (size_t k = 0; any && k < n->n_attribute; k++)
			if (n->attribute[k]->g)
				refuse(r, "node %s of the loss has a graph of its own",
				       name_in(r, node_location(n)));
	}
}

static bool
makes_any(const NodeProto *n, StrMap *needed)
{
	for (size_t k = 0; k < n->n_output; k++)
		if (strmap_get(needed, n->output[k]))
			return true;
	return false;
}

/* Adds to the model the nodes, inputs and constants of the algorithm that the loss depends on. */
static void
take_loss(TrainingReader *r)
{
	const GraphProto *a = r->algorithm;
	StrMap *needed = strmap_new(r->model->arena);
	Model *model = r->model;

	mark_reads(r, needed);
	for (size_t i = 0; i < a->n_initializer; i++) {
		char *name = a->initializer[i]->name;
		if (!strmap_get(needed, name))
			continue;
		if (strmap_get(r->updates, name))
			refuse(r, "the loss reads %s, which its algorithm updates",
			       name_in(r, name));
		strmap_put(model->initializers, name, a->initializer[i]);
	}
	for (size_t i = 0; i < a->n_input; i++)
		if (strmap_get(needed, a->input[i]->name))
			vec_push(model->arena, &model->training_inputs, a->input[i]);
	for (size_t i = 0; i < a->n_node && r->ok; i++)
		if (makes_any(a->node[i], needed))
			model_add_node(model, a->node[i]);
}

static void
read_algorithm(TrainingReader *r)
{
	const Onnx__TrainingInfoProto *p = r->proto;

	find_gradient(r);
	if (!r->ok)
		return;
	check_gradient(r);
	for (size_t i = 0; i < p->n_update_binding; i++)
		if (p->update_binding[i]->key && p->update_binding[i]->value)
			read_update(r, p->update_binding[i]->key, p->update_binding[i]->value);
	for (size_t i = 0; i < p->n_initialization_binding; i++)
		if (p->initialization_binding[i]->key && p->initialization_binding[i]->value)
			read_first(r, p->initialization_binding[i]->key,
			           p->initialization_binding[i]->value);
	if (r->ok && r->out->parameters.n == 0)
		refuse(r, "its update_binding names no initializer of the model");
	if (r->ok)
		take_loss(r);
}

bool
model_take_training(Model *model, TrainingInfo *out, Diag *diag)
{
	const ModelProto *p = model->proto;
	Arena *arena = model->arena;
	TrainingReader r = {.model = model,
	                    .makers = strmap_new(arena),
	                    .tensors = strmap_new(arena),
	                    .updates = strmap_new(arena),
	                    .out = out,
	                    .diag = diag,
	                    .ok = true};
	int before = diag_errors(diag);

	*out = (TrainingInfo){0};
	if (p->n_training_info != 1) {
		model_error(model, diag, p->n_training_info ? EXIT_UNSUPPORTED : EXIT_USAGE,
		            "it has %zu TrainingInfoProto, --loss=model needs one",
		            p->n_training_info);
		return false;
	}
	r.proto = p->training_info[0];
	r.algorithm = r.proto->algorithm;
	if (!r.algorithm) {
		refuse(&r, "it has no algorithm");
		return false;
	}
	combine(&r);
	check_combined(model, &r.combined, diag);
	if (r.proto->initialization && r.proto->n_initialization_binding)
		check_combined(model, r.proto->initialization, diag);
	if (diag_errors(diag) != before)
		return false;
	index_names(&r);
	read_algorithm(&r);
	return r.ok && diag_errors(diag) == before;
}

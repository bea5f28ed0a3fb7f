/* Fuzzes valid models by changing a node, a tensor or a port. A changed model is refused with a message, or becomes a module
 * that the verifier accepts, that has a gradient or a reason why not, and that the interpreter runs. The changes are made to
 * messages rather than bytes, so that nearly all changed models reach the importers. The seeds are ONNX's backend tests. */
#include "frontend/frontend.h"
#include "tests/fuzz/in_file.h"

#include "onnx.pb-c.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);

static FILE *quiet;

/* ---- running */
enum { MOST_FLOPS = 20000000, MOST_ELEMENTS = 1 << 20, MOST_GIVEN = 64 };

static void
fail(const char *why, const Module *m)
{
	Text text = {0};

	module_print(&text, m, NULL);
	fprintf(stderr, "%s\n%s\n", why, text.at);
	abort();
}

static void
verify(Module *m)
{
	Diag *faults = diag_new("fuzz", stderr);

	if (!module_verify(m, faults))
		fail("the verifier refuses it", m);
	diag_free(faults);
}

static int64_t
elements(const Function *f)
{
	int64_t n = 0;

	for (int i = 0; i < f->params.n; i++)
		n += f->params.at[i]->type->n;
	for (int i = 0; i < f->states.n; i++)
		n += f->states.at[i]->type->n;
	for_each_node(f, node)
		for (int i = 0; i < node->n_results; i++) {
			if (node_result(node, i)->type->n > MOST_ELEMENTS)
				return MOST_ELEMENTS + 1;
			n += node_result(node, i)->type->n;
		}
	return n;
}

static void
interpret(Module *m, const Function *f)
{
	Arena *arena = arena_new();
	Interp in = interp_new(m, arena, false);
	EvalTensor *args = NEW_ARRAY(arena, EvalTensor, f->params.n);
	EvalTensor *results = NEW_ARRAY(arena, EvalTensor, function_return(f)->n_operands);

	for (int i = 0; i < m->states.n; i++) {
		const State *s = m->states.at[i];
		in.states[i] = s->data ? eval_tensor_from(arena, s->type, s->data->data)
		                       : eval_tensor_new(arena, s->type);
	}
	for (int i = 0; i < f->params.n; i++) {
		args[i] = eval_tensor_new(arena, f->params.at[i]->type);
		for (int64_t k = 0; k < args[i].type->n && dtype_is_float(args[i].type->dtype); k++)
			args[i].f[k] = (double)(k % 7) / 4 - 0.5;
	}
	interp_run(&in, f, args, results);
	arena_free(arena);
}

/* Differentiates the first float result with respect to all float parameters. */
static void
differentiate(Module *m, Function *f)
{
	Node *ret = function_return(f);
	Value *seed = NULL;
	Arena *arena = arena_new();
	Value **wanted = NEW_ARRAY(arena, Value *, f->params.n),
	      **out = NEW_ARRAY(arena, Value *, f->params.n);
	Builder b = {.m = m, .f = f, .before = function_stores(f)};
	Diag *diag = diag_new("fuzz", quiet);
	int n = 0;

	for (int i = 0; i < ret->n_operands && !seed; i++)
		seed = dtype_is_float(node_operand(ret, i)->type->dtype) ? node_operand(ret, i)
		                                                         : NULL;
	for (int i = 0; i < f->params.n; i++)
		if (dtype_is_float(f->params.at[i]->type->dtype) &&
		    f->params.at[i]->param == PARAM_INPUT)
			wanted[n++] = f->params.at[i];
	if (seed && n) {
		GradSeed s = {seed, b_splat(&b, seed->type, 1)};
		if (!gradient_build(&b, 1, &s, n, wanted, out, diag) && diag_errors(diag) == 0)
			fail("no gradient, and no word of it", m);
		verify(m);
	}
	diag_free(diag);
	arena_free(arena);
}

/* Small values for inputs that may decide axes and sizes. */
static int
give_inputs(const char *path, Arena *arena, NamedTensor *out)
{
	void *bytes;
	int64_t n;
	int count = 0;
	Status status = file_read(arena, path, 1 << 20, &bytes, &n);

	status_free(status);
	if (status)
		return 0;
	Onnx__ModelProto *model = onnx__model_proto__unpack(NULL, (size_t)n, bytes);
	for (size_t i = 0; model && model->graph && i < model->graph->n_input && count < MOST_GIVEN;
	     i++) {
		const Onnx__ValueInfoProto *v = model->graph->input[i];
		const Onnx__TypeProto__Tensor *t =
			v->type && v->type->value_case == ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE
				? v->type->tensor_type
				: NULL;
		DType d;
		int64_t size = 1;
		if (!t || !v->name || !t->shape || t->shape->n_dim > 4)
			continue;
		NamedTensor *g = &out[count];
		*g = (NamedTensor){.name = arena_strdup(arena, v->name),
		                   .rank = (int)t->shape->n_dim};
		for (size_t k = 0; k < t->shape->n_dim; k++) {
			int64_t dim =
				t->shape->dim[k]->value_case ==
						ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE
					? t->shape->dim[k]->dim_value
					: 1;
			g->dims[k] = dim < 0 || dim > 64 ? 1 : dim;
			size *= g->dims[k];
		}
		if (size > 4096)
			continue;
		switch (t->elem_type) {
		case ONNX__TENSOR_PROTO__DATA_TYPE__INT64: d = S64; break;
		case ONNX__TENSOR_PROTO__DATA_TYPE__INT32: d = S32; break;
		case ONNX__TENSOR_PROTO__DATA_TYPE__BOOL: d = BOOL; break;
		case ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT: d = F32; break;
		default: continue;
		}
		char *data = arena_alloc(arena, (size_t)dtype_bytes(d, size));
		for (int64_t k = 0; k < size; k++) {
			if (d == F32)
				dtype_store_float(d, data, k, (double)(k % 5) / 2 - 1);
			else
				dtype_store_int(d, data, k,
				                (k + (int64_t)strlen(g->name)) %
				                        (d == BOOL ? 2 : 3));
		}
		g->dtype = d;
		g->data = data;
		count++;
	}
	if (model)
		onnx__model_proto__free_unpacked(model, NULL);
	return count;
}

static void
import(const char *path, bool given)
{
	Binding binding = {.text = ""};
	Arena *arena = arena_new();
	NamedTensor *inputs = NEW_ARRAY(arena, NamedTensor, MOST_GIVEN);
	ImportOptions options = {
		.bindings = &binding, .n_bindings = 1, .open_dims = OPEN_ONE, .given = inputs};
	Diag *diag = diag_new("fuzz", quiet);
	Model *model = model_open(path, diag);

	options.n_given = given ? give_inputs(path, arena, inputs) : 0;
	Module *m = model ? model_import(model, &options, diag) : NULL;
	if (!m && diag_errors(diag) == 0)
		abort(); /* refused without a message */
	if (m) {
		Function *f = module_first(m, ROLE_FORWARD);
		verify(m);
		int64_t flops = function_flops(f);
		if (elements(f) <= MOST_ELEMENTS && flops >= 0 && flops <= MOST_FLOPS)
			interpret(m, f);
		if (f->n_nodes < 4000)
			differentiate(m, f);
	}
	module_free(m);
	model_close(model);
	diag_free(diag);
	arena_free(arena);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *path = in_file(data, size);

	if (!quiet)
		quiet = fopen("/dev/null", "w");
	import(path, false);
	import(path, true);
	return 0;
}

/* ---- changing messages; new parts are allocated with malloc, because protobuf-c frees them */
static uint64_t state;

static uint64_t
draw(uint64_t n)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return n ? state % n : 0;
}

static int64_t
number(void)
{
	static const int64_t odd[] = {-1,
	                              0,
	                              1,
	                              2,
	                              3,
	                              4,
	                              7,
	                              8,
	                              9,
	                              16,
	                              -2,
	                              -3,
	                              255,
	                              1 << 20,
	                              INT32_MAX,
	                              INT32_MIN,
	                              INT64_MAX,
	                              INT64_MIN,
	                              (int64_t)1 << 40};

	return odd[draw(sizeof(odd) / sizeof(*odd))];
}

static float
real(void)
{
	static const float odd[] = {0,     -0.0f,    1,         -1,  0.5f, 1e-30f,
	                            1e30f, INFINITY, -INFINITY, NAN, 3,    100};

	return odd[draw(sizeof(odd) / sizeof(*odd))];
}

static void
set_text(char **text, const char *to)
{
	free(*text);
	*text = strdup(to);
}

/* ---- names of the graph */
static const char *
any_name(const Onnx__GraphProto *g)
{
	size_t n = g->n_input + g->n_initializer + g->n_node;
	size_t i = draw(n);
	const char *name;

	if (n == 0)
		return "";
	if (i < g->n_input)
		name = g->input[i]->name;
	else if ((i -= g->n_input) < g->n_initializer)
		name = g->initializer[i]->name;
	else {
		const Onnx__NodeProto *node = g->node[i - g->n_initializer];
		name = node->n_output ? node->output[draw(node->n_output)] : "";
	}
	return name ? name : "";
}

static const char *picked;
static uint64_t pick_at;

static void
pick(void *ctx, const OpsetRow *row)
{
	(void)ctx;
	if (pick_at-- == 0)
		picked = row->name;
}

static void
change_attribute(Onnx__AttributeProto *a)
{
	static const char *const words[] = {"constant",   "edge",      "reflect",       "wrap",
	                                    "SAME_UPPER", "VALID",     "add",           "max",
	                                    "bilinear",   "linear",    "cubic",         "nearest",
	                                    "floor",      "reverse",   "bidirectional", "Relu",
	                                    "ij,jk->ik",  "...ij->ji", "none",          "",
	                                    "x"};

	switch (draw(5)) {
	case 0: a->i = number(); break;
	case 1:
		if (a->n_ints)
			a->ints[draw(a->n_ints)] = number();
		if (a->n_floats)
			a->floats[draw(a->n_floats)] = real();
		break;
	case 2:
		if (a->n_ints && draw(2))
			a->n_ints--;
		else {
			a->ints = realloc(a->ints, (a->n_ints + 1) * sizeof(int64_t));
			a->ints[a->n_ints++] = number();
		}
		break;
	case 3: a->f = real(); break;
	default: {
		const char *word = words[draw(sizeof(words) / sizeof(*words))];
		free(a->s.data);
		a->s.data = (uint8_t *)strdup(word);
		a->s.len = strlen(word);
	}
	}
}

static void
change_node(Onnx__GraphProto *g, Onnx__NodeProto *n)
{
	switch (draw(8)) {
	case 0:
	case 1:
	case 2:
		if (n->n_attribute)
			change_attribute(n->attribute[draw(n->n_attribute)]);
		break;
	case 3:
		if (n->n_input)
			set_text(&n->input[draw(n->n_input)], draw(3) ? any_name(g) : "");
		break;
	case 4:
		if (n->n_input)
			free(n->input[--n->n_input]);
		break;
	case 5:
		n->input = realloc(n->input, (n->n_input + 1) * sizeof(char *));
		n->input[n->n_input++] = strdup(any_name(g));
		break;
	case 6:
		if (n->n_attribute) {
			size_t i = draw(n->n_attribute);
			protobuf_c_message_free_unpacked(&n->attribute[i]->base, NULL);
			n->attribute[i] = n->attribute[--n->n_attribute];
		}
		break;
	default:
		pick_at = draw(250);
		importer_rows(pick, NULL);
		if (picked)
			set_text(&n->op_type, picked);
	}
}

static void
change_tensor(Onnx__TensorProto *t)
{
	switch (draw(4)) {
	case 0:
		if (t->n_dims)
			t->dims[draw(t->n_dims)] = draw(3) ? (int64_t)draw(5) : number();
		break;
	case 1: t->data_type = (int32_t)draw(28); break;
	case 2:
		if (t->raw_data.len)
			t->raw_data.data[draw(t->raw_data.len)] = (uint8_t)draw(256);
		if (t->n_int64_data)
			t->int64_data[draw(t->n_int64_data)] = number();
		if (t->n_float_data)
			t->float_data[draw(t->n_float_data)] = real();
		break;
	default:
		if (t->n_dims && draw(2))
			t->n_dims--;
		else {
			t->dims = realloc(t->dims, (t->n_dims + 1) * sizeof(int64_t));
			t->dims[t->n_dims++] = 1;
		}
	}
}

static void
change_port(Onnx__ValueInfoProto *v)
{
	Onnx__TypeProto__Tensor *t = v->type && v->type->value_case ==
	                                                     ONNX__TYPE_PROTO__VALUE_TENSOR_TYPE
	                                     ? v->type->tensor_type
	                                     : NULL;

	if (!t || draw(4) == 0) {
		if (t)
			t->elem_type = (int32_t)draw(28);
		return;
	}
	if (!t->shape || t->shape->n_dim == 0)
		return;
	if (draw(4) == 0) {
		protobuf_c_message_free_unpacked(&t->shape->dim[--t->shape->n_dim]->base, NULL);
		return;
	}
	Onnx__TensorShapeProto__Dimension *d = t->shape->dim[draw(t->shape->n_dim)];
	if (d->value_case == ONNX__TENSOR_SHAPE_PROTO__DIMENSION__VALUE_DIM_VALUE)
		d->dim_value = draw(6) ? (int64_t)draw(9) : number();
}

static void
change(Onnx__ModelProto *model, Onnx__GraphProto *g)
{
	uint64_t what = draw(10);

	if (what < 6 && g->n_node) {
		Onnx__NodeProto *n = g->node[draw(g->n_node)];
		for (size_t i = 0; i < n->n_attribute; i++)
			if (n->attribute[i]->g && draw(2)) {
				change(model, n->attribute[i]->g);
				return;
			}
		change_node(g, n);
	} else if (what == 6 && g->n_initializer)
		change_tensor(g->initializer[draw(g->n_initializer)]);
	else if (what == 7 && g->n_output)
		change_port(g->output[draw(g->n_output)]);
	else if (what == 8 && model->n_opset_import)
		model->opset_import[draw(model->n_opset_import)]->version = (int64_t)draw(29);
	else if (g->n_input)
		change_port(g->input[draw(g->n_input)]);
}

size_t
LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
{
	Onnx__ModelProto *model = onnx__model_proto__unpack(NULL, size, data);

	state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
	if (!model || !model->graph || draw(20) == 0) {
		if (model)
			onnx__model_proto__free_unpacked(model, NULL);
		return LLVMFuzzerMutate(data, size, most);
	}
	for (uint64_t times = 1 + draw(3); times > 0; times--)
		change(model, model->graph);
	size_t n = onnx__model_proto__get_packed_size(model);
	if (n <= most)
		onnx__model_proto__pack(model, data);
	onnx__model_proto__free_unpacked(model, NULL);
	return n <= most ? n : size;
}

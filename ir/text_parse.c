/* Reads a module from its text form (.gir) in two passes: first the signatures of functions,
 * states and kernels, so that a body may name functions that stand below it; then the bodies.
 * Types are taken as written; the verifier later compares them with inferred types. */
#include "ir/groups/groups.h"
#include "ir/text.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void
read_place(Reader *r, Value *v)
{
	int k = read_enum(r, region_texts);
	int64_t offset;

	if (k < 0 || !read_expect(r, '+') || !read_int(r, &offset))
		return;
	v->region = (Region)k;
	v->offset = offset;
}

enum { MAX_NUMBER = 1 << 20 };

/* %x, %"a b" or %0. Numbers such as %0 are names of results. A parameter whose name has only
 * digits stands in quotes; its key in r->values begins with a quote, to distinguish %"0" from
 * %0. */
static const char *
read_value_name(Reader *r)
{
	bool quoted = (read_space(r), r->at[0] == '%' && r->at[1] == '"');
	const char *name = read_symbol(r, '%');

	return quoted && name && name[0] && !name[strspn(name, "0123456789")]
	               ? arena_printf(r->m->arena, "\"%s", name)
	               : name;
}

/* ---- states */
static void
read_init(Reader *r, State *s)
{
	int k = read_enum(r, init_names);

	if (k < 0)
		return;
	s->init = (InitKind)k;
	if (s->init == INIT_DATA)
		s->data = read_tensor(r);
	if ((s->init == INIT_NORMAL || s->init == INIT_UNIFORM) && read_expect(r, '(') &&
	    read_double(r, &s->init_a) && read_expect(r, ',') && read_double(r, &s->init_b))
		read_expect(r, ')');
}

static State *
read_state_reference(Reader *r)
{
	const char *name = read_symbol(r, '@');
	State *s = name ? module_state(r->m, name) : NULL;

	if (!s)
		read_fault(r, "unknown state @%s", name ? name : "");
	return s;
}

/* A reference by name to a state or function that may stand further below in the text. It is
 * resolved at the end. */
typedef struct {
	State **state; /* either `state` or `function` is set, the other is NULL */
	Function **function;
	const char *name, *at, *line_start;
	int line;
} Reference;
typedef VEC(Reference) References;

static void
read_reference(Reader *r, References *list, State **state, Function **function)
{
	Reference ref = {state, function, NULL, r->at, r->line_start, r->line};

	ref.name = read_symbol(r, '@');
	if (ref.name)
		vec_push(r->m->arena, list, ref);
	else
		read_fault(r, "expected @name");
}

static void
resolve_references(Reader *r, const References *list)
{
	for (int i = 0; i < list->n; i++) {
		const Reference *ref = &list->at[i];
		void *found = ref->state ? (void *)module_state(r->m, ref->name)
		                         : (void *)module_function(r->m, ref->name);
		if (ref->state)
			*ref->state = found;
		else
			*ref->function = found;
		r->at = ref->at;
		r->line_start = ref->line_start;
		r->line = ref->line;
		if (!found)
			read_fault(r, "unknown %s @%s", ref->state ? "state" : "function",
			           ref->name);
	}
}

/* zero1 by 4096; zero1; zero1 offloaded */
static void
read_sharded(Reader *r, State *s)
{
	int mode = read_enum(r, mode_names);

	if (mode < 0)
		return;
	s->sharded = (DataParallelMode)mode;
	if (read_word(r, "by"))
		read_int(r, &s->block);
	s->offloaded = read_word(r, "offloaded");
}

/* state @w : f32[4] parameter saved trainable init data f32[4] [...] ... */
static void
read_state(Reader *r, References *references)
{
	int64_t number;

	const char *name = read_symbol(r, '@');

	if (!name || !read_expect(r, ':'))
		return;
	Type type = read_type(r);
	int kind = type ? read_enum(r, state_kind_names) : -1;
	int life = kind >= 0 ? read_enum(r, lifetime_names) : -1;
	if (life < 0)
		return;
	if (module_state(r->m, name)) {
		read_fault(r, "state @%s is declared twice", name);
		return;
	}
	State *s = state_new(r->m, name, type, (StateKind)kind, (Lifetime)life);
	s->line = r->line;
	s->trainable = read_word(r, "trainable");
	s->decay = read_word(r, "decay");
	if (read_word(r, "lr_scale"))
		read_double(r, &s->lr_scale);
	if (read_word(r, "init"))
		read_init(r, s);
	s->init_given = read_word(r, "given");
	if (read_word(r, "of"))
		read_reference(r, references, &s->of, NULL);
	if (read_word(r, "number") && read_small(r, MAX_NUMBER, &number))
		s->number = (int)number;
	if (read_word(r, "in")) {
		read_reference(r, references, &s->unit, NULL);
		if (read_expect(r, '+'))
			read_int(r, &s->unit_offset);
	}
	if (read_word(r, "at"))
		read_int(r, &s->offset);
	if (read_word(r, "sharded"))
		read_sharded(r, s);
	if (read_word(r, "path")) {
		read_space(r);
		s->path = text_unquote(r->m->arena, &r->at);
	}
	if (read_word(r, "groups")) {
		read_space(r);
		s->groups = text_unquote(r->m->arena, &r->at);
	}
	if (read_word(r, "why")) {
		read_space(r);
		s->why = text_unquote(r->m->arena, &r->at);
	}
	if (read_word(r, "loc"))
		s->loc = read_loc(r);
	if (!read_at_line_end(r))
		read_fault(r, "unexpected text after the state");
}

static bool
read_key(Reader *r, const char *word)
{
	if (read_word(r, word))
		return true;
	read_fault(r, "expected `%s`", word);
	return false;
}

/* adapter @w a @w.lora_A b @w.lora_B [magnitude @m] axis 1 products alpha 16 [rslora] [pissa] [base HASH]: the states
 * must stand above it */
static void
read_adapter(Reader *r)
{
	Adapter a = {.line = r->line};
	int64_t axis = 0;
	int readers;

	if (!(a.weight = read_state_reference(r)) || !read_key(r, "a") ||
	    !(a.a = read_state_reference(r)) || !read_key(r, "b") ||
	    !(a.b = read_state_reference(r)) ||
	    (read_word(r, "magnitude") && !(a.magnitude = read_state_reference(r))) ||
	    !read_key(r, "axis") || !read_small(r, MAX_RANK - 1, &axis) ||
	    (readers = read_enum(r, adapter_readers_texts)) < 0 || !read_key(r, "alpha") ||
	    !read_double(r, &a.alpha))
		return;
	a.axis = (int)axis;
	a.readers = (AdapterReaders)readers;
	a.rslora = read_word(r, "rslora");
	a.pissa = read_word(r, "pissa");
	if (read_word(r, "base") && !read_int(r, &a.base))
		return;
	vec_push(r->m->arena, &r->m->adapters, a);
}

/* four_bit @w absmax @w.absmax [nested @w.nested offset @w.offset] nf4 of f32[64,32] axis 0: the states must stand
 * above it */
static void
read_four_bit(Reader *r)
{
	FourBitWeight w = {.line = r->line};
	int64_t axis = 0;
	int kind;

	if (!(w.codes = read_state_reference(r)) || !read_key(r, "absmax") ||
	    !(w.absmax = read_state_reference(r)) ||
	    (read_word(r, "nested") &&
	     (!(w.nested = read_state_reference(r)) || !read_key(r, "offset") ||
	      !(w.offset = read_state_reference(r)))) ||
	    (kind = read_enum(r, four_bit_names)) < 0 || !read_key(r, "of") ||
	    !(w.type = read_type(r)) || !read_key(r, "axis") || !read_small(r, MAX_RANK - 1, &axis))
		return;
	w.kind = (FourBit)kind;
	w.axis = (int)axis;
	vec_push(r->m->arena, &r->m->four_bit, w);
}

/* A string in quotes, in the module's arena. NULL after reporting. */
static const char *
read_string(Reader *r)
{
	read_space(r);
	const char *text = *r->at == '"' ? text_unquote(r->m->arena, &r->at) : NULL;

	if (!text)
		read_fault(r, "expected a text in quotes");
	return text;
}

/* quantized "fc.weight" s8 channel input 1 of "/fc/Gemm" [group [1,16]] [learned @fc.weight_scale]; the states must stand
 * above it */
static void
read_quantized(Reader *r)
{
	QuantizedOperand q = {.line = r->line};
	const struct {
		const char *word;
		State **state;
	} parts[] = {{"learned", &q.learned},
	             {"low", &q.low},
	             {"high", &q.high},
	             {"scale_shift", &q.scale_shift},
	             {"zero_shift", &q.zero_shift}};
	int64_t input;
	int scales;

	if (!(q.name = read_string(r)) || !read_dtype_word(r, &q.type) ||
	    (scales = read_enum(r, scale_source_names)) < 0)
		return;
	q.scales = (ScaleSource)scales;
	if ((q.scales == SCALES_BLOCK && !read_int(r, &q.block)) || !read_key(r, "input") ||
	    !read_small(r, INT32_MAX, &input) || !read_key(r, "of") || !(q.node = read_string(r)))
		return;
	q.input = (int)input;
	if (read_word(r, "group") && !read_list(r, &q.group))
		return;
	for (int i = 0; i < COUNT(parts); i++)
		if (read_word(r, parts[i].word) && !(*parts[i].state = read_state_reference(r)))
			return;
	vec_push(r->m->arena, &r->m->quantized, q);
}

/* ---- functions */
/* `rows`, or `rows 1` */
static void
read_rows_axis(Reader *r, Value *v)
{
	int64_t axis = 0;

	if (!read_word(r, "rows"))
		return;
	read_space(r);
	if (*r->at >= '0' && *r->at <= '9')
		read_small(r, MAX_RANK - 1, &axis);
	v->has_rows = axis < v->type->rank;
	v->rows_axis = v->has_rows ? (int)axis : 0;
}

/* Reads the meaning of a parameter, after the word `is`. */
static void
read_param_kind(Reader *r, Value *v)
{
	int k = read_enum(r, param_kind_texts);
	int64_t number = -1;

	if (k < 0)
		return;
	v->param = (ParamKind)k;
	if (v->param == PARAM_HYPERPARAMETER) {
		number = read_enum(r, scalar_names);
	} else if (v->param == PARAM_ARGUMENT || v->param == PARAM_SAMPLE_WEIGHT) {
		number = 0;
	} else {
		read_space(r);
		if (v->param != PARAM_LABELS || (*r->at >= '0' && *r->at <= '9'))
			read_small(r, MAX_NUMBER, &number);
	}
	v->number = (int)number;
	read_rows_axis(r, v);
}

typedef struct {
	Function *f;
	const char *body, *line_start;
	int line;
} Body;
typedef VEC(Body) Bodies;

static void
read_params(Reader *r, Function *f)
{
	while (!read_char(r, ')')) {
		const char *name;
		if ((f->params.n && !read_expect(r, ',')) || !(name = read_symbol(r, '%')) ||
		    !read_expect(r, ':'))
			goto fault;
		Type type = read_type(r);
		if (!type)
			return;
		Value *v = function_param(f, type, name);
		if (strcmp(v->name, name) != 0)
			read_fault(r, "parameter %%%s is declared twice", name);
		if (read_word(r, "is"))
			read_param_kind(r, v);
		if (read_word(r, "at"))
			read_place(r, v);
	}
	return;
fault:
	read_fault(r, "malformed parameter");
}

/* -> (f32[8,10] "logits"). The types are not kept: the function's return has the types. */
static void
read_results(Reader *r, Function *f)
{
	read_expect(r, '>');
	if (!read_char(r, '(')) {
		read_type(r);
		return;
	}
	while (!read_char(r, ')') && !read_at_line_end(r)) {
		if (!read_type(r))
			break;
		read_space(r);
		const char *name = *r->at == '"' ? text_unquote(r->m->arena, &r->at) : "";
		if (!name) {
			read_fault(r, "malformed string");
			break;
		}
		vec_push(r->m->arena, &f->result_names, name);
		if (!read_char(r, ',') && *r->at != ')')
			break;
	}
}

static void
read_role(Reader *r, Function *f)
{
	int k = read_enum(r, role_names);
	int64_t number;

	if (k >= 0)
		f->role = (Role)k;
	if (read_word(r, "binding") && read_small(r, MAX_NUMBER, &number))
		f->binding = (int)number;
	if (read_word(r, "stage") && read_small(r, MAX_NUMBER, &number))
		f->stage = (int)number;
	if (read_word(r, "mode") && (k = read_enum(r, mode_names)) >= 0)
		f->mode = (DataParallelMode)k;
}

static void
read_target(Reader *r, Function *f)
{
	read_space(r);
	f->target = *r->at == '"' ? text_unquote(r->m->arena, &r->at) : NULL;
	if (!f->target)
		read_fault(r, "expected a target's name in quotes");
}

/* Skips to the line that begins with `}`, and takes the brace. */
static void
skip_body(Reader *r)
{
	for (;;) {
		read_skip_line(r);
		read_lines(r);
		if (*r->at == '}' || *r->at == '\0')
			break;
	}
	read_expect(r, '}');
}

/* The name of a group, between the kind of a function and its name. */
static const GroupRow *
read_group(Reader *r)
{
	const char *word;

	read_space(r);
	if (*r->at == '@')
		return NULL;
	word = read_name(r);
	const GroupRow *row = word ? group_find(word) : NULL;
	if (!word)
		read_fault(r, "expected the name of a group, or @name");
	else if (!row)
		read_fault(r, "unknown group `%s`", word);
	return row;
}

static void
read_function(Reader *r, FunctionKind kind, References *references, Bodies *bodies)
{
	const GroupRow *group = kind == FUNCTION_PLAIN ? NULL : read_group(r);
	const char *name = read_symbol(r, '@');

	if (!name || module_function(r->m, name)) {
		read_fault(r, name ? "function @%s is declared twice" : "expected @name%s",
		           name ? name : "");
		skip_body(r);
		return;
	}
	Function *f = function_new(r->m, name);
	int faults = r->faults;
	f->kind = kind;
	f->group = group;
	f->line = r->line;
	if (kind == FUNCTION_GROUP && !group)
		read_fault(r, "a group needs its name before @%s", name);
	if (read_expect(r, '('))
		read_params(r, f);
	if (read_char(r, '-'))
		read_results(r, f);
	if (read_word(r, "role"))
		read_role(r, f);
	if (read_word(r, "target"))
		read_target(r, f);
	if (read_word(r, "surrogate"))
		read_reference(r, references, NULL, &f->surrogate);
	if (read_word(r, "loc"))
		f->loc = read_loc(r);
	if (!read_expect(r, '{') || r->faults != faults) {
		skip_body(r); /* a wrong header is reported once; the function's body is skipped */
		return;
	}
	Body body = {f, r->at, r->line_start, r->line};
	vec_push(r->m->arena, bodies, body);
	skip_body(r);
}

/* The state's value in the function. After the pass `memory` it lies where the state lies. */
static Value *
read_state_value(Reader *r, State *s)
{
	Value *v = function_state(r->f, s);

	v->region = s->offset >= 0 ? REGION_STATE : REGION_NONE;
	v->offset = s->offset >= 0 ? s->offset : 0;
	return v;
}

static Value *
read_operand(Reader *r, bool *ok)
{
	const char *name;

	*ok = true;
	read_space(r);
	if (*r->at == '_') {
		r->at++;
		return NULL;
	}
	if (*r->at == '@') {
		State *s = read_state_reference(r);
		*ok = s != NULL;
		return s ? read_state_value(r, s) : NULL;
	}
	name = read_value_name(r);
	Value *v = name ? strmap_get(r->values, name) : NULL;
	if (!v) {
		read_fault(r, "unknown value %%%s", name ? name : "");
		*ok = false;
	}
	return v;
}

/* Reads the list of operands. Returns their number; -1 after reporting. */
static int
read_operands(Reader *r, Value ***out)
{
	VEC(Value *) list = {0};
	bool ok;

	read_space(r);
	while (*r->at == '%' || *r->at == '@' || *r->at == '_' || list.n) {
		Value *v = read_operand(r, &ok);
		if (!ok)
			return -1;
		vec_push(r->m->arena, &list, v);
		if (!read_char(r, ','))
			break;
		read_space(r);
	}
	*out = list.at;
	return list.n;
}

typedef VEC(const char *) Names;

/* quantized (_, 1 behind 2): operand 1 is what two views make of the quantized operand number 1 of the module */
static void
read_marks(Reader *r, Node *n)
{
	int64_t number, views;

	if (!read_expect(r, '('))
		return;
	for (int i = 0; i < n->n_operands; i++) {
		views = 0;
		if (i > 0 && !read_expect(r, ','))
			return;
		read_space(r);
		if (*r->at == '_') {
			r->at++;
			continue;
		}
		if (!read_int(r, &number))
			return;
		if (number < 0 || number >= r->m->quantized.n) {
			read_fault(r, "no quantized operand %lld stands above", (long long)number);
			return;
		}
		if (read_word(r, "behind") && !read_small(r, INT32_MAX, &views))
			return;
		node_set_mark(n, i, (OperandMark){1 + (int)number, (int)views});
	}
	read_expect(r, ')');
}

static void
read_plan(Reader *r, Node *n)
{
	int k;

	if (read_word(r, "quantized"))
		read_marks(r, n);
	if (read_word(r, "phase") && (k = read_enum(r, phase_names)) >= 0)
		n->phase = (Phase)k;
	if (read_word(r, "when") && (k = read_enum(r, when_names)) >= 0)
		n->when = (When)k;
	if (read_word(r, "at")) {
		int i = 0;
		do {
			/* place i belongs to result i; only results at the end may have no place */
			if (i < n->n_results)
				read_place(r, node_result(n, i));
			i++;
		} while (read_char(r, ','));
	}
	if (read_word(r, "loc"))
		n->loc = read_loc(r);
	if (!read_at_line_end(r))
		read_fault(r, "unexpected text after the node");
}

static void
read_node(Reader *r)
{
	Names names = {0};
	VEC(Type) types = {0};
	Value **operands = NULL;
	OpKind op;

	read_space(r);
	while (*r->at == '%') {
		const char *name = read_value_name(r);
		if (!name)
			return;
		vec_push(r->m->arena, &names, name);
		if (!read_char(r, ','))
			break;
		read_space(r);
	}
	if (names.n && !read_expect(r, '='))
		return;
	const char *word = read_name(r);
	if (!word || !op_find(word, &op)) {
		read_fault(r, "unknown op `%s`", word ? word : "");
		return;
	}
	int n = read_operands(r, &operands);
	void *attr = arena_alloc(r->m->arena, op_table[op]->attr_size);
	if (n < 0 || !read_attrs(r, op_table[op], attr))
		return;
	if (read_char(r, ':')) {
		do {
			Type t = read_type(r);
			if (!t)
				return;
			vec_push(r->m->arena, &types, t);
		} while (read_char(r, ','));
	}
	if (types.n != names.n) {
		read_fault(r, "%d results, %d types", names.n, types.n);
		return;
	}
	Node *node = node_insert(r->f, NULL, op, n, operands, attr, types.n, types.at, NULL);
	node->line = r->line;
	for (int i = 0; i < names.n; i++) {
		if (strmap_get(r->values, names.at[i]))
			read_fault(r, "%%%s is defined twice", names.at[i]);
		strmap_put(r->values, names.at[i], node_result(node, i));
	}
	read_plan(r, node);
}

static void
read_body(Reader *r, const Body *body)
{
	r->f = body->f;
	r->at = body->body;
	r->line_start = body->line_start;
	r->line = body->line;
	r->values = strmap_new(r->m->arena);
	for (int i = 0; i < r->f->params.n; i++) {
		const char *name = r->f->params.at[i]->name;
		bool digits = name[0] && !name[strspn(name, "0123456789")];
		strmap_put(r->values, digits ? arena_printf(r->m->arena, "\"%s", name) : name,
		           r->f->params.at[i]);
	}
	for (read_lines(r); *r->at && *r->at != '}'; read_lines(r)) {
		read_node(r);
		read_skip_line(r);
	}
	if (!function_return(
		    r->f)) /* the text of a function without results may leave the return out */
		node_insert(r->f, NULL, OP_return, 0, NULL, NULL, 0, NULL, NULL)->line = r->line;
}

static bool
read_item(Reader *r, References *references, Bodies *bodies)
{
	if (read_word(r, "state"))
		read_state(r, references);
	else if (read_word(r, "adapter"))
		read_adapter(r);
	else if (read_word(r, "four_bit"))
		read_four_bit(r);
	else if (read_word(r, "quantized"))
		read_quantized(r);
	else if (read_word(r, "func"))
		read_function(r, FUNCTION_PLAIN, references, bodies);
	else if (read_word(r, "fused"))
		read_function(r, FUNCTION_FUSED, references, bodies);
	else if (read_word(r, "group"))
		read_function(r, FUNCTION_GROUP, references, bodies);
	else if (read_word(r, "kernel"))
		read_kernel(r);
	else if (read_word(r, "program"))
		read_program(r);
	else
		return false;
	if (!read_at_line_end(r))
		read_skip_line(r);
	return true;
}

static bool
read_header(Reader *r)
{
	Module *m = r->m;
	int mode, stage;

	read_lines(r);
	if (!read_word(r, "module"))
		return false;
	const char *name = read_symbol(r, '@');
	if (name)
		m->name = name;
	if (read_word(r, "targets"))
		read_int(r, &m->targets);
	while (read_word(r, "mode") && (mode = read_enum(r, mode_names)) >= 0)
		m->modes |= mode > 0 ? 1u << mode : 0;
	if (read_word(r, "regions")) {
		if (!read_word(r, "state") || !read_int(r, &m->state_bytes) ||
		    !read_word(r, "workspace") || !read_int(r, &m->workspace_bytes) ||
		    !read_word(r, "io") || !read_int(r, &m->io_bytes))
			read_fault(r, "malformed regions");
	}
	if (read_word(r, "programs") && (stage = read_enum(r, stage_names)) >= 0) {
		m->stage = (Stage)stage;
		if (m->stage <= STAGE_MEMORY)
			read_fault(r, "a module of stage `%s` has no programs", stage_names[stage]);
	}
	read_expect(r, '{');
	return true;
}

Module *
module_parse(const char *text, const char *file, const StrMap *data, Diag *diag)
{
	Module *m = module_new("main");
	Reader r = {.file = file,
	            .at = text,
	            .line_start = text,
	            .line = 1,
	            .diag = diag,
	            .m = m,
	            .data = data};
	Bodies bodies = {0};
	References references = {0};
	m->file = arena_strdup(m->arena, file);
	bool wrapped = read_header(&r);

	for (read_lines(&r); *r.at && *r.at != '}'; read_lines(&r)) {
		if (!read_item(&r, &references, &bodies)) {
			read_fault(
				&r,
				"expected state, adapter, four_bit, quantized, func, fused, kernel or program");
			read_skip_line(&r);
		}
	}
	if (wrapped)
		read_expect(&r, '}');
	read_lines(&r);
	if (*r.at)
		read_fault(&r, "unexpected text after the module");
	resolve_references(&r, &references);
	for (int i = 0; i < bodies.n; i++)
		read_body(&r, &bodies.at[i]);
	if (r.faults) {
		module_free(m);
		return NULL;
	}
	return m;
}

/* The map's entries are SafeTensor, with their data in memory. */
Status
module_read_data(Arena *arena, const char *path, StrMap **data)
{
	SafeTensors st;

	*data = strmap_new(arena);
	if (access(path, F_OK) != 0)
		return NULL;
	RETURN_IF_ERROR(safetensors_open(arena, path, EXIT_INVALID, &st));
	for (int i = 0; i < st.n_tensors; i++) {
		SafeTensor *t = &st.tensors[i];
		void *bytes = arena_alloc(arena, (size_t)t->n_bytes);
		Status status = file_pread(st.fd, path, bytes, t->n_bytes, t->offset);
		if (status) {
			safetensors_close(&st);
			return status;
		}
		t->data = bytes;
		strmap_put(*data, t->name, t);
	}
	safetensors_close(&st);
	return NULL;
}

/* Prints modules as text (.gir). The text is deterministic: values are numbered in order of
 * appearance. docs/ir.md has the grammar; text_parse.c reads the text back. */
#include "ir/ir.h"
#include "ir/programs/programs.h"
#include "ir/groups/groups.h"
#include "ir/text.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const param_kind_texts[] = {"argument",       "input",   "labels", "sample_weight",
                                        "hyperparameter", "operand", "result", "cotangent",
                                        "hint",           NULL};
const char *const scale_source_names[] = {"tensor",  "channel", "block", "running",
                                          "dynamic", "token",   NULL};
const char *const adapter_readers_texts[] = {"products", "tables", "both", NULL};
const char *const region_texts[] = {"none", "state", "workspace", "io",
                                    "host", "param", "result",    NULL};

enum { INLINE_ELEMENTS = 16 };

typedef struct {
	Text *out;
	const Module *m;
	const PrintOptions *options;
	const Function *f;
	const int *numbers; /* by value id; NULL: ids are printed */
	Arena *arena;
} Printer;

static bool
plain_name(const char *s)
{
	if (!*s || isdigit((unsigned char)*s))
		return false;
	for (; *s; s++)
		if (!isalnum((unsigned char)*s) && !strchr("_.$-", *s))
			return false;
	return true;
}

void
symbol_print(Text *out, char sigil, const char *name)
{
	text_printf(out, "%c", sigil);
	if (plain_name(name))
		text_add(out, name);
	else
		text_add_quoted(out, name);
}

static void
print_value(Printer *p, const Value *v)
{
	if (!v)
		text_add(p->out, "_");
	else if (v->kind == VALUE_STATE)
		symbol_print(p->out, '@', v->state->name);
	else if (v->kind == VALUE_PARAM)
		symbol_print(p->out, '%', v->name);
	else
		text_printf(p->out, "%%%d",
		            p->numbers && v->function == p->f ? p->numbers[v->id] : (int)v->id);
}

static void
print_loc_inner(Text *out, Loc loc)
{
	if (loc->n_parts == 0) {
		text_add_quoted(out, loc->text);
		return;
	}
	text_printf(out, "%s(", loc->text);
	for (int i = 0; i < loc->n_parts; i++) {
		text_add(out, i ? ", " : "");
		print_loc_inner(out, loc->parts[i]);
	}
	if (loc->more)
		text_printf(out, ", %d more", loc->more);
	text_add(out, ")");
}

void
loc_text(Text *out, Loc loc)
{
	if (loc)
		print_loc_inner(out, loc);
}

void
loc_print(Text *out, Loc loc, const PrintOptions *options)
{
	if (!loc || (options && options->no_locations))
		return;
	text_add(out, " loc ");
	print_loc_inner(out, loc);
}

/* Prints a float of 16 bits or fewer with the fewest digits that read back as the same value of
 * dtype d. Integers below a million are written out, as text_add_float does. A NaN is printed
 * without its sign and payload. */
static void
print_narrow_float(Text *out, DType d, double value)
{
	char buffer[40];
	int digits = 0;

	if (value == trunc(value) && fabs(value) < 1e6) {
		text_printf(out, "%.1f", value);
		return;
	}
	do
		snprintf(buffer, sizeof(buffer), "%.*g", ++digits, value);
	while (digits < 9 && dtype_round(d, strtod(buffer, NULL)) != value);
	text_add(out, isnan(value) ? "nan" : buffer);
}

static void
print_element(Text *out, const Tensor *t, int64_t i)
{
	DType d = t->type->dtype;

	if (d == F64)
		text_add_double(out, tensor_float(t, i));
	else if (d == F32)
		text_add_float(out, (float)tensor_float(t, i));
	else if (dtype_is_float(d))
		print_narrow_float(out, d, tensor_float(t, i));
	else if (d == BOOL)
		text_add(out, tensor_int(t, i) ? "true" : "false");
	else if (d == U64)
		text_printf(out, "%llu", (unsigned long long)tensor_int(t, i));
	else
		text_printf(out, "%lld", (long long)tensor_int(t, i));
}

/* f32[2] [1.5, 2.5], or f32[300] @data[0x...] */
static void
print_tensor(Text *out, const Tensor *t)
{
	type_print(out, t->type);
	if (t->type->n > INLINE_ELEMENTS) {
		text_printf(out, " @data[0x%016llx]", (unsigned long long)t->hash);
		return;
	}
	text_add(out, " [");
	for (int64_t i = 0; i < t->type->n; i++) {
		text_add(out, i ? ", " : "");
		print_element(out, t, i);
	}
	text_add(out, "]");
}

static void
print_ints(Text *out, const Ints *list)
{
	text_add(out, "[");
	for (int i = 0; i < list->n; i++)
		text_printf(out, "%s%lld", i ? "," : "", (long long)list->at[i]);
	text_add(out, "]");
}

static bool
field_is_default(const Field *f, const char *at)
{
	switch (f->kind) {
	case FIELD_INT: return *(const int64_t *)at == 0;
	case FIELD_FLOAT: return *(const double *)at == 0;
	case FIELD_BOOL: return !*(const bool *)at;
	case FIELD_DTYPE_IF_ANY:
	case FIELD_ENUM: return *(const int *)at == 0;
	case FIELD_DTYPE: return *(const DType *)at == 0;
	case FIELD_INTS: return ((const Ints *)at)->n == 0;
	default: return *(void *const *)at == NULL;
	}
}

static void
print_field(Text *out, const Field *f, const char *at)
{
	switch (f->kind) {
	case FIELD_INT: text_printf(out, "%lld", (long long)*(const int64_t *)at); break;
	case FIELD_FLOAT: text_add_double(out, *(const double *)at); break;
	case FIELD_BOOL: text_add(out, *(const bool *)at ? "true" : "false"); break;
	case FIELD_ENUM: text_add(out, f->names[*(const int *)at]); break;
	case FIELD_DTYPE: text_add(out, dtype_info[*(const DType *)at].name); break;
	case FIELD_DTYPE_IF_ANY: text_add(out, dtype_info[*(const int *)at - 1].name); break;
	case FIELD_INTS: print_ints(out, (const Ints *)at); break;
	case FIELD_TENSOR: print_tensor(out, *(const Tensor *const *)at); break;
	case FIELD_FUNC: symbol_print(out, '@', (*(Function *const *)at)->name); break;
	case FIELD_STATE: symbol_print(out, '@', (*(State *const *)at)->name); break;
	case FIELD_KERNEL: symbol_print(out, '@', (*(Kernel *const *)at)->name); break;
	}
}

static void
print_attrs(Text *out, const OpRow *row, const void *attr)
{
	bool any = false;

	for (const Field *f = row->fields; f && f->name; f++) {
		const char *at = (const char *)attr + f->offset;
		if (f->optional && field_is_default(f, at))
			continue;
		text_printf(out, "%s%s = ", any ? ", " : " {", f->name);
		print_field(out, f, at);
		any = true;
	}
	text_add(out, any ? "}" : "");
}

static void
print_types(Text *out, const Node *n)
{
	for (int i = 0; i < n->n_results; i++) {
		text_add(out, i ? ", " : " : ");
		type_print(out, node_result(n, i)->type);
	}
}

/* Prints what the passes `schedule` and `memory` have decided about the node: its phase, when it
 * runs, and where its results lie. */
static void
print_plan(Text *out, const Node *n)
{
	if (n->phase)
		text_printf(out, " phase %s", phase_names[n->phase]);
	if (n->when)
		text_printf(out, " when %s", when_names[n->when]);
	for (int i = 0; i < n->n_results; i++) {
		const Value *v = node_result(n, i);
		if (v->region)
			text_printf(out, "%s %s+%lld", i ? "," : " at", region_texts[v->region],
			            (long long)v->offset);
	}
}

/* quantized (_, 1 behind 2): operand 1 is what two views make of the quantized operand number 1 of the module */
static void
print_marks(Text *out, const Node *n)
{
	bool any = false;

	for (int i = 0; n->function->marks && i < n->n_operands; i++)
		any |= node_mark(n, i).of > 0;
	for (int i = 0; i < n->n_operands && any; i++) {
		text_add(out, i ? ", " : " quantized (");
		if (node_mark(n, i).of)
			text_printf(out, "%d", node_mark(n, i).of - 1);
		else
			text_add(out, "_");
		if (node_mark(n, i).views)
			text_printf(out, " behind %d", node_mark(n, i).views);
	}
	text_add(out, any ? ")" : "");
}

static void
print_node(Printer *p, const Node *n)
{
	const OpRow *row = op_row(n);

	for (int i = 0; i < n->n_results; i++) {
		text_add(p->out, i ? ", " : "");
		print_value(p, node_result(n, i));
	}
	text_printf(p->out, "%s%s", n->n_results ? " = " : "", row->name);
	for (int i = 0; i < n->n_operands; i++) {
		text_add(p->out, i ? ", " : " ");
		print_value(p, node_operand(n, i));
	}
	print_attrs(p->out, row, n->attr);
	print_types(p->out, n);
	print_marks(p->out, n);
	print_plan(p->out, n);
	loc_print(p->out, n->loc, p->options);
}

void
node_print(Text *out, const Node *n, const int *numbers)
{
	Printer p = {.out = out, .f = n->function, .numbers = numbers};

	print_node(&p, n);
}

/* is input 0, is labels, is hyperparameter lr */
static void
print_param_kind(Text *out, const Value *v)
{
	if (v->param == PARAM_ARGUMENT)
		return;
	text_printf(out, " is %s", param_kind_texts[v->param]);
	if (v->param == PARAM_HYPERPARAMETER)
		text_printf(out, " %s", scalar_names[v->number]);
	else if (v->param != PARAM_SAMPLE_WEIGHT && v->number >= 0)
		text_printf(out, " %d", v->number);
	text_add(out, v->has_rows ? " rows" : "");
	if (v->has_rows && v->rows_axis)
		text_printf(out, " %d", v->rows_axis);
}

static void
print_param(Printer *p, const Value *v)
{
	print_value(p, v);
	text_add(p->out, ": ");
	type_print(p->out, v->type);
	print_param_kind(p->out, v);
	if (v->region)
		text_printf(p->out, " at %s+%lld", region_texts[v->region], (long long)v->offset);
}

int *
function_numbers(Arena *arena, const Function *f)
{
	int *numbers = NEW_ARRAY(arena, int, f->next_value_id), next = 0;

	for_each_node(f, n)
		for (int i = 0; i < n->n_results; i++)
			numbers[node_result(n, i)->id] = next++;
	return numbers;
}

static void
print_role(Text *out, const Function *f)
{
	if (f->role == ROLE_HELPER)
		return;
	text_printf(out, " role %s", role_names[f->role]);
	if (f->binding)
		text_printf(out, " binding %d", f->binding);
	if (f->stage)
		text_printf(out, " stage %d", f->stage);
	if (f->mode)
		text_printf(out, " mode %s", mode_names[f->mode]);
}

static const char *const function_kind_words[] = {"func", "group", "fused"};

static void
print_signature(Printer *p, const Function *f)
{
	const Node *ret = function_return(f);

	text_printf(p->out, "  %s ", function_kind_words[f->kind]);
	if (f->group)
		text_printf(p->out, "%s ", f->group->name);
	symbol_print(p->out, '@', f->name);
	text_add(p->out, "(");
	for (int i = 0; i < f->params.n; i++) {
		text_add(p->out, i ? ", " : "");
		print_param(p, f->params.at[i]);
	}
	text_add(p->out, ")");
	if (ret && ret->n_operands) {
		text_add(p->out, " -> (");
		for (int i = 0; i < ret->n_operands; i++) {
			text_add(p->out, i ? ", " : "");
			type_print(p->out, node_operand(ret, i)->type);
			if (i < f->result_names.n && *f->result_names.at[i]) {
				text_add(p->out, " ");
				text_add_quoted(p->out, f->result_names.at[i]);
			}
		}
		text_add(p->out, ")");
	}
	print_role(p->out, f);
	if (f->target) {
		text_add(p->out, " target ");
		text_add_quoted(p->out, f->target);
	}
	if (f->surrogate) {
		text_add(p->out, " surrogate ");
		symbol_print(p->out, '@', f->surrogate->name);
	}
	loc_print(p->out, f->loc, p->options);
	text_add(p->out, " {\n");
}

static void
print_function(Printer *p, const Function *f)
{
	p->f = f;
	p->numbers = function_numbers(p->arena, f);
	print_signature(p, f);
	for_each_node(f, n) {
		if (n->op == OP_return && n->n_operands == 0)
			continue;
		text_add(p->out, "    ");
		print_node(p, n);
		text_add(p->out, "\n");
	}
	text_add(p->out, "  }\n");
}

static void
print_init(Text *out, const State *s)
{
	text_printf(out, " init %s", init_names[s->init]);
	if (s->init == INIT_DATA && s->data) {
		text_add(out, " ");
		print_tensor(out, s->data);
	}
	if (s->init == INIT_NORMAL || s->init == INIT_UNIFORM) {
		text_add(out, "(");
		text_add_double(out, s->init_a);
		text_add(out, ", ");
		text_add_double(out, s->init_b);
		text_add(out, ")");
	}
	text_add(out, s->init_given ? " given" : "");
}

static void
print_state(Printer *p, const State *s)
{
	Text *out = p->out;

	text_add(out, "  state ");
	symbol_print(out, '@', s->name);
	text_add(out, " : ");
	type_print(out, s->type);
	text_printf(out, " %s %s", state_kind_names[s->kind], lifetime_names[s->lifetime]);
	text_add(out, s->trainable ? " trainable" : "");
	text_add(out, s->decay ? " decay" : "");
	if (s->lr_scale != 1) {
		text_add(out, " lr_scale ");
		text_add_double(out, s->lr_scale);
	}
	print_init(out, s);
	if (s->of) {
		text_add(out, " of ");
		symbol_print(out, '@', s->of->name);
	}
	if (s->number)
		text_printf(out, " number %d", s->number);
	if (s->unit) {
		text_add(out, " in ");
		symbol_print(out, '@', s->unit->name);
		text_printf(out, "+%lld", (long long)s->unit_offset);
	}
	if (s->offset >= 0)
		text_printf(out, " at %lld", (long long)s->offset);
	if (s->sharded)
		text_printf(out, " sharded %s", mode_names[s->sharded]);
	if (s->block)
		text_printf(out, " by %lld", (long long)s->block);
	if (s->offloaded)
		text_add(out, " offloaded");
	if (s->path) {
		text_add(out, " path ");
		text_add_quoted(out, s->path);
	}
	if (s->groups) {
		text_add(out, " groups ");
		text_add_quoted(out, s->groups);
	}
	if (s->why) {
		text_add(out, " why ");
		text_add_quoted(out, s->why);
	}
	loc_print(out, s->loc, p->options);
	text_add(out, "\n");
}

/* Prints a word and the name of a state of an adapter or of a 4-bit weight: " a @w.lora_A" */
static void
print_part(Text *out, const char *word, const State *s)
{
	text_printf(out, " %s ", word);
	symbol_print(out, '@', s->name);
}

static void
print_adapter(Text *out, const Adapter *a)
{
	text_add(out, " ");
	print_part(out, "adapter", a->weight);
	print_part(out, "a", a->a);
	print_part(out, "b", a->b);
	if (a->magnitude)
		print_part(out, "magnitude", a->magnitude);
	text_printf(out, " axis %d %s alpha ", a->axis, adapter_readers_texts[a->readers]);
	text_add_double(out, a->alpha);
	text_add(out, a->rslora ? " rslora" : "");
	text_add(out, a->pissa ? " pissa" : "");
	if (a->base)
		text_printf(out, " base %lld", (long long)a->base);
	text_add(out, "\n");
}

static void
print_four_bit(Text *out, const FourBitWeight *w)
{
	text_add(out, " ");
	print_part(out, "four_bit", w->codes);
	print_part(out, "absmax", w->absmax);
	if (w->nested) {
		print_part(out, "nested", w->nested);
		print_part(out, "offset", w->offset);
	}
	text_printf(out, " %s of ", four_bit_names[w->kind]);
	type_print(out, w->type);
	text_printf(out, " axis %d\n", w->axis);
}

static void
print_part_if(Text *out, const char *word, const State *s)
{
	if (s)
		print_part(out, word, s);
}

static void
print_quantized(Text *out, const QuantizedOperand *q)
{
	text_add(out, "  quantized ");
	text_add_quoted(out, q->name);
	text_printf(out, " %s %s", dtype_info[q->type].name, scale_source_names[q->scales]);
	if (q->scales == SCALES_BLOCK)
		text_printf(out, " %lld", (long long)q->block);
	text_printf(out, " input %d of ", q->input);
	text_add_quoted(out, q->node);
	for (int i = 0; i < q->group.n; i++)
		text_printf(out, "%s%lld%s", i ? "," : " group [", (long long)q->group.at[i],
		            i + 1 < q->group.n ? "" : "]");
	print_part_if(out, "learned", q->learned);
	print_part_if(out, "low", q->low);
	print_part_if(out, "high", q->high);
	print_part_if(out, "scale_shift", q->scale_shift);
	print_part_if(out, "zero_shift", q->zero_shift);
	text_add(out, "\n");
}

void
module_print(Text *out, const Module *m, const PrintOptions *options)
{
	Printer p = {.out = out, .m = m, .options = options, .arena = arena_new()};

	text_add(out, "module ");
	symbol_print(out, '@', m->name);
	if (m->targets)
		text_printf(out, " targets %lld", (long long)m->targets);
	for (int mode = MODE_DDP + 1; mode < N_MODES; mode++)
		if (m->modes >> mode & 1)
			text_printf(out, " mode %s", mode_names[mode]);
	if (m->state_bytes || m->workspace_bytes || m->io_bytes)
		text_printf(out, " regions state %lld workspace %lld io %lld",
		            (long long)m->state_bytes, (long long)m->workspace_bytes,
		            (long long)m->io_bytes);
	if (m->stage)
		text_printf(out, " programs %s", stage_names[m->stage]);
	text_add(out, " {\n");
	for (int i = 0; i < m->states.n; i++)
		print_state(&p, m->states.at[i]);
	for (int i = 0; i < m->adapters.n; i++)
		print_adapter(out, &m->adapters.at[i]);
	for (int i = 0; i < m->four_bit.n; i++)
		print_four_bit(out, &m->four_bit.at[i]);
	for (int i = 0; i < m->quantized.n; i++)
		print_quantized(out, &m->quantized.at[i]);
	for (int i = 0; i < m->kernels.n; i++)
		kernel_print(out, m->kernels.at[i], options);
	for_each_function(m, f)
		print_function(&p, f);
	for_each_program(m, program)
		program_print(out, m, program, options);
	text_add(out, "}\n");
	arena_free(p.arena);
}

/* ---- tensors that are too large for the text */
static void
data_add(ModuleData *d, Arena *arena, IntMap *seen, const Tensor *t)
{
	if (!t || t->type->n <= INLINE_ELEMENTS || intmap_get(seen, t->hash, NULL))
		return;
	intmap_put(seen, t->hash, 1);
	SafeTensor s = {.name = arena_printf(arena, "0x%016llx", (unsigned long long)t->hash),
	                .dtype = t->type->dtype,
	                .rank = t->type->rank,
	                .n_bytes = type_bytes(t->type),
	                .data = t->data};
	memcpy(s.dims, t->type->dims, sizeof(s.dims));
	vec_push(arena, d, s);
}

ModuleData
module_data(const Module *m, Arena *arena)
{
	ModuleData d = {0};
	IntMap *seen = intmap_new(arena);

	for (int i = 0; i < m->states.n; i++)
		data_add(&d, arena, seen, m->states.at[i]->data);
	for_each_function(m, f)
		for_each_node(f, n)
			for (const Field *field = op_row(n)->fields; field && field->name; field++)
				if (field->kind == FIELD_TENSOR)
					data_add(&d, arena, seen,
					         *(Tensor **)((char *)n->attr + field->offset));
	return d;
}

Status
module_data_write(const ModuleData *data, const char *path)
{
	return data->n ? safetensors_write(path, data->at, data->n) : NULL;
}

Status
module_write_data(const Module *m, const char *path)
{
	Arena *arena = arena_new();
	ModuleData data = module_data(m, arena);
	Status status = module_data_write(&data, path);

	arena_free(arena);
	return status;
}

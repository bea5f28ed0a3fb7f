/* Writes docs/ops.md from the rows of the op table: `make docs`. tests/test_docs.py compares the result. Factors and FLOPs
 * are those of a row's first sample with elements. */
#include "tests/unit/ir/sample_case.h"

static const char *const precision_words[N_PRECISIONS] = {
	[PRECISION_LOW] = "low: 16 bits or less will do for the operands, sums are kept in f32",
	[PRECISION_HIGH] = "high: f32 or more",
	[PRECISION_FOLLOW] = "follows its operands",
	[PRECISION_FIXED] = "fixed: its types are its meaning",
};
static const char *const fuse_words[] = {
	[FUSE_ELEMENTWISE] = "elementwise",
	[FUSE_VIEW] = "a view",
	[FUSE_INDEX] = "computed where it is read",
	[FUSE_REDUCE] = "a reduction",
	[FUSE_ROOT] = "ends a kernel, written in parts",
	[FUSE_OPAQUE] = "a kernel of its own",
	[FUSE_CONTROL] = "that of its functions",
	[FUSE_NONE] = "no code",
};
static const char *const field_words[] = {
	[FIELD_INT] = "integer",   [FIELD_FLOAT] = "number",  [FIELD_BOOL] = "bool",
	[FIELD_ENUM] = "word",     [FIELD_DTYPE] = "dtype",   [FIELD_INTS] = "integers",
	[FIELD_TENSOR] = "tensor", [FIELD_FUNC] = "function", [FIELD_STATE] = "state",
	[FIELD_KERNEL] = "kernel",
};

static void
print_line(const char *what, const Text *text)
{
	if (text->n)
		printf("- %s: %s\n", what, text->at);
}

static void
add_item(Text *t, const char *item)
{
	text_printf(t, "%s%s", t->n ? ", " : "", item);
}

static void
print_ports(const OpRow *row)
{
	static const char *const kinds[] = {"", " (optional)", " (any number)"};
	Text operands = {0}, results = {0}, attributes = {0};

	for (int i = 0; i < MAX_OPERANDS && row->operands[i].name; i++) {
		add_item(&operands, row->operands[i].name);
		text_add(&operands, kinds[row->operands[i].kind]);
	}
	for (int i = 0; i < COUNT(row->results) && row->results[i]; i++)
		add_item(&results, row->results[i]);
	for (const Field *f = row->fields; f && f->name; f++) {
		add_item(&attributes, f->name);
		text_printf(&attributes, " (%s", field_words[f->kind]);
		for (int i = 0; f->kind == FIELD_ENUM && f->names[i]; i++)
			text_printf(&attributes, "%s %s", i ? "" : ":", f->names[i]);
		text_add(&attributes, f->optional ? ", optional)" : ")");
	}
	print_line("operands", &operands);
	print_line("attributes", &attributes);
	print_line("results", &results);
	text_free(&operands);
	text_free(&results);
	text_free(&attributes);
}

/* Prints the classes of dtypes that inference accepts in place of the sample's own dtype. */
static void
print_dtypes(const Case *c, const Node *n)
{
	static const DType tried[] = {F32, S32, U32, BOOL};
	static const char *const classes[] = {"floats", "signed integers", "unsigned integers",
	                                      "bool"};
	Text text = {0};
	Type operands[8], results[8];
	int own = 0, count;

	for (int i = n->n_operands - 1; i >= 0; i--)
		if (dtype_is_float(node_operand(n, i)->type->dtype))
			own = i;
	for (int d = 0; n->n_operands && d < COUNT(tried); d++) {
		DType data = node_operand(n, own)->type->dtype;
		for (int i = 0; i < n->n_operands; i++) {
			Type t = node_operand(n, i)->type;
			operands[i] = t->dtype == data ? type_with_dtype(c->m, t, tried[d]) : t;
		}
		if (!op_infer(c->m, c->arena, n->op, n->attr, n->n_operands, operands, &count,
		              results, 8))
			add_item(&text, classes[d]);
	}
	print_line("dtypes", &text);
	text_free(&text);
}

/* ---- factors, as letters at the axes to which they belong */
static void
add_axes(Text *t, const Partition *p, Type type, bool result, int number)
{
	text_add(t, "[");
	for (int axis = 0; axis < type->rank; axis++) {
		char letter = '.';
		for (int i = 0; i < p->factors.n; i++) {
			Share s = result ? p->factors.at[i]->result[number]
			                 : p->factors.at[i]->operand[number];
			bool cut = s.kind == SHARE_CUT || (result && s.kind == SHARE_SHIFTED);
			if (cut && s.axis == axis)
				letter = (char)('a' + i);
		}
		text_printf(t, "%s%c", axis ? "," : "", letter);
	}
	text_add(t, "]");
}

static void
add_notes(Text *t, const Partition *p)
{
	const Node *n = p->node;

	for (int i = 0; i < p->factors.n; i++) {
		const Factor *f = p->factors.at[i];
		if (f->combine != COMBINE_JOIN)
			text_printf(t, "; %s over %c", combine_names[f->combine], 'a' + i);
		for (int k = 0; k < n->n_operands; k++) {
			if (f->operand[k].kind == SHARE_SHIFTED)
				text_printf(t, "; operand %d less the part's place in %c", k,
				            'a' + i);
			if (f->operand[k].kind == SHARE_FIRST)
				text_printf(t, "; operand %d in the first part of %c", k, 'a' + i);
		}
		for (int k = 0; k < n->n_results; k++)
			if (f->result[k].kind == SHARE_SHIFTED)
				text_printf(t, "; result plus the part's place in %c", 'a' + i);
	}
}

static void
print_partition(Case *c, const Node *n)
{
	Partition p = node_partition(c->arena, n);
	Text text = {0};

	for (int i = 0; i < n->n_operands; i++) {
		text_add(&text, i ? ", " : "");
		add_axes(&text, &p, node_operand(n, i)->type, false, i);
	}
	text_add(&text, n->n_operands ? " -> " : "");
	for (int i = 0; i < n->n_results; i++) {
		text_add(&text, i ? ", " : "");
		add_axes(&text, &p, node_result(n, i)->type, true, i);
	}
	add_notes(&text, &p);
	printf("  - `%s`\n", text.at);
	text_free(&text);
}

static void
print_scales(const Node *n)
{
	const OpRow *row = op_row(n);
	Text scales = {0}, adapters = {0};

	for (int i = 0; i < n->n_operands; i++) {
		if (row->adapts & OPERAND(i))
			add_item(&adapters, row->operands[i].name);
		if (!(row->quantizes & OPERAND(i)))
			continue;
		add_item(&scales, row->operands[i].name);
		int axis = row->channel(n, i);
		if (axis >= 0)
			text_printf(&scales, " (one each along axis %d)", axis);
		else
			text_add(&scales, " (one)");
	}
	print_line("scales of few bits", &scales);
	print_line("adapters join", &adapters);
	text_free(&scales);
	text_free(&adapters);
}

static void
print_facts_of_sample(OpKind op, const Sample *s)
{
	Case c;

	case_open(&c, op, s);
	const Node *n = c.f->first;
	Cost cost = node_cost(n);
	print_dtypes(&c, n);
	print_scales(n);
	printf("- parts: %s\n", op_row(n)->partition.doc);
	print_partition(&c, n);
	printf("- cost of `%s%s%s%s`: %lld FLOPs, %lld bytes\n", op_row(n)->name,
	       *s->attrs ? " " : "", s->attrs,
	       *s->operands ? arena_printf(c.arena, " %s", s->operands) : "", (long long)cost.flops,
	       (long long)cost.bytes);
	case_close(&c);
}

static bool
has_elements(OpKind op, const Sample *s)
{
	Case c;

	case_open(&c, op, s);
	bool has = node_result(c.f->first, 0)->type->n > 0;
	case_close(&c);
	return has;
}

static void
print_row(OpKind op)
{
	const OpRow *row = op_table[op];
	const Sample *s = row->samples;

	printf("\n## %s\n\n%s.\n\n", row->name, row->doc);
	print_ports(row);
	printf("- code: %s\n", fuse_words[row->fuse]);
	printf("- precision: %s\n", precision_words[row->precision]);
	if (strcmp(s->attrs, "text") == 0) {
		printf("- parts: %s\n", row->partition.doc);
		return;
	}
	while (!has_elements(op, s))
		s++;
	print_facts_of_sample(op, s);
}

int
main(void)
{
	printf("<!-- Written by `make docs` from the rows of ir/ops/; do not edit. -->\n"
	       "# The ops of the tensor IR\n\n"
	       "One section an op, in the order of `ir/ops/op_list.def`. `ir/op.h` explains the columns.\n\n"
	       "**Parts** says along which axes a node can be computed in parts. Below it, for one sample, axes with\n"
	       "the same letter are cut together, `.` is an axis that is not cut. Parts' results are joined along\n"
	       "their own letters and combined over the others: `[a,c], [c,b] -> [a,b]; sum over c` is a product.\n\n"
	       "**FLOPs** are arithmetic operations on elements: a function counts 1, comparisons, choices and\n"
	       "conversions nothing. **Bytes** are each operand and result once.\n");
	for (int op = 0; op < N_OPS; op++)
		print_row((OpKind)op);
	return 0;
}

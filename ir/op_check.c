/* Checks that the rows of the op table are complete. The messages are for the author of a new
 * op, so each message names the row and the column. */
#include "ir/ir.h"

#include <string.h>

const char *const precision_names[N_PRECISIONS] = {NULL, "low", "high", "follow", "fixed"};

typedef struct {
	RowCheck check;
	const OpRow *row;
	int n_operands;
	bool variadic;
} OpCheck;

void
row_error(RowCheck *c, const char *column, const char *fmt, ...)
{
	va_list args;
	char text[200];

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	diag_error(c->diag, EXIT_UNSUPPORTED, "%s \"%s\": column %s %s", c->table,
	           c->name ? c->name : "?", column, text);
	c->sound = false;
}

void
row_needs(RowCheck *c, const char *column, bool there)
{
	if (!there)
		row_error(c, column, "is missing");
}

/* The class in column `fuse` decides which column makes code. The columns for other classes are
 * never read, so they must be empty. */
static void
check_code(OpCheck *c)
{
	const OpRow *r = c->row;
	/* an elementwise op may have `element` instead of `scalar`, if it needs the index */
	int by_index = r->element && !r->scalar && r->fuse == FUSE_ELEMENTWISE ? FUSE_ELEMENTWISE
	                                                                       : FUSE_INDEX;
	const struct {
		const char *column;
		bool there;
		int class;
	} columns[] = {
		{"scalar", r->scalar != NULL, by_index == FUSE_INDEX ? FUSE_ELEMENTWISE : -1},
		{"map", r->map != NULL, FUSE_VIEW},
		{"element", r->element != NULL, by_index},
		{"parts", r->parts != NULL, FUSE_ROOT},
		{"bias", r->bias != NULL, -1},
	};

	for (int i = 0; i < COUNT(columns); i++) {
		if (columns[i].class == (int)r->fuse)
			row_needs(&c->check, columns[i].column, columns[i].there);
		else if (columns[i].there && (columns[i].class >= 0 || r->fuse != FUSE_OPAQUE))
			row_error(&c->check, columns[i].column,
			          "is not read for the class in fuse");
	}
}

static void
check_operand_set(OpCheck *c, const char *column, unsigned set)
{
	if (!c->variadic && set >> c->n_operands)
		row_error(&c->check, column, "names an operand beyond the %d of the op",
		          c->n_operands);
}

static void
check_facts(OpCheck *c)
{
	const OpRow *r = c->row;

	row_needs(&c->check, "flops", r->flops != NULL);
	row_needs(&c->check, "precision", r->precision != 0);
	if (r->precision >= N_PRECISIONS)
		row_error(&c->check, "precision", "is %d, no class", (int)r->precision);
	for (const Field *f = r->fields; f && f->name; f++)
		if (strcmp(f->name, "allow_tf32") == 0)
			row_needs(&c->check, "allow_tf32", r->allow_tf32 != NULL);
	check_operand_set(c, "quantizes", r->quantizes);
	check_operand_set(c, "adapts", r->adapts);
	if (r->smooth)
		row_needs(&c->check, "of_one, of_two", r->of_one || r->of_two);
	check_operand_set(c, "as_floats", r->as_floats);
	if (r->leaves_range)
		row_needs(&c->check, "as_floats", r->as_floats != 0);
	if (r->quantizes) {
		row_needs(&c->check, "channel", r->channel != NULL);
		row_needs(&c->check, "sums", r->sums != NULL);
	} else if (r->channel || r->sums) {
		row_needs(&c->check, "quantizes", false);
	}
	row_needs(&c->check, "partition.factors", r->partition.factors != NULL);
	row_needs(&c->check, "partition.doc", r->partition.doc != NULL);
}

static void
check_fields(OpCheck *c)
{
	const OpRow *r = c->row;

	if (r->fields && r->attr_size == 0)
		row_needs(&c->check, "attr_size", false);
	if (!r->fields && r->attr_size > 0)
		row_needs(&c->check, "fields", false);
	for (const Field *f = r->fields; f && f->name; f++) {
		if (f->kind == FIELD_ENUM && !f->names)
			row_error(&c->check, "fields", "lacks the names of the values of %s",
			          f->name);
		if (f->offset + field_size(f->kind) > r->attr_size)
			row_error(&c->check, "fields", "has %s beyond the %zu bytes of attr_size",
			          f->name, r->attr_size);
	}
}

bool
op_row_check(const OpRow *row, Diag *diag)
{
	OpCheck c = {.check = {"op", row->name, diag, true}, .row = row};

	for (; c.n_operands < MAX_OPERANDS && row->operands[c.n_operands].name; c.n_operands++)
		c.variadic |= row->operands[c.n_operands].kind == OPERAND_VARIADIC;
	row_needs(&c.check, "name", row->name && *row->name);
	row_needs(&c.check, "doc", row->doc && *row->doc);
	row_needs(&c.check, "infer", row->infer != NULL);
	row_needs(&c.check, "eval", row->eval != NULL);
	row_needs(&c.check, "grad", row->grad != NULL);
	row_needs(&c.check, "samples", row->samples && row->samples[0].attrs);
	row_needs(&c.check, "results", row->results[0] || row->fuse >= FUSE_CONTROL);
	check_fields(&c);
	check_code(&c);
	check_facts(&c);
	if (row->commutative && c.n_operands != 2)
		row_error(&c.check, "commutative", "is for two operands, it has %d", c.n_operands);
	return c.check.sound;
}

bool
op_table_check(Diag *diag)
{
	bool sound = true;

	for (int i = 0; i < N_OPS; i++)
		sound &= op_row_check(op_table[i], diag);
	return sound;
}

/* Finds the importer of an ONNX operator by domain, name and opset, in the tables of all families
 * (control, math, nn, tensor ...). */
#include "frontend/import/walk.h"

#include <stdio.h>
#include <string.h>

#define IMPORTER(family) extern const ImportRow import_##family##_rows[];
#include "frontend/import/importer_list.def"
#undef IMPORTER

static const ImportRow *const families[] = {
#define IMPORTER(family) import_##family##_rows,
#include "frontend/import/importer_list.def"
#undef IMPORTER
};

static bool
same_operator(const ImportRow *row, const NodeProto *p)
{
	return is_op_of(p, row->domain ? row->domain : "", row->name);
}

/* Skips the attribute `consumed_inputs` of opsets before 6: it only says which inputs a node may
 * overwrite. */
static const char *
past_hint(const char *attributes)
{
	static const char hint[] = "consumed_inputs:";

	if (strncmp(attributes, hint, sizeof(hint) - 1) != 0)
		return attributes;
	attributes += strcspn(attributes, " ");
	return attributes + (*attributes == ' ');
}

/* Are two schemas equal apart from `consumed_inputs`? Attributes are sorted by name. */
static bool
same_form(const SchemaRow *p, const SchemaRow *q)
{
	const char *a = p->attributes, *b = q->attributes;

	if (p->min_in != q->min_in || p->max_in != q->max_in || p->min_out != q->min_out ||
	    p->max_out != q->max_out)
		return false;
	while (*(a = past_hint(a)) && *b) {
		size_t n = strcspn(a, " "), m = strcspn(b, " ");
		if (n != m || strncmp(a, b, n) != 0)
			return false;
		a += n + (a[n] == ' ');
		b += m + (b[m] == ' ');
	}
	return !*a && !*b;
}

/* Can the node be read as of opset OLDEST_FULL_OPSET? In older opsets only operators with the same
 * schema can. All other operators need a row of their own, or are not supported. */
static bool
is_as_in_full_opset(const FlatNode *n)
{
	const char *op = n->proto->op_type;

	if (*domain_of(n->proto->domain) || n->opset >= OLDEST_FULL_OPSET)
		return true;
	const SchemaRow *own = schema_find(op, n->opset),
			*full = schema_find(op, OLDEST_FULL_OPSET);
	return own == full || (own && full && same_form(own, full));
}

const ImportRow *
importer_find(const FlatNode *n)
{
	if (!n->proto->op_type ||
	    (!*domain_of(n->proto->domain) && !schema_find(n->proto->op_type, n->opset)))
		return NULL;
	bool full = is_as_in_full_opset(n);
	int opset = full && n->opset < OLDEST_FULL_OPSET && !*domain_of(n->proto->domain)
	                    ? OLDEST_FULL_OPSET
	                    : n->opset;
	for (int i = 0; i < COUNT(families); i++)
		for (const ImportRow *row = families[i]; row->name; row++)
			if (same_operator(row, n->proto) && opset >= row->from &&
			    (!row->to || opset <= row->to) &&
			    (full || (row->to && row->to < OLDEST_FULL_OPSET)))
				return row;
	return NULL;
}

const char *
importer_missing(const FlatNode *n)
{
	const char *op = n->proto->op_type ? n->proto->op_type : "";
	const SchemaRow *schema;

	if (importer_find(n))
		return NULL;
	if (!strcmp(domain_of(n->proto->domain), "ai.onnx.ml"))
		return "operators of ai.onnx.ml are not supported";
	if (!strcmp(domain_of(n->proto->domain), "com.microsoft.nchwc"))
		return "onnxruntime wrote this operator with weights in the order of one "
		       "machine, which the file does not tell; let onnxruntime optimize only up "
		       "to ORT_ENABLE_EXTENDED";
	if (*domain_of(n->proto->domain))
		return "unknown operator of this domain";
	if (!(schema = schema_find(op, NEWEST_OPSET)))
		return "unknown operator";
	if (!(schema = schema_find(op, n->opset)))
		return "the operator does not exist in this opset yet";
	if (schema->attributes[0] == '-')
		return "the operator is deprecated in this opset";
	if (!is_as_in_full_opset(n))
		return "the operator's form in this opset, before 6, is not supported";
	return "this operator is not supported";
}

/* What to use instead of an unsupported operator. names: with a space around each, "" for the whole
 * domain. */
static const struct {
	const char *domain, *names, *hint;
} hints[] = {
	{"", " StringConcat StringNormalizer StringSplit RegexFullMatch ",
         "gradc has no strings: turn text into numbers (a tokenizer's ids) before "
         "the model, and cut the nodes that read strings off the model"},
	{"", " ImageDecoder ",
         "decode images before the model, and let its input be their pixels, a "
         "tensor of u8 or floats"},
	{"ai.onnx.ml", "",
         "Microsoft's hummingbird-ml converts trees, encoders and scikit-learn's "
         "models to tensor operators; or cut these nodes off the model"},
};

const char *
importer_hint(const FlatNode *n)
{
	const char *op = n->proto->op_type ? n->proto->op_type : "";
	char name[64];

	snprintf(name, sizeof(name), " %.60s ", op);
	for (int i = 0; i < COUNT(hints); i++)
		if (!strcmp(hints[i].domain, domain_of(n->proto->domain)) &&
		    (!*hints[i].names || strstr(hints[i].names, name)))
			return hints[i].hint;
	return NULL;
}

/* The operator's first row, which has its facts. */
static const ImportRow *
first_row(const ImportRow *of)
{
	const char *domain = of->domain ? of->domain : "";

	for (int i = 0; i < COUNT(families); i++)
		for (const ImportRow *row = families[i]; row->name; row++)
			if (!strcmp(row->name, of->name) &&
			    !strcmp(row->domain ? row->domain : "", domain))
				return row;
	return of;
}

StrMap *
importer_facts(Arena *arena)
{
	StrMap *all = strmap_new(arena);

	for (int i = 0; i < COUNT(families); i++)
		for (const ImportRow *row = families[i]; row->name; row++) {
			const char *key = row->domain ? arena_printf(arena, "%s.%s", row->domain,
			                                             row->name)
			                              : row->name;
			if (!strmap_get(all, key))
				strmap_put(all, key, (void *)(uintptr_t)&row->facts);
		}
	return all;
}

void
importer_rows(void (*visit)(void *ctx, const OpsetRow *row), void *ctx)
{
	for (int i = 0; i < COUNT(families); i++)
		for (const ImportRow *row = families[i]; row->name; row++)
			visit(ctx,
			      &(OpsetRow){row->domain ? row->domain : "ai.onnx", row->name,
			                  row->from, row->to, !first_row(row)->facts.no_gradient});
}

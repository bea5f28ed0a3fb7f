/* Imports Optional and its relatives: https://onnx.ai/onnx/operators/onnx__Optional.html. Whether
 * an optional is empty is known at import, from the graph or from the file that `gradc run --input`
 * gives. */
#include "frontend/import/import.h"

/* Without an input the optional is empty; its type is in an attribute, which is not needed. */
static void
import_optional(OnnxNode *n)
{
	Bound wrapped = {.absent = true}, *b = has_input(n, 0) ? want_bound(n, 0) : &wrapped;

	if (!has_input(n, 0) && !has_attribute(n, "type"))
		report_invalid(n, "neither an input nor attribute \"type\"");
	if (!b || n->failed)
		return;
	wrapped = *b;
	wrapped.optional = true;
	set_output_bound(n, 0, &wrapped);
}

/* A tensor or a sequence passes unchanged. Opset 18 allows such an input; in older opsets, a loop
 * may carry a tensor or sequence in place of an optional. */
static void
import_get_element(OnnxNode *n)
{
	Bound *b = want_bound(n, 0);

	if (!b)
		return;
	if (b->absent)
		report_invalid(n, "the optional has no element");
	if (n->failed)
		return;
	Bound element = *b;
	element.optional = false;
	set_output_bound(n, 0, &element);
}

static void
import_has_element(OnnxNode *n)
{
	Bound *b = has_input(n, 0) ? want_bound(n, 0) : NULL;

	if (!n->failed)
		set_output(n, 0, e_scalar(n, BOOL, b && !b->absent));
}

const ImportRow import_optional_rows[] = {
	/* name                from  to  importer  extra */
	{"Optional", 15, 0, import_optional, {0}, NULL},
	{"OptionalGetElement", 15, 0, import_get_element, {0}, NULL},
	{"OptionalHasElement", 15, 0, import_has_element, .facts = {.no_gradient = true}},
	{0},
};

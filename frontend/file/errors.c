/* Reports faults of a model; each message begins with the file and the node. */
#include "frontend/file/file.h"

#include <string.h>

const char *
quoted(const Model *model, const char *name)
{
	Text text = {0};

	Text cut = {0};

	text_add_quoted(&text, name ? name : ""); /* the file may leave the field out */
	text_add_cut(&cut, text.at, 200);
	const char *copy = arena_strdup(model->arena, cut.at);
	text_free(&text);
	text_free(&cut);
	return copy;
}

void
model_error(const Model *model, Diag *diag, int exit_code, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	const char *text = arena_vprintf(model->arena, fmt, args);
	va_end(args);
	diag_error(diag, exit_code, "%s: %s", model->path, text);
}

/* node "conv1" (Conv, opset 17); a node without a name is called after its first output. */
static const char *
node_label(const Model *model, const FlatNode *n)
{
	const NodeProto *p = n->proto;
	const char *name = p->name && *p->name ? p->name : NULL;
	const char *domain = domain_of(p->domain);
	const char *op = arena_printf(model->arena, "%s%s%.100s", domain, *domain ? "." : "",
	                              p->op_type ? p->op_type : "");

	for (size_t i = 0; !name && i < p->n_output; i++)
		if (*p->output[i])
			name = p->output[i];
	return arena_printf(model->arena, "node %s (%s, opset %d)", quoted(model, name ? name : ""),
	                    op, n->opset);
}

void
node_verror(const Model *model, Diag *diag, const FlatNode *n, int exit_code, const char *fmt,
            va_list args)
{
	const char *text = arena_vprintf(model->arena, fmt, args);

	diag_error(diag, exit_code, "%s: %s: %s", model->path, node_label(model, n), text);
}

void
node_error(const Model *model, Diag *diag, const FlatNode *n, int exit_code, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	node_verror(model, diag, n, exit_code, fmt, args);
	va_end(args);
}

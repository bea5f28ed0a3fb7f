/* Chooses the loss of a training for which none is given, by the form of the model's first output, and says which loss it is and
 * why. Example: an output [batch,1] is a number for each row, so the loss is mse; an output [batch,10] is 10 classes, so the loss
 * is cross entropy. */
#include "driver/session.h"

/* What the shape and the graph say of an output. */
typedef struct {
	bool floats;
	bool sigmoid; /* the last op is a sigmoid */
	int64_t row;  /* number of elements of a row */
	int64_t last,
		axis; /* sizes of the last axis, and of axis 1 if rows follow axis 0; 0: no such axis */
} OutputForm;

static OutputForm
form_of(const Session *s, const ImportPort *p)
{
	const Function *f = module_first(s->m, ROLE_FORWARD);
	OutputForm form = {.floats = dtype_is_float(p->dtype),
	                   .sigmoid = loss_output_is_sigmoid(f, 0),
	                   .row = 1};
	int rows = p->has_rows ? p->batch_axis : -1;

	for (int i = 0; i < p->rank; i++)
		if (i != rows)
			form.row *= p->dims[i];
	for (int i = p->rank - 1; i >= 0 && !form.last; i--)
		form.last = i == rows ? 0 : p->dims[i];
	form.axis = rows == 0 && p->rank > 2 ? p->dims[1] : 0;
	return form;
}

static bool
is_sigmoid(const OutputForm *f)
{
	return f->floats && f->sigmoid;
}

static bool
is_number(const OutputForm *f)
{
	return f->floats && f->row == 1;
}

/* [B,T,1] or [N,1,H,W] */
static bool
is_one_channel(const OutputForm *f)
{
	return f->floats && (f->last == 1 || f->axis == 1);
}

static bool
is_any(const OutputForm *f)
{
	return true;
}

/* The first row that fits decides. */
static const struct {
	bool (*fits)(const OutputForm *f);
	const char *loss, *why, *else_hint;
} choices[] = {
	{is_sigmoid, "mse", "is the result of a sigmoid, each number by itself",
         "for two classes export the model without the sigmoid, and give --loss=bce_with_logits"},
	{is_number, "mse", "is one number for each row",
         "--loss=bce_with_logits, if the number is the logit of two classes"},
	{is_one_channel, "mse", "has one channel",
         "--loss=bce_with_logits, if its numbers are logits of two classes"},
	{is_any, "cross_entropy", "has numbers for several classes",
         "--loss=mse, if its numbers are not logits of classes"},
};

bool
session_default_loss(Session *s)
{
	const ImportPorts *outputs = &s->import->bindings.at[0].outputs;
	int i = 0;

	if (s->has_loss || !outputs->n)
		return s->has_loss || session_parse_loss(s, "cross_entropy");
	const ImportPort *p = &outputs->at[0];
	OutputForm form = form_of(s, p);
	while (!choices[i].fits(&form))
		i++;
	diag_remark(s->diag, "%s: no --loss is given: it is %s, because output \"%s\" %s %s",
	            s->o->input, choices[i].loss, p->name, shape_text(s->arena, p->rank, p->dims),
	            choices[i].why);
	diag_hint(s->diag, "%s; --loss=%s says the same without this note", choices[i].else_hint,
	          choices[i].loss);
	return session_parse_loss(s, choices[i].loss);
}

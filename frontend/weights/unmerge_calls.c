/* Finds lost tensors (listed in the signature, missing in the file) by the traced Python call of
 * each node, which the exporter may store as text:
 *
 *   pkg.torch.onnx.fx_node   %mul : [num_users=1] =
 * call_function[target=torch.ops.aten.mul.Tensor](args = (%relu, %p_b_scale), ...)
 *   signature                p_b_scale: PARAMETER target='b.scale'
 *
 * If the Mul of this call reads a.scale and the file lacks b.scale, the exporter merged the two. In
 * these texts all names of a tied parameter appear as one name. So tensors with different names in
 * the texts are different tensors, even if their values are equal. But two equal tensors whose
 * elements are not all the same number stay one tensor if the order of the signature says that they
 * are tied. If a call without any module tensor reads a.scale, it reads a number of the module's
 * code, such as the ones of a norm without weights. */
#include "frontend/weights/judge.h"
#include "frontend/weights/origins.h"
#include "frontend/weights/unmerge.h"

#include <ctype.h>
#include <string.h>

enum { MOST_NAMES = 256 }; /* most names of a text that are read */
static const char FX_NODE[] = "pkg.torch.onnx.fx_node";

/* The next %name from *at on; moves *at past the name. NULL: no more names. */
static const char *
next_name(Arena *arena, const char **at)
{
	const char *begin = strchr(*at, '%'), *end;

	if (!begin)
		return NULL;
	for (end = ++begin; isalnum((unsigned char)*end) || *end == '_';)
		end++;
	*at = end;
	return arena_strndup(arena, begin, (size_t)(end - begin));
}

/* The text after the result's name; NULL: the node has no text. */
static const char *
call_text(const NodeProto *p)
{
	return strstr(node_metadata(p, FX_NODE), " = ");
}

int
node_text_names(const Repairs *r, const NodeProto *p, const char *tensor)
{
	const char *at = call_text(p), *name;
	int n = 0;

	for (int i = 0; at && i < MOST_NAMES && (name = next_name(r->arena, &at)); i++) {
		const char *named = strmap_get(r->placeholders, name);
		n += named && !strcmp(named, tensor);
	}
	return n;
}

/* Is the value a view? The exporter names a value by the function that made it: "view_3". */
static bool
is_view(const char *name)
{
	static const char *const views[] = {"view",       "reshape",   "unsqueeze", "squeeze",
	                                    "permute",    "transpose", "t",         "expand",
	                                    "alias",      "detach",    "clone",     "_to_copy",
	                                    "contiguous", "flatten",   "select",    "slice"};

	for (int i = 0; i < COUNT(views); i++) {
		size_t n = strlen(views[i]);
		if (!strncmp(name, views[i], n) && (!name[n] || name[n] == '_') &&
		    !name[n + strspn(name + n, "_0123456789")])
			return true;
	}
	return false;
}

bool
unmerge_call(const Unmerge *u, const NodeProto *p, Call *out)
{
	const char *at = call_text(p), *name;

	*out = (Call){
		.text = at ? node_metadata(p, FX_NODE) : NULL, .is_known = true, .has_views = true};
	for (int n = 0; at && (name = next_name(u->r->arena, &at)); n++) {
		const char *tensor = strmap_get(u->r->placeholders, name);
		if (tensor && *tensor)
			vec_push(u->r->arena, &out->tensors, tensor);
		if (n > MOST_NAMES) {
			*out = (Call){.text = out->text};
			break;
		}
		bool known = tensor || strmap_get(u->values, name);
		out->is_known &= known;
		out->has_views &= known || is_view(name);
	}
	return out->text;
}

static bool
call_has(const Call *call, const char *tensor)
{
	for (int i = 0; tensor && i < call->tensors.n; i++)
		if (!strcmp(call->tensors.at[i], tensor))
			return true;
	return false;
}

/* The only lost tensor of the call, with `called` as the last part of its name unless NULL; else
 * NULL. *n: the number of such tensors. */
static const char *
lost_of(const Unmerge *u, const Call *call, const char *called, int *n)
{
	const char *found = NULL;

	*n = 0;
	for (int i = 0; i < call->tensors.n; i++) {
		const char *tensor = call->tensors.at[i];
		if (!unmerge_is_lost(u, tensor) ||
		    (called && strcmp(name_last_part(tensor), called)) ||
		    (found && !strcmp(found, tensor)))
			continue;
		found = tensor;
		++*n;
	}
	return *n == 1 ? found : NULL;
}

/* Does the call lack this input? It does if all tensors of the call have the operator's names of
 * other inputs, as in a norm without weights. */
static bool
is_left_out(const Call *call, const Read *read)
{
	for (int i = 0; i < call->tensors.n; i++) {
		bool found = false;
		for (size_t k = 0; k < read->node->n_input; k++) {
			const char *name = k != read->input ? unmerge_name_of_input(read->node, k)
			                                    : NULL;
			found |= name && !strcmp(name, name_last_part(call->tensors.at[i]));
		}
		if (!found)
			return false;
	}
	return true;
}

/* Does the call itself name the tensor that the node reads? This does not count if the exporter
 * merged a batch norm's statistics with the norm's weight. */
static bool
is_own(const Unmerge *u, const Call *call, const Read *read, const char *source)
{
	int n;

	return call_has(call, source) &&
	       !(read->by_operator && strcmp(read->called, name_last_part(source)) &&
	         lost_of(u, call, read->called, &n));
}

/* The tensor that the call names and the node should read; NULL: unknown. *is_number: the node reads
 * a number of the code. */
static const char *
read_by_right(const Unmerge *u, const Call *call, const Read *read, const char *source,
              bool *is_number)
{
	int n, n_called;
	const char *called = lost_of(u, call, read->called, &n_called);
	const char *only = lost_of(u, call, NULL, &n);
	size_t at = read->input - 1;
	bool left_out = read->by_operator && n_called == 0 && is_left_out(call, read);

	*is_number = (n == 0 || left_out) && call->is_known && strmap_get(u->r->signature, source);
	if (n == 0 || left_out || called)
		return called;
	if (!read->by_operator || n_called > 1)
		return only;
	/* The module uses other names: F.layer_norm(x, shape, self.gamma, self.beta). addmm has the
	 * bias first. */
	if (strstr(call->text, "addmm"))
		return only;
	if (call->tensors.n + 1 == (int)read->node->n_input &&
	    unmerge_is_lost(u, call->tensors.at[at]))
		return call->tensors.at[at];
	return NULL;
}

/* Is the text that of the layer's own call? A layer that was fused with another function, such as a
 * batch norm, has that function's text. */
static bool
is_of_call(const Unmerge *u, const NodeProto *p, const Call *call)
{
	static const char *const layers[] = {"conv", "linear", "mm.", "addmm", "matmul"};
	const char *target = strstr(call->text, "target=");
	size_t n = target ? strcspn(target, "]") : 0;

	for (int i = 0; i < COUNT(layers); i++) {
		const char *at = target ? strstr(target, layers[i]) : NULL;
		if (at && at < target + n)
			return true;
	}
	return !node_bias(u->r->model, p);
}

const char *
unmerge_lost_of_layer(const Unmerge *u, const NodeProto *p, const Call *call)
{
	const char *weight = p->n_input > 1 ? unmerge_source(u->r, p->input[1]) : NULL, *bias;
	int n;

	if (!node_bias(u->r->model, p) || !is_of_call(u, p, call))
		return NULL;
	bias = lost_of(u, call, "bias", &n);
	/* The bias has another name. The weight is not lost here. */
	return n == 0 && call_has(call, weight) ? lost_of(u, call, NULL, &n) : bias;
}

/* Reads that belong to one tensor, gathered over all calls. */
typedef struct {
	const char *name, *from;
	Reads reads;
	const char *text; /* text of the last read's call */
	bool is_open;     /* ambiguous: the reads are of several tensors, or one call reads twice */
} Found;
typedef struct {
	StrMap *by_name;
	VEC(Found *) list;
} FoundList;

static void
add_read(Arena *arena, FoundList *all, const char *name, const Read *read, const char *text)
{
	Found *found = strmap_get(all->by_name, name);
	const char *from = read->node->input[read->input];

	if (!found) {
		found = NEW(arena, Found);
		*found = (Found){.name = name, .from = from};
		strmap_put(all->by_name, name, found);
		vec_push(arena, &all->list, found);
	}
	found->is_open |= strcmp(found->from, from) ||
	                  (found->text && text && !strcmp(found->text, text));
	found->text = text;
	vec_push(arena, &found->reads, *read);
}

/* Are all elements equal? Computed once per tensor. */
static bool
is_of_one_value(const Unmerge *u, const TensorProto *t)
{
	uint64_t key = (uint64_t)(uintptr_t)t, known;
	double value;

	if (!intmap_get(u->one_valued, key, &known)) {
		known = unmerge_one_value(u->r, t, &value);
		intmap_put(u->one_valued, key, known);
	}
	return known;
}

static void
add_node(Unmerge *u, FoundList *tensors, FoundList *numbers, NodeProto *p)
{
	Call call;

	if (node_callee(u->r->model, p) || !unmerge_call(u, p, &call) || !is_of_call(u, p, &call))
		return;
	for (size_t k = 0; k < p->n_input; k++) {
		const char *source = unmerge_source(u->r, p->input[k]);
		const TensorProto *t = strmap_get(u->r->model->initializers, p->input[k]);
		const Read read = unmerge_read(u, p, k);
		if (!source || !t || is_own(u, &call, &read, source))
			continue;
		bool is_number;
		const char *name = read_by_right(u, &call, &read, source, &is_number);
		bool is_fresh = (name || is_number) && is_of_one_value(u, t);
		if (name && (is_fresh || !unmerge_is_before(u, name, source)))
			add_read(u->r->arena, tensors, name, &read, call.text);
		else if (is_number && is_fresh)
			add_read(u->r->arena, numbers, p->input[k], &read, NULL);
	}
}

void
unmerge_claim_by_calls(Unmerge *u)
{
	const GraphProto *g = u->r->model->proto->graph;
	FoundList tensors = {.by_name = strmap_new(u->r->arena)};
	FoundList numbers = {.by_name = strmap_new(u->r->arena)};

	for (size_t i = 0; i < g->n_node; i++)
		add_node(u, &tensors, &numbers, g->node[i]);
	for (int i = 0; i < tensors.list.n; i++)
		if (!tensors.list.at[i]->is_open)
			unmerge_claim(u, &tensors.list.at[i]->reads, tensors.list.at[i]->name);
	for (int i = 0; i < numbers.list.n; i++)
		unmerge_claim_number(u, &numbers.list.at[i]->reads, numbers.list.at[i]->name);
}

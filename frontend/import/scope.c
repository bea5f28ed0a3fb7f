/* Builds the functions that control nodes run: the bodies of loops and branches. While a body is
 * built, all importers add nodes to it. A value of an outer function becomes a parameter of the
 * body at first use; a small constant is made again inside. */
#include "frontend/import/walk.h"

enum { MOST_CAPTURED = 1024 /* most elements of a constant that is made again */ };

static Value *capture(Importer *im, Scope *s, Value *v);

static Value *
capture_param(Importer *im, Scope *s, Value *v)
{
	uint64_t known;
	Value *outer = s->up ? capture(im, s->up, v) : v;

	if (intmap_get(s->params, (uint64_t)(uintptr_t)outer, &known))
		return (Value *)(uintptr_t)known;
	Value *p = function_param(s->f, outer->type, "captured");
	intmap_put(s->params, (uint64_t)(uintptr_t)outer, (uint64_t)(uintptr_t)p);
	vec_push(im->arena, &s->captured, outer);
	return p;
}

/* The value of s's function that stands for v, a value of this or of an outer function. Parameters
 * for outer values come last, because all other parameters are made before the body reads any
 * value. */
static Value *
capture(Importer *im, Scope *s, Value *v)
{
	uint64_t there;

	if (v->function == s->f)
		return v;
	if (intmap_get(s->params, (uint64_t)(uintptr_t)v, &there))
		return (Value *)(uintptr_t)there;
	const Tensor *t = v->type->n > MOST_CAPTURED ? NULL
	                  : is_float(v)              ? value_constant(v)
	                                             : known_value(im, v);
	if (!t)
		return capture_param(im, s, v);
	Builder b = {.m = im->m, .f = s->f, .before = s->f->first, .loc = im->b.loc};
	return b_constant(&b, t);
}

Bound *
scope_bound(Importer *im, Bound *b)
{
	Scope *s = im->scope;

	if (!s || !b || (!b->sequence && (!b->value || b->value->function == s->f)))
		return b;
	Bound *here = NEW(im->arena, Bound);
	*here = *b;
	here->value = b->value ? capture(im, s, b->value) : NULL;
	here->count = b->count ? capture(im, s, b->count) : NULL;
	here->list = NEW_ARRAY(im->arena, Value *, b->n_list);
	for (int i = 0; i < b->n_list; i++)
		here->list[i] = b->list[i] ? capture(im, s, b->list[i]) : NULL;
	return here;
}

void
scope_open(OnnxNode *n, Scope *s, const char *name)
{
	Importer *im = n->im;

	*s = (Scope){.up = im->scope, .around = im->b, .params = intmap_new(im->arena)};
	s->f = function_new(im->m, module_fresh_name(im->m, name));
	im->scope = s;
	im->b = (Builder){.m = im->m, .f = s->f, .loc = s->around.loc};
}

bool
scope_close(OnnxNode *n, Scope *s, int n_results, Value **results)
{
	Importer *im = n->im;

	for (int i = 0; i < n_results; i++) {
		n->failed |= !results[i];
		if (results[i] && results[i]->function != s->f)
			results[i] = capture(im, s, results[i]);
	}
	if (!n->failed)
		b_return(&im->b, n_results, results);
	scope_leave(n, s);
	return !n->failed;
}

void
scope_leave(OnnxNode *n, Scope *s)
{
	n->im->b = s->around;
	n->im->scope = s->up;
}

/* A weight belongs to the program even if a body reads it first. */
Builder
scope_program(const Importer *im)
{
	Builder b = im->b;

	for (const Scope *s = im->scope; s; s = s->up)
		b = s->around;
	return b;
}

bool
outside_of_bodies(OnnxNode *n, const char *what)
{
	if (n->im->scope)
		report_unsupported(n, "%s inside a loop, or a branch that is chosen at run time",
		                   what);
	return !n->im->scope;
}

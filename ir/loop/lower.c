/* The functions that an op's table row calls to emit its part of a kernel, such as
 * lower_element. They call the emitter (codegen/lower) through pointers, so that ir does not
 * depend on codegen. */
#include "ir/loop/loop.h"

LoopValue
lower_element(Lower *lw, const Value *v, const Index *at)
{
	return lw->calls->element(lw, v, at);
}

LoopValue
lower_element_inside(Lower *lw, const Value *v, const Index *at, LoopValue inside)
{
	return lw->calls->element_inside(lw, v, at, inside);
}

void
lower_open_parts(Lower *lw, const Node *n, int axes, bool apart)
{
	lw->calls->open_parts(lw, n, axes, apart);
}

void
lower_close_parts(Lower *lw)
{
	lw->calls->close_parts(lw);
}

void
lower_part(Lower *lw, const Node *n, Type shape, PartElement element, PartPlace place,
           const void *ctx)
{
	lw->calls->part(lw, n, shape, element, place, ctx);
}

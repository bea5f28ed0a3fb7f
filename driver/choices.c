/* Answers questions that several options decide together, such as which rule of --loss-scale
 * applies. */
#include "driver/session.h"

const char *
options_loss_scale(const Options *o)
{
	return o->loss_scale ? o->loss_scale : recipe_find(o->precision)->loss_scale;
}

bool
options_offload(const Options *o, Offload what)
{
	return offload_set(o->offload) >> what & 1;
}

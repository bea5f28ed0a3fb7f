/* Answers questions that several options decide together, such as which rule of --loss-scale
 * applies. */
#include "driver/session.h"

#include <string.h>

const char *
options_loss_scale(const Options *o)
{
	bool f16 = o->precision && strcmp(o->precision, "f16") == 0;

	return o->loss_scale ? o->loss_scale : f16 ? "torch" : "none";
}

bool
options_offload(const Options *o, Offload what)
{
	return offload_set(o->offload) >> what & 1;
}

/* Answers questions that several options decide together, such as which rule of --loss-scale
 * applies. */
#include "driver/session.h"

#include <string.h>

const char *
options_loss_scale(const Options *o)
{
	return o->loss_scale ? o->loss_scale : recipe_find(o->precision)->loss_scale;
}

int64_t
options_estimate_every(const Options *o)
{
	int64_t least = o->optimizer.row ? optimizer_every(&o->optimizer) : 0;

	for (int i = 0; i < o->optimizers_for.n; i++) {
		int64_t every = optimizer_every(&o->optimizers_for.at[i].choice);
		if (every > 0 && (least == 0 || every < least))
			least = every;
	}
	return least;
}

bool
options_offload(const Options *o, Offload what)
{
	return offload_set(o->offload) >> what & 1;
}

bool
options_write_pb(const Options *o)
{
	return o->output_format && strcmp(o->output_format, "pb") == 0;
}

/* Guards the files that a run reads: while the run is open, nothing in this process may write over them. */
#include "runtime/data/data.h"

/* Guards the files that the options name. If an option names a pattern, the files that match it are guarded later, in
 * inputs_guard_bound, when they are open. */
void
inputs_guard_named(Gradc *run)
{
	const GradcOptions *o = &run->options;
	const char *const files[] = {o->tokens, o->text,    o->eval_tokens, o->eval_text,
	                             o->load,   o->weights, run->model.file};
	PathUses uses = {0};

	for (int i = 0; i < COUNT(files); i++)
		paths_add(run->arena, &uses, PATH_INPUT, "an input,", files[i]);
	for (int i = 0; i < o->mean_std.n; i++)
		paths_add(run->arena, &uses, PATH_INPUT, "an input,", o->mean_std.at[i].value);
	for (int i = 0; i < o->data.n; i++)
		paths_add(run->arena, &uses, PATH_INPUT, "an input,", o->data.at[i].value);
	for (int i = 0; i < o->eval_data.n; i++)
		paths_add(run->arena, &uses, PATH_INPUT, "an input,", o->eval_data.at[i].value);
	run->guards[0] = paths_guard(&uses);
}

void
inputs_guard_bound(Gradc *run)
{
	const Dataset *const sets[] = {run->train, run->eval};
	PathUses uses = {0};

	for (int s = 0; s < COUNT(sets); s++)
		for (int i = 0; sets[s] && i < sets[s]->n_sets; i++)
			for (int k = 0; k < sets[s]->sets[i].n_files; k++)
				paths_add(run->arena, &uses, PATH_INPUT, "an input,",
				          sets[s]->sets[i].files[k].path);
	run->guards[1] = paths_guard(&uses);
}

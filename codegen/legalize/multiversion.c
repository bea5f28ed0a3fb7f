/* The pass `multiversion`: makes a version of each program for each target (kind of CPU or GPU).
 * With one target, every program is only marked with the target's name. With several targets,
 * there is a copy of every program for each target, as GCC's target_clones does for functions.
 * Later passes compile each function for the target that it names. Programs of the first target
 * keep their names (@accumulate); others are called @accumulate.cpu-256 and the like. All
 * versions share the module's states, so states lie at the same places for all of them.
 *
 * Takes linear time in the number of nodes. */
#include "codegen/codegen.h"
#include "codegen/target/target.h"

#include <string.h>

static Function *
version_of(const Function *f, const Target *t)
{
	Module *m = f->module;
	Function *g = function_clone(
		f, module_fresh_name(m, arena_printf(m->arena, "%s.%s", f->name, t->name)));

	g->role = f->role;
	g->binding = f->binding;
	g->stage = f->stage;
	g->mode = f->mode;
	g->loc = f->loc;
	g->target = t->name;
	return g;
}

static bool
check_once(const Pass *p, const Module *m)
{
	for_each_function(m, f) {
		if (!f->target)
			continue;
		diag_error(p->diag, EXIT_USAGE,
		           "pass multiversion: function @%s is for target \"%s\" already", f->name,
		           f->target);
		return false;
	}
	return true;
}

static bool
run_multiversion(Pass *p, Module *m)
{
	const char *names = ((const MultiversionOptions *)p->options)->targets;
	char *copy = arena_strdup(p->scratch, names), *save = NULL;
	int n = m->functions.n;
	VEC(const Target *) done = {0};

	if (!check_once(p, m))
		return false;
	for (char *name = strtok_r(copy, "+", &save); name; name = strtok_r(NULL, "+", &save)) {
		const Target *t = pass_find_target(p, name);
		bool again = false;
		for (int i = 0; i < done.n; i++)
			again |= done.at[i] == t;
		if (!t)
			return false;
		for (int i = 0; i < n && !again; i++) {
			Function *f = m->functions.at[i];
			if (done.n)
				version_of(f, t);
			else
				f->target = t->name;
		}
		if (!again)
			vec_push(p->scratch, &done, t);
	}
	if (done.n == 0)
		diag_error(p->diag, EXIT_USAGE, "pass multiversion: targets=%s names no target",
		           names);
	p->changed = true;
	return done.n > 0;
}

static const PassOption options[] = {
	{"targets",
         "the targets that run the programs, such as cpu-512+cpu-256: rows of codegen/target/",
         OPTION_STRING, offsetof(MultiversionOptions, targets)},
	{0},
};
static const MultiversionOptions defaults = {.targets = "cpu-512"};

const PassRow pass_multiversion = {.name = "multiversion",
                                   .help = "make a version of every program for each target",
                                   .needed = true,
                                   .takes = STAGE_TRAIN,
                                   .leaves = STAGE_ANY,
                                   .options = options,
                                   .options_size = sizeof(MultiversionOptions),
                                   .defaults = &defaults,
                                   .run = run_multiversion};

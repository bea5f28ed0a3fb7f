/* The names of the words of program.h, and the tables made from the .def lists of this folder. */
#include "base/program/program.h"

const char *const role_names[] = {
#define ROLE(NAME, name, is_program, what) #name,
#include "base/program/role_list.def"
#undef ROLE
	NULL,
};

bool
role_is_program(Role role)
{
	static const bool programs[] = {
#define ROLE(NAME, name, is_program, what) is_program,
#include "base/program/role_list.def"
#undef ROLE
	};

	return programs[role];
}

const StateKindRow state_kinds[N_STATE_KINDS] = {
#define STATE_KIND(NAME, name, scalar, divided, in_unit, what) {scalar, divided, in_unit},
#include "base/program/state_kind_list.def"
#undef STATE_KIND
};
const char *const state_kind_names[] = {
#define STATE_KIND(NAME, name, scalar, divided, in_unit, what) #name,
#include "base/program/state_kind_list.def"
#undef STATE_KIND
	NULL,
};

const char *const mode_names[] = {"ddp", "zero1", "zero2", "zero3", NULL};
const char *const lifetime_names[] = {"saved", "step", "derived", "constant", NULL};
const char *const init_names[] = {"zeros", "ones", "data", "normal", "uniform", "copy", NULL};
const char *const when_names[] = {"always", "first", "later", "last", NULL};
const char *const phase_names[] = {"none", "forward", "backward", "update", NULL};

/* The words that modules of the IR and tables of executables share: the roles of programs, the kinds of states, and when
 * instructions run. A word's number in an executable is its number here. */
#ifndef GRADC_BASE_PROGRAM_PROGRAM_H
#define GRADC_BASE_PROGRAM_PROGRAM_H

#include "base/numbers/numbers.h"

/* All lists of names end with NULL. */

typedef enum {
#define ROLE(NAME, name, is_program, what) ROLE_##NAME,
#include "base/program/role_list.def"
#undef ROLE
	N_ROLES
} Role;
extern const char *const role_names[];
bool role_is_program(Role role);

/* How the ranks along the data axis share states (ZeRO: Rajbhandari et al. 2020, arXiv:1910.02054). DDP: every rank holds
 * all states. ZERO1: each rank holds only a part of the optimizer's states; ZERO2: also only a part of the gradients; ZERO3:
 * also only a part of the weights. */
typedef enum { MODE_DDP, MODE_ZERO1, MODE_ZERO2, MODE_ZERO3, N_MODES } DataParallelMode;
extern const char *const mode_names[];

typedef enum {
#define STATE_KIND(NAME, name, scalar, divided, in_unit, what) STATE_##NAME,
#include "base/program/state_kind_list.def"
#undef STATE_KIND
	N_STATE_KINDS
} StateKind;
/* A row of state_kind_list.def. */
typedef struct {
	int scalar; /* DType, ANY_SCALAR or ANY_SHAPE */
	DataParallelMode divided;
	bool in_unit;
} StateKindRow;
enum { ANY_SCALAR = -1, ANY_SHAPE = -2 };
extern const StateKindRow state_kinds[N_STATE_KINDS];
extern const char *const state_kind_names[];

/* How long a state's content lives. SAVED: checkpoints keep it. STEP: until the end of the step. DERIVED: it is computed from
 * saved states again. CONSTANT: it never changes. */
typedef enum { LIFE_SAVED, LIFE_STEP, LIFE_DERIVED, LIFE_CONSTANT, N_LIFETIMES } Lifetime;
extern const char *const lifetime_names[];
/* Where a state's first content comes from. */
typedef enum {
	INIT_ZEROS,
	INIT_ONES,
	INIT_DATA, /* data of the model */
	INIT_NORMAL,
	INIT_UNIFORM,
	INIT_COPY, /* a copy of another state */
	N_INITS
} InitKind;
extern const char *const init_names[];

/* The micro-batches of a step in which a node or an instruction runs: all, the first (which stores gradients), the later ones
 * (which add to gradients), the last (which sees the gradients of the whole step). */
typedef enum { WHEN_ALWAYS, WHEN_FIRST, WHEN_LATER, WHEN_LAST, N_WHEN } When;
extern const char *const when_names[];
/* The part of a step to which a node or an instruction belongs. */
typedef enum { PHASE_NONE, PHASE_FORWARD, PHASE_BACKWARD, PHASE_UPDATE, N_PHASES } Phase;
extern const char *const phase_names[];

#endif

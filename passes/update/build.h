/* What the files that build @update share. Sections are named after the .c file. */
#ifndef GRADC_PASSES_UPDATE_BUILD_H
#define GRADC_PASSES_UPDATE_BUILD_H

#include "passes/update/update.h"

/* The type in which a parameter's update is computed: f64 for f64 parameters, else f32. */
DType update_dtype(const State *param);

/* ---- update.c */
void update_build(Optimizer *o);
/* Gives the new contents the shapes of their states. */
void reshape_contents(Optimizer *o, const NewContents *new);
void store_contents(Optimizer *o, const NewContents *new);
/* The step's sums of losses and of targets over all micro-batches, and numbers computed from
 * these sums in f64. */
typedef struct {
	Value *sum, *count; /* values of the states */
	Value *counted;     /* count > 0 */
	Value *is_number;   /* count >= 0: count is not NaN, and no sum of negative weights */
	Value *loss;        /* sum / count */
	Value *gradient_scale; /* factor that turns the sum of the micro-batches' gradients into the step's mean gradient */
} Counted;
Counted read_loss(Optimizer *o);
/* f64[]: the norm of the gradients times the factor, with elements clamped to the limit; limit NULL: no limit. */
Value *gradient_norm(Optimizer *o, Value *factor, Value *limit);
/* Calls `row`, the function update or refresh of an optimizer's row, for the parameter t. Adds
 * the new contents that it sets (of the parameter and its moments) to `out`. The optimizer's new numbers are kept in the group. */
void new_contents(Optimizer *o, const Trained *t, const Shared *shared, void (*row)(Update *u),
                  NewContents *out);

/* ---- refresh.c: builds @refresh, if an optimizer estimates something */
void refresh_build(Optimizer *o);

#endif

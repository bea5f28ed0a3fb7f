/* What losses are built with. A loss is either over elements, the target having the output's type, or over classes, the
 * target being their indices. */
#ifndef GRADC_PASSES_LOSSES_LOSS_H
#define GRADC_PASSES_LOSSES_LOSS_H

#include "passes/pass.h"

/* ---- rows.c */
/* The rows' weights, each repeated over its elements of a value of this shape: the output's, or the target's. */
Value *loss_row_weights(const Loss *l, Type t);

/* ---- elements.c */
/* Of the loss of each element, in the output's type: sum, count and targets. */
void loss_of_elements(Loss *l, Value *each);

/* ---- classes.c */
typedef struct {
	Value *hot;    /* bool, logits' shape: the target's class */
	Value *valid;  /* bool, labels' shape */
	Value *weight; /* labels' shape: row weight, 0 where ignored */
	Value *row;    /* as weight, without the class weight */
} Targets;
Targets loss_targets(Loss *l);
/* v, of the labels' shape, repeated along the class axis; and the sum of v along it. */
Value *loss_along_classes(const Loss *l, Value *v);
Value *loss_over_classes(const Loss *l, Value *v);
/* Of the loss of each target, in the labels' shape: sum, count, targets and hits. per_class, in the output's type, is the
 * loss that each class would have as the target, for label smoothing; it may be NULL where that is 0. */
void loss_of_targets(Loss *l, const Targets *t, Value *per_target, Value *per_class);

#endif

/* Helpers for rows of losses. There are two kinds of losses: of elements, with targets of the output's type (mse), and
 * of classes, with class indices as targets (cross_entropy). */
#ifndef GRADC_PASSES_LOSSES_LOSS_H
#define GRADC_PASSES_LOSSES_LOSS_H

#include "passes/pass.h"

/* ---- rows.c */
/* The row weights, spread to a value of type t: each element gets the weight of its row. t must
 * have the rows of the output or of the target. */
Value *loss_row_weights(const Loss *l, Type t);

/* ---- elements.c */
/* Sets sum, count and targets from the loss of each element, which has the output's type. */
void loss_of_elements(Loss *l, Value *each);

/* ---- classes.c */
typedef struct {
	Value *hot;    /* bool, logits' shape: is this the target's class? */
	Value *valid;  /* bool, labels' shape: does the target count? */
	Value *weight; /* labels' shape: row weight times class weight; 0 for ignored targets */
	Value *row;    /* labels' shape: row weight alone; 0 for ignored targets */
} Targets;
Targets loss_targets(Loss *l);
/* loss_along_classes: v, of the labels' shape, repeated along the class axis. loss_over_classes:
 * the sum of v along the class axis. */
Value *loss_along_classes(const Loss *l, Value *v);
Value *loss_over_classes(const Loss *l, Value *v);
/* Sets sum, count, targets and correct from the loss of each target, which has the labels' shape. per_class has the
 * output's type: the loss that each class would have as the target, for label smoothing. per_class may be NULL if label
 * smoothing is 0. */
void loss_of_targets(Loss *l, const Targets *t, Value *per_target, Value *per_class);

#endif

/* Declarations that the files of the pass `loss` share. The pass adds the loss to each program, with the target
 * (labels) as an input. */
#ifndef GRADC_PASSES_LOSSES_LOSS_PASS_H
#define GRADC_PASSES_LOSSES_LOSS_PASS_H

#include "passes/pass.h"

typedef struct {
	Pass *p;
	Module *m;
	const LossOptions *options;
	const LossRow *row; /* NULL: the graph computes its own loss */
	const void *settings;
	Type target_type; /* type of the target as a parameter of the program */
	int target_rows;  /* axis of target_type that counts rows */
	Type target;      /* type of the target as the loss compares it with the output */
	BatchAxis rows;   /* row axis of the output */
	int64_t n_rows;
	const Tensor *class_weight;
	int class_axis;
	State *sum, *count, *correct;
} LossPass;

bool loss_refuse(LossPass *lp, const char *fmt, ...) PRINTF(2, 3); /* reports, and returns false */
const char *loss_output_name(LossPass *lp, const Function *forward, int64_t i); /* for messages */
/* The number of an axis for messages, as the user wrote it in --loss: counted from the last axis
 * if `given` is negative. */
int64_t loss_said(int64_t axis, int64_t given);
const char *loss_shape_text(LossPass *lp, Type t); /* "[4,6,7]" */

/* ---- losses/output_rows.c */
/* Sets rows and n_rows for the output of this forward function. False after reporting that no axis of the output
 * counts rows. */
bool loss_find_rows(LossPass *lp, Function *forward);

/* ---- losses/target.c */
/* For a loss that compares the output with a target */
bool loss_check_output(LossPass *lp, const Function *forward);
/* Sets class_axis, target_type, target_rows and target. */
bool loss_prepare_target(LossPass *lp, const Function *forward);
/* The target's parameter as the loss compares it: its rows are moved to the axis of the output's rows. */
Value *loss_target_value(const LossPass *lp, Builder *b, Value *param);

/* ---- losses/form.c */
/* Warns if the loss takes logits or log-probabilities, and the output has another form. */
void loss_check_form(LossPass *lp, const Function *f);

/* ---- losses/own.c */
/* Sets sum, count and targets of a loss that the graph computes. */
void loss_build_own(LossPass *lp, Loss *l, Value *const *results);

#endif

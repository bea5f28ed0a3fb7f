/* What the files of the pass `loss` share. */
#ifndef GRADC_PASSES_LOSSES_LOSS_PASS_H
#define GRADC_PASSES_LOSSES_LOSS_PASS_H

#include "passes/pass.h"

typedef struct {
	Pass *p;
	Module *m;
	const LossOptions *options;
	const LossRow *row; /* NULL: the graph computes its own */
	const void *settings;
	Type target_type; /* of the program's parameter */
	int target_rows;  /* the axis of target_type that counts rows */
	Type target;      /* as the loss compares it with the output */
	BatchAxis rows;   /* of the output */
	int64_t n_rows;
	const Tensor *class_weight;
	int class_axis;
	State *sum, *count, *correct;
} LossPass;

bool loss_refuse(LossPass *lp, const char *fmt, ...) PRINTF(2, 3);              /* returns false */
const char *loss_output_name(LossPass *lp, const Function *forward, int64_t i); /* for messages */
int64_t loss_said(int64_t axis, int64_t given); /* the number of axis= or rows= as --loss has it */
const char *loss_shape_text(LossPass *lp, Type t); /* "[4,6,7]" */

/* ---- losses/output_rows.c */
/* rows and n_rows, for the output of this forward function; false after reporting: no axis of it counts rows. */
bool loss_find_rows(LossPass *lp, Function *forward);

/* ---- losses/target.c */
bool loss_check_output(LossPass *lp, const Function *forward); /* of a loss that compares it */
/* class_axis, target_type, target_rows and target. */
bool loss_prepare_target(LossPass *lp, const Function *forward);
/* The parameter as the loss compares it: its rows go to where those of the output are. */
Value *loss_target_value(const LossPass *lp, Builder *b, Value *param);

/* ---- losses/form.c */
/* Warns where the output is no logits, or no log-probabilities, and the loss takes these. */
void loss_check_form(LossPass *lp, const Function *f);

/* ---- losses/own.c */
/* sum, count and targets of a loss that the graph computes. */
void loss_build_own(LossPass *lp, Loss *l, Value *const *results);

#endif

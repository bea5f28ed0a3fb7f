/* Declarations that call, cond and loop share: checks of operands against parameters, and arguments of gradients. */
#ifndef GRADC_IR_OPS_CONTROL_H
#define GRADC_IR_OPS_CONTROL_H

#include "ir/ops/family.h"

int control_results(const Function *f);
/* Compares operands from, from + 1, ... of the node with parameters at, at + 1, ... of f (n of
 * each), and reports those whose types differ. */
void control_check_params(Infer *in, const Function *f, int from, int at, int n);
Value **control_values(Grad *g, int n);
void loop_grad(Grad *g);               /* in loop_grad.c */
extern const Sample control_samples[]; /* tests/ir/control.gir tests these ops instead */

#endif

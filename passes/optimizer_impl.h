/* What the files of the pass `optimizer` share: optimizer.c says which parameters have which optimizer and states, update.c builds
 * @update, refresh.c what some optimizers estimate besides, update_rows.c is what rows build with. */
#ifndef GRADC_PASSES_OPTIMIZER_IMPL_H
#define GRADC_PASSES_OPTIMIZER_IMPL_H

#include "passes/pass.h"

/* The parameters that one optimizer updates. */
typedef struct Group {
	OptimizerGroup of;
	bool fits;          /* a parameter */
	struct Group *rest; /* of those that it does not take; NULL: there are none */
	State *numbers[MAX_NUMBERS];
	Value *new_numbers[MAX_NUMBERS];
} Group;

/* A parameter that is trained, and what the optimizer keeps for it. */
typedef struct {
	Group *group;
	State *param, *grad, *moment[MAX_MOMENTS];
} Trained;

typedef struct {
	Pass *p;
	Module *m;
	Function *f;
	Builder b;
	VEC(Group *) groups;  /* the first: that of all, where no other fits */
	int given;            /* groups that options name; others are rests */
	const DType *moments; /* NULL: of the type of the update */
	bool stochastic;      /* rounding to 16 bits */
	LossScale rule;
	LossScaling scaling;
	VEC(Trained) trained;
} Optimizer;

/* f64[] */
static inline Value *
number(Builder *b, double x)
{
	return b_splat(b, type_scalar(b->m, F64), x);
}

/* A number repeated, in the type `like`. */
static inline Value *
spread(Builder *b, Value *scalar, Type like)
{
	return b_broadcast(b, b_cast(b, scalar, like->dtype), ints_of_type(like), (Ints){0});
}

/* In which the update of a parameter is computed: f64 where it is of it, else f32. */
DType update_dtype(const State *param);

/* ---- update.c */
void update_build(Optimizer *o);

#endif

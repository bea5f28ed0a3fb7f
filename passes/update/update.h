/* Declarations that the files of the pass `optimizer` share. optimizer.c decides which parameters have which
 * optimizer and states; update.c builds @update; refresh.c builds the estimates of some optimizers; rows.c has
 * helpers for rows. */
#ifndef GRADC_PASSES_UPDATE_UPDATE_H
#define GRADC_PASSES_UPDATE_UPDATE_H

#include "passes/pass.h"

/* The parameters that one optimizer updates. */
typedef struct Group {
	OptimizerGroup of;
	bool fits;  /* the glob fits a parameter */
	bool taken; /* the optimizer updates a parameter */
	/* group of the parameters that the optimizer does not take; NULL: no such parameters */
	struct Group *rest;
	State *numbers[MAX_NUMBERS];
	Value *new_numbers[MAX_NUMBERS];
} Group;
/* A trained parameter, and the optimizer's states for it. */
typedef struct {
	Group *group;
	State *param, *grad, *moment[MAX_MOMENTS];
	int inputs_axis; /* of a matrix: axis over which a product sums; -1: not known */
} Trained;
typedef struct {
	Pass *p;
	Module *m;
	Function *f;
	Builder b;
	VEC(Group *) groups; /* the first group has all parameters that no other group has */
	/* number of groups that come from options; every further group is the `rest` of another
	 * group */
	int given;
	const DType *moments; /* type of the moments; NULL: the type of the update */
	bool stochastic;      /* round to 16 bits stochastically */
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
/* A number repeated to type `like`. */
static inline Value *
spread(Builder *b, Value *scalar, Type like)
{
	return b_broadcast(b, b_cast(b, scalar, like->dtype), ints_of_type(like), (Ints){0});
}

/* ---- update.c */
Value *is_finite(Builder *b, Value *x); /* bool[], for a number x */
/* Values that all parameters share. */
typedef struct {
	/* factor that all gradients are multiplied by, for the mean and for clipping by norm */
	Value *scale;
	Value *limit; /* f64[]: limit of the gradients' elements, after clipping by norm; NULL: no limit */
	Value *t;     /* f64[]: number of this update */
	Value *count; /* f64[]: number of targets that were counted */
	Value *go;    /* bool[]: is the update made? */
} Shared;
/* The new content of a state, as a vector of its elements. */
typedef struct {
	State *state;
	Value *value;
} NewContent;
typedef VEC(NewContent) NewContents;
/* Adds the groups' new numbers; the old numbers stay if `go` is false. */
void new_numbers(Optimizer *o, Value *go, NewContents *out);

#endif

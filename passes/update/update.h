/* What the files of the pass `optimizer` share: optimizer.c says which parameters have which optimizer and states, update.c builds
 * @update, refresh.c what some optimizers estimate besides, update/rows.c is what rows build with. */
#ifndef GRADC_PASSES_UPDATE_UPDATE_H
#define GRADC_PASSES_UPDATE_UPDATE_H

#include "passes/pass.h"

/* The parameters that one optimizer updates. */
typedef struct Group {
	OptimizerGroup of;
	bool fits;          /* a parameter */
	bool taken;         /* it updates one */
	struct Group *rest; /* of those that it does not take; NULL: there are none */
	State *numbers[MAX_NUMBERS];
	Value *new_numbers[MAX_NUMBERS];
} Group;

/* A parameter that is trained, and what the optimizer keeps for it. */
typedef struct {
	Group *group;
	State *param, *grad, *moment[MAX_MOMENTS];
	int inputs_axis; /* of a matrix, along which a product adds up; -1: not known */
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
/* What the micro-batches added up, in f64. */
typedef struct {
	Value *sum, *count;    /* as the states have them */
	Value *counted;        /* count > 0 */
	Value *is_number;      /* count >= 0: not NaN, and no sum of negative weights */
	Value *loss;           /* sum / count */
	Value *gradient_scale; /* what turns the sum of their gradients into the step's mean */
} Counted;
Counted read_loss(Optimizer *o);
/* Of the gradients times the factor, with elements within the limit; NULL: without one. f64[] */
Value *gradient_norm(Optimizer *o, Value *factor, Value *limit);
Value *is_finite(Builder *b, Value *x); /* bool[] of a number */
/* What all parameters share. */
typedef struct {
	Value *scale; /* of gradients: the mean's, clipped by the norm */
	Value *limit; /* f64[]: of their elements, times the same clipping; NULL: none */
	Value *t;     /* f64[]: the number of this update */
	Value *count; /* f64[]: targets that were counted */
	Value *go;    /* bool[]: it is made */
} Shared;
/* What a state gets: its elements in a row. */
typedef struct {
	State *state;
	Value *value;
} NewContent;
/* What a row's function, its update or refresh, sets of a parameter and its moments; how many, at most 1 + MAX_MOMENTS. Its numbers
 * go to the group. */
int new_contents(Optimizer *o, const Trained *t, const Shared *shared, void (*row)(Update *u),
                 NewContent *out);
/* The groups' numbers where `go` has it so; how many. */
int new_numbers(Optimizer *o, Value *go, NewContent *out);

/* ---- refresh.c: @refresh, where an optimizer estimates something */
void refresh_build(Optimizer *o);

#endif

/* Private to groups: an attention in a graph, and the functions that are made of it.
 *
 *	scores  = q k                over the width of heads; axes: batch, queries, keys
 *	logits  = f(scores)          scale, masks, bias, softcap ...: elementwise
 *	p       = softmax(logits)    over keys
 *	weights = g(p)               dropout, guards against NaN, casts: elementwise
 *	o       = weights v          over keys */
#ifndef GRADC_IR_GROUPS_ATTENTION_H
#define GRADC_IR_GROUPS_ATTENTION_H

#include "ir/groups/groups.h"
#include "ir/groups/labels.h"

/* Labels of axes: those of the scores are 0, 1, ...; then the axes over which q k sums, and the
 * axes that v has and the weights lack. */
enum { WIDTH_LABEL = MAX_RANK, VALUE_LABEL = 2 * MAX_RANK, N_LABELS = 3 * MAX_RANK };

/* An operand of the attention, behind reshapes, transposes and factors. */
enum { MOST_VIEWS = 8, MOST_TRAINED_ARGUMENTS = 4 };
typedef struct {
	Value *base;
	int n;
	const Node *views[MOST_VIEWS]; /* the last one reads `base` */
	double scale;                  /* product of the factors */
} Peeled;
/* Walks back from v. scales: also takes factors that are one number. */
Peeled attention_peel(Value *v, bool scales);

typedef struct {
	/* the scores' axes have labels 0 to n - 1: batch axes, axes of queries, and the axis of
	 * keys */
	int n;
	bool allow_tf32; /* as the graph's products */
	int64_t sizes[N_LABELS];
	Labels q, k, v, o; /* of the operands of both products and of the second product's result */
	Peeled q_from, k_from, v_from;
	Type q_type, k_type, v_type,
		o_type; /* of the operands of the graph's products, and of the result */
	/* outside of the body: the values that parameters stand for: q, k, v, then what f and g
	 * read besides */
	VEC(Value *) arguments;
	/* of arguments from number 3 on: does it depend on a trained parameter? Then the group
	 * attention_grad computes its gradient, too */
	VEC(bool) trained;
	/* in the body: */
	Function *body;
	Value *logits, *most, *p,
		*weights; /* most: the largest logit of each row, the first value of the softmax */
	int range; /* number of the argument for the first key; the next one is for the end. 0: no range */
} Attention;

/* What hides keys from queries: `value` is added to the scores, or selects between them and a
 * number. */
typedef struct {
	Value *value; /* in the graph; NULL: nothing hides keys */
	MergedAxes axes;
	bool hides_true; /* of a bool: true hides, or false */
	int n;           /* how many such values there are */
} AttentionMask;
/* Notes that n, which computes logits from logits and operand `other`, may hide keys. */
void attention_note_mask(AttentionMask *mask, const Node *n, int other, const MergedAxes *axes);
/* The keys that each query sees, as far as the mask tells: logits of keys outside of [begin, end)
 * become -inf in the body. Adds two parameters to the body, whose arguments attention_range_set
 * sets, and returns the logits. */
Value *attention_range(Builder *b, Attention *a, Value *logits);
/* Builds the arguments in the graph, before the product. False: the mask has another form. */
bool attention_range_set(Builder *graph, Attention *a, const AttentionMask *mask);
/* Drops what attention_range has put into a body. */
void attention_drop_range(Function *body);
/* Can attention_range_set build them? */
bool attention_range_exists(Recognition *r, const Attention *a, const AttentionMask *mask);

/* The gradient of the body: a function that calls a group of its own. The pair function takes the
 * body's operands, its results and the gradient of o. */
Function *attention_gradient(Recognition *r, const Attention *a);
/* Sizes of the axes with these labels */
Ints attention_shape(const Attention *a, const Labels *l);
/* x as the base's views make it */
Value *attention_views(Builder *b, Value *x, const Peeled *from);

#endif

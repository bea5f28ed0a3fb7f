/* Private to groups: an attention while the recognizer looks at its nodes. The sections are named after
 * their .c files. */
#ifndef GRADC_IR_GROUPS_ATTENTION_MATCH_H
#define GRADC_IR_GROUPS_ATTENTION_MATCH_H

#include "ir/groups/attention.h"

enum { MOST_STEPS = 96 /* of a walk from the second product to the first */ };

typedef struct {
	Recognition *r;
	Node *product;         /* weights v */
	int side;              /* operand of the product that has the weights */
	Value *p, *logits;     /* result and operand of the softmax */
	int axis;              /* of the softmax */
	bool zero_rows;        /* are rows without a logit above -inf 0? */
	Node *scores;          /* q k */
	int keys_side;         /* operand of the scores that has the keys */
	VEC(const Node *) own; /* nodes that only the attention should read */
	int steps;
	/* labels that the nodes between the products see: those of Attention, but the axis of keys, the
	 * last one, may be several, if nodes split it */
	int n;
	int64_t sizes[MAX_RANK];
	AttentionMask mask;
	const char *why; /* it is not recognized; NULL: no reason so far */
} AttentionMatch;

/* Notes why the nodes are no attention, unless a reason is known; returns false. */
bool attention_fail(AttentionMatch *m, const char *why);
/* Is v computed element by element, or by a view? */
bool attention_is_link(const Value *v);
/* Can the elements of v's operand x be the scores from which v is computed? */
bool attention_leads_on(const Value *v, const Value *x);

/* ---- attention_softmax.c: is v the result of a softmax over one axis? Sets logits, axis and zero_rows. */
bool attention_is_softmax(AttentionMatch *m, Value *v);

/* ---- attention_axes.c: the scores' axes in the order batch, free axes of x, free axes of y, each as
 * a product of factors: later reshapes may split an axis, as [8,64,64] to [2,4,64,64]. */
typedef struct {
	int n;
	int count[MAX_RANK];
	int64_t size[MAX_RANK][MAX_RANK];
} Factors;
/* Finds the factors, and which of the axes the softmax runs over; -1: the axes cannot be followed. */
int attention_factors(AttentionMatch *m, Factors *f);
/* Labels of q, k and, as the match has them, of the scores in the graph, with the keys last. keys: the
 * axis of the scores that the softmax runs over. */
bool attention_label_scores(AttentionMatch *m, Attention *a, const Factors *f, int keys,
                            MergedAxes *scores);
/* The axes with one label for all keys. False: the labels of keys do not stand together in one axis. */
bool attention_join_keys(const AttentionMatch *m, const Attention *a, MergedAxes *axes);
/* Labels of v and o, for weights whose axes are `w`. */
bool attention_label_values(AttentionMatch *m, Attention *a, const MergedAxes *w);

/* ---- attention_body.c: builds the body; false: m->why says why it cannot be built. */
bool attention_build_body(AttentionMatch *m, Attention *a, const Factors *f, int keys);

#endif

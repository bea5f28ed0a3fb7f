/* Private to the files linear_loss*.c: the last product of a model and its loss, in a graph. */
#ifndef GRADC_IR_GROUPS_LINEAR_LOSS_MATCH_H
#define GRADC_IR_GROUPS_LINEAR_LOSS_MATCH_H

#include "ir/groups/groups.h"

/* A value is large if it has about as many elements as the product, so that it should not be stored for all rows. */
typedef struct {
	Recognition *r;
	Node *product;
	int axis; /* of the product's result: rows lie along it */
	IntMap *rows; /* value id -> axis along which the rows of a value lie that depends on the product */
	int pending;         /* readers of these values that were not visited yet */
	IntMap *member;      /* ids of the nodes that become part of the group */
	VEC(Node *) reached; /* nodes that depend on the product, row by row, in order */
	Node *last;          /* the last member */
	const char *why;     /* NULL, or why the nodes around the product are no group */
} LossMatch;

/* Finds the members of the group. False: there is no group; then `why` may say why. */
bool linear_loss_match(LossMatch *m);
/* The loop of n over the rows; NULL: n cannot be computed row by row. */
const Factor *linear_loss_factor(const LossMatch *m, const Node *n);
bool linear_loss_is_large(const LossMatch *m, const Value *v);
bool linear_loss_has(const LossMatch *m, const Node *n); /* is n a member? */

#endif

/* Private to the files chunked_attention*.c. The sections are named after their .c files. */
#ifndef GRADC_IR_GROUPS_CHUNKED_ATTENTION_H
#define GRADC_IR_GROUPS_CHUNKED_ATTENTION_H

#include "ir/groups/groups.h"

/* ---- chunked_attention_match.c: nodes between products that make and consume scores, in a graph. */
enum { MOST_SCORE_NODES = 256 /* of each walk back from scores */ };
/* The axes of a value along which queries and keys lie; -1: the value has no such axis. */
typedef struct {
	int queries, keys;
} ScoreAxes;
/* A node, and its loops over queries and over keys; NULL: it has no such loop. */
typedef struct {
	Node *node;
	const Factor *queries, *keys;
} ScoreNode;
typedef struct {
	Recognition *r;
	IntMap *needed; /* value id -> axes, of values with both axes from which the softmax is computed */
	VEC(Node *) products;   /* the first products: their operands have one of the axes each */
	IntMap *axes;           /* value id -> axes, of values that depend on a first product */
	VEC(ScoreNode) reached; /* nodes that read these values or compute them, in order */
	IntMap *member;         /* ids of the nodes that become part of the group */
	Node *first, *last;     /* of the members */
	int pending;            /* readers of values in `axes` that were not visited yet */
	int steps;              /* of the walk back from the softmax */
	bool ends;              /* a product sums over keys */
} ChunkMatch;

/* Finds the members of a group that has p, the result of a softmax with these axes. False: there is no group. */
bool chunked_attention_match(ChunkMatch *m, Value *p, ScoreAxes axes);
bool score_axes_of(const IntMap *axes, const Value *v, ScoreAxes *out);
/* The loops of v's node over both axes of v. False: the group cannot compute the node. */
bool score_node_of(Arena *scratch, const Value *v, ScoreAxes axes, ScoreNode *out);
/* The axes of operand i, as the loops of the node cut it. */
ScoreAxes score_axes_of_operand(const ScoreNode *n, int i);

/* ---- chunked_attention_bias.c: if `attention`, a call of that group, has a bias that products compute, puts a
 * call of chunked_attention in its place, which computes the bias, too. */
bool chunked_attention_with_bias(Recognition *r, Node *attention);

/* ---- chunked_attention.c */
/* Shares the body, and gives it a gradient, which computes the scores again: a group, too. */
const GroupBody *chunked_attention_share(Recognition *r, Function *body);

#endif

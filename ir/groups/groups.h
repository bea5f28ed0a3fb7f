/* Groups: nodes that are computed as a whole, such as attention, whose scores need not be stored.
 * The pass `recognize` replaces the nodes of a group by a call of a function of kind
 * FUNCTION_GROUP, which has the nodes as its body. The body is the group's meaning: the
 * interpreter runs it. A call stays a call until `fuse`; then a strategy (codegen/groups/) makes
 * its kernel. If no strategy of the target takes the group, the nodes take the call's place. */
#ifndef GRADC_IR_GROUPS_H
#define GRADC_IR_GROUPS_H

#include "ir/ir.h"

/* Private to a pass that looks for groups. */
typedef struct {
	Function *body, *gradient;
} GroupBody;
/* Why the nodes around `node` are no group of this kind. */
typedef struct {
	const struct GroupRow *row;
	const Node *node;
	const char *why;
} GroupNote;
typedef struct {
	Module *m;
	Arena *scratch;
	Diag *diag;
	Function *f; /* the function that is searched */
	/* by id, of the n_values values that f had at first: a float that depends on a trained parameter */
	const bool *trained;
	uint32_t n_values;
	IntMap *by_hash; /* the bodies so far: hash -> number in `bodies` */
	VEC(GroupBody) bodies;
	VEC(GroupNote) notes;
	StrMap *said; /* the notes that were printed */
	/* Does the program's target compute a group with this body as a whole? If not, the nodes stay as they are. NULL:
	 * looks for groups before autograd, when targets are not known; else for groups that span both passes. */
	bool (*takes)(void *ctx, const Function *body);
	void *ctx;
	/* By value id, with `takes`: does a product or a loop of the forward pass depend on the value? */
	const bool *leads_to_product;
} Recognition;

struct GroupRow {
	const char *name, *doc;
	/* If n ends such a group (or begins it, as the row says), puts a call in its place and returns true.
	 * Nodes that nobody reads any more are erased later. NULL: only the gradient of another
	 * group makes groups of this kind. */
	bool (*recognize)(Recognition *r, Node *n);
	/* The group has nodes of the forward and of the backward pass, so it is looked for after
	 * autograd. The body then needs no gradient. Only groups that the target takes are made. */
	bool spans_backward;
	/* Rewrites a copy of the body so that it does not read its hints, before the copy takes the
	 * place of a call. NULL: the body reads none. */
	void (*drop_hints)(Function *body);
	/* What a target stores that has no strategy for the group: a note says so. NULL: there is nothing to say. */
	const char *stored;
};
extern const GroupRow *const group_table[]; /* ends with NULL */
#define GROUP(name) extern const GroupRow group_##name;
#include "ir/groups/group_list.def"
#undef GROUP
const GroupRow *group_find(const char *name); /* NULL: no such group */
/* Row i of those with this value of spans_backward; NULL: there are fewer. */
const GroupRow *group_row(int i, bool spans_backward);
/* Puts calls in place of the groups of r->f, and prints notes. Drops nodes that nobody reads any more. */
bool groups_recognize(Recognition *r);
/* Reports every column that a row lacks. True: nothing is wrong. */
bool group_table_check(Diag *diag);
/* The group that n computes; NULL: n is no call of a group. */
const GroupRow *called_group(const Node *n);
/* Puts the nodes of a group in place of its call, without hints. opened: the bodies without hints
 * that earlier calls of this function made, by body. */
void group_open(Node *call, IntMap *opened);
/* group_open for all groups that f calls */
void groups_open(Function *f);
/* A copy of a body in which the nodes of groups stand in place of their calls, without hints. Each reader of a parameter
 * or of a view has a copy of its own: some nodes may read a mask along queries, others along keys. A parameter v that the
 * body lacks stands for operand v->number of a call. */
Function *group_opened(const Function *body);
/* The result of the first product of a body, which makes scores or logits; NULL: the body has no product. */
Value *group_scores(const Function *body);
/* A group of the same kind, called `name`, that computes n results of a body: those with these numbers,
 * each cast to a type. It has the parameters that these results need, under the body's names. */
Function *group_part(const Function *body, const char *name, int n, const int *results,
                     const DType *types);
/* The operand of a call of the body that stands for this parameter of a part of the body. */
Value *group_part_argument(const Node *call, const Value *param);
/* Column `fuse` of n's op; but a call of a group has a kernel of its own. */
FuseClass node_fuse_class(const Node *n);

/* For `recognize`: */
/* A new function of kind FUNCTION_GROUP without parameters and nodes. */
Function *group_begin(Module *m, const GroupRow *row);
/* An equal earlier body, in whose favour `body` is removed; or `body` itself, with the gradient
 * NULL. The result stays valid until the next call. */
GroupBody *group_share(Recognition *r, Function *body);
/* Puts a call of body->body in the place of n, whose result becomes result 0 of the call. */
Node *group_call(Recognition *r, Node *n, const GroupBody *body, int n_arguments,
                 Value *const *arguments);
/* Says why the nodes around n are no group of this kind, unless a later row of the list takes n. Each reason is printed once. */
void group_note(Recognition *r, const GroupRow *row, const Node *n, const char *why);
/* Drops the notes on these nodes, which have become part of a group. members: their ids */
void group_drop_notes(Recognition *r, const IntMap *members);

#endif

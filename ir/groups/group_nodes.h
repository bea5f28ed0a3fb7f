/* Private to groups: groups whose bodies hold nodes of the graph as they are, such as linear_loss. */
#ifndef GRADC_IR_GROUPS_GROUP_NODES_H
#define GRADC_IR_GROUPS_GROUP_NODES_H

#include "ir/groups/groups.h"

typedef struct {
	Recognition *r;
	const IntMap *member; /* ids of the nodes of r->f whose place the group takes */
	Node *first, *last;   /* of the members */
	Function *body;       /* without parameters and nodes at first */
	IntMap *inside; /* ids of the nodes that the body has: members, and others that stay in the graph, too */
	/* values of the graph: the operands of the call; the members' results that other nodes read, in the order of the
	 * body's results */
	VEC(Value *) arguments, results;
	IntMap *copy; /* value id -> value of the body */
} GroupNodes;

/* Does n only view or repeat an index, or one number? Other constants are parameters, of which a part reads its piece. */
bool is_index_or_number(const Node *n);
/* Do only nodes that the body has read v? */
bool group_nodes_are_readers(const GroupNodes *g, const Value *v);
/* Fills the body with the members in their order. Before each member come the nodes of `inside` that the member needs.
 * Values that other nodes of the graph compute become parameters. */
void group_nodes_build(GroupNodes *g);
/* The value of the body that stands for v, a value that the body computes. */
Value *group_nodes_copy(const GroupNodes *g, const Value *v);
/* Can the members run together? Not if a node between them depends on members and leads to members. */
bool group_nodes_run_together(Recognition *r, const IntMap *member, Node *first, Node *last);
/* Puts a call behind the last member; its results take the place of the members' results. Nodes between the members
 * that depend on members move behind the call. */
void group_nodes_call(const GroupNodes *g, const GroupBody *body);

#endif

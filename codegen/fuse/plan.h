/* Private to fuse: functions that the files of the store plan share. The store plan says which
 * nodes form groups; each group becomes one kernel (store_plan.h). */
#ifndef GRADC_CODEGEN_FUSE_PLAN_H
#define GRADC_CODEGEN_FUSE_PLAN_H

#include "codegen/fuse/store_plan.h"

/* plan_readers.c */
void plan_mark_copied(StorePlan *p, const Node *n); /* must be called for all nodes in order */
/* does a store, the return or a call read a result of n? */
bool plan_must_be_stored(const Node *n);
/* Calls visit for every node that reads v's elements, directly or through copied nodes. Stops and returns
 * true when visit returns true. */
bool plan_any_reader(const StorePlan *p, const Value *v,
                     bool (*visit)(const StorePlan *p, const Node *reader, int ctx), int ctx);

/* The most nodes of a kernel, and the largest sum of their OpRow.weight. Without limits, LLVM
 * would take too long: more than twice the time for twice the code. */
enum { MAX_GROUP_NODES = 400, MAX_GROUP_WEIGHT = 600 };
static inline bool
plan_fit_together(const Group *a, const Group *b)
{
	return a->members.n + b->members.n <= MAX_GROUP_NODES &&
	       a->weight + b->weight <= MAX_GROUP_WEIGHT;
}

/* plan_group.c */
void plan_place_node(StorePlan *p, Node *n); /* n joins a group or opens one */

/* plan_columns.c */
/* The space of the result of a reduction of full values whose form is not that of the group's other reductions: the group reduces rows, and
 * the reduction sums columns, or the group sums columns, and the reduction reduces rows. ITER_NONE: one kernel cannot do both. */
IterSpace plan_space_beside(const StorePlan *p, const Group *g, const ReduceForm *form);
/* The group's reductions become sums of columns, because the group is about to reduce rows, too. */
void plan_make_columns(StorePlan *p, const Group *g);
/* Do the sums of columns of group a fit beside those of group b, which also reduces rows? */
bool plan_columns_merge(const StorePlan *p, const Group *a, const Group *b);

/* plan_siblings.c */
/* Earlier groups that sum columns of the same stored values are merged into group gi. */
void plan_merge_siblings(StorePlan *p, int gi);
/* The group of the first reduction that reads v, perhaps through reshapes; -1: no reduction reads v. */
int plan_reducing_reader(const StorePlan *p, const Value *v);

/* plan_recompute.c: marks n's result if its readers should compute it again. */
void plan_recompute_node(StorePlan *p, Node *n);

#endif

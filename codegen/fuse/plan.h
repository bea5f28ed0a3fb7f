/* Shared by the files of the store plan. */
#ifndef GRADC_CODEGEN_STORE_PLAN_IMPL_H
#define GRADC_CODEGEN_STORE_PLAN_IMPL_H

#include "codegen/fuse/store_plan.h"

/* plan_readers.c */
void plan_mark_copied(StorePlan *p, const Node *n); /* in the order of the nodes, with placing */
bool plan_must_be_stored(const Node *n);            /* read by a store, the return or a call */
/* Calls visit for every node that reads v's elements, directly or through copied nodes; stops and returns
 * true when visit does. */
bool plan_any_reader(const StorePlan *p, const Value *v,
                     bool (*visit)(const StorePlan *p, const Node *reader, int ctx), int ctx);

/* plan_group.c */
void plan_place_node(StorePlan *p, Node *n);              /* joins or opens a group */
void plan_place_pattern(StorePlan *p, const Gathered *g); /* opens a group that nothing joins */
/* Earlier column reductions of the same values join gi's. */
void plan_merge_siblings(StorePlan *p, int gi);

/* plan_recompute.c: marks n as computed again by its readers where that is cheaper. */
void plan_recompute_node(StorePlan *p, Node *n);

#endif

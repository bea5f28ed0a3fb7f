/* What the two files that bring parameters back share: unmerge.c and lost_biases.c. */
#ifndef GRADC_UNMERGE_IMPL_H
#define GRADC_UNMERGE_IMPL_H

#include "frontend/frontend_impl.h"

/* An input of a node of the main graph. */
typedef struct {
	NodeProto *node;
	size_t input;
	const char *
		called; /* what it is to the module: "weight"; of the operator's input, or of the tensor that stands there now */
	bool by_operator; /* the former */
} Read;

typedef struct {
	Repairs *r;
	StrMap *in_file; /* names of the module's tensors that the file has, as they were or computed from */
	StrMap *order;   /* signed tensor -> its place in the signature, from 1 */
	StrMap *modules; /* path -> the module's nodes */
	StrMap *homes;   /* initializer -> who reads it */
	StrMap *fresh;   /* initializer -> whether it has one value everywhere */
} Unmerge;

/* The file neither has the module's tensor, nor has import made it. */
bool unmerge_is_lost(const Unmerge *u, const char *name);
/* The node belongs to the module that has the tensor; to the module around it. */
bool unmerge_is_in_module(const NodeProto *p, const char *tensor);
bool unmerge_is_in_parent(const NodeProto *p, const char *tensor);
/* Is every element of a float tensor the same number? */
bool unmerge_one_value(const Repairs *r, const TensorProto *t, double *value);
/* The read is of another module's tensor, which has one value everywhere and which its own module reads, too. */
bool unmerge_is_foreign(Unmerge *u, const Read *read);
/* Makes the node read the module's tensor `name`, a copy of what it reads. false: it cannot be that tensor. */
bool unmerge_restore(Unmerge *u, const Read *read, const char *name);

/* lost_biases.c. Merged: the layer reads another one's bias. Dropped: it reads none. */
void unmerge_merged_biases(Unmerge *u);
void unmerge_dropped_biases(Unmerge *u);

#endif

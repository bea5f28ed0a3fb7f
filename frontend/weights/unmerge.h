/* What the files that bring parameters back share. */
#ifndef GRADC_UNMERGE_H
#define GRADC_UNMERGE_H

#include "frontend/weights/weights.h"

/* An input of a node of the main graph. */
typedef struct {
	NodeProto *node;
	size_t input;
	const char *
		called; /* "weight": the operator's name for this input; without one, the last part of the tensor's name */
	bool by_operator; /* `called` is the operator's name */
} Read;
typedef VEC(Read) Reads;

/* Nodes that read one tensor, and the module's tensor that they read by right. */
typedef struct {
	RestoredKind kind;
	const char *name, *from;
	Reads reads;
} Claim;

/* The exporter's text of the call that a node is of. */
typedef struct {
	const char *text;   /* NULL: there is none */
	StringList tensors; /* of the module, that it read */
	bool is_known;  /* every name is a tensor of the module, an input or a value of the graph */
	bool has_views; /* each other name is of a view, which has the numbers of what it shows */
} Call;

typedef struct {
	Repairs *r;
	StrMap *in_file; /* names of the module's tensors that the file has, as they were or computed from */
	StrMap *order;   /* signed tensor -> its place in the signature, from 1 */
	StrMap *modules; /* path -> ModuleNodes */
	StrMap *homes;   /* initializer -> who reads it */
	StrMap *values;  /* names of the graph's inputs and of what nodes make */
	VEC(Claim) claims;
	StrMap *claimed;       /* names of claims */
	IntMap *claimed_reads; /* addresses of their nodes' inputs */
	IntMap *one_valued; /* address of a TensorProto -> whether each element is the same number */
} Unmerge;

/* Neither the file nor a repair has this tensor, and nobody claims it. */
bool unmerge_is_lost(const Unmerge *u, const char *name);
/* The node belongs to the module that has the tensor; to the module around it. */
bool unmerge_is_in_module(const NodeProto *p, const char *tensor);
bool unmerge_is_in_parent(const NodeProto *p, const char *tensor);
/* Is every element of a float tensor the same number? */
bool unmerge_one_value(const Repairs *r, const TensorProto *t, double *value);
/* The module's tensor that an initializer is, or was computed from; NULL: a number of the module's code. */
const char *unmerge_source(const Repairs *r, const char *name);
/* In the signature, among tensors of one kind: for tied names the exporter keeps the last, for merged tensors the first. */
bool unmerge_is_before(const Unmerge *u, const char *name, const char *other);
Read unmerge_read(const Unmerge *u, NodeProto *p, size_t input);
/* What a module calls the input of its operator; NULL: it may be anything. */
const char *unmerge_name_of_input(const NodeProto *p, size_t input);
/* The read is of another module's tensor, which has one value everywhere and which its own module reads, too. */
bool unmerge_is_foreign(Unmerge *u, const Read *read);
/* The reads, all of one tensor, claim the lost tensor `name`. */
void unmerge_claim(Unmerge *u, const Reads *reads, const char *name);
/* They read a number of the module's code. */
void unmerge_claim_number(Unmerge *u, const Reads *reads, const char *from);
/* Like unmerge_claim, but only if all reads are calls of one layer. */
void unmerge_claim_repeated(Unmerge *u, const Reads *reads, const char *name);

/* ---- unmerge_calls.c: by the exporter's texts of calls */
/* false: the node has no text. */
bool unmerge_call(const Unmerge *u, const NodeProto *p, Call *out);
/* The node is a layer that takes a bias, and the call's; its only lost tensor, or NULL. */
const char *unmerge_lost_of_layer(const Unmerge *u, const NodeProto *p, const Call *call);
void unmerge_claim_by_calls(Unmerge *u);

/* ---- unmerge_modules.c: by the names of modules, for nodes without such a text */
void unmerge_claim_by_modules(Unmerge *u);

/* ---- lost_biases.c. Merged: the layer reads another one's bias. Dropped: it reads none. */
void unmerge_claim_biases(Unmerge *u);
void unmerge_dropped_biases(Unmerge *u);

#endif

/* Private header: shared by the files that restore lost tensors. A tensor is lost if the signature
 * lists it and the file lacks it. A claim names a lost tensor and the reads of another tensor that
 * should read the lost tensor. */
#ifndef GRADC_FRONTEND_WEIGHTS_UNMERGE_H
#define GRADC_FRONTEND_WEIGHTS_UNMERGE_H

#include "frontend/weights/weights.h"

/* An input of a node of the main graph. */
typedef struct {
	NodeProto *node;
	size_t input;
	/* the operator's name for this input, for example "weight"; else the last part of the
	 * tensor's name */
	const char *called;
	bool by_operator; /* `called` is the operator's name */
} Read;
typedef VEC(Read) Reads;

/* Reads of one tensor, and the module's tensor that they should read. */
typedef struct {
	RestoredKind kind;
	const char *name, *from;
	Reads reads;
} Claim;

/* The traced Python call of a node, which the exporter stored as text. */
typedef struct {
	const char *text;   /* NULL: the node has no text */
	StringList tensors; /* module tensors that the call reads */
	bool is_known; /* every name is a tensor of the module, an input or a value of the graph */
	/* every unknown name is a view, whose numbers are those of the viewed tensor */
	bool has_views;
} Call;

typedef struct {
	Repairs *r;
	/* names of the module's tensors that the file has, unchanged or as the source of a computed
	 * one */
	StrMap *in_file;
	StrMap *order;   /* tensor -> its position in the signature, from 1 */
	StrMap *modules; /* path -> ModuleNodes */
	StrMap *homes;   /* initializer -> Home: is it read in its own module? */
	StrMap *values;  /* names of the graph's inputs and of all node outputs */
	VEC(Claim) claims;
	StrMap *claimed;       /* names of claimed tensors */
	IntMap *claimed_reads; /* addresses of claimed node inputs */
	IntMap *one_valued;    /* address of a TensorProto -> are all its elements equal? */
} Unmerge;

/* Is the tensor lost, and not claimed so far? */
bool unmerge_is_lost(const Unmerge *u, const char *name);
/* Does the node belong to the module that has the tensor? To this module's parent module? */
bool unmerge_is_in_module(const NodeProto *p, const char *tensor);
bool unmerge_is_in_parent(const NodeProto *p, const char *tensor);
/* Is every element of a float tensor the same number? */
bool unmerge_one_value(const Repairs *r, const TensorProto *t, double *value);
/* The module's tensor that an initializer holds, or was computed from; NULL: it is a number of the
 * module's code. */
const char *unmerge_source(const Repairs *r, const char *name);
/* Does `name` precede `other` in the signature, among tensors of one kind? Of tied names the
 * exporter keeps the last, of merged tensors the first. */
bool unmerge_is_before(const Unmerge *u, const char *name, const char *other);
Read unmerge_read(const Unmerge *u, NodeProto *p, size_t input);
/* PyTorch's name for the input of an operator; NULL: none is fixed. */
const char *unmerge_name_of_input(const NodeProto *p, size_t input);
/* Does the node read a tensor of another module that has all elements equal, and does the other
 * module read the tensor, too? */
bool unmerge_is_foreign(Unmerge *u, const Read *read);
/* Claims the lost tensor `name` for these reads, all of one tensor. */
void unmerge_claim(Unmerge *u, const Reads *reads, const char *name);
/* Marks the reads as reads of a number in the module's code. */
void unmerge_claim_number(Unmerge *u, const Reads *reads, const char *from);
/* Does the same as unmerge_claim if all reads are calls of one layer; else nothing. */
void unmerge_claim_repeated(Unmerge *u, const Reads *reads, const char *name);

/* ---- unmerge_calls.c: claims by the exporter's texts of calls */
/* false: the node has no text. */
bool unmerge_call(const Unmerge *u, const NodeProto *p, Call *out);
/* The lost bias of a layer that takes a bias, by the text of its call; NULL: no lost bias, or it is
 * ambiguous. */
const char *unmerge_lost_of_layer(const Unmerge *u, const NodeProto *p, const Call *call);
void unmerge_claim_by_calls(Unmerge *u);

/* ---- unmerge_modules.c: claims by the names of modules, for nodes without a text */
void unmerge_claim_by_modules(Unmerge *u);

/* ---- lost_biases.c: biases that the exporter merged (the layer reads another layer's bias) or
 * dropped (the layer has no bias) */
void unmerge_claim_biases(Unmerge *u);
void unmerge_dropped_biases(Unmerge *u);

#endif

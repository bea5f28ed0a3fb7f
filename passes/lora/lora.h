/* Declarations that the files of the pass `lora` share. The pass adds a low-rank product (an adapter, lora_A and
 * lora_B) to each product that reads a chosen weight. */
#ifndef GRADC_PASSES_LORA_LORA_H
#define GRADC_PASSES_LORA_LORA_H

#include "passes/pass.h"

/* ---- lora/readers.c */
/* A node that reads a weight: directly, transposed, or through its codes. */
typedef struct {
	Node *node;
	int operand;
	Ints order;      /* axis i of the operand is axis order.at[i] of the weight */
	int axis;        /* axis of the weight that counts the node's outputs */
	int outputs;     /* the same axis in the operand */
	bool has_codes;  /* the node reads codes of the weight */
	int result_axis; /* the same axis in the node's result */
	bool is_table;   /* no sum runs along the weight's other axes */
} LoraReader;
typedef VEC(LoraReader) LoraReaders;
/* Finds all nodes that read the weight, in all programs. Returns why the weight can have no adapter; NULL: it can. */
const char *lora_find_readers(const Module *m, const State *w, Arena *arena, LoraReaders *out);
/* The reader that decides which axis of the weight counts outputs: the first reader that does not look up rows (a
 * table). */
const LoraReader *lora_leader(const LoraReaders *readers);

/* ---- lora/magnitude.c */
/* The norms of each output's weights, over all other axes: [outputs], in the weight's type. */
const Tensor *lora_norms(Module *m, const Tensor *weight, int axis);
/* The values for one node that reads an adapted weight. weight: the node's operand; down: lora_A,
 * which takes the weight's place; up: lora_B as [outputs, rank]. `outputs` is the axis of the
 * weight that counts outputs; the same axis of lora_A counts the rank. */
typedef struct {
	Value *weight, *down, *up;
	int outputs;
} LoraUse;
/* magnitude / |W + s B A|, [outputs]. a->magnitude->data must be the norms of the weight. */
Value *lora_factor(Builder *b, const Adapter *a, const LoraUse *u);

/* ---- lora.c */
/* A weight seen as [outer, outputs, inner] with outputs along `axis`; rank and scale of its adapter's product. */
typedef struct {
	int axis;
	int64_t outputs, outer, inner, rank;
	double scale;
} LoraPlace;
LoraPlace lora_place_of(Type weight, int axis, const LoraSettings *s);
/* i: index of an element in [outer, outputs, inner]. Returns the element's index in [outputs, outer, inner]. */
int64_t lora_place(const LoraPlace *p, int64_t i);

/* ---- lora/pissa.c */
typedef struct {
	const Tensor *weight, *a, *b;
} LoraParts;
Status lora_pissa(Module *m, const Tensor *weight, const LoraPlace *at, LoraParts *out);

/* ---- lora/four_bit.c */
/* A weight as 4-bit codes. */
typedef struct {
	const Tensor *codes, *absmax, *nested, *offset; /* nested, offset NULL: absmax is f32 */
	/* with dora: the numbers that the codes stand for, in the weight's type; else NULL */
	const Tensor *numbers;
} LoraCodes;
/* Makes the codes of a weight. Its axes are stored in the order: `axis`, then the other axes. Returns NULL after
 * setting *why, if not all numbers are finite. */
const LoraCodes *lora_codes(Module *m, const Tensor *weight, int axis, const LoraSettings *s,
                            const char **why);
/* Makes the weight's state hold the codes, and makes its readers read the numbers computed from the
 * codes. */
void lora_keep_codes(Module *m, State *weight, int axis, const LoraCodes *codes,
                     const LoraSettings *s);

/* ---- lora/dropout.c */
/* x after dropout: each element is 0 with that probability, else divided by 1 - probability. name: selects the random
 * numbers. axis: axis of x that counts the `rows` rows of the batch; -1: no axis does. */
Value *lora_dropped(Builder *b, Value *x, double probability, const char *name, int axis,
                    int64_t rows);

#endif

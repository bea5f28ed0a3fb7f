/* What the files of the lora pass share. */
#ifndef GRADC_PASSES_LORA_LORA_H
#define GRADC_PASSES_LORA_LORA_H

#include "passes/pass.h"

/* ---- lora/readers.c */
/* A node that reads a weight as it is, transposed, or as codes of it. */
typedef struct {
	Node *node;
	int operand;
	Ints order;      /* axis i of the operand is the weight's axis order.at[i] */
	int axis;        /* of the weight, of the node's outputs */
	int outputs;     /* the same, of the operand */
	bool has_codes;  /* it reads codes of the weight */
	int result_axis; /* of the node's result, the same */
	bool is_table;   /* nothing is summed up along the weight's other axes */
} LoraReader;
typedef VEC(LoraReader) LoraReaders;
/* All that read the weight, in all programs. Why it can have no adapter; NULL: it can. */
const char *lora_find_readers(const Module *m, const State *w, Arena *arena, LoraReaders *out);
/* The one that says what is an output: the first that is no table. */
const LoraReader *lora_leader(const LoraReaders *readers);

/* ---- lora/magnitude.c */
/* The norm of each output's weights, over all other axes: [outputs], in the weight's type. */
const Tensor *lora_norms(Module *m, const Tensor *weight, int axis);
/* Operands of a node: the weight, and lora_A as it stands in the weight's place; lora_B, [outputs, rank]. `outputs` is the axis of the first
 * two that counts outputs, in lora_A the rank. */
typedef struct {
	Value *weight, *down, *up;
	int outputs;
} LoraUse;
/* magnitude / |W + s B A|, [outputs]. a->magnitude begins as the norms of the weight: so its data are. */
Value *lora_factor(Builder *b, const Adapter *a, const LoraUse *u);

/* ---- lora.c */
/* A weight as [outer, outputs, inner], outputs along `axis`, and of its adapter the rank and what the product is multiplied by. */
typedef struct {
	int axis;
	int64_t outputs, outer, inner, rank;
	double scale;
} LoraPlace;
LoraPlace lora_place_of(Type weight, int axis, const LoraSettings *s);
/* Where element i of the weight lies in [outputs, outer, inner]. */
int64_t lora_place(const LoraPlace *p, int64_t i);

/* ---- lora/pissa.c */
typedef struct {
	const Tensor *weight, *a, *b;
} LoraParts;
Status lora_pissa(Module *m, const Tensor *weight, const LoraPlace *at, LoraParts *out);

/* ---- lora/four_bit.c */
/* A weight as codes. */
typedef struct {
	const Tensor *codes, *absmax, *nested, *offset; /* the last two NULL: absmax is f32 */
	const Tensor *numbers; /* with dora what they stand for, in the weight's type */
} LoraCodes;
/* Axes in the order: axis, then the others. NULL after setting *why: its numbers are not all finite. */
const LoraCodes *lora_codes(Module *m, const Tensor *weight, int axis, const LoraSettings *s,
                            const char **why);
/* The weight's state holds the codes from here on; what read its numbers computes them from these. */
void lora_keep_codes(Module *m, State *weight, int axis, const LoraCodes *codes,
                     const LoraSettings *s);

/* ---- lora/dropout.c */
/* A function of role inference for each of role forward that lacks one: there nothing is dropped. */
void lora_split_inference(Module *m);
/* x, of which each element is 0 with that probability, else divided by the rest. name: of whose numbers; axis: of x, counts its rows,
 * `rows` of them; -1: none does. */
Value *lora_dropped(Builder *b, Value *x, double probability, const char *name, int axis,
                    int64_t rows);

#endif

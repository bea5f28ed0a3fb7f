/* Private to quantize: declarations that its files share. */
#ifndef GRADC_PASSES_QUANTIZE_QUANTIZE_H
#define GRADC_PASSES_QUANTIZE_QUANTIZE_H

#include "passes/pass.h"

/* ---- places.c: where the marked operands of a function are read */
/* An operand that import marked, read by a product through views: %w in dot %x, (transpose %w). */
typedef struct {
	Node *product;
	int operand;          /* of the product: the marked operand */
	QuantizedOperand *of; /* whose codes it becomes */
	Node *reader; /* the node that reads the value: the product, or the first of the views */
	int input;    /* of the reader */
	Ints axes; /* axes.at[i]: the value's axis for axis i of the product's operand; -1: no such axis */
} Place;
/* Finds the place of the product's operand i, which is marked. */
Place place_find(Module *m, Arena *arena, Node *product, int i);
/* The value that is quantized. */
Value *place_value(const Place *at);

/* ---- fakes.c: the nodes that quantize a value and bring it back to floats */
typedef struct {
	const QuantizePassOptions *options;
	Builder b;   /* builds before the product's own nodes */
	bool trains; /* the batch moves a running range; else the stored range counts */
} FakeBuilder;
/* The value at the place, rounded to codes and converted back. */
Value *fake_build(FakeBuilder *f, const Place *at);

#endif

/* What onnxruntime's attentions share. */
#ifndef GRADC_FUSED_ATTENTION_H
#define GRADC_FUSED_ATTENTION_H

#include "frontend/operators/nn/attention.h"

typedef struct {
	Value *q, *k, *v; /* [B, N, S, D], [B, Nkv, T, D] and [B, Nkv, T, Dv] */
	Value *added[2];  /* to the scores: what hides keys, and a bias */
	Value *seen;      /* bool, of keys; NULL: all */
	Value *sink; /* [N]: one more score of each head, of a key without a value; NULL: none */
	double scale, softcap;
	Value *scores, *p; /* before and after the softmax */
} Heads;

/* softmax(softcap(scale q k') + what is added) v, [B, S, N Dv] */
Value *attend(OnnxNode *n, Heads *h);
/* The attribute; where it is 0 or absent 1 / sqrt(D). */
double want_scale(OnnxNode *n, const Value *q);
/* Numbers [from, from + count) along the last axis of x. */
Value *e_part(OnnxNode *n, Value *x, int64_t from, int64_t count);

#endif

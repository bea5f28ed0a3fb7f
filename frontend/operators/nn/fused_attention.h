/* Private header: shared by onnxruntime's attention operators. */
#ifndef GRADC_FRONTEND_OPERATORS_NN_FUSED_ATTENTION_H
#define GRADC_FRONTEND_OPERATORS_NN_FUSED_ATTENTION_H

#include "frontend/operators/nn/attention.h"

typedef struct {
	Value *q, *k, *v; /* [B, N, S, D], [B, Nkv, T, D] and [B, Nkv, T, Dv] */
	Value *added[2];  /* added to the scores: the filter of hidden keys, and a bias */
	Value *seen;      /* bool per key: is the key seen? NULL: all keys are seen */
	Value *sink;      /* [N]: a score per head for a key without a value; NULL: no sink */
	double scale, softcap;
	Value *scores, *p; /* before and after the softmax */
} Heads;

/* softmax(softcap(scale q k') + added) v, [B, S, N Dv] */
Value *attend(OnnxNode *n, Heads *h);
/* The attribute `scale`; 1 / sqrt(D) if it is 0 or absent. */
double want_scale(OnnxNode *n, const Value *q);
/* Numbers [from, from + count) along the last axis of x. */
Value *e_part(OnnxNode *n, Value *x, int64_t from, int64_t count);

#endif

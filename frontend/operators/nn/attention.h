/* Private header: parts of attention, for the operators that contain it. Axis 1 holds heads: q [B,
 * H, S, D], k [B, Hkv, T, D], v [B, Hkv, T, Dv]. Query heads h * H/Hkv to (h + 1) * H/Hkv - 1 share
 * head h of k and v. */
#ifndef GRADC_FRONTEND_OPERATORS_NN_ATTENTION_H
#define GRADC_FRONTEND_OPERATORS_NN_ATTENTION_H

#include "frontend/import/import.h"

/* [B, S, heads * D] -> [B, heads, S, D]; input: the index of x among the node's inputs, for
 * messages. NULL after reporting. */
Value *e_split_heads(OnnxNode *n, Value *x, int64_t heads, int input);
/* [B, H, S, D] -> [B, S, H * D] */
Value *e_join_heads(OnnxNode *n, Value *x);
/* Do the shapes of q, k and v match? false after reporting. */
bool attention_fits(OnnxNode *n, const Value *q, const Value *k, const Value *v);
/* q k', [B, H, S, T] */
Value *e_scores(OnnxNode *n, Value *q, Value *k);
/* Does the same after multiplying both q and k by sqrt(scale), as in the standard. */
Value *e_scaled_scores(OnnxNode *n, Value *q, Value *k, double scale);
/* p v, [B, H, S, Dv], in the type of p */
Value *e_weigh(OnnxNode *n, Value *p, Value *v);
/* cap tanh(x / cap); x where cap is 0 */
Value *e_softcap(OnnxNode *n, Value *x, double cap);
/* x where `seen` is true, else `hidden` (mostly -inf) */
Value *e_mask(OnnxNode *n, Value *x, Value *seen, double hidden);
/* bool[S, T]: query s sees keys up to s + past */
Value *e_causal(OnnxNode *n, int64_t queries, int64_t keys, int64_t past);
/* bool[B, 1, 1, T]: keys below lengths[b] */
Value *e_below_lengths(OnnxNode *n, Value *lengths, int64_t keys);
/* Rotates pairs of numbers of x [B, H, S, D] by angles: cos and sin are [B or 1, S, K], so the
 * first 2 K numbers of a head are rotated. Number i pairs with number i + K; if `interleaved`,
 * number 2 i pairs with number 2 i + 1. */
Value *e_rotate(OnnxNode *n, Value *x, Value *cos, Value *sin, bool interleaved);

#endif

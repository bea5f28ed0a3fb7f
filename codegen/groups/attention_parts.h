/* Private to groups: the nodes of an attention's body and of its gradient's body, as strategies need
 * them. */
#ifndef GRADC_CODEGEN_GROUPS_ATTENTION_PARTS_H
#define GRADC_CODEGEN_GROUPS_ATTENTION_PARTS_H

#include "codegen/groups/score_tiles.h"

/* The nodes of an attention. */
typedef struct {
	Type shape; /* of the scores: batch, queries, keys */
	ScoreProduct scores;
	ScoreConsumer output;
	ScoreRange range;
	Value *logits, *p, *most, *sum;
	/* are weights 0 where p is NaN? Then rows without a finite logit are 0 */
	bool guarded;
	/* are the weights of rows without a logit above -inf 0? Then most is 0, and sum inf */
	bool zero_rows;
} Attention;
/* False: the body has another form. */
bool attention_parts(const Function *f, Attention *a);

enum { MOST_PRODUCTS = 4, MOST_MATRICES = 8, MOST_SUMS = 4 };

/* The nodes of a gradient: products that make scores, and those that consume them. */
typedef struct {
	Type shape; /* of the scores: batch, queries, keys */
	DType type;
	int n_products, n_consumers, n_sums, n_tiles;
	ScoreProduct products[MOST_PRODUCTS];
	ScoreConsumer consumers[MOST_PRODUCTS];
	ScoreSum sums[MOST_SUMS];
	Value *tiles[MOST_PRODUCTS]; /* the values that consumers read */
	int tile_of[MOST_PRODUCTS];  /* by consumer */
	ScoreRange range;
} AttentionGrad;
/* rounds: may results be rounded to types of 16 bits? Not if sums lie in results between blocks. */
bool attention_grad_parts(const Function *f, AttentionGrad *a, bool rounds);
/* attention_grad_team.c: do teams compute all results of this gradient in one kernel? */
bool attention_grad_is_one_kernel(const Target *target, const AttentionGrad *a);

#endif

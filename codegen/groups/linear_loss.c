/* The last product and its loss in chunks of rows: a loop computes the logits of some rows, what the loss makes of
 * them, and both gradients, so nothing is computed twice. The gradient with respect to the logits takes the
 * place of the logits. The idea is Liger Kernel's (Hsu et al. 2024, arXiv:2410.10989). */
#include "codegen/groups/chunks.h"
#include "codegen/strategy/strategy.h"
#include "ir/groups/groups.h"

extern const GroupStrategy group_strategy_linear_loss;

static bool
plan(const Target *t, const Function *body, Arena *arena, Chunks *out)
{
	const LossChunks *sizes = &t->tuning->loss;
	Value *logits = group_scores(body);

	return logits && body->states.n == 0 &&
	       logits->type->n * dtype_info[F32].bits / 8 >= sizes->least_bytes &&
	       chunks_plan(arena, body, logits, sizes->rows, out);
}

static bool
linear_loss_takes(const Target *t, const Function *body)
{
	Arena *arena = arena_new();
	Chunks c;
	bool takes = plan(t, body, arena, &c);

	if (takes)
		chunks_drop(&c);
	arena_free(arena);
	return takes;
}

static bool
linear_loss_expand(const Target *t, Node *call)
{
	Arena *arena = arena_new();
	Chunks c;
	bool cut = plan(t, called_function(call), arena, &c);

	if (cut) {
		chunks_expand(&c, call);
		chunks_drop(&c);
	}
	arena_free(arena);
	return cut;
}

const GroupStrategy group_strategy_linear_loss = {.group = &group_linear_loss,
                                                  .kinds = ON(CPU),
                                                  .doc = "a loop over chunks of rows",
                                                  .takes = linear_loss_takes,
                                                  .expand = linear_loss_expand};

/* Products of bf16, as torch.autocast computes them. bf16 has the range of f32, so gradients need no loss scale, and weights train
 * also if they exist in bf16 only. */
#include "passes/pass.h"

const Recipe recipe_bf16 = {
	.name = "bf16", .floats = F32, .products = BF16, .loss_scale = "none", .trains = true};
